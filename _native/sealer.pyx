"""The keeper's hand: copy a topic's tail out of the log into a segment (see sealer.pxd)."""

import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EILSEQ, ENOMEM
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset, strlen
from posix.stdlib cimport posix_memalign

from topicsd._native.atomics cimport clock_wall_ms, fence_acquire, load_acquire_64, load_relaxed_64
from topicsd._native.copies cimport ORIGIN_BYTES_MAX, origin_find, put_origin_meta
from topicsd._native.direct_io cimport direct_file
from topicsd._native.files cimport FileSystem
from topicsd._native.fleeting cimport ends_with_server
from topicsd._native.frame cimport (
    FRAME_VALID, align8, entry_bytes, entry_data, entry_meta, entry_node, entry_tag, frame_check,
)
from topicsd._native.index cimport view_flags, view_hole_part
from topicsd._native.layout cimport (
    ENTRY_FLAG_EMPTY_NODE, ENTRY_FLAG_EMPTY_TAG, ENTRY_FLAG_EXT, FRAME_APPEND, FRAME_MAGIC, INDEX_COPY, INDEX_DELETED, INDEX_DROP_NODE,
    INDEX_DROP_TAG, INDEX_HOLE, INDEX_ORIGIN, POSITION_BITS, POSITION_MASK, ROW_HOLES, ROW_ORIGINS, ROW_TAGS, SEGMENT_KIND_OWN, SEGMENT_KIND_PACK,
    SHARDS_MAX, entry_ext, frame_header, index_entry, record_entry, segment_body, segment_row, topic_slot,
)
from topicsd._native.maps cimport Map, guarded_call, map_at, maps_drop_all, maps_drop_retired, maps_init, maps_refresh
from topicsd._native.regions cimport Shared
from topicsd._native.sealed cimport sealed_attach, sealed_sweep
from topicsd._native.segment_build cimport (
    SegmentBuilt, SegmentRecord, segment_abort, segment_add, segment_begin, segment_begin_in_pack, segment_builder_free, segment_builder_new,
    segment_finish, segment_make_folder,
)
from topicsd._native.segment_pack cimport pack_abort, pack_begin, pack_builder_free, pack_builder_new, pack_bytes, pack_finish
from topicsd._native.segment import SegmentError
from topicsd._native.table cimport view_still, view_take

cdef extern from "<sys/mman.h>" nogil:
    int mincore(void *at, size_t size, unsigned char *resident)

cdef enum:
    LOG_MAPS = 64
    PAGE_BYTES = 4096
    PATH_BYTES_MAX = 4352
    ENTRIES_A_LOOK = 32
    HOLE_ROW_MIN = 256          # a longer hole is a row of its own: it costs no index
    TAIL_BYTES_ROWS_MAX = 4096
    READ_LATELY_MS = 60000
    WINDOW_BYTES = 512 << 10        # what is read at least
    WINDOW_BYTES_MAX = 16 << 20     # a larger frame is read through its map
    WINDOW_FRAME_MIN = 64 << 10     # a smaller one likewise: the kernel reads ahead
    NO_WINDOW = -2
    STOP_STALE = 1              # the ground moved: look again
    STOP_HERE = 2               # what comes next cannot be sealed (yet)


