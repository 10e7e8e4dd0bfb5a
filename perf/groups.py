"""Measure consumer groups: consumers of one group that consume and ack pages of a topic.

python perf/groups.py [--records 200000] [--consumers 8] [--limit 100] [--turns 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time

from routers import Line, percentile
from servers import Topicsd


def work(port: int, group: str, limit: int, counted: list[int], latencies: dict[str, list[float]]) -> None:
    """Consume and ack until nothing is left."""
    line, body = Line(port), json.dumps({"start": "earliest", "limit": limit, "timeout_seconds": 0}).encode()
    while True:
        begun = time.perf_counter()
        page = json.loads(line.call(f"/v0/topics/jobs/groups/{group}/consume", body))
        latencies["consume"].append((time.perf_counter() - begun) * 1e6)
        if not page["records"]:
            return
        begun = time.perf_counter()
        ack = json.dumps({"upto_offset": page["last_offset"]})
        line.call(f"/v0/topics/jobs/groups/{group}/ack", ack.encode())
        latencies["ack"].append((time.perf_counter() - begun) * 1e6)
        counted.append(len(page["records"]))


def main() -> None:
    """Run the turns and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--consumers", type=int, default=8)
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    server = Topicsd(1)
    try:
        server.make("jobs", "disk")
        batch = json.dumps({"records": [{"data": {"type": "resize", "url": "s3://b/x.png"}}] * 1000}).encode()
        line = Line(server.port)
        for _ in range(options.records // 1000):
            line.call("/v0/topics/jobs?return_seqs=false", batch)
        rates = []
        for turn in range(options.turns):
            counted: list[int] = []
            latencies: dict[str, list[float]] = {"consume": [], "ack": []}
            arguments = (server.port, f"g{turn}", options.limit, counted, latencies)
            consumers = [threading.Thread(target=work, args=arguments) for _ in range(options.consumers)]
            begun = time.perf_counter()
            for consumer in consumers:
                consumer.start()
            for consumer in consumers:
                consumer.join()
            spent = time.perf_counter() - begun
            if sum(counted) < options.records:
                raise SystemExit(f"turn {turn}: {sum(counted)} of {options.records}")
            rates.append(sum(counted) / spent)
            shown = "  ".join(f"{what} p50 {percentile(each, 0.5):.0f} p99 {percentile(each, 0.99):.0f} us" for what, each in latencies.items())
            print(f"turn {turn}: {rates[-1]:9.0f} records/s, {2 * len(counted) / spent:7.0f} requests/s  {shown}")
        print(f"{statistics.median(rates):.0f} records/s in pages of {options.limit}; the Python client takes part of the two CPUs")
    finally:
        server.stop()


if __name__ == "__main__":
    main()
