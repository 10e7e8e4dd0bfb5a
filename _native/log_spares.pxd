# Files of the log that are made ahead of a flood.
#
# The first write to a block that the disk has never seen (or was told to forget) costs about twice what a later one does, and a flood of batches
# goes as fast as the disk takes it. So a log whose files are used up faster than they could be filled with zeroes keeps as many files as its last
# flood took, filled while nothing is written, for the next one: SPARES_MAX at most, and no more than a share of the free disk. After SPARE_KEEP_NS
# without a flood they are removed; on a full disk at once.
#
#   name   spare-<serial>.preparing   in the shard's directory: reads as zeroes, synced; a start removes what is there
#   taken  renamed to its position, as any prepared file; the directory is synced then
#
# Owner: the preparer's thread fills; `make_lock` of the shard covers everything else. What is being filled is nobody else's.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from topicsd._native.files cimport Files

cdef enum:
    SPARES_MAX = 128          # as much as may wait to be sealed in a flood (keeper.py)

cdef struct Spares:
    uint32_t count, wanted
    uint32_t serial[SPARES_MAX]
    int fd[SPARES_MAX]
    uint32_t next_serial
    uint64_t looked_at         # `written` at the preparer's last look
    uint64_t flood_ns          # when the last flood took a file, or would have

# A flood needs a file. The next floods' spares follow.
cdef void spares_flood(Spares *spares, uint64_t now_ns) noexcept nogil
# How many there should be now, with so many bytes of the disk free (-errno: not known); 0 too when the last flood is long ago.
cdef uint32_t spares_due(const Spares *spares, int64_t free_bytes, uint64_t file_bytes, uint64_t now_ns) noexcept nogil
# Rename the last one: its descriptor, or -errno; -ENOENT: there is none. The caller syncs the directory.
cdef int spares_take(Spares *spares, const Files *files, const char *directory, const char *path) noexcept nogil
# Make one of `bytes`, whole pages, but do not add it: its descriptor, or -errno. -EAGAIN: the log is `written` up to `stop` meanwhile, the disk has
# better to do. `zeroes`: so many stand there, on a page.
cdef int spares_fill(const Files *files, const char *directory, uint32_t serial, uint64_t bytes, const uint8_t *zeroes, uint64_t zero_bytes,
                     const uint64_t *written, uint64_t stop) noexcept nogil
cdef void spares_add(Spares *spares, uint32_t serial, int fd) noexcept nogil
# Remove one.
cdef void spares_drop(Spares *spares, const Files *files, const char *directory) noexcept nogil
