"""What a router's copy shows of the source's bytes (see copies.pxd)."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from topicsd._native.atomics cimport clock_mono_ns, fence_seq_cst, load_acquire_32, load_acquire_64, load_relaxed_64
from topicsd._native.frame cimport entry_meta, entry_tag
from topicsd._native.layout cimport record_entry
from topicsd._native.render cimport put_bytes, put_record, put_text, put_u64

cdef extern from "routes.h" nogil:
    ctypedef struct origin_run "struct origin_run":
        uint64_t seq
        uint64_t source
        uint64_t text
    ctypedef struct origins_head "struct origins":
        uint32_t count
        uint32_t capacity
        uint32_t slab_class
        uint32_t reserved

cdef extern from "sched.h" nogil:
    int sched_yield()

cdef enum:
    WAIT_NS_MAX = 5000000     # a turn of the writer is far shorter; a writer that has died is noticed elsewhere
    ORIGIN_KEY_BYTES = 14

cdef const char *ORIGIN_KEY = b"_topics_router"


cdef void origin_find(const Regions *regions, uint64_t origins, uint64_t seq, Origin *out) noexcept nogil:
    cdef const origins_head *head = <const origins_head *>(regions.index + origins)
    cdef const origin_run *runs
    cdef uint64_t low = 0, high, middle, offset, bytes
    out.text_bytes = 0
    if origins == 0 or origins > regions.index_bytes - sizeof(origins_head) - 8:
        return
    runs = <const origin_run *>(regions.index + origins + sizeof(origins_head))
    high = min(<uint64_t>load_acquire_32(&head.count), (regions.index_bytes - origins - sizeof(origins_head)) // sizeof(origin_run))
    while low < high:
        middle = low + (high - low) // 2
        if runs[middle].seq <= seq:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return
    offset = runs[low - 1].text >> 16
    bytes = runs[low - 1].text & 0xFFFF
    if bytes == 0 or bytes > ORIGIN_TEXT_MAX or offset > regions.index_bytes - bytes:
        return
    out.source = runs[low - 1].source + (seq - runs[low - 1].seq)
    memcpy(out.text, regions.index + offset, bytes)
    out.text_bytes = <uint32_t>bytes


# ---- meta ---------------------------------------------------------------------------------------------------------------------


cdef uint32_t _after_string(const uint8_t *text, uint32_t at, uint32_t end) noexcept nogil:
    """The place behind the string that begins at `at`; the scanner has checked it."""
    at += 1
    while at < end and text[at] != 34:
        at += 2 if text[at] == 92 else 1
    return min(at + 1, end)


cdef int _hex(uint8_t byte) noexcept nogil:
    if 48 <= byte <= 57:
        return byte - 48
    byte |= 32
    return byte - 87 if 97 <= byte <= 102 else -1


cdef bint _is_origin_key(const uint8_t *text, uint32_t at, uint32_t end) noexcept nogil:
    """The string from its quote at `at` to `end`, behind its last quote, says `_topics_router`, in whatever escapes."""
    cdef uint32_t matched = 0
    cdef int value, digit, number
    at += 1
    end -= 1
    while at < end:
        value = text[at]
        if value == 92 and at + 5 < end and text[at + 1] == 117:
            value = 0
            for number in range(4):
                digit = _hex(text[at + 2 + number])
                if digit < 0:
                    return False
                value = value * 16 + digit
            at += 6
        elif value == 92:
            return False    # no other escape stands for a letter of it
        else:
            at += 1
        if matched >= ORIGIN_KEY_BYTES or value != <uint8_t>ORIGIN_KEY[matched]:
            return False
        matched += 1
    return matched == ORIGIN_KEY_BYTES


cdef uint8_t *put_origin_meta(uint8_t *at, const Origin *origin, const uint8_t *meta, uint32_t meta_bytes) noexcept nogil:
    cdef uint32_t place = 0, key, key_end, value_end
    at = put_text(at, b'{"_topics_router":"')
    at = put_bytes(at, origin.text, origin.text_bytes)
    at = put_text(put_u64(at, origin.source), b'"')
    while place < meta_bytes and meta[place] != 123:
        place += 1
    while True:
        while place < meta_bytes and meta[place] != 34:
            place += 1
        if place >= meta_bytes:
            break
        key = place
        key_end = _after_string(meta, place, meta_bytes)
        place = key_end
        while place < meta_bytes and meta[place] != 34:
            place += 1
        value_end = _after_string(meta, place, meta_bytes) if place < meta_bytes else meta_bytes
        if not _is_origin_key(meta, key, key_end):
            at[0] = 44
            at = put_bytes(at + 1, meta + key, value_end - key)
        place = value_end
    at[0] = 125
    return at + 1


# ---- a record -----------------------------------------------------------------------------------------------------------------


cdef uint8_t *put_shown(uint8_t *at, RecordText *text, uint64_t seq, const index_entry *entry, const record_entry *record,
                        const Origin *origin, bint tags, bint data, bint meta) noexcept nogil:
    cdef record_entry none
    if not entry.flags & INDEX_COPY:
        return put_record(at, text, seq, entry.ts, record, tags, data, meta)
    if entry.flags & INDEX_DROP_NODE:
        memset(&none, 0, sizeof(none))
        at = put_record(at, text, seq, entry.ts, &none, False, False, False)
    else:
        at = put_record(at, text, seq, entry.ts, record, False, False, False)
    return _rest(at - 1, entry, record, origin, tags, data, meta)    # over its brace


cdef uint8_t *_rest(uint8_t *at, const index_entry *entry, const record_entry *record, const Origin *origin, bint tags, bint data,
                    bint meta) noexcept nogil:
    cdef const uint8_t *stored = entry_meta(record)
    if tags and shows_tag(record, entry.flags):
        at = put_bytes(put_text(at, b',"$tag":"'), entry_tag(record), record.tag_bytes)
        at[0] = 34
        at += 1
    if data:
        at = put_bytes(put_text(at, b',"data":'), stored + record.meta_bytes, record.data_bytes)
    if meta and entry.flags & INDEX_ORIGIN and origin.text_bytes:
        at = put_origin_meta(put_text(at, b',"meta":'), origin, stored, record.meta_bytes)
    elif meta and record.meta_bytes:
        at = put_bytes(put_text(at, b',"meta":'), stored, record.meta_bytes)
    at[0] = 125
    return at + 1


cdef void wait_for_copies(const Regions *regions, uint32_t slot) noexcept nogil:
    # The writer sets the word before it rings for an answer whose copies are still to come; whoever has that answer sees the word.
    cdef uint64_t until
    if slot >= regions.topics_max or load_relaxed_64(&regions.table[slot].derived) == 0:
        return
    fence_seq_cst()
    if load_acquire_64(&regions.control.forward_debt) == 0:
        return
    until = clock_mono_ns() + WAIT_NS_MAX
    while load_acquire_64(&regions.control.forward_debt) != 0 and clock_mono_ns() < until:
        sched_yield()


def meta_with_origin(bytes text not None, uint64_t source, bytes meta not None):
    """Write the meta of an exactly-once copy, as a reader sees it; for tests."""
    cdef Origin origin
    cdef bytes room = bytes(len(meta) + ORIGIN_BYTES_MAX)
    cdef uint8_t *begin = <uint8_t *>room
    if len(text) > ORIGIN_TEXT_MAX:
        raise ValueError("the text is too long")
    origin.source = source
    origin.text_bytes = <uint32_t>len(text)
    memcpy(origin.text, <const char *>text, len(text))
    return room[:put_origin_meta(begin, &origin, meta, <uint32_t>len(meta)) - begin]
