"""`topicsd spark audit`: does a lake table hold each record of its sources once, as it is there? Compared by topic and day; no Spark is needed."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from topicsd.lake.scan import matches
from topicsd.spark import plan
from topicsd.spark.ingest import due
from topicsd.spark.lakes import Lake, lake_of
from topicsd.spark.live import Listing
from topicsd.spark.lost import Lost, ranges_of
from topicsd.spark.options import Options
from topicsd.spark.ranges import Held
from topicsd.spark.reading import look, read
from topicsd.spark.tables import LakeTable, topic_key
from topicsd.spark.write import runs

if TYPE_CHECKING:
    import pyarrow

COMPARED = ("data", "ts", "tag", "node", "meta")
RANGES_TOLD = 20
Key = tuple[str, str, str]  # topic, epoch, day


@dataclass
class Day:
    """One topic's day, on both sides."""

    topic: str
    epoch: str
    day: str
    source: int = 0
    lake: int = 0  # with what is in the quarantine
    quarantined: int = 0
    hash: str = ""  # of the records that both have: seqs and data
    missing: list[list[int]] = field(default_factory=list)  # ranges of seqs that the source has and the lake has not
    repairable: list[list[int]] = field(
        default_factory=list
    )  # the same, but the quarantine names them as lost: an ingest from the source brings them
    doubled: list[list[int]] = field(default_factory=list)
    differing: list[list[int]] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)  # in which these differ
    unknown: list[list[int]] = field(default_factory=list)  # ranges of the lake's that the source has never had
    deleted: int = 0  # of the source's: that of the lake had deleted them before they could come
    gone: int = 0  # of the lake's: deleted, expired or evicted in the source since
    lost: list[list[int]] = field(default_factory=list)  # ranges that the source has lost, and the lake neither has nor names

    @property
    def clean(self) -> bool:
        """Nothing is lost, doubled, different or made up."""
        return not (self.missing or self.repairable or self.doubled or self.differing or self.unknown or self.lost)

    def line(self) -> dict[str, Any]:
        """As a line of JSON has it; of long lists the beginning."""
        told = dict(vars(self)) | {"clean": self.clean}
        return {name: value[:RANGES_TOLD] if isinstance(value, list) else value for name, value in told.items() if value != []}


