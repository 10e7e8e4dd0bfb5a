# The native front: HTTP/1.1 connections whose hot routes are served without a coroutine and without a Python object a record.
#
#   socket -> [shared read buffer] -> Front.process -> head -> route -> key -> scan -> ring ............ append (a Call waits in the queue)
#                  |                       |                                   `---> reader -> `output` ... diff, state, at once
#                  v                       `-> anything else: the bytes of exactly one message go to the lane (gunicorn's protocol, Falcon)
#               `input`: what a turn left over                                     and nothing more is read before the lane has answered
#
#   ring's bell -> Hub.drain -> Call by token -> Front.advance: answers in the order of the requests -> one send(2) a connection and turn
#
# Both doors have one set of rules: the front answers what succeeds. Whatever would be an error, it hands on before anything is committed, and
# Falcon says what is wrong. Only what comes back after the commit or for a poll is refused here, by `Hub.refuse` (Python, api/front.py).
#
# Order. A connection's calls stand in a queue. Appends enter it while others wait; everything else, the lane too, waits for an empty queue,
# so no answer overtakes another and each write is done before the read behind it.
#
# A request that does not fit the read buffer is read straight into its connection's `input`, and that becomes the call's `raw` as it is: a large
# body is copied once, by its encoding into the ring. Large buffers go round in `Hub.spares`.
#
# Bounds, a connection: `input` INPUT_BYTES_MAX beyond one whole request of at most BODY_NATIVE_MAX (then reading pauses), `output` one answer beyond
# OUTPUT_BYTES_MAX, CALLS_MAX calls. A peer that does not read stops the parser, and is cut off after STALL_NS_MAX without progress.
#
# Watch bits are shared with Falcon's polls (port.pxd): the hub sets them, and clears one only when neither side waits for the slot.
# word                 written by             order     a stale read means
# calls[token]         the loop's thread      -         nothing is shared: hub, fronts, calls and buffers belong to one thread
# control.ready        writer, arbiter        acquire   a request more goes to the ring of a writer that has died: answered as unknown
# worker line          this worker            relaxed   numbers of a moment ago
#
# A Call's owner is borrowed: connection_lost clears it, and a call that the writer still has stays in `calls` without one.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from cpython.ref cimport PyObject

from topicsd._native.http cimport Frame, Head
from topicsd._native.layout cimport RING_DESCRIPTORS, completion, worker_line
from topicsd._native.meters cimport MeterLine, Meters
from topicsd._native.port cimport Port
from topicsd._native.reader cimport Reader
from topicsd._native.render cimport Buffer
from topicsd._native.scan cimport DiffRequest, WriteLimits, WriteRequest

cdef enum:
    BODY_NATIVE_MAX = 1 << 20        # a larger body is scanned in a thread, by Falcon
    READ_BYTES = 1 << 16
    INPUT_BYTES_MAX = 1 << 18
    INPUT_KEPT_MAX = 1 << 14
    OUTPUT_BYTES_MAX = 1 << 16
    CALLS_MAX = 128
    RAW_KEPT_MAX = 1 << 14
    SPARES_MAX = 16                  # large buffers that a worker keeps for the next large request
    SPARE_BYTES_MAX = 1 << 21
    ANSWER_HEAD_BYTES = 384
    REQUEST_ID_BYTES_MAX = 64
    POLL_BUCKETS = 1024
    SCOPE_READ = 1
    SCOPE_WRITE = 2

cdef enum:
    MODE_HEAD = 0                    # between requests, or in one that is not whole yet
    MODE_LANE = 1                    # the lane serves a request
    MODE_OPEN = 2                    # the lane has the connection for good (WebSocket)
    MODE_END = 3                     # all is said; what comes is thrown away until the peer closes
    MODE_LOST = 4

cdef enum:                           # what becomes of a request
    SERVED = 0
    HAND_ON = 1
    WAIT_FOR_QUEUE = 2
    WAIT_FOR_BYTES = 3

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

