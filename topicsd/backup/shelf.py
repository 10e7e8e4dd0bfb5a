"""Where a backup stands: a folder or an object store. Objects are named by what is in them, so that each is put once and never changes.

objects/<first two digits>/<BLAKE2b-256, 64 hex digits>
manifests/<number, 20 digits>.json
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from topicsd import objects
from topicsd._native.file_ops import NewFile
from topicsd._native.file_ops import make_folder as make_one_folder
from topicsd._native.files import FileSystem
from topicsd._native.segment_build import make_folder
from topicsd.objects import ObjectStore

PIECE_BYTES = 1 << 20


class BackupError(Exception):
    """Say why a backup can not be made, or not be read."""


class TakenError(BackupError):
    """Say that somebody else has put something under a name meanwhile."""


def digest_of(raw: bytes | memoryview) -> str:
    """Return what an object of these bytes is called."""
    return hashlib.blake2b(raw, digest_size=32).hexdigest()


def object_name(digest: str) -> str:
    """Return where an object stands."""
    return f"objects/{digest[:2]}/{digest}"


def manifest_name(number: int) -> str:
    """Return where a manifest stands."""
    return f"manifests/{number:020d}.json"


class Shelf(Protocol):
    """What holds a backup. Raises BackupError."""

    def alone(self) -> AbstractContextManager[None]:
        """Wait until no other run writes here, where puts alone do not keep two apart."""
        ...

    def size(self, name: str) -> int | None:
        """Return the bytes of a name, None where it is not there."""
        ...

    def put(self, name: str, raw: bytes | memoryview) -> None:
        """Put bytes under a name, durably when it returns, unless it is there already: then TakenError."""
        ...

    def read(self, name: str) -> bytes:
        """Return all bytes of a name."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, in order."""
        ...


class FolderShelf:
    """A folder, made durable file by file."""

    def __init__(self, root: Path, files: FileSystem | None = None) -> None:
        self.root, self.files = root, files or FileSystem()
        self._made = set[str]()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder's LOCK."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "LOCK").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def size(self, name: str) -> int | None:
        """Return the bytes of a file."""
        try:
            return (self.root / name).stat().st_size
        except FileNotFoundError:
            return None
        except OSError as wrong:
            raise BackupError(f"{self.root / name}: {wrong.strerror}") from wrong

    def put(self, name: str, raw: bytes | memoryview) -> None:
        """Write a file under a temporary name, sync it, give it its name."""
        path = self.root / name
        if path.exists():
            raise TakenError(f"{path} is there already")
        try:
            if path.parent.name not in self._made:
                self.root.parent.mkdir(parents=True, exist_ok=True)
                make_one_folder(self.files, self.root)
                make_folder(self.root, path.parent.relative_to(self.root), self.files)
                self._made.add(path.parent.name)
            file = NewFile(self.files, path)
            try:
                file.write(raw)
                file.finish()
            except OSError:
                file.abort()
                raise
        except OSError as wrong:
            raise BackupError(f"{path}: {wrong.strerror}") from wrong

    def read(self, name: str) -> bytes:
        """Read a file."""
        try:
            return (self.root / name).read_bytes()
        except OSError as wrong:
            raise BackupError(f"{self.root / name}: {wrong.strerror}") from wrong

    def names(self, folder: str) -> list[str]:
        """List a folder; what is unfinished is not there."""
        try:
            return sorted(path.name for path in (self.root / folder).iterdir() if path.suffix != ".tmp")
        except FileNotFoundError:
            return []
        except OSError as wrong:
            raise BackupError(f"{self.root / folder}: {wrong.strerror}") from wrong


class ObjectShelf:
    """An object store by URL; a put says "only if it is not there" (a conditional put)."""

    def __init__(self, url: str, **options: Any) -> None:
        with _as_backup_error():
            self._store = ObjectStore(url, options)
        self.url = url

    def alone(self) -> AbstractContextManager[None]:
        """Nobody need wait: a put says whether the name was free."""
        return nullcontext()

    def size(self, name: str) -> int | None:
        """Ask for an object's head."""
        with _as_backup_error():
            try:
                return self._store.size(name)
            except FileNotFoundError:
                return None

    def put(self, name: str, raw: bytes | memoryview) -> None:
        """Put an object if it is not there."""
        with _as_backup_error():
            self._store.create(name, raw)

    def read(self, name: str) -> bytes:
        """Get an object."""
        with _as_backup_error():
            return self._store.read(name)

    def names(self, folder: str) -> list[str]:
        """List the objects of a folder."""
        with _as_backup_error():
            return sorted(found.name.rpartition("/")[2] for found in self._store.listed(f"{folder}/"))


@contextmanager
def _as_backup_error() -> Iterator[None]:
    try:
        yield
    except objects.TakenError as wrong:
        raise TakenError(str(wrong)) from wrong
    except OSError as wrong:
        raise BackupError(str(wrong)) from wrong


def open_shelf(place: str, files: FileSystem | None = None, **config: Any) -> Shelf:
    """Open a folder's path or an object store's URL. Raises BackupError."""
    if len(urlsplit(place).scheme) > 1:
        return ObjectShelf(place, **config)
    return FolderShelf(Path(place), files)
