"""Open a data directory: lock it, walk the log, settle what recovery found, go on in a new file.

The writer process opens it with threads that sync and prepare files; tests open it without (`threaded=False`): then nothing happens
between two calls, and `sync()` is the only sync there is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from topicsd import snapshot, synced
from topicsd._native import seal_core, upkeep
from topicsd._native.checkpoint import TableFullError
from topicsd._native.engine_core import EngineCore, walk_shard
from topicsd._native.file_ops import NewFile, remove
from topicsd._native.files import FileSystem
from topicsd._native.log import Shard
from topicsd._native.log_walk import LogFormatError, WalkReport, quarantine, quarantine_ranges
from topicsd._native.log_walk import read as read_log
from topicsd._native.regions import Shared
from topicsd.checkpoint import CheckpointOptions, Checkpoints, Loaded, files_of, wrong_sizes
from topicsd.clock import Clock
from topicsd.damage import identity
from topicsd.engine import Engine, Options, frames, recovery
from topicsd.errors import Throttled
from topicsd.figures import Figures
from topicsd.room import NO_ROOM, NoRoomError, Reserve, free_bytes, has_inodes
from topicsd.segments import newer
from topicsd.segments.repair import changed_files

RESTORING = "RESTORING"  # a file that stands in a directory while a restore fills it
SETTLING = "SETTLING"  # a file that stands there while a start in another boot has not noted all jumps: what START says of the boot does not count
FIRST_FILE_BYTES = 16 << 20  # of the log file that a start waits for
LAST_FILE_BYTES = 16 << 10  # of the same where nothing is set aside any more: enough to serve reads and take some deletes
FULL_FACTOR = 8  # times as much as a full disk has left: near enough to be full soon
IDS_RESERVED = 1 << 16  # topic ids reserved in the log ahead of need: one sync for so many creations
_FLOCK = struct.Struct("hhllhh")
T = TypeVar("T")


@dataclass(frozen=True)
class StoreOptions:
    """What a store must know of the settings. Zero file sizes: the log's own."""

    shards: int = 1
    group_commit_ms: float = 5.0
    direct_io: bool = True  # large groups may go to the log past the page cache
    direct_always: int = 0  # for tests: 1 whatever it takes, 2 small ones too
    file_bytes: int = 0
    first_file_bytes: int = 0
    ephemeral_bytes_max: int = 1 << 30
    keys_max: int = 1_000_000
    seal_reserve_bytes: int = 0  # that sealing may take of a full disk (topicsd/room.py)
    full_bytes: int = 0  # with less free beside what is set aside, a disk is as good as full
    engine: Options = field(default_factory=Options)
    checkpoint: CheckpointOptions = field(default_factory=CheckpointOptions)


def boot_id() -> bytes:
    """Return the 16 bytes that tell this boot of the machine from any other."""
    return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))


class LockedError(Exception):
    """Say which process has the directory."""

    def __init__(self, directory: str, holder: int) -> None:
        super().__init__(f"{directory} is in use by process {holder}")
        self.holder = holder


