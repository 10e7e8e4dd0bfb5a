"""What a worker reads from the cold tier: a read that lacks bytes has them fetched in a thread and is done again; the loop waits for nothing.

A store that hangs costs a request `cold_wait_ms`, then 503 `cold_unavailable` with Retry-After; further ones are refused at once for a while
(topicsd/segments/cold_reader.py). An object that the store says is not there is damage: its records are told as `corrupt`, and the read goes on.
Reads of hot records never come here.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import structlog

from topicsd import errors, limits
from topicsd._native import upkeep
from topicsd._native.regions import Shared
from topicsd._native.upkeep import File
from topicsd.figures import Figures
from topicsd.segments import names
from topicsd.segments.cold import Cold, ColdError, ColdMissingError, cold_name
from topicsd.segments.cold_reader import BLOCK_BYTES, ColdLimits, ColdReader, ColdUnavailableError
from topicsd.segments.cold_tier import open_tier
from topicsd.settings import Settings

if TYPE_CHECKING:
    from topicsd.api.feed import FeedLoop

READER_CACHE_BYTES = 1 << 20  # the windows are the cache; this only joins requests for the same blocks
OPEN_RETRY_S = 5.0
LOOK_S_MAX = 5.0  # so long a read waits for the keeper to look at the damage that it has met: about a second a GiB of log
LOOK_EVERY_S = 0.05
LOOKS_MAX, LOOKS_FORGOTTEN_S = 3, 60.0  # of a topic, for its streams
WANTED, COMES, REFUSED = range(3)  # what the feed is answered: 0 the record is just not readable

T = TypeVar("T")
log = structlog.get_logger("cold")


async def looked_at(shared: Shared, figures: Figures) -> bool:
    """Wait until the keeper has looked at the damage that was met until now; False: there is none that waits, or it has not come to it in time."""
    met, log_met, end_s = shared.get("damage_met"), shared.get("log_damage_met"), time.monotonic() + LOOK_S_MAX
    waited = False
    while figures.get("damage_looked") < met or figures.get("log_damage_looked") < log_met:
        if time.monotonic() >= end_s:
            return False
        waited = True
        await asyncio.sleep(LOOK_EVERY_S)
    return waited


class ColdTier:
    """One a worker; for the loop's thread."""

    def __init__(self, shared: Shared, settings: Settings, figures: Figures, open_store: Callable[[str], Cold] | None = None) -> None:
        self.shared, self.settings, self.figures = shared, settings, figures
        self._open_store = open_store or (lambda place: open_tier(place, settings.data_dir, look=False))
        self._limits = ColdLimits(cache_bytes=READER_CACHE_BYTES, wait_ms=settings.cold_wait_ms)
        self._reader: ColdReader | None = None
        self._open_at_s = 0.0
        self._for_feed: dict[tuple[int, int], set[int]] = {}  # (serial, begin) -> slots that wait for it
        self._refused: dict[int, float] = {}  # slot -> until when its streams are refused
        self._looks: dict[int, tuple[float, int]] = {}  # slot -> since when, and how often its damage was waited for
        self._looking: set[asyncio.Task[None]] = set()
        self.feed: FeedLoop | None = None
        upkeep.cold_attach(shared, settings.cold_cache_bytes)

    # ---- requests

    async def read(self, read: Callable[[], T]) -> T:
        """Do a read, fetch what it lacks, do it again. Raises ColdUnavailable, and what the read raises when nothing cold is to blame."""
        for _ in range(limits.COLD_FETCHES_MAX):
            try:
                return read()
            except errors.Unread:
                wanted = upkeep.cold_wanted(self.shared)
                if wanted is None:
                    raise
            await self._fetch(*wanted)
        raise self._unavailable("the cold tier is too slow for so large a page", limits.RETRY_AFTER_S)

    async def _fetch(self, file: File, begin: int, end: int) -> None:
        future, first, last = self._ask(file, begin, end)
        try:
            raw = await asyncio.wait_for(asyncio.wrap_future(future), self._limits.wait_ms / 1000)
        except (TimeoutError, asyncio.TimeoutError):  # noqa: UP041
            if self._reader is not None:
                self._reader.timed_out()
            raise self._unavailable("the cold tier does not answer in time", self._limits.retry_ms // 1000) from None
        except ColdUnavailableError as wrong:
            raise self._unavailable(str(wrong), wrong.retry_after_s) from None
        except ColdMissingError as wrong:  # the store has answered: this is damage, and not a store that one can wait for
            log.error("the cold tier has lost an object", why=str(wrong))
            raw = b""
        self._take(file, first, last, raw)

    def _ask(self, file: File, begin: int, end: int) -> tuple[concurrent.futures.Future[bytes], int, int]:
        """Ask for whole blocks around a range. Raises ColdUnavailable."""
        first, last = begin - begin % BLOCK_BYTES, min(-(-end // BLOCK_BYTES) * BLOCK_BYTES, file.bytes)
        name = cold_name(names.name_of(Path(), file.topic_id, file.name, file.edition))
        try:
            return self._store().submit(name, first, last), first, last
        except ColdUnavailableError as wrong:
            raise self._unavailable(str(wrong), wrong.retry_after_s) from None

    def _take(self, file: File, first: int, last: int, raw: bytes) -> None:
        """Lay the bytes where reads look for them. Of an object that is gone or too short, what is missing is told as `corrupt`."""
        self.figures.add("cold_reads")
        self.figures.add("cold_read_bytes", len(raw))
        upkeep.cold_put(self.shared, file.serial, file.bytes, first, raw.ljust(last - first, b"\0"))

    def _store(self) -> ColdReader:
        if self._reader is None:
            now_s = time.monotonic()
            if not self.settings.cold_dir or now_s < self._open_at_s:
                raise self._unavailable("no cold tier is configured" if not self.settings.cold_dir else "the cold tier cannot be opened", 5)
            self._open_at_s = now_s + OPEN_RETRY_S
            try:
                self._reader = ColdReader(self._open_store(self.settings.cold_dir), self._limits)
            except ColdError as wrong:
                log.error("no cold tier", why=str(wrong))
                raise self._unavailable("the cold tier cannot be opened", int(OPEN_RETRY_S)) from None
        return self._reader

    def _unavailable(self, message: str, retry_after_s: int) -> errors.ColdUnavailable:
        self.figures.add("cold_unavailable")
        return errors.ColdUnavailable(message, {"retry_after_ms": 1000 * retry_after_s})

    # ---- streams

    def for_feed(self, slot: int) -> int:
        """Have fetched what the feed lacks for a topic: COMES and `dirty` later, REFUSED, or WANTED when nothing cold is to blame."""
        wanted = upkeep.cold_wanted(self.shared)
        if wanted is None:
            return self._look_for_feed(slot)
        if time.monotonic() < self._refused.get(slot, 0.0):
            return REFUSED
        file, begin, _end = wanted
        waiting = self._for_feed.setdefault((file.serial, begin), set())
        if not waiting:
            task = asyncio.get_running_loop().create_task(self._fetch_for_feed(*wanted))
            task.add_done_callback(lambda _task: None)
        waiting.add(slot)
        return COMES

    def _look_for_feed(self, slot: int) -> int:
        """Have a topic read again once the keeper has looked at the damage that a read has met; WANTED when that has not helped."""
        now_s = time.monotonic()
        since_s, looks = self._looks.get(slot, (now_s, 0))
        if now_s - since_s > LOOKS_FORGOTTEN_S:
            since_s, looks = now_s, 0
        if looks == LOOKS_MAX:
            return WANTED
        self._looks[slot] = since_s, looks + 1
        task = asyncio.get_running_loop().create_task(self._ring_when_looked(slot))
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)
        return COMES

    async def _ring_when_looked(self, slot: int) -> None:
        await looked_at(self.shared, self.figures)
        if self.feed is not None:
            self.feed.ring([slot])

    async def _fetch_for_feed(self, file: File, begin: int, end: int) -> None:
        try:
            await self._fetch(file, begin, end)
            wrong = False
        except (errors.ColdUnavailable, MemoryError, ValueError):
            wrong = True
        slots = self._for_feed.pop((file.serial, begin), set())
        for slot in slots:
            if wrong:
                self._refused[slot] = time.monotonic() + self._limits.retry_ms / 1000
            else:
                self._refused.pop(slot, None)
        if self.feed is not None:
            self.feed.ring(sorted(slots))
