"""Measure fan-out: what a source's writes cost beside how many routers, and when a copy is visible.

    python perf/routers.py [--routers 0 1 10 100 1000] [--rate 200] [--seconds 3] [--turns 5]

Writes are paced (one at a time, each due at its own moment). The turns are interleaved: 0 1 10 ... 0 1 10 ...;
a ratio is of one turn's p50 to that of its turn without routers. Visible: a long poll waits at the last destination; from
the send of the write to its answer.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import threading
import time
from typing import Any

from servers import Topicsd

DATA = b'{"records":[{"data":"' + b"x" * 300 + b'"}]}'


class Line:
    """One kept connection; one request at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, path: str, body: bytes) -> bytes:
        """Send a POST; return the body of its answer."""
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._socket.sendall(head.encode() + body)
        told = b""
        while b"\r\n\r\n" not in told:
            told += self._socket.recv(65536)
        text, _, rest = told.partition(b"\r\n\r\n")
        size = next(int(line.split(b":")[1]) for line in text.split(b"\r\n") if line.lower().startswith(b"content-length"))
        while len(rest) < size:
            rest += self._socket.recv(65536)
        if not text.startswith(b"HTTP/1.1 20"):
            raise SystemExit(f"{path}: {text!r} {rest!r}")
        return rest


def make(server: Topicsd, count: int) -> None:
    """Create a source and its routers."""
    server.make(f"source{count}", "disk")
    for number in range(count):
        status, body = server.call("PUT", f"/v0/routers/r{count}-{number}", {"source": f"source{count}", "dest": f"dest{count}-{number}"})
        if status not in (200, 201):
            raise SystemExit(f"router: {status} {body!r}")


def watch(port: int, topic: str, seen: dict[int, float], stop: threading.Event) -> None:
    """Note when each seq of a topic has come."""
    line = Line(port)
    cursor = json.loads(line.call(f"/v0/topics/{topic}/diff", b'{"from_seq":0,"limit":1}'))["head_seq"]
    seen[-1] = cursor
    while not stop.is_set():
        page = json.loads(line.call(f"/v0/topics/{topic}/diff", json.dumps({"from_seq": cursor, "wait_ms": 500, "limit": 1000}).encode()))
        now = time.perf_counter()
        for record in page["records"]:
            seen[record["$seq"]] = now
        cursor = page["next_from_seq"]


def turn(server: Topicsd, count: int, rate: float, seconds: float) -> dict[str, Any]:
    """Write for a while; return the latencies in us: of the ack, and until the copy is seen."""
    seen: dict[int, float] = {}
    stop = threading.Event()
    watcher = threading.Thread(target=watch, args=(server.port, f"dest{count}-{count - 1}", seen, stop)) if count else None
    if watcher is not None:
        watcher.start()
        while -1 not in seen:
            time.sleep(0.001)
    line, acks, sent = Line(server.port), [], []
    begin = time.perf_counter() + 0.01
    for number in range(int(rate * seconds)):
        due = begin + number / rate
        while (now := time.perf_counter()) < due:
            time.sleep(max(due - now - 0.0002, 0))
        sent.append(due)
        line.call(f"/v0/topics/source{count}", DATA)
        acks.append((time.perf_counter() - due) * 1e6)
    stop.set()
    if watcher is not None:
        watcher.join()
    base = seen.get(-1, 0)
    visible = [(seen[base + 1 + place] - due) * 1e6 for place, due in enumerate(sent) if base + 1 + place in seen]
    return {"ack": acks, "visible": visible, "written": len(sent)}


def percentile(values: list[float], share: float) -> float:
    """Return a percentile; 0 of nothing."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else 0.0


def main() -> None:
    """Run the turns and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--routers", type=int, nargs="+", default=[0, 1, 10, 100, 1000])
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    server = Topicsd(1)
    try:
        for count in options.routers:
            make(server, count)
        rows: dict[int, list[dict[str, Any]]] = {count: [] for count in options.routers}
        for _ in range(options.turns):
            for count in options.routers:
                rows[count].append(turn(server, count, options.rate, options.seconds))
        print(f"{'routers':>8} {'ack p50 us':>11} {'p99 us':>9} {'of one without':>15} {'visible p50 us':>15} {'p99 us':>9}")
        plain = [percentile(row["ack"], 0.5) for row in rows[options.routers[0]]]
        for count in options.routers:
            p50 = [percentile(row["ack"], 0.5) for row in rows[count]]
            ratio = statistics.median(one / other for one, other in zip(p50, plain, strict=True))
            p99 = statistics.median(percentile(row["ack"], 0.99) for row in rows[count])
            visible = [statistics.median(percentile(row["visible"], share) for row in rows[count]) for share in (0.5, 0.99)]
            print(f"{count:8} {statistics.median(p50):11.0f} {p99:9.0f} {ratio:15.2f} {visible[0]:15.0f} {visible[1]:9.0f}")
    finally:
        server.stop()


if __name__ == "__main__":
    main()
