"""The names in byte order against a sorted list."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicsd._native.order import Order
from topicsd._native.regions import Shared
from topicsd._native.table import Table


class Names:
    """A table and its order, and the sorted list that they must be."""

    def __init__(self, topics_max: int = 1 << 15) -> None:
        self.shared = Shared.create(topics_max=topics_max, index_bytes=1 << 20, ephemeral_bytes=1 << 20, body_bytes_max=1 << 16, ring_slots=1)
        self.table = Table(self.shared)
        self.order = Order(self.shared)
        self.slots: dict[bytes, int] = {}
        self.topic_id = 0

    def insert(self, name: bytes, ordered: bool = True) -> None:
        self.topic_id += 1
        slot = self.table.insert(name, self.topic_id)
        assert slot is not None
        self.slots[name] = slot
        if ordered:
            self.order.insert(slot)

    def remove(self, name: bytes) -> None:
        slot = self.slots.pop(name)
        self.order.remove(slot)
        self.table.remove(slot)

    def sorted(self) -> list[tuple[int, bytes]]:
        return [(self.slots[name], name) for name in sorted(self.slots)]

    def check(self) -> None:
        assert self.order.page(b"", None, len(self.slots) + 1) == self.sorted()
        assert len(self.order) == len(self.slots)
        assert sum(self.order.blocks()) == len(self.slots)


NAMES = st.one_of(
    st.sampled_from([b"a", b"a.b", b"a.b.c", b"aa", b"b", b"orders.1", b"orders.10", b"orders.2", b"z" * 255]), st.binary(min_size=1, max_size=5)
)


@given(st.lists(st.tuples(st.booleans(), NAMES), max_size=60), NAMES, NAMES, st.integers(0, 5))
def test_a_page_is_what_a_sorted_list_says(steps: list[tuple[bool, bytes]], prefix: bytes, after: bytes, limit: int) -> None:
    names = Names(64)
    for insert, name in steps:
        if name in names.slots:
            names.remove(name)
        elif insert:
            names.insert(name)
    names.check()
    wanted = [(slot, name) for slot, name in names.sorted() if name.startswith(prefix)]
    assert names.order.page(prefix, None, limit) == wanted[:limit]
    assert names.order.page(prefix, after, limit) == [(slot, name) for slot, name in wanted if name > after][:limit]
    assert names.order.next(after) == next((slot for slot, name in names.sorted() if name > after), None)
    assert names.order.next(after, inclusive=True) == next((slot for slot, name in names.sorted() if name >= after), None)


@pytest.mark.parametrize("shuffled", [False, True])
def test_ten_thousand_names_come_and_go_in_blocks_that_split_and_join(shuffled: bool) -> None:
    names, rng = Names(), random.Random(1)
    wanted = [b"topic-%05d" % number for number in range(10_000)]
    if shuffled:
        rng.shuffle(wanted)
    for name in wanted:
        names.insert(name)
    names.check()
    assert max(names.order.blocks()) <= 1022
    assert len(names.order.blocks()) <= 10_000 // 511 + 1
    rng.shuffle(wanted)
    for number, name in enumerate(wanted):
        names.remove(name)
        if number % 2500 == 0:
            names.check()
    names.check()
    assert names.order.blocks() == []
    names.insert(b"again")
    names.check()


def test_a_build_sorts_what_the_table_holds_and_goes_on_from_there() -> None:
    names, rng = Names(), random.Random(2)
    for _ in range(3000):
        name = b"prefix-in-common-" + rng.randbytes(rng.randrange(1, 6)).hex().encode()
        if name not in names.slots:
            names.insert(name, ordered=False)
    names.order.build()
    names.check()
    for name in rng.sample(sorted(names.slots), 1000):
        names.remove(name)
    for number in range(1000):
        names.insert(b"prefix-in-common-x%d" % number)
    names.check()


@given(
    st.lists(
        st.builds(
            lambda begin, end: begin[: 255 - len(end)] + end,
            st.sampled_from([b"", b"tenant-0", b"tenant-00000000", b"x" * 70]),
            st.binary(max_size=12),
        ).filter(bool),
        unique=True,
        max_size=40,
    )
)
def test_a_build_sorts_names_that_begin_alike_and_end_anywhere(wanted: list[bytes]) -> None:
    names = Names(64)
    for name in wanted:
        names.insert(name, ordered=False)
    names.order.build()
    names.check()


def test_pages_one_after_another_are_the_whole() -> None:
    names = Names()
    for number in range(2500):
        names.insert(b"t%d" % number)
    got: list[tuple[int, bytes]] = []
    while page := names.order.page(b"t1", got[-1][1] if got else None, 100):
        got += page
    assert got == [(slot, name) for slot, name in names.sorted() if name.startswith(b"t1")]


def test_removing_what_is_not_listed_changes_nothing() -> None:
    names = Names()
    names.insert(b"a")
    names.insert(b"b", ordered=False)
    names.order.remove(names.slots[b"b"])
    assert names.order.page(b"", None, 9) == [(names.slots[b"a"], b"a")]


def test_a_reset_empties_the_order() -> None:
    names = Names()
    names.insert(b"a")
    names.order.reset()
    assert names.order.page(b"", None, 9) == []
    assert names.order.next(b"") is None
