"""Consumer groups of all log topics: commands, frames, replay (K; CLARIFICATIONS, Consumer groups).

A group's state is the sum of its FRAME_GROUP frames. Each is written before it is applied and says what came of the command, so replay needs
neither the clock of then nor the order of expiries. A lease that has run out is not written: it ends again after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from topicsd import limits
from topicsd.engine import frames
from topicsd.engine.group import Group, Lease
from topicsd.engine.sections import Changed, Positions, Row
from topicsd.errors import ClientError, Invalid, NotFound, Throttled, TopicNotFound

if TYPE_CHECKING:
    from topicsd.engine.engine import Answer, Engine

Json = dict[str, Any]


class Groups:
    """Own the groups, by topic id and name. One thread, the writer's. In snapshots: a row a topic."""

    name = "groups"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.applied: dict[int, tuple[int, int]] = {}  # topic id -> (shard, where the last frame of one of its groups begins)
        self.loaded = Positions()
        self.changed = Changed(self.row)
        self.by_topic: dict[int, dict[str, Group]] = {}
        self.slots: dict[int, int] = {}  # topic id -> slot, of topics that have had groups
        self.newest_ms = 0  # wall clock of the newest frame of replay

    def commands(self) -> dict[str, Callable[[Json], Answer]]:
        """Return the commands by name."""
        return {
            "group.consume": self._consume,
            "group.release": self._release,
            "group.ack": self._ack,
            "group.reset": self._reset,
            "group.delete": self._delete,
            "group.show": self._show,
            "group.list": self._list,
            "group.metrics": self._metrics,
        }

    def forget(self, topic_id: int) -> None:
        """Drop the groups of a topic that is gone."""
        self.changed.drop(topic_id)
        self.by_topic.pop(topic_id, None)
        self.slots.pop(topic_id, None)
        self.applied.pop(topic_id, None)

    @property
    def total(self) -> int:
        """Return how many groups there are."""
        return sum(map(len, self.by_topic.values()))

    # ---- consume -----------------------------------------------------------------------------------------------------------------

    def _consume(self, command: Json) -> Answer:
        """Lease the next range. Answers `range: null` when there is none, with the ms until a lease ends."""
        slot, topic = self._log_topic(command)
        group = self._groups_of(topic).get(command["group"])
        if command.get("epoch") is not None and command["epoch"] != topic["topic_id"]:
            raise TopicNotFound(command["topic"])  # it was deleted, and made again, while its consumer waited
        created = group is None
        if group is None:
            group = self._create(command, topic)
        now_ms = self.engine.clock.mono_ms()
        group.expire(now_ms)
        grant = group.grantable(topic["earliest"], topic["head"], command["limit"])
        body: Json = {"epoch": topic["topic_id"], "committed_offset": group.committed, "created": created, "range": None}
        body |= {"head_seq": topic["head"], "earliest_seq": topic["earliest"]}
        if grant is None:
            body["wait_ms"] = max(group.soonest_ms - now_ms, 0) if len(group.leases) else None
        else:
            if len(group.leases) >= limits.LEASES_A_GROUP_MAX:
                raise Throttled("max_group_leases", limits.LEASES_A_GROUP_MAX)
            event = {"k": "lease", "f": grant.first, "l": grant.last, "d": grant.deliveries, "v": command["visibility_ms"], "o": command["consumer"]}
            self._log(topic, command["group"], event)
            self._apply(group, event, now_ms)
            body["range"] = [grant.first, grant.last]
            body["deliveries"] = grant.deliveries
            body["has_more"] = group.grantable(topic["earliest"], topic["head"], 1) is not None
        return self._answer(body, slot if created else None)

    def _create(self, command: Json, topic: Json) -> Group:
        groups = self._groups_of(topic)
        if len(groups) >= limits.GROUPS_A_TOPIC_MAX:
            raise Throttled("max_groups", limits.GROUPS_A_TOPIC_MAX)
        return self._begin(topic, command["group"], self._position(command["start"], topic, "start"))

    def _begin(self, topic: Json, name: str, committed: int) -> Group:
        event = {"k": "new", "c": committed}
        self._log(topic, name, event)
        group = Group(committed, self.engine.clock.wall_ms())
        self.by_topic.setdefault(topic["topic_id"], {})[name] = group
        return group

    def _position(self, start: object, topic: Json, field: str) -> int:
        """Return the seq behind which a group begins. `start`: "earliest", "latest", or the first offset to deliver."""
        if start == "earliest":
            return int(topic["earliest"]) - 1
        if start == "latest":
            return int(topic["head"])
        offset = int(str(start))
        if offset > topic["head"] + 1:
            raise Invalid(field, f"offset {offset} is above the topic's next one, {topic['head'] + 1}", head_seq=topic["head"])
        return max(offset, 1) - 1

    def _release(self, command: Json) -> Answer:
        """Give back what of a range a consumer could not be handed (`settle`: it held nothing); its lease must be the very one."""
        slot, topic = self._log_topic(command)
        group = self._groups_of(topic).get(command["group"])
        first, last = command["first"], command["last"]
        if group is None or command["epoch"] != topic["topic_id"]:
            return self._answer({})
        mine = group.owned(command["consumer"], first, last)
        for each_first, each_last in mine:
            event: Json = {"k": "settle", "r": [[each_first, each_last]]} if command.get("settle") else {"k": "free", "f": each_first, "l": each_last}
            self._log(topic, command["group"], event)
            self._apply(group, event, self.engine.clock.mono_ms())
        if mine and not command.get("settle"):
            self.engine.sequencer.wake(slot)
        return self._answer({"committed_offset": group.committed})

    # ---- ack, reset, delete --------------------------------------------------------------------------------------------------------

    def _ack(self, command: Json) -> Answer:
        """Settle up to an offset: all, or what one consumer has leased. Never takes anything back."""
        slot, topic = self._log_topic(command)
        group = self._existing(command, topic)
        upto = command["upto_offset"]
        if upto > topic["head"]:
            raise Invalid("upto_offset", f"offset {upto} is past the topic's last one, {topic['head']}", head_seq=topic["head"])
        now_ms = self.engine.clock.mono_ms()
        group.expire(now_ms)
        if command["consumer"] is None:
            ranges = [(group.committed + 1, upto)] if upto > group.committed else []
        else:
            ranges = group.owned(command["consumer"], command.get("from_offset", 0), upto)
        before = group.committed
        if ranges:
            event = {"k": "settle", "r": [list(each) for each in ranges]}
            self._log(topic, command["group"], event)
            self._apply(group, event, now_ms)
        settled = sum(last - first + 1 for first, last in ranges)
        body = {"acknowledged_offset": group.committed, "settled": settled, "moved": group.committed - before}
        return self._answer(body, slot if ranges and self.engine.sequencer.is_fsync(slot) else None)

    def _reset(self, command: Json) -> Answer:
        slot, topic = self._log_topic(command)
        committed = self._position_at(command, slot, topic)
        group = self._groups_of(topic).get(command["group"])
        if group is None:
            self._create({**command, "start": committed + 1}, topic)
        else:
            event = {"k": "reset", "c": committed}
            self._log(topic, command["group"], event)
            self._apply(group, event, self.engine.clock.mono_ms())
        self.engine.sequencer.wake(slot)
        return self._answer({"committed_offset": committed}, slot)

    def _position_at(self, command: Json, slot: int, topic: Json) -> int:
        if command.get("committed") is not None:  # from a timestamp: the worker has looked it up
            return min(int(command["committed"]), int(topic["head"]))
        return self._position(command["to"], topic, "to")

    def _delete(self, command: Json) -> Answer:
        slot, topic = self._log_topic(command)
        if command["group"] not in self._groups_of(topic):
            return self._answer({"deleted": False})
        self._log(topic, command["group"], {"k": "drop"})
        del self.by_topic[topic["topic_id"]][command["group"]]
        self.engine.sequencer.wake(slot)
        return self._answer({"deleted": True}, slot)

    # ---- show ------------------------------------------------------------------------------------------------------------------------

    def _show(self, command: Json) -> Answer:
        _slot, topic = self._log_topic(command)
        group = self._existing(command, topic)
        now_ms = self.engine.clock.mono_ms()
        group.expire(now_ms)
        leases = [
            {"consumer_id": lease.consumer or None, "first_offset": first, "last_offset": last, "expires_in_ms": lease.deadline_ms - now_ms,
             "deliveries": lease.deliveries}
            for (first, last, lease), _ in zip(group.leases, range(command["leases_max"]), strict=False)
        ]  # fmt: skip
        return self._answer({**self._summary(command["group"], group, topic), "leases": leases})

    def _list(self, command: Json) -> Answer:
        _slot, topic = self._log_topic(command)
        groups = self._groups_of(topic)
        names = sorted(name for name in groups if command["after"] is None or name > command["after"])
        page = names[: command["page_size"]]
        now_ms = self.engine.clock.mono_ms()
        for name in page:
            groups[name].expire(now_ms)
        body = {"groups": [self._summary(name, groups[name], topic) for name in page], "more": len(names) > len(page)}
        return self._answer(body)

    def _metrics(self, command: Json) -> Answer:
        """Answer how many groups there are, and up to `limit` of them in the order in which their topics were made."""
        now_ms, shown = self.engine.clock.mono_ms(), list[Json]()
        for topic_id in sorted(self.by_topic):
            slot = self.slots.get(topic_id)
            if slot is None or self.engine.sequencer.topic(slot)["topic_id"] != topic_id:
                continue
            topic, name = self.engine.sequencer.topic(slot), self.engine.sequencer.topic_name(slot).decode()
            for group_name, group in sorted(self.by_topic[topic_id].items()):
                if len(shown) == command["limit"]:
                    return self._answer({"total": self.total, "groups": shown, "truncated": True})
                group.expire(now_ms)
                shown.append({"topic": name, **self._summary(group_name, group, topic)})
        return self._answer({"total": self.total, "groups": shown, "truncated": False})

    def _summary(self, name: str, group: Group, topic: Json) -> Json:
        return {
            "group": name,
            "partition_id": 0,
            "epoch": topic["topic_id"],
            "committed_offset": group.committed,
            "next_offset": group.next_seq,
            "head_seq": topic["head"],
            "leased": group.leases.total,
            "to_redeliver": group.free.total,
            "created_ts": group.created_ms,
            "updated_ts": group.updated_ms,
        }

    # ---- frames ----------------------------------------------------------------------------------------------------------------------

    def _log(self, topic: Json, name: str, event: Json) -> None:
        event |= {"g": name, "p": 0, "t": self.engine.clock.wall_ms()}
        # An ack frees nothing by itself, but a full disk must not keep consumers from being done with what they have.
        privileged = event["k"] in ("settle", "drop", "free")
        body = frames.json_body(event)
        self.changed.touch(topic["topic_id"])
        end = self.engine.sequencer.log_frame(topic["shard"], frames.GROUP, 0, topic["topic_id"], topic["head"], event["t"], body, privileged)
        self.applied[topic["topic_id"]] = topic["shard"], end - frames.frame_bytes(body)

    def _apply(self, group: Group, event: Json, mono_ms: int, age_ms: int = 0) -> None:
        group.updated_ms = event["t"]
        match event["k"]:
            case "lease":
                left_ms = max(event["v"] - age_ms, 0)
                group.lease(event["f"], event["l"], Lease(event["o"], mono_ms + left_ms, event["d"]))
            case "settle":
                for first, last in event["r"]:
                    group.settle(first, last)
            case "free":
                group.release(event["f"], event["l"])
            case "reset":
                group.reset(event["c"])

    def replay(self, topic_id: int, shard: int, position: int, body: bytes) -> None:
        """Apply a frame of the log. Ages are counted on the wall clock; `settle_clock` mends them when it has stepped back."""
        if self.loaded.holds(topic_id, position):
            return
        self.changed.touch(topic_id)
        self.applied[topic_id] = shard, position
        event = frames.parse_json(body)
        groups = self._replayed(topic_id)
        name = event["g"]
        self.newest_ms = max(self.newest_ms, event["t"])
        if event["k"] == "new":
            groups[name] = Group(event["c"], event["t"])
        elif event["k"] == "drop":
            groups.pop(name, None)
        elif name in groups:
            age_ms = self.engine.clock.wall_ms() - event["t"]  # first: what passes in between must not count
            self._apply(groups[name], event, self.engine.clock.mono_up_ms(), age_ms)

    def settle_clock(self) -> None:
        """After replay: no step of the wall clock lengthens a lease. What is newer than now is as old as the newest frame says."""
        ahead_ms = self.newest_ms - self.engine.clock.wall_ms()
        if ahead_ms <= 0:
            return
        for topic_id in self.by_topic:
            self.changed.touch(topic_id)
        for group in self._all():
            leases = [(first, last, lease) for first, last, lease in group.leases]
            for first, last, lease in leases:
                group.lease(first, last, lease._replace(deadline_ms=lease.deadline_ms - ahead_ms))

    # ---- snapshots -------------------------------------------------------------------------------------------------------------------

    def row(self, topic_id: int) -> Row | None:
        """Return the row of a topic's groups."""
        groups, place = self.by_topic.get(topic_id), self.applied.get(topic_id)
        return Row(topic_id, *place, self._dump(groups)) if groups is not None and place is not None else None

    def _dump(self, groups: dict[str, Group]) -> bytes:
        mono_ms = self.engine.clock.mono_ms()
        return frames.json_body(
            {
                "t": self.engine.clock.wall_ms(),
                "groups": {
                    name: {
                        "p": 0,
                        "c": group.committed,
                        "n": group.next_seq,
                        "made": group.created_ms,
                        "moved": group.updated_ms,
                        "free": [list(each) for each in group.free],
                        "settled": [[first, last] for first, last, _ in group.settled],
                        "leases": [[first, last, each.consumer, each.deadline_ms - mono_ms, each.deliveries] for first, last, each in group.leases],
                    }
                    for name, group in groups.items()
                },
            }
        )

    def load(self, row: Row, number: int) -> None:
        """Take a topic's groups back from snapshot `number`. Raises ValueError for a body that is none of ours."""
        members = frames.parse_json(row.body)
        age_ms, mono_ms = self.engine.clock.wall_ms() - members["t"], self.engine.clock.mono_up_ms()
        self.newest_ms = max(self.newest_ms, members["t"])
        self.loaded.loaded(row)
        self.changed.set(row.key, number)
        self.applied[row.key] = row.shard, row.position
        groups = self._replayed(row.key)
        for name, each in members["groups"].items():
            group = groups[name] = Group(each["c"], each["made"])
            group.next_seq, group.updated_ms = each["n"], each["moved"]
            for first, last, deliveries in each["free"]:
                group.free.add(first, last, deliveries)
            for first, last in each["settled"]:
                group.settled.add(first, last, None)
            for first, last, consumer, left_ms, deliveries in each["leases"]:
                group.lease(first, last, Lease(consumer, mono_ms + left_ms - age_ms, deliveries))

    # ---- help ------------------------------------------------------------------------------------------------------------------------

    def _replayed(self, topic_id: int) -> dict[str, Group]:
        slot = self.engine.sequencer.slot_of(topic_id)
        if slot is not None:
            self.slots[topic_id] = slot
        return self.by_topic.setdefault(topic_id, {})

    def _all(self) -> Iterator[Group]:
        for groups in self.by_topic.values():
            yield from groups.values()

    def _groups_of(self, topic: Json) -> dict[str, Group]:
        return self.by_topic.get(topic["topic_id"], {})

    def _existing(self, command: Json, topic: Json) -> Group:
        group = self._groups_of(topic).get(command["group"])
        if group is None:
            raise NotFound(f'topic "{command["topic"]}" has no group "{command["group"]}"', {"topic": command["topic"], "group": command["group"]})
        return group

    def _log_topic(self, command: Json) -> tuple[int, Json]:
        """Find the topic, with nothing of it in flight. Raises TopicNotFound, ClientError for a queue."""
        sequencer = self.engine.sequencer
        slot = sequencer.find(command["topic"].encode())
        if slot is None:
            raise TopicNotFound(command["topic"])
        if sequencer.config(slot)["type"] != "log":
            raise ClientError(
                f'topic "{command["topic"]}" is a queue: it is worked off by claims, not by groups',
                {"topic": command["topic"]}, code="topic_exists_incompatible",
            )  # fmt: skip
        self.engine.settle_time(slot)
        topic = sequencer.topic(slot)
        self.slots[topic["topic_id"]] = slot
        return slot, topic

    def _answer(self, body: Json, wait_slot: int | None = None) -> Answer:
        from topicsd.engine.engine import Answer

        return Answer(body, wait_slot)
