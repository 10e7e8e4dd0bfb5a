def append_answer(
    topic: bytes,
    first_seq: int,
    count: int,
    head: int,
    *,
    created: bool = False,
    deduped: bool = False,
    body_differs: bool = False,
    return_seqs: bool = True,
    parked_us: int = 0,
    total_us: int = 0,
    wal_us: int = 0,
    fsync_us: int = 0,
) -> bytes: ...
def number(value: int) -> bytes: ...
def milliseconds(us: int) -> bytes: ...
