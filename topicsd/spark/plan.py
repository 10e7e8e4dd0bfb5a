"""Which pieces of which topics a query reads, cut into partitions. Nothing here needs Spark.

A batch is cut by bytes, as the manifest has them. A stream is cut by seqs alone: a batch that is replayed must be cut as it was the first time, and
all that Spark keeps of it are its offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from topicsd._native.segment_scan import GapError
from topicsd.lake.manifest import Manifest, Topic
from topicsd.lake.pieces import Piece
from topicsd.lake.scan import matches
from topicsd.spark.live import Listing, LiveTopic, Span, leading
from topicsd.spark.options import Offsets, OptionError, Options, offsets_of

log = logging.getLogger("topicsd.spark")
MADE_AGAIN = "topic %s was made again: what its epoch %s had from seq %d on, if anything, is lost"
PIECE_BYTES = 4096  # what the opening of a piece costs, in bytes read


class Extent(Protocol):
    """What offsets are made from: a topic of an export, or of a server."""

    @property
    def epoch(self) -> int: ...
    @property
    def first_seq(self) -> int: ...
    @property
    def earliest_seq(self) -> int:
        """What stands below has gone, and nothing of it is to be read but that it has."""
        ...

    @property
    def evict_floor(self) -> int: ...
    @property
    def next_seq(self) -> int: ...
    @property
    def epochs(self) -> Sequence[Extent]:
        """Itself, and before it what there still is of older topics of its name."""
        ...

    def behind_gap(self, seq: int) -> int:
        """The first seq from `seq` on that stands in no gap."""
        ...

    def there(self, first_seq: int, last_seq: int) -> Iterator[tuple[str, int, int]]:
        """What of these seqs may be records: in which file, where there are such, the first and the last one."""
        ...

    def pending_bytes(self, first_seq: int) -> int:
        """About what is to be read from first_seq on."""
        ...


Part = TypeVar("Part", Piece, Span)
T = TypeVar("T", bound=Extent)


def chosen(found: Manifest | Listing, options: Options) -> dict[str, Topic | LiveTopic]:
    """The topics that are asked for, by name."""
    return {name: found.topics[name] for name in sorted(found.topics) if matches(name, options.topics)}


def offsets(topics: Mapping[str, Extent], *, end: bool) -> Offsets:
    """Where topics begin, or end."""
    return {name: _place(topic, topic.next_seq) if end else beginning(topic) for name, topic in topics.items()}


def _place(topic: Extent, next_seq: int) -> dict[str, Any]:
    return {"epoch": f"{topic.epoch:016x}", "next_seq": next_seq}


def beginning(topic: Extent) -> dict[str, Any]:
    """The offset of a topic that is to be read from its beginning: it says what had gone by now."""
    return _moved(_place(topic, topic.first_seq) | {"earliest_seq": topic.earliest_seq, "floor": topic.evict_floor}, topic.first_seq)


def _moved(offset: dict[str, Any], next_seq: int) -> dict[str, Any]:
    """The offset at another seq: without what it has come past, or what says nothing more."""
    out = offset | {"next_seq": next_seq}
    for name, bound in (("earliest_seq", next_seq), ("floor", max(next_seq, out.get("earliest_seq", 0)))):
        if out.get(name, 0) <= bound:
            out.pop(name, None)
    return out


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
            if one["next_seq"] > topics[name].next_seq:
                raise OptionError(f"{option} names seq {one['next_seq']} of topic {name}, whose head is {topics[name].next_seq - 1}")
            out[name] = _place(topics[name], one["next_seq"])
    return out


# ---- a batch ---------------------------------------------------------------------------------------------------------------------


def batch(found: Manifest, root: Path, options: Options) -> list[list[Piece]]:
    """The partitions of a batch query of an export. Raises OptionError."""
    weighed = []
    for name, first, end, silent in _ranges(found, options):
        mine = _weighed(found.topics[name], root, first, end, options)
        weighed += [(piece, size) for piece, size in mine if not (silent and piece.evicted)]
    return _cut(weighed, options)


def live_batch(found: Listing, options: Options) -> list[list[Span]]:
    """The partitions of a batch query of a server. Raises OptionError."""
    weighed = []
    for name, first, end, silent in _ranges(found, options):
        topic = found.topics[name]
        for span in topic.spans(first, end, silent=silent):
            weighed.append((span, (0 if span.why else (span.last_seq - span.first_seq + 1) * topic.record_bytes) + PIECE_BYTES))
    return _cut(weighed, options)


def _ranges(found: Manifest | Listing, options: Options) -> Iterator[tuple[str, int, int, bool]]:
    """Of each topic the name, the first seq, the seq behind the last one, and whether what has gone by now is left out without a word.

    That is what `earliest` means to who does not ask for kinds. Who names a seq wants it.
    """
    topics = chosen(found, options)
    begin = bound(topics, options.starting, "startingOffsets")
    end = offsets(topics, end=True) if options.ending == "latest" else bound(topics, options.ending, "endingOffsets")
    for name, topic in topics.items():
        yield name, begin[name]["next_seq"], min(end[name]["next_seq"], topic.next_seq), begin[name] == beginning(topic) and not options.honest


def _cut(weighed: list[tuple[Part, int]], options: Options) -> list[list[Part]]:
    total = sum(size for _, size in weighed)
    partitions = max(-(-total // options.partition_bytes), 1)
    return list(evenly(weighed, -(-total // partitions)))


def _weighed(topic: Topic, root: Path, first_seq: int, end_seq: int, options: Options) -> Iterator[tuple[Piece, int]]:
    rows = {row.segment_first: row for row in topic.rows if row.file}
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


def initial(begin: Offsets) -> Offsets:
    """Where a stream begins, marked: Spark keeps no start of a first batch, and asks for it again when that is replayed. So its end says it."""
    return {name: one | {"initial": True} for name, one in begin.items()}


def _plain(offset: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in offset.items() if name not in ("initial", "from")}


def advanced(found: Manifest | Listing, start: Offsets, options: Options, *, records: int | None = None, size: int | None = None) -> Offsets:
    """Where the next micro-batch ends: all that there is, or each topic's share of so many records or bytes. Never behind `start`.

    The end of a first batch has in `from` where each topic began; a later one does not, unless it is the same end.
    """
    first = all("initial" in one for one in start.values())
    begin = {name: _plain(one) for name, one in start.items()}
    end = _advanced(found, begin, options, records, size)
    if first:
        return {name: one | {"from": begin.get(name, one)} for name, one in end.items()}
    return start if end == begin else end


def _advanced(found: Manifest | Listing, start: Offsets, options: Options, records: int | None, size: int | None) -> Offsets:
    """Without a word of where it began.

    A topic that is new is only given its place here, where it begins; the batch after reads it. So a batch's start says all. One that was made again
    is given its place when the export has nothing more of the old one: between the two stands a row that says so.
    """
    topics = chosen(found, options)
    out: Offsets = {name: dict(one) for name, one in start.items()}  # a topic that is gone keeps its place
    waiting: dict[str, tuple[Extent, int]] = {}
    for name, topic in topics.items():
        if name not in start:
            out[name] = beginning(topic)
            continue
        mine, after = _from(topic, int(start[name]["epoch"], 16))
        if mine is not None:
            check_head(mine, name, start[name]["next_seq"], options)
        begin = max(start[name]["next_seq"], min(start[name].get("earliest_seq", 0), mine.next_seq if mine else 0))
        if mine is not None and mine.next_seq > begin:
            waiting[name] = mine, begin
        elif begin > start[name]["next_seq"]:
            out[name] = _moved(start[name], begin)
        elif after is not None:
            out[name] = beginning(after)
            log.warning(MADE_AGAIN, name, start[name]["epoch"], start[name]["next_seq"])
    total = sum(mine.next_seq - begin for mine, begin in waiting.values())
    share = 1.0 if records is None or total <= records else records / total
    if size is not None:
        pending = sum(mine.pending_bytes(begin) for mine, begin in waiting.values())
        share = min(share, size / pending if pending > size else 1.0)
    left = total if share >= 1 else max(int(total * share), 1)
    # The longest first, at least one record each: nobody waits for ever.
    for name, (mine, begin) in sorted(waiting.items(), key=lambda item: (item[1][1] - item[1][0].next_seq, item[0])):
        backlog = mine.next_seq - begin
        took = backlog if share >= 1 else min(left, max(int(backlog * share), 1))
        if took:
            out[name] = _moved(start[name], mine.behind_gap(begin + took))
        left -= took
    return {name: out[name] for name in sorted(out)}


def check_head(topic: Extent, name: str, next_seq: int, options: Options) -> None:
    """Raise GapError when a server's head is below what was read of its epoch, unless losses are let go. An export may be an older one."""
    if not isinstance(topic, LiveTopic) or topic.next_seq >= next_seq:
        return
    why = "the server's head is below what was read of this epoch: its data was restored or made anew"
    if options.fail_on_loss:
        raise GapError(name, topic.next_seq, next_seq - 1, f"{why}; failOnDataLoss=false waits until the head has passed it")
    log.warning("topic %s, seqs %d to %d: %s", name, topic.next_seq, next_seq - 1, why)


