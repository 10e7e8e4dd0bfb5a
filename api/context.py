"""What every route of a worker shares."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from topicsd import errors, limits
from topicsd._native.meters import Meters
from topicsd._native.regions import Shared
from topicsd._native.scan import Diff, Limits
from topicsd.api.auth import Keyring
from topicsd.api.calls import Calls
from topicsd.api.cold import looked_at
from topicsd.api.exchange import Budget, Exchange
from topicsd.api.polls import Polls, Turns
from topicsd.figures import Figures
from topicsd.metrics import limit_number
from topicsd.settings import Settings
from topicsd.topic_config import check_topic_name


class ReaderFace(Protocol):
    """What is used of topicsd._native.reader.Reader."""

    def find(self, name: bytes) -> int | None: ...
    def diff(self, slot: int, request: Diff, now_ms: int, started_ns: int = 0, topic_id: int = 0) -> tuple[bytes, bool, int]: ...
    def diff_range(
        self, slot: int, request: Diff, first: int, last: int, now_ms: int, started_ns: int = 0, topic_id: int = 0
    ) -> tuple[bytes, bool, int]: ...
    def sweep(self) -> int: ...
    def live_after(self, slot: int, seq: int, now_ms: int, topic_id: int = 0) -> tuple[int, int, int]: ...
    def seq_at(self, slot: int, ts: int, now_ms: int) -> int: ...
    def state(self, slot: int, now_ms: int, touch: bool = True, started_ns: int = 0) -> bytes: ...
    def summary(self, slot: int, now_ms: int) -> dict[str, Any]: ...
    def config(self, slot: int) -> dict[str, Any]: ...
    def touch(self, slot: int, now_ms: int) -> None: ...
    def topic_id(self, slot: int) -> int: ...


class OrderFace(Protocol):
    """What is used of topicsd._native.order.Order."""

    def page(self, prefix: bytes, after: bytes | None, limit: int) -> list[tuple[int, bytes]]: ...


def write_limits_of(settings: Settings) -> Limits:
    """Return the limits that the scanner holds a write to."""
    return Limits(
        max_records=settings.max_batch_records,
        max_record_bytes=settings.max_record_bytes,
        max_meta_bytes=settings.max_meta_bytes,
        max_tag_bytes=settings.max_tag_bytes,
        max_node_bytes=settings.max_node_bytes,
        max_meta_keys=limits.META_KEYS_MAX,
        max_key_chars=limits.KEY_CHARS_MAX,
        max_depth=limits.DEPTH_MAX,
    )


T = TypeVar("T")


@dataclass
class Context:
    """Bundle the shared memory, the line to the writer and the rules of this server."""

    settings: Settings
    keyring: Keyring
    shared: Shared
    ring: int  # this worker's ring slot
    reader: ReaderFace
    order: OrderFace
    calls: Calls
    polls: Polls
    budget: Budget
    started_ns: int  # when the server started, CLOCK_MONOTONIC
    sessions: Any = None  # topicsd._native.sessions.Sessions
    claim_turns: Turns = field(default_factory=Turns)  # who of this worker may look for jobs of a queue
    work_streams: dict[bytes, Any] = field(default_factory=dict)  # topicsd.api.work.QueueStreams by queue
    feed: Any = None  # topicsd.api.feed.FeedLoop; both are there in every worker
    draining: bool = False
    meters: Meters = field(default_factory=lambda: Meters(64))  # of all workers, where the arbiter has made them
    cold: Any = None  # topicsd.api.cold.ColdTier; in every worker
    figures: Figures = field(default_factory=Figures)  # of writer and keeper
    ring_depths: Callable[[], list[int]] = list
    leases_in_flight: Callable[[], int] = int
    routes: dict[str, Any] = field(default_factory=dict)  # resources by their path, for commands of a WebSocket
    sockets: Any = None  # api.socket.Sockets
    write_limits: Limits = field(init=False)

    def __post_init__(self) -> None:
        self.write_limits = write_limits_of(self.settings)

    def count_refusal(self, error: errors.TopicsError) -> None:
        """Count a 429 by what was reached."""
        if error.code == "throttled":
            self.meters.limit(self.ring, limit_number(error.detail))

    @property
    def now_ms(self) -> int:
        """Return the wall clock in milliseconds."""
        return time.time_ns() // 1_000_000

    @property
    def uptime_ms(self) -> int:
        """Return how long the server runs."""
        return (time.monotonic_ns() - self.started_ns) // 1_000_000

    async def read(self, read: Callable[[], T]) -> T:
        """Do a read of records, with what it lacks of the cold tier. Raises ColdUnavailable, and what the read raises.

        One that meets damage which nobody has met before waits until the keeper has looked at it, and then tells what is lost.
        """
        if self.cold is None:
            return read()
        try:
            result: T = await self.cold.read(read)
        except errors.Unread:
            if not await looked_at(self.shared, self.figures):
                raise
            result = await self.cold.read(read)
        return result

    def check_ready(self) -> None:
        """Raise ShuttingDown while the server drains and NotReady while the writer replays."""
        if self.draining or self.shared.draining:
            raise errors.ShuttingDown("the server is shutting down")
        if not self.shared.ready:
            raise errors.NotReady("the writer replays its log", {"replay_progress": self.replay_progress})

    @property
    def replay_progress(self) -> float:
        """Return 0.0 to 1.0."""
        return self.shared.get("replay_permille") / 1000

    def topic(self, exchange: Exchange) -> str:
        """Return the path's topic name. Raises Invalid when it breaks the rule."""
        return check_topic_name(exchange.topic)

    def place(self, name: bytes) -> tuple[int, int] | None:
        """Find a topic: (slot, topic id), None where it is absent.

        A slot may be given to another topic between two looks, so the name is looked up again after its id was read. An id is never used
        twice: one that is out of date is noticed by whoever gets it.
        """
        slot = self.reader.find(name)
        while slot is not None:
            topic_id = self.reader.topic_id(slot)
            again = self.reader.find(name)
            if again == slot and topic_id:
                return slot, topic_id
            slot = again
        return None
