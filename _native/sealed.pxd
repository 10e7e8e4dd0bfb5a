# Sealed ranges of topics: from a seq to its row, from the row to its files, and back as index entries. The one door for reads below
# `sealed_through`; index.pxd calls it, so that nobody else need know where an entry stands.
#
#   slot.segments_offset -> [ row | row | row ]      struct segment_row, ascending, no seq missing from the first row to sealed_through
#                                  |                 what is older than the first row lies below `earliest`
#                                  v
#   segment_files[row.file]        kind, topic id, name, edition -> path -> map (segment_maps.pxd) -> .idx entry, .data frame
#
# An entry that comes out of here has SOURCE_SEGMENT and, in the lower 56 bits, the ADDRESS of its record entry in this process: good until the
# next sealed_turn. It never leads out of the file, whatever has become of the index since it was verified. Data that is damaged comes out as a hole
# with reason `corrupt`: a reader gets its tombstone and everything around it. An index that is damaged or gone loses nothing: this process makes it
# again from the data (mended.pxd) and goes by that. The writer does not pass over what can not be read as over a hole (INDEX_DAMAGED): it is
# retained, deleted and evicted like any record, the data may be put back. An entry that is deleted has INDEX_DELETED, whoever says so: the index,
# the flag byte, or the row's marks.
#
# Of a segment in the cold tier the index is made again of all of its object, which is fetched piece by piece like anything that a read lacks; who
# reads nothing from there (the writer) goes without.
#
# word                            written by   order                               a stale read means
# slot.segments_*, sealed_*       writer       under the slot's lock               the view is taken again
# a row                           writer       before the lock that shows it;      the view is taken again
#                                              then under the lock, but for:
# row.live, live_bytes            writer       its own                             -
# a bit of the marks              writer       relaxed                             a record deleted a moment ago
# segment_file.state              writer       release, RETIRED after its last     one more read from a file that is about to go: it goes only
#                                              row has gone                        when every process has said that it does not map it
# segment_file.suspect      any process  relaxed; MET by readers, the    the keeper looks once more, or a pass later
#                           rest by the keeper
# control.damage_met        any process  added, after suspect            the keeper looks a moment later
# the rest of a segment_file      writer       before the first row that leads     nothing: the view is refused
#                                              to it; again only after it was retired
#
# Damage is noted while a read goes on (met; a read may take many files) and told by who knows that its view still held (sealed_tell): so nothing
# that a stale view made up raises an alarm. The keeper then reads the file (topicsd/damage.py). What cannot be read now (no descriptor, no memory)
# is -EIO and no damage; a page that the disk does not give back is -EIO until the keeper has found so too, and from then on a hole.
#
# A flag byte is set only by a checkpoint, after a snapshot that holds the marks is on the disk (topicsd/engine/segments.py): so what the flag bytes
# say is never newer than what replay starts from. Until then a delete stands in the marks and in the log.
#
# Owner: struct Sealed and everything in it belong to one thread of one process. Rows and files: the writer.
from libc.stdint cimport uint32_t, uint64_t

from topicsd._native.cold_window cimport ColdWindows
from topicsd._native.layout cimport INDEX_DELETED, INDEX_HOLE, index_entry, segment_file, segment_row, topic_slot
from topicsd._native.mended cimport MendedList
from topicsd._native.regions cimport Regions, Shared
from topicsd._native.segment cimport Segment
from topicsd._native.segment_maps cimport SegmentMaps
from topicsd._native.table cimport TopicView

cdef enum:
    SEALED_WINDOW = 64
    SEALED_DIRECTORY_MAX = 3968
    ROW_LOST = 0x10            # of a row, beside ROW_* of layout.h: jobs of it went because they could not be read (lost_jobs.pxd)
    INDEX_DAMAGED = 0x1000000  # with INDEX_HOLE: its index can not be read, and it is live for all that anybody knows; `bytes` is an average
    SEGMENT_KIND_COLD = 3      # segment_kind: index and tags are files of their own, the data part stands in the cold tier under its name
    COLD_AHEAD_BYTES = 1 << 20  # a read that lacks something has so much read ahead
    COLD_WHOLE_BYTES = 8 << 20  # one that lacks all of an object has so much of it read at a time
    MET_FILES_MAX = 1 << 16    # of one read; what is beyond is met again by the next one, when these are known

cdef enum SealedPart:        # the low bits of a map's key
    PART_DATA = 0
    PART_INDEX = 1
    PART_TAGS = 2
    PART_PACK = 3

cdef struct Rows:            # of one topic, as a view or the writer sees them
    const segment_row *at
    uint32_t count
    uint64_t topic_id

cdef inline bint is_gone(const index_entry *entry) noexcept nogil:    # deleted, or a hole: nothing that can come back
    return entry.flags & INDEX_DELETED != 0 or entry.flags & (INDEX_HOLE | <uint32_t>INDEX_DAMAGED) == <uint32_t>INDEX_HOLE

cdef struct Met:             # a file whose bytes are not what was written
    uint32_t file
    uint64_t serial

