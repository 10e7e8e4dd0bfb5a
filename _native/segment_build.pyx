"""Build segments (see segment_build.pxd)."""

import os
from collections import namedtuple

from libc.errno cimport EEXIST, EINVAL, ENAMETOOLONG, ENOMEM
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset, strlen

from topicsd._native.files cimport Files, FileSystem, real_files
from topicsd._native.frame cimport entry_bytes, entry_has_tag, entry_payload_bytes, entry_tag
from topicsd._native.hash cimport xxh3_64, xxh3_64_seeded
from topicsd._native.layout cimport INDEX_DELETED, INDEX_HOLE, INDEX_TAGGED, POSITION_BITS, index_entry, record_entry
from topicsd._native.maps cimport guarded_call
from topicsd._native.segment cimport (
    SEGMENT_BAD_FRAME, SEGMENT_BLOCK_ENTRIES, SEGMENT_FORMAT_VERSION, SEGMENT_FRAME_GAP, SEGMENT_FRAME_RECORD, SEGMENT_FRAME_TAIL_BYTES,
    SEGMENT_GAP_DELETED_MAX, SEGMENT_MAGIC_DATA, SEGMENT_MAGIC_INDEX, SEGMENT_MAGIC_TAGS, SEGMENT_OK, SEGMENT_ORDER, SEGMENT_SPAN_MAX,
    SOURCE_SEGMENT, Segment, SegmentView, index_body_bytes, pack_entry, segment_check, segment_entry, segment_frame, segment_frame_hash,
    segment_gap, segment_header, segment_is_flagged, segment_record,
)
from topicsd._native.segment_pack cimport PackBuilder, pack_abort, pack_begin, pack_builder_free, pack_builder_new, pack_enter, pack_finish
from topicsd._native.segment_sink cimport Sink, sink_close, sink_end, sink_go_direct, sink_open, sink_patch, sink_put, sink_reserve
from topicsd._native.segment_tags cimport array_grow, tag_table_add, tag_table_bytes, tag_table_clear, tag_table_free, tag_table_lay
from topicsd._native.maps import install_guard
from topicsd._native.segment import SegmentError

cdef enum:
    PATH_BYTES_MAX = 4096    # of what the builder keeps
    PATH_ROOM = 4352         # with an extension

# ---- the builder ----------------------------------------------------------------------------------------------------------------

cdef SegmentBuilder *segment_builder_new() noexcept nogil:
    cdef SegmentBuilder *builder = <SegmentBuilder *>calloc(1, sizeof(SegmentBuilder))
    if builder != NULL:
        builder.sink.fd = builder.sink.direct_fd = -1
    return builder


cdef void segment_builder_free(SegmentBuilder *builder) noexcept nogil:
    if builder == NULL:
        return
    segment_abort(builder)
    free(builder.sink.buffer)
    free(builder.entries)
    tag_table_free(&builder.tags)
    free(builder)


cdef void builder_clear(SegmentBuilder *builder, uint64_t topic_id, uint64_t first_seq) noexcept nogil:
    memset(&builder.header, 0, sizeof(segment_header))
    builder.header.topic_id = topic_id
    builder.header.first_seq = first_seq
    builder.next_seq = first_seq
    builder.deleted = builder.count = builder.gap_count = 0
    tag_table_clear(&builder.tags)


cdef int _start_data(SegmentBuilder *builder) noexcept nogil:
    cdef segment_header nothing
    memset(&nothing, 0, sizeof(segment_header))
    builder.data_offset = sink_end(builder.out)
    return sink_put(builder.out, &nothing, sizeof(segment_header))


