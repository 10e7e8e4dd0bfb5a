# What workers count about requests, beside the counters of layout.h: a line a ring slot, in memory that outlives every worker.
#
#   lines    [ slot 0 | slot 1 | ... ]      meters.h: struct meter_line
#
# Counters of a dead worker stay in its line, and its successor in the slot counts on, so a sum over all lines never goes back. Gauges are
# cleared by the arbiter when it buries the worker.
#
# word         written by                       order      a stale read means
# counters     the worker that has the slot     relaxed    numbers of a moment ago
# gauges       that worker, then the arbiter    relaxed    the same
#
# The memory is MAP_SHARED, anonymous and sparse, made by the arbiter before any fork: the same address in every process.
from libc.stdint cimport uint32_t, uint64_t

from topicsd._native.atomics cimport load_relaxed_64, store_relaxed_64

cdef extern from "meters.h" nogil:
    const uint32_t METER_BUCKETS
    const uint32_t METER_OPERATIONS
    const uint32_t METER_LIMITS

    ctypedef struct MeterLine "struct meter_line":
        uint64_t request_us[24]
        uint64_t request_us_sum
        uint64_t lag_us[24]
        uint64_t lag_us_sum
        uint64_t operations[96][6]
        uint64_t limits[24]
        uint64_t ws_messages_in
        uint64_t ws_messages_out
        uint64_t ws_connections
        uint64_t pressure
        uint64_t behind_ms
        uint64_t feed_waiting
        uint64_t parked
        uint64_t parked_us_sum

cdef class Meters:
    cdef MeterLine *lines
    cdef readonly uint32_t ring_slots

    cdef MeterLine *line(self, uint32_t ring) except NULL


cdef inline void meter_add(uint64_t *word, uint64_t by) noexcept nogil:
    store_relaxed_64(word, load_relaxed_64(word) + by)      # one writer


cdef inline uint32_t meter_bucket(uint64_t us) noexcept nogil:
    # the first n with us <= 2^n
    cdef uint32_t n = 0
    while n < METER_BUCKETS - 1 and us > <uint64_t>1 << n:
        n += 1
    return n


cdef inline void meter_request(MeterLine *line, uint32_t operation, uint32_t status, uint64_t us) noexcept nogil:
    meter_add(&line.request_us[meter_bucket(us)], 1)
    meter_add(&line.request_us_sum, us)
    meter_add(&line.operations[operation if operation < METER_OPERATIONS else 0][min(status // 100, <uint32_t>5)], 1)
