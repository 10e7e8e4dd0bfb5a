"""Maps of segment files (see segment_maps.pxd)."""

import os

from libc.errno cimport EIO, ENAMETOOLONG, ENODATA, ENOENT, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strlen
from posix.fcntl cimport O_RDONLY
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, mmap, munmap
from posix.stat cimport fstat, stat, struct_stat

from topicsd._native.files cimport real_files
from topicsd._native.hash cimport xxh3_64
from topicsd._native.maps cimport guarded_copy
from topicsd._native.segment cimport SEGMENT_MARK_BYTES

from topicsd._native.maps import install_guard

cdef enum:
    PATH_BYTES_MAX = 4352
    ROOM_MIN = 64


cdef int segment_maps_init(SegmentMaps *maps, uint32_t count_max, segment_path_of path_of, void *context) noexcept nogil:
    memset(maps, 0, sizeof(SegmentMaps))
    maps.count_max = max(count_max, <uint32_t>1)
    maps.path_of = path_of
    maps.context = context
    maps.turn = 1
    return 0


cdef void _unmap(SegmentMap *row) noexcept nogil:
    munmap(<void *>row.at, row.bytes)
    free(row.index_marks)
    free(row.frame_marks)
    memset(row, 0, sizeof(SegmentMap))


cdef void segment_maps_free(SegmentMaps *maps) noexcept nogil:
    cdef uint32_t number
    for number in range(maps.room):
        if maps.rows[number].at != NULL:
            _unmap(&maps.rows[number])
    free(maps.rows)
    maps.rows = NULL
    maps.count = maps.room = 0


cdef void segment_maps_turn(SegmentMaps *maps) noexcept nogil:
    maps.turn += 1


cdef inline uint32_t _home(const SegmentMaps *maps, uint64_t key) noexcept nogil:
    return <uint32_t>xxh3_64(&key, 8) & (maps.room - 1)


cdef SegmentMap *_find(const SegmentMaps *maps, uint64_t key) noexcept nogil:
    cdef uint32_t slot
    if maps.room == 0:
        return NULL
    slot = _home(maps, key)
    while maps.rows[slot].at != NULL:
        if maps.rows[slot].key == key:
            return &maps.rows[slot]
        slot = (slot + 1) & (maps.room - 1)
    return NULL


cdef void _take_out(SegmentMaps *maps, SegmentMap *row) noexcept nogil:
    """Unmap; then move what stood behind it nearer to its home, so that no look-up ends too early."""
    cdef uint32_t hole = <uint32_t>(row - maps.rows), slot = hole, home
    _unmap(row)
    maps.count -= 1
    while True:
        slot = (slot + 1) & (maps.room - 1)
        if maps.rows[slot].at == NULL:
            return
        home = _home(maps, maps.rows[slot].key)
        if ((slot - home) & (maps.room - 1)) >= ((slot - hole) & (maps.room - 1)):
            maps.rows[hole] = maps.rows[slot]
            memset(&maps.rows[slot], 0, sizeof(SegmentMap))
            hole = slot


cdef void _put(SegmentMaps *maps, const SegmentMap *made) noexcept nogil:
    cdef uint32_t slot = _home(maps, made.key)
    while maps.rows[slot].at != NULL:
        slot = (slot + 1) & (maps.room - 1)
    maps.rows[slot] = made[0]


cdef int _grow(SegmentMaps *maps) noexcept nogil:
    cdef SegmentMap *old = maps.rows
    cdef uint32_t old_room = maps.room, number
    cdef uint32_t room = max(maps.room * 2, <uint32_t>ROOM_MIN)
    cdef SegmentMap *rows = <SegmentMap *>calloc(room, sizeof(SegmentMap))
    if rows == NULL:
        return -1
    maps.rows = rows
    maps.room = room
    for number in range(old_room):
        if old[number].at != NULL:
            _put(maps, &old[number])
    free(old)
    return 0


cdef void _drop_oldest(SegmentMaps *maps) noexcept nogil:
    """The least recently used map goes, if it was not handed out in this turn."""
    cdef SegmentMap *oldest = NULL
    cdef uint32_t number
    for number in range(maps.room):
        if maps.rows[number].at != NULL and (oldest == NULL or maps.rows[number].used < oldest.used):
            oldest = &maps.rows[number]
    if oldest != NULL and oldest.used < maps.turn:
        _take_out(maps, oldest)


cdef int _open(SegmentMaps *maps, uint64_t key, SegmentMap *made) noexcept nogil:
    cdef char path[PATH_BYTES_MAX]
    cdef int64_t bytes
    cdef struct_stat told
    cdef void *at
    cdef int fd = maps.path_of(maps.context, key, path, PATH_BYTES_MAX)
    if fd < 0:
        return fd
    fd = real_files().open(NULL, path, O_RDONLY, 0)
    if fd < 0:
        return fd
    bytes = real_files().size(NULL, fd)
    if bytes <= 0:
        real_files().close(NULL, fd)
        return <int>bytes if bytes < 0 else -ENODATA
    at = mmap(NULL, <size_t>bytes, PROT_READ, MAP_SHARED, fd, 0)
    bytes = bytes if at != MAP_FAILED else -errno
    memset(&told, 0, sizeof(told))
    fstat(fd, &told)
    real_files().close(NULL, fd)    # the map keeps the file; at `ulimit -n 256` no descriptor may stay
    if bytes < 0:
        return <int>bytes
    memset(made, 0, sizeof(SegmentMap))
    made.key = key
    made.at = <const uint8_t *>at
    made.bytes = <uint64_t>bytes
    made.device, made.inode = told.st_dev, told.st_ino
    return 0


