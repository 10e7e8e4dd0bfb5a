"""What has changed since which checkpoint (see changes.pxd)."""

from libc.stdlib cimport calloc, free
from libc.string cimport memset


cdef int changes_open(Changes *changes, uint64_t topics_max) noexcept nogil:
    memset(changes, 0, sizeof(Changes))
    changes.now = 1
    changes.stamps = <uint32_t *>calloc(topics_max, sizeof(uint32_t))
    return 0 if changes.stamps != NULL and changes_shards(changes, topics_max, 1) == 0 else -1


cdef int changes_shards(Changes *changes, uint64_t topics_max, uint32_t shards) noexcept nogil:
    cdef uint64_t *lows = <uint64_t *>calloc(topics_max * shards, sizeof(uint64_t))
    if lows == NULL:
        return -1
    free(changes.lows)
    changes.lows, changes.shards = lows, shards
    return 0


cdef void changes_close(Changes *changes) noexcept nogil:
    free(changes.stamps)
    free(changes.lows)
    changes.stamps = NULL
    changes.lows = NULL


cdef void changes_before(Changes *changes, void *core, uint32_t slot) noexcept nogil:
    if changes.loading:
        return
    if changes.taking and changes.at <= slot < changes.end:
        changes.before(core, slot)
    changes.stamps[slot] = changes.now
