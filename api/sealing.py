"""`POST /v0/topics/:topic/seal`: have a topic's records moved from the log into segments now (beyond A: for operators and tests)."""

from __future__ import annotations

import asyncio
from typing import Any

import falcon.asgi

from topicsd import errors, limits
from topicsd._native import scan
from topicsd.api import answers
from topicsd.api.answers import performance
from topicsd.api.context import Context
from topicsd.api.gate import Route, exchange_of

LOOK_S = 0.05
STEADY_LOOKS = 40  # so long without a step forward: what is left cannot be sealed (ephemeral records, copies of a router, a damaged log)


def routes(context: Context) -> dict[str, Route]:
    """Return the routes by path."""
    return {"/v0/topics/{topic}/seal": Seal(context)}


class Seal(Route):
    """Ask the keeper and wait for it."""

    scopes = {"POST": ("admin",)}  # noqa: RUF012

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Answer how far the topic is sealed; `sealed` says whether that is all there was when the request came."""
        exchange = exchange_of(req)
        scan.check_object(await exchange.body(self.context.settings.max_body_bytes, may_be_empty=True))
        topic = self.context.topic(exchange)
        answer = await seal(self.context, topic)
        answers.send(resp, answer | {"performance": performance(exchange)})


async def seal(context: Context, topic: str) -> dict[str, Any]:
    """Ask the keeper and wait for it; how far the topic is sealed. Raises TopicNotFound, StorageReadOnly when the disk has no room for segments."""
    command = {"op": "topic.seal", "topic": topic}
    body, _ = await context.calls.call(command)
    wanted, epoch, steady, last = body["head_seq"], body["epoch"], 0, -1
    deadline_s = asyncio.get_running_loop().time() + limits.SEAL_WAIT_S_MAX
    while body["sealed_seq"] < wanted and body["earliest_seq"] <= wanted and body["epoch"] == epoch:
        steady = steady + 1 if body["sealed_seq"] == last else 0
        last = body["sealed_seq"]
        if steady > STEADY_LOOKS or asyncio.get_running_loop().time() > deadline_s:
            break
        await asyncio.sleep(LOOK_S)
        body, _ = await context.calls.call(command | {"ask": steady % 10 == 9})
    done = body["sealed_seq"] >= wanted or body["earliest_seq"] > wanted
    if not done and context.figures.get("seal_no_room"):
        raise errors.StorageReadOnly("the disk has no room for a segment: delete records or topics, or give it more room")
    return {"topic": topic, "sealed": done, **{name: body[name] for name in ("sealed_seq", "head_seq", "epoch")}}
