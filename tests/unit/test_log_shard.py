"""The append side of a log: groups, rotation, the reserve, failures, the two loops."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.faulty_files import FaultyFiles
from oracle.log_oracle import header, payloads
from topicsd._native import frame, log_walk
from topicsd._native.log import Shard

CEILING, START, MARK = 8, 1, 0x81


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "log" / "shard-00"


@pytest.fixture
def files(tmp_path: Path) -> FaultyFiles:
    return FaultyFiles(tmp_path)


def started(directory: Path, files: FaultyFiles | None = None, **options) -> Shard:
    options = {"first_file_bytes": 16384, "file_bytes": 16384, "reserve_bytes": 4096} | options
    shard = Shard(directory, 0, files, **options)
    shard.start(log_walk.check(directory))
    return shard


def entry(seq: int, size: int = 1000) -> bytes:
    return frame.build(CEILING, bytes([seq % 256]) * size, base_seq=seq)


def shown(directory: Path) -> list[int]:
    return [seq for seq, _, _ in payloads(log_walk.read(directory)[1])]


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for another thread; the time is only how long a bug may take to fail the test."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_group_is_one_write_and_counts_when_it_is_flushed(directory: Path, files: FaultyFiles) -> None:
    shard = started(directory, files)
    before = len(files.calls)
    for seq in range(1, 6):
        shard.append(entry(seq))
    assert (len(files.calls), shown(directory)) == (before, [])
    written = shard.written_position
    shard.flush_group()
    assert [call[0] for call in files.calls[before:]] == ["pwritev"]
    assert shard.written_position == shard.end_position == written + 5 * 1064
    assert shown(directory) == [1, 2, 3, 4, 5]


def test_a_group_longer_than_one_system_call_takes_is_written_whole(directory: Path) -> None:
    shard = started(directory, first_file_bytes=1 << 20, file_bytes=1 << 20)
    for seq in range(1, 2501):
        shard.append(entry(seq, 8))
    shard.flush_group()
    assert shown(directory) == list(range(1, 2501))
    assert shard.counters()["batches"] == 2  # the START, and this one


def test_a_full_file_is_followed_by_one_whose_start_says_where_the_data_ended(directory: Path) -> None:
    shard = started(directory)
    for seq in range(1, 41):
        shard.append(entry(seq))
        shard.flush_group()
    report, frames = log_walk.read(directory)
    assert shown(directory) == list(range(1, 41))
    assert report.damaged == [] and report.torn_bytes == 0
    assert [first for first, _ in shard.files] == [0, 16384, 32768]
    starts = [raw for raw in frames if header(raw)["type"] == START]
    assert [int.from_bytes(raw[64:72], "little") for raw in starts] == [0, 128 + 15 * 1064, 16384 + 128 + 15 * 1064]


def test_a_frame_larger_than_a_file_gets_a_file_of_its_own_size(directory: Path) -> None:
    shard = started(directory)
    shard.prepare()
    shard.append(entry(1))
    shard.append(entry(2, 50_000))
    shard.append(entry(3))
    shard.flush_group()
    assert shown(directory) == [1, 2, 3]
    assert shard.files == [(0, 16384), (16384, 57344)], "and the reserve behind it"
    assert log_walk.check(directory).damaged == []


def test_a_cancelled_group_was_never_there(directory: Path) -> None:
    shard = started(directory)
    position = shard.append(entry(1))
    shard.cancel_group()
    assert shard.append(entry(2)) == position
    shard.flush_group()
    assert shown(directory) == [2]


def test_a_cancelled_group_that_began_a_file_leaves_its_start(directory: Path) -> None:
    shard = started(directory)
    for seq in range(1, 16):
        shard.append(entry(seq))
    shard.flush_group()
    assert shard.append(entry(16)) > 16384
    shard.cancel_group()
    shard.append(entry(17))
    shard.flush_group()
    report, _ = log_walk.read(directory)
    assert shown(directory) == [*range(1, 16), 17]
    assert report.damaged == []


def test_a_restart_goes_on_in_a_new_file_and_never_touches_the_old_ones(directory: Path) -> None:
    shard = started(directory)
    shard.append(entry(1))
    shard.flush_group()
    shard.close()
    old = next(directory.iterdir())
    before = old.read_bytes()
    again = started(directory)
    again.append(entry(2))
    again.flush_group()
    assert old.read_bytes() == before
    assert again.files == [(0, 16384), (16384, 16384)]
    assert shown(directory) == [1, 2]


def test_a_restart_uses_the_file_that_was_prepared(directory: Path) -> None:
    shard = started(directory)
    shard.prepare()
    shard.close()
    again = started(directory)
    assert again.files == [(0, 16384), (16384, 16384)]
    assert len(list(directory.iterdir())) == 2


def test_a_restart_removes_unfinished_files(directory: Path) -> None:
    started(directory).close()
    (directory / "00000000000000016384.preparing").write_bytes(b"half")
    started(directory)
    assert [path.suffix for path in directory.iterdir()] == [".log", ".log"]


def test_a_restart_makes_void_what_was_torn(directory: Path) -> None:
    shard = started(directory)
    for seq in (1, 2, 3):
        shard.append(entry(seq))
    shard.flush_group()
    shard.close()
    path = directory / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[128 + 1064 + 100] ^= 1
    path.write_bytes(content)
    assert shown(directory) == [1]
    again = started(directory)
    again.append(entry(4))
    again.flush_group()
    assert shown(directory) == [1, 4]
    assert log_walk.check(directory).damaged == []


def test_a_restart_leaves_torn_bytes_of_every_file_as_they_are(directory: Path) -> None:
    """Void is not erased: an operator may want to look at what a power cut tore, in later files too."""
    shard = started(directory)
    for seq in range(1, 21):
        shard.append(entry(seq))
    shard.flush_group()
    shard.close()
    path = directory / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[128 + 1064 + 100] ^= 1
    path.write_bytes(content)
    before = {old: old.read_bytes() for old in directory.iterdir()}
    assert len(before) == 2
    started(directory)
    assert {old: old.read_bytes() for old in before} == before
    assert shown(directory) == [1]


def test_an_idle_log_gets_one_mark_so_that_its_last_frame_is_known_to_be_synced(directory: Path) -> None:
    shard = started(directory)
    shard.append(entry(1))
    shard.flush_group()
    assert not shard.write_mark()
    shard.sync()
    assert shard.write_mark()
    shard.sync()
    assert not shard.write_mark()
    frames = log_walk.read(directory)[1]
    assert header(frames[-1])["type"] == MARK
    assert header(frames[-1])["synced"] == 128 + 1064


def test_synced_moves_only_by_a_sync(directory: Path) -> None:
    shard = started(directory)
    synced = shard.synced_position
    shard.append(entry(1))
    shard.flush_group()
    assert shard.synced_position == synced
    shard.sync()
    assert shard.synced_position == shard.written_position == synced + 1064


def test_one_sync_covers_all_files_since_the_last_one(directory: Path, files: FaultyFiles) -> None:
    shard = started(directory, files)
    for seq in range(1, 40):
        shard.append(entry(seq))
        shard.flush_group()
    before = len(files.calls)
    shard.sync()
    assert [call[0] for call in files.calls[before:]].count("sync") == 3
    assert shard.synced_position == shard.written_position


@pytest.mark.parametrize("short", [0, 8, 500])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failed_write_makes_the_shard_read_only_and_nothing_of_the_group_counts(
    directory: Path, files: FaultyFiles, error: int, short: int
) -> None:
    shard = started(directory, files)
    shard.append(entry(1))
    shard.flush_group()
    written = shard.written_position
    shard.append(entry(2))
    shard.append(entry(3))
    files.fail("pwritev", 1, error, short)
    with pytest.raises(OSError) as caught:
        shard.flush_group()
    assert caught.value.errno == shard.read_only == (errno.EIO if short else error)
    assert shard.written_position == shard.end_position == written
    with pytest.raises(OSError):
        shard.append(entry(4))
    assert shown(directory)[0] == 1


def test_a_failed_sync_makes_the_shard_read_only_and_is_not_tried_again(directory: Path, files: FaultyFiles) -> None:
    shard = started(directory, files)
    synced = shard.synced_position
    shard.append(entry(1))
    shard.flush_group()
    files.fail("fdatasync")
    with pytest.raises(OSError):
        shard.sync()
    with pytest.raises(OSError):
        shard.sync()
    assert (shard.synced_position, shard.read_only) == (synced, errno.EIO)


def test_frames_that_were_written_but_never_published_are_void_after_a_restart(directory: Path, files: FaultyFiles) -> None:
    """The sync of frame 2 fails: it is answered with an error and must not come back; frame 1 was acked and is copied."""
    shard = started(directory, files)
    shard.append(entry(1))
    shard.flush_group()
    acked = shard.written_position
    shard.append(entry(2))
    shard.flush_group()
    files.fail("fdatasync")
    with pytest.raises(OSError):
        shard.sync()
    first = [raw for raw in log_walk.read(directory)[1] if header(raw)["base_seq"] == 1]
    shard.void(shard.synced_position, first)
    assert acked < shard.written_position
    assert shown(directory) == [1]
    shard.void(shard.synced_position)  # twice is the same as once
    assert shown(directory) == [1]
    shard.close()
    again = started(directory)
    again.append(entry(3))
    again.flush_group()
    assert shown(directory) == [1, 3]
    assert log_walk.check(directory).damaged == []


def test_eio_cannot_be_resumed(directory: Path, files: FaultyFiles) -> None:
    shard = started(directory, files)
    shard.append(entry(1))
    files.fail("pwritev")
    with pytest.raises(OSError):
        shard.flush_group()
    with pytest.raises(OSError) as caught:
        shard.resume_after()
    assert caught.value.errno == errno.EROFS


@pytest.mark.parametrize("void_first", [False, True])
def test_a_write_that_found_no_room_is_resumed_in_a_new_file_and_its_seqs_are_used_again(
    directory: Path, files: FaultyFiles, void_first: bool
) -> None:
    shard = started(directory, files)
    shard.append(entry(1))
    shard.flush_group()
    shard.append(entry(2))
    shard.append(entry(3))
    files.fail("pwritev", 1, errno.ENOSPC)
    with pytest.raises(OSError):
        shard.flush_group()
    kept = [raw for raw in log_walk.read(directory)[1] if header(raw)["base_seq"] == 1]
    if void_first:
        shard.void(shard.synced_position, kept)
    shard.resume_after()
    assert shard.read_only == 0
    assert shard.synced_position == shard.written_position
    shard.append(entry(2, 500))
    shard.flush_group()
    for seq in range(3, 30):
        shard.append(entry(seq))
        shard.flush_group()
    assert shown(directory) == [1, 2, *range(3, 30)]
    assert log_walk.check(directory).damaged == []
    shard.close()
    started(directory)
    assert shown(directory) == [1, 2, *range(3, 30)]


def test_on_a_full_disk_only_privileged_frames_go_into_the_reserve_and_space_cures_it(directory: Path, files: FaultyFiles) -> None:
    shard = started(directory, files)
    files.space = files.used()
    seq = 0
    with pytest.raises(OSError) as caught:
        for seq in range(1, 100):
            shard.append(entry(seq))
            shard.flush_group()
    assert caught.value.errno == shard.read_only == errno.ENOSPC
    assert shard.poisoned == 0
    assert 16384 - shard.written_position >= 4096
    shard.append(entry(100), privileged=True)
    shard.flush_group()
    with pytest.raises(OSError):
        shard.append(entry(101))
    files.heal()
    shard.prepare()
    assert shard.read_only == 0
    shard.append(entry(101))
    shard.flush_group()
    assert shown(directory) == [*range(1, seq), 100, 101]


def test_a_full_disk_goes_on_in_smaller_files_while_they_take_more_than_the_reserve_and_leave_what_is_kept_free(
    directory: Path, files: FaultyFiles
) -> None:
    shard = started(directory, files, first_file_bytes=4 << 20, file_bytes=16 << 20, reserve_bytes=1 << 20)
    files.space = files.used() + (5 << 20)
    seq = 0
    with pytest.raises(OSError) as caught:
        for seq in range(1, 200):
            shard.append(entry(seq, 60_000))
            shard.flush_group()
    assert caught.value.errno == shard.read_only == errno.ENOSPC and not shard.poisoned
    assert shard.files == [(0, 4 << 20), (4 << 20, 4 << 20)], "and none of the mebibyte that is left: all of it would be reserve"
    shard.append(entry(200), privileged=True)
    shard.flush_group()
    files.space, files.free, shard.keep_free = None, 5 << 20, 4 << 20
    with pytest.raises(OSError):
        shard.prepare()
    files.free = 6 << 20
    shard.prepare()
    assert shard.read_only == 0
    while len(shard.files) == 2:
        seq += 1
        shard.append(entry(seq, 60_000))
        shard.flush_group()
    assert shard.files[2] == (8 << 20, 2 << 20)
    files.free = -1
    shard.prepare()
    shard.append(entry(seq, 3 << 20))
    shard.flush_group()
    assert log_walk.check(directory).damaged == [] and shard.files[-1][1] == 16 << 20, "a disk with room takes whole ones again"


def test_a_restart_on_a_full_disk_takes_a_smaller_file_and_privileged_frames(directory: Path, files: FaultyFiles) -> None:
    sizes = {"first_file_bytes": 4 << 20, "file_bytes": 4 << 20, "reserve_bytes": 1 << 20}
    shard = started(directory, files, **sizes)
    shard.append(entry(1))
    shard.flush_group()
    shard.close()
    files.space = files.used() + (600 << 10)
    again = started(directory, files, **sizes)
    assert again.files == [(0, 4 << 20), (4 << 20, 512 << 10)]
    with pytest.raises(OSError) as caught:
        again.append(entry(2))
    assert caught.value.errno == errno.ENOSPC
    again.append(entry(3), privileged=True)
    again.flush_group()
    assert shown(directory) == [1, 3]


def test_privileged_frames_are_refused_when_the_reserve_is_used_up(directory: Path, files: FaultyFiles) -> None:
    shard = started(directory, files)
    files.space = files.used()
    with pytest.raises(OSError) as caught:
        for seq in range(1, 100):
            shard.append(entry(seq), privileged=True)
            shard.flush_group()
    assert caught.value.errno == errno.ENOSPC
    assert 16384 - shard.written_position < 1064
    assert not shard.write_mark()


MIB = 1 << 20


def test_on_a_full_disk_no_frame_goes_into_a_file_that_is_smaller_than_it(directory: Path, files: FaultyFiles) -> None:
    shard = started(directory, files, first_file_bytes=4 * MIB, file_bytes=4 * MIB, reserve_bytes=MIB)
    shard.append(entry(1, 5 * MIB // 2))
    shard.flush_group()
    files.space = files.used() + 9 * MIB // 4
    with pytest.raises(OSError) as caught:
        shard.append(entry(2, 5 * MIB // 2))
    assert caught.value.errno == errno.ENOSPC and not shard.poisoned
    shard.append(entry(3, MIB), privileged=True)  # of what is left of the first file
    shard.append(entry(4, MIB // 2))
    shard.flush_group()
    assert shard.files == [(0, 4 * MIB), (4 * MIB, 2 * MIB)]
    assert shown(directory) == [1, 3, 4] and log_walk.check(directory).damaged == []


@pytest.mark.parametrize("size", [4 * MIB - 1000, 6 * MIB])
def test_a_reserve_is_left_behind_the_largest_frame(directory: Path, files: FaultyFiles, size: int) -> None:
    shard = started(directory, files, first_file_bytes=4 * MIB, file_bytes=4 * MIB, reserve_bytes=MIB)
    shard.append(entry(0))
    shard.append(entry(1, size))
    shard.flush_group()
    assert len(shard.files) == 2
    files.space = files.used()
    with pytest.raises(OSError):
        for seq in range(2, 100):
            shard.append(entry(seq, 100_000))
            shard.flush_group()
    for seq in range(100, 110):
        shard.append(entry(seq, 100_000), privileged=True)
        shard.flush_group()
    assert log_walk.check(directory).damaged == [] and shown(directory)[-10:] == list(range(100, 110))


def one_kept_one_failed(shard: Shard, files: FaultyFiles) -> None:
    shard.append(entry(1))
    shard.flush_group()
    shard.append(entry(2))
    files.fail("pwritev", 1, errno.ENOSPC)
    with pytest.raises(OSError):
        shard.flush_group()


@pytest.mark.parametrize("prepared", [False, True])
def test_a_reserve_is_left_behind_what_is_kept_after_a_failed_write(directory: Path, files: FaultyFiles, prepared: bool) -> None:
    shard = started(directory, files)
    if prepared:
        shard.prepare()
    one_kept_one_failed(shard, files)
    shard.void(shard.synced_position, [raw for raw in log_walk.read(directory)[1] if header(raw)["base_seq"] == 1])
    shard.resume_after()
    files.space = files.used()
    with pytest.raises(OSError):
        for seq in range(2, 100):
            shard.append(entry(seq, 100))
            shard.flush_group()
    shard.append(entry(100, 3900), privileged=True)
    shard.flush_group()
    assert shown(directory)[-1] == 100 and log_walk.check(directory).damaged == []


def test_what_is_kept_after_a_failed_write_goes_into_what_room_there_is(directory: Path, files: FaultyFiles) -> None:
    shard = started(directory, files)
    one_kept_one_failed(shard, files)
    files.space = files.used() + 4096
    shard.void(shard.synced_position, [raw for raw in log_walk.read(directory)[1] if header(raw)["base_seq"] == 1])
    shard.resume_after()
    assert shown(directory) == [1] and shard.files[-1] == (16384, 4096)


def test_what_frees_something_takes_a_small_file_of_what_is_kept_free_when_the_reserve_is_used_up(directory: Path, files: FaultyFiles) -> None:
    shard = started(directory, files, first_file_bytes=MIB, file_bytes=MIB, reserve_bytes=MIB // 4)
    files.free = shard.keep_free = 8 * MIB
    with pytest.raises(OSError):
        for seq in range(1, 100):
            shard.append(entry(seq, 50_000))
            shard.flush_group()
    assert len(shard.files) == 1 and not shard.starved
    for seq in range(100, 120):
        shard.append(entry(seq, 20_000), privileged=True)
        shard.flush_group()
    assert shard.files == [(0, MIB), (MIB, MIB // 4)] and not shard.starved
    with pytest.raises(OSError):
        shard.append(entry(120))  # all of it is reserve
    assert shard.read_only == errno.ENOSPC
    files.space = files.used()
    with pytest.raises(OSError):
        shard.append(entry(121, 500_000), privileged=True)
    assert shard.starved and not shard.poisoned
    files.space = None
    with pytest.raises(OSError):
        shard.append(entry(121, 500_000), privileged=True)  # a moment later
    shard.starved = False
    shard.append(entry(121, 500_000), privileged=True)
    shard.flush_group()
    files.free = 16 * MIB
    shard.prepare()
    assert shard.read_only == 0 and not shard.starved
    assert shown(directory)[-1] == 121 and log_walk.check(directory).damaged == []


@pytest.mark.parametrize("kind", ["open", "fallocate", "pwritev", "fsync", "rename", "sync_directory"])
def test_a_next_file_that_cannot_be_made_leaves_no_unfinished_one_and_the_next_try_works(directory: Path, files: FaultyFiles, kind: str) -> None:
    shard = started(directory, files)
    files.fail(kind, 1, errno.ENOSPC)
    with pytest.raises(OSError):
        shard.prepare()
    assert not [path for path in directory.iterdir() if path.suffix == ".preparing"]
    assert not shard.next_is_ready
    shard.prepare()
    assert shard.next_is_ready
    for seq in range(1, 30):
        shard.append(entry(seq))
        shard.flush_group()
    assert shown(directory) == list(range(1, 30))


def test_the_first_file_is_not_filled_ahead_but_the_next_one_is(directory: Path, files: FaultyFiles) -> None:
    shard = started(directory, files, first_file_bytes=4 << 20, file_bytes=4 << 20)
    filled = sum(len(call[3]) for call in files.calls if call[0] == "pwritev")
    assert filled <= (1 << 20) + 128
    before = len(files.calls)
    shard.prepare()
    assert sum(len(call[3]) for call in files.calls[before:] if call[0] == "pwritev") == 4 << 20
    assert (directory / f"{4 << 20:020d}.log").stat().st_size == 4 << 20


def test_the_syncer_syncs_by_itself_and_at_once_when_asked(directory: Path) -> None:
    shard = started(directory, group_commit_ms=60_000)
    thread = threading.Thread(target=shard.run_sync_loop)
    thread.start()
    shard.append(entry(1))
    shard.flush_group()
    wait_until(lambda: shard.synced_position == shard.written_position)  # the first dirty moment after idleness hardly waits
    shard.append(entry(2))
    shard.flush_group()
    assert shard.synced_position < shard.written_position
    shard.want_sync()
    wait_until(lambda: shard.synced_position == shard.written_position)
    shard.stop_loops()
    thread.join(10)
    assert not thread.is_alive()


def test_a_syncer_under_load_misses_no_wake(directory: Path) -> None:
    shard = started(directory, group_commit_ms=0.5)
    threads = [threading.Thread(target=loop) for loop in (shard.run_sync_loop, shard.run_prepare_loop)]
    for thread in threads:
        thread.start()
    for seq in range(1, 301):
        shard.append(entry(seq))
        shard.flush_group()
        if seq % 3 == 0:
            shard.want_sync()
            wait_until(lambda: shard.synced_position == shard.written_position)
    shard.stop_loops()
    for thread in threads:
        thread.join(10)
    assert shown(directory) == list(range(1, 301))
    counters = shard.counters()
    assert counters["fsyncs"] == counters["fsync_us_count"] == sum(counters["fsync_bucket"])
    assert counters["frames"] == 301 + counters["rotations"]


def test_the_preparer_tries_again_until_there_is_room(directory: Path, files: FaultyFiles) -> None:
    shard = started(directory, files)
    files.space = files.used()
    thread = threading.Thread(target=shard.run_prepare_loop)
    thread.start()
    with pytest.raises(OSError):
        for seq in range(1, 100):
            shard.append(entry(seq))
            shard.flush_group()
    assert shard.read_only == errno.ENOSPC
    files.heal()
    wait_until(lambda: shard.read_only == 0)
    shard.append(entry(100))
    shard.flush_group()
    shard.stop_loops()
    thread.join(10)
    assert shown(directory)[-1] == 100


def test_sizes_that_are_no_whole_pages_are_refused(directory: Path) -> None:
    with pytest.raises(ValueError, match="whole pages"):
        Shard(directory, file_bytes=5000)


def flooded(directory: Path, files: FaultyFiles | None = None, **options) -> Shard:
    """A shard for which any speed is a flood, that has used up several files."""
    shard = started(directory, files, flood_rate=0, **options)
    for seq in range(1, 61):  # 15 in each file
        shard.append(entry(seq))
        shard.flush_group()
    assert shard.counters()["rotations"] == 3
    return shard


def with_spares(directory: Path, files: FaultyFiles | None = None) -> Shard:
    shard = flooded(directory, files)
    wait_until(lambda: shard.keep_spare() is not None and shard.spares == 3)
    return shard


def spare_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("spare-*.preparing"))


def test_after_a_flood_as_many_files_as_it_used_up_wait_for_the_next_one(directory: Path) -> None:
    """The first file lasted an unknown time: the one behind it is no flood's yet."""
    shard = with_spares(directory)
    assert shard.keep_spare() > 0
    spares = spare_files(directory)
    assert [path.read_bytes() for path in spares] == [bytes(16384)] * 3
    made = {path.stat().st_ino for path in spares}
    for seq in range(61, 121):
        shard.append(entry(seq))
        shard.flush_group()
    assert made < {path.stat().st_ino for path in directory.glob("*.log")}
    assert (shard.spares, spare_files(directory)) == (0, [])
    assert shown(directory) == list(range(1, 121))
    wait_until(lambda: shard.keep_spare() is not None and shard.spares == 4)  # this one used up one more than there were
    assert (shard.keep_spare() > 0, shard.spares) == (True, 4)


