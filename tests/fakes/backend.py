"""What stands behind the HTTP door, in a few lines of Python: a writer that answers, a reader, the shared words; and a client for the door.

It knows just enough of topics to answer; the rules themselves are tested on the engine and by the conformance suite.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

from topicsd.api.app import Door
from topicsd.api.auth import Keyring
from topicsd.api.calls import CREATED, Calls, Outcome
from topicsd.api.context import Context
from topicsd.api.exchange import Budget
from topicsd.api.polls import Polls
from topicsd.settings import Settings


class Words:
    """The shared memory's counters and flags."""

    def __init__(self) -> None:
        self.ready, self.draining, self.generation, self.ring_slots = True, False, 1, 4
        self.topics_by_class = (0, 0, 1, 0)
        self.words: dict[str, int] = defaultdict(int)
        self.lines: dict[int, Counter[str]] = defaultdict(Counter)
        self.inflight: Counter[int] = Counter()
        self.log_line = {"read_only": 0}

    def get(self, name: str) -> int:
        return self.words[name]

    def add_worker(self, number: int, name: str, value: int = 1) -> None:
        self.lines[number][name] += value

    def worker(self, number: int) -> Counter[str]:
        return self.lines[number]

    def shard(self, number: int) -> dict[str, Any]:
        line: dict[str, Any] = defaultdict(int, self.log_line if number == 0 else {})
        line["fsync_bucket"] = [0] * 9 + [3 if number == 0 else 0] + [0] * 14
        return line

    def inflight_enter(self, number: int, key: int, limit: int) -> bool:
        if self.inflight[key] >= limit:
            return False
        self.inflight[key] += 1
        return True

    def inflight_leave(self, number: int, key: int) -> None:
        self.inflight[key] -= 1


class Backend:
    """Writer, reader, order and line in one: topics are lists of records by name, slots are places in `slots`."""

    def __init__(self) -> None:
        self.words = Words()
        self.slots: list[str] = []
        self.topics: dict[str, dict[str, Any]] = {}
        self.ids = 0
        self.sent: list[tuple[str, Any]] = []  # what reached the writer
        self.waiting: list[tuple[int, Any]] = []  # answers that are due
        self.dirty_slots: list[int] | None = []
        self.watched: set[int] = set()
        self.hold = False  # answer nothing
        self.busy = 0  # so many claims find the ring full
        self.refuse: list[tuple[Outcome, tuple[int, ...]]] = []  # how the next appends end
        self.calls: Calls | None = None
        self.bell = os.eventfd(0, os.EFD_NONBLOCK)

    # the line

    def fileno(self) -> int:
        return self.bell

    def append(self, slot: int, topic_id: int, write: Any, header_key: bytes | None = None) -> int:
        self._claim()
        self.sent.append(("append", (slot, topic_id, write.count, write.key or header_key)))
        if self.refuse:
            outcome, values = self.refuse.pop(0)
            return self._answer(status=outcome, values=(*values, 0, 0, 0, 0)[:4])
        return self._append(self.slots[slot], write, False)

    def call(self, text: bytes, write: Any = None, header_key: bytes | None = None) -> int:
        self._claim()
        command = json.loads(text)
        self.sent.append((command["op"], command))
        if self.refuse and write is not None:
            outcome, values = self.refuse.pop(0)
            return self._answer(status=outcome, values=(*values, 0, 0, 0, 0)[:4])
        if command["op"] == "group.metrics":
            return self._json({"ok": {"groups": [], "total": 0, "truncated": False}})
        name, known = command["topic"], command["topic"] in self.topics
        match command["op"]:
            case "topic.put":
                topic = self.make(name, command["config"])
                return self._json({"ok": {"created": not known, "config": topic["config"], "epoch": topic["id"]}})
            case "topic.delete":
                if known and command["if_empty"] and self.topics[name]["records"]:
                    return self._json({"error": {"code": "topic_not_empty", "message": "no", "detail": {"count": 1}}})
                self.topics.pop(name, None)
                return self._json({"ok": {"deleted": known, "routers_removed": []}})
            case "records.delete":
                if not known:
                    return self._json({"error": {"code": "topic_not_found", "message": "no"}})
                return self._json({"ok": {"deleted": 0, "earliest_seq": 1, "head_seq": 0, "count": 0, "bytes": 0}})
            case _:
                self.make(name, command["config"] or {})
                return self._append(name, write, not known)

    def make(self, name: str, config: dict[str, Any] | None = None) -> dict[str, Any]:
        if name not in self.topics:
            self.ids += 1
            self.slots.append(name)
            self.topics[name] = {"id": self.ids, "slot": len(self.slots) - 1, "records": 0}
        self.topics[name]["config"] = {"type": "log"} | {k: v for k, v in (config or {}).items() if v is not None}
        return self.topics[name]

    def _claim(self) -> None:
        from topicsd._native.port import Busy

        if self.busy:
            self.busy -= 1
            self.ring()
            raise Busy

    def _append(self, name: str, write: Any, created: bool) -> int:
        topic = self.topics[name]
        first = topic["records"] + 1
        topic["records"] += write.count
        self.move(name)
        return self._answer(flags=CREATED * created, first_seq=first, head=topic["records"], count=write.count)

    def move(self, name: str) -> None:
        """Tell those who watch the topic."""
        slot = self.topics[name]["slot"]
        if slot in self.watched and self.dirty_slots is not None:
            self.watched.discard(slot)
            self.dirty_slots.append(slot)
            self.ring()

    def _json(self, body: dict[str, Any]) -> int:
        return self._answer(status=Outcome.JSON, payload=json.dumps(body).encode())

    def _answer(self, **members: Any) -> int:
        token = len(self.sent)
        plain = {
            "status": Outcome.OK,
            "flags": 0,
            "first_seq": 0,
            "head": 0,
            "count": 0,
            "wal_us": 7,
            "fsync_us": 0,
            "values": (0,) * 4,
            "payload": b"",
        }
        self.waiting.append((token, SimpleNamespace(**plain | members)))
        self.ring()
        return token

    def ring(self) -> None:
        os.eventfd_write(self.bell, 1)

    def drain(self, callback: Any) -> int:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.bell)
        if self.hold:
            return 0
        due, self.waiting = self.waiting, []
        for token, completion in due:
            callback(token, completion)
        return len(due) + bool(self.busy)

    def dirty(self) -> list[int] | None:
        slots, self.dirty_slots = self.dirty_slots, []
        return slots

    def watch(self, slot: int) -> None:
        self.watched.add(slot)

    def unwatch(self, slot: int) -> None:
        self.watched.discard(slot)

    # the reader

    def find(self, name: bytes) -> int | None:
        topic = self.topics.get(name.decode("latin-1"))
        return None if topic is None else topic["slot"]

    def topic_id(self, slot: int) -> int:
        topic = self.topics.get(self.slots[slot])
        return 0 if topic is None else topic["id"]

    def diff(self, slot: int, request: Any, now_ms: int, started_ns: int = 0, topic_id: int = 0) -> tuple[bytes, bool, int]:
        from topicsd._native.reader import Gone

        topic = self.topics.get(self.slots[slot])
        if topic is None or (topic_id and topic["id"] != topic_id):
            raise Gone
        seqs = list(range(request.from_seq + 1, topic["records"] + 1))
        body = {"records": seqs, "performance": {"server_total_ms": 0.1}, "padding": "x" * 10 * len(seqs)}
        return json.dumps(body).encode(), not seqs, topic["records"]

    def state(self, slot: int, now_ms: int, touch: bool = True, started_ns: int = 0) -> bytes:
        return json.dumps({"topic": self.slots[slot], "touch": touch, "performance": {"server_total_ms": 0.1}}).encode()

    def summary(self, slot: int, now_ms: int) -> dict[str, Any]:
        topic = self.topics[self.slots[slot]]
        return {"topic": self.slots[slot], "head_seq": topic["records"], "earliest_seq": 1, "count": topic["records"], "bytes": 0}

    def config(self, slot: int) -> dict[str, Any]:
        return self.topics[self.slots[slot]]["config"]

    def touch(self, slot: int, now_ms: int) -> None: ...

    def page(self, prefix: bytes, after: bytes | None, limit: int) -> list[tuple[int, bytes]]:
        names = sorted(name.encode() for name in self.topics)
        kept = [name for name in names if name.startswith(prefix) and (after is None or name > after)]
        return [(self.topics[name.decode()]["slot"], name) for name in kept[:limit]]


