"""Consumer groups against the plain model: random steps, restarts among them; no seq is held twice, none settled comes again, none is lost."""

from __future__ import annotations

import tempfile
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fakes.clock import FakeClock
from fakes.in_process import Library
from oracle.group_model import GroupModel

CONSUMERS = st.sampled_from(["a", "b", ""])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 12)),
        st.tuples(st.just("consume"), CONSUMERS, st.integers(1, 9), st.sampled_from([100, 1_000, 5_000])),
        st.tuples(st.just("consume"), CONSUMERS, st.integers(1, 9), st.sampled_from([100, 1_000, 5_000])),
        st.tuples(st.just("ack"), st.none() | CONSUMERS, st.integers(0, 60)),
        st.tuples(st.just("ack"), CONSUMERS, st.integers(0, 60)),
        st.tuples(st.just("advance"), st.sampled_from([1, 99, 100, 900, 4_000])),
        st.tuples(st.just("release"), CONSUMERS, st.integers(1, 60), st.integers(0, 5)),
        st.tuples(st.just("reset"), st.integers(1, 60)),
        st.tuples(st.sampled_from(["kill", "stop", "checkpoint", "begin_checkpoint", "pack"])),
    ),
    max_size=40,
)


def call(library: Library, op: str, **members: Any) -> Any:
    return library.call({"op": f"group.{op}", "topic": "t", "group": "g", **members})


def step(library: Library, model: GroupModel, head: int, what: tuple[Any, ...]) -> int:
    now_ms = library.clock.mono_ms()
    model.expire(now_ms)
    match what:
        case ("append", count):
            library.append("t", [{"data": n} for n in range(count)])
            return head + int(count)
        case ("consume", consumer, limit, visibility_ms):
            got = call(library, "consume", start="earliest", limit=limit, visibility_ms=visibility_ms, consumer=consumer)
            wanted = model.next_free(head)
            if wanted is None:
                assert got["range"] is None
            else:
                first, last = got["range"]
                assert first == wanted
                assert first <= last <= min(head, first + limit - 1)
                assert model.may_lease(first, last)
                model.lease(first, last, consumer, now_ms + visibility_ms)
        case ("ack", consumer, upto):
            upto = min(upto, head)
            model.ack(upto, consumer)
            assert call(library, "ack", upto_offset=upto, consumer=consumer)["acknowledged_offset"] == model.committed
        case ("release", consumer, first, more):
            epoch = library.sequencer.topic(library.sequencer.find(b"t"))["topic_id"]
            call(library, "release", epoch=epoch, consumer=consumer, first=first, last=first + more)
            for seq in range(first, first + more + 1):
                fate = model.fates.get(seq)
                if isinstance(fate, tuple) and fate[0] == consumer:
                    model.fates[seq] = "free"
        case ("reset", offset):
            offset = min(offset, head + 1)
            call(library, "reset", to=offset)
            model.reset(offset - 1)
        case ("advance", ms):
            library.clock.advance(ms)
        case (restart,):
            getattr(library, restart)()
    return head


@given(STEPS)
def test_a_group_does_what_the_model_does(steps: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        library = Library(folder, FakeClock())
        library.put("t")
        assert call(library, "consume", start="earliest", limit=1, visibility_ms=1_000, consumer="")["range"] is None
        model, head = GroupModel(0, 1), 0
        for what in steps:
            head = step(library, model, head, what)
            model.expire(library.clock.mono_ms())
            shown = call(library, "show", leases_max=1_000)
            assert (shown["committed_offset"], shown["next_offset"]) == (model.committed, model.next_seq)
            assert shown["leased"] == sum(isinstance(fate, tuple) for fate in model.fates.values())
            assert shown["to_redeliver"] == sum(fate == "free" for fate in model.fates.values())
        library.close()