def of_epoch(topic: T, epoch: int) -> T | None:
    """The topic, or the older one of its name, that has this epoch."""
    return next((one for one in cast("Sequence[T]", topic.epochs) if one.epoch == epoch), None)


def _from(topic: Extent, epoch: int) -> tuple[Extent | None, Extent | None]:
    """Of all that there is under a name: what is of the epoch, and what comes next; the newest one, where that is older."""
    mine = of_epoch(topic, epoch)
    after = next((one for one in topic.epochs if one.epoch > epoch), None)
    return mine, after or (topic if mine is None else None)


class Cut(NamedTuple):
    """Seqs first .. stop - 1 of a topic. Below `earliest` all had gone when the topic got its place, and below `floor` some.

    stop 0: the topic was made again under its name, and what this epoch had from `first` on is not known.
    """

    topic: str
    epoch: int
    first: int
    stop: int
    earliest: int = 0
    floor: int = 0


def cuts(start: Offsets, end: Offsets, options: Options) -> Iterator[list[Cut]]:
    """What each partition reads from start to end, by these alone."""
    group: list[Cut] = []
    weight = 0
    begin = {name: _begun(start.get(name), end[name]) for name in sorted(end)}
    for cut in (cut for name, one in begin.items() if one is not None for cut in _cuts(name, one, end[name], options)):
        seqs = 1 if cut.stop <= cut.earliest else cut.stop - cut.first
        if group and weight + seqs > options.partition_records:
            yield group
            group, weight = [], 0
        group.append(cut)
        weight += seqs
    if group:
        yield group


