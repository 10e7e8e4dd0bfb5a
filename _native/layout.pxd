# The structs and constants of layout.h, as Cython sees them. layout.h is the truth: offsets and sizes are asserted there.
# Kept in step by tests/unit/test_layout.py.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "layout.h" nogil:
    const uint32_t FRAME_MAGIC
    const uint32_t FRAME_ALIGN
    const uint32_t FRAME_HEADER_BYTES
    const uint32_t FRAME_FLAG_KEY
    const uint32_t FRAME_FLAG_EPHEMERAL
    const uint32_t LOG_FORMAT_VERSION
    const uint32_t ENTRY_LENGTH_MASK
    const uint32_t ENTRY_FLAG_EXT
    const uint32_t ENTRY_FLAG_EMPTY_TAG
    const uint32_t ENTRY_FLAG_EMPTY_NODE
    const uint32_t POSITION_BITS
    const uint64_t POSITION_MASK
    const uint32_t SOURCE_EPHEMERAL
    const uint32_t SHARDS_MAX
    const uint32_t CONTROL_MAGIC
    const uint32_t RING_SLOTS_MAX
    const uint32_t LOG_FILES_MAX
    const uint32_t LOG_DAMAGES_MAX
    const uint32_t FSYNC_BUCKETS
    const uint32_t NAME_BYTES_MAX
    const uint32_t NAME_INLINE_BYTES
    const uint32_t TOPICS_HARD_MAX
    const uint32_t NO_SLOT
    const uint32_t TOPIC_AUTO_PRIORITY
    const uint32_t TOPIC_AUTO_CREATE
    const uint32_t TOPIC_DEDUPE_NODE
    const uint32_t TOPIC_HAS_PRIORITY
    const uint32_t TOPIC_LEASES_DURABLE
    const uint32_t INDEX_DELETED
    const uint32_t INDEX_HOLE
    const uint32_t INDEX_TAGGED
    const uint32_t INDEX_COPY
    const uint32_t INDEX_DROP_NODE
    const uint32_t INDEX_DROP_TAG
    const uint32_t INDEX_ORIGIN
    const int INDEX_HOPS_SHIFT
    const uint32_t INDEX_HOPS_MAX
    const uint32_t INDEX_PAGE_ENTRIES
    const uint32_t INDEX_SMALL_MAX
    const uint32_t RING_DESCRIPTORS
    const uint32_t RING_DATA_BYTES
    const uint32_t COMPLETION_DATA_BYTES
    const uint32_t COMPLETION_PAYLOAD_MAX
    const uint32_t DESCRIPTOR_SPILLED
    const uint32_t COMPLETION_CREATED
    const uint32_t COMPLETION_DEDUPED
    const uint32_t COMPLETION_BODY_DIFFERS
    const uint32_t DIRTY_ENTRIES
    const int FRAME_START
    const int FRAME_APPEND
    const int FRAME_TOPIC_CREATE
    const int FRAME_TOPIC_CONFIG
    const int FRAME_TOPIC_DELETE
    const int FRAME_DELETE
    const int FRAME_FLOOR
    const int FRAME_CEILING
    const int FRAME_HOLE
    const int FRAME_ROUTER
    const int FRAME_ROUTER_CURSOR
    const int FRAME_LEASE
    const int FRAME_GROUP
    const int FRAME_CHECKPOINT
    const int FRAME_SEGMENT
    const int FRAME_MARK
    const int TOPIC_LOG
    const int TOPIC_QUEUE
    const int DISCARD_OLD
    const int DISCARD_REJECT
    const int CLASS_EPHEMERAL
    const int CLASS_MEMORY
    const int CLASS_DISK
    const int CLASS_FSYNC
    const int LOSS_CAP
    const int LOSS_TTL
    const int LOSS_MIXED
    const int LOSS_RECREATED
    const int LOSS_SOURCE_TRIM
    const int LOSS_CORRUPT
    const uint32_t UNREADABLE_BYTES_BITS
    const uint32_t ROW_ORIGINS
    const uint32_t ROW_HOLES
    const uint32_t ROW_TAGS
    const uint32_t ROW_COLD
    const uint32_t ROW_DAMAGED
    const uint32_t ROW_OWES
    const uint32_t ROW_MISSED
    const uint32_t ROW_STORED
    const int SEGMENT_KIND_OWN
    const int SEGMENT_KIND_PACK
    const int SEGMENT_FREE
    const int SEGMENT_HOT
    const int SEGMENT_RETIRED
    const int SUSPECT_NOT
    const int SUSPECT_MET
    const int SUSPECT_TRUE
    const uint32_t SEGMENT_FILES_MAX
    const int MATCH_NONE
    const int MATCH_EQ
    const int MATCH_PREFIX
    const int COMMAND_APPEND
    const int COMMAND_CALL
    const int COMMAND_FREE
    const int OUTCOME_OK
    const int OUTCOME_MOVED
    const int OUTCOME_FULL
    const int OUTCOME_TOO_LARGE
    const int OUTCOME_READ_ONLY
    const int OUTCOME_QUOTA
    const int OUTCOME_KEYS
    const int OUTCOME_EPHEMERAL
    const int OUTCOME_JSON
    const int OUTCOME_UNKNOWN
    const int OUTCOME_PRESSURE

    ctypedef struct frame_header "struct frame_header":
        uint32_t magic
        uint32_t length
        uint8_t type
        uint8_t flags
        uint16_t shard
        uint32_t count
        uint64_t topic_id
        uint64_t base_seq
        uint64_t ts
        uint64_t synced
        uint64_t position
        uint64_t xxh3

    ctypedef struct start_body "struct start_body":
        uint64_t previous_end
        uint64_t generation
        uint64_t file_bytes
        uint8_t boot_id[16]
        uint64_t format_version
        uint64_t reserved[2]

    ctypedef struct key_section "struct key_section":
        uint16_t key_bytes
        uint16_t reserved0
        uint32_t reserved1
        uint64_t records_xxh3

    ctypedef struct delete_body "struct delete_body":
        uint64_t before_seq
        uint16_t match_kind
        uint16_t match_bytes
        uint32_t deleted

    ctypedef struct floor_body "struct floor_body":
        uint64_t ttl_lost
        uint64_t cap_lost

    ctypedef struct hole_body "struct hole_body":
        uint64_t first_seq
        uint64_t last_seq
        uint32_t reason
        uint32_t reserved

    ctypedef struct record_entry "struct record_entry":
        uint32_t length_flags
        uint32_t data_bytes
        uint32_t meta_bytes
        uint16_t tag_bytes
        uint16_t node_bytes

    ctypedef struct entry_ext "struct entry_ext":
        uint64_t delay_ms
        int32_t priority
        uint32_t reserved

    ctypedef struct worker_line "struct worker_line":
        uint64_t pid
        uint64_t incarnation
        uint64_t requests
        uint64_t native_requests
        uint64_t bytes_in
        uint64_t bytes_out
        uint64_t records_in
        uint64_t records_out
        uint64_t inflight
        uint64_t connections
        uint64_t long_polls
        uint64_t throttled
        uint64_t errors_5xx
        uint64_t native_append
        uint64_t native_diff
        uint64_t native_state
        uint64_t maps_swept
        uint64_t native_claim
        uint64_t native_ack
        uint64_t native_nack
        uint64_t native_extend
        uint64_t reserved[11]

    ctypedef struct shard_line "struct shard_line":
        uint64_t written
        uint64_t synced
        uint64_t read_only
        uint64_t files
        uint64_t frames
        uint64_t batches
        uint64_t fsyncs
        uint64_t bytes_written
        uint64_t rotations
        uint64_t pending
        uint64_t pending_peak
        uint64_t submit_full
        uint64_t fsync_us_sum
        uint64_t fsync_us_count
        uint64_t fsync_bucket[FSYNC_BUCKETS]
        uint64_t quarantined
        uint64_t direct_bytes
        uint64_t reserved[24]

    ctypedef struct log_damage "struct log_damage":
        uint64_t first
        uint64_t end

    ctypedef struct control "struct control":
        uint32_t magic
        uint32_t version
        uint64_t generation
        uint64_t ready
        uint64_t draining
        uint64_t degraded
        uint64_t replay_permille
        uint64_t started_ms
        uint64_t topics_max
        uint64_t topics
        uint64_t records_live
        uint64_t bytes_live
        uint64_t topics_by_class[4]
        uint64_t queue_topics
        uint64_t routers
        uint64_t table_high
        uint64_t names_version
        uint64_t ephemeral_bytes
        uint64_t writer_pid
        uint64_t keeper_pid
        uint64_t arbiter_pid
        uint64_t pressure
        uint64_t sse_connections
        uint64_t watch_sessions
        uint32_t writer_bell
        uint32_t writer_armed
        uint64_t recovered_records
        uint64_t recovered_ms
        uint64_t forward_debt
        uint64_t files_retired
        uint64_t segments
        uint64_t segments_bytes
        uint64_t damage_met
        uint64_t log_damage_met
        uint64_t log_damages
        uint64_t records_unreadable
        uint64_t bytes_unreadable
        uint64_t reserved[26]
        shard_line shards[SHARDS_MAX]
        worker_line workers[RING_SLOTS_MAX]
        log_damage log_damage[2][LOG_DAMAGES_MAX]

    ctypedef struct log_file_row "struct log_file_row":
        uint64_t first_position
        uint64_t bytes
        uint64_t retired
        uint64_t reserved

    ctypedef struct topic_config "struct topic_config":
        uint64_t ttl_ms
        uint64_t cap_records
        uint64_t cap_bytes
        uint64_t idempotency_window_ms
        uint64_t max_deliveries
        uint32_t lease_ms
        uint32_t claim_jitter_ms
        int32_t priority
        uint8_t type
        uint8_t discard
        uint8_t durability
        uint8_t flags
        uint64_t dead_letter
        uint32_t dead_letter_bytes
        uint32_t reserved

    ctypedef struct topic_slot "struct topic_slot":
        uint64_t version
        uint64_t topic_id
        topic_config config
        uint64_t index_base
        uint64_t index_offset
        uint32_t index_capacity
        uint8_t index_paged
        uint8_t index_class
        uint16_t name_bytes
        uint64_t head
        uint64_t durable_head
        uint64_t earliest
        uint64_t cap_lost
        uint64_t ttl_lost
        uint64_t count
        uint64_t bytes
        uint64_t last_write_ms
        uint64_t last_read_ms
        uint64_t watchers
        uint64_t deleted_in_index
        uint64_t holes
        uint64_t next_seq
        uint64_t last_ts
        uint64_t ceiling_durable
        uint64_t ceiling_asked
        int64_t written_ms
        uint64_t pending_records
        uint64_t pending_bytes
        uint64_t pending_batches
        uint32_t shard
        uint32_t raised
        uint64_t queue_ready
        uint64_t queue_in_flight
        uint64_t queue_dead_lettered
        uint64_t last_position
        uint64_t hole_lost
        uint64_t hole_reason
        uint64_t derived
        uint64_t origins
        uint64_t segments_offset
        uint32_t segments_len
        uint32_t segments_class
        uint64_t sealed_through
        uint64_t sealed_holes
        uint64_t unreadable
        char name[NAME_INLINE_BYTES]

    ctypedef struct index_entry "struct index_entry":
        uint64_t position
        uint32_t bytes
        uint32_t flags
        uint64_t ts

    ctypedef struct segment_row "struct segment_row":
        uint64_t first_seq
        uint64_t last_seq
        uint64_t last_ts
        uint64_t live_bytes
        uint32_t live
        uint32_t deleted
        uint32_t file
        uint32_t flags
        uint32_t data_at
        uint32_t index_at
        uint32_t tags_at
        uint32_t marks_at

    ctypedef struct segment_file "struct segment_file":
        uint64_t serial
        uint64_t topic_id
        uint64_t name
        uint64_t edition
        uint64_t bytes
        uint32_t rows
        uint32_t state
        uint32_t kind
        uint32_t suspect
        uint64_t next

    ctypedef struct segment_body "struct segment_body":
        segment_row row
        segment_file file

    ctypedef struct submission "struct submission":
        uint64_t token
        uint64_t offset
        uint32_t bytes
        uint32_t slot
        uint16_t kind
        uint16_t flags
        uint32_t generation

    ctypedef struct completion "struct completion":
        uint64_t token
        uint32_t status
        uint32_t flags
        uint64_t first_seq
        uint64_t head
        uint32_t count
        uint32_t payload_bytes
        uint64_t payload_offset
        uint64_t values[4]
        uint32_t wal_us
        uint32_t fsync_us
        uint64_t reserved
