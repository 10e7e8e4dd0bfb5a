"""Topics in plain Python, slow and obvious: what D sections 1-7 say. Imports nothing of topicsd.

Everything visible of the engine is compared with it by tests/unit/test_engine_model.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

DEFAULTS: dict[str, Any] = {
    "type": "log", "ttl_ms": 0, "cap_records": 0, "cap_bytes": 0, "discard": "old", "durability": "disk",
    "idempotency_window_ms": 120_000, "dedupe_node": True, "auto_create": True,
}  # fmt: skip


class Refused(Exception):
    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def stored(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


@dataclass
class Record:
    seq: int
    ts: int
    body: dict[str, Any]

    @property
    def bytes(self) -> int:
        total = stored(self.body["data"])
        total += stored(self.body["meta"]) if "meta" in self.body else 0
        return total + sum(stored(self.body[name]) - 2 for name in ("tag", "node") if name in self.body)


@dataclass
class Topic:
    epoch: int
    config: dict[str, Any]
    live: list[Record] = field(default_factory=list)
    head: int = 0
    last_ts: int = 0
    cap_lost: int = 0
    ttl_lost: int = 0
    hole_lost: int = 0
    keys: dict[str, tuple[int, int, int, Any]] = field(default_factory=dict)

    @property
    def earliest(self) -> int:
        return self.live[0].seq if self.live else self.head + 1


class Model:
    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.topics: dict[str, Topic] = {}
        self.epoch = 0

    # control

    def put(self, name: str, **config: Any) -> bool:
        topic = self.topics.get(name)
        if topic is None:
            self._create(name, config)
            return True
        if config.get("type", topic.config["type"]) != topic.config["type"]:
            raise Refused("topic_exists_incompatible")
        self._expire(topic)
        topic.config = {**DEFAULTS, "type": topic.config["type"], **config}
        self._evict(topic)
        self._expire(topic)
        return False

    def _create(self, name: str, config: dict[str, Any]) -> Topic:
        self.epoch += 1
        topic = self.topics[name] = Topic(self.epoch, {**DEFAULTS, **config})
        return topic

    def drop(self, name: str, if_empty: bool = False) -> bool:
        topic = self.topics.get(name)
        if topic is None:
            return False
        self._expire(topic)
        if if_empty and topic.live:
            raise Refused("topic_not_empty")
        del self.topics[name]
        return True

    # write

    def append(self, name: str, records: list[dict[str, Any]], key: str | None = None, create: bool | None = None) -> dict[str, Any]:
        topic, created = self.topics.get(name), False
        if topic is None:
            if create is False:
                raise Refused("topic_not_found")
            topic, created = self._create(name, {}), True
        if key is not None:
            self._forget_keys(topic)
            if key in topic.keys:
                first, count, _, body = topic.keys[key]
                return {"first_seq": first, "count": count, "created": False, "deduped": True, "body_differs": body != records, "head": topic.head}
        config = topic.config
        size = sum(Record(0, 0, body).bytes for body in records)
        if config["discard"] == "reject" and (config["cap_records"] or config["cap_bytes"]):
            self._expire(topic)
            if (config["cap_records"] and len(records) > config["cap_records"]) or (config["cap_bytes"] and size > config["cap_bytes"]):
                raise Refused("record_too_large")
            over_records = config["cap_records"] and len(topic.live) + len(records) > config["cap_records"]
            if over_records or (config["cap_bytes"] and self._bytes(topic) + size > config["cap_bytes"]):
                raise Refused("topic_full")
        first = topic.head + 1
        topic.last_ts = max(topic.last_ts, self.clock.wall_ms())
        for body in records:
            topic.head += 1
            topic.live.append(Record(topic.head, topic.last_ts, body))
        if key is not None:
            topic.keys[key] = (first, len(records), self.clock.mono_ms(), records)
        self._evict(topic)
        return {"first_seq": first, "count": len(records), "created": created, "deduped": False, "body_differs": False, "head": topic.head}

    def delete(self, name: str, before_seq: int | None = None, match: Any = None) -> dict[str, Any]:
        topic = self._topic(name)
        self._expire(topic)
        before = topic.head + 1 if before_seq is None else before_seq

        def goes(record: Record) -> bool:
            return record.seq < before and (match is None or self._matches(match, record))

        kept = [record for record in topic.live if not goes(record)]
        deleted, topic.live = len(topic.live) - len(kept), kept
        return {"deleted": deleted, "earliest": topic.earliest, "head": topic.head, "count": len(kept), "bytes": self._bytes(topic)}

    # read

    def state(self, name: str) -> dict[str, Any]:
        topic = self._topic(name)
        self._expire(topic)
        return {"head": topic.head, "earliest": topic.earliest, "count": len(topic.live), "bytes": self._bytes(topic), "epoch": topic.epoch}

    def diff(self, name: str, from_seq: int = 0, limit: int = 256, node: Any = None, match: Any = None, epoch: int | None = None) -> dict[str, Any]:
        topic = self._topic(name)
        self._expire(topic)
        limit = min(limit or 256, 1000)
        tombstone = None
        lost = {"cap": topic.cap_lost, "ttl": topic.ttl_lost, "mixed": topic.hole_lost}
        floor = max(lost.values()) + 1
        if from_seq > topic.head or (epoch is not None and epoch != topic.epoch):
            tombstone = {"gap_from": 1, "gap_to": topic.head, "reason": "recreated", "missed_estimate": topic.head}
            from_seq = topic.earliest - 1
        elif from_seq + 1 < floor:
            reasons = [reason for reason, seq in lost.items() if seq >= from_seq + 1]
            reason = reasons[0] if len(reasons) == 1 else "mixed"
            tombstone = {"gap_from": from_seq + 1, "gap_to": floor - 1, "reason": reason, "missed_estimate": floor - 1 - from_seq}
            from_seq = topic.earliest - 1
        nodes = {node} if isinstance(node, str) else set(node or ())
        if not topic.config["dedupe_node"]:
            nodes = set()
        records, position = [], from_seq
        for record in topic.live:
            if record.seq <= from_seq:
                continue
            if len(records) == limit:
                break
            position = record.seq
            if record.body.get("node") not in nodes and (match is None or self._matches(match, record)):
                records.append({"$seq": record.seq, "$ts": record.ts, **record.body})
        else:
            if len(records) < limit:  # a full page ends behind its last record, whatever is deleted behind that
                position = topic.head
        return {"records": records, "next_from_seq": position, "head_seq": topic.head, "earliest_seq": topic.earliest, "tombstone": tombstone}

    # restarts

    def restart(self) -> None:
        """A process death in the same boot, or a clean end: nothing acked is missing but keys whose window has passed."""
        for topic in self.topics.values():
            self._forget_keys(topic)

    # inside

    def _topic(self, name: str) -> Topic:
        if name not in self.topics:
            raise Refused("topic_not_found")
        return self.topics[name]

    @staticmethod
    def _matches(match: Any, record: Record) -> bool:
        tag = record.body.get("tag")
        if tag is None:
            return False
        if isinstance(match, str):
            return bool(tag == match)
        return bool(tag == match[2] if match[1] == "Eq" else tag.startswith(match[2][:-1]))

    @staticmethod
    def _bytes(topic: Topic) -> int:
        return sum(record.bytes for record in topic.live)

    def _evict(self, topic: Topic) -> None:
        config = topic.config
        while (
            topic.live
            and config["discard"] != "reject"
            and (
                (config["cap_records"] and len(topic.live) > config["cap_records"])
                or (config["cap_bytes"] and self._bytes(topic) > config["cap_bytes"])
            )
        ):
            topic.cap_lost = topic.live.pop(0).seq

    def _expire(self, topic: Topic) -> None:
        ttl_ms = topic.config["ttl_ms"]
        while ttl_ms and topic.live and self.clock.wall_ms() - topic.live[0].ts > ttl_ms:
            topic.ttl_lost = topic.live.pop(0).seq

    def _forget_keys(self, topic: Topic) -> None:
        now_ms = self.clock.mono_ms()
        topic.keys = {key: entry for key, entry in topic.keys.items() if now_ms - entry[2] <= topic.config["idempotency_window_ms"]}
