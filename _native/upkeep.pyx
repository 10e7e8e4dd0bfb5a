"""What the keeper sees of segment files, and how a row comes to lead into another one (see upkeep.pxd)."""

from collections import namedtuple

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EIO, ENOMEM
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from topicsd._native.atomics cimport add_64, load_acquire_32, load_acquire_64, load_relaxed_64, store_release_32
from topicsd._native.cold_window cimport ColdWindows, cold_window_put, cold_windows_new
from topicsd._native.engine_core cimport EngineCore
from topicsd._native.layout cimport (
    INDEX_DELETED, INDEX_HOLE, LOSS_CORRUPT, ROW_DAMAGED, ROW_HOLES, ROW_MISSED, ROW_OWES, ROW_STORED, SEGMENT_FILES_MAX, SEGMENT_HOT, SUSPECT_MET,
    UNREADABLE_BYTES_BITS, index_entry, segment_body, segment_file, segment_row, topic_slot,
)
from topicsd._native.regions cimport Regions, Shared
from topicsd._native.sealed cimport (
    ROW_LOST, SEGMENT_KIND_COLD, Rows, Sealed, row_at, row_flag, row_let_go, row_marked, rows_of_topic, rows_of_view, sealed_changed,
    sealed_entries, sealed_mended, sealed_open, sealed_tell, sealed_turn, segment_file_dropped,
)
from topicsd._native.sealed cimport row_of as row_in
from topicsd._native.table cimport TopicView, slot_lock, slot_unlock, view_still, view_take
from topicsd._native.topics cimport leave_out, touch

File = namedtuple("File", "number serial kind topic_id name edition bytes")
Live = namedtuple("Live", "live live_bytes seqs")

SOUND, MET, DAMAGED = range(3)    # enum suspicion

cdef enum:
    TRIES = 16
    FLAG_DELETED = 0xD5
    LOOK = 64
    DEAD_ROW = 0               # no file has this number


def listed(Shared shared not None):
    """Return every file that is alive."""
    cdef uint64_t number, used = min(shared.r.segment_files[0].name, <uint64_t>SEGMENT_FILES_MAX - 1)
    cdef const segment_file *file
    cdef list out = []
    for number in range(1, used + 1):
        file = &shared.r.segment_files[number]
        if load_acquire_32(&file.state) == <uint32_t>SEGMENT_HOT:
            out.append(File(number, file.serial, file.kind, file.topic_id, file.name, file.edition, file.bytes))
    return out


def lives(Shared shared not None, uint32_t number, uint64_t serial):
    """Say whether a file still is what it was when it was listed."""
    if number >= SEGMENT_FILES_MAX:
        return False
    cdef const segment_file *file = &shared.r.segment_files[number]
    return load_acquire_32(&file.state) == <uint32_t>SEGMENT_HOT and file.serial == serial


# ---- damage -----------------------------------------------------------------------------------------------------------------


def suspects(Shared shared not None, uint32_t suspicion):
    """Return the living files of which somebody has found what `suspicion` says (enum suspicion)."""
    return [file for file in listed(shared) if shared.r.segment_files[<uint32_t>file.number].suspect == suspicion]


def suspect(Shared shared not None, uint32_t number, uint64_t serial, uint32_t suspicion):
    """Say what is known of a file, if it still is what it was when it was listed."""
    if not lives(shared, number, serial):
        return False
    store_release_32(&shared.r.segment_files[number].suspect, suspicion)
    if suspicion == <uint32_t>SUSPECT_MET:
        add_64(&shared.r.control.damage_met, 1)
    return True


cdef struct Unreadable:
    uint64_t records, bytes


