"""The append side of a shard's log: place, group, write, rotate, sync, prepare, and what to do when the disk fails."""

import os

from libc.errno cimport EAGAIN, EDQUOT, EFBIG, EINVAL, ENOENT, ENOMEM, ENOSPC, ENOSYS, EOPNOTSUPP, EROFS
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport abort, calloc, free, malloc
from libc.string cimport memcpy, memset
from posix.fcntl cimport O_CREAT, O_RDWR, O_TRUNC
from posix.stdlib cimport posix_memalign
from posix.uio cimport iovec

from topicsd._native.atomics cimport (
    add_32, cas_64, clock_mono_ns, clock_wall_ms, fence_seq_cst, futex_wait, futex_wake, load_acquire_64, load_relaxed_64, load_seq_cst_32,
    load_seq_cst_64, store_relaxed_64, store_release_64, store_seq_cst_32, store_seq_cst_64,
)
from topicsd._native.direct_io cimport (
    DIRECT_FLIGHT_BYTES, DIRECT_LEAST_BYTES, DIRECT_UNSUPPORTED, FLIGHTS_MAX, DirectWrites, direct_close, direct_compare, direct_end, direct_forget,
    direct_open, direct_start, direct_wanted, direct_write)
from topicsd._native.files cimport IOV_PARTS_MAX, WRITE_ENDS, Files, FileSystem, real_files
from topicsd._native.frame cimport frame_body, frame_seal
from topicsd._native.layout cimport (
    FRAME_HEADER_BYTES, FRAME_MAGIC, FRAME_MARK, FRAME_START, FSYNC_BUCKETS, LOG_FILES_MAX, LOG_FORMAT_VERSION, control, frame_header,
    log_file_row, shard_line, start_body,
)
from topicsd._native.log_spares cimport (
    Spares, spares_add, spares_drop, spares_due, spares_fill, spares_flood, spares_take)
from topicsd._native.log_walk cimport WalkReport

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *mutex, void *attributes)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)

cdef enum:
    PARTS_MAX = 4096                  # frames in a group; a longer one is flushed in between
    PAGE_BYTES = 4096                 # files are whole pages
    FILL_BYTES = 256 << 10            # a write of zeroes
    FLOOD_RATE = 32                   # bytes a microsecond; a log that grows faster than this is not filled ahead, but has spares
    FILL_ALWAYS_BELOW = 16 << 20      # bytes of a file; a small one is used up at once by any burst
    FILL_SYNC_BYTES = 8 << 20         # sync after so many: one sync of a whole file would stand in the way of the group commits
    FIRST_FILL_BYTES = 1 << 20        # of the file a start waits for; the rest of it is allocated but not filled
    FIRST_BYTES_LEAST = 256 << 10     # of the same file, and of any other, on a full disk
    PATH_BYTES = 4096
    PREPARE_RETRY_NS = 200 * 1000000
    WAY_DIRECT = 1
    WAY_CACHED = 2
    IDLE_NS = 1000 * 1000000          # a loop that missed its wake by a bug still gets up
    LONE_NS = 1000000                 # after idleness the first write is synced so soon: its answer goes first
    QUIET_BYTES = 256 << 10           # a log that has grown by less since the last look, or the begin of a spare, leaves the disk to it
    SPARE_REST_NS = 10 * 1000000      # between two of them
    SPARE_LOOK_NS = 250 * 1000000
    ARMED_IDLE = 1                    # the syncer sleeps until something is written
    ARMED_TIMED = 2                   # it sleeps to the end of the interval; only ask_sync may wake it

cdef struct FlyingGroup:
    uint64_t start, end               # positions
    uint32_t frames


cdef struct ShardState:
    const Files *files
    const char *directory
    uint16_t number
    uint64_t first_file_bytes, file_bytes, reserve_bytes, group_commit_ns, flood_rate
    uint64_t generation
    uint8_t boot_id[16]
    bint running
    # the writer's
    TailFile current
    uint64_t end                      # position after the last placed frame
    uint64_t group_start              # position of the first byte of the group
    uint64_t queued_end               # position after the last queued frame
    TailFile void_file                # what void_after has written, for resume
    uint64_t void_end                 # position after it; 0: none
    bint group_has_start              # the group begins with the START of a new file
    uint32_t placed, queued           # frames of the group
    uint32_t parts                    # iovecs; adjacent frames share one
    iovec part[PARTS_MAX]
    uint8_t start_frame[LOG_START_BYTES]
    uint8_t mark_frame[64]
    uint8_t fill_frame[PAGE_BYTES + 64]  # a MARK that fills the last page of a large group
    DirectWrites direct
    FlyingGroup flight[FLIGHTS_MAX]     # groups that are being written in the background, the oldest at flights_first
    uint32_t flights_first, flights
    int way                           # of the group: 0 not decided, WAY_DIRECT, WAY_CACHED
    uint64_t starved_ns               # when a frame that frees something found no room for a file; 0: that is over
    bint keep_cached                  # somebody seems to read what this group holds
    uint64_t frames_end               # position after the last frame that is not a mark
    uint64_t stamped                  # highest `synced` that a queued frame carries
    # shared by the threads
    pthread_mutex_t lock              # tail
    TailFile tail[LOG_UNSYNCED_FILES_MAX + 1]
    uint32_t tail_count
    pthread_mutex_t sync_lock         # one sync pass at a time
    pthread_mutex_t make_lock         # one file is made at a time; prepared, want_first
    TailFile prepared
    uint64_t prepared_ready           # release after `prepared`; the writer sets it back to 0
    uint64_t want_first               # where the next file begins
    Spares spares                     # under make_lock
    uint64_t keep_free                # bytes of the disk that no new file takes (relaxed)
    uint64_t prepare_error            # errno of the last try, 0 after success
    uint64_t preparing                # a prepare_loop runs
    uint64_t asked                    # sync up to here without waiting for the interval
    uint64_t poison
    uint64_t sync_failed              # nothing is synced any more; after a failed write the syncer still syncs what was written before
    uint64_t stopping
    uint32_t sync_bell, sync_armed, prepare_bell
    bint told_late                    # who writes calls tell_syncer by itself
    uint64_t rotated_ns               # when the current file was begun; the writer's
    uint64_t lasted_ns                # how long the file before it lasted, 0: unknown (relaxed; a stale one costs a filled file more or less)
    uint8_t *zeroes


# ---- files --------------------------------------------------------------------------------------------------------------

cdef bint no_room(int error) noexcept nogil:
    return error == ENOSPC or error == EDQUOT


cdef void path_of(const ShardState *s, uint64_t first_position, bint finished, char *path) noexcept nogil:
    snprintf(path, PATH_BYTES, b"%s/%020llu.%s", s.directory, <unsigned long long>first_position,
             <const char *>b"log" if finished else <const char *>b"preparing")


cdef int fill(ShardState *s, int fd, uint64_t bytes) noexcept nogil:
    # Write zeroes from the front: a write into a block that was written once needs no change of metadata at its sync.
    cdef iovec part
    cdef uint64_t done = 0, unsynced = 0
    cdef int64_t result
    part.iov_base = s.zeroes
    while done < bytes:
        part.iov_len = min(<uint64_t>FILL_BYTES, bytes - done)
        result = s.files.pwritev(s.files.context, fd, &part, 1, done)
        if result < 0:
            return <int>result
        done += part.iov_len
        unsynced += part.iov_len
        if unsynced >= FILL_SYNC_BYTES and done < bytes:
            unsynced = 0
            result = s.files.fdatasync(s.files.context, fd)
            if result < 0:
                return <int>result
    return 0


