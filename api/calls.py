"""A worker's line to the writer: requests go out through its ring, answers come back to the futures that wait for them.

What finds no room there is parked, and goes on in the order of its topic's priority and age; so do, on the last rung of the ladder (api/pressure.py),
writes to topics of low bands. Who has been parked for too long is told 429.
"""

from __future__ import annotations

import asyncio
import enum
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
import structlog

from topicsd import errors, limits
from topicsd._native import work
from topicsd._native.port import Busy, Completion, TooLarge
from topicsd._native.scan import Write
from topicsd._native.scheduler import band
from topicsd.api.polls import Polls

log = structlog.get_logger("calls")

TICK_S = 0.1  # how late the death of a writer is noticed, at most
COMMANDS_FIRST = 1000  # the priority of what is no append


class Outcome(enum.IntEnum):
    """`status` of a completion: enum outcome of layout.h (a test holds the two together)."""

    OK = 0
    MOVED = 1
    FULL = 2
    TOO_LARGE = 3
    READ_ONLY = 4
    QUOTA = 5
    KEYS = 6
    EPHEMERAL = 7
    JSON = 8
    UNKNOWN = 9
    PRESSURE = 10


CREATED, DEDUPED, BODY_DIFFERS = 1, 2, 4  # `flags` of a completion


class Control(Protocol):
    """The words of the control region that this module reads."""

    @property
    def ready(self) -> bool: ...
    @property
    def generation(self) -> int: ...


class Line(Protocol):
    """What is used of topicsd._native.port.Port."""

    def fileno(self) -> int: ...
    def append(self, slot: int, topic_id: int, write: Write, header_key: bytes | None = None) -> int: ...
    def call(self, json: bytes, write: Write | None = None, header_key: bytes | None = None) -> int: ...
    def drain(self, callback: Callable[[int, Completion], object]) -> int: ...
    def dirty(self) -> list[int] | None: ...


@dataclass(eq=False, slots=True)
class Place:
    """Hold what a request that is parked waits as."""

    priority: int
    patient: bool  # it is never refused because of pressure alone
    since_s: float
    future: asyncio.Future[None] | None = None

    def band(self, now_s: float) -> int:
        """Return its band of the scheduler, age included."""
        return band(self.priority, int((now_s - self.since_s) * 1000))


def lost() -> errors.NotReady:
    """Build the answer to a request that the writer took with it: it may have happened or not."""
    return errors.NotReady("the writer died before it answered; a retry with the same idempotency key is safe", {"outcome": "unknown"})


