"""Where does the time go? `perf record` of all topicsd processes under the two main workloads, and what each top line costs a request."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

from servers import Server, children_of

from build import OUT

WORKLOADS: dict[str, dict[str, Any]] = {
    "write-disk-c64": {"work": "append", "connections": 64},
    "batch-100x64": {"work": "append", "connections": 8, "batch": 100},
    "batch-1000x300": {"work": "append", "connections": 8, "batch": 1000, "size": 300},
    "diff-1000": {"work": "diff", "connections": 8, "limit": 1000, "size": 300, "topic": "there", "records-there": 200_000},
}
SECONDS = 4


def record(server: Server, load: Callable[..., dict[str, Any]]) -> list[str]:
    """Record each workload on a running topicsd; write profile-<name>.txt; return their names. Nothing when there is no `perf`."""
    if not shutil.which("perf"):
        return []
    return [name for name, options in WORKLOADS.items() if _one(server, load, name, options)]


def _one(server: Server, load: Callable[..., dict[str, Any]], name: str, options: dict[str, Any]) -> bool:
    class _Case:
        work, durability, topics = options["work"], "disk", 1

    prepared = server.prepare(_Case)
    pids = [server.process.pid, *children_of(server.process.pid)]
    data = OUT / f"{name}.perf"
    command = [
        "perf",
        "record",
        "-q",
        "-e",
        "cpu-clock",
        "-F",
        "2000",
        "-g",
        "-o",
        str(data),
        "-p",
        ",".join(map(str, pids)),
        "--",
        "sleep",
        str(SECONDS),
    ]
    recorder = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    before = sum(server.cpu_us().values())
    row = load(server.port, **(prepared | options), seconds=SECONDS, warmup=0.0)
    cpu_us = sum(server.cpu_us().values()) - before
    recorder.wait()
    if "failed" in row or recorder.returncode:
        return False
    report = ["perf", "report", "-i", str(data), "--no-children", "-g", "none", "--sort", "pid,dso,symbol", "--stdio", "--percent-limit", "0.4"]
    text = subprocess.run(report, capture_output=True, text=True).stdout
    each_us = cpu_us / max(row["requests"], 1)
    (OUT / f"profile-{name}.txt").write_text(
        f"{name}: {row['requests'] / SECONDS:,.0f} requests/s, {each_us:.2f} us of CPU a request\n\n" + costs(text, each_us)
    )
    data.unlink()
    return True


def costs(text: str, each_us: float) -> str:
    """Put before each line of a report what it costs a request, in ns."""
    lines = []
    for line in text.splitlines():
        if found := re.match(r"\s*([\d.]+)%\s+(.*\S)", line):
            lines.append(f"{float(found[1]) * each_us * 10:9.0f} ns {found[1]:>6}%  {found[2]}")
    return "\n".join(lines) + "\n"
