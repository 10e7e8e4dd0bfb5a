# Ranges of the log that are not what was written, while the server runs: what unsealed records in them is told as `corrupt`.
#
#   keeper: verifies the log -> the other of two lists -> control.log_damages (release)
#   reader: entries of the tail index -> hide_damaged -> holes with reason `corrupt` and INDEX_DAMAGED
#
# word                   written by  order                         a stale read means
# control.log_damages    keeper      release, behind the list;     a record that can not be read is waited for once more, or its bytes are shown
#                                    acquire before and after      as they are; a list that is written over while it is read: the view is taken again
# control.log_damage     keeper      before log_damages            -
#
# Only who reads bytes asks (view_entries). For the writer, for counts and for the sealer these records are what they were: a replay needs no trace
# of the damage, counts that are shown leave them out (topic_slot.unreadable), and a tail with damage is not sealed before the next start has put a
# hole there. Positions are never used twice, so a range that is over does no harm. Above LOG_DAMAGES_MAX ranges the rest is an error to its readers.
#
# Owner: the keeper.
from libc.stdint cimport uint32_t, uint64_t

from topicsd._native.layout cimport index_entry
from topicsd._native.regions cimport Regions

# Make holes of the entries that lead into damaged ranges. 0, or VIEW_BUSY: the ranges have moved meanwhile.
cdef int hide_damaged(const Regions *regions, index_entry *entries, uint32_t count) noexcept nogil
# Whether a record stands in a damaged range.
cdef bint is_in_damage(const Regions *regions, const index_entry *entry) noexcept nogil
