"""Sealed ranges: what the writer decides about them (ARCHITECTURE section 5).

The keeper builds segments of what it sees and hands their rows over; here a row is checked, logged and published. From its FRAME_SEGMENT on the
records of its range stand in the segment; replay of the frame does the same. A delete of sealed records is a bit in the row's marks, in memory and in
snapshots: the files themselves never change.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from topicsd._native import seal_core, upkeep
from topicsd.engine import frames
from topicsd.room import NO_ROOM

if TYPE_CHECKING:
    from topicsd.engine.engine import Answer, Engine

Json = dict[str, Any]
OWN, PACK, COLD = 1, 2, 3
LOG_FULL = "no_room"  # of the log for the row: nothing says that it was there, and its file may go
_ROW = struct.Struct("<QQQQIIIIIIII")
_TIMED = 24  # first and last seq, last ts
_COUNTED = 36  # first and last seq, last ts, live bytes, live records: as they are now
_FILE = struct.Struct("<QQQQQIIIIQ")
CODES = {
    seal_core.PUBLISHED: "published",
    seal_core.DEAD: "dead",
    seal_core.OUT_OF_ORDER: "out_of_order",
    seal_core.BROKEN: "broken",
    seal_core.NO_MEMORY: "no_memory",
}


class Body(NamedTuple):
    """The fields of a struct segment_body that Python looks at."""

    first_seq: int
    last_seq: int
    has_file: bool
    kind: int
    topic_id: int  # 0 for a pack
    name: int
    edition: int
    live: int


def parse_body(raw: bytes) -> Body:
    """Decode a struct segment_body."""
    row, file = _ROW.unpack_from(raw), _FILE.unpack_from(raw, _ROW.size)
    return Body(row[0], row[1], row[6] != 0, file[7], file[1], file[2], file[3], row[4])


def identity(raw: bytes) -> tuple[int, int, int, int]:
    """Return what a row's file is known by; zeroes for a row without one."""
    parsed = parse_body(raw)
    return (parsed.kind, parsed.topic_id, parsed.name, parsed.edition) if parsed.has_file else (0, 0, 0, 0)


