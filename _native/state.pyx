"""A topic's exact floors and state as a reader sees them (see state.pxd)."""

from libc.errno cimport EIO, ENOMEM
from libc.string cimport memcpy, memset

from topicsd._native.atomics cimport fence_acquire, load_acquire_32, load_acquire_64, load_relaxed_64, store_relaxed_64
from topicsd._native.copies cimport wait_for_copies
from topicsd._native.index cimport view_entries, view_flags, view_lower_bound_ts
from topicsd._native.layout cimport (
    INDEX_DELETED, INDEX_HOLE, LOSS_CAP, LOSS_MIXED, LOSS_TTL, SEGMENT_FILES_MAX, SUSPECT_TRUE, TOPIC_QUEUE, UNREADABLE_BYTES_BITS, index_entry,
    segment_row, topic_slot,
)
from topicsd._native.priority cimport effective_priority
from topicsd._native.render cimport (
    CONFIG_BYTES_MAX, PERFORMANCE_BYTES_MAX, buffer_need, put_bytes, put_config, put_i64, put_ms, put_text, put_u64,
)
from topicsd._native.sealed cimport SEGMENT_KIND_COLD, Rows, rows_of_view, sealed_turn
from topicsd._native.table cimport VIEW_GONE, config_dead_letter, view_still, view_take

cdef enum:
    CHUNK = 128


cdef void _pass_hole(Floors *out, uint64_t seq, uint32_t flags) noexcept nogil:
    if seq > out.hole_lost:
        out.hole_lost = seq
        out.hole_reason = (flags >> 8) & 0xFF


cdef int _lose_expired(const Regions *regions, const TopicView *view, uint64_t bound, bint counting, Floors *out) noexcept nogil:
    """Walk the expired range [earliest, bound) from its end: which live record and which hole stand last in it, how much it is."""
    cdef index_entry entries[CHUNK]
    cdef uint64_t end = bound, first
    cdef uint32_t number, count
    cdef bint live = False, hole = view.holes == 0
    while end > out.earliest and (counting or not (live and hole)):
        count = <uint32_t>min(end - out.earliest, <uint64_t>CHUNK)
        first = end - count
        if view_flags(regions, view, first, count, entries) != 0:
            return READ_STALE
        number = count
        while number > 0:
            number -= 1
            if entries[number].flags & INDEX_HOLE:
                _pass_hole(out, first + number, entries[number].flags)
                hole = True
            elif not entries[number].flags & INDEX_DELETED:
                if not live:
                    out.ttl_lost = max(out.ttl_lost, first + number)
                    live = True
                out.expired_count += 1
                out.expired_bytes += entries[number].bytes
        end = first
    return READ_OK


cdef int _first_live(const Regions *regions, const TopicView *view, uint64_t seq, Floors *out) noexcept nogil:
    cdef index_entry entries[CHUNK]
    cdef uint32_t number, count
    while seq <= out.head:
        count = <uint32_t>min(out.head + 1 - seq, <uint64_t>CHUNK)
        if view_flags(regions, view, seq, count, entries) != 0:
            return READ_STALE
        for number in range(count):
            if entries[number].flags & INDEX_HOLE:
                _pass_hole(out, seq, entries[number].flags)
            elif not entries[number].flags & INDEX_DELETED:
                out.earliest = seq
                return READ_OK
            seq += 1
    out.earliest = out.head + 1
    return READ_OK


cdef int _expire(const Regions *regions, const TopicView *view, uint64_t cutoff_ms, bint counting, Floors *out) noexcept nogil:
    cdef index_entry first
    cdef uint64_t bound
    if view_flags(regions, view, out.earliest, 1, &first) != 0:
        return READ_STALE
    if first.ts >= cutoff_ms:
        return READ_OK
    bound = min(view_lower_bound_ts(regions, view, out.earliest, cutoff_ms), out.head + 1)
    if bound <= out.earliest:
        return READ_STALE
    if _lose_expired(regions, view, bound, counting, out) != READ_OK:
        return READ_STALE
    return _first_live(regions, view, bound, out)


