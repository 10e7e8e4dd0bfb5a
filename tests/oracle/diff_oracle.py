"""Diff and state in plain Python, over a list of what became of every seq. Slow, obvious, and without topicsd.

A topic is a list of fates, one a seq from 1 on. From them and the clock follow all floors (D §5.1), tombstones (D §5.4, CLARIFICATIONS
'Diff, floors, tombstones') and pages (A §3).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

LIVE, DELETED, CAPPED, EXPIRED, HOLE = "live", "deleted", "cap", "ttl", "hole"
EXAMINED_MAX = 10_000


@dataclass
class Fate:
    """One seq: what it holds and what became of it. `data` and `meta` are JSON texts, `tag` and `node` plain strings."""

    kind: str
    ts: int
    data: str = "null"
    meta: str | None = None
    tag: str | None = None
    node: str | None = None
    reason: str = "mixed"  # of a hole

    def size(self) -> int:
        def stored(text: str | None) -> int:
            return len(json.dumps(text, ensure_ascii=False).encode()) - 2 if text is not None else 0

        return len(self.data.encode()) + len((self.meta or "").encode()) + stored(self.tag) + stored(self.node)


@dataclass
class Request:
    from_seq: int = 0
    limit: int = 0
    nodes: Sequence[str] = ()
    include_tags: bool = False
    include_meta: bool = True
    max_batch_bytes: int = 0
    match: tuple[str, str] | None = None  # ("Eq" | "Glob", text; a Glob's text without its star)
    epoch: int | None = None
    from_ts: int | None = None

    def body(self) -> bytes:
        members: dict[str, Any] = {"from_seq": self.from_seq, "limit": self.limit, "max_batch_bytes": self.max_batch_bytes}
        members |= {"node": list(self.nodes), "include_tags": self.include_tags, "include_meta": self.include_meta}
        if self.match is not None:
            members["match"] = ["tag", self.match[0], self.match[1] + ("*" if self.match[0] == "Glob" else "")]
        if self.epoch is not None:
            members["epoch"] = self.epoch
        if self.from_ts is not None:
            members["from_ts"] = self.from_ts
        return json.dumps(members).encode()


@dataclass
class Topic:
    name: str
    epoch: int
    ttl_ms: int = 0
    dedupe_node: bool = True
    fates: list[Fate] = field(default_factory=list)

    @property
    def head(self) -> int:
        return len(self.fates)

    def fate(self, seq: int) -> Fate:
        return self.fates[seq - 1]

    def kind_at(self, seq: int, now_ms: int) -> str:
        fate = self.fate(seq)
        expired = self.ttl_ms != 0 and now_ms - fate.ts > self.ttl_ms
        return EXPIRED if fate.kind == LIVE and expired else fate.kind

    def live(self, now_ms: int) -> list[int]:
        return [seq for seq in range(1, self.head + 1) if self.kind_at(seq, now_ms) == LIVE]

    def earliest(self, now_ms: int) -> int:
        return next(iter(self.live(now_ms)), self.head + 1)

    def losses(self, now_ms: int) -> dict[int, str]:
        """Say why each seq that the evict floor counts was lost: caps, TTL, and holes that the first live record has left behind."""
        kinds = {seq: self.kind_at(seq, now_ms) for seq in range(1, self.head + 1)}
        earliest = self.earliest(now_ms)
        lost = {seq: kind for seq, kind in kinds.items() if kind in (CAPPED, EXPIRED)}
        return lost | {seq: self.fate(seq).reason for seq, kind in kinds.items() if kind == HOLE and seq < earliest}

    def count_and_bytes(self, now_ms: int) -> tuple[int, int]:
        live = self.live(now_ms)
        return len(live), sum(self.fate(seq).size() for seq in live)


def reason_of(topic: Topic, now_ms: int, gap_from: int) -> str:
    """Name the one cause whose highest loss reaches the gap, `mixed` when there are several."""
    losses = topic.losses(now_ms)
    last_hole = max((seq for seq in losses if topic.fate(seq).kind == HOLE), default=0)
    causes = {reason for seq, reason in losses.items() if seq >= gap_from and topic.fate(seq).kind != HOLE}
    if last_hole >= gap_from:
        causes.add(losses[last_hole])
    return causes.pop() if len(causes) == 1 else "mixed"


def shown(fate: Fate, seq: int, request: Request) -> dict[str, Any]:
    out: dict[str, Any] = {"$seq": seq, "$ts": fate.ts}
    if fate.node is not None:
        out["$node"] = fate.node
    if request.include_tags and fate.tag is not None:
        out["$tag"] = fate.tag
    out["data"] = json.loads(fate.data)
    if request.include_meta and fate.meta is not None:
        out["meta"] = json.loads(fate.meta)
    return out


def wanted(topic: Topic, fate: Fate, request: Request) -> bool:
    if topic.dedupe_node and fate.node is not None and fate.node in request.nodes:
        return False
    if request.match is None:
        return True
    kind, text = request.match
    return fate.tag is not None and (fate.tag == text if kind == "Eq" else fate.tag.startswith(text))


def diff(topic: Topic, request: Request, now_ms: int, limit_max: int = 1000, examined_max: int = EXAMINED_MAX) -> dict[str, Any]:
    """Answer a diff without its `performance`, plus `scanned` and `would_wait`."""
    head, earliest = topic.head, topic.earliest(now_ms)
    floor = max(topic.losses(now_ms), default=0) + 1
    limit = min(request.limit or 256, limit_max)
    bytes_max = min(request.max_batch_bytes or 1 << 20, 8 << 20)

    recreated = request.from_seq > head or (request.epoch is not None and request.epoch != topic.epoch)
    cursor = earliest - 1 if recreated else request.from_seq
    if request.from_ts is not None and earliest <= head:
        kept = (seq for seq in range(earliest, head + 1) if topic.fate(seq).kind != HOLE)
        begin = next((seq for seq in kept if topic.fate(seq).ts >= request.from_ts), head + 1)
        while begin > earliest and topic.fate(begin - 1).kind == HOLE:  # nobody knows how old it was: it is told
            begin -= 1
        if begin > earliest:
            cursor = max(cursor, begin - 1)

    tombstone: dict[str, Any] | None = None
    if recreated:
        tombstone = {"gap_from": 1, "gap_to": head, "reason": "recreated", "earliest_seq": earliest}
    elif cursor + 1 < floor:
        tombstone = {"gap_from": cursor + 1, "gap_to": floor - 1, "reason": reason_of(topic, now_ms, cursor + 1), "earliest_seq": earliest}
    cursor = max(cursor, earliest - 1)

    records: list[dict[str, Any]] = []
    payload = scanned = 0
    while cursor < head and len(records) < limit:
        seq = cursor + 1
        fate = topic.fate(seq)
        if fate.kind == HOLE:
            if records or tombstone:
                break
            last = seq
            while last < head and topic.fate(last + 1).kind == HOLE:
                last += 1
            reasons = {topic.fate(each).reason for each in range(seq, last + 1)}
            reason = reasons.pop() if len(reasons) == 1 else "mixed"
            tombstone = {"gap_from": seq, "gap_to": last, "reason": reason, "earliest_seq": max(earliest, last + 1)}
            cursor = last
            continue
        if scanned >= max(limit, examined_max):
            break
        if fate.kind == LIVE and wanted(topic, fate, request):
            if records and payload + fate.size() > bytes_max:
                break
            records.append(shown(fate, seq, request))
            payload += fate.size()
        scanned += 1
        cursor = seq

    if tombstone is not None:
        tombstone |= {"missed_estimate": tombstone["gap_to"] - tombstone["gap_from"] + 1, "head_seq": head}
    return {
        "topic": topic.name,
        "records": records,
        "next_from_seq": cursor,
        "head_seq": head,
        "earliest_seq": earliest,
        "caught_up": cursor == head,
        "tombstone": tombstone,
        "lag": head - cursor,
        "epoch": topic.epoch,
        "scanned": scanned,
        "would_wait": not records and tombstone is None and cursor == head,
    }
