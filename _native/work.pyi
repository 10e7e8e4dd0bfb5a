from collections.abc import Callable, Sequence

from topicsd._native.port import Completion, Port
from topicsd._native.reader import Reader
from topicsd._native.regions import Shared

CLAIM: int
SETTLE: int
LEAVE: int
ACK: int
RELEASE: int
EXTEND: int
BURY: int
REMOVE: int
LOST: int
NOT_QUEUE: int
JOBS_MAX: int

def encode_claim(topic_id: int, node: bytes, jobs_max: int, lease_ms: int = 0, stream: bool = False, held: Sequence[tuple[int, int]] = ()) -> bytes:
    """Encode a claim. `held`: (seq, token) of the jobs that a work stream believes to hold; `lease_ms` 0: the topic's."""

def encode_settle(topic_id: int, verb: int, node: bytes, seqs: Sequence[int], ms: int = 0, tokens: Sequence[int] | None = None) -> bytes:
    """Encode an ack, a release (`ms`: delay) or an extend (`ms`: lease); with `tokens`, one a seq, each must be the current lease's."""

def submit(port: Port, kind: int, slot: int, payload: bytes) -> int:
    """Put an encoded command into the ring; return its token. Raises Busy, TooLarge."""

def submit_leave(port: Port, token: int) -> int:
    """Take a claim that waits for its cohort out of it; return the token of this command. Raises Busy."""

def granted(payload: bytes, count: int, first_token: int, held: int = 0) -> tuple[list[bool], list[tuple[int, int, int]]]:
    """Read the answer of a claim: which of the held jobs are still held, and (seq, token, deliveries) of the granted ones in order of seq."""

def settled(payload: bytes, count: int) -> list[bool]:
    """Read the answer of an ack, release or extend: which seqs were settled."""

def render_jobs(reader: Reader, slot: int, topic_id: int, jobs: Sequence[tuple[int, int, int]], deadline: int, now_ms: int) -> list[bytes | None]:
    """Render granted jobs as JSON objects (A §10.2); None for one whose record has gone meanwhile. Raises Gone, Busy, IoError."""

def report_unreadable(callback: Callable[[int, int, list[int]], object] | None) -> None:
    """Name who is told (slot, topic id, seqs) of granted jobs whose bytes turn out to be damaged, in this process."""

def record_text(reader: Reader, slot: int, topic_id: int, seq: int, now_ms: int) -> tuple[bytes, bytes | None, bytes | None, bytes | None] | None:
    """Return (data, meta, tag, node) of one record as stored, None when it has gone. Raises Gone, Busy, IoError."""

def live_of(reader: Reader, slot: int, topic_id: int, seqs: Sequence[int], now_ms: int) -> int:
    """Count the seqs whose records are still there. Raises Gone, Busy, IoError."""

def glance(shared: Shared, slot: int, topic_id: int) -> tuple[int, int] | None:
    """Return (ready jobs, claim window in ms) of a queue, None when the slot holds another topic, or no queue. A hint: nothing is locked."""

def leases_in_flight(shared: Shared) -> int:
    """Sum up the leased jobs of all queues."""

def completion_of(status: int, count: int, first_token: int, ready: int, in_flight: int, deadline: int, payload: bytes) -> Completion:
    """Make a completion of what `take_lease` returned (library mode)."""
