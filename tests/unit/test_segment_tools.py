"""fsck and dump on small data directories: each kind of damage is told, what can be made again is, nothing is deleted."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from fakes.in_process import Library
from oracle import segment_oracle as oracle
from oracle.segment_oracle import DELETED, HOLE, Row
from topicsd._native import frame, segment
from topicsd._native.log import Shard
from topicsd._native.log_walk import check as walk
from topicsd._native.segment_build import Writer
from topicsd.cli.main import main
from topicsd.segments import dump, fsck, names, scrub
from topicsd.segments.names import name_of

ROWS = [
    Row(5, 100, frame.entry(frame.Record(b'{"n":1.50}', b'{"m":1}', b"red", b"n1"))),
    Row(6, 100, frame.entry(frame.Record(b"[2]", None, b"", None, 7, -1))),
    Row(7, 101, None, DELETED),
    Row(8, 102, None, HOLE | 2 << 8, 3),
    Row(11, 103, frame.entry(frame.Record(b'"\xc3\xa9"', None, b"red"))),
]


def add(writer: Writer, rows: list[Row]) -> None:
    for row in rows:
        writer.add(row.seq, row.ts, row.entry, row.flags, row.count)
    writer.finish()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A data directory with a log file, a segment of its own and a pack of two."""
    root = tmp_path / "data"
    (root / names.topic_folder(7)).mkdir(parents=True)
    (root / "packs").mkdir()
    writer = Writer(root / names.topic_folder(7))
    writer.begin(7, 5)
    add(writer, ROWS)
    pack = Writer(root / "packs")
    pack.pack_begin(3)
    for topic_id in (8, 9):
        pack.begin_in_pack(topic_id, 5)
        add(pack, ROWS)
    pack.pack_finish()
    shard = Shard(root / "log" / "shard-00", 0, first_file_bytes=8192, file_bytes=8192, reserve_bytes=1024)
    shard.start(walk(root / "log" / "shard-00"))
    shard.append(frame.build_append([frame.Record(b"1", None, b"t")], key=b"k", topic_id=7, base_seq=12, ts=105))
    shard.append(frame.build(3, b'{"name":"a"}', topic_id=7))
    shard.flush_group()
    shard.sync()
    shard.write_mark()
    shard.flush_group()
    shard.close()
    return root


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "LOCK"}


def flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 0x10
    path.write_bytes(raw)


def pack_of(root: Path) -> Path:
    return names.pack_path(root, 3)


def test_a_sound_directory_has_no_problem(store: Path) -> None:
    report = fsck.fsck(store)
    assert (report.problems, report.notes, report.refused, report.done) == ([], [], [], [])
    assert (report.segments, report.records, report.deleted, report.log_frames) == (3, 9, 0, 4)


def test_names_are_read_as_they_are_written(tmp_path: Path) -> None:
    for edition in (0, 12):
        name = name_of(tmp_path, 0xABCDEF, 17, edition)
        for kind in ("data", "index", "tags"):
            assert names.parse(name.path(kind)) == (name, kind)
    assert name_of(tmp_path, 0xABCDEF, 17).path("data") == tmp_path / "topics/ef/0000000000abcdef/00000000000000000017.data"
    assert names.pack_number(names.pack_path(tmp_path, 4)) == 4
    assert names.parse(tmp_path / "topics/ef/x/00000000000000000017.data") is None and names.pack_number(tmp_path / "4.pack") is None


@pytest.mark.parametrize("kind", ["index", "tags"])
@pytest.mark.parametrize("way", ["flipped", "cut", "missing", "longer", "other"])
def test_a_damaged_index_or_tag_file_is_made_again(store: Path, kind: str, way: str) -> None:
    path = name_of(store, 7, 5).path(kind)
    before = content(store)
    raw = path.read_bytes()
    if way == "flipped":
        flip(path, 140)
    elif way == "missing":
        path.unlink()
    else:
        path.write_bytes({"cut": raw[:-9], "longer": raw + b"more", "other": getattr(oracle.build(8, ROWS), kind)}[way])
    assert [(p.path, p.loses) for p in fsck.fsck(store).problems] == [(path, False)]

    report = fsck.fsck(store, mend=True)

    assert report.done and fsck.fsck(store).problems == []
    after = content(store)
    assert {name: raw for name, raw in after.items() if not name.startswith("quarantine")} == before
    assert way == "missing" or any(name.startswith("quarantine") for name in after), "what was there is kept"


