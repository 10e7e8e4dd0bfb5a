# What routers have noted of their sources and not yet copied, packed for a snapshot, and back (docs/format/snapshot.md, section `notes`).
#
#   a note  | struct NoteRow | 24 B an index entry | struct Part each | blob | zeroes up to 8 | origins: struct OriginRow, text, zeroes up to 8 |
#
# A note is the only thing that still knows a record which its source has evicted and a held-up router has not copied: a router skips nothing, so
# it goes into the snapshot, which in turn keeps the log that its entries point at (Packed.low). Its size has the bound of notes, 4 MiB a source.
# Left out is what ends with the server: records in memory only, and copies in an ephemeral topic.
#
# One thread, the writer's; nothing in flight while packing, and before the first frame is replayed while loading.
from libc.stdint cimport uint32_t, uint64_t

from topicsd._native.checkpoint cimport Packed
from topicsd._native.topics cimport Core

cdef enum:
    NOTE_WHOLE = 1         # the blob holds whole records, else tags

cdef struct NoteRow:
    uint64_t topic_id, first_seq
    uint32_t count, flags, blob_bytes, origins

cdef int pack_notes(Packed out, Core *core, uint32_t slot) noexcept nogil       # of one source; 0, -ENOMEM
