from collections.abc import Callable
from typing import final

from topicsd._native.regions import Shared
from topicsd._native.scan import Write

UNKNOWN: int

class Busy(Exception):
    """There is no room in the ring, among the spill slots or for the answer: try again, or answer 429."""

class TooLarge(ValueError):
    """The encoded write fits into no spill slot."""

@final
class Completion:
    """Carry the writer's answer to one request: `status` is an OUTCOME_*, `flags` are COMPLETION_* (layout.h)."""

    @property
    def status(self) -> int: ...
    @property
    def flags(self) -> int: ...
    @property
    def first_seq(self) -> int: ...
    @property
    def head(self) -> int: ...
    @property
    def count(self) -> int: ...
    parked_us: int
    @property
    def wal_us(self) -> int: ...
    @property
    def fsync_us(self) -> int: ...
    @property
    def values(self) -> tuple[int, int, int, int]: ...
    @property
    def payload(self) -> bytes: ...

class Port:
    """Be the worker's end of a ring slot; one thread of one process."""

    def __init__(self, shared: Shared, ring_slot: int) -> None:
        """Adopt a slot that the arbiter has assigned. ValueError when it was not assigned or its last worker is not drained."""
    @property
    def ring_slot(self) -> int: ...
    def fileno(self) -> int:
        """Name the eventfd that the writer rings: give it to `loop.add_reader`, and call `drain` and then `dirty` there."""
    def append(self, slot: int, topic_id: int, write: Write, header_key: bytes | None = None) -> int:
        """Send a write to the topic that stands in `slot`; return the token that its answer carries.

        header_key: canonical, by scan.header_key; the body's key wins over it. Raises Busy or TooLarge. (ARCHITECTURE section 4)
        """
    def call(self, json: bytes, write: Write | None = None, header_key: bytes | None = None) -> int:
        """Send a command to the engine's Python door, with a write's records behind it if given; return its token. Raises Busy or TooLarge."""
    def poke(self) -> int:
        """Send nothing, to be answered: for tests and to wake the writer."""
    def drain(self, callback: Callable[[int, Completion], object]) -> int:
        """Call back with (token, answer) for each answer, arm the bell, and return how many there were.

        Every token is answered once; OUTCOME_UNKNOWN says that the writer died meanwhile. What the callback raises comes out, and the bell
        rings again for the rest.
        """
    @property
    def cursors(self) -> tuple[int, int]: ...
    def watch(self, slot: int) -> None:
        """Ask to be told, once, when the topic in `slot` moves; look at its head after this and before waiting."""
    def unwatch(self, slot: int) -> None: ...
    def dirty(self) -> list[int] | None:
        """Return the slots of watched topics that moved, perhaps repeated; None: too many, or a new writer: look at all. Call after `drain`."""
