"""Topics at one moment, packed and back (see checkpoint.pxd)."""

from cpython.buffer cimport PyBUF_WRITABLE
from libc.errno cimport ENOMEM
from libc.stdint cimport UINT64_MAX, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset
from posix.mman cimport madvise

from topicsd._native.atomics cimport load_relaxed_64, store_relaxed_64, store_release_64
from topicsd._native.dedupe cimport DedupeEntry, dedupe_add, dedupe_new
from topicsd._native.engine_core cimport EngineCore
from topicsd._native.fleeting cimport ends_with_server
from topicsd._native.frame cimport entry_tag
from topicsd._native.index cimport index_append, index_at, index_hole, index_hole_reason
from topicsd._native.jobs cimport jobs_added
from topicsd._native.layout cimport (
    CLASS_EPHEMERAL, INDEX_COPY, INDEX_DELETED, INDEX_HOLE, INDEX_PAGE_ENTRIES, INDEX_TAGGED, LOG_FILES_MAX, LOSS_CORRUPT, LOSS_MIXED, NO_SLOT,
    POSITION_BITS, POSITION_MASK, ROW_STORED, SHARDS_MAX, TOPIC_QUEUE, entry_ext, index_entry, log_file_row, record_entry, segment_body, segment_file,
    topic_slot,
)
from topicsd._native.maps cimport guarded_copy, map_at
from topicsd._native.regions cimport Shared
from topicsd._native.routes cimport Note, Outlets, origin_run, origins_head, route_origin
from topicsd._native.sealed cimport Rows, rows_append, rows_of_topic
from topicsd._native.slabs cimport slab_class_for, slab_take
from topicsd._native.table cimport config_dead_letter, config_set_dead_letter, slot_name, table_insert
from topicsd._native.tags cimport tags_add, tags_new
from topicsd._native.topics cimport Core, Private, jobs_changed, jobs_of, private_of, touch

cdef extern from "<sys/mman.h>" nogil:
    int MADV_HUGEPAGE

cdef enum:
    ROOM_FIRST = 1 << 20
    HUGE_BYTES_MIN = 8 << 20
    RESERVE_BYTES_MAX = 1 << 30
    PART_BYTES = 4096       # of a record in front of its tag's end, at first


cdef void low_is(Core *core, uint32_t slot, uint64_t position) noexcept nogil:
    cdef uint64_t shard = position >> POSITION_BITS, inverted = ~(position & POSITION_MASK)
    cdef uint64_t *low = &core.changes.lows[<uint64_t>slot * core.changes.shards + shard]
    if shard < core.changes.shards and inverted > low[0]:
        low[0] = inverted


class TableFullError(Exception):
    """Say that a snapshot has more topics than the table has slots, or one twice."""


