"""Answers as bytes (see render.pxd)."""

from libc.errno cimport ENOMEM
from libc.stdlib cimport free, realloc

from cpython.bytes cimport PyBytes_FromStringAndSize

from topicsd._native.frame cimport (
    entry_data, entry_has_node, entry_has_tag, entry_meta, entry_node, entry_tag,
)
from topicsd._native.layout cimport (
    CLASS_EPHEMERAL, CLASS_FSYNC, CLASS_MEMORY, DISCARD_REJECT, LOSS_CAP, LOSS_CORRUPT, LOSS_RECREATED, LOSS_SOURCE_TRIM, LOSS_TTL,
    TOPIC_AUTO_CREATE, TOPIC_AUTO_PRIORITY, TOPIC_DEDUPE_NODE, TOPIC_HAS_PRIORITY, TOPIC_LEASES_DURABLE, TOPIC_QUEUE,
)

cdef const char *PAIRS = (
    b"0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
    b"5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899")


cdef int buffer_grow(Buffer *buffer, uint64_t bytes) noexcept nogil:
    cdef uint64_t room = max(buffer.room * 2, <uint64_t>4096)
    cdef uint8_t *grown
    while room - buffer.used < bytes:
        room *= 2
    grown = <uint8_t *>realloc(buffer.bytes, room)
    if grown == NULL:
        return -ENOMEM
    buffer.bytes = grown
    buffer.room = room
    return 0


cdef void buffer_free(Buffer *buffer) noexcept nogil:
    free(buffer.bytes)
    buffer.bytes = NULL
    buffer.used = 0
    buffer.room = 0


cdef void buffer_shrink(Buffer *buffer) noexcept nogil:
    if buffer.room > BUFFER_KEPT_BYTES_MAX:
        buffer_free(buffer)


cdef uint8_t *put_u64(uint8_t *at, uint64_t value) noexcept nogil:
    cdef uint8_t digits[20]
    cdef uint32_t first = 20
    while value >= 100:
        first -= 2
        memcpy(&digits[first], PAIRS + 2 * (value % 100), 2)
        value //= 100
    if value >= 10:
        first -= 2
        memcpy(&digits[first], PAIRS + 2 * value, 2)
    else:
        first -= 1
        digits[first] = <uint8_t>(48 + value)
    memcpy(at, &digits[first], 20 - first)
    return at + (20 - first)


cdef uint8_t *put_i64(uint8_t *at, int64_t value) noexcept nogil:
    if value < 0:
        at[0] = 45
        return put_u64(at + 1, <uint64_t>0 - <uint64_t>value)
    return put_u64(at, <uint64_t>value)


