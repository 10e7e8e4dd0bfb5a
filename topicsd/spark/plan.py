"""Which pieces of which topics a query reads, cut into partitions. Nothing here needs Spark.

A batch is cut by bytes, as the manifest has them. A stream is cut by seqs alone: a batch that is replayed must be cut as it was the first time, and
all that Spark keeps of it are its offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from topicsd._native.segment_scan import GapError
from topicsd.lake.manifest import Manifest, Topic
from topicsd.lake.pieces import Piece
from topicsd.lake.scan import matches
from topicsd.spark.options import Offsets, OptionError, Options, offsets_of

PIECE_BYTES = 4096  # what the opening of a piece costs, in bytes read


def chosen(manifest: Manifest, options: Options) -> dict[str, Topic]:
    """The topics that are asked for, by name."""
    return {name: manifest.topics[name] for name in sorted(manifest.topics) if matches(name, options.topics)}


def offsets(topics: dict[str, Topic], *, end: bool) -> Offsets:
    """Where topics begin, or end."""
    return {name: {"epoch": f"{topic.epoch:016x}", "next_seq": topic.next_seq if end else topic.first_seq} for name, topic in topics.items()}


def bound(topics: dict[str, Topic], told: str, option: str) -> Offsets:
    """The offsets that an option names. A topic that it leaves out counts as earliest. Raises OptionError."""
    if told in ("earliest", "latest"):
        return offsets(topics, end=told == "latest")
    asked = offsets_of(told, option)
    unknown = set(asked) - set(topics)
    if unknown:
        raise OptionError(f"{option} names {', '.join(sorted(unknown))}: no such topic")
    out = offsets(topics, end=False)
    for name, one in asked.items():
        if one["epoch"] in (None, out[name]["epoch"]):
            out[name]["next_seq"] = one["next_seq"]
    return out


# ---- a batch ---------------------------------------------------------------------------------------------------------------------


def batch(manifest: Manifest, root: Path, options: Options) -> list[list[Piece]]:
    """The partitions of a batch query. Raises OptionError."""
    topics = chosen(manifest, options)
    begin = bound(topics, options.starting, "startingOffsets")
    end = offsets(topics, end=True) if options.ending == "latest" else bound(topics, options.ending, "endingOffsets")
    weighed = [
        one
        for name, topic in topics.items()
        for one in _weighed(topic, root, begin[name]["next_seq"], min(end[name]["next_seq"], topic.next_seq), options)
    ]
    total = sum(size for _, size in weighed)
    partitions = max(-(-total // options.partition_bytes), 1)
    return list(evenly(weighed, -(-total // partitions)))


def _weighed(topic: Topic, root: Path, first_seq: int, end_seq: int, options: Options) -> Iterator[tuple[Piece, int]]:
    rows = {row.segment_first: row for row in topic.rows}
    for piece in topic.pieces(root, first_seq, end_seq):
        if piece.place is None:
            yield piece, PIECE_BYTES
            continue
        row = rows[piece.place.first_seq]
        if (options.since is not None and row.last_ts < options.since) or (options.until is not None and row.first_ts >= options.until):
            continue
        seqs = piece.last_seq - piece.first_seq + 1
        yield piece, (row.end_offset - row.data_offset) * seqs // (row.segment_last - row.segment_first + 1) + PIECE_BYTES


def evenly(weighed: Iterable[tuple[Piece, int]], target: int) -> Iterator[list[Piece]]:
    """Partitions of about `target` bytes: the last one to end makes the query wait. Large pieces are cut by seqs, whose records are much alike."""
    out: list[Piece] = []
    room = target
    for whole, weight in weighed:
        piece, size = whole, weight
        while size > room + target // 50:
            seqs = piece.last_seq - piece.first_seq + 1
            share = min(seqs * room // size, seqs - 1)
            if piece.place is not None and size > target // 20 and share > 0:
                out.append(replace(piece, last_seq=piece.first_seq + share - 1))
                piece, size = replace(piece, first_seq=piece.first_seq + share), size - size * share // seqs
            elif not out:
                break  # one record, or a range, that is larger than a partition
            yield out
            out, room = [], target
        out.append(piece)
        room -= size
    if out:
        yield out


# ---- a stream --------------------------------------------------------------------------------------------------------------------


def advanced(manifest: Manifest, start: Offsets, options: Options, *, records: int | None = None, size: int | None = None) -> Offsets:
    """Where the next micro-batch ends: all that there is, or each topic's share of so many records or bytes. Never behind `start`.

    A topic that is new, or made again, is only given its place here, where it begins; the batch after reads it. So a batch's start says all.
    """
    topics = chosen(manifest, options)
    out: Offsets = {name: dict(one) for name, one in start.items()}  # a topic that is gone keeps its place
    backlog: dict[str, int] = {}
    for name, topic in topics.items():
        epoch = f"{topic.epoch:016x}"
        if name not in start or start[name]["epoch"] != epoch:
            out[name] = {"epoch": epoch, "next_seq": topic.first_seq}
        elif topic.next_seq > start[name]["next_seq"]:
            backlog[name] = topic.next_seq - start[name]["next_seq"]
    total = sum(backlog.values())
    share = 1.0 if records is None or total <= records else records / total
    if size is not None:
        pending = sum(_bytes(topics[name], out[name]["next_seq"]) for name in backlog)
        share = min(share, size / pending if pending > size else 1.0)
    left = total if share >= 1 else max(int(total * share), 1)
    for name in sorted(backlog, key=lambda name: (-backlog[name], name)):  # the longest first, at least one record each: nobody waits for ever
        took = backlog[name] if share >= 1 else min(left, max(int(backlog[name] * share), 1))
        out[name]["next_seq"] += took
        left -= took
    return {name: out[name] for name in sorted(out)}


def _bytes(topic: Topic, first_seq: int) -> int:
    out = 0
    for row in topic.rows:
        if row.last_seq >= first_seq:
            seqs = row.last_seq - max(row.first_seq, first_seq) + 1
            out += (row.end_offset - row.data_offset) * seqs // (row.segment_last - row.segment_first + 1)
    return out


def stream(manifest: Manifest, root: Path, start: Offsets, end: Offsets, options: Options) -> list[list[Piece]]:
    """The partitions from start to end, cut by seqs alone. Raises GapError when data has gone that the offsets promise, and that is to fail."""
    partitions: list[list[Piece]] = []
    group: list[Piece] = []
    weight = 0
    for name in sorted(end):
        if name not in start or start[name]["epoch"] != end[name]["epoch"]:
            continue  # it has been given its place
        topic = manifest.topics.get(name)
        first, until = int(start[name]["next_seq"]), int(end[name]["next_seq"])
        if topic is not None and f"{topic.epoch:016x}" != end[name]["epoch"]:
            topic = None
        while first < until:
            # Cuts stand at multiples of partition_records, and the groups of small ones at the same places each time.
            stop = min((first // options.partition_records + 1) * options.partition_records, until)
            if group and weight + stop - first > options.partition_records:
                partitions.append(group)
                group, weight = [], 0
            group += _stream_pieces(topic, name, root, first, stop, options)
            weight += stop - first
            first = stop
    return [*partitions, group] if group else partitions


def _stream_pieces(topic: Topic | None, name: str, root: Path, first: int, stop: int, options: Options) -> Iterator[Piece]:
    pieces = [Piece(name, first, stop - 1, None, "missing")] if topic is None else topic.pieces(root, first, stop)
    for piece in pieces:
        if piece.why == "missing" and options.fail_on_loss:  # what was evicted or lost before it was exported is a row
            raise GapError(name, piece.first_seq, piece.last_seq, "it has gone from the export; failOnDataLoss=false goes on without it")
        yield piece
