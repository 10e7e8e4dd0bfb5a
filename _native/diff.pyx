"""A diff's JSON body, from the view of a topic to the last byte (see diff.pxd)."""

from libc.errno cimport EIO
from libc.stdint cimport uintptr_t
from libc.string cimport memcmp, memcpy, memset

from topicsd._native.atomics cimport add_64, clock_mono_ns, fence_acquire, load_acquire_64, load_relaxed_64, store_relaxed_64
from topicsd._native.copies cimport ORIGIN_BYTES_MAX, copy_payload, origin_find, put_shown, shows_node, shows_tag, wait_for_copies
from topicsd._native.frame cimport entry_bytes, entry_node, entry_payload_bytes, entry_tag
from topicsd._native.index cimport view_entries, view_hole_part, view_hole_start, view_lower_bound_ts
from topicsd._native.layout cimport (
    ENTRY_FLAG_EXT, INDEX_DELETED, INDEX_HOLE, INDEX_ORIGIN, LOSS_MIXED, LOSS_RECREATED, MATCH_EQ, MATCH_NONE, POSITION_BITS, POSITION_MASK,
    SOURCE_EPHEMERAL, TOPIC_DEDUPE_NODE, entry_ext, record_entry,
)
from topicsd._native.log_verify cimport log_verified, trust_begin
from topicsd._native.maps cimport MAPS_MAX, Map, for_want_of_room, guarded_call, map_found, maps_drop_all, maps_init, maps_refresh
from topicsd._native.render cimport (
    PERFORMANCE_BYTES_MAX, RECORD_BYTES_MAX, TOMBSTONE_BYTES_MAX, buffer_free, buffer_need, put_bool, put_bytes, put_ms,
    put_text, put_tombstone, put_u64,
)
from topicsd._native.scan cimport diff_match, diff_node
from topicsd._native.sealed cimport sealed_doubt, sealed_met, sealed_tell, sealed_turn
from topicsd._native.segment cimport SOURCE_SEGMENT, segment_frame_is
from topicsd._native.state cimport (
    READ_BUSY, READ_GONE, READ_IO, READ_MEMORY, READ_OK, READ_STALE, floors_take, loss_reason_of, touch_topic,
)
from topicsd._native.table cimport VIEW_GONE, view_still, view_take

cdef enum:    # what happened to one entry of a page
    STEP_ON = 0
    STEP_END = 1
    STEP_JUMP = 2     # the cursor has left the copied entries behind


cdef int reader_init(ReaderCore *reader, Regions *regions, const char *data_dir, uint64_t limit_max) noexcept nogil:
    memset(reader, 0, sizeof(ReaderCore))
    reader.regions = regions
    reader.limit_max = max(limit_max, <uint64_t>1)
    return maps_init(&reader.maps, regions, data_dir, MAPS_MAX)


cdef void reader_free(ReaderCore *reader) noexcept nogil:
    maps_drop_all(&reader.maps)
    buffer_free(&reader.scratch)


# ---- one record -----------------------------------------------------------------------------------------------------------


cdef inline bint _sound(const record_entry *record, uint64_t available, const index_entry *entry) noexcept nogil:
    """The record lies inside what there is and is as large as its index entry says."""
    cdef uint64_t payload_bytes = copy_payload(record, entry)
    cdef uint64_t parts = sizeof(record_entry) + payload_bytes + (sizeof(entry_ext) if record.length_flags & ENTRY_FLAG_EXT else 0)
    return entry_bytes(record) <= available and parts <= entry_bytes(record) and entry_payload_bytes(record) == payload_bytes


cdef const record_entry *_ephemeral(Page *page, const index_entry *entry, uint64_t position) noexcept nogil:
    """Copy a record that may vanish, then look at the copy."""
    cdef const Regions *regions = page.reader.regions
    cdef uint64_t wanted = sizeof(record_entry) + sizeof(entry_ext) + 8 + entry.bytes
    cdef const record_entry *record
    if position >= regions.ephemeral_bytes or regions.ephemeral_bytes - position < sizeof(record_entry):
        return NULL
    wanted = min(wanted, regions.ephemeral_bytes - position)
    page.reader.scratch.used = 0
    if buffer_need(&page.reader.scratch, wanted) != 0:
        return NULL
    if page.ephemeral_first == 0:
        page.ephemeral_first = page.reading
    memcpy(page.reader.scratch.bytes, regions.ephemeral + position, wanted)
    record = <const record_entry *>page.reader.scratch.bytes
    return record if _sound(record, wanted, entry) else NULL


