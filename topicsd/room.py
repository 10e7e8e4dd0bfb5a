"""How much of the disk the log takes at a time, and what is set aside for sealing, so that a full disk can be freed (ARCHITECTURE section 4).

Live records that are not sealed hold whole files of the log. Where deletes leave little else, those can only go when what is live is copied into
segments, and that takes room: as much as one log file holds, at most. So log files are small where the disk is. The room is kept in a file: a start
makes it before anything is acked, the keeper gives it back piece by piece; until it is whole again the log makes no new file of what comes free.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from topicsd import snapshot

if TYPE_CHECKING:
    from topicsd.settings import Settings

NAME = "reserve-seal"
BYTES_MAX = 16 << 20  # if more is live in one log file, more must be deleted
GIVEN_BYTES = 256 << 10  # at a time: less than the smallest log file, so that the log does not take it
RESERVE_SHARE = 8
FILE_SHARE = 32  # a log file is at most this part of the disk: one that is being written gives nothing back
FILE_BYTES_MIN = 1 << 20
PAGE_BYTES = 4096
NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
FULL_SHARE = 16  # with less than this part of it free,
FULL_BYTES_MAX = 16 << 20  # or with less than this, a disk is as good as full: the next batch may not find room


def free_bytes(path: str) -> int:
    """Return what the disk has free for who is not root."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def has_inodes(path: str) -> bool:
    """Tell whether one more file can be made; a disk that does not count them always has one."""
    disk = os.statvfs(path)
    return disk.f_files == 0 or disk.f_favail > 0


def disk_bytes(path: Path) -> int:
    """Return how large the disk is that a directory stands on, or will."""
    while not path.exists():
        path = path.parent
    disk = os.statvfs(path)
    return disk.f_blocks * disk.f_frsize


def file_bytes(settings: Settings) -> int:
    """Return how large log files are: as is set, less on a small disk."""
    return min(settings.log_file_bytes, max(_share(settings), FILE_BYTES_MIN))


def _share(settings: Settings) -> int:
    return disk_bytes(settings.data_dir.absolute()) // FILE_SHARE // PAGE_BYTES * PAGE_BYTES


def segment_bytes(settings: Settings) -> int:
    """Return how much goes into a segment at most: on a small disk less than is set, since a segment goes as a whole. 0: so much as there is."""
    return min(settings.segment_max_bytes, max(_share(settings), FILE_BYTES_MIN))


def full_bytes(settings: Settings) -> int:
    """Return with how much less than that free, beside what is set aside, a disk is as good as full."""
    return max(file_bytes(settings), min(disk_bytes(settings.data_dir.absolute()) // FULL_SHARE, FULL_BYTES_MAX))


def wanted_bytes(settings: Settings) -> int:
    """Return how much is set aside: two log files, since a piece may reach into the file behind; nothing where nothing is sealed.

    Or an eighth of the disk, if that is more: a batch is sealed as a whole, however large it is, and small records take more room sealed than not.
    """
    seals = settings.segment_max_events or settings.segment_max_bytes or settings.segment_max_age_ms
    disk = disk_bytes(settings.data_dir.absolute())
    return min(max(2 * file_bytes(settings), disk // RESERVE_SHARE), BYTES_MAX) if seals else 0


class NoRoomError(Exception):
    """Say that a disk does not take the log file that each start begins, not even with what was set aside."""

    def __init__(self, path: str) -> None:
        what = f"{free_bytes(path)} bytes free" if has_inodes(path) else "no inode free"
        super().__init__(f"the disk of {path} has no room for a log file ({what}), and nothing is set aside any more: remove what else stands there")


class Reserve:
    """The file that holds the room. The keeper changes it; the writer looks at it, and takes of it for a start or a snapshot that finds no other."""

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

    def give(self, size: int = GIVEN_BYTES) -> bool:
        """Give a piece back to the disk; False: there is none."""
        held = self.held()
        if held:
            os.truncate(self.path, max(held - size, 0) // PAGE_BYTES * PAGE_BYTES)
        return held > 0

    def drop(self) -> bool:
        """Give all of it back, and the file itself: another one can be made then. False: there was none."""
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        return True
