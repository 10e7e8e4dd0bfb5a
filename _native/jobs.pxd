# The work state of one queue: which job is ready, delayed, leased, on its way out. Bytes and order only: no log, no topic, no clock.
#
#   fresh      a job that nobody has touched is no object at all: it lies at or above `cursor` and is counted in `fresh`
#   pool       a Job of 56 B for each one that has a delay, a priority, a lease, or was delivered before
#   table      seq -> place in the pool, open addressing, half full at most; an entry that goes is closed by shifting back
#   ready      heap of pool places: priority (high first), then delivered before fresh, then seq            (D §10.3)
#   timed      heap of pool places by time: leases that will end, delays that will be over
#   stuck      heap of pool places by seq: jobs that are due for the dead-letter topic and could not go there yet
#
#              claim                          ack: frame written             ack: frame as durable as the class asks
#     READY ------------> LEASED ------------------------------> SETTLING -------------------------------> gone
#       ^  ^   release, expiry |                                     | the write failed
#       |  '-------------------'<------------------------------------'
#       |  delay over                 delivered too often, on the next claim
#     DELAYED            READY ---------------------------------------------> STUCK -> gone | UNWRITABLE (counts as ready, is not handed out)
#
# A job is in exactly one state, and in the heap of that state: counters are kept, never counted. Times are monotonic ms.
# Owner: the writer's one thread. Nothing here is shared; `jobs_show` copies the counters into the topic's slot (relaxed: gauges).
from libc.stdint cimport int16_t, int64_t, uint8_t, uint32_t, uint64_t

from topicsd._native.layout cimport frame_header, topic_slot
from topicsd._native.regions cimport Regions

cdef enum:
    NO_JOB = 0xFFFFFFFF
    NO_RING = 255

cdef enum JobState:
    JOB_FREE = 0
    JOB_READY = 1
    JOB_DELAYED = 2
    JOB_LEASED = 3
    JOB_SETTLING = 4
    JOB_STUCK = 5
    JOB_UNWRITABLE = 6

cdef struct Job:
    uint64_t seq
    uint64_t token          # of its last lease
    uint64_t holder         # XXH3-64 of the node's name
    int64_t due_ms          # when its lease or its delay ends
    uint32_t deliveries
    uint32_t place          # in the heap of its state; next free one in the pool when JOB_FREE
    int16_t priority
    uint8_t state
    uint8_t ring            # the ring slot whose work stream it was pushed to, else NO_RING

cdef struct Heap:
    uint32_t *items
    uint32_t length, room

cdef struct Jobs:
    Job *pool
    uint32_t pool_used, pool_room, pool_free, known
    uint32_t *table         # place in the pool + 1, 0: empty
    uint64_t table_mask
    Heap ready, timed, stuck
    uint64_t cursor         # below it no job is fresh
    uint64_t fresh
    uint64_t in_flight, unwritable
    uint64_t dead_lettered
    uint64_t held           # replay: frames that begin below this are in the row that was loaded
    uint8_t listed          # stands in the list of queues with timers
    uint8_t marked          # stands in the list of queues with dead letters to move

cdef Jobs *jobs_new() noexcept nogil
cdef void jobs_free(Jobs *jobs) noexcept nogil
cdef uint64_t jobs_ready(const Jobs *jobs) noexcept nogil
cdef void jobs_show(Jobs *jobs, topic_slot *topic) noexcept nogil
cdef Job *job_of(const Jobs *jobs, uint64_t seq) noexcept nogil                       # NULL: fresh, or no job

# ---- records that come and go. `now_ms` is monotonic, `age_ms` how long ago they were written (replay; may be negative, see jobs_earlier)
cdef int jobs_published(Jobs *jobs, const frame_header *frame, int64_t now_ms, int64_t age_ms) noexcept nogil     # 0, -1 memory is short
cdef void jobs_added(Jobs *jobs, uint64_t count) noexcept nogil                       # plain ones
cdef void jobs_gone(Jobs *jobs, uint64_t seq) noexcept nogil                          # one live record that leaves, whatever its state
cdef void jobs_gone_below(Jobs *jobs, uint64_t before_seq, uint64_t deleted) noexcept nogil     # all live ones below, `deleted` of them

# ---- what happens to a job
# The next one in order as a pool place, LEASED with its deliveries counted; NO_JOB: none. One that was delivered `deliveries_max` times (0: no
# bound) becomes STUCK instead and sets `due`. The caller has to give it its lease: token, holder, ring, due_ms by jobs_lease.
cdef uint32_t jobs_take(Jobs *jobs, const Regions *regions, const topic_slot *topic, uint64_t deliveries_max, bint *due) noexcept nogil
cdef void jobs_lease(Jobs *jobs, uint32_t number, uint64_t token, uint64_t holder, uint8_t ring, int64_t due_ms) noexcept nogil
cdef void jobs_untake(Jobs *jobs, Job *job) noexcept nogil                            # a lease that was never given: as if not delivered
cdef void jobs_release(Jobs *jobs, Job *job, int64_t due_ms, int64_t now_ms) noexcept nogil      # of a lease; ready once `due_ms` has come
cdef void jobs_extend(Jobs *jobs, Job *job, int64_t due_ms) noexcept nogil
cdef void jobs_settle(Jobs *jobs, Job *job) noexcept nogil                            # LEASED -> SETTLING
cdef void jobs_unsettle(Jobs *jobs, Job *job) noexcept nogil                          # SETTLING -> LEASED
cdef void jobs_unstick(Jobs *jobs, Job *job, bint writable) noexcept nogil            # STUCK -> READY, or UNWRITABLE
cdef uint64_t jobs_restick(Jobs *jobs) noexcept nogil                                 # every UNWRITABLE one -> STUCK; how many
cdef uint64_t jobs_expire(Jobs *jobs, int64_t now_ms) noexcept nogil                  # jobs that have become ready
cdef uint64_t jobs_drop_ring(Jobs *jobs, uint8_t ring) noexcept nogil                 # releases what a dead worker's streams held
# Replay: a claim that the log tells of. Makes the job known; a lease that stands is as if released before.
cdef int jobs_relive(Jobs *jobs, uint64_t seq, uint64_t token, uint64_t holder, int64_t due_ms, int64_t now_ms) noexcept nogil
cdef void jobs_earlier(Jobs *jobs, int64_t by_ms) noexcept nogil                      # after replay: no clock step lengthens a lease or a delay
# A job out of a snapshot's row, READY, DELAYED or LEASED. -1: memory is short.
cdef int jobs_restore(Jobs *jobs, const Job *row) noexcept nogil
