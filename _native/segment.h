/* Segment files: what a sealed range of a topic looks like on the disk (docs/format/segment.md, docs/format/pack.md have every byte).
 *
 * A segment is three parts. Each begins with the same 128-byte header at an 8-aligned offset of a file:
 *
 *   data   | header | frame | frame | gap | frame ...                       the truth: the other two are made from it alone
 *   index  | header | entry of first_seq | ... | entry of last_seq | block checksums |
 *   tags   | header | tag row | ... | postings | tag bytes |
 *
 * They stand in three files (<first seq>.data, .idx, .tag, each at offset 0), or all in one pack file beside those of other segments.
 * A part never says where it stands, so parts can be copied from one file into another.
 */
#ifndef TOPICSD_SEGMENT_H
#define TOPICSD_SEGMENT_H

#include "layout.h"

#define SEGMENT_FORMAT_VERSION 1u
#define SEGMENT_HEADER_BYTES 128u
#define SEGMENT_MAGIC_DATA 0x3154414447535054ull  /* "TPSGDAT1" */
#define SEGMENT_MAGIC_INDEX 0x3158444947535054ull /* "TPSGIDX1" */
#define SEGMENT_MAGIC_TAGS 0x3147415447535054ull  /* "TPSGTAG1" */
#define SEGMENT_MAGIC_FLAGS 0x314C454447535054ull /* "TPSGDEL1" */
#define SOURCE_SEGMENT 254u     /* an index entry's source: its position counts from the start of the data part */
#define SEGMENT_BLOCK_ENTRIES 64u /* index entries under one checksum: what a reader verifies at once */
#define SEGMENT_DELETED 0xD5u   /* the only flag byte that means deleted */
#define SEGMENT_SPAN_MAX 0x7FFFFFFFu /* seqs in one segment */

/* The header of each part. Reserved bytes are zero and are checked. */
struct segment_header {
    uint64_t magic;
    uint32_t format_version; /* 1; a reader refuses a greater one */
    uint32_t reserved0;
    uint64_t topic_id;
    uint64_t first_seq, last_seq; /* every seq between them has an index entry */
    uint64_t part_bytes;     /* the whole part, this header included; a multiple of 8 */
    uint64_t records;        /* record frames in the data part */
    uint64_t payload_bytes;  /* of those records: what a topic's `bytes` counts */
    uint64_t first_ts, last_ts; /* of the index entries of first_seq and last_seq */
    uint64_t holes;          /* seqs that were lost */
    uint64_t tags;           /* different tags */
    uint64_t postings;       /* records that have a tag */
    uint64_t data_xxh3;      /* of the data part, flag bytes left out: parts of one segment agree on it */
    uint64_t content_xxh3;   /* of this part behind its header; in the data part the same as data_xxh3 */
    uint64_t header_xxh3;    /* XXH3-64 over the 120 bytes before it */
};
_Static_assert(sizeof(struct segment_header) == SEGMENT_HEADER_BYTES, "segment header");
_Static_assert(offsetof(struct segment_header, header_xxh3) == 120, "segment header");

/* One frame of the data part. A record's entry is the log's `struct record_entry`, byte for byte; it is 8-aligned.
 *
 *   0             4      8     16    24             n - 16  n - 8      n
 *   | frame_bytes | kind | seq | ts  | body ...     | xxh3  | flag 0000000 |
 *
 * xxh3 = XXH3-64 over bytes 0 .. n - 16 with the topic id as its seed: a frame of another topic never passes. */
struct segment_frame {
    uint32_t frame_bytes; /* the whole frame, a multiple of 8 */
    uint32_t kind;        /* enum segment_frame_kind */
    uint64_t seq;
    uint64_t ts;
};
_Static_assert(sizeof(struct segment_frame) == 24, "segment frame");
#define SEGMENT_FRAME_TAIL_BYTES 16u /* checksum and flag byte, padded */
#define SEGMENT_FLAG_FROM_END 8u     /* the flag byte stands so many bytes before the frame's end */

