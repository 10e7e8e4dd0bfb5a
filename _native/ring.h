/* One worker's ring slot as it lies in shared memory (page of truth: ring.pxd), fault points for the stress tests, and maps.
 *
 * Every process has the shared regions at the same address (they are made before any fork), so the pointers in here are plain.
 * Words of different writers stand on different cache lines.
 */
#ifndef TOPICSD_RING_H
#define TOPICSD_RING_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "atomics.h"
#include "layout.h"

#define CACHE_LINE __attribute__((aligned(64)))

enum ring_state { RING_FREE = 0, RING_LIVE = 1, RING_DEAD = 2 };

#define RING_MASK (RING_DESCRIPTORS - 1u)
#define RING_DATA_MASK ((uint64_t)RING_DATA_BYTES - 1u)
#define RING_SPILL_ABOVE (RING_DATA_BYTES / 4u)                /* a larger payload travels in a spill slot */
#define COMPLETION_SLOTS (2u * RING_DESCRIPTORS)               /* the second half is for answers given by a new writer */
#define COMPLETION_MASK (COMPLETION_SLOTS - 1u)
#define COMPLETION_DATA_MASK ((uint64_t)COMPLETION_DATA_BYTES - 1u)
#define OUTSTANDING_MAX (RING_DESCRIPTORS - 1u)
#define OUTSTANDING_CALLS_MAX (COMPLETION_DATA_BYTES / COMPLETION_PAYLOAD_MAX)
#define DIRTY_MASK (DIRTY_ENTRIES - 1u)
#define SPILL_SLOTS 128u
#define SPILL_NONE 0xFFFFFFFFu
#define INFLIGHT_KEYS_MAX 1024u

/* token = sequence << 13 | is a call << 12 | index into `pending` */
#define TOKEN_INDEX_BITS 12
#define TOKEN_CALL (1ull << TOKEN_INDEX_BITS)
#define TOKEN_SEQUENCE_BITS (TOKEN_INDEX_BITS + 1)
_Static_assert(RING_DESCRIPTORS == 1u << TOKEN_INDEX_BITS, "a token's index names one of `pending`");
_Static_assert((RING_DATA_BYTES & (RING_DATA_BYTES - 1)) == 0 && (COMPLETION_DATA_BYTES & (COMPLETION_DATA_BYTES - 1)) == 0,
               "cursors are masked");
_Static_assert((DIRTY_ENTRIES & DIRTY_MASK) == 0 && RING_SLOTS_MAX <= 64, "cursors are masked; a watcher mask has 64 bits");

struct ring_memory {
    /* set before any fork, never changed but for `state` */
    uint64_t state; /* enum ring_state: the arbiter FREE -> LIVE -> DEAD, the writer DEAD -> FREE */
    uint32_t number;
    int32_t bell_fd; /* the worker's eventfd */
    struct control *control;
    uint8_t *data, *completion_data; /* each mapped twice in a row */
    uint8_t *spill;
    uint64_t spill_slot_bytes;
    uint64_t *spill_owner;
    uint32_t spill_slots, reserved;

    uint64_t tail CACHE_LINE; /* worker: descriptors committed */

    /* worker's own */
    uint64_t data_tail CACHE_LINE; /* bytes committed */
    uint64_t head_seen;            /* last value read of `head` */
    uint64_t sequence;             /* of the next token; goes on when the slot is used again */
    uint64_t claimed_token;        /* 0: nothing is claimed */
    uint32_t claimed_bytes, claimed_kind, claimed_spill;
    uint32_t calls;                /* COMMAND_CALLs claimed or committed, and not yet done */
    uint32_t rang_for;             /* the `writer_armed` for which this worker has rung the writer */
    uint32_t free_count;           /* of `free_indices` */

    uint64_t head CACHE_LINE; /* writer: descriptors released */
    uint64_t seen;            /* writer's own: descriptors looked at */
    uint64_t answered;        /* writer's own: entries answered */

