"""Large groups of a log go past the page cache: which ones, what stands in the file then, and what happens when the disk refuses."""

from __future__ import annotations

import errno
import mmap
import os
import random
import threading
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from fakes.disks import need_direct_writes
from fakes.faulty_files import FaultyFiles
from fakes.in_process import Library
from oracle.log_oracle import header, payloads
from topicsd._native import frame, log_walk
from topicsd._native.direct_io import DirectChoice
from topicsd._native.log import Shard

CEILING, MARK = 8, 0x81
PAGE, LEAST, PIECE, MIB = 4096, 128 << 10, 1 << 20, 1 << 20
LARGE = LEAST + 3000 * 8


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "log" / "shard-00"


@pytest.fixture
def files(tmp_path: Path) -> FaultyFiles:
    return FaultyFiles(tmp_path)


def started(directory: Path, files: FaultyFiles | None = None, **options) -> Shard:
    options = {"first_file_bytes": 8 * MIB, "file_bytes": 8 * MIB, "reserve_bytes": 4096, "direct_always": True} | options
    shard = Shard(directory, 0, files, **options)
    shard.start(log_walk.check(directory))
    return shard


def body_of(seq: int, size: int) -> bytes:
    return random.Random(seq).randbytes(size)


def put(shard: Shard, seq: int, size: int) -> None:
    shard.append(frame.build(CEILING, body_of(seq, size), base_seq=seq))
    shard.flush_group()


def shown(directory: Path) -> list[int]:
    """Return the seqs that the log holds; every body is compared."""
    report, frames = log_walk.read(directory)
    assert (report.damaged, report.torn_bytes) == ([], 0)
    found = payloads(frames)
    assert all(body == body_of(seq, len(body)) for seq, _, body in found)
    return [seq for seq, _, _ in found]


def fillers(directory: Path) -> list[dict[str, int]]:
    return [head for head in map(header, log_walk.read(directory)[1]) if head["type"] == MARK]


def direct_descriptors(files: FaultyFiles) -> list[bytes]:
    """Return the paths of the descriptors that were opened to write past the page cache (the others were opened before the file had its name)."""
    return [path for _, path in files.descriptors.values() if path.endswith(b".log")]


# ---- the choice


def test_only_whole_pages_of_enough_bytes_go_directly() -> None:
    for size, wanted in [(LEAST, True), (LEAST + PAGE, True), (LEAST - PAGE, False), (LEAST + 8, False)]:
        assert DirectChoice().wants(size) is wanted, size
    assert not DirectChoice(False).wants(LEAST)


@pytest.mark.parametrize("direct_is_cheaper", [True, False])
def test_the_dearer_way_is_tried_again_more_and_more_rarely(direct_is_cheaper: bool) -> None:
    choice = DirectChoice()
    choice.took(True, MIB, 100_000 if direct_is_cheaper else 1_000_000)
    choice.took(False, MIB, 1_000_000 if direct_is_cheaper else 100_000)
    answers = [choice.wants(MIB) is direct_is_cheaper for _ in range(64 + 128 + 256)]
    assert [number for number, cheaper in enumerate(answers, 1) if not cheaper] == [64, 64 + 128, 64 + 128 + 256]
    for _ in range(40):
        choice.wants(MIB)
    many = [choice.wants(MIB) is direct_is_cheaper for _ in range(3 * 4096 + 8192)]
    assert many.count(False) >= 3, "it is never tried again"


def test_one_stall_does_not_decide_and_a_lasting_change_does() -> None:
    choice = DirectChoice()
    choice.took(True, MIB, 100_000)
    choice.took(False, MIB, 150_000)
    choice.took(True, MIB, 60_000_000_000)
    assert choice.wants(MIB)
    for _ in range(20):
        choice.took(True, MIB, 1_000_000)
    assert not choice.wants(MIB)
    for _ in range(40):
        choice.took(True, MIB, 100_000)
    assert choice.wants(MIB)


