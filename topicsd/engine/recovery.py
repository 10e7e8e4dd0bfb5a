"""Recovery: boot x log, as a labelled table (ARCHITECTURE section 6). Twice is the same as once.

Nothing here changes an old file. What a walk finds is applied to an empty table; then topics jump over seqs that may have been handed
out and are gone, and the log goes on in a new file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from topicsd.engine import frames
from topicsd.engine.engine import Engine
from topicsd.errors import Internal
from topicsd.topic_config import TopicConfig

RECORD_BYTES_MIN = 24  # the smallest record entry with a byte of data: bounds how many records a damaged range can have held


class State(NamedTuple):
    """What a start finds: the boot that the last writer ran in (its START frame says it), how the log ends."""

    boot: str  # "none" | "same" | "other"
    log: str  # "none" | "whole" | "torn" | "damaged"


class Plan(NamedTuple):
    """What to do about it."""

    jump: bool  # memory and disk topics jump to their ceiling: a page cache was lost
    corrupt_tail: bool  # topics whose last frame stands before a damaged range may have had records in it
    degraded: bool
    far_ids: bool  # go on above every topic id that may have been used, not just above the highest one seen


PLANS: dict[State, Plan] = {
    State("none", "none"): Plan(False, False, False, False),  # a fresh directory, or killed before the first frame was written
    State("none", "torn"): Plan(False, False, False, False),  # killed while the very first frame was written
    State("none", "damaged"): Plan(True, True, True, True),  # no START can be read at all
    State("same", "whole"): Plan(False, False, False, False),  # any process death: the page cache kept everything
    State("same", "torn"): Plan(False, False, False, False),  # killed in the middle of a write that nobody was promised
    State("same", "damaged"): Plan(False, True, True, True),
    State("other", "whole"): Plan(True, False, False, True),  # power loss, or a kill and then a reboot
    State("other", "torn"): Plan(True, False, False, True),
    State("other", "damaged"): Plan(True, True, True, True),
}


@dataclass
class Found:
    """What replay met, for logs, readiness and `topicsd fsck`."""

    topics: int = 0
    jumps: int = 0
    corrupt_tails: int = 0
    unknown_topics: int = 0
    skipped: list[str] = field(default_factory=list)


class Replayer:
    """Apply control frames in log order. Appends, and frames like the last of their kind (`replay_core.pxd`), never come here."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sequencer = engine.sequencer
        self.found = Found()
        self.highest_id = 0
        self.id_ceiling = 0
        self.failed: BaseException | None = None
        self._handlers: dict[int, Callable[[int, int, int, bytes, int], None]] = {
            frames.TOPIC_CREATE: self._create,
            frames.TOPIC_CONFIG: self._configure,
            frames.TOPIC_DELETE: self._remove,
            frames.DELETE: self._delete,
            frames.FLOOR: self._floor,
            frames.CEILING: self._ceiling,
            frames.HOLE: self._hole,
            frames.SEGMENT: self._segment,
            frames.GROUP: self._group,
            frames.ROUTER: self._router,
        }

    def __call__(self, frame_type: int, shard: int, topic_id: int, base_seq: int, body: bytes, position: int) -> None:
        handler = self._handlers.get(frame_type)
        if handler is None:
            return  # START, MARK, and types that may be skipped
        if frame_type == frames.TOPIC_CREATE:
            handler(topic_id, shard, base_seq, body, position)
            return
        if topic_id == 0:
            if frame_type == frames.CEILING:
                self.id_ceiling = base_seq
            return
        slot = self.sequencer.slot_of(topic_id)
        if slot is None:
            self.found.unknown_topics += 1
            return
        handler(slot, topic_id, base_seq, body, position)

    def _create(self, topic_id: int, shard: int, _base_seq: int, body: bytes, position: int) -> None:
        members = frames.parse_json(body)
        config = TopicConfig.from_json(members["config"])
        self.highest_id = max(self.highest_id, topic_id)
        name = members["name"].encode()
        stale = self.sequencer.find(name)
        if stale is not None:  # its delete frame stood in a damaged range: a name has one topic
            self.found.skipped.append(f"{members['name']}: created again without a delete")
            self._remove(stale, self.sequencer.topic(stale)["topic_id"], 0, b"", position)
        slot = self.engine.place(name, topic_id, config, shard, members["ceiling"])
        self.sequencer.learn_id(topic_id, slot)
        self.sequencer.set_last_position(slot, position)
        self.sequencer.like_topic(slot, body)

    def finish(self) -> None:
        """Take note of the topics that were made without Python."""
        highest = self.sequencer.highest_replayed_id
        self.highest_id = max(self.highest_id, highest)
        self.engine.next_topic_id = max(self.engine.next_topic_id, highest + 1)

    def _configure(self, slot: int, _topic_id: int, base_seq: int, body: bytes, position: int) -> None:
        if base_seq > self.sequencer.topic(slot)["head"]:  # they were ephemeral: gone, and told so
            self.sequencer.leave_hole(slot, base_seq, frames.LOSS_MIXED)
        self.engine.apply_config(slot, TopicConfig.from_json(frames.parse_json(body)["config"]))
        self.sequencer.set_last_position(slot, position)

    def _remove(self, slot: int, topic_id: int, _base_seq: int, _body: bytes, _position: int) -> None:
        self.sequencer.learn_id(topic_id, self.sequencer.no_slot)
        self.engine.remove(slot)

    def _delete(self, slot: int, _topic_id: int, _base_seq: int, body: bytes, _position: int) -> None:
        self.engine.apply_delete(slot, frames.parse_delete(body))

    def _floor(self, slot: int, topic_id: int, _base_seq: int, body: bytes, _position: int) -> None:
        ttl_lost, cap_lost = frames.parse_floor(body)
        self.sequencer.lose_through(slot, ttl_lost, cap_lost)
        self.engine.floors[slot] = (topic_id, ttl_lost, cap_lost)

    def _ceiling(self, slot: int, _topic_id: int, base_seq: int, _body: bytes, _position: int) -> None:
        self.sequencer.set_ceiling(slot, base_seq)

    def _router(self, slot: int, topic_id: int, _base_seq: int, body: bytes, _position: int) -> None:
        self.engine.routers.replay(slot, topic_id, frames.parse_json(body))

    def _hole(self, slot: int, _topic_id: int, _base_seq: int, body: bytes, position: int) -> None:
        _first_seq, last_seq, reason = frames.parse_hole(body)
        self.sequencer.leave_hole(slot, last_seq, reason)
        self.sequencer.set_last_position(slot, position)

    def _group(self, slot: int, topic_id: int, _base_seq: int, body: bytes, position: int) -> None:
        self.engine.groups.replay(topic_id, self.sequencer.topic(slot)["shard"], position, body)

    def _segment(self, slot: int, topic_id: int, _base_seq: int, body: bytes, position: int) -> None:
        self.engine.segments.replay(slot, topic_id, body)
        self.sequencer.set_last_position(slot, position)


