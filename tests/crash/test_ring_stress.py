"""Rings between real processes that pause and die at any moment: nothing is lost, nothing comes twice, nobody sleeps for ever.

The test is the arbiter. Workers send numbered batches whose bytes follow from their number; the writer holds every one against them. Both are killed
at random and replaced. What the writer has looked at and taken stands in shared memory, so that it outlives writers.
"""

from __future__ import annotations

import mmap
import os
import random
import select
import signal
import struct
import time
from collections.abc import Callable

import pytest

from topicsd._native.regions import Shared
from topicsd._native.ring import set_faults
from topicsd._native.ring_end import RingEnd

HEADER = struct.Struct("<QII")  # number, size, incarnation
PATTERN = random.Random(1).randbytes(5 << 20)
CALL = 2
UNKNOWN = 9
STUCK_S = 60
DIED_AT_A_FAULT_POINT = 86


def payload_of(incarnation: int, number: int, size: int) -> bytes:
    start = (number * 7919 + incarnation * 104729) % (1 << 20)
    return HEADER.pack(number, size, incarnation) + PATTERN[start : start + size]


class Journal:
    """Keep, for each ring slot, words that outlive the processes that write them."""

    WORDS = ("incarnation", "looked", "taken", "stop")

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 1 << 16)

    def get(self, slot: int, word: str) -> int:
        return int(struct.unpack_from("<Q", self.memory, slot * 64 + 8 * self.WORDS.index(word))[0])

    def put(self, slot: int, word: str, value: int) -> None:
        struct.pack_into("<Q", self.memory, slot * 64 + 8 * self.WORDS.index(word), value)


def worker(shared: Shared, slot: int, journal: Journal, rng: random.Random) -> None:
    """Send until told to stop, then wait for every answer."""
    ring = RingEnd(shared, slot)
    ring.adopt()
    incarnation = shared.worker(slot)["incarnation"]
    waiting: dict[int, int] = {}
    number = 0
    while True:
        stopping = journal.get(slot, "stop")
        for _ in range(0 if stopping else rng.randrange(1, 40)):
            size = rng.randrange(4 << 20) if rng.random() < 0.004 else rng.randrange(200_000) if rng.random() < 0.02 else rng.randrange(2000)
            kind = CALL if rng.random() < 0.2 else 1
            token = ring.send(payload_of(incarnation, number + 1, size), kind=kind, slot=number + 1)
            if token is None:
                break
            number += 1  # the descriptor's `slot` carries it too
            waiting[token] = number
            if rng.random() < 0.05 and ring.claim(rng.randrange(3 << 20)) is not None:
                ring.abandon()
        while True:
            while answer := ring.receive():
                token, status, first_seq, echo = answer
                sent = waiting.pop(token)  # KeyError: an answer to nothing, or a second one
                assert status == UNKNOWN or (status == 0 and first_seq == sent and echo in (b"", b"%d" % sent * 50))
            ring.dirty()
            if ring.arm():
                break
        if stopping and not waiting:
            return
        ready = select.select([shared.bell_fd(slot)], [], [], STUCK_S if waiting else 0.002)[0]
        if ready:
            os.eventfd_read(shared.bell_fd(slot))
        assert ready or not waiting, f"no answer to {len(waiting)} batches in {STUCK_S} s"


def look(shared: Shared, journal: Journal, slot: int, number: int, payload: bytes | None, previous: int) -> int:
    """Hold one entry against what must have been sent; `previous`: the number this writer saw last in the slot, 0 for none.

    `payload` is None when the entry is stale: the dead writer may have given its spill slot back.
    """
    incarnation = shared.worker(slot)["incarnation"]
    if payload is not None:
        _, size, _ = HEADER.unpack_from(payload)
        assert payload == payload_of(incarnation, number, size)
    if journal.get(slot, "incarnation") != incarnation:
        assert number == 1, "the first batch of a worker was lost"
        journal.put(slot, "looked", 0)
        journal.put(slot, "taken", 0)
        journal.put(slot, "incarnation", incarnation)
    elif previous:
        assert number == previous + 1, "a batch is missing"
    looked = journal.get(slot, "looked")
    assert number <= looked + 1, "a batch was lost with the last writer"
    journal.put(slot, "looked", max(number, looked))
    if payload is not None:
        assert number > journal.get(slot, "taken"), "a batch was taken twice"
        journal.put(slot, "taken", number)
    return number


