"""WebSocket connections without a server: frames in and out, order, backpressure, pings, the end (A §7.7, RFC 6455)."""

from __future__ import annotations

import asyncio
import json
import zlib
from types import SimpleNamespace

import pytest

from oracle.websocket_oracle import BINARY, CLOSE, PING, PONG, TEXT, client_frame
from topicsd import errors
from topicsd.api import socket as sockets
from topicsd.api.auth import ANYONE, SCOPES, Key
from topicsd.api.calls import Outcome
from topicsd.api.socket import Socket, agree_on_deflate


class Transport:
    """Keep what is written."""

    def __init__(self):
        self.out = b""
        self.reading, self.closing, self.aborted = True, False, False

    def write(self, data):
        self.out += data

    def get_write_buffer_size(self):
        return 0

    def is_closing(self):
        return self.closing

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def abort(self):
        self.closing = self.aborted = True


def frames(data):
    """Read the server's frames: (first byte, payload)."""
    found = []
    while data:
        size, at = data[1], 2
        assert size < 128, "a server does not mask"
        if size > 125:
            wide = 2 if size == 126 else 8
            size, at = int.from_bytes(data[2 : 2 + wide], "big"), 2 + wide
        found.append((data[0], data[at : at + size]))
        data = data[at + size :]
    return found


class Line:
    """A socket that is served, and its client."""

    def __init__(self, house, key=ANYONE, deflate=0):
        house.context.sockets = house.context.sockets or sockets.Sockets()
        self.transport = Transport()
        self.socket = Socket(house.context, key, self.transport, deflate)
        self.task = asyncio.ensure_future(self.socket.run())

    def send(self, *commands):
        self.socket.feed_data(b"".join(client_frame(TEXT, each if isinstance(each, bytes) else json.dumps(each).encode()) for each in commands))

    async def told(self, count):
        """Wait until so many messages have come; return and forget them."""
        while True:
            texts = [json.loads(payload) for first, payload in frames(self.transport.out) if first == 0x81]
            if len(texts) >= count:
                self.transport.out = b""
                return texts
            await asyncio.sleep(0.001)

    async def ask(self, command):
        self.send(command)
        [answer] = await self.told(1)
        return answer

    async def ended(self):
        await self.task
        return frames(self.transport.out)


def write(topic="t", **members):
    return {"op": "publish", "topic": topic, "records": [{"data": 1}], **members}


def test_publishes_are_sent_at_once_and_acked_in_order_whatever_stands_between(run):
    async def test(house):
        house.backend.make("t")
        line = Line(house)
        house.backend.hold = True
        line.send(*[write(request_id=n) for n in range(5)], write(records=[], request_id=5), {"op": "ping", "request_id": 6}, write(request_id=7))
        while len(house.backend.sent) < 5:
            await asyncio.sleep(0.001)
        assert line.transport.out == b"" and len(house.backend.sent) == 5  # what follows an error or another command waits
        house.backend.hold = False
        house.backend.ring()
        answers = await line.told(8)
        assert [answer["request_id"] for answer in answers] == list(range(8))
        assert [answer["op"] for answer in answers] == ["ack"] * 5 + ["error", "pong", "ack"]
        assert [answer["seqs"] for answer in answers if answer["op"] == "ack"] == [[1], [2], [3], [4], [5], [6]]

    run(test)


def test_a_publish_whose_topic_moved_is_sent_again_and_keeps_its_turn(run):
    async def test(house):
        house.backend.make("t")
        line = Line(house)
        house.backend.refuse = [(Outcome.MOVED, ())]
        line.send(write(request_id=1), write(request_id=2))
        assert [answer["request_id"] for answer in await line.told(2)] == [1, 2]
        house.backend.refuse = [(Outcome.FULL, (1, 2, 3, 4))]
        answer = await line.ask(write(request_id=3))
        assert (answer["op"], answer["code"], answer["detail"]["cap_records"]) == ("error", "topic_full", 1)

    run(test)


def test_a_publish_to_a_missing_topic_makes_it_first(run):
    async def test(house):
        line = Line(house)
        line.send(write("new", request_id=1, config={"cap_records": 9}), write("new", request_id=2), write("no", request_id=3, create=False))
        first, second, third = await line.told(3)
        assert (first["created"], first["seqs"], second["created"], second["seqs"]) == (True, [1], False, [2])
        assert (third["op"], third["code"], third["request_id"]) == ("error", "topic_not_found", 3)

    run(test)


