# Building segments: the keeper hands records over in ascending order, the builder writes the parts in a crash-safe order.
#
#   begin -> add, add, ... -> finish      one segment, three files:  <folder>/<first seq, 20 digits>[.<edition>].{data,idx,tag}
#   pack_begin -> (begin_in_pack, add ..., finish) x n -> pack_finish    many segments in one file (segment_pack.pxd)
#
# Three files: each is written as <name>.tmp and synced; then renamed in the order tag, idx, data; then the folder is synced. A segment is known
# by its row alone (writer's log), so an unfinished one is only litter. What stands under a final name is whole or, before the folder's sync,
# absent. A pack is one file: written, synced, renamed, folder synced.
#
# The folders must exist (segment_make_folder makes them and syncs their parents).
#
# The builder owns its memory: the index (24 B a seq), the tag table and a write buffer. Input pointers are not kept after `add` returns.
# Owner: one thread. Every call goes through `Files`; after any error call segment_abort (it closes and unlinks what is temporary).
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from topicsd._native.files cimport Files
from topicsd._native.layout cimport index_entry, record_entry
from topicsd._native.segment cimport Segment, segment_header
from topicsd._native.segment_pack cimport PackBuilder
from topicsd._native.segment_sink cimport Sink
from topicsd._native.segment_tags cimport TagTable

cdef struct SegmentRecord:
    uint64_t seq
    uint64_t ts
    const record_entry *entry      # NULL for a hole or a deleted one; 8-aligned
    uint32_t flags                 # INDEX_DELETED; INDEX_HOLE | reason << 8; else 0. INDEX_TAGGED is found by the builder
    uint32_t count                 # seqs that this row stands for: 1, or for a hole as many as it has

cdef struct SegmentBuilt:
    uint64_t topic_id, first_seq, last_seq
    uint64_t records, payload_bytes, first_ts, last_ts, holes, deleted, tags, postings
    uint64_t data_offset, index_offset, tags_offset     # in their file(s): 0 outside a pack
    uint64_t data_bytes, index_bytes, tags_bytes
    uint64_t data_xxh3, index_xxh3, tags_xxh3           # data_xxh3 leaves out the flag bytes

cdef struct SegmentBuilder:
    bint open
    PackBuilder *pack              # NULL: files of its own
    Sink *out                      # the pack's sink, or `sink`
    Sink sink
    bint direct                    # its files are written past the page cache
    const Files *files
    char base[4096]
    char folder[4096]
    uint64_t data_offset           # of the data part in `out`
    segment_header header          # its fields as far as they are known
    uint64_t next_seq, deleted
    index_entry *entries
    uint64_t count, room           # entries
    TagTable tags
    uint64_t gap_first, gap_count  # the gap that is growing
    uint32_t gap_reason
    uint64_t gap_ts[4096]          # SEGMENT_GAP_DELETED_MAX

cdef SegmentBuilder *segment_builder_new() noexcept nogil                     # NULL: no memory. May be used for one segment after another
cdef void segment_builder_free(SegmentBuilder *builder) noexcept nogil        # aborts what is unfinished
# 0, SEGMENT_ORDER or -errno, all of them. `edition` 0 is left out of the name; a rewritten segment gets another one.
# `direct`: write the data past the page cache where that can be done.
cdef int segment_begin(SegmentBuilder *builder, const Files *files, const char *folder, uint64_t topic_id, uint64_t first_seq,
                       uint64_t edition, bint direct) noexcept nogil
cdef int segment_add(SegmentBuilder *builder, const SegmentRecord *records, uint64_t count) noexcept nogil
cdef int segment_finish(SegmentBuilder *builder, SegmentBuilt *built) noexcept nogil
cdef void segment_abort(SegmentBuilder *builder) noexcept nogil

# All seqs of an open segment, verified, under the guard; what its flag bytes call deleted comes in as deleted (a rewrite). 0, a segment_status
# or -errno.
cdef int segment_add_all(SegmentBuilder *builder, const Segment *segment) noexcept nogil

# In a pack (segment_pack.pxd), between pack_begin and pack_finish: begin_in_pack, add ..., finish, begin_in_pack ... On an error abort the pack too.
cdef int segment_begin_in_pack(SegmentBuilder *builder, PackBuilder *pack, uint64_t topic_id, uint64_t first_seq) noexcept nogil

# mkdir of <root>/<relative> one level after another, each synced in its parent, also when it was there (its maker may have died before the sync).
cdef int segment_make_folder(const Files *files, const char *root, const char *relative) noexcept nogil

# ---- for segment_repair: the index and the tags of frames that stand already
cdef void builder_clear(SegmentBuilder *builder, uint64_t topic_id, uint64_t first_seq) noexcept nogil
cdef int builder_room_for(SegmentBuilder *builder, uint64_t count) noexcept nogil
cdef void builder_note_none(SegmentBuilder *builder, uint64_t count, uint64_t ts, uint32_t flags) noexcept nogil
cdef int builder_note_record(SegmentBuilder *builder, uint64_t seq, uint64_t ts, const record_entry *entry, uint64_t position) noexcept nogil
cdef int builder_put_index(SegmentBuilder *builder, Sink *sink, uint64_t *content) noexcept nogil
cdef int builder_put_tags(SegmentBuilder *builder, Sink *sink, uint64_t *content) noexcept nogil
cdef void segment_header_seal(segment_header *header, uint64_t magic, uint64_t part_bytes, uint64_t content) noexcept nogil
