# A file that is written from front to back through one buffer, and patched wherever its bytes are by then.
#
#   | flushed: in the file ................ | used: in the buffer ...... | room |
#
# Without `files` nothing is written and everything stays in the buffer (a part that is made again to be compared). Every function returns 0 or
# -errno. Owner: one builder. The functions are small and stand here so that each module that writes segments has them inline.
from libc.errno cimport ENOMEM
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy
from posix.fcntl cimport O_CREAT, O_RDWR, O_TRUNC
from posix.uio cimport iovec

from topicsd._native.files cimport Files

cdef enum:
    SINK_BUFFER_BYTES = 1 << 20

cdef struct Sink:
    const Files *files     # NULL: nothing is written, everything stays in the buffer
    int fd
    uint8_t *buffer
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


cdef inline uint8_t *sink_reserve(Sink *sink, uint64_t bytes, int *failure) noexcept nogil:
    """Room for `bytes` in a row behind what is there; the caller adds them to `used`. NULL: see failure."""
    cdef uint8_t *grown
    cdef uint64_t room
    failure[0] = 0
    if sink.used + bytes <= sink.room:
        return sink.buffer + sink.used
    if sink.files != NULL:
        failure[0] = sink_flush(sink)
        if failure[0] != 0:
            return NULL
    if sink.used + bytes > sink.room:
        room = max(max(sink.used + bytes, sink.room * 2), <uint64_t>SINK_BUFFER_BYTES)
        grown = <uint8_t *>realloc(sink.buffer, room)
        if grown == NULL:
            failure[0] = -ENOMEM
            return NULL
        sink.buffer = grown
        sink.room = room
    return sink.buffer + sink.used


cdef inline int sink_put(Sink *sink, const void *bytes, uint64_t count) noexcept nogil:
    cdef int failure = 0
    cdef uint8_t *at
    cdef iovec part
    cdef int64_t wrote
    if sink.files != NULL and count >= SINK_BUFFER_BYTES:    # large: straight from where it stands
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
    wrote = sink_flush(sink)    # then nothing straddles the buffer's front
    if wrote >= 0:
        wrote = sink.files.pwritev(sink.files.context, sink.fd, &part, 1, offset)
    return <int>wrote if wrote < 0 else 0


cdef inline uint64_t sink_end(const Sink *sink) noexcept nogil:
    return sink.flushed + sink.used


cdef inline int sink_open(Sink *sink, const Files *files, const char *path) noexcept nogil:
    sink.fd = files.open(files.context, path, O_RDWR | O_CREAT | O_TRUNC, 0o644)
    if sink.fd < 0:
        return sink.fd
    sink.files = files
    sink.used = sink.flushed = 0
    return 0


cdef inline int sink_close(Sink *sink, bint keep) noexcept nogil:
    """Write what is left, sync, close. The file is closed in any case."""
    cdef int result = 0, closed
    if sink.fd < 0:
        return 0
    if keep:
        result = sink_flush(sink)
        if result == 0:
            result = sink.files.fsync(sink.files.context, sink.fd)
    closed = sink.files.close(sink.files.context, sink.fd)
    sink.fd = -1
    sink.files = NULL
    sink.used = 0
    return result if result != 0 else closed
