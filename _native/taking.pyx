"""A checkpoint while it is being packed (see taking.pxd)."""

from array import array

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from topicsd._native.atomics cimport clock_mono_ns
from topicsd._native.changes cimport Changes
from topicsd._native.checkpoint cimport Packed, TopicRow
from topicsd._native.engine_core cimport EngineCore
from topicsd._native.job_rows cimport pack_jobs
from topicsd._native.layout cimport index_entry, segment_body, topic_slot
from topicsd._native.log cimport Shard
from topicsd._native.note_rows cimport pack_notes
from topicsd._native.topics cimport Core

cdef enum:
    LOOK_SLOTS = 256        # unchanged ones between two looks at the clock


cdef void _before(void *core_at, uint32_t slot) noexcept nogil:
    cdef Core *core = <Core *>core_at
    (<Taking>core.changes.taker).see(core, slot)


cdef class Taking:
    """Pack what changed since another checkpoint, as it was at one moment. One thread, the writer's, but for `reserve`."""

    def __cinit__(self, EngineCore core not None):
        self.engine = core
        self.topics, self.jobs, self.notes = Packed(), Packed(), Packed()
        memset(self.low, 0, sizeof(self.low))

    def __dealloc__(self):
        if self.engine is not None and self.engine.core.changes.taker == <void *>self:
            self.engine.core.changes.taking = False
            self.engine.core.changes.taker = NULL

    def reserve(self, uint64_t wanted):
        """Have room for about so many bytes of topics, its pages there already. For another thread, before `begin`. Raises MemoryError."""
        cdef int failed
        with nogil:
            failed = self.topics.reserve(wanted)
        if failed:
            raise MemoryError

    def drop(self):
        """Let go of what was packed. For another thread, once it is written: so many pages take their time, and the writer has none."""
        with nogil:
            self.topics.drop()
            self.jobs.drop()
            self.notes.drop()

    cdef void set_moment(self):
        cdef EngineCore engine = self.engine
        cdef int number
        self.wall_ms, self.mono_ms, self.next_token = engine.core.wall_ms, engine.core.mono_ms, engine.next_token
        self.topics.now_ms = <int64_t>max(engine.core.wall_ms, engine.newest_ts)    # as replay sees it: settle_windows
        self.topics.mono_ms = engine.core.mono_ms
        for number in range(engine.shard_count):
            self.moment[number] = (<Shard>engine.shard[number]).written()

    def begin(self, uint32_t number, uint32_t parent):
        """Make now the moment of checkpoint `number`; return the ids of the topics that went since `parent`. Nothing may be in flight."""
        cdef Changes *changes = &self.engine.core.changes
        cdef uint32_t stamp
        cdef uint64_t topic_id
        if changes.taking or changes.now != number or parent >= number:
            raise ValueError(f"checkpoint {number} upon {parent}: the next one is {changes.now}")
        self.set_moment()
        gone = array("Q")
        for stamp, topic_id in reversed(self.engine.gone):
            if stamp <= parent:
                break
            gone.append(topic_id)
        changes.taker, changes.before, changes.parent = <void *>self, _before, parent
        changes.at, changes.end = 0, self.engine.core.regions.control.table_high
        changes.now, changes.taking = number + 1, True
        return gone

    def step(self, int64_t budget_us, uint64_t slots_max=<uint64_t>-1):
        """Look at slots for about so long, at most so many; tell whether all were. Raises MemoryError: then the checkpoint is none."""
        cdef int result
        with nogil:
            result = self.slice(&self.engine.core, <int64_t>clock_mono_ns() + budget_us * 1000, slots_max)
        if self.failed:
            self.end()
            raise MemoryError("no room for a snapshot's rows")
        if result:
            self.end()
        return result != 0

    def end(self):
        """Stop: all is packed, or this checkpoint is given up."""
        cdef Changes *changes = &self.engine.core.changes
        if changes.taker == <void *>self:
            changes.taking = False
            changes.taker = NULL

    def look(self):
        """Pack all topics as they stand, and leave everything as it is: what a checkpoint of now would say."""
        cdef uint64_t slot
        self.set_moment()
        with nogil:
            for slot in range(self.engine.core.regions.control.table_high):
                if self.engine.core.regions.table[slot].topic_id and self.pack(&self.engine.core, <uint32_t>slot, False) != 0:
                    self.failed = 1
        if self.failed:
            raise MemoryError

    @property
    def needed(self):
        """By shard: the lowest log position that something pointed at, or None."""
        return [None if self.low[shard] == 0 else ~self.low[shard] for shard in range(8)]

    cdef int slice(self, Core *core, int64_t until_ns, uint64_t slots_max) noexcept nogil:
        cdef Changes *changes = &core.changes
        cdef uint64_t last = changes.end if slots_max > changes.end - changes.at else changes.at + slots_max
        cdef uint32_t slot, looked = 0
        while changes.at < last and not self.failed:
            slot = <uint32_t>changes.at
            if changes.stamps[slot] != changes.now:    # else it was seen before it changed, or it is younger than the moment
                looked += LOOK_SLOTS // 8 if changes.stamps[slot] > changes.parent else 1
                self.see(core, slot)
            changes.at += 1
            if looked >= LOOK_SLOTS:
                looked = 0
                if <int64_t>clock_mono_ns() >= until_ns:
                    break
        return changes.at >= changes.end

    cdef void see(self, Core *core, uint32_t slot) noexcept nogil:
        """A slot as it was at the moment: it is packed if its last row is no longer right."""
        if core.changes.stamps[slot] > core.changes.parent and core.regions.table[slot].topic_id:
            if self.failed or self.pack(core, slot, True) != 0:
                self.failed = 1
                return
        self.fold(core, slot)

    cdef void fold(self, Core *core, uint32_t slot) noexcept nogil:
        cdef uint32_t shard
        for shard in range(core.changes.shards):
            self.low[shard] = max(self.low[shard], core.changes.lows[<uint64_t>slot * core.changes.shards + shard])

    cdef int pack(self, Core *core, uint32_t slot, bint keep) noexcept nogil:
        """Pack a topic, its jobs, its notes. `keep`: the places that it points at are remembered."""
        cdef uint32_t shard
        cdef uint64_t moment = self.moment[core.regions.table[slot].shard & 7]
        memset(self.topics.low, 0xFF, sizeof(self.topics.low))
        if self.topics.topic(core, slot) != 0:
            return -1
        self.topics.notes(core, slot)
        for shard in range(core.changes.shards):
            self.low[shard] = max(self.low[shard], ~self.topics.low[shard])
            if keep:
                core.changes.lows[<uint64_t>slot * core.changes.shards + shard] = ~self.topics.low[shard]
        self.topics_packed += 1
        if pack_jobs(self.jobs, core, slot, moment, self.next_token, self.wall_ms, self.mono_ms) != 0:
            return -1
        return pack_notes(self.notes, core, slot)


