# A column of text that has to be JSON, checked in place: what the Spark sink does before it puts `data` into the body of a write.
#
#   Arrow string column (offsets i32, bytes) --first_wrong--> the first value that is no JSON text by itself, and where in it
#
# Each value is checked alone, as the server would (json_scan.h: RFC 8259, UTF-8, depth): a text that is only valid inside of a body, such as
# `1},{"data":2`, is wrong. No object per value. Nothing is shared, nothing is kept; the GIL is released.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

cdef extern from "json_scan.h" nogil:
    const uint32_t JSON_DEPTH_MAX
    const int JSON_WIDEST
    ctypedef struct JsonScanner "struct json_scanner":
        const uint8_t *end
        const uint8_t *wrong
    void json_begin(JsonScanner *scanner, const uint8_t *text, size_t length, uint32_t depth_max, int path)
    const uint8_t *json_space(const JsonScanner *scanner, const uint8_t *at)
    const uint8_t *json_value(JsonScanner *scanner, const uint8_t *at, uint32_t depth)
    const uint8_t *json_finish(JsonScanner *scanner, const uint8_t *at)
