"""How long does a diff of 1000 records of 300 B take, beside copying as many bytes?

One process, no socket: index, maps and rendering, from log files in the page cache and from ephemeral memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from fakes.laid import Log, lay
from oracle.diff_oracle import LIVE, Fate, Topic
from topicsd._native.reader import Reader
from topicsd._native.regions import Shared
from topicsd._native.scan import parse_diff


def median_us(rounds: int, action: Callable[[], object]) -> float:
    took: list[int] = []
    for _ in range(rounds):
        started = time.perf_counter_ns()
        action()
        took.append(time.perf_counter_ns() - started)
    return statistics.median(took) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--size", type=int, default=300, help="bytes of a record's data")
    parser.add_argument("--rounds", type=int, default=500)
    options = parser.parse_args()
    now_ms = time.time_ns() // 1_000_000
    data = json.dumps("x" * (options.size - 2))
    shared = Shared.create(topics_max=16)
    shared.set("generation", 1)
    shared.set("ready", 1)
    request = parse_diff(json.dumps({"limit": options.records, "max_batch_bytes": 8 << 20}).encode())
    with tempfile.TemporaryDirectory() as folder:
        fates = [Fate(LIVE, now_ms, data, node="n") for _ in range(options.records)]
        slots = {
            "diff, log": lay(shared, Log(shared, Path(folder), file_bytes=64 << 20), Topic("log", 1, fates=fates), batch=100),
            "diff, ephemeral": lay(shared, None, Topic("memory", 2, fates=fates)),
        }
        reader = Reader(shared, folder, options.records)
        body, _, next_seq = reader.diff(slots["diff, log"], request, now_ms)
        if next_seq != options.records:
            raise SystemExit(f"the page ended at {next_seq} of {options.records} records: 8 MiB are the most")
        source = bytearray(body)
        copy_us = median_us(options.rounds, lambda: bytes(source))
        print(f"{'memcpy':16} {copy_us:8.1f} us   {len(body) / copy_us / 1000:6.2f} GB/s")
        for name, slot in slots.items():
            took_us = median_us(options.rounds, lambda slot=slot: reader.diff(slot, request, now_ms))
            print(f"{name:16} {took_us:8.1f} us   {options.records / took_us:6.2f} M records/s   {took_us / copy_us:5.1f} x memcpy")
        print(f"{'state':16} {median_us(options.rounds, lambda: reader.state(slots['diff, log'], now_ms)):8.1f} us")


if __name__ == "__main__":
    main()
