"""What is said of a file whose format is newer than this program knows: it is refused, and left as it is (docs/operations.md, Upgrades)."""

from __future__ import annotations

from topicsd._native.log_walk import USE_THAT_ONE

__all__ = ["USE_THAT_ONE", "newer"]


def newer(found: int, known: int) -> str:
    """Say it, behind the file's name."""
    return f"format version {found}, this program knows {known}: {USE_THAT_ONE}"
