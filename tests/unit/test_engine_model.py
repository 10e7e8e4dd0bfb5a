"""The engine against the plain-Python model: the same commands, everything visible compared, restarts among the steps."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fakes.clock import FakeClock
from fakes.in_process import Library
from oracle.model import Model, Refused

NAMES = st.sampled_from(["a", "b", "a.b"])
TAGS = st.sampled_from(["x", "x:1", "x:2", "y", "", 'q"uote', "\u00e9"])
NODES = st.sampled_from(["n1", "n2", "n"])
DATA = st.one_of(st.none(), st.integers(-9, 9), st.text(max_size=5), st.just({"k": [1, 2]}), st.just("z" * 40))


@st.composite
def records(draw: st.DrawFn) -> list[dict[str, Any]]:
    made = []
    for _ in range(draw(st.integers(1, 4))):
        record: dict[str, Any] = {"data": draw(DATA)}
        if draw(st.booleans()):
            record["tag"] = draw(TAGS)
        if draw(st.booleans()):
            record["node"] = draw(NODES)
        if draw(st.integers(0, 4)) == 0:
            record["meta"] = {"m": "v"}
        made.append(record)
    return made


CONFIG = st.fixed_dictionaries(
    {},
    optional={
        "ttl_ms": st.sampled_from([0, 50, 1000]),
        "cap_records": st.sampled_from([0, 1, 3, 6]),
        "cap_bytes": st.sampled_from([0, 20, 60]),
        "discard": st.sampled_from(["old", "reject"]),
        "durability": st.sampled_from(["memory", "disk", "fsync"]),
        "dedupe_node": st.booleans(),
        "idempotency_window_ms": st.sampled_from([100, 120_000]),
        "type": st.sampled_from(["log", "queue"]),
    },
)
MATCH = st.one_of(
    st.none(),
    TAGS,
    st.tuples(st.just("tag"), st.just("Eq"), TAGS),
    st.sampled_from([("tag", "Glob", "x*"), ("tag", "Glob", "*"), ("tag", "Glob", "x:*")]),
)


class EngineAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="topicsd-model-")
        self.clock = FakeClock()
        self.engine = Library(self.directory, self.clock)
        self.model = Model(self.clock)
        self.loose_reasons = False  # a floor that no frame has made durable yet may change its reason over a restart

    def teardown(self) -> None:
        self.engine.close()
        shutil.rmtree(self.directory)

    def both(self, verb: str, *args: Any, **options: Any) -> Any:
        """Do the same to both and compare the answers."""

        def outcome(target: Any) -> Any:
            try:
                return getattr(target, verb)(*args, **options)
            except Refused as refused:
                return f"refused: {refused.code}"

        expected, got = outcome(self.model), outcome(self.engine)
        told = self.loose_reasons and isinstance(expected, dict) and expected.get("tombstone") and got.get("tombstone")
        if told and got["tombstone"]["reason"] != "recreated":
            got["tombstone"]["reason"] = expected["tombstone"]["reason"]
        assert got == expected, (verb, args, options)
        return got

    @rule(name=NAMES, config=CONFIG)
    def put(self, name: str, config: dict[str, Any]) -> None:
        self.both("put", name, **config)

    @rule(name=NAMES, batch=records(), key=st.sampled_from([None, None, "k1", "k2"]), create=st.sampled_from([None, None, False]))
    def append(self, name: str, batch: list[dict[str, Any]], key: str | None, create: bool | None) -> None:
        self.both("append", name, batch, key, create)

    @rule(name=NAMES, before=st.one_of(st.none(), st.integers(0, 12)), match=MATCH)
    def delete(self, name: str, before: int | None, match: Any) -> None:
        if before is not None or match is not None:
            self.both("delete", name, before, list(match) if isinstance(match, tuple) else match)

    @rule(name=NAMES, if_empty=st.booleans())
    def drop(self, name: str, if_empty: bool) -> None:
        self.both("drop", name, if_empty)

    @rule(ms=st.sampled_from([1, 30, 60, 150, 2000]))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule()
    def the_clock_steps_back(self) -> None:
        self.engine.engine.tick()  # floors that time has moved are durable from here on
        for topic in self.model.topics.values():
            self.model._expire(topic)
        self.clock.step(-500)

    @rule()
    def tick(self) -> None:
        self.engine.engine.tick()

    @rule(kill=st.booleans())
    def restart(self, kill: bool) -> None:
        self.loose_reasons = True
        self.model.restart()
        self.engine.kill() if kill else self.engine.stop()

    @rule(
        name=NAMES, from_seq=st.integers(0, 14), limit=st.sampled_from([0, 1, 2, 1000]), node=st.sampled_from([None, "n", "n1", ["n1", "n2"]]),
        match=MATCH, epoch=st.sampled_from([None, None, 1, 2]),
    )  # fmt: skip
    def diff(self, name: str, from_seq: int, limit: int, node: Any, match: Any, epoch: int | None) -> None:
        self.both("diff", name, from_seq, limit=limit, node=node, match=list(match) if isinstance(match, tuple) else match, epoch=epoch)

    @invariant()
    def everything_visible_is_equal(self) -> None:
        for name in ("a", "b", "a.b"):
            self.both("state", name)
            self.both("diff", name)

    @rule(name=NAMES, events_max=st.sampled_from([1, 2, 3, 1000]), pack=st.booleans())
    def seal(self, name: str, events_max: int, pack: bool) -> None:
        self.engine.seal(name, events_max, pack)  # nothing that anybody sees changes

    @rule()
    def checkpoint(self) -> None:
        self.engine.checkpoint()  # nor here; the log files that go are not missed

    @rule()
    def begin_checkpoint(self) -> None:
        self.engine.begin_checkpoint()

    @rule(slots=st.integers(1, 3))
    def pack(self, slots: int) -> None:
        self.engine.pack(slots)

    @precondition(lambda self: self.model.topics)
    @rule()
    def names_are_listed_in_order(self) -> None:
        assert self.engine.names() == sorted(self.model.topics)


@pytest.mark.slow
def test_the_engine_does_what_the_model_does() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        EngineAgainstModel,
        settings=settings(max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True),
    )