def test_where_others_gather_meanwhile_a_direct_write_may_take_six_times_as_long() -> None:
    choice = DirectChoice()
    choice.took(True, MIB, 599_000)
    choice.took(False, MIB, 100_000)
    assert choice.wants(MIB, crowded=True) and not choice.wants(MIB)
    choice = DirectChoice()
    choice.took(True, MIB, 601_000)
    choice.took(False, MIB, 100_000)
    assert not choice.wants(MIB, crowded=True)
    choice = DirectChoice()
    choice.took(True, MIB, 200_000)
    choice.took(False, MIB, 100_000)
    answers = [choice.wants(MIB, crowded) for _ in range(100) for crowded in (True, False)]
    assert answers.count(True) == 100 + 2, "lone and crowded groups in turn: the dearer way is still tried, after 64 and 128"


def test_who_is_alone_a_moment_after_a_crowd_is_one_of_it() -> None:
    choice = DirectChoice()
    choice.took(True, MIB, 200_000)
    choice.took(False, MIB, 100_000)
    assert not choice.wants(MIB)
    assert choice.wants(MIB, crowded=True)
    assert choice.wants(MIB, after_ns=15_000_000) and not choice.wants(MIB, after_ns=6_000_000)
    assert not choice.wants(MIB)


def test_a_stall_does_not_keep_the_better_way_out_of_use() -> None:
    choice = DirectChoice()
    for _ in range(8):
        choice.took(True, MIB, 100_000)
        choice.took(False, MIB, 100_000)
    for _ in range(8):
        choice.took(True, MIB, 10_000_000)
    assert not choice.wants(MIB, crowded=True)
    row = groups = 0
    while row < 3:
        direct = choice.wants(MIB, crowded=True)
        choice.took(direct, MIB, 100_000)
        row, groups = row + 1 if direct else 0, groups + 1
        assert groups < 500


def test_what_was_never_measured_is_tried_first_and_small_writes_measure_nothing() -> None:
    choice = DirectChoice()
    assert choice.wants(MIB)
    choice.took(False, PAGE, 1)
    choice.took(True, MIB, 100_000)
    assert not choice.wants(MIB), "the buffered way is measured next"
    choice.took(False, MIB, 1_000_000)
    assert choice.wants(MIB)


# ---- what stands in the file


