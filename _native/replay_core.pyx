"""Replay of what very many topics leave in the log (see replay_core.pxd)."""

cimport cython

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcmp, memcpy

from topicsd._native.atomics cimport store_relaxed_64, store_release_64
from topicsd._native.frame cimport frame_body
from topicsd._native.layout cimport (
    FRAME_HEADER_BYTES, NO_SLOT, TOPIC_QUEUE, control, frame_header, segment_body, segment_file, topic_config, topic_slot,
)
from topicsd._native.sealed_topic cimport PUBLISHED, sealed_admits, sealed_publish
from topicsd._native.table cimport table_find, table_insert
from topicsd._native.topics cimport touch

cdef enum:
    IDS_FIRST = 1024

cdef extern from *:
    """
    static const char CREATE_BEGIN[] = "{\\"name\\":\\"", CREATE_CONFIG[] = "\\",\\"config\\":", CREATE_CEILING[] = ",\\"ceiling\\":";
    """
    const char CREATE_BEGIN[]
    const char CREATE_CONFIG[]
    const char CREATE_CEILING[]


cdef struct Created:        # a create frame's body, cut up
    const char *name
    const char *config
    uint32_t name_bytes, config_bytes
    uint64_t ceiling


cdef bint _starts(const char *at, const char *end, const char *text, uint64_t text_bytes) noexcept nogil:
    return <uint64_t>(end - at) >= text_bytes and memcmp(at, text, text_bytes) == 0


cdef bint _cut(const char *at, uint64_t size, Created *out) noexcept nogil:
    """Cut up a body as engine.create writes it. False: it is not exactly like that, or it has an escape."""
    cdef const char *end = at + size
    cdef const char *quote
    cdef const char *digit
    cdef uint64_t scale = 1
    while end > at and (end[-1] == 0 or end[-1] == c" "):
        end -= 1
    if not _starts(at, end, CREATE_BEGIN, sizeof(CREATE_BEGIN) - 1) or end[-1] != c"}" or memchr(at, c"\\", end - at) != NULL:
        return False
    out.name = at + sizeof(CREATE_BEGIN) - 1
    quote = <const char *>memchr(out.name, c'"', end - out.name)
    if quote == NULL or not _starts(quote, end, CREATE_CONFIG, sizeof(CREATE_CONFIG) - 1):
        return False
    out.name_bytes = <uint32_t>(quote - out.name)
    out.config = quote + sizeof(CREATE_CONFIG) - 1
    out.ceiling = 0
    digit = end - 1
    while digit > out.config and c"0" <= digit[-1] <= c"9" and end - digit < 19:
        digit -= 1
        out.ceiling += <uint64_t>(digit[0] - c"0") * scale
        scale *= 10
    if scale == 1 or digit - out.config < <int64_t>sizeof(CREATE_CEILING):
        return False
    digit -= sizeof(CREATE_CEILING) - 1
    out.config_bytes = <uint32_t>(digit - out.config)
    return memcmp(digit, CREATE_CEILING, sizeof(CREATE_CEILING) - 1) == 0


