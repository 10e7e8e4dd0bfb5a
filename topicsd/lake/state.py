"""What a data directory says of its topics: the newest snapshot and the log behind it, read while a server may write them. Nothing is kept open.

Only what an export needs: names, which segments count, what has been deleted of them since they were built, floors. Frames that are damaged, or not
whole yet, are left out: the next run sees them.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from topicsd import snapshot
from topicsd._native import frame
from topicsd.engine import frames
from topicsd.engine.frames import Deletion
from topicsd.segments import names
from topicsd.segments.cold import ColdError, cold_name
from topicsd.segments.cold_tier import KnownCold, open_tier
from topicsd.segments.names import Name, Place, Spot
from topicsd.segments.rows import BODY_BYTES, COLD, FILE, ROW, TOPIC_BYTES, bodies_of, topics_of

MAGIC = b"TPF1"
HEADER_BYTES = 64
TRIES = 3  # a checkpoint may remove what was listed a moment ago
REASONS = {0: "deleted", 1: "cap", 2: "ttl", 3: "mixed", 4: "recreated", 5: "source_trim", 6: "corrupt"}
_HEAD = struct.Struct("<4sIBBHIQQQQQ")  # up to `position`
_FLOORS, _FLOORS_AT = struct.Struct("<6Q"), 88  # head, earliest, cap_lost, ttl_lost, hole_lost, hole_reason
_WANTED = {frames.START, frames.TOPIC_CREATE, frames.TOPIC_DELETE, frames.DELETE, frames.FLOOR, frames.SEGMENT}


class ColdPlaceError(OSError):
    """Say that a segment's data can not be read from here."""


@dataclass(frozen=True)
class Range:
    """Sealed seqs of a topic. Without a place: why there is none, "deleted" or the reason of a hole. `marks`: a bit a seq that was deleted later."""

    first_seq: int
    last_seq: int
    last_ts: int
    place: Place | None
    why: str = ""
    marks: bytes = b""


@dataclass(frozen=True)
class Floors:
    """What a topic has lost, by the highest seq of each kind, and where it begins: what stands between was deleted."""

    earliest: int = 1  # as of the snapshot: nothing below was live
    deleted_below: int = 1  # since then: all that stood below was deleted
    cap_lost: int = 0
    ttl_lost: int = 0
    hole_lost: int = 0
    hole_reason: str = ""

    @property
    def lost(self) -> int:
        """The highest seq that was lost: the evict floor is the one behind it."""
        return max(self.cap_lost, self.ttl_lost, self.hole_lost)

    @property
    def begin(self) -> int:
        """Segments count from here on; what was deleted since the snapshot is flagged in their copies."""
        return max(self.earliest, self.lost + 1)

    @property
    def live(self) -> int:
        """Nothing below is live."""
        return max(self.begin, self.deleted_below)

    def why(self, first_seq: int) -> str:
        """The reason of a gap that begins at first_seq, as diff names it."""
        reasons = {"cap"} if self.cap_lost >= first_seq else set()
        reasons |= {"ttl"} if self.ttl_lost >= first_seq else set()
        reasons |= {self.hole_reason} if self.hole_lost >= first_seq else set()
        return reasons.pop() if len(reasons) == 1 else "mixed"


@dataclass
class TopicState:
    """A living topic."""

    name: str
    topic_id: int
    floors: Floors = Floors()
    ranges: dict[int, Range] = field(default_factory=dict)  # by first seq
    deletions: list[Deletion] = field(default_factory=list)  # since the snapshot


class _Frame(NamedTuple):
    kind: int
    topic_id: int
    base_seq: int
    position: int
    body: bytes


def read(data_dir: Path) -> list[TopicState]:
    """The living topics, by id. Raises NewerSnapshotError, OSError."""
    for left in reversed(range(TRIES)):
        try:
            return _read(data_dir)
        except FileNotFoundError:
            if not left:
                raise
    return []


