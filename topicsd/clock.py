"""Where the engine's time comes from."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tell two times: the wall's, which may step, and the monotonic one, which never does."""

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch."""
        ...

    def mono_ms(self) -> int:
        """Return monotonic milliseconds."""
        ...

    def mono_up_ms(self) -> int:
        """Return the same, rounded up: what is counted from the wall's time, as a lease is after a restart, must not end early."""
        ...


class SystemClock:
    """Read the machine's clocks."""

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def mono_ms(self) -> int:
        """Return monotonic milliseconds."""
        return time.monotonic_ns() // 1_000_000

    def mono_up_ms(self) -> int:
        """Return the same, rounded up."""
        return -(-time.monotonic_ns() // 1_000_000)
