# The tags of a segment that is being built: which tags there are, and which seqs have each.
#
#   slots [ row + 1 | 0 | ... ] by hash -> rows [ hash, text, postings ] in order of appearance -> texts in one arena
#   postings [ (row, offset) ... ] in order of seq; a counting sort by row brings them in the file's order
#
# The part's body as it comes out (segment.h): rows by their text, postings, texts. Owner: one builder, one thread.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.errno cimport ENOMEM
from libc.stdlib cimport realloc

cdef struct TagRow:
    uint64_t hash
    uint64_t text          # offset in the arena
    uint32_t bytes
    uint32_t postings

cdef struct Posting:
    uint32_t row, offset

cdef struct TagTable:
    TagRow *rows
    uint64_t count, rows_room
    uint32_t *slots
    uint64_t slots_room
    uint8_t *arena
    uint64_t arena_used, arena_room
    Posting *postings
    uint64_t posting_count, postings_room

cdef void tag_table_clear(TagTable *table) noexcept nogil
cdef void tag_table_free(TagTable *table) noexcept nogil
# 0, -ENOMEM or SEGMENT_ORDER when the texts do not fit into 4 GiB. `offset` = seq - first_seq, ascending.
cdef int tag_table_add(TagTable *table, const uint8_t *text, uint32_t bytes, uint32_t offset) noexcept nogil
cdef uint64_t tag_table_bytes(const TagTable *table) noexcept nogil              # of the part behind its header, padding included
cdef int tag_table_lay(TagTable *table, uint8_t *out) noexcept nogil             # into tag_table_bytes of zeroes. 0 or -ENOMEM


cdef inline int array_grow(void **array, uint64_t *room, uint64_t wanted, uint64_t item_bytes) noexcept nogil:
    # Room for `wanted` items, doubling. 0 or -ENOMEM.
    cdef uint64_t larger
    cdef void *grown
    if wanted <= room[0]:
        return 0
    larger = max(wanted, max(room[0] * 2, <uint64_t>256))
    grown = realloc(array[0], larger * item_bytes)
    if grown == NULL:
        return -ENOMEM
    array[0] = grown
    room[0] = larger
    return 0
