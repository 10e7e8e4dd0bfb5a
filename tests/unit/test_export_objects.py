"""Exports in an object store: the same as in a folder, whatever the store and the network do; and read by ranges."""

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import topicsd
from fakes.exports import Lake, records
from fakes.object_store import a_bucket, trouble
from topicsd.lake import manifest, storage
from topicsd.lake.manifest import ManifestError
from topicsd.lake.parts import MappedFiles, RemoteFiles, files_of
from topicsd.lake.pieces import DamagedError, Piece, Reader
from topicsd.lake.scan import pieces_of
from topicsd.lake.storage import Bucket, VerifyError
from topicsd.objects import ObjectError, ObjectStore

pytest.importorskip("pyarrow")
LARGE = 2000  # records of a kilobyte: a segment of an object of its own


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    with a_bucket("lake") as options:
        yield options


def opened(options: dict[str, Any], tmp_path: Path, **more: Any) -> Bucket:
    return Bucket(ObjectStore(f"s3://lake/{tmp_path.name}", options, pause=lambda _: None, **more))


@pytest.fixture
def bucket(options: dict[str, Any], tmp_path: Path) -> Bucket:
    return opened(options, tmp_path)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path)
    made.write("alpha", records(1, LARGE, 1000))
    made.write("alpha", records(LARGE + 1, 3))
    made.write("beta.x", records(5, 2))
    return made


def scan(bucket: Bucket, **more: Any) -> list[dict[str, Any]]:
    reader = Reader(files=files_of(bucket), **more)
    return [row for batch in reader.read(pieces_of(bucket)) for row in batch.to_pylist()]


def test_an_export_in_a_store_scans_as_one_in_a_folder(lake: Lake, bucket: Bucket, options: dict[str, Any]) -> None:
    lake.export()
    report = lake.export(to=bucket)
    whole = topicsd.scan(lake.to).read_all().to_pylist()
    assert (report.manifest, report.segments_copied, len(whole)) == (1, 3, LARGE + 5)
    by_url = topicsd.scan(bucket.store.url, storage_options=options)
    assert by_url.read_all().to_pylist() == whole
    chosen = {"topics": "alpha", "columns": ["seq"], "since": 1000 + LARGE}
    assert topicsd.scan(bucket.store.url, **chosen, storage_options=options).read_all() == topicsd.scan(lake.to, **chosen).read_all()
    there = {found.name: found.bytes for folder in ("manifests", "parts") for found in bucket.listed(folder)}
    found = manifest.latest(bucket)
    assert found is not None and set(there) == found.files() | {manifest.name_of(1)}


