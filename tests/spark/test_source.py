"""`format("topicsd")` in a real Spark: batch and streaming from an export."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.exports import Lake, records
from oracle.scan_oracle import scanned
from oracle.segment_oracle import HOLE, Row
from topicsd._native.segment import SegmentView
from topicsd.lake import manifest

pytestmark = [pytest.mark.spark, pytest.mark.serial, pytest.mark.slow, pytest.mark.timeout(600)]


def load(spark: Any, lake: Lake, **options: object) -> Any:
    return spark.read.format("topicsd").options(**{name: str(value) for name, value in options.items()}).load(str(lake.to))


def ids(frame: Any) -> list[tuple[str, int]]:
    return sorted((row.topic, row.seq) for row in frame.select("topic", "seq").collect())


def flip(path: Path, seq: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[SegmentView(path.with_suffix(".idx").read_bytes(), bytes(raw)).flag_offset(seq) - 20] ^= 1
    path.write_bytes(raw)


# ---- batch ----------------------------------------------------------------------------------------------------------------------------


def test_a_batch_has_every_column_of_every_record_and_gap(spark: Any, lake: Lake) -> None:
    made = [*records(1, 300), Row(301, 1301, None, HOLE | 2 << 8, 50)]
    lake.write("flights", made)
    lake.write("quakes", records(7, 3))
    lake.export()

    found = load(spark, lake, maxPartitionBytes=20_000)

    assert found.rdd.getNumPartitions() > 1
    wanted = scanned("flights", made) + scanned("quakes", records(7, 3))
    epoch_us = "cast(unix_micros(ts) as bigint) as us"
    columns = ["topic", "seq", epoch_us, "node", "tag", "meta", "data", "_kind", "seq_end", "_err", "_raw"]
    got = [row.asDict() for row in found.selectExpr(*columns).orderBy("topic", "seq").collect()]
    for row in wanted:
        row["us"] = round(row.pop("ts").timestamp() * 1_000_000)
        row["meta"] = None if row["meta"] is None else dict(row["meta"])
    assert got == wanted


def test_columns_topics_and_times_are_pruned(spark: Any, lake: Lake) -> None:
    lake.write("a", records(1, 100))
    lake.write("b.x", records(1, 100))
    lake.export()
    found = load(spark, lake, columns="seq,topic", topics="b.*", startingTimestamp=1050, endingTimestamp=1053)
    assert found.columns == ["seq", "topic"]
    assert ids(found) == [("b.x", 50), ("b.x", 51), ("b.x", 52)]


def test_a_query_with_a_filter_takes_nothing_from_the_next_one_where_spark_pushes_filters_down(spark: Any, lake: Lake) -> None:
    lake.write("a", records(1, 300))
    lake.export()
    switch = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(switch, "true")
    try:
        whole = load(spark, lake, maxPartitionBytes=20_000)
        assert ids(whole.where("topic = 'a' and seq > 290")) == [("a", seq) for seq in range(291, 301)]
        assert whole.count() == 300
        both = whole.where("seq = 7").union(whole.where("seq = 290"))  # of one query: both halves read one plan
        assert ids(both) == [("a", 7), ("a", 290)]
    finally:
        spark.conf.unset(switch)


def test_a_frame_reads_what_there_was_when_it_was_first_used(spark: Any, lake: Lake) -> None:
    lake.write("a", records(1, 100))
    lake.export()
    frame = load(spark, lake)
    assert frame.count() == 100
    lake.write("a", records(101, 50))
    lake.export()
    assert frame.count() == 100 and load(spark, lake).count() == 150


def test_nothing_to_read_is_no_row(spark: Any, lake: Lake) -> None:
    lake.write("a", records(1, 3))
    lake.export()
    assert load(spark, lake, topics="nobody").count() == 0
    assert load(spark, lake, startingOffsets="latest").collect() == []


def test_damage_fails_the_query_and_names_the_seq_or_is_a_row(spark: Any, lake: Lake) -> None:
    flip(lake.write("a", records(1, 100)), 42)
    lake.export()
    with pytest.raises(Exception, match="topic a, seqs 42 to 42"):
        load(spark, lake).collect()
    rows = load(spark, lake, onCorrupt="row").where("_kind = 'corrupt'").collect()
    assert [(row.seq, row.seq_end, row._err) for row in rows] == [(42, 42, "damaged frame")]
    assert load(spark, lake, onCorrupt="row", columns="topic,seq").count() == 99  # a range without _kind would pass for a record


def test_data_that_went_after_the_query_was_planned_fails_or_is_a_gap(spark: Any, lake: Lake) -> None:
    lake.write("a", records(1, 100))
    lake.export()
    for path in (lake.to / "parts").iterdir():
        path.unlink()
    with pytest.raises(Exception, match="topic a, seqs 1 to 100: lost"):
        load(spark, lake).collect()
    (row,) = load(spark, lake, failOnDataLoss="false").collect()
    assert (row._kind, row.seq, row.seq_end, row._err) == ("gap", 1, 100, "missing")


def test_a_wrong_option_and_a_missing_export_are_told_in_words(spark: Any, lake: Lake) -> None:
    with pytest.raises(Exception, match="has no option colums"):
        load(spark, lake, colums="seq").collect()
    with pytest.raises(Exception, match="no manifest of an export"):
        load(spark, lake).collect()


# ---- streams --------------------------------------------------------------------------------------------------------------------------


def drain(spark: Any, lake: Lake, folder: Path, **options: object) -> list[list[tuple[str, int]]]:
    """Run the query until it has all that there is; what each of its batches had."""
    batches: list[list[tuple[str, int]]] = []
    stream = spark.readStream.format("topicsd").options(**{name: str(value) for name, value in options.items()}).load(str(lake.to))
    query = (
        stream.writeStream.foreachBatch(lambda frame, _id: batches.append(ids(frame)))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    return [batch for batch in batches if batch]


def test_a_stream_goes_on_where_it_stopped_and_meets_new_topics(spark: Any, lake: Lake, tmp_path: Path) -> None:
    lake.write("a", records(1, 100))
    lake.export()
    assert drain(spark, lake, tmp_path) == [[("a", seq) for seq in range(1, 101)]]
    lake.write("a", records(101, 50))
    lake.write("b", records(1, 5))
    lake.export()
    found = [one for batch in drain(spark, lake, tmp_path) for one in batch]
    assert sorted(found) == [("a", seq) for seq in range(101, 151)] + [("b", seq) for seq in range(1, 6)]
    assert drain(spark, lake, tmp_path) == []
    lake.recreate("b")
    lake.write("b", records(1, 2))
    lake.export()
    assert drain(spark, lake, tmp_path) == [[("b", 6)], [("b", 1), ("b", 2)]]  # a row that says so, and the new one


def test_what_had_gone_before_a_first_read_is_a_row_that_fails_nothing(spark: Any, lake: Lake, tmp_path: Path) -> None:
    lake.write("a", records(91, 10))
    lake.export()
    found = manifest.latest(lake.to)
    assert found is not None
    evicted = manifest.filled(replace(found.topics["a"], evict_floor=91), 1, 91, lambda _: "cap")
    assert manifest.commit(lake.to, replace(found, number=2, topics={"a": evicted}))
    rows = load(spark, lake).collect()
    assert [(row.seq, row.seq_end, row._err) for row in rows if row._kind == "gap"] == [(1, 90, "cap")] and len(rows) == 11
    assert sorted(row.seq for row in load(spark, lake, columns="seq").collect()) == list(range(91, 101))
    assert drain(spark, lake, tmp_path) == [[("a", 1), *(("a", seq) for seq in range(91, 101))]]
    assert drain(spark, lake, tmp_path / "plain", columns="topic,seq") == [[("a", seq) for seq in range(91, 101)]]


def test_limits_cut_a_stream_into_batches_and_lose_nothing(spark: Any, lake: Lake, tmp_path: Path) -> None:
    lake.write("a", records(1, 100))
    lake.write("b", records(1, 20))
    lake.export()
    batches = drain(spark, lake, tmp_path, maxRecordsPerTrigger=50, recordsPerPartition=16)
    assert len(batches) == 3 and max(map(len, batches)) <= 50
    assert sorted(one for batch in batches for one in batch) == [("a", seq) for seq in range(1, 101)] + [("b", seq) for seq in range(1, 21)]


def test_retention_that_passed_the_offset_fails_the_stream_or_is_a_gap(spark: Any, lake: Lake, tmp_path: Path) -> None:
    first = lake.write("a", records(1, 10))
    lake.export()
    drain(spark, lake, tmp_path)
    lake.write("a", records(31, 10))
    for path in first.parent.glob(f"{first.stem}.*"):
        path.unlink()
    lake.export(prune=True)
    assert manifest.latest(lake.to).topics["a"].first_seq == 31  # type: ignore[union-attr]
    with pytest.raises(Exception, match="topic a, seqs 11 to 30"):
        drain(spark, lake, tmp_path)
    assert drain(spark, lake, tmp_path, failOnDataLoss="false") == [[("a", 11), *(("a", seq) for seq in range(31, 41))]]
