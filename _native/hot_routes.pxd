# The hot routes: append, diff with its long poll, state. Each serves a whole request or hands it on before anything is committed.
#
#   append   scan -> ring -> a Call waits in the queue -> answer_append
#   diff     reader -> `output` at once, or a Call waits among the hub's polls -> poll_look
#   state    reader -> `output` at once
#
# Both doors have one set of rules: the front answers what succeeds. Whatever would be an error goes to Falcon, which says what is wrong; only what
# comes back after the commit, or for a poll, is refused here, in Falcon's words (`Hub.refusals`, api/front.py).
# A new hot route is a ROUTE_* of http.h, a function here or in a module beside this one, and a line in Front.serve.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from topicsd._native.answers cimport Answers
from topicsd._native.http cimport Head
from topicsd._native.hub cimport Call

cdef enum:                           # what becomes of a request
    SERVED = 0
    HAND_ON = 1
    WAIT_FOR_QUEUE = 2
    WAIT_FOR_BYTES = 3

# Remember a call that stands in the ring, let it wait in its connection's queue, and see that the writer hears of it.
cdef submitted_call(Answers line, Call *call)
cdef int serve_append(Answers line, const uint8_t *at, uint64_t head_bytes, const Head *head, const uint8_t *name, uint32_t name_bytes, int64_t key,
                      bint return_seqs) except -1
cdef int serve_diff(Answers line, const uint8_t *at, uint64_t head_bytes, const Head *head, const uint8_t *name, uint32_t name_bytes,
                    int64_t key) except -1
cdef int serve_state(Answers line, const uint8_t *at, const Head *head, const uint8_t *name, uint32_t name_bytes, int64_t key, bint touch) except -1
cdef answer_append(Answers line, Call *call)
cdef bint poll_look(Answers line, Call *call) except -1


cdef inline bint is_system(const uint8_t *name, uint32_t size) noexcept nogil:
    return size >= 7 and memcmp(name, <const char *>b"system.", 7) == 0
