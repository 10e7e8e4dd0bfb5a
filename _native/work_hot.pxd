# Claim, ack, nack and extend for the native front: a body becomes a command in the ring, a completion becomes an answer. No Python object, no GIL.
#
#   body -> queue_scan.h -> QueueRequest -> submit_* -> ring -> [queue_core] -> completion and its payload -> render_* -> the answer of A section 10
#
# The same bounds as Falcon's (api/queues.py): what is over one is clamped, what is wrong is not scanned at all. queue_wire.h has the layouts.
#
# Owner: the worker's event loop thread. A QueueRequest is 16 KB: the front has one, and scans a request again to answer it.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from topicsd._native.diff cimport ReaderCore
from topicsd._native.layout cimport completion
from topicsd._native.render cimport Buffer
from topicsd._native.ring cimport Ring

cdef extern from "queue_scan.h" nogil:
    const int QUEUE_SCAN_OK
    const uint32_t MEMBER_MAX
    const uint32_t MEMBER_LEASE_MS
    const uint32_t MEMBER_DELAY_MS
    const uint32_t MEMBER_SEQS
    const uint32_t MEMBER_LEASE_IDS

    ctypedef struct QueueRequest "struct queue_request":
        const uint8_t *node
        uint32_t node_bytes, has
        uint64_t max, lease_ms, delay_ms
        uint32_t count, ids
        uint64_t seqs[1000]
        uint64_t tokens[1000]

    int queue_scan(const uint8_t *at, uint64_t size, QueueRequest *out)

# 0 and the token, or not 0: Falcon's. `jobs_max`: TOPICS_MAX_CLAIM. `verb`: LEASE_CLAIM, LEASE_ACK, LEASE_RELEASE, LEASE_EXTEND. Rings no bell.
cdef int submit_work(Ring *ring, uint32_t slot, uint64_t topic_id, uint32_t verb, const QueueRequest *request, uint32_t node_bytes_max,
                     uint64_t jobs_max, uint64_t *token) noexcept nogil
# Append an answer's body: READ_OK, READ_MEMORY, or what the reader says of the topic.
cdef int render_claimed(ReaderCore *reader, uint32_t slot, uint64_t topic_id, const uint8_t *name, uint32_t name_bytes, const completion *answer,
                        const uint8_t *payload, uint64_t now_ms, uint64_t total_us, Buffer *out) noexcept nogil
cdef int render_settled(uint32_t verb, const uint8_t *name, uint32_t name_bytes, const QueueRequest *request, const completion *answer,
                        const uint8_t *payload, uint64_t total_us, Buffer *out) noexcept nogil
