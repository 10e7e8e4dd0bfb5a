"""Indexes made again by who reads (see mended.pxd)."""

from libc.errno cimport EIO
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from topicsd._native.atomics cimport clock_mono_ns
from topicsd._native.layout cimport segment_row
from topicsd._native.segment cimport Segment, SegmentPart
from topicsd._native.segment_build cimport SegmentBuilder, segment_builder_free, segment_builder_new
from topicsd._native.segment_maps cimport SEGMENT_TRUST_NS
from topicsd._native.segment_repair cimport SegmentFindings, segment_examine, segment_remade
from topicsd._native.segment_sink cimport Sink

cdef enum:
    TRUST_SHARE = 20
    PART_INDEX = 1    # of segment_remade


cdef Mended *mended_find(MendedList *list, uint64_t serial, uint64_t topic_id, const segment_row *row, uint64_t turn) noexcept nogil:
    cdef Mended *found = list.newest
    while found != NULL:
        if found.serial == serial and found.topic_id == topic_id and found.first_seq == row.first_seq and found.last_seq == row.last_seq \
                and found.data_at == row.data_at:
            if found.used != turn and clock_mono_ns() >= found.until_ns:
                return NULL
            found.used = turn
            return found
        found = found.next
    return NULL


cdef void _walk(Mended *made, const SegmentPart *data) noexcept nogil:
    cdef SegmentBuilder *builder = segment_builder_new()
    cdef SegmentFindings found
    cdef Segment segment
    cdef Sink sink
    cdef int status
    memset(&segment, 0, sizeof(Segment))
    memset(&sink, 0, sizeof(Sink))
    sink.fd = sink.direct_fd = -1
    segment.data = data[0]
    segment.topic_id, segment.first_seq, segment.last_seq = made.topic_id, made.first_seq, made.last_seq
    if builder == NULL:
        made.failure = -EIO
        return
    status = segment_examine(builder, &segment, &found)
    if status < 0:
        made.failure = -EIO
    elif status == 0 and found.records + found.gaps and builder.header.topic_id == made.topic_id \
            and builder.header.first_seq == made.first_seq and builder.header.last_seq == made.last_seq:
        builder.header.part_bytes = found.data_bytes
        if segment_remade(builder, &sink, PART_INDEX) == 0:
            made.at, made.bytes = sink.buffer, sink.used
        else:
            free(sink.buffer)
            made.failure = -EIO
    segment_builder_free(builder)


cdef Mended *mended_make(MendedList *list, const SegmentPart *data, uint64_t serial, uint64_t topic_id, const segment_row *row,
                         uint64_t turn) noexcept nogil:
    cdef Mended *made = <Mended *>calloc(1, sizeof(Mended))
    cdef uint64_t began_ns = clock_mono_ns(), took_ns
    if made == NULL:
        return NULL
    made.serial, made.topic_id, made.used = serial, topic_id, turn
    made.first_seq, made.last_seq, made.data_at = row.first_seq, row.last_seq, row.data_at
    _walk(made, data)
    took_ns = clock_mono_ns() - began_ns
    made.until_ns = began_ns + took_ns + max(<uint64_t>SEGMENT_TRUST_NS, TRUST_SHARE * took_ns)
    made.next = list.newest
    list.newest = made
    return made


cdef void mended_trim(MendedList *list, uint64_t turn) noexcept nogil:
    cdef Mended **at = &list.newest
    cdef Mended *one
    cdef uint64_t now_ns = clock_mono_ns() if list.newest != NULL else 0, held = 0
    while at[0] != NULL:
        one = at[0]
        if one.used < turn and (now_ns >= one.until_ns or held + one.bytes > <uint64_t>MENDED_BYTES_MAX):
            at[0] = one.next
            free(one.at)
            free(one)
            continue
        held += one.bytes
        at = &one.next


cdef void mended_clear(MendedList *list) noexcept nogil:
    cdef Mended *one
    while list.newest != NULL:
        one = list.newest
        list.newest = one.next
        free(one.at)
        free(one)
