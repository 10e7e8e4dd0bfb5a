# A sealed segment as a reader sees it: three parts somewhere in mapped files (segment.h has the diagrams, docs/format/segment.md every byte).
#
#   seq -> entries[seq - first_seq] -> position (from the start of the data part) -> record entry -> flag byte 8 bytes behind the entry's checksum
#
# Nothing of a segment is loaded: a Segment is a handful of pointers into maps (segment_maps.pxd) and is made anew for each read. What it costs
# is three header checksums. Then
#
#   segment_check(segment, seq, count)   BEFORE entries or records of that range are believed: it verifies the checksum of each index block
#                                        and of each frame in it (the marks `checked` remember that for a second: segment_maps.pxd), so
#                                        that a flipped bit is an error and no wrong record. Blocks verified a moment ago cost a bit test.
#
#   segment_record(segment, seq, entry)  of a COPY of a checked entry: its record. The bytes may have changed since they were verified, so no
#                                        position and no length is followed before it has been held against the bounds (segment_place), and
#                                        the frame there against the entry (segment_frame_is). Else: segment_doubt, then segment_check once
#                                        more, which says what it is that has changed.
#
# What of an index leads to no frame (a hole, what is deleted, a time) is verified each time somebody acts on it: segment_verify_index.
#
# word                              written by      order     a stale read means
# all bytes of all parts            the builder     before their names exist and before the row that leads to them (release)
# a flag byte                       the writer      relaxed   a record deleted a moment ago
# `checked`                         this process    none      a block is verified again: one owner, one thread
#
# Every function here that reads a part must run inside `guarded_call` (maps.pxd) when the part is a map, but for segment_open_guarded.
# Owner: one thread. Nothing here allocates.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from topicsd._native.files cimport Files
from topicsd._native.frame cimport entry_bytes, entry_has_tag, entry_length_for, entry_payload_bytes
from topicsd._native.hash cimport hash_secret
from topicsd._native.layout cimport ENTRY_FLAG_EXT, INDEX_TAGGED, POSITION_BITS, entry_ext, index_entry, record_entry

cdef extern from "segment.h" nogil:
    const uint32_t SEGMENT_FORMAT_VERSION
    const uint32_t SEGMENT_HEADER_BYTES
    const uint64_t SEGMENT_MAGIC_DATA
    const uint64_t SEGMENT_MAGIC_INDEX
    const uint64_t SEGMENT_MAGIC_TAGS
    const uint64_t SEGMENT_MAGIC_FLAGS
    const uint32_t SOURCE_SEGMENT
    const uint32_t SEGMENT_BLOCK_ENTRIES
    const uint8_t SEGMENT_DELETED
    const uint64_t SEGMENT_SPAN_MAX
    const uint32_t SEGMENT_FRAME_TAIL_BYTES
    const uint32_t SEGMENT_FLAG_FROM_END
    const uint32_t SEGMENT_GAP_DELETED_MAX
    const uint32_t PACK_FORMAT_VERSION
    const uint64_t PACK_MAGIC
    const uint64_t PACK_FOOTER_MAGIC
    const int SEGMENT_FRAME_RECORD
    const int SEGMENT_FRAME_GAP
    const int SEGMENT_OK
    const int SEGMENT_SHORT
    const int SEGMENT_NOT_ONE
    const int SEGMENT_BAD_HEADER
    const int SEGMENT_NEWER
    const int SEGMENT_MISMATCH
    const int SEGMENT_BAD_INDEX
    const int SEGMENT_BAD_FRAME
    const int SEGMENT_BAD_TAGS
    const int SEGMENT_ORDER
    ctypedef struct segment_header "struct segment_header":
        uint64_t magic
        uint32_t format_version
        uint32_t reserved0
        uint64_t topic_id
        uint64_t first_seq
        uint64_t last_seq
        uint64_t part_bytes
        uint64_t records
        uint64_t payload_bytes
        uint64_t first_ts
        uint64_t last_ts
        uint64_t holes
        uint64_t tags
        uint64_t postings
        uint64_t data_xxh3
        uint64_t content_xxh3
        uint64_t header_xxh3
    ctypedef struct segment_frame "struct segment_frame":
        uint32_t frame_bytes
        uint32_t kind
        uint64_t seq
        uint64_t ts
    ctypedef struct segment_gap "struct segment_gap":
        uint64_t last_seq
        uint32_t reason
        uint32_t reserved
    ctypedef struct segment_tag "struct segment_tag":
        uint32_t bytes_offset
        uint32_t tag_bytes
        uint32_t first_posting
        uint32_t postings
    ctypedef struct pack_header "struct pack_header":
        uint64_t magic
        uint32_t format_version
        uint32_t reserved0
        uint64_t number
        uint64_t reserved[4]
        uint64_t header_xxh3
    ctypedef struct pack_entry "struct pack_entry":
        uint64_t topic_id
        uint64_t first_seq
        uint64_t last_seq
        uint64_t data_offset
        uint64_t index_offset
        uint64_t tags_offset
        uint64_t records
        uint64_t data_xxh3
    ctypedef struct pack_footer "struct pack_footer":
        uint64_t magic
        uint32_t format_version
        uint32_t reserved0
        uint64_t number
        uint64_t segments
        uint64_t directory_offset
        uint64_t directory_xxh3
        uint64_t file_bytes
        uint64_t footer_xxh3

