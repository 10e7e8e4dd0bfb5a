# The file seam: everything that the log does to a disk goes through this table of C functions.
#
# The table that ships is `real_files()`. The crash tests put `FaultyFiles` (a WatchedFiles, tests/fakes/faulty_files.py) in its place. It runs
# the very same functions with faults in between, and remembers what a power cut could have taken.
#
# Every function returns a value >= 0, or -errno. All are safe in any thread, without the GIL; none allocates.
#   pwritev  writes ALL bytes of all parts (it goes on after EINTR and short writes) and returns their sum. A write that makes no progress
#            is -EIO. At most IOV_PARTS_MAX parts. After an error any part of the bytes may be in the file.
#   pread    reads until `bytes` or the end of the file and returns how many it got.
#   punch    frees the range's blocks; it then reads as zeroes. The size stays.
#   blank    keeps the range's blocks, unwritten; it then reads as zeroes, and a write of a part of a page need not read the rest of it.
#   fallocate reserves blocks and grows the size; the range reads as zeroes.
# Nothing here is retried after an error: what a failed write or sync left behind is unknown, and the caller must not believe in it.
from libc.stdint cimport int64_t, uint64_t
from posix.uio cimport iovec

cdef enum:
    IOV_PARTS_MAX = 1024

cdef extern from *:
    """
    #define WRITE_ENDS (~0ull)   /* end_write: however long it takes */
    """
    const uint64_t WRITE_ENDS

ctypedef struct Flight:
    uint64_t aio       # the kernel's context, 0: none yet
    int fd
    const void *bytes
    uint64_t length, offset
    int64_t result     # of a watched write: it is done when it starts

ctypedef struct Files:
    void *context  # handed to each function as its first argument; borrowed from the FileSystem that owns the table
    int (*open)(void *context, const char *path, int flags, int mode) noexcept nogil
    int (*close)(void *context, int fd) noexcept nogil
    int64_t (*pwritev)(void *context, int fd, const iovec *parts, int count, uint64_t offset) noexcept nogil
    # One write in the background. 0: it goes on, and `end_write` waits for it; -ENOSYS: this machine has no such writes; -errno
    int (*start_write)(void *context, Flight *flight, int fd, const void *bytes, uint64_t length, uint64_t offset) noexcept nogil
    # Like pwritev; -EAGAIN: it goes on after so long, end it later. WRITE_ENDS: however long it takes
    int64_t (*end_write)(void *context, Flight *flight, uint64_t wait_ns) noexcept nogil
    int64_t (*pread)(void *context, int fd, void *destination, uint64_t bytes, uint64_t offset) noexcept nogil
    int (*fdatasync)(void *context, int fd) noexcept nogil
    int (*fsync)(void *context, int fd) noexcept nogil
    int (*fallocate)(void *context, int fd, uint64_t offset, uint64_t bytes) noexcept nogil
    int (*blank)(void *context, int fd, uint64_t offset, uint64_t bytes) noexcept nogil
    int (*punch)(void *context, int fd, uint64_t offset, uint64_t bytes) noexcept nogil
    int (*rename)(void *context, const char *source, const char *destination) noexcept nogil
    int (*unlink)(void *context, const char *path) noexcept nogil
    int (*mkdir)(void *context, const char *path, int mode) noexcept nogil
    int (*sync_directory)(void *context, const char *path) noexcept nogil
    int64_t (*size)(void *context, int fd) noexcept nogil
    int64_t (*free_bytes)(void *context, const char *directory) noexcept nogil     # of the disk that it is on

# The shipped table: static, never freed.
cdef const Files *real_files() noexcept nogil

# Give the kernel's context back. After end_write.
cdef void flight_close(Flight *flight) noexcept nogil

# A table with an owner. `FileSystem()` is the real one; a subclass fills `table` with its own functions and `context` with itself, and must
# outlive whoever holds `&table`.
cdef class FileSystem:
    cdef Files table

# The shipped functions with a Python hook around each call (tests only: takes the GIL).
cdef class WatchedFiles(FileSystem):
    cdef public int64_t free     # bytes, what free_bytes says; -1: what is so
    cdef int64_t asked(self, tuple call)
    cdef int64_t told(self, tuple call, int64_t result)
    cdef report(self)
