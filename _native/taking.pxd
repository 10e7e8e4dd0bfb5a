# A checkpoint in the writer's hands: one moment, packed afterwards in slices, while writes go on (changes.pxd has the picture).
#
#   begin           nothing is in flight: the moment. `changes.now` moves on; a look at each slot is due
#   step, step ..   a few slots each, between the writer's turns
#   touch           a slot that is about to change before its turn has come is packed first
#   done            no slot is left: topics, jobs, notes are three buffers that another thread writes
#
# Packed is what changed since `parent`; what did not is in the snapshots below. `needed`, by shard: the lowest log position that any topic pointed at
# at the moment, packed or not: no file above it may go.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from topicsd._native.checkpoint cimport Packed
from topicsd._native.engine_core cimport EngineCore
from topicsd._native.topics cimport Core

cdef class Taking:
    cdef EngineCore engine
    cdef readonly Packed topics, jobs, notes
    cdef uint64_t low[8]          # by shard, inverted as in Changes.lows
    cdef uint64_t moment[8]
    cdef uint64_t wall_ms
    cdef readonly uint64_t next_token
    cdef int64_t mono_ms
    cdef readonly uint64_t topics_packed
    cdef int failed

    cdef void set_moment(self)
    cdef void fold(self, Core *core, uint32_t slot) noexcept nogil
    cdef int pack(self, Core *core, uint32_t slot, bint keep) noexcept nogil
    cdef void see(self, Core *core, uint32_t slot) noexcept nogil
    cdef int slice(self, Core *core, int64_t until_ns, uint64_t slots_max) noexcept nogil
