"""Topics into a lake table, each record once, whatever is killed: without Spark, whose part is only where the tasks run."""

import datetime
import errno
import itertools
import json
import os
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from fakes.exports import Lake, entry, records
from oracle.segment_oracle import HOLE, Row
from topicsd._native.segment import SegmentView
from topicsd._native.segment_scan import GapError
from topicsd.lake import manifest
from topicsd.spark import lakes, options, payloads
from topicsd.spark.audit import Audit, ranges_of
from topicsd.spark.ingest import Ingest, run_here
from topicsd.spark.jobs import spark
from topicsd.spark.ranges import Held
from topicsd.spark.tables import ConflictError, TableError, topic_key
from topicsd.spark.write import Task, Written

pytest.importorskip("deltalake", reason="the extra `spark` is not installed")


def told(lake: Lake, **rest: object) -> options.Options:
    return options.parse({"path": str(lake.to), "onCorrupt": "row"} | {name: str(value) for name, value in rest.items()})


def table(lake: Lake) -> lakes.Lake:
    return lakes.Lake(lake.to.parent / "table", lake.kind)


def job(lake: Lake, runner: Callable[[list[Task]], list[Written]] = run_here, **rest: Any) -> Ingest:
    return Ingest(runner, told(lake), table(lake), **rest)


def drain(ingest: Ingest) -> int:
    batches = 0
    while ingest.batch() is not None:
        batches += 1
    return batches


def rows(lake: Lake, name: str = "table", columns: list[str] | None = None) -> list[dict[str, Any]]:
    made = table(lake).quarantine() if name.endswith("quarantine") else table(lake).table()
    tables = [parquet.read_table(path, partitioning=None, columns=columns) for path in made.files()]
    keys = {"topic_key", "day"}  # they stand in Iceberg's files
    found = [row for one in tables for row in one.select([name for name in one.column_names if name not in keys]).to_pylist()]
    return sorted(found, key=lambda row: (row["topic"], row["seq"]))


def seqs(lake: Lake) -> list[tuple[str, int]]:
    return [(row["topic"], row["seq"]) for row in rows(lake, columns=["topic", "seq"])]


def days(lake: Lake, **rest: object) -> list[dict[str, Any]]:
    return [day.line() for day in Audit(table(lake), told(lake, **rest)).days()]


