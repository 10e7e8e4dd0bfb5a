"""A topic's tag index (see tags.pxd)."""

from libc.errno cimport ENOMEM
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

cdef extern from *:
    """
    static inline unsigned highest_bit(unsigned x) { return 1u << (31 - __builtin_clz(x)); }
    """
    unsigned int highest_bit(unsigned int x) noexcept nogil

cdef enum:
    CHUNK_FIRST = 2
    CHUNK_MAX = 256
    POOL_FIRST = 4
    POOL_MAX = 1024
    ENDED = 0x100      # set where a tag still has a byte
    LEAVES_A_SEQ = 2   # looked at for each seq that the floor passes


# ---- the tree ---------------------------------------------------------------------------------------------------------------


cdef inline bint _is_node(uintptr_t link) noexcept nogil:
    return link & 1


cdef inline TagNode *_node(uintptr_t link) noexcept nogil:
    return <TagNode *>(link & ~<uintptr_t>1)


cdef inline TagLeaf *_leaf(uintptr_t link) noexcept nogil:
    return <TagLeaf *>link


cdef inline uint32_t _symbol(const uint8_t *tag, uint32_t tag_bytes, uint32_t at) noexcept nogil:
    """Byte `at` with a ninth bit on top, 0 behind the end: so a tag sorts before all that it begins."""
    return ENDED | tag[at] if at < tag_bytes else 0


cdef inline int _side(const TagNode *node, const uint8_t *tag, uint32_t tag_bytes) noexcept nogil:
    return _symbol(tag, tag_bytes, node.byte) & node.mask != 0


cdef TagLeaf *_closest(const Tags *tags, const uint8_t *tag, uint32_t tag_bytes) noexcept nogil:
    """The leaf that `tag` must be if it is there; NULL in an empty tree."""
    cdef uintptr_t link = tags.root
    while _is_node(link):
        link = _node(link).child[_side(_node(link), tag, tag_bytes)]
    return _leaf(link)


cdef TagLeaf *_edge(uintptr_t link, int side) noexcept nogil:
    """The first (side 0) or last (side 1) leaf below a link."""
    while _is_node(link):
        link = _node(link).child[side]
    return _leaf(link)


cdef inline bint _is_tag(const TagLeaf *leaf, const uint8_t *tag, uint32_t tag_bytes) noexcept nogil:
    return leaf != NULL and leaf.tag_bytes == tag_bytes and memcmp(leaf.tag, tag, tag_bytes) == 0


cdef TagNode *_take_node(Tags *tags) noexcept nogil:
    cdef TagPool *pool
    cdef TagNode *node
    cdef uint32_t number
    cdef uint64_t size
    if tags.free_node == NULL:
        size = sizeof(TagPool) + (tags.pool_nodes - 1) * sizeof(TagNode)
        pool = <TagPool *>malloc(size)
        if pool == NULL:
            return NULL
        tags.memory += size
        pool.next = tags.pools
        tags.pools = pool
        for number in range(tags.pool_nodes):
            pool.nodes[number].child[0] = <uintptr_t>tags.free_node
            tags.free_node = &pool.nodes[number]
        tags.pool_nodes = min(tags.pool_nodes * 2, <uint32_t>POOL_MAX)
    node = tags.free_node
    tags.free_node = <TagNode *>node.child[0]
    return node


cdef inline uint64_t _leaf_bytes(uint32_t tag_bytes) noexcept nogil:
    return sizeof(TagLeaf) + (tag_bytes - 4 if tag_bytes > 4 else 0)


cdef TagLeaf *_make_leaf(Tags *tags, const uint8_t *tag, uint32_t tag_bytes) noexcept nogil:
    cdef TagLeaf *leaf = <TagLeaf *>calloc(1, _leaf_bytes(tag_bytes))
    if leaf == NULL:
        return NULL
    leaf.tag_bytes = tag_bytes
    memcpy(leaf.tag, tag, tag_bytes)
    tags.memory += _leaf_bytes(tag_bytes)
    tags.leaves += 1
    return leaf


cdef void _link_leaf(Tags *tags, TagLeaf *leaf, TagLeaf *before, TagLeaf *after) noexcept nogil:
    leaf.previous = before
    leaf.next = after
    if before != NULL:
        before.next = leaf
    else:
        tags.first = leaf
    if after != NULL:
        after.previous = leaf


