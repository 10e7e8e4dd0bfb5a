"""Events and messages of a stream (page of truth: stream.pxd)."""

from libc.errno cimport ENOMEM
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy, memmove

from topicsd._native.diff cimport DiffResult, ReaderCore, diff_records
from topicsd._native.feed cimport FORMAT_SSE, FORMAT_WEBSOCKET, FRAME_HEAD_BYTES, Frame
from topicsd._native.layout cimport LOSS_RECREATED
from topicsd._native.render cimport TOMBSTONE_BYTES_MAX, Buffer, buffer_free, buffer_need, put_bytes, put_text, put_u64, reason_name
from topicsd._native.scan cimport DiffRequest
from topicsd._native.state cimport READ_IO, READ_MEMORY, READ_OK

cdef enum:
    TAIL_BYTES_MAX = 160
    MESSAGE_BYTES_MAX = 512       # of a message without records: a name and some numbers

cdef const char *ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


cdef int put_base64(Buffer *out, const uint8_t *text, uint64_t size) noexcept nogil:
    cdef uint64_t at = 0
    cdef uint32_t three
    cdef uint8_t *to
    if buffer_need(out, (size + 2) // 3 * 4) != 0:
        return -ENOMEM
    to = out.bytes + out.used
    while at + 3 <= size:
        three = <uint32_t>text[at] << 16 | <uint32_t>text[at + 1] << 8 | text[at + 2]
        to[0] = ALPHABET[three >> 18]
        to[1] = ALPHABET[(three >> 12) & 63]
        to[2] = ALPHABET[(three >> 6) & 63]
        to[3] = ALPHABET[three & 63]
        to += 4
        at += 3
    if size - at == 1:
        to[0] = ALPHABET[text[at] >> 2]
        to[1] = ALPHABET[(text[at] & 3) << 4]
        to += 2
    elif size - at == 2:
        three = <uint32_t>text[at] << 8 | text[at + 1]
        to[0] = ALPHABET[three >> 10]
        to[1] = ALPHABET[(three >> 4) & 63]
        to[2] = ALPHABET[(three & 15) << 2]
        to += 3
    out.used = to - out.bytes
    return 0


cdef void _one_line(uint8_t *at, uint64_t size) noexcept nogil:
    cdef uint8_t *end = at + size
    cdef uint8_t *found = <uint8_t *>memchr(at, 10, size)
    while found != NULL:
        found[0] = 32
        found = <uint8_t *>memchr(found, 10, end - found)
    found = <uint8_t *>memchr(at, 13, size)
    while found != NULL:
        found[0] = 32
        found = <uint8_t *>memchr(found, 13, end - found)


cdef uint32_t _websocket_header(uint8_t *at, uint64_t size) noexcept nogil:
    # RFC 6455 §5.2: a whole text message, not masked. At most 10 bytes.
    cdef uint32_t n
    at[0] = 0x81
    if size < 126:
        at[1] = <uint8_t>size
        return 2
    if size < 65536:
        at[1] = 126
        at[2] = <uint8_t>(size >> 8)
        at[3] = <uint8_t>size
        return 4
    at[1] = 127
    for n in range(8):
        at[2 + n] = <uint8_t>(size >> (56 - 8 * n))
    return 10


cdef uint64_t _finish_message(Buffer *out, uint64_t begin, int format) noexcept nogil:
    """Put what a format has around a message that begins at `begin` with 10 free bytes; return where its bytes begin."""
    cdef uint8_t header[10]
    cdef uint64_t size = out.used - begin - 10
    cdef uint32_t header_bytes = 0
    if format == FORMAT_SSE:
        memcpy(out.bytes + out.used, b"\n\n", 2)
        out.used += 2
    elif format == FORMAT_WEBSOCKET:
        header_bytes = _websocket_header(header, size)
        memcpy(out.bytes + begin + 10 - header_bytes, header, header_bytes)
    return begin + 10 - header_bytes


cdef uint8_t *_begin_message(Buffer *out, int format, const char *event, const char *op, const char *name, uint32_t name_bytes) noexcept nogil:
    cdef uint8_t *at = out.bytes + out.used + 10
    if format == FORMAT_SSE:
        at = put_text(put_text(put_text(at, b"event: "), event), b'\ndata: {"topic":"')
    else:
        at = put_text(put_text(put_text(at, b'{"op":"'), op), b'","topic":"')
    return put_text(put_bytes(at, name, name_bytes), b'"')


cdef int render_deleted(Buffer *out, int format, const char *name, uint32_t name_bytes, uint64_t head) noexcept nogil:
    # In its place at out.used; the 10 bytes before may be left over, so the message is moved to the front.
    cdef uint64_t begin = out.used
    cdef uint64_t first
    cdef uint8_t *at
    if buffer_need(out, MESSAGE_BYTES_MAX) != 0:
        return -ENOMEM
    at = _begin_message(out, format, b"topic-deleted", b"topic_deleted", name, name_bytes)
    at = put_text(put_u64(put_text(at, b',"head_seq":'), head), b',"reason":"deleted"}')
    out.used = at - out.bytes
    first = _finish_message(out, begin, format)
    memmove(out.bytes + begin, out.bytes + first, out.used - first)
    out.used -= first - begin
    return 0


cdef int _put_tombstone(ReaderCore *reader, int format, Frame *frame) noexcept nogil:
    cdef Buffer *out = &frame.bytes
    cdef uint64_t begin = out.used
    cdef uint8_t *at
    if buffer_need(out, <uint64_t>(MESSAGE_BYTES_MAX + TOMBSTONE_BYTES_MAX)) != 0:
        return READ_MEMORY
    at = _begin_message(out, format, b"tombstone", b"tombstone", reader.page.view.name, reader.page.view.name_bytes)
    at = put_text(put_text(put_text(at, b',"reason":"'), reason_name(reader.page.tombstone.reason)), b'","gap_from":')
    at = put_u64(put_text(put_u64(at, reader.page.tombstone.gap_from), b',"gap_to":'), reader.page.tombstone.gap_to)
    at = put_u64(put_text(at, b',"missed_estimate":'), reader.page.tombstone.gap_to + 1 - reader.page.tombstone.gap_from)
    at = put_u64(put_text(at, b',"earliest_seq":'), reader.page.tombstone.earliest)
    at = put_text(put_u64(put_text(at, b',"head_seq":'), reader.page.tombstone.head), b"}")
    out.used = at - out.bytes
    frame.tombstone_at = <uint32_t>_finish_message(out, begin, format)
    frame.tombstone_end = <uint32_t>out.used
    return READ_OK


cdef int _put_caught_up(ReaderCore *reader, int format, Frame *frame) noexcept nogil:
    cdef Buffer *out = &frame.bytes
    cdef uint64_t begin = out.used
    cdef uint8_t *at
    if buffer_need(out, MESSAGE_BYTES_MAX) != 0:
        return READ_MEMORY
    at = _begin_message(out, format, b"caught-up", b"caught_up", reader.page.view.name, reader.page.view.name_bytes)
    at = put_text(put_u64(put_text(at, b',"head_seq":'), reader.page.floors.head), b"}")
    out.used = at - out.bytes
    frame.caught_at = <uint32_t>_finish_message(out, begin, format)
    frame.caught_end = <uint32_t>out.used
    return READ_OK


cdef int _put_head_and_tail(ReaderCore *reader, int format, uint64_t from_seq, Frame *frame) noexcept nogil:
    cdef Buffer *out = &frame.bytes
    cdef uint8_t head[FRAME_HEAD_BYTES]
    cdef uint8_t header[10]
    cdef uint8_t *at
    cdef uint64_t head_bytes
    cdef uint32_t header_bytes
    if buffer_need(out, TAIL_BYTES_MAX) != 0:
        return READ_MEMORY
    if format == FORMAT_SSE:
        _one_line(out.bytes + FRAME_HEAD_BYTES, out.used - FRAME_HEAD_BYTES)
        at = put_text(head, b'event: record\ndata: {"topic":"')
    else:
        at = put_text(head, b'{"op":"record","topic":"')
    at = put_text(put_bytes(at, reader.page.view.name, reader.page.view.name_bytes), b'","records":[')
    head_bytes = at - head
    memcpy(out.bytes + FRAME_HEAD_BYTES - head_bytes, head, head_bytes)
    at = put_u64(put_text(out.bytes + out.used, b'],"from_seq":'), from_seq)
    at = put_u64(put_text(put_u64(put_text(at, b',"to_seq":'), frame.next_seq), b',"head_seq":'), reader.page.floors.head)
    at = put_text(at, b"}\n\n" if format == FORMAT_SSE else b"}")
    out.used = at - out.bytes
    frame.record_at = <uint32_t>(FRAME_HEAD_BYTES - head_bytes)
    frame.record_end = <uint32_t>out.used
    if format == FORMAT_WEBSOCKET:
        header_bytes = _websocket_header(header, frame.record_end - frame.record_at)
        frame.record_at -= header_bytes
        memcpy(out.bytes + frame.record_at, header, header_bytes)
    return READ_OK


cdef int render_frame(ReaderCore *reader, uint32_t slot, uint64_t topic_id, DiffRequest *request, int format, uint64_t epoch, uint64_t seq,
                      uint64_t limit, uint64_t now_ms, Frame *frame) noexcept nogil:
    cdef DiffResult result
    cdef uint64_t from_seq = seq
    cdef int status
    frame.bytes.used = 0
    frame.epoch, frame.seq, frame.limit = epoch, seq, limit
    frame.tombstone_at = frame.tombstone_end = frame.record_at = frame.record_end = frame.caught_at = frame.caught_end = 0
    if buffer_need(&frame.bytes, FRAME_HEAD_BYTES) != 0:
        return READ_MEMORY
    frame.bytes.used = FRAME_HEAD_BYTES
    request.from_seq = seq
    request.has_epoch = 1
    request.epoch = epoch
    status = diff_records(reader, slot, topic_id, request, now_ms, limit, &frame.bytes, &result)
    if status != READ_OK:
        if status == READ_IO:
            frame.next_seq = result.failed_seq
        return status
    frame.next_epoch, frame.next_seq, frame.records = result.topic_id, result.next_seq, result.matched
    if result.tombstone:
        # A gap at the start leaves the cursor at its end; `recreated` begins again before the first record.
        from_seq = reader.page.tombstone.earliest - 1 if result.tombstone == <uint32_t>LOSS_RECREATED else reader.page.tombstone.gap_to
        frame.tombstone_epoch, frame.tombstone_seq = result.topic_id, min(from_seq, result.next_seq)
    if result.matched:
        status = _put_head_and_tail(reader, format, from_seq, frame)
    if status == READ_OK and result.tombstone:
        status = _put_tombstone(reader, format, frame)
    if status == READ_OK and result.next_seq >= reader.page.floors.head:
        status = _put_caught_up(reader, format, frame)
    return status


def base64url(bytes text not None):
    """Encode without padding; for tests."""
    cdef Buffer out
    out.bytes, out.used, out.room = NULL, 0, 0
    try:
        if put_base64(&out, text, len(text)) != 0:
            raise MemoryError
        return out.bytes[:out.used]
    finally:
        buffer_free(&out)
