"""Take a connection away from gunicorn: a stream writes to its socket itself, and no request follows.

gunicorn thinks that the connection has been closed: what a route still answers is dropped, its task ends, and it closes nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol


class Receiver(Protocol):
    """Who has the connection from now on; asyncio's protocol without its beginning."""

    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class Taken(asyncio.Protocol):
    """Stand between a transport and its new owner, and let the old one count out at the end."""

    def __init__(self, connection: Any, receiver: Receiver) -> None:
        self._connection = connection
        self._receiver = receiver
        self.data_received = receiver.data_received  # type: ignore[method-assign]
        self.eof_received = receiver.eof_received  # type: ignore[method-assign]
        self.pause_writing = receiver.pause_writing  # type: ignore[method-assign]
        self.resume_writing = receiver.resume_writing  # type: ignore[method-assign]

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the new owner, then the old one."""
        try:
            self._receiver.connection_lost(exc)
        finally:
            self._connection.connection_lost(exc)


class Takeover:
    """Let a gunicorn connection be taken over; mixed in before its protocol class."""

    transport: Any
    taken = False

    def take_over(self, receiver: Receiver) -> Any:
        """Give the connection to `receiver` for good; return its transport. Call it from inside the request that asks for it."""
        self.taken = True
        self._closed = True
        self._let_go(Taken(self, receiver))
        return self.transport

    def _let_go(self, taken: Taken) -> None:
        self.transport.set_protocol(taken)

    def _build_http_scope(self, request: Any, sockname: Any, peername: Any) -> Any:
        scope = super()._build_http_scope(request, sockname, peername)  # type: ignore[misc]
        scope["topicsd.connection"] = self
        return scope
