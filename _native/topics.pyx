from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from topicsd._native.atomics cimport and_64, fence_seq_cst, load_relaxed_64, store_relaxed_64, store_release_64
from topicsd._native.changes cimport changes_close, changes_open
from topicsd._native.dedupe cimport dedupe_free
from topicsd._native.durable cimport durable_close, durable_moved, durable_open
from topicsd._native.ephemeral cimport arena_drop, arena_reset, arena_trim
from topicsd._native.index cimport index_append, index_at, index_hole, index_hole_reason, index_trim
from topicsd._native.jobs cimport Jobs, jobs_free, jobs_gone, jobs_gone_below, jobs_new, jobs_published, jobs_show
from topicsd._native.layout cimport (
    DISCARD_REJECT, ENTRY_FLAG_EMPTY_TAG, ENTRY_FLAG_EXT, ENTRY_LENGTH_MASK, FRAME_FLAG_KEY, FRAME_HEADER_BYTES, INDEX_DELETED, INDEX_HOLE,
    INDEX_PAGE_ENTRIES, INDEX_TAGGED, LOSS_CORRUPT, LOSS_MIXED, MATCH_EQ, RING_SLOTS_MAX, ROW_HOLES, TOPIC_QUEUE, UNREADABLE_BYTES_BITS, control,
    entry_ext, key_section, record_entry, segment_row,
)
from topicsd._native.lost_jobs cimport was_lost
from topicsd._native.ring cimport dirty_push
from topicsd._native.sealed cimport is_gone, row_at, row_mark, rows_drop_below, sealed_at
from topicsd._native.sealed_topic cimport sealed_delete_matching, sealed_live
from topicsd._native.tags cimport tags_add, tags_drop_below, tags_eq, tags_free, tags_new, tags_prefix

cdef enum:
    ENTRIES_FIRST = 1024


cdef int core_open(Core *core, Regions *regions, uint64_t ephemeral_bytes_max) noexcept nogil:
    memset(core, 0, sizeof(Core))
    core.regions = regions
    core.privates = <Private **>calloc(regions.control.topics_max, sizeof(Private *))
    core.entries = <index_entry *>malloc(ENTRIES_FIRST * sizeof(index_entry))
    core.entries_room = ENTRIES_FIRST
    arena_reset(&core.arena, ephemeral_bytes_max)
    if core.privates == NULL or core.entries == NULL or changes_open(&core.changes, regions.control.topics_max) != 0:
        return -1
    return 0 if durable_open(&core.durable, regions.control.topics_max) == 0 else -1


cdef void core_close(Core *core) noexcept nogil:
    cdef uint64_t slot
    core.closing = True
    if core.privates != NULL:
        for slot in range(core.regions.control.topics_max):
            if core.privates[slot] != NULL:
                private_drop(core, <uint32_t>slot)
    free(core.privates)
    free(core.entries)
    durable_close(&core.durable)
    changes_close(&core.changes)
    free(core.timed_queues)
    core.timed_queues = NULL
    core.privates = NULL
    core.entries = NULL


cdef Private *private_of(Core *core, uint32_t slot) noexcept nogil:
    if core.privates[slot] == NULL:
        core.privates[slot] = <Private *>calloc(1, sizeof(Private))
    return core.privates[slot]


cdef void private_drop(Core *core, uint32_t slot) noexcept nogil:
    cdef Private *own = core.privates[slot]
    cdef uint32_t place
    if own == NULL:
        return
    if core.forget_topic != NULL:
        core.forget_topic(core, slot, own)
    dedupe_free(own.dedupe)
    if own.tags != NULL:
        tags_free(own.tags)
    if not core.closing:
        arena_drop(&core.arena, core.regions, &own.chunks)
    if own.jobs != NULL and own.jobs.listed:
        for place in range(core.timed_queues_used):
            if core.timed_queues[place] == slot:
                core.timed_queues_used -= 1
                core.timed_queues[place] = core.timed_queues[core.timed_queues_used]
                break
    jobs_free(own.jobs)
    free(own)
    core.privates[slot] = NULL


