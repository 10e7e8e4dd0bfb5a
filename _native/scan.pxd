# A request body becomes spans, and the spans of a write become the body of an append frame.
#
#   body (UTF-8 JSON)  --one pass-->  WriteRequest: where each record's data, meta, tag, node stand in the body
#                                         |
#                      encode_write       v
#                      [ key section ] [ entry ] [ entry ] ...        the layout of frame.pxd, straight into a ring
#
# The whole body is validated (RFC 8259, UTF-8, depth) in that pass, also behind the first complaint about a member: a JSON error
# anywhere wins. No Python object, no copy and no allocation a record; data and meta are copied byte for byte, once, at encoding.
#
#   data, meta   bytes as sent, surrounding spaces dropped. A raw LF or CR in them stands between tokens (inside strings they are
#                refused), so whoever needs one line (SSE) may put a space in its place without parsing.
#   tag, node    canonical JSON strings without their quotes (scan_text.h): equal bytes are equal strings
#   key          the same; the body's wins over the header's
#
# Owner: whoever holds the request; nothing is shared between threads. A WriteRequest points into the body, so the body must
# outlive it (the class Write sees to that); the texts of diffs and deletes stand in an arena of their own.
# Code: json_scan.h syntax, scan_text.h canonical strings, scan_object.h members and complaints, scan_impl.c write,
# scan_encode.h its encoding, scan_read.h diff and delete. A struct must be zeroed before its first use; it is reused by scanning into it again.
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "scan_impl.h" nogil:
    const uint32_t SCAN_KEY_CHARACTERS_MAX
    const uint32_t SCAN_KEY_BYTES_MAX
    const uint32_t SCAN_NODES_MAX
    const uint32_t RECORD_TAG
    const uint32_t RECORD_NODE
    const uint32_t RECORD_META
    const uint32_t RECORD_EXT
    const int SCAN_OK
    const int SCAN_JSON
    const int SCAN_TYPE
    const int SCAN_MISSING
    const int SCAN_DUPLICATE
    const int SCAN_LIMIT
    const int SCAN_RECORD_TOO_LARGE
    const int SCAN_BATCH_TOO_LARGE
    const int SCAN_MEMORY

    ctypedef struct ScanError "struct scan_error":
        int kind              # SCAN_*
        int why               # enum json_why, when kind is SCAN_JSON
        int64_t record        # index, or -1
        const char *member
        const char *wanted
        uint32_t name_at
        uint32_t name_bytes
        int named
        uint64_t offset
        uint64_t limit
        uint64_t actual

    ctypedef struct WriteLimits "struct write_limits":
        uint32_t max_records
        uint32_t max_record_bytes
        uint32_t max_meta_bytes
        uint32_t max_meta_keys
        uint32_t max_tag_bytes
        uint32_t max_node_bytes
        uint32_t max_key_chars
        uint32_t max_depth

    ctypedef struct RecordSpan "struct record_span":
        uint32_t data_at
        uint32_t data_bytes
        uint32_t meta_at
        uint32_t meta_bytes
        uint32_t tag_at
        uint32_t tag_raw_bytes
        uint32_t node_at
        uint32_t node_raw_bytes
        uint64_t delay_ms
        int32_t priority
        uint32_t flags
        uint16_t tag_bytes
        uint16_t node_bytes

    ctypedef struct WriteRequest "struct write_request":
        const uint8_t *body
        uint64_t body_bytes
        RecordSpan *records
        uint32_t count
        uint64_t payload_bytes
        uint64_t records_bytes
        int8_t create         # -1 absent, 0, 1
        uint8_t disable_backpressure
        uint8_t has_config
        uint32_t config_at
        uint32_t config_bytes
        uint32_t key_bytes    # 0: none
        uint8_t key[1536]     # canonical
        ScanError error

    ctypedef struct TextSpan "struct text_span":
        uint32_t at           # in the arena
        uint32_t bytes

    ctypedef struct DiffRequest "struct diff_request":
        uint64_t from_seq
        uint64_t from_ts
        uint64_t epoch
        uint64_t max_batch_bytes
        uint64_t upto_seq
        uint32_t limit
        uint32_t wait_ms
        uint8_t include_tags
        uint8_t include_meta
        uint8_t include_data
        uint8_t has_from_ts
        uint8_t has_epoch
        uint16_t match_kind   # MATCH_NONE, MATCH_EQ, MATCH_PREFIX (without its star)
        TextSpan match
        uint32_t node_count
        TextSpan *nodes
        uint8_t *arena
        uint32_t arena_bytes
        ScanError error

    ctypedef struct DeleteRequest "struct delete_request":
        uint64_t before_seq
        uint8_t has_before_seq
        uint16_t match_kind
        TextSpan match
        uint8_t *arena
        uint32_t arena_bytes
        ScanError error

# 0, or a SCAN_* kind, which also stands in out.error.
cdef int scan_write(const uint8_t *body, size_t length, const WriteLimits *limits, WriteRequest *out) noexcept nogil
cdef int scan_diff(const uint8_t *body, size_t length, DiffRequest *out) noexcept nogil
cdef int scan_delete(const uint8_t *body, size_t length, DeleteRequest *out) noexcept nogil
cdef void write_free(WriteRequest *request) noexcept nogil
cdef void diff_free(DiffRequest *request) noexcept nogil
cdef void delete_free(DeleteRequest *request) noexcept nogil

# The body of an append frame: everything behind the frame's header. Set FRAME_FLAG_KEY when `write_key_bytes` is not 0.
# A header key is canonical (`header_key`), of at most SCAN_KEY_BYTES_MAX bytes; 0 bytes: none.
cdef uint32_t write_key_bytes(const WriteRequest *request, uint32_t header_key_bytes) noexcept nogil
cdef uint64_t encoded_write_bytes(const WriteRequest *request, uint32_t header_key_bytes) noexcept nogil
cdef uint64_t encode_write(const WriteRequest *request, const uint8_t *header_key, uint32_t header_key_bytes, uint8_t *destination,
                           uint64_t *hash) noexcept nogil                   # hash: xxh3_64 of what it wrote


cdef inline const uint8_t *diff_node(const DiffRequest *request, uint32_t i) noexcept nogil:
    return request.arena + request.nodes[i].at


cdef inline const uint8_t *diff_match(const DiffRequest *request) noexcept nogil:
    return request.arena + request.match.at


cdef class Limits:
    cdef WriteLimits limits


cdef class Write:
    cdef WriteRequest request
    cdef Py_buffer view       # holds the body


cdef class Diff:
    cdef DiffRequest request


cdef class Delete:
    cdef DeleteRequest request
