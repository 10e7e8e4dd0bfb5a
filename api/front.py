"""The Python side of the native front (_native/front.pxd): the errors it may have to say itself, and its lane into gunicorn and Falcon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gunicorn.asgi import protocol

from topicsd import errors, limits
from topicsd._native.front import Front
from topicsd._native.hub import Hub
from topicsd._native.port import Completion
from topicsd._native.reader import Reader
from topicsd.api import errors as wire
from topicsd.api.auth import Keyring
from topicsd.api.calls import lost, refusal
from topicsd.api.context import write_limits_of
from topicsd.api.exchange import request_id
from topicsd.api.takeover import Taken
from topicsd.api.worker import SERVER, Connection
from topicsd.metrics import limit_number
from topicsd.settings import Settings

Refusal = tuple[int, bytes, bytes]  # status, head without Server, Date and its end, body


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a peer may take, in milliseconds: for a head, between two pieces of a body, between two requests."""

    head_ms: int = limits.HEAD_MS_MAX
    body_ms: int = limits.BODY_IDLE_MS_MAX
    idle_ms: int = limits.KEEPALIVE_S * 1000


class Refusals:
    """Say what a native request ends in when it is no success and cannot be handed on, in Falcon's words; count what is throttled."""

    def __init__(self, count: Callable[[errors.TopicsError], None] | None = None) -> None:
        self._count = count

    def of(self, completion: Completion) -> Refusal:
        """Say why the writer took no append."""
        error = refusal(completion)
        if self._count is not None and error.code == "throttled":
            self._count(error)
        return _refusal(error)

    def gone(self, name: bytes) -> Refusal:
        """Say that a poll's topic was deleted."""
        return _refusal(errors.TopicNotFound(name.decode("ascii", "replace")))

    def not_ready(self) -> Refusal:
        """Say that a poll ended while there was no writer."""
        return _refusal(lost())

    def busy(self) -> Refusal:
        """Say that a poll's topic was being changed at its end."""
        return _refusal(errors.NotReady("the topic is being changed: try again"))

    def unreadable(self, seq: int) -> Refusal:
        """Say that a record cannot be read."""
        return _refusal(errors.Unread(seq))

    def parser(self, status: int, message: str) -> bytes:
        """Render the whole answer to bytes that are no request."""
        error = wire.of_parser(status, message)
        return _closing(wire.status_of(error), error)

    def draining(self) -> bytes:
        """Render the whole answer to a request that has not come whole before the server ends."""
        error = errors.ShuttingDown("the server is shutting down")
        return _closing(503, error, f"Retry-After: {limits.RETRY_AFTER_S}\r\n")

    def connections(self, most: int) -> bytes:
        """Render the whole answer to a connection too many."""
        return _closing(503, errors.Throttled("max_connections", most), "Retry-After: 1\r\n")


def _refusal(error: errors.TopicsError) -> Refusal:
    status, body = wire.status_of(error), wire.envelope(error)
    lines = [f"HTTP/1.1 {status} {protocol._REASON_PHRASES.get(status, 'Unknown')}", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in wire.headers_of(error).items()]
    lines += [f"content-length: {len(body)}", ""]
    return status, "\r\n".join(lines).encode("latin-1"), body


def _closing(status: int, error: errors.TopicsError, extra: str = "") -> bytes:
    body = wire.envelope(error)
    reason = protocol._REASON_PHRASES.get(status, "Unknown")
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nServer: {SERVER}\r\nX-Request-Id: {request_id(None).decode()}\r\n"
    return (head + f"Content-Length: {len(body)}\r\n{extra}Connection: close\r\n\r\n").encode("latin-1") + body


class _Ready(asyncio.Event):
    """gunicorn's event "a request is there": when it is cleared, the last one has been answered."""

    def __init__(self, front: Front) -> None:
        super().__init__()
        self._front = front

    def clear(self) -> None:
        super().clear()
        self._front.lane_is_idle()


class Lane(Connection):
    """Serve what the front hands on: exactly one message at a time, over the front's own transport."""

    _closed: bool  # gunicorn's own
    _lost: Callable[[Exception | None], None] | None = None  # of whoever has taken the connection over

    def __init__(self, worker: Any, front: Front) -> None:
        super().__init__(worker)
        self._front = front

    def connection_made(self, transport: Any) -> None:
        """Begin; the front has counted the connection and times its heads."""
        self._held = []
        self._head_timer = self.worker.loop.call_later(0, int)
        protocol.ASGIProtocol.connection_made(self, transport)
        transport.set_write_buffer_limits(high=protocol.HIGH_WATER_LIMIT)
        self._request_ready = _Ready(self._front)

    def _let_go(self, taken: Taken) -> None:
        lost = taken.connection_lost  # calls ours, which stands on the class
        for name, method in {"data_received": taken.data_received, "eof_received": taken.eof_received, "pause_writing": taken.pause_writing,
                             "resume_writing": taken.resume_writing}.items():  # fmt: skip
            setattr(self, name, method)
        self._lost = lost
        self._front.lane_stays()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the application that the client has left."""
        if self.taken and self._lost is not None:
            lost, self._lost = self._lost, None
            lost(exc)
            return
        protocol.ASGIProtocol.connection_lost(self, exc)
        self._callback_parser = None  # it holds this object, and the garbage collector does not see through it

    def client_has_finished(self) -> None:
        """Take in that the client sent its last byte before the message that comes now was handed on."""
        self._half_closed = True

    def data_received(self, data: bytes) -> None:
        """Take a piece of the message in."""
        protocol.ASGIProtocol.data_received(self, data)

    def _arm_keepalive_timer(self) -> None:
        pass  # the front knows when the connection is idle

    def _close_transport(self) -> None:
        if not self._closed:
            self._closed = True
            self._front.lane_closes()

    def _will_close(self, request: Any, response_requires_close: bool) -> bool:
        if self.worker.draining or (self._half_closed and not self._front.waiting):
            return True
        return bool(protocol.ASGIProtocol._will_close(self, request, response_requires_close))

    async def _serve_http_request(self, request: Any, sockname: Any, peername: Any) -> Any:
        keep = await super()._serve_http_request(request, sockname, peername)
        parser = self._callback_parser
        if parser is not None and parser.remaining():
            return False  # gunicorn saw an end where the front saw none: nothing more is believed
        return keep

    def stay(self) -> None:
        """Give the WebSocket all that comes from now on."""
        self._front.lane_stays()


def make_hub(worker: Any, shared: Any, ring: int, reader: Reader, settings: Settings, keyring: Keyring) -> Hub:
    """Build a worker's hub."""

    def make_lane(front: Front) -> Lane:
        lane = Lane(worker, front)
        lane.connection_made(front.transport)
        return lane

    return Hub(
        shared,
        ring,
        worker=worker,
        reader=reader,
        limits=write_limits_of(settings),
        keys=[(digest, key.index, key.scopes, key.prefixes) for digest, key in keyring.entries],
        make_lane=make_lane,
        refusals=Refusals(lambda error: worker.runtime.meters.limit(ring, limit_number(error.detail))),
        max_body_bytes=settings.max_body_bytes,
        gzip_bytes_min=limits.GZIP_BYTES_MIN,
        max_inflight_per_key=settings.max_inflight_per_key,
        wait_ms_max=limits.DIFF_WAIT_MS_MAX,
        held_bytes_max=limits.BODIES_BYTES_MAX // 2 // settings.workers,
        max_claim=settings.max_claim,
        native=settings.front == "native" and not settings.access_log,
        meters=worker.runtime.meters,
    )
