"""Pins: while somebody copies a data directory, its writer removes nothing from it.

A pin is a file below `meta/pins/` that its holder has locked (flock). The lock ends with its holder, however it dies; the writer looks before it
lets files go, and takes away pins that nobody holds. A pin works without a server too, and from the moment it stands: what the newest two
snapshots need is there then, and stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = "meta/pins"


@contextmanager
def pin(data_dir: Path) -> Iterator[Path]:
    """Hold a pin. Raises OSError (a directory that is read-only cannot be pinned)."""
    folder = data_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        path = folder / f"{os.getpid()}-{secrets.token_hex(4)}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino == os.fstat(fd).st_ino:  # the writer has not taken it away between the two calls
                    yield path
                    return
        finally:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            os.close(fd)


def pinned(data_dir: Path) -> bool:
    """Say whether somebody holds a pin; take away those that nobody holds."""
    held = False
    try:
        found = list((data_dir / FOLDER).iterdir())
    except FileNotFoundError:
        return False
    for path in found:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError:
            held = True  # who knows
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(OSError):
                path.unlink()
        except OSError:
            held = True
        finally:
            os.close(fd)
    return held
