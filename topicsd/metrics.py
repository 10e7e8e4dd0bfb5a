"""What the server measures, read from shared memory, as Prometheus text or JSON (A §8.3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

NATIVE_ROUTES = ("append", "diff", "state")
CLASSES = ("ephemeral", "memory", "disk", "fsync")
Labels = dict[str, str]


class Regions(Protocol):
    """What is used of topicsd._native.regions.Shared."""

    @property
    def ready(self) -> bool: ...
    @property
    def generation(self) -> int: ...
    @property
    def ring_slots(self) -> int: ...
    @property
    def topics_by_class(self) -> tuple[int, int, int, int]: ...
    def get(self, name: str) -> int: ...
    def shard(self, number: int) -> dict[str, Any]: ...
    def worker(self, number: int) -> dict[str, int]: ...


@dataclass(frozen=True, slots=True)
class TopicLine:
    """Hold the gauges of one topic."""

    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    queue_ready: int | None = None
    queue_in_flight: int | None = None

    @classmethod
    def of(cls, summary: dict[str, Any], name: str) -> TopicLine:
        """Pick the gauges out of a topic's summary."""
        queue = summary.get("queue") or {}
        numbers = (summary["head_seq"], summary["earliest_seq"], summary["count"], summary["bytes"])
        return cls(name, *numbers, queue.get("ready"), queue.get("in_flight"))


@dataclass
class Family:
    """Hold one metric: its samples with their labels, and for a histogram the suffixes of their names."""

    name: str
    kind: str
    help: str
    samples: list[tuple[str, Labels, float]] = field(default_factory=list)


def collect(shared: Regions, shards: int, uptime_ms: int, topics: Iterable[TopicLine], truncated: bool) -> list[Family]:
    """Read all counters and gauges once. Each word is exact; together they are of about the same moment."""
    return [*_gauges(shared, uptime_ms), *_log(shared, shards), *_workers(shared), *_topics(topics, truncated)]


def _gauges(shared: Regions, uptime_ms: int) -> list[Family]:
    def gauge(name: str, text: str, value: float) -> Family:
        return Family(name, "gauge", text, [("", {}, value)])

    by_class = [("", {"class": name}, float(count)) for name, count in zip(CLASSES, shared.topics_by_class, strict=True)]
    return [
        gauge("topics_topics", "Topics.", shared.get("topics")),
        Family("topics_topics_by_class", "gauge", "Topics by durability class.", by_class),
        gauge("topics_routers", "Routers.", shared.get("routers")),
        gauge("topics_records_live", "Retained records of all topics.", shared.get("records_live")),
        gauge("topics_bytes_live", "Retained bytes of all topics.", shared.get("bytes_live")),
        gauge("topics_queue_topics", "Queues.", shared.get("queue_topics")),
        gauge("topics_queue_leases_in_flight", "Leased jobs of all queues.", 0),
        gauge("topics_sse_connections", "Open streams.", shared.get("sse_connections")),
        gauge("topics_watch_sessions", "Watch sessions.", shared.get("watch_sessions")),
        gauge("topics_ready", "1 when requests are served.", int(shared.ready)),
        gauge("topics_degraded", "1 when damage was found in the log.", shared.get("degraded")),
        gauge("topics_recovery_progress", "Share of the log that is replayed, 0 to 1.", shared.get("replay_permille") / 1000),
        gauge("topics_recovery_ms", "What the last recovery took.", shared.get("recovered_ms")),
        gauge("topics_writer_generation", "Writers started so far.", shared.generation),
        gauge("topics_ephemeral_bytes", "Memory held by ephemeral records.", shared.get("ephemeral_bytes")),
        gauge("topics_uptime_ms", "Since the server started.", uptime_ms),
    ]


_LOG = (
    ("frames_total", "counter", "Frames written.", "frames"),
    ("batches_total", "counter", "Groups written, each by one call.", "batches"),
    ("fsyncs_total", "counter", "Syncs.", "fsyncs"),
    ("bytes_written_total", "counter", "Bytes written.", "bytes_written"),
    ("rotations_total", "counter", "New log files.", "rotations"),
    ("queue_depth", "gauge", "Frames that wait to be published.", "pending"),
    ("queue_depth_peak", "gauge", "The most that ever waited.", "pending_peak"),
    ("submit_full_total", "counter", "Requests that met a full ring.", "submit_full"),
    ("quarantined_bytes", "gauge", "Bytes in damaged ranges.", "quarantined"),
)


