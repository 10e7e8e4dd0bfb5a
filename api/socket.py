"""WebSocket connections of `/v0/ws` (A §7.7, RFC 6455): the handshake, frames in and out, pings, the end. Commands are api/commands.py's.

    bytes -> Parser (native) -> messages -> `commands`, one after the other -> `send` -> the feed's stream, or the transport
                             -> ping, close: answered at once

Backpressure: a peer that does not read its answers is not read either (`pause_writing`), nor is one whose commands wait in heaps. Both are bounded
by bytes, so a connection holds at most one message beside QUEUED_BYTES_MAX, and what it holds counts in the worker's budget of bodies.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import time
import zlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import falcon.asgi
import orjson
import structlog

from topicsd import errors
from topicsd._native import websocket
from topicsd.api import errors as wire
from topicsd.api import operations, queries
from topicsd.api.auth import ANYONE, Key
from topicsd.api.commands import Commands
from topicsd.api.context import Context
from topicsd.api.exchange import request_id
from topicsd.api.gate import Route

if TYPE_CHECKING:
    from topicsd.api.worker import Connection

log = structlog.get_logger("socket")
access = structlog.get_logger("access")

PATH = "/v0/ws"
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
QUEUED_BYTES_MAX = 1 << 20  # of messages that wait for those before them; then the peer is not read
QUEUED_MAX = 256
PING_S = 15.0
SILENT_S = 3 * PING_S  # a peer that says nothing for so long, not even a pong, has gone
CLOSING_S = 2.0  # a peer has so long to answer a close frame
DEFLATE_BYTES_MIN = 128  # smaller messages do not shrink
DEFLATE_TAIL = b"\x00\x00\xff\xff"
NORMAL, GOING_AWAY, TOO_BIG, BAD_DATA, INTERNAL, TRY_LATER = 1000, 1001, 1009, 1007, 1011, 1013


class Socket:
    """One open connection. gunicorn hands it bytes (`feed_data`, `feed_eof`) and waits for `run`."""

    def __init__(self, context: Context, key: Key, transport: Any, deflate: int = 0, request_id: str = "") -> None:
        """Deflate: bits of the window that our compressed messages may use, 0: no compression was agreed on."""
        self.context = context
        self.key = key
        self.request_id = request_id  # of the handshake: what is logged of this connection has it
        self.transport = transport
        self.stream: Any = None  # of the feed, once something is subscribed
        self.deflate = deflate
        self.gone = asyncio.Event()  # the connection has ended
        self.heard_s = self.pinged_s = time.monotonic()
        self._parser = self._make_parser()
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._held = 0  # of the worker's budget
        self._wake = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._reading = True
        self._closing_s = 0.0  # when our close frame went out

    def _make_parser(self) -> websocket.Parser:
        return websocket.Parser(self.context.settings.max_body_bytes, deflate=bool(self.deflate))

    # ---- in ----------------------------------------------------------------------------------------------------------------

    def feed_data(self, data: bytes) -> None:
        """Take bytes in."""
        self.heard_s = time.monotonic()
        for opcode, payload, compressed in self._parser.feed(data):
            if opcode == websocket.PING:
                self.send(websocket.frame(websocket.PONG, payload))
            elif opcode == websocket.CLOSE:
                self._peer_closes(payload)
            elif opcode != websocket.PONG:
                self._take(opcode, payload, compressed)
        if self._parser.failure is not None:
            self.close(*self._parser.failure)
        self._hold()

    def _take(self, opcode: int, payload: bytes, compressed: bool) -> None:
        if self._closing_s:
            return
        if compressed:
            inflated = self._inflated(opcode, payload)
            if inflated is None:
                return
            payload = inflated
        self.context.meters.message(self.context.ring, out=False)
        self.take_message(opcode, payload)

    def take_message(self, opcode: int, payload: bytes) -> None:
        """Queue a whole message behind those that are being served."""
        self._queue.append(payload)
        self._queued_bytes += len(payload)
        self._wake.set()

    def _inflated(self, opcode: int, payload: bytes) -> bytes | None:
        most = self.context.settings.max_body_bytes
        try:
            engine = zlib.decompressobj(-15)
            text = engine.decompress(payload + DEFLATE_TAIL, most + 1)
            if len(text) > most:
                self.close(TOO_BIG, f"a message has at most {most} bytes")
                return None
            if opcode == websocket.TEXT:
                text.decode()
        except (zlib.error, UnicodeDecodeError):
            self.close(BAD_DATA, "a compressed message that is no UTF-8 or no deflate")
            return None
        return text

    def _peer_closes(self, payload: bytes) -> None:
        if not self._closing_s:
            self.send(websocket.frame(websocket.CLOSE, payload[:2] or b""))
        self._end()

    def _hold(self) -> None:
        """Count what is held in the worker's budget, and stop reading while there is too much."""
        held = self._queued_bytes + self._parser.held
        if held > self._held:
            try:
                self.context.budget.take(held - self._held)
                self._held = held
            except errors.Pressure:
                self.close(TRY_LATER, "too many bytes are in flight")
        elif held < self._held:
            self.context.budget.give(self._held - held)
            self._held = held
        read = self._writable.is_set() and len(self._queue) < QUEUED_MAX and self._queued_bytes < QUEUED_BYTES_MAX
        if read != self._reading and not self.transport.is_closing():
            self._reading = read
            (self.transport.resume_reading if read else self.transport.pause_reading)()

    def feed_eof(self) -> None:
        """Notice that the connection has ended."""
        self._end()

    # ---- out ---------------------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Write a whole frame, in order with those of subscriptions."""
        if self.gone.is_set() or self.transport.is_closing():
            return
        if self.stream is not None and not self.deflate:
            self.stream.write(data)  # behind what the socket has not taken yet
        else:
            self.transport.write(data)

    def say(self, text: bytes) -> None:
        """Send one text message."""
        self.context.meters.message(self.context.ring, out=True)
        if self.deflate and len(text) >= DEFLATE_BYTES_MIN:
            engine = zlib.compressobj(1, zlib.DEFLATED, -self.deflate)
            packed = engine.compress(text) + engine.flush(zlib.Z_SYNC_FLUSH)
            self.send(websocket.frame(websocket.TEXT, packed[:-4], compressed=True))
        else:
            self.send(websocket.frame(websocket.TEXT, text))

    def write(self, data: bytes) -> int:
        """Be the sink of the feed: hand bytes to the transport, return what it holds. With compression they are a message, else frames."""
        if self.deflate:
            self.say(data)
        elif not self.transport.is_closing():
            self.transport.write(data)
        return self.held()

    def held(self) -> int:
        """Return what the transport holds."""
        size: int = self.transport.get_write_buffer_size()
        return size

    def end(self, code: int, message: str) -> None:
        """Be told by the feed that it gives the stream up: 408 a slow consumer, 503 shutdown."""
        told = {"op": "error", "code": "shutting_down" if code == 503 else "slow_consumer", "message": message}
        self._drop_stream()
        self.say(orjson.dumps(told))
        self.close(GOING_AWAY if code == 503 else TRY_LATER, message)

    def pause_writing(self) -> None:
        """Stop serving and reading: the peer does not read."""
        self._writable.clear()
        self._hold()

    def resume_writing(self) -> None:
        """Go on."""
        self._writable.set()
        self._hold()
        if self.stream is not None and not self.stream.closed:
            self.context.feed.tell_time()
            self.stream.drained()
            self.context.feed.turn()

    # ---- the end -------------------------------------------------------------------------------------------------------------

    def close(self, code: int, reason: str = "") -> None:
        """Begin the closing handshake; what is queued is dropped."""
        if self._closing_s or self.gone.is_set():
            return
        self._drop_stream()
        self._closing_s = time.monotonic()
        self.send(websocket.frame(websocket.CLOSE, code.to_bytes(2, "big") + reason.encode()[:123]))
        self._queue.clear()
        self._queued_bytes = 0
        self._hold()
        if self._parser.failure is not None:
            self._end()  # nothing it says can be understood any more; the transport waits for its end

    def _drop_stream(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            self.context.feed.tell_time()
            stream.close()

    def _end(self) -> None:
        if self.gone.is_set():
            return
        self._drop_stream()
        self.gone.set()
        self._wake.set()
        self._writable.set()
        self._queue.clear()
        self.context.budget.give(self._held)
        self._held = 0

    def tick(self, now_s: float) -> None:
        """Ping, and give up a peer that is silent or does not close."""
        if self._closing_s:
            if now_s > self._closing_s + CLOSING_S:
                self._end()
        elif now_s > self.heard_s + SILENT_S and self._reading:
            self._end()
            self.transport.abort()
        elif now_s >= self.pinged_s + PING_S:
            self.pinged_s = now_s
            self.send(websocket.frame(websocket.PING, b""))

    # ---- serving ---------------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve commands until the connection ends."""
        commands = Commands(self.context, self.key, self)
        try:
            while not self.gone.is_set():
                while self._queue and not self.gone.is_set():
                    await self._writable.wait()
                    if not self._queue:  # dropped while the peer did not read
                        break
                    text = self._queue.popleft()
                    self._queued_bytes -= len(text)
                    self._hold()
                    await commands.take(text)
                self._wake.clear()
                if not self._queue and not self.gone.is_set():
                    await self._wake.wait()
        except Exception as wrong:
            log.error("internal error", request_id=self.request_id, exc_info=wrong)
            self.close(INTERNAL, "internal error")
        finally:
            commands.end()
            self._end()


class Echo(Socket):
    """Say back what is said: for test suites of the protocol (TOPICS_WEBSOCKET_ECHO), never for clients. They take a ping of ours for a fault."""

    def tick(self, now_s: float) -> None:
        """Send no pings."""
        self.heard_s = self.pinged_s = now_s
        super().tick(now_s)

    def _make_parser(self) -> websocket.Parser:
        return websocket.Parser(self.context.settings.max_body_bytes, binary=True, deflate=bool(self.deflate))

    def take_message(self, opcode: int, payload: bytes) -> None:
        """Answer at once."""
        if self.deflate and len(payload) >= DEFLATE_BYTES_MIN:
            engine = zlib.compressobj(1, zlib.DEFLATED, -self.deflate)
            packed = engine.compress(payload) + engine.flush(zlib.Z_SYNC_FLUSH)
            self.send(websocket.frame(opcode, packed[:-4], compressed=True))
        else:
            self.send(websocket.frame(opcode, payload))


class Sockets:
    """All sockets of a worker, and their clock."""

    def __init__(self) -> None:
        self.open: set[Socket] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, socket: Socket) -> None:
        """Take care of a socket."""
        self.open.add(socket)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(1.0, self._tick)

    def _tick(self) -> None:
        now_s = time.monotonic()
        for socket in list(self.open):
            socket.tick(now_s)
        self._timer = asyncio.get_running_loop().call_later(1.0, self._tick) if self.open else None

    def end_all(self) -> None:
        """Say 1001 to all: the server drains."""
        for socket in list(self.open):
            socket.close(GOING_AWAY, "the server is shutting down")
            socket.tick(time.monotonic())


