# A batch on its way through the writer, and the queues in which batches wait. What each queue means: sequencer.pxd.
# All of it is the heap of the writer's one thread.
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport abort, calloc, free, malloc

from topicsd._native.layout cimport FRAME_FLAG_KEY, FRAME_HEADER_BYTES, frame_header, key_section

cdef enum:
    QUEUE_FIRST = 256

cdef enum BatchKind:
    BATCH_APPEND = 1
    BATCH_DUPLICATE = 2     # a retry whose first try is still in flight: gets that one's answer
    BATCH_CALL = 3          # a command of the engine that is done and only waits for its frames to be synced
    BATCH_CEILING = 4       # a reserved ceiling that holds once it is synced
    BATCH_LEASE = 7         # a queue's claim, ack, release, extend: what comes of it, and its answer, is queue_core's
    # A route's copies, or a hole instead of them (routes.pxd): `frame` is the Note, `token` the route's number, `place` its cursor before,
    # `cursor` the one behind, `started_ns` their ts, `answer_bytes` the hole's length.
    BATCH_COPIES = 5
    BATCH_CURSOR = 6        # owns the cursor frame of the copies behind it

cdef enum:
    TOKEN_ROUTED = 0xFFFFFFFFFFFFFFFF    # of a batch of copies that are written out: nobody waits for its answer

cdef struct Batch:
    uint8_t kind
    uint8_t owned           # `frame` was malloc'ed here
    uint8_t waits           # must be synced before it is visible
    uint8_t detached        # its descriptor was given back: the payload is a copy
    uint8_t durable         # class fsync: the answer says what the sync took
    uint8_t hashed          # body_xxh3 is known: its worker has told it (port.pxd)
    uint32_t slot
    uint64_t topic_id
    uint64_t token
    int32_t ring            # -1: the engine as a library
    uint32_t flags          # COMPLETION_*
    uint32_t outcome        # of a finished batch
    uint64_t cursor         # its descriptor in the ring
    frame_header *frame
    uint64_t first_seq, count, payload, body_xxh3
    uint64_t place          # source << 56 | position of the frame
    uint64_t end            # log position that must be synced
    uint64_t started_ns, written_ns
    uint8_t *answer         # BATCH_CALL: JSON, malloc'ed
    uint32_t answer_bytes

cdef struct Queue:          # of batches, a growable ring
    Batch *items
    uint64_t mask, first, end


cdef inline int queue_open(Queue *queue) noexcept nogil:
    queue.items = <Batch *>calloc(QUEUE_FIRST, sizeof(Batch))
    queue.mask = QUEUE_FIRST - 1
    queue.first = queue.end = 0
    return 0 if queue.items != NULL else -1


cdef inline uint64_t queue_length(const Queue *queue) noexcept nogil:
    return queue.end - queue.first


cdef inline Batch *queue_at(const Queue *queue, uint64_t number) noexcept nogil:
    return &queue.items[number & queue.mask]


cdef inline void queue_push(Queue *queue, const Batch *batch) noexcept nogil:
    cdef Batch *items
    cdef uint64_t number, size
    if queue.end - queue.first > queue.mask:
        size = (queue.mask + 1) * 2
        items = <Batch *>malloc(size * sizeof(Batch))
        if items == NULL:
            abort()    # a batch that is in the log can't be dropped: die loudly, the next writer replays it
        for number in range(queue.first, queue.end):
            items[number & (size - 1)] = queue.items[number & queue.mask]
        free(queue.items)
        queue.items = items
        queue.mask = size - 1
    queue.items[queue.end & queue.mask] = batch[0]
    queue.end += 1


cdef inline void free_owned(Batch *batch) noexcept nogil:
    if batch.owned:
        free(batch.frame)
    free(batch.answer)
    batch.frame = NULL
    batch.answer = NULL


cdef inline key_section *key_of(frame_header *frame) noexcept nogil:
    # A routed frame's section is no idempotency key (routes.h).
    return <key_section *>(<uint8_t *>frame + FRAME_HEADER_BYTES) if frame.flags & (FRAME_FLAG_KEY | 4) == FRAME_FLAG_KEY else NULL
