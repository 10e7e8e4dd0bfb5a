"""Make files of the log ahead of a flood (page of truth: log_spares.pxd)."""

from libc.errno cimport EAGAIN, ENOENT, ENOSYS, EOPNOTSUPP
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from posix.fcntl cimport O_CREAT, O_RDWR, O_TRUNC
from posix.uio cimport iovec

from topicsd._native.atomics cimport load_acquire_64
from topicsd._native.direct_io cimport direct_file
from topicsd._native.files cimport Files

cdef enum:
    PATH_BYTES = 4096
    FREE_SHARE = 4                      # of the free disk, with the spares themselves, they may have one part
    SPARE_KEEP_NS = 600000000000        # in one piece: C would reckon a product in 32 bits


cdef inline void name_of(const char *directory, uint32_t serial, char *path) noexcept nogil:
    snprintf(path, PATH_BYTES, b"%s/spare-%010u.preparing", directory, <unsigned int>serial)


cdef void spares_flood(Spares *spares, uint64_t now_ns) noexcept nogil:
    if now_ns - spares.flood_ns > <uint64_t>SPARE_KEEP_NS:
        spares.wanted = spares.count
    spares.flood_ns = now_ns
    if spares.count == 0:
        spares.wanted = min(spares.wanted + 1, <uint32_t>SPARES_MAX)


cdef uint32_t spares_due(const Spares *spares, int64_t free_bytes, uint64_t file_bytes, uint64_t now_ns) noexcept nogil:
    if spares.wanted == 0 or now_ns - spares.flood_ns > <uint64_t>SPARE_KEEP_NS:
        return 0
    return <uint32_t>min(<uint64_t>spares.wanted, (max(free_bytes, <int64_t>0) + spares.count * file_bytes) // <uint64_t>FREE_SHARE // file_bytes)


cdef int spares_take(Spares *spares, const Files *files, const char *directory, const char *path) noexcept nogil:
    cdef char spare[PATH_BYTES]
    cdef int result
    if spares.count == 0:
        return -ENOENT
    name_of(directory, spares.serial[spares.count - 1], spare)
    result = files.rename(files.context, spare, path)
    if result < 0:
        spares_drop(spares, files, directory)
        return result
    spares.count -= 1
    return spares.fd[spares.count]


cdef int spares_fill(const Files *files, const char *directory, uint32_t serial, uint64_t bytes, const uint8_t *zeroes, uint64_t zero_bytes,
                     const uint64_t *written, uint64_t stop) noexcept nogil:
    cdef char path[PATH_BYTES]
    cdef int direct, fd, result
    name_of(directory, serial, path)
    fd = files.open(files.context, path, O_RDWR | O_CREAT | O_TRUNC, 0o640)
    if fd < 0:
        return fd
    result = files.fallocate(files.context, fd, 0, bytes)
    if result == 0:
        direct = direct_file(files, path)      # its pages are not to stay in memory: a flood goes past it
        result = fill_zeroes(files, direct if direct >= 0 else fd, bytes, zeroes, zero_bytes, written, stop)
        if direct >= 0:
            files.close(files.context, direct)
    if result == 0:
        result = files.fsync(files.context, fd)
    if result == 0:
        # The disk knows the blocks now. Written ones would make each small group read the page that it begins in.
        result = files.blank(files.context, fd, 0, bytes)
        if result == -EOPNOTSUPP or result == -ENOSYS:
            result = 0
    if result == 0:
        result = files.fsync(files.context, fd)
    if result < 0:
        files.close(files.context, fd)
        files.unlink(files.context, path)
        return result
    return fd


cdef int fill_zeroes(const Files *files, int fd, uint64_t bytes, const uint8_t *zeroes, uint64_t zero_bytes, const uint64_t *written,
                     uint64_t stop) noexcept nogil:
    cdef iovec part
    cdef uint64_t done = 0
    cdef int64_t result
    part.iov_base = <void *>zeroes
    while done < bytes:
        if load_acquire_64(written) >= stop:
            return -EAGAIN
        part.iov_len = min(zero_bytes, bytes - done)
        result = files.pwritev(files.context, fd, &part, 1, done)
        if result < 0:
            return <int>result
        done += part.iov_len
    return 0


cdef void spares_add(Spares *spares, uint32_t serial, int fd) noexcept nogil:
    spares.serial[spares.count], spares.fd[spares.count] = serial, fd
    spares.count += 1


cdef void spares_drop(Spares *spares, const Files *files, const char *directory) noexcept nogil:
    cdef char path[PATH_BYTES]
    if spares.count == 0:
        return
    spares.count -= 1
    name_of(directory, spares.serial[spares.count], path)
    files.close(files.context, spares.fd[spares.count])
    files.unlink(files.context, path)
