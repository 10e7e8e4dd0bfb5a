"""Start a whole server as a child process, talk to it over raw sockets, and see it end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0  # how long a bug may take to fail a test; a busy machine must not
SERVE = [str(Path(sys.executable).with_name("topicsd")), "serve"]


class Server:
    """One server on a directory of its own."""

    def __init__(self, directory: Path, command: list[str] | None = None, **env: Any) -> None:
        self.directory = directory
        self.port_file = directory / "port"
        self.log_file = directory / "log"
        own = {"TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(self.port_file), "TOPICS_DATA_DIR": str(directory / "data")}
        plain = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        self.port_file.unlink(missing_ok=True)
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                command or SERVE, env=plain | own | {name: str(value) for name, value in env.items()}, stdout=log, stderr=log, start_new_session=True
            )

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.port_file.read_text().strip().rpartition(":")
        return host, int(port)

    def ready(self) -> Server:
        """Wait until requests are served."""
        self.until(lambda: self.port_file.exists() and self.ask("GET", "/v0/ready")[0] == 200)
        return self

    def until(self, check: Any, within_s: float = PATIENCE_S) -> None:
        """Wait until `check` says true; what it raises of the network counts as false."""
        deadline = time.monotonic() + within_s
        while True:
            with contextlib.suppress(OSError, ValueError):
                if check():
                    return
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.01)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, PATIENCE_S)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send one request on a connection of its own; return status and body."""
        with self.connect() as line:
            line.sendall(request(method, path, body, close=True))
            return answer(line)

    def ask_metrics(self) -> Any:
        """Return the metrics as JSON."""
        with self.connect() as line:
            line.sendall(b"GET /v0/metrics HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\nConnection: close\r\n\r\n")
            return answer(line)[1]

    def write(self, topic: str, data: Any, **members: Any) -> tuple[int, Any]:
        return self.ask("POST", f"/v0/topics/{topic}", {"records": [{"data": data}], **members})

    def read_all(self, topic: str) -> list[Any]:
        """Return every record of a topic, page by page; a writer that is just coming back is waited for."""
        records: list[Any] = []
        page: Any = {"caught_up": False, "next_from_seq": 0}
        while not page["caught_up"]:
            cursor = page["next_from_seq"]
            deadline = time.monotonic() + PATIENCE_S
            while (told := self.ask("POST", f"/v0/topics/{topic}/diff", {"from_seq": cursor, "limit": 1000}))[0] != 200:
                assert told[0] == 503 and told[1]["error"]["code"] == "not_ready", told
                assert time.monotonic() < deadline, self.log
                time.sleep(0.01)
            page = told[1]
            records += page["records"]
            assert [record["$seq"] for record in page["records"]] == list(range(cursor + 1, page["next_from_seq"] + 1))
        return records

    def children(self, what: str = "") -> list[int]:
        """Name the children; what: writer or keeper, by their own word, worker for the others."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        pids = [int(pid) for pid in path.read_text().split()]
        named = {
            name: {int(line.split("pid=")[1].split()[0]) for line in self.log.splitlines() if f"what='{name}'" in line and "pid=" in line}
            for name in ("writer", "keeper")
        }
        if what == "worker":
            return [pid for pid in pids if not any(pid in each for each in named.values())]
        return [pid for pid in pids if not what or pid in named[what]]

    def kill_workers(self) -> None:
        """Kill every worker, and wait until others serve."""
        old = set(self.children("worker"))
        for pid in old:
            os.kill(pid, signal.SIGKILL)
        self.until(lambda: not old & set(self.children("worker")) and self.ask("GET", "/v0/ready")[0] == 200)

    def stop(self, whole_group: bool = False, within_s: float = PATIENCE_S) -> int:
        """Send SIGTERM; return the exit status once no process of the group is left."""
        (os.killpg if whole_group else os.kill)(self.process.pid, signal.SIGTERM)
        status = self.process.wait(within_s)
        deadline = time.monotonic() + PATIENCE_S
        while alive(self.process.pid):
            assert time.monotonic() < deadline, "children are left"
            time.sleep(0.01)
        return status


def url(server: Server) -> str:
    """Name where it listens."""
    return "http://{}:{}".format(*server.address)


def alive(group: int) -> bool:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                return True
    return False


def request(method: str, path: str, body: Any = None, close: bool = False) -> bytes:
    """Encode a request."""
    payload = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n" + ("Connection: close\r\n" if close else "")
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n"
    return head.encode() + b"\r\n" + payload


def answer(line: socket.socket, buffer: bytearray | None = None) -> tuple[int, Any]:
    """Read one answer; what follows it is left in `buffer`."""
    held = bytearray() if buffer is None else buffer
    while b"\r\n\r\n" not in held:
        piece = line.recv(65536)
        if not piece:
            raise ConnectionError(f"closed after {bytes(held)!r}")
        held += piece
    head, _, _ = bytes(held).partition(b"\r\n\r\n")
    length = int(next(each.split(b":")[1] for each in head.lower().split(b"\r\n") if each.startswith(b"content-length:")))
    end = len(head) + 4 + length
    while len(held) < end:
        piece = line.recv(65536)
        if not piece:
            raise ConnectionError(f"closed after {bytes(held)!r}")
        held += piece
    body = bytes(held[len(head) + 4 : end])
    del held[:end]
    return int(head.split()[1]), json.loads(body) if body[:1] in (b"{", b"[") else body
