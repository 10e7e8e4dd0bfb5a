"""A worker's feed on its event loop: when it runs, ticks, follows new topics of patterns, meets a new writer, shuts down (ARCHITECTURE §8).

What is delivered to whom is _native/feed.pyx.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import structlog

from topicsd import errors, limits
from topicsd._native.feed import Feed, Stream, View
from topicsd._native.sessions import MEMBER
from topicsd.api.context import Context
from topicsd.api.pressure import Behind, Pressure, Signs
from topicsd.api.watching import matching

log = structlog.get_logger("feed")

TICK_S = 0.1  # heartbeats, slow consumers, lost leases
DISCOVER_S = 0.02  # how late a new topic of a pattern is noticed, at most
KERNEL_S = 0.01  # how often the kernel is asked whether a full socket has room again
STRONG_S = 0.002  # how often the durable head is looked at while somebody waits for it
BUSY_S = 0.005  # the writer was in the way
SWEEP_S = 1.0  # between two sweeps of idle sessions


class Pattern:
    """All streams that follow one prefix, and the topics it had when they were told last."""

    def __init__(self) -> None:
        self.known: dict[bytes, int] = {}  # name -> topic id
        self.streams: dict[Stream, View] = {}


class FeedLoop:
    """Drive one worker's feed."""

    def __init__(self, context: Context, port: Any, reader: Any) -> None:
        self.context = context
        self.native = Feed(port, reader, context.sessions, context.ring, slow_ms=limits.SLOW_CONSUMER_MS_MAX)
        self.pressure = Pressure()
        self._port = port
        self._poked, self._ring = context.sessions.poked, context.ring
        self._behind = Behind()
        self._tick_due_s: float | None = None
        context.calls.priority_of = self._priority_of
        context.calls.count_parked = lambda us: context.meters.parked(context.ring, us)
        self._patterns: dict[bytes, Pattern] = {}
        self._names_version = -1
        self._generation = context.shared.generation
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due: asyncio.Handle | None = None
        self._busy_since: float | None = None  # the feed has had something to serve since then
        self._next_sweep = 0.0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.tell_time()

    # ---- the loop

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start."""
        self._loop = loop
        self.context.calls.news = self.ring
        self.context.polls.keeps = self.native.watches
        self._tick()

    def tell_time(self) -> None:
        """Set the feed's clocks."""
        self.native.clock(time.monotonic_ns(), time.time_ns() // 1_000_000)

    def ring(self, slots: list[int] | None, budget_ns: int = limits.FEED_SLICE_MS_MAX * 1_000_000) -> None:
        """Take the writer's news, and deliver at once, for so long at most."""
        if self._poked(self._ring):
            self.native.taken()
        if slots is None or slots:
            self._meet_writer()
            self.native.dirty(slots)
            if self.native.waiting and self._due is None:
                self.turn(budget_ns)

    def turn(self, budget_ns: int = limits.FEED_SLICE_MS_MAX * 1_000_000) -> None:
        """Serve topics for a slice of time; go on in the loop's next turn when there are more."""
        self._due = None
        self.tell_time()
        more = self.native.run(budget_ns)
        loop = self._loop
        if loop is None or self._due is not None:
            return
        if not (more and self.native.can_serve) or self.native.busy:
            self._busy_since = None
        elif self._busy_since is None:
            self._busy_since = loop.time()
        if more and self.native.busy:
            self._due = loop.call_later(BUSY_S, self.turn)
        elif more and self.native.can_serve:
            self._due = loop.call_soon(self.turn)
        if self.native.full_streams:
            self._later("kernel", KERNEL_S, self._look_at_kernel)
        if self.native.strong_topics:
            self._later("strong", STRONG_S, self._look_at_durable_heads)

    def _later(self, what: str, delay_s: float, run: Any) -> None:
        if what not in self._timers and self._loop is not None:
            self._timers[what] = self._loop.call_later(delay_s, run)

    def _look_at_kernel(self) -> None:
        self._timers.pop("kernel", None)
        self.tell_time()
        self.native.look_at_kernel()
        self.turn()

    def _look_at_durable_heads(self) -> None:
        self._timers.pop("strong", None)
        self.native.strong_look()
        self.turn()

    def _meet_writer(self) -> None:
        shared = self.context.shared
        if shared.generation != self._generation and shared.ready:
            self._generation = shared.generation
            self._names_version = -1
            self.tell_time()
            self.native.restart()

    def _tick(self) -> None:
        loop = self._loop
        assert loop is not None
        self.tell_time()
        try:
            self._meet_writer()
            self.native.tick()
            self.context.calls.news_first = bool(self.native.streams)
            streams = max(len(self.native.streams), 1)
            self.native.share = min(max(limits.STREAMS_BYTES_MAX // streams, limits.STREAM_BYTES_MIN), limits.STREAM_BYTES_MAX)
            self._feel_pressure(loop.time())
            if self.native.waiting and self._due is None:
                self.turn()
        except Exception:
            log.exception("a tick of the feed failed")
        self._tick_due_s = loop.time() + TICK_S
        loop.call_at(self._tick_due_s, self._tick)

    def _feel_pressure(self, now_s: float) -> None:
        """Go up or down the ladder; let low bands wait and say so to those who watch them (D §3, A §7.5)."""
        context, pressure = self.context, self.pressure
        behind_ms = 0.0
        if context.shared.ready:
            done, sent = self._port.cursors
            behind_ms = self._behind.look(done, sent, now_s)
        else:
            self._behind.forget()
        busy_ms = 0.0 if self._busy_since is None else (now_s - self._busy_since) * 1000
        lag_ms = 0.0 if self._tick_due_s is None else max(now_s - self._tick_due_s, 0.0) * 1000
        late_ms = self.native.oldest_ms(pressure.BANDS[pressure.REFUSE]) if busy_ms else 0
        level = pressure.feel(Signs(busy_ms, late_ms, behind_ms, lag_ms))
        self.native.band_least = pressure.band_least
        context.calls.press(pressure.write_band_least, pressure.retry_after_ms)
        if context.settings.front == "native":
            self._port.write_band_least = pressure.write_band_least
        context.meters.pressed(context.ring, level, int(behind_ms), self.native.waiting)
        if level < pressure.ADVISE:
            return
        for stream in list(self.native.streams):
            if self.native.now_ns - stream.advised_ns < self.pressure.ADVISE_EVERY_MS * 1_000_000:
                continue
            if topics := stream.paced(self.native.band_least):
                stream.advise(self.pressure.retry_after_ms, topics, "watch throttled under CPU pressure")

    def _priority_of(self, slot: int) -> int:
        try:
            return int(self.context.reader.summary(slot, self.context.now_ms)["effective_priority"])
        except Exception:  # it has just gone: whoever appends finds out
            return 0

    # ---- patterns

    def follow_pattern(self, stream: Stream, prefix: bytes, view: View, *, from_seq: int = 0) -> bool:
        """Let a stream follow all topics with a prefix, new ones from their start. False: more match than one session may follow."""
        pattern = self._patterns.setdefault(prefix, Pattern())
        pattern.streams[stream] = view
        known = set(stream.names())
        fits = True
        for name in matching(self.context, prefix):
            if name not in known:
                fits = self._join(stream, name, view, from_seq) and fits
        self._names_version = -1
        self._later("discover", DISCOVER_S, self._discover)
        return fits

    def forget_pattern(self, stream: Stream, prefix: bytes) -> None:
        """Follow no new topics of a prefix."""
        if pattern := self._patterns.get(prefix):
            pattern.streams.pop(stream, None)

    def _join(self, stream: Stream, name: bytes, view: View, from_seq: int = 0) -> bool:
        place = self.context.place(name)
        return place is None or stream.add(name, place[1], from_seq, view, flags=MEMBER)

    def _discover(self) -> None:
        self._timers.pop("discover", None)
        for prefix, pattern in list(self._patterns.items()):
            for stream in [each for each in pattern.streams if each.closed]:
                del pattern.streams[stream]
            if not pattern.streams:
                del self._patterns[prefix]
        if not self._patterns:
            return
        self._later("discover", DISCOVER_S, self._discover)
        version = self.context.shared.get("names_version")
        if version == self._names_version or not self.context.shared.ready:
            return
        self._names_version = version
        self.tell_time()
        try:
            for prefix, pattern in self._patterns.items():
                self._look_at_names(prefix, pattern)
        except errors.NotReady:
            self._names_version = -1
        if self.native.waiting and self._due is None:
            self.turn()

    def _look_at_names(self, prefix: bytes, pattern: Pattern) -> None:
        now = {name: place[1] for name in matching(self.context, prefix) if (place := self.context.place(name)) is not None}
        changed = [name for name, topic_id in now.items() if pattern.known.get(name) != topic_id]
        pattern.known = now
        for name in changed:
            for stream, view in pattern.streams.items():
                following = stream.following(name)
                if following is None:
                    if not self._join(stream, name, view):
                        stream.advise(1000 * limits.RETRY_AFTER_S, [name.decode()], f"a session follows at most {limits.PATTERN_TOPICS_MAX} topics")
                elif following == 0:
                    stream.again(name)
                elif following != now[name]:  # the old one's end is not told yet: come back
                    pattern.known.pop(name, None)
                    self._names_version = -1

    # ---- sessions

    def sweep(self, at_once: bool = False) -> None:
        """Remove sessions that nobody reads, at most once a second (A §7.1)."""
        now = time.monotonic()
        if at_once or now >= self._next_sweep:
            self._next_sweep = now + SWEEP_S
            self.context.sessions.sweep(self.context.now_ms, self.context.settings.session_ttl_ms)

    def shut_down(self) -> None:
        """Tell every stream that the server ends (503), and close it."""
        self.tell_time()
        for stream in list(self.native.streams):
            stream.end(503, "the server is shutting down")
