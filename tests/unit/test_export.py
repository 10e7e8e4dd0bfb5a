"""Exports: what is copied, what a manifest says, and that neither a kill nor a second run nor damage makes a wrong one."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest
import xxhash
from click.testing import CliRunner

import topicsd
from oracle import segment_oracle as oracle
from oracle.scan_oracle import scanned
from oracle.segment_oracle import DELETED, HOLE, Row
from topicsd._native import frame, segment
from topicsd._native.segment import SegmentView
from topicsd._native.segment_build import Writer
from topicsd.cli.main import main
from topicsd.lake import export, manifest
from topicsd.lake.export import Exporter, Report
from topicsd.lake.manifest import ManifestError, Topic, merged, without
from topicsd.lake.pieces import DamagedError
from topicsd.lake.sources import DirectorySource

pytest.importorskip("pyarrow")
ALPHA, BETA = 0xA1, 0xB2
NAMES = {ALPHA: "alpha", BETA: "beta.x"}


def entry(data: object) -> bytes:
    return frame.entry(frame.Record(json.dumps(data).encode(), None, b"t", None, 0, 0))


def rows(first: int, count: int, size: int = 10, ts: int = 1000) -> list[Row]:
    return [Row(first + k, ts + first + k, entry("x" * size)) for k in range(count)]


def write(data_dir: Path, topic_id: int, made: list[Row], edition: int = 0) -> Path:
    folder = data_dir / "topics" / f"{topic_id & 0xFF:02x}" / f"{topic_id:016x}"
    folder.mkdir(parents=True, exist_ok=True)
    writer = Writer(folder)
    writer.begin(topic_id, made[0].seq, edition)
    for row in made:
        writer.add(row.seq, row.ts, row.entry, row.flags, row.count)
    writer.finish()
    path = folder / (f"{made[0].seq:020d}" + (f".{edition}" if edition else "") + ".data")
    os.utime(path, ns=(1, 1))  # not fresh: its time can be trusted
    return path


def write_pack(data_dir: Path, number: int, segments: dict[int, list[Row]]) -> None:
    (data_dir / "packs").mkdir(parents=True, exist_ok=True)
    path = data_dir / "packs" / f"{number:020d}.pack"
    path.write_bytes(oracle.build_pack(number, list(segments.items())))
    os.utime(path, ns=(1, 1))


def run(data_dir: Path, to: Path, names: dict[int, str] | None = None, **options: Any) -> Report:
    return Exporter(DirectorySource(data_dir, NAMES if names is None else names), to, **options).run()


def scan(to: Path, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = topicsd.scan(to, **options).read_all().to_pylist()
    return found


def contents(to: Path) -> dict[str, bytes]:
    return {str(path.relative_to(to)): path.read_bytes() for path in to.rglob("*") if path.is_file()}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Alpha in a large segment and a small one, beta in a pack."""
    write(tmp_path / "data", ALPHA, rows(1, 2000, 1000))
    write(tmp_path / "data", ALPHA, rows(2001, 3))
    write_pack(tmp_path / "data", 1, {BETA: [*rows(5, 2), Row(7, 2000, None, DELETED), Row(8, 2000, None, HOLE | 2 << 8, 5)]})
    return tmp_path / "data"


# ---- what a run copies and says ---------------------------------------------------------------------------------------------------


def test_an_export_scans_as_its_source_does_and_by_the_topics_names(data: Path, tmp_path: Path) -> None:
    report = run(data, tmp_path / "to")
    beta = [*rows(5, 2), Row(7, 2000, None, DELETED), Row(8, 2000, None, HOLE | 2 << 8, 5)]
    assert scan(tmp_path / "to") == scanned("alpha", [*rows(1, 2000, 1000), *rows(2001, 3)]) + scanned("beta.x", beta)
    assert (report.manifest, report.topics, report.segments, report.segments_copied) == (1, 2, 3, 3)
    assert [row["seq"] for row in scan(tmp_path / "to", topics="beta.*", columns=["seq"])] == [5, 6, 8]


