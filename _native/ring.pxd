# A ring slot carries batches from one worker to the writer, answers back, and names of topics that moved.
#
#   descriptors  [ 32 B | 32 B | ... ]               4096; slot = cursor & mask; cursors are 64-bit and never wrap
#   payload      [ 8 MiB ][ the same 8 MiB again ]   mapped twice, so that no batch ever wraps; above 2 MiB: a spill slot
#   completions  [ 96 B | 96 B | ... ]               8192, and 4 MiB of payload, mapped twice
#   dirty        [ u32 | u32 | ... ]                 8192 topic slots that moved while this worker watched them
#
# word              written by    order                            a stale read means
# tail              worker        release, after the descriptor    the writer sees fewer batches, never half a one
# head              writer        release, after the last use      the worker sees less room, never room still in use
# completion_tail   writer        release, after the completion    the worker sees fewer answers
# completion_head   worker        release, after the last use      the writer refuses a stale entry later; no other answer needs it
# writer_armed      writer        seq_cst, fence, looks at tails   nothing: a worker fences after tail and then looks at writer_armed,
#                                                                  so at least one of the two sees the other
# armed             worker sets   seq_cst, fence, looks at         nothing: the writer fences after its last push and then looks at
#                   writer clears completion_tail and dirty        armed; having cleared it, it always writes the eventfd
# dirty_tail        writer        release, after the entry         a topic is seen moved later, at the bell that follows
# dirty_overflow    writer sets   seq_cst                          cleared before the list is emptied: what comes later sets it again
# state             see below     seq_cst
#
# Room. Only cursors of descriptors are published. The worker finds the free payload bytes from `data_end` of the last released
# descriptor, the writer its place in the completion payload from the last completion: one word moves, so a death between two
# stores leaves nothing half done. Room for the answer is reserved at claim (4095 outstanding, 512 calls whose payloads of at most
# COMPLETION_PAYLOAD_MAX fill their ring), so the writer never waits for a worker. A token's index into `pending` is free again only after
# completion_done: an answer to a token that does not stand there (a dead worker's, a second answer after a writer's death) is skipped.
#
# writer_armed is writer_bell << 1 | 1: a worker that has rung for this value need not ring again, for its ring has changed writer_bell. It is
# never cleared by a worker, so one that dies between looking and ringing takes no wake-up of others with it.
#
# Deaths.
#   Worker between claim and commit: nothing has moved. Its spill slot names the claim, and is freed with the ring slot.
#   Writer anywhere: entries not released carry an older generation. The next writer raises control.generation, THEN calls
#   ring_reset_for_generation: each is answered OUTCOME_UNKNOWN (also those that the dead one answered and did not release: the worker skips
#   the second answer) and released, watchers are told to look at everything, the worker is rung. An entry stamped with the old
#   generation may still come a moment later, or wait because the completion ring is full: ring_peek_at says RING_STALE, and
#   the writer calls ring_refuse.
#
# A slot's life. The arbiter takes a FREE slot (-> LIVE) and forks; the worker calls ring_adopt. When it has died the arbiter says DEAD. The writer
# goes on draining what was committed; answers go nowhere. When all is answered and released, and the dead one's watcher bits are cleared,
# ring_dead_drained frees its spills and says FREE: until then no new worker gets the slot.
#
# The writer answers each entry exactly once (completion_push or ring_refuse), COMMAND_FREE too.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from topicsd._native.layout cimport completion, submission
from topicsd._native.regions cimport Regions, RingMemory

ctypedef RingMemory Ring

cdef extern from "ring.h" nogil:
    const uint32_t RING_MASK
    const uint64_t RING_DATA_MASK
    const uint32_t RING_SPILL_ABOVE
    const uint32_t COMPLETION_SLOTS
    const uint32_t COMPLETION_MASK
    const uint64_t COMPLETION_DATA_MASK
    const uint32_t OUTSTANDING_MAX
    const uint32_t OUTSTANDING_CALLS_MAX
    const uint32_t DIRTY_MASK
    const uint32_t SPILL_NONE

cdef enum:
    RING_FULL = -1          # no room now: in the ring, among spill slots, or for the answer
    RING_TOO_LARGE = -2     # no room ever
    RING_NONE = 0
    RING_ENTRY = 1
    RING_STALE = 2          # committed for a dead writer: ring_refuse it. Its payload may be gone (a spill slot given back): never read it

# ---- the worker's side: one thread of the process that adopted the slot
cdef void ring_adopt(Ring *ring) noexcept nogil
cdef int ring_claim(Ring *ring, uint32_t bytes, uint32_t kind, uint8_t **destination) noexcept nogil    # 0, RING_FULL, RING_TOO_LARGE
cdef uint64_t ring_commit(Ring *ring, uint32_t slot) noexcept nogil     # publishes the claim, rings the writer if armed; its token
cdef uint64_t ring_commit_quietly(Ring *ring, uint32_t slot) noexcept nogil     # the same without the bell: ring_writer must follow in this turn
cdef void ring_writer(Ring *ring) noexcept nogil                        # rings the writer if it sleeps
cdef void ring_abandon(Ring *ring) noexcept nogil                       # gives an uncommitted claim back
cdef bint completion_next(Ring *ring, completion *out, const uint8_t **payload) noexcept nogil
cdef void completion_done(Ring *ring) noexcept nogil                    # after the payload was used; ends the request of completion_next
cdef bint ring_arm(Ring *ring) noexcept nogil       # True: nothing waits and the writer will ring; False: drain again
cdef bint dirty_next(Ring *ring, uint32_t *slot) noexcept nogil
cdef bint dirty_overflowed(Ring *ring) noexcept nogil   # True (once): the list was dropped, look at every topic

# ---- the writer's side
cdef int ring_peek(Ring *ring, submission *out, uint8_t **payload) noexcept nogil
cdef int ring_peek_at(Ring *ring, uint64_t cursor, submission *out, uint8_t **payload) noexcept nogil   # RING_NONE, _ENTRY, _STALE
cdef void ring_release(Ring *ring, uint64_t cursor) noexcept nogil      # frees descriptors, bytes and spill slots before `cursor`
cdef void spill_free(Regions *regions, uint32_t slot) noexcept nogil    # earlier than ring_release; never after it
cdef int completion_push(Ring *ring, const completion *answer, const uint8_t *payload) noexcept nogil   # 0; RING_TOO_LARGE: went without it
cdef int ring_refuse(Ring *ring, const submission *entry, uint32_t outcome) noexcept nogil              # 0, RING_FULL: try again later
cdef void dirty_push(Ring *ring, uint32_t slot) noexcept nogil
cdef void dirty_everything(Ring *ring) noexcept nogil                   # look at all topics, at once: a new writer when it is ready
cdef void bell_worker(Ring *ring) noexcept nogil                        # once a turn, after the last push
cdef uint64_t ring_reset_for_generation(Ring *ring) noexcept nogil      # entries refused
cdef bint ring_dead_drained(Ring *ring) noexcept nogil                  # True: the slot was dead, is drained, and is FREE now
cdef uint64_t rings_waiting(const Regions *regions) noexcept nogil      # bit n: ring n has entries not looked at
cdef uint32_t writer_bell_seen(const Regions *regions) noexcept nogil   # take it before looking for work ...
cdef bint writer_sleep_unless(Regions *regions, uint32_t seen, int64_t timeout_ns) noexcept nogil   # ... and no later bell is lost
cdef bint writer_sleep(Regions *regions, int64_t timeout_ns) noexcept nogil     # True: slept; for entries in rings only
