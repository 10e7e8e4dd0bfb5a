"""Reading topics from Python: diff, state, summary, config (see reader.pxd)."""

from libc.errno cimport EIO
from libc.string cimport memset

from cpython.bytes cimport PyBytes_FromStringAndSize

import os

import orjson

from topicsd._native.atomics cimport clock_mono_ns, load_acquire_64, load_relaxed_64
from topicsd._native.diff cimport DiffResult, diff, reader_free, reader_init
from topicsd._native.index cimport view_flags, view_lower_bound_ts
from topicsd._native.layout cimport CLASS_FSYNC, INDEX_DELETED, INDEX_HOLE, NO_SLOT, TOPIC_QUEUE, index_entry
from topicsd._native.maps cimport maps_drop_retired
from topicsd._native.regions cimport Regions
from topicsd._native.render cimport CONFIG_BYTES_MAX, buffer_free, buffer_shrink, put_config
from topicsd._native.scan cimport Diff
from topicsd._native.sealed cimport sealed_attach, sealed_sweep
from topicsd._native.state cimport (
    READ_BUSY, READ_GONE, READ_IO, READ_MEMORY, READ_OK, READ_STALE, STATE_TRIES, State, read_state, render_state, touch_topic,
)
from topicsd._native.table cimport table_find, view_still

cdef enum:
    TALLY_ENTRIES = 64


class Gone(LookupError):
    """The slot holds no topic, or another one than asked for."""


class Busy(RuntimeError):
    """The writer is away, replaying, or changed the topic faster than it could be read: try again later."""


class IoError(OSError):
    """A record cannot be read; `seq` says which."""

    def __init__(self, seq):
        super().__init__(EIO, f"record {seq} cannot be read")
        self.seq = seq


cdef object _refusal(int status, uint64_t seq):
    if status == READ_GONE:
        return Gone("no such topic")
    if status == READ_IO:
        return IoError(seq)
    if status == READ_MEMORY:
        return MemoryError()
    return Busy("the topic cannot be read right now")


cdef struct Tally:
    uint64_t records, bytes, oldest_ms


cdef int tally_after(const Regions *regions, uint32_t slot, uint64_t topic_id, uint64_t seq, uint64_t now_ms, Tally *out) noexcept nogil:
    """Sum up what is live above a seq, from the nearer end: all of it is known without a look."""
    cdef State state
    cdef index_entry entries[TALLY_ENTRIES]
    cdef uint64_t at, end, records, size, oldest_ms
    cdef uint32_t number, count
    cdef bint behind, stale
    cdef int status
    for _ in range(STATE_TRIES):
        status = read_state(regions, slot, now_ms, &state)
        if status != READ_OK:
            return status
        if topic_id and state.view.topic_id != topic_id:
            return READ_GONE
        seq = max(seq, state.floors.earliest - 1)
        behind = seq - (state.floors.earliest - 1) < state.floors.head - min(seq, state.floors.head)    # the settled part is the smaller one
        at, end = (state.floors.earliest, seq) if behind else (seq + 1, state.floors.head)
        records = size = oldest_ms = 0
        stale = False
        while at <= end and not stale:
            count = <uint32_t>min(end + 1 - at, <uint64_t>TALLY_ENTRIES)
            stale = view_flags(regions, &state.view, at, count, entries) != 0
            for number in range(0 if stale else count):
                if not entries[number].flags & (INDEX_HOLE | INDEX_DELETED):
                    records += 1
                    size += entries[number].bytes
            at += count
        out.records = state.count - min(records, state.count) if behind else records
        out.bytes = state.bytes - min(size, state.bytes) if behind else size
        at = seq + 1
        while at <= state.floors.head and not stale and not oldest_ms and out.records:
            count = <uint32_t>min(state.floors.head + 1 - at, <uint64_t>TALLY_ENTRIES)
            stale = view_flags(regions, &state.view, at, count, entries) != 0
            for number in range(0 if stale else count):
                if not entries[number].flags & (INDEX_HOLE | INDEX_DELETED):
                    oldest_ms = entries[number].ts
                    break
            at += count
        out.oldest_ms = oldest_ms
        if not stale and view_still(regions, slot, &state.view):
            return READ_OK
    return READ_BUSY


