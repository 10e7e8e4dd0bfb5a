# Jobs whose bytes the disk has damaged: they leave the live count, and the loss is told.
#
# A claim grants jobs by the index; only the worker that shows them reads their bytes. What it cannot read is reported (work.pyx), the writer
# looks for itself, and takes the job out with a LEASE frame of verb LEASE_LOST. A reader gets `corrupt` for it while it stands in its segment. When
# the topic's front passes it, the writer has to look again at what is deleted there, to make it part of the floor: rows with such jobs are marked
# for that. The mark is in the row, so snapshots have it; replay of the frame sets it, too. In the unsealed log (log_damage.pxd) the frame alone
# tells of it: the next start finds a hole there.
#
# Owner: the writer.
from libc.stdint cimport uint64_t

from topicsd._native.index cimport index_at
from topicsd._native.layout cimport INDEX_HOLE, LOSS_CORRUPT, ROW_HOLES, index_entry, segment_row, topic_slot
from topicsd._native.log_damage cimport is_in_damage
from topicsd._native.regions cimport Regions
from topicsd._native.sealed cimport ROW_LOST, Rows, row_at, rows_of_topic, sealed_entry

cdef inline bint is_corrupt(const Regions *regions, const topic_slot *topic, uint64_t seq) noexcept nogil:
    """Whether a record can not be read, now: its bytes are there and are not what was written, or they are gone."""
    cdef Rows rows
    cdef index_entry entry
    cdef const index_entry *tail
    if seq > topic.sealed_through:
        tail = index_at(regions, topic, seq)
        return tail != NULL and is_in_damage(regions, tail)
    rows_of_topic(regions, topic, &rows)
    if sealed_entry(regions, &rows, seq, &entry) != 0:
        return False
    return entry.flags & INDEX_HOLE and (entry.flags >> 8) & 0xFF == LOSS_CORRUPT


cdef inline void mark_lost(Regions *regions, topic_slot *topic, uint64_t seq) noexcept nogil:
    cdef segment_row *row = row_at(regions, topic, seq)
    if row == NULL or row.file == 0:
        return
    if not row.flags & ROW_HOLES:
        topic.sealed_holes += 1    # rows with holes: whoever moves the front looks closely
    row.flags |= ROW_HOLES | ROW_LOST


cdef inline bint was_lost(Regions *regions, topic_slot *topic, uint64_t seq) noexcept nogil:
    """Whether a deleted record may be one of those."""
    cdef const segment_row *row
    if seq > topic.sealed_through:
        return False
    row = row_at(regions, topic, seq)
    return row != NULL and row.flags & ROW_LOST and is_corrupt(regions, topic, seq)
