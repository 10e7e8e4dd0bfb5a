"""How pressed a worker's feed is, and what it does about it: coalesce, then let low bands wait and say so (D §3.1, A §7.5).

The measure is how long the feed has had topics to serve without a pause. It says nothing of other processes: on a machine that is busy with
something else a feed with little to do is never pressed. Writes have a rung of their own: a full ring is 429 (api/calls.py).
"""

from __future__ import annotations

from typing import ClassVar


class Pressure:
    """Turn unbroken work into a level of 0 to 2."""

    CALM, COALESCE, ADVISE = 0, 1, 2
    ADVISE_EVERY_MS: ClassVar[int] = 2_000
    RISE_MS: ClassVar[tuple[float, ...]] = (50.0, 500.0)  # of work without a pause, from which the next level begins
    FALL: ClassVar[float] = 0.5  # a level ends at this share of where it began
    BANDS: ClassVar[tuple[int, ...]] = (0, 2, 4)  # bands below wait until they are older: 2 begins at priority -488, 4 at 24

    def __init__(self) -> None:
        self.level = self.CALM
        self.busy_ms = 0.0

    def feel(self, busy_ms: float) -> int:
        """Take a measurement in; return the level. It rises at once and falls by halves, so that the ladder does not flutter."""
        self.busy_ms = max(busy_ms, self.busy_ms * self.FALL)
        while self.level < self.ADVISE and self.busy_ms >= self.RISE_MS[self.level]:
            self.level += 1
        while self.level > self.CALM and self.busy_ms < self.RISE_MS[self.level - 1] * self.FALL:
            self.level -= 1
        return self.level

    @property
    def band_least(self) -> int:
        """Name the lowest band of the scheduler that is served; topics of lower ones rise as they age."""
        return self.BANDS[self.level]

    @property
    def retry_after_ms(self) -> int:
        """Say when it is worth trying again."""
        return int(min(max(self.busy_ms, 500), 5_000))
