"""The keeper process: work on files that must not hold the writer up (ARCHITECTURE section 2).

It reads shared memory and files as a worker does, builds segments, and hands the writer short commands over a ring slot of its own. It owns no state:
killed at any moment, the next one finds what is due.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from pathlib import Path
from typing import Any

import structlog

from topicsd import limits, snapshot
from topicsd._native import log_walk
from topicsd._native.port import Busy, Completion, Port
from topicsd._native.regions import Shared
from topicsd._native.sealer import Sealer
from topicsd.errors import StorageReadOnly
from topicsd.figures import Figures
from topicsd.limits import LOG_SHARDS_MAX
from topicsd.relocate import Relocation, Retain
from topicsd.room import NO_ROOM, Reserve, free_bytes, full_bytes, segment_bytes, wanted_bytes
from topicsd.room_notes import FULL, NOTHING_FITS, WAITS, RoomNotes
from topicsd.segments.cold import ColdError
from topicsd.segments.cold_counts import ColdCounts
from topicsd.segments.cold_tier import open_tier
from topicsd.segments.sealing import PIECE_BYTES_MIN, Done, Policy, Rounds, Row
from topicsd.settings import Settings
from topicsd.upkeep import Ranges, Upkeep

LOOK_S = 0.25  # how often it asks whether somebody wants a topic sealed
ROUND_S_MIN = 1.0  # between two rounds over all topics; a round that takes long is followed by a longer pause
ROUND_SHARE = 20
BEHIND_BYTES_MAX = 1 << 30  # so much may wait to be sealed before the keeper takes CPU time from who serves requests
FLOOD_BYTES_MAX = 8 << 30  # so much may wait before a flood pays for its segments at once,
FLOOD_DISK_SHARE = 8  # at most this part of what the disk has free,
FLOOD_MEMORY_SHARE = 3  # and this part of the machine's memory: the index of what waits is then at most a thirtieth of it
IDLE_SHARE_MIN = 0.15  # of all CPUs: below it they are short
PACE = 9  # then it rests so many times what its work took
REST_S_MAX = 2.0
ANSWER_JSON = 8  # enum outcome
NICE = 5  # whoever serves requests goes first where CPUs are short

log = structlog.get_logger("keeper")


class Cpus:
    """Tell whether the machine has CPU time to spare (/proc/stat)."""

    def __init__(self) -> None:
        self._busy = self._idle = 0

    def are_short(self) -> bool:
        """Tell whether they were busy since the last call."""
        ticks = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        idle = ticks[3] + ticks[4]
        busy = sum(ticks) - idle
        was_busy, was_idle = self._busy, self._idle
        self._busy, self._idle = busy, idle
        return was_busy > 0 and idle - was_idle < IDLE_SHARE_MIN * (busy - was_busy + idle - was_idle)


class Flood:
    """Tell whether the log takes so much that each byte read or written beside it makes the producers wait."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._written, self._at_s, self._is_on = self.log_bytes(), time.monotonic(), False

    def is_on(self) -> bool:
        """Tell whether it was so since the last call; what was told holds for the next LOOK_S / 2.

        A flood lasts until the log takes half of what began it: work that had begun in between would else slow it down and find that it is none.
        """
        took_s = time.monotonic() - self._at_s
        if took_s > LOOK_S / 2:
            written = self.log_bytes()
            self._is_on = (written - self._written) * (2 if self._is_on else 1) >= limits.FLOOD_BYTES_PER_S * took_s
            self._written, self._at_s = written, time.monotonic()
        return self._is_on

    def log_bytes(self) -> int:
        """Return how many bytes the log has taken so far."""
        return sum(int(str(self._shared.shard(number)["bytes_written"])) for number in range(LOG_SHARDS_MAX))


class EndedError(Exception):
    """Say that the arbiter ends this process, or that the writer died with a command in its hands."""