@cython.no_gc_clear
cdef class ReplayCore(QueueDoor):
    """What replay knows, and the frames that it applies by itself. One thread, the writer's."""

    # ---- topic ids ---------------------------------------------------------------------------------------------------------------------

    cdef int learn(self, uint64_t topic_id, uint32_t slot) noexcept nogil:
        """Remember a topic id; 0, or -1 when memory is short."""
        cdef uint64_t place, number, old_mask = self.ids_mask
        cdef uint64_t *old = self.ids
        if (self.ids_used + 1) * 2 > self.ids_mask:
            self.ids = <uint64_t *>calloc((old_mask + 1) * 4, sizeof(uint64_t))
            if self.ids == NULL:
                self.ids = old
                return -1
            self.ids_mask = old_mask * 2 + 1
            self.ids_used = 0
            for number in range(old_mask + 1):
                if old[2 * number] != 0:
                    self.learn(old[2 * number], <uint32_t>old[2 * number + 1])
            free(old)
        place = (topic_id * <uint64_t>0x1E3779B97F4A7C15) >> 20 & self.ids_mask
        while self.ids[2 * place] != 0 and self.ids[2 * place] != topic_id:
            place = (place + 1) & self.ids_mask
        if self.ids[2 * place] == 0:
            self.ids_used += 1
        self.ids[2 * place] = topic_id
        self.ids[2 * place + 1] = slot
        return 0

    def learn_id(self, uint64_t topic_id, uint32_t slot):
        """Remember a topic id during replay; NO_SLOT forgets it."""
        if self.learn(topic_id, slot) != 0:
            raise MemoryError

    def slot_of(self, uint64_t topic_id):
        """Return the slot of a topic id seen in replay, or None."""
        cdef uint32_t slot = self._slot_of(topic_id)
        return None if slot == NO_SLOT else slot

    def end_replay(self):
        """Forget what only replay needs to know: ids, and what the last frames were like."""
        cdef uint64_t *fresh = <uint64_t *>calloc(IDS_FIRST * 2, sizeof(uint64_t))
        self.config_bytes = self.last_file_number = 0
        if fresh != NULL:
            free(self.ids)
            self.ids, self.ids_mask, self.ids_used = fresh, IDS_FIRST - 1, 0

    @property
    def highest_replayed_id(self):
        """The highest id of a topic that was made without Python."""
        return self.highest_id

    # ---- topics ------------------------------------------------------------------------------------------------------------------------

    cdef void place(self, uint32_t slot, uint64_t ceiling, uint32_t shard) noexcept nogil:
        cdef topic_slot *topic = &self.core.regions.table[slot]
        touch(&self.core, slot)
        topic.shard = shard
        topic.ceiling_durable = topic.ceiling_asked = ceiling
        if ceiling > topic.head:
            self._remember_raised(slot)

    def set_topic(self, uint32_t slot, uint64_t ceiling, uint64_t shard):
        """Set a new topic's shard and the ceiling that its create frame has reserved."""
        self.place(slot, ceiling, <uint32_t>shard)

    def set_ceiling(self, uint32_t slot, uint64_t ceiling):
        """Set the ceiling that a frame has just lowered or replay has found."""
        self.place(slot, ceiling, self.core.regions.table[slot].shard)

    def set_last_position(self, uint32_t slot, uint64_t position):
        """Remember where replay has last met a topic."""
        self.core.regions.table[slot].last_position = position

    cdef void _count_topic(self, const topic_config *config, int64_t change) noexcept nogil:
        cdef control *shown = self.core.regions.control
        store_relaxed_64(&shown.topics, shown.topics + <uint64_t>change)
        store_relaxed_64(&shown.topics_by_class[config.durability], shown.topics_by_class[config.durability] + <uint64_t>change)
        if config.type == TOPIC_QUEUE:
            store_relaxed_64(&shown.queue_topics, shown.queue_topics + <uint64_t>change)
        store_release_64(&shown.names_version, shown.names_version + 1)

    # ---- frames ------------------------------------------------------------------------------------------------------------------------

    def like_topic(self, uint32_t slot, bytes body not None):
        """Say that Python has made a topic from this body of a create frame: one whose config reads the same is made like it."""
        cdef const topic_config *config = &self.core.regions.table[slot].config
        cdef Created cut
        self.config_bytes = 0
        if config.ttl_ms or config.dead_letter or not _cut(PyBytes_AS_STRING(body), len(body), &cut) or cut.config_bytes > CONFIG_TEXT_MAX:
            return
        memcpy(self.config_text, cut.config, cut.config_bytes)
        self.config_bytes = cut.config_bytes
        self.config_of_text = config[0]

    def like_file(self, bytes body not None, uint32_t number):
        """Say that Python has published a row (struct segment_body) that leads into this file of the table."""
        if len(body) >= <Py_ssize_t>sizeof(segment_body):
            memcpy(&self.last_file, PyBytes_AS_STRING(body) + sizeof(segment_body) - sizeof(segment_file), sizeof(segment_file))
            self.last_file_number = number

    cdef Replayed replay_create(self, const frame_header *frame, uint64_t position) noexcept nogil:
        cdef Created cut
        cdef uint32_t slot
        if self.config_bytes == 0 or self.ordered or not _cut(<const char *>frame_body(frame), frame.length - FRAME_HEADER_BYTES, &cut):
            return REPLAY_LEFT
        if cut.config_bytes != self.config_bytes or memcmp(cut.config, self.config_text, cut.config_bytes) != 0:
            return REPLAY_LEFT
        if table_find(self.core.regions, cut.name, cut.name_bytes) != NO_SLOT:
            return REPLAY_LEFT
        slot = table_insert(self.core.regions, cut.name, cut.name_bytes, frame.topic_id, &self.config_of_text)
        if slot == NO_SLOT:
            return REPLAY_LEFT
        self._count_topic(&self.config_of_text, 1)
        self.place(slot, cut.ceiling, frame.shard)
        self.core.regions.table[slot].last_position = position
        self.highest_id = max(self.highest_id, frame.topic_id)
        return REPLAY_DONE if self.learn(frame.topic_id, slot) == 0 else REPLAY_FAILED

    cdef Replayed replay_ceiling(self, const frame_header *frame) noexcept nogil:
        cdef uint32_t slot = self._slot_of(frame.topic_id) if frame.topic_id else NO_SLOT
        if slot == NO_SLOT:
            return REPLAY_LEFT
        self.place(slot, frame.base_seq, self.core.regions.table[slot].shard)
        return REPLAY_DONE

    cdef Replayed replay_segment(self, const frame_header *frame, uint64_t position) noexcept nogil:
        cdef const segment_body *body = <const segment_body *>frame_body(frame)
        cdef const segment_file *known = &self.core.regions.segment_files[self.last_file_number]
        cdef uint32_t slot = self._slot_of(frame.topic_id)
        if slot == NO_SLOT or self.last_file_number == 0 or frame.length < FRAME_HEADER_BYTES + sizeof(segment_body) or body.row.file == 0:
            return REPLAY_LEFT
        if memcmp(&body.file, &self.last_file, sizeof(segment_file)) != 0 or known.rows == 0:
            return REPLAY_LEFT
        if known.kind != body.file.kind or known.topic_id != body.file.topic_id or known.name != body.file.name or known.edition != body.file.edition:
            return REPLAY_LEFT
        # Admitted: it follows the rows that are there, so it replaces none.
        if sealed_admits(&self.core, slot, body) != PUBLISHED or sealed_publish(&self.core, slot, body, self.last_file_number) != PUBLISHED:
            return REPLAY_LEFT
        self.core.regions.table[slot].last_position = position
        return REPLAY_DONE
