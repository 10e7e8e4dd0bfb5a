"""Manifests of an export (docs/format/export.md): which seqs of which topic stand in which file. One is written a run, whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import orjson
import xxhash

from topicsd.lake.pieces import Piece
from topicsd.lake.storage import Storage, open_storage
from topicsd.objects import is_url
from topicsd.segments.names import Place, Spot

FORMAT, FORMAT_VERSION = "topicsd-export", 1
MANIFESTS, PARTS = "manifests", "parts"
DELETED = "deleted"
TRIES = 3
_NAME = re.compile(r"(\d{20})\.jsonl")


class ManifestError(Exception):
    """Say why a manifest can not be used."""


class _DamagedError(ManifestError):
    """A manifest that does not read as it was written."""


@dataclass(frozen=True)
class Row:
    """Seqs first_seq .. last_seq of a topic, in the segment segment_first .. segment_last whose parts stand in `file`.

    Without a file (`file` is empty) `why` says what became of them: "deleted", or the reason of a gap.
    """

    first_seq: int
    last_seq: int
    segment_first: int
    segment_last: int
    first_ts: int
    last_ts: int
    records: int  # of the whole segment, as are all figures: live ones
    deleted: int
    holes: int
    payload_bytes: int
    corrupt_first: int  # of the first damaged range; 0: none
    corrupt_seqs: int
    file: str
    data_offset: int
    index_offset: int
    tags_offset: int
    end_offset: int
    data_xxh3: str
    parts_xxh3: str  # of all bytes from data_offset to end_offset
    stamp: str  # of the source's file: while it stays the segment is not read again
    why: str = ""
    evicted: bool = False  # without a file: a cap or a lifetime took these before they were exported, diff tells them as lost below its floor

    def place(self, root: Path, epoch: int) -> Place:
        """Where a reader finds it."""
        path = root / self.file
        data, index, tags = (Spot(path, offset) for offset in (self.data_offset, self.index_offset, self.tags_offset))
        return Place(data, index, tags, epoch, self.segment_first, self.segment_last, self.index_offset - self.data_offset)


@dataclass(frozen=True)
class Topic:
    """A topic's rows, ascending, without overlap. `epoch` is its topic id: a topic that is made again under its name has another.

    evict_floor: below it the source had lost records by the run; it may be that the rows have them. 1: nothing is lost, or nobody knows.
    older: what the export still has of the topics that had this name before, ascending.
    """

    name: str
    epoch: int
    rows: tuple[Row, ...]
    evict_floor: int = 1
    older: tuple[Topic, ...] = ()

    @property
    def next_seq(self) -> int:
        return self.rows[-1].last_seq + 1 if self.rows else 1

    @property
    def first_seq(self) -> int:
        return self.rows[0].first_seq if self.rows else 1

    @property
    def earliest_seq(self) -> int:
        """Behind what was evicted in front."""
        out = self.first_seq
        for row in self.rows:
            if row.first_seq > out or row.file or not (row.evicted or row.why == DELETED):
                break
            out = row.last_seq + 1
        return out

    @property
    def epochs(self) -> tuple[Topic, ...]:
        """All that the export has under the name, ascending; the last one is this."""
        return *self.older, self

    def behind_gap(self, seq: int) -> int:
        """The first seq from `seq` on that is in no range without a file."""
        for row in self.rows:
            if row.first_seq <= seq <= row.last_seq and not row.file:
                seq = row.last_seq + 1
        return seq

    def there(self, first_seq: int, last_seq: int) -> Iterator[tuple[str, int, int]]:
        """What of first_seq .. last_seq stands in segments that have records: where, and the seqs."""
        for row in overlapping(self.rows, first_seq, last_seq):
            if row.file and row.records:
                yield f"{row.file}@{row.data_offset}", row.first_seq, row.last_seq

    def pending_bytes(self, first_seq: int) -> int:
        """About what its segments have from first_seq on."""
        out = 0
        for row in self.rows:
            if row.last_seq >= first_seq:
                seqs = row.last_seq - max(row.first_seq, first_seq) + 1
                out += (row.end_offset - row.data_offset) * seqs // (row.segment_last - row.segment_first + 1)
        return out

    def line(self) -> bytes:
        """Its line of the manifest."""
        return orjson.dumps(self._members()) + b"\n"

    def _members(self) -> dict[str, Any]:
        figures = {name: sum(getattr(row, name) for row in self.rows) for name in ("records", "deleted", "holes", "payload_bytes", "corrupt_seqs")}
        head = {"topic": self.name, "epoch": f"{self.epoch:016x}", "first_seq": self.first_seq, "next_seq": self.next_seq}
        dated = [row for row in self.rows if not (row.evicted or row.why == DELETED)]
        times = {"first_ts": dated[0].first_ts, "last_ts": dated[-1].last_ts} if dated else {}
        more = {"evict_floor": self.evict_floor, "segments": [asdict(row) for row in self.rows]}
        return head | times | figures | more | ({"older": [one._members() for one in self.older]} if self.older else {})

    def pieces(
        self, root: Path, first_seq: int = 0, end_seq: int | None = None, *, since: int | None = None, until: int | None = None
    ) -> Iterator[Piece]:
        """What a reader of first_seq .. end_seq - 1 reads; what no segment holds inside of that is a gap. first_seq 0: from the first one on.

        since, until (epoch ms, inclusive and exclusive): segments that have no record of that time are left out.
        """
        at, end = first_seq or self.first_seq, self.next_seq if end_seq is None else end_seq
        for row in self.rows:
            first, last = max(row.first_seq, at), min(row.last_seq, end - 1)
            if first > last:
                continue
            if first > at:
                yield Piece(self.name, at, first - 1, None, "missing")
            if row.file and not ((since is not None and row.last_ts < since) or (until is not None and row.first_ts >= until)):
                yield Piece(self.name, first, last, row.place(root, self.epoch))
            elif not row.file and row.why != DELETED:
                yield Piece(self.name, first, last, None, row.why, row.last_ts or None, row.evicted)
            at = last + 1
        if at < end:
            yield Piece(self.name, at, end - 1, None, "missing")


@dataclass(frozen=True)
class Manifest:
    """What an export holds after one run."""

    number: int
    run: str
    written_ms: int
    topics: dict[str, Topic] = field(default_factory=dict)

    def raw(self) -> bytes:
        """The file's bytes."""
        head = {"format": FORMAT, "format_version": FORMAT_VERSION, "number": self.number, "run": self.run, "written_ms": self.written_ms}
        body = b"".join([orjson.dumps(head) + b"\n", *(self.topics[name].line() for name in sorted(self.topics))])
        end = {"end": True, "topics": len(self.topics), "xxh3": xxhash.xxh3_64_hexdigest(body)}
        return body + orjson.dumps(end) + b"\n"

    def files(self) -> set[str]:
        """The files that it needs."""
        return {row.file for topic in self.topics.values() for one in topic.epochs for row in one.rows if row.file}