cdef uint8_t *put_ms(uint8_t *at, uint64_t us) noexcept nogil:
    cdef uint32_t rest = <uint32_t>(us % 1000)
    if us == 0:
        return put_text(at, b"0.0")
    at = put_u64(at, us // 1000)
    at[0] = 46
    at[1] = <uint8_t>(48 + rest // 100)
    memcpy(at + 2, PAIRS + 2 * (rest % 100), 2)
    return at + 4


cdef void _remember(RecordText *text, uint64_t hundreds, uint64_t ts) noexcept nogil:
    cdef uint8_t *end = put_text(text.seq, b'{"$seq":')
    text.seq_count = <uint32_t>((put_u64(end, hundreds) if hundreds else end) - text.seq)
    text.hundreds = hundreds
    text.ts_count = <uint32_t>(put_u64(put_text(text.time, b',"$ts":'), ts) - text.time)
    text.ts = ts


cdef uint8_t *put_record(uint8_t *at, RecordText *text, uint64_t seq, uint64_t ts, const record_entry *entry, bint tags, bint data,
                         bint meta) noexcept nogil:
    if seq // 100 != text.hundreds or ts != text.ts or text.ts_count == 0:
        _remember(text, seq // 100, ts)
    memcpy(at, text.seq, sizeof(text.seq))
    at += text.seq_count
    if seq >= 10:
        memcpy(at, PAIRS + 2 * (seq % 100), 2)
        at += 2
    else:
        at[0] = <uint8_t>(48 + seq)
        at += 1
    memcpy(at, text.time, sizeof(text.time))
    at += text.ts_count
    if entry_has_node(entry):
        at = put_bytes(put_text(at, b',"$node":"'), entry_node(entry), entry.node_bytes)
        at[0] = 34
        at += 1
    if tags and entry_has_tag(entry):
        at = put_bytes(put_text(at, b',"$tag":"'), entry_tag(entry), entry.tag_bytes)
        at[0] = 34
        at += 1
    if data:
        at = put_bytes(put_text(at, b',"data":'), entry_data(entry), entry.data_bytes)
    if meta and entry.meta_bytes:
        at = put_bytes(put_text(at, b',"meta":'), entry_meta(entry), entry.meta_bytes)
    at[0] = 125
    return at + 1


cdef const char *reason_name(uint32_t reason) noexcept nogil:
    if reason == LOSS_CAP:
        return b"cap"
    if reason == LOSS_TTL:
        return b"ttl"
    if reason == LOSS_RECREATED:
        return b"recreated"
    if reason == LOSS_SOURCE_TRIM:
        return b"source_trim"
    if reason == LOSS_CORRUPT:
        return b"corrupt"
    return b"mixed"


cdef uint8_t *put_tombstone(uint8_t *at, const Tombstone *tombstone) noexcept nogil:
    if tombstone.reason == 0:
        return put_text(at, b"null")
    at = put_u64(put_text(at, b'{"gap_from":'), tombstone.gap_from)
    at = put_u64(put_text(at, b',"gap_to":'), tombstone.gap_to)
    at = put_text(put_text(at, b',"reason":"'), reason_name(tombstone.reason))
    at = put_u64(put_text(at, b'","missed_estimate":'), tombstone.gap_to + 1 - tombstone.gap_from)
    at = put_u64(put_text(at, b',"earliest_seq":'), tombstone.earliest)
    at = put_u64(put_text(at, b',"head_seq":'), tombstone.head)
    return put_text(at, b"}")


cdef const char *_class_name(uint8_t durability) noexcept nogil:
    if durability == CLASS_EPHEMERAL:
        return b"ephemeral"
    if durability == CLASS_MEMORY:
        return b"memory"
    return b"fsync" if durability == CLASS_FSYNC else b"disk"


cdef uint8_t *put_config(uint8_t *at, const topic_config *config, const char *dead_letter, uint32_t dead_letter_bytes) noexcept nogil:
    at = put_text(at, b'{"type":"queue"' if config.type == TOPIC_QUEUE else b'{"type":"log"')
    at = put_u64(put_text(at, b',"ttl_ms":'), config.ttl_ms)
    at = put_u64(put_text(at, b',"cap_records":'), config.cap_records)
    at = put_u64(put_text(at, b',"cap_bytes":'), config.cap_bytes)
    at = put_text(at, b',"discard":"reject"' if config.discard == DISCARD_REJECT else b',"discard":"old"')
    at = put_bool(put_text(at, b',"durable":'), config.durability == CLASS_FSYNC)
    at = put_text(put_text(at, b',"durability":"'), _class_name(config.durability))
    at = put_text(at, b'","priority":')
    at = put_i64(at, config.priority) if config.flags & TOPIC_HAS_PRIORITY else put_text(at, b"null")
    at = put_bool(put_text(at, b',"auto_priority":'), config.flags & TOPIC_AUTO_PRIORITY)
    at = put_bool(put_text(at, b',"auto_create":'), config.flags & TOPIC_AUTO_CREATE)
    at = put_u64(put_text(at, b',"idempotency_window_ms":'), config.idempotency_window_ms)
    at = put_bool(put_text(at, b',"dedupe_node":'), config.flags & TOPIC_DEDUPE_NODE)
    at = put_u64(put_text(at, b',"lease_ms":'), config.lease_ms)
    at = put_u64(put_text(at, b',"claim_jitter_ms":'), config.claim_jitter_ms)
    at = put_u64(put_text(at, b',"max_deliveries":'), config.max_deliveries)
    if dead_letter_bytes:
        at = put_bytes(put_text(at, b',"dead_letter":"'), dead_letter, dead_letter_bytes)
        at = put_text(at, b'"')
    else:
        at = put_text(at, b',"dead_letter":null')
    at = put_bool(put_text(at, b',"leases_durable":'), config.flags & TOPIC_LEASES_DURABLE)
    return put_text(at, b"}")


cdef int render_append(Buffer *buffer, const AppendAnswer *answer) noexcept nogil:
    cdef uint64_t seq, last = answer.first_seq + answer.count - 1
    cdef uint8_t *at
    if buffer_need(buffer, 512 + answer.topic_bytes + (21 * answer.count if answer.return_seqs else 0)) != 0:
        return -ENOMEM
    at = buffer.bytes + buffer.used
    at = put_bytes(put_text(at, b'{"topic":"'), answer.topic, answer.topic_bytes)
    at = put_u64(put_text(at, b'","first_seq":'), answer.first_seq)
    at = put_u64(put_text(at, b',"last_seq":'), last)
    if answer.return_seqs:
        at = put_text(at, b',"seqs":[')
        for seq in range(answer.first_seq, last + 1):
            at = put_u64(at, seq)
            at[0] = 44
            at += 1
        (at - 1)[0] = 93    # over the last comma: a batch has a record
    at = put_u64(put_text(at, b',"head_seq":'), answer.head)
    at = put_u64(put_text(at, b',"count":'), answer.count)
    at = put_bool(put_text(at, b',"created":'), answer.created)
    at = put_bool(put_text(at, b',"deduped":'), answer.deduped)
    if answer.body_differs:
        at = put_text(at, b',"body_differs":true')
    at = put_ms(put_text(at, b',"performance":{"server_total_ms":'), answer.total_us)
    at = put_ms(put_text(at, b',"wal_append_ms":'), answer.wal_us)
    at = put_ms(put_text(at, b',"fsync_ms":'), answer.fsync_us)
    at = put_ms(put_text(at, b',"throttle_wait_ms":'), answer.parked_us)
    at = put_text(at, b"}}")
    buffer.used = at - buffer.bytes
    return 0


def append_answer(
    bytes topic, uint64_t first_seq, uint64_t count, uint64_t head, *, bint created=False, bint deduped=False, bint body_differs=False,
    bint return_seqs=True, uint64_t total_us=0, uint64_t wal_us=0, uint64_t fsync_us=0,
    uint64_t parked_us=0,
):
    """Return the JSON answer to a write of `count` records (at least 1); times in microseconds. A §2."""
    cdef Buffer buffer
    cdef AppendAnswer answer
    if count == 0:
        raise ValueError("a write has at least one record")
    answer.topic = topic
    answer.topic_bytes = <uint32_t>len(topic)
    answer.first_seq, answer.count, answer.head = first_seq, count, head
    answer.created, answer.deduped, answer.body_differs, answer.return_seqs = created, deduped, body_differs, return_seqs
    answer.total_us, answer.wal_us, answer.fsync_us = total_us, wal_us, fsync_us
    answer.parked_us = parked_us
    buffer.bytes, buffer.used, buffer.room = NULL, 0, 0
    try:
        if render_append(&buffer, &answer) != 0:
            raise MemoryError
        return PyBytes_FromStringAndSize(<char *>buffer.bytes, buffer.used)
    finally:
        buffer_free(&buffer)


def number(value):
    """Write an integer of 64 bits as the renderer does; for tests."""
    cdef uint8_t digits[32]
    cdef uint8_t *end = put_i64(digits, value) if value < 0 else put_u64(digits, value)
    return PyBytes_FromStringAndSize(<char *>digits, end - digits)


def milliseconds(uint64_t us):
    """Write microseconds as JSON milliseconds; for tests."""
    cdef uint8_t digits[32]
    cdef uint8_t *end = put_ms(digits, us)
    return PyBytes_FromStringAndSize(<char *>digits, end - digits)
