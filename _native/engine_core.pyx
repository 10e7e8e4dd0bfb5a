"""The engine's door to the sequencer (see engine_core.pxd)."""

import os

cimport cython

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EROFS
from libc.stdint cimport int64_t, uint32_t, uint64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from topicsd._native.atomics cimport clock_mono_ns, load_relaxed_64, store_relaxed_64
from topicsd._native.batch cimport BATCH_APPEND, Batch, free_owned, queue_at, queue_push
from topicsd._native.direct_io cimport FLIGHTS_MAX
from topicsd._native.durable cimport durable_settle
from topicsd._native.files cimport WRITE_ENDS, FileSystem
from topicsd._native.frame cimport frame_seal
from topicsd._native.index cimport index_at, index_reset
from topicsd._native.layout cimport (
    CLASS_EPHEMERAL, CLASS_FSYNC, COMPLETION_CREATED, DISCARD_OLD, DISCARD_REJECT, FRAME_APPEND, FRAME_CEILING, FRAME_HEADER_BYTES, FRAME_LEASE,
    FRAME_MAGIC, FRAME_ROUTER_CURSOR, FRAME_SEGMENT, FRAME_TOPIC_CREATE, MATCH_NONE, NO_SLOT, OUTCOME_OK, POSITION_BITS, SHARDS_MAX,
    SOURCE_EPHEMERAL, TOPIC_AUTO_CREATE, TOPIC_AUTO_PRIORITY, TOPIC_DEDUPE_NODE, TOPIC_HAS_PRIORITY, TOPIC_LEASES_DURABLE,
    TOPIC_LOG, TOPIC_QUEUE, UNREADABLE_BYTES_BITS, frame_header, index_entry, topic_config, topic_slot,
)
from topicsd._native.log cimport Shard
from topicsd._native.log_walk cimport walk
from topicsd._native.maps cimport maps_drop_retired
from topicsd._native.order cimport order_build, order_insert, order_remove, order_reset
from topicsd._native.replay_core cimport REPLAY_DONE, REPLAY_LEFT, ReplayCore, Replayed
from topicsd._native.routes cimport (
    ROUTE_TEXT_MAX, Outlets, Route, forwarder_files, forwarder_queue, notes_delete, outlets_of, replay_cursors, route_add, route_change,
    route_of, route_remove,
)
from topicsd._native.sealed cimport rows_drop_all, sealed_sweep, sealed_turn, segment_files_reset
from topicsd._native.table cimport (
    config_dead_letter, config_set_dead_letter, table_configure, table_find, table_insert, table_remove, table_reset,
)
from topicsd._native.topics cimport (
    Private, batch_payload, delete_before, delete_matching, evict, expire, leave_hole, leave_out, lose_through, private_drop, touch, wake_watchers,
)

cdef enum:
    CEILING_IDLE_MS = 1000
    SETTLE_WORK = 1 << 16
    SETTLE_TURNS_MAX = 1 << 16      # a cycle of routers ends by its hop cap; this ends a bug

DURABILITIES = ("ephemeral", "memory", "disk", "fsync")    # by enum durability_class


