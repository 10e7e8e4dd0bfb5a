# What a topic is like right now: exact floors, counts and clocks, with everything that has expired by `now_ms` taken off.
#
#   seqs   1 ........ | cap_lost, ttl_lost, hole_lost | ........ | earliest ............ head |
#            lost        evict_floor = highest of them + 1         first live               |
#                                                                                           head + 1 when nothing is live
#
# word                        written by  order                                  a stale read means
# head                        writer      release, after the entries             fewer records; the view's head is used, never a later one
# cap_lost ttl_lost hole_lost writer      release, BEFORE earliest                nothing: earliest is read first, so the floors are at
#                                                                                least as new; when they are newer, earliest is raised to them
# earliest                    writer      release, before memory is freed         an entry that has gone: `view_still` or `earliest` tells
# count bytes                 writer      relaxed, before head                    read again until head and earliest stand still, at most
#                                                                                STATE_TRIES times; then both are of one busy instant
# last_read_ms                any worker  relaxed, never backwards                a hint of priority that is a moment old
#
# A record is expired when now - ts > ttl (D §5.2, strict). The writer sweeps late, the reader never: what it finds expired at or above
# `earliest` counts as lost to TTL, and holes among it as passed, exactly as the sweep will do it.
#
# Owner: nobody. Workers only read, but for last_read_ms.
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from topicsd._native.regions cimport Regions
from topicsd._native.render cimport Buffer
from topicsd._native.table cimport TopicView

cdef enum:
    READ_OK = 0
    READ_GONE = 1          # the slot holds no topic, or another one than asked for
    READ_BUSY = 2          # the writer is dead, replaying, or was in the way too often: try again later
    READ_STALE = 3         # inside only: the view is older than the floors, take it again
    READ_IO = 4            # a record cannot be read
    READ_MEMORY = 5
    STATE_TRIES = 32

cdef struct Floors:
    uint64_t head
    uint64_t earliest      # first live seq; head + 1 when there is none
    uint64_t readable      # the first live seq that the disk has not damaged, as far as is known: what is shown as earliest_seq
    uint64_t evict_floor
    uint64_t cap_lost, ttl_lost, hole_lost
    uint32_t hole_reason
    uint64_t expired_count, expired_bytes    # live records that have expired and are not swept yet; only if `counting`

cdef struct State:
    TopicView view
    Floors floors
    uint64_t count, bytes
    uint64_t last_write_ms, last_read_ms
    uint64_t queue_ready, queue_in_flight, queue_dead_lettered
    int32_t priority
    uint32_t dead_letter_bytes
    char dead_letter[256]

# READ_OK or READ_STALE. The view must be of this slot; check `view_still` afterwards.
cdef int floors_take(const Regions *regions, uint32_t slot, const TopicView *view, uint64_t now_ms, bint counting, Floors *out) noexcept nogil
cdef int read_state(const Regions *regions, uint32_t slot, uint64_t now_ms, State *out) noexcept nogil       # READ_OK, _GONE, _BUSY
cdef int render_state(Buffer *out, const State *state, uint64_t total_us) noexcept nogil                      # A §1.2; 0 or -ENOMEM
cdef void touch_topic(Regions *regions, uint32_t slot, uint64_t now_ms) noexcept nogil
# Why seqs from `gap_from` up to the evict floor are lost: enum loss_reason.
cdef uint32_t loss_reason_of(const Floors *floors, uint64_t gap_from) noexcept nogil