enum segment_frame_kind {
    SEGMENT_FRAME_RECORD = 1, /* body: struct record_entry and what follows it */
    SEGMENT_FRAME_GAP = 2,    /* body: struct segment_gap; seqs that have no record */
};

struct segment_gap {
    uint64_t last_seq; /* the gap is the frame's seq .. last_seq */
    uint32_t reason;   /* enum loss_reason of a hole, or 0: records that were deleted before they were sealed */
    uint32_t reserved;
    /* reason 0: u64 ts of each seq follows; else every seq has the frame's ts */
};
_Static_assert(sizeof(struct segment_gap) == 16, "segment gap");
#define SEGMENT_GAP_DELETED_MAX 4096u /* deleted seqs in one gap frame */

/* The index part: `struct index_entry` (layout.h) for each seq, then one XXH3-64 for each SEGMENT_BLOCK_ENTRIES entries.
 * content_xxh3 of its header is the XXH3-64 of those checksums. */

/* The tags part: `tags` rows in byte order of their tags, then the postings (u32 each: seq - first_seq, ascending for each tag), then
 * the bytes of all tags in the same order. content_xxh3 of its header is the XXH3-64 of everything behind the header. */
struct segment_tag {
    uint32_t bytes_offset; /* into the bytes of all tags */
    uint32_t tag_bytes;
    uint32_t first_posting; /* number of the first posting */
    uint32_t postings;
};
_Static_assert(sizeof(struct segment_tag) == 16, "segment tag");

/* The flags part (.del) of a segment whose data part is in the cold tier: the header, then one flag byte for each seq, zeroes to 8-alignment.
 * It stands for the flag bytes of the data part, which is never written to again. content_xxh3 of its header is 0. */

/* A pack: | header | parts, 8-aligned ... | directory: an entry a segment, sorted by (topic id, first seq) | footer | */
#define PACK_FORMAT_VERSION 1u
#define PACK_MAGIC 0x314B434150505054ull        /* "TPPPACK1" */
#define PACK_FOOTER_MAGIC 0x31444E4550505054ull /* "TPPPEND1" */

struct pack_header {
    uint64_t magic;
    uint32_t format_version, reserved0;
    uint64_t number; /* of the pack */
    uint64_t reserved[4];
    uint64_t header_xxh3;
};
_Static_assert(sizeof(struct pack_header) == 64, "pack header");

struct pack_entry {
    uint64_t topic_id, first_seq, last_seq;
    uint64_t data_offset, index_offset, tags_offset; /* from the start of the file */
    uint64_t records, data_xxh3;
};
_Static_assert(sizeof(struct pack_entry) == 64, "pack entry");

struct pack_footer {
    uint64_t magic;
    uint32_t format_version, reserved0;
    uint64_t number;
    uint64_t segments;
    uint64_t directory_offset;
    uint64_t directory_xxh3;
    uint64_t file_bytes;
    uint64_t footer_xxh3; /* over the 56 bytes before it */
};
_Static_assert(sizeof(struct pack_footer) == 64, "pack footer");

/* What a look at a part finds; negative values are -errno. */
enum segment_status {
    SEGMENT_OK = 0,
    SEGMENT_SHORT = 1,      /* the file ends before the part does */
    SEGMENT_NOT_ONE = 2,    /* no such magic */
    SEGMENT_BAD_HEADER = 3, /* its checksum differs, or it contradicts itself */
    SEGMENT_NEWER = 4,      /* a format version that this program does not know */
    SEGMENT_MISMATCH = 5,   /* parts of different segments */
    SEGMENT_BAD_INDEX = 6,  /* an index block's checksum differs, or the index contradicts the data */
    SEGMENT_BAD_FRAME = 7,  /* a frame's checksum differs, or it is not where the index says */
    SEGMENT_BAD_TAGS = 8,
    SEGMENT_ORDER = 9,      /* builder: seqs or times that do not ascend, too many of them, or an impossible record */
};

#endif