cdef int segment_begin(SegmentBuilder *builder, const Files *files, const char *folder, uint64_t topic_id, uint64_t first_seq,
                       uint64_t edition, bint direct) noexcept nogil:
    cdef char path[PATH_ROOM]
    cdef int result
    if builder.open or first_seq == 0:
        return -EINVAL
    if strlen(folder) + 64 >= PATH_BYTES_MAX:
        return -ENAMETOOLONG
    builder_clear(builder, topic_id, first_seq)
    memcpy(builder.folder, folder, strlen(folder) + 1)
    if edition:
        snprintf(builder.base, PATH_BYTES_MAX, "%s/%020llu.%llu", folder, <unsigned long long>first_seq, <unsigned long long>edition)
    else:
        snprintf(builder.base, PATH_BYTES_MAX, "%s/%020llu", folder, <unsigned long long>first_seq)
    snprintf(path, PATH_ROOM, "%s.data.tmp", <const char *>builder.base)
    builder.files = files
    builder.pack = NULL
    builder.out = &builder.sink
    result = sink_open(&builder.sink, files, path)
    if result != 0:
        return result
    builder.direct = direct
    if direct:
        sink_go_direct(&builder.sink, path)
    builder.open = True
    return _start_data(builder)


cdef int segment_begin_in_pack(SegmentBuilder *builder, PackBuilder *pack, uint64_t topic_id, uint64_t first_seq) noexcept nogil:
    if builder.open or first_seq == 0 or not pack.open:
        return -EINVAL
    builder_clear(builder, topic_id, first_seq)
    builder.files = pack.sink.files
    builder.pack = pack
    builder.out = &pack.sink
    builder.open = True
    return _start_data(builder)


# ---- what the index says of each seq


cdef int builder_room_for(SegmentBuilder *builder, uint64_t count) noexcept nogil:
    if builder.count + count > SEGMENT_SPAN_MAX:
        return SEGMENT_ORDER
    return array_grow(<void **>&builder.entries, &builder.room, builder.count + count, sizeof(index_entry))


cdef void builder_note_none(SegmentBuilder *builder, uint64_t count, uint64_t ts, uint32_t flags) noexcept nogil:
    """`count` seqs without a record; the room is there."""
    cdef index_entry *entry
    cdef uint64_t _
    for _ in range(count):
        entry = &builder.entries[builder.count]
        entry.position = 0
        entry.bytes = 0
        entry.flags = flags
        entry.ts = ts
        builder.count += 1
    builder.next_seq += count
    builder.header.last_ts = ts
    if flags & INDEX_HOLE:
        builder.header.holes += count
    else:
        builder.deleted += count


cdef int builder_note_record(SegmentBuilder *builder, uint64_t seq, uint64_t ts, const record_entry *entry, uint64_t position) noexcept nogil:
    cdef index_entry *row
    cdef int result = builder_room_for(builder, 1)
    if result == 0 and entry_has_tag(entry):
        result = tag_table_add(&builder.tags, entry_tag(entry), entry.tag_bytes, <uint32_t>(seq - builder.header.first_seq))
    if result != 0:
        return result
    row = &builder.entries[builder.count]
    row.position = <uint64_t>SOURCE_SEGMENT << POSITION_BITS | position
    row.bytes = <uint32_t>entry_payload_bytes(entry)
    row.flags = INDEX_TAGGED if entry_has_tag(entry) else 0
    row.ts = ts
    builder.count += 1
    builder.next_seq += 1
    builder.header.last_ts = ts
    builder.header.records += 1
    builder.header.payload_bytes += row.bytes
    return 0


# ---- data


cdef void _seal_frame(SegmentBuilder *builder, segment_frame *frame) noexcept nogil:
    cdef uint64_t *tail = <uint64_t *>(<uint8_t *>frame + frame.frame_bytes - SEGMENT_FRAME_TAIL_BYTES)
    tail[0] = segment_frame_hash(frame, builder.header.topic_id)
    tail[1] = 0
    builder.header.data_xxh3 = xxh3_64_seeded(tail, 8, builder.header.data_xxh3)
    builder.out.used += frame.frame_bytes


