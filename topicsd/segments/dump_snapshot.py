"""Show a snapshot as lines, from its bytes as docs/format/snapshot.md lays them out."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from topicsd import snapshot
from topicsd.segments.rows import FILE, ROW

Line = dict[str, Any]
_TOPIC, _RUN = struct.Struct("<2Q72s16Q6I"), struct.Struct("<2Q2I")
_NOTE = struct.Struct("<2Q4I")
_ENTRY_BYTES, _ORIGIN_BYTES, _WINDOW_BYTES, _PART_BYTES = 24, 24, 32, 12
_NUMBERS = (
    "head", "earliest", "cap_lost", "ttl_lost", "hole_lost", "hole_reason", "count", "bytes", "last_write_ms", "last_read_ms", "last_ts", "ceiling",
    "sealed_through",
)  # fmt: skip
KINDS = {1: "own", 2: "pack", 3: "cold"}


def show_snapshot(path: Path, raw: bytes) -> Iterator[Line]:
    """The header, then each section row by row. Damage ends it: what a snapshot says counts only as a whole."""
    try:
        found = snapshot.read(path)
    except snapshot.NewerSnapshotError as refused:
        yield {"offset": 0, "newer": str(refused)}
        return
    except snapshot.SnapshotError as wrong:
        yield {"offset": 0, "damage": str(wrong)}
        return
    yield {"offset": 0, "bytes": len(raw), "snapshot": found.header}
    for name, section in found.sections.items():
        yield {"section": name, "bytes": len(section)}
        try:
            yield from _SHOW.get(name, _rows)(section)
        except (struct.error, ValueError) as wrong:
            yield {"section": name, "damage": str(wrong)}


def aligned(at: int) -> int:
    """The next multiple of 8."""
    return at + (-at % 8)


def _topics(section: memoryview) -> Iterator[Line]:
    at = 0
    while at < len(section):
        (size,) = struct.unpack_from("<Q", section, at)
        yield from _topic(section[at + 8 : at + 8 + size])
        at += 8 + size


def _topic(row: memoryview) -> Iterator[Line]:
    topic_id, shard, _config, *rest = _TOPIC.unpack_from(row)
    name_bytes, dead_bytes, ranges, runs, origins, windows = rest[16:]
    at = _TOPIC.size
    name = str(row[at : at + name_bytes], "utf-8", "replace")
    numbers = dict(zip(_NUMBERS, rest, strict=False))
    yield {"topic": name, "topic_id": topic_id, "shard": shard} | numbers | {"ranges": ranges, "runs": runs, "origins": origins, "windows": windows}
    at = aligned(at + name_bytes + dead_bytes)
    marked = []
    for _ in range(ranges):
        first, last, _ts, live_bytes, live, _deleted, has_file, flags, *_places, marks = ROW.unpack_from(row, at)
        line: Line = {"range": [first, last], "live": live, "live_bytes": live_bytes, "flags": flags}
        if has_file:
            _serial, owner, name_of, edition, size, _rows, _state, kind, _suspect, _next = FILE.unpack_from(row, at + ROW.size)
            line["file"] = {"kind": KINDS.get(kind, kind), "topic_id": owner, "name": name_of, "edition": edition, "bytes": size}
        if marks:
            marked.append((line, (last - first) // 64 * 8 + 8))
        yield line
        at += 128
    for line, size in marked:
        yield {"marks": line["range"], "deleted": int.from_bytes(row[at : at + size], "little").bit_count()}
        at += size
    for _ in range(runs):
        first, last, reason, _ = _RUN.unpack_from(row, at)
        yield {"run": [first, last]} | ({"hole": reason} if reason else {})
        at += _RUN.size + (0 if reason else _ENTRY_BYTES * (last - first + 1))
    for _ in range(origins):
        seq, source, size, _ = struct.unpack_from("<2Q2I", row, at)
        yield {"origin": seq, "source": source, "text": str(row[at + _ORIGIN_BYTES : at + _ORIGIN_BYTES + size], "utf-8", "replace")}
        at = aligned(at + _ORIGIN_BYTES + size)
    for _ in range(windows):
        _hash, first, arrived_ms, count, size = struct.unpack_from("<2Qq2I", row, at)
        yield {"key": bytes(row[at + _WINDOW_BYTES : at + _WINDOW_BYTES + size]).hex(), "first_seq": first, "count": count, "arrived_ms": arrived_ms}
        at = aligned(at + _WINDOW_BYTES + size)
    if at != len(row):
        raise ValueError(f"topic {topic_id}: its row ends at byte {at} of {len(row)}")


def _notes(section: memoryview) -> Iterator[Line]:
    at = 0
    while at < len(section):
        topic_id, first, records, flags, size, origins = _NOTE.unpack_from(section, at)
        yield {"topic_id": topic_id, "first_seq": first, "records": records, "whole": bool(flags & 1), "origins": origins}
        at = aligned(at + _NOTE.size + records * (_ENTRY_BYTES + _PART_BYTES) + size)
        for _ in range(origins):
            (size,) = struct.unpack_from("<I", section, at + 16)
            at = aligned(at + _ORIGIN_BYTES + size)


def _gone(section: memoryview) -> Iterator[Line]:
    for (topic_id,) in struct.iter_unpack("<Q", section):
        yield {"gone": topic_id}


def _rows(section: memoryview) -> Iterator[Line]:
    for row in snapshot.rows_of(section):
        try:
            body = json.loads(row.body.rstrip(b"\0 "))
        except ValueError:
            body = {"bytes": len(row.body)}
        yield {"key": row.key, "shard": row.shard, "position": row.position, "body": body}


_SHOW = {"topics": _topics, "notes": _notes, "gone": _gone}
