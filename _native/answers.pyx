"""Keep a connection's answers in the order of its requests and send them (page of truth: answers.pxd)."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove, strlen

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport PyObject

from topicsd._native.atomics cimport add_32
from topicsd._native.hub cimport Call, Hub, bump
from topicsd._native.regions cimport INFLIGHT_KEYS_MAX
from topicsd._native.render cimport buffer_free, buffer_need, buffer_shrink, put_bytes, put_text, put_u64

cdef extern from "<sys/socket.h>" nogil:
    ssize_t send(int fd, const void *at, size_t size, int flags)
    const int MSG_DONTWAIT
    const int MSG_NOSIGNAL


cdef class Answers(Connection):
    """The way out of a connection; Front is the way in."""

    def __cinit__(self, Hub hub not None):
        self.hub = hub
        self.fd = -1
        self.mode = MODE_LOST

    def __dealloc__(self):
        buffer_free(&self.input)

    # ---- the queue

    cdef void push(self, Call *call) noexcept:
        call.next = NULL
        call.done = False
        call.owner = <PyObject *>self
        if self.last == NULL:
            self.first = call
        else:
            self.last.next = call
        self.last = call
        self.queued += 1

    cdef pop(self):
        cdef Call *call = self.first
        self.first = call.next
        if self.first == NULL:
            self.last = NULL
        self.queued -= 1
        if call.polling:
            self.hub.poll_remove(call)
            bump(&self.hub.line.long_polls, -1)
        self.hub.leave(call)
        self.hub.give_call(call)

    cdef drop_calls(self):
        # The client has left. What the writer has in hand stays in Hub.calls and is counted out when its answer comes.
        cdef Call *call = self.first
        cdef Call *after
        self.first = self.last = NULL
        self.queued = 0
        while call != NULL:
            after = call.next
            call.owner = NULL
            if call.polling:
                self.hub.poll_remove(call)
                bump(&self.hub.line.long_polls, -1)
                self.hub.leave(call)
                self.hub.give_call(call)
            elif call.done:
                self.hub.settle(call)
            call = after

    cdef void leave_key(self, int64_t key) noexcept:
        if key >= 0:
            add_32(&self.hub.shared.r.inflight[self.hub.ring.number * INFLIGHT_KEYS_MAX + <uint32_t>key], <uint32_t>-1)

    # ---- what goes out

    cdef uint64_t answer_begin(self) except? 0:
        """Make room for an answer's head in front of its body, which is rendered behind what this returns."""
        cdef Hub hub = self.hub
        if hub.output_owner != <void *>self:
            hub.output_owner = <void *>self
            hub.output.used = hub.output_at = 0
        if buffer_need(&hub.output, ANSWER_HEAD_BYTES + 2048) != 0:
            raise MemoryError
        hub.output.used += ANSWER_HEAD_BYTES
        return hub.output.used

    cdef answer_drop(self, uint64_t begin):
        self.hub.output.used = begin - ANSWER_HEAD_BYTES

    cdef answer_end(self, uint64_t begin, const char *status_line, bint close):
        """Write the head of an answer whose body stands behind `begin`."""
        cdef Hub hub = self.hub
        cdef uint8_t head[ANSWER_HEAD_BYTES]
        cdef uint8_t *to
        cdef uint64_t body_bytes = hub.output.used - begin
        cdef uint64_t head_bytes
        to = put_bytes(head, status_line, strlen(status_line))
        to = put_text(to, b"content-type: application/json\r\ncontent-length: ")
        to = put_u64(to, body_bytes)
        to = put_bytes(put_text(to, b"\r\nx-request-id: "), hub.asked.id, hub.asked.id_bytes)
        to = put_bytes(put_text(to, b"\r\n"), hub.common, hub.common_bytes)
        if close or hub.leaving():
            self.closing = True
            to = put_text(to, b"Connection: close\r\n")
        to = put_text(to, b"\r\n")
        head_bytes = to - head
        hub.count_out(body_bytes, 200)
        if hub.output_at == 0 and begin == ANSWER_HEAD_BYTES:
            hub.output_at = begin - head_bytes  # the first of this turn: no byte is moved
            memcpy(hub.output.bytes + hub.output_at, head, head_bytes)
        else:
            to = hub.output.bytes + begin - ANSWER_HEAD_BYTES
            memcpy(to, head, head_bytes)
            memmove(to + head_bytes, hub.output.bytes + begin, body_bytes)
            hub.output.used -= ANSWER_HEAD_BYTES - head_bytes

    cdef refuse_call(self, Call *call, object refusal):
        """Write an error (status, head without its end, body) and drop the call."""
        cdef Hub hub = self.hub
        cdef bytes text
        cdef uint64_t begin
        status, head, body = refusal
        ending = b"\r\n"
        if call.close or hub.leaving():
            self.closing = True
            ending = b"Connection: close\r\n\r\n"
        hub.asked = call.asked
        text = head + b"x-request-id: " + hub.asked.id[:hub.asked.id_bytes] + b"\r\n" + hub.common[:hub.common_bytes] + ending + body
        begin = self.answer_begin()
        self.answer_drop(begin)
        if buffer_need(&hub.output, len(text)) != 0:
            raise MemoryError
        put_bytes(hub.output.bytes + hub.output.used, <const uint8_t *>text, len(text))
        hub.output.used += len(text)
        hub.count_out(len(body), status)
        self.pop()

    cdef say(self, bytes text):
        self.flush()
        if not self.transport.is_closing():
            self.write(text)
            self.transport_holds = True
        self.end()

    cdef flush(self):
        """Send what has been answered: at once by send(2), the rest through the transport."""
        cdef Hub hub = self.hub
        cdef const uint8_t *at
        cdef uint64_t size
        cdef ssize_t sent = 0
        if hub.output_owner != <void *>self:
            return
        size = hub.output.used - hub.output_at
        at = hub.output.bytes + hub.output_at
        hub.output_owner = NULL
        if size == 0 or self.mode == MODE_LOST or self.transport.is_closing():
            return
        self.since_ns = hub.now_ns
        if self.transport_holds and self.transport.get_write_buffer_size() == 0:
            self.transport_holds = False
        if not self.transport_holds:
            sent = send(self.fd, at, size, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent < 0:
                sent = 0                        # full, or broken: the transport finds out
        if <uint64_t>sent < size:
            self.transport_holds = True
            self.write(PyBytes_FromStringAndSize(<const char *>at + sent, size - sent))
        buffer_shrink(&hub.output)

    cdef end(self):
        """Say that no more answers come; what the peer still sends is thrown away, so that it gets to read the last one."""
        if self.mode == MODE_LOST:
            return
        self.flush()
        self.mode = MODE_END
        self.since_ns = self.hub.now_ns
        if not self.transport.is_closing():
            self.transport.write_eof()
            self.transport.resume_reading()
            self.paused = False
        if self.half_closed and not self.transport.is_closing():
            self.transport.close()
