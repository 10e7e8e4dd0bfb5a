# A worker's end of its ring slot: requests go in as encoded frames, answers come out as objects, one a request.
#
#   COMMAND_APPEND   [ frame header 64 B | body from encode_write ]
#   COMMAND_CALL     [ u32 json bytes | u32 frame bytes | JSON, zeroes to 8 | append frame, if any ]
#
# The worker fills magic, type, flags, length, count and topic_id of a frame; everything else of its header is zero until the writer stamps it.
# A body is encoded straight into the ring (or a spill slot): that is its only copy before the log.
#
# What takes a walk over the body is done here, while it is in this core's cache, and told in words that the writer stamps later: `xxh3` is the
# body's hash, `synced` the payload's bytes, and FRAME_FLAG_TOLD says so (the writer clears it; it never gets into a log). A frame without the
# flag is walked and hashed by the writer. The writer trusts what it is told as it trusts the body, which the same code has written.
#
# Owner: the worker's event loop thread. `submit_append` and `submit_call` need no GIL, so that a native front calls them directly.
#
# Sleep: after each turn the loop calls `drain` and then `dirty`, in this order: `drain` arms, so whatever the writer pushes later rings
# the eventfd, and what it pushed before, `dirty` finds. Watch: `watch` sets this worker's bit in the topic's mask and fences; look at the
# topic's head after it, and then sleep: the writer moves the head first and looks at the mask then, so one of the two sees the other.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from topicsd._native.layout cimport completion
from topicsd._native.regions cimport Shared
from topicsd._native.ring cimport Ring
from topicsd._native.scan cimport WriteRequest

cdef enum:
    FRAME_FLAG_TOLD = 0x80

# 0 and the token, RING_FULL or RING_TOO_LARGE. A key is canonical; 0 bytes: none.
cdef int submit_append(Ring *ring, uint32_t slot, uint64_t topic_id, const WriteRequest *request, const uint8_t *header_key,
                       uint32_t header_key_bytes, uint64_t *token) noexcept nogil
# The same without the bell: many a turn, then `ring_writer` once.
cdef int submit_append_quietly(Ring *ring, uint32_t slot, uint64_t topic_id, const WriteRequest *request, const uint8_t *header_key,
                               uint32_t header_key_bytes, uint64_t *token) noexcept nogil
cdef int submit_call(Ring *ring, const uint8_t *json, uint32_t json_bytes, const WriteRequest *request, const uint8_t *header_key,
                     uint32_t header_key_bytes, uint64_t *token) noexcept nogil      # request may be NULL

cdef class Completion:
    cdef readonly uint32_t status
    cdef readonly uint32_t flags
    cdef readonly uint64_t first_seq
    cdef readonly uint64_t head
    cdef readonly uint32_t count
    cdef readonly uint32_t wal_us
    cdef readonly uint32_t fsync_us
    cdef public uint64_t parked_us         # how long it waited in the worker, for room or for pressure to pass; set by api/calls.py
    cdef readonly tuple values
    cdef readonly bytes payload

cdef Completion completed(const completion *answer, const uint8_t *payload)

cdef class Port:
    cdef Shared shared
    cdef Ring *ring

    cdef object submitted(self, int wrong, uint64_t token)
