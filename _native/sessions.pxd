# Watch sessions in shared memory: made by one worker, streamed by another, outliving any process but the arbiter (A §7.1, §7.4).
#
#   places   [ state | lease | touched ] ...            one a session, in one array: a sweep reads nothing else
#   bodies   [ header | options JSON | row row ... | .............. | moves ]   4 MiB of address space each; memory is what is touched
#   lines    a delivery_line a ring slot                conns   [ring slot][1 + key]: open streams of all keys, of one key
#
# wid = "wid_" + base64url(16 random bytes, 3 bytes of the place): the place finds it, the random bytes prove it.
#
# word                 written by                       order      a stale read means
# place.state          the maker FREE -> MAKING -> LIVE; a sweeper LIVE -> GOING -> FREE; the arbiter MAKING -> FREE
#                                                       seq_cst    a session that goes is 404
# place.lease          whoever opens a stream (cas), its owner when the stream ends, the arbiter for a dead owner
#                                                       seq_cst    nothing: see below
# place.touched_ms     the owner                        relaxed    a sweep that comes a moment later
# header.busy          cas 0 -> own slot, own slot -> 0  seq_cst    nothing: see below; what a dead one left is cleared by the next
# rows, moves          the owner, inside `busy`         plain      nothing: they are read inside the lease alone
# line                 its worker (`poke`: any)         relaxed    numbers of a moment ago
# conns                its worker                       seq_cst    a stream too few, never one too many; the arbiter clears a dead worker's
#
# Taking over. The owner takes `busy`, then looks at the lease; the new one moves the lease, then waits until `busy` is free or its holder dead.
# Before that it asks (`asked`, a poke) and gives the owner some milliseconds to end by itself, which leaves `safe_*` exact.
# One of the two sees the other, so no cursor moves after it was read. A cursor moves before its bytes go to the socket: one that dies in
# between has sent nothing that the session does not know of, and a client's Last-Event-ID takes it back to what it has seen.
#
# A client that was cut off before its first id, or shows none, cannot say where it stands, and the cursors are already behind bytes that never
# arrived. So the owner notes where they stood when the peer's kernel had acknowledged everything (`safe_*` of each row, SIOCOUTQ): a stream
# that begins without an id begins there.
#
# A sweep and an opening: the sweeper moves state, then looks at the lease; the opener moves the lease, then looks at the state.
#
# Limit: there are as many places as sessions are allowed, so the cap holds without a counter.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from topicsd._native.regions cimport Shared

cdef extern from "sessions.h" nogil:
    const uint32_t SESSIONS_HARD_MAX
    const uint32_t SESSION_BYTES
    const uint32_t SESSION_OPTIONS_MAX
    const uint32_t SESSION_HISTORY_AT
    const uint32_t SESSION_HISTORY
    const uint32_t SESSION_ROWS_MAX
    const uint32_t SESSION_KEYS_MAX
    const uint32_t WID_BYTES
    const uint64_t SESSION_FREE
    const uint64_t SESSION_MAKING
    const uint64_t SESSION_LIVE
    const uint64_t SESSION_GOING
    const uint32_t ROW_PATTERN
    const uint32_t ROW_TAIL
    const uint32_t ROW_MEMBER
    const uint32_t ROW_GONE

    ctypedef struct Place "struct session_place":
        uint64_t state
        uint64_t lease
        uint64_t touched_ms

    ctypedef struct Header "struct session_header":
        uint64_t busy
        uint8_t wid[16]
        uint8_t key_digest[32]
        int64_t key
        uint64_t created_ms
        uint32_t options_bytes
        uint32_t rows
        uint32_t rows_at
        uint32_t rows_end
        uint64_t large
        uint64_t moves
        uint64_t asked

    ctypedef struct Row "struct watch_row":
        uint64_t epoch
        uint64_t seq
        uint64_t first_epoch
        uint64_t first_seq
        uint64_t safe_epoch
        uint64_t safe_seq
        uint32_t flags
        uint16_t name_bytes
        uint16_t bytes
        uint32_t number
        char name[1]

    ctypedef struct Move "struct session_move":
        uint64_t number
        uint64_t epoch
        uint64_t seq
        uint32_t row

    ctypedef struct Line "struct delivery_line":
        uint64_t frames
        uint64_t records
        uint64_t bytes
        uint64_t tombstones
        uint64_t heartbeats
        uint64_t slow_closed
        uint64_t taken_over
        uint64_t advisories
        uint64_t streams
        uint64_t poke
        uint64_t ws_frames
        uint64_t ws_records
        uint64_t ws_bytes
        uint64_t ws_streams

    void give_pages_back(void *at, size_t size)

cdef enum:
    ID_BYTES_MAX = 2048        # a longer id is a token

cdef class Sessions:
    cdef readonly Shared shared
    cdef Place *places
    cdef uint8_t *bodies
    cdef Line *lines
    cdef uint32_t *conns
    cdef readonly uint32_t sessions_max
    cdef uint32_t hint
    cdef uint64_t swept_ms

    cdef Header *body(self, uint32_t number) noexcept nogil
    cdef int wipe(self, uint32_t number) noexcept
    cdef uint32_t claim(self, uint32_t ring) noexcept
    cdef void poke(self, uint32_t ring) noexcept

cdef class Session:
    cdef readonly Sessions sessions
    cdef readonly uint32_t number
    cdef Header *header
    cdef Place *place
    cdef uint64_t lease

    cdef Row *first_row(self) noexcept nogil
    cdef Row *last_row(self) noexcept nogil                          # the end: rows are from .. to
    cdef Row *append(self, const char *name, uint32_t name_bytes, uint64_t epoch, uint64_t seq, uint32_t flags) noexcept nogil
    cdef bint wait(self) noexcept nogil
    cdef bint enter(self) noexcept nogil                             # False: the lease has gone
    cdef void leave(self) noexcept nogil
    cdef void move(self, Row *row, uint64_t epoch, uint64_t seq) noexcept nogil
    cdef void mark_safe(self) noexcept nogil
    cdef void check_large(self) noexcept nogil


cdef inline Row *next_row(Row *row) noexcept nogil:
    return <Row *>(<uint8_t *>row + row.bytes)
