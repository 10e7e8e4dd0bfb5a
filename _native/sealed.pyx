"""Sealed ranges of topics (see sealed.pxd)."""

import os

from libc.errno cimport EAGAIN, EIO, ENAMETOOLONG, ENOENT, ENOMEM
from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memmove, memset
from posix.fcntl cimport O_RDONLY

from topicsd._native.atomics cimport add_64, clock_mono_ns, load_acquire_32, load_acquire_64, store_relaxed_64, store_release_32
from topicsd._native.cold_window cimport cold_window_at, cold_window_keep, cold_windows_clear, cold_windows_free
from topicsd._native.files cimport real_files
from topicsd._native.layout cimport (
    INDEX_DELETED, INDEX_HOLE, INDEX_TAGGED, LOSS_CORRUPT, POSITION_BITS, POSITION_MASK, ROW_DAMAGED, ROW_HOLES, ROW_OWES, SEGMENT_FILES_MAX,
    SEGMENT_FREE, SEGMENT_HOT, SEGMENT_KIND_PACK, SEGMENT_RETIRED, SUSPECT_MET, SUSPECT_NOT, SUSPECT_TRUE, index_entry, record_entry, segment_file,
    segment_row, topic_slot,
)
from topicsd._native.maps cimport for_want_of_room, guarded_call
from topicsd._native.maps import install_guard
from topicsd._native.mended cimport Mended, mended_clear, mended_find, mended_make, mended_trim
from topicsd._native.segment cimport (
    SEGMENT_BAD_FRAME, SEGMENT_BLOCK_ENTRIES, SEGMENT_FRAME_TAIL_BYTES, SEGMENT_OK, SOURCE_SEGMENT, Segment, SegmentPart,
    segment_check, segment_doubt, segment_entry, segment_frame, segment_frame_is, segment_is_flagged, segment_lower_bound_ts, segment_open,
    segment_place, segment_record, segment_verify_index,
)
from topicsd._native.segment_maps cimport (
    SegmentMap, segment_map, segment_map_look, segment_map_marks, segment_maps_free, segment_maps_init, segment_maps_sweep, segment_maps_turn,
)
from topicsd._native.slabs cimport INDEX_HEADER_BYTES, SLAB_CLASSES, SLAB_MIN_SHIFT, slab_class_for, slab_give, slab_take
from topicsd._native.table cimport VIEW_BUSY, slot_lock, slot_unlock

cdef enum:
    MAPS_OF_SEGMENTS = 3584        # with the log's maps below vm.max_map_count and the 4,096 of the design
    KEY_PART_BITS = 2
    KEY_FILE_BITS = 22
    INDEX_BYTES_LIKELY = 64 << 20
    PATH_BYTES_MAX = 4352
    MARKS_UNIT_SHIFT = 6           # a slab's smallest size


# ---- this process's maps ----------------------------------------------------------------------------------------------------


cdef class SealedMaps:
    """The maps of segment files of one process; kept by its `Shared`."""

    cdef Sealed *sealed

    def __dealloc__(self):
        if self.sealed != NULL:
            segment_maps_free(&self.sealed.maps)
            mended_clear(&self.sealed.mended)
            cold_windows_free(self.sealed.cold)
            free(self.sealed.met)
            free(self.sealed)


cdef int sealed_attach(Shared shared, directory) except -1:
    cdef SealedMaps owner
    cdef Sealed *sealed = <Sealed *>shared.r.sealed
    cdef bytes path = os.fsencode(directory)
    if len(path) >= SEALED_DIRECTORY_MAX:
        raise OSError(ENAMETOOLONG, os.strerror(ENAMETOOLONG), directory)
    if sealed == NULL:
        install_guard()
        sealed = <Sealed *>calloc(1, sizeof(Sealed))
        if sealed == NULL:
            raise MemoryError
        owner = SealedMaps.__new__(SealedMaps)
        owner.sealed = sealed
        sealed.regions = &shared.r
        segment_maps_init(&sealed.maps, MAPS_OF_SEGMENTS, _path_of, sealed)
        shared.sealed_owner = owner
        shared.r.sealed = sealed
    elif path != sealed.directory or sealed.generation != shared.r.control.generation:
        segment_maps_free(&sealed.maps)
        mended_clear(&sealed.mended)
        cold_windows_clear(sealed.cold)
        sealed.open_turn = sealed.window_count = 0
    sealed.generation = shared.r.control.generation
    memcpy(sealed.directory, <const char *>path, len(path) + 1)
    return 0


cdef int _path_of(void *context, uint64_t key, char *path, uint64_t path_bytes) noexcept nogil:
    cdef Sealed *sealed = <Sealed *>context
    cdef const segment_file *file = &sealed.regions.segment_files[(key >> KEY_PART_BITS) & ((1 << KEY_FILE_BITS) - 1)]
    cdef uint64_t topic_id = file.topic_id
    cdef uint64_t part = key & ((1 << KEY_PART_BITS) - 1)
    cdef const char *suffix = b"data"
    if load_acquire_32(&file.state) != <uint32_t>SEGMENT_HOT:
        return -ENOENT
    if part == PART_PACK:
        snprintf(path, path_bytes, "%s/packs/%020llu.pack", sealed.directory, <unsigned long long>file.name)
        return 0
    if part == PART_INDEX:
        suffix = b"idx"
    elif part == PART_TAGS:
        suffix = b"tag"
    if file.edition:
        snprintf(path, path_bytes, "%s/topics/%02x/%016llx/%020llu.%llu.%s", sealed.directory, <unsigned int>(topic_id & 0xFF),
                 <unsigned long long>topic_id, <unsigned long long>file.name, <unsigned long long>file.edition, suffix)
    else:
        snprintf(path, path_bytes, "%s/topics/%02x/%016llx/%020llu.%s", sealed.directory, <unsigned int>(topic_id & 0xFF),
                 <unsigned long long>topic_id, <unsigned long long>file.name, suffix)
    return 0


cdef bint _is_retired(void *context, uint64_t key) noexcept nogil:
    cdef Sealed *sealed = <Sealed *>context
    cdef const segment_file *file = &sealed.regions.segment_files[(key >> KEY_PART_BITS) & ((1 << KEY_FILE_BITS) - 1)]
    return load_acquire_32(&file.state) != <uint32_t>SEGMENT_HOT or file.serial != key >> (KEY_PART_BITS + KEY_FILE_BITS)


