"""Damage in files of a running store: whoever meets it raises the alarm, the keeper finds what is true, counts and reads and tools agree."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.in_process import Library
from fakes.patience import eventually
from fakes.workers import Workers
from oracle.model import Refused
from topicsd._native import log_damage, work
from topicsd._native.reader import IoError
from topicsd.engine import frames
from topicsd.engine.frames import Deletion
from topicsd.engine.owed import LOOK_MS
from topicsd.segments.fsck import fsck
from topicsd.upkeep import Upkeep

RECORDS = 300


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    made = Library(str(tmp_path), FakeClock(), file_bytes=8 << 20)
    yield made
    made.close()


def fill(library: Library, name: str, count: int = RECORDS) -> None:
    for first in range(0, count, 50):
        library.append(name, [{"data": f"{n:06d}" + "x" * 500, "tag": f"t{n % 7}"} for n in range(first, first + 50)])


def sealed(library: Library, *names: str, pack: bool = False) -> None:
    for name in names:
        library.put(name)
        fill(library, name)
    if not pack:
        for name in names:
            library.seal(name)
        return
    library.sequencer.sync()
    slots = [library.sequencer.find(name.encode()) for name in names]
    library.sealing(bytes_max=0)._pack([(slot, library.sequencer.topic(slot)["topic_id"]) for slot in slots])


def one(library: Library, pattern: str) -> Path:
    return next(Path(library.directory).rglob(pattern))


def flip(path: Path, offset: int) -> None:
    """Change a byte where it stands: who has it mapped sees it too."""
    with path.open("r+b") as file:
        file.seek(offset)
        was = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([was ^ 0x10]))


def alarmed(library: Library, care: Upkeep) -> bool:
    """What readiness goes by (api/probes.py): a read has met something that the keeper has not looked at."""
    return library.shared.get("damage_met") != care.figures.get("damage_looked")


def lost(library: Library, name: str) -> set[int]:
    """The seqs that a reader is told as corrupt."""
    tombstones = library.read_all(name)[1]
    assert {each["reason"] for each in tombstones} <= {"corrupt"}
    return {seq for each in tombstones for seq in range(each["gap_from"], each["gap_to"] + 1)}


def delete_by_tags(library: Library) -> list[int]:
    """Delete by two tags; the seqs that are left."""
    library.delete("t", match=["tag", "Eq", "t2"])
    library.delete("t", match=["tag", "Glob", "t3*"], before_seq=200)
    return [seq for seq in range(1, RECORDS + 1) if (seq - 1) % 7 != 2 and ((seq - 1) % 7 != 3 or seq >= 200)]


def agree(library: Library, name: str, care: Upkeep) -> None:
    """Every live seq is read or told, and what is counted is what is read."""
    records, missing = library.read_all(name)[0], lost(library, name)
    seqs = {record["$seq"] for record in records}
    assert not seqs & missing and seqs | missing == set(range(1, RECORDS + 1))
    assert care.figures.get("damaged") > 0
    state = library.state(name)
    assert state["count"] == len(records)
    if records:
        size = sum(len(record["data"]) + 2 + len(record["tag"]) for record in records)
        assert abs(state["bytes"] - size) <= len(missing) * 512, "bytes are what is left"
    else:
        assert state["bytes"] == 0
    assert state["earliest"] == min(seqs, default=RECORDS + 1)


def test_a_read_that_meets_damage_raises_the_alarm_and_the_keeper_looks_at_once(library: Library) -> None:
    sealed(library, "t")
    care = library.upkeep(rewrite=False)
    care.step(0, 0)
    assert not alarmed(library, care) and care.figures.get("damaged") == 0
    before = library.state("t")
    flip(one(library, "*.data"), 30_000)
    missing = lost(library, "t")
    assert len(missing) > 0
    assert alarmed(library, care)
    care.step(1, 1)
    assert not alarmed(library, care) and care.figures.get("damaged") == 1
    after = library.state("t")
    assert before["count"] - after["count"] == len(missing)
    assert before["bytes"] - after["bytes"] == len(missing) * (508 + 2)
    agree(library, "t", care)


def test_an_alarm_for_nothing_ends_with_the_look(library: Library) -> None:
    sealed(library, "t")
    care = library.upkeep()
    path = one(library, "*.data")
    flip(path, 30_000)
    assert lost(library, "t")
    flip(path, 30_000)
    care.step(0, 0)
    assert not alarmed(library, care) and care.figures.get("damaged") == 0
    assert lost(library, "t") == set() and library.state("t")["count"] == RECORDS


def test_what_was_good_when_it_was_mapped_is_verified_again_once_the_scrub_has_found_it_bad(library: Library) -> None:
    sealed(library, "t")
    assert lost(library, "t") == set()  # every frame is verified, in this process
    flip(one(library, "*.data"), 30_000)
    care = library.upkeep(scrub_bytes_per_second=1 << 40, rewrite=False)
    for mono_ms in range(3):
        care.step(mono_ms, 0)
    assert care.figures.get("damaged") == 1
    agree(library, "t", care)


def test_what_was_good_is_verified_again_a_second_later(library: Library) -> None:
    sealed(library, "t")
    assert lost(library, "t") == set()  # every frame is verified, in this process
    flip(one(library, "*.data"), 30_000)
    seq = eventually(lambda: lost(library, "t"))
    assert len(seq) == 1
    flip(one(library, "*.data"), 30_000)
    assert lost(library, "t") == set(), "what is not good is remembered by nobody"


def test_the_earliest_seq_is_that_of_the_first_record_that_can_be_read(library: Library) -> None:
    library.put("t")
    for _ in range(3):
        fill(library, "t", 100)
        library.seal("t")
    library.checkpoint()
    first, second, _third = sorted(Path(library.directory).rglob("*.data"))
    assert library.delete("t", before_seq=11)["deleted"] == 10
    assert library.state("t")["earliest"] == library.diff("t", from_seq=0)["earliest_seq"] == 11
    first.unlink()
    library.kill()
    care = library.upkeep(rewrite=False)
    care.step(0, 0)
    page = library.diff("t", from_seq=0)
    assert library.state("t")["earliest"] == page["earliest_seq"] == 101
    assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"], page["tombstone"]["reason"]) == (11, 100, "corrupt")
    assert library.diff("t", from_seq=150)["earliest_seq"] == 101
    flip(second, 30_000)
    assert eventually(lambda: len(lost(library, "t")) == 91), "damage elsewhere moves nothing"
    assert library.state("t")["earliest"] == 101


@pytest.mark.parametrize("restart", [False, True])
def test_packs_that_have_changed_names_are_told_by_scrub_fsck_and_reads_until_they_are_changed_back(library: Library, restart: bool) -> None:
    sealed(library, "t", "u", pack=True)
    sealed(library, "longer name", "w", "x", pack=True)
    library.checkpoint()
    one_pack, other = sorted(Path(library.directory).glob("packs/*.pack"))

    def swap() -> None:
        one_pack.rename(one_pack.with_suffix(".x"))
        other.rename(one_pack)
        one_pack.with_suffix(".x").rename(other)

    assert lost(library, "t") == set()
    swap()
    if restart:
        library.kill()
    care = library.upkeep(scrub_bytes_per_second=1 << 40)
    for mono_ms in (0, 1, 2, 100_000, 100_001, 100_002, 200_000, 200_001, 200_002):
        care.step(mono_ms, 0)
        assert not restart or care.figures.get("damaged") > 0, "the start has found it: it stays told"
    assert care.figures.get("damaged") > 0
    if restart:
        for name in ("t", "u", "longer name", "w", "x"):
            assert lost(library, name) == set(range(1, RECORDS + 1))
            agree(library, name, care)
    library.close()
    problems = fsck(Path(library.directory)).problems
    assert {problem.path for problem in problems} == {one_pack, other} and all(problem.loses for problem in problems)
    swap()
    assert fsck(Path(library.directory)).problems == []


@pytest.mark.parametrize("pack", [False, True])
def test_fsck_tells_files_that_the_snapshot_leads_to_and_that_are_gone_or_another_s(library: Library, pack: bool) -> None:
    sealed(library, "t", "u", "v", pack=pack)
    library.checkpoint()
    library.close()
    directory = Path(library.directory)
    assert fsck(directory).problems == []
    paths = sorted(directory.rglob("*.pack")) or sorted(directory.rglob("*.data"))
    for path in list(paths[0].parent.glob(f"{paths[0].stem}.*")):
        path.rename(directory / path.name)
    problems = fsck(directory).problems
    assert [(problem.path, problem.loses) for problem in problems] == [(paths[0], True)]
    assert "the snapshot leads there" in problems[0].what


@pytest.mark.parametrize("cut", ["in the second segment", "in front of all"])
def test_fsck_tells_what_a_pack_that_was_cut_short_has_lost(library: Library, cut: str) -> None:
    sealed(library, "t", "u", "v", pack=True)
    library.checkpoint()
    library.close()
    directory, path = Path(library.directory), one(library, "*.pack")
    raw = path.read_bytes()
    begins = [found.start() for found in re.finditer(b"TPSGDAT1", raw)]
    os.truncate(path, begins[1] + 30_000 if cut == "in the second segment" else 100)
    for mend in (False, True, False):
        report = fsck(directory, mend=mend)
        losses = [problem for problem in report.problems if problem.loses]
        if cut == "in the second segment":
            records = [int(found[1]) for problem in losses if (found := re.search(r"(\d+) records lost", problem.what))]
            assert begins[1] < losses[0].offset < begins[2] == losses[1].offset and len(losses) == 2
            assert len(records) == 1 and 0 < records[0] < RECORDS and report.records + records[0] == 2 * RECORDS
        else:
            assert [problem.offset for problem in losses] == begins
        assert {problem.path for problem in report.problems} == {path}


GONE: dict[str, Callable[[Path], None]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: os.truncate(path, 0),
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
}


@pytest.mark.parametrize("way", list(GONE))
@pytest.mark.parametrize("suffix", ["idx", "tag"])
def test_an_index_or_tags_that_are_gone_are_told_at_the_start_and_made_again(library: Library, suffix: str, way: str) -> None:
    sealed(library, "t")
    library.checkpoint()
    before = library.read_all("t"), library.state("t")
    path = one(library, f"*.{suffix}")
    GONE[way](path)
    library.kill()
    (said,) = library.store.suspects
    assert str(path.with_suffix("")) in said
    care = library.upkeep()
    assert alarmed(library, care)
    care.step(0, 0)
    for mono_ms in range(3):
        care.step(mono_ms, 0)
    assert care.figures.get("rewrites") == 1 and care.figures.get("damaged") == 0
    assert (library.read_all("t"), library.state("t")) == before
    library.kill()
    assert library.store.suspects == [] and (library.read_all("t"), library.state("t")) == before
    assert library.delete("t", match=["tag", "Eq", "t1"])["deleted"] == len(range(1, RECORDS, 7))


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def flip_a_block(path: Path) -> None:
    flip(path, 128 + 24 * 100)


INDEX_WAYS: dict[str, Callable[[Path], None]] = {**GONE, "zeroes": zero, "header": lambda path: flip(path, 40), "a block": flip_a_block}


@pytest.mark.parametrize(("way", "restart"), [*((way, True) for way in INDEX_WAYS), *((way, False) for way in GONE)])
def test_the_first_reader_of_a_damaged_index_gets_every_record(library: Library, way: str, restart: bool) -> None:
    sealed(library, "t")
    library.delete("t", match=["tag", "Eq", "t3"])
    library.checkpoint()
    before = library.read_all("t"), library.state("t")
    care = library.upkeep(rewrite=False)
    care.make_anew = lambda *_args, **_options: False  # type: ignore[method-assign]  # as on a disk without room
    INDEX_WAYS[way](one(library, "*.idx"))
    if restart:
        library.kill()
    assert (library.read_all("t"), library.state("t")) == before
    assert library.diff("t", from_seq=250)["records"][0]["$seq"] == 251
    for mono_ms in range(4):
        care.step(mono_ms, 0)
    assert care.figures.get("damaged") > 0 or not restart, "it is told all the same"
    assert (library.read_all("t"), library.state("t")) == before


def test_a_damaged_index_costs_no_record_of_a_pack_and_none_that_a_router_copies(library: Library) -> None:
    sealed(library, "a", "b", pack=True)
    sealed(library, "c")
    raw = one(library, "*.pack").read_bytes()
    flip(one(library, "*.pack"), raw.index(b"TPSGIDX1") + 128 + 30)
    flip(one(library, "*.pack"), raw.index(b"TPSGIDX1", raw.index(b"TPSGIDX1") + 1) + 20)
    one(library, "*.idx").unlink()
    library.kill()
    for name in "abc":
        assert lost(library, name) == set() and library.state(name)["count"] == RECORDS
        library.route(name, f"copies of {name}", from_seq=0)
        assert [record["data"] for record in library.read_all(f"copies of {name}")[0]] == [record["data"] for record in library.read_all(name)[0]]


def test_data_that_is_damaged_too_loses_only_its_own_records(library: Library) -> None:
    sealed(library, "t")
    one(library, "*.idx").unlink()
    flip(one(library, "*.data"), 30_000)
    library.kill()
    care = library.upkeep()
    for mono_ms in range(4):
        care.step(mono_ms, 0)
    assert care.figures.get("rewrites") == 0 and len(lost(library, "t")) == 1
    agree(library, "t", care)
    library.kill()
    assert len(lost(library, "t")) == 1


def test_a_page_of_an_index_that_the_disk_does_not_give_back_costs_no_record(library: Library) -> None:
    sealed(library, "t")
    before = library.read_all("t"), library.state("t")
    os.truncate(one(library, "*.idx"), 4096)  # under the map: a load from behind there is a SIGBUS, as with a bad page
    assert (library.read_all("t"), library.state("t")) == before


@pytest.mark.parametrize("pack", [False, True])
def test_what_fsck_could_not_repair_is_told_and_not_counted_without_a_scrub(library: Library, pack: bool) -> None:
    sealed(library, "t", pack=pack)
    library.checkpoint()
    path = one(library, "*.pack" if pack else "*.data")
    index, begins = (path, path.read_bytes().index(b"TPSGIDX1")) if pack else (one(library, "*.idx"), 0)
    for spoiled, offset in ((path, 30_000), (index, begins + 128 + 24 * 100)):
        with spoiled.open("r+b") as file:
            file.seek(offset)
            file.write(bytes(24))
    library.close()
    assert fsck(Path(library.directory), mend=True).done
    library.kill()
    care = library.upkeep(rewrite=False)
    missing = lost(library, "t")
    assert 0 < len(missing) < RECORDS and alarmed(library, care)
    care.step(0, 0)
    assert not alarmed(library, care)
    agree(library, "t", care)


def test_a_pack_that_is_cut_short_under_its_map_keeps_every_record_in_front_of_the_cut(library: Library) -> None:
    sealed(library, "t", "u", "v", pack=True)
    for name in "tuv":
        assert lost(library, name) == set()
    path = one(library, "*.pack")
    os.truncate(path, [found.start() for found in re.finditer(b"TPSGDAT1", path.read_bytes())][1] + 30_000)
    care = library.upkeep(rewrite=False)
    left = []
    for name in "tuv":
        for mono_ms in range(3):
            with suppress(IoError):  # until the keeper has looked
                library.read_all(name)
            care.step(mono_ms, 0)
        left.append(len(library.read_all(name)[0]))
        if name != "t":
            agree(library, name, care)
    assert left[0] == RECORDS and 0 < left[1] < RECORDS and left[2] == 0


@pytest.mark.parametrize("way", list(GONE))
@pytest.mark.parametrize("pack", [False, True])
def test_data_that_is_gone_is_told_at_the_start_and_not_counted(library: Library, way: str, pack: bool) -> None:
    sealed(library, "t", "other", pack=pack)
    library.checkpoint()
    slot = library.sequencer.find(b"t")
    path = one(library, "*.pack") if pack else next(Path(library.directory).glob(f"topics/*/{library.sequencer.topic(slot)['topic_id']:016x}/*.data"))
    GONE[way](path)
    library.kill()
    assert [str(path) in said for said in library.store.suspects] == [True]
    care = library.upkeep()
    care.step(0, 0)
    for mono_ms in range(4):
        care.step(mono_ms, 0)
    agree(library, "t", care)
    assert (way == "cut") == bool(library.read_all("t")[0])
    assert care.figures.get("rewrites") == (1 if pack and way == "cut" else 0)
    if not pack:
        assert library.state("other")["count"] == RECORDS and lost(library, "other") == set()
    library.kill()
    care.step(10, 0)
    agree(library, "t", care)


def test_a_file_that_is_put_back_is_as_it_was(library: Library) -> None:
    sealed(library, "t")
    library.checkpoint()
    before = library.read_all("t"), library.state("t")
    path = one(library, "*.data")
    path.rename(path.with_suffix(".away"))
    library.kill()
    care = library.upkeep(scrub_bytes_per_second=1 << 40)
    for mono_ms in range(3):
        care.step(mono_ms, 0)
    assert library.state("t")["count"] == 0
    path.with_suffix(".away").rename(path)
    for mono_ms in range(100_000, 100_003):
        care.step(mono_ms, 0)
    assert care.figures.get("damaged") == 0
    assert (library.read_all("t"), library.state("t")) == before


def test_a_damaged_index_in_a_pack_is_made_again_and_the_other_topics_stay(library: Library) -> None:
    sealed(library, "a", "b", "c", pack=True)
    library.delete("b", match=["tag", "Eq", "t2"])
    before = {name: (library.read_all(name), library.state(name)) for name in "abc"}
    path = one(library, "*.pack")
    raw = path.read_bytes()
    second = raw.index(b"TPSGIDX1", raw.index(b"TPSGIDX1") + 1)
    flip(path, second + 400)
    library.kill()
    care = library.upkeep()
    assert lost(library, "b") == set() and alarmed(library, care)
    for mono_ms in range(4):
        care.step(mono_ms, 0)
    assert care.figures.get("rewrites") == 1
    assert {name: (library.read_all(name), library.state(name)) for name in "abc"} == before
    library.kill()
    assert {name: (library.read_all(name), library.state(name)) for name in "abc"} == before


def test_a_page_that_the_disk_does_not_give_back_is_an_error_first_and_lost_once_the_keeper_has_met_it_too(library: Library) -> None:
    sealed(library, "t")
    assert lost(library, "t") == set()
    os.truncate(one(library, "*.data"), 40_960)  # under the map: a load from behind there is a SIGBUS, as with a bad page
    with pytest.raises(IoError):
        library.read_all("t")
    care = library.upkeep()
    assert alarmed(library, care)
    care.step(0, 0)
    agree(library, "t", care)
    assert 0 < len(lost(library, "t")) < RECORDS


def test_a_process_without_room_for_a_map_calls_nothing_lost(library: Library) -> None:
    sealed(library, "t")
    care = library.upkeep()
    library.kill()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # every descriptor above 2 is one too many
    try:
        with pytest.raises(IoError):
            library.diff("t")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not alarmed(library, care)
    assert lost(library, "t") == set()


def test_damage_in_the_log_that_a_read_meets_is_looked_at(library: Library) -> None:
    library.put("t")
    fill(library, "t")
    care = library.upkeep()
    care.step(0, 0)
    path = max((path for path in Path(library.directory).rglob("*.log")), key=lambda path: path.stat().st_blocks)
    raw = path.read_bytes()
    at = raw.index(b"000123x") - 17 - len("t4")  # the lengths of its record entry
    flip(path, at & ~7)
    before = library.shared.get("log_damage_met")
    for offset in range(at & ~7, (at & ~7) + 16):
        try:
            library.read_all("t")
        except (IoError, Refused):
            break
        flip(path, offset)
    else:
        raise AssertionError("no read has met it")
    assert library.shared.get("log_damage_met") > before
    care.step(1, 0)
    assert care.figures.get("log_damaged") == 1
    assert care.figures.get("log_damage_looked") == library.shared.get("log_damage_met")
    library.kill()
    assert library.store.degraded and lost(library, "t")


def tail(library: Library, name: str = "t", **config: Any) -> Path:
    """A topic whose records stand in the log alone; the log file that holds them."""
    library.put(name, **config)
    fill(library, name)
    library.sequencer.sync()
    return max((path for path in Path(library.directory).rglob("*.log")), key=lambda path: path.stat().st_blocks)


def met_by_a_scrub(library: Library, care: Upkeep) -> None:
    care.step(100_000, 0)
    care.step(100_001, 0)  # a quarter of a second later it counts


def met_by_a_seal(library: Library, care: Upkeep) -> None:
    with pytest.raises(AssertionError, match="topic 1: "):
        library.seal("t")
    care.damage.log_is_suspect = True  # as the keeper does when a seal fails (keeper.py)
    care.step(2, 0)


def met_by_a_read(library: Library, care: Upkeep) -> None:
    with pytest.raises((IoError, Refused)):
        library.read_all("t")
    care.step(2, 0)


@pytest.mark.parametrize("meet", [met_by_a_scrub, met_by_a_seal, met_by_a_read])
def test_damage_in_the_log_is_told_to_readers_at_once_and_to_those_after_a_start_as_well(
    library: Library, meet: Callable[[Library, Upkeep], None]
) -> None:
    path = tail(library)
    care = library.upkeep(scrub_bytes_per_second=1 << 40)
    care.step(0, 0)
    before = library.state("t")
    flip(path, path.read_bytes().index(b"000123x"))
    meet(library, care)
    assert care.figures.get("log_damaged") == 1
    missing = lost(library, "t")
    assert missing == set(range(101, 151)), "the whole batch: it has one checksum"
    after = library.state("t")
    assert (before["count"] - after["count"], before["bytes"] - after["bytes"]) == (50, 50 * 510)
    records = library.read_all("t")[0]
    assert {record["$seq"] for record in records} == set(range(1, 301)) - missing
    seen = library.read_all("t")
    library.kill()
    assert library.store.degraded and library.read_all("t") == seen and library.state("t")["count"] == after["count"]
    care.step(200_000, 0)
    care.step(200_001, 0)
    assert library.read_all("t") == seen and library.state("t")["count"] == after["count"]
    library.seal("t")
    assert library.read_all("t") == seen


def test_a_record_of_the_log_that_was_good_is_verified_again_a_second_later(library: Library) -> None:
    path = tail(library)
    care = library.upkeep()
    assert lost(library, "t") == set()  # every frame is verified, in this process
    flip(path, path.read_bytes().index(b"000123x"))

    def met() -> bool:
        try:
            return not library.read_all("t")
        except (IoError, Refused):
            return True

    assert eventually(met), "it is believed for ever"
    care.step(1, 0)
    assert lost(library, "t") == set(range(101, 151))


def test_a_router_that_must_read_the_log_copies_no_record_that_has_changed(library: Library) -> None:
    path = tail(library)
    care = library.upkeep()
    flip(path, path.read_bytes().index(b"000123x"))
    before = library.shared.get("log_damage_met")
    library.route("t", "copies", from_seq=0)
    assert library.shared.get("log_damage_met") > before
    care.step(1, 0)
    good = [record["data"] for record in library.read_all("t")[0]]
    assert len(good) == RECORDS - 50 and [record["data"] for record in library.read_all("copies")[0]] == good


def test_damage_in_the_log_that_is_gone_at_the_second_look_is_told_no_longer(library: Library) -> None:
    path = tail(library)
    care = library.upkeep(scrub_bytes_per_second=1 << 40)
    at = path.read_bytes().index(b"000123x")
    seen, before = library.read_all("t"), library.state("t")
    flip(path, at)
    care.step(100_000, 0)
    assert lost(library, "t")
    flip(path, at)
    care.damage.log_is_suspect = True
    care.step(100_002, 0)
    assert care.figures.get("log_damaged") == 0
    assert library.read_all("t") == seen and library.state("t")["count"] == before["count"]
    library.seal("t")
    assert library.read_all("t") == seen


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_a_router_s_copies_of_damaged_records_are_told_too_and_no_others(library: Library, guarantee: str) -> None:
    library.put("t")
    library.route("t", "copies", guarantee=guarantee)
    path = tail(library)
    care = library.upkeep(scrub_bytes_per_second=1 << 40)
    flip(path, path.read_bytes().index(b"000123x"))
    met_by_a_scrub(library, care)
    assert lost(library, "copies") == lost(library, "t") == set(range(101, 151))
    assert library.state("copies")["count"] == library.state("t")["count"] == RECORDS - 50
    seen = library.read_all("copies")
    for restart in (library.kill, library.kill, library.stop):
        restart()
        assert library.read_all("copies") == seen
        assert library.state("copies")["head"] == library.state("t")["head"] == RECORDS


def test_jobs_whose_bytes_the_unsealed_log_has_lost_leave_the_queue(library: Library) -> None:
    path = tail(library, type="queue")
    care = library.upkeep(scrub_bytes_per_second=1 << 40)
    workers = Workers(library)

    def tell(slot: int, topic_id: int, seqs: list[int]) -> None:  # as a worker's process does (api/)
        library.call({"op": "queue.unreadable", "slot": slot, "topic_id": topic_id, "seqs": seqs})

    work.report_unreadable(tell)
    flip(path, path.read_bytes().index(b"000123x"))
    care.step(100_000, 0)
    got: list[int] = []
    while jobs := workers.claim("t", "w", 100):
        got += [job["$seq"] for job in jobs]
    assert got == [seq for seq in range(1, RECORDS + 1) if not 101 <= seq <= 150]
    work.report_unreadable(None)
    assert library.engine.queues.lost == 50
    assert workers.counters("t")[:2] == (0, RECORDS - 50)
    library.kill()
    again = Workers(library)
    assert sum(again.counters("t")[:2]) == RECORDS - 50


def test_more_ranges_than_can_be_shown_are_shown_as_far_as_they_go(library: Library) -> None:
    ranges = [(first << 8, (first << 8) + 8) for first in range(1000)]
    log_damage.show(library.shared, ranges[::-1])
    assert log_damage.shown(library.shared) == ranges[:512]
    log_damage.show(library.shared, [])
    assert log_damage.shown(library.shared) == []


def test_the_scrub_reads_the_log_too(library: Library) -> None:
    library.put("t")
    fill(library, "t")
    care = library.upkeep(scrub_bytes_per_second=1 << 40)
    care.step(0, 0)
    assert care.figures.get("log_damaged") == 0
    path = one(library, "*.log")
    flip(path, path.read_bytes().index(b"000123x"))
    care.step(100_000, 0)
    assert care.figures.get("log_damaged") == 1


@pytest.mark.parametrize("meet", [met_by_a_scrub, met_by_a_read])
@pytest.mark.parametrize("which", [0, 1], ids=["oldest", "second"])
def test_a_log_file_that_is_gone_is_told_to_readers_at_once_also_the_oldest(
    tmp_path: Path, which: int, meet: Callable[[Library, Upkeep], None]
) -> None:
    library = Library(str(tmp_path), FakeClock(), file_bytes=1 << 16)
    library.put("t")
    fill(library, "t", 600)
    library.checkpoint()
    library.kill()  # nobody has a file of it mapped
    care = library.upkeep(scrub_bytes_per_second=1 << 40)
    before = library.state("t")["count"]
    gone = sorted(tmp_path.rglob("*.log"))[which]
    gone.unlink()
    meet(library, care)
    assert care.figures.get("log_damaged") == 1
    missing = lost(library, "t")
    assert missing and (1 in missing) == (which == 0)
    assert {record["$seq"] for record in library.read_all("t")[0]} == set(range(1, 601)) - missing
    care.step(300_000, 0)
    assert library.state("t")["count"] == before - len(missing)
    care.damage.look_at_log(1)
    assert care.figures.get("log_damaged") == 1 and lost(library, "t") == missing, "what was not looked at is what it was"
    seen = library.read_all("t")
    library.kill()
    assert library.store.degraded and library.read_all("t") == seen
    care.step(400_000, 0)
    assert library.read_all("t") == seen
    library.close()


def test_fsck_scrub_start_and_reads_agree_on_one_damaged_directory(library: Library) -> None:
    names = [f"t{number}" for number in range(6)]
    sealed(library, *names)
    library.checkpoint()
    topics = Path(library.directory) / "topics"
    folder = {name: next(topics.glob(f"*/{library.state(name)['epoch']:016x}")) for name in names}
    part: dict[str, Any] = {name: {path.suffix: path for path in folder[name].iterdir()} for name in names}
    flip(part["t0"][".data"], 20_000)
    part["t1"][".data"].unlink()
    os.truncate(part["t2"][".data"], 50_000)
    flip(part["t3"][".idx"], 700)
    part["t4"][".tag"].unlink()
    library.close()
    told = {problem.path for problem in fsck(Path(library.directory)).problems}
    wrong = {part["t0"][".data"], part["t1"][".data"], part["t2"][".data"], part["t3"][".idx"], part["t4"][".tag"]}
    assert told == wrong
    library.open()
    assert {path for path in wrong if any(str(path) in said for said in library.store.suspects)} >= {part["t1"][".data"], part["t4"][".tag"]}
    care = library.upkeep(scrub_bytes_per_second=1 << 40, rewrite=False)
    care.make_anew = lambda *_args, **_options: False  # nothing is mended before everybody has been asked
    for mono_ms in range(8):
        care.step(mono_ms, 0)
    assert {path for path, _offset, _what in care.damage._found} == wrong
    for name in ("t0", "t1", "t2"):
        agree(library, name, care)
    assert lost(library, "t4") == lost(library, "t5") == set()
    assert lost(library, "t3") == set() and library.state("t3")["count"] == RECORDS


@pytest.mark.parametrize("restart", ["no", "kill", "snapshot"])
@pytest.mark.parametrize("way", ["missing", "flipped"])
@pytest.mark.parametrize("pack", [False, True])
def test_what_is_deleted_while_its_index_is_damaged_does_not_come_back_with_it(library: Library, pack: bool, way: str, restart: str) -> None:
    if pack and way == "missing":
        return
    sealed(library, "t", "other", pack=pack)
    path = one(library, "*.pack") if pack else one(library, f"{library.state('t')['epoch']:016x}/*.idx")
    if way == "missing":
        path.unlink()
    else:
        flip(path, path.read_bytes().index(b"TPSGIDX1") + 400)
    library.kill()
    assert lost(library, "t") == set()
    live = delete_by_tags(library)
    if restart == "snapshot":
        library.checkpoint()
    if restart != "no":
        library.kill()
        assert lost(library, "t") == set()
    care = library.upkeep()
    for mono_ms in range(4):
        care.step(mono_ms, 0)
    assert care.figures.get("rewrites") == 1
    for again in (lambda: None, library.kill, library.stop):
        again()
        assert [record["$seq"] for record in library.read_all("t")[0]] == live
        assert (library.state("t")["count"], library.state("t")["bytes"]) == (len(live), len(live) * 510)
    assert library.engine.owed.by_topic == {}


@pytest.mark.parametrize("restart", ["no", "kill", "snapshot"])
@pytest.mark.parametrize("what", ["own", "tags and data", "pack", "zeroed"])
def test_what_is_deleted_while_its_file_is_away_does_not_come_back_with_the_file(library: Library, what: str, restart: str) -> None:
    sealed(library, "t", "other", pack=what == "pack")
    library.checkpoint()
    folder = f"{library.state('t')['epoch']:016x}"
    pattern = {"own": f"{folder}/*", "tags and data": f"{folder}/*[ag]", "pack": "*.pack", "zeroed": f"{folder}/*"}[what]
    away = {path: path.read_bytes() for path in Path(library.directory).rglob(pattern) if path.is_file()}
    for path, raw in away.items():
        if what == "zeroed":
            path.write_bytes(bytes(len(raw)))
        else:
            path.unlink()
    care = library.upkeep(rewrite=False)
    for mono_ms in (0, 10_000):
        care.step(mono_ms, 0)
    assert lost(library, "t") == set(range(1, RECORDS + 1))
    live = delete_by_tags(library)
    if restart == "snapshot":
        library.checkpoint()
    if restart != "no":
        library.kill()
        assert lost(library, "t") == set(range(1, RECORDS + 1))
    library.engine.owed.tick()
    for path, raw in away.items():
        path.write_bytes(raw)
    assert lost(library, "t") == set(range(1, RECORDS + 1)), "nothing of it is read before what is owed is done"
    assert library.read_all("other")[0] or what != "pack"
    library.clock.advance(LOOK_MS)
    library.engine.tick()
    for again in (lambda: None, library.checkpoint, library.kill, library.stop):
        again()
        assert [record["$seq"] for record in library.read_all("t")[0]] == live
    assert library.engine.owed.by_topic == {}


def test_a_file_that_is_put_back_before_a_start_has_what_was_deleted_while_it_was_away(library: Library) -> None:
    sealed(library, "t")
    library.checkpoint()
    away = {path: path.read_bytes() for path in Path(library.directory).rglob(f"{library.state('t')['epoch']:016x}/*") if path.is_file()}
    for path in away:
        path.unlink()
    library.kill()
    library.delete("t", match=["tag", "Eq", "t2"])
    library.checkpoint()
    library.kill()
    library.kill()
    for path, raw in away.items():
        path.write_bytes(raw)
    library.kill()
    assert {record["$seq"] for record in library.read_all("t")[0]} == {seq for seq in range(1, RECORDS + 1) if (seq - 1) % 7 != 2}


def test_a_pass_reads_the_newest_of_a_log_and_an_alarm_all_of_it(tmp_path: Path) -> None:
    library = Library(str(tmp_path), FakeClock(), file_bytes=1 << 16)
    library.put("t")
    fill(library, "t", 600)
    care = library.upkeep(scrub_bytes_per_second=1 << 40)
    oldest = min(tmp_path.rglob("*.log"))
    at = oldest.read_bytes().index(b"000023x")
    flip(oldest, at)
    whole = care.damage.look_at_log()
    assert care.figures.get("log_damaged") == 1
    assert 0 < care.damage.look_at_log(1 << 16) < whole // 2
    assert care.figures.get("log_damaged") == 1, "what was not read is what it was"
    flip(oldest, at)
    care.damage.look_at_log()
    assert care.figures.get("log_damaged") == 0
    library.close()


def test_a_delete_that_is_owed_to_a_topic_made_since_the_start_is_in_the_next_snapshot(library: Library) -> None:
    sealed(library, "t")
    topic_id = library.state("t")["epoch"]
    for path in Path(library.directory).rglob(f"{topic_id:016x}/*"):
        path.unlink()
    library.delete("t", match=["tag", "Eq", "t1"], before_seq=9)
    library.checkpoint()
    library.kill()
    assert library.engine.owed.by_topic == {topic_id: [Deletion(9, frames.MATCH_EQ, b"t1")]}
    library.drop("t")
    assert list(library.engine.owed.rows()) == []


def test_what_a_delete_says_is_left_leaves_out_what_no_reader_can_have(library: Library) -> None:
    sealed(library, "t")
    fill(library, "t", 50)
    library.checkpoint()
    for path in Path(library.directory).rglob(f"{library.state('t')['epoch']:016x}/*"):
        path.unlink()
    care = library.upkeep(rewrite=False)
    for mono_ms in (0, 10_000):
        care.step(mono_ms, 0)
    assert (library.state("t")["count"], library.state("t")["bytes"]) == (50, 50 * 510)
    said = library.delete("t", match=["tag", "Eq", "t2"])
    left = sum((n % 7) != 2 for n in range(50))
    assert (said["deleted"], said["count"], said["bytes"]) == (50 - left, left, left * 510)
