"""What is set aside on the disk for sealing, so that a full one can be freed (ARCHITECTURE section 4).

Live records that are not sealed hold whole files of the log. Where deletes leave little else, those can only go when what is live is copied into
segments, and that takes room: as much as one log file holds, at most. It is kept in a file: a start makes it before anything is acked, the keeper
gives it back piece by piece; until it is whole again the log makes no new file of what comes free.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from topicsd import snapshot

if TYPE_CHECKING:
    from topicsd.settings import Settings

NAME = "reserve-seal"
BYTES_MAX = 16 << 20  # for log files above 8 MiB: what is live in one of them is then less, or more must be deleted
GIVEN_BYTES = 256 << 10  # at a time: less than the smallest log file, so that the log does not take it


def free_bytes(path: str) -> int:
    """Return what the disk has free for who is not root."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def wanted_bytes(settings: Settings) -> int:
    """Return how much is set aside: two log files, since a piece may reach into the file behind; nothing where nothing is sealed."""
    seals = settings.segment_max_events or settings.segment_max_bytes or settings.segment_max_age_ms
    return min(2 * settings.log_file_bytes, BYTES_MAX) if seals else 0


class Reserve:
    """The file that holds the room. The keeper changes it, the writer looks at it."""

    def __init__(self, data_dir: Path, wanted: int) -> None:
        self.path = data_dir / snapshot.FOLDER / NAME
        self.wanted = wanted

    def held(self) -> int:
        """Return how many bytes it holds."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def missing(self) -> int:
        """Return how many bytes it should hold beyond that."""
        return max(self.wanted - self.held(), 0)

    def fill(self, free: int) -> int:
        """Take what is missing of `free` bytes; return what is missing still. A disk that has become full meanwhile is no error."""
        held, missing = self.held(), self.missing()
        if missing and free > 0:
            with contextlib.suppress(OSError):
                file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
                try:
                    os.posix_fallocate(file, held, min(missing, free))
                finally:
                    os.close(file)
        return self.missing()

    def give(self) -> bool:
        """Give a piece back to the disk; False: there is none."""
        held = self.held()
        if held:
            os.truncate(self.path, max(held - GIVEN_BYTES, 0))
        return held > 0
