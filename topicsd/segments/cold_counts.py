"""How much of a damaged object in the cold tier nobody can read: the keeper reads it once, as a worker would, and counts.

The object is fetched in a thread, piece by piece; what a store that does not answer leaves open is counted later, and keeps nobody waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from topicsd import versions
from topicsd._native import upkeep
from topicsd._native.regions import Shared
from topicsd._native.segment import FORMAT_VERSION, newer_version
from topicsd._native.upkeep import File, Live
from topicsd.segments.cold import Cold, ColdMissingError, cold_name
from topicsd.segments.cold_reader import BLOCK_BYTES, ColdLimits, ColdReader, ColdUnavailableError
from topicsd.segments.names import name_of

PIECE_BYTES = 16 << 20
CACHE_BYTES = 1 << 20  # the windows are the cache, and one object after the other is looked at
Row = tuple[int, int, int, int]  # slot, topic id, records, bytes
Key = tuple[int, int]  # number, serial


class Coming(NamedTuple):
    """A piece of an object that has been asked for."""

    file: File
    first: int
    last: int
    future: Future[bytes]


class ColdCounts:
    """One thread, the keeper's."""

    def __init__(self, shared: Shared, cold: Cold, mono_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000) -> None:
        self._shared = shared
        self._reader = ColdReader(cold, replace(ColdLimits(), cache_bytes=CACHE_BYTES, threads=1), mono_ms)
        self._known: dict[Key, tuple[object, list[Row]]] = {}  # what was alive then, and the count
        self._headed = set[Key]()  # objects whose first bytes have come: they say of which version it is
        self.newer: dict[Key, str] = {}  # objects that a newer version wrote: what is said of them
        self._coming: Coming | None = None
        upkeep.cold_attach(shared, CACHE_BYTES)

    def arrived(self) -> bool:
        """Tell whether something has come that a count has waited for."""
        self._reader.give_up_late()
        return self._coming is not None and self._coming.future.done()

    def of(self, file: File, alive: Live | None) -> list[Row]:
        """What of a file no reader can have, as upkeep.unreadable; as far as it is known by now. `alive`: what of it is not deleted."""
        key, now = (file.number, file.serial), (alive, upkeep.firsts(self._shared, file.number))
        known = self._known.get(key)
        if known is not None and known[0] == now:
            return known[1]
        if self._take() and key not in self._headed:
            self._ask(file, 0, 0)
        elif self._coming is None:
            upkeep.cold_wanted(self._shared)
            rows = upkeep.unreadable(self._shared, file.number)
            wanted = upkeep.cold_wanted(self._shared)
            if wanted is None:
                self._known[key] = now, rows
                return rows
            self._ask(*wanted)
        return known[1] if known is not None else []

    def _ask(self, file: File, begin: int, _end: int) -> None:
        first = begin - begin % BLOCK_BYTES
        last = min(first + PIECE_BYTES, file.bytes)
        try:
            future = self._reader.submit(cold_name(name_of(Path(), file.topic_id, file.name, file.edition)), first, last)
        except ColdUnavailableError:
            return
        self._coming = Coming(file, first, last, future)

    def _take(self) -> bool:
        """Lay what has come where it is looked for; False while it is still on its way."""
        coming = self._coming
        if coming is None:
            return True
        if not self.arrived():
            return False
        self._coming = None
        try:
            raw = coming.future.result()
        except ColdUnavailableError:
            return True
        except ColdMissingError:
            raw = b""
        if coming.first == 0:
            self._headed.add((coming.file.number, coming.file.serial))
            if version := newer_version(raw, "data"):
                self.newer[coming.file.number, coming.file.serial] = versions.newer(version, FORMAT_VERSION)
        upkeep.cold_put(self._shared, coming.file.serial, coming.file.bytes, coming.first, raw.ljust(coming.last - coming.first, b"\0"))
        return True

    def close(self) -> None:
        """Let the thread end."""
        self._reader.close()
