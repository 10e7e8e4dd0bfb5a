# One frame, one record entry: where their parts stand, how a frame is sealed and checked.
#
# The diagrams stand above `struct frame_header` and `struct record_entry` in layout.h.
#
#   frame     | header 64 B, xxh3 last | body ................................................. zeroes to 8 |
#   append    | header | [ key section: 16 B, key, zeroes to 8 ] | entry | entry | ... `count` of them      |
#   entry     | 16 B | [ ext 16 B ] | node | tag | meta | data | zeroes to 8 |
#
#   xxh3 = XXH3-64(header bytes 0-55, seed = XXH3-64(body, seed 0))
#
# so a batch is hashed once and its header may be stamped again (ts, base seq, position) for the price of 56 bytes.
#
# Owner: whoever built the frame, until it is sealed and published; afterwards nobody writes it. Nothing here is shared or atomic.
# Pointers go into the frame and live as long as its memory. The accessors trust the entry: call `append_well_formed` once after
# `frame_check` on bytes that come from a file; bytes from a ring were written by `encode_write`.
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from topicsd._native.hash cimport xxh3_64, xxh3_64_seeded
from topicsd._native.layout cimport (
    ENTRY_FLAG_EMPTY_NODE, ENTRY_FLAG_EMPTY_TAG, ENTRY_FLAG_EXT, ENTRY_LENGTH_MASK, FRAME_FLAG_KEY, FRAME_HEADER_BYTES, FRAME_MAGIC,
    entry_ext, frame_header, key_section, record_entry,
)

# What `frame_check` finds. Only the log knows what it means (end of data, torn tail, damage): that depends on the place.
cdef enum FrameStatus:
    FRAME_VALID = 0
    FRAME_NONE = 1        # zeroes: never written
    FRAME_BAD_MAGIC = 2
    FRAME_BAD_LENGTH = 3  # below a header, or not a multiple of 8
    FRAME_SHORT = 4       # longer than what is there
    FRAME_BAD_HASH = 5

cdef int frame_check(const frame_header *header, uint64_t available) noexcept nogil     # FrameStatus; reads at most `available` bytes
cdef bint append_well_formed(const frame_header *header) noexcept nogil                  # key section and entries fill the body exactly


cdef inline uint64_t align8(uint64_t length) noexcept nogil:
    return (length + 7) & ~<uint64_t>7


cdef inline uint8_t *frame_body(const frame_header *header) noexcept nogil:
    return <uint8_t *>header + FRAME_HEADER_BYTES


cdef inline frame_header *frame_next(const frame_header *header) noexcept nogil:
    return <frame_header *>(<uint8_t *>header + header.length)


cdef inline uint64_t frame_hash_of(const frame_header *header, uint64_t body_xxh3) noexcept nogil:
    return xxh3_64_seeded(header, 56, body_xxh3)


cdef inline uint64_t frame_hash(const frame_header *header) noexcept nogil:
    return frame_hash_of(header, xxh3_64(frame_body(header), header.length - FRAME_HEADER_BYTES))


cdef inline void frame_seal(frame_header *header) noexcept nogil:
    # Every other field, `length` too, must be final.
    header.xxh3 = frame_hash(header)


# ---- an append's body

cdef inline const uint8_t *append_key(const frame_header *header, uint32_t *key_bytes) noexcept nogil:
    # The idempotency key (canonical JSON string without quotes), or NULL.
    if not header.flags & FRAME_FLAG_KEY:
        key_bytes[0] = 0
        return NULL
    key_bytes[0] = (<const key_section *>frame_body(header)).key_bytes
    return frame_body(header) + sizeof(key_section)


cdef inline uint64_t append_records_xxh3(const frame_header *header) noexcept nogil:
    return (<const key_section *>frame_body(header)).records_xxh3 if header.flags & FRAME_FLAG_KEY else 0


cdef inline record_entry *append_first(const frame_header *header) noexcept nogil:
    cdef uint8_t *body = frame_body(header)
    if header.flags & FRAME_FLAG_KEY:
        body += sizeof(key_section) + align8((<const key_section *>body).key_bytes)
    return <record_entry *>body


# ---- a record entry

cdef inline uint32_t entry_bytes(const record_entry *entry) noexcept nogil:
    # The whole entry, header and padding included: a multiple of 8.
    return entry.length_flags & ENTRY_LENGTH_MASK


cdef inline record_entry *entry_next(const record_entry *entry) noexcept nogil:
    return <record_entry *>(<uint8_t *>entry + entry_bytes(entry))


cdef inline uint64_t entry_payload_bytes(const record_entry *entry) noexcept nogil:
    # What a record's `bytes` counts: data + meta + tag + node as stored.
    return <uint64_t>entry.data_bytes + entry.meta_bytes + entry.tag_bytes + entry.node_bytes


cdef inline const entry_ext *entry_extension(const record_entry *entry) noexcept nogil:
    return <const entry_ext *>(<const uint8_t *>entry + sizeof(record_entry)) if entry.length_flags & ENTRY_FLAG_EXT else NULL


cdef inline uint64_t entry_delay_ms(const record_entry *entry) noexcept nogil:
    cdef const entry_ext *ext = entry_extension(entry)
    return ext.delay_ms if ext != NULL else 0


cdef inline int32_t entry_priority(const record_entry *entry) noexcept nogil:
    cdef const entry_ext *ext = entry_extension(entry)
    return ext.priority if ext != NULL else 0


cdef inline const uint8_t *entry_node(const record_entry *entry) noexcept nogil:
    return <const uint8_t *>entry + sizeof(record_entry) + (sizeof(entry_ext) if entry.length_flags & ENTRY_FLAG_EXT else 0)


cdef inline const uint8_t *entry_tag(const record_entry *entry) noexcept nogil:
    return entry_node(entry) + entry.node_bytes


cdef inline const uint8_t *entry_meta(const record_entry *entry) noexcept nogil:
    return entry_tag(entry) + entry.tag_bytes


cdef inline const uint8_t *entry_data(const record_entry *entry) noexcept nogil:
    return entry_meta(entry) + entry.meta_bytes


cdef inline bint entry_has_node(const record_entry *entry) noexcept nogil:
    return entry.node_bytes != 0 or (entry.length_flags & ENTRY_FLAG_EMPTY_NODE) != 0


cdef inline bint entry_has_tag(const record_entry *entry) noexcept nogil:
    return entry.tag_bytes != 0 or (entry.length_flags & ENTRY_FLAG_EMPTY_TAG) != 0


cdef inline uint64_t entry_length_for(uint64_t parts_bytes, bint extended) noexcept nogil:
    return align8(sizeof(record_entry) + (sizeof(entry_ext) if extended else 0) + parts_bytes)