cdef int _put_record(SegmentBuilder *builder, const SegmentRecord *record) noexcept nogil:
    cdef uint64_t bytes = entry_bytes(record.entry), whole = sizeof(segment_frame) + bytes + SEGMENT_FRAME_TAIL_BYTES
    cdef segment_frame *frame
    cdef uint64_t position
    cdef int result = 0
    if whole > UINT32_MAX or bytes < sizeof(record_entry):
        return SEGMENT_ORDER
    frame = <segment_frame *>sink_reserve(builder.out, whole, &result)
    if frame == NULL:
        return result
    position = sink_end(builder.out) - builder.data_offset + sizeof(segment_frame)
    frame.frame_bytes = <uint32_t>whole
    frame.kind = SEGMENT_FRAME_RECORD
    frame.seq = record.seq
    frame.ts = record.ts
    memcpy(frame + 1, record.entry, bytes)
    _seal_frame(builder, frame)
    return builder_note_record(builder, record.seq, record.ts, <const record_entry *>(frame + 1), position)


cdef int _end_gap(SegmentBuilder *builder) noexcept nogil:
    """Write the gap that has grown, if there is one. Its index entries stand already."""
    cdef uint64_t count = builder.gap_count, whole
    cdef segment_frame *frame
    cdef segment_gap *gap
    cdef int result = 0
    if count == 0:
        return 0
    whole = sizeof(segment_frame) + sizeof(segment_gap) + (count * 8 if builder.gap_reason == 0 else 0) + SEGMENT_FRAME_TAIL_BYTES
    frame = <segment_frame *>sink_reserve(builder.out, whole, &result)
    if frame == NULL:
        return result
    frame.frame_bytes = <uint32_t>whole
    frame.kind = SEGMENT_FRAME_GAP
    frame.seq = builder.gap_first
    frame.ts = builder.gap_ts[0]
    gap = <segment_gap *>(frame + 1)
    gap.last_seq = builder.gap_first + count - 1
    gap.reason = builder.gap_reason
    gap.reserved = 0
    if builder.gap_reason == 0:
        memcpy(gap + 1, builder.gap_ts, count * 8)
    _seal_frame(builder, frame)
    builder.gap_count = 0
    return 0


cdef int _put_hole(SegmentBuilder *builder, const SegmentRecord *record) noexcept nogil:
    cdef uint32_t reason = (record.flags >> 8) & 0xFF
    cdef uint64_t ts = max(record.ts, builder.header.last_ts)    # a hole is as old as what precedes it
    cdef int result = 0
    if reason == 0:
        return SEGMENT_ORDER
    if builder.gap_count and (builder.gap_reason != reason or builder.gap_ts[0] != ts):
        result = _end_gap(builder)
    if result == 0:
        result = builder_room_for(builder, record.count)
    if result != 0:
        return result
    if builder.gap_count == 0:
        builder.gap_first, builder.gap_reason, builder.gap_ts[0] = record.seq, reason, ts
    builder.gap_count += record.count
    builder_note_none(builder, record.count, ts, INDEX_HOLE | reason << 8)
    return 0


cdef int _put_deleted(SegmentBuilder *builder, const SegmentRecord *record) noexcept nogil:
    cdef int result = 0
    if builder.gap_count and (builder.gap_reason != 0 or builder.gap_count == SEGMENT_GAP_DELETED_MAX):
        result = _end_gap(builder)
    if result == 0:
        result = builder_room_for(builder, 1)
    if result != 0:
        return result
    if builder.gap_count == 0:
        builder.gap_first, builder.gap_reason = record.seq, 0
    builder.gap_ts[builder.gap_count] = record.ts
    builder.gap_count += 1
    builder_note_none(builder, 1, record.ts, INDEX_DELETED)
    return 0