def test_request_ids_come_back_as_they_were_or_not_at_all(run):
    async def test(house):
        line = Line(house)
        for given in ("x", "", 0, -5, 1.5, 'quote " and é'):
            assert await line.ask({"op": "ping", "request_id": given}) == {"op": "pong", "request_id": given}
        for none in ({}, {"request_id": None}):
            assert await line.ask({"op": "ping", **none}) == {"op": "pong"}
        for wrong in ({"a": 1}, [1], True):
            assert (await line.ask({"op": "ping", "request_id": wrong}))["detail"] == {"field": "request_id"}

    run(test)


def test_what_is_no_command_is_told_with_the_id_where_there_is_one(run):
    async def test(house):
        line = Line(house)
        for text in (b"", b"{", b"[1]", b"null", b'"x"', b"\0", b'{"op":1}', b'{"op":"ping","op":"ping"}', b"[" * 500, b'{"op":"ping","x":NaN}'):
            answer = await line.ask(text)
            assert (answer["op"], answer["code"]) == ("error", "invalid_request"), text
        assert (await line.ask(b'{"op":7,"request_id":"r"}'))["request_id"] == "r"
        assert (await line.ask({"op": "nothing"}))["detail"] == {"field": "op"}
        assert (await line.ask({"op": "publish", "records": [{"data": 1}]}))["detail"] == {"field": "topic"}
        assert (await line.ask(write("-bad")))["detail"] == {"field": "topic"}
        assert (await line.ask(write(records=[{}])))["detail"] == {"field": "records[0].data"}
        assert (await line.ask({"op": "subscribe", "topic": "a", "from_seq": -1}))["detail"] == {"field": "from_seq"}
        assert (await line.ask({"op": "subscribe", "topic": "a", "tail": "x"}))["detail"] == {"field": "tail"}
        assert (await line.ask({"op": "subscribe", "topics": {"a": {"from_seq": -1}}}))["detail"] == {"field": "topics.a.from_seq"}

    run(test)


def test_each_command_asks_its_own_scope_and_every_name_its_prefix(run):
    async def test(house):
        house.backend.make("a.x")
        reader, writer = Line(house, Key(-1, frozenset({"read"}))), Line(house, Key(-1, frozenset({"write"}), (b"a.",)))
        assert (await reader.ask(write("a.x")))["code"] == "forbidden"
        assert (await reader.ask({"op": "diff", "topic": "a.x"}))["op"] == "diff"
        assert (await writer.ask({"op": "diff", "topic": "a.x"}))["code"] == "forbidden"
        assert (await writer.ask(write("a.x")))["op"] == "ack"
        assert (await writer.ask(write("b")))["code"] == "forbidden"
        assert (await writer.ask(write("a.x", config={})))["detail"] == {"scope": "admin"}
        assert (await Line(house, Key(-1, SCOPES)).ask(write("system.x")))["code"] == "forbidden"

    run(test)


def test_a_waiting_diff_does_not_hold_up_the_commands_behind_it(run):
    async def test(house):
        house.backend.make("t")
        line = Line(house)
        line.send({"op": "diff", "topic": "t", "from_seq": 0, "wait_ms": 9000, "request_id": "poll"}, {"op": "ping", "request_id": "p"})
        assert await line.told(1) == [{"op": "pong", "request_id": "p"}]
        line.send(write(request_id="w"))
        answers = {answer["request_id"]: answer for answer in await line.told(2)}
        assert answers["poll"]["records"] == [1] and answers["w"]["op"] == "ack"

    run(test)


def test_commands_are_refused_while_there_is_no_writer_and_the_socket_stays(run):
    async def test(house):
        line = Line(house)
        house.words.ready = False
        for command in (write(), {"op": "diff", "topic": "t"}, {"op": "subscribe", "topic": "t"}):
            assert (await line.ask(command))["code"] == "not_ready"
        assert (await line.ask({"op": "ping"}))["op"] == "pong"
        house.words.ready = True
        assert (await line.ask(write()))["op"] == "ack"

    run(test)


def test_a_ping_is_answered_and_a_close_ends_it_with_its_code(run):
    async def test(house):
        line = Line(house)
        line.socket.feed_data(client_frame(PING, b"hey") + client_frame(CLOSE, b"\x0f\xa0bye"))
        assert await line.ended() == [(0x80 | PONG, b"hey"), (0x80 | CLOSE, b"\x0f\xa0")]

    run(test)


