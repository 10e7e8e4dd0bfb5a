# The tail index: one 24 B entry for each record of a topic, by arithmetic from its seq.
#
#   small   index_offset -> [ entry | entry | ... ]            up to INDEX_SMALL_MAX entries; entry of seq = seq - index_base
#   paged   index_offset -> [ u32 page | u32 page | ... ]      page of seq = (seq - index_base) / INDEX_PAGE_ENTRIES
#                               |                              0 no page; 1..7 a page inside a hole, the number is its loss_reason;
#                               +-> [ 1024 entries ]           else the page stands at number * 4096
#
# The region begins with struct IndexHeader (the writer's allocator); slabs are powers of two from 64 B to 16 MiB, pages 24 KiB.
#
# word                             written by  order                               a stale read means
# an entry                         writer      before head (release)               nothing: it is above the head that was read
# an entry's INDEX_DELETED         writer      relaxed                             a record deleted a moment ago
# a page number                    writer      release, before head                nothing, as for an entry
# index_base, _offset, _capacity,  writer      under the slot's lock               the view is taken again
#   _paged, _class; a page number that goes; entries that move
#
# Memory is freed only after the lock has been let go: who has read from a slab that is used again finds another version. A reader never
# trusts an offset: each is held against the region's size, so the worst a stale one yields is a wrong entry that view_still refuses.
# Paged, index_base moves by whole pages. The index ends at `head` between two calls; the caller moves head after index_append and
# index_hole, and `earliest` before index_trim. What lies below `earliest` may also go when the index grows.
# Owner: the writer.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from topicsd._native.layout cimport index_entry, topic_slot
from topicsd._native.regions cimport Regions, Shared
from topicsd._native.table cimport TopicView

cdef enum:
    SLAB_CLASSES = 19              # 64 B << class
    SLAB_MIN_SHIFT = 6
    INDEX_HEADER_BYTES = 32768     # so that no page has a number below 8
    INDEX_UNIT_BYTES = 4096        # a page's number counts these
    INDEX_PAGE_BYTES = 24576
    SLAB_RUN_BYTES = 65536         # small slabs are carved from runs
    SLAB_PUNCH_MIN = 65536         # a freed slab from this size on gives its memory back, but for its first 4 KiB
    PAGES_RESIDENT_MAX = 256       # freed pages kept warm; more are given back

cdef struct IndexHeader:           # the writer's own; all zero is an empty region
    uint64_t used                  # bytes handed out from the front, 0 = INDEX_HEADER_BYTES
    uint64_t run_at, run_end       # what is left of the run
    uint64_t slabs[SLAB_CLASSES]   # free slabs by class, linked through their first word
    uint64_t resident              # free pages with memory, linked likewise
    uint64_t resident_count
    uint64_t stack                 # a free page that holds numbers of free pages without memory: u64 next stack, u64 count, u32 ...
    uint64_t bytes_in_use          # of slabs and pages that are not free
    uint64_t free_slot             # table.pyx: first free slot + 1

# ---- the writer
cdef void index_reset(Regions *regions) noexcept nogil
cdef int index_append(Regions *regions, topic_slot *topic, uint64_t seq, const index_entry *entries, uint32_t count) noexcept nogil
cdef int index_hole(Regions *regions, topic_slot *topic, uint64_t first, uint64_t last, uint32_t reason) noexcept nogil
# NULL out of range (below index_base, above head) and in a whole page of a hole (then index_hole_reason is not 0)
cdef index_entry *index_at(const Regions *regions, const topic_slot *topic, uint64_t seq) noexcept nogil
cdef uint32_t index_hole_reason(const Regions *regions, const topic_slot *topic, uint64_t seq) noexcept nogil   # 0: `seq` is in no hole
cdef void index_trim(Regions *regions, topic_slot *topic, uint64_t below_seq) noexcept nogil
cdef void index_drop(Regions *regions, topic_slot *topic) noexcept nogil
cdef uint64_t slab_take(Regions *regions, uint32_t slab_class) noexcept nogil                     # an offset, 0 when the region is full
cdef void slab_give(Regions *regions, uint64_t offset, uint32_t slab_class) noexcept nogil
cdef uint32_t slab_class_for(uint64_t bytes) noexcept nogil                                       # SLAB_CLASSES when too large

# ---- any process; check view_still afterwards
cdef int view_entries(const Regions *regions, const TopicView *view, uint64_t first_seq, uint32_t count, index_entry *out) noexcept nogil
# First seq >= from_seq (and >= index_base) with ts at or above `ts`, head + 1 when there is none. A hole counts as old as what precedes it.
cdef uint64_t view_lower_bound_ts(const Regions *regions, const TopicView *view, uint64_t from_seq, uint64_t ts) noexcept nogil
# Last seq of the hole that holds `seq`, whatever its reasons (the first one is told); 0 when `seq` is in no hole or out of range.
cdef uint64_t view_hole_end(const Regions *regions, const TopicView *view, uint64_t seq, uint32_t *reason) noexcept nogil


cdef class Index:
    cdef readonly Shared shared
