"""Verify segments, make their index and tags again from the data (see segment_repair.pxd)."""

from collections import namedtuple

from libc.errno cimport EINVAL, ENOMEM
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset

from topicsd._native.hash cimport xxh3_64, xxh3_64_seeded
from topicsd._native.layout cimport INDEX_DELETED, INDEX_HOLE, LOSS_CORRUPT, index_entry, record_entry
from topicsd._native.maps cimport guarded_call
from topicsd._native.segment cimport (
    SEGMENT_BAD_FRAME, SEGMENT_BAD_INDEX, SEGMENT_BAD_TAGS, SEGMENT_BLOCK_ENTRIES, SEGMENT_DELETED, SEGMENT_FLAG_FROM_END,
    SEGMENT_FRAME_GAP, SEGMENT_FRAME_RECORD, SEGMENT_FRAME_TAIL_BYTES, SEGMENT_MAGIC_DATA, SEGMENT_MAGIC_INDEX, SEGMENT_MAGIC_TAGS,
    SEGMENT_MISMATCH, SEGMENT_NEWER, SEGMENT_NOT_ONE, SEGMENT_OK, SEGMENT_SHORT, Segment, SegmentPart, segment_frame, segment_frame_check,
    segment_gap, segment_header, segment_header_check, segment_tags_check,
)
from topicsd._native.segment_build cimport (
    SegmentBuilder, builder_clear, builder_note_none, builder_note_record, builder_put_index, builder_put_tags, builder_room_for,
    segment_builder_free, segment_builder_new, segment_header_seal,
)
from topicsd._native.segment_sink cimport Sink, sink_put
from topicsd._native.segment_tags cimport tag_table_bytes, tag_table_lay
from topicsd._native.maps import install_guard
from topicsd._native.segment import SegmentError


# ---- the walk -------------------------------------------------------------------------------------------------------------------

cdef struct Walk:
    SegmentBuilder *builder
    const Segment *segment
    SegmentFindings *found
    uint64_t first_seq, last_seq, topic_id
    uint64_t fold              # of the good frames' checksums


cdef int _lost(Walk *walk, uint64_t upto, uint64_t ts) noexcept nogil:
    """Seqs before `upto` that no frame has accounted for."""
    cdef SegmentBuilder *builder = walk.builder
    cdef uint64_t count
    cdef int result
    if upto <= builder.next_seq:
        return 0
    count = upto - builder.next_seq
    if walk.found.corrupt_seqs == 0:
        walk.found.corrupt_first = builder.next_seq
    walk.found.corrupt_seqs += count
    result = builder_room_for(builder, count)
    if result == 0:
        builder_note_none(builder, count, builder.header.last_ts if builder.count else ts, INDEX_HOLE | <uint32_t>LOSS_CORRUPT << 8)
    return result


cdef bint _stands_here(const Walk *walk, const segment_frame *frame, uint64_t available) noexcept nogil:
    # What is cheap to see comes first: a search through damage must not hash at every step.
    if available < sizeof(segment_frame) or frame.frame_bytes > available:
        return False
    if frame.kind not in (SEGMENT_FRAME_RECORD, SEGMENT_FRAME_GAP) or frame.seq < walk.builder.next_seq or frame.seq > walk.last_seq:
        return False
    if frame.ts < walk.builder.header.last_ts or segment_frame_check(frame, available, walk.topic_id) != SEGMENT_OK:
        return False
    return frame.kind == SEGMENT_FRAME_RECORD or (<const segment_gap *>(frame + 1)).last_seq <= walk.last_seq


cdef int _take_gap(Walk *walk, const segment_frame *frame) noexcept nogil:
    cdef const segment_gap *gap = <const segment_gap *>(frame + 1)
    cdef const uint64_t *times = <const uint64_t *>(gap + 1)
    cdef uint64_t count = gap.last_seq - frame.seq + 1, number
    cdef int result = builder_room_for(walk.builder, count)
    if result != 0:
        return result
    walk.found.gaps += 1
    if gap.reason:
        builder_note_none(walk.builder, count, frame.ts, INDEX_HOLE | gap.reason << 8)
        return 0
    for number in range(count):
        builder_note_none(walk.builder, 1, times[number], INDEX_DELETED)
    return 0


