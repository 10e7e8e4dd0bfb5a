from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from topicsd._native.hash cimport xxh3_64

cdef enum:
    FIFO_FIRST = 16


cdef Dedupe *dedupe_new() noexcept nogil:
    cdef Dedupe *dedupe = <Dedupe *>calloc(1, sizeof(Dedupe))
    if dedupe == NULL:
        return NULL
    dedupe.fifo = <DedupeEntry *>calloc(FIFO_FIRST, sizeof(DedupeEntry))
    dedupe.buckets = <uint64_t *>calloc(FIFO_FIRST * 2, sizeof(uint64_t))
    dedupe.fifo_mask = FIFO_FIRST - 1
    dedupe.bucket_mask = FIFO_FIRST * 2 - 1
    if dedupe.fifo == NULL or dedupe.buckets == NULL:
        dedupe_free(dedupe)
        return NULL
    return dedupe


cdef void dedupe_free(Dedupe *dedupe) noexcept nogil:
    cdef uint64_t number
    if dedupe == NULL:
        return
    if dedupe.fifo != NULL:
        for number in range(dedupe.first, dedupe.end):
            free(dedupe.fifo[number & dedupe.fifo_mask].key)
    free(dedupe.fifo)
    free(dedupe.buckets)
    free(dedupe)


cdef inline DedupeEntry *_at(Dedupe *dedupe, uint64_t number) noexcept nogil:
    return &dedupe.fifo[number & dedupe.fifo_mask]


cdef void _place(Dedupe *dedupe, uint64_t number) noexcept nogil:
    cdef uint64_t bucket = _at(dedupe, number).hash & dedupe.bucket_mask
    while dedupe.buckets[bucket] != 0:
        bucket = (bucket + 1) & dedupe.bucket_mask
    dedupe.buckets[bucket] = number + 1
    dedupe.used += 1


cdef void _unplace(Dedupe *dedupe, uint64_t number) noexcept nogil:
    # Linear probing without tombstones: close the hole by moving later members of the run back (Knuth 6.4 R).
    cdef uint64_t hole = _at(dedupe, number).hash & dedupe.bucket_mask
    cdef uint64_t bucket, home
    while dedupe.buckets[hole] != number + 1:
        hole = (hole + 1) & dedupe.bucket_mask
    bucket = hole
    while True:
        bucket = (bucket + 1) & dedupe.bucket_mask
        if dedupe.buckets[bucket] == 0:
            break
        home = _at(dedupe, dedupe.buckets[bucket] - 1).hash & dedupe.bucket_mask
        if ((bucket - home) & dedupe.bucket_mask) >= ((bucket - hole) & dedupe.bucket_mask):
            dedupe.buckets[hole] = dedupe.buckets[bucket]
            hole = bucket
    dedupe.buckets[hole] = 0
    dedupe.used -= 1


cdef int _grow(Dedupe *dedupe) noexcept nogil:
    cdef uint64_t size = (dedupe.fifo_mask + 1) * 2
    cdef uint64_t number
    cdef DedupeEntry *fifo = <DedupeEntry *>calloc(size, sizeof(DedupeEntry))
    cdef uint64_t *buckets = <uint64_t *>calloc(size * 2, sizeof(uint64_t))
    if fifo == NULL or buckets == NULL:
        free(fifo)
        free(buckets)
        return -1
    for number in range(dedupe.first, dedupe.end):
        fifo[number & (size - 1)] = _at(dedupe, number)[0]
    free(dedupe.fifo)
    free(dedupe.buckets)
    dedupe.fifo = fifo
    dedupe.fifo_mask = size - 1
    dedupe.buckets = buckets
    dedupe.bucket_mask = size * 2 - 1
    dedupe.used = 0
    for number in range(dedupe.first, dedupe.end):
        if not _at(dedupe, number).dead:
            _place(dedupe, number)
    return 0


cdef void dedupe_expire(Dedupe *dedupe, int64_t now_ms, uint64_t window_ms) noexcept nogil:
    cdef DedupeEntry *entry
    while dedupe.first != dedupe.end:
        entry = _at(dedupe, dedupe.first)
        if not entry.dead:
            if entry.pending or now_ms - entry.arrived_ms <= <int64_t>min(window_ms, <uint64_t>0x7FFFFFFFFFFFFFFF):
                return
            _unplace(dedupe, dedupe.first)
            dedupe.live -= 1
        free(entry.key)
        memset(entry, 0, sizeof(DedupeEntry))
        dedupe.first += 1


