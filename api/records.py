"""Records: append, read the difference, delete (A §2, §3, §5)."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import falcon.asgi

from topicsd import errors, limits
from topicsd._native import render, scan
from topicsd._native.port import Completion
from topicsd.api import answers, queries
from topicsd.api.answers import performance
from topicsd.api.calls import BODY_DIFFERS, CREATED, DEDUPED, Outcome, refusal
from topicsd.api.context import Context
from topicsd.api.exchange import Exchange
from topicsd.api.gate import Route, checked_config, exchange_of
from topicsd.api.reading import reading

# ---- append ------------------------------------------------------------------------------------------------------------------


async def append(context: Context, exchange: Exchange, resp: falcon.asgi.Response) -> None:
    """Serve `POST /v0/topics/:topic`."""
    body = await exchange.body(context.settings.max_body_bytes)
    write = await parse_write(context, body)
    topic = context.topic(exchange)
    return_seqs = queries.boolean(exchange.query, "return_seqs", True)
    key = _header_key(exchange)
    config = None
    if write.config is not None:
        config = checked_config(json.loads(write.config), exchange, topic, "config").to_json()
    completion = await append_to(context, exchange, topic, write, key, config)
    if completion.status != Outcome.OK:
        raise refusal(completion)
    created = bool(completion.flags & CREATED)
    context.shared.add_worker(context.ring, "records_in", completion.count)
    rendered = render.append_answer(
        exchange.topic,
        completion.first_seq,
        completion.count,
        completion.head,
        created=created,
        deduped=bool(completion.flags & DEDUPED),
        body_differs=bool(completion.flags & BODY_DIFFERS),
        return_seqs=return_seqs,
        total_us=exchange.spent_us,
        wal_us=completion.wal_us,
        fsync_us=completion.fsync_us,
        parked_us=completion.parked_us,
    )
    answers.send(resp, rendered, 201 if created else 200)


async def parse_write(context: Context, body: bytes) -> scan.Write:
    """Scan a write's body, a large one in a thread (the scanner needs no GIL)."""
    if len(body) > limits.SCAN_THREAD_BYTES_MIN:
        return await asyncio.to_thread(scan.parse_write, body, context.write_limits)
    return scan.parse_write(body, context.write_limits)


def _header_key(exchange: Exchange) -> bytes | None:
    raw = exchange.headers.get(b"idempotency-key")
    if not raw:
        return None
    try:
        return scan.header_key(raw.decode())
    except UnicodeDecodeError:
        raise errors.Invalid("Idempotency-Key", "expected UTF-8") from None
    except ValueError as wrong:  # BadRequest is one
        raise errors.Invalid("Idempotency-Key", f"at most {limits.KEY_CHARS_MAX} characters", limit=limits.KEY_CHARS_MAX) from wrong


async def append_to(
    context: Context, exchange: Exchange, topic: str, write: scan.Write, key: bytes | None, config: dict[str, Any] | None
) -> Completion:
    """Append to the topic that has the name now, or let the engine create it."""
    for _ in range(limits.MOVED_RETRIES_MAX):
        place = context.place(exchange.topic)
        if place is None:
            if write.create is False:
                raise errors.TopicNotFound(topic)
            if config is not None and not exchange.key.may("admin"):
                raise errors.Forbidden("a write that creates its topic with a config needs the admin scope", {"scope": "admin"})
            command = {"op": "records.append", "topic": topic, "create": write.create, "config": config}
            completion = await context.calls.append_call(command, write, key)
        else:
            completion = await context.calls.append(*place, write, key)
        if completion.status != Outcome.MOVED:
            return completion
    raise errors.Pressure("the topic is deleted and created again too fast", 1000 * limits.RETRY_AFTER_S)


# ---- diff --------------------------------------------------------------------------------------------------------------------


class Diff(Route):
    """`POST /v0/topics/:topic/diff` (A §3)."""

    scopes = {"POST": ("read",)}  # noqa: RUF012

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Answer the records after a cursor; with `wait_ms`, wait until this reader has something to get."""
        context, exchange = self.context, exchange_of(req)
        request = scan.parse_diff(await exchange.body(context.settings.max_body_bytes, may_be_empty=True))
        topic = context.topic(exchange)
        place = context.place(exchange.topic)
        if place is None:
            raise errors.TopicNotFound(topic)
        slot, topic_id = place
        body, would_wait, next_from_seq = await context.read(partial(_read, context, exchange, topic, slot, topic_id, request))
        if would_wait and request.wait_ms:
            request.from_seq = max(request.from_seq, next_from_seq)
            context.shared.add_worker(context.ring, "long_polls")
            try:
                body = await _poll(context, exchange, topic, topic_id, request)
            finally:
                context.shared.add_worker(context.ring, "long_polls", -1)
        answers.send(resp, body)


def _read(context: Context, exchange: Exchange, topic: str, slot: int, topic_id: int, request: scan.Diff) -> tuple[bytes, bool, int]:
    with reading(topic):
        return context.reader.diff(slot, request, context.now_ms, exchange.started_ns, topic_id)


async def _poll(context: Context, exchange: Exchange, topic: str, topic_id: int, request: scan.Diff) -> bytes:
    """Wait until the reader would get something, the topic is deleted, the client leaves, the server drains or time is up."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(request.wait_ms, limits.DIFF_WAIT_MS_MAX) / 1000
    left = loop.create_task(exchange.disconnected())
    try:
        while True:
            # Under a new writer the topic may stand in another slot, and while there is none nothing can be told.
            slot = context.reader.find(exchange.topic) if context.shared.ready else None
            if slot is None and context.shared.ready:
                raise errors.TopicNotFound(topic)
            moved = context.polls.enter(slot)
            try:
                if slot is not None:
                    body, would_wait, next_from_seq = await context.read(partial(_read, context, exchange, topic, slot, topic_id, request))
                    if not would_wait or context.draining or loop.time() >= deadline:
                        return body
                    request.from_seq = max(request.from_seq, next_from_seq)
                elif context.draining or loop.time() >= deadline:
                    context.check_ready()
                await asyncio.wait((moved, left), timeout=max(deadline - loop.time(), 0), return_when=asyncio.FIRST_COMPLETED)
            finally:
                context.polls.leave(slot, moved)
            if left.done():
                deadline = 0.0  # most likely nobody reads the answer; one who has only finished sending gets what there is
    finally:
        left.cancel()


# ---- delete ------------------------------------------------------------------------------------------------------------------


class Erase(Route):
    """`POST /v0/topics/:topic/delete` (A §5)."""

    scopes = {"POST": ("delete",)}  # noqa: RUF012

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Delete records below a seq, with a tag, or both."""
        exchange = exchange_of(req)
        request = scan.parse_delete(await exchange.body(self.context.settings.max_body_bytes))
        topic = self.context.topic(exchange)
        command = {
            "op": "records.delete",
            "topic": topic,
            "before_seq": request.before_seq,
            "match_kind": request.match_kind,
            "match": None if request.match is None else request.match.decode(),
        }
        answer, completion = await self.context.calls.call(command)
        answers.send(resp, {"topic": topic, **answer, "performance": performance(exchange, completion.wal_us, completion.fsync_us)})
