"""Rings between the workers and the writer: claim, commit, drain, answer, sleep (page of truth: ring.pxd)."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from topicsd._native.atomics cimport (
    add_32, cas_64, exchange_32, fence_seq_cst, futex_wait, futex_wake, load_acquire_32, load_acquire_64, load_seq_cst_32,
    store_release_64, store_seq_cst_32)
from topicsd._native.layout cimport (
    COMMAND_CALL, COMPLETION_PAYLOAD_MAX, DESCRIPTOR_SPILLED, DIRTY_ENTRIES, OUTCOME_UNKNOWN, RING_DATA_BYTES, RING_DESCRIPTORS, completion,
    control, submission)
from topicsd._native.queue_wire cimport COMMAND_QUEUE_FIRST
from topicsd._native.regions cimport RING_DEAD, RING_FREE, RING_LIVE, Regions

cdef extern from "ring.h" nogil:
    const uint64_t TOKEN_CALL
    const int TOKEN_SEQUENCE_BITS
    const int FAULT_POINTS
    ctypedef struct fault_plan "struct fault_plan":
        uint64_t random
        uint32_t pause_permille
        uint32_t pause_us_max
        uint32_t exit_ppm
    void fault_plan_set(fault_plan plan)
    void fault_point()
    void ring_bell(int fd)
    void quiet_bell(int fd)
    void punch(void *at, uint64_t size)
    void ring_require(int condition)


cdef inline uint64_t rounded(uint64_t size) noexcept nogil:
    return (size + 7) & ~<uint64_t>7


# ---- spill slots

cdef inline uint64_t spill_name(const Ring *ring, uint64_t token) noexcept nogil:
    return token << 8 | (ring.number + 1)


cdef int spill_claim(Ring *ring, uint64_t token, uint32_t *slot) noexcept nogil:
    cdef uint32_t n, at
    for n in range(ring.spill_slots):
        at = (ring.number * 2 + n) % ring.spill_slots      # workers start apart
        if load_acquire_64(&ring.spill_owner[at]) == 0 and cas_64(&ring.spill_owner[at], 0, spill_name(ring, token)):
            slot[0] = at
            return 0
    return RING_FULL


cdef void spill_release(Ring *ring, uint32_t slot, uint64_t token, uint64_t size) noexcept nogil:
    # A slot that was freed earlier, by whomever, has another owner by now: tokens are never used twice.
    if load_acquire_64(&ring.spill_owner[slot]) != spill_name(ring, token):
        return
    punch(ring.spill + slot * ring.spill_slot_bytes, size)
    fault_point()
    store_release_64(&ring.spill_owner[slot], 0)


cdef void spill_free(Regions *regions, uint32_t slot) noexcept nogil:
    punch(regions.spill + slot * regions.spill_slot_bytes, regions.spill_slot_bytes)
    store_release_64(&regions.spill_owner[slot], 0)


# ---- the worker's side

cdef void ring_adopt(Ring *ring) noexcept nogil:
    cdef uint32_t n
    ring_require(ring.state == RING_LIVE and load_acquire_64(&ring.head) == ring.tail)
    ring.head_seen = ring.tail
    ring.data_tail = ring.data_end[(ring.tail - 1) & RING_MASK]
    ring.sequence += 1
    ring.claimed_token = 0
    ring.claimed_spill = SPILL_NONE
    ring.calls = 0
    ring.rang_for = 0
    memset(ring.pending, 0, RING_DESCRIPTORS * sizeof(uint64_t))
    ring.free_count = OUTSTANDING_MAX
    for n in range(OUTSTANDING_MAX):
        ring.free_indices[n] = OUTSTANDING_MAX - 1 - n
    store_release_64(&ring.completion_head, load_acquire_64(&ring.completion_tail))
    store_release_64(&ring.dirty_head, load_acquire_64(&ring.dirty_tail))
    exchange_32(&ring.dirty_overflow, 0)
    quiet_bell(ring.bell_fd)


cdef inline bint descriptor_room(Ring *ring, uint64_t data_bytes) noexcept nogil:
    return (ring.tail - ring.head_seen < RING_DESCRIPTORS - 1
            and ring.data_tail + data_bytes - ring.data_end[(ring.head_seen - 1) & RING_MASK] <= RING_DATA_BYTES)


cdef inline bint answered_at_length(uint32_t kind) noexcept nogil:
    return kind == <uint32_t>COMMAND_CALL or kind >= <uint32_t>COMMAND_QUEUE_FIRST


cdef int ring_claim(Ring *ring, uint32_t size, uint32_t kind, uint8_t **destination) noexcept nogil:
    cdef uint64_t token, data_bytes
    cdef uint32_t spill = SPILL_NONE
    if ring.claimed_token:
        ring_abandon(ring)
    if size > RING_SPILL_ABOVE and size > ring.spill_slot_bytes:
        return RING_TOO_LARGE
    if ring.free_count == 0 or (answered_at_length(kind) and ring.calls == OUTSTANDING_CALLS_MAX):
        return RING_FULL
    data_bytes = rounded(size) if size <= RING_SPILL_ABOVE else 0
    if not descriptor_room(ring, data_bytes):
        ring.head_seen = load_acquire_64(&ring.head)
        if not descriptor_room(ring, data_bytes):
            return RING_FULL
    token = (ring.sequence + 1) << TOKEN_SEQUENCE_BITS | ring.free_indices[ring.free_count - 1]
    if answered_at_length(kind):
        token |= TOKEN_CALL
    if size > RING_SPILL_ABOVE and spill_claim(ring, token, &spill) != 0:
        return RING_FULL
    fault_point()
    ring.sequence += 1
    ring.free_count -= 1
    ring.calls += answered_at_length(kind)
    ring.claimed_token = token
    ring.claimed_bytes = size
    ring.claimed_kind = kind
    ring.claimed_spill = spill
    if spill != SPILL_NONE:
        destination[0] = ring.spill + spill * ring.spill_slot_bytes
    else:
        destination[0] = ring.data + (ring.data_tail & RING_DATA_MASK)
    return 0


cdef void ring_abandon(Ring *ring) noexcept nogil:
    if ring.claimed_token == 0:
        return
    if ring.claimed_spill != SPILL_NONE:
        spill_release(ring, ring.claimed_spill, ring.claimed_token, ring.claimed_bytes)
    forget_token(ring, ring.claimed_token)
    ring.claimed_token = 0


cdef void forget_token(Ring *ring, uint64_t token) noexcept nogil:
    ring.pending[token & RING_MASK] = 0
    ring.free_indices[ring.free_count] = <uint16_t>(token & RING_MASK)
    ring.free_count += 1
    if token & TOKEN_CALL:
        ring.calls -= 1


cdef uint64_t ring_commit_quietly(Ring *ring, uint32_t slot) noexcept nogil:
    cdef uint64_t token = ring.claimed_token
    cdef uint64_t tail = ring.tail
    cdef submission *entry = &ring.descriptors[tail & RING_MASK]
    ring_require(token != 0)
    entry.token = token
    entry.bytes = ring.claimed_bytes
    entry.slot = slot
    entry.kind = <uint16_t>ring.claimed_kind
    fault_point()
    if ring.claimed_spill != SPILL_NONE:
        entry.offset = ring.claimed_spill
        entry.flags = DESCRIPTOR_SPILLED
    else:
        entry.offset = ring.data_tail
        entry.flags = 0
        ring.data_tail += rounded(ring.claimed_bytes)
    ring.data_end[tail & RING_MASK] = ring.data_tail
    ring.pending[token & RING_MASK] = token
    ring.claimed_token = 0
    entry.generation = <uint32_t>load_acquire_64(&ring.control.generation)
    fault_point()
    store_release_64(&ring.tail, tail + 1)
    fault_point()
    return token


cdef uint64_t ring_commit(Ring *ring, uint32_t slot) noexcept nogil:
    cdef uint64_t token = ring_commit_quietly(ring, slot)
    ring_writer(ring)
    return token


cdef void ring_writer(Ring *ring) noexcept nogil:
    cdef uint32_t armed
    fence_seq_cst()
    armed = load_seq_cst_32(&ring.control.writer_armed)
    if armed == 0 or armed == ring.rang_for:
        return
    fault_point()
    add_32(&ring.control.writer_bell, 1)
    futex_wake(&ring.control.writer_bell, 1)
    ring.rang_for = armed


cdef bint completion_next(Ring *ring, completion *out, const uint8_t **payload) noexcept nogil:
    cdef uint64_t head = ring.completion_head
    cdef uint64_t tail = load_acquire_64(&ring.completion_tail)
    cdef completion *answer
    while head != tail:
        answer = &ring.completions[head & COMPLETION_MASK]
        if ring.pending[answer.token & RING_MASK] == answer.token and answer.token:
            out[0] = answer[0]
            payload[0] = ring.completion_data + (answer.payload_offset & COMPLETION_DATA_MASK)
            return True
        head += 1
        store_release_64(&ring.completion_head, head)
    return False


cdef void completion_done(Ring *ring) noexcept nogil:
    forget_token(ring, ring.completions[ring.completion_head & COMPLETION_MASK].token)
    fault_point()
    store_release_64(&ring.completion_head, ring.completion_head + 1)


cdef bint ring_arm(Ring *ring) noexcept nogil:
    store_seq_cst_32(&ring.armed, 1)
    fence_seq_cst()
    return (load_acquire_64(&ring.completion_tail) == ring.completion_head
            and load_acquire_64(&ring.dirty_tail) == ring.dirty_head and load_acquire_32(&ring.dirty_overflow) == 0)


cdef bint dirty_next(Ring *ring, uint32_t *slot) noexcept nogil:
    if load_acquire_64(&ring.dirty_tail) == ring.dirty_head:
        return False
    slot[0] = ring.dirty[ring.dirty_head & DIRTY_MASK]
    store_release_64(&ring.dirty_head, ring.dirty_head + 1)
    return True


cdef bint dirty_overflowed(Ring *ring) noexcept nogil:
    if exchange_32(&ring.dirty_overflow, 0) == 0:
        return False
    store_release_64(&ring.dirty_head, load_acquire_64(&ring.dirty_tail))
    return True


# ---- the writer's side

cdef int ring_peek(Ring *ring, submission *out, uint8_t **payload) noexcept nogil:
    return ring_peek_at(ring, ring.head, out, payload)


cdef int ring_peek_at(Ring *ring, uint64_t cursor, submission *out, uint8_t **payload) noexcept nogil:
    if cursor == load_acquire_64(&ring.tail):
        return RING_NONE
    out[0] = ring.descriptors[cursor & RING_MASK]
    if out.flags & DESCRIPTOR_SPILLED:
        ring_require(out.offset < ring.spill_slots and out.bytes <= ring.spill_slot_bytes)
        payload[0] = ring.spill + out.offset * ring.spill_slot_bytes
    else:
        ring_require(out.bytes <= RING_SPILL_ABOVE)
        payload[0] = ring.data + (out.offset & RING_DATA_MASK)
    if out.generation != <uint32_t>ring.control.generation:
        return RING_STALE
    if cursor + 1 > ring.seen:
        ring.seen = cursor + 1
    return RING_ENTRY


cdef void ring_release(Ring *ring, uint64_t cursor) noexcept nogil:
    cdef uint64_t at
    cdef submission *entry
    for at in range(ring.head, cursor):
        entry = &ring.descriptors[at & RING_MASK]
        if entry.flags & DESCRIPTOR_SPILLED:
            spill_release(ring, <uint32_t>entry.offset, entry.token, entry.bytes)
    fault_point()
    if cursor > ring.seen:
        ring.seen = cursor
    store_release_64(&ring.head, cursor)


cdef int completion_push(Ring *ring, const completion *answer, const uint8_t *payload) noexcept nogil:
    cdef uint64_t tail = ring.completion_tail
    cdef uint64_t offset
    cdef completion *last = &ring.completions[(tail - 1) & COMPLETION_MASK]
    cdef completion *out = &ring.completions[tail & COMPLETION_MASK]
    cdef bint fits = answer.payload_bytes <= COMPLETION_PAYLOAD_MAX
    ring.answered += 1
    if ring.state != <uint64_t>RING_LIVE:
        return 0 if fits else RING_TOO_LARGE    # nobody reads it; the slot is not used again before all is answered
    ring_require(tail - load_acquire_64(&ring.completion_head) < COMPLETION_SLOTS)
    offset = last.payload_offset + rounded(last.payload_bytes)
    if fits and answer.payload_bytes:
        memcpy(ring.completion_data + (offset & COMPLETION_DATA_MASK), payload, answer.payload_bytes)
    fault_point()
    out[0] = answer[0]
    out.payload_offset = offset
    if not fits:
        out.payload_bytes = 0       # better an answer without its payload than a request that hangs
    fault_point()
    store_release_64(&ring.completion_tail, tail + 1)
    return 0 if fits else RING_TOO_LARGE


cdef int ring_refuse(Ring *ring, const submission *entry, uint32_t outcome) noexcept nogil:
    cdef completion answer
    # The other half of the ring is for answers whose room was reserved: a refusal may be a second answer, which reserved none.
    if ring.state == <uint64_t>RING_LIVE and ring.completion_tail - load_acquire_64(&ring.completion_head) >= RING_DESCRIPTORS:
        return RING_FULL
    memset(&answer, 0, sizeof(answer))
    answer.token = entry.token
    answer.status = outcome
    completion_push(ring, &answer, ring.completion_data)     # no payload
    return 0


cdef void dirty_push(Ring *ring, uint32_t slot) noexcept nogil:
    cdef uint64_t tail = ring.dirty_tail
    if tail - load_acquire_64(&ring.dirty_head) == DIRTY_ENTRIES:
        store_seq_cst_32(&ring.dirty_overflow, 1)
        return
    ring.dirty[tail & DIRTY_MASK] = slot
    fault_point()
    store_release_64(&ring.dirty_tail, tail + 1)


cdef void bell_worker(Ring *ring) noexcept nogil:
    fence_seq_cst()
    if load_seq_cst_32(&ring.armed) == 0:
        return
    store_seq_cst_32(&ring.armed, 0)
    fault_point()
    ring_bell(ring.bell_fd)


cdef uint64_t ring_reset_for_generation(Ring *ring) noexcept nogil:
    cdef submission entry
    cdef uint8_t *payload
    cdef uint64_t refused = 0
    ring.answered = ring.seen = ring.head
    while ring_peek(ring, &entry, &payload) == RING_STALE and ring_refuse(ring, &entry, OUTCOME_UNKNOWN) == 0:
        ring_release(ring, ring.head + 1)
        refused += 1
    dirty_everything(ring)      # the dead one may have cleared a watcher bit without saying so
    return refused


cdef void dirty_everything(Ring *ring) noexcept nogil:
    store_seq_cst_32(&ring.dirty_overflow, 1)
    store_seq_cst_32(&ring.armed, 0)
    ring_bell(ring.bell_fd)


cdef bint ring_dead_drained(Ring *ring) noexcept nogil:
    cdef uint32_t slot
    if load_acquire_64(&ring.state) != <uint64_t>RING_DEAD:
        return False
    if load_acquire_64(&ring.tail) != ring.head or ring.answered != ring.head:
        return False
    for slot in range(ring.spill_slots):        # claimed and never committed
        if load_acquire_64(&ring.spill_owner[slot]) & 0xFF == ring.number + 1:
            punch(ring.spill + slot * ring.spill_slot_bytes, ring.spill_slot_bytes)
            store_release_64(&ring.spill_owner[slot], 0)
    fault_point()
    return cas_64(&ring.state, RING_DEAD, RING_FREE)


cdef uint64_t rings_waiting(const Regions *regions) noexcept nogil:
    cdef uint64_t waiting = 0
    cdef uint32_t n
    for n in range(regions.ring_slots):
        if load_acquire_64(&regions.rings[n].tail) != regions.rings[n].seen:
            waiting |= <uint64_t>1 << n
    return waiting


cdef uint32_t writer_bell_seen(const Regions *regions) noexcept nogil:
    return load_acquire_32(&regions.control.writer_bell)


cdef bint writer_sleep_unless(Regions *regions, uint32_t seen, int64_t timeout_ns) noexcept nogil:
    cdef control *words = regions.control
    store_seq_cst_32(&words.writer_armed, seen << 1 | 1)
    fence_seq_cst()
    if rings_waiting(regions) or load_seq_cst_32(&words.writer_bell) != seen:
        store_seq_cst_32(&words.writer_armed, 0)
        return False
    fault_point()
    futex_wait(&words.writer_bell, seen, timeout_ns)
    store_seq_cst_32(&words.writer_armed, 0)
    return True


cdef bint writer_sleep(Regions *regions, int64_t timeout_ns) noexcept nogil:
    return writer_sleep_unless(regions, writer_bell_seen(regions), timeout_ns)


# ---- for the stress tests

def set_faults(uint64_t seed, uint32_t pause_permille=0, uint32_t pause_us_max=0, uint32_t exit_ppm=0):
    cdef fault_plan plan
    plan.random = seed
    plan.pause_permille = pause_permille
    plan.pause_us_max = pause_us_max
    plan.exit_ppm = exit_ppm
    fault_plan_set(plan)
    return FAULT_POINTS != 0
