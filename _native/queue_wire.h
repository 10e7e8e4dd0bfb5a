/* Bytes of queues: commands in the ring, answers to them, frames in the log. The rules are layout.h's. */
#ifndef TOPICSD_QUEUE_WIRE_H
#define TOPICSD_QUEUE_WIRE_H

#include <stddef.h>
#include <stdint.h>

/* ---- commands: a worker writes them into its ring, the writer answers each with at most COMPLETION_PAYLOAD_MAX bytes ---------- */
#define COMMAND_QUEUE_FIRST 16u
#define COMMAND_CLAIM 16u  /* struct claim_command, node, zeroes to 8, `held` x struct held_job */
#define COMMAND_SETTLE 17u /* struct settle_command, node, zeroes to 8, `count` seqs, and as many tokens if `fenced` */
#define COMMAND_LEAVE 18u  /* u64 token of a claim of the same ring that waits in a cohort; both are answered */
#define COMMAND_QUEUE_LAST 18u

#define CLAIM_JOBS_MAX 50000u /* TOPICS_MAX_CLAIM lies at or below: an answer has a bit for each seq */
#define QUEUE_NODE_BYTES_MAX 65535u

struct held_job {
    uint64_t seq, token;
};

struct claim_command {
    uint64_t topic_id;
    uint64_t lease_ms; /* 0: the topic's */
    uint32_t max;
    uint32_t held;     /* a work stream: jobs that it believes to hold. It gets at most max - (those it really does) */
    uint16_t node_bytes;
    uint8_t stream;    /* 1: what is granted goes back when this worker dies */
    uint8_t reserved0;
    uint32_t reserved1;
};
_Static_assert(sizeof(struct claim_command) == 32, "claim command");

enum lease_verb {
    LEASE_CLAIM = 1,
    LEASE_ACK = 2,
    LEASE_RELEASE = 3,
    LEASE_EXTEND = 4,
    LEASE_BURY = 5,   /* moved to the dead-letter topic: counted in dead_lettered */
    LEASE_REMOVE = 6, /* moved elsewhere: a redriven dead letter */
    LEASE_LOST = 7,   /* its bytes cannot be read: gone, and told as such (lost_jobs.pxd) */
};

struct settle_command {
    uint64_t topic_id;
    uint64_t ms;       /* release: delay; extend: lease */
    uint32_t count;
    uint16_t node_bytes;
    uint8_t verb;      /* LEASE_ACK, _RELEASE, _EXTEND */
    uint8_t fenced;    /* 1: tokens follow the seqs */
    uint64_t reserved;
};
_Static_assert(sizeof(struct settle_command) == 32, "settle command");

/* ---- answers: a completion with
 *   count       jobs granted or settled         first_seq   token of the first granted job; they count up in order of seq
 *   values[0]   ready   values[1] in flight     values[2]   deadline, wall clock (claim, extend)
 *   payload     claim: [one bit for each held job: still held], then for each granted job two LEB128 numbers: its seq less the one before, deliveries
 *               settle: one bit for each seq: settled
 */
#define OUTCOME_NOT_QUEUE 32u /* beside enum outcome of layout.h */

/* ---- FRAME_LEASE: struct lease_body, node, zeroes to 8, `count` seqs. docs/format/log.md ------------------------------------------ */
struct lease_body {
    uint8_t verb;
    uint8_t reserved0;
    uint16_t node_bytes;
    uint32_t count;
    uint64_t first_token; /* claim: of the first seq, the others count up */
    uint64_t ms;          /* claim, extend: lease; release: delay; counted from header.ts */
    uint64_t reserved2;
};
_Static_assert(sizeof(struct lease_body) == 32, "lease body");

/* A record moved from another topic: its append has this for an idempotency key. No client's key has a byte below 0x20. */
struct letter_key {
    uint64_t topic_id, seq; /* where it comes from */
    uint64_t verb;          /* LEASE_BURY or LEASE_REMOVE: what takes it away there */
};
_Static_assert(sizeof(struct letter_key) == 24, "letter key");

#endif
