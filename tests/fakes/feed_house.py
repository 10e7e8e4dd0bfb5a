"""The feed without a server: the engine as a library, a fake clock, sinks that record, readers that stall when told to."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from fakes.clock import FakeClock
from fakes.in_process import Library
from topicsd._native.feed import SSE, Feed, Stream
from topicsd._native.port import Port
from topicsd._native.sessions import Sessions


class Sink:
    """Take what a stream writes; while `stalled`, hold it as a transport does."""

    def __init__(self) -> None:
        self.data = b""
        self.pending = b""
        self.stalled = False
        self.writes = 0
        self.ended: tuple[int, str] | None = None
        self.stream: Stream | None = None
        self.parsed = 0

    def write(self, data: bytes) -> int:
        self.writes += 1
        if self.stalled:
            self.pending += data
        else:
            self.data += data
        return len(self.pending)

    def held(self) -> int:
        return len(self.pending)

    def end(self, code: int, message: str) -> None:
        self.ended = code, message

    def flow(self) -> None:
        """Read again."""
        self.stalled = False
        self.data += self.pending
        self.pending = b""
        if self.stream is not None:
            self.stream.drained()

    def events(self) -> list[dict[str, Any]]:
        """Return the named events since the last call: {"event", "id", **data}."""
        found = []
        blocks = self.data[self.parsed :].split(b"\n\n")
        self.parsed = len(self.data)
        assert blocks[-1] == b"", "an event is not whole"
        for block in blocks[:-1]:
            lines = block.decode().split("\n")
            event = {}
            for line in lines:
                name, _, value = line.partition(": ")
                if name == "id":
                    event["id"] = decoded(value)
                elif name == "event":
                    event["event"] = value
                elif name == "data":
                    event |= json.loads(value)
            if "event" in event:
                found.append(event)
        return found

    def brief(self) -> list[tuple[Any, ...]]:
        """Return (event, topic, seqs or what it says) of the events since the last call."""
        short: list[tuple[Any, ...]] = []
        for event in self.events():
            match event["event"]:
                case "record":
                    short.append(("record", event["topic"], [record["$seq"] for record in event["records"]]))
                case "tombstone":
                    short.append(("tombstone", event["topic"], event["reason"], event["gap_from"], event["gap_to"]))
                case "error":
                    short.append(("error", event["code"]))
                case _:
                    short.append((event["event"], event["topic"], event["head_seq"]))
        return short


def decoded(text: str) -> dict[str, Any]:
    """Return what an id says."""
    value: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return value


class FeedHouse:
    """One worker's feed over a library; `turn` is what a loop's turn does."""

    def __init__(self, directory: Path, sessions_max: int = 16, **options: Any) -> None:
        self.clock = FakeClock()
        self.engine_house = Library(str(directory), self.clock, **options)
        shared = self.engine_house.shared
        self.ring = shared.assign_ring()
        self.engine_house.sequencer.adopt_rings()
        self.port = Port(shared, self.ring)
        self.sessions = Sessions.create(shared, sessions_max)
        self.feed = Feed(self.port, self.engine_house.reader, self.sessions, self.ring)
        self.tell_time()

    def tell_time(self) -> None:
        self.feed.clock(self.clock.mono_ms() * 1_000_000, self.clock.wall_ms())

    def epoch(self, name: str) -> int:
        return int(self.engine_house.state(name)["epoch"])

    def session(self, topics: dict[str, int], **view: Any) -> str:
        """Make a session of topics and where to begin; return its wid."""
        rows = [(name.encode(), self.epoch(name), seq, 0) for name, seq in topics.items()]
        wid = self.sessions.make(self.ring, self.clock.wall_ms(), -1, None, json.dumps(view).encode(), rows)
        assert wid is not None
        return wid

    def follow(self, topics: dict[str, int] | str, **view: Any) -> Sink:
        """Open a stream, of a new session or of a wid."""
        wid = topics if isinstance(topics, str) else self.session(topics, **view)
        session = self.sessions.open(wid, self.ring, self.clock.wall_ms())
        assert session is not None
        session.begin()
        sink = Sink()
        sink.stream = self.feed.stream(sink, -1, SSE, session)
        sink.stream.open(b"", 15_000)
        sink.stream.follow_rows(self.feed.view(SSE, **(view or json.loads(session.options))))
        self.turn()
        return sink

    def turn(self) -> None:
        """Do what is due: news from the writer, topics that wait."""
        self.tell_time()
        self.port.drain(lambda token, answer: None)
        self.feed.dirty(self.port.dirty())
        while self.feed.run():
            if self.feed.busy:
                break

    def append(self, name: str, *values: Any, **members: Any) -> None:
        self.engine_house.append(name, [{"data": value, **members} for value in values])
        self.turn()
