# A shard: the append side of one log (the read side is log_walk.pyx).
#
#   file k    [START|frame|frame|...|frame|0000...]   fixed size, zero-filled ahead; its name is its first position, 20 digits
#   file k+1  [START|frame|...                        begins at the position where file k's SIZE ends
#                                    ^written ^end
#
#   position -> file: the row with the greatest first_position <= position; offset in the file = position - first_position.
#
# Three threads of the writer process touch a Shard, and no one else:
#   writer    place, queue, expect_reader, launch, land, flush, cancel, ask_sync, mark, void_after, resume, start   (one thread, never two at once)
#   syncer    sync_loop (or sync_once from the writer's thread in library mode)
#   preparer  prepare_loop (or prepare_once)
#
# word              written by        order            a stale read means
# line.written      writer            release          the syncer syncs less than it could: the next turn gets it
# line.synced       syncer            release, after   frames carry a lower `synced`, publication waits a moment longer: never shorter,
#                                     fdatasync        the sync has returned before the store
# line.read_only    writer, syncer,   release          one more group is refused or tried; 0 -> errno by compare-and-swap,
#                   preparer                           back to 0 when there is room again
# line.files, rows  writer            release on the   a reader that finds a position above the last row's file reads `files` again: the
#                                     count            row stands before the first frame of its file is written
# asked, prepared   futex words, seq_cst on both sides: store, fence, look at the sleeper's flag / set the flag, fence, look at the word
# poison            any, once         release          0 -> errno; a second cause is dropped. Only `resume` takes it back (writer)
# tail (fd list)    under `lock`, held only to copy a few words
#
# Group: place (reserve a position, perhaps rotate) -> stamp and seal the frame -> queue -> ... -> flush. Memory of queued frames belongs to
# the caller and must stay until flush or cancel. Frames are queued in the order in which they were placed.
#
# Flight: a large group may be written in the background (launch, land) while the next one gathers behind it in the same file. Four may
# fly, and land in their order; a frame that does not fit into the file waits for them (LOG_FLUSH_FIRST).
#
# Failure: a failed write or sync poisons the shard (`line.read_only` = errno). `written` stays, so nothing of the failed group counts; its
# bytes may be in the file all the same. `void_after` or `resume` makes them void by a new file whose START says where the good data ends.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from posix.uio cimport iovec

from topicsd._native.files cimport Files, FileSystem
from topicsd._native.layout cimport control, frame_header, log_file_row, shard_line

cdef enum:
    LOG_FLIES = 1             # land: it has not landed
    LOG_FLUSH_FIRST = 1       # place: the frame does not fit into this file and something is queued: flush, then place again
    LOG_START_BYTES = 128     # START frame at offset 0 of each file
    LOG_UNSYNCED_FILES_MAX = 16

cdef struct TailFile:         # a file that the syncer still has to sync; the last one is the current file
    int fd
    uint64_t first_position
    uint64_t bytes

cdef struct ShardState        # private: log.pyx

