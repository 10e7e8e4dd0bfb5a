"""Damage at the very end of the log, where no later frame says that it was synced: the note outside the log does (docs/format/log.md)."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.in_process import Library
from topicsd import synced
from topicsd._native.files import FileSystem
from topicsd._native.log_walk import LogFormatError
from topicsd.segments.dump import dump
from topicsd.segments.fsck import fsck

SMALL = 64 << 10
GOLDEN = bytes.fromhex(  # version 1: two shards, synced up to 4096 and 300
    "545053594e4344310100000002000000e80300000000000000100000000000002c01000000000000" + "00" * 48
)  # fmt: skip


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    made = Library(str(tmp_path / "data"), FakeClock(), file_bytes=SMALL)
    yield made
    made.close()


def logs(library: Library) -> list[Path]:
    """The files that hold frames, the oldest first."""
    return [path for path in sorted((Path(library.directory) / "log" / "shard-00").glob("*.log")) if any(path.read_bytes())]


def end_of(path: Path) -> int:
    return len(path.read_bytes().rstrip(b"\0"))


def overwrite(path: Path, offset: int, raw: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(raw)


def last_page(files: list[Path], fill: Any) -> None:
    page = (end_of(files[-1]) - 1) // 4096 * 4096
    overwrite(files[-1], page, fill(4096))


def swapped(files: list[Path]) -> None:
    first, second = files[-2:]
    away = first.with_suffix(".away")
    first.rename(away)
    second.rename(first)
    away.rename(second)


DAMAGES: dict[str, Any] = {
    "a page of zeroes": lambda files: last_page(files, bytes),
    "a page of anything": lambda files: last_page(files, random.Random(7).randbytes),
    "a file of zeroes": lambda files: overwrite(files[-1], 0, bytes(SMALL)),
    "a file of anything": lambda files: overwrite(files[-1], 0, random.Random(7).randbytes(SMALL)),
    "another's bytes": lambda files: shutil.copyfile(files[-2], files[-1]),
    "cut to nothing": lambda files: os.truncate(files[-1], 0),
    "removed": lambda files: files[-1].unlink(),
    "two changed places": swapped,
}


def told(library: Library, name: str, acked: int) -> set[int]:
    """Which acked seqs are gone, each of which a reader must be told of."""
    records, tombstones = library.read_all(name)
    gone = set(range(1, acked + 1)) - {record["$seq"] for record in records}
    assert gone <= {seq for each in tombstones if each["reason"] == "corrupt" for seq in range(each["gap_from"], each["gap_to"] + 1)}
    return gone


@pytest.mark.parametrize("durability", ["disk", "fsync"])
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_end_of_the_log_is_told_and_no_seq_comes_twice(library: Library, how: str, durability: str) -> None:
    library.put("t", durability=durability)
    for number in range(20):
        acked = library.append("t", [{"data": [number, "x" * 5_000]}])["first_seq"]
    library.close()
    DAMAGES[how](logs(library))
    report = fsck(Path(library.directory))
    assert any(problem.loses for problem in report.problems)
    library.open()
    assert library.store.degraded
    if how == "two changed places":
        library.put("t")  # the frame that made it is damaged, like most of the rest
        return
    gone = told(library, "t", acked)
    assert gone and max(gone) == acked
    again = library.append("t", [{"data": "new"}])["first_seq"]
    assert again > acked
    head = library.state("t")["head"]
    library.stop()
    assert (told(library, "t", acked), library.state("t")["head"]) == (gone, head)


def test_a_sound_end_is_no_damage_after_an_end_or_a_kill_or_a_reboot(library: Library) -> None:
    library.put("t")
    for again in (library.stop, library.kill, library.reboot, library.stop):
        library.append("t", [{"data": 1}])
        library.sequencer.sync()
        again()
        assert library.store.degraded == [] and "corrupt" not in {each["reason"] for each in library.read_all("t")[1]}
    library.close()
    assert fsck(Path(library.directory)).problems == []
    library.open()


def test_what_stood_behind_a_snapshot_in_a_damaged_file_is_told(library: Library) -> None:
    library.put("idle")
    library.put("t", durability="fsync")
    library.append("idle", [{"data": "x"}])
    library.append("t", [{"data": 1}])
    library.seal("t")
    library.seal("idle")
    library.checkpoint()
    for number in range(5):
        acked = library.append("t", [{"data": number}])["first_seq"]
    library.close()
    last = logs(library)[-1]
    overwrite(last, 0, bytes(last.stat().st_size))
    library.open()
    assert told(library, "t", acked) == set(range(2, acked + 1))
    assert library.append("t", [{"data": "new"}])["first_seq"] > acked
    assert [record["$seq"] for record in library.read_all("idle")[0]] == [1]


def test_the_note_is_written_at_rest_and_now_and_then_in_between(library: Library) -> None:
    checkpoints, directory = library.store.checkpoints, Path(library.directory)
    library.put("t")

    def noted(at_rest: bool) -> bool:
        library.append("t", [{"data": 1}])
        library.sequencer.sync()
        checkpoints.note_synced(at_rest)
        return synced.read(directory)[0] == library.store.shards[0].synced_position

    assert noted(True)
    assert not noted(False)
    library.clock.advance(5_000)
    assert noted(False)


@pytest.mark.parametrize("then", ["at rest", "at the end"])
def test_a_disk_that_takes_no_note_keeps_the_one_before_and_is_asked_again(library: Library, monkeypatch: pytest.MonkeyPatch, then: str) -> None:
    library.put("t")
    library.store.checkpoints.note_synced(at_rest=True)
    before = synced.read(Path(library.directory))
    library.append("t", [{"data": 1}])

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(synced, "write", full)
        library.store.checkpoints.note_synced(at_rest=True)
    assert synced.read(Path(library.directory)) == before
    if then == "at rest":
        library.clock.advance(5_000)
        library.store.checkpoints.note_synced(at_rest=True)
    else:
        library.sequencer.sync()
        library.store.checkpoints.close()
    assert synced.read(Path(library.directory))[0] == library.store.shards[0].synced_position > before[0]


def test_a_damaged_note_is_told_and_made_again(library: Library) -> None:
    library.put("t")
    library.close()
    path, directory = synced.path_of(Path(library.directory)), Path(library.directory)
    raw = path.read_bytes()
    for wrong in (raw[:-1], b"", *(bytes([*raw[:at], raw[at] ^ 4, *raw[at + 1 :]]) for at in range(0, len(raw), 7))):
        path.write_bytes(wrong)
        assert [(problem.path, problem.loses) for problem in fsck(directory).problems] == [(path, False)]
        assert "damage" in json.loads(next(dump(path))) if wrong[:8] == raw[:8] else True
    library.open()
    assert any(str(path) in reason for reason in library.store.degraded)
    library.append("t", [{"data": 1}])
    library.stop()
    assert library.store.degraded == []


def test_a_newer_note_is_refused_and_a_directory_without_one_opens(library: Library) -> None:
    library.put("t")
    library.close()
    path = synced.path_of(Path(library.directory))
    body = bytearray(path.read_bytes()[: -synced.DIGEST_BYTES])
    body[8] = 2
    path.write_bytes(sealed(bytes(body)))
    with pytest.raises(LogFormatError, match=r"synced: format version 2.*a newer version wrote it.*nothing has been changed"):
        library.open()
    assert fsck(Path(library.directory)).refused
    path.unlink()
    library.open()
    assert library.store.degraded == []


def sealed(body: bytes) -> bytes:
    return body + hashlib.blake2b(body, digest_size=16).digest()


def test_the_first_version_of_the_note_opens_for_ever(tmp_path: Path) -> None:
    path = synced.path_of(tmp_path)
    path.parent.mkdir()
    path.write_bytes(sealed(GOLDEN))
    assert synced.read(tmp_path) == [4096, 300, 0, 0, 0, 0, 0, 0]
    assert [json.loads(line) for line in dump(path)] == [{"offset": 0, "type": "synced", "ts": 1000, "positions": [4096, 300]}]
    synced.write(tmp_path, FileSystem(), [4096, 300], 1000)
    assert path.read_bytes() == sealed(GOLDEN)
