"""A clock that stands still until a test moves it."""

from __future__ import annotations


class FakeClock:
    def __init__(self, wall_ms: int = 1_750_000_000_000, mono_ms: int = 1_000_000) -> None:
        self._wall_ms, self._mono_ms = wall_ms, mono_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    def mono_ms(self) -> int:
        return self._mono_ms

    def mono_up_ms(self) -> int:
        return self._mono_ms

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self._wall_ms += ms
        self._mono_ms += ms

    def step(self, ms: int) -> None:
        """Step the wall clock alone, back when negative."""
        self._wall_ms += ms
