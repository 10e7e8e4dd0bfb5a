"""Paths of A that this version does not serve: queues.

They go through the same checks in the same order as every route (keys, scopes, content type, JSON, the topic and its type), so that a client gets
the most telling answer; what is left is 404 `not_found`. Nothing here ever answers with a success.
"""

from __future__ import annotations

import json

import falcon.asgi

from topicsd import errors
from topicsd._native import scan
from topicsd.api.context import Context
from topicsd.api.gate import Route, exchange_of
from topicsd.api.reading import reading


def routes(context: Context) -> dict[str, Route]:
    """Return the routes by path."""
    return {
        "/v0/topics/{topic}/claim": Claim(context),
        "/v0/topics/{topic}/ack": Settle(context),
        "/v0/topics/{topic}/nack": Settle(context),
        "/v0/topics/{topic}/extend": Settle(context),
        "/v0/topics/{topic}/work": Work(context),
    }


def absent() -> errors.NotFound:
    """Build the answer of a path that this version does not serve."""
    return errors.NotFound("this version of the server does not serve this path")


class QueueRoute(Route):
    """Be the base of the queue verbs."""

    async def check_queue(self, req: falcon.asgi.Request, node: str | None = None) -> None:
        """Raise what the request deserves: Invalid, TopicNotFound, NotAQueue, at last NotFound."""
        exchange = exchange_of(req)
        if req.method == "POST":
            body = await exchange.body(self.context.settings.max_body_bytes)
            scan.check_object(body)
            node = json.loads(body).get("node")
        topic = self.context.topic(exchange)
        if not isinstance(node, str):
            raise errors.Invalid("node", "expected a string")
        slot = self.context.reader.find(exchange.topic)
        if slot is None:
            raise errors.TopicNotFound(topic)
        with reading(topic):
            if self.context.reader.config(slot)["type"] != "queue":
                raise errors.NotAQueue(topic)
        raise absent()

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Check the request."""
        await self.check_queue(req)


class Claim(QueueRoute):
    """`POST /v0/topics/:q/claim`."""

    scopes = {"POST": ("read", "write")}  # noqa: RUF012


class Settle(QueueRoute):
    """`POST /v0/topics/:q/ack`, `nack`, `extend`."""

    scopes = {"POST": ("write",)}  # noqa: RUF012


class Work(QueueRoute):
    """`GET /v0/topics/:q/work`."""

    scopes = {"GET": ("read", "write")}  # noqa: RUF012
    on_post = None  # type: ignore[assignment]

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Check the request."""
        await self.check_queue(req, exchange_of(req).query.get("node"))
