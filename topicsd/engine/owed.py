"""Deletes that could not reach all of what they name: the index, the tags or the files of a sealed range were damaged or away when they came.

What was deleted must not come back when the index is made again, or with a file that is put back. So such a delete is kept, and done once more
whenever a row of its topic comes to lead into another file, at a start, and when a file that somebody has found damaged is not what it was; doing it
twice changes nothing. Of a row that could not be opened nothing is read until then (ROW_OWES of layout.h). Its DELETE frame is in the log; a
snapshot keeps it in a section of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import structlog

from topicsd import limits
from topicsd._native import upkeep
from topicsd.engine import frames
from topicsd.engine.frames import Deletion
from topicsd.engine.sections import Row

if TYPE_CHECKING:
    from topicsd.engine.engine import Engine

log = structlog.get_logger("engine")
LOOK_MS = 100  # at files that are damaged, while a delete is owed: a row that owes one is read again at most about so long after its file is back


class Owed:
    """By topic id, in the order in which they came. One thread, the writer's."""

    name = "owed"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.by_topic: dict[int, list[Deletion]] = {}
        self.slots: dict[int, int] = {}  # of those topics
        self.damaged: Callable[[], object] = lambda: None  # the files that somebody has found damaged, as they stand on the disk: the store's
        self._seen: object = None
        self._look_at_ms = 0

    def delete(self, slot: int, deletion: Deletion) -> int:
        """Delete what matches; keep the delete when some of it could not be looked at. Return how many records went."""
        sequencer = self.engine.sequencer
        missed = upkeep.missed(sequencer)
        deleted = int(sequencer.delete_matching(slot, deletion.kind, deletion.match, deletion.before_seq))
        if upkeep.missed(sequencer) != missed:
            self._keep(slot, deletion)
        return deleted

    def _keep(self, slot: int, deletion: Deletion) -> None:
        topic_id = self.engine.sequencer.topic(slot)["topic_id"]
        owed = self.by_topic.setdefault(topic_id, [])
        self.slots[topic_id] = slot
        for known in owed:
            if (known.kind, known.match) == (deletion.kind, deletion.match) and known.before_seq >= deletion.before_seq:
                return
        owed[:] = [known for known in owed if (known.kind, known.match) != (deletion.kind, deletion.match)]
        owed.append(deletion)
        if len(owed) > limits.OWED_DELETES_MAX:
            gone = owed.pop(0)
            log.error(
                "a delete is forgotten: what it could not reach may come back when its index is made again", match=gone.match.decode(errors="replace")
            )

    def again(self, slot: int) -> None:
        """A row of this topic leads into another file, or its file may be another: do what could not be done. Then readers have it again."""
        sequencer = self.engine.sequencer
        owed = self.by_topic.pop(sequencer.topic(slot)["topic_id"], [])
        if owed:
            upkeep.owed_begins(sequencer, slot)
            for deletion in owed:
                self.delete(slot, deletion)
            upkeep.owed_ends(sequencer, slot)

    def again_all(self) -> None:
        """Do what can be done by now of all that is owed."""
        for topic_id in list(self.by_topic):
            slot = self.slots.get(topic_id)
            if slot is None or self.engine.sequencer.topic(slot)["topic_id"] != topic_id:
                self.forget(topic_id)
            else:
                self.again(slot)

    def tick(self) -> None:
        """Do it once more when a file that was damaged, or away, is another now, or sound."""
        mono_ms = self.engine.clock.mono_ms()
        if not self.by_topic or mono_ms < self._look_at_ms:
            return
        self._look_at_ms = mono_ms + LOOK_MS
        seen = self.damaged()
        if seen != self._seen:
            self._seen = seen
            self.again_all()

    def forget(self, topic_id: int) -> None:
        """The topic has gone."""
        self.by_topic.pop(topic_id, None)
        self.slots.pop(topic_id, None)

    # ---- snapshots -------------------------------------------------------------------------------------------------------------------

    def rows(self) -> Iterator[Row]:
        """Yield a row for each topic with such deletes."""
        for topic_id, owed in self.by_topic.items():
            members = {"deletes": [[each.before_seq, each.kind, each.match.hex()] for each in owed]}
            yield Row(topic_id, 0, 0, frames.json_body(members))

    def load(self, row: Row) -> None:
        """Take a topic's deletes back. Raises ValueError for a body that is none of ours."""
        deletes = frames.parse_json(row.body)["deletes"]
        slot = self.engine.sequencer.slot_of(row.key)
        if slot is not None:
            self.slots[row.key] = slot
        self.by_topic[row.key] = [Deletion(before_seq, kind, bytes.fromhex(match)) for before_seq, kind, match in deletes]
