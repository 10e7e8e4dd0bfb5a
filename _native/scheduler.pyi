from typing import final

@final
class Schedule:
    """Schedule numbers 0..size-1: bands of priority, deficit round-robin in a band, ageing (D §3.1)."""

    def __init__(self, size: int) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    def enter(self, number: int, priority: int, now_ms: int) -> None:
        """Let an entry wait; nothing when it does already."""
    def leave(self, number: int) -> None: ...
    def next(self, now_ms: int, band_least: int = 0) -> tuple[int, int] | None:
        """Return (number, bytes it may spend) of who is served next; None when nobody waits at or above `band_least`."""
    def served(self, number: int, spent: int, more: bool, now_ms: int) -> None:
        """Say how many bytes it took and whether it waits again."""

def band(priority: int, waited_ms: int) -> int:
    """Return the band, 0 to 14, of an effective priority (without age) that has waited for so long."""
