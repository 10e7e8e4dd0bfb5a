"""How far each shard's log has been synced, noted outside the log (docs/format/log.md, the note).

The log says it itself, in each frame that follows; the last ones have nobody behind them, and a page that goes bad there takes its own witness along.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

from topicsd._native.file_ops import NewFile
from topicsd._native.files import FileSystem
from topicsd.versions import newer

SHARDS_MAX = 8
MAGIC = b"TPSYNCD1"
_BODY = struct.Struct(f"<8sIIq{SHARDS_MAX}Q")  # magic, version, shards, wall clock in ms, positions
VERSION = 1
DIGEST_BYTES = 16
NOTE_BYTES = _BODY.size + DIGEST_BYTES


UNKNOWN = [0] * SHARDS_MAX  # without a note


class NoteError(Exception):
    """Say that the note is damaged: what it knew is not known."""


class NewerNoteError(Exception):
    """Say that a newer version has written the note."""


def path_of(data_dir: Path) -> Path:
    """Return where the note stands."""
    return data_dir / "log" / "synced"


def write(data_dir: Path, files: FileSystem, positions: list[int], wall_ms: int) -> None:
    """Note that what is below these positions, one a shard, is on the disk. Raises OSError; the note of before is there then."""
    body = _BODY.pack(MAGIC, VERSION, len(positions), wall_ms, *positions, *[0] * (SHARDS_MAX - len(positions)))
    file = NewFile(files, path_of(data_dir))
    try:
        file.write(body + hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest())
        file.finish()
    except OSError:
        file.abort()
        raise


def read(data_dir: Path) -> list[int]:
    """Return the positions, one for each of SHARDS_MAX shards: 0 where nothing is known. Raises NoteError, NewerNoteError, OSError."""
    try:
        raw = path_of(data_dir).read_bytes()
    except FileNotFoundError:
        return UNKNOWN
    positions = parse(path_of(data_dir), raw)[0]
    return positions + UNKNOWN[len(positions) :]


def parse(path: Path, raw: bytes) -> tuple[list[int], int]:
    """Return the positions and the wall clock (ms) of a note. Raises NoteError, NewerNoteError."""
    body = raw[: _BODY.size]
    if len(raw) != NOTE_BYTES or hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest() != raw[_BODY.size :]:
        raise NoteError(
            f"{path}: the note of how far the log is synced is damaged; damage at the log's very end may go unseen until there is a new one"
        )
    magic, version, shards, wall_ms, *positions = _BODY.unpack(body)
    if magic != MAGIC or version != VERSION:
        raise NewerNoteError(f"{path}: {newer(version, VERSION)}")
    return positions[:shards], wall_ms
