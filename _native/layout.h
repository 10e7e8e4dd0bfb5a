/* The one place that knows offsets: every struct that crosses a process or a file, and every constant in them.
 *
 * Files are little-endian; so is every machine that topicsd runs on (asserted below). Reserved bytes are zero and are checked.
 * Shared words name their writer; memory orders stand in the .pxd of the module that owns the word.
 */
#ifndef TOPICSD_LAYOUT_H
#define TOPICSD_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "topicsd's files are little-endian");
_Static_assert(sizeof(void *) == 8, "topicsd maps large sparse regions: 64-bit only");

/* ---- frames: what stands in log files and in rings ------------------------------------------------------------------
 *
 *   0        4        8     9     10    12       16           24           32     40       48         56       64
 *   | magic  | length |type |flags|shard| count  | topic id   | base seq   | ts   | synced | position | xxh3   | body ...
 *
 * A batch is one frame with one checksum, so a write request is atomic by construction. Frames are 8-aligned and `length`
 * (header, body and padding) is a multiple of 8. Zeroes mean never written. `xxh3` is XXH3-64, seed 0, over bytes 0-55 and
 * the body (64..length). `position` is the frame's own place in its shard: a stale or misplaced frame never passes.
 * `synced` is the shard's synced position when the frame was stamped: below it everything was on the disk.
 */
#define FRAME_MAGIC 0x31465054u /* "TPF1" */
#define FRAME_ALIGN 8u
#define FRAME_HEADER_BYTES 64u

struct frame_header {
    uint32_t magic;
    uint32_t length;   /* bytes of header + body, a multiple of 8 */
    uint8_t type;      /* enum frame_type */
    uint8_t flags;     /* FRAME_FLAG_* */
    uint16_t shard;
    uint32_t count;    /* records in an append, else 0 or as the type says */
    uint64_t topic_id; /* 0 where the frame is about the shard */
    uint64_t base_seq; /* seq of the first record of an append */
    uint64_t ts;       /* ms since epoch, commit time */
    uint64_t synced;
    uint64_t position;
    uint64_t xxh3;
};
_Static_assert(sizeof(struct frame_header) == FRAME_HEADER_BYTES, "frame header");
_Static_assert(offsetof(struct frame_header, topic_id) == 16, "frame header");
_Static_assert(offsetof(struct frame_header, position) == 48, "frame header");
_Static_assert(offsetof(struct frame_header, xxh3) == 56, "frame header");

/* A reader stops at an unknown type, unless bit 7 is set: then it may skip the frame. */
enum frame_type {
    FRAME_START = 1,        /* first frame of every log file: struct start_body */
    FRAME_APPEND = 2,       /* [key section] then `count` record entries */
    FRAME_TOPIC_CREATE = 3, /* body: JSON {"name", "config", "ceiling"} */
    FRAME_TOPIC_CONFIG = 4, /* body: JSON {"config"} */
    FRAME_TOPIC_DELETE = 5, /* no body */
    FRAME_DELETE = 6,       /* struct delete_body + match bytes */
    FRAME_FLOOR = 7,        /* struct floor_body: involuntary floors that have moved by time */
    FRAME_CEILING = 8,      /* base_seq = the ceiling: no seq above it has been handed out */
    FRAME_HOLE = 9,         /* struct hole_body: a range of seqs that was lost, with its reason */
    FRAME_ROUTER = 10,
    FRAME_ROUTER_CURSOR = 11,
    FRAME_LEASE = 12,
    FRAME_GROUP = 13,
    FRAME_CHECKPOINT = 14,
    FRAME_SEGMENT = 15,     /* struct segment_body: records of a topic stand in a segment from here on */
    FRAME_MARK = 0x80 | 1,  /* no body: carries `synced` while the writer is idle */
};

#define FRAME_FLAG_KEY 0x01u       /* append: a key section stands before the records */
#define FRAME_FLAG_EPHEMERAL 0x02u /* never in a log file */

/* FRAME_START. `previous_end` is where the valid data of the shard's earlier files ends: frames of older files at or
 * above it were never published (aborted or torn) and are skipped for ever. */
