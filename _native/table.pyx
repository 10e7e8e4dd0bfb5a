"""The topic table (see table.pxd)."""

from libc.errno cimport ENOMEM
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from topicsd._native.atomics cimport fence_acquire, fence_release, load_acquire_64, load_relaxed_64, store_relaxed_64, store_release_64
from topicsd._native.hash cimport xxh3_64
from topicsd._native.index cimport index_drop
from topicsd._native.layout cimport NAME_BYTES_MAX, NAME_INLINE_BYTES, NO_SLOT, topic_config, topic_slot
from topicsd._native.regions cimport Regions, Shared
from topicsd._native.slabs cimport IndexHeader, index_header, slab_class_for, slab_give, slab_take

cdef extern from "sys/mman.h" nogil:
    int MADV_REMOVE
    int madvise(void *at, size_t length, int advice)

cdef enum:
    MATCH_TRIES = 64


# ---- names ------------------------------------------------------------------------------------------------------------------


cdef inline uint32_t _slot_after(uint64_t word) noexcept nogil:
    """Slot + 1."""
    return <uint32_t>word


cdef inline uint64_t _name_word(uint64_t hashed, uint32_t slot) noexcept nogil:
    return (hashed & ~<uint64_t>NO_SLOT) | (slot + 1)


cdef inline bint _slot_is_named(const Regions *regions, const topic_slot *topic, const char *name, uint32_t name_bytes) noexcept nogil:
    return topic.name_bytes == name_bytes and memcmp(slot_name(regions, topic, name_bytes), name, name_bytes) == 0


cdef inline uint64_t _hash_of(const Regions *regions, const topic_slot *topic) noexcept nogil:
    return xxh3_64(slot_name(regions, topic, topic.name_bytes), topic.name_bytes)


cdef bint _matches(const Regions *regions, const uint64_t *place, uint64_t word, const char *name, uint32_t name_bytes) noexcept nogil:
    """Compare the name of the slot that `word` points at. True only if the word still stood there when the name had been read."""
    cdef const topic_slot *topic = &regions.table[_slot_after(word) - 1]
    cdef uint64_t version
    cdef int _
    cdef bint same = False
    for _ in range(MATCH_TRIES):
        version = load_acquire_64(&topic.version)
        same = _slot_is_named(regions, topic, name, name_bytes)
        fence_acquire()
        # An odd version will do when it is the same one: inside one lock a name changes only while no word points at it.
        if load_relaxed_64(&topic.version) == version:
            break
    return same and load_acquire_64(place) == word


cdef uint32_t _look_up(const Regions *regions, const char *name, uint32_t name_bytes, uint64_t hashed) noexcept nogil:
    cdef uint64_t at = hashed & regions.names_mask, word, _
    cdef const uint64_t *place
    for _ in range(regions.names_mask + 1):
        place = &regions.names[at]
        word = load_acquire_64(place)
        if word == 0:
            return NO_SLOT
        if word >> 32 == hashed >> 32 and 0 < _slot_after(word) <= regions.topics_max:
            if _matches(regions, place, word, name, name_bytes):
                return _slot_after(word) - 1
        at = (at + 1) & regions.names_mask
    return NO_SLOT


cdef uint32_t table_find(const Regions *regions, const char *name, uint32_t name_bytes) noexcept nogil:
    cdef const uint64_t *moves = &index_header(regions).names_version
    cdef uint64_t hashed, before
    cdef uint32_t slot = NO_SLOT
    cdef int tries
    if name_bytes == 0 or name_bytes > NAME_BYTES_MAX:
        return NO_SLOT
    hashed = xxh3_64(name, name_bytes)
    for tries in range(TAKE_TRIES):
        before = load_acquire_64(moves)
        slot = _look_up(regions, name, name_bytes, hashed)
        if slot != NO_SLOT:
            return slot
        fence_acquire()
        if before & 1 == 0 and load_relaxed_64(moves) == before:
            return NO_SLOT    # only a miss can be wrong: words were moving
        if tries >= TAKE_SPINS:
            sched_yield()
    return slot