@pytest.fixture(params=lakes.FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "iceberg":
        pytest.importorskip("pyiceberg", reason="the extra `iceberg` is not installed")
    return Lake(tmp_path, request.param)


# ---- what comes -------------------------------------------------------------------------------------------------------------------------


def test_every_record_stands_in_the_table_once_by_topic_and_day(lake: Lake) -> None:
    day_ms = 86_400_000
    lake.write("a:b", [*records(1, 50, ts=5 * day_ms - 40), *records(51, 10, ts=7 * day_ms)])
    lake.write("c", records(7, 3))
    lake.export()
    assert drain(job(lake)) == 1
    found = rows(lake)
    assert [(row["topic"], row["seq"]) for row in found] == [("a:b", seq) for seq in range(1, 61)] + [("c", 7), ("c", 8), ("c", 9)]
    assert found[0] == {
        "topic": "a:b", "epoch": f"{1:016x}", "seq": 1,
        "ts": datetime.datetime(1970, 1, 5, 23, 59, 59, 961000, datetime.UTC), "node": None, "tag": "t0",
        "meta": [("k", "0")], "data": '"xxxxxxxxxx"',
    }  # fmt: skip
    made = table(lake).table()
    days_of_a = [("a:b", "1970-01-05"), ("a:b", "1970-01-06"), ("a:b", "1970-01-08")]
    assert sorted(made.partitions()) == [*days_of_a, ("c", "1970-01-01")]
    opened: Any = made.open()  # others read it as any table of its format
    if lake.kind == "delta":
        others = opened.to_pyarrow_table(columns=["seq", "topic_key", "day"])
    else:
        others = opened.scan(selected_fields=("seq", "topic_key", "day"), row_filter="day >= '1970-01-01'").to_arrow()
        assert opened.scan(row_filter="topic_key = 'c' and day = '1970-01-01'").to_arrow()["seq"].to_pylist() == [7, 8, 9]
    assert others.num_rows == 63 and set(others["topic_key"].to_pylist()) == {"a:b", "c"}
    assert all(day["clean"] for day in days(lake)) and sum(day["source"] for day in days(lake)) == 63


def test_batches_are_limited_and_go_on_without_a_checkpoint(lake: Lake, tmp_path: Path) -> None:
    lake.write("a", records(1, 100))
    lake.write("b", records(1, 20))
    lake.export()
    assert drain(job(lake, limit=30, checkpoint=tmp_path / "checkpoint")) == 4
    lake.write("a", records(101, 10))
    lake.export()
    assert drain(job(lake, limit=30)) == 1  # the checkpoint is lost: the table knows
    assert seqs(lake) == [("a", seq) for seq in range(1, 111)] + [("b", seq) for seq in range(1, 21)]
    assert job(lake, checkpoint=tmp_path / "checkpoint").query == json.loads((tmp_path / "checkpoint/ingest.json").read_bytes())["query"]


def test_a_topic_made_again_comes_beside_what_it_was(lake: Lake) -> None:
    lake.write("a", records(1, 5))
    lake.export()
    drain(job(lake))
    lake.recreate("a")
    lake.write("a", records(1, 3))
    lake.export()
    drain(job(lake))
    assert [(row["epoch"][-1], row["seq"]) for row in sorted(rows(lake), key=lambda row: (row["epoch"], row["seq"]))] == [
        ("1", 1), ("1", 2), ("1", 3), ("1", 4), ("1", 5), ("2", 1), ("2", 2), ("2", 3),
    ]  # fmt: skip
    assert all(day["clean"] for day in days(lake))


def test_gaps_and_damage_go_into_the_quarantine_and_are_named(lake: Lake) -> None:
    path = lake.write("a", [*records(1, 50), Row(51, 1051, None, HOLE | 2 << 8, 9), *records(60, 20)])
    raw = bytearray(path.read_bytes())
    raw[SegmentView(path.with_suffix(".idx").read_bytes(), bytes(raw)).flag_offset(42) - 20] ^= 1
    path.write_bytes(raw)
    lake.export()
    drain(job(lake))
    assert seqs(lake) == [("a", seq) for seq in range(1, 80) if seq != 42 and not 51 <= seq <= 59]
    bad = [(row["_kind"], row["seq"], row["seq_end"], row["_err"]) for row in rows(lake, "table_quarantine")]
    assert bad == [("corrupt", 42, 42, "damaged frame"), ("gap", 51, 59, "ttl")]
    audit = Audit(table(lake), told(lake))
    assert [(gap["topic"], gap["from"], gap["to"], gap["why"]) for gap in audit.gaps()] == [("a", 42, 42, "damaged frame"), ("a", 51, 59, "ttl")]
    assert all(day.clean for day in audit.days())


def test_what_retention_took_before_it_came_fails_or_is_a_gap(lake: Lake) -> None:
    first = lake.write("a", records(1, 10))
    lake.export()
    drain(job(lake))
    lake.write("a", records(31, 10))
    for path in first.parent.glob(f"{first.stem}.*"):
        path.unlink()
    lake.export(prune=True)
    with pytest.raises(GapError, match="topic a, seqs 11 to 30"):
        drain(job(lake))
    drain(Ingest(run_here, told(lake, failOnDataLoss=False), table(lake)))
    assert seqs(lake) == [("a", seq) for seq in [*range(1, 11), *range(31, 41)]]
    assert [(row["_kind"], row["seq"], row["seq_end"]) for row in rows(lake, "table_quarantine")] == [("gap", 11, 30)]
    assert days(lake)[0]["gone"] == 10


def floors(lake: Lake, name: str, floor: int, live: int | None = None) -> None:
    """Have the export's newest manifest say what the topic's source has lost below `floor`, and deleted below `live`, as a run of a server's does."""
    found = manifest.latest(lake.to)
    assert found is not None
    topic = replace(found.topics.get(name) or manifest.Topic(name, lake.ids[name], ()), evict_floor=floor)
    topics = found.topics | {name: manifest.filled(topic, 1, live or floor, lambda _: "cap")}
    assert manifest.commit(lake.to, replace(found, number=found.number + 1, topics=topics))


def gaps(lake: Lake) -> list[tuple[str, int, int | None, str]]:
    return [(row["epoch"][-1], row["seq"], row["seq_end"], row["_err"]) for row in rows(lake, "table_quarantine") if row["_kind"] != "deleted"]


@pytest.mark.parametrize("limit", [None, 3])
def test_what_had_gone_before_the_first_batch_is_named_and_fails_nothing(lake: Lake, limit: int | None) -> None:
    lake.write("a", records(91, 5))
    lake.write("a", records(101, 5))
    lake.export()
    floors(lake, "a", 101)
    ingest = job(lake, limit=limit)
    batches = drain(ingest)
    assert batches == (1 if limit is None else 5)  # what had gone in front is no record: it comes with the first ones
    assert gaps(lake) == [("1", 1, 90, "cap"), ("1", 96, 100, "cap")] or limit is not None
    assert sum(last - first + 1 for _, first, last, _ in gaps(lake) if last) == 95
    assert seqs(lake) == [("a", seq) for seq in [*range(91, 96), *range(101, 106)]]
    assert job(lake).batch() is None and all(day["clean"] for day in days(lake))


def test_what_retention_took_between_two_exports_fails_or_is_named_with_its_reason(lake: Lake) -> None:
    lake.write("a", records(1, 20))
    lake.export()
    drain(job(lake))
    floors(lake, "a", 61)
    with pytest.raises(GapError, match="topic a, seqs 21 to 60: lost \\(cap"):
        drain(job(lake))
    told_of = [day for day in days(lake) if not day["clean"]]
    assert [(day["topic"], day["lost"]) for day in told_of] == [("a", [[21, 60]])]
    drain(Ingest(run_here, told(lake, failOnDataLoss=False), table(lake)))
    assert gaps(lake) == [("1", 21, 60, "cap")]
    assert all(day["clean"] for day in days(lake))


def test_a_server_whose_head_is_below_what_the_table_holds_of_its_epoch_fails_the_job() -> None:
    from topicsd.spark import ingest
    from topicsd.spark.live import Listing, LiveTopic

    held = ingest.Held([("a", f"{7:016x}", 1, 100)])
    asked = options.parse({"url": "http://x"})
    with pytest.raises(GapError, match=r"topic a, seqs 51 to 100: .*restored or made anew"):
        ingest.missing(Listing({"a": LiveTopic("a", 7, 1, 51, 100)}), held, asked, None)
    assert ingest.missing(Listing({"a": LiveTopic("a", 7, 1, 101, 100)}), held, asked, None) == []
    lax = options.parse({"url": "http://x", "failOnDataLoss": "false"})
    assert ingest.missing(Listing({"a": LiveTopic("a", 7, 1, 51, 100)}), held, lax, None) == []
    assert ingest.missing(Listing({"a": LiveTopic("a", 8, 1, 51, 100)}), held, asked, None)


def test_what_was_deleted_is_no_gap(lake: Lake) -> None:
    lake.write("a", records(1, 20))
    lake.export()
    drain(job(lake))
    floors(lake, "a", 1, live=61)
    assert drain(job(lake)) == 1 and job(lake).batch() is None
    assert gaps(lake) == [] and all(day["clean"] for day in days(lake))
    assert [(row["_kind"], row["seq"], row["seq_end"]) for row in rows(lake, "table_quarantine")] == [("deleted", 21, 60)]


def test_a_topic_made_again_is_noted_once_and_what_the_export_still_has_of_the_old_one_comes_first(lake: Lake) -> None:
    lake.write("a", records(1, 5))
    lake.export()
    drain(job(lake))
    lake.write("a", records(6, 3))
    lake.export()
    lake.recreate("a")
    lake.write("a", records(1, 3))
    lake.export()
    killed = job(lake)
    batch = killed.batch()
    assert batch is not None and (batch.records, batch.recreated) == (3, 0)
    batch = killed.batch()
    assert batch is not None and (batch.records, batch.recreated, batch.quarantined) == (3, 1, 1)
    assert killed.batch() is None
    found = sorted((row["epoch"][-1], row["seq"]) for row in rows(lake))
    assert found == [("1", seq) for seq in range(1, 9)] + [("2", seq) for seq in range(1, 4)]
    assert gaps(lake) == [("1", 9, None, "recreated")]
    assert all(day["clean"] for day in days(lake))
    assert [(gap["from"], gap["to"], gap["why"]) for gap in Audit(table(lake), told(lake)).gaps()] == [(9, None, "recreated")]
    lake.write("a", records(4, 2))
    lake.export(prune=True)
    drain(job(lake))
    assert gaps(lake) == [("1", 9, None, "recreated")]


def test_a_note_of_a_topic_made_again_is_made_once_by_a_job_that_is_killed_between_its_two_commits(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.write("a", records(1, 5))
    lake.export()
    drain(job(lake))
    lake.recreate("a")
    lake.write("a", records(1, 3))
    lake.export(prune=True)

    class Killed(Exception):
        pass

    def die(*_: object) -> None:
        raise Killed

    ingest = job(lake)
    made = table(lake).table()
    with monkeypatch.context() as patched:
        commit = type(made).commit

        def quarantine_alone(self: Any, *rest: Any) -> None:
            if not self.path.name.endswith("_quarantine"):
                die()
            commit(self, *rest)

        patched.setattr(type(made), "commit", quarantine_alone)
        with pytest.raises(Killed):
            ingest.batch()
    assert gaps(lake) == [("1", 6, None, "recreated")]
    drain(job(lake))
    assert gaps(lake) == [("1", 6, None, "recreated")] and len(seqs(lake)) == 8


# ---- payloads ---------------------------------------------------------------------------------------------------------------------------


def with_datas(lake: Lake, *texts: str) -> None:
    from topicsd._native import frame

    made = [Row(seq, 1000 + seq, frame.entry(frame.Record(text.encode(), None, None, None, 0, 0))) for seq, text in enumerate(texts, 1)]
    lake.write("a", made)
    lake.export()


def test_payloads_are_parsed_by_a_schema_and_those_that_do_not_fit_are_set_apart(lake: Lake, tmp_path: Path) -> None:
    with_datas(lake, '{"n":1,"g":{"x":[1.5]}}', '{"n":"one"}', '{"n":2,\n "other":[]}', "[1]", '"text"', "{}", '{"n":null}', '{"n":1.0}')
    (tmp_path / "schema.json").write_text('{"n": "bigint", "g": {"x": ["double"]}}')
    drain(job(lake, schema=payloads.load(tmp_path / "schema.json")))
    assert [(row["seq"], row["payload"]) for row in rows(lake)] == [
        (1, {"n": 1, "g": {"x": [1.5]}}), (3, {"n": 2, "g": None}), (6, {"n": None, "g": None}), (7, {"n": None, "g": None}),
    ]  # fmt: skip
    bad = rows(lake, "table_quarantine")
    assert [(row["seq"], row["_kind"], row["data"]) for row in bad] == [
        (2, "bad", '{"n":"one"}'), (4, "bad", "[1]"), (5, "bad", '"text"'), (8, "bad", '{"n":1.0}'),
    ]  # fmt: skip
    assert all(row["_err"] for row in bad)
    assert all(day["clean"] for day in days(lake)) and days(lake)[0]["quarantined"] == 4


def test_an_inferred_schema_stays_the_tables(lake: Lake) -> None:
    with_datas(lake, '{"n":1,"at":"2026-01-01T00:00:00Z","none":null}', '{"n":2.5}')
    drain(job(lake, schema="infer"))
    assert [row["payload"] for row in rows(lake)] == [{"n": 1.0, "at": "2026-01-01T00:00:00Z", "none": None}, {"n": 2.5, "at": None, "none": None}]
    lake.write("a", [Row(3, 5000, entry({"n": 3, "new": 1}))])
    lake.export()
    drain(job(lake))
    assert rows(lake)[2]["payload"] == {"n": 3.0, "at": None, "none": None}


def test_long_names_make_short_keys_that_differ() -> None:
    names = ["a" * 255, "a" * 254 + "b", "x" * 81, "y:" * 40]
    keys = [topic_key(name) for name in names]
    assert len(set(keys)) == 4 and all(len(key) <= 60 for key in keys)
    assert topic_key("orders.eu:1") == "orders.eu:1"


# ---- who is killed ----------------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """As by SIGKILL: nothing is tidied up."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", lakes.FORMATS)
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 2**32))
def test_whoever_is_killed_nothing_is_lost_and_nothing_doubled(kind: str, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = random.Random(seed)
    lake = Lake(tmp_path_factory.mktemp("lake"), kind)
    at = {"a": 1, "b": 1}
    owner = type(table(lake).table())
    commit = owner.commit

    def dying(self: Any, *arguments: Any) -> None:
        fate = rng.random()
        if fate < 0.2:
            raise Killed
        commit(self, *arguments)
        if fate < 0.4:
            raise Killed

    def runner(tasks: list[Task]) -> list[Written]:
        out = run_here(tasks[: rng.randrange(len(tasks) + 1)] if rng.random() < 0.2 else tasks)
        if len(out) < len(tasks):
            raise Killed
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, "commit", dying)
        for _ in range(6):
            for name in at:
                count = rng.randrange(0, 30)
                made = [Row(at[name] + k, 1000 + at[name] + k, entry({"n": 1} if rng.random() < 0.8 else {"n": "bad"})) for k in range(count)]
                if made:
                    lake.write(name, made)
                at[name] += count
            lake.export()
            try:
                drain(job(lake, runner, limit=rng.choice([None, 7, 20]), schema=pyarrow.struct([("n", pyarrow.int64())])))
            except Killed:
                continue
        patch.setattr(owner, "commit", commit)
        drain(job(lake, schema=pyarrow.struct([("n", pyarrow.int64())])))
    assert [day for day in days(lake) if not day["clean"] or day["gone"]] == []
    both = sorted([*seqs(lake), *((row["topic"], row["seq"]) for row in rows(lake, "table_quarantine"))])
    assert both == [(name, seq) for name in sorted(at) for seq in range(1, at[name])]