struct start_body {
    uint64_t previous_end;
    uint64_t generation;
    uint64_t file_bytes;
    uint8_t boot_id[16];
    uint64_t format_version; /* 1 */
    uint64_t reserved[2];
};
_Static_assert(sizeof(struct start_body) == 64, "start body");
#define LOG_FORMAT_VERSION 1u

/* Key section of an append: idempotency key and the hash of the encoded records (to tell body_differs). */
struct key_section {
    uint16_t key_bytes; /* the key follows, then zeroes up to 8-alignment */
    uint16_t reserved0;
    uint32_t reserved1;
    uint64_t records_xxh3;
};
_Static_assert(sizeof(struct key_section) == 16, "key section");

struct delete_body {
    uint64_t before_seq;  /* exclusive; at most head at call time + 1 */
    uint16_t match_kind;  /* enum match_kind */
    uint16_t match_bytes; /* canonical JSON-escaped tag without quotes follows */
    uint32_t deleted;     /* how many records went, for checks */
};
_Static_assert(sizeof(struct delete_body) == 16, "delete body");

struct floor_body {
    uint64_t ttl_lost; /* highest seq lost to TTL */
    uint64_t cap_lost; /* highest seq lost to caps */
};
struct hole_body {
    uint64_t first_seq, last_seq;
    uint32_t reason; /* enum loss_reason */
    uint32_t reserved;
};

/* A record entry in an append's body. Everything is ready-to-send JSON text:
 * node and tag are canonical JSON strings WITHOUT their quotes (see scan.pxd), meta and data are the bytes as sent.
 *
 *   0        4        8        12   14   16
 *   | length | data   | meta   |tag |node| [ext 16 B] node tag meta data, zeroes up to 8-alignment
 *
 * `length` is a multiple of 8; its low 3 bits carry ENTRY_FLAG_*. A length of 0 in tag, node or meta means absent; the
 * empty string as tag or node is told apart from absence by ENTRY_FLAG_EMPTY_*.
 */
struct record_entry {
    uint32_t length_flags;
    uint32_t data_bytes;
    uint32_t meta_bytes;
    uint16_t tag_bytes;
    uint16_t node_bytes;
};
_Static_assert(sizeof(struct record_entry) == 16, "record entry");
#define ENTRY_LENGTH_MASK 0xFFFFFFF8u
#define ENTRY_FLAG_EXT 0x1u        /* struct entry_ext follows the header */
#define ENTRY_FLAG_EMPTY_TAG 0x2u  /* the tag is the empty string */
#define ENTRY_FLAG_EMPTY_NODE 0x4u /* the node is the empty string */

struct entry_ext { /* queue members of a produced record (CLARIFICATIONS queues) */
    uint64_t delay_ms;
    int32_t priority;
    uint32_t reserved;
};
_Static_assert(sizeof(struct entry_ext) == 16, "entry ext");

/* ---- positions ------------------------------------------------------------------------------------------------------
 * A record's place: source in the top 8 bits, byte position in the lower 56. */
#define POSITION_BITS 56
#define POSITION_MASK ((1ull << POSITION_BITS) - 1)
#define SOURCE_EPHEMERAL 255u
#define SHARDS_MAX 8u

/* ---- control region ---------------------------------------------------------------------------------------------- */
#define CONTROL_MAGIC 0x314C5443u
#define RING_SLOTS_MAX 64u
#define LOG_FILES_MAX 65536u

struct worker_line { /* one per ring slot; written by that worker only, unless said */
    uint64_t pid;               /* arbiter assigns and frees */
    uint64_t incarnation;       /* arbiter: +1 at each assignment */
    uint64_t requests, native_requests;
    uint64_t bytes_in, bytes_out;
    uint64_t records_in, records_out;
    uint64_t inflight;
    uint64_t connections;
    uint64_t long_polls;
    uint64_t throttled;
    uint64_t errors_5xx;
    uint64_t native_append, native_diff, native_state; /* of native_requests */
    uint64_t maps_swept; /* what files_retired was when this process last unmapped what is retired */
    uint64_t native_claim, native_ack, native_nack, native_extend; /* of native_requests */
    uint64_t reserved[11];
};
_Static_assert(sizeof(struct worker_line) == 256, "worker line");

