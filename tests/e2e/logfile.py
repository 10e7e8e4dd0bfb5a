"""Find the frames of a log from outside, by the page docs/format/log.md alone, so that tests can damage chosen ones."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

MAGIC = 0x31465054
HEADER = struct.Struct("<IIBBHIQQQQQQ")  # magic length type flags shard count | topic base ts synced position xxh3
START, APPEND, MARK = 1, 2, 0x81


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame and where it stands in its file."""

    path: Path
    offset: int
    length: int
    type: int
    count: int
    base_seq: int
    position: int
    synced: int


def frames(data_dir: Path) -> list[Frame]:
    """Return all frames of all shards in order of position. A file's frames end at the first eight bytes that begin none."""
    found = []
    for path in sorted((data_dir / "log").glob("shard-*/*.log")):
        content = path.read_bytes()
        offset = 0
        while offset + HEADER.size <= len(content):
            magic, length, kind, _flags, _shard, count, _topic, base_seq, _ts, synced, position, _xxh3 = HEADER.unpack_from(content, offset)
            if magic != MAGIC or length < HEADER.size or length % 8:
                break
            found.append(Frame(path, offset, length, kind, count, base_seq, position, synced))
            offset += length
    return sorted(found, key=lambda frame: frame.position)


def appends(data_dir: Path) -> list[Frame]:
    return [frame for frame in frames(data_dir) if frame.type == APPEND]


def overwrite(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def flip(path: Path, offset: int, bit: int = 3) -> None:
    """Flip one bit of the byte at `offset`."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))
