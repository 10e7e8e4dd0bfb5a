# Which topic is served next: bands of effective priority, deficit round-robin inside a band, ageing between them (D §3.1, ARCHITECTURE §8).
#
#   bands   [ overdue | 13 | 12 | ... | 0 ]     a band is 256 points of priority: (priority + age + 1000) / 256
#              |         '-> entry -> entry -> entry         the first is served for QUANTUM bytes, then goes to the end
#              '-> whoever has waited for OVERDUE_MS: before all bands, so nothing starves whatever the rest does
#
# Age: +100 a second of waiting, at most +1000, looked at each AGE_TICK_MS; being served makes an entry young again.
# Deficit: an entry that took more than its quantum (a frame is never cut) pays for it by turns left out.
#
# Owner: one thread; nothing here is shared. An entry stands in what it schedules (feed.pxd) and must be taken out before that is freed.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

cdef enum:
    BANDS = 15                   # 14 of priority and the overdue one
    OVERDUE = 14
    BAND_POINTS = 256
    PRIORITY_LEAST = -1000
    AGE_RATE_A_SECOND = 100
    AGE_CAP_MS = 10000
    OVERDUE_MS = 10000
    AGE_TICK_MS = 50
    QUANTUM = 1 << 16

cdef struct Entry:
    Entry *next
    Entry *previous
    uint64_t since_ms            # it waits since then
    int64_t deficit
    int32_t priority
    int32_t band                 # -1: not waiting

cdef struct Scheduler:
    Entry *first[15]
    Entry *last[15]
    uint64_t waiting
    uint64_t aged_ms

cdef void entry_init(Entry *entry) noexcept nogil
cdef void schedule(Scheduler *scheduler, Entry *entry, int32_t priority, uint64_t now_ms) noexcept nogil    # it waits; nothing if it does already
cdef void unschedule(Scheduler *scheduler, Entry *entry) noexcept nogil
# Who is served next, NULL: nobody waits at or above `band_least`. It stays first, with a quantum more to spend.
cdef Entry *schedule_next(Scheduler *scheduler, int32_t band_least, uint64_t now_ms) noexcept nogil
# It took so many bytes; `more`: it waits again, at the end of its band.
cdef void schedule_served(Scheduler *scheduler, Entry *entry, uint64_t spent, bint more, int32_t priority, uint64_t now_ms) noexcept nogil
cdef int32_t band_of(int32_t priority, uint64_t waited_ms) noexcept nogil
