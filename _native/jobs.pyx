"""The work state of one queue (see jobs.pxd)."""

from libc.stdlib cimport abort, calloc, free, realloc
from libc.string cimport memset

from topicsd._native.atomics cimport store_relaxed_64
from topicsd._native.frame cimport append_first, entry_delay_ms, entry_extension, entry_next, entry_priority
from topicsd._native.index cimport index_at
from topicsd._native.layout cimport INDEX_DELETED, INDEX_HOLE, INDEX_PAGE_ENTRIES, index_entry, record_entry

cdef enum:
    POOL_FIRST = 16
    TABLE_FIRST = 32
    HEAP_FIRST = 16
    PRIORITY_MOST = 1000

ctypedef bint (*Before)(const Jobs *jobs, uint32_t first, uint32_t second) noexcept nogil


cdef Jobs *jobs_new() noexcept nogil:
    cdef Jobs *jobs = <Jobs *>calloc(1, sizeof(Jobs))
    if jobs == NULL:
        return NULL
    jobs.table = <uint32_t *>calloc(TABLE_FIRST, sizeof(uint32_t))
    jobs.table_mask = TABLE_FIRST - 1
    jobs.pool_free = NO_JOB
    if jobs.table == NULL:
        free(jobs)
        return NULL
    return jobs


cdef void jobs_free(Jobs *jobs) noexcept nogil:
    if jobs == NULL:
        return
    free(jobs.pool)
    free(jobs.table)
    free(jobs.ready.items)
    free(jobs.timed.items)
    free(jobs.stuck.items)
    free(jobs)


cdef uint64_t jobs_ready(const Jobs *jobs) noexcept nogil:
    return jobs.fresh + jobs.ready.length + jobs.unwritable


cdef void jobs_show(Jobs *jobs, topic_slot *topic) noexcept nogil:
    store_relaxed_64(&topic.queue_ready, jobs_ready(jobs))
    store_relaxed_64(&topic.queue_in_flight, jobs.in_flight)
    store_relaxed_64(&topic.queue_dead_lettered, jobs.dead_lettered)


# ---- the table ----------------------------------------------------------------------------------------------------------------


cdef inline uint64_t _home(const Jobs *jobs, uint64_t seq) noexcept nogil:
    return (seq * <uint64_t>0x9E3779B97F4A7C15) >> 32 & jobs.table_mask


cdef uint64_t _find(const Jobs *jobs, uint64_t seq) noexcept nogil:
    """The place in the table that holds `seq`, or the empty one where it belongs."""
    cdef uint64_t at = _home(jobs, seq)
    while jobs.table[at] != 0 and jobs.pool[jobs.table[at] - 1].seq != seq:
        at = (at + 1) & jobs.table_mask
    return at


cdef Job *job_of(const Jobs *jobs, uint64_t seq) noexcept nogil:
    cdef uint32_t found = jobs.table[_find(jobs, seq)]
    return &jobs.pool[found - 1] if found else NULL


cdef int _widen(Jobs *jobs) noexcept nogil:
    cdef uint64_t old_mask = jobs.table_mask, at
    cdef uint32_t *old = jobs.table
    cdef uint32_t *wider
    if (<uint64_t>jobs.known + 1) * 2 <= old_mask + 1:
        return 0
    wider = <uint32_t *>calloc((old_mask + 1) * 2, sizeof(uint32_t))
    if wider == NULL:
        return -1
    jobs.table, jobs.table_mask = wider, old_mask * 2 + 1
    for at in range(old_mask + 1):
        if old[at]:
            wider[_find(jobs, jobs.pool[old[at] - 1].seq)] = old[at]
    free(old)
    return 0


cdef uint32_t _make(Jobs *jobs, uint64_t seq) noexcept nogil:
    """A new job in no state, known by its seq. NO_JOB: memory is short."""
    cdef uint32_t number = jobs.pool_free, room
    cdef Job *pool
    if _widen(jobs) != 0:
        return NO_JOB
    if number != NO_JOB:
        jobs.pool_free = jobs.pool[number].place
    else:
        if jobs.pool_used == jobs.pool_room:
            room = jobs.pool_room * 2 if jobs.pool_room else <uint32_t>POOL_FIRST
            pool = <Job *>realloc(jobs.pool, room * sizeof(Job))
            if pool == NULL:
                return NO_JOB
            jobs.pool, jobs.pool_room = pool, room
        number = jobs.pool_used
        jobs.pool_used += 1
    memset(&jobs.pool[number], 0, sizeof(Job))
    jobs.pool[number].seq = seq
    jobs.pool[number].ring = NO_RING
    jobs.table[_find(jobs, seq)] = number + 1
    jobs.known += 1
    return number


