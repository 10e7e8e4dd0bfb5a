# Durable heads: per topic the highest seq that no power cut takes back. Who reads `strong` is given nothing above it (A 7.2).
#
#   head moves       -> a row remembers (head, end): `end` is how far the shard's log was written then
#   synced moves     -> every row whose end it has passed gives its topic that head
#
# Two marks a topic are enough, however many batches come meanwhile: `pending` waits for the sync that runs or comes next, `last` is what was
# moved since. When pending is synced, last takes its place. So a head is at most one sync late, and memory is bounded by topics.
#
# word                    written by   order     a stale read means
# topic.durable_head      writer       release   a `strong` reader waits a moment longer, never shorter: the sync has returned before the store
#
# The rest is the writer's own heap, one row a slot in sparse memory, and a list of rows with something to wait for by shard.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from topicsd._native.layout cimport topic_slot
from topicsd._native.regions cimport Regions

cdef struct DurableRow:
    uint64_t topic_id
    uint64_t pending_head, pending_end
    uint64_t last_head, last_end
    uint32_t next               # slot + 1 of the next row of its list, 0 none
    uint8_t shard
    uint8_t listed

cdef struct DurableHeads:
    DurableRow *rows
    uint32_t first[8]           # by shard: slot + 1, 0 none
    uint64_t seen[8]            # synced position of the last look

cdef int durable_open(DurableHeads *heads, uint64_t topics_max) noexcept nogil     # 0, -1: memory is short
cdef void durable_close(DurableHeads *heads) noexcept nogil
cdef void durable_moved(DurableHeads *heads, Regions *regions, uint32_t slot) noexcept nogil
cdef void durable_look(DurableHeads *heads, Regions *regions, uint32_t shard) noexcept nogil
cdef void durable_settle(Regions *regions) noexcept nogil      # all heads are durable: what a log shows was synced before it goes on
