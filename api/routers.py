"""Routers: create, change, show, list, delete (A §6)."""

from __future__ import annotations

import json
import re
from typing import Any

import falcon.asgi

from topicsd import errors, limits
from topicsd._native import scan
from topicsd.api import answers, queries
from topicsd.api.answers import performance
from topicsd.api.exchange import Exchange
from topicsd.api.gate import Route, check_reach, exchange_of
from topicsd.topic_config import check_topic_name

_NAME = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}")  # a topic's letters, and those of `source->dest`
GUARANTEES = ("at_least_once", "exactly_once")


def valid_router_name(name: bytes) -> bool:
    """Tell whether a path or a cursor can name a router."""
    return _NAME.fullmatch(name) is not None


def router_name(exchange: Exchange) -> str:
    """Return the path's router name. Raises Invalid when it breaks the rule."""
    if not valid_router_name(exchange.topic):
        raise errors.Invalid("router", f"a name has 1 to {limits.NAME_BYTES_MAX} of A-Z a-z 0-9 . _ : - > and starts with a letter or digit")
    return exchange.topic.decode("ascii")


class Routers(Route):
    """`GET /v0/routers`: enumerate, in byte order of names (A §6.3)."""

    scopes = {"GET": ("read",)}  # noqa: RUF012

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """List one page, filtered to the key's prefixes."""
        exchange = exchange_of(req)
        size = queries.page_size(exchange.query)
        after = queries.decode_cursor(exchange.query, valid_router_name)
        prefix = exchange.query.get("prefix", "").encode("utf-8", "surrogateescape")
        prefixes = [each.decode("utf-8", "replace") for each in queries.prefix_ranges(prefix, exchange.key.prefixes)]
        command = {
            "op": "router.list", "prefixes": prefixes, "after": None if after is None else after.decode("ascii"), "count": size,
            "source": exchange.query.get("source"), "dest": exchange.query.get("dest"),
        }  # fmt: skip
        answer, completion = await self.context.calls.call(command)
        routers = answer["routers"]
        body: dict[str, Any] = {"routers": routers[:size]}
        if len(routers) > size:
            body["next_cursor"] = queries.encode_cursor(routers[size - 1]["router"].encode())
        answers.send(resp, body | {"performance": performance(exchange, completion.wal_us, completion.fsync_us)})

    on_head = on_get


class Router(Route):
    """`/v0/routers/:router`."""

    scopes = {"PUT": ("admin",), "GET": ("read",), "DELETE": ("delete",)}  # noqa: RUF012

    async def on_put(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Create a router or change what it forwards (A §6.1)."""
        exchange = exchange_of(req)
        body = await exchange.body(self.context.settings.max_body_bytes)
        scan.check_object(body)
        name = router_name(exchange)
        members = _members(json.loads(body))
        check_reach(exchange.key, members["source"].encode())
        check_reach(exchange.key, members["dest"].encode())
        if members["dest"].startswith(limits.SYSTEM_PREFIX):
            raise errors.Forbidden(f'names under "{limits.SYSTEM_PREFIX}" are the server\'s own: they can only be read')
        if members["source"].startswith(limits.SYSTEM_PREFIX) and self.context.reader.find(members["source"].encode()) is None:
            raise errors.TopicNotFound(members["source"])
        answer, completion = await self.context.calls.call({"op": "router.put", "router": name, **members})
        spent = performance(exchange, completion.wal_us, completion.fsync_us)
        answers.send(resp, {**answer, "performance": spent}, 201 if answer["created"] else 200)

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Show a router (A §6.2)."""
        exchange = exchange_of(req)
        answer, completion = await self.context.calls.call({"op": "router.get", "router": router_name(exchange)})
        answers.send(resp, answer | {"performance": performance(exchange, completion.wal_us, completion.fsync_us)})

    on_head = on_get

    async def on_delete(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Delete the router, if it is there (A §6.4)."""
        exchange = exchange_of(req)
        name = router_name(exchange)
        answer, completion = await self.context.calls.call({"op": "router.delete", "router": name})
        spent = performance(exchange, completion.wal_us, completion.fsync_us)
        answers.send(resp, {"router": name, **answer, "performance": spent})


def _members(body: dict[str, Any]) -> dict[str, Any]:
    """Check the body of a PUT (A §6.1). Raises Invalid."""
    for name in ("source", "dest"):
        if not isinstance(body.get(name), str):
            raise errors.Invalid(name, "expected a topic name")
        check_topic_name(body[name].encode("utf-8", "surrogatepass"), name)
    if body["source"] == body["dest"]:
        raise errors.Invalid("dest", "a router's destination is another topic than its source")
    members: dict[str, Any] = {"source": body["source"], "dest": body["dest"]}
    for name, default in (("preserve_node", True), ("preserve_tag", True), ("create_dest", True), ("allow_cycle", False)):
        value = body.get(name)
        if not isinstance(value, bool | None):
            raise errors.Invalid(name, "expected a boolean")
        members[name] = default if value is None else value
    guarantee = body.get("guarantee")
    if guarantee not in (None, *GUARANTEES):
        raise errors.Invalid("guarantee", f"expected {' or '.join(GUARANTEES)}")
    members["guarantee"] = guarantee or GUARANTEES[0]
    from_seq = body.get("from_seq")
    if from_seq is not None:
        if isinstance(from_seq, bool) or not isinstance(from_seq, int) or not 0 <= from_seq <= limits.U64_MAX:
            raise errors.Invalid("from_seq", "expected a seq")
        members["from_seq"] = from_seq
    return members | _filter(body.get("filter"))


def _filter(given: Any) -> dict[str, Any]:
    """Read the filter, in the language of deletes (A §5)."""
    if given is None:
        return {"filter": None}
    try:
        parsed = scan.parse_delete(json.dumps({"match": given}, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    except scan.BadRequest as wrong:
        raise errors.Invalid("filter", wrong.message.partition(": ")[2] or wrong.message) from None
    if parsed.match is None:
        raise errors.Invalid("filter", 'expected ["tag", "Eq" or "Glob", a tag]')
    return {"filter": given, "match_kind": parsed.match_kind, "match": parsed.match.decode()}