cdef SegmentMap *segment_map(SegmentMaps *maps, uint64_t key) noexcept nogil:
    cdef SegmentMap *found = _find(maps, key)
    cdef SegmentMap made
    if found == NULL:
        maps.failure = _open(maps, key, &made)
        if maps.failure != 0:
            return NULL
        if maps.count >= maps.count_max:
            _drop_oldest(maps)
        if (maps.count + 1) * 2 > maps.room and _grow(maps) != 0:
            munmap(<void *>made.at, made.bytes)
            maps.failure = -EIO
            return NULL
        _put(maps, &made)
        maps.count += 1
        found = _find(maps, key)
    found.used = maps.turn
    return found


cdef void segment_map_look(SegmentMaps *maps, uint64_t key) noexcept nogil:
    cdef SegmentMap *found = _find(maps, key)
    cdef char path[PATH_BYTES_MAX]
    cdef struct_stat told
    if found == NULL or found.used == maps.turn or maps.path_of(maps.context, key, path, PATH_BYTES_MAX) < 0:
        return
    if stat(path, &told) != 0:
        if errno == ENOENT:
            _take_out(maps, found)
    elif <uint64_t>told.st_dev != found.device or <uint64_t>told.st_ino != found.inode:
        _take_out(maps, found)


cdef void segment_map_marks(SegmentMap *map, uint64_t now_ns) noexcept nogil:
    cdef uint64_t words = map.bytes // SEGMENT_MARK_BYTES // 64 + 1
    if now_ns - map.marked_ns >= SEGMENT_TRUST_NS:
        map.marked_ns = now_ns
        if map.index_marks != NULL:
            memset(map.index_marks, 0, words * 8)
        if map.frame_marks != NULL:
            memset(map.frame_marks, 0, words * 8)
    if map.index_marks == NULL:
        map.index_marks = <uint64_t *>calloc(words, 8)
    if map.frame_marks == NULL:
        map.frame_marks = <uint64_t *>calloc(words, 8)


cdef bint segment_maps_forget(SegmentMaps *maps, uint64_t key) noexcept nogil:
    cdef SegmentMap *found = _find(maps, key)
    if found == NULL:
        return False
    _take_out(maps, found)
    return True


cdef uint32_t segment_maps_sweep(SegmentMaps *maps, segment_retired retired, void *context) noexcept nogil:
    cdef uint32_t number = 0, gone = 0
    while number < maps.room:
        # What moves into the place of one that went is looked at too; what wraps around to the front is met again or was met already.
        if maps.rows[number].at != NULL and retired(context, maps.rows[number].key):
            _take_out(maps, &maps.rows[number])
            gone += 1
        else:
            number += 1
    return gone


# ---- for tests and tools ------------------------------------------------------------------------------------------------------------


cdef int _python_path(void *context, uint64_t key, char *path, uint64_t path_bytes) noexcept with gil:
    cdef SegmentMapCache cache = <SegmentMapCache>context
    cdef bytes found = cache.paths.get(key)
    if found is None:
        return -ENOENT
    if <uint64_t>len(found) >= path_bytes:
        return -ENAMETOOLONG
    memcpy(path, <const char *>found, strlen(found) + 1)
    return 0


cdef bint _python_retired(void *context, uint64_t key) noexcept with gil:
    return key not in (<SegmentMapCache>context).paths


cdef class SegmentMapCache:
    """Read segment files by key through the maps that a process uses; `paths` tells which file a key is."""

    cdef SegmentMaps maps
    cdef dict paths

    def __cinit__(self, uint32_t count_max=4096):
        self.paths = {}
        install_guard()
        segment_maps_init(&self.maps, count_max, _python_path, <void *>self)

    def __dealloc__(self):
        segment_maps_free(&self.maps)

    def __len__(self):
        return self.maps.count

    def name(self, uint64_t key, path):
        """Say which file `key` is; None retires it."""
        if path is None:
            self.paths.pop(key, None)
        else:
            self.paths[key] = os.fsencode(path)

    def turn(self):
        """Begin a read: what earlier ones used may go."""
        segment_maps_turn(&self.maps)

    def read(self, uint64_t key, uint64_t offset=0, uint64_t length=1 << 62):
        """Return at most `length` bytes from `offset` on. OSError when they cannot be read."""
        cdef SegmentMap *found = segment_map(&self.maps, key)
        cdef bytes out
        cdef int failure
        if found == NULL:
            raise OSError(-self.maps.failure, os.strerror(-self.maps.failure))
        offset = min(offset, found.bytes)
        out = bytes(min(length, found.bytes - offset))
        failure = guarded_copy(<char *>out, found.at + offset, len(out))
        if failure != 0:
            raise OSError(-failure, os.strerror(-failure))
        return out

    def mark(self, uint64_t key, uint64_t now_ns):
        """Remember the file as verified; return whether it was."""
        cdef SegmentMap *found = segment_map(&self.maps, key)
        cdef bint before
        if found == NULL:
            raise OSError(-self.maps.failure, os.strerror(-self.maps.failure))
        segment_map_marks(found, now_ns)
        if found.index_marks == NULL or found.frame_marks == NULL:
            raise MemoryError
        before = found.index_marks[0] & found.frame_marks[0] & 1
        found.index_marks[0] |= 1
        found.frame_marks[0] |= 1
        return bool(before)

    def has(self, uint64_t key):
        """Is the file mapped?"""
        return _find(&self.maps, key) != NULL

    def forget(self, uint64_t key):
        """Unmap one file; was it mapped?"""
        return segment_maps_forget(&self.maps, key)

    def sweep(self):
        """Unmap what is retired; return how many."""
        return segment_maps_sweep(&self.maps, _python_retired, <void *>self)
