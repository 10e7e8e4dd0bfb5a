"""The scheduler: bands, deficit round-robin, ageing (D §3.1, ARCHITECTURE §8)."""

from __future__ import annotations

import itertools

from topicsd._native.scheduler import Schedule, band

QUANTUM = 1 << 16


def turns(schedule: Schedule, count: int, now_ms: int = 0, spend: int = QUANTUM, step_ms: int = 0) -> list[int]:
    """Serve `count` times, everyone always with more to do; return who was served."""
    served = []
    for _ in range(count):
        chosen = schedule.next(now_ms)
        assert chosen is not None
        served.append(chosen[0])
        now_ms += step_ms
        schedule.served(chosen[0], spend, True, now_ms)
    return served


def test_a_higher_band_is_always_served_first() -> None:
    schedule = Schedule(3)
    for number, priority in enumerate((-1000, 0, 1000)):
        schedule.enter(number, priority, 0)
    assert turns(schedule, 20) == [2] * 20


def test_topics_of_one_band_take_turns() -> None:
    schedule = Schedule(3)
    for number in range(3):
        schedule.enter(number, 0, 0)
    assert turns(schedule, 9) == [0, 1, 2] * 3


def test_who_took_more_than_its_quantum_pays_by_turns_left_out() -> None:
    schedule = Schedule(2)
    schedule.enter(0, 0, 0)
    schedule.enter(1, 0, 0)
    spent = {0: 0, 1: 0}
    for _ in range(60):
        chosen = schedule.next(0)
        assert chosen is not None
        number, _ = chosen
        cost = 4 * QUANTUM if number == 0 else QUANTUM
        spent[number] += cost
        schedule.served(number, cost, True, 0)
    assert 0.8 < spent[0] / spent[1] < 1.25, "bytes are shared fairly, not turns"


def test_waiting_raises_a_topic_into_higher_bands_and_being_served_ends_that() -> None:
    schedule = Schedule(2)
    schedule.enter(0, 0, 0)
    schedule.enter(1, 500, 0)
    served = turns(schedule, 200, step_ms=100)
    first = served.index(0)
    assert 20 <= first <= 80, "500 points at 100 a second, by bands of 256"
    assert served[first + 1] == 1
    assert served.count(0) >= 2


def test_nothing_starves_not_even_the_least_below_a_flood_of_the_highest() -> None:
    schedule = Schedule(2)
    schedule.enter(0, -1000, 0)
    schedule.enter(1, 1000, 0)
    served = turns(schedule, 400, step_ms=100)
    places = [place for place, number in enumerate(served) if number == 0]
    assert places, "ten seconds of waiting put it before everyone"
    assert 95 <= places[0] <= 110
    assert all(after - before <= 110 for before, after in itertools.pairwise(places))


def test_a_band_that_waits_for_pressure_to_pass_is_served_once_it_is_old() -> None:
    schedule = Schedule(1)
    schedule.enter(0, -1000, 0)
    assert schedule.next(0, band_least=4) is None
    assert schedule.next(9_000, band_least=4) is None
    assert schedule.next(10_000, band_least=4) is not None


def test_entering_twice_and_leaving_twice_count_once() -> None:
    schedule = Schedule(1)
    schedule.enter(0, 0, 0)
    schedule.enter(0, 0, 0)
    assert schedule.waiting == 1
    schedule.leave(0)
    schedule.leave(0)
    assert schedule.waiting == 0
    assert schedule.next(0) is None


def test_bands_are_256_points_wide() -> None:
    assert [band(points, 0) for points in (-1000, -745, -744, 0, 500, 1000)] == [0, 0, 1, 3, 5, 7]
    assert [band(0, waited_ms) for waited_ms in (0, 2_400, 9_999, 10_000)] == [3, 4, 7, 14]
