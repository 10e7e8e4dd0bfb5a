"""`topicsd spark ingest`: topics into a lake table, each seq once.

What the table holds is said by its own commits (tables.py), so nothing depends on the checkpoint: a batch is what the source has and the table
does not. Tasks write files, which nobody sees; the driver commits them. A driver that is killed leaves litter, and the next one reads the same
seqs again.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import pickle
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from topicsd.lake.manifest import Manifest, Topic
from topicsd.spark import payloads, plan
from topicsd.spark.lakes import Lake, lake_of
from topicsd.spark.live import Listing, LiveTopic
from topicsd.spark.lost import Lost
from topicsd.spark.options import Options
from topicsd.spark.ranges import Held, Range
from topicsd.spark.reading import look, read
from topicsd.spark.tables import ConflictError, TableError, remove
from topicsd.spark.write import NOTED, Task, Written, write

log = logging.getLogger("topicsd.spark")
PARTITION_BYTES_MIN = 8 << 20
CONFLICTS_MAX = 20


@dataclass
class Batch:
    """What one batch brought."""

    batch: int = 0
    topics: int = 0
    seqs: int = 0  # of the source, with and without a record
    records: int = 0
    quarantined: int = 0
    regained: int = 0  # records, among these, that had been named as lost
    recreated: int = 0  # topics that were deleted and made again: what the old ones had behind what came is not known
    files: int = 0
    bytes: int = 0
    ms: int = 0


@dataclass(frozen=True)
class Part:
    """Seqs of a topic that the table lacks. Below `earliest` all had gone when the job first saw the topic, and below `floor` some."""

    topic: str
    epoch: str
    first: int
    last: int
    earliest: int = 0
    floor: int = 0


Floors = dict[tuple[str, str], int]  # by topic and epoch


def missing(
    found: Manifest | Listing, held: Held, options: Options, limit: int | None, after: str = "", floors: Floors | None = None
) -> list[Part]:  # fmt: skip
    """What the source has and the table does not, at most `limit` seqs: topics behind `after` come first, so that each has its turn.

    What has gone from the source between what the table holds of a topic and what there still is counts as well: it is told as lost when it is read.
    Where an export still has an older topic of the name, of which the table holds something, that one's rest comes first, in a batch before.
    floors: of the topics that were new to the table when this job saw them; those that are now are added.
    """
    floors = {} if floors is None else floors
    out: list[Part] = []
    left = limit if limit is not None else 2**63
    topics = plan.chosen(found, options)
    for name in sorted(topics, key=lambda name: (name <= after, name)):
        for topic in due(topics[name], held):
            epoch, before = f"{topic.epoch:016x}", len(out)
            mine = held.of(name, epoch)
            if mine:
                plan.check_head(topic, name, mine[-1][1] + 1, options)
            else:
                floors[name, epoch] = topic.evict_floor
            begin = min([topic.first_seq, *(first for first, _ in mine[:1])])
            for first, last in held.missing(name, epoch, begin, topic.next_seq - 1):
                if left <= 0:
                    return out
                earliest = 0 if mine and mine[0][0] < first else topic.earliest_seq
                there = max(first, min(earliest, last + 1))  # what has gone in front is one row, however much it was
                stop = min(last, there + left - 1)
                out.append(Part(name, epoch, first, stop, earliest, max(earliest, floors.get((name, epoch), 0))))
                left -= stop - there + 1
            if len(out) > before:
                break
    return out


def due(topic: Topic | LiveTopic, held: Held) -> list[Topic | LiveTopic]:
    """What a table is to have of all that the source has under a name: the newest, the oldest one that it has begun with, and what came between."""
    known = {int(epoch, 16) for epoch in held.epochs(topic.name)}
    return [one for one in topic.epochs if one is topic or (known and one.epoch >= min(known))]


def recreated(parts: list[Part], held: Held) -> list[tuple[str, str, int]]:
    """(topic, old epoch, the seq behind what came of it) of each topic that was made again and comes for the first time."""
    out = []
    for name, epoch in dict.fromkeys((part.topic, part.epoch) for part in parts):
        older = [one for one in held.epochs(name) if one < epoch]
        if older and not held.of(name, epoch):
            out.append((name, older[-1], held.of(name, older[-1])[-1][1] + 1))
    return out


def tasks(found: Manifest | Listing, parts: list[Part], options: Options, cores: int) -> list[list[Any]]:
    """The pieces, or spans, of each task: alike by bytes, at least one for each core where there is enough. Raises GapError for lost data."""
    weighed: list[tuple[Any, int]] = []
    for part in parts:
        newest: Topic | LiveTopic = found.topics[part.topic]
        topic = plan.of_epoch(newest, int(part.epoch, 16)) or newest
        mean = topic.pending_bytes(topic.first_seq) // max(topic.next_seq - topic.earliest_seq, 1) + 1
        cut = plan.Cut(part.topic, topic.epoch, part.first, part.last + 1, part.earliest, part.floor)
        pieces: Iterable[Any]
        if isinstance(found, Listing):
            pieces = plan.live_spans([cut], options)
        else:
            pieces = plan.stream_pieces(found.topics[part.topic], options.root, cut, options)
        weighed += [(piece, (0 if piece.why else (piece.last_seq - piece.first_seq + 1) * mean) + plan.PIECE_BYTES) for piece in pieces]
    total = sum(size for _, size in weighed)
    count = max(-(-total // options.partition_bytes), min(cores, -(-total // PARTITION_BYTES_MIN)), 1)
    return list(plan.evenly(weighed, -(-total // count)))


def run_packed(packed: str) -> str:
    """Run one task; what `Written` says, packed."""
    task: Task = pickle.loads(base64.b64decode(packed))
    return base64.b64encode(pickle.dumps(write(task, read(task.options, task.pieces)))).decode()


def run_here(made: list[Task]) -> list[Written]:
    """Run tasks in this process, one after another."""
    return [write(task, read(task.options, task.pieces)) for task in made]


Runner = Callable[[list[Task]], list[Written]]


class Ingest:
    """One table's job. runner: has tasks run, somewhere. schema: "raw", "infer" or the payload's Arrow type.

    Raises TableError, GapError, DamagedError, ServerError, ManifestError.
    """

    def __init__(
        self, runner: Runner, options: Options, table: Path | Lake, *, cores: int = 1, schema: Any = "raw", limit: int | None = None,
        checkpoint: Path | None = None,
    ) -> None:  # fmt: skip
        self._runner, self._options, self._limit, self._checkpoint = runner, options, limit, checkpoint
        self._lake = lake_of(table)
        self._root, self._bad_root = self._lake.table().path, self._lake.quarantine().path
        self._schema, self._cores, self._after = schema, cores, ""
        self._floors: Floors = {}
        self._lost = Lost(self._lake.table(), self._lake.quarantine())
        self._tried = Held()  # what was looked for among what is named as lost; the epochs have the file behind them
        self.query = self._name()

    def _name(self) -> str:
        """The job's id, which its checkpoint keeps; a lost one costs nothing."""
        path = None if self._checkpoint is None else self._checkpoint / "ingest.json"
        if path is not None and path.exists():
            return str(json.loads(path.read_bytes())["query"])
        return uuid.uuid4().hex

    def _remember(self, batch: Batch, held: Held) -> None:
        if self._checkpoint is None:
            return
        self._checkpoint.mkdir(parents=True, exist_ok=True)
        told = {"query": self.query, "batch": batch.batch, "table": str(self._root), "held": held.ranges()}
        unfinished = self._checkpoint / f"ingest.json.{os.getpid()}.tmp"
        unfinished.write_text(json.dumps(told))
        unfinished.replace(self._checkpoint / "ingest.json")

    def payload(self, found: Manifest | Listing) -> Any:
        """The type of the column payload: the table's, where it has one; None: there is none."""
        table = self._lake.table()
        if table.open() is not None:
            return table.payload()
        if isinstance(self._schema, str) and self._schema == "raw":
            return None
        return self._inferred(found) if isinstance(self._schema, str) else self._schema

    def _inferred(self, found: Manifest | Listing) -> Any:
        import pyarrow

        for part in missing(found, Held(), self._options, payloads.INFER_ROWS):
            pieces = [piece for group in tasks(found, [part], self._options, 1) for piece in group]
            batches = list(read(self._options, pieces))
            kind = payloads.infer(pyarrow.Table.from_batches(batches)) if batches else None
            if kind is not None:
                return kind
        raise TableError("no schema could be inferred: the first records are no JSON objects that agree; name one, or keep the payload raw")

    def look(self) -> Manifest | Listing:
        """What the source has now."""
        return look(self._options)

    def batch(self, found: Manifest | Listing | None = None) -> Batch | None:
        """Bring the next batch of what there is, or of what `found` has; None when there is nothing to bring."""
        for _ in range(CONFLICTS_MAX):
            try:
                return self._batch(found or self.look())
            except ConflictError:
                continue  # another job was faster: what it brought is held now
        raise TableError(f"{self._root}: other writers are always faster")

    def _batch(self, found: Manifest | Listing) -> Batch | None:
        held, number = self._lake.table().held()
        quarantined, bad_number = self._lake.quarantine().held()
        while parts := self._still_there(found, held, bad_number):
            batch = self._bring(found, parts, held, number, Held(), bad_number, again=True)
            for part in parts:
                self._try(found, part)
            if batch is not None:
                return batch
        parts = missing(found, held, self._options, self._limit, self._after, self._floors)
        return self._bring(found, parts, held, number, quarantined, bad_number) if parts else None

    def _still_there(self, found: Manifest | Listing, held: Held, bad_number: int) -> list[Part]:
        """What the quarantine names as lost, the table holds without a record, and the source may have; of each topic in one epoch."""
        out: list[Part] = []
        left = self._limit if self._limit is not None else 2**63
        topics = plan.chosen(found, self._options)
        epochs: dict[str, str] = {}
        lost = self._lost.named(bad_number).ranges()  # of a job that was killed the table holds nothing: that comes as if it were new
        for name, epoch, first, last in (part for one in lost for part in held.common(*one)):
            mine = plan.of_epoch(topics[name], int(epoch, 16)) if name in topics else None
            if mine is None or epochs.get(name, epoch) != epoch:
                continue
            for file, begin, end in mine.there(first, last):
                if self._tried.covers(name, f"{epoch} {file}", begin, end):
                    continue
                come = self._lost.found(name, epoch, begin, end)
                for _, _, at, until in come.ranges():
                    self._tried.add(name, f"{epoch} {file}", at, until)
                for at, until in self._tried.missing(name, f"{epoch} {file}", begin, end):
                    if left <= 0:
                        return out
                    stop = min(until, at + left - 1)
                    epochs[name] = epoch
                    out.append(Part(name, epoch, at, stop))
                    left -= stop - at + 1
        return out

    def _try(self, found: Manifest | Listing, part: Part) -> None:
        """Remember that a range has been looked for: what has not come of it was deleted, or is damaged."""
        mine = plan.of_epoch(found.topics[part.topic], int(part.epoch, 16))
        for file, begin, end in mine.there(part.first, part.last) if mine is not None else ():
            self._tried.add(part.topic, f"{part.epoch} {file}", begin, end)

    def _bring(
        self, found: Manifest | Listing, parts: list[Part], held: Held, number: int, quarantined: Held, bad_number: int, *, again: bool = False
    ) -> Batch | None:
        """Commit what the source has of parts. again: the table holds them, as lost; without a record nothing is committed."""
        began = time.monotonic()
        kind = self.payload(found)
        table, bad = self._lake.table(kind), self._lake.quarantine()
        options = self._options
        if again:
            options = replace(options, on_gap="skip", fail_on_loss=False, on_corrupt="fail" if options.on_corrupt == "fail" else "skip")
        packed = None if kind is None else _serialized(kind)
        epochs = {part.topic: part.epoch for part in parts}
        notes = [] if again else recreated(parts, held)
        for name, epoch, seq in notes:
            log.warning(plan.MADE_AGAIN, name, epoch, seq)
        groups = tasks(found, parts, options, self._cores)
        silent = _silent(parts, [piece for group in groups for piece in group])
        groups = groups or ([[]] if notes or silent else [])
        made = [
            Task(
                options,
                pieces,
                {piece.topic: epochs[piece.topic] for piece in pieces},
                str(self._root),
                str(self._bad_root),
                table.keys_in_files,
                packed,
                quarantined,
                [] if at else notes,
                None if again else [] if at else silent,
            )
            for at, pieces in enumerate(groups)
        ]
        written = self._runner(made)
        files, bad_files = [one for each in written for one in each.files], [one for each in written for one in each.bad]
        if again and not files and not bad_files:
            return None
        ranges: list[Range] = [] if again else [(part.topic, part.epoch, part.first, part.last) for part in parts]
        try:
            if bad_files:  # before the table: who is killed in between finds these seqs in the quarantine, and does not put them there again
                told: list[Range] = [(name, epoch, NOTED, NOTED) for name, epoch, _ in notes]
                new = [one for part in [*ranges, *told] for one in _rest(quarantined, part)]
                bad.commit(bad_files, new, bad_number)
                bad_files = []
            table.commit(files, ranges, number)
        except ConflictError:
            remove(self._root, files)
            remove(self._bad_root, bad_files)
            raise
        self._after = parts[-1].topic
        for one in ranges:
            held.add(*one)
        out = Batch(
            number, len(epochs), sum(part.last - part.first + 1 for part in parts), sum(one.records for one in written),
            sum(one.quarantined for one in written), sum(one.records + one.quarantined for one in written) if again else 0, len(notes), len(files),
            sum(one.size for one in files), round((time.monotonic() - began) * 1000),
        )  # fmt: skip
        self._remember(out, held)
        return out


