"""All topic names in byte order (see order.pxd)."""

from libc.errno cimport ENOMEM
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcmp, memcpy, memmove

from topicsd._native.atomics cimport fence_acquire, fence_release, load_acquire_64, load_relaxed_64, store_relaxed_64, store_release_64
from topicsd._native.layout cimport NAME_BYTES_MAX, NO_SLOT, topic_slot
from topicsd._native.regions cimport Regions, Shared
from topicsd._native.table cimport slot_name

cdef extern from "sched.h" nogil:
    int sched_yield()

cdef enum:
    STEP_TRIES = 1000
    STEP_SPINS = 64
    STEP_NAMES = 32       # copied between two looks at the version

cdef struct Block:
    uint32_t count
    uint32_t reserved
    uint32_t slots[ORDER_BLOCK_SLOTS]

cdef struct Found:        # one name of a step
    uint32_t slot
    uint32_t name_bytes
    char name[256]

cdef struct Place:
    uint32_t number       # of the block, in the directory
    uint32_t at           # in the block


# ---- geometry ---------------------------------------------------------------------------------------------------------------


cdef inline OrderHeader *_header(const Regions *regions) noexcept nogil:
    return <OrderHeader *>regions.order


cdef inline uint32_t _blocks_max(const Regions *regions) noexcept nogil:
    return <uint32_t>((regions.order_bytes - ORDER_HEADER_BYTES) // (ORDER_BLOCK_BYTES + sizeof(uint32_t))) - 1


cdef inline uint32_t *_directory(const Regions *regions) noexcept nogil:
    return <uint32_t *>(regions.order + ORDER_HEADER_BYTES)


cdef inline Block *_block(const Regions *regions, uint32_t block) noexcept nogil:
    cdef uint64_t directory = (<uint64_t>_blocks_max(regions) * sizeof(uint32_t) + ORDER_BLOCK_BYTES - 1) & ~<uint64_t>(ORDER_BLOCK_BYTES - 1)
    return <Block *>(regions.order + ORDER_HEADER_BYTES + directory + <uint64_t>block * ORDER_BLOCK_BYTES)


cdef inline void _lock(Regions *regions) noexcept nogil:
    store_relaxed_64(&_header(regions).version, _header(regions).version + 1)
    fence_release()


cdef inline void _unlock(Regions *regions) noexcept nogil:
    store_release_64(&_header(regions).version, _header(regions).version + 1)


cdef inline const Block *_block_at(const Regions *regions, uint32_t number) noexcept nogil:
    """Block `number` of the directory, NULL when a torn read leads nowhere."""
    cdef uint32_t block
    if number >= _blocks_max(regions):
        return NULL
    block = _directory(regions)[number]
    return _block(regions, block) if block < _blocks_max(regions) else NULL


cdef inline int _compare(const Regions *regions, uint32_t slot, const char *name, uint32_t name_bytes) noexcept nogil:
    """Compare the slot's name with `name`: < 0, 0, > 0. A slot out of range is greater."""
    cdef const topic_slot *topic
    cdef uint32_t length
    cdef int order
    if slot >= regions.topics_max:
        return 1
    topic = &regions.table[slot]
    length = min(topic.name_bytes, NAME_BYTES_MAX)
    order = memcmp(slot_name(regions, topic, length), name, min(length, name_bytes))
    if order != 0:
        return order
    return (length > name_bytes) - (length < name_bytes)


cdef bint _find(const Regions *regions, const char *name, uint32_t name_bytes, Place *out) noexcept nogil:
    """Where the first name at or behind `name` stands, maybe one past the end of a block. False when a torn read leads nowhere."""
    cdef uint32_t low = 0, high = min(_header(regions).blocks, _blocks_max(regions)), middle, count
    cdef const Block *block
    while low < high:     # the last block that begins at or before `name`
        middle = low + (high - low) // 2
        block = _block_at(regions, middle)
        if block == NULL:
            return False
        if _compare(regions, block.slots[0], name, name_bytes) <= 0:
            low = middle + 1
        else:
            high = middle
    out.number = low - 1 if low else 0
    out.at = 0
    block = _block_at(regions, out.number)
    if block == NULL:
        return _header(regions).blocks == 0
    count = min(block.count, <uint32_t>ORDER_BLOCK_SLOTS)
    low, high = 0, count
    while low < high:
        middle = low + (high - low) // 2
        if _compare(regions, block.slots[middle], name, name_bytes) < 0:
            low = middle + 1
        else:
            high = middle
    out.at = low
    return True


# ---- readers ----------------------------------------------------------------------------------------------------------------


cdef uint32_t _collect(const Regions *regions, const char *after, uint32_t after_bytes, bint inclusive, uint32_t wanted, Found *out) noexcept nogil:
    """Copy up to `wanted` names from the place on; NO_SLOT when a torn read leads nowhere."""
    cdef Place place
    cdef const Block *block
    cdef const topic_slot *topic
    cdef uint32_t found = 0, slot
    if not _find(regions, after, after_bytes, &place):
        return NO_SLOT
    while found < wanted and place.number < _header(regions).blocks:
        block = _block_at(regions, place.number)
        if block == NULL or block.count > ORDER_BLOCK_SLOTS:
            return NO_SLOT
        if place.at >= block.count:
            place.number += 1
            place.at = 0
            continue
        slot = block.slots[place.at]
        place.at += 1
        if slot >= regions.topics_max:
            return NO_SLOT
        if not inclusive and _compare(regions, slot, after, after_bytes) == 0:
            continue
        topic = &regions.table[slot]
        out[found].slot = slot
        out[found].name_bytes = min(topic.name_bytes, NAME_BYTES_MAX)
        memcpy(out[found].name, slot_name(regions, topic, out[found].name_bytes), out[found].name_bytes)
        found += 1
    return found


cdef int _step(const Regions *regions, const char *after, uint32_t after_bytes, bint inclusive, uint32_t wanted, Found *out) noexcept nogil:
    """Return how many names of one instant were copied, -1 when the writer was in the way all the time."""
    cdef const uint64_t *word = &_header(regions).version
    cdef uint64_t version
    cdef uint32_t found
    cdef int tries
    for tries in range(STEP_TRIES):
        version = load_acquire_64(word)
        if version & 1 == 0:
            found = _collect(regions, after, after_bytes, inclusive, wanted, out)
            fence_acquire()
            if load_relaxed_64(word) == version and found != NO_SLOT:
                return <int>found
        if tries >= STEP_SPINS:
            sched_yield()
    return -1


cdef uint32_t order_next(const Regions *regions, const char *after, uint32_t after_bytes, bint inclusive) noexcept nogil:
    cdef Found found
    return found.slot if _step(regions, after, after_bytes, inclusive, 1, &found) == 1 else NO_SLOT


# ---- the writer -------------------------------------------------------------------------------------------------------------


cdef uint32_t _take_block(Regions *regions) noexcept nogil:
    cdef OrderHeader *header = _header(regions)
    cdef uint32_t block = header.free_block
    if block != 0:
        header.free_block = _block(regions, block - 1).count
        return block - 1
    if header.blocks_high >= _blocks_max(regions):
        return NO_SLOT
    header.blocks_high += 1
    return header.blocks_high - 1


cdef void _give_block(Regions *regions, uint32_t number) noexcept nogil:
    """Take block `number` out of the directory. Inside the lock."""
    cdef OrderHeader *header = _header(regions)
    cdef uint32_t *directory = _directory(regions)
    cdef uint32_t block = directory[number]
    memmove(directory + number, directory + number + 1, (header.blocks - number - 1) * sizeof(uint32_t))
    header.blocks -= 1
    _block(regions, block).count = header.free_block
    header.free_block = block + 1


cdef int _split(Regions *regions, uint32_t number) noexcept nogil:
    """Move the upper half of block `number` to a new block behind it. Inside the lock."""
    cdef OrderHeader *header = _header(regions)
    cdef uint32_t *directory = _directory(regions)
    cdef uint32_t fresh = _take_block(regions), half = ORDER_BLOCK_SLOTS // 2
    cdef Block *old = _block(regions, directory[number])
    if fresh == NO_SLOT:
        return -ENOMEM
    memcpy(_block(regions, fresh).slots, old.slots + half, (ORDER_BLOCK_SLOTS - half) * sizeof(uint32_t))
    _block(regions, fresh).count = ORDER_BLOCK_SLOTS - half
    old.count = half
    memmove(directory + number + 2, directory + number + 1, (header.blocks - number - 1) * sizeof(uint32_t))
    directory[number + 1] = fresh
    header.blocks += 1
    return 0


cdef int _insert(Regions *regions, uint32_t slot) noexcept nogil:
    cdef OrderHeader *header = _header(regions)
    cdef const topic_slot *topic = &regions.table[slot]
    cdef Place place
    cdef Block *block
    cdef uint32_t fresh
    if header.blocks == 0:
        fresh = _take_block(regions)
        if fresh == NO_SLOT:
            return -ENOMEM
        _block(regions, fresh).count = 0
        _directory(regions)[0] = fresh
        header.blocks = 1
        place.number = place.at = 0
    else:
        _find(regions, slot_name(regions, topic, topic.name_bytes), topic.name_bytes, &place)
    block = _block(regions, _directory(regions)[place.number])
    if block.count == ORDER_BLOCK_SLOTS:
        if _split(regions, place.number) != 0:
            return -ENOMEM
        if place.at > block.count:
            place.at -= block.count
            place.number += 1
            block = _block(regions, _directory(regions)[place.number])
    memmove(block.slots + place.at + 1, block.slots + place.at, (block.count - place.at) * sizeof(uint32_t))
    block.slots[place.at] = slot
    block.count += 1
    header.names += 1
    return 0


cdef int order_insert(Regions *regions, uint32_t slot) noexcept nogil:
    cdef int failure
    _lock(regions)
    failure = _insert(regions, slot)
    _unlock(regions)
    return failure


cdef void _join(Regions *regions, uint32_t number) noexcept nogil:
    """Make one block of `number` and the next, if they are small enough. Inside the lock."""
    cdef Block *left
    cdef Block *right
    if number + 1 >= _header(regions).blocks:
        return
    left = _block(regions, _directory(regions)[number])
    right = _block(regions, _directory(regions)[number + 1])
    if left.count + right.count > ORDER_FILL:
        return
    memcpy(left.slots + left.count, right.slots, right.count * sizeof(uint32_t))
    left.count += right.count
    _give_block(regions, number + 1)


cdef void order_remove(Regions *regions, uint32_t slot) noexcept nogil:
    cdef const topic_slot *topic = &regions.table[slot]
    cdef Place place
    cdef Block *block
    if _header(regions).blocks == 0 or not _find(regions, slot_name(regions, topic, topic.name_bytes), topic.name_bytes, &place):
        return
    block = _block(regions, _directory(regions)[place.number])
    if place.at >= block.count or block.slots[place.at] != slot:
        return
    _lock(regions)
    block.count -= 1
    memmove(block.slots + place.at, block.slots + place.at + 1, (block.count - place.at) * sizeof(uint32_t))
    _header(regions).names -= 1
    if block.count == 0:
        _give_block(regions, place.number)
    else:
        _join(regions, place.number)
        if place.number > 0:
            _join(regions, place.number - 1)
    _unlock(regions)


cdef void order_reset(Regions *regions) noexcept nogil:
    cdef OrderHeader *header = _header(regions)
    if header.version & 1 == 0:      # a dead writer may have left it odd
        _lock(regions)
    header.blocks = 0
    header.blocks_high = 0
    header.free_block = 0
    header.names = 0
    _unlock(regions)


# ---- building ---------------------------------------------------------------------------------------------------------------


cdef struct Key:          # sorted eight bytes of the name at a time: names that begin alike are not looked at once a comparison
    uint64_t part
    uint32_t slot, left   # bytes of the name from this part on


cdef inline void _take_part(const Regions *regions, Key *key, uint32_t depth) noexcept nogil:
    """Show the name's bytes depth .. depth + 7 as a number that sorts as they do; behind the end are zeroes."""
    cdef const topic_slot *topic = &regions.table[key.slot]
    cdef const uint8_t *name = <const uint8_t *>slot_name(regions, topic, topic.name_bytes)
    cdef uint32_t number
    key.part = 0
    key.left = topic.name_bytes - depth if topic.name_bytes > depth else 0
    for number in range(8):
        key.part = key.part << 8 | (name[depth + number] if number < key.left else 0)


cdef int _compare_parts(const void *left, const void *right) noexcept nogil:
    cdef const Key *a = <const Key *>left
    cdef const Key *b = <const Key *>right
    if a.part != b.part:
        return -1 if a.part < b.part else 1
    return (a.left > b.left) - (a.left < b.left)    # of two that end here, zeroes and all, the shorter


cdef bint _sorted(const Key *keys, uint64_t count) noexcept nogil:
    cdef uint64_t number
    for number in range(1, count):
        if _compare_parts(&keys[number - 1], &keys[number]) > 0:
            return False
    return True


cdef void _sort(const Regions *regions, Key *keys, uint64_t count, uint32_t depth) noexcept nogil:
    """Sort keys whose names agree in front of `depth`; at most 32 calls deep."""
    cdef uint64_t first = 0, end, number
    for number in range(count):
        _take_part(regions, &keys[number], depth)
    if not _sorted(keys, count):
        qsort(keys, count, sizeof(Key), _compare_parts)
    while first < count:
        end = first + 1
        while end < count and keys[end].part == keys[first].part:
            end += 1
        while first < end and keys[first].left <= 8:    # its name ends in this part
            first += 1
        if end - first > 1:
            _sort(regions, keys + first, end - first, depth + 8)
        first = end


cdef int order_build(Regions *regions) noexcept nogil:
    cdef OrderHeader *header = _header(regions)
    cdef uint64_t high = regions.control.table_high, slot, count = 0, number
    cdef Key *keys = <Key *>malloc((high + 1) * sizeof(Key))
    cdef Block *block = NULL
    if keys == NULL:
        return -ENOMEM
    for slot in range(high):
        if regions.table[slot].topic_id != 0:
            keys[count].slot = <uint32_t>slot
            count += 1
    _sort(regions, keys, count, 0)
    order_reset(regions)
    _lock(regions)
    for number in range(count):
        if number % ORDER_FILL == 0:
            _directory(regions)[header.blocks] = header.blocks_high
            block = _block(regions, header.blocks_high)
            block.count = 0
            header.blocks += 1
            header.blocks_high += 1
        block.slots[block.count] = keys[number].slot
        block.count += 1
    header.names = <uint32_t>count
    _unlock(regions)
    free(keys)
    return 0


# ---- the Python face --------------------------------------------------------------------------------------------------------


class OrderBusy(RuntimeError):
    """The writer was changing the order all the time, or died while it did."""


cdef class Order:
    """All topic names in byte order. `insert`, `remove`, `build` and `reset` are the writer's alone."""

    cdef readonly Shared shared

    def __init__(self, Shared shared not None):
        self.shared = shared

    def page(self, bytes prefix not None, bytes after, uint32_t limit):
        cdef Found found[STEP_NAMES]
        cdef bytes name = prefix if after is None or after < prefix else after
        cdef bint inclusive = name is not after
        cdef list out = []
        cdef int count, number
        while <uint32_t>len(out) < limit:
            count = _step(&self.shared.r, name, <uint32_t>len(name), inclusive, min(limit - <uint32_t>len(out), <uint32_t>STEP_NAMES), found)
            if count < 0:
                raise OrderBusy("the list of topics is being changed")
            for number in range(count):
                name = found[number].name[:found[number].name_bytes]
                if not name.startswith(prefix):
                    return out
                out.append((found[number].slot, name))
            if count == 0:
                break
            inclusive = False
        return out

    def next(self, bytes after not None, bint inclusive=False):
        cdef uint32_t slot = order_next(&self.shared.r, after, <uint32_t>len(after), inclusive)
        return None if slot == NO_SLOT else slot

    def __len__(self):
        return _header(&self.shared.r).names

    def insert(self, uint32_t slot):
        if slot >= self.shared.r.topics_max or self.shared.r.table[slot].topic_id == 0:
            raise ValueError(f"slot {slot} holds no topic")
        if order_insert(&self.shared.r, slot) != 0:
            raise MemoryError("the order region is full")

    def remove(self, uint32_t slot):
        if slot >= self.shared.r.topics_max:
            raise ValueError(f"slot {slot} holds no topic")
        order_remove(&self.shared.r, slot)

    def build(self):
        if order_build(&self.shared.r) != 0:
            raise MemoryError

    def reset(self):
        order_reset(&self.shared.r)

    def blocks(self):
        """Return how many names each block holds, in order."""
        return [_block(&self.shared.r, _directory(&self.shared.r)[number]).count for number in range(_header(&self.shared.r).blocks)]
