"""The writer process: the engine behind the rings. The one process that changes shared state (ARCHITECTURE section 2).

Exit codes: 0 told to end; 3 another process has the directory; 4 the directory is not readable by this version; anything else is a
crash, and the arbiter starts another writer.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import structlog

from topicsd import limits
from topicsd._native.log_walk import LogFormatError
from topicsd._native.meters import Meters
from topicsd._native.regions import Shared
from topicsd._native.slabs import PAGE_BYTES, cool
from topicsd.checkpoint import SLICE_EVERY_MS, CheckpointOptions
from topicsd.clock import SystemClock
from topicsd.engine import Options
from topicsd.errors import StorageReadOnly, TopicsError
from topicsd.figures import Figures
from topicsd.processes import keep_memory
from topicsd.room import NoRoomError, file_bytes, full_bytes, wanted_bytes
from topicsd.store import LockedError, Store, StoreOptions

if TYPE_CHECKING:
    from topicsd.settings import Settings

EXIT_LOCKED = 3
EXIT_FORMAT = 4
TICK_MS = 50
ROOM_LOOK_S = 0.5
MARK_AFTER_TICKS = 20  # an idle second: then a mark records what is synced

log = structlog.get_logger("writer")


def run_writer(shared: Shared, settings: Settings, meters: Meters | None = None, figures: Figures | None = None) -> int:
    """Recover, then serve the rings until SIGUSR1 says that no worker is left; return the exit code."""
    ending = False

    def end(_signal: int, _frame: object) -> None:
        nonlocal ending
        ending = True
        shared.wake_writer()

    keep_memory()
    signal.signal(signal.SIGUSR1, end)
    shared.set("writer_pid", os.getpid())
    shared.set("generation", shared.get("generation") + 1)
    shared.set("ready", 0)
    shared.set("replay_permille", 0)
    try:
        store = Store(shared, str(settings.data_dir), options_of(settings), SystemClock(), threaded=True, figures=figures)
    except LockedError as locked:
        print(f"topicsd: {locked}", file=sys.stderr, flush=True)
        return EXIT_LOCKED
    started_ms = store.clock.mono_ms()
    told = False

    def wait_for_room(why: NoRoomError) -> bool:
        # Not a death: it would be tried again and again with a replay each time, and given up.
        nonlocal told
        if not told:
            log.error("the start waits for room", why=str(why))
        told = True
        time.sleep(ROOM_LOOK_S)
        return not ending

    store.wait_for_room = wait_for_room
    try:
        store.open(lambda share: shared.set("replay_permille", int(share * 1000)))
    except NoRoomError:
        return 0  # the end has come
    except LogFormatError as refused:
        print(f"topicsd: {refused}", file=sys.stderr, flush=True)
        return EXIT_FORMAT
    store.sequencer.adopt_rings()
    shared.set("recovered_ms", store.clock.mono_ms() - started_ms)
    shared.set("degraded", 1 if store.degraded else 0)
    for what in store.degraded:
        log.warning("damage", what=what)
    for what in store.suspects:
        log.warning("a segment file is not as it was written", what=what)
    log.info("ready", topics=store.found.topics, jumps=store.found.jumps, replay_ms=store.clock.mono_ms() - started_ms)
    gc.collect()
    gc.freeze()
    shared.set("replay_permille", 1000)
    shared.set("ready", 1)
    store.sequencer.wake_all_workers()
    loop = Loop(store, meters)
    while not ending:
        loop.step()
    loop.drain()
    store.close()
    return 0


def options_of(settings: Settings) -> StoreOptions:
    """Pick the store's options out of the settings."""
    return StoreOptions(
        shards=settings.log_shards,
        group_commit_ms=settings.group_commit_ms,
        direct_io=settings.log_direct,
        file_bytes=file_bytes(settings),
        ephemeral_bytes_max=settings.ephemeral_bytes_max,
        keys_max=settings.max_idempotency_keys,
        seal_reserve_bytes=wanted_bytes(settings),
        full_bytes=full_bytes(settings),
        engine=Options(topics_max=settings.max_topics, bytes_max=settings.max_total_bytes, routers_max=settings.max_routers),
        checkpoint=CheckpointOptions(settings.checkpoint_bytes, settings.checkpoint_ms, settings.log_archive_dir),
    )