class Audit:
    """A table and its quarantine, beside a source. Raises what reading raises, TableError.

    server: of an export; what it had deleted need not have come to a table that was filled from both.
    """

    def __init__(self, table: Path | Lake, options: Options, server: Options | None = None) -> None:
        columns = ("topic", "seq", *COMPARED, "_kind", "seq_end", "_err")
        honest = functools.partial(replace, columns=columns, on_gap="row", on_corrupt="row", fail_on_loss=False)
        self._options, self._server = honest(options), None if server is None else honest(server)
        self._lake = _Side(lake_of(table).table(), ["topic", "epoch", "seq", *COMPARED])
        self._bad = _Side(lake_of(table).quarantine(), ["topic", "epoch", "seq", *COMPARED, "_kind", "seq_end", "_err"])
        self._next: dict[tuple[str, str], int] = {}  # by topic and epoch: seqs from there on have never been
        self._held = lake_of(table).table().held()[0]
        self._named = Lost(lake_of(table).table(), lake_of(table).quarantine())
        self._names_lost, self._names_deleted = self._named.named(), self._named.deleted()
        self._lost: dict[tuple[str, str], list[list[int]]] = {}
        self._found: dict[tuple[str, str], Held] = {}  # what has come of what was lost

    def gaps(self) -> list[dict[str, Any]]:
        """The ranges that the quarantine names as lost or damaged, but for what has come since."""
        import pyarrow
        from pyarrow import compute

        out: list[dict[str, Any]] = []
        for key, day in self._bad.partitions():
            rows = self._bad.rows(key, day)
            out += rows.filter(compute.is_in(rows["_kind"], pyarrow.array(["gap", "corrupt"]))).drop_columns(list(COMPARED)).to_pylist()
        told = ({**row, "from": row.pop("seq"), "to": row.pop("seq_end"), "why": row.pop("_err")} for row in out)
        return [one for row in told for one in self._left(row)]

    def _left(self, gap: dict[str, Any]) -> Iterator[dict[str, Any]]:
        topic, epoch, first = gap["topic"], gap["epoch"], gap["from"]
        if gap["to"] is None:  # nobody knows how far it goes, but what the lake holds has come
            yield gap | {"from": max([first, *(last + 1 for _, last in self._held.of(topic, epoch))])}
            return
        if (topic, epoch) not in self._found:
            named = self._names_lost.of(topic, epoch)
            self._found[topic, epoch] = self._named.found(topic, epoch, named[0][0], named[-1][1])
        for begin, end in self._found[topic, epoch].missing(topic, epoch, first, gap["to"]):
            yield gap | {"from": begin, "to": end}

    def days(self) -> Iterator[Day]:
        """Each day of each topic of the source; then those that the lake alone has."""
        seen: set[Key] = set()
        for (topic, epoch, day), rows in self._source():
            seen.add((topic, epoch, day))
            yield self._compare(Day(topic, epoch, day), rows)
        for key, day in self._lake.partitions():
            for topic, epoch in self._lake.topics(key, day):
                if (topic, epoch, day) not in seen and matches(topic, self._options.topics):
                    yield self._compare(Day(topic, epoch, day), self._lake.rows(key, day).slice(0, 0))
        for (topic, epoch), lost in self._lost.items():
            yield Day(topic, epoch, "", lost=lost)

    def _source(self) -> Iterator[tuple[Key, pyarrow.Table]]:
        """The source's records by topic and day. A day's records come together, as a topic's times never fall."""
        import pyarrow
        from pyarrow import compute

        found = look(self._options)
        for topic in (one for newest in plan.chosen(found, self._options).values() for one in due(newest, self._held)):
            name = topic.name
            self._next[name, f"{topic.epoch:016x}"] = topic.next_seq
            if topic.next_seq <= topic.first_seq:
                continue
            cut = plan.Cut(name, topic.epoch, topic.first_seq, topic.next_seq, topic.earliest_seq, topic.evict_floor)
            if isinstance(found, Listing):
                pieces: list[Any] = plan.live_spans([cut], self._options)
            else:
                pieces = list(plan.stream_pieces(found.topics[name], self._options.root, cut, self._options))
            day = ""
            parts: list[pyarrow.Table] = []
            for batch in read(self._options, pieces):
                rows = pyarrow.Table.from_batches([batch])
                self._note(name, f"{topic.epoch:016x}", rows.filter(compute.equal(rows["_kind"], "gap")))
                for _, new_day, part in runs(rows.filter(compute.equal(rows["_kind"], "record"))):
                    if new_day != day and parts:
                        yield (name, f"{topic.epoch:016x}", day), pyarrow.concat_tables(parts)
                        parts = []
                    day = new_day
                    parts.append(part.select(["seq", *COMPARED]))
            if parts:
                yield (name, f"{topic.epoch:016x}", day), pyarrow.concat_tables(parts)

    def _note(self, topic: str, epoch: str, gaps: pyarrow.Table) -> None:
        """Remember what is lost that the lake knows nothing of."""
        for first, last in zip(gaps["seq"].to_pylist(), gaps["seq_end"].to_pylist(), strict=True):
            for begin, end in self._held.missing(topic, epoch, first, last or first):
                self._lost.setdefault((topic, epoch), []).append([begin, end])

    def _deleted(self, topic: str, epoch: str, seqs: Any) -> Any:
        """Which of these seqs the source of the table had deleted before they could come: the quarantine says so, and the server has them no longer.

        Where the quarantine says nothing (tables of before): those that the table holds, as its commits say, and that the server has neither now nor
        lost.
        """
        if len(seqs) == 0:
            return seqs
        first, last = int(seqs[0]), int(seqs[-1])
        there: list[tuple[int, int]] = []
        unsettled = list(self._held.missing(topic, epoch, first, last))
        deleted = _inside(seqs, self._names_deleted.of(topic, epoch)) & ~_inside(seqs, unsettled)  # a job that was killed has settled nothing
        if self._server is None:
            return seqs[deleted]
        spans = plan.live_spans([plan.Cut(topic, int(epoch, 16), first, last + 1)], self._server)
        for batch in read(self._server, spans):
            for kind, begin, end in zip(*(batch.column(name).to_pylist() for name in ("_kind", "seq", "seq_end")), strict=True):
                (there if kind == "record" else unsettled).append((begin, end or begin))
        return seqs[(deleted | ~_inside(seqs, unsettled)) & ~_inside(seqs, there)]

    def _compare(self, out: Day, source: pyarrow.Table) -> Day:
        import numpy
        import pyarrow
        from pyarrow import compute

        key = topic_key(out.topic)
        sides = [side.of(key, out.day, out.topic, out.epoch) for side in (self._lake, self._bad)]
        bad = sides[1].filter(compute.equal(sides[1]["_kind"], "bad")) if sides[1].num_rows else sides[1]
        lake = pyarrow.concat_tables([side.select(["seq", *COMPARED]) for side in (sides[0], bad)])
        out.source, out.lake, out.quarantined = source.num_rows, lake.num_rows, bad.num_rows
        there, here = source["seq"].to_numpy(), compute.fill_null(lake["seq"], 0).to_numpy()
        unique, first, counts = numpy.unique(here, return_index=True, return_counts=True)
        out.doubled = ranges_of(unique[counts > 1])
        absent = numpy.setdiff1d(there, unique)
        named = _inside(absent, self._names_lost.of(out.topic, out.epoch))
        out.repairable, absent = ranges_of(absent[named]), absent[~named]
        deleted = self._deleted(out.topic, out.epoch, absent)
        out.missing, out.deleted = ranges_of(numpy.setdiff1d(absent, deleted)), len(deleted)
        both, at_source, at_unique = numpy.intersect1d(there, unique, return_indices=True)
        alone = numpy.setdiff1d(unique, both)
        never = alone >= self._next.get((out.topic, out.epoch), 2**63 - 1)
        if self._options.path:  # an export may lag behind the server from which a table was filled, and has only the beginning of an older topic
            never &= ~_inside(alone, self._held.of(out.topic, out.epoch))
        never |= alone < 1
        out.unknown, out.gone = ranges_of(alone[never]), int((~never).sum())
        ours, theirs = lake.take(first[at_unique]), source.take(at_source)
        out.hash = hashed(both, theirs["data"])
        wrong = numpy.zeros(len(both), bool)
        for name in COMPARED:
            differs = differing(ours[name], theirs[name])
            if differs.any():
                out.columns.append(name)
                wrong |= differs
        out.differing = ranges_of(both[wrong])
        return out


