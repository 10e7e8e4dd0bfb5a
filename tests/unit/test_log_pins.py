"""Old log files go, whatever points into them: old tails are sealed, routers and ephemeral copies let go, and what stays is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.in_process import Library, numbers
from oracle.model import Refused
from topicsd import limits

HELD = 64 << 10
FILE_BYTES = 32 << 10


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    monkeypatch.setattr(limits, "LOG_HELD_BYTES_MAX", HELD)
    made = Library(str(tmp_path), FakeClock(), file_bytes=FILE_BYTES)
    yield made
    made.close()


def days_of_writes(library: Library) -> None:
    """Much is written elsewhere; what is old is sealed, and the log is let go as far as it can be."""
    for _ in range(3):
        for _ in range(20):
            library.append("flood", [{"data": "x" * 8000}])
        library.sequencer.sync()
        library.sealing(log_bytes_max=HELD).round(library.clock.wall_ms())
        library.checkpoint()
        while library.store.checkpoints.let_log_go():
            pass
    library.checkpoint()
    library.checkpoint()


def held(library: Library) -> int:
    return library.store.figures.get("log_held_bytes")


def datas(library: Library, name: str) -> list[Any]:
    return [record["data"] for record in library.read_all(name)[0]]


def test_an_old_tail_is_sealed_however_young_it_is_by_the_clock(library: Library) -> None:
    library.append("idle", numbers(1, 2))
    library.sequencer.sync()
    rounds = library.sealing(log_bytes_max=HELD)
    assert rounds.round(library.clock.wall_ms()).segments == 0
    for _ in range(20):
        library.append("flood", [{"data": "x" * 8000}])
    library.sequencer.sync()
    rounds.round(library.clock.wall_ms())
    assert library.rows("idle") == [(1, 2)] and datas(library, "idle") == [1, 2]


def held_up(library: Library, **config: Any) -> None:
    """A router whose destination is full, with three copies to come."""
    library.put("to", cap_records=1, discard="reject")
    library.put("from", **config)
    library.route("from", "to")
    library.append("from", numbers(0))
    library.append("from", [{"data": number, "tag": f"t{number}", "node": "n"} for number in (1, 2, 3)])
    assert datas(library, "to") == [0] and library.router("from->to")["lag"] == 3


def room(library: Library) -> None:
    """The destination takes the rest."""
    library.put("to", cap_records=10, discard="reject")
    library.clock.advance(60_000)
    library.engine.tick()
    library.append("from", numbers(4))


@pytest.mark.parametrize("restart", [False, True])
def test_a_router_that_is_held_up_for_days_does_not_hold_the_log_and_loses_nothing_that_is_retained(library: Library, restart: bool) -> None:
    held_up(library)
    library.seal("from")
    days_of_writes(library)
    assert held(library) <= HELD + 2 * FILE_BYTES and library.log_files() <= 6
    if restart:
        library.kill()
    room(library)
    assert datas(library, "to") == [0, 1, 2, 3, 4] and library.read_all("to")[1] == []
    tags = [record.get("tag") for record in library.read_all("to")[0]]
    assert tags == [None, "t1", "t2", "t3", None]


@pytest.mark.parametrize("restart", [False, True])
def test_what_its_source_has_evicted_meanwhile_is_told_where_the_copies_would_stand(library: Library, restart: bool) -> None:
    held_up(library, cap_records=1)
    library.seal("from")
    days_of_writes(library)
    assert held(library) <= HELD + 2 * FILE_BYTES
    if restart:
        library.kill()
    room(library)
    records, tombstones = library.read_all("to")
    assert [record["data"] for record in records] == [0, 3, 4]
    assert [(gap["reason"], gap["gap_from"], gap["gap_to"]) for gap in tombstones] == [("source_trim", 2, 3)]


@pytest.mark.parametrize("members", [{}, {"preserve_node": False, "preserve_tag": False}, {"guarantee": "exactly_once"}])
def test_copies_in_an_ephemeral_topic_do_not_hold_the_log_and_stay_what_they_are(library: Library, members: dict[str, Any]) -> None:
    library.put("copies", durability="ephemeral", cap_records=100)
    library.route("from", "copies", **members)
    library.append("from", [{"data": {"n": n}, "tag": f"t{n}", "node": "n", "meta": {"k": "v" * n}} for n in range(50)])
    library.append("copies", numbers("direct"))
    library.append("from", numbers("late"))
    before = library.read_all("copies", include_meta=True), library.state("copies")
    matched = library.read_all("copies", match=["tag", "Eq", "t7"])
    library.seal("from")
    days_of_writes(library)
    assert held(library) <= HELD + 2 * FILE_BYTES and library.log_files() <= 6
    assert (library.read_all("copies", include_meta=True), library.state("copies")) == before
    assert library.read_all("copies", match=["tag", "Eq", "t7"]) == matched
    library.append("copies", numbers(*range(100)))
    assert datas(library, "copies") == list(range(100))
    library.append("copies", numbers(*range(100)))
    assert library.shared.get("ephemeral_bytes") <= 64 << 10, "what has been moved is freed when it goes"


def test_without_room_in_memory_the_log_stays_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOG_HELD_BYTES_MAX", HELD)
    library = Library(str(tmp_path), FakeClock(), file_bytes=FILE_BYTES, ephemeral_bytes_max=16 << 10)
    library.put("copies", durability="ephemeral")
    library.route("from", "copies")
    library.append("from", [{"data": "y" * 1000} for _ in range(100)])
    before = library.read_all("copies")
    library.seal("from")
    days_of_writes(library)
    assert held(library) > 4 * HELD
    assert library.read_all("copies") == before
    with pytest.raises(Refused):
        library.append("copies", [{"data": "z" * 100_000}])
    library.close()
