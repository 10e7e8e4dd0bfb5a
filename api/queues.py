"""Queues: claim, ack, nack, extend, redrive (A §10; CLARIFICATIONS, Queues). The work stream is api/work.py.

The writer says which jobs are granted (`_native/queue_core.pyx`); the worker renders their records as diff does. A client that leaves before
its claim is answered gives up its place in the cohort, and what it was granted meanwhile goes back at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import falcon.asgi
import orjson

from topicsd import errors, limits
from topicsd._native import scan, work
from topicsd._native.port import Completion
from topicsd._native.reader import IoError
from topicsd.api import answers, members
from topicsd.api.answers import performance
from topicsd.api.calls import Outcome, refusal
from topicsd.api.context import Context
from topicsd.api.exchange import Exchange
from topicsd.api.gate import Route, check_reach, exchange_of
from topicsd.api.reading import reading

Json = dict[str, Any]
Job = tuple[int, int, int]  # seq, token, deliveries
PROMPT_S = 0.02  # a claim that takes longer waits for its cohort or for jobs: from then on its client is watched


def routes(context: Context) -> dict[str, Route]:
    """Return the routes by path."""
    return {
        "/v0/topics/{topic}/claim": Claim(context),
        "/v0/topics/{topic}/ack": Ack(context),
        "/v0/topics/{topic}/nack": Nack(context),
        "/v0/topics/{topic}/extend": Extend(context),
        "/v0/topics/{topic}/redrive": Redrive(context),
    }


# ---- members -----------------------------------------------------------------------------------------------------------------


def node_of(context: Context, body: Json) -> bytes:
    """Read `node`, which every verb needs. Raises Invalid."""
    node = members.text(body, "node", context.settings.max_node_bytes)
    if node is None:
        raise errors.Invalid("node", "is missing")
    return node.encode("utf-8", "surrogatepass")


def lease_ms_of(body: Json, default: int | None) -> int:
    """Read `lease_ms`, clamped; 0 stands for the topic's. Raises Invalid."""
    if body.get("lease_ms") is None and default is not None:
        return default
    return min(max(members.integer(body, "lease_ms"), limits.LEASE_MS_MIN), limits.LEASE_MS_MAX)


def _tokens_of(body: Json, count: int) -> list[int] | None:
    """Read `lease_ids`, one a seq. One that is none of ours matches no lease: token 0."""
    ids = body.get("lease_ids")
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
        raise errors.Invalid("lease_ids", "expected an array of strings")
    if len(ids) != count:
        raise errors.Invalid("lease_ids", "expected one lease id a seq")
    return [_token(each) for each in ids]


def _token(lease_id: str) -> int:
    digits = lease_id.removeprefix("lease_")
    if digits == lease_id or not 0 < len(digits) <= 16 or not all(each in "0123456789abcdef" for each in digits):
        return 0
    return int(digits, 16)


def check_queue(context: Context, name: bytes, topic: str) -> Json:
    """Return the config of a queue. Raises TopicNotFound, NotAQueue; NotReady while it can not be read."""
    with reading(topic):
        slot = context.reader.find(name)
        if slot is None:
            raise errors.TopicNotFound(topic)
        config = context.reader.config(slot)
    if config["type"] != "queue":
        raise errors.NotAQueue(topic)
    return config


# ---- claim -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Granted:
    """Hold what a claim was granted: the queue's place then, and the completion."""

    slot: int
    topic_id: int
    completion: Completion
    jobs: list[Job]
    still: list[bool]  # of the jobs that a work stream believed to hold


class Leaving:
    """Watch for a client that leaves, from the first time that somebody asks; the answer to a second question would be a cancelled first one's."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._task: asyncio.Task[None] | None = None

    def __call__(self) -> asyncio.Future[None]:
        """Return what is done once the client has left."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._exchange.disconnected())
        return self._task

    def end(self) -> None:
        """Look no longer."""
        if self._task is not None:
            self._task.cancel()


