"""The allocator inside the index region (see slabs.pxd)."""

from libc.string cimport memset

cdef extern from "sys/mman.h" nogil:
    int MADV_REMOVE
    int madvise(void *at, size_t length, int advice)

cdef enum:
    STACK_NUMBERS = (INDEX_PAGE_BYTES - 16) // 4


cdef inline uint64_t *_word(const Regions *regions, uint64_t offset) noexcept nogil:
    return <uint64_t *>(regions.index + offset)


cdef inline uint64_t _slab_bytes(uint32_t slab_class) noexcept nogil:
    return <uint64_t>1 << (SLAB_MIN_SHIFT + slab_class)


cdef uint32_t slab_class_for(uint64_t bytes) noexcept nogil:
    cdef uint32_t slab_class = 0
    while slab_class < SLAB_CLASSES and _slab_bytes(slab_class) < bytes:
        slab_class += 1
    return slab_class


cdef uint64_t _front(Regions *regions, uint64_t bytes) noexcept nogil:
    """Take bytes that were never used; 0 when the region is full."""
    cdef IndexHeader *header = index_header(regions)
    cdef uint64_t offset = header.used if header.used else <uint64_t>INDEX_HEADER_BYTES
    if bytes > regions.index_bytes or offset > regions.index_bytes - bytes:
        return 0
    header.used = offset + bytes
    return offset


cdef uint64_t slab_take(Regions *regions, uint32_t slab_class) noexcept nogil:
    cdef IndexHeader *header = index_header(regions)
    cdef uint64_t offset, bytes
    if slab_class >= SLAB_CLASSES:
        return 0
    bytes = _slab_bytes(slab_class)
    offset = header.slabs[slab_class]
    if offset != 0:
        header.slabs[slab_class] = _word(regions, offset)[0]
    elif bytes > INDEX_UNIT_BYTES:
        offset = _front(regions, bytes)
    else:
        if header.run_end - header.run_at < bytes:
            offset = _front(regions, SLAB_RUN_BYTES)
            if offset == 0:
                return 0
            header.run_at = offset
            header.run_end = offset + SLAB_RUN_BYTES
        offset = header.run_at
        header.run_at += bytes
    if offset != 0:
        header.bytes_in_use += bytes
    return offset


cdef void slab_give(Regions *regions, uint64_t offset, uint32_t slab_class) noexcept nogil:
    cdef IndexHeader *header = index_header(regions)
    cdef uint64_t bytes = _slab_bytes(slab_class)
    _word(regions, offset)[0] = header.slabs[slab_class]
    header.slabs[slab_class] = offset
    header.bytes_in_use -= bytes
    if bytes >= SLAB_PUNCH_MIN:
        madvise(regions.index + offset + INDEX_UNIT_BYTES, bytes - INDEX_UNIT_BYTES, MADV_REMOVE)


cdef inline uint32_t *_stack_numbers(const Regions *regions, uint64_t stack) noexcept nogil:
    return <uint32_t *>(regions.index + stack + 16)


cdef uint32_t page_take(Regions *regions) noexcept nogil:
    """A page's number, 0 when the region is full."""
    cdef IndexHeader *header = index_header(regions)
    cdef uint64_t offset = header.resident
    cdef uint64_t *stack
    header.taken += 1
    if offset != 0:
        header.resident = _word(regions, offset)[0]
        header.resident_count -= 1
        header.bytes_in_use += INDEX_PAGE_BYTES
        return <uint32_t>(offset // INDEX_UNIT_BYTES)
    header.cold += 1
    if header.stack != 0:
        stack = _word(regions, header.stack)
        if stack[1] != 0:
            stack[1] -= 1
            offset = <uint64_t>_stack_numbers(regions, header.stack)[stack[1]] * INDEX_UNIT_BYTES
        else:
            offset = header.stack
            header.stack = stack[0]
    else:
        offset = _front(regions, INDEX_PAGE_BYTES)
        if offset > <uint64_t>0xFFFFFFFF * INDEX_UNIT_BYTES:
            return 0
    if offset != 0:
        header.bytes_in_use += INDEX_PAGE_BYTES
    return <uint32_t>(offset // INDEX_UNIT_BYTES)


cdef void _chill(IndexHeader *header, Regions *regions, uint64_t offset) noexcept nogil:
    """Give a free page's memory back, and note its number."""
    cdef uint64_t *words = _word(regions, offset)
    cdef uint64_t *stack = _word(regions, header.stack)
    if header.stack == 0 or stack[1] == STACK_NUMBERS:
        words[0] = header.stack
        words[1] = 0
        header.stack = offset
    else:
        _stack_numbers(regions, header.stack)[stack[1]] = <uint32_t>(offset // INDEX_UNIT_BYTES)
        stack[1] += 1
        madvise(words, INDEX_PAGE_BYTES, MADV_REMOVE)


cdef void page_give(Regions *regions, uint32_t page) noexcept nogil:
    cdef IndexHeader *header = index_header(regions)
    cdef uint64_t offset = <uint64_t>page * INDEX_UNIT_BYTES
    header.bytes_in_use -= INDEX_PAGE_BYTES
    if header.resident_count < PAGES_RESIDENT_MAX + header.warm:
        _word(regions, offset)[0] = header.resident
        header.resident = offset
        header.resident_count += 1
    else:
        _chill(header, regions, offset)


cdef void slabs_cool(Regions *regions, uint64_t now_ms, uint64_t warm_max) noexcept nogil:
    cdef IndexHeader *header = index_header(regions)
    cdef uint64_t offset, left = COOLED_PAGES, took = header.taken - header.taken_before, passed_ms = now_ms - header.looked_ms
    if header.looked_ms != 0 and took * 1000 >= FLOOD_PAGES_PER_S * passed_ms and took != 0:
        header.warm = min(header.warm + header.cold - header.cold_before, warm_max)
        header.flood_ms = now_ms
    elif now_ms - header.flood_ms > WARM_KEEP_MS:
        header.warm = 0
    header.taken_before, header.cold_before, header.looked_ms = header.taken, header.cold, now_ms
    while left and header.resident_count > PAGES_RESIDENT_MAX + header.warm:
        offset = header.resident
        header.resident = _word(regions, offset)[0]
        header.resident_count -= 1
        _chill(header, regions, offset)
        left -= 1


cdef void slabs_reset(Regions *regions) noexcept nogil:
    cdef IndexHeader *header = index_header(regions)
    cdef uint64_t used = min(header.used, regions.index_bytes)
    used = (used + INDEX_UNIT_BYTES - 1) & ~<uint64_t>(INDEX_UNIT_BYTES - 1)
    if used > INDEX_HEADER_BYTES and madvise(regions.index + INDEX_HEADER_BYTES, used - INDEX_HEADER_BYTES, MADV_REMOVE) != 0:
        memset(regions.index + INDEX_HEADER_BYTES, 0, used - INDEX_HEADER_BYTES)
    memset(header, 0, <char *>&header.free_slot - <char *>header)    # what stands behind is the table's


PAGE_BYTES = INDEX_PAGE_BYTES


def memory(Shared shared not None):
    """Return (bytes in use, bytes ever handed out) of the index region."""
    cdef const IndexHeader *header = index_header(&shared.r)
    return header.bytes_in_use, header.used


def cool(Shared shared not None, uint64_t now_ms, uint64_t warm_max):
    """Look whether a flood goes on, and give back the memory of what none needs any more; `warm_max` pages at most stay for the next.

    Returns the number of free pages with memory.
    """
    slabs_cool(&shared.r, now_ms, warm_max)
    return index_header(&shared.r).resident_count
