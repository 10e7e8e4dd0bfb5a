"""Read from the cold tier in threads, with a cache of blocks, a bound on what waits, and an answer in time whatever the store does.

No reader waits longer than `wait_ms`. When the store has failed or all `threads` hang, further reads are refused at once for `retry_ms`, then one
may try again.

A request that has not come back after `fetch_ms` is given up: its readers are refused, another thread takes the place of the one that hangs in the
store, and the object may be asked for again. Nobody can end such a thread, so there are STUCK_MAX of them at most: an object, or a store of which
nothing came back `threads` times in a row, is asked again only after a quarter of the time for which it hangs. What comes back in the end is kept.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass

import structlog

from topicsd import limits as bounds
from topicsd.segments.cold import Cold, ColdError, ColdMissingError

BLOCK_BYTES = 256 << 10
RUN_BLOCKS_MAX = 16  # blocks that are missing in a row are one request of at most 4 MiB
STUCK_MAX = 64  # threads of given-up requests: as many as HUNG_SHARE makes of a store that hangs for months
HUNG_SHARE = 4

Key = tuple[str, int]
log = structlog.get_logger("cold")


class ColdUnavailableError(ColdError):
    """Say that the cold tier does not answer now (503 `cold_unavailable`); `retry_after_s` when to ask again."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__("the cold tier does not answer")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class ColdLimits:
    """How much a process may hold and wait."""

    cache_bytes: int = 64 << 20
    threads: int = 4
    waiting_max: int = 256  # blocks asked for and not there yet
    wait_ms: int = 2000  # longest time a read takes
    retry_ms: int = 5000
    fetch_ms: int = bounds.COLD_FETCH_MS  # longest time a request to the store takes; never less than a read


@dataclass
class ColdNumbers:
    """Counters for /metrics."""

    hits: int = 0
    misses: int = 0
    bytes: int = 0
    failures: int = 0
    refused: int = 0
    given_up: int = 0


@dataclass(eq=False)
class Fetch:
    """A request that a thread has taken to the store."""

    name: str
    run: list[int]  # blocks in a row
    began_ms: int
    given_up: bool = False


@dataclass
class Hang:
    """An object, or a store, that does not answer."""

    since_ms: int
    again_ms: int  # before that it is not asked


