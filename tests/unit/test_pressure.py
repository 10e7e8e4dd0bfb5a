"""The ladder under pressure: how signs become rungs, and what waits on them (D §3.1, A §0.6)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from topicsd import errors, limits
from topicsd._native.port import Busy, TooLarge
from topicsd.api.calls import Calls
from topicsd.api.polls import Polls
from topicsd.api.pressure import Behind, Pressure, Signs
from topicsd.writer import widened


@pytest.mark.parametrize(
    ("signs", "level"),
    [
        (Signs(), 0),
        (Signs(busy_ms=49), 0),
        (Signs(busy_ms=50), 1),
        (Signs(busy_ms=500), 2),
        (Signs(busy_ms=60_000), 2),  # a busy feed that keeps up refuses nothing
        (Signs(lag_ms=60_000), 1),  # others may have the machine
        (Signs(behind_ms=1_000), 2),
        (Signs(behind_ms=3_000), 3),
        (Signs(busy_ms=600, late_ms=3_000), 3),
    ],
)
def test_each_sign_raises_the_ladder_at_once_and_as_far_as_it_says(signs: Signs, level: int) -> None:
    assert Pressure().feel(signs) == level


def test_the_ladder_is_left_rung_by_rung_as_the_sign_falls_and_does_not_flutter() -> None:
    pressure = Pressure()
    assert pressure.feel(Signs(behind_ms=3_000)) == 3
    levels = [pressure.feel(Signs()) for _ in range(8)]
    assert levels == sorted(levels, reverse=True) and levels[0] == 3 and levels[-1] == 0
    assert set(levels) >= {2, 1}
    assert pressure.feel(Signs(behind_ms=3_000)) == 3
    assert pressure.feel(Signs(behind_ms=1_600)) == 3, "above half of where the rung began"


def test_low_bands_wait_before_writes_do_and_the_highest_never_do() -> None:
    pressure = Pressure()
    seen = []
    for signs in (Signs(), Signs(busy_ms=50), Signs(busy_ms=500), Signs(behind_ms=3_000)):
        pressure.feel(signs)
        seen.append((pressure.band_least, pressure.write_band_least))
    assert [each[0] for each in seen] == sorted(each[0] for each in seen)
    assert [each[1] for each in seen] == [0, 0, 0, 4]
    assert all(least <= 7 for each in seen for least in each), "priority 1000 is band 7"


def test_how_long_the_writer_is_behind_is_told_by_the_cursors_alone() -> None:
    behind = Behind()
    assert behind.look(0, 0, 10.0) == 0
    assert behind.look(0, 5, 11.0) == 0
    assert behind.look(3, 9, 11.5) == 500
    assert behind.look(5, 9, 12.0) == 0, "what was there at the first look is done"
    assert behind.look(8, 9, 12.25) == 250
    behind.forget()
    assert behind.look(8, 9, 99.0) == 0


def test_groups_gather_for_longer_with_each_rung_and_never_less_than_was_set() -> None:
    assert [widened(5, level) for level in range(4)] == [5, 10, 20, 40]
    assert widened(200, 3) == 200
    assert widened(0, 3) == 0


class Words:
    """A control region and a line to the writer in one: a ring with room for `room` requests."""

    ready = True
    generation = 1

    def __init__(self, room: int = 0) -> None:
        self.room = room
        self.sent: list[int] = []

    def append(self, slot: int, topic_id: int, write: Any, key: bytes | None = None) -> int:
        if slot < 0:
            raise TooLarge
        if self.room == 0:
            raise Busy
        self.room -= 1
        self.sent.append(slot)
        return len(self.sent)

    call: Any = None

    def drain(self, callback: Any) -> int:
        return self.room

    def dirty(self) -> list[int]:
        return []

    def unwatch(self, slot: int) -> None: ...


class Write:
    disable_backpressure = False


class Patient:
    disable_backpressure = True


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def made(words: Words) -> Calls:
    line: Any = words
    calls = Calls(line, line, Polls(line))
    calls.priority_of = lambda slot: slot
    return calls


def sending(calls: Calls, slot: int, write: Any = Write) -> asyncio.Task[Any]:
    return asyncio.ensure_future(calls.send_append(slot, 1, write(), None))


def test_what_waits_for_room_goes_by_priority_and_then_in_the_order_of_its_coming() -> None:
    async def run() -> None:
        words = Words()
        calls = made(words)
        tasks = [sending(calls, slot) for slot in (0, 300, 1000, 5, 900)]
        await settle()
        assert words.sent == []
        for _ in range(5):
            words.room = 1
            calls.ring()
            await settle()
        assert words.sent == [1000, 900, 300, 0, 5]
        for task in tasks:
            task.cancel()

    asyncio.run(run())


def test_a_newcomer_does_not_pass_those_who_wait_with_its_priority() -> None:
    async def run() -> None:
        words = Words()
        calls = made(words)
        first = sending(calls, 7)
        await settle()
        words.room = 2
        second, high = sending(calls, 8), sending(calls, 1000)
        await settle()
        assert words.sent == [1000], "a higher one does"
        calls.ring()
        await settle()
        assert words.sent == [1000, 7]
        first.cancel(), second.cancel(), high.cancel()

    asyncio.run(run())


def test_on_the_last_rung_low_writes_wait_and_go_on_when_it_is_left_and_the_wait_is_told() -> None:
    async def run() -> None:
        words = Words(room=100)
        calls = made(words)
        parked: list[int] = []
        calls.count_parked = parked.append
        calls.press(4, 1500)
        low, high, patient = sending(calls, 0), sending(calls, 1000), sending(calls, 1, Patient)
        await settle()
        assert words.sent == [1000, 1], "disable_backpressure is let through"
        await asyncio.sleep(0.05)
        calls.press(0, 1500)
        calls.ring()
        await settle()
        assert words.sent == [1000, 1, 0]
        assert max(parked) >= 40_000
        assert await low and await high and await patient

    asyncio.run(run())


def test_who_has_waited_for_too_long_is_told_when_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RING_FULL_WAIT_MS_MAX", 30)

    async def run() -> None:
        for room, least in ((0, 0), (5, 4)):
            calls = made(Words(room))
            calls.press(least, 1500)
            with pytest.raises(errors.Pressure) as told:
                await calls.send_append(0, 1, Write(), None)  # type: ignore[arg-type]
            assert told.value.detail == {"retry_after_ms": 1500}

    asyncio.run(run())


class Ringing(Words):
    """News that wait before the answers are taken, and some that come meanwhile."""

    def __init__(self, *news: Any) -> None:
        super().__init__()
        self.news = list(news)
        self.order: list[Any] = []

    def drain(self, callback: Any) -> int:
        self.order.append("answers")
        return 0

    def dirty(self) -> Any:
        return self.news.pop(0)


@pytest.mark.parametrize(
    ("first", "news", "order"),
    [
        (True, ([7], [8]), [[7], "answers", [8]]),
        (True, ([7], []), [[7], "answers"]),
        (True, (None, []), [None, "answers"]),
        (True, ([], [8]), ["answers", [8]]),
        (False, ([8],), ["answers", [8]]),
        (False, ([],), ["answers", []]),
    ],
)
def test_watchers_are_served_before_the_answers_and_for_what_comes_meanwhile_behind_them(first: bool, news: Any, order: list[Any]) -> None:
    words = Ringing(*news)
    calls = made(words)
    calls.news = lambda slots, budget_ns=0: words.order.append(slots)
    calls.news_first = first
    calls.ring()
    assert words.order == order


def test_what_is_wrong_with_watchers_holds_up_no_answer() -> None:
    words = Ringing([7], [])
    calls = made(words)

    def broken(slots: Any, budget_ns: int = 0) -> None:
        raise RuntimeError("broken")

    calls.news, calls.news_first = broken, True
    calls.ring()
    assert words.order == ["answers"]
