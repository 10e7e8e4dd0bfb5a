"""The HTTP parser's Python face, for tests and the fuzzer: it works on exact copies, so that a sanitizer sees every byte read too many."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from topicsd._native.http cimport (
    BODY_LENGTH, Frame, HTTP_BAD_CHUNK, HTTP_BAD_CODING, HTTP_BAD_FIELD, HTTP_BAD_FRAMING, HTTP_BAD_HOST, HTTP_BAD_LENGTH, HTTP_BAD_LINE,
    HTTP_HEAD_TOO_LARGE, HTTP_LINE_TOO_LONG, Head, ROUTE_NONE, Span, http_frame_done, http_frame_feed, http_head_end, http_head_parse,
    http_route)

cdef extern from "sha256.h" nogil:
    void sha256_of "sha256"(const uint8_t *text, size_t size, uint8_t *digest)
    int digests_equal(const uint8_t *one, const uint8_t *other)

# status and message of each refusal, by the parser's result
REFUSALS = {
    HTTP_BAD_LINE: (400, "malformed request line"),
    HTTP_BAD_FIELD: (400, "malformed header field"),
    HTTP_BAD_LENGTH: (400, "malformed Content-Length"),
    HTTP_BAD_FRAMING: (400, "the body's length is given in two ways"),
    HTTP_BAD_CODING: (400, "the only transfer coding is chunked"),
    HTTP_LINE_TOO_LONG: (414, "the request line is too long"),
    HTTP_HEAD_TOO_LARGE: (431, "the request's head is too large"),
    HTTP_BAD_CHUNK: (400, "malformed chunk"),
    HTTP_BAD_HOST: (400, "more than one Host header"),
}


cdef uint8_t *copied(const uint8_t *at, size_t size) except NULL:
    cdef uint8_t *out = <uint8_t *>malloc(size if size else 1)
    if out == NULL:
        raise MemoryError
    memcpy(out, at, size)
    return out


def parse_head(bytes text not None):
    """Return a dict of what a complete head says and its length, 0 while it is incomplete, or a negative result (see REFUSALS)."""
    cdef size_t start = 0
    cdef Head head
    cdef Span name, query
    cdef int wrong, route
    cdef int64_t end
    cdef uint8_t *at = copied(text, len(text))
    memset(&name, 0, sizeof(name))
    memset(&query, 0, sizeof(query))
    try:
        end = http_head_end(at, len(text), &start)
        if end <= 0:
            return end
        wrong = http_head_parse(at, end, &head)
        if wrong:
            return wrong
        route = http_route(&head, at, &name, &query)
        if route == ROUTE_NONE:
            name.bytes = query.bytes = 0
        return {
            "bytes": end,
            "target": text[head.target.at:head.target.at + head.target.bytes],
            "minor": head.minor,
            "body": head.body,
            "length": head.length,
            "flags": head.flags,
            "fields": head.fields,
            "route": route,
            "name": text[name.at:name.at + name.bytes],
            "query": text[query.at:query.at + query.bytes],
            "authorization": text[head.authorization.at:head.authorization.at + head.authorization.bytes] if head.has_authorization else None,
            "key": text[head.key.at:head.key.at + head.key.bytes] if head.has_key else None,
        }
    finally:
        free(at)


def frame_body(uint32_t kind, uint64_t length, list pieces not None):
    """Frame a body that comes in pieces: (bytes of it, whether it is whole), or a negative result."""
    cdef Frame frame
    cdef int64_t taken
    cdef int64_t total = 0
    cdef uint8_t *at
    memset(&frame, 0, sizeof(frame))
    frame.kind = kind
    frame.left = length if kind == BODY_LENGTH else 0
    for piece in pieces:
        at = copied(piece, len(piece))
        taken = http_frame_feed(&frame, at, len(piece))
        free(at)
        if taken < 0:
            return taken
        total += taken
        if taken < len(piece):
            break
    return total, bool(http_frame_done(&frame))


def sha256(bytes text not None):
    """Return a text's SHA-256 digest as the front computes it."""
    cdef uint8_t digest[32]
    sha256_of(text, len(text), digest)
    return digest[:32]


def same_digest(bytes one not None, bytes other not None):
    """Compare two digests of 32 bytes in constant time."""
    if len(one) != 32 or len(other) != 32:
        raise ValueError("a digest has 32 bytes")
    return bool(digests_equal(one, other))