cdef void _forget(Jobs *jobs, uint32_t number) noexcept nogil:
    """Take a job that stands in no heap out of table and pool."""
    cdef uint64_t hole = _find(jobs, jobs.pool[number].seq), at = hole, home
    while True:
        at = (at + 1) & jobs.table_mask
        if jobs.table[at] == 0:
            break
        home = _home(jobs, jobs.pool[jobs.table[at] - 1].seq)
        if ((at - home) & jobs.table_mask) >= ((at - hole) & jobs.table_mask):
            jobs.table[hole] = jobs.table[at]
            hole = at
    jobs.table[hole] = 0
    jobs.pool[number].state = JOB_FREE
    jobs.pool[number].place = jobs.pool_free
    jobs.pool_free = number
    jobs.known -= 1


# ---- heaps ----------------------------------------------------------------------------------------------------------------------


cdef bint _ready_before(const Jobs *jobs, uint32_t first, uint32_t second) noexcept nogil:
    cdef const Job *one = &jobs.pool[first]
    cdef const Job *other = &jobs.pool[second]
    if one.priority != other.priority:
        return one.priority > other.priority
    if (one.deliveries == 0) != (other.deliveries == 0):
        return one.deliveries != 0
    return one.seq < other.seq


cdef bint _due_before(const Jobs *jobs, uint32_t first, uint32_t second) noexcept nogil:
    if jobs.pool[first].due_ms != jobs.pool[second].due_ms:
        return jobs.pool[first].due_ms < jobs.pool[second].due_ms
    return jobs.pool[first].seq < jobs.pool[second].seq


cdef bint _seq_before(const Jobs *jobs, uint32_t first, uint32_t second) noexcept nogil:
    return jobs.pool[first].seq < jobs.pool[second].seq


cdef inline void _set(Jobs *jobs, Heap *heap, uint32_t place, uint32_t number) noexcept nogil:
    heap.items[place] = number
    jobs.pool[number].place = place


cdef void _up(Jobs *jobs, Heap *heap, Before before, uint32_t place) noexcept nogil:
    cdef uint32_t number = heap.items[place], parent
    while place:
        parent = (place - 1) >> 1
        if not before(jobs, number, heap.items[parent]):
            break
        _set(jobs, heap, place, heap.items[parent])
        place = parent
    _set(jobs, heap, place, number)


cdef void _down(Jobs *jobs, Heap *heap, Before before, uint32_t place) noexcept nogil:
    cdef uint32_t number = heap.items[place], child
    while True:
        child = 2 * place + 1
        if child >= heap.length:
            break
        if child + 1 < heap.length and before(jobs, heap.items[child + 1], heap.items[child]):
            child += 1
        if not before(jobs, heap.items[child], number):
            break
        _set(jobs, heap, place, heap.items[child])
        place = child
    _set(jobs, heap, place, number)


cdef inline Heap *_heap(Jobs *jobs, uint8_t state, Before *before) noexcept nogil:
    """The heap that jobs of a state stand in, NULL for none."""
    if state == JOB_READY:
        before[0] = _ready_before
        return &jobs.ready
    if state == JOB_DELAYED or state == JOB_LEASED:
        before[0] = _due_before
        return &jobs.timed
    if state == JOB_STUCK or state == JOB_UNWRITABLE:
        before[0] = _seq_before
        return &jobs.stuck
    return NULL


cdef void _leave(Jobs *jobs, uint32_t number) noexcept nogil:
    """Take a job out of its state: heap and counters."""
    cdef uint32_t place = jobs.pool[number].place, last
    cdef Before before
    cdef Heap *heap = _heap(jobs, jobs.pool[number].state, &before)
    if jobs.pool[number].state == JOB_LEASED or jobs.pool[number].state == JOB_SETTLING:
        jobs.in_flight -= 1
    elif jobs.pool[number].state == JOB_UNWRITABLE:
        jobs.unwritable -= 1
    if heap == NULL:
        return
    heap.length -= 1
    if place != heap.length:
        last = heap.items[heap.length]
        _set(jobs, heap, place, last)
        _up(jobs, heap, before, place)
        _down(jobs, heap, before, jobs.pool[last].place)


cdef void _enter(Jobs *jobs, uint32_t number, uint8_t state) noexcept nogil:
    """Put a job that has left its state into another one."""
    cdef Before before
    cdef Heap *heap = _heap(jobs, state, &before)
    cdef uint32_t *items
    jobs.pool[number].state = state
    if state == JOB_LEASED or state == JOB_SETTLING:
        jobs.in_flight += 1
    else:
        jobs.pool[number].ring = NO_RING
        if state == JOB_UNWRITABLE:
            jobs.unwritable += 1
    if heap == NULL:
        return
    if heap.length == heap.room:
        items = <uint32_t *>realloc(heap.items, (heap.room * 2 if heap.room else <uint32_t>HEAP_FIRST) * sizeof(uint32_t))
        if items == NULL:
            abort()    # the job stands in the log: die loudly, the next writer replays it
        heap.items = items
        heap.room = heap.room * 2 if heap.room else <uint32_t>HEAP_FIRST
    heap.items[heap.length] = number
    heap.length += 1
    _up(jobs, heap, before, heap.length - 1)


