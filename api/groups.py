"""Consumer groups: consume, ack, reset, show, delete (K; CLARIFICATIONS, Consumer groups and Auth).

The writer grants a range of seqs, the worker renders it as diff does. What a consumer can not be handed goes back at once: the end of a range
that does not fit one page, the whole of it when the client has left. A range without a live record is settled and the next one asked for.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import falcon.asgi
import orjson

from topicsd import errors, limits
from topicsd._native import scan
from topicsd.api import answers, members, queries
from topicsd.api.answers import performance
from topicsd.api.context import Context
from topicsd.api.exchange import Exchange
from topicsd.api.gate import Route, exchange_of
from topicsd.api.reading import reading
from topicsd.errors import Invalid
from topicsd.topic_config import check_topic_name

Json = dict[str, Any]


def routes(context: Context) -> dict[str, Route]:
    """Return the routes by path."""
    return {
        "/v0/topics/{topic}/groups": Groups(context),
        "/v0/topics/{topic}/groups/{group}": Group(context),
        "/v0/topics/{topic}/groups/{group}/consume": Consume(context),
        "/v0/topics/{topic}/groups/{group}/ack": Ack(context),
        "/v0/topics/{topic}/groups/{group}/reset": Reset(context),
    }


def group_name(segment: str) -> str:
    """Return the path's group name: the rule is that of topic names. Raises Invalid."""
    return check_topic_name(queries.decoded_segment(segment), "group")


def place(context: Context, exchange: Exchange, topic: str) -> int:
    """Return the topic's slot. Raises TopicNotFound; Busy while the writer is away."""
    slot = context.reader.find(exchange.topic)
    if slot is None:
        raise errors.TopicNotFound(topic)
    return slot


# ---- consume -----------------------------------------------------------------------------------------------------------------


class Consume(Route):
    """`POST /v0/topics/:topic/groups/:group/consume`."""

    scopes = {"POST": ("read", "write")}  # noqa: RUF012

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, group: str) -> None:
        """Lease the next range of a group and answer its records; wait for some as long as the client wants to."""
        exchange = exchange_of(req)
        body = members.read(await exchange.body(self.context.settings.max_body_bytes, may_be_empty=True) or b"{}")
        _check_partition(body)
        request = Request(self.context, exchange, group_name(group), body)
        self.context.shared.add_worker(self.context.ring, "long_polls")
        try:
            answers.send(resp, await request.serve())
        finally:
            self.context.shared.add_worker(self.context.ring, "long_polls", -1)