def _read(data_dir: Path) -> list[TopicState]:
    found, _ = snapshot.newest(data_dir)
    topics: dict[int, TopicState] = {}
    moment: list[int] = []
    if found is not None:
        moment = list(found.header["moment"])
        known: set[int] = set()
        for layer in found.layers:
            topics |= {topic.topic_id: topic for topic in _packed(layer.sections["topics"], data_dir, known)}
            known |= {*topics, *layer.gone}
    for folder in sorted((data_dir / "log").glob("shard-[0-9][0-9]")):
        shard = int(folder.name[-2:])
        for one in frames_of(folder, moment[shard] if shard < len(moment) else 0):
            _apply(topics, one, data_dir)
    return [topics[topic_id] for topic_id in sorted(topics)]


def _apply(topics: dict[int, TopicState], one: _Frame, data_dir: Path) -> None:
    if one.kind == frames.TOPIC_CREATE:
        topics[one.topic_id] = TopicState(frames.parse_json(one.body)["name"], one.topic_id)
        return
    topic = topics.get(one.topic_id)
    if topic is None:
        return
    if one.kind == frames.TOPIC_DELETE:
        del topics[one.topic_id]
    elif one.kind == frames.DELETE:
        deletion = frames.parse_delete(one.body)
        topic.deletions.append(deletion)
        if deletion.kind == frames.MATCH_NONE:
            topic.floors = replace(topic.floors, deleted_below=max(topic.floors.deleted_below, min(deletion.before_seq, one.base_seq + 1)))
    elif one.kind == frames.FLOOR:
        ttl_lost, cap_lost = frames.parse_floor(one.body)
        was = topic.floors
        topic.floors = replace(was, cap_lost=max(was.cap_lost, cap_lost), ttl_lost=max(was.ttl_lost, ttl_lost))
    elif one.kind == frames.SEGMENT:
        _take(topic, range_of(one.body[:BODY_BYTES], one.topic_id, data_dir))


def _take(topic: TopicState, made: Range) -> None:
    old = topic.ranges.get(made.first_seq)
    # A row that stands in an older one's place: what was marked there stays deleted.
    marks = old.marks if old is not None and old.last_seq == made.last_seq else b""
    if old is None and _begins_late(topic, made.first_seq):
        topic.floors = replace(topic.floors, deleted_below=made.first_seq)
    topic.ranges[made.first_seq] = Range(made.first_seq, made.last_seq, made.last_ts, made.place, made.why, made.marks or marks)


def _begins_late(topic: TopicState, first_seq: int) -> bool:
    """Whether a new range begins behind seqs that deletes by tag took before anything sealed them: then nothing below it was live."""
    last = next(reversed(topic.ranges.values()), None)
    if first_seq <= max(topic.floors.live, last.last_seq + 1 if last else 1):
        return False
    return any(one.before_seq >= first_seq for one in topic.deletions if one.kind != frames.MATCH_NONE)


def range_of(body: bytes, topic_id: int, data_dir: Path) -> Range:
    """Decode a struct segment_body."""
    first, last, last_ts, _, _, _, has_file, flags, data_at, index_at, tags_at, _ = ROW.unpack_from(body)
    _, file_topic, name, edition, _, _, _, kind, _, _ = FILE.unpack_from(body, ROW.size)
    if not has_file:
        return Range(first, last, last_ts, None, REASONS.get(flags >> 8 & 0xFF, "corrupt"))
    if kind == 1:
        return Range(first, last, last_ts, names.place_of(names.name_of(data_dir, file_topic, name, edition), last))
    if kind == COLD:
        hot = names.name_of(data_dir, file_topic, name, edition)
        place = names.place_of(hot, last)
        return Range(first, last, last_ts, Place(Spot(cold_path(data_dir, hot)), place.index, place.tags, topic_id, first, last))
    path = names.pack_path(data_dir, name)
    spots = (Spot(path, data_at * 8), Spot(path, index_at * 8), Spot(path, tags_at * 8))
    return Range(first, last, last_ts, Place(*spots, topic_id, first, last, (index_at - data_at) * 8))