@cython.no_gc_clear
cdef class EngineCore(ReplayCore):
    """The sequencer with a door for the engine's commands: one thread, the writer's (ARCHITECTURE section 1)."""

    def __cinit__(self, *args):
        self.gone = []

    # ---- commands of the engine ----------------------------------------------------------------------------------------------------------------

    def take_call(self):
        """Return the next command as (JSON bytes, has a batch), or None; what was written before it has been forwarded by then."""
        cdef Batch *batch
        cdef uint32_t *sizes
        if self.calls.first == self.calls.end:
            return None
        self.settle_routes()
        batch = queue_at(&self.calls, self.calls.first)
        sizes = <uint32_t *>batch.frame
        return PyBytes_FromStringAndSize(<char *>(sizes + 2), sizes[0]), sizes[1] != 0

    def answer_call(self, bytes answer, wait_slot=None):
        """Answer the command that `take_call` showed; with a slot, once everything written so far to its shard is synced."""
        cdef Batch batch = queue_at(&self.calls, self.calls.first)[0]
        cdef uint32_t number
        self.calls.first += 1
        batch.answer = <uint8_t *>malloc(len(answer) + 1)
        if batch.answer == NULL:
            raise MemoryError
        memcpy(batch.answer, PyBytes_AS_STRING(answer), len(answer))
        batch.answer_bytes = <uint32_t>len(answer)
        batch.frame = NULL
        batch.slot = NO_SLOT
        if wait_slot is None:
            self.finish(&batch, OUTCOME_OK)
            return
        number = <uint32_t>self.core.regions.table[<uint32_t>wait_slot].shard
        batch.waits = 1
        batch.slot = <uint32_t>wait_slot
        batch.end = (<Shard>self.shard[number]).written()
        batch.written_ns = clock_mono_ns()
        batch.durable = 1
        queue_push(&self.pending[number], &batch)
        with nogil:
            (<Shard>self.shard[number]).ask_sync()

    def append_call(self, uint32_t slot, bint created):
        """Append the batch of the command that `take_call` showed to a topic that is there now; it answers as any append does."""
        cdef Batch batch = queue_at(&self.calls, self.calls.first)[0]
        cdef uint32_t *sizes = <uint32_t *>batch.frame
        self.calls.first += 1
        batch.kind = BATCH_APPEND
        batch.frame = <frame_header *>(<uint8_t *>(sizes + 2) + ((sizes[0] + 7) & ~<uint32_t>7))
        batch.answer_bytes = 0
        batch.slot = slot
        batch.topic_id = self.core.regions.table[slot].topic_id
        batch.flags = COMPLETION_CREATED if created else 0
        with nogil:
            self.admit(&batch)

    def append_frame(self, uint32_t slot, bytes frame, uint64_t token, uint64_t wall_ms, int64_t mono_ms):
        """Append one encoded frame (library mode); the answer comes through `take_finished`."""
        cdef Batch batch
        self._append_of(&batch, slot, frame, token)
        self.core.wall_ms = wall_ms
        self.core.mono_ms = mono_ms
        with nogil:
            self.admit(&batch)

    def flush(self):
        """Write what was admitted (library mode)."""
        cdef int failed
        with nogil:
            failed = self.flush_group()
        return failed

    def launch(self):
        """Begin to write what was admitted in the background, behind what flies already (library mode). Tell whether something flies."""
        with nogil:
            if self.flights == FLIGHTS_MAX:
                self._land_oldest(WRITE_ENDS)
            if not self._launch():
                self._land()
        return self.flights != 0

    def take_finished(self):
        """Return the next answer of library mode as (token, outcome, flags, first_seq, count, head), or None."""
        cdef Batch *batch
        if self.finished.first == self.finished.end:
            return None
        batch = queue_at(&self.finished, self.finished.first)
        self.finished.first += 1
        free_owned(batch)
        head = 0 if batch.slot == NO_SLOT else self.core.regions.table[batch.slot].head
        return batch.token, batch.outcome, batch.flags, batch.first_seq, batch.count, head

    def log_frame(self, uint32_t shard_number, int type, int flags, uint64_t topic_id, uint64_t base_seq, uint64_t ts, bytes body,
                  bint privileged):
        """Write one control frame now, in order with everything before it; return the position of its end.

        Raises OSError with the shard's errno when it takes no writes.
        """
        cdef uint32_t bytes_total = <uint32_t>((FRAME_HEADER_BYTES + len(body) + 7) & ~<uint64_t>7)
        cdef frame_header *frame
        cdef uint64_t position = 0
        cdef int result
        with nogil:
            self.flush_group()
            result = self._place(shard_number, bytes_total, privileged, &position)
        if result != 0:
            raise OSError(-result if result < 0 else EROFS, "the log takes no writes")
        frame = <frame_header *>calloc(1, bytes_total)
        if frame == NULL:
            raise MemoryError
        frame.magic = FRAME_MAGIC
        frame.length = bytes_total
        frame.type = <uint8_t>type
        frame.flags = <uint8_t>flags
        frame.shard = <unsigned short>shard_number
        frame.topic_id = topic_id
        frame.base_seq = base_seq
        frame.ts = ts
        frame.synced = load_relaxed_64(&(<Shard>self.shard[shard_number]).line.synced)
        frame.position = position
        memcpy(<uint8_t *>frame + FRAME_HEADER_BYTES, PyBytes_AS_STRING(body), len(body))
        with nogil:
            frame_seal(frame)
            (<Shard>self.shard[shard_number]).queue(frame, bytes_total)
            result = (<Shard>self.shard[shard_number]).flush()
        free(frame)
        if result != 0:
            raise OSError(-result, "the log could not be written")
        return position + bytes_total

    def set_now(self, uint64_t wall_ms, int64_t mono_ms):
        """Set the time of what follows."""
        sealed_turn(self.core.regions)
        self.core.wall_ms = wall_ms
        self.core.mono_ms = mono_ms

    def set_replaying(self, bint replaying):
        """Say whether what comes is replayed: then records expire by floor frames alone."""
        self.core.replaying = replaying

    def delete_before(self, uint32_t slot, uint64_t before_seq):
        """Delete the live records below `before_seq`; return how many."""
        cdef uint64_t deleted
        cdef Outlets *outlets = outlets_of(&self.core, slot)
        with nogil:
            deleted = delete_before(&self.core, slot, before_seq)
            if outlets != NULL:
                notes_delete(outlets, MATCH_NONE, NULL, 0, before_seq)
        return deleted

    def delete_matching(self, uint32_t slot, uint32_t kind, bytes tag, uint64_t before_seq):
        """Delete the live records below `before_seq` whose tag matches; return how many."""
        cdef uint64_t deleted
        cdef const uint8_t *text = <const uint8_t *>PyBytes_AS_STRING(tag)
        cdef uint32_t tag_bytes = <uint32_t>len(tag)
        cdef Outlets *outlets = outlets_of(&self.core, slot)
        with nogil:
            deleted = delete_matching(&self.core, slot, kind, text, tag_bytes, before_seq)
            if outlets != NULL:
                notes_delete(outlets, kind, text, tag_bytes, before_seq)
        return deleted

    def expire(self, uint32_t slot, uint64_t now_ms, uint64_t records_max):
        """Remove expired records from the old end; return how many."""
        return expire(&self.core, slot, now_ms, records_max)

    def evict(self, uint32_t slot):
        """Remove records above the caps, after the caps were tightened; return how many."""
        return evict(&self.core, slot)

    def lose_through(self, uint32_t slot, uint64_t ttl_lost, uint64_t cap_lost):
        """Apply durable floors."""
        lose_through(&self.core, slot, ttl_lost, cap_lost)

    def leave_hole(self, uint32_t slot, uint64_t last_seq, uint32_t reason):
        """Jump the head over seqs that were handed out and are lost."""
        if leave_hole(&self.core, slot, last_seq, reason) != 0:
            raise MemoryError

    def drop(self, uint32_t slot):
        """Free what the writer itself holds of a topic that is going."""
        private_drop(&self.core, slot)

    def wake(self, uint32_t slot):
        """Wake everyone who waits for this topic."""
        wake_watchers(&self.core, slot)

    def topic(self, uint32_t slot):
        """Return the writer's words of a topic by name."""
        cdef topic_slot *topic = &self.core.regions.table[slot]
        return {
            "topic_id": topic.topic_id, "head": topic.head, "durable_head": topic.durable_head, "earliest": topic.earliest,
            "cap_lost": topic.cap_lost, "ttl_lost": topic.ttl_lost, "hole_lost": topic.hole_lost, "count": topic.count,
            "bytes": topic.bytes, "next_seq": topic.next_seq,
            "last_ts": topic.last_ts, "ceiling_durable": topic.ceiling_durable, "ceiling_asked": topic.ceiling_asked, "shard": topic.shard,
            "pending_batches": topic.pending_batches, "durability": topic.config.durability,
            "last_position": topic.last_position,
            "unreadable_records": topic.unreadable >> UNREADABLE_BYTES_BITS,
            "unreadable_bytes": topic.unreadable & ((<uint64_t>1 << UNREADABLE_BYTES_BITS) - 1),
        }

    def idle_ceilings(self, int64_t mono_ms, int most):
        """Return up to `most` slots whose ceiling is above their head and that nobody has written for a second."""
        cdef list idle = []
        cdef uint64_t looked = 0, length = self.raised_end - self.raised_first
        cdef uint32_t slot
        cdef topic_slot *topic
        while looked < length and looked < 4096 and len(idle) < most:
            looked += 1
            slot = self.raised[self.raised_first & self.raised_mask]
            self.raised_first += 1
            topic = &self.core.regions.table[slot]
            if not topic.raised or topic.topic_id == 0:
                continue
            topic.raised = 0
            if topic.ceiling_asked <= topic.head:
                continue
            if mono_ms >= 0 and (mono_ms - topic.written_ms < CEILING_IDLE_MS or topic.pending_batches):
                self._remember_again(slot)
                continue
            idle.append(slot)
        return idle

    cdef void _remember_again(self, uint32_t slot) noexcept:
        cdef int64_t written_ms = self.core.regions.table[slot].written_ms
        self._remember_raised(slot)
        self.core.regions.table[slot].written_ms = written_ms

    # ---- routers ---------------------------------------------------------------------------------------------------------------

    def open_routes(self, bytes data_dir):
        """Say where log files are: what notes no longer hold is read from there."""
        cdef int failure = forwarder_files(&self.forwarder, data_dir)
        if failure != 0:
            raise OSError(-failure, os.strerror(-failure))

    def sweep(self):
        """Unmap files that have been retired: the disk has none of their room back before. Between two turns."""
        if self.forwarder.maps_open:
            maps_drop_retired(&self.forwarder.maps)
        sealed_sweep(self.core.regions)

    def add_route(self, uint32_t number, uint32_t source, uint32_t dest, uint64_t cursor, uint32_t flags, uint32_t kind, bytes match, bytes text):
        """Make a route from one slot to another; it begins behind `cursor`. `text` begins what exactly-once copies say in their meta."""
        cdef Route route
        memset(&route, 0, sizeof(Route))
        if len(text) > ROUTE_TEXT_MAX or number == 0 or route_of(&self.forwarder, number) != NULL:
            raise ValueError(number)
        route.number, route.source, route.dest, route.cursor, route.flags = number, source, dest, cursor, flags
        route.source_id = self.core.regions.table[source].topic_id
        route.dest_id = self.core.regions.table[dest].topic_id
        route.match_kind, route.match_bytes, route.text_bytes = kind, <uint32_t>len(match), <uint32_t>len(text)
        memcpy(route.text, PyBytes_AS_STRING(text), len(text))
        touch(&self.core, source)
        if route_add(&self.forwarder, &route, <const uint8_t *>PyBytes_AS_STRING(match)) != 0:
            raise MemoryError

    cdef Route *_route(self, uint32_t number) except NULL:
        cdef Route *route = route_of(&self.forwarder, number)
        if route == NULL:
            raise KeyError(number)
        return route

    def change_route(self, uint32_t number, uint32_t flags, uint32_t kind, bytes match):
        """Change what a route forwards, from its cursor on."""
        touch(&self.core, self._route(number).source)
        if route_change(&self.forwarder, self._route(number), flags, kind, <const uint8_t *>PyBytes_AS_STRING(match), <uint32_t>len(match)) != 0:
            raise MemoryError

    def remove_route(self, uint32_t number):
        """Take a route out; nothing of it may be in flight (wait_synced of its destination)."""
        touch(&self.core, self._route(number).source)
        route_remove(&self.forwarder, self._route(number))

    def route(self, uint32_t number):
        """Return the numbers of a route by name."""
        cdef Route *route = self._route(number)
        return {
            "cursor": route.cursor, "forwarded": route.forwarded, "lost": route.lost, "blocked": route.blocked, "source": route.source,
            "dest": route.dest, "flags": route.flags, "skip_first": route.skip_first, "skip_last": route.skip_last,
        }

    def set_route(self, uint32_t number, uint64_t cursor, uint64_t forwarded, uint64_t lost):
        """Set what recovery knows of a route."""
        cdef Route *route = self._route(number)
        touch(&self.core, route.source)
        route.cursor, route.forwarded, route.lost = cursor, forwarded, lost

    def skip_in_route(self, uint32_t number, uint64_t first_seq, uint64_t last_seq):
        """Let a route pass these seqs of its source in silence: recovery has told their loss in the destination."""
        cdef Route *route = self._route(number)
        touch(&self.core, route.source)
        route.skip_first, route.skip_last = first_seq, last_seq

    cdef int _replay_cursors(self, const frame_header *frame) noexcept nogil:
        cdef int result = replay_cursors(&self.forwarder, frame)
        self.route_disorders += result > 0
        return -1 if result < 0 else 0

    def routed_hint(self, uint32_t number):
        """Return (cursor, copies) of a route's frames that replay met before the route itself."""
        return self.routed_hints.pop(number, (0, 0))

    def settle_routes(self):
        """Forward what has been published, but for back-fills and what is blocked."""
        cdef uint64_t turns = 0
        with nogil:
            while self.forwarder.hot and turns < SETTLE_TURNS_MAX:
                self.forward(SETTLE_WORK)
                turns += 1

    def retry_routes(self, bint at_once):
        """Queue the routes that were blocked and are due, or all of them; return how many are still blocked."""
        cdef uint32_t number, blocked = 0
        cdef Route *route
        if not self.forwarder.blocked:
            return 0
        for number in range(self.forwarder.routes_room):
            route = self.forwarder.routes[number]
            if route == NULL or not route.blocked:
                continue
            blocked += 1
            if at_once:
                route.retry_ms = self.core.mono_ms
                route.wait_ms = 0
            if route.retry_ms <= self.core.mono_ms:
                forwarder_queue(&self.forwarder, route.source)
        self.forwarder.blocked = blocked != 0
        return blocked

    def forward_some(self, int64_t work):
        """Forward for so many steps (library mode); tell whether a source still waits."""
        with nogil:
            self.forward(work)
        return self.forwarder.queue_first != self.forwarder.queue_end

    @property
    def copies_made(self):
        """How many copies routers have made since the start."""
        return self.forwarder.copies

    # ---- the table, for the engine ----------------------------------------------------------------------------------------------

    def reset_tables(self):
        """Empty the shared tables: a writer starts from its log alone."""
        table_reset(self.core.regions)
        segment_files_reset(self.core.regions)
        index_reset(self.core.regions)
        order_reset(self.core.regions)
        self.core.regions.control.records_live = self.core.regions.control.bytes_live = self.core.regions.control.topics = 0
        self.core.regions.control.records_unreadable = self.core.regions.control.bytes_unreadable = 0
        self.core.regions.control.queue_topics = 0
        memset(self.core.regions.control.topics_by_class, 0, 4 * sizeof(uint64_t))

    def settle_durable_heads(self):
        """Say that every head is durable: called once, when all that the log has shown is synced."""
        durable_settle(self.core.regions)

    def build_order(self):
        """Sort all names once, after replay; from here on each creation and removal keeps the order."""
        order_build(self.core.regions)
        self.ordered = True

    def find(self, bytes name):
        """Return a topic's slot, or None."""
        cdef uint32_t slot = table_find(self.core.regions, PyBytes_AS_STRING(name), <uint32_t>len(name))
        return None if slot == NO_SLOT else slot

    def create(self, bytes name, uint64_t topic_id, dict config):
        """Put a topic into the table; return its slot, or None when the table is full."""
        cdef topic_config packed
        cdef uint32_t slot
        self._pack(&packed, config)
        slot = table_insert(self.core.regions, PyBytes_AS_STRING(name), <uint32_t>len(name), topic_id, &packed)
        if slot == NO_SLOT:
            return None
        self.core.changes.stamps[slot] = self.core.changes.now    # what stood there before was packed when it went
        if self.ordered:
            order_insert(self.core.regions, slot)
        self._count_topic(&packed, 1)
        return slot

    def configure(self, uint32_t slot, dict config):
        """Set a topic's config."""
        cdef topic_config packed
        touch(&self.core, slot)
        self._count_topic(&self.core.regions.table[slot].config, -1)
        self._pack(&packed, config)
        table_configure(self.core.regions, slot, &packed)
        self._count_topic(&packed, 1)

    def remove(self, uint32_t slot):
        """Take a topic out of the table and free all it held."""
        cdef topic_slot *topic = &self.core.regions.table[slot]
        cdef uint32_t shard
        touch(&self.core, slot)
        self.gone.append((self.core.changes.now, topic.topic_id))
        for shard in range(self.core.changes.shards):
            self.core.changes.lows[<uint64_t>slot * self.core.changes.shards + shard] = 0
        store_relaxed_64(&self.core.regions.control.records_live, self.core.regions.control.records_live - topic.count)
        store_relaxed_64(&self.core.regions.control.bytes_live, self.core.regions.control.bytes_live - topic.bytes)
        leave_out(&self.core, topic, 0)
        self._count_topic(&topic.config, -1)
        if self.ordered:
            order_remove(self.core.regions, slot)
        private_drop(&self.core, slot)
        rows_drop_all(self.core.regions, topic)
        table_remove(self.core.regions, slot)

    cdef int _pack(self, topic_config *packed, dict config) except -1:
        cdef bytes dead_letter
        memset(packed, 0, sizeof(topic_config))
        packed.ttl_ms = config["ttl_ms"]
        packed.cap_records = config["cap_records"]
        packed.cap_bytes = config["cap_bytes"]
        packed.idempotency_window_ms = config["idempotency_window_ms"]
        packed.max_deliveries = config["max_deliveries"]
        packed.lease_ms = config["lease_ms"]
        packed.claim_jitter_ms = config["claim_jitter_ms"]
        packed.priority = config["priority"] or 0
        packed.type = TOPIC_QUEUE if config["type"] == "queue" else TOPIC_LOG
        packed.discard = DISCARD_REJECT if config["discard"] == "reject" else DISCARD_OLD
        packed.durability = DURABILITIES.index(config["durability"])
        packed.flags = (
            (TOPIC_AUTO_PRIORITY if config["auto_priority"] else 0) | (TOPIC_AUTO_CREATE if config["auto_create"] else 0)
            | (TOPIC_DEDUPE_NODE if config["dedupe_node"] else 0) | (TOPIC_HAS_PRIORITY if config["priority"] is not None else 0)
            | (TOPIC_LEASES_DURABLE if config["leases_durable"] else 0)
        )
        if config["dead_letter"] is not None:
            dead_letter = config["dead_letter"].encode()
            if config_set_dead_letter(self.core.regions, packed, PyBytes_AS_STRING(dead_letter), <uint32_t>len(dead_letter)) != 0:
                raise MemoryError
        return 0

    def config(self, uint32_t slot):
        """Return a topic's config as the JSON object of A 0.10."""
        cdef const topic_config *config = &self.core.regions.table[slot].config
        cdef const char *name
        cdef uint32_t length = 0
        name = config_dead_letter(self.core.regions, config, &length)
        return {
            "type": "queue" if config.type == TOPIC_QUEUE else "log", "ttl_ms": config.ttl_ms, "cap_records": config.cap_records,
            "cap_bytes": config.cap_bytes, "discard": "reject" if config.discard == DISCARD_REJECT else "old",
            "durable": config.durability == CLASS_FSYNC, "durability": DURABILITIES[config.durability],
            "priority": config.priority if config.flags & TOPIC_HAS_PRIORITY else None,
            "auto_priority": bool(config.flags & TOPIC_AUTO_PRIORITY), "auto_create": bool(config.flags & TOPIC_AUTO_CREATE),
            "idempotency_window_ms": config.idempotency_window_ms, "dedupe_node": bool(config.flags & TOPIC_DEDUPE_NODE),
            "lease_ms": config.lease_ms, "claim_jitter_ms": config.claim_jitter_ms, "max_deliveries": config.max_deliveries,
            "dead_letter": name[:length].decode() if length else None, "leases_durable": bool(config.flags & TOPIC_LEASES_DURABLE),
        }

    @property
    def topics(self):
        """How many topics there are."""
        return self.core.regions.control.topics

    @property
    def topics_hard_max(self):
        """How many topics the table can hold."""
        return self.core.regions.topics_max

    @property
    def bytes_live(self):
        """Bytes of live records, in all topics, with those in flight."""
        return self.core.regions.control.bytes_live + self.pending_bytes

    @property
    def shard_total(self):
        """How many shards the log has."""
        return self.shard_count

    @property
    def no_slot(self):
        """The slot number that names no topic."""
        return NO_SLOT

    def is_fsync(self, uint32_t slot):
        """Tell whether a topic's class is fsync."""
        return self.core.regions.table[slot].config.durability == CLASS_FSYNC

    def is_ephemeral(self, uint32_t slot):
        """Tell whether a topic's class is ephemeral."""
        return self.core.regions.table[slot].config.durability == CLASS_EPHEMERAL

    def ttl_ms(self, uint32_t slot):
        """Return a topic's ttl."""
        return self.core.regions.table[slot].config.ttl_ms

    def only_in_memory(self, uint32_t slot):
        """Tell whether a topic is ephemeral and none of its live records stands in the log."""
        cdef topic_slot *topic = &self.core.regions.table[slot]
        cdef index_entry *entry
        if topic.config.durability != CLASS_EPHEMERAL:
            return False
        if topic.count == 0:
            return True
        entry = index_at(self.core.regions, topic, topic.earliest)
        return entry != NULL and entry.position >> POSITION_BITS == SOURCE_EPHEMERAL

    def call_size(self):
        """Return (records, bytes) of the batch of the command that `take_call` showed."""
        cdef Batch *batch = queue_at(&self.calls, self.calls.first)
        cdef uint32_t *sizes = <uint32_t *>batch.frame
        cdef frame_header *frame = <frame_header *>(<uint8_t *>(sizes + 2) + ((sizes[0] + 7) & ~<uint32_t>7))
        cdef uint32_t records, largest
        cdef uint64_t payload = batch_payload(frame, &records, &largest)
        return records, payload

    def slots_to_jump(self, bint ceilings, dict damaged not None):
        """Return the slots of topics whose head may have to jump: its ceiling is above it, or damage stands behind the topic's last frame.

        `ceilings`: of all topics, else of ephemeral ones. `damaged`: by shard, the last position that is damaged.
        """
        cdef uint64_t slot
        cdef uint64_t highest[8]    # SHARDS_MAX
        cdef bint has[8]
        cdef const topic_slot *topic
        cdef list slots = []
        memset(has, 0, sizeof(has))
        for shard, position in damaged.items():
            has[<int>shard], highest[<int>shard] = True, position
        for slot in range(self.core.regions.control.table_high):
            topic = &self.core.regions.table[slot]
            if topic.topic_id == 0:
                continue
            if (topic.ceiling_asked > topic.head and (ceilings or topic.config.durability == CLASS_EPHEMERAL)) or (
                    topic.shard < SHARDS_MAX and has[topic.shard] and highest[topic.shard] > topic.last_position):
                slots.append(slot)
        return slots

    def settle_windows(self):
        """Let idempotency windows go on where they stood: as old as the newest frame says when the clock has stepped back meanwhile."""
        cdef uint64_t slot, number
        cdef int64_t ahead_ms = <int64_t>self.newest_ts - <int64_t>self.core.wall_ms
        cdef Private *own
        if ahead_ms <= 0:
            return
        for slot in range(self.core.regions.control.table_high):
            own = self.core.privates[slot]
            if own != NULL and own.dedupe != NULL:
                touch(&self.core, <uint32_t>slot)
                for number in range(own.dedupe.first, own.dedupe.end):
                    own.dedupe.fifo[number & own.dedupe.fifo_mask].arrived_ms -= ahead_ms

    def set_replayer(self, replayer):
        """Set who is called with each frame that is not an append: (type, shard, topic id, base seq, body, position)."""
        self.replayer = replayer

    def replay_report(self):
        """Return what replay could not place: records of unknown topics, batches out of order."""
        return {"orphans": self.orphans, "disorders": self.disorders, "route_disorders": self.route_disorders}


