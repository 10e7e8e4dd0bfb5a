"""What is sealed of a log that is no longer in memory is what is sealed of one that is; and files that are written past the page cache are whole."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.disks import drop_from_memory, need_direct_writes
from fakes.in_process import Library
from topicsd._native.file_ops import NewFile
from topicsd._native.files import FileSystem, WatchedFiles

MIB = 1 << 20
SINK = 1 << 20  # what a file that is built gathers before it writes


class Noted(WatchedFiles):
    """Files that tell which were opened to go past the page cache, and what was read and written there."""

    def __init__(self) -> None:
        self.direct: dict[int, bytes] = {}
        self.read: list[tuple[bytes, int, int]] = []
        self.wrote: list[tuple[bytes, int, int]] = []
        self.refuse_write = 0  # the nth write past the page cache fails with EINVAL
        self.refuse_open = False

    def before(self, kind: str, *args: Any) -> int:
        if kind == "open" and args[1] & os.O_DIRECT and self.refuse_open:
            return -errno.EINVAL
        if args[0] not in self.direct:
            return 0
        if kind == "pread":
            self.read.append((self.direct[args[0]], args[1], args[2]))
        if kind == "pwritev":
            self.wrote.append((self.direct[args[0]], args[1], len(args[2])))
            if len(self.wrote) == self.refuse_write:
                return -errno.EINVAL
        if kind == "close":
            del self.direct[args[0]]
        return 0

    def after(self, kind: str, result: int, *args: Any) -> None:
        if kind == "open" and result >= 0 and args[1] & os.O_DIRECT:
            self.direct[result] = args[0]

    def of(self, suffix: bytes, calls: list[tuple[bytes, int, int]]) -> list[tuple[int, int]]:
        return [(offset, size) for path, offset, size in calls if path.rpartition(b"/")[2].removesuffix(b".tmp").endswith(suffix)]


def batch(rng: random.Random, count: int, size: int, tag: str | None = None) -> list[dict[str, Any]]:
    return [{"data": rng.randbytes(rng.randrange(1, size)).hex(), **({"tag": tag} if tag else {})} for _ in range(count)]


def one_topic(library: Library, rng: random.Random) -> None:
    """Frames from a few bytes to more than a window, in turn."""
    for count, size in [(3, 100), (40, 4000), (1, 9), (60, 8000), (200, 6000), (1, 500_000), (2, 20), (90, 3000), (30, 40_000)] * 2:
        library.append("a", batch(rng, count, size, rng.choice(["x", "y"])))


def mixed_topics(library: Library, rng: random.Random) -> None:
    """Frames of three topics between each other, so that windows begin in the middle of others' frames."""
    for _ in range(60):
        library.append(rng.choice("abc"), batch(rng, rng.randrange(1, 60), rng.choice([50, 3000, 9000])))


def deleted_records(library: Library, rng: random.Random) -> None:
    for n in range(24):
        library.append("a", batch(rng, 40, 5000, "gone" if n % 3 == 0 else "stays"))
    library.delete("a", match=["tag", "Eq", "gone"])
    library.delete("a", before_seq=100)


def beyond_any_window(library: Library, rng: random.Random) -> None:
    """A frame of more than 16 MiB is read through its map."""
    library.append("a", batch(rng, 50, 5000))
    library.append("a", [{"data": rng.randbytes(240_000).hex()} for _ in range(40)])
    library.append("a", batch(rng, 50, 5000))


def opened(directory: Path, files: FileSystem | None = None, **options: Any) -> Library:
    return Library(str(directory), FakeClock(), files=files, file_bytes=24 * MIB, **options)


def files_of(directory: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(directory)): path.read_bytes() for path in sorted((directory / "topics").rglob("*")) if path.is_file()}
    assert any(name.endswith(".data") for name in found)
    return found


@pytest.mark.parametrize("made", [one_topic, mixed_topics, deleted_records, beyond_any_window])
@pytest.mark.parametrize("events_max", [1 << 30, 150])
def test_a_cold_log_gives_the_same_segments_as_a_warm_one(tmp_path: Path, made: Callable[[Library, random.Random], None], events_max: int) -> None:
    need_direct_writes(tmp_path)
    first = opened(tmp_path / "made")
    for name in "abc":
        first.put(name)
    made(first, random.Random(7))
    records = {name: first.read_all(name)[0] for name in "abc"}
    first.close()
    found, noted, buffered = {}, Noted(), Noted()
    buffered.refuse_open = True
    for way, files, cold in (("warm", Noted(), False), ("cold", None, True), ("watched", noted, True), ("buffered", buffered, True)):
        directory = tmp_path / way
        shutil.copytree(tmp_path / "made", directory)
        library = opened(directory, files)
        if cold:
            drop_from_memory(directory / "log")
        for name in "abc":
            library.seal(name, events_max)
        assert {name: library.read_all(name)[0] for name in "abc"} == records
        found[way] = files_of(directory)
        library.close()
        if way == "warm":
            assert files.of(b".log", files.read) == []
    assert found["cold"] == found["warm"]
    assert found["watched"] == found["warm"]
    assert found["buffered"] == found["warm"]
    assert noted.of(b".log", noted.read), "nothing was read past the page cache"
    assert all(offset % 4096 == 0 and size % 4096 == 0 and size <= 16 * MIB + 8192 for offset, size in noted.of(b".log", noted.read))
    assert noted.direct == {}


