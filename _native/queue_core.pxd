# Claims and what settles them, in the sequencer's turn and without the GIL: ring payload -> work state (jobs.pxd) -> FRAME_LEASE -> answer.
#
#   claim      expire -> take jobs, LEASED at once -> frame -> flush -> answer            its frame failed: the jobs are as if never delivered
#   ack        LEASED -> SETTLING -> frame -> flush (class fsync: sync) -> deleted -> answer    its frame failed: LEASED again
#   release,   done at once -> frame -> flush -> answer                                   its frame failed: done all the same; replay lets
#   extend                                                                                the lease end by itself
#
# An ack stands in line with the appends of its topic (Batch.waits), so replay deletes where the writer deleted and the caps evict the same.
# A claim does not: it only names jobs that are published. `leases_durable` lets claim, release and extend wait for the sync too.
# A claim that finds a job delivered too often waits in `deferred` until Python has moved that job to the dead-letter topic (transfer.py).
#
# Cohorts (A 10.2): with `claim_jitter_ms` a claim is copied and its ring entry given back, so that it holds up nobody; when the window of the
# first one has passed, all of the cohort are served together. `wake_at_ms` wakes the writer for it.
#
# A lease's token counts up over all queues: wall clock of the start << 20, or one more than the log has seen. It is never used twice.
# Everything here belongs to the writer's one thread.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from topicsd._native.batch cimport Batch, Queue
from topicsd._native.frame cimport align8, frame_body
from topicsd._native.jobs cimport Jobs
from topicsd._native.layout cimport completion, frame_header, topic_slot
from topicsd._native.queue_wire cimport claim_command, lease_body, settle_command
from topicsd._native.sequencer cimport Sequencer

cdef struct Claimer:              # one claim, while it is served
    Batch *batch
    const claim_command *command
    uint32_t want, held_now, share, granted
    uint64_t first                # of its jobs, in the scratch of `_grant`

cdef struct Cohort:
    uint32_t slot
    uint64_t topic_id
    int64_t due_ms
    Queue members

cdef struct Grant:
    uint64_t seq
    uint32_t job                  # place in the pool
    uint32_t deliveries

cdef class QueueCore(Sequencer):
    cdef Cohort *cohorts
    cdef uint32_t cohorts_used, cohorts_room
    cdef Queue deferred           # claims that wait for dead letters to be moved
    cdef uint64_t next_token

    cdef void _refuse(self, Batch *batch, uint32_t outcome) noexcept nogil
    cdef Jobs *_queue_of(self, Batch *batch, uint64_t topic_id) noexcept nogil
    cdef void _claim(self, Batch *batch, const uint8_t *payload, uint32_t payload_bytes) noexcept nogil
    cdef void _grant(self, uint32_t slot, Queue *batches) noexcept nogil
    cdef void _look_at(self, Jobs *jobs, Claimer *claimer) noexcept nogil
    cdef void _lease(self, Jobs *jobs, Claimer *claimer, Grant *grants) noexcept nogil
    cdef uint64_t _take(self, uint32_t slot, Jobs *jobs, Grant *grants, uint64_t most, uint64_t bytes_most, bint *due) noexcept nogil
    cdef void _give(self, uint32_t slot, Jobs *jobs, Claimer *claimer, Grant *grants, bint due) noexcept nogil
    cdef int _write(self, Batch *batch, bint privileged) noexcept nogil
    cdef void _enqueue(self, Batch *batch, int wrong) noexcept nogil
    cdef void _settle(self, Batch *batch, const uint8_t *payload, uint32_t payload_bytes) noexcept nogil
    cdef void _settled_jobs(self, Batch *batch, topic_slot *topic, const settle_command *command) noexcept nogil
    cdef void _release_ring(self, uint32_t slot, Jobs *jobs, uint8_t ring) noexcept nogil
    cdef void _leave(self, Batch *batch, const uint8_t *payload, uint32_t payload_bytes) noexcept nogil
    cdef void _join(self, Batch *batch, uint32_t jitter_ms, uint32_t payload_bytes) noexcept nogil
    cdef void _wake_at(self) noexcept nogil


cdef inline lease_body *lease_of(const frame_header *frame) noexcept nogil:
    return <lease_body *>frame_body(frame)


cdef inline uint8_t *lease_node(const frame_header *frame) noexcept nogil:
    return frame_body(frame) + sizeof(lease_body)


cdef inline uint64_t *lease_seqs(const frame_header *frame) noexcept nogil:
    return <uint64_t *>(lease_node(frame) + align8(lease_of(frame).node_bytes))