cdef int _take(Walk *walk, const segment_frame *frame, uint64_t offset) noexcept nogil:
    cdef const uint8_t *end = <const uint8_t *>frame + frame.frame_bytes
    cdef uint8_t flag = (end - SEGMENT_FLAG_FROM_END)[0]
    cdef int result = _lost(walk, frame.seq, frame.ts)
    if result != 0:
        return result
    if walk.builder.count == 0:
        walk.builder.header.first_ts = frame.ts
    walk.fold = xxh3_64_seeded(end - SEGMENT_FRAME_TAIL_BYTES, 8, walk.fold)
    if frame.kind == SEGMENT_FRAME_GAP:
        walk.found.odd_flags += flag != 0
        return _take_gap(walk, frame)
    walk.found.records += 1
    walk.found.deleted += flag == SEGMENT_DELETED
    walk.found.odd_flags += flag != 0 and flag != SEGMENT_DELETED
    return builder_note_record(walk.builder, frame.seq, frame.ts, <const record_entry *>(frame + 1), offset + sizeof(segment_frame))


cdef int _walk(Walk *walk, uint64_t bytes) noexcept nogil:
    cdef const uint8_t *at = walk.segment.data.at
    cdef uint64_t offset = sizeof(segment_header), bad = 0
    cdef const segment_frame *frame
    cdef int result
    while offset < bytes:
        frame = <const segment_frame *>(at + offset)
        if _stands_here(walk, frame, bytes - offset):
            bad = 0
            result = _take(walk, frame, offset)
            if result != 0:
                return result
            offset += frame.frame_bytes
            continue
        if bad == 0:
            walk.found.damaged_ranges += 1
            if walk.found.damaged_ranges == 1:
                walk.found.damaged_offset = offset
        bad = min(<uint64_t>8, bytes - offset)
        walk.found.damaged_bytes += bad
        offset += bad
    return _lost(walk, walk.last_seq + 1, 0)


# ---- what the parts should be -----------------------------------------------------------------------------------------------------


