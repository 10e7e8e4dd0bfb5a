"""Damage in several files at once, whoever meets it and whoever was away meanwhile: each file is told, and what is counted is what can be read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.in_process import Library
from fakes.patience import eventually
from topicsd._native import upkeep
from topicsd._native.reader import IoError
from topicsd.metrics import collect, to_json
from topicsd.segments.cold import FolderCold
from topicsd.upkeep import Upkeep

RECORDS = 4  # of a segment: one look at an index takes several of them


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    made = Library(str(tmp_path / "data"), FakeClock(), file_bytes=8 << 20)
    yield made
    made.close()


def sealed(library: Library, name: str, segments: int = 3) -> list[Path]:
    """A topic of so many segments; their data parts."""
    library.put(name)
    for first in range(0, segments * RECORDS, RECORDS):
        library.append(name, [{"data": f"{name} {n:06d}" + "x" * 300, "tag": f"t{n % 2}"} for n in range(first, first + RECORDS)])
        library.seal(name)
    library.checkpoint()
    return sorted(Path(library.directory).glob(f"topics/*/{library.state(name)['epoch']:016x}/*.data"))


def flip(path: Path, what: bytes) -> None:
    """Change a byte where it stands: who has it mapped sees it too."""
    raw = path.read_bytes()
    at = raw.index(what)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([raw[at] ^ 0x10]))


def ruin(paths: list[Path], name: str) -> None:
    """Damage the last record of each segment."""
    for number, path in enumerate(paths):
        flip(path, f"{name} {number * RECORDS + RECORDS - 1:06d}".encode())


def agree(library: Library, *names: str) -> None:
    """What is counted is what is read."""
    for name in names:
        records, state = library.read_all(name)[0], library.state(name)
        assert state["count"] == len(records)
        assert state["bytes"] == sum(len(record["data"]) + 2 + len(record["tag"]) for record in records)


def shown(library: Library, word: str) -> int:
    """What the metrics say of all topics."""
    return int(to_json(collect(library.shared, 1, 0, [], False))[f"topics_{word}_live"])


def looked(library: Library, **more: Any) -> Upkeep:
    """A keeper that has looked at what was met so far."""
    care = library.upkeep(rewrite=False, **more)
    care.step(0, 0)
    return care


def restarted(library: Library) -> Upkeep:
    """Another keeper, after the writer has started again."""
    library.kill()
    return library.upkeep(rewrite=False)


@pytest.mark.parametrize("when", ["the keeper is there", "the keeper is away", "after a start"])
@pytest.mark.parametrize("names", [["t"], ["t", "u"]])
def test_a_read_that_meets_damage_in_several_files_tells_of_each(library: Library, names: list[str], when: str) -> None:
    paths = {name: sealed(library, name) for name in names}
    care = library.upkeep(rewrite=False)
    if when == "the keeper is there":
        care.step(0, 0)
    for name in names:
        ruin(paths[name], name)
    if when == "after a start":
        care = restarted(library)
    for name in names:
        library.diff(name)
    if when == "the keeper is away":
        care = library.upkeep(rewrite=False)
    care.step(1, 0)
    assert care.figures.get("damaged") == 3 * len(names)
    assert {path for path, _offset, _what in care.damage._found} == {path for name in names for path in paths[name]}
    agree(library, *names)
    assert all(library.state(name)["count"] == 3 * (RECORDS - 1) for name in names)
    care = restarted(library)
    for name in names:
        library.diff(name)
    care.step(1, 0)
    assert care.figures.get("damaged") == 3 * len(names)
    agree(library, *names)


def test_more_files_than_one_read_was_made_for_are_told(library: Library) -> None:
    paths = sealed(library, "t", 300)
    for path in paths:
        path.unlink()
    library.diff("t")
    library.diff("t", from_seq=300 * RECORDS - 2)
    care = looked(library)
    assert {path for path, _offset, _what in care.damage._found} == set(paths)
    assert library.state("t")["count"] == 0


@pytest.mark.parametrize("pack", [False, True])
def test_a_file_that_is_removed_under_its_map_is_told_without_a_read_or_a_scrub(library: Library, pack: bool) -> None:
    paths = sealed(library, "t")
    if pack:
        library.append("t", [{"data": f"t {n:06d}", "tag": "t0"} for n in range(12, 12 + RECORDS)])
        library.seal("t", pack=True)
        library.checkpoint()
        paths = list(Path(library.directory).rglob("*.pack"))
    care = looked(library)
    whole = library.read_all("t")
    agree(library, "t")
    aside = paths[-1].rename(paths[-1].with_suffix(".aside"))
    assert library.read_all("t") == whole, "whoever has it mapped does not miss it"
    care.step(10_000, 0)
    assert care.figures.get("damaged") > 0 and {path for path, _offset, _what in care.damage._found} == {paths[-1]}
    [tombstone] = library.read_all("t")[1]
    assert (tombstone["reason"], tombstone["gap_to"] - tombstone["gap_from"] + 1) == ("corrupt", RECORDS)
    agree(library, "t")
    care.step(20_000, 0)
    agree(library, "t")
    library.kill()
    assert library.read_all("t")[1] == [tombstone]
    library.stop()
    aside.rename(paths[-1])
    care = looked(library)
    assert library.read_all("t") == whole
    care.step(30_000, 0)
    agree(library, "t")


def test_a_file_that_is_put_back_is_read_again_at_once(library: Library) -> None:
    paths = sealed(library, "t")
    care, whole = looked(library), library.read_all("t")
    raw = paths[1].read_bytes()
    paths[1].unlink()
    care.step(10_000, 0)
    assert len(library.read_all("t")[1]) == 1
    paths[1].write_bytes(raw)
    assert library.read_all("t") == whole
    care.step(20_000, 0)
    agree(library, "t")


def test_a_file_that_is_longer_than_it_was_made_is_read_once_and_no_more(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = sealed(library, "t")
    care, reads = looked(library), list[Any]()
    with paths[1].open("ab") as file:
        file.write(b"x")
    look_at = care.damage.look_at
    monkeypatch.setattr(care.damage, "look_at", lambda file: (reads.append(file), look_at(file)))
    for now_ms in (10_000, 20_000, 30_000):
        care.step(now_ms, 0)
    assert len(reads) == 1


def test_damage_on_this_disk_and_in_the_cold_tier_is_told_by_one_read(library: Library, tmp_path: Path) -> None:
    paths = sealed(library, "t")
    (tmp_path / "cold").mkdir()
    cold = FolderCold(tmp_path / "cold")
    relocation = library.relocation(cold, segments=1)
    for step in range(20):
        relocation.step(step * 1000)
    for _ in range(2):
        library.checkpoint()
    library.kill()
    objects = sorted((tmp_path / "cold").rglob("*.data"))
    assert (len(objects), paths[2].exists()) == (2, True)
    ruin([*objects, paths[2]], "t")
    library.cold = cold
    upkeep.cold_attach(library.shared, 4 << 20)
    library.diff("t")
    care = looked(library)
    assert sorted(known[2] for known in care.damage._found.values() if known is not None) == [1, RECORDS + 1, 2 * RECORDS + 1]


def test_an_index_that_is_cut_short_under_its_map_costs_no_record_of_the_cold_tier(library: Library, tmp_path: Path) -> None:
    library.put("t")
    for first in range(0, 900, 100):
        library.append("t", [{"data": f"{n:06d}" + "x" * 300} for n in range(first, first + 100)])
        if first % 300 == 200:
            library.seal("t")
    library.checkpoint()
    (tmp_path / "cold").mkdir()
    library.cold = FolderCold(tmp_path / "cold")
    upkeep.cold_attach(library.shared, 4 << 20)
    relocation = library.relocation(library.cold, segments=1)
    for step in range(20):
        relocation.step(step * 1000)
    before = library.read_all("t")
    assert len(before[0]) == 900 and len(list((tmp_path / "cold").rglob("*.data"))) == 2
    os.truncate(next(Path(library.directory).rglob("*301.1.idx")), 1000)
    care = library.upkeep(rewrite=False)
    for mono_ms in range(3):
        with suppress(IoError):  # until the keeper has looked
            library.read_all("t")
        care.step(mono_ms, 0)
    assert care.figures.get("damaged") == 1
    assert library.read_all("t") == before


def test_a_keeper_that_comes_after_another_knows_what_that_one_had_found(library: Library) -> None:
    paths = sealed(library, "t")
    ruin(paths[:2], "t")
    library.diff("t")
    care = looked(library)
    assert care.figures.get("damaged") == 2
    flip(paths[2], b"t 000011")
    assert eventually(lambda: library.diff("t", from_seq=3 * RECORDS - 1)["tombstone"])  # what was verified is believed for a second
    after = looked(library, figures=care.figures)
    assert after.figures.get("damaged") == 3
    agree(library, "t")


def test_what_a_keeper_had_counted_is_counted_again_by_the_next_one(library: Library) -> None:
    paths = sealed(library, "t")
    ruin(paths, "t")
    library.diff("t")
    care = looked(library)
    assert library.state("t")["count"] == 3 * (RECORDS - 1)
    library.delete("t", before_seq=3 * RECORDS + 1)
    after = looked(library, figures=care.figures)
    assert after.figures.get("damaged") == 0
    library.append("t", [{"data": "a"}])
    assert library.state("t")["count"] == 1, "nothing that is damaged is left"


def test_a_second_place_in_a_file_that_is_damaged_already_is_told_too(library: Library) -> None:
    paths = sealed(library, "t")
    ruin(paths[:1], "t")
    library.diff("t")
    care = looked(library)
    first = set(care.damage._found)
    flip(paths[0], b"t 000001")
    care.step(10_000, 0)
    assert set(care.damage._found) > first
    care.step(20_000, 0)
    agree(library, "t")
    assert library.state("t")["count"] == 3 * RECORDS - 2


def by_a_router(library: Library) -> None:
    library.route("t", "copies", from_seq=0)


def by_a_delete(library: Library) -> None:
    library.delete("t", match=["tag", "Eq", "t1"])


@pytest.mark.parametrize("meet", [by_a_router, by_a_delete])
def test_damage_that_the_writer_meets_is_told_of_each_file(library: Library, meet: Callable[[Library], None]) -> None:
    paths = sealed(library, "t")
    wrong = paths if meet is by_a_router else [path.with_suffix(".tag") for path in paths]
    if meet is by_a_router:
        ruin(paths, "t")
    for path in wrong if meet is by_a_delete else []:
        flip(path, b"t1")
    meet(library)
    care = library.upkeep(rewrite=False)
    care.make_anew = lambda *_args, **_options: False  # type: ignore[method-assign]  # as on a disk without room
    care.step(0, 0)
    assert {path for path, _offset, _what in care.damage._found} == set(wrong)


def test_the_totals_leave_out_what_each_topic_leaves_out(library: Library) -> None:
    paths = {name: sealed(library, name) for name in ("t", "u", "v")}

    def summed(word: str) -> int:
        return sum(library.state(name)[word] for name in library.names())

    assert (shown(library, "records"), shown(library, "bytes")) == (summed("count"), summed("bytes"))
    for name in ("t", "u"):
        ruin(paths[name], name)
        library.diff(name)
    care = looked(library)
    assert (shown(library, "records"), shown(library, "bytes")) == (summed("count"), summed("bytes"))
    assert shown(library, "records") == 9 * RECORDS - 6
    library.drop("u")
    assert (shown(library, "records"), shown(library, "bytes")) == (summed("count"), summed("bytes"))
    care.step(10_000, 0)
    assert shown(library, "records") == summed("count") == 6 * RECORDS - 3
    library.kill()
    assert shown(library, "records") == summed("count") == 6 * RECORDS, "nobody has met it since"
    library.diff("t")
    care.step(20_000, 0)
    assert (shown(library, "records"), shown(library, "bytes")) == (summed("count"), summed("bytes"))
    library.delete("t", before_seq=3 * RECORDS + 1)
    care.step(30_000, 0)
    assert (shown(library, "records"), shown(library, "bytes")) == (summed("count"), summed("bytes"))


# ---- deletes by tag while an index or tags change


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("what", ["its first letter", "where it is", "deleted"])
def test_a_delete_by_tag_reaches_every_record_when_what_it_goes_by_has_just_changed(library: Library, what: str, pack: bool) -> None:
    library.put("t")
    for first in range(0, 300, 50):
        library.append("t", [{"data": f"{n:06d}" + "x" * 100, "tag": f"t{n % 7}"} for n in range(first, first + 50)])
    library.seal("t", pack=pack)
    library.delete("t", match=["tag", "Eq", "t1"])  # all of it is verified now
    path = next(Path(library.directory).rglob("*.pack" if pack else "*.idx" if what == "deleted" else "*.tag"))
    raw = path.read_bytes()
    with path.open("r+b") as file:
        if what == "deleted":  # so the index says of the records with t3
            for seq in range(4, 301, 7):
                at = raw.index(b"TPSGIDX1") + 128 + 24 * (seq - 1) + 12
                file.seek(at)
                file.write(bytes([raw[at] | 1]))
        else:
            at = raw.index(b"TPSGTAG1") + (raw[raw.index(b"TPSGTAG1") :].index(b"t0t1t2t3") + 6 if what == "its first letter" else 128 + 3 * 16)
            file.seek(at)
            file.write(bytes([raw[at] ^ 0x10]))
    assert library.delete("t", match=["tag", "Eq", "t3"])["deleted"] == len(range(3, 300, 7))
    care = library.upkeep()
    for mono_ms in range(3):
        care.step(mono_ms, 0)
    assert care.figures.get("rewrites") == 1 and care.figures.get("damaged") == 0
    left = [seq for seq in range(1, 301) if (seq - 1) % 7 not in (1, 3)]
    assert [record["$seq"] for record in library.read_all("t")[0]] == left
    library.kill()
    assert [record["$seq"] for record in library.read_all("t")[0]] == left
    assert library.delete("t", match=["tag", "Glob", "t*"])["deleted"] == len(left)
