"""Parts and packs of a newer version: their header is sound, and its version is one that this program does not know.

They are no damage. Whoever meets one tells it and leaves it: nothing is made again of it or written over it, and no file that holds one is replaced.
The first bytes decide, up to the header's checksum: they stay what they are in every version (docs/format/segment.md, pack.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

from topicsd import versions
from topicsd._native import segment, segment_pack
from topicsd._native.segment import SegmentError
from topicsd.segments import names
from topicsd.segments.names import Place, Spot

STATUS = 4  # of a SegmentError
KINDS = ("data", "index", "tags")
PART_BYTES, PACK_BYTES = 128, 64  # of a header; a pack's footer has as many as its header
LOOKS_AT_ONCE = 8  # so many reads of a disk that has to seek
FILES_A_LOOK = 1024
PACK_SUFFIX = ".pack"


class NewerFormatError(SegmentError):
    """Say which part, pack header or pack directory is of a newer version."""

    def __init__(self, spot: Spot, version: int, known: int) -> None:
        super().__init__(STATUS)
        self.spot, self.version, self.what = spot, version, versions.newer(version, known)

    def __str__(self) -> str:
        return f"{self.spot.path}{f', byte {self.spot.offset}' if self.spot.offset else ''}: {self.what}"


def refuse_part(raw: bytes | memoryview, kind: str, spot: Spot, at: int | None = None) -> None:
    """Refuse a part that begins at `at` of what was read (at the spot's offset, unless told). Raises NewerFormatError."""
    if version := segment.newer_version(raw, kind, spot.offset if at is None else at):
        raise NewerFormatError(spot, version, segment.FORMAT_VERSION)


def refuse_place(raw: bytes | memoryview, place: Place) -> None:
    """Refuse a part of a segment of a pack. Raises NewerFormatError."""
    for kind, spot in zip(KINDS, (place.data, place.index, place.tags), strict=True):
        refuse_part(raw, kind, spot)


def refuse_pack(path: Path, head: bytes | memoryview, foot: bytes | memoryview, bytes_: int) -> None:
    """Refuse a pack by its header and its directory's footer. Raises NewerFormatError."""
    if version := segment_pack.newer_version(head):
        raise NewerFormatError(Spot(path), version, segment_pack.FORMAT_VERSION)
    if version := segment_pack.newer_version(foot, footer=True):
        raise NewerFormatError(Spot(path, bytes_ - PACK_BYTES), version, segment_pack.FORMAT_VERSION)


def refuse_file(path: Path) -> None:
    """Refuse a file below topics/ or packs/ by the first bytes of its parts; of a pack by those of its first segment, for all have one version.

    One that is not there, or that can not be read, is no newer one. Raises NewerFormatError.
    """
    named = names.parse(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if named is not None:
            refuse_part(os.pread(fd, PART_BYTES, 0), named[1], Spot(path))
        elif names.pack_number(path) is not None:
            _refuse_pack_file(path, fd)
    except OSError:
        return
    finally:
        os.close(fd)


def _refuse_pack_file(path: Path, fd: int) -> None:
    bytes_ = os.fstat(fd).st_size
    refuse_pack(path, os.pread(fd, PACK_BYTES, 0), os.pread(fd, PACK_BYTES, max(bytes_ - PACK_BYTES, 0)), bytes_)
    at = PACK_BYTES
    for kind in KINDS:
        raw = os.pread(fd, PART_BYTES, at)
        refuse_part(raw, kind, Spot(path, at), 0)
        size = segment.part_bytes(raw, kind)
        if not size:
            return  # damaged: nothing says where the next one is
        at += size


def found(paths: Iterable[Path]) -> list[NewerFormatError]:
    """Which of these files are refused. For a start: it looks at each file that a row leads into."""
    packs, parts = list[Path](), list[Path]()
    for path in paths:
        (parts if path.suffix != PACK_SUFFIX else packs).append(path)
    groups = [parts[first : first + FILES_A_LOOK] for first in range(0, len(parts), FILES_A_LOOK)]
    if len(groups) > 1:
        with ThreadPoolExecutor(LOOKS_AT_ONCE) as pool:
            suspects = list(chain.from_iterable(pool.map(_suspects, groups)))
    else:
        suspects = list(chain.from_iterable(map(_suspects, groups)))
    return list(_refused([*suspects, *packs]))


def _suspects(paths: list[Path]) -> list[Path]:
    return [paths[number] for number in segment.may_be_newer([os.fsencode(path) for path in paths])]


def _refused(paths: list[Path]) -> Iterator[NewerFormatError]:
    for path in paths:
        try:
            refuse_file(path)
        except NewerFormatError as newer:
            yield newer