cdef void sealed_turn(const Regions *regions) noexcept nogil:
    cdef Sealed *sealed = <Sealed *>regions.sealed
    cdef uint64_t generation
    if sealed == NULL:
        return
    generation = load_acquire_64(&regions.control.generation)
    if generation != sealed.generation:    # another writer numbers files anew
        segment_maps_free(&sealed.maps)
        mended_clear(&sealed.mended)
        cold_windows_clear(sealed.cold)
        sealed.generation = generation
        sealed.open_turn = sealed.window_count = 0
    segment_maps_turn(&sealed.maps)
    mended_trim(&sealed.mended, sealed.maps.turn)
    sealed.met_count = 0
    if sealed.cold != NULL:
        sealed.cold.wanted_file = 0


cdef bint _is_known(const Met *met, const segment_file *file) noexcept nogil:
    return load_acquire_32(&file.state) != <uint32_t>SEGMENT_HOT or file.serial != met.serial or file.suspect != <uint32_t>SUSPECT_NOT


cdef void _met(Sealed *sealed, uint32_t number) noexcept nogil:
    cdef uint32_t room
    cdef Met *grown
    cdef Met met
    met.file, met.serial = number, sealed.regions.segment_files[number].serial
    if _is_known(&met, &sealed.regions.segment_files[number]):
        return
    if sealed.met_count and sealed.met[sealed.met_count - 1].serial == met.serial:    # reads go from one file to the next
        return
    if sealed.met_count == sealed.met_room:
        room = max(<uint32_t>8, 2 * sealed.met_room)
        grown = <Met *>realloc(sealed.met, room * sizeof(Met)) if room <= MET_FILES_MAX else NULL
        if grown == NULL:
            return
        sealed.met, sealed.met_room = grown, room
    sealed.met[sealed.met_count] = met
    sealed.met_count += 1


cdef void sealed_met(const Regions *regions, const TopicView *view, uint64_t seq) noexcept nogil:
    cdef Rows rows
    cdef const segment_row *row
    if regions.sealed == NULL or rows_of_view(regions, view, &rows) != 0:
        return
    row = row_of(&rows, seq)
    if row != NULL:
        sealed_met_row(regions, row)


cdef void sealed_met_row(const Regions *regions, const segment_row *row) noexcept nogil:
    if regions.sealed != NULL and 0 < row.file < SEGMENT_FILES_MAX:
        _met(<Sealed *>regions.sealed, row.file)


cdef void sealed_doubt(const Regions *regions, const TopicView *view, uint64_t seq) noexcept nogil:
    cdef Sealed *sealed = <Sealed *>regions.sealed
    cdef const segment_file *file
    cdef const segment_row *row
    cdef SegmentMap *index
    cdef Rows rows
    if sealed == NULL or rows_of_view(regions, view, &rows) != 0:
        return
    row = row_of(&rows, seq)
    if row == NULL or not 0 < row.file < SEGMENT_FILES_MAX:
        return
    file = &regions.segment_files[row.file]
    index = _map(sealed, file, row.file, PART_PACK if file.kind == SEGMENT_KIND_PACK else PART_INDEX)
    if index != NULL:
        index.marked_ns = 0    # its marks are too old now


cdef void sealed_tell(const Regions *regions) noexcept nogil:
    cdef Sealed *sealed = <Sealed *>regions.sealed
    cdef segment_file *file
    cdef uint32_t number
    if sealed == NULL or sealed.met_count == 0:
        return
    for number in range(sealed.met_count):
        file = &sealed.regions.segment_files[sealed.met[number].file]
        if not _is_known(&sealed.met[number], file):
            store_release_32(&file.suspect, SUSPECT_MET)
            add_64(&sealed.regions.control.damage_met, 1)
    sealed.met_count = 0


cdef uint32_t sealed_sweep(const Regions *regions) noexcept nogil:
    cdef Sealed *sealed = <Sealed *>regions.sealed
    if sealed == NULL:
        return 0
    sealed_turn(regions)
    sealed.open_turn = sealed.window_count = 0
    return segment_maps_sweep(&sealed.maps, _is_retired, sealed)


# ---- rows -------------------------------------------------------------------------------------------------------------------


cdef int rows_of_view(const Regions *regions, const TopicView *view, Rows *rows) noexcept nogil:
    rows.topic_id = view.topic_id
    rows.count = view.segments_len
    rows.at = NULL
    if rows.count == 0:
        return 0
    if view.segments_offset < INDEX_HEADER_BYTES or view.segments_offset > regions.index_bytes:
        return VIEW_BUSY
    if rows.count * sizeof(segment_row) > regions.index_bytes - view.segments_offset:
        return VIEW_BUSY
    rows.at = <const segment_row *>(regions.index + view.segments_offset)
    return 0


cdef void rows_of_topic(const Regions *regions, const topic_slot *topic, Rows *rows) noexcept nogil:
    rows.topic_id = topic.topic_id
    rows.count = topic.segments_len
    rows.at = <const segment_row *>(regions.index + topic.segments_offset) if topic.segments_len else NULL


cdef const segment_row *row_of(const Rows *rows, uint64_t seq) noexcept nogil:
    cdef uint32_t low = 0, high = rows.count, middle
    while low < high:
        middle = (low + high) // 2
        if rows.at[middle].last_seq < seq:
            low = middle + 1
        else:
            high = middle
    return &rows.at[low] if low < rows.count and rows.at[low].first_seq <= seq else NULL


cdef inline const uint64_t *_marks(const Regions *regions, const segment_row *row) noexcept nogil:
    cdef uint64_t at = <uint64_t>row.marks_at << MARKS_UNIT_SHIFT
    if at < INDEX_HEADER_BYTES or at >= regions.index_bytes or (row.last_seq - row.first_seq) // 8 + 8 > regions.index_bytes - at:
        return NULL
    return <const uint64_t *>(regions.index + at)


cdef bint row_marked(const Regions *regions, const segment_row *row, uint64_t seq) noexcept nogil:
    cdef const uint64_t *marks = _marks(regions, row) if row.marks_at else NULL
    return marks != NULL and (marks[(seq - row.first_seq) >> 6] >> ((seq - row.first_seq) & 63)) & 1


