"""Export sealed segments to a folder or an object store: copy what is new, verify the copy, commit a manifest (docs/format/export.md).

A run writes files that no manifest names yet, each under a temporary name until it is whole, verified and synced (objects are whole or not there);
the manifest is the last thing that it writes. So a run that is killed leaves litter at most, and the next one takes from it what has its final
name. Two runs at once write the same files or others, never half ones; whose manifest comes second is made anew on top of the first.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from topicsd._native.segment import STATUS, SegmentError, SegmentView, header_of
from topicsd._native.segment_repair import Examiner, Findings
from topicsd.lake import manifest as manifests
from topicsd.lake.manifest import DELETED, MANIFESTS, PARTS, Manifest, Row, Topic
from topicsd.lake.pieces import Piece
from topicsd.lake.scan import matches
from topicsd.lake.sources import Sealed, Source, SourceTopic
from topicsd.lake.storage import LITTER_AGE_S, Folder, Storage, VerifyError, open_storage
from topicsd.segments.names import Place

SMALL_BYTES = 1 << 20  # segments below share a file
BUNDLE_BYTES = 64 << 20  # a shared file is closed above
COPY_BYTES = 64 << 20
FRESH_NS = 2_000_000_000
NEWER = 4
FLAG_DELETED = 0xD5
CANNOT_SHARE = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
MANIFESTS_KEPT = 3  # by a prune: who reads an older one has so many runs to finish


@dataclass
class Report:
    """What a run did."""

    manifest: int = 0
    topics: int = 0
    segments: int = 0  # that the manifest names
    segments_copied: int = 0
    segments_vanished: int = 0  # retired by the server while the run went on
    segments_corrupt: int = 0  # copied as they are: a reader is told what is lost
    segments_unreadable: int = 0
    bytes_copied: int = 0
    files_pruned: int = 0
    changed: bool = False

    def line(self) -> dict[str, int | bool]:
        """Its members as one line of JSON has them."""
        return dict(vars(self))


@dataclass
class _Raw:
    """A segment's three parts in memory or mapped; `data_bytes`: what there is of the data part, less than its header says when it was cut."""

    data: bytes | mmap.mmap
    data_bytes: int
    index: bytes
    tags: bytes
    found: Findings


