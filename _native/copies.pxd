# Reading a router's copy: the bytes are those of the source's record, the marks of its index entry say what of them the copy shows.
#
#   index entry  INDEX_COPY  [DROP_NODE] [DROP_TAG] [ORIGIN]  hops   ->  record entry in the source's log file
#                                          |
#   slot.origins -> | count | run | run ...|   run of the seq -> source seq, text -> `router:<router>:<source id>:<epoch>:`
#
# Whoever renders a record by an index entry asks here: `copy_payload` instead of entry.bytes where lengths are compared, `shows_node` and
# `shows_tag` instead of entry_has_node and entry_has_tag, `put_shown` instead of put_record. For an entry that is no copy they are the same.
#
# word              written by  order                            a stale read means
# slot.origins      writer      under the slot's lock            the page is made again (view_still)
# origins.count     writer      release, before the topic's head nothing: a run of a seq at or below the head that was read is counted
# runs              writer      before count                     nothing
# control.forward_debt  writer  release; seq_cst fence before    nothing: see `wait_for_copies`
#                               the answers that it covers
#
# A run is never changed once it is counted. The slab is freed after the slot's lock was let go, so a stale reader finds another version; what
# it read is held against the region's size and never trusted.
#
# Owner: the writer makes all of it (routes.pxd); everybody reads.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from topicsd._native.frame cimport entry_has_node, entry_has_tag
from topicsd._native.layout cimport INDEX_COPY, INDEX_DROP_NODE, INDEX_DROP_TAG, INDEX_ORIGIN, index_entry, record_entry
from topicsd._native.regions cimport Regions
from topicsd._native.render cimport RecordText

cdef enum:
    ORIGIN_TEXT_MAX = 320              # `router:`, a name of 255 bytes, two numbers of 20 digits, colons
    ORIGIN_BYTES_MAX = 384             # of `"meta":{"_topics_router":"..."},` beside the record's own meta

cdef struct Origin:
    uint64_t source                    # seq of the record in the router's source
    uint32_t text_bytes                # 0: there is none
    char text[ORIGIN_TEXT_MAX]


cdef inline bint shows_node(const record_entry *record, uint32_t flags) noexcept nogil:
    return not flags & INDEX_DROP_NODE and entry_has_node(record)


cdef inline bint shows_tag(const record_entry *record, uint32_t flags) noexcept nogil:
    return not flags & INDEX_DROP_TAG and entry_has_tag(record)


cdef inline uint64_t copy_payload(const record_entry *record, const index_entry *entry) noexcept nogil:
    # What entry_payload_bytes(record) must be: `entry.bytes` counts only what the copy shows.
    cdef uint64_t bytes = entry.bytes
    if entry.flags & INDEX_DROP_NODE:
        bytes += record.node_bytes
    if entry.flags & INDEX_DROP_TAG:
        bytes += record.tag_bytes
    return bytes


# The run of `seq`; text_bytes 0 when there is none. `origins` is slot.origins, read before the view was checked.
cdef void origin_find(const Regions *regions, uint64_t origins, uint64_t seq, Origin *out) noexcept nogil
# One record as its reader sees it (put_record for a copy); needs RECORD_BYTES_MAX + ORIGIN_BYTES_MAX + the record's whole payload of room.
cdef uint8_t *put_shown(uint8_t *at, RecordText *text, uint64_t seq, const index_entry *entry, const record_entry *record,
                        const Origin *origin, bint tags, bint data, bint meta) noexcept nogil
# Write `{"_topics_router":"<text><seq>",<the members of `meta` but that one>}`; at most meta_bytes + ORIGIN_BYTES_MAX bytes.
cdef uint8_t *put_origin_meta(uint8_t *at, const Origin *origin, const uint8_t *meta, uint32_t meta_bytes) noexcept nogil
# Before a read of a topic that a router feeds: wait a moment while a write that was answered has copies which are not visible yet.
cdef void wait_for_copies(const Regions *regions, uint32_t slot) noexcept nogil
