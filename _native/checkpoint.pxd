# The rows of topics in a snapshot, packed and back (docs/format/snapshot.md has every byte).
#
#   a topic  | row bytes | struct TopicRow | name | dead letter | sealed ranges, 128 B each | their marks | runs | origins | windows |
#   a run    | first seq | last seq | kind | 24 B an index entry, unless it is a hole |
#
# A row is the topic at one moment: nothing of it is in flight, nothing stands between the log's end and the tables (changes.pxd, taking.pxd see to
# that). So replay goes on at that end, and no frame before it need be looked at again. What an ephemeral record leaves behind is what recovery
# from the log leaves of it: a hole, or nothing.
#
# One thread, the writer's.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from topicsd._native.layout cimport index_entry, topic_config, topic_slot
from topicsd._native.topics cimport Core

cdef struct TopicRow:
    uint64_t topic_id, shard
    topic_config config    # dead_letter is 0
    uint64_t head, earliest, cap_lost, ttl_lost, hole_lost, hole_reason, count, bytes
    uint64_t last_write_ms, last_read_ms, last_ts, ceiling, sealed_through
    uint64_t reserved[3]
    uint32_t name_bytes, dead_letter_bytes, rows, runs, origins, windows

cdef struct RunRow:
    uint64_t first_seq, last_seq
    uint32_t kind          # 0: entries follow; else a hole, its loss_reason
    uint32_t reserved

cdef struct OriginRow:
    uint64_t seq, source
    uint32_t text_bytes, reserved

cdef struct WindowRow:
    uint64_t records_xxh3, first_seq
    int64_t arrived_ms     # wall clock
    uint32_t count, key_bytes

cdef class Packed:
    cdef uint8_t *bytes
    cdef uint64_t used, room
    cdef int64_t now_ms       # the wall clock of the moment, or the newest record's ts when that is later
    cdef int64_t mono_ms      # of the moment
    cdef uint64_t low[8]      # by shard: the lowest position that the topic points at
    cdef Py_ssize_t shape[1]
    cdef Py_ssize_t strides[1]
    cdef int reserve(self, uint64_t wanted) noexcept nogil
    cdef void drop(self) noexcept nogil                  # nobody looks at its bytes any more
    cdef int need(self, uint64_t more) noexcept nogil
    cdef int put(self, const void *from_bytes, uint64_t count) noexcept nogil
    cdef int align(self) noexcept nogil
    cdef void points_at(self, uint64_t position) noexcept nogil
    cdef int topic(self, Core *core, uint32_t slot) noexcept nogil
    cdef int sealed(self, Core *core, const topic_slot *topic) noexcept nogil
    cdef int tail(self, Core *core, const topic_slot *topic, uint64_t row_at) noexcept nogil
    cdef int gone(self, uint64_t *run_at, uint64_t *first, uint64_t seq, uint32_t *runs) noexcept nogil
    cdef uint32_t plain(self, const index_entry *entries, uint32_t most) noexcept nogil
    cdef int hole(self, uint64_t *run_at, uint64_t first, uint64_t last, uint32_t reason, uint32_t *runs) noexcept nogil
    cdef int origins(self, Core *core, const topic_slot *topic, uint32_t *count) noexcept nogil
    cdef int windows(self, Core *core, uint32_t slot, uint32_t *count) noexcept nogil
    cdef void settle_ephemeral(self, TopicRow *row, uint64_t last_kept, uint64_t lead, uint64_t count, uint64_t size, bint keeps_end) noexcept nogil
    cdef void notes(self, Core *core, uint32_t slot) noexcept nogil

# The topic in a slot points at this place of the log (changes.pxd, `lows`).
cdef void low_is(Core *core, uint32_t slot, uint64_t position) noexcept nogil
