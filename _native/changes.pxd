# What has changed since which checkpoint (ARCHITECTURE section 5), and what one that is being taken has still to see.
#
#   stamp of a slot    number of the first checkpoint that will hold its last change; 0 never used
#   touch(core, slot)  before every change of what a snapshot keeps of a topic: its row, its jobs, its routers' notes
#
# A checkpoint is one moment, and is packed afterwards, slice by slice (taking.pxd): from the moment on `now` is the next number, and a slot that has
# not been packed yet is packed by the touch that comes before its first change. So every row is as it was at the moment, and replay needs no rule for
# frames that a row knows already. Only slots whose stamp is above `parent` are packed: an older snapshot has the others as they are.
#
# `lows`: by slot and shard the lowest log position that the topic's entries and notes point at, as of its last row; inverted, so that 0 is none.
#
# One thread, the writer's. The checkpoint thread reads stamps to see how much there will be to pack: a stale one only makes its guess worse.
from libc.stdint cimport uint32_t, uint64_t

cdef struct Changes:
    uint32_t *stamps
    uint64_t *lows
    uint32_t shards
    uint32_t now                  # the next checkpoint's number
    bint loading                  # a snapshot's rows come back: they keep its stamp
    bint taking
    uint32_t parent               # of the one that is being taken
    uint64_t at, end              # slots it has still to see
    void *taker
    void (*before)(void *core, uint32_t slot) noexcept nogil

cdef int changes_open(Changes *changes, uint64_t topics_max) noexcept nogil        # 0, -1: memory is short
cdef void changes_close(Changes *changes) noexcept nogil
cdef int changes_shards(Changes *changes, uint64_t topics_max, uint32_t shards) noexcept nogil
cdef void changes_before(Changes *changes, void *core, uint32_t slot) noexcept nogil