def test_no_spare_is_made_while_a_flood_goes_on_or_for_a_log_that_has_none(directory: Path) -> None:
    shard = flooded(directory)
    for turn in range(3):
        for seq in range(300):
            shard.append(entry(seq))
            shard.flush_group()
        assert (shard.keep_spare() > 0, shard.spares) == (True, 0), turn
    calm = started(directory.with_name("shard-01"))
    for seq in range(1, 61):
        calm.append(entry(seq))
        calm.flush_group()
    for _ in range(2):
        assert (calm.keep_spare() > 0, calm.spares) == (True, 0)


def test_a_restart_and_an_end_remove_spares(directory: Path) -> None:
    killed = with_spares(directory)
    assert len(spare_files(directory)) == killed.spares
    shard = started(directory)
    assert spare_files(directory) == []
    shard.close()
    other = directory.with_name("shard-01")
    with_spares(other).close()
    assert spare_files(other) == []


def test_a_full_disk_gives_the_room_of_spares_to_a_file_of_another_size(directory: Path, files: FaultyFiles) -> None:
    shard = with_spares(directory, files)
    files.space = files.used()
    position = shard.append(entry(61, 20_000))  # needs a file of its own size
    shard.flush_group()
    assert (position > 0, shard.read_only, shard.spares) == (True, 0, 1)
    assert shown(directory) == list(range(1, 62))


