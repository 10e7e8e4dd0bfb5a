"""Sealed segments: open their parts, verify what is about to be believed, look up seqs, times and tags (see segment.pxd)."""

from collections import namedtuple

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memset
from posix.fcntl cimport O_RDONLY, O_WRONLY
from posix.uio cimport iovec

from topicsd._native.files cimport Files, FileSystem, real_files
from topicsd._native.frame cimport align8, entry_bytes, entry_length_for, entry_payload_bytes
from topicsd._native.hash cimport hash_secret, hash_secret_make, xxh3_64, xxh3_64_secret, xxh3_64_seeded
from topicsd._native.layout cimport (
    ENTRY_FLAG_EMPTY_NODE, ENTRY_FLAG_EMPTY_TAG, ENTRY_FLAG_EXT, INDEX_DELETED, INDEX_HOLE, POSITION_MASK, index_entry, record_entry,
)
from topicsd._native.maps cimport guarded_call

STATUS = {
    SEGMENT_OK: "good",
    SEGMENT_SHORT: "shorter than it says",
    SEGMENT_NOT_ONE: "no such part",
    SEGMENT_BAD_HEADER: "damaged header",
    SEGMENT_NEWER: "a newer format: use the version that wrote it",
    SEGMENT_MISMATCH: "parts of different segments",
    SEGMENT_BAD_INDEX: "damaged index",
    SEGMENT_BAD_FRAME: "damaged frame",
    SEGMENT_BAD_TAGS: "damaged tags",
    SEGMENT_ORDER: "seqs or times out of order",
}

Header = namedtuple("Header", "kind topic_id first_seq last_seq part_bytes records payload_bytes first_ts last_ts holes tags postings data_xxh3 "
                              "content_xxh3")
MAGIC = {"data": SEGMENT_MAGIC_DATA, "index": SEGMENT_MAGIC_INDEX, "tags": SEGMENT_MAGIC_TAGS, "flags": SEGMENT_MAGIC_FLAGS}


class SegmentError(Exception):
    """Say what is wrong with a part: `status` is one of the names in `STATUS`, or a negative errno."""

    def __init__(self, status: int, where: str = "") -> None:
        super().__init__(f"{where}: {STATUS.get(status, status)}" if where else str(STATUS.get(status, status)))
        self.status = status


# ---- open -------------------------------------------------------------------------------------------------------------------


cdef int segment_header_check(const SegmentPart *part, uint64_t magic) noexcept nogil:
    cdef const segment_header *header = <const segment_header *>part.at
    cdef uint64_t span
    if part.bytes < sizeof(segment_header):
        return SEGMENT_SHORT
    if header.magic != magic:
        return SEGMENT_NOT_ONE
    if xxh3_64(header, sizeof(segment_header) - 8) != header.header_xxh3:
        return SEGMENT_BAD_HEADER
    if header.format_version > SEGMENT_FORMAT_VERSION:
        return SEGMENT_NEWER
    span = header.last_seq - header.first_seq
    if header.first_seq == 0 or header.last_seq < header.first_seq or span >= SEGMENT_SPAN_MAX or header.part_bytes % 8 \
            or header.part_bytes < sizeof(segment_header) or header.format_version == 0 or header.reserved0:
        return SEGMENT_BAD_HEADER
    if magic == SEGMENT_MAGIC_INDEX and header.part_bytes != sizeof(segment_header) + index_body_bytes(span + 1):
        return SEGMENT_BAD_HEADER
    if magic == SEGMENT_MAGIC_FLAGS and header.part_bytes != sizeof(segment_header) + align8(span + 1):
        return SEGMENT_BAD_HEADER
    if magic == SEGMENT_MAGIC_TAGS:
        if header.tags > header.postings or header.postings > span + 1:
            return SEGMENT_BAD_HEADER
        if header.part_bytes < sizeof(segment_header) + header.tags * sizeof(segment_tag) + header.postings * 4:
            return SEGMENT_BAD_HEADER
    return SEGMENT_SHORT if header.part_bytes > part.bytes else SEGMENT_OK


cdef int _same_segment(const segment_header *left, const segment_header *right) noexcept nogil:
    if left.topic_id != right.topic_id or left.first_seq != right.first_seq or left.last_seq != right.last_seq or left.data_xxh3 != right.data_xxh3:
        return SEGMENT_MISMATCH
    return SEGMENT_OK


