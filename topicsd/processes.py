"""What every child process does first, and how it notices that its parent is gone."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})

_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_libc = ctypes.CDLL(None, use_errno=True)


def die_with(parent: int) -> None:
    """Have the kernel end this process by SIGKILL when `parent`, its parent, ends; end it now when that has happened already.

    SIGKILL, not a clean end: whoever holds the directory's lock or the port after the arbiter's death keeps the next server from starting.
    Nothing that was acked is lost by it.
    """
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


def keep_memory() -> None:
    """Have malloc keep what it has got for the next large request, instead of asking the kernel for zeroed pages again each time."""
    _libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    _libc.mallopt(_M_TRIM_THRESHOLD, 64 << 20)


def fork(run: Callable[[], int], close: Callable[[], None]) -> int:
    """Fork a child that runs `run` and exits with what it returns; return its pid.

    close: lets go, in the child, of what only the parent may hold. The child ignores the signals that a terminal or a supervisor sends to the
    whole group: the arbiter alone ends it.
    """
    parent = os.getpid()
    ignored = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2, signal.SIGWINCH, signal.SIGTTIN, signal.SIGTTOU}
    # Blocked until the child's own handlers stand: else a signal in between would run the arbiter's.
    signal.pthread_sigmask(signal.SIG_BLOCK, {*ignored, signal.SIGUSR1, signal.SIGCHLD})
    try:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            for each in ignored:
                signal.signal(each, signal.SIG_IGN)
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, set())
            die_with(parent)
            close()
            code = run()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
