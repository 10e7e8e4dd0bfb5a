"""Queues as the engine's Python sees them (see queue_door.pxd)."""

cimport cython

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport ENOENT
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from topicsd._native.atomics cimport clock_mono_ns
from topicsd._native.batch cimport BATCH_APPEND, Batch, free_owned, queue_at, queue_length, queue_open, queue_push
from topicsd._native.frame cimport align8, frame_body
from topicsd._native.hash cimport xxh3_64
from topicsd._native.index cimport index_at
from topicsd._native.jobs cimport (
    JOB_DELAYED, JOB_FREE, JOB_LEASED, JOB_READY, JOB_STUCK, JOB_UNWRITABLE, Job, Jobs, job_of, jobs_earlier, jobs_expire, jobs_extend, jobs_gone,
    jobs_release, jobs_relive, jobs_restick, jobs_restore, jobs_show, jobs_unstick,
)
from topicsd._native.layout cimport (
    FRAME_FLAG_KEY, FRAME_HEADER_BYTES, INDEX_DELETED, INDEX_HOLE, NO_SLOT, OUTCOME_OK, TOPIC_QUEUE, completion, frame_header, index_entry,
    key_section, topic_slot,
)
from topicsd._native.lost_jobs cimport is_corrupt, mark_lost
from topicsd._native.queue_core cimport QueueCore, lease_node, lease_of, lease_seqs
from topicsd._native.queue_wire cimport (
    LEASE_ACK, LEASE_BURY, LEASE_CLAIM, LEASE_LOST, LEASE_RELEASE, LEASE_REMOVE, lease_body, letter_key,
)
from topicsd._native.sealed cimport Sealed
from topicsd._native.table cimport slot_name
from topicsd._native.topics cimport delete_seqs, jobs_changed, jobs_of, touch, wake_watchers

cdef enum:
    TOKEN_SHIFT = 20