cdef int fill_and_name(ShardState *s, int fd, uint64_t first_position, uint64_t bytes, uint64_t fill_bytes, const char *temporary,
                       bint *named) noexcept nogil:
    cdef char path[PATH_BYTES]
    cdef int result = s.files.fallocate(s.files.context, fd, 0, bytes)
    if result == -EOPNOTSUPP or result == -ENOSYS:
        fill_bytes = bytes  # then filling is what reserves the room
    elif result < 0:
        return result
    result = fill(s, fd, fill_bytes)
    if result < 0:
        return result
    result = s.files.fsync(s.files.context, fd)
    if result < 0:
        return result
    path_of(s, first_position, True, path)
    result = s.files.rename(s.files.context, temporary, path)
    if result < 0:
        return result
    named[0] = True
    return s.files.sync_directory(s.files.context, s.directory)


cdef int make_file(ShardState *s, uint64_t first_position, uint64_t bytes, uint64_t fill_bytes, TailFile *out) noexcept nogil:
    # As new_file; on a full disk in the room that spares have.
    cdef int result = new_file(s, first_position, bytes, fill_bytes, out)
    while no_room(-result) and s.spares.count:
        spares_drop(&s.spares, s.files, s.directory)
        result = new_file(s, first_position, bytes, fill_bytes, out)
    return result


cdef int take_spare(ShardState *s, uint64_t first_position, TailFile *out) noexcept nogil:
    # A spare under its name, as new_file. -ENOENT: there is none. Under make_lock, with nothing prepared.
    cdef char path[PATH_BYTES]
    cdef int fd, result
    path_of(s, first_position, True, path)
    fd = spares_take(&s.spares, s.files, s.directory, path)
    if fd < 0:
        return fd
    result = s.files.sync_directory(s.files.context, s.directory)
    if result < 0:
        s.files.close(s.files.context, fd)
        return result
    out.fd, out.first_position, out.bytes = fd, first_position, s.file_bytes
    return 0


cdef int new_file(ShardState *s, uint64_t first_position, uint64_t bytes, uint64_t fill_bytes, TailFile *out) noexcept nogil:
    # A file under its name, with its room reserved and everything synced; or -errno. It takes the name of a prepared file that nobody has
    # written to, and then that one is let go. Under make_lock.
    cdef char temporary[PATH_BYTES]
    cdef bint named = False
    cdef int fd, result
    path_of(s, first_position, False, temporary)
    fd = s.files.open(s.files.context, temporary, O_RDWR | O_CREAT | O_TRUNC, 0o640)
    if fd < 0:
        return fd
    result = fill_and_name(s, fd, first_position, bytes, min(fill_bytes, bytes), temporary, &named)
    if named and s.prepared_ready:
        s.files.close(s.files.context, s.prepared.fd)
        store_release_64(&s.prepared_ready, 0)
    if result < 0:
        s.files.close(s.files.context, fd)
        if not named:
            s.files.unlink(s.files.context, temporary)
        return result
    out.fd = fd
    out.first_position = first_position
    out.bytes = bytes
    return 0


