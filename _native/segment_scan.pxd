# Segments as Arrow record batches: what `topicsd.scan`, the export's readers and the Spark source stand on.
#
#   segment --open--> range of seqs --fill--> columns (arrow_columns.h) --take--> one batch, by the Arrow C data interface
#
# One scanner goes through many segments, also of many topics, into the same batch, so that tiny segments do not make tiny batches. A call is
# per segment or per batch; nothing here makes an object per record.
#
# What is read is verified first, each time: the index block by its checksum, then each frame by its own (the hash brings the bytes into the cache
# that the copy then takes them from). Deleted records leave nothing. A hole of the index (evicted, expired, lost) is one row of kind `gap`.
# A frame that does not hold is one row of kind `corrupt` with the bytes as they stand. Either may fail or be skipped: as the scanner was made.
#
#   column      topic seq ts node tag meta data _kind      seq_end  _err  _raw
#   record      x     x   x  x    x   x    x    record     -        -     -        x as stored, - null; node, tag, meta null when absent
#   gap         x     x   x  -    -   -    -    gap        x        x     -        seq .. seq_end (null: open); _err: why (docs/format/log.md, HOLE)
#   corrupt     x     x   x  -    -   -    -    corrupt    x        x     x        ts null where no index tells it
#
# ts and its pages of memory: milliseconds become microseconds (timestamp[us, UTC]); 2^53 ms still fit.
#
# Owner: one thread. The parts may be maps: loads run inside guarded_call, a page that the disk does not give back is an OSError; rows that were
# whole before it stay.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from topicsd._native.hash cimport hash_secret
from topicsd._native.segment cimport Segment, SegmentPart

cdef extern from "arrow_columns.h" nogil:
    ctypedef struct ArrowSchema "struct ArrowSchema":
        void (*release)(ArrowSchema *schema) noexcept nogil
    ctypedef struct ArrowArray "struct ArrowArray":
        void (*release)(ArrowArray *array) noexcept nogil
    ctypedef struct column "struct column":
        int wanted
    ctypedef struct columns "struct columns":
        uint64_t rows, rows_max, bytes, bytes_max
        uint32_t count
        uint32_t *order
        uint64_t topic_bytes
        column *column
    const int COLUMN_TOPIC, COLUMN_SEQ, COLUMN_TS, COLUMN_NODE, COLUMN_TAG, COLUMN_META, COLUMN_DATA, COLUMN_KIND, COLUMN_SEQ_END, COLUMN_ERR
    const int COLUMN_RAW, COLUMNS
    bint columns_full(const columns *out)
    void columns_clear(columns *out)
    int put_topic(columns *out, const uint8_t *topic, uint64_t bytes)
    int put_number(columns *out, int number, int valid, int64_t value)
    int put_text(columns *out, int number, const void *at, uint64_t bytes)
    int put_json(columns *out, int number, const uint8_t *at, uint64_t bytes)
    int put_meta(columns *out, const uint8_t *at, uint64_t bytes)
    ArrowArray *columns_export(columns *out)
    ArrowSchema *columns_schema(const columns *out)
    void array_free(ArrowArray *array)
    void schema_free(ArrowSchema *schema)

cdef enum:
    SCAN_DONE = 0       # the range is read
    SCAN_FULL = 1       # the batch is: take it, then fill again
    SCAN_GAP = 100      # a hole, and gaps are to fail

cdef enum:
    RANGE_FAILS = 0
    RANGE_IS_ROW = 1
    RANGE_IS_SKIPPED = 2

cdef struct Scan:
    columns out
    Segment segment
    hash_secret secret              # of the topic's id
    uint64_t next_seq, last_seq     # what is left of the range
    uint64_t checked                # index blocks are verified up to here
    int corrupt                     # what becomes of a bad frame: RANGE_*
    int gaps                        # and of a hole
    uint64_t failed_last            # the last seq of the range that `fill` failed for; its first one is next_seq
    const char *failed_why
    bint remade                     # the index was made again from damaged data: its holes of reason corrupt are told now, not when it was sealed

# All that is left of the range, or until the batch is full. SCAN_*, SEGMENT_BAD_INDEX, SEGMENT_BAD_FRAME or -errno.
cdef int scan_fill(Scan *scan) noexcept nogil

cdef class Scanner:
    cdef Scan scan
    cdef bytes topic
    cdef list buffers
    cdef tuple names
    cdef int part(self, SegmentPart *part, buffer, uint64_t offset) except -1
    cdef int name(self, bytes topic) except -1
    cdef int judge(self, int status) except -1
