from collections.abc import Sequence

from typing_extensions import Buffer

COLUMN_NAMES: tuple[str, ...]

class GapError(Exception):
    """Say that seqs of a topic were lost: `first_seq` .. `last_seq`, where gaps are to fail."""

    topic: str
    first_seq: int
    last_seq: int
    why: str
    def __init__(self, topic: str, first_seq: int, last_seq: int, why: str) -> None: ...

class Batch:
    """Rows by the Arrow C data interface: `pyarrow.record_batch(batch)` takes them, once."""

    rows: int
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...

class Scanner:
    """Segments into record batches: `open` one, `fill` until it says False, `open` the next; `take` when `full`, and at the end."""

    rows: int
    full: bool
    next_seq: int
    def __init__(
        self,
        columns: Sequence[str] = ...,
        *,
        rows_max: int = 65536,
        bytes_max: int = ...,
        corrupt: str = "fail",
        gaps: str = "row",
    ) -> None: ...
    def __arrow_c_schema__(self) -> object: ...
    def open(
        self,
        topic: bytes,
        index: Buffer,
        data: Buffer,
        *,
        index_offset: int = 0,
        data_offset: int = 0,
        first_seq: int = 0,
        last_seq: int = ...,
        since: int | None = None,
        until: int | None = None,
        remade: bool = False,
    ) -> None: ...
    def fill(self) -> bool: ...
    def add_range(self, topic: bytes, kind: str, first_seq: int, last_seq: int, why: str, ts: int | None = None) -> None: ...
    def take(self) -> Batch: ...
