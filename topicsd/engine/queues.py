"""What queues need of Python: dead letters, their way back, and what recovery leaves to do (A §10.6, D §10.7; CLARIFICATIONS, Queues).

Claims, acks, releases and extends never come here: they are `_native/queue_core.pyx`. A record moves from one topic to another in two frames:

1. its append to the other topic, whose idempotency key names where it comes from (struct letter_key);
2. a lease frame in its old topic's shard that removes it.

In one shard the second is never on the disk without the first; else the first is synced before the second is written. A death between the two leaves
the record in both: recovery finds the key of the first, sees that the record is still live in its old topic, and removes it there.
"""

from __future__ import annotations

import json
import re
import struct
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from topicsd import limits
from topicsd._native import frame, work
from topicsd._native.reader import Busy, Gone, IoError, Reader
from topicsd.engine import frames
from topicsd.engine.sections import Row
from topicsd.errors import Invalid, NotAQueue, Pressure, StorageReadOnly, TopicFull, TopicNotFound, TopicsError
from topicsd.topic_config import TopicConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from topicsd._native.regions import Shared
    from topicsd.engine.engine import Answer, Engine

Json = dict[str, Any]
Moved = tuple[bytes, "bytes | None", "bytes | None", "bytes | None"]  # data, meta, tag, node as stored

log = structlog.get_logger("queues")

FROM, DELIVERIES, SOURCE_SEQ = "$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq"
OUTCOME_FULL, OUTCOME_TOO_LARGE, OUTCOME_READ_ONLY = 2, 3, 4  # enum outcome of layout.h
_MEMBER = re.compile(rb'("(?:[^"\\]|\\.)*")\s*:\s*"(?:[^"\\]|\\.)*"')
_KEY = struct.Struct("<QQQ")
_LEASE = struct.Struct("<BBHIQQQ")
_TOKEN = 1 << 63  # of appends of our own; a worker's tokens come by rings


