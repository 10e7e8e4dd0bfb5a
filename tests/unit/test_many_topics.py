"""What one of very many small topics costs, by the books: it fails when a cost of every topic doubles. `perf/many_topics.py` measures a million."""

from __future__ import annotations

import ctypes
import gc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.in_process import Library, told
from topicsd._native import frame, scan
from topicsd._native.log_walk import LogFormatError
from topicsd.engine import frames, recovery

MANY = 20_000
Make = Callable[..., Library]


class Mallinfo(ctypes.Structure):
    """struct mallinfo2."""

    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = [(name, ctypes.c_size_t) for name in _names]


def heap_bytes() -> int:
    """Bytes that this process has from malloc; small Python objects have their own."""
    gc.collect()
    books = ctypes.CDLL(None)["mallinfo2"]
    books.restype = Mallinfo
    found = books()
    return int(found.uordblks + found.hblkhd)


def shared_bytes() -> int:
    """Resident bytes of shared memory."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssShmem"))
    return int(line.split()[1]) * 1024


def name_of(number: int) -> str:
    return f"tenant-{number:07d}.events"


def fill(engine: Library, first: int, end: int) -> None:
    """Make topics of three records, each by one create and one write."""
    write = scan.parse_write(b'{"records":[{"data":{"n":0}},{"data":{"n":1}},{"data":{"n":2}}]}')
    encoded = write.encode(None)
    for number in range(first, end):
        engine.put(name_of(number))
        slot = engine.sequencer.find(name_of(number).encode())
        raw = frame.build(2, encoded, count=3, flags=0, topic_id=engine.sequencer.topic(slot)["topic_id"])
        engine.sequencer.append_frame(slot, told(raw, write.payload_bytes), number + 1, engine.clock.wall_ms(), engine.clock.mono_ms())
        engine.sequencer.flush()
        if number % 100 == 99:
            engine.sequencer.sync()
        while engine.sequencer.take_finished() is not None:
            pass


def idle(engine: Library, clock: FakeClock) -> None:
    """Let a second go by: ceilings are lowered."""
    clock.advance(1100)
    for _ in range(MANY // 512 + 2):
        engine.engine.tick()


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How many frames of each type replay has asked Python about."""
    counted: Counter[int] = Counter()
    call = recovery.Replayer.__call__

    def count(self: recovery.Replayer, frame_type: int, *rest: Any) -> None:
        counted[frame_type] += 1
        call(self, frame_type, *rest)

    monkeypatch.setattr(recovery.Replayer, "__call__", count)
    return counted