cdef uint64_t *_name_place(Regions *regions, const char *name, uint32_t name_bytes, uint64_t hashed) noexcept nogil:
    """Where to write a new name; NULL when it is there already. There is room: half of the words are never used."""
    cdef uint64_t at = hashed & regions.names_mask, word, _
    while regions.names[at] != 0:
        word = regions.names[at]
        if word >> 32 == hashed >> 32 and _slot_is_named(regions, &regions.table[_slot_after(word) - 1], name, name_bytes):
            return NULL
        at = (at + 1) & regions.names_mask
    return &regions.names[at]


cdef inline uint64_t _home(const Regions *regions, uint64_t word) noexcept nogil:
    return _hash_of(regions, &regions.table[_slot_after(word) - 1]) & regions.names_mask


cdef void _forget_name(Regions *regions, uint32_t slot) noexcept nogil:
    """Take the slot's word out and close the gap, so that no tombstone ever lengthens a search."""
    cdef uint64_t *moves = &index_header(regions).names_version
    cdef uint64_t mask = regions.names_mask, hashed = _hash_of(regions, &regions.table[slot])
    cdef uint64_t gap = hashed & mask, at, wanted = _name_word(hashed, slot)
    while regions.names[gap] != wanted:
        if regions.names[gap] == 0:
            return
        gap = (gap + 1) & mask
    store_relaxed_64(moves, moves[0] + 1)
    fence_release()
    at = gap
    while True:
        at = (at + 1) & mask
        if regions.names[at] == 0:
            break
        # A word may fill the gap unless its home lies behind it, in (gap, at].
        if ((at - _home(regions, regions.names[at])) & mask) >= ((at - gap) & mask):
            store_release_64(&regions.names[gap], regions.names[at])
            gap = at
    store_release_64(&regions.names[gap], 0)
    store_release_64(moves, moves[0] + 1)


# ---- config -----------------------------------------------------------------------------------------------------------------


cdef const char *config_dead_letter(const Regions *regions, const topic_config *config, uint32_t *name_bytes) noexcept nogil:
    cdef uint64_t offset = config.dead_letter
    cdef uint32_t length = config.dead_letter_bytes
    name_bytes[0] = 0
    if offset == 0 or length == 0 or length > NAME_BYTES_MAX or offset > regions.index_bytes - NAME_BYTES_MAX:
        return NULL
    name_bytes[0] = length
    return <const char *>regions.index + offset


# ---- the writer -------------------------------------------------------------------------------------------------------------


cdef int config_set_dead_letter(Regions *regions, topic_config *config, const char *name, uint32_t name_bytes) noexcept nogil:
    config.dead_letter = 0
    config.dead_letter_bytes = 0
    if name_bytes == 0 or name_bytes > NAME_BYTES_MAX:
        return 0
    config.dead_letter = slab_take(regions, slab_class_for(name_bytes))
    if config.dead_letter == 0:
        return -ENOMEM
    memcpy(regions.index + config.dead_letter, name, name_bytes)
    config.dead_letter_bytes = name_bytes
    return 0


cdef inline void _free_dead_letter(Regions *regions, uint64_t offset, uint32_t name_bytes) noexcept nogil:
    if offset != 0:
        slab_give(regions, offset, slab_class_for(name_bytes))


cdef void _empty_slot(topic_slot *topic) noexcept nogil:
    """Zero all that stands between version and name, but for the watchers: a waiter's bit outlives its topic."""
    cdef char *begin = <char *>&topic.topic_id
    cdef char *watchers = <char *>&topic.watchers
    cdef char *after = watchers + sizeof(uint64_t)
    memset(begin, 0, watchers - begin)
    memset(after, 0, <char *>(topic + 1) - after)
    topic.index_base = 1
    topic.next_seq = 1
    topic.earliest = 1


