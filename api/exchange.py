"""One request from its first byte to its answer: the body as it comes in, the key and the name, and what must be given back at the end.

Falcon takes a truncated body for a complete one (`req.stream` ends the same way on a disconnect), so it never sees the body: it is read here,
and a client that leaves in the middle raises before anything is committed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import secrets
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from topicsd import limits
from topicsd.api.auth import ANYONE, Key
from topicsd.errors import Invalid, PayloadTooLarge, Pressure, TopicsError, UnsupportedMediaType

Receive = Callable[[], Awaitable[dict[str, Any]]]
EMPTY = {"type": "http.request", "body": b"", "more_body": False}
LINGER_S_MAX = 2.0  # an upload that was refused early is read on for so long, so that its sender gets to read why


_REQUEST_ID = re.compile(rb"[A-Za-z0-9._~:/+=@-]{1,64}")  # the native front has the same rule
_seed = secrets.token_hex(4)
_made = itertools.count(1)


def request_id(given: bytes | None) -> bytes:
    """Return the client's X-Request-Id where it is a plain one, else a new one."""
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return f"{_seed}{os.getpid() & 0xFFFF:04x}{next(_made):08x}".encode()


class Budget:
    """Bound the bytes of all bodies that one worker holds at a time."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0

    def take(self, size: int) -> None:
        """Count bytes in; raises Pressure when there would be too many. One body is always let in."""
        if self.bytes and self.bytes + size > self.bytes_max:
            raise Pressure("too many request bodies are in flight", 1000 * limits.RETRY_AFTER_S)
        self.bytes += size

    def give(self, size: int) -> None:
        """Count bytes out."""
        self.bytes -= size


class Exchange:
    """Hold the state of one request that Falcon has no place for."""

    __slots__ = (
        "_budget",
        "_held",
        "_receive",
        "_whole",
        "body_bytes",
        "entered",
        "headers",
        "key",
        "operation",
        "query",
        "refused",
        "request_id",
        "scope",
        "started_ns",
        "topic",
    )

    def __init__(self, scope: dict[str, Any], receive: Receive, budget: Budget) -> None:
        self.scope = scope
        self.started_ns = time.monotonic_ns()
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.key: Key = ANYONE
        self.topic = b""  # percent-decoded once, not yet checked
        self.query: dict[str, str] = {}
        self.entered = False  # counted among the requests in flight of its key
        self.body_bytes = 0
        self.operation = 0  # its number in api/operations.py, 0: no such path
        self.refused: TopicsError | None = None
        self.request_id = request_id(self.headers.get(b"x-request-id"))
        self._receive = receive
        self._budget = budget
        self._held = 0
        self._whole = False

    async def nothing(self) -> dict[str, Any]:
        """Be the `receive` that Falcon gets: an empty body."""
        return EMPTY

    # ---- the body ----------------------------------------------------------------------------------------------------------

    async def body(self, bytes_max: int, *, may_be_empty: bool = False) -> bytes:
        """Read the body to its end, inflated; empty where that is allowed.

        Raises PayloadTooLarge, UnsupportedMediaType, Invalid (in this order), Pressure. (CLARIFICATIONS HTTP layer)
        """
        encoding = self.headers.get(b"content-encoding", b"").strip().lower()
        declared = self._declared_length()
        if declared > bytes_max:
            raise PayloadTooLarge(bytes_max)
        self._hold(declared)
        body = b"".join([chunk async for chunk in self._chunks(bytes_max)])
        inflated = None
        if body and encoding == b"gzip":
            inflated = await self._inflated(body, bytes_max)  # a bomb is 413, before the content type is looked at
        if not body:
            if may_be_empty:
                return b"{}"
            raise Invalid("", "a JSON body is needed")
        if encoding not in (b"", b"identity", b"gzip"):
            raise UnsupportedMediaType("the only content encoding is gzip")
        if self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
            raise UnsupportedMediaType("the body must be application/json")
        if encoding == b"gzip":
            if inflated is None:
                raise Invalid("", "the body is no complete gzip stream")
            body = inflated
        if not body:
            if may_be_empty:
                return b"{}"
            raise Invalid("", "a JSON body is needed")
        return body

    def _declared_length(self) -> int:
        try:
            return int(self.headers.get(b"content-length", b"0"))
        except ValueError:
            return 0  # the parser has refused such a request already

    def _hold(self, size: int) -> None:
        if size > self._held:
            self._budget.take(size - self._held)
            self._held = size

    async def _chunks(self, bytes_max: int) -> Any:
        while not self._whole:
            event = await self._receive()
            if event["type"] != "http.request":
                raise Invalid("", "the body ended early")  # most likely nobody is left to read this
            chunk = event.get("body", b"")
            self._whole = not event.get("more_body", False)
            self.body_bytes += len(chunk)
            if self.body_bytes > bytes_max:
                raise PayloadTooLarge(bytes_max)
            self._hold(self.body_bytes)
            if chunk:
                yield chunk

    async def _inflated(self, body: bytes, bytes_max: int) -> bytes | None:
        pieces, size = [], 0
        try:
            for piece in inflate(body):
                size += len(piece)
                if size > bytes_max:
                    raise PayloadTooLarge(bytes_max)
                self._hold(len(body) + size)
                pieces.append(piece)
                if len(pieces) % 16 == 0:
                    await asyncio.sleep(0)  # a MiB at a time: others are served in between
        except (zlib.error, EOFError):
            return None
        return b"".join(pieces)

    # ---- the end -----------------------------------------------------------------------------------------------------------

    async def disconnected(self) -> None:
        """Return when the client has left; the body must have been read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def linger(self) -> None:
        """Read on a body that was refused, for a while: closing at once would reset the connection, and the answer with it."""
        deadline = asyncio.get_running_loop().time() + LINGER_S_MAX
        while not self._whole:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return
            try:
                event = await asyncio.wait_for(self._receive(), left)
            except asyncio.TimeoutError:  # noqa: UP041 (another class before Python 3.11.0)
                return
            if event["type"] != "http.request":
                return
            self._whole = not event.get("more_body", False)

    def close(self) -> None:
        """Give back what the request held."""
        self._budget.give(self._held)
        self._held = 0

    @property
    def owes_body(self) -> bool:
        """Tell whether the client may still be sending."""
        if self._whole:
            return False
        return b"transfer-encoding" in self.headers or self.headers.get(b"content-length", b"0") != b"0"

    @property
    def spent_us(self) -> int:
        """Return microseconds since the request's head was complete."""
        return (time.monotonic_ns() - self.started_ns) // 1000


def inflate(body: bytes) -> Iterator[bytes]:
    """Yield the contents of a gzip stream (of one or more members) in bounded pieces. Raises zlib.error, EOFError when it is cut short."""
    rest = body
    while rest:
        engine = zlib.decompressobj(wbits=31)
        while not engine.eof:
            piece = engine.decompress(rest, limits.INFLATE_CHUNK_BYTES)
            rest = engine.unconsumed_tail
            if piece:
                yield piece
            elif not rest:
                break  # nothing comes out and nothing is left to go in
        if not engine.eof:
            raise EOFError("gzip stream cut short")
        rest = engine.unused_data


def accepts_gzip(header: bytes) -> bool:
    """Tell whether an Accept-Encoding header asks for gzip."""
    for part in header.decode("latin-1").lower().split(","):
        name, *parameters = (word.strip() for word in part.split(";"))
        if name in ("gzip", "x-gzip", "*"):
            return not any(parameter.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for parameter in parameters)
    return False