cdef class Hub(Port):
    cdef Reader reader
    cdef worker_line *line
    cdef readonly bint native        # serve hot routes
    cdef public bint draining
    cdef readonly object worker
    cdef object make_lane, refusals, loop, timer
    cdef dict parse_refusals
    cdef WriteLimits limits
    cdef WriteRequest write
    cdef DiffRequest diff
    cdef uint64_t held, held_max      # bytes of requests that are not whole
    cdef uint64_t body_max, gzip_min, inflight_max, poll_ms_max
    cdef Key *keys
    cdef uint32_t key_count
    cdef bytes prefixes
    cdef bytearray read_memory
    cdef object read_view
    cdef uint8_t *read_at
    cdef Call *calls[RING_DESCRIPTORS]
    cdef Call *free_calls
    cdef Call *polls[POLL_BUCKETS]
    cdef uint64_t poll_count, poll_timer_ns, generation
    cdef list touched
    cdef object call_soon, bell      # rings the writer at the end of the loop's turn
    cdef bint submitted              # it is due
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
    cdef void touch(self, Front front)
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

cdef class Front:
    cdef Hub hub
    cdef readonly object transport
    cdef object lane, write
    cdef int fd
    cdef int mode
    cdef bint touched, stalled, paused, half_closed, closing
    cdef bint blank                  # an empty line has come before this head
    cdef Buffer input
    cdef uint64_t input_at           # of its bytes, those before are used up
    cdef size_t scanned              # http_head_end's place in the head that comes in
    cdef uint64_t need               # bytes of the request, once its head is known
    cdef bint direct                 # what is read next goes behind `input`, no further than the request does
    cdef bint transport_holds        # bytes have gone to the transport's own buffer
    cdef Frame frame
    cdef Call *first
    cdef Call *last
    cdef uint32_t queued
    cdef uint64_t since_ns           # the last byte in, or the last answer
    cdef uint64_t head_ns            # the first byte of the head that comes in, 0: none
    cdef uint64_t stall_ns, stall_bytes

    cdef take(self, const uint8_t *at, uint64_t size)
    cdef go_on(self)
    cdef uint64_t process(self, const uint8_t *at, uint64_t size) except? 0
    cdef uint64_t to_lane(self, const uint8_t *at, uint64_t size) except? 0
    cdef start_lane(self, const uint8_t *at, uint64_t head_bytes, const Head *head)
    cdef int serve(self, const uint8_t *at, uint64_t size, uint64_t head_bytes, const Head *head) except -1
    cdef int serve_append(self, const uint8_t *at, uint64_t head_bytes, const Head *head, const uint8_t *name, uint32_t name_bytes, int64_t key,
                          bint return_seqs) except -1
    cdef int serve_diff(self, const uint8_t *at, uint64_t head_bytes, const Head *head, const uint8_t *name, uint32_t name_bytes,
                        int64_t key) except -1
    cdef int serve_state(self, const uint8_t *at, const Head *head, const uint8_t *name, uint32_t name_bytes, int64_t key, bint touch) except -1
    cdef uint64_t answer_begin(self) except? 0
    cdef answer_end(self, uint64_t begin, const char *status_line, bint close)
    cdef answer_drop(self, uint64_t begin)
    cdef answer_append(self, Call *call)
    cdef refuse_call(self, Call *call, object refusal)
    cdef bint poll_look(self, Call *call) except -1
    cdef void leave_key(self, int64_t key) noexcept
    cdef void push(self, Call *call) noexcept
    cdef pop(self)
    cdef hand_on_call(self, Call *call)
    cdef advance(self)
    cdef end_turn(self)
    cdef say(self, bytes text)
    cdef bint hold(self, uint64_t size) noexcept
    cdef flush(self)
    cdef end(self)
    cdef refuse_head(self, int wrong)
    cdef drop_calls(self)
    cdef watch_input(self)
