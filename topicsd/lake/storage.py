"""Where an export stands: a folder, or objects of a store. Names are relative to it; the same ones in both (docs/format/export.md)."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import xxhash

from topicsd.objects import Listed, ObjectStore, TakenError, is_url
from topicsd.segments.repair import sync_folder

LITTER_AGE_S = 3600.0  # a younger file without a manifest may be another run's


class VerifyError(Exception):
    """Say that a copy is not what its source says."""


class Storage(Protocol):
    """What holds an export. Raises OSError, FileNotFoundError for what is not there."""

    def prepare(self, folders: Iterable[str]) -> None:
        """Make what a run needs."""
        ...

    def listed(self, folder: str) -> list[Listed]:
        """What is in a folder, whole or not."""
        ...

    def size(self, name: str) -> int:
        """Bytes of a file."""
        ...

    def read(self, name: str) -> bytes:
        """All bytes of a file."""
        ...

    def create(self, name: str, raw: bytes) -> bool:
        """Have a file whole and durable, or say that its name is taken."""
        ...

    def keep(self, name: str, raw: bytes, run: str) -> bool:
        """Have bytes durably under a name that only they can have, verified there; False: they were. Raises VerifyError."""
        ...

    def tidy(self, folder: str, run: str) -> None:
        """Remove what a run has left unfinished; make the names of what it has finished durable."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        ...


class Folder:
    """A folder of the machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __str__(self) -> str:
        return str(self.root)

    def prepare(self, folders: Iterable[str]) -> None:
        """Make the folders."""
        for folder in folders:
            (self.root / folder).mkdir(parents=True, exist_ok=True)

    def listed(self, folder: str) -> list[Listed]:
        """The files of a folder."""
        out: list[Listed] = []
        if (self.root / folder).is_dir():
            for path in (self.root / folder).iterdir():
                try:
                    told = path.stat()
                except FileNotFoundError:  # another run's
                    continue
                out.append(Listed(f"{folder}/{path.name}", told.st_size, told.st_mtime))
        return sorted(out)

    def size(self, name: str) -> int:
        """Bytes of a file."""
        return (self.root / name).stat().st_size

    def read(self, name: str) -> bytes:
        """All bytes of a file."""
        return (self.root / name).read_bytes()

    def create(self, name: str, raw: bytes) -> bool:
        """Write a file under a temporary name, sync it, and link it to its own."""
        final = self.root / name
        unfinished = final.with_name(f"{final.name}.{secrets.token_hex(8)}.tmp")
        try:
            with unfinished.open("xb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(unfinished, final)  # a rename would replace what another run has written meanwhile
            except FileExistsError:
                return False
        finally:
            unfinished.unlink(missing_ok=True)
        sync_folder(final.parent)
        return True

    def keep(self, name: str, raw: bytes, run: str) -> bool:
        """Write a file under a temporary name, sync it, rename it, read it back."""
        final, unfinished = self.root / name, self.root / f"{name}.{run}.tmp"
        if final.exists() and final.read_bytes() == raw:
            os.utime(final)  # young again: a prune leaves it alone
            return False
        with unfinished.open("wb") as out:
            out.write(raw)
            out.flush()
            os.fsync(out.fileno())
        unfinished.replace(final)
        if final.read_bytes() != raw:
            raise VerifyError(f"{final}: it does not read as it was written")
        return True

    def tidy(self, folder: str, run: str) -> None:
        """Remove a run's temporary files, sync the folder."""
        for path in (self.root / folder).glob(f"*.{run}.tmp"):
            path.unlink(missing_ok=True)
        sync_folder(self.root / folder)

    def remove(self, name: str) -> None:
        """Unlink a file."""
        (self.root / name).unlink(missing_ok=True)


class Bucket:
    """Objects below a URL, `s3://bucket/prefix`. Each is whole or not there."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def __str__(self) -> str:
        return self.store.url

    def prepare(self, folders: Iterable[str]) -> None:
        """A store has no folders."""

    def listed(self, folder: str) -> list[Listed]:
        """The objects of a folder."""
        return self.store.listed(f"{folder}/")

    def size(self, name: str) -> int:
        """Bytes of an object."""
        return self.store.size(name)

    def read(self, name: str) -> bytes:
        """All bytes of an object."""
        return self.store.read(name)

    def create(self, name: str, raw: bytes) -> bool:
        """Put an object if its name is free."""
        try:
            self.store.create(name, raw)
        except TakenError:
            return False
        return True

    def keep(self, name: str, raw: bytes, run: str) -> bool:
        """Put an object and read it back, unless it is there; one that a prune might take for litter soon is put again: it is young then."""
        try:
            found = self.store.head(name)
            if found.bytes == len(raw) and self._same(name, raw):
                if abs(time.time() - found.modified) > LITTER_AGE_S / 4:
                    self.store.put(name, raw)
                return False
        except FileNotFoundError:
            pass
        self.store.put(name, raw)
        if not self._same(name, raw):
            raise VerifyError(f"{self.store.url}/{name}: it does not read as it was put there")
        return True

    def _same(self, name: str, raw: bytes) -> bool:
        back = self.store.read_range(name, 0, len(raw) + 1)
        return len(back) == len(raw) and xxhash.xxh3_128_digest(back) == xxhash.xxh3_128_digest(raw)

    def tidy(self, folder: str, run: str) -> None:
        """Nothing is ever unfinished, but for uploads in parts, which the store's own rules end."""

    def remove(self, name: str) -> None:
        """Delete an object."""
        self.store.delete(name)


def open_storage(place: str | Path | Storage, options: Mapping[str, str] | None = None) -> Storage:
    """A folder by its path, an object store by its URL; what is open already stays so. options: of obstore. Raises ObjectError."""
    if not isinstance(place, (str, Path)):
        return place
    return Bucket(ObjectStore(str(place), options)) if isinstance(place, str) and is_url(place) else Folder(Path(place))
