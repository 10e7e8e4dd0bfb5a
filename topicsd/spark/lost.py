"""What a quarantine names as lost, and what of it the table has all the same: a source that still had it may have brought it later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from topicsd.spark.ranges import Held, Range
from topicsd.spark.tables import LakeTable, topic_key

if TYPE_CHECKING:
    import pyarrow


class Lost:
    """A quarantine's ranges that are lost or damaged, and the records of the table and of the quarantine that stand in them. Files are read once."""

    def __init__(self, table: LakeTable, bad: LakeTable) -> None:
        self._table, self._bad = table, bad
        self._known: dict[str, list[tuple[str, Range]]] = {}  # by the quarantine's files; each with its kind
        self._number = -1

    def named(self, number: int | None = None) -> Held:
        """All ranges that it names, but for those of which nobody knows how far they go. number: of its next batch, which says if there are more."""
        if number is None or number != self._number:
            self._known = {path: self._known[path] if path in self._known else list(_ranges(path)) for path in self._bad.files()}
            self._number = -1 if number is None else number
        return Held(one for ranges in self._known.values() for kind, one in ranges if kind != "deleted")

    def deleted(self) -> Held:
        """What it says was deleted in the source before it could come."""
        self.named()
        return Held(one for ranges in self._known.values() for kind, one in ranges if kind == "deleted")

    def found(self, topic: str, epoch: str, first: int, last: int) -> Held:
        """The seqs of first .. last that have come as records, also such as do not fit the table's payload."""
        out = Held()
        for side, kind in ((self._table, ""), (self._bad, "bad")):
            for (key, _), paths in side.partitions().items():
                for path in paths if key == topic_key(topic) else ():
                    for begin, end in _seqs(path, topic, epoch, first, last, kind):
                        out.add(topic, epoch, begin, end)
        return out


def _ranges(path: str) -> Iterator[tuple[str, Range]]:
    from pyarrow import compute, parquet

    rows = parquet.read_table(path, columns=["topic", "epoch", "seq", "seq_end", "_kind"], partitioning=None)
    rows = rows.filter(compute.and_(compute.not_equal(rows["_kind"], "bad"), rows["seq_end"].is_valid()))
    kinds, *ranges = (rows[name].to_pylist() for name in ("_kind", "topic", "epoch", "seq", "seq_end"))
    yield from zip(kinds, zip(*ranges, strict=True), strict=True)


def _seqs(path: str, topic: str, epoch: str, first: int, last: int, kind: str) -> Iterator[tuple[int, int]]:
    import numpy
    from pyarrow import compute, parquet

    wanted = (compute.field("topic") == topic) & (compute.field("epoch") == epoch) & (compute.field("seq") >= first) & (compute.field("seq") <= last)
    rows: pyarrow.Table = parquet.read_table(
        path, columns=["seq"], filters=wanted & (compute.field("_kind") == kind) if kind else wanted, partitioning=None
    )
    yield from ((begin, end) for begin, end in ranges_of(numpy.unique(rows["seq"].to_numpy())))


def ranges_of(seqs: Any) -> list[list[int]]:
    """Ascending seqs as ranges."""
    import numpy

    if len(seqs) == 0:
        return []
    cuts = numpy.flatnonzero(numpy.diff(seqs) != 1)
    return [[int(first), int(last)] for first, last in zip(seqs[[0, *(cuts + 1)]], seqs[[*cuts, len(seqs) - 1]], strict=True)]