class RefusedError(RuntimeError):
    """Say that the writer has refused a command, and why (`code`)."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error)
        self.code = str(error.get("code", ""))


class Line:
    """The keeper's line to the writer: one command at a time."""

    def __init__(self, shared: Shared, ring: int) -> None:
        self.shared = shared
        self.port = Port(shared, ring)
        self.answers: dict[int, Completion] = {}
        self.ended = False

    def pause(self, seconds: float) -> None:
        """Sleep until the time has passed or the end has come."""
        if self.ended:
            return
        got = signal.sigtimedwait({signal.SIGUSR1}, seconds)
        # Interrupted behind its deadline (a stop and a continue), it returns an empty siginfo instead of None.
        self.ended = got is not None and got.si_signo == signal.SIGUSR1

    def call(self, command: dict[str, Any]) -> dict[str, Any]:
        """Run a command of the engine and wait for its answer. Raises EndedError, and RefusedError."""
        generation = self.shared.generation
        token = self._send(json.dumps(command).encode())
        while token not in self.answers:
            select.select([self.port.fileno()], [], [], 0.05)
            self.port.drain(self.answers.__setitem__)
            if token not in self.answers and (self.shared.generation != generation or not self.shared.ready):
                raise EndedError("the writer died")
            self.pause(0)
            if self.ended:
                raise EndedError("the server ends")
        answer = self.answers.pop(token)
        if answer.status != ANSWER_JSON:
            raise EndedError("the writer did not answer")
        body: dict[str, Any] = json.loads(answer.payload)
        if "error" in body:
            raise RefusedError(body["error"])
        ok: dict[str, Any] = body["ok"]
        return ok

    def _send(self, text: bytes) -> int:
        while True:
            if self.ended or not self.shared.ready:
                raise EndedError("there is no writer")
            with contextlib.suppress(Busy):
                return self.port.call(text)
            self.pause(0.01)


