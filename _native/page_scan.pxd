# Pages of diff as Arrow record batches: what the Spark source reads a live server with.
#
#   answer (JSON) --open_page--> records --fill_page--> columns (arrow_columns.h) --take--> one batch
#
# The same columns, and the same batch, as segments have (segment_scan.pxd): a PageScanner is a Scanner that is fed answers. `data` is the text
# between the brackets of the answer, byte for byte what the server sent; node, tag and meta are decoded. A body is validated as a whole before its
# first record is taken. No object per record: a call is per page or per batch.
#
# What stands around the records (cursor, tombstone) comes back as JSON with no records in it, for Python to read once a page.
#
# Owner: one thread. The body is kept until the next `open_page`.
from libc.stdint cimport uint8_t, uint64_t

from topicsd._native.segment_scan cimport Scanner

cdef extern from "page_scan.h" nogil:
    const int PAGE_RECORD
    const int PAGE_END
    const int PAGE_BAD
    ctypedef struct PageScan "struct page_scan":
        const uint8_t *at
        const uint8_t *records[2]
    ctypedef struct PageRecord "struct page_record":
        uint64_t seq, ts
        const uint8_t *node[2]
        const uint8_t *tag[2]
        const uint8_t *meta[2]
        const uint8_t *data[2]
    int page_begin(PageScan *page, const uint8_t *body, uint64_t bytes)
    int page_next(PageScan *page, PageRecord *record)

cdef class PageScanner(Scanner):
    cdef PageScan page
    cdef bytes body
