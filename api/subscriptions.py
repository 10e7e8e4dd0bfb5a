"""What a WebSocket is subscribed to: topics and patterns, on one stream of the worker's feed (A §7.7, §7.2).

`subscribed` is written before the feed has its turn, so it stands before the first record; after `unsubscribed` nothing more of the topic comes.
"""

from __future__ import annotations

from typing import Any, Protocol

import orjson

from topicsd import errors, limits
from topicsd._native.feed import MESSAGE, WEBSOCKET, Stream, View
from topicsd._native.sessions import MEMBER
from topicsd.api.auth import Key
from topicsd.api.context import Context
from topicsd.api.gate import authorize
from topicsd.api.watching import Options, Position, Start, begin_at, check_name, check_names, matching, position_of, read_start, read_topics

Row = tuple[bytes, int, int, int]  # name, epoch, seq, flags


class Line(Protocol):
    """What is used of api.socket.Socket."""

    transport: Any
    stream: Any
    deflate: int


class Subscriptions:
    """Follow topics for one connection."""

    def __init__(self, context: Context, key: Key, line: Line) -> None:
        self._context = context
        self._key = key
        self._line = line
        self._patterns: set[bytes] = set()
        self._named: set[bytes] = set()

    # ---- subscribe -----------------------------------------------------------------------------------------------------------

    def add(self, members: dict[str, Any]) -> bytes:
        """Follow what a command names, and return the answer's body; `deliver` comes next. Raises Forbidden, Invalid, TopicNotFound, Throttled.

        A topic that is followed already begins again where this command says.
        """
        authorize(self._key, ("read",), b"")
        topics = self._topics(members)
        options = Options.read(members)
        check_names(self._key, topics)
        rows, positions = self._rows(topics)
        stream = self._stream()
        view = options.of(self._context.feed.native, stream.format)
        followed = set(stream.names())
        if len(followed | positions.keys()) > limits.PATTERN_TOPICS_MAX:
            raise errors.Throttled("max_subscriptions", limits.PATTERN_TOPICS_MAX)
        for name, epoch, seq, flags in rows:
            if name in followed:
                stream.remove(name)
            stream.add(name, epoch, seq, view, flags=flags)
        for asked in topics:
            if asked.endswith("*"):
                self._follow(stream, asked[:-1].encode(), view)
            else:
                self._named.add(asked.encode())
        shown = {
            name.decode(): {"from_seq": seq, "head_seq": positions[name].head, "earliest_seq": positions[name].earliest}
            for name, _epoch, seq, _flags in rows
        }
        return orjson.dumps({"topics": shown})

    def deliver(self) -> None:
        """Let the feed have its turn."""
        self._context.feed.turn()

    def _topics(self, members: dict[str, Any]) -> dict[str, Start]:
        topic, topics = members.get("topic"), members.get("topics")
        if topics is not None:
            return read_topics(topics, self._context.settings.max_watch_topics)
        if not isinstance(topic, str):
            raise errors.Invalid("topic", "a topic is needed")
        check_name(topic, "topic")
        return {topic: read_start({name: members.get(name) for name in ("from_seq", "tail")}, topic, "")}

    def _rows(self, topics: dict[str, Start]) -> tuple[list[Row], dict[bytes, Position]]:
        rows: list[Row] = []
        positions: dict[bytes, Position] = {}
        for name, start in topics.items():
            pattern = name.endswith("*")
            for each in matching(self._context, name[:-1].encode()) if pattern else (name.encode(),):
                position = None if each in positions else position_of(self._context, each)
                if position is not None:
                    positions[each] = position
                    rows.append((each, *begin_at(start, position, each.decode(), None), MEMBER if pattern else 0))
                elif not pattern:
                    raise errors.TopicNotFound(name)
        return rows, positions

    def _stream(self) -> Stream:
        line, feed = self._line, self._context.feed
        feed.tell_time()
        stream: Stream | None = line.stream
        if stream is None or stream.closed:
            line.transport.set_write_buffer_limits(high=0)  # resume_writing says when nothing is held any more
            fd = -1 if line.deflate else line.transport.get_extra_info("socket").fileno()
            stream = line.stream = feed.native.stream(line, fd, MESSAGE if line.deflate else WEBSOCKET)
        return stream

    def _follow(self, stream: Stream, prefix: bytes, view: View) -> None:
        if prefix in self._patterns:
            self._context.feed.forget_pattern(stream, prefix)
        self._patterns.add(prefix)
        self._context.feed.follow_pattern(stream, prefix, view)

    # ---- unsubscribe -----------------------------------------------------------------------------------------------------------

    def remove(self, members: dict[str, Any]) -> bytes:
        """Follow a topic, a pattern or several of both no more; one that is not followed is no error. Raises Invalid."""
        topic, topics = members.get("topic"), members.get("topics")
        names: list[Any] = [topic] if topics is None else list(topics) if isinstance(topics, dict | list) else [None]
        if not names or not all(isinstance(name, str) for name in names):
            raise errors.Invalid("topic" if topics is None else "topics", "expected the name of a topic")
        for name in names:
            check_name(name, "topic" if topics is None else "topics")
        if self._line.stream is not None:
            for name in names:
                self._forget(self._line.stream, name.encode())
        return orjson.dumps({"topic": topic} if topics is None else {"topics": names})

    def _forget(self, stream: Stream, name: bytes) -> None:
        if not name.endswith(b"*"):
            self._named.discard(name)
            stream.remove(name)
            return
        prefix = name[:-1]
        if prefix not in self._patterns:
            return
        self._patterns.discard(prefix)
        self._context.feed.forget_pattern(stream, prefix)
        others = tuple(self._patterns)
        for each in stream.names():
            if each.startswith(prefix) and each not in self._named and not each.startswith(others):
                stream.remove(each)