cdef int _count_unreadable(const Regions *regions, const Rows *rows, const segment_row *row, uint64_t earliest, Unreadable *out) noexcept nogil:
    """Count the live records of a row that a reader would be told as `corrupt`. 0, or VIEW_BUSY, or -EIO."""
    cdef index_entry shown[LOOK], known[LOOK]
    cdef uint64_t seq = max(row.first_seq, earliest), without = 0, found = 0, size
    cdef uint32_t number, count
    cdef int status
    sealed_turn(regions)
    if seq == row.first_seq and sealed_open(regions, rows, row, False, False) == NULL:
        if row.file and regions.segment_files[row.file].kind == SEGMENT_KIND_COLD:    # its index; the object may be sound, and be read without
            return -EIO
        if sealed_mended(regions, rows, row, True) == NULL:    # a read has its index made again of the data, where there is some
            out.records += row.live
            out.bytes += row.live_bytes
            return 0
    size = row.live_bytes // max(row.live, <uint32_t>1)
    while seq <= row.last_seq:
        count = <uint32_t>min(row.last_seq - seq + 1, <uint64_t>LOOK)
        status = sealed_entries(regions, rows, seq, count, shown, True)
        if status == 0:
            status = sealed_entries(regions, rows, seq, count, known, False)
        if status != 0:
            return status
        for number in range(count):
            if not shown[number].flags & INDEX_HOLE or (shown[number].flags >> 8) & 0xFF != LOSS_CORRUPT or row_marked(regions, row, seq + number):
                continue
            if known[number].flags & INDEX_HOLE:    # its index is damaged, too: nobody knows how long it was
                without += 1
            elif not known[number].flags & INDEX_DELETED:
                found += 1
                out.bytes += known[number].bytes
        seq += count
        sealed_turn(regions)
    without = min(without, row.live - min(<uint64_t>row.live, found))
    out.records += found + without
    out.bytes += without * size
    return 0


def left_out(Shared shared not None):
    """Return [(slot, topic id)] of the topics whose counts leave something out."""
    cdef uint64_t slot
    cdef const topic_slot *topic
    cdef list out = []
    for slot in range(load_acquire_64(&shared.r.control.table_high)):
        topic = &shared.r.table[slot]
        if load_relaxed_64(&topic.unreadable) and load_relaxed_64(&topic.topic_id):
            out.append((slot, load_relaxed_64(&topic.topic_id)))
    return out


def unreadable(Shared shared not None, uint32_t number):
    """Return [(slot, topic id, records, bytes)] of what a reader can not have any more of a file's live records, by topic."""
    cdef const Regions *regions = &shared.r
    cdef uint64_t slot = 0, high = load_acquire_64(&regions.control.table_high)
    cdef TopicView view
    cdef Rows rows
    cdef Unreadable found
    cdef segment_row row
    cdef uint32_t place
    cdef int status, _
    cdef list out = []
    while True:
        with nogil:
            slot = _next_slot(regions, slot, high, number)
        if slot == high:
            return out
        for _ in range(TRIES):
            memset(&found, 0, sizeof(found))
            if view_take(regions, <uint32_t>slot, &view) != 0 or rows_of_view(regions, &view, &rows) != 0:
                break
            status = 0
            for place in range(rows.count):
                row = rows.at[place]
                if not view_still(regions, <uint32_t>slot, &view):    # the row is whole: its range may be believed
                    break
                if row.file == number and row.last_seq >= view.earliest and status == 0:
                    with nogil:
                        status = _count_unreadable(regions, &rows, &row, view.earliest, &found)
            if status == 0 and view_still(regions, <uint32_t>slot, &view):
                if found.records:
                    out.append((slot, view.topic_id, found.records, found.bytes))
                break
        slot += 1


cdef void _count(const Regions *regions, Dead *by_file, uint64_t files) noexcept nogil:
    cdef uint64_t slot, high = load_acquire_64(&regions.control.table_high)
    cdef uint32_t number
    cdef TopicView view
    cdef Rows rows
    cdef const segment_row *row
    for slot in range(high):
        if load_relaxed_64(&regions.table[slot].topic_id) == 0 or load_relaxed_64(&regions.table[slot].sealed_through) == 0:
            continue
        if view_take(regions, <uint32_t>slot, &view) != 0 or rows_of_view(regions, &view, &rows) != 0:
            continue
        for number in range(rows.count):
            row = &rows.at[number]
            if row.file and row.file <= files:
                by_file[row.file].live += row.live
                by_file[row.file].live_bytes += row.live_bytes
                by_file[row.file].seqs += row.last_seq - row.first_seq + 1


def tally(Shared shared not None):
    """Return what is alive in each file that a row leads into, by its number."""
    cdef uint64_t number, used = min(shared.r.segment_files[0].name, <uint64_t>SEGMENT_FILES_MAX - 1)
    cdef Dead *by_file = <Dead *>calloc(used + 1, sizeof(Dead))
    if by_file == NULL:
        raise MemoryError
    try:
        with nogil:
            _count(&shared.r, by_file, used)
        return [(number, Live(by_file[number].live, by_file[number].live_bytes, by_file[number].seqs))
                for number in range(1, used + 1) if by_file[number].seqs]
    finally:
        free(by_file)


