"""What the keeper's log says while a full disk holds it up: whoever looks at a server that takes no writes finds why, and what helps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import structlog

AGAIN_S = 60.0
OVER_S = 5.0  # on a full disk rounds that seal and rounds that wait take turns: it is over when for so long none was held up

NOTHING_FITS = "no room to seal"
WAITS = "sealing waits for room: log files that nobody needs any more go behind two snapshots"
FULL = "the log takes no writes: the disk is full"
OVER = "there is room again"
HELPS = "delete topics or records, lower caps, or give the disk more room"
WHAT_HELPS = {
    NOTHING_FITS: HELPS,
    WAITS: f"if this does not end by itself: {HELPS}",
    FULL: f"nothing is left to seal that would make room: {HELPS}",
}

log = structlog.get_logger("keeper")


class RoomNotes:
    """One thread, the keeper's. Each reason is told when it comes and once a minute while it lasts, the end of all of them once."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._told_s: dict[str, float] = {}  # when each reason was last told; empty: nothing is to be ended
        self._held_s = 0.0

    def note(self, why: str, numbers: Callable[[], dict[str, Any]]) -> None:
        """Take note of what a round was held up by: a key of WHAT_HELPS, or "" for nothing. `numbers` are looked up for a line alone."""
        now_s = self._clock_s()
        if not why:
            if self._told_s and now_s - self._held_s >= OVER_S:
                self._told_s.clear()
                log.warning(OVER)
            return
        self._held_s = now_s
        told_s = self._told_s.get(why)
        if told_s is None or now_s - told_s >= AGAIN_S:
            self._told_s[why] = now_s
            log.warning(why, **numbers(), helps=WHAT_HELPS[why])
