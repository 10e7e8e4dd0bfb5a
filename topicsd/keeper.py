"""The keeper process: work on files that must not hold the writer up (ARCHITECTURE section 2).

Sealing, scrubbing and export are not written yet: until then it holds its place in the family of processes, so that its supervision is real.
"""

from __future__ import annotations

import os
import signal

from topicsd._native.regions import Shared
from topicsd.settings import Settings


def run_keeper(shared: Shared, settings: Settings) -> int:
    """Wait for SIGUSR1 of the arbiter and return 0."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    shared.set("keeper_pid", os.getpid())
    signal.sigwait({signal.SIGUSR1})
    shared.set("keeper_pid", 0)
    return 0