    uint64_t completion_tail CACHE_LINE; /* writer */
    uint64_t completion_head CACHE_LINE; /* worker */
    uint32_t armed CACHE_LINE;           /* worker sets, writer clears when it rings */
    uint64_t dirty_tail CACHE_LINE;      /* writer */
    uint32_t dirty_overflow;             /* writer sets, worker clears */
    uint64_t dirty_head CACHE_LINE;      /* worker */

    struct submission descriptors[RING_DESCRIPTORS] CACHE_LINE;
    uint64_t data_end[RING_DESCRIPTORS]; /* worker's own: `data_tail` after each descriptor */
    uint64_t pending[RING_DESCRIPTORS];  /* worker's own: the token that waits under this index, 0 none */
    uint16_t free_indices[RING_DESCRIPTORS];
    struct completion completions[COMPLETION_SLOTS] CACHE_LINE;
    uint32_t dirty[DIRTY_ENTRIES];
};
_Static_assert(sizeof(struct ring_memory) % 64 == 0, "ring memory");

#define RING_REQUIRE(condition)                                                                                              \
    do {                                                                                                                     \
        if (__builtin_expect(!(condition), 0)) {                                                                             \
            fprintf(stderr, "topicsd: broken invariant: %s (%s:%d)\n", #condition, __FILE__, __LINE__);                      \
            abort();                                                                                                         \
        }                                                                                                                    \
    } while (0)
static inline void ring_require(int condition) { RING_REQUIRE(condition); }

/* ---- maps ---------------------------------------------------------------------------------------------------------- */

/* `bytes` of zeroes, shared with later children, costing nothing until touched; NULL with errno. */
static inline void *map_sparse(uint64_t bytes, int in_dumps) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return NULL;
    if (!in_dumps) madvise(at, bytes, MADV_DONTDUMP);
    return at;
}

/* `bytes` of zeroes that stand twice in a row: at[i] and at[i + bytes] are the same byte. */
static inline void *map_twice(uint64_t bytes) {
    int fd = memfd_create("topicsd-ring", MFD_CLOEXEC);
    if (fd < 0) return NULL;
    uint8_t *at = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) == 0) at = mmap(NULL, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at != MAP_FAILED)
        for (int half = 0; half < 2; half++)
            if (mmap(at + (uint64_t)half * bytes, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
                int kept = errno;
                munmap(at, 2 * bytes);
                at = MAP_FAILED;
                errno = kept;
                break;
            }
    int kept = errno;
    close(fd);
    errno = kept;
    return at == MAP_FAILED ? NULL : at;
}

static inline int make_bell(void) { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }
static inline void ring_bell(int fd) {
    uint64_t one = 1; /* EAGAIN: the counter is full, so it is readable already */
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR) {}
}
static inline void quiet_bell(int fd) {
    uint64_t count;
    while (read(fd, &count, sizeof count) < 0 && errno == EINTR) {}
}
/* Give pages back to the kernel; they read as zeroes again. */
static inline void punch(void *at, uint64_t bytes) { madvise(at, (bytes + 4095) & ~4095ull, MADV_REMOVE); }

/* ---- fault points ---------------------------------------------------------------------------------------------------
 * In debug builds a process may ask for random pauses and deaths between the steps of a ring. */
struct fault_plan {
    uint64_t random;
    uint32_t pause_permille, pause_us_max, exit_ppm;
};
#ifdef TOPICSD_DEBUG
static struct fault_plan faults;
static inline uint32_t fault_random(void) {
    faults.random ^= faults.random << 13;
    faults.random ^= faults.random >> 7;
    faults.random ^= faults.random << 17;
    return (uint32_t)(faults.random >> 20);
}
static inline void fault_point(void) {
    if (!faults.random) return;
    if (fault_random() % 1000000 < faults.exit_ppm) _exit(86);
    if (fault_random() % 1000 < faults.pause_permille) {
        struct timespec ts = {0, (long)(fault_random() % (faults.pause_us_max + 1)) * 1000};
        nanosleep(&ts, NULL);
    }
}
#define FAULT_POINTS 1
static inline void fault_plan_set(struct fault_plan plan) { faults = plan; }
#else
#define FAULT_POINTS 0
static inline void fault_point(void) {}
static inline void fault_plan_set(struct fault_plan plan) { (void)plan; }
#endif

#endif
