# Replay of the frames that many small topics leave in the log, without Python: create, ceiling, segment. A million topics are a million of each.
#
# What is not exactly like the last one of its kind goes to Python (topicsd/engine/recovery.py), which decides, and tells here what came of it:
#
#   create    the config's text is that of the last topic made     -> its struct is taken as it is
#   segment   the file is the one that the last row led into       -> it is there; the row is admitted and published
#   ceiling   the topic is known                                   -> set
#
# One thread, the writer's; nothing here is shared.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from topicsd._native.layout cimport frame_header, segment_file, topic_config
from topicsd._native.queue_door cimport QueueDoor

cdef enum:
    CONFIG_TEXT_MAX = 2048

cdef enum Replayed:
    REPLAY_FAILED = -1    # memory is short
    REPLAY_LEFT = 0       # for Python
    REPLAY_DONE = 1


cdef class ReplayCore(QueueDoor):
    cdef uint8_t config_text[CONFIG_TEXT_MAX]   # JSON of a config without ttl and dead letter
    cdef uint32_t config_bytes                  # 0: none is known
    cdef topic_config config_of_text
    cdef segment_file last_file                 # as a row's frame names it
    cdef uint32_t last_file_number              # 0: none is known
    cdef uint64_t highest_id                    # of the topics made here

    cdef int learn(self, uint64_t topic_id, uint32_t slot) noexcept nogil
    cdef void place(self, uint32_t slot, uint64_t ceiling, uint32_t shard) noexcept nogil
    cdef void _count_topic(self, const topic_config *config, int64_t change) noexcept nogil
    cdef Replayed replay_create(self, const frame_header *frame, uint64_t position) noexcept nogil
    cdef Replayed replay_ceiling(self, const frame_header *frame) noexcept nogil
    cdef Replayed replay_segment(self, const frame_header *frame, uint64_t position) noexcept nogil
