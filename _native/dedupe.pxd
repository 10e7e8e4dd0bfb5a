# Idempotency windows: key -> the seqs it was given, one window a topic, in the writer's own memory (A §0.8).
#
#   fifo     entries in order of arrival; expiry pops from the left, O(1) a write, no timer
#   buckets  open addressing on the key's XXH3; a bucket holds the entry's place in the fifo + 1; keys are compared whole
#
# An entry is `pending` from the moment its batch is sequenced until it is published; a batch that fails is forgotten.
# Times are monotonic milliseconds: a step of the wall clock neither shortens nor lengthens a window.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef struct DedupeEntry:
    uint64_t hash
    uint64_t first_seq
    uint64_t records_xxh3
    int64_t arrived_ms
    uint32_t count
    uint16_t key_bytes
    uint8_t pending
    uint8_t dead          # forgotten, still in the fifo
    uint8_t *key

cdef struct Dedupe:
    DedupeEntry *fifo     # a power of two; place = number & fifo_mask
    uint64_t fifo_mask
    uint64_t first, end   # numbers of the oldest entry and of the next one
    uint64_t live
    uint64_t *buckets     # 0 empty, else number + 1
    uint64_t bucket_mask
    uint64_t used

cdef Dedupe *dedupe_new() noexcept nogil
cdef void dedupe_free(Dedupe *dedupe) noexcept nogil
cdef void dedupe_expire(Dedupe *dedupe, int64_t now_ms, uint64_t window_ms) noexcept nogil
cdef DedupeEntry *dedupe_find(Dedupe *dedupe, const uint8_t *key, uint16_t key_bytes, int64_t now_ms, uint64_t window_ms) noexcept nogil
cdef DedupeEntry *dedupe_add(Dedupe *dedupe, const uint8_t *key, uint16_t key_bytes, uint64_t records_xxh3, uint64_t first_seq,
                             uint32_t count, int64_t arrived_ms) noexcept nogil    # NULL when memory is short
cdef void dedupe_forget(Dedupe *dedupe, DedupeEntry *entry) noexcept nogil
