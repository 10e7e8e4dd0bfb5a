# A pack: one file that holds the parts of many small segments, so that a million topics of three records are no million files.
#
#   <folder>/<number, 20 digits>.pack      | header | data, index, tags of one segment | of the next ... | directory | footer |
#
# A reader needs no directory: a row leads straight to the three parts. The directory is for tools and for a lost manifest; the parts' own headers
# are there should it be damaged. Written as <name>.tmp, synced, renamed, then the folder is synced.
# Owner: one thread.
from libc.stdint cimport uint64_t

from topicsd._native.files cimport Files
from topicsd._native.segment cimport pack_entry
from topicsd._native.segment_sink cimport Sink

cdef struct PackBuilder:
    Sink sink
    char path[4096]
    char folder[4096]
    uint64_t number
    pack_entry *entries
    uint64_t count, room
    bint open

cdef PackBuilder *pack_builder_new() noexcept nogil                     # NULL: no memory
cdef void pack_builder_free(PackBuilder *pack) noexcept nogil           # aborts what is unfinished
cdef int pack_begin(PackBuilder *pack, const Files *files, const char *folder, uint64_t number) noexcept nogil    # all: 0 or -errno
cdef int pack_enter(PackBuilder *pack, const pack_entry *entry) noexcept nogil                                    # by segment_finish
cdef inline uint64_t pack_bytes(const PackBuilder *pack) noexcept nogil:
    return pack.sink.flushed + pack.sink.used                           # so far, to know when it is large enough
cdef int pack_finish(PackBuilder *pack, uint64_t *file_bytes) noexcept nogil
cdef void pack_abort(PackBuilder *pack) noexcept nogil
