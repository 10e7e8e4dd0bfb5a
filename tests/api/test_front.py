"""The native front's connections, in one process: order, bounds, patience, deaths. Errors and answers are compared in test_front_corpus.py."""

from __future__ import annotations

import hashlib
import re
import socket
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import xxhash

from bodies.raw_requests import request
from fakes.front_house import FrontHouse
from fakes.patience import PATIENCE_S, eventually
from topicsd.api.front import Lane
from topicsd.api.worker import Connection, Worker

JSON = b"Content-Type: application/json"
BODY = b'{"records":[{"data":1}]}'
APPEND = request(b"POST", b"/v0/topics/t", JSON, body=BODY)
READ = request(b"POST", b"/v0/topics/t/diff", JSON, body=b'{"from_seq":0}')
POLL = request(b"POST", b"/v0/topics/t/diff", JSON, body=b'{"from_seq":3,"wait_ms":2000}')
STATE = request(b"GET", b"/v0/topics/t")
OTHER = request(b"GET", b"/v0/health")


@pytest.fixture
def house(tmp_path):
    house = FrontHouse(tmp_path)
    yield house
    house.close()


def firsts(text: bytes) -> list[int]:
    return [int(seq) for seq in re.findall(rb'"first_seq":(\d+)', text)]


def test_an_append_is_answered_when_the_writer_has_answered(house):
    client = house.connect()
    client.send(APPEND)
    ((token, payload),) = house.submitted()
    assert client.received() == b""
    house.answer([token])
    told = client.received()
    assert told.startswith(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n") and firsts(told) == [4]
    assert payload[64:].startswith(b"\x18")  # the frame's body: one record entry of 24 bytes


def test_pipelined_appends_go_to_the_writer_together_and_are_answered_in_order_whatever_its_order(house):
    client = house.connect()
    client.send(APPEND * 3)
    tokens = [token for token, _ in house.submitted()]
    assert len(tokens) == 3
    house.answer([tokens[2]])
    house.answer([tokens[1]])
    assert client.received() == b""
    house.answer([tokens[0]])
    assert firsts(client.received()) == [6, 5, 4]


def test_a_read_waits_for_the_writes_before_it_and_a_write_for_the_lane(house):
    client = house.connect()
    client.send(APPEND + READ + OTHER + APPEND)
    first = [token for token, _ in house.submitted()]
    assert len(first) == 1 and client.lane is None
    house.answer(first)
    told = client.received()
    assert told.count(b"HTTP/1.1 200") == 2 and told.index(b'"first_seq"') < told.index(b'"records"')
    assert client.lane.message == OTHER and house.submitted() == []
    client.lane.answer(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    assert len(house.submitted()) == 1


def test_a_request_is_served_wherever_it_is_cut(house):
    for cut in range(1, len(APPEND)):
        client = house.connect()
        client.send(APPEND[:cut])
        assert house.submitted() == [] and client.received() == b""
        client.send(APPEND[cut:])
        house.settle()
        assert len(firsts(client.received())) == 1


def test_the_lane_gets_one_message_and_not_a_byte_of_the_next(house):
    chunked = request(b"POST", b"/v0/topics/t", JSON, b"Transfer-Encoding: chunked") + b"18\r\n" + BODY + b"\r\n0\r\nX-T: v\r\n\r\n"
    client = house.connect()
    client.send(chunked + STATE + OTHER)
    assert client.lane.message == chunked
    assert client.lane.answer(b"") == chunked
    assert b'"head_seq":3' in client.received() and client.lane.message == OTHER


def test_a_bad_chunk_ends_the_lanes_request_and_nothing_behind_it_is_served(house):
    client = house.connect()
    client.send(request(b"POST", b"/v0/topics/t", JSON, b"Transfer-Encoding: chunked") + b"18\r\n" + BODY + b"\r\nG\r\n" + APPEND)
    assert client.lane.left
    assert client.received().startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert client.transport.eof and house.submitted() == []


def test_an_append_whose_topic_has_moved_is_handed_on_whole(house):
    client = house.connect()
    client.send(APPEND)
    house.answer([token for token, _ in house.submitted()], status=1)
    assert client.lane.message == APPEND and client.received() == b""


def test_a_refusal_of_the_writer_wears_the_envelope(house):
    client = house.connect()
    client.send(APPEND)
    house.answer([token for token, _ in house.submitted()], status=4)
    told = client.received()
    assert told.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1\r\n" in told and b'"storage_read_only"' in told


def test_what_a_dead_writer_had_in_hand_is_answered_as_unknown_and_its_late_answer_goes_nowhere(house):
    client = house.connect()
    client.send(APPEND)
    ((token, _),) = house.submitted()
    house.shared.ready = False
    house.hub.tick()
    told = client.received()
    assert told.startswith(b"HTTP/1.1 503 ") and b'"outcome":"unknown"' in told
    house.answer([token])
    assert client.received() == b"" and house.strays == [token]


def test_a_client_that_leaves_takes_neither_its_append_nor_a_slot_with_it(tmp_path):
    key = (hashlib.sha256(b"k").digest(), 0, frozenset({"read", "write"}), ())
    house = FrontHouse(tmp_path, keys=[key], max_inflight_per_key=1)
    bearer = b"Authorization: Bearer k"
    append = request(b"POST", b"/v0/topics/t", JSON, bearer, body=BODY)
    client, other = house.connect(), house.connect()
    client.send(append)
    tokens = [token for token, _ in house.submitted()]
    other.send(append)
    assert other.lane.message == append  # over the cap: Falcon says 429
    other.lane.answer(b"")
    client.front.connection_lost(None)
    house.answer(tokens)
    other.send(append)
    assert len(house.submitted()) == 1
    house.close()


def test_a_key_reaches_its_prefixes_and_scopes_and_everything_else_is_falcons_to_refuse(tmp_path):
    def digest(token: bytes) -> bytes:
        return hashlib.sha256(token).digest()

    keys = [
        (digest(b"reader"), 0, frozenset({"read"}), ()),
        (digest(b"near"), 1, frozenset({"read", "write"}), (b"x.", b"t")),
        (digest(b"far"), 2, frozenset({"read", "write"}), (b"x.", b"topics")),
    ]
    house = FrontHouse(tmp_path, keys=keys)
    served = {}
    for header in [b"Bearer reader", b"bearer  near", b"Bearer far", b"Bearer nobody", b"Basic near", b"near", b"Bearer"]:
        client = house.connect()
        client.send(request(b"GET", b"/v0/topics/t", b"Authorization: " + header))
        served[header] = client.lane is None
        client.send(request(b"POST", b"/v0/topics/t", JSON, b"Authorization: " + header, body=BODY) if served[header] else b"")
        served[header] = (served[header], bool(house.submitted()))
    assert served == {
        b"Bearer reader": (True, False),
        b"bearer  near": (True, True),
        b"Bearer far": (False, False),
        b"Bearer nobody": (False, False),
        b"Basic near": (False, False),
        b"near": (False, False),
        b"Bearer": (False, False),
    }
    house.close()


@pytest.mark.slow
def test_a_poll_ends_with_its_time_and_with_a_wake_up_for_something(house):
    client = house.connect()
    client.send(POLL + STATE)
    assert client.received() == b"" and house.hub.polling == 1
    house.hub.wake_all()
    assert client.received() == b""  # nothing for it yet
    house.poll_time_is_up()
    told = client.received()
    assert told.count(b"HTTP/1.1 200 OK") == 2 and house.hub.polling == 0
    assert house.shared.worker(house.ring)["long_polls"] == house.shared.worker(house.ring)["inflight"] == 0


def test_polls_end_when_the_server_drains_and_their_connections_with_them(house):
    client = house.connect()
    client.send(request(b"POST", b"/v0/topics/t/diff", JSON, body=b'{"from_seq":3,"wait_ms":9999}'))
    house.hub.end_polls()
    assert b"Connection: close\r\n" in client.received() and client.transport.eof


def test_what_was_begun_before_the_arbiter_told_of_the_drain_is_the_last_answer_though_no_signal_has_come(house):
    client = house.connect()
    client.send(APPEND)
    house.shared.draining = True
    house.settle()
    told = client.received()
    assert firsts(told) == [4] and b"Connection: close\r\n" in told and client.transport.eof


@pytest.mark.parametrize("told", ["in shared memory", "by the signal"])
def test_falcons_door_announces_the_end_as_soon_as_it_refuses_for_it(told):
    worker = Worker.__new__(Worker)
    worker.alive, worker.nr, worker.max_requests = True, 0, 1 << 30
    worker.context = SimpleNamespace(draining=False)
    worker.runtime = SimpleNamespace(shared=SimpleNamespace(draining=False))
    for door in (Connection, Lane):
        line = door.__new__(door)
        line.worker, line._keepalive, line._callback_parser, line._held, line._half_closed = worker, 60, None, [], False
        going_on = SimpleNamespace(should_close=lambda: False)
        worker.context.draining = worker.runtime.shared.draining = False
        assert not line._will_close(going_on, False)
        if told == "by the signal":
            worker.context.draining = True
        else:
            worker.runtime.shared.draining = True
        assert line._will_close(going_on, False)


def test_a_poll_of_a_client_that_finished_sending_is_given_up(house):
    client = house.connect()
    client.send(request(b"POST", b"/v0/topics/t/diff", JSON, body=b'{"from_seq":3,"wait_ms":9999}'))
    assert not client.front.eof_received()
    assert b'"records":[],"next_from_seq":3' in client.received() and client.transport.eof, "what there is, should it still read"
    client.front.connection_lost(None)
    assert house.hub.polling == 0 and house.shared.worker(house.ring)["inflight"] == 0


def test_a_client_that_finished_sending_gets_its_answers_and_then_the_end(house):
    client = house.connect()
    client.send(APPEND * 2 + APPEND[:20])
    assert client.front.eof_received()
    house.settle()
    assert len(firsts(client.received())) == 2 and client.transport.eof


def test_what_stands_behind_a_request_of_the_lane_is_answered_however_late_the_end_is_told(house):
    client = house.connect()
    client.send(request(b"GET", b"/v0/topics") + APPEND)
    client.lane.has_answered = True
    assert client.front.eof_received()
    client.lane.has_answered = False
    house.settle()
    received = client.received()
    assert b"\r\n\r\nlane" in received and len(firsts(received)) == 1 and client.transport.eof


def test_connection_close_ends_the_connection_behind_its_answer(house):
    client = house.connect()
    client.send(request(b"POST", b"/v0/topics/t", JSON, b"Connection: close", body=BODY) + APPEND)
    assert len(house.settle()) == 1
    assert b"Connection: close\r\n" in client.received() and client.transport.eof
    client.send(b"more that nobody reads" * 1000)
    assert not client.transport.aborted


def test_a_peer_that_does_not_read_stops_the_parser_and_reading(house):
    client = house.connect()
    client.transport.held = b"x"
    client.front.pause_writing()
    client.send(READ * 4000)
    assert not client.transport.reading and client.received() == b""
    client.transport.held = b""
    client.front.resume_writing()
    told = client.received()
    while piece := client.received():
        told += piece
    assert told.count(b"HTTP/1.1 200 OK") == 4000 and client.transport.reading


def test_a_slow_head_and_an_idle_connection_are_closed_and_a_slow_body_is_told_so(house):
    slow = replace(house.worker.patience, head_ms=0, body_ms=0, idle_ms=0)
    fresh, head, body, idle, busy = (house.connect() for _ in range(5))
    head.send(APPEND[:10])
    body.send(APPEND[:-3])
    idle.send(STATE)
    busy.send(APPEND)
    house.hub.tick()
    assert not any(client.transport.closing or client.transport.eof for client in house.clients)
    house.worker.patience = slow
    house.hub.tick()
    assert [client.transport.closing for client in (fresh, head, idle, busy)] == [True, True, True, False]
    assert body.received().startswith(b"HTTP/1.1 400 ") and body.transport.eof


def test_connections_above_the_limit_are_told_so(house):
    house.worker.connections_max = 1
    first, second = house.connect(), house.connect()
    assert second.received().startswith(b"HTTP/1.1 503 ") and second.transport.eof
    first.send(STATE)
    assert first.received().startswith(b"HTTP/1.1 200 ")


def test_a_head_without_end_is_refused_at_its_limit(house):
    client = house.connect()
    client.send(b"GET /v0/health HTTP/1.1\r\n" + b"X-A: b\r\n" * 5000)
    assert client.received().startswith(b"HTTP/1.1 400 ")
    client = house.connect()
    client.send(b"GET /" + b"x" * 40_000)
    assert client.received().startswith(b"HTTP/1.1 400 ")


def test_bodies_that_are_too_many_to_hold_are_handed_on(tmp_path):
    house = FrontHouse(tmp_path, held_bytes_max=100_000)
    big = request(b"POST", b"/v0/topics/t", JSON, b"Content-Length: 60000")
    clients = [house.connect() for _ in range(3)]
    for client in clients[:2]:
        client.send(big)
    assert clients[0].lane is None and clients[1].lane.message == big
    clients[0].front.connection_lost(None)
    clients[2].send(big)
    assert clients[2].lane is None
    house.close()


def test_nothing_is_served_natively_while_the_writer_is_away_or_the_server_drains(house):
    for away in ("ready", "draining"):
        setattr(house.shared, away, away == "draining")
        client = house.connect()
        client.send(STATE)
        assert client.lane.message == STATE
        house.shared.ready = True


def test_what_one_front_left_behind_never_reaches_another_client(house):
    one, other = house.connect(), house.connect()
    one.send(APPEND)
    other.send(APPEND)
    house.settle()
    assert len(firsts(one.received())) == len(firsts(other.received())) == 1


# ---- large bodies ------------------------------------------------------------------------------------------------------


def large(records: int, size: int, first: int = 0) -> bytes:
    inside = b",".join(b'{"data":"%d-%s","tag":"t"}' % (first + n, b"x" * size) for n in range(records))
    return request(b"POST", b"/v0/topics/t", JSON, body=b'{"records":[' + inside + b'],"node":"n"}')


def numbers(payload: bytes) -> list[int]:
    return [int(n) for n in re.findall(rb'"(\d+)-x', payload)]


def arrive(client, data, pieces):
    """Let the loop read the first bytes, and the socket hold what comes meanwhile: the front reads that itself."""
    taken = 0
    while taken < len(data):
        room = client.front.get_buffer(-1)
        size = min(len(room), pieces.pop(0) if pieces else len(data), len(data) - taken)
        room[:size] = data[taken : taken + size]
        taken += size
        held = data[taken : taken + (pieces.pop(0) if pieces else len(data))]
        taken += client.transport.peer.send(held) if held else 0
        client.front.buffer_updated(size)
        while pending(client):
            room = client.front.get_buffer(-1)
            size = client.transport.own.recv_into(room)
            client.front.buffer_updated(size)


def pending(client):
    try:
        return len(client.transport.own.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return 0


@pytest.mark.parametrize("pieces", [[], [1], [4096, 1], [300, 70_000, 3, 16_384], [65_536, 65_536, 1, 40_000, 5, 5, 5], [100_000] * 9])
def test_a_large_body_is_read_as_a_whole_however_it_comes(house, pieces):
    client, other = house.connect(), house.connect()
    for turn in range(4):
        text = large(700, 300, first=1000 * turn)
        arrive(client, text, list(pieces))
        ((token, payload),) = house.submitted()
        assert numbers(payload) == [1000 * turn + n for n in range(700)]
        assert xxhash.xxh3_64_intdigest(payload[64:]) == int.from_bytes(payload[56:64], "little"), "the hash of the body, told to the writer"
        other.send(APPEND)
        house.answer([token])
        house.settle()
        assert len(firsts(client.received())) == len(firsts(other.received())) == 1
    assert client.lane is None


def test_what_comes_behind_a_large_body_is_the_next_request(house):
    client = house.connect()
    arrive(client, large(900, 300) + large(1, 5, first=5000) + large(900, 300, first=6000) + STATE, [70_000, 200_000])
    given = house.settle()
    assert [numbers(payload) for payload in given] == [list(range(900)), [5000], [6000 + n for n in range(900)]]
    told = client.received()
    assert len(firsts(told)) == 3 and told.count(b"HTTP/1.1 200") == 4


@pytest.mark.parametrize("wrong", [b'{"date":1}', b'{"data":"\x01"}', b'{"data":1,"data":2}'])
def test_a_large_body_that_is_wrong_at_its_end_goes_to_falcon_as_it_came(house, wrong):
    client = house.connect()
    inside = b",".join(b'{"data":"%s"}' % (b"x" * 300) for _ in range(700))
    for _turn in range(2):
        text = request(b"POST", b"/v0/topics/t", JSON, body=b'{"records":[' + inside + b"," + wrong + b"]}")
        arrive(client, text, [4096, 100_000])
        assert house.submitted() == [] and client.lane.message == text
        client.lane.answer(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        arrive(client, large(700, 300), [5000, 60_000])
        assert [numbers(payload) for payload in house.settle()] == [list(range(700))]


def test_a_peer_that_leaves_in_the_middle_of_a_large_body_leaves_nothing(house):
    for cut in (10_000, 70_000, 150_000):
        client = house.connect()
        arrive(client, large(700, 300)[:cut], [4096, cut])
        assert client.front.eof_received() is False and house.submitted() == []
        assert client.received().startswith(b"HTTP/1.1 400 ")
        client.front.connection_lost(None)


def asleep(house):
    """A writer that has seen all and sleeps: what comes now it does not see by itself."""
    house.submitted()
    writer = threading.Thread(target=lambda: house.writer.sleep(int(PATIENCE_S * 1e9)))
    writer.start()
    assert eventually(lambda: house.writer.writer_armed)
    return writer


def test_the_writer_is_woken_by_the_first_write_by_a_large_one_and_for_all_small_ones_at_the_turns_end(house):
    writer = asleep(house)
    house.connect().send(APPEND)
    writer.join(PATIENCE_S)
    assert not writer.is_alive()

    writer = asleep(house)
    house.connect().send(APPEND)
    writer.join(0.05)
    assert writer.is_alive()
    house.loop.turn()
    writer.join(PATIENCE_S)
    assert not writer.is_alive()

    writer = asleep(house)
    house.connect().send(request(b"POST", b"/v0/topics/t", JSON, body=b'{"records":[{"data":"' + b"x" * 200_000 + b'"}]}'))
    writer.join(PATIENCE_S)
    assert not writer.is_alive()
