"""Claims and what settles them (see queue_core.pxd)."""

cimport cython

from libc.errno cimport ENOSPC
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport abort, calloc, free, malloc, qsort, realloc
from libc.string cimport memcpy, memset

from topicsd._native.atomics cimport load_acquire_64, load_relaxed_64
from topicsd._native.batch cimport BATCH_LEASE, Batch, Queue, free_owned, queue_at, queue_length, queue_open, queue_push
from topicsd._native.frame cimport align8, frame_seal
from topicsd._native.hash cimport xxh3_64
from topicsd._native.index cimport index_at
from topicsd._native.jobs cimport (
    JOB_LEASED, JOB_SETTLING, NO_JOB, NO_RING, Job, Jobs, job_of, jobs_drop_ring, jobs_expire, jobs_extend, jobs_lease, jobs_release,
    jobs_settle, jobs_show, jobs_take, jobs_unsettle, jobs_untake,
)
from topicsd._native.layout cimport (
    CLASS_EPHEMERAL, CLASS_FSYNC, COMPLETION_PAYLOAD_MAX, FRAME_HEADER_BYTES, FRAME_LEASE, FRAME_MAGIC, NO_SLOT, OUTCOME_MOVED, OUTCOME_OK,
    OUTCOME_READ_ONLY, OUTCOME_UNKNOWN, POSITION_BITS, SOURCE_EPHEMERAL, TOPIC_LEASES_DURABLE, TOPIC_QUEUE, completion, frame_header,
    index_entry, topic_slot,
)
from topicsd._native.log cimport Shard
from topicsd._native.queue_wire cimport (
    CLAIM_JOBS_MAX, COMMAND_CLAIM, COMMAND_LEAVE, COMMAND_SETTLE, LEASE_ACK, LEASE_CLAIM, LEASE_EXTEND, LEASE_RELEASE, OUTCOME_NOT_QUEUE,
    claim_command, held_job, lease_body, settle_command,
)
from topicsd._native.regions cimport RING_DEAD
from topicsd._native.sequencer cimport Sequencer
from topicsd._native.topics cimport delete_seqs, expire, jobs_changed, jobs_of, touch, wake_watchers

cdef enum:    # Batch.flags of a lease: they never leave the writer
    FLAG_DEFER = 1       # answered once dead letters were moved
    FLAG_INTERNAL = 2    # nobody waits for an answer
    GRANT_TEXT_MAX = 20  # two LEB128 numbers
    RELEASED_MAX = 1000  # seqs in a frame that frees what a dead worker held
    CLAIM_BYTES_MAX = 8 << 20    # of jobs in an answer, but one at least: as in a page of diff

cdef uint64_t NO_TIME = <uint64_t>1 << 40


cdef frame_header *_new_frame(const topic_slot *topic, uint8_t verb, const uint8_t *node, uint16_t node_bytes, uint32_t count) noexcept nogil:
    """A lease frame with room for its seqs; what the sequencer stamps is left open."""
    cdef uint64_t length = FRAME_HEADER_BYTES + sizeof(lease_body) + align8(node_bytes) + 8 * <uint64_t>count
    cdef frame_header *frame = <frame_header *>calloc(1, length)
    if frame == NULL:
        abort()
    frame.magic = FRAME_MAGIC
    frame.length = <uint32_t>length
    frame.type = <uint8_t>FRAME_LEASE
    frame.topic_id = topic.topic_id
    lease_of(frame).verb = verb
    lease_of(frame).node_bytes = node_bytes
    lease_of(frame).count = count
    memcpy(lease_node(frame), node, node_bytes)
    return frame


cdef uint8_t *_put_leb(uint8_t *at, uint64_t value) noexcept nogil:
    while value >= 128:
        at[0] = <uint8_t>(value | 128)
        value >>= 7
        at += 1
    at[0] = <uint8_t>value
    return at + 1


cdef bint _is_among(const uint64_t *seqs, uint32_t count, uint64_t seq) noexcept nogil:
    cdef uint32_t number
    for number in range(count):
        if seqs[number] == seq:
            return True
    return False


cdef int _by_seq(const void *one, const void *other) noexcept nogil:
    cdef uint64_t first = (<const Grant *>one).seq, second = (<const Grant *>other).seq
    return (first > second) - (first < second)


