# Reading a shard's log from end to end: recovery, fsck and the tests read it by this one function.
#
# The log is ONE sequence of frames over all files, in order of position, with void parts taken out. The rules:
#
#   void     A START frame in file k says `previous_end`: frames of older files at or above it are void (aborted or torn long ago).
#   bad      A place where a frame should stand and none does: wrong magic, position, shard, length or checksum, bytes that cannot be
#            read, bytes past the end of a short file, a file that is missing.
#   damage   A bad place at position x is damage when some later valid frame carries `synced` > x: the disk once had these bytes. The walk
#            reports the range up to the next valid frame (8-aligned search for magic + position + checksum) and goes on there.
#   the end  Otherwise the log ends at x. Everything after x is torn: it was never synced, so nobody was promised it, and frames after it
#            are not shown either (unsynced frames survive only as a prefix). `torn_bytes` is 0 when only zeroes follow.
#
# The walk never changes a file and gives the same answer twice. What follows the end is made void by the START of the next file
# (`Shard.start`). A frame of an unknown type without bit 7, or a START of a newer format, refuses the whole log: raise, never guess.
from libc.stdint cimport uint32_t, uint64_t

from topicsd._native.files cimport FileSystem
from topicsd._native.layout cimport frame_header

# Called for each valid frame, START and MARK included, in order, without the GIL. `frame` stands in the walk's buffer until the
# function returns. A result other than 0 stops the walk (report.stopped).
ctypedef int (*Visit)(void *context, const frame_header *frame, uint64_t position) noexcept nogil

cdef class WalkReport:
    cdef readonly list files            # [LogFile(first_position, bytes, path)], in order, the not yet started one included
    cdef readonly uint64_t end          # position after the last valid frame: the next START's previous_end
    cdef readonly uint64_t next_position  # where the next file must begin (an empty prepared file stands there when `reusable`)
    cdef readonly bint reusable
    cdef readonly list damaged          # [Damage], in order
    cdef readonly uint64_t torn_bytes   # bytes after `end` up to the last one that is not zero
    cdef readonly uint64_t torn_frames  # valid frames among them
    cdef readonly uint64_t frames       # visited
    cdef readonly uint64_t bytes        # of visited frames
    cdef readonly uint64_t synced       # highest synced position that any valid frame carries
    cdef readonly uint64_t generation   # of the last START visited, 0 when none
    cdef readonly bytes boot_id         # of the last START visited, b"" when none
    cdef readonly int stopped           # what `visit` returned

# Walk the shard in `directory` (.../log/shard-NN). Frames below `from_position` are not visited. Must be called with the GIL (it lets go of
# it while it reads). Raises LogFormatError, OSError.
cdef WalkReport walk(FileSystem files, bytes directory, uint32_t shard, uint64_t from_position, uint64_t known, Visit visit, void *context)
