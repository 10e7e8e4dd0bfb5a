"""Queues for the native front (see work_hot.pxd)."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from topicsd._native.frame cimport align8
from topicsd._native.queue_wire cimport (
    COMMAND_CLAIM, COMMAND_SETTLE, LEASE_ACK, LEASE_CLAIM, LEASE_EXTEND, LEASE_RELEASE, claim_command, settle_command,
)
from topicsd._native.render cimport (
    PERFORMANCE_BYTES_MAX, buffer_need, put_bytes, put_ms, put_text, put_u64,
)
from topicsd._native.ring cimport ring_claim, ring_commit_quietly
from topicsd._native.state cimport READ_IO, READ_MEMORY, READ_OK
from topicsd._native.work cimport put_job, take_leb

cdef enum:
    LEASE_MS_MIN = 100            # topicsd/limits.py has these, too; a test holds the two together
    LEASE_MS_MAX = 86400000
    DELAY_MS_MAX = 86400000

LIMITS = {"lease_ms_min": LEASE_MS_MIN, "lease_ms_max": LEASE_MS_MAX, "delay_ms_max": DELAY_MS_MAX}


cdef inline uint64_t _clamped(uint64_t value, uint64_t least, uint64_t most) noexcept nogil:
    return least if value < least else most if value > most else value


cdef bint _fits(uint32_t verb, const QueueRequest *request) noexcept nogil:
    """Whether a request has just what its verb takes."""
    cdef uint32_t has = request.has
    if verb == <uint32_t>LEASE_CLAIM:
        return not has & (MEMBER_SEQS | MEMBER_LEASE_IDS | MEMBER_DELAY_MS) and (request.max or not has & MEMBER_MAX)
    if not has & MEMBER_SEQS or request.count == 0 or has & MEMBER_MAX or (has & MEMBER_LEASE_IDS and request.ids != request.count):
        return False
    if verb == <uint32_t>LEASE_EXTEND:
        return has & MEMBER_LEASE_MS and not has & MEMBER_DELAY_MS
    return not has & MEMBER_LEASE_MS and (verb == <uint32_t>LEASE_RELEASE or not has & MEMBER_DELAY_MS)


cdef int _submit_claim(Ring *ring, uint32_t slot, uint64_t topic_id, const QueueRequest *request, uint64_t jobs_max,
                       uint64_t *token) noexcept nogil:
    cdef uint32_t room = align8(request.node_bytes)
    cdef claim_command *command
    cdef uint8_t *at
    cdef int wrong = ring_claim(ring, <uint32_t>sizeof(claim_command) + room, COMMAND_CLAIM, &at)
    if wrong:
        return wrong
    command = <claim_command *>at
    memset(at, 0, sizeof(claim_command) + room)
    command.topic_id = topic_id
    command.lease_ms = _clamped(request.lease_ms, LEASE_MS_MIN, LEASE_MS_MAX) if request.has & MEMBER_LEASE_MS else 0
    command.max = <uint32_t>min(request.max, jobs_max) if request.has & MEMBER_MAX else 1
    command.node_bytes = <uint16_t>request.node_bytes
    memcpy(at + sizeof(claim_command), request.node, request.node_bytes)
    token[0] = ring_commit_quietly(ring, slot)
    return 0


cdef int submit_work(Ring *ring, uint32_t slot, uint64_t topic_id, uint32_t verb, const QueueRequest *request, uint32_t node_bytes_max,
                     uint64_t jobs_max, uint64_t *token) noexcept nogil:
    cdef uint32_t room = align8(request.node_bytes), fenced = 1 if request.has & MEMBER_LEASE_IDS else 0
    cdef settle_command *command
    cdef uint8_t *at
    cdef int wrong
    if not _fits(verb, request) or request.node_bytes > node_bytes_max or request.count > jobs_max:
        return -1
    if verb == <uint32_t>LEASE_CLAIM:
        return _submit_claim(ring, slot, topic_id, request, jobs_max, token)
    wrong = ring_claim(ring, <uint32_t>sizeof(settle_command) + room + 8 * request.count * (1 + fenced), COMMAND_SETTLE, &at)
    if wrong:
        return wrong
    command = <settle_command *>at
    memset(at, 0, sizeof(settle_command) + room)
    command.topic_id, command.count, command.node_bytes = topic_id, request.count, <uint16_t>request.node_bytes
    command.verb, command.fenced = <uint8_t>verb, <uint8_t>fenced
    if verb == <uint32_t>LEASE_EXTEND:
        command.ms = _clamped(request.lease_ms, LEASE_MS_MIN, LEASE_MS_MAX)
    elif request.has & MEMBER_DELAY_MS:
        command.ms = min(request.delay_ms, <uint64_t>DELAY_MS_MAX)
    at += sizeof(settle_command)
    memcpy(at, request.node, request.node_bytes)
    memcpy(at + room, request.seqs, 8 * request.count)
    if fenced:
        memcpy(at + room + 8 * request.count, request.tokens, 8 * request.count)
    token[0] = ring_commit_quietly(ring, slot)
    return 0


# ---- answers --------------------------------------------------------------------------------------------------------------------


cdef uint8_t *_put_performance(uint8_t *at, const completion *answer, uint64_t total_us, bint throttle) noexcept nogil:
    at = put_ms(put_text(at, b',"performance":{"server_total_ms":'), total_us)
    at = put_ms(put_text(at, b',"wal_append_ms":'), answer.wal_us)
    at = put_ms(put_text(at, b',"fsync_ms":'), answer.fsync_us)
    if throttle:
        at = put_text(at, b',"throttle_wait_ms":0.0')
    return put_text(at, b'}}')


cdef int render_claimed(ReaderCore *reader, uint32_t slot, uint64_t topic_id, const uint8_t *name, uint32_t name_bytes, const completion *answer,
                        const uint8_t *payload, uint64_t now_ms, uint64_t total_us, Buffer *out) noexcept nogil:
    cdef const uint8_t *from_ = payload
    cdef const uint8_t *end = payload + answer.payload_bytes
    cdef uint64_t seq = 0, step = 0, deliveries = 0
    cdef uint32_t number, shown = 0
    cdef uint8_t *at
    cdef bint gone = False
    cdef int status
    if buffer_need(out, name_bytes + 64) != 0:
        return READ_MEMORY
    at = put_bytes(put_text(out.bytes + out.used, b'{"topic":"'), name, name_bytes)
    out.used = put_text(at, b'","claimed":[') - out.bytes
    for number in range(answer.count):
        from_ = take_leb(from_, end, &step)
        if from_ != NULL:
            from_ = take_leb(from_, end, &deliveries)
        if from_ == NULL:
            break
        seq += step
        if buffer_need(out, 1) != 0:
            return READ_MEMORY
        if shown:
            out.bytes[out.used] = 44
            out.used += 1
        status = put_job(reader, slot, topic_id, seq, answer.first_seq + number, deliveries, answer.values[2], now_ms, out, &gone)
        if status == READ_OK and not gone:
            shown += 1
            continue
        out.used -= 1 if shown else 0
        if status != READ_OK and status != READ_IO:    # a record that cannot be read is left out, its neighbours are not
            return status
    if buffer_need(out, 128 + <uint64_t>PERFORMANCE_BYTES_MAX) != 0:
        return READ_MEMORY
    at = put_u64(put_text(out.bytes + out.used, b'],"count":'), shown)
    at = put_u64(put_text(at, b',"ready":'), answer.values[0])
    out.used = _put_performance(at, answer, total_us, True) - out.bytes
    return READ_OK


cdef uint8_t *_put_seqs(uint8_t *at, const QueueRequest *request, const uint8_t *payload, bint done, uint64_t deadline) noexcept nogil:
    """The seqs that were settled with their deadline, or those that were not."""
    cdef uint32_t number
    cdef bint any = False
    for number in range(request.count):
        if (payload[number >> 3] >> (number & 7) & 1) != done:
            continue
        if any:
            at = put_text(at, b',')
        any = True
        if done:
            at = put_text(put_u64(put_text(at, b'"'), request.seqs[number]), b'":')
            at = put_u64(at, deadline)
        else:
            at = put_u64(at, request.seqs[number])
    return at


cdef int render_settled(uint32_t verb, const uint8_t *name, uint32_t name_bytes, const QueueRequest *request, const completion *answer,
                        const uint8_t *payload, uint64_t total_us, Buffer *out) noexcept nogil:
    cdef uint8_t *at
    if answer.payload_bytes * 8 < request.count:
        return READ_IO
    if buffer_need(out, name_bytes + 256 + PERFORMANCE_BYTES_MAX + 48 * <uint64_t>request.count) != 0:
        return READ_MEMORY
    at = put_bytes(put_text(out.bytes + out.used, b'{"topic":"'), name, name_bytes)
    if verb == <uint32_t>LEASE_ACK:
        at = put_text(at, b'","acked":')
    elif verb == <uint32_t>LEASE_RELEASE:
        at = put_text(at, b'","nacked":')
    else:
        at = put_text(at, b'","extended":')
    at = put_text(put_u64(at, answer.count), b',"skipped":[')
    at = put_text(_put_seqs(at, request, payload, False, 0), b']')
    if verb == <uint32_t>LEASE_EXTEND:
        at = put_text(_put_seqs(put_text(at, b',"deadlines":{'), request, payload, True, answer.values[2]), b'}')
    else:
        at = put_u64(put_text(at, b',"ready":'), answer.values[0])
        at = put_u64(put_text(at, b',"in_flight":'), answer.values[1])
    out.used = _put_performance(at, answer, total_us, False) - out.bytes
    return READ_OK


# ---- for tests --------------------------------------------------------------------------------------------------------------------


def scan(bytes body not None):
    cdef QueueRequest request
    cdef uint32_t number
    if queue_scan(<const uint8_t *>body, len(body), &request) != QUEUE_SCAN_OK:
        return None
    found = {"node": request.node[:request.node_bytes]}
    if request.has & MEMBER_MAX:
        found["max"] = request.max
    if request.has & MEMBER_LEASE_MS:
        found["lease_ms"] = request.lease_ms
    if request.has & MEMBER_DELAY_MS:
        found["delay_ms"] = request.delay_ms
    if request.has & MEMBER_SEQS:
        found["seqs"] = [request.seqs[number] for number in range(request.count)]
    if request.has & MEMBER_LEASE_IDS:
        found["tokens"] = [request.tokens[number] for number in range(request.ids)]
    return found