cdef int segment_open(Segment *segment) noexcept nogil:
    cdef int status = segment_header_check(&segment.index, SEGMENT_MAGIC_INDEX)
    cdef const segment_header *header = <const segment_header *>segment.index.at
    if status != SEGMENT_OK:
        return status
    segment.header = header
    segment.topic_id = header.topic_id
    segment.first_seq = header.first_seq
    segment.last_seq = header.last_seq
    segment.entries = <const index_entry *>(segment.index.at + sizeof(segment_header))
    if segment.last_seq - segment.first_seq >= SEGMENT_SPAN_MAX \
            or sizeof(segment_header) + index_body_bytes(segment.last_seq - segment.first_seq + 1) > segment.index.bytes:
        return SEGMENT_BAD_HEADER    # it has changed since
    segment.blocks = <const uint64_t *>(segment.entries + (segment.last_seq - segment.first_seq + 1))
    if segment.data.at != NULL:
        status = segment_header_check(&segment.data, SEGMENT_MAGIC_DATA)
        if status == SEGMENT_OK:
            status = _same_segment(header, <const segment_header *>segment.data.at)
        if status in (SEGMENT_MISMATCH, SEGMENT_NEWER):
            return status
    if segment.tags.at != NULL:
        status = segment_header_check(&segment.tags, SEGMENT_MAGIC_TAGS)
        if status == SEGMENT_OK:
            status = _same_segment(header, <const segment_header *>segment.tags.at)
        if status in (SEGMENT_MISMATCH, SEGMENT_NEWER):
            return status
        if status != SEGMENT_OK:
            return SEGMENT_BAD_TAGS
    return SEGMENT_OK


cdef int segment_open_flags(Segment *segment, const SegmentPart *part) noexcept nogil:
    cdef int status = segment_header_check(part, SEGMENT_MAGIC_FLAGS)
    if status == SEGMENT_OK:
        status = _same_segment(segment.header, <const segment_header *>part.at)
    if status == SEGMENT_OK:
        segment.flags = part.at + sizeof(segment_header)
    return status


cdef int _open(void *segment) noexcept nogil:
    return segment_open(<Segment *>segment)


cdef int segment_open_guarded(Segment *segment) noexcept nogil:
    return guarded_call(_open, segment)


# ---- frames -----------------------------------------------------------------------------------------------------------------


cdef uint64_t segment_frame_hash(const segment_frame *frame, uint64_t topic_id) noexcept nogil:
    return xxh3_64_seeded(frame, frame.frame_bytes - SEGMENT_FRAME_TAIL_BYTES, topic_id)


cdef bint _entry_fills(const record_entry *entry, uint64_t bytes) noexcept nogil:
    if bytes < sizeof(record_entry) or entry_bytes(entry) != bytes:
        return False
    if entry_length_for(entry_payload_bytes(entry), entry.length_flags & ENTRY_FLAG_EXT) != bytes:
        return False
    if entry.length_flags & ENTRY_FLAG_EMPTY_TAG and entry.tag_bytes:
        return False
    return not (entry.length_flags & ENTRY_FLAG_EMPTY_NODE and entry.node_bytes)


cdef bint _gap_fills(const segment_frame *frame, uint64_t bytes) noexcept nogil:
    cdef const segment_gap *gap = <const segment_gap *>(frame + 1)
    cdef uint64_t span
    if bytes < sizeof(segment_gap) or gap.last_seq < frame.seq or gap.last_seq - frame.seq >= SEGMENT_SPAN_MAX or gap.reserved:
        return False
    span = gap.last_seq - frame.seq + 1
    return bytes == sizeof(segment_gap) + (span * 8 if gap.reason == 0 else 0)


cdef inline int _frame_check(const segment_frame *frame, uint64_t available, uint64_t topic_id, const hash_secret *secret) noexcept nogil:
    # secret: of the topic's id, or NULL.
    cdef const uint8_t *tail
    cdef uint64_t body, found, bytes
    if available < sizeof(segment_frame):
        return SEGMENT_BAD_FRAME
    bytes = frame.frame_bytes
    if bytes > available or bytes % 8 or bytes < sizeof(segment_frame) + SEGMENT_FRAME_TAIL_BYTES:
        return SEGMENT_BAD_FRAME
    tail = <const uint8_t *>frame + bytes - SEGMENT_FRAME_TAIL_BYTES
    if secret == NULL:
        found = xxh3_64_seeded(frame, bytes - SEGMENT_FRAME_TAIL_BYTES, topic_id)
    else:
        found = xxh3_64_secret(frame, bytes - SEGMENT_FRAME_TAIL_BYTES, secret)
    if found != (<const uint64_t *>tail)[0]:
        return SEGMENT_BAD_FRAME
    body = bytes - sizeof(segment_frame) - SEGMENT_FRAME_TAIL_BYTES
    if (<const uint64_t *>(tail + 8))[0] >> 8:    # behind the flag byte stand zeroes
        return SEGMENT_BAD_FRAME
    if frame.kind == SEGMENT_FRAME_RECORD:
        return SEGMENT_OK if _entry_fills(<const record_entry *>(frame + 1), body) else SEGMENT_BAD_FRAME
    if frame.kind == SEGMENT_FRAME_GAP:
        return SEGMENT_OK if _gap_fills(frame, body) else SEGMENT_BAD_FRAME
    return SEGMENT_BAD_FRAME