cdef class Sealer:
    """Find what is due and build segments of it. One thread; reads shared memory and the log as a worker does."""

    def __cinit__(self, Shared shared not None, data_dir, FileSystem files=None):
        cdef int failure
        self.shared = shared
        self.files = files if files is not None else FileSystem()
        self.directory = os.fsencode(data_dir)
        self.window_fd = -1
        self.builder = segment_builder_new()
        self.pack = pack_builder_new()
        if self.builder == NULL or self.pack == NULL:
            raise MemoryError
        sealed_attach(shared, data_dir)
        failure = maps_init(&self.maps, &shared.r, self.directory, LOG_MAPS)
        if failure != 0:
            raise OSError(-failure, os.strerror(-failure), data_dir)

    def __dealloc__(self):
        segment_builder_free(self.builder)
        pack_builder_free(self.pack)
        maps_drop_all(&self.maps)
        free(self.copy)
        free(self.window)
        if self.window_fd >= 0:
            os.close(self.window_fd)

    # ---- what is due ----------------------------------------------------------------------------------------------------------

    def due(self, uint32_t first_slot, uint32_t slots, uint64_t events_max, uint64_t bytes_max, uint64_t age_ms_max, uint64_t now_ms,
            uint64_t log_bytes_max=0):
        """Look at some slots: return (the slot to go on at, [(slot, topic id, tail records, tail bytes)]). 0 as a limit: never.

        `log_bytes_max`: so much may have been written to the shard behind the tail's first record.
        """
        cdef list found = []
        cdef uint64_t slot = first_slot, high = load_acquire_64(&self.shared.r.control.table_high)
        cdef TopicView *view = &self.view
        cdef index_entry entry
        cdef uint64_t first, count, size
        while slot < high and slots:
            slots -= 1
            slot += 1
            if load_relaxed_64(&self.shared.r.table[slot - 1].topic_id) == 0 or view_take(&self.shared.r, <uint32_t>(slot - 1), view) != 0:
                continue
            first = max(view.earliest, view.sealed_through + 1)
            if first > view.head:
                continue
            count = view.head + 1 - first
            size = self.tail_bytes(view, first)
            if not (events_max and count >= events_max) and not (bytes_max and size >= bytes_max):
                if not (age_ms_max or log_bytes_max) or self.first_held(view, first, &entry) != 0:
                    continue
                if not view_still(&self.shared.r, <uint32_t>(slot - 1), view):
                    continue
                if not (age_ms_max and entry.ts + age_ms_max <= now_ms) and not (log_bytes_max and self.is_far_behind(&entry, log_bytes_max)):
                    continue
            found.append((slot - 1, view.topic_id, count, size))
        return slot, found

    def tails(self):
        """Return what is not sealed of all topics: (live records, seqs, bytes)."""
        cdef uint64_t slot, first, high = load_acquire_64(&self.shared.r.control.table_high)
        cdef uint64_t records = 0, seqs = 0, size = 0
        cdef TopicView *view = &self.view
        for slot in range(high):
            if load_relaxed_64(&self.shared.r.table[slot].topic_id) == 0 or view_take(&self.shared.r, <uint32_t>slot, view) != 0:
                continue
            first = max(view.earliest, view.sealed_through + 1)
            if first <= view.head:
                records += self.tail_records(view, first)
                seqs += view.head + 1 - first
                size += self.tail_bytes(view, first)
        return records, seqs, size

    cdef uint64_t tail_records(self, const TopicView *view, uint64_t first) noexcept nogil:
        """About the live records that are not sealed: as tail_bytes."""
        cdef uint64_t sealed, size
        if not self.sealed_live(view, &sealed, &size):
            return 0
        return min(view.count - sealed if view.count > sealed else view.count, view.head + 1 - first)

    cdef bint sealed_live(self, const TopicView *view, uint64_t *records, uint64_t *size) noexcept nogil:
        """What is live in a topic's rows; False for a view that is no more."""
        cdef const segment_row *rows = <const segment_row *>(self.shared.r.index + view.segments_offset)
        cdef uint32_t number
        records[0] = size[0] = 0
        if view.segments_offset + view.segments_len * sizeof(segment_row) > self.shared.r.index_bytes:
            return False
        for number in range(min(view.segments_len, <uint32_t>TAIL_BYTES_ROWS_MAX)):
            records[0] += rows[number].live
            size[0] += rows[number].live_bytes
        return True

    cdef int first_held(self, const TopicView *view, uint64_t seq, index_entry *out) noexcept nogil:
        """The first entry from a seq on that was not deleted: deleted ones hold nothing of the log, what stands behind them does."""
        cdef index_entry entries[ENTRIES_A_LOOK]
        cdef uint32_t count, number
        cdef int status
        while True:
            count = min(<uint64_t>ENTRIES_A_LOOK, view.head + 1 - seq)
            status = view_flags(&self.shared.r, view, seq, count, entries)
            if status != 0:
                return status
            for number in range(count):
                out[0] = entries[number]
                if not out.flags & INDEX_DELETED:
                    return 0
            seq += count
            if seq > view.head:
                return 0

    cdef bint is_far_behind(self, const index_entry *entry, uint64_t bytes) noexcept nogil:
        cdef uint64_t shard = entry.position >> POSITION_BITS
        if shard >= SHARDS_MAX or entry.flags & (INDEX_HOLE | INDEX_DELETED) or ends_with_server(entry):
            return False
        return (entry.position & POSITION_MASK) + bytes < load_acquire_64(&self.shared.r.control.shards[shard].written)

    cdef uint64_t tail_bytes(self, const TopicView *view, uint64_t first) noexcept nogil:
        """About the bytes that are not sealed: all but what the rows say."""
        cdef uint64_t records, sealed
        if not self.sealed_live(view, &records, &sealed):
            return 0
        if view.bytes > sealed:
            return view.bytes - sealed
        return view.bytes // max(view.count, <uint64_t>1) * min(view.count, view.head + 1 - first)

    # ---- build ------------------------------------------------------------------------------------------------------------------

    def begin_pack(self, uint64_t number):
        """Begin a pack; `seal` with in_pack writes into it."""
        cdef bytes folder = self.directory + b"/packs"
        self._check(segment_make_folder(&self.files.table, self.directory, b"packs"))
        self._check(pack_begin(self.pack, &self.files.table, folder, number))
        self.pack_number = number

    def pack_bytes(self):
        """How large the pack is by now."""
        return pack_bytes(self.pack)

    def finish_pack(self):
        """Make the pack durable under its name; return its bytes."""
        cdef uint64_t size = 0
        self._check(pack_finish(self.pack, &size))
        return size

    def abort_pack(self):
        """Give up what was begun."""
        segment_abort(self.builder)
        pack_abort(self.pack)

    def seal(self, uint32_t slot, uint64_t topic_id, uint64_t events_max, uint64_t bytes_max, bint in_pack=False):
        """Seal from the first unsealed seq on, at most about so much: return struct segment_body, or None when nothing can be sealed now.

        Only whole batches that are synced. The row's `live` is the number of records in it. A row without a file stands for a long hole or
        for records that are all deleted. Raises OSError (EILSEQ: the log is damaged there) and SegmentError.
        """
        cdef segment_body body
        cdef int result
        cdef char relative[64]
        memset(&body, 0, sizeof(body))
        maps_refresh(&self.maps)
        self.slot, self.topic_id, self.in_pack = slot, topic_id, in_pack
        self.events_max, self.bytes_max = max(events_max, <uint64_t>1), max(bytes_max, <uint64_t>1)
        snprintf(relative, 64, b"topics/%02x/%016llx", <unsigned int>(topic_id & 0xFF), <unsigned long long>topic_id)
        self.folder = self.directory + b"/" + relative[:strlen(relative)]
        self.directory_bytes, self.folder_bytes = PyBytes_AS_STRING(self.directory), PyBytes_AS_STRING(self.folder)
        self.reset()
        with nogil:
            result = guarded_call(_gather, <void *>self)
            self.close_window()
        if result < 0 or self.failure != 0:
            segment_abort(self.builder)
            self._check(self.failure if self.failure != 0 else result)
        if self.hole_to:
            body.row.first_seq, body.row.last_seq, body.row.flags = self.first_seq, self.hole_to, self.hole_reason << 8 | ROW_HOLES
            body.row.last_ts = self.last_ts
            return PyBytes_FromStringAndSize(<char *>&body, sizeof(body))
        if not self.begun:
            return None
        if self.records == 0 and self.holes == 0:
            segment_abort(self.builder)
            body.row.first_seq, body.row.last_seq, body.row.last_ts = self.first_seq, self.next_seq - 1, self.last_ts
            return PyBytes_FromStringAndSize(<char *>&body, sizeof(body))
        self.finish(&body)
        return PyBytes_FromStringAndSize(<char *>&body, sizeof(body))

    cdef int finish(self, segment_body *body) except -1:
        cdef SegmentBuilt built
        cdef int result
        with nogil:
            result = segment_finish(self.builder, &built)
        if result != 0:
            segment_abort(self.builder)
            self._check(result)
        body.row.first_seq, body.row.last_seq, body.row.last_ts = built.first_seq, built.last_seq, built.last_ts
        body.row.live = <uint32_t>built.records
        body.row.live_bytes = built.payload_bytes
        body.row.file = 1
        body.row.flags = (ROW_HOLES if built.holes else 0) | (ROW_TAGS if built.postings else 0) | (ROW_ORIGINS if self.restated else 0)
        body.row.data_at, body.row.index_at, body.row.tags_at = built.data_offset // 8, built.index_offset // 8, built.tags_offset // 8
        body.file.kind = SEGMENT_KIND_PACK if self.in_pack else SEGMENT_KIND_OWN
        body.file.topic_id = 0 if self.in_pack else built.topic_id
        body.file.name = self.pack_number if self.in_pack else built.first_seq
        body.file.bytes = built.data_bytes + built.index_bytes + built.tags_bytes
        return 0

    cdef void reset(self) noexcept nogil:
        self.begun = self.restated = False
        self.failure = 0
        self.records = self.holes = self.payload = 0
        self.first_seq = self.next_seq = self.last_ts = 0
        self.hole_to = 0
        self.frame_last = 0
        self.pending = 0
        self.copy_first = self.copy_end = 0
        self.window_bytes = 0           # an older look: what was not written then may stand there now
        self.frame_in_window = False
        self.warm_page = NULL

    cdef int start(self) noexcept nogil:
        """Begin the segment with the first thing that goes in."""
        cdef char relative[64]
        cdef int result
        if self.begun:
            return 0
        if self.in_pack:
            result = segment_begin_in_pack(self.builder, self.pack, self.topic_id, self.first_seq)
        else:
            snprintf(relative, 64, b"topics/%02x/%016llx", <unsigned int>(self.topic_id & 0xFF), <unsigned long long>self.topic_id)
            result = segment_make_folder(&self.files.table, self.directory_bytes, relative)
            if result == 0:
                result = segment_begin(self.builder, &self.files.table, self.folder_bytes, self.topic_id, self.first_seq, 0, not self.is_read())
        self.begun = result == 0
        return result

    cdef bint is_read(self) noexcept nogil:
        """Whether somebody seems to read the topic: then its segments are left in the page cache."""
        cdef const topic_slot *topic = &self.shared.r.table[self.slot]
        return load_relaxed_64(&topic.watchers) != 0 or load_relaxed_64(&topic.last_read_ms) + READ_LATELY_MS > clock_wall_ms()

    cdef int put(self) noexcept nogil:
        """Hand over what has been gathered; its records stand in the log's maps."""
        cdef int result = self.start()
        if result == 0 and self.pending:
            result = segment_add(self.builder, self.gathered, self.pending)
        self.pending = 0
        return result

    cdef int gather(self) noexcept nogil:
        """Go through the tail until a limit is reached. 0 or -errno in `failure`."""
        cdef int step, tries = 0
        if view_take(&self.shared.r, self.slot, &self.view) != 0 or self.view.topic_id != self.topic_id:
            return 0
        self.first_seq = self.next_seq = max(self.view.earliest, self.view.sealed_through + 1)
        while self.next_seq <= self.view.head:
            step = self.chunk()
            if step < 0:
                return step
            if step == STOP_HERE:
                break
            if step == STOP_STALE:
                tries += 1
                if tries > 100:
                    return -EAGAIN
                if view_take(&self.shared.r, self.slot, &self.view) != 0 or self.view.topic_id != self.topic_id:
                    return -EAGAIN
                self.window_bytes = 0   # the view may show what was not written when it was read
                if max(self.view.earliest, self.view.sealed_through + 1) > self.next_seq:
                    return -EAGAIN    # what comes next has gone: another time
        return 0

    cdef int chunk(self) noexcept nogil:
        cdef uint64_t count = min(self.view.head + 1 - self.next_seq, <uint64_t>GATHER), number
        cdef index_entry *entry
        cdef int step = 0
        if view_flags(&self.shared.r, &self.view, self.next_seq, <uint32_t>count, self.entries) != 0:
            return STOP_STALE
        if not view_still(&self.shared.r, self.slot, &self.view):
            return STOP_STALE
        number = 0
        while number < count and step == 0:
            entry = &self.entries[number]
            if entry.flags & INDEX_HOLE:
                step = self.hole(entry)
                break    # it may be longer than the chunk
            step = self.one(entry)
            number += 1
        if self.pending and self.put_failed():
            return self.failure
        return step

    cdef bint put_failed(self) noexcept nogil:
        self.failure = self.put()
        return self.failure != 0

    cdef int hole(self, const index_entry *entry) noexcept nogil:
        """A short hole goes into the segment, a long one ends it or is a row of its own."""
        cdef uint32_t reason, other
        cdef uint64_t end = view_hole_part(&self.shared.r, &self.view, self.next_seq, False, &reason), part
        cdef SegmentRecord *out
        if end == 0:
            return STOP_STALE
        while end < self.view.head:
            part = view_hole_part(&self.shared.r, &self.view, end + 1, False, &other)
            if part == 0 or other != reason:
                break
            end = part
        if not view_still(&self.shared.r, self.slot, &self.view):
            return STOP_STALE
        if end - self.next_seq + 1 >= HOLE_ROW_MIN:
            if not self.begun and self.pending == 0:
                self.hole_to, self.hole_reason, self.last_ts = end, reason, entry.ts
            return STOP_HERE
        out = &self.gathered[self.pending]
        memset(out, 0, sizeof(SegmentRecord))
        out.seq, out.ts, out.flags = self.next_seq, max(entry.ts, self.last_ts), INDEX_HOLE | reason << 8
        out.count = <uint32_t>(end - self.next_seq + 1)
        self.pending += 1
        self.holes += out.count
        self.last_ts = out.ts
        self.next_seq = end + 1
        return self.failure if self.put_failed() else 0

    cdef int one(self, const index_entry *entry) noexcept nogil:
        cdef SegmentRecord *out = &self.gathered[self.pending]
        cdef const record_entry *record = NULL
        cdef uint64_t shard = entry.position >> POSITION_BITS, available = 0, size = 0
        cdef const uint8_t *base = NULL
        cdef const Map *map
        memset(out, 0, sizeof(SegmentRecord))
        if self.next_seq > self.frame_last and (self.records >= self.events_max or self.payload >= self.bytes_max):
            return STOP_HERE
        if not entry.flags & INDEX_DELETED:
            if shard >= SHARDS_MAX or ends_with_server(entry):
                return STOP_HERE
            if self.behind and self.next_seq > self.frame_last and not self.is_far_behind(entry, self.behind):
                return STOP_HERE
            if entry.flags & INDEX_ORIGIN:
                origin_find(&self.shared.r, load_relaxed_64(&self.shared.r.table[self.slot].origins), self.next_seq, &self.origin)
                fence_acquire()
                if not view_still(&self.shared.r, self.slot, &self.view):    # what was found counts only if nothing has moved
                    return STOP_STALE
            if not entry.flags & INDEX_COPY:
                record = <const record_entry *>self.in_window(<uint32_t>shard, entry.position & POSITION_MASK)
            if record == NULL:
                record = <const record_entry *>map_at(&self.maps, <uint32_t>shard, entry.position & POSITION_MASK, &available)
                if record == NULL:
                    return self.maps.failure
                map = self._map_of(<uint32_t>shard, entry.position & POSITION_MASK)
                if map == NULL:
                    return STOP_HERE
                base, size = map.base, map.bytes
                if not entry.flags & INDEX_COPY and self.next_seq > self.frame_last and self.is_cold(<const uint8_t *>record):
                    if self.pending and self.put_failed():     # what is gathered may stand in the window
                        return self.failure
                    out = &self.gathered[0]
                    memset(out, 0, sizeof(SegmentRecord))
                    if self.open_window(<uint32_t>shard, entry.position & POSITION_MASK, map):
                        record = <const record_entry *>self.in_window(<uint32_t>shard, entry.position & POSITION_MASK)
            if self.window_bytes and self.window <= <const uint8_t *>record < self.window + self.window_bytes:
                base, size = self.window, self.window_bytes
            if entry.flags & INDEX_COPY:
                if not self.locate_copy(<const uint8_t *>record, <uint32_t>shard, entry.position & POSITION_MASK):
                    return self.failure if self.failure != 0 else STOP_HERE
                if entry.flags & (INDEX_DROP_NODE | INDEX_DROP_TAG | INDEX_ORIGIN):
                    record = self.shown(record, entry.flags)
                    if record == NULL:
                        return -ENOMEM
            elif self.next_seq > self.frame_last:
                if not self.locate(<const uint8_t *>record, base, size, <uint32_t>shard, entry.position & POSITION_MASK):
                    return self.failure if self.failure != 0 else STOP_HERE
                self.frame_in_window = base == self.window
            out.entry = record
        out.seq, out.ts, out.flags, out.count = self.next_seq, entry.ts, entry.flags & INDEX_DELETED, 1
        self.pending += 1
        self.last_ts = entry.ts
        self.next_seq += 1
        if record != NULL:
            self.records += 1
            self.payload += entry.bytes
        if record == <const record_entry *>self.copy and self.put_failed():    # before the next one is written over it
            return self.failure
        return 0

    cdef const record_entry *shown(self, const record_entry *record, uint32_t flags) noexcept nogil:
        """The record as readers of the copy see it; good until the next call. NULL: memory is short."""
        cdef uint64_t bytes = entry_bytes(record) + (ORIGIN_BYTES_MAX + 8 if flags & INDEX_ORIGIN else 0)
        cdef record_entry *out
        cdef uint8_t *at
        if bytes > self.copy_room:
            free(self.copy)
            self.copy = <uint8_t *>malloc(bytes)
            self.copy_room = bytes if self.copy != NULL else 0
            if self.copy == NULL:
                return NULL
        memset(self.copy, 0, bytes)
        out = <record_entry *>self.copy
        at = self.copy + sizeof(record_entry)
        out.length_flags = record.length_flags & ENTRY_FLAG_EXT
        if out.length_flags:
            memcpy(at, record + 1, sizeof(entry_ext))
            at += sizeof(entry_ext)
        if not flags & INDEX_DROP_NODE:
            out.node_bytes = record.node_bytes
            out.length_flags |= record.length_flags & ENTRY_FLAG_EMPTY_NODE
            memcpy(at, entry_node(record), record.node_bytes)
            at += record.node_bytes
        if not flags & INDEX_DROP_TAG:
            out.tag_bytes = record.tag_bytes
            out.length_flags |= record.length_flags & ENTRY_FLAG_EMPTY_TAG
            memcpy(at, entry_tag(record), record.tag_bytes)
            at += record.tag_bytes
        out.meta_bytes, out.data_bytes = record.meta_bytes, record.data_bytes
        if flags & INDEX_ORIGIN and self.origin.text_bytes:
            out.meta_bytes = <uint32_t>(put_origin_meta(at, &self.origin, entry_meta(record), record.meta_bytes) - at)
            self.restated = True
        else:
            memcpy(at, entry_meta(record), record.meta_bytes)
        at += out.meta_bytes
        memcpy(at, entry_data(record), record.data_bytes)
        at += record.data_bytes
        out.length_flags |= <uint32_t>align8(at - self.copy)
        return out

    cdef const Map *_map_of(self, uint32_t shard, uint64_t position) noexcept nogil:
        cdef const Map *map
        cdef uint32_t number
        for number in range(self.maps.count):
            map = &self.maps.list[number]
            if map.shard == shard and map.first_position <= position < map.first_position + map.bytes:
                return map
        return NULL

    cdef bint locate_copy(self, const uint8_t *record, uint32_t shard, uint64_t position) noexcept nogil:
        """The same for a router's copy: the frame is its source's, and may hold records of other topics' seqs."""
        cdef const uint8_t *base
        cdef const frame_header *frame
        cdef uint64_t back = sizeof(frame_header), size
        cdef const Map *map = self._map_of(shard, position)
        if shard == self.copy_shard and self.copy_first <= position < self.copy_end:
            return True
        if map == NULL:
            return False
        base, size = map.base, map.bytes
        while <uint64_t>(record - base) >= back:
            frame = <const frame_header *>(record - back)
            if frame.magic == FRAME_MAGIC and frame.position == position - back and frame.type == FRAME_APPEND and frame.length > back:
                if frame_check(frame, size - <uint64_t>(<const uint8_t *>frame - base)) == FRAME_VALID:
                    if frame.position + frame.length > load_acquire_64(&self.shared.r.control.shards[shard].synced):
                        return False
                    self.copy_shard, self.copy_first, self.copy_end = shard, frame.position, frame.position + frame.length
                    return True
            back += 8
        self.failure = -EILSEQ
        return False

    cdef const frame_header *frame_of(self, const uint8_t *record, const uint8_t *base, uint64_t position) noexcept nogil:
        """The frame around a record, as far as its header tells; bytes from `base` on may be looked at. NULL: none."""
        cdef const frame_header *frame
        cdef uint64_t back = sizeof(frame_header)
        while <uint64_t>(record - base) >= back:
            frame = <const frame_header *>(record - back)
            if frame.magic == FRAME_MAGIC and frame.position == position - back and frame.topic_id == self.topic_id and frame.type == FRAME_APPEND \
                    and frame.base_seq <= self.next_seq < frame.base_seq + frame.count:
                return frame
            back += 8
        return NULL

    cdef bint locate(self, const uint8_t *record, const uint8_t *base, uint64_t size, uint32_t shard, uint64_t position) noexcept nogil:
        """Find the frame around a record and verify it: what is sealed gets a checksum of its own, so it must be right."""
        cdef uint64_t synced = load_acquire_64(&self.shared.r.control.shards[shard].synced)
        cdef const frame_header *frame = self.frame_of(record, base, position)
        if frame == NULL or frame_check(frame, size - <uint64_t>(<const uint8_t *>frame - base)) != FRAME_VALID:
            self.failure = -EILSEQ
            return False
        if frame.position + frame.length > synced:
            return False
        self.frame_last = frame.base_seq + frame.count - 1
        return True

    # ---- the window

    cdef const uint8_t *in_window(self, uint32_t shard, uint64_t position) noexcept nogil:
        """A record's place in the window; at a new frame only if all of that stands there. NULL: it is not there."""
        cdef const frame_header *frame
        cdef const uint8_t *record
        if self.window_bytes == 0 or shard != self.window_shard or not self.window_first <= position < self.window_first + self.window_bytes:
            return NULL
        record = self.window + (position - self.window_first)
        if self.next_seq > self.frame_last:
            frame = self.frame_of(record, self.window, position)
            if frame == NULL or frame.position + frame.length > self.window_first + self.window_bytes:
                return NULL
        elif not self.frame_in_window:      # what was verified stands in the map
            return NULL
        return record

    cdef bint is_cold(self, const uint8_t *at) noexcept nogil:
        """Whether a byte of a map would have to be read from the disk."""
        cdef const uint8_t *page = at - <uintptr_t>at % PAGE_BYTES
        cdef unsigned char resident = 1
        if self.window_fd == NO_WINDOW or page == self.warm_page:
            return False
        if mincore(<void *>page, PAGE_BYTES, &resident) == 0 and not resident & 1:
            return True
        self.warm_page = page
        return False

    cdef bint open_window(self, uint32_t shard, uint64_t position, const Map *map) noexcept nogil:
        """Read the frame around a record, and what follows it; nothing that is gathered may stand in the window. False: use the map."""
        cdef const frame_header *frame
        cdef uint64_t first = max(position, map.first_position + PAGE_BYTES) - PAGE_BYTES, frame_end
        if not self.read_window(shard, map, first, WINDOW_BYTES) or position >= self.window_first + self.window_bytes:
            self.window_bytes = 0
            return False
        frame = self.frame_of(self.window + (position - self.window_first), self.window, position)
        if frame == NULL or frame.length < WINDOW_FRAME_MIN or frame.length > WINDOW_BYTES_MAX:
            self.window_bytes = 0
            return False
        frame_end = frame.position + frame.length
        if frame_end <= self.window_first + self.window_bytes:
            return True
        return self.read_window(shard, map, frame.position, frame.length) and frame_end <= self.window_first + self.window_bytes

    cdef bint read_window(self, uint32_t shard, const Map *map, uint64_t first, uint64_t bytes) noexcept nogil:
        """Read whole pages around a range of positions of a log file."""
        cdef uint64_t begin = first - first % PAGE_BYTES        # files begin on a page
        cdef uint64_t end = min(first + bytes + PAGE_BYTES - 1 - (first + bytes - 1) % PAGE_BYTES, map.first_position + map.bytes)
        cdef char path[PATH_BYTES_MAX]
        cdef int64_t got
        self.window_bytes = 0
        if map.first_position % PAGE_BYTES:
            return False
        if self.window_fd == -1 or self.window_shard != shard or self.window_file != map.first_position:
            if self.window_fd >= 0:
                self.files.table.close(self.files.table.context, self.window_fd)
            snprintf(path, PATH_BYTES_MAX, "%s/log/shard-%02u/%020llu.log", self.directory_bytes, shard, <unsigned long long>map.first_position)
            self.window_fd = direct_file(&self.files.table, path)
            if self.window_fd < 0:
                self.window_fd = NO_WINDOW
                return False
            self.window_shard, self.window_file = shard, map.first_position
        if end - begin > self.window_room:
            free(self.window)
            self.window_room = 0
            if posix_memalign(<void **>&self.window, PAGE_BYTES, end - begin) != 0:
                self.window = NULL
                return False
            self.window_room = end - begin
        got = self.files.table.pread(self.files.table.context, self.window_fd, self.window, end - begin, begin - map.first_position)
        if got < 0:
            return False        # the map says what is wrong there
        self.window_first, self.window_bytes = begin, <uint64_t>got
        return True

    cdef void close_window(self) noexcept nogil:
        """Not to keep a log file's room that is retired before the next look."""
        if self.window_fd >= 0:
            self.files.table.close(self.files.table.context, self.window_fd)
        self.window_fd = -1
        self.window_bytes = 0

    cdef int _check(self, int result) except -1:
        if result < 0:
            raise OSError(-result, os.strerror(-result), os.fsdecode(self.directory))
        if result > 0:
            raise SegmentError(result, os.fsdecode(self.directory))
        return 0

    def sweep(self):
        """Unmap what is retired; return how many maps went."""
        return maps_drop_retired(&self.maps) + sealed_sweep(&self.shared.r)


cdef int _gather(void *argument) noexcept nogil:
    return (<Sealer>argument).gather()
