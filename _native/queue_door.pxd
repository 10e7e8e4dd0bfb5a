# What the engine's Python does with queues: replay of lease frames, timers, dead letters on their way (topicsd/engine/queues.py).
#
# Same thread, same words, same rules as queue_core.pxd. Replay makes the same work state that the writer had, without its clock: a lease's
# deadline is counted from its frame's wall clock, and expiries are not in the log; `open_queues` lets everything end that is due.
#
# A snapshot's row (section "jobs"): struct jobs_row, then a struct job_row for each job that is known one by one.
# It is right as of a position of the log at which nothing of its topic is in flight; replay leaves out lease frames that begin at or below it.
# The records themselves come from the topic: what a row calls a job and is no live record when the walk is over is none, and what is live and in
# no row is fresh. So a row may be newer than its topic's, never older: jobs are snapshot behind topics.
#
# A record that was moved to another topic names its origin in its append's idempotency key (struct letter_key). Replay collects those in
# `letters`; what is still live in its old topic when the walk is over was cut off between its two frames.
from libc.stdint cimport int16_t, int64_t, uint8_t, uint32_t, uint64_t

from topicsd._native.batch cimport Batch, Queue
from topicsd._native.jobs cimport Job, Jobs
from topicsd._native.layout cimport frame_header, topic_slot
from topicsd._native.queue_core cimport QueueCore
from topicsd._native.queue_wire cimport lease_body


cdef struct jobs_row:
    uint64_t wall_ms, dead_lettered, next_token
    uint64_t count

cdef struct job_row:
    uint64_t seq, token, holder
    int64_t left_ms               # from wall_ms
    uint32_t deliveries
    int16_t priority
    uint8_t state
    uint8_t reserved


cdef class QueueDoor(QueueCore):
    cdef Queue letters            # of batches: topic_id, first_seq, the verb in flags

    cdef uint32_t _apply_settle(self, Jobs *jobs, Job *job, const lease_body *body, int64_t due_ms) noexcept nogil
    cdef bint _is_live(self, const topic_slot *topic, uint64_t seq) noexcept nogil
    cdef int _append_of(self, Batch *batch, uint32_t slot, bytes frame, uint64_t token) except -1
    cdef uint64_t _remove(self, uint32_t slot, uint8_t verb, const uint64_t *seqs, uint32_t count) noexcept nogil
    cdef void _count_fresh(self, uint32_t slot, Jobs *jobs) noexcept nogil
    cdef int replay_lease(self, const frame_header *frame) noexcept nogil
    cdef int replay_letter(self, const frame_header *frame) noexcept nogil
