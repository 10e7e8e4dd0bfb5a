"""The tail index against a dict, and what it must do besides: holes, trimming, memory."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.index_oracle import HOLE, Entry, IndexOracle
from topicsd._native.index import Index
from topicsd._native.regions import Shared
from topicsd._native.slabs import cool, memory
from topicsd._native.table import Table

CAP, TTL, CORRUPT = 1, 2, 6


class Topics:
    """A table with some topics and the index of all."""

    def __init__(self, topics: int = 1, index_bytes: int = 64 << 20) -> None:
        self.shared = Shared.create(topics_max=64, index_bytes=index_bytes, ephemeral_bytes=1 << 20, body_bytes_max=1 << 16, ring_slots=1)
        self.table = Table(self.shared)
        self.index = Index(self.shared)
        self.ids = itertools.count(1)
        self.slots = [self.create() for _ in range(topics)]

    def create(self) -> int:
        topic_id = next(self.ids)
        slot = self.table.insert(b"topic-%d" % topic_id, topic_id)
        assert slot is not None
        return slot

    def capacity(self, slot: int) -> int:
        view = self.table.view(slot)
        assert view is not None
        return view["index_capacity"]

    def paged(self, slot: int) -> bool:
        view = self.table.view(slot)
        assert view is not None
        return view["index_paged"]


def entries_of(slot: int, first: int, count: int) -> list[Entry]:
    return [(slot << 40 | seq, seq % 1000, 0, 1_000 + seq // 3) for seq in range(first, first + count)]


@pytest.fixture
def topics() -> Topics:
    return Topics()


SIZES = st.sampled_from([1, 2, 3, 5, 21, 100, 129, 1000, 1024, 1500, 3000])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2), SIZES),
        st.tuples(st.just("hole"), st.integers(0, 2), SIZES),
        st.tuples(st.just("trim"), st.integers(0, 2), st.integers(0, 10)),
        st.tuples(st.just("drop"), st.integers(0, 2), st.just(0)),
    ),
    max_size=30,
)


def check(topics: Topics, slot: int, oracle: IndexOracle) -> None:
    index, count = topics.index, oracle.head + 1 - oracle.earliest
    wanted = [oracle.entries[seq] for seq in range(oracle.earliest, oracle.head + 1)]
    got = index.entries(slot, oracle.earliest, count)
    assert got is not None
    for seq, (entry, want) in enumerate(zip(got, wanted, strict=True), oracle.earliest):
        if isinstance(want, int):
            assert entry[2] == HOLE | want << 8
        else:
            assert entry == want
            if seq % 97 == 0:
                assert index.at(slot, seq) == want
    for seq in {oracle.earliest, (oracle.earliest + oracle.head) // 2, oracle.head} if count > 0 else ():
        want = oracle.entries[seq]
        assert index.hole_reason(slot, seq) == (want if isinstance(want, int) else 0)
        assert index.hole_end(slot, seq)[0] == oracle.hole_end(seq)
        for low in (oracle.earliest, seq):
            assert index.hole_start(slot, seq, low) == oracle.hole_start(seq, low)
        if not isinstance(want, int):
            low, high = oracle.lower_bound_ts(want[3])
            assert low <= index.lower_bound_ts(slot, oracle.earliest, want[3]) <= high
    assert index.at(slot, oracle.head + 1) is None
    if count and index.lower_bound_ts(slot, oracle.earliest, 1 << 60) <= oracle.head:
        pytest.fail("nothing is that young")


@given(STEPS)
def test_the_index_holds_what_a_dict_holds(steps: list[tuple[str, int, int]]) -> None:
    topics = Topics(topics=3)
    oracles = [IndexOracle() for _ in topics.slots]
    for kind, which, number in steps:
        slot, oracle = topics.slots[which], oracles[which]
        if kind == "append":
            entries = entries_of(slot, oracle.head + 1, number)
            if oracle.earliest > oracle.head:
                topics.table.set(slot, earliest=oracle.head + 1)
            topics.index.append(slot, oracle.head + 1, entries)
            oracle.append(entries)
        elif kind == "hole":
            reason = number % 6 + 1
            topics.index.hole(slot, oracle.head + 1, oracle.head + number, reason)
            oracle.hole(number, reason)
            topics.table.set(slot, earliest=oracle.earliest)
        else:
            live = oracle.head + 1 - oracle.earliest
            below = oracle.head + 1 if kind == "drop" else oracle.earliest + live * number // 10
            topics.index.trim(slot, below)
            oracle.trim(below)
        check(topics, slot, oracle)
    for slot, oracle in zip(topics.slots, oracles, strict=True):
        check(topics, slot, oracle)
        view = topics.table.view(slot)
        assert view is not None
        if any(isinstance(entry, int) for entry in oracle.entries.values()):
            assert view["holes"] > 0
        topics.table.remove(slot)
    assert memory(topics.shared)[0] == 0


def test_an_entry_above_the_head_is_not_there_yet(topics: Topics) -> None:
    slot = topics.slots[0]
    topics.index.append(slot, 1, entries_of(slot, 1, 2), publish=False)
    assert topics.index.at(slot, 1) is None
    assert topics.index.entries(slot, 1, 1) is None
    topics.table.set(slot, head=1)
    assert topics.index.at(slot, 1) == entries_of(slot, 1, 1)[0]
    assert topics.index.entries(slot, 1, 2) is None


def test_an_idle_topic_costs_64_bytes_and_an_empty_one_nothing(topics: Topics) -> None:
    slot = topics.slots[0]
    assert memory(topics.shared)[0] == 0
    topics.index.append(slot, 1, entries_of(slot, 1, 2))
    assert memory(topics.shared)[0] == 64
    for seq in range(3, 2000):
        topics.index.append(slot, seq, entries_of(slot, seq, 1))
    topics.index.trim(slot, 2000)
    assert memory(topics.shared)[0] == 0


def test_a_long_tail_costs_24_bytes_a_record(topics: Topics) -> None:
    slot, total = topics.slots[0], 200_000
    for first in range(1, total, 10_000):
        topics.index.append(slot, first, entries_of(slot, first, 10_000))
    assert memory(topics.shared)[0] <= 24.2 * total


def test_a_topic_that_keeps_a_hundred_records_stays_small(topics: Topics) -> None:
    slot = topics.slots[0]
    for seq in range(1, 5000):
        topics.index.append(slot, seq, entries_of(slot, seq, 1))
        if seq > 100:
            topics.index.trim(slot, seq - 99)
    assert not topics.paged(slot)
    assert memory(topics.shared)[0] <= 4096
    assert topics.index.entries(slot, 4900, 100) == entries_of(slot, 4900, 100)


def test_a_steady_long_tail_uses_its_memory_again(topics: Topics) -> None:
    slot, kept = topics.slots[0], 10_000
    for first in range(1, 400_000, 1000):
        topics.index.append(slot, first, entries_of(slot, first, 1000))
        topics.index.trim(slot, max(first + 1000 - kept, 1))
        assert memory(topics.shared)[0] <= 24 * kept + 3 * 24576 + 4096
    assert memory(topics.shared)[1] <= 1 << 20


def test_a_burst_gives_its_pages_back_and_gets_them_again(topics: Topics) -> None:
    slot, head = topics.slots[0], 0
    for _ in range(3):
        topics.index.append(slot, head + 1, entries_of(slot, head + 1, 600_000))  # more pages than stay resident
        head += 600_000
        topics.index.trim(slot, head - 9)
        assert topics.index.entries(slot, head - 9, 10) == entries_of(slot, head - 9, 10)
        assert not topics.paged(slot)
    assert memory(topics.shared)[0] <= 512
    assert memory(topics.shared)[1] <= 600_000 * 25


def shmem_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssShmem"))


def test_what_a_flood_took_of_the_index_stays_in_memory_for_the_next_one_for_some_minutes(topics: Topics) -> None:
    slot, pages, head = topics.slots[0], 600_000 // 1024, 0
    cool(topics.shared, 1_000, 1 << 20)
    before = shmem_kib()
    for now_ms in (2_000, 3_000):
        topics.index.append(slot, head + 1, entries_of(slot, head + 1, 600_000))
        head += 600_000
        cool(topics.shared, now_ms, 1 << 20)
        topics.index.trim(slot, head - 9)
        assert cool(topics.shared, now_ms + 500, 1 << 20) >= pages - 2
        assert shmem_kib() - before > 24 * (pages - 2)
    taken = memory(topics.shared)[1]
    assert taken <= 600_000 * 25
    kept = cool(topics.shared, 300_000, 1 << 20)
    assert kept >= pages - 2
    for turn in range(20):
        kept = cool(topics.shared, 400_000 + turn, 1 << 20)
    assert kept == 256
    assert shmem_kib() - before < 24 * 256 + 256
    topics.index.append(slot, head + 1, entries_of(slot, head + 1, 600_000))
    assert topics.index.entries(slot, head + 300_000, 10) == entries_of(slot, head + 300_000, 10)
    assert memory(topics.shared)[1] == taken


def test_no_more_of_the_index_stays_warm_than_is_allowed_and_nothing_of_a_slow_tail(topics: Topics) -> None:
    slot, head = topics.slots[0], 0
    cool(topics.shared, 1_000, 100)
    for now_ms, warm in ((2_000, 356), (10_000_000, 256)):  # the same in a second, in hours
        topics.index.append(slot, head + 1, entries_of(slot, head + 1, 600_000))
        head += 600_000
        cool(topics.shared, now_ms, 100)
        topics.index.trim(slot, head - 9)
        for turn in range(10):
            kept = cool(topics.shared, now_ms + 1 + turn, 100)
        assert kept == warm


def test_a_hole_of_a_million_seqs_costs_a_mark_a_page(topics: Topics) -> None:
    slot = topics.slots[0]
    topics.index.append(slot, 1, entries_of(slot, 1, 10))
    topics.index.hole(slot, 11, 1_000_000, CORRUPT)
    topics.index.append(slot, 1_000_001, entries_of(slot, 1_000_001, 5))
    assert memory(topics.shared)[0] < 64 << 10
    assert topics.index.hole_end(slot, 11) == (1_000_000, CORRUPT)
    assert topics.index.hole_reason(slot, 500_000) == CORRUPT
    assert topics.index.at(slot, 500_000) is None
    assert topics.index.entries(slot, 1_000_001, 5) == entries_of(slot, 1_000_001, 5)
    assert topics.index.lower_bound_ts(slot, 1, 1_000 + 1_000_001 // 3) == 1_000_001
    view = topics.table.view(slot)
    assert view is not None and view["holes"] == 1


def test_a_hole_in_an_empty_topic_costs_nothing(topics: Topics) -> None:
    slot = topics.slots[0]
    topics.index.hole(slot, 1, 131_072, CORRUPT)
    topics.table.set(slot, earliest=131_073)
    assert memory(topics.shared)[0] == 0
    topics.index.append(slot, 131_073, entries_of(slot, 131_073, 3))
    assert topics.index.entries(slot, 131_073, 3) == entries_of(slot, 131_073, 3)


def test_holes_are_counted_until_the_index_has_passed_them(topics: Topics) -> None:
    slot, head, table = topics.slots[0], 0, topics.table
    for reason in (CAP, TTL, CORRUPT):
        topics.index.append(slot, head + 1, entries_of(slot, head + 1, 1500))
        topics.index.hole(slot, head + 1501, head + 5000, reason)
        head += 5000
    topics.index.append(slot, head + 1, entries_of(slot, head + 1, 3000))
    counts = []
    for below in (1, 5500, 10_500, 16_100):
        topics.index.trim(slot, below)
        view = table.view(slot)
        assert view is not None
        counts.append(view["holes"])
    assert counts == [3, 2, 1, 0]


def test_a_full_region_refuses_and_changes_nothing() -> None:
    topics = Topics(index_bytes=1 << 20)
    slot, head = topics.slots[0], 0
    with pytest.raises(MemoryError):
        for first in range(1, 1_000_000, 1000):
            topics.index.append(slot, first, entries_of(slot, first, 1000))
            head = first + 999
    assert topics.index.entries(slot, 1, head) == entries_of(slot, 1, head)
    topics.index.trim(slot, head - 5000)
    topics.index.append(slot, head + 1, entries_of(slot, head + 1, 1000))
    assert topics.index.entries(slot, head + 1, 1000) == entries_of(slot, head + 1, 1000)


def test_a_deleted_flag_is_seen_by_readers(topics: Topics) -> None:
    slot = topics.slots[0]
    topics.index.append(slot, 1, entries_of(slot, 1, 3))
    topics.index.flag(slot, 2, 1)
    got = topics.index.entries(slot, 1, 3)
    assert got is not None
    assert [entry[2] for entry in got] == [0, 1, 0]


def test_growth_and_trimming_move_the_version_and_appending_in_place_does_not(topics: Topics) -> None:
    slot, versions = topics.slots[0], []
    for seq in range(1, 6):
        topics.index.append(slot, seq, entries_of(slot, seq, 1))
        view = topics.table.view(slot)
        assert view is not None
        versions.append(view["version"])
    assert versions[0] == versions[1] < versions[2] == versions[3] == versions[4]


def test_a_new_topic_in_an_old_slot_has_an_empty_index(topics: Topics) -> None:
    slot = topics.slots[0]
    topics.index.append(slot, 1, entries_of(slot, 1, 5000))
    topics.table.remove(slot)
    assert memory(topics.shared)[0] == 0
    again = topics.create()
    assert again == slot
    assert topics.index.entries(slot, 1, 1) is None
    topics.index.append(slot, 1, entries_of(slot, 1, 1))
    assert topics.capacity(slot) == 2