class Keeper:
    """What the keeper does between its start and its end."""

    def __init__(self, shared: Shared, settings: Settings, line: Line, figures: Figures) -> None:
        self.shared = shared
        self.line = line
        self.settings, self.figures = settings, figures
        self.sealer = Sealer(shared, settings.data_dir)
        sealing = (settings.segment_max_events, segment_bytes(settings), settings.segment_max_age_ms)
        policy = Policy(*sealing, log_bytes_max=limits.LOG_HELD_BYTES_MAX if any(sealing) else 0)
        self.rounds = Rounds(self.sealer, str(settings.data_dir), self._publish, policy)
        self.rounds.alive = lambda: not line.ended
        self.rounds.pace = self._pace
        self.rounds.room = lambda: free_bytes(str(settings.data_dir)) - snapshot.missing_reserve(settings.data_dir)
        self.reserve = Reserve(settings.data_dir, wanted_bytes(settings))
        self.rounds.give = self.reserve.give
        self.full_bytes = full_bytes(settings)
        self.notes = RoomNotes()
        self.cpus = Cpus()
        self.flood = Flood(shared)
        self.upkeep = Upkeep(
            shared, settings.data_dir, self._replace, lambda files: line.call({"op": "segment.unknown", "files": files})["files"], figures,
            scrub_bytes_per_second=settings.scrub_bytes_per_second, rewrite=settings.segment_rewrite, pack_number=self.rounds.next_pack,
            show=self._show,
        )  # fmt: skip
        self.upkeep.is_full, self.upkeep.have_room = self._is_full, self._have_room
        self.relocation = self._relocation(figures) if settings.cold_dir else None
        self.round_at_s = 0.0
        self.swept = 0

    def step(self) -> float:
        """Do what is due now; return how many seconds there is nothing to do."""
        rest_s = LOOK_S
        if not self.shared.ready:
            return rest_s
        self._sweep()
        self._seal_wanted()
        self.flood.is_on()
        if time.monotonic() >= self.round_at_s:
            started_s = time.monotonic()
            done = self._round(time.time_ns() // 1_000_000)
            took_s = time.monotonic() - started_s
            least_s = LOOK_S if done.waits else ROUND_S_MIN
            if done.segments and not done.waits and self._is_full():
                least_s = rest_s = 0.0  # each round frees one file of a full log, and writers wait for the next one
            self.round_at_s = time.monotonic() + max(least_s, took_s * ROUND_SHARE if not done.segments else 0)
            if done.segments:
                log.info("sealed", segments=done.segments, records=done.records, packs=done.packs, ms=round(1000 * took_s))
            for what in done.failed:
                log.error("not sealed", what=what)
                self.upkeep.damage.log_is_suspect = True
            self._tell_room(done)
        if self.relocation is not None:
            self.relocation.step(time.monotonic_ns() // 1_000_000)
        self.upkeep.step(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)
        return rest_s

    def _round(self, now_ms: int) -> Done:
        """Seal what is due; when the log has no room, what holds its oldest files first, whatever its age."""
        behind = self._behind_files()
        done = self.rounds.make_room(behind, now_ms) if behind else Done()
        if done.segments or done.no_room or done.waits:
            return done
        self.reserve.fill(self.rounds.room())
        return self.rounds.round(now_ms)

    def _behind_files(self) -> list[int]:
        """How far the end of each file of a full log is behind the log's end, the oldest first; [] while there is room, or none to gain."""
        found, log_bytes = list[int](), 0
        if not self.rounds.policy.log_bytes_max:
            return found  # nothing is to be sealed
        full = self._is_full()
        for folder in sorted((self.settings.data_dir / "log").glob("shard-[0-9][0-9]")):
            line = self.shared.shard(int(folder.name[-2:]))
            if int(str(line["read_only"])) in NO_ROOM or full:
                written = int(str(line["written"]))
                firsts = [file.first_position for file in log_walk.list_files(os.fsencode(folder))]
                found += [written - end for end in firsts[1:] if end < written]
                log_bytes += max(written - firsts[0], 0) if firsts else 0
        return sorted(found, reverse=True) if found and self.rounds.gains(log_bytes) else []

    def _is_full(self) -> bool:
        """Tell whether the disk is: a log that was begun anew on it takes small writes for a while, but has no next file."""
        return self.rounds.room() - self.reserve.missing() < self.full_bytes

    def _have_room(self, size: int) -> bool:
        """Have room for a file of about so many bytes, with what was set aside if need be; False where that is not enough."""
        wanted = size + size // 8 + PIECE_BYTES_MIN
        if self.rounds.room() + self.reserve.held() < wanted:
            return False
        while self.rounds.room() < wanted and self.reserve.give():
            pass
        return True

    def _tell_room(self, done: Done) -> None:
        self.figures.set("seal_no_room", int(bool(done.no_room)))
        self.notes.note(self._held_up(done), lambda: self._room_numbers(done))

    def _held_up(self, done: Done) -> str:
        """Say what a full disk kept a round from; "": nothing."""
        if done.no_room:
            return NOTHING_FITS
        if done.waits:
            return WAITS
        refuses = any(int(str(self.shared.shard(number)["read_only"])) in NO_ROOM for number in range(LOG_SHARDS_MAX))
        return FULL if refuses and not done.segments else ""

    def _room_numbers(self, done: Done) -> dict[str, int]:
        free, held = free_bytes(str(self.settings.data_dir)), self.reserve.held()
        return {"tails": done.no_room or done.waits, "free_bytes": free, "set_aside_bytes": held, "to_set_aside_bytes": self.reserve.missing()}

    def _seal_wanted(self) -> None:
        for slot, topic_id in self.line.call({"op": "segment.wanted"})["topics"]:
            self.rounds.done.no_room = 0
            self.rounds.seal_all(slot, topic_id)
            self._tell_room(self.rounds.done)

    def _pace(self, took_s: float, behind: int) -> None:
        """Rest while CPUs are short, and as long as the log is flooded; not while too much waits, or writers want the room that it makes.

        Seals what somebody asked for meanwhile.
        """
        short = self.cpus.are_short() and behind < BEHIND_BYTES_MAX
        patience = self._patience_bytes() - behind + self.flood.log_bytes()
        end_s = time.monotonic() + min(PACE * took_s, REST_S_MAX)
        while not self._is_waited_for() and not self.line.ended:
            flooded = self.flood.is_on() and self.flood.log_bytes() < patience
            left_s = end_s - time.monotonic() if short else 0.0
            if not flooded and left_s <= 0:
                break
            self.line.pause(LOOK_S if flooded else min(left_s, LOOK_S))
            self._seal_wanted()

    def _is_waited_for(self) -> bool:
        return self.rounds.policy.only_behind or self._is_full()

    def _patience_bytes(self) -> int:
        disk = os.statvfs(self.settings.data_dir)
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return min(FLOOD_BYTES_MAX, disk.f_bavail * disk.f_frsize // FLOOD_DISK_SHARE, memory_bytes // FLOOD_MEMORY_SHARE)

    def _publish(self, rows: list[Row]) -> list[str]:
        answer = self.line.call({"op": "segment.publish", "rows": [[slot, topic_id, body.hex()] for slot, topic_id, body in rows]})
        codes: list[str] = answer["codes"]
        return codes

    def _relocation(self, figures: Figures) -> Relocation | None:
        settings, line = self.settings, self.line
        try:
            cold = open_tier(settings.cold_dir or "", settings.data_dir, keeps=True, look=False)
        except ColdError as wrong:
            log.error("no cold tier", why=str(wrong))
            return None
        self.upkeep.damage.cold = ColdCounts(self.shared, cold)
        return Relocation(
            self.shared, settings.data_dir, cold, Retain(settings.hot_retain_segments, settings.hot_retain_bytes), self._replace,
            lambda: line.call({"op": "segment.cold_gone"})["files"],
            self._removed, self._may_go, figures, check=cold.verify,
        )  # fmt: skip

    def _may_go(self, slot: int, topic_id: int, last_seq: int) -> bool:
        return bool(self.line.call({"op": "segment.may_go", "slot": slot, "topic_id": topic_id, "last_seq": last_seq})["may"])

    def _removed(self, files: list[list[int]]) -> None:
        self.line.call({"op": "segment.cold_removed", "files": files})

    def _show(self, topics: list[list[int]]) -> None:
        self.line.call({"op": "segment.unreadable", "topics": topics})

    def _replace(self, rows: Ranges) -> list[str]:
        answer = self.line.call({"op": "segment.replace", "rows": [[slot, topic_id, old.hex(), new.hex()] for slot, topic_id, old, new in rows]})
        codes: list[str] = answer["codes"]
        return codes

    def _sweep(self) -> None:
        retired = self.shared.get("files_retired")
        if retired != self.swept:
            self.sealer.sweep()
            self.swept = retired
            self.shared.set_worker(self.line.port.ring_slot, "maps_swept", retired)


def run_keeper(shared: Shared, settings: Settings, ring: int, figures: Figures | None = None) -> int:
    """Seal until SIGUSR1 of the arbiter; return 0."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.nice(NICE)
    shared.set("keeper_pid", os.getpid())
    line = Line(shared, ring)
    keeper = Keeper(shared, settings, line, figures or Figures())
    refused = False
    while not line.ended:
        rest_s = LOOK_S
        try:
            rest_s = keeper.step()
            refused = False
        except RefusedError as why:
            # A log that takes no writes is the writer's to tell and to cure. Work begins anew with the next step.
            if why.code != StorageReadOnly.code:
                raise
            if not refused:
                log.warning("the log takes nothing: trying again", why=str(why))
            refused = True
            line.pause(ROUND_S_MIN)
        except EndedError as why:
            log.debug("interrupted", why=str(why))
        except OSError as wrong:
            log.error("could not do its work", why=str(wrong))
            line.pause(ROUND_S_MIN)
        line.pause(rest_s)
    shared.set("keeper_pid", 0)
    return 0