# ---- the handshake -----------------------------------------------------------------------------------------------------------------


async def serve(connection: Connection, scope: dict[str, Any]) -> None:
    """Open the WebSocket that a request asks for and serve it to its end; a refusal wears the envelope and ends the connection."""
    context = connection.worker.context
    assert context is not None
    context.shared.add_worker(context.ring, "requests")
    started_ns = time.monotonic_ns()
    named = request_id(dict(scope["headers"]).get(b"x-request-id"))

    def tell(status: int, key_index: int = -1) -> None:
        spent_us = (time.monotonic_ns() - started_ns) // 1000
        context.meters.request(context.ring, operations.NUMBERS["GET", PATH], status, spent_us)
        if context.settings.access_log:
            access.info("request", request_id=named.decode(), method="GET", path=PATH, status=status, us=spent_us, key=key_index)

    try:
        key, leave = _admit(context, scope)
    except errors.TopicsError as wrong:
        tell(wire.status_of(wrong))
        extra = dict(wire.headers_of(wrong))
        if isinstance(wrong, _WrongVersion):
            extra["sec-websocket-version"] = "13"
        connection._send_envelope(wire.status_of(wrong), wrong, "".join(f"{name}: {value}\r\n" for name, value in extra.items()), named)
        connection._close_transport()
        return
    try:
        headers = dict(scope["headers"])
        bits, extension = agree_on_deflate(headers.get(b"sec-websocket-extensions", b"")) if context.settings.websocket_deflate else (0, b"")
        kind = Echo if context.settings.websocket_echo else Socket
        socket = kind(context, key, connection.transport, bits, named.decode())
        connection._websocket = socket
        accept = base64.b64encode(hashlib.sha1(headers[b"sec-websocket-key"].strip() + GUID).digest())
        head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n"
        head += b"X-Request-Id: " + named + b"\r\n"
        connection.transport.write(head + (b"Sec-WebSocket-Extensions: " + extension + b"\r\n" if extension else b"") + b"\r\n")
        tell(101, key.index)
        context.sockets.add(socket)
        context.meters.sockets(context.ring, len(context.sockets.open))
        connection.stay()
        try:
            await socket.run()
        finally:
            context.sockets.open.discard(socket)
            context.meters.sockets(context.ring, len(context.sockets.open))
    finally:
        leave()


