"""A start from a snapshot finds what a start from the whole log would find, and what nobody needs any more is gone from the disk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.faulty_files import FaultyFiles
from fakes.in_process import Library, Refused
from fakes.in_process import numbers as values
from topicsd import checkpoint, limits, snapshot
from topicsd._native import file_ops
from topicsd._native.log_walk import LogFormatError
from topicsd._native.whole_files import write_whole
from topicsd.api.probes import restrictions
from topicsd.checkpoint import LAYERS_A_CHAIN
from topicsd.log_archive import ArchiveAwayError, LogArchive
from topicsd.segments.fsck import fsck
from topicsd.store import Store

LOG_FILE_BYTES = 1 << 16
Make = Callable[..., Library]


def fill(engine: Library, name: str, count: int, size: int = 10, **record: Any) -> None:
    engine.append(name, [{"data": "x" * size, **record} for _ in range(count)])


def seen(engine: Library) -> dict[str, Any]:
    return {name: (engine.read_all(name), engine.state(name), engine.call({"op": "topic.seal", "topic": name})) for name in engine.names()}


def numbers(page: dict[str, Any]) -> list[int]:
    return [record["$seq"] for record in page["records"]]


def snapshots(engine: Library) -> list[Path]:
    return [snapshot.path_of(Path(engine.directory), number) for number in snapshot.numbers(Path(engine.directory))]


def test_a_start_from_a_snapshot_finds_what_the_log_says(engine: Library, clock: FakeClock) -> None:
    engine.put("plain", cap_records=50)
    engine.put("times", ttl_ms=5000)
    engine.put("queue", type="queue", dead_letter="plain")
    for n in range(30):
        fill(engine, "plain", 3, tag=f"t{n % 4}")
        fill(engine, "times", 2)
        fill(engine, "queue", 1)
        clock.advance(300)
        engine.engine.tick()
    engine.seal("plain", 20)
    engine.delete("plain", match=["tag", "Eq", "t1"])
    fill(engine, "plain", 5, tag="t1")
    before = seen(engine)
    engine.checkpoint()
    for restart in (engine.kill, engine.stop, engine.kill):
        restart()
        assert seen(engine) == before
    assert engine.delete("plain", match=["tag", "Eq", "t1"])["deleted"] == 5
    fill(engine, "plain", 1)
    assert engine.state("plain")["head"] == before["plain"][1]["head"] + 1
    after = seen(engine)
    engine.kill()
    assert seen(engine) == after
    assert engine.store.degraded == []


def test_what_follows_a_snapshot_is_replayed(engine: Library) -> None:
    engine.put("t")
    fill(engine, "t", 5)
    engine.checkpoint()
    fill(engine, "t", 5)
    engine.delete("t", before_seq=4)
    engine.put("new")
    engine.drop("t")
    engine.put("t")
    fill(engine, "t", 2)
    before = seen(engine)
    engine.kill()
    assert seen(engine) == before
    assert engine.names() == ["new", "t"]


def test_a_known_key_is_known_after_a_snapshot(engine: Library, clock: FakeClock) -> None:
    first = engine.append("t", [{"data": 1}], key="k")
    engine.checkpoint()
    engine.kill()
    again = engine.append("t", [{"data": 1}], key="k")
    assert (again["deduped"], again["first_seq"]) == (True, first["first_seq"])
    clock.advance(10 * 60_000)
    assert not engine.append("t", [{"data": 1}], key="k")["deduped"]


def test_ids_are_not_used_twice_after_a_snapshot(engine: Library) -> None:
    epochs = set()
    for _ in range(4):
        engine.put("t")
        epochs.add(engine.state("t")["epoch"])
        engine.drop("t")
        engine.checkpoint()
        engine.kill()
    assert len(epochs) == 4


def test_the_log_goes_once_everything_is_sealed_and_two_snapshots_stand(make: Make) -> None:
    engine = make(file_bytes=LOG_FILE_BYTES, absorb=2)
    engine.put("t")
    for _ in range(40):
        fill(engine, "t", 10, 1000)
    files = engine.log_files()
    assert files > 5
    engine.checkpoint()
    engine.checkpoint()
    assert engine.log_files() == files  # the tail needs it
    before = engine.read_all("t")
    engine.seal("t", 100)
    engine.checkpoint()
    assert engine.log_files() == files  # the older snapshot's tail needs it
    engine.checkpoint()
    assert engine.log_files() <= 3
    assert len(snapshots(engine)) == 2
    for restart in (engine.kill, engine.stop, engine.reboot):
        restart()
        assert engine.read_all("t")[0] == before[0]
        fill(engine, "t", 1)
        before = engine.read_all("t")
    assert engine.store.degraded == []


def test_log_files_are_archived_where_that_is_wanted(make: Make, tmp_path: Path) -> None:
    engine = make(file_bytes=LOG_FILE_BYTES, archive=tmp_path / "archive")
    for _ in range(20):
        fill(engine, "t", 10, 1000)
    files = engine.log_files()
    engine.seal("t")
    engine.checkpoint()
    engine.checkpoint()
    archived = list((tmp_path / "archive" / "shard-00").glob("*.log"))
    assert archived
    assert len(archived) + engine.log_files() == files


def test_segments_without_a_row_go_when_no_snapshot_leads_there(engine: Library) -> None:
    engine.put("t", cap_records=10)
    fill(engine, "t", 20)
    engine.seal("t", 10)
    directory = Path(engine.directory)
    assert len(list(directory.glob("topics/*/*/*.data"))) == 1
    fill(engine, "t", 20)
    assert engine.rows("t") == []
    engine.checkpoint()
    assert len(list(directory.glob("topics/*/*/*"))) == 3
    engine.kill()  # who waits to be removed is in the snapshot
    engine.checkpoint()
    assert list(directory.glob("topics/*/*/*")) == []
    engine.kill()
    assert engine.state("t")["count"] == 10
    assert engine.store.degraded == []


def test_marks_of_deleted_records_stand_in_the_snapshot(make: Make) -> None:
    engine = make(file_bytes=LOG_FILE_BYTES)
    for _ in range(20):
        engine.append("t", [{"data": "x" * 1000, "tag": "a"}, {"data": "y" * 1000, "tag": "b"}] * 5)
    engine.seal("t")
    engine.delete("t", match=["tag", "Eq", "a"])
    engine.checkpoint()
    engine.checkpoint()
    assert engine.log_files() <= 3
    engine.kill()
    assert [record["tag"] for record in engine.read_all("t")[0]] == ["b"] * 100
    assert engine.state("t")["count"] == 100
    assert engine.delete("t", match=["tag", "Eq", "b"])["deleted"] == 100


def test_a_damaged_snapshot_costs_nothing_while_there_is_an_older_one(make: Make) -> None:
    engine = make(file_bytes=LOG_FILE_BYTES)
    for _ in range(4):
        for _ in range(10):
            fill(engine, "t", 10, 1000)
        engine.seal("t")
        engine.checkpoint()
    fill(engine, "t", 3)
    before = engine.read_all("t")
    newest = snapshots(engine)[-1]
    raw = bytearray(newest.read_bytes())
    raw[len(raw) // 2] ^= 1
    newest.write_bytes(raw)
    engine.kill()
    assert engine.read_all("t") == before
    assert any("its checksum differs" in what for what in engine.store.degraded)


def test_without_any_snapshot_a_whole_log_is_replayed_and_a_truncated_one_is_refused(make: Make) -> None:
    engine = make(file_bytes=LOG_FILE_BYTES)
    fill(engine, "t", 5)
    engine.checkpoint()
    before = engine.read_all("t")
    for path in snapshots(engine):
        path.unlink()
    engine.kill()
    assert engine.read_all("t") == before
    for _ in range(20):
        fill(engine, "t", 10, 1000)
    engine.seal("t")
    engine.checkpoint()
    engine.checkpoint()
    for path in snapshots(engine):
        path.unlink()
    files = engine.log_files()
    with pytest.raises(LogFormatError, match="Put a snapshot back"):
        engine.kill()
    assert engine.log_files() == files


def test_a_snapshot_of_a_newer_version_is_refused(engine: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(engine, "t", 1)
    engine.checkpoint()
    with monkeypatch.context() as later:
        later.setattr(snapshot, "VERSION", 4)
        snapshot.write(Path(engine.directory), engine.store.files, {"number": 9, "moment": []}, [])
    with pytest.raises(LogFormatError, match="format version 4"):
        engine.kill()


def test_a_snapshot_of_version_1_is_read(engine: Library) -> None:
    fill(engine, "t", 5)
    engine.seal("t")
    engine.checkpoint()
    engine.checkpoint()
    before = engine.read_all("t")
    for path in snapshots(engine):
        raw = path.read_bytes().replace(b"TPSNAP02", b"TPSNAP01", 1).replace(b'"version":3', b'"version":1', 1)[:-16]
        path.write_bytes(raw + hashlib.blake2b(raw, digest_size=16).digest())
    engine.kill()
    assert engine.read_all("t") == before
    assert not engine.store.degraded


@pytest.mark.parametrize("version", [1, 2])
def test_each_flipped_bit_of_a_snapshot_is_seen(engine: Library, tmp_path: Path, version: int) -> None:
    fill(engine, "t", 3)
    engine.checkpoint()
    raw = snapshots(engine)[-1].read_bytes()
    if version == 1:
        raw = raw.replace(b"TPSNAP02", b"TPSNAP01", 1)[:-16]
        raw += hashlib.blake2b(raw, digest_size=16).digest()
    path = tmp_path / "flipped"
    path.write_bytes(raw)
    assert snapshot.read(path).sections
    for place in range(len(raw)):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 1 << place % 8]) + raw[place + 1 :])
        with pytest.raises(snapshot.SnapshotError):
            snapshot.read(path)


# ---- layers ------------------------------------------------------------------------------------------------------------------------


def layered(make: Make) -> Library:
    """A store whose newest snapshot, the sixth, stands upon the fourth, and that upon the second; the fifth upon the third and the first."""
    engine = make(file_bytes=LOG_FILE_BYTES)
    for n in range(1, 7):
        fill(engine, "always", 30, 1000, tag=f"t{n}")
        engine.put(f"n{n}")
        fill(engine, f"n{n}", 2)
        if n > 2:
            engine.drop(f"n{n - 2}")
        engine.seal("always")
        engine.checkpoint()
    fill(engine, "always", 3)
    assert [[layer.number for layer in kept.layers] for kept in engine.store.checkpoints.kept] == [[1, 3, 5], [2, 4, 6]]
    return engine


def test_what_changed_is_in_the_newer_layer_and_what_went_is_in_none(make: Make) -> None:
    engine = layered(make)
    before = seen(engine)
    chain, wrong = snapshot.newest(Path(engine.directory))
    assert chain is not None and not wrong
    assert [layer.number for layer in chain.layers] == [6, 4, 2]
    assert [list(layer.gone) for layer in chain.layers] == [[5, 4], [3, 2], []]  # always is topic 1, n1 is topic 2
    for restart in (engine.kill, engine.stop, engine.kill):
        restart()
        assert seen(engine) == before
    assert engine.store.degraded == []
    engine.checkpoint()
    engine.checkpoint()
    assert [[layer.number for layer in kept.layers] for kept in engine.store.checkpoints.kept] == [[7], [2, 4, 6, 8]]
    assert set(snapshot.numbers(Path(engine.directory))) == {2, 4, 6, 7, 8}
    engine.kill()
    assert seen(engine) == before


@pytest.mark.parametrize("what", ["flipped", "missing", "older", "cut", "of another directory"])
@pytest.mark.parametrize("number", [2, 4, 6])
def test_a_chain_with_a_broken_layer_is_passed_over_for_the_other_one(make: Make, number: int, what: str) -> None:
    engine, other = layered(make), layered(make)
    before, folder = seen(engine), Path(engine.directory)
    path = snapshot.path_of(folder, number)
    raw = path.read_bytes()
    if what == "flipped":
        path.write_bytes(raw[:100] + bytes([raw[100] ^ 4]) + raw[101:])
    elif what == "missing":
        path.unlink()
    elif what == "older":
        path.write_bytes(snapshot.path_of(folder, number - 1).read_bytes())
    elif what == "cut":
        path.write_bytes(raw[: len(raw) // 2])
    else:
        fill(other, "always", 1)
        theirs = {**snapshot.read(path).header, "wall_ms": 1}
        snapshot.write(folder, other.store.files, theirs, [*snapshot.read(path).sections.items()])
    if number == 6 and what in ("missing", "of another directory"):  # whole, and nobody says that it is not the one
        engine.kill()
        assert seen(engine) == before
        return
    assert fsck(folder).problems
    engine.kill()
    assert seen(engine) == before
    assert any("a snapshot is damaged, an older one or the log has been taken" in told for told in engine.store.degraded)
    for _ in range(3):
        fill(engine, "always", 1)
        engine.checkpoint()
    before = seen(engine)
    engine.kill()
    assert seen(engine) == before
    assert engine.store.degraded == []


def test_with_both_chains_broken_a_truncated_log_is_refused(make: Make) -> None:
    engine = layered(make)
    for number in (1, 2):
        snapshot.path_of(Path(engine.directory), number).unlink()
    with pytest.raises(LogFormatError, match="Put a snapshot back"):
        engine.kill()


def test_a_chain_that_leads_back_to_itself_is_no_chain(engine: Library) -> None:
    fill(engine, "t", 1)
    folder = Path(engine.directory)
    for number, parent in ((3, 5), (5, 3)):
        snapshot.write(folder, engine.store.files, {"number": number, "parent": [parent, 7], "moment": [], "needed": []}, [("topics", b"")])
    found, wrong = snapshot.newest(folder)
    assert found is None and len(wrong) == 2
    engine.kill()
    assert engine.state("t")["count"] == 1


def test_a_layer_smaller_than_what_has_changed_is_not_built_upon(make: Make) -> None:
    engine = make(absorb=2)
    for number in range(600):
        engine.put(f"t{number:03d}" + "x" * 200)
    engine.checkpoint()
    engine.checkpoint()
    whole = engine.store.checkpoints.size
    sizes = []
    for number in range(40):
        fill(engine, f"t{number % 7:03d}" + "x" * 200, 1)
        engine.checkpoint()
        assert len(engine.store.checkpoints.kept[-1].layers) <= 2, "so small a layer is written anew"
        sizes.append(engine.store.checkpoints.size)
    assert max(sizes) < whole / 10
    for number in range(400):
        fill(engine, f"t{number:03d}" + "x" * 200, 1)
    engine.checkpoint()
    assert len(engine.store.checkpoints.kept[-1].layers) == 1, "most has changed: a whole one"
    before = seen(engine)
    engine.kill()
    assert seen(engine) == before


def test_a_chain_has_a_longest_length(engine: Library) -> None:
    for _ in range(2 * LAYERS_A_CHAIN + 6):
        fill(engine, "t", 1)
        engine.checkpoint()
        assert len(engine.store.checkpoints.kept[-1].layers) <= LAYERS_A_CHAIN
    assert len(snapshots(engine)) <= 2 * LAYERS_A_CHAIN
    before = seen(engine)
    engine.kill()
    assert seen(engine) == before


def test_writing_goes_on_while_a_checkpoint_is_packed_and_it_is_of_its_moment(engine: Library) -> None:
    for number in range(20):
        fill(engine, f"t{number:02d}", 3, tag="a")
    engine.put("q", type="queue")
    fill(engine, "q", 5)
    engine.checkpoint()
    engine.checkpoint()
    for number in range(0, 20, 2):
        fill(engine, f"t{number:02d}", 1)
    engine.begin_checkpoint()
    for number in range(19, -1, -1):  # from the far end: each is packed before it changes
        match number % 4:
            case 0:
                fill(engine, f"t{number:02d}", 2)
            case 1:
                engine.drop(f"t{number:02d}")
                engine.put(f"t{number:02d}")
            case 2:
                engine.delete(f"t{number:02d}", match=["tag", "Eq", "a"])
            case _:
                engine.put(f"t{number:02d}", cap_records=1)
        engine.put(f"new{number:02d}")
        assert engine.pack(1)
    engine.finish_checkpoint()
    assert engine.watched.checked == 3
    before = seen(engine)
    engine.kill()
    assert seen(engine) == before
    assert engine.store.degraded == []


def test_a_death_in_the_middle_of_packing_leaves_no_snapshot(engine: Library) -> None:
    fill(engine, "a", 3)
    fill(engine, "b", 3)
    engine.checkpoint()
    fill(engine, "a", 3)
    engine.begin_checkpoint()
    engine.pack(1)
    fill(engine, "b", 3)
    before = seen(engine)
    for restart in (engine.kill, engine.stop):
        restart()
        assert seen(engine) == before
        assert snapshot.numbers(Path(engine.directory)) == [1]
    engine.checkpoint()
    engine.kill()
    assert seen(engine) == before


def test_the_tail_of_a_topic_that_has_not_changed_keeps_its_log(make: Make) -> None:
    engine = make(file_bytes=LOG_FILE_BYTES)
    fill(engine, "old", 3, 1000)
    for _ in range(8):
        for _ in range(10):
            fill(engine, "busy", 10, 1000)
        engine.seal("busy")
        engine.checkpoint()
    before = seen(engine)
    engine.kill()
    assert seen(engine) == before
    assert len(engine.read_all("old")[0]) == 3
    assert engine.store.degraded == []
    engine.checkpoint()  # of a start: where "old" points to is known again
    engine.checkpoint()
    engine.checkpoint()
    engine.kill()
    assert seen(engine) == before


def test_a_full_disk_in_one_checkpoint_loses_no_change_for_the_next(tmp_path: Path, clock: FakeClock) -> None:
    files = FaultyFiles(tmp_path)
    engine = Library(str(tmp_path), clock, files=files, file_bytes=LOG_FILE_BYTES)
    for _ in range(2):
        fill(engine, "a", 3)
        fill(engine, "b", 3)
        engine.checkpoint()
    fill(engine, "a", 1)
    engine.drop("b")
    files.fail("pwritev", path=b"meta", error=28, forever=True)
    with pytest.raises(OSError, match="No space"):
        engine.store.checkpoints.take()
    files.heal()
    fill(engine, "c", 1)
    engine.checkpoint()
    assert [layer.number for layer in engine.store.checkpoints.kept[-1].layers] == [1, 4]
    before = seen(engine)
    engine.kill()
    assert seen(engine) == before
    engine.close()


def test_a_checkpoint_that_found_no_room_is_tried_again_as_soon_as_there_is_so_much(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, free, inodes = FaultyFiles(tmp_path), [0], [True]
    monkeypatch.setattr("topicsd.checkpoint.free_bytes", lambda _path: free[0])
    monkeypatch.setattr("topicsd.checkpoint.has_inodes", lambda _path: inodes[0])
    engine = Library(str(tmp_path), clock, files=files, file_bytes=LOG_FILE_BYTES, checkpoints=(100_000, 60_000))
    step, tried = engine.store.checkpoints.step, lambda: engine.store.figures.get("checkpoint_failures")
    fill(engine, "t", 120, 1000)
    files.fail("pwritev", path=b"meta", error=28, forever=True)
    step()
    assert tried() == 1
    clock.advance(2_000)
    step()
    free[0] = 100
    step()
    free[0], inodes[0] = 1 << 30, False
    step()
    assert tried() == 1, "each try holds the writer up"
    inodes[0] = True
    step()
    step()
    assert tried() == 2, "another one has taken it meanwhile: not at once again"
    files.heal()
    clock.advance(1_000)
    step()
    assert snapshot.numbers(tmp_path), "it does not wait for ten seconds"
    engine.close()


def test_an_idempotency_key_outlives_a_restart_through_a_snapshot_however_the_clock_has_stepped_back(engine: Library, clock: FakeClock) -> None:
    engine.put("t", idempotency_window_ms=1000)
    engine.put("other")
    fill(engine, "other", 1)
    engine.append("t", [{"data": 1}], key="k")
    clock.step(-5000)
    engine.engine.tick()
    engine.checkpoint()
    fill(engine, "other", 1)  # its ts goes on from before the step
    clock.step(-5000)
    engine.kill()
    clock.advance(900)
    assert engine.append("t", [{"data": 1}], key="k")["deduped"]
    engine.checkpoint()
    engine.kill()
    clock.advance(50)
    assert engine.append("t", [{"data": 1}], key="k")["deduped"]
    clock.advance(100)
    assert not engine.append("t", [{"data": 1}], key="k")["deduped"]


@pytest.mark.parametrize("sealed", ["nothing", "what was durable"])
@pytest.mark.parametrize("classes", ["de", "ede", "dede", "dedede", "ed", "ded", "dm", "edm"])
def test_any_order_of_classes_leaves_in_a_snapshot_what_it_leaves_in_the_log(make: Make, classes: str, sealed: str) -> None:
    names = {"d": "disk", "e": "ephemeral", "m": "memory"}
    one, other = make(), make()
    for engine in (one, other):
        engine.put("t")
        engine.put("last")
        for letter in classes:
            engine.put("t", durability=names[letter])
            fill(engine, "t", 3)
            if sealed != "nothing" and letter == "d":
                engine.seal("t")
    one.checkpoint()
    for engine in (one, other):
        fill(engine, "last", 2)
        engine.kill()
    assert seen(one) == seen(other)
    assert not one.store.degraded
    for engine in (one, other):
        fill(engine, "t", 2)
        engine.kill()
    assert seen(one) == seen(other)


def test_ephemeral_records_leave_in_a_snapshot_what_they_leave_in_the_log(make: Make) -> None:
    one, other = make(), make()
    for engine in (one, other):
        engine.put("all", durability="ephemeral")
        engine.put("mixed", durability="ephemeral")
        for name in ("all", "mixed"):
            fill(engine, name, 5)
        engine.put("mixed", durability="disk")
        fill(engine, "mixed", 4)
    one.checkpoint()
    for engine in (one, other):
        engine.kill()
    assert seen(one) == seen(other)


def test_holes_and_floors_stand_in_the_snapshot(engine: Library, clock: FakeClock) -> None:
    engine.put("t", ttl_ms=1000)
    fill(engine, "t", 3)
    clock.advance(1001)
    engine.engine.tick()
    fill(engine, "t", 3)
    engine.reboot()  # jumps: a hole
    fill(engine, "t", 2)
    before = seen(engine)
    engine.checkpoint()
    engine.kill()
    assert seen(engine) == before


def test_damage_in_a_tail_below_the_snapshot_is_told(make: Make) -> None:
    engine = make(file_bytes=LOG_FILE_BYTES)
    for n in range(6):
        engine.append("t", [{"data": {"n": n}}])
    engine.checkpoint()
    path = sorted((Path(engine.directory) / "log" / "shard-00").glob("*.log"))[0]
    raw = bytearray(path.read_bytes())
    at = raw.index(b'{"n":3}')
    raw[at + 5] ^= 1
    path.write_bytes(raw)
    engine.kill()
    records, tombstones = engine.read_all("t")
    assert [record["$seq"] for record in records] == [1, 2, 3, 5, 6]
    assert [(each["gap_from"], each["gap_to"], each["reason"]) for each in tombstones] == [(4, 4, "corrupt")]
    assert engine.state("t")["count"] == 5
    assert engine.store.degraded


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_routers_go_on_from_a_snapshot(make: Make, guarantee: str) -> None:
    engine = make(file_bytes=LOG_FILE_BYTES)
    engine.put("a", cap_records=20)
    engine.route("a", "b", guarantee=guarantee)
    engine.route("b", "c", filter=["tag", "Eq", "x"])
    for n in range(30):
        engine.append("a", [{"data": {"n": n}, "tag": "x" if n % 2 else "y"}])
    engine.checkpoint()
    for n in range(30, 60):
        engine.append("a", [{"data": {"n": n}, "tag": "x" if n % 2 else "y"}])
    before, routers = seen(engine), [engine.router(name) for name in engine.routers()]
    engine.kill()
    assert seen(engine) == before
    assert [engine.router(name) for name in engine.routers()] == routers
    engine.append("a", [{"data": {"n": 60}, "tag": "x"}])
    assert (engine.state("b")["count"], engine.state("c")["count"]) == (61, 31)
    if guarantee == "exactly_once":
        origins = [json.dumps(record["meta"]) for record in engine.read_all("b", include_meta=True)[0] if "meta" in record]
        assert len(set(origins)) == len(origins)


def held_up(engine: Library, records: int, cap: int = 10) -> None:
    """A source that has evicted most of what a full destination has kept its router from copying."""
    engine.put("from", cap_records=50)
    engine.put("to", cap_records=cap, discard="reject")
    engine.route("from", "to")
    for n in range(0, records, 20):
        engine.append("from", [{"data": i, "tag": f"t{i % 3}", "node": "n", "meta": {"i": str(i)}} for i in range(n, n + 20)])


@pytest.mark.parametrize("sealed", [False, True])
def test_a_router_that_is_held_up_skips_nothing_over_a_start_from_a_snapshot(make: Make, sealed: bool) -> None:
    engine = make(file_bytes=LOG_FILE_BYTES)
    held_up(engine, 400)
    engine.delete("from", match=["tag", "Eq", "t2"])
    for _ in range(3):
        if sealed:
            engine.seal("from")
            engine.seal("to")
        engine.checkpoint()
    engine.kill()
    engine.checkpoint()  # what a snapshot has brought stands in the next one
    engine.kill()
    assert (engine.router("from->to")["blocked"], engine.state("to")["count"]) == (True, 10)
    engine.put("to")
    records, tombstones = engine.read_all("to", limit=1000, include_meta=True)
    assert [record["data"] for record in records] == [i for i in range(400) if i < 10 or i % 3 != 2]
    assert all((each["tag"], each["node"], each["meta"]["i"]) == (f"t{each['data'] % 3}", "n", str(each["data"])) for each in records)
    assert tombstones == [] and engine.router("from->to")["lost"] == 0
    assert engine.delete("to", match=["tag", "Eq", "t1"])["deleted"] == sum(record["tag"] == "t1" for record in records)
    engine.kill()
    assert [each["data"] for each in engine.read_all("to", limit=1000)[0]] == [each["data"] for each in records if each["tag"] != "t1"]


def test_copies_made_between_a_snapshot_and_a_kill_come_back_though_the_source_has_evicted_their_records(make: Make) -> None:
    engine = make()
    held_up(engine, 400)
    engine.checkpoint()
    engine.put("to", cap_records=300, discard="reject")
    before = engine.read_all("to", limit=1000)
    assert len(before[0]) == 300
    engine.kill()
    assert engine.read_all("to", limit=1000) == before
    engine.put("to")
    assert [each["data"] for each in engine.read_all("to", limit=1000)[0]] == list(range(400))


def test_what_a_router_has_still_to_copy_keeps_its_origin_over_a_start_from_a_snapshot(make: Make) -> None:
    engine = make()
    engine.put("b", cap_records=3)
    engine.put("c", cap_records=2, discard="reject")
    engine.route("a", "b", guarantee="exactly_once")
    engine.route("b", "c")
    engine.append("a", values(*range(40)))
    epoch = engine.state("a")["epoch"]
    engine.checkpoint()
    engine.kill()
    engine.put("c")
    origins = [record["meta"]["_topics_router"] for record in engine.read_all("c", include_meta=True)[0]]
    assert origins == [f"router:a->b:{epoch}:{epoch}:{n}" for n in range(1, 41)]


def test_what_a_router_between_shards_has_still_to_copy_comes_back_from_a_snapshot(make: Make) -> None:
    engine = make(shards=2)
    engine.put("from", cap_records=5)
    others = [name for name in (f"to{n}" for n in range(8)) if engine.put(name, cap_records=2, discard="reject")]
    shard = engine.sequencer.topic(engine.sequencer.find(b"from"))["shard"]
    other = next(name for name in others if engine.sequencer.topic(engine.sequencer.find(name.encode()))["shard"] != shard)
    engine.route("from", other)
    engine.append("from", values(*range(60)))
    engine.checkpoint()
    engine.kill()
    engine.put(other)
    assert [each["data"] for each in engine.read_all(other)[0]] == list(range(60))


def test_damage_in_what_a_router_has_still_to_copy_is_told_and_the_rest_is_copied(make: Make) -> None:
    engine = make()
    held_up(engine, 100)
    engine.checkpoint()
    engine.kill()
    path = next((Path(os.fsdecode(engine.directory)) / "log").glob("*/*.log"))
    raw = bytearray(path.read_bytes())
    at = raw.find(b'"37"')
    raw[at + 1] ^= 1
    path.write_bytes(raw)
    engine.kill()
    engine.put("to")
    records, tombstones = engine.read_all("to", limit=1000)
    kept = [each["data"] for each in records]
    assert kept == [n for n in range(100) if not 20 <= n < 40] and engine.router("from->to")["lost"] == 20
    assert [each["missed_estimate"] for each in tombstones if each["reason"] == "source_trim"] == [20]


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("behind", ["", "fsync", "ephemeral", "disk,ephemeral"])
def test_copies_in_an_ephemeral_topic_end_with_the_server_also_from_a_snapshot(make: Make, sealed: bool, behind: str) -> None:
    engine = make()
    engine.put("to", durability="disk")
    engine.route("from", "to")
    engine.append("from", values(1, 2, 3))
    engine.put("to", durability="ephemeral")
    engine.append("from", values(4, 5))
    lasting = [1, 2, 3]
    for durability in filter(None, behind.split(",")):
        engine.put("to", durability=durability)
        engine.append("to", values(durability))
        engine.append("from", values(6))
        lasting += [durability, 6] if durability != "ephemeral" else []
    head = engine.state("to")["head"]
    if sealed:
        engine.seal("to")
    engine.checkpoint()
    engine.kill()
    records, tombstones = engine.read_all("to")
    assert [each["data"] for each in records] == lasting
    assert engine.state("to")["count"] == len(lasting) and engine.state("to")["head"] >= head and not engine.store.degraded
    assert {each["reason"] for each in tombstones} == {"mixed"}
    engine.append("from", values(7))
    after = engine.read_all("to")[0][-1]
    assert after["data"] == 7 and after["$seq"] > head


def test_an_ephemeral_topic_of_nothing_but_copies_is_empty_after_a_start_from_a_snapshot(make: Make) -> None:
    engine = make()
    engine.put("to", durability="ephemeral")
    engine.route("from", "to")
    engine.route("to", "lasting")
    engine.append("from", values(1, 2, 3))
    engine.checkpoint()
    engine.append("from", values(4))
    head = engine.state("to")["head"]
    engine.kill()
    assert engine.read_all("to")[0] == [] and engine.state("to")["head"] >= head
    assert [each["data"] for each in engine.read_all("lasting")[0]] == [1, 2, 3, 4]
    engine.append("from", values(5))
    assert [each["data"] for each in engine.read_all("lasting")[0]] == [1, 2, 3, 4, 5]


def test_no_log_file_goes_into_which_a_copy_points(make: Make) -> None:
    engine = make(file_bytes=LOG_FILE_BYTES)
    engine.put("a")
    engine.route("a", "b")
    for _ in range(20):
        fill(engine, "a", 10, 1000)
    engine.seal("a")
    before = engine.read_all("b")
    for _ in range(3):
        engine.checkpoint()
    engine.kill()
    assert engine.read_all("b") == before
    assert engine.store.degraded == []


def test_fsck_knows_where_a_truncated_log_begins(make: Make) -> None:
    engine = make(file_bytes=LOG_FILE_BYTES)
    for _ in range(20):
        fill(engine, "t", 10, 1000)
    engine.seal("t")
    engine.checkpoint()
    engine.checkpoint()
    engine.store.close()
    report = fsck(Path(engine.directory))
    assert (report.problems, report.refused) == ([], [])
    assert report.segments > 0
    for path in snapshots(engine):
        path.write_bytes(path.read_bytes()[:-1])
    assert len(fsck(Path(engine.directory)).problems) == 3


def test_every_shard_goes_on_from_its_own_moment(make: Make) -> None:
    engine = make(shards=3, file_bytes=LOG_FILE_BYTES)
    for name in "abcdef":
        engine.put(name)
    engine.route("a", "b")  # these two stand in different shards: copies are written out
    engine.route("c", "made")
    for n in range(60):
        for name in "acef":
            fill(engine, name, 3, 800, tag=f"t{n}")
    engine.checkpoint()
    for name in "acef":
        fill(engine, name, 2)
        engine.delete(name, match=["tag", "Eq", "t3"])
    for name in engine.names():
        engine.seal(name, 10)
    engine.checkpoint()
    engine.checkpoint()
    for name in "acef":
        fill(engine, name, 1)
    before = seen(engine)
    for restart in (engine.kill, engine.stop, engine.kill):
        restart()
        assert seen(engine) == before
    assert engine.store.degraded == []
    assert all(min(int(path.stem) for path in folder.glob("*.log")) > 0 for folder in (Path(engine.directory) / "log").glob("shard-*"))


@pytest.mark.parametrize("kind", ["open", "pwritev", "fsync", "rename", "sync_directory"])
def test_a_snapshot_that_can_not_be_written_costs_nothing(tmp_path: Path, clock: FakeClock, kind: str) -> None:
    files = FaultyFiles(tmp_path)
    engine = Library(str(tmp_path), clock, files=files, file_bytes=LOG_FILE_BYTES)
    for _ in range(10):
        fill(engine, "t", 10, 1000)
    engine.seal("t")
    engine.checkpoint()
    log_files = engine.log_files()
    before = seen(engine)
    files.fail(kind, path=b"meta", error=28, forever=True)
    with pytest.raises(OSError, match="No space"):
        engine.store.checkpoints.take()
    files.heal()
    assert engine.log_files() == log_files
    assert seen(engine) == before
    engine.kill()
    assert seen(engine) == before
    engine.checkpoint()
    engine.checkpoint()
    assert engine.log_files() < log_files
    assert list(tmp_path.glob("meta/*.tmp")) == []
    engine.kill()
    assert seen(engine) == before
    assert engine.store.degraded == []
    engine.close()


def test_a_segment_whose_file_is_gone_is_told(make: Make) -> None:
    engine = make()
    fill(engine, "t", 4)
    engine.seal("t")
    fill(engine, "t", 2)
    engine.checkpoint()
    next(Path(engine.directory).glob("topics/*/*/*.data")).unlink()
    engine.kill()
    records, tombstones = engine.read_all("t")
    assert [record["$seq"] for record in records] == [5, 6]
    assert [(each["gap_from"], each["gap_to"], each["reason"]) for each in tombstones] == [(1, 4, "corrupt")]
    assert any("No such file" in what for what in engine.store.suspects)


def test_the_clock_that_stepped_back_over_a_restart_lengthens_no_window(engine: Library, clock: FakeClock) -> None:
    engine.put("t", idempotency_window_ms=10_000)
    engine.append("t", [{"data": 1}], key="k")
    clock.advance(9_000)
    engine.append("t", [{"data": 2}], key="other")
    engine.checkpoint()
    clock.step(-60_000)
    engine.kill()
    assert engine.append("t", [{"data": 1}], key="k")["deduped"]
    clock.advance(1_500)
    assert not engine.append("t", [{"data": 1}], key="k")["deduped"]
    assert engine.append("t", [{"data": 2}], key="other")["deduped"]


def test_a_full_disk_is_given_back_what_nobody_needs(tmp_path: Path, clock: FakeClock) -> None:
    files = FaultyFiles(tmp_path)
    engine = Library(str(tmp_path), clock, files=files, file_bytes=LOG_FILE_BYTES)
    engine.checkpoint()
    for _ in range(20):
        fill(engine, "t", 10, 1000)
    engine.seal("t")
    files.space = files.used()
    engine.delete("t", before_seq=150)
    for _ in range(3):
        engine.checkpoint()
    assert files.used() < files.space - 100_000
    assert engine.state("t")["count"] == 51
    fill(engine, "t", 10, 1000)
    before = seen(engine)
    files.heal()
    engine.kill()
    assert seen(engine) == before
    engine.close()


def test_on_a_full_disk_what_nobody_needs_goes_within_a_second(tmp_path: Path, clock: FakeClock) -> None:
    files = FaultyFiles(tmp_path)
    engine = Library(str(tmp_path), clock, files=files, file_bytes=LOG_FILE_BYTES, checkpoints=(0, 60_000))
    engine.checkpoint()
    for _ in range(20):
        fill(engine, "t", 10, 1000)
    engine.seal("t")
    engine.delete("t", before_seq=150)
    clock.advance(5_000)
    engine.store.checkpoints.step()
    assert snapshot.numbers(tmp_path) == [1], "nobody waits for room"
    files.space = files.used()
    with pytest.raises(Refused):
        for _ in range(20):
            fill(engine, "t", 10, 1000)
    held = engine.log_files()
    for _ in range(2):
        clock.advance(250)
        engine.store.checkpoints.step()
        engine.store.heal()
    assert engine.log_files() < held, "two snapshots, and who was refused has room"
    assert files.used() < files.space - 100_000
    fill(engine, "t", 10, 1000)
    engine.close()


@pytest.mark.parametrize("late_ms", [250, 2_000])
def test_a_start_on_a_full_disk_lets_files_go_however_late_it_looks(tmp_path: Path, clock: FakeClock, late_ms: int) -> None:
    files = FaultyFiles(tmp_path)
    engine = Library(str(tmp_path), clock, files=files, file_bytes=LOG_FILE_BYTES, checkpoints=(0, 500))
    engine.checkpoint()
    for _ in range(20):
        fill(engine, "t", 10, 1000)
    files.space = files.used()
    with pytest.raises(Refused):
        for _ in range(20):
            fill(engine, "t", 10, 1000)
    files.space += 64 << 10  # what a start takes
    engine.kill()
    engine.delete("t", before_seq=1 << 40)
    with pytest.raises(Refused):
        for _ in range(20):
            fill(engine, "t", 10, 1000)
    held = engine.log_files()
    for _ in range(3):
        clock.advance(late_ms)
        engine.store.checkpoints.step()
        engine.store.heal()
    assert engine.log_files() < held, "what was deleted stands in files that nothing needs behind two snapshots"
    fill(engine, "t", 10, 1000)
    engine.close()


def test_starts_on_a_full_disk_take_no_snapshot_that_lets_nothing_go(tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "is_full", lambda _store: True)
    files = FaultyFiles(tmp_path)
    engine = Library(str(tmp_path), clock, files=files, file_bytes=LOG_FILE_BYTES, checkpoints=(0, 500))
    for _ in range(20):
        fill(engine, "t", 10, 1000)
    engine.checkpoint()
    taken = snapshot.numbers(tmp_path)
    for _ in range(5):
        engine.kill()
        files.space = files.used() + (64 << 10)  # what a start takes
        for _ in range(8):
            clock.advance(250)
            engine.store.checkpoints.step()
            engine.store.heal()
    assert snapshot.numbers(tmp_path) == taken, "each takes of what is set aside for the next one"
    engine.close()


@pytest.mark.parametrize("gone", ["first", "last", "all"])
def test_a_log_file_that_a_tail_needs_and_that_is_gone_is_told(make: Make, gone: str) -> None:
    engine = make(file_bytes=LOG_FILE_BYTES)
    for _ in range(20):
        fill(engine, "t", 10, 1000)
    engine.checkpoint()
    engine._forget()
    files = sorted((Path(engine.directory) / "log" / "shard-00").glob("*.log"))
    used = [path for path in files if any(path.read_bytes()[4096:])]
    for path in {"first": used[:1], "last": used[-1:], "all": files}[gone]:
        path.unlink()
    engine.open()
    records, tombstones = engine.read_all("t")
    missing = sorted(set(range(1, 201)) - {record["$seq"] for record in records})
    assert 0 < len(missing) <= 200 and (gone != "all" or len(missing) == 200)
    # Without any log what followed the snapshot is lost too, as in a power cut: the topic jumps to its ceiling.
    assert [seq for each in tombstones for seq in range(each["gap_from"], min(each["gap_to"], 200) + 1)] == missing
    assert {each["reason"] for each in tombstones} == ({"mixed"} if gone == "all" else {"corrupt"})
    assert engine.state("t")["count"] == 200 - len(missing)
    assert engine.append("t", [{"data": "on"}])["first_seq"] > 200
    assert engine.store.degraded
    before = engine.read_all("t")
    engine.kill()
    assert engine.read_all("t")[0] == before[0]


def test_a_checkpoint_is_due_by_bytes_and_by_what_would_go_and_not_again_at_once_after_a_failure(tmp_path: Path, clock: FakeClock) -> None:
    files = FaultyFiles(tmp_path)
    engine = Library(str(tmp_path), clock, files=files, file_bytes=LOG_FILE_BYTES, checkpoints=(100_000, 5_000), absorb=2)
    step, taken = engine.store.checkpoints.step, lambda: snapshot.numbers(tmp_path)
    clock.advance(6_000)
    step()
    assert taken() == []  # nothing would go
    fill(engine, "t", 120, 1000)
    step()
    assert taken() == [1]
    step()
    assert taken() == [1]
    engine.seal("t")
    step()
    assert taken() == [1]
    clock.advance(5_000)
    files.fail("fsync", path=b"meta", forever=True)
    step()
    assert taken() == [1]
    files.heal()
    step()
    assert taken() == [1]
    clock.advance(10_000)
    step()
    assert taken() == [1, 3]
    clock.advance(5_000)
    step()
    assert taken() == [3, 4]
    for _ in range(3):
        clock.advance(5_000)
        step()
    assert taken() == [3, 4]  # nothing more would go
    engine.close()


@pytest.mark.parametrize("ends_by", ["calm", "seal", "amount"])
def test_in_a_flood_of_which_nothing_is_sealed_a_checkpoint_waits(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, ends_by: str
) -> None:
    monkeypatch.setattr(limits, "FLOOD_BYTES_PER_S", 50_000)
    monkeypatch.setattr(checkpoint, "FLOOD_BYTES_MIN", 100_000)
    engine = Library(str(tmp_path), clock, file_bytes=LOG_FILE_BYTES, checkpoints=(100_000, 600_000))
    step, taken = engine.store.checkpoints.step, lambda: snapshot.numbers(tmp_path)

    def grow(log_bytes: int) -> None:
        while engine.store.shards[0].written_position < log_bytes:
            fill(engine, "t", 5, 1000)

    clock.advance(1000)
    grow(300_000)
    step()
    assert taken() == []
    if ends_by == "calm":
        clock.advance(10_000)
    elif ends_by == "seal":
        engine.seal("t")
    else:
        clock.advance(1000)
        grow(limits.CHECKPOINT_FLOOD_FACTOR * 100_000 - 10_000)
        step()
        assert taken() == []
        grow(limits.CHECKPOINT_FLOOD_FACTOR * 100_000 + 1)
    step()
    assert taken() == [1]
    engine.close()


def test_a_snapshot_waits_until_the_log_up_to_it_is_synced(engine: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints, shard, sleeps = engine.store.checkpoints, SimpleNamespace(synced_position=0), []

    def sleep(seconds: float) -> None:
        assert not list((Path(engine.directory) / "meta").glob("snapshot-*"))
        sleeps.append(seconds)
        shard.synced_position += 40

    monkeypatch.setattr("topicsd.checkpoint.time.sleep", sleep)
    monkeypatch.setattr(engine.store, "shards", [shard])
    checkpoints._write({"number": 1, "moment": [100]}, [])
    assert len(sleeps) == 3
    assert [path.name for path in (Path(engine.directory) / "meta").glob("snapshot-*")] == [f"snapshot-{1:020d}"]


@pytest.mark.parametrize("why", ["poisoned", "closing"])
def test_there_is_no_snapshot_of_a_log_that_is_never_synced(engine: Library, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    checkpoints = engine.store.checkpoints
    monkeypatch.setattr(engine.store, "shards", [SimpleNamespace(synced_position=0)])
    monkeypatch.setattr(engine.store, "sequencer", SimpleNamespace(is_poisoned=lambda _number: why == "poisoned"))
    monkeypatch.setattr(checkpoints, "closing", why == "closing")
    with pytest.raises(OSError, match="not synced"):
        checkpoints._write({"number": 1, "moment": [100]}, [])
    monkeypatch.undo()
    assert not list((Path(engine.directory) / "meta").glob("snapshot-*"))


def let_log_go(engine: Library) -> None:
    """Write some files of the log that nobody needs any more."""
    for _ in range(200):
        engine.append("t", values("x" * 2000))
    engine.seal("t")
    engine.checkpoint()
    engine.checkpoint()


@pytest.mark.parametrize("left", ["nothing", "the mount point", "another archive"])
@pytest.mark.parametrize("restart", [False, True])
def test_an_archive_that_goes_away_gets_no_log_file_until_it_is_back(
    tmp_path: Path, clock: FakeClock, capsys: pytest.CaptureFixture[str], restart: bool, left: str
) -> None:
    archive, away = tmp_path / "archive", tmp_path / "away"
    engine = Library(str(tmp_path / "data"), clock, file_bytes=LOG_FILE_BYTES, archive=archive)
    engine.put("t")

    let_log_go(engine)
    first = {path.name for path in archive.rglob("*.log")}
    assert first and engine.store.figures.get("archive_away") == 0
    archive.rename(away)
    if left != "nothing":
        archive.mkdir()
    if left == "another archive":
        (archive / "topicsd-archive.json").write_text('{"format": "topicsd-archive", "version": 1, "id": "another"}')
    if restart:
        engine.kill()
    before = {path.name for path in Path(engine.directory).rglob("*.log")}
    capsys.readouterr()
    for _ in range(3):
        let_log_go(engine)
    assert list(archive.rglob("*.log")) == [] and archive.exists() == (left != "nothing")
    assert before <= {path.name for path in Path(engine.directory).rglob("*.log")}
    assert engine.store.figures.get("archive_away") == 1 and engine.store.figures.get("files_undone") >= 3
    assert capsys.readouterr().out.count("topicsd-archive.json") == 1, "told once a minute"
    context = SimpleNamespace(shared=engine.shared, figures=engine.store.figures, settings=SimpleNamespace(log_archive_dir=archive))
    (reason,) = restrictions(context)  # type: ignore[arg-type]
    assert reason.startswith(f"archive_unavailable: {archive}")
    clock.advance(60_000)
    engine.checkpoint()
    assert capsys.readouterr().out.count("topicsd-archive.json") == 1
    kept = {path.name for path in Path(engine.directory).rglob("*.log")}
    if archive.exists():
        (archive / "topicsd-archive.json").unlink(missing_ok=True)
        archive.rmdir()
    away.rename(archive)
    engine.checkpoint()
    assert engine.store.figures.get("archive_away") == 0 and engine.store.figures.get("files_undone") == 0
    archived = {path.name for path in archive.rglob("*.log")}
    assert first < archived and archived | {path.name for path in Path(engine.directory).rglob("*.log")} >= first | kept
    engine.kill()
    assert len(engine.read_all("t")[0]) > 0


def test_an_archive_that_takes_no_log_file_is_told_until_it_does(tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Library(str(tmp_path / "data"), clock, file_bytes=LOG_FILE_BYTES, archive=tmp_path / "archive")
    shared = SimpleNamespace(shard=lambda _number: {"read_only": 0}, get=lambda _name: 0)
    settings = SimpleNamespace(cold_dir="", log_archive_dir=str(tmp_path / "archive"))
    told = lambda: restrictions(SimpleNamespace(shared=shared, figures=engine.store.figures, settings=settings))  # type: ignore[arg-type]  # noqa: E731
    engine.put("t")
    for _ in range(200):
        engine.append("t", values("x" * 2000))
    engine.seal("t")
    before = {path.name for path in Path(engine.directory).rglob("*.log")}
    move = file_ops.move_across

    def full(_files: Any, source: Path, _target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(source))

    monkeypatch.setattr(file_ops, "move_across", full)
    engine.checkpoint()
    engine.checkpoint()
    (reason,) = told()
    assert reason.startswith(f"archive_unavailable: {tmp_path / 'archive'}: it takes no log files (ENOSPC: No space left on device)")
    assert before <= {path.name for path in Path(engine.directory).rglob("*.log")}
    monkeypatch.setattr(file_ops, "move_across", move)
    engine.checkpoint()
    assert told() == [] and list((tmp_path / "archive").rglob("*.log"))
    engine.close()


@pytest.mark.parametrize("why", ["from before there were markers", "at another path", "its memory is removed"])
def test_an_archive_that_is_not_remembered_is_taken_as_it_is(tmp_path: Path, clock: FakeClock, why: str) -> None:
    archive = tmp_path / "archive"
    engine = Library(str(tmp_path / "data"), clock, file_bytes=LOG_FILE_BYTES, archive=archive)
    engine.put("t")
    memory = Path(engine.directory) / "meta" / "log-archive"

    let_log_go(engine)
    before = len(list(archive.rglob("*.log")))
    assert before
    (archive / "topicsd-archive.json").unlink()
    if why == "at another path":
        archive = archive.rename(tmp_path / "moved")
        engine.options["archive"] = archive
    else:
        memory.unlink()
    engine.kill()
    let_log_go(engine)
    assert len(list(archive.rglob("*.log"))) > before and engine.store.figures.get("files_undone") == 0
    assert json.loads(memory.read_bytes())["id"] == json.loads((archive / "topicsd-archive.json").read_bytes())["id"]


def test_a_full_disk_keeps_no_log_file_from_an_archive_that_is_used_for_the_first_time(tmp_path: Path) -> None:
    files, data = FaultyFiles(tmp_path), tmp_path / "data"
    path = data / "log" / "shard-00" / f"{0:020d}.log"
    path.parent.mkdir(parents=True)
    (data / "meta").mkdir()
    write_whole(path, b"a log file", files)
    files.fail("pwritev", 1, errno.ENOSPC, forever=True)
    archive = LogArchive(tmp_path / "archive", data, files)
    archive.move(path)
    assert (tmp_path / "archive" / "shard-00" / path.name).read_bytes() == b"a log file" and not path.exists()
    assert not (data / "meta" / "log-archive").exists()
    files.heal()
    archive.move(path)
    assert (data / "meta" / "log-archive").exists()
    (tmp_path / "archive").rename(tmp_path / "away")
    with pytest.raises(ArchiveAwayError):
        archive.move(path)


@pytest.mark.parametrize("how", ["remove", "archive"])
def test_files_that_can_not_be_let_go_are_let_go_later(tmp_path: Path, clock: FakeClock, how: str) -> None:
    archive = tmp_path / "archive" if how == "archive" else None
    files = FaultyFiles(tmp_path)
    engine = Library(str(tmp_path / "data"), clock, files=files, file_bytes=LOG_FILE_BYTES, archive=archive)
    engine.put("t")
    for _ in range(200):
        engine.append("t", values("x" * 2000))
    engine.seal("t")
    kept = engine.log_files()
    assert kept > 3
    if archive is not None:
        archive.write_bytes(b"in the way of the folder")
    else:
        files.fail("unlink", 1, errno.EIO, forever=True)
    engine.checkpoint()
    engine.checkpoint()
    assert engine.log_files() == kept and len(engine.store.checkpoints.undone) >= kept - 2
    assert engine.store.figures.get("files_undone") == len(engine.store.checkpoints.undone)
    if archive is not None:
        archive.unlink()
    else:
        files.faults.clear()
    engine.checkpoint()
    assert engine.log_files() <= 2 and engine.store.figures.get("files_undone") == 0
    assert archive is None or len(list(archive.rglob("*.log"))) >= kept - 2
    before = engine.read_all("t")
    engine.kill()
    assert engine.read_all("t") == before
    engine.close()


def test_a_writer_that_has_read_the_log_at_its_start_lets_go_of_files_that_have_gone(tmp_path: Path) -> None:
    library = Library(str(tmp_path), FakeClock(), file_bytes=64 << 10)
    for _ in range(30):
        library.append("t", [{"data": "x" * 8000, "tag": "a"}])
    library.checkpoint()
    library.kill()  # the tags of what a snapshot holds are read from the log
    library.drop("t")
    had = library.log_files()
    for _ in range(3):
        library.checkpoint()
    assert library.log_files() < had
    assert [line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line and "(deleted)" in line] == []
    library.close()
