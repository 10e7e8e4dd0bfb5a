"""Windows into data parts of the cold tier (see cold_window.pxd)."""

from libc.errno cimport EINVAL, ENOMEM
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *address, size_t bytes, int protection, int flags, int fd, long offset)
    int munmap(void *address, size_t bytes)
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE
    void *MAP_FAILED


cdef ColdWindows *cold_windows_new(uint64_t bytes_max) noexcept nogil:
    cdef ColdWindows *windows = <ColdWindows *>calloc(1, sizeof(ColdWindows))
    if windows != NULL:
        windows.bytes_max = bytes_max
    return windows


cdef void _drop(ColdWindows *windows, ColdWindow *row) noexcept nogil:
    if row.serial == 0:
        return
    munmap(row.at, row.bytes)
    free(row.there)
    windows.held -= row.held
    memset(row, 0, sizeof(ColdWindow))


cdef void cold_windows_clear(ColdWindows *windows) noexcept nogil:
    cdef uint32_t number
    if windows == NULL:
        return
    windows.wanted_file = 0
    for number in range(COLD_FILES_MAX):
        _drop(windows, &windows.rows[number])


cdef void cold_windows_free(ColdWindows *windows) noexcept nogil:
    cold_windows_clear(windows)
    free(windows)


cdef ColdWindow *_find(ColdWindows *windows, uint64_t serial) noexcept nogil:
    cdef uint32_t number
    for number in range(COLD_FILES_MAX):
        if windows.rows[number].serial == serial:
            return &windows.rows[number]
    return NULL


cdef uint8_t *cold_window_at(ColdWindows *windows, uint64_t turn, uint32_t file, uint64_t serial, uint64_t begin, uint64_t end) noexcept nogil:
    cdef ColdWindow *row = _find(windows, serial)
    cdef uint64_t block, last
    if row != NULL and begin < end and end <= row.bytes:
        block, last = begin >> COLD_BLOCK_SHIFT, (end - 1) >> COLD_BLOCK_SHIFT
        while block <= last and (row.there[block >> 6] >> (block & 63)) & 1:
            block += 1
        if block > last:
            row.used = turn
            windows.hits += 1
            return row.at
        begin = max(begin, block << COLD_BLOCK_SHIFT)
    windows.misses += 1
    windows.wanted_file, windows.wanted_serial, windows.wanted_begin, windows.wanted_end = file, serial, begin, end
    return NULL


cdef void cold_window_keep(ColdWindows *windows, uint64_t turn, uint64_t serial) noexcept nogil:
    cdef ColdWindow *row = _find(windows, serial)
    if row != NULL:
        row.used = turn


cdef ColdWindow *_oldest(ColdWindows *windows, uint64_t turn, const ColdWindow *but) noexcept nogil:
    cdef ColdWindow *found = NULL
    cdef uint32_t number
    for number in range(COLD_FILES_MAX):
        if windows.rows[number].serial and &windows.rows[number] != but and windows.rows[number].used < turn \
                and (found == NULL or windows.rows[number].used < found.used):
            found = &windows.rows[number]
    return found


cdef ColdWindow *_make(ColdWindows *windows, uint64_t turn, uint64_t serial, uint64_t bytes) noexcept nogil:
    cdef ColdWindow *row = _find(windows, 0)
    cdef void *at
    if row == NULL:
        row = _oldest(windows, turn, NULL)
        if row == NULL:
            return NULL
        _drop(windows, row)
    at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    if at == MAP_FAILED:
        return NULL
    row.there = <uint64_t *>calloc((bytes >> COLD_BLOCK_SHIFT) // 64 + 1, sizeof(uint64_t))
    if row.there == NULL:
        munmap(at, bytes)
        return NULL
    row.serial, row.at, row.bytes, row.held = serial, <uint8_t *>at, bytes, 0
    return row


cdef int cold_window_put(ColdWindows *windows, uint64_t turn, uint64_t serial, uint64_t bytes, uint64_t offset, const uint8_t *what,
                         uint64_t count) noexcept nogil:
    cdef ColdWindow *row = _find(windows, serial)
    cdef ColdWindow *oldest
    cdef uint64_t block, last
    if serial == 0 or offset & ((1 << COLD_BLOCK_SHIFT) - 1) or count == 0 or offset > bytes or count > bytes - offset:
        return -EINVAL
    if row != NULL and row.used < turn and row.held > windows.bytes_max // 2:    # one file alone must not fill memory
        _drop(windows, row)
        row = NULL
    if row == NULL:
        row = _make(windows, turn, serial, bytes)
        if row == NULL:
            return -ENOMEM
    if row.bytes != bytes:
        return -EINVAL
    while windows.held + count > windows.bytes_max:
        oldest = _oldest(windows, turn, row)
        if oldest == NULL:
            break
        _drop(windows, oldest)
    memcpy(row.at + offset, what, count)
    block, last = offset >> COLD_BLOCK_SHIFT, (offset + count - 1) >> COLD_BLOCK_SHIFT
    while block <= last:
        if not (row.there[block >> 6] >> (block & 63)) & 1:
            row.there[block >> 6] |= <uint64_t>1 << (block & 63)
            row.held += 1 << COLD_BLOCK_SHIFT
            windows.held += 1 << COLD_BLOCK_SHIFT
        block += 1
    return 0
