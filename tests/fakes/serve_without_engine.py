"""Run the real arbiter and workers around a writer that only says that it is ready: `python serve_without_engine.py [MODE]`.

MODE crash: the writer dies as soon as it is ready. locked, format: it refuses the directory.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from topicsd import logs, supervisor
from topicsd.api.auth import Keyring
from topicsd.settings import load, take_api_keys

MODE = sys.argv[1] if len(sys.argv) > 1 else ""


def run_writer(_meters, _figures, shared, settings, _ring):
    """Do what the writer does around its work."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    shared.set("writer_pid", os.getpid())
    shared.set("generation", shared.get("generation") + 1)
    if MODE in ("locked", "format"):
        print(f"topicsd: {MODE}", file=sys.stderr)
        return {"locked": 3, "format": 4}[MODE]
    if MODE == "hopeless":
        return 1
    shared.ready = True
    if MODE == "slow":
        time.sleep(0.2)
    signal.sigwait({signal.SIGUSR1})
    print("writer ends", file=sys.stderr, flush=True)
    return 0


supervisor._run_writer = run_writer
chosen = load()
logs.configure(chosen.log_level)
supervisor.serve(chosen, Keyring.parse(take_api_keys()))
