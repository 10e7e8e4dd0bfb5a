"""Columns of JSON text (see json_column.pxd)."""

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef enum:
    DEPTH_OF_DATA = 3   # in the body of a write: the object, its records, the record


cdef int64_t _wrong_at(const uint8_t *at, int32_t bytes) noexcept nogil:
    # Where the text stops being JSON; -1: nowhere.
    cdef JsonScanner scanner
    cdef const uint8_t *end
    json_begin(&scanner, at, bytes, JSON_DEPTH_MAX, JSON_WIDEST)
    end = json_space(&scanner, at)
    if end == scanner.end:
        return bytes
    end = json_value(&scanner, end, DEPTH_OF_DATA)
    if end == NULL or json_finish(&scanner, end) == NULL:
        return scanner.wrong - at
    return -1


def first_wrong(const uint8_t[::1] offsets not None, const uint8_t[::1] data, int64_t first, int64_t count):
    """Check values first .. first + count - 1 of an Arrow string column; (index behind first, byte offset in the value) of the first that is no JSON.

    offsets, data: the column's buffers, data None when it has no byte; nulls, which are empty, are the caller's. None: all are JSON, or empty.
    """
    cdef const int32_t *starts = <const int32_t *>&offsets[0] if len(offsets) else NULL
    cdef const uint8_t *bytes_at = NULL
    cdef int64_t index, wrong = -1
    if starts == NULL or (first + count + 1) * <int64_t>sizeof(int32_t) > <int64_t>len(offsets):
        raise ValueError("the column has fewer values")
    if data is not None and len(data):
        bytes_at = &data[0]
    if starts[first + count] > (len(data) if bytes_at != NULL else 0):
        raise ValueError("the column has fewer bytes")
    index = 0
    with nogil:
        while index < count:
            if starts[first + index] < starts[first + index + 1]:
                wrong = _wrong_at(bytes_at + starts[first + index], starts[first + index + 1] - starts[first + index])
                if wrong >= 0:
                    break
            index += 1
    return (index, wrong) if wrong >= 0 else None
