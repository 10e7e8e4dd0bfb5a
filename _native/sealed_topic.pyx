"""A topic's sealed ranges in the writer's hands (see sealed_topic.pxd)."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from topicsd._native.frame cimport entry_tag
from topicsd._native.index cimport index_at, index_trim
from topicsd._native.layout cimport (
    INDEX_DELETED, INDEX_HOLE, INDEX_PAGE_ENTRIES, INDEX_TAGGED, MATCH_EQ, ROW_MISSED, ROW_ORIGINS, ROW_OWES, ROW_TAGS, index_entry, record_entry,
    segment_body, segment_row, topic_slot,
)
from topicsd._native.maps cimport for_want_of_room, guarded_call
from topicsd._native.sealed cimport (
    SEGMENT_KIND_COLD, Rows, Sealed, is_gone, row_at, row_flag, row_mark, rows_append, rows_drop_below, rows_of_topic, sealed_at, sealed_met_row,
    sealed_mended, sealed_open, sealed_tell, sealed_turn,
)
from topicsd._native.segment cimport (
    SEGMENT_OK, Segment, TagRange, segment_check, segment_check_index, segment_entry, segment_record, segment_tag_postings, segment_tags_find,
    segment_verify_index,
)
from topicsd._native.tags cimport tags_drop_below
from topicsd._native.topics cimport Core, came_to_bytes, evict, job_gone, touch

cdef enum:
    TAGS_DAMAGED = 1


cdef int sealed_admits(const Core *core, uint32_t slot, const segment_body *body) noexcept nogil:
    cdef const topic_slot *topic = &core.regions.table[slot]
    cdef const segment_row *row = &body.row
    if row.last_seq < topic.earliest:
        return PUBLISH_DEAD
    if row.first_seq <= topic.sealed_through or row.last_seq > topic.head or row.last_seq < row.first_seq:
        return PUBLISH_ORDER
    if row.first_seq > topic.sealed_through + 1 and row.first_seq > topic.earliest:
        return PUBLISH_ORDER
    return PUBLISHED


cdef struct Marking:
    Core *core
    topic_slot *topic
    segment_row *row
    Segment *segment
    int result


cdef int _mark_missed(void *argument) noexcept nogil:
    """Mark what was deleted after the keeper had looked. The tail's entries still stand."""
    cdef Marking *marking = <Marking *>argument
    cdef topic_slot *topic = marking.topic
    cdef uint64_t seq = max(marking.row.first_seq, topic.earliest), upto
    cdef const index_entry *tail
    while seq <= marking.row.last_seq:
        tail = index_at(marking.core.regions, topic, seq)
        if tail != NULL and tail.flags & INDEX_DELETED:
            if segment_check_index(marking.segment, seq, 1, &upto) != SEGMENT_OK:
                marking.result = PUBLISH_BROKEN
                return 0
            if not segment_entry(marking.segment, seq).flags & INDEX_DELETED and row_mark(marking.core.regions, topic, marking.row, seq) < 0:
                marking.result = PUBLISH_MEMORY
                return 0
        seq += 1
    return 0


cdef void _tally(Core *core, topic_slot *topic, segment_row *row) noexcept nogil:
    """Sum up what the tail index says is live in the row's range."""
    cdef uint64_t seq = max(row.first_seq, topic.earliest)
    cdef const index_entry *entry
    row.live = 0
    row.live_bytes = 0
    while seq <= row.last_seq:
        entry = index_at(core.regions, topic, seq)
        if entry == NULL:    # a whole page of a hole
            seq += INDEX_PAGE_ENTRIES - (seq - topic.index_base) % INDEX_PAGE_ENTRIES
            continue
        if not entry.flags & (INDEX_DELETED | INDEX_HOLE):
            row.live += 1
            row.live_bytes += entry.bytes
        seq += 1


cdef int _restate(void *argument) noexcept nogil:
    """Count the row's bytes as its index has them: an exactly-once copy is longer there, by where it comes from."""
    cdef Marking *marking = <Marking *>argument
    cdef topic_slot *topic = marking.topic
    cdef uint64_t seq = max(marking.row.first_seq, topic.earliest), upto
    cdef const index_entry *tail
    marking.row.live_bytes = 0
    while seq <= marking.row.last_seq:
        tail = index_at(marking.core.regions, topic, seq)
        if tail != NULL and not tail.flags & (INDEX_DELETED | INDEX_HOLE):
            if segment_check_index(marking.segment, seq, 1, &upto) != SEGMENT_OK:
                marking.result = PUBLISH_BROKEN
                return 0
            marking.row.live_bytes += segment_entry(marking.segment, seq).bytes
        seq += 1
    return 0