cdef int segment_frame_check(const segment_frame *frame, uint64_t available, uint64_t topic_id) noexcept nogil:
    return _frame_check(frame, available, topic_id, NULL)


# ---- look -------------------------------------------------------------------------------------------------------------------


cdef inline uint64_t _mark_of(const Segment *segment, uint64_t block) noexcept nogil:
    # Blocks of one file never share a mark: they begin at least 160 bytes apart.
    return (segment.index_offset + sizeof(segment_header) + block * SEGMENT_BLOCK_ENTRIES * sizeof(index_entry)) // SEGMENT_MARK_BYTES


cdef inline bint _marked(const uint64_t *marks, uint64_t mark) noexcept nogil:
    return marks != NULL and (marks[mark >> 6] >> (mark & 63)) & 1


cdef inline void _set_mark(uint64_t *marks, uint64_t mark) noexcept nogil:
    if marks != NULL:
        marks[mark >> 6] |= <uint64_t>1 << (mark & 63)


cdef inline void _clear_mark(uint64_t *marks, uint64_t mark) noexcept nogil:
    if marks != NULL:
        marks[mark >> 6] &= ~(<uint64_t>1 << (mark & 63))


cdef inline uint64_t _block_entries(const Segment *segment, uint64_t block) noexcept nogil:
    return min(segment.last_seq - segment.first_seq + 1 - block * SEGMENT_BLOCK_ENTRIES, <uint64_t>SEGMENT_BLOCK_ENTRIES)


cdef int _check_index_block(const Segment *segment, uint64_t block) noexcept nogil:
    cdef uint64_t mark = _mark_of(segment, block)
    if _marked(segment.index_marks, mark):
        return SEGMENT_OK
    if not _is_as_written(segment, block):
        return SEGMENT_BAD_INDEX
    _set_mark(segment.index_marks, mark)
    return SEGMENT_OK


cdef inline bint _is_as_written(const Segment *segment, uint64_t block) noexcept nogil:
    cdef const index_entry *entries = segment.entries + block * SEGMENT_BLOCK_ENTRIES
    return xxh3_64(entries, _block_entries(segment, block) * sizeof(index_entry)) == segment.blocks[block]