@lru_cache(maxsize=4)
def _tier(folder: str, data_dir: Path) -> KnownCold:
    return open_tier(folder, data_dir)


def cold_path(data_dir: Path, name: Name) -> Path:
    """Where the data part of a cold segment stands: below TOPICS_COLD_DIR, as the server has it, or here if restored. Raises ColdPlaceError."""
    if name.path("data").exists():
        return name.path("data")
    folder = os.environ.get("TOPICS_COLD_DIR", "")
    if not folder or len(urlsplit(folder).scheme) > 1:
        why = "its data part is in the cold tier: set TOPICS_COLD_DIR as the server has it (a folder; objects of a store are not read)"
        raise ColdPlaceError(f"{name.path('data').relative_to(data_dir)}: {why}")
    try:
        _tier(folder, data_dir).believe()
    except ColdError as wrong:
        raise ColdPlaceError(f"{folder}: {wrong}") from wrong
    return Path(folder) / cold_name(name)


def _packed(section: memoryview, data_dir: Path, known: set[int]) -> Iterator[TopicState]:
    """The topics of a snapshot's section (docs/format/snapshot.md), but for those that a newer layer has or knows to be gone."""
    for topic_id, row in topics_of(section):
        if topic_id in known:
            continue
        _, earliest, cap_lost, ttl_lost, hole_lost, hole_reason = _FLOORS.unpack_from(row, _FLOORS_AT)
        floors = Floors(max(earliest, 1), 1, cap_lost, ttl_lost, hole_lost, REASONS.get(hole_reason, "mixed") if hole_lost else "")
        name_bytes, bodies = bodies_of(row)
        topic = TopicState(str(row[TOPIC_BYTES : TOPIC_BYTES + name_bytes], "utf-8"), topic_id, floors)
        marks_at = bodies.stop
        for at in bodies:
            body = bytes(row[at : at + BODY_BYTES])
            one = range_of(body, topic_id, data_dir)
            if ROW.unpack_from(body)[-1]:
                marks_bytes = (one.last_seq - one.first_seq) // 64 * 8 + 8
                one = Range(one.first_seq, one.last_seq, one.last_ts, one.place, one.why, bytes(row[marks_at : marks_at + marks_bytes]))
                marks_at += marks_bytes
            topic.ranges[one.first_seq] = one
        yield topic


def frames_of(folder: Path, moment: int) -> list[_Frame]:
    """The frames of a shard's log that matter here, from position `moment` on, in order. Raises OSError."""
    out: list[_Frame] = []
    for path in sorted(folder.glob("*.log")):
        for one in _walk(path, moment):
            if one.kind == frames.START:
                previous_end = int.from_bytes(one.body[:8], "little")
                out = [older for older in out if older.position < previous_end]  # what stood above was never published
            else:
                out.append(one)
    return out


def _walk(path: Path, moment: int) -> Iterator[_Frame]:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size == 0:
            return
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as raw:
            at = 0
            while at + HEADER_BYTES <= size:
                magic, length, kind, _, _, _, topic_id, base_seq, _, _, position = _HEAD.unpack_from(raw, at)
                if magic != MAGIC or length < HEADER_BYTES or length % 8 or at + length > size:
                    at = raw.find(MAGIC, at + 1)
                    while at % 8 and at >= 0:  # frames are 8-aligned
                        at = raw.find(MAGIC, at + 1)
                    if at < 0:
                        return
                    continue
                if kind in _WANTED and (position >= moment or kind == frames.START):
                    whole = raw[at : at + length]
                    if frame.check(whole) == 0:
                        yield _Frame(kind, topic_id, base_seq, position, whole[HEADER_BYTES:])
                at += length
