# Answers as bytes: a growing buffer, numbers two digits at a time, and the few JSON objects of the hot routes.
#
#   buffer   [ used ............ | room to write ...... ]   bytes .. bytes + room
#
# Writers take a place with room behind it and return the place after what they wrote, so a body is built without a bound check a byte:
# reserve the upper bound first (`*_BYTES_MAX`), write, then set `used`. Nothing is ever parsed again: node, tag, meta and data are spliced
# as they are stored (layout.h, struct record_entry).
#
# Owner: one thread. Nothing here is shared. A buffer keeps its memory between answers; `buffer_shrink` gives back a large one.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, strlen

from topicsd._native.layout cimport record_entry, topic_config

cdef enum:
    RECORD_BYTES_MAX = 160        # of a record beside its payload: names, punctuation, two numbers
    CONFIG_BYTES_MAX = 1024       # 17 members, a dead letter name of 255 bytes included
    TOMBSTONE_BYTES_MAX = 320
    PERFORMANCE_BYTES_MAX = 256
    BUFFER_KEPT_BYTES_MAX = 2 << 20

cdef struct Buffer:
    uint8_t *bytes
    uint64_t used, room

cdef struct AppendAnswer:
    const char *topic
    uint32_t topic_bytes
    uint64_t first_seq, count, head
    bint created, deduped, body_differs, return_seqs
    uint64_t total_us, wal_us, fsync_us, parked_us

cdef struct Tombstone:
    uint64_t gap_from, gap_to
    uint64_t earliest, head
    uint32_t reason               # enum loss_reason; 0: there is none

cdef struct RecordText:           # the head of the last record: seqs share all but two digits, a batch shares its ts. Zeroed at first
    uint64_t hundreds, ts
    uint32_t seq_count, ts_count
    uint8_t seq[32]               # `{"$seq":` and seq // 100; all 32 are copied (a known length costs no call), seq_count of them count
    uint8_t time[32]              # `,"$ts":1748450000000`, likewise

cdef int buffer_grow(Buffer *buffer, uint64_t bytes) noexcept nogil              # room for `bytes` more; 0 or -ENOMEM
cdef void buffer_shrink(Buffer *buffer) noexcept nogil
cdef void buffer_free(Buffer *buffer) noexcept nogil
cdef uint8_t *put_u64(uint8_t *at, uint64_t value) noexcept nogil                # at most 20 bytes
cdef uint8_t *put_i64(uint8_t *at, int64_t value) noexcept nogil
cdef uint8_t *put_ms(uint8_t *at, uint64_t us) noexcept nogil                    # microseconds as milliseconds: 0.0, 1.250
# One record as A §3 shows it, no comma behind it; needs RECORD_BYTES_MAX and the payload of room. The entry must have been checked.
cdef uint8_t *put_record(uint8_t *at, RecordText *text, uint64_t seq, uint64_t ts, const record_entry *entry, bint tags, bint data,
                         bint meta) noexcept nogil
cdef uint8_t *put_tombstone(uint8_t *at, const Tombstone *tombstone) noexcept nogil
cdef uint8_t *put_config(uint8_t *at, const topic_config *config, const char *dead_letter, uint32_t dead_letter_bytes) noexcept nogil
cdef int render_append(Buffer *buffer, const AppendAnswer *answer) noexcept nogil    # the answer of A §2; 0 or -ENOMEM
cdef const char *reason_name(uint32_t reason) noexcept nogil


cdef inline int buffer_need(Buffer *buffer, uint64_t bytes) noexcept nogil:
    return 0 if buffer.room - buffer.used >= bytes else buffer_grow(buffer, bytes)


cdef inline uint8_t *put_bytes(uint8_t *at, const void *source, uint64_t count) noexcept nogil:
    memcpy(at, source, count)
    return at + count


cdef inline uint8_t *put_text(uint8_t *at, const char *text) noexcept nogil:
    return put_bytes(at, text, strlen(text))    # a literal's length is a constant once this is inlined


cdef inline uint8_t *put_bool(uint8_t *at, bint value) noexcept nogil:
    return put_text(at, b"true") if value else put_text(at, b"false")