cdef class Packed:
    """Rows of a section; shows its bytes as a buffer."""

    def __cinit__(self):
        cdef uint32_t shard
        for shard in range(8):
            self.low[shard] = UINT64_MAX

    def __dealloc__(self):
        with nogil:
            free(self.bytes)

    cdef int reserve(self, uint64_t wanted) noexcept nogil:
        """Have room for so many bytes, at most a bound, its pages there already."""
        cdef uint64_t at
        if self.need(min(wanted, <uint64_t>RESERVE_BYTES_MAX)) != 0:
            return -ENOMEM
        for at in range(self.used, self.room, 4096):
            self.bytes[at] = 0
        return 0

    cdef void drop(self) noexcept nogil:
        free(self.bytes)
        self.bytes = NULL
        self.used = self.room = 0

    def __getbuffer__(self, Py_buffer *view, int flags):
        if flags & PyBUF_WRITABLE:
            raise BufferError("what is packed is not changed")
        self.shape[0], self.strides[0] = <Py_ssize_t>self.used, 1
        view.buf = self.bytes
        view.obj = self
        view.len, view.itemsize, view.ndim, view.readonly = <Py_ssize_t>self.used, 1, 1, 1
        view.format = b"B"
        view.shape, view.strides, view.suboffsets, view.internal = self.shape, self.strides, NULL, NULL

    def __len__(self):
        return self.used

    # ---- bytes

    cdef int need(self, uint64_t more) noexcept nogil:
        cdef uint64_t room
        cdef uint8_t *grown
        if self.used + more <= self.room:
            return 0
        room = max(max(self.room * 2, self.used + more), <uint64_t>ROOM_FIRST)
        grown = <uint8_t *>realloc(self.bytes, room)
        if grown == NULL:
            return -ENOMEM
        self.bytes, self.room = grown, room
        if room >= HUGE_BYTES_MIN:  # the writer stands still meanwhile, and small pages would be half of it
            madvise(<void *>((<uintptr_t>grown + 4095) & ~<uintptr_t>4095), room - 4096, MADV_HUGEPAGE)
        return 0

    cdef int put(self, const void *from_bytes, uint64_t count) noexcept nogil:
        if self.need(count) != 0:
            return -ENOMEM
        memcpy(self.bytes + self.used, from_bytes, count)
        self.used += count
        return 0

    cdef int align(self) noexcept nogil:
        cdef uint64_t zero = 0
        return self.put(&zero, 8 - (self.used & 7)) if self.used & 7 else 0

    cdef void points_at(self, uint64_t position) noexcept nogil:
        cdef uint64_t shard = position >> POSITION_BITS
        if shard < SHARDS_MAX and position & POSITION_MASK < self.low[shard]:
            self.low[shard] = position & POSITION_MASK

    # ---- a topic

    cdef int topic(self, Core *core, uint32_t slot) noexcept nogil:
        cdef topic_slot *topic = &core.regions.table[slot]
        cdef uint64_t start = self.used, size = 0, at
        cdef TopicRow row
        cdef TopicRow *made
        cdef uint32_t dead_letter_bytes = 0, origins = 0, windows = 0
        cdef const char *dead_letter = config_dead_letter(core.regions, &topic.config, &dead_letter_bytes)
        memset(&row, 0, sizeof(row))
        row.topic_id, row.shard, row.config = topic.topic_id, topic.shard, topic.config
        row.config.dead_letter, row.config.dead_letter_bytes = 0, 0
        row.head, row.earliest, row.cap_lost, row.ttl_lost = topic.head, topic.earliest, topic.cap_lost, topic.ttl_lost
        row.hole_lost, row.hole_reason, row.count, row.bytes = topic.hole_lost, topic.hole_reason, topic.count, topic.bytes
        row.last_write_ms, row.last_read_ms, row.last_ts = topic.last_write_ms, load_relaxed_64(&topic.last_read_ms), topic.last_ts
        row.ceiling, row.sealed_through, row.rows = topic.ceiling_asked, topic.sealed_through, topic.segments_len
        row.name_bytes = topic.name_bytes
        row.dead_letter_bytes = dead_letter_bytes if dead_letter != NULL else 0
        if self.put(&size, 8) != 0:
            return -ENOMEM
        at = self.used
        if self.put(&row, sizeof(row)) != 0 or self.put(slot_name(core.regions, topic, topic.name_bytes), row.name_bytes) != 0:
            return -ENOMEM
        if row.dead_letter_bytes and self.put(dead_letter, row.dead_letter_bytes) != 0:
            return -ENOMEM
        if self.align() != 0 or self.sealed(core, topic) != 0 or self.tail(core, topic, at) != 0:
            return -ENOMEM
        if self.origins(core, topic, &origins) != 0 or self.windows(core, slot, &windows) != 0:
            return -ENOMEM
        made = <TopicRow *>(self.bytes + at)
        made.origins, made.windows = origins, windows
        (<uint64_t *>(self.bytes + start))[0] = self.used - at
        return 0

    cdef int sealed(self, Core *core, const topic_slot *topic) noexcept nogil:
        cdef Rows rows
        cdef segment_body body
        cdef const segment_file *file
        cdef uint32_t number
        cdef uint64_t size
        rows_of_topic(core.regions, topic, &rows)
        for number in range(rows.count):
            memset(&body, 0, sizeof(body))
            body.row = rows.at[number]
            body.row.flags &= ROW_STORED
            if body.row.file:    # what the file is, not who else leads there
                file = &core.regions.segment_files[body.row.file]
                body.file.topic_id, body.file.name, body.file.edition = file.topic_id, file.name, file.edition
                body.file.bytes, body.file.kind = file.bytes, file.kind
            if self.put(&body, sizeof(body)) != 0:
                return -ENOMEM
        for number in range(rows.count):
            size = (rows.at[number].last_seq - rows.at[number].first_seq) // 64 * 8 + 8
            if rows.at[number].marks_at and self.put(core.regions.index + (<uint64_t>rows.at[number].marks_at << 6), size) != 0:
                return -ENOMEM
        return 0

    cdef int hole(self, uint64_t *run_at, uint64_t first, uint64_t last, uint32_t reason, uint32_t *runs) noexcept nogil:
        """Add a hole to the runs, to the last one when it is a hole for the same reason."""
        cdef RunRow run
        cdef RunRow *open_run = <RunRow *>(self.bytes + run_at[0])
        if run_at[0] and open_run.kind == reason:
            open_run.last_seq = last
            return 0
        memset(&run, 0, sizeof(run))
        run.first_seq, run.last_seq, run.kind = first, last, reason
        run_at[0] = self.used
        runs[0] += 1
        return self.put(&run, sizeof(run))

    cdef int tail(self, Core *core, const topic_slot *topic, uint64_t row_at) noexcept nogil:
        """What is not sealed, as runs. Ephemeral records are left out: at the end of an ephemeral topic as if they had not been, else as holes."""
        cdef uint64_t seq = max(topic.earliest, topic.sealed_through + 1), page_end, run_at = 0, last_kept = seq - 1, gone_count = 0, gone_bytes = 0
        cdef uint64_t lead = 0, gone_from = 0
        cdef uint32_t runs = 0, count
        cdef bint keeps_end = topic.config.durability != CLASS_EPHEMERAL, any_sealed = topic.earliest <= topic.sealed_through
        cdef const index_entry *entry
        cdef RunRow run
        cdef TopicRow *row
        memset(&run, 0, sizeof(run))
        while seq <= topic.head:
            entry = index_at(core.regions, topic, seq)
            if entry == NULL:
                page_end = min(topic.head, seq + INDEX_PAGE_ENTRIES - 1 - (seq - topic.index_base) % INDEX_PAGE_ENTRIES)
                if self.gone(&run_at, &gone_from, seq, &runs) != 0:
                    return -ENOMEM
                if self.hole(&run_at, seq, page_end, max(index_hole_reason(core.regions, topic, seq), <uint32_t>1), &runs) != 0:
                    return -ENOMEM
                last_kept = page_end
                seq = page_end + 1
                continue
            if ends_with_server(entry):
                if not entry.flags & INDEX_DELETED:
                    gone_count += 1
                    gone_bytes += entry.bytes
                if runs == 0 and not any_sealed:
                    lead = seq
                elif gone_from == 0:
                    gone_from = seq                 # a hole only when something stands behind it
                if keeps_end or entry.flags & INDEX_COPY:    # a copy's seq has no ceiling: it must not come again
                    last_kept = seq
                self.points_at(entry.position)
                seq += 1
                continue
            if self.gone(&run_at, &gone_from, seq, &runs) != 0:
                return -ENOMEM
            if entry.flags & INDEX_HOLE:
                if runs == 0 and not any_sealed:
                    lead = seq
                elif self.hole(&run_at, seq, seq, (entry.flags >> 8) & 0xFF, &runs) != 0:
                    return -ENOMEM
            else:
                if run_at == 0 or (<RunRow *>(self.bytes + run_at)).kind:
                    run.first_seq = seq
                    run_at = self.used
                    runs += 1
                    if self.put(&run, sizeof(run)) != 0:
                        return -ENOMEM
                page_end = topic.head           # entries up to there stand side by side
                if topic.index_paged:
                    page_end = min(page_end, seq + INDEX_PAGE_ENTRIES - 1 - (seq - topic.index_base) % INDEX_PAGE_ENTRIES)
                count = self.plain(entry, <uint32_t>(page_end - seq + 1))
                if self.put(entry, count * sizeof(index_entry)) != 0:
                    return -ENOMEM
                seq += count - 1
                (<RunRow *>(self.bytes + run_at)).last_seq = seq
            last_kept = seq
            seq += 1
        if gone_from and last_kept >= gone_from and self.gone(&run_at, &gone_from, last_kept + 1, &runs) != 0:
            return -ENOMEM
        row = <TopicRow *>(self.bytes + row_at)
        row.runs = runs
        if gone_count or lead or last_kept < topic.head:
            self.settle_ephemeral(row, last_kept, lead, gone_count, gone_bytes, keeps_end)
        return 0

    cdef int gone(self, uint64_t *run_at, uint64_t *first, uint64_t seq, uint32_t *runs) noexcept nogil:
        """Make the ephemeral records in front of `seq` a hole."""
        if first[0] and self.hole(run_at, first[0], seq - 1, LOSS_MIXED, runs) != 0:
            return -ENOMEM
        first[0] = 0
        return 0

    cdef uint32_t plain(self, const index_entry *entries, uint32_t most) noexcept nogil:
        """Count the entries in front that point at records of the log, at least one; note where they point."""
        cdef uint32_t count
        for count in range(most):
            if entries[count].flags & INDEX_HOLE or ends_with_server(&entries[count]):
                return count
            if not entries[count].flags & INDEX_DELETED:
                self.points_at(entries[count].position)
        return most

    cdef void settle_ephemeral(self, TopicRow *row, uint64_t last_kept, uint64_t lead, uint64_t count, uint64_t size, bint keeps_end) noexcept nogil:
        """Numbers of a topic without its ephemeral records. `lead`: last seq of those that stand before any other."""
        row.count -= count
        row.bytes -= size
        lead = min(lead, last_kept)
        if lead >= row.earliest:
            row.hole_lost, row.hole_reason = max(row.hole_lost, lead), LOSS_MIXED
            row.earliest = max(row.earliest, lead + 1)
        if not keeps_end:
            row.head = max(last_kept, row.sealed_through)
            row.earliest = min(row.earliest, row.head + 1)

    cdef int origins(self, Core *core, const topic_slot *topic, uint32_t *count) noexcept nogil:
        cdef const origins_head *head = <const origins_head *>(core.regions.index + topic.origins)
        cdef const origin_run *runs = <const origin_run *>(head + 1)
        cdef OriginRow row
        cdef uint32_t number
        if topic.origins == 0:
            return 0
        for number in range(head.count):
            row.seq, row.source = runs[number].seq, runs[number].source
            row.text_bytes, row.reserved = <uint32_t>(runs[number].text & 0xFFFF), 0
            if self.put(&row, sizeof(row)) != 0 or self.put(core.regions.index + (runs[number].text >> 16), row.text_bytes) != 0 or self.align() != 0:
                return -ENOMEM
            count[0] += 1
        return 0

    cdef int windows(self, Core *core, uint32_t slot, uint32_t *count) noexcept nogil:
        cdef Private *own = core.privates[slot]
        cdef const DedupeEntry *entry
        cdef WindowRow row
        cdef uint64_t number
        if own == NULL or own.dedupe == NULL:
            return 0
        for number in range(own.dedupe.first, own.dedupe.end):
            entry = &own.dedupe.fifo[number & own.dedupe.fifo_mask]
            if entry.dead or entry.pending:
                continue
            row.records_xxh3, row.first_seq, row.count, row.key_bytes = entry.records_xxh3, entry.first_seq, entry.count, entry.key_bytes
            row.arrived_ms = self.now_ms - (self.mono_ms - entry.arrived_ms)
            if self.put(&row, sizeof(row)) != 0 or self.put(entry.key, entry.key_bytes) != 0 or self.align() != 0:
                return -ENOMEM
            count[0] += 1
        return 0

    cdef void notes(self, Core *core, uint32_t slot) noexcept nogil:
        """What routers have noted of a source and may still copy from."""
        cdef Private *own = core.privates[slot]
        cdef const Note *note
        cdef uint32_t number
        if own == NULL or own.outlets == NULL:
            return
        note = (<Outlets *>own.outlets).merged
        for number in range(note.count if note != NULL else 0):
            self.points_at(note.entries[number].position)
        note = (<Outlets *>own.outlets).oldest
        while note != NULL:
            for number in range(note.count):
                self.points_at(note.entries[number].position)
            note = note.next


