"""The whole server: connections, drains, deaths of processes, refusals to start."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import subprocess
import threading
import time

import pytest

from fakes.server import SERVE, Server, answer, request

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("server"), TOPICS_WORKERS=2) as server:
        yield server.ready()


def test_pipelined_requests_are_all_answered_also_when_the_client_has_finished_sending(shared_server):
    with shared_server.connect() as line:
        one = request("POST", "/v0/topics/pipe", {"records": [{"data": 1}]})
        line.sendall(one * 5)
        line.shutdown(1)
        held = bytearray()
        assert [answer(line, held)[1]["last_seq"] for _ in range(5)] == [1, 2, 3, 4, 5]
        assert line.recv(1) == b"" and not held


@pytest.mark.parametrize(
    "cut",
    [
        b"Content-Length: 40\r\n\r\n" + b'{"records":[{"data":1}]}',
        b"Transfer-Encoding: chunked\r\n\r\n18\r\n" + b'{"records":[{"data":1}]}' + b"\r\n",
    ],
)
@pytest.mark.parametrize("how", ["close", "reset", "finish"])
def test_a_client_that_leaves_in_the_middle_of_a_body_commits_nothing(shared_server, cut, how):
    topic = f"cut-{how}-{len(cut)}"
    with shared_server.connect() as line:
        line.sendall(f"POST /v0/topics/{topic} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode() + cut)
        time.sleep(0.05)
        if how == "reset":
            line.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # SO_LINGER 0
        if how == "finish":
            line.shutdown(1)
            assert answer(line)[0] == 400
    time.sleep(0.1)
    assert shared_server.ask("GET", f"/v0/topics/{topic}")[0] == 404


def test_parser_errors_wear_the_envelope(shared_server):
    for sent in (b"NONSENSE\r\n\r\n", b"GET /v0/health HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"):
        with shared_server.connect() as line:
            line.sendall(sent)
            status, body = answer(line)
            assert status == 400 and body["error"]["code"] == "invalid_request"


def test_a_64_mib_body_is_taken_and_one_byte_more_is_413(shared_server):
    frame = b'{"records":[{"data":"' + b"x" * 1_000_000 + b'"}]}'
    for size, status in ((64 << 20, 201), ((64 << 20) + 1, 413)):
        with shared_server.connect() as line:
            line.sendall(
                f"POST /v0/topics/big HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n".encode() + frame
            )
            padding = b" " * (size - len(frame))
            threading.Thread(target=_send, args=(line, padding), daemon=True).start()
            assert answer(line)[0] == status


def _send(line, payload):
    try:
        line.sendall(payload)
    except OSError:
        pass


def test_a_batch_above_the_whole_cap_is_refused_in_the_same_words_whether_its_topic_is_there_or_not(shared_server):
    caps = {"cap_records": 1, "discard": "reject"}
    two = {"records": [{"data": 1}, {"data": 2}]}
    absent = shared_server.ask("POST", "/v0/topics/capped", {**two, "config": caps})
    shared_server.ask("PUT", "/v0/topics/capped", caps)
    there = shared_server.ask("POST", "/v0/topics/capped", two)
    assert absent == there and there[0] == 400
    assert there[1]["error"]["detail"] == {"field": "records", "cap_records": 1, "cap_bytes": 0}


def test_a_long_poll_of_one_worker_wakes_at_a_write_through_another(shared_server):
    shared_server.write("poll", 0)
    for round_ in range(1, 6):
        with shared_server.connect() as line:
            line.sendall(request("POST", "/v0/topics/poll/diff", {"from_seq": round_, "wait_ms": 30000}))
            time.sleep(0.05)
            started = time.monotonic()
            shared_server.write("poll", round_)
            assert [record["data"] for record in answer(line)[1]["records"]] == [round_]
            assert time.monotonic() - started < 20  # of 30


def test_a_drain_answers_long_polls_and_ends_with_status_0(tmp_path):
    with Server(tmp_path).ready() as server, server.connect() as line:
        server.write("t", 1)
        line.sendall(request("POST", "/v0/topics/t/diff", {"from_seq": 1, "wait_ms": 30000}))
        server.until(lambda: b"topics_http_long_polls 1\n" in server.ask("GET", "/v0/metrics")[1])
        begun = time.monotonic()
        assert server.stop(whole_group=True) == 0
        assert time.monotonic() - begun < 20  # of 30
        status, body = answer(line)
        assert status == 200 and body["records"] == []


def test_the_writer_may_die_under_load_and_every_acked_record_is_there_once(tmp_path):
    with Server(tmp_path, TOPICS_WORKERS=2).ready() as server:
        server.ask("PUT", "/v0/topics/t", {})
        acked: set[int] = set()
        unknown: list[int] = []
        stop = threading.Event()

        def produce(place: int) -> None:
            number = place
            while not stop.is_set():
                status, body = server.write("t", number, idempotency_key=str(number))
                if status == 200:
                    acked.add(number)
                    number += 100
                else:
                    assert status == 503 and body["error"]["code"] == "not_ready", body
                    unknown.append(number)
                    time.sleep(0.01)

        producers = [threading.Thread(target=produce, args=(place,)) for place in range(8)]
        for producer in producers:
            producer.start()
        for _ in range(3):
            before = len(acked)
            server.until(lambda before=before: len(acked) > before + 50)
            os.kill(server.children("writer")[0], signal.SIGKILL)
        server.until(lambda: len(acked) > 400)
        stop.set()
        for producer in producers:
            producer.join()
        os.kill(server.children("writer")[0], signal.SIGKILL)
        got = [record["data"] for record in server.read_all("t")]  # from before the writer is back
        assert len(got) == len(set(got)) and acked <= set(got)
        assert server.stop() == 0


def test_workers_may_die_under_load(tmp_path):
    with Server(tmp_path, TOPICS_WORKERS=2).ready() as server:
        acked, stop = [], threading.Event()

        def produce(place: int) -> None:
            number = place
            while not stop.is_set():
                try:
                    status, _ = server.write("t", number, idempotency_key=str(number))
                except OSError:
                    continue  # the connection died with its worker: ask again with the same key
                assert status in (200, 201)
                acked.append(number)
                number += 100

        producers = [threading.Thread(target=produce, args=(place,)) for place in range(4)]
        for producer in producers:
            producer.start()
        for _ in range(5):
            before = len(acked)
            server.until(lambda before=before: len(acked) > before + 30)
            os.kill(server.children("worker")[0], signal.SIGKILL)
            server.until(lambda: len(server.children("worker")) == 2)
        stop.set()
        for producer in producers:
            producer.join()
        got = [record["data"] for record in server.read_all("t")]
        assert len(got) == len(set(got)) and set(acked) <= set(got)
        assert server.stop() == 0


def test_a_second_server_on_the_directory_is_refused_with_the_pid_of_the_first(tmp_path):
    with Server(tmp_path).ready() as server:
        (writer,) = server.children("writer")
        env = os.environ | {"TOPICS_PORT": "0", "TOPICS_DATA_DIR": str(tmp_path / "data")}
        second = subprocess.run(SERVE, env=env, capture_output=True, text=True, timeout=100)
        assert second.returncode == 3 and str(writer) in second.stderr
        assert server.write("t", 1)[0] == 201


def test_a_port_that_is_in_use_is_told_at_once_and_nothing_is_made(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        env = os.environ | {"TOPICS_PORT": str(port), "TOPICS_DATA_DIR": str(tmp_path / "data")}
        ended = subprocess.run(SERVE, env=env, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 2 and f"127.0.0.1:{port}: Address already in use" in ended.stderr and "Retry" not in ended.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "env, told",
    [
        ({"TOPICS_API_KEYS": "sesame:reed"}, "reed"),
        ({"TOPICS_API_KEYS": ","}, "TOPICS_API_KEYS: entry 1 is blank"),
        ({"TOPICS_HOST": "0.0.0.0"}, "TOPICS_ALLOW_INSECURE_NO_AUTH"),
        ({"TOPICS_PORT": "x"}, "TOPICS_PORT"),
        ({"TOPICS_DATA_DIR": "/dev/null/data"}, "TOPICS_DATA_DIR"),
        ({"TOPICS_API_KEYS_FILE": "/nowhere"}, "TOPICS_API_KEYS_FILE"),
        ({"TOPICS_CONFIG": "/nowhere"}, "/nowhere"),
    ],
)
def test_a_wrong_setting_ends_the_start_with_a_message_that_names_it(tmp_path, env, told):
    plain = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    usual = {"TOPICS_DATA_DIR": str(tmp_path), "TOPICS_PORT": str(port)}  # `make run` may stand on the default port
    ended = subprocess.run(SERVE, env=plain | usual | env, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 2 and told in ended.stderr and "sesame" not in ended.stderr and "Traceback" not in ended.stderr


def test_the_server_bears_few_file_descriptors(tmp_path):
    command = ["bash", "-c", "ulimit -n 256; exec " + " ".join(SERVE)]
    with Server(tmp_path, command).ready() as server:
        lines = [server.connect() for _ in range(300)]
        time.sleep(0.2)
        for line in lines:
            line.close()
        server.until(lambda: server.write("t", 1)[0] in (200, 201))
        assert server.stop() == 0


@pytest.mark.parametrize("front", ["native", "falcon"])
def test_while_the_server_drains_new_requests_are_told_so_and_what_has_begun_is_finished(tmp_path, front):
    with Server(tmp_path, TOPICS_FRONT=front, TOPICS_DRAIN_MS=60_000).ready() as server:
        with server.connect() as begun, server.connect() as kept, server.connect() as half:
            begun.sendall(b"POST /v0/topics/t HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            begun.sendall(b'f\r\n{"records":[{"d')
            for line in (kept, half):
                line.sendall(request("GET", "/v0/health"))
                assert answer(line)[0] == 200
            half.sendall(b"GET /v0/topics HT")
            server.until(lambda: b"topics_http_requests_in_flight 2\n" in server.ask("GET", "/v0/metrics")[1])  # that one and this one
            os.kill(server.process.pid, signal.SIGTERM)
            server.until(lambda: "'draining'" in server.log)

            for line in (kept, server.connect()):  # a connection from before, and a new one
                with line:
                    line.sendall(request("POST", "/v0/topics/t/diff", {}))
                    head, body = whole(line)
                    assert head.startswith(b"HTTP/1.1 503 ") and b"\r\nconnection: close" in head.lower() and b"\r\nretry-after: " in head.lower()
                    assert b'"shutting_down"' in body
            assert server.ask("GET", "/v0/health")[0] == 200 and server.ask("GET", "/v0/ready")[1]["error"]["code"] == "shutting_down"
            assert server.process.poll() is None

            begun.sendall(b'\r\nc\r\nata":1    }]\r\n1\r\n}\r\n0\r\n\r\n')
            assert answer(begun)[0] == 201
            if front == "native":
                assert answer(half)[1]["error"]["code"] == "shutting_down"
        assert server.process.wait(60) == 0
        assert server.log.index("'draining'") < server.log.index("'stopped'")


def whole(line) -> tuple[bytes, bytes]:
    """Read until the server closes; return head and body."""
    told = b""
    while piece := line.recv(65536):
        told += piece
    head, _, body = told.partition(b"\r\n\r\n")
    return head, body


def test_large_requests_in_pieces_and_behind_each_other_keep_every_byte(shared_server):
    rng = random.Random(7)
    datas = [[f"{topic}-{n}-" + "x" * 300 for n in range(size)] for topic, size in enumerate((250, 900, 1, 2500, 400))]
    sent = b"".join(request("POST", "/v0/topics/large", {"records": [{"data": data} for data in each]}) for each in datas)
    with shared_server.connect() as line:
        line.settimeout(60)
        sender = threading.Thread(target=lambda: [line.sendall(sent[at:to]) for at, to in itertools.pairwise(cuts)])
        cuts = sorted({0, len(sent), *(rng.randrange(len(sent)) for _ in range(60))})
        sender.start()
        held = bytearray()
        assert [answer(line, held)[1]["count"] for _ in datas] == [len(each) for each in datas]
        sender.join()
    assert [record["data"] for record in shared_server.read_all("large")] == [data for each in datas for data in each]


@pytest.mark.parametrize("front", ["native", "falcon"])
@pytest.mark.parametrize("before", ["write", "list"])  # what the front serves itself, and what it hands on
def test_a_client_that_has_finished_sending_does_not_hold_the_poll_behind_its_other_requests(tmp_path, front, before):
    with Server(tmp_path, TOPICS_FRONT=front).ready() as server, server.connect() as line:
        server.write("t", 0)
        first = request("POST", "/v0/topics/t", {"records": [{"data": 1}]}) if before == "write" else request("GET", "/v0/topics")
        line.sendall(first + request("POST", "/v0/topics/t/diff", {"from_seq": 2 if before == "write" else 1, "wait_ms": 30000}))
        line.shutdown(1)
        begun = time.monotonic()
        told = bytearray()
        assert answer(line, told)[0] == 200
        assert answer(line, told)[1]["records"] == []
        assert time.monotonic() - begun < 20  # of 30
        assert line.recv(1) == b""
