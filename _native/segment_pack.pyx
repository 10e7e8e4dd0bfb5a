"""Packs (see segment_pack.pxd)."""

from collections import namedtuple

from libc.errno cimport EINVAL, ENAMETOOLONG
from libc.stdint cimport uint8_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, qsort
from libc.string cimport memcpy, memset, strlen

from topicsd._native.files cimport Files
from topicsd._native.hash cimport xxh3_64
from topicsd._native.segment cimport (
    PACK_FOOTER_MAGIC, PACK_FORMAT_VERSION, PACK_MAGIC, SEGMENT_BAD_HEADER, SEGMENT_NEWER, SEGMENT_NOT_ONE, SEGMENT_SHORT, pack_entry, pack_footer,
    pack_header,
)
from topicsd._native.segment_sink cimport sink_close, sink_end, sink_open, sink_put
from topicsd._native.segment_tags cimport array_grow
from topicsd._native.segment import SegmentError

cdef enum:
    PATH_BYTES_MAX = 4096    # of what the builder keeps
    PATH_ROOM = 4352         # with an extension

PackEntry = namedtuple("PackEntry", "topic_id first_seq last_seq data_offset index_offset tags_offset records data_xxh3")


cdef PackBuilder *pack_builder_new() noexcept nogil:
    cdef PackBuilder *pack = <PackBuilder *>calloc(1, sizeof(PackBuilder))
    if pack != NULL:
        pack.sink.fd = pack.sink.direct_fd = -1
    return pack


cdef void pack_builder_free(PackBuilder *pack) noexcept nogil:
    if pack == NULL:
        return
    pack_abort(pack)
    free(pack.sink.buffer)
    free(pack.entries)
    free(pack)


cdef int pack_begin(PackBuilder *pack, const Files *files, const char *folder, uint64_t number) noexcept nogil:
    cdef char path[PATH_ROOM]
    cdef pack_header header
    cdef int result
    if pack.open:
        return -EINVAL
    if strlen(folder) + 64 >= PATH_BYTES_MAX:
        return -ENAMETOOLONG
    memcpy(pack.folder, folder, strlen(folder) + 1)
    snprintf(pack.path, PATH_BYTES_MAX, "%s/%020llu.pack", folder, <unsigned long long>number)
    snprintf(path, PATH_ROOM, "%s.tmp", <const char *>pack.path)
    result = sink_open(&pack.sink, files, path)
    if result != 0:
        return result
    pack.open = True
    pack.number = number
    pack.count = 0
    memset(&header, 0, sizeof(pack_header))
    header.magic = PACK_MAGIC
    header.format_version = PACK_FORMAT_VERSION
    header.number = number
    header.header_xxh3 = xxh3_64(&header, sizeof(pack_header) - 8)
    return sink_put(&pack.sink, &header, sizeof(pack_header))


cdef int pack_enter(PackBuilder *pack, const pack_entry *entry) noexcept nogil:
    cdef int result = array_grow(<void **>&pack.entries, &pack.room, pack.count + 1, sizeof(pack_entry))
    if result != 0:
        return result
    pack.entries[pack.count] = entry[0]
    pack.count += 1
    return 0


cdef int _by_segment(const void *left, const void *right) noexcept nogil:
    cdef const pack_entry *a = <const pack_entry *>left
    cdef const pack_entry *b = <const pack_entry *>right
    if a.topic_id != b.topic_id:
        return -1 if a.topic_id < b.topic_id else 1
    return -1 if a.first_seq < b.first_seq else a.first_seq > b.first_seq


cdef int pack_finish(PackBuilder *pack, uint64_t *file_bytes) noexcept nogil:
    cdef char path[PATH_ROOM]
    cdef pack_footer footer
    cdef const Files *files = pack.sink.files
    cdef int result
    if not pack.open:
        return -EINVAL
    if pack.count:
        qsort(pack.entries, pack.count, sizeof(pack_entry), _by_segment)
    memset(&footer, 0, sizeof(pack_footer))
    footer.magic = PACK_FOOTER_MAGIC
    footer.format_version = PACK_FORMAT_VERSION
    footer.number = pack.number
    footer.segments = pack.count
    footer.directory_offset = sink_end(&pack.sink)
    footer.directory_xxh3 = xxh3_64(pack.entries, pack.count * sizeof(pack_entry))
    footer.file_bytes = footer.directory_offset + pack.count * sizeof(pack_entry) + sizeof(pack_footer)
    footer.footer_xxh3 = xxh3_64(&footer, sizeof(pack_footer) - 8)
    result = sink_put(&pack.sink, pack.entries, pack.count * sizeof(pack_entry))
    if result == 0:
        result = sink_put(&pack.sink, &footer, sizeof(pack_footer))
    if result != 0:
        return result
    result = sink_close(&pack.sink, True)
    snprintf(path, PATH_ROOM, "%s.tmp", <const char *>pack.path)
    if result == 0:
        result = files.rename(files.context, path, pack.path)
    if result == 0:
        result = files.sync_directory(files.context, pack.folder)
    if result != 0:
        files.unlink(files.context, path)
    pack.open = False
    file_bytes[0] = footer.file_bytes
    return result


