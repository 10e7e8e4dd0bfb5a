"""Make a backup: pin the directory, copy the two newest snapshots, the log behind them, then every sealed file; the manifest comes last.

Online and consistent: what the log says up to the end that was copied leads only to files that stood before that end was looked for, and the pin
keeps them. Killed anywhere, objects may have been put that no manifest names: the next run takes them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from topicsd import snapshot, synced
from topicsd._native import log_walk
from topicsd._native.log_walk import LogFormatError
from topicsd.backup import manifest, owner
from topicsd.backup.manifest import Entry, Manifest, Moment
from topicsd.backup.shelf import BackupError, Shelf, TakenError, digest_of, object_name
from topicsd.pins import pin
from topicsd.segments import names, newer
from topicsd.segments.cold import Cold, ColdError, ColdMissingError, cold_name, fits
from topicsd.segments.names import Spot
from topicsd.segments.newer import NewerFormatError
from topicsd.store import SETTLING

TRIES = 3  # a file may get its final bytes between two looks, when nobody speaks of it yet


@dataclass
class Report:
    """What a run did."""

    number: int = 0
    files: int = 0
    bytes: int = 0
    new_objects: int = 0
    new_bytes: int = 0
    notes: int = 0


class Backup:
    """One run. Raises BackupError, OSError."""

    def __init__(
        self,
        data_dir: Path,
        shelf: Shelf,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        cold: Cold | None = None,
        *,
        take_over: bool = False,
    ) -> None:
        self.data_dir, self.shelf, self.wall_ms, self.cold, self.take_over = data_dir, shelf, wall_ms, cold, take_over
        self.report = Report()
        self.entries: list[Entry] = []
        self.notes: list[str] = []
        self._known: dict[str, Entry] = {}
        self._there = set[str]()

    def run(self) -> Report:
        """Copy what the newest backup does not have, and write a manifest."""
        if not (self.data_dir / "log").is_dir():
            raise BackupError(f"{self.data_dir}: no data directory")
        owner.check_place(self.data_dir, self.shelf)
        with self.shelf.alone():
            directory = owner.claim(self.data_dir, self.shelf, take_over=self.take_over)
            self._look_at_the_last()
            with pin(self.data_dir):
                snapshots = self._snapshots()
                settling = self.data_dir / SETTLING
                was_settling = settling.exists()
                ends = self._logs([moment.needed for moment in snapshots], [moment.moment for moment in snapshots])
                if was_settling or settling.exists():
                    self._file(settling)
                for path in names.files_below(self.data_dir):
                    if path.suffix != ".tmp":
                        self._sealed(path)
            moments = [Moment(each.number, each.wall_ms, each.moment) for each in snapshots]
            made = Manifest(0, self.wall_ms(), ends, moments, self.entries, self.notes, directory)
            manifest.write(self.shelf, made)
        self.report.number, self.report.notes = made.number, len(self.notes)
        return self.report

    def _look_at_the_last(self) -> None:
        if found := manifest.numbers(self.shelf):
            try:
                self._known = {entry.path: entry for entry in manifest.read(self.shelf, found[-1]).files}
            except manifest.NewerManifestError:
                raise
            except BackupError as wrong:
                self.notes.append(str(wrong))

    # ---- what is copied

    def _snapshots(self) -> list[_Snapshot]:
        found: list[_Snapshot] = []
        for number in snapshot.heads(self.data_dir):
            try:
                chain = snapshot.read_chain(self.data_dir, number)
            except snapshot.NewerSnapshotError as refused:
                raise BackupError(str(refused)) from None
            except (snapshot.SnapshotError, ValueError, KeyError, TypeError) as wrong:
                self.notes.append(str(wrong))
                continue
            for layer in chain.layers:
                self._file(snapshot.path_of(self.data_dir, layer.number))
            header = chain.header
            found.insert(0, _Snapshot(number, header["wall_ms"], list(header["moment"]), list(header["needed"])))
        return found

    def _logs(self, needed: list[list[int]], moments: list[list[int]]) -> list[int]:
        """Copy the log, from what the oldest snapshot needs on; return where each shard's copy ends."""
        ends: list[int] = []
        try:
            noted = synced.read(self.data_dir)  # before the log is looked at: it only grows
        except synced.NewerNoteError as refused:
            raise BackupError(str(refused)) from None
        except (synced.NoteError, OSError) as wrong:
            noted = synced.UNKNOWN
            self.notes.append(str(wrong))
        for folder in sorted((self.data_dir / "log").glob("shard-[0-9][0-9]")):
            shard = int(folder.name[-2:])
            below = min((each[shard] if shard < len(each) else 0 for each in needed), default=0)
            known = max((each[shard] if shard < len(each) else 0 for each in [*moments, noted]), default=0)
            try:
                files = log_walk.list_files(os.fsencode(folder))
                first = max((file.first_position for file in files if file.first_position <= below), default=below)
                walked = log_walk.check(folder, shard, from_position=first, known=known)
            except LogFormatError as wrong:
                raise BackupError(str(wrong)) from None
            self.notes += [f"{os.fsdecode(damage.path)}, byte {damage.offset}: {damage.bytes} damaged bytes" for damage in walked.damaged]
            ends.append(walked.end)
            for file in files:
                if first <= file.first_position < max(walked.end, first + 1):
                    self._file(Path(os.fsdecode(file.path)), min(file.bytes, walked.end - file.first_position), file.bytes)
        return ends

    def _file(self, path: Path, upto: int | None = None, size: int | None = None) -> None:
        """Copy one file, or its bytes below `upto`: a log file whose end the writer still writes."""
        name = str(path.relative_to(self.data_dir))
        for _ in range(TRIES):
            try:
                before = _stamp(path)
                entry = self._known.get(name)
                if upto is None and entry is not None and entry.stamp == before and self._has(entry):
                    self._note(entry)
                    return
                raw = path.read_bytes()
                if upto is None and _stamp(path) != before:
                    continue
            except FileNotFoundError:
                raise BackupError(f"{path} went while it was copied: run the backup again") from None
            if upto is not None:
                raw = raw[:upto].rstrip(b"\0")
            entry = Entry(name, len(raw) if size is None else size, digest_of(raw), len(raw), before if upto is None else [])
            self._put(entry, raw)
            self._note(entry)
            return
        raise BackupError(f"{path} changes while it is copied")

    def _sealed(self, path: Path) -> None:
        """Copy a file of a segment, or a pack. One of a newer version is refused: no start of what is restored would take it."""
        try:
            newer.refuse_file(path)
            self._file(path)
            if path.suffix == names.FLAGS_SUFFIX:
                self._cold_data(path)
        except NewerFormatError as refused:
            raise BackupError(str(refused)) from None

    def _cold_data(self, flags: Path) -> None:
        """Copy the data part of a cold segment: restored, it stands in the directory itself."""
        named = names.parse(flags)
        if named is None or named[0].path("data").exists():
            return
        data = str(named[0].path("data").relative_to(self.data_dir))
        stamp = _stamp(flags)  # as old as the object
        entry = self._known.get(data)
        if entry is not None and entry.stamp == stamp and self._has(entry):
            self._note(entry)
            return
        if self.cold is None:
            raise BackupError(f"{data} is in the cold tier: set TOPICS_COLD_DIR as the server has it")
        try:
            raw = self.cold.read(cold_name(named[0]), 0, self.cold.size(cold_name(named[0])))
        except ColdMissingError as wrong:
            self.notes.append(f"LOSS: in the cold tier: {wrong}")  # a restore puts LOST_IN_COLD in its place
            return
        except ColdError as wrong:
            raise BackupError(str(wrong)) from None
        newer.refuse_part(raw, "data", Spot(Path(cold_name(named[0]))))
        if not fits(raw, named[0].path("index").read_bytes()):
            self.notes.append(f"LOSS: in the cold tier: {data}: what is there is not what was put there")
            stamp = []  # looked at again by the next run
        entry = Entry(data, len(raw), digest_of(raw), len(raw), stamp)
        self._put(entry, raw)
        self._note(entry)

    def _note(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.report.files += 1
        self.report.bytes += entry.bytes

    def _has(self, entry: Entry) -> bool:
        name = object_name(entry.object)
        if name not in self._there and self.shelf.size(name) == entry.object_bytes:
            self._there.add(name)
        return name in self._there

    def _put(self, entry: Entry, raw: bytes) -> None:
        if self._has(entry):
            return
        name = object_name(entry.object)
        try:
            self.shelf.put(name, raw)
        except TakenError:
            if digest_of(self.shelf.read(name)) != entry.object:
                raise BackupError(f"{name}: it is there, and damaged; move it away and run the backup again") from None
            return
        self._there.add(name)
        self.report.new_objects += 1
        self.report.new_bytes += len(raw)


@dataclass
class _Snapshot:
    number: int
    wall_ms: int
    moment: list[int]
    needed: list[int]


def _stamp(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_ino, found.st_size, found.st_mtime_ns]


def verify(shelf: Shelf, made: Manifest) -> list[str]:
    """Read every object of a backup and compare it with its name; return what is wrong."""
    wrong: list[str] = []
    seen = set[str]()
    for entry in made.files:
        if entry.object in seen:
            continue
        seen.add(entry.object)
        try:
            raw = shelf.read(object_name(entry.object))
        except BackupError as why:
            wrong.append(f"{entry.path}: {why}")
            continue
        if len(raw) != entry.object_bytes or digest_of(raw) != entry.object:
            wrong.append(f"{entry.path}: object {entry.object} is not what was put there")
    return wrong
