# The tail index: one 24 B entry for each record of a topic, by arithmetic from its seq.
#
#   small   index_offset -> [ entry | entry | ... ]            up to INDEX_SMALL_MAX entries; entry of seq = seq - index_base
#   paged   index_offset -> [ u32 page | u32 page | ... ]      page of seq = (seq - index_base) / INDEX_PAGE_ENTRIES
#                               |                              0 no page; 1..7 a page inside a hole, the number is its loss_reason;
#                               +-> [ 1024 entries ]           else the page stands at number * 4096
#
# Slabs and pages come from slabs.pxd. A page number that was freed becomes 0; the directory is shifted later.
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
# What stands in sealed segments (seq <= sealed_through) is asked for here too and comes from sealed.pxd: an entry that index_at gives there is a copy
# in this process, good until the next call; one that view_entries gives has its record's address (SOURCE_SEGMENT), good until the next sealed_turn.
# Entries of sealed seqs may still stand in the tail's last page: nobody looks at them.
#
# Owner: the writer.
from libc.stdint cimport uint32_t, uint64_t

from topicsd._native.layout cimport index_entry, topic_slot
from topicsd._native.regions cimport Regions
from topicsd._native.table cimport TopicView

# ---- the writer
cdef void index_reset(Regions *regions) noexcept nogil
cdef int index_append(Regions *regions, topic_slot *topic, uint64_t seq, const index_entry *entries, uint32_t count) noexcept nogil
cdef int index_hole(Regions *regions, topic_slot *topic, uint64_t first, uint64_t last, uint32_t reason) noexcept nogil
# NULL out of range (below index_base, above head) and in a whole page of a hole (then index_hole_reason is not 0)
cdef index_entry *index_at(const Regions *regions, const topic_slot *topic, uint64_t seq) noexcept nogil
cdef uint32_t index_hole_reason(const Regions *regions, const topic_slot *topic, uint64_t seq) noexcept nogil   # 0: `seq` is in no hole
cdef void index_trim(Regions *regions, topic_slot *topic, uint64_t below_seq) noexcept nogil
cdef void index_drop(Regions *regions, topic_slot *topic) noexcept nogil

# ---- any process; check view_still afterwards
# 0, VIEW_BUSY, or -EIO: a page of a segment that cannot be read now. What stands in damage of the log is a hole (log_damage.pxd).
cdef int view_entries(const Regions *regions, const TopicView *view, uint64_t first_seq, uint32_t count, index_entry *out) noexcept nogil
# The same without the addresses of sealed records: their data is not touched.
cdef int view_flags(const Regions *regions, const TopicView *view, uint64_t first_seq, uint32_t count, index_entry *out) noexcept nogil
# First seq >= from_seq (and >= index_base) with ts at or above `ts`, head + 1 when there is none. A hole counts as old as what precedes it.
cdef uint64_t view_lower_bound_ts(const Regions *regions, const TopicView *view, uint64_t from_seq, uint64_t ts) noexcept nogil
# First seq, not below `low`, of the hole that ends at `seq`; seq + 1 when `seq` is in no hole.
cdef uint64_t view_hole_start(const Regions *regions, const TopicView *view, uint64_t seq, uint64_t low) noexcept nogil
# Last seq of a part of a hole that has one reason and is found in one step (an entry, or a page); 0: no hole there, or stale. `damage`: what
# can not be read counts too.
cdef uint64_t view_hole_part(const Regions *regions, const TopicView *view, uint64_t seq, bint damage, uint32_t *reason) noexcept nogil
# Last seq of the hole that holds `seq`, whatever its reasons (the first one is told); 0 when `seq` is in no hole or out of range.
cdef uint64_t view_hole_end(const Regions *regions, const TopicView *view, uint64_t seq, uint32_t *reason) noexcept nogil