def test_spares_give_their_room_to_the_next_file_before_the_log_is_full(directory: Path) -> None:
    """What is kept free counts too: a log that is full does not look after its spares."""

    class Disk(FaultyFiles):
        def after(self, kind: str, result: int, *args: object) -> None:
            super().after(kind, result, *args)
            if kind == "unlink" and b"spare-" in args[0]:
                self.free += 16384

    files = Disk(directory.parent.parent)
    shard = with_spares(directory, files)
    shard.keep_free, files.free = 4096, 4096
    shard.append(entry(61, 20_000))  # needs a file of its own size, which is no spare's
    shard.flush_group()
    assert (shard.read_only, shard.spares, shown(directory)) == (0, 1, list(range(1, 62)))


def test_spares_go_when_the_disk_is_nearly_full(directory: Path, files: FaultyFiles) -> None:
    shard = with_spares(directory, files)
    files.free = 8192  # with the spares themselves 57344: a quarter of that is less than one
    wait_until(lambda: shard.keep_spare() is not None and shard.spares == 0)
    assert spare_files(directory) == []
    files.free = -1
    wait_until(lambda: shard.keep_spare() is not None and shard.spares == 3)


def test_spares_are_given_back_ten_minutes_after_the_last_flood(directory: Path) -> None:
    shard = with_spares(directory)
    for _ in range(3):
        assert (shard.keep_spare(later_s=590) > 0, shard.spares) == (True, 3)
    for left in (2, 1, 0):
        assert (shard.keep_spare(later_s=610) > 0, shard.spares) == (True, left)
    assert spare_files(directory) == []


