"""Which pieces of which topics a query reads, cut into partitions. Nothing here needs Spark.

A batch is cut by bytes, as the manifest has them. A stream is cut by seqs alone: a batch that is replayed must be cut as it was the first time, and
all that Spark keeps of it are its offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from topicsd._native.segment_scan import GapError
from topicsd.lake.manifest import Manifest, Topic
from topicsd.lake.pieces import Piece
from topicsd.lake.scan import matches
from topicsd.spark.live import Listing, LiveTopic, Span
from topicsd.spark.options import Offsets, OptionError, Options, offsets_of

PIECE_BYTES = 4096  # what the opening of a piece costs, in bytes read


class Extent(Protocol):
    """What offsets are made from: a topic of an export, or of a server."""

    @property
    def epoch(self) -> int: ...
    @property
    def first_seq(self) -> int: ...
    @property
    def next_seq(self) -> int: ...
    def pending_bytes(self, first_seq: int) -> int:
        """About what is to be read from first_seq on."""
        ...


Part = TypeVar("Part", Piece, Span)


def chosen(found: Manifest | Listing, options: Options) -> dict[str, Topic | LiveTopic]:
    """The topics that are asked for, by name."""
    return {name: found.topics[name] for name in sorted(found.topics) if matches(name, options.topics)}


def offsets(topics: Mapping[str, Extent], *, end: bool) -> Offsets:
    """Where topics begin, or end."""
    return {name: {"epoch": f"{topic.epoch:016x}", "next_seq": topic.next_seq if end else topic.first_seq} for name, topic in topics.items()}


def bound(topics: Mapping[str, Extent], told: str, option: str) -> Offsets:
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


def batch(found: Manifest, root: Path, options: Options) -> list[list[Piece]]:
    """The partitions of a batch query of an export. Raises OptionError."""
    ranges = _ranges(found, options)
    return _cut([one for name, first, end in ranges for one in _weighed(found.topics[name], root, first, end, options)], options)


def live_batch(found: Listing, options: Options) -> list[list[Span]]:
    """The partitions of a batch query of a server. Raises OptionError."""
    weighed = []
    for name, first, end in _ranges(found, options):
        topic = found.topics[name]
        weighed += [(span, (end - first) * topic.record_bytes + PIECE_BYTES) for span in topic.span(first, end)]
    return _cut(weighed, options)


def _ranges(found: Manifest | Listing, options: Options) -> Iterator[tuple[str, int, int]]:
    topics = chosen(found, options)
    begin = bound(topics, options.starting, "startingOffsets")
    end = offsets(topics, end=True) if options.ending == "latest" else bound(topics, options.ending, "endingOffsets")
    for name, topic in topics.items():
        yield name, begin[name]["next_seq"], min(end[name]["next_seq"], topic.next_seq)


def _cut(weighed: list[tuple[Part, int]], options: Options) -> list[list[Part]]:
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


def evenly(weighed: Iterable[tuple[Part, int]], target: int) -> Iterator[list[Part]]:
    """Partitions of about `target` bytes: the last one to end makes the query wait. Large pieces are cut by seqs, whose records are much alike."""
    out: list[Part] = []
    room = target
    for whole, weight in weighed:
        piece, size = whole, weight
        while size > room + target // 50:
            seqs = piece.last_seq - piece.first_seq + 1
            share = min(seqs * room // size, seqs - 1)
            if not piece.why and size > target // 20 and share > 0:
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


def advanced(found: Manifest | Listing, start: Offsets, options: Options, *, records: int | None = None, size: int | None = None) -> Offsets:
    """Where the next micro-batch ends: all that there is, or each topic's share of so many records or bytes. Never behind `start`.

    A topic that is new, or made again, is only given its place here, where it begins; the batch after reads it. So a batch's start says all.
    """
    topics = chosen(found, options)
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
        pending = sum(topics[name].pending_bytes(out[name]["next_seq"]) for name in backlog)
        share = min(share, size / pending if pending > size else 1.0)
    left = total if share >= 1 else max(int(total * share), 1)
    for name in sorted(backlog, key=lambda name: (-backlog[name], name)):  # the longest first, at least one record each: nobody waits for ever
        took = backlog[name] if share >= 1 else min(left, max(int(backlog[name] * share), 1))
        out[name]["next_seq"] += took
        left -= took
    return {name: out[name] for name in sorted(out)}


Cut = tuple[str, int, int, int]  # topic, epoch, first seq, the seq behind the last one


def cuts(start: Offsets, end: Offsets, options: Options) -> Iterator[list[Cut]]:
    """What each partition reads from start to end, by these alone."""
    group: list[Cut] = []
    weight = 0
    for name in sorted(end):
        if name not in start or start[name]["epoch"] != end[name]["epoch"]:
            continue  # it has been given its place
        epoch, first, until = int(end[name]["epoch"], 16), int(start[name]["next_seq"]), int(end[name]["next_seq"])
        while first < until:
            # Cuts stand at multiples of partition_records, and the groups of small ones at the same places each time.
            stop = min((first // options.partition_records + 1) * options.partition_records, until)
            if group and weight + stop - first > options.partition_records:
                yield group
                group, weight = [], 0
            group.append((name, epoch, first, stop))
            weight += stop - first
            first = stop
    if group:
        yield group


def stream(manifest: Manifest, root: Path, start: Offsets, end: Offsets, options: Options) -> list[list[Piece]]:
    """The partitions from start to end of an export. Raises GapError when data has gone that the offsets promise, and that is to fail."""
    return [
        [piece for cut in group for piece in stream_pieces(manifest.topics.get(cut[0]), root, cut, options)] for group in cuts(start, end, options)
    ]


def live_stream(start: Offsets, end: Offsets, options: Options) -> list[list[Span]]:
    """The partitions from start to end of a server."""
    return [live_spans(group) for group in cuts(start, end, options)]


def live_spans(group: Iterable[Cut]) -> list[Span]:
    """What is read of cuts of a server. What is lost of them has gone after they were promised."""
    return [Span(name, first, stop - 1, epoch) for name, epoch, first, stop in group]


def stream_pieces(topic: Topic | None, root: Path, cut: Cut, options: Options) -> Iterator[Piece]:
    """What is read of a cut of an export. Raises GapError when data has gone that is promised, and that is to fail."""
    name, epoch, first, stop = cut
    gone = topic is None or topic.epoch != epoch
    pieces = [Piece(name, first, stop - 1, None, "missing")] if topic is None or gone else topic.pieces(root, first, stop)
    for piece in pieces:
        if piece.why == "missing" and options.fail_on_loss:  # what was evicted or lost before it was exported is a row
            raise GapError(name, piece.first_seq, piece.last_seq, "it has gone from the export; failOnDataLoss=false goes on without it")
        yield piece
