"""Let go of old log files that routers hold (see log_pins.pxd)."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from topicsd._native.engine_core cimport EngineCore
from topicsd._native.ephemeral cimport arena_put
from topicsd._native.fleeting cimport INDEX_FLEETING
from topicsd._native.frame cimport align8, entry_bytes, entry_data, entry_meta, entry_node, entry_tag
from topicsd._native.index cimport index_at
from topicsd._native.layout cimport (
    ENTRY_FLAG_EMPTY_NODE, ENTRY_FLAG_EMPTY_TAG, ENTRY_FLAG_EXT, INDEX_DELETED, INDEX_DROP_NODE, INDEX_DROP_TAG, INDEX_HOLE, INDEX_PAGE_ENTRIES,
    POSITION_BITS, POSITION_MASK, SOURCE_EPHEMERAL, entry_ext, index_entry, record_entry, topic_slot,
)
from topicsd._native.maps cimport maps_refresh
from topicsd._native.routes cimport Forwarder, Note, Outlets, drop_oldest, log_record, note_drop
from topicsd._native.table cimport slot_lock, slot_unlock
from topicsd._native.topics cimport Core, Private, private_of, touch

cdef enum:
    BYTES_A_CALL = 2 << 20    # of copies: the writer's step stays short
    LOOKS_A_CALL = 65536      # slots and entries

cdef struct Work:
    uint64_t notes, moved, bytes, looks
    bint full                 # ephemeral memory has no room


cdef inline bint _is_old(const index_entry *entry, uint32_t shard, uint64_t below) noexcept nogil:
    return entry.position >> POSITION_BITS == shard and entry.position & POSITION_MASK < below


cdef bint _note_is_old(const Note *note, uint32_t shard, uint64_t below) noexcept nogil:
    cdef uint32_t number
    for number in range(note.count if note != NULL else 0):
        if _is_old(&note.entries[number], shard, below):
            return True
    return False


cdef void _forget_notes(Core *core, uint32_t slot, Outlets *outlets, uint32_t shard, uint64_t below, Work *work) noexcept nogil:
    cdef Note *note = outlets.oldest
    cdef uint64_t old = 0, number = 0
    while note != NULL:
        number += 1
        if _note_is_old(note, shard, below):
            old = number
        note = note.next
    if old or _note_is_old(outlets.merged, shard, below):
        touch(core, slot)
    if _note_is_old(outlets.merged, shard, below):
        note_drop(outlets.merged)
        outlets.merged = NULL
    while old:
        drop_oldest(outlets)
        work.notes += 1
        old -= 1


cdef int _move(Forwarder *forwarder, Private *own, uint32_t slot, uint64_t seq, index_entry *entry, Work *work) noexcept nogil:
    """Write a copy's record, as its readers see it, to ephemeral memory. -1: there is no room, or it can not be read."""
    cdef Core *core = forwarder.core
    cdef const record_entry *record = log_record(forwarder, entry, True)
    cdef uint8_t *made
    cdef record_entry *out
    cdef uint8_t *at
    cdef uint64_t offset = 0
    if record == NULL:
        return -1
    made = <uint8_t *>malloc(entry_bytes(record))
    if made == NULL:
        return -1
    memset(made, 0, entry_bytes(record))
    out = <record_entry *>made
    out.length_flags = record.length_flags & ENTRY_FLAG_EXT
    at = made + sizeof(record_entry)
    if out.length_flags:
        memcpy(at, record + 1, sizeof(entry_ext))
        at += sizeof(entry_ext)
    if not entry.flags & INDEX_DROP_NODE:
        out.node_bytes = record.node_bytes
        out.length_flags |= record.length_flags & ENTRY_FLAG_EMPTY_NODE
        memcpy(at, entry_node(record), record.node_bytes)
        at += record.node_bytes
    if not entry.flags & INDEX_DROP_TAG:
        out.tag_bytes = record.tag_bytes
        out.length_flags |= record.length_flags & ENTRY_FLAG_EMPTY_TAG
        memcpy(at, entry_tag(record), record.tag_bytes)
        at += record.tag_bytes
    out.meta_bytes, out.data_bytes = record.meta_bytes, record.data_bytes
    memcpy(at, entry_meta(record), record.meta_bytes)
    memcpy(at + record.meta_bytes, entry_data(record), record.data_bytes)
    at += record.meta_bytes + record.data_bytes
    out.length_flags |= <uint32_t>align8(at - made)
    if arena_put(&core.arena, core.regions, &own.chunks, made, <uint32_t>align8(at - made), seq, &offset) != 0:
        free(made)
        work.full = True
        return -1
    slot_lock(&core.regions.table[slot])
    entry.position = <uint64_t>SOURCE_EPHEMERAL << POSITION_BITS | offset
    slot_unlock(&core.regions.table[slot])
    work.moved += 1
    work.bytes += align8(at - made)
    free(made)
    return 0