@pytest.mark.parametrize(
    ("opcode", "payload", "reserved", "code"),
    [(BINARY, b"x", 0, 1003), (TEXT, b"\xff", 0, 1007), (TEXT, b"x" * 2001, 0, 1009), (3, b"x", 0, 1002), (TEXT, b"x", 4, 1002)],
)
def test_a_fault_closes_with_its_code_and_what_was_asked_before_is_dropped(run, opcode, payload, reserved, code):
    async def test(house):
        line = Line(house)
        line.socket.feed_data(client_frame(opcode, payload, reserved=reserved))
        [(first, told)] = await line.ended()
        assert (first, int.from_bytes(told[:2], "big")) == (0x80 | CLOSE, code)
        assert house.context.budget.bytes == 0

    run(test, max_body_bytes=2000)


def test_a_client_that_does_not_read_is_not_read_either(run):
    async def test(house):
        line = Line(house)
        line.socket.pause_writing()
        assert line.transport.reading is False
        line.send({"op": "ping", "request_id": 1})
        await asyncio.sleep(0.01)
        assert line.transport.out == b""
        line.socket.resume_writing()
        assert line.transport.reading is True
        assert await line.told(1) == [{"op": "pong", "request_id": 1}]

    run(test)


def test_commands_that_wait_in_heaps_stop_the_reading_and_count_in_the_budget(run):
    async def test(house):
        house.backend.make("t")
        line = Line(house)
        house.backend.hold = True
        line.send(*[write(pad="x" * 5000, request_id=n) for n in range(400)])
        assert line.transport.reading is False
        assert house.context.budget.bytes > 1_000_000
        while len(house.backend.sent) < 64:
            await asyncio.sleep(0.001)
        assert len(house.backend.sent) == 64
        house.backend.hold = False
        house.backend.ring()
        assert [answer["last_seq"] for answer in await line.told(400)] == list(range(1, 401))
        assert line.transport.reading is True and house.context.budget.bytes == 0

    run(test)


def test_more_bytes_than_all_bodies_may_hold_close_with_try_again_later(run):
    async def test(house):
        house.context.budget.bytes_max = 100
        one, other = Line(house), Line(house)
        one.socket.feed_data(client_frame(TEXT, b"x" * 90, fin=False))
        other.socket.feed_data(client_frame(TEXT, b"x" * 90, fin=False))
        [(_, payload)] = frames(other.transport.out)
        assert int.from_bytes(payload[:2], "big") == 1013
        one.socket.feed_eof()
        await one.task
        assert house.context.budget.bytes == 0

    run(test)


def test_pings_go_out_every_15_seconds_and_the_silent_are_given_up(run):
    async def test(house):
        line = Line(house)
        start = line.socket.heard_s
        for second in range(1, 31):
            line.socket.tick(start + second)
        assert frames(line.transport.out) == [(0x80 | PING, b"")] * 2
        line.socket.feed_data(client_frame(PONG))
        line.socket.heard_s = start + 30
        line.socket.tick(start + 74)
        assert not line.transport.aborted
        line.socket.tick(start + 76)
        assert line.transport.aborted
        await line.task

    run(test)


def test_the_server_says_1001_at_its_end_and_waits_for_the_answer(run):
    async def test(house):
        polite, rude = Line(house), Line(house)
        for line in (polite, rude):
            house.context.sockets.add(line.socket)
        house.context.sockets.end_all()
        [(first, payload)] = frames(polite.transport.out)
        assert (first, payload[:2]) == (0x80 | CLOSE, b"\x03\xe9")
        polite.socket.feed_data(client_frame(CLOSE, b"\x03\xe9"))
        await polite.task
        assert not rude.task.done()
        rude.socket.tick(rude.socket._closing_s + 2.1)
        await rude.task

    run(test)