cdef int segment_add(SegmentBuilder *builder, const SegmentRecord *records, uint64_t count) noexcept nogil:
    cdef const SegmentRecord *record
    cdef uint64_t number
    cdef int result
    if not builder.open:
        return -EINVAL
    for number in range(count):
        record = &records[number]
        if record.seq != builder.next_seq or record.count == 0 or (record.ts < builder.header.last_ts and not record.flags & INDEX_HOLE):
            return SEGMENT_ORDER
        if builder.count == 0:
            builder.header.first_ts = record.ts
        if record.flags & INDEX_HOLE:
            result = _put_hole(builder, record)
        elif record.count != 1:
            result = SEGMENT_ORDER
        elif record.flags & INDEX_DELETED:
            result = _put_deleted(builder, record)
        elif record.entry == NULL:
            result = SEGMENT_ORDER
        else:
            result = _end_gap(builder)
            if result == 0:
                result = _put_record(builder, record)
        if result != 0:
            return result
    return 0


# ---- the three parts


cdef void segment_header_seal(segment_header *header, uint64_t magic, uint64_t part_bytes, uint64_t content) noexcept nogil:
    header.magic = magic
    header.format_version = SEGMENT_FORMAT_VERSION
    header.part_bytes = part_bytes
    header.content_xxh3 = content
    header.header_xxh3 = xxh3_64(header, sizeof(segment_header) - 8)


cdef int builder_put_index(SegmentBuilder *builder, Sink *sink, uint64_t *content) noexcept nogil:
    cdef uint64_t blocks = (builder.count + SEGMENT_BLOCK_ENTRIES - 1) // SEGMENT_BLOCK_ENTRIES, block, first
    cdef uint64_t *checksums = <uint64_t *>malloc(blocks * 8)
    cdef segment_header header = builder.header
    cdef int result
    if checksums == NULL:
        return -ENOMEM
    for block in range(blocks):
        first = block * SEGMENT_BLOCK_ENTRIES
        checksums[block] = xxh3_64(builder.entries + first, min(builder.count - first, <uint64_t>SEGMENT_BLOCK_ENTRIES) * sizeof(index_entry))
    content[0] = xxh3_64(checksums, blocks * 8)
    segment_header_seal(&header, SEGMENT_MAGIC_INDEX, sizeof(segment_header) + index_body_bytes(builder.count), content[0])
    result = sink_put(sink, &header, sizeof(segment_header))
    if result == 0:
        result = sink_put(sink, builder.entries, builder.count * sizeof(index_entry))
    if result == 0:
        result = sink_put(sink, checksums, blocks * 8)
    free(checksums)
    return result


cdef int builder_put_tags(SegmentBuilder *builder, Sink *sink, uint64_t *content) noexcept nogil:
    cdef uint64_t body = tag_table_bytes(&builder.tags)
    cdef segment_header header = builder.header
    cdef uint8_t *out = <uint8_t *>calloc(body + 1, 1)
    cdef int result
    if out == NULL:
        return -ENOMEM
    result = tag_table_lay(&builder.tags, out)
    if result == 0:
        content[0] = xxh3_64(out, body)
        segment_header_seal(&header, SEGMENT_MAGIC_TAGS, sizeof(segment_header) + body, content[0])
        result = sink_put(sink, &header, sizeof(segment_header))
    if result == 0:
        result = sink_put(sink, out, body)
    free(out)
    return result


cdef int _finish_data(SegmentBuilder *builder, SegmentBuilt *built) noexcept nogil:
    """The last gap and the header of the data part; what the three headers have in common is final from here on."""
    cdef segment_header header
    cdef int result = _end_gap(builder)
    if result != 0:
        return result
    builder.header.last_seq = builder.next_seq - 1
    builder.header.tags = builder.tags.count
    builder.header.postings = builder.tags.posting_count
    header = builder.header
    built.data_offset = builder.data_offset
    built.data_bytes = sink_end(builder.out) - builder.data_offset
    segment_header_seal(&header, SEGMENT_MAGIC_DATA, built.data_bytes, header.data_xxh3)
    return sink_patch(builder.out, builder.data_offset, &header, sizeof(segment_header))