class _Side:
    """A table's rows by partition; the last one is kept."""

    def __init__(self, table: LakeTable, columns: list[str]) -> None:
        self._table, self._columns = table, columns
        self._paths: dict[tuple[str, str], list[str]] = table.partitions()
        self._kept: tuple[tuple[str, str], pyarrow.Table] | None = None

    def partitions(self) -> list[tuple[str, str]]:
        return sorted(self._paths)

    def rows(self, key: str, day: str) -> pyarrow.Table:
        """A partition's rows."""
        import pyarrow
        from pyarrow import parquet

        if self._kept is None or self._kept[0] != (key, day):
            schema = pyarrow.schema([self._table.schema.field(name) for name in self._columns])
            paths = self._paths.get((key, day), ())
            parts = [parquet.read_table(path, columns=self._columns, partitioning=None) for path in paths]
            self._kept = (key, day), pyarrow.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts)])
        return self._kept[1]

    def topics(self, key: str, day: str) -> list[tuple[str, str]]:
        """The topics and epochs of a partition."""
        from pyarrow import parquet

        parts = (parquet.read_table(path, columns=["topic", "epoch"], partitioning=None) for path in self._paths[key, day])
        return sorted({(row["topic"], row["epoch"]) for part in parts for row in part.group_by(["topic", "epoch"]).aggregate([]).to_pylist()})

    def of(self, key: str, day: str, topic: str, epoch: str) -> pyarrow.Table:
        """Those of one topic: a key may be of two, and a name of two epochs."""
        from pyarrow import compute

        rows = self.rows(key, day)
        return rows.filter(compute.and_(compute.equal(rows["topic"], topic), compute.equal(rows["epoch"], epoch)))


def _inside(seqs: Any, ranges: Iterable[tuple[int, int]]) -> Any:
    """Which of ascending seqs stand in one of these ranges, as bools."""
    import numpy

    out = numpy.zeros(len(seqs), bool)
    for begin, end in ranges:
        out[numpy.searchsorted(seqs, begin) : numpy.searchsorted(seqs, end, "right")] = True
    return out


def differing(ours: Any, theirs: Any) -> Any:
    """Where two columns of one length differ, as bools. A null equals a null alone."""
    import numpy
    import pyarrow
    from pyarrow import compute

    theirs = theirs.cast(ours.type)
    if ours.equals(theirs):
        return numpy.zeros(len(ours), bool)
    if pyarrow.types.is_map(ours.type):  # no kernel compares them
        return numpy.array([one != other for one, other in zip(ours.to_pylist(), theirs.to_pylist(), strict=True)], bool)
    nulls = compute.not_equal(ours.is_null(), theirs.is_null())
    return compute.or_(nulls, compute.fill_null(compute.not_equal(ours, theirs), False)).to_numpy()


def hashed(seqs: Any, datas: Any) -> str:
    """XXH3-128 of the seqs, of each data's length, and of all data, in the order of the seqs."""
    import pyarrow
    from pyarrow import compute

    out = xxhash.xxh3_128(seqs.astype("<i8").tobytes())
    whole = datas.combine_chunks() if isinstance(datas, pyarrow.ChunkedArray) else datas
    out.update(compute.binary_length(whole).cast(pyarrow.int32()).to_numpy(zero_copy_only=False).astype("<i4").tobytes())
    for chunk in whole.chunks if isinstance(whole, pyarrow.ChunkedArray) else [whole]:
        packed = pyarrow.concat_arrays([chunk])
        _, offsets, data = packed.buffers()
        if data is not None and len(packed):
            starts = memoryview(offsets).cast("B").cast("i")
            out.update(memoryview(data).cast("B")[starts[packed.offset] : starts[packed.offset + len(packed)]])
    return out.hexdigest()
