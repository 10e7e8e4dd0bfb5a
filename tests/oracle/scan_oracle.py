"""The rows of a scan in slow Python: from rows of a segment (segment_oracle.Row), as docs/format/segment.md and PIPELINE's columns have them."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from oracle.segment_oracle import DELETED, HOLE, Row, expanded

REASONS = {1: "cap", 2: "ttl", 3: "mixed", 4: "recreated", 5: "source_trim", 6: "corrupt"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def text(stored: bytes) -> str:
    """A canonical JSON string without its quotes, decoded; a lone surrogate is U+FFFD."""
    decoded = json.loads(b'"' + stored + b'"')
    return decoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def columns_of(entry: bytes) -> dict[str, Any]:
    """The columns of one record entry."""
    length_flags, data, meta, tag, node = struct.unpack_from("<IIIHH", entry)
    at = 16 + (16 if length_flags & 1 else 0)
    node_text, at = entry[at : at + node], at + node
    tag_text, at = entry[at : at + tag], at + tag
    meta_text, at = entry[at : at + meta], at + meta
    pairs = json.loads(meta_text) if meta else None
    return {
        "node": text(node_text) if node or length_flags & 4 else None,
        "tag": text(tag_text) if tag or length_flags & 2 else None,
        "meta": None if pairs is None else [(text(json.dumps(k)[1:-1].encode()), text(json.dumps(v)[1:-1].encode())) for k, v in pairs.items()],
        "data": entry[at : at + data].decode(),
    }


def scanned(
    topic: str, rows: Sequence[Row], *, first: int = 0, last: int = 2**63, since: int | None = None, until: int | None = None,
    deleted: frozenset[int] = frozenset(),
) -> list[dict[str, Any]]:  # fmt: skip
    """One row a live record, and one for each run of lost seqs with the same reason."""
    out: list[dict[str, Any]] = []
    for seq, ts, entry, flags in expanded(rows):
        inside = first <= seq <= last and (since is None or ts >= since) and (until is None or ts < until)
        if not inside or flags == DELETED or seq in deleted:
            continue
        row: dict[str, Any] = {"topic": topic, "seq": seq, "ts": EPOCH + timedelta(milliseconds=ts), "node": None, "tag": None, "meta": None}
        row |= {"data": None, "_kind": "record", "seq_end": None, "_err": None, "_raw": None}
        if entry is not None:
            out.append(row | columns_of(entry))
            continue
        assert flags & HOLE
        why = REASONS[flags >> 8 & 0xFF]
        if out and out[-1]["_kind"] == "gap" and out[-1]["seq_end"] == seq - 1 and out[-1]["_err"] == why:
            out[-1]["seq_end"] = seq
        else:
            out.append(row | {"_kind": "gap", "seq_end": seq, "_err": why})
    return out
