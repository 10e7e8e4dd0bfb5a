"""Where an export takes its segments from: a data directory, whether a server has it open or not. Nothing there is ever written."""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from topicsd._native.segment import SegmentView
from topicsd.engine.frames import MATCH_NONE, MATCH_PREFIX, Deletion
from topicsd.lake import state
from topicsd.lake.pieces import Piece
from topicsd.lake.scan import pieces_by_names
from topicsd.lake.state import Floors
from topicsd.segments.names import Place


@dataclass(frozen=True)
class Sealed:
    """A segment of a topic, or seqs of which the source knows why no segment holds them, and what was deleted of it since it was built."""

    piece: Piece
    marks: bytes = b""  # a bit a seq, from the segment's first one on
    deletions: tuple[Deletion, ...] = ()

    def deleted(self) -> array[int]:
        """The seqs that are to be flagged in a copy, ascending; some may have no record. Raises OSError, SegmentError."""
        place = self.piece.place
        if place is None or not (self.marks or self.deletions):
            return array("Q")
        first = place.first_seq
        out = {first + 8 * number + bit for number, byte in enumerate(self.marks) if byte for bit in range(8) if byte >> bit & 1}
        for deletion in self.deletions:
            if deletion.before_seq <= first:
                continue
            if deletion.kind == MATCH_NONE:
                out.update(range(first, min(deletion.before_seq, place.last_seq + 1)))
            else:
                out.update(seq for seq in _tagged(place, deletion) if seq < deletion.before_seq)
        return array("Q", sorted(out))


def _tagged(place: Place, deletion: Deletion) -> Iterator[int]:
    index, tags = place.index, place.tags
    with index.path.open("rb") as index_file, tags.path.open("rb") as tags_file:
        maps = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for file in (index_file, tags_file)]
    view = SegmentView(maps[0], tags=maps[1], index_offset=index.offset, tags_offset=tags.offset)
    for seqs in view.find_tags(deletion.match, prefix=deletion.kind == MATCH_PREFIX).values():
        yield from seqs


@dataclass(frozen=True)
class SourceTopic:
    """A topic and its sealed ranges, ascending. `floors`: what it has lost and deleted, as of the ranges; None where nobody knows."""

    name: str
    epoch: int
    sealed: tuple[Sealed, ...]
    floors: Floors | None = None


class Source(Protocol):
    """Lists what can be exported."""

    def topics(self) -> Iterator[SourceTopic]:
        """Every topic. Raises OSError."""
        ...


class DirectorySource:
    """A data directory: the segments that its snapshot and its log call published, less what they call deleted, evicted or expired.

    `names`: read a directory of bare segments, which has no log, by its files; topics are called by these names, by their ids else.
    """

    def __init__(self, directory: Path, names: Mapping[int, str] | None = None) -> None:
        self.directory = directory
        self._names = names

    def topics(self) -> Iterator[SourceTopic]:
        """Every topic; of bare segments, every one that has a segment. Raises OSError, NewerSnapshotError, SegmentError for a newer format.

        A directory without a log and without segments is none of a server: an export that prunes must not take it for one that has lost all.
        """
        if self._names is not None or not (self.directory / "log").is_dir():
            yield from self._bare()
            return
        for topic in state.read(self.directory):
            ranges = (topic.ranges[first] for first in sorted(topic.ranges))
            sealed = tuple(Sealed(piece, one.marks, tuple(topic.deletions)) for one in ranges for piece in _piece(topic, one))
            yield SourceTopic(topic.name, topic.topic_id, sealed, topic.floors)

    def _bare(self) -> Iterator[SourceTopic]:
        grouped: dict[int, list[Sealed]] = {}
        for piece in pieces_by_names(self.directory):
            grouped.setdefault(int(piece.topic, 16), []).append(Sealed(piece))
        if self._names is None and not grouped:
            raise FileNotFoundError(f"{self.directory}: this is no data directory: there is no log, and there are no segments")
        for topic_id, sealed in grouped.items():
            name = f"{topic_id:016x}" if self._names is None else self._names.get(topic_id)
            if name is not None:
                yield SourceTopic(name, topic_id, tuple(sealed))


def _piece(topic: state.TopicState, one: state.Range) -> Iterator[Piece]:
    if one.last_seq >= topic.floors.begin:
        yield Piece(topic.name, max(one.first_seq, topic.floors.begin), one.last_seq, one.place, one.why, None if one.place else one.last_ts)
