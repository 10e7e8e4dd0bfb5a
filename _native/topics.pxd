# What happens to a topic when a batch becomes visible, and when records leave: publish, evict, expire, delete.
#
# One thread, the writer's. The shared slot is the topic's state (layout.h); beside it each topic may own heap memory that only the
# writer needs: its idempotency window, its tag index, its ephemeral chunks.
#
# order of stores in `publish`          why
#   index entries, then head (release)  a reader that sees the head finds the entry
#   fence (seq_cst), then the watchers  a waiter sets its bit, fences, looks at the head: one of the two sees the other
#   durable head, before the fence      it lags until the sync (durable.pxd)
#   count, bytes, floors (relaxed)      each is right on its own; a reader that needs them together looks at head last
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from topicsd._native.changes cimport Changes, changes_before
from topicsd._native.dedupe cimport Dedupe
from topicsd._native.durable cimport DurableHeads
from topicsd._native.ephemeral cimport Arena, ChunkList
from topicsd._native.jobs cimport Jobs
from topicsd._native.layout cimport frame_header, index_entry, topic_slot
from topicsd._native.regions cimport Regions
from topicsd._native.tags cimport Tags

cdef struct Private:            # the writer's own memory of one topic; most have none: an append without key or tag makes none
    Dedupe *dedupe
    Tags *tags
    ChunkList chunks
    Jobs *jobs                  # of a queue, NULL until it has a record
    void *outlets               # what leaves this topic through routers (routes.pxd: Outlets), NULL nothing
    void *origin_texts          # where its exactly-once copies come from (routes.pxd: OriginTexts), NULL it has none

cdef struct Core:
    Regions *regions
    Private **privates          # by slot, NULL until needed
    Arena arena
    DurableHeads durable
    Changes changes             # what has changed since which checkpoint
    index_entry *entries        # scratch: the entries of one batch
    uint32_t entries_room
    uint64_t bells              # ring slots to ring at the end of the turn, a bit each
    uint64_t wall_ms            # of this turn
    int64_t mono_ms
    uint32_t *timed_queues      # slots of queues that have leases or delays
    uint32_t timed_queues_used, timed_queues_room
    bint closing                # the heap goes; the shared words may be another engine's by now
    bint replaying              # records expire by floor frames alone: the ttl of then is not known
    # Set by routes.pxd: who routes, called when a batch has come into a topic with outlets, and when a topic goes.
    void *forwarder
    void (*note_batch)(Core *core, uint32_t slot, const frame_header *frame) noexcept nogil
    void (*forget_topic)(Core *core, uint32_t slot, Private *own) noexcept nogil

# Say that what a snapshot keeps of a topic is about to change: before the first store of the change.
cdef inline void touch(Core *core, uint32_t slot) noexcept nogil:
    if core.changes.stamps[slot] != core.changes.now:
        changes_before(&core.changes, core, slot)

cdef int core_open(Core *core, Regions *regions, uint64_t ephemeral_bytes_max) noexcept nogil
cdef void core_close(Core *core) noexcept nogil
cdef Private *private_of(Core *core, uint32_t slot) noexcept nogil         # NULL when memory is short
cdef void private_drop(Core *core, uint32_t slot) noexcept nogil
cdef uint64_t batch_payload(const frame_header *frame, uint32_t *records, uint32_t *largest) noexcept nogil   # 0 records: malformed
cdef int publish(Core *core, uint32_t slot, const frame_header *frame, uint64_t source_position) noexcept nogil
# The end of each publication, once the entries stand in the index and `core.entries` holds them: counters, head, caps, watchers.
cdef void came_in(Core *core, uint32_t slot, Private *own, uint64_t first_seq, uint32_t count, uint64_t bytes, uint64_t ts) noexcept nogil
cdef int entries_room(Core *core, uint32_t count) noexcept nogil                                              # of core.entries; 0 or -1
cdef uint64_t expire(Core *core, uint32_t slot, uint64_t now_ms, uint64_t records_max) noexcept nogil         # records lost
cdef void leave_out(Core *core, topic_slot *topic, uint64_t unreadable) noexcept nogil      # of what is shown: UNREADABLE_*, of layout.h
cdef void came_to_bytes(Core *core, topic_slot *topic, int64_t bytes) noexcept nogil    # records that are there have become longer
cdef uint64_t evict(Core *core, uint32_t slot) noexcept nogil
cdef uint64_t delete_before(Core *core, uint32_t slot, uint64_t before_seq) noexcept nogil
cdef uint64_t delete_matching(Core *core, uint32_t slot, uint32_t kind, const uint8_t *tag, uint32_t tag_bytes,
                              uint64_t before_seq) noexcept nogil
# Of `seqs`, ascending, delete the live ones; returns how many.
cdef uint64_t delete_seqs(Core *core, uint32_t slot, const uint64_t *seqs, uint32_t count) noexcept nogil
# A queue's work state, made when there is none yet (NULL: memory is short); and after each change of it: counters shown, timers noted.
cdef Jobs *jobs_of(Core *core, uint32_t slot) noexcept nogil
cdef void jobs_changed(Core *core, uint32_t slot) noexcept nogil
cdef void lose_through(Core *core, uint32_t slot, uint64_t ttl_lost, uint64_t cap_lost) noexcept nogil
cdef int leave_hole(Core *core, uint32_t slot, uint64_t last_seq, uint32_t reason) noexcept nogil
cdef void job_gone(Core *core, topic_slot *topic, uint64_t seq) noexcept nogil       # a live record leaves: of a queue, its job too
cdef void wake_watchers(Core *core, uint32_t slot) noexcept nogil
