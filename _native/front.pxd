# The native front: HTTP/1.1 connections whose hot routes are served without a coroutine and without a Python object a record.
#
#   socket -> [shared read buffer] -> Front.process -> head -> route -> key -> scan -> ring ............ append (a Call waits in the queue)
#                  |                       |                                   |---> ring ..................... claim, ack, nack, extend: likewise
#                  |                       |                                   `---> reader -> `output` ... diff, state, at once
#                  v                       `-> anything else: the bytes of exactly one message go to the lane (gunicorn's protocol, Falcon)
#               `input`: what a turn left over                                     and nothing more is read before the lane has answered
#
# Front reads; hot_routes.pxd and queue_routes.pxd serve; answers.pxd keeps the order and sends; hub.pxd is what all connections of a worker share.
#
# A request that does not fit the read buffer is read straight into its connection's `input`, and that becomes the call's `raw` as it is: a large
# body is copied once, by its encoding into the ring. Large buffers go round in `Hub.spares`. Once its head is known the front reads it itself.
#
# Bounds: `input` INPUT_BYTES_MAX beyond one whole request of at most BODY_NATIVE_MAX (then reading pauses), CALLS_MAX calls. A peer that does not
# read stops the parser, and is cut off after STALL_NS_MAX without progress.
# Owner: the loop's thread.
from libc.stdint cimport uint8_t, uint64_t

from topicsd._native.answers cimport Answers
from topicsd._native.http cimport Frame, Head
from topicsd._native.hub cimport Call

cdef enum:
    INPUT_BYTES_MAX = 1 << 18
    INPUT_KEPT_MAX = 1 << 14
    CALLS_MAX = 128

cdef class Front(Answers):
    cdef object lane
    cdef bint blank                  # an empty line has come before this head
    cdef uint64_t input_at           # of its bytes, those before are used up
    cdef size_t scanned              # http_head_end's place in the head that comes in
    cdef uint64_t need               # bytes of the request, once its head is known
    cdef bint large                  # the last request did not fit the read buffer: the next one will not either
    cdef bint direct                 # what is read next goes behind `input`, no further than the request does
    cdef Frame frame
    cdef uint64_t head_ns            # the first byte of the head that comes in, 0: none
    cdef uint64_t stall_ns, stall_bytes

    cdef take(self, const uint8_t *at, uint64_t size)
    cdef go_on(self)
    cdef pull(self)
    cdef uint64_t process(self, const uint8_t *at, uint64_t size) except? 0
    cdef uint64_t to_lane(self, const uint8_t *at, uint64_t size) except? 0
    cdef start_lane(self, const uint8_t *at, uint64_t head_bytes, const Head *head)
    cdef int serve(self, const uint8_t *at, uint64_t size, uint64_t head_bytes, const Head *head) except -1
    cdef hand_on_call(self, Call *call)
    cdef end_turn(self)
    cdef bint hold(self, uint64_t size) noexcept
    cdef refuse_head(self, int wrong)
    cdef watch_input(self)
