"""Files of a newer version: a start refuses them, everybody else tells them, and nobody removes them, changes them or calls them damaged."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import xxhash
from click.testing import CliRunner

from fakes.clock import FakeClock
from fakes.in_process import Library
from fakes.patience import eventually
from topicsd._native import segment_pack, upkeep
from topicsd._native.log_walk import LogFormatError
from topicsd.api.probes import restrictions
from topicsd.backup.make import Backup
from topicsd.backup.manifest import FORMAT
from topicsd.backup.restore import Restore
from topicsd.backup.shelf import BackupError, FolderShelf, digest_of, manifest_name
from topicsd.cli.main import main
from topicsd.segments import names
from topicsd.segments.cold import ColdError, FolderCold, cold_name, copy_to_cold
from topicsd.segments.cold_counts import ColdCounts
from topicsd.segments.fsck import fsck
from topicsd.segments.newer import found
from topicsd.upkeep import Upkeep

RECORDS = 200
PART, PACK = 128, 64  # bytes of a header
OWN = ("data", "index", "tags")
IN_PACK = ("data", "index", "tags", "header", "footer")
KNOWN = "this program knows 1"

Spoil = Callable[[bytes, int, int], bytes]


def newer(raw: bytes, at: int, size: int, version: int = 2) -> bytes:
    """A sound header of another version."""
    head = bytearray(raw[at : at + size])
    assert int.from_bytes(head[-8:], "little") == xxhash.xxh3_64_intdigest(bytes(head[:-8])), "there is a header"
    head[8:12] = version.to_bytes(4, "little")
    head[-8:] = xxhash.xxh3_64_intdigest(bytes(head[:-8])).to_bytes(8, "little")
    return raw[:at] + bytes(head) + raw[at + size :]


def older(raw: bytes, at: int, size: int) -> bytes:
    """The same, of the version that this program knows."""
    return newer(raw, at, size, 1)


def flipped(raw: bytes, at: int, _size: int) -> bytes:
    """A bit of the version has changed: the checksum tells."""
    return raw[: at + 8] + bytes([raw[at + 8] ^ 2]) + raw[at + 9 :]


def change(path: Path, at: int, size: int, how: Spoil = newer) -> None:
    """In place: who has the file mapped sees it too."""
    raw = how(path.read_bytes(), at, size)
    with path.open("r+b") as file:
        file.write(raw)


def spots(path: Path) -> dict[str, tuple[int, int]]:
    """Where the headers of a pack are, those of its last segment, and their sizes."""
    raw = path.read_bytes()
    entries = segment_pack.pack_directory(raw)
    of = {"header": (0, PACK), "footer": (len(raw) - PACK, PACK)}
    for which, entry in (("", entries[0]), ("last ", entries[-1])):
        parts = ((f"{which}data", entry.data_offset), (f"{which}index", entry.index_offset), (f"{which}tags", entry.tags_offset))
        of |= {kind: (offset, PART) for kind, offset in parts}
    return of


def begins(path: Path, where: str) -> int:
    """Where the header is, of a file that has one of a newer version."""
    part = where.partition(" ")[2]
    if part == "footer":
        return path.stat().st_size - PACK
    return spots(path)[part][0] if path.suffix == ".pack" else 0


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    made = Library(str(tmp_path / "data"), FakeClock(), file_bytes=1 << 20)
    upkeep.cold_attach(made.shared, 4 << 20)
    yield made
    made.close()


def root(library: Library) -> Path:
    return Path(library.directory)


def fill(library: Library, name: str, count: int = RECORDS, tags: int = 7) -> None:
    library.put(name, durability="fsync")
    for first in range(0, count, 50):
        library.append(name, [{"data": f"{n:06d}" + "x" * 300, "tag": f"t{min(n % tags, 7)}"} for n in range(first, first + 50)])


def sealed(library: Library) -> tuple[Path, list[int]]:
    """A topic of one segment with files of its own: its data part."""
    fill(library, "t")
    library.seal("t")
    library.checkpoint()
    return next(root(library).rglob("*.data")), list(range(1, RECORDS + 1))


def packed(library: Library) -> Path:
    """A pack of two topics."""
    for name in ("t", "u"):
        fill(library, name)
    library.sequencer.sync()
    slots = [library.sequencer.find(name.encode()) for name in ("t", "u")]
    library.sealing(bytes_max=0)._pack([(slot, library.sequencer.topic(slot)["topic_id"]) for slot in slots])
    library.checkpoint()
    return next(root(library).rglob("*.pack"))


def moved(library: Library, tmp_path: Path) -> tuple[names.Name, FolderCold]:
    """A topic of two segments, the first of them in the cold tier."""
    fill(library, "t")
    library.seal("t", 100)
    library.checkpoint()
    (tmp_path / "cold").mkdir()
    cold = FolderCold(tmp_path / "cold")
    relocation = library.relocation(cold)
    for step in range(20):
        relocation.step(step * 1000)
    for _ in range(2):
        library.checkpoint()
    parsed = names.parse(next(root(library).rglob("*.del")))
    assert parsed is not None and not parsed[0].path("data").exists()
    library.cold = cold
    return parsed[0], cold


def spoil(library: Library, where: str, how: Spoil = newer) -> Path:
    """Make a part one of a newer version; its file."""
    kind, _, part = where.partition(" ")
    if kind == "own":
        data, _seqs = sealed(library)
        path = {"data": data, "index": data.with_suffix(".idx"), "tags": data.with_suffix(".tag")}[part]
        change(path, 0, PART, how)
        return path
    path = packed(library)
    change(path, *spots(path)[part], how)
    return path


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below, but for the lock: which one it is, and what is in it."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "LOCK")
    return {str(path.relative_to(folder)): (path.stat().st_ino, path.read_bytes()) for path in files}


def sealed_files(library: Library) -> dict[str, tuple[int, bytes]]:
    return {name: one for name, one in content(root(library)).items() if name.startswith((names.TOPICS, names.PACKS))}


def reasons(library: Library, care: Upkeep) -> str:
    """What readiness says."""
    shared = SimpleNamespace(shard=lambda _number: {"read_only": 0}, get=lambda name: library.shared.get(name) if name == "damage_met" else 0)
    settings = SimpleNamespace(cold_dir="", log_archive_dir="")
    return "\n".join(restrictions(SimpleNamespace(shared=shared, figures=care.figures, settings=settings)))  # type: ignore[arg-type]


def told(library: Library, name: str = "t") -> tuple[set[int], set[int]]:
    """The seqs that a reader gets, and those that it is told as lost."""
    records, tombstones, *_ = library.read_all(name)
    lost = {seq for each in tombstones for seq in range(each["gap_from"], each["gap_to"] + 1)}
    return {record["$seq"] for record in records}, lost


def scrub(care: Upkeep, passes: int = 2) -> None:
    assert care.scrubber is not None
    mono_ms, wanted = care.scrubber._ready_ms, care.scrubber.numbers.passes + passes
    while care.scrubber.numbers.passes < wanted:
        care.step(int(mono_ms), 1000)
        mono_ms += 1000


EVERY = [f"own {part}" for part in OWN] + [f"pack {part}" for part in IN_PACK]
LAST = [f"pack last {part}" for part in OWN]


@pytest.mark.parametrize("where", EVERY)
def test_a_start_refuses_it_and_changes_nothing(library: Library, where: str) -> None:
    path = spoil(library, where)
    library.store.close()
    before = content(root(library))
    with pytest.raises(LogFormatError) as refused:
        library.open()
    text = str(refused.value)
    assert text.startswith(str(path)) and "format version 2" in text and KNOWN in text
    assert "newer version" in text and "docs/operations.md" in text and "nothing has been changed" in text
    library._forget()
    assert content(root(library)) == before
    at = begins(path, where)
    change(path, at, PACK if where in ("pack header", "pack footer") else PART, older)
    library.open()
    assert told(library) == (set(range(1, RECORDS + 1)), set())


def test_among_thousands_of_files_it_is_found(library: Library, tmp_path: Path) -> None:
    path = spoil(library, "own tags")
    others = [tmp_path / f"{number:020d}.idx" for number in range(3000)]
    (told_of,) = found([*others, path.with_suffix(".data"), path, *others])
    assert told_of.spot.path == path


@pytest.mark.parametrize("where", EVERY)
def test_a_flipped_bit_of_the_version_is_damage_and_stops_no_start(library: Library, where: str) -> None:
    spoil(library, where, flipped)
    library.kill()
    assert told(library) == (set(range(1, RECORDS + 1)), set())
    library.store.close()
    report = fsck(root(library), mend=True)
    assert report.refused == [] and report.problems
    library.open()


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("where", EVERY + LAST)
def test_one_that_comes_under_a_running_server_is_told_and_stays(library: Library, where: str, warm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "u" if "last" in where else "t"
    care = library.upkeep(scrub_bytes_per_second=1 << 40)
    if warm:
        monkeypatch.setattr(f"{__name__}.change", reading_first(library, change))
    spoil(library, where)
    before = sealed_files(library)
    got, lost = told(library, name)
    assert not got & lost and got | lost == set(range(1, RECORDS + 1)), "nothing is passed over in silence"
    if "data" not in where:
        assert not lost, "the data is sound"
    care.step(0, 0)
    scrub(care)
    for step in range(3):
        care.step(10_000_000 + step * 100_000, 0)
        library.checkpoint()
    assert "newer version" in reasons(library, care)
    assert care.figures.get("rewrites") == 0
    assert sealed_files(library) == before
    got, lost = told(library, name)
    assert not got & lost and got | lost == set(range(1, RECORDS + 1))
    assert library.state(name)["count"] == len(got)


def reading_first(library: Library, then: Callable[..., None]) -> Callable[..., None]:
    def both(*args: Any) -> None:
        library.read_all("t")
        then(*args)

    return both


@pytest.mark.parametrize("where", ["own data", "own index", "own tags", "pack header", "pack tags", "pack last index"])
def test_what_is_mostly_dead_is_not_made_anew_while_a_part_of_it_is_newer(library: Library, where: str) -> None:
    fill(library, "t", 6000, tags=1000)
    library.seal("t", pack=where.startswith("pack"))
    library.checkpoint()
    library.delete("t", match=["tag", "Eq", "t7"])
    path = next(root(library).rglob("*.pack" if where.startswith("pack") else "*.data"))
    if path.suffix == ".pack":
        change(path, *spots(path)[where.removeprefix("pack ")])
    else:
        change(path.with_suffix({"data": ".data", "index": ".idx", "tags": ".tag"}[where.removeprefix("own ")]), 0, PART)
    before = sealed_files(library)
    care = library.upkeep()
    assert len(care.dead_files()) == 1
    assert not care.rewrite_one()
    care.step(0, 0)
    for _ in range(3):
        library.checkpoint()
    assert sealed_files(library) == before and "newer version" in reasons(library, care)


def test_a_delete_by_tag_misses_no_record_while_the_tags_are_newer(library: Library) -> None:
    spoil(library, "own tags")
    assert library.delete("t", match=["tag", "Eq", "t1"])["deleted"] == len(range(1, RECORDS, 7))


@pytest.mark.parametrize("way", ["fsck", "repair"])
@pytest.mark.parametrize("where", EVERY + LAST)
def test_fsck_refuses_it_and_changes_nothing(library: Library, where: str, way: str) -> None:
    path = spoil(library, where)
    library.store.close()
    before = content(root(library))
    report = fsck(root(library), mend=way == "repair")
    (refused,) = report.refused
    assert refused.startswith(str(path)) and "newer version" in refused and "format version 2" in refused and KNOWN in refused
    assert not [problem for problem in report.problems if problem.path == path] and report.done == []
    shown = CliRunner().invoke(main, ["fsck", str(root(library)), *(["--repair"] if way == "repair" else [])])
    assert shown.exit_code == 2 and f"refused: {path}" in shown.output
    assert content(root(library)) == before
    library._forget()
    with pytest.raises(LogFormatError) if "last" not in where else pytest.MonkeyPatch.context():
        library.open()


@pytest.mark.parametrize("way", ["without", "unreadable"])
def test_fsck_refuses_a_newer_index_whose_data_is_gone(library: Library, way: str) -> None:
    data, _seqs = sealed(library)
    change(data.with_suffix(".idx"), 0, PART)
    if way == "without":
        data.unlink()
    else:
        data.write_bytes(b"")
    library.store.close()
    before = content(root(library))
    report = fsck(root(library), mend=True)
    assert [line for line in report.refused if ".idx" in line and "newer version" in line] and content(root(library)) == before


# ---- the cold tier


@pytest.mark.parametrize("kind", ["index", "tags", "flags", "data"])
def test_fsck_refuses_a_newer_part_of_a_cold_segment(library: Library, tmp_path: Path, kind: str) -> None:
    name, cold = moved(library, tmp_path)
    path = next((tmp_path / "cold").rglob("*.data")) if kind == "data" else name.path(kind)
    change(path, 0, PART)
    library.store.close()
    before, there = content(root(library)), content(tmp_path / "cold")
    for mend in (False, True):
        report = fsck(root(library), mend=mend, cold=cold)
        (refused,) = report.refused
        assert path.name in refused and "newer version" in refused and "format version 2" in refused
        assert (content(root(library)), content(tmp_path / "cold")) == (before, there)
    library._forget()
    if kind == "data":
        library.open()
        return
    with pytest.raises(LogFormatError, match="newer version"):
        library.open()


@pytest.mark.parametrize("kind", ["index", "tags", "flags"])
def test_a_newer_part_of_a_cold_segment_is_told_while_the_server_runs(library: Library, tmp_path: Path, kind: str) -> None:
    name, _cold = moved(library, tmp_path)
    change(name.path(kind), 0, PART)
    before = sealed_files(library)
    got, lost = told(library)
    assert got == set(range(1, RECORDS + 1)) and not lost
    care = library.upkeep(scrub_bytes_per_second=1 << 40)
    scrub(care)
    assert "newer version" in reasons(library, care) and sealed_files(library) == before


def test_a_newer_object_that_a_read_meets_is_told_as_one(library: Library, tmp_path: Path) -> None:
    _name, cold = moved(library, tmp_path)
    path = next((tmp_path / "cold").rglob("*.data"))
    change(path, 0, PART)
    raw = bytearray(path.read_bytes())
    raw[PART + 40] ^= 0x10  # its frames are others, too
    path.write_bytes(raw)
    got, lost = told(library)
    assert lost and got | lost == set(range(1, RECORDS + 1))
    care = library.upkeep()
    care.damage.cold = ColdCounts(library.shared, cold)
    steps = itertools.count(0, 10_000)
    try:
        eventually(lambda: care.step(next(steps), 0) or "newer version" in reasons(library, care))
    finally:
        care.damage.cold.close()
    assert "damage" not in reasons(library, care)
    assert path.read_bytes() == bytes(raw)


def test_nothing_is_put_over_a_newer_object(library: Library, tmp_path: Path) -> None:
    data, _seqs = sealed(library)
    parsed = names.parse(data)
    assert parsed is not None
    cold = FolderCold(tmp_path / "cold")
    copy_to_cold(cold, parsed[0])
    copy_to_cold(cold, parsed[0])
    path = tmp_path / "cold" / cold_name(parsed[0])
    change(path, 0, PART)
    shutil.copyfile(path, tmp_path / "cold" / cold_name(parsed[0]._replace(edition=1)))
    before = content(tmp_path / "cold")
    with pytest.raises(ColdError, match="newer version"):
        copy_to_cold(cold, parsed[0])
    relocation = library.relocation(cold, segments=0)
    for step in range(20):
        relocation.step(step * 1000)
    assert content(tmp_path / "cold") == before and library.store.figures.get("cold_moved") == 0


# ---- backups, exports, dumps


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("where", EVERY)
def test_a_backup_refuses_it(library: Library, tmp_path: Path, where: str, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = FolderShelf(tmp_path / "backup")
    if known:  # as one from before this was looked for: the file is there already
        with monkeypatch.context() as before:
            before.setattr("topicsd.backup.make.newer.refuse_file", lambda _path: None)
            spoil(library, where)
            Backup(root(library), shelf).run()
    else:
        spoil(library, where)
    made = len(shelf.names("manifests"))
    with pytest.raises(BackupError, match="newer version"):
        Backup(root(library), shelf).run()
    assert len(shelf.names("manifests")) == made
    if known:
        restored = CliRunner().invoke(main, ["restore", str(tmp_path / "backup"), str(tmp_path / "restored")])
        assert restored.exit_code == 2 and "refused: " in restored.output and "newer version" in restored.output


def test_a_backup_refuses_a_newer_object(library: Library, tmp_path: Path) -> None:
    _name, cold = moved(library, tmp_path)
    change(next((tmp_path / "cold").rglob("*.data")), 0, PART)
    with pytest.raises(BackupError, match="newer version"):
        Backup(root(library), FolderShelf(tmp_path / "backup"), cold=cold).run()


def test_a_target_whose_newest_backup_is_of_a_newer_version_is_refused(library: Library, tmp_path: Path) -> None:
    fill(library, "t")
    shelf = FolderShelf(tmp_path / "backup")
    Backup(root(library), shelf).run()
    line = json.dumps({"format": FORMAT, "format_version": 2, "what": "nobody knows"}).encode()
    shelf.put(manifest_name(2), line + b'\n{"blake2b":"' + digest_of(line).encode() + b'"}\n')
    before = content(tmp_path / "backup")
    for take_over in (False, True):
        with pytest.raises(BackupError, match="format version 2, this program knows 1: a newer version"):
            Backup(root(library), shelf, take_over=take_over).run()
    with pytest.raises(BackupError, match="newer version"):
        Restore(shelf, tmp_path / "restored").run()
    assert content(tmp_path / "backup") == before and not (tmp_path / "restored").exists()
    shown = CliRunner().invoke(main, ["backup", str(tmp_path / "backup"), "--data-dir", str(root(library))])
    assert shown.exit_code == 2 and "newer version" in shown.output
    Restore(shelf, tmp_path / "older", number=1).run()


@pytest.mark.parametrize("where", EVERY + LAST)
def test_a_dump_says_the_version(library: Library, where: str) -> None:
    path = spoil(library, where)
    shown = CliRunner().invoke(main, ["dump", str(path)])
    assert shown.exit_code == 0
    lines = [json.loads(line) for line in shown.output.splitlines()]
    (line,) = [line for line in lines if "newer" in line]
    at = begins(path, where)
    assert line["format_version"] == 2 and line["offset"] == at and KNOWN in line["newer"]
    assert not [line for line in lines if "damage" in line]
