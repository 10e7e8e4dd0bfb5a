"""Start a server, find its processes by what they hold, stop and kill them. Standard library only, nothing of topicsd."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.client import Address, Answer, Cut, Line
from fakes.patience import PATIENCE_S, eventually

START_S_MAX = 60.0
STOP_S_MAX = 60.0


def serve_command() -> list[str]:
    """Return the command under test: TOPICSD_SERVE, or the `topicsd` beside this Python."""
    told = os.environ.get("TOPICSD_SERVE")
    return shlex.split(told) if told else [str(Path(sys.executable).parent / "topicsd"), "serve"]


@dataclass(frozen=True)
class Roles:
    """Who is who in a running server."""

    arbiter: int
    writer: int | None
    keeper: int | None
    workers: tuple[int, ...]

    @property
    def complete(self) -> bool:
        return bool(self.writer and self.keeper and self.workers)


@dataclass
class Server:
    """A server of one's own, on a directory that outlives it. `address` follows it over restarts."""

    directory: Path
    workers: int = 2
    env: dict[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=serve_command)
    files_max: int | None = None  # ulimit -n
    address: Address = ("127.0.0.1", 1)
    process: subprocess.Popen[bytes] | None = None
    start_s: float = 0.0
    data_dir: Path | None = None

    @property
    def data(self) -> Path:
        return self.data_dir or self.directory / "data"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # start

    def start(self) -> Server:
        """Start it and wait until it is ready. Raises AssertionError with its log when it is not."""
        begun = time.monotonic()
        self.spawn()
        while not self._ready():
            assert self.process is not None
            assert self.process.poll() is None, f"the server exited with {self.process.returncode}\n{self.log()}"
            if time.monotonic() > begun + START_S_MAX:
                self.kill()
                raise AssertionError(f"not ready within {START_S_MAX} s\n{self.log()}")
            time.sleep(0.005)
        self.start_s = time.monotonic() - begun
        return self

    def spawn(self) -> None:
        """Start it and wait for nothing."""
        assert self.process is None
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port_file.unlink(missing_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_") or name == "TOPICS_FRONT"}
        own = {"TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(self.port_file), "TOPICS_DATA_DIR": str(self.data), "TOPICS_WORKERS": str(self.workers)}

        def limit() -> None:
            if self.files_max:
                resource.setrlimit(resource.RLIMIT_NOFILE, (self.files_max, self.files_max))

        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command, env=kept | own | self.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=limit
            )

    @property
    def port_file(self) -> Path:
        return self.directory / "port"

    def _ready(self) -> bool:
        with contextlib.suppress(OSError, ValueError, Cut):
            host, _, port = self.port_file.read_text().strip().rpartition(":")
            self.address = (host or "127.0.0.1", int(port))
            with self.line() as line:
                return line.call("GET", "/v0/ready").status == 200
        return False

    # talk

    def line(self, timeout_s: float = 100.0, **options: Any) -> Line:
        return Line(lambda: self.address, timeout_s, **options)

    def call(self, method: str, path: str, body: bytes | None = None, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
        """Send one request on a connection of its own."""
        with self.line() as line:
            return line.call(method, path, body, (*headers, ("Connection", "close")))

    def metrics(self) -> dict[str, Any]:
        answer = self.call("GET", "/v0/metrics", headers=(("Accept", "application/json"),))
        assert answer.status == 200, str(answer)
        return dict(answer.json)

    def is_ready(self) -> bool:
        with contextlib.suppress(Cut, OSError):
            return self.call("GET", "/v0/ready").status == 200
        return False

    def log(self) -> str:
        with contextlib.suppress(OSError):
            return (self.directory / "log").read_text(errors="replace")[-4000:]
        return ""

    # end

    def stop(self, whole_group: bool = False) -> int:
        """Ask for a clean end with SIGTERM. Return the exit status; no process of the group is left."""
        assert self.process is not None
        (os.killpg if whole_group else os.kill)(self.process.pid, signal.SIGTERM)
        try:
            status = self.process.wait(STOP_S_MAX)
            assert self._group_ends(PATIENCE_S), f"processes are left after the end: {group_members(self.process.pid)}"
            return status
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running {STOP_S_MAX} s after SIGTERM\n{self.log()}") from None
        finally:
            self.kill()

    def kill(self) -> None:
        """End all processes at once, with SIGKILL."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self._group_ends(PATIENCE_S)
            self.process = None

    def kill_arbiter(self) -> None:
        """Kill the first process alone: its children must follow by themselves."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        left = not self._group_ends(PATIENCE_S)
        members = group_members(self.process.pid)
        self.kill()
        assert not left, f"children outlived the arbiter: {members}"

    def _group_ends(self, within_s: float) -> bool:
        assert self.process is not None
        return eventually(lambda: not group_members(self.pid), within_s)

    # who is who

    def roles(self) -> Roles:
        """Tell the processes apart by what they hold: LOCK names the writer, a worker listens, the keeper does neither."""
        children = children_of(self.pid)
        writer = None
        with contextlib.suppress(OSError, ValueError, IndexError):  # a writer that is just starting empties the file first
            writer = int((self.data / "LOCK").read_text().split()[0])
        if writer not in children:
            writer = None
        listeners = listening_inodes(self.address[1])
        workers = tuple(pid for pid in children if pid != writer and held_sockets(pid) & listeners)
        rest = [pid for pid in children if pid != writer and pid not in workers]
        return Roles(self.pid, writer, rest[0] if rest else None, workers)

    def settled_roles(self, within_s: float = PATIENCE_S) -> Roles:
        """Wait until every process is there, so that each can be killed."""
        assert eventually(lambda: self.roles().complete and len(self.roles().workers) == self.workers, within_s), f"{self.roles()}\n{self.log()}"
        return self.roles()


# --- /proc -----------------------------------------------------------------------------------------------------------------


def _stats() -> Iterator[tuple[int, str, int, int]]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            state, parent, group = path.read_text().rpartition(")")[2].split()[:3]
            yield int(path.parent.name), state, int(parent), int(group)


def children_of(pid: int) -> list[int]:
    return sorted(each for each, state, parent, _ in _stats() if parent == pid and state != "Z")


def group_members(group: int) -> list[int]:
    """Return the living processes of a group."""
    return sorted(each for each, state, _, its_group in _stats() if its_group == group and state not in "ZX")


def listening_inodes(port: int) -> set[str]:
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                columns = row.split()
                if columns[3] == "0A" and int(columns[1].rpartition(":")[2], 16) == port:
                    found.add(columns[9])
    return found


def held_sockets(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if match := re.fullmatch(r"socket:\[(\d+)\]", str(descriptor.readlink())):
                    found.add(match[1])
    return found


def tool(name: str) -> str | None:
    """Return the path of a program, or None."""
    return shutil.which(name)


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()