cdef void _body(const Regions *regions, const segment_row *row, segment_body *out) noexcept nogil:
    out.row = row[0]
    out.row.flags &= ROW_STORED
    memset(&out.file, 0, sizeof(segment_file))
    if row.file and row.file < SEGMENT_FILES_MAX:
        out.file = regions.segment_files[row.file]
        out.file.serial = out.file.next = 0
        out.file.rows = out.file.state = 0
        out.row.file = 1


cdef list _of_slot(const Regions *regions, uint32_t slot, uint32_t file):
    """The rows of one topic that lead into `file`; [] when the ground moved too often."""
    cdef TopicView view
    cdef Rows rows
    cdef segment_body body
    cdef uint32_t number
    cdef uint64_t seq, count
    cdef list out
    cdef bytes flags
    cdef uint8_t *flag
    for _ in range(TRIES):
        out = []
        if view_take(regions, slot, &view) != 0 or rows_of_view(regions, &view, &rows) != 0:
            return []
        for number in range(rows.count):
            if rows.at[number].file != file:
                continue
            _body(regions, &rows.at[number], &body)
            if not view_still(regions, slot, &view):    # the row is whole: its range may be believed
                break
            count = body.row.last_seq - body.row.first_seq + 1
            flags = PyBytes_FromStringAndSize(NULL, count)
            flag = <uint8_t *>PyBytes_AS_STRING(flags)
            for seq in range(count):
                flag[seq] = FLAG_DELETED if row_marked(regions, &body.row, body.row.first_seq + seq) else 0
            body.row.marks_at = 0
            out.append((slot, view.topic_id, PyBytes_FromStringAndSize(<char *>&body, sizeof(body)), flags))
        if view_still(regions, slot, &view):
            return out
    return []


cdef uint64_t _next_slot(const Regions *regions, uint64_t slot, uint64_t high, uint32_t file) noexcept nogil:
    """The first slot from `slot` on that seems to have a row of the file (DEAD_ROW: one of which nothing is left); `high` for none."""
    cdef TopicView view
    cdef Rows rows
    cdef uint32_t number
    while slot < high:
        if load_relaxed_64(&regions.table[slot].topic_id) and load_relaxed_64(&regions.table[slot].sealed_through):
            if view_take(regions, <uint32_t>slot, &view) == 0 and rows_of_view(regions, &view, &rows) == 0:
                for number in range(rows.count):
                    if _is_dead(&rows.at[number]) if file == DEAD_ROW else rows.at[number].file == file:
                        return slot
        slot += 1
    return high


cdef list _slots_of(Shared shared, uint32_t number):
    """The slots that seem to have a row of the file."""
    cdef uint64_t slot = 0, high = load_acquire_64(&shared.r.control.table_high)
    cdef list out = []
    while number:
        with nogil:
            slot = _next_slot(&shared.r, slot, high, number)
        if slot == high:
            break
        out.append(slot)
        slot += 1
    return out


def firsts(Shared shared not None, uint32_t number):
    """Return the first retained seq of each topic that has a row leading into a file: what stands before it is gone, whatever its row says."""
    cdef uint64_t slot
    return [(slot, load_relaxed_64(&shared.r.table[slot].earliest)) for slot in _slots_of(shared, number)]


def ranges(Shared shared not None, uint32_t number):
    """Return the rows that lead into a file, each with a byte for each of its seqs: 0xD5 where it is deleted."""
    cdef uint32_t slot
    cdef list out = []
    for slot in _slots_of(shared, number):
        out += _of_slot(&shared.r, slot, number)
    return out


# ---- rows of which nothing is left ------------------------------------------------------------------------------------------


cdef inline bint _is_dead(const segment_row *row) noexcept nogil:
    """No record of it is left, and none was lost: a hole is told to readers for as long as its seqs are there."""
    return row.file != 0 and row.live == 0 and not row.flags & (ROW_HOLES | ROW_DAMAGED | <uint32_t>ROW_LOST)


cdef list _dead_of(const Regions *regions, uint32_t slot):
    """The dead rows of one topic; [] when the ground moved too often."""
    cdef TopicView view
    cdef Rows rows
    cdef segment_body body
    cdef uint32_t number
    cdef list out
    for _ in range(TRIES):
        out = []
        if view_take(regions, slot, &view) != 0 or rows_of_view(regions, &view, &rows) != 0:
            return []
        for number in range(rows.count):
            if _is_dead(&rows.at[number]):
                _body(regions, &rows.at[number], &body)
                body.row.marks_at = 0
                out.append((slot, view.topic_id, PyBytes_FromStringAndSize(<char *>&body, sizeof(body))))
        if view_still(regions, slot, &view):
            return out
    return []


