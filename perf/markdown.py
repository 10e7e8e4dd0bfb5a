"""Print the tables of docs/performance.md from perf/out/bench.json: python perf/markdown.py."""

from __future__ import annotations

import json
import statistics
from typing import Any

from build import OUT


def middle(rows: list[dict[str, Any]], name: str) -> float:
    """Return a value's median over the rounds."""
    return statistics.median(row[name] for row in rows if name in row)


def main() -> None:
    document = json.loads((OUT / "bench.json").read_text())
    machine = document["machine"]
    kernel = machine["kernel"].split("-")[0]
    print(f"{document['at'].split()[0]}, {machine['cpus']} CPUs, Linux {kernel}, load before {machine['load']:.1f}\n")
    print("| target | reach | got | min-max | |\n|---|---|---|---|---|")
    for row in document["targets"]:
        print(f"| {row['what'].strip()} | {row['reach']} | {row['got']:.2f} | {row['range'][0]:.2f}-{row['range'][1]:.2f} | {row['verdict']} |")
    print("\n| case | server | rate /s | min-max | p50 us | p99 us | CPU us a request |\n|---|---|---|---|---|---|---|")
    for case, servers in document["http"].items():
        for server, rows in servers.items():
            if all("rate" in row for row in rows):
                rates = [row["rate"] for row in rows]
                cpu = ", ".join(f"{role} {statistics.median(row['cpu_us'][role] for row in rows):.1f}" for role in rows[0]["cpu_us"])
                tails = f"{middle(rows, 'p50_us'):,.0f} | {middle(rows, 'p99_us'):,.0f}"
                shown = f"{middle(rows, 'rate'):,.0f} | {min(rates):,.0f}-{max(rates):,.0f} | {tails}"
                print(f"| {case} | {server} | {shown} | {cpu} |")
    if "fanout" in document:
        print("\n| fan-out | reach | got | min-max | |\n|---|---|---|---|---|")
        for row in document["fanout_targets"]:
            print(f"| {row['what']} | {row['reach']} | {row['got']:.2f} | {row['range'][0]:.2f}-{row['range'][1]:.2f} | {row['verdict']} |")
        print("\n| fan-out | door | deliveries/s | a core | p50 us | p99 us |\n|---|---|---|---|---|---|")
        for case, doors in document["fanout"].items():
            for door, rows in doors.items():
                if all("rate" in row for row in rows):
                    print(
                        f"| {case} | {door} | " + " | ".join(f"{middle(rows, name):,.0f}" for name in ("rate", "a_core", "p50_us", "p99_us")) + " |"
                    )
    print("\n| engine, without HTTP | got | prototype | ratio | limit in the same run |\n|---|---|---|---|---|")
    for row in document.get("engine", []):
        cells = [
            f"{row[name]:,.{0 if (row[name] or 0) >= 1000 else 2}f}" if row[name] is not None else ""
            for name in ("got", "prototype", "ratio", "limit")
        ]
        limit = f"{cells[3]} ({row['limit_is']})" if cells[3] else ""
        print(f"| {row['what']} | {cells[0]} {row['unit']} | {cells[1]} | {cells[2]} | {limit} |")
    if "lake" in document:
        print("\n| lake | wall s | min-max | CPU s | MB/s of segment |\n|---|---|---|---|---|")
        for row in document["lake"]["rows"]:
            wall, cpu = statistics.median(row["wall_s"]), statistics.median(row["cpu_s"])
            spread = f"{min(row['wall_s']):.2f}-{max(row['wall_s']):.2f}"
            print(f"| {row['what']} | {wall:.3f} | {spread} | {cpu:.3f} | {row['bytes'] / 1e6 / wall:,.0f} |")
        print("\n| target | reach | got | min-max | by CPU | |\n|---|---|---|---|---|---|")
        for row in document["lake"]["targets"]:
            spread = f"{row['range'][0]:.2f}-{row['range'][1]:.2f}"
            print(f"| {row['what']} | {row['reach']} | {row['got']:.2f} | {spread} | {row['cpu']:.2f} | {row['verdict']} |")


if __name__ == "__main__":
    main()
