from libc.stdlib cimport calloc
from libc.string cimport memcpy, memset

from topicsd._native.atomics cimport store_relaxed_64

cdef extern from "<sys/mman.h>" nogil:
    int madvise(void *address, size_t length, int advice)
    const int MADV_REMOVE

cdef enum:
    CLASSES = 16
    CLASS_SHIFT = 12
    GROWTH_MAX = 1 << 20    # chunks grow with their topic up to here; a larger batch gets a chunk of its own size


cdef void arena_reset(Arena *arena, uint64_t bytes_max) noexcept nogil:
    memset(arena, 0, sizeof(Arena))
    arena.bytes_max = bytes_max


cdef int _class_of(uint64_t bytes) noexcept nogil:
    cdef int number = 0
    while number < CLASSES and (<uint64_t>1 << (CLASS_SHIFT + number)) < bytes:
        number += 1
    return number


cdef Chunk *_take(Arena *arena, Regions *regions, uint64_t bytes) noexcept nogil:
    cdef int number = _class_of(bytes)
    cdef uint64_t size
    cdef Chunk *chunk
    if number >= CLASSES:
        return NULL
    size = <uint64_t>1 << (CLASS_SHIFT + number)
    if arena.bytes_used + size > arena.bytes_max:
        return NULL
    chunk = arena.free_chunks[number]
    if chunk != NULL:
        arena.free_chunks[number] = chunk.next
    else:
        if arena.high + size > regions.ephemeral_bytes:
            return NULL
        chunk = <Chunk *>calloc(1, sizeof(Chunk))
        if chunk == NULL:
            return NULL
        chunk.offset = arena.high
        chunk.bytes = size
        arena.high += size
    chunk.used = 0
    chunk.last_seq = 0
    chunk.next = NULL
    arena.bytes_used += size
    store_relaxed_64(&regions.control.ephemeral_bytes, arena.bytes_used)
    return chunk


cdef void _give_back(Arena *arena, Regions *regions, Chunk *chunk) noexcept nogil:
    cdef int number = _class_of(chunk.bytes)
    madvise(regions.ephemeral + chunk.offset, chunk.bytes, MADV_REMOVE)
    arena.bytes_used -= chunk.bytes
    store_relaxed_64(&regions.control.ephemeral_bytes, arena.bytes_used)
    chunk.next = arena.free_chunks[number]
    arena.free_chunks[number] = chunk


cdef int arena_put(Arena *arena, Regions *regions, ChunkList *chunks, const void *frame, uint32_t frame_bytes, uint64_t last_seq,
                   uint64_t *offset) noexcept nogil:
    cdef Chunk *chunk = chunks.newest
    cdef uint64_t wanted
    if chunk == NULL or chunk.used + frame_bytes > chunk.bytes:
        wanted = 4096 if chunk == NULL else min(chunk.bytes * 2, <uint64_t>GROWTH_MAX)
        chunk = _take(arena, regions, max(wanted, <uint64_t>frame_bytes))
        if chunk == NULL and wanted > frame_bytes:
            chunk = _take(arena, regions, frame_bytes)    # near the budget's end a smaller chunk may still fit
        if chunk == NULL:
            return -1
        if chunks.newest == NULL:
            chunks.oldest = chunk
        else:
            chunks.newest.next = chunk
        chunks.newest = chunk
    offset[0] = chunk.offset + chunk.used
    memcpy(regions.ephemeral + offset[0], frame, frame_bytes)
    chunk.used += frame_bytes
    chunk.last_seq = max(chunk.last_seq, last_seq)    # a copy that was moved here comes late (log_pins.pxd)
    return 0


cdef void arena_trim(Arena *arena, Regions *regions, ChunkList *chunks, uint64_t earliest) noexcept nogil:
    cdef Chunk *chunk
    while chunks.oldest != NULL and chunks.oldest.last_seq < earliest:
        chunk = chunks.oldest
        chunks.oldest = chunk.next
        if chunks.oldest == NULL:
            chunks.newest = NULL
        _give_back(arena, regions, chunk)


cdef void arena_drop(Arena *arena, Regions *regions, ChunkList *chunks) noexcept nogil:
    arena_trim(arena, regions, chunks, <uint64_t>-1)
