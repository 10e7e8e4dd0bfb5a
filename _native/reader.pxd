# The Python face of the read path: one object a thread, holding its maps and its buffers (diff.pxd, state.pxd, maps.pxd).
#
# Owner: one thread at a time; `diff` runs without the GIL and refuses a second caller. The native front reads through the same core.
# Nothing here is shared memory of its own.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from topicsd._native.diff cimport DiffResult, ReaderCore
from topicsd._native.regions cimport Shared
from topicsd._native.render cimport Buffer
from topicsd._native.scan cimport Diff
from topicsd._native.state cimport State

cdef class Reader:

    cdef ReaderCore core
    cdef Buffer out
    cdef readonly Shared shared
    cdef bint busy                     # a thread is inside `diff` without the GIL

    cdef int read(self, uint32_t slot, uint64_t now_ms, State *out) except -1
    cdef bytes page(self, uint32_t slot, Diff request, uint64_t now_ms, uint64_t started_ns, uint64_t topic_id, DiffResult *result)