cdef void _move_copies(Forwarder *forwarder, uint32_t slot, uint32_t shard, uint64_t below, Work *work) noexcept nogil:
    cdef Core *core = forwarder.core
    cdef topic_slot *topic = &core.regions.table[slot]
    cdef uint64_t seq = max(topic.earliest, topic.sealed_through + 1)
    cdef Private *own = NULL
    cdef index_entry *entry
    while seq <= topic.head and work.bytes < BYTES_A_CALL and not work.full:
        work.looks += 1
        entry = index_at(core.regions, topic, seq)
        if entry == NULL:    # a whole page of a hole
            seq += INDEX_PAGE_ENTRIES - (seq - topic.index_base) % INDEX_PAGE_ENTRIES
            continue
        if entry.flags & INDEX_FLEETING and not entry.flags & (INDEX_HOLE | INDEX_DELETED) and _is_old(entry, shard, below):
            if own == NULL:
                touch(core, slot)
                own = private_of(core, slot)
                if own == NULL:
                    return
            _move(forwarder, own, slot, seq, entry, work)
        seq += 1


def let_go(EngineCore core not None, uint32_t shard, uint64_t below, uint64_t first_slot):
    """Return (slot to go on at, notes forgotten, copies moved, ephemeral memory is full): some of what holds a shard's log below a position."""
    cdef Core *c = &core.core
    cdef Forwarder *forwarder = &core.forwarder
    cdef uint64_t slot = first_slot, high = c.regions.control.table_high
    cdef Work work
    memset(&work, 0, sizeof(work))
    with nogil:
        if forwarder.maps_open:
            maps_refresh(&forwarder.maps)
        while slot < high and work.bytes < BYTES_A_CALL and work.looks < LOOKS_A_CALL and not work.full:
            work.looks += 1
            # `lows` is inverted: above ~below is a lower place.
            if c.changes.lows[slot * c.changes.shards + shard] > ~below and c.regions.table[slot].topic_id:
                if c.privates[slot] != NULL and c.privates[slot].outlets != NULL:
                    _forget_notes(c, <uint32_t>slot, <Outlets *>c.privates[slot].outlets, shard, below, &work)
                _move_copies(forwarder, <uint32_t>slot, shard, below, &work)
                if work.bytes >= BYTES_A_CALL:
                    break    # there may be more in this one
            slot += 1
    return slot, work.notes, work.moved, bool(work.full)


def holder(EngineCore core not None, uint32_t shard):
    """Return (slot, position) of the topic that points at the lowest place of a shard's log, as of its last row; None when none does."""
    cdef Core *c = &core.core
    cdef uint64_t slot, lowest = 0, found = 0
    for slot in range(c.regions.control.table_high):
        if c.changes.lows[slot * c.changes.shards + shard] > lowest and c.regions.table[slot].topic_id:
            lowest, found = c.changes.lows[slot * c.changes.shards + shard], slot
    return (found, ~lowest) if lowest else None
