"""Commands of a WebSocket (A §7.7; CLARIFICATIONS SSE and WebSocket), one after the other, through the code of the HTTP routes.

Order. A publish to a topic that is there is sent to the writer at once, and its ack waits for its turn in `answers`: so a client may send many
without waiting, and they are appended and acked in the order of their sending. Every other command waits until all publishes before it are
acked; a diff or claim with `wait_ms` then waits beside the rest, as it would hold the connection up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any, Protocol

import msgspec
import orjson
import structlog

from topicsd import errors
from topicsd._native import render, scan
from topicsd._native.port import Completion
from topicsd.api import records
from topicsd.api.auth import Key
from topicsd.api.calls import BODY_DIFFERS, CREATED, DEDUPED, Outcome, refusal
from topicsd.api.context import Context
from topicsd.api.exchange import EMPTY, Budget, Exchange
from topicsd.api.gate import EXCHANGE, authorize, checked_config
from topicsd.api.subscriptions import Subscriptions
from topicsd.topic_config import check_topic_name

log = structlog.get_logger("socket")

PUBLISHES_MAX = 64  # of one connection that the writer has in hand
WAITS_MAX = 16  # reads with wait_ms of one connection
ROUTED = {  # commands that are a POST route: the path's last part
    "diff": "/v0/topics/{topic}/diff",
    "claim": "/v0/topics/{topic}/claim",
    "ack": "/v0/topics/{topic}/ack",
    "nack": "/v0/topics/{topic}/nack",
    "extend": "/v0/topics/{topic}/extend",
}
NO_BUDGET = Budget(1 << 62)  # messages are counted by their socket

RequestId = str | int | float | None


class Command(msgspec.Struct):
    """What every command has; the scanner reads the rest."""

    op: str
    request_id: RequestId = None
    topic: str | None = None
    return_seqs: bool | None = None
    wait_ms: int | None = None


class OnlyId(msgspec.Struct):
    """What can be told of a command that is wrong."""

    request_id: RequestId = None


_command = msgspec.json.Decoder(Command)
_only_id = msgspec.json.Decoder(OnlyId)


class Talk(Protocol):
    """What is used of api.socket.Socket."""

    gone: asyncio.Event
    request_id: str
    transport: Any
    stream: Any
    deflate: int

    def say(self, text: bytes) -> None: ...


class Spoken(Exchange):
    """A command in the place of a request: its body has come."""

    __slots__ = ("_gone", "_text")

    def __init__(self, key: Key, topic: str | None, text: bytes, gone: asyncio.Event) -> None:
        super().__init__({"headers": ()}, _nothing, NO_BUDGET)
        self.key = key
        self.topic = (topic or "").encode()
        self._text = text
        self._gone = gone

    async def body(self, bytes_max: int, *, may_be_empty: bool = False) -> bytes:
        """Return the message: members that a route does not know it ignores."""
        return self._text

    async def disconnected(self) -> None:
        """Return when the client has left."""
        await self._gone.wait()


async def _nothing() -> dict[str, Any]:
    return EMPTY


class _Due:
    """An ack that waits for its turn."""

    __slots__ = ("exchange", "future", "request_id", "retry", "return_seqs")

    def __init__(self, request_id: RequestId, exchange: Spoken, return_seqs: bool, retry: Any) -> None:
        self.request_id = request_id
        self.exchange = exchange
        self.return_seqs = return_seqs
        self.retry = retry
        self.future: asyncio.Future[Completion]


class Commands:
    """Serve the commands of one connection."""

    def __init__(self, context: Context, key: Key, socket: Talk) -> None:
        self.context = context
        self.key = key
        self.socket = socket
        self.subscriptions = Subscriptions(context, key, socket)
        self.answers: deque[_Due] = deque()
        self._moved = asyncio.Event()  # the answers have become fewer
        self._waits: set[asyncio.Task[None]] = set()

    def end(self) -> None:
        """Give up what waits; what the writer has in hand stays appended."""
        self.answers.clear()
        for task in list(self._waits):
            task.cancel()

    async def take(self, text: bytes) -> None:
        """Serve one message, or begin to."""
        try:
            command = _command.decode(text)
        except (msgspec.DecodeError, RecursionError) as wrong:
            await self._settled()
            self._refuse(_id_of(text), self._why_no_command(text, wrong))
            return
        try:
            if command.op == "publish":
                await self._publish(command, text)
                return
            await self._settled()
            if command.op in ROUTED and command.wait_ms and len(self._waits) < WAITS_MAX:
                task = asyncio.create_task(self._waiting(command, text))
                self._waits.add(task)
                task.add_done_callback(self._waits.discard)
            else:
                await self._serve(command, text)
        except Exception as wrong:
            self._failed(command.request_id, wrong)

    def _why_no_command(self, text: bytes, wrong: Exception) -> errors.TopicsError:
        try:
            scan.check_object(text)
        except scan.BadRequest as bad:
            return errors.ClientError(bad.message, bad.detail, code=bad.code)
        field = str(wrong).rpartition("`$.")[2].rstrip("`") if "`$." in str(wrong) else "op"
        return errors.Invalid(field, "missing or of a wrong type")

    async def _serve(self, command: Command, text: bytes) -> None:
        scan.check_object(text)
        match command.op:
            case "ping":
                self.answer("pong", command.request_id)
            case "subscribe":
                self._subscribe(command, text)
            case "unsubscribe":
                self.answer("unsubscribed", command.request_id, self.subscriptions.remove(orjson.loads(text)))
            case op if op in ROUTED:
                await self._routed(command, text)
            case op:
                raise errors.Invalid("op", f"there is no command {op[:40]!r}")

    def _ready(self) -> None:
        self.context.check_ready()

    async def _settled(self, most: int = 0) -> None:
        """Wait until at most so many publishes are on their way."""
        while len(self.answers) > most and not self.socket.gone.is_set():
            self._moved.clear()
            await self._moved.wait()

    # ---- answers -----------------------------------------------------------------------------------------------------------

    def answer(self, op: str, request_id: RequestId, body: bytes = b"{}") -> None:
        """Say a JSON object with `op` and `request_id` in front."""
        head: dict[str, Any] = {"op": op} if request_id is None else {"op": op, "request_id": request_id}
        text = orjson.dumps(head)
        self.socket.say(text if body == b"{}" else text[:-1] + b"," + body[1:])

    def _refuse(self, request_id: RequestId, wrong: errors.TopicsError) -> None:
        if wrong.code == "throttled":
            self.context.shared.add_worker(self.context.ring, "throttled")
            self.context.count_refusal(wrong)
        self.answer("error", request_id, orjson.dumps(wrong.to_json()))

    def _failed(self, request_id: RequestId, wrong: BaseException) -> None:
        if isinstance(wrong, scan.BadRequest):
            self._refuse(request_id, errors.ClientError(wrong.message, wrong.detail, code=wrong.code))
        elif isinstance(wrong, errors.TopicsError):
            self._refuse(request_id, wrong)
        else:
            log.error("internal error", request_id=self.socket.request_id, exc_info=wrong)
            self._refuse(request_id, errors.Internal("internal error; the server's log has more"))

    # ---- publish -----------------------------------------------------------------------------------------------------------

    async def _publish(self, command: Command, text: bytes) -> None:
        context = self.context
        exchange = Spoken(self.key, command.topic, text, self.socket.gone)
        await self._settled(PUBLISHES_MAX - 1)
        try:
            self._ready()
            authorize(self.key, ("write",), exchange.topic)
            write = await records.parse_write(context, text)
            if command.topic is None:
                raise errors.Invalid("topic", "missing")
            topic = check_topic_name(exchange.topic)
            config = None
            if write.config is not None:
                if not self.key.may("admin"):
                    raise errors.Forbidden("a publish with a config needs the admin scope", {"scope": "admin"})
                config = checked_config(orjson.loads(write.config), exchange, topic, "config").to_json()
        except Exception:
            await self._settled()  # errors wait for their turn, too
            raise

        async def retry() -> Completion:
            return await records.append_to(context, exchange, topic, write, None, config)

        due = _Due(command.request_id, exchange, command.return_seqs is not False, retry)
        place = context.place(exchange.topic)
        if place is None:
            await self._settled()  # its topic is made first
            self._acked(due, await due.retry())
            return
        due.future = await context.calls.send_append(*place, write, None)
        self.answers.append(due)
        due.future.add_done_callback(self._advance)

    def _advance(self, _: object) -> None:
        """Say the acks whose turn has come."""
        while self.answers and self.answers[0].future.done():
            due = self.answers[0]
            try:
                completion = due.future.result()
                if completion.status == Outcome.MOVED:  # the topic was deleted, maybe made again, on the way
                    due.future = asyncio.ensure_future(due.retry())
                    due.future.add_done_callback(self._advance)
                    return
                self.answers.popleft()
                self._acked(due, completion)
            except BaseException as wrong:
                if self.answers and self.answers[0] is due:
                    self.answers.popleft()
                self._failed(due.request_id, wrong)
        self._moved.set()

    def _acked(self, due: _Due, completion: Completion) -> None:
        if completion.status != Outcome.OK:
            raise refusal(completion)
        self.context.shared.add_worker(self.context.ring, "records_in", completion.count)
        body = render.append_answer(
            due.exchange.topic,
            completion.first_seq,
            completion.count,
            completion.head,
            created=bool(completion.flags & CREATED),
            deduped=bool(completion.flags & DEDUPED),
            body_differs=bool(completion.flags & BODY_DIFFERS),
            return_seqs=due.return_seqs,
            total_us=due.exchange.spent_us,
            wal_us=completion.wal_us,
            fsync_us=completion.fsync_us,
            parked_us=completion.parked_us,
        )
        self.answer("ack", due.request_id, body)

    # ---- commands that are routes --------------------------------------------------------------------------------------------

    async def _waiting(self, command: Command, text: bytes) -> None:
        try:
            scan.check_object(text)
            await self._routed(command, text)
        except Exception as wrong:
            self._failed(command.request_id, wrong)

    async def _routed(self, command: Command, text: bytes) -> None:
        self._ready()
        route = self.context.routes.get(ROUTED[command.op])
        if route is None:
            raise errors.NotFound("this version of the server does not serve this command")
        exchange = Spoken(self.key, command.topic, text, self.socket.gone)
        authorize(self.key, route.scopes["POST"], exchange.topic)
        if command.topic is None:
            raise errors.Invalid("topic", "missing")
        told = SimpleNamespace(status=200, content_type="", data=b"{}")
        await route.on_post(SimpleNamespace(scope={EXCHANGE: exchange}, method="POST"), told)
        self.answer(command.op, command.request_id, told.data)

    # ---- subscriptions -------------------------------------------------------------------------------------------------------

    def _subscribe(self, command: Command, text: bytes) -> None:
        self._ready()
        self.answer("subscribed", command.request_id, self.subscriptions.add(orjson.loads(text)))
        self.subscriptions.deliver()


def _id_of(text: bytes) -> RequestId:
    try:
        return _only_id.decode(text).request_id
    except (msgspec.DecodeError, RecursionError):
        return None
