"""Snapshot files, `meta/snapshot-<number, 20 digits>` (docs/format/snapshot.md): what replay starts from.

    | TPSNAP02 | header bytes | header JSON, spaces up to 8 | section | section | ... | TPSNAPND | checksum | 0 |

The checksum is the XXH3-64 of the XXH3-64s of the pieces: the first 16 bytes, the header, each section, the foot's magic. A file of version 1 is
called TPSNAP01 and ends with the BLAKE2b-128 of all before it: hashing that took longer than everything else of a checkpoint.

A file gets its name only when all of it is on the disk. The newest two are kept: what either needs of log and segments stays.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from topicsd._native.file_ops import NewFile, make_folder
from topicsd._native.files import FileSystem
from topicsd._native.frame import hash64
from topicsd.engine.sections import Row

VERSION = 2
FOLDER = "meta"
_HEAD = struct.Struct("<8sQ")
_FOOT = struct.Struct("<8s16s")
_ROW = struct.Struct("<QQII")
_HEAD_MAGICS, _FOOT_MAGIC = (b"TPSNAP01", b"TPSNAP02"), b"TPSNAPND"
_DIGITS = 20
RESERVE_BYTES_MIN = 1 << 16
_ZEROES = bytes(1 << 20)

Json = dict[str, Any]


class SnapshotError(Exception):
    """Say why a snapshot can not be used."""


class NewerSnapshotError(SnapshotError):
    """Say that a newer version has written a snapshot: never guess."""


class Snapshot(NamedTuple):
    """One file, read and verified."""

    header: Json
    sections: dict[str, memoryview]

    @property
    def number(self) -> int:
        """Return its number."""
        return int(self.header["number"])


def numbers(data_dir: Path) -> list[int]:
    """Return the numbers of all snapshot files, ascending."""
    try:
        names = [path.name.removeprefix("snapshot-") for path in (data_dir / FOLDER).iterdir() if path.name.startswith("snapshot-")]
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if len(name) == _DIGITS and name.isdigit())


def path_of(data_dir: Path, number: int) -> Path:
    """Return the file of a snapshot."""
    return data_dir / FOLDER / f"snapshot-{number:0{_DIGITS}d}"


def write(data_dir: Path, files: FileSystem, header: Json, sections: Iterable[tuple[str, bytes | memoryview]]) -> int:
    """Write a snapshot and make it durable under its name; return its bytes. Raises OSError: then there is none of that number."""
    parts = list(sections)
    header = {**header, "version": VERSION, "sections": [[name, len(part)] for name, part in parts]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    make_folder(files, data_dir / FOLDER)
    file = NewFile(files, path_of(data_dir, header["number"]))
    pieces = (_HEAD.pack(_HEAD_MAGICS[-1], len(text)), text, *(part for _name, part in parts), _FOOT_MAGIC)
    try:
        for piece in pieces:
            file.write(piece)
        file.write(checksum_of(pieces))
        file.finish()
    except OSError:
        file.abort()
        raise
    return file.size


def checksum_of(pieces: Iterable[bytes | memoryview]) -> bytes:
    """Return what a file of these pieces ends with."""
    return struct.pack("<QQ", hash64(b"".join(hash64(piece).to_bytes(8, "little") for piece in pieces)), 0)


def reserve_path(data_dir: Path) -> Path:
    """Return the file that holds room for the next snapshot."""
    return data_dir / FOLDER / "reserve"


def reserve(data_dir: Path, files: FileSystem, size: int) -> None:
    """Have room for a snapshot somewhat larger than `size` set aside on the disk: a full one can then still be freed. Raises OSError."""
    wanted, path = size + size // 4 + RESERVE_BYTES_MIN, reserve_path(data_dir)
    if path.exists() and wanted <= path.stat().st_size:
        return
    goal = wanted + wanted // 4  # so that a snapshot that grows does not write it anew each time
    file = NewFile(files, path)
    try:
        for first in range(0, goal, len(_ZEROES)):
            file.write(_ZEROES[: goal - first])
        file.finish()
    except OSError:
        file.abort()
        raise


def read(path: Path) -> Snapshot:
    """Read and verify a snapshot. Raises SnapshotError, NewerSnapshotError, OSError."""
    raw = memoryview(path.read_bytes())
    if len(raw) < _HEAD.size + _FOOT.size:
        raise SnapshotError(f"{path}: cut short")
    magic, header_bytes = _HEAD.unpack_from(raw)
    foot_magic, digest = _FOOT.unpack_from(raw, len(raw) - _FOOT.size)
    if magic not in _HEAD_MAGICS or foot_magic != _FOOT_MAGIC:
        raise SnapshotError(f"{path}: it does not begin or end as a snapshot does")
    text, first = raw[_HEAD.size : _HEAD.size + header_bytes], magic == _HEAD_MAGICS[0]
    if first and hashlib.blake2b(raw[:-16], digest_size=16).digest() != digest:
        raise SnapshotError(f"{path}: its checksum differs")
    try:
        header = json.loads(bytes(text))
        sections = dict(_cut(raw, _HEAD.size + header_bytes, header["sections"]))
    except (ValueError, KeyError, TypeError) as why:
        raise SnapshotError(f"{path}: its header is damaged") from why
    if sum(map(len, sections.values())) != len(raw) - _FOOT.size - _HEAD.size - header_bytes:
        raise SnapshotError(f"{path}: its sections do not fill it")
    if not first and checksum_of((raw[: _HEAD.size], text, *sections.values(), foot_magic)) != digest:
        raise SnapshotError(f"{path}: its checksum differs")
    if header["version"] > VERSION:
        raise NewerSnapshotError(f"{path}: format version {header['version']}, this program knows {VERSION}")
    return Snapshot(header, sections)


def _cut(raw: memoryview, at: int, table: list[tuple[str, int]]) -> Iterator[tuple[str, memoryview]]:
    for name, size in table:
        yield name, raw[at : at + size]
        at += size


def newest(data_dir: Path) -> tuple[Snapshot | None, list[str]]:
    """Read the newest snapshot that is whole: (it or None, what is wrong with newer ones). Raises NewerSnapshotError."""
    wrong: list[str] = []
    for number in reversed(numbers(data_dir)):
        path = path_of(data_dir, number)
        try:
            return read(path), wrong
        except NewerSnapshotError:
            raise
        except (SnapshotError, OSError, ValueError, KeyError) as why:
            wrong.append(str(why) if isinstance(why, SnapshotError) else f"{path}: {why}")
    return None, wrong


def pack_rows(rows: Iterable[Row]) -> bytes:
    """Pack the rows of a section."""
    parts: list[bytes] = []
    for row in rows:
        parts += [_ROW.pack(row.key, row.position, row.shard, len(row.body)), row.body, bytes(-len(row.body) % 8)]
    return b"".join(parts)


def rows_of(section: memoryview) -> Iterator[Row]:
    """Unpack the rows of a section. Raises ValueError, struct.error."""
    at = 0
    while at < len(section):
        key, position, shard, size = _ROW.unpack_from(section, at)
        at += _ROW.size
        if size > len(section) - at:
            raise ValueError("a row is cut short")
        yield Row(key, shard, position, bytes(section[at : at + size]))
        at += size + -size % 8
