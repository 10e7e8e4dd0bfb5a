"""Topics: create, configure, state, list, delete (A §1)."""

from __future__ import annotations

import json
from typing import Any

import falcon.asgi

from topicsd import errors
from topicsd._native import scan
from topicsd.api import answers, queries, records
from topicsd.api.answers import performance
from topicsd.api.context import Context
from topicsd.api.exchange import Exchange
from topicsd.api.gate import Route, checked_config, exchange_of
from topicsd.api.reading import reading


class Topics(Route):
    """`GET /v0/topics`: enumerate, in byte order of names (A §1.3)."""

    scopes = {"GET": ("read",)}  # noqa: RUF012

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """List one page, filtered to the key's prefixes; a page costs O(page)."""
        exchange = exchange_of(req)
        size = queries.page_size(exchange.query)
        touch = queries.boolean(exchange.query, "touch", False)
        after = queries.decode_cursor(exchange.query)
        prefix = exchange.query.get("prefix", "").encode("utf-8", "surrogateescape")
        found = names(self.context, exchange, prefix, after, size + 1)
        now_ms = self.context.now_ms
        entries: list[dict[str, Any]] = []
        for slot, _ in found[:size]:
            try:
                with reading():
                    entries.append(self.context.reader.summary(slot, now_ms))
                    if touch:
                        self.context.reader.touch(slot, now_ms)
            except errors.TopicNotFound:
                continue  # deleted since
        body: dict[str, Any] = {"topics": entries}
        if len(found) > size:
            body["next_cursor"] = queries.encode_cursor(found[size - 1][1])
        answers.send(resp, body | {"performance": performance(exchange)})

    on_head = on_get


def names(context: Context, exchange: Exchange, prefix: bytes, after: bytes | None, count_max: int) -> list[tuple[int, bytes]]:
    """Return up to `count_max` (slot, name) pairs after `after` that start with `prefix` and that the key may see."""
    found: list[tuple[int, bytes]] = []
    for each in queries.prefix_ranges(prefix, exchange.key.prefixes):
        if len(found) >= count_max:
            break
        found += context.order.page(each, after, count_max - len(found))
    return found


class Topic(Route):
    """`/v0/topics/:topic`."""

    scopes = {"PUT": ("admin",), "GET": ("read",), "DELETE": ("delete",), "POST": ("write",)}  # noqa: RUF012

    async def on_put(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Create a topic or replace its config (A §1.1)."""
        exchange = exchange_of(req)
        body = await exchange.body(self.context.settings.max_body_bytes, may_be_empty=True)
        scan.check_object(body)
        topic = self.context.topic(exchange)
        config = checked_config(json.loads(body), exchange, topic)
        answer, completion = await self.context.calls.call({"op": "topic.put", "topic": topic, "config": config.to_json()})
        spent = performance(exchange, completion.wal_us, completion.fsync_us)
        answers.send(resp, {"topic": topic, **answer, "performance": spent}, 201 if answer["created"] else 200)

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Answer the topic's state (A §1.2)."""
        exchange = exchange_of(req)
        topic = self.context.topic(exchange)
        touch = queries.boolean(exchange.query, "touch", True)
        slot = self.context.reader.find(exchange.topic)
        if slot is None:
            raise errors.TopicNotFound(topic)
        with reading(topic):
            answers.send(resp, self.context.reader.state(slot, self.context.now_ms, touch, exchange.started_ns))

    on_head = on_get

    async def on_delete(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Delete the topic, if it is there (A §1.4)."""
        exchange = exchange_of(req)
        topic = self.context.topic(exchange)
        if_empty = queries.boolean(exchange.query, "if_empty", False)
        answer, completion = await self.context.calls.call({"op": "topic.delete", "topic": topic, "if_empty": if_empty})
        answers.send(resp, {"topic": topic, **answer, "performance": performance(exchange, completion.wal_us, completion.fsync_us)})

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Append records (A §2)."""
        await records.append(self.context, exchange_of(req), resp)
