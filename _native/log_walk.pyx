"""Walk a shard's log: show every good frame in order, tell the end, a torn tail and damage apart, change nothing."""

import os
import re
from collections import namedtuple

from libc.errno cimport ENOMEM
from libc.stdint cimport UINT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset
from posix.fcntl cimport O_RDONLY
from posix.mman cimport madvise
from posix.stdlib cimport posix_memalign

from topicsd._native.files cimport Files, FileSystem
from topicsd._native.frame cimport FRAME_NONE, FRAME_VALID, frame_body, frame_check, frame_hash
from topicsd._native.layout cimport FRAME_HEADER_BYTES, FRAME_MAGIC, FRAME_SEGMENT, FRAME_START, LOG_FORMAT_VERSION, frame_header, start_body

LogFile = namedtuple("LogFile", "first_position bytes path")
Damage = namedtuple("Damage", "path offset position bytes expected got")

cdef extern from "<sys/mman.h>" nogil:
    const int MADV_HUGEPAGE

LOG_NAME = re.compile(rb"\d{20}\.log")

cdef enum:
    READ_BYTES = 256 << 10      # a read: large for the disk, small enough that it is hashed while it is in the cache
    PAGE_BYTES = 4096           # when a read fails, the good pages around the bad one are still wanted
    HUGE_PAGE_BYTES = 2 << 20
    START_BYTES = 128
    # more of frame.pxd's FrameStatus, for what only the log can see
    BAD_POSITION = 16           # a whole frame that belongs elsewhere: stale or misplaced
    MISSING_FILE = 17
    # why a walk refuses
    REFUSED_TYPE = 1
    REFUSED_FORMAT = 2

cdef dict REASONS = {
    1: "zeroes", 2: "no frame magic", 3: "an impossible length", 4: "a frame longer than its place", BAD_POSITION: "a frame of another place",
    MISSING_FILE: "no such file",
}


USE_THAT_ONE = "a newer version wrote it: use that release (docs/operations.md, Upgrades)"    # of anything that a newer version wrote


class LogFormatError(Exception):
    """Say that this version cannot read the log: it has a frame of an unknown type or a newer format, or what is no file stands in it."""


cdef struct WalkFile:
    uint64_t first, size
    uint64_t limit         # position where its range ends
    uint64_t void_from     # frames at or above are void
    uint64_t previous_end  # from its START; UINT64_MAX without one
    const char *path

cdef struct DamageRow:
    uint64_t position, bytes, expected, got
    uint32_t file
    int status

cdef struct Reader:        # one file, read from its front as far as it was needed
    const Files *files
    const WalkFile *file
    int fd
    bint unreadable
    uint8_t *bytes
    uint64_t capacity, filled

cdef struct Walk:
    WalkFile *file
    uint32_t count
    uint16_t shard
    Reader main            # the file that the walk is in
    Reader ahead           # looks into later files
    Visit visit
    void *context
    DamageRow *damage
    uint32_t damages, damages_max
    uint64_t known         # below it everything was synced once, whatever later frames say
    uint64_t end, torn_bytes, torn_frames, frames, bytes, synced, generation
    uint8_t boot_id[16]
    bint started
    int stopped
    int error              # -errno or REFUSED_*
    uint32_t error_file
    uint64_t error_offset, error_value


# ---- one file ---------------------------------------------------------------------------------------------------------

cdef int reader_open(Reader *reader, const WalkFile *file) noexcept nogil:
    cdef uint8_t *grown
    if reader.file == file:
        return 0
    reader_close(reader)
    if reader.capacity < file.size:
        free(reader.bytes)
        reader.bytes = NULL
        reader.capacity = 0
        if posix_memalign(<void **>&grown, HUGE_PAGE_BYTES, file.size) != 0:
            return -ENOMEM
        madvise(grown, file.size, MADV_HUGEPAGE)  # else half the time goes into page faults
        reader.bytes = grown
        reader.capacity = file.size
    reader.fd = reader.files.open(reader.files.context, file.path, O_RDONLY, 0)
    if reader.fd < 0:
        return reader.fd
    reader.file = file
    reader.filled = 0
    reader.unreadable = False
    return 0


cdef void reader_close(Reader *reader) noexcept nogil:
    if reader.file != NULL:
        reader.files.close(reader.files.context, reader.fd)
    reader.file = NULL