cdef struct Sealed:
    Regions *regions
    SegmentMaps maps
    uint64_t generation
    uint64_t open_turn, open_serial, open_topic, open_first   # which segment is open, if its maps are of this turn
    bint open_data, open_mended
    Segment segment
    MendedList mended
    uint64_t window_topic, window_first, changes, window_changes
    uint32_t window_count
    index_entry window[SEALED_WINDOW]
    Met *met                   # since the turn began, or since they were told
    uint32_t met_count, met_room
    bint owing                 # the writer: it does what rows with ROW_OWES wait for
    uint64_t missed            # the writer: records, or whole rows, that a delete by tag could not look at (topicsd/engine/owed.py)
    ColdWindows *cold          # NULL: this process reads nothing from the cold tier
    char directory[SEALED_DIRECTORY_MAX]

# ---- any process
cdef int sealed_attach(Shared shared, directory) except -1           # give this process its maps; again is no harm
cdef void sealed_turn(const Regions *regions) noexcept nogil         # a read begins: what earlier ones were given may go
cdef void sealed_met(const Regions *regions, const TopicView *view, uint64_t seq) noexcept nogil    # a record that was verified has faulted
# A record is not what its entry says (segment_frame_is): nothing of its file that was verified is believed any more; the read is made again.
cdef void sealed_doubt(const Regions *regions, const TopicView *view, uint64_t seq) noexcept nogil
cdef void sealed_met_row(const Regions *regions, const segment_row *row) noexcept nogil             # the same, of its row
cdef void sealed_tell(const Regions *regions) noexcept nogil         # what the read has met was true: its view still holds
cdef uint32_t sealed_sweep(const Regions *regions) noexcept nogil    # unmap what is retired; how many maps went
cdef int rows_of_view(const Regions *regions, const TopicView *view, Rows *rows) noexcept nogil    # 0, or VIEW_BUSY
cdef void rows_of_topic(const Regions *regions, const topic_slot *topic, Rows *rows) noexcept nogil
cdef const segment_row *row_of(const Rows *rows, uint64_t seq) noexcept nogil     # NULL: no row has it
# Entries first_seq .. first_seq + count - 1, all of them in rows. `records`: with addresses, verified, and a frame of the entry's length is inside
# of the file there; but bytes may have changed since, so whoever follows one asks segment_frame_is first. Else what the index says, verified now.
# 0, VIEW_BUSY (not in rows), or -EIO: a page that cannot be read now, or bytes of the cold tier that are not here yet (sealed.cold.wanted_file).
cdef int sealed_entries(const Regions *regions, const Rows *rows, uint64_t first_seq, uint32_t count, index_entry *out, bint records) noexcept nogil
# One with its address, and with segment_frame_is.
cdef int sealed_entry(const Regions *regions, const Rows *rows, uint64_t seq, index_entry *out) noexcept nogil
# First seq >= from_seq in rows with ts at or above `ts`; last seq of all rows + 1 when there is none. A row without a file whose records were
# deleted has no such seq.
cdef uint64_t sealed_lower_bound_ts(const Regions *regions, const Rows *rows, uint64_t from_seq, uint64_t ts) noexcept nogil
# Open the row's segment; NULL when it is not there or damaged. Good until the next turn.
cdef Segment *sealed_open(const Regions *regions, const Rows *rows, const segment_row *row, bint data, bint tags) noexcept nogil
# The same with its index made again from the data: of an open segment whose index has turned out to be damaged. NULL: there is no data to go by.
cdef Segment *sealed_mended(const Regions *regions, const Rows *rows, const segment_row *row, bint data) noexcept nogil
cdef bint row_marked(const Regions *regions, const segment_row *row, uint64_t seq) noexcept nogil

# ---- the writer
# A copy of the entry in this process: good until the next call. Never NULL for a seq in rows; NULL for any other.
cdef const index_entry *sealed_at(const Regions *regions, const topic_slot *topic, uint64_t seq) noexcept nogil
cdef void sealed_changed(const Regions *regions) noexcept nogil      # what sealed_at has copied may be old
cdef void segment_files_reset(Regions *regions) noexcept nogil
cdef uint32_t segment_file_take(Regions *regions, const segment_file *what) noexcept nogil      # a row's number; 0: the table is full
cdef uint32_t segment_file_retired(Regions *regions) noexcept nogil                              # the next one to be removed, 0 none
cdef void segment_file_free(Regions *regions, uint32_t number) noexcept nogil                    # its file is gone
cdef void segment_file_dropped(Regions *regions, uint32_t number) noexcept nogil                 # one row less leads into it; the last retires it
cdef int rows_append(Regions *regions, topic_slot *topic, const segment_row *row) noexcept nogil       # 0 or -ENOMEM
cdef uint32_t rows_drop_below(Regions *regions, topic_slot *topic, uint64_t seq) noexcept nogil        # rows that end below `seq`; how many went
cdef void rows_drop_all(Regions *regions, topic_slot *topic) noexcept nogil
cdef segment_row *row_at(Regions *regions, topic_slot *topic, uint64_t seq) noexcept nogil             # the writer's own, or NULL
cdef int row_mark(Regions *regions, topic_slot *topic, segment_row *row, uint64_t seq) noexcept nogil  # 1 marked, 0 was, -ENOMEM
cdef void row_flag(Regions *regions, topic_slot *topic, segment_row *row, uint32_t flags, uint32_t without) noexcept nogil   # ROW_OWES, ROW_MISSED
cdef void row_let_go(Regions *regions, topic_slot *topic, segment_row *row) noexcept nogil   # all of it is deleted: it leads nowhere any more
cdef void row_unmark(Regions *regions, topic_slot *topic, segment_row *row, uint32_t flagged) noexcept nogil   # its flag bytes are set
