from topicsd._native.regions import Shared

def show(shared: Shared, ranges: list[tuple[int, int]]) -> None:
    """Say which ranges of the log are damaged: (shard << 56 | position, the same of the first byte behind it). The keeper's alone."""

def shown(shared: Shared) -> list[tuple[int, int]]:
    """Return what was said last."""

def unreadable(shared: Shared) -> list[tuple[int, int, int, int]]:
    """Return [(slot, topic id, records, bytes)] of the live records that stand there, by topic."""

def begins(shared: Shared, shard: int) -> int:
    """Return the position of the first file of a shard's log that the writer has not retired: it is to be there. Without one: 2**64 - 1."""
