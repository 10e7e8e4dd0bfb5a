# Data parts that stand in the cold tier, as one process sees them: an address range as large as the part, of which some blocks are there.
#
#   sealed.pyx  wants bytes begin .. end of file `serial`  ->  all blocks there: an address    ->  read as from a map
#                                                          ->  one is not: the read fails (EIO), `wanted` says what it lacks
#   topicsd/api/cold.py  takes `wanted`, has the blocks read in a thread, puts them in, has the read done again
#
# The range is reserved, not used: a block costs memory when it is put in. At most bytes_max are kept over all files; whole files go, those that
# were looked at longest ago first, never one that was handed out in this turn (its addresses stand in an answer that is being made).
#
# Owner: one thread of one process. Nothing is shared.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum:
    COLD_BLOCK_SHIFT = 18            # 256 KiB: what the store is asked for at least
    COLD_FILES_MAX = 256

cdef struct ColdWindow:
    uint64_t serial                  # of the segment file; 0: free
    uint64_t used                    # the turn it was last handed out in
    uint8_t *at
    uint64_t bytes, held             # of the range; of the blocks that are there
    uint64_t *there                  # a bit a block

cdef struct ColdWindows:
    ColdWindow rows[COLD_FILES_MAX]
    uint64_t held, bytes_max
    uint64_t hits, misses
    uint32_t wanted_file             # number in the segment-file table; 0: nothing is wanted
    uint64_t wanted_serial, wanted_begin, wanted_end

cdef ColdWindows *cold_windows_new(uint64_t bytes_max) noexcept nogil
cdef void cold_windows_clear(ColdWindows *windows) noexcept nogil      # files are numbered anew
cdef void cold_windows_free(ColdWindows *windows) noexcept nogil
# The address of byte 0 of a file, when bytes begin .. end - 1 are there; else NULL, and `wanted` is set.
cdef uint8_t *cold_window_at(ColdWindows *windows, uint64_t turn, uint32_t file, uint64_t serial, uint64_t begin, uint64_t end) noexcept nogil
# What of a file is there stays until the next turn: the rest of it is wanted, and all of it at once.
cdef void cold_window_keep(ColdWindows *windows, uint64_t turn, uint64_t serial) noexcept nogil
# Put bytes in, whole blocks but for the last one of a file of `bytes`. 0 or -ENOMEM.
cdef int cold_window_put(ColdWindows *windows, uint64_t turn, uint64_t serial, uint64_t bytes, uint64_t offset, const uint8_t *what,
                         uint64_t count) noexcept nogil
