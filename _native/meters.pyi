from typing import TypedDict, final

from topicsd._native.regions import Shared

BUCKETS: int
OPERATIONS: int
LIMITS: int

class Totals(TypedDict):
    request_us: list[int]
    request_us_sum: int
    lag_us: list[int]
    lag_us_sum: int
    operations: list[list[int]]
    limits: list[int]
    ws_messages_in: int
    ws_messages_out: int
    ws_connections: int
    feed_waiting: int
    parked: int
    parked_us_sum: int
    behind_ms: int
    pressure: int

@final
class Meters:
    """Counters of all workers, made before any fork."""

    @property
    def ring_slots(self) -> int: ...
    def __init__(self, ring_slots: int) -> None: ...
    def request(self, ring: int, operation: int, status: int, us: int) -> None:
        """Count an answer: by its operation (see api/operations.py), its status, and what it took."""
    def lag(self, ring: int, us: int) -> None: ...
    def limit(self, ring: int, which: int) -> None: ...
    def message(self, ring: int, out: bool) -> None: ...
    def sockets(self, ring: int, count: int) -> None: ...
    def pressed(self, ring: int, level: int, behind_ms: int, feed_waiting: int) -> None:
        """Set the gauges of how pressed a worker is."""
    def parked(self, ring: int, us: int) -> None:
        """Count a write that waited, and for how long."""
    @property
    def pressure(self) -> int:
        """Return the highest rung that any worker stands on."""
    def bury(self, ring: int) -> None:
        """Clear the gauges of a dead worker; its counters stay."""
    def totals(self) -> Totals: ...

def ring_depths(shared: Shared) -> list[int]: ...