def test_a_second_run_copies_only_what_is_new_and_a_prune_what_nobody_needs(lake: Lake, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.export(to=bucket)
    assert (lake.export(to=bucket).bytes_copied, lake.export(to=bucket, quiet=True).manifest) == (0, 2)
    lake.write("alpha", records(LARGE + 4, 2))
    assert 0 < lake.export(to=bucket).bytes_copied < 100_000
    bucket.store.put("parts/left-by-a-killed-run.parts", b"x")
    assert lake.export(to=bucket, prune=True).files_pruned == 0  # it is young
    monkeypatch.setattr(storage, "LITTER_AGE_S", -1.0)
    monkeypatch.setattr("topicsd.lake.export.LITTER_AGE_S", -1.0)
    assert lake.export(to=bucket, prune=True).files_pruned == 1
    assert manifest.numbers(bucket) == [3, 4, 5] and len(scan(bucket)) == LARGE + 7


def test_a_range_of_a_large_segment_is_fetched_alone(lake: Lake, options: dict[str, Any], tmp_path: Path) -> None:
    lake.export()
    whole = topicsd.scan(lake.to, topics="alpha").read_all().to_pylist()
    with trouble(options) as (proxy, through):
        bucket = opened(through, tmp_path)
        lake.export(to=bucket)
        found = manifest.latest(bucket)
        assert found is not None
        (row, *_) = found.topics["alpha"].rows
        rng = random.Random(2)
        for _ in range(20):
            first = rng.randrange(1, LARGE)
            last = min(first + rng.choice([0, 5, 63, 64, 700]), LARGE)
            piece = Piece("alpha", first, last, row.place(Path(), found.topics["alpha"].epoch))
            before = proxy.sent_bytes
            rows = [row for batch in Reader(files=RemoteFiles(bucket.store)).read([piece]) for row in batch.to_pylist()]
            assert rows == whole[first - 1 : last]
            assert proxy.sent_bytes - before < (last - first + 1) * 1200 + 60_000  # and the index
        assert row.end_offset > 2 << 20


@pytest.mark.slow
def test_many_small_segments_are_fetched_together(options: dict[str, Any], tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for number in range(300):
        lake.write(f"t{number:03}", records(1, 2))
    with trouble(options) as (proxy, through):
        bucket = opened(through, tmp_path)
        lake.export(to=bucket)
        begun = len(proxy.asked)
        assert len(scan(bucket)) == 600
        assert len(proxy.asked) - begun < 8


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_an_export_in_a_store_goes_into_a_lake_table(lake: Lake, options: dict[str, Any], tmp_path: Path, kind: str) -> None:
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    from topicsd.spark import lakes
    from topicsd.spark.audit import Audit
    from topicsd.spark.ingest import Ingest, run_here
    from topicsd.spark.options import parse

    with trouble(options) as (proxy, through):
        lake.export(to=opened(through, tmp_path))
        proxy.plan = lambda _method, _path, number: "503" if number % 3 == 0 else ""
        told = {"path": f"s3://lake/{tmp_path.name}", **{name: value for name, value in through.items() if name.startswith("aws_")}}
        made = Ingest(run_here, parse(told), lakes.Lake(tmp_path / "table", kind), limit=900)
        assert made.batch() is not None  # another job, without anything of the first one's, does the rest
        rest = Ingest(run_here, parse(told), lakes.Lake(tmp_path / "table"))
        while rest.batch() is not None:
            pass
        days = list(Audit(lakes.Lake(tmp_path / "table"), parse(told)).days())
    assert all(day.clean for day in days) and sum(day.lake for day in days) == LARGE + 5
    assert "hush" not in repr(parse({"path": "s3://x", "aws_secret_access_key": "hush"}))


# ---- bad days ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["503", "lost", "twice", "cut", "mixed"])
def test_a_store_in_trouble_gets_the_same_export(lake: Lake, options: dict[str, Any], tmp_path: Path, what: str) -> None:
    with trouble(options) as (proxy, through):
        rng, last = random.Random(7), [""]

        def plan(_method: str, _path: str, _number: int) -> str:
            now = "" if last[0] or rng.random() < 0.4 else rng.choice(["503", "lost", "twice", "cut"]) if what == "mixed" else what
            last[0] = now  # never twice in a row: then a few tries are enough
            return now

        bucket = opened(through, tmp_path, retries=2)
        proxy.plan = plan
        report = lake.export(to=bucket)
        assert report.manifest == 1 and manifest.numbers(bucket) == [1]  # a commit whose answer was lost is not made twice
        rows = scan(bucket)
    lake.export()
    assert rows == topicsd.scan(lake.to).read_all().to_pylist()
    assert sum(bool(asked[2]) for asked in proxy.asked) > 3


def test_a_store_that_has_gone_commits_nothing_and_the_next_run_does_it(lake: Lake, options: dict[str, Any], tmp_path: Path) -> None:
    with trouble(options) as (proxy, through):
        for upto in range(0, 8, 2):
            proxy.plan = lambda method, _path, _number, upto=upto: "503" if sum(each[0] == "PUT" for each in proxy.asked) >= upto else ""
            proxy.asked.clear()
            try:
                lake.export(to=opened(through, tmp_path, retries=0, attempts=1))
            except ObjectError as wrong:
                proxy.plan = lambda *_: ""
                assert "s3://lake" in str(wrong) and manifest.latest(opened(through, tmp_path)) is None
        proxy.plan = lambda *_: ""
        bucket = opened(through, tmp_path)
        lake.export(to=bucket)
        assert len(scan(bucket)) == LARGE + 5


def test_a_store_that_keeps_something_else_is_found_out(lake: Lake, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ObjectStore.put
    monkeypatch.setattr(ObjectStore, "put", lambda self, name, raw: real(self, name, bytes(raw)[:-8] + b"\1" * 8))
    with pytest.raises(VerifyError, match="does not read as it was put"):
        lake.export(to=bucket)
    assert manifest.latest(bucket) is None


@pytest.mark.slow
def test_a_run_that_was_killed_anywhere_is_made_up_for_by_the_next(lake: Lake, options: dict[str, Any], bucket: Bucket) -> None:
    code = """
import os, sys
from pathlib import Path
from topicsd import objects
from topicsd.lake import export
from topicsd.lake.sources import DirectorySource
from topicsd.lake.storage import open_storage
left = int(sys.argv[3])
real = objects.ObjectStore._try
def killed(self, name, call):
    global left
    def once():
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), 9)
        out = call()
        left -= 1
        if left == 0:
            os.kill(os.getpid(), 9)
        return out
    return real(self, name, once)
objects.ObjectStore._try = killed
options = {"aws_endpoint": sys.argv[4], "aws_access_key_id": "test", "aws_secret_access_key": "test", "aws_region": "us-east-1"}
storage = open_storage(sys.argv[2], options)
export.Exporter(DirectorySource(Path(sys.argv[1]), {1: "alpha", 2: "beta.x"}), storage).run()
"""
    uploads: list[int] = []
    for step in range(1, 60, 3):
        arguments = [lake.data, bucket.store.url, str(step), options["aws_endpoint"]]
        done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], check=False, capture_output=True)
        found = manifest.latest(bucket)
        assert found is None or len(scan(bucket)) == LARGE + 5
        uploads.append(len(bucket.listed("parts")))
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert done.returncode == 0 and len(scan(bucket)) == LARGE + 5
    assert uploads[-1] == 2 and sorted(uploads) == uploads  # what a killed run has put is taken, not put beside


def test_two_runs_at_once_both_count(lake: Lake, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    barrier, first, real = threading.Barrier(2, timeout=60), threading.local(), manifest.commit

    def commit(root: Any, made: manifest.Manifest) -> bool:
        if not getattr(first, "done", False):
            first.done = True
            barrier.wait()  # both have copied, and both want the same number
        return real(root, made)

    monkeypatch.setattr(manifest, "commit", commit)
    reports: list[int] = []
    runs = [
        threading.Thread(target=lambda topics=topics: reports.append(lake.export(to=bucket, topics=topics).manifest))
        for topics in (["alpha"], ["beta.*"])
    ]
    for thread in runs:
        thread.start()
    for thread in runs:
        thread.join()
    assert sorted(reports) == [1, 2] and {row["topic"] for row in scan(bucket)} == {"alpha", "beta.x"}


def test_objects_that_went_or_were_damaged_are_told(lake: Lake, bucket: Bucket) -> None:
    lake.export(to=bucket)
    found = manifest.latest(bucket)
    assert found is not None
    row = found.topics["alpha"].rows[0]
    raw = bytearray(bucket.read(row.file))
    raw[row.data_offset + 300] ^= 1
    bucket.store.put(row.file, raw)
    with pytest.raises(DamagedError, match="alpha, seqs 1 to 1"):
        scan(bucket)
    assert [(each["_kind"], each["seq"]) for each in scan(bucket, on_corrupt="row")][:2] == [("corrupt", 1), ("record", 2)]
    index = bytearray(bucket.read(row.file))
    index[row.index_offset + 200] ^= 1  # and the index: it is made again from the data
    bucket.store.put(row.file, index)
    told = scan(bucket, on_corrupt="row")
    assert len(told) == LARGE + 5 and [each["seq"] for each in told if each["_kind"] == "corrupt"] == [1]
    piece = Piece("alpha", 700, 710, row.place(Path(), found.topics["alpha"].epoch))
    rows = [row for batch in Reader(files=RemoteFiles(bucket.store)).read([piece]) for row in batch.to_pylist()]
    assert [row["seq"] for row in rows] == list(range(700, 711))
    bucket.remove(row.file)
    with pytest.raises(DamagedError, match="is missing"):
        scan(bucket)
    told = scan(bucket, on_missing="gap")
    assert next((each["_kind"], each["seq"], each["seq_end"]) for each in told) == ("gap", 1, LARGE)
    assert lake.export(to=bucket).segments_copied == 1 and len(scan(bucket)) == LARGE + 5


def test_a_place_without_an_export_says_so(bucket: Bucket) -> None:
    with pytest.raises(ManifestError, match="no manifest"):
        scan(bucket)
    assert isinstance(files_of(storage.open_storage("/nowhere")), MappedFiles)
