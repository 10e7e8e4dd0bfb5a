"""Who may open a stream, what it counts as, and how it is told apart in logs, at every door of a whole server (A §0.2, §7.1, §8.3, §11)."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.server import Server, answer, request
from fakes.streams import Blocks, Stream
from topicsd.api.operations import OPERATIONS

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

KEYS = "full,reader:read:mine.|shared.,other:read:mine.,writer:write:mine.,worker:read+write"
RESET = struct.pack("ii", 1, 0)
UPGRADE = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg=="}
EVENTS = {"Accept": "text/event-stream"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("streams"), TOPICS_WORKERS=2, TOPICS_API_KEYS=KEYS, TOPICS_ACCESS_LOG=1) as running:
        running.ready()
        for topic in ("mine.a", "mine.b", "shared.c", "other.d"):
            assert ask(running, "POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]})[0] == 201
        assert ask(running, "PUT", "/v0/topics/jobs", {"type": "queue"})[0] == 201
        yield running


def opened(server: Server, method: str, path: str, body: Any = None, key: str | None = "full", **headers: str) -> socket.socket:
    """Send a request, and leave the connection to the caller."""
    line = server.connect()
    raw = request(method, path, body)
    fields = {**headers, **({"Authorization": f"Bearer {key}"} if key else {})}
    line.sendall(raw.replace(b"Host: x\r\n", b"Host: x\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode()))
    return line


def head_of(line: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Read a response's head; return status, headers and what has come behind them."""
    raw = b""
    while b"\r\n\r\n" not in raw:
        piece = line.recv(65536)
        assert piece, f"closed after {raw!r}"
        raw += piece
    head, _, rest = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), {name.lower(): value for name, _, value in (each.partition(": ") for each in lines)}, rest


def ask(server: Server, method: str, path: str, body: Any = None, key: str | None = "full", **headers: str) -> tuple[int, Any]:
    """Send a request; return status and body."""
    with opened(server, method, path, body, key, **headers) as line:
        return answer(line)


def status_of(server: Server, path: str, key: str | None = None, **headers: str) -> int:
    """Ask for a stream, and hang up."""
    with opened(server, "GET", path, None, key, **(EVENTS | headers)) as line:
        return head_of(line)[0]


def session(server: Server, topics: dict[str, Any], key: str = "full", **options: Any) -> str:
    status, body = ask(server, "POST", "/v0/watch", {"topics": topics, **options}, key)
    assert status == 200, body
    return str(body["stream_url"])


# ---- who may open one --------------------------------------------------------------------------------------------------------


def test_a_wid_opens_with_the_key_that_made_it_alone_shown_by_header_or_as_the_first_token(server: Server) -> None:
    url = session(server, {"mine.a": {}}, "reader")
    for query, key, status in (
        ("", None, 401),
        ("", "full", 401),
        ("", "other", 401),
        ("", "nobody", 401),
        ("", "reader", 200),
        ("?token=other", None, 401),
        ("?token=full", None, 401),
        ("?token=reader", None, 200),
        ("?token=%72eader", None, 200),
        ("?x=1&token=reader&token=full", None, 200),
        ("?token=full&token=reader", None, 401),
        ("?token=reader", "other", 401),
    ):
        assert status_of(server, url + query, key) == status, f"{query} with {key}"


def test_a_key_that_cannot_read_makes_no_session(server: Server) -> None:
    status, body = ask(server, "POST", "/v0/watch", {"topics": {"mine.a": {}}}, "writer")
    assert (status, body["error"]["code"]) == (403, "forbidden")


def test_a_token_in_the_query_opens_the_two_event_streams_and_nothing_else(server: Server) -> None:
    streams = {("GET", "/v0/watch/{wid}"), ("GET", "/v0/topics/{topic}/work")}
    open_to_all = {"/v0/health", "/v0/ready", "/healthz", "/readyz"}
    tried = 0
    for operation in OPERATIONS:
        if (operation.method, operation.path) in streams or operation.path in open_to_all or operation.path == "/v0/ws":
            continue
        path = re.sub(r"\{\w+\}", "mine.a", operation.path)
        status, body = ask(server, operation.method, f"{path}?token=full", {} if operation.method in ("POST", "PUT") else None, None)
        assert (status, body["error"]["code"]) == (401, "unauthorized"), operation
        tried += 1
    assert tried > 20
    assert status_of(server, "/v0/ws?token=full", None, **UPGRADE) == 401, "a socket can write"
    assert status_of(server, "/v0/ws", "full", **UPGRADE) == 101
    assert status_of(server, "/v0/topics/jobs/work?node=n&token=worker") == 200
    assert status_of(server, "/v0/topics/jobs/work?node=n&token=reader") == 403, "its prefixes hold there, too"