@cython.no_gc_clear
cdef class QueueDoor(QueueCore):
    """Replay of queues, their timers, and what moves records between topics. One thread, the writer's; see queue_door.pxd."""

    def __cinit__(self, *args):
        queue_open(&self.letters)

    def __dealloc__(self):
        free(self.letters.items)

    # ---- replay ------------------------------------------------------------------------------------------------------------------------

    cdef bint _is_live(self, const topic_slot *topic, uint64_t seq) noexcept nogil:
        cdef index_entry *entry
        if seq < topic.earliest or seq > topic.head:
            return False
        entry = index_at(self.core.regions, topic, seq)
        return entry != NULL and not entry.flags & (INDEX_DELETED | INDEX_HOLE)

    cdef int replay_lease(self, const frame_header *frame) noexcept nogil:
        """Do what a lease frame of the log says. 0, 1: its topic is unknown, -1: memory is short."""
        cdef uint32_t slot = self._slot_of(frame.topic_id), number, count
        cdef lease_body *body = lease_of(frame)
        cdef topic_slot *topic
        cdef Jobs *jobs
        cdef int64_t due_ms
        cdef uint64_t seq, holder
        if slot == NO_SLOT:
            return 1
        topic = &self.core.regions.table[slot]
        touch(&self.core, slot)
        if frame.length < FRAME_HEADER_BYTES + sizeof(lease_body):
            return 0
        count = body.count
        if FRAME_HEADER_BYTES + sizeof(lease_body) + align8(body.node_bytes) + 8 * <uint64_t>count > frame.length:
            return 0
        self.next_token = max(self.next_token, body.first_token + count)
        self.newest_ts = max(self.newest_ts, frame.ts)
        if body.verb == LEASE_ACK or body.verb == LEASE_BURY or body.verb == LEASE_REMOVE or body.verb == LEASE_LOST:
            if body.verb == LEASE_BURY and topic.config.type == TOPIC_QUEUE and jobs_of(&self.core, slot) != NULL:
                if frame.position < jobs_of(&self.core, slot).held:
                    delete_seqs(&self.core, slot, lease_seqs(frame), count)
                    return 0
            self._remove(slot, body.verb, lease_seqs(frame), count)
            return 0
        if topic.config.type != TOPIC_QUEUE:
            return 0
        jobs = jobs_of(&self.core, slot)
        if jobs == NULL:
            return -1
        if frame.position < jobs.held:
            return 0
        due_ms = self.core.mono_ms + <int64_t>body.ms - (<int64_t>self.core.wall_ms - <int64_t>frame.ts)
        holder = xxh3_64(lease_node(frame), body.node_bytes)
        for number in range(count):
            seq = lease_seqs(frame)[number]
            if body.verb == LEASE_CLAIM:
                if self._is_live(topic, seq) and jobs_relive(jobs, seq, body.first_token + number, holder, due_ms, self.core.mono_ms) != 0:
                    return -1
            else:
                self._apply_settle(jobs, job_of(jobs, seq), body, due_ms)
        jobs_changed(&self.core, slot)
        return 0

    cdef uint32_t _apply_settle(self, Jobs *jobs, Job *job, const lease_body *body, int64_t due_ms) noexcept nogil:
        if job == NULL or job.state != JOB_LEASED:
            return 0
        if body.verb == LEASE_RELEASE:
            jobs_release(jobs, job, due_ms if body.ms else self.core.mono_ms, self.core.mono_ms)
        else:
            jobs_extend(jobs, job, due_ms)
        return 1

    cdef uint64_t _remove(self, uint32_t slot, uint8_t verb, const uint64_t *seqs, uint32_t count) noexcept nogil:
        cdef uint64_t removed
        cdef uint32_t number
        touch(&self.core, slot)
        for number in range(count if verb == LEASE_LOST else 0):
            mark_lost(self.core.regions, &self.core.regions.table[slot], seqs[number])
        removed = delete_seqs(&self.core, slot, seqs, count)
        if verb == LEASE_BURY and self.core.regions.table[slot].config.type == TOPIC_QUEUE and jobs_of(&self.core, slot) != NULL:
            jobs_of(&self.core, slot).dead_lettered += count
            jobs_show(jobs_of(&self.core, slot), &self.core.regions.table[slot])
        return removed

    cdef int replay_letter(self, const frame_header *frame) noexcept nogil:
        """Remember where a moved record came from: after the walk it must be gone there."""
        cdef key_section *section = <key_section *>frame_body(frame)
        cdef const letter_key *key = <const letter_key *>(section + 1)
        cdef Batch batch
        if not frame.flags & FRAME_FLAG_KEY or section.key_bytes != sizeof(letter_key) or (key.verb != LEASE_BURY and key.verb != LEASE_REMOVE):
            return 0
        memset(&batch, 0, sizeof(batch))
        batch.topic_id, batch.first_seq, batch.flags = key.topic_id, key.seq, <uint32_t>key.verb
        queue_push(&self.letters, &batch)
        return 1

    # ---- Python's side -------------------------------------------------------------------------------------------------------------------

    cdef void _count_fresh(self, uint32_t slot, Jobs *jobs) noexcept nogil:
        """After replay from a snapshot: forget jobs without a record, and count the records without a job."""
        cdef topic_slot *topic = &self.core.regions.table[slot]
        cdef uint32_t number
        for number in range(jobs.pool_used):
            if jobs.pool[number].state != JOB_FREE and not self._is_live(topic, jobs.pool[number].seq):
                jobs_gone(jobs, jobs.pool[number].seq)
        jobs.fresh = topic.count - min(topic.count, <uint64_t>jobs.known)
        jobs.held = 0
        jobs_show(jobs, topic)

    def learn_token(self, uint64_t token):
        """Never give a lease a token below this."""
        self.next_token = max(self.next_token, token)

    def load_jobs(self, uint32_t slot, bytes text, uint64_t position, uint64_t wall_ms, int64_t mono_ms):
        """Take a row back before any frame is replayed. Raises ValueError for one that is none."""
        cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(text)
        cdef const jobs_row *head = <const jobs_row *>at
        cdef const job_row *row = <const job_row *>(head + 1)
        cdef Jobs *jobs = jobs_of(&self.core, slot)
        cdef uint64_t _number
        cdef Job job
        if len(text) < <Py_ssize_t>sizeof(jobs_row) or len(text) - sizeof(jobs_row) != head.count * sizeof(job_row):
            raise ValueError("a row of jobs that is cut short")
        if jobs == NULL:
            raise MemoryError
        memset(&job, 0, sizeof(job))
        for _number in range(head.count):
            if row.state != JOB_READY and row.state != JOB_DELAYED and row.state != JOB_LEASED or job_of(jobs, row.seq) != NULL:
                raise ValueError("a row of jobs with a state that is none")
            job.seq, job.token, job.holder, job.deliveries = row.seq, row.token, row.holder, row.deliveries
            job.priority, job.state = row.priority, row.state
            job.due_ms = mono_ms + row.left_ms - (<int64_t>wall_ms - <int64_t>head.wall_ms)
            if jobs_restore(jobs, &job) != 0:
                raise MemoryError
            row += 1
        jobs.dead_lettered, jobs.held = head.dead_lettered, position + 1
        self.next_token = max(self.next_token, head.next_token)
        self.newest_ts = max(self.newest_ts, head.wall_ms)
        jobs_changed(&self.core, slot)

    def open_queues(self, uint64_t wall_ms):
        """After replay: begin a range of tokens that no lease has had, and let no step of the wall clock lengthen a lease or a delay."""
        cdef int64_t ahead_ms = <int64_t>self.newest_ts - <int64_t>wall_ms
        cdef uint32_t place
        cdef uint32_t slot
        self.next_token = max(self.next_token, wall_ms << TOKEN_SHIFT)
        for slot in range(self.core.regions.control.table_high):
            if self.core.privates[slot] != NULL and self.core.privates[slot].jobs != NULL and self.core.privates[slot].jobs.held:
                self._count_fresh(slot, self.core.privates[slot].jobs)
        if ahead_ms > 0:
            for place in range(self.core.timed_queues_used):
                touch(&self.core, self.core.timed_queues[place])
                jobs_earlier(self.core.privates[self.core.timed_queues[place]].jobs, ahead_ms)
        self.settle_queues()

    def unremoved_letters(self):
        """After replay: return (slot, seq, verb) of records that were moved elsewhere and are still live here: the writer died in between; once."""
        cdef Batch *batch
        cdef list found = []
        cdef uint32_t slot
        while self.letters.first != self.letters.end:
            batch = queue_at(&self.letters, self.letters.first)
            self.letters.first += 1
            slot = self._slot_of(batch.topic_id)
            if slot != NO_SLOT and self._is_live(&self.core.regions.table[slot], batch.first_seq):
                found.append((slot, batch.first_seq, batch.flags))
        return found

    def settle_queues(self):
        """Let leases and delays end that are due, and wake who waits for jobs; return how many jobs became ready."""
        cdef uint32_t place = 0, slot
        cdef uint64_t count, total = 0
        cdef Jobs *jobs
        while place < self.core.timed_queues_used:
            slot = self.core.timed_queues[place]
            jobs = self.core.privates[slot].jobs
            if jobs.timed.length and jobs.pool[jobs.timed.items[0]].due_ms <= self.core.mono_ms:
                touch(&self.core, slot)
            count = jobs_expire(jobs, self.core.mono_ms)
            if count:
                total += count
                jobs_show(jobs, &self.core.regions.table[slot])
                wake_watchers(&self.core, slot)
            if jobs.timed.length == 0:
                jobs.listed = 0
                self.core.timed_queues_used -= 1
                self.core.timed_queues[place] = self.core.timed_queues[self.core.timed_queues_used]
            else:
                place += 1
        return total

    def topic_name(self, uint32_t slot):
        """Return a topic's name."""
        cdef const topic_slot *topic = &self.core.regions.table[slot]
        return slot_name(self.core.regions, topic, topic.name_bytes)[:topic.name_bytes]

    def deferred_slot(self):
        """Return the slot of the claim that waits for its dead letters to be moved, or None."""
        if queue_length(&self.deferred) == 0:
            return None
        return queue_at(&self.deferred, self.deferred.first).slot

    def answer_deferred(self):
        """Answer that claim."""
        cdef Batch batch = queue_at(&self.deferred, self.deferred.first)[0]
        self.deferred.first += 1
        with nogil:
            self.finish(&batch, OUTCOME_OK)

    def stuck_jobs(self, uint32_t slot):
        """Return (seq, deliveries) of a queue's jobs that are due for the dead-letter topic, in order; those that could not be written too."""
        cdef Jobs *jobs = self.core.privates[slot].jobs if self.core.privates[slot] != NULL else NULL
        cdef uint32_t place
        if jobs == NULL:
            return []
        jobs_restick(jobs)
        return sorted((jobs.pool[jobs.stuck.items[place]].seq, jobs.pool[jobs.stuck.items[place]].deliveries) for place in range(jobs.stuck.length))

    def unstick(self, uint32_t slot, list seqs, bint due):
        """Let stuck jobs count as ready. `due`: they are not handed out, only tried again; else they are ready as any."""
        cdef Jobs *jobs = jobs_of(&self.core, slot)
        cdef Job *job
        touch(&self.core, slot)
        for seq in seqs:
            job = job_of(jobs, seq)
            if job != NULL and (job.state == JOB_STUCK or job.state == JOB_UNWRITABLE):
                jobs_unstick(jobs, job, not due)
        jobs_changed(&self.core, slot)
        if seqs and not due:
            wake_watchers(&self.core, slot)

    def is_unreadable(self, uint32_t slot, uint64_t seq):
        """Tell whether a record that is live cannot be read, for good: a lack of memory, of descriptors or of the cold tier is none of it."""
        cdef topic_slot *topic = &self.core.regions.table[slot]
        cdef Sealed *sealed = <Sealed *>self.core.regions.sealed
        if sealed == NULL or not self._is_live(topic, seq):
            return False
        sealed.maps.failure = 0
        return is_corrupt(self.core.regions, topic, seq) and (sealed.maps.failure == 0 or sealed.maps.failure == -ENOENT)

    def remove_moved(self, uint32_t slot, int verb, list seqs):
        """Delete records that a frame says were moved; return how many were live."""
        cdef uint64_t *wanted = <uint64_t *>malloc((len(seqs) + 1) * sizeof(uint64_t))
        cdef uint32_t number
        cdef uint64_t removed
        if wanted == NULL:
            raise MemoryError
        for number in range(<uint32_t>len(seqs)):
            wanted[number] = seqs[number]
        removed = self._remove(slot, <uint8_t>verb, wanted, <uint32_t>len(seqs))
        free(wanted)
        return removed

    cdef int _append_of(self, Batch *batch, uint32_t slot, bytes frame, uint64_t token) except -1:
        """Make a batch of one encoded append that no ring has brought."""
        memset(batch, 0, sizeof(Batch))
        batch.kind = BATCH_APPEND
        batch.ring = -1
        batch.token = token
        batch.slot = slot
        batch.topic_id = self.core.regions.table[slot].topic_id
        batch.frame = <frame_header *>malloc(len(frame))
        if batch.frame == NULL:
            raise MemoryError
        memcpy(batch.frame, PyBytes_AS_STRING(frame), len(frame))
        batch.owned = 1
        batch.started_ns = clock_mono_ns()
        return 0

    def append_moved(self, uint32_t slot, bytes frame, uint64_t token):
        """Append a record that comes from another topic and see it published or refused; return (outcome, seq)."""
        cdef Batch batch
        cdef uint64_t place
        self._append_of(&batch, slot, frame, token)
        with nogil:
            self.admit(&batch)
        self.wait_synced(slot)
        with nogil:
            self._forward_and_answer()
        for place in range(self.finished.first, self.finished.end):
            if queue_at(&self.finished, place).token == token:
                batch = queue_at(&self.finished, place)[0]
                while place + 1 < self.finished.end:
                    queue_at(&self.finished, place)[0] = queue_at(&self.finished, place + 1)[0]
                    place += 1
                self.finished.end -= 1
                free_owned(&batch)
                return batch.outcome, batch.first_seq
        raise AssertionError("an append that waited for its sync was not answered")

    # ---- library mode --------------------------------------------------------------------------------------------------------------------

    def queue_call(self, int kind, uint32_t slot, bytes payload, uint64_t token, uint64_t wall_ms, int64_t mono_ms):
        """Run a command of queues as if it came by a ring; the answer comes through `take_lease`."""
        cdef Batch batch
        cdef const uint8_t *bytes_of = <const uint8_t *>PyBytes_AS_STRING(payload)
        cdef uint32_t length = <uint32_t>len(payload)
        memset(&batch, 0, sizeof(batch))
        batch.ring = -1
        batch.token = token
        batch.slot = slot
        batch.started_ns = clock_mono_ns()
        self.core.wall_ms = wall_ms
        self.core.mono_ms = mono_ms
        with nogil:
            self.queue_command(&batch, kind, bytes_of, length)

    def take_lease(self):
        """Return the next answer as (token, outcome, count, first token, ready, in flight, deadline, payload), or None."""
        cdef Batch *batch
        cdef completion answer
        cdef const uint8_t *payload
        if self.finished.first == self.finished.end:
            return None
        batch = queue_at(&self.finished, self.finished.first)
        memset(&answer, 0, sizeof(answer))
        payload = self.queue_answer(batch, &answer)
        text = PyBytes_FromStringAndSize(<const char *>payload, answer.payload_bytes) if payload != NULL else b""
        self.finished.first += 1
        free_owned(batch)
        return batch.token, batch.outcome, batch.count, batch.first_seq, answer.values[0], answer.values[1], answer.values[2], text

    def jobs_of_slot(self, uint32_t slot):
        """Return (seq, state, token, deliveries, due in ms, priority) of every job that is known one by one, and (fresh, cursor): for tests."""
        cdef Jobs *jobs = jobs_of(&self.core, slot)
        cdef uint32_t number
        cdef list known = []
        for number in range(jobs.pool_used):
            if jobs.pool[number].state:
                job = jobs.pool[number]
                known.append((job.seq, job.state, job.token, job.deliveries, job.due_ms - self.core.mono_ms, job.priority))
        return sorted(known), (jobs.fresh, jobs.cursor)
