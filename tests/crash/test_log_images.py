"""Power cuts: at every call that changes the disk, with sectors and directory entries kept, lost and torn, nothing promised is missing."""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

import pytest

from fakes.disks import COHERENT, file_system_of
from fakes.faulty_files import FaultyFiles
from oracle.log_oracle import MARK, History, header, payloads
from topicsd._native import frame, log_walk
from topicsd._native.log import Shard

CEILING = 8  # a type whose body nobody looks into


def shard_at(root: Path, files: FaultyFiles, **options: int) -> Shard:
    return Shard(root / "log" / "shard-00", 0, files, first_file_bytes=8192, file_bytes=8192, reserve_bytes=1024, **options)


def walk(root: Path) -> tuple[log_walk.WalkReport, list[bytes]]:
    return log_walk.read(root / "log" / "shard-00")


def work(shard: Shard, files: FaultyFiles, history: History, rng: random.Random, rounds: int) -> None:
    """Append in groups, sync now and then, mark when idle: files fill up and rotate meanwhile."""
    for _ in range(rounds):
        for _ in range(rng.randrange(1, 4)):
            body = rng.randbytes(8 * rng.randrange(1, 120))
            seq = len(history.appended) + 1
            position = shard.append(frame.build(CEILING, body, topic_id=7, base_seq=seq))
            history.appended.append((seq, position, body))
        shard.flush_group()
        draw = rng.random()
        if draw < 0.5:
            shard.sync()
            history.promised.append((len(files.calls), len(history.appended)))
        if draw < 0.2:
            shard.write_mark()
        if draw < 0.3:
            shard.prepare()


def judge_all_images(files: FaultyFiles, history: History, scratch: Path, seeds: range, first: int = 0) -> int:
    images = 0
    for call in range(first, len(files.calls) + 1):
        for seed in seeds:
            target = scratch / "image"
            target.mkdir()
            files.image(call, seed, target)
            report, frames = walk(target)
            history.judge(payloads(frames), call)
            assert report.damaged == [], "a power cut is no damage"
            again, frames_again = walk(target)
            assert (frames_again, again.end, again.torn_bytes, again.next_position) == (frames, report.end, report.torn_bytes, report.next_position)
            shutil.rmtree(target)
            images += 1
    return images


@pytest.mark.parametrize("seed", [1, 2])
def test_every_image_of_a_log_holds_what_was_synced_and_a_prefix_of_the_rest(tmp_path: Path, seed: int) -> None:
    root, scratch = tmp_path / "disk", tmp_path / "scratch"
    root.mkdir(), scratch.mkdir()
    files, history = FaultyFiles(root), History()
    shard = shard_at(root, files)
    shard.start(walk(root)[0])
    work(shard, files, history, random.Random(seed), rounds=12)
    shard.close()
    assert shard.counters()["rotations"] >= 1
    assert judge_all_images(files, history, scratch, range(4)) > 100


@pytest.mark.parametrize("seed", [3, 4])
def test_every_image_of_a_log_that_was_recovered_from_an_image_holds_both_lives(tmp_path: Path, seed: int) -> None:
    """The second life begins on a torn disk; power cuts during its start and its work lose nothing that either life promised."""
    root, second, scratch = tmp_path / "disk", tmp_path / "second", tmp_path / "scratch"
    root.mkdir(), second.mkdir(), scratch.mkdir()
    files, history = FaultyFiles(root), History()
    shard = shard_at(root, files)
    shard.start(walk(root)[0])
    work(shard, files, history, random.Random(seed), rounds=12)
    shard.close()

    cut = len(files.calls) * 3 // 4
    files.image(cut, 2, second)
    report, frames = walk(second)
    survivors = payloads(frames)
    history.judge(survivors, cut)
    disk, life = FaultyFiles(second), History(appended=list(survivors), promised=[(0, history.promised_at(cut))])
    # Everything the cut left is on the disk for certain: the fake must know it as found, not made.
    for path in sorted((second / "log" / "shard-00").iterdir()):
        disk.inodes += 1
        disk.paths[bytes(path)] = disk.inodes
        disk.sizes[disk.inodes] = path.stat().st_size
        disk.calls.append(("found", bytes(path), disk.inodes, path.read_bytes()))
    for folder in (second, second / "log", second / "log" / "shard-00"):
        disk.calls.append(("mkdir", bytes(folder)))
        disk.calls.append(("sync_directory", bytes(folder.parent)))
    first = len(disk.calls)
    restarted = shard_at(second, disk)
    restarted.start(report, generation=2)
    work(restarted, disk, life, random.Random(seed + 100), rounds=8)
    restarted.close()
    judge_all_images(disk, life, scratch, range(3), first)