class Request:
    """One consume: grant, render, give back, wait, again."""

    def __init__(self, context: Context, exchange: Exchange, group: str, body: Json) -> None:
        self.context, self.exchange, self.group = context, exchange, group
        self.topic = context.topic(exchange)
        self.consumer = members.text(body, "consumer_id", limits.CONSUMER_BYTES_MAX)
        self.timeout_s = members.integer(body, "timeout_seconds", limits.CONSUME_TIMEOUT_S, most=limits.U64_MAX)
        self.timeout_s = min(self.timeout_s, limits.CONSUME_TIMEOUT_S_MAX)
        self.limit = members.clamped(body, "limit", limits.CONSUME_LIMIT, context.settings.max_limit)
        self.visibility_ms = members.clamped(body, "visibility_timeout_ms", limits.VISIBILITY_MS, limits.VISIBILITY_MS_MAX)
        self.start = position(body.get("start"), "start", "earliest")
        page: Json = {"limit": self.limit, "max_batch_bytes": members.integer(body, "max_batch_bytes", 0)}
        for name in ("include_tags", "include_meta", "include_data"):
            page[name] = members.boolean(body, name, True)
        self.page = scan.parse_diff(orjson.dumps(page))

    async def serve(self) -> bytes:
        """Return the answer. Raises TopicNotFound, also when the topic goes while this waits, and what the engine raises."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timeout_s
        left = loop.create_task(self.exchange.disconnected())
        try:
            while True:
                slot = place(self.context, self.exchange, self.topic)
                moved = self.context.polls.enter(slot)
                try:
                    grant = await self._grant()
                    if grant["range"] is not None:
                        page = await self._page(slot, grant, left)
                        if page is not None:
                            return page
                        continue
                    left_s = deadline - loop.time()
                    if left_s <= 0 or self.context.draining or left.done():
                        return self._empty(grant)
                    if grant["wait_ms"] is not None:
                        left_s = min(left_s, grant["wait_ms"] / 1000 + 0.001)
                    await asyncio.wait((moved, left), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    self.context.polls.leave(slot, moved)
        finally:
            left.cancel()

    async def _grant(self) -> Json:
        command = {
            "op": "group.consume",
            "topic": self.topic,
            "group": self.group,
            "start": self.start,
            "limit": self.limit,
            "visibility_ms": self.visibility_ms,
            "consumer": self.consumer or "",
        }
        grant, _ = await self.context.calls.call(command)
        return grant

    def _read(self, slot: int, first: int, last: int, epoch: int) -> tuple[bytes, bool, int]:
        with reading(self.topic):
            return self.context.reader.diff_range(slot, self.page, first, last, self.context.now_ms, self.exchange.started_ns, epoch)

    async def _page(self, slot: int, grant: Json, left: asyncio.Task[None]) -> bytes | None:
        """Render a granted range; None when it held nothing to hand out."""
        first, last = grant["range"]
        if left.done():
            await self._give_back(grant, first, last)
            return self._empty(grant)
        try:
            body, told, cursor = await self.context.read(partial(self._read, slot, first, last, grant["epoch"]))
        except errors.TopicsError:
            await self._give_back(grant, first, last)
            raise
        if not told:
            await self._give_back(grant, first, min(cursor, last), settle=True)
            if cursor < last:
                await self._give_back(grant, cursor + 1, last)
            return None
        if cursor < last:
            await self._give_back(grant, cursor + 1, last)
            last, grant["has_more"] = cursor, True
        return body[:-1] + b"," + orjson.dumps(self._members(grant, first, last))[1:]

    async def _give_back(self, grant: Json, first: int, last: int, settle: bool = False) -> None:
        command = {
            "op": "group.release",
            "topic": self.topic,
            "group": self.group,
            "epoch": grant["epoch"],
            "consumer": self.consumer or "",
            "first": first,
            "last": last,
            "settle": settle,
        }
        await self.context.calls.call(command)

    def _members(self, grant: Json, first: int | None, last: int | None) -> Json:
        return {
            "group": self.group,
            "partition_id": 0,
            "consumer_id": self.consumer,
            "first_offset": first,
            "last_offset": last,
            "next_offset": (grant["committed_offset"] if last is None else last) + 1,
            "has_more": bool(grant.get("has_more")),
            "committed_offset": grant["committed_offset"],
            "deliveries": grant.get("deliveries", 0),
            "visibility_timeout_ms": self.visibility_ms,
        }

    def _empty(self, grant: Json) -> bytes:
        """Answer the members of a page that ends where the group stands."""
        head, at = grant["head_seq"], grant["committed_offset"]
        page = {
            "topic": self.topic,
            "records": [],
            "next_from_seq": at,
            "head_seq": head,
            "earliest_seq": grant["earliest_seq"],
            "caught_up": at == head,
            "tombstone": None,
            "lag": head - at,
            "epoch": grant["epoch"],
        }
        return orjson.dumps(page | self._members(grant, None, None) | {"performance": performance(self.exchange)})


# ---- ack, reset --------------------------------------------------------------------------------------------------------------


class Ack(Route):
    """`POST /v0/topics/:topic/groups/:group/ack`."""

    scopes = {"POST": ("write",)}  # noqa: RUF012

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, group: str) -> None:
        """Settle everything up to an offset, or with `consumer_id` what that consumer has leased up to it."""
        exchange, name = exchange_of(req), group_name(group)
        body = members.read(await exchange.body(self.context.settings.max_body_bytes))
        _check_partition(body)
        command = {
            "op": "group.ack",
            "topic": self.context.topic(exchange),
            "group": name,
            "upto_offset": members.integer(body, "upto_offset"),
            "consumer": members.text(body, "consumer_id", limits.CONSUMER_BYTES_MAX),
        }
        if "from_offset" in body:
            command["from_offset"] = members.integer(body, "from_offset")
            if command["consumer"] is None:
                raise Invalid("from_offset", "only together with consumer_id: without one an ack settles all up to upto_offset")
        answer, completion = await self.context.calls.call(command)
        head = {"success": True, "topic": command["topic"], "group": name, "partition_id": 0}
        answers.send(resp, head | answer | {"performance": performance(exchange, completion.wal_us, completion.fsync_us)})


class Reset(Route):
    """`POST /v0/topics/:topic/groups/:group/reset`."""

    scopes = {"POST": ("admin",)}  # noqa: RUF012

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, group: str) -> None:
        """Move a group to a position; its leases end."""
        exchange, name = exchange_of(req), group_name(group)
        body = members.read(await exchange.body(self.context.settings.max_body_bytes))
        _check_partition(body)
        topic = self.context.topic(exchange)
        command: Json = {"op": "group.reset", "topic": topic, "group": name}
        to = body.get("to")
        if isinstance(to, dict) and set(to) == {"timestamp_ms"}:
            slot = place(self.context, exchange, topic)
            with reading(topic):
                command["committed"] = self.context.reader.seq_at(slot, members.integer(to, "timestamp_ms"), self.context.now_ms) - 1
        else:
            command["to"] = position(to, "to", None)
        answer, completion = await self.context.calls.call(command)
        head = {"topic": topic, "group": name, "partition_id": 0}
        answers.send(resp, head | answer | {"performance": performance(exchange, completion.wal_us, completion.fsync_us)})


def position(value: object, field: str, default: str | None) -> str | int:
    """Read "earliest", "latest" (in any letter case) or {"offset": n}. Raises Invalid."""
    if value is None and default is not None:
        return default
    if isinstance(value, str) and value.lower() in ("earliest", "latest"):
        return value.lower()
    if isinstance(value, dict) and len(value) == 1:
        ((name, offset),) = value.items()
        if name.lower() == "offset":
            return members.integer({f"{field}.{name}": offset}, f"{field}.{name}")
    raise Invalid(field, 'expected "earliest", "latest" or {"offset": n}')


def _check_partition(body: Json) -> None:
    members.integer(body, "partition_id", 0, most=0)


# ---- show, delete ------------------------------------------------------------------------------------------------------------


class Groups(Route):
    """`GET /v0/topics/:topic/groups`."""

    scopes = {"GET": ("read",)}  # noqa: RUF012

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """List a topic's groups with their lag, in order of names."""
        exchange = exchange_of(req)
        topic, after = self.context.topic(exchange), queries.decode_cursor(exchange.query)
        command = {
            "op": "group.list",
            "topic": topic,
            "after": None if after is None else after.decode(),
            "page_size": min(queries.page_size(exchange.query), limits.GROUPS_PAGE_MAX),
        }
        answer, _ = await self.context.calls.call(command)
        for group in answer["groups"]:
            group["lag"] = await lag(self.context, exchange, topic, group)
        body: Json = {"topic": topic, "groups": answer["groups"]}
        if answer["more"]:
            body["next_cursor"] = queries.encode_cursor(answer["groups"][-1]["group"].encode())
        answers.send(resp, body | {"performance": performance(exchange)})

    on_head = on_get


