# Heads and bodies of HTTP/1.1 requests: see http.h, which is the code. Nothing here is shared and nothing is kept between calls
# but what the caller holds: `from` of http_head_end, and a struct http_frame for each body.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "http.h" nogil:
    const uint32_t HTTP_HEAD_BYTES_MAX
    const int HTTP_MORE
    const int HTTP_BAD_LINE
    const int HTTP_BAD_FIELD
    const int HTTP_BAD_LENGTH
    const int HTTP_BAD_FRAMING
    const int HTTP_BAD_CODING
    const int HTTP_LINE_TOO_LONG
    const int HTTP_HEAD_TOO_LARGE
    const int HTTP_BAD_CHUNK
    const int HTTP_BAD_HOST
    const uint32_t METHOD_GET
    const uint32_t METHOD_POST
    const uint32_t BODY_NONE
    const uint32_t BODY_LENGTH
    const uint32_t BODY_CHUNKED
    const uint32_t HEAD_HOST
    const uint32_t HEAD_CLOSE
    const uint32_t HEAD_UPGRADE
    const uint32_t HEAD_EXPECT
    const uint32_t HEAD_ENCODED
    const uint32_t HEAD_GZIP
    const uint32_t HEAD_JSON
    const uint32_t HEAD_TWICE
    const int ROUTE_NONE
    const int ROUTE_APPEND
    const int ROUTE_DIFF
    const int ROUTE_STATE
    const int ROUTE_CLAIM
    const int ROUTE_ACK
    const int ROUTE_NACK
    const int ROUTE_EXTEND

    ctypedef struct Span "struct http_span":
        uint32_t at
        uint32_t bytes

    ctypedef struct Head "struct http_head":
        uint32_t method
        uint32_t minor
        uint32_t flags
        uint32_t body
        uint64_t length
        uint32_t fields
        Span target
        Span authorization
        Span key
        uint32_t has_authorization
        uint32_t has_key
        Span request_id
        uint32_t has_request_id

    ctypedef struct Frame "struct http_frame":
        uint32_t kind
        uint32_t state
        uint64_t left

    int64_t http_head_end(const uint8_t *at, size_t size, size_t *start)
    int http_head_parse(const uint8_t *at, size_t size, Head *out)
    int http_frame_done(const Frame *frame)
    int64_t http_frame_feed(Frame *frame, const uint8_t *at, size_t size)
    int http_route(const Head *head, const uint8_t *at, Span *name, Span *query)
    int http_plain_id(const uint8_t *at, size_t size)
    int http_is(const uint8_t *at, size_t size, const char *text, size_t text_bytes)
