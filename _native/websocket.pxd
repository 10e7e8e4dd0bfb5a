# WebSocket frames of one connection, the client's side in and ours out (RFC 6455 section 5).
#
#   0                   1                   2                   3
#   |F|R|R|R| opcode|M| length 7  | 0, 2 or 8 bytes of length, the shortest that holds it | mask 4 | payload ...
#
#   bytes -> head (up to 14, gathered over any number of pieces) -> payload: unmasked while it is copied, UTF-8 checked on the way
#              control frame -> `control` (125)                      -> (opcode, payload, False), also in the middle of a message
#              data frame    -> `message`, fragment behind fragment  -> (opcode, payload, compressed) once it is whole
#
# A text is checked as it comes in: one that cannot become UTF-8 fails at its first bad byte, wherever pieces and fragments end. A compressed
# one is checked by who inflates it. A message is refused by the length in its head, before any of it is kept.
#
# What is wrong sets `failure` to (close code, reason), once; after it, and after a close frame, nothing more is read.
#
# Owner: one thread, one connection. Memory: what of a message has come, at most `message_max`; nothing between messages.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from topicsd._native.render cimport Buffer

cdef enum:
    OP_CONTINUATION = 0
    OP_TEXT = 1
    OP_BINARY = 2
    OP_CLOSE = 8
    OP_PING = 9
    OP_PONG = 10
    CONTROL_BYTES_MAX = 125
    HEAD_BYTES_MAX = 14

cdef extern from "websocket.h" nogil:
    ctypedef struct Utf8 "struct ws_utf8":
        uint32_t need

    void ws_unmask(uint8_t *to, const uint8_t *start, size_t size, uint32_t mask, uint64_t place)
    int ws_utf8_feed(Utf8 *state, const uint8_t *at, size_t size)

cdef class Parser:
    cdef readonly tuple failure          # (close code, reason), None
    cdef readonly bint closed            # a close frame has come
    cdef uint64_t message_max
    cdef bint binary, deflate            # what is taken
    cdef uint8_t head[14]
    cdef uint32_t head_bytes             # of it so many have come
    cdef bint in_payload
    cdef uint32_t opcode                 # of the frame that comes in
    cdef bint fin
    cdef uint32_t mask
    cdef uint64_t length, place          # of its payload: all, and what has come
    cdef uint32_t message_opcode         # 0: no message is open
    cdef bint compressed
    cdef Utf8 text
    cdef Buffer message
    cdef uint8_t control[125]

    cdef int fail(self, int code, str reason) except -1
    cdef uint32_t head_need(self) noexcept
    cdef int begin_frame(self) except -1
    cdef uint64_t take_payload(self, const uint8_t *at, uint64_t size, list events) except? 0
    cdef int end_frame(self, list events) except -1
    cdef int end_control(self, list events) except -1
