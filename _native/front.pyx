"""Serve HTTP/1.1 connections: hot routes at once, the rest through gunicorn and Falcon (page of truth: front.pxd)."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memmove, memset, strlen

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.buffer cimport PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.ref cimport PyObject

import secrets

import structlog

from topicsd._native.atomics cimport (
    add_32, clock_mono_ns, clock_wall_ms, fence_seq_cst, load_acquire_32, load_acquire_64, load_relaxed_64, store_relaxed_64)
from topicsd._native.diff cimport DiffResult, diff
from topicsd._native.http cimport (
    BODY_CHUNKED, BODY_NONE, HEAD_CLOSE, HEAD_ENCODED, HEAD_EXPECT, HEAD_GZIP, HEAD_HOST, HEAD_JSON, HEAD_TWICE, HEAD_UPGRADE, Head, ROUTE_APPEND,
    ROUTE_DIFF, ROUTE_NONE, ROUTE_STATE, Span, http_frame_done, http_frame_feed, http_head_end, http_head_parse, http_is, http_plain_id,
    http_route)
from topicsd._native.layout cimport (
    COMPLETION_BODY_DIFFERS, COMPLETION_CREATED, COMPLETION_DEDUPED, NO_SLOT, OUTCOME_MOVED, OUTCOME_OK, OUTCOME_UNKNOWN, completion)
from topicsd._native.meters cimport Meters, meter_request
from topicsd._native.port cimport Port, completed, submit_append_quietly
from topicsd._native.reader cimport Reader
from topicsd._native.regions cimport INFLIGHT_KEYS_MAX, Shared
from topicsd._native.render cimport AppendAnswer, buffer_free, buffer_need, buffer_shrink, put_bytes, put_text, put_u64, render_append
from topicsd._native.ring cimport RING_MASK, completion_done, completion_next, dirty_next, dirty_overflowed, ring_arm, ring_writer
from topicsd._native.scan cimport DiffRequest, Limits, diff_free, scan_diff, scan_write, write_free
from topicsd._native.state cimport READ_BUSY, READ_GONE, READ_OK, State, read_state, render_state, touch_topic
from topicsd._native.table cimport table_find

from topicsd._native.http import REFUSALS

cdef extern from "ring.h" nogil:
    void ring_bell(int fd)
    void quiet_bell(int fd)

cdef extern from "sha256.h" nogil:
    void sha256(const uint8_t *text, size_t size, uint8_t *digest)
    int digests_equal(const uint8_t *one, const uint8_t *other)

cdef extern from "<sys/socket.h>" nogil:
    ssize_t send(int fd, const void *at, size_t size, int flags)
    const int MSG_DONTWAIT
    const int MSG_NOSIGNAL

cdef extern from "<time.h>" nogil:
    ctypedef struct tm "struct tm":
        int tm_sec
    ctypedef long time_t
    tm *gmtime_r(const time_t *at, tm *out)
    size_t strftime(char *out, size_t room, const char *form, const tm *at)

cdef enum:
    SECOND_NS = 1000000000

cdef double TICK_S = 0.1
cdef uint64_t END_NS_MAX = 2 * <uint64_t>SECOND_NS        # a peer has so long to close after our last answer
cdef uint64_t STALL_NS_MAX = 60 * <uint64_t>SECOND_NS     # a peer that reads nothing for so long is cut off

log = structlog.get_logger("front")

cdef const char *HEX = b"0123456789abcdef"
cdef const char *EMPTY = b"{}"      # what a diff without a body says


cdef inline void bump(uint64_t *counter, int64_t by) noexcept nogil:
    store_relaxed_64(counter, load_relaxed_64(counter) + <uint64_t>by)


# ---- what all connections of a worker share ---------------------------------------------------------------------------------------

cdef class Hub(Port):
    """A worker's end of its ring, with the native front on top: it takes the answers of its own calls and passes on the others."""

    def __init__(self, Shared shared not None, uint32_t ring_slot, *, worker, Reader reader not None, Limits limits not None, keys, make_lane,
                 refusals,
                 uint64_t max_body_bytes, uint64_t gzip_bytes_min, uint64_t max_inflight_per_key, uint64_t wait_ms_max,
                 uint64_t held_bytes_max, bint native=True, Meters meters=None):
        cdef bytes begin
        Port.__init__(self, shared, ring_slot)
        self.worker, self.reader, self.make_lane, self.refusals = worker, reader, make_lane, refusals
        self.line = &shared.r.control.workers[ring_slot]
        self.native = native
        self.meters = meters if meters is not None else Meters(shared.r.ring_slots)
        self.meter = self.meters.line(ring_slot)
        begin = secrets.token_hex(6).encode()
        memcpy(self.id_begin, <const char *>begin, sizeof(self.id_begin))
        self.limits = limits.limits
        self.body_max = min(max_body_bytes, <uint64_t>BODY_NATIVE_MAX)
        self.gzip_min, self.inflight_max, self.poll_ms_max = gzip_bytes_min, max_inflight_per_key, wait_ms_max
        self.held_max = held_bytes_max
        self.parse_refusals = {code: refusals.parser(*told) for code, told in REFUSALS.items()}
        self.read_memory = bytearray(READ_BYTES)
        self.read_view = memoryview(self.read_memory)
        self.read_at = self.read_memory
        self.touched = []
        self.generation = load_acquire_64(&shared.r.control.generation)
        self.take_keys(keys)
        self.refresh()

    cdef take_keys(self, keys):
        cdef uint32_t n = 0
        cdef bytes digest
        prefixes = bytearray()
        if len(keys) > INFLIGHT_KEYS_MAX:
            raise ValueError(f"{len(keys)} keys, at most {INFLIGHT_KEYS_MAX}")
        self.keys = <Key *>calloc(max(len(keys), 1), sizeof(Key))
        if self.keys == NULL:
            raise MemoryError
        for digest, index, scopes, allowed in keys:
            if len(digest) != 32 or any(len(prefix) > 255 for prefix in allowed):
                # a prefix longer than any name allows none: leave such a key to Falcon, whose digest nothing equals here
                continue
            memcpy(self.keys[n].digest, <const uint8_t *>digest, 32)
            self.keys[n].index = index
            self.keys[n].scopes = ("read" in scopes) * SCOPE_READ | ("write" in scopes) * SCOPE_WRITE
            self.keys[n].prefixes_at = len(prefixes)
            self.keys[n].prefixes = len(allowed)
            for prefix in allowed:
                prefixes += bytes([len(prefix)]) + prefix
            n += 1
        self.prefixes = bytes(prefixes)
        self.key_count = n
        if len(keys) and not n:
            self.native = False

    def __dealloc__(self):
        cdef Call *call
        cdef uint32_t n
        for n in range(RING_DESCRIPTORS):
            if self.calls[n] != NULL:
                self.give_call(self.calls[n])
        while self.free_calls != NULL:
            call = self.free_calls
            self.free_calls = call.next
            diff_free(&call.diff)
            buffer_free(&call.raw)
            free(call)
        write_free(&self.write)
        diff_free(&self.diff)
        buffer_free(&self.output)
        for n in range(self.spare_count):
            buffer_free(&self.spares[n])
        free(self.keys)

    def open(self, loop):
        """Start the clock for connections and polls."""
        self.loop = loop
        self.call_soon, self.bell = loop.call_soon, self.ring_the_writer
        loop.call_later(TICK_S, self.tick, loop)

    def connection(self):
        """Return the protocol of a new connection."""
        return Front.__new__(Front, self)

    @property
    def polling(self):
        """How many reads wait here."""
        return self.poll_count

    def end_polls(self):
        """Answer all polls with what there is: the server drains."""
        self.draining = True
        self.wake_all()

    cdef bint leaving(self) noexcept nogil:
        """Tell whether the server drains: the arbiter says so before its signal is here."""
        return self.draining or load_acquire_64(&self.shared.r.control.draining) != 0

    # ---- calls

    cdef Call *take_call(self) noexcept:
        cdef Call *call = self.free_calls
        if call == NULL:
            return <Call *>calloc(1, sizeof(Call))
        self.free_calls = call.next
        return call

    cdef int room_for(self, Buffer *buffer, uint64_t size) noexcept:
        """Have an empty buffer take so many bytes, out of the spare ones where it can: 0 or -1."""
        cdef uint32_t n
        if size > buffer.room and size > <uint64_t>RAW_KEPT_MAX:
            for n in range(self.spare_count):
                if self.spares[n].room >= size:
                    buffer_free(buffer)
                    buffer[0] = self.spares[n]
                    self.spare_count -= 1
                    self.spares[n] = self.spares[self.spare_count]
                    break
        return buffer_need(buffer, size)

    cdef void give_buffer(self, Buffer *buffer) noexcept:
        # Keep a small one where it is, a large one for whoever needs it next.
        buffer.used = 0
        if buffer.room <= <uint64_t>RAW_KEPT_MAX:
            return
        if self.spare_count == SPARES_MAX or buffer.room > <uint64_t>SPARE_BYTES_MAX:
            buffer_free(buffer)
            return
        self.spares[self.spare_count] = buffer[0]
        self.spare_count += 1
        memset(buffer, 0, sizeof(Buffer))

    cdef void give_call(self, Call *call) noexcept:
        self.give_buffer(&call.raw)
        call.raw.used = 0
        call.owner = NULL
        call.done = call.polling = call.woken = False
        call.next = self.free_calls
        self.free_calls = call

    cdef void leave(self, Call *call) noexcept:
        # What an unfinished request is counted in.
        if call.key >= 0:
            add_32(&self.shared.r.inflight[self.ring.number * INFLIGHT_KEYS_MAX + <uint32_t>call.key], <uint32_t>-1)
            call.key = -1
        bump(&self.line.inflight, -1)

    cdef void settle(self, Call *call):
        call.done = True
        if call.owner != NULL:
            self.touch(<Front>call.owner)
            return
        if call.answer.status == <uint32_t>OUTCOME_OK:
            bump(&self.line.records_in, call.answer.count)
        self.leave(call)
        self.give_call(call)

    cdef void touch(self, Front front):
        if not front.touched:
            front.touched = True
            self.touched.append(front)

    cdef deliver(self):
        cdef Front front
        while self.touched:
            batch, self.touched = self.touched, []
            for front in batch:
                front.touched = False
                try:
                    front.advance()
                except Exception:
                    log.exception("a connection is given up")
                    front.abort()

    def drain(self, callback):
        cdef completion answer
        cdef const uint8_t *payload
        cdef Call *call
        cdef int drained = 0
        quiet_bell(self.ring.bell_fd)
        self.refresh()
        try:
            while True:
                while completion_next(self.ring, &answer, &payload):
                    drained += 1
                    call = self.calls[answer.token & RING_MASK]
                    if call != NULL and call.token == answer.token:
                        self.calls[answer.token & RING_MASK] = NULL
                        self.outstanding -= 1
                        call.answer = answer
                        completion_done(self.ring)
                        self.settle(call)
                        continue
                    out = completed(&answer, payload)
                    completion_done(self.ring)
                    callback(answer.token, out)
                ring_arm(self.ring)
                if not completion_next(self.ring, &answer, &payload):
                    break
            self.deliver()
            return drained
        except BaseException:
            ring_bell(self.ring.bell_fd)    # come back for the rest
            raise

    def ring_the_writer(self):
        """Ring once for all that this turn of the loop has submitted."""
        self.submitted = False
        ring_writer(self.ring)

    # ---- counters, keys, clocks

    cdef void count_in(self, uint64_t *counter, uint64_t body_bytes) noexcept:
        bump(&self.line.requests, 1)
        bump(&self.line.native_requests, 1)
        bump(counter, 1)
        bump(&self.line.inflight, 1)
        bump(&self.line.bytes_in, body_bytes)

    cdef void count_out(self, uint64_t body_bytes, uint32_t status) noexcept:
        bump(&self.line.bytes_out, body_bytes)
        meter_request(self.meter, self.asked.route, status, (clock_mono_ns() - self.asked.started_ns) // 1000)
        if status >= 500:
            bump(&self.line.errors_5xx, 1)

    cdef void ask(self, uint32_t route, const uint8_t *at, const Head *head) noexcept:
        cdef Asked *asked = &self.asked
        cdef uint32_t n
        asked.started_ns = self.now_ns
        asked.route = route                     # ROUTE_* are the numbers of api/operations.py, too
        asked.id_bytes = head.request_id.bytes
        if http_plain_id(at + head.request_id.at, asked.id_bytes):
            memcpy(asked.id, at + head.request_id.at, asked.id_bytes)
            return
        asked.id_bytes = 20
        memcpy(asked.id, self.id_begin, 12)
        self.ids += 1
        for n in range(8):
            asked.id[12 + n] = HEX[self.ids >> (28 - 4 * n) & 15]

    cdef int64_t key_of(self, const uint8_t *text, uint64_t size) noexcept:
        # The place of the key that `Bearer <token>` presents, -1. Every digest is compared, each in constant time, as in api/auth.py.
        cdef uint8_t digest[32]
        cdef int64_t found = -1
        cdef uint32_t n
        if size < 8 or not http_is(text, 7, b"bearer ", 7):
            return -1
        text += 7
        size -= 7
        while size and (text[0] == 0x20 or text[0] == 0x09):
            text += 1
            size -= 1
        sha256(text, size, digest)
        for n in range(self.key_count):
            if digests_equal(digest, self.keys[n].digest):
                found = n
        return found

    cdef bint may(self, int64_t place, uint32_t scope, const uint8_t *name, uint32_t name_bytes) noexcept:
        cdef Key *key = &self.keys[place]
        cdef const uint8_t *prefix = <const uint8_t *>self.prefixes + key.prefixes_at
        cdef uint32_t _
        if not key.scopes & scope:
            return False
        for _ in range(key.prefixes):
            if prefix[0] <= name_bytes and memcmp(prefix + 1, name, prefix[0]) == 0:
                return True
            prefix += 1 + prefix[0]
        return key.prefixes == 0

    cdef bint enter(self, int64_t key) noexcept:
        cdef uint64_t total = 0
        cdef uint32_t other
        if key < 0:
            return True
        add_32(&self.shared.r.inflight[self.ring.number * INFLIGHT_KEYS_MAX + <uint32_t>key], 1)
        fence_seq_cst()
        for other in range(self.shared.r.ring_slots):
            total += load_acquire_32(&self.shared.r.inflight[other * INFLIGHT_KEYS_MAX + <uint32_t>key])
        if total <= self.inflight_max:
            return True
        add_32(&self.shared.r.inflight[self.ring.number * INFLIGHT_KEYS_MAX + <uint32_t>key], <uint32_t>-1)
        return False

    cdef void refresh(self) noexcept:
        cdef time_t now
        cdef tm parts
        self.now_ns = clock_mono_ns()
        now = clock_wall_ms() // 1000
        if <uint64_t>now != self.date_s:
            self.date_s = now
            gmtime_r(&now, &parts)
            self.common_bytes = <uint32_t>strftime(<char *>self.common, sizeof(self.common),
                                                   b"Server: topicsd\r\nDate: %a, %d %b %Y %H:%M:%S GMT\r\n", &parts)

    cdef uint32_t place(self, const uint8_t *name, uint32_t name_bytes, uint64_t *topic_id) noexcept:
        # See Context.place: an id counts only while its slot has the name.
        cdef uint32_t slot = table_find(&self.shared.r, <const char *>name, name_bytes)
        cdef uint32_t again
        while slot != NO_SLOT:
            topic_id[0] = load_relaxed_64(&self.shared.r.table[slot].topic_id)
            again = table_find(&self.shared.r, <const char *>name, name_bytes)
            if again == slot and topic_id[0]:
                return slot
            slot = again
        return NO_SLOT

    # ---- polls

    cdef void poll_add(self, Call *call, uint32_t slot) noexcept:
        # With or without a slot: without one it waits for a new writer.
        call.slot = slot
        call.bucket = slot % POLL_BUCKETS
        call.polling = True
        call.woken = False
        call.poll_previous = NULL
        call.poll_next = self.polls[call.bucket]
        if call.poll_next != NULL:
            call.poll_next.poll_previous = call
        self.polls[call.bucket] = call
        self.poll_count += 1

    cdef void poll_remove(self, Call *call) noexcept:
        if not call.polling:
            return
        call.polling = False
        self.poll_count -= 1
        if call.poll_next != NULL:
            call.poll_next.poll_previous = call.poll_previous
        if call.poll_previous != NULL:
            call.poll_previous.poll_next = call.poll_next
        else:
            self.polls[call.bucket] = call.poll_next

    cdef wake_slot(self, uint32_t slot):
        cdef Call *call = self.polls[slot % POLL_BUCKETS]
        while call != NULL:
            if call.slot == slot:
                call.woken = True
                self.touch(<Front>call.owner)
            call = call.poll_next

    def wake_all(self):
        """Let every poll look again."""
        cdef Call *call
        cdef uint32_t n
        for n in range(<uint32_t>POLL_BUCKETS):
            call = self.polls[n]
            while call != NULL:
                call.woken = True
                self.touch(<Front>call.owner)
                call = call.poll_next
        self.refresh()
        self.deliver()

    def unwatch(self, uint32_t slot):
        cdef Call *call = self.polls[slot % POLL_BUCKETS]
        while call != NULL:
            if call.slot == slot:
                return                      # one of ours still waits for it
            call = call.poll_next
        Port.unwatch(self, slot)

    def dirty(self):
        cdef uint32_t slot
        cdef list slots
        if dirty_overflowed(self.ring):
            self.wake_all()
            return None
        slots = []
        while dirty_next(self.ring, &slot):
            slots.append(slot)
            if self.poll_count:
                self.wake_slot(slot)
        if self.touched:
            self.deliver()
        return slots

    cdef arm_polls(self, uint64_t deadline_ns):
        if self.timer is not None:
            if self.poll_timer_ns <= deadline_ns:
                return
            self.timer.cancel()
        self.poll_timer_ns = deadline_ns
        self.timer = self.loop.call_later(max(<double>deadline_ns - <double>self.now_ns, 0.0) / SECOND_NS + 0.0005, self.polls_due)

    def polls_due(self):
        """End the polls whose time is up."""
        cdef Call *call
        cdef uint64_t nearest = 0
        cdef uint32_t n
        self.timer = None
        self.refresh()
        for n in range(<uint32_t>POLL_BUCKETS):
            call = self.polls[n]
            while call != NULL:
                if call.deadline_ns <= self.now_ns:
                    call.woken = True
                    self.touch(<Front>call.owner)
                elif nearest == 0 or call.deadline_ns < nearest:
                    nearest = call.deadline_ns
                call = call.poll_next
        self.deliver()
        if nearest:
            self.arm_polls(nearest)

    # ---- the clock

    def tick(self, loop=None):
        """Notice a dead writer, slow and idle peers."""
        cdef Front front
        self.refresh()
        self.look()
        for front in list(self.worker.connections):
            front.check()
        if loop is not None:
            loop.call_later(TICK_S, self.tick, loop)

    def look(self):
        """Answer what a writer that died had in hand; let polls look at its successor."""
        cdef uint64_t generation = load_acquire_64(&self.shared.r.control.generation)
        cdef bint ready = load_acquire_64(&self.shared.r.control.ready) != 0
        cdef Call *call
        cdef uint32_t n
        if ready and generation == self.generation:
            return
        for n in range(RING_DESCRIPTORS):
            call = self.calls[n]
            if call != NULL and (not ready or call.generation != generation):
                self.calls[n] = NULL
                self.outstanding -= 1
                call.answer.status = OUTCOME_UNKNOWN
                self.settle(call)
        self.deliver()
        if ready:
            self.generation = generation
            self.wake_all()


# ---- one connection -----------------------------------------------------------------------------------------------------------------

cdef class Front:
    """One connection: a BufferedProtocol of asyncio (it is none by class: uvloop asks for `get_buffer` only)."""

    def __cinit__(self, Hub hub not None):
        self.hub = hub
        self.fd = -1
        self.mode = MODE_LOST

    def __dealloc__(self):
        buffer_free(&self.input)

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
            return self.hub.read_view
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
        self.end_turn()

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
            if key < 0 or not hub.may(key, SCOPE_WRITE if route == ROUTE_APPEND else SCOPE_READ, at + name.at, name.bytes):
                return HAND_ON
            key = hub.keys[key].index if hub.inflight_max else -1
        if self.queued >= CALLS_MAX or (self.last != NULL and (route != ROUTE_APPEND or self.last.route == <uint32_t>ROUTE_DIFF)):
            return WAIT_FOR_QUEUE
        if head.length and not head.flags & HEAD_JSON:
            return HAND_ON
        if size < head_bytes + head.length:
            return WAIT_FOR_BYTES
        if route == ROUTE_APPEND:
            return self.serve_append(at, head_bytes, head, at + name.at, name.bytes, key, flag)
        if route == ROUTE_DIFF:
            return self.serve_diff(at, head_bytes, head, at + name.at, name.bytes, key)
        return HAND_ON if head.body != BODY_NONE else self.serve_state(at, head, at + name.at, name.bytes, key, flag)

    cdef int serve_append(self, const uint8_t *at, uint64_t head_bytes, const Head *head, const uint8_t *name, uint32_t name_bytes, int64_t key,
                          bint return_seqs) except -1:
        cdef Hub hub = self.hub
        cdef uint64_t topic_id = 0
        cdef uint64_t size = head_bytes + head.length
        cdef uint32_t slot
        cdef bint owned
        cdef Call *call
        if not plain_key(at + head.key.at, head.key.bytes) or is_system(name, name_bytes) or head.length == 0:
            return HAND_ON
        slot = hub.place(name, name_bytes, &topic_id)
        if slot == NO_SLOT or scan_write(at + head_bytes, head.length, &hub.limits, &hub.write) != 0 or hub.write.has_config:
            return HAND_ON
        if head.flags & HEAD_GZIP and 360 + name_bytes + (21 * <uint64_t>hub.write.count if return_seqs else 0) > hub.gzip_min:
            return HAND_ON                      # its answer may be worth compressing
        call = hub.take_call()
        if call == NULL:
            raise MemoryError
        owned = at == self.input.bytes and size == self.input.used      # the only one there
        if (not owned and hub.room_for(&call.raw, size) != 0) or not hub.enter(key):
            hub.give_call(call)
            return HAND_ON
        call.key = key
        if submit_append_quietly(hub.ring, slot, topic_id, &hub.write, at + head.key.at, head.key.bytes, &call.token) != 0:
            self.leave_key(key)
            call.key = -1
            hub.give_call(call)
            return HAND_ON
        if owned:
            call.raw, self.input = self.input, call.raw
            self.input.used = 0
        else:
            memcpy(call.raw.bytes, at, size)
        call.raw.used = size
        call.generation = load_acquire_64(&hub.shared.r.control.generation)
        call.started_ns = hub.now_ns
        call.route = ROUTE_APPEND
        call.close = head.flags & HEAD_CLOSE != 0
        call.return_seqs = return_seqs
        call.name_bytes = name_bytes
        memcpy(call.name, name, name_bytes)
        hub.calls[call.token & RING_MASK] = call
        hub.outstanding += 1
        if hub.outstanding == 1:
            ring_writer(hub.ring)               # the writer has nothing else of ours: the shortest way
        elif not hub.submitted:
            hub.submitted = True
            hub.call_soon(hub.bell)             # it is at work, or about to be: one bell for all of this turn
        hub.count_in(&hub.line.native_append, head.length)
        hub.ask(ROUTE_APPEND, at, head)
        call.asked = hub.asked
        self.push(call)
        self.closing = call.close
        return SERVED

    cdef int serve_diff(self, const uint8_t *at, uint64_t head_bytes, const Head *head, const uint8_t *name, uint32_t name_bytes,
                        int64_t key) except -1:
        cdef Hub hub = self.hub
        cdef uint64_t topic_id = 0
        cdef uint64_t begin
        cdef uint32_t slot = hub.place(name, name_bytes, &topic_id)
        cdef DiffResult result
        cdef Call *call
        if slot == NO_SLOT or hub.reader.busy:
            return HAND_ON
        if scan_diff(at + head_bytes if head.length else <const uint8_t *>EMPTY, head.length if head.length else 2, &hub.diff) != 0:
            return HAND_ON
        if not hub.enter(key):
            return HAND_ON
        begin = self.answer_begin()
        if diff(&hub.reader.core, slot, topic_id, &hub.diff, clock_wall_ms(), hub.now_ns, &hub.output, &result) != READ_OK or (
                head.flags & HEAD_GZIP and (hub.output.used - begin > hub.gzip_min or (result.would_wait and hub.diff.wait_ms))):
            self.answer_drop(begin)             # an answer that may be compressed is Falcon's
            self.leave_key(key)
            return HAND_ON
        if not result.would_wait or hub.diff.wait_ms == 0 or self.half_closed:     # who has finished sending has most likely left
            self.leave_key(key)
            hub.count_in(&hub.line.native_diff, head.length)
            bump(&hub.line.inflight, -1)
            hub.ask(ROUTE_DIFF, at, head)
            self.answer_end(begin, b"HTTP/1.1 200 OK\r\n", head.flags & HEAD_CLOSE != 0)
            return SERVED
        self.answer_drop(begin)
        call = hub.take_call()
        if call == NULL:
            raise MemoryError
        hub.count_in(&hub.line.native_diff, head.length)
        hub.ask(ROUTE_DIFF, at, head)
        call.asked = hub.asked
        call.key, call.route, call.started_ns, call.topic_id = key, ROUTE_DIFF, hub.now_ns, topic_id
        call.close = head.flags & HEAD_CLOSE != 0
        call.name_bytes = name_bytes
        memcpy(call.name, name, name_bytes)
        diff_free(&call.diff)
        call.diff = hub.diff                    # with what it owns
        memset(&hub.diff, 0, sizeof(DiffRequest))
        call.diff.from_seq = max(call.diff.from_seq, result.next_seq)
        call.deadline_ns = hub.now_ns + min(<uint64_t>call.diff.wait_ms, hub.poll_ms_max) * 1000000
        bump(&hub.line.long_polls, 1)
        hub.poll_add(call, slot)
        self.push(call)
        self.closing = call.close
        call.woken = True
        if not self.poll_look(call):            # the watch is set now: look again
            hub.arm_polls(call.deadline_ns)
        return SERVED

    cdef bint poll_look(self, Call *call) except -1:
        """Look whether a poll has its answer; then it is in `output` and the call is gone."""
        cdef Hub hub = self.hub
        cdef DiffResult result
        cdef bint over = hub.leaving() or hub.now_ns >= call.deadline_ns
        cdef bint ready = load_acquire_64(&hub.shared.r.control.ready) != 0
        cdef uint32_t slot = NO_SLOT
        cdef uint64_t begin
        cdef int status
        call.woken = False
        if ready:
            slot = table_find(&hub.shared.r, <const char *>call.name, call.name_bytes)
            ready = load_acquire_64(&hub.shared.r.control.ready) != 0
        if slot == NO_SLOT:
            if ready:
                self.refuse_call(call, hub.refusals.gone((<const char *>call.name)[:call.name_bytes]))
                return True
            if over:
                self.refuse_call(call, hub.refusals.not_ready())
            return over
        if slot != call.slot:
            hub.poll_remove(call)
            hub.poll_add(call, slot)
        hub.watch(slot)
        begin = self.answer_begin()
        status = diff(&hub.reader.core, slot, call.topic_id, &call.diff, clock_wall_ms(), call.started_ns, &hub.output, &result)
        if status == READ_OK and result.would_wait and not over:
            self.answer_drop(begin)
            call.diff.from_seq = max(call.diff.from_seq, result.next_seq)
            return False
        if status == READ_OK:
            hub.asked = call.asked
            self.answer_end(begin, b"HTTP/1.1 200 OK\r\n", call.close)
            self.pop()
            return True
        self.answer_drop(begin)
        if status == READ_GONE:
            self.refuse_call(call, hub.refusals.gone((<const char *>call.name)[:call.name_bytes]))
        elif status == READ_BUSY:
            self.refuse_call(call, hub.refusals.busy())
        else:
            self.refuse_call(call, hub.refusals.unreadable(result.failed_seq))
        return True

    cdef int serve_state(self, const uint8_t *at, const Head *head, const uint8_t *name, uint32_t name_bytes, int64_t key, bint touch) except -1:
        cdef Hub hub = self.hub
        cdef State state
        cdef uint64_t begin
        cdef uint64_t now_ms
        cdef uint32_t slot = table_find(&hub.shared.r, <const char *>name, name_bytes)
        if slot == NO_SLOT or not hub.enter(key):
            return HAND_ON
        self.leave_key(key)
        now_ms = clock_wall_ms()
        if touch:
            touch_topic(&hub.shared.r, slot, now_ms)
        if read_state(&hub.shared.r, slot, now_ms, &state) != READ_OK:
            return HAND_ON
        if state.view.name_bytes != name_bytes or memcmp(state.view.name, name, name_bytes) != 0:
            return HAND_ON                      # the slot has been given to another topic since
        begin = self.answer_begin()
        if render_state(&hub.output, &state, (clock_mono_ns() - hub.now_ns) // 1000) != 0:
            raise MemoryError
        if head.flags & HEAD_GZIP and hub.output.used - begin > hub.gzip_min:
            self.answer_drop(begin)
            return HAND_ON
        hub.count_in(&hub.line.native_state, 0)
        bump(&hub.line.inflight, -1)
        hub.ask(ROUTE_STATE, at, head)
        self.answer_end(begin, b"HTTP/1.1 200 OK\r\n", head.flags & HEAD_CLOSE != 0)
        return SERVED

    cdef void leave_key(self, int64_t key) noexcept:
        if key >= 0:
            add_32(&self.hub.shared.r.inflight[self.hub.ring.number * INFLIGHT_KEYS_MAX + <uint32_t>key], <uint32_t>-1)

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

    cdef advance(self):
        """Answer what is done, in order, then go on reading."""
        cdef Call *call
        if self.mode == MODE_LOST:
            return
        while self.first != NULL:
            call = self.first
            if call.polling:
                if not call.woken or not self.poll_look(call):
                    break
            elif not call.done:
                break
            elif call.answer.status == <uint32_t>OUTCOME_MOVED and call.next == NULL:
                self.hand_on_call(call)
                return
            else:
                self.answer_append(call)
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

    # ---- answers

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

    cdef answer_append(self, Call *call):
        cdef Hub hub = self.hub
        cdef AppendAnswer answer
        cdef uint64_t begin
        if call.answer.status != <uint32_t>OUTCOME_OK:
            self.refuse_call(call, hub.refusals.of(completed(&call.answer, b"")))
            return
        answer.topic = <const char *>call.name
        answer.topic_bytes = call.name_bytes
        answer.first_seq, answer.count, answer.head = call.answer.first_seq, call.answer.count, call.answer.head
        answer.created = call.answer.flags & COMPLETION_CREATED != 0
        answer.deduped = call.answer.flags & COMPLETION_DEDUPED != 0
        answer.body_differs = call.answer.flags & COMPLETION_BODY_DIFFERS != 0
        answer.return_seqs = call.return_seqs
        answer.total_us = (hub.now_ns - call.started_ns) // 1000
        answer.wal_us, answer.fsync_us = call.answer.wal_us, call.answer.fsync_us
        begin = self.answer_begin()
        if render_append(&hub.output, &answer) != 0:
            raise MemoryError
        bump(&hub.line.records_in, call.answer.count)
        hub.asked = call.asked
        self.answer_end(begin, b"HTTP/1.1 201 Created\r\n" if answer.created else b"HTTP/1.1 200 OK\r\n", call.close)
        self.pop()

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

    cdef refuse_head(self, int wrong):
        """Say that these bytes are no request, and serve nothing more."""
        self.say(self.hub.parse_refusals[wrong])

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


# ---- small rules -------------------------------------------------------------------------------------------------------------------

cdef inline bint is_system(const uint8_t *name, uint32_t size) noexcept nogil:
    return size >= 7 and memcmp(name, <const char *>b"system.", 7) == 0


cdef inline bint plain_key(const uint8_t *at, uint32_t size) noexcept nogil:
    # An Idempotency-Key that is its own canonical form (scan_text.h): printable ASCII without quote and backslash, at most 256.
    cdef uint32_t n
    for n in range(size):
        if at[n] < 0x20 or at[n] > 0x7E or at[n] == 0x22 or at[n] == 0x5C:
            return False
    return size <= 256


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
