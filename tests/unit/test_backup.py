"""A directory that was restored from a backup answers as its source did when the backup ended; nothing is lost by a server that goes on meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fakes.clock import FakeClock
from fakes.in_process import Library
from fakes.object_store import a_bucket
from topicsd import snapshot
from topicsd._native.log_walk import LogFormatError
from topicsd.backup import manifest
from topicsd.backup.make import Backup, verify
from topicsd.backup.restore import Restore, Until
from topicsd.backup.shelf import BackupError, FolderShelf, manifest_name, open_shelf
from topicsd.cli.main import main
from topicsd.pins import pin, pinned
from topicsd.segments.fsck import fsck


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def library(tmp_path: Path, clock: FakeClock) -> Iterator[Library]:
    made = Library(str(tmp_path / "data"), clock, file_bytes=1 << 16)
    yield made
    made.close()


def seen(library: Library) -> dict[str, Any]:
    return {name: (library.read_all(name), library.state(name)) for name in library.names()}


def fill(library: Library, name: str, count: int, size: int = 300) -> None:
    for n in range(count):
        library.append(name, [{"data": f"{n}" + "x" * size, "tag": f"t{n % 3}"}])


def work(library: Library) -> None:
    """A bit of everything: segments, a pack, deletes in both, a tail, snapshots with a log behind them."""
    for name in ("a", "b", "c"):
        library.put(name, durability="fsync")
        fill(library, name, 60)
    library.seal("a", 20)
    library.seal("b", pack=True)
    library.checkpoint()
    library.delete("a", match=["tag", "Eq", "t1"])
    fill(library, "a", 30)
    library.delete("b", before_seq=30)
    library.checkpoint()
    fill(library, "c", 30)


def copy(library: Library, shelf: Any) -> Any:
    return Backup(Path(library.directory), shelf, library.clock.wall_ms).run()


def opened(path: Path, clock: FakeClock) -> Library:
    return Library(str(path), clock, file_bytes=1 << 16, boot=b"r" * 16)


def test_a_restored_directory_is_what_its_source_was(library: Library, clock: FakeClock, tmp_path: Path) -> None:
    work(library)
    before = seen(library)
    report = copy(library, FolderShelf(tmp_path / "shelf"))
    fill(library, "c", 5)
    library.drop("a")
    assert (report.number, report.notes) == (1, 0)
    restored = Restore(FolderShelf(tmp_path / "shelf"), tmp_path / "new").run()
    assert (restored.number, restored.kept) == (1, 0)
    assert fsck(tmp_path / "new").problems == []
    again = opened(tmp_path / "new", clock)
    assert seen(again) == before
    assert again.store.degraded == []
    fill(again, "c", 1)
    again.close()


def test_the_next_backup_copies_only_what_is_new(library: Library, clock: FakeClock, tmp_path: Path) -> None:
    shelf = FolderShelf(tmp_path / "shelf")
    work(library)
    first = copy(library, shelf)
    assert first.new_objects > 5
    second = copy(library, shelf)
    assert (second.new_objects, second.files) == (0, first.files)
    fill(library, "c", 60)
    library.seal("c")
    before = seen(library)
    third = copy(library, shelf)
    assert 0 < third.new_objects < third.files // 3
    assert manifest.numbers(shelf) == [1, 2, 3]
    Restore(shelf, tmp_path / "new").run()
    again = opened(tmp_path / "new", clock)
    assert seen(again) == before
    again.close()
    assert all(verify(shelf, manifest.read(shelf, number)) == [] for number in (1, 2, 3))


def test_a_backup_that_is_made_while_everything_moves_can_be_restored(library: Library, clock: FakeClock, tmp_path: Path) -> None:
    library.put("t", durability="fsync")
    moves = 0

    class Moving(FolderShelf):
        """Between any two objects the server writes, seals, deletes and takes snapshots."""

        def put(self, name: str, raw: bytes | memoryview) -> None:
            nonlocal moves
            super().put(name, raw)
            moves += 1
            fill(library, "t", 20)
            library.seal("t", 10)
            library.delete("t", before_seq=library.state("t")["head"] - 30)
            library.checkpoint()

    fill(library, "t", 50)
    library.seal("t", 10)
    library.checkpoint()
    fill(library, "t", 5)
    acked = library.state("t")["head"]
    copy(library, Moving(tmp_path / "shelf"))
    assert moves > 5
    assert manifest.read(FolderShelf(tmp_path / "shelf"), 1).notes == []
    library.checkpoint()
    library.checkpoint()
    Restore(FolderShelf(tmp_path / "shelf"), tmp_path / "new").run()
    again = opened(tmp_path / "new", clock)
    assert again.store.degraded == []
    records, tombstones = again.read_all("t")
    assert records[-1]["$seq"] == again.state("t")["head"] >= acked
    assert all(tombstone["reason"] != "corrupt" for tombstone in tombstones)
    again.close()


def test_nothing_goes_while_a_directory_is_pinned_and_it_goes_afterwards(library: Library) -> None:
    work(library)
    library.seal("c")
    root = Path(library.directory)
    files = {path for path in root.rglob("*") if path.is_file() and path.name != "reserve"}
    with pin(root):
        assert pinned(root)
        for _ in range(3):
            library.checkpoint()
        assert all(path.exists() for path in files)
    assert not pinned(root)
    assert library.store.checkpoints._would_free()
    library.checkpoint()
    library.checkpoint()
    assert set(snapshot.numbers(root)) == {layer.number for kept in library.store.checkpoints.kept for layer in kept.layers}
    assert not all(path.exists() for path in files)


def test_a_pin_whose_holder_has_died_holds_nothing(library: Library) -> None:
    root = Path(library.directory)
    folder = root / "meta" / "pins"
    folder.mkdir(parents=True)
    (folder / "1234-dead").write_bytes(b"")
    assert not pinned(root)
    assert list(folder.iterdir()) == []


def test_a_restore_ends_at_a_time(library: Library, clock: FakeClock, tmp_path: Path) -> None:
    shelf = FolderShelf(tmp_path / "shelf")
    library.put("t", durability="fsync")
    moments: list[tuple[int, Any]] = []
    for n in range(40):
        fill(library, "t", 3)
        if n % 10 == 4:
            library.checkpoint()
        if n % 13 == 5:
            library.seal("t")
        moments.append((clock.wall_ms(), seen(library)))
        clock.advance(1000)
        if n in (18, 39):
            copy(library, shelf)
    for n in (8, 16, 22, 30, 39):
        at_ms, before = moments[n]
        target = tmp_path / f"until-{n}"
        report = Restore(shelf, target, Until(at_ms)).run()
        assert (report.number, bool(report.short_of)) == {8: (1, False), 16: (1, False), 22: (1, True), 30: (2, False), 39: (2, False)}[n]
        before = moments[18][1] if report.short_of else before
        again = opened(target, clock)
        assert seen(again) == before, n
        assert again.store.degraded == []
        fill(again, "t", 2)
        assert again.state("t")["head"] == before["t"][1]["head"] + 2
        again.close()
    with pytest.raises(BackupError, match="no backup goes back so far"):
        Restore(shelf, tmp_path / "never", Until(moments[0][0] - 5000)).run()
    assert not (tmp_path / "never").exists()


def test_a_restore_ends_at_a_position(library: Library, clock: FakeClock, tmp_path: Path) -> None:
    shelf = FolderShelf(tmp_path / "shelf")
    library.put("t", durability="fsync")
    fill(library, "t", 3)
    library.checkpoint()
    marks: list[tuple[int, Any]] = []
    for _ in range(12):
        fill(library, "t", 40)
        marks.append((library.store.shards[0].written_position, seen(library)))
    copy(library, shelf)
    for n in (0, 5, 11):
        position, before = marks[n]
        target = tmp_path / f"until-{n}"
        Restore(shelf, target, Until(None, {0: position})).run()
        again = opened(target, clock)
        assert seen(again) == before, n
        again.close()


def test_a_restore_to_a_position_of_a_shard_that_the_backup_has_not_is_refused(library: Library, tmp_path: Path) -> None:
    fill(library, "t", 10)
    shelf = FolderShelf(tmp_path / "shelf")
    copy(library, shelf)
    with pytest.raises(BackupError, match=r"until 7:0: backup 1 has no shard 7, only 0"):
        Restore(shelf, tmp_path / "never", Until(None, {0: 1 << 20, 7: 0})).run()
    assert not (tmp_path / "never").exists()


def test_a_restore_says_that_the_backup_ends_before_a_position_as_it_does_for_a_time(library: Library, clock: FakeClock, tmp_path: Path) -> None:
    library.put("t", durability="fsync")
    fill(library, "t", 10)
    end = library.store.shards[0].written_position
    copy(library, FolderShelf(tmp_path / "shelf"))
    run = lambda name, until: CliRunner().invoke(main, ["restore", str(tmp_path / "shelf"), str(tmp_path / name), "--until", until])  # noqa: E731
    whole = run("whole", f"0:{end}")
    assert whole.exit_code == 0 and "not in it" not in whole.output
    short = run("short", f"0:{end + 8}")
    assert short.exit_code == 0
    assert f"the backup ends at 0:{end}: what came between that and the position you gave is not in it\n" in short.output
    late = run("late", str(clock.wall_ms() + 1000))
    assert f"the backup was made at {clock.wall_ms()} ms: what came between that and the time you gave is not in it\n" in late.output
    again = opened(tmp_path / "short", clock)
    assert seen(again) == seen(library)
    again.close()


def test_frames_that_a_later_start_calls_void_do_not_come_back_by_a_cut(library: Library, clock: FakeClock, tmp_path: Path) -> None:
    library.put("t", durability="fsync")
    fill(library, "t", 3)
    before = seen(library)
    end = library.store.shards[0].written_position
    clock.advance(1000)
    path = max(Path(library.directory).glob("log/shard-00/*.log"))
    raw = bytearray(path.read_bytes())
    library.append("t", [{"data": "lost"}])
    with_lost = path.read_bytes()
    library._forget()
    path.write_bytes(raw)  # a power cut took it
    library.boot = b"n" * 16
    library.open()
    assert seen(library) == before
    path.write_bytes(with_lost)  # and the disk gives it back, above what the next START calls the end
    clock.advance(1000)
    fill(library, "t", 1)
    shelf = FolderShelf(tmp_path / "shelf")
    copy(library, shelf)
    Restore(shelf, tmp_path / "new", Until(None, {0: end + 4096})).run()
    again = opened(tmp_path / "new", clock)
    assert seen(again) == before
    again.close()


def test_a_restore_that_was_killed_is_refused_by_a_server_and_goes_on(library: Library, clock: FakeClock, tmp_path: Path) -> None:
    work(library)
    before = seen(library)
    copy(library, FolderShelf(tmp_path / "shelf"))
    left = 6

    class Dying(FolderShelf):
        def read(self, name: str) -> bytes:
            nonlocal left
            left -= name.startswith("objects/")
            if left == 0:
                raise KeyboardInterrupt
            return super().read(name)

    target = tmp_path / "new"
    with pytest.raises(KeyboardInterrupt):
        Restore(Dying(tmp_path / "shelf"), target).run()
    with pytest.raises(LogFormatError, match="half restored"):
        opened(target, clock)
    with pytest.raises(BackupError, match="another restore"):
        Restore(FolderShelf(tmp_path / "shelf"), target, Until(clock.wall_ms() + 1)).run()
    assert Restore(FolderShelf(tmp_path / "shelf"), target).run().kept >= 4
    again = opened(target, clock)
    assert seen(again) == before
    again.close()


def test_a_directory_with_anything_in_it_is_not_restored_into(library: Library, tmp_path: Path) -> None:
    work(library)
    shelf = FolderShelf(tmp_path / "shelf")
    copy(library, shelf)
    with pytest.raises(BackupError, match="not empty"):
        Restore(shelf, Path(library.directory)).run()


def test_a_damaged_object_is_told_and_never_restored(library: Library, tmp_path: Path) -> None:
    work(library)
    shelf = FolderShelf(tmp_path / "shelf")
    copy(library, shelf)
    path = max((tmp_path / "shelf" / "objects").rglob("*"), key=lambda each: each.stat().st_size if each.is_file() else 0)
    raw = bytearray(path.read_bytes())
    raw[100] ^= 1
    path.write_bytes(raw)
    assert len(verify(shelf, manifest.read(shelf, 1))) == 1
    with pytest.raises(BackupError, match="is not what was put there"):
        Restore(shelf, tmp_path / "new").run()
    copy(library, shelf)
    assert len(verify(shelf, manifest.read(shelf, 2))) == 1, "a run does not read objects back"
    path.rename(tmp_path / "damaged")  # what docs/operations.md tells an operator to do
    copy(library, FolderShelf(tmp_path / "shelf"))
    assert [verify(shelf, manifest.read(shelf, number)) for number in (1, 2, 3)] == [[], [], []]
    Restore(shelf, tmp_path / "again", number=1).run()


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.999])
def test_a_manifest_that_is_not_whole_is_no_backup(library: Library, tmp_path: Path, cut: float) -> None:
    work(library)
    shelf = FolderShelf(tmp_path / "shelf")
    copy(library, shelf)
    path = tmp_path / "shelf" / "manifests" / f"{1:020d}.json"
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * cut)])
    with pytest.raises(BackupError):
        Restore(shelf, tmp_path / "new").run()
    assert copy(library, shelf).number == 2


def test_backups_at_once_get_numbers_of_their_own(library: Library, tmp_path: Path) -> None:
    work(library)
    shelf = FolderShelf(tmp_path / "shelf")
    threads = [threading.Thread(target=copy, args=(library, FolderShelf(tmp_path / "shelf"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert manifest.numbers(shelf) == [1, 2, 3, 4]
    assert all(verify(shelf, manifest.read(shelf, number)) == [] for number in (1, 2, 3, 4))


def test_the_commands_say_what_they_do(library: Library, clock: FakeClock, tmp_path: Path) -> None:
    work(library)
    before = seen(library)
    run = lambda *words: CliRunner().invoke(main, [str(word) for word in words])  # noqa: E731
    made = run("backup", tmp_path / "shelf", "--data-dir", library.directory)
    assert made.exit_code == 0, made.output
    assert made.output.startswith("backup 1: ")
    assert run("backup", tmp_path / "shelf", "--data-dir", library.directory, "--verify").output.endswith(" 0 problems\n")
    assert run("restore", tmp_path / "shelf", tmp_path / "new").exit_code == 0
    assert run("restore", tmp_path / "shelf", tmp_path / "new").exit_code == 2
    assert "neither a time nor" in run("restore", tmp_path / "shelf", tmp_path / "x", "--until", "soon").output
    assert run("restore", tmp_path / "shelf", tmp_path / "late", "--until", "2999-01-01T00:00:00Z").exit_code == 0
    again = opened(tmp_path / "new", clock)
    assert seen(again) == before
    again.close()


def test_paths_may_be_relative(library: Library, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work(library)
    before = seen(library)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    data = os.path.relpath(library.directory)
    run = lambda *words: CliRunner().invoke(main, list(words))  # noqa: E731
    made = ["--data-dir", data]
    for words in (
        ["backup", "shelf", *made], ["backup", "shelf", *made], ["backup", "./a/b", *made, "--cold", "cold"], ["backup", "shelf", "--verify"],
        ["restore", "shelf", "again"], ["restore", "./a/b", "deep/again"],
    ):  # fmt: skip
        told = run(*words)
        assert told.exit_code == 0, (words, told.output)
    for name in ("again", "deep/again"):
        again = opened(tmp_path / "here" / name, clock)
        assert seen(again) == before
        again.close()


def test_an_object_store_holds_a_backup(library: Library, clock: FakeClock, tmp_path: Path) -> None:
    with a_bucket("backups") as options:
        shelf = open_shelf("s3://backups/prefix", **options)
        work(library)
        before = seen(library)
        assert copy(library, shelf).new_objects > 5
        assert copy(library, shelf).new_objects == 0
        assert verify(shelf, manifest.read(shelf, 2)) == []
        Restore(shelf, tmp_path / "new").run()
        again = opened(tmp_path / "new", clock)
        assert seen(again) == before
        again.close()


def test_a_target_is_one_directory_s_until_another_takes_it_over(library: Library, clock: FakeClock, tmp_path: Path) -> None:
    work(library)
    before = seen(library)
    shelf, other = FolderShelf(tmp_path / "shelf"), opened(tmp_path / "other", clock)
    assert [copy(library, shelf).number, copy(library, shelf).number] == [1, 2]
    other.close()
    run = lambda *words: CliRunner().invoke(main, ["backup", str(tmp_path / "shelf"), "--data-dir", other.directory, *words])  # noqa: E731
    refused = run()
    assert refused.exit_code == 2 and "another directory's" in refused.output and "--take-over" in refused.output
    assert manifest.numbers(shelf) == [1, 2]
    Restore(shelf, tmp_path / "new").run()
    again = opened(tmp_path / "new", clock)
    assert seen(again) == before
    again.close()
    with pytest.raises(BackupError, match="another directory's"):
        Backup(tmp_path / "new", shelf).run()
    assert run("--take-over").output.startswith("backup 3: ") and run().output.startswith("backup 4: ")
    with pytest.raises(BackupError, match="another directory's"):
        copy(library, shelf)


def test_a_target_from_before_there_were_ids_is_adopted(library: Library, clock: FakeClock, tmp_path: Path) -> None:
    work(library)
    shelf = FolderShelf(tmp_path / "shelf")
    copy(library, shelf)
    made = manifest.read(shelf, 1)
    made.directory = ""
    shown = made.dump()
    assert b'"directory"' not in shown, "as it was written before"
    (tmp_path / "shelf" / manifest_name(1)).write_bytes(shown)
    assert copy(library, shelf).new_objects < len(made.files)
    other = opened(tmp_path / "other", clock)
    with pytest.raises(BackupError, match="another directory's"):
        copy(other, shelf)
    other.close()


@pytest.mark.parametrize("below", ["", "backups", "topics/x"])
def test_a_target_inside_the_data_directory_is_refused(library: Library, below: str) -> None:
    work(library)
    root = Path(library.directory)
    before = sorted(root.rglob("*"))
    (root.parent / "link").symlink_to(root)
    for target in (root / below, root.parent / "link" / below):
        with pytest.raises(BackupError, match="inside the data directory"):
            copy(library, FolderShelf(target))
    assert sorted(root.rglob("*")) == before
