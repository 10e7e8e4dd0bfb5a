# Sealing, the half that needs no writer: read the tail index and the log as a worker does, build a segment, say what was built.
#
#   due     slots whose tail is long, large or old enough
#   seal    tail index -> log map -> frame around the record, verified -> segment builder -> struct segment_body for the writer
#
# Nothing here changes a shared word. What was deleted after the look is found by the writer when it publishes (sealed_topic.pxd).
# Sealed are whole batches only (so the next seal begins at a frame), and only what is synced: a segment is never more durable than its log was.
# A router's copy is sealed as its readers see it, so that its source's log may go: without node or tag, with its origin (exactly once) in its
# meta. The latter makes it longer than its index entry in the tail says: its row has ROW_ORIGINS, and the writer counts its bytes anew.
#
# Large frames that are not in memory (written past the page cache, or long ago) are read into a window of the sealer's own, past the page cache
# too: a backlog that is sealed then takes no memory from what people read.
#
# Owner: one thread, the keeper's.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from topicsd._native.copies cimport Origin
from topicsd._native.files cimport FileSystem
from topicsd._native.layout cimport frame_header, index_entry, record_entry, segment_body
from topicsd._native.maps cimport Map, Maps
from topicsd._native.regions cimport Shared
from topicsd._native.segment_build cimport SegmentBuilder, SegmentRecord
from topicsd._native.segment_pack cimport PackBuilder
from topicsd._native.table cimport TopicView

cdef enum:
    GATHER = 256

cdef class Sealer:
    cdef Shared shared
    cdef FileSystem files
    cdef bytes directory, folder
    cdef const char *directory_bytes
    cdef const char *folder_bytes
    cdef Maps maps
    cdef SegmentBuilder *builder
    cdef PackBuilder *pack
    cdef uint64_t pack_number
    # of the seal that is going on
    cdef uint32_t slot
    cdef uint64_t topic_id, events_max, bytes_max
    cdef public uint64_t behind         # only what stands so far behind the log's end is sealed; 0: whatever there is
    cdef bint in_pack, begun
    cdef bint restated                # it has an exactly-once copy, with its origin
    cdef Origin origin
    cdef int failure
    cdef TopicView view
    cdef uint64_t first_seq, next_seq, last_ts, records, holes, payload
    cdef uint64_t frame_last          # last seq of the frame that was verified
    cdef uint64_t hole_to
    cdef uint32_t hole_reason
    cdef index_entry entries[GATHER]
    cdef SegmentRecord gathered[GATHER]
    cdef uint64_t pending
    cdef uint8_t *copy                # a router's copy as its readers see it
    cdef uint64_t copy_room
    cdef uint8_t *window              # log bytes of one shard; records that are gathered may point into it
    cdef uint64_t window_room, window_first, window_bytes      # positions; 0 bytes: nothing
    cdef uint32_t window_shard
    cdef int window_fd                # of the log file that was read last; -1: none, -2: this file system is read through maps alone
    cdef uint64_t window_file         # its first position
    cdef bint frame_in_window         # the frame that was verified last stands in it
    cdef const uint8_t *warm_page     # of a map: seen in memory
    cdef uint32_t copy_shard          # the frame that was verified last for a copy
    cdef uint64_t copy_first, copy_end

    cdef bint sealed_live(self, const TopicView *view, uint64_t *records, uint64_t *size) noexcept nogil
    cdef uint64_t tail_records(self, const TopicView *view, uint64_t first) noexcept nogil
    cdef int first_held(self, const TopicView *view, uint64_t seq, index_entry *out) noexcept nogil
    cdef bint is_far_behind(self, const index_entry *entry, uint64_t bytes) noexcept nogil
    cdef uint64_t tail_bytes(self, const TopicView *view, uint64_t first) noexcept nogil
    cdef int finish(self, segment_body *body) except -1
    cdef void reset(self) noexcept nogil
    cdef int start(self) noexcept nogil
    cdef bint is_read(self) noexcept nogil
    cdef int put(self) noexcept nogil
    cdef bint put_failed(self) noexcept nogil
    cdef int gather(self) noexcept nogil
    cdef int chunk(self) noexcept nogil
    cdef int hole(self, const index_entry *entry) noexcept nogil
    cdef int one(self, const index_entry *entry) noexcept nogil
    cdef bint locate(self, const uint8_t *record, const uint8_t *base, uint64_t size, uint32_t shard, uint64_t position) noexcept nogil
    cdef const frame_header *frame_of(self, const uint8_t *record, const uint8_t *base, uint64_t position) noexcept nogil
    cdef const uint8_t *in_window(self, uint32_t shard, uint64_t position) noexcept nogil
    cdef bint is_cold(self, const uint8_t *at) noexcept nogil
    cdef bint open_window(self, uint32_t shard, uint64_t position, const Map *map) noexcept nogil
    cdef void close_window(self) noexcept nogil
    cdef bint read_window(self, uint32_t shard, const Map *map, uint64_t first, uint64_t bytes) noexcept nogil
    cdef const record_entry *shown(self, const record_entry *record, uint32_t flags) noexcept nogil
    cdef const Map *_map_of(self, uint32_t shard, uint64_t position) noexcept nogil
    cdef bint locate_copy(self, const uint8_t *record, uint32_t shard, uint64_t position) noexcept nogil
    cdef int _check(self, int result) except -1
