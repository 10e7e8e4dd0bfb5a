# The way out of a connection: its calls in the order of their requests, and what has been answered but not sent.
#
#   Call -> Call -> Call      push at the end, pop at the front; who is done behind one that is not waits for it
#   Hub.output                the answers of the connection that is being served, of all of a turn: one send(2), the rest through the transport
#
# Order. Appends enter the queue while others wait; everything else, the lane too, waits for an empty queue, so no answer overtakes another and
# each write is done before the read behind it. Nothing enters behind a claim or what settles one.
# Bounds: `output` holds one answer beyond OUTPUT_BYTES_MAX. A peer that does not read stops the parser (`stalled`).
# Owner: the loop's thread.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from topicsd._native.hub cimport Call, Connection, Hub
from topicsd._native.render cimport Buffer

cdef enum:
    OUTPUT_BYTES_MAX = 1 << 16
    ANSWER_HEAD_BYTES = 384

cdef enum:
    MODE_HEAD = 0                    # between requests, or in one that is not whole yet
    MODE_LANE = 1                    # the lane serves a request
    MODE_OPEN = 2                    # the lane has the connection for good (WebSocket)
    MODE_END = 3                     # all is said; what comes is thrown away until the peer closes
    MODE_LOST = 4

cdef class Answers(Connection):
    cdef Hub hub
    cdef readonly object transport
    cdef object write
    cdef int fd
    cdef int mode
    cdef bint stalled, paused, half_closed, closing
    cdef bint transport_holds        # bytes have gone to the transport's own buffer
    cdef Buffer input                # what has come and is not used up
    cdef Call *first
    cdef Call *last
    cdef uint32_t queued
    cdef uint64_t since_ns           # the last byte in, or the last answer

    cdef void push(self, Call *call) noexcept
    cdef pop(self)
    cdef drop_calls(self)
    cdef void leave_key(self, int64_t key) noexcept
    cdef uint64_t answer_begin(self) except? 0
    cdef answer_drop(self, uint64_t begin)
    cdef answer_end(self, uint64_t begin, const char *status_line, bint close)
    cdef refuse_call(self, Call *call, object refusal)
    cdef say(self, bytes text)
    cdef flush(self)
    cdef end(self)
