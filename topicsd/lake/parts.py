"""The parts of segments as readers want them: mapped files, or ranges of objects, fetched when they are wanted."""

from __future__ import annotations

import errno
import mmap
import os
from collections import OrderedDict
from pathlib import Path
from typing import Protocol

import numpy
import xxhash

from topicsd._native.segment import SegmentError, header_of
from topicsd.lake.storage import Bucket, Folder, Storage
from topicsd.objects import ObjectStore
from topicsd.segments.names import Place

MAPS_KEPT = 8
BLOCK_BYTES = 1 << 20  # small segments share an object: who reads one reads its neighbours too
BLOCKS_KEPT = 8
HEADER_BYTES, ENTRY_BYTES, BLOCK_ENTRIES = 128, 24, 64  # docs/format/segment.md
FRAME_HEAD_BYTES = 24
POSITION_MASK = 2**56 - 1
_ENTRY = numpy.dtype([("position", "<u8"), ("bytes", "<u4"), ("flags", "<u4"), ("ts", "<u8")])

Raw = bytes | bytearray | memoryview | mmap.mmap
Part = tuple[Raw, int]  # a buffer, and where the part begins in it


class Files(Protocol):
    """Gives parts. Raises FileNotFoundError, OSError."""

    def index(self, place: Place) -> Part:
        """The index part; more may lie behind it."""
        ...

    def data(self, place: Place, index: Part | None = None, first_seq: int = 0, last_seq: int = 0) -> Part:
        """The data part, as far as first_seq .. last_seq need it: the rest may be zeroes. Without an index all of it."""
        ...

    def there(self, place: Place) -> bool:
        """Say whether the data part's file is there."""
        ...


class MappedFiles:
    """Files of this machine; the last few stay mapped."""

    def __init__(self) -> None:
        self._maps: dict[Path, mmap.mmap | bytes] = {}

    def index(self, place: Place) -> Part:
        """Map the index's file."""
        return self._at(place.index.path), place.index.offset

    def data(self, place: Place, index: Part | None = None, first_seq: int = 0, last_seq: int = 0) -> Part:
        """Map the data's file."""
        return self._at(place.data.path), place.data.offset

    def there(self, place: Place) -> bool:
        """Look."""
        return place.data.path.exists()

    def _at(self, path: Path) -> mmap.mmap | bytes:
        found = self._maps.pop(path, None)
        if found is None:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                found = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
        self._maps[path] = found  # the last one used stands last
        if len(self._maps) > MAPS_KEPT:
            del self._maps[next(iter(self._maps))]
        return found


class RemoteFiles:
    """Objects of an export. Large segments are fetched by the ranges of the seqs that are wanted, small ones with what is near them."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._whole: tuple[tuple[str, int], Raw] | None = None  # the last data part that was fetched whole

    def index(self, place: Place) -> Part:
        """Fetch the index: it ends where the tags begin."""
        exact = place.data_bytes > BLOCK_BYTES
        return self._range(str(place.index.path), place.index.offset, place.tags.offset, exact=exact), 0

    def data(self, place: Place, index: Part | None = None, first_seq: int = 0, last_seq: int = 0) -> Part:
        """Fetch the frames of first_seq .. last_seq."""
        name, offset, size = str(place.data.path), place.data.offset, place.data_bytes
        begin, end = (0, size) if index is None or size <= BLOCK_BYTES else frames_of(index, first_seq, last_seq, size)
        if (begin, end) == (0, size):
            if self._whole is None or self._whole[0] != (name, offset):
                self._whole = (name, offset), self._range(name, offset, offset + size)
            return self._whole[1], 0
        sparse = mmap.mmap(-1, size)  # zeroes that take no memory where nothing is laid
        sparse[begin:end] = bytes(self._range(name, offset + begin, offset + end, exact=True)).ljust(end - begin, b"\0")
        return sparse, 0

    def there(self, place: Place) -> bool:
        """Ask the store."""
        try:
            return self._store.size(str(place.data.path)) > place.data.offset
        except FileNotFoundError:
            return False

    def _range(self, name: str, begin: int, end: int, *, exact: bool = False) -> Raw:
        if exact or end - begin > BLOCK_BYTES:
            return self._sound(name, begin, end, self._store.read_range(name, begin, end))
        numbers = range(begin // BLOCK_BYTES, -(-end // BLOCK_BYTES))
        raw = b"".join(self._block(name, number) for number in numbers)
        return self._sound(name, begin, end, raw[begin - numbers.start * BLOCK_BYTES :][: end - begin]) if numbers else b""

    def _block(self, name: str, number: int) -> bytes:
        key = (name, number)
        if key in self._blocks:
            self._blocks.move_to_end(key)
        else:
            self._blocks[key] = bytes(self._store.read_range(name, number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES))
            if len(self._blocks) > BLOCKS_KEPT:
                self._blocks.popitem(last=False)
        return self._blocks[key]

    @staticmethod
    def _sound(name: str, begin: int, end: int, raw: Raw) -> Raw:
        if len(raw) == 0 < end - begin:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{name}, byte {begin}")
        return raw  # what is cut short is judged by its checksums


def frames_of(index: Part, first_seq: int, last_seq: int, size: int) -> tuple[int, int]:
    """Where in a data part of `size` bytes the frames of first_seq .. last_seq stand: all of it where the index does not say so for sure."""
    raw, at = index
    whole = memoryview(raw)[at:]
    try:
        header = header_of(raw, "index", at)
    except SegmentError:
        return 0, size
    count = header.last_seq - header.first_seq + 1
    first, last = max(first_seq - header.first_seq, 0), min(last_seq, header.last_seq) - header.first_seq
    if len(whole) < HEADER_BYTES + count * ENTRY_BYTES + -(-count // BLOCK_ENTRIES) * 8 or first > last or (first, last) == (0, count - 1):
        return 0, size
    entries = numpy.frombuffer(whole, _ENTRY, count, HEADER_BYTES)
    sums = numpy.frombuffer(whole, "<u8", -(-count // BLOCK_ENTRIES), HEADER_BYTES + count * ENTRY_BYTES)
    begin_block, end_block = first // BLOCK_ENTRIES, last // BLOCK_ENTRIES + 1
    end = size
    while end == size and end_block <= len(sums):  # up to the first frame behind last_seq
        behind = entries["position"][last + 1 : end_block * BLOCK_ENTRIES] & POSITION_MASK
        behind = behind[behind != 0]
        if len(behind):
            end = int(behind[0]) - FRAME_HEAD_BYTES
        elif end_block == len(sums):
            break
        else:
            end_block += 1
    for block in range(begin_block, end_block):
        if xxhash.xxh3_64_intdigest(entries[block * BLOCK_ENTRIES : (block + 1) * BLOCK_ENTRIES].tobytes()) != int(sums[block]):
            return 0, size
    inside = entries["position"][first : last + 1] & POSITION_MASK
    inside = inside[inside != 0]
    if len(inside) == 0:
        return 0, min(HEADER_BYTES, size)  # no record: the index tells all
    begin = int(inside[0]) - FRAME_HEAD_BYTES
    return (begin, end) if HEADER_BYTES <= begin < end <= size else (0, size)


def root_of(storage: Storage) -> Path:
    """What the names of an export's files are put behind: a folder's path; nothing, where a store has them."""
    return storage.root if isinstance(storage, Folder) else Path()


def files_of(storage: Storage) -> Files:
    """What reads an export's files."""
    return RemoteFiles(storage.store) if isinstance(storage, Bucket) else MappedFiles()