@pytest.mark.parametrize(
    ("topics", "status"),
    [
        ({"mine.a": {}}, 200),
        ({"shared.c": {}, "mine.b": {}}, 200),
        ({"mine.*": {}}, 200),
        ({"mine.deeper.*": {}, "shared.*": {}}, 200),
        ({"other.d": {}}, 403),
        ({"other.none": {}}, 403),
        ({"mine.a": {}, "other.d": {}}, 403),
        ({"*": {}}, 403),
        ({"mine*": {}}, 403),
        ({"m*": {}}, 403),
        ({"mine.*": {}, "o*": {}}, 403),
    ],
)
def test_a_keys_prefixes_hold_for_every_name_and_pattern_of_a_watch_and_of_a_subscribe(server: Server, topics: dict[str, Any], status: int) -> None:
    got, body = ask(server, "POST", "/v0/watch", {"topics": topics}, "reader")
    assert got == status, body
    with opened(server, "GET", "/v0/ws", None, "reader", **UPGRADE) as line:
        assert head_of(line)[0] == 101
        line.sendall(text_frame({"op": "subscribe", "request_id": "s", "topics": topics}))
        told = message(line)
    assert (told["op"], told.get("code")) == (("subscribed", None) if status == 200 else ("error", "forbidden"))


def test_lists_hold_the_names_that_a_key_reaches_page_by_page(server: Server) -> None:
    found, cursor = [], ""
    while True:
        status, page = ask(server, "GET", f"/v0/topics?page_size=1{cursor}", None, "reader")
        assert status == 200
        found += [each["topic"] for each in page["topics"]]
        if "next_cursor" not in page:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert found == ["mine.a", "mine.b", "shared.c"]


def test_a_head_request_opens_no_stream(server: Server) -> None:
    url = session(server, {"mine.a": {}})
    with opened(server, "HEAD", url, None, "full", **EVENTS) as line:
        line.sendall(request("GET", "/v0/health", close=True))
        raw = b""
        with contextlib.suppress(ConnectionError):
            while piece := line.recv(65536):
                raw += piece
    assert b"event:" not in raw and b": hb" not in raw, "HEAD has no body"
    assert raw.count(b"HTTP/1.1 ") == 2, "the connection serves what comes next"


# ---- what is told apart ------------------------------------------------------------------------------------------------------


def test_each_door_answers_with_the_request_id_and_logs_it_and_no_token(server: Server) -> None:
    url = session(server, {"mine.a": {}})
    doors = [
        ("stream", "GET", url, {**EVENTS}, None, "full", 200),
        ("stream-by-token", "GET", f"{url}?token=full", {**EVENTS}, None, None, 200),
        ("stream-406", "GET", url, {"Accept": "text/html"}, None, "full", 406),
        ("stream-401", "GET", url, {**EVENTS}, None, "other", 401),
        ("stream-404", "GET", "/v0/watch/wid_none", {**EVENTS}, None, "full", 404),
        ("work", "GET", "/v0/topics/jobs/work?node=n", {**EVENTS}, None, "worker", 200),
        ("work-404", "GET", "/v0/topics/none/work?node=n", {**EVENTS}, None, "full", 404),
        ("socket", "GET", "/v0/ws", UPGRADE, None, "full", 101),
        ("socket-401", "GET", "/v0/ws", UPGRADE, None, None, 401),
        ("socket-426", "GET", "/v0/ws", {**UPGRADE, "Sec-WebSocket-Version": "8"}, None, "full", 400),
        ("append", "POST", "/v0/topics/mine.a", {}, {"records": [{"data": 2}]}, "full", 200),
        ("diff", "POST", "/v0/topics/mine.a/diff", {}, {}, "full", 200),
        ("state", "GET", "/v0/topics/mine.a", {}, None, "full", 200),
        ("list", "GET", "/v0/topics", {}, None, "full", 200),
        ("metrics", "GET", "/v0/metrics", {}, None, "full", 200),
        ("watch", "POST", "/v0/watch", {}, {"topics": {"mine.a": {}}}, "full", 200),
        ("unknown", "GET", "/v0/nothing", {}, None, "full", 404),
    ]
    for name, method, path, headers, body, key, status in doors:
        with opened(server, method, path, body, key, **headers, **{"X-Request-Id": f"door-{name}"}) as line:
            got, told, _ = head_of(line)
        assert (got, told.get("x-request-id")) == (status, f"door-{name}"), name
    for name, _, path, _, _, _, status in doors:
        server.until(lambda name=name: f"request_id='door-{name}'" in server.log, 20)
        [line] = [each for each in server.log.splitlines() if f"request_id='door-{name}'" in each]
        assert f"status={status}" in line.replace("'", "") and f"path='{path.partition('?')[0]}'" in line, line
    assert "token=" not in server.log and "Bearer" not in server.log


