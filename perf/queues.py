"""Measure queues: workers that claim and ack, beside a bare C server that answers as many requests of the same length.

    python perf/queues.py [--jobs 200000] [--workers 50] [--max 8] [--durability disk fsync] [--turns 3]

Each turn fills a queue, works it off, and lets the bare server answer as many requests; the ratio is of neighbours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from typing import Any

from servers import Bare, Topicsd

import build
from build import OUT


def work_off(port: int, queue: str, workers: int, most: int, requests: int = 0, trust: bool = False) -> dict[str, Any]:
    """Run the workers; return what they printed. Raises CalledProcessError."""
    command = [str(OUT / "jobs"), f"--port={port}", f"--topic={queue}", f"--connections={workers}", f"--batch={most}", f"--requests={requests}"]
    done = subprocess.run([*command, "--trust"] if trust else command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def fill(server: Topicsd, queue: str, jobs: int, durability: str) -> None:
    """Make the queue and write its jobs, 1000 a request."""
    status, body = server.call("PUT", f"/v0/topics/{queue}", {"type": "queue", "durability": durability})
    if status != 201:
        raise SystemExit(f"PUT {queue}: {status} {body!r}")
    batch = {"records": [{"data": {"type": "resize", "url": "s3://b/x.png"}}] * 1000}
    for _ in range(jobs // 1000):
        status, body = server.call("POST", f"/v0/topics/{queue}?return_seqs=false", batch)
        if status != 200:
            raise SystemExit(f"POST {queue}: {status} {body!r}")


def main() -> None:
    """Run the turns and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--max", type=int, default=8)
    parser.add_argument("--durability", nargs="+", default=["disk", "fsync"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--front", choices=("native", "falcon"))
    options = parser.parse_args()
    build.build(engine=False)
    server = Topicsd(1, options.front)
    fill(server, "sizes", 1000, "disk")
    _, claim = server.call("POST", "/v0/topics/sizes/claim", {"node": "w0", "max": options.max, "lease_ms": 60_000})
    seqs = [job["$seq"] for job in json.loads(claim)["claimed"]]
    _, ack = server.call("POST", "/v0/topics/sizes/ack", {"node": "w0", "seqs": seqs})
    bare = Bare(False, (len(claim), len(ack), 600))
    for durability in options.durability:
        rows, ratios = [], []
        for turn in range(options.turns):
            queue = f"{durability}-{turn}"
            fill(server, queue, options.jobs, durability)
            row = work_off(server.port, queue, options.workers, options.max)
            if row["jobs"] != options.jobs or row["errors"]:
                raise SystemExit(f"{queue}: {row}")
            beside = work_off(bare.port, "bench", options.workers, options.max, row["requests"], trust=True)
            rows.append(row)
            ratios.append(row["rate"] / beside["rate"])
            latencies = "  ".join(f"{what} p50 {row[f'{what}_p50_us']:.0f} p99 {row[f'{what}_p99_us']:.0f} us" for what in ("claim", "ack"))
            print(f"{queue:10} {row['rate']:9.0f} requests/s  {latencies}  bare {beside['rate']:9.0f}/s  ratio {ratios[-1]:.2f}")
        rate, ratio = statistics.median(row["rate"] for row in rows), statistics.median(ratios)
        print(f"{durability}: {rate:.0f} requests/s, {rate * options.max / 2:.0f} jobs/s, {ratio:.2f} of the bare server")
    bare.stop()
    server.stop()


if __name__ == "__main__":
    main()
