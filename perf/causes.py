"""Why were the slowest ten slow? Watch, during a run, who waited for a CPU, who was blocked in the kernel, and what the hypervisor took away.

Every few milliseconds the kernel's own books are read: run-queue wait of each thread (schedstat), blocked threads (state D), steal time. A slow
request is laid beside what changed while it was under way; the largest wait is named as its cause. `not explained` stays `not explained`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servers import Topicsd, children_of

STEP_S = 0.004
TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


@dataclass
class Watcher:
    """Samples of the threads of a server while a run goes on."""

    server: Topicsd
    samples: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    running: bool = True

    def __post_init__(self) -> None:
        self.threads = self._threads()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _threads(self) -> dict[str, tuple[int, int]]:
        found = {}
        writer = self.server.writer_pid
        for pid in children_of(self.server.process.pid):
            role = "writer" if pid == writer else "worker or keeper"
            for task in Path(f"/proc/{pid}/task").iterdir():
                name = role if int(task.name) == pid else f"{role}'s thread {task.name}"
                with contextlib.suppress(OSError):
                    found[f"{name} ({task.name})"] = (os.open(task / "schedstat", os.O_RDONLY), os.open(task / "stat", os.O_RDONLY))
        return found

    def _run(self) -> None:
        machine = os.open("/proc/stat", os.O_RDONLY)
        blocked: dict[str, float] = dict.fromkeys(self.threads, 0.0)
        while self.running:
            now = time.monotonic()
            books = {"the hypervisor took the CPU": int(os.pread(machine, 200, 0).split(b"\n")[0].split()[8]) * TICK_MS}
            self._find_load(blocked)
            for name, (schedstat, stat) in self.threads.items():
                with contextlib.suppress(OSError):
                    books[f"{name} waited for a CPU"] = int(os.pread(schedstat, 100, 0).split()[1]) / 1e6
                    if b") D " in os.pread(stat, 100, 0):
                        blocked[name] += STEP_S * 1000
                    books[f"{name} was blocked in the kernel (disk)"] = blocked[name]
            self.samples.append((now, books))
            time.sleep(STEP_S)
        os.close(machine)

    def _find_load(self, blocked: dict[str, float]) -> None:
        # The generator is our own child, and waits for CPUs as everybody does.
        if "the load generator" in self.threads:
            return
        for pid in children_of(os.getpid()):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text() == "load\n":
                    self.threads["the load generator"] = (os.open(f"/proc/{pid}/schedstat", os.O_RDONLY), os.open(f"/proc/{pid}/stat", os.O_RDONLY))
                    blocked["the load generator"] = 0.0

    def stop(self) -> None:
        """End watching."""
        self.running = False
        self.thread.join()
        for pair in self.threads.values():
            for descriptor in pair:
                os.close(descriptor)

    def explain(self, at_s: float, took_us: float) -> str:
        """Name what waited longest while a request of `took_us` that ended at `at_s` was under way."""
        before = [books for when, books in self.samples if when <= at_s - took_us / 1e6]
        after = [books for when, books in self.samples if when >= at_s]
        if not before or not after:
            return "not watched"
        waits = {name: after[0].get(name, 0.0) - before[-1].get(name, 0.0) for name in after[0]}
        named = self._largest({name: waited for name, waited in waits.items() if "thread" not in name}, took_us)
        # No request of this class waits for the sync thread, but the writer may wait for what that one holds in the kernel.
        meanwhile = self._largest({name: waited for name, waited in waits.items() if "thread" in name}, took_us)
        return (named or "not explained") + (f"; meanwhile {meanwhile}" if meanwhile and not named else "")

    @staticmethod
    def _largest(waits: dict[str, float], took_us: float) -> str:
        name, most_ms = max(waits.items(), key=lambda item: item[1], default=("", 0.0))
        return f"{name}: {most_ms:.1f} ms" if most_ms * 1000 > took_us / 4 else ""


def worst(server: Topicsd, load: Any, seconds: float, pin: int | None) -> dict[str, Any]:
    """Run single `disk` writes at 64 connections and explain the ten slowest."""
    server.make("worst", "disk")
    watcher = Watcher(server)
    try:
        row = load(server.port, topic="worst", connections=64, seconds=seconds, warmup=0.5, pin=pin)
    finally:
        watcher.stop()
    if "failed" in row:
        return dict(row)
    slow = sorted(row["worst"], key=lambda each: -each[1])
    row["causes"] = [{"ms": took_us / 1000, "cause": watcher.explain(at_s, took_us)} for at_s, took_us in slow]
    return dict(row)