def writer(shared: Shared, journal: Journal, rng: random.Random) -> None:
    rings = [RingEnd(shared, slot) for slot in range(shared.ring_slots)]
    shared.set("generation", shared.generation + 1)
    for slot, ring in enumerate(rings):
        cursor, number = ring.head, 0
        while (entry := ring.peek_at(cursor)) and entry[4]:  # until one was committed since the generation was raised
            number = look(shared, journal, slot, entry[2], None, number)
            cursor += 1
        ring.reset()
    last = [0] * len(rings)
    while True:
        seen = rings[0].bell_seen
        for slot, ring in enumerate(rings):
            cursor, stop = ring.head, ring.head + rng.randrange(1, 64)
            while cursor != stop and (entry := ring.peek_at(cursor)):
                token, kind, number, payload, stale = entry
                look(shared, journal, slot, number, None if stale else payload, last[slot])
                if stale:
                    if not ring.refuse(cursor):
                        break
                else:
                    ring.push(token, first_seq=number, payload=b"%d" % number * 50 if kind == CALL else b"")
                    ring.push_dirty(number & 0xFF)
                last[slot] = number
                cursor += 1
            ring.release(cursor)
            ring.bell()
            ring.free_if_drained()
        rings[0].sleep(-1, seen)


def fork(action: Callable[[], None], seed: int, exit_ppm: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        set_faults(seed | 1, pause_permille=2, pause_us_max=300, exit_ppm=exit_ppm)
        action()
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)


class Arbiter:
    """Fork, kill, bury, replace."""

    def __init__(self, seed: int, workers: int, exit_ppm: int) -> None:
        self.shared = Shared.create(topics_max=100, body_bytes_max=4 << 20, ring_slots=2 * workers)
        self.journal = Journal()
        self.rng = random.Random(seed)
        self.exit_ppm = exit_ppm
        self.deaths = 0
        self.slots: dict[int, int] = {}
        self.writer = self.fork_writer()
        for _ in range(workers):
            self.fork_worker()

    def fork_writer(self) -> int:
        rng = random.Random(self.rng.random())
        return fork(lambda: writer(self.shared, self.journal, rng), self.rng.getrandbits(60), self.exit_ppm)

    def fork_worker(self) -> None:
        deadline = time.monotonic() + STUCK_S
        while (slot := self.shared.assign_ring()) is None:
            assert time.monotonic() < deadline, "no slot became free"
            self.reap()
            time.sleep(0.001)
        taken, rng = slot, random.Random(self.rng.random())
        self.slots[fork(lambda: worker(self.shared, taken, self.journal, rng), self.rng.getrandbits(60), self.exit_ppm)] = slot

    def reap(self) -> list[int]:
        """Bury who died by itself, at a fault point; return their exit codes."""
        codes = []
        for pid in [self.writer, *self.slots]:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                codes.append(self.bury(pid, os.waitstatus_to_exitcode(status)))
        return codes

    def bury(self, pid: int, code: int) -> int:
        assert code in (0, -signal.SIGKILL, DIED_AT_A_FAULT_POINT), f"exit code {code}"
        self.deaths += code != 0
        if pid == self.writer:
            self.writer = self.fork_writer()
        else:
            self.shared.bury_ring(self.slots.pop(pid))
        return code

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.bury(pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def run(self, seconds: float, workers: int, deaths_min: int) -> None:
        """Go on for so long, and on a slow machine for longer, until enough have died."""
        end = time.monotonic() + seconds
        while time.monotonic() < end or self.deaths < deaths_min:
            time.sleep(self.rng.random() * 0.08)
            self.reap()
            self.kill(self.writer if self.rng.random() < 0.4 else self.rng.choice([*self.slots, self.writer]))
            while len(self.slots) < workers:
                self.fork_worker()

    def finish(self) -> None:
        """Let the last workers get all their answers, the last slots be drained."""
        for slot in range(self.shared.ring_slots):
            self.journal.put(slot, "stop", 1)
        deadline = time.monotonic() + 2 * STUCK_S
        while self.slots or any(self.shared.ring_state(slot) != "free" for slot in range(self.shared.ring_slots)):
            assert time.monotonic() < deadline, "not drained"
            self.reap()
            time.sleep(0.002)

    def close(self) -> None:
        for pid in [self.writer, *self.slots]:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass  # reaped: the test has failed because of it


def stress(seed: int, seconds: float, deaths_min: int, exit_ppm: int = 0, workers: int = 2) -> Arbiter:
    arbiter = Arbiter(seed, workers, exit_ppm)
    try:
        arbiter.run(seconds, workers, deaths_min)
        arbiter.finish()
    finally:
        arbiter.close()
    for slot in range(arbiter.shared.ring_slots):
        ring = RingEnd(arbiter.shared, slot)
        assert ring.head == ring.tail
        assert not any(ring.spills)
    return arbiter


@pytest.mark.slow
def test_rings_survive_kills_of_workers_and_writers():
    assert stress(seed=1, seconds=5, deaths_min=21).deaths > 20


@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(4))
def test_rings_survive_deaths_and_pauses_between_any_two_steps(seed):
    assert stress(seed=100 + seed, seconds=20, deaths_min=51, exit_ppm=200, workers=3).deaths > 50
