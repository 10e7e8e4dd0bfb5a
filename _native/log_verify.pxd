# Records of the log as they are read: each is held against the checksum of its frame before its bytes leave.
#
#   | header | entry | entry | entry | header | entry |        an index entry leads to a record, the checksum stands in the header of its frame
#     ^------------ back ------'                             8 bytes at a time: JSON text holds no zeroes, so nothing in it looks like a header
#
# What was verified is believed for TRUST_NS, as a sealed file is: a bit for 64 bytes of the file in each process that reads it, and a time a
# chunk. A bit says that a record which BEGINS in these bytes stands in a verified frame; between two such records of different frames there
# is a header, so no bit speaks of two frames. A chunk's time is that of its oldest bit: nothing is believed for longer. Of what is damaged
# nothing is believed: each read finds it again, until the keeper has shown the range (log_damage.pxd).
#
# An entry is published when all of its frame is in the file, and a published frame is never written again: a reader meets no half of one.
#
# Owner: one thread, that of the Maps.
from libc.stdint cimport uint64_t

from topicsd._native.maps cimport Map

cdef enum:
    TRUST_NS = 1000000000

# Of a map that stays: make room for what will be believed.
cdef void trust_begin(Map *map) noexcept nogil
# Whether the record at `position` stands in a sound frame. `end`: records that begin between `position` and it do so too.
# Touches the map: inside `guarded_call` only.
cdef bint log_verified(const Map *map, uint64_t position, uint64_t now_ns, uint64_t *end) noexcept nogil
# The same for who is in no guarded call and begins no trust itself.
cdef bint log_sound(Map *map, uint64_t position) noexcept nogil
