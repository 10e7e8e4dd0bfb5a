"""The Falcon door: every route, and what happens around each request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import falcon
import falcon.asgi
import structlog

from topicsd import errors
from topicsd._native.reader import Busy
from topicsd._native.scan import BadRequest
from topicsd.api import errors as wire
from topicsd.api import exporting, groups, metrics, openapi, probes, queries, queues, records, routers, sealing, socket, topics, watch, work
from topicsd.api.context import Context
from topicsd.api.exchange import Exchange, Receive
from topicsd.api.gate import EXCHANGE, Gate, Route, exchange_of

Send = Callable[[dict[str, Any]], Awaitable[None]]
log = structlog.get_logger("api")
access = structlog.get_logger("access")


def make_falcon(context: Context) -> Any:
    """Build the Falcon application."""
    app: Any = falcon.asgi.App(middleware=[Gate(context)])
    app.req_options.strip_url_path_trailing_slash = False
    app.resp_options.default_media_type = falcon.MEDIA_JSON
    context.routes = routes(context)
    for path, route in context.routes.items():
        app.add_route(path, route)
    app.add_error_handler(Exception, _on_bug)
    app.add_error_handler(falcon.HTTPError, _on_falcon)
    app.add_error_handler(errors.TopicsError, _on_error)
    app.add_error_handler(BadRequest, _on_bad_request)
    app.add_error_handler(Busy, _on_busy)
    return app


def routes(context: Context) -> dict[str, Route]:
    """Return every resource by its path; api/operations.py describes them, and a test holds the two together."""
    return {
        "/v0/topics": topics.Topics(context),
        "/v0/topics/{topic}": topics.Topic(context),
        "/v0/topics/{topic}/diff": records.Diff(context),
        "/v0/topics/{topic}/delete": records.Erase(context),
        "/v0/routers": routers.Routers(context),
        "/v0/routers/{router}": routers.Router(context),
        "/v0/health": probes.Health(context),
        "/healthz": probes.Health(context),
        "/v0/ready": probes.Ready(context),
        "/readyz": probes.Ready(context),
        "/v0/metrics": metrics.Metrics(context),
        "/v0/openapi.json": openapi.OpenApi(context),
        "/v0/ws": socket.SocketRoute(context),
        **groups.routes(context),
        **watch.routes(context),
        **queues.routes(context),
        **work.routes(context),
        **sealing.routes(context),
        **exporting.routes(context),
    }


async def _on_error(req: Any, resp: Any, error: errors.TopicsError, params: Any) -> None:
    exchange_of(req).refused = error
    wire.write(resp, error)


async def _on_busy(req: Any, resp: Any, busy: Busy, params: Any) -> None:
    wire.write(resp, errors.NotReady("the writer has just gone, or is starting"))  # between the gate's look and the route's


async def _on_bad_request(req: Any, resp: Any, wrong: BadRequest, params: Any) -> None:
    wire.write(resp, errors.ClientError(wrong.message, wrong.detail, code=wrong.code))


async def _on_falcon(req: Any, resp: Any, wrong: falcon.HTTPError, params: Any) -> None:
    wire.write(resp, wire.from_falcon(wrong))


async def _on_bug(req: Any, resp: Any, wrong: Exception, params: Any) -> None:
    # Neither headers nor query: a token never gets into a log.
    log.error("internal error", method=req.method, path=req.path, request_id=exchange_of(req).request_id.decode(), exc_info=wrong)
    wire.write(resp, errors.Internal("internal error; the server's log has more"))


def _log_access(exchange: Exchange, status: int, sent: int) -> None:
    """Log one request; its path without the query, where a token may stand."""
    access.info(
        "request",
        request_id=exchange.request_id.decode(),
        method=exchange.scope["method"],
        path=exchange.scope["path"],
        status=status,
        bytes_in=exchange.body_bytes,
        bytes_out=sent,
        us=exchange.spent_us,
        key=exchange.key.index,
    )


class Door:
    """Be the ASGI application: keep Falcon off the body, and give back what a request held however it ends."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._falcon = make_falcon(context)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
            return
        context, ring = self.context, self.context.ring
        raw_path: bytes = scope.get("raw_path") or b""
        scope["path"] = queries.routing_path(raw_path) if raw_path else scope["path"]
        exchange = Exchange(scope, receive, context.budget)
        scope[EXCHANGE] = exchange
        status, sent = 0, 0

        async def count_and_send(event: dict[str, Any]) -> None:
            nonlocal status, sent
            if event["type"] == "http.response.start":
                status = event["status"]
                event["headers"] = [*event.get("headers", ()), (b"x-request-id", exchange.request_id)]
            else:
                sent += len(event.get("body", b""))
                if not event.get("more_body", False):
                    leave()  # before the client can know that it is answered: its next request may come in at another worker at once
            await send(event)

        def leave() -> None:
            if exchange.entered:
                exchange.entered = False
                shared.inflight_leave(ring, exchange.key.index)

        shared = context.shared
        shared.add_worker(ring, "requests")
        shared.add_worker(ring, "inflight")
        try:
            await self._falcon(scope, exchange.nothing, count_and_send)
        finally:
            exchange.close()
            leave()
            shared.add_worker(ring, "inflight", -1)
            shared.add_worker(ring, "bytes_in", exchange.body_bytes)
            shared.add_worker(ring, "bytes_out", sent)
            if status >= 500:
                shared.add_worker(ring, "errors_5xx")
            if exchange.refused is not None:
                context.count_refusal(exchange.refused)
            context.meters.request(ring, exchange.operation, status, exchange.spent_us)
            if context.settings.access_log:
                _log_access(exchange, status, sent)
        if exchange.owes_body:
            await exchange.linger()
