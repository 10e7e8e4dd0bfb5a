"""The source, the sink and a job through Spark Connect: the client has no JVM, the server's workers have the package."""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.connect import ConnectServer
from fakes.exports import Lake, records
from fakes.server import Server, url

pytestmark = [pytest.mark.spark, pytest.mark.serial, pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def connected(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("grpc", reason="the extra `connect` is not installed")
    from pyspark.sql.connect.session import SparkSession

    import topicsd.spark

    with ConnectServer(tmp_path_factory.mktemp("connect")) as running:
        session = SparkSession.builder.remote(running.url).create()
        topicsd.spark.register(session)
        yield session
        session.stop()


def test_a_batch_a_stream_and_a_job_read_an_export(connected: Any, lake: Lake, tmp_path: Path) -> None:
    from topicsd.spark.audit import Audit
    from topicsd.spark.ingest import Ingest
    from topicsd.spark.options import parse
    from topicsd.spark.runner import run_tasks

    midnight = 1_700_006_400_000  # UTC
    lake.write("a", records(1, 100, ts=midnight - 51))
    lake.write("b", records(1, 5))
    lake.export()
    frame = connected.read.format("topicsd").option("topics", "a").load(str(lake.to))
    rows = frame.selectExpr("seq", "unix_millis(ts) AS ms", "meta['k'] AS k").where("seq > 98").orderBy("seq").collect()
    assert [tuple(row) for row in rows] == [(99, midnight + 48, "98"), (100, midnight + 49, "99")]  # whatever the server's time zone is

    def stream() -> int:
        source = connected.readStream.format("topicsd").option("columns", "topic,seq").option("maxRecordsPerTrigger", "40").load(str(lake.to))
        writer = source.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.start(str(tmp_path / "rows")).awaitTermination()
        return int(connected.read.parquet(str(tmp_path / "rows")).count())

    assert stream() == 105
    lake.write("b", records(6, 2))
    lake.export()
    assert stream() == 107 == connected.read.parquet(str(tmp_path / "rows")).distinct().count()
    job = Ingest(functools.partial(run_tasks, connected), parse({"path": str(lake.to)}), tmp_path / "table", cores=2)
    batch = job.batch()
    assert batch is not None and batch.records == 107 and job.batch() is None
    days = list(Audit(tmp_path / "table", parse({"path": str(lake.to)})).days())
    assert all(day.clean for day in days)
    assert [(day.day, day.lake) for day in days if day.topic == "a"] == [("2023-11-14", 50), ("2023-11-15", 50)]  # days of UTC, wherever tasks run


def test_batches_and_streams_are_written_to_topics_once(connected: Any, lake: Lake, server: Server, tmp_path: Path) -> None:
    lake.write("from", records(1, 300))
    lake.export()
    source = connected.readStream.format("topicsd").option("maxRecordsPerTrigger", "120").load(str(lake.to)).select("data", "tag")
    for _ in range(2):  # the second time there is nothing new
        writer = source.writeStream.format("topicsd").option("url", url(server)).option("topic", "connect.stream")
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start().awaitTermination()
    assert server.ask("GET", "/v0/topics/connect.stream")[1]["count"] == 300
    frame = connected.range(50).selectExpr("to_json(named_struct('n', id)) AS data", "'t' AS tag").coalesce(1)
    for _ in range(2):
        writer = frame.write.format("topicsd").option("url", url(server)).option("topic", "connect.batch").option("writeId", "once")
        writer.mode("append").save()
    back = connected.read.format("topicsd").option("url", url(server)).option("topics", "connect.batch").load()
    assert sorted(json.loads(row.data)["n"] for row in back.collect()) == list(range(50))
    with pytest.raises(Exception, match="column data, row 1"):
        connected.sql("SELECT 'no json' AS data").write.format("topicsd").option("url", url(server)).option("topic", "connect.bad").mode(
            "append"
        ).save()
