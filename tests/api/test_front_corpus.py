"""Both doors, the native front and gunicorn with Falcon, give equal answers to one corpus of raw requests (ARCHITECTURE section 1)."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bodies.raw_requests import NOTHING, REFUSED_BY_THE_FRONT_ALONE, REQUESTS, TOPIC, post, request
from e2e.server import Server

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

SENTINEL = request(b"GET", b"/v0/nowhere", b"Connection: close")
WAIT_S = 60.0
MADE_ID = re.compile(rb"(x-request-id:) [0-9a-f]{20}$", re.IGNORECASE)  # one that the server has made; one of the client's comes back as it is
SPLITS = 6  # two-part splits of each request here; `make crash` has them all (tests/crash/test_front_fuzz.py)


def test_the_corpus_has_three_hundred_requests_and_more():
    assert len(REQUESTS) >= 300


class Door:
    """One server, asked over raw connections."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.count = 0

    def ask(self, raw: bytes, cuts: list[int]) -> list[tuple[bytes, list[bytes], bytes]]:
        """Send a request cut at these places, to a topic of its own with two records; return the answers with what differs by nature masked."""
        self.count += 1
        topic, nothing = b"topic-%05d" % self.count, b"nothing-%03d" % (self.count % 1000)
        assert len(topic) == len(TOPIC) and len(nothing) == len(NOTHING)
        if TOPIC in raw or b"%74opic-00000" in raw:
            self._exchange(post(b"", b'{"records":[{"data":1,"tag":"a"},{"data":2,"node":"n"}]}').replace(TOPIC, topic) + SENTINEL, [])
        sent = (raw + SENTINEL).replace(TOPIC, topic).replace(b"%74opic-00000", b"%74" + topic[1:]).replace(NOTHING, nothing)
        received = self._exchange(sent, cuts)
        if NOTHING in raw:
            self._exchange(request(b"DELETE", b"/v0/topics/" + nothing) + SENTINEL, [])
        told = answers(received.replace(topic, TOPIC).replace(nothing, NOTHING), raw.startswith(b"HEAD"))
        return [masked(*answer) for answer in told if not answer[0].startswith(b"HTTP/1.1 100")]  # said only if the body is late

    def _exchange(self, sent: bytes, cuts: list[int]) -> bytes:
        with socket.create_connection(self.server.address, timeout=WAIT_S) as wire:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            received = b""
            try:
                for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
                    wire.sendall(sent[start:end])
                    if cuts:
                        time.sleep(0.0005)
                while piece := wire.recv(1 << 20):
                    received += piece
            except TimeoutError:
                received += b"... and no end"
            except OSError:
                pass  # a door may hang up on bytes that are no request while they still come
            return received


def answers(received: bytes, head_only: bool) -> Iterator[tuple[bytes, list[bytes], bytes]]:
    """Part what came into (status line, fields, body)."""
    first = True
    while received:
        head, found, received = received.partition(b"\r\n\r\n")
        line, *fields = head.split(b"\r\n")
        if not found or not line.startswith(b"HTTP/1."):
            yield b"garbage", [], head + received
            return
        size = next((int(field.partition(b":")[2]) for field in fields if field.lower().startswith(b"content-length:")), 0)
        if head_only and first:
            size = 0
        first = first and line.startswith(b"HTTP/1.1 100")
        yield line, fields, received[:size]
        received = received[size:]


def masked(line: bytes, fields: list[bytes], body: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Take out clocks and what a refusal of the parser says in words: two parsers word it differently."""
    if b"Content-Type: application/json" in fields:  # written so by parsers only
        return line, [], json.dumps(json.loads(body)["error"]["code"]).encode()
    fields = [b"Date:" if field.startswith(b"Date:") else field for field in fields]
    fields = [MADE_ID.sub(rb"\1", field) for field in fields]
    fields = [b"content-length:" if field.startswith(b"content-length:") and line.split()[1][:1] == b"2" else field for field in fields]
    if b"content-encoding: gzip" in fields:
        body = b"(gzip)"
    body = re.sub(rb'"performance":\{[^}]*\}', b'"performance":{}', body)
    return line, fields, re.sub(rb'"(\$ts|last_write_ts|last_read_ts|epoch|effective_priority|uptime_ms)":-?[0-9]+', rb'"\1":0', body)


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Door, Door]]:
    folder: Path = tmp_path_factory.mktemp("doors")
    with Server(folder / "native", 1, {"TOPICS_FRONT": "1"}) as native, Server(folder / "falcon", 1, {"TOPICS_FRONT": "0"}) as falcon:
        yield Door(native.start()), Door(falcon.start())


def cuts_of(size: int) -> list[list[int]]:
    """Places to cut a request of this size in two, spread over it, and all at once where it is short."""
    spread = [[1 + each * (size - 1) // SPLITS] for each in range(SPLITS)]
    return [*spread, list(range(1, size))] if size <= 400 else spread


@pytest.mark.parametrize("part", range(8))
def test_both_doors_give_equal_answers_whole_and_cut(doors: tuple[Door, Door], part: int):
    native, falcon = doors
    differ = []
    for raw in REQUESTS[part::8]:
        wanted = falcon.ask(raw, [])
        for cuts in [[], *cuts_of(len(raw))]:
            got = native.ask(raw, cuts)
            if got != wanted:
                differ.append((raw[:300], cuts[:3], got, wanted))
                break
    told = "\n".join(f"{raw!r} cut at {cuts}\n    native {got!r}\n    falcon {wanted!r}" for raw, cuts, got, wanted in differ)
    assert not differ, f"{len(differ)} differ\n{told}"


def test_the_front_refuses_what_gunicorn_reads_leniently(doors: tuple[Door, Door]):
    for raw in REFUSED_BY_THE_FRONT_ALONE:
        assert [line for line, _, _ in doors[0].ask(raw, [])] == [b"HTTP/1.1 400 Bad Request"], raw


def test_the_native_front_served_the_hot_routes(doors: tuple[Door, Door]):
    native, falcon = doors
    for door, served in ((native, True), (falcon, False)):
        door.ask(post(b"", b'{"records":[{"data":1}]}') + post(b"/diff", b"{}") + request(b"GET", b"/v0/topics/" + TOPIC), [])
        assert door.server.call("PUT", "/v0/topics/jobs", b'{"type":"queue"}').status == 201
        assert door.server.call("POST", "/v0/topics/jobs", b'{"records":[{"data":1},{"data":2}]}').status in (200, 201)
        jobs = door.server.call("POST", "/v0/topics/jobs/claim", b'{"node":"w","max":2}').json["claimed"]
        assert len(jobs) == 2
        for verb, members in (("extend", b'"seqs":[1],"lease_ms":5000'), ("ack", b'"seqs":[1]'), ("nack", b'"seqs":[2]')):
            assert door.server.call("POST", f"/v0/topics/jobs/{verb}", b'{"node":"w",%b}' % members).status == 200
        text = door._exchange(request(b"GET", b"/v0/metrics", b"Connection: close"), []).decode()
        counts = re.findall(r'topics_front_native_total\{route="(\w+)"\} (\d+)', text)
        assert {route: int(count) > 0 for route, count in counts} == dict.fromkeys(
            ("append", "diff", "state", "claim", "ack", "nack", "extend"), served
        )
