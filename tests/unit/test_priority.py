"""The effective priority of a topic: integers against the formula of D §3.1 in floats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicsd._native.priority import priority_of

NOW_MS = 1_748_450_000_000


def automatic(elapsed_ms: int) -> int:
    return priority_of(None, True, NOW_MS - elapsed_ms, NOW_MS)


@pytest.mark.parametrize(("seconds", "expected"), [(0, 500), (15, 354), (30, 250), (60, 125), (120, 31), (300, 0), (10**6, 0)])
def test_the_automatic_term_decays_as_the_table_of_the_specification_says(seconds: int, expected: int) -> None:
    assert automatic(seconds * 1000) == expected


@given(st.integers(0, 299_999))
def test_the_automatic_term_is_the_formula_rounded(elapsed_ms: int) -> None:
    assert abs(automatic(elapsed_ms) - 500 * 2 ** (-elapsed_ms / 30_000)) <= 0.52


def test_the_automatic_term_never_rises_with_age() -> None:
    values = [automatic(elapsed_ms) for elapsed_ms in range(0, 301_000, 37)]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(("priority", "expected"), [(10, 10), (-7, -7), (0, 0), (5000, 1000), (-5000, -1000), (2**31 - 1, 1000), (-(2**31), -1000)])
def test_a_manual_priority_is_clamped_and_overrides_the_automatic_term(priority: int, expected: int) -> None:
    assert priority_of(priority, True, NOW_MS, NOW_MS) == expected


def test_a_topic_without_auto_priority_or_never_read_has_none() -> None:
    assert priority_of(None, False, NOW_MS, NOW_MS) == 0
    assert priority_of(None, True, 0, NOW_MS) == 0


def test_a_read_clock_ahead_of_now_counts_as_just_read() -> None:
    assert automatic(-60_000) == 500