async def ask(context: Context, exchange: Exchange, topic: str, asked: Json, left: Callable[[], asyncio.Future[None]]) -> Granted | None:
    """Claim once from the queue that has the name now; None: the client has left, and nothing is leased to it.

    `asked`: the arguments of work.encode_claim but for the topic id. Raises TopicNotFound, NotAQueue, StorageReadOnly, NotReady, Pressure.
    """
    for _ in range(limits.MOVED_RETRIES_MAX):
        place = context.place(exchange.topic)
        if place is None:
            raise errors.TopicNotFound(topic)
        slot, topic_id = place
        token, future = await context.calls.send_queue(work.CLAIM, slot, work.encode_claim(topic_id, **asked))
        completion, gone = await _answer_of(context, token, future, left)
        if completion.status == Outcome.MOVED:
            continue
        check(completion, topic)
        still, jobs = work.granted(completion.payload, completion.count, completion.first_seq, len(asked.get("held", ())))
        if gone:
            await give_back(context, slot, topic_id, asked["node"], jobs)
            return None
        return Granted(slot, topic_id, completion, jobs, still)
    raise errors.Pressure("the topic is deleted and created again too fast", 1000 * limits.RETRY_AFTER_S)


async def _answer_of(
    context: Context, token: int, future: asyncio.Future[Completion], left: Callable[[], asyncio.Future[None]]
) -> tuple[Completion, bool]:
    """Await the answer of a claim; a client that leaves meanwhile leaves its cohort. The second value tells of it."""
    done, _ = await asyncio.wait((future,), timeout=PROMPT_S)
    if done:
        return future.result(), False
    watched = left()
    await asyncio.wait((future, watched), return_when=asyncio.FIRST_COMPLETED)
    if not future.done():
        await context.calls.send_leave(token)
    return await future, watched.done()


def check(completion: Completion, topic: str) -> None:
    """Raise what a command of queues was refused for."""
    if completion.status == work.NOT_QUEUE:
        raise errors.NotAQueue(topic)
    if completion.status != Outcome.OK:
        raise refusal(completion)


async def give_back(context: Context, slot: int, topic_id: int, node: bytes, jobs: list[Job]) -> None:
    """Release granted jobs that nobody will work on, by their tokens. Best effort: a lease that stays ends by itself."""
    if not jobs:
        return
    payload = work.encode_settle(topic_id, work.RELEASE, node, [job[0] for job in jobs], 0, [job[1] for job in jobs])
    with contextlib.suppress(errors.TopicsError):
        _, future = await context.calls.send_queue(work.SETTLE, slot, payload)
        await future


def render(context: Context, topic: str, granted: Granted) -> list[tuple[Job, bytes]]:
    """Render the granted jobs whose records are there and can be read. Raises TopicNotFound, NotReady."""
    rendered: list[tuple[Job, bytes]] = []
    reader: Any = context.reader
    deadline, now_ms = granted.completion.values[2], context.now_ms
    with reading(topic):
        try:
            texts = work.render_jobs(reader, granted.slot, granted.topic_id, granted.jobs, deadline, now_ms)
        except IoError:  # one of them cannot be read: the others are handed out all the same
            texts = [_one(context, granted, job, deadline, now_ms) for job in granted.jobs]
    for job, text in zip(granted.jobs, texts, strict=True):
        if text is not None:
            rendered.append((job, text))
    return rendered


def _one(context: Context, granted: Granted, job: Job, deadline: int, now_ms: int) -> bytes | None:
    reader: Any = context.reader
    try:
        return work.render_jobs(reader, granted.slot, granted.topic_id, [job], deadline, now_ms)[0]
    except IoError:
        return None


