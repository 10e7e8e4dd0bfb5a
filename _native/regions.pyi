from typing import Literal

CONTROL_VERSION: int
EPHEMERAL_SPREAD: int

class Shared:
    """Hold the shared regions of one server; made before any fork, the same in every process."""

    ready: bool
    draining: bool
    writer_pid: int
    @staticmethod
    def create(topics_max: int = 0, index_bytes: int = ..., ephemeral_bytes: int = ..., body_bytes_max: int = ..., ring_slots: int = 4) -> Shared:
        """Map all regions, zeroed and sparse.

        topics_max 0: the table's hard maximum. index_bytes and ephemeral_bytes are virtual bounds. body_bytes_max: the largest request
        body, from which spill slots are sized. ring_slots: 1 to 64. Raises ValueError for numbers out of range, OSError when the kernel
        refuses. (ARCHITECTURE section 3)
        """
    @property
    def generation(self) -> int: ...
    @property
    def topics_max(self) -> int: ...
    @property
    def ring_slots(self) -> int: ...
    @property
    def topics_by_class(self) -> tuple[int, int, int, int]:
        """Count topics of the classes ephemeral, memory, disk, fsync."""
    def get(self, name: str) -> int:
        """Read a 64-bit word of struct control by its name in layout.h (acquire). KeyError for another name."""
    def set(self, name: str, value: int) -> None:
        """Store a 64-bit word of struct control (release)."""
    def add(self, name: str, value: int) -> int:
        """Add to a 64-bit word of struct control, atomically, and return the sum."""
    def shard(self, number: int) -> dict[str, int | list[int]]:
        """Read a shard's line: every word by its name, `fsync_bucket` as a list of 24 (not cumulative; le 2**n microseconds, then +Inf)."""
    def worker(self, number: int) -> dict[str, int]:
        """Read a ring slot's line of counters."""
    def set_worker(self, number: int, name: str, value: int) -> None: ...
    def add_worker(self, number: int, name: str, value: int = 1) -> None: ...
    def ring_state(self, number: int) -> Literal["free", "live", "dead"]: ...
    def assign_ring(self) -> int | None:
        """Take a free ring slot for a worker about to be forked (arbiter only); None when all are live or wait for the writer."""
    def bury_ring(self, number: int) -> None:
        """Say that the worker of a live slot is dead (arbiter only): the writer drains it and frees it. ValueError when it is not live."""
    def bell_fd(self, number: int) -> int:
        """Name the eventfd that the writer rings for this slot; -1 for none."""
    def wake_writer(self) -> None: ...
    def inflight_enter(self, number: int, key: int, limit: int) -> bool:
        """Count a request of API key `key` (0 to 1023) in, unless `limit` requests of that key are in flight in all workers together.

        Two that enter at the same moment may both be refused, but the limit is never passed.
        """
    def inflight_leave(self, number: int, key: int) -> None: ...
