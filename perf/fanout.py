"""Measure fan-out: one publisher to many watchers, beside a C program that does one send(2) a watcher, and beside Redis pub/sub.

    python perf/fanout.py [--rounds 3] [--seconds 2] [--watchers 1 10 100 1000] [--quick]

    latency   the next publish goes out when every watcher has the last one: from its send to each delivery
    flood     batches of 100 to 100 watchers, as fast as they are taken
    topics    1000 topics by turns, all followed by one stream
    room      100 speakers on a WebSocket each, a packet every 20 ms, everyone hears all others: nothing may be lost

In each round every case runs on every server, one after the other. `a core`: deliveries a second of CPU time of all processes of the server.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
from dataclasses import dataclass, field
from typing import Any

from servers import Server, Topicsd, free_port

import build
from build import OUT

Row = dict[str, Any]


class BareFan(Server):
    """bare/fan.c."""

    name = "bare-fan"

    def __init__(self) -> None:
        super().__init__([str(OUT / "bare_fan")], 0)


class PubSub(Server):
    """Redis without a disk: its pub/sub keeps nothing."""

    name = "redis-pubsub"

    def __init__(self) -> None:
        port = free_port()
        limits = ["--client-output-buffer-limit", "pubsub 0 0 0"]  # it would cut watchers in a flood; the load generator waits for them itself
        super().__init__(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", *limits], port)
        self.wait()


@dataclass(frozen=True)
class Case:
    """One line of the table: what runs on which doors."""

    name: str
    doors: tuple[str, ...]
    options: dict[str, int] = field(default_factory=dict)
    program: str = "fan"
    durability: str = "disk"


# (what, case, door, value, beside door, factor, at most)
TARGETS = (
    *(
        ("p50", f"latency, {watchers} watchers", door, "p50_us", "bare", 1.7, True)
        for watchers in (1, 10, 100, 1000)
        for door in ("sse", "websocket")
    ),
    *(
        ("p99", f"latency, {watchers} watchers", door, "p99_us", "bare", 2.0, True)
        for watchers in (1, 10, 100, 1000)
        for door in ("sse", "websocket")
    ),
    *(("rate", "flood of 100, 100 watchers", door, "rate", "redis", 2.0, False) for door in ("sse", "websocket")),
)
ROOM = "room of 100 speakers"


def cases(watchers: list[int]) -> list[Case]:
    """Return what is measured."""
    return [
        *(Case(f"latency, {count} watchers", ("bare", "sse", "websocket", "redis"), {"watchers": count}) for count in watchers),
        Case("latency, 1 watcher, ephemeral", ("sse", "websocket"), {"watchers": 1}, durability="ephemeral"),  # what the log's part is
        Case("flood of 100, 100 watchers", ("bare", "sse", "websocket", "redis"), {"watchers": 100, "batch": 100, "window": 4}),
        Case("1000 topics to 1 stream", ("sse",), {"watchers": 1, "topics": 1000, "window": 32}),
        Case(ROOM, ("websocket",), {"speakers": 100, "packet_ms": 20}, "room"),
    ]


def measure(server: Server, door: str, case: Case, seconds: float, pin: bool) -> Row:
    """Run the load generator; add the rate, and the rate a core of the server."""
    command = [str(OUT / case.program), f"--port={server.port}", f"--seconds={seconds}"]
    if case.program == "fan":
        command.append(f"--door={door}")
    if isinstance(server, Topicsd):
        server.call("PUT", "/v0/topics/fan", {"durability": case.durability})
        server.make("room", "ephemeral")
    command += [f"--{name}={value}" for name, value in case.options.items()]
    if pin and shutil.which("taskset"):
        command = ["taskset", "-c", "1", *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as generator:
        assert generator.stdout is not None
        generator.stdout.readline()  # all watchers follow
        before = sum(server.cpu_us().values())
        told, wrong = generator.communicate()
        spent_s = (sum(server.cpu_us().values()) - before) / 1e6
    if generator.returncode:
        return {"failed": wrong.strip()[-300:]}
    row = dict(json.loads(told))
    row["rate"] = row["deliveries"] / row["seconds"]
    row["a_core"] = row["all_deliveries"] / max(spent_s, 1e-6)
    return row


def run(rounds: int, seconds: float, watchers: list[int]) -> dict[str, dict[str, list[Row]]]:
    """Return the rows of each case and door, one a round."""
    build.build(engine=False)
    servers: dict[str, Server] = {"bare": BareFan()}
    results: dict[str, dict[str, list[Row]]] = {}
    try:
        if shutil.which("redis-server"):
            servers["redis"] = PubSub()
        for _ in range(rounds):
            topicsd = Topicsd(1)
            servers["sse"] = servers["websocket"] = topicsd
            try:
                for case in cases(watchers):
                    for door in case.doors:
                        if door in servers:
                            row = measure(servers[door], door, case, seconds, (os.cpu_count() or 1) > 1)
                            results.setdefault(case.name, {}).setdefault(door, []).append(row)
            finally:
                topicsd.stop()
    finally:
        for door in ("bare", "redis"):
            if door in servers:
                servers[door].stop()
    return results


def judge(results: dict[str, dict[str, list[Row]]]) -> list[Row]:
    """Compare with the targets: medians of the ratios within a round."""
    rows = []
    for what, case, door, value, beside, factor, at_most in TARGETS:
        pairs = zip(results.get(case, {}).get(door, []), results.get(case, {}).get(beside, []), strict=False)
        ratios = [got[value] / other[value] for got, other in pairs if got.get(value) and other.get(value)]
        if ratios:
            ratio = statistics.median(ratios)
            share = factor / ratio if at_most else ratio / factor
            rows.append(
                {
                    "what": f"{case}, {door}: {what}",
                    "reach": f"{'<=' if at_most else '>='} {factor:g} x {beside}",
                    "got": ratio,
                    "range": [min(ratios), max(ratios)],
                    "verdict": "ok" if share >= 1 else "below" if share >= 0.6 else "NOT DONE",
                }
            )
    heard = [row for row in results.get(ROOM, {}).get("websocket", []) if "failed" not in row]
    if heard:
        bad = [row["lost"] + row["own"] + row["disordered"] for row in heard]
        late = max(row["late"] / row["publishes"] for row in heard)
        verdict = "NOT DONE" if max(bad) else "ok" if late < 0.01 else "the load was late"
        rows.append({"what": f"{ROOM}: lost, own or disordered", "reach": "<= 0", "got": max(bad), "range": [min(bad), max(bad)], "verdict": verdict})
    return rows


def table(results: dict[str, dict[str, list[Row]]]) -> str:
    """Lay out every case and door: medians over the rounds."""
    lines = [f"{'fan-out':30}{'door':12}{'deliveries/s':>14}{'a core':>12}{'p50 us':>10}{'p99 us':>10}{'load cpu':>9}"]
    for case, doors in results.items():
        for door, rows in doors.items():
            if failures := [row["failed"] for row in rows if "failed" in row]:
                lines.append(f"{case:30}{door:12}  FAILED: {failures[0]}")
                continue
            middle = {name: statistics.median(row[name] for row in rows) for name in ("rate", "a_core", "p50_us", "p99_us", "cpu")}
            numbers = f"{middle['rate']:14,.0f}{middle['a_core']:12,.0f}{middle['p50_us']:10,.0f}{middle['p99_us']:10,.0f}{middle['cpu']:9.2f}"
            lines.append(f"{case:30}{door:12}{numbers}")
    return "\n".join(lines)


def verdicts(rows: list[Row]) -> str:
    """Lay out the comparison with the targets."""
    lines = [f"{'fan-out':46}{'reach':20}{'got':>8}{'min-max':>16}"]
    lines += [f"{row['what']:46}{row['reach']:20}{row['got']:8.2f}{'{:.2f}-{:.2f}'.format(*row['range']):>16}  {row['verdict']}" for row in rows]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--watchers", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--quick", action="store_true", help="one short round")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 0.3
    results = run(options.rounds, options.seconds, options.watchers)
    print(table(results))
    print("\n" + verdicts(judge(results)))


if __name__ == "__main__":
    main()
