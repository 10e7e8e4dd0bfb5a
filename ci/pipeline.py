"""From topics to a lake, to an answer, and back, over real input, with an executor and the writer killed on the way (`make pipeline`).

    ci/pipeline.py [--data FOLDER] [--flights N] [--out FOLDER]

Starts a server and a Spark cluster of one master and two workers. Loads half of the three files of FOLDER (default: PIPELINE_DATA, else
../shared/data), seals, exports, and ingests the export into a lake table: an executor is killed meanwhile. Loads the other half and ingests it from
the live server: the writer is killed meanwhile. Analyses each topic, with a plot of flights, writes the flights' aggregates to a topic, and audits
the table against the server and a new export. A worker of the cluster is killed during the analyses.

Exit status 0: every record stands in the table once, and the answers are those of the files. 1: not so. 2: no input.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from fakes.cluster import Cluster  # noqa: E402
from fakes.server import Server, url  # noqa: E402
from topicsd.lake.server import Server as Client  # noqa: E402

FILES = {"flights": "flights-200k.jsonl.gz", "earthquakes": "earthquakes.jsonl.gz", "webhooks": "github-webhooks.jsonl.gz"}
BATCH_RECORDS = {"flights": 5000, "earthquakes": 500, "webhooks": 50}
BACK = "flights.delays"
BANDS = (("short", 500), ("medium", 1500), ("long", 10**9))  # the file names no carrier: the distance tells apart who flies it


def say(what: str, **more: object) -> None:
    print(json.dumps({"step": what} | more), flush=True)


# ---- load, seal, export ----------------------------------------------------------------------------------------------------------------


def lines_of(folder: Path, flights: int) -> dict[str, list[bytes]]:
    out = {topic: [line for line in gzip.decompress((folder / name).read_bytes()).split(b"\n") if line] for topic, name in FILES.items()}
    out["flights"] = out["flights"][:flights]
    return out


def load(client: Client, topic: str, lines: list[bytes], part: str) -> None:
    size = BATCH_RECORDS[topic]
    for number, first in enumerate(range(0, len(lines), size)):
        records = b",".join(b'{"data":' + line + b"}" for line in lines[first : first + size])
        key = json.dumps(f"{part}:{number}").encode()
        client.append(topic, b'{"idempotency_key":' + key + b',"records":[' + records + b"]}")


def export(server: Server, target: Path) -> None:
    command = [str(Path(sys.executable).with_name("topicsd")), "export", "--to", str(target), "--data-dir", str(server.directory / "data")]
    subprocess.run([*command, "--seal", "--url", url(server), "--topics", ",".join(FILES)], check=True, stdout=subprocess.DEVNULL)


# ---- ingest, with somebody killed ------------------------------------------------------------------------------------------------------


def ingest(spark: Any, where: dict[str, str], table: Path, limit: int, kill: Callable[[], int]) -> dict[str, Any]:
    """Bring all that the source has; `kill` strikes while the second batch is on its way."""
    from topicsd.spark import ingest as job
    from topicsd.spark.options import parse
    from topicsd.spark.runner import run_tasks

    timers: list[threading.Timer] = []
    killed: list[int] = []

    def tell(report: dict[str, Any]) -> None:
        if not timers:
            timers.append(threading.Timer(0.3, lambda: killed.append(kill())))
            timers[0].start()

    made = job.Ingest(functools.partial(run_tasks, spark), parse(where | {"topics": ",".join(FILES)}), table, cores=2, limit=limit)
    report = job.run(made, once=True, stop=lambda: False, tell=tell)
    timers[0].join()
    return report | {"killed": len(killed)}


def kill_writer(server: Server) -> int:
    pid = server.children("writer")[-1]
    os.kill(pid, signal.SIGKILL)
    return pid


# ---- analyses --------------------------------------------------------------------------------------------------------------------------


def band_of(distance: int) -> str:
    return next(name for name, below in BANDS if distance < below)


def flights_of(rows: Any) -> list[dict[str, Any]]:
    """Delay by hour of departure and band of distance."""
    made = rows.where("topic = 'flights'").selectExpr("from_json(data, 'delay int, distance int, time double') as f").selectExpr("f.*")
    band = "case " + " ".join(f"when distance < {below} then '{name}'" for name, below in BANDS) + " end as band"
    grouped = made.selectExpr("cast(floor(time) as int) as hour", band, "delay").groupBy("hour", "band")
    found = grouped.agg({"delay": "sum", "*": "count"}).withColumnsRenamed({"sum(delay)": "delay", "count(1)": "flights"})
    return [row.asDict() for row in found.orderBy("hour", "band").collect()]


def flights_expected(lines: list[bytes]) -> list[dict[str, Any]]:
    sums: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
    for line in map(json.loads, lines):
        one = sums[int(line["time"]), band_of(line["distance"])]
        one[0], one[1] = one[0] + line["delay"], one[1] + 1
    return [{"hour": hour, "band": band, "flights": count, "delay": delay} for (hour, band), (delay, count) in sorted(sums.items())]


def earthquakes_of(rows: Any) -> list[Any]:
    """Magnitude by day and region: what stands behind the last comma of the place."""
    kind = "properties struct<mag: double, place: string, time: bigint>"
    made = rows.where("topic = 'earthquakes'").selectExpr(f"from_json(data, '{kind}').properties as p").where("p.mag is not null")
    region = "trim(element_at(split(p.place, ','), -1)) as region"
    grouped = made.selectExpr("to_date(timestamp_millis(p.time)) as day", region, "p.mag as mag").groupBy("day", "region")
    return list(grouped.agg({"mag": "max", "*": "count"}).orderBy("day", "region").collect())


def webhooks_of(rows: Any) -> Counter[tuple[str, str | None]]:
    """Events by type and action, out of VARIANT. try_parse_json: what is no JSON for Spark is null, and no error."""
    made = rows.where("topic = 'webhooks'").selectExpr("try_parse_json(data) as v")
    chosen = made.selectExpr("variant_get(v, '$.event', 'string') as event", "try_variant_get(v, '$.payload.action', 'string') as action")
    return Counter({(row.event, row.action): row["count"] for row in chosen.groupBy("event", "action").count().collect()})


def plot(found: list[dict[str, Any]], path: Path) -> None:
    """Mean delay by hour, a line for each band, as SVG."""
    colors = {"short": "#1b9e77", "medium": "#d95f02", "long": "#7570b3"}
    means = {band: {row["hour"]: row["delay"] / row["flights"] for row in found if row["band"] == band} for band in colors}
    top = max(max(line.values(), default=1) for line in means.values()) + 1
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 320" font-family="sans-serif" font-size="11">']
    for number, (band, line) in enumerate(means.items()):
        points = " ".join(f"{40 + 29 * hour},{280 - 250 * max(mean, 0) / top:.1f}" for hour, mean in sorted(line.items()))
        parts.append(f'<polyline fill="none" stroke-width="2" stroke="{colors[band]}" points="{points}"/>')
        parts.append(f'<text x="{60 + 90 * number}" y="20" fill="{colors[band]}">{band}</text>')
    parts += [f'<text x="{36 + 29 * hour}" y="298">{hour}</text>' for hour in range(0, 24, 2)]
    parts += [f'<text x="4" y="{284 - 250 * minutes / top:.0f}">{minutes}</text>' for minutes in range(0, int(top) + 1, 10)]
    path.write_text("\n".join([*parts, '<text x="280" y="315">minutes of delay by hour of departure</text>', "</svg>"]) + "\n")


# ---- the whole -------------------------------------------------------------------------------------------------------------------------


def session(cluster: Cluster) -> Any:
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    from pyspark.sql import SparkSession

    import topicsd.spark

    builder: Any = SparkSession.builder.master(cluster.master).appName("topicsd pipeline")
    chosen = {
        "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "640m",
        "spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "2", "spark.ui.showConsoleProgress": "false", "spark.task.maxFailures": "8",
    }  # fmt: skip
    for name, value in chosen.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    topicsd.spark.register(made)
    return made


def audited(where: dict[str, str], table: Path) -> Iterator[dict[str, Any]]:
    from topicsd.spark.audit import Audit
    from topicsd.spark.options import parse

    for day in Audit(table, parse(where | {"topics": ",".join(FILES)})).days():
        yield day.line()


def check(what: str, good: bool, **more: object) -> None:
    say(what, ok=good, **more)
    if not good:
        sys.exit(1)


def analyse(spark: Any, table: Path, lines: dict[str, list[bytes]], cluster: Cluster, out: Path) -> list[dict[str, Any]]:
    from topicsd.spark.delta import DeltaLake
    from topicsd.spark.tables import envelope

    rows = spark.read.parquet(*DeltaLake(table, envelope()).files())
    flights = flights_of(rows)
    check("flights: delay by hour and distance", flights == flights_expected(lines["flights"]), rows=len(flights), plot="flights.svg")
    plot(flights, out / "flights.svg")
    cluster.kill_worker()
    quakes = earthquakes_of(rows)
    known = sum(json.loads(line)["properties"]["mag"] is not None for line in lines["earthquakes"])
    strongest = max(quakes, key=lambda row: row["max(mag)"])
    check(
        "earthquakes: magnitude by day and region, a worker killed meanwhile", sum(row["count(1)"] for row in quakes) == known,
        rows=len(quakes), strongest=[str(strongest.day), strongest.region, strongest["max(mag)"]],
    )  # fmt: skip
    hooks, told = webhooks_of(rows), [json.loads(line) for line in lines["webhooks"]]
    wanted = Counter((one["event"], one["payload"].get("action")) for one in told)
    check("webhooks: events by type and action", hooks == wanted, kinds=len(hooks), commonest=list(hooks.most_common(1)[0][0]))
    return flights


def write_back(spark: Any, server: Server, client: Client, flights: list[dict[str, Any]]) -> None:
    """The aggregates to a topic; a second write under the same id adds nothing."""
    frame = spark.createDataFrame([(json.dumps(row), f"hour-{row['hour']}") for row in flights], "data string, tag string").coalesce(1)
    for _ in range(2):
        frame.write.format("topicsd").options(url=url(server), topic=BACK, writeId="pipeline").mode("append").save()
    state = client.state(BACK)
    check("flights' aggregates are in a topic, once", state["count"] == state["head_seq"] == len(flights), topic=BACK, records=state["count"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("PIPELINE_DATA", ROOT.parent / "shared" / "data")))
    parser.add_argument("--flights", type=int, default=200_000, help="so many of them")
    parser.add_argument("--out", type=Path, help="where the plot goes [a folder that is removed]")
    options = parser.parse_args()
    if not all((options.data / name).exists() for name in FILES.values()):
        print(f"no input: {options.data} lacks {', '.join(FILES.values())}", file=sys.stderr)
        sys.exit(2)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="topicsd-pipeline-") as name:
        folder = Path(name)
        out = options.out or folder
        out.mkdir(parents=True, exist_ok=True)
        for each in ("server", "cluster"):
            (folder / each).mkdir()
        lines = lines_of(options.data, options.flights)
        with Server(folder / "server") as server, Cluster(folder / "cluster") as cluster, Client(url(server.ready())) as client:
            pipeline(server, cluster, client, lines, folder, out)
    say("done", seconds=round(time.monotonic() - began, 1), records=sum(map(len, lines.values())))


def pipeline(server: Server, cluster: Cluster, client: Client, lines: dict[str, list[bytes]], folder: Path, out: Path) -> None:
    table, first, last = folder / "lake", folder / "export", folder / "export2"
    total = sum(map(len, lines.values()))
    for topic, all_of_it in lines.items():
        load(client, topic, all_of_it[: len(all_of_it) // 2], "first half")
    export(server, first)
    say("loaded a half, sealed, exported")
    spark = session(cluster)
    spark.range(2).repartition(2).count()  # the executors are there
    report = ingest(spark, {"path": str(first)}, table, max(total // 8, 1), cluster.kill_executor)
    half = sum(len(one) // 2 for one in lines.values())
    check("ingested from the export, an executor killed meanwhile", (report["records"], report["killed"]) == (half, 1), **report)
    for topic, all_of_it in lines.items():
        load(client, topic, all_of_it[len(all_of_it) // 2 :], "second half")
    report = ingest(spark, {"url": url(server)}, table, max(total // 8, 1), lambda: kill_writer(server))
    check("ingested the rest from the server, the writer killed meanwhile", (report["records"], report["killed"]) == (total - half, 1), **report)
    flights = analyse(spark, table, lines, cluster, out)
    write_back(spark, server, client, flights)
    spark.stop()
    export(server, last)
    for where in ({"path": str(last)}, {"url": url(server)}):
        days = list(audited(where, table))
        clean = all(day["clean"] for day in days) and sum(day["source"] for day in days) == sum(day["lake"] for day in days) == total
        check(f"audit against {next(iter(where))}", clean, days=len(days), records=sum(day["source"] for day in days))


if __name__ == "__main__":
    main()
