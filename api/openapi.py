"""`GET /v0/openapi.json`: every route that there is, from the table in api/operations.py (OpenAPI 3.1)."""

from __future__ import annotations

from typing import Any

import falcon.asgi
import orjson

import topicsd
from topicsd.api import answers
from topicsd.api import errors as wire
from topicsd.api.context import Context
from topicsd.api.gate import Route
from topicsd.api.operations import OPERATIONS, Operation
from topicsd.api.schemas import FLAG, NAME_PATTERN, SCHEMAS, Schema, ref

EVERYWHERE = ("invalid_request", "unauthorized", "forbidden", "not_found", "throttled", "internal", "not_ready")
BODY = ("payload_too_large", "unsupported_media_type")


QUERY: dict[str, Schema] = {
    "prefix": {"type": "string"},
    "page_size": {"type": "integer"},
    "cursor": {"type": "string"},
    "touch": FLAG,
    "if_empty": FLAG,
    "lenient": FLAG,
    "return_seqs": FLAG,
    "token": {"type": "string"},
    "node": {"type": "string"},
    "max": {"type": "integer"},
    "lease_ms": {"type": "integer"},
    "source": {"type": "string"},
    "dest": {"type": "string"},
}
SEGMENTS: dict[str, Schema] = {
    "topic": {"type": "string", "pattern": NAME_PATTERN},
    "group": {"type": "string", "pattern": NAME_PATTERN},
    "router": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}$"},
    "wid": {"type": "string"},
}


def document(routes: dict[str, Route]) -> dict[str, Any]:
    """Build the document of these routes."""
    paths: dict[str, Any] = {}
    used: set[str] = {"Error"}
    for operation in OPERATIONS:
        route = routes.get(operation.path)
        if route is None or not hasattr(route, f"on_{operation.method.lower()}"):
            continue
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, route.scopes.get(operation.method, ()), routes)
        used |= {name for name in (operation.body, operation.answer) if name}
    return {
        "openapi": "3.1.0",
        "info": {"title": "topicsd", "version": topicsd.__version__, "description": "Durable topics over HTTP."},
        "servers": [{"url": "/"}],
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {"schemas": _closed(used), "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(operation: Operation, scopes: tuple[str, ...], routes: dict[str, Route]) -> dict[str, Any]:
    segments = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    parameters = [{"name": name, "in": "path", "required": True, "schema": SEGMENTS[name]} for name in segments]
    parameters += [{"name": name, "in": "query", "schema": QUERY[name]} for name in operation.query]
    if operation.name == "write":
        parameters.append({"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "maxLength": 256, "pattern": "^[ -~]*$"}})
    if operation.name == "stream":
        parameters.append({"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}})
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": parameters,
        "responses": _responses(operation, routes),
    }
    if scopes:
        described["description"] = f"Scopes: {', '.join(scopes)}."
    if operation.body:
        described["requestBody"] = {"required": not operation.may_be_empty, "content": {"application/json": {"schema": ref(operation.body)}}}
    return described


def _responses(operation: Operation, routes: dict[str, Route]) -> dict[str, Any]:
    answered: dict[str, Any] = {}
    for status in operation.statuses:
        answer: dict[str, Any] = {"description": "created" if status == 201 else "done"}
        if operation.media:
            schema = ref(operation.answer) if operation.answer else {"type": "string"}
            answer["content"] = {operation.media: {"schema": schema}}
            if operation.name == "metrics":
                answer["content"]["text/plain"] = {"schema": {"type": "string"}}
        linked = {name: each for name in operation.links for each in OPERATIONS if each.name == name and each.path in routes}
        if linked:
            answer["links"] = {name: {"operationId": name, "parameters": {"topic": "$response.body#/topic"}} for name in linked}
        answered[str(status)] = answer
    codes: dict[int, list[str]] = {}
    for code in (*EVERYWHERE, *(BODY if operation.body else ()), *operation.errors):
        codes.setdefault(wire.STATUS.get(code, 404), []).append(code)
    for status, names in sorted(codes.items()):
        answered[str(status)] = {"description": ", ".join(names), "content": {"application/json": {"schema": ref("Error")}}}
    return answered


def _closed(names: set[str]) -> dict[str, Schema]:
    """Return these schemas and those they point at."""
    found: dict[str, Schema] = {}
    waiting = sorted(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = SCHEMAS[name]
            text = orjson.dumps(SCHEMAS[name]).decode()
            waiting += [part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]]
    return dict(sorted(found.items()))


class OpenApi(Route):
    """`GET /v0/openapi.json`: for any key."""

    scopes = {"GET": ()}  # noqa: RUF012
    needs_ready = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._rendered = b""

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Answer the document."""
        if not self._rendered:
            self._rendered = orjson.dumps(document(self.context.routes))
        answers.send(resp, self._rendered)

    on_head = on_get