class Calls:
    """Send to the writer and await its answers; one for each worker, on its loop."""

    def __init__(self, control: Control, line: Line, polls: Polls) -> None:
        self._control = control
        self._line = line
        self._polls = polls
        self._generation = control.generation
        self._pending: dict[int, tuple[asyncio.Future[Completion], int, int]] = {}  # token -> its future, generation, microseconds parked
        self._parked: list[Place] = []
        self._band_least = 0
        self._retry_after_ms = 1000 * limits.RETRY_AFTER_S
        self.priority_of: Callable[[int], int] = lambda slot: 0
        self.count_parked: Callable[[int], None] = lambda us: None
        self.chores: list[Callable[[], None]] = []  # short work that is looked at each TICK_S
        self._timer: asyncio.TimerHandle | None = None
        self.news: Callable[..., None] | None = None  # who else is told which topics have moved, and for how long it may keep us
        self.news_first = False  # somebody is there to be told

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen to the bell."""
        loop.add_reader(self._line.fileno(), self.ring)
        self._tick(loop)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop listening."""
        loop.remove_reader(self._line.fileno())
        if self._timer is not None:
            self._timer.cancel()

    @property
    def in_flight(self) -> int:
        """Return how many requests wait for the writer."""
        return len(self._pending)

    # ---- out -----------------------------------------------------------------------------------------------------------------

    async def append(self, slot: int, topic_id: int, write: Write, key: bytes | None) -> Completion:
        """Append to a topic that exists. Raises NotReady, Pressure, PayloadTooLarge."""
        return await (await self.send_append(slot, topic_id, write, key))

    async def send_append(self, slot: int, topic_id: int, write: Write, key: bytes | None) -> asyncio.Future[Completion]:
        """Send an append and return its answer to come; appends are made in the order of their sending."""
        return await self._submit(lambda: self._line.append(slot, topic_id, write, key), write.disable_backpressure, slot)

    async def append_call(self, command: dict[str, Any], write: Write, key: bytes | None) -> Completion:
        """Append through the engine's Python door, which may create the topic. Raises what the engine raises, too."""
        text = orjson.dumps(command)
        completion = await (await self._submit(lambda: self._line.call(text, write, key), write.disable_backpressure, None))
        if completion.status == Outcome.JSON:
            answered(completion)
        return completion

    async def call(self, command: dict[str, Any]) -> tuple[dict[str, Any], Completion]:
        """Run a command of the engine. Raises what the engine raises."""
        text = orjson.dumps(command)
        completion = await (await self._submit(lambda: self._line.call(text), False, None, COMMANDS_FIRST))
        return answered(completion), completion

    async def send_queue(self, kind: int, slot: int, payload: bytes) -> tuple[int, asyncio.Future[Completion]]:
        """Send a command of queues (_native/work.pxd); return its token and its answer to come. Raises NotReady, Pressure."""
        line: Any = self._line
        return await self._submit_told(lambda: work.submit(line, kind, slot, payload), False, slot, COMMANDS_FIRST)

    async def send_leave(self, token: int) -> None:
        """Take a claim out of its cohort; both are answered soon. Raises NotReady, Pressure."""
        line: Any = self._line
        await self._submit_told(lambda: work.submit_leave(line, token), False, None, COMMANDS_FIRST)

    async def _submit(self, submit: Callable[[], int], patient: bool, slot: int | None, priority: int | None = None) -> asyncio.Future[Completion]:
        return (await self._submit_told(submit, patient, slot, priority))[1]

    async def _submit_told(
        self, submit: Callable[[], int], patient: bool, slot: int | None, priority: int | None = None
    ) -> tuple[int, asyncio.Future[Completion]]:
        """Send at once, or once it is its turn; `slot` None: the topic is not there yet."""
        loop = asyncio.get_running_loop()
        place: Place | None = None
        while True:
            if not self._control.ready:
                raise errors.NotReady("the writer is starting")
            try:
                if place is None and (self._band_least or self._parked):
                    place = self._place(patient, slot, priority, loop.time())
                if place is None or self._may_go(place, loop.time()):
                    token = submit()
                    break
            except TooLarge:
                raise errors.ClientError("the batch is too large for the server's buffers", code="payload_too_large") from None
            except Busy:
                pass
            place = place or self._place(patient, slot, priority, loop.time())
            await self._park(place, loop)
        parked_us = 0
        if place is not None:
            parked_us = int((loop.time() - place.since_s) * 1e6)
            self.count_parked(parked_us)
        future: asyncio.Future[Completion] = loop.create_future()
        self._pending[token] = future, self._control.generation, parked_us
        return token, future

    def _place(self, patient: bool, slot: int | None, priority: int | None, now_s: float) -> Place:
        if priority is None:
            priority = 0 if slot is None else self.priority_of(slot)
        return Place(priority, patient, now_s)

    def _may_go(self, place: Place, now_s: float) -> bool:
        """Tell whether pressure lets it go, and nobody is before it who could."""
        own = place.band(now_s)
        if own < self._band_least and not place.patient:
            return False
        if place.future is not None:
            return True  # it was woken because it is its turn
        return not any(other.band(now_s) >= own and (other.patient or other.band(now_s) >= self._band_least) for other in self._parked)

    async def _park(self, place: Place, loop: asyncio.AbstractEventLoop) -> None:
        wait_ms = limits.RING_FULL_PATIENCE_MS_MAX if place.patient else limits.RING_FULL_WAIT_MS_MAX
        left_s = place.since_s + wait_ms / 1000 - loop.time()
        if left_s <= 0:
            raise errors.Pressure("the server is behind with its writes", self._retry_after_ms)
        place.future = loop.create_future()
        self._parked.append(place)
        try:
            await asyncio.wait((place.future,), timeout=left_s)
        finally:
            if place in self._parked:
                self._parked.remove(place)

    def press(self, band_least: int, retry_after_ms: int) -> None:
        """Let writes of lower bands wait (0: none do), and say when to try again to those who have waited for too long."""
        self._band_least, self._retry_after_ms = band_least, retry_after_ms

    def _wake(self, most: int) -> None:
        """Let the first ones go, in the order of band and age."""
        now_s = asyncio.get_running_loop().time()
        able = [place for place in self._parked if place.patient or place.band(now_s) >= self._band_least]
        for place in heapq.nsmallest(most, able, key=lambda each: (-each.band(now_s), each.since_s)):
            self._parked.remove(place)
            if place.future is not None and not place.future.done():
                place.future.set_result(None)

    # ---- in ------------------------------------------------------------------------------------------------------------------

    def ring(self) -> None:
        """Take all answers and all news: the writer rang. Watchers have a moment before the answers: a send(2) to a publisher is time to them."""
        told = False
        if self.news_first and self.news is not None:
            early = self._line.dirty()
            told = early is None or bool(early)
            if told:
                self._polls.wake(early)
                try:
                    self.news(early, limits.FEED_FIRST_NS_MAX)
                except Exception:  # answers do not wait for what is wrong with watchers
                    log.exception("news could not be told")
        answers = self._line.drain(self._answer)
        slots = self._line.dirty()
        if slots is None or slots:
            self._polls.wake(slots)
        if self.news is not None and (slots is None or slots or not told):
            self.news(slots)
        if answers and self._parked:
            self._wake(2 * answers)  # an answer makes room for one, or for more where it was large

    def _answer(self, token: int, completion: Completion) -> None:
        future, _, parked_us = self._pending.pop(token, (None, 0, 0))
        if future is None or future.done():
            return  # given up, or its client has left: what was appended stays appended
        if completion.status == Outcome.UNKNOWN:
            future.set_exception(lost())
        else:
            completion.parked_us = parked_us
            future.set_result(completion)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ring()
        self.look()
        if self._parked:
            self._wake(limits.UNPARKED_A_TICK_MAX)
        for chore in self.chores:
            chore()
        self._timer = loop.call_later(TICK_S, self._tick, loop)

    def look(self) -> None:
        """Notice a writer that died: what it had in hand is answered now, and long polls look again."""
        generation = self._control.generation
        ready = self._control.ready
        if self._pending and (not ready or generation != self._generation):
            gone = [token for token, (_, sent, _) in self._pending.items() if not ready or sent != generation]
            for token in gone:
                future, _, _ = self._pending.pop(token)
                if not future.done():
                    future.set_exception(lost())
        if generation != self._generation and ready:
            self._generation = generation
            self._polls.wake(None)