#define FSYNC_BUCKETS 24 /* le 2^n us, n = 0..22, then +Inf */

struct shard_line { /* writer */
    uint64_t written;   /* position after the last frame written */
    uint64_t synced;
    uint64_t read_only; /* 0, or an errno */
    uint64_t files;     /* entries of the file table in use (release) */
    uint64_t frames, batches, fsyncs, bytes_written, rotations;
    uint64_t pending, pending_peak, submit_full;
    uint64_t fsync_us_sum, fsync_us_count;
    uint64_t fsync_bucket[FSYNC_BUCKETS];
    uint64_t quarantined; /* bytes in damaged ranges */
    uint64_t direct_bytes; /* of bytes_written: past the page cache */
    uint64_t reserved[24];
};
_Static_assert(sizeof(struct shard_line) == 512, "shard line");

#define LOG_DAMAGES_MAX 512u

struct log_damage { /* a range of the log that is not what was written: shard << 56 | position, from and before */
    uint64_t first, end;
};

struct control {
    uint32_t magic, version;
    uint64_t generation;      /* writer: +1 each time a writer takes over; readers check it before and after */
    uint64_t ready;           /* writer: 0 replaying, 1 ready; arbiter sets 0 when the writer dies */
    uint64_t draining;        /* arbiter */
    uint64_t degraded;        /* writer: 1 when damage was found */
    uint64_t replay_permille; /* writer */
    uint64_t started_ms;      /* arbiter: wall clock at start */
    uint64_t topics_max;      /* slots in the table */
    uint64_t topics;          /* writer: live topics */
    uint64_t records_live, bytes_live;
    uint64_t topics_by_class[4];
    uint64_t queue_topics;
    uint64_t routers;
    uint64_t table_high;      /* writer: slots ever used */
    uint64_t names_version;   /* writer: +1 when a topic is created or deleted (list caches) */
    uint64_t ephemeral_bytes;
    uint64_t writer_pid, keeper_pid, arbiter_pid;
    uint64_t pressure;        /* writer: 0..3 */
    uint64_t sse_connections, watch_sessions;
    uint32_t writer_bell;     /* futex word: +1 to wake the writer */
    uint32_t writer_armed;    /* writer: 1 while it sleeps */
    uint64_t recovered_records, recovered_ms;
    uint64_t forward_debt;    /* writer: 1 while a write is acked whose copies in first destinations are not all visible (routes.pxd) */
    uint64_t files_retired;   /* writer: +1 when files have been retired: unmap them and say so in maps_swept */
    uint64_t segments, segments_bytes; /* writer: sealed ranges and the bytes of their files */
    uint64_t damage_met;      /* any process, by adding: segment files that a read has found damaged (segment_file.suspect) */
    uint64_t log_damage_met;  /* any process, by adding: reads that met a record of the log which is not what was written */
    uint64_t log_damages;     /* keeper, release: changes << 16 | ranges; they stand in log_damage[changes % 2] (log_damage.pxd) */
    uint64_t records_unreadable, bytes_unreadable; /* writer: of records_live and bytes_live, the sums of topic_slot.unreadable */
    uint64_t reserved[26];
    struct shard_line shards[SHARDS_MAX];
    struct worker_line workers[RING_SLOTS_MAX];
    struct log_damage log_damage[2][LOG_DAMAGES_MAX]; /* keeper */
};
_Static_assert(offsetof(struct control, shards) == 512, "control");

struct log_file_row { /* the file table: per shard LOG_FILES_MAX rows, sorted by first position; writer */
    uint64_t first_position;
    uint64_t bytes;
    uint64_t retired;
    uint64_t reserved;
};
_Static_assert(sizeof(struct log_file_row) == 32, "log file row");

/* ---- topic table ----------------------------------------------------------------------------------------------------- */
#define NAME_BYTES_MAX 255u
#define NAME_INLINE_BYTES 64u /* a longer name stands in an index slab */
#define TOPICS_HARD_MAX (1u << 20)
#define NO_SLOT 0xFFFFFFFFu

