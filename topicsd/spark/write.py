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
from topicsd.spark.ranges import Held
from topicsd.spark.tables import File, envelope, folder, quarantine, topic_key

if TYPE_CHECKING:
    import pyarrow

DAY_US = 86_400_000_000
ROW_GROUP_ROWS = 128_000
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
    for batch in batches:
        for topic, day, rows in runs(pyarrow.Table.from_batches([batch])):
            epoch = task.epochs[topic]
            rows = rows.append_column("epoch", pyarrow.repeat(epoch, rows.num_rows))
            fits, rest = _sort_out(rows, payload)
            rest = _new(rest, task.quarantined, topic, epoch)
            if fits.num_rows:
                good.add(topic, day, fits.select(envelope(payload).names))
            if rest.num_rows:
                bad.add(topic, day, rest.select(quarantine().names))
            out.records, out.quarantined = out.records + fits.num_rows, out.quarantined + rest.num_rows
    good.close()
    bad.close()
    return out


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
    import numpy
    from pyarrow import array

    intervals = held.of(topic, epoch)
    if not intervals or rows.num_rows == 0:
        return rows
    seqs = rows["seq"].to_numpy()
    known = numpy.zeros(len(seqs), bool)
    for first, last in intervals:
        known |= (seqs >= first) & (seqs <= last)
    return rows.filter(array(~known))