cdef TagLeaf *_insert(Tags *tags, const TagLeaf *closest, const uint8_t *tag, uint32_t tag_bytes) noexcept nogil:
    """Add a tag that is not there, beside the leaf that it came closest to. NULL when memory is short."""
    cdef uintptr_t *link = &tags.root
    cdef uint32_t at = 0, mask
    cdef TagNode *node
    cdef TagLeaf *leaf
    cdef TagLeaf *edge
    cdef int side
    if closest == NULL:
        leaf = _make_leaf(tags, tag, tag_bytes)
        if leaf != NULL:
            tags.root = <uintptr_t>leaf
            _link_leaf(tags, leaf, NULL, NULL)
        return leaf
    while at < tag_bytes and at < closest.tag_bytes and tag[at] == closest.tag[at]:
        at += 1
    mask = highest_bit(_symbol(tag, tag_bytes, at) ^ _symbol(closest.tag, closest.tag_bytes, at))
    side = _symbol(tag, tag_bytes, at) & mask != 0
    node = _take_node(tags)
    leaf = _make_leaf(tags, tag, tag_bytes) if node != NULL else NULL
    if leaf == NULL:
        if node != NULL:
            node.child[0] = <uintptr_t>tags.free_node
            tags.free_node = node
        return NULL
    while _is_node(link[0]) and (_node(link[0]).byte < at or (_node(link[0]).byte == at and _node(link[0]).mask > mask)):
        link = &_node(link[0]).child[_side(_node(link[0]), tag, tag_bytes)]
    node.byte = at
    node.mask = <uint16_t>mask
    if side:
        edge = _edge(link[0], 1)
        _link_leaf(tags, leaf, edge, edge.next)
    else:
        edge = _edge(link[0], 0)
        _link_leaf(tags, leaf, edge.previous, edge)
    node.child[side] = <uintptr_t>leaf
    node.child[1 - side] = link[0]
    link[0] = <uintptr_t>node | 1
    return leaf


cdef void _drop_leaf(Tags *tags, TagLeaf *leaf) noexcept nogil:
    """Take a leaf without postings out of tree and list."""
    cdef uintptr_t *link = &tags.root
    cdef uintptr_t *above = NULL
    cdef TagNode *node
    while _is_node(link[0]):
        above = link
        link = &_node(link[0]).child[_side(_node(link[0]), leaf.tag, leaf.tag_bytes)]
    if above == NULL:
        tags.root = 0
    else:
        node = _node(above[0])
        above[0] = node.child[1 if link == &node.child[0] else 0]
        node.child[0] = <uintptr_t>tags.free_node
        tags.free_node = node
    if leaf.previous != NULL:
        leaf.previous.next = leaf.next
    else:
        tags.first = leaf.next
    if leaf.next != NULL:
        leaf.next.previous = leaf.previous
    if tags.hand == leaf:
        tags.hand = leaf.next
    tags.memory -= _leaf_bytes(leaf.tag_bytes)
    tags.leaves -= 1
    free(leaf)


# ---- postings ---------------------------------------------------------------------------------------------------------------


cdef inline uint64_t _chunk_bytes(uint32_t room) noexcept nogil:
    return sizeof(TagChunk) + (room - 1) * sizeof(uint32_t)


cdef int _push(Tags *tags, TagLeaf *leaf, uint64_t seq) noexcept nogil:
    cdef TagChunk *chunk = leaf.last
    cdef uint32_t room
    if chunk == NULL or chunk.end == chunk.room or seq - chunk.base > <uint64_t>0xFFFFFFFF:
        room = min(chunk.room * 2, <uint32_t>CHUNK_MAX) if chunk != NULL else <uint32_t>CHUNK_FIRST
        chunk = <TagChunk *>malloc(_chunk_bytes(room))
        if chunk == NULL:
            return -ENOMEM
        tags.memory += _chunk_bytes(room)
        chunk.next = NULL
        chunk.base = seq
        chunk.begin = chunk.end = 0
        chunk.room = room
        if leaf.last != NULL:
            leaf.last.next = chunk
        else:
            leaf.first = chunk
        leaf.last = chunk
    chunk.offsets[chunk.end] = <uint32_t>(seq - chunk.base)
    chunk.end += 1
    leaf.postings += 1
    tags.postings += 1
    return 0


cdef void _drop_chunk(Tags *tags, TagLeaf *leaf, TagChunk *chunk, TagChunk *before) noexcept nogil:
    if before != NULL:
        before.next = chunk.next
    else:
        leaf.first = chunk.next
    if leaf.last == chunk:
        leaf.last = before
    tags.memory -= _chunk_bytes(chunk.room)
    free(chunk)