def answered(completion: Completion) -> dict[str, Any]:
    """Return what a command answered. Raises its error, or that of an append that was refused."""
    if completion.status != Outcome.JSON:
        raise refusal(completion)
    body: dict[str, Any] = orjson.loads(completion.payload)
    if "error" in body:
        raise errors.from_json(body["error"])
    answer: dict[str, Any] = body["ok"]
    return answer


def refusal(completion: Completion) -> errors.TopicsError:
    """Say why the writer took no append."""
    first, second, third, fourth = completion.values
    match completion.status:
        case Outcome.FULL:
            detail = {"cap_records": first, "cap_bytes": second, "head_seq": third, "earliest_seq": fourth}
            return errors.TopicFull("the topic is full and discards nothing", detail)
        case Outcome.TOO_LARGE:
            whole: dict[str, Any] = {"field": "records", "cap_records": first, "cap_bytes": second}
            return errors.ClientError("the batch is larger than the topic's whole cap", whole, code="record_too_large")
        case Outcome.READ_ONLY:
            return errors.StorageReadOnly("the log takes no writes: a write or sync failed, or the disk is full")
        case Outcome.QUOTA:
            return errors.Throttled("max_total_bytes", first, f"the server holds all of {first} bytes")
        case Outcome.KEYS:
            return errors.Throttled("max_idempotency_keys", first, f"the topic remembers all of {first} idempotency keys")
        case Outcome.EPHEMERAL:
            return errors.Throttled("ephemeral_bytes_max", first, "the memory for ephemeral records is full")
        case Outcome.PRESSURE:
            return errors.Pressure("the server is busy", first or 1000 * limits.RETRY_AFTER_S)
        case Outcome.UNKNOWN:
            return lost()
        case _:
            return errors.Internal(f"the writer answered {completion.status}")