cdef inline const record_entry *_first_entry(const frame_header *frame) noexcept nogil:
    cdef const unsigned char *body = <const unsigned char *>frame + FRAME_HEADER_BYTES
    cdef uint64_t skip = 0
    if frame.flags & FRAME_FLAG_KEY:
        skip = (sizeof(key_section) + (<const key_section *>body).key_bytes + 7) & ~<uint64_t>7
    return <const record_entry *>(body + skip)


cdef inline uint32_t _payload(const record_entry *entry) noexcept nogil:
    return entry.data_bytes + entry.meta_bytes + entry.tag_bytes + entry.node_bytes


cdef uint64_t batch_payload(const frame_header *frame, uint32_t *records, uint32_t *largest) noexcept nogil:
    cdef const unsigned char *at = <const unsigned char *>_first_entry(frame)
    cdef const unsigned char *end = <const unsigned char *>frame + frame.length
    cdef const record_entry *entry
    cdef uint64_t total = 0, inner
    cdef uint32_t length, count = 0
    records[0] = 0
    largest[0] = 0
    while count < frame.count:
        if end - at < <int64_t>sizeof(record_entry):
            return 0
        entry = <const record_entry *>at
        length = entry.length_flags & ENTRY_LENGTH_MASK
        inner = <uint64_t>entry.data_bytes + entry.meta_bytes + entry.tag_bytes + entry.node_bytes
        if inner + sizeof(record_entry) + (sizeof(entry_ext) if entry.length_flags & ENTRY_FLAG_EXT else 0) > length or length > end - at:
            return 0
        total += inner
        if inner > largest[0]:
            largest[0] = <uint32_t>inner
        at += length
        count += 1
    if at != end:
        return 0
    records[0] = count
    return total


cdef int publish(Core *core, uint32_t slot, const frame_header *frame, uint64_t source_position) noexcept nogil:
    """Make a batch visible: index, tags, counters, head, caps, watchers. 0, or -1 when memory is short (nothing has changed)."""
    cdef topic_slot *topic = &core.regions.table[slot]
    cdef Private *own
    cdef const record_entry *entry = _first_entry(frame)
    cdef index_entry *out
    cdef uint64_t bytes = 0, seq = frame.base_seq
    cdef uint32_t number
    cdef bint tagged = False
    touch(core, slot)
    if entries_room(core, frame.count) != 0 or (topic.config.type == TOPIC_QUEUE and jobs_of(core, slot) == NULL):
        return -1
    for number in range(frame.count):
        out = &core.entries[number]
        out.position = source_position + <uint64_t>(<const unsigned char *>entry - <const unsigned char *>frame)
        out.bytes = _payload(entry)
        out.flags = 0
        out.ts = frame.ts
        if entry.tag_bytes or entry.length_flags & ENTRY_FLAG_EMPTY_TAG:
            out.flags = INDEX_TAGGED
            tagged = True
        bytes += out.bytes
        entry = <const record_entry *>(<const unsigned char *>entry + (entry.length_flags & ENTRY_LENGTH_MASK))
    own = private_of(core, slot) if tagged else core.privates[slot]
    if (tagged and own == NULL) or index_append(core.regions, topic, seq, core.entries, frame.count) != 0:
        return -1
    if tagged:
        _index_tags(own, frame)
    if own != NULL and own.outlets != NULL:
        core.note_batch(core, slot, frame)
    if own != NULL and own.jobs != NULL and jobs_published(
            own.jobs, frame, core.mono_ms, <int64_t>core.wall_ms - <int64_t>frame.ts if core.replaying else 0) != 0:
        return -1
    came_in(core, slot, own, seq, frame.count, bytes, frame.ts)
    return 0


cdef int entries_room(Core *core, uint32_t count) noexcept nogil:
    cdef index_entry *grown
    if count > core.entries_room:
        grown = <index_entry *>realloc(core.entries, count * sizeof(index_entry))
        if grown == NULL:
            return -1
        core.entries = grown
        core.entries_room = count
    return 0