cdef int _index_sound(const SegmentPart *part) noexcept nogil:
    """The index by itself: header, every block, their checksum."""
    cdef int status = segment_header_check(part, SEGMENT_MAGIC_INDEX)
    cdef const segment_header *header = <const segment_header *>part.at
    cdef const index_entry *entries = <const index_entry *>(header + 1)
    cdef const uint64_t *blocks
    cdef uint64_t count, block, first
    if status != SEGMENT_OK:
        return status
    count = header.last_seq - header.first_seq + 1
    blocks = <const uint64_t *>(entries + count)
    for block in range((count + SEGMENT_BLOCK_ENTRIES - 1) // SEGMENT_BLOCK_ENTRIES):
        first = block * SEGMENT_BLOCK_ENTRIES
        if xxh3_64(entries + first, min(count - first, <uint64_t>SEGMENT_BLOCK_ENTRIES) * sizeof(index_entry)) != blocks[block]:
            return SEGMENT_BAD_INDEX
    if xxh3_64(blocks, (count + SEGMENT_BLOCK_ENTRIES - 1) // SEGMENT_BLOCK_ENTRIES * 8) != header.content_xxh3:
        return SEGMENT_BAD_INDEX
    return SEGMENT_OK


cdef bint _header_agrees(const segment_header *header, const segment_header *wanted, bint whole) noexcept nogil:
    """`whole`: every frame was good, so that everything must be the same; else only what does not come from the frames."""
    if header.topic_id != wanted.topic_id or header.first_seq != wanted.first_seq or header.last_seq != wanted.last_seq:
        return False
    if header.data_xxh3 != wanted.data_xxh3:
        return False
    return not whole or memcmp(&header.records, &wanted.records, 8 * 7) == 0    # records .. postings


cdef int _judge_index(Walk *walk, bint whole) noexcept nogil:
    cdef const SegmentPart *part = &walk.segment.index
    cdef const segment_header *header = <const segment_header *>part.at
    cdef const index_entry *entries = <const index_entry *>(header + 1)
    cdef const index_entry *wanted
    cdef uint64_t number
    cdef int status = _index_sound(part)
    if status != SEGMENT_OK:
        return status
    if not _header_agrees(header, &walk.builder.header, whole):
        return SEGMENT_MISMATCH
    for number in range(walk.builder.count):
        wanted = &walk.builder.entries[number]
        if not whole and wanted.flags == (INDEX_HOLE | <uint32_t>LOSS_CORRUPT << 8):
            continue
        if memcmp(wanted, &entries[number], sizeof(index_entry)) != 0:
            return SEGMENT_BAD_INDEX
    return SEGMENT_OK


cdef int _judge_tags(Walk *walk, bint whole) noexcept nogil:
    cdef const segment_header *header = <const segment_header *>walk.segment.tags.at
    cdef Segment alone
    cdef uint64_t body = tag_table_bytes(&walk.builder.tags)
    cdef uint8_t *wanted
    cdef int status = segment_header_check(&walk.segment.tags, SEGMENT_MAGIC_TAGS)
    if status != SEGMENT_OK:
        return status
    memset(&alone, 0, sizeof(Segment))
    alone.tags = walk.segment.tags
    if segment_tags_check(&alone) != SEGMENT_OK:
        return SEGMENT_BAD_TAGS
    if not _header_agrees(header, &walk.builder.header, whole):
        return SEGMENT_MISMATCH
    if not whole:
        return SEGMENT_OK
    if header.part_bytes != sizeof(segment_header) + body:
        return SEGMENT_BAD_TAGS
    wanted = <uint8_t *>calloc(body + 1, 1)
    if wanted == NULL:
        return -ENOMEM
    status = tag_table_lay(&walk.builder.tags, wanted)
    if status == 0 and xxh3_64(wanted, body) != header.content_xxh3:    # the map itself was compared with that by segment_tags_check
        status = SEGMENT_BAD_TAGS
    free(wanted)
    return status


cdef int _judge_data(Walk *walk, bint whole) noexcept nogil:
    cdef const segment_header *header = <const segment_header *>walk.segment.data.at
    cdef int status = segment_header_check(&walk.segment.data, SEGMENT_MAGIC_DATA)
    if not whole:
        return SEGMENT_BAD_FRAME
    if status != SEGMENT_OK:
        return status
    if header.data_xxh3 != walk.fold or header.content_xxh3 != walk.fold:
        return SEGMENT_BAD_FRAME
    return SEGMENT_OK if _header_agrees(header, &walk.builder.header, True) else SEGMENT_MISMATCH


# ---- examine ------------------------------------------------------------------------------------------------------------------------


cdef bint _is_newer(const SegmentPart *part, uint64_t magic) noexcept nogil:
    return part.at != NULL and segment_header_check(part, magic) == SEGMENT_NEWER


cdef const segment_header *_believed(const Segment *segment) noexcept nogil:
    """The first header that can be believed."""
    if segment.data.at != NULL and segment_header_check(&segment.data, SEGMENT_MAGIC_DATA) == SEGMENT_OK:
        return <const segment_header *>segment.data.at
    if segment.index.at != NULL and segment_header_check(&segment.index, SEGMENT_MAGIC_INDEX) == SEGMENT_OK:
        return <const segment_header *>segment.index.at
    if segment.tags.at != NULL and segment_header_check(&segment.tags, SEGMENT_MAGIC_TAGS) == SEGMENT_OK:
        return <const segment_header *>segment.tags.at
    return NULL


cdef int _examine(void *argument) noexcept nogil:
    cdef Walk *walk = <Walk *>argument
    cdef const Segment *segment = walk.segment
    cdef SegmentFindings *found = walk.found
    cdef segment_header *wanted = &walk.builder.header
    cdef const segment_header *header
    cdef int status = SEGMENT_OK
    cdef bint whole
    if _is_newer(&segment.data, SEGMENT_MAGIC_DATA) or _is_newer(&segment.index, SEGMENT_MAGIC_INDEX) \
            or _is_newer(&segment.tags, SEGMENT_MAGIC_TAGS):
        return SEGMENT_NEWER
    header = _believed(segment)
    walk.topic_id, walk.first_seq, walk.last_seq = segment.topic_id, segment.first_seq, segment.last_seq
    if header != NULL:
        walk.topic_id, walk.first_seq, walk.last_seq = header.topic_id, header.first_seq, header.last_seq
    if walk.first_seq == 0 or walk.last_seq < walk.first_seq:
        return SEGMENT_NOT_ONE
    builder_clear(walk.builder, walk.topic_id, walk.first_seq)
    found.data_bytes = segment.data.bytes
    if segment_header_check(&segment.data, SEGMENT_MAGIC_DATA) == SEGMENT_OK:
        found.data_bytes = (<const segment_header *>segment.data.at).part_bytes
    status = _walk(walk, found.data_bytes)
    if status != 0:
        return status
    whole = found.damaged_ranges == 0 and found.corrupt_seqs == 0
    wanted.last_seq = walk.last_seq
    wanted.tags = walk.builder.tags.count
    wanted.postings = walk.builder.tags.posting_count
    # Parts of one segment agree on the data's checksum; when frames are lost it can only be taken from a header.
    wanted.data_xxh3 = header.data_xxh3 if header != NULL and not whole else walk.fold
    found.data_status = _judge_data(walk, whole)
    found.index_status = _judge_index(walk, whole) if segment.index.at != NULL else SEGMENT_NOT_ONE
    found.tags_status = _judge_tags(walk, whole) if segment.tags.at != NULL else SEGMENT_NOT_ONE
    return 0


cdef int segment_examine(SegmentBuilder *builder, const Segment *segment, SegmentFindings *found) noexcept nogil:
    cdef Walk walk
    memset(found, 0, sizeof(SegmentFindings))
    memset(&walk, 0, sizeof(Walk))
    if builder.open:
        return -EINVAL
    if segment.data.at == NULL or segment.data.bytes < sizeof(segment_header):
        return SEGMENT_SHORT
    walk.builder = builder
    walk.segment = segment
    walk.found = found
    return guarded_call(_examine, &walk)


cdef int segment_remade(SegmentBuilder *builder, Sink *sink, int kind) noexcept nogil:
    cdef segment_header header = builder.header
    cdef uint64_t content = 0
    if kind == 1:
        return builder_put_index(builder, sink, &content)
    if kind == 2:
        return builder_put_tags(builder, sink, &content)
    segment_header_seal(&header, SEGMENT_MAGIC_DATA, header.part_bytes, header.data_xxh3)
    return sink_put(sink, &header, sizeof(segment_header))


# ---- the Python half ----------------------------------------------------------------------------------------------------------------

Findings = namedtuple("Findings", "topic_id first_seq last_seq data_status index_status tags_status records gaps deleted odd_flags damaged_ranges "
                                  "damaged_bytes damaged_offset corrupt_seqs corrupt_first data_bytes")


cdef class Examiner:
    """Verify one segment after another, and make what is damaged again."""

    cdef SegmentBuilder *builder

    def __cinit__(self):
        install_guard()
        self.builder = segment_builder_new()
        if self.builder == NULL:
            raise MemoryError

    def __dealloc__(self):
        segment_builder_free(self.builder)

    def examine(self, data, index=None, tags=None, *, uint64_t data_offset=0, uint64_t index_offset=0, uint64_t tags_offset=0,
                uint64_t data_bytes=0, identity=None):
        """Read a segment's data from front to back and compare index and tags with it.

        `data_bytes` bounds the data part where its header can not be believed (0: the rest of the buffer). `identity` = (topic_id, first_seq,
        last_seq) where no header can be. Raises SegmentError (nothing tells which segment it is, a newer format), OSError.
        """
        cdef Segment segment
        cdef SegmentFindings f
        cdef int result
        cdef list kept = []
        memset(&segment, 0, sizeof(Segment))
        take(&segment.data, data, data_offset, data_bytes, kept)
        take(&segment.index, index, index_offset, 0, kept)
        take(&segment.tags, tags, tags_offset, 0, kept)
        if identity is not None:
            segment.topic_id, segment.first_seq, segment.last_seq = identity
        with nogil:
            result = segment_examine(self.builder, &segment, &f)
        if result > 0:
            raise SegmentError(result)
        if result < 0:
            raise OSError(-result, "reading a segment")
        self.builder.header.part_bytes = f.data_bytes
        return Findings(self.builder.header.topic_id, self.builder.header.first_seq, self.builder.header.last_seq, f.data_status, f.index_status,
                        f.tags_status, f.records, f.gaps, f.deleted, f.odd_flags, f.damaged_ranges, f.damaged_bytes, f.damaged_offset,
                        f.corrupt_seqs, f.corrupt_first, f.data_bytes)

    def remade(self, kind):
        """After `examine`: the header of the data part ("data"), or the whole "index" or "tags" part as it should be."""
        cdef Sink sink
        cdef int result
        memset(&sink, 0, sizeof(Sink))
        sink.fd = -1
        result = segment_remade(self.builder, &sink, ("data", "index", "tags").index(kind))
        try:
            if result != 0:
                raise MemoryError
            return sink.buffer[:sink.used]
        finally:
            free(sink.buffer)


cdef int take(SegmentPart *part, buffer, uint64_t offset, uint64_t bytes, list kept) except -1:
    cdef const uint8_t[::1] view
    if buffer is None:
        return 0
    view = buffer
    if offset >= <uint64_t>len(view):
        raise SegmentError(SEGMENT_NOT_ONE)
    kept.append(view)
    part.at = &view[offset]
    part.bytes = <uint64_t>len(view) - offset
    if bytes:
        part.bytes = min(part.bytes, bytes)
    return 0
