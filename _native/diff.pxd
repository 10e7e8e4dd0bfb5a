# Reading a topic: a diff's whole JSON body spliced from stored bytes, without the writer's help and without a lock.
#
#   view_take -> floors -> [tombstone] -> entries of the tail index -> record entries in maps or ephemeral memory -> Buffer
#        ^                                                                                          |
#        '------------------ again, when view_still or `earliest` says that the ground moved -------'
#
# word                    written by   order                             a stale read means
# control.generation      writer       acquire (view_take, view_still)   nothing: a page from two generations is thrown away
# control.ready           both         acquire, after view_take          nothing: a table that is still being replayed is never read,
#                                                                        because the generation moves before its first change
# slot.version            writer       seqlock (view_take, view_still)   nothing: a page whose index moved is made again
# slot.head               writer       acquire (view_take)               a record that came in this moment is in the next page
# slot.earliest           writer       acquire, after an ephemeral copy  nothing: memory is used again only after earliest has passed
#                                                                        its last record, so a copy from such memory is thrown away
# entry.flags DELETED     writer       plain, copied with the entry      a record deleted during the read may still be in this page
#
# A router's copy (INDEX_COPY) shows another topic's bytes with marks of its own: copies.pxd.
#
# Bytes in log files are not written again once their entry is published, but a disk may change them: a record is shown when its frame is
# sound (log_verify.pxd). Ephemeral memory may be used again at any moment, so a record from there is copied first, then checked, then
# spliced. A record is checked against its index entry: it lies inside its file, its parts fill it, and it has as many bytes as the entry
# says. Everything that touches a map runs inside `guarded_call`.
#
# Cost: one bisection a page for floors and files, then one pass; no Python object, one copy of each byte.
#
# Owner: one thread. A ReaderCore is not shared (its maps, its buffers); several may read the same topic.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from topicsd._native.copies cimport Origin
from topicsd._native.layout cimport index_entry
from topicsd._native.maps cimport Map, Maps
from topicsd._native.regions cimport Regions
from topicsd._native.render cimport Buffer, RecordText, Tombstone
from topicsd._native.scan cimport DiffRequest
from topicsd._native.state cimport Floors
from topicsd._native.table cimport TopicView

cdef enum:
    LIMIT_DEFAULT = 256
    EXAMINED_MAX = 10000               # records a call looks at, or its limit when that is higher
    PAGE_BYTES_DEFAULT = 1 << 20
    PAGE_BYTES_MAX = 8 << 20
    PAGE_TRIES = 64
    PAGE_ENTRIES = 128

cdef struct DiffResult:
    uint64_t topic_id
    uint64_t matched, scanned
    uint64_t next_seq                  # next_from_seq
    uint64_t head, earliest
    uint64_t failed_seq                # the record that cannot be read, with READ_IO
    uint32_t tombstone                 # enum loss_reason, 0: none
    bint would_wait                    # nothing for this reader yet: a long poll waits

cdef struct Span:                      # the log file that is being read, and records of it that are verified
    Map map                            # base == NULL: none
    uint64_t first, end                # where they begin
    uint64_t now_ns                    # CLOCK_MONOTONIC of this page's first look into the log, 0: it has not looked yet

cdef struct Page:                      # one diff in the making; in memory, so that it outlives a jump out of a bad page
    ReaderCore *reader
    const DiffRequest *request
    Buffer *out
    TopicView view
    Floors floors
    Tombstone tombstone
    uint64_t cursor                    # last seq examined
    uint64_t end                       # last seq that the page may reach
    uint64_t matched, scanned, payload
    uint64_t limit, scanned_max, payload_max
    uint64_t reading                   # the record that is being read
    uint64_t whole_used                # out.used behind the last whole record
    uint64_t ephemeral_first           # first record copied from ephemeral memory, 0: none
    bint filter_nodes
    bint faulted                       # cleared by a return of the call that renders: set, it has jumped out of a bad page
    bint whole                         # a diff's body around the records, or the records alone
    Span span
    RecordText text
    uint64_t origins                   # slot.origins as of the view
    Origin origin                      # of the copy that is being rendered
    index_entry entries[PAGE_ENTRIES]

cdef struct ReaderCore:
    Regions *regions
    uint64_t limit_max                 # TOPICS_MAX_LIMIT
    Maps maps
    Buffer scratch
    Page page

cdef int reader_init(ReaderCore *reader, Regions *regions, const char *data_dir, uint64_t limit_max) noexcept nogil    # 0 or -errno
cdef void reader_free(ReaderCore *reader) noexcept nogil
# Append the JSON body of a diff (A §3) to `out`; READ_* of state.pxd. `topic_id` 0: whatever topic the slot holds. Moves the read clock.
cdef int diff(ReaderCore *reader, uint32_t slot, uint64_t topic_id, const DiffRequest *request, uint64_t now_ms, uint64_t started_ns,
              Buffer *out, DiffResult *result) noexcept nogil
# The same records alone, separated by commas, up to `head_max` (a higher head is as if it had not moved yet; a cursor above stays); what stands
# around them is the caller's. `reader.page` says more of the page: view, floors, tombstone (its head and earliest are set).
cdef int diff_records(ReaderCore *reader, uint32_t slot, uint64_t topic_id, const DiffRequest *request, uint64_t now_ms, uint64_t head_max,
                      Buffer *out, DiffResult *result) noexcept nogil