@cython.no_gc_clear
cdef class QueueCore(Sequencer):
    """The sequencer's queues (A 10, D 10). One thread, the writer's; see queue_core.pxd."""

    def __cinit__(self, *args):
        queue_open(&self.deferred)
        self.next_token = 1

    def __dealloc__(self):
        cdef uint32_t number
        cdef uint64_t place
        for number in range(self.cohorts_used):
            for place in range(self.cohorts[number].members.first, self.cohorts[number].members.end):
                free_owned(queue_at(&self.cohorts[number].members, place))
            free(self.cohorts[number].members.items)
        free(self.cohorts)
        free(self.deferred.items)

    # ---- the door ---------------------------------------------------------------------------------------------------------------

    cdef void queue_command(self, Batch *batch, uint32_t kind, const uint8_t *payload, uint32_t payload_bytes) noexcept nogil:
        batch.kind = BATCH_LEASE
        batch.frame = NULL
        if kind == COMMAND_CLAIM:
            self._claim(batch, payload, payload_bytes)
        elif kind == COMMAND_SETTLE:
            self._settle(batch, payload, payload_bytes)
        elif kind == COMMAND_LEAVE:
            self._leave(batch, payload, payload_bytes)
        else:
            self._refuse(batch, OUTCOME_UNKNOWN)

    cdef void _refuse(self, Batch *batch, uint32_t outcome) noexcept nogil:
        batch.count = 0
        if outcome == OUTCOME_MOVED:
            batch.slot = NO_SLOT
        self.finish(batch, outcome)

    cdef Jobs *_queue_of(self, Batch *batch, uint64_t topic_id) noexcept nogil:
        """The work state of the queue that a command names, as of now. NULL: refused."""
        cdef topic_slot *topic
        cdef Jobs *jobs
        if topic_id == 0 or batch.slot >= self.core.regions.control.topics_max or self.core.regions.table[batch.slot].topic_id != topic_id:
            self._refuse(batch, OUTCOME_MOVED)
            return NULL
        topic = &self.core.regions.table[batch.slot]
        batch.topic_id = topic_id
        if topic.config.type != TOPIC_QUEUE:
            self._refuse(batch, OUTCOME_NOT_QUEUE)
            return NULL
        touch(&self.core, batch.slot)
        jobs = jobs_of(&self.core, batch.slot)
        if jobs == NULL:
            self._refuse(batch, OUTCOME_UNKNOWN)
            return NULL
        expire(&self.core, batch.slot, self.core.wall_ms, <uint64_t>-1)
        if jobs_expire(jobs, self.core.mono_ms):
            jobs_show(jobs, topic)
            wake_watchers(&self.core, batch.slot)
        return jobs

    cdef const uint8_t *queue_answer(self, Batch *batch, completion *answer) noexcept nogil:
        cdef topic_slot *topic
        answer.flags = 0
        answer.first_seq = batch.first_seq
        answer.payload_bytes = batch.answer_bytes if batch.answer != NULL else 0
        memset(answer.values, 0, sizeof(answer.values))
        if batch.slot != NO_SLOT:
            topic = &self.core.regions.table[batch.slot]
            answer.values[0] = topic.queue_ready
            answer.values[1] = topic.queue_in_flight
            answer.values[2] = batch.payload
        return batch.answer

    # ---- claim --------------------------------------------------------------------------------------------------------------------

    cdef void _claim(self, Batch *batch, const uint8_t *payload, uint32_t payload_bytes) noexcept nogil:
        cdef const claim_command *command = <const claim_command *>payload
        cdef Queue alone
        cdef uint32_t jitter_ms
        if (payload_bytes < sizeof(claim_command) or command.max > CLAIM_JOBS_MAX or command.held > CLAIM_JOBS_MAX
                or payload_bytes < sizeof(claim_command) + align8(command.node_bytes) + command.held * sizeof(held_job)):
            self._refuse(batch, OUTCOME_UNKNOWN)
            return
        if self._queue_of(batch, command.topic_id) == NULL:
            return
        batch.frame = <frame_header *>payload
        jitter_ms = self.core.regions.table[batch.slot].config.claim_jitter_ms
        if jitter_ms:
            self._join(batch, jitter_ms, payload_bytes)
            return
        alone.items, alone.mask, alone.first, alone.end = batch, 0, 0, 1
        self._grant(batch.slot, &alone)

    cdef void _grant(self, uint32_t slot, Queue *batches) noexcept nogil:
        """Serve all claims of a cohort at once: the jobs there are, divided in proportion to what each asks for (A 10.2)."""
        cdef Jobs *jobs = jobs_of(&self.core, slot)
        cdef uint64_t members = queue_length(batches), wanted = 0, taken, place, number
        cdef Claimer *claimers = <Claimer *>calloc(members, sizeof(Claimer))
        cdef Grant *grants
        cdef bint due = False
        if claimers == NULL:
            abort()
        for place in range(members):
            claimers[place].batch = queue_at(batches, batches.first + place)
            self._look_at(jobs, &claimers[place])
            wanted += claimers[place].want
        grants = <Grant *>malloc((wanted * 2 + 1) * sizeof(Grant))
        if grants == NULL:
            abort()
        taken = self._take(slot, jobs, grants, wanted, members * CLAIM_BYTES_MAX, &due)
        _divide(claimers, members, wanted, taken)
        number = 0
        for place in range(members):    # each has its own stretch behind the taken ones
            claimers[place].first = wanted + number
            number += claimers[place].share
        number = place = 0
        while number < taken:           # dealt out one by one
            if claimers[place].granted < claimers[place].share:
                grants[claimers[place].first + claimers[place].granted] = grants[number]
                claimers[place].granted += 1
                number += 1
            place = (place + 1) % members
        for place in range(members):
            self._lease(jobs, &claimers[place], &grants[claimers[place].first])
        for place in range(members):
            self._give(slot, jobs, &claimers[place], &grants[claimers[place].first], due)
        jobs_changed(&self.core, slot)
        free(grants)
        free(claimers)

    cdef void _look_at(self, Jobs *jobs, Claimer *claimer) noexcept nogil:
        """How many a claim may get. A work stream says what it believes to hold: what it does hold counts against its bound."""
        cdef const claim_command *command = <const claim_command *>claimer.batch.frame
        cdef const uint8_t *node = <const uint8_t *>(command + 1)
        cdef const held_job *held = <const held_job *>(node + align8(command.node_bytes))
        cdef uint8_t ring = <uint8_t>claimer.batch.ring if claimer.batch.ring >= 0 else <uint8_t>NO_RING
        cdef uint32_t number
        cdef Job *job
        claimer.command = command
        claimer.want = command.max
        claimer.batch.answer = <uint8_t *>calloc(1, COMPLETION_PAYLOAD_MAX)
        if claimer.batch.answer == NULL:
            abort()
        for number in range(command.held):
            job = job_of(jobs, held[number].seq)
            if job != NULL and job.token == held[number].token and (job.state == JOB_LEASED or job.state == JOB_SETTLING):
                claimer.batch.answer[number >> 3] |= 1 << (number & 7)
                claimer.held_now += 1
                job.ring = ring    # also after a writer's death, when the log has not told which worker's stream it was
        claimer.want -= min(claimer.want, claimer.held_now)
        claimer.batch.answer_bytes = (command.held + 7) >> 3
        if claimer.batch.ring >= 0 and load_acquire_64(&self.core.regions.rings[claimer.batch.ring].state) == <uint64_t>RING_DEAD:
            claimer.want = 0       # nobody would work on them

    cdef uint64_t _take(self, uint32_t slot, Jobs *jobs, Grant *grants, uint64_t most, uint64_t bytes_most, bint *due) noexcept nogil:
        cdef index_entry *entry
        cdef uint64_t bytes = 0
        cdef topic_slot *topic = &self.core.regions.table[slot]
        cdef uint64_t deliveries_max = topic.config.max_deliveries if topic.config.dead_letter_bytes else 0, taken = 0
        cdef uint32_t number
        while taken < most and bytes < bytes_most:
            number = jobs_take(jobs, self.core.regions, topic, deliveries_max, due)
            if number == NO_JOB:
                break
            grants[taken].seq = jobs.pool[number].seq
            grants[taken].job = number
            grants[taken].deliveries = jobs.pool[number].deliveries
            entry = index_at(self.core.regions, topic, grants[taken].seq)
            bytes += entry.bytes if entry != NULL else 0
            taken += 1
        return taken

    cdef void _lease(self, Jobs *jobs, Claimer *claimer, Grant *grants) noexcept nogil:
        cdef const claim_command *command = claimer.command
        cdef Batch *batch = claimer.batch
        cdef uint64_t lease_ms = command.lease_ms, holder = xxh3_64(command + 1, command.node_bytes)
        cdef uint8_t ring = <uint8_t>batch.ring if command.stream and batch.ring >= 0 else <uint8_t>NO_RING
        cdef uint32_t number
        if lease_ms == 0:
            lease_ms = self.core.regions.table[batch.slot].config.lease_ms
        qsort(grants, claimer.granted, sizeof(Grant), _by_seq)
        for number in range(claimer.granted):
            jobs_lease(jobs, grants[number].job, self.next_token + number, holder, ring, self.core.mono_ms + <int64_t>lease_ms)
        batch.first_seq = self.next_token
        batch.count = claimer.granted
        batch.payload = self.core.wall_ms + lease_ms    # the deadline
        self.next_token += claimer.granted

    cdef void _give(self, uint32_t slot, Jobs *jobs, Claimer *claimer, Grant *grants, bint due) noexcept nogil:
        """Make the answer and the frame of one claim whose jobs are leased."""
        cdef const claim_command *command = claimer.command
        cdef Batch batch = claimer.batch[0]
        cdef uint8_t *at = batch.answer + batch.answer_bytes
        cdef uint64_t before = 0
        cdef uint32_t number
        cdef void *copy = batch.frame if batch.owned else NULL
        for number in range(<uint32_t>batch.count):
            if at + GRANT_TEXT_MAX > batch.answer + COMPLETION_PAYLOAD_MAX:    # seqs far apart, by the thousand: the rest stays ready
                while batch.count > number:
                    batch.count -= 1
                    jobs_untake(jobs, job_of(jobs, grants[batch.count].seq))
                break
            at = _put_leb(_put_leb(at, grants[number].seq - before), grants[number].deliveries)
            before = grants[number].seq
        batch.answer_bytes = <uint32_t>(at - batch.answer)
        batch.flags = FLAG_DEFER if due else 0
        batch.waits = 1 if batch.count and self.core.regions.table[slot].config.flags & TOPIC_LEASES_DURABLE else 0
        batch.frame = _new_frame(&self.core.regions.table[slot], <uint8_t>LEASE_CLAIM, <const uint8_t *>(command + 1), command.node_bytes,
                                 <uint32_t>batch.count)
        batch.owned = 1
        lease_of(batch.frame).first_token = batch.first_seq
        lease_of(batch.frame).ms = batch.payload - self.core.wall_ms
        for number in range(<uint32_t>batch.count):
            lease_seqs(batch.frame)[number] = grants[number].seq
        free(copy)
        if batch.count == 0:
            batch.payload = 0
        jobs_show(jobs, &self.core.regions.table[slot])    # an answer that waits for nothing reads the counters at once
        self._enqueue(&batch, self._write(&batch, False) if batch.count else -1)

    # ---- frames ---------------------------------------------------------------------------------------------------------------------

    cdef int _write(self, Batch *batch, bint privileged) noexcept nogil:
        """Place, stamp and queue a lease frame. 0 queued, -1 none is needed, else an errno: the log takes no frame."""
        cdef topic_slot *topic = &self.core.regions.table[batch.slot]
        cdef uint32_t number = <uint32_t>topic.shard
        cdef frame_header *frame = batch.frame
        cdef index_entry *entry
        cdef uint64_t position = 0
        cdef int result
        if topic.config.durability == CLASS_EPHEMERAL:
            entry = index_at(self.core.regions, topic, topic.earliest) if topic.count else NULL
            if entry == NULL or entry.position >> POSITION_BITS == SOURCE_EPHEMERAL:
                return -1
        result = self._place(number, frame.length, privileged, &position)
        if result == -ENOSPC and not batch.waits and lease_of(frame).verb != LEASE_ACK:
            return -1     # leases that are not durable may be forgotten; a full disk must not keep jobs from being worked off
        if result != 0:
            return -result if result < 0 else ENOSPC
        frame.shard = <uint16_t>number
        frame.ts = self.core.wall_ms
        frame.synced = load_relaxed_64(&(<Shard>self.shard[number]).line.synced)
        frame.position = position
        frame_seal(frame)
        (<Shard>self.shard[number]).queue(frame, frame.length)
        batch.place = (<uint64_t>number << POSITION_BITS) | position
        batch.end = position + frame.length
        return 0

    cdef void _enqueue(self, Batch *batch, int wrong) noexcept nogil:
        """Let a lease go on its way, by what `_write` said of its frame."""
        if wrong > 0:
            batch.waits = 0
            self.queue_failed(batch)
        elif wrong < 0:
            batch.waits = 0
            self.queue_publish(batch)
        else:
            if batch.waits:
                self.core.regions.table[batch.slot].pending_batches += 1
                batch.durable = 1
            queue_push(&self.group, batch)

    cdef void queue_publish(self, Batch *batch) noexcept nogil:
        cdef topic_slot *topic = &self.core.regions.table[batch.slot]
        if topic.topic_id != batch.topic_id:
            abort()    # a topic goes only when nothing of it is in flight
        if batch.waits:
            topic.pending_batches -= 1
        if batch.frame != NULL and lease_of(batch.frame).verb == LEASE_ACK:
            delete_seqs(&self.core, batch.slot, lease_seqs(batch.frame), lease_of(batch.frame).count)
        if batch.flags & FLAG_INTERNAL:
            free_owned(batch)
        elif batch.flags & FLAG_DEFER:
            queue_push(&self.deferred, batch)
        else:
            self.finish(batch, OUTCOME_OK)

    cdef void queue_failed(self, Batch *batch) noexcept nogil:
        cdef Jobs *jobs = jobs_of(&self.core, batch.slot)
        cdef lease_body *body = lease_of(batch.frame)
        cdef uint32_t number
        cdef Job *job
        if batch.waits:
            self.core.regions.table[batch.slot].pending_batches -= 1
        for number in range(body.count):
            job = job_of(jobs, lease_seqs(batch.frame)[number])
            if job == NULL:
                continue
            if body.verb == LEASE_CLAIM and job.state == JOB_LEASED and job.token == body.first_token + number:
                jobs_untake(jobs, job)
            elif body.verb == LEASE_ACK and job.state == JOB_SETTLING:
                jobs_unsettle(jobs, job)
        jobs_changed(&self.core, batch.slot)
        if batch.flags & FLAG_INTERNAL:
            free_owned(batch)
        else:
            self._refuse(batch, OUTCOME_READ_ONLY)

    # ---- ack, release, extend --------------------------------------------------------------------------------------------------------

    cdef void _settle(self, Batch *batch, const uint8_t *payload, uint32_t payload_bytes) noexcept nogil:
        cdef const settle_command *command = <const settle_command *>payload
        cdef const uint8_t *node = <const uint8_t *>(command + 1)
        cdef const uint64_t *seqs
        cdef topic_slot *topic
        cdef Jobs *jobs
        cdef Job *job
        cdef lease_body *body
        cdef uint64_t holder, highest = 0
        cdef uint32_t number
        if (payload_bytes < sizeof(settle_command) or command.count > CLAIM_JOBS_MAX or command.verb < LEASE_ACK or command.verb > LEASE_EXTEND
                or payload_bytes < sizeof(settle_command) + align8(command.node_bytes) + (16 if command.fenced else 8) * command.count):
            self._refuse(batch, OUTCOME_UNKNOWN)
            return
        jobs = self._queue_of(batch, command.topic_id)
        if jobs == NULL:
            return
        topic = &self.core.regions.table[batch.slot]
        seqs = <const uint64_t *>(node + align8(command.node_bytes))
        holder = xxh3_64(node, command.node_bytes)
        batch.frame = _new_frame(topic, command.verb, node, command.node_bytes, command.count)
        batch.owned = 1
        body = lease_of(batch.frame)
        body.ms, body.count = command.ms, 0
        batch.answer_bytes = (command.count + 7) >> 3
        batch.answer = <uint8_t *>calloc(1, batch.answer_bytes + 1)
        if batch.answer == NULL:
            abort()
        for number in range(command.count):
            job = job_of(jobs, seqs[number])
            if job == NULL or job.state != JOB_LEASED or job.holder != holder or (command.fenced and job.token != seqs[command.count + number]):
                continue
            if seqs[number] <= highest and _is_among(lease_seqs(batch.frame), body.count, seqs[number]):
                continue    # named before in this call: an ack or a release has taken its lease, an extension counts once
            highest = max(highest, seqs[number])
            batch.answer[number >> 3] |= 1 << (number & 7)
            lease_seqs(batch.frame)[body.count] = seqs[number]
            body.count += 1
            if command.verb == LEASE_ACK:
                jobs_settle(jobs, job)
            elif command.verb == LEASE_RELEASE:
                jobs_release(jobs, job, self.core.mono_ms + <int64_t>command.ms, self.core.mono_ms)
            else:
                jobs_extend(jobs, job, self.core.mono_ms + <int64_t>command.ms)
        self._settled_jobs(batch, topic, command)

    cdef void _settled_jobs(self, Batch *batch, topic_slot *topic, const settle_command *command) noexcept nogil:
        cdef lease_body *body = lease_of(batch.frame)
        batch.count = body.count
        batch.frame.length -= 8 * (command.count - body.count)
        batch.payload = self.core.wall_ms + command.ms if command.verb == LEASE_EXTEND else 0
        if body.count == 0:
            self._enqueue(batch, -1)
            return
        if command.verb == LEASE_ACK:
            batch.waits = 1 if topic.config.durability == CLASS_FSYNC or topic.pending_batches else 0
        else:
            batch.waits = 1 if topic.config.flags & TOPIC_LEASES_DURABLE else 0
            jobs_changed(&self.core, batch.slot)
            if command.verb == LEASE_RELEASE:
                wake_watchers(&self.core, batch.slot)
        self._enqueue(batch, self._write(batch, command.verb != LEASE_EXTEND))

    # ---- cohorts -----------------------------------------------------------------------------------------------------------------------

    cdef void _join(self, Batch *batch, uint32_t jitter_ms, uint32_t payload_bytes) noexcept nogil:
        """Let a claim wait for its cohort, with a copy of its payload: its ring goes on."""
        cdef Cohort *cohort = NULL
        cdef uint32_t number
        cdef frame_header *copy = <frame_header *>malloc(payload_bytes)
        if copy == NULL:
            abort()
        memcpy(copy, batch.frame, payload_bytes)
        batch.frame, batch.owned = copy, 1
        if batch.ring >= 0:
            batch.detached = 1
            self._done(batch.ring, batch.cursor)
        for number in range(self.cohorts_used):
            if self.cohorts[number].slot == batch.slot and self.cohorts[number].topic_id == batch.topic_id:
                cohort = &self.cohorts[number]
        if cohort == NULL:
            if self.cohorts_used == self.cohorts_room:
                cohort = <Cohort *>realloc(self.cohorts, (self.cohorts_room * 2 + 8) * sizeof(Cohort))
                if cohort == NULL:
                    abort()
                self.cohorts, self.cohorts_room = cohort, self.cohorts_room * 2 + 8
            cohort = &self.cohorts[self.cohorts_used]
            self.cohorts_used += 1
            cohort.slot, cohort.topic_id, cohort.due_ms = batch.slot, batch.topic_id, self.core.mono_ms + jitter_ms
            if queue_open(&cohort.members) != 0:
                abort()
        queue_push(&cohort.members, batch)
        self._wake_at()

    cdef void _wake_at(self) noexcept nogil:
        cdef uint32_t number
        self.wake_at_ms = NO_TIME
        for number in range(self.cohorts_used):
            self.wake_at_ms = min(self.wake_at_ms, self.cohorts[number].due_ms)

    cdef void queue_turn(self) noexcept nogil:
        cdef uint32_t number = 0
        cdef Cohort cohort
        cdef uint64_t place
        cdef Batch batch
        while number < self.cohorts_used:
            cohort = self.cohorts[number]
            if cohort.due_ms > self.core.mono_ms and self.core.regions.table[cohort.slot].topic_id == cohort.topic_id:
                number += 1
                continue
            self.cohorts_used -= 1
            self.cohorts[number] = self.cohorts[self.cohorts_used]
            if self.core.regions.table[cohort.slot].topic_id == cohort.topic_id:
                if queue_length(&cohort.members):
                    batch = queue_at(&cohort.members, cohort.members.first)[0]
                    self._queue_of(&batch, cohort.topic_id)    # what has expired or fallen due by now
                    self._grant(cohort.slot, &cohort.members)
            else:
                for place in range(cohort.members.first, cohort.members.end):
                    self._refuse(queue_at(&cohort.members, place), OUTCOME_MOVED)
            free(cohort.members.items)
        self._wake_at()

    cdef void _leave(self, Batch *batch, const uint8_t *payload, uint32_t payload_bytes) noexcept nogil:
        """Take a claim out of its cohort: its client has gone, and its share is the others'. Both are answered."""
        cdef uint64_t place
        cdef uint32_t number
        cdef Queue *members
        cdef Batch gone
        cdef bint found = False
        batch.slot = NO_SLOT
        for number in range(self.cohorts_used):
            members = &self.cohorts[number].members
            for place in range(members.first, members.end):
                if found:
                    queue_at(members, place - 1)[0] = queue_at(members, place)[0]
                elif (payload_bytes >= 8 and queue_at(members, place).ring == batch.ring
                        and queue_at(members, place).token == (<uint64_t *>payload)[0]):
                    gone = queue_at(members, place)[0]
                    found = True
            if found:
                members.end -= 1
                self._refuse(&gone, OUTCOME_OK)
                break
        batch.count = found
        self.finish(batch, OUTCOME_OK)

    cdef uint64_t queue_waiting(self) noexcept nogil:
        return queue_length(&self.deferred)

    cdef void queue_ring_gone(self, int ring) noexcept nogil:
        """A worker has died: its claims leave their cohorts, what its work streams held goes back at once."""
        cdef uint32_t number, slot
        cdef uint64_t place, kept
        cdef Queue *members
        for number in range(self.cohorts_used):
            members = &self.cohorts[number].members
            kept = members.first
            for place in range(members.first, members.end):
                if queue_at(members, place).ring == ring:
                    free_owned(queue_at(members, place))
                    continue
                queue_at(members, kept)[0] = queue_at(members, place)[0]
                kept += 1
            members.end = kept
        for number in range(self.core.timed_queues_used):
            slot = self.core.timed_queues[number]
            self._release_ring(slot, self.core.privates[slot].jobs, <uint8_t>ring)

    cdef void _release_ring(self, uint32_t slot, Jobs *jobs, uint8_t ring) noexcept nogil:
        """Write a release of what a dead worker's streams held in one queue, RELEASED_MAX a frame, then do it."""
        cdef topic_slot *topic = &self.core.regions.table[slot]
        cdef uint32_t number = 0
        cdef Batch batch
        touch(&self.core, slot)
        while number < jobs.pool_used:
            memset(&batch, 0, sizeof(batch))
            batch.kind, batch.ring, batch.slot, batch.topic_id, batch.flags = BATCH_LEASE, -1, slot, topic.topic_id, FLAG_INTERNAL
            batch.frame = _new_frame(topic, <uint8_t>LEASE_RELEASE, NULL, 0, RELEASED_MAX)
            batch.owned = 1
            lease_of(batch.frame).count = 0
            while number < jobs.pool_used and lease_of(batch.frame).count < RELEASED_MAX:
                if jobs.pool[number].state == JOB_LEASED and jobs.pool[number].ring == ring:
                    lease_seqs(batch.frame)[lease_of(batch.frame).count] = jobs.pool[number].seq
                    lease_of(batch.frame).count += 1
                number += 1
            batch.frame.length -= 8 * (RELEASED_MAX - lease_of(batch.frame).count)
            self._enqueue(&batch, self._write(&batch, True) if lease_of(batch.frame).count else -1)
        if jobs_drop_ring(jobs, ring):
            jobs_changed(&self.core, slot)
            wake_watchers(&self.core, slot)


cdef void _divide(Claimer *claimers, uint64_t members, uint64_t wanted, uint64_t taken) noexcept nogil:
    """Shares in proportion to what each wants; what is left by rounding goes one by one from the first."""
    cdef uint64_t place, given = 0
    for place in range(members):
        claimers[place].share = <uint32_t>(claimers[place].want * taken // wanted) if wanted else 0
        given += claimers[place].share
    place = 0
    while given < taken:
        if claimers[place].share < claimers[place].want:
            claimers[place].share += 1
            given += 1
        place = (place + 1) % members