cdef void _tell(const SegmentBuilder *builder, SegmentBuilt *built) noexcept nogil:
    built.topic_id = builder.header.topic_id
    built.first_seq = builder.header.first_seq
    built.last_seq = builder.header.last_seq
    built.records = builder.header.records
    built.payload_bytes = builder.header.payload_bytes
    built.first_ts = builder.header.first_ts
    built.last_ts = builder.header.last_ts
    built.holes = builder.header.holes
    built.deleted = builder.deleted
    built.tags = builder.header.tags
    built.postings = builder.header.postings
    built.data_xxh3 = builder.header.data_xxh3


cdef int _finish_in_pack(SegmentBuilder *builder, SegmentBuilt *built) noexcept nogil:
    cdef pack_entry entry
    cdef int result
    built.index_offset = sink_end(builder.out)
    result = builder_put_index(builder, builder.out, &built.index_xxh3)
    built.tags_offset = sink_end(builder.out)
    built.index_bytes = built.tags_offset - built.index_offset
    if result == 0:
        result = builder_put_tags(builder, builder.out, &built.tags_xxh3)
    built.tags_bytes = sink_end(builder.out) - built.tags_offset
    if result != 0:
        return result
    entry.topic_id, entry.first_seq, entry.last_seq = built.topic_id, built.first_seq, built.last_seq
    entry.data_offset, entry.index_offset, entry.tags_offset = built.data_offset, built.index_offset, built.tags_offset
    entry.records, entry.data_xxh3 = built.records, built.data_xxh3
    return pack_enter(builder.pack, &entry)


cdef void _path_of(char *path, const SegmentBuilder *builder, const char *kind, bint final) noexcept nogil:
    if final:
        snprintf(path, PATH_ROOM, "%s.%s", <const char *>builder.base, kind)
    else:
        snprintf(path, PATH_ROOM, "%s.%s.tmp", <const char *>builder.base, kind)


cdef int _write_file(SegmentBuilder *builder, bint tags, uint64_t *bytes, uint64_t *content) noexcept nogil:
    cdef char path[PATH_ROOM]
    cdef int result, closed
    if tags:
        _path_of(path, builder, "tag", False)
    else:
        _path_of(path, builder, "idx", False)
    result = sink_open(&builder.sink, builder.files, path)
    if result != 0:
        return result
    if builder.direct:
        sink_go_direct(&builder.sink, path)
    result = builder_put_tags(builder, &builder.sink, content) if tags else builder_put_index(builder, &builder.sink, content)
    bytes[0] = sink_end(&builder.sink)
    closed = sink_close(&builder.sink, result == 0)
    return result if result != 0 else closed


cdef int _give_names(SegmentBuilder *builder) noexcept nogil:
    """The data file last: where it has its name, the others have theirs."""
    cdef char old[PATH_ROOM]
    cdef char new[PATH_ROOM]
    cdef const char *kinds[3]
    cdef const char *kind
    cdef int number, result
    kinds[0] = "tag"
    kinds[1] = "idx"
    kinds[2] = "data"
    for number in range(3):
        kind = kinds[number]
        _path_of(old, builder, kind, False)
        _path_of(new, builder, kind, True)
        result = builder.files.rename(builder.files.context, old, new)
        if result != 0:
            return result
    return builder.files.sync_directory(builder.files.context, builder.folder)


cdef int segment_finish(SegmentBuilder *builder, SegmentBuilt *built) noexcept nogil:
    cdef int result
    memset(built, 0, sizeof(SegmentBuilt))
    if not builder.open or builder.count == 0:
        return -EINVAL
    result = _finish_data(builder, built)
    if result != 0:
        return result
    _tell(builder, built)
    if builder.pack != NULL:
        result = _finish_in_pack(builder, built)
    else:
        result = sink_close(&builder.sink, True)
        if result == 0:
            result = _write_file(builder, False, &built.index_bytes, &built.index_xxh3)
        if result == 0:
            result = _write_file(builder, True, &built.tags_bytes, &built.tags_xxh3)
        if result == 0:
            result = _give_names(builder)
    if result == 0:
        builder.open = False
    return result


