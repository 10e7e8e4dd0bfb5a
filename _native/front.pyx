"""Read HTTP/1.1 requests: hot routes are served at once, the rest through gunicorn and Falcon (page of truth: front.pxd)."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memmove, memset

from cpython.buffer cimport PyBUF_WRITE
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory

import structlog

from topicsd._native.answers cimport MODE_END, MODE_HEAD, MODE_LANE, MODE_LOST, MODE_OPEN, OUTPUT_BYTES_MAX
from topicsd._native.atomics cimport clock_mono_ns, load_acquire_64
from topicsd._native.hot_routes cimport (
    HAND_ON, WAIT_FOR_BYTES, WAIT_FOR_QUEUE, answer_append, poll_look, serve_append, serve_diff, serve_state)
from topicsd._native.http cimport (
    BODY_CHUNKED, BODY_NONE, HEAD_ENCODED, HEAD_EXPECT, HEAD_HOST, HEAD_JSON, HEAD_TWICE, HEAD_UPGRADE, Head, ROUTE_APPEND, ROUTE_CLAIM,
    ROUTE_DIFF, ROUTE_NONE, ROUTE_STATE, Span, http_frame_done, http_frame_feed, http_head_end, http_head_parse, http_route)
from topicsd._native.hub cimport READ_BYTES, SCOPE_READ, SCOPE_WRITE, SECOND_NS, Call, Hub, bump
from topicsd._native.layout cimport OUTCOME_MOVED
from topicsd._native.queue_routes cimport answer_work, serve_work
from topicsd._native.queue_wire cimport OUTCOME_NOT_QUEUE
from topicsd._native.render cimport buffer_need

cdef extern from "<sys/socket.h>" nogil:
    const int MSG_DONTWAIT
    ssize_t recv(int fd, void *to, size_t size, int flags)

cdef uint64_t END_NS_MAX = 2 * <uint64_t>SECOND_NS        # a peer has so long to close after our last answer
cdef uint64_t STALL_NS_MAX = 60 * <uint64_t>SECOND_NS     # a peer that reads nothing for so long is cut off

cdef enum:
    TURN_BYTES_MAX = 1 << 20        # of one connection, before the others have their turn

log = structlog.get_logger("front")


cdef class Front(Answers):
    """One connection: a BufferedProtocol of asyncio (it is none by class: uvloop asks for `get_buffer` only)."""

    # ---- asyncio's side

    def connection_made(self, transport):
        worker = self.hub.worker
        self.transport = transport
        self.write = transport.write
        self.fd = transport.get_extra_info("socket").fileno()
        self.mode = MODE_HEAD
        self.since_ns = self.head_ns = clock_mono_ns()
        transport.set_write_buffer_limits(high=OUTPUT_BYTES_MAX)
        worker.connections.add(self)
        bump(&self.hub.line.connections, 1)
        if len(worker.connections) > worker.connections_max:
            self.say(self.hub.refusals.connections(worker.connections_max))

    def get_buffer(self, sizehint):
        cdef uint64_t left
        self.direct = self.mode == MODE_HEAD and self.need > self.input.used - self.input_at and self.input.used > self.input_at
        if not self.direct:
            return self.hub.head_view if self.large else self.hub.read_view
        left = self.need - (self.input.used - self.input_at)
        if buffer_need(&self.input, left) != 0:
            raise MemoryError
        return PyMemoryView_FromMemory(<char *>self.input.bytes + self.input.used, <Py_ssize_t>left, PyBUF_WRITE)

    def buffer_updated(self, uint64_t size):
        cdef Hub hub = self.hub
        hub.refresh()
        self.since_ns = hub.now_ns
        if size > (self.input.room - self.input.used if self.direct else <uint64_t>READ_BYTES):
            raise ValueError("more than the buffer holds")
        try:
            if self.direct:
                self.input.used += size
                if self.input.used - self.input_at >= self.need:
                    self.go_on()
                self.pull()
                self.end_turn()
            else:
                self.take(hub.read_at, size)
        except Exception:
            log.exception("a connection is given up")
            self.abort()

    def eof_received(self):
        """Keep the connection while answers are due. A client that polls has most likely left: it gets what there is, as from Falcon."""
        if self.mode == MODE_LANE or self.mode == MODE_OPEN:
            self.half_closed = True
            # Also between its answer and its word that it is idle: what came behind that request is answered before the end.
            return self.lane.eof_received() or self.input.used > self.input_at
        if self.mode != MODE_HEAD:
            return False
        self.half_closed = True
        if self.first != NULL:
            if self.first.polling:
                self.first.deadline_ns = 0
                self.first.woken = True
                self.hub.refresh()
                self.hub.touch(self)
                self.hub.deliver()
            return self.first != NULL
        if self.input.used > self.input_at and not self.stalled:    # half a request will never be whole
            self.hub.refresh()
            self.say(self.hub.refusals.parser(400, "the body ended early"))
            return False
        return self.stalled and self.input.used > self.input_at     # whole requests may wait for the peer to read

    def pause_writing(self):
        self.stalled = True
        self.stall_ns = clock_mono_ns()
        if self.lane is not None:
            self.lane.pause_writing()

    def resume_writing(self):
        self.stalled = False
        if self.lane is not None:
            self.lane.resume_writing()
        if self.mode == MODE_HEAD:
            self.hub.refresh()
            self.hub.touch(self)
            self.hub.deliver()

    def connection_lost(self, exc):
        if self.mode == MODE_LOST:
            return
        self.mode = MODE_LOST
        self.hub.worker.connections.discard(self)
        bump(&self.hub.line.connections, -1)
        self.drop_calls()
        self.hold(0)
        if self.hub.output_owner == <void *>self:
            self.hub.output_owner = NULL
        self.input.used = self.input_at = 0
        self.hub.give_buffer(&self.input)
        if self.lane is not None:
            lane, self.lane = self.lane, None
            lane.connection_lost(exc)
        self.write = None
        self.fd = -1

    def abort(self):
        """Cut the connection off."""
        if self.transport is not None:
            self.transport.abort()

    @property
    def busy(self):
        """Whether a request is being served, or an answer waits for its reader."""
        return self.mode != MODE_LOST and self.mode != MODE_END and (self.mode != MODE_HEAD or self.first != NULL or self.stalled)

    def end_if_idle(self):
        """Close the connection unless a request is being served; half a request is refused, for its rest would come too late."""
        if self.mode != MODE_HEAD or self.busy:
            return
        if self.input.used > self.input_at:
            self.hub.refresh()
            self.say(self.hub.refusals.draining())
        else:
            self.transport.close()

    def check(self):
        """Cut off a peer that is too slow or idle."""
        cdef uint64_t now = self.hub.now_ns
        limits = self.hub.worker.patience
        cdef uint64_t held = self.transport.get_write_buffer_size() if self.stalled or self.mode == MODE_END else 0
        if held:
            if held != self.stall_bytes:
                self.stall_bytes, self.stall_ns = held, now
            elif now > self.stall_ns + STALL_NS_MAX:
                self.transport.abort()
            self.since_ns = now
        elif self.mode == MODE_END:
            if now > self.since_ns + END_NS_MAX:
                self.transport.abort()
        elif self.mode == MODE_HEAD and self.first == NULL:
            if self.need:
                if now > self.since_ns + <uint64_t>limits.body_ms * 1000000:
                    self.say(self.hub.refusals.parser(408, "the body ended early"))
            elif self.head_ns:
                if now > self.head_ns + <uint64_t>limits.head_ms * 1000000:
                    self.transport.close()
            elif now > self.since_ns + <uint64_t>limits.idle_ms * 1000000:
                self.transport.close()

    # ---- bytes in

    cdef take(self, const uint8_t *at, uint64_t size):
        cdef uint64_t used
        if self.input.used == self.input_at:
            self.input.used = self.input_at = 0
            used = self.process(at, size)
            if used < size and self.mode != MODE_LOST:
                if self.hub.room_for(&self.input, max(size - used, self.need)) != 0:
                    raise MemoryError
                memcpy(self.input.bytes, at + used, size - used)
                self.input.used = size - used
        else:
            if self.input_at > <uint64_t>INPUT_KEPT_MAX and self.input_at * 2 > self.input.used:
                memmove(self.input.bytes, self.input.bytes + self.input_at, self.input.used - self.input_at)
                self.input.used -= self.input_at
                self.input_at = 0
            if buffer_need(&self.input, size) != 0:
                raise MemoryError
            memcpy(self.input.bytes + self.input.used, at, size)
            self.input.used += size
            self.go_on()
        self.large = self.need > <uint64_t>READ_BYTES
        self.pull()
        self.end_turn()

    cdef pull(self):
        # What is there of a large request's rest. Its end, an error and what is not there yet are the loop's to find.
        cdef uint64_t taken = 0
        cdef uint64_t left
        cdef ssize_t got
        while self.mode == MODE_HEAD and self.need > self.input.used - self.input_at and self.input.used > self.input_at:
            left = self.need - (self.input.used - self.input_at)
            if taken >= <uint64_t>TURN_BYTES_MAX or buffer_need(&self.input, left) != 0:
                return
            got = recv(self.fd, self.input.bytes + self.input.used, min(left, <uint64_t>TURN_BYTES_MAX - taken), MSG_DONTWAIT)
            if got <= 0:
                return
            self.input.used += got
            taken += got
            if <uint64_t>got == left:
                self.go_on()
                return

    cdef go_on(self):
        cdef uint64_t used = self.process(self.input.bytes + self.input_at, self.input.used - self.input_at)
        self.input_at = self.input_at + used if self.input.used else 0    # empty: the request has taken the buffer with it

    cdef end_turn(self):
        self.watch_input()
        self.flush()
        if self.mode == MODE_HEAD and self.first == NULL and (self.closing or (self.half_closed and not self.stalled)):
            self.end()

    cdef watch_input(self):
        # Give memory back, and stop reading while more waits than can be served.
        cdef uint64_t waiting = self.input.used - self.input_at
        cdef bint full
        if waiting == 0:
            self.input.used = self.input_at = 0
            self.hub.give_buffer(&self.input)
        if self.mode == MODE_LOST:
            return
        full = self.need == 0 and waiting > INPUT_BYTES_MAX
        if full:
            self.transport.pause_reading()     # again and again: the lane resumes as it likes
            self.paused = True
        elif self.paused:
            self.paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    cdef uint64_t process(self, const uint8_t *at, uint64_t size) except? 0:
        """Serve what is whole; return how many bytes are used up."""
        cdef uint64_t used = 0
        cdef uint64_t left
        cdef int64_t end
        cdef int wrong, verdict
        cdef Head head
        while self.mode != MODE_LOST:
            if self.mode == MODE_LANE or self.mode == MODE_OPEN:
                left = self.to_lane(at + used, size - used)
                used += left
                break
            if self.mode == MODE_END:
                return size
            if self.closing or self.stalled:
                break
            if self.scanned == 0 and not self.blank and size - used >= 2 and at[used] == 13 and at[used + 1] == 10:
                used += 2                       # RFC 9112 section 2.2: an empty line before a request
                self.blank = True
            left = size - used
            if left == 0 or left < self.need:
                break
            if self.head_ns == 0:
                self.head_ns = self.hub.now_ns
            end = http_head_end(at + used, left, &self.scanned)
            if end == 0:
                break
            wrong = <int>end if end < 0 else http_head_parse(at + used, end, &head)
            if wrong:
                if self.first != NULL:
                    break                       # what came before is answered first
                self.refuse_head(wrong)
                return size
            verdict = self.serve(at + used, left, end, &head)
            if verdict == WAIT_FOR_BYTES and not self.hold(end + head.length):
                verdict = HAND_ON               # too many bodies wait here: Falcon has a budget for them
            if verdict == WAIT_FOR_BYTES:
                self.head_ns = 0
                break
            if verdict == WAIT_FOR_QUEUE or (verdict == HAND_ON and self.first != NULL):
                break
            self.hold(0)
            self.head_ns = self.scanned = 0
            self.blank = False
            if verdict == HAND_ON:
                self.start_lane(at + used, end, &head)
                used += end
            else:
                used += end + head.length
                if self.hub.output.used - self.hub.output_at > OUTPUT_BYTES_MAX:
                    self.flush()
        return used

    cdef bint hold(self, uint64_t size) noexcept:
        # Wait for a request of so many bytes, 0: for none.
        if size and self.hub.held - self.need + size > self.hub.held_max:
            return False
        self.hub.held += size - self.need
        self.need = size
        return True

    cdef start_lane(self, const uint8_t *at, uint64_t head_bytes, const Head *head):
        self.flush()
        if self.lane is None:
            self.lane = self.hub.make_lane(self)
        memset(&self.frame, 0, sizeof(self.frame))
        self.frame.kind = head.body
        self.frame.left = head.length if head.body != BODY_CHUNKED else 0
        self.mode = MODE_LANE
        if self.half_closed:
            self.lane.client_has_finished()
        self.lane.data_received(PyBytes_FromStringAndSize(<const char *>at, head_bytes))

    cdef uint64_t to_lane(self, const uint8_t *at, uint64_t size) except? 0:
        # No byte behind the message: the next one is ours to read.
        cdef int64_t taken = size
        if self.mode == MODE_LANE:
            if http_frame_done(&self.frame) or size == 0:
                return 0
            taken = http_frame_feed(&self.frame, at, size)
            if taken < 0:
                lane, self.lane = self.lane, None
                lane.connection_lost(None)      # its application sees a client that left in the middle
                self.refuse_head(<int>taken)
                return size
        if taken:
            self.lane.data_received(PyBytes_FromStringAndSize(<const char *>at, taken))
        return taken

    def lane_is_idle(self):
        """Go on reading: the lane has answered."""
        if self.mode != MODE_LANE:
            return
        self.mode = MODE_HEAD
        self.transport_holds = True
        self.hub.refresh()
        self.since_ns = self.hub.now_ns
        self.paused = True                      # it may have stopped reading
        self.hub.touch(self)
        self.hub.deliver()

    def lane_closes(self):
        """End the connection behind the lane's last answer."""
        if self.mode == MODE_LANE or self.mode == MODE_OPEN:
            self.hub.refresh()
            self.end()

    def lane_stays(self):
        """Give the lane all further bytes (WebSocket)."""
        if self.mode == MODE_LANE:
            self.mode = MODE_OPEN
            self.hub.touch(self)
            self.hub.deliver()

    @property
    def lane_has_all(self):
        """Whether the lane has got a whole message and has not answered it."""
        return self.mode == MODE_LANE and bool(http_frame_done(&self.frame))

    @property
    def waiting(self):
        """How many bytes wait behind the request that is being served."""
        return self.input.used - self.input_at

    # ---- requests

    cdef int serve(self, const uint8_t *at, uint64_t size, uint64_t head_bytes, const Head *head) except -1:
        cdef Hub hub = self.hub
        cdef Span name, query
        cdef int64_t key = -1
        cdef bint flag = True
        cdef int route
        if not hub.native or head.minor == 0 or head.body == BODY_CHUNKED or head.flags & (HEAD_EXPECT | HEAD_UPGRADE | HEAD_ENCODED | HEAD_TWICE):
            return HAND_ON
        route = http_route(head, at, &name, &query)
        if route == ROUTE_NONE or not head.flags & HEAD_HOST or head.length > hub.body_max:
            return HAND_ON
        if query.bytes and not flag_of(route, at + query.at, query.bytes, &flag):
            return HAND_ON
        if hub.leaving() or load_acquire_64(&hub.shared.r.control.ready) == 0:
            return HAND_ON
        if hub.key_count:
            key = hub.key_of(at + head.authorization.at, head.authorization.bytes)
            if key < 0 or (route == ROUTE_CLAIM and not hub.may(key, SCOPE_READ, at + name.at, name.bytes)) or not hub.may(
                    key, SCOPE_WRITE if route == ROUTE_APPEND or route >= ROUTE_CLAIM else SCOPE_READ, at + name.at, name.bytes):
                return HAND_ON
            key = hub.keys[key].index if hub.inflight_max else -1
        if self.queued >= CALLS_MAX or (self.last != NULL and (route != ROUTE_APPEND or self.last.route != <uint32_t>ROUTE_APPEND)):
            return WAIT_FOR_QUEUE
        if head.length and not head.flags & HEAD_JSON:
            return HAND_ON
        if size < head_bytes + head.length:
            return WAIT_FOR_BYTES
        if route == ROUTE_APPEND:
            return serve_append(self, at, head_bytes, head, at + name.at, name.bytes, key, flag)
        if route >= ROUTE_CLAIM:
            return serve_work(self, route, at, head_bytes, head, at + name.at, name.bytes, key)
        if route == ROUTE_DIFF:
            return serve_diff(self, at, head_bytes, head, at + name.at, name.bytes, key)
        return HAND_ON if head.body != BODY_NONE else serve_state(self, at, head, at + name.at, name.bytes, key, flag)

    # ---- the queue

    cdef advance(self):
        """Answer what is done, in order, then go on reading."""
        cdef Call *call
        if self.mode == MODE_LOST:
            return
        while self.first != NULL:
            call = self.first
            if call.polling:
                if not call.woken or not poll_look(self, call):
                    break
            elif not call.done:
                break
            elif call.next == NULL and (call.answer.status == <uint32_t>OUTCOME_MOVED or call.answer.status == <uint32_t>OUTCOME_NOT_QUEUE):
                self.hand_on_call(call)
                return
            elif call.route >= <uint32_t>ROUTE_CLAIM:
                answer_work(self, call)
            else:
                answer_append(self, call)
            if self.hub.output.used - self.hub.output_at > OUTPUT_BYTES_MAX:
                self.flush()
        if self.input.used > self.input_at:
            if self.head_ns:
                self.head_ns = self.hub.now_ns  # it had to wait for us
            self.go_on()
        self.end_turn()

    cdef hand_on_call(self, Call *call):
        # Its topic was deleted, and maybe made again, on the way: Falcon looks again, or says what is wrong. Nothing was committed.
        cdef Head head
        cdef size_t scanned = 0
        cdef int64_t head_bytes = http_head_end(call.raw.bytes, call.raw.used, &scanned)
        cdef bytes raw = PyBytes_FromStringAndSize(<const char *>call.raw.bytes, call.raw.used)
        cdef const uint8_t *at = raw
        self.pop()
        self.closing = False
        if head_bytes > 0 and http_head_parse(at, head_bytes, &head) == 0:
            self.start_lane(at, head_bytes, &head)
            self.to_lane(at + head_bytes, len(raw) - head_bytes)

    cdef refuse_head(self, int wrong):
        """Say that these bytes are no request, and serve nothing more."""
        self.say(self.hub.refusals.parser(*self.hub.parse_refusals[wrong]))


# ---- small rules -------------------------------------------------------------------------------------------------------------------

cdef inline bint flag_of(int route, const uint8_t *at, uint32_t size, bint *flag) noexcept nogil:
    # The one parameter that a hot route has, with a value that is plain: `return_seqs` of append, `touch` of state.
    cdef const char *name = b"return_seqs="
    cdef uint32_t count = 12
    if route == ROUTE_STATE:
        name, count = b"touch=", 6
    elif route != ROUTE_APPEND:
        return False
    if size <= count or memcmp(at, name, count) != 0:
        return False
    at += count
    size -= count
    if (size == 1 and at[0] == 0x31) or (size == 4 and memcmp(at, <const char *>b"true", 4) == 0):
        flag[0] = True
    elif (size == 1 and at[0] == 0x30) or (size == 5 and memcmp(at, <const char *>b"false", 5) == 0):
        flag[0] = False
    else:
        return False
    return True
