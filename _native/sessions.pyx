"""Watch sessions in shared memory (page of truth: sessions.pxd)."""

from libc.errno cimport errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset, strerror

import base64
import binascii
import os

from topicsd._native.atomics cimport (
    add_64, cas_64, clock_mono_ns, fence_seq_cst, load_relaxed_64, load_seq_cst_32, load_seq_cst_64, store_relaxed_64, store_seq_cst_32,
    store_seq_cst_64,
)
from topicsd._native.layout cimport RING_SLOTS_MAX
from topicsd._native.regions cimport RING_LIVE, Shared

cdef extern from "ring.h" nogil:
    void *map_sparse(uint64_t bytes, int in_dumps)
    void ring_bell(int fd)

cdef extern from "sys/mman.h" nogil:
    int munmap(void *at, size_t bytes)

cdef extern from "sched.h" nogil:
    int sched_yield()

cdef enum:
    HEADER_BYTES = 224
    OWNER_WAIT_NS = 1000000000     # an owner that was stopped in the middle of a send: then its cursors are read as they are
    NONE = 0xFFFFFFFF

PATTERN, TAIL, MEMBER, GONE = ROW_PATTERN, ROW_TAIL, ROW_MEMBER, ROW_GONE
ROWS_MAX = SESSION_ROWS_MAX

_LINE_WORDS = (
    "frames records bytes tombstones heartbeats slow_closed taken_over advisories streams poke ws_frames ws_records ws_bytes ws_streams").split()


cdef void *mapped(uint64_t size) except NULL:
    cdef void *at = map_sparse(size, False)
    if at == NULL:
        raise OSError(errno, f"cannot map {size} bytes of shared memory: {strerror(errno).decode()}")
    return at


