"""Does a cold tier that hangs slow hot reads and writes? Their p99 with and without eight clients that ask for cold records all the time.

    python perf/cold_hang.py [--seconds 60] [--rounds 6] [--directory DIR]

The cold tier is a folder whose objects have been replaced by FIFOs: whoever opens one hangs. Quiet and hung rounds take turns, `--seconds` in all for
each kind. One line of JSON; the storage issue asks for a factor of at most 1.5.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from many_topics import Server, wait_for

CLIENTS = 8


class Line:
    """One kept connection."""

    def __init__(self, port: int) -> None:
        self.line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def call(self, path: str, body: Any) -> tuple[int, Any]:
        """POST some JSON."""
        self.line.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = self.line.getresponse()
        return answer.status, json.loads(answer.read())


def prepare(server: Server, tier: Path) -> None:
    """Have all but the newest segment of a topic moved, then let the tier hang."""
    line = Line(server.port)
    for _ in range(40):
        line.call("/v0/topics/t", {"records": [{"data": "x" * 4000}] * 100})
    line.call("/v0/topics/t/seal", {})
    wait_for("moved", lambda: server.ask("/v0/metrics")["topics_cold_segments_moved_total"] >= 1, 120)
    server.kill()
    for path in tier.rglob("*.data"):
        path.unlink()
        os.mkfifo(path)
    server.start()


def ask_for_cold(port: int, stop: threading.Event, refused: list[int]) -> None:
    """Ask for the topic's first records until told to stop."""
    line = Line(port)
    while not stop.is_set():
        status, _ = line.call("/v0/topics/t/diff", {"from_seq": 0})
        refused.append(status)
        time.sleep(0.005)  # a client that is told when to come back does not come at once


def measure(server: Server, seconds: float) -> list[float]:
    """Milliseconds of a write and a read of what it wrote, again and again."""
    line, took = Line(server.port), []
    head = line.call("/v0/topics/t", {"records": [{"data": 1}]})[1]["last_seq"]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        line.call("/v0/topics/t", {"records": [{"data": 1}]})
        page = line.call("/v0/topics/t/diff", {"from_seq": head})[1]
        took.append(1000 * (time.monotonic() - began))
        assert len(page["records"]) == 1
        head += 1
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(dir=options.directory))
    tier = directory / "tier"
    server = Server(directory, cold_dir=tier, hot_retain_segments=1, segment_max_events=1000, workers=1)
    quiet: list[float] = []
    hung: list[float] = []
    refused: list[int] = []
    try:
        server.start()
        prepare(server, tier)
        for _ in range(options.rounds):
            quiet += measure(server, options.seconds / options.rounds)
            stop = threading.Event()
            threads = [threading.Thread(target=ask_for_cold, args=(server.port, stop, refused)) for _ in range(CLIENTS)]
            for thread in threads:
                thread.start()
            hung += measure(server, options.seconds / options.rounds)
            stop.set()
            for thread in threads:
                thread.join()
    finally:
        server.process.poll() is None and server.kill()
        shutil.rmtree(directory, ignore_errors=True)
    p99 = [sorted(took)[int(len(took) * 0.99)] for took in (quiet, hung)]
    shown = {"quiet_p99_ms": round(p99[0], 3), "hung_p99_ms": round(p99[1], 3), "factor (<= 1.5)": round(p99[1] / p99[0], 2)}
    print(json.dumps(shown | {"pairs": [len(quiet), len(hung)], "cold_answers": {str(status): refused.count(status) for status in set(refused)}}))


if __name__ == "__main__":
    main()
