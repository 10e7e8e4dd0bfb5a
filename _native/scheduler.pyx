"""Which topic is served next (page of truth: scheduler.pxd)."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free


cdef int32_t band_of(int32_t priority, uint64_t waited_ms) noexcept nogil:
    cdef int64_t points = priority
    if waited_ms >= OVERDUE_MS:
        return OVERDUE
    points += <int64_t>(min(waited_ms, <uint64_t>AGE_CAP_MS) * AGE_RATE_A_SECOND // 1000)
    return <int32_t>min(max((points - PRIORITY_LEAST) // BAND_POINTS, <int64_t>0), <int64_t>(OVERDUE - 1))


cdef void entry_init(Entry *entry) noexcept nogil:
    entry.next = entry.previous = NULL
    entry.band = -1
    entry.deficit = 0


cdef void _append(Scheduler *scheduler, Entry *entry, int32_t band) noexcept nogil:
    entry.band = band
    entry.next = NULL
    entry.previous = scheduler.last[band]
    if entry.previous != NULL:
        entry.previous.next = entry
    else:
        scheduler.first[band] = entry
    scheduler.last[band] = entry


cdef void _remove(Scheduler *scheduler, Entry *entry) noexcept nogil:
    if entry.previous != NULL:
        entry.previous.next = entry.next
    else:
        scheduler.first[entry.band] = entry.next
    if entry.next != NULL:
        entry.next.previous = entry.previous
    else:
        scheduler.last[entry.band] = entry.previous
    entry.band = -1


cdef void schedule(Scheduler *scheduler, Entry *entry, int32_t priority, uint64_t now_ms) noexcept nogil:
    if entry.band >= 0:
        return
    entry.since_ms = now_ms
    entry.priority = priority
    entry.deficit = min(entry.deficit, <int64_t>0)
    scheduler.waiting += 1
    _append(scheduler, entry, band_of(priority, 0))


cdef void unschedule(Scheduler *scheduler, Entry *entry) noexcept nogil:
    if entry.band >= 0:
        _remove(scheduler, entry)
        scheduler.waiting -= 1


cdef void _age(Scheduler *scheduler, uint64_t now_ms) noexcept nogil:
    # From the top, so that nobody is looked at twice.
    cdef int32_t band, other
    cdef Entry *entry
    cdef Entry *after
    if now_ms < scheduler.aged_ms + AGE_TICK_MS:
        return
    scheduler.aged_ms = now_ms
    for band in range(OVERDUE - 1, -1, -1):
        entry = scheduler.first[band]
        while entry != NULL:
            after = entry.next
            other = band_of(entry.priority, now_ms - entry.since_ms if now_ms > entry.since_ms else 0)
            if other > band:
                _remove(scheduler, entry)
                _append(scheduler, entry, other)
            entry = after


cdef Entry *schedule_next(Scheduler *scheduler, int32_t band_least, uint64_t now_ms) noexcept nogil:
    cdef int32_t band
    cdef Entry *entry
    if scheduler.waiting == 0:
        return NULL
    _age(scheduler, now_ms)
    for band in range(OVERDUE, max(band_least, 0) - 1, -1):
        while scheduler.first[band] != NULL:
            entry = scheduler.first[band]
            entry.deficit += QUANTUM
            if entry.deficit > 0 or entry.next == NULL:
                entry.deficit = max(entry.deficit, <int64_t>1)
                return entry
            _remove(scheduler, entry)          # it pays for what it took
            _append(scheduler, entry, band)
    return NULL


cdef void schedule_served(Scheduler *scheduler, Entry *entry, uint64_t spent, bint more, int32_t priority, uint64_t now_ms) noexcept nogil:
    if entry.band < 0:
        return
    entry.deficit -= <int64_t>spent
    _remove(scheduler, entry)
    entry.priority = priority
    entry.since_ms = now_ms
    if more:
        entry.deficit = min(entry.deficit, <int64_t>0)
        _append(scheduler, entry, band_of(priority, 0))
    else:
        entry.deficit = 0
        scheduler.waiting -= 1


cdef class Schedule:
    """The scheduler by itself, over numbers; for tests and benches."""

    cdef Scheduler scheduler
    cdef Entry *entries
    cdef readonly uint32_t size

    def __cinit__(self, uint32_t size):
        cdef uint32_t n
        self.size = size
        self.entries = <Entry *>calloc(max(size, 1), sizeof(Entry))
        if self.entries == NULL:
            raise MemoryError
        for n in range(size):
            entry_init(&self.entries[n])

    def __dealloc__(self):
        free(self.entries)

    cdef Entry *entry(self, uint32_t number) except NULL:
        if number >= self.size:
            raise IndexError(number)
        return &self.entries[number]

    @property
    def waiting(self):
        return self.scheduler.waiting

    def enter(self, uint32_t number, int32_t priority, uint64_t now_ms):
        """Let an entry wait."""
        schedule(&self.scheduler, self.entry(number), priority, now_ms)

    def leave(self, uint32_t number):
        """Take it out."""
        unschedule(&self.scheduler, self.entry(number))

    def next(self, uint64_t now_ms, int32_t band_least=0):
        """Return (number, bytes it may spend) of who is served next, or None."""
        cdef Entry *entry = schedule_next(&self.scheduler, band_least, now_ms)
        return None if entry == NULL else (<uint32_t>(entry - self.entries), entry.deficit)

    def served(self, uint32_t number, uint64_t spent, bint more, uint64_t now_ms):
        """Say what it took, and whether it waits again."""
        schedule_served(&self.scheduler, self.entry(number), spent, more, self.entries[number].priority, now_ms)


def band(int32_t priority, uint64_t waited_ms):
    """Return the band of an entry with this effective priority that has waited for so long."""
    return band_of(priority, waited_ms)