cdef void segment_abort(SegmentBuilder *builder) noexcept nogil:
    cdef char path[PATH_ROOM]
    if not builder.open:
        return
    builder.open = False
    if builder.pack != NULL or builder.files == NULL:    # half a segment makes the pack worthless: its owner aborts it
        builder.sink.used = builder.sink.flushed = 0
        return
    sink_close(&builder.sink, False)
    _path_of(path, builder, "data", False)
    builder.files.unlink(builder.files.context, path)
    _path_of(path, builder, "idx", False)
    builder.files.unlink(builder.files.context, path)
    _path_of(path, builder, "tag", False)
    builder.files.unlink(builder.files.context, path)


# ---- folders ----------------------------------------------------------------------------------------------------


cdef int segment_make_folder(const Files *files, const char *root, const char *relative) noexcept nogil:
    cdef char path[PATH_ROOM]
    cdef char parent[PATH_BYTES_MAX]
    cdef uint64_t base = strlen(root), length = strlen(relative), at = 0
    cdef int result
    if base + length + 2 >= PATH_BYTES_MAX:
        return -ENAMETOOLONG
    memcpy(parent, root, base + 1)
    memcpy(path, root, base)
    path[base] = b"/"
    memcpy(path + base + 1, relative, length + 1)
    while at < length:
        while at < length and relative[at] != b"/":
            at += 1
        path[base + 1 + at] = 0
        result = files.mkdir(files.context, path, 0o755)
        if result != 0 and result != -EEXIST:
            return result
        result = files.sync_directory(files.context, parent)
        if result != 0:
            return result
        memcpy(parent, path, base + at + 2)
        path[base + 1 + at] = b"/"
        at += 1
    return 0


# ---- rewriting --------------------------------------------------------------------------------------------------------------------

cdef struct AddAll:
    SegmentBuilder *builder
    const Segment *segment


cdef int _add_all(void *argument) noexcept nogil:
    cdef const Segment *segment = (<AddAll *>argument).segment
    cdef SegmentBuilder *builder = (<AddAll *>argument).builder
    cdef uint64_t seq, upto = 0
    cdef const record_entry *located
    cdef index_entry entry
    cdef SegmentRecord record
    cdef int result
    for seq in range(segment.first_seq, segment.last_seq + 1):
        result = segment_check(segment, seq, 1, &upto)
        if result != SEGMENT_OK:
            return result
        entry = segment_entry(segment, seq)[0]
        record.seq, record.ts, record.count, record.entry, record.flags = seq, entry.ts, 1, NULL, entry.flags
        if not entry.flags & (INDEX_HOLE | INDEX_DELETED):
            located = segment_record(segment, seq, &entry)
            if located == NULL:
                return SEGMENT_BAD_FRAME
            record.flags = INDEX_DELETED if segment_is_flagged(segment, seq, located) else 0
            if not record.flags:
                record.entry = located
        result = segment_add(builder, &record, 1)
        if result != 0:
            return result
    return 0


cdef int segment_add_all(SegmentBuilder *builder, const Segment *segment) noexcept nogil:
    cdef AddAll argument
    argument.builder = builder
    argument.segment = segment
    return guarded_call(_add_all, &argument)


# ---- the Python half: one object a record, for tools and tests ----------------------------------------------------------------------

Built = namedtuple("Built", "topic_id first_seq last_seq records payload_bytes first_ts last_ts holes deleted tags postings data_offset index_offset "
                            "tags_offset data_bytes index_bytes tags_bytes data_xxh3 index_xxh3 tags_xxh3")


cdef object as_built(const SegmentBuilt *b):
    return Built(b.topic_id, b.first_seq, b.last_seq, b.records, b.payload_bytes, b.first_ts, b.last_ts, b.holes, b.deleted, b.tags, b.postings,
                 b.data_offset, b.index_offset, b.tags_offset, b.data_bytes, b.index_bytes, b.tags_bytes, b.data_xxh3, b.index_xxh3, b.tags_xxh3)


