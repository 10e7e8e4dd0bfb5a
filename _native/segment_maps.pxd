# Maps of segment files, one cache a process (the log's maps: maps.pxd). The SIGBUS guard is maps.pxd's `guarded_call`.
#
#   key (a number that the segment-file table gives out once: never used again for another file) -> map of the whole file
#
# The cache asks its owner for a file's path (`path_of`) when it has no map, maps it read-only, closes the descriptor (ulimit -n), and keeps at
# most count_max maps, the least recently used go first. A map that was handed out since the last `segment_maps_turn` is never dropped, so that
# the pointers of one read stay good; segment files are immutable but for flag bytes, and never shrink while a process may have them mapped.
#
# Whoever uses this from C has called maps_init (maps.pxd) once in the process: it installs the guard.
#
# Owner: one thread. Nothing is shared.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

# Writes the path of `key`, NUL included, into `path`. 0 or -errno (-ENOENT: retired).
ctypedef int (*segment_path_of)(void *context, uint64_t key, char *path, uint64_t path_bytes) noexcept nogil
ctypedef bint (*segment_retired)(void *context, uint64_t key) noexcept nogil

cdef enum:
    SEGMENT_TRUST_NS = 1000000000    # the bytes of a file may change under a server: how long marks are believed

cdef struct SegmentMap:
    uint64_t key
    uint64_t used           # the turn it was last handed out in
    const uint8_t *at
    uint64_t bytes
    uint64_t *index_marks   # segment.pxd: bits for what has been verified; made when first wanted, NULL when there is no memory for them
    uint64_t *frame_marks
    uint64_t device, inode  # of the file
    uint64_t marked_ns      # CLOCK_MONOTONIC of when the marks were last empty

cdef struct SegmentMaps:
    SegmentMap *rows        # open addressing by key; at == NULL: free
    uint32_t count, room, count_max
    uint64_t turn
    int failure             # -errno of the last segment_map that gave NULL
    segment_path_of path_of
    void *context

cdef int segment_maps_init(SegmentMaps *maps, uint32_t count_max, segment_path_of path_of, void *context) noexcept nogil   # 0 or -errno
cdef void segment_maps_free(SegmentMaps *maps) noexcept nogil
cdef void segment_maps_turn(SegmentMaps *maps) noexcept nogil                                  # a read begins
cdef SegmentMap *segment_map(SegmentMaps *maps, uint64_t key) noexcept nogil                   # NULL: see failure. Good until the next turn
# Unmap a file if its path does not lead to it any more (it was removed, or another one stands there), unless it was handed out in this turn.
cdef void segment_map_look(SegmentMaps *maps, uint64_t key) noexcept nogil
# Make the marks of a map that holds an index part; empty them when they are older than SEGMENT_TRUST_NS. `now_ns`: CLOCK_MONOTONIC.
cdef void segment_map_marks(SegmentMap *map, uint64_t now_ns) noexcept nogil
cdef bint segment_maps_forget(SegmentMaps *maps, uint64_t key) noexcept nogil                  # unmap one file; was it mapped?
cdef uint32_t segment_maps_sweep(SegmentMaps *maps, segment_retired retired, void *context) noexcept nogil   # unmap all that are retired; how many