def changed_bytes(EngineCore core not None, list since not None):
    """Return, for each of these checkpoints, about how many bytes of rows have changed behind it. For another thread: what it reads may be stale."""
    cdef Changes *changes = &core.core.changes
    cdef uint64_t slot, size, at, high = core.core.regions.control.table_high
    cdef uint32_t number, count = <uint32_t>len(since), stamp
    cdef const topic_slot *topic
    cdef uint64_t *sums = <uint64_t *>calloc(count + 1, sizeof(uint64_t))
    cdef uint32_t *numbers = <uint32_t *>calloc(count + 1, sizeof(uint32_t))
    if sums == NULL or numbers == NULL:
        free(sums)
        free(numbers)
        raise MemoryError
    for number in range(count):
        numbers[number] = since[number]
    with nogil:
        for slot in range(high):
            stamp = changes.stamps[slot]
            size = 0
            for number in range(count):
                if stamp > numbers[number]:
                    if size == 0:
                        topic = &core.core.regions.table[slot]
                        if topic.topic_id == 0:
                            break
                        size = sizeof(TopicRow) + topic.name_bytes + 16 + <uint64_t>topic.segments_len * sizeof(segment_body)
                        at = max(topic.earliest, topic.sealed_through + 1)
                        if at <= topic.head:
                            size += (topic.head - at + 1) * sizeof(index_entry)
                    sums[number] += size
    found = [sums[number] for number in range(count)]
    free(sums)
    free(numbers)
    return found


def next_is(EngineCore core not None, uint32_t number):
    """Say which checkpoint comes next: what changes from here on is for it."""
    core.core.changes.now = number
