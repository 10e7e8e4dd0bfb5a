"""The file seam: the shipped functions, and a door through which a test can watch each call or make it fail."""

import sys
import traceback

from libc.errno cimport EAGAIN, EINTR, EIO, ENOSYS, errno
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset
from posix.fcntl cimport O_DIRECTORY, O_RDONLY, open as posix_open
from posix.stat cimport fstat, mkdir as posix_mkdir, struct_stat
from posix.types cimport mode_t, off_t
from posix.uio cimport iovec, pwritev as posix_pwritev
from posix.unistd cimport close as posix_close, fdatasync as posix_fdatasync, fsync as posix_fsync, pread as posix_pread
from posix.unistd cimport pwrite, unlink as posix_unlink

cdef extern from "<sys/statvfs.h>" nogil:
    struct struct_statvfs "statvfs":
        uint64_t f_bavail, f_frsize
    int statvfs(const char *path, struct_statvfs *found)

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <fcntl.h>
    #include <stdio.h>
    #include <linux/aio_abi.h>
    #include <linux/falloc.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>
    static inline int linux_fallocate(int fd, int mode, off_t offset, off_t bytes) { return fallocate(fd, mode, offset, bytes); }
    static inline int aio_setup(aio_context_t *context) { return syscall(SYS_io_setup, 2, context); }
    static inline int aio_destroy(aio_context_t context) { return syscall(SYS_io_destroy, context); }
    static inline int aio_write(aio_context_t context, int fd, const void *bytes, unsigned long length, long long offset) {
        struct iocb one = {.aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = fd, .aio_buf = (unsigned long)bytes, .aio_nbytes = length,
                           .aio_offset = offset}, *list = &one;
        return syscall(SYS_io_submit, context, 1, &list);
    }
    static inline int aio_wait(aio_context_t context, unsigned long long wait_ns, long long *result) {
        struct io_event event;
        struct timespec wait = {.tv_sec = wait_ns / 1000000000, .tv_nsec = wait_ns % 1000000000};
        int count = syscall(SYS_io_getevents, context, 1, 1, &event, wait_ns == ~0ull ? NULL : &wait);
        *result = count == 1 ? event.res : 0;
        return count;
    }
    #define PUNCH_MODE (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)
    """
    const int FALLOC_FL_ZERO_RANGE
    int linux_fallocate(int fd, int mode, off_t offset, off_t bytes) nogil
    int aio_setup(unsigned long *context) nogil
    int aio_destroy(unsigned long context) nogil
    int aio_write(unsigned long context, int fd, const void *bytes, unsigned long length, long long offset) nogil
    int aio_wait(unsigned long context, unsigned long long wait_ns, long long *result) nogil
    const int PUNCH_MODE

cdef extern from "<stdio.h>" nogil:
    int posix_rename "rename"(const char *source, const char *destination)

cdef extern from "<fcntl.h>" nogil:
    const int O_CLOEXEC
    const int O_DIRECT


# ---- the shipped functions ------------------------------------------------------------------------------------------

cdef int real_open(void *context, const char *path, int flags, int mode) noexcept nogil:
    cdef int fd
    while True:
        fd = posix_open(path, flags | O_CLOEXEC, <mode_t>mode)
        if fd >= 0:
            return fd
        if errno != EINTR:
            return -errno


cdef int real_close(void *context, int fd) noexcept nogil:
    # Never again after EINTR: Linux has closed it, and the number may already be somebody else's.
    return 0 if posix_close(fd) == 0 or errno == EINTR else -errno


cdef int64_t write_rest(int fd, const char *bytes, uint64_t length, uint64_t offset) noexcept nogil:
    # The end of a part that was written only in part.
    cdef uint64_t done = 0
    cdef ssize_t wrote
    while done < length:
        wrote = pwrite(fd, bytes + done, length - done, <off_t>(offset + done))
        if wrote < 0:
            if errno == EINTR:
                continue
            return -errno
        if wrote == 0:
            return -EIO
        done += <uint64_t>wrote
    return <int64_t>done


cdef int64_t real_pwritev(void *context, int fd, const iovec *parts, int count, uint64_t offset) noexcept nogil:
    cdef uint64_t total = 0, left
    cdef ssize_t wrote
    cdef int64_t rest
    cdef int first = 0
    while first < count:
        wrote = posix_pwritev(fd, parts + first, count - first, <off_t>(offset + total))
        if wrote < 0:
            if errno == EINTR:
                continue
            return -errno
        left = <uint64_t>wrote
        total += left
        while first < count and left >= parts[first].iov_len:
            left -= parts[first].iov_len
            first += 1
        if first == count:
            break
        if left or wrote == 0:
            rest = write_rest(fd, <const char *>parts[first].iov_base + left, parts[first].iov_len - left, offset + total)
            if rest < 0:
                return rest
            total += <uint64_t>rest
            first += 1
    return <int64_t>total


cdef int real_start_write(void *context, Flight *flight, int fd, const void *bytes, uint64_t length, uint64_t offset) noexcept nogil:
    cdef unsigned long made = 0
    if flight.aio == 0:
        if aio_setup(&made) != 0:
            return -ENOSYS      # too many of them on this machine, or a sandbox without
        flight.aio = made
    flight.fd, flight.bytes, flight.length, flight.offset = fd, bytes, length, offset
    while aio_write(<unsigned long>flight.aio, fd, bytes, length, <long long>offset) != 1:
        if errno != EINTR:
            return -errno
    return 0


cdef int64_t real_end_write(void *context, Flight *flight, uint64_t wait_ns) noexcept nogil:
    cdef long long wrote = 0
    cdef int64_t rest
    cdef int ended = aio_wait(<unsigned long>flight.aio, wait_ns, &wrote)
    while ended < 0 and errno == EINTR:
        ended = aio_wait(<unsigned long>flight.aio, wait_ns, &wrote)
    if ended != 1:
        return -errno if ended < 0 else -EAGAIN
    if wrote <= 0 or <uint64_t>wrote == flight.length:
        return wrote if wrote and wrote != -EAGAIN else -EIO
    rest = write_rest(flight.fd, <const char *>flight.bytes + wrote, flight.length - <uint64_t>wrote, flight.offset + <uint64_t>wrote)
    return rest if rest < 0 else <int64_t>flight.length


cdef void flight_close(Flight *flight) noexcept nogil:
    if flight.aio:
        aio_destroy(<unsigned long>flight.aio)
    memset(flight, 0, sizeof(Flight))


cdef int64_t real_pread(void *context, int fd, void *destination, uint64_t bytes, uint64_t offset) noexcept nogil:
    cdef uint64_t done = 0
    cdef ssize_t got
    while done < bytes:
        got = posix_pread(fd, <char *>destination + done, bytes - done, <off_t>(offset + done))
        if got < 0:
            if errno == EINTR:
                continue
            return -errno
        if got == 0:
            break
        done += <uint64_t>got
    return <int64_t>done


cdef int real_fdatasync(void *context, int fd) noexcept nogil:
    while posix_fdatasync(fd) != 0:
        if errno != EINTR:
            return -errno
    return 0


cdef int real_fsync(void *context, int fd) noexcept nogil:
    while posix_fsync(fd) != 0:
        if errno != EINTR:
            return -errno
    return 0


cdef int real_fallocate(void *context, int fd, uint64_t offset, uint64_t bytes) noexcept nogil:
    while linux_fallocate(fd, 0, <off_t>offset, <off_t>bytes) != 0:
        if errno != EINTR:
            return -errno
    return 0


cdef int real_punch(void *context, int fd, uint64_t offset, uint64_t bytes) noexcept nogil:
    while linux_fallocate(fd, PUNCH_MODE, <off_t>offset, <off_t>bytes) != 0:
        if errno != EINTR:
            return -errno
    return 0


cdef int real_blank(void *context, int fd, uint64_t offset, uint64_t bytes) noexcept nogil:
    while linux_fallocate(fd, FALLOC_FL_ZERO_RANGE, <off_t>offset, <off_t>bytes) != 0:
        if errno != EINTR:
            return -errno
    return 0


cdef int real_rename(void *context, const char *source, const char *destination) noexcept nogil:
    return 0 if posix_rename(source, destination) == 0 else -errno


cdef int real_unlink(void *context, const char *path) noexcept nogil:
    return 0 if posix_unlink(path) == 0 else -errno


cdef int real_mkdir(void *context, const char *path, int mode) noexcept nogil:
    return 0 if posix_mkdir(path, <mode_t>mode) == 0 else -errno


cdef int real_sync_directory(void *context, const char *path) noexcept nogil:
    cdef int result
    cdef int fd = real_open(NULL, path, O_RDONLY | O_DIRECTORY, 0)
    if fd < 0:
        return fd
    result = real_fsync(NULL, fd)
    real_close(NULL, fd)
    return result


cdef int64_t real_size(void *context, int fd) noexcept nogil:
    cdef struct_stat found
    return <int64_t>found.st_size if fstat(fd, &found) == 0 else -errno


cdef int64_t real_free_bytes(void *context, const char *directory) noexcept nogil:
    cdef struct_statvfs found
    return <int64_t>(found.f_bavail * found.f_frsize) if statvfs(directory, &found) == 0 else -errno


cdef Files REAL

REAL.context = NULL
REAL.open = real_open
REAL.close = real_close
REAL.pwritev = real_pwritev
REAL.start_write = real_start_write
REAL.end_write = real_end_write
REAL.pread = real_pread
REAL.fdatasync = real_fdatasync
REAL.fsync = real_fsync
REAL.fallocate = real_fallocate
REAL.blank = real_blank
REAL.punch = real_punch
REAL.rename = real_rename
REAL.unlink = real_unlink
REAL.mkdir = real_mkdir
REAL.sync_directory = real_sync_directory
REAL.size = real_size
REAL.free_bytes = real_free_bytes


cdef const Files *real_files() noexcept nogil:
    return &REAL


cdef class FileSystem:
    """The machine's files: what the log uses unless a test hands it something else."""

    def __cinit__(self, *args, **options):
        self.table = REAL