# ---- a row's segment --------------------------------------------------------------------------------------------------------


cdef inline uint64_t _key(const segment_file *file, uint32_t number, uint64_t part) noexcept nogil:
    return (file.serial << KEY_FILE_BITS | number) << KEY_PART_BITS | part


cdef SegmentMap *_map(Sealed *sealed, const segment_file *file, uint32_t number, uint64_t part) noexcept nogil:
    cdef uint64_t key = _key(file, number, part)
    if file.suspect == <uint32_t>SUSPECT_TRUE:    # what the keeper has found missing is missing for every process, whoever has it mapped still
        segment_map_look(&sealed.maps, key)
    return segment_map(&sealed.maps, key)


cdef bint _place(SegmentPart *part, const SegmentMap *map, uint64_t units) noexcept nogil:
    if map == NULL or units * 8 >= map.bytes:
        return False
    part.at = map.at + units * 8
    part.bytes = map.bytes - units * 8
    return True


cdef bint _place_index(Sealed *sealed, const segment_row *row, Segment *segment) noexcept nogil:
    cdef const segment_file *file = &sealed.regions.segment_files[row.file]
    cdef SegmentMap *index = _map(sealed, file, row.file, PART_PACK if file.kind == SEGMENT_KIND_PACK else PART_INDEX)
    if not _place(&segment.index, index, row.index_at):
        return False
    if file.suspect != <uint32_t>SUSPECT_TRUE:    # what is known to be damaged is verified each time, whatever it was when it was mapped
        segment_map_marks(index, clock_mono_ns())
        segment.index_marks = index.index_marks
        segment.frame_marks = index.frame_marks
    segment.index_offset = <uint64_t>row.index_at * 8
    return True


cdef bint _place_whole(Sealed *sealed, const segment_row *row, SegmentPart *part) noexcept nogil:
    """Find a data part that is mapped whole. In a pack it ends where its index begins: no position leads into another segment."""
    cdef const segment_file *file = &sealed.regions.segment_files[row.file]
    cdef bint pack = file.kind == SEGMENT_KIND_PACK
    if not _place(part, _map(sealed, file, row.file, PART_PACK if pack else PART_DATA), row.data_at):
        return False
    if pack and row.index_at > row.data_at:
        part.bytes = min(part.bytes, <uint64_t>(row.index_at - row.data_at) * 8)
    return True


cdef bint _place_left(Sealed *sealed, const segment_row *row, SegmentPart *part) noexcept nogil:
    """The same, less what is behind the end of the file: it may have been cut short since it was mapped."""
    cdef const segment_file *file = &sealed.regions.segment_files[row.file]
    cdef uint64_t key = _key(file, row.file, PART_PACK if file.kind == SEGMENT_KIND_PACK else PART_DATA)
    cdef char path[PATH_BYTES_MAX]
    cdef int64_t bytes
    cdef int fd
    if not _place_whole(sealed, row, part):
        return False
    fd = _path_of(sealed, key, path, PATH_BYTES_MAX)
    if fd == 0:
        fd = real_files().open(NULL, path, O_RDONLY, 0)
    if fd < 0:    # the map keeps the file
        return True
    bytes = real_files().size(NULL, fd)
    real_files().close(NULL, fd)
    if bytes >= 0:
        part.bytes = min(part.bytes, <uint64_t>bytes - min(<uint64_t>bytes, <uint64_t>row.data_at * 8))
    return True


cdef int _open_parts(Sealed *sealed, uint64_t topic_id, const segment_row *row, const Mended *made, bint data, bint tags) noexcept nogil:
    """Open the row's segment, with the index that was made again where there is one. SEGMENT_OK, another segment_status, or -EIO: no such part."""
    cdef const segment_file *file = &sealed.regions.segment_files[row.file]
    cdef Segment *segment = &sealed.segment
    cdef SegmentMap *other
    cdef bint pack = file.kind == SEGMENT_KIND_PACK
    cdef int status
    memset(segment, 0, sizeof(Segment))
    if made != NULL:
        segment.index.at, segment.index.bytes = made.at, made.bytes
    elif not _place_index(sealed, row, segment):
        return -EIO
    if file.kind == SEGMENT_KIND_COLD:    # its data comes block by block (_cold_there); what of it is good is looked at each time
        segment.frame_marks = NULL
    elif data and not (_place_whole(sealed, row, &segment.data) if made == NULL else _place_left(sealed, row, &segment.data)):
        return -EIO
    if tags:
        other = _map(sealed, file, row.file, PART_PACK if pack else PART_TAGS)
        if not _place(&segment.tags, other, row.tags_at):
            return -EIO
        # No marks: a delete that believed what was verified a moment ago might miss records for ever. It reads all of the part anyway.
        segment.tags_offset = <uint64_t>row.tags_at * 8
    status = segment_open(segment)
    if status == SEGMENT_OK and (segment.topic_id != topic_id or segment.first_seq != row.first_seq or segment.last_seq != row.last_seq):
        return -EIO
    return status


cdef Segment *_opened(Sealed *sealed, uint64_t topic_id, const segment_row *row, bint data, bint tags) noexcept nogil:
    cdef const segment_file *file = &sealed.regions.segment_files[row.file]
    cdef const Mended *made
    cdef int status
    if not tags and sealed.open_turn == sealed.maps.turn and sealed.open_serial == file.serial and sealed.open_topic == topic_id \
            and sealed.open_first == row.first_seq and (sealed.open_data or not data):
        return &sealed.segment
    sealed.open_turn = 0
    made = mended_find(&sealed.mended, file.serial, topic_id, row, sealed.maps.turn) if sealed.mended.newest != NULL else NULL
    if made != NULL and made.at == NULL:
        made = NULL
    status = _open_parts(sealed, topic_id, row, made, data, tags)
    if status != SEGMENT_OK and made == NULL and not for_want_of_room(sealed.maps.failure):
        _met(sealed, row.file)
        made = _mended(sealed, topic_id, row, data)
        if made != NULL:
            status = _open_parts(sealed, topic_id, row, made, data, tags)
    if status != SEGMENT_OK:
        return NULL
    if not tags:
        sealed.open_turn, sealed.open_serial, sealed.open_topic, sealed.open_first = sealed.maps.turn, file.serial, topic_id, row.first_seq
        sealed.open_data = data
    sealed.open_mended = made != NULL
    return &sealed.segment