@pytest.mark.parametrize("what", ["data_offset", "index_offset", "tags_offset"])
def test_damage_inside_a_pack_is_put_right_in_place(store: Path, what: str) -> None:
    raw = pack_of(store).read_bytes()
    entry = raw[-64 - 128 : -64 - 64]
    offset = int.from_bytes(entry[{"data_offset": 24, "index_offset": 32, "tags_offset": 40}[what] :][:8], "little")
    flip(pack_of(store), offset + 50)
    report = fsck.fsck(store, mend=True)
    assert len(report.problems) == 1 and not report.problems[0].loses and len(report.done) == 1
    assert pack_of(store).read_bytes() == raw and fsck.fsck(store).problems == []


def test_damaged_records_are_told_copied_aside_and_left_where_they_are(store: Path) -> None:
    path = name_of(store, 7, 5).path("data")
    flip(path, 128 + 30)
    damaged = content(store)
    report = fsck.fsck(store, mend=True)
    assert [(p.path, p.offset, p.loses) for p in report.problems] == [(path, 128, True)]
    assert "1 records lost from seq 5 on" in report.problems[0].what
    assert {name: raw for name, raw in content(store).items() if not name.startswith("quarantine")} == damaged
    assert len(fsck.fsck(store).problems) == 1, "it stays told"


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_a_bit_flipped_at_each_byte_of_any_segment_file_is_told(store: Path, step: int) -> None:
    told = 0
    for path in sorted(path for path in store.rglob("*") if path.is_file() and path.name != "LOCK" and path.suffix != ".log"):
        raw = path.read_bytes()
        for offset in range(0, len(raw), step):
            flip(path, offset)
            report = fsck.fsck(store)
            assert report.problems or report.refused, (path, offset)
            path.write_bytes(raw)
            told += 1
    assert told > 2000 // step


def test_unfinished_and_foreign_files_are_told_and_moved_but_never_deleted(store: Path) -> None:
    folder = name_of(store, 7, 5).folder
    (folder / f"{99:020d}.data.tmp").write_bytes(b"half")
    (folder / "notes.txt").write_bytes(b"mine")
    (folder / f"{50:020d}.idx").write_bytes(b"alone")
    report = fsck.fsck(store)
    assert len(report.notes) == 1 and sorted(p.path.name for p in report.problems) == [f"{50:020d}.data", "notes.txt"]
    fsck.fsck(store, mend=True)
    assert [path.name for path in (store / "quarantine").iterdir()] == [f"{folder.name}-{99:020d}.data.tmp"]
    assert (store / "quarantine" / f"{folder.name}-{99:020d}.data.tmp").read_bytes() == b"half"
    assert (folder / "notes.txt").exists() and (folder / f"{50:020d}.idx").exists()


def test_a_pack_without_its_directory_is_still_read(store: Path) -> None:
    raw = pack_of(store).read_bytes()
    pack_of(store).write_bytes(raw[:-64])
    report = fsck.fsck(store)
    assert report.segments == 3 and [p.what.split(":")[0] for p in report.problems] == ["directory of the pack"]