# ---- the watched ones: for tests --------------------------------------------------------------------------------------

cdef bytes joined(const iovec *parts, int count):
    return b"".join([(<const char *>parts[i].iov_base)[:parts[i].iov_len] for i in range(count)])


cdef class WatchedFiles(FileSystem):
    """The shipped functions with a Python hook before and after each call.

    A subclass overrides `before` and `after`. Both may be called from any thread. A hook that raises makes the call fail with EIO.
    """

    def __cinit__(self, *args, **options):
        self.table.context = <void *>self
        self.table.open = watched_open
        self.table.close = watched_close
        self.table.pwritev = watched_pwritev
        self.table.start_write = watched_start_write
        self.table.end_write = watched_end_write
        self.table.pread = watched_pread
        self.table.fdatasync = watched_fdatasync
        self.table.fsync = watched_fsync
        self.table.fallocate = watched_fallocate
        self.table.blank = watched_blank
        self.table.punch = watched_punch
        self.table.rename = watched_rename
        self.table.unlink = watched_unlink
        self.table.mkdir = watched_mkdir
        self.table.sync_directory = watched_sync_directory
        self.table.free_bytes = watched_free_bytes
        self.free = -1

    def before(self, kind, *args):
        """Return 0 to let the call happen, -errno to fail it; for a pwritev k > 0 writes k bytes and then fails with EIO."""
        return 0

    def after(self, kind, result, *args):
        """Take note of what the call returned (>= 0, or -errno)."""

    cdef int64_t asked(self, tuple call):
        try:
            return self.before(*call)
        except BaseException:
            self.report()
            return -EIO

    cdef int64_t told(self, tuple call, int64_t result):
        try:
            self.after(call[0], result, *call[1:])
            return result
        except BaseException:
            self.report()
            return -EIO

    cdef report(self):
        if not sys.is_finalizing():  # a Shard may outlive the hooks' module
            traceback.print_exc()


