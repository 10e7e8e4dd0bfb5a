"""The folder that log files are moved to instead of being removed: a disk that is not mounted is not taken for a new one.

    topicsd-archive.json in the archive      format and a random id; written before anything is moved there
    meta/log-archive in the directory        the same, and the archive's path; from then on that archive without its marker is *away*

An archive that the directory does not remember, from before there were markers or at another path, is taken as it is. One thread at a time.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from pathlib import Path

from topicsd._native import file_ops
from topicsd._native.files import FileSystem
from topicsd._native.whole_files import write_whole

MARKER = "topicsd-archive.json"
MEMORY = Path("meta") / "log-archive"
AWAY = f"{MARKER} is not there or another: is its disk mounted? Log files stay here until it is back (for a new one at this place remove {MEMORY})"
Json = dict[str, object]


class ArchiveAwayError(OSError):
    """Say that the archive is not there."""


class LogArchive:
    """Where log files go. `files`: how the directory's are written."""

    def __init__(self, path: Path, data_dir: Path, files: FileSystem) -> None:
        self.path, self.memory, self.files = path, data_dir / MEMORY, files

    def move(self, file: Path) -> None:
        """Move a shard's log file there; one that is gone has been moved. Raises ArchiveAwayError, OSError: then the file is where it was."""
        self.verify()
        folder = self.path / file.parent.name
        folder.mkdir(exist_ok=True)  # never the archive's own: its disk may have gone by now
        try:
            file_ops.move_across(self.files, file, folder / file.name)
        except FileNotFoundError:
            if file.exists():
                raise

    def verify(self) -> None:
        """Look whether it is the archive that was used; mark one that is used for the first time. Raises ArchiveAwayError, OSError."""
        place = str(self.path.absolute())
        known = _read(self.memory)
        try:
            mark = _read(self.path / MARKER)
        except OSError as wrong:
            raise ArchiveAwayError(f"{self.path}: {wrong}") from None
        if known.get("path") != place:
            self._remember(place, mark)
        elif mark.get("id") != known.get("id"):
            raise ArchiveAwayError(f"{self.path}: {AWAY}")

    def _remember(self, place: str, mark: Json) -> None:
        if "id" not in mark:
            mark = {"format": "topicsd-archive", "version": 1, "id": secrets.token_hex(16)}
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self.path / MARKER, json.dumps(mark).encode())
        with contextlib.suppress(OSError):  # a full disk is what files go for: it is remembered the next time
            write_whole(self.memory, json.dumps({**mark, "path": place}).encode(), self.files)


def _read(path: Path) -> Json:
    """Return what a marker says; {} where there is none, or one that says nothing. Raises OSError."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