cdef DedupeEntry *dedupe_find(Dedupe *dedupe, const uint8_t *key, uint16_t key_bytes, int64_t now_ms, uint64_t window_ms) noexcept nogil:
    cdef uint64_t hash = xxh3_64(key, key_bytes)
    cdef uint64_t bucket = hash & dedupe.bucket_mask
    cdef DedupeEntry *entry
    while dedupe.buckets[bucket] != 0:
        entry = _at(dedupe, dedupe.buckets[bucket] - 1)
        if entry.hash == hash and entry.key_bytes == key_bytes and memcmp(entry.key, key, key_bytes) == 0:
            if not entry.pending and now_ms - entry.arrived_ms > <int64_t>min(window_ms, <uint64_t>0x7FFFFFFFFFFFFFFF):
                return NULL    # out of its window, only not yet at the left end
            return entry
        bucket = (bucket + 1) & dedupe.bucket_mask
    return NULL


cdef DedupeEntry *dedupe_add(Dedupe *dedupe, const uint8_t *key, uint16_t key_bytes, uint64_t records_xxh3, uint64_t first_seq,
                             uint32_t count, int64_t arrived_ms) noexcept nogil:
    cdef DedupeEntry *entry
    cdef uint8_t *copy
    entry = dedupe_find(dedupe, key, key_bytes, 0, 0xFFFFFFFFFFFFFFF)
    if entry != NULL:
        dedupe_forget(dedupe, entry)    # the same key again after its window
    if dedupe.end - dedupe.first > dedupe.fifo_mask and _grow(dedupe) != 0:
        return NULL
    copy = <uint8_t *>malloc(key_bytes + 1)
    if copy == NULL:
        return NULL
    memcpy(copy, key, key_bytes)
    entry = _at(dedupe, dedupe.end)
    entry.hash = xxh3_64(key, key_bytes)
    entry.first_seq = first_seq
    entry.records_xxh3 = records_xxh3
    entry.arrived_ms = arrived_ms
    entry.count = count
    entry.key_bytes = key_bytes
    entry.pending = 0
    entry.dead = 0
    entry.key = copy
    dedupe.end += 1
    dedupe.live += 1
    _place(dedupe, dedupe.end - 1)
    return entry


cdef void dedupe_forget(Dedupe *dedupe, DedupeEntry *entry) noexcept nogil:
    cdef uint64_t bucket = entry.hash & dedupe.bucket_mask
    if entry.dead:
        return
    while dedupe.buckets[bucket] != 0:
        if _at(dedupe, dedupe.buckets[bucket] - 1) == entry:
            _unplace(dedupe, dedupe.buckets[bucket] - 1)
            entry.dead = 1
            dedupe.live -= 1
            return
        bucket = (bucket + 1) & dedupe.bucket_mask


cdef class Window:
    """Hold one topic's idempotency window for tests: keys, seqs, times in monotonic milliseconds (A §0.8)."""

    cdef Dedupe *dedupe

    def __cinit__(self):
        self.dedupe = dedupe_new()
        if self.dedupe == NULL:
            raise MemoryError

    def __dealloc__(self):
        dedupe_free(self.dedupe)

    def add(self, bytes key, uint64_t first_seq, uint32_t count, int64_t now_ms):
        """Remember that `key` was given `count` seqs from `first_seq`."""
        if dedupe_add(self.dedupe, <const uint8_t *><const char *>key, <uint16_t>len(key), 0, first_seq, count, now_ms) == NULL:
            raise MemoryError

    def find(self, bytes key, int64_t now_ms, uint64_t window_ms):
        """Return (first_seq, count), or None when the key is new or its window has passed."""
        cdef DedupeEntry *entry = dedupe_find(self.dedupe, <const uint8_t *><const char *>key, <uint16_t>len(key), now_ms, window_ms)
        return None if entry == NULL else (entry.first_seq, entry.count)

    def expire(self, int64_t now_ms, uint64_t window_ms):
        """Drop the entries at the old end whose window has passed."""
        dedupe_expire(self.dedupe, now_ms, window_ms)

    def forget(self, bytes key):
        """Drop one key, as a failed batch does."""
        cdef DedupeEntry *entry = dedupe_find(self.dedupe, <const uint8_t *><const char *>key, <uint16_t>len(key), 0, 0xFFFFFFFFFFFFFFF)
        if entry != NULL:
            dedupe_forget(self.dedupe, entry)

    def __len__(self):
        return self.dedupe.live
