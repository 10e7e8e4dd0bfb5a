"""Power cuts and failing calls while segments and packs are built and deletes are set: what has a name is whole, what was finished is there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fakes.faulty_files import FaultyFiles
from oracle import segment_oracle as oracle
from oracle.segment_oracle import DELETED, HOLE, Row
from topicsd._native import frame, segment, segment_build
from topicsd._native.segment_build import Writer

ROWS = [Row(5 + k, k, frame.entry(frame.Record(b'"%s"' % (b"x" * k), None, b"t%d" % (k % 3)))) for k in range(30)]
ROWS += [Row(35, 40, None, DELETED), Row(36, 40, None, HOLE | 2 << 8, 4), Row(40, 41, frame.entry(frame.Record(b"1" * 3000)))]
FOLDER = "topics/07/0000000000000007"
PARTS = oracle.build(7, ROWS)
SEGMENT = {f"{FOLDER}/{5:020d}.{kind}": raw for kind, raw in zip(("data", "idx", "tag"), (PARTS.data, PARTS.index, PARTS.tags), strict=True)}
PACK = {f"packs/{3:020d}.pack": oracle.build_pack(3, [(7, ROWS), (8, ROWS[:4])])}


def add(writer: Writer, rows: list[Row]) -> None:
    for row in rows:
        writer.add(row.seq, row.ts, row.entry, row.flags, row.count)


def build_segment(root: Path, files: FaultyFiles) -> None:
    segment_build.make_folder(root, FOLDER, files)
    writer = Writer(root / FOLDER, files)
    writer.begin(7, 5)
    add(writer, ROWS)
    writer.finish()


def build_pack(root: Path, files: FaultyFiles) -> None:
    segment_build.make_folder(root, "packs", files)
    writer = Writer(root / "packs", files)
    writer.pack_begin(3)
    for topic_id, rows in ((7, ROWS), (8, ROWS[:4])):
        writer.begin_in_pack(topic_id, 5)
        add(writer, rows)
        writer.finish()
    writer.pack_finish()


KINDS = {"segment": (build_segment, SEGMENT), "pack": (build_pack, PACK)}


def named(root: Path) -> dict[str, bytes]:
    """Files that have their final name."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.suffix != ".tmp"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_image_of_a_build_holds_whole_files_or_none_and_all_of_them_once_it_has_returned(tmp_path: Path, kind: str) -> None:
    build, wanted = KINDS[kind]
    root, image = tmp_path / "disk", tmp_path / "image"
    root.mkdir()
    files = FaultyFiles(root)
    build(root, files)
    images = 0
    for call in range(len(files.calls) + 1):
        for seed in range(12):
            image.mkdir()
            files.image(call, seed, image)
            found = named(image)
            assert found.items() <= wanted.items(), "a file with its name is whole"
            assert call < len(files.calls) or found == wanted
            shutil.rmtree(image)
            images += 1
    assert images > 90


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_fails_at_any_place_is_told_and_leaves_no_half_file(tmp_path: Path, kind: str) -> None:
    build, wanted = KINDS[kind]
    probe = tmp_path / "probe"
    probe.mkdir()
    counts: dict[str, int] = {}

    class Counting(FaultyFiles):
        def before(self, name: str, *args: object) -> int:
            counts[name] = counts.get(name, 0) + 1
            return super().before(name, *args)

    build(probe, Counting(probe))
    assert set(counts) >= {"open", "pwritev", "fsync", "rename", "mkdir", "sync_directory", "close"}
    for name, count in counts.items():
        for nth in range(1, count + 1):
            for short in (0, 5) if name == "pwritev" else (0,):
                root = tmp_path / f"{name}-{nth}-{short}"
                root.mkdir()
                files = FaultyFiles(root)
                files.fail(name, nth, short=short)
                with pytest.raises(OSError):
                    build(root, files)
                assert named(root).items() <= wanted.items()
                assert list(root.rglob("*.tmp")) == [], f"{name} {nth} leaves a temporary file"
                files.heal()
                build(root, files)
                assert named(root) == wanted, "the next try is not in its way"


def test_every_image_of_a_delete_shows_each_record_live_or_deleted_and_deleted_once_it_has_returned(tmp_path: Path) -> None:
    root, image = tmp_path / "disk", tmp_path / "image"
    root.mkdir()
    files = FaultyFiles(root)
    build_segment(root, files)
    path = root / FOLDER / f"{5:020d}.data"
    first = len(files.calls)
    view = segment.SegmentView(PARTS.index, PARTS.data)
    gone = [6, 9, 30, 40]
    segment.set_deleted(path, [view.flag_offset(seq) for seq in gone], files)
    for call in range(first, len(files.calls) + 1):
        for seed in range(12):
            image.mkdir()
            files.image(call, seed, image)
            data = (image / FOLDER / path.name).read_bytes()
            rows = oracle.read_data(7, data)
            deleted = [row[0] for row in rows if row[4]]
            assert [row[:4] for row in rows] == oracle.expanded(ROWS) and set(deleted) <= set(gone)
            assert call < len(files.calls) or deleted == gone
            shutil.rmtree(image)


def test_a_failed_delete_is_told(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    build_segment(tmp_path, files)
    path = tmp_path / FOLDER / f"{5:020d}.data"
    for kind in ("open", "pwritev", "fdatasync"):
        files.fail(kind)
        with pytest.raises(OSError):
            segment.set_deleted(path, [200], files)
        files.heal()