class Store:
    """A data directory with its engine.

    Raises LockedError when another process has it, LogFormatError for a log that a newer version wrote.
    """

    def __init__(
        self,
        shared: Shared,
        directory: str,
        options: StoreOptions,
        clock: Clock,
        *,
        files: FileSystem | None = None,
        threaded: bool = False,
        boot: bytes | None = None,
        lock: bool = True,
        figures: Figures | None = None,
    ) -> None:
        self.shared = shared
        self.directory = directory
        self.path = Path(directory)
        self.options = options
        self.clock = clock
        self.files = files or FileSystem()
        self.threaded = threaded
        self.figures = figures or Figures()
        self.boot = boot_id() if boot is None else boot
        self.found = recovery.Found()
        self.degraded: list[str] = []
        self.suspects: list[str] = []  # segment files that are not there or not as long as their row says: the keeper looks at them first
        self.threads: list[threading.Thread] = []
        self.reserve = Reserve(self.path, options.seal_reserve_bytes)
        self.wait_for_room: Callable[[NoRoomError], bool] = lambda _why: False  # the start may be tried again
        self._lock = -1
        self._looked_at = self._next_size = 0
        self._healed: set[int] = set()
        self._voided: dict[int, set[int]] = {}  # by shard: positions of frames that were written and never published
        self.path.mkdir(parents=True, exist_ok=True)
        if lock:
            self._take_lock()
        self.shards = [self._shard(number) for number in range(max(options.shards, self._shards_present()))]
        engine_options = options.engine
        self.sequencer = EngineCore(shared, self.shards, options.ephemeral_bytes_max, engine_options.bytes_max, options.keys_max)
        self.engine = Engine(self.sequencer, clock, engine_options, self._reserve_ids)
        self.engine.queues.open_reader(shared, directory)
        self.engine.segments.exists = lambda file: files_of(self.path, file)[0].exists()
        self.engine.owed.damaged = self._damaged_files
        self.engine.segments.leaving = lambda: {each.file for each in self.checkpoints.waiting}
        self.checkpoints = Checkpoints(self, options.checkpoint)

    # ---- open ----------------------------------------------------------------------------------------------------------------

    def open(self, progress: Callable[[float], None] = lambda _share: None) -> None:
        """Recover and be ready to write. Nothing that was acked is missing afterwards, or a reader is told so.

        Raises LogFormatError, and has changed nothing, for what this version or these settings cannot open; NoRoomError on a disk that has room for
        nothing.
        """
        try:
            self._open(progress)
        except (TableFullError, Throttled):
            raise LogFormatError(
                f"{self.path} has more topics than TOPICS_MAX_TOPICS ({self.shared.topics_max}): set it to as many as there are, or to 0 for the most"
                " that there may be; nothing has been changed"
            ) from None

    def _open(self, progress: Callable[[float], None]) -> None:
        if (self.path / RESTORING).exists():
            raise LogFormatError(f"{self.path} is half restored: run `topicsd restore` again, to its end; nothing has been changed")
        seal_core.attach(self.shared, self.directory)
        self.sequencer.reset_tables()
        self.sequencer.set_now(self.clock.wall_ms(), self.clock.mono_up_ms())
        replayer = recovery.Replayer(self.engine)
        self.sequencer.set_replayer(replayer)
        self.sequencer.open_routes(os.fsencode(self.directory))
        self.sequencer.set_replaying(True)
        loaded = self.checkpoints.load()
        if loaded.snapshot is not None:
            replayer.highest_id = loaded.snapshot.header["next_topic_id"] - 1
            replayer.id_ceiling = loaded.snapshot.header["id_ceiling"]
        reports = []
        noted = self._noted()
        for number, shard in enumerate(self.shards):
            moment = loaded.moment[number]
            known = max(moment, noted[number])
            reports.append(walk_shard(self.sequencer, self.files, shard.directory, number, moment, known))
            if replayer.failed is not None:
                raise replayer.failed
            progress((number + 1) / len(self.shards))
        replayer.finish()
        homeless = self.engine.routers.place_deferred()
        self.sequencer.set_replaying(False)
        self.sequencer.settle_windows()
        self.engine.groups.settle_clock()
        found_boot = reports[0].boot_id
        boot = "none" if not any(found_boot) else ("same" if found_boot == self.boot else "other")
        if boot == "none" and loaded.snapshot is not None:
            boot = "other"  # its log is gone, START frames and all: whatever may have been in it is lost
        if boot == "same" and (self.path / SETTLING).exists():
            boot = "other"  # a start in this boot ended before the last jump was noted
        plan = recovery.plan_for(recovery.State(boot, recovery.log_state(reports, loaded.snapshot is not None)))
        if homeless:
            self.degraded.append(f"{homeless} routers whose topics no frame creates")
        damages = {number: [(each.position, each.position + each.bytes) for each in report.damaged] for number, report in enumerate(reports)}
        self._refuse_newer()
        self._note_snapshot(loaded)
        self._note_damage(reports, replayer)
        if plan.far_ids:
            self.engine.next_topic_id = max(replayer.id_ceiling, replayer.highest_id + (IDS_RESERVED if plan.degraded else 0)) + 1
        holes = recovery.settle(self.engine, replayer.found, plan, damages)
        if plan.jump:
            self._with_room(self._note_settling)
        self._start_shards(reports)
        self.engine.id_ceiling = self._with_room(lambda: self._reserve_ids(self.engine.next_topic_id))
        for hole in holes:
            self._with_room(partial(recovery.log_holes, self.engine, [hole]))
        self.engine.queues.recover(self._with_room)
        self.sequencer.end_replay()
        self.sequencer.build_order()
        self.engine.owed.again_all()
        self.found = replayer.found
        self.sequencer.sync()
        self.sequencer.settle_durable_heads()
        self._note_settled()

    def _refuse_newer(self) -> None:
        """Refuse the directory when a file that a row leads into is of a newer version. Raises LogFormatError."""
        found = newer.found(path for file in upkeep.listed(self.shared) for path in files_of(self.path, identity(file)))
        if found:
            more = f"; so are {len(found) - 1} more files" if len(found) > 1 else ""
            raise LogFormatError(f"{found[0]}{more}; nothing has been changed")

    def _note_settling(self) -> None:
        """Say that jumps are still to be noted, before a START frame says that the log is of this boot. Raises OSError."""
        if (self.path / SETTLING).exists():
            return
        file = NewFile(self.files, self.path / SETTLING)
        try:
            file.finish()
        except OSError:
            file.abort()
            raise

    def _note_settled(self) -> None:
        # Power that is lost brings another boot, so the directory needs no sync here. Where the file stays, the next start jumps once more.
        if (self.path / SETTLING).exists() and not any(shard.poisoned for shard in self.shards):
            with contextlib.suppress(OSError):
                remove(self.files, self.path / SETTLING)

    def _noted(self) -> list[int]:
        try:
            return synced.read(self.path)
        except synced.NewerNoteError as refused:
            raise LogFormatError(f"{refused}; nothing has been changed") from None
        except (synced.NoteError, OSError) as wrong:
            self.degraded.append(str(wrong))
            return synced.UNKNOWN

    def _start_shards(self, reports: list[WalkReport]) -> None:
        # The generation is the regions': the arbiter's next writer takes the next one, also over another directory's log.
        least: dict[str, int] = {}
        for shard, report in zip(self.shards, reports, strict=True):
            while True:
                try:
                    shard.start(report, generation=self.shared.get("generation"), boot_id=self.boot, **least)
                    break
                except OSError as wrong:
                    # Each start begins a file: on a full disk it may have what was set aside, or the disk could not be freed at all.
                    if wrong.errno not in NO_ROOM:
                        raise
                    if self._give_room():
                        continue
                    if least and not self.wait_for_room(why := NoRoomError(self.directory)):
                        raise why from None
                    least = {"least": LAST_FILE_BYTES}
        self._set_aside()
        if self.threaded:
            for number, shard in enumerate(self.shards):
                self._thread(f"sync-{number}", partial(self.sequencer.run_sync_loop, number))
                self._thread(f"prepare-{number}", shard.run_prepare_loop)
            self.sequencer.set_threaded(True)

    def _with_room(self, note: Callable[[], T]) -> T:
        """Have the log take what a start must note: on a full disk with what was set aside, then when there is room. Raises NoRoomError, OSError."""
        while True:
            try:
                return note()
            except OSError as wrong:
                if wrong.errno not in NO_ROOM or any(shard.poisoned for shard in self.shards):
                    raise
                if not self._give_room() and not self.wait_for_room(why := NoRoomError(self.directory)):
                    raise why from None
                for shard in self.shards:
                    shard.starved = False

    def _give_room(self) -> bool:
        """Give the disk some of what was set aside: bytes, or a file where no more can be made; last what a snapshot needs."""
        if has_inodes(self.directory) and self.reserve.give():
            return True
        if self.reserve.drop():
            return True
        with contextlib.suppress(FileNotFoundError):
            snapshot.reserve_path(self.path).unlink()
            return True
        return False

    def _set_aside(self) -> None:
        """Take the room without which a full disk could never be freed, before the log takes it, or have the log leave it alone."""
        self.checkpoints.set_aside()
        self.reserve.fill(free_bytes(self.directory) - snapshot.missing_reserve(self.path))
        self._keep_free()

    def _keep_free(self) -> None:
        # Looking at every topic is for a disk that may fill before the next look: there is little of it, or the log has taken much since.
        written = sum(shard.written_position for shard in self.shards)
        near = self.may_fill_soon()
        if near and abs(written - self._looked_at) >= self.options.full_bytes // FULL_FACTOR:
            self._looked_at, self._next_size = written, self.checkpoints.next_size()
        missing = self.reserve.missing() + snapshot.missing_reserve(self.path, self._next_size if near else 0)
        for shard in self.shards:
            shard.keep_free = missing

    def may_fill_soon(self) -> bool:
        """Tell whether little of the disk is left: what looks at every topic is worth it then."""
        return self.options.full_bytes > 0 and free_bytes(self.directory) < FULL_FACTOR * self.options.full_bytes

    def refuses(self) -> bool:
        """Tell whether a shard takes no writes for want of room."""
        return any(shard.read_only in NO_ROOM for shard in self.shards)

    def is_full(self) -> bool:
        """Tell whether writers wait for the room of files that are to go, or may have to soon."""
        if self.refuses():
            return True
        return self.options.full_bytes > 0 and free_bytes(self.directory) - self.shards[0].keep_free < self.options.full_bytes

    def _thread(self, name: str, loop: Callable[[], None]) -> None:
        thread = threading.Thread(target=loop, name=name, daemon=True)
        thread.start()
        self.threads.append(thread)

    def _note_snapshot(self, loaded: Loaded) -> None:
        """Say what of the snapshot, and of the files that it leads to, is not what it should be."""
        self.degraded += [f"a snapshot is damaged, an older one or the log has been taken: {what}" for what in loaded.wrong]
        if loaded.corrupt:
            self.degraded.append(f"{loaded.corrupt} records stood in damaged ranges of the log")
        for number, damages in enumerate(loaded.damages):
            for damage in damages:
                self.degraded.append(f"{os.fsdecode(damage.path)}, byte {damage.offset}: {damage.got}, expected {damage.expected}")
            if damages:
                quarantine_ranges(damages, self.path / "quarantine", number)
        # An index that fsck has made again from damaged data is sound, and calls lost what was live.
        repaired = changed_files(self.path / "quarantine")
        for file in upkeep.listed(self.shared):
            wrong = wrong_sizes(self.path, file)
            if wrong:
                self.suspects.append(wrong)
            if wrong or (repaired and any((path.parent.name, path.name) in repaired for path in files_of(self.path, identity(file)))):
                upkeep.suspect(self.shared, file.number, file.serial, upkeep.MET)

    def _damaged_files(self) -> dict[tuple[int, int], list[tuple[int, int, int] | None]]:
        """The files that somebody has found damaged, as they stand on the disk now."""
        found = {}
        for suspicion in (upkeep.MET, upkeep.DAMAGED):
            for file in upkeep.suspects(self.shared, suspicion):
                found[file.number, file.serial] = [_stamp(path) for path in files_of(self.path, identity(file))]
        return found

    def _note_damage(self, reports: list[WalkReport], replayer: recovery.Replayer) -> None:
        for number, report in enumerate(reports):
            for damage in report.damaged:
                self.degraded.append(
                    f"{os.fsdecode(damage.path)}, byte {damage.offset}: {damage.got}, expected {damage.expected}; {damage.bytes} bytes set aside"
                )
            if report.damaged:
                quarantine(report, self.path / "quarantine", number)
        placed = self.sequencer.replay_report()
        if placed["orphans"]:
            self.degraded.append(f"{placed['orphans']} records of topics that no frame creates")
        if placed["disorders"]:
            self.degraded.append(f"{placed['disorders']} batches whose seqs do not follow")
        if placed["route_disorders"]:
            self.degraded.append(f"{placed['route_disorders']} cursor frames of unknown routers, or whose seqs do not follow")
        if replayer.found.unknown_topics:
            self.degraded.append(f"{replayer.found.unknown_topics} control frames of topics that no frame creates")
        self.degraded += replayer.found.skipped
        self.degraded += [f"a segment is not what its row says; its records are read from the log: {what}" for what in self.engine.segments.not_taken]

    def heal(self) -> None:
        """After a failed write or sync say in the log what of it counts; after a full disk go on in a new file.

        A shard that failed with EIO stays read-only until the next start (CLARIFICATIONS, Write).
        """
        self._keep_free()
        for number, shard in enumerate(self.shards):
            if shard.starved and self.reserve.give():
                shard.starved = False  # deletes, and what sealing has made, find room in the log for a while
            if not self.sequencer.is_poisoned(number) or (number in self._healed and shard.read_only != errno.ENOSPC):
                continue
            self.sequencer.fail_unsynced()  # what was refused is known before anything is kept
            voided = self._voided.setdefault(number, set())
            voided.update(self.sequencer.failed_places(number))
            previous_end = min([shard.synced_position, *voided])
            report, found = read_log(shard.directory, number, files=self.files, from_position=previous_end)
            del report
            kept = [frame for frame in found if self._counts(frame, voided, shard.written_position)]
            with contextlib.suppress(OSError):
                shard.void(previous_end, kept)
                self._healed.add(number)
                if shard.read_only == errno.ENOSPC:
                    shard.resume_after(None)
                    self._healed.discard(number)
                    self._voided.pop(number, None)

    @staticmethod
    def _counts(frame: bytes, voided: set[int], written: int) -> bool:
        position = int.from_bytes(frame[48:56], "little")
        return frame[8] not in (frames.START, frames.MARK) and position not in voided and position < written

    def _reserve_ids(self, wanted: int) -> int:
        ceiling = wanted + IDS_RESERVED
        self.sequencer.log_frame(0, frames.CEILING, 0, 0, ceiling, self.clock.wall_ms(), b"", True)
        self.sequencer.sync()
        return ceiling

    def _shard(self, number: int) -> Shard:
        sizes = {}
        if self.options.file_bytes:
            sizes["file_bytes"] = self.options.file_bytes
            sizes["first_file_bytes"] = min(self.options.first_file_bytes or FIRST_FILE_BYTES, self.options.file_bytes)
        directory = self.path / "log" / f"shard-{number:02d}"
        options = self.options
        return Shard(
            directory, number, files=self.files, group_commit_ms=options.group_commit_ms, direct_io=options.direct_io,
            direct_always=options.direct_always, **sizes,
        )  # fmt: skip

    def _shards_present(self) -> int:
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            names = [path.name for path in (self.path / "log").iterdir() if path.name.startswith("shard-")]
        return max((int(name[6:]) + 1 for name in names if name[6:].isdigit()), default=0)

    # ---- lock, close -----------------------------------------------------------------------------------------------------------

    def _take_lock(self) -> None:
        """Take LOCK by fcntl: it ends with this process, whatever its children hold."""
        self._lock = os.open(self.path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            asked = fcntl.fcntl(self._lock, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0, 0))
            holder = _FLOCK.unpack(asked)[4]
            os.close(self._lock)
            self._lock = -1
            raise LockedError(self.directory, holder) from None
        holder_line = f"{os.getpid()}\n".encode()
        with contextlib.suppress(OSError):  # a full disk: it is for people, the lock tells who holds it
            os.pwrite(self._lock, holder_line, 0)  # before it is cut: what is there takes no room
        os.ftruncate(self._lock, len(holder_line))

    def close(self) -> None:
        """End cleanly: lower ceilings, sync, mark, let go of the directory."""
        with contextlib.suppress(OSError):
            self.engine.lower_all_ceilings()
            self.sequencer.sync()
            for shard in self.shards:
                shard.write_mark(self.clock.wall_ms())
            self.sequencer.sync()
        self.checkpoints.close()
        for shard in self.shards:
            shard.stop_loops()
        for thread in self.threads:
            thread.join(5.0)
        for shard in self.shards:
            shard.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
