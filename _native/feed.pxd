# The feed of one worker: from "a topic has moved" to bytes in the sockets of all who watch it. SSE and WebSocket are two formats of it.
#
#   writer's bell -> dirty slots -> Topic.entry waits in the scheduler (bands, deficit, age: scheduler.pxd)
#                                      |
#        run: the next topic -> a round over its watches -> [frame for (view, cursor), rendered once] -> sendmsg(ids + frame)
#                                      |                                                                    |
#                                      '-- stops in the middle when its quantum is spent                    '-- does not fit: the stream is blocked,
#                                                                                                            its watches fall behind and coalesce
#   Topic    one a slot that somebody watches; its watches in a list; the frames of the round that is going on
#   Watch    one topic of one stream: the cursor (a row of the session, or of its own), the view, live or behind
#   View     what a watcher wants to see; equal ones are one object, so equal watchers at one cursor share a frame
#   Stream   one connection
#
# A frame's bytes are the same for all who share it. Only SSE's `id:` lines differ: they name all cursors of a session.
#
# word                 written by         order      a stale read means
# slot.watchers        this worker's bit  seq_cst    nothing: the bit is set at the start of a round, then the head is read (port.pxd); only the
#                                                    writer takes it back, so a bit may ring for nothing
# slot.topic_id head   writer             acquire    a round too early or too late, never none
# session rows         this worker        see sessions.pxd: moved before the bytes are handed to the socket, inside the lease
#
# Bounds, a stream: what the transport holds is the rest of one send (nothing is written while it holds anything), what the kernel holds is one send
# above `share` (SIOCOUTQ). A stream that stays full for SLOW_NS ends with a cursor that can be resumed.
#
# Owner: the worker's loop thread. Watches, topics and frames are C memory of the feed and die with what owns them: a stream's watches with
# the stream (Stream.close), a topic when its last watch goes, outside of rounds.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from cpython.ref cimport PyObject

from topicsd._native.diff cimport ReaderCore
from topicsd._native.port cimport Port
from topicsd._native.reader cimport Reader
from topicsd._native.regions cimport Regions
from topicsd._native.render cimport Buffer
from topicsd._native.scan cimport Diff, DiffRequest
from topicsd._native.scheduler cimport Entry, Scheduler
from topicsd._native.sessions cimport Line, Row, Session, Sessions

cdef enum:
    FORMAT_SSE = 0
    FORMAT_WEBSOCKET = 1       # unmasked text frames
    FORMAT_MESSAGE = 2         # JSON, a write a message
    FRAMES = 8                 # a round's rendered frames that are kept
    FRAME_HEAD_BYTES = 640     # room before the records: a name of 255 bytes and what stands around it
    SEND_COST = 1024           # what a send costs beside its bytes

cdef struct Frame:             # offsets into `bytes`; an empty part is not sent
    void *view
    uint64_t epoch, seq, limit                 # for whom
    uint64_t tombstone_epoch, tombstone_seq    # the cursor behind the tombstone
    uint64_t next_epoch, next_seq, records
    uint32_t tombstone_at, tombstone_end, record_at, record_end, caught_at, caught_end
    Buffer bytes

cdef struct Topic:
    Entry entry                # first: the scheduler's pointer is ours
    uint32_t slot
    uint64_t topic_id
    uint64_t head, durable     # of the round
    Watch *first
    Watch *last
    Watch *at                  # next of the round, NULL: no round
    uint64_t watches
    uint64_t moved_ns          # it is dirty since then
    bint behind                # somebody of this round has more to get
    bint again                 # moved since the round began
    bint strong                # somebody waits for the durable head
    uint32_t frames_used, frame_next
    Frame frames[8]
    uint32_t name_bytes
    char name[256]

cdef struct Watch:
    Watch *next_of_topic
    Watch *previous_of_topic
    Watch *next_of_stream
    Watch *previous_of_stream
    Topic *topic               # NULL: deleted
    PyObject *stream           # borrowed
    PyObject *view             # owned
    Row *row
    bint own_row
    bint started, live
    bint gone_untold
    uint64_t gone_head

cdef class View:
    cdef DiffRequest *request
    cdef Diff diff
    cdef readonly int format
    cdef readonly bint strong
    cdef readonly object key
    cdef object __weakref__

cdef class Stream:
    cdef readonly Feed feed
    cdef readonly object sink
    cdef readonly int fd, format
    cdef readonly Session session
    cdef Watch *watches
    cdef Watch *last_watch
    cdef readonly bint closed, held, full
    cdef bint unsafe           # something was sent that the peer may not have got
    cdef uint64_t blocked_ns, written_ns, heartbeat_ns, unchecked
    cdef readonly uint64_t advised_ns
    cdef dict by_name
    cdef object __weakref__

    cdef Watch *watch_of(self, bytes name) noexcept
    cdef Watch *make_watch(self, View view, Row *row, bint own_row, bint started) except NULL
    cdef void drop_watch(self, Watch *watch)
    cdef int join(self, Watch *watch) except -1
    cdef void sink_gone(self)
    cdef int put_id(self, Buffer *out) noexcept nogil
    cdef int notice_gone(self, Watch *watch) except -1
    cdef int send_parts(self, void *parts, int count, uint64_t total) except -1
    cdef void block(self, uint64_t now_ns) noexcept
    cdef int unblock(self) except -1
    cdef int check_kernel(self) except -1
    cdef int see(self) except -1

cdef class Feed:
    cdef readonly Port port
    cdef readonly Reader reader
    cdef readonly Sessions sessions
    cdef readonly uint32_t ring
    cdef Line *line
    cdef Regions *regions
    cdef Scheduler scheduler
    cdef Topic **by_slot
    cdef Topic *serving                # `run` has it in hand
    cdef uint64_t generation           # of the writer whose slots we know
    cdef list watched                  # slots that have a Topic
    cdef readonly set streams
    cdef object views
    cdef Buffer scratch, ids
    cdef readonly uint64_t now_ns, now_ms
    cdef readonly bint busy            # the writer was in the way: try again soon
    cdef readonly uint32_t full_streams, strong_topics
    cdef public int32_t band_least     # lower bands wait (pressure)
    cdef public uint64_t share         # bytes the kernel may hold for one stream
    cdef public uint64_t slow_ns
    cdef public object cold            # called with a slot when a record cannot be read: COLD_*; None: none of them are cold

    cdef Topic *topic_of(self, const char *name, uint32_t name_bytes) except? NULL
    cdef void drop_topic(self, Topic *topic) noexcept
    cdef int32_t priority(self, Topic *topic) noexcept
    cdef void wake(self, Topic *topic) noexcept
    cdef int begin_round(self, Topic *topic) except -1
    cdef int topic_gone(self, Topic *topic) except -1
    cdef int tell_gone(self, Topic *topic) except -1
    cdef int give_up(self, Stream stream) except -1
    cdef bint settled(self) noexcept
    cdef int send_inside(self, Stream stream, Watch *watch, Frame *frame, uint64_t *spent) except -1
    cdef int check(self, Stream stream) except -1
    cdef bint serve(self, Topic *topic, int64_t allowance, uint64_t *spent) except -1
    cdef int deliver(self, Topic *topic, Watch *watch, uint64_t *spent) except -1
    cdef Frame *frame_for(self, Topic *topic, Watch *watch, uint64_t limit, int *status) noexcept
    cdef int send_frame(self, Stream stream, Topic *topic, Watch *watch, Frame *frame, uint64_t *spent) except -1