cdef int watched_open(void *context, const char *path, int flags, int mode) noexcept with gil:
    cdef WatchedFiles files = <WatchedFiles>context
    cdef tuple call = ("open", <bytes>path, flags, mode)
    cdef int64_t verdict = files.asked(call)
    if verdict == 0:
        verdict = real_open(NULL, path, flags & ~O_DIRECT, mode)     # what is cut short must be written all the same
    return <int>files.told(call, verdict)


cdef int64_t watched_pwritev(void *context, int fd, const iovec *parts, int count, uint64_t offset) noexcept with gil:
    cdef WatchedFiles files = <WatchedFiles>context
    cdef bytes data = joined(parts, count)
    cdef const char *start = data
    cdef int64_t done
    cdef int64_t verdict = files.asked(("pwritev", fd, offset, data))
    if verdict == 0:
        return files.told(("pwritev", fd, offset, data), real_pwritev(NULL, fd, parts, count, offset))
    if verdict > 0:
        done = write_rest(fd, start, min(verdict, <int64_t>len(data)), offset)
        if done >= 0:
            files.told(("pwritev", fd, offset, data[:done]), done)
        verdict = -EIO
    return verdict


cdef int watched_start_write(void *context, Flight *flight, int fd, const void *bytes, uint64_t length, uint64_t offset) noexcept with gil:
    cdef iovec whole
    whole.iov_base = <void *>bytes
    whole.iov_len = length
    flight.result = watched_pwritev(context, fd, &whole, 1, offset)
    return 0


