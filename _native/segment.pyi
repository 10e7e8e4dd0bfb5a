import builtins
import os
from collections.abc import Iterable
from typing import NamedTuple

from typing_extensions import Buffer

from topicsd._native.files import FileSystem

STATUS: dict[int, str]

class Header(NamedTuple):
    kind: str
    topic_id: int
    first_seq: int
    last_seq: int
    part_bytes: int
    records: int
    payload_bytes: int
    first_ts: int
    last_ts: int
    holes: int
    tags: int
    postings: int
    data_xxh3: int
    content_xxh3: int

class SegmentError(Exception):
    """Say what is wrong with a part: `status` is a key of `STATUS`, or a negative errno."""

    status: int
    def __init__(self, status: int, where: str = "") -> None: ...

def header_of(raw: Buffer, kind: str, offset: int = 0) -> Header:
    """Parse the header of a part of `kind` ("data", "index", "tags") that begins at `offset` of `raw`. Raises SegmentError."""

FORMAT_VERSION: int

def newer_version(raw: Buffer, kind: str, offset: int = 0) -> int:
    """The format version of a part of `kind` that begins at `offset` of `raw` and that a newer program wrote; 0 of every other one."""

def may_be_newer(paths: list[bytes]) -> list[int]:
    """Which of the files may begin with a part of a newer version: [number in the list]. One call reads all of them without the GIL."""

def part_bytes(head: Buffer, kind: str) -> int:
    """How long a part of `kind` is, by its header; 0 where that is damaged, or newer."""

def set_deleted(path: str | os.PathLike[str], offsets: Iterable[int], files: FileSystem | None = None) -> None:
    """Set the flag bytes at `offsets` of a file and sync it. Raises OSError."""

class SegmentView:
    """One segment whose parts stand in Python buffers (bytes, mmap), each from its offset on."""

    topic_id: int
    first_seq: int
    last_seq: int
    def __init__(
        self,
        index: Buffer,
        data: Buffer | None = None,
        tags: Buffer | None = None,
        *,
        index_offset: int = 0,
        data_offset: int = 0,
        tags_offset: int = 0,
        marks: bool = False,
    ) -> None: ...
    def verify_index(self) -> None: ...
    def check(self, first_seq: int, count: int) -> tuple[int, int]: ...
    def entry(self, seq: int) -> tuple[int, int, int, int]: ...
    def record(self, seq: int) -> tuple[bytes, bool] | None: ...
    def flag_offset(self, seq: int) -> int: ...
    def late_deletes(self, old: SegmentView) -> list[int]: ...
    def flags_part(self) -> bytes: ...
    def take_flags(self, raw: Buffer) -> None: ...
    def take_window(self, raw: Buffer, data_from: int) -> None: ...
    def window_of(self, first_seq: int, count: int) -> tuple[int, int]: ...
    def lower_bound_ts(self, from_seq: int, ts: int) -> int: ...
    def find_tags(self, tag: bytes, prefix: bool = False) -> dict[bytes, list[int]]: ...

class Frame(NamedTuple):
    bytes: int
    kind: int
    seq: int
    ts: int
    flag: int
    body: builtins.bytes

def frame_at(raw: Buffer, offset: int, topic_id: int) -> Frame | None:
    """The frame that stands at `offset` of a data part's buffer, or None when none does."""
