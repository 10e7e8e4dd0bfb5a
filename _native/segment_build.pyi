import os
from typing import NamedTuple

from topicsd._native.files import FileSystem
from topicsd._native.segment import SegmentView

class Built(NamedTuple):
    topic_id: int
    first_seq: int
    last_seq: int
    records: int
    payload_bytes: int
    first_ts: int
    last_ts: int
    holes: int
    deleted: int
    tags: int
    postings: int
    data_offset: int
    index_offset: int
    tags_offset: int
    data_bytes: int
    index_bytes: int
    tags_bytes: int
    data_xxh3: int
    index_xxh3: int
    tags_xxh3: int

class Writer:
    """Write segments and packs from Python: `begin` or `begin_in_pack`, `add`, `finish`; `pack_begin` and `pack_finish` around the latter.

    Raises OSError and SegmentError; what was begun is then aborted, the pack too.
    """

    def __init__(self, folder: str | os.PathLike[str], files: FileSystem | None = None) -> None: ...
    def abort(self) -> None: ...
    def begin(self, topic_id: int, first_seq: int, edition: int = 0) -> None: ...
    def pack_begin(self, number: int) -> None: ...
    def begin_in_pack(self, topic_id: int, first_seq: int) -> None: ...
    def add(self, seq: int, ts: int, entry: bytes | None = None, flags: int = 0, count: int = 1) -> None: ...
    def add_all(self, view: SegmentView) -> None: ...
    def finish(self) -> Built: ...
    def pack_finish(self) -> int: ...

def make_folder(root: str | os.PathLike[str], relative: str | os.PathLike[str], files: FileSystem | None = None) -> None:
    """Make `relative` below `root`, level by level, each synced in its parent. Raises OSError."""
