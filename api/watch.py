"""Watch: `POST /v0/watch` makes a session, `GET /v0/watch/:wid` streams it as server-sent events (A §7.1-§7.6)."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from typing import Any

import falcon.asgi
import orjson
import structlog

from topicsd import cursors, errors, limits
from topicsd._native import scan
from topicsd._native.feed import SSE, Stream
from topicsd._native.sessions import MEMBER, PATTERN, TAIL, Session
from topicsd.api import answers, queries
from topicsd.api.context import Context
from topicsd.api.exchange import Exchange
from topicsd.api.gate import Route, exchange_of
from topicsd.api.watching import Options, Position, Start, begin_at, check_names, matching, position_of, read_topics

log = structlog.get_logger("watch")

Rows = list[tuple[bytes, int, int, int]]  # name, epoch, seq, flags


def routes(context: Context) -> dict[str, Route]:
    """Return the routes by path."""
    return {"/v0/watch": Watch(context), "/v0/watch/{wid}": WatchStream(context)}


# ---- a session -----------------------------------------------------------------------------------------------------------------


class Watch(Route):
    """`POST /v0/watch` (A §7.2)."""

    scopes = {"POST": ("read",)}  # noqa: RUF012

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Check everything that can be wrong before a stream is open, and keep the subscription."""
        context, exchange = self.context, exchange_of(req)
        body = await exchange.body(context.settings.max_body_bytes)
        scan.check_object(body)
        members: dict[str, Any] = orjson.loads(body)
        lenient = queries.boolean(exchange.query, "lenient", False)
        topics = read_topics(members.get("topics"), context.settings.max_watch_topics)
        options = Options.read(members)
        cursor = self._cursor(members.get("cursor"), exchange)
        check_names(exchange.key, topics)
        rows, positions = self._rows(topics, cursor, lenient)
        wid = self._make(exchange, options, rows)
        shown = {
            name.decode(): {"from_seq": seq, "head_seq": positions[name].head, "earliest_seq": positions[name].earliest}
            for name, _epoch, seq, flags in rows
            if not flags & PATTERN
        }
        answer = {"wid": wid, "stream_url": f"/v0/watch/{wid}", "session_ttl_ms": context.settings.session_ttl_ms, "topics": shown}
        answers.send(resp, {**answer, "performance": {"server_total_ms": exchange.spent_us / 1000}})

    def _cursor(self, value: object, exchange: Exchange) -> cursors.Cursor | None:
        if value is None:
            return None
        cursor = cursors.decode(value) if isinstance(value, str) else None
        if cursor is None:
            raise errors.Invalid("cursor", "expected the id of an event")
        if not cursor.session:
            return cursor
        found = self.context.sessions.positions(cursor.session, cursor.at, exchange.key.index)
        if found is None:
            raise errors.Invalid("cursor", "the session that this id belongs to is gone")
        seqs = {name.decode(): seq for name, _epoch, seq in found}
        return cursors.Cursor(seqs=seqs, epochs={name.decode(): epoch for name, epoch, _seq in found}, whole=True)

    def _rows(self, topics: dict[str, Start], cursor: cursors.Cursor | None, lenient: bool) -> tuple[Rows, dict[bytes, Position]]:
        """Find every topic, and what the patterns match. Raises TopicNotFound, Invalid."""
        rows: Rows = []
        positions: dict[bytes, Position] = {}
        for name, start in topics.items():
            if name.endswith("*"):
                rows.append((name[:-1].encode(), 0, 0 if start.tail else start.from_seq, PATTERN | (TAIL if start.tail else 0)))
                continue
            position = position_of(self.context, name.encode())
            if position is None:
                if lenient:
                    continue
                raise errors.TopicNotFound(name)
            positions[name.encode()] = position
            rows.append((name.encode(), *begin_at(start, position, name, cursor), 0))
        for name, start in topics.items():
            for member in matching(self.context, name[:-1].encode()) if name.endswith("*") else ():
                if member in positions or (position := position_of(self.context, member)) is None:
                    continue
                positions[member] = position
                rows.append((member, *begin_at(start, position, member.decode(), cursor), MEMBER))
        if len(positions) > limits.PATTERN_TOPICS_MAX:
            raise errors.Invalid("topics", f"the patterns match more than {limits.PATTERN_TOPICS_MAX} topics", limit=limits.PATTERN_TOPICS_MAX)
        return rows, positions

    def _make(self, exchange: Exchange, options: Options, rows: Rows) -> str:
        context = self.context
        context.feed.sweep()
        text = options.to_bytes()
        if len(text) > limits.WATCH_OPTIONS_BYTES_MAX:
            raise errors.Invalid("node", f"the options take more than {limits.WATCH_OPTIONS_BYTES_MAX} bytes")
        for again in (False, True):
            wid: str | None = context.sessions.make(context.ring, context.now_ms, exchange.key.index, None, text, rows)
            if wid is not None:
                return wid
            if not again:
                context.feed.sweep(at_once=True)
        context.shared.add_worker(context.ring, "throttled")
        most = context.settings.max_watch_sessions
        raise errors.Throttled("max_watch_sessions", most or limits.WATCH_SESSIONS_HARD_MAX)