def _log(shared: Regions, shards: int) -> list[Family]:
    lines = [shared.shard(number) for number in range(shards)]
    families = [
        Family(f"topics_wal_{name}", kind, text, [("", {}, max(values) if name.endswith("peak") else sum(values))])
        for name, kind, text, word in _LOG
        for values in [[line[word] for line in lines]]
    ]
    families.append(
        Family("topics_wal_read_only", "gauge", "1 when a log shard takes no writes.", [("", {}, int(any(line["read_only"] for line in lines)))])
    )
    counts = [sum(column) for column in zip(*(line["fsync_bucket"] for line in lines), strict=True)]
    samples: list[tuple[str, Labels, float]] = []
    seen = 0
    for place, count in enumerate(counts):
        seen += count
        bound = "+Inf" if place == len(counts) - 1 else str(1 << place)
        samples.append(("_bucket", {"le": bound}, seen))
    samples.append(("_sum", {}, sum(line["fsync_us_sum"] for line in lines)))
    samples.append(("_count", {}, seen))
    families.append(Family("topics_wal_fsync_latency_us", "histogram", "What a sync takes, in microseconds.", samples))
    return families


_WORKER = (
    ("requests_total", "counter", "Requests.", "requests"),
    ("request_bytes_total", "counter", "Bytes of request bodies.", "bytes_in"),
    ("response_bytes_total", "counter", "Bytes of response bodies.", "bytes_out"),
    ("records_appended_total", "counter", "Records that writes were answered for.", "records_in"),
    ("requests_in_flight", "gauge", "Requests that are being served.", "inflight"),
    ("connections", "gauge", "Open connections.", "connections"),
    ("long_polls", "gauge", "Reads that wait.", "long_polls"),
    ("throttled_total", "counter", "Requests refused by a cap.", "throttled"),
    ("errors_5xx_total", "counter", "Answers with a 5xx status.", "errors_5xx"),
)


def _workers(shared: Regions) -> list[Family]:
    lines = [shared.worker(number) for number in range(shared.ring_slots)]
    families = [Family(f"topics_http_{name}", kind, text, [("", {}, sum(line[word] for line in lines))]) for name, kind, text, word in _WORKER]
    native = [("", {"route": route}, float(sum(line[f"native_{route}"] for line in lines))) for route in NATIVE_ROUTES]
    return [*families, Family("topics_front_native_total", "counter", "Requests that the native front served.", native)]


_TOPIC = (
    ("head_seq", "Highest assigned seq per topic.", "head_seq"),
    ("earliest_seq", "First live seq per topic.", "earliest_seq"),
    ("records_live", "Retained records per topic.", "count"),
    ("bytes_live", "Retained bytes per topic.", "bytes"),
    ("queue_ready", "Jobs that can be claimed.", "queue_ready"),
    ("queue_in_flight", "Leased jobs.", "queue_in_flight"),
)


def _topics(lines: Iterable[TopicLine], truncated: bool) -> list[Family]:
    kept = list(lines)
    families = [Family("topics_topic_metrics_truncated", "gauge", "1 when there are more topics than are shown.", [("", {}, int(truncated))])]
    for name, text, word in _TOPIC:
        samples: list[tuple[str, Labels, float]] = [
            ("", {"topic": line.topic}, getattr(line, word)) for line in kept if getattr(line, word) is not None
        ]
        families.append(Family(f"topics_topic_{name}", "gauge", text, samples))
    return families


def to_text(families: list[Family]) -> str:
    """Render the text exposition, version 0.0.4."""
    out: list[str] = []
    for family in families:
        if not family.samples:
            continue
        out.append(f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n")
        for suffix, labels, value in family.samples:
            shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            out.append(f"{family.name}{suffix}{{{shown}}} {_number(value)}\n" if shown else f"{family.name}{suffix} {_number(value)}\n")
    return "".join(out)


def to_json(families: list[Family]) -> dict[str, Any]:
    """Render a snapshot: a number, or for labelled metrics a list of {labels…, "value"}."""
    body: dict[str, Any] = {}
    for family in families:
        for suffix, labels, value in family.samples:
            if labels:
                body.setdefault(family.name + suffix, []).append({**labels, "value": value})
            else:
                body[family.name + suffix] = value
    return body


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
