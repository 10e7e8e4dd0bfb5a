"""`GET /v0/topics/:q/work`: jobs are leased to a connection and pushed over it as server-sent events (A §10.8).

A stream claims as `POST …/claim` does, and says with each claim which jobs it believes to hold: the writer counts what it does hold against `max`,
and remembers which worker process the stream lives in. When the connection breaks the stream gives its jobs back; when the process dies the writer
does. What the stream holds otherwise changes by acks, nacks and lapses that go past it: it looks whenever its queue has moved.

Streams of one queue in one process look one after the other, and only when there is something for them: a free place and a ready job, or one of
their own jobs that is gone. A queue with a claim window is the exception: all its streams belong to the cohort (A §10.2).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import falcon.asgi
import orjson
import structlog

from topicsd import errors, limits
from topicsd._native import work
from topicsd._native.reader import Busy, Gone
from topicsd.api import errors as wire
from topicsd.api import members, queries
from topicsd.api.context import Context
from topicsd.api.exchange import Exchange
from topicsd.api.gate import Route, exchange_of
from topicsd.api.queues import ask, check_queue, give_back, lease_ms_of, node_of, render
from topicsd.api.watch import accepts_events, head

log = structlog.get_logger("work")

LOOK_S = 0.1  # a stream that holds all it may looks again so long after its last claim: a nack of its own leaves no other trace
ABSENT_S = 0.05  # between two tries while the writer is away
END_S = 1.0  # how long a worker that ends waits for its streams to give their jobs back


def routes(context: Context) -> dict[str, Route]:
    """Return the routes by path."""
    return {"/v0/topics/{topic}/work": Work(context)}


class Work(Route):
    """Open a work stream."""

    scopes = {"GET": ("read", "write")}  # noqa: RUF012
    in_flight = False

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Check everything that can be wrong before the stream is open, then take the connection over."""
        context, exchange = self.context, exchange_of(req)
        if not accepts_events(exchange.headers.get(b"accept")):
            raise errors.ClientError("this path gives text/event-stream", code="not_acceptable")
        query: dict[str, Any] = {"node": exchange.query.get("node")}
        query |= {name: _number(exchange.query, name) for name in ("max", "lease_ms") if name in exchange.query}
        asked = {
            "node": node_of(context, query),
            "jobs_max": members.clamped(query, "max", 1, context.settings.max_claim),
            "lease_ms": lease_ms_of(query, 0),
            "stream": True,
        }
        topic = context.topic(exchange)
        check_queue(context, exchange.topic, topic)
        key = exchange.key.index
        total, of_key = context.settings.max_sse_connections, context.settings.max_sse_connections_per_key
        over = context.sessions.enter(context.ring, key, total, of_key)
        if over:
            context.shared.add_worker(context.ring, "throttled")
            raise errors.Throttled("max_sse_connections", total) if over == 1 else errors.Throttled("max_sse_connections_per_key", of_key)
        stream = WorkStream(context, exchange, topic, asked)
        try:
            stream.start(exchange.scope["topicsd.connection"].take_over(stream))
        except BaseException:
            stream.connection_lost(None)
            raise


def _number(query: dict[str, str], name: str) -> int:
    if not queries.INTEGER.fullmatch(query[name]):
        raise errors.Invalid(name, "expected a number")
    return int(query[name])


