"""What the server measures, read from shared memory, as Prometheus text or JSON (A §8.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

NATIVE_ROUTES = ("append", "diff", "state", "claim", "ack", "nack", "extend")
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


class Meters(Protocol):
    """What is used of topicsd._native.meters.Meters."""

    def totals(self) -> Any: ...


# What a 429 may name in detail.limit, in the order of the meters; "pressure" is one that names none, "other" whatever is not listed here.
LIMITS = (
    "other",
    "pressure",
    "max_topics",
    "max_routers",
    "max_watch_sessions",
    "max_sse_connections",
    "max_sse_connections_per_key",
    "max_inflight_per_key",
    "max_total_bytes",
    "max_idempotency_keys",
    "ephemeral_bytes_max",
    "max_connections",
    "max_groups",
    "max_group_leases",
)
_LIMIT_NUMBERS = {name: number for number, name in enumerate(LIMITS)}


def limit_number(detail: dict[str, Any]) -> int:
    """Return the number under which a 429 with this detail is counted."""
    if "limit" in detail:
        return _LIMIT_NUMBERS.get(str(detail["limit"]), 0)
    return 1 if "retry_after_ms" in detail else 0


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


def collect(
    shared: Regions,
    shards: int,
    uptime_ms: int,
    topics: Iterable[TopicLine],
    truncated: bool,
    meters: Meters | None = None,
    operations: Sequence[tuple[str, str]] = (),
    ring_depths: Sequence[int] = (),
    leases: int = 0,
    delivered: dict[str, int] | None = None,
    degraded: bool = False,
) -> list[Family]:
    """Read all counters and gauges once. Each word is exact; together they are of about the same moment.

    operations: method and path of each number of the meters, from 1; delivered: Sessions.counters().
    """
    totals = None if meters is None else meters.totals()
    families = [*_gauges(shared, uptime_ms, leases, degraded), *_log(shared, shards), *_workers(shared), *_ring(ring_depths)]
    if totals is not None:
        families += [*_requests(totals, operations), *_pressure(totals)]
    if delivered is not None:
        families += _delivery(delivered)
    return [*families, *_topics(topics, truncated)]


def _gauges(shared: Regions, uptime_ms: int, leases: int, degraded: bool) -> list[Family]:
    def gauge(name: str, text: str, value: float) -> Family:
        return Family(name, "gauge", text, [("", {}, value)])

    by_class = [("", {"class": name}, float(count)) for name, count in zip(CLASSES, shared.topics_by_class, strict=True)]
    return [
        gauge("topics_topics", "Topics.", shared.get("topics")),
        Family("topics_topics_by_class", "gauge", "Topics by durability class.", by_class),
        gauge("topics_routers", "Routers.", shared.get("routers")),
        gauge("topics_records_live", "Retained records of all topics.", max(shared.get("records_live") - shared.get("records_unreadable"), 0)),
        gauge("topics_bytes_live", "Retained bytes of all topics.", max(shared.get("bytes_live") - shared.get("bytes_unreadable"), 0)),
        gauge("topics_queue_topics", "Queues.", shared.get("queue_topics")),
        gauge("topics_queue_leases_in_flight", "Leased jobs of all queues.", leases),
        gauge("topics_sse_connections", "Open streams.", shared.get("sse_connections")),
        gauge("topics_watch_sessions", "Watch sessions.", shared.get("watch_sessions")),
        gauge("topics_ready", "1 when requests are served.", int(shared.ready)),
        gauge("topics_degraded", "1 when damage was found, in the log or in sealed files.", int(degraded or bool(shared.get("degraded")))),
        gauge("topics_recovery_progress", "Share of the log that is replayed, 0 to 1.", shared.get("replay_permille") / 1000),
        gauge("topics_segments", "Sealed ranges of topics.", shared.get("segments")),
        gauge("topics_segments_bytes", "Bytes of their files.", shared.get("segments_bytes")),
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
    ("direct_bytes_total", "counter", "Of the bytes written: in large groups, past the page cache.", "direct_bytes"),
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
    fsync_us = sum(line["fsync_us_sum"] for line in lines)
    families.append(_histogram("topics_wal_fsync_latency_us", "What a sync takes, in microseconds.", counts, fsync_us))
    return families


def _histogram(name: str, text: str, counts: Sequence[int], total: int) -> Family:
    """Build a histogram of counts whose n-th is of values up to 2**n, the last of all others."""
    samples: list[tuple[str, Labels, float]] = []
    seen = 0
    for place, count in enumerate(counts):
        seen += count
        bound = "+Inf" if place == len(counts) - 1 else str(1 << place)
        samples.append(("_bucket", {"le": bound}, seen))
    return Family(name, "histogram", text, [*samples, ("_sum", {}, total), ("_count", {}, seen)])


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


def _ring(depths: Sequence[int]) -> list[Family]:
    if not depths:
        return []
    peak = Family("topics_ring_depth_max", "gauge", "The same of the fullest ring.", [("", {}, max(depths))])
    return [Family("topics_ring_depth", "gauge", "Requests in the rings that the writer has not taken yet.", [("", {}, sum(depths))]), peak]


def _requests(totals: dict[str, Any], operations: Sequence[tuple[str, str]]) -> list[Family]:
    """Build what the workers count about requests (meters.pxd); operations nobody has asked for yet are left out."""
    by_operation: list[tuple[str, Labels, float]] = []
    for number, statuses in enumerate(totals["operations"]):
        method, path = operations[number - 1] if 0 < number <= len(operations) else ("", "other")
        by_operation += [
            ("", {"method": method, "path": path, "code": f"{hundreds}xx"}, float(count)) for hundreds, count in enumerate(statuses) if count
        ]
    throttled = [("", {"limit": name}, float(count)) for name, count in zip(LIMITS, totals["limits"], strict=False) if count or name == "pressure"]
    messages = [("", {"direction": way}, float(totals[f"ws_messages_{way}"])) for way in ("in", "out")]
    return [
        Family("topics_http_responses_total", "counter", "Answers by operation and status.", by_operation),
        _histogram("topics_http_request_us", "From a request's head to its answer, in microseconds.", totals["request_us"], totals["request_us_sum"]),
        _histogram("topics_loop_lag_us", "How late the event loops of the workers are.", totals["lag_us"], totals["lag_us_sum"]),
        Family("topics_throttled_total", "counter", "Requests refused by 429, by what was reached.", throttled),
        Family("topics_ws_connections", "gauge", "Open WebSockets.", [("", {}, totals["ws_connections"])]),
        Family("topics_ws_messages_total", "counter", "WebSocket messages.", messages),
    ]


def _pressure(totals: dict[str, Any]) -> list[Family]:
    return [
        Family(
            "topics_pressure",
            "gauge",
            "The rung of the ladder: 0 none, 1 coalesce, 2 low bands wait, 3 low writes wait.",
            [("", {}, totals["pressure"])],
        ),
        Family("topics_writer_behind_ms", "gauge", "For how long the writer has had its oldest request.", [("", {}, totals["behind_ms"])]),
        Family("topics_feed_waiting", "gauge", "Topics that wait to be delivered.", [("", {}, totals["feed_waiting"])]),
        Family("topics_parked_writes_total", "counter", "Writes that waited for room or for pressure to pass.", [("", {}, totals["parked"])]),
        Family("topics_parked_us_total", "counter", "For how long they did, in microseconds.", [("", {}, totals["parked_us_sum"])]),
    ]


_BY_DOOR = (
    ("frames", "Events sent to watchers, notices and notes on gaps included."),
    ("records", "Records sent to watchers."),
    ("bytes", "Bytes sent to watchers."),
    ("streams", "Streams opened: event streams, and WebSockets that subscribed."),
)
_DELIVERY = (
    ("tombstones", "Gaps told to watchers."),
    ("heartbeats", "Heartbeats sent to event streams."),
    ("slow_closed", "Streams closed because their client took nothing for too long."),
    ("taken_over", "Streams that another one of the same session ended."),
    ("advisories", "Advisory 429 sent to event streams."),
)


def _delivery(counters: dict[str, int]) -> list[Family]:
    """Build what the feeds count (sessions.h: struct delivery_line)."""
    families = []
    for name, text in _BY_DOOR:
        sockets = counters[f"ws_{name}"]
        samples: list[tuple[str, Labels, float]] = [("", {"door": "sse"}, counters[name] - sockets), ("", {"door": "websocket"}, sockets)]
        families.append(Family(f"topics_delivered_{name}_total" if name != "streams" else "topics_streams_opened_total", "counter", text, samples))
    return families + [Family(f"topics_delivery_{name}_total", "counter", text, [("", {}, counters[name])]) for name, text in _DELIVERY]


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


_GROUP = (
    ("committed_offset", "Last offset below which all is acked.", "committed_offset"),
    ("leased", "Leased records.", "leased"),
    ("to_redeliver", "Records that were leased and came back.", "to_redeliver"),
)


def groups(told: dict[str, Any]) -> list[Family]:
    """Render what the engine's `group.metrics` has told."""
    rows = told["groups"]
    families = [
        Family("topics_groups", "gauge", "Consumer groups.", [("", {}, told["total"])]),
        Family("topics_group_metrics_truncated", "gauge", "1 when there are more groups than are shown.", [("", {}, int(told["truncated"]))]),
        Family("topics_group_lag", "gauge", "Seqs from a group's committed offset to its topic's head.", [
            ("", {"topic": row["topic"], "group": row["group"]}, max(row["head_seq"] - row["committed_offset"], 0)) for row in rows]),
    ]  # fmt: skip
    for name, text, word in _GROUP:
        samples: list[tuple[str, Labels, float]] = [("", {"topic": row["topic"], "group": row["group"]}, row[word]) for row in rows]
        families.append(Family(f"topics_group_{name}", "gauge", text, samples))
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