def widened(group_commit_ms: float, level: int) -> float:
    """Return the group-commit interval at a level of pressure."""
    return max(group_commit_ms, min(group_commit_ms * (1 << level), limits.GROUP_COMMIT_WIDENED_MS_MAX))


class Loop:
    """Turns, commands, ticks: what the writer does between start and end."""

    def __init__(self, store: Store, meters: Meters | None = None) -> None:
        self.store = store
        self.meters = meters
        self.pressure = 0
        self.sequencer = store.sequencer
        self.engine = store.engine
        self.tick_at_ms = self.pack_at_ms = 0
        self.idle_ticks = 0
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.warm_pages_max = min(limits.INDEX_WARM_BYTES_MAX, memory_bytes // limits.INDEX_WARM_SHARE) // PAGE_BYTES

    def step(self) -> None:
        """Serve the rings until a command waits or a tick is due; do that."""
        now_ms = self.store.clock.mono_ms()
        if now_ms >= self.tick_at_ms:
            self.tick_at_ms = now_ms + TICK_MS
            self._tick()
        until_ms, checkpoints = self.tick_at_ms, self.store.checkpoints
        if checkpoints.packing is not None:
            if now_ms >= self.pack_at_ms:
                checkpoints.pack_some()
                self.pack_at_ms = self.store.clock.mono_ms() + SLICE_EVERY_MS
            until_ms = min(until_ms, self.pack_at_ms)
        if self.sequencer.run(until_ms):
            self._commands()

    def _commands(self) -> None:
        while (call := self.sequencer.take_call()) is not None:
            answer, wait_slot = self._answer(call[0])
            if answer is not None:
                self.sequencer.answer_call(json.dumps(answer, separators=(",", ":")).encode(), wait_slot)
        self.engine.queues.serve()
        self.sequencer.end_turn()

    def _answer(self, text: bytes) -> tuple[dict[str, Any] | None, int | None]:
        try:
            answer = self.engine.call(json.loads(text))
        except TopicsError as refused:
            return {"error": refused.to_json()}, None
        except OSError as wrong:
            return {"error": StorageReadOnly(f"the log takes no writes: {wrong.strerror}").to_json()}, None
        if answer is None:
            return None, None
        return {"ok": answer.body}, answer.wait_slot

    def _tick(self) -> None:
        self._feel_pressure()
        self.engine.tick()
        self.sequencer.reap_dead()
        self.store.heal()
        self.store.checkpoints.step()
        self.store.figures.set("index_warm", PAGE_BYTES * cool(self.store.shared, self.store.clock.mono_ms(), self.warm_pages_max))
        self.store.figures.set("log_spares", sum(shard.spares for shard in self.store.shards))
        if self.sequencer.quiet():
            self.idle_ticks += 1
            if self.idle_ticks == MARK_AFTER_TICKS:
                for shard in self.store.shards:
                    shard.write_mark(self.store.clock.wall_ms())
        else:
            self.idle_ticks = 0
        self.store.checkpoints.note_synced(at_rest=self.idle_ticks > MARK_AFTER_TICKS)

    def _feel_pressure(self) -> None:
        """Let groups gather for longer while a worker is pressed: fewer syncs leave more of the machine to the rest (D §3.1)."""
        level = 0 if self.meters is None else self.meters.pressure
        if level != self.pressure:
            self.pressure = level
            self.store.shared.set("pressure", level)
            for shard in self.store.shards:
                shard.group_commit_ms = widened(self.store.options.group_commit_ms, level)

    def drain(self) -> None:
        """Answer what the workers have committed before they ended."""
        while self.sequencer.turn(self.store.clock.wall_ms(), self.store.clock.mono_ms()):
            self._commands()
        self.sequencer.sync()