class Answer(SimpleNamespace):
    """One response."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        assert set(self.json) == {"error"} and set(self.json["error"]) <= {"code", "message", "detail"}, self.body
        return self.status, self.json["error"]["code"]

    @property
    def detail(self) -> dict[str, Any]:
        return self.json["error"].get("detail", {})


class House:
    """The door with a backend behind it, on the running loop."""

    def __init__(self, keys: str = "", **settings: Any) -> None:
        self.backend = Backend()
        self.words = self.backend.words
        polls = Polls(self.backend)
        backend: Any = self.backend
        words: Any = self.words
        self.context = Context(
            settings=Settings(**settings),
            keyring=Keyring.parse(keys),
            shared=words,
            ring=0,
            reader=backend,
            order=backend,
            calls=Calls(words, backend, polls),
            polls=polls,
            budget=Budget(1 << 30),
            started_ns=0,
        )
        self.door = Door(self.context)
        self.context.calls.open(asyncio.get_running_loop())

    def close(self) -> None:
        self.context.calls.close(asyncio.get_running_loop())
        os.close(self.backend.bell)

    async def ask(self, method: str, path: str, body: Any = None, leave: asyncio.Event | None = None, **headers: str | None) -> Answer:
        """Send one request. body: bytes, a JSON value, or a list of pieces, of which None stands for the client's disconnect."""
        return await ask(self.door, method, path, body, leave, **headers)


async def ask(app: Any, method: str, path: str, body: Any = None, leave: asyncio.Event | None = None, **headers: str | None) -> Answer:
    """Drive an ASGI application with one request."""
    if body is not None and not isinstance(body, bytes | list):
        body = json.dumps(body).encode()
    pieces = body if isinstance(body, list) else [body or b""]
    plain: dict[str, str | None] = (
        {} if body is None else {"content-type": "application/json", "content-length": str(sum(len(each or b"") for each in pieces))}
    )
    sent = {"host": "door"} | plain | {name.replace("_", "-"): value for name, value in headers.items()}
    raw_path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": raw_path,
        "raw_path": raw_path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "headers": [(name.encode(), value.encode()) for name, value in sent.items() if value is not None],
    }
    left = list(pieces)
    gone = leave or asyncio.Event()
    events: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        if not left:
            await gone.wait()
            return {"type": "http.disconnect"}
        piece = left.pop(0)
        if piece is None:
            gone.set()
            left.clear()
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": bool(left)}

    async def send(event: dict[str, Any]) -> None:
        events.append(event)

    await app(scope, receive, send)
    start = next(event for event in events if event["type"] == "http.response.start")
    out = b"".join(event.get("body", b"") for event in events if event["type"] == "http.response.body")
    return Answer(status=start["status"], headers={name.decode(): value.decode() for name, value in start["headers"]}, body=out, unread=len(left))
