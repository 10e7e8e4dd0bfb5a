"""Routers: which topic's records are copied into which other topic (A section 6, D section 8).

Python decides who routes to whom; the copies themselves are the sequencer's (`_native/routes.pxd`). A router is one ROUTER frame in its source's
shard; how far it has come is told by cursor frames behind it. Deleting a topic takes its routers along without a frame of their own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from topicsd.engine import frames
from topicsd.engine.sections import Row
from topicsd.errors import ColdUnavailable, RouterCycle, RouterNotFound, Throttled, TopicExistsIncompatible, TopicNotFound
from topicsd.topic_config import TopicConfig

if TYPE_CHECKING:
    from topicsd.engine.engine import Engine

Json = dict[str, Any]

DROP_NODE, DROP_TAG, EXACT, CYCLE, WRITES = 1, 2, 4, 8, 16  # ROUTE_* of routes.pxd
AT_LEAST_ONCE, EXACTLY_ONCE = "at_least_once", "exactly_once"
RELAX_ROUNDS_MAX = 9  # hop cap + 1: no copy of a cycle goes farther
FORWARD_SLICE = 1 << 20


@dataclass(frozen=True)
class Rule:
    """What of a router a PUT may change."""

    preserve_node: bool = True
    preserve_tag: bool = True
    filter: list[str] | str | None = None  # as the client wrote it
    match_kind: int = frames.MATCH_NONE
    match: str = ""  # canonical
    allow_cycle: bool = False
    guarantee: str = AT_LEAST_ONCE

    @classmethod
    def of(cls, members: Json) -> Rule:
        """Pick the rule out of a command or a frame."""
        return cls(**{name: members[name] for name in cls.__dataclass_fields__ if name in members})

    @property
    def flags(self) -> int:
        """Return the ROUTE_* flags that follow from it."""
        flags = 0 if self.preserve_node else DROP_NODE
        flags |= 0 if self.preserve_tag else DROP_TAG
        return flags | (EXACT if self.guarantee == EXACTLY_ONCE else 0)

    def shown(self) -> Json:
        """Return its members as A section 6.2 shows them."""
        return {
            "preserve_node": self.preserve_node,
            "preserve_tag": self.preserve_tag,
            "filter": self.filter,
            "allow_cycle": self.allow_cycle,
            "guarantee": self.guarantee,
        }


@dataclass
class Router:
    """One router; topics by name and by id (a name may come back as another topic, an id never)."""

    number: int
    name: str
    source: str
    dest: str
    source_id: int
    dest_id: int
    rule: Rule
    created_ms: int


class Routers:
    """Keep the routers by name, by source and by destination, and the graph free of cycles that nobody asked for."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sequencer = engine.sequencer
        self.by_name: dict[str, Router] = {}
        self.by_source: dict[int, dict[int, Router]] = {}  # topic id -> dest id -> router
        self.by_dest: dict[int, Router] = {}  # topic id; one router a destination
        self.names: list[str] = []
        self.next_number = 1
        self.cycles = 0  # routers with allow_cycle
        self.deferred: list[tuple[Router, int]] = []  # replay: the destination's shard is still to be walked; with the cursor

    # ---- commands ------------------------------------------------------------------------------------------------------------

    def put(self, command: Json) -> tuple[Json, int | None]:
        """Create or change a router; return what to show, and the slot whose shard must be synced first.

        Raises TopicNotFound, RouterCycle, TopicExistsIncompatible, Throttled.
        """
        rule = Rule.of(command)
        existing = self.by_name.get(command["router"])
        if existing is not None:
            return self._change(existing, command, rule)
        self._check_new(command["source"], command["dest"], rule, bool(command.get("create_dest", True)))
        source, dest = self._have_topics(command["source"], command["dest"])
        self.sequencer.wait_synced(source)
        self.sequencer.wait_synced(dest)
        topic = self.sequencer.topic(source)
        cursor, from_seq = topic["head"], command.get("from_seq")
        if from_seq is not None:  # what is no longer retained is not back-filled, and not missed either
            cursor = min(max(from_seq, topic["earliest"] - 1), topic["head"])
            if cursor < (cold := self.engine.segments.cold_through(source)):
                raise ColdUnavailable(f"records up to seq {cold} stand in the cold tier, from where nothing is copied", {"cold_through": cold})
        router = Router(
            self.next_number, command["router"], command["source"], command["dest"], topic["topic_id"], self.sequencer.topic(dest)["topic_id"],
            rule, self.engine.clock.wall_ms(),
        )  # fmt: skip
        self._log(router, {"cursor": cursor})
        self._place(router, source, dest, cursor)
        self.sequencer.forward_some(FORWARD_SLICE)
        return {"created": True, **self._head(router), **rule.shown()}, source

    def _change(self, router: Router, command: Json, rule: Rule) -> tuple[Json, int | None]:
        if (command["source"], command["dest"]) != (router.source, router.dest):
            raise TopicExistsIncompatible(
                f'router "{router.name}" goes from "{router.source}" to "{router.dest}": that can not change',
                {"reason": "router_repoint_forbidden", "router": router.name, "source": router.source, "dest": router.dest},
            )
        shown = {"created": False, **self._head(router), **rule.shown()}
        if rule == router.rule:
            return shown, None
        if not rule.allow_cycle and (cycle := self._path(router.dest_id, router.source_id)):
            raise RouterCycle([router.source, *cycle])
        dest = self._slot(router.dest)
        self.sequencer.wait_synced(dest)
        self._log(Router(**{**vars(router), "rule": rule}), {})
        self._apply(router, rule)
        return shown, self._slot(router.source)

    def _apply(self, router: Router, rule: Rule) -> None:
        self.cycles += rule.allow_cycle - router.rule.allow_cycle
        router.rule = rule
        flags = self.sequencer.route(router.number)["flags"] & (CYCLE | WRITES)
        self.sequencer.change_route(router.number, rule.flags | flags, rule.match_kind, rule.match.encode())

    def lowest_cursor(self, topic_id: int) -> int | None:
        """Return how far the slowest router of a source has come, None without one."""
        found = [self.sequencer.route(router.number)["cursor"] for router in self.by_name.values() if router.source_id == topic_id]
        return min(found, default=None)

    def get(self, name: str) -> Json:
        """Return a router as A section 6.2 shows it. Raises RouterNotFound."""
        router = self.by_name.get(name)
        if router is None:
            raise RouterNotFound(name)
        numbers = self.sequencer.route(router.number)
        return {**self._head(router), **router.rule.shown(), "forwarded_total": numbers["forwarded"], **self._lag(router, numbers)}

    def _lag(self, router: Router, numbers: dict[str, int]) -> Json:
        head = self.sequencer.topic(numbers["source"])["head"]
        return {"lag": max(head - numbers["cursor"], 0), "blocked": bool(numbers["blocked"]), "lost": numbers["lost"]}

    def page(self, command: Json) -> Json:
        """Return one page of routers in byte order of their names: those that begin with one of `prefixes`, behind `after`."""
        found: list[Json] = []
        for prefix in command["prefixes"]:
            at = bisect_left(self.names, prefix)
            if command.get("after") is not None:
                at = max(at, bisect_right(self.names, command["after"]))
            while at < len(self.names) and self.names[at].startswith(prefix):
                if len(found) > command["count"]:
                    return {"routers": found}
                router = self.by_name[self.names[at]]
                at += 1
                if command.get("source") in (None, router.source) and command.get("dest") in (None, router.dest):
                    forwarded = self.sequencer.route(router.number)["forwarded"]
                    found.append({**self._head(router), "guarantee": router.rule.guarantee, "forwarded_total": forwarded})
        return {"routers": found}

    def delete(self, name: str) -> tuple[bool, int | None]:
        """Delete a router; what was written before is forwarded first. Return whether it was there, and the slot to sync."""
        router = self.by_name.get(name)
        if router is None:
            return False, None
        source, dest = self._slot(router.source), self._slot(router.dest)
        self.sequencer.wait_synced(source)
        self.sequencer.settle_routes()
        self.sequencer.wait_synced(dest)
        topic = self.sequencer.topic(source)
        body = frames.json_body({"number": router.number, "deleted": True})
        self.sequencer.log_frame(topic["shard"], frames.ROUTER, 0, router.source_id, topic["head"], self.engine.clock.wall_ms(), body, True)
        self._drop(router)
        return True, source

    def settle_topic(self, topic_id: int) -> None:
        """Before a topic goes: nothing of its routers is in flight any more."""
        for router in self.touching(topic_id):
            self.sequencer.wait_synced(self._slot(router.source))
        self.sequencer.settle_routes()
        for router in self.touching(topic_id):
            self.sequencer.wait_synced(self._slot(router.dest))

    def drop_topic(self, topic_id: int) -> list[str]:
        """Forget the routers of a topic that goes; return their names."""
        gone = self.touching(topic_id)
        for router in gone:
            self._drop(router)
        return sorted(router.name for router in gone)

    def touching(self, topic_id: int) -> list[Router]:
        """Return the routers from or to a topic."""
        found = list(self.by_source.get(topic_id, {}).values())
        if (feeding := self.by_dest.get(topic_id)) is not None:
            found.append(feeding)
        return found

    # ---- checks ----------------------------------------------------------------------------------------------------------------

    def _check_new(self, source: str, dest: str, rule: Rule, create_dest: bool) -> None:
        most = self.engine.options.routers_max
        if most and len(self.by_name) >= most:
            raise Throttled("max_routers", most)
        source_slot, dest_slot = self.sequencer.find(source.encode()), self.sequencer.find(dest.encode())
        if dest_slot is None and not create_dest:
            raise TopicNotFound(dest)
        missing = (source_slot is None) + (dest_slot is None)
        topics_most = self.engine.options.topics_max or self.sequencer.topics_hard_max
        if source_slot is not None and dest_slot is not None:
            cycle = self._path(self.sequencer.topic(dest_slot)["topic_id"], self.sequencer.topic(source_slot)["topic_id"])
            if cycle and not rule.allow_cycle:
                raise RouterCycle([source, *cycle])
        if dest_slot is not None:
            self._check_fan_in(source, dest, self.by_dest.get(self.sequencer.topic(dest_slot)["topic_id"]))
        if missing and self.sequencer.topics + missing > topics_most:
            raise Throttled("max_topics", topics_most)

    @staticmethod
    def _check_fan_in(source: str, dest: str, feeding: Router | None) -> None:
        if feeding is None:
            return
        detail = {"router": feeding.name, "source": feeding.source, "dest": dest}
        if feeding.source == source:
            message = f'router "{feeding.name}" already goes from "{source}" to "{dest}"'
            raise TopicExistsIncompatible(message, {"reason": "router_duplicate", **detail})
        raise TopicExistsIncompatible(f'"{dest}" is already fed from "{feeding.source}"', {"reason": "router_dest_fan_in", **detail})

    def _path(self, start: int, goal: int) -> list[str]:
        """Return the names of the topics on a way from `start` to `goal`, both included; empty when there is none."""
        trail: dict[int, int] = {start: 0}
        names: dict[int, str] = {}
        waiting = [start]
        while waiting:
            at = waiting.pop()
            for router in self.by_source.get(at, {}).values():
                names.setdefault(at, router.source)
                names.setdefault(router.dest_id, router.dest)
                if router.dest_id in trail:
                    continue
                trail[router.dest_id] = at
                if router.dest_id == goal:
                    found = [goal]
                    while found[-1] != start:
                        found.append(trail[found[-1]])
                    return [names[topic] for topic in reversed(found)]
                waiting.append(router.dest_id)
        return []

    def _mark_cycles(self) -> None:
        """Tell each route whether it lies on a cycle: only there the hop cap holds."""
        for router in self.by_name.values():
            numbers = self.sequencer.route(router.number)
            on_cycle = bool(self.cycles) and bool(self._path(router.dest_id, router.source_id))
            flags = (numbers["flags"] & ~CYCLE) | (CYCLE if on_cycle else 0)
            if flags != numbers["flags"]:
                self.sequencer.change_route(router.number, flags, router.rule.match_kind, router.rule.match.encode())

    # ---- the registry ----------------------------------------------------------------------------------------------------------

    def _have_topics(self, source: str, dest: str) -> tuple[int, int]:
        """Return the slots of both, creating what is missing, in one shard: copies between shards would have to be written out."""
        source_slot, dest_slot = self.sequencer.find(source.encode()), self.sequencer.find(dest.encode())
        if source_slot is None:
            shard = None if dest_slot is None else self.sequencer.topic(dest_slot)["shard"]
            source_slot = self.engine.create(source.encode(), TopicConfig(), shard=shard)
        if dest_slot is None:
            dest_slot = self.engine.create(dest.encode(), TopicConfig(), shard=self.sequencer.topic(source_slot)["shard"])
        return source_slot, dest_slot

    def _log(self, router: Router, more: Json) -> None:
        topic = self.sequencer.topic(self._slot(router.source))
        members = {
            "number": router.number, "name": router.name, "source": router.source, "dest": router.dest, "dest_id": router.dest_id,
            "created_ms": router.created_ms, "rule": asdict(router.rule), **more,
        }  # fmt: skip
        body = frames.json_body(members)
        self.sequencer.log_frame(topic["shard"], frames.ROUTER, 0, router.source_id, topic["head"], self.engine.clock.wall_ms(), body, False)

    def _place(self, router: Router, source: int, dest: int, cursor: int) -> None:
        rule = router.rule
        text = f"router:{router.name}:{router.source_id}:{router.source_id}:".encode()
        flags = rule.flags | (WRITES if self.sequencer.topic(source)["shard"] != self.sequencer.topic(dest)["shard"] else 0)
        self.sequencer.add_route(router.number, source, dest, cursor, flags, rule.match_kind, rule.match.encode(), text)
        self.next_number = max(self.next_number, router.number + 1)
        self.by_name[router.name] = router
        self.by_source.setdefault(router.source_id, {})[router.dest_id] = router
        self.by_dest[router.dest_id] = router
        insort(self.names, router.name)
        self.cycles += rule.allow_cycle
        if self.cycles:
            self._mark_cycles()

    def _drop(self, router: Router) -> None:
        self.sequencer.remove_route(router.number)
        del self.by_name[router.name]
        del self.by_dest[router.dest_id]
        of_source = self.by_source[router.source_id]
        del of_source[router.dest_id]
        if not of_source:
            del self.by_source[router.source_id]
        del self.names[bisect_left(self.names, router.name)]
        self.cycles -= router.rule.allow_cycle
        if self.cycles or router.rule.allow_cycle:
            self._mark_cycles()

    def _slot(self, name: str) -> int:
        slot = self.sequencer.find(name.encode())
        if slot is None:
            raise TopicNotFound(name)
        return int(slot)

    @staticmethod
    def _head(router: Router) -> Json:
        return {"router": router.name, "source": router.source, "dest": router.dest}

    # ---- snapshots -------------------------------------------------------------------------------------------------------------

    name = "routers"

    def rows(self) -> Iterator[Row]:
        """Yield a row for each router, with how far it has come; the last row has the next number."""
        for router in list(self.by_name.values()):
            numbers = self.sequencer.route(router.number)
            members = asdict(router) | {name: numbers[name] for name in ("cursor", "forwarded", "lost", "skip_first", "skip_last")}
            yield Row(router.number, 0, 0, frames.json_body(members))
        yield Row(0, 0, 0, frames.json_body({"next_number": self.next_number}))

    def load(self, row: Row) -> None:
        """Take a row back; both topics are there already. Raises ValueError."""
        members = frames.parse_json(row.body)
        if row.key == 0:
            self.next_number = max(self.next_number, members["next_number"])
            return
        numbers = {name: members.pop(name) for name in ("cursor", "forwarded", "lost", "skip_first", "skip_last")}
        router = Router(**members | {"rule": Rule.of(members["rule"])})
        source, dest = self.sequencer.slot_of(router.source_id), self.sequencer.slot_of(router.dest_id)
        if source is None or dest is None:
            raise ValueError(f"router {router.name}: its topics are not in the snapshot")
        self._place(router, source, dest, numbers["cursor"])
        self.sequencer.set_route(router.number, numbers["cursor"], numbers["forwarded"], numbers["lost"])
        if numbers["skip_last"]:
            self.sequencer.skip_in_route(router.number, numbers["skip_first"], numbers["skip_last"])

    # ---- recovery --------------------------------------------------------------------------------------------------------------

    def replay(self, source: int, source_id: int, members: Json) -> None:
        """Apply a ROUTER frame."""
        number = members["number"]
        self.next_number = max(self.next_number, number + 1)
        known = next((router for router in self.by_source.get(source_id, {}).values() if router.number == number), None)
        if members.get("deleted"):
            self.deferred = [each for each in self.deferred if each[0].number != number]
            if known is not None:
                self._drop(known)
            return
        rule = Rule.of(members["rule"])
        if known is not None:
            self._apply(known, rule)
            if self.cycles:
                self._mark_cycles()
            return
        waiting = next((router for router, _ in self.deferred if router.number == number), None)
        if waiting is not None:
            waiting.rule = rule
            return
        router = Router(
            number, members["name"], members["source"], members["dest"], source_id, members["dest_id"], rule, members["created_ms"]
        )  # fmt: skip
        dest = self.sequencer.slot_of(router.dest_id)
        if dest is None:
            self.deferred.append((router, members["cursor"]))
        else:
            self._replay_place(router, source, dest, members["cursor"])

    def _replay_place(self, router: Router, source: int, dest: int, cursor: int) -> None:
        stale = [each for each in (self.by_name.get(router.name), self.by_dest.get(router.dest_id)) if each is not None]
        for each in stale:  # its deletion stood in a damaged range
            if self.by_name.get(each.name) is each:
                self._drop(each)
        self._place(router, source, dest, cursor)
        hint, copies = self.sequencer.routed_hint(router.number)
        if hint > cursor:
            self.sequencer.set_route(router.number, hint, copies, 0)

    def place_deferred(self) -> int:
        """Place routers whose destination stood in a shard walked later; return how many have none."""
        lost, waiting, self.deferred = 0, self.deferred, []
        for router, cursor in waiting:
            source, dest = self.sequencer.slot_of(router.source_id), self.sequencer.slot_of(router.dest_id)
            if source is None or dest is None:
                lost += 1
            else:
                self._replay_place(router, source, dest, cursor)
        return lost

    def slots(self) -> set[int]:
        """Return the slots of all sources and destinations."""
        routes = [self.sequencer.route(router.number) for router in self.by_name.values()]
        return {slot for numbers in routes for slot in (numbers["source"], numbers["dest"])}

    def farther(self, targets: dict[int, int]) -> dict[int, int]:
        """Return, by slot, to which seq a destination may have come with copies whose cursor frames are gone.

        targets: by slot, all of `slots` among them, the highest seq that a topic may have handed out by itself. A copy takes a seq without a ceiling:
        what bounds it is what its source may have had beyond the router's last known cursor.
        """
        known = dict(targets)
        reached = dict(targets)
        for _ in range(RELAX_ROUNDS_MAX):
            moved = False
            for router in self.by_name.values():
                numbers = self.sequencer.route(router.number)
                if numbers["flags"] & WRITES or self.sequencer.is_ephemeral(numbers["source"]):
                    continue  # copies that are written out are ordinary batches under the destination's own ceiling
                target = known[numbers["dest"]] + max(reached[numbers["source"]] - numbers["cursor"], 0)
                moved |= target > reached[numbers["dest"]]
                reached[numbers["dest"]] = max(target, reached[numbers["dest"]])
            if not moved:
                break
        return reached

    def recovered(self, holes: list[tuple[int, int, int, int]]) -> None:
        """Let routes pass the holes that recovery has just made: where copies of them may have been, the destination has a hole too."""
        by_slot = {slot: (first_seq, last_seq) for slot, first_seq, last_seq, _reason in holes}
        for router in self.by_name.values():
            numbers = self.sequencer.route(router.number)
            source = numbers["source"]
            if self.sequencer.is_ephemeral(source):
                head = self.sequencer.topic(source)["head"]
                self.sequencer.set_route(router.number, head, numbers["forwarded"], numbers["lost"])
            elif source in by_slot:
                self.sequencer.skip_in_route(router.number, *by_slot[source])
