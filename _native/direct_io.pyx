"""Write large groups of the log past the page cache (page of truth: direct_io.pxd)."""

from libc.errno cimport EAGAIN, EINVAL, ENOSYS, EOPNOTSUPP
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset
from posix.fcntl cimport O_RDWR
from posix.stdlib cimport posix_memalign
from posix.uio cimport iovec

from topicsd._native.atomics cimport clock_mono_ns
from topicsd._native.files cimport Files, flight_close

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <fcntl.h>
    #include <sys/mman.h>
    #include <sys/vfs.h>
    #define STAGE_BYTES (2u << 20)
    static int keeps_maps_coherent(int fd) {
        struct statfs found;
        return fstatfs(fd, &found) == 0 && (found.f_type == 0xEF53 /* ext4 */ || found.f_type == 0x58465342 /* XFS */);
    }
    """
    const int O_DIRECT
    const int MADV_HUGEPAGE
    const uint64_t STAGE_BYTES
    int keeps_maps_coherent(int fd) nogil
    int madvise(void *at, size_t size, int advice) nogil

cdef enum:
    PROBE_EVERY = 64         # large groups; the dearer way is tried once among so many, for disks and memory change,
    PROBE_EVERY_MAX = 4096   # and half as often after each try that changes nothing
    CROWD_FACTOR = 6
    CROWD_NS = 20 * 1000000  # after a group of several the next ones are of a crowd too: behind a pause of the disk the first one is alone

cdef int64_t DIRECT_UNSUPPORTED = -(1 << 30)


cdef void direct_open(DirectWrites *direct, bint wanted) noexcept nogil:
    memset(direct, 0, sizeof(DirectWrites))
    direct.fd = -1
    direct.refused = not wanted
    direct.probe_every = PROBE_EVERY


cdef void direct_forget(DirectWrites *direct, const Files *files) noexcept nogil:
    if direct.fd >= 0:
        files.close(files.context, direct.fd)
        direct.fd = -1


cdef void direct_close(DirectWrites *direct, const Files *files) noexcept nogil:
    cdef uint32_t which
    direct_forget(direct, files)
    for which in range(<uint32_t>FLIGHTS_MAX):
        flight_close(&direct.flight[which])
        free(direct.stage[which])
        direct.stage[which] = NULL


cdef inline uint64_t averaged(uint64_t old, uint64_t bytes, uint64_t took_ns, bint tried) noexcept nogil:
    # One stall must not decide: a sample counts for at most four times what was known. The way that is only tried now and then has few samples:
    # each of them counts for half, or a stall would keep it out of use for seconds.
    cdef uint64_t cost = max(took_ns * (1 << 20) // max(bytes, <uint64_t>1), <uint64_t>1)
    if old == 0:
        return cost
    if tried:
        return max((old + min(cost, old * 4)) // 2, <uint64_t>1)
    return max((old * 7 + min(cost, old * 4)) // 8, <uint64_t>1)


cdef int direct_file(const Files *files, const char *path) noexcept nogil:
    cdef int fd = files.open(files.context, path, O_RDWR | O_DIRECT, 0)
    if fd >= 0 and not keeps_maps_coherent(fd):
        files.close(files.context, fd)
        fd = -1
    return max(fd, -1)


cdef bint direct_wanted(DirectWrites *direct, uint64_t bytes, bint crowded, uint64_t now_ns) noexcept nogil:
    cdef bint better
    direct.tried = False
    if crowded:
        direct.crowd_until_ns = now_ns + CROWD_NS
    crowded = now_ns < direct.crowd_until_ns
    if direct.refused or bytes % <uint64_t>DIRECT_PAGE_BYTES or (bytes < <uint64_t>DIRECT_LEAST_BYTES and direct.always < 2):
        return False
    if direct.always:
        return True
    if direct.direct_cost == 0 or direct.cached_cost == 0:
        return direct.direct_cost == 0
    # Who is alone waits as long as the write takes. In a crowd the next group gathers meanwhile, and a buffered write is the dearer for what it
    # leaves to the syncer: where it alone was 2.6 times as fast, the flood was a fifth slower, its p99 twice as long and a sync three times.
    better = direct.direct_cost <= direct.cached_cost * (CROWD_FACTOR if crowded else 1)
    if better != direct.preferred[crowded]:
        direct.preferred[crowded] = better
        direct.probe_every = PROBE_EVERY
        direct.since_probe = 0
    direct.since_probe += 1
    if direct.since_probe < direct.probe_every:
        return better
    direct.since_probe = 0
    direct.probe_every = min(direct.probe_every * 2, <uint32_t>PROBE_EVERY_MAX)
    direct.tried = True
    return not better


cdef int64_t write_staged(DirectWrites *direct, const Files *files, const iovec *parts, uint32_t count, uint64_t skip,
                          uint64_t offset) noexcept nogil:
    cdef uint64_t taken = skip, filled = 0, total = 0, size
    cdef uint32_t k = 0
    cdef iovec whole
    cdef int64_t result
    whole.iov_base = direct.stage[0]
    while k < count and taken >= <uint64_t>parts[k].iov_len:
        taken -= parts[k].iov_len
        k += 1
    while k < count:
        size = min(<uint64_t>parts[k].iov_len - taken, <uint64_t>DIRECT_PIECE_BYTES - filled)
        memcpy(direct.stage[0] + filled, <const uint8_t *>parts[k].iov_base + taken, size)
        filled += size
        taken += size
        if taken == <uint64_t>parts[k].iov_len:
            taken = 0
            k += 1
        if filled == <uint64_t>DIRECT_PIECE_BYTES or k == count:
            whole.iov_len = filled
            result = files.pwritev(files.context, direct.fd, &whole, 1, offset + total)
            if result < 0:
                return result
            total += filled
            filled = 0
    return <int64_t>total


cdef int64_t made_ready(DirectWrites *direct, uint32_t which, const Files *files, const char *path) noexcept nogil:
    if direct.stage[which] == NULL:
        if posix_memalign(<void **>&direct.stage[which], STAGE_BYTES, STAGE_BYTES) != 0:
            direct.stage[which] = NULL
            return DIRECT_UNSUPPORTED
        madvise(direct.stage[which], STAGE_BYTES, MADV_HUGEPAGE)
        memset(direct.stage[which], 0, STAGE_BYTES)     # now, not while the first write is timed
    if direct.fd < 0:
        direct.fd = direct_file(files, path)
        if direct.fd < 0:
            direct.refused = True
            return DIRECT_UNSUPPORTED
    return 0


cdef int64_t direct_write(DirectWrites *direct, const Files *files, const char *path, const iovec *parts, uint32_t count, uint64_t skip,
                          uint64_t offset) noexcept nogil:
    cdef int64_t result = made_ready(direct, 0, files, path)
    if result != 0:
        return result
    direct.since_ns = clock_mono_ns()
    return written(direct, 0, files, write_staged(direct, files, parts, count, skip, offset))


cdef int64_t direct_start(DirectWrites *direct, uint32_t which, const Files *files, const char *path, const iovec *parts, uint32_t count,
                          uint64_t skip, uint64_t offset) noexcept nogil:
    cdef uint64_t filled = 0, size
    cdef int64_t result = made_ready(direct, which, files, path)
    cdef uint8_t *stage = direct.stage[which]
    cdef uint32_t k
    if result != 0 or direct.no_flights:
        return result if result != 0 else DIRECT_UNSUPPORTED
    direct.since_ns = clock_mono_ns()
    for k in range(count):
        size = parts[k].iov_len
        if skip >= size:
            skip -= size
            continue
        memcpy(stage + filled, <const uint8_t *>parts[k].iov_base + skip, size - skip)
        filled += size - skip
        skip = 0
    result = files.start_write(files.context, &direct.flight[which], direct.fd, stage, filled, offset)
    if result == -ENOSYS:
        direct.no_flights = True
        return DIRECT_UNSUPPORTED
    if result < 0:
        return written(direct, which, files, result)
    direct.flying[which] = filled
    direct.spent_ns[which] = clock_mono_ns() - direct.since_ns
    return 0


cdef int64_t direct_end(DirectWrites *direct, uint32_t which, const Files *files, uint64_t wait_ns, iovec *rest) noexcept nogil:
    cdef int64_t result
    direct.since_ns = clock_mono_ns()
    result = files.end_write(files.context, &direct.flight[which], wait_ns)
    if result == -EAGAIN:
        direct.spent_ns[which] += clock_mono_ns() - direct.since_ns
        return result
    rest.iov_base, rest.iov_len = direct.stage[which], direct.flying[which]
    direct.flying[which] = 0
    return written(direct, which, files, result)


cdef int64_t written(DirectWrites *direct, uint32_t which, const Files *files, int64_t result) noexcept nogil:
    cdef uint64_t spent_ns = direct.spent_ns[which] + clock_mono_ns() - direct.since_ns
    cdef uint32_t other
    direct.spent_ns[which] = 0
    if result == -EINVAL or result == -EOPNOTSUPP:      # a disk of larger sectors, say: the same bytes can still be written the other way
        direct.refused = True
        for other in range(<uint32_t>FLIGHTS_MAX):
            if direct.flying[other]:
                return DIRECT_UNSUPPORTED
        direct_forget(direct, files)
        return DIRECT_UNSUPPORTED
    if result >= 0:
        direct.direct_cost = averaged(direct.direct_cost, <uint64_t>result, spent_ns, direct.tried)
        direct.bytes += <uint64_t>result
        direct.writes += 1
    return result


cdef void direct_compare(DirectWrites *direct, uint64_t bytes, uint64_t took_ns) noexcept nogil:
    if not direct.refused and bytes >= <uint64_t>DIRECT_LEAST_BYTES:
        direct.cached_cost = averaged(direct.cached_cost, bytes, took_ns, direct.tried)


cdef class DirectChoice:
    cdef DirectWrites direct
    cdef uint64_t now_ns

    def __cinit__(self, bint wanted=True):
        direct_open(&self.direct, wanted)

    def wants(self, uint64_t size, bint crowded=False, uint64_t after_ns=1000000000):
        self.now_ns += after_ns
        return direct_wanted(&self.direct, size, crowded, self.now_ns)

    def took(self, bint direct, uint64_t size, uint64_t ns):
        if direct:
            self.direct.direct_cost = averaged(self.direct.direct_cost, size, ns, self.direct.tried)
        else:
            direct_compare(&self.direct, size, ns)
