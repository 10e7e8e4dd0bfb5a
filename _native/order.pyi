from topicsd._native.regions import Shared

class OrderBusy(RuntimeError):
    """The writer was changing the order all the time, or died while it did."""

class Order:
    """All topic names in byte order. `insert`, `remove`, `build` and `reset` are the writer's alone."""

    @property
    def shared(self) -> Shared: ...
    def __init__(self, shared: Shared) -> None: ...
    def page(self, prefix: bytes, after: bytes | None, limit: int) -> list[tuple[int, bytes]]:
        """Return up to `limit` (slot, name) behind `after` that begin with `prefix`, in byte order. OrderBusy.

        Each run of a few names is of one instant; a slot may hold another topic by the time it is read.
        """
    def next(self, after: bytes, inclusive: bool = False) -> int | None:
        """Return the slot of the first name behind `after`, or at it."""
    def __len__(self) -> int: ...
    def insert(self, slot: int) -> None: ...
    def remove(self, slot: int) -> None: ...
    def build(self) -> None:
        """Sort all names of the table once."""
    def reset(self) -> None: ...
    def blocks(self) -> list[int]:
        """Return how many names each block holds, in order."""
