"""Pages of diff as Arrow record batches (see page_scan.pxd)."""

from libc.stdint cimport int64_t, uint8_t, uint64_t

from topicsd._native.segment_scan cimport (
    COLUMN_DATA, COLUMN_ERR, COLUMN_KIND, COLUMN_NODE, COLUMN_RAW, COLUMN_SEQ, COLUMN_SEQ_END, COLUMN_TAG, COLUMN_TS, Scan, Scanner,
    columns, columns_full, put_json, put_meta, put_number, put_text,
)


class PageError(ValueError):
    """Say that an answer is no page of diff."""


cdef inline uint64_t _bytes(const uint8_t *const *span) noexcept nogil:
    return span[1] - span[0] if span[0] != NULL else 0


cdef int _put(Scan *scan, const PageRecord *record) noexcept nogil:
    cdef columns *out = &scan.out
    cdef int failure = put_number(out, COLUMN_SEQ, True, <int64_t>record.seq)
    if failure == 0: failure = put_number(out, COLUMN_TS, True, <int64_t>(record.ts * 1000))
    if failure == 0: failure = put_json(out, COLUMN_NODE, record.node[0], _bytes(record.node))
    if failure == 0: failure = put_json(out, COLUMN_TAG, record.tag[0], _bytes(record.tag))
    if failure == 0: failure = put_meta(out, record.meta[0], _bytes(record.meta))
    if failure == 0: failure = put_text(out, COLUMN_DATA, record.data[0], _bytes(record.data))
    if failure == 0: failure = put_text(out, COLUMN_KIND, b"record", 6)
    if failure == 0: failure = put_number(out, COLUMN_SEQ_END, False, 0)
    if failure == 0: failure = put_text(out, COLUMN_ERR, NULL, 0)
    if failure == 0: failure = put_text(out, COLUMN_RAW, NULL, 0)
    if failure == 0:
        out.bytes += _bytes(record.data) + _bytes(record.meta) + _bytes(record.tag) + _bytes(record.node) + out.topic_bytes
        out.rows += 1
    return failure


cdef int _fill(Scan *scan, PageScan *page, uint64_t last_seq, uint64_t since, uint64_t until) noexcept nogil:
    cdef PageRecord record
    cdef const uint8_t *before
    cdef int status
    while True:
        if columns_full(&scan.out):
            return PAGE_RECORD
        before = page.at
        status = page_next(page, &record)
        if status != PAGE_RECORD:
            return status
        if record.seq > last_seq:
            page.at = before
            return PAGE_END
        if record.ts >= since and record.ts < until:
            status = _put(scan, &record)
            if status != 0:
                page.at = before
                return status


cdef class PageScanner(Scanner):
    """Answers of diff into record batches: `open_page` one, `fill_page` until it says False, `take` when `full` and at the end."""

    def open_page(self, bytes topic not None, bytes body not None):
        """Open an answer of diff about a topic; what stands around its records, as JSON. Raises PageError."""
        cdef const uint8_t *at = <const uint8_t *><const char *>body
        cdef int status
        cdef uint64_t size = len(body), first, last
        self.body = body
        self.name(topic)
        with nogil:
            status = page_begin(&self.page, at, size)
        if status != 0:
            raise PageError(f"topic {topic.decode(errors='replace')}: the server's answer is no page of diff")
        first, last = self.page.records[0] - at, self.page.records[1] - at
        return body[:first] + b"[]" + body[last:]

    def fill_page(self, uint64_t last_seq, *, since=None, until=None):
        """Take records up to last_seq. True: the batch is full, take it and go on; False: the page is read. Raises PageError, MemoryError."""
        cdef uint64_t since_ms = max(since or 0, 0), until_ms = <uint64_t>-1 if until is None else max(until, 0)
        cdef int status
        if self.body is None:
            return False
        with nogil:
            status = _fill(&self.scan, &self.page, last_seq, since_ms, until_ms)
        if status == PAGE_BAD:
            raise PageError(f"topic {self.topic.decode(errors='replace')}: a record of the server's answer is none")
        if status < 0:
            raise MemoryError
        return status == PAGE_RECORD
