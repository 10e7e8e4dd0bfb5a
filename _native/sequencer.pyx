"""The sequencer (see sequencer.pxd)."""

cimport cython

from libc.errno cimport EROFS
from libc.stdint cimport int64_t, uint32_t, uint64_t, uint8_t
from libc.stdlib cimport abort, calloc, free, malloc, realloc
from libc.string cimport memset
from posix.time cimport nanosleep, timespec

from topicsd._native.atomics cimport (
    and_64, clock_mono_ns, clock_wall_ms, load_acquire_64, load_relaxed_64, store_relaxed_64, store_release_64, store_seq_cst_64,
)
from topicsd._native.batch cimport (
    BATCH_APPEND, BATCH_CALL, BATCH_CEILING, BATCH_COPIES, BATCH_CURSOR, BATCH_DUPLICATE, BATCH_LEASE, TOKEN_ROUTED, Batch, Queue, free_owned,
    key_of, queue_at, queue_length, queue_open, queue_push,
)
from topicsd._native.changes cimport changes_shards
from topicsd._native.dedupe cimport DedupeEntry, dedupe_add, dedupe_expire, dedupe_find, dedupe_forget, dedupe_new
from topicsd._native.durable cimport durable_look
from topicsd._native.ephemeral cimport arena_put
from topicsd._native.files cimport WRITE_ENDS
from topicsd._native.frame cimport frame_hash_of, frame_seal
from topicsd._native.hash cimport xxh3_64
from topicsd._native.index cimport index_at
from topicsd._native.layout cimport (
    CLASS_EPHEMERAL, CLASS_FSYNC, COMMAND_APPEND, COMMAND_CALL, COMPLETION_BODY_DIFFERS, COMPLETION_DEDUPED, DISCARD_REJECT,
    FRAME_CEILING, FRAME_FLAG_EPHEMERAL, FRAME_FLAG_KEY, FRAME_HEADER_BYTES, FRAME_MAGIC, FRAME_ROUTER_CURSOR, LOG_FILES_MAX, LOSS_CORRUPT,
    LOSS_SOURCE_TRIM, NO_SLOT, OUTCOME_EPHEMERAL, OUTCOME_FULL, OUTCOME_JSON, OUTCOME_KEYS, OUTCOME_MOVED, OUTCOME_OK, OUTCOME_QUOTA,
    OUTCOME_READ_ONLY, OUTCOME_TOO_LARGE, OUTCOME_UNKNOWN, POSITION_BITS, POSITION_MASK, RING_DESCRIPTORS, SOURCE_EPHEMERAL, completion, control,
    index_entry, key_section, shard_line, submission, topic_slot,
)
from topicsd._native.log cimport LOG_FLIES, LOG_FLUSH_FIRST, Shard
from topicsd._native.port cimport FRAME_FLAG_TOLD
from topicsd._native.queue_wire cimport COMMAND_QUEUE_FIRST, COMMAND_QUEUE_LAST
from topicsd._native.regions cimport RING_DEAD, RING_FREE, Regions, Shared
from topicsd._native.routes cimport (
    CURSOR_HOLE, GATHER_RECORDS_MAX, Forwarder, Gathered, Note, Outlets, Route, Step, cursor_head, cursor_row, fitting, forwarder_close,
    forwarder_open, forwarder_queue, gather, note_drop, note_payload, note_seq, outlets_of, pass_done, publish_copies, route_of,
    routed_frame, routed_key, routed_of,
)
from topicsd._native.ring cimport (
    RING_NONE, RING_STALE, bell_worker, completion_push, dirty_everything, ring_dead_drained, ring_peek_at, ring_refuse, ring_release,
    ring_reset_for_generation, writer_bell_seen, writer_sleep_unless,
)
from topicsd._native.sealed cimport sealed_turn
from topicsd._native.topics cimport Private, batch_payload, core_close, core_open, expire, leave_hole, private_of, publish, touch

cdef extern from "ring.h" nogil:
    const int FAULT_POINTS

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef enum:
    SYNC_LOOK_NS = 50000
    GATHER_NS = 100000              # with one group on its way to the disk, and nothing to send behind it: then the rings are looked at again
    CEILING_RESERVE = 1 << 17       # seqs reserved ahead: at 2 M records/s to one topic 65 ms, many times a group commit
    TURN_BATCHES_MAX = 2048         # of one ring and turn, so that no ring waits long for its neighbours
    FORWARD_BEFORE_ANSWER = 8       # steps of routes that an answer waits for: reads of the other destinations wait for theirs
    FORWARD_A_SLICE = 128           # steps between two turns
    FORWARD_ALL = 1 << 30
    READ_LATELY_MS = 10000          # what a topic gets so long after a read is kept in memory, not only on the disk
    SYNC_ROUNDS_MAX = 64
    STEP_RECORDS = 32               # copies that cost as much as a step of their own
    BLOCKED_WAIT_MS_MIN = 50
    BLOCKED_WAIT_MS_MAX = 1000


