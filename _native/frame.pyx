"""Check frames and walk record entries; build and parse them from Python, for tests and rare paths."""

from collections import namedtuple

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from topicsd._native.hash cimport xxh3_64
from topicsd._native.layout cimport (
    ENTRY_FLAG_EMPTY_NODE, ENTRY_FLAG_EMPTY_TAG, ENTRY_FLAG_EXT, FRAME_ALIGN, FRAME_APPEND, FRAME_FLAG_KEY, FRAME_HEADER_BYTES, FRAME_MAGIC,
    entry_ext, frame_header, key_section, record_entry,
)

VALID = FRAME_VALID
NONE = FRAME_NONE
BAD_MAGIC = FRAME_BAD_MAGIC
BAD_LENGTH = FRAME_BAD_LENGTH
SHORT = FRAME_SHORT
BAD_HASH = FRAME_BAD_HASH

Record = namedtuple("Record", "data meta tag node delay_ms priority", defaults=(None, None, None, 0, 0))
Frame = namedtuple("Frame", "type flags shard count topic_id base_seq ts synced position length body key records_xxh3 records")

REASONS = {
    FRAME_NONE: "zeroes",
    FRAME_BAD_MAGIC: "no frame magic",
    FRAME_BAD_LENGTH: "impossible length",
    FRAME_SHORT: "longer than its place",
    FRAME_BAD_HASH: "checksum differs",
    -1: "entries do not fill the body",
}


class FrameError(ValueError):
    """Say why bytes are no frame; `status` is one of this module's constants, or -1 for a bad body under a good checksum."""

    def __init__(self, status: int) -> None:
        super().__init__(REASONS[status])
        self.status = status


# ---- the nogil half -------------------------------------------------------------------------------------------------

cdef bint zeroes(const uint8_t *bytes, uint64_t length) noexcept nogil:
    cdef uint64_t i
    for i in range(length):
        if bytes[i]:
            return False
    return True


cdef int frame_check(const frame_header *header, uint64_t available) noexcept nogil:
    if available < FRAME_HEADER_BYTES:
        return FRAME_NONE if zeroes(<const uint8_t *>header, available) else FRAME_SHORT
    if header.magic != FRAME_MAGIC:
        return FRAME_NONE if zeroes(<const uint8_t *>header, FRAME_HEADER_BYTES) else FRAME_BAD_MAGIC
    if header.length < FRAME_HEADER_BYTES or header.length % FRAME_ALIGN:
        return FRAME_BAD_LENGTH
    if header.length > available:
        return FRAME_SHORT
    return FRAME_VALID if frame_hash(header) == header.xxh3 else FRAME_BAD_HASH


cdef bint entry_well_formed(const record_entry *entry, uint64_t available) noexcept nogil:
    cdef uint64_t length, wanted
    if available < sizeof(record_entry):
        return False
    length = entry_bytes(entry)
    if length > available:
        return False
    wanted = entry_length_for(entry_payload_bytes(entry), entry.length_flags & ENTRY_FLAG_EXT)
    if wanted != length:
        return False
    if entry.length_flags & ENTRY_FLAG_EMPTY_TAG and entry.tag_bytes:
        return False
    return not (entry.length_flags & ENTRY_FLAG_EMPTY_NODE and entry.node_bytes)


cdef bint append_well_formed(const frame_header *header) noexcept nogil:
    cdef const uint8_t *at = frame_body(header)
    cdef const uint8_t *end = <const uint8_t *>header + header.length
    cdef uint64_t key_room
    cdef uint32_t _
    if header.flags & FRAME_FLAG_KEY:
        if end - at < <Py_ssize_t>sizeof(key_section):
            return False
        key_room = sizeof(key_section) + align8((<const key_section *>at).key_bytes)
        if <uint64_t>(end - at) < key_room:
            return False
        at += key_room
    for _ in range(header.count):
        if not entry_well_formed(<const record_entry *>at, end - at):
            return False
        at += entry_bytes(<const record_entry *>at)
    return at == end


# ---- the Python half: one object a record, so never on the hot path -------------------------------------------------

def entry(record) -> bytes:
    """Encode one record entry.

    `record` is a Record; tag, node and meta are ready bytes or None, b"" as tag or node is the empty string.
    """
    cdef bytes data = record.data
    cdef bytes meta = record.meta or b""
    cdef bytes tag = record.tag or b""
    cdef bytes node = record.node or b""
    cdef bint extended = record.delay_ms != 0 or record.priority != 0
    cdef entry_ext ext
    cdef record_entry head
    cdef uint64_t length = entry_length_for(len(data) + len(meta) + len(tag) + len(node), extended)
    head.length_flags = <uint32_t>length
    if extended:
        head.length_flags |= ENTRY_FLAG_EXT
    if record.tag == b"":
        head.length_flags |= ENTRY_FLAG_EMPTY_TAG
    if record.node == b"":
        head.length_flags |= ENTRY_FLAG_EMPTY_NODE
    head.data_bytes = len(data)
    head.meta_bytes = len(meta)
    head.tag_bytes = len(tag)
    head.node_bytes = len(node)
    raw = (<uint8_t *>&head)[:sizeof(record_entry)]
    if extended:
        ext.delay_ms = record.delay_ms
        ext.priority = record.priority
        ext.reserved = 0
        raw += (<uint8_t *>&ext)[:sizeof(entry_ext)]
    return (raw + node + tag + meta + data).ljust(length, b"\0")


