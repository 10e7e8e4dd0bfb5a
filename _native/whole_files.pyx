"""Write, copy and remove files whole or not at all (see whole_files.pxd)."""

import os

from libc.errno cimport ENAMETOOLONG, ENOMEM
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, strlen
from posix.fcntl cimport O_CREAT, O_RDONLY, O_TRUNC, O_WRONLY
from posix.uio cimport iovec

from topicsd._native.files cimport Files, FileSystem, real_files

cdef enum:
    PATH_BYTES_MAX = 4096
    COPY_BYTES = 1 << 20


cdef int _names(const char *path, char *temporary, char *folder) noexcept nogil:
    cdef uint64_t length = strlen(path), at = strlen(path)
    if length + 5 > PATH_BYTES_MAX:
        return -ENAMETOOLONG
    memcpy(temporary, path, length)
    memcpy(temporary + length, ".tmp", 5)
    while at > 1 and path[at - 1] != b"/":
        at -= 1
    if at > 1:
        memcpy(folder, path, at - 1)
        folder[at - 1] = 0
    else:
        folder[0] = b"/" if path[0] == b"/" else b"."
        folder[1] = 0
    return 0


cdef int _put(const Files *files, int fd, const uint8_t *bytes, uint64_t count, uint64_t offset) noexcept nogil:
    cdef iovec part
    cdef int64_t wrote
    if count == 0:
        return 0
    part.iov_base = <void *>bytes
    part.iov_len = count
    wrote = files.pwritev(files.context, fd, &part, 1, offset)
    return <int>wrote if wrote < 0 else 0


cdef int _settle(const Files *files, int fd, int result, const char *temporary, const char *path, const char *folder) noexcept nogil:
    """Sync and name what was written, or remove it when something has failed."""
    cdef int closed
    if result == 0:
        result = files.fsync(files.context, fd)
    closed = files.close(files.context, fd)
    if result == 0:
        result = closed
    if result == 0:
        result = files.rename(files.context, temporary, path)
    if result != 0:
        files.unlink(files.context, temporary)
        return result
    return files.sync_directory(files.context, folder)


cdef int whole_write(const Files *files, const char *path, const uint8_t *bytes, uint64_t count) noexcept nogil:
    cdef char temporary[PATH_BYTES_MAX]
    cdef char folder[PATH_BYTES_MAX]
    cdef int fd = 0, result = _names(path, temporary, folder)
    if result != 0:
        return result
    fd = files.open(files.context, temporary, O_WRONLY | O_CREAT | O_TRUNC, 0o644)
    if fd < 0:
        return fd
    return _settle(files, fd, _put(files, fd, bytes, count, 0), temporary, path, folder)


cdef int _pour(const Files *files, int source, int fd, uint8_t *buffer, uint64_t *bytes) noexcept nogil:
    cdef int64_t got = COPY_BYTES
    cdef int result = 0
    while got == COPY_BYTES and result == 0:
        got = files.pread(files.context, source, buffer, COPY_BYTES, bytes[0])
        if got < 0:
            return <int>got
        result = _put(files, fd, buffer, <uint64_t>got, bytes[0])
        bytes[0] += <uint64_t>got
    return result


cdef int whole_copy(const Files *files, const char *source, const char *destination, uint64_t *bytes) noexcept nogil:
    cdef char temporary[PATH_BYTES_MAX]
    cdef char folder[PATH_BYTES_MAX]
    cdef uint8_t *buffer = <uint8_t *>malloc(COPY_BYTES)
    cdef int fd, from_fd, result = _names(destination, temporary, folder)
    bytes[0] = 0
    if buffer == NULL:
        return -ENOMEM
    if result == 0:
        from_fd = files.open(files.context, source, O_RDONLY, 0)
        result = from_fd if from_fd < 0 else 0
        if result == 0:
            fd = files.open(files.context, temporary, O_WRONLY | O_CREAT | O_TRUNC, 0o644)
            result = fd if fd < 0 else 0
            if result == 0:
                result = _settle(files, fd, _pour(files, from_fd, fd, buffer, bytes), temporary, destination, folder)
            files.close(files.context, from_fd)
    free(buffer)
    return result


# ---- for Python -----------------------------------------------------------------------------------------------------------------


cdef const Files *table_of(FileSystem files) noexcept:
    if files is not None:
        return &files.table
    return real_files()


cdef int raise_for(int result, path) except -1:
    if result < 0:
        raise OSError(-result, os.strerror(-result), os.fspath(path))
    return 0


def write_whole(path, const uint8_t[::1] raw not None, FileSystem files=None):
    """Write a file whole or not at all, synced. Raises OSError."""
    cdef bytes name = os.fsencode(path)
    cdef const char *target = name
    cdef const Files *table = table_of(files)
    cdef uint64_t count = len(raw)
    cdef const uint8_t *first = &raw[0] if count else NULL
    cdef int result
    with nogil:
        result = whole_write(table, target, first, count)
    raise_for(result, path)


def copy_whole(source, destination, FileSystem files=None):
    """Copy a file whole or not at all, synced. How many bytes it has. Raises OSError."""
    cdef bytes old = os.fsencode(source), new = os.fsencode(destination)
    cdef const char *from_path = old
    cdef const char *to_path = new
    cdef const Files *table = table_of(files)
    cdef uint64_t bytes = 0
    cdef int result
    with nogil:
        result = whole_copy(table, from_path, to_path, &bytes)
    raise_for(result, source)
    return bytes


def remove(path, FileSystem files=None):
    """Unlink a file; its directory is not synced, so that it may be there again after a power cut. Raises OSError."""
    cdef bytes name = os.fsencode(path)
    cdef const Files *table = table_of(files)
    raise_for(table.unlink(table.context, name), path)
