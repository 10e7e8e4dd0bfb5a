"""Which cold tier a data directory's objects are in: a disk that is not mounted, or another directory's folder, is not taken for one that lost them.

    topicsd-cold.json in the tier      format and a random id; written before anything is moved there
    meta/cold-tier in the directory    the same bytes; from then on a tier without them is *away*: it is not read, written to or judged

A directory from before there were ids knows its tier by what it has moved there, and marks it then.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from topicsd._native.files import FileSystem
from topicsd._native.whole_files import write_whole
from topicsd.segments import names
from topicsd.segments.cold import MARKER, Cold, ColdEmptyError, ColdError, ColdMissingError, cold_name, open_cold, what_is_wrong
from topicsd.segments.names import Name
from topicsd.segments.newer import NewerFormatError

MEMORY = Path("meta") / "cold-tier"
PLANNED = Path("meta") / "cold-tier.new"  # an id that no tier may have yet: the tier is marked, then the directory remembers it
FORMAT, VERSION = "topicsd-cold", 1
MARKER_BYTES_MAX = 4096
BELIEVED_S = 1.0  # a read asks for the marker again after so long, and whenever an object is not there
FAILS, UNMARKED, ANOTHER, UNKNOWN, HANGS = 1, 2, 3, 4, 5
MEET_S = 15.0  # whoever may mark it waits so long for another one that does
WHY = {
    FAILS: "it can not be asked; the keeper's log has the reason",
    UNMARKED: f"{MARKER} is not there: is its disk mounted?",
    ANOTHER: f"its {MARKER} is not the one that {MEMORY} remembers: it is another directory's",
    UNKNOWN: f"{MARKER} is not there, and nothing of what was moved there is: is it the right one, and its disk mounted?",
    HANGS: "a call of the keeper has not come back; its log says which",
}


T = TypeVar("T")


class ColdAwayError(ColdError):
    """Say that this is not the tier where the directory's objects are. `code`: a key of WHY."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the cold tier is away: {WHY[code]}")
        self.code = code