cdef void came_in(Core *core, uint32_t slot, Private *own, uint64_t first_seq, uint32_t count, uint64_t bytes, uint64_t ts) noexcept nogil:
    cdef topic_slot *topic = &core.regions.table[slot]
    if topic.count == 0 and topic.earliest > topic.head:
        store_relaxed_64(&topic.earliest, first_seq)
    topic.written_ms = core.mono_ms
    store_relaxed_64(&topic.count, topic.count + count)
    store_relaxed_64(&topic.bytes, topic.bytes + bytes)
    store_relaxed_64(&topic.last_write_ms, ts)
    _count_live(core, <int64_t>count, <int64_t>bytes)
    store_release_64(&topic.head, first_seq + count - 1)
    if own != NULL and own.jobs != NULL:
        jobs_changed(core, slot)
    if topic.config.ttl_ms and not core.replaying:    # what time has taken is lost to time, not to the caps
        expire(core, slot, core.wall_ms, <uint64_t>-1)
    evict(core, slot)
    wake_watchers(core, slot)


cdef void _index_tags(Private *own, const frame_header *frame) noexcept nogil:
    cdef const record_entry *entry = _first_entry(frame)
    cdef const uint8_t *tag
    cdef uint32_t number
    if own.tags == NULL:
        own.tags = tags_new()
        if own.tags == NULL:
            return
    for number in range(frame.count):
        if entry.tag_bytes or entry.length_flags & ENTRY_FLAG_EMPTY_TAG:
            tag = <const uint8_t *>entry + sizeof(record_entry) + entry.node_bytes
            if entry.length_flags & ENTRY_FLAG_EXT:
                tag += sizeof(entry_ext)
            tags_add(own.tags, tag, entry.tag_bytes, frame.base_seq + number)
        entry = <const record_entry *>(<const unsigned char *>entry + (entry.length_flags & ENTRY_LENGTH_MASK))


cdef inline void _count_live(Core *core, int64_t records, int64_t bytes) noexcept nogil:
    store_relaxed_64(&core.regions.control.records_live, core.regions.control.records_live + <uint64_t>records)
    store_relaxed_64(&core.regions.control.bytes_live, core.regions.control.bytes_live + <uint64_t>bytes)


cdef void leave_out(Core *core, topic_slot *topic, uint64_t unreadable) noexcept nogil:
    cdef control *all = core.regions.control
    cdef uint64_t bytes = (<uint64_t>1 << UNREADABLE_BYTES_BITS) - 1, before = topic.unreadable
    store_relaxed_64(&topic.unreadable, unreadable)
    store_relaxed_64(&all.records_unreadable, all.records_unreadable + (unreadable >> UNREADABLE_BYTES_BITS) - (before >> UNREADABLE_BYTES_BITS))
    store_relaxed_64(&all.bytes_unreadable, all.bytes_unreadable + (unreadable & bytes) - (before & bytes))


cdef void came_to_bytes(Core *core, topic_slot *topic, int64_t bytes) noexcept nogil:
    store_relaxed_64(&topic.bytes, topic.bytes + <uint64_t>bytes)
    _count_live(core, 0, bytes)


cdef void wake_watchers(Core *core, uint32_t slot) noexcept nogil:
    cdef topic_slot *topic = &core.regions.table[slot]
    cdef uint64_t mask
    cdef int number
    if topic.durable_head != topic.head and not core.replaying:
        durable_moved(&core.durable, core.regions, slot)
    fence_seq_cst()
    mask = load_relaxed_64(&topic.watchers)
    if mask == 0:
        return
    and_64(&topic.watchers, ~mask)
    for number in range(<int>RING_SLOTS_MAX):
        if mask & (<uint64_t>1 << number):
            dirty_push(&core.regions.rings[number], slot)
    core.bells |= mask


# ---- records that leave ---------------------------------------------------------------------------------------------------