cdef class Reader:
    """Read topics from the shared regions and the log files under `data_dir`; for one thread at a time."""

    def __cinit__(self, Shared shared not None, data_dir, uint64_t limit_max=1000):
        cdef bytes directory = os.fsencode(data_dir)
        cdef int failure
        self.shared = shared
        sealed_attach(shared, data_dir)
        failure = reader_init(&self.core, &shared.r, directory, limit_max)
        if failure != 0:
            raise OSError(-failure, os.strerror(-failure), data_dir)

    def __dealloc__(self):
        reader_free(&self.core)
        buffer_free(&self.out)

    cdef int read(self, uint32_t slot, uint64_t now_ms, State *out) except -1:
        cdef int status = READ_GONE
        if slot < self.shared.r.topics_max:
            status = read_state(&self.shared.r, slot, now_ms, out)
        if status != READ_OK:
            raise _refusal(status, 0)
        return 0

    def find(self, bytes name not None):
        """Return the slot of the topic with this name, or None. Busy while the writer is away or replaying."""
        cdef uint32_t slot = table_find(&self.shared.r, name, <uint32_t>min(len(name), 256))
        if slot == NO_SLOT:
            if load_acquire_64(&self.shared.r.control.ready) == 0:
                raise Busy("not ready")
            return None
        return slot

    cdef bytes page(self, uint32_t slot, Diff request, uint64_t now_ms, uint64_t started_ns, uint64_t topic_id, DiffResult *result):
        """Render one page; raises what `diff` raises."""
        cdef int status
        if self.busy:
            raise RuntimeError("a Reader belongs to one thread")
        self.busy = True
        try:
            self.out.used = 0
            with nogil:
                status = diff(&self.core, slot, topic_id, &request.request, now_ms, started_ns, &self.out, result)
            if status != READ_OK:
                raise _refusal(status, result.failed_seq)
            return PyBytes_FromStringAndSize(<char *>self.out.bytes, self.out.used)
        finally:
            buffer_shrink(&self.out)
            buffer_shrink(&self.core.scratch)
            self.busy = False

    def diff(self, uint32_t slot, Diff request not None, uint64_t now_ms, uint64_t started_ns=0, uint64_t topic_id=0):
        """Return (JSON body, nothing for this reader yet, next_from_seq) and move the read clock. A §3.

        `started_ns` is CLOCK_MONOTONIC at the request's start; `topic_id` other than 0: Gone when the slot holds another topic.
        Raises Gone, Busy, IoError.
        """
        cdef DiffResult result
        body = self.page(slot, request, now_ms, started_ns, topic_id, &result)
        return body, bool(result.would_wait), result.next_seq

    def diff_range(self, uint32_t slot, Diff request not None, uint64_t first, uint64_t last, uint64_t now_ms, uint64_t started_ns=0,
                   uint64_t topic_id=0):
        """Return (JSON body, whether it holds a record or a tombstone, cursor) of the page of first..last, as `diff` renders it.

        The cursor stands below `last` where the page was full before. Raises Gone, Busy, IoError.
        """
        cdef DiffResult result
        request.request.from_seq, request.request.upto_seq = first - 1, last
        body = self.page(slot, request, now_ms, started_ns, topic_id, &result)
        return body, result.matched != 0 or result.tombstone != 0, result.next_seq

    def sweep(self):
        """Unmap what the writer has retired; return what `files_retired` was before."""
        cdef uint64_t retired = load_acquire_64(&self.shared.r.control.files_retired)
        maps_drop_retired(&self.core.maps)
        sealed_sweep(&self.shared.r)
        return retired

    def live_after(self, uint32_t slot, uint64_t seq, uint64_t now_ms, uint64_t topic_id=0):
        """Return (live records above a seq, their bytes, `ts` of the oldest or 0). Raises Gone, Busy."""
        cdef Tally tally
        cdef int status
        if slot >= self.shared.r.topics_max:
            raise Gone("no such topic")
        with nogil:
            status = tally_after(&self.shared.r, slot, topic_id, seq, now_ms, &tally)
        if status != READ_OK:
            raise _refusal(status, 0)
        return tally.records, tally.bytes, tally.oldest_ms

    def seq_at(self, uint32_t slot, uint64_t ts, uint64_t now_ms):
        """Return the first seq, of those retained, whose record is not older than `ts`; head + 1 where all are. Raises Gone, Busy."""
        cdef State state
        cdef uint64_t seq = 0
        for _ in range(STATE_TRIES):
            self.read(slot, now_ms, &state)
            seq = min(view_lower_bound_ts(&self.shared.r, &state.view, state.floors.earliest, ts), state.floors.head + 1)
            if view_still(&self.shared.r, slot, &state.view):
                return max(seq, state.floors.earliest)
        raise _refusal(READ_STALE, 0)

    def state(self, uint32_t slot, uint64_t now_ms, bint touch=True, uint64_t started_ns=0):
        """Return the JSON body of a topic's state, after moving its read clock when `touch`. A §1.2. Raises Gone, Busy."""
        cdef State state
        cdef Buffer out
        if touch and slot < self.shared.r.topics_max:
            touch_topic(&self.shared.r, slot, now_ms)
        self.read(slot, now_ms, &state)
        memset(&out, 0, sizeof(Buffer))
        try:
            if render_state(&out, &state, (clock_mono_ns() - started_ns) // 1000 if started_ns else 0) != 0:
                raise MemoryError
            return PyBytes_FromStringAndSize(<char *>out.bytes, out.used)
        finally:
            buffer_free(&out)

    def summary(self, uint32_t slot, uint64_t now_ms):
        """Return a topic's line in the list (A §1.3), for a queue with its counters (beyond the documents). Raises Gone, Busy."""
        cdef State state
        self.read(slot, now_ms, &state)
        shown = {
            "topic": state.view.name[:state.view.name_bytes].decode("ascii"),
            "head_seq": state.floors.head,
            "earliest_seq": state.floors.readable,
            "count": state.count,
            "bytes": state.bytes,
            "durable": state.view.config.durability == CLASS_FSYNC,
            "effective_priority": state.priority,
            "epoch": state.view.topic_id,
        }
        if state.view.config.type == TOPIC_QUEUE:
            shown["queue"] = {"ready": state.queue_ready, "in_flight": state.queue_in_flight, "dead_lettered": state.queue_dead_lettered}
        return shown

    def config(self, uint32_t slot):
        """Return a topic's config with all its members in the order of A §0.10. Raises Gone, Busy."""
        cdef State state
        cdef uint8_t text[CONFIG_BYTES_MAX]
        self.read(slot, 0, &state)
        return orjson.loads(text[:put_config(text, &state.view.config, state.dead_letter, state.dead_letter_bytes) - text])

    def touch(self, uint32_t slot, uint64_t now_ms):
        """Move a topic's read clock to `now_ms`, never backwards."""
        if slot < self.shared.r.topics_max:
            touch_topic(&self.shared.r, slot, now_ms)

    def head(self, uint32_t slot):
        """Return the last published seq, 0 when there is none or no topic."""
        return load_acquire_64(&self.shared.r.table[slot].head) if slot < self.shared.r.topics_max else 0

    def topic_id(self, uint32_t slot):
        """Return the epoch of the slot's topic, 0 when it holds none."""
        return load_relaxed_64(&self.shared.r.table[slot].topic_id) if slot < self.shared.r.topics_max else 0

    def drop_retired(self):
        """Unmap log files that the writer has retired; return how many."""
        return maps_drop_retired(&self.core.maps)
