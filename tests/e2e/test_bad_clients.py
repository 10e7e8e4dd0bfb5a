"""Bad clients: bodies that end early, bodies and batches at their limits and one beyond, names at and beyond theirs."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.client import Answer, at, insist, read_all, write_body
from e2e.server import Server, as_json, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory: Path = tmp_path_factory.mktemp("clients")
    with Server(directory, workers=2) as running:
        yield running.start()


def head(path: str, *fields: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: topicsd", "Content-Type: application/json", *fields, "", ""]).encode()


def send_and_leave(server: Server, sent: bytes, how: str) -> None:
    """Send, wait a moment so that the server has it, and go: by FIN, by RST, or by closing only our side first."""
    with socket.create_connection(server.address, 60.0) as line:
        line.sendall(sent)
        time.sleep(0.05)
        if how == "reset":
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif how == "half":
            line.shutdown(socket.SHUT_WR)
            line.settimeout(60.0)
            while line.recv(4096):
                pass


@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_client_that_leaves_in_the_middle_of_a_body_commits_nothing(server: Server, how: str, framing: str) -> None:
    topic = f"left-{how}-{framing}"
    assert server.call("PUT", at(topic), as_json({"durability": "fsync"})).status == 201
    whole = write_body([b'"%d"' % number for number in range(100)])
    # The part that is sent ends where it happens to be valid JSON, or not: neither may be taken for the body.
    for part in (b"", whole[:1], whole[: len(whole) // 2], whole[:-1], whole):
        if framing == "length":
            sent = head(at(topic), f"Content-Length: {len(whole) + 10}") + part
        else:
            sent = head(at(topic), "Transfer-Encoding: chunked") + (b"%x\r\n%b\r\n" % (len(part), part) if part else b"")
        send_and_leave(server, sent, how)
    state = server.call("GET", at(topic)).json
    assert (state["head_seq"], state["count"]) == (0, 0)
    assert not eventually(lambda: server.call("GET", at(topic)).json["head_seq"], 0.3)
    assert server.call("POST", at(topic), whole).json["first_seq"] == 1


def body_of(size: int) -> tuple[bytes, list[bytes]]:
    """Return a write body of exactly `size` bytes, and its datas; each record is less than 1 MiB."""
    count = -(-size // (1000 * 1024))
    empty = len(write_body([b'""'] * count))
    share, rest = divmod(size - empty, count)
    datas = [b'"%b"' % (bytes([97 + number % 26]) * (share + (number < rest))) for number in range(count)]
    body = write_body(datas)
    assert len(body) == size
    return body, datas


def test_a_body_of_64_mib_is_taken_and_one_byte_more_is_not(server: Server) -> None:
    body, datas = body_of(64 * MIB)
    answer = server.call("POST", at("large"), body)
    assert answer.status == 201, str(answer)
    with server.line() as line:
        records, _, _ = read_all(line, "large")
    assert [record.data for record in records] == datas

    refused = too_large(server, body_of(64 * MIB + 1)[0])

    assert (refused.status, refused.code) == (413, "payload_too_large"), str(refused)
    assert server.call("GET", at("large")).json["head_seq"] == len(datas)


def too_large(server: Server, body: bytes) -> Answer:
    """Send a body that may be refused before it is read: the answer must get through all the same."""
    with socket.create_connection(server.address, 60.0) as line:
        try:
            line.sendall(head(at("large"), f"Content-Length: {len(body)}") + body)
        except OSError:
            pass
        got = b""
        while b"\r\n\r\n" not in got or not got.endswith(b"}"):
            if not (piece := line.recv(65536)):
                break
            got += piece
    first, _, rest = got.partition(b"\r\n")
    return Answer(int(first.split()[1]), {}, rest.partition(b"\r\n\r\n")[2])


def test_a_batch_of_10000_records_is_taken_and_one_more_is_not(server: Server) -> None:
    datas = [b"%d" % number for number in range(10_000)]
    body = server.call("POST", at("many"), write_body(datas)).json
    assert (body["first_seq"], body["last_seq"], body["count"]) == (1, 10_000, 10_000)
    refused = server.call("POST", at("many"), write_body([*datas, b"1"]))
    assert (refused.status, refused.code) == (400, "batch_too_large"), str(refused)
    with server.line() as line:
        records, _, _ = read_all(line, "many")
    assert [record.data for record in records] == datas


def test_names_of_255_bytes_are_taken_and_longer_or_strange_ones_are_not(server: Server) -> None:
    longest = "n" * 255
    assert server.call("PUT", at(longest), b"{}").status == 201
    assert server.call("POST", at(longest), write_body([b"1"])).status == 200
    strange = ["n" * 256, "a%2Fb", "..", ".", "%2e%2e", "a%20b", "%00", "-a", "a%0Ab", "%C3%A9", "a%", "a%zz", "a%252Fb", "..%2F..%2Fetc%2Fpasswd"]
    for name in strange:
        for method, path, body in (("PUT", name, b"{}"), ("POST", name, write_body([b"1"])), ("POST", f"{name}/diff", b"{}"), ("GET", name, None)):
            answer = server.call(method, f"/v0/topics/{path}", body)
            assert (answer.status, answer.code) == (400, "invalid_request"), f"{method} {path}: {answer}"
    listed = {each["topic"] for each in server.call("GET", "/v0/topics?page_size=1000").json["topics"]}
    assert longest in listed and not listed & set(strange)
    assert [path.name for path in server.data.parent.iterdir() if path.name not in ("data", "log", "port")] == []


def test_a_name_that_is_kept_by_a_client_library_as_two_segments_is_no_topic(server: Server) -> None:
    assert server.call("PUT", "/v0/topics/a/b", b"{}").status == 404


def test_many_connections_that_say_nothing_do_not_stop_the_others(server: Server) -> None:
    silent = [socket.create_connection(server.address, 60.0) for _ in range(300)]
    try:
        for each in silent[::3]:
            each.sendall(b"POST /v0/topics/t HTTP/1.1\r\nHost: x\r\n")
        with server.line() as line:
            answer, _ = insist(line, "POST", at("beside"), write_body([b"1"]))
        assert answer.status == 201
    finally:
        for each in silent:
            each.close()


@pytest.mark.parametrize("size", [70_000, 200_000])
def test_a_quick_client_may_send_large_bodies_one_after_the_other_on_one_connection(server: Server, size: int) -> None:
    with server.line() as line:
        for number in range(150):
            answer = line.call("POST", at(f"quick-{size}"), write_body([b'"%06d%b"' % (number, b"x" * size)]))
            assert answer.status in (200, 201), str(answer)
