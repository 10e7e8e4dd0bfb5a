"""Routers in the writer (see routes.pxd)."""

from libc.errno cimport ENOMEM
from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from topicsd._native.atomics cimport add_64, store_relaxed_64, store_release_32
from topicsd._native.copies cimport ORIGIN_BYTES_MAX, Origin, origin_find, put_origin_meta
from topicsd._native.fleeting cimport INDEX_FLEETING
from topicsd._native.frame cimport (
    align8, append_first, entry_bytes, entry_data, entry_length_for, entry_meta, entry_next, entry_node, entry_tag,
)
from topicsd._native.index cimport index_append, index_at, index_hole_reason
from topicsd._native.jobs cimport jobs_added
from topicsd._native.layout cimport (
    CLASS_EPHEMERAL, DISCARD_REJECT, ENTRY_FLAG_EMPTY_NODE, ENTRY_FLAG_EMPTY_TAG, ENTRY_FLAG_EXT, FRAME_APPEND, FRAME_FLAG_KEY, FRAME_HEADER_BYTES,
    FRAME_MAGIC, INDEX_COPY, INDEX_DELETED, INDEX_DROP_NODE, INDEX_DROP_TAG, INDEX_HOLE, INDEX_HOPS_MAX, INDEX_HOPS_SHIFT, INDEX_ORIGIN,
    INDEX_PAGE_ENTRIES, INDEX_TAGGED, LOSS_CORRUPT, LOSS_MIXED, LOSS_SOURCE_TRIM, MATCH_EQ, MATCH_NONE, POSITION_BITS, POSITION_MASK,
    SOURCE_EPHEMERAL, TOPIC_QUEUE, entry_ext, frame_header, index_entry, key_section, record_entry, topic_slot,
)
from topicsd._native.log_verify cimport log_sound
from topicsd._native.maps cimport MAPS_MAX, Map, for_want_of_room, guarded_copy, map_found, maps_drop_all, maps_init, maps_refresh
from topicsd._native.sealed cimport Rows, rows_of_topic, sealed_entry
from topicsd._native.segment cimport SOURCE_SEGMENT
from topicsd._native.slabs cimport SLAB_CLASSES, SLAB_MIN_SHIFT, slab_class_for, slab_give, slab_take
from topicsd._native.table cimport slot_lock, slot_unlock
from topicsd._native.tags cimport tags_add, tags_new
from topicsd._native.topics cimport Core, Private, came_in, entries_room, expire, jobs_of, leave_hole, private_of, touch

cdef enum:
    COPY_KEEPS = 0xF0000 | 0x74    # hops, TAGGED, DROP_NODE, DROP_TAG, ORIGIN: marks that a copy of a copy inherits


# ---- notes ----------------------------------------------------------------------------------------------------------------


cdef Note *_note_new(uint32_t room, bint seqs) noexcept nogil:
    cdef Note *note
    cdef uint64_t each = sizeof(index_entry) + sizeof(Part) + (sizeof(uint64_t) if seqs else 0)
    note = <Note *>calloc(1, sizeof(Note) + room * each)
    if note == NULL:
        return NULL
    note.refs = 1
    note.room = room
    note.entries = <index_entry *>(note + 1)
    if seqs:
        note.seqs = <uint64_t *>(note.entries + room)
        note.parts = <Part *>(note.seqs + room)
    else:
        note.parts = <Part *>(note.entries + room)
    return note


cdef void note_drop(Note *note) noexcept nogil:
    if note == NULL:
        return
    note.refs -= 1
    if note.refs == 0:
        free(note.came)
        free(note.blob)
        free(note)


cdef Note *note_new(uint32_t room, const uint8_t *blob, uint64_t blob_bytes) noexcept nogil:
    cdef Note *note = _note_new(room, False)
    if note != NULL and blob_bytes and _blob_put(note, blob, blob_bytes) != 0:
        note_drop(note)
        return NULL
    return note


cdef uint64_t notes_bytes_of(const Note *note) noexcept nogil:
    return sizeof(Note) + note.room * (sizeof(index_entry) + sizeof(Part)) + note.blob_room


cdef uint64_t note_seq(const Note *note, uint32_t number) noexcept nogil:
    return note.seqs[number] if note.seqs != NULL else note.first_seq + number


cdef int _blob_put(Note *note, const void *bytes, uint64_t count) noexcept nogil:
    cdef uint64_t room = max(note.blob_room * 2, <uint64_t>256)
    cdef uint8_t *grown
    if note.blob_used + count > note.blob_room:
        while room < note.blob_used + count:
            room *= 2
        grown = <uint8_t *>realloc(note.blob, room)
        if grown == NULL:
            return -ENOMEM
        note.blob = grown
        note.blob_room = room
    memcpy(note.blob + note.blob_used, bytes, count)
    note.blob_used += count
    return 0


cdef int _note_put(Note *note, uint64_t seq, const index_entry *entry, const record_entry *record) noexcept nogil:
    """Note one record: its entry, its tag, or all of it. `record` needs its data only for a whole note."""
    cdef Part *part = &note.parts[note.count]
    if note.count >= note.room:
        return -ENOMEM
    note.entries[note.count] = entry[0]
    part.node_bytes = record.node_bytes
    part.tag_bytes = record.tag_bytes
    part.record_at = <uint32_t>note.blob_used
    part.tag_at = <uint32_t>note.blob_used
    if note.whole:
        part.tag_at += <uint32_t>(entry_tag(record) - <const uint8_t *>record)
        if _blob_put(note, record, entry_bytes(record)) != 0:
            return -ENOMEM
    elif entry.flags & INDEX_TAGGED and _blob_put(note, entry_tag(record), record.tag_bytes) != 0:
        return -ENOMEM
    if note.seqs != NULL:
        note.seqs[note.count] = seq
    note.payload += entry.bytes
    note.count += 1
    return 0


cdef int _note_again(Note *note, uint64_t seq, const Note *other, uint32_t number) noexcept nogil:
    """Note a record that another note holds; a whole one needs the other to be whole."""
    cdef const Part *theirs = &other.parts[number]
    cdef Part *part = &note.parts[note.count]
    cdef const index_entry *entry = &other.entries[number]
    if note.whole:
        if not other.whole:
            return -ENOMEM
        return _note_put(note, seq, entry, <const record_entry *>(other.blob + theirs.record_at))
    if note.count >= note.room:
        return -ENOMEM
    note.entries[note.count] = entry[0]
    part[0] = theirs[0]
    part.tag_at = <uint32_t>note.blob_used
    if entry.flags & INDEX_TAGGED and _blob_put(note, other.blob + theirs.tag_at, theirs.tag_bytes) != 0:
        return -ENOMEM
    if note.seqs != NULL:
        note.seqs[note.count] = seq
    note.payload += entry.bytes
    note.count += 1
    return 0