cdef void segment_doubt(const Segment *segment, uint64_t seq) noexcept nogil:
    cdef uint64_t mark = _mark_of(segment, (seq - segment.first_seq) // SEGMENT_BLOCK_ENTRIES)
    _clear_mark(segment.index_marks, mark)
    _clear_mark(segment.frame_marks, mark)


cdef int segment_entry_check(const Segment *segment, uint64_t seq, const hash_secret *secret) noexcept nogil:
    cdef index_entry entry = segment_entry(segment, seq)[0]
    cdef const segment_frame *frame
    cdef const record_entry *record
    if entry.flags & (INDEX_HOLE | INDEX_DELETED):
        return SEGMENT_OK
    record = segment_record(segment, seq, &entry)
    if record == NULL:
        return SEGMENT_BAD_FRAME
    frame = (<const segment_frame *>record) - 1
    return _frame_check(frame, segment.data.bytes - (<const uint8_t *>frame - segment.data.at), segment.topic_id, secret)


cdef int segment_check_index(const Segment *segment, uint64_t first_seq, uint64_t count, uint64_t *upto) noexcept nogil:
    cdef uint64_t block = (first_seq - segment.first_seq) // SEGMENT_BLOCK_ENTRIES
    upto[0] = first_seq
    while upto[0] < first_seq + count:
        if _check_index_block(segment, block) != SEGMENT_OK:
            return SEGMENT_BAD_INDEX
        block += 1
        upto[0] = min(segment.first_seq + block * SEGMENT_BLOCK_ENTRIES, first_seq + count)
    return SEGMENT_OK


cdef int segment_verify_index(const Segment *segment, uint64_t first_seq, uint64_t count, uint64_t *upto) noexcept nogil:
    cdef uint64_t block = (first_seq - segment.first_seq) // SEGMENT_BLOCK_ENTRIES
    upto[0] = first_seq
    while upto[0] < first_seq + count:
        if not _is_as_written(segment, block):
            segment_doubt(segment, upto[0])
            return SEGMENT_BAD_INDEX
        block += 1
        upto[0] = min(segment.first_seq + block * SEGMENT_BLOCK_ENTRIES, first_seq + count)
    return SEGMENT_OK


cdef int segment_check(const Segment *segment, uint64_t first_seq, uint64_t count, uint64_t *upto) noexcept nogil:
    cdef uint64_t block = (first_seq - segment.first_seq) // SEGMENT_BLOCK_ENTRIES
    cdef uint64_t end = first_seq + count, seq, block_first, block_end, mark
    cdef hash_secret secret
    cdef bint whole, ready = False
    upto[0] = first_seq
    while upto[0] < end:
        if _check_index_block(segment, block) != SEGMENT_OK:
            return SEGMENT_BAD_INDEX
        block_first = segment.first_seq + block * SEGMENT_BLOCK_ENTRIES
        block_end = block_first + _block_entries(segment, block)
        mark = _mark_of(segment, block)
        if not _marked(segment.frame_marks, mark):
            # The whole block when that is to be remembered, else only what was asked for.
            whole = True
            if segment.frame_marks == NULL:
                block_first, block_end = upto[0], min(block_end, end)
            if not ready:
                hash_secret_make(&secret, segment.topic_id)
                ready = True
            for seq in range(block_first, block_end):
                if segment_entry_check(segment, seq, &secret) != SEGMENT_OK:
                    whole = False
                    if upto[0] <= seq < end:
                        upto[0] = seq
                        segment_doubt(segment, seq)    # it may be the entry that has changed, since its block was verified
                        return _check_index_block(segment, block) or SEGMENT_BAD_FRAME
            if whole:
                _set_mark(segment.frame_marks, mark)
        upto[0] = min(block_end, end)
        block += 1
    return SEGMENT_OK


cdef inline bint _is_younger(const Segment *segment, uint64_t seq, uint64_t ts, bint *said) noexcept nogil:
    # Whether an entry's time is `ts` or later, verified. False: its block is not what was written.
    said[0] = segment_entry(segment, seq).ts >= ts
    if _is_as_written(segment, (seq - segment.first_seq) // SEGMENT_BLOCK_ENTRIES):
        return True
    segment_doubt(segment, seq)
    return False


cdef int segment_lower_bound_ts(const Segment *segment, uint64_t from_seq, uint64_t ts, uint64_t *seq) noexcept nogil:
    cdef uint64_t low = max(from_seq, segment.first_seq), high = segment.last_seq + 1, middle, first = low
    cdef bint younger = False
    while low < high:
        middle = low + (high - low) // 2
        if _check_index_block(segment, (middle - segment.first_seq) // SEGMENT_BLOCK_ENTRIES) != SEGMENT_OK:
            return SEGMENT_BAD_INDEX
        if segment_entry(segment, middle).ts < ts:
            low = middle + 1
        else:
            high = middle
    seq[0] = low
    # Times never fall: if the one before it is older and its own is not, it is the one, whatever the others say.
    if low <= segment.last_seq and (not _is_younger(segment, low, ts, &younger) or not younger):
        return SEGMENT_BAD_INDEX
    if low > first and (not _is_younger(segment, low - 1, ts, &younger) or younger):
        return SEGMENT_BAD_INDEX
    return SEGMENT_OK


# ---- tags -------------------------------------------------------------------------------------------------------------------


cdef inline const segment_tag *_tag_rows(const Segment *segment) noexcept nogil:
    return <const segment_tag *>(segment.tags.at + sizeof(segment_header))


cdef inline const uint8_t *_postings(const Segment *segment, const TagRange *found) noexcept nogil:
    return segment.tags.at + sizeof(segment_header) + found.rows * sizeof(segment_tag)


cdef const uint8_t *segment_tag_text(const Segment *segment, const TagRange *found, uint32_t row, uint32_t *tag_bytes) noexcept nogil:
    cdef segment_tag at = _tag_rows(segment)[row]
    if <uint64_t>at.bytes_offset + at.tag_bytes > found.room:
        at.bytes_offset = at.tag_bytes = 0
    tag_bytes[0] = at.tag_bytes
    return _postings(segment, found) + found.postings * 4 + at.bytes_offset


cdef const uint32_t *segment_tag_postings(const Segment *segment, const TagRange *found, uint32_t row, uint32_t *count) noexcept nogil:
    cdef segment_tag at = _tag_rows(segment)[row]
    if <uint64_t>at.first_posting + at.postings > found.postings:
        return NULL
    count[0] = at.postings
    return <const uint32_t *>_postings(segment, found) + at.first_posting


cdef bint _rows_sound(const Segment *segment, const TagRange *found) noexcept nogil:
    # Every row points into the part: a checksum tells of damage, not of a bad writer.
    cdef uint64_t row, posting = 0, text = 0
    cdef const segment_tag *at
    for row in range(found.rows):
        at = &_tag_rows(segment)[row]
        if at.bytes_offset != text or at.first_posting != posting or at.postings == 0:
            return False
        text += at.tag_bytes
        posting += at.postings
    return text <= found.room and found.room - text < 8 and posting == found.postings


cdef int _tags_check(const Segment *segment, TagRange *found, bint believe) noexcept nogil:
    cdef uint64_t mark = segment.tags_offset // SEGMENT_MARK_BYTES
    cdef segment_header header    # a copy: what is checked is what is gone by
    cdef SegmentPart part
    if segment.tags.at == NULL or segment.tags.bytes < sizeof(segment_header):
        return SEGMENT_BAD_TAGS
    header = (<const segment_header *>segment.tags.at)[0]
    part.at, part.bytes = <const uint8_t *>&header, segment.tags.bytes
    if segment_header_check(&part, SEGMENT_MAGIC_TAGS) != SEGMENT_OK:
        return SEGMENT_BAD_TAGS
    found.rows, found.postings = header.tags, header.postings
    found.room = header.part_bytes - sizeof(segment_header) - header.tags * sizeof(segment_tag) - header.postings * 4
    if believe and _marked(segment.tags_marks, mark):
        return SEGMENT_OK
    _clear_mark(segment.tags_marks, mark)
    if xxh3_64(segment.tags.at + sizeof(segment_header), header.part_bytes - sizeof(segment_header)) != header.content_xxh3:
        return SEGMENT_BAD_TAGS
    if not _rows_sound(segment, found):
        return SEGMENT_BAD_TAGS
    _set_mark(segment.tags_marks, mark)
    return SEGMENT_OK


cdef int segment_tags_check(const Segment *segment) noexcept nogil:
    cdef TagRange found
    return _tags_check(segment, &found, True)


cdef int _compare(const Segment *segment, const TagRange *found, uint32_t row, const uint8_t *tag, uint64_t tag_bytes, bint prefix) noexcept nogil:
    """Below, equal to or above 0 as the row's tag (or its first bytes) is below, equal to or above `tag`."""
    cdef uint32_t bytes = 0
    cdef const uint8_t *text = segment_tag_text(segment, found, row, &bytes)
    cdef int order = memcmp(text, tag, min(<uint64_t>bytes, tag_bytes))
    if order != 0:
        return order
    if bytes < tag_bytes:
        return -1
    return 0 if prefix or bytes == tag_bytes else 1


cdef uint32_t _bound(const Segment *segment, const TagRange *found, const uint8_t *tag, uint64_t tag_bytes, bint prefix, bint above) noexcept nogil:
    cdef uint32_t low = 0, high = <uint32_t>found.rows, middle
    cdef int order
    while low < high:
        middle = low + (high - low) // 2
        order = _compare(segment, found, middle, tag, tag_bytes, prefix)
        if order < 0 or (above and order == 0):
            low = middle + 1
        else:
            high = middle
    return low


cdef int segment_tags_find(const Segment *segment, const uint8_t *tag, uint64_t tag_bytes, bint prefix, TagRange *found) noexcept nogil:
    cdef int status = _tags_check(segment, found, True)
    found.first = found.end = 0
    if status == SEGMENT_OK:
        found.first = _bound(segment, found, tag, tag_bytes, prefix, False)
        found.end = _bound(segment, found, tag, tag_bytes, prefix, True)
        if found.first < found.end:    # somebody goes by that now: it is verified now
            status = _tags_check(segment, found, False)
    return status


# ---- deletes ----------------------------------------------------------------------------------------------------------------


cdef int segment_set_deleted(const Files *files, const char *path, const uint64_t *offsets, uint64_t count) noexcept nogil:
    cdef int fd = files.open(files.context, path, O_WRONLY, 0), result = 0, closed
    cdef uint8_t flag = SEGMENT_DELETED
    cdef uint64_t number
    cdef iovec part
    if fd < 0:
        return fd
    part.iov_base = &flag
    part.iov_len = 1
    for number in range(count):
        if result >= 0:
            result = <int>files.pwritev(files.context, fd, &part, 1, offsets[number])
    if result >= 0:
        result = files.fdatasync(files.context, fd)
    closed = files.close(files.context, fd)
    return result if result < 0 else closed


# ---- the Python half: one object a record, for tools and tests -----------------------------------------------------------------


def header_of(raw, kind, uint64_t offset=0):
    """Parse the header of a part of `kind` ("data", "index", "tags", "flags") that begins at `offset` of `raw`. Raises SegmentError."""
    cdef const uint8_t[::1] view = raw
    cdef SegmentPart part
    cdef const segment_header *header
    cdef int status
    part.bytes = <uint64_t>max(len(view) - <Py_ssize_t>offset, 0)
    part.at = &view[offset] if part.bytes else NULL
    status = segment_header_check(&part, MAGIC[kind])
    if status != SEGMENT_OK:
        raise SegmentError(status, kind)
    header = <const segment_header *>part.at
    return Header(kind, header.topic_id, header.first_seq, header.last_seq, header.part_bytes, header.records, header.payload_bytes, header.first_ts,
                  header.last_ts, header.holes, header.tags, header.postings, header.data_xxh3, header.content_xxh3)


FORMAT_VERSION = SEGMENT_FORMAT_VERSION


def newer_version(raw, kind, uint64_t offset=0):
    """The format version of a part of `kind` that begins at `offset` of `raw` and that a newer program wrote; 0 of every other one."""
    cdef const uint8_t[::1] view = raw
    cdef SegmentPart part
    if offset >= <uint64_t>len(view) or <uint64_t>len(view) - offset < sizeof(segment_header):
        return 0
    part.at, part.bytes = &view[offset], <uint64_t>len(view) - offset
    return (<const segment_header *>part.at).format_version if segment_header_check(&part, MAGIC[kind]) == SEGMENT_NEWER else 0


cdef bint _may_be_newer(const char *path) noexcept nogil:
    cdef segment_header header
    cdef int fd = real_files().open(NULL, path, O_RDONLY, 0)
    cdef int64_t got
    if fd < 0:
        return False
    got = real_files().pread(NULL, fd, <uint8_t *>&header, sizeof(segment_header), 0)
    real_files().close(NULL, fd)
    return got == sizeof(segment_header) and header.format_version > SEGMENT_FORMAT_VERSION


def may_be_newer(list paths not None):
    """Which of the files (bytes) may begin with a part of a newer version: [number in the list]. One call reads all of them without the GIL."""
    cdef uint64_t count = len(paths), number
    cdef const char **names = <const char **>malloc(max(count, <uint64_t>1) * sizeof(char *))
    cdef uint8_t *found = <uint8_t *>calloc(max(count, <uint64_t>1), 1)
    try:
        if names == NULL or found == NULL:
            raise MemoryError
        for number in range(count):
            names[number] = <bytes>paths[number]
        with nogil:
            for number in range(count):
                found[number] = _may_be_newer(names[number])
        return [number for number in range(count) if found[number]]
    finally:
        free(names)
        free(found)


def part_bytes(const uint8_t[::1] head not None, kind):
    """How long a part of `kind` is, by its header; 0 where that is damaged, or newer."""
    cdef SegmentPart part
    part.at, part.bytes = &head[0] if len(head) else NULL, <uint64_t>len(head)
    if part.bytes < sizeof(segment_header) or segment_header_check(&part, MAGIC[kind]) not in (SEGMENT_OK, SEGMENT_SHORT):
        return 0
    return (<const segment_header *>part.at).part_bytes


def set_deleted(path, offsets, FileSystem files=None):
    """Set the flag bytes at `offsets` of a file and sync it. Raises OSError."""
    import os
    from array import array

    cdef array_of = array("Q", sorted(offsets))
    cdef const uint64_t[::1] view = array_of
    cdef bytes raw = os.fsencode(path)
    cdef const char *name = raw
    cdef const Files *table = real_files()
    cdef const uint64_t *first = &view[0] if len(view) else NULL
    cdef uint64_t count = len(view)
    cdef int result
    if files is not None:
        table = &files.table
    with nogil:
        result = segment_set_deleted(table, name, first, count)
    if result < 0:
        raise OSError(-result, os.strerror(-result), os.fspath(path))


cdef class SegmentView:
    """One segment whose parts stand in Python buffers (bytes, mmap), each from its offset on.

    `marks` remembers what has been verified, as a process's maps do. Raises SegmentError when the parts can not be opened.
    """

    def __init__(self, index, data=None, tags=None, *, uint64_t index_offset=0, uint64_t data_offset=0, uint64_t tags_offset=0, bint marks=False):
        cdef uint64_t[:, ::1] view
        cdef int status
        memset(&self.segment, 0, sizeof(Segment))
        self.buffers = []
        self.take(&self.segment.index, index, index_offset)
        if data is not None:
            self.take(&self.segment.data, data, data_offset)
        if tags is not None:
            self.take(&self.segment.tags, tags, tags_offset)
        self.segment.index_offset = index_offset
        self.segment.tags_offset = tags_offset
        if marks:
            import numpy
            self.marks = numpy.zeros((3, max(map(len, self.buffers)) // SEGMENT_MARK_BYTES // 64 + 1), dtype=numpy.uint64)
            view = self.marks
            self.segment.index_marks, self.segment.frame_marks, self.segment.tags_marks = &view[0, 0], &view[1, 0], &view[2, 0]
        status = segment_open(&self.segment)
        if status != SEGMENT_OK:
            raise SegmentError(status)

    cdef int take(self, SegmentPart *part, buffer, uint64_t offset) except -1:
        cdef const uint8_t[::1] view = buffer
        if offset >= <uint64_t>len(view):
            raise SegmentError(SEGMENT_SHORT)
        self.buffers.append(view)
        part.at = &view[offset]
        part.bytes = <uint64_t>len(view) - offset
        return 0

    @property
    def topic_id(self):
        return self.segment.topic_id

    @property
    def first_seq(self):
        return self.segment.first_seq

    @property
    def last_seq(self):
        return self.segment.last_seq

    def inside(self, uint64_t seq, uint64_t count):
        if count == 0 or not segment_holds(&self.segment, seq) or count > self.segment.last_seq - seq + 1:
            raise IndexError(f"{seq} + {count} is not in {self.segment.first_seq}..{self.segment.last_seq}")

    def check(self, uint64_t first_seq, uint64_t count):
        """Verify a range as a reader does. (status, the first seq that is not good)."""
        cdef uint64_t upto = 0
        self.inside(first_seq, count)
        if self.segment.data.at == NULL:
            status = segment_check_index(&self.segment, first_seq, count, &upto)
        else:
            status = segment_check(&self.segment, first_seq, count, &upto)
        return status, upto

    def entry(self, uint64_t seq):
        """(ts, bytes, flags, position) of a seq, its block verified. Raises SegmentError."""
        cdef uint64_t upto = 0
        cdef const index_entry *entry
        self.inside(seq, 1)
        if segment_check_index(&self.segment, seq, 1, &upto) != SEGMENT_OK:
            raise SegmentError(SEGMENT_BAD_INDEX)
        entry = segment_entry(&self.segment, seq)
        return entry.ts, entry.bytes, entry.flags, entry.position & POSITION_MASK

    def record(self, uint64_t seq):
        """(record entry's bytes, deleted by the flag byte), or None for a hole and what was deleted before it was sealed. Raises SegmentError."""
        cdef const record_entry *record = self.located(seq)
        if record == NULL:
            return None
        return (<const uint8_t *>record)[:entry_bytes(record)], segment_is_flagged(&self.segment, seq, record)

    cdef const record_entry *located(self, uint64_t seq) except? NULL:
        """The record of a seq, verified; NULL where there is none."""
        cdef index_entry entry
        cdef const record_entry *record
        status, _ = self.check(seq, 1)
        if status != SEGMENT_OK:
            raise SegmentError(status)
        entry = segment_entry(&self.segment, seq)[0]
        if entry.flags & (INDEX_HOLE | INDEX_DELETED):
            return NULL
        record = segment_record(&self.segment, seq, &entry)
        if record == NULL:
            raise SegmentError(SEGMENT_BAD_FRAME)
        return record

    def flag_offset(self, uint64_t seq):
        """Offset in the data part of a record's flag byte. Raises SegmentError."""
        cdef const record_entry *record = self.located(seq)
        if record == NULL:
            raise KeyError(seq)
        return <const uint8_t *>record - self.segment.data.at + entry_bytes(record) + SEGMENT_FRAME_TAIL_BYTES - SEGMENT_FLAG_FROM_END

    def late_deletes(self, SegmentView old not None):
        """Offsets in this data part of the flag bytes that must be set so that all that `old` calls deleted is so here: [offset].

        Both hold the same seqs; this one was made from the other while deletes went on. Raises SegmentError.
        """
        cdef list out = []
        cdef uint64_t seq
        cdef const record_entry *record
        if (self.topic_id, self.first_seq, self.last_seq) != (old.topic_id, old.first_seq, old.last_seq):
            raise SegmentError(SEGMENT_MISMATCH)
        old.verify_index()
        for seq in range(self.segment.first_seq, self.segment.last_seq + 1):
            record = self.located(seq)
            if record != NULL and not segment_is_flagged(&self.segment, seq, record) and old.is_deleted(seq):
                out.append(self.flag_offset(seq))
        return out

    cdef bint is_deleted(self, uint64_t seq) except -1:
        """Whether its entry or its flag byte says so; its index must have been verified. Of a damaged record nobody knows: it is not."""
        cdef index_entry entry = segment_entry(&self.segment, seq)[0]
        cdef const record_entry *record
        if entry.flags & (INDEX_HOLE | INDEX_DELETED):
            return entry.flags & INDEX_DELETED != 0
        if self.segment.flags != NULL:
            return self.segment.flags[seq - self.segment.first_seq] == SEGMENT_DELETED
        record = segment_record(&self.segment, seq, &entry)
        return record != NULL and segment_is_flagged(&self.segment, seq, record)

    def verify_index(self):
        """Raise SegmentError when its index is damaged."""
        cdef uint64_t upto = 0
        if segment_verify_index(&self.segment, self.segment.first_seq, self.segment.last_seq - self.segment.first_seq + 1, &upto) != SEGMENT_OK:
            raise SegmentError(SEGMENT_BAD_INDEX)

    def flags_part(self):
        """The flags part (.del) of a segment that is about to become cold, as its flag bytes are now."""
        cdef uint64_t count = self.segment.last_seq - self.segment.first_seq + 1, number
        cdef bytearray out = bytearray(sizeof(segment_header) + align8(count))
        cdef uint8_t[::1] view = out
        cdef segment_header *header = <segment_header *>&view[0]
        self.verify_index()
        header[0] = self.segment.header[0]
        header.magic = SEGMENT_MAGIC_FLAGS
        header.part_bytes = len(out)
        header.content_xxh3 = 0
        header.header_xxh3 = xxh3_64(header, sizeof(segment_header) - 8)
        for number in range(count):
            if not self.segment.entries[number].flags & (INDEX_HOLE | INDEX_DELETED) and self.is_deleted(self.segment.first_seq + number):
                view[sizeof(segment_header) + number] = SEGMENT_DELETED
        return bytes(out)

    def take_flags(self, raw):
        """Take the flags part of a cold segment: from now on it says which records are deleted. Raises SegmentError."""
        cdef SegmentPart part
        cdef int status
        self.take(&part, raw, 0)
        status = segment_open_flags(&self.segment, &part)
        if status != SEGMENT_OK:
            raise SegmentError(status)

    def take_window(self, raw, uint64_t data_from):
        """Take a window of the data part that begins at its byte `data_from`."""
        cdef SegmentPart part
        self.take(&part, raw, 0)
        self.segment.data.at = part.at - data_from
        self.segment.data.bytes = data_from + part.bytes
        self.segment.data_from = data_from

    def window_of(self, uint64_t first_seq, uint64_t count):
        """Which bytes of the data part the records of a range need: (begin, end); (0, 0) when it has none. Raises SegmentError."""
        cdef uint64_t upto = 0, begin = 0, end = 0, seq
        cdef const index_entry *entry
        self.inside(first_seq, count)
        if segment_check_index(&self.segment, first_seq, count, &upto) != SEGMENT_OK:
            raise SegmentError(SEGMENT_BAD_INDEX)
        for seq in range(first_seq, first_seq + count):
            entry = segment_entry(&self.segment, seq)
            if entry.flags & (INDEX_HOLE | INDEX_DELETED):
                continue
            if end == 0:
                begin = (entry.position & POSITION_MASK) - sizeof(segment_frame)
            # The payload, an entry's head and extension, padding and the frame's tail: at most so much.
            end = (entry.position & POSITION_MASK) + entry.bytes + sizeof(record_entry) + 16 + 8 + SEGMENT_FRAME_TAIL_BYTES
        return begin, end

    def lower_bound_ts(self, uint64_t from_seq, uint64_t ts):
        """First seq >= from_seq with a time at or above `ts`, last_seq + 1 when there is none. Raises SegmentError."""
        cdef uint64_t seq = 0
        if segment_lower_bound_ts(&self.segment, from_seq, ts, &seq) != SEGMENT_OK:
            raise SegmentError(SEGMENT_BAD_INDEX)
        return seq

    def find_tags(self, const uint8_t[::1] tag, bint prefix=False):
        """The tags that are equal to `tag` or begin with it, each with its seqs: {tag: [seq]}. Raises SegmentError."""
        cdef TagRange found
        cdef uint32_t row, number, bytes = 0, count = 0
        cdef const uint8_t *text
        cdef const uint32_t *postings
        cdef uint8_t nothing = 0
        cdef dict out = {}
        if segment_tags_find(&self.segment, &tag[0] if len(tag) else &nothing, len(tag), prefix, &found) != SEGMENT_OK:
            raise SegmentError(SEGMENT_BAD_TAGS)
        for row in range(found.first, found.end):
            text = segment_tag_text(&self.segment, &found, row, &bytes)
            postings = segment_tag_postings(&self.segment, &found, row, &count)
            if postings == NULL:
                raise SegmentError(SEGMENT_BAD_TAGS)
            out[text[:bytes]] = [self.segment.first_seq + postings[number] for number in range(count)]
        return out


Frame = namedtuple("Frame", "bytes kind seq ts flag body")


def frame_at(raw, uint64_t offset, uint64_t topic_id):
    """The frame that stands at `offset` of a data part's buffer: Frame(bytes, kind, seq, ts, flag, body), or None when none does."""
    cdef const uint8_t[::1] view = raw
    cdef const segment_frame *frame
    cdef uint64_t available = <uint64_t>len(view) - offset
    if offset % 8 or offset >= <uint64_t>len(view):
        return None
    frame = <const segment_frame *>&view[offset]
    if segment_frame_check(frame, available, topic_id) != SEGMENT_OK:
        return None
    body = (<const uint8_t *>(frame + 1))[:frame.frame_bytes - sizeof(segment_frame) - SEGMENT_FRAME_TAIL_BYTES]
    return Frame(frame.frame_bytes, frame.kind, frame.seq, frame.ts, view[offset + frame.frame_bytes - SEGMENT_FLAG_FROM_END], body)