cdef bint _enter(Page *page, uint64_t shard, uint64_t position) noexcept nogil:
    """Have the span begin with a record of a log file. False: it is not there, or not as it was written."""
    cdef Span *span = &page.span
    cdef Map *found
    span.first = span.end = 0
    if span.map.base == NULL or span.map.shard != shard or position - span.map.first_position >= span.map.bytes:
        span.map.base = NULL
        found = map_found(&page.reader.maps, <uint32_t>shard, position)
        if found == NULL:
            return False
        trust_begin(found)
        span.map = found[0]
    if span.now_ns == 0:
        span.now_ns = clock_mono_ns()
    if not log_verified(&span.map, position, span.now_ns, &span.end):
        span.end = 0
        return False
    span.first = position
    return True


cdef const record_entry *_locate(Page *page, uint64_t seq, const index_entry *entry) noexcept nogil:
    """The record that an index entry points at, or NULL when it is not there as the entry says."""
    cdef uint64_t shard = entry.position >> POSITION_BITS, position = entry.position & POSITION_MASK, available
    cdef const record_entry *record
    cdef Span *span = &page.span
    if shard == SOURCE_EPHEMERAL:
        return _ephemeral(page, entry, position)
    if shard == SOURCE_SEGMENT:    # sealed.pxd has verified it, a while ago
        record = <const record_entry *><uintptr_t>position
        return record if segment_frame_is(record, seq, entry) else NULL
    if not (span.first <= position < span.end and span.map.shard == shard) and not _enter(page, shard, position):
        return NULL
    available = span.map.bytes - (position - span.map.first_position)
    record = <const record_entry *>(span.map.base + (position - span.map.first_position))
    if available < sizeof(record_entry) or not _sound(record, available, entry):
        return NULL
    return record


cdef bint _wanted(const Page *page, const record_entry *record, uint32_t flags) noexcept nogil:
    """This reader takes the record: it is none of its own nodes' and its tag matches."""
    cdef const DiffRequest *request = page.request
    cdef uint32_t number
    if page.filter_nodes and shows_node(record, flags):
        for number in range(request.node_count):
            if request.nodes[number].bytes == record.node_bytes and memcmp(diff_node(request, number), entry_node(record), record.node_bytes) == 0:
                return False
    if request.match_kind == MATCH_NONE:
        return True
    if not shows_tag(record, flags):
        return False
    if record.tag_bytes < request.match.bytes or (request.match_kind == MATCH_EQ and record.tag_bytes != request.match.bytes):
        return False
    return memcmp(diff_match(request), entry_tag(record), request.match.bytes) == 0


# ---- a page ---------------------------------------------------------------------------------------------------------------


cdef int _cross_hole(Page *page, uint64_t seq) noexcept nogil:
    """Begin the page with the tombstone of the hole at `seq`: up to its last contiguous seq, reasons merged."""
    cdef index_entry entry
    cdef uint64_t at = seq, end
    cdef uint32_t reason = 0, other
    cdef int status
    cdef uint64_t most = page.floors.head if page.whole else min(page.floors.head, max(seq, page.end))    # one record is asked for, not the gap
    while at <= most:
        end = min(view_hole_part(page.reader.regions, &page.view, at, True, &other), most)
        if end == 0:
            status = view_entries(page.reader.regions, &page.view, at, 1, &entry)
            if status == -EIO and at == seq:
                return -EIO
            if status != 0 and status != -EIO:    # what is behind the hole may be in the cold tier: the next page fetches it
                return READ_STALE
            break
        reason = other if reason == 0 or reason == other else <uint32_t>LOSS_MIXED
        at = end + 1
    page.tombstone.gap_from = seq
    page.tombstone.gap_to = at - 1
    page.tombstone.reason = reason if reason else <uint32_t>LOSS_MIXED
    page.cursor = at - 1
    return READ_OK


