"""`GET /v0/topics/:q/work`: jobs are leased to a connection and pushed over it as server-sent events (A §10.8).

A stream claims as `POST …/claim` does, and says with each claim which jobs it believes to hold: the writer counts what it does hold against `max`,
and remembers which worker process the stream lives in. When the connection breaks the stream gives its jobs back; when the process dies the writer
does. What a stream holds otherwise changes by acks, nacks and lapses that go past it.

The streams of one queue in one process have one task that looks whenever the queue has moved. It lets those claim for whom there may be something: a
free place, or one of their own jobs that is gone, and a ready job for each. Who got jobs last comes last. So a new job wakes one stream, not all.
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

LOOK_S = 0.1  # a stream that holds all it may claims again so long after its last claim: a nack of its own leaves no other trace
LOOK_JOBS = 16  # of what a full stream holds that are looked at for one that is gone
CLAIMS_MAX = 32  # of one queue and process at a time
ABSENT_S = 0.05  # between two tries while the writer is away
IDLE_S = 3600.0
END_S = 1.0  # how long a worker that ends waits for its streams to give their jobs back
_returning: set[asyncio.Task[None]] = set()  # what is being given back


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


class QueueStreams:
    """All work streams of one queue in this process, and the task that serves them."""

    def __init__(self, context: Context, name: bytes, topic: str) -> None:
        self._context, self._name, self._topic = context, name, topic
        self.streams: dict[WorkStream, None] = {}  # in the order in which they are served
        self._wake: asyncio.Future[None] | None = None
        self.task = asyncio.get_running_loop().create_task(self._run())

    def add(self, stream: WorkStream) -> None:
        """Serve one more."""
        self.streams[stream] = None
        self.poke()

    def poke(self, _: object = None) -> None:
        """Look again."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _run(self) -> None:
        try:
            while self.streams:
                await self._turn()
        except errors.TopicsError as wrong:
            self._end(wrong)
        except Exception:
            log.exception("the work streams of a queue failed")
            self._end(errors.Internal("internal error; the server's log has more"))
        finally:
            del self._context.work_streams[self._name]

    def _end(self, error: errors.TopicsError) -> None:
        for stream in list(self.streams):
            stream.end(error)

    async def _turn(self) -> None:
        """Let streams claim, then wait until the queue moves, somebody pokes or a heartbeat is due."""
        context, loop = self._context, asyncio.get_running_loop()
        self._wake = wake = loop.create_future()
        slot, moved, timer = None, None, None
        try:
            try:
                if not context.shared.ready:
                    raise Busy
                slot = context.reader.find(self._name)
                if slot is None:
                    raise errors.TopicNotFound(self._topic)
                moved = context.polls.enter(slot)  # before the look: nothing is missed
                moved.add_done_callback(self.poke)
                wait_s = await self._serve()
            except (Busy, Gone, errors.NotReady):
                wait_s = ABSENT_S
            except errors.Pressure:
                wait_s = LOOK_S
            now_s = loop.time()
            for stream in list(self.streams):
                wait_s = min(wait_s, stream.look_after(now_s))
            timer = loop.call_later(max(wait_s, 0), self.poke)
            await wake
        finally:
            if timer is not None:
                timer.cancel()
            if moved is not None:
                context.polls.leave(slot, moved)

    async def _serve(self) -> float:
        """Let those claim for whom there may be something; return after how many seconds to look again when nothing moves."""
        context, now_s = self._context, asyncio.get_running_loop().time()
        place = context.place(self._name)
        if place is None:
            raise errors.TopicNotFound(self._topic)
        glance = work.glance(context.shared, *place)
        if glance is None:
            check_queue(context, self._name, self._topic)  # says what it is instead
            return ABSENT_S
        ready, jitter_ms = glance
        generation = context.shared.generation
        able: list[WorkStream] = []
        again_s = IDLE_S
        for stream in self.streams:
            if len(able) == (len(self.streams) if jitter_ms else CLAIMS_MAX):
                break
            wait_s = stream.wants(place, generation, ready if jitter_ms else ready - len(able), now_s)
            if wait_s <= 0:
                able.append(stream)
            else:
                again_s = min(again_s, wait_s)
        if jitter_ms:  # all that can belong to the cohort, which may take its time: the others go on meanwhile
            for stream in able:
                stream.claim_apart(generation)
            return again_s
        if not able:
            return again_s
        told = await asyncio.gather(*(stream.claim(generation) for stream in able), return_exceptions=True)
        for stream, got in zip(able, told, strict=True):
            if got is True and stream in self.streams:
                del self.streams[stream]
                self.streams[stream] = None
        for got in told:
            if isinstance(got, BaseException):
                raise got
        return 0.0 if any(told) else again_s


