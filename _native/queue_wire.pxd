# The structs and constants of queue_wire.h, as Cython sees them; queue_wire.h is the truth.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "queue_wire.h" nogil:
    const uint32_t COMMAND_QUEUE_FIRST
    const uint32_t COMMAND_QUEUE_LAST
    const uint32_t COMMAND_CLAIM
    const uint32_t COMMAND_SETTLE
    const uint32_t COMMAND_LEAVE
    const uint32_t CLAIM_JOBS_MAX
    const uint32_t OUTCOME_NOT_QUEUE
    const int LEASE_CLAIM
    const int LEASE_ACK
    const int LEASE_RELEASE
    const int LEASE_EXTEND
    const int LEASE_BURY
    const int LEASE_REMOVE
    const int LEASE_LOST

    ctypedef struct held_job "struct held_job":
        uint64_t seq
        uint64_t token
    ctypedef struct claim_command "struct claim_command":
        uint64_t topic_id
        uint64_t lease_ms
        uint32_t max
        uint32_t held
        uint16_t node_bytes
        uint8_t stream
    ctypedef struct settle_command "struct settle_command":
        uint64_t topic_id
        uint64_t ms
        uint32_t count
        uint16_t node_bytes
        uint8_t verb
        uint8_t fenced
    ctypedef struct lease_body "struct lease_body":
        uint8_t verb
        uint16_t node_bytes
        uint32_t count
        uint64_t first_token
        uint64_t ms
    ctypedef struct letter_key "struct letter_key":
        uint64_t topic_id
        uint64_t seq
        uint64_t verb
