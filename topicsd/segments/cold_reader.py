"""Read from the cold tier in threads, with a cache of blocks, a bound on what waits, and an answer in time whatever the store does.

A thread that hangs in the store stays there until the store's own timeout; it is one of `threads`, and no reader waits for it longer than
`wait_ms`. When the store has failed or all threads hang, further reads are refused at once for `retry_ms`, then one may try again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass

from topicsd.segments.cold import Cold, ColdError, ColdMissingError

BLOCK_BYTES = 256 << 10
RUN_BLOCKS_MAX = 16  # blocks that are missing in a row are one request of at most 4 MiB

Key = tuple[str, int]


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


@dataclass
class ColdNumbers:
    """Counters for /metrics."""

    hits: int = 0
    misses: int = 0
    bytes: int = 0
    failures: int = 0
    refused: int = 0


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
        self._busy: dict[int, int] = {}  # thread number -> when it went into the store
        self._refuse_until_ms = 0
        self._tasks: queue.SimpleQueue[tuple[str, list[int]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

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
        with self._lock:
            parts, missing = self._look(name, first, last)
            if missing:
                self._refuse_if_hopeless(len(missing))
                self._ask(name, missing)
        return _joined(parts, begin - first * BLOCK_BYTES, end - begin)

    def timed_out(self) -> None:
        """A reader has given up: refuse others for a while."""
        with self._lock:
            self._failed()

    def forget(self, name: str) -> None:
        """Drop the blocks of an object that is gone."""
        with self._lock:
            for key in [key for key in self._cache if key[0] == name]:
                self._cached_bytes -= len(self._cache.pop(key))

    def close(self) -> None:
        """Let the threads end; one that hangs ends with the process."""
        for _ in self._threads:
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

    def _refuse_if_hopeless(self, wanted: int) -> None:
        now = self._mono_ms()
        stuck = len(self._busy) >= self.limits.threads and min(self._busy.values()) + self.limits.wait_ms <= now
        if stuck:
            self._failed()
        if now < self._refuse_until_ms or len(self._coming) + wanted > self.limits.waiting_max:
            self.numbers.refused += 1
            raise self._unavailable()

    def _ask(self, name: str, missing: dict[int, Future[bytes]]) -> None:
        self._coming.update({(name, block): part for block, part in missing.items()})
        run: list[int] = []
        for block in missing:
            if run and (block != run[-1] + 1 or len(run) == RUN_BLOCKS_MAX):
                self._tasks.put((name, run))
                run = []
            run.append(block)
        self._tasks.put((name, run))
        if len(self._threads) < self.limits.threads:
            thread = threading.Thread(target=self._work, args=(len(self._threads),), name="cold", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _failed(self) -> None:
        self.numbers.failures += 1
        self._refuse_until_ms = self._mono_ms() + self.limits.retry_ms

    def _unavailable(self) -> ColdUnavailableError:
        return ColdUnavailableError(max(1, -(-self.limits.retry_ms // 1000)))

    def _keep(self, key: Key, block: bytes) -> None:
        self._cache[key] = block
        self._cached_bytes += len(block)
        while self._cached_bytes > self.limits.cache_bytes and len(self._cache) > 1:
            self._cached_bytes -= len(self._cache.popitem(last=False)[1])

    # ---- the threads

    def _work(self, number: int) -> None:
        while (task := self._tasks.get()) is not None:
            name, run = task
            with self._lock:
                self._busy[number] = self._mono_ms()
            raw, wrong = b"", None
            try:
                raw = self._cold.read(name, run[0] * BLOCK_BYTES, len(run) * BLOCK_BYTES)
            except Exception as error:  # a store's library may raise anything; the reader is told, the thread lives on
                wrong = error
            self._deliver(number, name, run, raw, wrong)

    def _deliver(self, number: int, name: str, run: list[int], raw: bytes, wrong: Exception | None) -> None:
        blocks = [raw[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES] for at in range(len(run))]
        with self._lock:
            del self._busy[number]
            futures = [self._coming.pop((name, block)) for block in run]
            if wrong is None:
                self.numbers.bytes += len(raw)
                for block, content in zip(run, blocks, strict=True):
                    self._keep((name, block), content)
            elif not isinstance(wrong, ColdMissingError):
                self._failed()
        for future, content in zip(futures, blocks, strict=True):
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
