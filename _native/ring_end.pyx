"""Both ends of a ring in Python, for tests and benches; the server uses Port and the Sequencer."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from topicsd._native.atomics cimport (
    add_32, clock_mono_ns, futex_wait, futex_wake, load_acquire_32, load_acquire_64)
from topicsd._native.layout cimport COMMAND_APPEND, COMMAND_FREE, COMPLETION_PAYLOAD_MAX, completion, submission
from topicsd._native.regions cimport RING_LIVE, Shared
from topicsd._native.ring cimport (
    RING_NONE, RING_STALE, RING_TOO_LARGE, Ring, bell_worker, completion_done, completion_next, completion_push, dirty_next,
    dirty_overflowed, dirty_push, ring_abandon, ring_adopt, ring_arm, ring_claim, ring_commit, ring_dead_drained, ring_peek,
    ring_peek_at, ring_refuse, ring_release, ring_reset_for_generation, rings_waiting, writer_bell_seen, writer_sleep_unless)

cdef extern from "ring.h" nogil:
    void ring_bell(int fd)
    void quiet_bell(int fd)

cdef extern from "poll.h" nogil:
    ctypedef struct pollfd "struct pollfd":
        int fd
        short events
        short revents
    const short POLLIN
    int poll(pollfd *fds, unsigned long count, int timeout_ms)


cdef void wait_for_bell(int fd) noexcept nogil:
    cdef pollfd waited
    waited.fd = fd
    waited.events = POLLIN
    poll(&waited, 1, 1000)
    quiet_bell(fd)


cdef class RingEnd:
    def __init__(self, Shared shared not None, uint32_t number):
        if number >= shared.r.ring_slots:
            raise IndexError(f"ring slot {number}, at most {shared.r.ring_slots - 1}")
        self.shared = shared
        self.ring = &shared.r.rings[number]

    def adopt(self):
        if self.ring.state != <uint64_t>RING_LIVE or self.ring.head != self.ring.tail:
            raise ValueError("not a live, drained ring slot")
        ring_adopt(self.ring)

    def claim(self, uint32_t size, uint32_t kind=1):
        cdef uint8_t *destination
        cdef int wrong = ring_claim(self.ring, size, kind, &destination)
        if wrong == RING_TOO_LARGE:
            raise ValueError(f"{size} bytes, at most {self.ring.spill_slot_bytes}")
        return None if wrong else memoryview(<uint8_t[:size]>destination) if size else memoryview(b"")

    def commit(self, uint32_t slot=0):
        if self.ring.claimed_token == 0:
            raise ValueError("nothing is claimed")
        return ring_commit(self.ring, slot)

    def abandon(self):
        ring_abandon(self.ring)

    def send(self, const uint8_t[::1] payload not None, uint32_t kind=1, uint32_t slot=0):
        cdef uint8_t *destination
        cdef int wrong = ring_claim(self.ring, <uint32_t>payload.shape[0], kind, &destination)
        if wrong == RING_TOO_LARGE:
            raise ValueError(f"{payload.shape[0]} bytes, at most {self.ring.spill_slot_bytes}")
        if wrong:
            return None
        if payload.shape[0]:
            memcpy(destination, &payload[0], payload.shape[0])
        return ring_commit(self.ring, slot)

    def receive(self):
        cdef completion answer
        cdef const uint8_t *payload
        if not completion_next(self.ring, &answer, &payload):
            return None
        result = (answer.token, answer.status, answer.first_seq, payload[:answer.payload_bytes])
        completion_done(self.ring)
        return result

    def arm(self):
        return ring_arm(self.ring)

    def dirty(self):
        cdef uint32_t slot
        if dirty_overflowed(self.ring):
            return None
        slots = []
        while dirty_next(self.ring, &slot):
            slots.append(slot)
        return slots

    def peek_at(self, uint64_t cursor):
        cdef submission entry
        cdef uint8_t *payload
        cdef int found = ring_peek_at(self.ring, cursor, &entry, &payload)
        if found == RING_NONE:
            return None
        return entry.token, entry.kind, entry.slot, (<const uint8_t *>payload)[:entry.bytes], found == RING_STALE

    def refuse(self, uint64_t cursor, uint32_t outcome=9):
        cdef submission entry
        cdef uint8_t *payload
        if ring_peek_at(self.ring, cursor, &entry, &payload) == RING_NONE:
            raise IndexError(cursor)
        return ring_refuse(self.ring, &entry, outcome) == 0

    def release(self, uint64_t cursor):
        if not self.ring.head <= cursor <= self.ring.tail:
            raise IndexError(cursor)
        ring_release(self.ring, cursor)

    def push(self, uint64_t token, uint32_t status=0, uint64_t first_seq=0, bytes payload=b""):
        cdef completion answer
        memset(&answer, 0, sizeof(answer))
        answer.token = token
        answer.status = status
        answer.first_seq = first_seq
        answer.payload_bytes = <uint32_t>len(payload)
        if completion_push(self.ring, &answer, <const uint8_t *>payload) != 0:
            raise ValueError(f"{len(payload)} bytes, at most {COMPLETION_PAYLOAD_MAX}")

    def push_dirty(self, uint32_t slot):
        dirty_push(self.ring, slot)

    def bell(self):
        bell_worker(self.ring)

    def reset(self):
        return ring_reset_for_generation(self.ring)

    def free_if_drained(self):
        return ring_dead_drained(self.ring)

    def sleep(self, int64_t timeout_ns, seen=None):
        cdef uint32_t bell = writer_bell_seen(&self.shared.r) if seen is None else seen
        cdef bint slept
        with nogil:
            slept = writer_sleep_unless(&self.shared.r, bell, timeout_ns)
        return slept

    @property
    def bell_seen(self):
        return writer_bell_seen(&self.shared.r)

    def waiting(self):
        return rings_waiting(&self.shared.r)

    @property
    def head(self):
        return load_acquire_64(&self.ring.head)

    @property
    def tail(self):
        return load_acquire_64(&self.ring.tail)

    @property
    def spills(self):
        return [load_acquire_64(&self.shared.r.spill_owner[n]) for n in range(self.shared.r.spill_slots)]

    @property
    def armed(self):
        return load_acquire_32(&self.ring.armed) != 0

    @property
    def writer_armed(self):
        return load_acquire_32(&self.ring.control.writer_armed) != 0

    # ---- round trips for perf/ring.py

    def ping(self, uint32_t rounds, uint32_t size, bint spin):
        cdef uint64_t *took_ns = <uint64_t *>malloc((rounds + 1) * sizeof(uint64_t))
        cdef uint32_t n
        if took_ns == NULL:
            raise MemoryError
        try:
            with nogil:
                for n in range(rounds):
                    took_ns[n] = self.round_trip(size, COMMAND_APPEND, spin)
                self.round_trip(0, COMMAND_FREE, spin)
            return [took_ns[n] for n in range(rounds)]
        finally:
            free(took_ns)

    cdef uint64_t round_trip(self, uint32_t size, uint32_t kind, bint spin) noexcept nogil:
        cdef Ring *ring = self.ring
        cdef completion answer
        cdef const uint8_t *payload
        cdef uint8_t *destination
        cdef uint64_t started_ns = clock_mono_ns()
        ring_claim(ring, size, kind, &destination)
        memset(destination, 1, size)
        ring_commit(ring, 0)
        while not completion_next(ring, &answer, &payload):
            if not spin and ring_arm(ring):
                wait_for_bell(ring.bell_fd)
        completion_done(ring)
        return clock_mono_ns() - started_ns

    def pong(self, bint spin):
        cdef submission entry
        cdef completion answer
        cdef uint8_t *payload
        cdef uint32_t seen
        memset(&answer, 0, sizeof(answer))
        with nogil:
            while True:
                seen = writer_bell_seen(&self.shared.r)
                if ring_peek(self.ring, &entry, &payload) == RING_NONE:
                    if not spin:
                        writer_sleep_unless(&self.shared.r, seen, 1000000000)
                    continue
                answer.token = entry.token
                completion_push(self.ring, &answer, NULL)
                ring_release(self.ring, self.ring.head + 1)
                bell_worker(self.ring)
                if entry.kind == COMMAND_FREE:
                    break

    def bare_ping(self, uint32_t rounds):
        cdef uint32_t *word = &self.ring.control.writer_bell
        cdef uint64_t *took_ns = <uint64_t *>malloc((rounds + 1) * sizeof(uint64_t))
        cdef uint64_t started_ns
        cdef uint32_t n
        if took_ns == NULL:
            raise MemoryError
        try:
            with nogil:
                for n in range(rounds):
                    started_ns = clock_mono_ns()
                    add_32(word, 1)
                    futex_wake(word, 1)
                    wait_for_bell(self.ring.bell_fd)
                    took_ns[n] = clock_mono_ns() - started_ns
            return [took_ns[n] for n in range(rounds)]
        finally:
            free(took_ns)

    def bare_pong(self, uint32_t rounds, uint32_t seen):
        cdef uint32_t *word = &self.ring.control.writer_bell
        cdef uint32_t n
        with nogil:
            for n in range(rounds):
                while load_acquire_32(word) == seen + n:
                    futex_wait(word, seen + n, 1000000000)
                ring_bell(self.ring.bell_fd)
