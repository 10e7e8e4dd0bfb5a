"""Make a data directory of a backup: every object is compared with its name while it is written, and the directory says that it is unfinished
until all of it is on the disk. Started again after a kill it goes on.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from topicsd import snapshot
from topicsd._native import frame
from topicsd._native.file_ops import NewFile, make_folder, remove
from topicsd._native.files import FileSystem
from topicsd._native.segment_build import make_folder as make_folders
from topicsd._native.whole_files import write_whole
from topicsd.backup import manifest
from topicsd.backup.manifest import Entry, Manifest, Moment
from topicsd.backup.shelf import BackupError, Shelf, digest_of, object_name
from topicsd.engine import frames
from topicsd.segments import names
from topicsd.store import RESTORING as MARK

PIECE_BYTES = 1 << 20
HEADER_BYTES = 64
LOST_IN_COLD = b"the cold tier did not have this data part any more when the backup was made\n"
_HEAD = struct.Struct("<4sIBBHIQQQQQ")  # docs/format/log.md, up to `position`
_MAGIC = b"TPF1"
_ZEROES = bytes(PIECE_BYTES)


@dataclass(frozen=True)
class Until:
    """Where to end: at a time (epoch ms; frames that were written later do not count), or at log positions by shard. Neither: with all there is."""

    ts_ms: int | None = None
    positions: dict[int, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Say whether anything is to be left out."""
        return self.ts_ms is not None or bool(self.positions)


class Cut(NamedTuple):
    """Where a shard's log is to end."""

    position: int
    dropped: int  # frames behind it


@dataclass
class Restored:
    """What a run did."""

    number: int = 0
    snapshot: int = 0
    files: int = 0
    bytes: int = 0
    kept: int = 0  # of them: written by an earlier run that did not end
    dropped_frames: int = 0
    short_of: int = 0  # epoch ms: the backup was made then, before the time that was asked for: what came between is not in it
    ends: dict[int, int] = field(default_factory=dict)  # by shard: the backup's log ends there, before the position that was asked for