def test_two_jobs_at_once_bring_each_record_once(lake: Lake) -> None:
    lake.write("a", records(1, 40))
    lake.export()
    other = job(lake, limit=15)

    def runner(tasks: list[Task]) -> list[Written]:
        written = run_here(tasks)
        other.batch()  # the other job commits first
        return written

    drain(job(lake, runner, limit=10))
    assert seqs(lake) == [("a", seq) for seq in range(1, 41)]


@pytest.mark.parametrize("lake", ["iceberg"], indirect=True)
def test_a_job_that_is_killed_between_the_quarantine_and_the_table_knows_its_format_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from topicsd.spark.iceberg import IcebergLake

    with_datas(lake, '{"n":1}', '{"n":"bad"}')
    commit = IcebergLake.commit

    def dying(self: IcebergLake, *arguments: Any) -> None:
        if self.path.name == "table":
            raise Killed
        commit(self, *arguments)

    schema = pyarrow.struct([("n", pyarrow.int64())])
    with monkeypatch.context() as patch:
        patch.setattr(IcebergLake, "commit", dying)
        with pytest.raises(Killed):
            drain(job(lake, schema=schema))
    lake.kind = ""
    assert table(lake).format == "iceberg"
    drain(job(lake, schema=schema))
    assert seqs(lake) == [("a", 1)] and len(rows(lake, "table_quarantine")) == 1


