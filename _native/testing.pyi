from collections.abc import Iterable, Sequence

from topicsd._native.regions import Shared

def lay_files(shared: Shared, shard: int, rows: Sequence[tuple[int, int, bool]]) -> None: ...
def lay_topic(
    shared: Shared,
    name: bytes,
    topic_id: int,
    *,
    ttl_ms: int = 0,
    cap_records: int = 0,
    cap_bytes: int = 0,
    idempotency_window_ms: int = 120_000,
    max_deliveries: int = 0,
    lease_ms: int = 30_000,
    claim_jitter_ms: int = 0,
    priority: int | None = None,
    type: int = 0,
    discard: int = 0,
    durability: int = 2,
    flags: int = 7,
    dead_letter: bytes = b"",
) -> int: ...
def lay_removal(shared: Shared, slot: int) -> None: ...
def lay_entries(shared: Shared, slot: int, first_seq: int, entries: Iterable[tuple[int, int, int, int]]) -> None: ...
def lay_hole(shared: Shared, slot: int, first: int, last: int, reason: int) -> None: ...
def lay_trim(shared: Shared, slot: int, below_seq: int) -> None: ...
def lay_deletion(shared: Shared, slot: int, seq: int) -> None: ...
def lay_ephemeral(shared: Shared, offset: int, content: bytes | bytearray | memoryview) -> None: ...
def lay_words(
    shared: Shared,
    slot: int,
    *,
    head: int | None = None,
    earliest: int | None = None,
    cap_lost: int | None = None,
    ttl_lost: int | None = None,
    hole_lost: int | None = None,
    hole_reason: int | None = None,
    count: int | None = None,
    bytes: int | None = None,
    last_write_ms: int | None = None,
    last_read_ms: int | None = None,
    queue_ready: int | None = None,
    queue_in_flight: int | None = None,
    queue_dead_lettered: int | None = None,
    deleted_in_index: int | None = None,
) -> None: ...
