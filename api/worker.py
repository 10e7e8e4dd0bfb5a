"""The worker process: gunicorn's ASGI worker on uvloop, with our context, our drain and our limits (design notes: what gunicorn does otherwise).

The parts of gunicorn used here are private, hence its narrow pin; tests/api hold them.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import resource
import signal
from typing import Any

import structlog
from gunicorn.asgi import protocol
from gunicorn.workers import gasgi

from topicsd import errors, limits, processes
from topicsd.api import errors as wire
from topicsd.api import exchange, socket, work
from topicsd.api.calls import Calls
from topicsd.api.cold import ColdTier
from topicsd.api.context import Context
from topicsd.api.feed import FeedLoop
from topicsd.api.polls import Polls
from topicsd.api.queues import Unreadable
from topicsd.api.takeover import Takeover

log = structlog.get_logger("worker")

DESCRIPTORS_RESERVED = 96  # of RLIMIT_NOFILE: listeners, bells, maps being made, the log's own
HEARTBEAT_S = 1.0
LAG_EVERY_S = 0.25
SERVER = "topicsd"
protocol._CACHED_SERVER_HEADER = f"Server: {SERVER}\r\n".encode()


class Connection(Takeover, protocol.ASGIProtocol):  # type: ignore[misc]
    """One HTTP/1.1 connection: with a time limit on its first head, and errors of the parser in the envelope."""

    worker: Worker
    _callback_parser: Any
    _half_closed = False  # the client has finished sending

    def connection_made(self, transport: Any) -> None:
        """Count in; refuse politely when there are too many."""
        worker = self.worker
        self._held: list[bytes] = []  # what came behind the request that is being served
        self._head_timer = worker.loop.call_later(limits.HEAD_MS_MAX / 1000, self._head_is_late)
        super().connection_made(transport)
        worker.connections.add(self)
        worker.count("connections", 1)
        if len(worker.connections) > worker.connections_max:
            refusal = errors.Throttled("max_connections", worker.connections_max)
            self._send_envelope(503, refusal, "Retry-After: 1\r\n")
            self._close_transport()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count out."""
        if self in self.worker.connections:
            self.worker.connections.discard(self)
            self.worker.count("connections", -1)
        self._head_timer.cancel()
        super().connection_lost(exc)
        self._callback_parser = None  # it holds this object, and the garbage collector does not see through it

    def data_received(self, data: bytes) -> None:
        """Take bytes in; hold back what belongs to the next request until this one is answered.

        A quick client has read the answer and sends on before gunicorn has reset its parser, which keeps at most 64 KiB of what follows a
        message and then closes the connection: every larger write could be cut off.
        """
        if self._held or self._serves_whole_request():
            self._held.append(data)
            self._pause_reading()
        else:
            super().data_received(data)

    def _serves_whole_request(self) -> bool:
        parser = self._callback_parser
        return self._current_request is not None and parser is not None and parser.is_complete and self.reader is None and self._websocket is None

    def _resume_reading(self) -> None:
        super()._resume_reading()
        if self._held:
            self.worker.loop.call_soon(self._feed_held)  # gunicorn resumes just before it resets the parser

    def _feed_held(self) -> None:
        if self._held and not self._closed and not self._serves_whole_request():
            held = b"".join(self._held)
            self._held.clear()
            super().data_received(held)

    def eof_received(self) -> bool:
        """Keep the connection open for the answer of a request that has come whole: its client may only have finished sending.

        Those who wait for a disconnect (long polls) are told, for most likely the client has left.
        """
        if self._current_request is None or self._websocket is not None:
            return False
        self._half_closed = True
        self._tell_of_eof(self._body_receiver)
        return True

    def _tell_of_eof(self, receiver: Any) -> None:
        if receiver is not self._body_receiver or self._closed:
            return
        if receiver._body_finished or not receiver._complete:
            receiver.signal_disconnect()
        else:
            self.worker.loop.call_later(0.01, self._tell_of_eof, receiver)  # the body has not been read yet

    def _will_close(self, request: Any, response_requires_close: bool) -> bool:
        if self._half_closed and not self._held and not (self._callback_parser is not None and self._callback_parser.remaining()):
            return True  # no further request has come and none will
        if self.worker.draining:
            return True  # the arbiter's word counts before its signal is here
        return bool(super()._will_close(request, response_requires_close))

    async def _handle_websocket(self, request: Any, sockname: Any, peername: Any) -> None:
        self._callback_parser = None
        await socket.serve(self, self._build_websocket_scope(request, sockname, peername))

    def stay(self) -> None:
        """Give the WebSocket all that comes from now on."""
        self._resume_reading()

    def pause_writing(self) -> None:
        """Tell who writes that the client does not read."""
        super().pause_writing()
        if self._websocket is not None:
            self._websocket.pause_writing()

    def resume_writing(self) -> None:
        """Tell who writes that the client reads again."""
        super().resume_writing()
        if self._websocket is not None:
            self._websocket.resume_writing()

    def _on_headers_complete(self) -> Any:
        self._head_timer.cancel()
        verdict = super()._on_headers_complete()
        if self._half_closed:  # it waited behind another one when its client finished sending
            self.worker.loop.call_soon(self._tell_of_eof, self._body_receiver)
        return verdict

    def _head_is_late(self) -> None:
        self.end_if_idle()

    @property
    def busy(self) -> bool:
        """Tell whether a request is being served."""
        return not self.taken and (self._current_request is not None or bool(self._finishing_calls))

    def end_if_idle(self) -> None:
        """Close a connection on which no request is being served."""
        if not self.busy and not self.taken:
            self._close_transport()
            if self._request_ready is not None:
                self._request_ready.set()  # lets its task end now

    def _send_error_response(self, status: int, message: str, extra_headers: Any = ()) -> None:
        if self.taken:
            return  # "the application has not answered": it has the connection
        error = wire.of_parser(status, message)
        self._send_envelope(wire.status_of(error), error, "".join(f"{name}: {value}\r\n" for name, value in extra_headers))

    def _send_envelope(self, status: int, error: errors.TopicsError, extra: str = "", request_id: bytes | None = None) -> None:
        body = wire.envelope(error)
        named = (request_id or exchange.request_id(None)).decode()
        head = (
            f"HTTP/1.1 {status} {self._get_reason_phrase(status)}\r\nContent-Type: application/json\r\n"
            f"Server: {SERVER}\r\nX-Request-Id: {named}\r\nContent-Length: {len(body)}\r\n{extra}Connection: close\r\n\r\n"
        )
        self._safe_write(head.encode("latin-1") + body)


