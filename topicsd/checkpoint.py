"""Checkpoints: a snapshot of the tables, and then the files that nobody needs any more (ARCHITECTURE section 5).

A checkpoint is one moment: nothing is in flight, and the tables hold exactly what the log says up to its end. What has changed since an earlier
snapshot is packed behind the moment, in slices between the writer's turns; what a write is about to change is packed before it does
(`_native/taking.pxd`). Waiting for the log's sync, writing the snapshot and removing files is the business of another thread.

Two snapshots are kept, each with the layers that it stands upon, none of them shared: the next one stands upon the older of the two. A layer that
is smaller than `absorb` times what has changed since is not built upon but written anew: sizes grow from layer to layer, and a chain stays short. A
log file goes when it ends below what both need, a segment's files when no row of both leads there: so a damaged snapshot costs nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from topicsd import limits, snapshot, synced
from topicsd._native import checkpoint, file_ops, log_pins, log_walk, note_rows, seal_core, taking
from topicsd._native.log_walk import LogFormatError
from topicsd._native.upkeep import File
from topicsd.engine.segments import COLD, PACK
from topicsd.log_archive import ArchiveAwayError, LogArchive
from topicsd.pins import pinned
from topicsd.room import NO_ROOM, free_bytes, has_inodes
from topicsd.segments.names import PACKS, Name, topic_folder
from topicsd.snapshot import GONE, Chain

if TYPE_CHECKING:
    from topicsd.store import Store

MIB = 1 << 20
KEPT = snapshot.KEPT
SLICE_US = 100  # of packing, between two turns of the writer: a write that comes meanwhile waits for so long, and p99 is made of those
SLICE_EVERY_MS = 1
ABSORB_BYTES_MIN = 32 << 10  # what counts as changed at the least: so small a layer is not worth a file
COST_SHARE = 200  # the next checkpoint comes no sooner than so many times what this one held the writer up: under a flood p99 goes before log bytes
LAYERS_A_CHAIN = 24
ID_MAX = 1 << 64
NICE = 5  # of the thread that writes snapshots and removes files
NOTES = "notes"  # the section of what held-up routers have still to copy
SYNC_LOOK_S = 0.001
WRITTEN_A_SECOND = 64 * MIB  # of a snapshot, at most: all at once it would hold up the log's writes on the same disk
FLOOD_BYTES_MIN = 64 * MIB  # written since the last one: less is no flood, however fast it came
WRITTEN_BESIDE_BYTES = 64 << 10  # a snapshot's header, and what the disk needs to keep it
RETRY_MS = 10_000  # after a snapshot that could not be written
SET_ASIDE_EVERY_MS = 5_000
UNDONE_TOLD_EVERY_MS = 60_000
SYNCED_NOTE_EVERY_MS = 5_000  # while the log is written; at rest at once
FULL_EVERY_MS = 1_000  # on a full disk, in place of a minute
REFUSED_EVERY_MS = 250  # while the log takes no writes for want of room, and this one would give some back

log = structlog.get_logger("checkpoint")
Json = dict[str, Any]
FileName = tuple[int, int, int, int]  # kind, topic id (0 for a pack), name, edition


@dataclass(frozen=True)
class CheckpointOptions:
    """When a checkpoint is due. 0: that never counts."""

    log_bytes: int = 64 * MIB  # written since the last one; never less than the snapshot itself has
    every_ms: int = 60_000  # at most so often, and only if it would let files go
    archive: Path | None = None  # log files are moved there instead of removed
    absorb: float = 2.0  # a layer smaller than so many times what has changed since is written anew; 0: never


class Waiting(NamedTuple):
    """A segment's files that wait to be removed."""

    until: int  # number of the first snapshot without it
    number: int  # in the table of segment files; 0: not in it
    file: FileName


class Layer(NamedTuple):
    """A snapshot's file, as one that another stands upon."""

    number: int
    bytes: int
    digest: int


class Kept(NamedTuple):
    """A snapshot that a start may take."""

    number: int
    needed: list[int]  # by shard: the position from which its log is needed
    layers: tuple[Layer, ...]  # itself the last