cdef void table_reset(Regions *regions) noexcept nogil:
    cdef uint64_t slot, high = min(regions.control.table_high, regions.topics_max)
    cdef uint64_t *moves = &index_header(regions).names_version
    cdef topic_slot *topic
    # Names first: nobody finds what is about to go. Views taken before end with the versions.
    moves[0] |= 1      # a dead writer may have left it odd
    fence_release()
    if madvise(regions.names, (regions.names_mask + 1) * sizeof(uint64_t), MADV_REMOVE) != 0:
        memset(regions.names, 0, (regions.names_mask + 1) * sizeof(uint64_t))
    store_release_64(moves, moves[0] + 1)
    for slot in range(high):
        topic = &regions.table[slot]
        if topic.version & 1 == 0:      # a dead writer may have left it odd
            slot_lock(topic)
        _empty_slot(topic)
        slot_unlock(topic)
    # A slot above the mark can be half made: the mark moves after its first insert.
    if high < regions.topics_max and regions.table[high].version & 1:
        _empty_slot(&regions.table[high])
        slot_unlock(&regions.table[high])
    index_header(regions).free_slot = 0
    store_release_64(&regions.control.table_high, 0)


cdef uint32_t _take_slot(Regions *regions) noexcept nogil:
    cdef IndexHeader *header = index_header(regions)
    cdef uint64_t slot = header.free_slot
    if slot != 0:
        header.free_slot = regions.table[slot - 1].next_seq
        return <uint32_t>(slot - 1)
    slot = regions.control.table_high
    return <uint32_t>slot if slot < regions.topics_max else NO_SLOT


cdef uint32_t table_insert(Regions *regions, const char *name, uint32_t name_bytes, uint64_t topic_id, const topic_config *config) noexcept nogil:
    cdef uint64_t hashed = xxh3_64(name, name_bytes)
    cdef uint64_t *place = NULL
    cdef uint64_t apart = 0
    cdef topic_slot *topic
    cdef uint32_t slot = NO_SLOT
    if 0 < name_bytes <= NAME_BYTES_MAX and topic_id != 0:
        place = _name_place(regions, name, name_bytes, hashed)
    if place != NULL and name_bytes > NAME_INLINE_BYTES:
        apart = slab_take(regions, slab_class_for(name_bytes))
        place = place if apart else NULL
    if place != NULL:
        slot = _take_slot(regions)
    if slot == NO_SLOT:
        if apart:
            slab_give(regions, apart, slab_class_for(name_bytes))
        _free_dead_letter(regions, config.dead_letter, config.dead_letter_bytes)
        return NO_SLOT
    topic = &regions.table[slot]
    slot_lock(topic)
    _empty_slot(topic)
    topic.topic_id = topic_id
    topic.config = config[0]
    topic.name_bytes = <uint16_t>name_bytes
    if apart:
        memcpy(topic.name, &apart, sizeof(apart))
        memcpy(regions.index + apart, name, name_bytes)
    else:
        memcpy(topic.name, name, name_bytes)
    slot_unlock(topic)
    if slot == regions.control.table_high:
        store_release_64(&regions.control.table_high, <uint64_t>slot + 1)
    store_release_64(place, _name_word(hashed, slot))
    return slot


cdef void table_configure(Regions *regions, uint32_t slot, const topic_config *config) noexcept nogil:
    cdef topic_slot *topic = &regions.table[slot]
    cdef uint64_t old = topic.config.dead_letter
    cdef uint32_t old_bytes = topic.config.dead_letter_bytes
    slot_lock(topic)
    topic.config = config[0]
    slot_unlock(topic)
    if old != config.dead_letter:
        _free_dead_letter(regions, old, old_bytes)


cdef void table_remove(Regions *regions, uint32_t slot) noexcept nogil:
    cdef topic_slot *topic = &regions.table[slot]
    cdef uint64_t dead_letter = topic.config.dead_letter
    cdef uint32_t dead_letter_bytes = topic.config.dead_letter_bytes, name_bytes = topic.name_bytes
    cdef uint64_t apart = 0
    if topic.topic_id == 0:
        return
    _forget_name(regions, slot)
    if name_bytes > NAME_INLINE_BYTES:
        memcpy(&apart, topic.name, sizeof(apart))
    slot_lock(topic)
    topic.topic_id = 0
    topic.name_bytes = 0
    topic.config.dead_letter = 0
    topic.config.dead_letter_bytes = 0
    slot_unlock(topic)
    index_drop(regions, topic)
    if apart:
        slab_give(regions, apart, slab_class_for(name_bytes))
    _free_dead_letter(regions, dead_letter, dead_letter_bytes)
    topic.next_seq = index_header(regions).free_slot
    index_header(regions).free_slot = <uint64_t>slot + 1


# ---- the Python face --------------------------------------------------------------------------------------------------------