# ---- an index that is made again --------------------------------------------------------------------------------------------


cdef bint _place_data(Sealed *sealed, const segment_row *row, SegmentPart *part, bint wait) noexcept nogil:
    """Find all of a segment's data part. `wait`: what of it is in the cold tier is wanted, and comes."""
    cdef const segment_file *file = &sealed.regions.segment_files[row.file]
    cdef const uint8_t *at
    if _place_left(sealed, row, part):
        return True
    if file.kind != SEGMENT_KIND_COLD or sealed.cold == NULL or not wait or for_want_of_room(sealed.maps.failure):
        return False
    sealed.maps.failure = -EAGAIN    # nobody may call it lost before it has come
    if file.bytes > sealed.cold.bytes_max:
        return False
    at = cold_window_at(sealed.cold, sealed.maps.turn, row.file, file.serial, 0, file.bytes)
    if at == NULL:
        cold_window_keep(sealed.cold, sealed.maps.turn, file.serial)
        sealed.cold.wanted_end = min(sealed.cold.wanted_begin + COLD_WHOLE_BYTES, file.bytes)
        return False
    sealed.maps.failure = 0
    part.at, part.bytes = at, file.bytes
    return True


cdef const Mended *_mended(Sealed *sealed, uint64_t topic_id, const segment_row *row, bint wait) noexcept nogil:
    """The row's index, made again. NULL: it can not be; maps.failure says whether it may be later."""
    cdef const segment_file *file = &sealed.regions.segment_files[row.file]
    cdef const Mended *made = mended_find(&sealed.mended, file.serial, topic_id, row, sealed.maps.turn)
    cdef SegmentPart part
    if made == NULL:
        # A stale row may say anything: no more memory than an index of such a file can have.
        if (row.last_seq - row.first_seq) * sizeof(index_entry) > max(file.bytes, <uint64_t>INDEX_BYTES_LIKELY) \
                or not _place_data(sealed, row, &part, wait):
            return NULL
        made = mended_make(&sealed.mended, &part, file.serial, topic_id, row, sealed.maps.turn)
    if made == NULL or (made.failure and file.suspect != <uint32_t>SUSPECT_TRUE):
        sealed.maps.failure = -EAGAIN
        return NULL
    return made if made.at != NULL else NULL


cdef Segment *_reopened(Sealed *sealed, uint64_t topic_id, const segment_row *row, bint data) noexcept nogil:
    """The open segment once more, with its index made again. NULL: see maps.failure."""
    sealed.open_turn = 0
    sealed.maps.failure = 0
    _met(sealed, row.file)
    return _opened(sealed, topic_id, row, data, False) if _mended(sealed, topic_id, row, data) != NULL else NULL


cdef struct Opening:
    Sealed *sealed
    uint64_t topic_id
    const segment_row *row
    bint data, tags, again
    Segment *opened


cdef int _open_guarded(void *argument) noexcept nogil:
    cdef Opening *opening = <Opening *>argument
    if opening.again:
        opening.opened = _reopened(opening.sealed, opening.topic_id, opening.row, opening.data)
    else:
        opening.opened = _opened(opening.sealed, opening.topic_id, opening.row, opening.data, opening.tags)
    return 0


cdef Segment *sealed_open(const Regions *regions, const Rows *rows, const segment_row *row, bint data, bint tags) noexcept nogil:
    return _open_row(regions, rows, row, data, tags, False)


cdef Segment *sealed_mended(const Regions *regions, const Rows *rows, const segment_row *row, bint data) noexcept nogil:
    return _open_row(regions, rows, row, data, False, True)


cdef inline bint _is_shut(const Sealed *sealed, const segment_row *row) noexcept nogil:
    """Nothing of its file is to be read: it is damaged, or a delete comes first."""
    return row.flags & ROW_DAMAGED != 0 or (row.flags & ROW_OWES != 0 and not sealed.owing)


cdef Segment *_open_row(const Regions *regions, const Rows *rows, const segment_row *row, bint data, bint tags, bint again) noexcept nogil:
    cdef Opening opening
    opening.sealed, opening.again = <Sealed *>regions.sealed, again
    opening.topic_id, opening.row, opening.data, opening.tags, opening.opened = rows.topic_id, row, data, tags, NULL
    if opening.sealed == NULL or row.file == 0 or row.file >= SEGMENT_FILES_MAX or _is_shut(opening.sealed, row):
        return NULL
    if data and opening.sealed.regions.segment_files[row.file].kind == SEGMENT_KIND_COLD:
        return NULL
    opening.sealed.maps.failure = 0
    if guarded_call(_open_guarded, &opening) != 0:
        opening.opened = NULL
    if opening.opened == NULL and not for_want_of_room(opening.sealed.maps.failure):
        _met(opening.sealed, row.file)
    return opening.opened


# ---- entries ----------------------------------------------------------------------------------------------------------------


cdef void _fill(index_entry *out, uint64_t count, uint32_t flags, uint64_t ts) noexcept nogil:
    cdef uint64_t number
    for number in range(count):
        out[number].position = out[number].bytes = 0
        out[number].flags = flags
        out[number].ts = ts