cdef int replay_visit(void *context, const frame_header *frame, uint64_t position) noexcept nogil:
    cdef uint64_t place = (<uint64_t>frame.shard << POSITION_BITS) | position
    cdef int result
    cdef Replayed replayed = REPLAY_LEFT
    if frame.type == FRAME_APPEND:
        result = (<EngineCore>context).replay_append(frame, place)
        if result == 0:
            (<EngineCore>context).replay_letter(frame)
        return -1 if result < 0 else 0
    if frame.type == FRAME_LEASE:
        result = (<EngineCore>context).replay_lease(frame)
        return -1 if result < 0 else 0
    if frame.type == FRAME_ROUTER_CURSOR:
        return (<EngineCore>context)._replay_cursors(frame)
    if frame.type == FRAME_TOPIC_CREATE:
        replayed = (<EngineCore>context).replay_create(frame, position)
    elif frame.type == FRAME_CEILING:
        replayed = (<EngineCore>context).replay_ceiling(frame)
    elif frame.type == FRAME_SEGMENT:
        replayed = (<EngineCore>context).replay_segment(frame, position)
    if replayed != REPLAY_LEFT:
        return 0 if replayed == REPLAY_DONE else -1
    with gil:
        return _replay_other(<EngineCore>context, frame, position)


cdef int _replay_other(EngineCore sequencer, const frame_header *frame, uint64_t position) noexcept:
    cdef bytes body = PyBytes_FromStringAndSize(<const char *>frame + FRAME_HEADER_BYTES, frame.length - FRAME_HEADER_BYTES)
    try:
        sequencer.replayer(frame.type, frame.shard, frame.topic_id, frame.base_seq, body, position)
    except BaseException as wrong:
        sequencer.replayer.failed = wrong
        return -1
    return 0


def walk_shard(EngineCore sequencer, FileSystem files, directory, uint32_t number, uint64_t from_position=0, uint64_t known=0):
    """Replay one shard, from a position on, into the sequencer's tables; return the walk's report."""
    report = walk(files, os.fsencode(directory), number, from_position, known, replay_visit, <void *>sequencer)
    if report.stopped and sequencer.replayer.failed is None:
        raise MemoryError("replay ran out of memory")
    return report
