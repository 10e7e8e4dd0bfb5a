"""Segments in slow Python, written from docs/format/segment.md and pack.md alone: bytes of each part from rows, and rows from bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import xxhash

DELETED, HOLE, TAGGED = 1, 2, 4
CORRUPT = 6
HEADER = struct.Struct("<8sII14Q")
FRAME = struct.Struct("<IIQQ")
ENTRY = struct.Struct("<QIIQ")
TAG_ROW = struct.Struct("<IIII")
PACK_HEADER = struct.Struct("<8sIIQQQQQ")
PACK_ENTRY = struct.Struct("<QQQQQQQQ")
PACK_FOOTER = struct.Struct("<8sIIQQQQQQ")
GAP_DELETED_MAX = 4096


def xxh3(data: bytes, seed: int = 0) -> int:
    return xxhash.xxh3_64_intdigest(data, seed)


def pad8(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


@dataclass(frozen=True)
class Row:
    """One seq (or a hole of `count`): `entry` are the bytes of its record entry, or flags say why there is none."""

    seq: int
    ts: int
    entry: bytes | None = None
    flags: int = 0
    count: int = 1


def entry_parts(entry: bytes) -> tuple[bytes | None, int]:
    """The tag of a record entry (None when it has none), and the bytes that count as its payload."""
    length_flags, data, meta, tag, node = struct.unpack_from("<IIIHH", entry)
    at = 16 + (16 if length_flags & 1 else 0) + node
    has_tag = tag or length_flags & 2
    return entry[at : at + tag] if has_tag else None, data + meta + tag + node


@dataclass
class Parts:
    data: bytes
    index: bytes
    tags: bytes


@dataclass
class _Laying:
    topic_id: int
    frames: bytearray = field(default_factory=bytearray)
    entries: list[bytes] = field(default_factory=list)
    postings: dict[bytes, list[int]] = field(default_factory=dict)
    fold: int = 0
    times: list[int] = field(default_factory=list)
    records: int = 0
    payload: int = 0
    holes: int = 0

    def frame(self, kind: int, seq: int, ts: int, body: bytes) -> None:
        front = FRAME.pack(24 + len(body) + 16, kind, seq, ts) + body
        checksum = struct.pack("<Q", xxh3(front, self.topic_id))
        self.frames += front + checksum + bytes(8)
        self.fold = xxh3(checksum, self.fold)

    def none(self, count: int, ts: int, flags: int) -> None:
        self.entries += [ENTRY.pack(0, 0, flags, ts)] * count
        self.times += [ts] * count


def expanded(rows: Sequence[Row]) -> list[tuple[int, int, bytes | None, int]]:
    """One (seq, ts, entry, flags) for each seq; a hole is as old as what precedes it."""
    out: list[tuple[int, int, bytes | None, int]] = []
    for row in rows:
        last = out[-1][1] if out else 0
        ts = max(row.ts, last) if row.flags & HOLE else row.ts
        flags = row.flags & (HOLE | 0xFF00) if row.flags & HOLE else row.flags & DELETED
        out += [(row.seq + k, ts, None if flags else row.entry, flags) for k in range(row.count)]
    return out


def build(topic_id: int, rows: Sequence[Row]) -> Parts:
    """The three parts of a segment."""
    laying = _Laying(topic_id)
    seqs = expanded(rows)
    first = seqs[0][0]
    at = 0
    while at < len(seqs):
        seq, ts, entry, flags = seqs[at]
        if entry is not None:
            tag, payload = entry_parts(entry)
            position = 128 + len(laying.frames) + 24
            laying.frame(1, seq, ts, entry)
            laying.entries.append(ENTRY.pack(254 << 56 | position, payload, TAGGED if tag is not None else 0, ts))
            laying.times.append(ts)
            laying.records += 1
            laying.payload += payload
            if tag is not None:
                laying.postings.setdefault(tag, []).append(seq - first)
            at += 1
            continue
        end = at + 1
        if flags & HOLE:
            while end < len(seqs) and seqs[end][3] == flags and seqs[end][1] == ts:
                end += 1
            laying.frame(2, seq, ts, struct.pack("<QII", seqs[end - 1][0], flags >> 8 & 0xFF, 0))
            laying.holes += end - at
        else:
            while end < len(seqs) and seqs[end][3] == DELETED and end - at < GAP_DELETED_MAX:
                end += 1
            times = [seqs[k][1] for k in range(at, end)]
            laying.frame(2, seq, ts, struct.pack("<QII", seqs[end - 1][0], 0, 0) + struct.pack(f"<{len(times)}Q", *times))
        for k in range(at, end):
            laying.none(1, seqs[k][1], flags)
        at = end
    return _parts(laying, first, seqs[-1][0])


def _parts(laying: _Laying, first: int, last: int) -> Parts:
    def header(magic: bytes, body: bytes, content: int) -> bytes:
        front = HEADER.pack(
            magic, 1, 0, laying.topic_id, first, last, 128 + len(body), laying.records, laying.payload, laying.times[0], laying.times[-1],
            laying.holes, len(laying.postings), sum(map(len, laying.postings.values())), laying.fold, content, 0,
        )[:120]  # fmt: skip
        return front + struct.pack("<Q", xxh3(front))

    entries = b"".join(laying.entries)
    blocks = b"".join(struct.pack("<Q", xxh3(entries[at : at + 64 * 24])) for at in range(0, len(entries), 64 * 24))
    rows, postings, texts = b"", b"", b""
    for tag in sorted(laying.postings):
        offsets = laying.postings[tag]
        rows += TAG_ROW.pack(len(texts), len(tag), len(postings) // 4, len(offsets))
        postings += struct.pack(f"<{len(offsets)}I", *offsets)
        texts += tag
    tags = pad8(rows + postings + texts)
    data = bytes(laying.frames)
    return Parts(
        header(b"TPSGDAT1", data, laying.fold) + data,
        header(b"TPSGIDX1", entries + blocks, xxh3(blocks)) + entries + blocks,
        header(b"TPSGTAG1", tags, xxh3(tags)) + tags,
    )


def build_pack(number: int, segments: Sequence[tuple[int, Sequence[Row]]]) -> bytes:
    """A pack of (topic id, rows)."""
    front = PACK_HEADER.pack(b"TPPPACK1", 1, 0, number, 0, 0, 0, 0)
    out = bytearray(front + struct.pack("<Q", xxh3(front)))
    entries = []
    for topic_id, rows in segments:
        parts = build(topic_id, rows)
        header = HEADER.unpack_from(parts.data)
        offsets = []
        for part in (parts.data, parts.index, parts.tags):
            offsets.append(len(out))
            out += part
        entries.append((topic_id, header[4], header[5], *offsets, header[7], header[14]))
    directory = b"".join(PACK_ENTRY.pack(*entry) for entry in sorted(entries))
    footer = PACK_FOOTER.pack(b"TPPPEND1", 1, 0, number, len(entries), len(out), xxh3(directory), len(out) + len(directory) + 64, 0)[:56]
    return bytes(out) + directory + footer + struct.pack("<Q", xxh3(footer))


def read_data(topic_id: int, data: bytes) -> list[tuple[int, int, bytes | None, int, bool]]:
    """(seq, ts, entry, flags, deleted by its flag byte) for each seq of an undamaged data part."""
    out: list[tuple[int, int, bytes | None, int, bool]] = []
    at = 128
    while at < len(data):
        length, kind, seq, ts = FRAME.unpack_from(data, at)
        assert xxh3(data[at : at + length - 16], topic_id) == struct.unpack_from("<Q", data, at + length - 16)[0]
        body = data[at + 24 : at + length - 16]
        if kind == 1:
            out.append((seq, ts, body, 0, data[at + length - 8] == 0xD5))
        else:
            last, reason, _ = struct.unpack_from("<QII", body)
            times = [ts] * (last - seq + 1) if reason else struct.unpack_from(f"<{last - seq + 1}Q", body, 16)
            out += [(seq + k, t, None, HOLE | reason << 8 if reason else DELETED, False) for k, t in enumerate(times)]
        at += length
    return out
