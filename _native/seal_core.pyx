"""Sealed ranges, for the engine (see seal_core.pxd)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from topicsd._native.atomics cimport load_acquire_64, store_release_64
from topicsd._native.engine_core cimport EngineCore
from topicsd._native.layout cimport ROW_STORED, segment_body, segment_file
from topicsd._native.regions cimport RING_LIVE, Shared
from topicsd._native.sealed cimport (
    Rows, rows_drop_all, rows_of_topic, sealed_attach, sealed_sweep, segment_file_free, segment_file_retired, segment_file_take,
    segment_files_reset,
)
from topicsd._native.sealed_topic cimport sealed_admits, sealed_publish
from topicsd._native.topics cimport touch

PUBLISHED, DEAD, OUT_OF_ORDER, BROKEN, NO_MEMORY = range(5)
BODY_BYTES = sizeof(segment_body)


cdef int body_of(bytes body, segment_body *out) except -1:
    if len(body) < <Py_ssize_t>sizeof(segment_body):
        raise ValueError("a segment's row is cut short")
    memcpy(out, PyBytes_AS_STRING(body), sizeof(segment_body))
    return 0


def attach(Shared shared not None, directory):
    """Give this process its maps of segment files."""
    sealed_attach(shared, directory)


def reset_files(Shared shared not None):
    """Empty the segment-file table: a writer starts."""
    segment_files_reset(&shared.r)


def admits(EngineCore core not None, uint32_t slot, bytes body not None):
    """Tell whether a row may be published now: one of the codes."""
    cdef segment_body row
    body_of(body, &row)
    return sealed_admits(&core.core, slot, &row)


def take_file(EngineCore core not None, bytes body not None):
    """Put the file that a row leads into into the table; return its number, 0 when the table is full."""
    cdef segment_body row
    body_of(body, &row)
    return segment_file_take(core.core.regions, &row.file)


def publish(EngineCore core not None, uint32_t slot, bytes body not None, uint32_t number):
    """Move a range of the tail into a row that leads into file `number` (0: none): one of the codes."""
    cdef segment_body row
    cdef int result
    body_of(body, &row)
    with nogil:
        result = sealed_publish(&core.core, slot, &row, number)
    return result


def file_rows(EngineCore core not None, uint32_t number):
    """How many rows lead into a file."""
    return core.core.regions.segment_files[number].rows


def take_retired(EngineCore core not None):
    """Return the files that no row leads into any more as [(number, kind, topic id, name, edition)], each once."""
    cdef list gone = []
    cdef uint32_t number = segment_file_retired(core.core.regions)
    cdef segment_file *file
    while number:
        file = &core.core.regions.segment_files[number]
        gone.append((number, file.kind, file.topic_id, file.name, file.edition))
        number = segment_file_retired(core.core.regions)
    return gone


def free_file(EngineCore core not None, uint32_t number):
    """Let the number of a retired file be used again: nobody maps it any more."""
    segment_file_free(core.core.regions, number)


def announce_retired(Shared shared not None):
    """Tell every process that files have been retired; return the number that each has to reach."""
    store_release_64(&shared.r.control.files_retired, shared.r.control.files_retired + 1)
    return shared.r.control.files_retired


def all_swept(Shared shared not None, uint64_t announced):
    """Have all workers unmapped what was retired by then?"""
    cdef uint32_t ring
    for ring in range(shared.r.ring_slots):
        if load_acquire_64(&shared.r.rings[ring].state) == <uint64_t>RING_LIVE:
            if load_acquire_64(&shared.r.control.workers[ring].maps_swept) < announced:
                return False
    return True


def sweep(Shared shared not None):
    """Unmap in this process what is retired; return how many maps went."""
    return sealed_sweep(&shared.r)


def rows(EngineCore core not None, uint32_t slot):
    """Return a topic's rows as [struct segment_body], files and all."""
    cdef Rows found
    cdef segment_body body
    cdef uint32_t number
    cdef list out = []
    rows_of_topic(core.core.regions, &core.core.regions.table[slot], &found)
    for number in range(found.count):
        body.row = found.at[number]
        body.row.flags &= ROW_STORED
        body.file = core.core.regions.segment_files[found.at[number].file]
        out.append(PyBytes_FromStringAndSize(<char *>&body, sizeof(body)))
    return out


def sealed_through(EngineCore core not None, uint32_t slot):
    """Return the last seq that stands in a segment."""
    return core.core.regions.table[slot].sealed_through


def drop_all(EngineCore core not None, uint32_t slot):
    """Let all rows of a topic go: it is being removed."""
    touch(&core.core, slot)
    rows_drop_all(core.core.regions, &core.core.regions.table[slot])
