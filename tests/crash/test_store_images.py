"""Power cuts under everything that a store does with its files: sealing, snapshots, retention, rewriting, the cold tier, backup and restore.

At every file call, what the disk may hold is recovered twice and held against what was promised by then (the judge is that of the engine's images).
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from crash.test_engine_images import Promise, judge, work
from fakes.clock import FakeClock
from fakes.faulty_files import FaultyFiles
from fakes.in_process import Library
from topicsd import upkeep as upkeep_rules
from topicsd._native import upkeep
from topicsd.backup import manifest
from topicsd.backup.make import Backup, verify
from topicsd.backup.restore import Restore, Until
from topicsd.backup.shelf import BackupError, FolderShelf
from topicsd.segments.cold import FolderCold
from topicsd.store import RESTORING

FILE_BYTES = 8192


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where there is one: thousands of images are written and read, and no sync of theirs need be real."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Copy:
    """A backup that has returned: before which call, and what was acked before it began."""

    call: int
    number: int
    acked: dict[str, dict[int, Any]]


@dataclass
class Story:
    """What was done to a store, and what was promised."""

    files: FaultyFiles
    clock: FakeClock
    lives: dict[str, Promise] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)
    opened: int = 0

    def count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1


@pytest.fixture(autouse=True)
def anything_is_worth_a_rewrite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep_rules, "FREED_BYTES_MIN", -(1 << 40))
    monkeypatch.setattr(upkeep_rules, "LIVE_PERMILLE_MAX", 1000)


def opened(path: Path, clock: FakeClock, boot: bytes, files: Any = None) -> Library:
    engine = Library(str(path), clock, files=files, boot=boot, file_bytes=FILE_BYTES)
    engine.cold = FolderCold(path / "cold", files)
    upkeep.cold_attach(engine.shared, 4 << 20)
    return engine


def live_through(disk: Path, seed: int, rounds: int) -> Story:
    files, clock, rng = FaultyFiles(disk), FakeClock(), random.Random(seed)
    root = disk / "data"
    make_folders(files, disk, "data", "shelf")
    engine = opened(root, clock, b"b" * 16, files)
    make_folders(files, root, "cold")
    story = Story(files, clock, opened=len(files.calls))
    for number in range(rounds):
        work(engine, files, rng, 4, story.lives, True, first=4 * number)
        if number % 3 == 2:
            clear_inside(engine, story, number)
        draw = rng.random()
        if draw < 0.3:
            for name in list(story.lives):
                engine.seal(name, rng.choice([3, 1000]), rng.random() < 0.5)
            if engine.upkeep().rewrite_one():
                story.count("rewrites")
        elif draw < 0.6:
            relocation = engine.relocation(engine.cold, segments=rng.randrange(2))
            moved = engine.store.figures.get("cold_moved")
            for step in range(6):
                relocation.step(step * 1000)
            if engine.store.figures.get("cold_moved") > moved:
                story.count("relocations")
        elif draw < 0.75:
            acked = {
                name: {seq: data for seq, (_call, data) in promise.records.items()}
                for name, promise in story.lives.items()
                if promise.durability == "fsync"
            }
            number = Backup(root, FolderShelf(disk / "shelf", files), clock.wall_ms, FolderCold(root / "cold")).run().number
            story.copies.append(Copy(len(files.calls), number, acked))
            story.count("backups")
        else:
            engine.checkpoint()
    engine._forget()
    return story


def clear_inside(engine: Library, story: Story, number: int) -> None:
    """Make a segment between two others, delete all of it by tag, and let go of what is dead by now."""
    for name, promise in story.lives.items():
        if promise.durability != "fsync":
            continue
        middle = range(0)
        for tag in (None, f"c{number}", None):
            data = [f"{name}-{number}-{tag}-{k}" for k in range(3)]
            answer = engine.append(name, [{"data": each} | ({"tag": tag} if tag else {}) for each in data])
            seqs = range(answer["first_seq"], answer["first_seq"] + 3)
            promise.records |= {seq: (len(story.files.calls), each) for seq, each in zip(seqs, data, strict=True)}
            engine.seal(name, 3, number % 2 == 0)
            middle = seqs if tag else middle
        began = len(story.files.calls)
        engine.delete(name, match=["tag", "Eq", f"c{number}"])
        promise.cleared |= dict.fromkeys(middle, (began, len(story.files.calls)))
    if engine.upkeep().drop_dead():
        story.count("drops")


def make_folders(files: FaultyFiles, parent: Path, *names: str) -> None:
    """Folders of an operator: they are there before anything begins."""
    for name in names:
        (parent / name).mkdir()
        files.calls.append(("mkdir", str(parent / name).encode()))
    files.calls.append(("sync_directory", str(parent).encode()))


def seen(engine: Library, story: Story) -> dict[str, Any]:
    return {name: engine.read_all(name) for name in story.lives if engine.sequencer.find(name.encode()) is not None}


def check_image(image: Path, story: Story, call: int) -> None:
    twice = []
    for _ in range(2):
        again = opened(image / "data", FakeClock(story.clock.wall_ms(), 5), b"z" * 16)
        assert again.store.degraded == [], "a power cut is no damage"
        twice.append(seen(again, story))
        again._forget()
    assert twice[0] == twice[1], "recovery twice is not the same as once"
    last = opened(image / "data", FakeClock(story.clock.wall_ms(), 5), b"z" * 16)
    judge(last, story.lives, call, synced=True)
    last._forget()


def check_backups(image: Path, story: Story, call: int, scratch: Path) -> int:
    """Each backup whose manifest is there is whole; one that had returned is there."""
    shelf = FolderShelf(image / "shelf")
    there = manifest.numbers(shelf)
    for copy in story.copies:
        assert copy.number in there or copy.call > call, "a backup that had ended is gone"
    for number in there:
        assert verify(shelf, manifest.read(shelf, number)) == []
    if there:
        target = scratch / "restored"
        Restore(shelf, target, number=there[-1]).run()
        again = opened(target, FakeClock(story.clock.wall_ms(), 5), b"y" * 16)
        assert again.store.degraded == []
        copy = next((copy for copy in story.copies if copy.number == there[-1]), None)
        for name, acked in copy.acked.items() if copy else ():
            promise = story.lives.get(name)
            if promise is None or promise.created > copy.call or again.sequencer.find(name.encode()) is None:
                continue
            records, tombstones = again.read_all(name)
            got = {record["$seq"]: record["data"] for record in records}
            floor = max([before for _at, before in promise.deletes], default=0)
            lost = [seq for seq in acked if seq >= floor and seq not in got and seq in promise.records and seq not in promise.cleared]
            assert not lost, f"backup {copy.number}: {name} has lost {lost} ({tombstones})"
        again._forget()
        shutil.rmtree(target)
    return len(there)


def sweep(tmp_path: Path, seed: int, rounds: int, stride: int, seeds: list[int], first: int = 0) -> tuple[int, Story]:
    root, scratch = tmp_path / "disk", tmp_path / "scratch"
    root.mkdir(), scratch.mkdir()
    story = live_through(root, seed, rounds)
    images = 0
    for call in range(story.opened + first, len(story.files.calls) + 1, stride):
        for image_seed in seeds:
            target = scratch / "image"
            target.mkdir()
            story.files.image(call, image_seed, target)
            if images % 8 == 0:
                check_backups(target, story, call, scratch)
            check_image(target, story, call)
            shutil.rmtree(target)
            images += 1
    return images, story


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_power_cut_at_sampled_file_calls_of_all_that_a_store_does_breaks_no_promise(memory: Path, seed: int) -> None:
    images, story = sweep(memory, seed, rounds=24, stride=11, seeds=[0, 2])
    assert images >= 250
    assert {"rewrites", "drops", "relocations", "backups"} <= set(story.done), story.done


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10, 14))
def test_a_power_cut_at_every_file_call_of_all_that_a_store_does_breaks_no_promise(memory: Path, seed: int) -> None:
    images, story = sweep(memory, seed, rounds=24, stride=1, seeds=[0, 2])
    assert images >= 2500
    assert {"rewrites", "drops", "relocations", "backups"} <= set(story.done), story.done


# ---- restore


def a_shelf(tmp_path: Path) -> tuple[FolderShelf, dict[str, Any], FakeClock]:
    root = tmp_path / "source"
    root.mkdir()
    clock = FakeClock()
    engine = opened(root, clock, b"b" * 16)
    work(engine, FaultyFiles(root), random.Random(5), 60, {}, True)
    before = {name: (engine.read_all(name), engine.state(name)) for name in engine.names()}
    Backup(root, FolderShelf(tmp_path / "shelf"), clock.wall_ms).run()
    engine._forget()
    return FolderShelf(tmp_path / "shelf"), before, clock


def restored_images(tmp_path: Path, stride: int, seeds: list[int], until: Until | None = None) -> int:
    shelf, before, clock = a_shelf(tmp_path)
    disk, scratch = tmp_path / "disk", tmp_path / "scratch"
    disk.mkdir(), scratch.mkdir()
    files = FaultyFiles(disk)
    Restore(shelf, disk / "data", until, files=files).run()
    images = finished = 0
    for call in [*range(0, len(files.calls), stride), len(files.calls)]:
        for seed in seeds:
            image = scratch / "image"
            image.mkdir()
            files.image(call, seed, image)
            data = image / "data"
            whole = data.exists() and any(data.iterdir()) and not (data / RESTORING).exists()
            if whole and (data / "log").exists():
                finished += 1
                with pytest.raises(BackupError, match="not empty"):
                    Restore(shelf, data, until).run()
            else:
                Restore(shelf, data, until).run()
            for _ in range(2):
                again = opened(data, FakeClock(clock.wall_ms(), 5), b"b" * 16)
                assert again.store.degraded == []
                if until is None:
                    assert {name: (again.read_all(name), again.state(name)) for name in again.names()} == before
                again._forget()
            shutil.rmtree(image)
            images += 1
    assert finished >= len(seeds) - 1, "the last image is that of a restore that has ended"
    return images


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_restore_that_a_power_cut_ends_anywhere_is_told_from_a_whole_one_and_goes_on(memory: Path) -> None:
    assert restored_images(memory, stride=5, seeds=[0, 2]) > 40


@pytest.mark.crash
@pytest.mark.parametrize("until", [None, Until(1 << 60)])
def test_a_restore_that_a_power_cut_ends_at_any_call_goes_on(memory: Path, until: Until | None) -> None:
    assert restored_images(memory, stride=1, seeds=[0, 1, 2, 3], until=until) > 400