cdef uint64_t _next_live(Core *core, topic_slot *topic, uint64_t seq, bint *holes) noexcept nogil:
    """First live seq at or above `seq`, head + 1 when there is none. Deleted entries and holes are passed; `holes`: some of the latter."""
    cdef index_entry *entry
    while seq <= topic.head:
        entry = index_at(core.regions, topic, seq)
        holes[0] |= entry == NULL or (entry.flags & INDEX_HOLE != 0 and is_gone(entry))
        if entry == NULL:    # a whole page of a hole
            seq += INDEX_PAGE_ENTRIES - (seq - topic.index_base) % INDEX_PAGE_ENTRIES
        elif is_gone(entry):
            seq += 1
        else:
            return seq
    return topic.head + 1


cdef void _advance(Core *core, topic_slot *topic, uint64_t seq) noexcept nogil:
    """Move `earliest` to the first live seq at or above `seq`. A hole that it passes becomes part of the involuntary floor."""
    cdef bint holes = False    # sealed records that the disk has damaged are holes that no counter knows
    cdef uint64_t before = topic.earliest, target = _next_live(core, topic, seq, &holes), last = 0, reason = LOSS_MIXED
    cdef index_entry *entry
    if holes or topic.holes or topic.sealed_holes:
        while before < target:
            entry = index_at(core.regions, topic, before)
            if entry == NULL:
                reason = index_hole_reason(core.regions, topic, before)
                before += INDEX_PAGE_ENTRIES - (before - topic.index_base) % INDEX_PAGE_ENTRIES
                last = min(before, target) - 1
            else:
                if entry.flags & INDEX_HOLE:
                    last = before
                    reason = (entry.flags >> 8) & 0xFF
                elif was_lost(core.regions, topic, before):
                    last, reason = before, LOSS_CORRUPT
                before += 1
        if last > topic.hole_lost:
            store_relaxed_64(&topic.hole_reason, reason)
            store_release_64(&topic.hole_lost, last)
    store_release_64(&topic.earliest, target)


cdef void job_gone(Core *core, topic_slot *topic, uint64_t seq) noexcept nogil:
    cdef Private *own
    if topic.config.type == TOPIC_QUEUE:
        own = core.privates[topic - core.regions.table]
        if own != NULL and own.jobs != NULL:
            jobs_gone(own.jobs, seq)
            jobs_show(own.jobs, topic)


cdef void _remove_first(Core *core, topic_slot *topic, index_entry *entry) noexcept nogil:
    store_relaxed_64(&topic.count, topic.count - 1)
    store_relaxed_64(&topic.bytes, topic.bytes - entry.bytes)
    job_gone(core, topic, topic.earliest)
    _count_live(core, -1, -<int64_t>entry.bytes)
    _advance(core, topic, topic.earliest + 1)


cdef bint _emptied(Core *core, topic_slot *topic) noexcept nogil:
    """Is nothing left, whatever the counts say? Records that the disk has damaged were counted and are not found."""
    if topic.earliest <= topic.head:
        return False
    _count_live(core, -<int64_t>topic.count, -<int64_t>topic.bytes)
    store_relaxed_64(&topic.count, 0)
    store_relaxed_64(&topic.bytes, 0)
    return True


cdef void _trim(Core *core, uint32_t slot) noexcept nogil:
    cdef topic_slot *topic = &core.regions.table[slot]
    cdef Private *own = core.privates[slot]
    if topic.segments_len:
        rows_drop_below(core.regions, topic, topic.earliest)
    index_trim(core.regions, topic, topic.earliest)
    if own != NULL:
        if own.tags != NULL:
            tags_drop_below(own.tags, max(topic.earliest, topic.sealed_through + 1))
        if own.chunks.oldest != NULL:
            arena_trim(&core.arena, core.regions, &own.chunks, topic.earliest)


cdef uint64_t evict(Core *core, uint32_t slot) noexcept nogil:
    """Remove the oldest live records until the caps hold (D 5.3). The floor moves before anything is freed."""
    cdef topic_slot *topic = &core.regions.table[slot]
    cdef uint64_t lost = 0, dropped, records = topic.config.cap_records, bytes = topic.config.cap_bytes
    if topic.config.discard == DISCARD_REJECT:    # never evicts, not even when its cap is tightened
        return 0
    while topic.count and ((records and topic.count > records) or (bytes and topic.bytes > bytes)):
        touch(core, slot)
        if _emptied(core, topic):
            break
        if topic.earliest <= topic.sealed_through and (not records or topic.count > records) and (not bytes or topic.bytes > bytes):
            dropped = _evict_row(core, topic, records, bytes)
            lost += dropped
            if dropped:
                continue
        store_release_64(&topic.cap_lost, topic.earliest)
        _remove_first(core, topic, index_at(core.regions, topic, topic.earliest))
        lost += 1
    if lost:
        _trim(core, slot)
    return lost