cdef inline void _move(Jobs *jobs, uint32_t number, uint8_t state) noexcept nogil:
    _leave(jobs, number)
    _enter(jobs, number, state)


cdef inline uint32_t _number(const Jobs *jobs, const Job *job) noexcept nogil:
    return <uint32_t>(job - jobs.pool)


# ---- records that come and go ------------------------------------------------------------------------------------------------------


cdef int jobs_published(Jobs *jobs, const frame_header *frame, int64_t now_ms, int64_t age_ms) noexcept nogil:
    cdef const record_entry *entry = append_first(frame)
    cdef uint32_t place, number
    cdef uint64_t delay_ms
    for place in range(frame.count):
        if entry_extension(entry) == NULL or (entry_delay_ms(entry) == 0 and entry_priority(entry) == 0):
            jobs.fresh += 1
        elif jobs.held and job_of(jobs, frame.base_seq + place) != NULL:
            pass    # replay: a snapshot's row has told of it
        else:
            number = _make(jobs, frame.base_seq + place)
            if number == NO_JOB:
                return -1
            delay_ms = min(entry_delay_ms(entry), <uint64_t>1 << 50)
            jobs.pool[number].priority = <int16_t>max(min(entry_priority(entry), PRIORITY_MOST), -PRIORITY_MOST)
            jobs.pool[number].due_ms = now_ms + <int64_t>delay_ms - age_ms
            _enter(jobs, number, JOB_DELAYED if delay_ms and jobs.pool[number].due_ms > now_ms else JOB_READY)
        entry = entry_next(entry)
    return 0


cdef void jobs_added(Jobs *jobs, uint64_t count) noexcept nogil:
    jobs.fresh += count


cdef void jobs_gone(Jobs *jobs, uint64_t seq) noexcept nogil:
    cdef Job *job = job_of(jobs, seq)
    if job != NULL:
        _leave(jobs, _number(jobs, job))
        _forget(jobs, _number(jobs, job))
    elif jobs.fresh:
        jobs.fresh -= 1


cdef void jobs_gone_below(Jobs *jobs, uint64_t before_seq, uint64_t deleted) noexcept nogil:
    cdef uint32_t number
    for number in range(jobs.pool_used):
        if jobs.pool[number].state != JOB_FREE and jobs.pool[number].seq < before_seq:
            _leave(jobs, number)
            _forget(jobs, number)
            deleted -= min(deleted, <uint64_t>1)
    jobs.fresh -= min(jobs.fresh, deleted)


# ---- what happens to a job -----------------------------------------------------------------------------------------------------------


cdef uint64_t _next_fresh(Jobs *jobs, const Regions *regions, const topic_slot *topic) noexcept nogil:
    """Move the cursor to the first job that nobody has touched; 0 when there is none."""
    cdef uint64_t seq = max(jobs.cursor, topic.earliest)
    cdef index_entry *entry
    while seq <= topic.head:
        entry = index_at(regions, topic, seq)
        if entry == NULL and seq <= topic.sealed_through:
            seq += 1
        elif entry == NULL:  # a whole page of a hole
            seq += INDEX_PAGE_ENTRIES - (seq - topic.index_base) % INDEX_PAGE_ENTRIES
        elif entry.flags & (INDEX_DELETED | INDEX_HOLE) or (jobs.known and job_of(jobs, seq) != NULL):
            seq += 1
        else:
            jobs.cursor = seq
            return seq
    jobs.cursor = seq
    return 0


cdef uint32_t jobs_take(Jobs *jobs, const Regions *regions, const topic_slot *topic, uint64_t deliveries_max, bint *due) noexcept nogil:
    cdef uint64_t fresh
    cdef uint32_t number
    cdef const Job *top
    while True:
        fresh = _next_fresh(jobs, regions, topic) if jobs.fresh else 0
        if jobs.ready.length:
            number = jobs.ready.items[0]
            top = &jobs.pool[number]
            if fresh == 0 or top.priority > 0 or (top.priority == 0 and (top.deliveries or top.seq < fresh)):
                if deliveries_max and top.deliveries >= deliveries_max:
                    _move(jobs, number, JOB_STUCK)
                    due[0] = True
                    continue
                jobs.pool[number].deliveries += 1
                _leave(jobs, number)
                return number
        if fresh == 0:
            return NO_JOB
        number = _make(jobs, fresh)
        if number == NO_JOB:
            return NO_JOB
        jobs.pool[number].deliveries = 1
        jobs.fresh -= 1
        jobs.cursor = fresh + 1
        return number