# Where a part stands: `bytes` are what the file holds from `at` on. `checked`: the marks of the file that holds the index (one bit for each
# SEGMENT_MARK_BYTES of the FILE for index blocks, and as many for their frames), or NULL: then every look verifies.
cdef enum:
    SEGMENT_MARK_BYTES = 128

cdef struct SegmentPart:
    const uint8_t *at
    uint64_t bytes

cdef struct Segment:
    SegmentPart data, index, tags  # at == NULL: not there (tags are wanted by deletes only; data may be cold)
    const segment_header *header   # the index part's
    const index_entry *entries     # one for each seq of first_seq .. last_seq
    const uint64_t *blocks         # their checksums
    uint64_t topic_id, first_seq, last_seq
    uint64_t *index_marks
    uint64_t *frame_marks
    uint64_t *tags_marks           # index_marks of the map that holds the tags part
    uint64_t index_offset          # of the index part in its file: where its marks begin
    uint64_t tags_offset
    uint64_t data_from             # of a window of a cold data part: below it nothing is in memory; set with data.at after segment_open. 0: whole
    const uint8_t *flags           # of a cold segment: its flag bytes, one a seq (segment_open_flags); NULL: they stand in the data part

# ---- open: all return SEGMENT_OK, another segment_status, or -EIO
cdef int segment_header_check(const SegmentPart *part, uint64_t magic) noexcept nogil
# `segment.data`, `.index`, `.tags`, the marks and the two offsets are filled by the caller, the rest here. Every part that is
# given must be of the same segment. A damaged data header is no obstacle: everything it says stands in the index too.
cdef int segment_open(Segment *segment) noexcept nogil
cdef int segment_open_guarded(Segment *segment) noexcept nogil
# Of an open segment: take the flags part of a cold one.
cdef int segment_open_flags(Segment *segment, const SegmentPart *part) noexcept nogil

# ---- look
# Verify what first_seq .. first_seq + count - 1 needs. `upto` = first seq that is NOT good (first_seq + count when all is): with
# SEGMENT_BAD_FRAME the seqs before it may be delivered and `upto` itself is corrupt (only it: ask again behind it); with SEGMENT_BAD_INDEX
# nothing of `upto`'s block may be believed.
cdef int segment_check(const Segment *segment, uint64_t first_seq, uint64_t count, uint64_t *upto) noexcept nogil
cdef int segment_check_index(const Segment *segment, uint64_t first_seq, uint64_t count, uint64_t *upto) noexcept nogil
cdef int segment_verify_index(const Segment *segment, uint64_t first_seq, uint64_t count, uint64_t *upto) noexcept nogil    # whatever is marked
cdef void segment_doubt(const Segment *segment, uint64_t seq) noexcept nogil    # forget that the block of `seq`, and its frames, were verified

# One seq alone, without marks. SEGMENT_OK or SEGMENT_BAD_FRAME; its index block must have been checked. secret: of the topic's id.
cdef int segment_entry_check(const Segment *segment, uint64_t seq, const hash_secret *secret) noexcept nogil

cdef inline uint64_t index_body_bytes(uint64_t entries) noexcept nogil:
    # Of an index part behind its header.
    return entries * sizeof(index_entry) + (entries + SEGMENT_BLOCK_ENTRIES - 1) // SEGMENT_BLOCK_ENTRIES * 8

cdef inline bint segment_holds(const Segment *segment, uint64_t seq) noexcept nogil:
    return segment.first_seq <= seq <= segment.last_seq

cdef inline const index_entry *segment_entry(const Segment *segment, uint64_t seq) noexcept nogil:
    # `seq` must be in the segment and checked.
    return &segment.entries[seq - segment.first_seq]

# The record of a copy of a checked entry that is neither INDEX_HOLE nor INDEX_DELETED: all of its frame lies inside the part, and is what the
# entry says as far as that shows without the checksum. NULL: not so.
cdef inline const record_entry *segment_record(const Segment *segment, uint64_t seq, const index_entry *entry) noexcept nogil:
    cdef const record_entry *record = segment_place(segment, entry)
    return record if record != NULL and segment_frame_is(record, seq, entry) else NULL

