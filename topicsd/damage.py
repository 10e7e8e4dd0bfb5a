"""What of the files is damaged, as far as anybody knows by now (ARCHITECTURE section 5, corruption).

A read that meets damage marks the segment file (sealed.pxd) or counts it (log_damage_met); readiness says so at once, and the keeper looks at the
file before anything else. What it finds stays told until a whole pass of the scrub finds nothing there. Counts leave out what no reader can have.
Damage of the log is shown to readers as ranges (log_damage.pxd): a tombstone at once, not after the next start.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import structlog

from topicsd import versions
from topicsd._native import log_damage, log_walk, upkeep
from topicsd._native.log_walk import Damage as LogDamage
from topicsd._native.regions import Shared
from topicsd._native.upkeep import DAMAGED, MET, SOUND, File
from topicsd.checkpoint import wrong_sizes
from topicsd.figures import Figures
from topicsd.segments import names
from topicsd.segments.cold import cold_name
from topicsd.segments.cold_counts import ColdCounts
from topicsd.segments.rows import COLD
from topicsd.segments.scrub import Item, look
from topicsd.segments.verify import Problem, Verifier

OBJECT = "the object "  # of the cold tier: so begins what is told of one
COLD_DAMAGE = "of the cold tier is not there or not what was written"
POSITION_BITS = 56  # of a place in the log, below the shard's number
COUNT_EVERY_MS = 2000  # how often what is unreadable is counted, while something is
COUNT_SHARE = 20  # and no more of the time than one part in so many
THERE_EVERY_MS = 5000  # how often all files are looked for in their folders,
FILES_A_LOOK = 256  # so many in a step
TOPICS_A_CALL = 1000  # the writer's step stays short
Key = tuple[Path, int, str]
Identity = tuple[int, int, int, int]

log = structlog.get_logger("damage")


def identity(file: File) -> Identity:
    """What a file is known by, whatever its number is."""
    return file.kind, file.topic_id, file.name, file.edition


class Damage:
    """One thread, the keeper's. `items` lists the segments of a file, `show` tells the writer what of topics can not be read."""

    def __init__(
        self, shared: Shared, data_dir: Path, figures: Figures, items: Callable[[File], Iterator[Item]], show: Callable[[list[list[int]]], None]
    ) -> None:
        self.shared, self.data_dir, self.figures, self.items, self.show = shared, data_dir, figures, items, show
        self.log_is_suspect = False  # somebody could not read it
        self.cold: ColdCounts | None = None  # how much of what the cold tier has damaged nobody can read
        self.remake: set[tuple[int, int]] = set()  # (number, serial) of files with an index or tags that can be made again
        self.file_of: dict[Path, File] = {}  # by the path that names a file
        self._found: dict[Key, Identity | None] = {}  # in this pass
        self._before: dict[Key, Identity | None] = {}  # in the one before it, and since
        self._visited: set[Identity] = set()
        self._told: set[Key] = set()
        self._log_found: dict[Path, list[LogDamage]] = {}  # by the shard's folder
        self._met = self._log_met = 0
        self._generation = -1  # a keeper that has died may have found something
        self._count_at_ms = 0
        self._shown: set[tuple[int, int]] = set()  # (slot, topic id) whose counts leave something out
        self._counted: dict[tuple[int, int], int] = {}  # (number, serial) of a damaged file -> records that nobody can read
        self._unlooked: list[File] = []  # of this round through the folders
        self._there_at_ms = 0
        self._odd = set[tuple[int, int]]()  # (number, serial) of files that are not as long as they were made, and sound: not read again for that
        self._verifier = Verifier()

    # ---- what is found -----------------------------------------------------------------------------------------------------------

    def begin_pass(self) -> None:
        """The scrub begins at the first file."""
        self._before, self._found, self._visited = {**self._before, **self._found}, {}, set()

    def visit(self, file: File, path: Path) -> None:
        """A file is looked at."""
        self.file_of[path] = file
        self._visited.add(identity(file))

    def end_pass(self) -> None:
        """What this pass has not found any more is over, but for what the cold tier has given to a read: no pass reads that."""
        cold = {identity(file) for file in upkeep.suspects(self.shared, DAMAGED) if file.kind == COLD}
        self._before = {key: known for key, known in {**self._before, **self._found}.items() if key[2].startswith(OBJECT) and known in cold}
        bad = {*self._found.values(), *self._before.values()}
        for file in upkeep.suspects(self.shared, DAMAGED):
            if identity(file) in self._visited and identity(file) not in bad:
                upkeep.suspect(self.shared, file.number, file.serial, SOUND)
        self._tell()

    def note(self, problem: Problem) -> None:
        """Take note of a problem."""
        file = self.file_of.get(named_by(problem.path))
        key = (problem.path, problem.offset, problem.what)
        self._found[key] = identity(file) if file is not None else None
        if key not in self._told:
            self._told.add(key)
            if problem.newer:
                log.error("a newer version", what=str(problem))
            else:
                log.error("damage", what=str(problem), loses=problem.loses)
        if file is not None:
            upkeep.suspect(self.shared, file.number, file.serial, DAMAGED)
            if not problem.loses and not problem.newer and file.kind != COLD:
                self.remake.add((file.number, file.serial))
        self._count_at_ms = 0
        self._tell()

    def mended(self, file: File) -> None:
        """Another file stands in its place; in that of some of its ranges, if it is still there."""
        upkeep.suspect(self.shared, file.number, file.serial, MET)
        self._count_at_ms = 0
        self._forget(file)
        self._tell()

    def _forget(self, file: File) -> None:
        for found in (self._found, self._before):
            for key in [key for key, known in found.items() if known == identity(file)]:
                del found[key]

    def _tell(self) -> None:
        told = {**self._before, **self._found}
        newer = sum(what.endswith(versions.USE_THAT_ONE) for _path, _offset, what in told)
        self.figures.set("damaged", len(told) - newer)
        self.figures.set("newer", newer)

    # ---- what reads have met -----------------------------------------------------------------------------------------------------

    def step(self, mono_ms: int) -> None:
        """Look at what reads have met since the last time, and for files that have gone; count what can not be read."""
        if self.shared.generation != self._generation:
            self._generation = self.shared.generation
            self._suspect_again()
            self.log_is_suspect = self.log_is_suspect or self.figures.get("log_damaged") > 0
            self._shown |= set(upkeep.left_out(self.shared))
        met = self.shared.get("damage_met")
        if met != self._met:
            for file in upkeep.suspects(self.shared, MET):
                self.look_at(file)
            self._tell()  # what a keeper that has died had found may be gone
            self._met = met
            self.figures.set("damage_looked", met)
        log_met = self.shared.get("log_damage_met")
        if log_met != self._log_met or self.log_is_suspect:
            self.look_at_log()
            self._log_met, self.log_is_suspect = log_met, False
            self.figures.set("log_damage_looked", log_met)
        if mono_ms >= self._there_at_ms:
            self._look_for_files(mono_ms)
        if mono_ms >= self._count_at_ms or (self.cold is not None and self.cold.arrived()):
            started_s = time.monotonic()
            self._count()
            self._count_at_ms = mono_ms + max(COUNT_EVERY_MS, int(COUNT_SHARE * 1000 * (time.monotonic() - started_s)))

    def _suspect_again(self) -> None:
        """Another writer numbers the files anew, and knows nothing of them; another keeper knows of the files alone."""
        known = {one for one in {**self._before, **self._found}.values() if one is not None}
        known |= {identity(file) for file in upkeep.suspects(self.shared, DAMAGED)}
        for file in upkeep.listed(self.shared) if known else []:
            if identity(file) in known:
                upkeep.suspect(self.shared, file.number, file.serial, MET)

    def _look_for_files(self, mono_ms: int) -> None:
        """Do a step of a round through all files that nobody has found damaged: who has one mapped does not miss it before the next start."""
        if not self._unlooked:
            self._unlooked = upkeep.suspects(self.shared, SOUND)
            self._odd &= {(file.number, file.serial) for file in self._unlooked}
        now, self._unlooked = self._unlooked[:FILES_A_LOOK], self._unlooked[FILES_A_LOOK:]
        for file in now:
            known = (file.number, file.serial)
            if known not in self._odd and wrong_sizes(self.data_dir, file) and upkeep.lives(self.shared, *known):
                self._odd.add(known)
                self.look_at(file)
        if not self._unlooked:
            self._there_at_ms = mono_ms + THERE_EVERY_MS

    def look_at(self, file: File) -> None:
        """Read a file whole, and say what is true of it."""
        sound = True
        for item in self.items(file):
            problems, _read = look(self._verifier, item)
            for problem in problems:
                self.note(problem)
            sound = sound and not problems
        self._verifier.forget()
        if sound and file.kind == COLD:  # its data is elsewhere: what the read has found is all there is
            name = names.name_of(self.data_dir, file.topic_id, file.name, file.edition)
            what = f"{OBJECT}{cold_name(name)} {COLD_DAMAGE}"
            self.note(Problem(name.path("data"), 0, what, loses=True, kind="data"))
        elif sound and not any(known == identity(file) for known in self._found.values()):
            upkeep.suspect(self.shared, file.number, file.serial, SOUND)

    # ---- the log -----------------------------------------------------------------------------------------------------------------

    def look_at_log(self, most: int = 1 << 62) -> int:
        """Verify the frames of the log that are synced, the newest `most` bytes or so of each shard; return how many bytes were read."""
        size, found = 0, dict[Path, list[LogDamage]]()
        for folder in sorted((self.data_dir / "log").glob("shard-[0-9][0-9]")):
            first, begins, read = self._damaged(folder, most)
            size += read
            again = {(each.position, each.got) for each in self._damaged(folder, most)[0]} if first else set()  # a file may have gone meanwhile
            kept = log_damage.begins(self.shared, int(folder.name[-2:]))  # what ends below it nobody needs
            older = [each for each in self._log_found.get(folder, []) if each.position < begins and each.position + each.bytes > kept]
            found[folder] = older + [each for each in first if (each.position, each.got) in again]
        self._log_found = found
        self.figures.set("log_damaged", sum(map(len, found.values())))
        log_damage.show(self.shared, [place for folder, some in found.items() for place in map(places_of(folder), some)])
        self._count_at_ms = 0
        for each in (each for some in found.values() for each in some):
            path = Path(os.fsdecode(each.path))
            key = (path, each.offset, each.got)
            if key not in self._told:
                self._told.add(key)
                log.error("damage", what=f"{path}, byte {each.offset}: {each.bytes} bytes, {each.got}, expected {each.expected}", loses=True)
        return size

    def _damaged(self, folder: Path, most: int) -> tuple[list[LogDamage], int, int]:
        """What is damaged from a position on, that position, and how many bytes were read."""
        shard = int(folder.name[-2:])
        synced = int(str(self.shared.shard(shard)["synced"]))
        begins, kept = synced, log_damage.begins(self.shared, shard)
        with contextlib.suppress(OSError, log_walk.LogFormatError):
            files = log_walk.list_files(os.fsencode(folder))
            begins = next((file.first_position for file in files if file.first_position + file.bytes + most > synced), synced)
            if not files or begins == files[0].first_position:
                begins = min(begins, kept)  # the oldest file may be the one that is gone
            walked = log_walk.check(folder, shard, from_position=begins, known=synced)
            return [each for each in walked.damaged if each.position + each.bytes <= synced], begins, walked.bytes
        return [], begins, 0

    # ---- counts ------------------------------------------------------------------------------------------------------------------

    def _count(self) -> None:
        """Say how much of each topic no reader can have."""
        totals: dict[tuple[int, int], list[int]] = {}
        damaged = upkeep.suspects(self.shared, DAMAGED)
        in_cold = [file for file in damaged if file.kind == COLD] if self.cold is not None else []
        alive = dict(upkeep.tally(self.shared)) if in_cold else {}
        unreadable = [self._unreadable(file) for file in damaged if file not in in_cold]
        self._counted = {(file.number, file.serial): self._counted.get((file.number, file.serial), 0) for file in damaged}
        unreadable += [self.cold.of(file, alive.get(file.number)) for file in in_cold if self.cold is not None]
        self._tell_newer(in_cold)
        for slot, topic_id, records, size in chain(log_damage.unreadable(self.shared), *unreadable):
            total = totals.setdefault((slot, topic_id), [0, 0])
            total[0] += records
            total[1] += size
        told = [[slot, topic_id, *totals.get((slot, topic_id), (0, 0))] for slot, topic_id in self._shown | totals.keys()]
        for first in range(0, len(told), TOPICS_A_CALL):
            self.show(told[first : first + TOPICS_A_CALL])
        self._shown = set(totals)

    def _tell_newer(self, in_cold: list[File]) -> None:
        """What has come of an object says that a newer version wrote it: then it is no damage."""
        for file in in_cold:
            what = self.cold.newer.get((file.number, file.serial)) if self.cold is not None else None
            if what:
                self._forget(file)
                name = names.name_of(self.data_dir, file.topic_id, file.name, file.edition)
                self.note(Problem(name.path("data"), 0, f"{OBJECT}{cold_name(name)}: {what}", newer=True))

    def _unreadable(self, file: File) -> list[tuple[int, int, int, int]]:
        """What of a file no reader can have. No read tells of damage in a file of which some is known: when there is more, it is looked at again."""
        rows = upkeep.unreadable(self.shared, file.number)
        records = sum(row[2] for row in rows)
        if records > self._counted.setdefault((file.number, file.serial), records):
            self.look_at(file)
        self._counted[file.number, file.serial] = records
        return rows


def places_of(folder: Path) -> Callable[[LogDamage], tuple[int, int]]:
    """Where a shard's damage begins and ends, as index entries say it."""
    shard = int(folder.name[-2:]) << POSITION_BITS
    return lambda each: (shard | each.position, shard | each.position + each.bytes)


def named_by(path: Path) -> Path:
    """The path that names a file of the table: the data part's, or the pack's own."""
    named = names.parse(path)
    return named[0].path("data") if named is not None else path
