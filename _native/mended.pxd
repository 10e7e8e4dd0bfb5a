# Indexes that this process has made again from sound data, because the one on the disk is damaged or gone: what a reader goes by until the keeper
# has replaced the file (topicsd/upkeep.py), and where it can not (no room, data that is damaged too).
#
#   sealed.pyx  finds an index that can not be believed  ->  mended_make walks the data part  ->  an index part in memory, opened like a map
#
# No seq of the range goes missing by that: where no frame stands it has a hole with reason `corrupt`, as the keeper's has.
# One is believed for as long as marks are (segment_maps.pxd), or for twenty times what it took to make, whichever is longer: a file may be put back.
#
# Owner: one thread of one process. Nothing is shared.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from topicsd._native.layout cimport segment_row
from topicsd._native.segment cimport SegmentPart

cdef enum:
    MENDED_BYTES_MAX = 64 << 20  # kept from one read to the next

cdef struct Mended:
    Mended *next
    uint64_t serial, topic_id, first_seq, last_seq, data_at    # which segment, where: all that it was made from, whoever had it from a stale row
    uint8_t *at                             # NULL: nothing can be made of its data, `failure` says why
    uint64_t bytes
    int failure                             # 0: there is no frame of it; -EIO: a page of the data can not be read now
    uint64_t used                           # the turn it was last handed out in: it stays until the next one
    uint64_t until_ns

cdef struct MendedList:
    Mended *newest

cdef Mended *mended_find(MendedList *list, uint64_t serial, uint64_t topic_id, const segment_row *row, uint64_t turn) noexcept nogil    # NULL: none
# Walk the data part of the row's segment. NULL: no memory. Runs its loads under the SIGBUS guard.
cdef Mended *mended_make(MendedList *list, const SegmentPart *data, uint64_t serial, uint64_t topic_id, const segment_row *row,
                         uint64_t turn) noexcept nogil
cdef void mended_trim(MendedList *list, uint64_t turn) noexcept nogil    # a read begins: what is too old or too much goes
cdef void mended_clear(MendedList *list) noexcept nogil
