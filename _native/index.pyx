"""The tail index (see index.pxd)."""

from libc.errno cimport EINVAL, ENOMEM
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove, memset

from topicsd._native.atomics cimport load_acquire_32, load_relaxed_64, store_relaxed_64, store_release_32, store_release_64
from topicsd._native.layout cimport INDEX_HOLE, INDEX_PAGE_ENTRIES, INDEX_SMALL_MAX, index_entry, segment_row, topic_slot
from topicsd._native.log_damage cimport hide_damaged
from topicsd._native.regions cimport Regions, Shared
from topicsd._native.sealed cimport Rows, row_of, rows_of_view, sealed_at, sealed_entries, sealed_lower_bound_ts
from topicsd._native.slabs cimport (
    INDEX_HEADER_BYTES, INDEX_PAGE_BYTES, INDEX_UNIT_BYTES, SLAB_MIN_SHIFT, is_page, page_give, page_take, slab_class_for, slab_give, slab_take,
    slabs_reset,
)
from topicsd._native.table cimport VIEW_BUSY, VIEW_GONE, sched_yield, slot_lock, slot_unlock, view_still, view_take

cdef enum:
    FIRST_CLASS = 0                # 64 B: two entries, what an idle topic costs
    SMALL_AGAIN = 32               # paged with so few live entries becomes small again
    DROP_PAGES = 64                # pages freed under one lock


cdef void index_reset(Regions *regions) noexcept nogil:
    slabs_reset(regions)


# ---- where an entry stands --------------------------------------------------------------------------------------------------


cdef inline uint32_t *_directory(const Regions *regions, const topic_slot *topic) noexcept nogil:
    return <uint32_t *>(regions.index + topic.index_offset)


cdef inline index_entry *_page(const Regions *regions, uint32_t page) noexcept nogil:
    return <index_entry *>(regions.index + <uint64_t>page * INDEX_UNIT_BYTES)