def parse(raw: bytes, where: object = "manifest") -> Manifest:
    """Read and verify a manifest. Raises ManifestError."""
    cut = raw.rfind(b"\n", 0, len(raw) - 1) + 1
    try:
        head, end = orjson.loads(raw[: raw.index(b"\n")]), orjson.loads(raw[cut:])
        if head["format"] != FORMAT:
            raise ManifestError(f"{where}: not a manifest of an export")
        if head["format_version"] > FORMAT_VERSION:
            raise ManifestError(f"{where}: format version {head['format_version']}, this version knows {FORMAT_VERSION}")
        if end.get("end") is not True or end["xxh3"] != xxhash.xxh3_64_hexdigest(raw[:cut]):
            raise _DamagedError(f"{where}: damaged: its checksum differs")
        topics = {}
        for line in raw[:cut].splitlines()[1:]:
            told = orjson.loads(line)
            topics[told["topic"]] = _topic(told)
        return Manifest(head["number"], head["run"], head["written_ms"], topics)
    except (ValueError, KeyError, TypeError, AttributeError) as wrong:
        raise _DamagedError(f"{where}: damaged: {wrong}") from wrong


_FIELDS = [one.name for one in fields(Row)]
_ADDED = {"evicted": False}  # members that manifests of before do not have


def _topic(told: dict[str, Any]) -> Topic:
    rows, older = tuple(_row(row) for row in told["segments"]), tuple(_topic(one) for one in told.get("older", ()))
    return Topic(told["topic"], int(told["epoch"], 16), rows, told.get("evict_floor", 1), older)


def _row(told: dict[str, Any]) -> Row:
    return Row(**{name: told[name] for name in _FIELDS if name not in _ADDED}, **{name: told.get(name, value) for name, value in _ADDED.items()})


def name_of(number: int) -> str:
    """The name of a manifest in its export."""
    return f"{MANIFESTS}/{number:020d}.jsonl"


def path_of(root: Path, number: int) -> Path:
    """The file of a manifest."""
    return root / name_of(number)


def listed(root: Path | Storage) -> dict[int, float]:
    """All manifests by their numbers, ascending, with the times at which they were written (epoch s, by the clock of what holds them)."""
    found = ((_NAME.fullmatch(one.name.rpartition("/")[2]), one.modified) for one in open_storage(root).listed(MANIFESTS))
    return dict(sorted((int(name[1]), modified) for name, modified in found if name))