cdef int note_came(Note *note, uint32_t number, uint64_t text, uint64_t source) noexcept nogil:
    if note.came == NULL:
        note.came = <Came *>calloc(note.room, sizeof(Came))
        if note.came == NULL:
            return -ENOMEM
    note.came[number].text = text
    note.came[number].source = source
    return 0


cdef void drop_oldest(Outlets *outlets) noexcept nogil:
    cdef Note *note = outlets.oldest
    outlets.oldest = note.next
    if outlets.oldest == NULL:
        outlets.newest = NULL
    outlets.notes_bytes -= notes_bytes_of(note)
    note_drop(note)


cdef void add_note(Forwarder *forwarder, uint32_t slot, Outlets *outlets, Note *note) noexcept nogil:
    if outlets.newest == NULL:
        outlets.oldest = note
    else:
        outlets.newest.next = note
    outlets.newest = note
    outlets.notes_bytes += notes_bytes_of(note)
    while outlets.notes_bytes > NOTES_BYTES_MAX and outlets.oldest != outlets.newest:
        drop_oldest(outlets)
    _heat(forwarder, slot, outlets)


cdef void _heat(Forwarder *forwarder, uint32_t slot, Outlets *outlets) noexcept nogil:
    if not outlets.hot:
        outlets.hot = 1
        forwarder.hot += 1
    outlets.resume = 0    # whoever was passed before this batch has it to come
    forwarder_queue(forwarder, slot)


cdef void _note_batch(Core *core, uint32_t slot, const frame_header *frame) noexcept nogil:
    """Note what `publish` has just made visible in a source: `core.entries` are its entries. Short of memory the index must do."""
    cdef Forwarder *forwarder = <Forwarder *>core.forwarder
    cdef Outlets *outlets = <Outlets *>core.privates[slot].outlets
    cdef const record_entry *record = append_first(frame)
    cdef Note *note = _note_new(frame.count, False)
    cdef uint32_t number
    if note != NULL:
        note.whole = outlets.whole != 0 or core.entries[0].position >> POSITION_BITS == SOURCE_EPHEMERAL
        note.first_seq = frame.base_seq
        note.last_seq = frame.base_seq + frame.count - 1
        for number in range(frame.count):
            if _note_put(note, 0, &core.entries[number], record) != 0:
                note_drop(note)
                note = NULL
                break
            record = entry_next(record)
    if note != NULL:
        add_note(forwarder, slot, outlets, note)
    else:
        _heat(forwarder, slot, outlets)


cdef void pass_done(Forwarder *forwarder, Outlets *outlets) noexcept nogil:
    cdef uint64_t passed = <uint64_t>-1
    cdef uint32_t number
    for number in range(outlets.count):
        passed = min(passed, outlets.routes[number].cursor)
    while outlets.oldest != NULL and outlets.oldest.last_seq <= passed:
        drop_oldest(outlets)
    note_drop(outlets.merged)
    outlets.merged = NULL


cdef void notes_delete(Outlets *outlets, uint32_t kind, const uint8_t *tag, uint32_t tag_bytes, uint64_t before_seq) noexcept nogil:
    """Mark what a delete has taken: a route that has not come to it passes it in silence."""
    cdef Note *note = outlets.oldest
    cdef uint32_t number
    note_drop(outlets.merged)
    outlets.merged = NULL
    while note != NULL:
        for number in range(note.count):
            if note_seq(note, number) >= before_seq:
                break
            if kind == MATCH_NONE or _matches(kind, tag, tag_bytes, note, number):
                note.entries[number].flags |= INDEX_DELETED
                note.marred = 1
        note = note.next


# ---- routes ---------------------------------------------------------------------------------------------------------------


cdef int forwarder_open(Forwarder *forwarder, Core *core) noexcept nogil:
    memset(forwarder, 0, sizeof(Forwarder))
    forwarder.core = core
    forwarder.queue_mask = 63
    forwarder.queue = <uint32_t *>calloc(64, sizeof(uint32_t))
    forwarder.scratch_room = 1 << 16
    forwarder.scratch = <uint8_t *>malloc(forwarder.scratch_room)
    forwarder.steps_room = 64
    forwarder.steps = <Step *>malloc(64 * sizeof(Step))
    core.forwarder = forwarder
    core.note_batch = _note_batch
    core.forget_topic = _forget_topic
    return 0 if forwarder.queue != NULL and forwarder.scratch != NULL and forwarder.steps != NULL else -ENOMEM


cdef void forwarder_close(Forwarder *forwarder) noexcept nogil:
    cdef uint32_t number
    for number in range(forwarder.routes_room):
        if forwarder.routes[number] != NULL:
            free(forwarder.routes[number].match)
            free(forwarder.routes[number])
    free(forwarder.routes)
    free(forwarder.queue)
    free(forwarder.scratch)
    free(forwarder.steps)
    if forwarder.maps_open:
        maps_drop_all(&forwarder.maps)
    forwarder.routes = NULL
    forwarder.routes_room = 0