class Queues:
    """Move dead letters and bring them back; take the work state back from snapshots. One thread, the writer's."""

    name = "jobs"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.shared: Any = None  # where records are read from: open_reader
        self.directory = ""
        self.stuck: dict[int, int] = {}  # slot -> topic id of queues whose dead letters could not go yet
        self.failures = 0  # moves of dead letters that failed for another reason than a full topic
        self._reader: Reader | None = None
        self.lost = 0
        self._retry_at_ms = 0

    def commands(self) -> dict[str, Callable[[Json], Answer]]:
        """Return the commands by name."""
        return {"queue.redrive": self._redrive, "queue.unreadable": self._unreadable}

    def open_reader(self, shared: Shared, directory: str) -> None:
        """Say where records are read from."""
        self.shared, self.directory, self._reader = shared, directory, None

    def sweep(self) -> None:
        """Unmap files that have been retired."""
        if self._reader is not None:
            self._reader.sweep()

    # ---- turns, time -------------------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Move the dead letters that claims have met, then answer those claims."""
        sequencer = self.engine.sequencer
        while (slot := sequencer.deferred_slot()) is not None:
            self.bury(slot)
            sequencer.answer_deferred()

    def tick(self) -> None:
        """Let leases and delays end; now and then try the dead letters again that found no room."""
        sequencer, now_ms = self.engine.sequencer, self.engine.clock.mono_ms()
        sequencer.settle_queues()
        if not self.stuck or now_ms < self._retry_at_ms:
            return
        self._retry_at_ms = now_ms + limits.DEAD_LETTER_RETRY_MS
        for slot, topic_id in list(self.stuck.items()):
            del self.stuck[slot]
            if sequencer.topic(slot)["topic_id"] == topic_id:
                self.bury(slot)

    def recover(self, noted: Callable[[Callable[[], None]], None] = lambda note: note()) -> None:
        """After replay: finish the moves that a death has cut in two. noted: has the log take what is noted of each."""
        sequencer = self.engine.sequencer
        sequencer.open_queues(self.engine.clock.wall_ms())
        for slot, seq, verb in sequencer.unremoved_letters():
            noted(partial(self._remove, slot, verb, [seq]))

    # ---- snapshots -------------------------------------------------------------------------------------------------------------------

    def load(self, row: Row) -> None:
        """Take a queue's work state back. Raises ValueError for a body that is none of ours."""
        sequencer = self.engine.sequencer
        slot = sequencer.slot_of(row.key)
        if slot is not None and self.engine.config(slot).type == "queue":
            sequencer.load_jobs(slot, row.body, row.position, self.engine.clock.wall_ms(), self.engine.clock.mono_up_ms())

    # ---- dead letters ------------------------------------------------------------------------------------------------------------

    def bury(self, slot: int) -> None:
        """Move a queue's jobs that were delivered too often to its dead-letter topic.

        Full: they stay, neither ready nor handed out, until there is room. Not writable for another reason: they count as ready, and are tried again.
        """
        sequencer = self.engine.sequencer
        due = sequencer.stuck_jobs(slot)
        if not due:
            return
        config, topic = self.engine.config(slot), sequencer.topic(slot)
        spared = [seq for seq, deliveries in due if config.dead_letter is None or not config.max_deliveries or deliveries < config.max_deliveries]
        sequencer.unstick(slot, spared, False)
        if config.dead_letter is None or len(spared) == len(due):
            return
        name, begun_ms, kept = sequencer.topic_name(slot).decode(), self.engine.clock.mono_ms(), set(spared)
        for seq, deliveries in due:
            if seq in kept:
                continue
            if self.engine.clock.mono_ms() - begun_ms > limits.MOVE_MS_MAX:
                self.stuck[slot], self._retry_at_ms = topic["topic_id"], 0  # the rest stay where they are until the next tick
                return
            outcome = self._bury_one(slot, topic, name, config.dead_letter, seq, deliveries)
            if outcome is None:
                continue
            if not self.stuck:
                self._retry_at_ms = self.engine.clock.mono_ms() + limits.DEAD_LETTER_RETRY_MS
            self.stuck[slot] = topic["topic_id"]
            if outcome != OUTCOME_FULL:
                self.failures += 1
                if self.failures & (self.failures - 1) == 0:  # the first, the second, the fourth ...
                    log.warning("dead letters cannot be written", queue=name, dead_letter=config.dead_letter, failures=self.failures)
                sequencer.unstick(slot, [each for each, _ in sequencer.stuck_jobs(slot)], True)
            return

    def _bury_one(self, slot: int, topic: Json, name: str, target_name: str, seq: int, deliveries: int) -> int | None:
        """Move one job; return None when it is done, else the outcome that stands in its way."""
        try:
            record = self._read(slot, topic["topic_id"], seq)
            if record is None:  # its time to live is over, and the next sweep takes it; or it can not be read
                self.lose(slot, [seq])
                return None
            target = self._target(target_name)
            data, meta, tag, node = record
            letter = data, _with_provenance(meta, name, deliveries, seq), tag, node
            return self._move(slot, topic, seq, work.BURY, target, letter)
        except (OSError, TopicsError, Busy, Gone):
            return OUTCOME_READ_ONLY

    def _target(self, name: str) -> int:
        slot = self.engine.sequencer.find(name.encode())
        return self.engine.create(name.encode(), TopicConfig(), by_write=True) if slot is None else int(slot)

    # ---- jobs that can not be read -------------------------------------------------------------------------------------------------

    def _unreadable(self, command: Json) -> Answer:
        """Hear of granted jobs that a worker could not read. Internal: from a worker, never from a client."""
        slot, lost = command["slot"], 0
        if self.engine.sequencer.topic(slot)["topic_id"] == command["topic_id"]:
            lost = self.lose(slot, command["seqs"])
        return self._answer({"lost": lost}, None)

    def lose(self, slot: int, seqs: list[int]) -> int:
        """Take jobs out whose bytes are damaged, by the writer's own look at them; return how many. What it can read stays leased to its worker."""
        sequencer = self.engine.sequencer
        lost = [seq for seq in seqs if sequencer.is_unreadable(slot, seq)]
        if lost:
            self._remove(slot, work.LOST, lost)
            self.lost += len(lost)
            name = sequencer.topic_name(slot).decode()
            log.error("jobs are lost: their bytes are damaged", queue=name, jobs=len(lost), first_seq=lost[0], last_seq=lost[-1])
        return len(lost)

    # ---- the way back --------------------------------------------------------------------------------------------------------------

    def _redrive(self, command: Json) -> Answer:
        """Bring letters that came from this queue back as fresh jobs, the oldest first. `more`: it looked at as many as one call may."""
        sequencer = self.engine.sequencer
        slot = sequencer.find(command["topic"].encode())
        if slot is None:
            raise TopicNotFound(command["topic"])
        config = self.engine.config(slot)
        if config.type != "queue":
            raise NotAQueue(command["topic"])
        if config.dead_letter is None:
            raise Invalid("", f'queue "{command["topic"]}" has no dead-letter topic')
        source = sequencer.find(config.dead_letter.encode())
        redriven, more = 0, False
        if source is not None:
            sequencer.wait_synced(source)
            self.engine.settle_time(source)
            redriven, more = self._redrive_from(source, slot, command)
        return self._answer({"redriven": redriven, "more": more}, slot if redriven else None)

    def _redrive_from(self, source: int, slot: int, command: Json) -> tuple[int, bool]:
        topic = self.engine.sequencer.topic(source)
        redriven = looked = 0
        begun_ms = self.engine.clock.mono_ms()
        seq = max(topic["earliest"], command.get("from_seq") or 0)
        while seq <= topic["head"]:
            slow = redriven and self.engine.clock.mono_ms() - begun_ms > limits.MOVE_MS_MAX
            if slow or redriven >= command["limit"] or looked >= limits.REDRIVE_EXAMINED_MAX:
                return redriven, True
            looked += 1
            try:
                record = self._read(source, topic["topic_id"], seq)
            except IoError:
                record = None
            if record is not None and _comes_from(record, command):
                data, meta, tag, node = record
                outcome = self._move(source, topic, seq, work.REMOVE, slot, (data, _without_provenance(meta), tag, node))
                if outcome is not None and redriven:
                    return redriven, True
                if outcome is not None:
                    raise _refusal(outcome)
                redriven += 1
            seq += 1
        return redriven, False

    # ---- moves ---------------------------------------------------------------------------------------------------------------------

    def _read(self, slot: int, topic_id: int, seq: int) -> Moved | None:
        if self._reader is None:
            self._reader = Reader(self.shared, self.directory)
        return work.record_text(self._reader, slot, topic_id, seq, self.engine.clock.wall_ms())

    def _move(self, slot: int, topic: Json, seq: int, verb: int, target: int, record: Moved) -> int | None:
        sequencer = self.engine.sequencer
        data, meta, tag, node = record
        key = _KEY.pack(topic["topic_id"], seq, verb)
        raw = frame.build_append([frame.Record(data, meta, tag, node)], key=key, topic_id=sequencer.topic(target)["topic_id"])
        outcome, _seq = sequencer.append_moved(target, raw, _TOKEN | seq)
        if outcome:
            return int(outcome)
        if sequencer.topic(target)["shard"] != topic["shard"]:
            sequencer.sync()
        self._remove(slot, verb, [seq])
        return None

    def _remove(self, slot: int, verb: int, seqs: list[int]) -> None:
        sequencer = self.engine.sequencer
        topic = sequencer.topic(slot)
        body = _LEASE.pack(verb, 0, 0, len(seqs), 0, 0, 0) + struct.pack(f"<{len(seqs)}Q", *seqs)
        if not sequencer.only_in_memory(slot):
            sequencer.log_frame(topic["shard"], frames.LEASE, 0, topic["topic_id"], topic["head"], self.engine.clock.wall_ms(), body, True)
        sequencer.remove_moved(slot, verb, seqs)

    def _answer(self, body: Json, wait_slot: int | None) -> Answer:
        from topicsd.engine.engine import Answer

        return Answer(body, wait_slot)