enum topic_type { TOPIC_LOG = 0, TOPIC_QUEUE = 1 };
enum discard_policy { DISCARD_OLD = 0, DISCARD_REJECT = 1 };
enum durability_class { CLASS_EPHEMERAL = 0, CLASS_MEMORY = 1, CLASS_DISK = 2, CLASS_FSYNC = 3 };
enum loss_reason { LOSS_CAP = 1, LOSS_TTL = 2, LOSS_MIXED = 3, LOSS_RECREATED = 4, LOSS_SOURCE_TRIM = 5, LOSS_CORRUPT = 6 };
enum match_kind { MATCH_NONE = 0, MATCH_EQ = 1, MATCH_PREFIX = 2 };

#define TOPIC_AUTO_PRIORITY 0x1u
#define TOPIC_AUTO_CREATE 0x2u
#define TOPIC_DEDUPE_NODE 0x4u
#define TOPIC_HAS_PRIORITY 0x8u
#define TOPIC_LEASES_DURABLE 0x10u

struct topic_config {
    uint64_t ttl_ms, cap_records, cap_bytes, idempotency_window_ms;
    uint64_t max_deliveries;
    uint32_t lease_ms, claim_jitter_ms;
    int32_t priority;
    uint8_t type, discard, durability, flags;
    uint64_t dead_letter; /* index slab offset of the name, 0 = none */
    uint32_t dead_letter_bytes;
    uint32_t reserved;
};
_Static_assert(sizeof(struct topic_config) == 72, "topic config");

struct topic_slot {
    /* guarded by `version` (64-bit seqlock; odd while it changes): identity, config, index */
    uint64_t version;
    uint64_t topic_id; /* = the topic's epoch: a server-wide counter, never used twice. 0: free */
    struct topic_config config;
    /* tail index: entries for seqs index_base .. index_base + index_len - 1 */
    uint64_t index_base;    /* seq of entry 0 */
    uint64_t index_offset;  /* small: slab of entries; paged: slab of u32 page numbers */
    uint32_t index_capacity;/* entries (small) or pages (paged) */
    uint8_t index_paged;
    uint8_t index_class;    /* slab size class */
    uint16_t name_bytes;
    /* atomics of their own; written by the writer unless said */
    uint64_t head;          /* release: the entry stands before it */
    uint64_t durable_head;
    uint64_t earliest;      /* first live seq; head + 1 when empty */
    uint64_t cap_lost;      /* highest seq lost to caps (or to both, see ttl_lost) */
    uint64_t ttl_lost;      /* evict_floor = max(cap_lost, ttl_lost, hole_lost) + 1 */
    uint64_t count, bytes;  /* live records */
    uint64_t last_write_ms; /* 0: never */
    uint64_t last_read_ms;  /* any worker, relaxed */
    uint64_t watchers;      /* bit n: worker n waits; workers set their own, the writer clears what it has rung */
    uint64_t deleted_in_index; /* entries flagged deleted at or above earliest */
    uint64_t holes;         /* number of hole ranges at or above index_base */
    /* writer's own, never read by workers */
    uint64_t next_seq, last_ts, ceiling_durable, ceiling_asked;
    int64_t written_ms;     /* monotonic: last write, for lowering an idle ceiling */
    uint64_t pending_records, pending_bytes, pending_batches;
    uint32_t shard;
    uint32_t raised;        /* stands in the list of topics whose ceiling is above their head */
    uint64_t queue_ready, queue_in_flight, queue_dead_lettered;
    uint64_t last_position; /* replay: of the last frame that names it */
    uint64_t hole_lost;     /* highest seq of a hole that `earliest` has passed; a part of evict_floor like cap_lost */
    uint64_t hole_reason;   /* its loss_reason */
    uint64_t derived;       /* writer, relaxed: number of the router that feeds this topic, 0 none */
    uint64_t origins;       /* under `version`: index slab of where exactly-once copies come from (routes.pxd), 0 none */
    /* sealed ranges, all of it under `version` (sealed.pxd) */
    uint64_t segments_offset; /* index slab of struct segment_row, 0 none */
    uint32_t segments_len;
    uint32_t segments_class;  /* slab size class */
    uint64_t sealed_through;  /* seqs up to here stand in segments, not in the tail index; 0 none */
    uint64_t sealed_holes;    /* rows that have a hole */
    uint64_t unreadable;      /* live records and bytes that the disk has damaged, UNREADABLE_*: still in count and bytes, not in what is shown */
    char name[NAME_INLINE_BYTES]; /* the name, or, of a longer one, the u64 offset of its index slab: table.pxd slot_name */
};
_Static_assert(sizeof(struct topic_slot) == 448, "topic slot");

