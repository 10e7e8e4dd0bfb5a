# Reading a segment's data from front to back: verification (scrub, fsck) and making index and tags again from the data alone.
#
#   data part --walk--> a builder's index and tags --> compare with the parts that stand, or put them in their place
#
# The walk believes nothing: not the header, not the index. A frame counts when its checksum holds under the topic's id, its seq is the next one or
# a later one, and it lies inside the part. Where none stands it searches on, 8 bytes at a time, and calls the bytes in between damaged. Seqs that
# no frame accounts for become holes with reason `corrupt`.
#
# An index that is sound by itself is not called bad because frames that it points at are damaged: segment_check tells the reader about those.
#
# Owner: one thread. segment_examine runs its loads under the SIGBUS guard.
from libc.stdint cimport uint64_t

from topicsd._native.segment cimport Segment
from topicsd._native.segment_build cimport SegmentBuilder
from topicsd._native.segment_sink cimport Sink

cdef struct SegmentFindings:
    int data_status, index_status, tags_status   # SEGMENT_OK, another segment_status; SEGMENT_NOT_ONE for a part that was not given
    uint64_t records, gaps                       # good frames
    uint64_t deleted                             # records whose flag byte says so: the manifest must agree
    uint64_t odd_flags                           # flag bytes that are neither 0 nor 0xD5: they read as live
    uint64_t damaged_ranges, damaged_bytes
    uint64_t damaged_offset                      # of the first damaged range, from the start of the part
    uint64_t corrupt_seqs, corrupt_first         # seqs that no good frame accounts for
    uint64_t data_bytes                          # of the data part, as its header says or as it was given

# `segment`: parts, and as a fallback topic_id, first_seq, last_seq (from the name of the file, from a row) when no header can be believed.
# Fills `found`; the builder then holds what index and tags should be (segment_remade). 0, SEGMENT_NOT_ONE when nothing says which segment it
# is, SEGMENT_NEWER, -errno.
cdef int segment_examine(SegmentBuilder *builder, const Segment *segment, SegmentFindings *found) noexcept nogil

# After segment_examine: the three parts as they should be, at the end of `sink` (whose `files` is NULL). Of the data part only the header.
cdef int segment_remade(SegmentBuilder *builder, Sink *sink, int kind) noexcept nogil    # kind: 0 data header, 1 index, 2 tags
