# Large groups go to the log past the page cache.
#
# A buffered write takes a fresh page of memory for every 4 KiB and copies into it; a flood of batches spends most of the writer's time there
# (and more where a hypervisor has to find the page first), only to have the syncer write the pages out again. With O_DIRECT the disk reads a
# staging buffer that is always the same. It waits for the disk, though, and leaves nothing for a reader in memory, so a group goes this way
# only if it is large, nobody seems to read its topics, and the last measured times say that it is the faster way.
#
#   group          [frame|frame|frame|MARK]          log.pyx ends a large group with a MARK that fills its last page
#   stage          2 MiB, one huge page if there is one; copied into and written in pieces of DIRECT_PIECE_BYTES
#   flights        four stages take turns: the disk has the next groups before the one in front of them has landed, and answers come in small lots
#
# Only file systems whose page cache stays coherent beside such writes (ext4, XFS: iomap drops the pages of the range before and after the
# write, those that a map has brought in by read-ahead included) are written this way; readers map the same files.
#
# Owner: the writer's thread alone. Errors are those of the write; EINVAL and the like on the first try only end direct writing.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from posix.uio cimport iovec

from topicsd._native.files cimport Files, Flight

cdef enum:
    DIRECT_PAGE_BYTES = 4096           # what offsets, lengths and the staging buffer are multiples of
    DIRECT_LEAST_BYTES = 128 << 10     # smaller groups are buffered
    DIRECT_PIECE_BYTES = 1 << 20
    DIRECT_FLIGHT_BYTES = 2 << 20      # the most that is written in the background at once
    FLIGHTS_MAX = 4

cdef struct DirectWrites:
    int fd                             # of the current log file; -1 while none is open
    bint refused                       # this file system or the operator wants none
    int always                         # for tests: 1 whatever it takes, 2 however small too
    uint8_t *stage[FLIGHTS_MAX]        # NULL until the first use
    uint64_t direct_cost, cached_cost  # nanoseconds of the writer a MiB, moving averages; 0: not measured
    bint preferred[2]                  # the direct way, at the last look; for a group of one, of many
    uint64_t crowd_until_ns
    uint32_t since_probe, probe_every  # large groups since the dearer way was last tried, and how many it takes until it is again
    bint tried                         # the last group goes the dearer way
    uint64_t bytes, writes             # counters
    Flight flight[FLIGHTS_MAX]
    uint64_t flying[FLIGHTS_MAX]       # bytes that are being written in the background
    uint64_t spent_ns[FLIGHTS_MAX]     # what that took of the writer's time so far
    uint64_t since_ns                  # since when the writer is at a write
    bint no_flights                    # this machine has no such writes

# Before anything else; `wanted` False: never write directly.
cdef void direct_open(DirectWrites *direct, bint wanted) noexcept nogil
cdef void direct_close(DirectWrites *direct, const Files *files) noexcept nogil
# The current file is another one from now on: the next direct write opens it.
cdef void direct_forget(DirectWrites *direct, const Files *files) noexcept nogil
# Whether so many bytes should go past the page cache; `crowded`: of several who write at once, or have done a moment ago.
cdef bint direct_wanted(DirectWrites *direct, uint64_t bytes, bint crowded, uint64_t now_ns) noexcept nogil
# Write all parts but their first `skip` bytes at `offset` (it and what is written are whole pages). The bytes; DIRECT_UNSUPPORTED: nothing is
# lost, write them the other way; -errno.
cdef int64_t direct_write(DirectWrites *direct, const Files *files, const char *path, const iovec *parts, uint32_t count, uint64_t skip,
                          uint64_t offset) noexcept nogil
# The same in the background, for what fits into a staging buffer, as flight `which`: 0, and direct_end waits for it. DIRECT_UNSUPPORTED, -errno:
# it does not fly.
cdef int64_t direct_start(DirectWrites *direct, uint32_t which, const Files *files, const char *path, const iovec *parts, uint32_t count,
                          uint64_t skip, uint64_t offset) noexcept nogil
# The bytes, or -errno; -EAGAIN: it goes on after so long (files.pxd). On DIRECT_UNSUPPORTED `rest` is what is to be written the other way.
cdef int64_t direct_end(DirectWrites *direct, uint32_t which, const Files *files, uint64_t wait_ns, iovec *rest) noexcept nogil

# A second descriptor of a file, for whole pages past the page cache. -1: not on this file system.
cdef int direct_file(const Files *files, const char *path) noexcept nogil
# Tell what a buffered write of a large group took.
cdef void direct_compare(DirectWrites *direct, uint64_t bytes, uint64_t took_ns) noexcept nogil

cdef int64_t DIRECT_UNSUPPORTED
