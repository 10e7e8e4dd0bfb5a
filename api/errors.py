"""The only place that knows which HTTP status a code has (A §0.6), and how an error looks on the wire (A §0.5)."""

from __future__ import annotations

from typing import Any

import falcon
import orjson

from topicsd import limits
from topicsd.errors import ClientError, Internal, MethodNotAllowed, NotFound, TopicsError, retry_after_s

STATUS = {
    "invalid_request": 400,
    "batch_too_large": 400,
    "record_too_large": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "topic_not_found": 404,
    "router_not_found": 404,
    "method_not_allowed": 405,
    "not_acceptable": 406,
    "router_cycle": 409,
    "topic_exists_incompatible": 409,
    "topic_not_empty": 409,
    "not_a_queue": 409,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "topic_full": 422,
    "throttled": 429,
    "internal": 500,
    "cold_unavailable": 503,
    "not_ready": 503,
    "shutting_down": 503,
    "storage_read_only": 503,
}


def status_of(error: TopicsError) -> int:
    """Return the HTTP status of an error; a code that nobody listed is a bug of ours."""
    return STATUS.get(error.code, 500)


def envelope(error: TopicsError) -> bytes:
    """Render {"error": {"code", "message", "detail"?}}."""
    return orjson.dumps({"error": error.to_json()})


def headers_of(error: TopicsError) -> dict[str, str]:
    """Return the headers that go with an error."""
    status = status_of(error)
    if status in (429, 503):
        return {"retry-after": str(retry_after_s(error, limits.RETRY_AFTER_S))}
    if isinstance(error, MethodNotAllowed):
        return {"allow": ", ".join(error.allowed)}
    if status == 401:
        return {"www-authenticate": "Bearer"}
    return {}


def of_parser(status: int, message: str) -> TopicsError:
    """Translate a refusal of the HTTP parser: A §0.6 has no 408, 414, 431, 501, 505; such a request is malformed for us."""
    if status == 500:
        return Internal(message or "internal error")
    return ClientError(message or "bad request", code="payload_too_large" if status == 413 else "invalid_request")


def write(resp: falcon.asgi.Response, error: TopicsError) -> None:
    """Make a response of an error."""
    resp.status = status_of(error)
    resp.content_type = falcon.MEDIA_JSON
    resp.data = envelope(error)
    for name, value in headers_of(error).items():
        resp.set_header(name, value)


def from_falcon(wrong: falcon.HTTPError) -> TopicsError:
    """Translate what Falcon's router raises: it wears the same envelope (CLARIFICATIONS HTTP layer)."""
    headers: Any = wrong.headers or {}
    if isinstance(wrong, falcon.HTTPMethodNotAllowed):
        allowed = dict(headers).get("Allow", "")
        return MethodNotAllowed(tuple(word.strip() for word in allowed.split(",") if word.strip()))
    if wrong.status_code == 404:
        return NotFound("there is no such path")
    if wrong.status_code == 400:
        return TopicsError(wrong.title or "bad request", code="invalid_request")
    return Internal(wrong.title or "internal error")
