"""A start in another boot that ends before it has noted all jumps: the next one jumps what is left (CLARIFICATIONS, Write: `disk`)."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from fakes.faulty_files import FaultyFiles
from fakes.in_process import Library
from topicsd.backup.make import Backup
from topicsd.backup.restore import Restore
from topicsd.backup.shelf import FolderShelf
from topicsd.engine import recovery
from topicsd.room import NoRoomError
from topicsd.store import SETTLING

NAMES = [f"t{number}" for number in range(12)]


class EndedError(Exception):
    """The process ends here."""


def filled(path: Path, shards: int = 1, files: FaultyFiles | None = None) -> Library:
    library = Library(str(path), FakeClock(), files=files, shards=shards)
    for name in NAMES:
        library.append(name, [{"data": 1}, {"data": 2}])
    library.sequencer.sync()
    return library


def judge(library: Library) -> None:
    """Every topic has jumped, and says so: what was acked behind seq 2 may have been lost."""
    for name in NAMES:
        head = library.state(name)["head"]
        assert head > 2, f"{name} has not jumped"
        tombstone = library.diff(name, 2)["tombstone"]
        assert tombstone is not None
        assert (tombstone["gap_from"], tombstone["gap_to"], tombstone["reason"]) == (3, head, "mixed")
        assert library.append(name, [{"data": 3}])["first_seq"] == head + 1


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("noted", [0, 1, 5, len(NAMES)])
def test_a_start_that_ends_while_it_notes_jumps_is_gone_on_with_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int, noted: int
) -> None:
    library = filled(tmp_path, shards)
    log_holes, left = recovery.log_holes, [0]

    def some(*given: object) -> None:
        if left[0] == 0:
            library.store.sequencer.sync()  # what has been noted is durable
            raise EndedError
        left[0] -= 1
        log_holes(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(recovery, "log_holes", some)
    for again in (library.reboot, library.kill):  # twice in a row
        left[0] = noted if noted < len(NAMES) else -1
        if noted == len(NAMES):
            again()
            continue
        with pytest.raises(EndedError):
            again()
    monkeypatch.setattr(recovery, "log_holes", log_holes)
    library.kill()
    judge(library)


def test_a_start_that_ends_at_any_file_call_is_gone_on_with_by_the_next(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    files = FaultyFiles(root)
    library = filled(root, shards=2, files=files)
    acked = len(files.calls)
    library.reboot()
    starts = range(acked, len(files.calls) + 1)
    library._forget()
    assert len(starts) > 10
    for call in starts:
        for seed in (1, 0):  # killed in that boot; and the power goes again
            target = tmp_path / f"image-{call}-{seed}"
            target.mkdir()
            files.image(call, seed, target)
            again = Library(str(target), FakeClock(), boot=library.boot if seed else b"p" * 16, shards=2)
            judge(again)
            assert not (target / SETTLING).exists()
            heads = [again.state(name)["head"] for name in NAMES]
            for restart in (again.kill, again.stop, again.kill):
                restart()
                assert [again.state(name)["head"] for name in NAMES] == heads, "needlessly"
            again._forget()


def test_a_full_disk_ends_a_start_and_topic_ids_and_seqs_are_not_given_twice(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    library = Library(str(tmp_path), FakeClock(), files=files)
    many = [f"t{number}" for number in range(400)]
    for name in many:
        library.append(name, [{"data": 1}])
    library.sequencer.sync()
    (tmp_path / "meta/reserve").unlink()
    files.space = files.used() + (20 << 10)
    with pytest.raises(NoRoomError):
        library.reboot()
    library._forget()
    files.heal()
    library.open()
    assert all(library.append(name, [{"data": 2}])["first_seq"] > 2 for name in many)
    library.close()


def test_ids_go_on_far_when_a_start_ended_before_it_reserved_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = filled(tmp_path)
    reserved = library.engine.id_ceiling

    def end(*_given: object) -> int:
        raise EndedError

    with monkeypatch.context() as patched:
        patched.setattr("topicsd.store.Store._reserve_ids", end)
        with pytest.raises(EndedError):
            library.reboot()
    library.kill()
    library.put("new")
    assert library.state("new")["epoch"] > reserved


def test_where_the_note_cannot_be_removed_the_start_serves_and_the_next_one_finds_the_same(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    library = filled(tmp_path, files=files)
    files.fail("unlink", error=errno.EIO, path=SETTLING.encode())
    library.reboot()
    assert (tmp_path / SETTLING).exists()
    judge(library)
    before = {name: library.state(name)["head"] for name in NAMES}
    library.kill()
    assert not (tmp_path / SETTLING).exists()
    for name, head in before.items():
        assert library.append(name, [{"data": 4}])["first_seq"] > head


def test_a_backup_of_a_directory_whose_start_has_ended_takes_the_note_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = filled(tmp_path / "data")

    def end(*_given: object) -> None:
        raise EndedError

    with monkeypatch.context() as patched:
        patched.setattr(recovery, "log_holes", end)
        with pytest.raises(EndedError):
            library.reboot()
    library._forget()
    shelf = FolderShelf(tmp_path / "shelf")
    Backup(tmp_path / "data", shelf, library.clock.wall_ms).run()
    Restore(shelf, tmp_path / "again").run()
    again = Library(str(tmp_path / "again"), FakeClock(), boot=library.boot)
    judge(again)
    again._forget()
