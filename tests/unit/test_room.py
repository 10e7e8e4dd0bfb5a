"""The room that is set aside for sealing, so that a full disk can be freed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.faulty_files import FaultyFiles
from fakes.in_process import Library
from topicsd import room, snapshot
from topicsd._native import frame
from topicsd.engine import frames
from topicsd.room import BYTES_MAX, FILE_BYTES_MIN, GIVEN_BYTES, NoRoomError, Reserve, file_bytes, full_bytes, segment_bytes, wanted_bytes
from topicsd.snapshot import FOLDER, missing_reserve
from topicsd.store import Store

MIB = 1 << 20


def sizes(**changed: Any) -> Any:
    given = {"log_file_bytes": MIB, "segment_max_events": 1, "segment_max_bytes": 1, "segment_max_age_ms": 1, "data_dir": Path("/")}
    return SimpleNamespace(**given | changed)


def test_two_log_files_or_an_eighth_of_the_disk_are_set_aside_and_none_where_nothing_is_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    for disk, wanted in ((8 * MIB, 2 * MIB), (40 * MIB, 5 * MIB), (1 << 40, BYTES_MAX)):
        monkeypatch.setattr(room, "disk_bytes", lambda _path, disk=disk: disk)
        assert wanted_bytes(sizes()) == wanted
        assert wanted_bytes(sizes(segment_max_events=0, segment_max_bytes=0)) == wanted
        assert wanted_bytes(sizes(segment_max_events=0, segment_max_bytes=0, segment_max_age_ms=0)) == 0


def test_log_files_and_segments_are_small_where_the_disk_is(monkeypatch: pytest.MonkeyPatch) -> None:
    as_set = sizes(log_file_bytes=64 * MIB, segment_max_bytes=64 * MIB)
    for disk, file, full in (
        (8, FILE_BYTES_MIN, FILE_BYTES_MIN),
        (160, 5 * MIB, 10 * MIB),
        (2048, 64 * MIB, 64 * MIB),
        (1 << 20, 64 * MIB, 64 * MIB),
    ):
        monkeypatch.setattr(room, "disk_bytes", lambda _path, disk=disk: disk * MIB)
        assert (file_bytes(as_set), segment_bytes(as_set), full_bytes(as_set)) == (file, file, full)
        assert file_bytes(sizes()) == MIB and segment_bytes(sizes(segment_max_bytes=0)) == 0
    monkeypatch.setattr(room, "disk_bytes", lambda _path: 160 * MIB + 4095 * room.FILE_SHARE)
    assert file_bytes(as_set) == 5 * MIB, "whole pages"


def test_a_disk_is_known_before_the_data_directory_is_made(tmp_path: Path) -> None:
    assert room.disk_bytes(tmp_path / "not" / "yet") == room.disk_bytes(tmp_path) > 0


def test_what_is_set_aside_for_a_snapshot_grows_with_what_it_will_hold(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    snapshot.reserve(tmp_path, files, 1000)
    assert missing_reserve(tmp_path) == missing_reserve(tmp_path, 1000) == 0
    short = missing_reserve(tmp_path, 4 * MIB)
    assert 4 * MIB < short < 6 * MIB, "until it is there the log leaves so much alone"
    snapshot.reserve(tmp_path, files, 4 * MIB)
    assert missing_reserve(tmp_path, 4 * MIB) == 0
    reserved = snapshot.reserve_path(tmp_path).stat()
    assert reserved.st_blocks * 512 >= 5 * MIB, "room, not a hole"
    snapshot.reserve(tmp_path, files, 1000)
    assert snapshot.reserve_path(tmp_path).stat().st_size == reserved.st_size


class Tight:
    """A disk with `free` bytes for what is set aside for a snapshot, which is grown by `os.posix_fallocate`, or made by `files`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, files: FaultyFiles, free: int) -> None:
        self.free, self.allocate = free, os.posix_fallocate
        files.fail("fallocate", error=errno.ENOSPC, path=b"/meta/reserve", forever=True)
        monkeypatch.setattr("os.posix_fallocate", self.grow)
        monkeypatch.setattr("topicsd.checkpoint.free_bytes", lambda _path: self.free)
        monkeypatch.setattr("topicsd.store.free_bytes", lambda _path: self.free)

    def grow(self, file: int, offset: int, count: int) -> None:
        if count > self.free:
            raise OSError(errno.ENOSPC, "full")
        self.allocate(file, offset, count)
        self.free -= count