def test_what_the_parser_refuses_has_a_request_id_too(server: Server) -> None:
    for raw in (b"NONSENSE\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"):
        with server.connect() as line:
            line.sendall(raw)
            status, headers, _ = head_of(line)
        assert status == 400 and re.fullmatch(r"[0-9a-f]{20}", headers["x-request-id"]), headers


def test_metrics_have_every_name_of_the_contract_and_are_json_on_request(server: Server) -> None:
    """A §8.3."""
    status, text = ask(server, "GET", "/v0/metrics")
    assert status == 200
    named = {line.partition("{")[0].partition(" ")[0] for line in text.decode().splitlines() if not line.startswith("#")}
    process = "topics topics_by_class routers records_live bytes_live queue_topics queue_leases_in_flight sse_connections watch_sessions ready"
    process += " recovery_progress uptime_ms"
    topic = "head_seq earliest_seq records_live bytes_live queue_ready queue_in_flight"
    log = "frames_total batches_total fsyncs_total bytes_written_total rotations_total queue_depth queue_depth_peak submit_full_total read_only"
    wanted = {f"topics_{name}" for name in process.split()} | {f"topics_topic_{name}" for name in topic.split()}
    wanted |= {f"topics_wal_{name}" for name in log.split()} | {"topics_topic_metrics_truncated"}
    wanted |= {f"topics_wal_fsync_latency_us_{suffix}" for suffix in ("bucket", "sum", "count")}
    assert not wanted - named
    assert 'topics_topic_head_seq{topic="mine.a"}' in text.decode() and 'topics_wal_fsync_latency_us_bucket{le="' in text.decode()
    status, told = ask(server, "GET", "/v0/metrics", Accept="application/json")
    assert status == 200 and not wanted - told.keys()


# ---- ids -----------------------------------------------------------------------------------------------------------------------


def first_block(server: Server, url: str, **headers: str) -> tuple[bytes, list[Any]]:
    """Open a stream; return the lines of its first block, and the seqs up to the caught-up event."""
    with opened(server, "GET", url, None, "full", **EVENTS, **headers) as line:
        _, _, raw = head_of(line)
        while b"event: caught-up" not in raw or not raw.endswith(b"\n\n"):
            piece = line.recv(65536)
            assert piece
            raw += piece
    seqs = [record["$seq"] for event in Blocks().feed(raw) if event.get("event") == "record" for record in event["data"]["records"]]
    return raw.partition(b"\n\n")[0], seqs


