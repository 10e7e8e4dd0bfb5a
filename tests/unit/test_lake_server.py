"""The client that an export asks a server with: pages, retries that honour Retry-After, errors in words."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from topicsd.lake.server import RETRIES, Server, ServerError

Answer = tuple[int, dict[str, str], object]


@pytest.fixture
def fake() -> Iterator[tuple[str, list[Answer], list[tuple[str, str, str | None]]]]:
    """A server that gives prepared answers: (its URL, the answers to come, the requests so far)."""
    answers: list[Answer] = []
    asked: list[tuple[str, str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            asked.append((self.command, self.path, self.headers["Authorization"]))
            status, headers, body = answers.pop(0)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        do_GET = do_POST = answer

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/", answers, asked
        server.shutdown()


def test_all_pages_of_topics_are_read_with_the_token(fake: tuple[str, list[Answer], list[tuple[str, str, str | None]]]) -> None:
    url, answers, asked = fake
    answers += [(200, {}, {"topics": [{"topic": "a"}, {"topic": "b/c"}], "next_cursor": "x y"}), (200, {}, {"topics": [{"topic": "d"}]})]
    assert list(Server(url, "secret").topics()) == ["a", "b/c", "d"]
    assert asked == [("GET", "/v0/topics?page_size=1000", "Bearer secret"), ("GET", "/v0/topics?page_size=1000&cursor=x+y", "Bearer secret")]


def test_a_busy_server_is_asked_again_when_it_says_so(fake: tuple[str, list[Answer], list[tuple[str, str, str | None]]]) -> None:
    url, answers, asked = fake
    slept: list[float] = []
    answers += [(503, {"Retry-After": "3"}, {}), (429, {}, {}), (429, {"Retry-After": "999"}, {}), (200, {}, {"sealed": True})]
    assert Server(url, sleep=slept.append).seal("a/b")
    assert slept == [3.0, 0.2, 10.0]
    assert asked == [("POST", "/v0/topics/a%2Fb/seal", None)] * 4


def test_a_topic_that_is_gone_is_not_sealed_and_other_errors_are_told(fake: tuple[str, list[Answer], list[tuple[str, str, str | None]]]) -> None:
    url, answers, _ = fake
    answers += [(404, {}, {}), (403, {}, {"error": {"code": "forbidden"}})]
    assert not Server(url).seal("t")
    with pytest.raises(ServerError, match=r"POST /v0/topics/t/seal: 403 .*forbidden"):
        Server(url).seal("t")


def test_a_server_whose_writer_starts_is_waited_for_by_time(fake: tuple[str, list[Answer], list[tuple[str, str, str | None]]]) -> None:
    url, answers, asked = fake
    starts: Answer = (503, {"Retry-After": "1"}, {"error": {"code": "not_ready"}})
    slept: list[float] = []
    answers += [*[starts] * 50, (200, {}, {"sealed": True})]
    assert Server(url, sleep=slept.append).seal("t")
    assert slept == [1.0] * 50
    answers += [starts] * (120 + RETRIES)
    with pytest.raises(ServerError, match=r"503.*not_ready"):
        Server(url, sleep=slept.append).seal("t")
    assert (len(asked), answers) == (51 + 120 + RETRIES, [])
    answers += [starts]
    with pytest.raises(ServerError, match=r"503.*not_ready"):
        Server(url, retries=1, sleep=slept.append).seal("t")


def test_retries_end(fake: tuple[str, list[Answer], list[tuple[str, str, str | None]]]) -> None:
    url, answers, asked = fake
    answers += [(503, {}, {})] * RETRIES
    with pytest.raises(ServerError, match="503"):
        Server(url, sleep=lambda _: None).seal("t")
    assert len(asked) == RETRIES
    with pytest.raises(ServerError, match="refused"):
        list(Server("http://127.0.0.1:9", sleep=lambda _: None).topics())
