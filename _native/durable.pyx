"""Keep the durable head of each topic (see durable.pxd)."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from topicsd._native.atomics cimport load_acquire_64, load_relaxed_64, store_release_64
from topicsd._native.layout cimport shard_line, topic_slot
from topicsd._native.regions cimport Regions


cdef int durable_open(DurableHeads *heads, uint64_t topics_max) noexcept nogil:
    memset(heads, 0, sizeof(DurableHeads))
    heads.rows = <DurableRow *>calloc(topics_max, sizeof(DurableRow))
    return 0 if heads.rows != NULL else -1


cdef void durable_close(DurableHeads *heads) noexcept nogil:
    free(heads.rows)
    heads.rows = NULL


cdef inline void _raise(topic_slot *topic, uint64_t head) noexcept nogil:
    if head > topic.durable_head:
        store_release_64(&topic.durable_head, head)


cdef void durable_moved(DurableHeads *heads, Regions *regions, uint32_t slot) noexcept nogil:
    """Remember that a topic's head has moved; it is durable once the shard is synced up to what is written now."""
    cdef topic_slot *topic = &regions.table[slot]
    cdef uint32_t shard = <uint32_t>topic.shard
    cdef shard_line *line = &regions.control.shards[shard]
    cdef uint64_t end = load_relaxed_64(&line.written)
    cdef DurableRow *row = &heads.rows[slot]
    if load_acquire_64(&line.synced) >= end:
        _raise(topic, topic.head)
        return
    if row.topic_id != topic.topic_id:      # the slot has another topic now
        row.topic_id = topic.topic_id
        row.pending_head = topic.head
        row.pending_end = end
        if row.listed and row.shard != shard:
            heads.seen[row.shard] = <uint64_t>-1    # that list is looked through, and the row comes into the right one
    elif not row.listed:
        row.pending_head = topic.head
        row.pending_end = end
    row.last_head = topic.head
    row.last_end = end
    if not row.listed:
        _list(heads, slot, shard)


cdef inline void _list(DurableHeads *heads, uint32_t slot, uint32_t shard) noexcept nogil:
    heads.rows[slot].listed = 1
    heads.rows[slot].shard = shard
    heads.rows[slot].next = heads.first[shard]
    heads.first[shard] = slot + 1


cdef void durable_look(DurableHeads *heads, Regions *regions, uint32_t shard) noexcept nogil:
    """Give each topic of a shard the head that its sync has made durable."""
    cdef uint64_t synced = load_acquire_64(&regions.control.shards[shard].synced)
    cdef uint32_t slot, at
    cdef DurableRow *row
    cdef topic_slot *topic
    if synced == heads.seen[shard]:
        return
    heads.seen[shard] = synced
    at = heads.first[shard]
    heads.first[shard] = 0
    while at:
        slot = at - 1
        row = &heads.rows[slot]
        at = row.next
        row.listed = 0
        topic = &regions.table[slot]
        if row.topic_id != topic.topic_id:      # deleted
            continue
        if topic.shard != shard:
            _list(heads, slot, <uint32_t>topic.shard)
            heads.seen[topic.shard] = <uint64_t>-1
        elif row.last_end <= synced:
            _raise(topic, row.last_head)
        else:
            if row.pending_end <= synced:
                _raise(topic, row.pending_head)
                row.pending_head = row.last_head
                row.pending_end = row.last_end
            _list(heads, slot, shard)


cdef void durable_settle(Regions *regions) noexcept nogil:
    cdef uint64_t slot
    for slot in range(regions.control.table_high):
        if regions.table[slot].topic_id:
            _raise(&regions.table[slot], regions.table[slot].head)