def dead_rows(Shared shared not None):
    """Return [(slot, topic id, struct segment_body)] of the rows that lead into a file and have no live record and no hole."""
    cdef uint64_t slot = 0, high = load_acquire_64(&shared.r.control.table_high)
    cdef list out = []
    while True:
        with nogil:
            slot = _next_slot(&shared.r, slot, high, DEAD_ROW)
        if slot == high:
            return out
        out += _dead_of(&shared.r, <uint32_t>slot)
        slot += 1


cdef int _all_deleted(const Regions *regions, const Rows *rows, const segment_row *row) noexcept nogil:
    """1: each seq of the row is deleted. 0: one is not, or nobody knows. Below 0: the ground moved, or a page cannot be read now."""
    cdef index_entry entries[LOOK]
    cdef uint64_t seq = row.first_seq
    cdef uint32_t number, count
    cdef int status
    sealed_turn(regions)
    while seq <= row.last_seq:
        count = <uint32_t>min(row.last_seq - seq + 1, <uint64_t>LOOK)
        status = sealed_entries(regions, rows, seq, count, entries, False)
        if status != 0:
            return status if status < 0 else -status
        for number in range(count):
            if not entries[number].flags & INDEX_DELETED or entries[number].flags & INDEX_HOLE:
                return 0
        seq += count
    return 1


def all_deleted(Shared shared not None, uint32_t slot, uint64_t topic_id, uint64_t first_seq, uint64_t last_seq):
    """Say whether every seq of exactly this row is deleted, by its index and its marks. What is so stays so."""
    cdef const Regions *regions = &shared.r
    cdef TopicView view
    cdef Rows rows
    cdef const segment_row *found
    cdef segment_row row
    cdef int status
    for _ in range(TRIES):
        if view_take(regions, slot, &view) != 0 or view.topic_id != topic_id or rows_of_view(regions, &view, &rows) != 0:
            return False
        found = row_in(&rows, first_seq)
        if found == NULL:
            return False
        row = found[0]
        if not view_still(regions, slot, &view):    # the row is whole: its range may be believed
            continue
        if row.first_seq != first_seq or row.last_seq != last_seq or not _is_dead(&row):
            return False
        with nogil:
            status = _all_deleted(regions, &rows, &row)
        if view_still(regions, slot, &view):
            sealed_tell(regions)
            return status == 1
    return False


# ---- the cold tier: this process's windows (cold_window.pxd) ----------------------------------------------------------------


cdef ColdWindows *_windows(Shared shared) except? NULL:
    if shared.r.sealed == NULL:
        raise ValueError("this process has no maps of segment files")
    return (<Sealed *>shared.r.sealed).cold


def cold_attach(Shared shared not None, uint64_t bytes_max):
    """Let this process read from the cold tier through a cache of so many bytes; again is no harm."""
    if _windows(shared) == NULL:
        (<Sealed *>shared.r.sealed).cold = cold_windows_new(bytes_max)
        if (<Sealed *>shared.r.sealed).cold == NULL:
            raise MemoryError


def cold_wanted(Shared shared not None):
    """Return what the last read lacked of the cold tier as (File, begin, end), or None; asking takes it."""
    cdef ColdWindows *windows = _windows(shared)
    cdef const segment_file *file
    cdef uint32_t number
    if windows == NULL or windows.wanted_file == 0:
        return None
    number = windows.wanted_file
    windows.wanted_file = 0
    file = &shared.r.segment_files[number]
    if load_acquire_32(&file.state) != <uint32_t>SEGMENT_HOT or file.serial != windows.wanted_serial:
        return None
    return (File(number, file.serial, file.kind, file.topic_id, file.name, file.edition, file.bytes), windows.wanted_begin, windows.wanted_end)


def cold_put(Shared shared not None, uint64_t serial, uint64_t bytes, uint64_t offset, const uint8_t[::1] what not None):
    """Put blocks of a data part of `bytes` in; `offset` is that of a block. Raises MemoryError, ValueError."""
    cdef ColdWindows *windows = _windows(shared)
    cdef int result = cold_window_put(windows, (<Sealed *>shared.r.sealed).maps.turn, serial, bytes, offset, &what[0], len(what)) if len(what) else 0
    if result != 0:
        raise MemoryError if result == -ENOMEM else ValueError("no block of this file")


def cold_numbers(Shared shared not None):
    """Return (reads that found all they wanted, reads that did not, bytes held)."""
    cdef ColdWindows *windows = _windows(shared)
    if windows == NULL:
        return 0, 0, 0
    return windows.hits, windows.misses, windows.held


