"""WebSocket frames in and out (page of truth: websocket.pxd)."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from topicsd._native.render cimport buffer_free, buffer_need

TEXT, BINARY, CLOSE, PING, PONG = OP_TEXT, OP_BINARY, OP_CLOSE, OP_PING, OP_PONG


cdef inline bint close_code_is_good(uint32_t code) noexcept:
    # RFC 6455 section 7.4 and the registry; 1004-1006 and 1015 never stand on the wire
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999


cdef class Parser:
    """Read one connection's frames."""

    def __init__(self, uint64_t message_bytes_max, bint binary=False, bint deflate=False):
        self.message_max = message_bytes_max
        self.binary, self.deflate = binary, deflate

    def __dealloc__(self):
        buffer_free(&self.message)

    @property
    def held(self):
        """How many bytes of an unfinished message are held."""
        return self.message.used

    def feed(self, data):
        """Take bytes in; return what they complete: a list of (opcode, payload, compressed)."""
        cdef const uint8_t[::1] view = data
        cdef const uint8_t *at
        cdef uint64_t size = view.shape[0]
        cdef uint64_t used = 0
        cdef uint32_t need
        cdef uint32_t piece
        cdef list events = []
        if size == 0:
            return events
        at = &view[0]
        while self.failure is None and not self.closed:
            if not self.in_payload:
                need = self.head_need()
                piece = <uint32_t>min(<uint64_t>(need - self.head_bytes), size - used)
                memcpy(self.head + self.head_bytes, at + used, piece)
                self.head_bytes += piece
                used += piece
                if self.head_bytes < need:
                    break
                if self.head_bytes == self.head_need():     # what has come may have told of more
                    self.begin_frame()
                    if self.in_payload and self.length == 0:
                        self.end_frame(events)
            elif used == size:
                break
            else:
                used += self.take_payload(at + used, size - used, events)
        return events

    cdef int fail(self, int code, str reason) except -1:
        if self.failure is None:
            self.failure = (code, reason)
            buffer_free(&self.message)
        return 0

    cdef uint32_t head_need(self) noexcept:
        # Two bytes tell how many more there are.
        cdef uint32_t need = 2
        if self.head_bytes >= 2:
            if self.head[1] & 0x80:
                need += 4
            if self.head[1] & 0x7F == 126:
                need += 2
            elif self.head[1] & 0x7F == 127:
                need += 8
        return need

    cdef int begin_frame(self) except -1:
        cdef uint32_t opcode = self.head[0] & 0x0F
        cdef uint32_t reserved = self.head[0] & 0x70
        cdef uint64_t length = self.head[1] & 0x7F
        cdef uint32_t n
        cdef uint32_t at = 2
        cdef uint32_t wide = 2 if length == 126 else 8 if length == 127 else 0
        cdef bint control = opcode & 8 != 0
        self.head_bytes = 0
        if wide:
            length = 0
            for n in range(wide):
                length = length << 8 | self.head[at + n]
            at += wide
            if length < 126 or (wide == 8 and length < 65536) or length >> 63:
                return self.fail(1002, "a length that is not written in its shortest form")
        if not self.head[1] & 0x80:
            return self.fail(1002, "a frame without a mask")
        if reserved and not (reserved == 0x40 and self.deflate and not control and opcode != OP_CONTINUATION):
            return self.fail(1002, "a reserved bit is set")
        if opcode > OP_PONG or 2 < opcode < 8:
            return self.fail(1002, "a reserved opcode")
        if control and (length > CONTROL_BYTES_MAX or not self.head[0] & 0x80):
            return self.fail(1002, "a control frame that is too long or comes in pieces")
        if opcode == OP_CONTINUATION and self.message_opcode == 0:
            return self.fail(1002, "a continuation of nothing")
        if not control and opcode != OP_CONTINUATION and self.message_opcode:
            return self.fail(1002, "a message begins before the last one has ended")
        if opcode == OP_BINARY and not self.binary:
            return self.fail(1003, "messages are text")
        if not control and length > self.message_max - self.message.used:
            return self.fail(1009, f"a message has at most {self.message_max} bytes")
        if not control and opcode != OP_CONTINUATION:
            self.message_opcode = opcode
            self.compressed = reserved != 0
            memset(&self.text, 0, sizeof(self.text))
        memcpy(&self.mask, self.head + at, 4)
        self.opcode, self.length, self.place = opcode, length, 0
        self.fin = self.head[0] & 0x80 != 0
        self.in_payload = True
        return 0

    cdef uint64_t take_payload(self, const uint8_t *at, uint64_t size, list events) except? 0:
        cdef uint64_t count = min(size, self.length - self.place)
        cdef uint8_t *to
        cdef bytes whole
        if self.opcode & 8:
            ws_unmask(self.control + self.place, at, count, self.mask, self.place)
            self.place += count
            if self.place == self.length:
                self.end_frame(events)
            return count
        if self.fin and self.place == 0 and count == self.length and self.message.used == 0:
            # A whole message in one piece, as most are: straight into the bytes that are handed on.
            whole = PyBytes_FromStringAndSize(NULL, count)
            to = <uint8_t *>PyBytes_AS_STRING(whole)
            ws_unmask(to, at, count, self.mask, 0)
            self.place = count
            if self.message_opcode == OP_TEXT and not self.compressed and not (ws_utf8_feed(&self.text, to, count) and self.text.need == 0):
                self.fail(1007, "a text that is no UTF-8")
                return count
            events.append((self.message_opcode, whole, self.compressed))
            self.message_opcode = 0
            self.in_payload = False
            return count
        if buffer_need(&self.message, count) != 0:
            raise MemoryError
        to = self.message.bytes + self.message.used
        ws_unmask(to, at, count, self.mask, self.place)
        self.message.used += count
        self.place += count
        if self.message_opcode == OP_TEXT and not self.compressed and not ws_utf8_feed(&self.text, to, count):
            self.fail(1007, "a text that is no UTF-8")
        elif self.place == self.length:
            self.end_frame(events)
        return count

    cdef int end_frame(self, list events) except -1:
        self.in_payload = False
        if self.opcode & 8:
            return self.end_control(events)
        if not self.fin:
            return 0
        if self.message_opcode == OP_TEXT and not self.compressed and self.text.need:
            return self.fail(1007, "a text that is no UTF-8")
        events.append((self.message_opcode, PyBytes_FromStringAndSize(<const char *>self.message.bytes, self.message.used), self.compressed))
        self.message_opcode = 0
        buffer_free(&self.message)
        return 0

    cdef int end_control(self, list events) except -1:
        cdef Utf8 text
        cdef uint32_t code
        if self.opcode == OP_CLOSE:
            memset(&text, 0, sizeof(text))
            if self.length == 1:
                return self.fail(1002, "a close frame of one byte")
            if self.length:
                code = <uint32_t>self.control[0] << 8 | self.control[1]
                if not close_code_is_good(code):
                    return self.fail(1002, "a close code that must not be sent")
                if not ws_utf8_feed(&text, self.control + 2, self.length - 2) or text.need:
                    return self.fail(1007, "a close reason that is no UTF-8")
            self.closed = True
        events.append((self.opcode, PyBytes_FromStringAndSize(<const char *>self.control, self.length), False))
        return 0


def frame(int opcode, data, bint compressed=False):
    """Render one whole unmasked frame."""
    cdef const uint8_t[::1] view = data
    cdef uint64_t size = view.shape[0]
    cdef uint32_t head = 2 if size < 126 else 4 if size < 65536 else 10
    cdef bytes out = PyBytes_FromStringAndSize(NULL, head + size)
    cdef uint8_t *to = <uint8_t *>PyBytes_AS_STRING(out)
    cdef uint32_t n
    to[0] = <uint8_t>(0x80 | (0x40 if compressed else 0) | (opcode & 0x0F))
    to[1] = <uint8_t>(size if head == 2 else 126 if head == 4 else 127)
    for n in range(head - 2):
        to[2 + n] = <uint8_t>(size >> (8 * (head - 3 - n)))
    if size:
        memcpy(to + head, &view[0], size)
    return out


def text_frame(*pieces):
    """Render one whole text frame of pieces of bytes that follow each other."""
    return frame(OP_TEXT, b"".join(pieces))