class Exporter:
    """One run. `topics`: names or prefixes with * at the end; None: all. `quiet`: without anything new no manifest is written.

    `verify`: what the export has already is read, and copied again where it is damaged.
    """

    def __init__(
        self, source: Source, root: Path | Storage, *, topics: Iterable[str] | None = None, since: Manifest | None = None, prune: bool = False,
        quiet: bool = False, verify: bool = False, now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:  # fmt: skip
        self.source, self.storage = source, open_storage(root)
        self._wanted = None if topics is None else list(topics)
        self._since, self._prune, self._quiet, self._verify, self._now_ms = since, prune, quiet, verify, now_ms
        self._read: tuple[str, bytes] = "", b""  # the file that was verified last
        self._run = secrets.token_hex(8)
        self._examiner = Examiner()
        self._report = Report()
        self._bundle: list[tuple[str, Row, bytes]] = []  # (topic, row as far as known, parts)
        self._bundled = 0
        self._sizes: dict[str, int] = {}
        self._rows: dict[str, list[Row]] = {}
        self._begins: dict[str, int] = {}  # of topics of which a part is left out

    def run(self) -> Report:
        """Copy what is new and commit. Raises OSError, ManifestError, VerifyError, SegmentError: then nothing has been committed."""
        self.storage.prepare((MANIFESTS, PARTS))
        previous = manifests.latest(self.storage)
        seen: dict[str, SourceTopic] = {}
        try:
            for topic in self.source.topics():
                if matches(topic.name, self._wanted) and (topic.name not in seen or seen[topic.name].epoch < topic.epoch):
                    seen[topic.name] = topic
                    self._topic(topic, previous)
            self._close_bundle()
        finally:
            self.storage.tidy(PARTS, self._run)
        made = self._commit(seen, previous)
        if self._prune:
            self._remove_litter()
        self._report.manifest = made.number
        self._report.topics, self._report.segments = len(made.topics), sum(len(topic.rows) for topic in made.topics.values())
        return self._report

    # ---- segments

    def _topic(self, topic: SourceTopic, previous: Manifest | None) -> None:
        self._rows[topic.name] = []
        before = previous.topics.get(topic.name) if previous else None
        known = {} if before is None or before.epoch != topic.epoch else {(row.segment_first, row.segment_last): row for row in before.rows}
        base = self._since.topics.get(topic.name) if self._since else None
        begin = base.next_seq if base is not None and base.epoch == topic.epoch else 0
        self._begins[topic.name] = max(begin, 1)
        for sealed in topic.sealed:
            piece = sealed.piece
            if piece.last_seq and piece.last_seq < begin:
                continue
            sealed = replace(sealed, piece=replace(piece, first_seq=max(piece.first_seq, begin)))
            try:
                self._segment(topic, sealed, known)
            except FileNotFoundError:
                self._report.segments_vanished += 1
                self._rows[topic.name] += manifests.overlapping(known.values(), piece.first_seq, piece.last_seq)
            except SegmentError as wrong:
                if wrong.status == NEWER:
                    raise
                self._report.segments_unreadable += 1  # no header can be believed: readers are told of a gap

    def _segment(self, topic: SourceTopic, sealed: Sealed, known: dict[tuple[int, int], Row]) -> None:
        piece, place = sealed.piece, sealed.piece.place
        if place is None:
            self._rows[topic.name].append(_empty_row(piece))
            return
        gone = sealed.deleted()
        stamp = stamp_of(place) + (f"-{xxhash.xxh3_64_hexdigest(gone)}" if gone else "")
        old = known.get((place.first_seq, place.last_seq))
        if old is not None and old.stamp == stamp and self._whole(old):
            self._rows[topic.name].append(replace(old, first_seq=piece.first_seq, last_seq=piece.last_seq))
            return
        folder = self.storage if isinstance(self.storage, Folder) else None
        small = place.data_bytes or place.data.path.stat().st_size < SMALL_BYTES
        if small or folder is None:
            raw = self._load(place, gone)
            parts = raw.data[: raw.data_bytes] + raw.index + raw.tags
            row = self._row(topic, piece, raw, stamp, parts)
            if old is not None and old.parts_xxh3 == row.parts_xxh3 and self._whole(old):
                self._rows[topic.name].append(replace(old, first_seq=row.first_seq, last_seq=row.last_seq, stamp=stamp))
                return
            if not small:
                name = f"{PARTS}/{topic.epoch:016x}-{place.first_seq:020d}-{xxhash.xxh3_128_hexdigest(parts)}.parts"
                self._keep(name, parts)
                self._rows[topic.name].append(replace(row, file=name))
                return
            self._bundle.append((topic.name, row, parts))
            self._bundled += len(parts)
            if self._bundled >= BUNDLE_BYTES:
                self._close_bundle()
            return
        row = self._large(folder, topic, piece, place, stamp, gone)
        if old is not None and old.parts_xxh3 == row.parts_xxh3 and self._whole(old):
            row = replace(old, first_seq=row.first_seq, last_seq=row.last_seq, stamp=stamp)
        self._rows[topic.name].append(row)

    def _whole(self, row: Row) -> bool:
        """Say whether the file that holds a row's parts is there, and long enough; or, in a run that verifies, whether it holds them."""
        if row.file not in self._sizes:
            try:
                self._sizes[row.file] = self.storage.size(row.file)
            except FileNotFoundError:
                self._sizes[row.file] = 0
        if self._sizes[row.file] < row.end_offset:
            return False
        if not self._verify:
            return True
        if self._read[0] != row.file:
            self._read = row.file, self.storage.read(row.file)
        return xxhash.xxh3_64_hexdigest(memoryview(self._read[1])[row.data_offset : row.end_offset]) == row.parts_xxh3

    def _keep(self, name: str, raw: bytes) -> None:
        """Have the bytes under a name, which says what they are, verified there."""
        if self.storage.keep(name, raw, self._run):
            self._report.bytes_copied += len(raw)
        self._sizes.pop(name, None)

    def _load(self, place: Place, gone: Sequence[int]) -> _Raw:
        with place.data.path.open("rb") as file:
            file.seek(place.data.offset)
            data = file.read(place.data_bytes) if place.data_bytes else file.read()
        raw = self._examine(place, data)
        offsets = flag_offsets(raw, gone)
        if not offsets:
            return raw
        flagged = bytearray(data)
        for offset in offsets:
            flagged[offset] = FLAG_DELETED
        return self._examine(place, bytes(flagged))

    def _examine(self, place: Place, data: bytes | mmap.mmap) -> _Raw:
        """Verify a copy of the data part, which begins at byte 0 of `data`; index and tags are read, or made again where they are damaged."""
        index, tags = _part(place, "index"), _part(place, "tags")
        identity = (place.topic_id, place.first_seq, place.last_seq)
        found = self._examiner.examine(data, index or None, tags or None, identity=identity, data_bytes=len(data))
        if (found.topic_id, found.first_seq, found.last_seq) != (place.topic_id, place.first_seq, place.last_seq):
            raise VerifyError(f"{place.data.path}: it is the segment of another topic or of other seqs")
        if found.index_status != 0 or not index:
            index = self._examiner.remade("index")
        if found.tags_status != 0 or not tags:
            tags = self._examiner.remade("tags")
        return _Raw(data, min(found.data_bytes, len(data)) & ~7, index, tags, found)

    def _row(self, topic: SourceTopic, piece: Piece, raw: _Raw, stamp: str, parts: bytes | mmap.mmap) -> Row:
        """The row of a verified copy; its file and offsets as if the copy stood alone."""
        found, header = raw.found, header_of(raw.index, "index")
        self._report.segments_copied += 1
        self._report.segments_corrupt += found.corrupt_seqs > 0
        return Row(
            piece.first_seq, piece.last_seq or found.last_seq, found.first_seq, found.last_seq, header.first_ts, header.last_ts,
            found.records - found.deleted, found.deleted, header.holes, header.payload_bytes, found.corrupt_first, found.corrupt_seqs, "", 0,
            raw.data_bytes, raw.data_bytes + len(raw.index), raw.data_bytes + len(raw.index) + len(raw.tags), f"{header.data_xxh3:016x}",
            xxhash.xxh3_64_hexdigest(parts), stamp,
        )  # fmt: skip

    def _large(self, folder: Folder, topic: SourceTopic, piece: Piece, place: Place, stamp: str, gone: Sequence[int]) -> Row:
        name = f"{PARTS}/{topic.epoch:016x}-{place.first_seq:020d}-{xxhash.xxh3_64_hexdigest(stamp.encode())}.parts"
        final, unfinished = folder.root / name, folder.root / f"{name}.{self._run}.tmp"
        self._sizes.pop(name, None)
        try:
            if self._verify:  # that it is sound is not known
                raise FileNotFoundError
            os.utime(final)  # a run that was killed has copied it; a prune leaves young files alone
        except FileNotFoundError:
            with unfinished.open("w+b") as out:
                self._report.bytes_copied += copy(place.data.path, out.fileno())
                with mmap.mmap(out.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    raw = self._examine(place, data)
                    offsets = flag_offsets(raw, gone)
                for offset in offsets:
                    os.pwrite(out.fileno(), bytes([FLAG_DELETED]), offset)
                out.truncate(raw.data_bytes)
                out.seek(raw.data_bytes)
                out.write(raw.index + raw.tags)
                out.flush()
                os.fsync(out.fileno())
            unfinished.replace(final)
        with final.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
            return replace(self._judge(topic, piece, place, whole, stamp), file=name)

    def _judge(self, topic: SourceTopic, piece: Piece, place: Place, whole: mmap.mmap, stamp: str) -> Row:
        """Verify a file of one segment as it stands under its final name."""
        data_bytes = find_index(whole, place)
        index = header_of(whole, "index", data_bytes)
        tags_at = data_bytes + index.part_bytes
        found = self._examiner.examine(
            whole, whole, whole, index_offset=data_bytes, tags_offset=tags_at, data_bytes=data_bytes,
            identity=(place.topic_id, place.first_seq, place.last_seq),
        )  # fmt: skip
        if found.index_status or found.tags_status:
            raise VerifyError(f"{place.data.path}: its copy is damaged: {STATUS[found.index_status or found.tags_status]}")
        raw = _Raw(whole, data_bytes, whole[data_bytes:tags_at], whole[tags_at:], found)
        return self._row(topic, piece, raw, stamp, whole)

    # ---- small ones

    def _close_bundle(self) -> None:
        if not self._bundle:
            return
        raw = b"".join(parts for _, _, parts in self._bundle)  # parts are 8-aligned
        name = f"{PARTS}/bundle-{xxhash.xxh3_128_hexdigest(raw)}.parts"
        self._keep(name, raw)
        at = 0
        for topic, row, parts in self._bundle:
            moved = {field: getattr(row, field) + at for field in ("data_offset", "index_offset", "tags_offset", "end_offset")}
            self._rows[topic].append(replace(row, file=name, **moved))
            at += len(parts)
        self._bundle, self._bundled = [], 0

    # ---- the manifest

    def _commit(self, seen: dict[str, SourceTopic], previous: Manifest | None) -> Manifest:
        mine = {name: self._made(topic) for name, topic in seen.items()}
        while True:
            before = previous.topics if previous else {}
            topics = {name: topic for name, topic in before.items() if not (self._prune and matches(name, self._wanted) and name not in mine)}
            for name, topic in mine.items():
                merged = topic if self._prune and _not_newer(before.get(name), topic) else manifests.merged(before.get(name), topic)
                floors = seen[name].floors
                if floors is not None and merged.epoch == topic.epoch:
                    merged = manifests.filled(merged, self._begins[name], floors.live, floors.why)
                topics[name] = merged
            made = Manifest(previous.number + 1 if previous else 1, self._run, self._now_ms(), topics)
            self._report.changed = _unstamped(before) != _unstamped(topics)
            if self._quiet and previous and not self._report.changed:
                return previous
            if manifests.commit(self.storage, made):
                return made
            previous = manifests.latest(self.storage)

    def _made(self, topic: SourceTopic) -> Topic:
        rows = tuple(sorted(self._rows[topic.name], key=lambda row: row.first_seq))
        return Topic(topic.name, topic.epoch, rows, topic.floors.lost + 1 if topic.floors else 1)

    def _remove_litter(self) -> None:
        """Remove manifests that are old, and files that none of the others needs. "Now" is when the newest one was written: one clock says both."""
        found = manifests.listed(self.storage)
        for number in list(found)[:-MANIFESTS_KEPT]:
            self.storage.remove(manifests.name_of(number))
        needed: set[str] = set()
        for number in list(found)[-MANIFESTS_KEPT:]:
            needed |= manifests.read(self.storage, number).files()
        oldest = max(found.values(), default=0.0) - LITTER_AGE_S
        for file in self.storage.listed(PARTS):
            if file.name not in needed and file.modified < oldest:
                self.storage.remove(file.name)
                self._report.files_pruned += 1


def _empty_row(piece: Piece) -> Row:
    """The row of seqs that no segment holds."""
    ts = piece.ts or 0
    holes = 0 if piece.why == DELETED else piece.last_seq - piece.first_seq + 1
    return Row(piece.first_seq, piece.last_seq, piece.first_seq, piece.last_seq, ts, ts, 0, 0, holes, 0, 0, 0, "", 0, 0, 0, 0, "", "", "", piece.why)


def flag_offsets(raw: _Raw, gone: Sequence[int]) -> list[int]:
    """Where in a verified data part the flag bytes of these seqs stand; those without a good record have none."""
    out: list[int] = []
    if not gone:
        return out
    view = SegmentView(raw.index, raw.data)
    for seq in gone:
        try:
            out.append(view.flag_offset(seq))
        except (KeyError, SegmentError):  # it had gone before the segment was built, or is damaged
            continue
    return out


def _unstamped(topics: dict[str, Topic]) -> dict[str, Topic]:
    """What readers see of them. A floor that moves through what the export has changes nothing for them."""
    return {name: replace(topic, rows=tuple(replace(row, stamp="") for row in topic.rows), evict_floor=1) for name, topic in topics.items()}


def _not_newer(old: Topic | None, new: Topic) -> bool:
    return old is None or old.epoch <= new.epoch


def _part(place: Place, kind: str) -> bytes:
    """The bytes of an index or a tag part; empty when it is missing, and anything when it is damaged: who reads it looks."""
    spot = place.index if kind == "index" else place.tags
    try:
        with spot.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
            return raw[spot.offset : spot.offset + header_of(raw, kind, spot.offset).part_bytes]
    except (FileNotFoundError, ValueError, SegmentError):
        return b""


def find_index(whole: bytes | mmap.mmap, place: Place) -> int:
    """Where the index begins in a file of one segment: behind the data, whose header may be damaged. Raises VerifyError."""
    at = whole.find(b"TPSGIDX1")
    while at >= 0:
        try:
            header = header_of(whole, "index", at)
            if (header.topic_id, header.first_seq, header.last_seq) == (place.topic_id, place.first_seq, place.last_seq):
                return at
        except SegmentError:
            pass
        at = whole.find(b"TPSGIDX1", at + 1)
    raise VerifyError(f"{place.data.path}: its copy has no index")


def stamp_of(place: Place) -> str:
    """What changes when the source of a segment does: flag bytes are written in place. Raises FileNotFoundError."""
    told = place.data.path.stat()
    # A file that is being written may change twice within one tick of its time: then nothing can be told by it.
    fresh = f"-{secrets.token_hex(8)}" if time.time_ns() - told.st_mtime_ns < FRESH_NS else ""
    return f"{told.st_ino}-{told.st_size}-{told.st_mtime_ns}-{place.data.offset}{fresh}"


def copy(source: Path, out: int) -> int:
    """Copy a file to the beginning of an open one, sharing its blocks where the file system can; how many bytes. Raises OSError."""
    done = 0
    with source.open("rb") as file:
        while True:
            try:
                count = os.copy_file_range(file.fileno(), out, COPY_BYTES, done, done)
            except OSError as wrong:
                if wrong.errno not in CANNOT_SHARE or done:
                    raise
                return _copy_plainly(file.fileno(), out)
            if count == 0:
                return done
            done += count


def _copy_plainly(file: int, out: int) -> int:
    done = 0
    while raw := os.pread(file, 1 << 20, done):
        done += os.pwrite(out, raw, done)
    return done
