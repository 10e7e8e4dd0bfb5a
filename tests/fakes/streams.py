"""Clients of event streams, read by hand: a blocking one, and one for asyncio that resumes after every cut."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import socket
import struct
from abc import ABC, abstractmethod
from collections import deque
from typing import Any

from fakes.server import PATIENCE_S, Server


class Blocks:
    """Turn bytes into events: {"event", "data", "id"}, and {"id"} for the block that has nothing else; comments are left out."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Return the events that are whole now."""
        *blocks, self.rest = (self.rest + data).split(b"\n\n")
        found = []
        for block in blocks:
            fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if line and not line.startswith(b":"))
            event: dict[str, Any] = {}
            if b"data" in fields:
                event = {"event": fields[b"event"].decode(), "data": json.loads(fields[b"data"])}
            if b"id" in fields:
                event["id"] = fields[b"id"].decode()
            if event:
                found.append(event)
        return found


class Chunks:
    """Take the chunked encoding off, that a proxy may have put on."""

    def __init__(self) -> None:
        self.rest = b""
        self.left = 0  # of the chunk that has begun, with the line end behind it

    def feed(self, data: bytes) -> bytes:
        """Return what the chunks carry."""
        self.rest += data
        out = b""
        while self.rest:
            if self.left:
                piece = self.rest[: self.left]
                self.rest = self.rest[len(piece) :]
                out += piece[: max(self.left - 2, 0)]
                self.left -= len(piece)
                continue
            size, found, rest = self.rest.partition(b"\r\n")
            if not found:
                break
            self.rest, self.left = rest, int(size.split(b";")[0], 16) + 2
        return out


def opening(wid: str, last_id: str | None = None) -> bytes:
    """Encode the request that opens a stream."""
    resumed = f"Last-Event-ID: {last_id}\r\n" if last_id else ""
    return f"GET /v0/watch/{wid} HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n{resumed}\r\n".encode()


class Stream:
    """One stream on a blocking socket."""

    def __init__(self, server: Server, wid: str, last_id: str | None = None, receive_bytes: int = 0) -> None:
        self.line = socket.socket()
        if receive_bytes:
            self.line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.line.settimeout(PATIENCE_S)
        self.line.connect(server.address)
        self.line.sendall(opening(wid, last_id))
        self.blocks = Blocks()
        self.chunks: Chunks | None = None
        self.pending: list[dict[str, Any]] = []
        self.last_id: str | None = last_id
        head = b""
        while b"\r\n\r\n" not in head:
            head += self._more()
        head, _, rest = head.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and b"text/event-stream" in head, head
        if b"transfer-encoding: chunked" in head.lower():
            self.chunks = Chunks()
            rest = self.chunks.feed(rest)
        self.pending += self.blocks.feed(rest)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.line.close()

    def _more(self) -> bytes:
        piece = self.line.recv(1 << 16)
        if not piece:
            raise ConnectionError("the stream has ended")
        return piece if self.chunks is None else self.chunks.feed(piece)

    def next(self, *names: str) -> tuple[str, Any]:
        """Return (event, data) of the next event, of these names where there are any."""
        while True:
            while not self.pending:
                self.pending += self.blocks.feed(self._more())
            event = self.pending.pop(0)
            self.last_id = event.get("id", self.last_id)
            if "event" in event and (not names or event["event"] in names):
                return event["event"], event["data"]

    def seqs(self, count: int) -> list[int]:
        """Return the seqs of the next `count` records or more."""
        found: list[int] = []
        while len(found) < count:
            found += [record["$seq"] for record in self.next("record")[1]["records"]]
        return found


def watch(server: Server, topics: dict[str, Any], **options: Any) -> str:
    """Make a session."""
    status, body = server.ask("POST", "/v0/watch", {"topics": topics, **options})
    assert status == 200, body
    return str(body["wid"])


class Persistent(ABC):
    """Come again after each broken connection, until `done`."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Tell whether all that is wanted has come."""

    @abstractmethod
    async def _once(self) -> None: ...

    async def run(self) -> None:
        """Go on until everything is done."""
        while not self.done:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._once()
            await asyncio.sleep(0.002)


class Follower(Persistent):
    """Follow one session to a last seq of each topic, over as many connections as it takes; what a topic's records were is in `seqs`."""

    def __init__(self, wid: str, address: Any, ends: dict[str, int]) -> None:
        self.wid = wid
        self.address = address  # () -> (host, port)
        self.ends = ends
        self.seqs: dict[str, list[int]] = {topic: [] for topic in ends}
        self.tombstones: list[dict[str, Any]] = []
        self.errors: list[int] = []
        self.last_id: str | None = None
        self.connections = 0
        self.refused: set[int] = set()  # statuses but 200

    @property
    def done(self) -> bool:
        return all(self.seqs[topic] and self.seqs[topic][-1] >= end for topic, end in self.ends.items())

    async def _once(self) -> None:
        reader, writer = await asyncio.open_connection(*self.address())
        self.connections += 1
        try:
            writer.write(opening(self.wid, self.last_id))
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                self.refused.add(int(head.split()[1]))
                await asyncio.sleep(0.02)
                return
            blocks = Blocks()
            while not self.done:
                piece = await reader.read(1 << 16)
                if not piece:
                    return
                for event in blocks.feed(piece):
                    self.take(event)
        finally:
            writer.transport.abort()

    def take(self, event: dict[str, Any]) -> None:
        """Take one event in: only what is whole counts, as for a browser."""
        self.last_id = event.get("id", self.last_id)
        if "event" not in event:
            return
        data = event["data"]
        if event["event"] == "record":
            self.seqs[data["topic"]] += [record["$seq"] for record in data["records"]]
        elif event["event"] == "tombstone":
            self.tombstones.append(data)
        elif event["event"] == "error":
            self.errors.append(data["code"])