cdef uint64_t _lost_through(const Regions *regions, const TopicView *view, uint64_t seq, uint64_t unreadable) noexcept nogil:
    """The end of a damaged row of the cold tier of which nobody can read anything, as far as the counts tell; or 0.

    No row has more that is unreadable than it has live records: when all damaged ones together have as many, each of them is lost whole.
    """
    cdef Rows rows
    cdef segment_row row
    cdef uint64_t live = 0, through = 0
    cdef uint32_t number
    if seq > view.sealed_through or rows_of_view(regions, view, &rows) != 0:
        return 0
    for number in range(rows.count):
        row = rows.at[number]
        if row.file == 0 or row.file >= SEGMENT_FILES_MAX or load_acquire_32(&regions.segment_files[row.file].suspect) != <uint32_t>SUSPECT_TRUE:
            continue
        live += row.live
        if row.first_seq <= seq <= row.last_seq and regions.segment_files[row.file].kind == <uint32_t>SEGMENT_KIND_COLD:
            through = row.last_seq
    return through if live == unreadable >> UNREADABLE_BYTES_BITS else 0


cdef int _pass_damage(const Regions *regions, const TopicView *view, uint64_t unreadable, Floors *out) noexcept nogil:
    """Find the first live seq that can be read; readers are told what is before it, so `earliest` stays."""
    cdef index_entry entries[CHUNK]
    cdef uint64_t seq = out.earliest, lost
    cdef uint32_t number, count = 1    # nearly always it is the first
    cdef int status
    while seq <= out.head:
        count = <uint32_t>min(out.head + 1 - seq, <uint64_t>count)
        status = view_entries(regions, view, seq, count, entries)
        if status == -EIO:    # nobody knows now: it is in the cold tier, or the disk has just refused it
            lost = _lost_through(regions, view, seq, unreadable)
            if lost == 0:
                break
            seq, count = lost + 1, 1
            continue
        if status != 0:
            return READ_STALE
        for number in range(count):
            if not entries[number].flags & (INDEX_HOLE | INDEX_DELETED):
                out.readable = seq
                return READ_OK
            seq += 1
        count = CHUNK
    out.readable = seq
    return READ_OK


cdef int floors_take(const Regions *regions, uint32_t slot, const TopicView *view, uint64_t now_ms, bint counting, Floors *out) noexcept nogil:
    cdef const topic_slot *topic = &regions.table[slot]
    cdef uint64_t ttl_ms = view.config.ttl_ms
    cdef int status
    memset(out, 0, sizeof(Floors))
    out.head = view.head
    out.earliest = load_acquire_64(&topic.earliest)
    out.cap_lost = load_acquire_64(&topic.cap_lost)
    out.ttl_lost = load_acquire_64(&topic.ttl_lost)
    out.hole_lost = load_acquire_64(&topic.hole_lost)
    out.hole_reason = <uint32_t>load_relaxed_64(&topic.hole_reason)
    out.evict_floor = max(out.cap_lost, max(out.ttl_lost, out.hole_lost)) + 1
    if out.earliest > out.head + 1 or out.evict_floor > out.head + 1:
        return READ_STALE    # the writer has gone on since the head was read
    out.earliest = max(out.earliest, out.evict_floor)
    if ttl_ms and now_ms > ttl_ms and out.earliest <= out.head:
        status = _expire(regions, view, now_ms - ttl_ms, counting, out)
        if status != READ_OK:
            return status
        out.evict_floor = max(out.cap_lost, max(out.ttl_lost, out.hole_lost)) + 1
    out.readable = out.earliest
    return _pass_damage(regions, view, load_relaxed_64(&topic.unreadable), out) if load_relaxed_64(&topic.unreadable) else <int>READ_OK


cdef uint32_t loss_reason_of(const Floors *floors, uint64_t gap_from) noexcept nogil:
    cdef uint32_t reason = 0
    if floors.cap_lost >= gap_from:
        reason = LOSS_CAP
    if floors.ttl_lost >= gap_from:
        reason = LOSS_MIXED if reason else LOSS_TTL
    if floors.hole_lost >= gap_from and floors.hole_reason != reason:
        reason = LOSS_MIXED if reason else floors.hole_reason
    return reason if reason else <uint32_t>LOSS_MIXED


