"""Maps of log files and the guard around every load from them (see maps.pxd)."""

from libc.errno cimport EIO, ENAMETOOLONG, ENOENT, ENOMEM
from libc.stdio cimport snprintf
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove, memset, strlen

from cpython.bytes cimport PyBytes_FromStringAndSize

import os

from topicsd._native.atomics cimport load_acquire_64
from topicsd._native.layout cimport LOG_FILES_MAX, SHARDS_MAX, log_file_row
from topicsd._native.regions cimport Shared

cdef extern from "maps_impl.h" nogil:
    ctypedef int (*maps_guarded)(void *argument) noexcept nogil
    int maps_guard_install()
    int maps_guarded_call(maps_guarded function, void *argument)
    const uint8_t *maps_open(const char *path, uint64_t bytes_max, uint64_t *bytes, int *failure)
    void maps_close(const uint8_t *base, uint64_t bytes)

cdef enum:
    PATH_BYTES_MAX = 4096


cdef int maps_init(Maps *maps, const Regions *regions, const char *data_dir, uint32_t count_max) noexcept nogil:
    memset(maps, 0, sizeof(Maps))
    maps.regions = regions
    maps.count_max = min(max(count_max, <uint32_t>1), <uint32_t>MAPS_MAX)
    if strlen(data_dir) >= DIRECTORY_BYTES_MAX:
        return -ENAMETOOLONG
    memcpy(maps.directory, data_dir, strlen(data_dir) + 1)
    maps.generation = load_acquire_64(&regions.control.generation)
    return maps_guard_install()


cdef void _drop(Maps *maps, uint32_t number) noexcept nogil:
    maps_close(maps.list[number].base, maps.list[number].bytes)
    free(maps.list[number].trust)
    maps.count -= 1
    memmove(&maps.list[number], &maps.list[number + 1], (maps.count - number) * sizeof(Map))


cdef void maps_drop_all(Maps *maps) noexcept nogil:
    cdef uint32_t number
    for number in range(maps.count):
        maps_close(maps.list[number].base, maps.list[number].bytes)
        free(maps.list[number].trust)
    free(maps.list)
    maps.list = NULL
    maps.count = 0
    maps.room = 0


cdef void maps_refresh(Maps *maps) noexcept nogil:
    cdef uint64_t generation = load_acquire_64(&maps.regions.control.generation)
    if generation != maps.generation:
        maps_drop_all(maps)
        maps.generation = generation


cdef const log_file_row *_row_of(const Regions *regions, uint32_t shard, uint64_t position) noexcept nogil:
    """The row with the greatest first position at or below `position`, or NULL."""
    cdef const log_file_row *rows = regions.files + <uint64_t>shard * LOG_FILES_MAX
    cdef uint64_t low = 0, middle, high = min(load_acquire_64(&regions.control.shards[shard].files), <uint64_t>LOG_FILES_MAX)
    while low < high:
        middle = (low + high) // 2
        if rows[middle].first_position <= position:
            low = middle + 1
        else:
            high = middle
    if low == 0 or position - rows[low - 1].first_position >= rows[low - 1].bytes:
        return NULL
    return &rows[low - 1]


cdef bint _retired(const Regions *regions, const Map *found) noexcept nogil:
    cdef const log_file_row *row = _row_of(regions, <uint32_t>found.shard, found.first_position)
    return row == NULL or row.first_position != found.first_position or load_acquire_64(&row.retired) != 0


cdef uint32_t maps_drop_retired(Maps *maps) noexcept nogil:
    cdef uint32_t number = maps.count, dropped = 0
    while number > 0:
        number -= 1
        if _retired(maps.regions, &maps.list[number]):
            _drop(maps, number)
            dropped += 1
    return dropped


cdef uint32_t _place_of(const Maps *maps, uint32_t shard, uint64_t position) noexcept nogil:
    """How many maps begin at or before (shard, position)."""
    cdef uint32_t low = 0, middle, high = maps.count
    while low < high:
        middle = (low + high) // 2
        if maps.list[middle].shard < shard or (maps.list[middle].shard == shard and maps.list[middle].first_position <= position):
            low = middle + 1
        else:
            high = middle
    return low


cdef int _make_room(Maps *maps) noexcept nogil:
    cdef uint32_t number, oldest = 0, room
    cdef Map *list
    if maps.count >= maps.count_max:
        for number in range(maps.count):
            if maps.list[number].used < maps.list[oldest].used:
                oldest = number
        _drop(maps, oldest)
    if maps.count == maps.room:
        room = maps.room * 2 if maps.room else 16
        list = <Map *>realloc(maps.list, room * sizeof(Map))
        if list == NULL:
            return -ENOMEM
        maps.list = list
        maps.room = room
    return 0