def test_compressed_messages_go_both_ways_when_agreed_on(run):
    async def test(house):
        line = Line(house, deflate=15)
        engine = zlib.compressobj(9, zlib.DEFLATED, -15)
        packed = engine.compress(json.dumps(write("t" * 200)).encode()) + engine.flush(zlib.Z_SYNC_FLUSH)
        line.socket.feed_data(client_frame(TEXT, packed[:-4], reserved=4))
        while not line.transport.out:
            await asyncio.sleep(0.001)
        [(first, payload)] = frames(line.transport.out)
        assert first == 0xC1
        assert json.loads(zlib.decompressobj(-15).decompress(payload + b"\x00\x00\xff\xff"))["topic"] == "t" * 200
        bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
        line.socket.feed_data(client_frame(TEXT, bomb.compress(b" " * 10**6) + bomb.flush(zlib.Z_SYNC_FLUSH), reserved=4))
        assert frames(line.transport.out)[-1][1][:2] == b"\x03\xf1"

    run(test, max_body_bytes=100_000)


@pytest.mark.parametrize(
    ("offer", "bits"),
    [
        (b"", 0),
        (b"permessage-deflate", 15),
        (b"permessage-deflate; client_max_window_bits; server_max_window_bits=10", 10),
        (b"x-other, permessage-deflate; server_no_context_takeover", 15),
        (b"permessage-deflate; server_max_window_bits=8, permessage-deflate", 15),
        (b"permessage-deflate; server_max_window_bits=8", 0),
        (b"permessage-deflate; server_max_window_bits=16", 0),
        (b"permessage-deflate; what=1", 0),
        (b"permessage-deflate; client_max_window_bits=1", 0),
        (b"permessage-deflate; server_no_context_takeover=1", 0),
        (b"permessage-deflate; client_no_context_takeover; client_no_context_takeover", 0),
    ],
)
def test_an_offer_of_compression_is_taken_or_declined_as_a_whole(offer, bits):
    agreed, said = agree_on_deflate(offer)
    assert agreed == bits
    assert said.startswith(b"permessage-deflate; server_no_context_takeover") == bool(bits)
    assert (b"server_max_window_bits=10" in said) == (bits == 10)


def test_the_handshake_checks_in_the_order_of_all_routes(run):
    async def test(house):
        def refusal(path=b"/v0/ws", query=b"", **headers):
            sent = {"authorization": "Bearer k", "sec-websocket-version": "13", "sec-websocket-key": "MDEyMzQ1Njc4OWFiY2RlZg==", **headers}
            scope = {
                "raw_path": path,
                "query_string": query,
                "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in sent.items() if value is not None],
            }
            try:
                sockets._admit(house.context, scope)
            except errors.TopicsError as wrong:
                return wrong.code, wrong.detail.get("field") or wrong.detail.get("limit")
            return None

        counted = []
        house.context.sessions = SimpleNamespace(enter=lambda *given: counted.append(given) or refuse, leave=lambda *given: counted.append(given))
        refuse = 0
        assert refusal() is None
        assert counted == [(0, 0, 10_000, 1000)]
        refuse = 1
        assert refusal() == ("throttled", "max_sse_connections")
        refuse = 2
        assert refusal() == ("throttled", "max_sse_connections_per_key")
        assert refusal(**{"sec-websocket-key": "short"}) == ("invalid_request", "Sec-WebSocket-Key")
        assert refusal(**{"sec-websocket-version": "8", "sec-websocket-key": "x"}) == ("invalid_request", "Sec-WebSocket-Version")
        house.words.ready = False
        assert refusal(**{"sec-websocket-version": "8"}) == ("not_ready", None)
        assert refusal(path=b"/v0/wss") == ("not_found", None)
        assert refusal(path=b"/v0/wss", authorization="Bearer no") == ("unauthorized", None)
        house.words.ready, refuse = True, 0
        assert refusal(authorization=None, query=b"token=k") == ("unauthorized", None), "a socket can write: ?token= is for event streams"
        assert refusal(authorization="Bearer no", query=b"token=k") == ("unauthorized", None)
        assert house.words.lines[0]["throttled"] == 2

    run(test, keys="k")


@pytest.mark.parametrize(("given", "told", "code"), [(408, "slow_consumer", 1013), (503, "shutting_down", 1001)])
def test_a_stream_that_the_feed_gives_up_is_told_why_and_the_socket_closes(run, given, told, code):
    async def test(house):
        line = Line(house)
        line.socket.end(given, "why")
        [(_, said), (first, payload)] = frames(line.transport.out)
        assert json.loads(said) == {"op": "error", "code": told, "message": "why"}
        assert first == 0x80 | CLOSE and int.from_bytes(payload[:2], "big") == code
        line.socket.tick(line.socket._closing_s + 2.1)
        await line.task

    run(test)