cdef class Sessions:
    """All watch sessions of one server."""

    def __init__(self):
        raise TypeError("use Sessions.create")

    @staticmethod
    def create(Shared shared not None, uint32_t sessions_max):
        cdef Sessions self = Sessions.__new__(Sessions)
        self.shared = shared
        self.sessions_max = min(sessions_max or SESSIONS_HARD_MAX, SESSIONS_HARD_MAX)
        self.places = <Place *>mapped(self.sessions_max * sizeof(Place))
        self.bodies = <uint8_t *>mapped(<uint64_t>self.sessions_max * SESSION_BYTES)
        self.lines = <Line *>mapped(RING_SLOTS_MAX * sizeof(Line))
        self.conns = <uint32_t *>mapped(<uint64_t>RING_SLOTS_MAX * (1 + SESSION_KEYS_MAX) * 4)
        return self

    def __dealloc__(self):
        if self.places != NULL:
            munmap(self.places, self.sessions_max * sizeof(Place))
        if self.bodies != NULL:
            munmap(self.bodies, <uint64_t>self.sessions_max * SESSION_BYTES)
        if self.lines != NULL:
            munmap(self.lines, RING_SLOTS_MAX * sizeof(Line))
        if self.conns != NULL:
            munmap(self.conns, <uint64_t>RING_SLOTS_MAX * (1 + SESSION_KEYS_MAX) * 4)

    cdef Header *body(self, uint32_t number) noexcept nogil:
        return <Header *>(self.bodies + <uint64_t>number * SESSION_BYTES)

    cdef int wipe(self, uint32_t number) noexcept:
        # The first page is kept, all others go back.
        cdef uint8_t *at = <uint8_t *>self.body(number)
        give_pages_back(at + 4096, SESSION_BYTES - 4096)
        memset(at, 0, 4096)
        return 0

    # ---- making

    cdef uint32_t claim(self, uint32_t ring) noexcept:
        cdef uint32_t n, number
        for n in range(self.sessions_max):
            number = (self.hint + n) % self.sessions_max
            if load_relaxed_64(&self.places[number].state) == SESSION_FREE and \
                    cas_64(&self.places[number].state, SESSION_FREE, SESSION_MAKING | (<uint64_t>ring + 1) << 8):
                self.hint = number + 1
                return number
        return NONE

    def make(self, uint32_t ring, uint64_t now_ms, int64_t key, bytes key_digest, bytes options not None, rows):
        cdef uint32_t number
        cdef Header *header
        cdef Session session
        cdef bytes wid = os.urandom(WID_BYTES)
        if len(options) > <Py_ssize_t>SESSION_OPTIONS_MAX or len(rows) > <Py_ssize_t>SESSION_ROWS_MAX:
            raise ValueError("a session too large")
        number = self.claim(ring)
        if number == <uint32_t>NONE:
            return None
        self.wipe(number)
        header = self.body(number)
        memcpy(header.wid, <const uint8_t *>wid, WID_BYTES)
        if key_digest is not None:
            memcpy(header.key_digest, <const uint8_t *>key_digest, 32)
        header.key = key
        header.created_ms = now_ms
        header.options_bytes = len(options)
        memcpy(<uint8_t *>header + HEADER_BYTES, <const uint8_t *>options, len(options))
        header.rows_at = header.rows_end = (HEADER_BYTES + len(options) + 7) & ~7
        session = Session.__new__(Session)
        session.sessions, session.number, session.header, session.place = self, number, header, &self.places[number]
        for name, epoch, seq, flags in rows:
            session.append(<const char *>(<bytes>name), len(name), epoch, seq, flags)
        session.check_large()
        store_relaxed_64(&self.places[number].touched_ms, now_ms)
        store_seq_cst_64(&self.places[number].state, SESSION_LIVE)
        return "wid_" + base64.urlsafe_b64encode(wid + number.to_bytes(3, "big")).rstrip(b"=").decode()

    # ---- finding

    def find(self, str wid not None):
        """Return the number of a live session, or None."""
        cdef bytes raw
        cdef const uint8_t *at
        cdef uint32_t number
        cdef uint32_t n
        cdef uint8_t different = 0
        if len(wid) != 30 or not wid.startswith("wid_"):
            return None
        try:
            raw = base64.b64decode(wid[4:].encode("ascii") + b"==", altchars=b"-_", validate=True)
        except (ValueError, binascii.Error):
            return None
        if len(raw) != 19 or base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != wid[4:]:
            return None
        number = int.from_bytes(raw[16:], "big")
        if number >= self.sessions_max or load_seq_cst_64(&self.places[number].state) != SESSION_LIVE:
            return None
        at = raw
        for n in range(WID_BYTES):
            different |= at[n] ^ self.body(number).wid[n]
        return None if different else number

    def key_of(self, uint32_t number):
        """Return (index, digest) of the key that made a session; index -1: none."""
        if number >= self.sessions_max:
            raise IndexError(number)
        return self.body(number).key, (<const char *>self.body(number).key_digest)[:32]

    def is_open(self, uint32_t number):
        """Tell whether a stream of it is open anywhere."""
        if number >= self.sessions_max:
            raise IndexError(number)
        return load_seq_cst_64(&self.places[number].lease) & 0xFFFF != 0

    def positions(self, str tag not None, uint64_t at, int64_t key):
        """Return (name, epoch, seq) of a large session's topics at a token; None when it has gone, is another key's or too much has been since."""
        cdef Session session
        cdef Header *header
        cdef Move *move
        cdef uint64_t number, moves
        place, dot, created = tag.partition(".")
        try:
            number = int(place, 16)
            if not dot or number >= self.sessions_max or load_seq_cst_64(&self.places[number].state) != SESSION_LIVE:
                return None
            header = self.body(<uint32_t>number)
            if header.created_ms != <uint64_t>int(created, 16) or header.key != key or not header.large:
                return None
        except (ValueError, OverflowError):
            return None
        session = Session.__new__(Session)
        session.sessions, session.number, session.header, session.place = self, <uint32_t>number, header, &self.places[number]
        moves = load_relaxed_64(&header.moves)
        rows = [(name, epoch, seq, flags) for name, epoch, seq, flags in session.rows()]
        if at > moves or moves - at > SESSION_HISTORY:
            return None
        while moves > at:
            move = <Move *>(<uint8_t *>header + SESSION_HISTORY_AT) + (moves - 1) % SESSION_HISTORY
            if move.number != moves or move.row >= <uint32_t>len(rows):
                return None
            name, _, _, flags = rows[move.row]
            rows[move.row] = (name, move.epoch, move.seq, flags)
            moves -= 1
        return [(name, epoch, seq) for name, epoch, seq, flags in rows if not flags & ROW_PATTERN]

    # ---- streams

    def ask(self, uint32_t number):
        """Ask the worker that streams a session to end the stream; return its ring slot, None: no stream is open."""
        cdef uint64_t owner
        if number >= self.sessions_max:
            raise IndexError(number)
        store_seq_cst_64(&self.body(number).asked, 1)
        owner = load_seq_cst_64(&self.places[number].lease) & 0xFFFF
        if owner == 0:
            return None
        self.poke(<uint32_t>(owner - 1))
        return owner - 1

    cdef void poke(self, uint32_t ring) noexcept:
        store_seq_cst_64(&self.lines[ring].poke, 1)
        if self.shared.r.rings[ring].bell_fd >= 0:
            ring_bell(self.shared.r.rings[ring].bell_fd)

    def open(self, str wid not None, uint32_t ring, uint64_t now_ms):
        """Take the lease of a session, from whoever has it; return a Session, or None when it has gone meanwhile."""
        cdef Session session
        cdef Place *place
        cdef Header *header
        cdef uint64_t lease, owner
        number = self.find(wid)
        if number is None or ring >= self.shared.r.ring_slots:
            return None
        place = &self.places[<uint32_t>number]
        header = self.body(number)
        while True:
            lease = load_seq_cst_64(&place.lease)
            if cas_64(&place.lease, lease, ((lease >> 16) + 1) << 16 | (ring + 1)):
                break
        owner = lease & 0xFFFF
        store_relaxed_64(&place.touched_ms, now_ms)
        if self.find(wid) != number:
            cas_64(&place.lease, ((lease >> 16) + 1) << 16 | (ring + 1), ((lease >> 16) + 2) << 16)
            return None
        if owner:
            add_64(&self.lines[ring].taken_over, 1)
        session = Session.__new__(Session)
        session.sessions, session.number, session.header, session.place = self, number, header, place
        session.lease = ((lease >> 16) + 1) << 16 | (ring + 1)
        if owner and owner != ring + 1:
            session.wait()
            self.poke(<uint32_t>(owner - 1))
        store_seq_cst_64(&header.asked, 0)
        return session

    def poked(self, uint32_t ring):
        """Tell, once, that another worker has taken a session of this one over."""
        if ring >= RING_SLOTS_MAX or load_relaxed_64(&self.lines[ring].poke) == 0:
            return False
        store_seq_cst_64(&self.lines[ring].poke, 0)
        return True

    # ---- the end of sessions

    def sweep(self, uint64_t now_ms, uint64_t ttl_ms):
        """Remove the sessions that had no stream for longer than `ttl_ms`; return how many."""
        cdef Place *place
        cdef uint32_t number
        cdef int gone = 0
        for number in range(self.sessions_max):
            place = &self.places[number]
            if load_relaxed_64(&place.state) != SESSION_LIVE or load_relaxed_64(&place.lease) & 0xFFFF:
                continue
            if now_ms <= load_relaxed_64(&place.touched_ms) + ttl_ms or not cas_64(&place.state, SESSION_LIVE, SESSION_GOING):
                continue
            fence_seq_cst()
            if load_seq_cst_64(&place.lease) & 0xFFFF or now_ms <= load_relaxed_64(&place.touched_ms) + ttl_ms:
                store_seq_cst_64(&place.state, SESSION_LIVE)
                continue
            self.wipe(number)
            store_seq_cst_64(&place.state, SESSION_FREE)
            gone += 1
        return gone

    def bury(self, uint32_t ring, uint64_t now_ms):
        """Take what a dead worker held: its streams end, what it was making is given up. The arbiter's alone."""
        cdef Place *place
        cdef uint32_t number, n
        cdef uint64_t lease
        for number in range(self.sessions_max):
            place = &self.places[number]
            if load_seq_cst_64(&place.state) == (SESSION_MAKING | (<uint64_t>ring + 1) << 8):
                self.wipe(number)
                store_seq_cst_64(&place.state, SESSION_FREE)
            lease = load_seq_cst_64(&place.lease)
            if lease & 0xFFFF == ring + 1 and cas_64(&place.lease, lease, lease & ~<uint64_t>0xFFFF):
                store_relaxed_64(&place.touched_ms, now_ms)
            cas_64(&self.body(number).busy, ring + 1, 0)
        for n in range(1 + SESSION_KEYS_MAX):
            if self.conns[ring * (1 + SESSION_KEYS_MAX) + n]:
                store_seq_cst_32(&self.conns[ring * (1 + SESSION_KEYS_MAX) + n], 0)

    # ---- counting

    @property
    def live(self):
        cdef uint32_t number
        cdef int count = 0
        for number in range(self.sessions_max):
            count += load_relaxed_64(&self.places[number].state) == SESSION_LIVE
        return count

    @property
    def streams(self):
        """How many streams and sockets are open in all workers."""
        cdef uint64_t total = 0
        cdef uint32_t ring
        for ring in range(RING_SLOTS_MAX):
            total += load_seq_cst_32(&self.conns[ring * (1 + SESSION_KEYS_MAX)])
        return total

    def enter(self, uint32_t ring, int64_t key, uint64_t total_max, uint64_t key_max):
        """Count a stream in: 0; or 1, 2: there are `total_max` of all, `key_max` of this key, and nothing is counted. 0 is no limit."""
        cdef uint32_t *own
        cdef uint64_t total = 0, of_key = 0
        cdef uint32_t other
        if ring >= RING_SLOTS_MAX or key >= <int64_t>SESSION_KEYS_MAX:
            raise IndexError("ring slot or key")
        own = &self.conns[ring * (1 + SESSION_KEYS_MAX)]
        store_seq_cst_32(own, own[0] + 1)
        if key >= 0:
            store_seq_cst_32(&own[1 + key], own[1 + key] + 1)
        fence_seq_cst()
        for other in range(RING_SLOTS_MAX):
            total += load_seq_cst_32(&self.conns[other * (1 + SESSION_KEYS_MAX)])
            if key >= 0:
                of_key += load_seq_cst_32(&self.conns[other * (1 + SESSION_KEYS_MAX) + 1 + key])
        if (total_max == 0 or total <= total_max) and (key_max == 0 or of_key <= key_max):
            return 0
        self.leave(ring, key)
        return 1 if total_max and total > total_max else 2

    def leave(self, uint32_t ring, int64_t key):
        """Count a stream out."""
        cdef uint32_t *own
        if ring >= RING_SLOTS_MAX or key >= <int64_t>SESSION_KEYS_MAX:
            raise IndexError("ring slot or key")
        own = &self.conns[ring * (1 + SESSION_KEYS_MAX)]
        store_seq_cst_32(own, own[0] - 1)
        if key >= 0:
            store_seq_cst_32(&own[1 + key], own[1 + key] - 1)

    def counters(self):
        """Return the delivery counters of all workers together."""
        cdef uint32_t ring
        totals = dict.fromkeys(_LINE_WORDS, 0)
        for ring in range(RING_SLOTS_MAX):
            for place, name in enumerate(_LINE_WORDS):
                totals[name] += load_relaxed_64(<uint64_t *>&self.lines[ring] + <int>place)
        del totals["poke"]
        return totals


