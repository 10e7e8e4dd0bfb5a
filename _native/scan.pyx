"""Read the bodies of write, diff and delete in one pass; encode a write as the body of an append frame."""

import json
import re

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memset

from topicsd._native.layout cimport MATCH_NONE

cdef extern from "json_scan.h" nogil:
    const int JSON_UNEXPECTED
    const int JSON_CONTROL
    const int JSON_ESCAPE
    const int JSON_UTF8
    const int JSON_DEPTH
    const int JSON_TRAILING
    const uint32_t JSON_DEPTH_MAX

cdef extern from "scan_impl.h" nogil:
    int topicsd_scan_write(const uint8_t *body, size_t length, const WriteLimits *limits, WriteRequest *out) noexcept
    int topicsd_scan_diff(const uint8_t *body, size_t length, uint32_t max_depth, DiffRequest *out) noexcept
    int topicsd_scan_delete(const uint8_t *body, size_t length, uint32_t max_depth, DeleteRequest *out) noexcept
    void topicsd_write_free(WriteRequest *request) noexcept
    void topicsd_diff_free(DiffRequest *request) noexcept
    void topicsd_delete_free(DeleteRequest *request) noexcept
    int topicsd_scan_check(const uint8_t *body, size_t length, uint32_t max_depth, int only_object, ScanError *error) noexcept
    uint64_t topicsd_encoded_bytes(const WriteRequest *request, uint32_t header_key_bytes) noexcept
    uint64_t topicsd_encode(const WriteRequest *request, const uint8_t *header_key, uint32_t header_key_bytes, uint8_t *destination,
                            uint64_t *hash) noexcept
    int topicsd_scan_path(int path) noexcept

NODES_MAX = SCAN_NODES_MAX
KEY_CHARACTERS_MAX = SCAN_KEY_CHARACTERS_MAX

# A longer body is scanned without the GIL, so that it can be in a thread: below, giving it up costs more than it frees.
cdef enum: GIL_BODY_BYTES_MAX = 65536

cdef int scan_write(const uint8_t *body, size_t length, const WriteLimits *limits, WriteRequest *out) noexcept nogil:
    return topicsd_scan_write(body, length, limits, out)

cdef int scan_diff(const uint8_t *body, size_t length, DiffRequest *out) noexcept nogil:
    return topicsd_scan_diff(body, length, JSON_DEPTH_MAX, out)

cdef int scan_delete(const uint8_t *body, size_t length, DeleteRequest *out) noexcept nogil:
    return topicsd_scan_delete(body, length, JSON_DEPTH_MAX, out)

cdef void write_free(WriteRequest *request) noexcept nogil:
    topicsd_write_free(request)

cdef void diff_free(DiffRequest *request) noexcept nogil:
    topicsd_diff_free(request)

cdef void delete_free(DeleteRequest *request) noexcept nogil:
    topicsd_delete_free(request)

cdef uint32_t write_key_bytes(const WriteRequest *request, uint32_t header_key_bytes) noexcept nogil:
    return request.key_bytes if request.key_bytes else header_key_bytes

cdef uint64_t encoded_write_bytes(const WriteRequest *request, uint32_t header_key_bytes) noexcept nogil:
    return topicsd_encoded_bytes(request, header_key_bytes)

cdef uint64_t encode_write(const WriteRequest *request, const uint8_t *header_key, uint32_t header_key_bytes, uint8_t *destination,
                           uint64_t *hash) noexcept nogil:
    return topicsd_encode(request, header_key, header_key_bytes, destination, hash)


# ---- errors ----------------------------------------------------------------------------------------------------------

class BadRequest(ValueError):
    """Say what is wrong with a body: the caller's fault, answered with 400 and this code, message and detail."""

    def __init__(self, code: str, message: str, detail: dict) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail = detail


cdef str byte_at(const uint8_t *body, uint64_t length, uint64_t offset):
    if offset >= length:
        return "the end of the body"
    return f"'{chr(body[offset])}'" if 0x20 < body[offset] < 0x7F else f"the byte 0x{body[offset]:02x}"


cdef object json_error(const ScanError *error, const uint8_t *body, uint64_t length):
    found = byte_at(body, length, error.offset)
    if error.why == JSON_CONTROL:
        wrong = f"control character in a string: {found}"
    elif error.why == JSON_ESCAPE:
        wrong = f"bad escape in a string: {found}"
    elif error.why == JSON_UTF8:
        wrong = "not UTF-8"
    elif error.why == JSON_DEPTH:
        wrong = "nested too deeply"
    elif error.why == JSON_TRAILING:
        wrong = f"text behind the value: {found}"
    else:
        wrong = f"unexpected {found}"
    return BadRequest("invalid_request", f"invalid JSON at byte {error.offset}: {wrong}", {"offset": error.offset})


cdef str field_path(const ScanError *error, const uint8_t *body):
    parts = [f"records[{error.record}]"] if error.record >= 0 else []
    if error.member != NULL:
        parts.append(error.member.decode())
    if error.named:
        name = json.loads(b'"' + body[error.name_at:error.name_at + error.name_bytes] + b'"')
        name = name.encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent back
        parts.append(name if len(name) <= 64 else name[:64] + "…")
    return ".".join(parts)


