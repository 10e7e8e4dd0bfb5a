# The effective priority of a topic (D §3.1), in integers: a table of 64 steps of 2^-x and linear interpolation between them.
#
#   2^-(elapsed / half life) = POWERS[64 x mod 64] >> floor(x),  x = elapsed / half life
#
# The interpolation is off by at most (ln 2 / 64)^2 / 8 = 1.5e-5 of the value: below one part of AUTO_MAX. A manual priority overrides the
# automatic term altogether (CLARIFICATIONS, Topics). The age term is the scheduler's: it exists only while a topic waits.
# Nothing here is shared: `last_read_ms` is read relaxed by the caller, and one that is late by a store changes a hint.
from libc.stdint cimport int32_t, uint64_t

from topicsd._native.layout cimport topic_config

cdef enum:
    PRIORITY_MAX = 1000
    AUTO_MAX = 500
    HALF_LIFE_MS = 30000
    AUTO_FLOOR_MS = 300000    # untouched for so long: 0, skip the math

cdef uint64_t halved(uint64_t value, uint64_t elapsed_ms) noexcept nogil
cdef int32_t effective_priority(const topic_config *config, uint64_t last_read_ms, uint64_t now_ms) noexcept nogil
