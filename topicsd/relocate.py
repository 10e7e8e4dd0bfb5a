"""Move old segments to the cold tier: a thread of the keeper copies, the keeper publishes. A store that hangs holds up nobody else.

    data part copied under the next edition's name, read back, verified        the thread; may take for ever
    index and tags of that edition, and the `.del` file with what is deleted   keeper: synced
    segment.replace: the row leads to the edition whose data part is cold      writer: a SEGMENT frame
    the old edition's files go                                                 writer: after two snapshots, as any file goes

Killed anywhere, what stands under the next edition's name is nobody's and is written again. When the last row of a cold segment has gone and two
snapshots say so, its object is named in `segment.cold_gone` until the keeper has removed it.

A call that does not come back is given up: it is said, and once the tier answers again another thread goes on with the rest. Nobody can end such a
call, and late it does no harm: an edition's name is put by one call at a time, none is put again once it was removed, and what a late copy has put
and verified is published as any other.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from topicsd._native import upkeep
from topicsd._native.files import FileSystem
from topicsd._native.regions import Shared
from topicsd._native.segment import SegmentError, SegmentView
from topicsd._native.upkeep import File
from topicsd._native.whole_files import copy_whole, write_whole
from topicsd.figures import Figures
from topicsd.segments import names, newer
from topicsd.segments.cold import Cold, ColdError, cold_name, refuse_newer_object, verify_back
from topicsd.segments.cold_reader import HUNG_SHARE, STUCK_MAX
from topicsd.segments.cold_tier import FAILS, HANGS, ColdAwayError
from topicsd.segments.names import Name
from topicsd.segments.rows import COLD, FILE, OWN, ROW
from topicsd.upkeep import Replace, flags_of

ROW_COLD = 4
LOOK_MS = 1000
CHECK_MS = 5_000  # how often the tier is asked who it is
RETRY_MS, RETRY_MS_MAX = 5_000, 300_000  # after the store has failed
HUNG_MS = 60_000  # a call that has not come back after so long hangs,
SILENT_MS = 10_000  # the tier has been asked who it is, and has not said so: it is away for whoever reads, though it may still answer
HUNG_BYTES_PER_MS = 256  # and a copy after so long for its bytes as well: a slow store is none that hangs
TELL_MS = 60_000
GONE_A_LOOK = 64
NEEDED_MS = 600_000  # the writer reads it itself: a queue, a router that is behind
FOR_EVER_MS = 1 << 62

log = structlog.get_logger("cold")


@dataclass(frozen=True)
class Retain:
    """What stays hot of each topic: its newest segments, so many or so many bytes of them, whichever is more. 0: that does not count."""

    segments: int = 8
    bytes: int = 0


class Move(NamedTuple):
    """A segment on its way."""

    file: File
    source: Name
    target: Name
    bytes: int


Job = Callable[[], object]


class Thread:
    """One job at a time, off the keeper's thread."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done: deque[BaseException | None] = deque()
        self.busy = False
        self._thread: threading.Thread | None = None

    def begin(self, job: Job) -> None:
        """Start a job; nothing else may be under way."""
        assert not self.busy
        self.busy = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="cold", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def ended(self) -> tuple[bool, BaseException | None]:
        """Say whether the job has ended, and what it raised."""
        if not self._done:
            return False, None
        self.busy = False
        return True, self._done.popleft()

    def end(self) -> None:
        """Let it end when what it does has ended."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as wrong:  # a store's library may raise anything; the keeper is told
                self._done.append(wrong)
            else:
                self._done.append(None)


class Inline:
    """The same at once, for tests: what happens is in order."""

    busy = False

    def __init__(self) -> None:
        self._wrong: BaseException | None = None

    def begin(self, job: Job) -> None:
        """Do it."""
        self.busy, self._wrong = True, None
        try:
            job()
        except ColdError as wrong:
            self._wrong = wrong

    def ended(self) -> tuple[bool, BaseException | None]:
        """It has."""
        ended, self.busy = self.busy, False
        return ended, self._wrong

    def end(self) -> None:
        """Nothing is under way."""


@dataclass(eq=False)
class Call:
    """What a thread does in the store: it copies a segment, removes objects, or asks the tier who it is."""

    thread: Thread | Inline
    began_ms: int
    move: Move | None = None
    removing: list[list[int]] = field(default_factory=list)
    removed: int = 0  # of those; the thread's own
    seen: int = 0  # of those, when it was looked at
    given_up: bool = False

    @property
    def limit_ms(self) -> int:
        """Return how long it may take."""
        return HUNG_MS + (self.move.bytes // HUNG_BYTES_PER_MS if self.move else 0)

    def told(self) -> dict[str, object]:
        """Say what it does."""
        if self.move:
            return {"call": "copy", "object": cold_name(self.move.target)}
        return {"call": "removal", "objects": len(self.removing) - self.removed} if self.removing else {"call": "look"}


class Relocation:
    """One thread, the keeper's. `replace` hands rows to the writer; `gone` asks which objects nobody needs, `removed` says that they are no more,
    `may_go` asks whether the writer does without a row (slot, topic id, last seq), `check` whether the tier is the one where the objects are.
    """

    def __init__(
        self,
        shared: Shared,
        data_dir: Path,
        cold: Cold,
        retain: Retain,
        replace: Replace,
        gone: Callable[[], list[list[int]]],
        removed: Callable[[list[list[int]]], None],
        may_go: Callable[[int, int, int], bool],
        figures: Figures,
        files: FileSystem | None = None,
        thread: Thread | Inline | None = None,
        check: Job | None = None,
    ) -> None:
        self.shared, self.data_dir, self.cold, self.retain = shared, data_dir, cold, retain
        self.replace, self.gone, self.removed, self.may_go, self.figures, self.files = replace, gone, removed, may_go, figures, files
        self.thread, self.check = thread or Thread(), check
        self.look_at_ms = self._check_at_ms = 0
        self.retry_ms = RETRY_MS
        self._refused: dict[tuple[int, int], int] = {}  # (number, serial) -> until when it stays hot without another try
        self._now_ms = 0
        self._call: Call | None = None
        self._hung: list[Call] = []
        self._hangs_since_ms: int | None = None  # nothing has come back in time since then
        self._hung_told_ms = -TELL_MS
        self._told = ""
        figures.set("cold_hung", 0)

    def step(self, mono_ms: int) -> None:
        """Take up what has ended, begin what is due."""
        self._now_ms = mono_ms
        self._take_late()
        if (call := self._call) is not None:
            ended, wrong = self.thread.ended()
            if not ended:
                self._look_at(call)
                return
            self._call = None
            if wrong is not None:
                self._failed(wrong, call.move, call.removing, mono_ms)
            else:
                self._worked(call.move, call.removing)
        self._tell_hung()
        if mono_ms < self.look_at_ms or len(self._hung) >= STUCK_MAX:
            return
        if self._begin_check(mono_ms) or self._begin_removal() or self._begin_move():
            return
        self.look_at_ms = mono_ms + LOOK_MS

    def _begin(self, call: Call, job: Job) -> None:
        self._call = call
        self.thread.begin(job)

    # ---- what does not come back

    def _look_at(self, call: Call) -> None:
        """Give a call up that hangs, and leave it to its thread."""
        if (removed := call.removed) != call.seen:
            call.seen, call.began_ms = removed, self._now_ms
        if self._now_ms - call.began_ms < call.limit_ms:
            self._look_whether_silent(call)
            return
        call.given_up, self._call = True, None
        self._hung.append(call)
        self.thread.end()
        self.thread = type(self.thread)()
        if self._hangs_since_ms is None:
            self._hangs_since_ms = call.began_ms
        self.figures.set("cold_hung", len(self._hung))
        self.figures.set("cold_away", HANGS)
        self._tell_hung()
        self._check_at_ms = 0  # nothing is moved or removed before it answers
        self.look_at_ms = self._now_ms + max(RETRY_MS, (self._now_ms - self._hangs_since_ms) // HUNG_SHARE)

    def _look_whether_silent(self, call: Call) -> None:
        """Say early that the tier does not answer: its marker is small, where a copy may take its time."""
        asks = call.move is None and not call.removing
        if asks and self._now_ms - call.began_ms >= SILENT_MS and self.figures.get("cold_away") == 0:
            self.figures.set("cold_away", HANGS)
            log.error("the cold tier does not answer", for_ms=self._now_ms - call.began_ms)

    def _tell_hung(self) -> None:
        if self._hung and self._hangs_since_ms is not None and self._now_ms - self._hung_told_ms >= TELL_MS:
            self._hung_told_ms = self._now_ms
            for_ms = self._now_ms - self._hung[0].began_ms
            log.error("a call to the cold tier hangs", for_ms=for_ms, calls_that_hang=len(self._hung), **self._hung[0].told())

    def _take_late(self) -> None:
        """Take up what has come back after it was given up."""
        for call in [*self._hung]:
            ended, wrong = call.thread.ended()
            if not ended:
                continue
            self._hung.remove(call)
            self.figures.set("cold_hung", len(self._hung))
            log.info("a call to the cold tier has come back", after_ms=self._now_ms - call.began_ms, why=str(wrong or ""), **call.told())
            if self._hangs_since_ms is not None:
                self.look_at_ms = self._check_at_ms = 0  # others may come back as well
            if isinstance(wrong, SegmentError) and call.move is not None:
                self._refused[call.move.file.number, call.move.file.serial] = FOR_EVER_MS
            elif wrong is None and call.move is not None:
                self._publish(call.move)
            elif call.removed:
                self.removed(call.removing[: call.removed])

    def _worked(self, moving: Move | None, removing: list[list[int]]) -> None:
        self.figures.set("cold_away", 0)
        self._told, self._hangs_since_ms = "", None
        if moving is not None:
            self.retry_ms = RETRY_MS
            self._publish(moving)
        elif removing:
            self.removed(removing)

    def _begin_check(self, mono_ms: int) -> bool:
        if self.check is None or mono_ms < self._check_at_ms:
            return False
        self._check_at_ms = mono_ms + CHECK_MS
        self._begin(Call(self.thread, mono_ms), self.check)
        return True

    def _failed(self, wrong: BaseException, moving: Move | None, removing: list[list[int]], mono_ms: int) -> None:
        """Leave a store alone that does not work; a segment that is damaged stays where it is."""
        checked = moving is None and not removing
        if isinstance(wrong, ColdError) and (checked or isinstance(wrong, ColdAwayError)):
            self.figures.set("cold_away", wrong.code if isinstance(wrong, ColdAwayError) else FAILS)
            self._check_at_ms = 0  # nothing is moved or removed before it is back
        if checked:
            self.look_at_ms = mono_ms + RETRY_MS
            if str(wrong) != self._told:
                self._told = str(wrong)
                log.error("the cold tier failed", why=str(wrong))
            return
        self.figures.add("cold_failures")
        if isinstance(wrong, SegmentError) and moving is not None:
            self._refused[moving.file.number, moving.file.serial] = FOR_EVER_MS
        else:
            self.look_at_ms = mono_ms + self.retry_ms
            self.retry_ms = min(2 * self.retry_ms, RETRY_MS_MAX)
        log.error("the cold tier failed", why=str(wrong))

    # ---- there

    def due(self) -> list[File]:
        """Segments that are to go, oldest of each topic first."""
        topics: dict[int, list[File]] = {}
        for file in upkeep.listed(self.shared):
            if file.kind == OWN:
                topics.setdefault(file.topic_id, []).append(file)
        found: list[File] = []
        for segments in topics.values():
            younger = size = 0
            for file in sorted(segments, key=lambda each: each.name, reverse=True):
                if younger >= self.retain.segments and size >= self.retain.bytes and self._now_ms >= self._refused.get((file.number, file.serial), 0):
                    found.append(file)
                younger, size = younger + 1, size + file.bytes
        return sorted(found, key=lambda each: (each.topic_id, each.name))

    def _begin_move(self) -> bool:
        hung = {call.move.target for call in self._hung if call.move is not None}
        for file in self.due():
            target = names.name_of(self.data_dir, file.topic_id, file.name, file.edition + 1)
            if target in hung:
                continue  # whoever copied it too would write where the other one writes
            ranges = upkeep.ranges(self.shared, file.number)
            if not ranges:  # its topic moved too often while it was looked at, or it has just gone
                self._refused[file.number, file.serial] = self._now_ms + RETRY_MS
                continue
            if not self.may_go(ranges[0][0], ranges[0][1], ROW.unpack_from(ranges[0][2])[1]):
                self._refused[file.number, file.serial] = self._now_ms + NEEDED_MS
                continue
            source = names.name_of(self.data_dir, file.topic_id, file.name, file.edition)
            try:
                move = Move(file, source, target, source.path("data").stat().st_size)
            except FileNotFoundError:
                continue
            self._begin(Call(self.thread, self._now_ms, move), partial(self._copy, move))
            return True
        return False

    def _copy(self, move: Move) -> None:
        for kind in newer.KINDS:
            newer.refuse_file(move.source.path(kind))
        data, index = move.source.path("data"), move.source.path("index").read_bytes()
        view = SegmentView(index, data.read_bytes())
        status, upto = view.check(view.first_seq, view.last_seq - view.first_seq + 1)
        if status:
            raise SegmentError(status, f"{data}, seq {upto}")
        refuse_newer_object(self.cold, cold_name(move.target))
        self.cold.put(cold_name(move.target), data)
        verify_back(self.cold, cold_name(move.target), move.bytes, index)

    def _publish(self, move: Move) -> None:
        ranges = upkeep.ranges(self.shared, move.file.number)
        if not ranges or not upkeep.lives(self.shared, move.file.number, move.file.serial):
            return
        if FILE.unpack_from(ranges[0][2], ROW.size)[1:4] != (move.file.topic_id, move.file.name, move.file.edition):
            return  # a writer that has begun anew since has given the number to another
        slot, topic_id, body, deleted = ranges[0]
        for kind in ("index", "tags"):
            copy_whole(move.source.path(kind), move.target.path(kind), self.files)
        view = SegmentView(move.source.path("index").read_bytes(), move.source.path("data").read_bytes())
        write_whole(move.target.path("flags"), flags_of(view, deleted), self.files)
        row = list(ROW.unpack_from(body))
        row[5], row[6], row[7], row[11] = 0, 1, row[7] & ~0x8 | ROW_COLD, 0
        new = ROW.pack(*row) + FILE.pack(0, topic_id, move.file.name, move.target.edition, move.bytes, 0, 0, COLD, 0, 0)
        (code,) = self.replace([(slot, topic_id, body, new)])
        if code != "replaced":
            self._refused[move.file.number, move.file.serial] = self._now_ms + NEEDED_MS
            log.info("stays hot", path=str(move.source.path("data")), why=code)
            return
        self.figures.add("cold_moved")
        self.figures.add("cold_moved_bytes", move.bytes)
        log.info("is cold", object=cold_name(move.target), bytes=move.bytes)

    # ---- no more

    def _begin_removal(self) -> bool:
        hung = [call.removing[call.removed] for call in self._hung if call.removed < len(call.removing)]
        gone = [file for file in self.gone() if file not in hung][:GONE_A_LOOK]
        if not gone:
            return False
        call = Call(self.thread, self._now_ms, removing=gone)
        objects = [cold_name(names.name_of(self.data_dir, topic_id, name, edition)) for _kind, topic_id, name, edition in gone]

        def remove() -> None:
            for each in objects:
                if call.given_up:
                    return
                self.cold.delete(each)
                call.removed += 1

        self._begin(call, remove)
        return True
