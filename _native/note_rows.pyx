"""Notes of routers in a snapshot (see note_rows.pxd)."""

from libc.errno cimport ENOMEM
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from topicsd._native.checkpoint cimport OriginRow, Packed, low_is
from topicsd._native.engine_core cimport EngineCore
from topicsd._native.fleeting cimport ends_with_server
from topicsd._native.frame cimport entry_bytes
from topicsd._native.layout cimport INDEX_DELETED, INDEX_TAGGED, NO_SLOT, POSITION_BITS, POSITION_MASK, SHARDS_MAX, index_entry, record_entry
from topicsd._native.routes cimport Note, Outlets, Part, add_note, note_came, note_new, origin_keep
from topicsd._native.topics cimport Core, Private


# ---- pack -------------------------------------------------------------------------------------------------------------------


cdef bint _lasts(const Note *note) noexcept nogil:
    """Tell whether all of a note points into the log. (What is gathered from segments is never noted.)"""
    cdef uint32_t number
    if note.seqs != NULL or note.count == 0:
        return False
    for number in range(note.count):
        if note.entries[number].position >> POSITION_BITS >= SHARDS_MAX or ends_with_server(&note.entries[number]):
            return False
    return True


cdef int _put_note(Packed out, Core *core, uint64_t topic_id, const Note *note) noexcept nogil:
    cdef NoteRow row
    cdef uint64_t at = out.used
    cdef uint32_t number
    memset(&row, 0, sizeof(row))
    row.topic_id, row.first_seq, row.count = topic_id, note.first_seq, note.count
    row.flags, row.blob_bytes = NOTE_WHOLE if note.whole else 0, <uint32_t>note.blob_used
    if out.put(&row, sizeof(row)) != 0 or out.put(note.entries, note.count * sizeof(index_entry)) != 0:
        return -ENOMEM
    if out.put(note.parts, note.count * sizeof(Part)) != 0 or (note.blob_used and out.put(note.blob, note.blob_used) != 0) or out.align() != 0:
        return -ENOMEM
    for number in range(note.count if note.came != NULL else 0):
        if note.came[number].text:
            row.origins += 1
            if _put_origin(out, core, note, number) != 0:
                return -ENOMEM
    (<NoteRow *>(out.bytes + at)).origins = row.origins
    return 0


cdef int _put_origin(Packed out, Core *core, const Note *note, uint32_t number) noexcept nogil:
    cdef OriginRow row
    row.seq, row.source = note.first_seq + number, note.came[number].source
    row.text_bytes, row.reserved = <uint32_t>(note.came[number].text & 0xFFFF), 0
    if out.put(&row, sizeof(row)) != 0 or out.put(core.regions.index + (note.came[number].text >> 16), row.text_bytes) != 0:
        return -ENOMEM
    return out.align()


cdef int pack_notes(Packed out, Core *core, uint32_t slot) noexcept nogil:
    """All notes that some route of a source has still to pass."""
    cdef Private *own = core.privates[slot]
    cdef Outlets *outlets
    cdef const Note *note
    cdef uint64_t passed = <uint64_t>-1
    cdef uint32_t number
    if own == NULL or own.outlets == NULL:
        return 0
    outlets = <Outlets *>own.outlets
    for number in range(outlets.count):
        passed = min(passed, outlets.routes[number].cursor)
    note = outlets.oldest
    while note != NULL:
        if note.last_seq > passed and _lasts(note) and _put_note(out, core, core.regions.table[slot].topic_id, note) != 0:
            return -ENOMEM
        note = note.next
    return 0


# ---- load -------------------------------------------------------------------------------------------------------------------


cdef class Rows:
    """The rows that are left to read."""

    cdef const uint8_t *begin
    cdef const uint8_t *at
    cdef const uint8_t *end

    cdef const uint8_t *take(self, uint64_t size) except NULL:
        cdef const uint8_t *at = self.at
        if size > <uint64_t>(self.end - self.at):
            raise ValueError("a router's note is cut short")
        self.at += size
        return at

    cdef int align(self) except -1:
        self.take((8 - (self.at - self.begin) % 8) % 8)
        return 0


cdef bint _is_damaged(const index_entry *entry, list damaged) except -1:
    cdef uint64_t position = entry.position & POSITION_MASK, shard = entry.position >> POSITION_BITS
    if shard >= <uint64_t>len(damaged) or not damaged[shard] or entry.flags & INDEX_DELETED:
        return False
    return any([first <= position < end for first, end in damaged[shard]])


