"""What every request passes before its route: 401 → 403 → in-flight 429 → 503; the route goes on with 413 → 415 → 400 → 404 → 409 → 422/429."""

from __future__ import annotations

import asyncio
import re
from typing import Any, ClassVar

import falcon
import falcon.asgi

from topicsd import errors, limits
from topicsd.api import answers, operations, queries
from topicsd.api.auth import Key
from topicsd.api.context import Context
from topicsd.api.exchange import Exchange
from topicsd.topic_config import TopicConfig

WATCH = "/v0/watch/"
WORK = re.compile(r"/v0/topics/[^/]+/work")
EXCHANGE = "topicsd.exchange"  # its place in the ASGI scope
PROBES = frozenset({"/v0/health", "/v0/ready", "/healthz", "/readyz"})
ENTER_WAITS_S = (0.005, 0.02, 0.0)  # between the tries for a slot
ENTER_WAITERS_MAX = 64  # in one worker; the others are refused at once


class Route:
    """Be the base of all resources: which scopes each method needs, and what it serves without."""

    scopes: ClassVar[dict[str, tuple[str, ...]]] = {}
    needs_ready: ClassVar[bool] = True
    in_flight: ClassVar[bool] = True  # counts against max_inflight_per_key

    def __init__(self, context: Context) -> None:
        self.context = context


def exchange_of(req: falcon.asgi.Request) -> Exchange:
    """Return the exchange that belongs to a request."""
    exchange: Exchange = req.scope[EXCHANGE]
    return exchange


class Gate:
    """Check every request (Falcon middleware)."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting = 0  # requests that wait for a slot of their key

    async def process_request(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Authenticate: before routing, so that an unknown path is 401 first."""
        exchange = exchange_of(req)
        if b"host" not in exchange.headers and req.scope.get("http_version") == "1.1":
            raise errors.Invalid("", "a request has a Host header (RFC 9112 section 3.2)")
        keyring = self._context.keyring
        if keyring.enabled and (self._context.settings.probe_auth or req.path not in PROBES):
            key = keyring.find(presented(req, exchange))
            if key is None and req.method == "GET" and req.path.startswith(WATCH):
                return  # 406 and 404 come first there, and the session says which key it wants
            if key is None:
                raise errors.Unauthorized("a valid API key is needed: Authorization: Bearer <key>")
            exchange.key = key

    async def process_resource(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, resource: object, params: dict[str, Any]) -> None:
        """Authorize, count in, refuse what cannot be served now; put the decoded name into the exchange."""
        exchange = exchange_of(req)
        if not isinstance(resource, Route):
            return
        for name in ("topic", "router"):
            if name in params:
                exchange.topic = queries.decoded_segment(params.pop(name))
        method = "GET" if req.method == "HEAD" else req.method
        exchange.operation = operations.NUMBERS.get((method, req.uri_template or ""), 0)
        needed = resource.scopes.get(method)
        if needed is None:
            if req.method not in falcon.COMBINED_METHODS:
                raise errors.MethodNotAllowed(allowed_by(resource))
            return  # OPTIONS, or a method this path has not: Falcon answers
        exchange.query = queries.parse(req.scope.get("query_string", b""))
        if needed:
            authorize(exchange.key, needed, exchange.topic)
        if resource.in_flight:
            await self._enter(exchange)
        if resource.needs_ready:
            self._context.check_ready()

    async def _enter(self, exchange: Exchange) -> None:
        """Count in; wait a moment at the cap, because a client that has just hung up may hold its slot until another worker has run."""
        most, key = self._context.settings.max_inflight_per_key, exchange.key.index
        if not most or key < 0:
            return
        shared, ring = self._context.shared, self._context.ring
        for wait_s in ENTER_WAITS_S:
            if shared.inflight_enter(ring, key, most):
                exchange.entered = True
                return
            if not wait_s or self._waiting >= ENTER_WAITERS_MAX:
                break
            self._waiting += 1
            try:
                await asyncio.sleep(wait_s)
            finally:
                self._waiting -= 1
        shared.add_worker(ring, "throttled")
        raise errors.Throttled("max_inflight_per_key", most)

    async def process_response(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, resource: object, req_succeeded: bool) -> None:
        """Compress what is worth it."""
        if req.method == "OPTIONS" and req_succeeded and isinstance(resource, Route):
            resp.set_header("allow", ", ".join(allowed_by(resource)))
        data = resp.data
        if data is not None and len(data) > limits.GZIP_BYTES_MIN:
            await answers.compress(exchange_of(req), resp)


def presented(req: falcon.asgi.Request, exchange: Exchange) -> bytes | None:
    """Return what a request shows as its key: the header, or on the streams that a browser's EventSource opens `?token=` (A §7.1)."""
    header = exchange.headers.get(b"authorization")
    if header is None and req.method == "GET" and (req.path.startswith(WATCH) or WORK.fullmatch(req.path)):
        token = queries.first(req.scope.get("query_string", b""), "token")
        return None if token is None else b"Bearer " + token.encode("utf-8", "surrogateescape")
    return header


def allowed_by(resource: Route) -> tuple[str, ...]:
    """Return the methods that a path takes, in alphabetical order, OPTIONS last."""
    methods = sorted(method for method in falcon.COMBINED_METHODS if callable(getattr(resource, f"on_{method.lower()}", None)))
    return (*(method for method in methods if method != "OPTIONS"), "OPTIONS")


def authorize(key: Key, needed: tuple[str, ...], name: bytes) -> None:
    """Raise Forbidden unless the key has the scopes and reaches the name; names under `system.` can only be read. (A §0.2)"""
    missing = [scope for scope in needed if not key.may(scope)]
    if missing:
        raise errors.Forbidden(f"the API key lacks the {missing[0]} scope", {"scope": missing[0]})
    check_reach(key, name)
    if name.startswith(limits.SYSTEM_PREFIX.encode()) and needed != ("read",):
        raise errors.Forbidden(f'names under "{limits.SYSTEM_PREFIX}" are the server\'s own: they can only be read')


def check_reach(key: Key, name: bytes) -> None:
    """Raise Forbidden unless the key's prefix allowlist holds the name."""
    if name and not key.reaches(name):
        raise errors.Forbidden("the name is outside the API key's prefixes")


def checked_config(members: dict[str, Any], exchange: Exchange, topic: str, prefix: str = "") -> TopicConfig:
    """Read a topic config, and check that the key reaches the dead-letter topic it names. Raises Invalid, Forbidden."""
    config = TopicConfig.from_json(members, prefix=prefix, topic=topic)
    if config.dead_letter is not None:
        check_reach(exchange.key, config.dead_letter.encode())
        if config.dead_letter.startswith(limits.SYSTEM_PREFIX):
            raise errors.Forbidden("dead letters cannot go to a topic of the server's own")
    return config