cdef int read_state(const Regions *regions, uint32_t slot, uint64_t now_ms, State *out) noexcept nogil:
    cdef const topic_slot *topic = &regions.table[slot]
    cdef int tries, status
    cdef bint steady
    wait_for_copies(regions, slot)
    for tries in range(STATE_TRIES):
        sealed_turn(regions)
        status = view_take(regions, slot, &out.view)
        if load_acquire_64(&regions.control.ready) == 0:
            return READ_BUSY
        if status != 0:
            return READ_GONE if status == VIEW_GONE else READ_BUSY
        out.count = load_relaxed_64(&topic.count)
        out.bytes = load_relaxed_64(&topic.bytes)
        if floors_take(regions, slot, &out.view, now_ms, True, &out.floors) != READ_OK:
            continue
        out.last_write_ms = load_relaxed_64(&topic.last_write_ms)
        out.last_read_ms = load_relaxed_64(&topic.last_read_ms)
        out.queue_ready = load_relaxed_64(&topic.queue_ready)
        out.queue_in_flight = load_relaxed_64(&topic.queue_in_flight)
        out.queue_dead_lettered = load_relaxed_64(&topic.queue_dead_lettered)
        _copy_dead_letter(regions, out)
        fence_acquire()
        steady = load_relaxed_64(&topic.head) == out.view.head and load_relaxed_64(&topic.count) == out.count
        steady = steady and load_relaxed_64(&topic.bytes) == out.bytes and load_relaxed_64(&topic.earliest) <= out.floors.earliest
        if not view_still(regions, slot, &out.view) or not (steady or tries >= STATE_TRIES // 2):
            continue
        out.count -= min(out.count, out.floors.expired_count)
        out.bytes -= min(out.bytes, out.floors.expired_bytes)
        _leave_out_unreadable(load_relaxed_64(&topic.unreadable), out)
        out.priority = effective_priority(&out.view.config, out.last_read_ms, now_ms)
        return READ_OK
    return READ_BUSY


cdef void _leave_out_unreadable(uint64_t word, State *out) noexcept nogil:
    """What the disk has damaged is lost, and told as lost where it is read: it is not retained."""
    out.count -= min(out.count, word >> UNREADABLE_BYTES_BITS)
    out.bytes -= min(out.bytes, word & ((<uint64_t>1 << UNREADABLE_BYTES_BITS) - 1))


cdef void _copy_dead_letter(const Regions *regions, State *out) noexcept nogil:
    """Copy the name while the view holds; a torn one is thrown away with it."""
    cdef uint32_t name_bytes = 0
    cdef const char *name = config_dead_letter(regions, &out.view.config, &name_bytes)
    out.dead_letter_bytes = 0
    if name != NULL and 0 < name_bytes <= 255:
        memcpy(out.dead_letter, name, name_bytes)
        out.dead_letter_bytes = name_bytes


cdef inline uint8_t *_clock(uint8_t *at, uint64_t ms) noexcept nogil:
    return put_u64(at, ms) if ms else put_text(at, b"null")


cdef int render_state(Buffer *out, const State *state, uint64_t total_us) noexcept nogil:
    cdef const TopicView *view = &state.view
    cdef uint8_t *at
    cdef bint queue = view.config.type == TOPIC_QUEUE
    if buffer_need(out, 1024 + CONFIG_BYTES_MAX + PERFORMANCE_BYTES_MAX) != 0:
        return -ENOMEM
    at = out.bytes + out.used
    at = put_bytes(put_text(at, b'{"topic":"'), view.name, view.name_bytes)
    at = put_text(at, b'","type":"queue"') if queue else put_text(at, b'","type":"log"')
    at = put_u64(put_text(at, b',"head_seq":'), state.floors.head)
    at = put_u64(put_text(at, b',"earliest_seq":'), state.floors.readable)
    at = put_u64(put_text(at, b',"next_seq":'), state.floors.head + 1)
    at = put_u64(put_text(at, b',"count":'), state.count)
    at = put_u64(put_text(at, b',"bytes":'), state.bytes)
    at = put_config(put_text(at, b',"config":'), &view.config, state.dead_letter, state.dead_letter_bytes)
    if queue:
        at = put_u64(put_text(at, b',"queue":{"ready":'), state.queue_ready)
        at = put_u64(put_text(at, b',"in_flight":'), state.queue_in_flight)
        at = put_u64(put_text(at, b',"dead_lettered":'), state.queue_dead_lettered)
        at = put_text(at, b"}")
    at = put_i64(put_text(at, b',"effective_priority":'), state.priority)
    at = _clock(put_text(at, b',"last_write_ts":'), state.last_write_ms)
    at = _clock(put_text(at, b',"last_read_ts":'), state.last_read_ms)
    at = put_u64(put_text(at, b',"epoch":'), view.topic_id)
    at = put_ms(put_text(at, b',"performance":{"server_total_ms":'), total_us)
    at = put_text(at, b"}}")
    out.used = at - out.bytes
    return 0


cdef void touch_topic(Regions *regions, uint32_t slot, uint64_t now_ms) noexcept nogil:
    # Two workers may pass each other by a moment; the clock is a hint.
    if load_relaxed_64(&regions.table[slot].last_read_ms) < now_ms:
        store_relaxed_64(&regions.table[slot].last_read_ms, now_ms)