def _with_provenance(meta: bytes | None, name: str, deliveries: int, seq: int) -> bytes:
    """Add where a letter comes from to its meta, whose other members stay byte for byte; older provenance goes."""
    kept = _members(meta)
    added = json.dumps({FROM: name, DELIVERIES: str(deliveries), SOURCE_SEQ: str(seq)}, separators=(",", ":")).encode()
    return b"{" + b",".join([*kept, added[1:-1]]) + b"}"


def _without_provenance(meta: bytes | None) -> bytes | None:
    kept = _members(meta)
    return b"{" + b",".join(kept) + b"}" if kept else None


def _members(meta: bytes | None) -> list[bytes]:
    """Split a meta object (string → string) into its members as stored, without those that tell provenance."""
    found = _MEMBER.finditer(meta or b"")
    return [member.group() for member in found if json.loads(member[1]) not in (FROM, DELIVERIES, SOURCE_SEQ)]


def _refusal(outcome: int) -> TopicsError:
    if outcome in (OUTCOME_FULL, OUTCOME_TOO_LARGE):
        return TopicFull("the queue is full and discards nothing", {})
    if outcome == OUTCOME_READ_ONLY:
        return StorageReadOnly("the log takes no writes")
    return Pressure("the queue takes no more records now", 1000 * limits.RETRY_AFTER_S)


def _comes_from(record: Moved, command: Json) -> bool:
    _data, meta, tag, _node = record
    if meta is None or json.loads(meta).get(FROM) != command["topic"]:
        return False
    kind, wanted = command.get("match_kind", frames.MATCH_NONE), (command.get("match") or "").encode()
    if kind == frames.MATCH_NONE:
        return True
    if tag is None:
        return False
    return tag == wanted if kind == frames.MATCH_EQ else tag.startswith(wanted)