class _WrongVersion(errors.ClientError):
    """Ask for version 13 of the protocol (RFC 6455 section 4.4)."""


def _admit(context: Context, scope: dict[str, Any]) -> tuple[Key, Callable[[], None]]:
    """Check the request in the order of all routes: 401, 404, 503, 400, 429. Returns the key, and what gives the place back."""
    headers = dict(scope["headers"])
    key = ANYONE
    if context.keyring.enabled:
        found = context.keyring.find(headers.get(b"authorization"))  # no `?token=`: a socket writes (A §7.1: event streams alone)
        if found is None:
            raise errors.Unauthorized("a valid API key is needed: Authorization: Bearer <key>")
        key = found
    if queries.routing_path(scope["raw_path"]) != PATH:
        raise errors.NotFound("there is no such path")
    context.check_ready()
    if headers.get(b"sec-websocket-version", b"").strip() != b"13":
        raise _WrongVersion("the protocol's version must be 13", {"field": "Sec-WebSocket-Version"})
    if not _good_nonce(headers.get(b"sec-websocket-key", b"").strip()):
        raise errors.Invalid("Sec-WebSocket-Key", "expected 16 bytes in base64")
    return key, _enter(context, key)


def _good_nonce(text: bytes) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) == 16
    except (ValueError, binascii.Error):
        return False