cdef class Shard:
    # Python side: Shard(directory, number, files=None, first_file_bytes=..., file_bytes=..., reserve_bytes=..., group_commit_ms=5.0)
    cdef readonly FileSystem file_system
    cdef readonly bytes directory
    cdef readonly uint16_t number
    cdef shard_line *line      # in shared memory after `attach`, else the shard's own
    cdef log_file_row *rows    # LOG_FILES_MAX rows, likewise
    cdef ShardState *state
    cdef shard_line *own_line
    cdef log_file_row *own_rows
    cdef list kept             # frames that `append` copied, until the flush

    # Use these words instead of the shard's own: before `start`, at most once. Rows and counters are reset by `start`.
    # shard.attach(&regions.control.shards[n], regions.files + n * LOG_FILES_MAX)
    cdef void attach(self, shard_line *line, log_file_row *rows) noexcept nogil

    # Reserve `frame_bytes` (multiple of 8) and give the position. 0; LOG_FLUSH_FIRST; -ENOSPC: no room but the reserve (which `privileged`
    # frames may use: deletes, floors, topic deletes, marks; when it is used up, a small file of what is kept free); -EROFS: poisoned; -EFBIG: more
    # files than rows. A frame never reaches beyond its file, and one that is not `privileged` leaves the reserve behind it, or a next file.
    # A place that no frame is queued for before the next place or flush is given back.
    # May rotate, and then queues the new file's START by itself. Blocks only when the next file is not ready in time.
    cdef int place(self, uint32_t frame_bytes, bint privileged, uint64_t *position) noexcept nogil
    # Add a placed, stamped (position, synced, shard) and sealed frame to the group.
    cdef void queue(self, const void *frame, uint32_t bytes) noexcept nogil
    # Write the group. 0, or -errno (poisoned; the group is forgotten).
    cdef int flush(self) noexcept nogil
    # Keep the group in memory: somebody is about to read it. Until the next flush, cancel or failure.
    cdef void expect_reader(self) noexcept nogil
    # Begin to write a large group in the background, where that is possible: 1, and the next group may gather meanwhile; `written` moves, and
    # frames count, when it has landed. 0: nothing has happened, flush it. -errno as flush.
    cdef int launch(self) noexcept nogil
    # Whether a group is on its way.
    cdef bint flies(self) noexcept nogil
    # Wait for the oldest, at most so long (WRITE_ENDS: until it has landed). 0; LOG_FLIES: not yet; -errno: poisoned, and what flies and gathers
    # behind it is forgotten too. `flush` first waits for all by itself.
    cdef int land(self, uint64_t wait_ns) noexcept nogil
    # Wake the syncer where it sleeps until something is written. After `tell_syncer_late` flush and land do not do it: whoever calls them answers
    # first, and then tells it.
    cdef void tell_syncer(self) noexcept nogil
    cdef void tell_syncer_late(self) noexcept nogil
    # Forget what was placed and queued since the last flush.
    cdef void cancel(self) noexcept nogil
    # Bytes placed and not yet flushed.
    cdef uint64_t unflushed(self) noexcept nogil
    # 0, or -EROFS when poisoned, or -ENOSPC while only privileged frames are taken: an early look, place decides.
    cdef int refuses(self) noexcept nogil

    cdef uint64_t written(self) noexcept nogil   # position after the last flushed frame
    cdef uint64_t synced(self) noexcept nogil    # stamp this into each frame
    cdef bint need_sync(self) noexcept nogil     # written > synced
    # Have everything flushed so far synced at once, not at the end of the group-commit interval. After flush.
    cdef void ask_sync(self) noexcept nogil
    # Sync everything written, in this thread. 0 or -errno (poisoned).
    cdef int sync_once(self) noexcept nogil
    # The syncer's thread: until stop(). After each sync adds 1 to bell.writer_bell and wakes the writer when it is armed; bell may be NULL.
    cdef void sync_loop(self, control *bell) noexcept nogil
    # Make the next file when there is none. 0 (also when there was nothing to do) or -errno.
    cdef uint64_t fill_bytes(self) noexcept nogil
    cdef int prepare_now(self, bint waited_for) noexcept nogil
    cdef int prepare_file(self, bint waited_for) noexcept nogil
    cdef uint64_t keep_spares(self, uint64_t now_ns) noexcept nogil
    cdef int prepare_once(self) noexcept nogil
    # The preparer's thread: until stop(). After a failure tries again every 200 ms, and then clears ENOSPC.
    cdef void prepare_loop(self) noexcept nogil
    # End both loops (they return soon; the caller joins its threads, then calls close()).
    cdef void stop(self) noexcept nogil

    # Write a MARK frame when no frame yet carries a `synced` above the last real frame. 1 written, 0 nothing to do or not now, -errno.
    cdef int mark(self, uint64_t ts) noexcept nogil

    # After poisoning: in a new file say that frames at or above `previous_end` are void, and append copies of `frames` (each iovec one whole
    # frame that stays valid, restamped here with a new position). Synced when it returns 0. The shard stays read-only. Done once, it does
    # nothing more until `resume`.
    cdef int void_after(self, uint64_t previous_end, const iovec *frames, int count) noexcept nogil
    # After poisoning by ENOSPC: go on in a new file (behind the copies, when void_after has made one; `previous_end` is ignored then).
    # 0: the shard takes writes again. `previous_end` is `written` unless the caller knows that less was published.
    cdef int resume(self, uint64_t previous_end) noexcept nogil

    # private
    cdef void close_files(self) noexcept nogil
    cdef void drop_unqueued(self) noexcept nogil
    cdef void fill_page(self) noexcept nogil
    cdef void choose_way(self) noexcept nogil
    cdef uint64_t first_page(self) noexcept nogil
    cdef int64_t write_head(self) noexcept nogil
    cdef int64_t land_oldest(self, uint64_t wait_ns, iovec *rest) noexcept nogil
    cdef void let_land(self, iovec *rest) noexcept nogil
    cdef void empty_group(self) noexcept nogil
    cdef void count_written(self, uint64_t start, uint64_t end, uint32_t frames) noexcept nogil
    cdef int64_t write_group(self) noexcept nogil
    cdef void write_mark_frame(self, frame_header *frame, uint32_t bytes, uint64_t ts, uint64_t position) noexcept nogil
    cdef void forget_group(self) noexcept nogil
    cdef void begin_file_group(self) noexcept nogil
    cdef void poison_with(self, int error) noexcept nogil
    cdef void clear_read_only(self) noexcept nogil
    cdef int have_next(self, uint64_t frame_bytes, bint privileged) noexcept nogil
    cdef int make_next(self, uint64_t bytes, uint64_t fill_bytes, TailFile *out) noexcept nogil
    cdef int make_sized(self, uint64_t bytes, bint privileged) noexcept nogil
    cdef int rotate(self, uint64_t previous_end) noexcept nogil
    cdef void add_row(self, uint64_t first_position, uint64_t bytes) noexcept nogil
    cdef int sync_pass(self) noexcept nogil
    cdef void count_sync(self, uint64_t took_us) noexcept nogil
    cdef void ring(self, control *bell) noexcept nogil
    cdef int resume_in_void_file(self) noexcept nogil
    cdef int write_copies(self, const TailFile *file, uint64_t previous_end, const iovec *frames, int count, uint8_t *raw,
                          uint64_t total) noexcept nogil
    cdef make_directory(self)
    cdef give_back(self, report)
    cdef sync_file(self, bytes path)
