"""Snapshot files, `meta/snapshot-<number, 20 digits>` (docs/format/snapshot.md): what replay starts from.

    | TPSNAP02 | header bytes | header JSON, spaces up to 8 | section | section | ... | TPSNAPND | checksum | 0 |

A snapshot is whole, or it holds what changed since another one, its parent, and stands upon that one and what that stands upon: its layers. A
file gets its name only when all of it is on the disk. The newest two are kept with their layers, and share none: one damaged file costs one of them.

The checksum is the XXH3-64 of the XXH3-64s of the pieces: the first 16 bytes, the header, each section, the foot's magic. A file of version 1 is
called TPSNAP01 and ends with the BLAKE2b-128 of all before it: hashing that took longer than everything else of a checkpoint.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import mmap
import os
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from topicsd._native.file_ops import NewFile, make_folder
from topicsd._native.files import FileSystem
from topicsd._native.frame import hash64
from topicsd.engine.sections import Row
from topicsd.versions import newer

VERSION = 3
KEPT = 2
LAYERS_MAX = 64  # a longer chain is none: nobody writes one
GONE = "gone"  # the section of topics that went since the parent
FOLDER = "meta"
_HEAD = struct.Struct("<8sQ")
_FOOT = struct.Struct("<8s16s")
_ROW = struct.Struct("<QQII")
_HEAD_MAGICS, _FOOT_MAGIC = (b"TPSNAP01", b"TPSNAP02"), b"TPSNAPND"
_DIGITS = 20
RESERVE_BYTES_MIN = 1 << 20
PART_BYTES = 1 << 20
PAGE_BYTES = 4096

Json = dict[str, Any]


class SnapshotError(Exception):
    """Say why a snapshot can not be used."""


class NewerSnapshotError(SnapshotError):
    """Say that a newer version has written a snapshot: never guess."""


class Snapshot(NamedTuple):
    """One file, read and verified."""

    header: Json
    sections: dict[str, memoryview]
    size: int = 0
    digest: int = 0

    @property
    def number(self) -> int:
        """Return its number."""
        return int(self.header["number"])

    @property
    def gone(self) -> array[int]:
        """Return the ids of topics that went since the parent."""
        return array("Q", bytes(self.sections.get(GONE, b"")))


class Chain(NamedTuple):
    """A snapshot with what it stands upon, the newest first."""

    layers: list[Snapshot]

    @property
    def header(self) -> Json:
        """Return what is so as of the moment."""
        return self.layers[0].header

    @property
    def number(self) -> int:
        """Return its number."""
        return self.layers[0].number

    def whole(self, name: str) -> Iterator[Row]:
        """Yield the rows of a section that each layer has whole. Raises ValueError, struct.error."""
        return rows_of(self.layers[0].sections.get(name, memoryview(b"")))

    def rows(self, name: str) -> Iterator[tuple[int, Row]]:
        """Yield (number of its layer, row), by topic id, of a section of which each layer has what had changed. Raises ValueError, struct.error."""
        known: set[int] = set()
        for layer in self.layers:
            for row in rows_of(layer.sections.get(name, memoryview(b""))):
                if row.key not in known:
                    known.add(row.key)
                    yield layer.number, row
            known.update(layer.gone)


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


def write(
    data_dir: Path, files: FileSystem, header: Json, sections: Iterable[tuple[str, bytes | memoryview]], pause: Callable[[int], object] = int
) -> tuple[int, int]:
    """Write a snapshot and make it durable under its name; return (its bytes, its digest). Raises OSError: then there is none of that number.

    pause: called with the bytes of each mebibyte or less that was written: who writes other files of the disk meanwhile has his turn.
    """
    parts = list(sections)
    header = {**header, "version": VERSION, "sections": [[name, len(part)] for name, part in parts]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    make_folder(files, data_dir / FOLDER)
    file = NewFile(files, path_of(data_dir, header["number"]))
    pieces = (_HEAD.pack(_HEAD_MAGICS[-1], len(text)), text, *(part for _name, part in parts), _FOOT_MAGIC)
    try:
        for piece in pieces:
            for first in range(0, len(piece), PART_BYTES):
                file.write(memoryview(piece)[first : first + PART_BYTES])
                if file.size >= PART_BYTES:
                    pause(PART_BYTES)
        checksum = checksum_of(pieces)
        file.write(checksum)
        file.finish()
    except OSError:
        file.abort()
        raise
    return file.size, int.from_bytes(checksum[:8], "little")


def checksum_of(pieces: Iterable[bytes | memoryview]) -> bytes:
    """Return what a file of these pieces ends with."""
    return struct.pack("<QQ", hash64(b"".join(hash64(piece).to_bytes(8, "little") for piece in pieces)), 0)


def reserve_path(data_dir: Path) -> Path:
    """Return the file that holds room for the next snapshot."""
    return data_dir / FOLDER / "reserve"


def _reserved(size: int) -> int:
    """How much is set aside for a snapshot of about so many bytes."""
    return size + size // 4 + RESERVE_BYTES_MIN


def reserve(data_dir: Path, files: FileSystem, size: int, free: int = 0) -> None:
    """Have room for a snapshot somewhat larger than `size` set aside on the disk: a full one can then still be freed. Raises OSError.

    A disk that has not so much gives what it has `free`: until the next start others may take that.
    """
    wanted, path = _reserved(size), reserve_path(data_dir)
    held = path.stat().st_size if path.exists() else 0
    if wanted <= held:
        return
    try:
        _have(path, files, held, wanted + wanted // 4)  # so that a snapshot that grows does not write it anew each time
    except OSError as wrong:
        least = min(wanted, held + free // PAGE_BYTES * PAGE_BYTES)
        if wrong.errno != errno.ENOSPC or least <= held:
            raise
        _have(path, files, held, least)


def _have(path: Path, files: FileSystem, held: int, goal: int) -> None:
    if held:
        _grow(path, held, goal)
        return
    make_folder(files, path.parent)
    file = NewFile(files, path)
    try:
        file.reserve(goal)
        file.finish()
    except OSError:
        file.abort()
        raise


def _grow(path: Path, held: int, goal: int) -> None:
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.posix_fallocate(file, held, goal - held)
    finally:
        os.close(file)


def give_reserve(data_dir: Path, needed: int) -> None:
    """Give so much of it back to the disk. Raises OSError."""
    path = reserve_path(data_dir)
    os.truncate(path, max(path.stat().st_size - needed, 0) // PAGE_BYTES * PAGE_BYTES)


def missing_reserve(data_dir: Path, size: int = 0) -> int:
    """Return how many bytes must stay free for the next snapshot, of about `size` or as the largest there is, beyond what is set aside."""
    held = 0
    with contextlib.suppress(FileNotFoundError):
        held = reserve_path(data_dir).stat().st_size
    wanted = _reserved(size if held else 0)
    with contextlib.suppress(FileNotFoundError):  # one that goes meanwhile
        size = max([size, *(path_of(data_dir, number).stat().st_size for number in numbers(data_dir))])
    return max(size + RESERVE_BYTES_MIN - held, wanted - held, 0)


def read(path: Path) -> Snapshot:
    """Read and verify a snapshot. Raises SnapshotError, NewerSnapshotError, OSError."""
    raw = _whole(path)
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
        raise NewerSnapshotError(f"{path}: {newer(header['version'], VERSION)}")
    return Snapshot(header, sections, len(raw), int.from_bytes(digest[:8], "little"))


def _whole(path: Path) -> memoryview:
    """Read a file into memory of its own, in large pages: mapped, a page that the disk cannot read would end the process."""
    size = path.stat().st_size
    room = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        room.madvise(mmap.MADV_HUGEPAGE)
    raw, at = memoryview(room)[:size], 0
    with path.open("rb", buffering=0) as file:
        while at < size and (got := file.readinto(raw[at:])):
            at += got
    return raw[:at].toreadonly()


def _cut(raw: memoryview, at: int, table: list[tuple[str, int]]) -> Iterator[tuple[str, memoryview]]:
    for name, size in table:
        yield name, raw[at : at + size]
        at += size


def read_chain(data_dir: Path, number: int) -> Chain:
    """Read and verify a snapshot and all that it stands upon. Raises SnapshotError, NewerSnapshotError, OSError."""
    layers = [read(path_of(data_dir, number))]
    if layers[0].number != number:
        raise SnapshotError(f"{path_of(data_dir, number)}: it says that it is snapshot {layers[0].number}")
    while (parent := layers[-1].header.get("parent")) is not None:
        below, digest = parent
        path = path_of(data_dir, below)
        if not 0 < below < layers[-1].number or len(layers) == LAYERS_MAX:
            raise SnapshotError(f"{path}: snapshot {layers[-1].number} can not stand upon it")
        try:
            layers.append(read(path))
        except FileNotFoundError:
            raise SnapshotError(f"{path}: no such file, and snapshot {layers[-1].number} stands upon it") from None
        if (layers[-1].number, layers[-1].digest) != (below, digest):
            raise SnapshotError(f"{path}: not what snapshot {layers[-2].number} stands upon")
    return Chain(layers)


def heads(data_dir: Path) -> list[int]:
    """Return the numbers of the snapshots that a start may take, the newest first; older files are there only because these stand upon them."""
    return list(reversed(numbers(data_dir)))[:KEPT]


def newest(data_dir: Path) -> tuple[Chain | None, list[str]]:
    """Read the newest snapshot that is whole: (it or None, what is wrong with newer ones). Raises NewerSnapshotError."""
    wrong: list[str] = []
    for number in heads(data_dir):
        try:
            return read_chain(data_dir, number), wrong
        except NewerSnapshotError:
            raise
        except (SnapshotError, OSError, ValueError, KeyError, TypeError) as why:
            wrong.append(str(why) if isinstance(why, SnapshotError) else f"{path_of(data_dir, number)}: {why}")
    return None, wrong


def pack_rows(rows: Iterable[Row]) -> bytes:
    """Pack the rows of a section."""
    return b"".join(row.pack() for row in rows)


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
