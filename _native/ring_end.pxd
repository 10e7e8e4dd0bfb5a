# Both ends of a ring in Python, for tests and benches. No words of its own: see ring.pxd.
from libc.stdint cimport uint32_t, uint64_t

from topicsd._native.regions cimport Shared
from topicsd._native.ring cimport Ring

cdef class RingEnd:
    cdef Shared shared
    cdef Ring *ring

    cdef uint64_t round_trip(self, uint32_t size, uint32_t kind, bint spin) noexcept nogil
