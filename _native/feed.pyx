"""The feed of one worker: topics that move, frames, sockets (page of truth: feed.pxd)."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject

import weakref

import orjson
import structlog

from topicsd._native import scan
from topicsd._native.atomics cimport clock_mono_ns, load_acquire_64, load_relaxed_64
from topicsd._native.layout cimport CLASS_FSYNC, NO_SLOT
from topicsd._native.port cimport Port
from topicsd._native.priority cimport effective_priority
from topicsd._native.reader cimport Reader
from topicsd._native.render cimport buffer_free, buffer_need, buffer_shrink, put_bytes, put_text, put_u64
from topicsd._native.scheduler cimport (
    BANDS, Entry, entry_init, schedule, schedule_next, schedule_served, unschedule)
from topicsd._native.sessions cimport ROW_GONE, ROW_MEMBER, ROW_PATTERN, Row, Session, Sessions, next_row
from topicsd._native.state cimport READ_BUSY, READ_GONE, READ_IO, READ_MEMORY, READ_OK
from topicsd._native.stream cimport put_base64, render_deleted, render_frame
from topicsd._native.table cimport table_find

cdef extern from "<sys/uio.h>" nogil:
    ctypedef struct Part "struct iovec":
        void *iov_base
        size_t iov_len

cdef extern from "<sys/socket.h>" nogil:
    ctypedef struct Message "struct msghdr":
        Part *msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int fd, const Message *message, int flags)
    const int MSG_DONTWAIT
    const int MSG_NOSIGNAL

cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int fd, unsigned long request, ...)

cdef extern from "<linux/sockios.h>" nogil:
    const unsigned long SIOCOUTQ

SSE, WEBSOCKET, MESSAGE = FORMAT_SSE, FORMAT_WEBSOCKET, FORMAT_MESSAGE

cdef enum:
    PARTS_MAX = 8
    OUTQ_CHECK = 1 << 16       # the kernel is asked after so many bytes
    ROW_HEAD_BYTES = 64
    SAFE_ROWS_MAX = 16         # more cursors are noted by the tick alone

cdef enum:                     # what Feed.cold answers about a record that cannot be read
    COLD_NOT = 0               # it is not there
    COLD_COMES = 1             # it is fetched from the cold tier
    COLD_REFUSED = 2           # it cannot be fetched now

cdef enum:                     # what a delivery came to
    DELIVERED = 0
    BEHIND = 1                 # there is more for this watch
    RETRY = 2                  # the writer is in the way
    TOPIC_GONE = 3

log = structlog.get_logger("feed")


cdef inline void count(uint64_t *counter, uint64_t by) noexcept nogil:
    counter[0] += by


cdef class View:
    """What a watcher wants to see; made by Feed.view."""

    def __init__(self):
        raise TypeError("use Feed.view")


# ---- a stream ------------------------------------------------------------------------------------------------------------------

cdef class Stream:
    """One connection's part of the feed; made by Feed.stream."""

    def __init__(self):
        raise TypeError("use Feed.stream")

    def __dealloc__(self):
        cdef Watch *watch = self.watches
        cdef Watch *after
        while watch != NULL:       # closed long since, or the feed goes too
            after = watch.next_of_stream
            free_watch(watch)
            watch = after

    cdef Watch *watch_of(self, bytes name) noexcept:
        place = self.by_name.get(name)
        return NULL if place is None else <Watch *><size_t>place

    cdef Watch *make_watch(self, View view, Row *row, bint own_row, bint started) except NULL:
        cdef Watch *watch = <Watch *>calloc(1, sizeof(Watch))
        if watch == NULL:
            raise MemoryError
        watch.stream = <PyObject *>self
        watch.view = <PyObject *>view
        Py_INCREF(view)
        watch.row, watch.own_row, watch.started = row, own_row, started
        watch.previous_of_stream = self.last_watch
        if self.last_watch != NULL:
            self.last_watch.next_of_stream = watch
        else:
            self.watches = watch
        self.last_watch = watch
        self.by_name[row.name[:row.name_bytes]] = <size_t>watch
        self.join(watch)
        return watch

    cdef void drop_watch(self, Watch *watch):
        leave_topic(self.feed, watch)
        if watch.previous_of_stream != NULL:
            watch.previous_of_stream.next_of_stream = watch.next_of_stream
        else:
            self.watches = watch.next_of_stream
        if watch.next_of_stream != NULL:
            watch.next_of_stream.previous_of_stream = watch.previous_of_stream
        else:
            self.last_watch = watch.previous_of_stream
        self.by_name.pop(watch.row.name[:watch.row.name_bytes], None)
        free_watch(watch)

    cdef int join(self, Watch *watch) except -1:
        """Tie a watch to the topic of its name, or note that there is none."""
        cdef Topic *topic
        if not self.feed.settled():
            return 0                               # Feed.restart comes back to it
        topic = self.feed.topic_of(watch.row.name, watch.row.name_bytes)
        if topic == NULL:
            if not self.feed.settled():
                return 0
            watch.gone_untold = not (watch.row.flags & ROW_MEMBER and watch.row.flags & ROW_GONE)
            watch.gone_head = watch.row.seq
            return 0
        watch.row.flags &= ~ROW_GONE
        enter_topic(topic, watch)
        self.feed.wake(topic)
        return 0

    # ---- what is followed

    def add(self, bytes name not None, uint64_t epoch, uint64_t seq, View view not None, bint started=True, uint32_t flags=0):
        """Follow a topic behind (epoch, seq). False: there is no more room, or it is followed already."""
        cdef Row *row
        if self.closed or name in self.by_name or len(name) > 255 or view.format != self.format:
            return False
        if self.session is not None:
            row = self.session.append(<const char *>name, len(name), epoch, seq, flags)
            if row == NULL:
                return False
            self.session.check_large()
        else:
            row = <Row *>calloc(1, ROW_HEAD_BYTES + len(name) + 8)
            if row == NULL:
                raise MemoryError
            row.epoch, row.seq, row.flags = epoch, seq, flags
            row.name_bytes = len(name)
            memcpy(row.name, <const char *>name, len(name))
        self.make_watch(view, row, self.session is None, started)
        return True

    def again(self, bytes name not None):
        """Follow a topic again that was deleted and has been made anew; False: it is followed, or never was."""
        cdef Watch *watch = self.watch_of(name)
        if watch == NULL or watch.topic != NULL or self.closed:
            return False
        if watch.gone_untold:
            self.notice_gone(watch)
        watch.live = False
        self.join(watch)
        return True

    def follow_rows(self, View view not None):
        """Follow all topics of the session."""
        cdef Row *row = self.session.first_row()
        while row < self.session.last_row():
            if not row.flags & ROW_PATTERN and row.name[:row.name_bytes] not in self.by_name:
                self.make_watch(view, row, False, True)
            row = next_row(row)
        self.notices()

    def start(self, bytes name=None):
        """Let frames of a topic come, or of all."""
        cdef Watch *watch = self.watches
        while watch != NULL:
            if name is None or watch.row.name[:watch.row.name_bytes] == name:
                watch.started = True
                if watch.topic != NULL:
                    self.feed.wake(watch.topic)
            watch = watch.next_of_stream
        self.notices()

    def remove(self, bytes name not None):
        """Follow a topic no more; False: it was not followed."""
        cdef Watch *watch = self.watch_of(name)
        if watch == NULL:
            return False
        self.drop_watch(watch)
        return True

    def names(self):
        """Return the names that are followed."""
        return list(self.by_name)

    def following(self, bytes name not None):
        """Return the id of the topic that is followed under a name, 0 when it was deleted, None when the name is not followed."""
        cdef Watch *watch = self.watch_of(name)
        if watch == NULL:
            return None
        return 0 if watch.topic == NULL else watch.topic.topic_id

    def cursor(self, bytes name not None):
        """Return (epoch, seq) of a topic, or None."""
        cdef Watch *watch = self.watch_of(name)
        return None if watch == NULL else (watch.row.epoch, watch.row.seq)

    def paced(self, int32_t band_least):
        """Name the topics that wait because of pressure."""
        cdef Watch *watch = self.watches
        found = []
        while watch != NULL:
            if watch.topic != NULL and 0 <= watch.topic.entry.band < band_least:
                found.append(watch.row.name[:watch.row.name_bytes].decode())
            watch = watch.next_of_stream
        return found

    # ---- ids and notices

    cdef int put_id(self, Buffer *out) noexcept nogil:
        """Append `id: <cursors>` and a line feed."""
        cdef Buffer *text = &self.feed.scratch
        cdef Row *row
        cdef Row *end
        cdef uint8_t *at
        cdef bint first = True
        text.used = 0
        if buffer_need(text, 128) != 0 or buffer_need(out, 16) != 0:
            return READ_MEMORY
        out.used = put_text(out.bytes + out.used, b"id: ") - out.bytes
        if self.session.header.large:
            at = put_hex(put_text(text.bytes, b'{"$session":"'), self.session.number)
            at = put_hex(put_text(at, b"."), self.session.header.created_ms)
            at = put_text(put_u64(put_text(at, b'","$at":'), self.session.header.moves), b"}")
            text.used = at - text.bytes
        else:
            row, end = self.session.first_row(), self.session.last_row()
            at = put_text(text.bytes, b"{")
            while row < end:
                if not row.flags & ROW_PATTERN:
                    text.used = at - text.bytes
                    if buffer_need(text, <uint64_t>row.name_bytes + 32) != 0:
                        return READ_MEMORY
                    at = put_text(put_bytes(put_text(text.bytes + text.used, b'"'), row.name, row.name_bytes), b'":')
                    at = put_text(put_u64(at, row.seq), b",")
                row = next_row(row)
            text.used = at - text.bytes
            if buffer_need(text, 32) != 0:
                return READ_MEMORY
            at = put_text(text.bytes + text.used, b'"$epochs":{')
            row = self.session.first_row()
            while row < end:
                if not row.flags & ROW_PATTERN:
                    text.used = at - text.bytes
                    if buffer_need(text, <uint64_t>row.name_bytes + 32) != 0:
                        return READ_MEMORY
                    at = put_text(text.bytes + text.used, b'"' if first else b',"')
                    at = put_u64(put_text(put_bytes(at, row.name, row.name_bytes), b'":'), row.epoch)
                    first = False
                row = next_row(row)
            at = put_text(at, b"}}")
            text.used = at - text.bytes
        if put_base64(out, text.bytes, text.used) != 0 or buffer_need(out, 8) != 0:
            return READ_MEMORY
        out.bytes[out.used] = 10
        out.used += 1
        return READ_OK

    cdef int notice_gone(self, Watch *watch) except -1:
        """Say that a topic was deleted; later, when the stream is full or has not begun."""
        cdef Feed feed = self.feed
        cdef Part part
        if self.closed or self.held or self.full or not watch.started:
            return 0
        if self.session is not None and not self.session.enter():
            self.taken_over()
            return 0
        watch.gone_untold = False
        watch.row.flags |= ROW_GONE
        try:
            feed.ids.used = 0
            if self.format == FORMAT_SSE and self.put_id(&feed.ids) != READ_OK:
                raise MemoryError
            if render_deleted(&feed.ids, self.format, watch.row.name, watch.row.name_bytes, watch.gone_head) != 0:
                raise MemoryError
            part.iov_base, part.iov_len = feed.ids.bytes, feed.ids.used
            count(&feed.line.frames, 1)
            count(&feed.line.ws_frames, self.format != FORMAT_SSE)
            self.send_parts(&part, 1, feed.ids.used)
        finally:
            if self.session is not None:
                self.session.leave()
        return 0

    def notices(self):
        """Say what is due about deleted topics."""
        cdef Watch *watch = self.watches
        while watch != NULL and not self.closed:
            if watch.gone_untold:
                self.notice_gone(watch)
            watch = watch.next_of_stream

    # ---- bytes out

    def open(self, bytes head not None, uint64_t heartbeat_ms, bint with_id=False):
        """Begin an SSE stream: the response's head, the retry field, one heartbeat (CLARIFICATIONS, SSE), and the cursors where it is asked for."""
        cdef bytes cursors = b""
        self.heartbeat_ns = heartbeat_ms * 1000000
        if with_id:
            self.feed.ids.used = 0
            if self.put_id(&self.feed.ids) != READ_OK:
                raise MemoryError
            cursors = self.feed.ids.bytes[:self.feed.ids.used]
        self.write(head + b"retry: 2000\n: hb %d\n" % self.feed.now_ms + cursors + b"\n")

    def write(self, bytes data not None):
        """Send bytes of the caller's own, in order with the frames; return how many the transport holds."""
        cdef Part part
        if self.closed or not data:
            return 0
        part.iov_base, part.iov_len = <void *><const char *>data, len(data)
        if self.held:
            return self.sink.write(data)
        self.send_parts(&part, 1, len(data))
        return self.sink.held() if self.held else 0

    cdef int send_parts(self, void *parts, int parts_count, uint64_t total) except -1:
        """Hand bytes to the socket, the rest to the sink: the stream is blocked while that holds anything."""
        cdef Feed feed = self.feed
        cdef Part *part = <Part *>parts
        cdef Message message
        cdef ssize_t sent = 0
        cdef uint64_t skip
        cdef int n
        self.written_ns = feed.now_ns
        count(&feed.line.bytes, total)
        if self.format != FORMAT_SSE:
            count(&feed.line.ws_bytes, total)
        if self.fd >= 0 and not self.held:
            memset(&message, 0, sizeof(message))
            message.msg_iov, message.msg_iovlen = part, parts_count
            sent = sendmsg(self.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent == <ssize_t>total:
                self.unchecked += total
                return self.check_kernel() if self.unchecked >= OUTQ_CHECK else 0
            sent = max(sent, 0)    # full, or broken: the transport finds out
        if self.format == FORMAT_MESSAGE:
            for n in range(parts_count):
                if self.sink.write(PyBytes_FromStringAndSize(<const char *>part[n].iov_base, part[n].iov_len)):
                    self.held = True
        else:
            rest = []
            skip = sent
            for n in range(parts_count):
                if skip >= part[n].iov_len:
                    skip -= part[n].iov_len
                    continue
                rest.append(PyBytes_FromStringAndSize(<const char *>part[n].iov_base + skip, part[n].iov_len - skip))
                skip = 0
            if self.sink.write(b"".join(rest)):
                self.held = True
        if self.held:
            self.block(feed.now_ns)
        return 0

    cdef int see(self) except -1:
        """Note where the cursors stand when the peer has acknowledged everything."""
        cdef int waiting = 1
        if self.unsafe and not self.held and (self.fd < 0 or (ioctl(self.fd, SIOCOUTQ, &waiting) == 0 and waiting == 0)) and self.session.mine:
            self.unsafe = False
            self.session.mark_safe()
        return 0

    cdef int check_kernel(self) except -1:
        cdef int waiting = 0
        self.unchecked = 0
        if self.fd >= 0 and ioctl(self.fd, SIOCOUTQ, &waiting) == 0 and <uint64_t>waiting > self.feed.share and not self.full:
            self.full = True
            self.feed.full_streams += 1
            self.block(self.feed.now_ns)
        return 0

    cdef void block(self, uint64_t now_ns) noexcept:
        if self.blocked_ns == 0:
            self.blocked_ns = now_ns

    cdef int unblock(self) except -1:
        """Go on: everything that moved meanwhile comes, in as few frames as it fits."""
        cdef Watch *watch
        if self.held or self.full or self.closed:
            return 0
        self.blocked_ns = 0
        self.notices()
        watch = self.watches
        while watch != NULL:
            if watch.topic != NULL and (watch.row.seq < watch.topic.head or not watch.live or watch.row.epoch != watch.topic.topic_id):
                self.feed.wake(watch.topic)
            watch = watch.next_of_stream
        return 0

    def drained(self):
        """The transport holds nothing any more."""
        self.held = False
        self.unblock()

    def look_at_kernel(self):
        """Go on once the kernel holds half of the stream's share or less."""
        cdef int waiting = 0
        if self.full and not self.closed and ioctl(self.fd, SIOCOUTQ, &waiting) == 0 and <uint64_t>waiting <= self.feed.share // 2:
            self.full = False
            self.feed.full_streams -= 1
            self.unblock()

    def taken_over(self):
        """Another stream has the session (409); the caller of this closes nothing twice."""
        if not self.closed:
            self.end(409, "another stream of this session was opened")

    def end(self, int code, str message not None):
        """Give the stream up with an error: an SSE stream says so itself, any sink is told to close."""
        if self.closed:
            return
        if self.session is not None:
            self.see()
        if self.format == FORMAT_SSE:
            try:
                self.write(b"event: error\ndata: " + orjson.dumps({"code": code, "error": message}) + b"\n\n")
            except Exception:
                log.exception("a stream could not be told why it ends")
        sink = self.sink
        self.close()
        sink.end(code, message)

    def advise(self, int retry_after_ms, list topics, str message not None):
        """Say that topics are paced (429, advisory; A §7.5)."""
        if self.closed or self.held or self.full or self.format != FORMAT_SSE:
            return
        self.advised_ns = self.feed.now_ns
        count(&self.feed.line.advisories, 1)
        body = {"code": 429, "error": message, "retry_after_ms": retry_after_ms, "topics": topics}
        self.write(b"event: error\ndata: " + orjson.dumps(body) + b"\n\n")

    def close(self):
        """Leave the feed: nothing more is written. The session's lease goes back."""
        if self.closed:
            return
        if self.session is not None:
            self.see()
        self.closed = True
        if self.full:
            self.full = False
            self.feed.full_streams -= 1
        while self.watches != NULL:
            self.drop_watch(self.watches)
        self.feed.streams.discard(self)
        if self.session is not None:
            self.session.close(self.feed.now_ms)
        self.sink_gone()

    cdef void sink_gone(self):
        self.sink = None


cdef uint8_t *put_hex(uint8_t *at, uint64_t value) noexcept nogil:
    cdef uint8_t digits[16]
    cdef int n = 16
    while True:
        n -= 1
        digits[n] = <uint8_t>((48 if value & 15 < 10 else 87) + (value & 15))
        value >>= 4
        if value == 0:
            break
    return put_bytes(at, &digits[n], 16 - n)


cdef void free_watch(Watch *watch) noexcept:
    Py_DECREF(<object>watch.view)
    if watch.own_row:
        free(watch.row)
    free(watch)


cdef void enter_topic(Topic *topic, Watch *watch) noexcept:
    watch.topic = topic
    watch.next_of_topic = NULL
    watch.previous_of_topic = topic.last
    if topic.last != NULL:
        topic.last.next_of_topic = watch
    else:
        topic.first = watch
    topic.last = watch
    topic.watches += 1


cdef void leave_topic(Feed feed, Watch *watch) noexcept:
    cdef Topic *topic = watch.topic
    if topic == NULL:
        return
    if topic.at == watch:
        topic.at = watch.next_of_topic
        if topic.at == NULL:
            topic.again = True     # the round ends here, and nobody says so: begin another
    if watch.previous_of_topic != NULL:
        watch.previous_of_topic.next_of_topic = watch.next_of_topic
    else:
        topic.first = watch.next_of_topic
    if watch.next_of_topic != NULL:
        watch.next_of_topic.previous_of_topic = watch.previous_of_topic
    else:
        topic.last = watch.previous_of_topic
    topic.watches -= 1
    topic.frames_used = topic.frame_next = 0   # a view may be freed now, and another one stand in its place
    watch.topic = NULL
    watch.next_of_topic = watch.previous_of_topic = NULL


# ---- the feed --------------------------------------------------------------------------------------------------------------------

cdef class Feed:
    """All streams of one worker."""

    def __init__(self, Port port not None, Reader reader not None, Sessions sessions not None, uint32_t ring, uint64_t share=1 << 18,
                 uint64_t slow_ms=30000):
        if ring >= reader.shared.r.ring_slots:
            raise IndexError(f"ring slot {ring}")
        self.port, self.reader, self.sessions, self.ring = port, reader, sessions, ring
        self.line = &sessions.lines[ring]
        self.regions = &reader.shared.r
        self.by_slot = <Topic **>calloc(self.regions.topics_max, sizeof(Topic *))
        if self.by_slot == NULL:
            raise MemoryError
        self.watched = []
        self.streams = set()
        self.generation = load_acquire_64(&self.regions.control.generation)
        self.views = weakref.WeakValueDictionary()
        self.share = share
        self.slow_ns = slow_ms * 1000000

    def __dealloc__(self):
        if self.by_slot != NULL:
            for slot in self.watched or ():
                if self.by_slot[<uint32_t>slot] != NULL:
                    free_topic(self.by_slot[<uint32_t>slot])
        free(self.by_slot)
        buffer_free(&self.scratch)
        buffer_free(&self.ids)

    def clock(self, uint64_t now_ns, uint64_t now_ms):
        """Set what time it is: monotonic nanoseconds, wall clock milliseconds."""
        self.now_ns, self.now_ms = now_ns, now_ms

    def view(self, int format, *, node=None, match=None, int limit=256, uint64_t max_batch_bytes=262144, bint include_meta=True,
             bint include_tags=False, bint include_data=True, bint strong=False):
        """Return what a watcher with these options sees; equal options give one object. BadRequest for a wrong type."""
        cdef View view
        asked = {"limit": limit, "max_batch_bytes": max_batch_bytes, "include_meta": bool(include_meta), "include_tags": bool(include_tags),
                 "include_data": bool(include_data)}
        if node is not None:
            asked["node"] = node
        if match is not None:
            asked["match"] = match
        text = orjson.dumps(asked)
        key = (format, bool(strong), text)
        view = self.views.get(key)
        if view is None:
            view = View.__new__(View)
            view.diff = scan.parse_diff(text)
            view.request = &view.diff.request
            view.format, view.strong, view.key = format, strong, key
            self.views[key] = view
        return view

    def stream(self, sink not None, int fd, int format, Session session=None):
        """Return a new stream of a connection; fd -1: all bytes go through sink.write. SSE needs a session."""
        cdef Stream stream = Stream.__new__(Stream)
        if format == FORMAT_SSE and session is None:
            raise ValueError("an SSE stream has a session")
        stream.feed, stream.sink, stream.fd, stream.format, stream.session = self, sink, fd, format, session
        stream.by_name = {}
        stream.written_ns = self.now_ns
        stream.held = fd >= 0 and sink.held() > 0      # an earlier answer is still on its way out
        count(&self.line.streams, 1)
        count(&self.line.ws_streams, format != FORMAT_SSE)
        self.streams.add(stream)
        return stream

    # ---- topics

    cdef Topic *topic_of(self, const char *name, uint32_t name_bytes) except? NULL:
        """The topic that has a name now, NULL: none."""
        cdef uint32_t slot, again
        cdef uint64_t topic_id = 0
        cdef Topic *topic
        slot = table_find(self.regions, name, name_bytes)
        while slot != NO_SLOT:
            topic_id = load_acquire_64(&self.regions.table[slot].topic_id)
            again = table_find(self.regions, name, name_bytes)
            if again == slot and topic_id:
                break
            slot = again
        if slot == NO_SLOT:
            return NULL
        topic = self.by_slot[slot]
        if topic != NULL and topic.topic_id == topic_id:
            return topic
        if topic != NULL:
            self.topic_gone(topic)
        topic = <Topic *>calloc(1, sizeof(Topic))
        if topic == NULL:
            raise MemoryError
        entry_init(&topic.entry)
        topic.slot, topic.topic_id = slot, topic_id
        topic.name_bytes = name_bytes
        memcpy(topic.name, name, name_bytes)
        self.by_slot[slot] = topic
        self.watched.append(slot)
        return topic

    cdef void drop_topic(self, Topic *topic) noexcept:
        unschedule(&self.scheduler, &topic.entry)
        if self.by_slot[topic.slot] == topic:
            self.by_slot[topic.slot] = NULL
            self.watched.remove(topic.slot)
        if topic.strong:
            topic.strong = False
            self.strong_topics -= 1
        if topic != self.serving:
            free_topic(topic)

    cdef int32_t priority(self, Topic *topic) noexcept:
        return effective_priority(&self.regions.table[topic.slot].config, load_relaxed_64(&self.regions.table[topic.slot].last_read_ms), self.now_ms)

    cdef void wake(self, Topic *topic) noexcept:
        topic.again = True
        schedule(&self.scheduler, &topic.entry, self.priority(topic), self.now_ms)

    cdef int topic_gone(self, Topic *topic) except -1:
        """Tell everyone who watches it, and let it go."""
        self.tell_gone(topic)
        self.drop_topic(topic)
        return 0

    cdef bint settled(self) noexcept:
        """There is a writer, and it is the one that we know: names and slots mean what they say."""
        return load_acquire_64(&self.regions.control.generation) == self.generation and load_acquire_64(&self.regions.control.ready) != 0

    def dirty(self, slots):
        """Let topics wait that the writer says have moved; None: all."""
        cdef Topic *topic
        for slot in self.watched if slots is None else slots:
            topic = self.by_slot[<uint32_t>slot] if <uint32_t>slot < self.regions.topics_max else NULL
            if topic != NULL:
                self.wake(topic)

    def strong_look(self):
        """Let topics wait whose durable head has passed what somebody waits for."""
        cdef Topic *topic
        if self.strong_topics == 0:
            return
        for slot in self.watched:
            topic = self.by_slot[<uint32_t>slot]
            if topic != NULL and topic.strong and load_acquire_64(&self.regions.table[topic.slot].durable_head) > topic.durable:
                self.wake(topic)

    def restart(self):
        """There is a new writer that is ready: topics may stand in other slots, or be gone."""
        cdef Watch *watch
        cdef Stream stream
        cdef Topic *topic
        self.generation = load_acquire_64(&self.regions.control.generation)
        for slot in list(self.watched):
            topic = self.by_slot[<uint32_t>slot]
            while topic.first != NULL:
                leave_topic(self, topic.first)
            self.drop_topic(topic)
        for each in list(self.streams):
            stream = each
            watch = stream.watches
            while watch != NULL:
                if not watch.row.flags & ROW_GONE and not watch.gone_untold:
                    stream.join(watch)
                watch = watch.next_of_stream
            stream.notices()

    def watches(self, uint32_t slot):
        """Whether somebody watches the topic in a slot."""
        return slot < self.regions.topics_max and self.by_slot[slot] != NULL

    @property
    def waiting(self):
        """How many topics wait to be served."""
        return self.scheduler.waiting

    @property
    def can_serve(self):
        """Whether some of them are in bands that are served now."""
        cdef int32_t band
        for band in range(max(self.band_least, 0), BANDS):
            if self.scheduler.first[band] != NULL:
                return True
        return False

    def oldest_ms(self, int32_t band_least):
        """For how long the one that was first to come has waited, of those in this band or a higher one."""
        cdef int32_t band
        cdef uint64_t oldest = 0
        cdef Entry *entry
        for band in range(max(band_least, 0), BANDS):
            entry = self.scheduler.first[band]
            if entry != NULL and self.now_ms > entry.since_ms:
                oldest = max(oldest, self.now_ms - entry.since_ms)
        return oldest

    @property
    def topics(self):
        """How many topics are watched here."""
        return len(self.watched)

    # ---- serving

    def run(self, uint64_t budget_ns=0):
        """Serve topics until none waits (False) or the time is up or the writer is in the way (True). 0: no time limit."""
        cdef uint64_t until_ns = clock_mono_ns() + budget_ns if budget_ns else <uint64_t>-1
        cdef Topic *topic
        cdef uint64_t spent
        cdef bint more
        self.busy = False
        while not self.busy:
            topic = <Topic *>schedule_next(&self.scheduler, self.band_least, self.now_ms)
            if topic == NULL:
                break
            spent = 0
            self.serving = topic
            try:
                more = self.serve(topic, topic.entry.deficit, &spent)
            finally:
                self.serving = NULL
            if topic.watches == 0:
                self.drop_topic(topic)
            else:
                schedule_served(&self.scheduler, &topic.entry, spent, more, self.priority(topic), self.now_ms)
            if clock_mono_ns() >= until_ns:
                break
        buffer_shrink(&self.scratch)
        return self.scheduler.waiting != 0

    cdef int begin_round(self, Topic *topic) except -1:
        topic.again = False
        topic.behind = False
        topic.frames_used = topic.frame_next = 0
        self.port.watch(topic.slot)                # the bit first, then the head
        topic.head = max(topic.head, load_acquire_64(&self.regions.table[topic.slot].head))
        topic.durable = load_acquire_64(&self.regions.table[topic.slot].durable_head)
        if self.regions.table[topic.slot].config.durability == CLASS_FSYNC:
            topic.durable = topic.head             # published after it is synced
        if topic.strong:
            topic.strong = False
            self.strong_topics -= 1
        topic.at = topic.first
        return 0

    cdef bint serve(self, Topic *topic, int64_t allowance, uint64_t *spent) except -1:
        """Go on with a topic's round, or begin one; True: it has more to do. It may be gone afterwards only if nobody watches it."""
        cdef Watch *watch
        cdef Stream stream
        cdef int status
        if topic.at == NULL:
            if load_acquire_64(&self.regions.table[topic.slot].topic_id) != topic.topic_id:
                if not self.settled():
                    self.busy = True
                    return True
                self.tell_gone(topic)
                return False
            self.begin_round(topic)
        while topic.at != NULL:
            watch = topic.at
            topic.at = watch.next_of_topic
            if not watch.started:
                continue
            stream = <Stream>watch.stream
            try:
                status = self.deliver(topic, watch, spent)
            except Exception:
                log.exception("a stream is given up")
                self.give_up(stream)
                continue
            if status == RETRY:
                topic.at = NULL
                topic.again = True
                self.busy = True
                break
            if status == TOPIC_GONE:
                self.tell_gone(topic)
                return False
            if status == BEHIND:
                topic.behind = True
            if <int64_t>spent[0] >= allowance:
                break
        return topic.at != NULL or topic.behind or topic.again

    cdef int tell_gone(self, Topic *topic) except -1:
        """Tell everyone who watches a topic that it was deleted; they watch nothing then, the topic itself stays."""
        cdef Watch *watch
        cdef uint64_t head = topic.head
        if load_acquire_64(&self.regions.table[topic.slot].topic_id) == 0:
            head = max(head, load_acquire_64(&self.regions.table[topic.slot].head))
        topic.at = NULL
        while topic.first != NULL:
            watch = topic.first
            leave_topic(self, watch)
            watch.gone_untold = True
            watch.gone_head = max(head, watch.row.seq if watch.row.epoch == topic.topic_id else 0)
            (<Stream>watch.stream).notice_gone(watch)
        return 0

    cdef int give_up(self, Stream stream) except -1:
        sink = stream.sink
        stream.close()
        if sink is not None:
            sink.end(500, "internal error")
        return 0

    cdef int deliver(self, Topic *topic, Watch *watch, uint64_t *spent) except -1:
        cdef Stream stream = <Stream>watch.stream
        cdef View view = <View>watch.view
        cdef uint64_t limit = topic.head
        cdef Frame *frame
        cdef int status = READ_OK
        if stream.held or stream.full or stream.closed:
            watch.live = watch.live and watch.row.seq >= topic.head
            return DELIVERED                       # its unblocking wakes the topic
        if view.strong and topic.durable < topic.head:
            limit = topic.durable
            if not topic.strong:
                topic.strong = True
                self.strong_topics += 1
        if watch.live and watch.row.seq >= limit and watch.row.epoch == topic.topic_id:
            return DELIVERED
        frame = self.frame_for(topic, watch, limit, &status)
        if status == READ_BUSY:
            return RETRY
        if status == READ_GONE:
            return TOPIC_GONE if self.settled() else RETRY
        if status == READ_MEMORY:
            raise MemoryError
        if status == READ_IO:
            wait = self.cold(topic.slot) if self.cold is not None else COLD_NOT
            if wait == COLD_COMES:
                return DELIVERED                   # `dirty` tells when it is here
            if wait == COLD_REFUSED:
                stream.end(503, "cold_unavailable: the cold tier does not answer")
                return DELIVERED
            seq = frame.next_seq
            stream.end(503, f"not_ready: record {seq} of {watch.row.name[:watch.row.name_bytes].decode()} cannot be read")
            return DELIVERED
        return self.send_frame(stream, topic, watch, frame, spent)

    cdef Frame *frame_for(self, Topic *topic, Watch *watch, uint64_t limit, int *status) noexcept:
        cdef View view = <View>watch.view
        cdef Frame *frame
        cdef uint32_t n
        for n in range(topic.frames_used):
            frame = &topic.frames[n]
            if frame.view == <void *>view and frame.seq == watch.row.seq and frame.epoch == watch.row.epoch and frame.limit == limit:
                return frame
        frame = &topic.frames[topic.frame_next]
        topic.frame_next = (topic.frame_next + 1) % FRAMES
        topic.frames_used = min(topic.frames_used + 1, <uint32_t>FRAMES)
        frame.view = <void *>view
        with nogil:
            status[0] = render_frame(&self.reader.core, topic.slot, topic.topic_id, view.request, view.format, watch.row.epoch, watch.row.seq,
                                     limit, self.now_ms, frame)
        if status[0] != READ_OK:
            frame.view = NULL
        return frame

    cdef int send_frame(self, Stream stream, Topic *topic, Watch *watch, Frame *frame, uint64_t *spent) except -1:
        """Move the cursor and hand the bytes over, inside the session's lease."""
        if stream.session is None:
            return self.send_inside(stream, watch, frame, spent)
        if not stream.session.enter():
            stream.taken_over()
            return DELIVERED
        try:
            return self.send_inside(stream, watch, frame, spent)
        finally:
            stream.session.leave()

    cdef int send_inside(self, Stream stream, Watch *watch, Frame *frame, uint64_t *spent) except -1:
        cdef Part parts[PARTS_MAX]
        cdef int n = 0, k
        cdef uint64_t total = 0, id_at = 0, id_bytes = 0
        cdef bint sse = stream.format == FORMAT_SSE
        cdef bint caught = frame.caught_end != 0 and (not watch.live or frame.tombstone_end != 0)
        cdef Session session = stream.session
        self.ids.used = 0
        if session is not None and stream.unsafe and session.header.rows <= SAFE_ROWS_MAX:
            stream.see()
        if frame.tombstone_end:
            move_row(session, watch.row, frame.tombstone_epoch, frame.tombstone_seq)
            if sse:
                if stream.put_id(&self.ids) != READ_OK:
                    raise MemoryError
                parts[n].iov_base, parts[n].iov_len = NULL, self.ids.used    # an offset until all ids are there: their buffer may move
                n += 1
            parts[n].iov_base, parts[n].iov_len = frame.bytes.bytes + frame.tombstone_at, frame.tombstone_end - frame.tombstone_at
            n += 1
        if watch.row.seq != frame.next_seq or watch.row.epoch != frame.next_epoch:
            move_row(session, watch.row, frame.next_epoch, frame.next_seq)
        if sse and (frame.record_end or caught):
            id_at = self.ids.used
            if stream.put_id(&self.ids) != READ_OK:
                raise MemoryError
            id_bytes = self.ids.used - id_at
        if frame.record_end:
            if sse:
                parts[n].iov_base, parts[n].iov_len = <void *>id_at, id_bytes
                n += 1
            parts[n].iov_base, parts[n].iov_len = frame.bytes.bytes + frame.record_at, frame.record_end - frame.record_at
            n += 1
        if caught:
            if sse:
                parts[n].iov_base, parts[n].iov_len = <void *>id_at, id_bytes
                n += 1
            parts[n].iov_base, parts[n].iov_len = frame.bytes.bytes + frame.caught_at, frame.caught_end - frame.caught_at
            n += 1
        for k in range(n):
            if sse and k % 2 == 0:
                parts[k].iov_base = self.ids.bytes + <size_t>parts[k].iov_base
            total += parts[k].iov_len
        watch.live = frame.caught_end != 0
        spent[0] += total + SEND_COST
        if n:
            count(&self.line.frames, n // 2 if sse else n)
            count(&self.line.records, frame.records)
            if not sse:
                count(&self.line.ws_frames, n)
                count(&self.line.ws_records, frame.records)
            count(&self.line.tombstones, frame.tombstone_end != 0)
            stream.unsafe = True
            stream.send_parts(parts, n, total)
        return DELIVERED if frame.caught_end else BEHIND

    # ---- time

    def tick(self):
        """Heartbeats, slow consumers, sessions that were taken over. Every 100 ms or so."""
        cdef Stream stream
        for each in list(self.streams):
            stream = each
            try:
                self.check(stream)
            except Exception:
                log.exception("a stream is given up")
                stream.close()

    cdef int check(self, Stream stream) except -1:
        if stream.session is not None and not stream.session.mine:
            stream.taken_over()
            return 0
        if stream.full:
            stream.look_at_kernel()
        if stream.session is not None:
            stream.see()
        if stream.held and stream.sink.held() == 0:
            stream.drained()
        if stream.held or stream.full:
            if self.now_ns > stream.blocked_ns + self.slow_ns:
                count(&self.line.slow_closed, 1)
                stream.end(408, "this client does not read what it asked for; resume with the last id")
            return 0
        if stream.heartbeat_ns and self.now_ns >= stream.written_ns + stream.heartbeat_ns:
            count(&self.line.heartbeats, 1)
            if stream.session is not None:
                stream.session.touch(self.now_ms)
            stream.write(b": hb %d\n\n" % self.now_ms)
        return 0

    def look_at_kernel(self):
        """Go on with streams whose socket was full. Every 10 ms while `full_streams`."""
        if self.full_streams:
            for stream in list(self.streams):
                stream.look_at_kernel()

    def taken(self):
        """End the streams whose session another stream has or asks for."""
        cdef Stream stream
        for each in list(self.streams):
            stream = each
            if stream.session is not None and (stream.session.wanted or not stream.session.mine):
                stream.taken_over()


cdef void move_row(Session session, Row *row, uint64_t epoch, uint64_t seq) noexcept:
    if session is not None:
        session.move(row, epoch, seq)
    else:
        row.epoch, row.seq = epoch, seq


cdef void free_topic(Topic *topic) noexcept:
    cdef uint32_t n
    for n in range(<uint32_t>FRAMES):
        buffer_free(&topic.frames[n].bytes)
    free(topic)