def test_the_manifest_says_what_the_format_page_promises(data: Path, tmp_path: Path) -> None:
    path = next((data / "packs").iterdir())
    raw = bytearray(path.read_bytes())
    directory = segment.header_of(raw, "data", 64)
    view = SegmentView(raw, raw, index_offset=64 + directory.part_bytes, data_offset=64)
    raw[64 + view.flag_offset(6)] = 0xD5
    path.write_bytes(raw)
    run(data, tmp_path / "to", now_ms=lambda: 77)

    raw_manifest = (tmp_path / "to/manifests/00000000000000000001.jsonl").read_bytes()
    lines = [json.loads(line) for line in raw_manifest.splitlines()]
    assert lines[0] | {"run": ""} == {"format": "topicsd-export", "format_version": 1, "number": 1, "run": "", "written_ms": 77}
    assert lines[-1] == {"end": True, "topics": 2, "xxh3": xxhash.xxh3_64_hexdigest(raw_manifest[: raw_manifest[:-1].rindex(b"\n") + 1])}
    beta = lines[2]
    assert {name: value for name, value in beta.items() if name != "segments"} == {
        "topic": "beta.x", "epoch": "00000000000000b2", "first_seq": 5, "next_seq": 13, "first_ts": 1005, "last_ts": 2000, "records": 1, "deleted": 1,
        "holes": 5, "payload_bytes": 26, "corrupt_seqs": 0, "evict_floor": 1,
    }  # fmt: skip
    (row,) = beta["segments"]
    parts = (tmp_path / "to" / row["file"]).read_bytes()[row["data_offset"] : row["end_offset"]]
    assert xxhash.xxh3_64_hexdigest(parts) == row["parts_xxh3"]
    for kind, at in (("data", 0), ("index", row["index_offset"] - row["data_offset"]), ("tags", row["tags_offset"] - row["data_offset"])):
        header = segment.header_of(parts, kind, at)
        assert (header.topic_id, header.first_seq, header.last_seq, f"{header.data_xxh3:016x}") == (BETA, 5, 12, row["data_xxh3"])


def test_a_second_run_copies_only_what_is_new(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "to")
    before = contents(tmp_path / "to")
    write(data, ALPHA, rows(2004, 2))
    report = run(data, tmp_path / "to")
    assert (report.manifest, report.segments, report.segments_copied, report.changed) == (2, 4, 1, True)
    assert report.bytes_copied < 2000
    assert all(contents(tmp_path / "to")[name] == raw for name, raw in before.items())
    assert len(scan(tmp_path / "to", topics="alpha")) == 2005


def test_a_later_delete_comes_through_and_nothing_else_is_copied(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "to")
    path = data / f"topics/a1/{ALPHA:016x}/{2001:020d}.data"
    with path.open("r+b") as file:
        raw = path.read_bytes()
        file.seek(SegmentView(path.with_suffix(".idx").read_bytes(), raw).flag_offset(2002))
        file.write(b"\xd5")
    assert run(data, tmp_path / "to").segments_copied == 1
    assert [row["seq"] for row in scan(tmp_path / "to", topics="alpha")][-2:] == [2001, 2003]
    assert not run(data, tmp_path / "to", quiet=True).changed  # a fresh file is read again, and found to be the same
    assert manifest.numbers(tmp_path / "to") == [1, 2]
    assert manifest.latest(tmp_path / "to").topics["alpha"].rows[-1].deleted == 1  # type: ignore[union-attr]


def test_what_the_source_has_retired_stays_until_a_prune(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "to")
    for path in (data / f"topics/a1/{ALPHA:016x}").glob(f"{1:020d}.*"):
        path.unlink()
    run(data, tmp_path / "to")
    assert len(scan(tmp_path / "to", topics="alpha")) == 2003
    large = next(path for path in (tmp_path / "to/parts").iterdir() if path.stat().st_size > 1 << 20)
    for path in (tmp_path / "to/parts").iterdir():
        os.utime(path, (1, 1))
    for _ in range(export.MANIFESTS_KEPT):
        assert large.exists()  # who reads an older manifest still finds it
        report = run(data, tmp_path / "to", prune=True)
    assert [row["seq"] for row in scan(tmp_path / "to", topics="alpha")] == [2001, 2002, 2003]
    assert report.files_pruned == 1 and not large.exists()