cdef class Session:
    """One session, held by the worker that has its lease."""

    def __init__(self):
        raise TypeError("use Sessions.open")

    cdef Row *first_row(self) noexcept nogil:
        return <Row *>(<uint8_t *>self.header + self.header.rows_at)

    cdef Row *last_row(self) noexcept nogil:
        return <Row *>(<uint8_t *>self.header + self.header.rows_end)

    cdef Row *append(self, const char *name, uint32_t name_bytes, uint64_t epoch, uint64_t seq, uint32_t flags) noexcept nogil:
        cdef Row *row = self.last_row()
        cdef uint32_t size = (64 + name_bytes + 7) & ~<uint32_t>7
        if self.header.rows >= SESSION_ROWS_MAX or self.header.rows_end + size > SESSION_HISTORY_AT or name_bytes > 255:
            return NULL
        row.epoch = row.first_epoch = row.safe_epoch = epoch
        row.seq = row.first_seq = row.safe_seq = seq
        row.flags = flags
        row.name_bytes = name_bytes
        row.bytes = size
        row.number = self.header.rows
        memcpy(row.name, name, name_bytes)
        self.header.rows_end += size
        self.header.rows += 1
        return row

    cdef bint wait(self) noexcept nogil:
        """Wait until nobody is inside; whoever has died there, or stands still for too long, does not count."""
        cdef uint64_t until_ns = clock_mono_ns() + OWNER_WAIT_NS
        cdef uint64_t holder
        while True:
            holder = load_seq_cst_64(&self.header.busy)
            if holder == 0:
                return True
            if load_seq_cst_64(&self.sessions.shared.r.rings[holder - 1].state) != <uint64_t>RING_LIVE or clock_mono_ns() >= until_ns:
                cas_64(&self.header.busy, holder, 0)
            sched_yield()

    cdef bint enter(self) noexcept nogil:
        cdef uint64_t own = self.lease & 0xFFFF
        while not cas_64(&self.header.busy, 0, own):
            if load_seq_cst_64(&self.place.lease) != self.lease:
                return False
            self.wait()
        if load_seq_cst_64(&self.place.lease) == self.lease:
            return True
        self.leave()
        return False

    cdef void leave(self) noexcept nogil:
        cas_64(&self.header.busy, self.lease & 0xFFFF, 0)

    cdef void check_large(self) noexcept nogil:
        # Ids that could grow beyond the limit become tokens, for good: each name stands twice in a map, with two numbers.
        cdef Row *row = self.first_row()
        cdef uint64_t size = 16
        while row < self.last_row():
            if not row.flags & ROW_PATTERN:
                size += 2 * <uint64_t>row.name_bytes + 32
            row = next_row(row)
        if size * 4 // 3 > <uint64_t>ID_BYTES_MAX:
            self.header.large = 1

    cdef void move(self, Row *row, uint64_t epoch, uint64_t seq) noexcept nogil:
        cdef Move *move
        if self.header.large:
            move = <Move *>(<uint8_t *>self.header + SESSION_HISTORY_AT) + self.header.moves % SESSION_HISTORY
            move.number = self.header.moves + 1
            move.epoch = row.epoch
            move.seq = row.seq
            move.row = row.number
            store_relaxed_64(&self.header.moves, self.header.moves + 1)
        row.epoch = epoch
        row.seq = seq

    # ---- Python's side

    @property
    def mine(self):
        return load_seq_cst_64(&self.place.lease) == self.lease

    @property
    def wanted(self):
        """Whether another stream asks for the session."""
        return load_seq_cst_64(&self.header.asked) != 0

    @property
    def options(self):
        return (<const char *>self.header)[HEADER_BYTES:HEADER_BYTES + self.header.options_bytes]

    @property
    def key(self):
        return self.header.key

    @property
    def large(self):
        return self.header.large != 0

    @property
    def moves(self):
        return self.header.moves

    @property
    def tag(self):
        """What a token says of the session it belongs to: no secret, no name."""
        return f"{self.number:x}.{self.header.created_ms:x}"

    def rows(self):
        """Return (name, epoch, seq, flags) of all rows."""
        cdef Row *row = self.first_row()
        found = []
        while row < self.last_row():
            found.append((row.name[:row.name_bytes], row.epoch, row.seq, row.flags))
            row = next_row(row)
        return found

    cdef void mark_safe(self) noexcept nogil:
        """The peer has everything that was sent."""
        cdef Row *row = self.first_row()
        while row < self.last_row():
            row.safe_epoch, row.safe_seq = row.epoch, row.seq
            row = next_row(row)

    def begin(self):
        """Note where this stream begins, after all rewinding."""
        self.mark_safe()

    def begin_again(self):
        """Go back to what the last stream's peer has certainly got: this client shows no id."""
        cdef Row *row = self.first_row()
        while row < self.last_row():
            if row.epoch != row.safe_epoch or row.seq != row.safe_seq:
                self.move(row, row.safe_epoch, row.safe_seq)
            row = next_row(row)

    def begin_first(self):
        """Go back to where the session began: this client would show an id if it had seen anything (`opening_id`)."""
        cdef Row *row = self.first_row()
        while row < self.last_row():
            if row.epoch != row.first_epoch or row.seq != row.first_seq:
                self.move(row, row.first_epoch, row.first_seq)
            row = next_row(row)

    def rewind(self, dict seqs not None, dict epochs, bint whole):
        """Go back to a cursor map, never forward (A §7.4): topics it does not name stay, or begin again when the map is `whole`."""
        cdef Row *row = self.first_row()
        while row < self.last_row():
            if not row.flags & ROW_PATTERN:
                name = row.name[:row.name_bytes].decode("ascii", "replace")
                if name in seqs:
                    epoch = epochs.get(name, row.epoch)
                    if epoch < row.epoch:
                        self.move(row, epoch, seqs[name])
                    elif epoch == row.epoch and seqs[name] < row.seq:
                        self.move(row, epoch, seqs[name])
                elif whole and row.flags & ROW_MEMBER:
                    self.move(row, row.first_epoch, row.first_seq)
            row = next_row(row)

    def rewind_to(self, uint64_t number):
        """Go back to the token `number`: exactly, or to the start when too much has been since."""
        cdef Move *moves = <Move *>(<uint8_t *>self.header + SESSION_HISTORY_AT)
        cdef Move *move
        cdef Row *row
        cdef uint64_t at = self.header.moves
        if not self.header.large or number >= at:
            return
        if at - number > SESSION_HISTORY:
            row = self.first_row()
            while row < self.last_row():
                self.move(row, row.first_epoch, row.first_seq)
                row = next_row(row)
            return
        places = {}
        row = self.first_row()
        while row < self.last_row():
            places[row.number] = <size_t>row
            row = next_row(row)
        while at > number:
            move = &moves[(at - 1) % SESSION_HISTORY]
            if move.number == at and move.row in places:
                row = <Row *><size_t>places[move.row]
                row.epoch, row.seq = move.epoch, move.seq
            at -= 1
        store_relaxed_64(&self.header.moves, number)

    def add(self, bytes name not None, uint64_t epoch, uint64_t seq, uint32_t flags):
        """Add a row; False: there is no more room."""
        if self.append(<const char *>name, len(name), epoch, seq, flags) == NULL:
            return False
        self.check_large()
        return True

    def touch(self, uint64_t now_ms):
        """Note that the stream lives."""
        store_relaxed_64(&self.place.touched_ms, now_ms)

    def close(self, uint64_t now_ms):
        """Give the lease back, unless it is another's by now."""
        store_relaxed_64(&self.place.touched_ms, now_ms)
        cas_64(&self.place.lease, self.lease, self.lease & ~<uint64_t>0xFFFF)