cdef void pack_abort(PackBuilder *pack) noexcept nogil:
    cdef char path[PATH_ROOM]
    cdef const Files *files = pack.sink.files
    if not pack.open:
        return
    pack.open = False
    sink_close(&pack.sink, False)
    snprintf(path, PATH_ROOM, "%s.tmp", <const char *>pack.path)
    files.unlink(files.context, path)


# ---- the Python half ------------------------------------------------------------------------------------------------------------------


FORMAT_VERSION = PACK_FORMAT_VERSION


def newer_version(raw, *, bint footer=False):
    """The format version of a pack's header, or of its footer, where a newer program wrote it; else 0."""
    cdef const uint8_t[::1] view = raw
    cdef const pack_header *header    # magic, version and checksum stand where they stand in the footer
    if len(view) < <Py_ssize_t>sizeof(pack_header):
        return 0
    header = <const pack_header *>&view[0]
    if header.magic != (PACK_FOOTER_MAGIC if footer else PACK_MAGIC) or xxh3_64(header, sizeof(pack_header) - 8) != header.header_xxh3:
        return 0
    return header.format_version if header.format_version > PACK_FORMAT_VERSION else 0


def pack_number(raw):
    """The number in the header of a pack. Raises SegmentError."""
    cdef const uint8_t[::1] view = raw
    cdef const pack_header *header
    if len(view) < <Py_ssize_t>sizeof(pack_header):
        raise SegmentError(SEGMENT_SHORT, "pack")
    header = <const pack_header *>&view[0]
    if header.magic != PACK_MAGIC:
        raise SegmentError(SEGMENT_NOT_ONE, "pack")
    if xxh3_64(header, sizeof(pack_header) - 8) != header.header_xxh3:
        raise SegmentError(SEGMENT_BAD_HEADER, "pack")
    if header.format_version > PACK_FORMAT_VERSION:
        raise SegmentError(SEGMENT_NEWER, "pack")
    return header.number


def pack_directory(raw):
    """The directory of a pack: [PackEntry], by topic and seq. Raises SegmentError."""
    cdef const uint8_t[::1] view = raw
    cdef uint64_t bytes = len(view), number, end
    cdef const pack_footer *footer
    cdef const pack_entry *e
    if bytes < sizeof(pack_header) + sizeof(pack_footer) or bytes % 8:
        raise SegmentError(SEGMENT_SHORT, "pack directory")
    end = bytes - sizeof(pack_footer)
    footer = <const pack_footer *>&view[end]
    if footer.magic != PACK_FOOTER_MAGIC:
        raise SegmentError(SEGMENT_NOT_ONE, "pack directory")
    if xxh3_64(footer, sizeof(pack_footer) - 8) != footer.footer_xxh3:
        raise SegmentError(SEGMENT_BAD_HEADER, "pack directory")
    if footer.format_version > PACK_FORMAT_VERSION:
        raise SegmentError(SEGMENT_NEWER, "pack directory")
    if footer.file_bytes != bytes or footer.directory_offset > end or (end - footer.directory_offset) != footer.segments * sizeof(pack_entry):
        raise SegmentError(SEGMENT_SHORT, "pack directory")
    e = <const pack_entry *>(&view[0] + footer.directory_offset)
    if xxh3_64(e, footer.segments * sizeof(pack_entry)) != footer.directory_xxh3:
        raise SegmentError(SEGMENT_BAD_HEADER, "pack directory")
    return [PackEntry(e[number].topic_id, e[number].first_seq, e[number].last_seq, e[number].data_offset, e[number].index_offset,
                      e[number].tags_offset, e[number].records, e[number].data_xxh3) for number in range(footer.segments)]
