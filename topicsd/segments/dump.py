"""Show any file of a data directory as JSON lines. Damage is a line of its own; what follows it is shown too.

`FORMATS` maps the first bytes of a file to the function that shows it; whoever owns a further format adds its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from topicsd import synced
from topicsd._native import frame, segment_pack
from topicsd._native.segment import STATUS, Header, SegmentError, SegmentView, frame_at, header_of
from topicsd.segments import newer
from topicsd.segments.dump_snapshot import show_snapshot
from topicsd.segments.names import Place, Spot
from topicsd.segments.newer import NewerFormatError
from topicsd.segments.verify import load, pack_places

Line = dict[str, Any]
FRAME_TYPES = {
    1: "start", 2: "append", 3: "topic_create", 4: "topic_config", 5: "topic_delete", 6: "delete", 7: "floor", 8: "ceiling", 9: "hole", 10: "router",
    11: "router_cursor", 12: "lease", 13: "group", 14: "checkpoint", 15: "segment", 0x81: "mark",
}  # fmt: skip
JSON_BODIES = (3, 4)
LOSS_REASONS = {0: "deleted", 1: "cap", 2: "ttl", 3: "mixed", 4: "recreated", 5: "source_trim", 6: "corrupt"}
DELETED, HOLE, FLAG_DELETED = 1, 2, 0xD5


def dump(path: Path) -> Iterator[bytes]:
    """The file's content as lines of JSON, without line ends. Raises ValueError for a file of no known format, OSError."""
    raw, bad = load(path)
    show = next((show for magic, show in FORMATS.items() if raw.startswith(magic)), None)
    show = show or SUFFIXES.get(path.suffix)  # its first bytes are damaged
    if show is None and path.name.startswith("snapshot-"):
        show = show_snapshot
    if show is None and not any(raw):
        show = _zeroes
    if show is None:
        raise ValueError(f"{path}: no known format (it begins with {raw[:8]!r})")
    for offset in bad:
        yield orjson.dumps({"offset": offset, "damage": "the disk does not give this page back"})
    for line in show(path, raw):
        yield orjson.dumps(line)


def _zeroes(path: Path, raw: bytes) -> Iterator[Line]:
    yield {"offset": 0, "zeroes": len(raw)}


# ---- records


def text(raw: bytes | None) -> orjson.Fragment | None:
    """A tag or node as stored: a JSON string without its quotes."""
    return None if raw is None else orjson.Fragment(b'"' + raw + b'"')


def shown(record: frame.Record) -> Line:
    """A record's members; data and meta as they were sent."""
    line: Line = {}
    if record.node is not None:
        line["node"] = text(record.node)
    if record.tag is not None:
        line["tag"] = text(record.tag)
    if record.meta is not None:
        line["meta"] = orjson.Fragment(record.meta)
    if record.delay_ms or record.priority:
        line |= {"delay_ms": record.delay_ms, "priority": record.priority}
    return line | {"data": orjson.Fragment(record.data)}


# ---- logs


def _log(path: Path, raw: bytes) -> Iterator[Line]:
    view = memoryview(raw)
    at = 0
    while at < len(raw):
        status = frame.check(view[at:])
        if status == frame.VALID:
            parsed = frame.parse(view[at : at + int.from_bytes(raw[at + 4 : at + 8], "little")])
            yield {"offset": at} | _frame(parsed)
            at += parsed.length
        elif status == frame.NONE:
            rest = raw[at:]
            zeroes = len(rest) - len(rest.lstrip(b"\0"))
            zeroes -= zeroes % 8 if zeroes < len(rest) else 0
            yield {"offset": at, "zeroes": max(zeroes, 8)}
            at += max(zeroes, 8)
        else:
            end = at + 8
            while end < len(raw) and frame.check(view[end : end + 64]) in (frame.BAD_MAGIC, frame.BAD_LENGTH):
                end += 8
            yield {"offset": at, "damage": str(frame.FrameError(status)), "bytes": min(end, len(raw)) - at}
            at = end


def _synced(path: Path, raw: bytes) -> Iterator[Line]:
    try:
        positions, wall_ms = synced.parse(path, raw)
    except synced.NewerNoteError as refused:
        yield {"offset": 0, "newer": str(refused)}
        return
    except synced.NoteError as wrong:
        yield {"offset": 0, "damage": str(wrong)}
        return
    yield {"offset": 0, "type": "synced", "ts": wall_ms, "positions": positions}


def _frame(parsed: frame.Frame) -> Line:
    line: Line = {
        "type": FRAME_TYPES.get(parsed.type, parsed.type), "length": parsed.length, "position": parsed.position, "shard": parsed.shard,
        "topic_id": parsed.topic_id, "base_seq": parsed.base_seq, "ts": parsed.ts, "synced": parsed.synced,
    }  # fmt: skip
    if parsed.key is not None:
        line["key"] = text(parsed.key)
    if parsed.records:
        return line | {"records": [shown(record) for record in parsed.records]}
    if parsed.type in JSON_BODIES:
        return line | {"body": orjson.Fragment(parsed.body.rstrip(b"\0"))}
    return line | ({"body_hex": parsed.body.hex()} if parsed.body else {})


# ---- segments


def _header(header: Header) -> Line:
    return {"part": header.kind} | {key: value for key, value in header._asdict().items() if key != "kind"}


def _newer(refused: NewerFormatError) -> Line:
    return {"offset": refused.spot.offset, "format_version": refused.version, "newer": refused.what}