def test_a_prune_leaves_young_files_of_other_runs_alone(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "to")
    other = tmp_path / "to/parts/other-run.parts"
    other.write_bytes(b"x")
    run(data, tmp_path / "to", prune=True)
    assert other.exists()


def test_a_topic_made_again_is_told_by_its_epoch_and_its_old_rows_go(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "to")
    again = ALPHA + 0x100
    write(data, again, rows(1, 2))
    run(data, tmp_path / "to", names={again: "alpha", BETA: "beta.x"})
    found = manifest.latest(tmp_path / "to")
    assert found is not None and found.topics["alpha"].epoch == again
    assert [row["seq"] for row in scan(tmp_path / "to", topics="alpha")] == [1, 2]
    run(data, tmp_path / "to")  # a listing from before
    assert [row["seq"] for row in scan(tmp_path / "to", topics="alpha")] == [1, 2]


def test_chosen_topics_join_what_the_export_has_already(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "to", topics=["beta.*"])
    assert {row["topic"] for row in scan(tmp_path / "to")} == {"beta.x"}
    run(data, tmp_path / "to", topics=["alpha"], prune=True)
    assert {row["topic"] for row in scan(tmp_path / "to")} == {"alpha", "beta.x"}


def test_since_leaves_out_what_another_manifest_has(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "to")
    write(data, ALPHA, rows(2004, 2))
    run(data, tmp_path / "more", since=manifest.latest(tmp_path / "to"))
    assert [row["seq"] for row in scan(tmp_path / "more")] == [2004, 2005]


def test_seqs_that_no_segment_holds_are_a_gap(data: Path, tmp_path: Path) -> None:
    write(data, ALPHA, rows(2010, 1))
    run(data, tmp_path / "to")
    gap = [(row["seq"], row["seq_end"], row["_err"]) for row in scan(tmp_path / "to", topics="alpha") if row["_kind"] == "gap"]
    assert gap == [(2004, 2009, "missing")]


# ---- bad days ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_was_killed_anywhere_is_made_up_for_by_the_next(data: Path, tmp_path: Path) -> None:
    to = tmp_path / "to"
    code = """
import os, sys
from pathlib import Path
from topicsd.lake import export
from topicsd.lake.sources import DirectorySource
left = int(sys.argv[3])
def killed(real):
    def call(*args, **rest):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return real(*args, **rest)
    return call
for name in ("fsync", "copy_file_range", "link", "utime"):
    setattr(os, name, killed(getattr(os, name)))
Path.replace = killed(Path.replace)
export.Exporter(DirectorySource(Path(sys.argv[1]), {0xA1: "alpha", 0xB2: "beta.x"}), Path(sys.argv[2])).run()
"""
    for step in range(30):
        done = subprocess.run([sys.executable, "-c", code, data, to, str(step)], check=False)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        assert manifest.latest(to) is None or len(scan(to)) == 2003 + 3
    assert 5 < step < 29
    assert len(scan(to)) == 2003 + 3
    whole = [path for path in (to / "parts").iterdir() if path.suffix == ".parts" and path.stat().st_size > 1 << 20]
    assert len(whole) == 1  # taken over from the run that had copied it