@dataclass
class Packing:
    """A checkpoint behind its moment, until all of it is packed."""

    number: int
    below: tuple[Layer, ...]
    taking: taking.Taking
    header: Json
    gone: array[int]
    whole: list[tuple[str, bytes]]  # sections that each snapshot has whole: of the moment
    held_us: int  # the writer, in all
    pause_us: int  # at a time, at most


@dataclass
class Loaded:
    """What a start takes from a snapshot. Without one: the beginning of the log."""

    moment: list[int]
    snapshot: Chain | None = None
    wrong: list[str] = field(default_factory=list)
    corrupt: int = 0  # records whose bytes stand in damaged ranges of the log
    damages: list[list[log_walk.Damage]] = field(default_factory=list)  # by shard, below the moment


class Checkpoints:
    """Take snapshots, and let go of what is older. One thread, the writer's; `threaded`: files are another's."""

    def __init__(self, store: Store, options: CheckpointOptions) -> None:
        self.store, self.options = store, options
        self.path = store.path
        self.next_number = max(snapshot.numbers(self.path), default=0) + 1
        self.kept: list[Kept] = []  # oldest first
        self.packing: Packing | None = None
        self.waiting: deque[Waiting] = deque()
        self.moment: list[int] = []
        self.taken_ms = store.clock.mono_ms()
        self.took_ms = 0  # the last one, until it was durable
        self.published = 0
        self.size = self.digest = 0  # of the newest snapshot's file
        self.removed_log_files = self.removed_segment_files = 0
        self.noted: list[int] = []  # by shard: what is noted to be synced
        self.note_tried: tuple[list[int], int] = [], 0  # the last try, also one that the disk refused: the positions, when
        self.not_before_ms = self.set_aside_ms = 0
        self.lacked = 0  # bytes of a snapshot that found no room
        self.closing = False
        self.held = False  # files would go, but somebody has pinned the directory
        self._pool = ThreadPoolExecutor(1, "checkpoint", _give_way) if store.threaded else None
        self._running: Future[None] | None = None
        self._then: Callable[[], None] | None = None
        self.archive = LogArchive(options.archive, store.path, store.files) if options.archive is not None else None
        self.undone: list[tuple[Path, bool]] = []  # files that could not be removed, or (True) archived: tried again after the next checkpoint
        self._undone_told_ms: int | None = None
        self.holding: deque[tuple[int, int, int]] = deque()  # shard, position, slot: from there on, what holds the log below is to let go
        self._gone: dict[int, int] = {}  # by shard: log files below this position are removed

    # ---- when ------------------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Go on with what is under way, or begin a checkpoint that is due."""
        if self._running is not None:
            if not self._running.done():
                return
            running, self._running = self._running, None
            then, self._then = self._then, None
            try:
                running.result()
            except (OSError, MemoryError) as wrong:
                self._later(wrong)
                return
            if then is not None:
                then()
            return
        self.let_log_go()
        if self.packing is None and self.due():
            plan: list[tuple[taking.Taking, tuple[Layer, ...]]] = []
            self._do(lambda: plan.append(self._plan()), lambda: self._try(*plan[0]))
        elif self._pool is not None and self.packing is None and self.store.clock.mono_ms() >= self.set_aside_ms:
            # The next snapshot may be larger than the last one, and a disk that was full may have room again.
            self.set_aside_ms = self.store.clock.mono_ms() + SET_ASIDE_EVERY_MS
            if not self.kept or not snapshot.reserve_path(self.path).exists() or self.store.may_fill_soon():
                self._do(self.set_aside, None)

    def set_aside(self) -> None:
        """Have room for the next snapshot set aside, as far as can be told how large it will be. A full disk is no error."""
        with contextlib.suppress(OSError):
            snapshot.reserve(self.path, self.store.files, max(self.next_size(), self._largest()), free_bytes(str(self.path)))

    def note_synced(self, at_rest: bool) -> None:
        """Note outside the log how far it is synced: at rest, and now and then while it is written. A disk that refuses is no error."""
        store = self.store
        positions = [shard.synced_position for shard in store.shards]
        now_ms = store.clock.mono_ms()
        tried, tried_ms = self.note_tried
        due = self.closing or (at_rest and positions != tried) or now_ms >= tried_ms + SYNCED_NOTE_EVERY_MS
        if positions != self.noted and due and self.packing is None and (self._running is None or self.closing):
            self.note_tried = positions, now_ms
            self._do(lambda: self._note(positions), None)

    def _note(self, positions: list[int]) -> None:
        with contextlib.suppress(OSError):
            synced.write(self.path, self.store.files, positions, self.store.clock.wall_ms())
            self.noted = positions

    def next_size(self) -> int:
        """About how large the next snapshot may become: the rows of records that are not sealed grow with the log."""
        return max(self.size, taking.changed_bytes(self.store.sequencer, [0])[0])

    def _largest(self) -> int:
        return max((layer.bytes for kept in self.kept for layer in kept.layers), default=0)

    def _try(self, room: taking.Taking, below: tuple[Layer, ...]) -> None:
        try:
            if self._begin(room, below) and self._pool is None:
                self._pack_all()
        except OSError as wrong:
            self._later(wrong)

    def pack_some(self) -> None:
        """Go on with the checkpoint whose moment was, for a moment: between the writer's turns while there is one (`packing`)."""
        self._pack(SLICE_US)

    def _later(self, wrong: OSError | MemoryError) -> None:
        """Let a disk that refuses be for a while, or until there is room: each try holds the writer up."""
        log.error("no checkpoint", why=str(wrong))
        self.store.figures.add("checkpoint_failures")
        self.not_before_ms = self.store.clock.mono_ms() + RETRY_MS

    def due(self) -> bool:
        """Tell whether it is time."""
        store, options = self.store, self.options
        if store.clock.mono_ms() < self.not_before_ms and not self._has_room_again():
            return False
        if any(store.sequencer.is_poisoned(number) for number in range(len(store.shards))):
            return False
        grown = sum(shard.written_position for shard in store.shards) - sum(self.moment)
        if options.log_bytes and grown >= max(options.log_bytes, limits.CHECKPOINT_SIZE_FACTOR * self.size) and not self._only_costs(grown):
            return True
        since_ms = store.clock.mono_ms() - self.taken_ms
        if not options.every_ms or since_ms < min(self._full_every_ms(), options.every_ms):
            return False
        full = store.is_full()
        if since_ms < options.every_ms and not full:
            return False
        # What is deleted of a full log frees files without a segment, and leaves frames: more than that is hardly written there.
        return self._would_free() or (grown > 0 and full and (store.refuses() or since_ms >= SET_ASIDE_EVERY_MS))

    def _has_room_again(self) -> bool:
        """Tell whether a full disk has what the last snapshot lacked: a log that takes no writes waits for it."""
        if not self.lacked or self.store.clock.mono_ms() - self.taken_ms < FULL_EVERY_MS:
            return False
        return free_bytes(str(self.path)) >= self.lacked and has_inodes(str(self.path))

    def _full_every_ms(self) -> int:
        """How often on a full disk. A file goes behind two of them: who is refused waits for both.

        Large ones leave the disk to others half of the time.
        """
        if self.held or not self.store.refuses():
            return FULL_EVERY_MS
        return min(max(REFUSED_EVERY_MS, 2 * self.took_ms), FULL_EVERY_MS)

    def _only_costs(self, grown: int) -> bool:
        """Tell whether a flood goes on of which nothing is sealed yet: then a snapshot lets no file go, and its rows are what the flood waits for."""
        patience = limits.CHECKPOINT_FLOOD_FACTOR * max(self.options.log_bytes, self.size)
        rate = grown * 1000 // max(self.store.clock.mono_ms() - self.taken_ms, 1)
        calm = rate < limits.FLOOD_BYTES_PER_S or grown < FLOOD_BYTES_MIN
        return not calm and grown < patience and self.store.engine.segments.published == self.published

    def _would_free(self) -> bool:
        segments = self.store.engine.segments
        lags = len(self.kept) < KEPT or self.kept[0].needed != self.kept[-1].needed
        if self.held or self.undone:
            return True
        if segments.published != self.published or bool(segments.collect()) or bool(self.waiting):
            return True
        # Also what was sealed, or deleted, before this start.
        return lags and (segments.published > 0 or (self.store.is_full() and self._has_moved()))

    def _has_moved(self) -> bool:
        """Tell whether the newest snapshot lets log files go, or the next one may: each one on a full disk takes of what is set aside."""
        if not self.kept:
            return True
        newest, sequencer = self.kept[-1], self.store.sequencer
        for shard, needed in zip(self.store.shards, newest.needed, strict=False):
            files = log_walk.list_files(os.fsencode(shard.directory))
            if len(files) > 1 and files[1].first_position <= needed:
                return True
        gone = sequencer.gone
        return bool(gone and gone[-1][0] > newest.number) or taking.changed_bytes(sequencer, [newest.number])[0] > 0

    # ---- take ------------------------------------------------------------------------------------------------------------------

    def take(self) -> None:
        """Take a checkpoint now, in one go. Raises OSError."""
        if self._begin(*self._plan()):
            self._pack_all()

    def _plan(self) -> tuple[taking.Taking, tuple[Layer, ...]]:
        """Choose what the next snapshot stands upon, and have room for what it will hold. What it reads of the tables may be stale."""
        store, layers = self.store, list(self.kept[0].layers) if len(self.kept) == KEPT else []
        since = [*(layer.number for layer in layers), 0]
        changed = taking.changed_bytes(store.sequencer, since)
        gone = store.sequencer.gone
        changed = [rows + 8 * (len(gone) - bisect_right(gone, (number, ID_MAX))) for rows, number in zip(changed, since, strict=True)]
        while layers and (len(layers) >= LAYERS_A_CHAIN or layers[-1].bytes < self.options.absorb * max(changed[len(layers) - 1], ABSORB_BYTES_MIN)):
            layers.pop()
        wanted = changed[len(layers) - 1]  # the last one of all when nothing is left
        room = taking.Taking(store.sequencer)
        room.reserve(wanted + wanted // 8 + MIB)
        return room, tuple(layers)

    def _begin(self, room: taking.Taking, below: tuple[Layer, ...]) -> bool:
        """Make now the moment of the next checkpoint, if nothing is in flight."""
        store, number = self.store, self.next_number
        started_ns = time.monotonic_ns()
        if self._pool is None or not store.sequencer.settle():
            store.sequencer.sync()
            if not store.sequencer.quiet():
                return False
        if any(store.sequencer.is_poisoned(shard) for shard in range(len(store.shards))):
            return False
        engine = store.engine
        self.next_number += 1
        self.taken_ms, self.published = store.clock.mono_ms(), engine.segments.published
        self._note_retired(number)
        store.sequencer.set_now(store.clock.wall_ms(), store.clock.mono_ms())
        gone = room.begin(number, below[-1].number if below else 0)
        header = {
            "number": number, "parent": [below[-1].number, below[-1].digest] if below else None,
            "moment": [shard.written_position for shard in store.shards], "wall_ms": store.clock.wall_ms(), "next_topic_id": engine.next_topic_id,
            "id_ceiling": engine.id_ceiling, "next_token": room.next_token, "retired": [[each.until, *each.file] for each in self.waiting],
            "cold_gone": [list(file) for file in engine.segments.cold_gone],
        }  # fmt: skip
        engine.groups.changed.begin(number, below[-1].number if below else 0)
        whole = [(section.name, snapshot.pack_rows(section.rows())) for section in (engine.routers, engine.owed)]
        held_us = (time.monotonic_ns() - started_ns) // 1000
        self.packing = Packing(number, below, room, header, gone, whole, held_us, held_us)
        return True

    def _pack_all(self) -> None:
        while self.packing is not None:
            self._pack(1 << 30)

    def _pack(self, budget_us: int) -> None:
        packing = self.packing
        if packing is None:
            return
        started_ns = time.monotonic_ns()
        try:
            done = packing.taking.step(budget_us) and self.store.engine.groups.changed.step(started_ns + budget_us * 1000)
        except MemoryError as wrong:
            self._give_up()
            self._later(wrong)
            return
        held_us = (time.monotonic_ns() - started_ns) // 1000
        packing.held_us, packing.pause_us = packing.held_us + held_us, max(packing.pause_us, held_us)
        if done:
            self.packing = None
            self._packed(packing)

    def _give_up(self) -> None:
        if self.packing is not None:
            self.packing.taking.end()
            self.store.engine.groups.changed.take()
            self.packing = None

    def _packed(self, packing: Packing) -> None:
        """All is packed: have it written."""
        store, room, moment = self.store, packing.taking, packing.header["moment"]
        needed = [end if low is None else min(low, end) for low, end in zip(room.needed, moment, strict=False)]
        sections: list[tuple[str, bytes | memoryview]] = [("topics", memoryview(room.topics)), (GONE, packing.gone.tobytes())]
        engine = store.engine
        sections += [*packing.whole, (engine.groups.name, memoryview(engine.groups.changed.take()))]
        sections += [(engine.queues.name, memoryview(room.jobs)), (NOTES, memoryview(room.notes))]
        size = sum(len(part) for _name, part in sections)
        told = {"topics": room.topics_packed, "layers": len(packing.below) + 1, "held_ms": packing.held_us // 1000, "pause_us": packing.pause_us}
        log.info("checkpoint", number=packing.number, bytes=size, **told)
        store.figures.set("checkpoint_held_us", packing.pause_us)
        if self._pool is not None:
            self.not_before_ms = max(self.not_before_ms, store.clock.mono_ms() + COST_SHARE * packing.held_us // 1000)
        header = {**packing.header, "needed": needed}
        self._do(lambda: self._write(header, sections, room), lambda: self._written(packing, needed, store.clock.mono_ms() - self.taken_ms))

    def _do(self, job: Callable[[], None], then: Callable[[], None] | None) -> None:
        if self._pool is not None:
            self._then = then
            self._running = self._pool.submit(job)
            return
        job()
        if then is not None:
            then()

    def _note_retired(self, number: int) -> None:
        segments = self.store.engine.segments
        for gone in segments.collect():
            self.waiting.append(Waiting(number, gone[0], gone[1:]))
        segments.retired.clear()

    def _write(self, header: Json, sections: list[tuple[str, bytes | memoryview]], room: taking.Taking | None = None) -> None:
        files = self.store.files
        self._wait_synced(header["moment"])
        needed, tries = sum(len(part) for _name, part in sections), 0
        while True:
            try:
                self.size, self.digest = snapshot.write(self.path, files, header, sections, self._pause)
                break
            except OSError as wrong:
                # Without a snapshot nothing may be removed: a full disk would stay full for ever. What was set aside for it is given back now.
                # Nobody says what a quota has left.
                self.lacked = needed + MIB if wrong.errno == errno.ENOSPC else 0
                if wrong.errno not in NO_ROOM or not self._give_room(needed + WRITTEN_BESIDE_BYTES, again=tries > 0):
                    raise
                tries += 1
        sections.clear()
        self.lacked = 0
        if room is not None:
            room.drop()
        with contextlib.suppress(OSError):
            snapshot.reserve(self.path, files, max(self.size, self._largest()), free_bytes(str(self.path)))

    def _give_room(self, needed: int, *, again: bool) -> bool:
        """Give the disk so much of what was set aside for this snapshot; then all of it, then of what is there for sealing: that needs it as well."""
        reserved, inodes = snapshot.reserve_path(self.path), has_inodes(str(self.path))
        if reserved.exists():
            if inodes and not again:
                snapshot.give_reserve(self.path, needed)
            else:
                file_ops.remove(self.store.files, reserved)
            return True
        return self.store.reserve.give(needed) if inodes else self.store.reserve.drop()

    def _pause(self, written: int) -> None:
        """Let the log have the disk in between: a snapshot is in no hurry, unless the server ends."""
        if self._pool is not None and not self.closing:
            time.sleep(written / WRITTEN_A_SECOND)

    def _wait_synced(self, moment: list[int]) -> None:
        """Wait until the log up to the moment is on the disk: before that there must be no snapshot of it. Raises OSError."""
        for number, (shard, position) in enumerate(zip(self.store.shards, moment, strict=True)):
            while shard.synced_position < position:
                if self.store.sequencer.is_poisoned(number) or self.closing:
                    raise OSError(errno.EIO, "the log up to the snapshot is not synced")
                time.sleep(SYNC_LOOK_S)

    def _written(self, packing: Packing, needed: list[int], took_ms: int) -> None:
        """The snapshot is durable: what only older ones needed may go."""
        figures = self.store.figures
        figures.add("checkpoints")
        figures.set("checkpoint_at_ms", self.store.clock.wall_ms())
        figures.set("checkpoint_ms", took_ms)
        self.took_ms = took_ms
        figures.set("checkpoint_bytes", self.size)
        self.moment = packing.header["moment"]
        self.kept.append(Kept(packing.number, needed, (*packing.below, Layer(packing.number, self.size, self.digest))))
        del self.kept[:-KEPT]
        self._look_what_holds()
        lowest, gone = min(kept.layers[0].number for kept in self.kept), self.store.sequencer.gone
        if gone and gone[0][0] <= lowest:  # no snapshot that is to come stands upon one that has them
            self.store.sequencer.gone = [each for each in gone if each[0] > lowest]
        self._let_go()

    # ---- let go ------------------------------------------------------------------------------------------------------------------

    def _look_what_holds(self) -> None:
        """What is far behind and not sealed keeps the log from there on: say how much that is, and have routers let go of it."""
        store, needed = self.store, self.kept[-1].needed
        held = [end - low for end, low in zip(self.moment, needed, strict=False)]
        store.figures.set("log_held_bytes", sum(held))
        self.holding.clear()
        for shard, size in enumerate(held):
            if size > limits.LOG_HELD_BYTES_MAX:
                self.holding.append((shard, self.moment[shard] - limits.LOG_HELD_BYTES_MAX, 0))
            holder = log_pins.holder(store.sequencer, shard) if size > limits.LOG_HELD_BYTES_TOLD else None
            if holder is not None:
                log.warning("the log is held", shard=shard, bytes=size, by=store.sequencer.topic_name(holder[0]).decode())

    def let_log_go(self) -> bool:
        """Do a slice of that; tell whether there was something to do."""
        if not self.holding or self.packing is not None:
            return False
        shard, below, slot = self.holding.popleft()
        slot, notes, moved, full = log_pins.let_go(self.store.sequencer, shard, below, slot)
        if notes or moved:
            log.info("routers let go of the log", shard=shard, notes=notes, copies=moved)
        if not full and slot < self.store.shared.get("table_high"):
            self.holding.appendleft((shard, below, slot))
        return True

    def _let_go(self) -> None:
        self.held = pinned(self.path)
        if self.held:
            return  # somebody copies the directory; the next checkpoint looks again
        oldest = self.kept[0].number if len(self.kept) >= KEPT else 0
        files, self.undone = self.undone, []
        layers = {layer.number for kept in self.kept for layer in kept.layers}
        snapshots = [number for number in snapshot.numbers(self.path) if number < self.kept[-1].number and number not in layers] if oldest else []
        if oldest:
            files += self._segments_to_go(oldest) + self._log_to_go()
        files += [(snapshot.path_of(self.path, number), False) for number in snapshots]
        if files:
            self.store.figures.add("files_removed", len(files))
            log.info("files go", segments=self.removed_segment_files, log_files=self.removed_log_files)
            self.store.sequencer.sweep()
            self.store.engine.queues.sweep()
            self._do(lambda: self._remove(files), None)

    def _segments_to_go(self, oldest: int) -> list[tuple[Path, bool]]:
        going: list[tuple[Path, bool]] = []
        segments, announced = self.store.engine.segments, False
        while self.waiting and self.waiting[0].until <= oldest:
            gone = self.waiting.popleft()
            if gone.file not in segments.files:
                going += [(path, False) for path in files_of(self.path, gone.file)]
                if gone.file[0] == COLD and gone.file not in segments.cold_gone:
                    segments.cold_gone.append(gone.file)
                self.removed_segment_files += 1
            if gone.number:
                seal_core.free_file(self.store.sequencer, gone.number)
            announced = True
        if announced:
            seal_core.announce_retired(self.store.shared)
        return going

    def _log_to_go(self) -> list[tuple[Path, bool]]:
        """Log files that end below what each kept snapshot needs. A process that still maps one keeps its pages until it lets go."""
        going: list[tuple[Path, bool]] = []
        for number, shard in enumerate(self.store.shards):
            below = min((needed[number] if number < len(needed) else 0) for _number, needed, _layers in self.kept)
            folder = Path(os.fsdecode(shard.directory))
            for first in checkpoint.retire_log(self.store.shared, number, below):
                if first >= self._gone.get(number, 0):
                    self._gone[number] = first + 1
                    going.append((folder / f"{first:020d}.log", self.archive is not None))
                    self.removed_log_files += 1
        if going:
            seal_core.announce_retired(self.store.shared)
        return going

    def _remove(self, files: list[tuple[Path, bool]]) -> None:
        """Remove files, or move them to the archive. What can not be moved now stays where it is, and is tried again."""
        away, refuses = False, 0
        for path, is_archived in files:
            try:
                if is_archived and self.archive is not None:
                    self.archive.move(path)
                else:
                    file_ops.remove(self.store.files, path)
            except OSError as wrong:
                away = away or isinstance(wrong, ArchiveAwayError)
                refuses = refuses or (wrong.errno or errno.EIO if is_archived else 0)
                if not self.undone:
                    self._tell_undone(path, self.options.archive if is_archived else None, wrong)
                self.undone.append((path, is_archived))
        self.store.figures.set("archive_away", int(away))
        self.store.figures.set("archive_refuses", 0 if away else refuses)
        self.store.figures.set("files_undone", len(self.undone))

    def _tell_undone(self, path: Path, archive: Path | None, wrong: OSError) -> None:
        now_ms = self.store.clock.mono_ms()
        if self._undone_told_ms is None or now_ms >= self._undone_told_ms + UNDONE_TOLD_EVERY_MS:
            self._undone_told_ms = now_ms
            log.error("a file could not be let go", path=str(path), to=str(archive or ""), why=str(wrong))

    # ---- start -----------------------------------------------------------------------------------------------------------------

    def load(self) -> Loaded:
        """Put back what the newest usable snapshot holds. Raises LogFormatError when there is none and the log does not begin at its beginning."""
        store = self.store
        taking.next_is(store.sequencer, self.next_number)
        store.engine.groups.changed.next_is(self.next_number)
        try:
            found, wrong = snapshot.newest(self.path)
        except snapshot.NewerSnapshotError as newer:
            raise LogFormatError(f"{newer}; nothing has been changed") from None
        firsts = [log_walk.list_files(os.fsencode(shard.directory)) for shard in store.shards]
        if found is None:
            self._refuse_truncated(firsts, wrong)
            return Loaded([0] * len(store.shards), None, wrong, 0, [[] for _shard in store.shards])
        moment = [*found.header["moment"], *([0] * len(store.shards))][: len(store.shards)]
        loaded = Loaded(moment, found, wrong)
        for number, shard in enumerate(store.shards):
            checkpoint.show_files(store.shared, number, [(file.first_position, file.bytes) for file in firsts[number]])
            loaded.damages.append(self._check_log(shard.directory, number, firsts[number], moment[number], found))
        self._load_sections(found, loaded)
        self.moment = moment
        layers = tuple(Layer(layer.number, layer.size, layer.digest) for layer in reversed(found.layers))
        self.kept = [Kept(found.number, [*found.header["needed"]], layers)]
        self.store.engine.segments.cold_gone = [(kind, topic, name, edition) for kind, topic, name, edition in found.header.get("cold_gone", [])]
        self.waiting = deque(Waiting(until, 0, (kind, topic, name, edition)) for until, kind, topic, name, edition in found.header["retired"])
        return loaded

    def _refuse_truncated(self, firsts: list[list[log_walk.LogFile]], wrong: list[str]) -> None:
        gone = [files[0].path for files in firsts if files and files[0].first_position > 0]
        if gone:
            raise LogFormatError(
                f"{os.fsdecode(gone[0])} is the first file of the log, and there is no snapshot of what stood before it"
                f" ({'; '.join(wrong) or 'none in ' + str(self.path / snapshot.FOLDER)}). Put a snapshot back from a backup, or the log files"
                " before it (TOPICS_LOG_ARCHIVE_DIR); nothing has been changed"
            )

    def _check_log(self, directory: Any, number: int, files: list[log_walk.LogFile], moment: int, found: Chain) -> list[log_walk.Damage]:
        """Verify what tails need of the log below the moment."""
        needed = found.header["needed"][number] if number < len(found.header["needed"]) else 0
        first = max((file.first_position for file in files if file.first_position <= needed), default=needed)
        if first >= moment:
            return []
        report = log_walk.check(directory, number, files=self.store.files, from_position=first, known=moment)
        return [damage for damage in report.damaged if damage.position < moment]

    def _load_sections(self, found: Chain, loaded: Loaded) -> None:
        store, engine = self.store, self.store.engine
        ranges = [[(each.position, each.position + each.bytes) for each in damages] for damages in loaded.damages]
        loader = checkpoint.Loader(store.sequencer, engine.segments.file_of, loaded.moment, ranges)
        for layer in found.layers:
            loader.load(layer.sections["topics"], layer.number, layer.gone)
        loaded.corrupt = loader.corrupt
        store.sequencer.gone = [(layer.number, topic_id) for layer in reversed(found.layers) for topic_id in layer.gone]
        store.sequencer.learn_token(found.header.get("next_token", 0))
        engine.loaded(found.header["next_topic_id"], loader.with_ttl, loader.with_floor)
        for section in (engine.routers, engine.owed):
            for row in found.whole(section.name):
                section.load(row)
        for number, row in found.rows(engine.groups.name):
            engine.groups.load(row, number)
        for layer in found.layers:
            for row in snapshot.rows_of(layer.sections.get(engine.queues.name, memoryview(b""))):
                if loader.is_from(row.key, layer.number):
                    engine.queues.load(row)
            note_rows.load_notes(store.sequencer, layer.sections.get(NOTES, b""), ranges, layer.number)
        loader.finish()

    def close(self) -> None:
        """Wait for what is under way; a checkpoint that is not packed yet is none."""
        self.closing = True
        if self.packing is not None:
            self._give_up()
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None
        self.note_synced(at_rest=True)


def _give_way() -> None:
    """Let everything else run before this thread."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def files_of(data_dir: Path, file: FileName) -> list[Path]:
    """Return the paths of a segment's files."""
    kind, topic_id, name, edition = file
    if kind == PACK:
        return [data_dir / PACKS / f"{name:020d}.pack"]
    named = Name(data_dir / topic_folder(topic_id), topic_id, name, edition)
    # The data part of a cold segment is here only where a restore has put it.
    return [named.path(part) for part in (("index", "tags", "flags", "data") if kind == COLD else ("data", "index", "tags", "flags"))]


def wrong_sizes(data_dir: Path, file: File) -> str:
    """Say what the folder alone shows to be wrong of a segment's files: one is not there, or they are not as long as their row says."""
    sizes = []
    paths = files_of(data_dir, (file.kind, file.topic_id, file.name, file.edition))
    # Of a cold segment's files here any may have any length; of one with files of its own the flags part is none of the row's bytes.
    for path in paths[:3] if file.kind != PACK else paths:
        try:
            sizes.append(path.stat().st_size)
        except OSError as wrong:
            return f"{path}: {wrong.strerror}"
    if file.kind != COLD and file.bytes and sum(sizes) != file.bytes:
        return f"{paths[0]}: {sum(sizes)} bytes, where {file.bytes} were written"
    return ""