def numbers(root: Path | Storage) -> list[int]:
    """The numbers of all manifests, ascending."""
    return list(listed(root))


def read(root: Path | Storage, number: int) -> Manifest:
    """A manifest by its number. Raises ManifestError, OSError."""
    storage = open_storage(root)
    return parse(storage.read(name_of(number)), f"{storage}/{name_of(number)}")


def latest(root: Path | Storage) -> Manifest | None:
    """The newest manifest, None when there is none. Raises ManifestError when it is damaged: an older one would bring back what has been pruned."""
    storage = open_storage(root)
    for _ in range(TRIES):
        found = numbers(storage)
        if not found:
            return None
        try:
            return read(storage, found[-1])
        except FileNotFoundError:
            continue  # it has been pruned: newer ones are there
        except _DamagedError as wrong:
            raise ManifestError(f"{wrong}; remove the file to go on from the manifest before it, then run topicsd export") from wrong
    raise ManifestError(f"{storage}: its manifests go faster than they can be read")


def load(place: str) -> Manifest:
    """A manifest by its path or URL. Raises ManifestError, OSError."""
    folder, _, name = place.rpartition("/")
    raw = open_storage(folder).read(name) if is_url(place) else Path(place).read_bytes()
    return parse(raw, place)


def commit(root: Path | Storage, manifest: Manifest) -> bool:
    """Make a manifest the newest one; False when another run has taken its number. Raises OSError."""
    return open_storage(root).create(name_of(manifest.number), manifest.raw())


def without(rows: Iterable[Row], taken: Iterable[Row]) -> Iterator[Row]:
    """What of `rows` no seq of `taken` covers, cut where it must be."""
    cuts = sorted((row.first_seq, row.last_seq) for row in taken)
    for row in rows:
        at = row.first_seq
        for first, last in cuts:
            if last < at or first > row.last_seq:
                continue
            if first > at:
                yield replace(row, first_seq=at, last_seq=first - 1)
            at = last + 1
        if at <= row.last_seq:
            yield replace(row, first_seq=at)


def overlapping(rows: Iterable[Row], first_seq: int, last_seq: int) -> Iterator[Row]:
    """What rows have of a range."""
    for row in rows:
        first, last = max(row.first_seq, first_seq), min(row.last_seq, last_seq)
        if first <= last:
            yield replace(row, first_seq=first, last_seq=last)


def merged(old: Topic | None, new: Topic) -> Topic:
    """A topic's rows after a run: those of the run, and the old ones below and above them. Of another epoch the earlier one is an older topic.

    What lies between the run's first and last seq and is in none of its rows has been deleted: it goes.
    """
    if old is None:
        return new
    if old.epoch != new.epoch:
        first, last = (old, new) if old.epoch < new.epoch else (new, old)
        older = {one.epoch: one for one in (*first.older, *last.older) if one.rows}
        if first.epoch in older:
            first = merged(older[first.epoch], replace(first, older=()))
        if first.rows:
            older[first.epoch] = replace(first, older=())
        return replace(last, older=tuple(older[epoch] for epoch in sorted(older)))
    span = [replace(new.rows[0], last_seq=new.rows[-1].last_seq)] if new.rows else []
    rows = sorted([*new.rows, *without(old.rows, span)], key=lambda row: row.first_seq)
    return Topic(new.name, new.epoch, tuple(rows), max(old.evict_floor, new.evict_floor), old.older)


def filled(topic: Topic, begin: int, live: int, why: Callable[[int], str]) -> Topic:
    """With a row for all that stands in no file from `begin` on, below `live`: what the source lost below its evict floor, and what was deleted.

    why: gives the reason of a loss that begins at a seq. What stands in no file from `live` on is left as it is: nobody knows why.
    """
    end, made = topic.evict_floor, []
    whole = Row(begin, live - 1, begin, live - 1, 0, 0, 0, 0, 0, 0, 0, 0, "", 0, 0, 0, 0, "", "", "")
    for gap in without([whole] if begin < live else [], topic.rows):
        for first, last in ((gap.first_seq, min(gap.last_seq, end - 1)), (max(gap.first_seq, end), gap.last_seq)):
            if first <= last:
                lost = first < end
                made.append(
                    replace(
                        gap, first_seq=first, last_seq=last, segment_first=first, segment_last=last,
                        why=why(first) if lost else DELETED, evicted=lost,
                    )
                )  # fmt: skip
    return replace(topic, rows=tuple(sorted([*topic.rows, *made], key=lambda row: row.first_seq)))
