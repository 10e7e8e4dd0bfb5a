"""Damaged ranges of the log while the server runs (see log_damage.pxd)."""

from libc.stdint cimport UINT64_MAX, uint32_t, uint64_t

from topicsd._native.atomics cimport fence_acquire, load_acquire_64, load_relaxed_64, store_release_64
from topicsd._native.index cimport view_flags
from topicsd._native.layout cimport (
    INDEX_DELETED, INDEX_HOLE, LOG_DAMAGES_MAX, LOG_FILES_MAX, LOSS_CORRUPT, POSITION_BITS, SHARDS_MAX, index_entry, log_damage, log_file_row,
)
from topicsd._native.regions cimport Regions, Shared
from topicsd._native.sealed cimport INDEX_DAMAGED
from topicsd._native.table cimport VIEW_BUSY, TopicView, view_still, view_take

cdef enum:
    COUNT_BITS = 16
    LOOK = 256
    TRIES = 16


cdef inline uint32_t _count(uint64_t word) noexcept nogil:
    return min(<uint32_t>(word & ((1 << COUNT_BITS) - 1)), <uint32_t>LOG_DAMAGES_MAX)


cdef inline const log_damage *_ranges(const Regions *regions, uint64_t word) noexcept nogil:
    return &regions.control.log_damage[(word >> COUNT_BITS) & 1][0]


cdef bint _holds(const log_damage *ranges, uint32_t count, uint64_t position) noexcept nogil:
    cdef uint32_t low = 0, high = count, middle
    while low < high:
        middle = (low + high) // 2
        if ranges[middle].end <= position:
            low = middle + 1
        else:
            high = middle
    return low < count and ranges[low].first <= position


cdef inline bint _is_of_log(const index_entry *entry) noexcept nogil:
    return not entry.flags & (INDEX_HOLE | INDEX_DELETED) and entry.position >> POSITION_BITS < SHARDS_MAX


cdef int hide_damaged(const Regions *regions, index_entry *entries, uint32_t count) noexcept nogil:
    cdef uint64_t word = load_acquire_64(&regions.control.log_damages)
    cdef const log_damage *ranges = _ranges(regions, word)
    cdef uint32_t number
    for number in range(count):
        if _is_of_log(&entries[number]) and _holds(ranges, _count(word), entries[number].position):
            entries[number].position = 0
            entries[number].flags = INDEX_HOLE | <uint32_t>INDEX_DAMAGED | <uint32_t>LOSS_CORRUPT << 8
    fence_acquire()
    return 0 if load_relaxed_64(&regions.control.log_damages) == word else VIEW_BUSY


cdef bint is_in_damage(const Regions *regions, const index_entry *entry) noexcept nogil:
    cdef uint64_t word = load_acquire_64(&regions.control.log_damages)
    return _is_of_log(entry) and _holds(_ranges(regions, word), _count(word), entry.position)


def show(Shared shared not None, list ranges not None):
    cdef uint64_t word = load_relaxed_64(&shared.r.control.log_damages), changes = (word >> COUNT_BITS) + 1
    cdef log_damage *rows = &shared.r.control.log_damage[changes & 1][0]
    cdef uint32_t number, count = <uint32_t>min(len(ranges), <uint64_t>LOG_DAMAGES_MAX)
    ranges = sorted(ranges)
    if shown(shared) == ranges[:count]:
        return
    for number in range(count):
        rows[number].first, rows[number].end = ranges[number]
    store_release_64(&shared.r.control.log_damages, changes << COUNT_BITS | count)


def shown(Shared shared not None):
    cdef uint64_t word = load_acquire_64(&shared.r.control.log_damages)
    cdef const log_damage *rows = _ranges(&shared.r, word)
    cdef uint32_t number
    return [(rows[number].first, rows[number].end) for number in range(_count(word))]


cdef struct Lost:
    uint64_t topic_id, records, bytes


cdef int _lost_of(const Regions *regions, uint32_t slot, Lost *out) noexcept nogil:
    """Count what of a topic's live tail stands in damaged ranges. 0, or VIEW_BUSY."""
    cdef TopicView view
    cdef index_entry entries[LOOK]
    cdef uint64_t seq
    cdef uint32_t number, count
    cdef int _
    for _ in range(TRIES):
        out.records = out.bytes = 0
        if view_take(regions, slot, &view) != 0:
            return 0
        out.topic_id = view.topic_id
        seq = max(view.earliest, view.sealed_through + 1)
        while seq <= view.head:
            count = <uint32_t>min(view.head + 1 - seq, <uint64_t>LOOK)
            if view_flags(regions, &view, seq, count, entries) != 0:
                break
            for number in range(count):
                if is_in_damage(regions, &entries[number]):
                    out.records += 1
                    out.bytes += entries[number].bytes
            seq += count
        if seq > view.head and view_still(regions, slot, &view):
            return 0
    return VIEW_BUSY


def unreadable(Shared shared not None):
    cdef const Regions *regions = &shared.r
    cdef uint64_t slot, high = load_acquire_64(&regions.control.table_high)
    cdef Lost lost
    cdef list out = []
    if _count(load_acquire_64(&regions.control.log_damages)) == 0:
        return out
    lost.records = 0
    with nogil:
        for slot in range(high):
            if load_relaxed_64(&regions.table[slot].topic_id) == 0 or _lost_of(regions, <uint32_t>slot, &lost) != 0 or lost.records == 0:
                continue
            with gil:
                out.append((slot, lost.topic_id, lost.records, lost.bytes))
    return out


def begins(Shared shared not None, uint32_t shard):
    cdef const log_file_row *rows
    cdef uint64_t number, count
    if shard >= SHARDS_MAX:
        raise ValueError("no such shard")
    rows = shared.r.files + <uint64_t>shard * LOG_FILES_MAX
    count = load_acquire_64(&shared.r.control.shards[shard].files)
    for number in range(count):
        if not load_acquire_64(&rows[number].retired):
            return rows[number].first_position
    return UINT64_MAX
