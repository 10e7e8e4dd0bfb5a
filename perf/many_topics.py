"""What do very many small topics cost: memory, files, maps, a start after a kill, a page of the list?

    python perf/many_topics.py [--topics 1000000] [--records 3] [--directory DIR] [--no-cut]

The server runs under `ulimit -n 1024`. Each topic is made by its first write. Half way through all processes get SIGKILL while sixteen
connections write, and the rest is made after the start (`--no-cut`: not). Then everything is sealed into packs, snapshots let the log go, and all
processes get SIGKILL again, twice: fresh memory of a virtual machine is slow the first time. A sample of topics is read back from its packs.

Prints a table of the storage issue's bounds with verdicts, then one line of JSON; ends with 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

BATCH = 200  # requests in one send
LINES = 16  # connections
SLOTS = 1 << 20
FEW = 10_000  # topics when a page of the list is timed for the first time
SAMPLE = 500  # topics that are read back
FILES_MAX, MAPS_MAX, OPEN_FILES_MAX, BYTES_MAX, READY_S_MAX, PAGE_RATIO_MAX = 20_000, 4096, 1024, 1024, 10, 2


class Server:
    """One server with a directory of its own."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory, self.port = directory, 0
        self.environ = os.environ | {f"TOPICS_{name.upper()}": str(value) for name, value in settings.items()}
        self.environ |= {"TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(directory / "port"), "TOPICS_DATA_DIR": str(directory / "data")}

    def start(self) -> float:
        """Start it and return after how many seconds it was ready."""
        (self.directory / "port").unlink(missing_ok=True)
        began = time.monotonic()

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES_MAX, OPEN_FILES_MAX))

        command = [sys.executable, "-m", "topicsd.cli.main", "serve", "--log-level", "error"]
        self.process = subprocess.Popen(command, env=self.environ, preexec_fn=limit, start_new_session=True)
        while True:
            try:
                self.port = int((self.directory / "port").read_text().rpartition(":")[2])
                self.ask("/v0/ready")
                return time.monotonic() - began
            except (OSError, ValueError):
                if self.process.poll() is not None:
                    raise SystemExit("the server has ended") from None
                time.sleep(0.02)

    def kill(self) -> None:
        """Let all of it die at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ask(self, path: str, body: Any = None) -> Any:
        """GET some JSON; POST with a body."""
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        return json.loads(urllib.request.urlopen(request, timeout=60).read())

    def metric(self, name: str) -> float:
        """Return one metric."""
        return float(self.ask("/v0/metrics")[f"topics_{name}"])

    def pids(self) -> list[int]:
        """All its processes."""
        found = [self.process.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        return found

    def memory(self) -> dict[str, int]:
        """Resident bytes that nobody can take away: anonymous ones of all processes, shared ones once."""
        anonymous, shared = 0, 0
        for pid in self.pids():
            lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
            anonymous += int(lines["RssAnon"].split()[0]) * 1024
            shared = max(shared, int(lines["RssShmem"].split()[0]) * 1024)
        return {"anonymous": anonymous, "shared": shared}

    def maps_max(self) -> int:
        """Return the maps of the process that has most."""
        return max(Path(f"/proc/{pid}/maps").read_bytes().count(b"\n") for pid in self.pids())


class Filler:
    """Makes topics over many connections, and remembers what was acked of each connection's share."""

    def __init__(self, server: Server, topics: int, records: int) -> None:
        self.server, self.records = server, records
        share = -(-topics // LINES)
        self.next = {first: first for first in range(0, topics, share)}
        self.ends = {first: min(first + share, topics) for first in self.next}
        self.acked = 0
        self.lock = threading.Lock()

    def run(self, until: int, *, cut: bool = False) -> None:
        """Go on until so many topics are acked; `cut`: then kill the server, whatever is in flight."""
        self.until, self.cut, self.refused = until, cut, ""
        threads = [threading.Thread(target=self._line, args=(first,)) for first in self.next]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.refused:
            raise SystemExit(f"refused: {self.refused}")

    def _line(self, first: int) -> None:
        try:
            with socket.create_connection(("127.0.0.1", self.server.port)) as line:
                while self.next[first] < self.ends[first] and not self.refused:
                    with self.lock:
                        if self.acked >= self.until:
                            break
                    self._some(line, first)
        except OSError as wrong:
            if not self.cut:
                self.refused = str(wrong)

    def _some(self, line: socket.socket, first: int) -> None:
        """Make a batch of topics, many requests in one send."""
        body = json.dumps({"records": [{"data": {"n": n}} for n in range(self.records)]}).encode()
        rest = b"Host: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        numbers = range(self.next[first], min(self.next[first] + BATCH, self.ends[first]))
        line.sendall(b"".join(b"POST /v0/topics/%s HTTP/1.1\r\n%s" % (name_of(number), rest) for number in numbers))
        got = b""
        while got.count(b"HTTP/1.1 ") < len(numbers) or not got.endswith(b"}"):
            part = line.recv(1 << 20)
            if not part:
                raise ConnectionError("the server has gone")
            got += part
        wrong = [part[:200] for part in got.split(b"HTTP/1.1 ")[1:] if not part.startswith(b"20")]
        if wrong:
            self.refused = repr(wrong[0])
            return
        with self.lock:
            self.next[first] = numbers.stop
            self.acked += len(numbers)
            if self.cut and self.acked >= self.until and self.server.process.poll() is None:
                self.server.kill()


def name_of(number: int) -> bytes:
    """Return a topic's name."""
    return b"tenant-%07d.events" % number


def page_ms(server: Server, after: int | None) -> float:
    """How long a page of 1000 behind a topic takes, in the median of thirty."""
    cursor = "" if after is None else "&cursor=" + base64.urlsafe_b64encode(name_of(after)).rstrip(b"=").decode()
    took = []
    for _ in range(30):
        began = time.monotonic()
        server.ask(f"/v0/topics?page_size=1000{cursor}")
        took.append(1000 * (time.monotonic() - began))
    return round(statistics.median(took), 2)


def files_of(data: Path) -> int:
    """How many files there are."""
    return sum(len(names) for _folder, _folders, names in os.walk(data))


def wait_for(what: str, check: Callable[[], bool], seconds: float) -> float:
    """Wait until a check holds; return for how long that took."""
    began = time.monotonic()
    while not check():
        if time.monotonic() - began > seconds:
            print(f"not within {seconds} s: {what}", file=sys.stderr)
            break
        time.sleep(0.5)
    return round(time.monotonic() - began, 1)


def wrong_of_sample(server: Server, topics: int, records: int, written_twice: int) -> int:
    """Read some topics back; return how many do not have what was acked. Up to `written_twice` may have a second try's records too."""
    wrong = twice = 0
    for number in random.Random(1).sample(range(topics), min(SAMPLE, topics)):
        page = server.ask(f"/v0/topics/{name_of(number).decode()}/diff", {"from_seq": 0})
        values = [record["data"]["n"] for record in page["records"]]
        twice += values == 2 * list(range(records))
        wrong += values not in (list(range(records)), 2 * list(range(records)))
    return wrong + max(0, twice - written_twice)


def fill(server: Server, line: dict[str, Any], topics: int, records: int, cut: bool) -> int:
    """Make all topics; return how many may have been written twice."""
    filler, began, down_s = Filler(server, topics, records), time.monotonic(), 0.0
    filler.run(min(FEW, topics))
    line["page_ms_of_few"] = page_ms(server, None)
    if cut:
        filler.run(topics // 2, cut=True)
        line["ready_after_cut_s"] = round(server.start(), 2)
        down_s = line["ready_after_cut_s"]
        line["cut"] = {"acked": filler.acked, "topics_after": server.metric("topics"), "recovery_ms": server.metric("recovery_ms")}
        if server.metric("topics") < filler.acked:
            raise SystemExit(f"topics are lost: {line['cut']}")
    filler.run(topics)
    line["made_a_second"] = round(topics / (time.monotonic() - began - down_s))
    return LINES * BATCH if cut else 0


def settle(server: Server, line: dict[str, Any], topics: int) -> None:
    """Wait until all is sealed and the log has gone."""
    line["sealed_s"] = wait_for("sealed", lambda: server.metric("segments") >= topics, 600)
    logs = server.directory / "data" / "log" / "shard-00"
    line["log_gone_s"] = wait_for("the log has gone", lambda: len(list(logs.glob("*.log"))) <= 3, 300)


def quiet_memory(server: Server) -> dict[str, int]:
    """Return the memory once it stands still: the last snapshot's buffer has gone."""
    seen: list[int] = []

    def quiet() -> bool:
        seen.append(server.memory()["anonymous"])
        return len(seen) > 6 and max(seen[-6:]) - min(seen[-6:]) < 1 << 20

    wait_for("the memory is quiet", quiet, 60)
    return server.memory()


def verdicts(line: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Return (what, measured, at most)."""
    found = [
        ("bytes of memory a topic", line["bytes_a_topic"], BYTES_MAX),
        ("the same, after a start", line["bytes_a_topic_after_start"], BYTES_MAX),
        ("seconds until ready after a kill, the first time", line["ready_after_kill_s"][0], READY_S_MAX),
        ("the same, again", line["ready_after_kill_s"][1], READY_S_MAX),
        ("files", line["files"], FILES_MAX),
        ("maps of a process", line["maps_max"], MAPS_MAX),
        ("ms of a page at the end of all, to one of few topics", line["page_ms"]["last"] / line["page_ms_of_few"], PAGE_RATIO_MAX),
        ("topics read back that are wrong", line["wrong_of_sample"], 0),
    ]
    if "ready_after_cut_s" in line:
        found.insert(4, ("the same, killed while topics are made", line["ready_after_cut_s"], READY_S_MAX))
    return found


def a_topic(full: dict[str, int], empty: dict[str, int], topics: int) -> dict[str, int]:
    """Return the bytes of each kind of memory that a topic has added."""
    return {name: round((full[name] - empty[name]) / topics) for name in full}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topics", type=int, default=1_000_000)
    parser.add_argument("--records", type=int, default=3)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--no-cut", action="store_true")
    options = parser.parse_args()
    topics, directory = options.topics, Path(tempfile.mkdtemp(dir=options.directory))
    server = Server(directory, max_topics=SLOTS, segment_max_age_ms=1000, checkpoint_ms=2000, group_commit_ms=5, scrub_bytes_per_second=0)
    line: dict[str, Any] = {"topics": topics, "records": options.records}
    try:
        server.start()
        empty = server.memory()
        twice = fill(server, line, topics, options.records, not options.no_cut)
        settle(server, line, topics)
        line["memory"] = a_topic(quiet_memory(server), empty, topics)
        line["bytes_a_topic"] = sum(line["memory"].values())
        line["files"], line["maps_max"] = files_of(directory / "data"), server.maps_max()
        line["page_ms"] = {"first": page_ms(server, None), "middle": page_ms(server, topics // 2), "last": page_ms(server, topics - 1001)}
        line["checkpoint"] = {name: server.metric(f"checkpoint_last_{name}") for name in ("duration_ms", "pause_us", "bytes")}
        line["ready_after_kill_s"], line["recovery_ms"] = [], []
        for _ in range(2):
            server.kill()
            line["ready_after_kill_s"].append(round(server.start(), 2))
            line["recovery_ms"].append(server.metric("recovery_ms"))
        line["topics_after"] = server.metric("topics")
        line["memory_after_start"] = a_topic(quiet_memory(server), empty, topics)
        line["bytes_a_topic_after_start"] = sum(line["memory_after_start"].values())
        line["wrong_of_sample"] = wrong_of_sample(server, topics, options.records, twice) + abs(topics - line["topics_after"])
        server.kill()
    finally:
        server.process.poll() is None and server.kill()
        shutil.rmtree(directory, ignore_errors=True)
    missed = 0
    for what, measured, most in verdicts(line):
        missed += measured > most
        print(f"| {what} | <= {most} | {round(measured, 2)} | {'ok' if measured <= most else 'MISSED'} |")
    print(json.dumps(line))
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
