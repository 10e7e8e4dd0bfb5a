# Routers in the writer: what has come into a source and is not yet in all of its destinations, and how it gets there.
#
#   source topic --Private.outlets--> Outlets { routes, notes }
#                                               |       |
#        Route: cursor, filter, marks  <--------'       '--> Note -> Note -> ...   batches that came in, until every cursor has passed them
#
#   publish(source) -> note_batch -> the source stands in the forwarder's queue
#   Sequencer.forward: for each route  gather (a note, as it is when the route takes all of it) -> a row of a cursor frame, a batch of copies
#   flush: the cursor frame is written, then copies are published (publish_copies) like any batch: first in, first out per destination
#
# A copy is an index entry that points at the source's bytes (copies.pxd); its payload is never written again. What is written is one row of
# 16 B a route and turn (routes.h: routes in step share a frame), in the source's shard, behind the source's frames and before anything that
# follows in the destination.
# So replay makes the same copies with the same seqs from the rows alone, without looking at the destination (docs/routers.md).
#
# Written out instead, as an append with FRAME_FLAG_ROUTED (its cursor travels in it): copies of ephemeral bytes, which may go at any time; copies
# into a topic of another shard, whose log does not stand in one order with the source's; and copies that origins have no room for.
#
# Notes are there because a cap may evict a record in the very turn in which it came in, and because tags are needed again. They are bounded
# (NOTES_BYTES_MAX a source): what a blocked route leaves behind is read from the index and the log instead, while the source retains it.
#
# All of it is the writer's heap, one thread. Shared words: slot.derived and slot.origins (copies.pxd), control.forward_debt.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from topicsd._native.layout cimport frame_header, index_entry, record_entry, topic_slot
from topicsd._native.maps cimport Maps
from topicsd._native.topics cimport Core

cdef extern from "routes.h" nogil:
    const uint32_t CURSOR_HOLE
    const uint32_t CURSOR_COUNT_MAX
    const uint32_t FRAME_FLAG_ROUTED
    const uint32_t ROUTED_MARK

    ctypedef struct cursor_head "struct cursor_head":
        uint64_t before
        uint64_t reserved

    ctypedef struct cursor_row "struct cursor_row":
        uint64_t dest_base
        uint32_t route
        uint32_t count

    ctypedef struct routed_key "struct routed_key":
        uint32_t mark
        uint32_t route
        uint64_t before
        uint64_t after

    ctypedef struct origin_run "struct origin_run":
        uint64_t seq
        uint64_t source
        uint64_t text

    ctypedef struct origins_head "struct origins":
        uint32_t count
        uint32_t capacity
        uint32_t slab_class
        uint32_t reserved

cdef enum:
    ROUTE_DROP_NODE = 1
    ROUTE_DROP_TAG = 2
    ROUTE_EXACT = 4          # copies say where they come from
    ROUTE_CYCLE = 8          # lies on a cycle: the hop cap holds
    ROUTE_WRITES = 16        # the destination stands in another shard: copies are written out

    HOPS_MAX = 8             # a record that has been copied so often goes through no router of a cycle (CLARIFICATIONS, Routers)
    NOTES_BYTES_MAX = 4 << 20
    GATHER_RECORDS_MAX = 4096
    GATHER_BYTES_MAX = 4 << 20
    ROUTE_TEXT_MAX = 320

cdef struct Part:            # of a noted record
    uint16_t node_bytes, tag_bytes
    uint32_t tag_at          # in the blob
    uint32_t record_at       # in the blob of a `whole` note

cdef struct Came:            # where an exactly-once copy among the noted records comes from
    uint64_t text            # as origin_run.text, in the source's own slabs; 0 none
    uint64_t source

cdef struct Note:
    Note *next
    uint32_t refs, count, room
    uint64_t first_seq, last_seq     # seqs of the source that it accounts for
    uint64_t payload
    bint whole                       # the blob holds whole record entries, else tags
    bint marred                      # something of it was deleted
    index_entry *entries
    Part *parts
    uint64_t *seqs                   # NULL: first_seq and those that follow
    Came *came                       # NULL: none has an origin
    uint8_t *blob
    uint64_t blob_used, blob_room

cdef struct Route:
    uint32_t number, flags           # ROUTE_*
    uint32_t source, dest            # slots
    uint64_t source_id, dest_id
    uint64_t cursor                  # last seq of the source that is copied, or queued to be
    uint64_t forwarded               # copies made, ever
    uint64_t lost                    # seqs of the destination that stand for lost records
    uint64_t skip_first, skip_last   # seqs of the source that recovery has accounted for
    uint32_t match_kind, match_bytes
    uint8_t *match
    bint full                        # origins of the destination have no room: copies are written out
    uint32_t blocked                 # 0, or the outcome that holds it up
    int64_t retry_ms, wait_ms        # monotonic
    uint32_t text_bytes
    char text[ROUTE_TEXT_MAX]        # `router:<router>:<source id>:<epoch>:`

cdef struct Outlets:
    Route **routes
    uint32_t count, room
    uint32_t resume                  # next route of an unfinished pass
    uint32_t whole                   # routes that need whole records in notes
    Note *oldest
    Note *newest
    Note *merged                     # made of several notes for the route before
    uint64_t notes_bytes
    bint queued                      # stands in the queue
    bint hot                         # a batch came in since the last whole pass

cdef struct OriginTexts:             # of a topic that exactly-once copies come into: each text once, until the topic goes (notes may point at it)
    uint32_t count, room
    uint32_t last                    # the one that was asked for last
    uint64_t kept[0]                 # as origin_run.text

