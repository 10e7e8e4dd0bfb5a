"""What `make bench` measures over HTTP, and on which servers; and what it must reach (docs/performance.md explains each line)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

THERE = 200_000  # records of 300 B in the topics that are read


@dataclass(frozen=True)
class Case:
    """One workload; `servers` are those it runs on, in this order."""

    name: str
    servers: tuple[str, ...]
    work: str = "append"
    durability: str = "disk"
    connections: int = 1
    depth: int = 1
    batch: int = 1
    size: int = 64
    limit: int = 256
    topics: int = 1
    unit: str = "requests"  # or records, or p50_us
    topic: str = "there"  # what a diff reads: there (in the log's tail) or sealed (the same records, in a segment)

    def options(self) -> dict[str, Any]:
        """Return the load generator's options."""
        chosen = {
            "work": self.work,
            "connections": self.connections,
            "depth": self.depth,
            "batch": self.batch,
            "size": self.size,
            "limit": self.limit,
        }
        if self.topics > 1:
            chosen["topics"] = self.topics
        if self.work == "diff":
            chosen["records-there"] = THERE
        return chosen


ONE = ("topicsd-1", "bare")
OTHERS = {"disk": ("redis-everysec", "nats-default"), "fsync": ("redis-always", "nats-sync")}


def _singles() -> list[Case]:
    cases = []
    for durability in ("memory", "disk", "fsync", "ephemeral"):
        for connections in (1, 8, 64, 256):
            servers = ("topicsd-1",)
            if durability == "disk":
                servers += ("bare", "handover") + (("topicsd-2",) if connections >= 64 else ())
            if connections in (1, 64):
                servers += OTHERS.get(durability, ())
            if durability == "fsync" and connections == 64:
                servers += ("bare", "topicsd-2")
            cases.append(Case(f"write {durability} c{connections}", servers, durability=durability, connections=connections))
    return cases


def _batches() -> list[Case]:
    # A round begins with new servers; what a first flood leaves to a second one (files and memory made ahead) is shown by itself.
    first = Case("batch 1000 x 300 B, first", ("topicsd-1", "topicsd-2"), connections=8, batch=1000, size=300, unit="records")
    cases = [first]
    for batch in (100, 1000):
        for size in (64, 300, 1024):
            servers = ONE
            if (batch, size) in ((100, 64), (1000, 300)):
                servers += ("topicsd-2", *OTHERS["disk"])
            cases.append(Case(f"batch {batch} x {size} B", servers, connections=8, batch=batch, size=size, unit="records"))
    return cases


CASES = [
    *_singles(),
    Case("write disk c64, 64 topics", ("topicsd-1",), connections=64, topics=64),
    Case("write disk c64, pipelined 16", ("topicsd-1", "bare", "redis-everysec"), connections=64, depth=16),
    *_batches(),
    *(
        Case(f"diff {limit}", (*ONE, "redis-everysec", "nats-default"), work="diff", connections=8, limit=limit, size=300, unit="records")
        for limit in (1, 256, 1000)
    ),
    Case("diff 1000, sealed", ("topicsd-1",), work="diff", connections=8, limit=1000, size=300, unit="records", topic="sealed"),
    Case("state c64", ONE, work="state", connections=64),
    Case("mixed 90/10 c64", ("topicsd-1", "topicsd-2", "bare"), work="mixed", connections=64, limit=100),
    Case("long-poll wake-up", (*ONE, "handover"), work="wake", unit="p50_us"),
]

# (what, case, server, value, divided by: server's value or a name of `limits`, at least / at most)
# `values` of a server: rate (requests or records a second), p50_us, p99_us.


@dataclass(frozen=True)
class Target:
    """A ratio to reach: `value` of `case` on `server` over `beside`."""

    what: str
    case: str
    beside: str  # another server of the case; or case/server; or a limit
    reach: float
    value: str = "rate"
    server: str = "topicsd-1"
    at_most: bool = False

    def verdict(self, ratio: float) -> str:
        """Say ok, below (it misses the target), or NOT DONE (it misses 0.6 of it)."""
        share = self.reach / ratio if self.at_most else ratio / self.reach
        return "ok" if share >= 1 else "below" if share >= 0.6 else "NOT DONE"


TARGETS = [
    Target("single write, disk, 64 connections", "write disk c64", "bare", 0.6),
    Target("  beside Redis everysec", "write disk c64", "redis-everysec", 1.0),
    Target("  beside NATS", "write disk c64", "nats-default", 2.0),
    Target("  p99 beside p50", "write disk c64", "own p50_us", 4.0, value="p99_us", at_most=True),
    Target("  64 topics beside one", "write disk c64, 64 topics", "write disk c64/topicsd-1", 0.9),
    Target("  one topic beside 64", "write disk c64", "write disk c64, 64 topics/topicsd-1", 0.9),
    Target("single write, 1 connection, p50", "write disk c1", "handover", 1.3, value="p50_us", at_most=True),
    Target("durable write, 64 connections", "write fsync c64", "durable limit", 0.5),
    Target("  beside Redis always", "write fsync c64", "redis-always", 1.5),
    Target("  beside NATS sync always", "write fsync c64", "nats-sync", 10.0),
    Target("durable write, 1 connection, p50", "write fsync c1", "sync + memory p50", 1.25, value="p50_us", at_most=True),
    Target("batch 100 x 64 B", "batch 100 x 64 B", "bare", 0.4),
    Target("  beside Redis, pipelined", "batch 100 x 64 B", "redis-everysec", 4.0),
    Target("  beside NATS", "batch 100 x 64 B", "nats-default", 4.0),
    Target("batch 1000 x 300 B", "batch 1000 x 300 B", "bare", 0.4),
    Target("diff, limit 1000", "diff 1000", "bare", 0.4),
    Target("  beside Redis XREAD", "diff 1000", "redis-everysec", 2.5),
    Target("  of sealed records, beside the tail", "diff 1000, sealed", "diff 1000/topicsd-1", 1 / 1.3),
    Target("  of sealed records, a second", "diff 1000, sealed", "3 M records", 1.0),
    Target("long-poll wake-up, p50", "long-poll wake-up", "bare", 2.0, value="p50_us", at_most=True),
]
