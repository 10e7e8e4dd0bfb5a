"""How pressed a worker is, and how far up the ladder it goes: coalesce, let low bands wait and say so, refuse writes (D §3.1, A §0.6, A §7.5).

| rung | what happens there |
|---|---|
| 1 coalesce | frames that nobody waits for gather longer before a sync (topicsd/writer.py); the lowest bands of the feed wait |
| 2 advise | bands of the feed below priority 24 wait, and their watchers are told by an advisory 429 |
| 3 refuse | writes to topics of those bands wait, too, and are told 429 after a while (api/calls.py); a full ring does the same at any rung |

What waits rises with age in the feed, so nothing starves there. No sign tells of other processes alone: on a machine that is busy with something
else a feed with little to do is never pressed.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

NEVER = float("inf")


class Signs(NamedTuple):
    """Hold what was measured, in milliseconds."""

    busy_ms: float = 0.0  # the feed has had topics to serve for so long without a pause
    late_ms: float = 0.0  # a topic of a band that is served has waited for so long
    behind_ms: float = 0.0  # the writer has had a request for so long
    lag_ms: float = 0.0  # the event loop called back so late


class Pressure:
    """Turn signs into a level of 0 to 3."""

    CALM, COALESCE, ADVISE, REFUSE = 0, 1, 2, 3
    ADVISE_EVERY_MS: ClassVar[int] = 2_000
    RUNGS_MS: ClassVar[tuple[Signs, ...]] = (  # from which value of a sign each level begins
        Signs(50.0, NEVER, 200.0, 100.0),
        Signs(500.0, NEVER, 1_000.0, NEVER),
        Signs(NEVER, 3_000.0, 3_000.0, NEVER),
    )
    FALL: ClassVar[float] = 0.5  # a level ends at this share of where it began
    BANDS: ClassVar[tuple[int, ...]] = (0, 2, 4, 4)  # bands below wait until they are older: 2 begins at priority -488, 4 at 24
    WRITE_BANDS: ClassVar[tuple[int, ...]] = (0, 0, 0, 4)  # writes to topics of bands below wait

    def __init__(self) -> None:
        self.level = self.CALM
        self.signs = Signs()

    def feel(self, signs: Signs) -> int:
        """Take a measurement in; return the level. It rises at once and falls by halves, so that the ladder does not flutter."""
        self.signs = Signs(*(max(new, old * self.FALL) for new, old in zip(signs, self.signs, strict=True)))
        while self.level < self.REFUSE and self._reaches(self.RUNGS_MS[self.level], 1.0):
            self.level += 1
        while self.level > self.CALM and not self._reaches(self.RUNGS_MS[self.level - 1], self.FALL):
            self.level -= 1
        return self.level

    def _reaches(self, rung: Signs, share: float) -> bool:
        return any(value >= bound * share for value, bound in zip(self.signs, rung, strict=True))

    @property
    def band_least(self) -> int:
        """Name the lowest band of the scheduler that is served; topics of lower ones rise as they age."""
        return self.BANDS[self.level]

    @property
    def write_band_least(self) -> int:
        """Name the lowest band whose writes are let through."""
        return self.WRITE_BANDS[self.level]

    @property
    def retry_after_ms(self) -> int:
        """Say when it is worth trying again."""
        return int(min(max(*self.signs, 500), 5_000))


class Behind:
    """Measure how long the writer has had the oldest request of a ring, from its cursors alone."""

    def __init__(self) -> None:
        self._mark = 0
        self._since_s: float | None = None  # None: nothing was under way

    def look(self, head: int, tail: int, now_s: float) -> float:
        """Take the cursors in; return milliseconds, exact to the interval between two looks and never too many."""
        if self._since_s is not None and head < self._mark:
            return (now_s - self._since_s) * 1000
        self._mark, self._since_s = tail, now_s if head < tail else None
        return 0.0

    def forget(self) -> None:
        """The writer has gone, and what it had with it."""
        self._since_s = None