#define UNREADABLE_BYTES_BITS 36u /* of topic_slot.unreadable: the lower bits are bytes, the upper ones records; each stops at its largest value */

/* ---- tail index -------------------------------------------------------------------------------------------------------- */
struct index_entry {
    uint64_t position; /* source << 56 | byte position of the record entry */
    uint32_t bytes;    /* data + meta + tag + node as stored: what `bytes` counts */
    uint32_t flags;    /* INDEX_*, 0x80 is fleeting.pxd's; bits 8-15: loss reason of a hole; bits 16-19 of a copy: its hops */
    uint64_t ts;
};
_Static_assert(sizeof(struct index_entry) == 24, "index entry");
#define INDEX_DELETED 0x1u
#define INDEX_HOLE 0x2u
#define INDEX_TAGGED 0x4u
#define INDEX_COPY 0x8u       /* made by a router: the bytes are those of another topic's record, read with the marks below */
#define INDEX_DROP_NODE 0x10u /* of a copy: it has no node, whatever the bytes say */
#define INDEX_DROP_TAG 0x20u
#define INDEX_ORIGIN 0x40u    /* of a copy: `meta._topics_router` says where it comes from (slot.origins) */
#define INDEX_HOPS_SHIFT 16
#define INDEX_HOPS_MAX 15u
#define INDEX_PAGE_ENTRIES 1024u
#define INDEX_SMALL_MAX 128u /* above this many entries a topic's index is paged */

/* ---- segments ----------------------------------------------------------------------------------------------------------
 * A topic's sealed ranges stand in rows, ascending and without a seq missing between them; a row leads into one or three files of the
 * segment-file table (sealed.pxd). Nothing of a sealed record is in memory. */
struct segment_row {
    uint64_t first_seq, last_seq;
    uint64_t last_ts;    /* of its last entry; never below that of an earlier row */
    uint64_t live_bytes; /* writer: of the records that are not deleted, whatever the floors say */
    uint32_t live;       /* writer: how many they are */
    uint32_t deleted;    /* flag bytes that have been set since it was built; 0: nobody needs to look at them */
    uint32_t file;       /* number in the segment-file table; 0: no record is left in this range */
    uint32_t flags;      /* ROW_*; bits 8-15 without a file: loss_reason of the hole, 0: deleted records */
    uint32_t data_at, index_at, tags_at; /* where the parts stand in a pack, in units of 8 bytes */
    uint32_t marks_at;   /* index slab of a bit for each seq that was deleted and whose flag byte is not set yet, in units of 64 bytes; 0 none */
};
_Static_assert(sizeof(struct segment_row) == 64, "segment row");
#define ROW_HOLES 0x1u   /* it has a hole */
#define ROW_TAGS 0x2u    /* it has tagged records */
#define ROW_COLD 0x4u    /* its data part stands in the cold tier */
#define ROW_DAMAGED 0x8u /* its file is not there or not readable: all of it is told as `corrupt` */

/* 0x10: ROW_LOST of sealed.pxd */
#define ROW_ORIGINS 0x20u /* it has exactly-once copies, whose meta was made longer when they were sealed: its bytes are what its index says */
/* In memory alone: a delete by tag could not open it, and comes before any read of it; until then all of it is told as `corrupt`. */
#define ROW_OWES 0x40u
#define ROW_MISSED 0x80u /* beside ROW_OWES: it could not be opened when that was tried the last time */
#define ROW_STORED (~(ROW_OWES | ROW_MISSED))

enum segment_kind { SEGMENT_KIND_OWN = 1, SEGMENT_KIND_PACK = 2 };
enum segment_state { SEGMENT_FREE = 0, SEGMENT_HOT = 1, SEGMENT_RETIRED = 2 };

