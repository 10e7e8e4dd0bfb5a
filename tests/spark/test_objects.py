"""`format("topicsd")` from an export in an object store."""

from pathlib import Path
from typing import Any

import pytest

from fakes.exports import Lake, records
from fakes.object_store import a_bucket, trouble
from topicsd.lake.storage import open_storage

pytestmark = [pytest.mark.spark, pytest.mark.serial, pytest.mark.slow, pytest.mark.timeout(600)]


def test_an_export_in_an_object_store_is_read_in_batches_and_as_a_stream_and_keeps_its_secret(spark: Any, lake: Lake, tmp_path: Path) -> None:
    with a_bucket("lake") as opened, trouble(opened) as (proxy, options):
        store = {name: value for name, value in options.items() if name.startswith("aws_")} | {"aws_secret_access_key": "hush-hush"}
        bucket = open_storage("s3://lake/x", options)
        lake.write("a", records(1, 2000, 1000))
        lake.write("b", records(1, 3))
        lake.export(to=bucket)
        lake.export()
        chosen = {"maxPartitionBytes": str(1 << 20), "columns": "topic,seq,data"}
        frame = spark.read.format("topicsd").options(**store, **chosen).load("s3://lake/x")
        tries: set[str] = set()
        proxy.plan = lambda method, path, _number: "" if path in tries or tries.add(path) else "503"  # type: ignore[func-returns-value]
        rows = sorted(tuple(row) for row in frame.collect())
        assert rows == sorted(tuple(row) for row in spark.read.format("topicsd").options(**chosen).load(str(lake.to)).collect())
        assert len(rows) == 2003 and frame.rdd.getNumPartitions() > 1 and any(asked[2] for asked in proxy.asked)
        checkpoint, table = tmp_path / "checkpoint", tmp_path / "rows"

        def stream() -> int:
            source = spark.readStream.format("topicsd").options(**store, columns="topic,seq", recordsPerPartition="300").load("s3://lake/x")
            writer = source.writeStream.format("parquet").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
            writer.start(str(table)).awaitTermination()
            return int(spark.read.parquet(str(table)).dropDuplicates(["topic", "seq"]).count())

        assert stream() == 2003
        lake.write("b", records(4, 2))
        lake.export(to=bucket)
        assert stream() == 2005 == spark.read.parquet(str(table)).count()
        plan = frame._jdf.queryExecution().toString()
        written = b"".join(path.read_bytes() for path in checkpoint.rglob("*") if path.is_file())
        assert "hush-hush" not in plan and b"hush-hush" not in written and b"next_seq" in written
