"""Wait for what another thread or process does; the time is only how long a bug may take to fail the test."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60.0


def eventually(check: Callable[[], Any], within_s: float = PATIENCE_S) -> Any:
    """Call `check` until it returns something true, at most so many seconds. Return its last result."""
    deadline = time.monotonic() + within_s
    while not (result := check()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return result
