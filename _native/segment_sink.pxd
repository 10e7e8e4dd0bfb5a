# A file that is written from front to back through one buffer, and patched wherever its bytes are by then.
#
#   | flushed: in the file ................ | used: in the buffer ...... | room |
#
# With `direct_fd` whole pages go past the page cache (direct_io.pxd): a backlog that is sealed needs no memory then, and no second write by
# the kernel. What is left at the end, and patches, are buffered.
#
# Without `files` nothing is written and everything stays in the buffer (a part that is made again to be compared). Every function returns 0 or
# -errno. Owner: one builder. The functions are small and stand here so that each module that writes segments has them inline.
from libc.errno cimport EINVAL, ENOMEM, EOPNOTSUPP
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memmove
from posix.fcntl cimport O_CREAT, O_RDWR, O_TRUNC
from posix.stdlib cimport posix_memalign
from posix.uio cimport iovec

from topicsd._native.direct_io cimport DIRECT_PAGE_BYTES, direct_file
from topicsd._native.files cimport Files

cdef enum:
    SINK_BUFFER_BYTES = 1 << 20

cdef struct Sink:
    const Files *files     # NULL: nothing is written, everything stays in the buffer
    int fd
    int direct_fd          # the same file, or -1
    uint8_t *buffer        # begins on a page
    uint64_t room, used    # of the buffer
    uint64_t flushed       # file offset of the buffer's first byte


cdef inline int sink_flush(Sink *sink) noexcept nogil:
    cdef iovec part
    cdef int64_t wrote
    if sink.used == 0:
        return 0
    part.iov_base = sink.buffer
    part.iov_len = sink.used
    wrote = sink.files.pwritev(sink.files.context, sink.fd, &part, 1, sink.flushed)
    if wrote < 0:
        return <int>wrote
    sink.flushed += sink.used
    sink.used = 0
    return 0


cdef inline int sink_spill(Sink *sink) noexcept nogil:
    """Make room: write what is buffered, of a direct file the whole pages."""
    cdef uint64_t whole = sink.used - sink.used % DIRECT_PAGE_BYTES
    cdef iovec part
    cdef int64_t wrote
    if sink.direct_fd < 0 or whole == 0 or sink.flushed % DIRECT_PAGE_BYTES:
        return sink_flush(sink)
    part.iov_base = sink.buffer
    part.iov_len = whole
    wrote = sink.files.pwritev(sink.files.context, sink.direct_fd, &part, 1, sink.flushed)
    if wrote == -EINVAL or wrote == -EOPNOTSUPP:    # a disk of larger sectors, say
        sink.files.close(sink.files.context, sink.direct_fd)
        sink.direct_fd = -1
        return sink_flush(sink)
    if wrote < 0:
        return <int>wrote
    memmove(sink.buffer, sink.buffer + whole, sink.used - whole)
    sink.flushed += whole
    sink.used -= whole
    return 0


cdef inline uint8_t *sink_reserve(Sink *sink, uint64_t bytes, int *failure) noexcept nogil:
    """Room for `bytes` in a row behind what is there; the caller adds them to `used`. NULL: see failure."""
    cdef uint8_t *grown
    cdef uint64_t room
    failure[0] = 0
    if sink.used + bytes <= sink.room:
        return sink.buffer + sink.used
    if sink.files != NULL:
        failure[0] = sink_spill(sink)
        if failure[0] != 0:
            return NULL
    if sink.used + bytes > sink.room:
        room = max(max(sink.used + bytes, sink.room * 2), <uint64_t>SINK_BUFFER_BYTES)
        if posix_memalign(<void **>&grown, DIRECT_PAGE_BYTES, room) != 0:
            failure[0] = -ENOMEM
            return NULL
        if sink.used:
            memcpy(grown, sink.buffer, sink.used)
        free(sink.buffer)
        sink.buffer = grown
        sink.room = room
    return sink.buffer + sink.used


cdef inline int sink_put(Sink *sink, const void *bytes, uint64_t count) noexcept nogil:
    cdef int failure = 0
    cdef uint8_t *at
    cdef uint64_t size
    cdef iovec part
    cdef int64_t wrote
    if sink.files != NULL and count >= SINK_BUFFER_BYTES and sink.direct_fd < 0:    # large: straight from where it stands
        failure = sink_flush(sink)
        if failure != 0:
            return failure
        part.iov_base = <void *>bytes
        part.iov_len = count
        wrote = sink.files.pwritev(sink.files.context, sink.fd, &part, 1, sink.flushed)
        if wrote < 0:
            return <int>wrote
        sink.flushed += count
        return 0
    while sink.direct_fd >= 0 and count >= SINK_BUFFER_BYTES:    # piece by piece: the disk reads it from the buffer
        size = SINK_BUFFER_BYTES - sink.used % SINK_BUFFER_BYTES
        at = sink_reserve(sink, size, &failure)
        if at == NULL:
            return failure
        memcpy(at, bytes, size)
        sink.used += size
        bytes = <const uint8_t *>bytes + size
        count -= size
    at = sink_reserve(sink, count, &failure)
    if at == NULL:
        return failure
    if count:
        memcpy(at, bytes, count)
    sink.used += count
    return 0


cdef inline int sink_patch(Sink *sink, uint64_t offset, const void *bytes, uint64_t count) noexcept nogil:
    cdef iovec part
    cdef int64_t wrote
    if offset >= sink.flushed:
        memcpy(sink.buffer + (offset - sink.flushed), bytes, count)
        return 0
    part.iov_base = <void *>bytes
    part.iov_len = count
    wrote = sink_flush(sink) if offset + count > sink.flushed else 0    # then nothing straddles the buffer's front
    if wrote >= 0:
        wrote = sink.files.pwritev(sink.files.context, sink.fd, &part, 1, offset)
    return <int>wrote if wrote < 0 else 0


cdef inline uint64_t sink_end(const Sink *sink) noexcept nogil:
    return sink.flushed + sink.used


cdef inline int sink_open_as(Sink *sink, const Files *files, const char *path, int mode) noexcept nogil:
    sink.fd = files.open(files.context, path, O_RDWR | O_CREAT | O_TRUNC, mode)
    if sink.fd < 0:
        return sink.fd
    sink.files = files
    sink.direct_fd = -1
    sink.used = sink.flushed = 0
    return 0


cdef inline int sink_open(Sink *sink, const Files *files, const char *path) noexcept nogil:
    return sink_open_as(sink, files, path, 0o644)


cdef inline void sink_go_direct(Sink *sink, const char *path) noexcept nogil:
    """After sink_open: write whole pages past the page cache from here on, where the file system can."""
    sink.direct_fd = direct_file(sink.files, path)


cdef inline int sink_close(Sink *sink, bint keep) noexcept nogil:
    """Write what is left, sync, close. The file is closed in any case."""
    cdef int result = 0, closed
    if sink.fd < 0:
        return 0
    if sink.direct_fd >= 0:
        if keep:
            result = sink_spill(sink)
        sink.files.close(sink.files.context, sink.direct_fd)
        sink.direct_fd = -1
    if keep and result == 0:
        result = sink_flush(sink)
        if result == 0:
            result = sink.files.fsync(sink.files.context, sink.fd)
    closed = sink.files.close(sink.files.context, sink.fd)
    sink.fd = -1
    sink.files = NULL
    sink.used = 0
    return result if result != 0 else closed