cdef int _step(Page *page, uint64_t seq, const index_entry *entry, int *step) noexcept nogil:
    cdef const record_entry *record
    cdef uint8_t *at
    step[0] = STEP_END
    if entry.flags & INDEX_HOLE:
        if page.matched or page.tombstone.reason:
            return READ_OK    # this page ends before the hole, the next one begins with it
        step[0] = STEP_JUMP
        return _cross_hole(page, seq)
    if page.scanned >= page.scanned_max:
        return READ_OK
    if not entry.flags & INDEX_DELETED:
        store_relaxed_64(&page.reading, seq)    # in memory before the load that may fault
        record = _locate(page, seq, entry)
        if record == NULL:
            if entry.position >> POSITION_BITS != SOURCE_SEGMENT:
                return READ_IO
            sealed_doubt(page.reader.regions, &page.view, seq)
            return READ_STALE
        if _wanted(page, record, entry.flags):
            if page.matched and page.payload + entry.bytes > page.payload_max:
                return READ_OK
            if buffer_need(page.out, entry_payload_bytes(record) + <uint64_t>(RECORD_BYTES_MAX + ORIGIN_BYTES_MAX)) != 0:
                return READ_MEMORY
            at = page.out.bytes + page.out.used
            if page.matched:
                at[0] = 44
                at += 1
            if entry.flags & INDEX_ORIGIN:
                origin_find(page.reader.regions, page.origins, seq, &page.origin)
                if page.origin.text_bytes == 0:
                    return READ_STALE
            at = put_shown(at, &page.text, seq, entry, record, &page.origin, page.request.include_tags, page.request.include_data,
                           page.request.include_meta)
            page.out.used = at - page.out.bytes
            page.whole_used = page.out.used
            page.payload += entry.bytes
            page.matched += 1
    page.scanned += 1
    page.cursor = seq
    step[0] = STEP_END if page.matched >= page.limit else STEP_ON
    return READ_OK


cdef int _fill(void *argument) noexcept nogil:
    cdef Page *page = <Page *>argument
    cdef int status = _fill_page(page)
    page.faulted = False
    return status


cdef int _fill_page(Page *page) noexcept nogil:
    """Render records behind the cursor until the page is full or the head is reached. Runs inside `guarded_call`."""
    cdef int status, step = STEP_ON
    cdef uint32_t number, count
    cdef uint64_t first
    while step != STEP_END and page.cursor < page.end:
        first = page.cursor + 1
        count = <uint32_t>min(page.end - page.cursor, <uint64_t>PAGE_ENTRIES)
        count = <uint32_t>min(<uint64_t>count, max(page.limit - page.matched, <uint64_t>16))    # a small page copies few entries
        status = view_entries(page.reader.regions, &page.view, first, count, page.entries)
        if status != 0:
            return status if status == -EIO else READ_STALE
        for number in range(count):
            status = _step(page, first + number, &page.entries[number], &step)
            if status != READ_OK:
                return status
            if step != STEP_ON:
                break
    return READ_OK