class Group(Route):
    """`/v0/topics/:topic/groups/:group`."""

    scopes = {"GET": ("read",), "DELETE": ("admin",)}  # noqa: RUF012

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, group: str) -> None:
        """Show one group: position, leases, lag."""
        exchange, name = exchange_of(req), group_name(group)
        topic = self.context.topic(exchange)
        command = {"op": "group.show", "topic": topic, "group": name, "leases_max": limits.GROUP_LEASES_SHOWN_MAX}
        answer, _ = await self.context.calls.call(command)
        shown = {"topic": topic, **answer, "lag": await lag(self.context, exchange, topic, answer)}
        answers.send(resp, shown | {"performance": performance(exchange)})

    on_head = on_get

    async def on_delete(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, group: str) -> None:
        """Drop a group and its position."""
        exchange, name = exchange_of(req), group_name(group)
        topic = self.context.topic(exchange)
        answer, completion = await self.context.calls.call({"op": "group.delete", "topic": topic, "group": name})
        head = {"topic": topic, "group": name}
        answers.send(resp, head | answer | {"performance": performance(exchange, completion.wal_us, completion.fsync_us)})


async def lag(context: Context, exchange: Exchange, topic: str, group: Json) -> Json:
    """Count what a group has not settled up to its contiguous prefix: live records, their bytes, the age of the oldest in ms."""
    now_ms = context.now_ms
    slot = place(context, exchange, topic)
    with reading(topic):
        records, size, oldest_ms = context.reader.live_after(slot, group["committed_offset"], now_ms, group["epoch"])
    return {"records": records, "bytes": size, "oldest_age_ms": max(now_ms - oldest_ms, 0) if records else 0}
