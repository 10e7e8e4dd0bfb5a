import builtins
from typing import TypedDict

from topicsd._native.regions import Shared

class View(TypedDict):
    topic_id: int
    version: int
    name: builtins.bytes
    head: int
    earliest: int
    count: int
    bytes: int
    holes: int
    index_base: int
    index_capacity: int
    index_paged: bool
    ttl_ms: int
    cap_records: int
    dead_letter: builtins.bytes | None
    next_seq: int
    watchers: int

class Table:
    """The topic table. Its readers may be anywhere; `insert`, `configure`, `remove`, `reset`, `set` are the writer's alone."""

    @property
    def shared(self) -> Shared: ...
    def __init__(self, shared: Shared) -> None: ...
    def find(self, name: bytes) -> int | None:
        """Return the slot of the topic with this name."""
    def insert(self, name: bytes, topic_id: int, *, dead_letter: bytes | None = None, ttl_ms: int = 0, cap_records: int = 0) -> int | None:
        """Put a topic into the table; return its slot, or None when the table is full or has the name. ValueError, MemoryError."""
    def configure(self, slot: int, *, dead_letter: bytes | None = None, ttl_ms: int = 0, cap_records: int = 0) -> None: ...
    def remove(self, slot: int) -> None:
        """Free a slot and its index; its watchers and its head stay to be read."""
    def reset(self) -> None:
        """Empty the table, as a new writer does."""
    def set(self, slot: int, *, head: int = ..., earliest: int = ..., watchers: int = ...) -> None:
        """Store words of a slot (release)."""
    def view(self, slot: int) -> View | None:
        """Copy a slot consistently; None when it holds no topic. RuntimeError when it stays locked."""
    def lock(self, slot: int) -> None: ...
    def unlock(self, slot: int) -> None: ...
    def longest_search(self) -> int:
        """Count the words that the longest search for a missing name looks at."""