def test_large_and_small_groups_in_any_order_are_read_back_whole(directory: Path) -> None:
    shard, rng = started(directory), random.Random(1)
    for seq in range(1, 61):
        large = rng.random() < 0.5
        put(shard, seq, 8 * rng.randrange(LEAST // 8, 3 * LEAST // 8) if large else 8 * rng.randrange(1, 200))
        assert not large or shard.end_position % PAGE == 0
    shard.sync()
    assert shown(directory) == list(range(1, 61))
    assert all(64 <= mark["length"] < PAGE + 64 and (mark["position"] + mark["length"]) % PAGE == 0 for mark in fillers(directory))
    shard.close()
    again = Shard(directory, 0, first_file_bytes=MIB, file_bytes=MIB)
    again.start(log_walk.check(directory), generation=2)
    put(again, 61, LARGE)
    assert shown(directory) == list(range(1, 62))


def test_the_bytes_that_go_past_the_page_cache_are_counted(directory: Path, tmp_path: Path) -> None:
    need_direct_writes(tmp_path)
    shard = started(directory)
    put(shard, 1, LARGE)
    assert shard.counters()["direct_bytes"] == shard.end_position - PAGE, "what stands in the page of the START is buffered"
    before, direct = shard.end_position, shard.counters()["direct_bytes"]
    put(shard, 2, LARGE)
    assert shard.counters()["direct_bytes"] == direct + shard.end_position - before
    assert shown(directory) == [1, 2]


def test_without_the_setting_nothing_is_filled_and_nothing_goes_directly(directory: Path) -> None:
    shard = started(directory, direct_io=False)
    for seq in range(1, 5):
        put(shard, seq, LARGE)
    assert (shard.counters()["direct_bytes"], fillers(directory), shown(directory)) == (0, [], [1, 2, 3, 4])


def test_a_group_of_as_many_frames_as_a_group_takes_is_filled_too(directory: Path) -> None:
    shard = started(directory)
    put(shard, 1, LARGE)
    for seq in range(2, 10_002):
        shard.append(frame.build(CEILING, body_of(seq, 8), base_seq=seq))
    shard.flush_group()
    assert shown(directory) == list(range(1, 10_002))


@pytest.mark.parametrize("left", [0, 8, 56, 64, 72, 4088, 4096, 4104, 4152, 4160, 8192])
@pytest.mark.parametrize("prepared", [True, False])
def test_whatever_a_large_group_leaves_of_a_file_the_log_goes_on(directory: Path, left: int, prepared: bool) -> None:
    shard = started(directory, first_file_bytes=2 * LEAST, file_bytes=2 * LEAST, reserve_bytes=0)
    if prepared:
        shard.prepare()
    put(shard, 1, 2 * LEAST - shard.end_position - 64 - left)
    put(shard, 2, 8)
    shard.write_mark()
    put(shard, 3, LARGE)
    put(shard, 4, LARGE)
    assert shown(directory) == [1, 2, 3, 4]
    shard.sync()
    shard.write_mark()
    assert shown(directory) == [1, 2, 3, 4]


def test_a_filler_leaves_the_reserve_of_a_full_disk_alone(directory: Path, files: FaultyFiles) -> None:
    shard = started(directory, files, first_file_bytes=2 * LEAST, file_bytes=2 * LEAST, reserve_bytes=8192)
    files.fail("fallocate", error=errno.ENOSPC, forever=True)
    put(shard, 1, 2 * LEAST - shard.end_position - 64 - 8192 - 24)
    assert fillers(directory) == []
    with pytest.raises(OSError):
        shard.append(frame.build(CEILING, bytes(64), base_seq=2))
    shard.append(frame.build(CEILING, body_of(3, 8000), base_seq=3), privileged=True)
    shard.flush_group()
    assert shown(directory) == [1, 3]


def test_a_flood_rotates_and_leaves_no_descriptor_behind(directory: Path, files: FaultyFiles) -> None:
    need_direct_writes(directory.parent.parent)
    shard = started(directory, files, first_file_bytes=MIB, file_bytes=MIB)
    for seq in range(1, 41):
        put(shard, seq, LARGE)
        current = directory / f"{shard.files[-1][0]:020d}.log"
        assert direct_descriptors(files) in ([], [os.fsencode(current)])
        if seq % 5 == 0:
            shard.sync()
    assert shard.counters()["rotations"] > 3
    assert shard.counters()["direct_bytes"] > 0
    shard.close()
    assert files.descriptors == {}
    assert shown(directory) == list(range(1, 41))


def test_a_topic_that_is_read_stays_in_memory(tmp_path: Path) -> None:
    need_direct_writes(tmp_path)
    clock = FakeClock()
    library = Library(str(tmp_path), clock, file_bytes=32 * MIB)
    records = [{"data": "x" * 5000} for _ in range(60)]

    def direct() -> int:
        return int(library.store.shards[0].counters()["direct_bytes"])

    library.put("t")
    clock.advance(60_000)
    library.append("t", records)
    library.append("t", records)
    written = direct()
    assert written > LEAST
    library.diff("t", limit=1)
    for _ in range(6):
        library.append("t", records)
    assert direct() == written
    clock.advance(60_000)
    for _ in range(3):
        library.append("t", records)
    found, _ = library.read_all("t")
    assert [record["$seq"] for record in found] == list(range(1, 661))
    library.close()


# ---- a disk that refuses


def test_a_disk_that_does_not_open_for_direct_writes_is_written_the_other_way(directory: Path, files: FaultyFiles) -> None:
    shard = started(directory, files)
    files.fail("open", error=errno.EINVAL, path=b".log", forever=True)
    for seq in range(1, 5):
        put(shard, seq, LARGE)
    assert (shard.read_only, shard.counters()["direct_bytes"], shown(directory)) == (0, 0, [1, 2, 3, 4])
    shard.close()
    assert files.descriptors == {}


@pytest.mark.parametrize("piece", [1, 2, 3])
def test_a_disk_of_larger_sectors_gets_the_same_bytes_the_other_way(directory: Path, files: FaultyFiles, piece: int) -> None:
    need_direct_writes(directory.parent.parent)
    shard = started(directory, files)
    put(shard, 1, LARGE)
    direct = shard.counters()["direct_bytes"]
    files.fail("pwritev", piece, errno.EINVAL)
    put(shard, 2, 2 * PIECE + LARGE)
    assert (shard.poisoned, direct_descriptors(files)) == (0, [])
    put(shard, 3, LARGE)
    assert (shard.counters()["direct_bytes"], shown(directory)) == (direct, [1, 2, 3])


@pytest.mark.parametrize("short", [0, 100, 512, 70_000])
@pytest.mark.parametrize("piece", [1, 2, 3])
def test_a_failed_direct_write_poisons_and_none_of_its_group_is_shown(directory: Path, files: FaultyFiles, piece: int, short: int) -> None:
    need_direct_writes(directory.parent.parent)
    shard = started(directory, files)
    put(shard, 1, LARGE)
    shard.sync()
    written = shard.written_position
    shard.append(frame.build(CEILING, body_of(2, PIECE), base_seq=2))
    shard.append(frame.build(CEILING, body_of(3, PIECE + LARGE), base_seq=3))
    files.fail("pwritev", piece, errno.EIO, short)
    with pytest.raises(OSError):
        shard.flush_group()
    assert shard.poisoned
    assert (shard.written_position, shard.end_position) == (written, written)
    files.heal()
    with pytest.raises(OSError):
        shard.append(frame.build(CEILING, bytes(8), base_seq=4))
    shard.void(written)
    shard.close()
    assert files.descriptors == {}
    assert shown(directory) == [1]


def test_after_a_full_disk_the_log_goes_on_directly_in_a_new_file(directory: Path, files: FaultyFiles) -> None:
    need_direct_writes(directory.parent.parent)
    shard = started(directory, files, first_file_bytes=4 * MIB, file_bytes=4 * MIB)
    shard.prepare()
    put(shard, 1, LARGE)
    files.fail("pwritev", 2, errno.ENOSPC)
    with pytest.raises(OSError):
        put(shard, 2, PIECE + LARGE)
    files.heal()
    shard.resume_after()
    assert direct_descriptors(files) == []
    for seq in (3, 4, 5):
        put(shard, seq, LARGE)
    shard.sync()
    assert shard.counters()["direct_bytes"] > 0
    assert shown(directory) == [1, 3, 4, 5]
    shard.close()
    assert files.descriptors == {}


# ---- beside a reader


@pytest.mark.parametrize("groups", [300, pytest.param(4000, marks=pytest.mark.slow)])
def test_what_is_written_directly_is_at_once_what_a_map_of_the_file_shows(directory: Path, groups: int) -> None:
    """The reader also touches pages ahead of the writer, so that read-ahead brings in what they held before."""
    need_direct_writes(directory.parent.parent)
    shard = started(directory, first_file_bytes=16 * MIB, file_bytes=16 * MIB)
    ends: list[int] = [shard.written_position]
    failures: list[str] = []
    done = threading.Event()
    seen = 0

    def read() -> None:
        nonlocal seen
        maps: dict[int, mmap.mmap] = {}
        at = 0
        while not failures:
            over = done.is_set()
            while at + 1 < len(ends):
                first, end = ends[at], ends[at + 1]
                begin, size = next((first_position, size) for first_position, size in reversed(shard.files) if first_position < end)
                if begin not in maps:
                    with (directory / f"{begin:020d}.log").open("rb") as file:
                        maps[begin] = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
                first = max(first, begin)
                raw = maps[begin][first - begin : end - begin]
                place = 0
                while place < len(raw):
                    head = header(raw[place : place + 64])
                    if not head["length"] or frame.check(raw[place : place + head["length"]]) != frame.VALID:
                        failures.append(f"{first + place} of {first}..{end}")
                        return
                    place += head["length"]
                    seen += 1
                at += 1
                for ahead in range(end - begin, min(end - begin + MIB, size), PAGE):
                    maps[begin][ahead]
            if over:
                return

    reader = threading.Thread(target=read)
    reader.start()
    sizes = random.Random(5)
    for seq in range(1, groups + 1):
        for _ in range(2):
            shard.append(frame.build(CEILING, bytes([seq % 251 + 1]) * (8 * sizes.randrange(LEAST // 16, LEAST // 8)), base_seq=seq))
        shard.flush_group()
        ends.append(shard.written_position)
        if seq % 50 == 0:
            shard.sync()
        assert not failures, failures
    done.set()
    reader.join(100)
    assert not failures, failures
    assert seen >= 2 * groups
    assert shard.counters()["direct_bytes"] > 0
    shard.close()
