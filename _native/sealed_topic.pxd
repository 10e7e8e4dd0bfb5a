# What the writer does to a topic's sealed ranges: take one over from the keeper, delete in it, count in it.
#
#   tail index  | ...first_seq .. last_seq | ... head |      the keeper has built a segment of this range from what it saw some time ago
#   publish     1. what the tail calls deleted and the segment does not yet: marked in the row
#               2. the row stands; sealed_through moves (one lock); 3. the tail's entries and tags go
#
# One thread, the writer's; shared words: sealed.pxd. `count` and `bytes` of the topic are the caller's.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from topicsd._native.layout cimport segment_body, topic_slot
from topicsd._native.topics cimport Core

cdef enum:
    PUBLISHED = 0
    PUBLISH_DEAD = 1       # nothing of it is above the floors any more
    PUBLISH_ORDER = 2      # it does not follow the rows that are there, or ends above the head
    PUBLISH_BROKEN = 3     # its files do not hold what the row says
    PUBLISH_MEMORY = 4

cdef int sealed_admits(const Core *core, uint32_t slot, const segment_body *body) noexcept nogil      # one of the above, nothing is changed
cdef int sealed_publish(Core *core, uint32_t slot, const segment_body *body, uint32_t file) noexcept nogil
# Live records of [first_seq, before_seq), all of it in rows and at or above `earliest`: whole rows by their totals.
cdef void sealed_live(Core *core, topic_slot *topic, uint64_t first_seq, uint64_t before_seq, uint64_t *count, uint64_t *bytes) noexcept nogil
# Mark the live records of rows in [earliest, before_seq) whose tag matches.
cdef void sealed_delete_matching(Core *core, topic_slot *topic, uint32_t kind, const uint8_t *tag, uint32_t tag_bytes, uint64_t before_seq,
                                 uint64_t *deleted, uint64_t *freed) noexcept nogil
