"""Pieces of topics, read as Arrow record batches: the one way from segments to rows, for `topicsd.scan`, the export's readers and Spark."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from topicsd._native.segment import STATUS, SegmentError, header_of
from topicsd._native.segment_repair import Examiner
from topicsd._native.segment_scan import COLUMN_NAMES, GapError, Scanner
from topicsd.lake.parts import Files, MappedFiles, Part
from topicsd.segments.names import Place

if TYPE_CHECKING:
    import pyarrow

SEQ_MAX = 2**63 - 1
OnRange = Literal["fail", "row", "skip"]
OnMissing = Literal["corrupt", "gap", "fail"]
NEWER = 4
_NO_FILE = {errno.ENOENT, errno.EISDIR, errno.ELOOP, errno.ENOTDIR, errno.EIO}  # none to read: as damaged as a file can be
_DAMAGED_INDEX = {1, 2, 3, 6}  # short, not one, bad header, bad index: the data tells as much


class DamagedError(Exception):
    """Data is damaged or missing. `topic`, `first_seq`, `last_seq` say what is lost."""

    def __init__(self, topic: str, first_seq: int, last_seq: int, what: str) -> None:
        super().__init__(f"topic {topic}, seqs {first_seq} to {last_seq}: {what}")
        self.topic, self.first_seq, self.last_seq, self.what = topic, first_seq, last_seq, what

    def __reduce__(self) -> tuple[type[DamagedError], tuple[str, int, int, str]]:
        return type(self), (self.topic, self.first_seq, self.last_seq, self.what)


@dataclass(frozen=True)
class Piece:
    """Seqs first_seq .. last_seq of a topic, which stand in one segment; or, without a place, a range of which it is known why it has none.

    last_seq 0: in a segment, up to its end; without a place, nobody knows how far the range goes.
    """

    topic: str
    first_seq: int
    last_seq: int
    place: Place | None = None
    why: str = ""
    ts: int | None = None  # epoch ms of a range without a place
    evicted: bool = False  # of a range without a place: retention took it before it was exported


class Reader:
    """Read pieces one after another into record batches.

    `columns`: names of `COLUMN_NAMES`, in the order wanted. since, until: epoch ms, inclusive and exclusive. Raises DamagedError when
    `on_corrupt` is "fail" and something is damaged, GapError when `on_gap` is and a range was lost, SegmentError for a newer format, OSError.
    `files`: gives the parts of segments; without it they are files of this machine.
    `on_missing`: what a file is that is not there: damage, a gap, or GapError in any case.
    """

    def __init__(
        self,
        columns: Sequence[str] = COLUMN_NAMES,
        *,
        since: int | None = None,
        until: int | None = None,
        on_corrupt: OnRange = "fail",
        on_gap: OnRange = "row",
        on_missing: OnMissing = "corrupt",
        rows_max: int = 65536,
        bytes_max: int = 64 << 20,
        files: Files | None = None,
    ) -> None:
        self._fails, self._missing = on_corrupt == "fail", on_missing
        self._since, self._until = since, until
        self._scanner = Scanner(columns, rows_max=rows_max, bytes_max=bytes_max, corrupt=on_corrupt, gaps=on_gap)
        self._files: Files = MappedFiles() if files is None else files
        self._examiner = Examiner()
        self._first_seq, self._opened = 1, False  # of the piece at hand: where its reading began, and whether the scanner has it

    @property
    def schema(self) -> pyarrow.Schema:
        """The schema of the batches."""
        import pyarrow

        return pyarrow.schema(self._scanner)

    def read(self, pieces: Iterable[Piece]) -> Iterator[pyarrow.RecordBatch]:
        """Yield batches; they end where they are full, not where a piece ends."""
        import pyarrow

        for piece in pieces:
            for _ in self._scan(piece):
                yield pyarrow.record_batch(self._scanner.take())
        if self._scanner.rows:
            yield pyarrow.record_batch(self._scanner.take())

    def _scan(self, piece: Piece) -> Iterator[None]:
        """Yield each time the batch is full."""
        if self._scanner.full:
            yield
        if piece.place is None:
            if self._inside(piece.ts):
                self._scanner.add_range(piece.topic.encode(), "gap", piece.first_seq, piece.last_seq, piece.why, piece.ts)
            return
        damage = ""
        self._first_seq, self._opened = piece.first_seq, False
        try:
            yield from self._fill(piece, piece.place, piece.first_seq)
        except SegmentError as wrong:
            if wrong.status not in _DAMAGED_INDEX:
                raise self._damaged(piece, wrong) from wrong
            damage = _told(piece.place, wrong)
        except _OtherError as wrong:
            damage = f"{piece.place.data.path}: {wrong}"
        except FileNotFoundError as wrong:
            damage = f"{wrong.filename} is missing"
            if self._missing != "corrupt" and not self._files.there(piece.place):
                self._lost(piece, piece.place)
                return
        except OSError as wrong:
            if wrong.errno not in _NO_FILE:
                raise
            damage = f"{piece.place.data.path}: {os.strerror(wrong.errno)}"
        if damage:
            yield from self._without_index(piece, piece.place, self._next(), damage)

    def _lost(self, piece: Piece, place: Place) -> None:
        if self._missing == "fail":
            raise GapError(piece.topic, piece.first_seq, piece.last_seq, f"missing: there is no {place.data.path}")
        self._scanner.add_range(piece.topic.encode(), "gap", piece.first_seq, piece.last_seq, "missing")

    def _inside(self, ts: int | None) -> bool:
        return ts is None or ((self._since is None or ts >= self._since) and (self._until is None or ts < self._until))

    def _next(self) -> int:
        return max(self._first_seq, self._scanner.next_seq) if self._opened else self._first_seq

    def _damaged(self, piece: Piece, wrong: SegmentError) -> Exception:
        if wrong.status == NEWER:  # no damage
            return wrong
        seq = self._next()
        return DamagedError(piece.topic, seq, seq, str(wrong) if piece.place is None else _told(piece.place, wrong))

    def _fill(self, piece: Piece, place: Place, first_seq: int, index: bytes | None = None) -> Iterator[None]:
        last_seq = piece.last_seq or SEQ_MAX
        index_part = (index, 0) if index is not None else self._files.index(place)
        if index is None:
            _same(place, index_part, "index")
        data_part = self._files.data(place, index_part, first_seq, last_seq)
        self._first_seq, self._opened = first_seq, True
        self._scanner.open(
            piece.topic.encode(), index_part[0], data_part[0], index_offset=index_part[1], data_offset=data_part[1], first_seq=first_seq,
            last_seq=last_seq, since=self._since, until=self._until, remade=index is not None,
        )  # fmt: skip
        while self._scanner.fill():
            yield

    def _without_index(self, piece: Piece, place: Place, first_seq: int, damage: str) -> Iterator[None]:
        """Go on from first_seq with an index that is made again from the data, or tell the whole rest as lost."""
        identity = (place.topic_id, place.first_seq, place.last_seq) if place.topic_id and place.last_seq else None
        try:
            data, offset = self._files.data(place)
            _same(place, (data, offset), "data")
            self._examiner.examine(data, data_offset=offset, data_bytes=place.data_bytes, identity=identity)
            index = self._examiner.remade("index")
        except (OSError, SegmentError, _OtherError) as wrong:
            if isinstance(wrong, OSError) and wrong.errno not in _NO_FILE:
                raise
            last_seq = piece.last_seq or place.last_seq or first_seq
            if self._fails:
                raise DamagedError(piece.topic, first_seq, last_seq, damage) from None
            self._scanner.add_range(piece.topic.encode(), "corrupt", first_seq, last_seq, damage)
            return
        try:
            yield from self._fill(piece, place, first_seq, index)
        except SegmentError as wrong:
            raise self._damaged(piece, wrong) from wrong


class _OtherError(Exception):
    """An intact part of another segment than the one that should stand there."""


def _same(place: Place, part: Part, kind: Literal["index", "data"]) -> None:
    """Hold a part against what its place is to hold. Raises _OtherError; what is damaged is judged elsewhere."""
    try:
        header = header_of(part[0], kind, part[1])
    except SegmentError:
        return
    wrong_range = place.last_seq and (header.first_seq, header.last_seq) != (place.first_seq, place.last_seq)
    if (place.topic_id and header.topic_id != place.topic_id) or wrong_range:
        raise _OtherError(f"holds seqs {header.first_seq} to {header.last_seq} of topic id {header.topic_id:016x} instead")


def _told(place: Place, wrong: SegmentError) -> str:
    """What is wrong with which file."""
    return f"{place.data.path}: {STATUS.get(wrong.status, wrong)}"