cdef void reader_fill(Reader *reader, uint64_t wanted) noexcept nogil:
    # Have the first `wanted` bytes in memory. What cannot be read is zeroes: no checksum passes over them.
    cdef uint64_t bytes, page, wanted_here
    cdef uint8_t *at
    cdef int64_t got
    wanted = min(wanted, reader.file.size)
    while reader.filled < wanted:
        bytes = min(<uint64_t>READ_BYTES, reader.file.size - reader.filled)
        got = reader.files.pread(reader.files.context, reader.fd, reader.bytes + reader.filled, bytes, reader.filled)
        if got != <int64_t>bytes:
            reader.unreadable = True
            page = 0
            while page < bytes:
                wanted_here = min(<uint64_t>PAGE_BYTES, bytes - page)
                at = reader.bytes + reader.filled + page
                got = max(reader.files.pread(reader.files.context, reader.fd, at, wanted_here, reader.filled + page), <int64_t>0)
                memset(at + got, 0, wanted_here - <uint64_t>got)
                page += PAGE_BYTES
        reader.filled += bytes


cdef inline const frame_header *frame_at(const Reader *reader, uint64_t position) noexcept nogil:
    return <const frame_header *>(reader.bytes + (position - reader.file.first))


cdef inline uint64_t end_of(const WalkFile *file) noexcept nogil:
    # Where its valid data must end at the latest.
    return min(file.limit, file.void_from)


cdef int check_at(Reader *reader, uint16_t shard, uint64_t position) noexcept nogil:
    # FRAME_VALID, or what stands there instead. A frame that reaches over the end of the valid data is no frame.
    cdef uint64_t offset = position - reader.file.first
    cdef uint64_t stop = min(end_of(reader.file) - reader.file.first, reader.file.size)
    cdef const frame_header *frame
    cdef int status
    if offset >= stop:
        return FRAME_NONE
    reader_fill(reader, offset + FRAME_HEADER_BYTES)
    frame = frame_at(reader, position)
    if stop - offset >= FRAME_HEADER_BYTES and frame.magic == FRAME_MAGIC and frame.length <= stop - offset:
        reader_fill(reader, offset + frame.length)
    status = frame_check(frame, stop - offset)
    if status == FRAME_VALID and (frame.position != position or frame.shard != shard):
        return BAD_POSITION
    return status


cdef uint64_t search(Reader *reader, uint16_t shard, uint64_t position) noexcept nogil:
    # Position of the next valid frame at or after `position`, or the end of the file's valid data.
    cdef uint64_t stop = end_of(reader.file)
    cdef uint64_t last = min(stop, reader.file.first + reader.file.size)
    cdef const frame_header *frame
    while position + FRAME_HEADER_BYTES <= last:
        reader_fill(reader, position - reader.file.first + FRAME_HEADER_BYTES)
        frame = frame_at(reader, position)
        if frame.magic == FRAME_MAGIC and frame.position == position and check_at(reader, shard, position) == FRAME_VALID:
            return position
        position += 8
    return stop


# ---- all files ----------------------------------------------------------------------------------------------------------

