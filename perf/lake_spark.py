"""The lines of perf/lake.py that need Spark, each round one after the other (A B C A B C), in one session on two cores.

The noop query of seven columns stands beside the same rows from ready-made Arrow files, through another Python source, in the same partitions and
batches: what it is slower by is the making of the batches. And beside spark.read.json of the same rows and types, from lines of JSON.
CPU seconds are those of the JVM and of its Python workers.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from topicsd.lake import manifest as manifests
from topicsd.spark import plan
from topicsd.spark.options import TYPES, Options, parse
from topicsd.spark.reading import SMALL, read

SEVEN = ["topic", "seq", "ts", "node", "tag", "meta", "data"]
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
NOOP = "Spark noop, topicsd"
READY = "Spark noop, ready-made Arrow"
JSON = "Spark noop, spark.read.json"


def options_of(export: Path) -> Options:
    """What the queries ask for."""
    return parse({"path": str(export), "columns": ",".join(SEVEN), "failOnDataLoss": "false"})


def make_ready(export: Path, folder: Path) -> None:
    """Write the source's own batches, a file a partition, and the same rows as lines of JSON."""
    import pyarrow

    options = options_of(export)
    found = manifests.latest(export)
    assert found is not None
    (folder / "lines").mkdir()
    for number, pieces in enumerate(plan.batch(found, options.root, options)):
        batches = list(read(options, pieces, SMALL))
        with pyarrow.OSFile(str(folder / f"ready-{number}.arrow"), "wb") as file, pyarrow.ipc.new_file(file, batches[0].schema) as out:
            for batch in batches:
                out.write_batch(batch)
        with (folder / "lines" / f"{number}.json").open("wb") as lines:
            lines.writelines(_lines(batches))


def _lines(batches: list[Any]) -> Iterator[bytes]:
    import json

    for batch in batches:
        for row in batch.to_pylist():
            row["ts"], row["meta"] = row["ts"].isoformat(timespec="milliseconds"), dict(row["meta"])
            yield json.dumps(row).encode() + b"\n"


def ready_source(paths: list[str]) -> Any:
    """A Python data source that yields the batches of Arrow files."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class ReadyReader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(path) for path in paths]

        def read(self, partition: InputPartition) -> Any:
            import pyarrow

            with pyarrow.memory_map(partition.value) as file:
                reader = pyarrow.ipc.open_file(file)
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)

    class Ready(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ready"

        def schema(self) -> str:
            return ", ".join(f"`{name}` {TYPES[name]}" for name in SEVEN)

        def reader(self, schema: Any) -> DataSourceReader:
            return ReadyReader()

    return Ready


def spark_cpu_s() -> float:
    """CPU seconds of the JVM that this process has started, and of all below it, so far."""
    spent: dict[int, float] = {}
    below: dict[int, list[int]] = {}
    java: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = stat.read_text().rpartition(")")
        except OSError:
            continue
        fields, pid = tail.split(), int(stat.parent.name)
        spent[pid] = sum(map(int, fields[11:15])) * TICK_S
        below.setdefault(int(fields[1]), []).append(pid)
        if head.endswith("(java") and int(fields[1]) == os.getpid():
            java.append(pid)
    total, waiting = 0.0, java
    while waiting:
        pid = waiting.pop()
        total += spent[pid]
        waiting += below.get(pid, [])
    return total


def session() -> Any:
    """A session of two cores that knows the source."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    import topicsd.spark

    own = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "1g", "spark.driver.host": "127.0.0.1"}
    builder = SparkSession.builder.master("local[2]")
    for name, value in own.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    topicsd.spark.register(spark)
    return spark


def measure(export: Path, folder: Path, rounds: int, url: str, live_records: int, add: Callable[[str, float, float], None]) -> None:
    """Run all queries `rounds` times, and once before that; `add` takes the name, wall and CPU seconds of each."""
    spark = session()
    spark.dataSource.register(ready_source(sorted(str(path) for path in folder.glob("ready-*.arrow"))))
    frames = {
        NOOP: spark.read.format("topicsd").option("columns", ",".join(SEVEN)).option("failOnDataLoss", "false").load(str(export)),
        READY: spark.read.format("ready").load(),
        JSON: spark.read.schema(", ".join(f"`{name}` {TYPES[name]}" for name in SEVEN)).json(str(folder / "lines")),
    }
    assert len({frame.count() for frame in frames.values()}) == 1

    def parquet(frame: Any) -> None:
        frame.write.mode("overwrite").parquet(str(folder / "parquet"))

    actions = {name: (lambda frame=frame: frame.write.format("noop").mode("overwrite").save()) for name, frame in frames.items()}
    actions["Spark to Parquet, topicsd"] = lambda: parquet(frames[NOOP])
    actions["Spark to Parquet, spark.read.json"] = lambda: parquet(frames[JSON])
    # A write of its own id each time: the topic grows by it.
    actions["Spark sink"] = lambda: (
        frames[NOOP].select("data", "tag", "node", "meta").limit(live_records).write.format("topicsd").options(url=url, topic="bench")
        .mode("append").save()
    )  # fmt: skip
    live = {"url": url, "topics": "bench", "columns": ",".join(SEVEN), "failOnDataLoss": "false", "endingOffsets": f'{{"bench": {live_records + 1}}}'}
    actions["Spark noop, url source"] = lambda: spark.read.format("topicsd").options(**live).load().write.format("noop").mode("overwrite").save()
    for number in range(rounds + 1):
        for name, action in actions.items():
            wall, cpu = time.perf_counter(), spark_cpu_s()
            action()
            if number:  # the first round is the JVM's
                add(name, time.perf_counter() - wall, spark_cpu_s() - cpu)
    shutil.rmtree(folder / "parquet")
    spark.stop()
