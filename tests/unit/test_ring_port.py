"""A worker's port: writes go out as frames the writer can stamp in place, answers come back as objects."""

import asyncio
import os
import struct

import pytest
import xxhash

from topicsd._native import scan
from topicsd._native.port import UNKNOWN, Busy, Port
from topicsd._native.regions import Shared
from topicsd._native.ring_end import RingEnd

APPEND, CALL, FREE = 1, 2, 3
NO_SLOT = 0xFFFFFFFF
FRAME = struct.Struct("<IIBBHIQQQQQQ")
MAGIC = 0x31465054
FRAME_APPEND = 2
FLAG_KEY, FLAG_TOLD = 1, 0x80


@pytest.fixture
def shared() -> Shared:
    shared = Shared.create(topics_max=10, body_bytes_max=4 << 20, ring_slots=2)
    shared.set("generation", 1)
    assert shared.assign_ring() == 0
    return shared


@pytest.fixture
def port(shared) -> Port:
    return Port(shared, 0)


@pytest.fixture
def writer(shared) -> RingEnd:
    return RingEnd(shared, 0)


def write(body: bytes = b'{"records":[{"data":{"a":1},"tag":"t"},{"data":2}]}') -> scan.Write:
    return scan.parse_write(body)


def take(writer: RingEnd) -> tuple[int, int, int, bytes]:
    token, kind, slot, payload, stale = writer.peek_at(writer.head)
    assert not stale
    return token, kind, slot, payload


def drained(port: Port) -> list:
    found = []
    port.drain(lambda token, answer: found.append((token, answer)))
    return found


def test_an_append_is_a_frame_with_its_topic_its_measures_and_no_stamp(port, writer):
    request = write()
    token = port.append(3, 77, request)

    got, kind, slot, payload = take(writer)
    magic, length, frame_type, flags, shard, count, topic_id, *stamps = FRAME.unpack_from(payload)

    assert (got, kind, slot) == (token, APPEND, 3)
    assert (magic, length, frame_type, flags, shard, count, topic_id) == (MAGIC, len(payload), FRAME_APPEND, FLAG_TOLD, 0, 2, 77)
    assert stamps == [0, 0, len(b'{"a":1}' + b"t" + b"2"), 0, xxhash.xxh3_64_intdigest(payload[64:])]
    assert length % 8 == 0
    assert payload[64:] == request.encode()


def test_the_headers_key_goes_with_the_frame_unless_the_body_has_its_own(port, writer):
    request = write()
    port.append(0, 1, request, b"from-header")
    payload = take(writer)[3]
    assert payload[9] == FLAG_KEY | FLAG_TOLD
    assert payload[64:] == request.encode(b"from-header")
    writer.release(writer.head + 1)

    request = write(b'{"idempotency_key":"from-body","records":[{"data":1}]}')
    port.append(0, 1, request, b"from-header")
    assert b"from-body" in take(writer)[3]
    assert b"from-header" not in take(writer)[3]


def test_a_key_longer_than_any_that_is_allowed_is_refused(port):
    with pytest.raises(ValueError, match="header_key"):
        port.append(0, 1, write(), b"k" * 1537)


def test_a_call_carries_json_and_perhaps_a_frame_behind_it(port, writer):
    port.call(b'{"op":"topic.put"}')
    token, kind, slot, payload = take(writer)
    assert (kind, slot) == (CALL, NO_SLOT)
    assert payload == struct.pack("<II", 18, 0) + b'{"op":"topic.put"}' + bytes(6)
    writer.push(token)
    writer.release(writer.head + 1)

    request = write()
    port.call(b"{}", request, b"key")
    payload = take(writer)[3]
    json_bytes, frame_bytes = struct.unpack_from("<II", payload)
    assert payload[8 : 8 + json_bytes] == b"{}"
    assert payload[16 + 64 :] == request.encode(b"key")
    assert frame_bytes == len(payload) - 16
    assert FRAME.unpack_from(payload, 16)[:6] == (MAGIC, frame_bytes, FRAME_APPEND, FLAG_KEY | FLAG_TOLD, 0, 2)


def test_a_body_too_large_for_the_ring_travels_in_a_spill_slot(port, writer):
    data = b'"' + b"x" * 900_000 + b'"'
    request = write(b'{"records":[' + b",".join([b'{"data":' + data + b"}"] * 4) + b"]}")
    port.append(1, 5, request)

    assert any(writer.spills)
    assert take(writer)[3][64:] == request.encode()


def test_an_answer_comes_back_whole(port, writer):
    token = port.call(b"{}")
    writer.push(token, status=8, first_seq=12, payload=b'{"ok":{}}')

    ((got, answer),) = drained(port)

    assert got == token
    assert (answer.status, answer.first_seq, answer.payload, answer.values) == (8, 12, b'{"ok":{}}', (0, 0, 0, 0))
    assert drained(port) == []


def test_a_full_ring_says_busy(port):
    with pytest.raises(Busy):
        for _ in range(513):
            port.call(b"{}")
    port.append(0, 1, write())  # appends have room of their own


def test_what_waited_when_the_writer_died_is_answered_unknown(shared, port, writer):
    tokens = [port.append(0, 1, write()) for _ in range(3)]
    shared.set("generation", 2)
    writer.reset()

    assert [(token, answer.status) for token, answer in drained(port)] == [(token, UNKNOWN) for token in tokens]
    assert port.dirty() is None


def test_an_exception_from_the_callback_comes_out_and_the_rest_is_not_forgotten(port, writer):
    for token in [port.poke(), port.poke()]:
        writer.push(token)

    def fail(token, answer):
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        port.drain(fail)
    assert os.eventfd_read(port.fileno()) == 1
    assert len(drained(port)) == 1


def test_a_watched_topic_that_moves_is_told_and_the_loop_wakes(port, writer):
    async def told() -> list[int] | None:
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def turn() -> None:
            port.drain(lambda token, answer: None)
            future.set_result(port.dirty())

        port.watch(4)
        loop.add_reader(port.fileno(), turn)
        loop.call_soon(lambda: (writer.push_dirty(4), writer.bell()))
        try:
            return await asyncio.wait_for(future, 20)
        finally:
            loop.remove_reader(port.fileno())

    assert asyncio.run(told()) == [4]


def test_what_is_pushed_between_drain_and_dirty_is_not_lost(port, writer):
    port.drain(lambda token, answer: None)
    writer.push_dirty(2)
    writer.bell()

    assert port.dirty() == [2]


def test_a_slot_outside_the_table_cannot_be_watched(port):
    with pytest.raises(IndexError):
        port.watch(10)
    port.watch(9)
    port.unwatch(9)


def test_a_port_needs_an_assigned_and_drained_slot(shared):
    with pytest.raises(ValueError, match="not assigned"):
        Port(shared, 1)
    with pytest.raises(IndexError):
        Port(shared, 2)
