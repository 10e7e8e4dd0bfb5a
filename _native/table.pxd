# The topic table: from a name to a slot, and what a slot says.
#
#   names   [ fingerprint << 32 | slot + 1 | ... ]   open addressing, linear; at most half are in use; 0: free
#   table   [ slot | slot | ... ]                    layout.h: struct topic_slot; a slot never moves while its topic lives
#   a name of more than 64 bytes stands in a slab of the index region, whose offset is in the slot: it costs the many short ones nothing
#
# word                      written by  order                                    a stale read means
# names[n]                  writer      release, after the slot is complete      found: see below; not found: looked up again if names_version
# names_version             writer      odd while words move, as a seqlock         has moved (IndexHeader), else the topic was just made
# slot.version              writer      odd first (release fence after it),      nothing: a copy counts only between two equal even ones
#                                       even again with release
# topic_id config name      writer      inside the lock                          the copy is thrown away
# index_base .. index_class
# head                      writer      release, after the index entries         fewer records; an entry <= the head read is in the index read
# durable_head earliest     writer      release                                  older floors: state.pxd says what a reader makes of them
# cap_lost ttl_lost
# count bytes last_write_ms writer      relaxed                                  numbers of a moment ago
# holes
# last_read_ms watchers     any worker  relaxed; seq_cst                         see layout.h
#
# A name's word stands only while the slot holds that name: it is written after the slot is complete and taken out before the slot is let
# go; taking out moves the words behind it back, so searches never grow. A reader that finds a word, compares the name, and then finds
# word and version as they were has read this name's slot, even when a dead writer has left the version odd.
#
# A free slot keeps its last numbers (the head that a deleted topic had) and its watchers; its `next_seq` links the list of free slots.
# Owner: the writer. A new writer calls table_reset before anything else; versions only ever grow, so no old view survives it.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from topicsd._native.atomics cimport (
    fence_acquire, fence_release, load_acquire_64, load_relaxed_64, store_relaxed_64, store_release_64,
)
from topicsd._native.layout cimport NAME_BYTES_MAX, NAME_INLINE_BYTES, topic_config, topic_slot
from topicsd._native.regions cimport Regions

cdef enum:
    VIEW_OK = 0
    VIEW_GONE = 1     # the slot holds no topic
    VIEW_BUSY = 2     # the writer was in the way too often, or died there; or the view is older than the index: take it again

    TAKE_TRIES = 1000  # a lock is held for at most some microseconds, unless its holder was stopped or has died
    TAKE_SPINS = 64    # then let the holder run

cdef extern from "sched.h" nogil:
    int sched_yield()

cdef struct TopicView:      # one consistent copy of a slot
    uint64_t generation, version, topic_id
    topic_config config
    uint64_t head, durable_head, earliest, cap_lost, ttl_lost, count, bytes, last_write_ms, last_read_ms, holes
    uint64_t segments_offset, sealed_through    # sealed.pxd
    uint32_t segments_len, segments_class
    uint64_t index_base, index_offset
    uint32_t index_capacity
    uint8_t index_paged
    uint16_t name_bytes
    char name[256]

# ---- any process
cdef uint32_t table_find(const Regions *regions, const char *name, uint32_t name_bytes) noexcept nogil    # slot or NO_SLOT
# The name, not NUL-terminated, or NULL when there is none; what it points at counts only if view_still says so afterwards.
cdef const char *config_dead_letter(const Regions *regions, const topic_config *config, uint32_t *name_bytes) noexcept nogil

# ---- the writer
cdef void table_reset(Regions *regions) noexcept nogil
# Both take over the config's dead-letter slab, also when they fail. NO_SLOT: the table is full or the name is there already.
cdef uint32_t table_insert(Regions *regions, const char *name, uint32_t name_bytes, uint64_t topic_id, const topic_config *config) noexcept nogil
cdef void table_configure(Regions *regions, uint32_t slot, const topic_config *config) noexcept nogil
cdef void table_remove(Regions *regions, uint32_t slot) noexcept nogil
cdef int config_set_dead_letter(Regions *regions, topic_config *config, const char *name, uint32_t name_bytes) noexcept nogil   # 0, -ENOMEM


cdef inline void slot_lock(topic_slot *topic) noexcept nogil:
    store_relaxed_64(&topic.version, topic.version + 1)
    fence_release()    # nothing written inside is seen before the odd version


cdef inline void slot_unlock(topic_slot *topic) noexcept nogil:
    store_release_64(&topic.version, topic.version + 1)


cdef inline const char *slot_name(const Regions *regions, const topic_slot *topic, uint32_t name_bytes) noexcept nogil:
    # Where a name of so many bytes stands, not NUL-terminated. Outside of the writer it counts as the slot does; a torn read stays in the regions.
    cdef uint64_t offset
    if name_bytes <= NAME_INLINE_BYTES:
        return topic.name
    memcpy(&offset, topic.name, sizeof(offset))
    return <const char *>regions.index + (offset if offset <= regions.index_bytes - NAME_BYTES_MAX else 0)


cdef inline bint view_still(const Regions *regions, uint32_t slot, const TopicView *view) noexcept nogil:
    # Nothing under the lock has moved since the view was taken.
    fence_acquire()
    return load_relaxed_64(&regions.table[slot].version) == view.version and load_relaxed_64(&regions.control.generation) == view.generation


cdef inline int view_take(const Regions *regions, uint32_t slot, TopicView *out) noexcept nogil:
    cdef const topic_slot *topic
    cdef uint64_t version
    cdef int tries
    if slot >= regions.topics_max:
        return VIEW_GONE
    topic = &regions.table[slot]
    for tries in range(TAKE_TRIES):
        out.generation = load_acquire_64(&regions.control.generation)
        version = load_acquire_64(&topic.version)
        if version & 1:
            if tries >= TAKE_SPINS:
                sched_yield()
            continue
        out.version = version
        # Head first: what was appended before it, and the growth that made room for it, is in the fields read after it, or the version differs.
        out.head = load_acquire_64(&topic.head)
        out.topic_id = load_relaxed_64(&topic.topic_id)
        out.config = topic.config
        out.index_base = topic.index_base
        out.index_offset = topic.index_offset
        out.index_capacity = topic.index_capacity
        out.index_paged = topic.index_paged
        out.name_bytes = topic.name_bytes
        if out.name_bytes <= NAME_BYTES_MAX:
            memcpy(out.name, slot_name(regions, topic, out.name_bytes), out.name_bytes)
        out.durable_head = load_relaxed_64(&topic.durable_head)
        out.earliest = load_relaxed_64(&topic.earliest)
        out.cap_lost = load_relaxed_64(&topic.cap_lost)
        out.ttl_lost = load_relaxed_64(&topic.ttl_lost)
        out.count = load_relaxed_64(&topic.count)
        out.bytes = load_relaxed_64(&topic.bytes)
        out.last_write_ms = load_relaxed_64(&topic.last_write_ms)
        out.last_read_ms = load_relaxed_64(&topic.last_read_ms)
        out.segments_offset = topic.segments_offset
        out.segments_len = topic.segments_len
        out.segments_class = topic.segments_class
        out.sealed_through = topic.sealed_through
        out.holes = load_relaxed_64(&topic.holes) + topic.sealed_holes
        if not view_still(regions, slot, out):
            continue
        out.name[out.name_bytes] = 0
        return VIEW_OK if out.topic_id != 0 else VIEW_GONE
    return VIEW_BUSY
