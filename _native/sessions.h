/* Watch sessions as they lie in shared memory (page of truth: sessions.pxd). Words of different writers stand on different cache lines. */
#ifndef TOPICSD_SESSIONS_H
#define TOPICSD_SESSIONS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#define SESSIONS_HARD_MAX 65536u
#define SESSION_BYTES (4u << 20)      /* of address space; memory follows what is touched */
#define SESSION_OPTIONS_MAX 32768u
#define SESSION_HISTORY_AT (2u << 20) /* rows before, history behind */
#define SESSION_HISTORY 65536u        /* moves that can be taken back */
#define SESSION_ROWS_MAX 4352u        /* 256 named topics and 4096 that patterns match */
#define SESSION_KEYS_MAX 1024u
#define WID_BYTES 16u

enum session_state { SESSION_FREE = 0, SESSION_MAKING = 1, SESSION_LIVE = 2, SESSION_GOING = 3 };

struct session_place { /* the part that sweeps look at: all sessions' in one array */
    uint64_t state;      /* enum session_state | (ring slot + 1) << 8 of the maker while MAKING */
    uint64_t lease;      /* number of the stream << 16 | ring slot + 1 of its worker; 0 in the low bits: no stream */
    uint64_t touched_ms; /* last time a stream began or ended, or a message went out */
    uint64_t reserved;
};
_Static_assert(sizeof(struct session_place) == 32, "session place");

struct session_header {
    uint64_t busy; /* ring slot + 1 of who moves cursors and writes to the socket, 0: nobody */
    uint64_t reserved0[7];
    uint8_t wid[WID_BYTES];
    uint8_t key_digest[32];
    int64_t key; /* index of the key that made it, -1: made without keys */
    uint64_t created_ms;
    uint32_t options_bytes;
    uint32_t rows;
    uint32_t rows_at, rows_end; /* rows stand from .. to, in bytes from the header */
    uint64_t large;             /* ids are tokens; moves are kept */
    uint64_t moves;             /* so many moves so far: the number in a token */
    uint64_t asked; /* another stream wants the session: its owner is to end by itself */
    uint64_t reserved1[7];
};
_Static_assert(sizeof(struct session_header) == 224, "session header");

#define ROW_PATTERN 0x1u /* the name is a prefix; seq counts only as the start of its members */
#define ROW_TAIL 0x2u    /* of a pattern: members that were there at first begin at their head */
#define ROW_MEMBER 0x4u  /* a topic that a pattern matched */
#define ROW_GONE 0x8u    /* its deletion was told */

struct watch_row { /* the cursor of one topic */
    uint64_t epoch, seq;
    uint64_t first_epoch, first_seq; /* where the session began */
    uint64_t safe_epoch, safe_seq; /* a client that shows no id begins here: see sessions.pxd */
    uint32_t flags;
    uint16_t name_bytes, bytes; /* bytes: of this row, a multiple of 8 */
    uint32_t number;
    uint32_t reserved;
    char name[];
};
_Static_assert(offsetof(struct watch_row, name) == 64, "watch row");

struct session_move { /* what a row was before move `number` */
    uint64_t number, epoch, seq;
    uint32_t row, reserved;
};
_Static_assert(sizeof(struct session_move) == 32, "session move");

struct delivery_line { /* one a ring slot; that worker only; never reset */
    uint64_t frames, records, bytes, tombstones, heartbeats, slow_closed, taken_over, advisories, streams;
    uint64_t poke; /* other workers: a session of this one was taken over */
    uint64_t ws_frames, ws_records, ws_bytes, ws_streams; /* of frames, records, bytes, streams: those of WebSockets */
    uint64_t reserved[2];
};
_Static_assert(sizeof(struct delivery_line) == 128, "delivery line");

static inline void give_pages_back(void *at, size_t bytes) { madvise(at, bytes, MADV_REMOVE); }

#endif
