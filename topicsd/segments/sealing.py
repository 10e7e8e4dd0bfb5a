"""When to seal and into what: the keeper's round over all topics; the same in one process for tests (ARCHITECTURE section 5).

Much of one topic becomes a segment with files of its own, little of many topics becomes a pack: a topic of few records must not cost files for ever.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from topicsd._native.sealer import Sealer
from topicsd._native.segment import SegmentError
from topicsd.engine.segments import LOG_FULL
from topicsd.room import NO_ROOM, free_bytes
from topicsd.segments import names
from topicsd.segments.names import PACKS
from topicsd.segments.rows import FILE, OWN, ROW

MIB = 1 << 20
Row = tuple[int, int, bytes]  # slot, topic id, struct segment_body
Publish = Callable[[list[Row]], list[str]]

ROOM_SHARE = 4  # a piece of a tail takes at most this part of what the disk has free,
PIECE_BYTES_MIN = 64 << 10  # and is tried down to this size: less is not worth three files
ROOM_MIN = ROOM_SHARE * PIECE_BYTES_MIN  # with less, what holds a full log is sealed with room that was set aside
INDEX_BYTES = 25  # of a seq in a segment's index: dead ones keep their place there
RECORD_BYTES = 64  # of a record beside its payload
LOSS_SHARE = 16  # of the log is frames that are no records, and rests of files
RECORD_WEIGHT = 256  # bytes of log: the index of so much is a tenth of it (24 B a record)


@dataclass(frozen=True)
class Policy:
    """When a tail is due and how much goes into a segment. 0: that limit never counts."""

    events_max: int = 262_144
    bytes_max: int = 64 * MIB
    age_ms_max: int = 3_600_000
    log_bytes_max: int = 0  # written to the shard behind a tail's first record: an old tail holds all of that
    only_behind: bool = False  # that alone counts
    pack_below_bytes: int = MIB  # a smaller tail goes into a pack
    pack_bytes_max: int = 64 * MIB
    pack_rows_max: int = 16_384
    publish_rows_max: int = 64  # rows in one command: the writer's step stays short


@dataclass
class Done:
    """What a round did."""

    segments: int = 0
    records: int = 0
    packs: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)  # topics whose log is not what it should be
    no_room: int = 0  # tails, or packs of them, of which not even a small piece found room, or the row none in the log
    waits: int = 0  # the same behind a file of a full log that nothing holds any more: when that one has gone there may be room


def weight(records: int, size: int) -> int:
    """Return what a tail counts for in a backlog: its bytes, and at least what its index takes of memory, seen as log."""
    return max(size, records * RECORD_WEIGHT)


class Rounds:
    """Go over all topics and seal what is due. One thread. `publish` hands rows to the writer and returns a word for each."""

    def __init__(self, sealer: Sealer, data_dir: str, publish: Publish, policy: Policy) -> None:
        self.sealer = sealer
        self.data_dir = Path(data_dir)
        self.publish = publish
        self.policy = policy
        # Never one that a snapshot may still name as to be removed.
        self.pack_number = max(self._last_pack(data_dir), time.time_ns() // 1_000_000)
        self.done = Done()
        self.skipped: set[tuple[int, int]] = set()  # their log is damaged: until the next start they are left where they are
        self.alive: Callable[[], bool] = lambda: True
        self.room: Callable[[], int] = lambda: free_bytes(data_dir)  # of the disk
        self.give: Callable[[], bool] = lambda: False  # makes more room of what was set aside for a full log; False: there is none
        self.spends = False  # what is sealed now may have of that
        # Called before the first segment of a round and between two: seconds that the last one took (0: none yet), bytes that are due still.
        # It may wait, or seal what is asked for.
        self.pace: Callable[[float, int], None] = lambda _took_s, _behind: None

    @staticmethod
    def _last_pack(data_dir: str) -> int:
        try:
            names = [path.name for path in (Path(data_dir) / PACKS).iterdir()]
        except FileNotFoundError:
            return 0
        return max((int(name[:20]) for name in names if name[:20].isdigit()), default=0)

    def next_pack(self) -> int:
        """Return the number of a pack that nobody else will write."""
        self.pack_number += 1
        return self.pack_number

    def make_room(self, behind: list[int], now_ms: int) -> Done:
        """Seal what holds the oldest file of a full log, or the next one if nothing does. behind: from a file's end to the log's, oldest first.

        Only the oldest has what was set aside: a file goes when two snapshots are newer than its last segment, and none before those in front of it.
        """
        usual, done = self.policy, Done()
        try:
            for place, bytes_behind in enumerate(behind):
                self.policy = replace(usual, only_behind=True, log_bytes_max=bytes_behind)
                self.sealer.behind = bytes_behind  # what else there is holds another file, and takes room meanwhile
                self.spends = place == 0
                done = self.round(now_ms)
                if done.no_room and not self.spends:
                    done.waits, done.no_room = done.no_room, 0
                if done.segments or done.no_room or done.waits:
                    break
        finally:
            self.policy, self.sealer.behind, self.spends = usual, 0, False
        return done

    def gains(self, log_bytes: int) -> bool:
        """Tell whether a full log of so many bytes gives back more than segments of what is live in it take: not before something was deleted."""
        records, seqs, size = self.sealer.tails()
        return size + records * RECORD_BYTES + seqs * INDEX_BYTES <= log_bytes - log_bytes // LOSS_SHARE

    def round(self, now_ms: int) -> Done:
        """Seal everything that is due now."""
        self.done = Done()
        policy, slot, small = self.policy, 0, []
        while self.alive():
            after, due = self._due(slot, 4096, now_ms)
            behind = sum(weight(records, size) for _slot, _topic_id, records, size in due)
            for found, topic_id, records, size in due:
                behind -= weight(records, size)
                if (found, topic_id) in self.skipped:
                    continue
                if size >= policy.pack_below_bytes:
                    if not self.done.segments:
                        self.pace(0.0, behind + weight(records, size))
                    self.seal(found, topic_id, now_ms, behind)
                else:
                    small.append((found, topic_id))
            if len(small) >= policy.pack_rows_max or after == slot:
                self._pack(small)
                small = []
            if after == slot:
                return self.done
            slot = after
        return self.done

    def _due(self, slot: int, slots: int, now_ms: int) -> tuple[int, list[tuple[int, int, int, int]]]:
        policy = self.policy
        sizes = (0, 0, 0) if policy.only_behind else (policy.events_max, policy.bytes_max, policy.age_ms_max)
        return self.sealer.due(slot, slots, *sizes, now_ms, policy.log_bytes_max)

    def seal(self, slot: int, topic_id: int, now_ms: int, behind: int = 0) -> None:
        """Seal a topic's tail in segments with files of their own, as long as it is due. behind: bytes due in other topics."""
        while self.alive():
            started_s = time.monotonic()
            body = self._one(slot, topic_id)
            if body is None or not self._publish_one(slot, topic_id, body):
                return
            _after, due = self._due(slot, 1, now_ms)
            self.pace(time.monotonic() - started_s, behind + sum(weight(records, size) for _slot, _topic_id, records, size in due))
            if not due:
                return

    def seal_all(self, slot: int, topic_id: int) -> None:
        """Seal whatever of a topic can be sealed: somebody asked."""
        behind, self.sealer.behind = self.sealer.behind, 0
        while self.alive():
            body = self._one(slot, topic_id)
            if body is None or not self._publish_one(slot, topic_id, body):
                break
        self.sealer.behind = behind

    def _pack(self, small: list[tuple[int, int]]) -> None:
        at = 0
        while at < len(small) and self.alive():
            rows: list[Row] = []
            for most in self._pieces(self.policy.pack_bytes_max):
                after, rows, full = self._one_pack(small, at, most)
                if not full:
                    break
            else:
                self.done.no_room += 1
                return
            at = after
            codes = list[str]()
            for first in range(0, len(rows), self.policy.publish_rows_max):
                codes += self._publish(rows[first : first + self.policy.publish_rows_max])
                if LOG_FULL in codes:
                    self._take_back(rows, codes)
                    return

    def _one_pack(self, small: list[tuple[int, int]], at: int, most: int) -> tuple[int, list[Row], bool]:
        """Build a pack of about `most` bytes: where to go on, its rows, and whether it found no room (then nothing of it is there)."""
        policy, number = self.policy, self.next_pack()
        rows: list[Row] = []
        begun = False
        slot = topic_id = 0
        try:
            self.sealer.begin_pack(number)
            begun = True
            while at < len(small) and len(rows) < policy.pack_rows_max and self.sealer.pack_bytes() < most:
                slot, topic_id = small[at]
                at += 1
                body = self.sealer.seal(slot, topic_id, policy.events_max or 1 << 30, min(policy.bytes_max or 1 << 40, most), True)
                if body is not None:
                    rows.append((slot, topic_id, body))
            if not any(body[40:44] != b"\0\0\0\0" for _slot, _id, body in rows):
                self.sealer.abort_pack()
            else:
                size = self.sealer.finish_pack().to_bytes(8, "little")
                rows = [(slot, topic_id, body[:96] + size + body[104:]) for slot, topic_id, body in rows]  # file.bytes: the pack's
                self.done.packs += 1
        except (OSError, SegmentError) as wrong:
            if begun:
                self.sealer.abort_pack()
            if isinstance(wrong, OSError) and wrong.errno in NO_ROOM:
                return at, [], True
            self._failed(slot, topic_id, wrong)
            return at, [], False
        return at, rows, False

    def _one(self, slot: int, topic_id: int) -> bytes | None:
        policy = self.policy
        for most in self._pieces(policy.bytes_max or 1 << 40):
            try:
                return self.sealer.seal(slot, topic_id, policy.events_max or 1 << 30, most)
            except (OSError, SegmentError) as wrong:
                if not isinstance(wrong, OSError) or wrong.errno not in NO_ROOM:
                    self._failed(slot, topic_id, wrong)
                    return None
        self.done.no_room += 1
        return None

    def _pieces(self, most: int) -> Iterator[int]:
        """How much to seal at a time: what the disk has room for, then less and less."""
        room = self.room()
        while room < ROOM_MIN and self.spends and self.give():
            room = self.room()
        if room < PIECE_BYTES_MIN:
            return
        most = min(most, max(room // ROOM_SHARE, PIECE_BYTES_MIN))
        yield most
        while most > PIECE_BYTES_MIN:
            most = max(most // 4, PIECE_BYTES_MIN)
            yield most
        while self.spends and self.give():
            yield most  # a batch is sealed as a whole

    def _failed(self, slot: int, topic_id: int, wrong: Exception) -> None:
        self.done.failed.append(f"topic {topic_id}: {wrong}")
        self.skipped.add((slot, topic_id))

    def _publish_one(self, slot: int, topic_id: int, body: bytes) -> bool:
        rows = [(slot, topic_id, body)]
        codes = self._publish(rows)
        if codes == [LOG_FULL]:
            self._take_back(rows, codes)
        return codes == ["published"]

    def _take_back(self, rows: list[Row], codes: list[str]) -> None:
        """The log has no room for rows: remove what was built for them, if none of it counts, or a full disk would fill with what nobody reads."""
        self.done.no_room += 1
        if set(codes) <= {LOG_FULL}:
            remove_files(self.data_dir, next((body for _slot, _topic_id, body in rows if ROW.unpack_from(body)[6]), b""))

    def _publish(self, rows: list[Row]) -> list[str]:
        codes = self.publish(rows)
        for code, (_slot, _topic_id, body) in zip(codes, rows, strict=True):
            if code == "published":
                self.done.segments += 1
                self.done.records += int.from_bytes(body[32:36], "little")
            else:
                self.done.refused[code] = self.done.refused.get(code, 0) + 1
        return codes


def remove_files(data_dir: Path, body: bytes) -> None:
    """Remove the files of a row that was never published: nobody else knows of them. What cannot be removed is an orphan."""
    if not body:
        return
    named = FILE.unpack_from(body, ROW.size)
    kind, topic_id, name, edition = named[7], named[1], named[2], named[3]
    own = names.name_of(data_dir, topic_id, name, edition)
    for path in [own.path(part) for part in names.SUFFIXES] if kind == OWN else [names.pack_path(data_dir, name)]:
        with contextlib.suppress(OSError):
            path.unlink()
