"""Lay shared memory as the writer would, one word at a time: for tests and benches of what reads it. Nothing that serves imports this."""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from topicsd._native.atomics cimport store_release_64
from topicsd._native.index cimport index_append, index_at, index_hole, index_trim
from topicsd._native.layout cimport (
    INDEX_DELETED, LOG_FILES_MAX, NO_SLOT, SHARDS_MAX, TOPIC_HAS_PRIORITY, index_entry, log_file_row, topic_config, topic_slot,
)
from topicsd._native.regions cimport Shared
from topicsd._native.table cimport config_set_dead_letter, table_insert, table_remove


cdef topic_slot *_slot(Shared shared, uint32_t slot) except NULL:
    if slot >= shared.r.topics_max:
        raise IndexError(slot)
    return &shared.r.table[slot]


def lay_files(Shared shared not None, uint32_t shard, rows):
    """Fill a shard's file table: rows are (first_position, bytes, retired), sorted."""
    cdef log_file_row *out
    cdef uint64_t count = 0
    if shard >= SHARDS_MAX or len(rows) > LOG_FILES_MAX:
        raise ValueError("no such shard, or too many files")
    for first_position, size, retired in rows:
        out = shared.r.files + <uint64_t>shard * LOG_FILES_MAX + count
        out.first_position = first_position
        out.bytes = size
        store_release_64(&out.retired, retired)
        count += 1
    store_release_64(&shared.r.control.shards[shard].files, count)


def lay_topic(
    Shared shared not None, bytes name not None, uint64_t topic_id, *, uint64_t ttl_ms=0, uint64_t cap_records=0, uint64_t cap_bytes=0,
    uint64_t idempotency_window_ms=120000, uint64_t max_deliveries=0, uint32_t lease_ms=30000, uint32_t claim_jitter_ms=0,
    priority=None, int type=0, int discard=0, int durability=2, int flags=7, bytes dead_letter=b"",
):
    """Insert a topic and return its slot; flags are TOPIC_* of layout.h."""
    cdef topic_config config
    cdef uint32_t slot
    memset(&config, 0, sizeof(config))
    config.ttl_ms, config.cap_records, config.cap_bytes = ttl_ms, cap_records, cap_bytes
    config.idempotency_window_ms, config.max_deliveries = idempotency_window_ms, max_deliveries
    config.lease_ms, config.claim_jitter_ms = lease_ms, claim_jitter_ms
    config.type, config.discard, config.durability, config.flags = type, discard, durability, flags
    if priority is not None:
        config.priority = priority
        config.flags |= TOPIC_HAS_PRIORITY
    if dead_letter:
        config_set_dead_letter(&shared.r, &config, dead_letter, <uint32_t>len(dead_letter))
    slot = table_insert(&shared.r, name, <uint32_t>len(name), topic_id, &config)
    if slot == NO_SLOT:
        raise MemoryError("the topic table is full")
    return slot


def lay_removal(Shared shared not None, uint32_t slot):
    """Remove a topic."""
    _slot(shared, slot)
    table_remove(&shared.r, slot)


def lay_entries(Shared shared not None, uint32_t slot, uint64_t first_seq, entries):
    """Append records to a topic's index and move its head: (position, bytes, flags, ts) each."""
    cdef topic_slot *topic = _slot(shared, slot)
    cdef index_entry entry
    for entry.position, entry.bytes, entry.flags, entry.ts in entries:
        if index_append(&shared.r, topic, first_seq, &entry, 1) != 0:
            raise MemoryError
        store_release_64(&topic.head, first_seq)
        first_seq += 1


def lay_hole(Shared shared not None, uint32_t slot, uint64_t first, uint64_t last, uint32_t reason):
    """Append a hole to a topic's index and move its head."""
    cdef topic_slot *topic = _slot(shared, slot)
    if index_hole(&shared.r, topic, first, last, reason) != 0:
        raise MemoryError
    store_release_64(&topic.head, last)


def lay_trim(Shared shared not None, uint32_t slot, uint64_t below_seq):
    """Free what the index holds below a seq."""
    index_trim(&shared.r, _slot(shared, slot), below_seq)


def lay_deletion(Shared shared not None, uint32_t slot, uint64_t seq):
    """Flag a record deleted. Count and floors stay."""
    cdef index_entry *entry = index_at(&shared.r, _slot(shared, slot), seq)
    if entry == NULL:
        raise IndexError(seq)
    entry.flags |= INDEX_DELETED


def lay_ephemeral(Shared shared not None, uint64_t offset, const unsigned char[::1] content not None):
    """Put bytes into the memory of ephemeral frames."""
    cdef uint64_t number
    if offset + content.shape[0] > shared.r.ephemeral_bytes:
        raise IndexError(offset)
    for number in range(<uint64_t>content.shape[0]):
        shared.r.ephemeral[offset + number] = content[number]


def lay_words(
    Shared shared not None, uint32_t slot, *, head=None, earliest=None, cap_lost=None, ttl_lost=None, hole_lost=None, hole_reason=None,
    count=None, bytes=None, last_write_ms=None, last_read_ms=None, queue_ready=None, queue_in_flight=None, queue_dead_lettered=None,
    deleted_in_index=None,
):
    """Store words of a topic's slot, head last."""
    cdef topic_slot *topic = _slot(shared, slot)
    if cap_lost is not None: topic.cap_lost = cap_lost
    if ttl_lost is not None: topic.ttl_lost = ttl_lost
    if hole_reason is not None: topic.hole_reason = hole_reason
    if hole_lost is not None: topic.hole_lost = hole_lost
    if earliest is not None: store_release_64(&topic.earliest, earliest)
    if count is not None: topic.count = count
    if bytes is not None: topic.bytes = bytes
    if last_write_ms is not None: topic.last_write_ms = last_write_ms
    if last_read_ms is not None: topic.last_read_ms = last_read_ms
    if queue_ready is not None: topic.queue_ready = queue_ready
    if queue_in_flight is not None: topic.queue_in_flight = queue_in_flight
    if queue_dead_lettered is not None: topic.queue_dead_lettered = queue_dead_lettered
    if deleted_in_index is not None: topic.deleted_in_index = deleted_in_index
    if head is not None: store_release_64(&topic.head, head)
