# A queue's work state, packed for a snapshot: key u64 | position u64 | shard u32 | body bytes u32 | struct jobs_row | struct job_row each
# (queue_door.pxd says what they mean and brings them back). One thread, the writer's; nothing of the queue in flight.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from topicsd._native.checkpoint cimport Packed
from topicsd._native.topics cimport Core

cdef struct RowHead:
    uint64_t key, position
    uint32_t shard, body_bytes

# `moment`: the position behind the last frame that is in the row. 0, -ENOMEM.
cdef int pack_jobs(Packed out, Core *core, uint32_t slot, uint64_t moment, uint64_t next_token, uint64_t wall_ms, int64_t mono_ms) noexcept nogil
