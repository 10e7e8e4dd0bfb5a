"""Records of the log are verified as they are read (see log_verify.pxd)."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from topicsd._native.atomics cimport clock_mono_ns
from topicsd._native.frame cimport FRAME_VALID, frame_check
from topicsd._native.layout cimport FRAME_APPEND, FRAME_HEADER_BYTES, FRAME_MAGIC, frame_header
from topicsd._native.maps cimport TRUST_CHUNK_BYTES, TRUST_SLOT_BYTES, Trust, guarded_call

cdef enum:
    WORD_BITS = 64
    CHUNK_SLOTS = TRUST_CHUNK_BYTES // TRUST_SLOT_BYTES


cdef void trust_begin(Map *map) noexcept nogil:
    if map.trust == NULL:
        map.trust = <Trust *>calloc(map.bytes // TRUST_CHUNK_BYTES + 1, sizeof(Trust))


cdef uint64_t _trusted_to(const Map *map, uint64_t offset, uint64_t now_ns) noexcept nogil:
    """Where what is believed from `offset` on ends, at the latest with the chunk; 0: nothing is."""
    cdef uint64_t slot = offset // TRUST_SLOT_BYTES, word
    cdef const Trust *trust = &map.trust[offset // TRUST_CHUNK_BYTES]
    cdef uint32_t at = <uint32_t>(slot % CHUNK_SLOTS), first = at
    if now_ns - trust.since_ns >= TRUST_NS:
        return 0
    while at < CHUNK_SLOTS:
        word = trust.slots[at // WORD_BITS] >> at % WORD_BITS
        if word == <uint64_t>-1 >> at % WORD_BITS:
            at += WORD_BITS - at % WORD_BITS
            continue
        while word & 1:
            word >>= 1
            at += 1
        break
    return (slot + at - first) * TRUST_SLOT_BYTES if at > first else 0


cdef void _believe(const Map *map, uint64_t first, uint64_t end, uint64_t now_ns) noexcept nogil:
    """Mark the frame of bytes first .. end - 1. The slot that its header begins in may hold the start of a record before it: not that one."""
    cdef uint64_t slot = (first + TRUST_SLOT_BYTES - 1) // TRUST_SLOT_BYTES, last = (end - 1) // TRUST_SLOT_BYTES, upto
    cdef uint64_t mask
    cdef Trust *trust
    while slot <= last:
        trust = &map.trust[slot // CHUNK_SLOTS]
        if now_ns - trust.since_ns >= TRUST_NS:
            memset(trust, 0, sizeof(Trust))
            trust.since_ns = now_ns
        upto = min(last, slot | (WORD_BITS - 1))
        mask = <uint64_t>-1 >> (WORD_BITS - 1 - (upto - slot)) << slot % WORD_BITS
        trust.slots[slot % CHUNK_SLOTS // WORD_BITS] |= mask
        slot = upto + 1


cdef const frame_header *_frame_around(const Map *map, uint64_t offset) noexcept nogil:
    """The sound frame whose entries hold the byte at `offset`; NULL: there is none."""
    cdef const frame_header *frame
    cdef uint64_t at
    if offset % 8 or offset < FRAME_HEADER_BYTES:
        return NULL
    at = offset - FRAME_HEADER_BYTES
    while True:
        frame = <const frame_header *>(map.base + at)
        if frame.magic == FRAME_MAGIC and frame.position == map.first_position + at and frame_check(frame, map.bytes - at) == FRAME_VALID:
            break
        if at == 0:
            return NULL
        at -= 8
    if frame.type != FRAME_APPEND or frame.shard != map.shard or frame.length <= offset - at:
        return NULL    # it ends before: the header of the record's own frame is damaged
    return frame


cdef bint log_verified(const Map *map, uint64_t position, uint64_t now_ns, uint64_t *end) noexcept nogil:
    cdef uint64_t offset = position - map.first_position, upto
    cdef const frame_header *frame
    if map.trust != NULL:
        upto = _trusted_to(map, offset, now_ns)
        if upto != 0:
            end[0] = map.first_position + upto
            return True
    frame = _frame_around(map, offset)
    if frame == NULL:
        return False
    if map.trust != NULL:
        upto = <uint64_t>(<const uint8_t *>frame - map.base)
        _believe(map, upto, upto + frame.length, now_ns)
    end[0] = frame.position + frame.length
    return True


cdef struct Look:
    const Map *map
    uint64_t position, end
    bint sound


cdef int _look(void *argument) noexcept nogil:
    cdef Look *look = <Look *>argument
    look.sound = log_verified(look.map, look.position, clock_mono_ns(), &look.end)
    return 0


cdef bint log_sound(Map *map, uint64_t position) noexcept nogil:
    cdef Look look
    trust_begin(map)
    look.map, look.position = map, position
    return guarded_call(_look, &look) == 0 and look.sound


cdef class LogFile:
    """One log file in a buffer that stays the caller's to change; for tests."""

    cdef Map map
    cdef const uint8_t[::1] content

    def __cinit__(self, const uint8_t[::1] content not None, uint64_t first_position=0, uint64_t shard=0):
        memset(&self.map, 0, sizeof(Map))
        self.content = content
        self.map.base, self.map.bytes = &content[0], <uint64_t>content.shape[0]
        self.map.first_position, self.map.shard = first_position, shard
        trust_begin(&self.map)

    def __dealloc__(self):
        free(self.map.trust)

    def verified(self, uint64_t position, uint64_t now_ns):
        """Return before which position records that begin from here on are sound, None when this one is not."""
        cdef uint64_t end = 0
        if not self.map.first_position <= position < self.map.first_position + self.map.bytes:
            raise ValueError("no byte of this file")
        return end if log_verified(&self.map, position, now_ns, &end) else None