cdef uint64_t _evict_row(Core *core, topic_slot *topic, uint64_t records, uint64_t bytes) noexcept nogil:
    """Let a whole segment go whose last record would go too: its files need not be looked at. 0: not this way."""
    cdef segment_row *row = row_at(core.regions, topic, topic.earliest)
    cdef Private *own = core.privates[topic - core.regions.table]
    cdef uint64_t live, last
    cdef const index_entry *entry
    if row == NULL or row.first_seq != topic.earliest or row.live == 0 or row.live >= topic.count or row.flags & ROW_HOLES:
        return 0
    if (records and topic.count - row.live < records) or (bytes and topic.bytes - row.live_bytes < bytes):
        return 0
    live = row.live
    last = row.last_seq
    entry = sealed_at(core.regions, topic, last)
    while entry != NULL and last > row.first_seq and is_gone(entry):    # the floor is the last record that was lost
        last -= 1
        entry = sealed_at(core.regions, topic, last)
    store_release_64(&topic.cap_lost, last)
    store_relaxed_64(&topic.count, topic.count - live)
    store_relaxed_64(&topic.bytes, topic.bytes - row.live_bytes)
    if own != NULL and own.jobs != NULL:
        jobs_gone_below(own.jobs, row.last_seq + 1, live)
        jobs_show(own.jobs, topic)
    _count_live(core, -<int64_t>live, -<int64_t>row.live_bytes)
    _advance(core, topic, row.last_seq + 1)
    return live


cdef uint64_t expire(Core *core, uint32_t slot, uint64_t now_ms, uint64_t records_max) noexcept nogil:
    """Remove expired records, `now - ts > ttl` (D 5.2), at most `records_max` of them."""
    cdef topic_slot *topic = &core.regions.table[slot]
    cdef uint64_t lost = 0, ttl_ms = topic.config.ttl_ms
    cdef index_entry *entry
    if ttl_ms == 0:
        return 0
    while topic.count and lost < records_max:
        if topic.earliest > topic.head:
            touch(core, slot)
            _emptied(core, topic)
            break
        entry = index_at(core.regions, topic, topic.earliest)
        if now_ms <= entry.ts or now_ms - entry.ts <= ttl_ms:
            break
        touch(core, slot)
        store_release_64(&topic.ttl_lost, topic.earliest)
        _remove_first(core, topic, entry)
        lost += 1
    if lost:
        _trim(core, slot)
    return lost


cdef void lose_through(Core *core, uint32_t slot, uint64_t ttl_lost, uint64_t cap_lost) noexcept nogil:
    """Apply a floor frame: everything up to the higher of both is lost."""
    cdef topic_slot *topic = &core.regions.table[slot]
    cdef uint64_t through = max(ttl_lost, cap_lost)
    touch(core, slot)
    while topic.count and topic.earliest <= through and not _emptied(core, topic):
        _remove_first(core, topic, index_at(core.regions, topic, topic.earliest))
    if ttl_lost > topic.ttl_lost:
        store_release_64(&topic.ttl_lost, ttl_lost)
    if cap_lost > topic.cap_lost:
        store_release_64(&topic.cap_lost, cap_lost)
    _trim(core, slot)


cdef void _live_between(Core *core, topic_slot *topic, uint64_t seq, uint64_t before_seq, uint64_t *count, uint64_t *bytes) noexcept nogil:
    """Count the live records of [seq, before_seq): whole segments by their totals, the rest one by one."""
    cdef index_entry *entry
    cdef bint holes = False
    count[0] = bytes[0] = 0
    if seq <= topic.sealed_through:
        sealed_live(core, topic, seq, min(before_seq, topic.sealed_through + 1), count, bytes)
        seq = topic.sealed_through + 1
    seq = _next_live(core, topic, seq, &holes)
    while seq < before_seq:
        entry = index_at(core.regions, topic, seq)
        count[0] += 1
        bytes[0] += entry.bytes
        seq = _next_live(core, topic, seq + 1, &holes)


