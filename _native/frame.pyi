from collections.abc import Iterable
from typing import NamedTuple

from typing_extensions import Buffer

VALID: int
NONE: int
BAD_MAGIC: int
BAD_LENGTH: int
SHORT: int
BAD_HASH: int

class Record(NamedTuple):
    """A record as stored: data and meta are JSON text, tag and node canonical JSON strings without quotes."""

    data: bytes
    meta: bytes | None = None
    tag: bytes | None = None
    node: bytes | None = None
    delay_ms: int = 0
    priority: int = 0

class Frame(NamedTuple):
    type: int
    flags: int
    shard: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    topic_id: int
    base_seq: int
    ts: int
    synced: int
    position: int
    length: int
    body: bytes
    key: bytes | None
    records_xxh3: int
    records: list[Record]

class FrameError(ValueError):
    status: int
    def __init__(self, status: int) -> None: ...

def entry(record: Record) -> bytes: ...
def append_body(records: Iterable[Record], key: bytes | None = None) -> bytes: ...
def build(
    type: int,
    body: bytes = b"",
    *,
    flags: int = 0,
    shard: int = 0,
    count: int = 0,
    topic_id: int = 0,
    base_seq: int = 0,
    ts: int = 0,
    synced: int = 0,
    position: int = 0,
) -> bytes: ...
def build_append(
    records: Iterable[Record],
    *,
    key: bytes | None = None,
    flags: int = 0,
    shard: int = 0,
    topic_id: int = 0,
    base_seq: int = 0,
    ts: int = 0,
    synced: int = 0,
    position: int = 0,
) -> bytes: ...
def seal(frame: Buffer) -> bytes: ...
def check(raw: Buffer) -> int: ...
def parse(raw: Buffer) -> Frame: ...
def parse_body(body: bytes, count: int, with_key: bool = False) -> tuple[bytes | None, list[Record]]: ...
def walk(raw: Buffer) -> list[Frame]: ...
def hash64(raw: Buffer) -> int: ...
