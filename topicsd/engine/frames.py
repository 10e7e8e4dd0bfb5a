"""Bodies of the control frames, as `docs/format/log.md` lays them out."""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

START, APPEND, TOPIC_CREATE, TOPIC_CONFIG, TOPIC_DELETE, DELETE, FLOOR, CEILING, HOLE, ROUTER, ROUTER_CURSOR, LEASE, GROUP = range(1, 14)
SEGMENT = 15
MARK = 0x81
MATCH_NONE, MATCH_EQ, MATCH_PREFIX = range(3)
LOSS_CAP, LOSS_TTL, LOSS_MIXED, LOSS_RECREATED, LOSS_SOURCE_TRIM, LOSS_CORRUPT = range(1, 7)

_DELETE = struct.Struct("<QHHI")
_FLOOR = struct.Struct("<QQ")
_HOLE = struct.Struct("<QQII")


class Deletion(NamedTuple):
    """Which records a delete takes: seq below `before_seq`, and with this tag unless `kind` is MATCH_NONE."""

    before_seq: int
    kind: int
    match: bytes


def delete_body(deletion: Deletion) -> bytes:
    """Encode struct delete_body and the match behind it."""
    return _DELETE.pack(deletion.before_seq, deletion.kind, len(deletion.match), 0) + deletion.match


def parse_delete(body: bytes) -> Deletion:
    """Decode struct delete_body."""
    before_seq, kind, length, _ = _DELETE.unpack_from(body)
    return Deletion(before_seq, kind, body[_DELETE.size : _DELETE.size + length])


def floor_body(ttl_lost: int, cap_lost: int) -> bytes:
    """Encode struct floor_body."""
    return _FLOOR.pack(ttl_lost, cap_lost)


def parse_floor(body: bytes) -> tuple[int, int]:
    """Decode struct floor_body: (ttl_lost, cap_lost)."""
    ttl_lost, cap_lost = _FLOOR.unpack_from(body)
    return ttl_lost, cap_lost


def hole_body(first_seq: int, last_seq: int, reason: int) -> bytes:
    """Encode struct hole_body."""
    return _HOLE.pack(first_seq, last_seq, reason, 0)


def parse_hole(body: bytes) -> tuple[int, int, int]:
    """Decode struct hole_body: (first seq, last seq, reason)."""
    first_seq, last_seq, reason, _ = _HOLE.unpack_from(body)
    return first_seq, last_seq, reason


def frame_bytes(body: bytes) -> int:
    """Return how many bytes a frame with this body takes: a header of 64 and padding to 8."""
    return (64 + len(body) + 7) & ~7


def json_body(members: dict[str, Any]) -> bytes:
    """Encode the JSON body of a topic frame, padded with spaces to the frame's alignment."""
    text = json.dumps(members, separators=(",", ":"), ensure_ascii=False).encode()
    return text + b" " * (-len(text) % 8)


def parse_json(body: bytes) -> dict[str, Any]:
    """Decode the JSON body of a topic frame."""
    members: dict[str, Any] = json.loads(body.rstrip(b"\0 "))
    return members