class Restore:
    """One run. Raises BackupError, OSError."""

    def __init__(self, shelf: Shelf, target: Path, until: Until | None = None, number: int | None = None, files: FileSystem | None = None) -> None:
        self.shelf, self.target, self.until, self.wanted = shelf, target, until or Until(), number
        self.files = files or FileSystem()
        self.report = Restored()

    def run(self) -> Restored:
        """Write everything, cut the log where it is to end, then take the mark away."""
        made, moment = self._choose()
        self.report.number, self.report.snapshot = made.number, moment.number if moment else 0
        if self.until.ts_ms is not None and made.written_ms < self.until.ts_ms:
            self.report.short_of = made.written_ms
        self.report.ends = {shard: end for shard, end in enumerate(made.ends) if self.until.positions.get(shard, 0) > end}
        logs: dict[int, list[Entry]] = {}
        for entry in made.files:
            if entry.path.startswith("log/"):
                logs.setdefault(int(Path(entry.path).parent.name[-2:]), []).append(entry)
        self._check_shards(logs)
        self._begin()
        others = {str(snapshot.path_of(Path(), each.number)) for each in made.snapshots if self.until and each != moment}
        for entry in made.files:
            if not entry.path.startswith("log/") and entry.path not in others:
                self._file(entry, None)
        self._lost_in_cold({entry.path for entry in made.files if entry.bytes})
        for shard, entries in sorted(logs.items()):
            self._log(shard, entries, moment)
        self._end()
        return self.report

    # ---- which backup, which snapshot

    def _check_shards(self, logs: Collection[int]) -> None:
        """Refuse a position of a shard that is not there: who mistypes it would believe that something was left out. Raises BackupError."""
        for shard, position in sorted(self.until.positions.items()):
            if shard not in logs:
                there = ", ".join(map(str, sorted(logs)))
                raise BackupError(f"until {shard}:{position}: backup {self.report.number} has no shard {shard}, only {there}")

    def _choose(self) -> tuple[Manifest, Moment | None]:
        numbers = [self.wanted] if self.wanted is not None else list(reversed(manifest.numbers(self.shelf)))
        if not numbers:
            raise BackupError("there is no backup: no manifest is complete")
        oldest = ""
        for number in numbers:
            made = manifest.read(self.shelf, number)
            if not self.until:
                return made, made.snapshots[-1] if made.snapshots else None
            for moment in reversed(made.snapshots):
                if self._before(moment):
                    return made, moment
                oldest = f"the snapshot {moment.number} of backup {number}, of {moment.wall_ms} ms, positions {moment.moment}, is younger"
            if not made.snapshots:
                return made, None
        raise BackupError(f"no backup goes back so far: {oldest}")

    def _before(self, moment: Moment) -> bool:
        if self.until.ts_ms is not None and moment.wall_ms > self.until.ts_ms:
            return False
        return all(shard >= len(moment.moment) or moment.moment[shard] <= position for shard, position in self.until.positions.items())

    # ---- the directory

    def _begin(self) -> None:
        target = self.target
        target.parent.mkdir(parents=True, exist_ok=True)
        mark = target / MARK
        if target.exists() and not mark.exists() and any(path.name != f"{MARK}.tmp" for path in target.iterdir()):
            raise BackupError(f"{target} is not empty: restore into a directory that is not there")
        make_folder(self.files, target)
        told = f"backup {self.report.number}, until {self.until.ts_ms} {sorted(self.until.positions.items())}\n".encode()
        if mark.exists():
            if mark.read_bytes() != told:
                raise BackupError(f"{target} holds another restore that did not end: remove it, or finish that one ({mark.read_text().strip()})")
            return
        file = NewFile(self.files, mark)
        file.write(told)
        file.finish()

    def _end(self) -> None:
        remove(self.files, self.target / MARK)
        make_folder(self.files, self.target / "log")  # syncs the directory that the mark has gone from

    def _file(self, entry: Entry, upto: int | None) -> None:
        """Write a file, zeroes from `upto` on."""
        path = self.target / entry.path
        self.report.files += 1
        self.report.bytes += entry.bytes
        raw = self.shelf.read(object_name(entry.object))
        if len(raw) != entry.object_bytes or digest_of(raw) != entry.object:
            raise BackupError(f"{entry.path}: object {entry.object} is not what was put there")
        if upto is not None:
            raw = raw[:upto]
        if path.exists() and path.stat().st_size == entry.bytes and _same(path, raw):
            self.report.kept += 1
            return
        make_folders(self.target, Path(entry.path).parent, self.files)
        file = NewFile(self.files, path)
        try:
            file.write(raw)
            for first in range(len(raw), entry.bytes, PIECE_BYTES):
                file.write(_ZEROES[: entry.bytes - first])
            file.finish()
        except OSError:
            file.abort()
            raise

    def _lost_in_cold(self, there: set[str]) -> None:
        """Where the tier had no data part of a cold segment any more, a file says so: no reader is to look for it in a tier."""
        for path in there:
            data = str(Path(path).with_suffix(names.SUFFIXES["data"]))
            if path.endswith(names.FLAGS_SUFFIX) and data not in there:
                write_whole(self.target / data, LOST_IN_COLD, self.files)

    # ---- the log

    def _log(self, shard: int, entries: list[Entry], moment: Moment | None) -> None:
        cut = self._cut(shard, entries, moment) if self.until else None
        for entry in entries:
            first = _first(entry)
            if cut is None:
                self._file(entry, None)
            elif first < cut.position:
                self._file(entry, cut.position - first)
        self.report.dropped_frames += cut.dropped if cut else 0

    def _cut(self, shard: int, entries: list[Entry], moment: Moment | None) -> Cut:
        """Find the first frame that does not count any more; frames that a later START calls void never counted."""
        position = self.until.positions.get(shard, 1 << 63)
        begin = moment.moment[shard] if moment is not None and shard < len(moment.moment) else 0
        cut, dropped, end = 1 << 63, 0, 0
        for entry in entries:
            raw = self.shelf.read(object_name(entry.object))
            for kind, ts, at, length, body in _frames(raw):
                end = max(end, at + length)
                if at < begin:
                    continue
                late = self.until.ts_ms is not None and kind != frames.START and ts > self.until.ts_ms
                if cut == 1 << 63 and (late or at + length > position):
                    cut = at
                if at >= cut:
                    dropped += kind not in (frames.START, frames.MARK)
                    if kind == frames.START:
                        cut = min(cut, max(int.from_bytes(body[:8], "little"), begin))
        return Cut(min(cut, end), dropped)


def _first(entry: Entry) -> int:
    return int(Path(entry.path).stem)


def _same(path: Path, raw: bytes) -> bool:
    with path.open("rb") as file:
        if file.read(len(raw)) != raw:
            return False
        while piece := file.read(PIECE_BYTES):
            if piece.strip(b"\0"):
                return False
    return True


def _frames(raw: bytes) -> Iterator[tuple[int, int, int, int, bytes]]:
    """Type, ts, position, length and body of each whole frame of a log file."""
    at = 0
    while at + HEADER_BYTES <= len(raw):
        magic, length, kind, _, _, _, _, _, ts, _, position = _HEAD.unpack_from(raw, at)
        whole = raw[at : at + max(length, HEADER_BYTES)]
        if magic == _MAGIC and length >= HEADER_BYTES and length % 8 == 0 and frame.check(whole.ljust(length, b"\0")) == 0:
            yield kind, ts, position, length, whole[HEADER_BYTES:]
            at += length
            continue
        at = raw.find(_MAGIC, at + 1)
        while at % 8 and at >= 0:  # frames are 8-aligned
            at = raw.find(_MAGIC, at + 1)
        if at < 0:
            return