def test_a_session_made_with_a_cursor_opens_with_that_cursor_and_any_other_where_it_is_asked_for(server: Server) -> None:
    for _ in range(3):
        ask(server, "POST", "/v0/topics/ids", {"records": [{"data": 1}]})
    cursor = base64.urlsafe_b64encode(json.dumps({"ids": 1}).encode()).rstrip(b"=").decode()
    for options, named, seqs in (
        ({}, None, [1, 2, 3]),
        ({"cursor": cursor}, 1, [2, 3]),
        ({"opening_id": True}, 0, [1, 2, 3]),
        ({"opening_id": True, "cursor": cursor}, 1, [2, 3]),
    ):
        url = session(server, {"ids": {"from_seq": 0}}, **options)
        block, found = first_block(server, url)
        lines = block.decode().split("\n")
        assert re.fullmatch(r"retry: 2000\n: hb \d{13}", "\n".join(lines[:2])), block
        ids = [json.loads(base64.urlsafe_b64decode(each[4:] + "==="))["ids"] for each in lines[2:]]
        assert (ids, found) == ([] if named is None else [named], seqs), options
        again = first_block(server, url)[1]
        assert again == (seqs if "opening_id" in options else []), "who shows no id has seen nothing, where streams open with one"
        resumed = base64.urlsafe_b64encode(json.dumps({"ids": 2}).encode()).rstrip(b"=").decode()
        assert first_block(server, url, **{"Last-Event-ID": resumed})[1] == [3]
    status, body = ask(server, "POST", "/v0/watch", {"topics": {"ids": {}}, "opening_id": 1})
    assert (status, body["error"]["detail"]["field"]) == (400, "opening_id")


# ---- places --------------------------------------------------------------------------------------------------------------------


def text_frame(command: dict[str, Any]) -> bytes:
    """Encode a command as a client's frame, masked by zeros."""
    payload = json.dumps(command).encode()
    head = bytes([0x81, 0x80 | len(payload)]) if len(payload) < 126 else b"\x81\xfe" + struct.pack("!H", len(payload))
    return head + bytes(4) + payload


def message(line: socket.socket) -> Any:
    """Read one message of less than 64 KiB."""
    held = b""

    def take(count: int) -> bytes:
        nonlocal held
        while len(held) < count:
            piece = line.recv(count - len(held))
            assert piece, "the socket has ended"
            held += piece
        taken, held = held[:count], held[count:]
        return taken

    size = take(2)[1]
    return json.loads(take(struct.unpack("!H", take(2))[0] if size == 126 else size))


def leave(line: socket.socket, how: str) -> None:
    """End a connection in one of several ways."""
    if how == "reset":
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    elif how == "half":
        line.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            while line.recv(65536):
                pass
    elif how == "close frame":
        line.sendall(b"\x88\x82" + bytes(4) + b"\x03\xe8")
        while line.recv(65536):
            pass
    line.close()


def test_a_stream_gives_its_place_back_on_every_way_out_and_a_refused_one_takes_none(tmp_path: Path) -> None:
    env = {"TOPICS_MAX_SSE_CONNECTIONS": 2, "TOPICS_MAX_SSE_CONNECTIONS_PER_KEY": 1}
    with Server(tmp_path, TOPICS_WORKERS=2, TOPICS_API_KEYS="one,two,three", **env) as server:
        server.ready()
        for key in ("one", "two"):
            ask(server, "POST", f"/v0/topics/{key}", {"records": [{"data": 1}]}, key)
        ask(server, "PUT", "/v0/topics/jobs", {"type": "queue"}, "one")
        url = session(server, {"one": {}}, "one")
        other = session(server, {"two": {}}, "two")
        ways = [(url, EVENTS, how) for how in ("close", "reset", "half")]
        ways += [("/v0/topics/jobs/work?node=n", EVENTS, how) for how in ("close", "reset", "half")]
        ways += [("/v0/ws", UPGRADE, how) for how in ("close", "reset", "half", "close frame")]
        for path, headers, how in ways:
            lines = []

            def gets_in(path: str = path, headers: Any = headers, lines: Any = lines) -> bool:
                lines.append(opened(server, "GET", path, None, "one", **headers))
                status, _, _ = head_of(lines[-1])
                return status in (200, 101)

            server.until(gets_in, 20)
            for refused in lines[:-1]:
                refused.close()
            with opened(server, "GET", "/v0/ws", None, "one", **UPGRADE) as line:
                assert answer(line) == (429, throttled("max_sse_connections_per_key", 1)), "a key's own cap, over all workers"
            leave(lines[-1], how)
        for path, headers, key, status in (
            (url, {"Accept": "text/html"}, "one", 406),
            (url, EVENTS, "two", 401),
            ("/v0/watch/wid_none", EVENTS, "one", 404),
            ("/v0/topics/none/work?node=n", EVENTS, "one", 404),
            ("/v0/topics/one/work?node=n", EVENTS, "one", 409),
            ("/v0/ws", {**UPGRADE, "Sec-WebSocket-Key": "short"}, "one", 400),
        ):
            assert status_of(server, path, key, **headers) == status, path
        held = [gets_in_at(server, url, "one", EVENTS), gets_in_at(server, other, "two", EVENTS)]
        with opened(server, "GET", "/v0/ws", None, "three", **UPGRADE) as line:
            assert answer(line) == (429, throttled("max_sse_connections", 2)), "the cap of all"
        held.append(gets_in_at(server, url, "one", EVENTS))  # a takeover needs no place
        for line in held:
            line.close()
        gets_in_at(server, "/v0/ws", "three", UPGRADE).close()


