"""What a task of `topicsd spark ingest` does: read pieces or spans, write parquet files. Nothing here needs Spark.
A call is per batch, not per record, but for records whose payload does not fit."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topicsd.spark import payloads
from topicsd.spark.options import Options
from topicsd.spark.ranges import Held, Range
from topicsd.spark.tables import File, envelope, folder, quarantine, topic_key

if TYPE_CHECKING:
    import pyarrow

DAY_US = 86_400_000_000
ROW_GROUP_ROWS = 128_000
SEEN = 1 << 40  # more than ranges overlap
NOTED = 0  # no record's seq: a quarantine that holds it of an epoch says that the topic was made again


@dataclass(frozen=True)
class Task:
    """Pieces of an export, or spans of a server, and where their rows go."""

    options: Options
    pieces: list[Any]
    epochs: dict[str, str]  # of the topics
    table: str
    quarantine: str
    keys_in_files: bool = False  # topic_key and day, too
    payload: bytes | None = None  # its type: a serialized Arrow schema of one field
    quarantined: Held = field(default_factory=Held)  # bad rows of these seqs are in the quarantine already
    recreated: list[tuple[str, str, int]] = field(default_factory=list)  # topic, epoch, seq: from there on the epoch's records are not known
    deleted: list[Range] | None = None  # what the source has deleted, besides what it leaves out of the pieces; None: neither is told


@dataclass
class Written:
    """What a task wrote."""

    files: list[File] = field(default_factory=list)
    bad: list[File] = field(default_factory=list)
    records: int = 0
    quarantined: int = 0


class _Files:
    """Rows into one file after another: a new one where the topic or the day changes."""

    def __init__(self, root: Path, schema: pyarrow.Schema, out: list[File]) -> None:
        self._root, self._schema, self._out = root, schema, out
        self._key: tuple[str, str] | None = None
        self._writer: Any = None
        self._keys: dict[str, Any] = {}  # the partition's columns, where they stand in the file

    def add(self, topic: str, day: str, rows: pyarrow.Table) -> None:
        import pyarrow
        from pyarrow import compute, parquet

        if self._key != (topic, day):
            self.close()
            self._key, key = (topic, day), topic_key(topic)
            if self._schema.names[0] == "topic_key":
                self._keys = {"topic_key": pyarrow.scalar(key), "day": pyarrow.scalar(datetime.date.fromisoformat(day))}
            self._name = f"{folder(key, day)}/part-{secrets.token_hex(12)}.parquet"
            path = self._root / self._name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = parquet.ParquetWriter(path, self._schema, compression="zstd", compression_level=1, coerce_timestamps="us")
            self._rows, self._first, self._last = 0, 2**63, 0
        for at, name in enumerate(self._keys):
            rows = rows.add_column(at, self._schema.field(name), pyarrow.repeat(self._keys[name], rows.num_rows))
        self._writer.write_table(rows.cast(self._schema), row_group_size=ROW_GROUP_ROWS)
        bounds = compute.min_max(rows["seq"]).as_py()
        self._rows, self._first, self._last = self._rows + rows.num_rows, min(self._first, bounds["min"]), max(self._last, bounds["max"])

    def close(self) -> None:
        if self._writer is None or self._key is None:
            return
        self._writer.close()
        topic, day = self._key
        size = (self._root / self._name).stat().st_size
        self._out.append(File(self._name, size, self._rows, topic_key(topic), day, self._first, self._last))
        self._writer = self._key = None


def write(task: Task, batches: Iterator[pyarrow.RecordBatch]) -> Written:
    """Write all rows of a task's batches, which come by topic, ascending. Raises what reading raises, OSError; files without a commit are litter."""
    import pyarrow
    from pyarrow import compute

    payload = None if task.payload is None else pyarrow.ipc.read_schema(pyarrow.BufferReader(task.payload)).field(0).type
    out = Written()
    keys = [("topic_key", pyarrow.string()), ("day", pyarrow.date32())] if task.keys_in_files else []
    good = _Files(Path(task.table), pyarrow.schema([*keys, *envelope(payload)]), out.files)
    bad = _Files(Path(task.quarantine), pyarrow.schema([*keys, *quarantine()]), out.bad)
    for topic, epoch, seq in task.recreated:
        if not task.quarantined.overlaps(topic, epoch, NOTED, NOTED):
            row = {"topic": topic, "epoch": epoch, "seq": seq, "_kind": "gap", "_err": "recreated"}
            bad.add(topic, "1970-01-01", pyarrow.Table.from_pylist([row], quarantine()))
            out.quarantined += 1
    seen: dict[str, list[Any]] = {}  # by topic the ranges of seqs that rows stand for
    for batch in batches:
        for topic, day, rows in runs(pyarrow.Table.from_batches([batch])):
            epoch = task.epochs[topic]
            seen.setdefault(topic, []).append(_spans(rows["seq"].to_numpy(), compute.coalesce(rows["seq_end"], rows["seq"]).to_numpy()))
            rows = rows.append_column("epoch", pyarrow.repeat(epoch, rows.num_rows))
            fits, rest = _sort_out(rows, payload)
            rest = _new(rest, task.quarantined, topic, epoch)
            if fits.num_rows:
                good.add(topic, day, fits.select(envelope(payload).names))
            if rest.num_rows:
                bad.add(topic, day, rest.select(quarantine().names))
            out.records, out.quarantined = out.records + fits.num_rows, out.quarantined + rest.num_rows
    good.close()
    for topic, epoch, told in _deleted(task, seen):
        rows = _new(told, task.quarantined, topic, epoch)
        if rows.num_rows:
            bad.add(topic, "1970-01-01", rows)
    bad.close()
    return out