# ---- its stream ----------------------------------------------------------------------------------------------------------------


class WatchStream(Route):
    """`GET /v0/watch/:wid` (A §7.3)."""

    scopes = {"GET": ()}  # noqa: RUF012 (the session is bound to its key: checked here, behind 406 and 404)
    in_flight = False

    async def on_get(self, req: falcon.asgi.Request, resp: falcon.asgi.Response, wid: str) -> None:
        """Take the connection over and stream, until it breaks, another stream takes the session over or the server ends."""
        context, exchange = self.context, exchange_of(req)
        if not accepts_events(exchange.headers.get(b"accept")):
            raise errors.ClientError("this path gives text/event-stream", code="not_acceptable")
        sessions = context.sessions
        number = sessions.find(wid)
        if number is None:
            raise errors.NotFound("there is no such watch session: POST /v0/watch again")
        key, _digest = sessions.key_of(number)
        if context.keyring.enabled and (exchange.key.index < 0 or exchange.key.index != key):
            raise errors.Unauthorized("a watch session is opened with the API key that made it")
        takes_over = sessions.is_open(number)
        self._count_in(key, takes_over)
        try:
            if takes_over:
                await self._ask(number)
            session = sessions.open(wid, context.ring, context.now_ms)
            if session is None:
                raise errors.NotFound("there is no such watch session: POST /v0/watch again")
        except BaseException:
            sessions.leave(context.ring, key)
            raise
        context.feed.sweep()
        try:
            connection = exchange.scope["topicsd.connection"]
            rewind(session, exchange.headers.get(b"last-event-id", b""), Options.from_bytes(session.options).opening_id)
            session.begin()
        except BaseException:
            session.close(context.now_ms)
            sessions.leave(context.ring, key)
            raise
        if connection.transport is None or connection.transport.is_closing():
            # The client left while the other stream was waited for: nobody would count this one out.
            session.close(context.now_ms)
            sessions.leave(context.ring, key)
            return
        receiver = EventSink(context, key, exchange.request_id)
        transport = connection.take_over(receiver)
        receiver.start(transport, session)

    async def _ask(self, number: int) -> None:
        """Let the stream that has the session end by itself; one that cannot (its worker is stopped or dead) loses it all the same."""
        context = self.context
        owner = context.sessions.ask(number)
        if owner == context.ring:
            context.feed.native.taken()
        for _ in range(limits.TAKEOVER_LOOKS_MAX):
            if owner is None or not context.sessions.is_open(number):
                return
            await asyncio.sleep(limits.TAKEOVER_LOOK_S)

    def _count_in(self, key: int, takes_over: bool) -> None:
        context = self.context
        total, of_key = context.settings.max_sse_connections, context.settings.max_sse_connections_per_key
        if takes_over:
            total = of_key = 0
        over = context.sessions.enter(context.ring, key, total, of_key)
        if over:
            context.shared.add_worker(context.ring, "throttled")
            raise errors.Throttled("max_sse_connections", total) if over == 1 else errors.Throttled("max_sse_connections_per_key", of_key)


