from topicsd._native.regions import Shared

PAGE_BYTES: int

def memory(shared: Shared) -> tuple[int, int]:
    """Return (bytes in use, bytes ever handed out) of the index region."""

def cool(shared: Shared, now_ms: int, warm_max: int) -> int:
    """Look whether a flood goes on, and give back the memory of what none needs any more; `warm_max` pages at most stay for the next.

    Returns the number of free pages with memory.
    """
