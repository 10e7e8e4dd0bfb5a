# What stands on the wire of a stream: SSE events (A §7.5) and WebSocket messages (A §7.7) around records as they are stored.
#
#   frame.bytes   | free ... | head | records | tail | tombstone | caught-up |
#                            ^ record_at             ^ record_end ...
#
# The head is written in front of the records once they are there (its numbers, and the length in a WebSocket header, depend on them).
# SSE: `data` is one line, so a raw LF or CR between the tokens of a record becomes a space (scan.pxd: they stand nowhere else).
#
# ids: base64url of {"<topic>":<seq>,...,"$epochs":{"<topic>":<epoch>,...}} without padding; of a large session {"$session":"<tag>","$at":<move>}.
#
# Owner: one thread; nothing here is shared.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from topicsd._native.diff cimport ReaderCore
from topicsd._native.feed cimport Frame
from topicsd._native.render cimport Buffer
from topicsd._native.scan cimport DiffRequest

# READ_* of state.pxd. Renders what `request` asks for behind (epoch, seq) up to `limit`, all parts.
cdef int render_frame(ReaderCore *reader, uint32_t slot, uint64_t topic_id, DiffRequest *request, int format, uint64_t epoch, uint64_t seq,
                      uint64_t limit, uint64_t now_ms, Frame *frame) noexcept nogil
# Append one event or message about a topic; `kind` 0: topic-deleted. 0 or -ENOMEM.
cdef int render_deleted(Buffer *out, int format, const char *name, uint32_t name_bytes, uint64_t head) noexcept nogil
cdef int put_base64(Buffer *out, const uint8_t *text, uint64_t size) noexcept nogil