cdef Map *_open(Maps *maps, uint32_t shard, uint64_t position) noexcept nogil:
    cdef const log_file_row *row = _row_of(maps.regions, shard, position)
    cdef char path[PATH_BYTES_MAX]
    cdef Map made
    cdef uint32_t place
    if row == NULL or load_acquire_64(&row.retired):
        maps.failure = -ENOENT
        return NULL
    place = _place_of(maps, shard, row.first_position)
    if place > 0 and maps.list[place - 1].shard == shard and maps.list[place - 1].first_position == row.first_position:
        _drop(maps, place - 1)    # made while the file was shorter
    maps.failure = _make_room(maps)
    if maps.failure != 0:
        return NULL
    made.shard = shard
    made.first_position = row.first_position
    made.trust = NULL
    snprintf(path, PATH_BYTES_MAX, "%s/log/shard-%02u/%020llu.log", maps.directory, shard, <unsigned long long>made.first_position)
    made.base = maps_open(path, row.bytes, &made.bytes, &maps.failure)
    if made.base == NULL:
        return NULL
    place = _place_of(maps, shard, made.first_position)
    memmove(&maps.list[place + 1], &maps.list[place], (maps.count - place) * sizeof(Map))
    maps.list[place] = made
    maps.count += 1
    return &maps.list[place]


cdef Map *map_found(Maps *maps, uint32_t shard, uint64_t position) noexcept nogil:
    cdef uint32_t place
    cdef Map *found = NULL
    if shard >= SHARDS_MAX:
        maps.failure = -ENOENT
        return NULL
    place = _place_of(maps, shard, position)
    if place > 0:
        found = &maps.list[place - 1]
        if found.shard != shard or position - found.first_position >= found.bytes:
            found = NULL
        elif _retired(maps.regions, found):
            _drop(maps, place - 1)
            found = NULL
    if found == NULL:
        found = _open(maps, shard, position)
        if found == NULL:
            return NULL
        if position - found.first_position >= found.bytes:    # the file is shorter than its row says
            maps.failure = -EIO
            return NULL
    maps.tick += 1
    found.used = maps.tick
    return found


cdef const uint8_t *map_at(Maps *maps, uint32_t shard, uint64_t position, uint64_t *available) noexcept nogil:
    cdef const Map *found = map_found(maps, shard, position)
    if found == NULL:
        return NULL
    available[0] = found.bytes - (position - found.first_position)
    return found.base + (position - found.first_position)


cdef int guarded_call(guarded_function function, void *argument) noexcept nogil:
    return maps_guarded_call(<maps_guarded>function, argument)


cdef struct Copy:
    void *destination
    const void *source
    uint64_t bytes


cdef int _copy(void *argument) noexcept nogil:
    cdef Copy *copy = <Copy *>argument
    memcpy(copy.destination, copy.source, copy.bytes)
    return 0


cdef int guarded_copy(void *destination, const void *source, uint64_t bytes) noexcept nogil:
    cdef Copy copy
    copy.destination = destination
    copy.source = source
    copy.bytes = bytes
    return maps_guarded_call(<maps_guarded>_copy, &copy)


def install_guard():
    """Have faults inside guarded calls answered with an error in a process that has no MapCache and no Reader. Raises OSError."""
    cdef int failure = maps_guard_install()
    if failure != 0:
        raise OSError(-failure, os.strerror(-failure))


cdef class MapCache:
    """Read log files by position through the maps that a Reader uses."""

    cdef Maps maps
    cdef Shared shared

    def __cinit__(self, Shared shared not None, data_dir, uint32_t count_max=MAPS_MAX):
        cdef bytes directory = os.fsencode(data_dir)
        cdef int failure
        self.shared = shared
        failure = maps_init(&self.maps, &shared.r, directory, count_max)
        if failure != 0:
            raise OSError(-failure, os.strerror(-failure), data_dir)

    def __dealloc__(self):
        maps_drop_all(&self.maps)

    def __len__(self):
        return self.maps.count

    def read(self, uint32_t shard, uint64_t position, uint64_t length):
        """Return at most `length` bytes at `position`, fewer at the end of their file. OSError when they cannot be read."""
        cdef uint64_t available = 0
        cdef const uint8_t *source
        cdef bytes out
        cdef int failure
        maps_refresh(&self.maps)
        source = map_at(&self.maps, shard, position, &available)
        if source == NULL:
            raise OSError(-self.maps.failure, os.strerror(-self.maps.failure))
        out = PyBytes_FromStringAndSize(NULL, min(length, available))
        failure = guarded_copy(<char *>out, source, len(out))
        if failure != 0:
            raise OSError(-failure, os.strerror(-failure))
        return out

    def drop_retired(self):
        """Unmap the files that the writer has retired; return how many."""
        return maps_drop_retired(&self.maps)

    def drop(self):
        """Unmap every file."""
        maps_drop_all(&self.maps)