def test_what_is_here_of_a_cold_segment_is_checked_and_dumped(store: Path) -> None:
    name = name_of(store, 7, 5)
    view = segment.SegmentView(name.path("index").read_bytes(), name.path("data").read_bytes())
    name.path("flags").write_bytes(view.flags_part())
    assert len(fsck.fsck(store).notes) == 1
    name.path("data").unlink()
    segment.set_deleted(name.path("flags"), [128 + 1])
    assert lines(name.path("flags"))[1] == {"deleted": [6]}
    report = fsck.fsck(store)
    assert (report.problems, report.cold, report.segments) == ([], 1, 3)
    assert next(iter(scrub.everything_below(store))).cold == name
    for kind in ("index", "tags", "flags"):
        raw = name.path(kind).read_bytes()
        for offset in range(0, len(raw) - 1, 5):
            if kind == "flags" and offset >= 128 + 7:
                break
            flip(name.path(kind), offset)
            report = fsck.fsck(store)
            scrubber = scrub.Scrubber(lambda: scrub.everything_below(store), 1 << 40)
            while not scrubber.numbers.passes:
                scrubber.step(1 << 40, 0)
            assert {p.path for p in report.problems} >= {name.path(kind)} and scrubber.numbers.problems >= 1, (kind, offset)
            name.path(kind).write_bytes(raw)
        name.path(kind).unlink()
        assert fsck.fsck(store).problems
        name.path(kind).write_bytes(raw)


def test_a_newer_format_is_refused_and_not_touched(store: Path) -> None:
    path = name_of(store, 7, 5).path("data")
    raw = bytearray(path.read_bytes())
    raw[8] = 2
    raw[120:128] = oracle.xxh3(bytes(raw[:120])).to_bytes(8, "little")
    path.write_bytes(raw)
    before = content(store)
    report = fsck.fsck(store, mend=True)
    assert len(report.refused) == 1 and "newer" in report.refused[0] and content(store) == before


def test_a_damaged_snapshot_or_note_is_named_once_and_repair_says_what_becomes_of_it(engine: Library) -> None:
    engine.put("t")
    engine.append("t", [{"data": 1}])
    engine.checkpoint()
    engine.append("t", [{"data": 2}])
    engine.checkpoint()
    engine.store.close()
    root = Path(engine.directory)
    newest, note = sorted((root / "meta").glob("snapshot-*"))[-1], root / "log" / "synced"
    for path in (newest, note):
        flip(path, 60)
    for way in ([], ["--repair"]):
        shown = CliRunner().invoke(main, ["fsck", str(root), *way])
        assert shown.exit_code == 1
        for path in (newest, note):
            (line,) = [line for line in shown.output.splitlines() if line.startswith(f"damage: {path}")]
            assert line.count(str(path)) == 1
        if way:
            assert f"note: {newest}: a start takes an older snapshot, or the log, and the next snapshot replaces this one" in shown.output
            assert f"note: {note}: a start makes it again" in shown.output
    engine.open()
    assert len(engine.read_all("t")[0]) == 2


def test_a_directory_in_use_is_left_alone(store: Path) -> None:
    held = os.fork()
    if held == 0:
        with fsck.locked(store):
            os.kill(os.getpid(), 19)  # stops: the parent looks, then ends it
        os._exit(0)
    os.waitpid(held, os.WUNTRACED)
    try:
        result = CliRunner().invoke(main, ["fsck", str(store)])
        assert result.exit_code == 2 and "in use" in result.output
    finally:
        os.kill(held, 9)
        os.waitpid(held, 0)


def test_the_fsck_command_says_what_it_found(store: Path) -> None:
    assert CliRunner().invoke(main, ["fsck", str(store)]).exit_code == 0
    flip(name_of(store, 7, 5).path("index"), 130)
    found = CliRunner().invoke(main, ["fsck", str(store)])
    assert found.exit_code == 1 and "damage:" in found.output
    assert CliRunner().invoke(main, ["fsck", "--repair", str(store)]).exit_code == 1, "what it found counts, repaired or not"
    assert CliRunner().invoke(main, ["fsck", str(store)]).exit_code == 0


# ---- dump


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in dump.dump(path)]


