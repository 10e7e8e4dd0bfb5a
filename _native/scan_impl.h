/* What a body said: spans into it, numbers, and the first thing that was wrong with it.
 *
 * Plain C structs, so that one may live on a stack or inside a Python object; `_free` gives back what they own. A span is
 * an offset and a length in the body, which must outlive the request that points into it.
 */
#ifndef TOPICSD_SCAN_IMPL_H
#define TOPICSD_SCAN_IMPL_H

#include <stddef.h>
#include <stdint.h>

#define SCAN_BODY_BYTES_MAX (1u << 30)     /* spans are 32-bit and a frame is below 4 GiB */
#define SCAN_KEY_CHARACTERS_MAX 256u       /* A section 2 */
#define SCAN_KEY_BYTES_MAX (6u * SCAN_KEY_CHARACTERS_MAX) /* the longest canonical character is \u001f */
#define SCAN_NODES_MAX 1024u               /* nodes of one diff: each is compared with each record */
#define SCAN_MATCH_BYTES_MAX 8192u         /* delete_body.match_bytes is 16-bit, 6 canonical bytes a byte */
#define SCAN_TEXT_BYTES_MAX 10922u         /* tag and node: their canonical lengths are 16-bit, 6 bytes a byte */
#define SCAN_NAMES_MAX 65536u              /* members of one envelope object that we do not know but compare for duplicates */

enum scan_kind {
    SCAN_OK = 0,
    SCAN_JSON = 1,             /* `why` and `offset` say more; wins over every other kind, wherever it stands */
    SCAN_TYPE = 2,             /* must be `wanted` */
    SCAN_MISSING = 3,          /* a required member */
    SCAN_DUPLICATE = 4,
    SCAN_LIMIT = 5,            /* `actual` `wanted`s (bytes, keys ...), at most `limit` */
    SCAN_RECORD_TOO_LARGE = 6,
    SCAN_BATCH_TOO_LARGE = 7,
    SCAN_MEMORY = 8,           /* ours, not the caller's */
};

struct scan_error { /* field: records[record].member.name, as far as they are set */
    int kind;
    int why;            /* enum json_why */
    int64_t record;     /* -1: not in a record */
    const char *member; /* static, or NULL */
    const char *wanted; /* static, or NULL */
    uint32_t name_at, name_bytes; /* raw text of a member's name in the body */
    int named;
    uint64_t offset;
    uint64_t limit, actual;
};

struct write_limits { /* every text limit counts the bytes of the decoded string in UTF-8 */
    uint32_t max_records;
    uint32_t max_record_bytes; /* data + meta, as sent */
    uint32_t max_meta_bytes;
    uint32_t max_meta_keys;
    uint32_t max_tag_bytes;
    uint32_t max_node_bytes;
    uint32_t max_key_chars;
    uint32_t max_depth;
};

#define RECORD_TAG 0x01u         /* has a tag */
#define RECORD_TAG_ESCAPED 0x02u /* its raw text differs from its canonical form, or may */
#define RECORD_NODE 0x04u
#define RECORD_NODE_ESCAPED 0x08u
#define RECORD_META 0x10u
#define RECORD_EXT 0x20u         /* delay_ms or priority is not 0 */

struct record_span {
    uint32_t data_at, data_bytes;
    uint32_t meta_at, meta_bytes;
    uint32_t tag_at, tag_raw_bytes;
    uint32_t node_at, node_raw_bytes;
    uint64_t delay_ms;
    int32_t priority;
    uint32_t flags;               /* RECORD_* */
    uint16_t tag_bytes, node_bytes; /* canonical */
    uint32_t reserved;
};
_Static_assert(sizeof(struct record_span) == 56, "record span");

struct write_request {
    const uint8_t *body;
    uint64_t body_bytes;
    struct record_span *records; /* owned; kept between requests */
    uint32_t count, room;
    struct record_span batch;    /* only its node members: the node of records that have none */
    uint64_t payload_bytes;      /* data + meta + tag + node of all records, as stored */
    uint64_t records_bytes;      /* the encoded entries, padding included */
    int8_t create;               /* -1 absent, 0, 1 */
    uint8_t disable_backpressure;
    uint8_t has_config;
    uint32_t config_at, config_bytes;
    uint32_t key_bytes;          /* 0: none */
    uint8_t key[SCAN_KEY_BYTES_MAX];
    struct scan_error error;
};

struct text_span { /* canonical text in `arena` */
    uint32_t at, bytes;
};

struct diff_request {
    uint64_t from_seq, from_ts, epoch, max_batch_bytes;
    uint64_t upto_seq;           /* not of a body: a page goes no further; 0: up to the head */
    uint32_t limit, wait_ms;     /* 0: absent or 0; larger numbers are clamped to 2^32 - 1 */
    uint8_t include_tags, include_meta, include_data;
    uint8_t has_from_ts, has_epoch;
    uint16_t match_kind;         /* enum match_kind */
    struct text_span match;
    uint32_t node_count, node_room;
    struct text_span *nodes;     /* owned */
    uint8_t *arena;              /* owned */
    uint32_t arena_bytes;
    struct scan_error error;
};

struct delete_request {
    uint64_t before_seq;
    uint8_t has_before_seq;
    uint16_t match_kind;
    struct text_span match;
    uint8_t *arena;              /* owned */
    uint32_t arena_bytes;
    struct scan_error error;
};

/* A request must be zeroed before its first use. Each function forgets what the request held, keeps its memory and returns
 * enum scan_kind, which also stands in `error.kind`. */
int topicsd_scan_write(const uint8_t *body, size_t length, const struct write_limits *limits, struct write_request *out);
int topicsd_scan_diff(const uint8_t *body, size_t length, uint32_t max_depth, struct diff_request *out);
int topicsd_scan_delete(const uint8_t *body, size_t length, uint32_t max_depth, struct delete_request *out);
void topicsd_write_free(struct write_request *request);
void topicsd_diff_free(struct diff_request *request);
void topicsd_delete_free(struct delete_request *request);

/* Syntax alone; with `object` the root must be an object without duplicate members. */
int topicsd_scan_check(const uint8_t *body, size_t length, uint32_t max_depth, int object, struct scan_error *error);

/* The body of an append frame. `header_key` is canonical; the body's own key wins. */
uint64_t topicsd_encoded_bytes(const struct write_request *request, uint32_t header_key_bytes);
/* *hash: xxh3_64 of what it wrote, taken while that was being written. */
uint64_t topicsd_encode(
    const struct write_request *request, const uint8_t *header_key, uint32_t header_key_bytes, uint8_t *destination, uint64_t *hash);

/* Tests: take another path (enum json_path). Returns the one before. */
int topicsd_scan_path(int path);

#endif
