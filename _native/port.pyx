"""A worker's end of its ring slot (see port.pxd)."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from topicsd._native.atomics cimport and_64, fence_seq_cst, load_acquire_64, or_64
from topicsd._native.layout cimport (
    COMMAND_APPEND, COMMAND_CALL, COMMAND_FREE, FRAME_APPEND, FRAME_FLAG_KEY, FRAME_HEADER_BYTES, FRAME_MAGIC, NO_SLOT, OUTCOME_UNKNOWN,
    completion, frame_header)
from topicsd._native.regions cimport RING_LIVE, Shared
from topicsd._native.ring cimport (
    RING_FULL, RING_TOO_LARGE, Ring, completion_done, completion_next, dirty_next, dirty_overflowed, ring_adopt, ring_arm, ring_claim,
    ring_commit, ring_commit_quietly, ring_writer)
from topicsd._native.scan cimport SCAN_KEY_BYTES_MAX, Write, WriteRequest, encode_write, encoded_write_bytes, write_key_bytes

cdef extern from "ring.h" nogil:
    void ring_bell(int fd)
    void quiet_bell(int fd)

UNKNOWN = OUTCOME_UNKNOWN


class Busy(Exception):
    """There is no room in the ring, among the spill slots or for the answer: try again, or answer 429."""


class TooLarge(ValueError):
    """The encoded write fits into no spill slot."""


cdef uint64_t frame_bytes(const WriteRequest *request, uint32_t header_key_bytes) noexcept nogil:
    return FRAME_HEADER_BYTES + ((encoded_write_bytes(request, header_key_bytes) + 7) & ~<uint64_t>7)


cdef void encode_frame(uint8_t *at, uint64_t length, uint64_t topic_id, const WriteRequest *request, const uint8_t *header_key,
                       uint32_t header_key_bytes) noexcept nogil:
    cdef frame_header *header = <frame_header *>at
    memset(header, 0, FRAME_HEADER_BYTES)
    header.magic = FRAME_MAGIC
    header.length = <uint32_t>length
    header.type = FRAME_APPEND
    header.flags = FRAME_FLAG_TOLD | (FRAME_FLAG_KEY if write_key_bytes(request, header_key_bytes) else 0)
    header.count = request.count
    header.topic_id = topic_id
    encode_write(request, header_key, header_key_bytes, at + FRAME_HEADER_BYTES, &header.xxh3)
    header.synced = request.payload_bytes


cdef int submit_append_quietly(Ring *ring, uint32_t slot, uint64_t topic_id, const WriteRequest *request, const uint8_t *header_key,
                               uint32_t header_key_bytes, uint64_t *token) noexcept nogil:
    cdef uint64_t length = frame_bytes(request, header_key_bytes)
    cdef uint8_t *at
    cdef int wrong
    if length > 0xFFFFFFF8u:
        return RING_TOO_LARGE
    wrong = ring_claim(ring, <uint32_t>length, COMMAND_APPEND, &at)
    if wrong:
        return wrong
    encode_frame(at, length, topic_id, request, header_key, header_key_bytes)
    token[0] = ring_commit_quietly(ring, slot)
    return 0


cdef int submit_append(Ring *ring, uint32_t slot, uint64_t topic_id, const WriteRequest *request, const uint8_t *header_key,
                       uint32_t header_key_bytes, uint64_t *token) noexcept nogil:
    cdef int wrong = submit_append_quietly(ring, slot, topic_id, request, header_key, header_key_bytes, token)
    if wrong == 0:
        ring_writer(ring)
    return wrong


cdef int submit_call(Ring *ring, const uint8_t *json, uint32_t json_bytes, const WriteRequest *request, const uint8_t *header_key,
                     uint32_t header_key_bytes, uint64_t *token) noexcept nogil:
    cdef uint64_t padded = (<uint64_t>json_bytes + 7) & ~<uint64_t>7
    cdef uint64_t length = 0
    cdef uint8_t *at
    cdef int wrong
    if request != NULL:
        length = frame_bytes(request, header_key_bytes)
    if 8 + padded + length > 0xFFFFFFF8u:
        return RING_TOO_LARGE
    wrong = ring_claim(ring, <uint32_t>(8 + padded + length), COMMAND_CALL, &at)
    if wrong:
        return wrong
    (<uint32_t *>at)[0] = json_bytes
    (<uint32_t *>at)[1] = <uint32_t>length
    memcpy(at + 8, json, json_bytes)
    memset(at + 8 + json_bytes, 0, padded - json_bytes)
    if request != NULL:
        encode_frame(at + 8 + padded, length, 0, request, header_key, header_key_bytes)
    token[0] = ring_commit(ring, NO_SLOT)
    return 0


cdef class Completion:
    def __repr__(self):
        return (f"Completion(status={self.status}, flags={self.flags}, first_seq={self.first_seq}, head={self.head}, count={self.count}, "
                f"values={self.values}, payload={self.payload!r})")


cdef Completion completed(const completion *answer, const uint8_t *payload):
    cdef Completion out = Completion.__new__(Completion)
    out.status = answer.status
    out.flags = answer.flags
    out.first_seq = answer.first_seq
    out.head = answer.head
    out.count = answer.count
    out.wal_us = answer.wal_us
    out.fsync_us = answer.fsync_us
    out.values = (answer.values[0], answer.values[1], answer.values[2], answer.values[3])
    out.payload = payload[:answer.payload_bytes]
    return out


cdef int64_t checked_key(bytes key) except -1:
    if key is None:
        return 0
    if len(key) > SCAN_KEY_BYTES_MAX:
        raise ValueError(f"header_key: {len(key)} bytes, at most {SCAN_KEY_BYTES_MAX}")
    return len(key)


cdef class Port:
    def __init__(self, Shared shared not None, uint32_t ring_slot):
        if ring_slot >= shared.r.ring_slots:
            raise IndexError(f"ring slot {ring_slot}, at most {shared.r.ring_slots - 1}")
        self.shared = shared
        self.ring = &shared.r.rings[ring_slot]
        if load_acquire_64(&self.ring.state) != <uint64_t>RING_LIVE or load_acquire_64(&self.ring.head) != self.ring.tail:
            raise ValueError(f"ring slot {ring_slot} was not assigned, or not drained")
        ring_adopt(self.ring)
        ring_arm(self.ring)

    def fileno(self):
        return self.ring.bell_fd

    @property
    def ring_slot(self):
        return self.ring.number

    cdef object submitted(self, int wrong, uint64_t token):
        if wrong == 0:
            return token
        if wrong == RING_FULL:
            raise Busy
        raise TooLarge(f"the encoded request is larger than {self.ring.spill_slot_bytes} bytes")

    def append(self, uint32_t slot, uint64_t topic_id, Write write not None, bytes header_key=None):
        cdef uint64_t token = 0
        cdef const uint8_t *key = header_key if header_key is not None else b""
        cdef uint32_t key_bytes = checked_key(header_key)
        cdef int wrong = submit_append(self.ring, slot, topic_id, &write.request, key, key_bytes, &token)
        return self.submitted(wrong, token)

    def call(self, bytes json not None, Write write=None, bytes header_key=None):
        cdef uint64_t token = 0
        cdef const uint8_t *key = header_key if header_key is not None else b""
        cdef uint32_t key_bytes = checked_key(header_key)
        cdef const WriteRequest *request = NULL
        cdef int wrong
        if write is not None:
            request = &write.request
        wrong = submit_call(self.ring, json, <uint32_t>len(json), request, key, key_bytes, &token)
        return self.submitted(wrong, token)

    def poke(self):
        cdef uint8_t *at
        cdef int wrong = ring_claim(self.ring, 0, COMMAND_FREE, &at)
        return self.submitted(wrong, ring_commit(self.ring, NO_SLOT) if wrong == 0 else 0)

    def drain(self, callback):
        cdef completion answer
        cdef const uint8_t *payload
        cdef Completion out
        cdef int drained = 0
        quiet_bell(self.ring.bell_fd)
        try:
            while True:
                while completion_next(self.ring, &answer, &payload):
                    out = completed(&answer, payload)
                    completion_done(self.ring)
                    drained += 1
                    callback(answer.token, out)
                ring_arm(self.ring)
                if not completion_next(self.ring, &answer, &payload):
                    return drained
        except BaseException:
            ring_bell(self.ring.bell_fd)    # come back for the rest
            raise

    @property
    def cursors(self):
        """(what the writer has done with, what was sent), counted from the ring's beginning."""
        return load_acquire_64(&self.ring.head), self.ring.tail

    def watch(self, uint32_t slot):
        if slot >= self.shared.r.topics_max:
            raise IndexError(f"topic slot {slot}")
        or_64(&self.shared.r.table[slot].watchers, <uint64_t>1 << self.ring.number)
        fence_seq_cst()

    def unwatch(self, uint32_t slot):
        if slot >= self.shared.r.topics_max:
            raise IndexError(f"topic slot {slot}")
        and_64(&self.shared.r.table[slot].watchers, ~(<uint64_t>1 << self.ring.number))

    def dirty(self):
        cdef uint32_t slot
        cdef list slots
        if dirty_overflowed(self.ring):
            return None
        slots = []
        while dirty_next(self.ring, &slot):
            slots.append(slot)
        return slots