cdef int sealed_publish(Core *core, uint32_t slot, const segment_body *body, uint32_t file) noexcept nogil:
    cdef topic_slot *topic = &core.regions.table[slot]
    cdef segment_row row = body.row
    cdef Marking marking
    cdef Rows rows
    cdef uint64_t records = row.live, shown
    touch(core, slot)
    row.file = file
    row.marks_at = row.deleted = 0
    _tally(core, topic, &row)
    shown = row.live_bytes
    if file and (row.live < records or row.flags & ROW_ORIGINS):
        sealed_turn(core.regions)
        rows.topic_id = topic.topic_id
        marking.core, marking.topic, marking.row, marking.result = core, topic, &row, PUBLISHED
        marking.segment = sealed_open(core.regions, &rows, &row, False, False)
        if marking.segment == NULL or (row.live < records and guarded_call(_mark_missed, &marking) != 0):
            return PUBLISH_BROKEN
        if marking.result == PUBLISHED and row.flags & ROW_ORIGINS and guarded_call(_restate, &marking) != 0:
            return PUBLISH_BROKEN
        if marking.result != PUBLISHED:
            return marking.result
    rows_drop_below(core.regions, topic, min(row.first_seq, topic.earliest))
    if rows_append(core.regions, topic, &row) != 0:
        return PUBLISH_MEMORY
    if row.live_bytes != shown:
        came_to_bytes(core, topic, row.live_bytes - shown)
    index_trim(core.regions, topic, topic.earliest)
    if core.privates[slot] != NULL and core.privates[slot].tags != NULL:
        tags_drop_below(core.privates[slot].tags, max(topic.earliest, topic.sealed_through + 1))
    if row.live_bytes != shown:
        evict(core, slot)
    return PUBLISHED


cdef void sealed_live(Core *core, topic_slot *topic, uint64_t first_seq, uint64_t before_seq, uint64_t *count, uint64_t *bytes) noexcept nogil:
    cdef uint64_t seq = first_seq
    cdef const segment_row *row
    cdef const index_entry *entry
    count[0] = bytes[0] = 0
    while seq < before_seq:
        row = row_at(core.regions, topic, seq)
        if row == NULL:
            return
        if seq == row.first_seq and row.last_seq < before_seq and seq >= topic.earliest:
            count[0] += row.live
            bytes[0] += row.live_bytes
            seq = row.last_seq + 1
            continue
        entry = sealed_at(core.regions, topic, seq)
        if entry != NULL and not is_gone(entry):
            count[0] += 1
            bytes[0] += entry.bytes
        seq += 1


# ---- deletes by tag ---------------------------------------------------------------------------------------------------------


cdef struct TagDeletion:
    Core *core
    topic_slot *topic
    segment_row *row
    Segment *segment
    uint32_t kind, tag_bytes
    const uint8_t *tag
    uint64_t before_seq
    uint64_t deleted, freed


cdef inline void _missed(TagDeletion *deletion) noexcept nogil:
    (<Sealed *>deletion.core.regions.sealed).missed += 1


cdef void _delete_posting(TagDeletion *deletion, uint64_t seq) noexcept nogil:
    cdef const index_entry *entry
    cdef uint32_t size
    if seq < deletion.topic.earliest or seq >= deletion.before_seq:
        return
    entry = sealed_at(deletion.core.regions, deletion.topic, seq)
    if entry == NULL or is_gone(entry):
        if entry == NULL or entry.flags & INDEX_HOLE:    # no hole has a tag: its index is damaged
            _missed(deletion)
        return
    size = entry.bytes
    if row_mark(deletion.core.regions, deletion.topic, deletion.row, seq) != 1:
        return
    deletion.row.live -= 1
    deletion.row.live_bytes -= size
    deletion.deleted += 1
    deletion.freed += size
    job_gone(deletion.core, deletion.topic, seq)