# ---- the writer -------------------------------------------------------------------------------------------------------------


def row_of(EngineCore core not None, uint32_t slot, uint64_t first_seq, uint64_t last_seq):
    """Return the row of exactly this range as a struct segment_body, or None."""
    cdef segment_row *row = row_at(core.core.regions, &core.core.regions.table[slot], first_seq)
    cdef segment_body body
    if row == NULL or row.first_seq != first_seq or row.last_seq != last_seq:
        return None
    _body(core.core.regions, row, &body)
    return PyBytes_FromStringAndSize(<char *>&body, sizeof(body))


def replace(EngineCore core not None, uint32_t slot, bytes body not None, uint32_t number):
    """Let the row of exactly the body's range lead into file `number`. False when there is no such row."""
    cdef Regions *regions = core.core.regions
    cdef topic_slot *topic = &regions.table[slot]
    cdef segment_body made
    cdef segment_row *row
    cdef uint32_t old
    if len(body) < <Py_ssize_t>sizeof(segment_body):
        raise ValueError("a segment's row is cut short")
    memcpy(&made, PyBytes_AS_STRING(body), sizeof(segment_body))
    row = row_at(regions, topic, made.row.first_seq)
    if row == NULL or row.first_seq != made.row.first_seq or row.last_seq != made.row.last_seq or number == 0:
        return False
    touch(&core.core, slot)
    old = row.file
    regions.segment_files[number].rows += 1
    slot_lock(topic)
    row.file = number
    row.data_at, row.index_at, row.tags_at = made.row.data_at, made.row.index_at, made.row.tags_at
    row.flags, row.deleted = made.row.flags | row.flags & ~ROW_STORED, 0
    slot_unlock(topic)
    if old:
        segment_file_dropped(regions, old)
    sealed_changed(regions)
    return True


def is_dead(EngineCore core not None, uint32_t slot, uint64_t first_seq, uint64_t last_seq):
    """Say whether the row of exactly this range leads into a file and has no live record and no hole, as far as its counts tell."""
    cdef const segment_row *row = row_at(core.core.regions, &core.core.regions.table[slot], first_seq)
    return row != NULL and row.first_seq == first_seq and row.last_seq == last_seq and _is_dead(row)


def let_go(EngineCore core not None, uint32_t slot, uint64_t first_seq, uint64_t last_seq):
    """Let the row of exactly this range, if it is dead, lead nowhere."""
    cdef Regions *regions = core.core.regions
    if is_dead(core, slot, first_seq, last_seq):
        touch(&core.core, slot)
        row_let_go(regions, &regions.table[slot], row_at(regions, &regions.table[slot], first_seq))


def set_unreadable(EngineCore core not None, uint32_t slot, uint64_t topic_id, uint64_t records, uint64_t size):
    """Say how many of a topic's live records, and of their bytes, the disk has damaged: what is shown of it leaves them out."""
    cdef topic_slot *topic = &core.core.regions.table[slot]
    cdef uint64_t most = (<uint64_t>1 << UNREADABLE_BYTES_BITS) - 1
    records = min(records, (<uint64_t>1 << (64 - UNREADABLE_BYTES_BITS)) - 1)
    if topic.topic_id == topic_id:
        leave_out(&core.core, topic, records << UNREADABLE_BYTES_BITS | min(size, most))


def owed_begins(EngineCore core not None, uint32_t slot):
    """What a topic's rows wait for is tried again: none of them has missed it yet."""
    _flag_rows(core, slot, ROW_MISSED, ROW_MISSED)


def owed_ends(EngineCore core not None, uint32_t slot):
    """It has been tried: readers have again what has not missed it."""
    _flag_rows(core, slot, ROW_OWES | ROW_MISSED, ROW_OWES)


cdef void _flag_rows(EngineCore core, uint32_t slot, uint32_t looked_at, uint32_t which) noexcept:
    """Take the flags `which` from rows that have them and no other of `looked_at`."""
    cdef topic_slot *topic = &core.core.regions.table[slot]
    cdef Rows rows
    cdef uint32_t number
    rows_of_topic(core.core.regions, topic, &rows)
    for number in range(rows.count):
        if rows.at[number].flags & looked_at == which:
            row_flag(core.core.regions, topic, <segment_row *>&rows.at[number], 0, which)


def missed(EngineCore core not None):
    """Return how many records, or whole rows, deletes by tag could not look at, ever."""
    return (<Sealed *>core.core.regions.sealed).missed if core.core.regions.sealed != NULL else 0