@pytest.mark.parametrize("kind", ["open", "fallocate", "pwritev", "fsync", "blank"])
def test_a_spare_that_cannot_be_made_is_none_and_leaves_nothing(directory: Path, files: FaultyFiles, kind: str) -> None:
    shard = flooded(directory, files)
    files.fail(kind, path=b"spare-", error=errno.ENOSPC, forever=True)
    assert shard.keep_spare() > 0
    assert (shard.spares, spare_files(directory), shard.read_only) == (0, [], 0)
    files.heal()
    wait_until(lambda: shard.keep_spare() is not None and shard.spares == 3)


def test_a_file_system_that_cannot_blank_a_range_has_spares_too(directory: Path, files: FaultyFiles) -> None:
    files.fail("blank", error=errno.EOPNOTSUPP, forever=True)
    assert with_spares(directory, files).spares == 3


@pytest.mark.parametrize("kind", ["rename", "sync_directory"])
def test_a_spare_that_cannot_be_taken_is_not_lost_work(directory: Path, files: FaultyFiles, kind: str) -> None:
    shard = with_spares(directory, files)
    files.fail(kind)
    for seq in range(61, 121):
        try:
            shard.append(entry(seq))
        except OSError:
            shard.prepare()
            shard.append(entry(seq))
        shard.flush_group()
    assert shown(directory) == list(range(1, 121))
