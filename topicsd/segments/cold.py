"""The cold tier: data parts of old segments in another folder or in an object store. Index, tags and flags stay on the fast disk.

    put (copy, synced) -> verify what the store gives back -> flags beside the index -> the manifest says cold -> the hot data file goes

A store may be slow, hang or be gone: nothing here is called by the writer or by a worker's loop; `topicsd/segments/cold_reader.py` reads in threads.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from topicsd._native.files import FileSystem
from topicsd._native.segment import SegmentError, SegmentView, header_of
from topicsd._native.segment_build import make_folder
from topicsd._native.segment_repair import Examiner
from topicsd._native.whole_files import copy_whole, remove, write_whole
from topicsd.objects import ObjectStore
from topicsd.segments import newer
from topicsd.segments.names import TOPICS, Name, Spot, place_of, topic_folder
from topicsd.segments.newer import NewerFormatError

MARKER = "topicsd-cold.json"  # the tier's identity (cold_tier.py)
HEADER_BYTES = 128
CLIENT_TIMEOUT = "10s"  # of one request to an object store
CONNECT_TIMEOUT = "3s"
CLIENT_RETRIES = 2

T = TypeVar("T")


class ColdError(Exception):
    """Say that the cold store failed or gave back something else than was put there."""


class ColdEmptyError(ColdError):
    """Say that a folder is empty, or not there: as of a disk that is not mounted."""


class ColdMissingError(ColdError):
    """Say that an object is not there, in a store that is: neither an empty folder, as of a disk that is not mounted, nor a missing bucket."""


class Cold(Protocol):
    """Where data parts go. Names are paths relative to the data directory. Every call may block and raises ColdError."""

    def put(self, name: str, path: Path) -> None:
        """Copy a file there, durably when it returns; what was there under the name is replaced whole."""
        ...

    def read(self, name: str, offset: int, length: int) -> bytes:
        """At most `length` bytes from `offset` on, fewer at the object's end."""
        ...

    def size(self, name: str) -> int:
        """Bytes of an object."""
        ...

    def delete(self, name: str) -> None:
        """Remove an object, if it is there."""
        ...

    def names(self, prefix: str = "") -> Iterator[str]:
        """The names of all objects that begin with `prefix`, in order."""
        ...


class FolderCold:
    """A folder, on a slower or larger disk."""

    def __init__(self, root: Path, files: FileSystem | None = None) -> None:
        self.root = root
        self._files = files

    def put(self, name: str, path: Path) -> None:
        """Copy a file there: synced, renamed, directory synced."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            make_folder(self.root, str(Path(name).parent), self._files)
            copy_whole(path, self.root / name, self._files)
        except OSError as wrong:
            raise ColdError(f"{self.root / name}: {wrong}") from wrong

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Bytes of a file."""
        try:
            with (self.root / name).open("rb", buffering=0) as file:
                file.seek(offset)
                return file.read(length) or b""
        except FileNotFoundError as wrong:
            raise self._missing(name) from wrong
        except OSError as wrong:
            raise ColdError(f"{self.root / name}: {wrong}") from wrong

    def size(self, name: str) -> int:
        """Bytes of a file."""
        try:
            return (self.root / name).stat().st_size
        except FileNotFoundError as wrong:
            raise self._missing(name) from wrong
        except OSError as wrong:
            raise ColdError(f"{self.root / name}: {wrong}") from wrong

    def _missing(self, name: str) -> ColdError:
        if name != MARKER and not (self.root / TOPICS).is_dir():
            return ColdEmptyError(f"{self.root} is empty: is its disk mounted?")
        return ColdMissingError(f"{self.root / name} is not there")

    def delete(self, name: str) -> None:
        """Unlink a file."""
        try:
            remove(self.root / name, self._files)
        except FileNotFoundError:
            pass
        except OSError as wrong:
            raise ColdError(f"{self.root / name}: {wrong}") from wrong

    def names(self, prefix: str = "") -> Iterator[str]:
        """The files below the folder."""
        found = (str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file() and path.suffix != ".tmp")
        yield from sorted(name for name in found if name.startswith(prefix))


