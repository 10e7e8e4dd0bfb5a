"""The keeper's care for sealed files: read all of them again and again (scrub), make those anew that are mostly dead or damaged where they can be
made again, and say which files nobody speaks of. Nothing is ever changed in place or removed here: a file is replaced by another one that holds
the same range, the writer publishes it, and the old one goes as any file goes, after two snapshots.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from topicsd import limits
from topicsd._native import upkeep
from topicsd._native.files import FileSystem
from topicsd._native.regions import Shared
from topicsd._native.segment import SegmentError, SegmentView, header_of
from topicsd._native.segment_build import Built, Writer, make_folder
from topicsd._native.upkeep import File
from topicsd.damage import Damage
from topicsd.engine.segments import LOG_FULL
from topicsd.figures import Figures
from topicsd.room import NO_ROOM
from topicsd.segments import names, newer
from topicsd.segments.names import Place, Spot
from topicsd.segments.newer import NewerFormatError
from topicsd.segments.rows import COLD, FILE, OWN, PACK, ROW
from topicsd.segments.scrub import Item, Scrubber, newer_problem
from topicsd.segments.sealing import INDEX_BYTES, RECORD_BYTES, remove_files
from topicsd.segments.verify import Problem, Verifier, load, pack_places

LIVE_PERMILLE_MAX = 10  # of its seqs
FREED_BYTES_MIN = 1 << 20  # less is not worth three new files
FULL_FREED_SHARE = 4  # on a full disk it is worth it from this part of a file on
FULL_FREED_BYTES_MIN = 64 << 10
ROWS_A_CALL = 32
DROPS_A_STEP = 256
GONE = 3  # flags of an index entry: deleted, or a hole
LOG_BYTES_A_PASS = 1 << 30  # the log is read in one go: what is older, because something pins it, is looked at when a read meets damage
SEGMENTS_A_STEP = 256  # small ones; the bytes are limited by the clock

Ranges = list[tuple[int, int, bytes, bytes]]
Replace = Callable[[list[tuple[int, int, bytes, bytes]]], list[str]]  # slot, topic id, the row as it was, the row as it is to be
log = structlog.get_logger("upkeep")


class Upkeep:
    """One thread, the keeper's. `replace` hands rows to the writer; `unknown` asks it which of some files no snapshot waits to remove."""

    def __init__(
        self,
        shared: Shared,
        data_dir: Path,
        replace: Replace,
        unknown: Callable[[list[list[int]]], list[list[int]]],
        figures: Figures,
        *,
        scrub_bytes_per_second: int = 0,
        rewrite: bool = True,
        files: FileSystem | None = None,
        pack_number: Callable[[], int] = lambda: 0,
        show: Callable[[list[list[int]]], None] = lambda _topics: None,
    ) -> None:
        self.shared, self.data_dir, self.figures = shared, data_dir, figures
        self.replace, self.unknown, self.files, self.pack_number = replace, unknown, files, pack_number
        self.rewrites = rewrite
        self.look_at_ms = self.drop_at_ms = 0
        self.is_full: Callable[[], bool] = lambda: False
        self.have_room: Callable[[int], bool] = lambda _bytes: True  # makes room for so much on a full disk, of what was set aside
        self._made: dict[tuple[int, int, int, int], int] = {}  # files that were made on a full disk, and what of them was alive then
        self.damage = Damage(shared, data_dir, figures, self._items, show)
        self._orphans = set[Path]()
        self._refused = set[tuple[int, int]]()  # (number, serial) of files that could not be made anew: not tried again
        self._verifier = Verifier()
        self.scrubber = Scrubber(self._everything, scrub_bytes_per_second, self.damage.note) if scrub_bytes_per_second else None
        self._passes = 0

    # ---- step ------------------------------------------------------------------------------------------------------------------

    def step(self, mono_ms: int, wall_ms: int) -> None:
        """Do a slice of what is due: what reads have met is looked at, some segments are verified, dead ones dropped, one file is made anew."""
        self.damage.step(mono_ms)
        if self.scrubber is not None:
            for _ in range(SEGMENTS_A_STEP):
                if self.scrubber.step(mono_ms, wall_ms):
                    break
            self._show()
        if mono_ms >= self.drop_at_ms:
            began_s = time.monotonic()
            more = self.drop_dead() == DROPS_A_STEP
            rest_ms = round(limits.DROP_LOOK_SHARE * 1000 * (time.monotonic() - began_s))
            self.drop_at_ms = mono_ms if more else mono_ms + max(limits.DROP_LOOK_MS, rest_ms)
        if self.damage.remake:
            self._again(*self.damage.remake.pop())
        elif self.rewrites:
            full = self.is_full()
            if (full or mono_ms >= self.look_at_ms) and not self.rewrite_one(full=full):
                self.look_at_ms = mono_ms + limits.REWRITE_LOOK_MS

    def _show(self) -> None:
        assert self.scrubber is not None
        numbers, figures = self.scrubber.numbers, self.figures
        for name in ("passes", "segments", "bytes", "problems", "last_pass_ms", "last_pass_problems"):
            figures.set(f"scrub_{name}", getattr(numbers, name))
        if numbers.passes != self._passes:
            self._passes = numbers.passes
            self.damage.end_pass()
            self.look_for_orphans(numbers.last_pass_ms)

    # ---- scrub -----------------------------------------------------------------------------------------------------------------

    def _everything(self) -> Iterator[Item]:
        """What is to be verified in a pass: the log, and every file of the table, as they are now."""
        self.damage.begin_pass()
        assert self.scrubber is not None
        self.scrubber.pay(self.damage.look_at_log(LOG_BYTES_A_PASS))
        for file in upkeep.listed(self.shared):
            yield from self._items(file)

    def _items(self, file: File) -> Iterator[Item]:
        def gone() -> bool:
            return not upkeep.lives(self.shared, file.number, file.serial)

        if gone():
            return
        path = path_of(self.data_dir, file)
        self.damage.visit(file, path)
        if file.kind == PACK:
            try:
                places, problems = pack_places(path, load(path)[0])
            except NewerFormatError as refused:
                places, problems = [], [newer_problem(refused)]
            except (SegmentError, OSError) as wrong:
                places, problems = [], [Problem(path, 0, str(wrong), loses=True)]
            if not gone():
                for problem in problems:
                    self.damage.note(problem)
            # What its directory does not tell, or not any more, the rows do: it may be another pack under this one's name.
            rows = [place_in_pack(path, topic_id, body) for _slot, topic_id, body, _deleted in upkeep.ranges(self.shared, file.number)]
            known = set() if problems else {stands(place) for place in places}
            places = [*([] if problems else places), *(place for place in rows if stands(place) not in known)]
            yield from (Item(place, gone=gone) for place in places)
            return
        name = names.name_of(self.data_dir, file.topic_id, file.name, file.edition)
        yield Item(names.place_of(name), gone=gone, cold=name if file.kind == COLD else None)

    # ---- segments of which nothing is left ---------------------------------------------------------------------------------------

    def drop_dead(self) -> int:
        """Let rows whose every record is deleted lead nowhere, so that their files go; return how many. One that has lost some stays and tells so."""
        rows: Ranges = []
        for slot, topic_id, body in upkeep.dead_rows(self.shared):
            first_seq, last_seq, last_ts = ROW.unpack_from(body)[:3]
            if upkeep.all_deleted(self.shared, slot, topic_id, first_seq, last_seq):
                rows.append((slot, topic_id, body, ROW.pack(first_seq, last_seq, last_ts, *[0] * 9).ljust(len(body), b"\0")))
            if len(rows) == DROPS_A_STEP:
                break
        dropped = 0
        for first in range(0, len(rows), ROWS_A_CALL):
            codes = self.replace(rows[first : first + ROWS_A_CALL])
            dropped += codes.count("dropped")
            if LOG_FULL in codes:
                break  # tried again once there is room
        if dropped:
            self.figures.add("dropped", dropped)
            log.info("dropped", segments=dropped)
        return dropped

    # ---- files that are mostly dead, or whose index is damaged -------------------------------------------------------------------

    def dead_files(self) -> list[File]:
        """Files of which next to nothing is alive and that would give back a mebibyte or more."""
        found = []
        for file, alive in self._tallied():
            left = alive.seqs * INDEX_BYTES + alive.live * RECORD_BYTES + 2 * alive.live_bytes + 4096
            part, whole = (alive.live_bytes, file.bytes) if file.kind == PACK else (alive.live, alive.seqs)
            dead = part * 1000 <= whole * LIVE_PERMILLE_MAX
            if dead and file.bytes - left >= FREED_BYTES_MIN:
                found.append(file)
        return found

    def half_dead_files(self) -> list[tuple[File, int]]:
        """Files that give back a quarter of themselves or more, and how much they take anew; first those that give the most for what they take."""
        found = []
        for file, alive in self._tallied():
            left = alive.seqs * INDEX_BYTES + alive.live * RECORD_BYTES + alive.live_bytes + 4096
            freed = file.bytes - left
            # What is left of one that was made is what it is, whatever the reckoning says, until more of it is dead.
            made = self._made.get((file.kind, file.topic_id, file.name, file.edition))
            changed = made is None or alive.live_bytes * FULL_FREED_SHARE <= made * (FULL_FREED_SHARE - 1)
            if changed and freed >= max(file.bytes // FULL_FREED_SHARE, FULL_FREED_BYTES_MIN):
                found.append((file, left, alive.live_bytes))
        found.sort(key=lambda each: each[1] / each[0].bytes)
        return [(file, left) for file, left, _bytes in found]

    def _tallied(self) -> Iterator[tuple[File, upkeep.Live]]:
        live = dict(upkeep.tally(self.shared))
        for file in upkeep.listed(self.shared):
            if file.kind != COLD and file.number in live and (file.number, file.serial) not in self._refused:
                yield file, live[file.number]

    def rewrite_one(self, *, full: bool = False) -> bool:
        """Make one file anew that is mostly dead; tell whether there was one. `full`: the disk is, and a quarter of a file is worth it."""
        if any(self.make_anew(file) for file in self.dead_files()):
            return True
        return full and any(self.have_room(left) and self.make_anew(file) for file, left in self.half_dead_files())

    def _again(self, number: int, serial: int) -> None:
        for file in upkeep.listed(self.shared):
            if (file.number, file.serial) == (number, serial) and (number, serial) not in self._refused:
                self.make_anew(file, mend=True)

    def make_anew(self, file: File, *, mend: bool = False) -> bool:
        """Copy what lives of a file into a new one and let its rows lead there. `mend`: its index or tags are damaged, the data is not."""
        ranges = upkeep.ranges(self.shared, file.number) if file.kind != COLD else []
        if not ranges or not upkeep.lives(self.shared, file.number, file.serial) or self._is_newer(file):
            return False
        try:
            rows = self._own(file, ranges[0], mend) if file.kind == OWN else self._pack(file, ranges, mend)
        except (SegmentError, OSError) as wrong:
            if isinstance(wrong, OSError) and wrong.errno in NO_ROOM:
                return False  # tried again once there is
            self._refused.add((file.number, file.serial))
            log.error("not made anew", path=str(path_of(self.data_dir, file)), why=str(wrong))
            return False
        codes: list[str] = []
        for first in range(0, len(rows), ROWS_A_CALL):
            codes += self.replace(rows[first : first + ROWS_A_CALL])
            if LOG_FULL in codes:
                break  # tried again once there is room
        done = codes.count("replaced")
        if done:
            self.figures.add("rewrites")
            self.figures.add("rewritten_bytes", file.bytes)
            self._note_made(rows)
            log.info("made anew", path=str(path_of(self.data_dir, file)), bytes=file.bytes, rows=done)
            if mend:
                self.damage.mended(file)
        if set(codes) <= {LOG_FULL}:
            remove_files(self.data_dir, rows[0][3] if rows else b"")
        elif done < len(codes) - codes.count(LOG_FULL):
            self._refused.add((file.number, file.serial))
        return done > 0

    def _is_newer(self, file: File) -> bool:
        """Say whether any part of a file is of a newer version, and tell it: then what is there stays."""
        path = path_of(self.data_dir, file)
        try:
            if file.kind == PACK:
                newer.refuse_file(path)
                pack_places(path, load(path)[0])
            else:
                for kind in newer.KINDS:
                    newer.refuse_file(names.name_of(self.data_dir, file.topic_id, file.name, file.edition).path(kind))
        except NewerFormatError as refused:
            self.damage.visit(file, path)
            self.damage.note(newer_problem(refused))
            return True
        except OSError:
            pass  # whoever makes it anew will tell
        return False

    def _note_made(self, rows: Ranges) -> None:
        named = FILE.unpack_from(rows[0][3], ROW.size)
        kind, topic_id, name, edition = named[7], named[1], named[2], named[3]
        known = {(file.kind, file.topic_id, file.name, file.edition) for file in upkeep.listed(self.shared)}
        self._made = {key: live for key, live in self._made.items() if key in known}
        self._made[kind, topic_id, name, edition] = sum(ROW.unpack_from(new)[3] for _slot, _topic_id, _old, new in rows)

    def _own(self, file: File, one: tuple[int, int, bytes, bytes], mend: bool) -> Ranges:
        slot, topic_id, body, deleted = one
        name = names.name_of(self.data_dir, file.topic_id, file.name, file.edition)
        place = names.place_of(name)
        if mend:
            checked = self._verifier.check(place, remake=True)
            self._verifier.forget()
            if any(problem.loses for problem in checked.problems) or not checked.remade:
                raise OSError(f"{place.data.path}: its data is damaged too; what is left of it is evidence")
            index = checked.remade.get("index") or place.index.path.read_bytes()
        else:
            index = place.index.path.read_bytes()
        with mapped(place.data.path) as data:
            view = SegmentView(index, data, marks=True)
            if not mend:
                if has_lost(view, index, 0, body, deleted):
                    raise OSError(f"{place.data.path}: records of it were lost that its row counts; what is left of it is evidence")
                view.take_flags(flags_of(view, deleted))
            writer = Writer(name.folder, self.files)
            writer.begin(topic_id, view.first_seq, file.edition + 1)
            writer.add_all(view)
            built = writer.finish()
            del view
        size = built.data_bytes + built.index_bytes + built.tags_bytes
        return [(slot, topic_id, body, body_of(body, built, OWN, topic_id, file.name, file.edition + 1, size))]

    def _pack(self, file: File, ranges: Ranges, mend: bool) -> Ranges:
        number = self.pack_number()
        path = names.pack_path(self.data_dir, file.name)
        make_folder(self.data_dir, path.parent.relative_to(self.data_dir), self.files)
        writer = Writer(path.parent, self.files)
        made: list[tuple[tuple[int, int, bytes, bytes], Built]] = []
        with mapped(path) as raw:
            writer.pack_begin(number)
            for one in sorted(ranges, key=lambda each: (each[1], each[2][:8][::-1])):
                place = place_in_pack(path, one[1], one[2])
                index, index_at = self._mended_index(place) if mend else (raw, place.index.offset)
                if index is None:
                    continue
                view = SegmentView(index, raw, index_offset=index_at, data_offset=place.data.offset, marks=True)
                if not mend and has_lost(view, index, index_at, one[2], one[3]):
                    continue  # it stays where it is, and what is left of it
                view.take_flags(flags_of(view, one[3]))
                writer.begin_in_pack(one[1], view.first_seq)
                writer.add_all(view)
                made.append((one, writer.finish()))
                del view
            if not made:
                writer.abort()
                raise OSError(f"{path}: its data is damaged too; what is left of it is evidence")
            size = writer.pack_finish()
        return [(slot, topic_id, body, body_of(body, built, PACK, 0, number, 0, size)) for (slot, topic_id, body, _), built in made]

    def _mended_index(self, place: Place) -> tuple[bytes | None, int]:
        """The index of a segment in a damaged pack as it should be, and where it begins; None where data is damaged: that stays where it is."""
        checked = self._verifier.check(place, remake=True)
        if any(problem.loses for problem in checked.problems):
            return None, 0
        index = checked.remade.get("index")
        return (index, 0) if index is not None else (place.index.path.read_bytes(), place.index.offset)

    # ---- files that nobody speaks of -----------------------------------------------------------------------------------------------

    def look_for_orphans(self, wall_ms: int) -> list[Path]:
        """Files below topics/ and packs/ that no row leads into and no snapshot waits to remove. They are told, never removed."""
        known = {(file.kind, file.topic_id, file.name, file.edition) for file in upkeep.listed(self.shared)}
        asked: dict[tuple[int, int, int, int], list[Path]] = {}
        for path in names.files_below(self.data_dir):
            key = key_of(path)
            kinds = [key] if key is None or key[0] == PACK else [key, (COLD, *key[1:])]
            try:
                young = wall_ms - path.stat().st_mtime_ns // 1_000_000 < limits.ORPHAN_AGE_MS_MIN
            except FileNotFoundError:
                continue
            if not young and not any(kind in known for kind in kinds):
                asked.setdefault(key or (0, 0, 0, 0), []).append(path)
        keys = [list(key) for key in asked if key[0]]
        orphans = asked.get((0, 0, 0, 0), [])
        for first in range(0, len(keys), 64):
            for unknown in self.unknown(keys[first : first + 64]):
                orphans += asked[(unknown[0], unknown[1], unknown[2], unknown[3])]
        self.figures.set("orphans", len(orphans))
        for path in orphans:
            if path not in self._orphans:
                self._orphans.add(path)
                log.warning("no row speaks of this file; it stays where it is", path=str(path))
        return orphans


# ---- files, rows


def path_of(data_dir: Path, file: File) -> Path:
    """The file that names a row of the table: the data part's, or the pack's."""
    if file.kind == PACK:
        return names.pack_path(data_dir, file.name)
    return names.name_of(data_dir, file.topic_id, file.name, file.edition).path("data")


def key_of(path: Path) -> tuple[int, int, int, int] | None:
    """What the table calls the file that a path belongs to; None for one that does not belong there."""
    named = names.parse(path)
    if named is not None:
        return OWN, named[0].topic_id, named[0].first_seq, named[0].edition
    number = names.pack_number(path)
    return None if number is None else (PACK, 0, number, 0)


def place_in_pack(path: Path, topic_id: int, body: bytes) -> Place:
    """Where the parts stand that a row leads to."""
    row = ROW.unpack_from(body)
    data_at, index_at, tags_at = (row[number] * 8 for number in (8, 9, 10))
    return Place(Spot(path, data_at), Spot(path, index_at), Spot(path, tags_at), topic_id, row[0], row[1], index_at - data_at)


def stands(place: Place) -> tuple[int, ...]:
    """What a segment in a pack is, and where."""
    return place.topic_id, place.first_seq, place.last_seq, place.data.offset, place.index.offset


def flags_of(view: SegmentView, deleted: bytes) -> bytes:
    """A flags part that says of each seq whether the row's marks call it deleted, or the segment does."""
    part = bytearray(view.flags_part())
    for number, flag in enumerate(deleted):
        if flag:
            part[128 + number] = flag
    return bytes(part)


def has_lost(view: SegmentView, index: bytes | mmap.mmap, index_at: int, body: bytes, deleted: bytes) -> bool:
    """Whether an index calls records lost that its row counts: fsck has made it again of damaged data. A new file would be sound, the count wrong."""
    header = header_of(index, "index", index_at)
    if not header.holes:
        return False
    flags = flags_of(view, deleted)[128:]
    live = sum(
        not flag and not view.entry(seq)[2] & GONE for seq, flag in enumerate(flags[: header.last_seq - header.first_seq + 1], header.first_seq)
    )
    return live < int(ROW.unpack_from(body)[4])


def body_of(old: bytes, built: Built, kind: int, topic_id: int, name: int, edition: int, size: int, flags: int | None = None) -> bytes:
    """The row `old` as it leads into what was built: range, times and counts stay."""
    row = list(ROW.unpack_from(old))
    row[5], row[6], row[11] = 0, 1, 0
    row[7] = (row[7] & ~0xE if flags is None else flags) | (2 if built.postings else 0)
    row[8], row[9], row[10] = built.data_offset // 8, built.index_offset // 8, built.tags_offset // 8
    return ROW.pack(*row) + FILE.pack(0, topic_id, name, edition, size, 0, 0, kind, 0, 0)


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    """Map a file read-only; who still has a view of it afterwards keeps it alive. Raises OSError."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise OSError(errno.ENODATA, "an empty file", str(path))
        made = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        yield made
    finally:
        with suppress(BufferError):
            made.close()