class KnownCold:
    """A Cold that is asked who it is before it is believed. Any thread. `keeps`: this process may mark the tier (the keeper alone)."""

    def __init__(self, cold: Cold, data_dir: Path, *, keeps: bool = False, files: FileSystem | None = None,
                 clock_s: Callable[[], float] = time.monotonic) -> None:  # fmt: skip
        self.cold, self.data_dir, self.keeps, self._files, self._clock_s = cold, data_dir, keeps, files, clock_s
        self._lock = threading.Lock()
        self._believed_until_s = 0.0
        self._unused = False  # nothing was ever moved; told by the directory once, for as long as it remembers no tier

    # ---- Cold

    def put(self, name: str, path: Path) -> None:
        """Copy a file there. The marker is looked at before and after: a disk may go in between."""
        self.verify(first_use=True)
        self.cold.put(name, path)
        self.verify()

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Bytes of an object."""
        return self._asked(lambda: self.cold.read(name, offset, length))

    def size(self, name: str) -> int:
        """Bytes of an object."""
        return self._asked(lambda: self.cold.size(name))

    def delete(self, name: str) -> None:
        """Remove an object; of a tier that nothing was ever moved to, none is ours."""
        self.verify()
        if self._remembered() is not None:
            self.cold.delete(name)

    def names(self, prefix: str = "") -> Iterator[str]:
        """The names of all objects."""
        self.verify()
        yield from (name for name in self.cold.names(prefix) if name != MARKER)

    def _asked(self, ask: Callable[[], T]) -> T:
        self.believe()
        try:
            return ask()
        except ColdMissingError:
            self.verify()
            raise

    # ---- who it is

    def believe(self) -> None:
        """Verify it, unless that has just been done."""
        if self._clock_s() >= self._believed_until_s:
            self.verify()

    def verify(self, *, first_use: bool = False) -> None:
        """Look whether this is the tier. `first_use`: something is about to be moved there. Raises ColdAwayError, ColdError."""
        self._believed_until_s = 0.0
        began_s = self._clock_s()
        if (known := self._remembered()) is not None:
            mark = self._mark()
            if mark != known:
                raise ColdAwayError(UNMARKED if mark is None else ANOTHER)
        else:
            self._meet(first_use)
        self._believed_until_s = began_s + BELIEVED_S

    def _meet(self, first_use: bool) -> None:
        """The directory remembers no tier. Who only reads marks none, and needs no lock: a read that hangs would hold it for ever."""
        if not self.keeps:
            self._look_for_it(first_use)
            return
        if not self._lock.acquire(timeout=MEET_S):
            raise ColdError("the cold tier is being marked, or looked for, by a call that has not come back")
        try:
            self._look_for_it(first_use)
        finally:
            self._lock.release()

    def _look_for_it(self, first_use: bool) -> None:
        if not self._unused:
            needed = list(self._needed())
            self._unused = not needed and self.keeps  # whoever moves knows; what another process moves it has to look for
            if needed:
                self._recognise(needed)
                self._adopt(self._mark() or self._planned())
                return
        if first_use:
            mark, planned = self._mark(), self._planned()
            if mark not in (None, planned):
                raise ColdAwayError(ANOTHER)
            self._adopt(planned)

    def _needed(self) -> Iterator[Name]:
        """Segments whose data is not here."""
        for path in names.files_below(self.data_dir):
            named = names.parse(path) if path.suffix == names.FLAGS_SUFFIX else None
            if named is not None and not named[0].path("data").exists():
                yield named[0]

    def _recognise(self, needed: list[Name]) -> None:
        for name in needed:
            try:
                if not what_is_wrong(self.cold, cold_name(name), name.path("index").read_bytes()):
                    return
            except (FileNotFoundError, NewerFormatError):
                continue
            except ColdEmptyError:
                break
        raise ColdAwayError(UNKNOWN)

    def _adopt(self, mark: bytes) -> None:
        if not self.keeps:
            return
        try:
            (self.data_dir / MEMORY).parent.mkdir(exist_ok=True)
            write_whole(self.data_dir / PLANNED, mark, self._files)
            if not self._mark():
                self.cold.put(MARKER, self.data_dir / PLANNED)
                if self._mark() != mark:
                    raise ColdError(f"{MARKER}: what the cold store gives back is not what was put there")
            write_whole(self.data_dir / MEMORY, mark, self._files)
            (self.data_dir / PLANNED).unlink(missing_ok=True)
        except OSError as wrong:
            raise ColdError(str(wrong)) from wrong

    def _mark(self) -> bytes | None:
        try:
            return self.cold.read(MARKER, 0, MARKER_BYTES_MAX)
        except ColdMissingError:
            return None

    def _remembered(self) -> bytes | None:
        return _content(self.data_dir / MEMORY)

    def _planned(self) -> bytes:
        made = json.dumps({"format": FORMAT, "format_version": VERSION, "id": secrets.token_hex(16)}).encode() + b"\n"
        return _content(self.data_dir / PLANNED) or made


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as wrong:
        raise ColdError(f"{path}: {os.strerror(wrong.errno or 0)}") from wrong


def was_used(data_dir: Path) -> bool:
    """Tell whether anything of a directory was ever moved to a tier, as far as the directory knows."""
    flags = (path for path in names.files_below(data_dir) if path.suffix == names.FLAGS_SUFFIX)
    return (data_dir / MEMORY).exists() or (data_dir / PLANNED).exists() or next(flags, None) is not None


def open_tier(place: str, data_dir: Path, *, keeps: bool = False, look: bool = True) -> KnownCold:
    """Open a data directory's cold tier. Nothing is made yet, and nothing asked unless told to `look` at the place. Raises ColdError."""
    return KnownCold(open_cold(place, look=look), data_dir, keeps=keeps)
