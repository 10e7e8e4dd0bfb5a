"""`GET /v0/metrics`: Prometheus text, or JSON on request (A §8.3)."""

from __future__ import annotations

import asyncio

import falcon.asgi

from topicsd import errors, limits
from topicsd.api import answers
from topicsd.api.exchange import Exchange
from topicsd.api.gate import Route, exchange_of
from topicsd.api.operations import OPERATIONS
from topicsd.api.probes import damages
from topicsd.api.reading import reading
from topicsd.api.topics import names
from topicsd.metrics import Family, TopicLine, collect, groups, to_json, to_text


class Metrics(Route):
    """Show gauges, the log's counters and the sync histogram; also while the server is not ready."""

    scopes = {"GET": ("read",)}  # noqa: RUF012
    needs_ready = False

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Answer all samples; those of topics only for names that the key may see, and at most so many."""
        context, exchange = self.context, exchange_of(req)
        lines: list[TopicLine] = []
        truncated = False
        if context.shared.ready:
            found = names(context, exchange, b"", None, limits.METRICS_TOPICS_MAX + 1)
            truncated = len(found) > limits.METRICS_TOPICS_MAX
            for slot, name in found[: limits.METRICS_TOPICS_MAX]:
                try:
                    with reading():
                        lines.append(TopicLine.of(context.reader.summary(slot, context.now_ms), name.decode()))
                except (errors.TopicNotFound, errors.NotReady):
                    continue
        if context.sessions is not None:
            context.shared.set("sse_connections", context.sessions.streams)
            context.shared.set("watch_sessions", context.sessions.live)
        samples = collect(
            context.shared,
            limits.LOG_SHARDS_MAX,
            context.uptime_ms,
            lines,
            truncated,
            context.meters,
            [(operation.method, operation.path) for operation in OPERATIONS],
            context.ring_depths(),
            context.leases_in_flight(),
            context.sessions.counters() if context.sessions is not None else None,
            bool(damages(context)),
        )
        samples += context.figures.families(context.now_ms)
        samples += await self._groups(exchange)
        if "application/json" in req.get_header("Accept", default=""):
            answers.send(resp, to_json(samples))
        else:
            resp.content_type = "text/plain; version=0.0.4; charset=utf-8"
            resp.data = to_text(samples).encode()

    async def _groups(self, exchange: Exchange) -> list[Family]:
        """Ask the writer for its groups; a writer that is not there, or busy, has none to show now. The key sees those of its topics."""
        if not self.context.shared.ready:
            return []
        try:
            async with asyncio.timeout(limits.METRICS_WAIT_S):
                told, _ = await self.context.calls.call({"op": "group.metrics", "limit": limits.METRICS_GROUPS_MAX})
        except (TimeoutError, errors.TopicsError):
            return []
        told["groups"] = [row for row in told["groups"] if exchange.key.reaches(row["topic"].encode())]
        return groups(told)

    on_head = on_get
