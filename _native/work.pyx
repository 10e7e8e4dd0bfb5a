"""A worker's side of queues (see work.pxd)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from topicsd._native.atomics cimport load_relaxed_64
from topicsd._native.diff cimport DiffResult, ReaderCore, diff_records
from topicsd._native.frame cimport align8
from topicsd._native.layout cimport LOSS_CORRUPT, NO_SLOT, TOPIC_QUEUE, topic_slot
from topicsd._native.port cimport Completion, Port
from topicsd._native.queue_wire cimport (
    CLAIM_JOBS_MAX, COMMAND_CLAIM, COMMAND_LEAVE, COMMAND_SETTLE, LEASE_ACK, LEASE_BURY, LEASE_EXTEND, LEASE_LOST, LEASE_RELEASE,
    LEASE_REMOVE, OUTCOME_NOT_QUEUE, claim_command, held_job, settle_command,
)
from topicsd._native.reader cimport Reader
from topicsd._native.regions cimport Shared
from topicsd._native.render cimport Buffer, buffer_free, buffer_need, put_text, put_u64
from topicsd._native.ring cimport ring_claim, ring_commit
from topicsd._native.scan cimport DiffRequest
from topicsd._native.state cimport READ_GONE, READ_IO, READ_MEMORY, READ_OK

from topicsd._native.reader import Busy, Gone, IoError

CLAIM, SETTLE, LEAVE = COMMAND_CLAIM, COMMAND_SETTLE, COMMAND_LEAVE
ACK, RELEASE, EXTEND, BURY, REMOVE, LOST = LEASE_ACK, LEASE_RELEASE, LEASE_EXTEND, LEASE_BURY, LEASE_REMOVE, LEASE_LOST
NOT_QUEUE = OUTCOME_NOT_QUEUE
JOBS_MAX = CLAIM_JOBS_MAX

cdef const char *HEX = b"0123456789abcdef"

cdef Unreadable[UNREADABLE_MAX] unreadable
cdef uint32_t unreadable_used = 0
cdef object on_unreadable = None


# ---- jobs that cannot be read -----------------------------------------------------------------------------------------------------


def report_unreadable(callback):
    global on_unreadable
    on_unreadable = callback


cdef int tell_unreadable() except -1:
    global unreadable_used
    cdef uint32_t number
    cdef dict told = {}
    if unreadable_used == 0:
        return 0
    for number in range(unreadable_used):
        told.setdefault((unreadable[number].slot, unreadable[number].topic_id), []).append(unreadable[number].seq)
    unreadable_used = 0
    if on_unreadable is not None:
        for (slot, topic_id), seqs in told.items():
            on_unreadable(slot, topic_id, seqs)
    return 0


cdef void _note_unreadable(uint32_t slot, uint64_t topic_id, uint64_t seq) noexcept nogil:
    global unreadable_used
    if unreadable_used < UNREADABLE_MAX:    # the rest is met again when its lease has ended
        unreadable[unreadable_used].slot, unreadable[unreadable_used].topic_id, unreadable[unreadable_used].seq = slot, topic_id, seq
        unreadable_used += 1


# ---- commands -------------------------------------------------------------------------------------------------------------------


def encode_claim(uint64_t topic_id, bytes node not None, uint32_t jobs_max, uint64_t lease_ms=0, bint stream=False, held=()):
    cdef uint64_t node_room = align8(len(node))
    cdef bytearray out = bytearray(sizeof(claim_command) + node_room + len(held) * sizeof(held_job))
    cdef uint8_t *at = <uint8_t *>out
    cdef claim_command *command = <claim_command *>at
    cdef held_job *job = <held_job *>(at + sizeof(claim_command) + node_room)
    command.topic_id, command.lease_ms, command.max, command.held = topic_id, lease_ms, jobs_max, <uint32_t>len(held)
    command.node_bytes, command.stream = len(node), stream
    memcpy(at + sizeof(claim_command), PyBytes_AS_STRING(node), len(node))
    for seq, token in held:
        job.seq, job.token = seq, token
        job += 1
    return bytes(out)


def encode_settle(uint64_t topic_id, uint8_t verb, bytes node not None, seqs, uint64_t ms=0, tokens=None):
    cdef uint64_t node_room = align8(len(node))
    cdef bytearray out = bytearray(sizeof(settle_command) + node_room + 8 * (len(seqs) + (0 if tokens is None else len(tokens))))
    cdef uint8_t *at = <uint8_t *>out
    cdef settle_command *command = <settle_command *>at
    cdef uint64_t *number = <uint64_t *>(at + sizeof(settle_command) + node_room)
    if tokens is not None and len(tokens) != len(seqs):
        raise ValueError("one token a seq")
    command.topic_id, command.ms, command.count, command.verb = topic_id, ms, <uint32_t>len(seqs), verb
    command.node_bytes, command.fenced = len(node), tokens is not None
    memcpy(at + sizeof(settle_command), PyBytes_AS_STRING(node), len(node))
    for each in seqs:
        number[0] = each
        number += 1
    for each in tokens or ():
        number[0] = each
        number += 1
    return bytes(out)


def submit(Port port not None, uint32_t kind, uint32_t slot, bytes payload not None):
    cdef uint8_t *at
    cdef int wrong = ring_claim(port.ring, <uint32_t>len(payload), kind, &at)
    if wrong == 0:
        memcpy(at, PyBytes_AS_STRING(payload), len(payload))
    return port.submitted(wrong, ring_commit(port.ring, slot) if wrong == 0 else 0)


def submit_leave(Port port not None, uint64_t token):
    cdef uint8_t *at
    cdef int wrong = ring_claim(port.ring, 8, COMMAND_LEAVE, &at)
    if wrong == 0:
        (<uint64_t *>at)[0] = token
    return port.submitted(wrong, ring_commit(port.ring, NO_SLOT) if wrong == 0 else 0)


# ---- answers --------------------------------------------------------------------------------------------------------------------


cdef const uint8_t *take_leb(const uint8_t *at, const uint8_t *end, uint64_t *value) noexcept nogil:
    cdef int shift = 0
    value[0] = 0
    while at < end and shift < 64:
        value[0] |= <uint64_t>(at[0] & 127) << shift
        if at[0] < 128:
            return at + 1
        at += 1
        shift += 7
    return NULL


def settled(bytes payload not None, uint32_t count):
    cdef uint32_t number
    if len(payload) * 8 < count:
        raise ValueError("an answer that is cut short")
    return [bool(payload[number >> 3] >> (number & 7) & 1) for number in range(count)]


def granted(bytes payload not None, uint32_t count, uint64_t first_token, uint32_t held=0):
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(payload)
    cdef const uint8_t *end = at + len(payload)
    cdef uint64_t seq = 0, step, deliveries
    cdef uint32_t number
    cdef list jobs = []
    still = settled(payload, held)
    at += (held + 7) >> 3
    for number in range(count):
        at = take_leb(at, end, &step)
        if at != NULL:
            at = take_leb(at, end, &deliveries)
        if at == NULL:
            raise ValueError("an answer that is cut short")
        seq += step
        jobs.append((seq, first_token + number, deliveries))
    return still, jobs


cdef uint8_t *_put_hex(uint8_t *at, uint64_t value) noexcept nogil:
    cdef int shift = 60
    while shift and value >> shift == 0:
        shift -= 4
    while shift >= 0:
        at[0] = <uint8_t>HEX[value >> shift & 15]
        at += 1
        shift -= 4
    return at


cdef int _read_one(ReaderCore *reader, uint32_t slot, uint64_t topic_id, uint64_t seq, uint64_t now_ms, bint tags, bint data, bint meta,
                   Buffer *out, DiffResult *result) noexcept nogil:
    cdef DiffRequest request
    memset(&request, 0, sizeof(request))
    request.from_seq, request.upto_seq, request.limit = seq - 1, seq, 1
    request.include_tags, request.include_data, request.include_meta = tags, data, meta
    return diff_records(reader, slot, topic_id, &request, now_ms, <uint64_t>-1, out, result)


cdef int put_job(ReaderCore *reader, uint32_t slot, uint64_t topic_id, uint64_t seq, uint64_t token, uint64_t deliveries, uint64_t deadline,
                 uint64_t now_ms, Buffer *out, bint *gone) noexcept nogil:
    cdef DiffResult result
    cdef uint64_t before = out.used, record
    cdef uint8_t *at
    cdef int status
    if buffer_need(out, JOB_TEXT_MAX) != 0:
        return READ_MEMORY
    at = _put_hex(put_text(out.bytes + out.used, b'{"lease_id":"lease_'), token)
    at = put_u64(put_text(at, b'","deadline":'), deadline)
    at = put_u64(put_text(at, b',"deliveries":'), deliveries)
    out.used = at - out.bytes
    record = out.used
    status = _read_one(reader, slot, topic_id, seq, now_ms, True, True, True, out, &result)
    gone[0] = status == READ_OK and result.matched == 0
    if gone[0] and result.tombstone == <uint32_t>LOSS_CORRUPT:
        _note_unreadable(slot, topic_id, seq)
    if status != READ_OK or gone[0]:
        out.used = before
        return status
    out.bytes[record] = 44    # the record's own brace becomes a comma: its members go on behind ours
    return READ_OK


cdef object _checked(int status, uint64_t seq):
    if status == READ_OK:
        return None
    if status == READ_GONE:
        raise Gone("no such topic")
    if status == READ_IO:
        raise IoError(seq)
    if status == READ_MEMORY:
        raise MemoryError
    raise Busy("the topic cannot be read right now")


def render_jobs(Reader reader not None, uint32_t slot, uint64_t topic_id, jobs, uint64_t deadline, uint64_t now_ms):
    cdef Buffer out
    cdef list rendered = []
    cdef bint gone = False
    memset(&out, 0, sizeof(out))
    if reader.busy:
        raise RuntimeError("a Reader belongs to one thread")
    try:
        for seq, token, deliveries in jobs:
            out.used = 0
            _checked(put_job(&reader.core, slot, topic_id, seq, token, deliveries, deadline, now_ms, &out, &gone), seq)
            if unreadable_used == UNREADABLE_MAX:
                tell_unreadable()
            rendered.append(None if gone else PyBytes_FromStringAndSize(<const char *>out.bytes, out.used))
        return rendered
    finally:
        buffer_free(&out)
        tell_unreadable()


def record_text(Reader reader not None, uint32_t slot, uint64_t topic_id, uint64_t seq, uint64_t now_ms):
    cdef Buffer out
    cdef DiffResult result
    cdef list parts = []
    cdef int number
    memset(&out, 0, sizeof(out))
    try:
        for number in range(3):    # whole records without meta, without data, without both: each part then ends at a place that is known
            out.used = 0
            _checked(_read_one(&reader.core, slot, topic_id, seq, now_ms, True, number == 0, number == 1, &out, &result), seq)
            if result.matched == 0:
                return None
            parts.append(PyBytes_FromStringAndSize(<const char *>out.bytes, out.used))
    finally:
        buffer_free(&out)
    bare = parts[2].removesuffix(b'}')
    data = parts[0].removesuffix(b'}')[len(bare) + len(b',"data":'):]
    meta = parts[1].removesuffix(b'}')[len(bare) + len(b',"meta":'):] or None
    bare, tagged, tag = bare.partition(b',"$tag":"')    # a quote inside a string is escaped: the first match is the member
    bare, noded, node = bare.partition(b',"$node":"')
    return data, meta, tag.removesuffix(b'"') if tagged else None, node.removesuffix(b'"') if noded else None


def live_of(Reader reader not None, uint32_t slot, uint64_t topic_id, seqs, uint64_t now_ms):
    cdef Buffer out
    cdef DiffResult result
    cdef uint32_t live = 0
    memset(&out, 0, sizeof(out))
    try:
        for seq in seqs:
            out.used = 0
            _checked(_read_one(&reader.core, slot, topic_id, seq, now_ms, False, False, False, &out, &result), seq)
            live += result.matched != 0
        return live
    finally:
        buffer_free(&out)


def glance(Shared shared not None, uint32_t slot, uint64_t topic_id):
    cdef const topic_slot *topic
    if slot >= shared.r.topics_max:
        return None
    topic = &shared.r.table[slot]
    if load_relaxed_64(&topic.topic_id) != topic_id or topic.config.type != TOPIC_QUEUE:
        return None
    return load_relaxed_64(&topic.queue_ready), topic.config.claim_jitter_ms


def leases_in_flight(Shared shared not None):
    cdef uint64_t slot, total = 0
    cdef const topic_slot *topic
    for slot in range(load_relaxed_64(&shared.r.control.table_high)):
        topic = &shared.r.table[slot]
        if load_relaxed_64(&topic.topic_id) and topic.config.type == TOPIC_QUEUE:
            total += load_relaxed_64(&topic.queue_in_flight)
    return total


def completion_of(uint32_t status, uint32_t count, uint64_t first_token, uint64_t ready, uint64_t in_flight, uint64_t deadline,
                  bytes payload not None):
    cdef Completion out = Completion.__new__(Completion)
    out.status, out.count, out.first_seq, out.payload = status, count, first_token, payload
    out.values = (ready, in_flight, deadline, 0)
    return out