class WorkStream:
    """Own one connection: claim, push, give back at the end."""

    def __init__(self, context: Context, exchange: Exchange, topic: str, asked: dict[str, Any]) -> None:
        self._context, self._exchange, self._topic, self._asked = context, exchange, topic, asked
        self._name = exchange.topic
        self._key = exchange.key.index
        self._held: dict[int, int] = {}  # seq -> token of its lease
        self._place: tuple[int, int] | None = None  # slot and topic id of the queue that they are of
        self._gone = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: Any = None
        self._looked_s = self._wrote_s = 0.0
        self._generation = -1  # of the writer that was told what is held
        self._counted = True
        self.task: asyncio.Task[None] | None = None

    def start(self, transport: Any) -> None:
        """Send the head and begin to claim."""
        self._transport = transport
        transport.set_write_buffer_limits(high=limits.STREAM_BYTES_MAX)
        self._write(head() + b"retry: 2000\n: hb %d\n\n" % self._context.now_ms)
        self._context.work_streams.add(self)
        self.task = asyncio.get_running_loop().create_task(self._run())

    # ---- the connection's side -------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take no notice: nothing follows a stream's request."""

    def eof_received(self) -> bool:
        """Close: the worker has left."""
        return False

    def pause_writing(self) -> None:
        """Claim nothing more until the client has read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Go on."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count out; the task gives back what is held."""
        self._gone.set()
        if self._counted:
            self._counted = False
            self._context.sessions.leave(self._context.ring, self._key)

    # ---- what is said ------------------------------------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        self._wrote_s = asyncio.get_running_loop().time()
        self._transport.write(data)
        self._context.shared.add_worker(self._context.ring, "bytes_out", len(data))

    def end(self, error: errors.TopicsError) -> None:
        """Say why, and close behind it; a client that does not read it is cut off."""
        if self._gone.is_set():
            return
        told = {"code": wire.status_of(error), "error": error.message}
        self._write(b"event: error\ndata: " + orjson.dumps(told) + b"\n\n")
        self._gone.set()
        self._transport.close()
        if self._transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(limits.STREAM_END_S_MAX, self._transport.abort)

    # ---- the loop ----------------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        left = asyncio.get_running_loop().create_task(self._until_gone())
        try:
            while not self._gone.is_set():
                await self._turn(left)
        except errors.TopicsError as wrong:
            self.end(wrong)
        except Exception:
            log.exception("a work stream failed")
            self.end(errors.Internal("internal error; the server's log has more"))
        finally:
            left.cancel()
            self._context.work_streams.discard(self)
            await self._give_back()

    async def _until_gone(self) -> None:
        await self._gone.wait()

    async def _turn(self, left: asyncio.Task[None]) -> None:
        """Look for jobs, push them, wait until the queue moves or a heartbeat is due."""
        context, loop = self._context, asyncio.get_running_loop()
        if not self._writable.is_set():
            await self._until_writable(left)
            return
        slot, moved = None, None
        try:
            if not context.shared.ready:
                raise Busy
            slot = context.reader.find(self._name)
            if slot is None:
                raise errors.TopicNotFound(self._topic)
            moved = context.polls.enter(slot)  # before the look: nothing is missed
            wait_s = await self._look(left)
        except (Busy, errors.NotReady):
            wait_s = ABSENT_S
        except errors.Pressure:
            wait_s = LOOK_S
        try:
            wait_s = min(wait_s, max(self._wrote_s + limits.HEARTBEAT_MS / 1000 - loop.time(), 0))
            if not self._gone.is_set():
                await asyncio.wait((moved, left) if moved is not None else (left,), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if moved is not None:
                context.polls.leave(slot, moved)
        if not self._gone.is_set() and loop.time() - self._wrote_s >= limits.HEARTBEAT_MS / 1000:
            self._write(b": hb %d\n\n" % context.now_ms)

    async def _until_writable(self, left: asyncio.Task[None]) -> None:
        writable = asyncio.get_running_loop().create_task(self._wait_writable())
        try:
            await asyncio.wait((writable, left), timeout=limits.SLOW_CONSUMER_MS_MAX / 1000, return_when=asyncio.FIRST_COMPLETED)
        finally:
            writable.cancel()
        if not self._writable.is_set() and not self._gone.is_set():
            self._gone.set()
            self._transport.abort()

    async def _wait_writable(self) -> None:
        await self._writable.wait()

    async def _look(self, left: asyncio.Task[None]) -> float:
        """Claim if there may be something; return after how many seconds to look again when the queue does not move."""
        context = self._context
        if check_queue(context, self._name, self._topic)["claim_jitter_ms"]:
            return await self._claim(left) if self._should_claim() else self._again_s()
        turn = context.claim_turns.enter(self._name)
        try:
            if not turn.done():
                await asyncio.wait((turn, left), return_when=asyncio.FIRST_COMPLETED)
            if self._gone.is_set():
                return 0.0
            return await self._claim(left) if self._should_claim() else self._again_s()
        finally:
            context.claim_turns.leave(self._name, turn)

    def _again_s(self) -> float:
        """Return when a stream that holds all it may has to look again, or for ever."""
        if len(self._held) < self._asked["jobs_max"]:
            return 3600.0
        return max(self._looked_s + LOOK_S - asyncio.get_running_loop().time(), 0.0)

    def _should_claim(self) -> bool:
        """Tell whether a claim can bring something: jobs are ready, and there is a place for them or may be one."""
        context = self._context
        reader: Any = context.reader
        place = context.place(self._name)
        if place is None:
            raise errors.TopicNotFound(self._topic)
        if place != self._place or context.shared.generation != self._generation:
            return True  # a new writer does not know which worker process the jobs of a stream are in
        try:
            counters = context.reader.summary(place[0], context.now_ms).get("queue")
            if counters is None or not counters["ready"]:
                return False  # None: made again as a log, which the next look tells
            if len(self._held) < self._asked["jobs_max"]:
                return True
            live = work.live_of(reader, *place, list(self._held), context.now_ms)
        except Gone:
            return True
        return live < len(self._held) or asyncio.get_running_loop().time() - self._looked_s >= LOOK_S

    async def _claim(self, left: asyncio.Task[None]) -> float:
        context, held = self._context, list(self._held.items())
        self._looked_s = asyncio.get_running_loop().time()
        generation = context.shared.generation
        granted = await ask(context, self._exchange, self._topic, self._asked | {"held": held}, left)
        if granted is None:
            return 0.0
        self._generation = generation
        place = granted.slot, granted.topic_id
        if place != self._place:
            held, self._held, self._place = [], {}, place  # another queue of the same name: what was held went with the old one
        else:
            for (seq, token), still in zip(held, granted.still, strict=True):
                if not still and self._held.get(seq) == token:
                    del self._held[seq]
        for seq, token, _ in granted.jobs:
            self._held[seq] = token
        if not self._gone.is_set():
            self._push(granted)
        return 0.0 if granted.jobs else self._again_s()

    def _push(self, granted: Any) -> None:
        """Write one event a job; its id is the seq."""
        start = b'{"topic":' + orjson.dumps(self._topic) + b","
        frames = [b"id: %d\nevent: job\ndata: %b\n\n" % (job[0], start + text[1:]) for job, text in render(self._context, self._topic, granted)]
        if frames:
            self._write(b"".join(frames))

    async def _give_back(self) -> None:
        """Release what this connection was given and has not settled (A §10.8)."""
        if self._place is None or not self._held:
            return
        jobs = [(seq, token, 0) for seq, token in sorted(self._held.items())]
        self._held.clear()
        with contextlib.suppress(Exception):  # what stays leased ends by itself
            await give_back(self._context, *self._place, self._asked["node"], jobs)


async def end_all(context: Context) -> None:
    """Tell every work stream that the server ends (503), close it, and let it give its jobs back."""
    streams = list(context.work_streams)
    for stream in streams:
        stream.end(errors.ShuttingDown("the server is shutting down"))
    if tasks := [stream.task for stream in streams if stream.task is not None]:
        await asyncio.wait(tasks, timeout=END_S)