cdef int _delete_in_row(void *argument) noexcept nogil:
    cdef TagDeletion *deletion = <TagDeletion *>argument
    cdef Segment segment = deletion.segment[0]    # sealed_at opens others meanwhile; the maps stay until the next turn
    cdef TagRange found
    cdef uint32_t number, posting, count = 0
    cdef const uint32_t *postings
    cdef uint64_t seq
    if segment_tags_find(&segment, deletion.tag, deletion.tag_bytes, deletion.kind != MATCH_EQ, &found) != SEGMENT_OK:
        return TAGS_DAMAGED
    for number in range(found.first, found.end):
        postings = segment_tag_postings(&segment, &found, number, &count)
        if postings == NULL:
            return TAGS_DAMAGED
        for posting in range(count):
            seq = segment.first_seq + postings[posting]
            if seq > segment.last_seq:
                return TAGS_DAMAGED
            _delete_posting(deletion, seq)
    return 0


cdef int _index_is_good(void *argument) noexcept nogil:
    cdef const Segment *segment = (<TagDeletion *>argument).segment
    cdef uint64_t upto = 0
    return segment_verify_index(segment, segment.first_seq, segment.last_seq - segment.first_seq + 1, &upto)


cdef int _scan_row(void *argument) noexcept nogil:
    """The tags part is damaged or gone: the data has the truth."""
    cdef TagDeletion *deletion = <TagDeletion *>argument
    cdef Segment segment = deletion.segment[0]
    cdef index_entry entry
    cdef const record_entry *record
    cdef uint64_t seq, upto
    for seq in range(segment.first_seq, segment.last_seq + 1):
        if segment_check(&segment, seq, 1, &upto) != SEGMENT_OK:
            sealed_met_row(deletion.core.regions, deletion.row)
            _missed(deletion)
            continue
        entry = segment_entry(&segment, seq)[0]
        if entry.flags & (INDEX_DELETED | INDEX_HOLE) or not entry.flags & INDEX_TAGGED:
            continue
        record = segment_record(&segment, seq, &entry)
        if record == NULL:
            _missed(deletion)
            continue
        if record.tag_bytes < deletion.tag_bytes or (deletion.kind == MATCH_EQ and record.tag_bytes != deletion.tag_bytes):
            continue
        if memcmp(entry_tag(record), deletion.tag, deletion.tag_bytes) == 0:
            _delete_posting(deletion, seq)
    return 0


cdef void sealed_delete_matching(Core *core, topic_slot *topic, uint32_t kind, const uint8_t *tag, uint32_t tag_bytes, uint64_t before_seq,
                                 uint64_t *deleted, uint64_t *freed) noexcept nogil:
    cdef TagDeletion deletion
    cdef Rows rows
    cdef Sealed *sealed = <Sealed *>core.regions.sealed
    cdef uint32_t number
    deletion.core, deletion.topic, deletion.kind, deletion.tag, deletion.tag_bytes = core, topic, kind, tag, tag_bytes
    deletion.before_seq = before_seq
    deletion.deleted = deletion.freed = 0
    rows_of_topic(core.regions, topic, &rows)
    for number in range(rows.count):
        deletion.row = <segment_row *>&rows.at[number]
        if deletion.row.first_seq >= before_seq:
            break
        if deletion.row.last_seq < topic.earliest or not deletion.row.flags & ROW_TAGS or deletion.row.live == 0:
            continue
        sealed_turn(core.regions)
        sealed.owing = True
        deletion.segment = sealed_open(core.regions, &rows, deletion.row, False, True)
        if deletion.segment != NULL and guarded_call(_delete_in_row, &deletion) != 0:
            sealed_met_row(core.regions, deletion.row)
            deletion.segment = NULL
        if deletion.segment == NULL:
            deletion.segment = sealed_open(core.regions, &rows, deletion.row, True, False)
            if deletion.segment != NULL and guarded_call(_index_is_good, &deletion) != 0:
                deletion.segment = sealed_mended(core.regions, &rows, deletion.row, True)
            if deletion.segment == NULL and not for_want_of_room(sealed.maps.failure) \
                    and core.regions.segment_files[deletion.row.file].kind != SEGMENT_KIND_COLD:    # whose data others may have
                row_flag(core.regions, topic, deletion.row, ROW_OWES | ROW_MISSED, 0)
            if deletion.segment == NULL or guarded_call(_scan_row, &deletion) != 0:
                _missed(&deletion)
        sealed.owing = False
        sealed_tell(core.regions)
    deleted[0] = deletion.deleted
    freed[0] = deletion.freed