class ColdReader:
    """Read ranges of cold objects. `submit` returns a future at once; `read` waits for it, for at most `wait_ms`."""

    def __init__(self, cold: Cold, limits: ColdLimits | None = None, mono_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000) -> None:
        self.limits = limits or ColdLimits()
        self.numbers = ColdNumbers()
        self._cold = cold
        self._mono_ms = mono_ms
        self._lock = threading.Lock()
        self._cache: OrderedDict[Key, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._coming: dict[Key, Future[bytes]] = {}
        self._busy: list[Fetch] = []
        self._threads = 0  # those that hang with what was given up are not counted
        self._stuck = 0
        self._hung: dict[str, Hang] = {}  # by object
        self._hung_in_a_row = 0  # given up since something last came back
        self._store_hangs: Hang | None = None
        self._refuse_until_ms = 0
        self._tasks: queue.SimpleQueue[tuple[str, list[int]] | None] = queue.SimpleQueue()

    # ---- asking

    def read(self, name: str, begin: int, end: int) -> bytes:
        """The bytes begin .. end - 1 of an object, fewer at its end. Raises ColdUnavailableError, ColdMissingError."""
        try:
            return self.submit(name, begin, end).result(self.limits.wait_ms / 1000)
        except FutureTimeout:
            self.timed_out()
            raise self._unavailable() from None

    def submit(self, name: str, begin: int, end: int) -> Future[bytes]:
        """The same as a future. Whoever stops waiting for it calls `timed_out`. Raises ColdUnavailableError when there is no use in waiting."""
        first, last = begin // BLOCK_BYTES, max(end - 1, begin) // BLOCK_BYTES
        self.give_up_late()
        with self._lock:
            parts, missing = self._look(name, first, last)
            if missing:
                self._refuse_if_hopeless(name, len(missing))
                self._ask(name, missing)
        return _joined(parts, begin - first * BLOCK_BYTES, end - begin)

    def timed_out(self) -> None:
        """A reader has given up: refuse others for a while."""
        with self._lock:
            self._failed()

    def give_up_late(self) -> None:
        """Give up what has not come back in time. `submit` does; whoever waits for a future for ever calls it now and then."""
        with self._lock:
            late = self._late()
            futures = [future for fetch in late for future in self._give_up(fetch)]
            if late:
                futures += self._queued()  # what waits behind them had its time, and might hang as well
            stuck = self._stuck
        for fetch in late:
            log.warning("a read of the cold tier is given up", object=fetch.name, after_ms=self._fetch_ms(), threads_that_hang=stuck)
        for future in futures:
            future.set_exception(self._unavailable())

    def stuck(self) -> int:
        """Return how many threads hang in the store with what was given up."""
        with self._lock:
            return self._stuck

    def forget(self, name: str) -> None:
        """Drop the blocks of an object that is gone."""
        with self._lock:
            for key in [key for key in self._cache if key[0] == name]:
                self._cached_bytes -= len(self._cache.pop(key))

    def close(self) -> None:
        """Let the threads end; one that hangs ends with the process."""
        for _ in range(self._threads):
            self._tasks.put(None)

    # ---- under the lock

    def _look(self, name: str, first: int, last: int) -> tuple[list[Future[bytes]], dict[int, Future[bytes]]]:
        """A future for each block, and those among them that nobody has asked for yet."""
        parts: list[Future[bytes]] = []
        missing: dict[int, Future[bytes]] = {}
        for block in range(first, last + 1):
            key = (name, block)
            cached = self._cache.get(key)
            if cached is not None:
                self._cache.move_to_end(key)
                self.numbers.hits += 1
                part: Future[bytes] = Future()
                part.set_result(cached)
                parts.append(part)
                continue
            self.numbers.misses += 1
            if key in self._coming:
                parts.append(self._coming[key])
            else:
                missing[block] = Future()
                parts.append(missing[block])
        return parts, missing

    def _refuse_if_hopeless(self, name: str, wanted: int) -> None:
        now = self._mono_ms()
        stuck = len(self._busy) >= self.limits.threads and min(fetch.began_ms for fetch in self._busy) + self.limits.wait_ms <= now
        if stuck:
            self._failed()
        hangs = [hang for hang in (self._hung.get(name), self._store_hangs) if hang is not None]
        if now < max([self._refuse_until_ms, *(hang.again_ms for hang in hangs)]) or len(self._coming) + wanted > self.limits.waiting_max:
            self.numbers.refused += 1
            raise self._unavailable()
        for hang in hangs:  # this one tries; the next one when it is known what became of it
            hang.again_ms = now + self._fetch_ms() + self._pause_ms(hang, now)

    def _fetch_ms(self) -> int:
        return max(self.limits.fetch_ms, self.limits.wait_ms)

    def _pause_ms(self, hang: Hang, now: int) -> int:
        return max(self.limits.retry_ms, (now - hang.since_ms) // HUNG_SHARE)

    def _late(self) -> list[Fetch]:
        now = self._mono_ms()
        return [fetch for fetch in self._busy if fetch.began_ms + self._fetch_ms() <= now][: max(STUCK_MAX - self._stuck, 0)]

    def _give_up(self, fetch: Fetch) -> list[Future[bytes]]:
        """Leave a request to its thread; return what its readers wait for."""
        now = self._mono_ms()
        fetch.given_up = True
        self._busy.remove(fetch)
        self._threads -= 1
        self._stuck += 1
        self.numbers.given_up += 1
        self._hung_in_a_row += 1
        hang = self._hung.setdefault(fetch.name, Hang(fetch.began_ms, 0))
        hang.again_ms = now + self._pause_ms(hang, now)
        if self._hung_in_a_row >= self.limits.threads:
            store = self._store_hangs = self._store_hangs or Hang(fetch.began_ms, 0)
            store.again_ms = now + self._pause_ms(store, now)
        return self._taken(fetch.name, fetch.run)

    def _taken(self, name: str, run: list[int]) -> list[Future[bytes]]:
        return [self._coming.pop((name, block)) for block in run]

    def _queued(self) -> list[Future[bytes]]:
        """Take back what no thread has begun."""
        futures: list[Future[bytes]] = []
        with contextlib.suppress(queue.Empty):
            while (task := self._tasks.get_nowait()) is not None:
                futures += self._taken(*task)
            self._tasks.put(None)  # of `close`
        return futures

    def _came_back(self, name: str) -> None:
        self._hung.pop(name, None)
        self._hung_in_a_row, self._store_hangs = 0, None

    def _ask(self, name: str, missing: dict[int, Future[bytes]]) -> None:
        self._coming.update({(name, block): part for block, part in missing.items()})
        run: list[int] = []
        for block in missing:
            if run and (block != run[-1] + 1 or len(run) == RUN_BLOCKS_MAX):
                self._tasks.put((name, run))
                run = []
            run.append(block)
        self._tasks.put((name, run))
        if self._threads < self.limits.threads:
            self._threads += 1
            threading.Thread(target=self._work, name="cold", daemon=True).start()

    def _failed(self) -> None:
        self.numbers.failures += 1
        self._refuse_until_ms = self._mono_ms() + self.limits.retry_ms

    def _unavailable(self) -> ColdUnavailableError:
        return ColdUnavailableError(max(1, -(-self.limits.retry_ms // 1000)))

    def _keep(self, key: Key, block: bytes) -> None:
        self._cached_bytes -= len(self._cache.pop(key, b""))  # it has come twice, once late
        self._cache[key] = block
        self._cached_bytes += len(block)
        while self._cached_bytes > self.limits.cache_bytes and len(self._cache) > 1:
            self._cached_bytes -= len(self._cache.popitem(last=False)[1])

    # ---- the threads

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            fetch = Fetch(*task, self._mono_ms())
            with self._lock:
                self._busy.append(fetch)
            raw, wrong = b"", None
            try:
                raw = self._cold.read(fetch.name, fetch.run[0] * BLOCK_BYTES, len(fetch.run) * BLOCK_BYTES)
            except Exception as error:  # a store's library may raise anything; the reader is told, the thread lives on
                wrong = error
            self._deliver(fetch, raw, wrong)
            if fetch.given_up:
                return  # another thread has its place

    def _deliver(self, fetch: Fetch, raw: bytes, wrong: Exception | None) -> None:
        blocks = [raw[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES] for at in range(len(fetch.run))]
        futures: list[Future[bytes]] = []
        with self._lock:
            self._came_back(fetch.name)
            if fetch.given_up:
                self._stuck -= 1
            else:
                self._busy.remove(fetch)
                futures = self._taken(fetch.name, fetch.run)
            if wrong is None:
                self.numbers.bytes += len(raw)
                for block, content in zip(fetch.run, blocks, strict=True):
                    self._keep((fetch.name, block), content)
            elif not isinstance(wrong, ColdMissingError) and futures:
                self._failed()
        for future, content in zip(futures, blocks, strict=bool(futures)):
            if wrong is None:
                future.set_result(content)
            else:
                future.set_exception(wrong if isinstance(wrong, ColdMissingError) else self._unavailable())


def _joined(parts: list[Future[bytes]], skip: int, length: int) -> Future[bytes]:
    """A future of the bytes of all parts in a row. No thread waits for it: the last part to come completes it."""
    out: Future[bytes] = Future()
    left = [len(parts)]
    lock = threading.Lock()

    def arrived(part: Future[bytes]) -> None:
        with lock:
            left[0] -= 1
            if left[0]:
                return
        wrong = next((error for part in parts if (error := part.exception())), None)
        if not out.set_running_or_notify_cancel():
            return
        if wrong is not None:
            out.set_exception(wrong)
        else:
            out.set_result(b"".join(part.result() for part in parts)[skip : skip + length])

    for part in parts:
        part.add_done_callback(arrived)
    return out
