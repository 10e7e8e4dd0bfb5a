"""A worker's line to the writer: requests go out through its ring, answers come back to the futures that wait for them."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import Any, Protocol

import orjson

from topicsd import errors, limits
from topicsd._native import work
from topicsd._native.port import Busy, Completion, TooLarge
from topicsd._native.scan import Write
from topicsd.api.polls import Polls

TICK_S = 0.1  # how late the death of a writer is noticed, at most


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
        self._pending: dict[int, tuple[asyncio.Future[Completion], int]] = {}
        self._room: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self.news: Callable[[list[int] | None], None] | None = None  # who else is told which topics have moved, behind the answers

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
        return await self._submit(lambda: self._line.append(slot, topic_id, write, key), write.disable_backpressure)

    async def append_call(self, command: dict[str, Any], write: Write, key: bytes | None) -> Completion:
        """Append through the engine's Python door, which may create the topic. Raises what the engine raises, too."""
        text = orjson.dumps(command)
        completion = await self._send(lambda: self._line.call(text, write, key), write.disable_backpressure)
        if completion.status == Outcome.JSON:
            answered(completion)
        return completion

    async def call(self, command: dict[str, Any]) -> tuple[dict[str, Any], Completion]:
        """Run a command of the engine. Raises what the engine raises."""
        text = orjson.dumps(command)
        completion = await self._send(lambda: self._line.call(text), False)
        return answered(completion), completion

    async def send_queue(self, kind: int, slot: int, payload: bytes) -> tuple[int, asyncio.Future[Completion]]:
        """Send a command of queues (_native/work.pxd); return its token and its answer to come. Raises NotReady, Pressure."""
        line: Any = self._line
        return await self._submit_told(lambda: work.submit(line, kind, slot, payload), False)

    async def send_leave(self, token: int) -> None:
        """Take a claim out of its cohort; both are answered soon. Raises NotReady, Pressure."""
        line: Any = self._line
        await self._submit_told(lambda: work.submit_leave(line, token), False)

    async def _send(self, submit: Callable[[], int], patient: bool) -> Completion:
        return await (await self._submit(submit, patient))

    async def _submit(self, submit: Callable[[], int], patient: bool) -> asyncio.Future[Completion]:
        return (await self._submit_told(submit, patient))[1]

    async def _submit_told(self, submit: Callable[[], int], patient: bool) -> tuple[int, asyncio.Future[Completion]]:
        loop = asyncio.get_running_loop()
        wait_ms = limits.RING_FULL_PATIENCE_MS_MAX if patient else limits.RING_FULL_WAIT_MS_MAX
        deadline = loop.time() + wait_ms / 1000
        while True:
            if not self._control.ready:
                raise errors.NotReady("the writer is starting")
            try:
                token = submit()
                break
            except TooLarge:
                raise errors.ClientError("the batch is too large for the server's buffers", code="payload_too_large") from None
            except Busy:
                await self._wait_for_room(loop, deadline)
        future: asyncio.Future[Completion] = loop.create_future()
        self._pending[token] = future, self._control.generation
        return token, future

    async def _wait_for_room(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        left = deadline - loop.time()
        if left <= 0:
            raise errors.Pressure("the writer is behind", 1000 * limits.RETRY_AFTER_S)
        room: asyncio.Future[None] = loop.create_future()
        self._room.append(room)
        await asyncio.wait((room,), timeout=left)

    # ---- in ------------------------------------------------------------------------------------------------------------------

    def ring(self) -> None:
        """Take all answers and all news: the writer rang."""
        answers = self._line.drain(self._answer)
        slots = self._line.dirty()
        if slots is None or slots:
            self._polls.wake(slots)
        if self.news is not None:
            self.news(slots)
        if answers and self._room:
            room, self._room = self._room, []
            for future in room:
                if not future.done():
                    future.set_result(None)

    def _answer(self, token: int, completion: Completion) -> None:
        future, _ = self._pending.pop(token, (None, 0))
        if future is None or future.done():
            return  # given up, or its client has left: what was appended stays appended
        if completion.status == Outcome.UNKNOWN:
            future.set_exception(lost())
        else:
            future.set_result(completion)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ring()
        self.look()
        self._timer = loop.call_later(TICK_S, self._tick, loop)

    def look(self) -> None:
        """Notice a writer that died: what it had in hand is answered now, and long polls look again."""
        generation = self._control.generation
        ready = self._control.ready
        if self._pending and (not ready or generation != self._generation):
            gone = [token for token, (_, sent) in self._pending.items() if not ready or sent != generation]
            for token in gone:
                future, _ = self._pending.pop(token)
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