@pytest.mark.parametrize("seed", [5, 6])
def test_every_image_of_a_log_with_large_groups_that_end_on_a_page(tmp_path: Path, seed: int) -> None:
    """Large groups go past the page cache in pieces, with small ones between them; a cut may fall between two pieces of one group."""
    root, scratch = tmp_path / "disk", tmp_path / "scratch"
    root.mkdir(), scratch.mkdir()
    files, history, rng = FaultyFiles(root), History(), random.Random(seed)
    shard = Shard(root / "log" / "shard-00", 0, files, first_file_bytes=2 << 20, file_bytes=2 << 20, reserve_bytes=1024)
    shard.start(walk(root)[0])
    first = len(files.calls)
    for size in [140_000, 150_000, 900, 140_000, 1_200_000, 160_000, 3000, 200_000, 131_072]:
        body = rng.randbytes(size // 8 * 8)
        position = shard.append(frame.build(CEILING, body, topic_id=7, base_seq=len(history.appended) + 1))
        history.appended.append((len(history.appended) + 1, position, body))
        shard.flush_group()
        if rng.random() < 0.4:
            shard.sync()
            history.promised.append((len(files.calls), len(history.appended)))
        if rng.random() < 0.3:
            shard.write_mark()
    shard.close()
    if file_system_of(tmp_path) in COHERENT:
        assert shard.counters()["direct_bytes"] > 0
    assert any(header(raw)["type"] == MARK and header(raw)["length"] > 64 for raw in walk(root)[1])
    assert judge_all_images(files, history, scratch, range(4), first) > 40


@pytest.mark.parametrize("seed", [7, 8])
def test_every_image_of_a_log_that_takes_files_made_ahead(tmp_path: Path, seed: int) -> None:
    """Spares are made, taken and dropped between the groups; a cut may leave one under either name or under none."""
    root, scratch = tmp_path / "disk", tmp_path / "scratch"
    root.mkdir(), scratch.mkdir()
    files, history, rng = FaultyFiles(root), History(), random.Random(seed)
    shard = shard_at(root, files, flood_rate=0)
    shard.start(walk(root)[0])
    taken = 0
    for _ in range(3):
        while not shard.spares:
            work(shard, files, history, rng, rounds=4)
            shard.keep_spare()
        before = shard.spares
        work(shard, files, history, rng, rounds=6)
        taken += before - shard.spares
    files.free = 0
    shard.keep_spare()
    shard.close()
    assert taken >= 2
    assert judge_all_images(files, history, scratch, range(4)) > 400


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 16))
def test_more_images_of_longer_logs(tmp_path: Path, seed: int) -> None:
    root, scratch = tmp_path / "disk", tmp_path / "scratch"
    root.mkdir(), scratch.mkdir()
    files, history = FaultyFiles(root), History()
    shard = shard_at(root, files)
    shard.start(walk(root)[0])
    work(shard, files, history, random.Random(seed), rounds=25)
    shard.close()
    judge_all_images(files, history, scratch, range(5))


@pytest.mark.parametrize("kind", ["pwritev", "fdatasync", "fsync", "fallocate", "rename", "sync_directory", "open"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_whatever_call_fails_first_what_was_acked_is_there_and_what_failed_is_not_counted(tmp_path: Path, kind: str, error: int) -> None:
    """Each call of each kind fails once; the writer goes on as long as it may, voids what failed, and the log is read again."""
    for nth in range(1, 14):
        root = tmp_path / f"{nth}"
        root.mkdir()
        files = FaultyFiles(root)
        shard = shard_at(root, files)
        shard.start(walk(root)[0])
        files.fail(kind, nth, error, short=100 if kind == "pwritev" and nth % 2 else 0)
        acked, rng, group = [], random.Random(nth), []
        try:
            for seq in range(1, 40):
                body = rng.randbytes(8 * rng.randrange(1, 120))
                group.append((seq, shard.append(frame.build(CEILING, body, base_seq=seq)), body))
                if seq % 3 == 0:
                    shard.flush_group()
                    acked += group
                    group = []
                    shard.sync()
        except OSError:
            files.heal()
            if shard.poisoned:
                shard.void(shard.written_position)
        shard.close()
        report, frames = walk(root)
        shown = payloads(frames)
        # Frames of a group whose place failed halfway were never acked but may have been flushed by `append`, in order.
        assert shown[: len(acked)] == acked
        assert shown[len(acked) :] == group[: len(shown) - len(acked)]
        assert report.damaged == []
