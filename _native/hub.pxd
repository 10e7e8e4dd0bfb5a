# What all connections of a worker share: its end of the ring, the calls that the writer has, the waiting reads, keys, buffers, counters, the clock.
#
#   ring's bell -> Hub.drain -> Call by token -> Connection.advance: answers in the order of the requests -> one send(2) a connection and turn
#
# Watch bits are shared with Falcon's polls (port.pxd): the hub sets them, and clears one only when neither side waits for the slot.
# Large buffers go round in `spares`: the body of one large request, then the `raw` of its call, then the body of another.
#
# word                 written by             order     a stale read means
# calls[token]         the loop's thread      -         nothing is shared: hub, connections, calls and buffers belong to one thread
# control.ready        writer, arbiter        acquire   a request more goes to the ring of a writer that has died: answered as unknown
# control.draining     arbiter                acquire   a request more is served
# worker line          this worker            relaxed   numbers of a moment ago
#
# A Call's owner is borrowed: connection_lost clears it, and a call that the writer still has stays in `calls` without one.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from cpython.ref cimport PyObject

from topicsd._native.atomics cimport load_relaxed_64, store_relaxed_64
from topicsd._native.http cimport Head
from topicsd._native.layout cimport RING_DESCRIPTORS, completion, worker_line
from topicsd._native.meters cimport MeterLine, Meters
from topicsd._native.port cimport Port
from topicsd._native.reader cimport Reader
from topicsd._native.render cimport Buffer
from topicsd._native.scan cimport DiffRequest, WriteLimits, WriteRequest
from topicsd._native.work_hot cimport QueueRequest

cdef enum:
    BODY_NATIVE_MAX = 1 << 20        # a larger body is scanned in a thread, by Falcon
    READ_BYTES = 1 << 16
    READ_HEAD_BYTES = 1 << 12        # where a large body is expected: what is read with its head is copied
    RAW_KEPT_MAX = 1 << 14
    SPARES_MAX = 16                  # large buffers that a worker keeps for the next large request
    SPARE_BYTES_MAX = 1 << 21
    REQUEST_ID_BYTES_MAX = 64
    POLL_BUCKETS = 1024
    SCOPE_READ = 1
    SCOPE_WRITE = 2
    SECOND_NS = 1000000000
    UNRUNG_BYTES_MAX = 128 << 10     # a wake is a small part of the time that so much takes to be read: it need not wait until the turn is over

cdef struct Key:
    uint8_t digest[32]
    uint32_t index, scopes
    uint32_t prefixes_at, prefixes   # in Hub.prefixes: a byte of length, then the prefix; 0: every name

cdef struct Asked:                   # whose answer comes next: what it is counted under, and its X-Request-Id
    uint64_t started_ns
    uint32_t route, id_bytes
    uint8_t id[64]

cdef struct Call:                    # a request from its head to its answer, when that takes longer than a turn
    Call *next                       # in its connection's queue, or among the free ones
    Call *poll_next
    Call *poll_previous
    PyObject *owner                  # its Front, borrowed; NULL: the client has left
    uint64_t token, generation, started_ns, topic_id, deadline_ns
    uint32_t slot, route, bucket
    int64_t key                      # counted in flight under this key, -1: not counted
    bint close, return_seqs, done, polling, woken
    uint32_t name_bytes
    uint8_t name[256]
    completion answer
    DiffRequest diff
    Asked asked
    Buffer raw                       # the request, to hand it on when its topic has moved meanwhile
    uint32_t body_at                 # queues: where its body begins
    Buffer told                      # queues: the completion's payload

cdef class Connection:               # what the hub knows of one
    cdef bint touched                # it is in Hub.touched
    cdef advance(self)

cdef class Hub(Port):
    cdef Reader reader
    cdef worker_line *line
    cdef readonly bint native        # serve hot routes
    cdef public int32_t write_band_least    # appends to topics of lower bands are handed on (pressure, api/pressure.py)
    cdef public bint draining
    cdef readonly object worker
    cdef object make_lane, refusals, loop, timer
    cdef dict parse_refusals
    cdef WriteLimits limits
    cdef WriteRequest write
    cdef DiffRequest diff
    cdef QueueRequest work
    cdef uint64_t held, held_max      # bytes of requests that are not whole
    cdef uint64_t body_max, gzip_min, inflight_max, poll_ms_max, claim_max
    cdef Key *keys
    cdef uint32_t key_count
    cdef bytes prefixes
    cdef bytearray read_memory
    cdef object read_view
    cdef object head_view            # its beginning
    cdef uint8_t *read_at
    cdef Call *calls[RING_DESCRIPTORS]
    cdef Call *free_calls
    cdef Call *polls[POLL_BUCKETS]
    cdef uint64_t poll_count, poll_timer_ns, generation
    cdef list touched
    cdef object call_soon, bell      # rings the writer at the end of the loop's turn
    cdef bint submitted              # it is due
    cdef uint64_t unrung             # bytes of requests that it has not been told of
    cdef uint32_t outstanding        # calls that the writer has
    cdef uint64_t now_ns, date_s
    cdef Buffer spares[SPARES_MAX]
    cdef uint32_t spare_count
    cdef Buffer output               # answers of the front that is being served; empty between two fronts
    cdef uint64_t output_at
    cdef void *output_owner          # which front's: what another one left behind (by an exception) never reaches its client
    cdef Meters meters
    cdef MeterLine *meter
    cdef Asked asked
    cdef uint8_t id_begin[12]        # of the ids made here
    cdef uint32_t ids
    cdef uint8_t common[96]          # Server and Date
    cdef uint32_t common_bytes

    cdef int room_for(self, Buffer *buffer, uint64_t size) noexcept
    cdef void give_buffer(self, Buffer *buffer) noexcept
    cdef bint leaving(self) noexcept nogil
    cdef Call *take_call(self) noexcept
    cdef void give_call(self, Call *call) noexcept
    cdef take_keys(self, keys)
    cdef void leave(self, Call *call) noexcept
    cdef void settle(self, Call *call)
    cdef void touch(self, Connection line)
    cdef deliver(self)
    cdef void count_in(self, uint64_t *counter, uint64_t body_bytes) noexcept
    cdef void count_out(self, uint64_t body_bytes, uint32_t status) noexcept
    cdef void ask(self, uint32_t route, const uint8_t *at, const Head *head) noexcept
    cdef int64_t key_of(self, const uint8_t *text, uint64_t size) noexcept
    cdef bint may(self, int64_t key, uint32_t scope, const uint8_t *name, uint32_t name_bytes) noexcept
    cdef bint enter(self, int64_t key) noexcept
    cdef void refresh(self) noexcept
    cdef uint32_t place(self, const uint8_t *name, uint32_t name_bytes, uint64_t *topic_id) noexcept
    cdef void poll_add(self, Call *call, uint32_t slot) noexcept
    cdef void poll_remove(self, Call *call) noexcept
    cdef wake_slot(self, uint32_t slot)
    cdef arm_polls(self, uint64_t deadline_ns)


cdef inline void bump(uint64_t *counter, int64_t by) noexcept nogil:
    store_relaxed_64(counter, load_relaxed_64(counter) + <uint64_t>by)