cdef uint64_t delete_before(Core *core, uint32_t slot, uint64_t before_seq) noexcept nogil:
    """Delete every live record below `before_seq` (A 5). Counts from the shorter side; returns how many went."""
    cdef topic_slot *topic = &core.regions.table[slot]
    cdef uint64_t deleted, freed
    if before_seq > topic.head + 1:
        before_seq = topic.head + 1
    if topic.count == 0 or before_seq <= topic.earliest:
        return 0
    touch(core, slot)
    if before_seq - topic.earliest <= topic.head + 1 - before_seq:
        _live_between(core, topic, topic.earliest, before_seq, &deleted, &freed)
    else:
        _live_between(core, topic, before_seq, topic.head + 1, &deleted, &freed)
        deleted = topic.count - deleted
        freed = topic.bytes - freed
    store_relaxed_64(&topic.count, topic.count - deleted)
    store_relaxed_64(&topic.bytes, topic.bytes - freed)
    if core.privates[slot] != NULL and core.privates[slot].jobs != NULL:
        jobs_gone_below(core.privates[slot].jobs, before_seq, deleted)
        jobs_show(core.privates[slot].jobs, topic)
    _count_live(core, -<int64_t>deleted, -<int64_t>freed)
    _advance(core, topic, before_seq)
    _trim(core, slot)
    wake_watchers(core, slot)
    return deleted


cdef struct Deletion:
    Core *core
    topic_slot *topic
    uint64_t before_seq, deleted, freed


cdef int _delete_one(void *context, uint64_t seq) noexcept nogil:
    cdef Deletion *deletion = <Deletion *>context
    cdef topic_slot *topic = deletion.topic
    cdef index_entry *entry
    if seq < topic.earliest or seq <= topic.sealed_through or seq >= deletion.before_seq or seq > topic.head:
        return 0
    entry = index_at(deletion.core.regions, topic, seq)
    if entry == NULL or entry.flags & (INDEX_DELETED | INDEX_HOLE):
        return 0
    entry.flags |= INDEX_DELETED
    deletion.deleted += 1
    deletion.freed += entry.bytes
    job_gone(deletion.core, topic, seq)
    return 1


cdef uint64_t delete_matching(Core *core, uint32_t slot, uint32_t kind, const uint8_t *tag, uint32_t tag_bytes,
                              uint64_t before_seq) noexcept nogil:
    """Delete every live record below `before_seq` whose tag matches, found through the tag index (D 7.2)."""
    cdef topic_slot *topic = &core.regions.table[slot]
    cdef Private *own = core.privates[slot]
    cdef Deletion deletion
    cdef uint64_t deleted = 0, freed = 0
    touch(core, slot)
    memset(&deletion, 0, sizeof(deletion))
    if topic.segments_len:
        sealed_delete_matching(core, topic, kind, tag, tag_bytes, min(before_seq, topic.head + 1), &deleted, &freed)
    deletion.core = core
    deletion.topic = topic
    deletion.before_seq = min(before_seq, topic.head + 1)
    if own != NULL and own.tags != NULL:
        if kind == MATCH_EQ:
            tags_eq(own.tags, tag, tag_bytes, _delete_one, &deletion)
        else:
            tags_prefix(own.tags, tag, tag_bytes, _delete_one, &deletion)
    store_relaxed_64(&topic.deleted_in_index, topic.deleted_in_index + deletion.deleted)
    deletion.deleted += deleted
    deletion.freed += freed
    if deletion.deleted == 0:
        return 0
    _deleted(core, slot, &deletion)
    return deletion.deleted


