"""The shared regions and their accessors for Python: made by the arbiter before any fork (see regions.pxd)."""

from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport strerror

from topicsd._native.atomics cimport (
    add_32, add_64, cas_64, clock_wall_ms, fence_seq_cst, futex_wake, load_acquire_32, load_acquire_64, store_release_32, store_release_64)
from topicsd._native.layout cimport (
    COMPLETION_DATA_BYTES, CONTROL_MAGIC, LOG_FILES_MAX, RING_DATA_BYTES, RING_SLOTS_MAX, SEGMENT_FILES_MAX, SHARDS_MAX, TOPICS_HARD_MAX,
    control, log_file_row, segment_file, shard_line, topic_slot, worker_line)

cdef extern from "ring.h" nogil:
    void *map_sparse(uint64_t bytes, int in_dumps)
    void *map_twice(uint64_t bytes)
    int make_bell()

cdef extern from "sys/mman.h" nogil:
    int munmap(void *at, size_t bytes)

cdef extern from "unistd.h" nogil:
    int close(int fd)

CONTROL_VERSION = 1
EPHEMERAL_SPREAD = 16            # chunks of different sizes never merge: each of the 16 size classes may hold the whole budget
EPHEMERAL_REGION_BYTES_MAX = 1 << 44    # of the 2**47 that a process can address
ORDER_BYTES_A_TOPIC = 32
ORDER_BYTES_MIN = 1 << 20
SPILL_BYTES_A_BODY_BYTE = 3      # {"data":1}, is 11 bytes and its entry 24
SPILL_BYTES_BESIDE = 16 << 20    # the batch's node, repeated in every record
SPILL_SLOT_BYTES_MAX = (1 << 32) - (1 << 16)

_CONTROL_WORDS = (
    "generation ready draining degraded replay_permille started_ms topics_max topics records_live bytes_live topics_by_class.0 "
    "topics_by_class.1 topics_by_class.2 topics_by_class.3 queue_topics routers table_high names_version ephemeral_bytes writer_pid "
    "keeper_pid arbiter_pid pressure sse_connections watch_sessions").split()
_SHARD_WORDS = (
    "written synced read_only files frames batches fsyncs bytes_written rotations pending pending_peak submit_full fsync_us_sum "
    "fsync_us_count").split()
_WORKER_WORDS = (
    "pid incarnation requests native_requests bytes_in bytes_out records_in records_out inflight connections long_polls throttled "
    "errors_5xx native_append native_diff native_state maps_swept native_claim native_ack native_nack native_extend").split()


cdef void *mapped(uint64_t size, bint in_dumps, bint twice) except NULL:
    cdef void *at = map_twice(size) if twice else map_sparse(size, in_dumps)
    if at == NULL:
        raise OSError(errno, f"cannot map {size} bytes of shared memory: {strerror(errno).decode()}")
    return at


cdef void unmapped(void *at, uint64_t size) noexcept:
    if at != NULL:
        munmap(at, size)


cdef void wake_writer(Regions *regions) noexcept nogil:
    add_32(&regions.control.writer_bell, 1)
    futex_wake(&regions.control.writer_bell, 1)


