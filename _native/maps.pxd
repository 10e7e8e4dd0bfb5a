# Read-only maps of log files, one cache a process, and the guard that every load from them goes through.
#
#   position -> row of the file table with the greatest first_position <= position -> <directory>/log/shard-NN/<first position>.log
#   maps     [ map | map | ... ]   sorted by (shard, first position), at most MAPS_MAX; the least recently used one goes first
#
# word                        written by          order     a stale read means
# control.shards[s].files     writer              acquire   a position above the last known file is not found: the caller's index entry is
#                                                           newer than its view of the table, which cannot be, since the row stands before
#                                                           the first frame of its file and the head is acquired after both
# row.retired                 writer              acquire   one more read from a file that is about to go: its pages stay while mapped
# control.generation          writer              acquire   the old maps serve one more page; log files are never changed, only added
#
# Log files never shrink and never grow while mapped, so the only fault left is a page that the disk cannot read (or a file that was cut
# behind our back): SIGBUS. `guarded_call` turns it into -EIO. The handler belongs to the process, the jump target to the thread; a fault
# outside a guarded call goes to the handler that was there before.
#
# Owner: one thread. A Maps is not shared between threads or processes.
from libc.errno cimport EAGAIN, EINTR, EMFILE, ENFILE, ENOMEM
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from topicsd._native.regions cimport Regions

cdef enum:
    MAPS_MAX = 4096
    DIRECTORY_BYTES_MAX = 3968

ctypedef int (*guarded_function)(void *argument) noexcept nogil

cdef enum:
    TRUST_SLOT_BYTES = 64        # the starts of records of two frames are further apart: a frame's header is between them
    TRUST_CHUNK_BYTES = 65536

cdef struct Trust:          # of a chunk of a log file: which frames in it were verified (log_verify.pxd)
    uint64_t since_ns       # CLOCK_MONOTONIC of the oldest of them
    uint64_t slots[16]      # a bit a slot: a record that begins in it stands in such a frame

cdef struct Map:
    uint64_t shard
    uint64_t first_position
    uint64_t bytes
    uint64_t used           # the cache's tick at the last look
    const uint8_t *base
    Trust *trust            # one a chunk; made by the first who verifies, NULL when there is no memory for it

cdef struct Maps:
    const Regions *regions
    uint64_t generation
    uint64_t tick
    Map *list               # sorted by (shard, first_position)
    uint32_t count, room, count_max
    int failure             # -errno of the last map_at that gave NULL
    char directory[DIRECTORY_BYTES_MAX]

cdef int maps_init(Maps *maps, const Regions *regions, const char *data_dir, uint32_t count_max) noexcept nogil    # 0 or -errno
cdef void maps_drop_all(Maps *maps) noexcept nogil
cdef uint32_t maps_drop_retired(Maps *maps) noexcept nogil          # how many went
cdef void maps_refresh(Maps *maps) noexcept nogil                   # at the start of a read: another generation drops every map
# The byte at `position` and how many follow it in the same file; NULL when no file has it or it cannot be mapped (maps.failure says why).
cdef const uint8_t *map_at(Maps *maps, uint32_t shard, uint64_t position, uint64_t *available) noexcept nogil
# The same as the map itself, which is good until the next look into the cache.
cdef Map *map_found(Maps *maps, uint32_t shard, uint64_t position) noexcept nogil
cdef int guarded_call(guarded_function function, void *argument) noexcept nogil                     # its result, or -EIO
cdef inline bint for_want_of_room(int failure) noexcept nogil:      # the file is there, perhaps: this process can not map it now
    return failure == -ENOMEM or failure == -EMFILE or failure == -ENFILE or failure == -EAGAIN or failure == -EINTR
cdef int guarded_copy(void *destination, const void *source, uint64_t bytes) noexcept nogil        # 0 or -EIO