def append_body(records, key=None) -> bytes:
    """Encode the body of an append frame: the key section when `key` is given (canonical bytes), then the entries."""
    cdef bytes entries = b"".join([entry(record) for record in records])
    cdef bytes canonical
    cdef key_section section
    if key is None:
        return entries
    canonical = key
    memset(&section, 0, sizeof(key_section))
    section.key_bytes = len(canonical)
    section.records_xxh3 = xxh3_64(<const uint8_t *>entries, len(entries))
    return (<uint8_t *>&section)[:sizeof(key_section)] + canonical.ljust(align8(len(canonical)), b"\0") + entries


def build(int type, bytes body=b"", *, int flags=0, int shard=0, uint32_t count=0, uint64_t topic_id=0, uint64_t base_seq=0, uint64_t ts=0,
          uint64_t synced=0, uint64_t position=0) -> bytes:
    """Build a sealed frame around `body`, which is padded with zeroes to a multiple of 8."""
    cdef bytes raw = bytes(FRAME_HEADER_BYTES) + body.ljust(align8(len(body)), b"\0")
    cdef frame_header *header = <frame_header *><uint8_t *>raw  # the bytes object is ours alone until it is returned
    if align8(len(body)) + FRAME_HEADER_BYTES > 0xFFFFFFFF:
        raise ValueError("a frame is at most 4 GiB")
    header.magic = FRAME_MAGIC
    header.length = <uint32_t>len(raw)
    header.type = type
    header.flags = flags
    header.shard = shard
    header.count = count
    header.topic_id = topic_id
    header.base_seq = base_seq
    header.ts = ts
    header.synced = synced
    header.position = position
    frame_seal(header)
    return raw


def build_append(records, *, key=None, int flags=0, **header) -> bytes:
    """Build a sealed append frame of `records`; the other arguments are those of `build`."""
    records = list(records)
    if key is not None:
        flags |= FRAME_FLAG_KEY
    return build(FRAME_APPEND, append_body(records, key), flags=flags, count=len(records), **header)


def seal(frame) -> bytes:
    """Return a copy of a frame with its checksum computed anew."""
    cdef bytes raw = bytes(bytearray(frame))  # a copy: bytes(bytes) would be the same object
    cdef frame_header *header = <frame_header *><uint8_t *>raw
    if <uint64_t>len(raw) < FRAME_HEADER_BYTES or header.length < FRAME_HEADER_BYTES or header.length > <uint64_t>len(raw):
        raise FrameError(FRAME_BAD_LENGTH)
    frame_seal(header)
    return raw


def check(raw) -> int:
    """Return VALID, or why the bytes do not begin with a whole frame."""
    cdef Py_buffer view
    PyObject_GetBuffer(raw, &view, PyBUF_SIMPLE)
    try:
        return frame_check(<const frame_header *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef object decode_entry(const record_entry *entry):
    return Record(
        data=entry_data(entry)[:entry.data_bytes],
        meta=entry_meta(entry)[:entry.meta_bytes] if entry.meta_bytes else None,
        tag=entry_tag(entry)[:entry.tag_bytes] if entry_has_tag(entry) else None,
        node=entry_node(entry)[:entry.node_bytes] if entry_has_node(entry) else None,
        delay_ms=entry_delay_ms(entry),
        priority=entry_priority(entry),
    )


cdef list decode_entries(const record_entry *entry, uint32_t count):
    cdef list records = []
    cdef uint32_t _
    for _ in range(count):
        records.append(decode_entry(entry))
        entry = entry_next(entry)
    return records


def parse(raw):
    """Parse the frame that `raw` begins with, and its records when it is an append.

    `body` has its padding. Raises FrameError.
    """
    cdef bytes kept = bytes(raw)
    cdef const frame_header *header = <const frame_header *><const uint8_t *>kept
    cdef int status = frame_check(header, len(kept))
    cdef uint32_t key_bytes = 0
    cdef const uint8_t *key
    if status != FRAME_VALID:
        raise FrameError(status)
    append = header.type == FRAME_APPEND
    if append and not append_well_formed(header):
        raise FrameError(-1)
    key = append_key(header, &key_bytes) if append else NULL
    return Frame(
        header.type, header.flags, header.shard, header.count, header.topic_id, header.base_seq, header.ts, header.synced, header.position,
        header.length, kept[FRAME_HEADER_BYTES:header.length], key[:key_bytes] if key != NULL else None,
        append_records_xxh3(header) if append else 0, decode_entries(append_first(header), header.count) if append else [],
    )


def parse_body(bytes body, uint32_t count, bint with_key=False):
    """Parse an append's body (as `scan.Write.encode` makes it) into its key or None and its records. Raises FrameError."""
    frame = parse(build(FRAME_APPEND, body, flags=FRAME_FLAG_KEY if with_key else 0, count=count))
    return frame.key, frame.records


def walk(raw) -> list:
    """Parse the frames that stand one behind the other in `raw`, up to its end or to zeroes. Raises FrameError."""
    cdef bytes kept = bytes(raw)
    cdef Py_ssize_t at = 0
    frames = []
    while at < len(kept) and check(kept[at:]) != FRAME_NONE:
        frame = parse(kept[at:])
        frames.append(frame)
        at += frame.length
    return frames


def hash64(raw) -> int:
    """Return XXH3-64 of the bytes, seed 0. Other threads run meanwhile."""
    cdef Py_buffer view
    cdef uint64_t value
    PyObject_GetBuffer(raw, &view, PyBUF_SIMPLE)
    with nogil:
        value = xxh3_64(view.buf, view.len)
    PyBuffer_Release(&view)
    return value