cdef uint64_t _marked(const uint64_t *marks, const segment_row *row) noexcept nogil:
    """How many seqs of the row its marks call deleted."""
    cdef uint64_t number, word, marked = 0
    for number in range((row.last_seq - row.first_seq) // 64 + 1):
        word = marks[number]
        while word:
            word &= word - 1
            marked += 1
    return marked


cdef void _fill_damaged(const Regions *regions, const segment_row *row, uint64_t seq, index_entry *out, uint64_t count) noexcept nogil:
    """Say of each seq that it is lost. Where nothing but the row's marks can have deleted one, say too that it was live, and how long on average."""
    cdef const uint64_t *marks = _marks(regions, row) if row.marks_at else NULL
    cdef uint64_t dead = _marked(marks, row) if marks != NULL else 0, number, offset = seq - row.first_seq
    cdef bint known = row.live != 0 and row.live + dead == row.last_seq - row.first_seq + 1 and (marks != NULL or row.marks_at == 0)
    _fill(out, count, INDEX_HOLE | <uint32_t>LOSS_CORRUPT << 8, row.last_ts)
    if not known:
        return
    for number in range(count):
        if marks != NULL and (marks[(offset + number) >> 6] >> ((offset + number) & 63)) & 1:
            if not row.flags & ROW_LOST:    # else it may be one of those: told for as long as it stands there
                out[number].flags = INDEX_DELETED
        else:
            out[number].flags |= INDEX_DAMAGED
            out[number].bytes = <uint32_t>(row.live_bytes // row.live)


cdef uint64_t _copy(const Regions *regions, const segment_row *row, const Segment *segment, uint64_t seq, uint64_t count, index_entry *out,
                    bint records, bint closely) noexcept nogil:
    """Copy checked entries; say which are deleted and where their records stand in this process. How many are as they say: the next one is not.

    The files may have changed since they were checked, so only the copies are gone by, within the part's bounds. `closely`: what stands there is
    looked at now, not by who reads it.
    """
    cdef const uint64_t *marks = _marks(regions, row) if row.marks_at else NULL
    cdef uint64_t number, offset = seq - row.first_seq, good = count
    memcpy(out, segment.entries + (seq - segment.first_seq), count * sizeof(index_entry))
    if records:
        good = _locate(row, segment, seq, count, out, closely or row.deleted != 0)
    elif row.deleted and segment.data.at != NULL:
        _take_flags(<Sealed *>regions.sealed, row, segment, seq, count, out)
    if marks != NULL:
        for number in range(good):
            if (marks[(offset + number) >> 6] >> ((offset + number) & 63)) & 1:
                out[number].flags |= INDEX_DELETED
    return good


cdef uint64_t _locate(const segment_row *row, const Segment *segment, uint64_t seq, uint64_t count, index_entry *out, bint closely) noexcept nogil:
    """Put addresses in the place of positions. How many are as they say."""
    cdef const record_entry *record
    cdef uint64_t number, verified = 0, upto = 0
    for number in range(count):
        if out[number].flags & ~<uint32_t>INDEX_TAGGED:    # a hole, or deleted: no frame bears it out
            if seq + number >= verified:
                segment_verify_index(segment, seq + number, min(count - number, <uint64_t>SEGMENT_BLOCK_ENTRIES), &upto)
                if upto == seq + number:
                    return number
                verified = upto
            continue
        record = segment_place(segment, &out[number])
        if record == NULL or (closely and not segment_frame_is(record, seq + number, &out[number])):
            return number
        out[number].position = <uint64_t>SOURCE_SEGMENT << POSITION_BITS | <uint64_t><uintptr_t>record
        if row.deleted and segment_is_flagged(segment, seq + number, record):
            out[number].flags |= INDEX_DELETED
    return count


cdef void _take_flags(Sealed *sealed, const segment_row *row, const Segment *segment, uint64_t seq, uint64_t count, index_entry *out) noexcept nogil:
    """Say of entries that were verified which are deleted by their flag bytes. Of a damaged record nobody knows: it is not."""
    cdef const record_entry *record
    cdef uint64_t number
    for number in range(count):
        if out[number].flags & (INDEX_HOLE | INDEX_DELETED):
            continue
        record = segment_record(segment, seq + number, &out[number])
        if record == NULL:
            _met(sealed, row.file)
        elif segment_is_flagged(segment, seq + number, record):
            out[number].flags |= INDEX_DELETED


cdef bint _cold_there(Sealed *sealed, const segment_row *row, Segment *segment, uint64_t seq, uint64_t count) noexcept nogil:
    """Lay the data part of a cold segment under the records of a range. False: it is not all here."""
    cdef const segment_file *file = &sealed.regions.segment_files[row.file]
    cdef const index_entry *entry
    cdef uint64_t begin = 0, end = 0, upto = 0, number, ahead
    segment_verify_index(segment, seq, count, &upto)    # what is behind a damaged block needs no data
    for number in range(seq, upto):
        entry = segment_entry(segment, number)
        if entry.flags & (INDEX_HOLE | INDEX_DELETED):
            continue
        if end == 0:
            begin = (entry.position & POSITION_MASK) - sizeof(segment_frame)
        # The payload, an entry's head and extension, padding and the frame's tail: at most so much.
        end = (entry.position & POSITION_MASK) + entry.bytes + sizeof(record_entry) + 16 + 8 + SEGMENT_FRAME_TAIL_BYTES
    if end == 0:
        return True
    if _place(&segment.data, _map(sealed, file, row.file, PART_DATA), 0):    # a restored directory has it here
        segment.data_from = 0
        return True
    if begin >= file.bytes:    # the object has no such bytes: damage, which the check finds
        segment.data.at, segment.data.bytes = NULL, 0
        return True
    if sealed.cold == NULL:
        return False
    ahead = min(end, file.bytes)
    segment.data.at = cold_window_at(sealed.cold, sealed.maps.turn, row.file, file.serial, begin, ahead)
    segment.data.bytes = ahead
    segment.data_from = begin
    if segment.data.at == NULL:
        sealed.cold.wanted_end = min(max(ahead, begin + COLD_AHEAD_BYTES), file.bytes)
        segment.data.bytes = 0
        return False
    return True


cdef struct Reading:
    const Regions *regions
    const Rows *rows
    uint64_t seq
    uint64_t count
    index_entry *out
    bint records, closely
    bint faulted          # cleared by a return: what is left of a call that jumped out of a bad page


cdef void _tell_lost(const Regions *regions, const segment_row *row, uint64_t seq, uint64_t count, index_entry *out) noexcept nogil:
    """Say of what an index that was made again calls lost what is said of any record that can not be read."""
    cdef uint32_t lost = INDEX_HOLE | <uint32_t>LOSS_CORRUPT << 8
    cdef uint64_t number = 0, end
    while number < count:
        end = number
        while end < count and out[end].flags == lost:
            end += 1
        if end > number:
            _fill_damaged(regions, row, seq + number, out + number, end - number)
        number = end + 1


cdef int _of_segment(const Reading *reading, const segment_row *row, const Segment *segment, uint64_t seq, uint64_t count,
                     index_entry *out) noexcept nogil:
    """Copy the entries of a range. 0, or -EIO: its index is damaged, and what it is made of again is not here."""
    cdef Sealed *sealed = <Sealed *>reading.regions.sealed
    cdef const Segment *again
    cdef uint64_t upto = 0, good, checked, doubted = 0
    cdef int status
    while count:
        status = segment_check(segment, seq, count, &upto) if reading.records else segment_verify_index(segment, seq, count, &upto)
        checked = upto - seq
        good = _copy(reading.regions, row, segment, seq, checked, out, reading.records, reading.closely)
        if sealed.open_mended:
            _tell_lost(reading.regions, row, seq, good, out)
        if good == checked and status == SEGMENT_OK:
            return 0
        out += good
        seq += good
        count -= good
        _met(sealed, row.file)
        if good < checked:
            if doubted != seq:    # it was verified a while ago: once more, to find what has changed
                doubted = seq
                segment_doubt(segment, seq)
                continue
            status = SEGMENT_BAD_FRAME
        # One record is bad, or the index block: then the rest of it up to the next block, where no other index can be had.
        good = 1
        if status != SEGMENT_BAD_FRAME:
            again = _reopened(sealed, reading.rows.topic_id, row, reading.records or row.deleted != 0)
            if again != NULL and reading.records and reading.regions.segment_files[row.file].kind == SEGMENT_KIND_COLD \
                    and not _cold_there(sealed, row, &sealed.segment, seq, count):
                return -EIO
            if again != NULL:
                segment = again
                continue
            if for_want_of_room(sealed.maps.failure):
                return -EIO
            segment = _opened(sealed, reading.rows.topic_id, row, reading.records or row.deleted != 0, False)
            if segment == NULL:
                _fill_damaged(reading.regions, row, seq, out, count)
                return 0
            good = min(count, <uint64_t>64 - (seq - segment.first_seq) % 64)
        _fill_damaged(reading.regions, row, seq, out, good)
        out += good
        seq += good
        count -= good
    return 0


cdef int _read(void *argument) noexcept nogil:
    cdef Reading *reading = <Reading *>argument
    cdef int status = _read_rows(reading)
    reading.faulted = False
    return status


cdef int _read_rows(Reading *reading) noexcept nogil:
    cdef Sealed *sealed = <Sealed *>reading.regions.sealed
    cdef const segment_row *row
    cdef Segment *segment
    cdef uint64_t seq = reading.seq, count = reading.count, part
    cdef index_entry *out = reading.out
    cdef int status
    while count:
        row = row_of(reading.rows, seq)
        if row == NULL or row.first_seq > seq or row.last_seq < seq:
            return VIEW_BUSY
        part = min(count, row.last_seq - seq + 1)
        if row.file == 0:
            _fill(out, part, INDEX_HOLE | row.flags & 0xFF00 if row.flags & 0xFF00 else INDEX_DELETED, row.last_ts)
        else:
            segment = NULL
            if sealed != NULL and row.file < SEGMENT_FILES_MAX and not _is_shut(sealed, row):
                sealed.maps.failure = 0
                segment = _opened(sealed, reading.rows.topic_id, row, reading.records or row.deleted != 0, False)
                if segment == NULL and for_want_of_room(sealed.maps.failure):
                    return -EIO
            if segment == NULL:
                if sealed != NULL and row.file < SEGMENT_FILES_MAX:
                    _met(sealed, row.file)
                _fill_damaged(reading.regions, row, seq, out, part)
            elif reading.records and reading.regions.segment_files[row.file].kind == SEGMENT_KIND_COLD \
                    and not _cold_there(sealed, row, segment, seq, part):
                return -EIO
            else:
                status = _of_segment(reading, row, segment, seq, part, out)
                if status != 0:
                    return status
        out += part
        seq += part
        count -= part
    return 0


cdef int _index_is_there(void *argument) noexcept nogil:
    """0 when all of a row's index can be read and believed."""
    cdef Opening *opening = <Opening *>argument
    cdef Segment segment
    cdef uint64_t upto = 0
    if _opened(opening.sealed, opening.topic_id, opening.row, False, False) == NULL:
        return -EIO
    segment = opening.sealed.segment
    return segment_verify_index(&segment, opening.row.first_seq, opening.row.last_seq - opening.row.first_seq + 1, &upto)


cdef int _without_bad_pages(const Regions *regions, const Rows *rows, const segment_row *row, bint data) noexcept nogil:
    """The disk has not given back a page of a segment: if it is one of the index, have the index made again. -EIO: of what is not here yet."""
    cdef Opening opening
    cdef bint cold = regions.segment_files[row.file].kind == SEGMENT_KIND_COLD
    cdef int status = 0
    opening.sealed, opening.topic_id, opening.row = <Sealed *>regions.sealed, rows.topic_id, row
    if row.file == 0 or _is_shut(opening.sealed, row):
        return 0
    if guarded_call(_index_is_there, &opening) != 0:
        if not cold or not data:
            sealed_mended(regions, rows, row, data and not cold)
        else:
            opening.sealed.maps.failure = 0
            _met(opening.sealed, row.file)
            if _mended(opening.sealed, rows.topic_id, row, True) == NULL and for_want_of_room(opening.sealed.maps.failure):
                status = -EIO
    opening.sealed.open_turn = 0
    return status


cdef int sealed_entries(const Regions *regions, const Rows *rows, uint64_t first_seq, uint32_t count, index_entry *out, bint records) noexcept nogil:
    return _entries(regions, rows, first_seq, count, out, records, False)


cdef int sealed_entry(const Regions *regions, const Rows *rows, uint64_t seq, index_entry *out) noexcept nogil:
    return _entries(regions, rows, seq, 1, out, True, True)


cdef int _entries(const Regions *regions, const Rows *rows, uint64_t first_seq, uint32_t count, index_entry *out, bint records,
                  bint closely) noexcept nogil:
    cdef Reading reading
    cdef const segment_row *row
    cdef const segment_row *before = NULL
    cdef uint32_t number
    reading.regions, reading.rows, reading.seq, reading.count, reading.out, reading.records = regions, rows, first_seq, count, out, records
    reading.closely = closely
    reading.faulted = True
    cdef int status = guarded_call(_read, &reading)
    if status != -EIO or not reading.faulted:
        return status
    # The disk has not given a page back. Once the keeper has met that too it is damage, record by record; until then it may pass.
    (<Sealed *>regions.sealed).open_turn = 0
    for number in range(count):
        row = row_of(rows, first_seq + number)
        if row == NULL or row.file >= SEGMENT_FILES_MAX:
            return VIEW_BUSY
        if row != before:
            status = _without_bad_pages(regions, rows, row, records)
            if status != 0:
                return status
            before = row
        reading.seq, reading.count, reading.out, reading.faulted = first_seq + number, 1, out + number, True
        status = guarded_call(_read, &reading)
        if status == -EIO and reading.faulted:
            (<Sealed *>regions.sealed).open_turn = 0
            _met(<Sealed *>regions.sealed, row.file)
            if regions.segment_files[row.file].suspect != <uint32_t>SUSPECT_TRUE:
                return -EIO
            _fill_damaged(regions, row, first_seq + number, out + number, 1)
        elif status != 0:
            return status
    return 0


cdef struct Bisecting:
    const Segment *segment
    uint64_t from_seq, ts, found


cdef int _bisect(void *argument) noexcept nogil:
    cdef Bisecting *bisecting = <Bisecting *>argument
    return segment_lower_bound_ts(bisecting.segment, bisecting.from_seq, bisecting.ts, &bisecting.found)


cdef uint64_t sealed_lower_bound_ts(const Regions *regions, const Rows *rows, uint64_t from_seq, uint64_t ts) noexcept nogil:
    cdef uint32_t low = 0, high = rows.count, middle
    cdef const segment_row *row
    cdef Bisecting bisecting
    while low < high:
        middle = (low + high) // 2
        if rows.at[middle].last_ts < ts or rows.at[middle].last_seq < from_seq:
            low = middle + 1
        else:
            high = middle
    if low == rows.count:
        return rows.at[rows.count - 1].last_seq + 1 if rows.count else 0
    row = &rows.at[low]
    if row.file == 0 and row.flags & 0xFF00 == 0:    # nothing is left in it, and nobody knows the times any more: what follows is not below its last
        return row.last_seq + 1
    bisecting.segment = sealed_open(regions, rows, row, False, False)
    bisecting.from_seq, bisecting.ts = max(from_seq, row.first_seq), ts
    if bisecting.segment != NULL and guarded_call(_bisect, &bisecting) == SEGMENT_OK:
        return bisecting.found
    bisecting.segment = sealed_mended(regions, rows, row, False)
    if bisecting.segment == NULL or guarded_call(_bisect, &bisecting) != SEGMENT_OK:
        return bisecting.from_seq
    return bisecting.found


# ---- the writer -------------------------------------------------------------------------------------------------------------


cdef const index_entry *sealed_at(const Regions *regions, const topic_slot *topic, uint64_t seq) noexcept nogil:
    cdef Sealed *sealed = <Sealed *>regions.sealed
    cdef const segment_row *row
    cdef Rows rows
    cdef uint64_t first, count
    if sealed == NULL:
        return NULL
    if sealed.window_count and sealed.window_topic == topic.topic_id and sealed.window_changes == sealed.changes \
            and sealed.window_first <= seq < sealed.window_first + sealed.window_count:
        return &sealed.window[seq - sealed.window_first]
    rows_of_topic(regions, topic, &rows)
    row = row_of(&rows, seq)
    if row == NULL:
        return NULL
    first = row.first_seq + (seq - row.first_seq) // SEALED_WINDOW * SEALED_WINDOW
    count = min(<uint64_t>SEALED_WINDOW, row.last_seq - first + 1)
    if sealed_entries(regions, &rows, first, <uint32_t>count, sealed.window, False) != 0:
        _fill_damaged(regions, row, first, sealed.window, count)
    sealed_tell(regions)
    sealed.window_topic, sealed.window_first, sealed.window_count = topic.topic_id, first, <uint32_t>count
    sealed.window_changes = sealed.changes
    return &sealed.window[seq - first]


cdef void sealed_changed(const Regions *regions) noexcept nogil:
    if regions.sealed != NULL:
        (<Sealed *>regions.sealed).changes += 1


# Row 0 of the file table is the writer's own: serial = the last one given, name = rows ever used, topic_id = first free, next = first retired.


cdef void segment_files_reset(Regions *regions) noexcept nogil:
    cdef uint64_t number, used = regions.segment_files[0].name
    cdef uint64_t serial = regions.segment_files[0].serial    # goes on: who still holds a number of before must not take another file for it
    for number in range(1, used + 1):
        memset(&regions.segment_files[number], 0, sizeof(segment_file))
    memset(&regions.segment_files[0], 0, sizeof(segment_file))
    regions.segment_files[0].serial = serial
    store_relaxed_64(&regions.control.segments, 0)
    store_relaxed_64(&regions.control.segments_bytes, 0)


cdef uint32_t segment_file_take(Regions *regions, const segment_file *what) noexcept nogil:
    cdef segment_file *own = &regions.segment_files[0]
    cdef uint64_t number = own.topic_id
    cdef segment_file *row
    if number:
        own.topic_id = regions.segment_files[number].next
    elif own.name + 1 < SEGMENT_FILES_MAX:
        own.name += 1
        number = own.name
    else:
        return 0
    row = &regions.segment_files[number]
    own.serial += 1
    row.serial = own.serial
    row.topic_id, row.name, row.edition, row.bytes, row.kind = what.topic_id, what.name, what.edition, what.bytes, what.kind
    row.rows, row.next, row.suspect = 0, 0, SUSPECT_NOT
    store_release_32(&row.state, SEGMENT_HOT)
    store_relaxed_64(&regions.control.segments_bytes, regions.control.segments_bytes + row.bytes)
    return <uint32_t>number


cdef void segment_file_dropped(Regions *regions, uint32_t number) noexcept nogil:
    """One row less leads into a file; after the last it is retired."""
    cdef segment_file *own = &regions.segment_files[0]
    cdef segment_file *row = &regions.segment_files[number]
    row.rows -= 1
    if row.rows:
        return
    row.next = own.next
    own.next = number
    store_relaxed_64(&regions.control.segments_bytes, regions.control.segments_bytes - row.bytes)
    store_release_32(&row.state, SEGMENT_RETIRED)


cdef uint32_t segment_file_retired(Regions *regions) noexcept nogil:
    cdef segment_file *own = &regions.segment_files[0]
    cdef uint64_t number = own.next
    if number:
        own.next = regions.segment_files[number].next
        regions.segment_files[number].next = 0
    return <uint32_t>number


cdef void segment_file_free(Regions *regions, uint32_t number) noexcept nogil:
    cdef segment_file *own = &regions.segment_files[0]
    store_release_32(&regions.segment_files[number].state, SEGMENT_FREE)
    regions.segment_files[number].next = own.topic_id
    own.topic_id = number


cdef inline uint64_t _room(const topic_slot *topic) noexcept nogil:
    return (<uint64_t>1 << (SLAB_MIN_SHIFT + topic.segments_class)) // sizeof(segment_row) if topic.segments_offset else 0


cdef int rows_append(Regions *regions, topic_slot *topic, const segment_row *row) noexcept nogil:
    cdef uint64_t old = topic.segments_offset, offset = old
    cdef uint32_t old_class = topic.segments_class, slab_class = old_class
    if topic.segments_len >= _room(topic):
        slab_class = slab_class_for((topic.segments_len + 1) * sizeof(segment_row))
        offset = slab_take(regions, slab_class) if slab_class < SLAB_CLASSES else 0
        if offset == 0:
            return -ENOMEM
        if old:
            memcpy(regions.index + offset, regions.index + old, topic.segments_len * sizeof(segment_row))
    (<segment_row *>(regions.index + offset))[topic.segments_len] = row[0]
    if row.file:
        regions.segment_files[row.file].rows += 1
    slot_lock(topic)
    topic.segments_offset = offset
    topic.segments_class = slab_class
    topic.segments_len += 1
    topic.sealed_through = row.last_seq
    if row.flags & ROW_HOLES:
        topic.sealed_holes += 1
    slot_unlock(topic)
    if old and old != offset:
        slab_give(regions, old, old_class)
    store_relaxed_64(&regions.control.segments, regions.control.segments + 1)
    sealed_changed(regions)
    return 0


cdef void _free_marks(Regions *regions, segment_row *row) noexcept nogil:
    if row.marks_at:
        slab_give(regions, <uint64_t>row.marks_at << MARKS_UNIT_SHIFT, slab_class_for((row.last_seq - row.first_seq) // 64 * 8 + 8))


cdef uint32_t rows_drop_below(Regions *regions, topic_slot *topic, uint64_t seq) noexcept nogil:
    cdef segment_row *rows = <segment_row *>(regions.index + topic.segments_offset)
    cdef segment_row gone
    cdef uint32_t dropped = 0
    while topic.segments_len and rows[0].last_seq < seq:
        gone = rows[0]
        slot_lock(topic)
        memmove(rows, rows + 1, (topic.segments_len - 1) * sizeof(segment_row))
        topic.segments_len -= 1
        if gone.flags & ROW_HOLES:
            topic.sealed_holes -= 1
        slot_unlock(topic)
        _free_marks(regions, &gone)
        if gone.file:
            segment_file_dropped(regions, gone.file)
        dropped += 1
    if dropped:
        if topic.segments_len == 0:
            _drop_slab(regions, topic)
        store_relaxed_64(&regions.control.segments, regions.control.segments - dropped)
        sealed_changed(regions)
    return dropped


cdef void _drop_slab(Regions *regions, topic_slot *topic) noexcept nogil:
    cdef uint64_t offset = topic.segments_offset
    cdef uint32_t slab_class = topic.segments_class
    slot_lock(topic)
    topic.segments_offset = topic.segments_class = topic.segments_len = 0
    topic.sealed_holes = 0
    slot_unlock(topic)
    slab_give(regions, offset, slab_class)


cdef void rows_drop_all(Regions *regions, topic_slot *topic) noexcept nogil:
    if topic.segments_len:
        rows_drop_below(regions, topic, <uint64_t>-1)
    slot_lock(topic)
    topic.sealed_through = topic.sealed_holes = 0
    slot_unlock(topic)


cdef segment_row *row_at(Regions *regions, topic_slot *topic, uint64_t seq) noexcept nogil:
    cdef Rows rows
    rows_of_topic(regions, topic, &rows)
    return <segment_row *>row_of(&rows, seq)


cdef int row_mark(Regions *regions, topic_slot *topic, segment_row *row, uint64_t seq) noexcept nogil:
    cdef uint64_t bytes = (row.last_seq - row.first_seq) // 64 * 8 + 8, offset
    cdef uint64_t *marks
    cdef uint64_t bit = seq - row.first_seq
    if row.marks_at == 0:
        offset = slab_take(regions, slab_class_for(bytes))
        if offset == 0 or offset >> MARKS_UNIT_SHIFT > UINT32_MAX:
            return -ENOMEM
        memset(regions.index + offset, 0, bytes)
        slot_lock(topic)
        row.marks_at = <uint32_t>(offset >> MARKS_UNIT_SHIFT)
        slot_unlock(topic)
    marks = <uint64_t *>(regions.index + (<uint64_t>row.marks_at << MARKS_UNIT_SHIFT))
    if (marks[bit >> 6] >> (bit & 63)) & 1:
        return 0
    store_relaxed_64(&marks[bit >> 6], marks[bit >> 6] | <uint64_t>1 << (bit & 63))
    sealed_changed(regions)
    return 1


cdef void row_flag(Regions *regions, topic_slot *topic, segment_row *row, uint32_t flags, uint32_t without) noexcept nogil:
    slot_lock(topic)
    row.flags = row.flags & ~without | flags
    slot_unlock(topic)
    sealed_changed(regions)


cdef void row_let_go(Regions *regions, topic_slot *topic, segment_row *row) noexcept nogil:
    cdef segment_row before = row[0]
    slot_lock(topic)
    row.live_bytes = row.live = row.deleted = row.file = row.flags = 0
    row.data_at = row.index_at = row.tags_at = row.marks_at = 0
    slot_unlock(topic)
    _free_marks(regions, &before)
    segment_file_dropped(regions, before.file)
    sealed_changed(regions)


cdef void row_unmark(Regions *regions, topic_slot *topic, segment_row *row, uint32_t flagged) noexcept nogil:
    cdef segment_row before = row[0]
    slot_lock(topic)
    row.marks_at = 0
    row.deleted += flagged
    slot_unlock(topic)
    _free_marks(regions, &before)
    sealed_changed(regions)
