from typing import NamedTuple

from typing_extensions import Buffer

class PackEntry(NamedTuple):
    topic_id: int
    first_seq: int
    last_seq: int
    data_offset: int
    index_offset: int
    tags_offset: int
    records: int
    data_xxh3: int

def pack_number(raw: Buffer) -> int:
    """The number in the header of a pack. Raises SegmentError."""

def pack_directory(raw: Buffer) -> list[PackEntry]:
    """The directory of a pack: [PackEntry], by topic and seq. Raises SegmentError."""

FORMAT_VERSION: int

def newer_version(raw: Buffer, *, footer: bool = False) -> int:
    """The format version of a pack's header, or of its footer, where a newer program wrote it; else 0."""
