"""Serve claim, ack, nack and extend (page of truth: queue_routes.pxd)."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from topicsd._native.atomics cimport clock_wall_ms, load_acquire_64
from topicsd._native.hot_routes cimport HAND_ON, SERVED, is_system, submitted_call
from topicsd._native.http cimport HEAD_CLOSE, HEAD_GZIP, ROUTE_ACK, ROUTE_CLAIM, ROUTE_NACK
from topicsd._native.hub cimport Hub
from topicsd._native.layout cimport NO_SLOT, OUTCOME_OK, TOPIC_QUEUE
from topicsd._native.port cimport completed
from topicsd._native.queue_wire cimport LEASE_ACK, LEASE_CLAIM, LEASE_EXTEND, LEASE_RELEASE
from topicsd._native.state cimport READ_BUSY, READ_GONE, READ_OK
from topicsd._native.work cimport tell_unreadable
from topicsd._native.work_hot cimport MEMBER_MAX, QUEUE_SCAN_OK, queue_scan, render_claimed, render_settled, submit_work

cdef enum:
    JOB_BYTES_GUESSED = 512       # of a job in an answer, when it is to be known whether the answer is worth compressing


cdef inline uint32_t verb_of(uint32_t route) noexcept nogil:
    if route == <uint32_t>ROUTE_CLAIM:
        return LEASE_CLAIM
    return LEASE_ACK if route == <uint32_t>ROUTE_ACK else LEASE_RELEASE if route == <uint32_t>ROUTE_NACK else LEASE_EXTEND


cdef inline uint64_t *counter_of(Hub hub, uint32_t route) noexcept nogil:
    if route == <uint32_t>ROUTE_CLAIM:
        return &hub.line.native_claim
    if route == <uint32_t>ROUTE_ACK:
        return &hub.line.native_ack
    return &hub.line.native_nack if route == <uint32_t>ROUTE_NACK else &hub.line.native_extend


cdef uint64_t _guessed_bytes(Hub hub, uint32_t route, uint32_t name_bytes) noexcept nogil:
    if route == <uint32_t>ROUTE_CLAIM:
        return 360 + name_bytes + JOB_BYTES_GUESSED * (hub.work.max if hub.work.has & MEMBER_MAX else 1)
    return 360 + name_bytes + 21 * <uint64_t>hub.work.count


cdef int serve_work(Answers line, uint32_t route, const uint8_t *at, uint64_t head_bytes, const Head *head, const uint8_t *name, uint32_t name_bytes,
                    int64_t key) except -1:
    cdef Hub hub = line.hub
    cdef uint64_t topic_id = 0, size = head_bytes + head.length
    cdef uint32_t slot
    cdef Call *call
    if is_system(name, name_bytes) or head.length == 0 or queue_scan(at + head_bytes, head.length, &hub.work) != QUEUE_SCAN_OK:
        return HAND_ON
    if head.flags & HEAD_GZIP and _guessed_bytes(hub, route, name_bytes) > hub.gzip_min:
        return HAND_ON
    slot = hub.place(name, name_bytes, &topic_id)
    if slot == NO_SLOT or hub.reader.busy or hub.shared.r.table[slot].config.type != TOPIC_QUEUE:
        return HAND_ON
    if route == <uint32_t>ROUTE_CLAIM and hub.shared.r.table[slot].config.claim_jitter_ms:
        return HAND_ON
    call = hub.take_call()
    if call == NULL:
        raise MemoryError
    if hub.room_for(&call.raw, size) != 0 or not hub.enter(key):
        hub.give_call(call)
        return HAND_ON
    call.key = key
    if submit_work(hub.ring, slot, topic_id, verb_of(route), &hub.work, hub.limits.max_node_bytes, hub.claim_max, &call.token) != 0:
        line.leave_key(key)
        call.key = -1
        hub.give_call(call)
        return HAND_ON
    memcpy(call.raw.bytes, at, size)
    call.raw.used, call.body_at = size, <uint32_t>head_bytes
    call.generation = load_acquire_64(&hub.shared.r.control.generation)
    call.started_ns, call.route, call.slot, call.topic_id = hub.now_ns, route, slot, topic_id
    call.close = head.flags & HEAD_CLOSE != 0
    call.name_bytes = name_bytes
    memcpy(call.name, name, name_bytes)
    hub.count_in(counter_of(hub, route), head.length)
    hub.ask(route, at, head)
    submitted_call(line, call)
    return SERVED


cdef answer_work(Answers line, Call *call):
    cdef Hub hub = line.hub
    cdef uint64_t begin, total_us = (hub.now_ns - call.started_ns) // 1000
    cdef int status
    if call.answer.status != <uint32_t>OUTCOME_OK:
        line.refuse_call(call, hub.refusals.of(completed(&call.answer, b"")))
        return
    call.answer.payload_bytes = <uint32_t>call.told.used
    begin = line.answer_begin()
    if call.route == <uint32_t>ROUTE_CLAIM:
        status = render_claimed(&hub.reader.core, call.slot, call.topic_id, call.name, call.name_bytes, &call.answer, call.told.bytes,
                                clock_wall_ms(), total_us, &hub.output)
    else:
        queue_scan(call.raw.bytes + call.body_at, call.raw.used - call.body_at, &hub.work)    # again: it was right before
        status = render_settled(verb_of(call.route), call.name, call.name_bytes, &hub.work, &call.answer, call.told.bytes, total_us, &hub.output)
    if call.route == <uint32_t>ROUTE_CLAIM:
        tell_unreadable()
    if status == READ_OK:
        hub.asked = call.asked
        line.answer_end(begin, b"HTTP/1.1 200 OK\r\n", call.close)
        line.pop()
        return
    line.answer_drop(begin)
    if status == READ_GONE:
        line.refuse_call(call, hub.refusals.gone((<const char *>call.name)[:call.name_bytes]))
    elif status == READ_BUSY:
        line.refuse_call(call, hub.refusals.busy())
    else:
        raise MemoryError
