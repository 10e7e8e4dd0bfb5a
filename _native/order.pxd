# All topic names in byte order, in shared memory: two levels of sorted arrays of slots.
#
#   0                4096                          then blocks of 4 KiB
#   | OrderHeader    | u32 block | u32 block | ... | count, slot, slot, ... (at most 1022) | ...
#
# word               written by  order                                        a stale read means
# version            writer      odd first (release fence), even with release the step is made again
# all else           writer      inside the lock                              thrown away: a step counts between two equal even versions
# a slot's name      table.pyx   a name stands as long as its slot is listed  nothing
#
# The caller inserts after table_insert and removes before table_remove. A reader trusts no number: blocks, counts and slots are held
# against their bounds before they are followed. Owner: the writer; a new one calls order_reset.
from libc.stdint cimport uint32_t, uint64_t

from topicsd._native.regions cimport Regions

cdef enum:
    ORDER_HEADER_BYTES = 4096
    ORDER_BLOCK_BYTES = 4096
    ORDER_BLOCK_SLOTS = 1022
    ORDER_FILL = 766               # slots a block by order_build, and the most that two blocks may have to become one

cdef struct OrderHeader:
    uint64_t version
    uint32_t blocks                # in the directory
    uint32_t blocks_high           # ever used
    uint32_t free_block            # block + 1, linked through the first word
    uint32_t names

# ---- the writer
cdef void order_reset(Regions *regions) noexcept nogil
cdef int order_build(Regions *regions) noexcept nogil                              # 0, -ENOMEM
cdef int order_insert(Regions *regions, uint32_t slot) noexcept nogil              # 0, -ENOMEM when the region is full
cdef void order_remove(Regions *regions, uint32_t slot) noexcept nogil

# ---- any process
# The next slot in name order behind `after` (or at it, if `inclusive`); NO_SLOT at the end, or when the writer died in a change.
cdef uint32_t order_next(const Regions *regions, const char *after, uint32_t after_bytes, bint inclusive) noexcept nogil
