"""What does a reader of a lake get? Native scan, to Arrow, export, ingest, Spark's queries, the url source and the sink, beside ready-made Arrow and
spark.read.json of the same rows.

    python perf/lake.py [--records 1000000] [--body 250] [--rounds 5] [--directory DIR] [--no-spark] [--json FILE]

Medians over the rounds: wall and CPU seconds, MB/s of segment by the wall. Ratios are taken within a round. The files are in the page cache.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lake_spark
from lake_spark import JSON, NOOP, READY, SEVEN

import topicsd
from topicsd._native import frame
from topicsd._native.segment_build import Writer
from topicsd.lake.export import Exporter
from topicsd.lake.sources import DirectorySource

Row = dict[str, Any]
SEGMENT_RECORDS = 100_000
# (what, line, divided by the time of, at least)
TARGETS = ((NOOP, READY, 0.8), (NOOP, JSON, 2.0))


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


class Lines:
    """The rounds of each line. `of`: the share of the data that a line is about."""

    def __init__(self, segment_bytes: int) -> None:
        self._bytes = segment_bytes
        self.rows: dict[str, Row] = {}

    def add(self, name: str, wall_s: float, cpu_s: float, of: float = 1.0) -> None:
        row = self.rows.setdefault(name, {"what": name, "bytes": self._bytes * of, "wall_s": [], "cpu_s": []})
        row["wall_s"].append(wall_s)
        row["cpu_s"].append(cpu_s)

    def time(self, name: str, action: Callable[[], object], rounds: int, of: float = 1.0) -> None:
        """Run it so often, in this process."""
        for _ in range(rounds):
            wall, cpu = time.perf_counter(), time.process_time()
            action()
            self.add(name, time.perf_counter() - wall, time.process_time() - cpu, of)


def scan_to_ipc(export: Path, target: Path) -> None:
    """Scan seven columns into one Arrow IPC file."""
    import pyarrow

    reader = topicsd.scan(export, SEVEN)
    with pyarrow.OSFile(str(target), "wb") as file, pyarrow.ipc.new_file(file, reader.schema) as out:
        for batch in reader:
            out.write_batch(batch)


def ingest(export: Path, table: Path) -> None:
    """The export into a Delta table, by one task after another, without Spark."""
    from topicsd.spark.ingest import Ingest, run, run_here
    from topicsd.spark.options import parse

    shutil.rmtree(table, ignore_errors=True)
    run(Ingest(run_here, parse({"path": str(export)}), table), once=True, stop=lambda: False, tell=lambda _: None)


def by_one_task(lines: Lines, url: str, records: int, share: float, rounds: int) -> None:
    """The halves of the sink and of the url source that are not Spark."""
    from topicsd.lake.server import Server as Client
    from topicsd.spark.live import LiveReader, Span
    from topicsd.spark.options import parse
    from topicsd.spark.send import Sender

    data = json.dumps({"id": 1, "text": "x" * 226}).encode()
    with Client(url) as client:
        numbers = iter(range(1000))

        def send() -> None:
            sender = Sender(client, f"bench{next(numbers)}")
            for _ in range(records):
                sender.add("one", (data, "tag", "n1", (("trace", "abc"),)))
            sender.finish()

        def read() -> None:
            reader = LiveReader(client, parse({"url": url, "columns": ",".join(SEVEN), "failOnDataLoss": "false"}))
            assert sum(batch.num_rows for batch in reader.read([Span("one", 1, records, client.state("one")["epoch"])])) == records

        lines.time("sink, one task", send, rounds, share)
        lines.time("url source, one task", read, rounds, share)


def run(records: int, body: int, rounds: int, folder: Path, with_spark: bool) -> Row:
    """Measure all lines; {"rows": …, "targets": …, "absent": …}."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from fakes.server import Server
    from fakes.server import url as url_of

    size = write(folder / "data", records, body)
    lines, export = Lines(size), folder / "export"
    lines.time("export", lambda: Exporter(DirectorySource(folder / "data"), export).run(), 1)
    shutil.rmtree(folder / "data")
    for name, columns in (
        ("native scan, seq alone", ["seq"]),
        ("scan to Arrow, seq, ts, data", ["seq", "ts", "data"]),
        ("scan to Arrow, 7 columns", SEVEN),
    ):
        lines.time(name, lambda columns=columns: [None for _ in topicsd.scan(export, columns)], rounds)
    lines.time("scan to an Arrow file, 7 columns", lambda: scan_to_ipc(export, folder / "out.arrow"), rounds)
    (folder / "out.arrow").unlink()
    lines.time("ingest to Delta, one task", lambda: ingest(export, folder / "table"), min(rounds, 3))
    absent = absence() if with_spark else ["Spark was left out"]
    live_records = records // 5
    (folder / "server").mkdir()
    with Server(folder / "server") as server:
        url = url_of(server.ready())
        by_one_task(lines, url, live_records, live_records / records, min(rounds, 3))
        if not absent:
            lake_spark.make_ready(export, folder)
            live = {"Spark sink", "Spark noop, url source"}
            lake_spark.measure(
                export, folder, rounds, url, live_records,
                lambda name, wall, cpu: lines.add(name, wall, cpu, live_records / records if name in live else 1.0),
            )  # fmt: skip
    return {"records": records, "segment_bytes": size, "rows": list(lines.rows.values()), "targets": judge(lines.rows), "absent": absent}


