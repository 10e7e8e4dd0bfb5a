"""The native front without a server: a loop that runs by hand, sockets of a pair, a writer that answers when it is told to, a lane that records."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fakes.laid import Log, lay
from oracle.diff_oracle import LIVE, Fate, Topic
from topicsd import limits
from topicsd._native.front import Front
from topicsd._native.hub import Hub
from topicsd._native.meters import Meters
from topicsd._native.reader import Reader
from topicsd._native.regions import Shared
from topicsd._native.ring_end import RingEnd
from topicsd._native.scan import Limits
from topicsd.api.front import Patience, Refusals


class Loop:
    """Keep what is to run, until `turn`."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []
        self.later: list[tuple[float, Callable[..., object]]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.soon.append(callback)

    def call_later(self, delay_s: float, callback: Callable[..., object], *arguments: Any) -> Any:
        entry = (delay_s, callback)
        self.later.append(entry)
        return SimpleNamespace(cancel=lambda: self.later.remove(entry) if entry in self.later else None)

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


class Transport:
    """One end of a socket pair; what it is given to write goes to the peer as far as there is room."""

    def __init__(self) -> None:
        self.own, self.peer = socket.socketpair()
        self.own.setblocking(False)
        self.peer.setblocking(False)
        self.reading = True
        self.closing = self.eof = self.aborted = False
        self.held = b""

    def get_extra_info(self, name: str) -> Any:
        return self.own

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        assert not self.eof, "a write behind write_eof"
        self.held += data
        self.push()

    def push(self) -> None:
        try:
            while self.held:
                self.held = self.held[self.own.send(self.held) :]
        except BlockingIOError:
            pass

    def get_write_buffer_size(self) -> int:
        return len(self.held)

    def is_closing(self) -> bool:
        return self.closing

    def write_eof(self) -> None:
        self.eof = True

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Lane:
    """Stand for gunicorn and Falcon."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.message = b""
        self.left = False
        self.has_answered = False  # and has not said yet that it is idle

    def data_received(self, data: bytes) -> None:
        self.message += data

    def answer(self, text: bytes) -> bytes:
        """Answer the message and return it."""
        message, self.message = self.message, b""
        self.front.transport.write(text)
        self.front.lane_is_idle()
        return message

    def connection_lost(self, exc: Exception | None) -> None:
        self.left = True

    def eof_received(self) -> bool:
        return not self.has_answered

    def client_has_finished(self) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class Client:
    """One connection, from the peer's side."""

    def __init__(self, house: FrontHouse) -> None:
        self.house = house
        self.transport = Transport()
        self.front = Front(house.hub)
        self.front.connection_made(self.transport)
        self.lane: Lane | None = None

    def send(self, data: bytes) -> None:
        """Let bytes arrive, as many at a time as the front's buffer takes."""
        while data:
            room = self.front.get_buffer(-1)
            piece, data = data[: len(room)], data[len(room) :]
            room[: len(piece)] = piece
            self.front.buffer_updated(len(piece))

    def received(self) -> bytes:
        """Take what has come back so far."""
        told = b""
        try:
            while piece := self.transport.peer.recv(1 << 20):
                told += piece
                self.transport.push()
        except BlockingIOError:
            pass
        return told

    def leave(self) -> None:
        self.front.connection_lost(None)
        self.transport.own.close()
        self.transport.peer.close()


class FrontHouse:
    """A hub over shared memory with one topic `t` of three records."""

    def __init__(self, folder: Path, keys: Any = (), **changed: Any) -> None:
        self.shared = Shared.create(topics_max=64, index_bytes=64 << 20, ephemeral_bytes=64 << 20, ring_slots=2, body_bytes_max=1 << 21)
        self.ring = self.shared.assign_ring()
        assert self.ring is not None
        self.shared.set("generation", 1)
        log = Log(self.shared, folder)
        fates = [Fate(LIVE, 1_000_000 + n, str(n), None, None, None, "mixed") for n in range(3)]
        self.slot = lay(self.shared, log, Topic("t", 7, 0, True, fates))
        self.shared.ready = True
        self.worker = SimpleNamespace(connections=set(), connections_max=1000, patience=Patience())
        self.loop = Loop()
        self.clients: list[Client] = []
        self.meters = Meters(self.shared.ring_slots)
        settings: dict[str, Any] = {
            "max_body_bytes": 1 << 20,
            "gzip_bytes_min": limits.GZIP_BYTES_MIN,
            "max_inflight_per_key": 0,
            "wait_ms_max": 30_000,
            "held_bytes_max": 1 << 24,
        }
        self.hub = Hub(
            self.shared,
            self.ring,
            worker=self.worker,
            reader=Reader(self.shared, str(folder), 1000),
            limits=Limits(),
            keys=keys,
            make_lane=self._make_lane,
            refusals=Refusals(),
            meters=self.meters,
            **(settings | changed),
        )
        self.hub.open(self.loop)  # type: ignore[arg-type]
        self.writer = RingEnd(self.shared, self.ring)
        self.cursor = self.writer.head
        self.seq = 3
        self.strays: list[int] = []

    def _make_lane(self, front: Front) -> Lane:
        client = next(client for client in self.clients if client.front is front)
        client.lane = Lane(front)
        return client.lane

    def connect(self) -> Client:
        """Open a connection."""
        client = Client.__new__(Client)
        self.clients.append(client)
        client.__init__(self)  # type: ignore[misc]
        return client

    def submitted(self) -> list[tuple[int, bytes]]:
        """Take what the writer has been sent: (token, payload)."""
        taken = []
        while self.cursor != self.writer.tail:
            entry = self.writer.peek_at(self.cursor)
            assert entry is not None
            taken.append((entry[0], entry[3]))
            self.cursor += 1
        return taken

    def answer(self, tokens: list[int], status: int = 0) -> None:
        """Let the writer answer these, with seqs that go on; everything submitted is released."""
        for token in tokens:
            self.seq += status == 0
            self.writer.push(token, status, self.seq if status == 0 else 0)
        self.writer.release(self.cursor)
        self.hub.drain(lambda token, completion: self.strays.append(token))
        self.loop.turn()

    def settle(self) -> list[bytes]:
        """Let writer and lanes answer until nothing moves; return what both were given."""
        given: list[bytes] = []
        while True:
            entries = self.submitted()
            if entries:
                given += [payload for _, payload in entries]
                self.answer([token for token, _ in entries])
                continue
            waiting = [client for client in self.clients if client.front.lane_has_all]
            for client in waiting:
                assert client.lane is not None
                given.append(client.lane.answer(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlane"))
            if not waiting:
                return given

    def poll_time_is_up(self) -> None:
        """Fire the polls' timer once their time is over."""
        time.sleep(2.002)  # above the wait of the tests' polls, which is long enough not to pass by itself on a busy machine
        self.hub.polls_due()

    def close(self) -> None:
        for client in self.clients:
            client.leave()