cdef void _prune(Tags *tags, TagLeaf *leaf) noexcept nogil:
    """Drop the postings below the floor; the leaf goes with its last one."""
    cdef TagChunk *chunk
    cdef uint32_t low, high, middle
    while leaf.first != NULL:
        chunk = leaf.first
        low, high = chunk.begin, chunk.end
        while low < high:
            middle = low + (high - low) // 2
            if chunk.base + chunk.offsets[middle] < tags.floor:
                low = middle + 1
            else:
                high = middle
        leaf.postings -= low - chunk.begin
        tags.postings -= low - chunk.begin
        chunk.begin = low
        if low < chunk.end:
            break
        _drop_chunk(tags, leaf, chunk, NULL)
    if leaf.first == NULL:
        _drop_leaf(tags, leaf)


cdef bint _visit_chunk(Tags *tags, TagLeaf *leaf, TagChunk *chunk, TagVisit visit, void *context, uint64_t *taken) noexcept nogil:
    """Visit a chunk's postings and close the gaps of those taken out. False when the visitor has had enough."""
    cdef uint32_t at = chunk.begin, kept = chunk.begin
    cdef uint64_t seq
    cdef int verdict
    cdef bint go_on = True
    while at < chunk.end:
        seq = chunk.base + chunk.offsets[at]
        verdict = visit(context, seq) if go_on and seq >= tags.floor else 0
        go_on = go_on and verdict >= 0
        if verdict <= 0:
            chunk.offsets[kept] = chunk.offsets[at]
            kept += 1
        at += 1
    taken[0] += chunk.end - kept
    leaf.postings -= chunk.end - kept
    tags.postings -= chunk.end - kept
    chunk.end = kept
    return go_on


cdef bint _visit_leaf(Tags *tags, TagLeaf *leaf, TagVisit visit, void *context, uint64_t *taken) noexcept nogil:
    """Visit a leaf's postings; the leaf goes with its last one. False when the visitor has had enough."""
    cdef TagChunk *chunk = leaf.first
    cdef TagChunk *before = NULL
    cdef TagChunk *after
    cdef bint go_on = True
    while chunk != NULL and go_on:
        after = chunk.next
        go_on = _visit_chunk(tags, leaf, chunk, visit, context, taken)
        if chunk.begin == chunk.end:
            _drop_chunk(tags, leaf, chunk, before)
        else:
            before = chunk
        chunk = after
    if leaf.first == NULL:
        _drop_leaf(tags, leaf)
    return go_on


# ---- the whole --------------------------------------------------------------------------------------------------------------


cdef Tags *tags_new() noexcept nogil:
    cdef Tags *tags = <Tags *>calloc(1, sizeof(Tags))
    if tags != NULL:
        tags.pool_nodes = POOL_FIRST
        tags.memory = sizeof(Tags)
    return tags


cdef void tags_free(Tags *tags) noexcept nogil:
    cdef TagLeaf *leaf
    cdef TagChunk *chunk
    cdef TagPool *pool
    if tags == NULL:
        return
    while tags.first != NULL:
        leaf = tags.first
        tags.first = leaf.next
        while leaf.first != NULL:
            chunk = leaf.first
            leaf.first = chunk.next
            free(chunk)
        free(leaf)
    while tags.pools != NULL:
        pool = tags.pools
        tags.pools = pool.next
        free(pool)
    free(tags)


cdef int tags_add(Tags *tags, const uint8_t *tag, uint32_t tag_bytes, uint64_t seq) noexcept nogil:
    cdef TagLeaf *leaf = _closest(tags, tag, tag_bytes)
    if not _is_tag(leaf, tag, tag_bytes):
        leaf = _insert(tags, leaf, tag, tag_bytes)
        if leaf == NULL:
            return -ENOMEM
    if _push(tags, leaf, seq) != 0:
        if leaf.first == NULL:
            _drop_leaf(tags, leaf)
        return -ENOMEM
    return 0


cdef uint64_t tags_eq(Tags *tags, const uint8_t *tag, uint32_t tag_bytes, TagVisit visit, void *context) noexcept nogil:
    cdef TagLeaf *leaf = _closest(tags, tag, tag_bytes)
    cdef uint64_t taken = 0
    if _is_tag(leaf, tag, tag_bytes):
        _visit_leaf(tags, leaf, visit, context, &taken)
    return taken


