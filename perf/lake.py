"""What does a reader of a lake get? Native scan, to Arrow IPC, export, ingest; with --spark a noop query beside ready-made Arrow and JSON of the same
rows; with --live a server written to as the sink does and read as the url source does, by one task each.

    python perf/lake.py [--records 1000000] [--body 250] [--directory DIR] [--spark] [--live]

MB/s of segment; wall and CPU seconds, the best of three. The files are in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import topicsd
from topicsd._native import frame
from topicsd._native.segment_build import Writer
from topicsd.lake.export import Exporter
from topicsd.lake.sources import DirectorySource

SEVEN = ["topic", "seq", "ts", "node", "tag", "meta", "data"]
SEGMENT_RECORDS = 100_000


def write(data: Path, records: int, body: int) -> int:
    """Write segments; return the bytes of their data parts."""
    folder = data / "topics/01" / f"{1:016x}"
    folder.mkdir(parents=True)
    datas = [json.dumps({"id": k, "text": "x" * (body - 24)}).encode() for k in range(1000)]
    entries = [frame.entry(frame.Record(raw, b'{"trace":"abc"}', b"tag-%d" % (k % 50), b"n1")) for k, raw in enumerate(datas)]
    for first in range(1, records + 1, SEGMENT_RECORDS):
        writer = Writer(folder)
        writer.begin(1, first)
        for seq in range(first, min(first + SEGMENT_RECORDS, records + 1)):
            writer.add(seq, 1_700_000_000_000 + seq, entries[seq % 1000])
        writer.finish()
    return sum(path.stat().st_size for path in folder.glob("*.data"))


def best(name: str, size: int, action: Callable[[], object], times: int = 3) -> None:
    """Print the best of some runs."""
    walls, cpus = [], []
    for _ in range(times):
        wall, cpu = time.perf_counter(), time.process_time()
        action()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    print(f"{name:32} {min(walls):8.3f} s {size / 1e6 / min(walls):8.0f} MB/s   CPU {min(cpus):8.3f} s", flush=True)


def scan_to_ipc(export: Path, target: Path) -> None:
    """Scan seven columns into one Arrow IPC file."""
    import pyarrow

    reader = topicsd.scan(export, SEVEN)
    with pyarrow.OSFile(str(target), "wb") as file, pyarrow.ipc.new_file(file, reader.schema) as out:
        for batch in reader:
            out.write_batch(batch)


def with_spark(export: Path, folder: Path, size: int) -> None:
    """The noop query of seven columns, beside ready-made Arrow batches through another Python source, and spark.read.json."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    import topicsd.spark
    from topicsd.spark.options import TYPES

    paths = sorted(str(path) for path in folder.glob("ready-*.arrow"))

    class Ready(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ready"

        def schema(self) -> str:
            return ", ".join(f"`{name}` {TYPES[name]}" for name in SEVEN)

        def reader(self, schema: Any) -> DataSourceReader:
            return ReadyReader()

    class ReadyReader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(path) for path in paths]

        def read(self, partition: InputPartition) -> Any:
            import pyarrow

            with pyarrow.memory_map(partition.value) as file:
                reader = pyarrow.ipc.open_file(file)
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.memory", "1g").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    topicsd.spark.register(spark)
    spark.dataSource.register(Ready)
    columns = ",".join(SEVEN)
    ours = spark.read.format("topicsd").option("columns", columns).option("failOnDataLoss", "false").load(str(export))
    ready, text = spark.read.format("ready").load(), spark.read.json(str(folder / "lines"))
    for name, frame_of in (("Spark noop, topicsd", ours), ("Spark noop, ready-made Arrow", ready), ("Spark noop, spark.read.json", text)):
        best(name, size, lambda frame_of=frame_of: frame_of.write.format("noop").mode("overwrite").save())
    spark.stop()


def make_ready(export: Path, folder: Path) -> None:
    """The same rows as Arrow files of 128 MiB of segment each, about, and as lines of JSON."""
    import pyarrow

    (folder / "lines").mkdir()
    table = topicsd.scan(export, SEVEN).read_all()
    cut = 300_000
    for number, at in enumerate(range(0, table.num_rows, cut)):
        part = table.slice(at, cut)
        with pyarrow.OSFile(str(folder / f"ready-{number}.arrow"), "wb") as file, pyarrow.ipc.new_file(file, part.schema) as out:
            out.write_table(part, max_chunksize=65536)
        with (folder / "lines" / f"{number}.json").open("w") as lines:
            for row in part.to_pylist():
                row["ts"], row["meta"] = row["ts"].isoformat(), dict(row["meta"])
                lines.write(json.dumps(row) + "\n")


def ingest(export: Path, table: Path) -> None:
    """The seven columns into a Delta table, by one task after another, without Spark."""
    from topicsd.spark.ingest import Ingest, run, run_here
    from topicsd.spark.options import parse

    run(Ingest(run_here, parse({"path": str(export)}), table), once=True, stop=lambda: False, tell=lambda _: None)


def with_server(folder: Path, records: int, body: int) -> None:
    """The sink's and the url source's halves that are not Spark."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from fakes.server import Server, url
    from topicsd.lake.server import Server as Client
    from topicsd.spark.live import LiveReader, Span
    from topicsd.spark.options import parse
    from topicsd.spark.send import Sender

    data = json.dumps({"id": 1, "text": "x" * (body - 24)}).encode()
    (folder / "server").mkdir()
    with Server(folder / "server") as server, Client(url(server.ready())) as client:

        def send() -> None:
            sender = Sender(client, "bench")
            for _ in range(records):
                sender.add("t", (data, "tag", "n1", (("trace", "abc"),)))
            sender.finish()

        def read() -> None:
            reader = LiveReader(client, parse({"url": url(server), "columns": ",".join(SEVEN), "failOnDataLoss": "false"}))
            assert sum(batch.num_rows for batch in reader.read([Span("t", 1, records, client.state("t")["epoch"])])) == records

        best("sink, one task", records * body, send, times=1)
        best("url source, one task", records * body, read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--body", type=int, default=250)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--live", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        folder = Path(name)
        size = write(folder / "data", options.records, options.body)
        print(f"{options.records} records, {size / 1e6:.0f} MB of segments")
        best("export", size, lambda: Exporter(DirectorySource(folder / "data"), folder / "export").run(), times=1)
        for columns in (["seq"], ["seq", "ts", "data"], SEVEN):
            best(f"scan, {len(columns)} columns", size, lambda columns=columns: [None for _ in topicsd.scan(folder / "export", columns)])
        best("scan to Arrow IPC, 7 columns", size, lambda: scan_to_ipc(folder / "export", folder / "out.arrow"))
        best("ingest into Delta, one task", size, lambda: ingest(folder / "export", folder / "table"), times=1)
        if options.live:
            with_server(folder, options.records, options.body)
        if options.spark:
            make_ready(folder / "export", folder)
            with_spark(folder / "export", folder, size)


if __name__ == "__main__":
    main()