cdef class Shared:
    """Hold the shared regions of one server."""

    def __init__(self):
        raise TypeError("use Shared.create")

    @staticmethod
    def create(uint64_t topics_max=0, uint64_t index_bytes=64 << 30, uint64_t ephemeral_bytes=1 << 30, uint64_t body_bytes_max=16 << 20,
               uint32_t ring_slots=4):
        cdef Shared shared = Shared.__new__(Shared)
        if topics_max > TOPICS_HARD_MAX:
            raise ValueError(f"topics_max: {topics_max}, at most {TOPICS_HARD_MAX}")
        if not 1 <= ring_slots <= RING_SLOTS_MAX:
            raise ValueError(f"ring_slots: {ring_slots}, must be 1 to {RING_SLOTS_MAX}")
        shared.r.topics_max = topics_max or TOPICS_HARD_MAX
        shared.r.ring_slots = ring_slots
        shared.lay(index_bytes, ephemeral_bytes, body_bytes_max)
        shared.lay_rings()
        shared.name_fields()
        return shared

    cdef int lay(self, uint64_t index_bytes, uint64_t ephemeral_bytes, uint64_t body_bytes_max) except -1:
        cdef Regions *r = &self.r
        r.control = <control *>mapped(sizeof(control), True, False)
        r.table = <topic_slot *>mapped(r.topics_max * sizeof(topic_slot), True, False)
        r.names_mask = 1
        while r.names_mask < r.topics_max:
            r.names_mask *= 2
        r.names_mask = 2 * r.names_mask - 1
        r.names = <uint64_t *>mapped((r.names_mask + 1) * 8, False, False)
        r.index_bytes = max(index_bytes, <uint64_t>(1 << 20)) & ~<uint64_t>4095
        r.index = <uint8_t *>mapped(r.index_bytes, False, False)
        r.order_bytes = max(r.topics_max * <uint64_t>ORDER_BYTES_A_TOPIC, <uint64_t>ORDER_BYTES_MIN)
        r.order = <uint8_t *>mapped(r.order_bytes, False, False)
        r.files = <log_file_row *>mapped(<uint64_t>SHARDS_MAX * LOG_FILES_MAX * sizeof(log_file_row), False, False)
        r.segment_files = <segment_file *>mapped(<uint64_t>SEGMENT_FILES_MAX * sizeof(segment_file), False, False)
        r.ephemeral_bytes = max((ephemeral_bytes + 4095) & ~<uint64_t>4095, <uint64_t>(1 << 20))
        r.ephemeral_bytes = max(r.ephemeral_bytes, min(r.ephemeral_bytes * <uint64_t>EPHEMERAL_SPREAD, <uint64_t>EPHEMERAL_REGION_BYTES_MAX))
        r.ephemeral = <uint8_t *>mapped(r.ephemeral_bytes, False, False)
        r.spill_slots = SPILL_SLOTS
        r.spill_slot_bytes = min(body_bytes_max * SPILL_BYTES_A_BODY_BYTE + SPILL_BYTES_BESIDE, SPILL_SLOT_BYTES_MAX) & ~4095
        r.spill = <uint8_t *>mapped(r.spill_slots * r.spill_slot_bytes, False, False)
        r.spill_owner = <uint64_t *>mapped(r.spill_slots * 8, True, False)
        r.inflight = <uint32_t *>mapped(<uint64_t>RING_SLOTS_MAX * INFLIGHT_KEYS_MAX * 4, False, False)
        r.rings = <RingMemory *>mapped(<uint64_t>RING_SLOTS_MAX * sizeof(RingMemory), False, False)
        r.control.magic = CONTROL_MAGIC
        r.control.version = CONTROL_VERSION
        r.control.topics_max = r.topics_max
        r.control.started_ms = clock_wall_ms()
        return 0

    cdef int lay_rings(self) except -1:
        cdef Regions *r = &self.r
        cdef RingMemory *ring
        cdef uint32_t number
        for number in range(RING_SLOTS_MAX):
            r.rings[number].number = number
            r.rings[number].bell_fd = -1
        for number in range(r.ring_slots):
            ring = &r.rings[number]
            ring.control = r.control
            ring.data = <uint8_t *>mapped(RING_DATA_BYTES, False, True)
            ring.completion_data = <uint8_t *>mapped(COMPLETION_DATA_BYTES, False, True)
            ring.spill = r.spill
            ring.spill_slot_bytes = r.spill_slot_bytes
            ring.spill_owner = r.spill_owner
            ring.spill_slots = r.spill_slots
            ring.bell_fd = make_bell()
            if ring.bell_fd < 0:
                raise OSError(errno, f"cannot make an eventfd: {strerror(errno).decode()}")
        return 0

    cdef int name_fields(self) except -1:
        cdef control *c = self.r.control
        cdef shard_line *s = &c.shards[0]
        cdef worker_line *w = &c.workers[0]
        # The words of each struct in the order of layout.h; test_layout holds the names to it.
        cdef list at = [
            <size_t>&c.generation, <size_t>&c.ready, <size_t>&c.draining, <size_t>&c.degraded, <size_t>&c.replay_permille,
            <size_t>&c.started_ms, <size_t>&c.topics_max, <size_t>&c.topics, <size_t>&c.records_live, <size_t>&c.bytes_live,
            <size_t>&c.topics_by_class[0], <size_t>&c.topics_by_class[1], <size_t>&c.topics_by_class[2], <size_t>&c.topics_by_class[3],
            <size_t>&c.queue_topics, <size_t>&c.routers, <size_t>&c.table_high, <size_t>&c.names_version, <size_t>&c.ephemeral_bytes,
            <size_t>&c.writer_pid, <size_t>&c.keeper_pid, <size_t>&c.arbiter_pid, <size_t>&c.pressure, <size_t>&c.sse_connections,
            <size_t>&c.watch_sessions]
        self.fields = {name: address - <size_t>c for name, address in zip(_CONTROL_WORDS, at, strict=True)}
        self.fields["recovered_records"] = <size_t>&c.recovered_records - <size_t>c
        self.fields["recovered_ms"] = <size_t>&c.recovered_ms - <size_t>c
        self.fields["files_retired"] = <size_t>&c.files_retired - <size_t>c
        self.fields["damage_met"] = <size_t>&c.damage_met - <size_t>c
        self.fields["log_damage_met"] = <size_t>&c.log_damage_met - <size_t>c
        self.fields["records_unreadable"] = <size_t>&c.records_unreadable - <size_t>c
        self.fields["bytes_unreadable"] = <size_t>&c.bytes_unreadable - <size_t>c
        self.fields["segments"] = <size_t>&c.segments - <size_t>c
        self.fields["segments_bytes"] = <size_t>&c.segments_bytes - <size_t>c
        self.shard_fields = {name: 8 * n for n, name in enumerate(_SHARD_WORDS)}
        self.shard_fields["quarantined"] = <size_t>&s.quarantined - <size_t>s
        self.shard_fields["direct_bytes"] = <size_t>&s.direct_bytes - <size_t>s
        self.worker_fields = {name: 8 * n for n, name in enumerate(_WORKER_WORDS)}
        assert self.shard_fields["fsync_us_count"] == <size_t>&s.fsync_us_count - <size_t>s
        assert self.worker_fields["native_extend"] == <size_t>&w.native_extend - <size_t>w
        return 0

    def __dealloc__(self):
        cdef Regions *r = &self.r
        cdef uint32_t number
        if r.rings != NULL:
            for number in range(r.ring_slots):
                unmapped(r.rings[number].data, 2 * <uint64_t>RING_DATA_BYTES)
                unmapped(r.rings[number].completion_data, 2 * <uint64_t>COMPLETION_DATA_BYTES)
                if r.rings[number].data != NULL and r.rings[number].bell_fd >= 0:
                    close(r.rings[number].bell_fd)
        unmapped(r.rings, <uint64_t>RING_SLOTS_MAX * sizeof(RingMemory))
        unmapped(r.inflight, <uint64_t>RING_SLOTS_MAX * INFLIGHT_KEYS_MAX * 4)
        unmapped(r.spill_owner, r.spill_slots * 8)
        unmapped(r.spill, r.spill_slots * r.spill_slot_bytes)
        unmapped(r.ephemeral, r.ephemeral_bytes)
        unmapped(r.files, <uint64_t>SHARDS_MAX * LOG_FILES_MAX * sizeof(log_file_row))
        unmapped(r.segment_files, <uint64_t>SEGMENT_FILES_MAX * sizeof(segment_file))
        unmapped(r.order, r.order_bytes)
        unmapped(r.index, r.index_bytes)
        unmapped(r.names, (r.names_mask + 1) * 8)
        unmapped(r.table, r.topics_max * sizeof(topic_slot))
        unmapped(r.control, sizeof(control))

    # ---- words of struct control

    cdef uint64_t *field(self, str name) except NULL:
        return <uint64_t *>(<uint8_t *>self.r.control + <size_t>self.fields[name])

    def get(self, str name):
        return load_acquire_64(self.field(name))

    def set(self, str name, uint64_t value):
        store_release_64(self.field(name), value)

    def add(self, str name, int64_t value):
        return add_64(self.field(name), <uint64_t>value) + <uint64_t>value

    @property
    def generation(self):
        return load_acquire_64(&self.r.control.generation)

    @property
    def ready(self):
        return load_acquire_64(&self.r.control.ready) != 0

    @ready.setter
    def ready(self, bint value):
        store_release_64(&self.r.control.ready, value)

    @property
    def draining(self):
        return load_acquire_64(&self.r.control.draining) != 0

    @draining.setter
    def draining(self, bint value):
        store_release_64(&self.r.control.draining, value)

    @property
    def writer_pid(self):
        return load_acquire_64(&self.r.control.writer_pid)

    @writer_pid.setter
    def writer_pid(self, uint64_t value):
        store_release_64(&self.r.control.writer_pid, value)

    @property
    def topics_by_class(self):
        return tuple(load_acquire_64(&self.r.control.topics_by_class[n]) for n in range(4))

    @property
    def topics_max(self):
        return self.r.topics_max

    @property
    def ring_slots(self):
        return self.r.ring_slots

    def shard(self, uint32_t number):
        if number >= SHARDS_MAX:
            raise IndexError(f"shard {number}, at most {SHARDS_MAX - 1}")
        cdef shard_line *line = &self.r.control.shards[number]
        values = {name: load_acquire_64(<uint64_t *>(<uint8_t *>line + <size_t>offset)) for name, offset in self.shard_fields.items()}
        values["fsync_bucket"] = [load_acquire_64(&line.fsync_bucket[n]) for n in range(sizeof(line.fsync_bucket) // 8)]
        return values

    # ---- worker lines

    cdef uint64_t *worker_field(self, uint32_t number, str name) except NULL:
        if number >= self.r.ring_slots:
            raise IndexError(f"ring slot {number}, at most {self.r.ring_slots - 1}")
        return <uint64_t *>(<uint8_t *>&self.r.control.workers[number] + <size_t>self.worker_fields[name])

    def worker(self, uint32_t number):
        return {name: load_acquire_64(self.worker_field(number, name)) for name in self.worker_fields}

    def set_worker(self, uint32_t number, str name, uint64_t value):
        store_release_64(self.worker_field(number, name), value)

    def add_worker(self, uint32_t number, str name, int64_t value=1):
        add_64(self.worker_field(number, name), <uint64_t>value)

    # ---- ring slots: the arbiter's half of the handshake (ring.pxd)

    def ring_state(self, uint32_t number):
        self.worker_field(number, "pid")
        return ("free", "live", "dead")[load_acquire_64(&self.r.rings[number].state)]

    def assign_ring(self):
        cdef uint32_t number
        for number in range(self.r.ring_slots):
            if cas_64(&self.r.rings[number].state, RING_FREE, RING_LIVE):
                add_64(&self.r.control.workers[number].incarnation, 1)
                return number
        return None

    def bury_ring(self, uint32_t number):
        cdef uint32_t key
        store_release_64(self.worker_field(number, "pid"), 0)
        for name in ("inflight", "connections", "long_polls"):
            self.set_worker(number, name, 0)
        for key in range(INFLIGHT_KEYS_MAX):
            if load_acquire_32(&self.r.inflight[number * INFLIGHT_KEYS_MAX + key]):
                store_release_32(&self.r.inflight[number * INFLIGHT_KEYS_MAX + key], 0)
        if not cas_64(&self.r.rings[number].state, RING_LIVE, RING_DEAD):
            raise ValueError(f"ring slot {number} is {self.ring_state(number)}, not live")
        wake_writer(&self.r)

    def bell_fd(self, uint32_t number):
        self.worker_field(number, "pid")
        return self.r.rings[number].bell_fd

    def wake_writer(self):
        wake_writer(&self.r)

    # ---- requests in flight of an API key

    def inflight_enter(self, uint32_t number, uint32_t key, uint64_t limit):
        cdef uint32_t other
        cdef uint64_t total = 0
        self.worker_field(number, "pid")
        if key >= INFLIGHT_KEYS_MAX:
            raise IndexError(f"key {key}, at most {INFLIGHT_KEYS_MAX - 1}")
        add_32(&self.r.inflight[number * INFLIGHT_KEYS_MAX + key], 1)
        fence_seq_cst()
        for other in range(self.r.ring_slots):
            total += load_acquire_32(&self.r.inflight[other * INFLIGHT_KEYS_MAX + key])
        if total <= limit:
            return True
        add_32(&self.r.inflight[number * INFLIGHT_KEYS_MAX + key], <uint32_t>-1)
        return False

    def inflight_leave(self, uint32_t number, uint32_t key):
        self.worker_field(number, "pid")
        if key >= INFLIGHT_KEYS_MAX:
            raise IndexError(f"key {key}, at most {INFLIGHT_KEYS_MAX - 1}")
        add_32(&self.r.inflight[number * INFLIGHT_KEYS_MAX + key], <uint32_t>-1)