cdef void _deleted(Core *core, uint32_t slot, const Deletion *deletion) noexcept nogil:
    cdef topic_slot *topic = &core.regions.table[slot]
    store_relaxed_64(&topic.count, topic.count - deletion.deleted)
    store_relaxed_64(&topic.bytes, topic.bytes - deletion.freed)
    _count_live(core, -<int64_t>deletion.deleted, -<int64_t>deletion.freed)
    _advance(core, topic, topic.earliest)
    _trim(core, slot)
    wake_watchers(core, slot)


cdef void _delete_sealed(Deletion *deletion, uint64_t seq) noexcept nogil:
    """Mark one record that stands in a segment."""
    cdef Core *core = deletion.core
    cdef const index_entry *entry = sealed_at(core.regions, deletion.topic, seq)
    cdef segment_row *row = row_at(core.regions, deletion.topic, seq)
    cdef uint32_t size
    if row == NULL or entry == NULL or is_gone(entry) or seq < deletion.topic.earliest:
        return
    size = entry.bytes    # before the mark makes the copy old
    if row_mark(core.regions, deletion.topic, row, seq) != 1:
        return
    row.live -= 1
    row.live_bytes -= size
    deletion.deleted += 1
    deletion.freed += size
    job_gone(core, deletion.topic, seq)


cdef uint64_t delete_seqs(Core *core, uint32_t slot, const uint64_t *seqs, uint32_t count) noexcept nogil:
    cdef Deletion deletion
    cdef uint32_t number
    cdef uint64_t sealed = 0, before
    touch(core, slot)
    memset(&deletion, 0, sizeof(deletion))
    deletion.core = core
    deletion.topic = &core.regions.table[slot]
    deletion.before_seq = <uint64_t>-1
    for number in range(count):
        if seqs[number] > deletion.topic.sealed_through:
            _delete_one(&deletion, seqs[number])
            continue
        before = deletion.deleted
        _delete_sealed(&deletion, seqs[number])
        sealed += deletion.deleted - before
    store_relaxed_64(&deletion.topic.deleted_in_index, deletion.topic.deleted_in_index + deletion.deleted - sealed)
    if deletion.deleted:
        _deleted(core, slot, &deletion)
    return deletion.deleted


# ---- queues -----------------------------------------------------------------------------------------------------------------


cdef Jobs *jobs_of(Core *core, uint32_t slot) noexcept nogil:
    cdef Private *own = private_of(core, slot)
    if own != NULL and own.jobs == NULL:
        own.jobs = jobs_new()
    return own.jobs if own != NULL else NULL


cdef void jobs_changed(Core *core, uint32_t slot) noexcept nogil:
    cdef Jobs *jobs = core.privates[slot].jobs
    cdef uint32_t *wider
    jobs_show(jobs, &core.regions.table[slot])
    if jobs.timed.length == 0 or jobs.listed:
        return
    if core.timed_queues_used == core.timed_queues_room:
        wider = <uint32_t *>realloc(core.timed_queues, (core.timed_queues_room * 2 + 64) * sizeof(uint32_t))
        if wider == NULL:
            return    # noted at its next change
        core.timed_queues = wider
        core.timed_queues_room = core.timed_queues_room * 2 + 64
    core.timed_queues[core.timed_queues_used] = slot
    core.timed_queues_used += 1
    jobs.listed = 1


cdef int leave_hole(Core *core, uint32_t slot, uint64_t last_seq, uint32_t reason) noexcept nogil:
    """Jump the head to `last_seq`: the seqs between were handed out and are lost, and a reader is told so."""
    cdef topic_slot *topic = &core.regions.table[slot]
    cdef bint was_empty = topic.earliest > topic.head
    if last_seq <= topic.head:
        return 0
    touch(core, slot)
    if index_hole(core.regions, topic, topic.head + 1, last_seq, reason) != 0:
        return -1
    store_release_64(&topic.head, last_seq)
    topic.next_seq = last_seq + 1
    if was_empty:
        store_relaxed_64(&topic.hole_reason, reason)
        store_release_64(&topic.hole_lost, last_seq)
        store_release_64(&topic.earliest, last_seq + 1)
    wake_watchers(core, slot)
    return 0
