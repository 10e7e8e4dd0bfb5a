"""Routers against the plain model (tests/oracle/router_model.py): the same commands, restarts among them, everything visible compared."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fakes.clock import FakeClock
from fakes.in_process import Library
from oracle.model import Refused
from oracle.router_model import Model, Route, Topic

NAMES = st.sampled_from("abcde")
TAGS = st.sampled_from([None, "x", "y"])


class RouterMachine(RuleBasedStateMachine):
    """Order between routes of one source is not promised, but each destination has one router: so every topic is exactly the model's."""

    @initialize()
    def begin(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="routers-")
        self.engine = Library(self.directory, FakeClock())
        self.model = Model()
        self.number = 0
        self.rules: dict[str, dict[str, Any]] = {}

    def teardown(self) -> None:
        self.engine._forget()
        shutil.rmtree(self.directory)

    @rule(name=NAMES, cap=st.sampled_from([0, 3]))
    def put(self, name: str, cap: int) -> None:
        if name not in self.model.topics:
            self.engine.put(name, **({"cap_records": cap, "discard": "reject"} if cap else {}))
            self.model.topics[name] = Topic(cap=cap)

    @rule(name=NAMES, tags=st.lists(TAGS, min_size=1, max_size=6), node=st.sampled_from([None, "n"]))
    def append(self, name: str, tags: list[str | None], node: str | None) -> None:
        records = []
        for tag in tags:
            self.number += 1
            records.append({"data": self.number, **({"tag": tag} if tag else {}), **({"node": node} if node else {})})
        topic = self.model.topics.get(name)
        if topic is not None and topic.cap and len(self.model.live(name)) + len(records) > topic.cap:
            with pytest.raises(Refused):
                self.engine.append(name, records)
            return
        self.engine.append(name, records)
        self.model.append(name, records)

    @rule(source=NAMES, dest=NAMES, tag=TAGS, node=st.booleans(), keep=st.booleans(), cycle=st.booleans(), start=st.sampled_from([None, 0, 2]))
    def route(self, source: str, dest: str, tag: str | None, node: bool, keep: bool, cycle: bool, start: int | None) -> None:
        if source == dest:
            return
        members: dict[str, Any] = {"preserve_node": node, "preserve_tag": keep, "allow_cycle": cycle}
        if tag:
            members["filter"] = ["tag", "Eq", tag]
        model, name = self.model, f"{source}->{dest}"
        known = model.routes.get(name)
        same = known is not None and self.rules.get(name) == members  # as it is: nothing that could be refused
        closes = not same and model.reaches(dest, source) if dest in model.topics and source in model.topics else False
        if (closes and not cycle) or any(route.dest == dest and router != name for router, route in model.routes.items()):
            with pytest.raises(Refused):
                self.engine.route(source, dest, **members)
            return
        assert self.engine.route(source, dest, **members, **({} if start is None else {"from_seq": start})) is (known is None)
        self.rules[name] = members
        if known is not None:
            known.tag, known.preserve_node, known.preserve_tag = tag, node, keep
        else:
            head = len(model.topics.setdefault(source, Topic()).records)
            model.topics.setdefault(dest, Topic())
            model.routes[name] = Route(source, dest, head if start is None else min(start, head), tag, node, keep)
        model.mark()
        model.forward()

    @rule(source=NAMES, dest=NAMES)
    def unroute(self, source: str, dest: str) -> None:
        deleted = self.engine.call({"op": "router.delete", "router": f"{source}->{dest}"})["deleted"]
        assert deleted is (self.model.routes.pop(f"{source}->{dest}", None) is not None)
        self.model.mark()

    @rule(name=NAMES, before=st.integers(1, 30), tag=TAGS)
    def delete(self, name: str, before: int, tag: str | None) -> None:
        if name in self.model.topics:
            self.engine.delete(name, before_seq=before, match=["tag", "Eq", tag] if tag else None)
            self.model.delete(name, before, tag)

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        gone = self.engine.call({"op": "topic.delete", "topic": name})["routers_removed"]
        assert gone == self.model.drop(name)
        self.model.mark()

    @rule(name=NAMES, events_max=st.sampled_from([1, 2, 1000]))
    def seal(self, name: str, events_max: int) -> None:
        self.engine.seal(name, events_max)

    @rule()
    def checkpoint(self) -> None:
        self.engine.checkpoint()

    @rule()
    def begin_checkpoint(self) -> None:
        self.engine.begin_checkpoint()

    @rule(slots=st.integers(1, 3))
    def pack(self, slots: int) -> None:
        self.engine.pack(slots)

    @rule(how=st.sampled_from(["kill", "stop"]))
    def restart(self, how: str) -> None:
        getattr(self.engine, how)()
        self.engine.engine.tick()
        self.engine.sequencer.sync()

    @invariant()
    def everything_visible_is_the_models(self) -> None:
        if not hasattr(self, "model"):
            return
        assert self.engine.routers() == sorted(self.model.routes)
        for name in self.model.topics:
            records, tombstones = self.engine.read_all(name)
            assert tombstones == [], name
            got = [(each["$seq"], {part: each[part] for part in ("data", "tag", "node") if part in each}) for each in records]
            assert got == self.model.live(name), name
            assert self.engine.state(name)["count"] == len(got)


TestRouters = RouterMachine.TestCase
TestRouters.settings = settings(max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