def test_damage_on_the_disk_is_damage_in_the_window_too(tmp_path: Path) -> None:
    need_direct_writes(tmp_path)
    library = opened(tmp_path)
    library.put("a")
    for _ in range(4):
        library.append("a", [{"data": "y" * 5000} for _ in range(40)])
    library.sequencer.sync()
    library.kill()
    (path,) = [path for path in (tmp_path / "log").rglob("*.log") if b"y" * 5000 in path.read_bytes()]
    raw = path.read_bytes()
    at = raw.rindex(b"y" * 5000) + 77
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"z")
    drop_from_memory(tmp_path / "log")
    slot = library.sequencer.find(b"a")
    sealer = library.sealing().sealer
    with pytest.raises(OSError) as wrong:
        sealer.seal(slot, library.sequencer.topic(slot)["topic_id"], 1 << 30, 1 << 30)
    assert wrong.value.errno == errno.EILSEQ
    library.close()


def test_what_no_sync_has_covered_is_not_sealed_though_it_is_on_the_disk(tmp_path: Path) -> None:
    need_direct_writes(tmp_path)
    library = opened(tmp_path, synced=False)
    library.put("a")
    library.sequencer.sync()
    library.append("a", [{"data": "x" * 5000} for _ in range(40)])
    library.sequencer.sync()
    for _ in range(2):
        library.send("a", [{"data": "x" * 5000} for _ in range(40)])
        library.sequencer.flush()
    slot = library.sequencer.find(b"a")
    topic_id = library.sequencer.topic(slot)["topic_id"]
    assert library.sequencer.topic(slot)["head"] == 120
    assert library.sealing().sealer.seal(slot, topic_id, 1 << 30, 1 << 30) is not None
    (data,) = (tmp_path / "topics").rglob("*.data")
    assert data.stat().st_size < 2 * 40 * 5000, "more than the synced batch was sealed"
    library.close()


def test_the_keeper_holds_no_log_file_that_is_gone(tmp_path: Path) -> None:
    need_direct_writes(tmp_path)
    library = opened(tmp_path)
    library.put("a")
    for _ in range(20):
        library.append("a", [{"data": "x" * 5000} for _ in range(40)])
    library.kill()
    drop_from_memory(tmp_path / "log")
    slot = library.sequencer.find(b"a")
    rounds = library.sealing(events_max=1 << 30, bytes_max=0)
    rounds.seal_all(slot, library.sequencer.topic(slot)["topic_id"])
    old = (tmp_path / "log" / "shard-00" / f"{0:020d}.log").stat()
    held = [link for link in Path("/proc/self/fd").iterdir() if link.exists() and link.stat().st_ino == old.st_ino]
    assert held == []
    assert library.rows("a") == [(1, 800)]
    library.close()


def test_segments_of_a_topic_that_is_read_stay_in_memory(tmp_path: Path) -> None:
    need_direct_writes(tmp_path)
    for read in (True, False):
        noted, clock = Noted(), FakeClock(wall_ms=1 << 50 if read else 1_750_000_000_000)  # the keeper's clock is the machine's
        library = Library(str(tmp_path / f"{read}"), clock, files=noted, file_bytes=24 * MIB)
        library.put("a")
        for _ in range(10):
            library.append("a", [{"data": "x" * 5000} for _ in range(40)])
        library.diff("a", limit=1)
        library.seal("a")
        assert bool(noted.of(b".data", noted.wrote)) is not read
        library.close()


# ---- a file that is built


@pytest.mark.parametrize(("watched", "refuse"), [(False, 0), (True, 0), (True, 1), (True, 2)])
@pytest.mark.parametrize(
    "parts",
    [
        [SINK],
        [SINK, SINK],
        [SINK + 1],
        [SINK - 1, 1],
        [SINK - 1, 2],
        [1, SINK - 1, SINK],
        [5000] * 700,
        [100, 3 * SINK + 77, 5],
        [4096] * 600,
        [0, 8, 0],
    ],
    ids=lambda parts: f"{len(parts)}x{parts[0]}",
)
def test_a_new_file_holds_what_was_written_whatever_the_sizes(tmp_path: Path, parts: list[int], watched: bool, refuse: int) -> None:
    need_direct_writes(tmp_path)
    files = Noted() if watched else FileSystem()
    if watched:
        files.refuse_write = refuse
    rng, path = random.Random(3), tmp_path / "made"
    pieces = [rng.randbytes(size) for size in parts]
    file = NewFile(files, path)
    for done, piece in enumerate(pieces, 1):
        file.write(piece)
        assert file.size == sum(parts[:done])
    file.finish()
    assert path.read_bytes() == b"".join(pieces)
    if watched:
        assert bool(files.wrote) is (sum(parts) > SINK)
        assert files.direct == {}
        assert all(offset % 4096 == 0 and size % 4096 == 0 for _, offset, size in files.wrote)


def test_room_that_is_reserved_reads_as_zeroes_and_is_really_there(tmp_path: Path) -> None:
    file = NewFile(FileSystem(), tmp_path / "room")
    file.reserve(3 * MIB)
    file.finish()
    found = (tmp_path / "room").stat()
    assert found.st_size == 3 * MIB
    assert found.st_blocks * 512 >= 3 * MIB
    assert not any((tmp_path / "room").read_bytes())


def test_room_is_written_where_it_cannot_be_reserved_and_a_full_disk_says_so(tmp_path: Path) -> None:
    class Poor(WatchedFiles):
        error = errno.EOPNOTSUPP

        def before(self, kind: str, *args: Any) -> int:
            return -self.error if kind == "fallocate" else 0

    files = Poor()
    file = NewFile(files, tmp_path / "room")
    file.reserve(2 * MIB + 5)
    file.finish()
    assert (tmp_path / "room").read_bytes() == bytes(2 * MIB + 5)
    files.error = errno.ENOSPC
    file = NewFile(files, tmp_path / "more")
    with pytest.raises(OSError) as wrong:
        file.reserve(MIB)
    assert wrong.value.errno == errno.ENOSPC
    file.abort()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["room"]
