from topicsd._native.regions import Shared

def show(shared: Shared, ranges: list[tuple[int, int]]) -> None:
    """Say which ranges of the log are damaged: (shard << 56 | position, the same of the first byte behind it). The keeper's alone."""

def shown(shared: Shared) -> list[tuple[int, int]]:
    """Return what was said last."""

def unreadable(shared: Shared) -> list[tuple[int, int, int, int]]:
    """Return [(slot, topic id, records, bytes)] of the live records that stand there, by topic."""
