"""Share a worker's ring, waiting calls and reads, keys and buffers among its connections (page of truth: hub.pxd)."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

import secrets

import structlog

from topicsd._native.atomics cimport add_32, clock_mono_ns, clock_wall_ms, fence_seq_cst, load_acquire_32, load_acquire_64, load_relaxed_64
from topicsd._native.http cimport Head, ROUTE_APPEND, http_is, http_plain_id
from topicsd._native.layout cimport NO_SLOT, OUTCOME_OK, OUTCOME_UNKNOWN, completion
from topicsd._native.meters cimport Meters, meter_request
from topicsd._native.port cimport Port, completed
from topicsd._native.reader cimport Reader
from topicsd._native.regions cimport INFLIGHT_KEYS_MAX, Shared
from topicsd._native.render cimport buffer_free, buffer_need
from topicsd._native.ring cimport RING_MASK, completion_done, completion_next, dirty_next, dirty_overflowed, ring_arm, ring_writer
from topicsd._native.scan cimport Limits, diff_free, write_free
from topicsd._native.table cimport table_find

from topicsd._native.http import REFUSALS

cdef extern from "ring.h" nogil:
    void ring_bell(int fd)
    void quiet_bell(int fd)

cdef extern from "sha256.h" nogil:
    void sha256(const uint8_t *text, size_t size, uint8_t *digest)
    int digests_equal(const uint8_t *one, const uint8_t *other)

cdef extern from "<time.h>" nogil:
    ctypedef struct tm "struct tm":
        int tm_sec
    ctypedef long time_t
    tm *gmtime_r(const time_t *at, tm *out)
    size_t strftime(char *out, size_t room, const char *form, const tm *at)

cdef double TICK_S = 0.1

log = structlog.get_logger("front")

cdef const char *HEX = b"0123456789abcdef"


cdef class Connection:
    """What the hub knows of a connection (Front is one): that it has to be looked at. A Front has `check` and `abort` besides."""

    cdef advance(self):
        """Answer what is done, then go on reading. One that only this class knows has nothing to answer."""


cdef class Hub(Port):
    """A worker's end of its ring, with the native front on top: it takes the answers of its own calls and passes on the others."""

    def __init__(self, Shared shared not None, uint32_t ring_slot, *, worker, Reader reader not None, Limits limits not None, keys, make_lane,
                 refusals,
                 uint64_t max_body_bytes, uint64_t gzip_bytes_min, uint64_t max_inflight_per_key, uint64_t wait_ms_max,
                 uint64_t held_bytes_max, uint64_t max_claim=1000, bint native=True, Meters meters=None):
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
        self.claim_max = max_claim
        self.parse_refusals = dict(REFUSALS)
        self.read_memory = bytearray(READ_BYTES)
        self.read_view = memoryview(self.read_memory)
        self.head_view = self.read_view[:READ_HEAD_BYTES]
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
            buffer_free(&call.told)
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
        self.give_buffer(&call.told)
        call.raw.used = call.told.used = 0
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
            self.touch(<Connection>call.owner)
            return
        if call.answer.status == <uint32_t>OUTCOME_OK and call.route == <uint32_t>ROUTE_APPEND:
            bump(&self.line.records_in, call.answer.count)
        self.leave(call)
        self.give_call(call)

    cdef void touch(self, Connection line):
        if not line.touched:
            line.touched = True
            self.touched.append(line)

    cdef deliver(self):
        cdef Connection line
        while self.touched:
            batch, self.touched = self.touched, []
            for line in batch:
                line.touched = False
                try:
                    line.advance()
                except Exception:
                    log.exception("a connection is given up")
                    line.abort()

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
                        if answer.payload_bytes and buffer_need(&call.told, answer.payload_bytes) == 0:
                            memcpy(call.told.bytes, payload, answer.payload_bytes)
                            call.told.used = answer.payload_bytes
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
        self.unrung = 0
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
                self.touch(<Connection>call.owner)
            call = call.poll_next

    def wake_all(self):
        """Let every poll look again."""
        cdef Call *call
        cdef uint32_t n
        for n in range(<uint32_t>POLL_BUCKETS):
            call = self.polls[n]
            while call != NULL:
                call.woken = True
                self.touch(<Connection>call.owner)
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
                    self.touch(<Connection>call.owner)
                elif nearest == 0 or call.deadline_ns < nearest:
                    nearest = call.deadline_ns
                call = call.poll_next
        self.deliver()
        if nearest:
            self.arm_polls(nearest)

    # ---- the clock

    def tick(self, loop=None):
        """Notice a dead writer, slow and idle peers."""
        cdef Connection line
        self.refresh()
        self.look()
        for line in list(self.worker.connections):
            line.check()
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