# ---- back -------------------------------------------------------------------------------------------------------------------


cdef struct Reading:
    const uint8_t *at
    const uint8_t *end


cdef const uint8_t *_take(Reading *reading, uint64_t size) except NULL:
    cdef const uint8_t *at = reading.at
    if size > <uint64_t>(reading.end - reading.at):
        raise ValueError("a topic's row is cut short")
    reading.at += size
    return at


cdef int _align(Reading *reading, const uint8_t *start) except -1:
    reading.at = start + ((reading.at - start + 7) & ~<int64_t>7)
    if reading.at > reading.end:
        raise ValueError("a topic's row is cut short")
    return 0


cdef class Loader:
    """Put the topics of a snapshot back. `take_file` gets (struct segment_body, whose row leads into a file) and returns the file's number."""

    cdef EngineCore core
    cdef object take_file
    cdef list damaged           # by shard: [(first position, end)]
    cdef readonly list with_ttl
    cdef readonly list with_floor
    cdef readonly uint64_t topics, corrupt
    cdef uint32_t number        # of the snapshot whose rows are being loaded
    cdef list changed           # slots that are no longer what their row says
    cdef uint64_t moment[8]
    cdef segment_file last_file
    cdef uint32_t last_number
    cdef uint8_t *part
    cdef uint64_t part_room

    def __cinit__(self, EngineCore core not None, take_file, moment, damaged):
        cdef uint32_t shard
        self.core, self.take_file, self.damaged = core, take_file, damaged
        self.with_ttl, self.with_floor, self.changed = [], [], []
        core.core.changes.loading = True
        for shard in range(min(len(moment), 8)):
            self.moment[shard] = moment[shard]
        self.part = <uint8_t *>malloc(PART_BYTES)
        if self.part == NULL:
            raise MemoryError
        self.part_room = PART_BYTES

    def __dealloc__(self):
        free(self.part)

    def load(self, const uint8_t[::1] raw not None, uint32_t number, const uint64_t[::1] gone=None):
        """Load the rows of snapshot `number` but for topics that a newer one has or knows to be gone: call it for the newest first.

        gone: ids of topics that no older one is to bring. Raises ValueError for a row that is not what it should be.
        """
        cdef Py_ssize_t place
        self.number = number
        self._load(raw)
        for place in range(gone.shape[0] if gone is not None else 0):
            self.core.learn_id(gone[place], NO_SLOT)

    def is_from(self, uint64_t topic_id, uint32_t number):
        """Tell whether a topic's row came from snapshot `number`: what else that one has of it holds too, and no other's."""
        cdef uint32_t slot = self.core._slot_of(topic_id)
        return slot != NO_SLOT and self.core.core.changes.stamps[slot] == number

    def finish(self):
        """From here on what changes is for the next snapshot."""
        self.core.core.changes.loading = False
        for slot in self.changed:
            touch(&self.core.core, slot)

    cdef bint is_known(self, uint64_t topic_id) noexcept nogil:
        cdef uint64_t place = (topic_id * <uint64_t>0x1E3779B97F4A7C15) >> 20 & self.core.ids_mask
        while self.core.ids[2 * place] != 0:
            if self.core.ids[2 * place] == topic_id:
                return True
            place = (place + 1) & self.core.ids_mask
        return False

    cdef int _load(self, const uint8_t[::1] raw) except -1:
        cdef uint64_t at = 0, size, end = <uint64_t>raw.shape[0]
        while at < end:
            if end - at < 8:
                raise ValueError("a topic's row is cut short")
            memcpy(&size, &raw[at], 8)
            if size < sizeof(TopicRow) or size > end - at - 8:
                raise ValueError("a topic's row is cut short")
            if not self.is_known((<const TopicRow *>&raw[at + 8]).topic_id):
                self.one(&raw[at + 8], size)
            at += 8 + size
        return 0

    cdef int one(self, const uint8_t *raw, uint64_t size) except -1:
        cdef Core *core = &self.core.core
        cdef Reading reading
        cdef TopicRow row
        cdef topic_slot *topic
        cdef const uint8_t *name
        cdef uint32_t slot
        reading.at, reading.end = raw, raw + size
        memcpy(&row, _take(&reading, sizeof(row)), sizeof(row))
        name = _take(&reading, row.name_bytes)
        if row.dead_letter_bytes and config_set_dead_letter(
                core.regions, &row.config, <const char *>_take(&reading, row.dead_letter_bytes), row.dead_letter_bytes) != 0:
            raise MemoryError
        _align(&reading, raw)
        slot = table_insert(core.regions, <const char *>name, row.name_bytes, row.topic_id, &row.config)
        if slot == NO_SLOT:
            raise TableFullError
        topic = &core.regions.table[slot]
        core.changes.stamps[slot] = self.number
        self.core._count_topic(&row.config, 1)
        if self.core.learn(row.topic_id, slot) != 0:
            raise MemoryError
        topic.last_write_ms, topic.last_read_ms, topic.last_ts = row.last_write_ms, row.last_read_ms, row.last_ts
        self.core.newest_ts = max(self.core.newest_ts, row.last_ts)
        topic.cap_lost, topic.ttl_lost, topic.hole_lost, topic.hole_reason = row.cap_lost, row.ttl_lost, row.hole_lost, row.hole_reason
        self.rows(&reading, topic, row.rows)
        topic.sealed_through = row.sealed_through
        topic.earliest = row.earliest
        topic.head = max(row.sealed_through, row.earliest - 1 if row.earliest else 0) if row.runs else row.head
        self.runs(&reading, slot, row.runs)
        if topic.head != row.head:
            raise ValueError(f"topic {row.topic_id}: its records end at {topic.head}, not at {row.head}")
        topic.count, topic.bytes = topic.count + row.count, topic.bytes + row.bytes    # what was lost to damage has been taken off by now
        topic.next_seq = topic.head + 1
        store_relaxed_64(&core.regions.control.records_live, core.regions.control.records_live + topic.count)
        store_relaxed_64(&core.regions.control.bytes_live, core.regions.control.bytes_live + topic.bytes)
        if row.config.type == TOPIC_QUEUE:
            if jobs_of(core, slot) == NULL:
                raise MemoryError
            jobs_added(jobs_of(core, slot), topic.count)    # a row of the section of jobs says which of them are not fresh
            jobs_changed(core, slot)
        topic.written_ms = core.mono_ms
        topic.last_position = self.moment[row.shard & 7] - 1 if self.moment[row.shard & 7] else 0
        self.core.place(slot, row.ceiling, <uint32_t>row.shard)
        self.origins(&reading, topic, row.origins, raw)
        self.windows(&reading, slot, row.windows, raw)
        if row.config.ttl_ms:
            self.with_ttl.append((slot, row.topic_id))
        if row.ttl_lost:
            self.with_floor.append((slot, row.topic_id, row.ttl_lost))
        self.topics += 1
        return 0

    cdef int rows(self, Reading *reading, topic_slot *topic, uint32_t count) except -1:
        cdef const uint8_t *bodies = _take(reading, count * sizeof(segment_body))
        cdef segment_body body
        cdef uint64_t size, offset
        cdef uint32_t number
        for number in range(count):
            memcpy(&body, bodies + number * sizeof(segment_body), sizeof(body))
            if body.row.file:
                body.row.file = self.file_of(&body)
            if body.row.marks_at:
                size = (body.row.last_seq - body.row.first_seq) // 64 * 8 + 8
                offset = slab_take(self.core.core.regions, slab_class_for(size))
                if offset == 0:
                    raise MemoryError
                memcpy(self.core.core.regions.index + offset, _take(reading, size), size)
                body.row.marks_at = <uint32_t>(offset >> 6)
            if rows_append(self.core.core.regions, topic, &body.row) != 0:
                raise MemoryError
        return 0

    cdef uint32_t file_of(self, const segment_body *body) except 0:
        """The number of the file that a row leads into; the rows of a pack come one after another."""
        if self.last_number == 0 or memcmp(&body.file, &self.last_file, sizeof(segment_file)) != 0:
            self.last_number = <uint32_t>self.take_file((<const uint8_t *>body)[:sizeof(segment_body)])
            if self.last_number == 0:
                raise MemoryError("the table of segment files is full")
            self.last_file = body.file
        return self.last_number

    cdef int runs(self, Reading *reading, uint32_t slot, uint32_t count) except -1:
        cdef topic_slot *topic = &self.core.core.regions.table[slot]
        cdef RunRow run
        cdef uint64_t _, entries
        for _ in range(count):
            memcpy(&run, _take(reading, sizeof(run)), sizeof(run))
            if run.first_seq != topic.head + 1 or run.last_seq < run.first_seq:
                raise ValueError(f"topic {topic.topic_id}: seqs {run.first_seq}-{run.last_seq} do not follow {topic.head}")
            if run.kind:
                if index_hole(self.core.core.regions, topic, run.first_seq, run.last_seq, run.kind) != 0:
                    raise MemoryError
                store_release_64(&topic.head, run.last_seq)
                continue
            entries = run.last_seq - run.first_seq + 1
            if entries > <uint64_t>(reading.end - reading.at) // sizeof(index_entry):
                raise ValueError("a topic's row is cut short")
            self.records(slot, <const index_entry *>_take(reading, entries * sizeof(index_entry)), run.first_seq, entries)
        return 0

    cdef int records(self, uint32_t slot, const index_entry *entries, uint64_t first_seq, uint64_t count) except -1:
        """Append entries; those whose bytes stand in a damaged range are told as lost."""
        cdef topic_slot *topic = &self.core.core.regions.table[slot]
        cdef uint64_t at = 0, end
        cdef bint lost
        while at < count:
            lost = self.is_damaged(&entries[at])
            end = at + 1
            while end < count and end - at < (1 << 16) and self.is_damaged(&entries[end]) == lost:
                end += 1
            if lost:
                self.lose(topic, entries, first_seq, at, end)
            else:
                if index_append(self.core.core.regions, topic, first_seq + at, entries + at, <uint32_t>(end - at)) != 0:
                    raise MemoryError
                self.learn(slot, entries, first_seq, at, end)
            store_release_64(&topic.head, first_seq + end - 1)
            at = end
        return 0

    cdef int lose(self, topic_slot *topic, const index_entry *entries, uint64_t first_seq, uint64_t at, uint64_t end) except -1:
        cdef uint64_t number
        cdef bint leads = topic.earliest > topic.head
        self.changed.append(topic - self.core.core.regions.table)
        if index_hole(self.core.core.regions, topic, first_seq + at, first_seq + end - 1, LOSS_CORRUPT) != 0:
            raise MemoryError
        if leads:
            topic.hole_lost, topic.hole_reason = first_seq + end - 1, LOSS_CORRUPT
            topic.earliest = first_seq + end
        for number in range(at, end):
            topic.count -= 1
            topic.bytes -= entries[number].bytes
            self.corrupt += 1
        return 0

    cdef int learn(self, uint32_t slot, const index_entry *entries, uint64_t first_seq, uint64_t at, uint64_t end) except -1:
        """Count what is deleted, put tags into the tag index."""
        cdef Core *core = &self.core.core
        cdef topic_slot *topic = &core.regions.table[slot]
        cdef Private *own
        cdef const record_entry *record
        cdef uint64_t number
        for number in range(at, end):
            if not entries[number].flags & INDEX_DELETED:
                low_is(core, slot, entries[number].position)
            if entries[number].flags & INDEX_DELETED:
                topic.deleted_in_index += 1
                topic.earliest += topic.earliest == first_seq + number    # after a loss in front of it
            elif entries[number].flags & INDEX_TAGGED:
                record = self.read(&entries[number])
                if record == NULL:
                    continue
                own = private_of(core, slot)
                if own != NULL and own.tags == NULL:
                    own.tags = tags_new()
                if own == NULL or own.tags == NULL or tags_add(own.tags, entry_tag(record), record.tag_bytes, first_seq + number) != 0:
                    raise MemoryError
        return 0

    cdef bint is_damaged(self, const index_entry *entry) except -1:
        cdef uint64_t position = entry.position & POSITION_MASK, shard = entry.position >> POSITION_BITS
        if shard >= <uint64_t>len(self.damaged) or not self.damaged[shard] or entry.flags & INDEX_DELETED:
            return False
        return any([first <= position < end for first, end in self.damaged[shard]])

    cdef const record_entry *read(self, const index_entry *entry) except? NULL:
        """A copy of a record from its front to its tag's end; NULL: it cannot be read."""
        cdef uint64_t available = 0, wanted = sizeof(record_entry) + sizeof(entry_ext)
        cdef const uint8_t *source = map_at(
            &self.core.forwarder.maps, <uint32_t>(entry.position >> POSITION_BITS), entry.position & POSITION_MASK, &available)
        cdef const record_entry *record = <const record_entry *>self.part
        cdef uint8_t *grown
        if source == NULL or available < sizeof(record_entry) or guarded_copy(self.part, source, min(wanted, available)) != 0:
            return NULL
        wanted += record.node_bytes + record.tag_bytes
        if wanted > self.part_room:
            grown = <uint8_t *>realloc(self.part, wanted)
            if grown == NULL:
                raise MemoryError
            self.part, self.part_room = grown, wanted
        if guarded_copy(self.part, source, min(wanted, available)) != 0:
            return NULL
        return <const record_entry *>self.part

    cdef int origins(self, Reading *reading, topic_slot *topic, uint32_t count, const uint8_t *start) except -1:
        cdef OriginRow row
        cdef uint32_t _
        for _ in range(count):
            memcpy(&row, _take(reading, sizeof(row)), sizeof(row))
            if route_origin(&self.core.core, topic, row.seq, row.source, <const char *>_take(reading, row.text_bytes), row.text_bytes) != 0:
                raise MemoryError
            _align(reading, start)
        return 0

    cdef int windows(self, Reading *reading, uint32_t slot, uint32_t count, const uint8_t *start) except -1:
        cdef Core *core = &self.core.core
        cdef Private *own = private_of(core, slot) if count else NULL
        cdef WindowRow row
        cdef const uint8_t *key
        cdef uint32_t _
        cdef int64_t age_ms
        for _ in range(count):
            memcpy(&row, _take(reading, sizeof(row)), sizeof(row))
            key = _take(reading, row.key_bytes)
            _align(reading, start)
            if own != NULL and own.dedupe == NULL:
                own.dedupe = dedupe_new()
            age_ms = <int64_t>core.wall_ms - row.arrived_ms    # below 0: the clock has stepped back, see settle_windows
            if row.arrived_ms > <int64_t>self.core.newest_ts:
                self.core.newest_ts = <uint64_t>row.arrived_ms
            if own == NULL or own.dedupe == NULL or dedupe_add(
                    own.dedupe, key, <unsigned short>row.key_bytes, row.records_xxh3, row.first_seq, row.count, core.mono_ms - age_ms) == NULL:
                raise MemoryError
        return 0


# ---- log files --------------------------------------------------------------------------------------------------------------


def show_files(Shared shared not None, uint32_t shard, list files not None):
    """Let this process find log files before the shard has been started: replay reads what it needs. `files`: [(first position, bytes)]."""
    cdef log_file_row *rows = shared.r.files + <uint64_t>shard * LOG_FILES_MAX
    cdef uint64_t number
    if len(files) > LOG_FILES_MAX:
        raise ValueError("too many log files")
    for number in range(len(files)):
        rows[number].first_position, rows[number].bytes = files[number]
        rows[number].retired = 0
    store_release_64(&shared.r.control.shards[shard].files, <uint64_t>len(files))


def retire_log(Shared shared not None, uint32_t shard, uint64_t below):
    """Take the log files that end at or below a position out of use; return their first positions, those of earlier calls too."""
    cdef log_file_row *rows = shared.r.files + <uint64_t>shard * LOG_FILES_MAX
    cdef uint64_t number, count = shared.r.control.shards[shard].files
    cdef list gone = []
    for number in range(count - 1 if count else 0):
        if rows[number + 1].first_position > below:
            break
        store_release_64(&rows[number].retired, 1)
        gone.append(rows[number].first_position)
    return gone