def _enter(context: Context, key: Key) -> Callable[[], None]:
    """Take a place among the streams (A §11); returns what gives it back. Raises Throttled."""
    sessions, settings, ring = context.sessions, context.settings, context.ring
    if sessions is None:
        return lambda: None
    refused = sessions.enter(ring, key.index, settings.max_sse_connections, settings.max_sse_connections_per_key)
    if refused:
        name, most = (("max_sse_connections", settings.max_sse_connections), ("max_sse_connections_per_key", settings.max_sse_connections_per_key))[
            refused - 1
        ]
        context.shared.add_worker(ring, "throttled")
        wrong = errors.Throttled(name, most)
        context.count_refusal(wrong)
        raise wrong
    return lambda: sessions.leave(ring, key.index)


def agree_on_deflate(header: bytes) -> tuple[int, bytes]:
    """Answer the offers of permessage-deflate (RFC 7692 section 7): (bits of our window, the extension as agreed), (0, b"") for none.

    Neither side keeps its window from message to message: an idle connection costs no memory for it.
    """
    for offer in header.decode("latin-1").split(","):
        name, *parameters = (part.strip() for part in offer.split(";"))
        if name != "permessage-deflate":
            continue
        bits = _window_of(parameters)
        if bits:
            said = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"
            if any(parameter.startswith("server_max_window_bits") for parameter in parameters):
                said += f"; server_max_window_bits={bits}"
            return bits, said.encode()
    return 0, b""


def _window_of(parameters: list[str]) -> int:
    """Return the window that an offer leaves us, 0 when the offer must be declined."""
    bits, seen = 15, set()
    for parameter in parameters:
        name, equals, value = (part.strip() for part in parameter.partition("="))
        value = value.strip('"')
        if name in seen:
            return 0
        seen.add(name)
        if name in ("server_no_context_takeover", "client_no_context_takeover"):
            if equals:
                return 0
        elif name == "server_max_window_bits":
            if value not in ("9", "10", "11", "12", "13", "14", "15"):  # zlib makes no raw stream with a window of 8 bits
                return 0
            bits = int(value)
        elif name == "client_max_window_bits":
            if equals and value not in ("8", "9", "10", "11", "12", "13", "14", "15"):
                return 0
        else:
            return 0
    return bits


class SocketRoute(Route):
    """`GET /v0/ws` without a handshake: gunicorn hands every upgrade to `serve`, so what comes here asks for none."""

    scopes = {"GET": ()}  # noqa: RUF012

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Say what is missing."""
        raise errors.Invalid("Upgrade", "expected a WebSocket handshake")