cdef struct Gathered:
    Note *note                       # referenced; NULL: nothing to copy
    uint32_t count                   # its first records
    uint64_t last                    # the cursor behind it
    uint64_t lost                    # instead of a note: seqs that are lost in the source
    bint writes                      # must be written out

cdef struct Step:                    # one row in the making
    Route *route
    Note *note
    uint64_t before, dest_base, ts, payload
    uint32_t count, lost

cdef struct Forwarder:
    Core *core
    Route **routes                   # by number
    uint32_t routes_room
    uint32_t *queue                  # slots of sources, a ring
    uint64_t queue_mask, queue_first, queue_end
    uint32_t hot                     # sources whose pass is not done
    bint blocked                     # some route may be
    uint32_t waiting                 # batches of copies that are queued and wait for a sync
    Maps maps
    bint maps_open
    uint8_t *scratch
    uint64_t scratch_room
    Step *steps
    uint32_t steps_count, steps_room
    uint64_t steps_before, steps_last    # cursors of all steps, before and after
    uint64_t copies                  # made since the start

cdef int forwarder_open(Forwarder *forwarder, Core *core) noexcept nogil             # 0, -ENOMEM
cdef void forwarder_close(Forwarder *forwarder) noexcept nogil
cdef int forwarder_files(Forwarder *forwarder, const char *data_dir) noexcept nogil  # where log files are; 0 or -errno
cdef void forwarder_queue(Forwarder *forwarder, uint32_t slot) noexcept nogil
cdef Outlets *outlets_of(Core *core, uint32_t slot) noexcept nogil                   # NULL: no router leaves this topic
cdef Route *route_of(Forwarder *forwarder, uint32_t number) noexcept nogil           # NULL: there is none
cdef int route_add(Forwarder *forwarder, const Route *made, const uint8_t *match) noexcept nogil     # 0, -ENOMEM; takes a copy
cdef int route_change(Forwarder *forwarder, Route *route, uint32_t flags, uint32_t kind, const uint8_t *match, uint32_t bytes) noexcept nogil
cdef void route_remove(Forwarder *forwarder, Route *route) noexcept nogil
# The text reference of an origin's text in a topic's own slabs, made when it is new there; 0: no room.
cdef uint64_t origin_keep(Core *core, uint32_t slot, const char *text, uint32_t text_bytes) noexcept nogil
# Say where copy `seq` comes from. 0, -ENOMEM.
cdef int route_origin(Core *core, topic_slot *topic, uint64_t seq, uint64_t source, const char *text, uint32_t text_bytes) noexcept nogil
# The text reference (Came.text) of the run of `seq` in a topic's origins, 0 when there is none.
cdef uint64_t origin_text(Core *core, uint32_t slot, uint64_t seq) noexcept nogil
cdef Note *note_new(uint32_t room, const uint8_t *blob, uint64_t blob_bytes) noexcept nogil  # of seqs in a row, with a copy of the blob; or NULL
cdef int note_came(Note *note, uint32_t number, uint64_t text, uint64_t source) noexcept nogil       # where that record comes from; 0, -ENOMEM
# Put a note at the end of a source's list, drop the oldest above the bound, queue the source.
cdef void add_note(Forwarder *forwarder, uint32_t slot, Outlets *outlets, Note *note) noexcept nogil
cdef void pass_done(Forwarder *forwarder, Outlets *outlets) noexcept nogil           # let go of notes that every route has passed
cdef void notes_delete(Outlets *outlets, uint32_t kind, const uint8_t *tag, uint32_t tag_bytes, uint64_t before_seq) noexcept nogil

# What comes next for a route, up to seq `last` of its source. False: nothing, or memory is short.
cdef bint gather(Forwarder *forwarder, Route *route, uint64_t last, uint32_t records_max, Gathered *out) noexcept nogil
# How many of the note's first records the destination may take: caps under discard reject, the server's quota.
cdef uint32_t fitting(Forwarder *forwarder, const Route *route, const Note *note, uint32_t count, uint64_t bytes_left, bint *never) noexcept nogil
cdef uint64_t note_payload(const Note *note, uint32_t count, uint32_t flags) noexcept nogil
cdef uint64_t note_seq(const Note *note, uint32_t number) noexcept nogil
cdef void note_drop(Note *note) noexcept nogil
cdef void drop_oldest(Outlets *outlets) noexcept nogil                               # of a source that has notes
cdef uint64_t notes_bytes_of(const Note *note) noexcept nogil                        # what it counts against NOTES_BYTES_MAX
# A record that no note holds (all of it, or all before its meta), good until the next call; NULL: it can not be read.
cdef const record_entry *log_record(Forwarder *forwarder, const index_entry *entry, bint whole) noexcept nogil
# Make copies visible in their destination. 0, or -1 when memory is short.
cdef int publish_copies(Forwarder *forwarder, Route *route, const Note *note, uint32_t count, uint64_t base, uint64_t ts) noexcept nogil
# The append frame of copies that are written out, malloc'ed, or NULL when memory is short.
cdef frame_header *routed_frame(Forwarder *forwarder, const Route *route, const Note *note, uint32_t count, uint64_t last) noexcept nogil
cdef routed_key *routed_of(const frame_header *frame) noexcept nogil                 # NULL: an ordinary append
# Replay one cursor frame. 0, 1 a row's router is unknown or its seqs do not follow, -1 memory is short.
cdef int replay_cursors(Forwarder *forwarder, const frame_header *frame) noexcept nogil