enum suspicion {
    SUSPECT_NOT = 0,
    SUSPECT_MET = 1,  /* a read has found something; the keeper has not looked yet */
    SUSPECT_TRUE = 2, /* the keeper has read the file: it is damaged */
};

struct segment_file { /* the segment-file table; writer. Row 0 is never used */
    uint64_t serial;   /* never used twice: what a map of the file is known by */
    uint64_t topic_id; /* of a file that holds one topic */
    uint64_t name;     /* its first seq, or the number of the pack */
    uint64_t edition;  /* of a rewritten segment, else 0 */
    uint64_t bytes;
    uint32_t rows;     /* that lead into it: at 0 it is retired */
    uint32_t state;    /* release; enum segment_state */
    uint32_t kind;     /* enum segment_kind */
    uint32_t suspect;  /* any process, relaxed: enum suspicion */
    uint64_t next;     /* the writer's list of free or of retired rows */
};
_Static_assert(sizeof(struct segment_file) == 64, "segment file");
#define SEGMENT_FILES_MAX (1u << 22)

/* FRAME_SEGMENT: base_seq is the row's first seq. A row for a file that stood in an older one's place (a rewrite, a relocation) says so. */
struct segment_body {
    struct segment_row row;   /* `file` is 0 for a row without a file, else 1 */
    struct segment_file file; /* serial, rows, state and next are 0 */
};
_Static_assert(sizeof(struct segment_body) == 128, "segment body");

/* ---- rings ---------------------------------------------------------------------------------------------------------------- */
#define RING_DESCRIPTORS 4096u
#define RING_DATA_BYTES (8u << 20)
#define COMPLETION_DATA_BYTES (4u << 20)
#define COMPLETION_PAYLOAD_MAX 8192u

enum command_kind {
    COMMAND_APPEND = 1, /* payload: one append frame; header.topic_id and `slot` name the topic */
    COMMAND_CALL = 2,   /* payload: u32 json_bytes, u32 frame_bytes, JSON padded to 8, [append frame] : the engine's Python door */
    COMMAND_FREE = 3,   /* nothing; used by tests and to wake */
};
#define DESCRIPTOR_SPILLED 0x1u /* payload stands in the spill slot whose number is in `offset` */

struct submission { /* 32 B */
    uint64_t token;      /* the worker's own; comes back in the completion */
    uint64_t offset;     /* cursor into the data ring, or spill slot */
    uint32_t bytes;
    uint32_t slot;       /* topic slot, NO_SLOT when unknown */
    uint16_t kind, flags;
    uint32_t generation; /* low 32 bits; older ones are dropped */
};
_Static_assert(sizeof(struct submission) == 32, "submission");

enum outcome { /* `status` of a completion */
    OUTCOME_OK = 0,
    OUTCOME_MOVED = 1,      /* the slot no longer holds that topic: look it up again */
    OUTCOME_FULL = 2,       /* discard reject: values = cap_records, cap_bytes, head, earliest */
    OUTCOME_TOO_LARGE = 3,  /* a single write above the whole cap */
    OUTCOME_READ_ONLY = 4,  /* the shard takes no writes */
    OUTCOME_QUOTA = 5,      /* max_total_bytes */
    OUTCOME_KEYS = 6,       /* too many idempotency keys */
    OUTCOME_EPHEMERAL = 7,  /* ephemeral memory is full */
    OUTCOME_JSON = 8,       /* payload: JSON {"status", "body"} of the engine's Python door */
    OUTCOME_UNKNOWN = 9,    /* the writer died before it answered */
    OUTCOME_PRESSURE = 10,
};
#define COMPLETION_CREATED 0x1u
#define COMPLETION_DEDUPED 0x2u
#define COMPLETION_BODY_DIFFERS 0x4u

struct completion { /* 96 B */
    uint64_t token;
    uint32_t status, flags;
    uint64_t first_seq;
    uint64_t head;
    uint32_t count;
    uint32_t payload_bytes;
    uint64_t payload_offset;
    uint64_t values[4];
    uint32_t wal_us, fsync_us;
    uint64_t reserved;
};
_Static_assert(sizeof(struct completion) == 96, "completion");

#define DIRTY_ENTRIES 8192u /* a worker's list of topics that moved; when it overflows the worker looks at all its topics */

#endif
