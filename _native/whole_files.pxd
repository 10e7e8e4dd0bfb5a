# Files that are there whole or not at all: written or copied under a temporary name, synced, renamed, directory synced. All through `Files`, so
# that crash tests see every call. For what is small or rare: snapshots, .del files, copies into another tier.
#
#   <path>.tmp  open, pwritev ..., fsync, close  ->  rename to <path>  ->  sync_directory
#
# After an error the temporary file is unlinked, and what stood under the name before stands there still. Owner: the caller; nothing is kept.
from libc.stdint cimport uint8_t, uint64_t

from topicsd._native.files cimport Files

# 0 or -errno.
cdef int whole_write(const Files *files, const char *path, const uint8_t *bytes, uint64_t count) noexcept nogil
cdef int whole_copy(const Files *files, const char *source, const char *destination, uint64_t *bytes) noexcept nogil