def test_a_second_commit_of_the_same_batch_is_refused(lake: Lake) -> None:
    made = table(lake).table()
    made.commit([], [("a", "0", 1, 5)], 1)
    for ranges, number in (([("a", "0", 6, 7)], 1), ([("a", "0", 5, 7)], 2)):
        with pytest.raises(ConflictError):
            made.commit([], ranges, number)
    assert made.held()[0].ranges() == [("a", "0", 1, 5)]


def test_of_two_commits_on_the_same_state_one_passes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    made, other = table(lake).table(), table(lake).table()
    made.commit([], [("a", "0", 1, 5)], 1)
    stale = made.create()
    monkeypatch.setattr(made, "create", lambda: stale)  # it has looked before the other one commits
    other.commit([], [("b", "0", 1, 5)], 2)
    with pytest.raises(ConflictError):
        made.commit([], [("b", "0", 1, 5)], 2)
    assert other.held()[0].ranges() == [("a", "0", 1, 5), ("b", "0", 1, 5)] and other.held()[1] == 3


# ---- bad days ---------------------------------------------------------------------------------------------------------------------------


def test_every_kind_of_json_large_records_and_large_seqs_arrive_as_they_are(lake: Lake) -> None:
    from topicsd._native import frame

    texts = ["null", "true", "1e400", "18446744073709551616", '"\\ud800"', "[]", '{"a" : {"b":[1.0]}}', '"é\U0001f600"', '"' + "x" * (8 << 20) + '"']
    first = 2**53 - len(texts)
    lake.write("a", [Row(first + k, 5, frame.entry(frame.Record(text.encode(), None, None, None, 0, 0))) for k, text in enumerate(texts)])
    lake.export()
    drain(job(lake))
    assert [(row["seq"], row["data"]) for row in rows(lake)] == [(first + k, text) for k, text in enumerate(texts)]
    assert all(day["clean"] for day in days(lake)) and days(lake)[0]["source"] == len(texts)