cdef index_entry *_place(const Regions *regions, const topic_slot *topic, uint64_t seq) noexcept nogil:
    cdef uint64_t number = seq - topic.index_base
    cdef uint32_t page
    if not topic.index_paged:
        return <index_entry *>(regions.index + topic.index_offset) + number if number < topic.index_capacity else NULL
    if number // INDEX_PAGE_ENTRIES >= topic.index_capacity:
        return NULL
    page = _directory(regions, topic)[number // INDEX_PAGE_ENTRIES]
    return _page(regions, page) + number % INDEX_PAGE_ENTRIES if is_page(page) else NULL


cdef inline index_entry *_tail_at(const Regions *regions, const topic_slot *topic, uint64_t seq) noexcept nogil:
    if seq < topic.index_base or seq > topic.head:
        return NULL
    return _place(regions, topic, seq)


cdef index_entry *index_at(const Regions *regions, const topic_slot *topic, uint64_t seq) noexcept nogil:
    if seq <= topic.sealed_through:
        return <index_entry *>sealed_at(regions, topic, seq)
    return _tail_at(regions, topic, seq)


cdef inline uint64_t _tail_first(const topic_slot *topic) noexcept nogil:
    """First seq that somebody may ask the tail index for."""
    return max(topic.earliest, topic.sealed_through + 1)


cdef uint32_t index_hole_reason(const Regions *regions, const topic_slot *topic, uint64_t seq) noexcept nogil:
    if seq <= topic.sealed_through:
        return _reason_of(sealed_at(regions, topic, seq))
    return _tail_hole_reason(regions, topic, seq)


cdef inline uint32_t _reason_of(const index_entry *entry) noexcept nogil:
    return (entry.flags >> 8) & 0xFF if entry != NULL and entry.flags & INDEX_HOLE else 0


cdef uint32_t _tail_hole_reason(const Regions *regions, const topic_slot *topic, uint64_t seq) noexcept nogil:
    cdef const index_entry *entry = _tail_at(regions, topic, seq)
    cdef uint64_t number = seq - topic.index_base
    cdef uint32_t page
    if entry != NULL:
        return (entry.flags >> 8) & 0xFF if entry.flags & INDEX_HOLE else 0
    if not topic.index_paged or seq < topic.index_base or seq > topic.head or number // INDEX_PAGE_ENTRIES >= topic.index_capacity:
        return 0
    page = _directory(regions, topic)[number // INDEX_PAGE_ENTRIES]
    return 0 if is_page(page) else page


# ---- growth -----------------------------------------------------------------------------------------------------------------


cdef uint64_t _holes_ending(const Regions *regions, const topic_slot *topic, uint64_t seq, uint64_t below_seq) noexcept nogil:
    """Count the holes that end in [seq, below_seq): those whose next seq is none. All of it must be in the index still."""
    cdef uint64_t count = 0
    cdef bint inside = False, hole
    if topic.holes == 0:
        return 0
    while seq < below_seq:
        hole = _tail_hole_reason(regions, topic, seq) != 0
        count += inside and not hole
        inside = hole
        seq += 1 if _tail_at(regions, topic, seq) != NULL else INDEX_PAGE_ENTRIES - (seq - topic.index_base) % INDEX_PAGE_ENTRIES
    return count + (inside and _tail_hole_reason(regions, topic, below_seq) == 0)


cdef void _rebase_small(Regions *regions, topic_slot *topic, uint64_t base, uint64_t end) noexcept nogil:
    """Drop the entries below `base` of a small index that ends before `end`."""
    cdef index_entry *entries = <index_entry *>(regions.index + topic.index_offset)
    cdef uint64_t ended = _holes_ending(regions, topic, topic.index_base, base)
    slot_lock(topic)
    memmove(entries, entries + (base - topic.index_base), (end - base) * sizeof(index_entry))
    topic.index_base = base
    store_relaxed_64(&topic.holes, topic.holes - min(ended, topic.holes))
    slot_unlock(topic)


cdef inline uint32_t _small_capacity(uint32_t slab_class) noexcept nogil:
    return <uint32_t>min((<uint64_t>1 << (SLAB_MIN_SHIFT + slab_class)) // sizeof(index_entry), <uint64_t>INDEX_SMALL_MAX)


cdef int _grow_small(Regions *regions, topic_slot *topic, uint64_t seq, uint64_t wanted) noexcept nogil:
    """Move a small index that ends before `seq` to a slab that holds `wanted` entries."""
    cdef uint32_t slab_class = topic.index_class + 1 if topic.index_capacity else <uint32_t>FIRST_CLASS
    cdef uint32_t old_class = topic.index_class, old_capacity = topic.index_capacity
    cdef uint64_t offset, old = topic.index_offset
    while _small_capacity(slab_class) < wanted:
        slab_class += 1
    offset = slab_take(regions, slab_class)
    if offset == 0:
        return -ENOMEM
    if old_capacity:
        memcpy(regions.index + offset, regions.index + old, (seq - topic.index_base) * sizeof(index_entry))
    slot_lock(topic)
    if old_capacity == 0:
        topic.index_base = seq
    topic.index_offset = offset
    topic.index_capacity = _small_capacity(slab_class)
    topic.index_class = <uint8_t>slab_class
    topic.index_paged = 0
    slot_unlock(topic)
    if old_capacity:
        slab_give(regions, old, old_class)
    return 0


cdef int _make_directory(Regions *regions, topic_slot *topic, uint64_t seq, uint64_t pages) noexcept nogil:
    """Give the topic a directory for `pages` pages: turn a small index that ends before `seq` into a paged one, or grow the directory."""
    cdef uint32_t slab_class = slab_class_for(pages * sizeof(uint32_t)), old_class = topic.index_class, old_capacity = topic.index_capacity
    cdef uint64_t offset, old = topic.index_offset
    cdef uint32_t first = 0
    cdef bint paged = topic.index_paged
    if pages > <uint64_t>1 << 32:
        return -ENOMEM
    offset = slab_take(regions, slab_class)
    if offset == 0:
        return -ENOMEM
    memset(regions.index + offset, 0, (<uint64_t>1 << (SLAB_MIN_SHIFT + slab_class)))
    if paged:
        memcpy(regions.index + offset, regions.index + old, old_capacity * sizeof(uint32_t))
    elif old_capacity and seq > topic.index_base:
        first = page_take(regions)
        if first == 0:
            slab_give(regions, offset, slab_class)
            return -ENOMEM
        memcpy(_page(regions, first), regions.index + old, (seq - topic.index_base) * sizeof(index_entry))
        (<uint32_t *>(regions.index + offset))[0] = first
    slot_lock(topic)
    if old_capacity == 0:
        topic.index_base = seq
    topic.index_offset = offset
    topic.index_capacity = <uint32_t>((<uint64_t>1 << (SLAB_MIN_SHIFT + slab_class)) // sizeof(uint32_t))
    topic.index_class = <uint8_t>slab_class
    topic.index_paged = 1
    slot_unlock(topic)
    if old_capacity:
        slab_give(regions, old, old_class)
    return 0


cdef int _reach(Regions *regions, topic_slot *topic, uint64_t seq, uint64_t count) noexcept nogil:
    """Make room in the directory or the small slab for `count` entries from `seq` on, dropping dead ones before growing."""
    cdef uint64_t dead, pages, wanted = seq + count - topic.index_base
    cdef uint32_t grown
    if not topic.index_paged:
        if topic.index_capacity and wanted > topic.index_capacity:
            dead = min(_tail_first(topic), seq) - topic.index_base if _tail_first(topic) > topic.index_base else 0
            if dead * 8 >= topic.index_capacity and dead != 0 and wanted - dead <= topic.index_capacity:
                _rebase_small(regions, topic, topic.index_base + dead, seq)
                return 0
        if topic.index_capacity == 0:
            wanted = count
        if wanted <= topic.index_capacity:
            return 0
        if wanted <= INDEX_SMALL_MAX:
            return _grow_small(regions, topic, seq, wanted)
    pages = (wanted + INDEX_PAGE_ENTRIES - 1) // INDEX_PAGE_ENTRIES
    if topic.index_paged and pages <= topic.index_capacity:
        return 0
    grown = topic.index_capacity * 2 if topic.index_paged else <uint32_t>1
    return _make_directory(regions, topic, seq, max(pages, <uint64_t>grown))


cdef int index_append(Regions *regions, topic_slot *topic, uint64_t seq, const index_entry *entries, uint32_t count) noexcept nogil:
    cdef uint64_t number, part
    cdef uint32_t *directory
    cdef uint32_t page
    if count == 0:
        return 0
    if topic.index_capacity and seq < topic.index_base:
        return -EINVAL
    if _reach(regions, topic, seq, count) != 0:
        return -ENOMEM
    if not topic.index_paged:
        memcpy(_place(regions, topic, seq), entries, count * sizeof(index_entry))
        return 0
    directory = _directory(regions, topic)
    while count:
        number = seq - topic.index_base
        part = min(<uint64_t>count, INDEX_PAGE_ENTRIES - number % INDEX_PAGE_ENTRIES)
        page = directory[number // INDEX_PAGE_ENTRIES]
        if not is_page(page):
            page = page_take(regions)
            if page == 0:
                return -ENOMEM    # what has been written stands above the head: as if it were not there
            store_release_32(&directory[number // INDEX_PAGE_ENTRIES], page)
        memcpy(_page(regions, page) + number % INDEX_PAGE_ENTRIES, entries, part * sizeof(index_entry))
        seq += part
        entries += part
        count -= <uint32_t>part
    return 0


cdef int index_hole(Regions *regions, topic_slot *topic, uint64_t first, uint64_t last, uint32_t reason) noexcept nogil:
    cdef index_entry hole[64]
    cdef const index_entry *before
    cdef uint64_t seq = first, number
    cdef uint32_t part
    cdef bint joins
    if last < first:
        return 0
    if topic.index_capacity and first < topic.index_base:
        return -EINVAL
    if topic.earliest > topic.head:
        # Nothing is live, so the caller moves `earliest` and the floor over it: no reader looks inside.
        index_drop(regions, topic)
        slot_lock(topic)
        topic.index_base = last + 1
        slot_unlock(topic)
        return 0
    joins = index_hole_reason(regions, topic, first - 1) != 0
    before = index_at(regions, topic, first - 1)
    memset(hole, 0, sizeof(hole))
    for part in range(64):
        hole[part].flags = INDEX_HOLE | (reason & 0xFF) << 8
        hole[part].ts = before.ts if before != NULL else topic.last_write_ms
    if _reach(regions, topic, first, last - first + 1) != 0:
        return -ENOMEM
    while seq <= last:
        number = seq - topic.index_base
        if topic.index_paged and number % INDEX_PAGE_ENTRIES == 0 and last - seq >= INDEX_PAGE_ENTRIES - 1:
            if not is_page(_directory(regions, topic)[number // INDEX_PAGE_ENTRIES]):
                store_release_32(&_directory(regions, topic)[number // INDEX_PAGE_ENTRIES], reason)
                seq += INDEX_PAGE_ENTRIES
                continue
        part = <uint32_t>min(last - seq + 1, <uint64_t>64)
        part = <uint32_t>min(<uint64_t>part, INDEX_PAGE_ENTRIES - number % INDEX_PAGE_ENTRIES)
        if index_append(regions, topic, seq, hole, part) != 0:
            return -ENOMEM
        seq += part
    if not joins:
        store_relaxed_64(&topic.holes, topic.holes + 1)
    return 0


# ---- what leaves ------------------------------------------------------------------------------------------------------------


cdef void index_drop(Regions *regions, topic_slot *topic) noexcept nogil:
    cdef uint64_t offset = topic.index_offset
    cdef uint32_t capacity = topic.index_capacity, slab_class = topic.index_class, number
    cdef uint32_t *directory = _directory(regions, topic)
    cdef bint paged = topic.index_paged
    if capacity == 0:
        return
    slot_lock(topic)
    topic.index_base = topic.head + 1
    topic.index_offset = 0
    topic.index_capacity = 0
    topic.index_paged = 0
    topic.index_class = 0
    store_relaxed_64(&topic.holes, 0)
    slot_unlock(topic)
    if paged:
        for number in range(capacity):
            if is_page(directory[number]):
                page_give(regions, directory[number])
    slab_give(regions, offset, slab_class)


cdef bint _become_small(Regions *regions, topic_slot *topic, uint64_t base) noexcept nogil:
    """Copy the few entries from `base` on out of the pages. False if that cannot be: in a hole's mark, or short of memory."""
    cdef index_entry entries[SMALL_AGAIN]
    cdef const index_entry *entry
    cdef uint64_t count = topic.head + 1 - base, number, offset
    cdef uint32_t slab_class = 0
    for number in range(count):
        entry = _tail_at(regions, topic, base + number)
        if entry == NULL:
            return False
        entries[number] = entry[0]
    while _small_capacity(slab_class) < count:
        slab_class += 1
    offset = slab_take(regions, slab_class)
    if offset == 0:
        return False
    memcpy(regions.index + offset, entries, count * sizeof(index_entry))
    _replace_pages(regions, topic, base, offset, slab_class)
    return True


cdef void _replace_pages(Regions *regions, topic_slot *topic, uint64_t base, uint64_t offset, uint32_t slab_class) noexcept nogil:
    """Put a small slab in the place of the pages, in one locked step, and free those."""
    cdef const index_entry *entries = <const index_entry *>(regions.index + offset)
    cdef uint32_t *directory = _directory(regions, topic)
    cdef uint64_t old = topic.index_offset, holes = 0, number
    cdef uint32_t capacity = topic.index_capacity, old_class = topic.index_class
    cdef bint inside = False
    for number in range(topic.head + 1 - base):
        holes += entries[number].flags & INDEX_HOLE != 0 and not inside
        inside = entries[number].flags & INDEX_HOLE != 0
    slot_lock(topic)
    topic.index_base = base
    topic.index_offset = offset
    topic.index_capacity = _small_capacity(slab_class)
    topic.index_class = <uint8_t>slab_class
    topic.index_paged = 0
    store_relaxed_64(&topic.holes, holes)
    slot_unlock(topic)
    for number in range(capacity):
        if is_page(directory[number]):
            page_give(regions, directory[number])
    slab_give(regions, old, old_class)


cdef void _drop_pages(Regions *regions, topic_slot *topic, uint64_t top) noexcept nogil:
    """Free the pages below page `top`, all dead, from the lowest that still stands; shift the directory when a quarter of it is empty."""
    cdef uint32_t *directory = _directory(regions, topic)
    cdef uint32_t dropped[DROP_PAGES]
    cdef uint64_t first = top, count, number, ended
    while first > 0 and directory[first - 1] != 0:
        first -= 1
    while first < top:
        count = min(top - first, <uint64_t>DROP_PAGES)
        ended = _holes_ending(regions, topic, topic.index_base + first * INDEX_PAGE_ENTRIES,
                              topic.index_base + (first + count) * INDEX_PAGE_ENTRIES)
        memcpy(dropped, directory + first, count * sizeof(uint32_t))
        slot_lock(topic)
        memset(directory + first, 0, count * sizeof(uint32_t))
        store_relaxed_64(&topic.holes, topic.holes - min(ended, topic.holes))
        slot_unlock(topic)
        for number in range(count):
            if is_page(dropped[number]):
                page_give(regions, dropped[number])
        first += count
    if top * 4 >= topic.index_capacity:
        slot_lock(topic)
        memmove(directory, directory + top, (topic.index_capacity - top) * sizeof(uint32_t))
        memset(directory + topic.index_capacity - top, 0, top * sizeof(uint32_t))
        topic.index_base += top * INDEX_PAGE_ENTRIES
        slot_unlock(topic)


cdef void index_trim(Regions *regions, topic_slot *topic, uint64_t below_seq) noexcept nogil:
    cdef uint64_t end = topic.head + 1, dead
    below_seq = min(max(below_seq, topic.sealed_through + 1), end)
    if topic.index_capacity == 0 or below_seq <= topic.index_base:
        return
    dead = below_seq - topic.index_base
    if below_seq == end and (topic.index_paged or topic.index_capacity > _small_capacity(FIRST_CLASS + 1)):
        index_drop(regions, topic)    # nothing is live: an idle topic costs nothing
    elif not topic.index_paged:
        if dead * 2 >= end - topic.index_base:
            _rebase_small(regions, topic, below_seq, end)
    elif end - below_seq > SMALL_AGAIN or not _become_small(regions, topic, below_seq):
        if dead >= INDEX_PAGE_ENTRIES and _directory(regions, topic)[dead // INDEX_PAGE_ENTRIES - 1] != 0:
            _drop_pages(regions, topic, dead // INDEX_PAGE_ENTRIES)


# ---- readers ----------------------------------------------------------------------------------------------------------------


cdef inline const uint32_t *_view_directory(const Regions *regions, const TopicView *view) noexcept nogil:
    """The directory, or NULL when it would end outside the region."""
    if view.index_offset < INDEX_HEADER_BYTES or view.index_offset > regions.index_bytes:
        return NULL
    if <uint64_t>view.index_capacity * sizeof(uint32_t) > regions.index_bytes - view.index_offset:
        return NULL
    return <const uint32_t *>(regions.index + view.index_offset)


cdef inline const index_entry *_view_page(const Regions *regions, uint32_t page) noexcept nogil:
    if <uint64_t>page * INDEX_UNIT_BYTES > regions.index_bytes - INDEX_PAGE_BYTES:
        return NULL
    return <const index_entry *>(regions.index + <uint64_t>page * INDEX_UNIT_BYTES)


cdef inline const index_entry *_view_small(const Regions *regions, const TopicView *view) noexcept nogil:
    if view.index_offset < INDEX_HEADER_BYTES or view.index_offset > regions.index_bytes:
        return NULL
    if <uint64_t>view.index_capacity * sizeof(index_entry) > regions.index_bytes - view.index_offset:
        return NULL
    return <const index_entry *>(regions.index + view.index_offset)


cdef int view_entries(const Regions *regions, const TopicView *view, uint64_t first_seq, uint32_t count, index_entry *out) noexcept nogil:
    cdef uint32_t sealed
    cdef int status
    if first_seq <= view.sealed_through and count:
        sealed = <uint32_t>min(<uint64_t>count, view.sealed_through + 1 - first_seq)
        status = _view_both(regions, view, first_seq, count, out, True)
    else:
        sealed = 0
        status = _view_tail(regions, view, first_seq, count, out)
    if status == 0 and load_relaxed_64(&regions.control.log_damages) & 0xFFFF:
        status = hide_damaged(regions, out + sealed, count - sealed)
    return status


cdef int view_flags(const Regions *regions, const TopicView *view, uint64_t first_seq, uint32_t count, index_entry *out) noexcept nogil:
    if first_seq <= view.sealed_through and count:
        return _view_both(regions, view, first_seq, count, out, False)
    return _view_tail(regions, view, first_seq, count, out)


cdef int _view_both(const Regions *regions, const TopicView *view, uint64_t first_seq, uint32_t count, index_entry *out, bint records) noexcept nogil:
    cdef Rows rows
    cdef uint32_t sealed = <uint32_t>min(<uint64_t>count, view.sealed_through + 1 - first_seq)
    cdef int status = rows_of_view(regions, view, &rows)
    if status == 0:
        status = sealed_entries(regions, &rows, first_seq, sealed, out, records)
    if status == 0 and count > sealed:
        status = _view_tail(regions, view, first_seq + sealed, count - sealed, out + sealed)
    return status


cdef int _view_tail(const Regions *regions, const TopicView *view, uint64_t first_seq, uint32_t count, index_entry *out) noexcept nogil:
    cdef uint64_t number = first_seq - view.index_base, part, at
    cdef const uint32_t *directory
    cdef const index_entry *entries
    cdef uint32_t page
    if count == 0:
        return 0
    if first_seq < view.index_base or first_seq + count - 1 > view.head or first_seq + count < first_seq:
        return VIEW_BUSY
    if not view.index_paged:
        entries = _view_small(regions, view)
        if entries == NULL or number + count > view.index_capacity:
            return VIEW_BUSY
        memcpy(out, entries + number, count * sizeof(index_entry))
        return 0
    directory = _view_directory(regions, view)
    if directory == NULL or (number + count - 1) // INDEX_PAGE_ENTRIES >= view.index_capacity:
        return VIEW_BUSY
    while count:
        part = min(<uint64_t>count, INDEX_PAGE_ENTRIES - number % INDEX_PAGE_ENTRIES)
        page = load_acquire_32(&directory[number // INDEX_PAGE_ENTRIES])
        if page == 0:
            return VIEW_BUSY
        if is_page(page):
            entries = _view_page(regions, page)
            if entries == NULL:
                return VIEW_BUSY
            memcpy(out, entries + number % INDEX_PAGE_ENTRIES, part * sizeof(index_entry))
        else:
            memset(out, 0, part * sizeof(index_entry))
            for at in range(part):
                out[at].flags = INDEX_HOLE | page << 8
        number += part
        out += part
        count -= <uint32_t>part
    return 0


cdef uint64_t _view_ts(const Regions *regions, const TopicView *view, uint64_t number) noexcept nogil:
    """ts of entry `number`; inside a hole's pages that of the last entry before them, else of the first one after them."""
    cdef const uint32_t *directory
    cdef const index_entry *entries
    cdef uint64_t at = number // INDEX_PAGE_ENTRIES, end = (view.head - view.index_base) // INDEX_PAGE_ENTRIES
    cdef uint32_t page
    if not view.index_paged:
        entries = _view_small(regions, view)
        return entries[number].ts if entries != NULL and number < view.index_capacity else 0
    directory = _view_directory(regions, view)
    if directory == NULL or end >= view.index_capacity:
        return 0
    page = load_acquire_32(&directory[at])
    if is_page(page):
        entries = _view_page(regions, page)
        return entries[number % INDEX_PAGE_ENTRIES].ts if entries != NULL else 0
    while at > 0:
        at -= 1
        page = load_acquire_32(&directory[at])
        if page == 0:
            break
        if is_page(page):
            entries = _view_page(regions, page)
            return entries[INDEX_PAGE_ENTRIES - 1].ts if entries != NULL else 0
    while at <= end:
        page = load_acquire_32(&directory[at])
        if is_page(page):
            entries = _view_page(regions, page)
            return entries[0].ts if entries != NULL else 0
        at += 1
    return 0


cdef uint64_t view_lower_bound_ts(const Regions *regions, const TopicView *view, uint64_t from_seq, uint64_t ts) noexcept nogil:
    cdef uint64_t low, high = view.head + 1, middle
    cdef Rows rows
    if from_seq <= view.sealed_through and rows_of_view(regions, view, &rows) == 0 and rows.count:
        from_seq = sealed_lower_bound_ts(regions, &rows, from_seq, ts)
        if from_seq <= view.sealed_through:
            return from_seq
    low = max(max(from_seq, view.index_base), view.sealed_through + 1)
    while low < high:
        middle = low + (high - low) // 2
        if _view_ts(regions, view, middle - view.index_base) >= ts:
            high = middle
        else:
            low = middle + 1
    return low


cdef uint64_t view_hole_end(const Regions *regions, const TopicView *view, uint64_t seq, uint32_t *reason) noexcept nogil:
    cdef uint64_t end = 0, part
    cdef uint32_t other
    reason[0] = 0
    while True:
        part = view_hole_part(regions, view, seq, True, &other)
        if part == 0:
            return end
        if reason[0] == 0:
            reason[0] = other
        end = part
        seq = end + 1


cdef uint64_t view_hole_part(const Regions *regions, const TopicView *view, uint64_t seq, bint damage, uint32_t *reason) noexcept nogil:
    cdef index_entry entry
    cdef int status
    cdef const uint32_t *directory
    cdef uint64_t number = seq - view.index_base
    cdef Rows rows
    cdef const segment_row *row
    reason[0] = 0
    if seq > view.head:
        return 0
    status = view_entries(regions, view, seq, 1, &entry) if damage else view_flags(regions, view, seq, 1, &entry)
    if status != 0 or not entry.flags & INDEX_HOLE:
        return 0
    reason[0] = (entry.flags >> 8) & 0xFF
    if seq <= view.sealed_through:
        row = row_of(&rows, seq) if rows_of_view(regions, view, &rows) == 0 else NULL
        return row.last_seq if row != NULL and row.file == 0 else seq
    directory = _view_directory(regions, view)
    if view.index_paged and directory != NULL and not is_page(load_acquire_32(&directory[number // INDEX_PAGE_ENTRIES])):
        return min(seq + INDEX_PAGE_ENTRIES - 1 - number % INDEX_PAGE_ENTRIES, view.head)
    return seq


cdef uint64_t view_hole_start(const Regions *regions, const TopicView *view, uint64_t seq, uint64_t low) noexcept nogil:
    cdef index_entry entry
    cdef const uint32_t *directory = _view_directory(regions, view)
    cdef uint64_t number
    cdef Rows rows
    cdef const segment_row *row
    while seq >= low and view_flags(regions, view, seq, 1, &entry) == 0 and entry.flags & INDEX_HOLE:
        number = seq - view.index_base
        if seq <= view.sealed_through:
            row = row_of(&rows, seq) if rows_of_view(regions, view, &rows) == 0 else NULL
            if row != NULL and row.file == 0:
                seq = max(low, row.first_seq)
        elif view.index_paged and directory != NULL and not is_page(load_acquire_32(&directory[number // INDEX_PAGE_ENTRIES])):
            seq = max(low, seq - number % INDEX_PAGE_ENTRIES)
        seq -= 1
    return seq + 1


# ---- the Python face --------------------------------------------------------------------------------------------------------


cdef class Index:
    """The tail index of all topics. `append`, `hole`, `trim`, `drop` and `reset` are the writer's alone."""

    cdef readonly Shared shared

    def __init__(self, Shared shared not None):
        self.shared = shared

    cdef topic_slot *slot(self, uint32_t slot) except NULL:
        if slot >= self.shared.r.topics_max:
            raise IndexError(f"slot {slot}, at most {self.shared.r.topics_max - 1}")
        return &self.shared.r.table[slot]

    def append(self, uint32_t slot, uint64_t seq, list entries not None, bint publish=True):
        cdef topic_slot *topic = self.slot(slot)
        cdef index_entry *packed = <index_entry *>malloc((len(entries) or 1) * sizeof(index_entry))
        cdef int failure
        if packed == NULL:
            raise MemoryError
        try:
            for number, (position, size, flags, ts) in enumerate(entries):
                packed[<size_t>number].position = position
                packed[<size_t>number].bytes = size
                packed[<size_t>number].flags = flags
                packed[<size_t>number].ts = ts
            failure = index_append(&self.shared.r, topic, seq, packed, <uint32_t>len(entries))
        finally:
            free(packed)
        if failure == -EINVAL:
            raise ValueError(f"seq {seq} stands below the index")
        if failure != 0:
            raise MemoryError("the index region is full")
        if publish and entries:
            store_release_64(&topic.head, seq + len(entries) - 1)

    def hole(self, uint32_t slot, uint64_t first, uint64_t last, uint32_t reason, bint publish=True):
        cdef topic_slot *topic = self.slot(slot)
        if index_hole(&self.shared.r, topic, first, last, reason) != 0:
            raise MemoryError("the index region is full")
        if publish:
            store_release_64(&topic.head, last)

    def trim(self, uint32_t slot, uint64_t below_seq):
        cdef topic_slot *topic = self.slot(slot)
        if below_seq > topic.earliest:
            store_release_64(&topic.earliest, below_seq)
        index_trim(&self.shared.r, topic, below_seq)

    def drop(self, uint32_t slot):
        index_drop(&self.shared.r, self.slot(slot))

    def at(self, uint32_t slot, uint64_t seq):
        cdef const index_entry *entry = index_at(&self.shared.r, self.slot(slot), seq)
        return None if entry == NULL else (entry.position, entry.bytes, entry.flags, entry.ts)

    def hole_reason(self, uint32_t slot, uint64_t seq):
        return index_hole_reason(&self.shared.r, self.slot(slot), seq)

    def flag(self, uint32_t slot, uint64_t seq, uint32_t flags):
        cdef index_entry *entry = index_at(&self.shared.r, self.slot(slot), seq)
        if entry == NULL:
            raise KeyError(seq)
        entry.flags |= flags

    cdef int look(self, uint32_t slot, TopicView *view) except -1:
        cdef int status = view_take(&self.shared.r, slot, view)
        if status == VIEW_GONE:
            raise KeyError(slot)
        if status != 0:
            raise RuntimeError("the slot is locked")
        return 0

    def entries(self, uint32_t slot, uint64_t first_seq, uint32_t count):
        cdef TopicView view
        cdef index_entry *out = <index_entry *>malloc((count or 1) * sizeof(index_entry))
        cdef uint32_t number
        if out == NULL:
            raise MemoryError
        try:
            self.look(slot, &view)
            if view_entries(&self.shared.r, &view, first_seq, count, out) != 0 or not view_still(&self.shared.r, slot, &view):
                return None
            return [(out[number].position, out[number].bytes, out[number].flags, out[number].ts) for number in range(count)]
        finally:
            free(out)

    def tail(self, uint32_t slot, uint32_t count, uint32_t yields=0):
        cdef TopicView view
        cdef index_entry *out = <index_entry *>malloc((count or 1) * sizeof(index_entry))
        cdef uint64_t first
        cdef uint32_t number
        if out == NULL:
            raise MemoryError
        try:
            self.look(slot, &view)
            for _ in range(yields):
                sched_yield()
            first = max(view.earliest, view.head + 1 - min(view.head, <uint64_t>count))
            count = <uint32_t>(view.head + 1 - first) if first <= view.head else 0
            if view_entries(&self.shared.r, &view, first, count, out) != 0 or not view_still(&self.shared.r, slot, &view):
                return None
            entries = [(out[number].position, out[number].bytes, out[number].flags, out[number].ts) for number in range(count)]
            return view.topic_id, view.name[:view.name_bytes], first, entries
        finally:
            free(out)

    def lower_bound_ts(self, uint32_t slot, uint64_t from_seq, uint64_t ts):
        cdef TopicView view
        self.look(slot, &view)
        return view_lower_bound_ts(&self.shared.r, &view, from_seq, ts)

    def hole_end(self, uint32_t slot, uint64_t seq):
        cdef TopicView view
        cdef uint32_t reason = 0
        self.look(slot, &view)
        return view_hole_end(&self.shared.r, &view, seq, &reason), reason

    def hole_start(self, uint32_t slot, uint64_t seq, uint64_t low):
        cdef TopicView view
        self.look(slot, &view)
        return view_hole_start(&self.shared.r, &view, seq, low)

    def reset(self):
        index_reset(&self.shared.r)