def gets_in_at(server: Server, path: str, key: str, headers: dict[str, str]) -> socket.socket:
    """Open a stream as soon as there is a place."""
    lines: list[socket.socket] = []

    def tried() -> bool:
        for line in lines:
            line.close()
        lines[:] = [opened(server, "GET", path, None, key, **headers)]
        return head_of(lines[0])[0] in (200, 101)

    server.until(tried, 20)
    return lines[0]


def throttled(limit: str, most: int) -> Any:
    return Same(lambda body: body["error"]["code"] == "throttled" and body["error"]["detail"] == {"limit": limit, "max": most})


class Same:
    """Equal to whatever a check takes."""

    def __init__(self, check: Any) -> None:
        self.check = check

    def __eq__(self, other: object) -> bool:
        return bool(self.check(other))

    __hash__ = None  # type: ignore[assignment]


def test_takeovers_whose_clients_hang_up_at_once_leave_no_place_taken(tmp_path: Path) -> None:
    with Server(tmp_path, TOPICS_WORKERS=3) as own:
        own.ready()
        assert own.write("t", 1)[0] == 201
        paths = [own.ask("POST", "/v0/watch", {"topics": {"t": {}}})[1]["stream_url"] for _ in range(8)]
        for number in range(400):
            with opened(own, "GET", paths[number % len(paths)], None, None, **EVENTS) as line:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        own.until(lambda: ask(own, "GET", "/v0/metrics", None, None, Accept="application/json")[1]["topics_sse_connections"] == 0)
        assert "internal error" not in own.log


def test_who_shows_no_id_gets_again_what_its_kernel_had_not_taken(tmp_path: Path) -> None:
    """A §7.4: a client that was cut before its first id, with bytes under way."""

    def delivered() -> float:
        told = server.ask_metrics()["topics_delivered_records_total"]
        return float(next(each["value"] for each in told if each["door"] == "sse"))

    with Server(tmp_path, TOPICS_WORKERS=1) as server:
        server.ready()
        ask(server, "PUT", "/v0/topics/t", {})
        url = session(server, {"t": {}})
        with socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the least that the kernel gives: no record of this test fits
            line.connect(server.address)
            line.sendall(request("GET", url).replace(b"Host: x\r\n", b"Host: x\r\nAccept: text/event-stream\r\n"))
            raw = b""
            while b"event: caught-up" not in raw or not raw.endswith(b"\n\n"):
                raw += line.recv(1)
            for seq in (1, 2):
                server.write("t", "x" * 8000)
                server.until(lambda seq=seq: delivered() >= seq, 20)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        server.until(lambda: server.ask_metrics()["topics_sse_connections"] == 0, 20)
        assert first_block(server, url)[1] == [1, 2]


def test_a_session_without_a_stream_ends_after_its_time_and_makes_room_and_one_with_a_stream_stays(tmp_path: Path) -> None:
    """A §7.1: swept when a session is made or a stream opens."""
    with Server(tmp_path, TOPICS_WORKERS=2, TOPICS_SESSION_TTL_MS=1_000, TOPICS_MAX_WATCH_SESSIONS=2) as server:
        server.ready()
        server.write("t", 1)
        kept = session(server, {"t": {"tail": True}})
        with Stream(server, kept.rpartition("/")[2]) as stream:
            idle = session(server, {"t": {}})
            server.until(lambda: ask(server, "POST", "/v0/watch", {"topics": {"t": {}}})[0] == 200, 20)
            assert status_of(server, idle) == 404, "the place of the idle one was taken"
            server.write("t", 2)
            assert stream.next("record")[1]["records"][0]["data"] == 2, "and the open one goes on"
            assert server.ask_metrics()["topics_sse_connections"] == 1