cdef class Table:
    """The topic table. Its readers may be anywhere; `insert`, `configure`, `remove` and `reset` are the writer's alone."""

    cdef readonly Shared shared

    def __init__(self, Shared shared not None):
        self.shared = shared

    cdef topic_slot *slot(self, uint32_t slot) except NULL:
        if slot >= self.shared.r.topics_max:
            raise IndexError(f"slot {slot}, at most {self.shared.r.topics_max - 1}")
        return &self.shared.r.table[slot]

    cdef int pack(self, topic_config *config, bytes dead_letter, uint64_t ttl_ms, uint64_t cap_records) except -1:
        memset(config, 0, sizeof(topic_config))
        config.ttl_ms = ttl_ms
        config.cap_records = cap_records
        if dead_letter is not None and config_set_dead_letter(&self.shared.r, config, dead_letter, <uint32_t>len(dead_letter)) != 0:
            raise MemoryError("the index region is full")
        return 0

    def find(self, bytes name not None):
        cdef uint32_t slot = table_find(&self.shared.r, name, <uint32_t>min(len(name), NAME_BYTES_MAX + 1))
        return None if slot == NO_SLOT else slot

    def insert(self, bytes name not None, uint64_t topic_id, *, bytes dead_letter=None, uint64_t ttl_ms=0, uint64_t cap_records=0):
        cdef topic_config config
        cdef uint32_t slot
        if not 0 < len(name) <= NAME_BYTES_MAX or topic_id == 0:
            raise ValueError("a name has 1 to 255 bytes, a topic id is not 0")
        self.pack(&config, dead_letter, ttl_ms, cap_records)
        slot = table_insert(&self.shared.r, name, <uint32_t>len(name), topic_id, &config)
        return None if slot == NO_SLOT else slot

    def configure(self, uint32_t slot, *, bytes dead_letter=None, uint64_t ttl_ms=0, uint64_t cap_records=0):
        cdef topic_config config
        self.slot(slot)
        self.pack(&config, dead_letter, ttl_ms, cap_records)
        table_configure(&self.shared.r, slot, &config)

    def remove(self, uint32_t slot):
        self.slot(slot)
        table_remove(&self.shared.r, slot)

    def reset(self):
        table_reset(&self.shared.r)

    def set(self, uint32_t slot, **words):
        cdef topic_slot *topic = self.slot(slot)
        for name, value in words.items():
            if name == "head":
                store_release_64(&topic.head, value)
            elif name == "earliest":
                store_release_64(&topic.earliest, value)
            elif name == "watchers":
                store_release_64(&topic.watchers, value)
            else:
                raise KeyError(name)

    def view(self, uint32_t slot):
        cdef TopicView view
        cdef const char *name
        cdef uint32_t name_bytes = 0
        cdef int status = view_take(&self.shared.r, slot, &view)
        if status == VIEW_BUSY:
            raise RuntimeError("the slot is locked")
        if status == VIEW_GONE:
            return None
        name = config_dead_letter(&self.shared.r, &view.config, &name_bytes)
        return {
            "topic_id": view.topic_id, "version": view.version, "name": view.name[:view.name_bytes], "head": view.head,
            "earliest": view.earliest, "count": view.count, "bytes": view.bytes, "holes": view.holes, "index_base": view.index_base,
            "index_capacity": view.index_capacity, "index_paged": bool(view.index_paged), "ttl_ms": view.config.ttl_ms,
            "cap_records": view.config.cap_records, "dead_letter": name[:name_bytes] if name != NULL else None,
            "next_seq": self.shared.r.table[slot].next_seq, "watchers": load_relaxed_64(&self.shared.r.table[slot].watchers),
        }

    def lock(self, uint32_t slot):
        slot_lock(self.slot(slot))

    def unlock(self, uint32_t slot):
        slot_unlock(self.slot(slot))

    def longest_search(self):
        """Count the words that the longest search for a missing name looks at."""
        cdef uint64_t at, run = 0, longest = 0
        for at in range(2 * (self.shared.r.names_mask + 1)):
            run = run + 1 if self.shared.r.names[at & self.shared.r.names_mask] != 0 else 0
            longest = max(longest, run)
        return longest + 1