cdef int raise_for(int result, path) except -1:
    if result == 0:
        return 0
    if result < 0:
        raise OSError(-result, os.strerror(-result), os.fspath(path))
    raise SegmentError(result, os.fspath(path))


cdef class Writer:
    """Write segments and packs from Python: `begin` or `begin_in_pack`, `add`, `finish`; `pack_begin` and `pack_finish` around the latter.

    Raises OSError and SegmentError; what was begun is then aborted, the pack too.
    """

    cdef SegmentBuilder *builder
    cdef PackBuilder *pack
    cdef FileSystem files
    cdef object folder

    def __cinit__(self, folder, FileSystem files=None):
        self.folder = folder
        self.files = files if files is not None else FileSystem()
        install_guard()
        self.builder = segment_builder_new()
        self.pack = pack_builder_new()
        if self.builder == NULL or self.pack == NULL:
            raise MemoryError

    def __dealloc__(self):
        segment_builder_free(self.builder)
        pack_builder_free(self.pack)

    cdef int judge(self, int result) except -1:
        if result != 0:
            self.abort()
        return raise_for(result, self.folder)

    def abort(self):
        """Give up what was begun."""
        segment_abort(self.builder)
        pack_abort(self.pack)

    def begin(self, uint64_t topic_id, uint64_t first_seq, uint64_t edition=0):
        """Begin a segment in three files of its own."""
        cdef bytes folder = os.fsencode(self.folder)
        self.judge(segment_begin(self.builder, &self.files.table, folder, topic_id, first_seq, edition, False))

    def pack_begin(self, uint64_t number):
        """Begin a pack."""
        cdef bytes folder = os.fsencode(self.folder)
        self.judge(pack_begin(self.pack, &self.files.table, folder, number))

    def begin_in_pack(self, uint64_t topic_id, uint64_t first_seq):
        """Begin a segment inside the pack."""
        self.judge(segment_begin_in_pack(self.builder, self.pack, topic_id, first_seq))

    def add(self, uint64_t seq, uint64_t ts, entry=None, uint32_t flags=0, uint32_t count=1):
        """Add a record (its entry's bytes), a deleted one (INDEX_DELETED) or a hole of `count` seqs (INDEX_HOLE | reason << 8)."""
        cdef SegmentRecord record
        cdef bytes raw = entry
        record.seq, record.ts, record.flags, record.count = seq, ts, flags, count
        record.entry = <const record_entry *><const char *>raw if entry is not None else NULL
        if entry is not None and (len(raw) < <Py_ssize_t>sizeof(record_entry) or entry_bytes(record.entry) != <uint64_t>len(raw)):
            raise ValueError("not one record entry")
        self.judge(segment_add(self.builder, &record, 1))

    def add_all(self, SegmentView view not None):
        """Add every seq of a segment; what its flag bytes call deleted comes in as deleted."""
        cdef int result
        with nogil:
            result = segment_add_all(self.builder, &view.segment)
        self.judge(result)

    def finish(self):
        """Finish the segment: what was built."""
        cdef SegmentBuilt built
        cdef int result
        with nogil:
            result = segment_finish(self.builder, &built)
        self.judge(result)
        return as_built(&built)

    def pack_finish(self):
        """Finish the pack: its size in bytes."""
        cdef uint64_t file_bytes = 0
        cdef int result
        with nogil:
            result = pack_finish(self.pack, &file_bytes)
        self.judge(result)
        return file_bytes


def make_folder(root, relative, FileSystem files=None):
    """Make `relative` below `root`, level by level, each synced in its parent. Raises OSError."""
    cdef bytes base = os.fsencode(root), rest = os.fsencode(relative)
    cdef const Files *table = real_files()
    if files is not None:
        table = &files.table
    raise_for(segment_make_folder(table, base, rest), root)