def _begun(start: dict[str, Any] | None, end: dict[str, Any]) -> dict[str, Any] | None:
    """Where a topic's part of a batch begins. Of a first batch its end says it; what would be a stream's beginning by now says nothing of it."""
    began: dict[str, Any] | None = start if start == end else end.get("from", start)
    return began


def _cuts(name: str, start: dict[str, Any], end: dict[str, Any], options: Options) -> Iterator[Cut]:
    epoch, first, until = int(start["epoch"], 16), int(start["next_seq"]), int(end["next_seq"])
    if start["epoch"] != end["epoch"]:  # it has been given its place
        if options.honest:
            yield Cut(name, epoch, first, 0)
        return
    earliest = int(start.get("earliest_seq", 0))
    floor = max(int(start.get("floor", 0)), earliest)
    if first < min(earliest, until):
        yield Cut(name, epoch, first, min(earliest, until), earliest, floor)
        first = min(earliest, until)
    while first < until:
        # Cuts stand at multiples of partition_records, and the groups of small ones at the same places each time.
        stop = min((first // options.partition_records + 1) * options.partition_records, until)
        yield Cut(name, epoch, first, stop, earliest, floor)
        first = stop


def stream(manifest: Manifest, root: Path, start: Offsets, end: Offsets, options: Options) -> list[list[Piece]]:
    """The partitions from start to end of an export. Raises GapError when data has gone that the offsets promise, and that is to fail."""
    return [
        [piece for cut in group for piece in stream_pieces(manifest.topics.get(cut.topic), root, cut, options)] for group in cuts(start, end, options)
    ]


def live_stream(start: Offsets, end: Offsets, options: Options) -> list[list[Span]]:
    """The partitions from start to end of a server."""
    return [live_spans(group, options) for group in cuts(start, end, options)]


def live_spans(group: Iterable[Cut], options: Options) -> list[Span]:
    """What is read of cuts of a server. What is lost of them, but for what had gone before, has gone after they were promised."""
    out: list[Span] = []
    for cut in group:
        if cut.stop:
            out += leading(Span(cut.topic, cut.first, cut.stop - 1, cut.epoch, cut.earliest, silent=not options.honest))
        else:
            out.append(Span(cut.topic, cut.first, 0, cut.epoch, why="recreated"))
    return out


def stream_pieces(topic: Topic | None, root: Path, cut: Cut, options: Options) -> Iterator[Piece]:
    """What is read of a cut of an export. Raises GapError when data has gone that is promised, and that is to fail."""
    if not cut.stop:
        yield Piece(cut.topic, cut.first, 0, None, "recreated")
        return
    mine = None if topic is None else of_epoch(topic, cut.epoch)
    pieces = [Piece(cut.topic, cut.first, cut.stop - 1, None, "missing")] if mine is None else mine.pieces(root, cut.first, cut.stop)
    for piece in pieces:
        for part in _split(piece, cut.earliest, cut.floor) if piece.evicted else (piece,):
            if part.evicted and part.last_seq < cut.earliest and not options.honest:
                continue
            lost = part.why == "missing" or (part.evicted and part.last_seq >= cut.floor)
            if lost and options.fail_on_loss:  # what was lost before the server sealed it is a row
                why = "it has gone from the export" if part.why == "missing" else f"{part.why}, before it was exported"
                raise GapError(part.topic, part.first_seq, part.last_seq, f"{why}; failOnDataLoss=false goes on without it")
            yield part


def _split(piece: Piece, *bounds: int) -> Iterator[Piece]:
    """A range in pieces that are below these seqs or not."""
    for bound in sorted(bounds):
        if piece.first_seq < bound <= piece.last_seq:
            yield replace(piece, last_seq=bound - 1)
            piece = replace(piece, first_seq=bound)
    yield piece