cdef int _begin(Page *page, uint32_t slot, uint64_t topic_id, uint64_t now_ms) noexcept nogil:
    """Take the view and the floors, find where to start and what was lost before it (D §5.4, §5.5)."""
    cdef const DiffRequest *request = page.request
    cdef const Regions *regions = page.reader.regions
    cdef Floors *floors = &page.floors
    cdef uint64_t from_seq = request.from_seq, begin
    cdef bint recreated
    cdef int status = view_take(regions, slot, &page.view)
    page.origins = load_relaxed_64(&regions.table[slot].origins)    # counts only if view_still says so
    if load_acquire_64(&regions.control.ready) == 0:
        return READ_BUSY
    if status != 0:
        return READ_GONE if status == VIEW_GONE else READ_STALE
    if topic_id != 0 and page.view.topic_id != topic_id:
        return READ_GONE
    status = floors_take(regions, slot, &page.view, now_ms, False, floors)
    if status != READ_OK:
        return status
    memset(&page.tombstone, 0, sizeof(Tombstone))
    recreated = from_seq > floors.head or (request.has_epoch and request.epoch != page.view.topic_id)
    if recreated:
        from_seq = floors.earliest - 1
    if request.has_from_ts and floors.earliest <= floors.head:
        begin = view_lower_bound_ts(regions, &page.view, floors.earliest, request.from_ts)
        if begin > floors.earliest:    # what was lost right before it may be as young as it: nobody knows, so it is told
            begin = view_hole_start(regions, &page.view, min(begin, floors.head + 1) - 1, floors.earliest)
        if begin > floors.earliest:    # a retained record is older than from_ts, so every lost one is
            from_seq = max(from_seq, min(begin, floors.head + 1) - 1)
    if recreated:
        page.tombstone.reason = LOSS_RECREATED
        page.tombstone.gap_from = 1
        page.tombstone.gap_to = floors.head
    elif from_seq + 1 < floors.evict_floor:
        page.tombstone.gap_from = from_seq + 1
        page.tombstone.gap_to = floors.evict_floor - 1
        page.tombstone.reason = loss_reason_of(floors, from_seq + 1)
    page.cursor = max(from_seq, floors.earliest - 1)
    page.filter_nodes = request.node_count != 0 and page.view.config.flags & TOPIC_DEDUPE_NODE
    page.matched = page.scanned = page.payload = 0
    page.ephemeral_first = 0
    page.span.map.base = NULL
    page.span.first = page.span.end = page.span.now_ns = 0
    return READ_OK


cdef int _head_of_page(Page *page) noexcept nogil:
    cdef uint8_t *at
    if buffer_need(page.out, <uint64_t>512) != 0:
        return READ_MEMORY
    at = page.out.bytes + page.out.used
    at = put_bytes(put_text(at, b'{"topic":"'), page.view.name, page.view.name_bytes)
    at = put_text(at, b'","records":[')
    page.out.used = at - page.out.bytes
    return READ_OK