def test_a_disk_that_has_not_room_for_all_of_a_snapshot_has_set_aside_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FaultyFiles(tmp_path)
    snapshot.reserve(tmp_path, files, 0)
    held = snapshot.reserve_path(tmp_path).stat().st_size
    tight = Tight(monkeypatch, files, 5000)
    snapshot.reserve(tmp_path, files, 4 * MIB, tight.free)
    assert snapshot.reserve_path(tmp_path).stat().st_size == held + 4096, "whole pages"
    (tmp_path / FOLDER / "snapshot-00000000000000000007").write_bytes(bytes(4 * MIB))
    assert missing_reserve(tmp_path) == 5 * MIB - held - 4096, "sealing leaves the rest alone"
    tight.free = 1 << 40
    snapshot.reserve(tmp_path, files, 4 * MIB, tight.free)
    assert missing_reserve(tmp_path) == 0 and (1 << 40) - tight.free > 5 * MIB - held


def test_a_snapshot_on_a_full_disk_takes_of_what_is_set_aside_for_it_no_more_than_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FaultyFiles(tmp_path)
    library = Library(str(tmp_path), FakeClock(), files=files)
    library.append("t", [{"data": 1}])
    held = snapshot.reserve_path(tmp_path).stat().st_size
    Tight(monkeypatch, files, 0)
    for taken in range(1, 4):
        files.fail("pwritev", error=errno.ENOSPC, path=b"/meta/snapshot-")
        library.checkpoint()
        assert held - snapshot.reserve_path(tmp_path).stat().st_size <= taken * (128 << 10), "what others take meanwhile is lost for good"
    assert len(library.store.checkpoints.kept) == 2
    library.close()


