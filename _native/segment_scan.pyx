"""Segments as Arrow record batches (see segment_scan.pxd)."""

import os

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset, strlen

from topicsd._native.frame cimport entry_data, entry_has_node, entry_has_tag, entry_meta, entry_node, entry_tag
from topicsd._native.hash cimport hash_secret_make
from topicsd._native.layout cimport INDEX_DELETED, INDEX_HOLE, POSITION_MASK, entry_ext, index_entry, record_entry
from topicsd._native.maps cimport guarded_call
from topicsd._native.segment cimport (
    SEGMENT_BAD_FRAME, SEGMENT_BAD_INDEX, SEGMENT_BLOCK_ENTRIES, SEGMENT_FRAME_TAIL_BYTES, SEGMENT_OK, Segment, SegmentPart, segment_check_index,
    segment_entry, segment_entry_check, segment_frame, segment_is_flagged, segment_lower_bound_ts, segment_open_guarded, segment_record,
)

from topicsd._native.maps import install_guard
from topicsd._native.segment import SegmentError

RANGES = {"fail": RANGE_FAILS, "row": RANGE_IS_ROW, "skip": RANGE_IS_SKIPPED}
COLUMN_NAMES = ("topic", "seq", "ts", "node", "tag", "meta", "data", "_kind", "seq_end", "_err", "_raw")


class GapError(Exception):
    """Say that seqs of a topic were lost: `first_seq` .. `last_seq`, where gaps are to fail."""

    def __init__(self, str topic, first_seq, last_seq, str why) -> None:
        super().__init__(f"topic {topic}, seqs {first_seq} to {last_seq}: lost ({why})")
        self.topic, self.first_seq, self.last_seq, self.why = topic, first_seq, last_seq, why

    def __reduce__(self):
        return type(self), (self.topic, self.first_seq, self.last_seq, self.why)


cdef enum:
    REASON_CORRUPT = 6
    BYTES_MAX = 128 << 20
    BYTES_MAX_MAX = 1 << 30     # offsets are 32 bits, and the last row may be large

cdef const char *reason_name(uint32_t reason) noexcept nogil:
    if reason == 1: return b"cap"
    if reason == 2: return b"ttl"
    if reason == 3: return b"mixed"
    if reason == 4: return b"recreated"
    if reason == 5: return b"source_trim"
    return b"corrupt"


# ---- rows -------------------------------------------------------------------------------------------------------------------


cdef int _put_record(Scan *scan, uint64_t seq, uint64_t ts, const record_entry *record) noexcept nogil:
    cdef columns *out = &scan.out
    cdef int failure = put_number(out, COLUMN_SEQ, True, <int64_t>seq)
    if failure == 0: failure = put_number(out, COLUMN_TS, True, <int64_t>(ts * 1000))
    if failure == 0: failure = put_json(out, COLUMN_NODE, entry_node(record) if entry_has_node(record) else NULL, record.node_bytes)
    if failure == 0: failure = put_json(out, COLUMN_TAG, entry_tag(record) if entry_has_tag(record) else NULL, record.tag_bytes)
    if failure == 0: failure = put_meta(out, entry_meta(record) if record.meta_bytes else NULL, record.meta_bytes)
    if failure == 0: failure = put_text(out, COLUMN_DATA, entry_data(record), record.data_bytes)
    if failure == 0: failure = put_text(out, COLUMN_KIND, b"record", 6)
    if failure == 0: failure = put_number(out, COLUMN_SEQ_END, False, 0)
    if failure == 0: failure = put_text(out, COLUMN_ERR, NULL, 0)
    if failure == 0: failure = put_text(out, COLUMN_RAW, NULL, 0)
    if failure == 0:
        out.bytes += <uint64_t>record.data_bytes + record.meta_bytes + record.tag_bytes + record.node_bytes + out.topic_bytes
        out.rows += 1
    return failure


