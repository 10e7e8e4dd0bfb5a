"""Check a data directory that no server has open: every checksum, index, tag part, directory and count; put right what can be put right.

The newest snapshot's sealed ranges are held against the files (rows.py), and what is cold against its objects where the tier is known.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from topicsd import snapshot, synced
from topicsd._native import log_walk
from topicsd._native.segment import SegmentError
from topicsd._native.segment_repair import Examiner
from topicsd.segments import names, newer
from topicsd.segments.cold import Cold, ColdError, ColdMissingError, cold_name, what_is_wrong
from topicsd.segments.names import Name, Place, Spot
from topicsd.segments.newer import NewerFormatError
from topicsd.segments.repair import move_aside, repair, set_aside, write_whole
from topicsd.segments.rows import Range, missing, places_in
from topicsd.segments.verify import BAD_FRAME, DIRECTORY, Checked, Problem, Verifier, check_cold, load, pack_places


@dataclass
class Report:
    """What fsck found. `refused`: files of a newer version; nothing may be said about them."""

    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    log_frames: int = 0
    segments: int = 0
    cold: int = 0  # of them
    unread: int = 0  # of these: nobody has said where the cold tier is, or their index is damaged
    records: int = 0
    deleted: int = 0
    held: dict[Path, set[Range]] = field(default_factory=dict)  # by the data part's file, or the pack
    unlisted: set[Path] = field(default_factory=set)  # packs whose directory can not be read: they do not tell what has been in them


class InUseError(Exception):
    """Say that a server has the directory open."""


@contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Hold the directory's LOCK, so that no server starts meanwhile. Raises InUseError."""
    fd = os.open(data_dir / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InUseError(f"{data_dir} is in use by a server: stop it first") from None
        yield
    finally:
        os.close(fd)


def fsck(data_dir: Path, *, mend: bool = False, cold: Cold | None = None) -> Report:
    """Check everything below `data_dir`, and what it has in the cold tier. `mend` makes indexes and tags again and moves litter into quarantine/.

    Nothing is deleted, and nothing is changed in the cold tier.

    Raises InUseError, OSError.
    """
    report = Report()
    with locked(data_dir):
        _check_snapshots(data_dir, report)
        if not report.refused:
            _check_logs(data_dir, report, mend)
        _check_segments(data_dir, report, mend, cold)
        if not report.refused:
            _check_rows(data_dir, report)
            report.problems += missing(data_dir, report.held, {problem.path for problem in report.problems})
    return report


def _log_begins(data_dir: Path, folder: Path, shard: int, report: Report) -> tuple[int, int]:
    """Return where a shard's log may begin, and up to where the newest snapshot knows it to have been synced."""
    files = log_walk.list_files(os.fsencode(folder))
    first = files[0].first_position if files else 0
    found, _wrong = snapshot.newest(data_dir)
    if found is None:
        if first:
            report.problems.append(Problem(folder, 0, f"the log begins at position {first}, and no snapshot says what stood before", loses=True))
        return first, 0
    needed, moment = ([*found.header[name], *([0] * shard)][: shard + 1][-1] for name in ("needed", "moment"))
    return min(first, max((file.first_position for file in files if file.first_position <= needed), default=needed)), moment


def _check_snapshots(data_dir: Path, report: Report) -> None:
    for number in snapshot.numbers(data_dir):
        path = snapshot.path_of(data_dir, number)
        report.files += 1
        report.bytes += path.stat().st_size
        try:
            snapshot.read(path)
        except snapshot.NewerSnapshotError as refused:
            report.refused.append(str(refused))
        except (snapshot.SnapshotError, OSError, ValueError, KeyError) as wrong:
            _tell(report, path, wrong, "a start takes an older snapshot, or the log, and the next snapshot replaces this one")
    for number in snapshot.heads(data_dir):
        try:
            snapshot.read_chain(data_dir, number)
        except snapshot.NewerSnapshotError:
            continue
        except (snapshot.SnapshotError, OSError, ValueError, KeyError, TypeError) as wrong:
            if not any(f"{problem.path}: {problem.what}" == str(wrong) for problem in report.problems):
                _tell(report, snapshot.path_of(data_dir, number), wrong, "a start takes another snapshot, or the log")


def _tell(report: Report, path: Path, wrong: Exception, then: str) -> None:
    """Tell of a file that is not put right here, and what becomes of it."""
    report.problems.append(Problem(path, 0, str(wrong).removeprefix(f"{path}: ")))
    report.notes.append(f"{path}: {then}")


def _check_logs(data_dir: Path, report: Report, mend: bool) -> None:
    noted = synced.UNKNOWN
    try:
        noted = synced.read(data_dir)
    except synced.NewerNoteError as refused:
        report.refused.append(str(refused))
        return
    except (synced.NoteError, OSError) as wrong:
        _tell(report, synced.path_of(data_dir), wrong, "a start makes it again")
    for folder in sorted((data_dir / "log").glob("shard-[0-9][0-9]")):
        shard = int(folder.name[-2:])
        try:
            begins, known = _log_begins(data_dir, folder, shard, report)
            walked = log_walk.check(folder, shard, from_position=begins, known=max(known, noted[shard]))
        except log_walk.LogFormatError as wrong:
            report.refused.append(str(wrong))
            continue
        report.files += len(walked.files)
        report.bytes += sum(file.bytes for file in walked.files)
        report.log_frames += walked.frames
        for damage in walked.damaged:
            what = f"{damage.bytes} damaged bytes in the log: expected {damage.expected}, found {damage.got}"
            report.problems.append(Problem(Path(os.fsdecode(damage.path)), damage.offset, what, loses=True))
        if walked.torn_bytes:
            report.notes.append(
                f"{folder}: {walked.torn_bytes} bytes behind the log's end at position {walked.end} were never synced; nobody was promised them"
            )
        if walked.damaged and mend:
            (data_dir / "quarantine").mkdir(exist_ok=True)
            report.done += [f"damaged range copied to {copy}" for copy in log_walk.quarantine(walked, data_dir / "quarantine", shard)]


def _check_segments(data_dir: Path, report: Report, mend: bool, cold: Cold | None) -> None:
    verifier = Verifier()
    alone: dict[Name, set[str]] = {}
    quarantine = data_dir / "quarantine"
    for path in names.files_below(data_dir):
        report.files += 1
        report.bytes += path.stat().st_size
        if path.suffix == ".tmp":
            report.notes.append(f"{path}: unfinished; nothing speaks of it")
            if mend:
                report.done.append(f"{path}: moved to {move_aside(quarantine, path)}")
            continue
        named = names.parse(path)
        if named:
            alone.setdefault(named[0], set()).add(named[1])
        elif names.pack_number(path) is not None:
            _check_pack(path, verifier, report, quarantine if mend else None)
        else:
            report.problems.append(Problem(path, 0, "no file of this name belongs here"))
    for name, kinds in alone.items():
        if "data" not in kinds and "flags" in kinds:
            _check_cold(name, report, cold, quarantine if mend else None)
            continue
        if "flags" in kinds:
            report.notes.append(f"{name.path('flags')}: the data file is still here: it waits for its move to the cold tier, or to be removed")
        if "data" not in kinds:
            report.refused += [str(refused) for refused in newer.found(name.path(kind) for kind in kinds)]
            report.problems.append(Problem(name.path("data"), 0, "the data file is missing", loses=True))
            continue
        _check_one(names.place_of(name), verifier, report, quarantine if mend else None)
    _note_overlaps(list(alone), report)


def _check_pack(path: Path, verifier: Verifier, report: Report, quarantine: Path | None) -> None:
    raw, bad = load(path)
    report.problems += [Problem(path, offset, "the disk does not give this page back", loses=True) for offset in bad]
    try:
        places, problems = pack_places(path, raw)
    except NewerFormatError as refused:
        report.refused.append(str(refused))
        return
    report.problems += problems
    if any(problem.what.startswith(DIRECTORY) for problem in problems):
        report.unlisted.add(path)
    for place in places:
        _check_one(place, verifier, report, quarantine)


def _check_rows(data_dir: Path, report: Report) -> None:
    """What the newest snapshot leads to in packs that do not tell it; nothing is mended there, for nothing says where a part ends."""
    verifier = Verifier()
    for place in places_in(data_dir, report.unlisted):
        stands = (place.topic_id, place.first_seq, place.last_seq, place.data.offset, place.index.offset)
        if stands not in report.held.get(place.data.path, ()):
            _check_one(place, verifier, report, None)


def _check_one(place: Place, verifier: Verifier, report: Report, quarantine: Path | None) -> None:
    try:
        checked: Checked = verifier.check(place, remake=quarantine is not None)
    except NewerFormatError as refused:
        report.refused.append(str(refused))
        return
    report.segments += 1
    report.problems += checked.problems
    if (found := checked.findings) is not None:
        held = (found.topic_id, found.first_seq, found.last_seq, place.data.offset, place.index.offset)
        report.held.setdefault(place.data.path, set()).add(held)
        report.records += found.records
        report.deleted += found.deleted
    if quarantine is not None and checked.problems:
        report.done += repair(checked, quarantine)
        verifier.forget()


def _check_cold(name: Name, report: Report, cold: Cold | None, quarantine: Path | None) -> None:
    """What of a cold segment is here, and its object where the tier is known: of that, index and tags are made again."""
    try:
        checked = check_cold(name)
    except NewerFormatError as refused:
        report.refused.append(str(refused))
        return
    report.segments += 1
    report.cold += 1
    report.problems += checked.problems
    damaged = [kind for kind in ("index", "tags") if any(problem.kind == kind for problem in checked.problems)]
    if cold is None or ("index" in damaged and quarantine is None):
        report.unread += 1
        return
    try:
        if damaged and quarantine is not None and not _mend_cold(name, damaged, cold, quarantine, report):
            return
        wrong = what_is_wrong(cold, cold_name(name), name.path("index").read_bytes())
    except NewerFormatError as refused:
        report.refused.append(f"in the cold tier: {refused}")
        return
    except ColdError as why:
        report.refused.append(f"{name.path('data')}: the cold tier can not be asked: {why}")
        return
    if wrong:
        report.problems.append(Problem(name.path("data"), 0, f"in the cold tier: {wrong}", loses=True, kind="data"))


def _mend_cold(name: Name, damaged: list[str], cold: Cold, quarantine: Path, report: Report) -> bool:
    """Make parts of a cold segment again of its object; False where that is lost or damaged, and told. Raises ColdError, NewerFormatError."""
    wrong, examiner = "its data is damaged too", Examiner()
    try:
        back = cold.read(cold_name(name), 0, cold.size(cold_name(name)))
        newer.refuse_part(back, "data", Spot(Path(cold_name(name))))
        found = examiner.examine(back)
        if found.data_status or (found.topic_id, found.first_seq) != (name.topic_id, name.first_seq):
            raise SegmentError(BAD_FRAME)
    except (ColdMissingError, SegmentError) as why:
        if isinstance(why, NewerFormatError):
            raise
        wrong = str(why) if isinstance(why, ColdMissingError) else f"{cold_name(name)}: {wrong}; nothing is made again of it"
        report.problems.append(Problem(name.path("data"), 0, f"in the cold tier: {wrong}", loses=True, kind="data"))
        report.unread += 1
        return False
    for kind in damaged:
        path, raw = name.path(kind), examiner.remade(kind)
        copy = set_aside(quarantine, path, 0, path.read_bytes()) if path.exists() else None
        write_whole(path, raw)
        report.done.append(f"{path}: made again of its object in the cold tier{f'; what was there is in {copy}' if copy else ''}")
    return True


def _note_overlaps(found: list[Name], report: Report) -> None:
    """Two editions of one range: one of them waits to be removed, or a rewrite was not published."""
    seen: dict[tuple[int, int], Name] = {}
    for name in found:
        other = seen.setdefault((name.topic_id, name.first_seq), name)
        if other != name:
            report.notes.append(f"{name.path('data')}: another edition of {other.path('data').name}")