@cython.no_gc_clear    # __dealloc__ needs the regions: `shared` must outlive everything else here
cdef class Sequencer:
    """Give records their seqs, write them, publish them, answer (ARCHITECTURE section 4). One thread; see sequencer.pxd.

    Time comes with each call, files from the shards: the same calls give the same effects.
    """

    def __cinit__(self, Shared shared, list shards, uint64_t ephemeral_bytes_max, uint64_t bytes_max, uint64_t keys_max):
        cdef int number
        self.shared = shared
        self.shards = shards
        self.shard_count = len(shards)
        self.bytes_max = bytes_max
        self.failed = {}
        self.keys_max = keys_max
        self.wake_at_ms = <int64_t>1 << 40
        for number in range(self.shard_count):
            self.shard[number] = <void *>(<Shard>shards[number])
            (<Shard>shards[number]).attach(&shared.r.control.shards[number], shared.r.files + number * LOG_FILES_MAX)
        if core_open(&self.core, &shared.r, ephemeral_bytes_max) != 0:
            raise MemoryError
        if self.shard_count > 1 and changes_shards(&self.core.changes, shared.r.control.topics_max, <uint32_t>self.shard_count) != 0:
            raise MemoryError
        queue_open(&self.group)
        queue_open(&self.finished)
        queue_open(&self.calls)
        queue_open(&self.held)
        self.routed_hints = {}
        if forwarder_open(&self.forwarder, &self.core) != 0:
            raise MemoryError
        for number in range(8):
            queue_open(&self.pending[number])
        for number in range(64):
            self.done[number] = <uint8_t *>calloc(RING_DESCRIPTORS, 1)
        self.raised_mask = 1023
        self.raised = <uint32_t *>calloc(1024, sizeof(uint32_t))
        self.ids_mask = 1023
        self.ids = <uint64_t *>calloc(1024 * 2, sizeof(uint64_t))

    def __dealloc__(self):
        cdef int number
        core_close(&self.core)
        forwarder_close(&self.forwarder)
        free(self.held.items)
        free(self.group.items)
        free(self.finished.items)
        free(self.calls.items)
        for number in range(8):
            free(self.pending[number].items)
        for number in range(64):
            free(self.done[number])
        free(self.raised)
        free(self.ids)

    # ---- answers --------------------------------------------------------------------------------------------------------------

    cdef void finish(self, Batch *batch, uint32_t outcome) noexcept nogil:
        """Answer a batch and give its payload back. `outcome` OUTCOME_OK: it is published."""
        cdef completion answer
        cdef topic_slot *topic
        cdef uint64_t now_ns = clock_mono_ns()
        cdef const uint8_t *payload = NULL
        batch.outcome = outcome
        if batch.ring < 0:
            if batch.token == TOKEN_ROUTED:
                self.forwarder.waiting -= 1
                free_owned(batch)
            elif batch.kind != BATCH_CEILING:
                queue_push(&self.finished, batch)
            else:
                free_owned(batch)
            return
        memset(&answer, 0, sizeof(answer))
        answer.token = batch.token
        answer.status = outcome
        answer.flags = batch.flags
        answer.first_seq = batch.first_seq
        answer.count = <uint32_t>batch.count
        if batch.slot != NO_SLOT:
            topic = &self.core.regions.table[batch.slot]
            answer.head = topic.head
            answer.values[0] = topic.config.cap_records
            answer.values[1] = topic.config.cap_bytes
            answer.values[2] = topic.head
            answer.values[3] = topic.earliest
        if outcome == OUTCOME_QUOTA:
            answer.values[0] = self.bytes_max
        elif outcome == OUTCOME_KEYS:
            answer.values[0] = self.keys_max
        elif outcome == OUTCOME_EPHEMERAL:
            answer.values[0] = self.core.arena.bytes_max
        if batch.written_ns:
            answer.wal_us = <uint32_t>((batch.written_ns - batch.started_ns) // 1000)
            if batch.durable:
                answer.fsync_us = <uint32_t>((now_ns - batch.written_ns) // 1000)
        if batch.kind == BATCH_CALL and outcome == OUTCOME_OK:
            answer.status = OUTCOME_JSON
            answer.payload_bytes = batch.answer_bytes
            payload = batch.answer
        elif batch.kind == BATCH_LEASE:
            payload = self.queue_answer(batch, &answer)
        completion_push(&self.core.regions.rings[batch.ring], &answer, payload)
        self.core.bells |= <uint64_t>1 << batch.ring
        free_owned(batch)
        if not batch.detached:
            self._done(batch.ring, batch.cursor)

    cdef void _done(self, int ring, uint64_t cursor) noexcept nogil:
        cdef uint8_t *done = self.done[ring]
        done[cursor & (RING_DESCRIPTORS - 1)] = 1
        while self.released[ring] < self.taken[ring] and done[self.released[ring] & (RING_DESCRIPTORS - 1)]:
            done[self.released[ring] & (RING_DESCRIPTORS - 1)] = 0
            self.released[ring] += 1

    # ---- admit ------------------------------------------------------------------------------------------------------------------

    cdef bint _answer_known_key(self, Batch *batch, topic_slot *topic, Private *own) noexcept nogil:
        """Answer a batch whose key is known, or let it wait for its first try. False: the key is new."""
        cdef key_section *section = key_of(batch.frame)
        cdef DedupeEntry *entry
        if own.dedupe == NULL:
            return False
        dedupe_expire(own.dedupe, self.core.mono_ms, topic.config.idempotency_window_ms)
        entry = dedupe_find(own.dedupe, <const uint8_t *>(section + 1), section.key_bytes, self.core.mono_ms,
                            topic.config.idempotency_window_ms)
        if entry == NULL:
            return False
        batch.first_seq = entry.first_seq
        batch.count = entry.count
        batch.flags = COMPLETION_DEDUPED
        if entry.records_xxh3 != section.records_xxh3:
            batch.flags |= COMPLETION_BODY_DIFFERS
        if entry.pending:
            batch.kind = BATCH_DUPLICATE
            queue_push(&self.group, batch)
        else:
            self.finish(batch, OUTCOME_OK)
        return True

    cdef uint32_t _refusal(self, Batch *batch, topic_slot *topic, Private *own) noexcept nogil:
        """Caps under discard reject, the server's quota, the number of keys. OUTCOME_OK: none of them is reached."""
        cdef uint64_t records = topic.config.cap_records, bytes = topic.config.cap_bytes
        cdef uint64_t live, after
        if topic.config.discard == DISCARD_REJECT and (records or bytes):
            if (records and batch.count > records) or (bytes and batch.payload > bytes):
                return OUTCOME_TOO_LARGE
            expire(&self.core, batch.slot, self.core.wall_ms, <uint64_t>-1)
            if records and topic.count + topic.pending_records + batch.count > records:
                return OUTCOME_FULL
            if bytes and topic.bytes + topic.pending_bytes + batch.payload > bytes:
                return OUTCOME_FULL
        if self.bytes_max:
            expire(&self.core, batch.slot, self.core.wall_ms, <uint64_t>-1)
            live = self.core.regions.control.bytes_live + self.pending_bytes
            after = live + batch.payload - self._freed_by(batch, topic)
            if after > self.bytes_max and after > live:
                return OUTCOME_QUOTA
        if key_of(batch.frame) != NULL and own.dedupe != NULL and self.keys_max and own.dedupe.live >= self.keys_max:
            return OUTCOME_KEYS
        return OUTCOME_OK

    cdef uint64_t _freed_by(self, Batch *batch, topic_slot *topic) noexcept nogil:
        """Bytes that eviction frees when this batch comes in: a self-trimming topic may be written to at the quota."""
        cdef uint64_t freed = 0, left = topic.count, seq = topic.earliest
        cdef uint64_t bytes = topic.bytes + topic.pending_bytes + batch.payload
        cdef uint64_t records = topic.count + topic.pending_records + batch.count
        cdef index_entry *entry
        if topic.config.discard == DISCARD_REJECT or not (topic.config.cap_records or topic.config.cap_bytes):
            return 0
        while left and seq <= topic.head:
            if not ((topic.config.cap_records and records > topic.config.cap_records)
                    or (topic.config.cap_bytes and bytes - freed > topic.config.cap_bytes)):
                break
            entry = index_at(self.core.regions, topic, seq)
            if entry != NULL and entry.flags & 3 == 0:
                freed += entry.bytes
                records -= 1
                left -= 1
            seq += 1
        return freed

    cdef int admit(self, Batch *batch) noexcept nogil:
        """Take one batch in: it is answered, or it stands in the group with its seqs."""
        cdef Regions *r = self.core.regions
        cdef topic_slot *topic
        cdef Private *own
        cdef uint32_t records, outcome
        cdef bint needs_own
        if batch.slot >= r.control.topics_max or r.table[batch.slot].topic_id != batch.topic_id or batch.topic_id == 0:
            batch.slot = NO_SLOT
            self.finish(batch, OUTCOME_MOVED)
            return 0
        topic = &r.table[batch.slot]
        needs_own = key_of(batch.frame) != NULL or topic.config.durability == CLASS_EPHEMERAL
        own = private_of(&self.core, batch.slot) if needs_own else self.core.privates[batch.slot]
        records = self._measure(batch)
        if records == 0 or (needs_own and own == NULL):
            self.finish(batch, OUTCOME_UNKNOWN)
            return 0
        batch.count = records
        if key_of(batch.frame) != NULL and self._answer_known_key(batch, topic, own):
            return 0
        outcome = self._refusal(batch, topic, own)
        if outcome == OUTCOME_OK:
            outcome = self._stamp(batch, topic, own)
        if outcome != OUTCOME_OK:
            batch.count = 0
            self.finish(batch, outcome)
        return 0

    cdef uint32_t _measure(self, Batch *batch) noexcept nogil:
        """Find a batch's payload and maybe its hash: told by its worker, or by a walk. Returns its records, 0 when it is malformed."""
        cdef frame_header *frame = batch.frame
        cdef uint32_t records = 0, largest
        if frame.flags & FRAME_FLAG_TOLD == 0:
            batch.payload = batch_payload(frame, &records, &largest)
            return records
        frame.flags &= ~FRAME_FLAG_TOLD & 0xFF
        batch.payload, batch.body_xxh3, batch.hashed = frame.synced, frame.xxh3, 1
        if FAULT_POINTS and (batch_payload(frame, &records, &largest) != batch.payload or records != frame.count
                             or batch.body_xxh3 != xxh3_64(<uint8_t *>frame + FRAME_HEADER_BYTES, frame.length - FRAME_HEADER_BYTES)):
            abort()
        return frame.count if batch.payload + FRAME_HEADER_BYTES <= frame.length else 0

    cdef uint32_t _stamp(self, Batch *batch, topic_slot *topic, Private *own) noexcept nogil:
        """Find a place, give seq and ts, seal the frame, queue it. Anything but OUTCOME_OK: nothing has changed."""
        cdef frame_header *frame = batch.frame
        cdef uint32_t number = <uint32_t>topic.shard
        cdef uint8_t durability = topic.config.durability
        cdef uint64_t position = 0, last
        cdef key_section *section = key_of(frame)
        cdef DedupeEntry *entry
        touch(&self.core, batch.slot)
        if durability != CLASS_FSYNC and topic.next_seq + batch.count + CEILING_RESERVE // 2 > topic.ceiling_asked:
            self._ask_ceiling(batch.slot, topic, topic.next_seq + batch.count - 1 + CEILING_RESERVE)
        if durability != CLASS_EPHEMERAL and self._place(number, frame.length, False, &position) != 0:
            return OUTCOME_READ_ONLY
        last = topic.next_seq + batch.count - 1
        batch.durable = durability == CLASS_FSYNC
        batch.waits = batch.durable or topic.pending_batches > 0
        if durability != CLASS_FSYNC and last > topic.ceiling_durable:
            if last > topic.ceiling_asked:
                return OUTCOME_READ_ONLY
            batch.waits = 1
        frame.base_seq = topic.next_seq
        frame.ts = max(self.core.wall_ms, topic.last_ts)
        self.newest_ts = max(self.newest_ts, frame.ts)
        frame.shard = <unsigned short>number
        frame.topic_id = topic.topic_id
        frame.synced = load_relaxed_64(&(<Shard>self.shard[number]).line.synced)
        if durability == CLASS_EPHEMERAL:
            frame.xxh3 = 0      # nothing checks what no disk has held
            frame.flags |= FRAME_FLAG_EPHEMERAL
            if arena_put(&self.core.arena, self.core.regions, &own.chunks, frame, frame.length, last, &position) != 0:
                return OUTCOME_EPHEMERAL
            batch.place = (<uint64_t>SOURCE_EPHEMERAL << POSITION_BITS) | position
            batch.end = (<Shard>self.shard[number]).written() + (<Shard>self.shard[number]).unflushed()
        else:
            frame.position = position
            if batch.hashed:
                frame.xxh3 = frame_hash_of(frame, batch.body_xxh3)
            else:
                frame_seal(frame)
            (<Shard>self.shard[number]).queue(frame, frame.length)
            if load_relaxed_64(&topic.watchers) or load_relaxed_64(&topic.last_read_ms) + READ_LATELY_MS > self.core.wall_ms:
                (<Shard>self.shard[number]).expect_reader()
            batch.place = (<uint64_t>number << POSITION_BITS) | position
            batch.end = position + frame.length
        if section != NULL:
            if own.dedupe == NULL:
                own.dedupe = dedupe_new()
            entry = dedupe_add(own.dedupe, <const uint8_t *>(section + 1), section.key_bytes, section.records_xxh3, topic.next_seq,
                               <uint32_t>batch.count, self.core.mono_ms)
            if entry == NULL:
                abort()
            entry.pending = 1
        batch.first_seq = topic.next_seq
        topic.next_seq = last + 1
        topic.last_ts = frame.ts
        topic.pending_records += batch.count
        topic.pending_bytes += batch.payload
        self.pending_bytes += batch.payload
        if batch.waits:
            topic.pending_batches += 1
        queue_push(&self.group, batch)
        return OUTCOME_OK

    cdef int _place(self, uint32_t number, uint32_t bytes, bint privileged, uint64_t *position) noexcept nogil:
        cdef int result = (<Shard>self.shard[number]).place(bytes, privileged, position)
        if result == LOG_FLUSH_FIRST:
            self.flush_group()
            result = (<Shard>self.shard[number]).place(bytes, privileged, position)
        return result

    cdef void _ask_ceiling(self, uint32_t slot, topic_slot *topic, uint64_t ceiling) noexcept nogil:
        """Reserve seqs up to `ceiling`; they may be handed out once the frame is synced (ARCHITECTURE section 6)."""
        cdef Batch batch
        memset(&batch, 0, sizeof(batch))
        batch.kind = BATCH_CEILING
        batch.first_seq = ceiling
        if self._queue_small(&batch, slot, topic, FRAME_CEILING, ceiling) == 0:
            topic.ceiling_asked = ceiling
            self._remember_raised(slot)

    cdef int _queue_small(self, Batch *batch, uint32_t slot, topic_slot *topic, int type, uint64_t base_seq) noexcept nogil:
        cdef uint32_t number = <uint32_t>topic.shard
        cdef uint64_t position
        cdef frame_header *frame
        if self._place(number, FRAME_HEADER_BYTES, True, &position) != 0:
            return -1
        frame = <frame_header *>calloc(1, FRAME_HEADER_BYTES)
        if frame == NULL:
            abort()
        frame.magic = FRAME_MAGIC
        frame.length = FRAME_HEADER_BYTES
        frame.type = <uint8_t>type
        frame.shard = <unsigned short>number
        frame.topic_id = topic.topic_id
        frame.base_seq = base_seq
        frame.ts = self.core.wall_ms
        frame.synced = load_relaxed_64(&(<Shard>self.shard[number]).line.synced)
        frame.position = position
        frame_seal(frame)
        (<Shard>self.shard[number]).queue(frame, FRAME_HEADER_BYTES)
        batch.frame = frame
        batch.owned = 1
        batch.waits = 1
        batch.ring = -1
        batch.slot = slot
        batch.topic_id = topic.topic_id
        batch.end = position + FRAME_HEADER_BYTES
        queue_push(&self.group, batch)
        return 0

    cdef void _remember_raised(self, uint32_t slot) noexcept nogil:
        cdef topic_slot *topic = &self.core.regions.table[slot]
        cdef uint32_t *raised
        cdef uint64_t number
        if topic.raised:
            return
        topic.raised = 1
        topic.written_ms = self.core.mono_ms
        if self.raised_end - self.raised_first > self.raised_mask:
            raised = <uint32_t *>malloc((self.raised_mask + 1) * 2 * sizeof(uint32_t))
            if raised == NULL:
                abort()
            for number in range(self.raised_first, self.raised_end):
                raised[number & (self.raised_mask * 2 + 1)] = self.raised[number & self.raised_mask]
            free(self.raised)
            self.raised = raised
            self.raised_mask = self.raised_mask * 2 + 1
        self.raised[self.raised_end & self.raised_mask] = slot
        self.raised_end += 1

    # ---- flush, publish, fail -------------------------------------------------------------------------------------------------------

    cdef void _publish(self, Batch *batch) noexcept nogil:
        cdef topic_slot *topic = &self.core.regions.table[batch.slot]
        cdef Private *own = self.core.privates[batch.slot]
        cdef key_section *section
        cdef DedupeEntry *entry
        if batch.kind == BATCH_CEILING:
            if topic.topic_id == batch.topic_id and batch.first_seq <= topic.ceiling_asked and batch.first_seq > topic.ceiling_durable:
                topic.ceiling_durable = batch.first_seq
            free_owned(batch)
            return
        if batch.kind == BATCH_CALL:
            self.finish(batch, OUTCOME_OK)
            return
        if batch.kind == BATCH_COPIES or batch.kind == BATCH_CURSOR:
            self._publish_copies(batch)
            return
        if batch.kind == BATCH_LEASE:
            self.queue_publish(batch)
            return
        section = key_of(batch.frame)
        entry = NULL
        if section != NULL and own != NULL and own.dedupe != NULL:
            entry = dedupe_find(own.dedupe, <const uint8_t *>(section + 1), section.key_bytes, self.core.mono_ms,
                                topic.config.idempotency_window_ms)
        if batch.kind == BATCH_DUPLICATE:
            self.finish(batch, OUTCOME_OK if entry != NULL and not entry.pending else OUTCOME_READ_ONLY)
            return
        if topic.topic_id != batch.topic_id or topic.head + 1 != batch.first_seq or publish(&self.core, batch.slot, batch.frame, batch.place) != 0:
            abort()
        if entry != NULL:
            entry.pending = 0
        self._settled(batch, topic)
        if outlets_of(&self.core, batch.slot) != NULL:
            queue_push(&self.held, batch)
        else:
            self.finish(batch, OUTCOME_OK)

    cdef void _settled(self, Batch *batch, topic_slot *topic) noexcept nogil:
        topic.pending_records -= batch.count
        topic.pending_bytes -= batch.payload
        self.pending_bytes -= batch.payload
        if batch.waits:
            topic.pending_batches -= 1

    cdef void _fail(self, Batch *batch) noexcept nogil:
        """Take a batch back; callers go from the newest to the oldest, so that seqs roll back in order."""
        cdef topic_slot *topic = &self.core.regions.table[batch.slot]
        cdef Private *own = self.core.privates[batch.slot]
        cdef key_section *section
        cdef DedupeEntry *entry
        if batch.kind == BATCH_CEILING:
            topic.ceiling_asked = topic.ceiling_durable
            free_owned(batch)
            return
        if batch.kind == BATCH_COPIES or batch.kind == BATCH_CURSOR:
            self._fail_copies(batch, topic)
            return
        if batch.kind == BATCH_LEASE:
            self.queue_failed(batch)
            return
        if batch.kind == BATCH_APPEND:
            topic.next_seq = batch.first_seq
            self._settled(batch, topic)
            self._fail_routed(batch)
            section = key_of(batch.frame)
            if section != NULL and own != NULL and own.dedupe != NULL:
                entry = dedupe_find(own.dedupe, <const uint8_t *>(section + 1), section.key_bytes, self.core.mono_ms,
                                    topic.config.idempotency_window_ms)
                if entry != NULL:
                    dedupe_forget(own.dedupe, entry)
        batch.count = 0
        self.finish(batch, OUTCOME_READ_ONLY)

    cdef int flush_group(self) noexcept nogil:
        """Write what is queued, publish or park each batch. Returns the shards that failed, as a bit mask."""
        cdef int failed = self._land(), number
        if failed:
            return failed
        if queue_length(&self.group) == 0:
            self._forward_and_answer()
            return 0
        for number in range(self.shard_count):
            if (<Shard>self.shard[number]).flush() != 0:
                failed |= 1 << number
        self._settle_group(failed, self.group.end)
        return failed

    cdef bint _launch(self) noexcept nogil:
        """Begin to write the group in the background, when nothing else waits for it; `flush_group` and the next turn wait for its end."""
        if self.shard_count != 1 or self.forwarder.queue_first != self.forwarder.queue_end \
                or queue_length(&self.held) or (<Shard>self.shard[0]).launch() != 1:
            return False
        self.flight_end[self.flights] = self.group.end
        self.flights += 1
        return True

    cdef int _land(self) noexcept nogil:
        """Wait for what is being written in the background and publish it, or fail it with all that has gathered behind it. As flush_group."""
        cdef int failed = 0
        while self.flights and failed == 0:
            failed = self._land_oldest(WRITE_ENDS)
        return failed

    cdef int _land_oldest(self, uint64_t wait_ns) noexcept nogil:
        cdef uint64_t end = self.flight_end[0]
        cdef int failed, later, landed = (<Shard>self.shard[0]).land(wait_ns)
        if landed == LOG_FLIES:
            return 0
        failed = landed != 0
        self.flights = 0 if failed else self.flights - 1
        for later in range(1, FLIGHTS_MAX):
            self.flight_end[later - 1] = self.flight_end[later]
        self._settle_group(failed, self.group.end if failed else end)
        return failed

    cdef void _next_flight(self) noexcept nogil:
        """Begin with the next group behind what is being written; what cannot fly waits for all of it. Publish what has landed.

        With room for another flight the wait is short: a ring may have more by then, and the disk should not be idle in between.
        """
        cdef bint gathered = self.group.end != self.flight_end[self.flights - 1]
        if gathered and not self._launch():
            self._land()
        else:
            self._land_oldest(WRITE_ENDS if self.flights == FLIGHTS_MAX else <uint64_t>GATHER_NS)

    cdef void _settle_group(self, int failed, uint64_t end) noexcept nogil:
        """Publish or park the batches of the group up to `end`; take back those of failed shards."""
        cdef uint64_t place, now_ns = clock_mono_ns()
        cdef Batch *batch
        cdef uint32_t shard
        cdef int number
        if failed:
            place = self.group.end
            while place > self.group.first:
                place -= 1
                batch = queue_at(&self.group, place)
                if failed & (1 << self.core.regions.table[batch.slot].shard) and batch.kind != BATCH_CALL:
                    self._fail(batch)
                    batch.kind = 0
        for place in range(self.group.first, end):
            batch = queue_at(&self.group, place)
            if batch.kind == 0:
                continue
            batch.written_ns = now_ns
            shard = <uint32_t>self.core.regions.table[batch.slot].shard
            if batch.kind == BATCH_DUPLICATE and queue_length(&self.pending[shard]):
                batch.waits = 1
                batch.end = queue_at(&self.pending[shard], self.pending[shard].end - 1).end
            if batch.waits:
                queue_push(&self.pending[shard], batch)
                (<Shard>self.shard[shard]).ask_sync()
            else:
                self._publish(batch)
        self.group.first = end
        for number in range(self.shard_count):
            self._show_pending(number)
        self._forward_and_answer()

    cdef void _show_pending(self, int number) noexcept nogil:
        cdef shard_line *line = (<Shard>self.shard[number]).line
        cdef uint64_t length = queue_length(&self.pending[number])
        store_relaxed_64(&line.pending, length)
        if length > line.pending_peak:
            store_relaxed_64(&line.pending_peak, length)

    cdef void release_synced(self) noexcept nogil:
        """Publish what has been synced; fail what never will be."""
        cdef int number
        cdef uint64_t synced
        cdef Queue *queue
        cdef Batch *batch
        cdef Batch copy
        for number in range(self.shard_count):
            queue = &self.pending[number]
            synced = load_acquire_64(&(<Shard>self.shard[number]).line.synced)
            while queue.first != queue.end and queue_at(queue, queue.first).end <= synced:
                copy = queue_at(queue, queue.first)[0]
                queue.first += 1
                self._publish(&copy)
            if queue.first != queue.end and (<Shard>self.shard[number]).refuses() == -EROFS:
                while queue.end != queue.first:
                    queue.end -= 1
                    batch = queue_at(queue, queue.end)
                    if (batch.kind == BATCH_APPEND or batch.kind == BATCH_LEASE) and batch.place >> POSITION_BITS == <uint64_t>number:
                        with gil:
                            self._note_failed(number, batch.place & POSITION_MASK)
                    elif batch.kind == BATCH_COPIES:    # it waited, so its frame has one row
                        with gil:
                            self._note_failed(number, batch.end - FRAME_HEADER_BYTES - sizeof(cursor_head) - sizeof(cursor_row))
                    self._fail(batch)
            self._show_pending(number)
            durable_look(&self.core.durable, self.core.regions, number)
        self._forward_and_answer()

    # ---- routers ---------------------------------------------------------------------------------------------------------------

    cdef void _forward_and_answer(self) noexcept nogil:
        """Give the routes of sources that have moved their turn, then answer the batches that moved them."""
        cdef Batch answered
        if self.forwarding or (queue_length(&self.held) == 0 and self.forwarder.queue_first == self.forwarder.queue_end):
            return
        self.forward(FORWARD_BEFORE_ANSWER)
        if queue_length(&self.held) == 0:
            return
        if self.forwarder.hot or self.forwarder.waiting:
            store_seq_cst_64(&self.core.regions.control.forward_debt, 1)
        while self.held.first != self.held.end:
            answered = queue_at(&self.held, self.held.first)[0]
            self.held.first += 1
            self.finish(&answered, OUTCOME_OK)

    cdef void forward(self, int64_t work) noexcept nogil:
        """Forward for so many steps, or until nothing more can be forwarded now."""
        if self.forwarding:
            return
        self.forwarding = 1
        while work > 0 and self._pass(&work):
            pass
        self.forwarding = 0

    cdef bint _pass(self, int64_t *work) noexcept nogil:
        """Let each route of the next source take a step; a pass that runs out of work goes on where it stopped. False: no source is queued."""
        cdef Forwarder *forwarder = &self.forwarder
        cdef Outlets *outlets
        cdef uint64_t head
        cdef uint32_t slot, number
        if forwarder.queue_first == forwarder.queue_end:
            return False
        slot = forwarder.queue[forwarder.queue_first & forwarder.queue_mask]
        forwarder.queue_first += 1
        outlets = outlets_of(&self.core, slot)
        if outlets == NULL:
            return True
        outlets.queued = 0
        head = self.core.regions.table[slot].head
        while outlets.resume < outlets.count and work[0] > 0:
            outlets.resume += 1
            work[0] -= <int64_t>self._step(outlets.routes[outlets.resume - 1], head)
        self._write_steps()
        self.flush_group()
        if outlets.resume < outlets.count or head != self.core.regions.table[slot].head:
            forwarder_queue(forwarder, slot)
            return True
        outlets.resume = 0
        forwarder.hot -= outlets.hot
        outlets.hot = 0
        pass_done(forwarder, outlets)
        for number in range(outlets.count):
            if outlets.routes[number].cursor < head and not outlets.routes[number].blocked:
                forwarder_queue(forwarder, slot)
                break
        return True

    cdef uint64_t _step(self, Route *route, uint64_t head) noexcept nogil:
        """Take what a route's destination has room for, at most a slice; return what it cost."""
        cdef Gathered found
        cdef uint64_t bytes_left = <uint64_t>-1, live
        cdef uint32_t count
        cdef bint never = False, done
        if route.cursor >= head or (route.blocked and self.core.mono_ms < route.retry_ms):
            return 1
        if not gather(&self.forwarder, route, head, GATHER_RECORDS_MAX, &found):
            self._block(route, OUTCOME_UNKNOWN)
            return 1
        count = found.count
        if found.note != NULL:
            if self.bytes_max:
                live = self.core.regions.control.bytes_live + self.pending_bytes
                bytes_left = self.bytes_max - min(live, self.bytes_max)
            count = fitting(&self.forwarder, route, found.note, found.count, bytes_left, &never)
            if never:    # larger than all of the destination: waiting would hold up what stands behind it for ever
                found.last = note_seq(found.note, 0)
                found.lost = 1
                note_drop(found.note)
                found.note = NULL
            elif count == 0:
                note_drop(found.note)
                self._block(route, OUTCOME_FULL)
                return 1
            elif count < found.count:
                found.last = note_seq(found.note, count - 1)
        if found.note != NULL and found.writes:
            self._write_steps()
            done = self._write_out(route, &found, count)
        else:
            done = self._add_step(route, &found, count)
        if done:
            route.blocked = 0
            route.wait_ms = 0
        return 1 + count // STEP_RECORDS

    cdef bint _add_step(self, Route *route, Gathered *found, uint32_t count) noexcept nogil:
        """Add a row to the cursor frame in the making; its seqs are taken from here on. The note is the step's now."""
        cdef Forwarder *forwarder = &self.forwarder
        cdef topic_slot *topic = &self.core.regions.table[route.dest]
        cdef bint waits = topic.pending_batches > 0
        cdef Step *step
        touch(&self.core, route.source)    # which notes it has still to come to
        touch(&self.core, route.dest)
        # A row that waits behind a batch of its destination may fail with it, after others were published: it gets a frame of its own.
        if forwarder.steps_count and (waits or forwarder.steps_before != route.cursor or forwarder.steps_last != found.last):
            self._write_steps()
        if forwarder.steps_count == forwarder.steps_room:
            step = <Step *>realloc(forwarder.steps, forwarder.steps_room * 2 * sizeof(Step))
            if step == NULL:
                abort()
            forwarder.steps = step
            forwarder.steps_room *= 2
        step = &forwarder.steps[forwarder.steps_count]
        forwarder.steps_count += 1
        forwarder.steps_before = route.cursor
        forwarder.steps_last = found.last
        step.route = route
        step.note = found.note
        step.before = route.cursor
        step.dest_base = topic.next_seq
        step.ts = max(self.core.wall_ms, topic.last_ts)
        self.newest_ts = max(self.newest_ts, step.ts)
        step.count = count
        step.lost = <uint32_t>found.lost
        step.payload = note_payload(found.note, count, route.flags) if found.note != NULL else 0
        route.cursor = found.last
        topic.next_seq += count + step.lost
        if count:
            topic.last_ts = step.ts
        topic.pending_records += count
        topic.pending_bytes += step.payload
        self.pending_bytes += step.payload
        if waits:
            self._write_steps()
        return route.cursor == found.last

    cdef void _write_steps(self) noexcept nogil:
        """Queue the cursor frame of all steps and their copies behind it; when the log takes no frame they are as if they had never been."""
        cdef Forwarder *forwarder = &self.forwarder
        cdef uint32_t count = forwarder.steps_count, number, bytes
        cdef cursor_head *head
        cdef topic_slot *source
        cdef frame_header *frame
        cdef cursor_row *rows
        cdef Batch batch
        cdef uint64_t position = 0
        if count == 0:
            return
        bytes = <uint32_t>(FRAME_HEADER_BYTES + sizeof(cursor_head) + count * sizeof(cursor_row))
        source = &self.core.regions.table[forwarder.steps[0].route.source]
        frame = <frame_header *>calloc(1, bytes)
        if frame == NULL:
            abort()
        memset(&batch, 0, sizeof(batch))
        batch.kind = BATCH_CURSOR
        batch.owned = 1
        batch.frame = frame
        batch.ring = -1
        batch.slot = forwarder.steps[0].route.source
        batch.topic_id = source.topic_id
        if self._place(<uint32_t>source.shard, bytes, False, &position) != 0:
            free(frame)
            self._undo_steps()
            return
        frame.magic = FRAME_MAGIC
        frame.length = bytes
        frame.type = <uint8_t>FRAME_ROUTER_CURSOR
        frame.shard = <unsigned short>source.shard
        frame.count = count
        frame.topic_id = source.topic_id
        frame.base_seq = forwarder.steps_last
        frame.ts = self.core.wall_ms
        frame.synced = load_relaxed_64(&(<Shard>self.shard[source.shard]).line.synced)
        frame.position = position
        head = <cursor_head *>(<uint8_t *>frame + FRAME_HEADER_BYTES)
        head.before = forwarder.steps_before
        rows = <cursor_row *>(head + 1)
        for number in range(count):
            rows[number].dest_base = forwarder.steps[number].dest_base
            rows[number].route = forwarder.steps[number].route.number
            rows[number].count = forwarder.steps[number].lost | CURSOR_HOLE if forwarder.steps[number].lost else forwarder.steps[number].count
        frame_seal(frame)
        (<Shard>self.shard[source.shard]).queue(frame, bytes)
        batch.end = position + bytes
        queue_push(&self.group, &batch)
        for number in range(count):
            self._queue_copies(&forwarder.steps[number], batch.end)
        forwarder.steps_count = 0

    cdef void _queue_copies(self, const Step *step, uint64_t end) noexcept nogil:
        cdef topic_slot *topic = &self.core.regions.table[step.route.dest]
        cdef Batch batch
        memset(&batch, 0, sizeof(batch))
        batch.kind = BATCH_COPIES
        batch.ring = -1
        batch.token = step.route.number
        batch.slot = step.route.dest
        batch.topic_id = topic.topic_id
        batch.frame = <frame_header *>step.note
        batch.first_seq = step.dest_base
        batch.count = step.count
        batch.payload = step.payload
        batch.place = step.before
        batch.cursor = step.route.cursor
        batch.started_ns = step.ts
        batch.answer_bytes = step.lost
        batch.end = end
        batch.waits = topic.pending_batches > 0
        if batch.waits:
            topic.pending_batches += 1
            self.forwarder.waiting += 1
        queue_push(&self.group, &batch)

    cdef void _undo_steps(self) noexcept nogil:
        cdef topic_slot *topic
        cdef Step *step
        while self.forwarder.steps_count:
            self.forwarder.steps_count -= 1
            step = &self.forwarder.steps[self.forwarder.steps_count]
            topic = &self.core.regions.table[step.route.dest]
            topic.next_seq = step.dest_base
            topic.pending_records -= step.count
            topic.pending_bytes -= step.payload
            self.pending_bytes -= step.payload
            step.route.cursor = step.before
            self._block(step.route, OUTCOME_READ_ONLY)
            note_drop(step.note)

    cdef bint _write_out(self, Route *route, Gathered *found, uint32_t count) noexcept nogil:
        """Append copies whose bytes must be written again. The note is dropped."""
        cdef Batch batch
        cdef uint64_t before = route.cursor
        cdef frame_header *frame = routed_frame(&self.forwarder, route, found.note, count, found.last)
        touch(&self.core, route.source)
        note_drop(found.note)
        if frame == NULL:
            self._block(route, OUTCOME_UNKNOWN)
            return False
        memset(&batch, 0, sizeof(batch))
        batch.kind = BATCH_APPEND
        batch.ring = -1
        batch.token = TOKEN_ROUTED
        batch.slot = route.dest
        batch.topic_id = route.dest_id
        batch.frame = frame
        batch.owned = 1
        batch.started_ns = clock_mono_ns()
        route.cursor = found.last
        self.forwarder.waiting += 1
        self.admit(&batch)
        if queue_length(&self.group) == 0 or queue_at(&self.group, self.group.end - 1).frame != frame:
            route.cursor = before
            self._block(route, OUTCOME_FULL)
            return False
        route.forwarded += count
        return True

    cdef void _block(self, Route *route, uint32_t outcome) noexcept nogil:
        route.blocked = outcome
        route.wait_ms = min(max(route.wait_ms * 2, <int64_t>BLOCKED_WAIT_MS_MIN), <int64_t>BLOCKED_WAIT_MS_MAX)
        route.retry_ms = self.core.mono_ms + route.wait_ms
        self.forwarder.blocked = 1

    cdef void _publish_copies(self, Batch *batch) noexcept nogil:
        cdef topic_slot *topic = &self.core.regions.table[batch.slot]
        cdef Route *route
        cdef uint64_t next_seq = topic.next_seq
        if batch.kind == BATCH_CURSOR:
            free_owned(batch)
            return
        route = route_of(&self.forwarder, <uint32_t>batch.token)
        if route == NULL or topic.topic_id != batch.topic_id or (batch.count + batch.answer_bytes and topic.head + 1 != batch.first_seq):
            abort()
        if batch.answer_bytes:
            if leave_hole(&self.core, batch.slot, batch.first_seq + batch.answer_bytes - 1, LOSS_SOURCE_TRIM) != 0:
                abort()
            topic.next_seq = next_seq    # more may have been queued behind it
            route.lost += batch.answer_bytes
        elif batch.count and publish_copies(&self.forwarder, route, <Note *>batch.frame, <uint32_t>batch.count, batch.first_seq,
                                            batch.started_ns) != 0:
            abort()
        self._settled(batch, topic)
        self.forwarder.waiting -= batch.waits
        note_drop(<Note *>batch.frame)

    cdef void _fail_copies(self, Batch *batch, topic_slot *topic) noexcept nogil:
        cdef Route *route
        if batch.kind == BATCH_CURSOR:
            free_owned(batch)
            return
        route = route_of(&self.forwarder, <uint32_t>batch.token)
        topic.next_seq = batch.first_seq
        self._settled(batch, topic)
        self.forwarder.waiting -= batch.waits
        route.cursor = batch.place
        self._block(route, OUTCOME_READ_ONLY)
        note_drop(<Note *>batch.frame)

    cdef void _fail_routed(self, Batch *batch) noexcept nogil:
        cdef routed_key *key = routed_of(batch.frame)
        cdef Route *route
        if key == NULL or batch.token != TOKEN_ROUTED:
            return
        route = route_of(&self.forwarder, key.route)
        if route != NULL:
            route.cursor = key.before
            route.forwarded -= batch.count
            self._block(route, OUTCOME_READ_ONLY)

    cdef void _replay_routed(self, const frame_header *frame) noexcept nogil:
        cdef routed_key *key = routed_of(frame)
        cdef Route *route = route_of(&self.forwarder, key.route)
        if route == NULL:
            with gil:
                self._hint(key.route, key.after, frame.count)
            return
        route.cursor = max(route.cursor, key.after)
        route.forwarded += frame.count

    cdef int _hint(self, uint32_t number, uint64_t cursor, uint32_t count) noexcept:
        known = self.routed_hints.get(number, (0, 0))
        self.routed_hints[number] = (max(known[0], cursor), known[1] + count)
        return 0

    cdef int _note_failed(self, int number, uint64_t position) noexcept:
        self.failed.setdefault(number, []).append(position)
        return 0

    # ---- queues: a sequencer without them ------------------------------------------------------------------------------------------------

    cdef void queue_command(self, Batch *batch, uint32_t kind, const uint8_t *payload, uint32_t payload_bytes) noexcept nogil:
        batch.slot = NO_SLOT
        self.finish(batch, OUTCOME_UNKNOWN)

    cdef void queue_turn(self) noexcept nogil:
        pass

    cdef void queue_publish(self, Batch *batch) noexcept nogil:
        abort()

    cdef void queue_failed(self, Batch *batch) noexcept nogil:
        abort()

    cdef const uint8_t *queue_answer(self, Batch *batch, completion *answer) noexcept nogil:
        return NULL

    cdef uint64_t queue_waiting(self) noexcept nogil:
        return 0

    cdef void queue_ring_gone(self, int ring) noexcept nogil:
        pass

    # ---- the turn --------------------------------------------------------------------------------------------------------------------------

    cdef int turn_rings(self) noexcept nogil:
        """Drain every ring once. Returns the number of commands that wait for Python."""
        cdef Regions *r = self.core.regions
        cdef int ring, _taken, kind
        cdef submission entry
        cdef uint8_t *payload
        cdef Batch batch
        sealed_turn(r)
        self.release_synced()
        for ring in range(<int>r.ring_slots):
            if load_acquire_64(&r.rings[ring].state) == <uint64_t>RING_FREE:
                continue
            for _taken in range(TURN_BATCHES_MAX):
                if self.taken[ring] - self.released[ring] >= RING_DESCRIPTORS:
                    break
                kind = ring_peek_at(&r.rings[ring], self.taken[ring], &entry, &payload)
                if kind == RING_NONE or (kind == RING_STALE and ring_refuse(&r.rings[ring], &entry, OUTCOME_UNKNOWN) != 0):
                    break
                memset(&batch, 0, sizeof(batch))
                batch.ring = ring
                batch.token = entry.token
                batch.cursor = self.taken[ring]
                batch.slot = entry.slot
                batch.started_ns = clock_mono_ns()
                self.taken[ring] += 1
                if kind == RING_STALE:
                    self.core.bells |= <uint64_t>1 << ring
                    self._done(ring, batch.cursor)
                elif entry.kind == COMMAND_APPEND:
                    batch.kind = BATCH_APPEND
                    batch.frame = <frame_header *>payload
                    batch.topic_id = batch.frame.topic_id
                    self.admit(&batch)
                elif entry.kind == COMMAND_CALL:
                    batch.kind = BATCH_CALL
                    batch.frame = <frame_header *>payload
                    batch.answer_bytes = entry.bytes
                    queue_push(&self.calls, &batch)
                elif entry.kind >= COMMAND_QUEUE_FIRST and entry.kind <= COMMAND_QUEUE_LAST:
                    self.queue_command(&batch, entry.kind, payload, entry.bytes)
                else:
                    batch.slot = NO_SLOT
                    self.finish(&batch, OUTCOME_OK)
        self.queue_turn()
        if self.flights:
            self._next_flight()
        if not self.flights and not self._launch():
            self.flush_group()
        self._end_turn()
        if self.forwarder.queue_first != self.forwarder.queue_end:    # what no answer waits for
            sched_yield()               # a worker that has just been woken may stand behind us on this CPU
            self.forward(FORWARD_A_SLICE)
            self._end_turn()
        return <int>(queue_length(&self.calls) + self.queue_waiting())

    cdef void _end_turn(self) noexcept nogil:
        cdef Regions *r = self.core.regions
        cdef int ring, shard
        for ring in range(<int>r.ring_slots):
            if self.released[ring] != r.rings[ring].head:
                ring_release(&r.rings[ring], self.released[ring])
            if self.core.bells & (<uint64_t>1 << ring):
                bell_worker(&r.rings[ring])
        self.core.bells = 0
        for shard in range(self.shard_count):
            (<Shard>self.shard[shard]).tell_syncer()     # after the answers: they do not wait for it
        if r.control.forward_debt and self.forwarder.hot == 0 and self.forwarder.waiting == 0:
            store_release_64(&r.control.forward_debt, 0)

    def run(self, int64_t until_mono_ms):
        """Take turns, asleep when there is nothing to do, until a command waits for the engine or the time has come.

        Returns the number of commands that wait.
        """
        cdef Regions *r = self.core.regions
        cdef uint32_t seen
        cdef int waiting = 0, shard
        cdef int64_t left_ns
        with nogil:
            for shard in range(self.shard_count):
                (<Shard>self.shard[shard]).tell_syncer_late()
            while True:
                seen = writer_bell_seen(r)
                self.core.wall_ms = clock_wall_ms()
                self.core.mono_ms = <int64_t>(clock_mono_ns() // 1000000)
                waiting = self.turn_rings()
                left_ns = until_mono_ms * 1000000 - <int64_t>clock_mono_ns()
                if waiting or left_ns <= 0:
                    self.flush_group()      # nothing flies while Python looks at the store
                    self._end_turn()
                    break
                if self.flights:
                    continue
                if self.forwarder.queue_first != self.forwarder.queue_end:
                    continue
                left_ns = min(until_mono_ms, self.wake_at_ms) * 1000000 - <int64_t>clock_mono_ns()
                if left_ns > 0:
                    writer_sleep_unless(r, seen, left_ns)
        return waiting

    def turn(self, uint64_t wall_ms, int64_t mono_ms):
        """Run one turn over the rings; return how many commands wait for the engine."""
        cdef int waiting
        with nogil:
            self.core.wall_ms = wall_ms
            self.core.mono_ms = mono_ms
            waiting = self.turn_rings()
            self.flush_group()
            self._end_turn()
        return waiting

    def end_turn(self):
        """Release ring space and ring the workers' bells after commands were answered."""
        with nogil:
            self.flush_group()
            self._end_turn()

    def reap_dead(self):
        """Free the rings of dead workers whose committed batches are all done; return how many were freed."""
        cdef Regions *r = self.core.regions
        cdef int ring, freed = 0
        for ring in range(<int>r.ring_slots):
            if load_acquire_64(&r.rings[ring].state) != <uint64_t>RING_DEAD or self.taken[ring] != self.released[ring]:
                continue
            with nogil:
                self.queue_ring_gone(ring)
                ring_release(&r.rings[ring], self.released[ring])
                self._forget_watcher(ring)
            if ring_dead_drained(&r.rings[ring]):
                self.taken[ring] = self.released[ring] = r.rings[ring].head
                freed += 1
        return freed

    cdef void _forget_watcher(self, int ring) noexcept nogil:
        cdef uint64_t slot, bit = <uint64_t>1 << ring
        for slot in range(self.core.regions.control.table_high):
            if load_relaxed_64(&self.core.regions.table[slot].watchers) & bit:
                and_64(&self.core.regions.table[slot].watchers, ~bit)

    def adopt_rings(self):
        """Refuse what was committed for a dead writer and start from there: called once by a new writer, after it took a generation."""
        cdef Regions *r = self.core.regions
        cdef int ring
        for ring in range(<int>r.ring_slots):
            ring_reset_for_generation(&r.rings[ring])
            self.taken[ring] = self.released[ring] = r.rings[ring].head

    def wake_all_workers(self):
        """Have every worker look at all its topics: a new writer is ready."""
        cdef int ring
        for ring in range(<int>self.core.regions.ring_slots):
            dirty_everything(&self.core.regions.rings[ring])

    def quiet(self):
        """Tell whether nothing is in flight and every shard is synced."""
        cdef int number
        for number in range(self.shard_count):
            if queue_length(&self.pending[number]) or (<Shard>self.shard[number]).need_sync():
                return False
        return queue_length(&self.group) == 0

    def settle(self):
        """Write and publish what can be. Tell whether nothing is in flight: what is published may still wait for its sync."""
        cdef int number
        with nogil:
            self.flush_group()
            self.release_synced()
            self.forward(FORWARD_ALL)
            self.flush_group()
            self._end_turn()
        for number in range(self.shard_count):
            if queue_length(&self.pending[number]):
                return False
        return queue_length(&self.group) == 0

    def wait_synced(self, uint32_t slot):
        """Wait until nothing of this topic is in flight: commands see a settled topic."""
        cdef topic_slot *topic = &self.core.regions.table[slot]
        cdef Shard shard = <Shard>self.shard[topic.shard]
        with nogil:
            self.flush_group()
        while topic.pending_batches:
            self._sync_shard(shard)
            with nogil:
                self.release_synced()

    def sync(self):
        """Sync every shard now and publish what waited for it (library mode, and shutdown)."""
        cdef Shard shard
        cdef int _round
        for _round in range(SYNC_ROUNDS_MAX):
            with nogil:
                self.flush_group()
            for shard in self.shards:
                while shard.need_sync() and shard.refuses() != -EROFS:
                    self._sync_shard(shard)
            with nogil:
                self.release_synced()
                self.forward(FORWARD_ALL)
            if self.quiet():    # else what was released has been forwarded, and that is to be synced too
                break
        with nogil:
            self._end_turn()

    cdef void _sync_shard(self, Shard shard) noexcept:
        """Have a shard synced: here in library mode, by its thread otherwise (looked at again after a moment)."""
        cdef timespec moment
        with nogil:
            if self.threaded:
                moment.tv_sec = 0
                moment.tv_nsec = SYNC_LOOK_NS
                shard.ask_sync()
                nanosleep(&moment, NULL)
            else:
                shard.sync_once()

    def run_sync_loop(self, int number):
        """Be the thread that syncs a shard, until its loops are stopped."""
        cdef control *bell = self.core.regions.control
        with nogil:
            (<Shard>self.shard[number]).sync_loop(bell)

    def is_poisoned(self, int number):
        """Tell whether a shard's write or sync has failed."""
        return (<Shard>self.shard[number]).refuses() == -EROFS

    def fail_unsynced(self):
        """Answer what is in flight, as far as its fate is known by now."""
        with nogil:
            self.flush_group()
            self.release_synced()

    def failed_places(self, int number):
        """Return the positions of frames that were written, never published, and are void; once."""
        places = self.failed.pop(number, [])
        return places

    def set_threaded(self, bint threaded):
        """Say whether threads of their own sync the shards."""
        self.threaded = threaded

    # ---- replay -----------------------------------------------------------------------------------------------------------------------------------

    cdef int replay_append(self, const frame_header *frame, uint64_t position) noexcept nogil:
        """Publish one batch from the log. 0 published, 1 its topic is unknown, 2 its seqs do not follow, -1 memory is short."""
        cdef uint32_t slot = self._slot_of(frame.topic_id), records, largest
        cdef topic_slot *topic
        cdef Private *own
        cdef key_section *section
        cdef int64_t age_ms
        if slot == NO_SLOT:
            self.orphans += frame.count
            return 1
        topic = &self.core.regions.table[slot]
        touch(&self.core, slot)
        batch_payload(frame, &records, &largest)
        if records == 0 or frame.base_seq <= topic.head:
            self.disorders += 1
            return 2
        if frame.base_seq > topic.head + 1 and leave_hole(&self.core, slot, frame.base_seq - 1, LOSS_CORRUPT) != 0:
            return -1
        if publish(&self.core, slot, frame, position) != 0:
            return -1
        topic.next_seq = topic.head + 1
        topic.last_ts = max(topic.last_ts, frame.ts)
        self.newest_ts = max(self.newest_ts, frame.ts)
        topic.last_position = position & POSITION_MASK
        if routed_of(frame) != NULL:
            self._replay_routed(frame)
        elif frame.flags & FRAME_FLAG_KEY:
            section = <key_section *>(<uint8_t *>frame + FRAME_HEADER_BYTES)
            age_ms = <int64_t>self.core.wall_ms - <int64_t>frame.ts    # below 0: the clock has stepped back, see settle_windows
            if age_ms <= <int64_t>topic.config.idempotency_window_ms:
                own = private_of(&self.core, slot)
                if own != NULL and own.dedupe == NULL:
                    own.dedupe = dedupe_new()
                if own == NULL or own.dedupe == NULL or dedupe_add(
                        own.dedupe, <const uint8_t *>(section + 1), section.key_bytes, section.records_xxh3, frame.base_seq, frame.count,
                        self.core.mono_ms - age_ms) == NULL:
                    return -1
        return 0

    cdef uint32_t _slot_of(self, uint64_t topic_id) noexcept nogil:
        cdef uint64_t place = (topic_id * <uint64_t>0x1E3779B97F4A7C15) >> 20 & self.ids_mask
        while self.ids[2 * place] != 0:
            if self.ids[2 * place] == topic_id:
                return <uint32_t>self.ids[2 * place + 1]
            place = (place + 1) & self.ids_mask
        return NO_SLOT