cdef int _put_range_row(Scan *scan, bint corrupt, uint64_t first, uint64_t last, int64_t ts, const char *why, const void *raw, uint64_t raw_bytes) \
        noexcept nogil:
    cdef columns *out = &scan.out
    cdef const char *kind = b"corrupt" if corrupt else b"gap"
    cdef int failure = put_number(out, COLUMN_SEQ, True, <int64_t>first)
    if failure == 0: failure = put_number(out, COLUMN_TS, ts >= 0, ts * 1000)
    if failure == 0: failure = put_text(out, COLUMN_NODE, NULL, 0)
    if failure == 0: failure = put_text(out, COLUMN_TAG, NULL, 0)
    if failure == 0: failure = put_text(out, COLUMN_DATA, NULL, 0)
    if failure == 0: failure = put_meta(out, NULL, 0)
    if failure == 0: failure = put_text(out, COLUMN_KIND, kind, strlen(kind))
    if failure == 0: failure = put_number(out, COLUMN_SEQ_END, last != 0, <int64_t>last)
    if failure == 0: failure = put_text(out, COLUMN_ERR, why, strlen(why))
    if failure == 0: failure = put_text(out, COLUMN_RAW, raw, raw_bytes)
    if failure == 0:
        out.bytes += raw_bytes + out.topic_bytes
        out.rows += 1
    return failure


cdef int _put_range(Scan *scan, bint corrupt, uint64_t first, uint64_t last, int64_t ts, const char *why, const void *raw, uint64_t raw_bytes) \
        noexcept nogil:
    # The row of a range, as the scanner was told to treat its kind.
    cdef int mode = scan.corrupt if corrupt else scan.gaps
    if mode == RANGE_IS_ROW:
        return _put_range_row(scan, corrupt, first, last, ts, why, raw, raw_bytes)
    if mode == RANGE_IS_SKIPPED:
        return 0
    scan.failed_last, scan.failed_why = last, why
    return SEGMENT_BAD_FRAME if corrupt else SCAN_GAP


# ---- a segment ----------------------------------------------------------------------------------------------------------------