# ---- WebSockets ----------------------------------------------------------------------------------------------------------------


def upgrade(path: str = "/v0/ws") -> bytes:
    """Encode a handshake."""
    fields = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg=="
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n".encode()


def client_frame(payload: bytes, opcode: int = 1) -> bytes:
    """Encode one frame of a client, masked."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack("!H", size) if size < 1 << 16 else b"\xff" + struct.pack("!Q", size)
    key = random.randbytes(4)
    mask = (key * (size // 4 + 1))[:size]
    return bytes([0x80 | opcode]) + length + key + (int.from_bytes(payload, "big") ^ int.from_bytes(mask, "big")).to_bytes(size, "big")


class Talker(Persistent):
    """Talk over WebSockets that break: one connection after the other, until `done`. Only whole messages count."""

    def __init__(self, address: Any) -> None:
        self.address = address  # () -> (host, port)
        self.connections = 0
        self.refused: set[int] = set()  # statuses but 101
        self.writer: asyncio.StreamWriter | None = None

    @abstractmethod
    def begin(self) -> None:
        """Say what comes first on a new connection."""

    @abstractmethod
    def take(self, message: dict[str, Any]) -> None:
        """Take one message in."""

    def say(self, command: dict[str, Any]) -> None:
        """Send a command, where there is a connection."""
        if self.writer is not None:
            self.writer.write(client_frame(json.dumps(command).encode()))

    async def _once(self) -> None:
        reader, writer = await asyncio.open_connection(*self.address())
        self.connections += 1
        try:
            writer.write(upgrade())
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 101"):
                self.refused.add(int(head.split()[1]))
                await asyncio.sleep(0.02)
                return
            self.writer = writer
            self.begin()
            while not self.done:
                first, size = await reader.readexactly(2)
                if size >= 126:
                    size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
                payload = await reader.readexactly(size)
                if first & 15 == 9:
                    writer.write(client_frame(payload, 10))
                elif first & 15 == 8:
                    return
                elif first & 15 == 1:
                    self.take(json.loads(payload))
        finally:
            self.writer = None
            writer.transport.abort()


class SocketFollower(Talker):
    """Follow topics up to their `ends`, subscribing each time behind what has come whole."""

    def __init__(self, address: Any, ends: dict[str, int], **options: Any) -> None:
        super().__init__(address)
        self.ends = ends
        self.options = options
        self.cursors = dict.fromkeys(ends, 0)
        self.seqs: dict[str, list[int]] = {topic: [] for topic in ends}
        self.tombstones: list[dict[str, Any]] = []
        self.errors: list[str] = []

    @property
    def done(self) -> bool:
        return all(self.cursors[topic] >= end for topic, end in self.ends.items())

    def begin(self) -> None:
        self.say({"op": "subscribe", "topics": {topic: {"from_seq": seq} for topic, seq in self.cursors.items()}, **self.options})

    def take(self, message: dict[str, Any]) -> None:
        if message["op"] == "record":
            assert message["from_seq"] >= self.cursors[message["topic"]]
            self.seqs[message["topic"]] += [record["$seq"] for record in message["records"]]
            self.cursors[message["topic"]] = message["to_seq"]
        elif message["op"] == "tombstone":
            self.tombstones.append(message)
            self.cursors[message["topic"]] = message["gap_to"]
        elif message["op"] == "error":
            self.errors.append(message["code"])
            raise ConnectionError("nothing is followed: begin again")


class SocketPublisher(Talker):
    """Publish numbered batches with idempotency keys, some ahead of their acks, and again what was not acked."""

    AHEAD = 4

    def __init__(self, address: Any, topic: str, batch: int) -> None:
        super().__init__(address)
        self.topic = topic
        self.batch = batch
        self.numbers = itertools.count()
        self.unacked: deque[int] = deque()
        self.acked = 0
        self.last = False  # nothing new is begun
        self.errors: list[str] = []

    @property
    def done(self) -> bool:
        return self.last and not self.unacked

    def begin(self) -> None:
        for number in self.unacked:
            self._publish(number)
        self._go_on()

    def _go_on(self) -> None:
        while len(self.unacked) < self.AHEAD and not self.last:
            self.unacked.append(next(self.numbers))
            self._publish(self.unacked[-1])

    def _publish(self, number: int) -> None:
        records = [{"data": [number, place]} for place in range(self.batch)]
        self.say({"op": "publish", "request_id": number, "topic": self.topic, "idempotency_key": f"{self.topic}/{number}", "records": records})

    def take(self, message: dict[str, Any]) -> None:
        if message["op"] == "ack":
            assert message["request_id"] == self.unacked[0], "acks come in the order of the publishes"
            self.unacked.popleft()
            self.acked += 1
            self._go_on()
        elif message["op"] == "error":
            assert message["code"] in ("not_ready", "throttled"), message
            self.errors.append(message["code"])
            raise ConnectionError("begin again, in order")