cdef int64_t watched_end_write(void *context, Flight *flight, uint64_t wait_ns) noexcept nogil:
    return flight.result


cdef int64_t watched_free_bytes(void *context, const char *directory) noexcept nogil:
    cdef int64_t told = (<WatchedFiles>context).free
    return told if told >= 0 else real_free_bytes(NULL, directory)


cdef int64_t watched_pread(void *context, int fd, void *destination, uint64_t bytes, uint64_t offset) noexcept with gil:
    cdef WatchedFiles files = <WatchedFiles>context
    cdef tuple call = ("pread", fd, offset, bytes)
    cdef int64_t verdict = files.asked(call)
    if verdict == 0:
        verdict = real_pread(NULL, fd, destination, bytes, offset)
    return files.told(call, verdict)


cdef int on_descriptor(void *context, str kind, int fd, int (*function)(void *, int) noexcept nogil):
    cdef WatchedFiles files = <WatchedFiles>context
    cdef tuple call = (kind, fd)
    cdef int64_t verdict = files.asked(call)
    cdef int result
    if verdict == 0:
        with nogil:  # a sync takes its time, and the writer must be able to go on meanwhile
            result = function(NULL, fd)
        verdict = result
    return <int>files.told(call, verdict)


cdef int watched_close(void *context, int fd) noexcept with gil:
    return on_descriptor(context, "close", fd, real_close)


cdef int watched_fdatasync(void *context, int fd) noexcept with gil:
    return on_descriptor(context, "fdatasync", fd, real_fdatasync)


cdef int watched_fsync(void *context, int fd) noexcept with gil:
    return on_descriptor(context, "fsync", fd, real_fsync)


cdef int on_range(void *context, str kind, int fd, uint64_t offset, uint64_t bytes, int (*function)(void *, int, uint64_t, uint64_t) noexcept nogil):
    cdef WatchedFiles files = <WatchedFiles>context
    cdef tuple call = (kind, fd, offset, bytes)
    cdef int64_t verdict = files.asked(call)
    if verdict == 0:
        verdict = function(NULL, fd, offset, bytes)
    return <int>files.told(call, verdict)


cdef int watched_fallocate(void *context, int fd, uint64_t offset, uint64_t bytes) noexcept with gil:
    return on_range(context, "fallocate", fd, offset, bytes, real_fallocate)


cdef int watched_blank(void *context, int fd, uint64_t offset, uint64_t bytes) noexcept with gil:
    return on_range(context, "blank", fd, offset, bytes, real_blank)


cdef int watched_punch(void *context, int fd, uint64_t offset, uint64_t bytes) noexcept with gil:
    return on_range(context, "punch", fd, offset, bytes, real_punch)


cdef int watched_rename(void *context, const char *source, const char *destination) noexcept with gil:
    cdef WatchedFiles files = <WatchedFiles>context
    cdef tuple call = ("rename", <bytes>source, <bytes>destination)
    cdef int64_t verdict = files.asked(call)
    if verdict == 0:
        verdict = real_rename(NULL, source, destination)
    return <int>files.told(call, verdict)


cdef int on_path(void *context, str kind, const char *path, int (*function)(void *, const char *) noexcept nogil):
    cdef WatchedFiles files = <WatchedFiles>context
    cdef tuple call = (kind, <bytes>path)
    cdef int64_t verdict = files.asked(call)
    if verdict == 0:
        verdict = function(NULL, path)
    return <int>files.told(call, verdict)


cdef int watched_unlink(void *context, const char *path) noexcept with gil:
    return on_path(context, "unlink", path, real_unlink)


cdef int watched_mkdir(void *context, const char *path, int mode) noexcept with gil:
    cdef WatchedFiles files = <WatchedFiles>context
    cdef tuple call = ("mkdir", <bytes>path, mode)
    cdef int64_t verdict = files.asked(call)
    if verdict == 0:
        verdict = real_mkdir(NULL, path, mode)
    return <int>files.told(call, verdict)


cdef int watched_sync_directory(void *context, const char *path) noexcept with gil:
    return on_path(context, "sync_directory", path, real_sync_directory)