def _part(kind: str) -> Callable[[Path, bytes], Iterator[Line]]:
    def show(path: Path, raw: bytes) -> Iterator[Line]:
        header = None
        try:
            newer.refuse_part(raw, kind, Spot(path))
            header = header_of(raw, kind)
        except NewerFormatError as refused:
            yield _newer(refused)
        except SegmentError as wrong:
            yield {"offset": 0, "damage": str(wrong)}
        if header is not None:
            yield {"offset": 0} | _header(header)
        yield from _SHOW[kind](raw, header)

    return show


def _data(raw: bytes, header: Header | None) -> Iterator[Line]:
    if header is None:
        return
    at, end = 128, header.part_bytes
    while at < end:
        found = frame_at(raw, at, header.topic_id)
        if found is None:
            start = at
            while at < end and frame_at(raw, at, header.topic_id) is None:
                at += 8
            yield {"offset": start, "damage": "no frame", "bytes": at - start}
            continue
        line: Line = {"offset": at, "seq": found.seq, "ts": found.ts}
        if found.kind == 1:
            yield line | {"deleted": found.flag == FLAG_DELETED} | shown(frame.parse_body(found.body, 1)[1][0])
        else:
            yield line | {"last_seq": int.from_bytes(found.body[:8], "little"), "gap": LOSS_REASONS.get(found.body[8], found.body[8])}
        at += found.bytes


def _index(raw: bytes, header: Header | None) -> Iterator[Line]:
    if header is None:
        return
    view = SegmentView(raw)
    for seq in range(view.first_seq, view.last_seq + 1):
        try:
            ts, size, flags, position = view.entry(seq)
        except SegmentError as wrong:
            yield {"seq": seq, "damage": str(wrong)}
            continue
        line: Line = {"seq": seq, "ts": ts}
        if flags & (HOLE | DELETED):
            yield line | {"gap": LOSS_REASONS.get(flags >> 8 & 0xFF, flags >> 8 & 0xFF) if flags & HOLE else "deleted"}
        else:
            yield line | {"bytes": size, "position": position, "tagged": bool(flags & 4)}


def _tags(raw: bytes, header: Header | None) -> Iterator[Line]:
    if header is None:
        return
    at, postings_at = 128, 128 + 16 * header.tags
    texts_at = postings_at + 4 * header.postings
    for row in range(header.tags):
        offset, size, first, count = (int.from_bytes(raw[at + 16 * row + k : at + 16 * row + k + 4], "little") for k in (0, 4, 8, 12))
        tag = raw[texts_at + offset : texts_at + offset + size]
        places = range(postings_at + 4 * first, min(postings_at + 4 * (first + count), len(raw)), 4)
        yield {"tag": _told(tag), "seqs": [header.first_seq + int.from_bytes(raw[k : k + 4], "little") for k in places]}


def _told(tag: bytes) -> orjson.Fragment | str:
    try:
        orjson.loads(b'"' + tag + b'"')
    except orjson.JSONDecodeError:  # damaged, or an unpaired surrogate
        return tag.decode("utf-8", "backslashreplace")
    return orjson.Fragment(b'"' + tag + b'"')


def _flags(raw: bytes, header: Header | None) -> Iterator[Line]:
    if header is not None:
        deleted = [seq for seq in range(header.first_seq, header.last_seq + 1) if raw[128 + seq - header.first_seq] == FLAG_DELETED]
        yield {"deleted": deleted}


_SHOW: dict[str, Callable[[bytes, Header | None], Iterator[Line]]] = {"data": _data, "index": _index, "tags": _tags, "flags": _flags}


# ---- packs


def _pack(path: Path, raw: bytes) -> Iterator[Line]:
    try:
        newer.refuse_pack(path, raw[: newer.PACK_BYTES], raw[-newer.PACK_BYTES :], len(raw))
        yield {"offset": 0, "pack": segment_pack.pack_number(raw)}
    except NewerFormatError as refused:
        yield _newer(refused)
        return
    except SegmentError as wrong:
        yield {"offset": 0, "damage": str(wrong)}
    try:
        places, problems = pack_places(path, raw)
    except NewerFormatError as refused:
        yield _newer(refused)
        return
    for problem in problems:
        yield {"offset": problem.offset, "damage": problem.what}
    for place in places:
        yield from _packed(place, raw)


def _packed(place: Place, raw: bytes) -> Iterator[Line]:
    yield {
        "segment": {"topic_id": place.topic_id, "first_seq": place.first_seq, "last_seq": place.last_seq},
        "data_offset": place.data.offset, "index_offset": place.index.offset, "tags_offset": place.tags.offset,
    }  # fmt: skip
    for kind, spot in (("data", place.data), ("index", place.index), ("tags", place.tags)):
        part = raw[spot.offset :]
        try:
            header = header_of(part, kind)
        except SegmentError as wrong:
            yield {"offset": spot.offset, "damage": f"{kind}: {STATUS.get(wrong.status)}"}
            continue
        yield {"offset": spot.offset} | _header(header)
        if kind == "data":
            for line in _data(part, header):
                yield line | {"offset": line["offset"] + spot.offset}
        else:
            yield from _SHOW[kind](part, header)


FORMATS: dict[bytes, Callable[[Path, bytes], Iterator[Line]]] = {
    b"TPF1": _log,
    b"TPSGDAT1": _part("data"),
    b"TPSGIDX1": _part("index"),
    b"TPSGTAG1": _part("tags"),
    b"TPSGDEL1": _part("flags"),
    b"TPPPACK1": _pack,
    b"TPSNAP": show_snapshot,
    synced.MAGIC: _synced,
}
SUFFIXES = {
    ".log": _log,
    ".data": FORMATS[b"TPSGDAT1"],
    ".idx": FORMATS[b"TPSGIDX1"],
    ".tag": FORMATS[b"TPSGTAG1"],
    ".del": FORMATS[b"TPSGDEL1"],
    ".pack": _pack,
}
