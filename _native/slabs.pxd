# The index region's allocator: slabs of 64 B << class up to 16 MiB, and pages of 24 KiB.
#
#   0            32768
#   | IndexHeader | run of small slabs | page | slab | page | ...  handed out from the front, then from lists of what was freed
#
# All of it is the writer's own: no reader looks at the header (but for names_version), and what a reader finds in a freed slab its view refuses.
# Large slabs and pages give their memory back when they are freed. Nothing is ever merged. Page numbers 1..7 are never given out.
# A page without memory costs the writer six faults, a quarter of its time in a flood of batches: so what a flood has taken stays for the next one
# when it is sealed, for WARM_KEEP_MS and no more than the caller of slabs_cool allows.
from libc.stdint cimport uint32_t, uint64_t

from topicsd._native.regions cimport Regions, Shared

cdef enum:
    SLAB_CLASSES = 19              # 64 B << class
    SLAB_MIN_SHIFT = 6
    INDEX_HEADER_BYTES = 32768     # so that no page has a number below 8
    INDEX_UNIT_BYTES = 4096        # a page's number counts these
    INDEX_PAGE_BYTES = 24576
    SLAB_RUN_BYTES = 65536         # small slabs are carved from runs
    SLAB_PUNCH_MIN = 65536         # a freed slab from this size on gives its memory back, but for its first 4 KiB
    PAGES_RESIDENT_MAX = 256       # freed pages kept warm; more are given back, but for those of a flood
    FLOOD_PAGES_PER_S = 512        # half a million records a second
    WARM_KEEP_MS = 300000          # after the last flood
    COOLED_PAGES = 64              # given back by one call

cdef struct IndexHeader:           # the writer's own; all zero is an empty region
    uint64_t used                  # bytes handed out from the front, 0 = INDEX_HEADER_BYTES
    uint64_t run_at, run_end       # what is left of the run
    uint64_t slabs[SLAB_CLASSES]   # free slabs by class, linked through their first word
    uint64_t resident              # free pages with memory, linked likewise
    uint64_t resident_count
    uint64_t stack                 # a free page that holds numbers of free pages without memory: u64 next stack, u64 count, u32 ...
    uint64_t taken                 # pages, ever
    uint64_t cold                  # of these without memory
    uint64_t taken_before, cold_before, looked_ms   # at the last look of slabs_cool
    uint64_t warm, flood_ms        # so many more may stay resident, since the last flood
    uint64_t bytes_in_use          # of slabs and pages that are not free
    uint64_t free_slot             # table.pyx: first free slot + 1
    uint64_t names_version         # table.pyx: odd while words of the name hash move

cdef inline IndexHeader *index_header(const Regions *regions) noexcept nogil:
    return <IndexHeader *>regions.index


cdef inline bint is_page(uint32_t number) noexcept nogil:
    return number >= INDEX_HEADER_BYTES // INDEX_UNIT_BYTES


cdef uint32_t slab_class_for(uint64_t bytes) noexcept nogil                                       # SLAB_CLASSES when too large
cdef uint64_t slab_take(Regions *regions, uint32_t slab_class) noexcept nogil                     # an offset, 0 when the region is full
cdef void slab_give(Regions *regions, uint64_t offset, uint32_t slab_class) noexcept nogil
cdef uint32_t page_take(Regions *regions) noexcept nogil                                          # a page's number, 0 when the region is full
cdef void page_give(Regions *regions, uint32_t page) noexcept nogil
cdef void slabs_cool(Regions *regions, uint64_t now_ms, uint64_t warm_max) noexcept nogil          # every second or so: see PAGES_RESIDENT_MAX
cdef void slabs_reset(Regions *regions) noexcept nogil                                            # all but the table's two words
