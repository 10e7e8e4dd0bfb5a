"""A directory knows its cold tier: one that is not mounted, or another's, is unavailable, is not written to, and is not called damaged."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from fakes.clock import FakeClock
from fakes.in_process import Library
from fakes.object_store import a_bucket
from fakes.patience import eventually
from topicsd._native import upkeep
from topicsd.api.probes import restrictions
from topicsd.backup.make import Backup
from topicsd.backup.restore import Restore
from topicsd.backup.shelf import BackupError, FolderShelf
from topicsd.cli.backup import restore as restore_command
from topicsd.cli.fsck import fsck as fsck_command
from topicsd.lake.export import Exporter
from topicsd.lake.sources import DirectorySource
from topicsd.segments.cold import MARKER, Cold, ColdError, ColdMissingError, FolderCold, open_cold
from topicsd.segments.cold_counts import ColdCounts
from topicsd.segments.cold_tier import ANOTHER, UNKNOWN, UNMARKED, ColdAwayError, KnownCold, open_tier
from topicsd.segments.fsck import fsck


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    made = Library(str(tmp_path / "data"), FakeClock(), file_bytes=1 << 18)
    upkeep.cold_attach(made.shared, 4 << 20)
    made.put("t", durability="fsync")
    fill(made)
    yield made
    made.close()


def fill(library: Library) -> None:
    for first in range(0, 400, 20):
        library.append("t", [{"data": f"{n}" + "x" * 2000} for n in range(first, first + 20)])
    library.seal("t", 100)


def move(library: Library, cold: KnownCold, segments: int = 1, steps: int = 20, begin: int = 0) -> Any:
    relocation = library.relocation(cold, segments=segments, check=cold.verify)
    for step in range(begin, begin + steps):
        relocation.step(step * 1000)
    return relocation


def keeper_of(library: Library, place: Path) -> KnownCold:
    return open_tier(str(place), Path(library.directory), keeps=True)


def leave(library: Library) -> None:
    for _ in range(2):
        library.checkpoint()
    library.kill()


def objects(place: Path) -> list[str]:
    return sorted(path.name for path in place.rglob("*.data"))


def away(library: Library, place: Path) -> int:
    """Why the tier is away, for a reader."""
    library.cold = open_tier(str(place), Path(library.directory))
    with pytest.raises(ColdAwayError) as told:
        library.read_all("t")
    return told.value.code


def test_a_tier_is_marked_before_anything_is_moved_there(library: Library, tmp_path: Path) -> None:
    place = tmp_path / "deep" / "cold"
    cold = keeper_of(library, place)
    move(library, cold, segments=4)
    assert not place.exists(), "nothing is to be moved"
    move(library, cold)
    assert len(objects(place)) == 3
    assert (place / MARKER).read_bytes() == (tmp_path / "data" / "meta" / "cold-tier").read_bytes() != b""
    library.cold = open_tier(str(place), tmp_path / "data")
    leave(library)
    assert len(library.read_all("t")[0]) == 400
    assert MARKER not in list(cold.names())


@pytest.mark.parametrize("how", ["unmounted", "not there", "another's folder", "another's tier"])
def test_a_tier_that_is_not_the_one_is_unavailable_and_gets_nothing(library: Library, tmp_path: Path, how: str) -> None:
    place, other = tmp_path / "cold", tmp_path / "other"
    move(library, keeper_of(library, place), segments=2)
    leave(library)
    if how != "not there":
        other.mkdir()
    if how.startswith("another's"):
        (other / "topics").mkdir()
    if how == "another's tier":
        another = Library(str(tmp_path / "another"), FakeClock(), file_bytes=1 << 18)
        another.put("t")
        fill(another)
        move(another, keeper_of(another, other))
        assert objects(other)
        another.close()
    before = sorted(other.rglob("*"))
    expected = ANOTHER if how == "another's tier" else UNMARKED
    assert away(library, other) == expected
    relocation = move(library, keeper_of(library, other))
    assert sorted(other.rglob("*")) == before and other.exists() == (how != "not there")
    assert library.store.figures.get("cold_moved") == 0
    assert library.store.figures.get("cold_away") == expected
    shared = SimpleNamespace(shard=lambda _number: {"read_only": 0}, get=lambda _name: 0)
    settings = SimpleNamespace(cold_dir=str(other))
    (told,) = restrictions(SimpleNamespace(shared=shared, figures=library.store.figures, settings=settings))  # type: ignore[arg-type]
    assert str(other) in told and MARKER in told
    assert library.shared.get("damage_met") == 0
    relocation.check, relocation.cold = (back := keeper_of(library, place)).verify, back
    for step in range(20, 40):
        relocation.step(step * 1000)
    assert library.store.figures.get("cold_away") == 0
    assert library.store.figures.get("cold_moved") == 1
    library.cold = open_tier(str(place), tmp_path / "data")
    assert len(library.read_all("t")[0]) == 400


def test_a_disk_that_goes_under_a_running_server_loses_nothing(library: Library, tmp_path: Path) -> None:
    place = tmp_path / "cold"
    move(library, keeper_of(library, place))
    leave(library)
    cold = open_tier(str(place), tmp_path / "data")
    name = next(iter(cold.names()))
    assert cold.read(name, 0, 10)
    place.rename(tmp_path / "aside")
    (place / "topics").mkdir(parents=True)
    with pytest.raises(ColdAwayError):
        cold.read(name, 0, 10)
    shutil.rmtree(place)
    (tmp_path / "aside").rename(place)
    (place / name).unlink()
    with pytest.raises(ColdMissingError):
        cold.read(name, 0, 10)


def test_a_disk_that_goes_while_something_is_put_has_not_got_it(library: Library, tmp_path: Path) -> None:
    class Going(FolderCold):
        def put(self, name: str, path: Path) -> None:
            super().put(name, path)
            if name != MARKER:
                (self.root / MARKER).unlink()

    move(library, KnownCold(Going(tmp_path / "cold"), tmp_path / "data", keeps=True))
    assert library.store.figures.get("cold_moved") == 0


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_a_directory_from_before_knows_its_tier_by_what_it_moved_there(library: Library, tmp_path: Path, kind: str) -> None:
    with a_bucket("cold") as options:

        def opened(name: str) -> Cold:
            return open_cold(str(tmp_path / name)) if kind == "folder" else open_cold(f"s3://cold/{name}", **options)

        def known(name: str, *, keeps: bool = False) -> KnownCold:
            return KnownCold(opened(name), tmp_path / "data", keeps=keeps)

        plain = library.relocation(opened("cold"))
        for step in range(20):
            plain.step(step)
        leave(library)
        with pytest.raises(ColdAwayError) as told:
            known("empty", keeps=True).verify()
        assert told.value.code == UNKNOWN
        assert not list(opened("empty").names())
        library.cold = known("cold")
        assert len(library.read_all("t")[0]) == 400, "a worker may read before the keeper has marked it"
        assert MARKER not in list(opened("cold").names())
        known("cold", keeps=True).verify()
        assert MARKER in list(opened("cold").names())
        with pytest.raises(ColdAwayError) as told:
            known("empty", keeps=True).verify()
        assert told.value.code == UNMARKED


def test_a_keeper_that_dies_while_it_marks_a_tier_knows_it_again(library: Library, tmp_path: Path) -> None:
    class Dying(FolderCold):
        def put(self, name: str, path: Path) -> None:
            super().put(name, path)
            raise ColdError("died")

    move(library, KnownCold(Dying(tmp_path / "cold"), tmp_path / "data", keeps=True), steps=2)
    assert (tmp_path / "cold" / MARKER).exists() and not (tmp_path / "data" / "meta" / "cold-tier").exists()
    move(library, keeper_of(library, tmp_path / "cold"))
    assert len(objects(tmp_path / "cold")) == 3


def test_a_directory_that_needs_no_tier_leaves_anothers_alone(library: Library, tmp_path: Path) -> None:
    place = tmp_path / "cold"
    move(library, keeper_of(library, place), segments=2)
    shelf = FolderShelf(tmp_path / "shelf")
    leave(library)
    Backup(tmp_path / "data", shelf, cold=open_tier(str(place), tmp_path / "data")).run()
    Restore(shelf, tmp_path / "new").run()
    again = Library(str(tmp_path / "new"), FakeClock(), file_bytes=1 << 18, boot=b"r" * 16)
    before = objects(place)
    move(again, keeper_of(again, place))
    assert again.store.figures.get("cold_away") == ANOTHER
    assert objects(place) == before, "the copy has segments of the same names"
    move(again, keeper_of(again, tmp_path / "own"))
    assert again.store.figures.get("cold_away") == 0
    assert len(objects(tmp_path / "own")) == 1
    again.close()


def test_fsck_and_backup_refuse_a_tier_that_is_another(library: Library, tmp_path: Path) -> None:
    move(library, keeper_of(library, tmp_path / "cold"))
    leave(library)
    library.store.close()
    (tmp_path / "other" / "topics").mkdir(parents=True)
    told = CliRunner().invoke(fsck_command, [library.directory, "--cold", str(tmp_path / "other")])
    assert told.exit_code == 2 and MARKER in told.output and "LOSS" not in told.output
    with pytest.raises(BackupError, match=MARKER):
        Backup(tmp_path / "data", FolderShelf(tmp_path / "shelf"), cold=open_tier(str(tmp_path / "other"), tmp_path / "data")).run()
    library.open()


@pytest.mark.parametrize("suffix", ["idx", "tag"])
@pytest.mark.parametrize("way", ["gone", "damaged"])
def test_fsck_makes_index_and_tags_of_a_cold_segment_again_of_its_object(library: Library, tmp_path: Path, suffix: str, way: str) -> None:
    place, data = tmp_path / "cold", tmp_path / "data"
    move(library, keeper_of(library, place))
    library.cold = open_tier(str(place), data)
    leave(library)
    before = library.read_all("t")
    library.store.close()
    path = sorted(data.rglob("*.del"))[0].with_suffix(f".{suffix}")
    raw = path.read_bytes()
    if way == "gone":
        path.unlink()
    else:
        path.write_bytes(raw[:100] + bytes([raw[100] ^ 1]) + raw[101:])
    there = [one.read_bytes() for one in sorted(place.rglob("*.data"))]
    assert fsck(data, mend=True).done == [], "nobody has said where its data is"
    report = fsck(data, mend=True, cold=open_tier(str(place), data))
    assert [problem.path for problem in report.problems] == [path] and report.unread == 0
    assert [line for line in report.done if line.startswith(f"{path}: made again of its object")]
    assert path.read_bytes() == raw and [one.read_bytes() for one in sorted(place.rglob("*.data"))] == there
    aside = [one.read_bytes() for one in (data / "quarantine").glob("*")] if (data / "quarantine").is_dir() else []
    assert (len(aside) == 1 and aside[0] != raw) if way == "damaged" else not aside
    assert fsck(data, cold=open_tier(str(place), data)).problems == []
    library.open()
    assert library.read_all("t") == before


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_fsck_makes_no_index_of_an_object_that_is_lost_or_damaged(library: Library, tmp_path: Path, how: str) -> None:
    place, data = tmp_path / "cold", tmp_path / "data"
    move(library, keeper_of(library, place))
    leave(library)
    library.store.close()
    path = sorted(data.rglob("*.del"))[0].with_suffix(".idx")
    path.unlink()
    there = sorted(place.rglob("*.data"))[0]
    if how == "gone":
        there.unlink()
    else:
        raw = there.read_bytes()
        there.write_bytes(raw[:2000] + bytes([raw[2000] ^ 1]) + raw[2001:])
    report = fsck(data, mend=True, cold=open_tier(str(place), data))
    assert report.done == [] and not path.exists()
    assert [problem for problem in report.problems if problem.loses and "in the cold tier" in problem.what]


def test_fsck_takes_a_tier_that_nothing_was_ever_moved_to_for_what_it_is(library: Library, tmp_path: Path) -> None:
    fill(library)
    library.store.close()
    told = CliRunner().invoke(fsck_command, [library.directory, "--cold", str(tmp_path / "cold")])
    assert told.exit_code == 0 and "nothing was ever moved" in told.output
    library.open()
    move(library, keeper_of(library, tmp_path / "cold"))
    library.checkpoint()
    library.store.close()
    (tmp_path / "cold").rename(tmp_path / "away")
    assert CliRunner().invoke(fsck_command, [library.directory, "--cold", str(tmp_path / "cold")]).exit_code == 2
    library.open()


def test_an_export_refuses_a_tier_that_is_another_and_a_restored_directory_needs_none(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, shelf = tmp_path / "cold", FolderShelf(tmp_path / "shelf")
    move(library, keeper_of(library, place))
    leave(library)
    library.store.close()
    run = lambda name, to: Exporter(DirectorySource(tmp_path / name), tmp_path / to).run()  # noqa: E731
    (tmp_path / "other" / "topics").mkdir(parents=True)
    monkeypatch.setenv("TOPICS_COLD_DIR", str(tmp_path / "other"))
    with pytest.raises(OSError, match=MARKER):
        run("data", "export")
    monkeypatch.setenv("TOPICS_COLD_DIR", str(place))
    report = run("data", "export")
    assert (report.segments_copied, report.segments_unreadable) == (4, 0)
    monkeypatch.delenv("TOPICS_COLD_DIR")
    Backup(tmp_path / "data", shelf, cold=open_tier(str(place), tmp_path / "data")).run()
    Restore(shelf, tmp_path / "new").run()
    report = run("new", "export of the restored")
    assert (report.segments_copied, report.segments_unreadable) == (4, 0)
    library.open()


# ---- a backup of a tier that has lost something


@pytest.mark.parametrize("how", ["missing", "empty", "cut"])
def test_what_a_tier_had_lost_when_the_backup_was_made_is_corrupt_in_the_restored_directory(library: Library, tmp_path: Path, how: str) -> None:
    place = tmp_path / "cold"
    move(library, keeper_of(library, place))
    leave(library)
    lost = sorted(place.rglob("*.data"))[1]
    if how == "missing":
        lost.unlink()
    else:
        lost.write_bytes(b"" if how == "empty" else lost.read_bytes()[:1000])
    shelf = FolderShelf(tmp_path / "shelf")
    assert Backup(tmp_path / "data", shelf, cold=open_tier(str(place), tmp_path / "data")).run().notes == 1
    told = CliRunner().invoke(restore_command, [str(tmp_path / "shelf"), str(tmp_path / "new")])
    assert told.exit_code == 1 and told.output.count("LOSS") == 1 and lost.name in told.output
    assert [problem.loses for problem in fsck(tmp_path / "new").problems] == [True]
    again = Library(str(tmp_path / "new"), FakeClock(), file_bytes=1 << 18, boot=b"r" * 16)
    records, tombstones = again.read_all("t")
    assert [record["$seq"] for record in records] == [*range(1, 101), *range(201, 401)]
    assert [(tombstone["gap_from"], tombstone["gap_to"], tombstone["reason"]) for tombstone in tombstones] == [(101, 200, "corrupt")]
    assert again.shared.get("damage_met") > 0
    care = again.upkeep()
    care.step(0, 0)
    assert care.figures.get("damaged") == 1
    assert again.state("t")["count"] == 300
    again.close()


# ---- what a tier has lost is not counted


class AsAWorker:
    """What of an object is not there reads as zeroes."""

    def __init__(self, cold: Cold) -> None:
        self._cold = cold

    def read(self, name: str, offset: int, length: int) -> bytes:
        try:
            return self._cold.read(name, offset, length).ljust(length, b"\0")
        except ColdMissingError:
            return bytes(length)


def ruin(path: Path, how: str) -> None:
    whole = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(whole[:100_000] if how == "cut" else whole[:400] + bytes([whole[400] ^ 1]) + whole[401:])


@pytest.mark.parametrize("how", ["missing", "cut", "flipped"])
def test_what_nobody_can_read_of_the_cold_tier_is_left_out_of_the_counts(library: Library, tmp_path: Path, how: str) -> None:
    place = tmp_path / "cold"
    move(library, keeper_of(library, place))
    leave(library)
    library.cold = AsAWorker(open_tier(str(place), Path(library.directory)))  # type: ignore[assignment]
    ruin(sorted(place.rglob("*.data"))[0], how)
    care = library.upkeep()
    care.step(0, 0)
    assert library.state("t")["count"] == 400, "nobody knows"
    records, tombstones = library.read_all("t")
    assert [each["reason"] for each in tombstones] == ["corrupt"] and 300 <= len(records) < 400
    care.damage.cold = ColdCounts(library.shared, open_tier(str(place), Path(library.directory)))

    def told() -> bool:
        care.step(next(times), 0)
        state = library.state("t")
        sizes = sum(len(json.dumps(record["data"])) for record in records)
        return (state["count"], state["bytes"], state["earliest"]) == (len(records), sizes, records[0]["$seq"])

    times = iter(range(3000, 3_000_000, 3000))
    assert eventually(told)
    library.delete("t", before_seq=records[5]["$seq"])
    records = records[5:]
    assert eventually(told)
    care.damage.cold.close()


def test_a_store_that_does_not_answer_leaves_the_counts_as_they_are_and_keeps_nobody_waiting(library: Library, tmp_path: Path) -> None:
    place = tmp_path / "cold"
    move(library, keeper_of(library, place))
    leave(library)
    lost = next(file for file in upkeep.listed(library.shared) if file.name == 1)
    upkeep.suspect(library.shared, lost.number, lost.serial, upkeep.MET)  # another worker has read it
    ruin(sorted(place.rglob("*.data"))[0], "missing")
    cold, asked, answers = open_tier(str(place), Path(library.directory)), list[str](), threading.Event()

    def read(name: str, offset: int, length: int) -> bytes:
        asked.append(name)
        answers.wait(30)
        return cold.read(name, offset, length)

    care = library.upkeep()
    care.damage.cold = ColdCounts(library.shared, SimpleNamespace(read=read))  # type: ignore[arg-type]
    for n in range(5):
        care.step(n * 3000, 0)
    assert eventually(lambda: len(asked) == 1)
    assert library.state("t")["count"] == 400
    answers.set()
    assert eventually(lambda: (care.step(15_000, 0), library.state("t")["count"])[1] == 300)
    care.damage.cold.close()


def test_a_count_whose_read_never_comes_back_is_made_by_another_thread(library: Library, tmp_path: Path) -> None:
    place = tmp_path / "cold"
    move(library, keeper_of(library, place))
    leave(library)
    lost = next(file for file in upkeep.listed(library.shared) if file.name == 1)
    upkeep.suspect(library.shared, lost.number, lost.serial, upkeep.MET)
    ruin(sorted(place.rglob("*.data"))[0], "missing")
    cold, asked, never, now_s = open_tier(str(place), Path(library.directory)), list[str](), threading.Event(), [0.0]

    def read(name: str, offset: int, length: int) -> bytes:
        asked.append(name)
        if len(asked) == 1:
            never.wait(120)
        return cold.read(name, offset, length)

    care = library.upkeep()
    care.damage.cold = ColdCounts(library.shared, SimpleNamespace(read=read), lambda: int(now_s[0] * 1000))  # type: ignore[arg-type]
    care.step(0, 0)
    assert eventually(lambda: len(asked) == 1)
    now_s[0] = 60.0
    care.step(60_000, 0)
    now_s[0] = 120.0
    steps = itertools.count(120_000, 3000)
    assert eventually(lambda: (care.step(next(steps), 0), library.state("t")["count"])[1] == 300)
    never.set()
    care.damage.cold.close()


def test_a_tier_is_opened_without_looking_at_its_place(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, looked = tmp_path / "cold", list[str]()
    stat = Path.stat

    def look(self: Path, **options: Any) -> Any:
        if self.is_relative_to(place):
            looked.append(threading.current_thread().name)
        return stat(self, **options)

    monkeypatch.setattr(Path, "stat", look)
    open_tier(str(place), Path(library.directory), look=False)
    assert not looked, "a mount that hangs holds up whoever looks at it"
    open_tier(str(place), Path(library.directory))
    assert looked, "a command tells at once what is wrong"


def test_the_first_record_behind_a_lost_object_is_known_without_asking_the_tier(library: Library, tmp_path: Path) -> None:
    place = tmp_path / "cold"
    move(library, keeper_of(library, place))
    leave(library)
    state = library.state("t")
    slot = library.sequencer.find(b"t")
    topic_id = library.sequencer.topic(slot)["topic_id"]
    lost = next(file for file in upkeep.listed(library.shared) if file.name == 1)
    upkeep.suspect(library.shared, lost.number, lost.serial, upkeep.MET)  # another worker has read it
    care, size = library.upkeep(), state["bytes"] // 4
    care.damage.cold = SimpleNamespace(of=lambda _file, alive: [(slot, topic_id, alive.live, size)], arrived=lambda: False, newer={})  # type: ignore[assignment]
    care.step(0, 0)
    now = library.state("t")
    assert (now["count"], now["earliest"]) == (300, 101)
    assert now["bytes"] == state["bytes"] - size
    care.damage.cold = SimpleNamespace(of=lambda _file, alive: [(slot, topic_id, 5, 100)], arrived=lambda: False, newer={})  # type: ignore[assignment]
    care.step(3000, 0)
    now = library.state("t")
    assert (now["count"], now["earliest"]) == (395, 1), "some of it is there"
