"""What can go wrong, by code (A §0.5, §0.6). Which HTTP status a code has stands in topicsd/api/errors.py alone.

Two families: `ClientError` is the caller's fault and repeating it does not help; `ServerError` is ours or passes by itself.
Any of them crosses the ring as JSON {"code", "message", "detail"} (`to_json`, `from_json`).
"""

from __future__ import annotations

from typing import Any

Detail = dict[str, Any]


class TopicsError(Exception):
    """Carry a code that clients branch on, a message for people, and details."""

    code: str = "internal"

    def __init__(self, message: str, detail: Detail | None = None, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail: Detail = detail or {}
        if code is not None:
            self.code = code

    def to_json(self) -> Detail:
        """Return {"code", "message"} and, unless empty, "detail"."""
        body: Detail = {"code": self.code, "message": self.message}
        if self.detail:
            body["detail"] = self.detail
        return body


class ClientError(TopicsError):
    """Say that the request cannot succeed as it is."""

    code = "invalid_request"


class ServerError(TopicsError):
    """Say that the server cannot serve the request now."""


class LockedError(TopicsError):
    """Say which process holds a data directory."""

    code = "locked"

    def __init__(self, directory: str, holder: int) -> None:
        super().__init__(f"{directory}: in use by process {holder}", {"directory": directory, "pid": holder})
        self.directory = directory
        self.holder = holder


# --- the caller's ----------------------------------------------------------------------------------------------------------


class Invalid(ClientError):
    """Name a member (a path from the body's root, a query parameter or `topic`) that is missing, of a wrong type or out of range."""

    code = "invalid_request"

    def __init__(self, field: str, message: str, **detail: Any) -> None:
        super().__init__(f"{field}: {message}" if field else message, {"field": field, **detail} if field else detail)


class Unauthorized(ClientError):
    """Say that no configured key was presented."""

    code = "unauthorized"


class Forbidden(ClientError):
    """Say that the key lacks a scope or a prefix, or that a name is the server's own."""

    code = "forbidden"


class NotFound(ClientError):
    """Say that there is no such route."""

    code = "not_found"


class TopicNotFound(ClientError):
    """Say that a topic does not exist and is not to be created."""

    code = "topic_not_found"

    def __init__(self, topic: str) -> None:
        super().__init__(f'topic "{topic}" does not exist', {"topic": topic})


class MethodNotAllowed(ClientError):
    """Say which methods a path has."""

    code = "method_not_allowed"

    def __init__(self, allowed: tuple[str, ...]) -> None:
        super().__init__(f"this path takes {', '.join(allowed)}")
        self.allowed = allowed


class TopicExistsIncompatible(ClientError):
    """Say that a topic or router exists and cannot become what was asked."""

    code = "topic_exists_incompatible"


class RouterNotFound(ClientError):
    """Say that a router does not exist."""

    code = "router_not_found"

    def __init__(self, router: str) -> None:
        super().__init__(f'router "{router}" does not exist', {"router": router})


class RouterCycle(ClientError):
    """Refuse a router that would close a cycle: `cycle` names the topics on it, the first one again at its end."""

    code = "router_cycle"

    def __init__(self, cycle: list[str]) -> None:
        super().__init__(f"the router would close a cycle: {' -> '.join(cycle)}", {"cycle": cycle})


class TopicNotEmpty(ClientError):
    """Refuse a delete with `if_empty` of a topic that has records."""

    code = "topic_not_empty"

    def __init__(self, topic: str, count: int) -> None:
        super().__init__(f'topic "{topic}" has {count} records', {"topic": topic, "count": count})


class NotAQueue(ClientError):
    """Refuse a queue operation on a log topic."""

    code = "not_a_queue"

    def __init__(self, topic: str) -> None:
        super().__init__(f'topic "{topic}" is no queue', {"topic": topic})


class PayloadTooLarge(ClientError):
    """Refuse a body above the limit, inflated or not."""

    code = "payload_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body has more than {limit} bytes", {"limit": limit})


class UnsupportedMediaType(ClientError):
    """Refuse a body that is not declared as JSON, or is encoded other than by gzip."""

    code = "unsupported_media_type"


class TopicFull(ClientError):
    """Refuse a write to a full topic with discard "reject"; nothing was appended."""

    code = "topic_full"


# --- ours, or passing ------------------------------------------------------------------------------------------------------


class Throttled(ServerError):
    """Say that a cap is reached (A §11): `limit` names it, `max` is its value."""

    code = "throttled"

    def __init__(self, limit: str, max: int, message: str = "", **detail: Any) -> None:
        super().__init__(message or f"{limit} ({max}) is reached", {"limit": limit, "max": max, **detail})


class Pressure(ServerError):
    """Say that the server is too busy for this write; `retry_after_ms` is in the detail."""

    code = "throttled"

    def __init__(self, message: str, retry_after_ms: int) -> None:
        super().__init__(message, {"retry_after_ms": retry_after_ms})


class NotReady(ServerError):
    """Say that the writer replays its log, or died with this request in its hands (`outcome` "unknown")."""

    code = "not_ready"


class Unread(NotReady):
    """Say that a record could not be read from the disk. Once the keeper has found that it is damaged, readers are told so by a tombstone."""

    def __init__(self, seq: int) -> None:
        super().__init__(f"record {seq} cannot be read from the disk: it is being looked at", {"seq": seq})


class ShuttingDown(ServerError):
    """Say that the server drains."""

    code = "shutting_down"


class StorageReadOnly(ServerError):
    """Say that the log takes no writes: a write or sync failed, or the disk is full."""

    code = "storage_read_only"


class ColdUnavailable(ServerError):
    """Say that records stand in the cold tier, and that it does not answer now."""

    code = "cold_unavailable"


class Internal(ServerError):
    """Say that we have a bug. The message names the incident; the log has the rest."""

    code = "internal"


def retry_after_s(error: TopicsError, least: int = 1) -> int:
    """Return whole seconds for Retry-After, at least `least`."""
    wait_ms = int(error.detail.get("retry_after_ms", 0))
    return max(least, -(-wait_ms // 1000))


def from_json(body: Detail) -> TopicsError:
    """Rebuild what `to_json` gave: a plain ClientError or ServerError with that code."""
    code = str(body.get("code", "internal"))
    family = ServerError if code in {kind.code for kind in ServerError.__subclasses__()} else ClientError
    return family(str(body.get("message", code)), body.get("detail") or {}, code=code)