def plan_for(state: State) -> Plan:
    """Look a state up. Raises Internal for one that the table does not know: never guess."""
    try:
        return PLANS[state]
    except KeyError:
        raise Internal(f"recovery does not know the state {state}", {"state": state._asdict()}) from None


def log_state(reports: list[Any], snapshot: bool = False) -> str:
    """Name how the logs end: none, whole, torn or damaged. Behind a `snapshot` there may be no frame yet: that is whole."""
    if not snapshot and not any(report.frames for report in reports):
        return "none" if not any(report.damaged for report in reports) else "damaged"
    if any(report.damaged for report in reports):
        return "damaged"
    return "torn" if any(report.torn_bytes for report in reports) else "whole"


def settle(engine: Engine, found: Found, plan: Plan, damages: dict[int, list[tuple[int, int]]]) -> list[tuple[int, int, int, int]]:
    """Jump topics over what is gone. `damages`: by shard, (first position, end) of damaged ranges.

    Returns the holes to log as (slot, first seq, last seq, reason). Called once, after every shard was walked.
    """
    sequencer = engine.sequencer
    jumps: dict[int, tuple[int, int, int]] = {}  # slot -> (head, target, reason)
    found.topics += sequencer.topics
    far = plan.jump or plan.corrupt_tail
    damaged = {shard: max(end for _first, end in ranges) - 1 for shard, ranges in damages.items() if ranges} if plan.corrupt_tail else {}
    for slot in sorted({*sequencer.slots_to_jump(plan.jump, damaged), *(engine.routers.slots() if far else ())}):
        topic = sequencer.topic(slot)
        head, ceiling = topic["head"], topic["ceiling_asked"]
        reason, target = 0, head
        if plan.corrupt_tail:
            # A snapshot's moment may lie inside a range: what stood behind it is lost, what stood before is not.
            from_position = topic["last_position"] + 1
            lost = sum(max(end - max(first, from_position), 0) for first, end in damages.get(topic["shard"], []))
            if lost:
                reason, target = frames.LOSS_CORRUPT, head + lost // RECORD_BYTES_MIN + 1
                found.corrupt_tails += 1
        if ceiling > target and (plan.jump or sequencer.is_ephemeral(slot)):
            reason, target = reason or frames.LOSS_MIXED, ceiling
            found.jumps += 1
        jumps[slot] = head, target, reason
    if far:
        for slot, reached in engine.routers.farther({slot: target for slot, (_, target, _) in jumps.items()}).items():
            head, target, reason = jumps[slot]
            if reached > target:
                jumps[slot] = head, reached, reason or frames.LOSS_MIXED
    holes: list[tuple[int, int, int, int]] = []
    for slot, (head, target, reason) in jumps.items():
        if target > head:
            sequencer.leave_hole(slot, target, reason)
            holes.append((slot, head + 1, target, reason))
    engine.routers.recovered(holes)
    return holes


def log_holes(engine: Engine, holes: list[tuple[int, int, int, int]]) -> None:
    """Make the jumps durable: the next recovery finds the same holes and the same heads."""
    now_ms = engine.clock.wall_ms()
    for slot, first_seq, last_seq, reason in holes:
        topic = engine.sequencer.topic(slot)
        body = frames.hole_body(first_seq, last_seq, reason)
        engine.sequencer.log_frame(topic["shard"], frames.HOLE, 0, topic["topic_id"], last_seq, now_ms, body, True)
