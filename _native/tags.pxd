# A topic's tag index: tag -> its seqs, ascending, so that a delete by tag or by prefix touches only what matches (D 7.2).
#
# A crit-bit tree over the tags' bytes, whose leaves are also a list in byte order; each leaf owns a list of chunks of seqs.
#
#        node(byte 4, bit)                leaf "msg-1" <-> leaf "msg-2" <-> leaf "ref-9"      byte order
#        /            \                     |
#     leaf            node ...            chunk [base | +0 +7 +9 ...] -> chunk ...            4 B a posting
#
# All of it is the writer's heap: no word is shared, nothing is locked. Tags are compared as stored (canonical JSON without quotes),
# so byte equality is equality and byte prefix is prefix. The empty tag is a tag. Seqs of one tag must be added in ascending order.
#
# Pruning is spread: each seq that tags_drop_below passes pays for two leaves, looked at in turn, at most TAGS_PRUNE_MAX a call; what is
# left over is paid by later calls. So dead postings never outnumber the live ones by much, and no call stalls the writer.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t

cdef enum:
    TAGS_PRUNE_MAX = 4096

cdef struct TagChunk:
    TagChunk *next
    uint64_t base                  # seq of offset 0
    uint32_t begin, end, room      # offsets[begin:end] are in use
    uint32_t offsets[1]

cdef struct TagLeaf:
    TagLeaf *previous
    TagLeaf *next
    TagChunk *first
    TagChunk *last
    uint64_t postings
    uint32_t tag_bytes
    uint8_t tag[4]

cdef struct TagNode:
    uintptr_t child[2]             # a TagNode * with its lowest bit set, or a TagLeaf *
    uint32_t byte
    uint16_t mask                  # one bit of 0x100 | byte; a tag that has ended has 0 there

cdef struct TagPool:
    TagPool *next
    TagNode nodes[1]

cdef struct Tags:
    uintptr_t root
    TagLeaf *first                 # in byte order
    TagLeaf *hand                  # the next leaf to prune, NULL: start over
    TagPool *pools
    TagNode *free_node
    uint32_t pool_nodes            # of the next pool
    uint64_t leaves, postings, memory
    uint64_t floor                 # postings below it are dead
    uint64_t debt                  # leaves still to be looked at

# Called for each posting, ascending in each tag: 0 keep it, > 0 take it out, < 0 keep it and stop.
ctypedef int (*TagVisit)(void *context, uint64_t seq) noexcept nogil

cdef Tags *tags_new() noexcept nogil                                              # NULL when memory is short
cdef void tags_free(Tags *tags) noexcept nogil
cdef int tags_add(Tags *tags, const uint8_t *tag, uint32_t tag_bytes, uint64_t seq) noexcept nogil            # 0, -ENOMEM
cdef bint tags_remove(Tags *tags, const uint8_t *tag, uint32_t tag_bytes, uint64_t seq) noexcept nogil        # whether it was there
# Both return how many postings were taken out. Postings below the floor are not visited.
cdef uint64_t tags_eq(Tags *tags, const uint8_t *tag, uint32_t tag_bytes, TagVisit visit, void *context) noexcept nogil
cdef uint64_t tags_prefix(Tags *tags, const uint8_t *prefix, uint32_t prefix_bytes, TagVisit visit, void *context) noexcept nogil
cdef void tags_drop_below(Tags *tags, uint64_t seq) noexcept nogil
cdef uint64_t tags_memory(const Tags *tags) noexcept nogil
