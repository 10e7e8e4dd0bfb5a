"""The topic table against a dict; what a reader may see while a slot changes hands."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicsd._native.index import Index
from topicsd._native.regions import Shared
from topicsd._native.slabs import memory
from topicsd._native.table import Table


def make(topics_max: int = 8) -> Table:
    return Table(Shared.create(topics_max=topics_max, index_bytes=1 << 20, ephemeral_bytes=1 << 20, body_bytes_max=1 << 16, ring_slots=1))


@pytest.fixture
def table() -> Table:
    return make()


NAMES = st.one_of(st.integers(0, 15).map(lambda n: b"t%d" % n), st.binary(min_size=1, max_size=255))


@given(st.lists(st.tuples(st.sampled_from(["insert", "remove", "configure", "reset"]), NAMES, st.integers(0, 99)), max_size=80))
def test_the_table_holds_what_a_dict_holds(steps: list[tuple[str, bytes, int]]) -> None:
    table, oracle, topic_id = make(8), {}, 0
    for kind, name, number in steps:
        if kind == "insert":
            topic_id += 1
            slot = table.insert(name, topic_id, ttl_ms=number, dead_letter=b"dead" if number % 2 else None)
            assert (slot is None) == (name in oracle or len(oracle) == 8)
            if slot is not None:
                oracle[name] = (slot, topic_id, number)
        elif kind == "remove" and name in oracle:
            table.remove(oracle.pop(name)[0])
        elif kind == "configure" and name in oracle:
            slot, old_id, _ = oracle[name]
            table.configure(slot, ttl_ms=number, dead_letter=b"dead" if number % 2 else None)
            oracle[name] = (slot, old_id, number)
        elif kind == "reset" and number == 0:
            table.reset()
            Index(table.shared).reset()
            oracle.clear()
        assert table.find(name) == oracle.get(name, (None,))[0]
    assert len({slot for slot, _, _ in oracle.values()}) == len(oracle)
    for name, (slot, wanted_id, number) in oracle.items():
        view = table.view(slot)
        assert view is not None
        assert (view["name"], view["topic_id"], view["ttl_ms"], view["dead_letter"]) == (name, wanted_id, number, b"dead" if number % 2 else None)
    apart = sum(128 if len(name) <= 128 else 256 for name in oracle if len(name) > 64)
    assert memory(table.shared)[0] == apart + 64 * sum(number % 2 for _, _, number in oracle.values())


@pytest.mark.parametrize("size", [1, 63, 64, 65, 128, 129, 255])
def test_a_name_of_any_length_is_found_and_gives_its_room_back(table: Table, size: int) -> None:
    name, other = b"n" * size, b"n" * (size - 1) + b"o"
    for topic_id in (1, 3):
        slot = table.insert(name, topic_id)
        other_slot = table.insert(other, topic_id + 1)
        assert slot is not None and other_slot is not None
        assert table.insert(name, 9) is None
        assert (table.find(name), table.find(other), table.find(name + b"n")) == (slot, other_slot, None)
        view = table.view(slot)
        assert view is not None and view["name"] == name
        table.remove(slot)
        assert (table.find(name), table.find(other)) == (None, other_slot)
        table.remove(other_slot)
        assert memory(table.shared)[0] == 0


def test_a_table_that_is_full_keeps_no_room_for_the_name_that_it_refuses(table: Table) -> None:
    for number in range(8):
        assert table.insert(b"%d" % number, number + 1) is not None
    assert table.insert(b"n" * 200, 9) is None
    assert memory(table.shared)[0] == 0


def test_a_new_topic_starts_at_seq_one_with_nothing(table: Table) -> None:
    slot = table.insert(b"t", 7)
    assert slot is not None
    view = table.view(slot)
    assert view is not None
    assert (view["head"], view["earliest"], view["next_seq"], view["index_base"], view["count"]) == (0, 1, 1, 1, 0)
    assert table.shared.get("table_high") == 1


def test_a_slot_used_again_keeps_nothing_but_its_watchers(table: Table) -> None:
    slot = table.insert(b"old", 7, ttl_ms=5, dead_letter=b"dead")
    assert slot is not None
    table.set(slot, head=40, earliest=41, watchers=6)
    before = table.view(slot)
    table.remove(slot)
    assert table.view(slot) is None
    assert table.find(b"old") is None
    assert table.insert(b"new", 8) == slot
    after = table.view(slot)
    assert before is not None and after is not None
    assert after["version"] > before["version"]
    assert (after["name"], after["head"], after["ttl_ms"], after["dead_letter"], after["watchers"]) == (b"new", 0, 0, None, 6)


@pytest.mark.parametrize("name", [b"", b"x" * 256])
def test_a_name_that_cannot_be_is_not_found(table: Table, name: bytes) -> None:
    assert table.find(name) is None
    with pytest.raises(ValueError, match="name"):
        table.insert(name, 1)


def test_a_full_table_takes_nothing_and_a_removal_makes_room() -> None:
    table = make(2)
    assert table.insert(b"a", 1) == 0
    assert table.insert(b"b", 2) == 1
    assert table.insert(b"c", 3, dead_letter=b"dead") is None
    assert memory(table.shared)[0] == 0
    table.remove(0)
    assert table.insert(b"c", 4) == 0


def test_a_name_stands_once(table: Table) -> None:
    assert table.insert(b"a", 1) == 0
    assert table.insert(b"a", 2) is None


def test_a_locked_slot_is_busy_but_still_found_by_its_name(table: Table) -> None:
    slot = table.insert(b"t", 1)
    assert slot is not None
    table.lock(slot)
    with pytest.raises(RuntimeError):
        table.view(slot)
    assert table.find(b"t") == slot
    assert table.find(b"u") is None
    table.unlock(slot)
    assert table.view(slot) is not None


def test_a_reset_after_a_writer_that_died_in_a_lock_leaves_every_slot_usable(table: Table) -> None:
    slot = table.insert(b"t", 1)
    assert slot is not None
    before = table.view(slot)
    table.lock(slot)
    table.reset()
    assert table.find(b"t") is None
    assert table.view(slot) is None
    assert table.insert(b"u", 2) == slot
    after = table.view(slot)
    assert before is not None and after is not None
    assert after["version"] > before["version"]


def test_a_reset_after_a_writer_that_died_in_its_first_insert_leaves_the_slot_usable(table: Table) -> None:
    table.lock(0)  # the mark of slots ever used has not moved yet
    table.reset()
    assert table.insert(b"t", 1) == 0
    assert table.view(0) is not None


def test_a_view_of_an_older_generation_ends(table: Table) -> None:
    index, slot = Index(table.shared), table.insert(b"t", 1)
    assert slot is not None
    index.append(slot, 1, [(1, 1, 0, 1)])
    table.shared.add("generation", 1)
    table.reset()
    index.reset()
    with pytest.raises(KeyError):
        index.entries(slot, 1, 1)


def test_a_dead_letter_of_255_bytes_is_kept_and_freed(table: Table) -> None:
    name = b"d" * 255
    slot = table.insert(b"t", 1, dead_letter=name)
    assert slot is not None
    view = table.view(slot)
    assert view is not None
    assert view["dead_letter"] == name
    table.configure(slot, dead_letter=b"other")
    assert memory(table.shared)[0] == 64
    table.remove(slot)
    assert memory(table.shared)[0] == 0


def test_names_that_come_and_go_do_not_lengthen_searches() -> None:
    table, kept = make(256), 200
    for number in range(20_000):
        assert table.insert(b"name-%d" % number, number + 1) is not None
        if number >= kept:
            slot = table.find(b"name-%d" % (number - kept))
            assert slot is not None
            table.remove(slot)
    assert table.longest_search() < 64
    assert table.find(b"name-0") is None
    for number in range(20_000 - kept, 20_000):
        assert table.find(b"name-%d" % number) is not None


def test_another_process_finds_what_this_one_inserted(table: Table) -> None:
    slot = table.insert(b"t", 1)
    child = os.fork()
    if child == 0:
        os._exit(0 if table.find(b"t") == slot and table.insert(b"u", 2) is not None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert table.find(b"u") is not None