def test_two_runs_at_once_both_count(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    barrier = threading.Barrier(2, timeout=30)
    real, first = manifest.commit, threading.local()

    def commit(root: Path, made: manifest.Manifest) -> bool:
        if not getattr(first, "done", False):
            first.done = True
            barrier.wait()  # both have copied, and both want the same number
        return real(root, made)

    monkeypatch.setattr(manifest, "commit", commit)
    reports: list[Report] = []
    runs = [
        threading.Thread(target=lambda topics=topics: reports.append(run(data, tmp_path / "to", topics=topics))) for topics in (["alpha"], ["beta.*"])
    ]
    for thread in runs:
        thread.start()
    for thread in runs:
        thread.join()
    assert sorted(report.manifest for report in reports) == [1, 2]
    assert {row["topic"] for row in scan(tmp_path / "to")} == {"alpha", "beta.x"}


def test_a_reader_meets_the_newest_manifest_while_runs_prune_the_others(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to = tmp_path / "to"
    for _ in range(2):
        run(data, to)
    reader = topicsd.scan(to, columns=["topic", "seq"], rows_max=100)
    begun = reader.read_next_batch().num_rows  # it has read the manifest that is about to go
    real, left = manifest.numbers, [3]

    def numbers(root: Any) -> list[int]:
        found = real(root)
        if left and left.pop():
            write(data, ALPHA, rows(2004 + 10 * len(left), 3))
            for _ in range(4):  # the listed ones are gone before they are read
                run(data, to, prune=True)
        return found

    monkeypatch.setattr(manifest, "numbers", numbers)
    newest = manifest.latest(to)
    assert newest is not None and newest.number == 6 and manifest.listed(to).keys() == {4, 5, 6}
    assert begun + reader.read_all().num_rows == 2003 + 3  # as of its manifest: files are younger than a prune's patience


def test_topics_without_a_record_are_no_rows_and_disturb_nothing(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "to")
    before = scan(tmp_path / "to")
    found = manifest.latest(tmp_path / "to")
    assert found is not None
    empty = {"aaa": Topic("aaa", 7, ()), "zzz": Topic("zzz", 8, ())}
    assert manifest.commit(tmp_path / "to", manifest.Manifest(2, "x", 1, found.topics | empty))
    assert scan(tmp_path / "to") == before and scan(tmp_path / "to", topics="zzz") == []
    assert run(data, tmp_path / "to").topics == 4 and scan(tmp_path / "to") == before


def test_a_full_disk_commits_nothing_and_the_next_run_does_it(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "copy_file_range", full)
        with pytest.raises(OSError, match="No space left"):
            run(data, tmp_path / "to")
    assert manifest.latest(tmp_path / "to") is None and not list((tmp_path / "to/parts").glob("*.tmp"))
    run(data, tmp_path / "to")
    assert len(scan(tmp_path / "to", topics="alpha")) == 2003


def test_a_file_system_that_cannot_share_blocks_is_copied_plainly(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: object) -> int:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "copy_file_range", cannot)
    run(data, tmp_path / "to")
    assert len(scan(tmp_path / "to", topics="alpha")) == 2003


@pytest.mark.parametrize("size", [1000, 10])
def test_damage_in_the_source_is_copied_counted_and_told_to_readers(tmp_path: Path, size: int) -> None:
    made = rows(1, 2000, size)
    path = write(tmp_path / "data", ALPHA, made)
    raw = bytearray(path.read_bytes())
    at = SegmentView(path.with_suffix(".idx").read_bytes(), bytes(raw)).flag_offset(700)
    raw[at - 30] ^= 4
    path.write_bytes(raw)
    report = run(tmp_path / "data", tmp_path / "to")
    found = manifest.latest(tmp_path / "to")
    assert found is not None and report.segments_corrupt == 1
    assert (found.topics["alpha"].rows[0].corrupt_first, found.topics["alpha"].rows[0].corrupt_seqs) == (700, 1)
    with pytest.raises(DamagedError, match="topic alpha, seqs 700 to 700"):
        scan(tmp_path / "to")
    assert [row["seq"] for row in scan(tmp_path / "to", on_corrupt="row") if row["_kind"] == "corrupt"] == [700]


@pytest.mark.parametrize("size", [1000, 10])
@pytest.mark.parametrize("kind", [".idx", ".tag"])
def test_a_damaged_index_or_tag_part_is_exported_as_it_should_be(tmp_path: Path, size: int, kind: str) -> None:
    path = write(tmp_path / "data", ALPHA, rows(1, 2000, size))
    part = path.with_suffix(kind)
    raw = bytearray(part.read_bytes())
    raw[140] ^= 1
    part.write_bytes(raw)
    run(tmp_path / "data", tmp_path / "to")
    row = manifest.latest(tmp_path / "to").topics["alpha"].rows[0]  # type: ignore[union-attr]
    parts = (tmp_path / "to" / row.file).read_bytes()
    wanted = oracle.build(ALPHA, rows(1, 2000, size))
    assert parts[row.data_offset : row.end_offset] == wanted.data + wanted.index + wanted.tags


@pytest.mark.parametrize("size", [1000, 10])
def test_a_source_cut_short_is_exported_up_to_the_cut(tmp_path: Path, size: int) -> None:
    path = write(tmp_path / "data", ALPHA, rows(1, 3000, size))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 3 // 4 + 3)
    run(tmp_path / "data", tmp_path / "to")
    found = scan(tmp_path / "to", on_corrupt="row")
    assert [row["seq"] for row in found] == list(range(1, 3001))
    whole = [row for row in found if row["_kind"] == "record"]
    assert 2200 < len(whole) < 2300 and whole == scanned("alpha", rows(1, 3000, size))[: len(whole)]


def test_a_segment_that_goes_while_the_run_copies_is_left_out(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = export.stamp_of

    def stamp(place: Any) -> str:
        if place.first_seq == 2001:
            place.data.path.unlink()
        return real(place)

    monkeypatch.setattr(export, "stamp_of", stamp)
    assert run(data, tmp_path / "to").segments_vanished == 1
    assert len(scan(tmp_path / "to", topics="alpha")) == 2000


def test_a_segment_that_goes_while_a_later_run_looks_at_it_stays_as_it_was(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(data, tmp_path / "to")
    monkeypatch.setattr(export, "stamp_of", lambda place: place.data.path.with_suffix(".gone").stat())
    write(data, ALPHA, rows(2004, 2))
    assert run(data, tmp_path / "to").segments_vanished == 4
    assert len(scan(tmp_path / "to")) == 2006


def test_a_lost_file_of_the_export_is_copied_again(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "to")
    for path in (tmp_path / "to/parts").iterdir():
        path.unlink()
    with pytest.raises(DamagedError, match="is missing"):
        scan(tmp_path / "to")
    run(data, tmp_path / "to")
    assert len(scan(tmp_path / "to")) == 2006


def change_places(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def three_files(tmp_path: Path) -> tuple[list[Path], list[int]]:
    """An export of three files of a topic; and all its seqs."""
    for first in (1, 101, 301):
        write(tmp_path / "data", ALPHA, rows(first, 200 if first == 101 else 100))
        run(tmp_path / "data", tmp_path / "to")
    files = sorted((tmp_path / "to/parts").iterdir())
    assert len(files) == 3
    return files, list(range(1, 401))


@pytest.mark.parametrize("instead", ["swapped", "copied", "a folder", "a loop", "another topic's"])
def test_a_file_of_the_export_that_is_none_or_holds_another_ones_bytes_is_damage(tmp_path: Path, instead: str) -> None:
    files, seqs = three_files(tmp_path)
    if instead == "swapped":
        change_places(files[0], files[1])
    elif instead == "copied":
        files[0].write_bytes(files[1].read_bytes())
    elif instead == "another topic's":
        write(tmp_path / "other", BETA, rows(1, 100))
        run(tmp_path / "other", tmp_path / "other-to")
        (foreign,) = (tmp_path / "other-to/parts").iterdir()
        files[0].write_bytes(foreign.read_bytes())
    else:
        files[0].unlink()
        files[0].mkdir() if instead == "a folder" else files[0].symlink_to(files[0])
    with pytest.raises(DamagedError, match=f"{files[0].name}|{files[1].name}"):
        scan(tmp_path / "to")
    found = scan(tmp_path / "to", on_corrupt="row")
    assert len(found) < 400 and {row["_kind"] for row in found} == {"record", "corrupt"}
    covered = [seq for row in found for seq in range(row["seq"], (row["seq_end"] or row["seq"]) + 1)]
    assert covered == seqs
    assert all(row["topic"] == found[0]["topic"] for row in found)
    assert any(files[0].name in row["_err"] for row in found if row["_kind"] == "corrupt")


@pytest.mark.parametrize("instead", ["flipped", "swapped"])
def test_a_run_that_verifies_makes_damaged_files_of_the_export_again(data: Path, tmp_path: Path, instead: str) -> None:
    run(data, tmp_path / "to")
    sound = scan(tmp_path / "to")
    files = sorted((tmp_path / "to/parts").iterdir())
    if instead == "swapped":
        files[0].write_bytes(files[1].read_bytes()[: files[0].stat().st_size].ljust(files[0].stat().st_size, b"\0"))
    else:
        for path in files:
            raw = bytearray(path.read_bytes())
            raw[len(raw) // 3] ^= 1
            path.write_bytes(raw)
    assert run(data, tmp_path / "to").segments_copied == 0  # sizes are right: nothing is read again each minute
    report = run(data, tmp_path / "to", verify=True)
    assert report.segments_copied > 0 and report.segments_corrupt == 0
    assert scan(tmp_path / "to") == sound
    again = run(data, tmp_path / "to", verify=True)
    assert (again.segments_copied, again.bytes_copied) == (0, 0)
    done = CliRunner().invoke(main, ["export", "--to", str(tmp_path / "to"), "--data-dir", str(data), "--verify"])
    assert done.exit_code == 0


def test_a_damaged_manifest_says_how_to_go_on(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "to")
    path = manifest.path_of(tmp_path / "to", 1)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ManifestError, match=r"remove the file .*export"):
        run(data, tmp_path / "to")
    path.unlink()
    run(data, tmp_path / "to")
    assert len(scan(tmp_path / "to")) == 2006


def test_an_export_whose_manifests_have_gone_is_no_empty_one(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "to")
    shutil.rmtree(tmp_path / "to/manifests")
    with pytest.raises(ManifestError, match="no manifest"):
        scan(tmp_path / "to")


def test_no_flipped_bit_of_a_manifest_passes(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "to")
    raw = manifest.path_of(tmp_path / "to", 1).read_bytes()
    assert manifest.parse(raw).number == 1
    rng = random.Random(5)
    for _ in range(400):
        bad = bytearray(raw)
        bad[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        try:
            assert manifest.parse(bytes(bad)) == manifest.parse(raw)  # a bit of the last line that says nothing
        except ManifestError:
            pass
    for cut in range(0, len(raw) - 1, 7):
        with pytest.raises(ManifestError):
            manifest.parse(raw[:cut])


def test_a_manifest_of_a_newer_version_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="this version knows 1"):
        manifest.parse(b'{"format":"topicsd-export","format_version":2}\n{"end":true}\n')


# ---- parts -------------------------------------------------------------------------------------------------------------------------


def numbered(first: int, last: int, file: str = "") -> manifest.Row:
    return manifest.Row(first, last, first, last, 0, 0, 0, 0, 0, 0, 0, 0, file, 0, 0, 0, 0, "", "", "")


def test_old_rows_stand_below_and_above_the_new_ones_and_never_between_them() -> None:
    rng = random.Random(3)
    for _ in range(300):
        old_cuts, new_cuts = (sorted(rng.sample(range(1, 40), 4)) for _ in range(2))
        old = [numbered(old_cuts[0], old_cuts[1] - 1, "old"), numbered(old_cuts[2], old_cuts[3], "old")]
        new = [numbered(new_cuts[0], new_cuts[1] - 1, "new"), numbered(new_cuts[2], new_cuts[3], "new")]
        told = {made[0].file: {seq for row in made for seq in range(row.first_seq, row.last_seq + 1)} for made in (old, new)}
        inside = range(new_cuts[0], new_cuts[3] + 1)
        wanted = {seq: "old" for seq in told["old"] if seq not in inside} | dict.fromkeys(told["new"], "new")
        found = merged(Topic("t", 1, tuple(old)), Topic("t", 1, tuple(new))).rows
        got = [(seq, row.file) for row in found for seq in range(row.first_seq, row.last_seq + 1)]
        assert got == sorted(wanted.items())
        assert list(without(new, new)) == []


def test_the_command_prints_a_line_of_json_a_run(data: Path, tmp_path: Path) -> None:
    to = str(tmp_path / "to")
    done = CliRunner().invoke(main, ["export", "--to", to, "--data-dir", str(data), "--topics", f"{ALPHA:016x}"])
    assert done.exit_code == 0, done.output
    assert orjson.loads(done.output) | {"bytes_copied": 0} == Report(1, 1, 2, 2, changed=True).line()
    (tmp_path / "to/manifests/00000000000000000001.jsonl").write_bytes(b"{}")
    done = CliRunner().invoke(main, ["export", "--to", to, "--data-dir", str(data)])
    assert done.exit_code == 2 and "damaged" in done.output


@pytest.mark.parametrize("wrong", ["", ",", "a*b", "a,,b", "*a", "a b", "ä"])
def test_topics_that_can_be_none_are_refused_by_the_command_and_by_a_scan(data: Path, tmp_path: Path, wrong: str) -> None:
    to = tmp_path / "to"
    done = CliRunner().invoke(main, ["export", "--to", str(to), "--data-dir", str(data), "--topics", wrong])
    assert done.exit_code == 2 and "--topics" in done.output and not to.exists()
    run(data, to)
    with pytest.raises(ValueError, match=r"^topics "):
        topicsd.scan(to, topics=wrong)
    with pytest.raises(ValueError, match=r"^topics "):
        topicsd.scan(to, topics=["alpha", wrong])
    assert len(scan(to, topics=["*"])) == len(scan(to)) and scan(to, topics=[]) == []


@pytest.mark.parametrize("since", ["/nope", ""])
def test_a_manifest_for_since_that_is_not_there_is_named_with_the_option(data: Path, tmp_path: Path, since: str) -> None:
    done = CliRunner().invoke(main, ["export", "--to", str(tmp_path / "to"), "--data-dir", str(data), "--since", since])
    assert done.exit_code == 2 and f"--since {since}" in done.output and len(done.output.splitlines()) == 1


@pytest.mark.slow
def test_follow_goes_on_until_it_is_told_to_stop(data: Path, tmp_path: Path) -> None:
    to = tmp_path / "to"
    command = [sys.executable, "-m", "topicsd.cli.main", "export", "--to", to, "--data-dir", data, "--follow", "--interval-ms", "20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["segments"] == 3
        write(data, ALPHA, rows(2004, 2))
        while json.loads(process.stdout.readline())["segments"] == 3:
            pass
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait() == 0
    assert manifest.numbers(to) == [1, 2]


@pytest.mark.parametrize("prune", [False, True])
def test_a_directory_that_is_none_of_a_server_is_refused_and_takes_nothing_from_the_export(data: Path, tmp_path: Path, prune: bool) -> None:
    to = tmp_path / "to"
    assert run(data, to).segments
    before = sorted(path.relative_to(to) for path in to.rglob("*"))
    (tmp_path / "empty").mkdir()
    for wrong in (tmp_path / "empty", to):  # a typing error; the export itself
        done = CliRunner().invoke(main, ["export", "--to", str(to), "--data-dir", str(wrong), *(["--prune"] if prune else [])])
        assert (done.exit_code, str(wrong) in done.stderr, "no data directory" in done.stderr) == (2, True, True)
        assert sorted(path.relative_to(to) for path in to.rglob("*")) == before
