"""Serve the hot routes: append, diff with its long poll, state (page of truth: hot_routes.pxd)."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from topicsd._native.atomics cimport clock_mono_ns, clock_wall_ms, load_acquire_64, load_relaxed_64
from topicsd._native.diff cimport DiffResult, diff
from topicsd._native.http cimport HEAD_CLOSE, HEAD_GZIP, ROUTE_APPEND, ROUTE_DIFF, ROUTE_STATE
from topicsd._native.hub cimport UNRUNG_BYTES_MAX, Hub, bump
from topicsd._native.layout cimport COMPLETION_BODY_DIFFERS, COMPLETION_CREATED, COMPLETION_DEDUPED, NO_SLOT, OUTCOME_OK
from topicsd._native.port cimport completed, submit_append_quietly
from topicsd._native.priority cimport effective_priority
from topicsd._native.render cimport AppendAnswer, render_append
from topicsd._native.ring cimport RING_MASK, ring_writer
from topicsd._native.scan cimport DiffRequest, diff_free, scan_diff, scan_write
from topicsd._native.scheduler cimport band_of
from topicsd._native.state cimport READ_BUSY, READ_GONE, READ_OK, State, read_state, render_state, touch_topic
from topicsd._native.table cimport table_find

cdef const char *EMPTY = b"{}"      # what a diff without a body says


cdef inline bint plain_key(const uint8_t *at, uint32_t size) noexcept nogil:
    # An Idempotency-Key that is its own canonical form (scan_text.h): printable ASCII without quote and backslash, at most 256.
    cdef uint32_t n
    for n in range(size):
        if at[n] < 0x20 or at[n] > 0x7E or at[n] == 0x22 or at[n] == 0x5C:
            return False
    return size <= 256


cdef submitted_call(Answers line, Call *call):
    cdef Hub hub = line.hub
    hub.calls[call.token & RING_MASK] = call
    hub.outstanding += 1
    hub.unrung += call.raw.used
    if hub.outstanding == 1 or hub.unrung >= <uint64_t>UNRUNG_BYTES_MAX:
        hub.unrung = 0
        ring_writer(hub.ring)               # the writer has nothing else of ours, or so much of it is there that it is worth a wake
    elif not hub.submitted:
        hub.submitted = True
        hub.call_soon(hub.bell)             # it is at work, or about to be: one bell for all of this turn
    call.asked = hub.asked
    line.push(call)
    line.closing = call.close


cdef int serve_append(Answers line, const uint8_t *at, uint64_t head_bytes, const Head *head, const uint8_t *name, uint32_t name_bytes, int64_t key,
                      bint return_seqs) except -1:
    cdef Hub hub = line.hub
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
    if hub.write_band_least and hub.write.disable_backpressure != 1 and band_of(
            effective_priority(&hub.shared.r.table[slot].config, load_relaxed_64(&hub.shared.r.table[slot].last_read_ms), clock_wall_ms()),
            0) < hub.write_band_least:
        return HAND_ON                          # under pressure it waits its turn there, or is refused
    if head.flags & HEAD_GZIP and 360 + name_bytes + (21 * <uint64_t>hub.write.count if return_seqs else 0) > hub.gzip_min:
        return HAND_ON                      # its answer may be worth compressing
    call = hub.take_call()
    if call == NULL:
        raise MemoryError
    owned = at == line.input.bytes and size == line.input.used      # the only one there
    if (not owned and hub.room_for(&call.raw, size) != 0) or not hub.enter(key):
        hub.give_call(call)
        return HAND_ON
    call.key = key
    if submit_append_quietly(hub.ring, slot, topic_id, &hub.write, at + head.key.at, head.key.bytes, &call.token) != 0:
        line.leave_key(key)
        call.key = -1
        hub.give_call(call)
        return HAND_ON
    if owned:
        call.raw, line.input = line.input, call.raw
        line.input.used = 0
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
    hub.count_in(&hub.line.native_append, head.length)
    hub.ask(ROUTE_APPEND, at, head)
    submitted_call(line, call)
    return SERVED


cdef int serve_diff(Answers line, const uint8_t *at, uint64_t head_bytes, const Head *head, const uint8_t *name, uint32_t name_bytes,
                    int64_t key) except -1:
    cdef Hub hub = line.hub
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
    begin = line.answer_begin()
    if diff(&hub.reader.core, slot, topic_id, &hub.diff, clock_wall_ms(), hub.now_ns, &hub.output, &result) != READ_OK or (
            head.flags & HEAD_GZIP and (hub.output.used - begin > hub.gzip_min or (result.would_wait and hub.diff.wait_ms))):
        line.answer_drop(begin)             # an answer that may be compressed is Falcon's
        line.leave_key(key)
        return HAND_ON
    if not result.would_wait or hub.diff.wait_ms == 0 or line.half_closed:     # who has finished sending has most likely left
        line.leave_key(key)
        hub.count_in(&hub.line.native_diff, head.length)
        bump(&hub.line.inflight, -1)
        hub.ask(ROUTE_DIFF, at, head)
        line.answer_end(begin, b"HTTP/1.1 200 OK\r\n", head.flags & HEAD_CLOSE != 0)
        return SERVED
    line.answer_drop(begin)
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
    line.push(call)
    line.closing = call.close
    call.woken = True
    if not poll_look(line, call):            # the watch is set now: look again
        hub.arm_polls(call.deadline_ns)
    return SERVED


cdef bint poll_look(Answers line, Call *call) except -1:
    """Look whether a poll has its answer; then it is in `output` and the call is gone."""
    cdef Hub hub = line.hub
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
            line.refuse_call(call, hub.refusals.gone((<const char *>call.name)[:call.name_bytes]))
            return True
        if over:
            line.refuse_call(call, hub.refusals.not_ready())
        return over
    if slot != call.slot:
        hub.poll_remove(call)
        hub.poll_add(call, slot)
    hub.watch(slot)
    begin = line.answer_begin()
    status = diff(&hub.reader.core, slot, call.topic_id, &call.diff, clock_wall_ms(), call.started_ns, &hub.output, &result)
    if status == READ_OK and result.would_wait and not over:
        line.answer_drop(begin)
        call.diff.from_seq = max(call.diff.from_seq, result.next_seq)
        return False
    if status == READ_OK:
        hub.asked = call.asked
        line.answer_end(begin, b"HTTP/1.1 200 OK\r\n", call.close)
        line.pop()
        return True
    line.answer_drop(begin)
    if status == READ_GONE:
        line.refuse_call(call, hub.refusals.gone((<const char *>call.name)[:call.name_bytes]))
    elif status == READ_BUSY:
        line.refuse_call(call, hub.refusals.busy())
    else:
        line.refuse_call(call, hub.refusals.unreadable(result.failed_seq))
    return True


cdef int serve_state(Answers line, const uint8_t *at, const Head *head, const uint8_t *name, uint32_t name_bytes, int64_t key, bint touch) except -1:
    cdef Hub hub = line.hub
    cdef State state
    cdef uint64_t begin
    cdef uint64_t now_ms
    cdef uint32_t slot = table_find(&hub.shared.r, <const char *>name, name_bytes)
    if slot == NO_SLOT or not hub.enter(key):
        return HAND_ON
    line.leave_key(key)
    now_ms = clock_wall_ms()
    if touch:
        touch_topic(&hub.shared.r, slot, now_ms)
    if read_state(&hub.shared.r, slot, now_ms, &state) != READ_OK:
        return HAND_ON
    if state.view.name_bytes != name_bytes or memcmp(state.view.name, name, name_bytes) != 0:
        return HAND_ON                      # the slot has been given to another topic since
    begin = line.answer_begin()
    if render_state(&hub.output, &state, (clock_mono_ns() - hub.now_ns) // 1000) != 0:
        raise MemoryError
    if head.flags & HEAD_GZIP and hub.output.used - begin > hub.gzip_min:
        line.answer_drop(begin)
        return HAND_ON
    hub.count_in(&hub.line.native_state, 0)
    bump(&hub.line.inflight, -1)
    hub.ask(ROUTE_STATE, at, head)
    line.answer_end(begin, b"HTTP/1.1 200 OK\r\n", head.flags & HEAD_CLOSE != 0)
    return SERVED


cdef answer_append(Answers line, Call *call):
    cdef Hub hub = line.hub
    cdef AppendAnswer answer
    cdef uint64_t begin
    if call.answer.status != <uint32_t>OUTCOME_OK:
        line.refuse_call(call, hub.refusals.of(completed(&call.answer, b"")))
        return
    answer.topic = <const char *>call.name
    answer.topic_bytes = call.name_bytes
    answer.first_seq, answer.count, answer.head = call.answer.first_seq, call.answer.count, call.answer.head
    answer.created = call.answer.flags & COMPLETION_CREATED != 0
    answer.deduped = call.answer.flags & COMPLETION_DEDUPED != 0
    answer.body_differs = call.answer.flags & COMPLETION_BODY_DIFFERS != 0
    answer.return_seqs = call.return_seqs
    answer.total_us = (hub.now_ns - call.started_ns) // 1000
    answer.wal_us, answer.fsync_us, answer.parked_us = call.answer.wal_us, call.answer.fsync_us, 0
    begin = line.answer_begin()
    if render_append(&hub.output, &answer) != 0:
        raise MemoryError
    bump(&hub.line.records_in, call.answer.count)
    hub.asked = call.asked
    line.answer_end(begin, b"HTTP/1.1 201 Created\r\n" if answer.created else b"HTTP/1.1 200 OK\r\n", call.close)
    line.pop()