cdef void jobs_lease(Jobs *jobs, uint32_t number, uint64_t token, uint64_t holder, uint8_t ring, int64_t due_ms) noexcept nogil:
    cdef Job *job = &jobs.pool[number]
    job.token, job.holder, job.due_ms = token, holder, due_ms
    _enter(jobs, number, JOB_LEASED)
    job.ring = ring


cdef void jobs_untake(Jobs *jobs, Job *job) noexcept nogil:
    job.deliveries -= 1    # in no heap of ready jobs: the order there depends on it
    _move(jobs, _number(jobs, job), JOB_READY)


cdef void jobs_release(Jobs *jobs, Job *job, int64_t due_ms, int64_t now_ms) noexcept nogil:
    cdef uint32_t number = _number(jobs, job)
    _leave(jobs, number)
    job.due_ms = due_ms
    _enter(jobs, number, JOB_DELAYED if due_ms > now_ms else JOB_READY)


cdef void jobs_extend(Jobs *jobs, Job *job, int64_t due_ms) noexcept nogil:
    cdef uint32_t number = _number(jobs, job)
    cdef uint8_t ring = job.ring
    _leave(jobs, number)
    job.due_ms = due_ms
    _enter(jobs, number, JOB_LEASED)
    job.ring = ring


cdef void jobs_settle(Jobs *jobs, Job *job) noexcept nogil:
    _move(jobs, _number(jobs, job), JOB_SETTLING)


cdef void jobs_unsettle(Jobs *jobs, Job *job) noexcept nogil:
    _move(jobs, _number(jobs, job), JOB_LEASED)


cdef void jobs_unstick(Jobs *jobs, Job *job, bint writable) noexcept nogil:
    _move(jobs, _number(jobs, job), JOB_READY if writable else JOB_UNWRITABLE)


cdef uint64_t jobs_restick(Jobs *jobs) noexcept nogil:
    cdef uint32_t place, number
    cdef uint64_t count = jobs.unwritable
    for place in range(jobs.stuck.length):
        number = jobs.stuck.items[place]
        if jobs.pool[number].state == JOB_UNWRITABLE:
            jobs.pool[number].state = JOB_STUCK    # the same heap
    jobs.unwritable = 0
    return count


cdef uint64_t jobs_expire(Jobs *jobs, int64_t now_ms) noexcept nogil:
    cdef uint64_t count = 0
    cdef uint32_t number
    cdef const Job *job
    while jobs.timed.length:
        number = jobs.timed.items[0]
        job = &jobs.pool[number]
        if job.due_ms > now_ms or (job.due_ms == now_ms and job.state == JOB_LEASED):    # A 10.3: once now > deadline
            break
        _move(jobs, number, JOB_READY)
        count += 1
    return count


cdef uint64_t jobs_drop_ring(Jobs *jobs, uint8_t ring) noexcept nogil:
    cdef uint64_t count = 0
    cdef uint32_t number
    for number in range(jobs.pool_used):
        if jobs.pool[number].state == JOB_LEASED and jobs.pool[number].ring == ring:
            _move(jobs, number, JOB_READY)
            count += 1
    return count


cdef int jobs_relive(Jobs *jobs, uint64_t seq, uint64_t token, uint64_t holder, int64_t due_ms, int64_t now_ms) noexcept nogil:
    cdef Job *job = job_of(jobs, seq)
    cdef uint32_t number
    if job == NULL:
        number = _make(jobs, seq)
        if number == NO_JOB:
            return -1
        jobs.fresh -= min(jobs.fresh, <uint64_t>1)
        job = &jobs.pool[number]
    else:
        number = _number(jobs, job)
        _leave(jobs, number)
    job.deliveries += 1
    job.token, job.holder, job.due_ms = token, holder, due_ms
    _enter(jobs, number, JOB_LEASED)
    return 0


cdef void jobs_earlier(Jobs *jobs, int64_t by_ms) noexcept nogil:
    cdef uint32_t place
    for place in range(jobs.timed.length):
        jobs.pool[jobs.timed.items[place]].due_ms -= by_ms


cdef int jobs_restore(Jobs *jobs, const Job *row) noexcept nogil:
    cdef uint32_t number = _make(jobs, row.seq)
    cdef Job *job
    if number == NO_JOB:
        return -1
    job = &jobs.pool[number]
    job.token, job.holder, job.due_ms = row.token, row.holder, row.due_ms
    job.deliveries, job.priority = row.deliveries, row.priority
    _enter(jobs, number, row.state)
    return 0
