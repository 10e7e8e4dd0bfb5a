"""What the disk under a test's folder can do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

COHERENT = ("ext4", "ext3", "ext2", "xfs")


def file_system_of(path: Path) -> str:
    """Return the type of the file system that holds a folder, as the mount table names it."""
    best, kind = "", ""
    wanted = str(path.resolve()) + "/"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mounted, found, *_ = line.split()
        at = mounted.encode().decode("unicode_escape").rstrip("/") + "/"
        if wanted.startswith(at) and len(at) >= len(best):
            best, kind = at, found
    return kind


def need_direct_writes(path: Path) -> None:
    """Skip the test where nothing is written past the page cache."""
    kind = file_system_of(path)
    if kind not in COHERENT:
        pytest.skip(f"{kind} is written through the page cache alone; ext4 or XFS is needed")


def drop_from_memory(folder: Path) -> None:
    """Have the page cache forget what no process maps of the files below a folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            fd = os.open(path, os.O_RDWR)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