def _silent(parts: list[Part], pieces: list[Any]) -> list[Range]:
    """What of these parts no piece reads: the source has deleted it."""
    read = Held((piece.topic, "", piece.first_seq, piece.last_seq) for piece in pieces)
    return [(part.topic, part.epoch, *gap) for part in parts for gap in read.missing(part.topic, "", part.first, part.last)]


def _rest(held: Held, part: Range) -> Iterator[Range]:
    topic, epoch, first, last = part
    for begin, end in held.missing(topic, epoch, first, last):
        yield topic, epoch, begin, end


def _serialized(kind: Any) -> bytes:
    import pyarrow

    return bytes(pyarrow.schema([("payload", kind)]).serialize())


Tell = Callable[[dict[str, Any]], None]


def run(ingest: Ingest, *, once: bool, interval_s: float = 5.0, stop: Callable[[], bool], tell: Tell) -> dict[str, Any]:
    """Bring batches until all is there that the source has now (once), or until it is stopped; the sums."""
    sums = Batch()
    found = ingest.look() if once else None
    while not stop():
        batch = ingest.batch(found)
        if batch is None:
            if once:
                break
            time.sleep(interval_s)
            continue
        tell(asdict(batch))
        for name in ("seqs", "records", "quarantined", "regained", "recreated", "files", "bytes", "ms"):
            setattr(sums, name, getattr(sums, name) + getattr(batch, name))
        sums.batch, sums.topics = batch.batch, max(sums.topics, batch.topics)
    return {"query": ingest.query} | asdict(sums)
