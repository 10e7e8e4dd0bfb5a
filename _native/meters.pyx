"""Counters of requests in shared memory (page of truth: meters.pxd)."""

from libc.errno cimport errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport strerror

from topicsd._native.atomics cimport load_relaxed_64, store_relaxed_64
from topicsd._native.regions cimport Shared

cdef extern from "ring.h" nogil:
    void *map_sparse(uint64_t bytes, int in_dumps)

cdef extern from "sys/mman.h" nogil:
    int munmap(void *at, size_t bytes)

BUCKETS, OPERATIONS, LIMITS = METER_BUCKETS, METER_OPERATIONS, METER_LIMITS


cdef class Meters:
    """Hold a line of counters for each ring slot."""

    def __init__(self, uint32_t ring_slots):
        self.ring_slots = ring_slots
        self.lines = <MeterLine *>map_sparse(ring_slots * sizeof(MeterLine), False)
        if self.lines == NULL:
            raise OSError(errno, f"cannot map the meters: {strerror(errno).decode()}")

    def __dealloc__(self):
        if self.lines != NULL:
            munmap(self.lines, self.ring_slots * sizeof(MeterLine))

    cdef MeterLine *line(self, uint32_t ring) except NULL:
        if ring >= self.ring_slots:
            raise IndexError(f"ring slot {ring}, at most {self.ring_slots - 1}")
        return &self.lines[ring]

    def request(self, uint32_t ring, uint32_t operation, uint32_t status, uint64_t us):
        meter_request(self.line(ring), operation, status, us)

    def lag(self, uint32_t ring, uint64_t us):
        cdef MeterLine *line = self.line(ring)
        meter_add(&line.lag_us[meter_bucket(us)], 1)
        meter_add(&line.lag_us_sum, us)

    def limit(self, uint32_t ring, uint32_t which):
        if which >= METER_LIMITS:
            raise IndexError(f"limit {which}, at most {METER_LIMITS - 1}")
        meter_add(&self.line(ring).limits[which], 1)

    def message(self, uint32_t ring, bint out):
        cdef MeterLine *line = self.line(ring)
        meter_add(&line.ws_messages_out if out else &line.ws_messages_in, 1)

    def sockets(self, uint32_t ring, uint64_t count):
        store_relaxed_64(&self.line(ring).ws_connections, count)

    def pressed(self, uint32_t ring, uint64_t level, uint64_t behind_ms, uint64_t feed_waiting):
        cdef MeterLine *line = self.line(ring)
        store_relaxed_64(&line.pressure, level)
        store_relaxed_64(&line.behind_ms, behind_ms)
        store_relaxed_64(&line.feed_waiting, feed_waiting)

    def parked(self, uint32_t ring, uint64_t us):
        cdef MeterLine *line = self.line(ring)
        meter_add(&line.parked, 1)
        meter_add(&line.parked_us_sum, us)

    @property
    def pressure(self):
        cdef uint32_t n
        cdef uint64_t most = 0
        for n in range(self.ring_slots):
            most = max(most, load_relaxed_64(&self.lines[n].pressure))
        return most

    def bury(self, uint32_t ring):
        self.sockets(ring, 0)
        self.pressed(ring, 0, 0, 0)

    def totals(self):
        """Sum all lines."""
        cdef uint32_t n, place, status
        cdef MeterLine *line
        request = [0] * METER_BUCKETS
        lag = [0] * METER_BUCKETS
        operations = [[0] * 6 for _ in range(METER_OPERATIONS)]
        limits = [0] * METER_LIMITS
        sums = dict.fromkeys(("request_us_sum", "lag_us_sum", "ws_messages_in", "ws_messages_out", "ws_connections", "feed_waiting", "parked",
                              "parked_us_sum", "behind_ms", "pressure"), 0)
        for n in range(self.ring_slots):
            line = &self.lines[n]
            for place in range(METER_BUCKETS):
                request[place] += load_relaxed_64(&line.request_us[place])
                lag[place] += load_relaxed_64(&line.lag_us[place])
            for place in range(METER_OPERATIONS):
                for status in range(6):
                    operations[place][status] += load_relaxed_64(&line.operations[place][status])
            for place in range(METER_LIMITS):
                limits[place] += load_relaxed_64(&line.limits[place])
            sums["request_us_sum"] += load_relaxed_64(&line.request_us_sum)
            sums["lag_us_sum"] += load_relaxed_64(&line.lag_us_sum)
            sums["ws_messages_in"] += load_relaxed_64(&line.ws_messages_in)
            sums["ws_messages_out"] += load_relaxed_64(&line.ws_messages_out)
            sums["ws_connections"] += load_relaxed_64(&line.ws_connections)
            sums["feed_waiting"] += load_relaxed_64(&line.feed_waiting)
            sums["parked"] += load_relaxed_64(&line.parked)
            sums["parked_us_sum"] += load_relaxed_64(&line.parked_us_sum)
            sums["pressure"] = max(sums["pressure"], load_relaxed_64(&line.pressure))
            sums["behind_ms"] = max(sums["behind_ms"], load_relaxed_64(&line.behind_ms))
        return {"request_us": request, "lag_us": lag, "operations": operations, "limits": limits, **sums}


def ring_depths(Shared shared not None):
    """Count, a ring slot, the requests that the writer has not taken yet."""
    cdef uint32_t n
    cdef int64_t depth
    depths = []
    for n in range(shared.r.ring_slots):
        depth = <int64_t>(load_relaxed_64(&shared.r.rings[n].tail) - load_relaxed_64(&shared.r.rings[n].head))
        depths.append(max(depth, 0))
    return depths