def test_a_snapshot_has_all_that_is_set_aside_for_it_if_it_needs_that(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    library = Library(str(tmp_path), FakeClock(), files=files)
    library.append("t", [{"data": 1}])
    files.fail("pwritev", error=errno.ENOSPC, path=b"/meta/snapshot-", forever=True)
    with pytest.raises(OSError, match="No space"):
        library.checkpoint()
    assert not snapshot.reserve_path(tmp_path).exists()
    library.close()


def test_a_snapshot_that_finds_no_other_room_has_some_of_what_is_there_for_sealing(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    library = Library(str(tmp_path), FakeClock(), files=files, seal_reserve_bytes=2 * MIB)
    library.append("t", [{"data": 1}])
    snapshot.reserve_path(tmp_path).unlink()
    files.fail("pwritev", error=errno.ENOSPC, path=b"/meta/snapshot-")
    library.checkpoint()
    assert len(library.store.checkpoints.kept) == 1, "sealing frees nothing without a snapshot"
    assert 0 < library.store.reserve.missing() <= 128 << 10
    library.close()


def test_it_takes_what_is_free_until_it_has_all_and_gives_it_back_piece_by_piece(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    one = Reserve(tmp_path, 2 * GIVEN_BYTES + 4096)
    assert not one.give() and one.missing() == one.wanted
    assert one.fill(0) == one.fill(-4096) == one.wanted, "nothing is free"
    assert one.fill(4096) == 2 * GIVEN_BYTES
    assert one.path.stat().st_blocks * 512 >= 4096, "room, not a hole"
    assert one.fill(1 << 40) == 0 and one.held() == one.wanted
    assert [one.give() for _ in range(4)] == [True, True, True, False]
    assert one.missing() == one.wanted
    assert Reserve(tmp_path, 0).missing() == 0


def test_a_disk_without_the_folder_or_without_room_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Reserve(tmp_path, MIB)
    assert one.fill(1 << 40) == MIB
    (tmp_path / FOLDER).mkdir()

    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("os.posix_fallocate", full)
    assert one.fill(1 << 40) == MIB


def test_a_start_sets_room_aside_for_the_next_snapshot_and_for_sealing_before_anything_is_acked(tmp_path: Path) -> None:
    library = Library(str(tmp_path), FakeClock(), seal_reserve_bytes=2 * MIB)
    sizes = {path.name: path.stat().st_blocks * 512 for path in (tmp_path / FOLDER).iterdir()}
    assert set(sizes) == {"reserve", "reserve-seal"}
    assert sizes["reserve"] >= MIB and sizes["reserve-seal"] >= 2 * MIB, "room, no holes"
    assert library.store.shards[0].keep_free == 0
    library.close()


def test_the_log_leaves_alone_what_a_start_could_not_set_aside_and_the_next_start_takes_it(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    files.fail("fallocate", error=errno.ENOSPC, path=b"/meta/", forever=True)
    library = Library(str(tmp_path), FakeClock(), files=files)
    shard = library.store.shards[0]
    assert not (tmp_path / FOLDER / "reserve").exists() and shard.keep_free == missing_reserve(tmp_path) >= MIB
    files.free = shard.keep_free + MIB // 4 - 1
    with pytest.raises(OSError, match="No space"):
        shard.prepare()
    files.heal()
    files.free = -1
    library.kill()
    assert (tmp_path / FOLDER / "reserve").stat().st_size >= MIB and library.store.shards[0].keep_free == 0
    library.close()


def test_a_start_on_a_full_disk_takes_its_log_file_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, clock = FaultyFiles(tmp_path), FakeClock()
    options = {"file_bytes": MIB, "seal_reserve_bytes": 2 * MIB}
    library = Library(str(tmp_path), clock, files=files, **options)
    library.append("t", [{"data": 1}])
    (tmp_path / FOLDER).mkdir(exist_ok=True)
    library.store.reserve.fill(1 << 40)
    free = files.used()

    class Disk:
        """The limit of `files` counts its own files alone: what the reserve has given back is free as well."""

        def __le__(self, used: int) -> bool:
            return used >= free + library.store.reserve.missing()

        def __lt__(self, used: int) -> bool:
            return used > free + library.store.reserve.missing()

    files.space = Disk()  # type: ignore[assignment]
    monkeypatch.setattr("topicsd.store.free_bytes", lambda _path: 0)
    library.kill()
    assert 0 < library.store.reserve.missing() <= 3 * GIVEN_BYTES
    assert [each["$seq"] for each in library.diff("t")["records"]] == [1]
    library.close()


def test_the_log_makes_no_file_of_what_is_to_be_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topicsd.store.free_bytes", lambda _path: 0)
    library = Library(str(tmp_path), FakeClock(), seal_reserve_bytes=1 << 60)
    library.store.heal()
    shard = library.store.shards[0]
    assert shard.keep_free == 1 << 60
    library.append("t", [{"data": "x" * 500_000}])
    with pytest.raises(Exception, match="storage_read_only"):
        for _ in range(5):
            library.append("t", [{"data": "x" * 500_000}])
    assert shard.read_only == errno.ENOSPC and not shard.poisoned
    library.store.reserve.wanted = 0
    library.store.heal()
    shard.prepare()
    library.append("t", [{"data": "x" * 500_000}])
    library.close()


def test_what_frees_something_has_room_of_what_was_set_aside_when_the_log_has_none(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    library = Library(str(tmp_path), FakeClock(), files=files, file_bytes=MIB, seal_reserve_bytes=2 * MIB)
    for n in range(3):
        library.append("t", [{"data": n}])
    library.store.reserve.fill(1 << 40)
    shard = library.store.shards[0]
    files.fail("fallocate", error=errno.ENOSPC, path=b"/log/", forever=True)
    with pytest.raises(OSError, match="No space"):
        while True:
            shard.append(frame.build(frames.CEILING, bytes(4096)), privileged=True)
            shard.flush_group()
    assert shard.starved
    files.heal()
    held = library.store.reserve.held()
    library.store.heal()
    assert library.store.reserve.held() == held - GIVEN_BYTES and not shard.starved
    assert library.delete("t", before_seq=3)["deleted"] == 2
    library.store.heal()
    assert library.store.reserve.held() == held - GIVEN_BYTES
    library.close()


@pytest.mark.parametrize("inodes", [False, True])
def test_a_start_gives_all_that_was_set_aside_for_its_log_file_then_says_that_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inodes: bool
) -> None:
    files, clock, dropped = FaultyFiles(tmp_path), FakeClock(), list[int]()
    monkeypatch.setattr("topicsd.store.has_inodes", lambda _path: inodes)
    library = Library(str(tmp_path), clock, files=files, seal_reserve_bytes=2 * MIB)
    library.append("t", [{"data": 1}])
    monkeypatch.setattr("topicsd.room.Reserve.give", lambda self: bool(dropped.append(self.held())) or len(dropped) < 3)
    files.fail("open", error=errno.ENOSPC, path=b".preparing", forever=True)
    with pytest.raises(NoRoomError, match="has no room for a log file"):
        library.kill()
    assert not list((tmp_path / FOLDER).glob("reserve*"))
    assert bool(dropped) == inodes, "bytes do not help where no file can be made"
    files.heal()
    again = Library(str(tmp_path), clock, files=files, seal_reserve_bytes=2 * MIB)
    assert [each["$seq"] for each in again.diff("t")["records"]] == [1]
    assert len(list((tmp_path / FOLDER).glob("reserve*"))) == 2
    again.close()


def test_a_start_on_the_last_bytes_of_a_disk_takes_a_file_of_a_few_pages(tmp_path: Path) -> None:
    files, clock = FaultyFiles(tmp_path), FakeClock()
    library = Library(str(tmp_path), clock, files=files)
    library.append("t", [{"data": 1}])
    (tmp_path / FOLDER / "reserve").unlink()
    files.space = files.used() + (20 << 10)
    library.kill()
    shard = library.store.shards[0]
    assert shard.files[-1][1] == 16 << 10
    assert [each["$seq"] for each in library.diff("t")["records"]] == [1]
    assert library.delete("t", before_seq=2)["deleted"] == 1
    with pytest.raises(Exception, match="storage_read_only"):
        library.append("t", [{"data": 2}])
    files.heal()
    shard.prepare()
    library.append("t", [{"data": 2}])
    library.close()


def test_a_snapshot_on_a_disk_without_inodes_has_that_of_what_sealing_cannot_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FaultyFiles(tmp_path)
    library = Library(str(tmp_path), FakeClock(), files=files, seal_reserve_bytes=2 * MIB)
    library.append("t", [{"data": 1}])
    for inodes, held in ((True, 2 * MIB), (False, 0)):
        monkeypatch.setattr("topicsd.checkpoint.has_inodes", lambda _path, inodes=inodes: inodes)
        if not inodes:
            snapshot.reserve_path(tmp_path).unlink()
        files.fail("open", error=errno.ENOSPC, path=b"/meta/snapshot-")
        library.checkpoint()
        assert library.store.reserve.held() == held
    assert len(library.store.checkpoints.kept) == 2
    library.close()


@pytest.mark.parametrize("ends", [False, True])
def test_a_start_that_finds_no_room_for_all_that_it_must_note_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    files, clock, waited, opens = FaultyFiles(tmp_path), FakeClock(), list[str](), Store.open
    library = Library(str(tmp_path), clock, files=files)
    for n in range(400):
        library.append(f"t{n}", [{"data": n}])
    library.sequencer.sync()

    def wait(why: NoRoomError) -> bool:
        waited.append(str(why))
        if len(waited) == 5:
            files.heal()
        return not ends

    def opening(store: Store) -> None:
        store.wait_for_room = wait
        opens(store)

    monkeypatch.setattr(Store, "open", opening)
    (tmp_path / FOLDER / "reserve").unlink()
    files.space = files.used() + (20 << 10)  # a log file of a few pages; each topic jumps, which is a frame
    if ends:
        with pytest.raises(NoRoomError, match="has no room"):
            library.reboot()
        return
    library.reboot()
    assert len(waited) == 5, "and is not begun anew"
    assert min(library.append(f"t{n}", [{"data": "on"}])["first_seq"] for n in range(400)) > 2
    before = [library.read_all(f"t{n}") for n in (0, 200, 399)]
    assert all(len(tombstones) == 1 for _records, tombstones in before)
    library.kill()
    assert [library.read_all(f"t{n}") for n in (0, 200, 399)] == before
    library.close()