def run_apart(records: int, rounds: int, directory: Path) -> Row:
    """The same in a process of its own, which takes the JVM with it when it ends."""
    told = directory / "lake.json"
    told.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--records", str(records), "--rounds", str(rounds), "--directory", str(directory), "--json", str(told)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"rows": [], "targets": [], "absent": [f"lake.py failed:\n{done.stderr[-2000:]}"]}
    return dict(json.loads(told.read_text()))


def absence() -> list[str]:
    """What Spark needs and the machine lacks."""
    if importlib.util.find_spec("pyspark") is None:
        return ["pyspark is not installed (ci/ensure-java brings it)"]
    own = Path(sys.prefix) / "java"
    if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        if not own.is_dir():
            return ["there is no Java (ci/ensure-java brings one)"]
        os.environ["JAVA_HOME"] = str(own)
    return []


def judge(rows: dict[str, Row]) -> list[Row]:
    """Compare with the targets: medians of the ratios within a round, by the wall and by CPU time."""
    out = []
    for what, beside, least in TARGETS:
        if what in rows and beside in rows:
            walls = [other / own for own, other in zip(rows[what]["wall_s"], rows[beside]["wall_s"], strict=True)]
            cpus = [other / own for own, other in zip(rows[what]["cpu_s"], rows[beside]["cpu_s"], strict=True)]
            ratio = statistics.median(walls)
            out.append(
                {
                    "what": what, "reach": f">= {least:g} x {beside}", "got": ratio, "range": [min(walls), max(walls)],
                    "cpu": statistics.median(cpus), "verdict": "ok" if ratio >= least else "below" if ratio >= 0.6 * least else "NOT DONE",
                }
            )  # fmt: skip
    return out


def table(found: Row) -> str:
    """Lay out lines and targets."""
    lines = [f"{'lake, seven columns where none are named':44}{'wall s':>9}{'min-max':>16}{'CPU s':>9}{'MB/s of segment':>17}"]
    for row in found["rows"]:
        wall, cpu = statistics.median(row["wall_s"]), statistics.median(row["cpu_s"])
        spread = "{:.2f}-{:.2f}".format(min(row["wall_s"]), max(row["wall_s"]))
        lines.append(f"{row['what']:44}{wall:9.3f}{spread:>16}{cpu:9.3f}{row['bytes'] / 1e6 / wall:17,.0f}")
    lines.append(f"\n{'target':44}{'reach':44}{'got':>8}{'min-max':>16}{'by CPU':>8}")
    for row in found["targets"]:
        lines.append(
            f"{row['what']:44}{row['reach']:44}{row['got']:8.2f}{'{:.2f}-{:.2f}'.format(*row['range']):>16}{row['cpu']:8.2f}  {row['verdict']}"
        )
    return "\n".join([*lines, *found["absent"]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--body", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--json", type=Path, help="write what was measured into this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        found = run(options.records, options.body, options.rounds, Path(name), not options.no_spark)
    if options.json:
        options.json.write_text(json.dumps(found))
    print(f"{found['records']} records, {found['segment_bytes'] / 1e6:.0f} MB of segments")
    print(table(found))


if __name__ == "__main__":
    main()