class Worker(gasgi.ASGIWorker):  # type: ignore[misc]
    """Serve requests on one event loop."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ring = -1  # the arbiter's pre_fork sets both
        self.swept = 0  # files_retired when this process last unmapped what is retired
        self.runtime: Any = None
        self.connections: set[Any] = set()  # of Connection, or of the native front's
        self.connections_max = 1
        self.context: Context | None = None
        self.hub: Any = None  # of the native front, where it is on
        self.front: Any = None  # its connections' class
        self.patience: Any = None

    def count(self, name: str, value: int) -> None:
        """Add to a counter of this worker's line in shared memory."""
        self.runtime.shared.add_worker(self.ring, name, value)

    @property
    def draining(self) -> bool:
        """Tell whether the server ends: the arbiter says so in shared memory before its signal is here."""
        return bool((self.context is not None and self.context.draining) or self.runtime.shared.draining)

    # ---- start -----------------------------------------------------------------------------------------------------------------

    def init_process(self) -> None:
        """Tie this process to the arbiter, then let gunicorn set it up and run it."""
        processes.die_with(self.ppid)
        processes.keep_memory()
        self.connections_max = max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - DESCRIPTORS_RESERVED, 16)
        # A subclass of the protocol gets the C parser only if the base class has found it (it looks on the base class).
        protocol.ASGIProtocol._check_h1c_protocol_available()
        self._stop = asyncio.Event()
        super().init_process()

    def load_wsgi(self) -> None:
        """Open this worker's end of the shared memory and build the application on it."""
        from topicsd._native.meters import ring_depths
        from topicsd._native.order import Order
        from topicsd._native.port import Port
        from topicsd._native.reader import Reader
        from topicsd._native.work import leases_in_flight, report_unreadable

        runtime = self.runtime
        settings, shared = runtime.settings, runtime.shared
        reader = Reader(shared, str(settings.data_dir), settings.max_limit)
        port: Any
        if settings.front == "native":
            from topicsd._native.front import Front
            from topicsd.api import front

            self.patience = front.Patience()
            self.front = Front
            port = self.hub = front.make_hub(self, shared, self.ring, reader, settings, runtime.keyring)
        else:
            port = Port(shared, self.ring)
        polls = Polls(port)
        self.context = Context(
            settings=settings,
            keyring=runtime.keyring,
            shared=shared,
            ring=self.ring,
            reader=reader,
            order=Order(shared),
            calls=Calls(shared, port, polls),
            polls=polls,
            budget=exchange.Budget(limits.BODIES_BYTES_MAX // settings.workers),
            started_ns=runtime.started_ns,
            sockets=socket.Sockets(),
            meters=runtime.meters,
            figures=runtime.figures,
            ring_depths=lambda: ring_depths(shared),
            leases_in_flight=lambda: leases_in_flight(shared),
            sessions=runtime.sessions,
        )
        self.context.cold = ColdTier(shared, settings, runtime.figures)
        self.context.feed = FeedLoop(self.context, port, reader)
        self.context.cold.feed = self.context.feed
        self.context.feed.native.cold = self.context.cold.for_feed
        self.context.calls.chores.append(self._unmap_retired)
        report_unreadable(Unreadable(self.context))
        self.asgi = self.app.wsgi()(self.context)

    def _unmap_retired(self) -> None:
        """Let go of files that are about to be removed, and say so."""
        assert self.context is not None
        shared = self.runtime.shared
        if shared.get("files_retired") != self.swept:
            self.swept = self.context.reader.sweep()
            shared.set_worker(self.ring, "maps_swept", self.swept)

    def handle_exit_signal(self) -> None:
        """Drain (SIGTERM)."""
        super().handle_exit_signal()
        self._stop.set()

    def handle_quit_signal(self) -> None:
        """End at once (SIGINT, SIGQUIT)."""
        super().handle_quit_signal()
        self._stop.set()

    # ---- serve -----------------------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        assert self.context is not None
        loop = asyncio.get_running_loop()
        # The arbiter has blocked them across the fork; uvloop loses a signal that comes before it runs.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, processes.ENDING)
        self.context.calls.open(loop)
        connection = functools.partial(Connection, self) if self.hub is None else functools.partial(self.front, self.hub)
        if self.hub is not None:
            self.hub.open(loop)
        self.context.feed.open(loop)
        for listener in self.sockets:
            self.servers.append(await loop.create_server(connection, sock=listener.sock, backlog=limits.BACKLOG))
        self._measure_lag(loop.time())
        gc.collect()
        gc.freeze()  # what is alive now lives for ever: later collections need not look at it
        while self.alive:
            self.notify()
            if self.ppid != os.getppid():
                break
            try:
                await asyncio.wait_for(self._stop.wait(), HEARTBEAT_S)
            except asyncio.TimeoutError:  # noqa: UP041
                continue
        await self._shutdown()
        self.context.calls.close(loop)

    def _measure_lag(self, due_s: float) -> None:
        """Count how late the loop calls back."""
        assert self.context is not None
        now_s = self.loop.time()
        self.context.meters.lag(self.ring, max(int((now_s - due_s) * 1e6), 0))
        due_s = now_s + LAG_EVERY_S
        self.loop.call_at(due_s, self._measure_lag, due_s)

    async def _shutdown(self) -> None:
        """Let the requests that are being served finish, refuse all others by 503, then close; long polls answer with what there is.

        Connections are accepted as long as there is something to wait for: "shutting down" says more than a refused connection.
        """
        assert self.context is not None
        self.context.draining = True
        self.context.polls.wake(None)
        self.context.sockets.end_all()
        self.context.feed.shut_down()
        await work.end_all(self.context)
        if self.hub is not None:
            self.hub.end_polls()
        deadline = self.loop.time() + self.runtime.settings.drain_ms / 1000
        begun = [connection for connection in self.connections if connection.busy]
        while begun and not self._quick_shutdown and self.loop.time() < deadline:
            self.notify()
            await asyncio.sleep(0.01)
            begun = [connection for connection in begun if connection in self.connections and connection.busy]
        for server in self.servers:
            server.close()
        await asyncio.sleep(0.01)  # what has arrived is still told
        while self.connections and not self._quick_shutdown and self.loop.time() < deadline:
            for connection in list(self.connections):
                connection.end_if_idle()
            self.context.sockets.end_all()
            self.notify()
            await asyncio.sleep(0.01)
        if self.connections and not self._quick_shutdown:
            log.warning("requests are cut off: the drain took too long", connections=len(self.connections))
        for connection in list(self.connections):
            if connection.transport is not None:
                connection.transport.abort()
