# What ends with the server, though its bytes may stand in the log: it is not sealed and in no snapshot (docs/routers.md, Power loss).
#
# A record of an ephemeral topic is in shared memory: so says its position. A copy that a router has made in an ephemeral topic points into the log
# like any copy, so it has a mark: what counts is the class that its topic had when it was made (replay goes by the same, `replay_cursors`).
from topicsd._native.layout cimport INDEX_HOLE, POSITION_BITS, SOURCE_EPHEMERAL, index_entry

cdef enum:
    INDEX_FLEETING = 0x80    # one of the INDEX_* of layout.h, only ever with INDEX_COPY; no copy inherits it


cdef inline bint ends_with_server(const index_entry *entry) noexcept nogil:
    return not entry.flags & INDEX_HOLE and (entry.flags & INDEX_FLEETING != 0 or entry.position >> POSITION_BITS == SOURCE_EPHEMERAL)
