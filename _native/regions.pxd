# The shared regions: made once by the arbiter before any fork, at the same address in every process.
#
#   control    512 B + a line a shard + a line a ring slot      layout.h: struct control names the writer of each word
#   table      topics_max slots of 448 B                         writer; a worker only last_read_ms and its watcher bit
#   names      names_mask + 1 words, at most half of them used   writer (table.pxd defines the words)
#   index      index_bytes of slabs                              writer (index.pxd)
#   order      blocks of slots in name order                     writer (order.pxd)
#   files      LOG_FILES_MAX rows a shard                        writer; a row stands before `files` counts it
#   segment_files  SEGMENT_FILES_MAX rows                      writer (sealed.pxd)
#   ephemeral  frames that are in no log file                    writer (ephemeral.pxd)
#   spill      spill_slots bodies too large for a ring           the worker that owns the slot, until it is committed; then the writer
#   spill_owner  a word a slot: 0 free, else token << 8 | ring + 1   a worker by compare-and-swap 0 -> owner; the writer owner -> 0
#   inflight   [ring slot][key]: requests in flight of an API key    that worker only; the arbiter clears a dead one's row
#   rings      RING_SLOTS_MAX struct ring_memory (ring.h)        ring.pxd
#
# All is sparse, zero, MAP_SHARED and MAP_NORESERVE: it costs nothing until it is touched, has no name, and ends with its last process.
# A new writer finds what the dead one left and resets it (table_reset, index_reset, ring_reset_for_generation).
# Who holds a `Regions *` keeps the `Shared` alive: it unmaps when it is collected.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from topicsd._native.layout cimport completion, control, log_file_row, segment_file, submission, topic_slot

cdef extern from "ring.h" nogil:
    const int RING_FREE
    const int RING_LIVE
    const int RING_DEAD
    const uint32_t SPILL_SLOTS
    const uint32_t INFLIGHT_KEYS_MAX

    ctypedef struct RingMemory "struct ring_memory":
        uint64_t state
        uint32_t number
        int32_t bell_fd
        control *control
        uint8_t *data
        uint8_t *completion_data
        uint8_t *spill
        uint64_t spill_slot_bytes
        uint64_t *spill_owner
        uint32_t spill_slots
        uint64_t tail
        uint64_t data_tail
        uint64_t head_seen
        uint64_t sequence
        uint64_t claimed_token
        uint32_t claimed_bytes
        uint32_t claimed_kind
        uint32_t claimed_spill
        uint32_t calls
        uint32_t rang_for
        uint32_t free_count
        uint64_t head
        uint64_t seen
        uint64_t answered
        uint64_t completion_tail
        uint64_t completion_head
        uint32_t armed
        uint64_t dirty_tail
        uint32_t dirty_overflow
        uint64_t dirty_head
        submission *descriptors
        uint64_t *data_end
        uint64_t *pending
        uint16_t *free_indices
        completion *completions
        uint32_t *dirty

cdef struct Regions:
    control *control
    topic_slot *table
    uint64_t topics_max
    uint64_t *names
    uint64_t names_mask
    uint8_t *index
    uint64_t index_bytes
    uint8_t *order
    uint64_t order_bytes
    log_file_row *files
    segment_file *segment_files     # SEGMENT_FILES_MAX
    void *sealed                    # of this process alone: struct Sealed (sealed.pxd), NULL until it reads segments
    uint8_t *ephemeral
    uint64_t ephemeral_bytes        # of the region: EPHEMERAL_SPREAD times what may be in use
    uint8_t *spill
    uint64_t spill_slot_bytes
    uint32_t spill_slots
    uint64_t *spill_owner
    uint32_t *inflight
    RingMemory *rings               # RING_SLOTS_MAX; the first `ring_slots` may be used
    uint32_t ring_slots

cdef class Shared:
    cdef Regions r
    cdef object sealed_owner        # of this process alone: frees r.sealed
    cdef dict fields                # name -> offset, of the u64 words of struct control
    cdef dict shard_fields
    cdef dict worker_fields

    cdef uint64_t *field(self, str name) except NULL
    cdef uint64_t *worker_field(self, uint32_t number, str name) except NULL
    cdef int lay(self, uint64_t index_bytes, uint64_t ephemeral_bytes, uint64_t body_bytes_max) except -1
    cdef int lay_rings(self) except -1
    cdef int name_fields(self) except -1

# Bump the writer's futex word and wake it, asleep or not. Any process, any thread.
cdef void wake_writer(Regions *regions) noexcept nogil