def accepts_events(accept: bytes | None) -> bool:
    """Tell whether an Accept header takes text/event-stream: the most special range that matches decides (RFC 9110 §12.5.1)."""
    if accept is None or not accept.strip():
        return True
    best, quality = 0, 0.0
    for part in accept.decode("latin-1").lower().split(","):
        kind, *parameters = (word.strip() for word in part.split(";"))
        rank = {"*/*": 1, "text/*": 2, "text/event-stream": 3}.get(kind, 0)
        if rank <= best:
            continue
        weight = next((each[2:] for each in parameters if each.startswith("q=")), "1")
        try:
            best, quality = rank, float(weight)
        except ValueError:
            continue
    return quality > 0


def rewind(session: Session, last_event_id: bytes, opening_id: bool = False) -> None:
    """Take a session back to the id that a client saw last, never forward; an id that is none is ignored (A §7.4).

    opening_id: streams of this session begin with an id, so a client that shows none has seen nothing, whatever a proxy between has taken.
    """
    cursor = cursors.decode(last_event_id.decode("latin-1"))
    if cursor is None or (cursor.session and cursor.session != session.tag):
        session.begin_first() if opening_id else session.begin_again()
    elif cursor.session:
        session.rewind_to(cursor.at)
    else:
        session.rewind(cursor.seqs, cursor.epochs, cursor.whole)


class EventSink:
    """Own the connection of one event stream."""

    def __init__(self, context: Context, key: int, request_id: bytes) -> None:
        self._context = context
        self._key = key
        self._request_id = request_id
        self._transport: Any = None
        self._stream: Stream | None = None
        self._counted = True

    def start(self, transport: Any, session: Session) -> None:
        """Send the head, say where the cursors stand, and follow the session's topics."""
        context = self._context
        feed = context.feed
        feed.tell_time()
        self._transport = transport
        transport.set_write_buffer_limits(high=0)  # resume_writing says when nothing is held any more
        stream = self._stream = feed.native.stream(self, transport.get_extra_info("socket").fileno(), SSE, session)
        if transport.is_closing():
            stream.close()
            return
        options = Options.from_bytes(session.options)
        stream.open(head(self._request_id), options.heartbeat_ms, options.opening_id or options.resumed)
        view = options.of(feed.native, SSE)
        stream.follow_rows(view)
        for name, _epoch, _seq, flags in session.rows():
            if flags & PATTERN:
                feed.follow_pattern(stream, name, view)
        feed.turn()

    # the connection's side

    def data_received(self, data: bytes) -> None:
        """Take no notice: nothing follows a stream's request."""

    def eof_received(self) -> bool:
        """Close: the client has left."""
        return False

    def pause_writing(self) -> None:
        """Take no notice: the stream has seen what the transport holds."""

    def resume_writing(self) -> None:
        """Go on: the transport is empty."""
        if self._stream is not None and not self._stream.closed:
            self._context.feed.tell_time()
            self._stream.drained()
            self._context.feed.turn()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count out; the session stays."""
        if self._stream is not None:
            self._context.feed.tell_time()
            self._stream.close()
            self._stream = None
        if self._counted:
            self._counted = False
            self._context.sessions.leave(self._context.ring, self._key)

    # the feed's side

    def write(self, data: bytes) -> int:
        """Hand bytes to the transport."""
        self._transport.write(data)
        size: int = self._transport.get_write_buffer_size()
        return size

    def held(self) -> int:
        """Return what the transport holds."""
        size: int = self._transport.get_write_buffer_size()
        return size

    def end(self, code: int, message: str) -> None:
        """Close behind the last event; a client that does not read it is cut off."""
        self._transport.close()
        if self._transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(limits.STREAM_END_S_MAX, self._transport.abort)


def head(request_id: bytes) -> bytes:
    """Render the response's head: its body ends with the connection (A §7.3)."""
    lines = [
        "HTTP/1.1 200 OK",
        "Server: topicsd",
        f"Date: {formatdate(time.time(), usegmt=True)}",
        "Content-Type: text/event-stream; charset=utf-8",
        "Cache-Control: no-store",
        "Connection: keep-alive",
        "X-Accel-Buffering: no",
        f"X-Request-Id: {request_id.decode('ascii')}",
        "",
        "",
    ]
    return "\r\n".join(lines).encode("ascii")
