# What the engine's Python commands may do to the sequencer's state: control frames, the topic table, floors, ceilings, replay.
#
# Same thread, same words, same rules as sequencer.pxd. A command sees a settled topic (`wait_synced`): no batch of it is in flight. Its frame
# is written before it is applied, and it is visible at once; only the answer waits for the sync. So a command that a power cut takes
# back was never answered, and one that a failed sync leaves in doubt is copied into the next log file (topicsd/store.py, heal).
from libc.stdint cimport int64_t, uint32_t, uint64_t

from topicsd._native.layout cimport frame_header, topic_config
from topicsd._native.replay_core cimport ReplayCore
from topicsd._native.routes cimport Route
from topicsd._native.topics cimport Private


cdef class EngineCore(ReplayCore):
    cdef public list gone         # (number of the first checkpoint without it, id) of topics that were removed, in order

    cdef Route *_route(self, uint32_t number) except NULL
    cdef int _replay_cursors(self, const frame_header *frame) noexcept nogil
    cdef void _remember_again(self, uint32_t slot) noexcept
    cdef int _pack(self, topic_config *packed, dict config) except -1