cdef int _tail_of_page(Page *page, uint64_t started_ns) noexcept nogil:
    cdef uint8_t *at
    cdef uint64_t head = page.floors.head
    if buffer_need(page.out, <uint64_t>(256 + TOMBSTONE_BYTES_MAX + PERFORMANCE_BYTES_MAX)) != 0:
        return READ_MEMORY
    at = page.out.bytes + page.out.used
    at = put_u64(put_text(at, b'],"next_from_seq":'), page.cursor)
    at = put_u64(put_text(at, b',"head_seq":'), head)
    at = put_u64(put_text(at, b',"earliest_seq":'), page.floors.readable)
    at = put_bool(put_text(at, b',"caught_up":'), page.cursor == head)
    at = put_tombstone(put_text(at, b',"tombstone":'), &page.tombstone)
    at = put_u64(put_text(at, b',"lag":'), head - page.cursor)
    at = put_u64(put_text(at, b',"epoch":'), page.view.topic_id)
    at = put_ms(put_text(at, b',"performance":{"server_total_ms":'), (clock_mono_ns() - started_ns) // 1000 if started_ns else 0)
    at = put_u64(put_text(at, b',"records_scanned":'), page.scanned)
    at = put_text(at, b',"fsync_ms":0.0,"throttle_wait_ms":0.0}}')
    page.out.used = at - page.out.bytes
    return READ_OK


cdef bint _still(const Page *page, uint32_t slot) noexcept nogil:
    """Nothing that the page was made from has moved since."""
    fence_acquire()
    if not view_still(page.reader.regions, slot, &page.view):
        return False
    return page.ephemeral_first == 0 or load_acquire_64(&page.reader.regions.table[slot].earliest) <= page.ephemeral_first


cdef void _tell_damage(Page *page, int status) noexcept nogil:
    """Raise the alarm for what this page has met; its view still holds."""
    cdef Maps *maps = &page.reader.maps
    if (status == -EIO and page.faulted) or status == READ_IO:
        if page.reading <= page.view.sealed_through:
            sealed_met(page.reader.regions, &page.view, page.reading)
        elif page.ephemeral_first == 0 and not for_want_of_room(maps.failure):
            add_64(&page.reader.regions.control.log_damage_met, 1)
    sealed_tell(page.reader.regions)


cdef void _limit(Page *page) noexcept nogil:
    cdef const DiffRequest *request = page.request
    page.limit = min(<uint64_t>request.limit if request.limit else <uint64_t>LIMIT_DEFAULT, page.reader.limit_max)
    page.scanned_max = max(page.limit, <uint64_t>EXAMINED_MAX)
    page.payload_max = min(request.max_batch_bytes if request.max_batch_bytes else <uint64_t>PAGE_BYTES_DEFAULT, <uint64_t>PAGE_BYTES_MAX)


cdef int _make_page(ReaderCore *reader, uint32_t slot, uint64_t topic_id, const DiffRequest *request, uint64_t now_ms, uint64_t head_max,
                    Buffer *out, DiffResult *result) noexcept nogil:
    """Render the records behind the cursor up to `head_max`, nothing around them; `reader.page` has what a frame around them needs."""
    cdef Page *page = &reader.page
    cdef uint64_t start = out.used
    cdef int status
    memset(result, 0, sizeof(DiffResult))
    if slot >= reader.regions.topics_max:
        return READ_GONE
    page.reader, page.request, page.out = reader, request, out
    _limit(page)
    wait_for_copies(reader.regions, slot)
    for _ in range(PAGE_TRIES):
        maps_refresh(&reader.maps)
        sealed_turn(reader.regions)
        out.used = start
        status = _begin(page, slot, topic_id, now_ms)
        if status == READ_STALE:
            continue
        if status != READ_OK:
            return status
        page.floors.head = min(page.floors.head, max(head_max, page.cursor))
        page.end = min(page.floors.head, request.upto_seq) if request.upto_seq else page.floors.head
        status = _head_of_page(page) if page.whole else READ_OK
        page.whole_used = out.used
        if status == READ_OK:
            page.faulted, reader.maps.failure = True, 0
            status = guarded_call(_fill, page)
        if status == READ_MEMORY:
            return status
        if status == READ_STALE or not _still(page, slot):
            continue
        _tell_damage(page, status)
        if status == -EIO or status == READ_IO:
            if page.matched == 0 and page.tombstone.reason == 0:
                result.failed_seq = page.reading
                return READ_IO
            out.used = page.whole_used    # the next page begins with the bad record and says so
        page.tombstone.head = page.floors.head
        page.tombstone.earliest = page.floors.readable
        if page.tombstone.reason != LOSS_RECREATED:
            page.tombstone.earliest = max(page.floors.readable, page.tombstone.gap_to + 1)
        result.topic_id, result.matched, result.scanned = page.view.topic_id, page.matched, page.scanned
        result.next_seq, result.head, result.earliest = page.cursor, page.floors.head, page.floors.readable
        result.tombstone = page.tombstone.reason
        result.would_wait = page.matched == 0 and page.tombstone.reason == 0 and page.cursor == page.floors.head
        touch_topic(reader.regions, slot, now_ms)
        return READ_OK
    return READ_BUSY


cdef int diff(ReaderCore *reader, uint32_t slot, uint64_t topic_id, const DiffRequest *request, uint64_t now_ms, uint64_t started_ns,
              Buffer *out, DiffResult *result) noexcept nogil:
    cdef int status
    reader.page.whole = True
    status = _make_page(reader, slot, topic_id, request, now_ms, <uint64_t>-1, out, result)
    return status if status != READ_OK else _tail_of_page(&reader.page, started_ns)


cdef int diff_records(ReaderCore *reader, uint32_t slot, uint64_t topic_id, const DiffRequest *request, uint64_t now_ms, uint64_t head_max,
                      Buffer *out, DiffResult *result) noexcept nogil:
    reader.page.whole = False
    return _make_page(reader, slot, topic_id, request, now_ms, head_max, out, result)
