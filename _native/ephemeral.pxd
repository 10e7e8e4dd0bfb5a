# Memory of ephemeral topics: frames in one shared region that the arbiter made, in chunks by topic (ARCHITECTURE section 4.5).
#
# The writer allocates and frees; workers read frames by the positions in the tail index. A chunk is freed, and its pages given
# back, when the topic's earliest seq has passed its last one; a worker that was copying from it looks at `earliest` again after
# the copy and throws the copy away. Chunks are powers of two, 4 KiB to 128 MiB, in free lists by size, never merged: the region is
# a sparse multiple of the budget, and what counts against the budget is bytes in use.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from topicsd._native.regions cimport Regions

cdef struct Chunk:
    uint64_t offset
    uint64_t bytes
    uint64_t used
    uint64_t last_seq
    Chunk *next

cdef struct ChunkList:
    Chunk *oldest
    Chunk *newest

cdef struct Arena:
    uint64_t high                # first byte of the region that was never used
    uint64_t bytes_max           # the budget
    uint64_t bytes_used
    Chunk *free_chunks[16]       # class n: 4 KiB << n

cdef void arena_reset(Arena *arena, uint64_t bytes_max) noexcept nogil
cdef int arena_put(Arena *arena, Regions *regions, ChunkList *chunks, const void *frame, uint32_t frame_bytes, uint64_t last_seq,
                   uint64_t *offset) noexcept nogil    # 0, or -1 when the budget is used up
cdef void arena_trim(Arena *arena, Regions *regions, ChunkList *chunks, uint64_t earliest) noexcept nogil
cdef void arena_drop(Arena *arena, Regions *regions, ChunkList *chunks) noexcept nogil