cdef object field_error(const ScanError *error, const uint8_t *body):
    field = field_path(error, body)
    wanted = error.wanted.decode() if error.wanted != NULL else ""
    shown = field or "body"
    if error.kind == SCAN_TYPE:
        return BadRequest("invalid_request", f"{shown}: must be {wanted}", {"field": field})
    if error.kind == SCAN_MISSING:
        return BadRequest("invalid_request", f"{shown}{' ' + wanted if wanted else ''}: is required", {"field": field})
    if error.kind == SCAN_DUPLICATE:
        return BadRequest("invalid_request", f"{shown}: stands twice", {"field": field})
    code = "invalid_request"
    if error.kind == SCAN_RECORD_TOO_LARGE:
        code = "record_too_large"
    elif error.kind == SCAN_BATCH_TOO_LARGE:
        code = "batch_too_large"
    message = f"{shown}: {error.actual} {wanted}, at most {error.limit}"
    return BadRequest(code, message, {"field": field, "limit": error.limit})


cdef object error_of(const ScanError *error, const uint8_t *body, uint64_t length):
    if error.kind == SCAN_MEMORY:
        return MemoryError()
    return json_error(error, body, length) if error.kind == SCAN_JSON else field_error(error, body)


# ---- canonical text from Python ----------------------------------------------------------------------------------------

LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def canonical(str text) -> bytes:
    """Return a string as topicsd stores tags, nodes and keys: canonical JSON without the quotes."""
    quoted = json.dumps(text, ensure_ascii=False)
    escaped = quoted[1:len(quoted) - 1]
    return LONE_SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", escaped).encode()


def header_key(str text, uint32_t max_characters=256) -> bytes:
    """Return the canonical form of an `Idempotency-Key` header, as `Write.encode` takes it.

    Raises BadRequest when it is empty or too long. A section 0.8.
    """
    limit = min(max_characters, SCAN_KEY_CHARACTERS_MAX)
    if not text:
        raise BadRequest("invalid_request", "idempotency_key: must be at least one character", {"field": "idempotency_key"})
    if len(text) > limit:
        message = f"idempotency_key: {len(text)} characters, at most {limit}"
        raise BadRequest("invalid_request", message, {"field": "idempotency_key", "limit": limit})
    return canonical(text)


# ---- write -------------------------------------------------------------------------------------------------------------

cdef class Limits:
    """Hold the limits of a write (A section 2, D section 1.2). Bytes are counted in the decoded string, data and meta as sent."""

    def __init__(self, *, uint32_t max_records=10_000, uint32_t max_record_bytes=1 << 20, uint32_t max_meta_bytes=16 << 10, uint32_t max_meta_keys=64,
                 uint32_t max_tag_bytes=256, uint32_t max_node_bytes=128, uint32_t max_key_chars=256, uint32_t max_depth=128) -> None:
        self.limits.max_records = max_records
        self.limits.max_record_bytes = max_record_bytes
        self.limits.max_meta_bytes = max_meta_bytes
        self.limits.max_meta_keys = max_meta_keys
        self.limits.max_tag_bytes = max_tag_bytes
        self.limits.max_node_bytes = max_node_bytes
        self.limits.max_key_chars = max_key_chars
        self.limits.max_depth = max_depth


DEFAULT_LIMITS = Limits()


cdef class Write:
    """Hold a scanned write: spans into the body, which it keeps alive. Made by `parse_write`."""

    def __dealloc__(self) -> None:
        topicsd_write_free(&self.request)
        if self.view.obj is not None:
            PyBuffer_Release(&self.view)

    @property
    def count(self) -> int:
        return self.request.count

    @property
    def payload_bytes(self) -> int:
        return self.request.payload_bytes

    @property
    def encoded_bytes(self) -> int:
        return topicsd_encoded_bytes(&self.request, 0)

    @property
    def create(self):
        return None if self.request.create < 0 else self.request.create == 1

    @property
    def config(self):
        if not self.request.has_config:
            return None
        return self.request.body[self.request.config_at:self.request.config_at + self.request.config_bytes]

    @property
    def key(self):
        return self.request.key[:self.request.key_bytes] if self.request.key_bytes else None

    @property
    def disable_backpressure(self) -> bool:
        return self.request.disable_backpressure == 1

    def encode(self, header_key=None) -> bytes:
        """Return the body of an append frame: the key section when there is a key, then the record entries."""
        return self.encode_hashed(header_key)[0]

    def encode_hashed(self, header_key=None):
        """Return the same, and its xxh3_64 as it was taken on the way."""
        cdef bytes key = header_key or b""
        cdef uint64_t hash
        if <uint64_t>len(key) > SCAN_KEY_BYTES_MAX:
            raise ValueError("an idempotency key is at most 256 characters")
        cdef bytes body = PyBytes_FromStringAndSize(NULL, topicsd_encoded_bytes(&self.request, len(key)))
        topicsd_encode(&self.request, <const uint8_t *>key, len(key), <uint8_t *>PyBytes_AS_STRING(body), &hash)
        return body, hash