class WorkStream:
    """Own one connection: push what is claimed, give it back at the end."""

    def __init__(self, context: Context, exchange: Exchange, topic: str, asked: dict[str, Any]) -> None:
        self._context, self._exchange, self._topic, self._asked = context, exchange, topic, asked
        self._key = exchange.key.index
        self._held: dict[int, int] = {}  # seq -> token of its lease
        self._place: tuple[int, int] | None = None  # slot and topic id of the queue that they are of
        self._generation = -1  # of the writer that was told what is held
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._group: QueueStreams | None = None
        self._transport: Any = None
        self._paused_s: float | None = None  # since when the client does not read
        self._looked_s = self._wrote_s = 0.0
        self._claiming = False
        self._counted = True

    def start(self, transport: Any) -> None:
        """Send the head and begin to claim."""
        self._transport = transport
        transport.set_write_buffer_limits(high=limits.STREAM_BYTES_MAX)
        self._write(head(self._exchange.request_id) + b"retry: 2000\n: hb %d\n\n" % self._context.now_ms)
        groups, name = self._context.work_streams, self._exchange.topic
        if name not in groups:
            groups[name] = QueueStreams(self._context, name, self._topic)
        self._group = groups[name]
        self._group.add(self)

    # ---- the connection's side -------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take no notice: nothing follows a stream's request."""

    def eof_received(self) -> bool:
        """Close: the worker has left."""
        return False

    def pause_writing(self) -> None:
        """Claim nothing more until the client has read."""
        self._paused_s = asyncio.get_running_loop().time()

    def resume_writing(self) -> None:
        """Go on."""
        self._paused_s = None
        self._poke()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count out, and give back what is held."""
        self._leave()
        if self._counted:
            self._counted = False
            self._context.sessions.leave(self._context.ring, self._key)

    def _poke(self) -> None:
        if self._group is not None:
            self._group.poke()

    def _leave(self) -> None:
        if self._gone.done():
            return
        self._gone.set_result(None)
        if self._group is not None:
            self._group.streams.pop(self, None)
            self._group.poke()
        if not self._claiming:
            self._return_jobs()

    # ---- what is said ------------------------------------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        self._wrote_s = asyncio.get_running_loop().time()
        self._transport.write(data)
        self._context.shared.add_worker(self._context.ring, "bytes_out", len(data))

    def end(self, error: errors.TopicsError) -> None:
        """Say why, and close behind it; a client that does not read it is cut off."""
        if self._gone.done():
            return
        self._write(b"event: error\ndata: " + orjson.dumps({"code": wire.status_of(error), "error": error.message}) + b"\n\n")
        self._leave()
        self._transport.close()
        if self._transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(limits.STREAM_END_S_MAX, self._transport.abort)

    def look_after(self, now_s: float) -> float:
        """Send a heartbeat when one is due, cut a client off that has not read for too long; return how long neither will be."""
        if self._paused_s is not None:
            left_s = self._paused_s + limits.SLOW_CONSUMER_MS_MAX / 1000 - now_s
            if left_s <= 0:
                self._leave()
                self._transport.abort()
            return left_s if left_s > 0 else IDLE_S
        due_s = self._wrote_s + limits.HEARTBEAT_MS / 1000
        if now_s >= due_s:
            self._write(b": hb %d\n\n" % self._context.now_ms)
            return limits.HEARTBEAT_MS / 1000
        return due_s - now_s

    # ---- jobs --------------------------------------------------------------------------------------------------------------------

    def wants(self, place: tuple[int, int], generation: int, ready: int, now_s: float) -> float:
        """Tell whether a claim can bring something: 0; else after how many seconds to ask again when nothing moves."""
        if self._claiming or self._paused_s is not None or self._gone.done():
            return IDLE_S
        if self._held and (place != self._place or generation != self._generation):
            return 0.0  # a new writer does not know which process the jobs of a stream are in; another queue has not leased them
        if ready <= 0:
            return IDLE_S
        if len(self._held) < self._asked["jobs_max"]:
            return 0.0
        some = [seq for seq, _ in zip(self._held, range(LOOK_JOBS), strict=False)]
        reader: Any = self._context.reader
        if work.live_of(reader, *place, some, self._context.now_ms) < len(some):
            return 0.0
        return max(self._looked_s + LOOK_S - now_s, 0.0)

    def claim_apart(self, generation: int) -> None:
        """Claim in a task of its own: the answer waits for a cohort."""
        task = asyncio.get_running_loop().create_task(self._claim_apart(generation))
        _returning.add(task)
        task.add_done_callback(_returning.discard)

    async def _claim_apart(self, generation: int) -> None:
        try:
            await self.claim(generation)
        except errors.TopicsError:
            await asyncio.sleep(ABSENT_S)  # what it is, the group's next look meets too
        except Exception:
            log.exception("a work stream failed")
            self.end(errors.Internal("internal error; the server's log has more"))
        finally:
            self._poke()

    async def claim(self, generation: int) -> bool:
        """Claim what there is a place for, and push it. True: there was something."""
        self._claiming = True
        try:
            held = list(self._held.items())
            self._looked_s = asyncio.get_running_loop().time()
            granted = await ask(self._context, self._exchange, self._topic, self._asked | {"held": held}, lambda: self._gone)
            if granted is None:
                return False
            self._generation = generation
            place = granted.slot, granted.topic_id
            if place != self._place:
                self._held, self._place = {}, place  # another queue of the same name: what was held went with the old one
            else:
                for (seq, token), still in zip(held, granted.still, strict=True):
                    if not still and self._held.get(seq) == token:
                        del self._held[seq]
            self._held |= {seq: token for seq, token, _ in granted.jobs}
            if not self._gone.done():
                self._push(granted)
            return bool(granted.jobs)
        finally:
            self._claiming = False
            if self._gone.done():
                self._return_jobs()

    def _push(self, granted: Any) -> None:
        """Write one event a job; its id is the seq."""
        start = b'{"topic":' + orjson.dumps(self._topic) + b","
        frames = [b"id: %d\nevent: job\ndata: %b\n\n" % (job[0], start + text[1:]) for job, text in render(self._context, self._topic, granted)]
        if frames:
            self._write(b"".join(frames))

    def _return_jobs(self) -> None:
        """Release what this connection was given and has not settled (A §10.8)."""
        if self._place is None or not self._held:
            return
        jobs = [(seq, token, 0) for seq, token in sorted(self._held.items())]
        self._held.clear()
        task = asyncio.get_running_loop().create_task(_release(self._context, self._place, self._asked["node"], jobs))
        _returning.add(task)
        task.add_done_callback(_returning.discard)


async def _release(context: Context, place: tuple[int, int], node: bytes, jobs: list[tuple[int, int, int]]) -> None:
    with contextlib.suppress(Exception):  # what stays leased ends by itself
        await give_back(context, *place, node, jobs)


async def end_all(context: Context) -> None:
    """Tell every work stream that the server ends (503), close it, and let it give its jobs back."""
    for group in list(context.work_streams.values()):
        for stream in list(group.streams):
            stream.end(errors.ShuttingDown("the server is shutting down"))
    if _returning:
        await asyncio.wait(list(_returning), timeout=END_S)
