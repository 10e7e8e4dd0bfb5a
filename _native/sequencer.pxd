# The sequencer: one nogil turn over all rings. It gives seq and ts, stamps and hashes frames, writes them, publishes, answers.
#
#   drain -> admit (key, caps, quota) -> seq, ts, ceiling -> place, stamp, queue -> flush -> publish or wait -> answer
#
# A batch is in one of three places, in this order, and first in is first out per topic:
#   group     stamped and queued, not yet written; a failed flush takes all of it back
#   pending   written, waits for `synced` to pass its end: class fsync, a seq above the durable ceiling, or a batch of a topic that
#             has such a batch before it. Nothing of it is visible: no head, no key, no floor, no tag
#   published visible and answered; in a source of routers it is `held` until its copies are on their way
#
# Routers: `forward` runs behind each flush (`forwarding` keeps it from running inside itself). It queues a cursor frame and batches of copies like
# any others and flushes again, so copies are written, failed and published by the rules above. A batch of a source is answered once every route of
# it had its turn, or once FORWARD_BEFORE_ANSWER steps were spent; then control.forward_debt is set before the bells ring, and readers of
# destinations wait that moment (copies.pxd).
#
# The payload of a batch stays in its ring (or spill slot) until it is published, so nothing is copied on the way.
# Everything here belongs to the writer's one thread. Shared words: see topics.pxd, ring.pxd, log.pxd.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from topicsd._native.batch cimport Batch, Queue
from topicsd._native.direct_io cimport FLIGHTS_MAX
from topicsd._native.layout cimport completion, frame_header, topic_slot
from topicsd._native.log cimport Shard
from topicsd._native.routes cimport Forwarder, Gathered, Route, Step
from topicsd._native.topics cimport Core, Private