cdef int forwarder_files(Forwarder *forwarder, const char *data_dir) noexcept nogil:
    cdef int failure
    if forwarder.maps_open:
        maps_drop_all(&forwarder.maps)
    failure = maps_init(&forwarder.maps, forwarder.core.regions, data_dir, MAPS_MAX // 4)
    forwarder.maps_open = failure == 0
    return failure


cdef void forwarder_queue(Forwarder *forwarder, uint32_t slot) noexcept nogil:
    cdef Outlets *outlets = outlets_of(forwarder.core, slot)
    cdef uint64_t number, size
    cdef uint32_t *grown
    if outlets == NULL or outlets.queued:
        return
    if forwarder.queue_end - forwarder.queue_first > forwarder.queue_mask:
        size = (forwarder.queue_mask + 1) * 2
        grown = <uint32_t *>malloc(size * sizeof(uint32_t))
        if grown == NULL:
            return    # the next batch of this source tries again
        for number in range(forwarder.queue_first, forwarder.queue_end):
            grown[number & (size - 1)] = forwarder.queue[number & forwarder.queue_mask]
        free(forwarder.queue)
        forwarder.queue = grown
        forwarder.queue_mask = size - 1
    forwarder.queue[forwarder.queue_end & forwarder.queue_mask] = slot
    forwarder.queue_end += 1
    outlets.queued = 1


cdef Outlets *outlets_of(Core *core, uint32_t slot) noexcept nogil:
    cdef Private *own = core.privates[slot]
    return <Outlets *>own.outlets if own != NULL else NULL


cdef Route *route_of(Forwarder *forwarder, uint32_t number) noexcept nogil:
    return forwarder.routes[number] if number < forwarder.routes_room else NULL


cdef int _have_routes(Forwarder *forwarder, uint32_t number) noexcept nogil:
    cdef uint32_t room = max(forwarder.routes_room * 2, number + 64)
    cdef Route **grown
    if number < forwarder.routes_room:
        return 0
    grown = <Route **>realloc(forwarder.routes, room * sizeof(Route *))
    if grown == NULL:
        return -ENOMEM
    memset(grown + forwarder.routes_room, 0, (room - forwarder.routes_room) * sizeof(Route *))
    forwarder.routes = grown
    forwarder.routes_room = room
    return 0


cdef int _have_outlet(Private *own) noexcept nogil:
    cdef Outlets *outlets = <Outlets *>own.outlets
    cdef Route **grown
    if outlets == NULL:
        outlets = <Outlets *>calloc(1, sizeof(Outlets))
        if outlets == NULL:
            return -ENOMEM
        own.outlets = outlets
    if outlets.count == outlets.room:
        grown = <Route **>realloc(outlets.routes, (outlets.room * 2 + 4) * sizeof(Route *))
        if grown == NULL:
            return -ENOMEM
        outlets.routes = grown
        outlets.room = outlets.room * 2 + 4
    return 0


cdef int route_add(Forwarder *forwarder, const Route *made, const uint8_t *match) noexcept nogil:
    cdef Core *core = forwarder.core
    cdef Private *own = private_of(core, made.source)
    cdef Outlets *outlets
    cdef Route *route
    if own == NULL or _have_routes(forwarder, made.number) != 0 or _have_outlet(own) != 0:
        return -ENOMEM
    outlets = <Outlets *>own.outlets
    route = <Route *>malloc(sizeof(Route))
    if route == NULL:
        return -ENOMEM
    route[0] = made[0]
    route.match = NULL
    route.match_kind = MATCH_NONE
    if route_change(forwarder, route, made.flags, made.match_kind, match, made.match_bytes) != 0:
        free(route)
        return -ENOMEM
    forwarder.routes[made.number] = route
    outlets.routes[outlets.count] = route
    outlets.count += 1
    outlets.whole += route.flags & ROUTE_WRITES != 0
    outlets.resume = 0
    store_relaxed_64(&core.regions.table[made.dest].derived, made.number)
    store_relaxed_64(&core.regions.control.routers, core.regions.control.routers + 1)
    forwarder_queue(forwarder, made.source)
    return 0


cdef int route_change(Forwarder *forwarder, Route *route, uint32_t flags, uint32_t kind, const uint8_t *match, uint32_t bytes) noexcept nogil:
    cdef uint8_t *kept = NULL
    if kind != MATCH_NONE:
        kept = <uint8_t *>malloc(bytes + 1)
        if kept == NULL:
            return -ENOMEM
        memcpy(kept, match, bytes)
    free(route.match)
    route.match = kept
    route.match_kind = kind
    route.match_bytes = bytes if kind != MATCH_NONE else 0
    route.flags = flags
    return 0


cdef void route_remove(Forwarder *forwarder, Route *route) noexcept nogil:
    cdef Core *core = forwarder.core
    cdef uint32_t number, source = route.source
    cdef Outlets *outlets = outlets_of(core, source)
    for number in range(outlets.count):
        if outlets.routes[number] == route:
            outlets.routes[number] = outlets.routes[outlets.count - 1]
            outlets.count -= 1
            break
    outlets.whole -= route.flags & ROUTE_WRITES != 0
    outlets.resume = 0
    if core.regions.table[route.dest].derived == route.number:
        store_relaxed_64(&core.regions.table[route.dest].derived, 0)
    store_relaxed_64(&core.regions.control.routers, core.regions.control.routers - 1)
    forwarder.routes[route.number] = NULL
    free(route.match)
    free(route)
    pass_done(forwarder, outlets)
    if outlets.count == 0:
        _free_outlets(forwarder, core.privates[source])


cdef void _free_outlets(Forwarder *forwarder, Private *own) noexcept nogil:
    """Forget a topic's outlets; its place in the queue is skipped later."""
    cdef Outlets *outlets = <Outlets *>own.outlets
    if outlets == NULL:
        return
    own.outlets = NULL
    while outlets.oldest != NULL:
        drop_oldest(outlets)
    note_drop(outlets.merged)
    forwarder.hot -= outlets.hot != 0
    free(outlets.routes)
    free(outlets)


# ---- what comes next ------------------------------------------------------------------------------------------------------


cdef bint _tag_matches(uint32_t kind, const uint8_t *wanted, uint32_t wanted_bytes, const uint8_t *tag, uint32_t tag_bytes) noexcept nogil:
    if tag_bytes < wanted_bytes or (kind == MATCH_EQ and tag_bytes != wanted_bytes):
        return False
    return memcmp(wanted, tag, wanted_bytes) == 0


cdef bint _matches(uint32_t kind, const uint8_t *wanted, uint32_t wanted_bytes, const Note *note, uint32_t number) noexcept nogil:
    cdef const Part *part = &note.parts[number]
    if not note.entries[number].flags & INDEX_TAGGED:
        return False
    return _tag_matches(kind, wanted, wanted_bytes, note.blob + part.tag_at, part.tag_bytes)


cdef bint _takes(const Route *route, uint32_t flags, const uint8_t *tag, uint32_t tag_bytes) noexcept nogil:
    """The route forwards a record with these marks and this tag."""
    if route.flags & ROUTE_CYCLE and (flags >> INDEX_HOPS_SHIFT) & INDEX_HOPS_MAX >= HOPS_MAX:
        return False
    if route.match_kind == MATCH_NONE:
        return True
    return flags & INDEX_TAGGED != 0 and _tag_matches(route.match_kind, route.match, route.match_bytes, tag, tag_bytes)


cdef const record_entry *log_record(Forwarder *forwarder, const index_entry *entry, bint whole) noexcept nogil:
    """Copy a record that no note holds (all of it, or all before its meta) out of the log or ephemeral memory; NULL: it cannot be read."""
    cdef uint64_t shard = entry.position >> POSITION_BITS, position = entry.position & POSITION_MASK, available = 0, wanted
    cdef const uint8_t *source = NULL
    cdef const record_entry *head
    cdef uint8_t *grown
    cdef Map *found
    if shard == SOURCE_EPHEMERAL:
        source = forwarder.core.regions.ephemeral + position
        available = forwarder.core.regions.ephemeral_bytes - position
    elif shard == SOURCE_SEGMENT:    # `_sealed` has verified it
        source = <const uint8_t *><uintptr_t>position
        available = entry_length_for(entry.bytes, True)
    else:
        if not forwarder.maps_open:
            return NULL
        found = map_found(&forwarder.maps, <uint32_t>shard, position)
        if found != NULL and log_sound(found, position):
            source = found.base + (position - found.first_position)
            available = found.bytes - (position - found.first_position)
        elif found != NULL or not for_want_of_room(forwarder.maps.failure):
            add_64(&forwarder.core.regions.control.log_damage_met, 1)
    if source == NULL or available < sizeof(record_entry) or guarded_copy(forwarder.scratch, source, sizeof(record_entry)) != 0:
        return NULL
    head = <const record_entry *>forwarder.scratch
    wanted = entry_bytes(head)
    if not whole:
        wanted = min(wanted, <uint64_t>(sizeof(record_entry) + sizeof(entry_ext) + head.node_bytes + head.tag_bytes))
    if wanted > available:
        return NULL
    if wanted > forwarder.scratch_room:
        grown = <uint8_t *>realloc(forwarder.scratch, wanted)
        if grown == NULL:
            return NULL
        forwarder.scratch = grown
        forwarder.scratch_room = wanted
    if guarded_copy(forwarder.scratch, source, wanted) != 0:
        return NULL
    return <const record_entry *>forwarder.scratch


cdef uint64_t _gap_end(Forwarder *forwarder, const Route *route, uint64_t seq, uint64_t last, const Note *note, bint *lost) noexcept nogil:
    """The end of the gap that begins at `seq`: nothing of it can be copied. `lost`: time, caps or damage took it; else it was deleted."""
    cdef const topic_slot *topic = &forwarder.core.regions.table[route.source]
    cdef uint64_t floor = max(topic.cap_lost, max(topic.ttl_lost, topic.hole_lost)), end = seq
    lost[0] = False
    if note != NULL and note.first_seq > seq:
        last = min(last, note.first_seq - 1)
    if route.skip_first <= seq <= route.skip_last:
        return min(last, route.skip_last)
    if route.skip_first > seq:
        last = min(last, route.skip_first - 1)
    if seq <= floor:
        lost[0] = True
        return min(last, floor)
    if seq < topic.earliest:
        return min(last, topic.earliest - 1)
    lost[0] = True
    while index_hole_reason(forwarder.core.regions, topic, end) != 0 and end < last:
        if index_at(forwarder.core.regions, topic, end) != NULL:
            end += 1
        else:
            end += INDEX_PAGE_ENTRIES - (end - topic.index_base) % INDEX_PAGE_ENTRIES
    if index_hole_reason(forwarder.core.regions, topic, end) == 0 and end > seq:
        end -= 1
    return min(end, last)


cdef bint _whole_note(const Route *route, const Note *note, uint64_t seq, uint64_t last) noexcept nogil:
    """The route takes this note as it is."""
    if note == NULL or note.first_seq != seq or note.last_seq > last or note.marred:
        return False
    if route.match_kind != MATCH_NONE or route.flags & ROUTE_CYCLE:
        return False
    return route.skip_first > note.last_seq or route.skip_last < seq


cdef bint _is_whole(const Route *route, const index_entry *entry) noexcept nogil:
    # A copy of what ends with the server: replay will not find it in the source.
    return (route.flags & ROUTE_WRITES != 0 or route.full or entry.position >> POSITION_BITS >= SOURCE_SEGMENT
            or entry.flags & INDEX_FLEETING != 0)


cdef const index_entry *_sealed(Forwarder *forwarder, const topic_slot *topic, uint64_t seq, index_entry *out) noexcept nogil:
    """The entry of a sealed seq with its record's address in this process. A hole, damage too, is NULL."""
    cdef Rows rows
    rows_of_topic(forwarder.core.regions, topic, &rows)
    if sealed_entry(forwarder.core.regions, &rows, seq, out) != 0 or out.flags & INDEX_HOLE:
        return NULL
    return out


cdef bint gather(Forwarder *forwarder, Route *route, uint64_t last, uint32_t records_max, Gathered *out) noexcept nogil:
    cdef Outlets *outlets = outlets_of(forwarder.core, route.source)
    cdef Note *note = outlets.oldest
    cdef uint64_t seq = route.cursor + 1
    memset(out, 0, sizeof(Gathered))
    out.last = route.cursor
    if seq > last:
        return False
    route.full = route.flags & ROUTE_EXACT and _origins_full(forwarder.core, &forwarder.core.regions.table[route.dest], records_max)
    if _whole_note(route, outlets.merged, seq, last):
        note = outlets.merged
    else:
        while note != NULL and note.last_seq < seq:
            note = note.next
        if not _whole_note(route, note, seq, last) or (note.next != NULL and note.next.first_seq == note.last_seq + 1 and not note.whole):
            return _build(forwarder, route, outlets, note, last, records_max, out)
    if note.count > records_max or (_is_whole(route, &note.entries[0]) and not note.whole):
        return _build(forwarder, route, outlets, note, last, records_max, out)
    note.refs += 1
    out.note = note
    out.count = note.count
    out.last = note.last_seq
    out.writes = _is_whole(route, &note.entries[0])
    return True


cdef bint _build(Forwarder *forwarder, Route *route, Outlets *outlets, const Note *note, uint64_t last, uint32_t records_max,
                 Gathered *out) noexcept nogil:
    """Gather record by record, from notes where they stand and from the index where they do not, up to the first gap that has to be told."""
    cdef Core *core = forwarder.core
    cdef topic_slot *topic = &core.regions.table[route.source]
    cdef uint64_t seq = route.cursor + 1, end
    cdef uint32_t room = <uint32_t>min(last - route.cursor, <uint64_t>records_max)
    cdef Note *made = _note_new(room, True)
    cdef const index_entry *entry
    cdef index_entry sealed
    cdef bint lost, noted
    if made == NULL:
        return False
    made.first_seq = seq
    while seq <= last and made.count < room and made.blob_used < GATHER_BYTES_MAX:
        while note != NULL and note.last_seq < seq:
            note = note.next
        noted = note != NULL and note.first_seq <= seq and note.count == note.last_seq - note.first_seq + 1
        noted = noted and not route.skip_first <= seq <= route.skip_last
        entry = NULL
        if noted:
            entry = &note.entries[seq - note.first_seq]
        elif seq >= topic.earliest and not route.skip_first <= seq <= route.skip_last:
            entry = _sealed(forwarder, topic, seq, &sealed) if seq <= topic.sealed_through else index_at(core.regions, topic, seq)
            if entry != NULL and entry.flags & INDEX_HOLE:
                entry = NULL
        if entry == NULL:
            end = _gap_end(forwarder, route, seq, last, note, &lost)
            if lost:
                if made.count == 0:
                    out.lost = min(end + 1 - seq, <uint64_t>CURSOR_COUNT_MAX)
                    out.last = seq + out.lost - 1
                    note_drop(made)
                    return True
                break
            seq = end + 1
            continue
        if not entry.flags & INDEX_DELETED:
            if made.count == 0:
                made.whole = _is_whole(route, entry)
            elif made.whole != _is_whole(route, entry):
                break
            if _gather_one(forwarder, route, made, seq, note if noted else NULL, entry) != 0:
                if made.count == 0:    # it cannot be read: the copy of it is lost
                    note_drop(made)
                    out.lost = 1
                    out.last = seq
                    return True
                break
        seq += 1
    out.last = seq - 1
    made.last_seq = out.last
    if made.count == 0:
        note_drop(made)
        return out.last > route.cursor
    out.note = made
    out.count = made.count
    out.writes = made.whole
    if not made.whole and route.match_kind == MATCH_NONE and not route.flags & ROUTE_CYCLE and made.count == made.last_seq - made.first_seq + 1:
        note_drop(outlets.merged)
        outlets.merged = made
        made.refs += 1
    return True


cdef int _gather_one(Forwarder *forwarder, Route *route, Note *made, uint64_t seq, const Note *note, const index_entry *entry) noexcept nogil:
    """Put one record into the note if the route takes it. -1: it cannot be read."""
    cdef const record_entry *record
    cdef const Part *part
    cdef Origin origin
    cdef uint32_t number
    if note != NULL and (note.whole or not made.whole):
        number = <uint32_t>(seq - note.first_seq)
        part = &note.parts[number]
        if not _takes(route, entry.flags, note.blob + part.tag_at if note.blob != NULL else NULL, part.tag_bytes):
            return 0
        if note.came != NULL and note.came[number].text and note_came(made, made.count, note.came[number].text, note.came[number].source) != 0:
            return -1
        return _note_again(made, seq, note, number)
    record = log_record(forwarder, entry, made.whole)
    if record == NULL:
        return -1
    if not _takes(route, entry.flags, entry_tag(record), record.tag_bytes):
        return 0
    if entry.flags & INDEX_ORIGIN and note != NULL and note.came != NULL and note.came[seq - note.first_seq].text:
        number = <uint32_t>(seq - note.first_seq)    # the topic's own runs may have been let go since: it is sealed
        if note_came(made, made.count, note.came[number].text, note.came[number].source) != 0:
            return -1
    elif entry.flags & INDEX_ORIGIN:
        origin_find(forwarder.core.regions, forwarder.core.regions.table[route.source].origins, seq, &origin)
        if origin.text_bytes and note_came(made, made.count, origin_text(forwarder.core, route.source, seq), origin.source) != 0:
            return -1
    return _note_put(made, seq, entry, record)


cdef uint64_t note_payload(const Note *note, uint32_t count, uint32_t flags) noexcept nogil:
    """Bytes that the first `count` copies of a note count in their destination."""
    cdef uint64_t bytes = 0
    cdef uint32_t number
    if count == note.count and not flags & (ROUTE_DROP_NODE | ROUTE_DROP_TAG):
        return note.payload
    for number in range(count):
        bytes += _shown_bytes(note, number, flags)
    return bytes


cdef inline uint32_t _shown_bytes(const Note *note, uint32_t number, uint32_t flags) noexcept nogil:
    cdef uint32_t bytes = note.entries[number].bytes, marks = note.entries[number].flags
    if flags & ROUTE_DROP_NODE and not marks & INDEX_DROP_NODE:
        bytes -= note.parts[number].node_bytes
    if flags & ROUTE_DROP_TAG and not marks & INDEX_DROP_TAG:
        bytes -= note.parts[number].tag_bytes
    return bytes


cdef uint32_t fitting(Forwarder *forwarder, const Route *route, const Note *note, uint32_t count, uint64_t bytes_left, bint *never) noexcept nogil:
    cdef topic_slot *topic = &forwarder.core.regions.table[route.dest]
    cdef uint64_t records_left = <uint64_t>-1, bytes, cap
    cdef uint32_t number
    never[0] = False
    cap = topic.config.cap_bytes
    if topic.config.discard == DISCARD_REJECT and (topic.config.cap_records or cap):
        expire(forwarder.core, route.dest, forwarder.core.wall_ms, <uint64_t>-1)
        if topic.config.cap_records:
            records_left = topic.config.cap_records - min(topic.count + topic.pending_records, topic.config.cap_records)
        if cap:
            bytes_left = min(bytes_left, cap - min(topic.bytes + topic.pending_bytes, cap))
    elif topic.config.cap_records or cap:
        return count    # it trims itself
    for number in range(count):
        bytes = _shown_bytes(note, number, route.flags)
        if number >= records_left or bytes > bytes_left:
            never[0] = number == 0 and topic.config.discard == DISCARD_REJECT and cap != 0 and bytes > cap
            return number
        bytes_left -= bytes
    return count


# ---- origins --------------------------------------------------------------------------------------------------------------


cdef inline origins_head *_origins(Core *core, topic_slot *topic) noexcept nogil:
    return <origins_head *>(core.regions.index + topic.origins) if topic.origins else NULL


cdef uint64_t origin_text(Core *core, uint32_t slot, uint64_t seq) noexcept nogil:
    cdef origins_head *head = _origins(core, &core.regions.table[slot])
    cdef origin_run *runs
    cdef uint32_t low = 0, high, middle
    if head == NULL:
        return 0
    runs = <origin_run *>(head + 1)
    high = head.count
    while low < high:
        middle = low + (high - low) // 2
        if runs[middle].seq <= seq:
            low = middle + 1
        else:
            high = middle
    return runs[low - 1].text if low else 0


cdef bint _origins_full(Core *core, topic_slot *topic, uint32_t count) noexcept nogil:
    """So many more runs may not fit, even into the largest slab with its half to spare."""
    cdef origins_head *head = _origins(core, topic)
    cdef uint64_t most = ((<uint64_t>1 << (SLAB_MIN_SHIFT + SLAB_CLASSES - 1)) - sizeof(origins_head)) // sizeof(origin_run)
    return head != NULL and head.count + <uint64_t>count + 4 > most // 3 * 2


cdef int _grow_origins(Core *core, topic_slot *topic) noexcept nogil:
    """Move the runs to a larger slab, without those of records that are gone, or sealed: those have it in their meta."""
    cdef origins_head *head = _origins(core, topic)
    cdef origins_head *grown
    cdef origin_run *runs = NULL
    cdef uint32_t gone = 0, kept = 0, slab_class
    cdef uint64_t offset, old = topic.origins
    if head != NULL:
        runs = <origin_run *>(head + 1)
        while gone + 1 < head.count and runs[gone + 1].seq <= max(topic.earliest, topic.sealed_through + 1):
            gone += 1
        kept = head.count - gone
    slab_class = slab_class_for(sizeof(origins_head) + (<uint64_t>kept + kept // 2 + 4) * sizeof(origin_run))
    if slab_class >= SLAB_CLASSES:
        slab_class = SLAB_CLASSES - 1
    offset = slab_take(core.regions, slab_class)
    if offset == 0:
        return -ENOMEM
    grown = <origins_head *>(core.regions.index + offset)
    grown.slab_class = slab_class
    grown.reserved = 0
    grown.capacity = <uint32_t>(((<uint64_t>1 << (SLAB_MIN_SHIFT + slab_class)) - sizeof(origins_head)) // sizeof(origin_run))
    if kept >= grown.capacity:
        slab_give(core.regions, offset, slab_class)
        return -ENOMEM
    if kept:
        memcpy(grown + 1, runs + gone, kept * sizeof(origin_run))
    grown.count = kept
    slot_lock(topic)
    topic.origins = offset
    slot_unlock(topic)
    if old:
        slab_give(core.regions, old, head.slab_class)
    return 0


cdef uint64_t origin_keep(Core *core, uint32_t slot, const char *text, uint32_t text_bytes) noexcept nogil:
    cdef Private *own = private_of(core, slot)
    cdef OriginTexts *texts
    cdef OriginTexts *grown
    cdef uint64_t kept
    cdef uint32_t number, at, room
    if own == NULL:
        return 0
    texts = <OriginTexts *>own.origin_texts
    for number in range(texts.count if texts != NULL else 0):
        at = (texts.last + number) % texts.count
        kept = texts.kept[at]
        if kept & 0xFFFF == text_bytes and memcmp(core.regions.index + (kept >> 16), text, text_bytes) == 0:
            texts.last = at
            return kept
    if texts == NULL or texts.count == texts.room:
        room = 2 * texts.room if texts != NULL else <uint32_t>4
        grown = <OriginTexts *>realloc(texts, sizeof(OriginTexts) + room * sizeof(uint64_t))
        if grown == NULL:
            return 0
        if texts == NULL:
            grown.count = grown.last = 0
        grown.room = room
        texts = grown
        own.origin_texts = grown
    kept = slab_take(core.regions, slab_class_for(text_bytes))
    if kept == 0:
        return 0
    memcpy(core.regions.index + kept, text, text_bytes)
    kept = kept << 16 | text_bytes
    texts.last = texts.count
    texts.kept[texts.count] = kept
    texts.count += 1
    return kept


cdef int route_origin(Core *core, topic_slot *topic, uint64_t seq, uint64_t source, const char *text, uint32_t text_bytes) noexcept nogil:
    """Say where copy `seq` comes from."""
    cdef origins_head *head = _origins(core, topic)
    cdef origin_run *last = NULL
    cdef uint64_t kept = origin_keep(core, <uint32_t>(topic - core.regions.table), text, text_bytes)
    if kept == 0:
        return -ENOMEM
    if head != NULL and head.count:
        last = <origin_run *>(head + 1) + (head.count - 1)
        if last.text == kept and last.source + (seq - last.seq) == source:
            return 0
    if (head == NULL or head.count == head.capacity) and _grow_origins(core, topic) != 0:
        return -ENOMEM
    head = _origins(core, topic)
    last = <origin_run *>(head + 1) + head.count
    last.seq = seq
    last.source = source
    last.text = kept
    store_release_32(&head.count, head.count + 1)
    return 0


cdef void _forget_topic(Core *core, uint32_t slot, Private *own) noexcept nogil:
    """Free what a topic that goes has held: its outlets (its routes are gone by now) and its origins."""
    cdef topic_slot *topic = &core.regions.table[slot]
    cdef origins_head *head = NULL if core.closing else _origins(core, topic)
    cdef OriginTexts *texts = <OriginTexts *>own.origin_texts
    cdef uint64_t old = topic.origins
    cdef uint32_t number
    if own.outlets != NULL:
        _free_outlets(<Forwarder *>core.forwarder, own)
    if head != NULL:
        slot_lock(topic)
        topic.origins = 0
        slot_unlock(topic)
        slab_give(core.regions, old, head.slab_class)
    for number in range(0 if core.closing or texts == NULL else texts.count):
        slab_give(core.regions, texts.kept[number] >> 16, slab_class_for(texts.kept[number] & 0xFFFF))
    free(texts)
    own.origin_texts = NULL


# ---- copies become visible ------------------------------------------------------------------------------------------------


cdef uint32_t _marks(const Route *route, uint32_t flags) noexcept nogil:
    """The marks of a copy, from those of what it is a copy of."""
    cdef uint32_t hops = min(((flags >> INDEX_HOPS_SHIFT) & INDEX_HOPS_MAX) + 1, <uint32_t>INDEX_HOPS_MAX)
    flags = (flags & <uint32_t>(INDEX_TAGGED | INDEX_DROP_NODE | INDEX_DROP_TAG | INDEX_ORIGIN)) | INDEX_COPY | hops << INDEX_HOPS_SHIFT
    if route.flags & ROUTE_DROP_NODE:
        flags |= INDEX_DROP_NODE
    if route.flags & ROUTE_DROP_TAG:
        flags = (flags | INDEX_DROP_TAG) & ~<uint32_t>INDEX_TAGGED
    if route.flags & ROUTE_EXACT:
        flags |= INDEX_ORIGIN
    return flags


cdef int publish_copies(Forwarder *forwarder, Route *route, const Note *note, uint32_t count, uint64_t base, uint64_t ts) noexcept nogil:
    cdef Core *core = forwarder.core
    cdef topic_slot *topic = &core.regions.table[route.dest]
    cdef Private *own
    cdef index_entry *out
    cdef uint64_t bytes = 0
    cdef uint32_t number, fleeting = INDEX_FLEETING if topic.config.durability == CLASS_EPHEMERAL else 0
    cdef bint tagged = False
    touch(core, route.dest)
    if entries_room(core, count) != 0 or (topic.config.type == TOPIC_QUEUE and jobs_of(core, route.dest) == NULL):
        return -1
    for number in range(count):
        out = &core.entries[number]
        out.position = note.entries[number].position
        out.bytes = _shown_bytes(note, number, route.flags)
        out.flags = _marks(route, note.entries[number].flags) | fleeting
        out.ts = ts
        bytes += out.bytes
        tagged |= out.flags & INDEX_TAGGED != 0
        if out.flags & INDEX_ORIGIN and _copy_origin(core, topic, route, note, number, base + number) != 0:
            return -1
    own = private_of(core, route.dest) if tagged else core.privates[route.dest]
    if (tagged and own == NULL) or index_append(core.regions, topic, base, core.entries, count) != 0:
        return -1
    for number in range(count if tagged else 0):
        if core.entries[number].flags & INDEX_TAGGED:
            if own.tags == NULL:
                own.tags = tags_new()
            if own.tags != NULL:
                tags_add(own.tags, note.blob + note.parts[number].tag_at, note.parts[number].tag_bytes, base + number)
    if own != NULL and own.outlets != NULL:
        _note_copies(forwarder, route.dest, <Outlets *>own.outlets, note, count, base)
    route.forwarded += count
    forwarder.copies += count
    if topic.config.type == TOPIC_QUEUE:
        jobs_added(own.jobs, count)
    came_in(core, route.dest, own, base, count, bytes, ts)
    return 0


cdef int _copy_origin(Core *core, topic_slot *topic, const Route *route, const Note *note, uint32_t number, uint64_t seq) noexcept nogil:
    cdef uint64_t text
    if route.flags & ROUTE_EXACT:
        return route_origin(core, topic, seq, note_seq(note, number), route.text, route.text_bytes)
    text = note.came[number].text if note.came != NULL else 0
    if text == 0:    # nobody knows any more where it came from
        core.entries[number].flags &= ~<uint32_t>INDEX_ORIGIN
        return 0
    return route_origin(core, topic, seq, note.came[number].source, <const char *>core.regions.index + (text >> 16), <uint32_t>(text & 0xFFFF))


cdef void _note_copies(Forwarder *forwarder, uint32_t slot, Outlets *outlets, const Note *theirs, uint32_t count, uint64_t base) noexcept nogil:
    """A destination that is a source itself: note the copies that have just come in (`core.entries`)."""
    cdef Core *core = forwarder.core
    cdef Note *note = _note_new(count, False)
    cdef uint32_t number
    cdef uint64_t text
    if note != NULL:
        note.first_seq = base
        note.last_seq = base + count - 1
        for number in range(count):
            note.entries[number] = core.entries[number]
            note.parts[number] = theirs.parts[number]
            note.parts[number].tag_at = <uint32_t>note.blob_used
            if core.entries[number].flags & INDEX_TAGGED:
                if _blob_put(note, theirs.blob + theirs.parts[number].tag_at, theirs.parts[number].tag_bytes) != 0:
                    break
            if core.entries[number].flags & INDEX_ORIGIN:
                text = origin_text(core, slot, base + number)
                if note_came(note, number, text, _source_of(forwarder, slot, base + number)) != 0:
                    break
            note.payload += core.entries[number].bytes
            note.count += 1
        if note.count != count:
            note_drop(note)
            note = NULL
    if note != NULL:
        add_note(forwarder, slot, outlets, note)
    else:
        _heat(forwarder, slot, outlets)


cdef uint64_t _source_of(Forwarder *forwarder, uint32_t slot, uint64_t seq) noexcept nogil:
    cdef Origin origin
    origin.source = 0
    origin_find(forwarder.core.regions, forwarder.core.regions.table[slot].origins, seq, &origin)
    return origin.source


# ---- copies that are written out ------------------------------------------------------------------------------------------


cdef routed_key *routed_of(const frame_header *frame) noexcept nogil:
    cdef const key_section *section = <const key_section *>(<const uint8_t *>frame + FRAME_HEADER_BYTES)
    if frame.type != FRAME_APPEND or not frame.flags & FRAME_FLAG_ROUTED or not frame.flags & FRAME_FLAG_KEY:
        return NULL
    if section.key_bytes != sizeof(routed_key) or (<const routed_key *>(section + 1)).mark != ROUTED_MARK:
        return NULL
    return <routed_key *>(section + 1)


cdef frame_header *routed_frame(Forwarder *forwarder, const Route *route, const Note *note, uint32_t count, uint64_t last) noexcept nogil:
    cdef uint64_t room = FRAME_HEADER_BYTES + sizeof(key_section) + sizeof(routed_key)
    cdef frame_header *frame
    cdef key_section *section
    cdef routed_key *key
    cdef uint8_t *at
    cdef uint32_t number
    for number in range(count):
        room += entry_bytes(<const record_entry *>(note.blob + note.parts[number].record_at)) + ORIGIN_BYTES_MAX + 16
    if room > <uint64_t>0xFFFFFFF8u:
        return NULL
    frame = <frame_header *>calloc(1, room)
    if frame == NULL:
        return NULL
    section = <key_section *>(<uint8_t *>frame + FRAME_HEADER_BYTES)
    section.key_bytes = sizeof(routed_key)
    key = <routed_key *>(section + 1)
    key.mark = ROUTED_MARK
    key.route = route.number
    key.before = route.cursor
    key.after = last
    at = <uint8_t *>(key + 1)
    for number in range(count):
        at = _write_out(forwarder, route, note, number, at)
    frame.magic = FRAME_MAGIC
    frame.type = FRAME_APPEND
    frame.flags = <uint8_t>(FRAME_FLAG_KEY | FRAME_FLAG_ROUTED)
    frame.count = count
    frame.topic_id = route.dest_id
    frame.length = <uint32_t>(at - <uint8_t *>frame)
    return frame


cdef uint8_t *_write_out(Forwarder *forwarder, const Route *route, const Note *note, uint32_t number, uint8_t *at) noexcept nogil:
    """Write one record entry as the copy's reader sees it."""
    cdef const record_entry *record = <const record_entry *>(note.blob + note.parts[number].record_at)
    cdef record_entry *out = <record_entry *>at
    cdef uint32_t marks = _marks(route, note.entries[number].flags), extended = record.length_flags & ENTRY_FLAG_EXT
    cdef uint64_t text = note.came[number].text if note.came != NULL else 0
    cdef uint8_t *place = at + sizeof(record_entry)
    cdef uint8_t *meta
    cdef Origin origin
    out.length_flags = extended
    if extended:
        memcpy(place, record + 1, sizeof(entry_ext))
        place += sizeof(entry_ext)
    if not marks & INDEX_DROP_NODE:
        out.node_bytes = record.node_bytes
        out.length_flags |= record.length_flags & ENTRY_FLAG_EMPTY_NODE
        memcpy(place, entry_node(record), record.node_bytes)
        place += record.node_bytes
    if not marks & INDEX_DROP_TAG:
        out.tag_bytes = record.tag_bytes
        out.length_flags |= record.length_flags & ENTRY_FLAG_EMPTY_TAG
        memcpy(place, entry_tag(record), record.tag_bytes)
        place += record.tag_bytes
    meta = place
    origin.text_bytes = 0
    if route.flags & ROUTE_EXACT:
        origin.text_bytes = route.text_bytes
        memcpy(origin.text, route.text, route.text_bytes)
        origin.source = note_seq(note, number)
    elif marks & INDEX_ORIGIN and text:
        origin.text_bytes = <uint32_t>(text & 0xFFFF)
        memcpy(origin.text, forwarder.core.regions.index + (text >> 16), origin.text_bytes)
        origin.source = note.came[number].source
    if origin.text_bytes:
        place = put_origin_meta(place, &origin, entry_meta(record), record.meta_bytes)
    else:
        memcpy(place, entry_meta(record), record.meta_bytes)
        place += record.meta_bytes
    out.meta_bytes = <uint32_t>(place - meta)
    out.data_bytes = record.data_bytes
    memcpy(place, entry_data(record), record.data_bytes)
    place += record.data_bytes
    at += align8(place - at)
    out.length_flags |= <uint32_t>(at - <uint8_t *>out)
    return at


# ---- replay ---------------------------------------------------------------------------------------------------------------


cdef int _replay_row(Forwarder *forwarder, const frame_header *frame, uint64_t before, const cursor_row *row) noexcept nogil:
    """Make the copies of one row again. What the destination holds already stays as it is; a cursor never goes back."""
    cdef Core *core = forwarder.core
    cdef Route *route = route_of(forwarder, row.route)
    cdef topic_slot *topic
    cdef uint32_t count = row.count & CURSOR_COUNT_MAX
    cdef uint64_t known
    cdef int status = 0
    if route == NULL or route.source_id != frame.topic_id:
        return 1
    topic = &core.regions.table[route.dest]
    touch(core, route.source)
    touch(core, route.dest)
    topic.last_position = frame.position    # it names the destination: no damage in front of it has taken what came behind
    known = route.cursor
    if topic.config.durability == CLASS_EPHEMERAL:    # its copies have ended with the server
        if count and leave_hole(core, route.dest, row.dest_base + count - 1, LOSS_MIXED) != 0:
            return -1
    elif count and row.dest_base > topic.head:
        route.cursor = before
        status = _replay_copies(forwarder, route, topic, frame, row, count)
    elif count and row.dest_base + count - 1 > topic.head:
        status = 1
    route.cursor = max(known, frame.base_seq)
    if frame.base_seq > known:
        route.forwarded += 0 if row.count & CURSOR_HOLE or topic.config.durability != CLASS_EPHEMERAL else count
        route.lost += count if row.count & CURSOR_HOLE else 0
    return status


cdef int _replay_copies(Forwarder *forwarder, Route *route, topic_slot *topic, const frame_header *frame, const cursor_row *row,
                        uint32_t count) noexcept nogil:
    cdef Core *core = forwarder.core
    cdef Gathered found
    cdef uint32_t made = 0
    cdef uint64_t ts = max(frame.ts, topic.last_ts)
    if row.dest_base > topic.head + 1 and leave_hole(core, route.dest, row.dest_base - 1, LOSS_CORRUPT) != 0:
        return -1
    while not row.count & CURSOR_HOLE and made < count and gather(forwarder, route, frame.base_seq, count - made, &found):
        if found.note != NULL and not found.writes:
            if publish_copies(forwarder, route, found.note, found.count, topic.head + 1, ts) != 0:
                note_drop(found.note)
                return -1
            made += found.count
        note_drop(found.note)
        route.cursor = found.last
    if made:
        topic.last_ts = ts
    if made < count and leave_hole(core, route.dest, topic.head + count - made,
                                   LOSS_SOURCE_TRIM if row.count & CURSOR_HOLE else LOSS_CORRUPT) != 0:
        return -1
    topic.next_seq = topic.head + 1
    return 0 if made == count or row.count & CURSOR_HOLE else 1


cdef int replay_cursors(Forwarder *forwarder, const frame_header *frame) noexcept nogil:
    cdef const cursor_head *head = <const cursor_head *>(<const uint8_t *>frame + FRAME_HEADER_BYTES)
    cdef const cursor_row *rows = <const cursor_row *>(head + 1)
    cdef Route *route = NULL
    cdef uint32_t number
    cdef int status, worst = 0
    if FRAME_HEADER_BYTES + sizeof(cursor_head) + frame.count * <uint64_t>sizeof(cursor_row) > frame.length:
        return 1
    if forwarder.maps_open:
        maps_refresh(&forwarder.maps)
    for number in range(frame.count):
        status = _replay_row(forwarder, frame, head.before, &rows[number])
        if status < 0:
            return status
        worst = max(worst, status)
        if route == NULL:
            route = route_of(forwarder, rows[number].route)
    if route != NULL:
        pass_done(forwarder, outlets_of(forwarder.core, route.source))
    return worst
