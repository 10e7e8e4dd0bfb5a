"""The keeper's manners: when it ends, and when it lets others go first (ARCHITECTURE section 2)."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from topicsd import keeper
from topicsd.keeper import BEHIND_BYTES_MAX, PACE, Keeper, Line


def a_line() -> Line:
    line = Line.__new__(Line)
    line.ended = False
    return line


@pytest.mark.parametrize(("got", "ends"), [(None, False), (SimpleNamespace(si_signo=0), False), (SimpleNamespace(si_signo=signal.SIGUSR1), True)])
def test_only_the_arbiters_signal_ends_it(monkeypatch: pytest.MonkeyPatch, got: Any, ends: bool) -> None:
    # A process that is stopped and continued while it waits gets an empty siginfo.
    monkeypatch.setattr(signal, "sigtimedwait", lambda _signals, _seconds: got)
    line = a_line()
    line.pause(1.0)
    assert line.ended == ends


class House:
    """A keeper whose clock moves only when it rests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, short: bool) -> None:
        self.now_s, self.wanted = 100.0, 0
        monkeypatch.setattr(keeper.time, "monotonic", lambda: self.now_s)
        self.keeper = Keeper.__new__(Keeper)
        self.keeper.cpus = SimpleNamespace(are_short=lambda: short)  # type: ignore[assignment]
        self.keeper.line = SimpleNamespace(pause=self.pause, ended=False)  # type: ignore[assignment]
        monkeypatch.setattr(self.keeper, "_seal_wanted", self.seal)

    def pause(self, seconds: float) -> None:
        self.now_s += seconds

    def seal(self) -> None:
        self.wanted += 1

    def rest(self, took_s: float, behind: int) -> float:
        before_s = self.now_s
        self.keeper._pace(took_s, behind)
        return self.now_s - before_s


def test_where_cpus_are_short_it_rests_longer_than_it_worked_and_serves_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(monkeypatch, short=True)
    assert house.rest(0.1, 0) == pytest.approx(0.1 * PACE)
    assert house.wanted >= 3, "whoever asks for a topic to be sealed waits for a rest to end"
    assert house.rest(60.0, 0) < 5, "a long segment makes it sleep for ever"


def test_it_does_not_rest_where_cpus_are_free_or_too_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert House(monkeypatch, short=False).rest(0.1, 0) == 0
    assert House(monkeypatch, short=True).rest(0.1, BEHIND_BYTES_MAX) == 0