def test_a_data_file_is_dumped_record_by_record(store: Path) -> None:
    path = name_of(store, 7, 5).path("data")
    segment.set_deleted(path, [segment.SegmentView(name_of(store, 7, 5).path("index").read_bytes(), path.read_bytes()).flag_offset(6)])
    header, *rows = lines(path)
    assert (header["topic_id"], header["first_seq"], header["last_seq"], header["records"]) == (7, 5, 11, 3)
    assert [(row["seq"], row.get("deleted"), row.get("gap"), row.get("tag")) for row in rows] == [
        (5, False, None, "red"), (6, True, None, ""), (7, None, "deleted", None), (8, None, "ttl", None), (11, False, None, "red"),
    ]  # fmt: skip
    assert b'"data":{"n":1.50}' in list(dump.dump(path))[1], "the text as it was sent"


def test_index_and_tags_are_dumped(store: Path) -> None:
    _, *entries = lines(name_of(store, 7, 5).path("index"))
    assert [entry["seq"] for entry in entries] == list(range(5, 12))
    assert [entry.get("gap") for entry in entries] == [None, None, "deleted", "ttl", "ttl", "ttl", None]
    _, *tags = lines(name_of(store, 7, 5).path("tags"))
    assert tags == [{"tag": "", "seqs": [6]}, {"tag": "red", "seqs": [5, 11]}]


def test_a_pack_is_dumped_segment_by_segment(store: Path) -> None:
    rows = lines(pack_of(store))
    assert rows[0] == {"offset": 0, "pack": 3}
    assert [row["segment"]["topic_id"] for row in rows if "segment" in row] == [8, 9]
    assert sum("data" in row for row in rows) == 6


def test_a_log_file_is_dumped_frame_by_frame(store: Path) -> None:
    path = next((store / "log" / "shard-00").glob("*.log"))
    rows = lines(path)
    assert [row.get("type") for row in rows] == ["start", "append", "topic_create", "mark", None]
    assert rows[1]["key"] == "k" and rows[1]["records"] == [{"tag": "t", "data": 1}] and rows[2]["body"] == {"name": "a"}
    assert "zeroes" in rows[-1]
    flip(path, rows[1]["offset"] + 70)
    assert [row.get("type") or ("damage" in row and "damage") for row in lines(path)] == ["start", "damage", "topic_create", "mark", False]


def test_the_dump_of_a_damaged_file_tells_the_damage_and_goes_on(store: Path, tmp_path: Path) -> None:
    for path in [name_of(store, 7, 5).path(kind) for kind in ("data", "index", "tags")] + [pack_of(store)]:
        raw = path.read_bytes()
        for offset in range(0, len(raw), 13):
            copy = tmp_path / f"copy{path.suffix}"
            shutil.copy(path, copy)
            flip(copy, offset)
            list(dump.dump(copy))
    flip(name_of(store, 7, 5).path("data"), 160)
    assert [row.get("seq", row.get("damage")) for row in lines(name_of(store, 7, 5).path("data"))][1:3] == ["no frame", 6]


def test_the_dump_command_refuses_what_it_does_not_know(tmp_path: Path, store: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello world")
    result = CliRunner().invoke(main, ["dump", str(tmp_path / "x")])
    assert result.exit_code == 1 and "no known format" in result.output
    good = CliRunner().invoke(main, ["dump", str(pack_of(store))])
    assert good.exit_code == 0 and all(json.loads(line) for line in good.output.splitlines())


# ---- golden files


def test_the_files_of_format_version_1_open_for_ever(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "golden" / "segment-v1"
    files = sorted(path for path in golden.rglob("*") if path.is_file() and path.suffix != ".jsonl")
    wanted = (golden / "expected.jsonl").read_bytes().splitlines()
    assert [line for path in files for line in dump.dump(path)] == wanted
    shutil.copytree(golden, tmp_path / "data")
    (tmp_path / "data" / "expected.jsonl").unlink()
    before = content(tmp_path / "data")
    report = fsck.fsck(tmp_path / "data", mend=True)
    assert (report.problems, report.done, report.segments, report.cold, report.records, report.deleted) == ([], [], 4, 1, 12, 1)
    assert content(tmp_path / "data") == before