class Unreadable:
    """Tells the writer of granted jobs whose bytes turned out to be damaged: it looks for itself and takes them out. Best effort: they come again."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, slot: int, topic_id: int, seqs: list[int]) -> None:
        """Tell it as soon as the loop comes to it."""
        task = asyncio.get_running_loop().create_task(self._tell(slot, topic_id, seqs))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, slot: int, topic_id: int, seqs: list[int]) -> None:
        with contextlib.suppress(errors.TopicsError):
            answer, _ = await self.context.calls.call({"op": "queue.unreadable", "slot": slot, "topic_id": topic_id, "seqs": seqs})
            self.context.figures.add("jobs_lost", answer["lost"])


class Claim(Route):
    """`POST /v0/topics/:q/claim` (A §10.2); `wait_ms` is beyond the documents."""

    scopes = {"POST": ("read", "write")}  # noqa: RUF012

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Lease jobs; with `wait_ms`, wait until there is one."""
        context, exchange = self.context, exchange_of(req)
        body = members.read(await exchange.body(context.settings.max_body_bytes))
        asked = {
            "node": node_of(context, body),
            "jobs_max": members.clamped(body, "max", 1, context.settings.max_claim),
            "lease_ms": lease_ms_of(body, 0),
        }
        wait_ms = min(members.integer(body, "wait_ms", 0), limits.CLAIM_WAIT_MS_MAX)
        topic = context.topic(exchange)
        check_queue(context, exchange.topic, topic)
        left = Leaving(exchange)
        try:
            granted = await ask(context, exchange, topic, asked, left)
            if granted is not None and not granted.jobs and wait_ms:
                granted = await self._wait(exchange, topic, asked, granted, wait_ms, left)
        finally:
            left.end()
        if granted is None:
            answers.send(resp, {"topic": topic, "claimed": [], "count": 0, "ready": 0, "performance": performance(exchange)})
            return
        jobs = render(context, topic, granted)
        tail = {"count": len(jobs), "ready": granted.completion.values[0]}
        timing = performance(exchange, granted.completion.wal_us, granted.completion.fsync_us) | {"throttle_wait_ms": 0.0}
        head = b'{"topic":' + orjson.dumps(topic) + b',"claimed":['
        rest = b"]," + orjson.dumps(tail | {"performance": timing})[1:]
        answers.send(resp, head + b",".join(text for _, text in jobs) + rest)

    async def _wait(self, exchange: Exchange, topic: str, asked: Json, empty: Granted, wait_ms: int, leaving: Leaving) -> Granted | None:
        """Claim again whenever the queue has moved, one claim of this worker and queue at a time: no herd for one job."""
        context, loop = self.context, asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        left = leaving()
        context.shared.add_worker(context.ring, "long_polls")
        turn = context.claim_turns.enter(exchange.topic)
        granted: Granted | None = empty
        try:
            await asyncio.wait((turn, left), timeout=wait_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
            while not left.done():
                slot = context.reader.find(exchange.topic)
                moved = context.polls.enter(slot)
                try:
                    granted = await ask(context, exchange, topic, asked, leaving)
                    if granted is None or granted.jobs or context.draining or loop.time() >= deadline:
                        break
                    await asyncio.wait((moved, left), timeout=max(deadline - loop.time(), 0), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    context.polls.leave(slot, moved)
            return granted
        finally:
            context.claim_turns.leave(exchange.topic, turn)
            context.shared.add_worker(context.ring, "long_polls", -1)


# ---- ack, nack, extend -------------------------------------------------------------------------------------------------------


class Settle(Route):
    """Be the base of what settles leases."""

    scopes = {"POST": ("write",)}  # noqa: RUF012
    verb = 0
    told = ""  # the member that counts what was settled

    def ms_of(self, body: Json) -> int:
        """Read the verb's time. Raises Invalid."""
        return 0

    def tell(self, completion: Completion, seqs: list[int], done: list[bool]) -> Json:
        """Return the members behind `skipped`."""
        return {"ready": completion.values[0], "in_flight": completion.values[1]}

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Settle the seqs that are leased to the node; the others are skipped."""
        context, exchange = self.context, exchange_of(req)
        body = members.read(await exchange.body(context.settings.max_body_bytes))
        node, seqs = node_of(context, body), _seqs_of(body, context.settings.max_claim)
        tokens, ms = _tokens_of(body, len(seqs)), self.ms_of(body)
        topic = context.topic(exchange)
        check_queue(context, exchange.topic, topic)
        for _ in range(limits.MOVED_RETRIES_MAX):
            place = context.place(exchange.topic)
            if place is None:
                raise errors.TopicNotFound(topic)
            slot, topic_id = place
            payload = work.encode_settle(topic_id, self.verb, node, seqs, ms, tokens)
            _, future = await context.calls.send_queue(work.SETTLE, slot, payload)
            completion = await future
            if completion.status != Outcome.MOVED:
                break
        check(completion, topic)
        done = work.settled(completion.payload, len(seqs))
        answer = {"topic": topic, self.told: completion.count, "skipped": [seq for seq, yes in zip(seqs, done, strict=True) if not yes]}
        answer |= self.tell(completion, seqs, done)
        answers.send(resp, answer | {"performance": performance(exchange, completion.wal_us, completion.fsync_us)})


def _seqs_of(body: Json, most: int) -> list[int]:
    seqs = body.get("seqs")
    if not isinstance(seqs, list) or not seqs:
        raise errors.Invalid("seqs", "expected an array of at least one seq")
    for number, seq in enumerate(seqs):
        if type(seq) is not int or not 0 <= seq <= limits.U64_MAX:
            raise errors.Invalid(f"seqs[{number}]", "expected an unsigned integer")
    if len(seqs) > most:
        raise errors.ClientError(f"{len(seqs)} seqs, at most {most}", {"field": "seqs", "limit": most}, code="batch_too_large")
    return seqs


class Ack(Settle):
    """`POST /v0/topics/:q/ack` (A §10.4): the ack is the delete."""

    verb, told = work.ACK, "acked"


class Nack(Settle):
    """`POST /v0/topics/:q/nack` (A §10.5)."""

    verb, told = work.RELEASE, "nacked"

    def ms_of(self, body: Json) -> int:
        """Read `delay_ms`."""
        return min(members.integer(body, "delay_ms", 0), limits.DELAY_MS_MAX)


class Extend(Settle):
    """`POST /v0/topics/:q/extend` (A §10.6)."""

    verb, told = work.EXTEND, "extended"

    def ms_of(self, body: Json) -> int:
        """Read `lease_ms`, which is needed here."""
        return lease_ms_of(body, None)

    def tell(self, completion: Completion, seqs: list[int], done: list[bool]) -> Json:
        """Return the new deadlines by seq."""
        return {"deadlines": {str(seq): completion.values[2] for seq, yes in zip(seqs, done, strict=True) if yes}}


# ---- redrive -----------------------------------------------------------------------------------------------------------------


class Redrive(Route):
    """`POST /v0/topics/:q/redrive` (beyond the documents): dead letters of this queue come back as fresh jobs, the oldest first."""

    scopes = {"POST": ("read", "write")}  # noqa: RUF012

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Bring letters back, all or those that match."""
        context, exchange = self.context, exchange_of(req)
        raw = await exchange.body(context.settings.max_body_bytes, may_be_empty=True)
        body = members.read(raw)
        matching = scan.parse_delete(orjson.dumps({"before_seq": limits.U64_MAX, "match": body.get("match")}))
        command = {
            "op": "queue.redrive",
            "limit": members.clamped(body, "limit", limits.REDRIVE_LIMIT, limits.REDRIVE_LIMIT),
            "match_kind": matching.match_kind,
            "match": None if matching.match is None else matching.match.decode(),
        }
        topic = context.topic(exchange)
        dead_letter = check_queue(context, exchange.topic, topic)["dead_letter"]
        if dead_letter is not None:
            check_reach(exchange.key, dead_letter.encode())
        answer, completion = await context.calls.call(command | {"topic": topic})
        answers.send(resp, {"topic": topic, **answer, "performance": performance(exchange, completion.wal_us, completion.fsync_us)})