cdef int _check(const NoteRow *row, const Part *parts, const index_entry *entries, const uint8_t *blob) except -1:
    """Refuse a row whose parts do not lie in its blob."""
    cdef uint32_t number
    cdef uint64_t left
    for number in range(row.count):
        if row.flags & NOTE_WHOLE:
            left = row.blob_bytes - min(parts[number].record_at, row.blob_bytes)
            if left < sizeof(record_entry) or entry_bytes(<const record_entry *>(blob + parts[number].record_at)) > left:
                raise ValueError(f"topic {row.topic_id}: the note of seq {row.first_seq + number} has no record")
        if entries[number].flags & INDEX_TAGGED and <uint64_t>parts[number].tag_at + parts[number].tag_bytes > row.blob_bytes:
            raise ValueError(f"topic {row.topic_id}: the note of seq {row.first_seq + number} has no tag")
    return 0


cdef Note *_part_of(const NoteRow *row, const index_entry *entries, const Part *parts, const uint8_t *blob, uint32_t first, uint32_t end) except NULL:
    """Make a note of the records `first` to `end` of a row."""
    cdef Note *note = note_new(end - first, blob, row.blob_bytes)
    cdef uint32_t number
    if note == NULL:
        raise MemoryError
    note.whole = row.flags & NOTE_WHOLE != 0
    note.first_seq, note.last_seq, note.count = row.first_seq + first, row.first_seq + end - 1, end - first
    memcpy(note.entries, entries + first, note.count * sizeof(index_entry))
    memcpy(note.parts, parts + first, note.count * sizeof(Part))
    for number in range(note.count):
        note.payload += note.entries[number].bytes
        note.marred |= note.entries[number].flags & INDEX_DELETED != 0
    return note


cdef int _origins(Rows rows, Core *core, uint32_t slot, uint32_t count, list notes) except -1:
    """Say where exactly-once copies among a row's notes come from. `notes`: their addresses, in order."""
    cdef OriginRow row
    cdef const uint8_t *text
    cdef uint64_t kept
    cdef Note *note
    cdef uint32_t _
    for _ in range(count):
        memcpy(&row, rows.take(sizeof(row)), sizeof(row))
        text = rows.take(row.text_bytes)
        rows.align()
        for address in notes:
            note = <Note *><uint64_t>address
            if note.first_seq <= row.seq <= note.last_seq:
                kept = origin_keep(core, slot, <const char *>text, row.text_bytes)
                if kept == 0 or note_came(note, <uint32_t>(row.seq - note.first_seq), kept, row.source) != 0:
                    raise MemoryError
    return 0


cdef int _load_one(EngineCore core, Rows rows, list damaged, uint32_t number) except -1:
    """Load one row, if its topic's row came from the same snapshot; return how many of its records are lost."""
    cdef NoteRow row
    cdef const index_entry *entries
    cdef const Part *parts
    cdef const uint8_t *blob
    cdef uint32_t slot, at = 0, end, lost = 0
    cdef list notes = []
    cdef bint gone
    cdef OriginRow origin
    cdef uint32_t _
    memcpy(&row, rows.take(sizeof(row)), sizeof(row))
    entries = <const index_entry *>rows.take(row.count * <uint64_t>sizeof(index_entry))
    parts = <const Part *>rows.take(row.count * <uint64_t>sizeof(Part))
    blob = rows.take(row.blob_bytes)
    rows.align()
    _check(&row, parts, entries, blob)
    slot = core._slot_of(row.topic_id)
    if slot == NO_SLOT or core.core.changes.stamps[slot] != number:
        for _ in range(row.origins):
            memcpy(&origin, rows.take(sizeof(origin)), sizeof(origin))
            rows.take(origin.text_bytes)
            rows.align()
        return 0
    for at in range(row.count):
        low_is(&core.core, slot, entries[at].position)
    at = 0
    if core.core.privates[slot] == NULL or core.core.privates[slot].outlets == NULL:
        raise ValueError(f"topic {row.topic_id}: no router leaves it, and it has notes")
    while at < row.count:
        gone = _is_damaged(&entries[at], damaged)
        end = at + 1
        while end < row.count and _is_damaged(&entries[end], damaged) == gone:
            end += 1
        if gone:
            lost += end - at
        else:
            notes.append(<uint64_t>_part_of(&row, entries, parts, blob, at, end))
        at = end
    _origins(rows, &core.core, slot, row.origins, notes)
    for address in notes:
        add_note(&core.forwarder, slot, <Outlets *>core.core.privates[slot].outlets, <Note *><uint64_t>address)
    return <int>lost


def load_notes(EngineCore core not None, const uint8_t[::1] raw not None, list damaged not None, uint32_t number):
    """Put the notes of snapshot `number` back; topics and routers are there already. Return how many records are lost to damage.

    damaged: by shard, ranges of the log, [(first position, end)]: what stands there is not noted, so the index decides.
    Raises ValueError for a row that is not what it should be, MemoryError.
    """
    cdef Rows rows = Rows()
    cdef uint64_t lost = 0
    if raw.shape[0] == 0:
        return 0
    rows.begin = rows.at = &raw[0]
    rows.end = rows.at + raw.shape[0]
    while rows.at < rows.end:
        lost += <uint64_t>_load_one(core, rows, damaged, number)
    return lost
