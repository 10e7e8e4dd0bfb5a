"""Measure one case on topicsd and on what stands beside it, in short turns, with the CPU time of each thread: for work on one line of the table.

    python perf/pair.py "batch 1000 x 300 B" [--beside bare] [--turns 5] [--seconds 1]

The turns are A B A B ...; each ratio is of neighbours. Absolute numbers of a busy machine mean nothing, CPU time a request nearly does.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from cases import CASES, Case
from report import fill, load
from servers import Bare, Server, Topicsd, children_of

import build


def threads_us(server: Server) -> dict[str, float]:
    """Return the CPU time so far of each thread, in microseconds."""
    found = {}
    writer = server.writer_pid if isinstance(server, Topicsd) else 0
    for pid in [server.process.pid, *children_of(server.process.pid)]:
        role = "writer" if pid == writer else "arbiter" if pid == server.process.pid else "worker"
        for number, task in enumerate(sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda each: int(each.name))):
            found[f"{role}.{number}"] = found.get(f"{role}.{number}", 0.0) + int((task / "schedstat").read_text().split()[0]) / 1000
    return found


def turn(server: Server, case: Case, seconds: float) -> dict[str, Any]:
    """Run the case once; add the CPU time of a request by thread."""
    options = case.options() | server.prepare(case)
    if case.work == "diff":
        options["topic"] = "there"
    before = threads_us(server)
    row = load(server.port, protocol="http", seconds=seconds, warmup=0.0, trust=server.trust, **options)
    after = threads_us(server)
    row["settled_s"] = server.settle(case)
    if row.get("failed") or row["errors"]:
        raise SystemExit(f"{server.name}: {row}")
    row["rate"] = row["records" if case.unit == "records" else "requests"] / row["seconds"]
    row["threads"] = {name: (us - before.get(name, 0.0)) / max(row["requests"], 1) for name, us in after.items()}
    return row


def main() -> None:
    """Run the turns and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("--beside", default="bare", choices=("bare", "handover"))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    build.build(engine=False)
    case = next(each for each in CASES if each.name == options.case)
    topicsd = Topicsd(1)
    topicsd.make("there", "disk")
    fill(topicsd, "there")
    page = len(topicsd.call("POST", "/v0/topics/there/diff", {"limit": case.limit, "max_batch_bytes": 8 << 20})[1])
    beside = Bare(options.beside == "handover", (page if case.work == "diff" else 256, 320, 700))
    try:
        rates, medians, tails = [], [], []
        for _ in range(options.turns):
            ours, theirs = turn(topicsd, case, options.seconds), turn(beside, case, options.seconds)
            rates.append(ours["rate"] / theirs["rate"])
            medians.append(ours["p50_us"] / theirs["p50_us"])
            tails.append((ours["p99_us"] / ours["p50_us"], theirs["p99_us"] / theirs["p50_us"]))
            each = ", ".join(f"{name} {us:.1f}" for name, us in ours["threads"].items() if us >= 0.05)
            print(
                f"{ours['rate']:10,.0f}/s  {theirs['rate']:10,.0f}/s  p50 {ours['p50_us']:.0f} {theirs['p50_us']:.0f} us   CPU us: {each};"
                f" beside: {sum(theirs['threads'].values()):.1f}; settled in {ours['settled_s']:.1f} s",
                flush=True,
            )
        print(
            f"rate {statistics.median(rates):.2f}, p50 {statistics.median(medians):.2f} x {options.beside};"
            f" p99/p50 {statistics.median(one for one, _ in tails):.1f}, beside {statistics.median(two for _, two in tails):.1f}"
        )
    finally:
        topicsd.stop()
        beside.stop()


if __name__ == "__main__":
    main()
