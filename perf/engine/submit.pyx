# cython: language_level=3
"""A worker without HTTP: scan a body, encode it into the ring, take the answers; all in one loop without the GIL.

The same functions that the native front calls: scan_write, submit_append, completion_next, ring_arm.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from topicsd._native.layout cimport completion
from topicsd._native.port cimport Port, submit_append
from topicsd._native.ring cimport RING_FULL, Ring, completion_done, completion_next, ring_arm
from topicsd._native.scan cimport Limits, WriteRequest, scan_write, write_free

cdef extern from "poll.h" nogil:
    cdef struct pollfd:
        int fd
        short events
        short revents
    int c_poll "poll" (pollfd *fds, unsigned long count, int timeout_ms)
    const short POLLIN

cdef extern from "ring.h" nogil:
    void quiet_bell(int fd)


cdef inline uint64_t now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <uint64_t>now.tv_sec * 1000000000 + <uint64_t>now.tv_nsec


cdef struct Flight:
    uint64_t token
    uint64_t at_ns


def run(Port port not None, uint32_t slot, uint64_t topic_id, bytes body not None, Limits limits not None, uint32_t depth, double seconds):
    """Keep `depth` appends of `body` in flight for so long; scan the body anew for each.

    Returns (batches answered, records, refused, seconds, latencies in ns: each 16th). One thread; sleeps on the port's bell when all are in flight.
    """
    cdef Ring *ring = port.ring
    cdef const uint8_t *text = body
    cdef size_t length = len(body)
    cdef WriteRequest request
    cdef completion answer
    cdef const uint8_t *payload
    cdef uint64_t token = 0, done = 0, refused = 0, records = 0, sent = 0, started, until, now
    cdef uint32_t in_flight = 0, kept = 0, kept_max = 1 << 20
    cdef uint64_t *at = <uint64_t *>calloc(1 << 16, 8)      # by token: when it was sent
    cdef uint64_t *took = <uint64_t *>calloc(kept_max, 8)
    cdef pollfd bell
    cdef int wrong = 0
    cdef bint full
    bell.fd = ring.bell_fd
    bell.events = POLLIN
    memset(&request, 0, sizeof(request))
    with nogil:
        started = now_ns()
        until = started + <uint64_t>(seconds * 1e9)
        now = started
        while True:
            full = False
            while in_flight < depth and now < until:
                wrong = scan_write(text, length, &limits.limits, &request)
                if wrong == 0:
                    wrong = submit_append(ring, slot, topic_id, &request, NULL, 0, &token)
                if wrong == RING_FULL:
                    full = True
                    wrong = 0
                    break
                if wrong:
                    break
                at[token & 0xFFFF] = now_ns()
                in_flight += 1
                sent += 1
            if wrong:
                break
            now = now_ns()
            while completion_next(ring, &answer, &payload):
                in_flight -= 1
                done += 1
                if answer.status:
                    refused += 1
                else:
                    records += answer.count
                if (done & 15) == 0 and kept < kept_max:
                    took[kept] = now - at[answer.token & 0xFFFF]
                    kept += 1
                completion_done(ring)
            if now >= until and in_flight == 0:
                break
            if in_flight >= depth or full or now >= until:
                quiet_bell(ring.bell_fd)
                if ring_arm(ring):
                    bell.revents = 0
                    c_poll(&bell, 1, 1000)
        now = now_ns()
        write_free(&request)
    latencies = [took[n] for n in range(kept)]
    free(at)
    free(took)
    if wrong:
        raise RuntimeError(f"the scanner or the ring refused: {wrong}")
    return done, records, refused, (now - started) / 1e9, latencies