def _spans(firsts: Any, lasts: Any) -> Any:
    """Ascending ranges, those that touch joined: one a row of an array of two columns."""
    import numpy

    cuts = numpy.flatnonzero(firsts[1:] != lasts[:-1] + 1)
    return numpy.stack([firsts[numpy.r_[0, cuts + 1]], lasts[numpy.r_[cuts, len(lasts) - 1]]], 1)


def _deleted(task: Task, seen: dict[str, list[Any]]) -> Iterator[tuple[str, str, pyarrow.Table]]:
    """Of each topic the rows that name what was deleted: all of the pieces that no row stands for."""
    import numpy
    import pyarrow

    if task.deleted is None:
        return
    told = [*task.deleted, *((piece.topic, task.epochs[piece.topic], piece.first_seq, piece.last_seq) for piece in task.pieces if piece.last_seq)]
    for topic, epoch in dict.fromkeys((topic, epoch) for topic, epoch, _, _ in told):
        whole = numpy.array([(first, last) for name, _, first, last in told if name == topic], "int64")
        came = numpy.concatenate(seen.get(topic) or [numpy.empty((0, 2), "int64")])
        # At each edge one more, or one less, of these ranges is open: what the pieces cover and no row does is between two edges.
        edges = numpy.concatenate([whole[:, 0], whole[:, 1] + 1, came[:, 0], came[:, 1] + 1])
        weights = numpy.repeat([1, -1, -SEEN, SEEN], [len(whole), len(whole), len(came), len(came)])
        order = numpy.argsort(edges, kind="stable")
        edges, depth = edges[order], numpy.cumsum(weights[order])
        silent = numpy.flatnonzero((depth[:-1] > 0) & (edges[1:] > edges[:-1]))
        columns = {"seq": edges[silent], "seq_end": edges[silent + 1] - 1}
        same = {"topic": topic, "epoch": epoch, "_kind": "deleted"}
        arrays = [
            pyarrow.array(columns[one.name]) if one.name in columns
            else pyarrow.repeat(pyarrow.scalar(same.get(one.name), one.type), len(silent))
            for one in quarantine()
        ]  # fmt: skip
        yield topic, epoch, pyarrow.Table.from_arrays(arrays, schema=quarantine())


def runs(rows: pyarrow.Table) -> Iterator[tuple[str, str, pyarrow.Table]]:
    """Slices of one topic and one day (UTC); a range without a time counts to 1970-01-01."""
    import numpy
    from pyarrow import compute, int64

    if rows.num_rows == 0:
        return
    topics = compute.dictionary_encode(rows["topic"]).combine_chunks()
    codes = topics.indices.to_numpy()
    days = compute.fill_null(rows["ts"].cast(int64()), 0).to_numpy() // DAY_US
    cuts = numpy.flatnonzero((codes[1:] != codes[:-1]) | (days[1:] != days[:-1])) + 1
    names = topics.dictionary.to_pylist()
    for first, end in zip([0, *cuts], [*cuts, rows.num_rows], strict=True):
        yield names[codes[first]], str(numpy.datetime64(int(days[first]), "D")), rows.slice(first, end - first)


def _sort_out(rows: pyarrow.Table, payload: Any) -> tuple[pyarrow.Table, pyarrow.Table]:
    """Records whose payload fits, with it; and all other rows."""
    from pyarrow import compute

    is_record = compute.equal(rows["_kind"], "record")
    records, rest = rows.filter(is_record), rows.filter(compute.invert(is_record))
    if payload is None or records.num_rows == 0:
        return records, rest
    return payloads.parse(records, rest, payload)


def _new(rows: pyarrow.Table, held: Held, topic: str, epoch: str) -> pyarrow.Table:
    """What of rows, and of their ranges, is not held."""
    import numpy
    from pyarrow import Table, array, compute, concat_tables

    intervals = held.of(topic, epoch)
    if not intervals or rows.num_rows == 0:
        return rows
    seqs = rows["seq"].to_numpy()
    ends = compute.coalesce(rows["seq_end"], rows["seq"]).to_numpy()
    known = numpy.zeros(len(seqs), bool)
    for first, last in intervals:
        known |= (seqs <= last) & (ends >= first)
    cut = [
        row | {"seq": begin, "seq_end": end}
        for row in rows.filter(array(known & (ends > seqs))).to_pylist()
        for begin, end in held.missing(topic, epoch, row["seq"], row["seq_end"])
    ]
    fresh = rows.filter(array(~known))
    return concat_tables([fresh, Table.from_pylist(cut, rows.schema)]) if cut else fresh