cdef uint64_t whole_pages(uint64_t bytes) noexcept nogil:
    return (bytes + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES


cdef void write_start(ShardState *s, uint8_t *raw, const TailFile *file, uint64_t previous_end, uint64_t synced) noexcept nogil:
    cdef frame_header *frame = <frame_header *>raw
    cdef start_body *body = <start_body *>frame_body(frame)
    memset(raw, 0, LOG_START_BYTES)
    frame.magic = FRAME_MAGIC
    frame.length = LOG_START_BYTES
    frame.type = FRAME_START
    frame.shard = s.number
    frame.ts = clock_wall_ms()
    frame.synced = synced
    frame.position = file.first_position
    body.previous_end = previous_end
    body.generation = s.generation
    body.file_bytes = file.bytes
    memcpy(body.boot_id, s.boot_id, 16)
    body.format_version = LOG_FORMAT_VERSION
    frame_seal(frame)


cdef class Shard:
    """The append side of one log. One thread writes; see log.pxd for who may do what.

    As a library (tests, one process): append, flush_group, sync, prepare. In the server the sequencer calls the C side.
    """

    def __cinit__(self, directory, int number=0, FileSystem files=None, *, uint64_t first_file_bytes=16 << 20, uint64_t file_bytes=64 << 20,
                  reserve_bytes=None, double group_commit_ms=5.0, bint direct_io=True,
                  int direct_always=0, uint64_t flood_rate=FLOOD_RATE):
        if min(first_file_bytes, file_bytes) < PAGE_BYTES or first_file_bytes % PAGE_BYTES or file_bytes % PAGE_BYTES:
            raise ValueError(f"log files are whole pages of {PAGE_BYTES} bytes")
        self.directory = os.fsencode(directory)
        if len(self.directory) > PATH_BYTES - 64:
            raise ValueError("the log's path is too long")
        self.file_system = files or FileSystem()
        self.number = number
        self.own_line = self.line = <shard_line *>calloc(1, sizeof(shard_line))
        self.own_rows = self.rows = <log_file_row *>calloc(LOG_FILES_MAX, sizeof(log_file_row))
        self.state = <ShardState *>calloc(1, sizeof(ShardState))
        if self.line == NULL or self.rows == NULL or self.state == NULL:
            raise MemoryError
        if posix_memalign(<void **>&self.state.zeroes, PAGE_BYTES, FILL_BYTES) != 0:
            self.state.zeroes = NULL
            raise MemoryError
        memset(self.state.zeroes, 0, FILL_BYTES)
        self.state.files = &self.file_system.table
        self.state.directory = self.directory
        self.state.number = number
        self.state.first_file_bytes = first_file_bytes
        self.state.file_bytes = file_bytes
        self.state.reserve_bytes = min(8 << 20, min(first_file_bytes, file_bytes) // 4) if reserve_bytes is None else reserve_bytes
        self.state.group_commit_ns = <uint64_t>(group_commit_ms * 1e6)
        direct_open(&self.state.direct, direct_io)
        self.state.direct.always = direct_always
        self.state.flood_rate = flood_rate
        pthread_mutex_init(&self.state.lock, NULL)
        pthread_mutex_init(&self.state.sync_lock, NULL)
        pthread_mutex_init(&self.state.make_lock, NULL)
        self.kept = []

    def __dealloc__(self):
        if self.state != NULL:
            self.state.files = real_files()  # the seam's owner may be gone already, and nobody watches any more
            self.close_files()
            free(self.state.zeroes)
            pthread_mutex_destroy(&self.state.lock)
            pthread_mutex_destroy(&self.state.sync_lock)
            pthread_mutex_destroy(&self.state.make_lock)
            free(self.state)
        free(self.own_line)
        free(self.own_rows)

    @property
    def group_commit_ms(self):
        """How long frames that nobody waits for may gather before a sync."""
        return load_relaxed_64(&self.state.group_commit_ns) / 1e6

    @group_commit_ms.setter
    def group_commit_ms(self, double value):
        store_relaxed_64(&self.state.group_commit_ns, <uint64_t>(value * 1e6))

    cdef void close_files(self) noexcept nogil:
        cdef ShardState *s = self.state
        cdef uint32_t k
        cdef iovec rest
        self.let_land(&rest)       # never answered: it may be there or not
        for k in range(s.tail_count):
            s.files.close(s.files.context, s.tail[k].fd)
        s.tail_count = 0
        if s.prepared_ready:
            s.files.close(s.files.context, s.prepared.fd)
        while s.spares.count:
            spares_drop(&s.spares, s.files, s.directory)
        if s.void_end:
            s.files.close(s.files.context, s.void_file.fd)
        direct_close(&s.direct, s.files)
        s.prepared_ready = s.void_end = 0
        s.running = False

    cdef void attach(self, shard_line *line, log_file_row *rows) noexcept nogil:
        self.line = line
        self.rows = rows

    # ---- the writer: a group ------------------------------------------------------------------------------------------

    cdef uint64_t written(self) noexcept nogil:
        return load_acquire_64(&self.line.written)

    cdef uint64_t synced(self) noexcept nogil:
        return load_acquire_64(&self.line.synced)

    cdef bint need_sync(self) noexcept nogil:
        return load_acquire_64(&self.line.written) > load_acquire_64(&self.line.synced)

    cdef uint64_t unflushed(self) noexcept nogil:
        return self.state.end - self.written() if self.state.placed or self.state.flights else 0

    cdef int refuses(self) noexcept nogil:
        if load_acquire_64(&self.state.poison):
            return -EROFS
        return -ENOSPC if load_acquire_64(&self.line.read_only) else 0

    cdef int place(self, uint32_t frame_bytes, bint privileged, uint64_t *position) noexcept nogil:
        cdef ShardState *s = self.state
        cdef uint64_t left
        cdef int result
        if load_acquire_64(&s.poison) or not s.running:
            return -EROFS
        self.drop_unqueued()
        left = s.current.first_position + s.current.bytes - s.end
        if frame_bytes > left or s.placed >= PARTS_MAX - 1:
            if s.placed or s.flights:
                return LOG_FLUSH_FIRST
            result = self.have_next(frame_bytes, privileged)
            if result == 0:
                result = self.rotate(s.end)
            if result < 0:
                return result
        elif not privileged and left - frame_bytes < s.reserve_bytes and not load_acquire_64(&s.prepared_ready):
            result = self.have_next(0, False)  # what is left is the reserve, unless there is a next file
            if result < 0:
                return result
        position[0] = s.end
        if not s.placed:
            s.group_start = s.queued_end = s.end
        s.placed += 1
        s.end += frame_bytes
        return 0

    cdef void drop_unqueued(self) noexcept nogil:
        cdef ShardState *s = self.state
        if s.placed != s.queued:
            s.end = s.queued_end
            s.placed = s.queued

    cdef void queue(self, const void *raw, uint32_t bytes) noexcept nogil:
        cdef ShardState *s = self.state
        cdef const frame_header *frame = <const frame_header *>raw
        cdef iovec *last = &s.part[s.parts - 1] if s.parts else NULL
        if frame.position != s.queued_end or s.queued_end + bytes > s.end:
            abort()  # not the frame that was placed: writing it would tear the log
        s.queued_end += bytes
        s.stamped = max(s.stamped, frame.synced)
        if frame.type != FRAME_MARK:
            s.frames_end = frame.position + bytes
        s.queued += 1
        if last != NULL and <const uint8_t *>last.iov_base + last.iov_len == <const uint8_t *>raw:
            last.iov_len += bytes
            return
        s.part[s.parts].iov_base = <void *>raw
        s.part[s.parts].iov_len = bytes
        s.parts += 1

    cdef int flush(self) noexcept nogil:
        cdef ShardState *s = self.state
        cdef int64_t result
        while s.flights:
            result = self.land(WRITE_ENDS)
            if result < 0:
                return <int>result
        self.drop_unqueued()
        if not s.placed:
            return 0
        if load_acquire_64(&s.poison):
            self.forget_group()
            return -EROFS
        self.choose_way()
        result = self.write_group()
        if result < 0:
            self.poison_with(<int>-result)
            self.forget_group()
            return <int>result
        self.count_written(s.group_start, s.end, s.queued)
        self.empty_group()
        return 0

    cdef void count_written(self, uint64_t start, uint64_t end, uint32_t frames) noexcept nogil:
        cdef ShardState *s = self.state
        self.line.frames += frames
        self.line.batches += 1
        self.line.bytes_written += end - start
        self.line.direct_bytes = s.direct.bytes
        store_release_64(&self.line.written, end)
        if not s.told_late:
            self.tell_syncer()

    cdef void tell_syncer(self) noexcept nogil:
        cdef ShardState *s = self.state
        fence_seq_cst()
        if load_seq_cst_32(&s.sync_armed) == ARMED_IDLE:
            add_32(&s.sync_bell, 1)
            futex_wake(&s.sync_bell, 1)

    cdef void tell_syncer_late(self) noexcept nogil:
        self.state.told_late = True

    cdef void empty_group(self) noexcept nogil:
        cdef ShardState *s = self.state
        s.placed = s.queued = s.parts = 0
        s.group_has_start = s.keep_cached = False
        s.way = 0

    cdef void choose_way(self) noexcept nogil:
        # Of a large group, once: a second look would count twice.
        cdef ShardState *s = self.state
        cdef bint crowded
        if s.way and not (s.way == WAY_DIRECT and s.end % PAGE_BYTES):     # or something has been put behind its filler
            return
        s.way = WAY_CACHED
        if s.keep_cached or s.direct.refused:
            return
        if s.end - s.group_start >= <uint64_t>DIRECT_LEAST_BYTES or s.direct.always > 1:
            crowded = s.queued > 1 or s.flights
            self.fill_page()
            if s.end > self.first_page() and direct_wanted(&s.direct, s.end - self.first_page(), crowded, clock_mono_ns()):
                s.way = WAY_DIRECT

    cdef uint64_t first_page(self) noexcept nogil:
        # The first page that is the group's alone.
        return whole_pages(self.state.group_start)

    cdef int64_t write_head(self) noexcept nogil:
        # What stands before that page; the page cache has the rest of it.
        cdef ShardState *s = self.state
        cdef uint8_t head[PAGE_BYTES]
        cdef uint64_t left = self.first_page() - s.group_start, filled = 0, size
        cdef iovec whole
        cdef uint32_t k = 0
        if left == 0:
            return 0
        while filled < left:
            size = min(<uint64_t>s.part[k].iov_len, left - filled)
            memcpy(head + filled, s.part[k].iov_base, size)
            filled += size
            k += 1
        whole.iov_base = head
        whole.iov_len = left
        return s.files.pwritev(s.files.context, s.current.fd, &whole, 1, s.group_start - s.current.first_position)

    cdef int launch(self) noexcept nogil:
        cdef ShardState *s = self.state
        cdef char path[PATH_BYTES]
        cdef int64_t result
        cdef uint32_t which = (s.flights_first + s.flights) % FLIGHTS_MAX
        cdef FlyingGroup *flight = &s.flight[which]
        self.drop_unqueued()
        if not s.placed or s.flights == FLIGHTS_MAX or load_acquire_64(&s.poison):
            return 0
        self.choose_way()
        if s.way != WAY_DIRECT or s.end - s.group_start > <uint64_t>DIRECT_FLIGHT_BYTES:
            return 0
        path_of(s, s.current.first_position, True, path)
        result = self.write_head()
        if result >= 0:
            result = direct_start(&s.direct, which, s.files, path, s.part, s.parts, self.first_page() - s.group_start,
                                  self.first_page() - s.current.first_position)
        if result == DIRECT_UNSUPPORTED:
            return 0
        if result < 0:
            self.poison_with(<int>-result)      # the flush finds it, and forgets the group
            return <int>result
        flight.start, flight.end, flight.frames = s.group_start, s.end, s.queued
        s.flights += 1
        self.empty_group()
        s.group_start = s.queued_end = s.end
        return 1

    cdef bint flies(self) noexcept nogil:
        return self.state.flights != 0

    cdef int64_t land_oldest(self, uint64_t wait_ns, iovec *rest) noexcept nogil:
        cdef ShardState *s = self.state
        cdef uint32_t which = s.flights_first
        cdef int64_t result = direct_end(&s.direct, which, s.files, wait_ns, rest)
        if result != -EAGAIN:
            s.flights_first = (which + 1) % FLIGHTS_MAX
            s.flights -= 1
        return result

    cdef void let_land(self, iovec *rest) noexcept nogil:
        while self.state.flights:
            self.land_oldest(WRITE_ENDS, rest)

    cdef int land(self, uint64_t wait_ns) noexcept nogil:
        cdef ShardState *s = self.state
        cdef FlyingGroup flight = s.flight[s.flights_first]
        cdef iovec rest
        cdef int64_t result
        if s.flights == 0:
            return 0
        result = self.land_oldest(wait_ns, &rest)
        if result == -EAGAIN:
            return LOG_FLIES
        if result == DIRECT_UNSUPPORTED:
            result = s.files.pwritev(s.files.context, s.current.fd, &rest, 1, whole_pages(flight.start) - s.current.first_position)
        if result < 0:
            self.poison_with(<int>-result)
            self.let_land(&rest)
            s.group_start = flight.start        # what flies and gathers behind it goes with it
            s.placed = max(s.placed, <uint32_t>1)
            self.forget_group()
            return <int>result
        self.count_written(flight.start, flight.end, flight.frames)
        return 0

    cdef void expect_reader(self) noexcept nogil:
        self.state.keep_cached = True

    cdef void fill_page(self) noexcept nogil:
        # A large group ends on a page: the next one begins there, and can go past the page cache.
        cdef ShardState *s = self.state
        cdef frame_header *frame = <frame_header *>&s.fill_frame[0]
        cdef uint64_t left = s.current.first_position + s.current.bytes - s.end
        cdef uint64_t fill = left % PAGE_BYTES          # files are whole pages
        if fill and fill < FRAME_HEADER_BYTES:
            fill += PAGE_BYTES
        if fill == 0 or fill > left or (left - fill < s.reserve_bytes and not load_acquire_64(&s.prepared_ready)):
            return
        memset(frame, 0, fill)
        self.write_mark_frame(frame, <uint32_t>fill, clock_wall_ms(), s.end)
        s.placed += 1
        s.end += fill
        self.queue(frame, <uint32_t>fill)

    cdef int64_t write_group(self) noexcept nogil:
        cdef ShardState *s = self.state
        cdef uint64_t offset = s.group_start - s.current.first_position
        cdef uint64_t bytes = s.end - s.group_start
        cdef uint64_t began
        cdef char path[PATH_BYTES]
        cdef uint32_t done = 0
        cdef int count
        cdef int64_t result
        if s.way == WAY_DIRECT:
            path_of(s, s.current.first_position, True, path)
            result = self.write_head()
            if result >= 0:
                result = direct_write(&s.direct, s.files, path, s.part, s.parts, self.first_page() - s.group_start,
                                      self.first_page() - s.current.first_position)
            if result != DIRECT_UNSUPPORTED:
                return result
        began = clock_mono_ns()
        while done < s.parts:
            count = min(<int>IOV_PARTS_MAX, <int>(s.parts - done))
            result = s.files.pwritev(s.files.context, s.current.fd, &s.part[done], count, offset)
            if result < 0:
                return result
            offset += <uint64_t>result
            done += count
        direct_compare(&s.direct, bytes, clock_mono_ns() - began)
        return <int64_t>bytes

    cdef void cancel(self) noexcept nogil:
        # A new file's START stays: the file is in the table already.
        cdef ShardState *s = self.state
        cdef bint has_start = s.group_has_start
        if not s.placed:
            return
        self.forget_group()
        if has_start:
            self.begin_file_group()

    cdef void forget_group(self) noexcept nogil:
        cdef ShardState *s = self.state
        if s.placed:
            s.end = s.queued_end = s.group_start
        self.empty_group()

    cdef void begin_file_group(self) noexcept nogil:
        cdef ShardState *s = self.state
        s.group_start = s.queued_end = s.current.first_position
        s.end = s.group_start + LOG_START_BYTES
        s.placed = 1
        s.group_has_start = True
        self.queue(s.start_frame, LOG_START_BYTES)

    cdef void poison_with(self, int error) noexcept nogil:
        cas_64(&self.state.poison, 0, error)
        store_seq_cst_64(&self.line.read_only, load_acquire_64(&self.state.poison))

    cdef void clear_read_only(self) noexcept nogil:
        # Not when another thread poisons meanwhile: it stores the poison first, then read_only, so one of the two of us sees the other.
        store_seq_cst_64(&self.line.read_only, 0)
        fence_seq_cst()
        if load_seq_cst_64(&self.state.poison):
            store_seq_cst_64(&self.line.read_only, load_seq_cst_64(&self.state.poison))

    # ---- the writer: the next file --------------------------------------------------------------------------------------

    cdef int have_next(self, uint64_t frame_bytes, bint privileged) noexcept nogil:
        # Have a next file that takes a frame of this size, with the reserve behind one that frees nothing: 0, or -ENOSPC (whatever the reason is;
        # read_only has it). What frees something may have a small one of what is to be kept free: sealing, for which that is kept, needs the log too.
        cdef ShardState *s = self.state
        cdef uint64_t needed = frame_bytes + LOG_START_BYTES + (0 if privileged else s.reserve_bytes) if frame_bytes else 0
        cdef uint64_t error
        if needed > s.file_bytes:
            return self.make_sized(needed, privileged)
        if not load_acquire_64(&s.prepared_ready):
            # With a preparer at work wait for it, but not again and again when it has already failed.
            if not load_acquire_64(&s.preparing) or not load_acquire_64(&s.prepare_error):
                self.prepare_now(True)
            error = load_acquire_64(&s.prepare_error)
            if not load_acquire_64(&s.prepared_ready):
                store_seq_cst_64(&self.line.read_only, error if error else ENOSPC)
                fence_seq_cst()
                if not load_seq_cst_64(&s.prepared_ready):
                    return self.make_sized(max(needed, min(s.file_bytes, <uint64_t>FIRST_BYTES_LEAST)), True) if privileged else -ENOSPC
                self.clear_read_only()
        # The preparer makes a smaller one where the disk is full, and never another one in place of what is ready.
        return self.make_sized(needed, privileged) if needed > s.prepared.bytes else 0

    cdef int make_next(self, uint64_t bytes, uint64_t fill_bytes, TailFile *out) noexcept nogil:
        # A file behind the last one, unless what is to be kept free would be less then, without a single spare. Under make_lock.
        cdef ShardState *s = self.state
        cdef uint64_t keep_free = load_relaxed_64(&s.keep_free)
        while keep_free and <uint64_t>s.files.free_bytes(s.files.context, s.directory) < bytes + keep_free:
            if s.spares.count == 0:
                return -ENOSPC
            spares_drop(&s.spares, s.files, s.directory)
        return make_file(s, s.want_first, bytes, fill_bytes, out)

    cdef int make_sized(self, uint64_t bytes, bint privileged) noexcept nogil:
        # A file of this very size takes the place (and the name) of the prepared one. `privileged`: also of what is to be kept free.
        cdef ShardState *s = self.state
        cdef TailFile made
        cdef int result
        if privileged and s.starved_ns and clock_mono_ns() - s.starved_ns < <uint64_t>PREPARE_RETRY_NS:
            return -ENOSPC          # a tick has many of them
        pthread_mutex_lock(&s.make_lock)
        result = self.make_next(whole_pages(bytes), 0, &made)
        if privileged and no_room(-result):
            result = make_file(s, s.want_first, whole_pages(bytes), 0, &made)
        if result == 0:
            s.prepared = made
            store_release_64(&s.prepared_ready, 1)
        pthread_mutex_unlock(&s.make_lock)
        if result == 0:
            s.starved_ns = 0
        elif privileged:
            s.starved_ns = clock_mono_ns()
        # No read_only: smaller frames may still find room.
        return 0 if result == 0 else -ENOSPC

    cdef int rotate(self, uint64_t previous_end) noexcept nogil:
        # The prepared file becomes the current one; its START is the first frame of the group.
        cdef ShardState *s = self.state
        cdef uint64_t now_ns, files = self.line.files
        cdef int result
        if files >= LOG_FILES_MAX:
            return -EFBIG
        if s.tail_count > LOG_UNSYNCED_FILES_MAX - 1:
            result = self.sync_pass()
            if result < 0:
                return -EROFS
        pthread_mutex_lock(&s.make_lock)
        now_ns = clock_mono_ns()
        store_relaxed_64(&s.lasted_ns, now_ns - s.rotated_ns if s.rotated_ns else 0)
        s.rotated_ns = now_ns
        s.current = s.prepared
        direct_forget(&s.direct, s.files)
        s.want_first = s.current.first_position + s.current.bytes
        store_release_64(&s.prepared_ready, 0)
        pthread_mutex_unlock(&s.make_lock)
        pthread_mutex_lock(&s.lock)
        s.tail[s.tail_count] = s.current
        s.tail_count += 1
        pthread_mutex_unlock(&s.lock)
        self.add_row(s.current.first_position, s.current.bytes)
        write_start(s, s.start_frame, &s.current, previous_end, self.synced())
        self.begin_file_group()
        self.line.rotations += 1
        add_32(&s.prepare_bell, 1)
        futex_wake(&s.prepare_bell, 1)
        return 0

    cdef void add_row(self, uint64_t first_position, uint64_t bytes) noexcept nogil:
        cdef uint64_t files = self.line.files
        memset(&self.rows[files], 0, sizeof(log_file_row))
        self.rows[files].first_position = first_position
        self.rows[files].bytes = bytes
        store_release_64(&self.line.files, files + 1)

    cdef int mark(self, uint64_t ts) noexcept nogil:
        cdef ShardState *s = self.state
        cdef frame_header *frame = <frame_header *>&s.mark_frame[0]
        cdef uint64_t position, synced = self.synced()
        cdef int result
        if s.placed or s.flights or s.stamped >= s.frames_end or synced < s.frames_end or load_acquire_64(&s.poison):
            return 0
        if FRAME_HEADER_BYTES > s.current.first_position + s.current.bytes - s.end and not load_acquire_64(&s.prepared_ready):
            return 0  # a mark is never a reason to wait
        result = self.place(FRAME_HEADER_BYTES, True, &position)
        if result != 0:
            return result
        memset(s.mark_frame, 0, FRAME_HEADER_BYTES)
        self.write_mark_frame(frame, FRAME_HEADER_BYTES, ts, position)
        self.queue(frame, FRAME_HEADER_BYTES)
        result = self.flush()
        return 1 if result == 0 else result

    cdef void write_mark_frame(self, frame_header *frame, uint32_t bytes, uint64_t ts, uint64_t position) noexcept nogil:
        frame.magic = FRAME_MAGIC
        frame.length = bytes
        frame.type = FRAME_MARK
        frame.shard = self.state.number
        frame.ts = ts
        frame.synced = self.synced()
        frame.position = position
        frame_seal(frame)

    # ---- the preparer ---------------------------------------------------------------------------------------------------

    cdef uint64_t fill_bytes(self) noexcept nogil:
        # Zeroes make each sync cheap, and write every byte twice: where the disk's throughput is what counts, room alone is reserved, unless there
        # are spares.
        cdef ShardState *s = self.state
        cdef uint64_t lasted_ns = load_relaxed_64(&s.lasted_ns)
        if lasted_ns == 0 or (s.file_bytes < FILL_ALWAYS_BELOW and s.flood_rate):
            return s.file_bytes
        return 0 if s.file_bytes > lasted_ns // 1000 * s.flood_rate else s.file_bytes

    cdef int prepare_once(self) noexcept nogil:
        return self.prepare_now(False)

    cdef int prepare_now(self, bint waited_for) noexcept nogil:
        cdef ShardState *s = self.state
        cdef uint64_t poison = load_acquire_64(&s.poison)
        cdef uint64_t failed
        cdef int result
        if poison and not no_room(<int>poison):
            return -EROFS
        pthread_mutex_lock(&s.make_lock)
        if s.prepared_ready or not s.running:
            pthread_mutex_unlock(&s.make_lock)
            return 0
        result = self.prepare_file(waited_for)
        failed = load_relaxed_64(&s.prepare_error)
        store_release_64(&s.prepare_error, <uint64_t>-result)
        if result == 0:
            store_seq_cst_64(&s.prepared_ready, 1)
            fence_seq_cst()
            if failed:
                self.clear_read_only()
        pthread_mutex_unlock(&s.make_lock)
        return result

    cdef int prepare_file(self, bint waited_for) noexcept nogil:
        # In a flood, and where the writer waits, a spare where there is one. On a full disk a smaller file goes on; of one that is smaller than
        # this nothing but the reserve could be used.
        cdef ShardState *s = self.state
        cdef uint64_t filled = self.fill_bytes(), size = s.file_bytes
        cdef uint64_t least = max(<uint64_t>FIRST_BYTES_LEAST, whole_pages(2 * s.reserve_bytes))
        cdef int result = -ENOENT
        if filled == 0:
            spares_flood(&s.spares, clock_mono_ns())
        if filled == 0 or waited_for:
            result = take_spare(s, s.want_first, &s.prepared)
        if result == -ENOENT:
            result = self.make_next(size, filled, &s.prepared)
        while no_room(-result) and size > least:
            size = max(size // 2 // PAGE_BYTES * PAGE_BYTES, least)
            result = self.make_next(size, filled, &s.prepared)
        return result

    cdef uint64_t keep_spares(self, uint64_t now_ns) noexcept nogil:
        # Fill or drop one if it is time; the nanoseconds until the next look. The preparer.
        cdef ShardState *s = self.state
        cdef uint64_t next_ns = SPARE_LOOK_NS, written = self.written(), grown = written - s.spares.looked_at
        cdef uint32_t due, serial = s.spares.next_serial
        cdef int fd
        s.spares.looked_at = written
        if (s.spares.wanted == 0 and s.spares.count == 0) or load_acquire_64(&s.poison):
            return IDLE_NS
        pthread_mutex_lock(&s.make_lock)
        due = spares_due(&s.spares, s.files.free_bytes(s.files.context, s.directory), s.file_bytes, now_ns)
        if s.spares.count > due:
            spares_drop(&s.spares, s.files, s.directory)
            next_ns = SPARE_REST_NS
        elif s.spares.count == due:
            due = 0
        pthread_mutex_unlock(&s.make_lock)
        if s.spares.count >= due or grown >= <uint64_t>QUIET_BYTES:
            return next_ns
        s.spares.next_serial += 1
        fd = spares_fill(s.files, s.directory, serial, s.file_bytes, s.zeroes, FILL_BYTES, &self.line.written,
                         written + <uint64_t>QUIET_BYTES)
        if fd < 0:
            return SPARE_LOOK_NS
        pthread_mutex_lock(&s.make_lock)
        spares_add(&s.spares, serial, fd)
        pthread_mutex_unlock(&s.make_lock)
        return SPARE_REST_NS

    cdef void prepare_loop(self) noexcept nogil:
        cdef ShardState *s = self.state
        cdef uint64_t wait_ns
        cdef uint32_t bell
        store_seq_cst_64(&s.preparing, 1)
        while True:
            bell = load_seq_cst_32(&s.prepare_bell)
            if load_acquire_64(&s.stopping):
                break
            if load_acquire_64(&s.prepared_ready):
                wait_ns = self.keep_spares(clock_mono_ns())
                futex_wait(&s.prepare_bell, bell, <int64_t>wait_ns)
            elif self.prepare_once() < 0 or not load_acquire_64(&s.prepared_ready):
                futex_wait(&s.prepare_bell, bell, PREPARE_RETRY_NS)
        store_seq_cst_64(&s.preparing, 0)

    # ---- the syncer -----------------------------------------------------------------------------------------------------

    cdef void ask_sync(self) noexcept nogil:
        cdef ShardState *s = self.state
        store_seq_cst_64(&s.asked, load_relaxed_64(&self.line.written))
        fence_seq_cst()
        if load_seq_cst_32(&s.sync_armed):
            add_32(&s.sync_bell, 1)
            futex_wake(&s.sync_bell, 1)

    cdef int sync_once(self) noexcept nogil:
        if load_acquire_64(&self.state.sync_failed):
            return -EROFS
        if not self.need_sync():
            return 0
        return self.sync_pass()

    cdef int sync_pass(self) noexcept nogil:
        # Sync the files that have unsynced frames, oldest first, then say so. What is written meanwhile waits for the next pass.
        cdef ShardState *s = self.state
        cdef TailFile tail[LOG_UNSYNCED_FILES_MAX + 1]
        cdef uint32_t count, k
        cdef uint64_t target, started
        cdef int result
        pthread_mutex_lock(&s.sync_lock)
        target = load_acquire_64(&self.line.written)  # before the list: every file below it is in the list then
        pthread_mutex_lock(&s.lock)
        count = s.tail_count
        memcpy(tail, s.tail, count * sizeof(TailFile))
        pthread_mutex_unlock(&s.lock)
        for k in range(count):
            started = clock_mono_ns()
            result = s.files.fdatasync(s.files.context, tail[k].fd)
            self.count_sync((clock_mono_ns() - started) // 1000)
            if result < 0:
                store_release_64(&s.sync_failed, 1)
                self.poison_with(-result)
                pthread_mutex_unlock(&s.sync_lock)
                return result
        if count > 1:
            pthread_mutex_lock(&s.lock)
            for k in range(count - 1, s.tail_count):
                s.tail[k - (count - 1)] = s.tail[k]
            s.tail_count -= count - 1
            pthread_mutex_unlock(&s.lock)
            for k in range(count - 1):
                s.files.close(s.files.context, tail[k].fd)
        store_release_64(&self.line.synced, target)
        pthread_mutex_unlock(&s.sync_lock)
        return 0

    cdef void count_sync(self, uint64_t took_us) noexcept nogil:
        cdef uint32_t bucket = 0
        while bucket < FSYNC_BUCKETS - 1 and took_us > (<uint64_t>1 << bucket):
            bucket += 1
        self.line.fsyncs += 1
        self.line.fsync_us_sum += took_us
        self.line.fsync_us_count += 1
        self.line.fsync_bucket[bucket] += 1

    cdef void sync_loop(self, control *bell) noexcept nogil:
        cdef ShardState *s = self.state
        cdef uint64_t last_ns = 0, first_ns = 0     # the last sync; since when something waits for one, 0: nothing does
        cdef uint64_t now_ns, due_ns, written, synced
        cdef uint32_t seen, arm
        cdef int64_t sleep_ns
        while True:
            seen = load_seq_cst_32(&s.sync_bell)
            if load_acquire_64(&s.stopping):
                break
            now_ns = clock_mono_ns()
            written = load_acquire_64(&self.line.written)
            synced = load_acquire_64(&self.line.synced)
            arm = ARMED_IDLE
            sleep_ns = IDLE_NS
            if load_acquire_64(&s.sync_failed):
                futex_wait(&s.sync_bell, seen, IDLE_NS)
                continue
            if written > synced:
                first_ns = first_ns or now_ns
                due_ns = max(last_ns + load_relaxed_64(&s.group_commit_ns), first_ns + <uint64_t>LONE_NS)
                if load_seq_cst_64(&s.asked) > synced or now_ns >= due_ns:
                    last_ns = first_ns = now_ns
                    self.sync_pass()
                    self.ring(bell)
                    continue
                arm = ARMED_TIMED
                sleep_ns = <int64_t>(due_ns - now_ns)
            else:
                first_ns = 0
            store_seq_cst_32(&s.sync_armed, arm)
            fence_seq_cst()
            # Look again: who stored before the flag was up did not wake us.
            if load_seq_cst_64(&s.asked) <= synced and (arm == ARMED_TIMED or load_acquire_64(&self.line.written) == written):
                futex_wait(&s.sync_bell, seen, sleep_ns)
            store_seq_cst_32(&s.sync_armed, 0)

    cdef void ring(self, control *bell) noexcept nogil:
        if bell == NULL:
            return
        add_32(&bell.writer_bell, 1)
        fence_seq_cst()
        if load_seq_cst_32(&bell.writer_armed):
            futex_wake(&bell.writer_bell, 1)

    cdef void stop(self) noexcept nogil:
        cdef ShardState *s = self.state
        store_seq_cst_64(&s.stopping, 1)
        add_32(&s.sync_bell, 1)
        futex_wake(&s.sync_bell, 1)
        add_32(&s.prepare_bell, 1)
        futex_wake(&s.prepare_bell, 1)

    # ---- after a failure ------------------------------------------------------------------------------------------------

    cdef int void_after(self, uint64_t previous_end, const iovec *frames, int count) noexcept nogil:
        cdef ShardState *s = self.state
        cdef TailFile made
        cdef uint64_t total = LOG_START_BYTES, wanted
        cdef uint8_t *raw
        cdef int result, k
        if not load_acquire_64(&s.poison):
            return -EINVAL
        if s.void_end:
            return 0  # done: once more would void the copies
        for k in range(count):
            total += frames[k].iov_len
        raw = <uint8_t *>malloc(total)
        if raw == NULL:
            return -ENOMEM
        wanted = whole_pages(total + s.reserve_bytes)       # the log may go on there, on a full disk
        pthread_mutex_lock(&s.make_lock)
        made = s.prepared
        result = 0
        if not s.prepared_ready or made.bytes < wanted:
            result = make_file(s, s.want_first, wanted, 0, &made)
            if no_room(-result):
                result = 0
                if not s.prepared_ready or s.prepared.bytes < total:
                    result = make_file(s, s.want_first, whole_pages(total), 0, &made)
                else:
                    made = s.prepared
        if result == 0:
            store_release_64(&s.prepared_ready, 0)
            s.want_first = made.first_position + made.bytes
        pthread_mutex_unlock(&s.make_lock)
        if result == 0:
            result = self.write_copies(&made, previous_end, frames, count, raw, total)
            if result == 0:
                s.void_file = made
                s.void_end = made.first_position + total
            else:
                s.files.close(s.files.context, made.fd)
        free(raw)
        return result

    cdef int write_copies(self, const TailFile *file, uint64_t previous_end, const iovec *frames, int count, uint8_t *raw,
                          uint64_t total) noexcept nogil:
        cdef ShardState *s = self.state
        cdef uint64_t at = LOG_START_BYTES
        cdef frame_header *frame
        cdef iovec part
        cdef int64_t result
        cdef int k
        write_start(s, raw, file, previous_end, self.synced())
        for k in range(count):
            frame = <frame_header *>(raw + at)
            memcpy(frame, frames[k].iov_base, frames[k].iov_len)
            frame.position = file.first_position + at
            frame_seal(frame)
            at += frames[k].iov_len
        part.iov_base = raw
        part.iov_len = total
        result = s.files.pwritev(s.files.context, file.fd, &part, 1, 0)
        if result < 0:
            return <int>result
        return s.files.fdatasync(s.files.context, file.fd)

    cdef int resume(self, uint64_t previous_end) noexcept nogil:
        cdef ShardState *s = self.state
        cdef uint64_t poison = load_acquire_64(&s.poison)
        cdef int result
        if not poison:
            return 0
        if not no_room(<int>poison) or load_acquire_64(&s.sync_failed):
            return -EROFS
        self.forget_group()
        if s.void_end:
            return self.resume_in_void_file()
        if self.prepare_once() < 0 or not load_acquire_64(&s.prepared_ready):
            return -ENOSPC
        result = self.rotate(previous_end)
        if result < 0:
            return result
        store_release_64(&s.poison, 0)
        result = self.flush()
        if result == 0:
            # Frames of the failed group may stand in the old file: before their seqs are used again the disk must know that they are void.
            result = self.sync_pass()
        if result == 0:
            self.clear_read_only()
        return result

    cdef int resume_in_void_file(self) noexcept nogil:
        # Another START would void the copies: go on behind them.
        cdef ShardState *s = self.state
        cdef int result
        if self.line.files >= LOG_FILES_MAX:
            return -EFBIG
        if s.tail_count > LOG_UNSYNCED_FILES_MAX - 1 and self.sync_pass() < 0:
            return -EROFS
        s.current = s.void_file
        direct_forget(&s.direct, s.files)
        s.end = s.group_start = s.queued_end = s.frames_end = s.void_end
        s.void_end = 0
        pthread_mutex_lock(&s.lock)
        s.tail[s.tail_count] = s.current
        s.tail_count += 1
        pthread_mutex_unlock(&s.lock)
        self.add_row(s.current.first_position, s.current.bytes)
        store_release_64(&self.line.written, s.end)
        result = self.sync_pass()
        if result < 0:
            return result
        store_release_64(&s.poison, 0)
        self.clear_read_only()
        return 0

    # ---- Python ---------------------------------------------------------------------------------------------------------

    def start(self, WalkReport report, *, uint64_t generation=1, bytes boot_id=bytes(16), uint64_t least=FIRST_BYTES_LEAST) -> None:
        """Begin a new file after what `report` (log_walk) found, and make everything that it showed durable.

        On a full disk it has at least `least` bytes, whole pages. Raises OSError; then it may be called again.
        """
        cdef ShardState *s = self.state
        cdef uint64_t k
        if s.running or len(boot_id) != 16 or len(report.files) >= LOG_FILES_MAX:
            raise ValueError("start: once, with a boot id of 16 bytes")
        self.make_directory()
        memset(self.line, 0, sizeof(shard_line))
        s.generation = generation
        memcpy(s.boot_id, <const uint8_t *>boot_id, 16)
        for file in report.files:
            if report.reusable and file.first_position == report.next_position:
                s.prepared.first_position = file.first_position
                s.prepared.bytes = file.bytes
                s.prepared.fd = checked(s.files.open(s.files.context, <const char *>(<bytes>file.path), O_RDWR, 0), file.path)
                s.prepared_ready = 1
                continue
            self.add_row(file.first_position, file.bytes)
            if file.first_position + file.bytes > report.synced:
                self.sync_file(file.path)
        for k in range(len(report.damaged)):
            self.line.quarantined += <uint64_t>report.damaged[k].bytes
        s.want_first = report.next_position
        if not s.prepared_ready:
            checked(make_first(self, report, least), self.directory)
            s.prepared_ready = 1
        s.running = True
        store_release_64(&self.line.synced, report.end)
        store_release_64(&self.line.written, report.end)
        checked(self.rotate(report.end), self.directory)
        checked(self.flush(), self.directory)
        checked(self.sync_pass(), self.directory)
        self.line.rotations = 0
        self.give_back(report)

    cdef give_back(self, report):
        # Zeroes behind what an old file holds will never be written: their blocks are freed, what a reader sees stays. Only in the file where
        # the log ended: those before it are full or had their turn, and what is torn behind it is evidence. A disk that cannot punch keeps them.
        cdef ShardState *s = self.state
        cdef uint64_t begin, size
        cdef int fd
        for file in report.files:
            size = file.bytes
            if file.first_position == report.next_position or not file.first_position <= report.end < file.first_position + size:
                continue
            begin = whole_pages(report.end + report.torn_bytes - file.first_position)
            if begin < size:
                fd = checked(s.files.open(s.files.context, <const char *>(<bytes>file.path), O_RDWR, 0), file.path)
                s.files.punch(s.files.context, fd, begin, size - begin)
                s.files.close(s.files.context, fd)

    cdef make_directory(self):
        # Each new directory's entry must be durable before a frame in it can be.
        cdef ShardState *s = self.state
        missing = []
        path = self.directory
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(os.path.abspath(path))
        for path in reversed(missing):
            checked(s.files.mkdir(s.files.context, <const char *>(<bytes>path), 0o750), path)
            parent = os.path.dirname(os.path.abspath(path))
            checked(s.files.sync_directory(s.files.context, <const char *>(<bytes>parent)), parent)
        for name in os.listdir(self.directory):
            if name.endswith(b".preparing"):
                path = os.path.join(self.directory, name)
                checked(s.files.unlink(s.files.context, <const char *>(<bytes>path)), path)

    cdef sync_file(self, bytes path):
        cdef ShardState *s = self.state
        cdef int fd = checked(s.files.open(s.files.context, path, O_RDWR, 0), path)
        cdef int result = s.files.fdatasync(s.files.context, fd)
        s.files.close(s.files.context, fd)
        checked(result, path)

    def append(self, frame, *, bint privileged=False) -> int:
        """Place, stamp, seal and queue a copy of a frame (frame.build); flushes first when it must. Returns its position, raises OSError."""
        cdef bytearray copy = bytearray(frame)
        cdef frame_header *header = <frame_header *><uint8_t *>copy
        cdef uint32_t length = len(copy)
        cdef uint64_t position = 0
        cdef int result
        if length < FRAME_HEADER_BYTES or header.length != length or length % 8:
            raise ValueError("not a whole frame")
        with nogil:
            result = self.place(length, privileged, &position)
            if result == LOG_FLUSH_FIRST:
                result = self.flush()
                if result == 0:
                    result = self.place(length, privileged, &position)
        checked(result, self.directory)
        header.position = position
        header.shard = self.number
        header.synced = self.synced()
        frame_seal(header)
        self.kept.append(copy)
        self.queue(header, length)
        return position

    def flush_group(self) -> None:
        """Write what was appended since the last flush. Raises OSError, and then the shard is read-only."""
        cdef int result
        with nogil:
            result = self.flush()
        self.kept.clear()
        checked(result, self.directory)

    def cancel_group(self) -> None:
        """Forget what was appended since the last flush."""
        self.cancel()
        self.kept.clear()

    def sync(self) -> None:
        """Make everything flushed durable. Raises OSError, and then the shard is read-only."""
        cdef int result
        with nogil:
            result = self.sync_once()
        checked(result, self.directory)

    def prepare(self) -> None:
        """Make the next file when there is none. Raises OSError."""
        cdef int result
        with nogil:
            result = self.prepare_once()
        checked(result, self.directory)

    def keep_spare(self, uint64_t later_s=0) -> float:
        """Do as the preparer does, so many seconds from now, when it has nothing to prepare: make or remove one spare file if it is time.

        Seconds until the next look.
        """
        cdef uint64_t wait_ns
        with nogil:
            wait_ns = self.keep_spares(clock_mono_ns() + later_s * 1000000000)
        return wait_ns / 1e9

    @property
    def spares(self) -> int:
        """Files that wait for the next flood."""
        return self.state.spares.count

    def write_mark(self, uint64_t ts=0) -> bool:
        """Write a mark if the log needs one, so that what is synced can be told from what is torn. Raises OSError."""
        return checked(self.mark(ts), self.directory) == 1

    def void(self, uint64_t previous_end, frames=()) -> None:
        """After a failure: make frames at or above `previous_end` void, and keep copies of `frames`. Raises OSError."""
        cdef list kept = [bytes(frame) for frame in frames]
        cdef iovec *parts = <iovec *>calloc(len(kept) + 1, sizeof(iovec))
        cdef Py_ssize_t k
        cdef int result
        if parts == NULL:
            raise MemoryError
        for k in range(len(kept)):
            parts[k].iov_base = <void *><const char *>(<bytes>kept[k])
            parts[k].iov_len = len(<bytes>kept[k])
        result = self.void_after(previous_end, parts, <int>len(kept))
        free(parts)
        checked(result, self.directory)

    def resume_after(self, previous_end=None) -> None:
        """Go on in a new file after ENOSPC. Raises OSError when there is still no room, or when the failure was another."""
        checked(self.resume(self.written() if previous_end is None else previous_end), self.directory)

    def run_sync_loop(self) -> None:
        """Be the syncer's thread until `stop_loops`."""
        with nogil:
            self.sync_loop(NULL)

    def run_prepare_loop(self) -> None:
        """Be the preparer's thread until `stop_loops`."""
        with nogil:
            self.prepare_loop()

    def want_sync(self) -> None:
        """Have the syncer sync at once."""
        self.ask_sync()

    def stop_loops(self) -> None:
        """End both loops; join their threads, then close."""
        self.stop()

    def close(self) -> None:
        """Close all files. What was not synced is not synced here. The loops must have ended."""
        self.close_files()

    @property
    def written_position(self) -> int:
        return self.written()

    @property
    def synced_position(self) -> int:
        return self.synced()

    @property
    def end_position(self) -> int:
        """Position after the last placed frame."""
        return self.state.end

    @property
    def read_only(self) -> int:
        """0, or the errno for which the shard takes no writes."""
        return load_acquire_64(&self.line.read_only)

    @property
    def poisoned(self) -> int:
        """0, or the errno of the write or sync that failed: only `void`, `resume_after` and a restart help."""
        return load_acquire_64(&self.state.poison)

    @property
    def keep_free(self) -> int:
        """How many bytes of the disk no new file takes."""
        return load_relaxed_64(&self.state.keep_free)

    @keep_free.setter
    def keep_free(self, value: int) -> None:
        store_relaxed_64(&self.state.keep_free, value)

    @property
    def starved(self) -> bool:
        """Whether a frame that frees something found no room. Set to False when there may be some: the next one tries again at once."""
        return self.state.starved_ns != 0

    @starved.setter
    def starved(self, value: bool) -> None:
        self.state.starved_ns = clock_mono_ns() if value else 0

    @property
    def next_is_ready(self) -> bool:
        return load_acquire_64(&self.state.prepared_ready) != 0

    @property
    def files(self) -> list:
        """(first position, bytes) of each file in the table."""
        return [(self.rows[k].first_position, self.rows[k].bytes) for k in range(self.line.files)]

    def counters(self) -> dict:
        """Return the shard's counters by name; `fsync_bucket[n]` counts syncs of more than 2^(n-1) and at most 2^n us (not cumulative)."""
        cdef shard_line *line = self.line
        return {
            "written": line.written, "synced": line.synced, "read_only": line.read_only, "files": line.files, "frames": line.frames,
            "batches": line.batches, "fsyncs": line.fsyncs, "bytes_written": line.bytes_written, "rotations": line.rotations,
            "direct_bytes": line.direct_bytes, "fsync_us_sum": line.fsync_us_sum, "fsync_us_count": line.fsync_us_count,
            "quarantined": line.quarantined,
            "fsync_bucket": [line.fsync_bucket[k] for k in range(FSYNC_BUCKETS)],
        }


cdef int make_first(Shard shard, WalkReport report, uint64_t least) except? -1:
    # On a full disk the room that an old file's rest gives back (it kept the reserve) makes a smaller file: reads and deletes go on.
    cdef ShardState *s = shard.state
    cdef uint64_t size = s.first_file_bytes
    cdef int result = make_file(s, s.want_first, size, FIRST_FILL_BYTES, &s.prepared)
    if no_room(-result):
        shard.give_back(report)
    while no_room(-result) and size > least:
        size = max(size // 2 // PAGE_BYTES * PAGE_BYTES, least)
        result = make_file(s, s.want_first, size, FIRST_FILL_BYTES, &s.prepared)
    return result


cdef int checked(int result, bytes path) except? -1:
    if result < 0:
        raise OSError(-result, os.strerror(-result), os.fsdecode(path))
    return result