cdef int _check_to(Scan *scan, uint64_t seq) noexcept nogil:
    # The index block of `seq`, once.
    cdef uint64_t upto = 0, block_end
    if seq < scan.checked:
        return SEGMENT_OK
    block_end = scan.segment.first_seq + ((seq - scan.segment.first_seq) // SEGMENT_BLOCK_ENTRIES + 1) * SEGMENT_BLOCK_ENTRIES
    if segment_check_index(&scan.segment, seq, 1, &upto) != SEGMENT_OK:
        return SEGMENT_BAD_INDEX
    scan.checked = block_end
    return SEGMENT_OK


cdef int _scan_hole(Scan *scan) noexcept nogil:
    cdef uint64_t first = scan.next_seq, end = first + 1
    cdef const index_entry *entry = segment_entry(&scan.segment, first)
    cdef uint32_t reason = entry.flags >> 8 & 0xFF
    cdef bint corrupt = scan.remade and reason == REASON_CORRUPT
    cdef int failure
    while end <= scan.last_seq:
        failure = _check_to(scan, end)
        if failure != SEGMENT_OK:
            return failure
        if segment_entry(&scan.segment, end).flags != entry.flags:
            break
        end += 1
    failure = _put_range(scan, corrupt, first, end - 1, <int64_t>entry.ts, reason_name(reason), NULL, 0)
    if failure == 0:
        scan.next_seq = end
    return failure


cdef int _scan_corrupt(Scan *scan) noexcept nogil:
    # The bytes where the index says the frame is, as long as it says; nothing of them is believed.
    cdef index_entry entry = segment_entry(&scan.segment, scan.next_seq)[0]
    cdef uint64_t at = entry.position & POSITION_MASK, end
    cdef const uint8_t *raw = NULL
    cdef int failure
    end = min(at + sizeof(record_entry) + sizeof(entry_ext) + entry.bytes + SEGMENT_FRAME_TAIL_BYTES, scan.segment.data.bytes)
    at -= min(at, <uint64_t>sizeof(segment_frame))
    if scan.segment.data.at != NULL and scan.segment.data_from <= at < end:
        raw = scan.segment.data.at + at
    failure = _put_range(scan, True, scan.next_seq, scan.next_seq, <int64_t>entry.ts, b"damaged frame", raw, end - at if raw != NULL else 0)
    if failure == 0:
        scan.next_seq += 1
    return failure


cdef int _scan_seq(Scan *scan) noexcept nogil:
    cdef index_entry entry
    cdef const record_entry *record
    cdef int status = _check_to(scan, scan.next_seq)
    if status != SEGMENT_OK:
        return status
    entry = segment_entry(&scan.segment, scan.next_seq)[0]
    if entry.flags & INDEX_HOLE:
        return _scan_hole(scan)
    if not entry.flags & INDEX_DELETED:
        if segment_entry_check(&scan.segment, scan.next_seq, &scan.secret) != SEGMENT_OK:
            return _scan_corrupt(scan)
        record = segment_record(&scan.segment, scan.next_seq, &entry)
        if record == NULL:
            return _scan_corrupt(scan)
        if not segment_is_flagged(&scan.segment, scan.next_seq, record):
            status = _put_record(scan, scan.next_seq, entry.ts, record)
    if status == SEGMENT_OK:
        scan.next_seq += 1
    return status


cdef int scan_fill(Scan *scan) noexcept nogil:
    cdef int status
    while scan.next_seq <= scan.last_seq:
        if columns_full(&scan.out):
            return SCAN_FULL
        status = _scan_seq(scan)
        if status != SEGMENT_OK:
            return status
    return SCAN_DONE


cdef int _fill(void *scan) noexcept nogil:
    return scan_fill(<Scan *>scan)


cdef struct Bounds:
    Scan *scan
    uint64_t since, until
    bint has_until


cdef int _bound(void *argument) noexcept nogil:
    # Times never fall, so a range of times is a range of seqs.
    cdef Bounds *bounds = <Bounds *>argument
    cdef Scan *scan = bounds.scan
    cdef uint64_t seq = 0
    if bounds.since:
        if segment_lower_bound_ts(&scan.segment, scan.next_seq, bounds.since, &seq) != SEGMENT_OK:
            return SEGMENT_BAD_INDEX
        scan.next_seq = seq
    if bounds.has_until:
        if segment_lower_bound_ts(&scan.segment, scan.segment.first_seq, bounds.until, &seq) != SEGMENT_OK:
            return SEGMENT_BAD_INDEX
        scan.last_seq = min(scan.last_seq, seq - 1)
    return SEGMENT_OK


# ---- the Python half: a call a segment, a call a batch ------------------------------------------------------------------------


cdef void _free_array(object capsule) noexcept:
    array_free(<ArrowArray *>PyCapsule_GetPointer(capsule, "arrow_array"))


cdef void _free_schema(object capsule) noexcept:
    schema_free(<ArrowSchema *>PyCapsule_GetPointer(capsule, "arrow_schema"))


cdef object _schema_capsule(const columns *out):
    cdef ArrowSchema *schema = columns_schema(out)
    if schema == NULL:
        raise MemoryError
    return PyCapsule_New(schema, "arrow_schema", _free_schema)


cdef class Batch:
    """Rows by the Arrow C data interface: `pyarrow.record_batch(batch)` takes them, once."""

    cdef readonly object rows
    cdef object array
    cdef object schema

    def __arrow_c_array__(self, requested_schema=None):
        if self.array is None:
            raise ValueError("the batch has been taken already")
        array, self.array = self.array, None
        return self.schema, array


cdef class Scanner:
    """Segments into record batches: `open` one, `fill` until it says False, `open` the next; `take` when `full`, and at the end."""

    def __cinit__(self, names=COLUMN_NAMES, *, uint64_t rows_max=65536, uint64_t bytes_max=BYTES_MAX, str corrupt="fail", str gaps="row"):
        memset(&self.scan, 0, sizeof(Scan))
        self.names = tuple(names)
        if len(set(self.names)) != len(self.names) or not set(self.names) <= set(COLUMN_NAMES):
            raise ValueError(f"columns are some of {', '.join(COLUMN_NAMES)}, each once, not {', '.join(self.names)}")
        if rows_max == 0:
            raise ValueError("a batch has at least one row")
        for name in self.names:
            number = COLUMN_NAMES.index(name)
            self.scan.out.order[self.scan.out.count] = number
            self.scan.out.column[<int>number].wanted = True
            self.scan.out.count += 1
        self.scan.out.rows_max, self.scan.out.bytes_max = rows_max, min(bytes_max, <uint64_t>BYTES_MAX_MAX)
        self.scan.corrupt, self.scan.gaps = RANGES[corrupt], RANGES[gaps]
        self.scan.next_seq = 1
        self.topic, self.buffers = b"", []
        install_guard()

    def __dealloc__(self):
        columns_clear(&self.scan.out)

    def __arrow_c_schema__(self):
        return _schema_capsule(&self.scan.out)

    @property
    def rows(self):
        """Rows that wait to be taken."""
        return self.scan.out.rows

    @property
    def full(self):
        return columns_full(&self.scan.out)

    @property
    def next_seq(self):
        """The first seq of the open range that has not been read: of what `fill` raised for, too."""
        return self.scan.next_seq

    cdef int part(self, SegmentPart *part, buffer, uint64_t offset) except -1:
        cdef const uint8_t[::1] view = buffer
        self.buffers.append(view)
        part.bytes = <uint64_t>len(view) - min(offset, <uint64_t>len(view))
        part.at = &view[offset] if part.bytes else NULL
        return 0

    def open(self, bytes topic not None, index, data, *, uint64_t index_offset=0, uint64_t data_offset=0, uint64_t first_seq=0,
             uint64_t last_seq=INT64_MAX, since=None, until=None, bint remade=False):
        """Open a segment's parts in buffers (bytes, maps), which it keeps until the next `open`; read first_seq .. last_seq of it.

        since, until: epoch ms, inclusive and exclusive. `remade`: the index was made from damaged data. Raises SegmentError, OSError.
        """
        cdef Scan *scan = &self.scan
        cdef Bounds bounds
        cdef int status
        scan.next_seq, scan.last_seq, scan.checked, scan.remade = 1, 0, 0, remade
        memset(&scan.segment, 0, sizeof(Segment))
        self.buffers = []
        self.part(&scan.segment.index, index, index_offset)
        self.part(&scan.segment.data, data, data_offset)
        self.name(topic)
        status = segment_open_guarded(&scan.segment)
        self.judge(status)
        hash_secret_make(&scan.secret, scan.segment.topic_id)
        scan.next_seq, scan.last_seq = max(first_seq, scan.segment.first_seq), min(last_seq, scan.segment.last_seq)
        bounds.scan, bounds.since, bounds.has_until = scan, max(since or 0, 0), until is not None
        bounds.until = max(until or 0, 0)
        if bounds.since or bounds.has_until:
            with nogil:
                status = guarded_call(_bound, &bounds)
            if status != SEGMENT_OK:
                scan.last_seq = 0
            self.judge(status)

    cdef int name(self, bytes topic) except -1:
        cdef int failure = put_topic(&self.scan.out, <const uint8_t *><const char *>topic, len(topic))
        if failure < 0:
            raise OSError(-failure, os.strerror(-failure), self.topic.decode(errors="replace"))
        self.topic = topic
        return 0

    cdef int judge(self, int status) except -1:
        if status < 0:
            raise OSError(-status, os.strerror(-status), self.topic.decode(errors="replace"))
        if status == SCAN_GAP:
            raise GapError(self.topic.decode(errors="replace"), self.scan.next_seq, self.scan.failed_last,
                           self.scan.failed_why.decode())
        if status != SEGMENT_OK:
            raise SegmentError(status, f"topic {self.topic.decode(errors='replace')}, seq {self.scan.next_seq}")
        return 0

    def fill(self):
        """Read on. True: the batch is full, take it and go on; False: the range is read. Raises SegmentError, GapError (at `next_seq`), OSError."""
        cdef int status
        with nogil:
            status = guarded_call(_fill, &self.scan)
        if status == SCAN_FULL:
            return True
        self.judge(status)
        return False

    def add_range(self, bytes topic not None, str kind not None, uint64_t first_seq, uint64_t last_seq, str why not None, ts=None):
        """Add a row for first_seq .. last_seq that no segment tells of; last_seq 0: nobody knows how far it goes. kind: "gap" or "corrupt".

        ts: epoch ms. Raises GapError.
        """
        cdef bytes words = why.encode()
        cdef int64_t time = -1 if ts is None else ts
        if kind not in ("gap", "corrupt"):
            raise ValueError(kind)
        self.scan.next_seq, self.scan.last_seq = 1, 0
        self.name(topic)
        if (self.scan.corrupt if kind == "corrupt" else self.scan.gaps) == RANGE_FAILS:
            raise GapError(topic.decode(errors="replace"), first_seq, last_seq, why)
        self.judge(_put_range(&self.scan, kind == "corrupt", first_seq, last_seq, time, words, NULL, 0))

    def take(self):
        """Take the rows so far as one batch, which may have none."""
        cdef Batch batch = Batch()
        cdef ArrowArray *array
        batch.rows = self.scan.out.rows
        batch.schema = _schema_capsule(&self.scan.out)
        array = columns_export(&self.scan.out)
        if array == NULL:
            raise MemoryError
        batch.array = PyCapsule_New(array, "arrow_array", _free_array)
        return batch