cdef void read_starts(Walk *w) noexcept nogil:
    # What each START says, and from it where each file's valid data ends: the least of what all later files say.
    cdef uint8_t raw[START_BYTES]
    cdef const frame_header *frame = <const frame_header *>&raw[0]
    cdef const start_body *body = <const start_body *>(&raw[0] + FRAME_HEADER_BYTES)
    cdef const Files *files = w.main.files
    cdef WalkFile *file
    cdef uint64_t void_from = UINT64_MAX
    cdef uint32_t k
    cdef int fd
    for k in range(w.count):
        file = &w.file[k]
        fd = files.open(files.context, file.path, O_RDONLY, 0)
        if fd < 0:
            w.error = fd
            w.error_file = k
            return
        memset(raw, 0, START_BYTES)
        files.pread(files.context, fd, raw, START_BYTES, 0)
        files.close(files.context, fd)
        file.limit = file.first + (file.size + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
        if frame.type != FRAME_START or frame_check(frame, START_BYTES) != FRAME_VALID or frame.position != file.first or frame.shard != w.shard:
            continue
        if frame.length != START_BYTES or body.format_version != LOG_FORMAT_VERSION:
            w.error = REFUSED_FORMAT
            w.error_file = k
            w.error_value = body.format_version
            return
        file.previous_end = min(body.previous_end, file.first)
        file.limit = max(file.limit, file.first + body.file_bytes)
    for k in range(w.count, 0, -1):
        file = &w.file[k - 1]
        if k < w.count:
            file.limit = w.file[k].first
        file.void_from = void_from
        void_from = min(void_from, file.previous_end)


cdef bint proven(Walk *w, uint32_t index, uint64_t position, uint64_t bad) noexcept nogil:
    # Does any valid frame at or after `position` carry a synced position above `bad`? Then the disk once had what is bad now.
    cdef Reader *reader = &w.main
    cdef const frame_header *frame
    cdef uint32_t k
    for k in range(index, w.count):
        if k > index:
            reader = &w.ahead
            position = w.file[k].first
            if reader_open(reader, &w.file[k]) < 0:
                continue
        while position < end_of(&w.file[k]):
            if check_at(reader, w.shard, position) == FRAME_VALID:
                frame = frame_at(reader, position)
                if frame.synced > bad:
                    return True
                position += frame.length
            else:
                position = search(reader, w.shard, position + 8)
    return False


cdef void measure_torn(Walk *w, uint32_t index, uint64_t position) noexcept nogil:
    # What stands after the end: bytes up to the last that is not zero, and whole frames among them.
    cdef Reader *reader = &w.main
    cdef uint64_t last, at, from_offset
    cdef uint32_t k
    for k in range(index, w.count):
        if k > index:
            reader = &w.ahead
            position = w.file[k].first
            if reader_open(reader, &w.file[k]) < 0:
                continue
        if position >= end_of(&w.file[k]):
            continue
        from_offset = position - w.file[k].first
        last = min(end_of(&w.file[k]) - w.file[k].first, w.file[k].size)
        reader_fill(reader, last)
        while last > from_offset and last % 8 == 0 and last >= 8 and (<const uint64_t *>(reader.bytes + last - 8))[0] == 0:
            last -= 8
        while last > from_offset and reader.bytes[last - 1] == 0:
            last -= 1
        w.torn_bytes += last - min(last, from_offset)
        at = position if check_at(reader, w.shard, position) == FRAME_VALID else search(reader, w.shard, position + 8)
        while at < end_of(&w.file[k]):
            w.torn_frames += 1
            at += frame_at(reader, at).length
            if at < end_of(&w.file[k]) and check_at(reader, w.shard, at) != FRAME_VALID:
                at = search(reader, w.shard, at + 8)


cdef int add_damage(Walk *w, uint32_t index, uint64_t position, uint64_t bytes, int status) noexcept nogil:
    cdef DamageRow *grown
    cdef DamageRow *row
    cdef const frame_header *frame
    if w.damages == w.damages_max:
        grown = <DamageRow *>realloc(w.damage, (w.damages_max * 2 + 16) * sizeof(DamageRow))
        if grown == NULL:
            return -ENOMEM
        w.damage = grown
        w.damages_max = w.damages_max * 2 + 16
    row = &w.damage[w.damages]
    w.damages += 1
    memset(row, 0, sizeof(DamageRow))
    row.position = position
    row.bytes = bytes
    row.file = index
    row.status = status
    if status not in (MISSING_FILE, FRAME_NONE):
        frame = frame_at(&w.main, position)
        row.expected = position if status == BAD_POSITION else frame.xxh3 if status == 5 else FRAME_MAGIC
        row.got = frame.position if status == BAD_POSITION else frame_hash(frame) if status == 5 else frame.magic
    return 0


cdef bint go_over(Walk *w, uint32_t index, uint64_t bad, uint64_t resume, int status) noexcept nogil:
    # A bad place [bad, resume) in front of or in file `index`: damage (True: go on at `resume`) or the end of the log.
    if bad >= w.known and not proven(w, index, max(resume, w.file[index].first), bad):
        w.end = bad
        measure_torn(w, index, max(bad, w.file[index].first))
        return False
    w.error = add_damage(w, index, bad, resume - bad, status)
    w.end = resume
    return w.error == 0


cdef bint show(Walk *w, const frame_header *frame, uint64_t position, uint64_t from_position) noexcept nogil:
    # True: go on.
    cdef const start_body *body = <const start_body *>frame_body(frame)
    w.synced = max(w.synced, frame.synced)
    if not frame.type & 0x80 and (frame.type == 0 or frame.type > FRAME_SEGMENT):
        w.error = REFUSED_TYPE
        w.error_value = frame.type
        w.error_offset = position - w.main.file.first
        w.error_file = <uint32_t>(w.main.file - w.file)
        return False
    if frame.type == FRAME_START and frame.length == START_BYTES:
        w.started = True
        w.generation = body.generation
        memcpy(w.boot_id, body.boot_id, 16)
    if position >= from_position:
        w.frames += 1
        w.bytes += frame.length
        if w.visit != NULL:
            w.stopped = w.visit(w.context, frame, position)
    return w.stopped == 0


cdef void run(Walk *w, uint64_t from_position) noexcept nogil:
    cdef WalkFile *file
    cdef uint64_t at = from_position
    cdef uint64_t lost, stop
    cdef uint32_t k
    cdef int status
    cdef bint first = True
    w.end = from_position
    for k in range(w.count):
        file = &w.file[k]
        if file.limit <= from_position and k + 1 < w.count:
            continue
        w.error = reader_open(&w.main, file)
        if w.error < 0:
            w.error_file = k
            return
        if first:
            at = min(from_position, file.first)
            w.end = at
            first = False
        lost = min(file.first, min(file.previous_end, file.void_from))
        if at < lost and not go_over(w, k, at, lost, MISSING_FILE):
            return
        at = file.first
        stop = end_of(file)
        while at < stop:
            status = check_at(&w.main, w.shard, at)
            if status == FRAME_VALID:
                if not show(w, frame_at(&w.main, at), at, from_position):
                    return
                at += frame_at(&w.main, at).length
                w.end = at
                continue
            lost = search(&w.main, w.shard, at + 8)
            if not go_over(w, k, at, lost, status):
                return
            at = lost
        at = file.limit
    if w.end < w.known:
        w.error = add_damage(w, 0, w.end, w.known - w.end, MISSING_FILE)
        w.end = w.known


# ---- the Python side ------------------------------------------------------------------------------------------------------

cdef class WalkReport:
    """What a walk found. Positions and lengths are bytes."""

    def __repr__(self) -> str:
        return (f"WalkReport(end={self.end}, frames={self.frames}, bytes={self.bytes}, damaged={self.damaged}, torn_bytes={self.torn_bytes}, "
                f"next_position={self.next_position}, reusable={self.reusable}, files={len(self.files)})")


def list_files(bytes directory) -> list:
    """List a shard's files in order of position.

    Other names, those of unfinished files among them, are left alone. Raises OSError, LogFormatError for a name of the log that is no file's; a
    directory that does not exist is empty.
    """
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if not LOG_NAME.fullmatch(entry.name):
                    continue
                if not entry.is_file():
                    raise LogFormatError(
                        f"{os.fsdecode(entry.path)} is no file, where one of the log should be: put it back from a backup, or move away what stands"
                        " there (then what it held is told as lost); nothing has been changed"
                    )
                found.append((entry.name, entry.path, entry.stat().st_size))
    except FileNotFoundError:
        return []
    return [LogFile(int(name[:20]), size, path) for name, path, size in sorted(found)]


cdef object as_damage(const DamageRow *row, list files, bytes directory):
    if row.status == MISSING_FILE:
        path = os.path.join(directory, b"%020d.log" % row.position)
        return Damage(path, 0, row.position, row.bytes, "a log file", REASONS[MISSING_FILE])
    file = files[row.file]
    offset = row.position - file.first_position
    if row.status == 5:
        return Damage(file.path, offset, row.position, row.bytes, f"checksum {row.expected:016x}", f"{row.got:016x}")
    if row.status == BAD_POSITION:
        return Damage(file.path, offset, row.position, row.bytes, f"a frame of position {row.expected}", f"one of position {row.got}")
    return Damage(file.path, offset, row.position, row.bytes, "a frame", REASONS[row.status])


cdef void find_next(WalkReport report, const Walk *w) except *:
    # Where the next file begins: at the last file when nothing was ever written to it, else where its range ends.
    cdef const WalkFile *last
    cdef Reader *reader
    cdef uint64_t at = 0
    if not w.count:
        report.next_position = report.end
        return
    last = &w.file[w.count - 1]
    report.next_position = max(last.limit, report.end)
    if report.end > last.first or last.size % PAGE_BYTES:
        return
    reader = <Reader *>&w.main if w.main.file == last else <Reader *>&w.ahead
    if reader_open(reader, last) < 0:
        return
    reader_fill(reader, last.size)
    if reader.unreadable:
        return
    while at < last.size:
        if (<const uint64_t *>(reader.bytes + at))[0]:
            return
        at += 8
    report.next_position = last.first
    report.reusable = last.size > 0


cdef int raise_refusal(const Walk *w, list files) except -1:
    if w.error == 0:
        return 0
    path = os.fsdecode(files[w.error_file].path)
    if w.error == REFUSED_FORMAT:
        raise LogFormatError(f"{path}: log format version {w.error_value}, this program knows {LOG_FORMAT_VERSION}: {USE_THAT_ONE}")
    if w.error == REFUSED_TYPE:
        raise LogFormatError(f"{path}, byte {w.error_offset}: frame of unknown type {w.error_value}: {USE_THAT_ONE}")
    raise OSError(-w.error, os.strerror(-w.error), path)


cdef WalkReport walk(FileSystem files, bytes directory, uint32_t shard, uint64_t from_position, uint64_t known, Visit visit,
                     void *context):
    cdef WalkReport report = WalkReport()
    cdef list found = list_files(directory)
    cdef Walk w
    cdef uint32_t k
    memset(&w, 0, sizeof(Walk))
    w.main.files = w.ahead.files = &files.table
    w.shard = <uint16_t>shard
    w.visit = visit
    w.context = context
    w.known = known
    w.count = len(found)
    w.file = <WalkFile *>calloc(w.count + 1, sizeof(WalkFile))
    if w.file == NULL:
        raise MemoryError
    for k in range(w.count):
        w.file[k].first = found[k].first_position
        w.file[k].size = found[k].bytes
        w.file[k].previous_end = UINT64_MAX
        w.file[k].path = found[k].path  # `found` keeps it alive
    try:
        with nogil:
            read_starts(&w)
            if w.error == 0:
                run(&w, from_position)
        raise_refusal(&w, found)
        report.files = found
        report.end = w.end
        report.damaged = [as_damage(&w.damage[k], found, directory) for k in range(w.damages)]
        report.torn_bytes = w.torn_bytes
        report.torn_frames = w.torn_frames
        report.frames = w.frames
        report.bytes = w.bytes
        report.synced = w.synced
        report.generation = w.generation
        report.boot_id = w.boot_id[:16] if w.started else b""
        report.stopped = w.stopped
        find_next(report, &w)
        return report
    finally:
        reader_close(&w.main)
        reader_close(&w.ahead)
        free(w.main.bytes)
        free(w.ahead.bytes)
        free(w.damage)
        free(w.file)


cdef int collect(void *context, const frame_header *frame, uint64_t position) noexcept with gil:
    (<list>context).append((<const uint8_t *>frame)[:frame.length])
    return 0


def check(directory, int shard=0, *, FileSystem files=None, uint64_t from_position=0, uint64_t known=0) -> WalkReport:
    """Walk a shard without showing its frames to anyone. `known`: what is bad below it is damage. Raises LogFormatError, OSError."""
    return walk(files or FileSystem(), os.fsencode(directory), shard, from_position, known, NULL, NULL)


def read(directory, int shard=0, *, FileSystem files=None, uint64_t from_position=0) -> tuple:
    """Walk a shard and return the report and all frames as bytes, START and MARK included: for tests and small logs."""
    cdef list frames = []
    report = walk(files or FileSystem(), os.fsencode(directory), shard, from_position, 0, collect, <void *>frames)
    return report, frames


def quarantine(WalkReport report, destination, int shard=0) -> list:
    """Copy each damaged range aside as `<shard>-<position>.bin` and return the paths; a range of a missing file has no bytes to copy.

    The log stays as it is. A copy that is already there is left alone, so that doing it twice is the same as once. Raises OSError.
    """
    return quarantine_ranges(report.damaged, destination, shard)


def quarantine_ranges(damaged, destination, int shard=0) -> list:
    """Copy damaged ranges aside, as `quarantine` does."""
    cdef list copies = []
    os.makedirs(destination, exist_ok=True)
    for damage in damaged:
        copy = os.path.join(os.fsdecode(destination), f"{shard:02d}-{damage.position:020d}.bin")
        if not os.path.exists(damage.path) or os.path.exists(copy):
            continue
        with open(damage.path, "rb") as source, open(copy + ".part", "wb") as target:
            try:
                source.seek(damage.offset)
                target.write(source.read(damage.bytes))
            except OSError:
                pass  # the disk does not give it back: an empty copy marks the place
            target.flush()
            os.fsync(target.fileno())
        os.rename(copy + ".part", copy)
        copies.append(copy)
    return copies
