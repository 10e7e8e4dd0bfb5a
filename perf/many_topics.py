"""What do very many small topics cost: memory, files, maps, a start after a kill, a page of the list?

    python perf/many_topics.py [--topics 1000000] [--records 3] [--directory DIR]

The server runs under `ulimit -n 1024`. Each topic is made by its first write; then everything is sealed into packs, snapshots let the log go, and
all processes get SIGKILL. One line of JSON: beside each number the bound of the storage issue.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

BATCH = 200  # requests in one send
LINES = 16  # connections
SLOTS = 1 << 20


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
            resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))

        command = [sys.executable, "-m", "topicsd.cli.main", "serve", "--log-level", "warning"]
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

    def ask(self, path: str) -> Any:
        """GET some JSON."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers={"Accept": "application/json"})
        return json.loads(urllib.request.urlopen(request, timeout=60).read())

    def pids(self) -> list[int]:
        """All its processes."""
        found = [self.process.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        return found

    def roles(self) -> dict[str, int]:
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


def fill(server: Server, first: int, count: int, records: int) -> None:
    """Make so many topics by writing to them, many requests in one send."""
    body = json.dumps({"records": [{"data": {"n": n}} for n in range(records)]}).encode()
    rest = b"Host: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        for begin in range(first, first + count, BATCH):
            names = range(begin, min(begin + BATCH, first + count))
            line.sendall(b"".join(
                b"POST /v0/topics/tenant-%07d.events HTTP/1.1\r\n%s" % (n, rest) for n in names
            ))  # fmt: skip
            got = b""
            while got.count(b"HTTP/1.1 ") < len(names) or not got.endswith(b"}"):
                got += line.recv(1 << 20)
            wrong = [part[:200] for part in got.split(b"HTTP/1.1 ")[1:] if not part.startswith(b"20")]
            if wrong:
                raise SystemExit(f"refused: {wrong[0]!r}")


def page_ms(server: Server, cursor: str) -> tuple[float, str]:
    """How long a page of 1000 takes, the best of five, and the next cursor."""
    took, found = [], {}
    for _ in range(5):
        began = time.monotonic()
        found = server.ask(f"/v0/topics?page_size=1000{cursor}")
        took.append(1000 * (time.monotonic() - began))
    return min(took), "&cursor=" + str(found.get("next_cursor") or "")


def files_of(data: Path) -> int:
    """How many files there are."""
    return sum(len(names) for _folder, _folders, names in os.walk(data))


def wait_for(what: str, check: Any, seconds: float) -> float:
    """Wait until a check holds; return for how long that took."""
    began = time.monotonic()
    while not check():
        if time.monotonic() - began > seconds:
            print(f"not within {seconds} s: {what}", file=sys.stderr)
            break
        time.sleep(0.5)
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topics", type=int, default=1_000_000)
    parser.add_argument("--records", type=int, default=3)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(dir=options.directory))
    server = Server(directory, max_topics=SLOTS, segment_max_age_ms=1000, checkpoint_ms=2000, group_commit_ms=5, scrub_bytes_per_second=0)
    line: dict[str, Any] = {"topics": options.topics, "records": options.records}
    try:
        server.start()
        empty = server.roles()
        began = time.monotonic()
        share = -(-options.topics // LINES)
        threads = [
            threading.Thread(target=fill, args=(server, first, min(share, options.topics - first), options.records))
            for first in range(0, options.topics, share)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        line["made_a_second"] = round(options.topics / (time.monotonic() - began))
        line["sealed_s"] = round(wait_for("sealed", lambda: server.ask("/v0/metrics")["topics_segments"] >= options.topics, 600), 1)
        logs = directory / "data" / "log" / "shard-00"
        line["log_gone_s"] = round(wait_for("the log has gone", lambda: len(list(logs.glob("*.log"))) <= 3, 300), 1)
        full = server.roles()
        line["bytes_a_topic (<= 1024)"] = round(sum(full[name] - empty[name] for name in full) / options.topics)
        line["of_them"] = {name: round((full[name] - empty[name]) / options.topics) for name in full}
        line["files (<= 20000)"] = files_of(directory / "data")
        line["maps_max (<= 4096)"] = server.maps_max()
        first, second = page_ms(server, "")
        late, _ = page_ms(server, "&cursor=" + _cursor(options.topics * 9 // 10))
        line["page_ms"], line["late_page_ms"] = round(first, 2), round(late, 2)
        del second
        shown = server.ask("/v0/metrics")
        line["checkpoint"] = {name: shown[f"topics_checkpoint_last_{name}"] for name in ("duration_ms", "pause_us", "bytes")}
        server.kill()
        line["ready_after_kill_s (< 10)"] = round(server.start(), 2)
        line["recovery_ms"] = server.ask("/v0/metrics")["topics_recovery_ms"]
        line["topics_after"] = server.ask("/v0/metrics")["topics_topics"]
        server.kill()
    finally:
        server.process.poll() is None and server.kill()
        shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps(line))


def _cursor(number: int) -> str:
    import base64

    return base64.urlsafe_b64encode(b"tenant-%07d.events" % number).rstrip(b"=").decode()


if __name__ == "__main__":
    main()
