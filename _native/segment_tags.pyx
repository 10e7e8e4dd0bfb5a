"""The tag table of a segment that is being built (see segment_tags.pxd)."""

from libc.errno cimport ENOMEM
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcmp, memcpy, memset

from topicsd._native.hash cimport xxh3_64
from topicsd._native.segment cimport SEGMENT_ORDER, segment_tag

cdef enum:
    SLOTS_MIN = 64

cdef struct SortRow:
    const uint8_t *text
    uint32_t bytes
    uint32_t row


cdef void tag_table_clear(TagTable *table) noexcept nogil:
    table.count = table.arena_used = table.posting_count = 0
    if table.slots_room > 4096:    # one large segment must not make every small one after it pay
        free(table.slots)
        table.slots = NULL
        table.slots_room = 0
    elif table.slots_room:
        memset(table.slots, 0, table.slots_room * sizeof(uint32_t))


cdef void tag_table_free(TagTable *table) noexcept nogil:
    free(table.rows)
    free(table.slots)
    free(table.arena)
    free(table.postings)
    memset(table, 0, sizeof(TagTable))


cdef int _more_slots(TagTable *table) noexcept nogil:
    cdef uint64_t room = max(table.slots_room * 2, <uint64_t>SLOTS_MIN), row, slot
    cdef uint32_t *slots = <uint32_t *>calloc(room, sizeof(uint32_t))
    if slots == NULL:
        return -ENOMEM
    for row in range(table.count):
        slot = table.rows[row].hash & (room - 1)
        while slots[slot]:
            slot = (slot + 1) & (room - 1)
        slots[slot] = <uint32_t>row + 1
    free(table.slots)
    table.slots = slots
    table.slots_room = room
    return 0


cdef int _row_of(TagTable *table, const uint8_t *text, uint32_t bytes, uint32_t *number) noexcept nogil:
    cdef uint64_t hash = xxh3_64(text, bytes), slot
    cdef TagRow *row
    cdef int result = 0
    if (table.count + 1) * 2 > table.slots_room:
        result = _more_slots(table)
        if result != 0:
            return result
    slot = hash & (table.slots_room - 1)
    while table.slots[slot]:
        row = &table.rows[table.slots[slot] - 1]
        if row.hash == hash and row.bytes == bytes and memcmp(table.arena + row.text, text, bytes) == 0:
            number[0] = table.slots[slot] - 1
            return 0
        slot = (slot + 1) & (table.slots_room - 1)
    if table.arena_used + bytes > UINT32_MAX:
        return SEGMENT_ORDER
    result = array_grow(<void **>&table.rows, &table.rows_room, table.count + 1, sizeof(TagRow))
    if result == 0:
        result = array_grow(<void **>&table.arena, &table.arena_room, table.arena_used + bytes + 1, 1)    # never NULL, even for an empty tag
    if result != 0:
        return result
    row = &table.rows[table.count]
    row.hash, row.text, row.bytes, row.postings = hash, table.arena_used, bytes, 0
    memcpy(table.arena + table.arena_used, text, bytes)
    table.arena_used += bytes
    number[0] = <uint32_t>table.count
    table.count += 1
    table.slots[slot] = number[0] + 1
    return 0


cdef int tag_table_add(TagTable *table, const uint8_t *text, uint32_t bytes, uint32_t offset) noexcept nogil:
    cdef uint32_t row = 0
    cdef int result = _row_of(table, text, bytes, &row)
    if result == 0:
        result = array_grow(<void **>&table.postings, &table.postings_room, table.posting_count + 1, sizeof(Posting))
    if result != 0:
        return result
    table.postings[table.posting_count].row = row
    table.postings[table.posting_count].offset = offset
    table.posting_count += 1
    table.rows[row].postings += 1
    return 0


cdef uint64_t tag_table_bytes(const TagTable *table) noexcept nogil:
    return (table.count * sizeof(segment_tag) + table.posting_count * 4 + table.arena_used + 7) & ~<uint64_t>7


cdef int _by_text(const void *left, const void *right) noexcept nogil:
    cdef const SortRow *a = <const SortRow *>left
    cdef const SortRow *b = <const SortRow *>right
    cdef int order = memcmp(a.text, b.text, min(a.bytes, b.bytes))
    if order != 0:
        return order
    return -1 if a.bytes < b.bytes else a.bytes > b.bytes


cdef void _lay(TagTable *table, const SortRow *sorted, uint32_t *next_posting, uint8_t *out) noexcept nogil:
    """`next_posting`: for each row of the table where its next posting goes."""
    cdef segment_tag *rows = <segment_tag *>out
    cdef uint32_t *postings = <uint32_t *>(rows + table.count)
    cdef uint8_t *texts = <uint8_t *>(postings + table.posting_count)
    cdef uint64_t number, text = 0, posting = 0
    cdef const TagRow *row
    for number in range(table.count):
        row = &table.rows[sorted[number].row]
        rows[number].bytes_offset = <uint32_t>text
        rows[number].tag_bytes = row.bytes
        rows[number].first_posting = <uint32_t>posting
        rows[number].postings = row.postings
        next_posting[sorted[number].row] = <uint32_t>posting
        memcpy(texts + text, table.arena + row.text, row.bytes)
        text += row.bytes
        posting += row.postings
    for number in range(table.posting_count):
        postings[next_posting[table.postings[number].row]] = table.postings[number].offset
        next_posting[table.postings[number].row] += 1


cdef int tag_table_lay(TagTable *table, uint8_t *out) noexcept nogil:
    cdef SortRow *sorted = <SortRow *>malloc(table.count * sizeof(SortRow) + 1)
    cdef uint32_t *next_posting = <uint32_t *>malloc(table.count * 4 + 1)
    cdef int result = -ENOMEM
    cdef uint64_t number
    if sorted != NULL and next_posting != NULL:
        for number in range(table.count):
            sorted[number].text = table.arena + table.rows[number].text
            sorted[number].bytes = table.rows[number].bytes
            sorted[number].row = <uint32_t>number
        qsort(sorted, table.count, sizeof(SortRow), _by_text)
        _lay(table, sorted, next_posting, out)
        result = 0
    free(sorted)
    free(next_posting)
    return result