cdef class Sequencer:
    cdef Core core
    cdef object shared
    cdef object shards              # keeps the Shard objects alive
    cdef void *shard[8]
    cdef int shard_count
    cdef Queue group
    cdef uint64_t flight_end[FLIGHTS_MAX]   # what is being written in the background: the group up to here each, the oldest first
    cdef uint32_t flights
    cdef Queue pending[8]
    cdef Queue finished             # library mode: answers nobody has fetched
    cdef Queue calls                # commands for Python
    cdef uint64_t taken[64]         # per ring: next descriptor to look at
    cdef uint64_t released[64]
    cdef uint8_t *done[64]          # per ring: descriptor is finished
    cdef uint32_t *raised           # slots whose ceiling stands above the head, a ring
    cdef uint64_t raised_mask, raised_first, raised_end
    cdef uint64_t *ids              # topic id -> slot, open addressing; replay only
    cdef uint64_t ids_mask, ids_used
    cdef uint64_t bytes_max, keys_max, started_ns
    cdef uint64_t pending_bytes     # of batches not yet published, for the quota
    cdef uint64_t newest_ts         # of any batch
    cdef uint64_t orphans           # replay: records of topics that no frame has created
    cdef uint64_t disorders         # replay: frames whose seqs do not follow
    cdef uint64_t route_disorders   # replay: cursor frames of unknown routers, or whose seqs do not follow
    cdef object replayer
    cdef dict failed                # shard -> positions of frames written and never published
    cdef bint threaded, ordered
    cdef Forwarder forwarder        # routers (routes.pxd)
    cdef Queue held                 # published in a source, answered once the copies are on their way
    cdef bint forwarding            # a turn of the forwarder is on: it flushes by itself
    cdef dict routed_hints          # replay: route -> (cursor, copies) from frames that stood before its own
    cdef int64_t wake_at_ms         # monotonic: a turn is due then, whatever the rings say

    cdef void finish(self, Batch *batch, uint32_t outcome) noexcept nogil
    cdef void _done(self, int ring, uint64_t cursor) noexcept nogil
    cdef bint _answer_known_key(self, Batch *batch, topic_slot *topic, Private *own) noexcept nogil
    cdef uint32_t _refusal(self, Batch *batch, topic_slot *topic, Private *own) noexcept nogil
    cdef uint64_t _freed_by(self, Batch *batch, topic_slot *topic) noexcept nogil
    cdef int admit(self, Batch *batch) noexcept nogil
    cdef uint32_t _measure(self, Batch *batch) noexcept nogil
    cdef uint32_t _stamp(self, Batch *batch, topic_slot *topic, Private *own) noexcept nogil
    cdef int _place(self, uint32_t number, uint32_t bytes, bint privileged, uint64_t *position) noexcept nogil
    cdef void _ask_ceiling(self, uint32_t slot, topic_slot *topic, uint64_t ceiling) noexcept nogil
    cdef int _queue_small(self, Batch *batch, uint32_t slot, topic_slot *topic, int type, uint64_t base_seq) noexcept nogil
    cdef void _remember_raised(self, uint32_t slot) noexcept nogil
    cdef void _publish(self, Batch *batch) noexcept nogil
    cdef void _publish_copies(self, Batch *batch) noexcept nogil
    cdef void _fail_copies(self, Batch *batch, topic_slot *topic) noexcept nogil
    cdef uint64_t _step(self, Route *route, uint64_t head) noexcept nogil
    cdef bint _add_step(self, Route *route, Gathered *found, uint32_t count) noexcept nogil
    cdef void _write_steps(self) noexcept nogil
    cdef void _queue_copies(self, const Step *step, uint64_t end) noexcept nogil
    cdef void _undo_steps(self) noexcept nogil
    cdef bint _write_out(self, Route *route, Gathered *found, uint32_t count) noexcept nogil
    cdef void _block(self, Route *route, uint32_t outcome) noexcept nogil
    cdef bint _pass(self, int64_t *work) noexcept nogil
    cdef void forward(self, int64_t work) noexcept nogil
    cdef void _forward_and_answer(self) noexcept nogil
    cdef void _fail_routed(self, Batch *batch) noexcept nogil
    cdef void _replay_routed(self, const frame_header *frame) noexcept nogil
    cdef int _hint(self, uint32_t number, uint64_t cursor, uint32_t count) noexcept
    cdef void _settled(self, Batch *batch, topic_slot *topic) noexcept nogil
    cdef void _fail(self, Batch *batch) noexcept nogil
    cdef int flush_group(self) noexcept nogil
    cdef bint _launch(self) noexcept nogil
    cdef int _land(self) noexcept nogil
    cdef int _land_oldest(self, uint64_t wait_ns) noexcept nogil
    cdef void _next_flight(self) noexcept nogil
    cdef void _settle_group(self, int failed, uint64_t end) noexcept nogil
    cdef void release_synced(self) noexcept nogil
    cdef void _show_pending(self, int number) noexcept nogil
    cdef int _note_failed(self, int number, uint64_t position) noexcept
    cdef int turn_rings(self) noexcept nogil
    cdef void _end_turn(self) noexcept nogil
    cdef void _forget_watcher(self, int ring) noexcept nogil
    cdef void _sync_shard(self, Shard shard) noexcept
    cdef int replay_append(self, const frame_header *frame, uint64_t position) noexcept nogil
    cdef uint32_t _slot_of(self, uint64_t topic_id) noexcept nogil

    # ---- queues: overridden in queue_core.pyx
    cdef void queue_command(self, Batch *batch, uint32_t kind, const uint8_t *payload, uint32_t payload_bytes) noexcept nogil
    cdef void queue_turn(self) noexcept nogil                                   # what is due now, before the group is flushed
    cdef void queue_publish(self, Batch *batch) noexcept nogil                  # its frame counts: do what it says, answer
    cdef void queue_failed(self, Batch *batch) noexcept nogil                   # its frame does not count: take back what it has done
    cdef const uint8_t *queue_answer(self, Batch *batch, completion *answer) noexcept nogil
    cdef uint64_t queue_waiting(self) noexcept nogil                            # batches that wait for Python
    cdef void queue_ring_gone(self, int ring) noexcept nogil
