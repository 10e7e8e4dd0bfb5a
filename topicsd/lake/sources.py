"""Where an export takes its segments from: a data directory, whether a server has it open or not. Nothing there is ever written."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from topicsd._native import frame
from topicsd.engine import frames
from topicsd.lake.pieces import Piece
from topicsd.lake.scan import pieces_by_names

MAGIC = b"TPF1"
_HEAD = struct.Struct("<4sIBBHIQ")
HEADER_BYTES = 64


@dataclass(frozen=True)
class SourceTopic:
    """A topic and its sealed segments, ascending."""

    name: str
    epoch: int
    pieces: tuple[Piece, ...]


class Source(Protocol):
    """Lists what can be exported."""

    def topics(self) -> Iterator[SourceTopic]:
        """Every topic that has a segment. Raises OSError."""
        ...


class DirectorySource:
    """A data directory. Names come from the topic frames of its log; segments of topics that the log does not call alive are left out.

    `names`: by topic id, instead of the log's. A directory without a log is one of bare segments: topics are called by their ids there.
    """

    def __init__(self, directory: Path, names: Mapping[int, str] | None = None) -> None:
        self.directory = directory
        self._names = names
        self.nameless = 0  # topics that the last listing has left out

    def topics(self) -> Iterator[SourceTopic]:
        """Every topic that has a segment. Raises OSError, SegmentError for a newer format."""
        names = self._names
        if names is None and (self.directory / "log").is_dir():
            names = names_in_log(self.directory)
        self.nameless = 0
        grouped: dict[int, list[Piece]] = {}
        for piece in pieces_by_names(self.directory):
            grouped.setdefault(int(piece.topic, 16), []).append(piece)
        for topic_id, pieces in grouped.items():
            name = f"{topic_id:016x}" if names is None else names.get(topic_id)
            if name is None:
                self.nameless += 1
                continue
            yield SourceTopic(name, topic_id, tuple(pieces))


def names_in_log(directory: Path) -> dict[int, str]:
    """The living topics of a log by their ids: what its frames say, damaged ones left out. Memory is bounded by the topics."""
    out: dict[int, str] = {}
    gone: set[int] = set()
    for path in sorted((directory / "log").glob("shard-*/*.log")):
        for kind, topic_id, raw in _topic_frames(path):
            if kind == frames.TOPIC_DELETE:
                gone.add(topic_id)
            else:
                out[topic_id] = frames.parse_json(frame.parse(raw).body)["name"]
    return {topic_id: name for topic_id, name in out.items() if topic_id not in gone}


def _topic_frames(path: Path) -> Iterator[tuple[int, int, bytes]]:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size == 0:
            return
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as raw:
            at = 0
            while at + HEADER_BYTES <= size:
                magic, length, kind, _flags, _shard, _count, topic_id = _HEAD.unpack_from(raw, at)
                if magic != MAGIC or length < HEADER_BYTES or length % 8 or at + length > size:
                    at = raw.find(MAGIC, at + 1)
                    while at % 8 and at >= 0:  # frames are 8-aligned
                        at = raw.find(MAGIC, at + 1)
                    if at < 0:
                        return
                    continue
                if kind in (frames.TOPIC_CREATE, frames.TOPIC_DELETE):
                    found = raw[at : at + length]
                    if frame.check(found) == 0:
                        yield kind, topic_id, found
                at += length
