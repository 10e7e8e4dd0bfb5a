"""How fast is a body scanned, and encoded, beside a copy of as many bytes?

Run: python perf/scan.py. One thread; best of several rounds, because the machine is shared.
"""

from __future__ import annotations

import ctypes
import json
import random
import time
from collections.abc import Callable

from topicsd._native import scan

random.seed(7)
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]


def batch(count: int, data_bytes: int) -> bytes:
    """A batch of small objects, as services write them."""
    records = []
    for n in range(count):
        data: dict[str, object] = {"type": "resize", "n": n, "at": 1748450001000 + n, "ok": True}
        while len(json.dumps(data)) < data_bytes - 20:
            data[f"k{len(data)}"] = " ".join(random.choices(WORDS, k=4))
        records.append({"data": data, "tag": f"tenant{n % 100}:job-{n}"})
    return json.dumps({"records": records, "node": "worker-eu-1"}, separators=(",", ":")).encode()


def text(size: int, sample: str) -> bytes:
    return json.dumps({"records": [{"data": sample * (size // len(sample.encode()))}]}, ensure_ascii=False).encode()


def best_s(work: Callable[[], object], rounds: int = 7) -> float:
    """Return the seconds of one call, from the fastest round."""
    once = time.perf_counter()
    work()
    calls = max(1, int(0.05 / (time.perf_counter() - once)))
    best = float("inf")
    for _ in range(rounds):
        begun = time.perf_counter()
        for _ in range(calls):
            work()
        best = min(best, (time.perf_counter() - begun) / calls)
    return best


def copy_s(size: int) -> float:
    source, destination = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
    return best_s(lambda: ctypes.memmove(destination, source, size))


def main() -> None:
    limits = scan.Limits(max_record_bytes=1 << 30)
    bodies = {
        "1 record of 64 B": batch(1, 64),
        "100 records of 64 B": batch(100, 64),
        "1000 records of 300 B": batch(1000, 300),
        "10 records of 100 kB": batch(10, 100_000),
        "1000 records of 300 B, indented": json.dumps(json.loads(batch(1000, 300)), indent=4).encode(),
        "one text of 500 kB": text(500_000, "the quick brown fox "),
        "one text of 500 kB, two-byte letters": text(500_000, "быстрая лиса "),
        "one text of 500 kB, three-byte letters": text(500_000, "素早い茶色の狐"),
        "one text of 500 kB, an escape every 20 B": text(500_000, "the quick brown fox\n"),
    }
    print(f"{'body':42} {'bytes':>8} {'scan µs':>9} {'scan GB/s':>9} {'portable':>9} {'encode GB/s':>11} {'memcpy GB/s':>11}")
    for name, body in bodies.items():
        write = scan.parse_write(body, limits)
        scanned = best_s(lambda body=body: scan.parse_write(body, limits))  # type: ignore[misc]
        before = scan.use_path(1)
        portable = best_s(lambda body=body: scan.parse_write(body, limits))  # type: ignore[misc]
        scan.use_path(before)
        encoded = best_s(lambda write=write: write.encode())  # type: ignore[misc]
        copied = copy_s(len(body))
        rates = [len(body) / spent / 1e9 for spent in (scanned, portable, encoded, copied)]
        print(f"{name:42} {len(body):8} {scanned * 1e6:9.2f} {rates[0]:9.2f} {rates[1]:9.2f} {rates[2]:11.2f} {rates[3]:11.2f}")


if __name__ == "__main__":
    main()
