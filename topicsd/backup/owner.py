"""Whose backups a target holds: two directories in one would be told apart by nobody, and a restore takes the newest.

A directory gets a random id with its first backup, `meta/backup-id`; each manifest says whose it is. A restored directory has none: it is another.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

from topicsd.backup import manifest
from topicsd.backup.shelf import BackupError, FolderShelf, Shelf
from topicsd.segments.repair import sync_folder

MEMORY = Path("meta") / "backup-id"


def check_place(data_dir: Path, shelf: Shelf) -> None:
    """Refuse a folder inside the data directory: it would be lost with it. Raises BackupError."""
    if isinstance(shelf, FolderShelf) and shelf.root.resolve().is_relative_to(data_dir.resolve()):
        raise BackupError(f"{shelf.root} is inside the data directory {data_dir}: a backup there is lost with it; give another target")


def claim(data_dir: Path, shelf: Shelf, *, take_over: bool) -> str:
    """Return the directory's id, which its next manifest is to have. Raises BackupError when the newest backups are another directory's, OSError."""
    own, theirs = _remembered(data_dir), _newest(shelf)
    if theirs and theirs != own and not take_over:
        raise BackupError(
            f"the target holds another directory's backups than those of {data_dir}: give another target; or, where this directory is to go on "
            "in place of that one (it was restored from there, say), --take-over: from then on the other one is refused"
        )
    return own or _made(data_dir)


def _newest(shelf: Shelf) -> str:
    """Whose the newest backup is that can be read and says so; those from before there were ids are anybody's. Raises NewerManifestError."""
    for number in reversed(manifest.numbers(shelf)):
        try:
            return manifest.read(shelf, number).directory
        except manifest.NewerManifestError:
            raise
        except BackupError:
            continue
    return ""


def _remembered(data_dir: Path) -> str:
    try:
        return (data_dir / MEMORY).read_text().strip()
    except FileNotFoundError:
        return ""


def _made(data_dir: Path) -> str:
    """Give the directory an id; of two runs at once both have the same."""
    folder = (data_dir / MEMORY).parent
    folder.mkdir(exist_ok=True)
    fd, temporary = tempfile.mkstemp(prefix=f"{MEMORY.name}.", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(secrets.token_hex(16) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, data_dir / MEMORY)
            sync_folder(folder)
        except FileExistsError:
            pass
    finally:
        Path(temporary).unlink()
    return _remembered(data_dir)