class Segments:
    """Publish, replay and retire. One thread, the writer's."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.exists: Callable[[tuple[int, int, int, int]], bool] = lambda _file: True  # the store sets it
        self.leaving: Callable[[], set[tuple[int, int, int, int]]] = set  # files that wait to be removed; the store sets it
        self.files: dict[tuple[int, int, int, int], int] = {}  # (kind, topic id, name, edition) -> number in the shared table
        self.wanted: dict[int, int] = {}  # slot -> topic id: somebody has asked for these to be sealed now
        self.retired: list[tuple[int, int, int, int, int]] = []  # (number, kind, topic id, name, edition): no row leads there any more
        self.cold_gone: list[tuple[int, int, int, int]] = []  # segments whose objects in the cold tier nobody needs: the keeper removes them
        self._last: tuple[bytes, int] = b"", 0  # a row's file as told, and its number
        self.published = 0  # rows, since the start
        self.not_taken: list[str] = []  # replay: rows whose files are not what they should be; their records stay in the log

    def commands(self) -> dict[str, Any]:
        """Return the commands by name."""
        return {
            "segment.publish": self._publish, "segment.replace": self._replace, "segment.unknown": self._unknown, "segment.wanted": self._wanted,
            "topic.seal": self._seal, "segment.cold_gone": self._cold_gone, "segment.cold_removed": self._cold_removed,
            "segment.may_go": self._may_go, "segment.unreadable": self._unreadable,
        }  # fmt: skip

    # ---- live --------------------------------------------------------------------------------------------------------------------

    def _publish(self, command: Json) -> Answer:
        return _answer({"codes": self.publish_all([(slot, topic_id, bytes.fromhex(row)) for slot, topic_id, row in command["rows"]])})

    def publish_all(self, rows: list[tuple[int, int, bytes]]) -> list[str]:
        """Publish rows; return what came of each. Raises OSError where a write has failed."""
        return [self._if_room(row[0], partial(self.publish, *row)) for row in rows]

    def _if_room(self, slot: int, log_row: Callable[[], str]) -> str:
        sequencer = self.engine.sequencer
        try:
            return log_row()
        except OSError as wrong:
            # After a failed write the frame may stand in the log all the same.
            if wrong.errno not in NO_ROOM or sequencer.is_poisoned(sequencer.topic(slot)["shard"]):
                raise
            return LOG_FULL

    def publish(self, slot: int, topic_id: int, body: bytes) -> str:
        """Check, log and apply one row; return what came of it."""
        sequencer = self.engine.sequencer
        topic = sequencer.topic(slot)
        if topic["topic_id"] != topic_id:
            return CODES[seal_core.DEAD]
        code = seal_core.admits(sequencer, slot, body)
        if code == seal_core.PUBLISHED and not self._is_there(body):
            code = seal_core.BROKEN
        if code == seal_core.PUBLISHED:
            self.engine.settle_cap(slot)
            first_seq = int.from_bytes(body[:8], "little")
            sequencer.log_frame(topic["shard"], frames.SEGMENT, 0, topic_id, first_seq, self.engine.clock.wall_ms(), body, True)
            self.published += 1
            code = self._apply(slot, body)
        return CODES[code]

    def _replace(self, command: Json) -> Answer:
        rows = [(slot, topic_id, bytes.fromhex(old), bytes.fromhex(new)) for slot, topic_id, old, new in command["rows"]]
        return _answer({"codes": [self._if_room(row[0], partial(self.replace, *row)) for row in rows]})

    def replace(self, slot: int, topic_id: int, old: bytes, new: bytes) -> str:
        """Let a row lead into another file of the same range, if it still leads where `old` says; return what came of it.

        What is deleted in the row stays so, whatever the new file says: a delete that came while it was made is not forgotten. A new row without a
        file drops one of which nothing is left.
        """
        sequencer = self.engine.sequencer
        parsed = parse_body(new)
        row = upkeep.row_of(sequencer, slot, parsed.first_seq, parsed.last_seq) if sequencer.topic(slot)["topic_id"] == topic_id else None
        if row is None or identity(row) != identity(old):
            return CODES[seal_core.DEAD]
        if not parsed.has_file:
            return self._drop(slot, topic_id, row)
        if parsed.kind == COLD and self._is_needed_hot(slot, parsed.last_seq):
            return "needed"
        if (parsed.kind != PACK and identity(new) in self.files) or not self._is_there(new):
            return CODES[seal_core.BROKEN]
        body = row[:_COUNTED] + new[_COUNTED:]
        topic = sequencer.topic(slot)
        sequencer.log_frame(topic["shard"], frames.SEGMENT, 0, topic_id, parsed.first_seq, self.engine.clock.wall_ms(), body, True)
        self.published += 1
        return "replaced" if self._lead(slot, body) else CODES[seal_core.NO_MEMORY]

    def _drop(self, slot: int, topic_id: int, row: bytes) -> str:
        """Let a row of which the keeper has found every record deleted lead nowhere: its file goes as any file goes, after two snapshots."""
        sequencer, parsed = self.engine.sequencer, parse_body(row)
        if not parsed.has_file or not upkeep.is_dead(sequencer, slot, parsed.first_seq, parsed.last_seq):
            return CODES[seal_core.BROKEN]
        body = row[:_TIMED].ljust(len(row), b"\0")
        shard = sequencer.topic(slot)["shard"]
        sequencer.log_frame(shard, frames.SEGMENT, 0, topic_id, parsed.first_seq, self.engine.clock.wall_ms(), body, True)
        self.published += 1
        upkeep.let_go(sequencer, slot, parsed.first_seq, parsed.last_seq)
        return "dropped"

    def _is_needed_hot(self, slot: int, last_seq: int) -> bool:
        """Does this process read these records itself? It never waits for the cold tier: queues, and what a router has not copied yet, stay hot."""
        topic = self.engine.sequencer.topic(slot)
        if self.engine.config(slot).type == "queue":
            return True
        cursor = self.engine.routers.lowest_cursor(topic["topic_id"])
        return cursor is not None and cursor < last_seq

    def cold_through(self, slot: int) -> int:
        """Return the last seq of a topic that stands in the cold tier, 0 none."""
        rows = [parse_body(body) for body in seal_core.rows(self.engine.sequencer, slot)]
        return max((row.last_seq for row in rows if row.has_file and row.kind == COLD), default=0)

    def _may_go(self, command: Json) -> Answer:
        """May a row's data go to the cold tier? Asked before it is copied, and again when the row is replaced."""
        slot, topic_id, last_seq = command["slot"], command["topic_id"], command["last_seq"]
        return _answer({"may": self.engine.sequencer.topic(slot)["topic_id"] == topic_id and not self._is_needed_hot(slot, last_seq)})

    def _cold_gone(self, _command: Json) -> Answer:
        return _answer({"files": self.cold_gone})

    def _cold_removed(self, command: Json) -> Answer:
        removed = {tuple(file) for file in command["files"]}
        self.cold_gone = [file for file in self.cold_gone if file not in removed]
        return _answer({})

    def _unreadable(self, command: Json) -> Answer:
        """The keeper has counted what of topics no reader can have: shown counts leave it out. Nothing else goes by it."""
        for slot, topic_id, records, size in command["topics"]:
            upkeep.set_unreadable(self.engine.sequencer, slot, topic_id, records, size)
        return _answer({})

    def _lead(self, slot: int, body: bytes) -> bool:
        number = self.file_of(body)
        if not number or not upkeep.replace(self.engine.sequencer, slot, body, number):
            return False
        self.engine.owed.again(slot)
        return True

    def _unknown(self, command: Json) -> Answer:
        """Which of some files does nobody speak of? One with files of its own may be hot or cold."""
        self.collect()
        known = set(self.files) | self.leaving() | {gone[1:] for gone in self.retired}
        asked = [tuple(file) for file in command["files"]]
        return _answer({"files": [file for file in asked if file not in known and not (file[0] == OWN and (COLD, *file[1:]) in known)]})

    def _is_there(self, body: bytes) -> bool:
        """What the row leads to stands on the disk: a row is never published for files that have gone meanwhile."""
        parsed = parse_body(body)
        if not parsed.has_file:
            return True
        key = (parsed.kind, parsed.topic_id, parsed.name, parsed.edition)
        number = self.files.get(key, 0)
        if number and not seal_core.file_rows(self.engine.sequencer, number):
            return False  # all rows that led there have gone again before this one came: it waits to be removed
        return self.exists(key)

    def file_of(self, body: bytes) -> int:
        """Return the number of the file that a row leads into, 0 when the table of files is full."""
        number = self._last[1] if self._last[0] == body[_ROW.size :] else 0  # the rows of a pack come one after another
        if number:
            return number
        parsed = parse_body(body)
        key = (parsed.kind, parsed.topic_id, parsed.name, parsed.edition)
        number = self.files.get(key, 0) or seal_core.take_file(self.engine.sequencer, body)
        if number:
            self.files[key] = number
            self._last = body[_ROW.size :], number
        return number

    def _apply(self, slot: int, body: bytes) -> int:
        sequencer, parsed = self.engine.sequencer, parse_body(body)
        number = 0
        key = (parsed.kind, parsed.topic_id, parsed.name, parsed.edition)
        if parsed.has_file:
            number = self.file_of(body)
            if not number:
                return seal_core.NO_MEMORY
        code = seal_core.publish(sequencer, slot, body, number)
        if code != seal_core.PUBLISHED and number and not seal_core.file_rows(sequencer, number):
            del self.files[key]
            self._last = b"", 0
            seal_core.free_file(sequencer, number)
        return code

    def _seal(self, command: Json) -> Answer:
        """Ask the keeper for a topic; answer how far it is sealed and how far it could be."""
        slot = self.engine.existing(command["topic"])
        if command.get("ask", True):
            self.engine.settle_time(slot)
            with contextlib.suppress(OSError):  # read-only: a later one tells it
                self.engine.settle_cap(slot)
        topic = self.engine.sequencer.topic(slot)
        if command.get("ask", True):
            self.wanted[slot] = topic["topic_id"]
        sealed = seal_core.sealed_through(self.engine.sequencer, slot)
        return _answer({"sealed_seq": sealed, "head_seq": topic["head"], "earliest_seq": topic["earliest"], "epoch": topic["topic_id"]})

    def _wanted(self, _command: Json) -> Answer:
        wanted, self.wanted = self.wanted, {}
        return _answer({"topics": list(wanted.items())})

    # ---- files that go -------------------------------------------------------------------------------------------------------------

    def collect(self) -> list[tuple[int, int, int, int, int]]:
        """Take note of the files that no row leads into any more; return all that wait to be removed."""
        for gone in seal_core.take_retired(self.engine.sequencer):
            self.files.pop(gone[1:], None)
            self._last = b"", 0
            self.retired.append(gone)
        return self.retired

    # ---- replay ----------------------------------------------------------------------------------------------------------------------

    def replay(self, slot: int, topic_id: int, body: bytes) -> None:
        """Do again what a FRAME_SEGMENT did. A row whose file is not there leaves its records where they are: in the log."""
        parsed = parse_body(body)
        number = self.files.get(identity(body), 0)
        if number and not seal_core.file_rows(self.engine.sequencer, number):
            self.collect()  # an earlier shard's rows have led there, and its topics have gone: this row begins anew
        row = upkeep.row_of(self.engine.sequencer, slot, parsed.first_seq, parsed.last_seq)
        if row is not None and not parsed.has_file:
            # Where not all of it is known to be deleted now, the disk has damaged what said so: the row stays, and so does its file.
            upkeep.let_go(self.engine.sequencer, slot, parsed.first_seq, parsed.last_seq)
            return
        if row is not None and self._is_there(body) and self._lead(slot, body):
            return
        code = seal_core.BROKEN if row is not None else seal_core.admits(self.engine.sequencer, slot, body)
        if code == seal_core.PUBLISHED and not self._is_there(body):
            code = seal_core.BROKEN
        if code == seal_core.PUBLISHED:
            code = self._apply(slot, body)
        if code == seal_core.PUBLISHED:
            self.engine.sequencer.like_file(body, self.file_of(body) if parsed.has_file else 0)
        if code not in (seal_core.PUBLISHED, seal_core.DEAD):
            self.not_taken.append(f"topic {topic_id}, seqs {parsed.first_seq}-{parsed.last_seq}: {CODES[code]}")


def _answer(body: Json) -> Answer:
    from topicsd.engine.engine import Answer

    return Answer(body)