class ObjectCold:
    """An object store by URL. A reader waits for a while only: few tries, and short ones."""

    def __init__(self, url: str, **options: Any) -> None:
        try:
            self._store = ObjectStore(url, options, timeout=CLIENT_TIMEOUT, connect_timeout=CONNECT_TIMEOUT, retries=CLIENT_RETRIES, attempts=1)
        except OSError as wrong:
            raise ColdError(str(wrong)) from wrong
        self.url = url

    def _call(self, name: str, function: Callable[..., T], *args: Any) -> T:
        try:
            return function(name, *args)
        except FileNotFoundError as wrong:
            if wrong.filename == self._store.url:  # the bucket itself
                raise ColdError(str(wrong)) from wrong
            raise ColdMissingError(f"{self.url}/{name} is not there") from wrong
        except OSError as wrong:
            raise ColdError(str(wrong)) from wrong

    def put(self, name: str, path: Path) -> None:
        """Upload a file: large ones in parts, visible at once when the last one is there."""
        self._call(name, self._store.put, path)

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Bytes of an object, by range requests."""
        return bytes(self._call(name, self._store.read_range, offset, offset + length))

    def size(self, name: str) -> int:
        """Bytes of an object."""
        return self._call(name, self._store.size)

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        self._call(name, self._store.delete)

    def names(self, prefix: str = "") -> Iterator[str]:
        """List all objects, page by page."""
        yield from (found.name for found in self._call(prefix, self._store.listed))


def open_cold(place: str, files: FileSystem | None = None, *, look: bool = True, **config: Any) -> Cold:
    """Open what TOPICS_COLD_DIR names: a folder's path or an object store's URL. A folder is made when something is put. Raises ColdError.

    `look`: whether the folder is looked at, to tell at once what is wrong with it. A mount that hangs holds up whoever looks.
    """
    if len(urlsplit(place).scheme) > 1:
        return ObjectCold(place, **config)
    root = Path(place)
    if not look:
        return FolderCold(root, files)
    try:
        if not stat.S_ISDIR(root.stat().st_mode):
            raise ColdError(f"{place} is no folder")
    except FileNotFoundError:
        pass
    except OSError as wrong:
        raise ColdError(f"{place}: {wrong}") from wrong
    return FolderCold(root, files)


# ---- moving a segment there


def cold_name(name: Name) -> str:
    """The name of a segment's data part in the cold tier."""
    return f"{topic_folder(name.topic_id)}/{name.path('data').name}"


def flags_path(name: Name) -> Path:
    """The file with the flag bytes of a cold segment."""
    return name.path("flags")


def copy_to_cold(cold: Cold, name: Name, files: FileSystem | None = None) -> int:
    """Copy a segment's data part to the cold tier, read it back and verify it, then write its flags file beside the index. Bytes copied.

    The hot data file stays: whoever publishes the move sets `late_flags` first, and removes it afterwards. May be done again after a crash.
    Raises ColdError (also when something else comes back than was put), SegmentError (the hot segment is damaged), OSError.
    """
    place = place_of(name)
    index, data = place.index.path.read_bytes(), place.data.path.read_bytes()
    view = SegmentView(index, data)
    status, upto = view.check(view.first_seq, view.last_seq - view.first_seq + 1)
    if status:
        raise SegmentError(status, f"{place.data.path}, seq {upto}")
    target = cold_name(name)
    refuse_newer_object(cold, target)
    cold.put(target, place.data.path)
    verify_back(cold, target, len(data), index)
    write_whole(flags_path(name), view.flags_part(), files)
    return len(data)


def refuse_newer_object(cold: Cold, name: str) -> None:
    """Refuse to put anything where an object of a newer version stands. Raises ColdError."""
    try:
        newer.refuse_part(cold.read(name, 0, HEADER_BYTES), "data", Spot(Path(name)))
    except (ColdMissingError, ColdEmptyError):
        return
    except NewerFormatError as there:
        raise ColdError(f"in the cold tier: {there}") from None


def verify_back(cold: Cold, name: str, size: int, index: bytes) -> None:
    """Read an object and verify it against the segment's index. Raises ColdError."""
    back = cold.read(name, 0, size + 1)
    if len(back) != size or not _same(back, index):
        raise ColdError(f"{name}: what the cold store gives back is not what was put there")


def what_is_wrong(cold: Cold, name: str, index: bytes) -> str:
    """Read an object and hold it against the segment's index: "" or what is wrong.

    Raises ColdError where the store can not be asked, NewerFormatError.
    """
    try:
        back = cold.read(name, 0, cold.size(name))
    except ColdMissingError as wrong:
        return str(wrong)
    newer.refuse_part(back, "data", Spot(Path(name)))
    return "" if fits(back, index) else f"{name}: what the cold store gives back is not what was put there"


def fits(back: bytes, index: bytes) -> bool:
    """Say whether this is the whole data part that the index belongs to."""
    try:
        return len(back) == header_of(back, "data").part_bytes and _same(back, index)
    except SegmentError:
        return False


def _same(data: bytes, index: bytes) -> bool:
    """Say whether a data part is whole and the one that the index belongs to; flag bytes may differ."""
    try:
        found = Examiner().examine(data, index)
    except (SegmentError, OSError):
        return False
    return found.data_status == 0 and found.index_status == 0


def late_flags(name: Name) -> list[int]:
    """Offsets in the flags file to be set for what has been deleted in the hot data file since the flags file was written."""
    place = place_of(name)
    hot = SegmentView(place.index.path.read_bytes(), place.data.path.read_bytes())
    flags = flags_path(name).read_bytes()
    now = hot.flags_part()
    return [offset for offset in range(HEADER_BYTES, len(now)) if now[offset] != flags[offset]]


def flag_offset(first_seq: int, seq: int) -> int:
    """Offset in the flags file of a seq's flag byte."""
    return HEADER_BYTES + seq - first_seq
