"""`df.write.format("topicsd")` and its stream: what arrives, what is refused, and that a replay writes nothing twice."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from fakes.server import Server, url

pytestmark = [pytest.mark.spark, pytest.mark.serial, pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600)]


def read(server: Server, topic: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    while True:
        status, page = server.ask("POST", f"/v0/topics/{topic}/diff", {"from_seq": len(records), "limit": 1000, "include_tags": True})
        assert status == 200
        records += page["records"]
        if page["caught_up"]:
            return records


def test_a_frame_of_text_and_one_of_structs_and_variants_arrive_whole(spark: Any, server: Server) -> None:
    frame = spark.range(1, 2501).selectExpr(
        "concat('k.', id % 2) as topic", "concat('{\"n\": ', id, ', \"x\": 1.0}') as data", "concat('t', id % 3) as tag", "'n1' as node",
        "map('id', cast(id as string)) as meta",
    )  # fmt: skip
    frame.repartition(2).write.format("topicsd").options(url=url(server), maxRecordsPerBatch="400").mode("append").save()
    for odd in (0, 1):
        found = read(server, f"k.{odd}")
        assert sorted(record["data"]["n"] for record in found) == [n for n in range(1, 2501) if n % 2 == odd]
        one = next(record for record in found if record["data"]["n"] == 8 - odd)
        assert (one["$tag"], one["$node"], one["meta"]) == (f"t{(8 - odd) % 3}", "n1", {"id": str(8 - odd)})
    assert server.ask("GET", "/v0/topics/k.0")[1]["config"]["idempotency_window_ms"] == 7 * 86_400_000
    made = spark.range(2).selectExpr("named_struct('id', id, 'none', null, 'at', timestamp_millis(0), 'list', array(1.5D)) as data")
    made.write.format("topicsd").options(url=url(server), topic="structs").mode("append").save()
    assert sorted((record["data"] for record in read(server, "structs")), key=lambda data: data["id"]) == [
        {"id": number, "none": None, "at": "1970-01-01T00:00:00+00:00", "list": [1.5]} for number in (0, 1)
    ]
    spark.sql('select parse_json(\'{"a":[1,null,"é"]}\') as data').write.format("topicsd").options(url=url(server), topic="variants").mode(
        "append"
    ).save()
    assert [record["data"] for record in read(server, "variants")] == [{"a": [1, None, "é"]}]


def test_what_can_not_be_written_is_told_in_words_and_destroys_nothing(spark: Any, server: Server) -> None:
    frame = spark.createDataFrame([("1",), ("oops",)], ["data"]).coalesce(1)
    writer = frame.write.format("topicsd").options(url=url(server), topic="bad")
    with pytest.raises(Exception, match="column data, row 2: not JSON at byte 0"):
        writer.mode("append").save()
    with pytest.raises(Exception, match="only appends"):
        writer.mode("overwrite").save()
    assert server.ask("PUT", "/v0/topics/short", {"idempotency_window_ms": 1000})[0] < 300
    with pytest.raises(Exception, match="topic short forgets idempotency keys after 1000 ms"):
        frame.write.format("topicsd").options(url=url(server), topic="short").mode("append").save()
    assert read(server, "short") == []
    with pytest.raises(Exception, match="select these, not id"):
        spark.range(1).selectExpr("id", "'1' as data").write.format("topicsd").options(url=url(server), topic="bad").mode("append").save()


def test_a_write_that_is_repeated_under_its_id_writes_nothing_twice(spark: Any, server: Server) -> None:
    for _ in range(2):
        frame = spark.range(100).selectExpr("cast(id as string) as data").coalesce(1)
        frame.write.format("topicsd").options(url=url(server), topic="again", writeId="load 1", maxRecordsPerBatch="30").mode("append").save()
    assert [record["data"] for record in read(server, "again")] == list(range(100))


def test_a_write_with_an_id_that_is_cut_another_way_is_refused_and_writes_nothing_twice(spark: Any, server: Server) -> None:
    frame = spark.range(100).selectExpr("cast(id as string) as data").repartition(3)
    writes = {parts: frame.coalesce(parts).write.format("topicsd").options(url=url(server), topic="cut", writeId="load 2") for parts in (3, 2, 1)}
    for parts in (3, 2):
        with pytest.raises(Exception, match=r"a write with a writeId has one partition"):
            writes[parts].mode("append").save()
    for _ in range(2):
        writes[1].mode("append").save()
        assert sorted(record["data"] for record in read(server, "cut")) == list(range(100))
    other = spark.range(50, 150).selectExpr("cast(id as string) as data").coalesce(1)
    with pytest.raises(Exception, match="that this one does not have"):
        other.write.format("topicsd").options(url=url(server), topic="cut", writeId="load 2").mode("append").save()
    assert sorted(record["data"] for record in read(server, "cut")) == list(range(100))


def test_a_stream_writes_from_as_many_partitions_as_it_has_and_a_replay_nothing_twice(spark: Any, server: Server, tmp_path: Path) -> None:
    """Another cut is seen where a partition misses what it has written: that batch fails."""
    from pyspark.errors import StreamingQueryException

    spark.range(100).selectExpr("id as n").coalesce(1).write.parquet(str(tmp_path / "in"))

    def run(parts: int, topic: str, **options: str) -> None:
        frame = spark.readStream.schema("n bigint").parquet(str(tmp_path / "in")).selectExpr("cast(n as string) as data").repartition(parts, "data")
        writer = frame.writeStream.format("topicsd").options(url=url(server), topic=topic, maxRecordsPerBatch="10", **options)
        assert writer.option("checkpointLocation", str(tmp_path / topic)).trigger(availableNow=True).start().awaitTermination(300)

    run(3, "cut.stream")
    for replay in (3, 3, 5):  # the driver was killed between the write and its commit
        for path in (tmp_path / "cut.stream/commits").glob("*0*"):
            path.unlink()
        with pytest.raises(StreamingQueryException) if replay == 5 else contextlib.nullcontext():  # the reason is in a cause alone
            run(replay, "cut.stream")
        there = [record["data"] for record in read(server, "cut.stream")]
        assert set(there) == set(range(100)) if replay == 5 else sorted(there) == list(range(100))
    with pytest.raises(StreamingQueryException):
        run(3, "cut.one", partitions="1")
    assert len(read(server, "cut.one")) < 100
    run(1, "cut.one", partitions="1")
    assert sorted(record["data"] for record in read(server, "cut.one")) == list(range(100))


def test_a_batch_of_a_stream_that_is_replayed_writes_nothing_twice_even_in_another_order(spark: Any, server: Server, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"

    def run() -> None:
        frame = spark.readStream.schema("n bigint").parquet(str(source)).selectExpr("cast(n as string) as data", "concat('t', n) as tag")
        query = (
            frame.writeStream.format("topicsd").options(url=url(server), topic="stream", maxRecordsPerBatch="40")
            .option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(300)

    spark.range(100).selectExpr("id as n").coalesce(1).write.parquet(str(source / "a"))
    for path in (source / "a").glob("*.parquet"):
        path.rename(source / path.name)
    run()
    assert sorted(record["data"] for record in read(server, "stream")) == list(range(100))
    (commit,) = (path for path in (checkpoint / "commits").iterdir() if path.name == "0")
    for path in (commit, commit.with_name(f".{commit.name}.crc")):  # the driver was killed between the write and its commit
        path.unlink(missing_ok=True)
    file = next(source.glob("*.parquet"))
    rows = [(row.n,) for row in spark.read.parquet(str(file)).orderBy("n", ascending=False).collect()]
    spark.createDataFrame(rows, "n bigint").coalesce(1).write.parquet(str(source / "b"))
    next((source / "b").glob("*.parquet")).replace(file)  # the same rows in another order
    for old in source.glob(f".{file.name}.crc"):
        old.unlink()
    run()
    assert sorted(record["data"] for record in read(server, "stream")) == list(range(100))
