"""Every method of every path, one line each: `/v0/openapi.json` and the meters are made of it, and a test holds it against the application.

A new route needs a line at the end: a line's place is its number in the meters, which must not change while a server runs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Operation:
    """Describe one method of one path. body and answer name schemas; `links` lead from the answer's topic to operations on it."""

    method: str
    path: str
    name: str
    summary: str
    answer: str | None
    body: str | None = None
    query: tuple[str, ...] = ()
    statuses: tuple[int, ...] = (200,)
    errors: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    media: str = "application/json"
    may_be_empty: bool = False  # a request without a body is one with {}


TOPIC, LIST = "/v0/topics/{topic}", ("prefix", "page_size", "cursor")
OPERATIONS = (
    # the first three are the native front's: their numbers are ROUTE_* of http.h
    Operation("POST", TOPIC, "write", "Append records", "Written", "Write", ("return_seqs",), (200, 201),
              ("batch_too_large", "record_too_large", "topic_not_found", "topic_full", "storage_read_only"), ("diff", "state", "erase")),
    Operation("POST", f"{TOPIC}/diff", "diff", "Read the records after a cursor", "Page", "Diff", errors=("topic_not_found",), may_be_empty=True),
    Operation("GET", TOPIC, "state", "Show a topic's state", "TopicState", query=("touch",), errors=("topic_not_found",)),
    Operation("PUT", TOPIC, "configure", "Create a topic, or replace its config", "TopicPut", "Config", (), (200, 201),
              ("topic_exists_incompatible", "storage_read_only"), ("state", "write", "diff", "drop"), may_be_empty=True),
    Operation("DELETE", TOPIC, "drop", "Delete a topic", "TopicDelete", query=("if_empty",), errors=("topic_not_empty", "storage_read_only")),
    Operation("GET", "/v0/topics", "list", "List topics", "TopicList", query=(*LIST, "touch")),
    Operation("POST", f"{TOPIC}/delete", "erase", "Delete records by seq, by tag or both", "Deleted", "Delete",
              errors=("topic_not_found", "storage_read_only")),
    Operation("POST", f"{TOPIC}/claim", "claim", "Lease jobs of a queue", "Claimed", "Claim", errors=("topic_not_found", "not_a_queue")),
    Operation("POST", f"{TOPIC}/ack", "ack", "Complete jobs", "JobAcked", "JobAck", errors=("topic_not_found", "not_a_queue", "batch_too_large")),
    Operation("POST", f"{TOPIC}/nack", "nack", "Give jobs back", "Nacked", "Nack", errors=("topic_not_found", "not_a_queue", "batch_too_large")),
    Operation("POST", f"{TOPIC}/extend", "extend", "Prolong leases", "Extended", "Extend",
              errors=("topic_not_found", "not_a_queue", "batch_too_large")),
    Operation("GET", f"{TOPIC}/work", "work", "Have jobs pushed as server-sent events", None, query=("node", "max", "lease_ms", "token"),
              errors=("topic_not_found", "not_a_queue", "not_acceptable"), media="text/event-stream"),
    Operation("POST", f"{TOPIC}/redrive", "redrive", "Send dead letters back to their queues", "Anything", "Anything",
              errors=("topic_not_found", "not_a_queue"), may_be_empty=True),
    Operation("PUT", "/v0/routers/{router}", "route", "Create a router, or change it", "RouterPut", "Router", (), (200, 201),
              ("topic_not_found", "router_cycle", "topic_exists_incompatible")),
    Operation("GET", "/v0/routers/{router}", "router", "Show a router", "RouterState", errors=("router_not_found",)),
    Operation("DELETE", "/v0/routers/{router}", "unroute", "Delete a router", "RouterDelete"),
    Operation("GET", "/v0/routers", "routers", "List routers", "RouterList", query=(*LIST, "source", "dest")),
    Operation("POST", "/v0/watch", "watch", "Make a watch session", "Session", "Watch", ("lenient",), errors=("topic_not_found",)),
    Operation("GET", "/v0/watch/{wid}", "stream", "Follow a session as server-sent events", None, query=("token",), errors=("not_acceptable",),
              media="text/event-stream"),
    Operation("GET", f"{TOPIC}/groups", "groups", "List a topic's consumer groups", "GroupList", query=LIST,
              errors=("topic_not_found", "topic_exists_incompatible")),
    Operation("GET", f"{TOPIC}/groups/{{group}}", "group", "Show a consumer group", "Group", errors=("topic_not_found", "topic_exists_incompatible")),
    Operation("DELETE", f"{TOPIC}/groups/{{group}}", "drop_group", "Drop a consumer group", "Anything",
              errors=("topic_not_found", "topic_exists_incompatible")),
    Operation("POST", f"{TOPIC}/groups/{{group}}/consume", "consume", "Lease the next range of a group", "Consumed", "Consume",
              errors=("topic_not_found", "topic_exists_incompatible"), may_be_empty=True),
    Operation("POST", f"{TOPIC}/groups/{{group}}/ack", "group_ack", "Settle a group up to an offset", "GroupAcked", "GroupAck",
              errors=("topic_not_found", "topic_exists_incompatible")),
    Operation("POST", f"{TOPIC}/groups/{{group}}/reset", "group_reset", "Move a group", "Anything", "GroupReset",
              errors=("topic_not_found", "topic_exists_incompatible")),
    Operation("GET", "/v0/ws", "socket", "Open a WebSocket (RFC 6455): docs/websocket.md", None, statuses=(101,), media=""),
    Operation("GET", "/v0/health", "health", "Whether the process lives", "Health"),
    Operation("GET", "/healthz", "healthz", "Whether the process lives", "Health"),
    Operation("GET", "/v0/ready", "ready", "Whether requests are served", "Ready", errors=("shutting_down",)),
    Operation("GET", "/readyz", "readyz", "Whether requests are served", "Ready", errors=("shutting_down",)),
    Operation("GET", "/v0/metrics", "metrics", "What the server measures, as Prometheus text or JSON", "Metrics"),
    Operation("GET", "/v0/openapi.json", "openapi", "This document", "Anything"),
    Operation("POST", f"{TOPIC}/seal", "seal", "Seal a topic's records into a segment", "Anything", "Anything",
              errors=("topic_not_found", "storage_read_only"), may_be_empty=True),
    Operation("POST", "/v0/admin/export", "export", "Export sealed segments to a folder of the server's machine", "Anything", "Anything"),
)  # fmt: skip
NUMBERS = {(operation.method, operation.path): number for number, operation in enumerate(OPERATIONS, start=1)}  # 0: any other path