cdef uint64_t tags_prefix(Tags *tags, const uint8_t *prefix, uint32_t prefix_bytes, TagVisit visit, void *context) noexcept nogil:
    cdef uintptr_t link = tags.root, top = tags.root
    cdef TagLeaf *leaf
    cdef TagLeaf *after
    cdef uint64_t taken = 0
    while _is_node(link) and _node(link).byte < prefix_bytes:
        link = _node(link).child[_side(_node(link), prefix, prefix_bytes)]
        top = link
    leaf = _edge(top, 0)
    # All below `top` agree in the bytes that the path has not tested, so the list tells by itself where they end.
    while leaf != NULL and leaf.tag_bytes >= prefix_bytes and memcmp(leaf.tag, prefix, prefix_bytes) == 0:
        after = leaf.next
        if not _visit_leaf(tags, leaf, visit, context, &taken):
            break
        leaf = after
    return taken


cdef struct OneSeq:
    uint64_t seq


cdef int _take_one(void *context, uint64_t seq) noexcept nogil:
    cdef uint64_t wanted = (<OneSeq *>context).seq
    return -1 if seq > wanted else seq == wanted


cdef bint tags_remove(Tags *tags, const uint8_t *tag, uint32_t tag_bytes, uint64_t seq) noexcept nogil:
    cdef OneSeq one
    one.seq = seq
    return tags_eq(tags, tag, tag_bytes, _take_one, &one) != 0


cdef void tags_drop_below(Tags *tags, uint64_t seq) noexcept nogil:
    cdef uint64_t looks
    cdef TagLeaf *leaf
    if seq > tags.floor:
        # One turn over all leaves is enough, whatever is owed.
        tags.debt = min(tags.debt + min(seq - tags.floor, tags.leaves + 1) * LEAVES_A_SEQ, 2 * tags.leaves)
        tags.floor = seq
    looks = min(tags.debt, <uint64_t>TAGS_PRUNE_MAX)
    tags.debt -= looks
    while looks and tags.first != NULL:
        leaf = tags.hand if tags.hand != NULL else tags.first
        tags.hand = leaf.next
        _prune(tags, leaf)
        looks -= 1


cdef uint64_t tags_memory(const Tags *tags) noexcept nogil:
    return tags.memory


# ---- the Python face --------------------------------------------------------------------------------------------------------


cdef struct Gathering:
    void *seqs         # a list, borrowed
    uint64_t take_below
    uint64_t visits_max


cdef int _gather(void *context, uint64_t seq) noexcept with gil:
    cdef Gathering *gathering = <Gathering *>context
    (<list>gathering.seqs).append(seq)
    if <uint64_t>len(<list>gathering.seqs) >= gathering.visits_max:
        return -1
    return seq < gathering.take_below


cdef class TagIndex:
    """One topic's tag index."""

    cdef Tags *tags

    def __cinit__(self):
        self.tags = tags_new()
        if self.tags == NULL:
            raise MemoryError

    def __dealloc__(self):
        tags_free(self.tags)

    def add(self, bytes tag not None, uint64_t seq):
        if tags_add(self.tags, tag, <uint32_t>len(tag), seq) != 0:
            raise MemoryError

    def remove(self, bytes tag not None, uint64_t seq):
        return bool(tags_remove(self.tags, tag, <uint32_t>len(tag), seq))

    def eq(self, bytes tag not None, uint64_t take_below=0, uint64_t visits_max=<uint64_t>-1):
        cdef list seqs = []
        cdef Gathering gathering
        gathering.seqs = <void *>seqs
        gathering.take_below = take_below
        gathering.visits_max = visits_max
        tags_eq(self.tags, tag, <uint32_t>len(tag), _gather, &gathering)
        return seqs

    def prefix(self, bytes prefix not None, uint64_t take_below=0, uint64_t visits_max=<uint64_t>-1):
        cdef list seqs = []
        cdef Gathering gathering
        gathering.seqs = <void *>seqs
        gathering.take_below = take_below
        gathering.visits_max = visits_max
        tags_prefix(self.tags, prefix, <uint32_t>len(prefix), _gather, &gathering)
        return seqs

    def drop_below(self, uint64_t seq):
        tags_drop_below(self.tags, seq)

    def tag_list(self):
        cdef TagLeaf *leaf = self.tags.first
        cdef list out = []
        while leaf != NULL:
            out.append((<char *>leaf.tag)[:leaf.tag_bytes])
            leaf = leaf.next
        return out

    @property
    def postings(self):
        return self.tags.postings

    @property
    def memory(self):
        return tags_memory(self.tags)
