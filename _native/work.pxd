# A worker's side of queues: commands into the ring (queue_wire.h), answers into JSON.
#
#   claim request -> encode -> ring -> [queue_core] -> completion: seqs, tokens, deliveries -> records from the index, as diff reads them -> JSON
#
# The writer says which jobs are granted; their bytes never go through it. A job whose record has gone between grant and rendering (its ttl, a
# cap, a delete) is left out of the answer. One whose bytes are damaged is left out and reported: the writer takes it out (lost_jobs.pxd).
#
# Owner: the worker's event loop thread. Nothing here is shared memory of its own.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from topicsd._native.diff cimport ReaderCore
from topicsd._native.render cimport Buffer

cdef enum:
    JOB_TEXT_MAX = 160    # of a job beside its record: lease id, deadline, deliveries
    UNREADABLE_MAX = 1024

cdef struct Unreadable:   # a job whose bytes are damaged, by what its reader finds
    uint64_t topic_id, seq
    uint32_t slot

# Hand what put_job could not read to whoever `report_unreadable` named: after each answer, with the GIL.
cdef int tell_unreadable() except -1
# Append one job to `out`: READ_OK (nothing appended and `gone` set: its record is not there), or another READ_*.
cdef int put_job(ReaderCore *reader, uint32_t slot, uint64_t topic_id, uint64_t seq, uint64_t token, uint64_t deliveries, uint64_t deadline,
                 uint64_t now_ms, Buffer *out, bint *gone) noexcept nogil
cdef const uint8_t *take_leb(const uint8_t *at, const uint8_t *end, uint64_t *value) noexcept nogil     # NULL: it is cut short
