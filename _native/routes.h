/* What routers write: rows of a cursor frame in the log, runs of origins in shared memory. See routes.pxd and copies.pxd. */
#ifndef TOPICSD_ROUTES_H
#define TOPICSD_ROUTES_H

#include <stdint.h>

/* FRAME_ROUTER_CURSOR: header.topic_id = the source, base_seq = the source's seq that all rows have reached, ts = when they did, count = rows;
 * then a cursor_head and the rows. */
struct cursor_head {
    uint64_t before; /* the source's seq that all rows had reached before: a row stands for what lies between */
    uint64_t reserved;
};
_Static_assert(sizeof(struct cursor_head) == 16, "cursor head");
struct cursor_row {
    uint64_t dest_base; /* seq of the first copy in the destination; where the next one will stand when there is none */
    uint32_t route;     /* number of the router */
    uint32_t count;     /* copies; with CURSOR_HOLE: seqs of the destination that stand for records which were lost in the source */
};
_Static_assert(sizeof(struct cursor_row) == 16, "cursor row");
#define CURSOR_HOLE 0x80000000u
#define CURSOR_COUNT_MAX 0x7FFFFFFFu

/* A copy that had to be written out is an ordinary append whose key section says which router made it: it is no idempotency key. */
#define FRAME_FLAG_ROUTED 0x04u
struct routed_key {
    uint32_t mark; /* ROUTED_MARK: begins with a zero, so no key of a client is ever one */
    uint32_t route;
    uint64_t before; /* the router's cursor before and after */
    uint64_t after;
};
_Static_assert(sizeof(struct routed_key) == 24, "routed key");
#define ROUTED_MARK 0x01747200u

/* slot.origins: which source record an exactly-once copy was made from. Sorted by `seq`; a run reaches to the next one. */
struct origin_run {
    uint64_t seq;    /* first seq of the run in this topic */
    uint64_t source; /* seq of its source record; those behind it follow one by one */
    uint64_t text;   /* slab offset << 16 | bytes: `router:<router>:<source id>:<epoch>:` */
};
_Static_assert(sizeof(struct origin_run) == 24, "origin run");

struct origins { /* at the head of the slab; `runs` follow */
    uint32_t count;    /* release, before the head of the topic */
    uint32_t capacity;
    uint32_t slab_class;
    uint32_t reserved;
};
_Static_assert(sizeof(struct origins) == 16, "origins");

#endif