@pytest.mark.slow
def test_a_topic_of_three_records_costs_what_it_should(make: Make, clock: FakeClock, replayed: Counter[int]) -> None:
    engine = make(topics_max=MANY, synced=False, file_bytes=64 << 20)
    fill(engine, 0, 100)  # what is there once, is there now
    idle(engine, clock)
    assert engine.sealing(age_ms_max=1).round(clock.wall_ms()).segments == 100
    shared, heap = shared_bytes(), heap_bytes()
    fill(engine, 100, MANY)
    idle(engine, clock)
    assert (heap_bytes() - heap) / MANY < 16  # no memory of its own on the writer's heap
    done = engine.sealing(age_ms_max=1).round(clock.wall_ms())
    assert (done.segments, done.refused, done.failed) == (MANY - 100, {}, [])
    # A slot of 448 B, 26 B of name hash, 8 B of order, 64 B a row, 128 B of tail index that later tails use again.
    assert (shared_bytes() - shared) / MANY < 700
    replayed.clear()
    engine.kill()
    assert replayed.total() < MANY / 100  # replay of what very many topics leave in the log needs no Python
    assert len(engine.names()) == 1000
    for _ in range(2):
        engine.checkpoint()
    assert engine.log_files() <= 3
    files = sum(path.is_file() for path in Path(engine.directory).rglob("*"))
    assert files < 12  # packs, log, snapshots
    replayed.clear()
    engine.kill()
    assert replayed.total() < 10
    assert (shared_bytes() - shared) / MANY < 575
    for number in range(0, MANY, MANY // 50):
        records, tombstones = engine.read_all(name_of(number))
        assert ([record["data"]["n"] for record in records], tombstones) == ([0, 1, 2], [])


def words(engine: Library) -> dict[str, Any]:
    """All that the writer knows of each topic, but for what only a start sets."""
    found = {}
    for name in engine.names():
        slot = engine.sequencer.find(name.encode())
        topic = {word: value for word, value in engine.sequencer.topic(slot).items() if word not in ("last_position", "durable_head")}
        found[name] = topic, engine.sequencer.config(slot), engine.read_all(name), engine.rows(name)
    return found


def timed(engine: Library) -> set[tuple[int, int]]:
    return set(engine.engine.timed)


def test_topics_that_are_like_the_last_one_are_replayed_as_they_were_made(make: Make, clock: FakeClock, replayed: Counter[int]) -> None:
    engine = make(shards=2)
    configs: list[dict[str, Any]] = [
        {}, {"cap_records": 5}, {"ttl_ms": 60_000}, {}, {"type": "queue"}, {"type": "queue", "dead_letter": "letters"}, {"durability": "fsync"},
        {"durability": "ephemeral"}, {"priority": 3},
    ]  # fmt: skip
    for number in range(90):
        config = configs[number // 5 % len(configs)]
        engine.put(f"t{number:03d}" + "-long" * (number % 3 * 10), **config)
    for number, name in enumerate(engine.names()):
        engine.append(name, [{"data": n, "tag": "a" if number % 5 == 0 else None} for n in range(number % 8)] or [{"data": 0}])
    clock.advance(1100)
    engine.engine.tick()
    sealed = [name for name in engine.names() if not name.startswith("t07")]
    for first in range(0, len(sealed), 10):  # some rows of one pack after another, some alone
        slots = [engine.sequencer.find(name.encode()) for name in sealed[first : first + 10]]
        engine.sealing(pack_rows_max=4)._pack([(slot, engine.sequencer.topic(slot)["topic_id"]) for slot in slots])
    for name in engine.names()[::7]:
        engine.drop(name)
    engine.put("t000")
    engine.delete(engine.names()[8], before_seq=3)
    before, watched, ids = words(engine), timed(engine), engine.engine.next_topic_id
    durable = {name: found for name, found in before.items() if found[1]["durability"] != "ephemeral"}
    replayed.clear()
    engine.kill()
    after = words(engine)
    assert {name: found for name, found in after.items() if found[1]["durability"] != "ephemeral"} == durable
    assert after.keys() == before.keys()
    assert {topic_id for _slot, topic_id in timed(engine)} == {topic_id for _slot, topic_id in watched}
    assert engine.engine.next_topic_id == ids
    assert engine.shared.get("topics") == len(before)
    assert 0 < replayed[frames.TOPIC_CREATE] < 91
    assert engine.store.degraded == []
    engine.kill()
    assert words(engine) == after


def test_a_name_that_is_made_again_without_a_delete_is_told(make: Make) -> None:
    """Its delete stood in a damaged range: the newer topic has the name, whoever replays it."""
    engine = make()
    engine.put("other")
    engine.put("twice")
    config = engine.engine.config(engine.sequencer.find(b"twice")).to_json()
    body = frames.json_body({"name": "twice", "config": config, "ceiling": 0})
    engine.sequencer.log_frame(0, frames.TOPIC_CREATE, 0, 3, 0, engine.clock.wall_ms(), body, False)
    engine.sequencer.sync()
    engine.kill()
    assert engine.state("twice")["epoch"] == 3
    assert engine.store.degraded == ["twice: created again without a delete"]


def test_rows_of_a_pack_that_is_not_there_are_read_from_the_log(make: Make, clock: FakeClock) -> None:
    engine = make()
    for number in range(6):
        engine.append(f"t{number}", [{"data": number}])
    clock.advance(1100)
    done = engine.sealing(age_ms_max=1, pack_rows_max=3).round(clock.wall_ms())
    assert done.segments == 6
    before = {name: engine.read_all(name) for name in engine.names()}
    first, _second = sorted((Path(engine.directory) / "packs").iterdir())
    first.unlink()
    engine.kill()
    assert {name: engine.read_all(name) for name in engine.names()} == before
    assert sum("a segment is not what its row says" in what for what in engine.store.degraded) == 3
    assert [bool(engine.rows(f"t{number}")) for number in range(6)].count(True) == 3


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_start_with_fewer_slots_than_topics_is_refused_with_what_to_do(tmp_path: Path, clock: FakeClock, snapshot: bool) -> None:
    engine = Library(str(tmp_path), clock, slots=70)
    for number in range(70):
        engine.append(f"t{number}", [{"data": number}])
    if snapshot:
        engine.checkpoint()
    engine._forget()
    before = sorted((path, path.stat().st_size) for path in tmp_path.rglob("*"))
    with pytest.raises(LogFormatError, match=r"more topics than TOPICS_MAX_TOPICS \(64\).*nothing has been changed"):
        Library(str(tmp_path), clock, slots=64)
    assert sorted((path, path.stat().st_size) for path in tmp_path.rglob("*")) == before
    again = Library(str(tmp_path), clock, slots=70)
    assert len(again.names()) == 70
    assert numbers_of(again, "t69") == [69]
    again._forget()


def numbers_of(engine: Library, name: str) -> list[Any]:
    return [record["data"] for record in engine.read_all(name)[0]]
