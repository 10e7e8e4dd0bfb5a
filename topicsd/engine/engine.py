"""Commands on topics: what Python decides. The hot path (appends) is the sequencer's (`_native/sequencer.pyx`)."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from topicsd._native.engine_core import EngineCore
from topicsd.clock import Clock
from topicsd.engine import frames
from topicsd.engine.groups import Groups
from topicsd.engine.owed import Owed
from topicsd.engine.queues import Queues
from topicsd.engine.routers import Routers
from topicsd.engine.segments import Segments
from topicsd.errors import ClientError, Throttled, TopicExistsIncompatible, TopicNotEmpty, TopicNotFound
from topicsd.topic_config import TopicConfig

CEILING_FIRST = 1 << 16  # seqs that a create frame reserves: a new topic's first writes need no sync of their own
CEILINGS_LOWERED_MAX = 512  # a tick: one 64-byte frame each
EXPIRED_A_TICK_MAX = 20_000  # records a topic loses in one slice, well below 2 ms
TIMED_A_TICK_MAX = 2_000  # topics with a ttl looked at in one tick

Json = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """What the engine must know of the settings."""

    topics_max: int = 100_000
    bytes_max: int = 0
    routers_max: int = 10_000
    durable_commands: bool = True


@dataclass(frozen=True)
class Answer:
    """What a command answers, and the slot whose shard must be synced before it may."""

    body: Json
    wait_slot: int | None = None


class Engine:
    """Create, configure and delete topics, delete records, keep floors and ceilings (D sections 2, 5, 7).

    Deterministic: time comes from `clock`, files from the sequencer's shards; one thread. `reserve_ids` is called with the highest
    topic id that may be used and returns the next durable one.
    """

    def __init__(self, sequencer: EngineCore, clock: Clock, options: Options, reserve_ids: Callable[[int], int]) -> None:
        self.sequencer = sequencer
        self.clock = clock
        self.options = options
        self.next_topic_id = 1
        self.id_ceiling = 0
        self.timed: deque[tuple[int, int]] = deque()  # (slot, topic id) of topics with a ttl, looked at in turn
        self.timed_members: set[tuple[int, int]] = set()
        self.floors: dict[int, tuple[int, int, int]] = {}  # slot -> (topic id, ttl_lost, cap_lost) that the log has
        self.groups = Groups(self)
        self.queues = Queues(self)
        self.owed = Owed(self)
        self.segments = Segments(self)
        self._reserve_ids = reserve_ids
        self.routers = Routers(self)
        self._commands: dict[str, Callable[[Json], Answer | None]] = {
            "topic.put": self._put,
            "topic.delete": self._delete_topic,
            "records.delete": self._delete_records,
            "records.append": self._append,
            **self.groups.commands(),
            "router.put": self._put_router,
            "router.get": lambda command: Answer(self.routers.get(command["router"])),
            "router.list": lambda command: Answer(self.routers.page(command)),
            "router.delete": self._delete_router,
            **self.queues.commands(),
            **self.segments.commands(),
        }

    # ---- the door ------------------------------------------------------------------------------------------------------------

    def call(self, command: Json) -> Answer | None:
        """Run one command. None: it is an append that will answer by itself. Raises TopicsError, OSError (the log takes no writes)."""
        self.sequencer.set_now(self.clock.wall_ms(), self.clock.mono_ms())
        try:
            return self._commands[command["op"]](command)
        finally:
            self.sequencer.retry_routes(True)  # it may have made room where a router waits for it

    # ---- topics ----------------------------------------------------------------------------------------------------------------

    def _put(self, command: Json) -> Answer:
        name = command["topic"].encode()
        config = TopicConfig.from_json(command["config"])
        slot = self.sequencer.find(name)
        if slot is None:
            slot = self.create(name, config)
            return Answer({"created": True, **self._shown(slot)}, slot)
        existing = self.config(slot)
        if config.type is not None and config.type != existing.type:
            raise TopicExistsIncompatible(
                f'topic "{command["topic"]}" is a {existing.type}: its type can not change',
                {"topic": command["topic"], "existing_type": existing.type, "requested_type": config.type},
            )
        config = config.of_type(existing.type or "log")
        if config == existing:
            return Answer({"created": False, **self._shown(slot)})
        self.configure(slot, existing, config)
        return Answer({"created": False, **self._shown(slot)}, slot)

    def create(self, name: bytes, config: TopicConfig, *, by_write: bool = False, shard: int | None = None) -> int:
        """Log and make a topic, in `shard` if given; return its slot. Raises Throttled when there are as many as allowed.

        An ephemeral topic reserves seqs with its first write: what was reserved is told as lost after a kill, so it must not be before.
        """
        most = self.options.topics_max or self.sequencer.topics_hard_max
        if self.sequencer.topics >= most:
            raise Throttled("max_topics", most)
        config = config.of_type(config.type or "log")
        topic_id = self._take_id()
        shard = topic_id % self.sequencer.shard_total if shard is None else shard
        ceiling = 0 if config.durability == "fsync" or (config.durability == "ephemeral" and not by_write) else CEILING_FIRST
        body = {"name": name.decode(), "config": config.to_json(), "ceiling": ceiling}
        self.sequencer.log_frame(shard, frames.TOPIC_CREATE, 0, topic_id, 0, self.clock.wall_ms(), frames.json_body(body), False)
        return self.place(name, topic_id, config, shard, ceiling)

    def place(self, name: bytes, topic_id: int, config: TopicConfig, shard: int, ceiling: int) -> int:
        """Put a topic that the log knows into the table."""
        slot = self.sequencer.create(name, topic_id, config.to_json())
        if slot is None:
            raise Throttled("max_topics", self.sequencer.topics_hard_max)
        self.sequencer.set_topic(slot, ceiling, shard)
        self.next_topic_id = max(self.next_topic_id, topic_id + 1)
        if config.ttl_ms:
            self._watch_time(slot, topic_id)
        return slot

    def configure(self, slot: int, existing: TopicConfig, config: TopicConfig) -> None:
        """Change a settled topic's config; what the old one had expired stays expired (CLARIFICATIONS, Topics)."""
        self.sequencer.wait_synced(slot)
        self.settle_time(slot)
        topic = self.sequencer.topic(slot)
        now_ms, shard, topic_id, head = self.clock.wall_ms(), topic["shard"], topic["topic_id"], topic["head"]
        body = frames.json_body({"config": config.to_json()})
        self.sequencer.log_frame(shard, frames.TOPIC_CONFIG, 0, topic_id, head, now_ms, body, True)
        self.apply_config(slot, config)
        if config.durability in ("fsync", "ephemeral") and config.durability != existing.durability:
            self._lower_ceiling(slot)
        self.settle_time(slot)

    def apply_config(self, slot: int, config: TopicConfig) -> None:
        """Set the config in the table and evict what no longer fits."""
        self.sequencer.configure(slot, config.to_json())
        self.sequencer.evict(slot)
        if config.ttl_ms:
            self._watch_time(slot, self.sequencer.topic(slot)["topic_id"])
        self.sequencer.wake(slot)

    def config(self, slot: int) -> TopicConfig:
        """Return a topic's config."""
        return TopicConfig.from_json(self.sequencer.config(slot))

    def _shown(self, slot: int) -> Json:
        return {"config": self.config(slot).to_json(), "epoch": self.sequencer.topic(slot)["topic_id"]}

    def _delete_topic(self, command: Json) -> Answer:
        slot = self.sequencer.find(command["topic"].encode())
        if slot is None:
            return Answer({"deleted": False, "routers_removed": []})
        self.sequencer.wait_synced(slot)
        self.settle_time(slot)
        topic = self.sequencer.topic(slot)
        if command.get("if_empty") and topic["count"]:
            raise TopicNotEmpty(command["topic"], topic["count"])
        self.routers.settle_topic(topic["topic_id"])
        self.sequencer.log_frame(topic["shard"], frames.TOPIC_DELETE, 0, topic["topic_id"], topic["head"], self.clock.wall_ms(), b"", True)
        return Answer({"deleted": True, "routers_removed": self.remove(slot)}, slot)

    def remove(self, slot: int) -> list[str]:
        """Take a topic out of the table with its routers and wake whoever waits for it; return the routers' names."""
        self.floors.pop(slot, None)
        self.groups.forget(self.sequencer.topic(slot)["topic_id"])
        self.owed.forget(self.sequencer.topic(slot)["topic_id"])
        routers = self.routers.drop_topic(self.sequencer.topic(slot)["topic_id"])
        self.sequencer.remove(slot)
        self.sequencer.wake(slot)
        return routers

    # ---- routers ---------------------------------------------------------------------------------------------------------------

    def _put_router(self, command: Json) -> Answer:
        return Answer(*self.routers.put(command))

    def _delete_router(self, command: Json) -> Answer:
        deleted, wait_slot = self.routers.delete(command["router"])
        return Answer({"deleted": deleted}, wait_slot)

    # ---- snapshots -------------------------------------------------------------------------------------------------------------

    def loaded(self, next_topic_id: int, with_ttl: list[tuple[int, int]], with_floor: list[tuple[int, int, int]]) -> None:
        """Know the topics that a snapshot has put into the table: [(slot, topic id)], [(slot, topic id, ttl_lost)]."""
        self.next_topic_id = max(self.next_topic_id, next_topic_id)
        for slot, topic_id in with_ttl:
            self._watch_time(slot, topic_id)
        for slot, topic_id, ttl_lost in with_floor:
            self.floors[slot] = (topic_id, ttl_lost, 0)

    # ---- records ---------------------------------------------------------------------------------------------------------------

    def _delete_records(self, command: Json) -> Answer:
        slot = self.existing(command["topic"])
        self.sequencer.wait_synced(slot)
        self.settle_time(slot)
        topic = self.sequencer.topic(slot)
        before = topic["head"] + 1
        if command.get("before_seq") is not None:
            before = min(before, command["before_seq"])
        deletion = frames.Deletion(before, command.get("match_kind", frames.MATCH_NONE), (command.get("match") or "").encode())
        deleted, logged = 0, False
        if topic["count"] and before > topic["earliest"]:
            logged = not self.sequencer.only_in_memory(slot)
            if logged:
                self.settle_cap(slot)
                body = frames.delete_body(deletion)
                self.sequencer.log_frame(topic["shard"], frames.DELETE, 0, topic["topic_id"], topic["head"], self.clock.wall_ms(), body, True)
            deleted = self.apply_delete(slot, deletion)
        after = self.sequencer.topic(slot)
        answer = {
            "deleted": deleted,
            "earliest_seq": after["earliest"],
            "head_seq": after["head"],
            "count": max(after["count"] - after["unreadable_records"], 0),  # as the topic's own answer says: what the disk has damaged is not counted
            "bytes": max(after["bytes"] - after["unreadable_bytes"], 0),
        }
        # What was deleted stays deleted whatever the topic's class: somebody may have asked for it to be forgotten.
        return Answer(answer, slot if logged else None)

    def apply_delete(self, slot: int, deletion: frames.Deletion) -> int:
        """Delete what a delete frame names; return how many records went."""
        if deletion.kind == frames.MATCH_NONE:
            return int(self.sequencer.delete_before(slot, deletion.before_seq))
        return self.owed.delete(slot, deletion)

    def _append(self, command: Json) -> Answer | None:
        name = command["topic"]
        slot = self.sequencer.find(name.encode())
        if slot is not None:
            self.sequencer.append_call(slot, False)
            return None
        config = TopicConfig.from_json(command["config"] or {})
        create = command.get("create")
        if create is None:
            create = config.auto_create
        if not create:
            raise TopicNotFound(name)
        self._refuse_first_write(config)
        slot = self.create(name.encode(), config, by_write=True)
        self.sequencer.append_call(slot, True)
        return None

    def _refuse_first_write(self, config: TopicConfig) -> None:
        """Refuse a write that could not stand in the topic it would create: no topic is left behind."""
        records, size = self.sequencer.call_size()
        if config.discard == "reject" and ((config.cap_records and records > config.cap_records) or (config.cap_bytes and size > config.cap_bytes)):
            caps = {"field": "records", "cap_records": config.cap_records, "cap_bytes": config.cap_bytes}
            raise ClientError("the batch is larger than the topic's whole cap", caps, code="record_too_large")
        if self.options.bytes_max and self.sequencer.bytes_live + size > self.options.bytes_max:
            raise Throttled("max_total_bytes", self.options.bytes_max)

    def existing(self, name: str) -> int:
        """Return a topic's slot. Raises TopicNotFound."""
        slot = self.sequencer.find(name.encode())
        if slot is None:
            raise TopicNotFound(name)
        return int(slot)

    # ---- time ------------------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what time asks for: expire, keep floors durable, lower idle ceilings. At most a slice of each."""
        now_ms, mono_ms = self.clock.wall_ms(), self.clock.mono_ms()
        self.sequencer.set_now(now_ms, mono_ms)
        self.sequencer.retry_routes(False)
        for _ in range(min(len(self.timed), TIMED_A_TICK_MAX)):
            slot, topic_id = self.timed.popleft()
            topic = self.sequencer.topic(slot)
            if topic["topic_id"] == topic_id and self.sequencer.ttl_ms(slot):
                self.settle_time(slot, EXPIRED_A_TICK_MAX)
                self.timed.append((slot, topic_id))
            else:
                self.timed_members.discard((slot, topic_id))
        for slot in self.sequencer.idle_ceilings(mono_ms, CEILINGS_LOWERED_MAX):
            self._lower_ceiling(slot)
        self.queues.tick()
        self.owed.tick()

    def settle_time(self, slot: int, records_max: int = 1 << 62) -> None:
        """Expire what is due and make a floor that time has moved durable: a clock that steps back brings nothing back."""
        self.sequencer.expire(slot, self.clock.wall_ms(), records_max)
        topic = self.sequencer.topic(slot)
        if topic["ttl_lost"] and self._floor_in_log(slot, topic)[0] != topic["ttl_lost"]:
            with contextlib.suppress(OSError):  # read-only: the floor holds in memory, and is written once the log takes frames again
                self._log_floor(slot, topic)

    def settle_cap(self, slot: int) -> None:
        """Write down what a cap has taken, before a frame that says what was sealed or deleted. Raises OSError.

        Replay knows it without: it is for who reads the log alone, an export, which could not tell what was evicted from what was deleted.
        """
        topic = self.sequencer.topic(slot)
        if topic["cap_lost"] and self._floor_in_log(slot, topic)[1] != topic["cap_lost"]:
            self._log_floor(slot, topic)

    def _floor_in_log(self, slot: int, topic: Json) -> tuple[int, int]:
        topic_id, ttl_lost, cap_lost = self.floors.get(slot, (0, 0, 0))
        return (ttl_lost, cap_lost) if topic_id == topic["topic_id"] else (0, 0)

    def _log_floor(self, slot: int, topic: Json) -> None:
        if self.sequencer.only_in_memory(slot):
            return
        lost = topic["ttl_lost"], topic["cap_lost"]
        body = frames.floor_body(*lost)
        self.sequencer.log_frame(topic["shard"], frames.FLOOR, 0, topic["topic_id"], topic["head"], self.clock.wall_ms(), body, True)
        self.floors[slot] = topic["topic_id"], *lost

    def _lower_ceiling(self, slot: int) -> None:
        topic = self.sequencer.topic(slot)
        try:
            self.sequencer.log_frame(topic["shard"], frames.CEILING, 0, topic["topic_id"], topic["head"], self.clock.wall_ms(), b"", True)
        except OSError:
            return  # a ceiling that is too high only makes a larger hole after power loss
        self.sequencer.set_ceiling(slot, topic["head"])

    def lower_all_ceilings(self) -> None:
        """Lower every raised ceiling to its head: a clean end leaves no hole."""
        while slots := self.sequencer.idle_ceilings(-1, CEILINGS_LOWERED_MAX):
            for slot in slots:
                self._lower_ceiling(slot)

    def _watch_time(self, slot: int, topic_id: int) -> None:
        if (slot, topic_id) not in self.timed_members:
            self.timed_members.add((slot, topic_id))
            self.timed.append((slot, topic_id))

    def _take_id(self) -> int:
        if self.next_topic_id > self.id_ceiling:
            self.id_ceiling = self._reserve_ids(self.next_topic_id)
        topic_id, self.next_topic_id = self.next_topic_id, self.next_topic_id + 1
        return topic_id