def test_a_full_disk_fails_the_batch_and_the_next_run_brings_it(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.write("a", records(1, 50))
    lake.export()
    job(lake, limit=20).batch()
    whole = parquet.ParquetWriter.write_table

    def full(self: Any, *arguments: Any, **named: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(parquet.ParquetWriter, "write_table", full)
    with pytest.raises(OSError, match="No space left"):
        drain(job(lake))
    monkeypatch.setattr(parquet.ParquetWriter, "write_table", whole)
    drain(job(lake))
    assert seqs(lake) == [("a", seq) for seq in range(1, 51)] and all(day["clean"] for day in days(lake))


def test_an_export_that_goes_on_and_empty_topics_disturb_nothing(lake: Lake) -> None:
    lake.write("a", records(1, 10))
    report = lake.export()
    found = manifest.latest(lake.to)
    assert found is not None
    empty = {"aaa": manifest.Topic("aaa", 7, ()), "zzz": manifest.Topic("zzz", 8, ())}
    assert manifest.commit(lake.to, manifest.Manifest(report.manifest + 1, "x", 1, found.topics | empty))
    made = job(lake, limit=4)
    found = made.look()
    lake.write("a", records(11, 10))
    lake.export()  # while the job reads the manifest of before
    while made.batch(found) is not None:
        pass
    assert seqs(lake) == [("a", seq) for seq in range(1, 11)]
    drain(job(lake))
    assert seqs(lake) == [("a", seq) for seq in range(1, 21)]


# ---- audit ------------------------------------------------------------------------------------------------------------------------------


def test_an_audit_names_what_is_missing_doubled_and_different(lake: Lake) -> None:
    lake.write("a", records(1, 20))
    lake.export()
    drain(job(lake))
    path = Path(table(lake).table().files()[0])
    whole = parquet.read_table(path, partitioning=None)
    forged = whole.set_column(whole.column_names.index("data"), "data", pyarrow.array(["0" if seq == 7 else text for seq, text in zip(
        whole["seq"].to_pylist(), whole["data"].to_pylist(), strict=True)]))  # fmt: skip
    parquet.write_table(pyarrow.concat_tables([forged.slice(0, 4), forged.slice(5), forged.slice(9, 2)]), path)
    (day,) = days(lake)
    assert (day["missing"], day["doubled"], day["differing"], day["clean"]) == ([[5, 5]], [[10, 11]], [[7, 7]], False)


def forge(lake: Lake, changes: dict[str, Any], seq: int = 7, *, add: bool = False) -> dict[str, Any]:
    """The audit of a table in which one record has other values; add: beside itself."""
    path = Path(table(lake).table().files()[0])
    whole = parquet.read_table(path, partitioning=None)
    kept = whole.to_pylist()
    (one,) = (row for row in kept if row["seq"] == seq)
    if add:
        kept.append({**one, **changes})
    else:
        one.update(changes)
    parquet.write_table(pyarrow.Table.from_pylist(kept, whole.schema), path)
    (day,) = days(lake)
    parquet.write_table(whole, path)
    return day


def test_an_audit_compares_each_column_and_names_those_that_differ(lake: Lake) -> None:
    lake.write("a", records(1, 20))
    lake.export()
    drain(job(lake))
    for changes in (
        {"data": None}, {"tag": "other"}, {"tag": None}, {"node": "n"}, {"meta": [("k", "x")]}, {"meta": None},
        {"ts": datetime.datetime(1970, 1, 1, 9, tzinfo=datetime.UTC)}, {"data": None, "tag": "other"},
    ):  # fmt: skip
        day = forge(lake, changes)
        assert (day["clean"], day["differing"], sorted(day["columns"])) == (False, [[7, 7]], sorted(changes)), changes
    assert days(lake)[0]["clean"]


def test_an_audit_finds_records_that_the_source_never_had(lake: Lake) -> None:
    lake.write("a", records(1, 20))
    lake.export()
    drain(job(lake))
    for seq in (21, 99999, 0, -5):
        day = forge(lake, {"seq": seq}, add=True)
        assert (day["clean"], day["unknown"], day["gone"]) == (False, [[seq, seq]], 0)
    day = forge(lake, {"seq": None}, add=True)
    assert not day["clean"]


def test_what_has_not_come_yet_is_missing(lake: Lake) -> None:
    lake.write("a", records(1, 5))
    lake.export()
    drain(job(lake))
    lake.write("a", records(6, 2))
    lake.export()
    assert days(lake)[0]["missing"] == [[6, 7]]


def test_compacting_joins_files_and_changes_no_record(lake: Lake) -> None:
    for first in range(1, 50, 10):
        lake.write("a", records(first, 10))
        lake.export()
        drain(job(lake))
    made = table(lake).table()
    assert len(made.files()) == 5
    done = made.compact(1 << 20)
    assert (done["numFilesRemoved"], done["numFilesAdded"], made.compact(1 << 20)["numFilesRemoved"]) == (5, 1, 0)
    assert len(made.files()) == 1 and made.vacuum(1) == 0
    litter = made.path / "a" / "1970-01-01" / "part-left.parquet"
    litter.write_bytes(b"x")
    for path in made.path.rglob("*"):
        os.utime(path, (1, 1))
    assert made.vacuum(0) >= 6 and not litter.exists() and len(list(made.path.rglob("*.parquet"))) == 1
    drain(job(lake))
    assert seqs(lake) == [("a", seq) for seq in range(1, 51)] and days(lake)[0]["clean"]


@pytest.mark.parametrize("lake", ["iceberg"], indirect=True)  # deltalake joins files by itself
def test_a_batch_that_comes_while_files_are_joined_stays(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from topicsd.spark.iceberg import IcebergLake

    for first in (1, 11):
        lake.write("a", records(first, 10))
        lake.export()
        drain(job(lake))
    lake.write("a", records(21, 10))
    lake.export()
    join, left = IcebergLake._join, [1]

    def interrupted(self: IcebergLake, group: list[Any]) -> str:
        out = join(self, group)
        if left.pop() if left else 0:
            drain(job(lake))
        return out

    monkeypatch.setattr(IcebergLake, "_join", interrupted)
    assert table(lake).table().compact(1 << 20)["numFilesRemoved"] == 2
    assert len(table(lake).table().files()) == 2
    assert seqs(lake) == [("a", seq) for seq in range(1, 31)] and days(lake)[0]["clean"]


def test_a_table_of_somebody_else_is_refused(lake: Lake) -> None:
    made = table(lake).table()
    lake.write("a", records(1, 5))
    lake.export()
    drain(job(lake))
    with pytest.raises(TableError, match="a table of the format"):
        lakes.Lake(made.path, "iceberg" if lake.kind == "delta" else "delta").table().payload()
    if lake.kind == "iceberg":
        with made.open().transaction() as change:
            change.set_properties({"commit.retry.num-retries": "4"})
        with pytest.raises(TableError, match="must be 0"):
            made.held()


@pytest.mark.parametrize(
    "command",
    [["ingest", "--path", "x", "--available-now", "--local"], ["compact"], ["audit", "--path", "x"], ["replay", "--url", "http://h", "--to", "y"]],
)
@pytest.mark.parametrize("place", ["s3://bucket/table", "abfss://a@b/table", "file:///table"])
def test_a_table_elsewhere_than_in_a_folder_is_refused_and_no_folder_of_its_name_is_made(
    command: list[str], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(spark, [*command, "--table", place])
    assert done.exit_code == 2 and "stands in a folder" in done.output and not isinstance(done.exception, TableError)
    assert not any(tmp_path.iterdir())
    with pytest.raises(TableError, match="stands in a folder"):
        lakes.Lake(Path(place))


@pytest.mark.parametrize(("kind", "lacks", "extra"), [("iceberg", "pyiceberg", "iceberg"), ("delta", "deltalake", "spark")])
def test_a_format_whose_library_is_absent_says_what_to_install(
    kind: str, lacks: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    lake.write("a", records(1, 3))
    lake.export()
    for name in [name for name in sys.modules if name.partition(".")[0] == lacks]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(lacks), *sys.meta_path])
    command = ["ingest", "--local", "--path", str(lake.to), "--table", str(tmp_path / "table"), "--format", kind, "--available-now"]
    done = CliRunner().invoke(spark, command)
    assert done.exit_code == 2 and f"pip install 'topicsd[{extra}]'" in done.output, done.output


class Absent:
    """Finds nothing below one name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        if name.partition(".")[0] == self._name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_a_table_whose_commits_are_forgotten_gets_no_record_twice(tmp_path: Path) -> None:
    """Delta cleans commits away after some weeks, where a checkpoint comes after them."""
    lake = Lake(tmp_path)
    lake.write("a", records(1, 30))
    lake.write("b", [*records(1, 3), Row(4, 1004, None, HOLE | 1 << 8, 5), *records(9, 2)])
    lake.export()
    drain(job(lake, limit=10))
    before = [rows(lake), rows(lake, "quarantine")]
    for made in (table(lake).table(), table(lake).quarantine()):
        opened: Any = made.open()
        opened.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
        opened.optimize.compact()
        opened.create_checkpoint()
        opened.cleanup_metadata()
        assert not any("topicsd.batch" in commit for commit in made.open().history())
    assert drain(job(lake)) == 1  # the seqs that left no row are looked at again
    assert [rows(lake), rows(lake, "quarantine")] == before
    lake.write("a", records(31, 5))
    lake.export()
    assert drain(job(lake)) == 1
    assert seqs(lake) == [("a", seq) for seq in range(1, 36)] + [("b", seq) for seq in (1, 2, 3, 9, 10)]
    assert rows(lake, "quarantine") == before[1] and all(day["clean"] for day in days(lake))


# ---- ranges -----------------------------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 8)), max_size=12), st.integers(1, 40), st.integers(0, 30))
def test_ranges_are_as_sets_of_seqs(added: list[tuple[int, int]], first: int, more: int) -> None:
    held, seqs_held = Held(), set[int]()
    for begin, count in added:
        held.add("a", "0", begin, begin + count - 1)
        seqs_held |= set(range(begin, begin + count))
    asked = set(range(first, first + more))
    assert [seq for a, b in held.missing("a", "0", first, first + more - 1) for seq in range(a, b + 1)] == sorted(asked - seqs_held)
    assert held.overlaps("a", "0", first, first + more - 1) == bool(asked & seqs_held)
    mine = held.of("a", "0")
    assert [seq for a, b in mine for seq in range(a, b + 1)] == sorted(seqs_held)
    assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(mine))
    assert ranges_of(numpy.array(sorted(seqs_held), dtype=int)) == [list(one) for one in mine]
