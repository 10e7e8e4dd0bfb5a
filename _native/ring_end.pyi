from topicsd._native.regions import Shared

class RingEnd:
    """Use one end of a ring from Python: for tests and benches."""

    head: int
    tail: int
    armed: bool
    writer_armed: bool
    bell_seen: int
    spills: list[int]
    def __init__(self, shared: Shared, number: int) -> None: ...
    # the worker's side
    def adopt(self) -> None:
        """Take over a live slot whose last worker is drained. ValueError for another."""
    def claim(self, size: int, kind: int = 1) -> memoryview | None:
        """Reserve `size` contiguous bytes and room for the answer; None when there is no room now, ValueError when there never is."""
    def commit(self, slot: int = 0) -> int:
        """Publish the claim and return its token."""
    def abandon(self) -> None: ...
    def send(self, payload: bytes | bytearray | memoryview, kind: int = 1, slot: int = 0) -> int | None:
        """Claim, copy and commit; None when there is no room now."""
    def receive(self) -> tuple[int, int, int, bytes] | None:
        """Take the next answer: token, status, first_seq, payload."""
    def arm(self) -> bool: ...
    def dirty(self) -> list[int] | None:
        """Take the topics that moved; None: the list overflowed, look at all."""
    # the writer's side
    def peek_at(self, cursor: int) -> tuple[int, int, int, bytes, bool] | None:
        """Look at an entry: token, kind, slot, payload, whether it is stale."""
    def refuse(self, cursor: int, outcome: int = 9) -> bool: ...
    def release(self, cursor: int) -> None: ...
    def push(self, token: int, status: int = 0, first_seq: int = 0, payload: bytes = b"") -> None: ...
    def push_dirty(self, slot: int) -> None: ...
    def bell(self) -> None: ...
    def reset(self) -> int:
        """Do what a new writer does with this ring; return how many entries it refused."""
    def free_if_drained(self) -> bool: ...
    def sleep(self, timeout_ns: int, seen: int | None = None) -> bool:
        """Sleep as the writer does, unless an entry has not been looked at or the bell was rung since `seen`; tell whether it slept."""
    def waiting(self) -> int: ...
    # round trips for perf/ring.py
    def ping(self, rounds: int, size: int, spin: bool) -> list[int]:
        """Send `rounds` batches one after the other and return what each took, in ns; then tell `pong` to end."""
    def pong(self, spin: bool) -> None: ...
    def bare_ping(self, rounds: int) -> list[int]:
        """Do the same with a futex, an eventfd and nothing else."""
    def bare_pong(self, rounds: int, seen: int) -> None: ...