# Where that record stands, when a frame of the entry's length is inside of the part there. Its bytes are looked at only when it is the last one.
cdef inline const record_entry *segment_place(const Segment *segment, const index_entry *entry) noexcept nogil:
    cdef uint64_t position = entry.position ^ <uint64_t>SOURCE_SEGMENT << POSITION_BITS    # of another source: far behind any end
    cdef uint64_t bytes = entry_length_for(entry.bytes, True) + SEGMENT_FRAME_TAIL_BYTES, end = segment.data.bytes
    cdef const record_entry *record = <const record_entry *>(segment.data.at + position)
    if position < max(segment.data_from, <uint64_t>sizeof(segment_header)) + sizeof(segment_frame) or position & 7 or position > end:
        return NULL
    if bytes > end - position and (bytes - sizeof(entry_ext) > end - position or record.length_flags & ENTRY_FLAG_EXT):
        return NULL
    return record

# Whether the frame around a record is what its entry says: one branch, since this is done for each record that is read, right before it is.
cdef inline bint segment_frame_is(const record_entry *record, uint64_t seq, const index_entry *entry) noexcept nogil:
    cdef const segment_frame *frame = (<const segment_frame *>record) - 1
    cdef uint64_t bytes = entry_length_for(entry.bytes, record.length_flags & ENTRY_FLAG_EXT)
    return ((frame.seq ^ seq) | (frame.ts ^ entry.ts) | (entry_payload_bytes(record) ^ entry.bytes) | (entry_bytes(record) ^ bytes)
            | (frame.frame_bytes ^ (sizeof(segment_frame) + bytes + SEGMENT_FRAME_TAIL_BYTES)) | (frame.kind ^ <uint32_t>SEGMENT_FRAME_RECORD)
            | <uint64_t>(entry_has_tag(record) != (entry.flags & INDEX_TAGGED != 0))) == 0

# Whether the flag byte of a record that segment_record gave says deleted.
cdef inline bint segment_is_flagged(const Segment *segment, uint64_t seq, const record_entry *record) noexcept nogil:
    if segment.flags != NULL:
        return segment.flags[seq - segment.first_seq] == SEGMENT_DELETED
    return (<const uint8_t *>record)[entry_bytes(record) + SEGMENT_FRAME_TAIL_BYTES - SEGMENT_FLAG_FROM_END] == SEGMENT_DELETED

# First seq >= from_seq (within the segment) whose ts >= `ts`, last_seq + 1 when there is none. What it says is verified.
# 0 or SEGMENT_BAD_INDEX.
cdef int segment_lower_bound_ts(const Segment *segment, uint64_t from_seq, uint64_t ts, uint64_t *seq) noexcept nogil

# ---- tags: verified as a whole by the first segment_tags_find of each map, and by each that finds something. SEGMENT_OK or SEGMENT_BAD_TAGS
cdef struct TagRange:              # rows first .. end - 1 match
    uint32_t first, end
    uint64_t rows, postings, room  # of the whole part, as its header said when it was checked: what lies outside is not followed
cdef int segment_tags_check(const Segment *segment) noexcept nogil
cdef int segment_tags_find(const Segment *segment, const uint8_t *tag, uint64_t tag_bytes, bint prefix, TagRange *found) noexcept nogil
cdef const uint8_t *segment_tag_text(const Segment *segment, const TagRange *found, uint32_t row, uint32_t *tag_bytes) noexcept nogil
# seq - first_seq each; NULL: the row leads outside of the part
cdef const uint32_t *segment_tag_postings(const Segment *segment, const TagRange *found, uint32_t row, uint32_t *count) noexcept nogil

# ---- frames: a record's entry is well-formed, a gap is as long as it says, seq and ts are only bounded by the checksum
cdef int segment_frame_check(const segment_frame *frame, uint64_t available, uint64_t topic_id) noexcept nogil    # SEGMENT_OK or SEGMENT_BAD_FRAME
cdef uint64_t segment_frame_hash(const segment_frame *frame, uint64_t topic_id) noexcept nogil

# ---- deletes: one pwrite a byte, then one fdatasync. Offsets from the start of the file. 0 or -errno (then any of them may have been set).
cdef int segment_set_deleted(const Files *files, const char *path, const uint64_t *offsets, uint64_t count) noexcept nogil

# ---- for tests and tools: the parts in Python buffers, which it keeps
cdef class SegmentView:
    cdef Segment segment
    cdef object buffers
    cdef object marks
    cdef const record_entry *located(self, uint64_t seq) except? NULL
    cdef bint is_deleted(self, uint64_t seq) except -1
    cdef int take(self, SegmentPart *part, buffer, uint64_t offset) except -1