def parse_write(body, Limits limits=None) -> Write:
    """Scan the body of a write. Raises BadRequest with `invalid_request`, `record_too_large` or `batch_too_large`. A section 2."""
    cdef Write write = Write.__new__(Write)
    cdef const WriteLimits *values = &(<Limits>(DEFAULT_LIMITS if limits is None else limits)).limits
    cdef int kind
    PyObject_GetBuffer(body, &write.view, PyBUF_SIMPLE)
    if write.view.len > GIL_BODY_BYTES_MAX:
        with nogil:
            kind = topicsd_scan_write(<const uint8_t *>write.view.buf, write.view.len, values, &write.request)
    else:
        kind = topicsd_scan_write(<const uint8_t *>write.view.buf, write.view.len, values, &write.request)
    if kind:
        raise error_of(&write.request.error, <const uint8_t *>write.view.buf, write.view.len)
    return write


# ---- diff and delete ---------------------------------------------------------------------------------------------------

cdef class Diff:
    """Hold a scanned diff. Made by `parse_diff`."""

    def __dealloc__(self) -> None:
        topicsd_diff_free(&self.request)

    @property
    def from_seq(self) -> int:
        return self.request.from_seq

    @from_seq.setter
    def from_seq(self, uint64_t value) -> None:
        # a long poll asks again from where it has looked already
        self.request.from_seq = value

    @property
    def limit(self) -> int:
        return self.request.limit

    @property
    def wait_ms(self) -> int:
        return self.request.wait_ms

    @property
    def max_batch_bytes(self) -> int:
        return self.request.max_batch_bytes

    @property
    def include_tags(self) -> bool:
        return self.request.include_tags == 1

    @property
    def include_meta(self) -> bool:
        return self.request.include_meta == 1

    @property
    def include_data(self) -> bool:
        return self.request.include_data == 1

    @property
    def epoch(self):
        return self.request.epoch if self.request.has_epoch else None

    @property
    def from_ts(self):
        return self.request.from_ts if self.request.has_from_ts else None

    @property
    def nodes(self) -> list:
        cdef uint32_t i
        return [diff_node(&self.request, i)[:self.request.nodes[i].bytes] for i in range(self.request.node_count)]

    @property
    def match_kind(self) -> int:
        return self.request.match_kind

    @property
    def match(self):
        return None if self.request.match_kind == MATCH_NONE else diff_match(&self.request)[:self.request.match.bytes]


def parse_diff(body) -> Diff:
    """Scan the body of a diff; an empty one is `{}`. Raises BadRequest. A section 3."""
    cdef Diff diff = Diff.__new__(Diff)
    cdef Py_buffer view
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        if topicsd_scan_diff(<const uint8_t *>view.buf, view.len, JSON_DEPTH_MAX, &diff.request):
            raise error_of(&diff.request.error, <const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return diff


cdef class Delete:
    """Hold a scanned delete. Made by `parse_delete`."""

    def __dealloc__(self) -> None:
        topicsd_delete_free(&self.request)

    @property
    def before_seq(self):
        return self.request.before_seq if self.request.has_before_seq else None

    @property
    def match_kind(self) -> int:
        return self.request.match_kind

    @property
    def match(self):
        return None if self.request.match_kind == MATCH_NONE else (self.request.arena + self.request.match.at)[:self.request.match.bytes]


def parse_delete(body) -> Delete:
    """Scan the body of a delete. Raises BadRequest. A section 5."""
    cdef Delete delete = Delete.__new__(Delete)
    cdef Py_buffer view
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        if topicsd_scan_delete(<const uint8_t *>view.buf, view.len, JSON_DEPTH_MAX, &delete.request):
            raise error_of(&delete.request.error, <const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return delete


# ---- syntax alone ------------------------------------------------------------------------------------------------------

cdef int check(object body, uint32_t max_depth, bint only_object) except -1:
    cdef Py_buffer view
    cdef ScanError error
    cdef int kind
    memset(&error, 0, sizeof(ScanError))
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        if view.len > GIL_BODY_BYTES_MAX:
            with nogil:
                kind = topicsd_scan_check(<const uint8_t *>view.buf, view.len, max_depth, only_object, &error)
        else:
            kind = topicsd_scan_check(<const uint8_t *>view.buf, view.len, max_depth, only_object, &error)
        if kind:
            raise error_of(&error, <const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return 0


def validate(body, uint32_t max_depth=JSON_DEPTH_MAX) -> None:
    """Check that the body is one JSON value. Raises BadRequest with the byte offset in its detail."""
    check(body, max_depth, False)


def check_object(body, uint32_t max_depth=JSON_DEPTH_MAX) -> None:
    """Check that the body is a JSON object whose members all have different names. Raises BadRequest."""
    check(body, max_depth, True)


def use_path(int path) -> int:
    """Scan on another path from now on, for tests: 0 the widest of this machine, 1 portable, 2 SSE2 without AVX2. Returns the one before."""
    return topicsd_scan_path(path)
