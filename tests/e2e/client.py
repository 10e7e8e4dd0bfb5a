"""A small HTTP/1.1 client on raw sockets, and pages of records with their bytes as they came. It knows nothing of the server's inside.

Standard library only: ci/demo.py runs it without the test environment.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

Address = tuple[str, int]
RETRY_STATUSES = (429, 503)
RETRY_S = 0.05  # Retry-After says whole seconds; a test that waited so long would kill an idle server
ACK_S_MAX = 60.0  # a write that is not acked for so long is a failure, not a fault to ride out


class Cut(Exception):
    """Say that the connection ended before the answer did: what became of the request is unknown."""


class Refused(AssertionError):
    """Say that the server answered with a status that no retry helps."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One response, read to its end. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Return error.code, or the empty string for a success."""
        return str(self.json.get("error", {}).get("code", "")) if self.body else ""

    def __str__(self) -> str:
        return f"{self.status} {self.body[:400]!r}"


class InFlight:
    """Count requests that were sent whole and are not answered yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = 0
        self.sent = 0
        self.cut = 0

    def begin(self) -> None:
        with self._lock:
            self.now += 1
            self.sent += 1

    def end(self, cut: bool) -> None:
        with self._lock:
            self.now -= 1
            self.cut += cut

    def wait_for(self, count: int, within_s: float = 60.0) -> int:
        """Return the number in flight as soon as it is at least `count`, or whatever it is when time is up."""
        deadline = time.monotonic() + within_s
        while (now := self.now) < count and time.monotonic() < deadline:
            time.sleep(0.0002)
        return now


class Line:
    """One connection that is kept open, and opened again after it was cut. One thread at a time."""

    def __init__(self, address: Callable[[], Address], timeout_s: float = 100.0, counter: InFlight | None = None) -> None:
        self._address, self._timeout_s, self._counter = address, timeout_s, counter
        self._socket: socket.socket | None = None
        self._left = b""

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._left = None, b""

    def call(self, method: str, path: str, body: bytes | None = None, headers: Iterable[tuple[str, str]] = ()) -> Answer:
        """Send one request, read its answer. Raises Cut when either does not get through."""
        head = [f"{method} {path} HTTP/1.1", "Host: topicsd"]
        if body is not None:
            head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        head += [f"{name}: {value}" for name, value in headers]
        counting = False
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self._address(), self._timeout_s)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall("\r\n".join([*head, "", ""]).encode() + (body or b""))
            if self._counter:
                self._counter.begin()
                counting = True
            answer = self._read(method)
        except (OSError, ValueError) as wrong:
            self.close()
            if counting and self._counter:
                self._counter.end(cut=True)
            raise Cut(f"{method} {path}: {wrong}") from wrong
        if counting and self._counter:
            self._counter.end(cut=False)
        if answer.headers.get("connection", "").lower() == "close":
            self.close()
        return answer

    def _read(self, method: str) -> Answer:
        head = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        status = int(head[0].split(" ", 2)[1])
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        if method == "HEAD" or status in (204, 304):
            return Answer(status, headers, b"")
        if headers.get("transfer-encoding", "").lower() == "chunked":
            pieces = []
            while size := int(self._until(b"\r\n").split(b";")[0], 16):
                pieces.append(self._exactly(size))
                self._until(b"\r\n")
            self._until(b"\r\n")
            return Answer(status, headers, b"".join(pieces))
        return Answer(status, headers, self._exactly(int(headers.get("content-length", "0"))))

    def _until(self, mark: bytes) -> bytes:
        while (end := self._left.find(mark)) < 0:
            self._left += self._more()
        found, self._left = self._left[:end], self._left[end + len(mark) :]
        return found

    def _exactly(self, size: int) -> bytes:
        pieces, have = [self._left], len(self._left)
        while have < size:
            pieces.append(self._more())
            have += len(pieces[-1])
        whole = b"".join(pieces)
        self._left = whole[size:]
        return whole[:size]

    def _more(self) -> bytes:
        assert self._socket is not None
        if not (piece := self._socket.recv(1 << 18)):
            raise ConnectionResetError("the server closed the connection")
        return piece


# --- requests ----------------------------------------------------------------------------------------------------------------


def at(topic: str, *rest: str) -> str:
    """Return the path of a topic, or of something below it."""
    return "/v0/topics/" + "/".join(quote(part, safe="") for part in (topic, *rest))


def write_body(datas: Iterable[bytes], key: str | None = None, tags: Iterable[str | None] = ()) -> bytes:
    """Return the body of a write whose `data` values are exactly these bytes."""
    marks = [b',"tag":' + json.dumps(tag).encode() if tag is not None else b"" for tag in tags]
    datas = list(datas)
    marks += [b""] * (len(datas) - len(marks))
    records = b",".join(b'{"data":%b%b}' % pair for pair in zip(datas, marks, strict=True))
    named = b"" if key is None else b',"idempotency_key":' + json.dumps(key).encode()
    return b'{"records":[%b]%b}' % (records, named)


def insist(line: Line, method: str, path: str, body: bytes | None = None, within_s: float = ACK_S_MAX) -> tuple[Answer, int]:
    """Send a request until it succeeds, whatever hides its outcome: a cut connection, 503, 429. Return (answer, tries).

    Safe for keyed writes and for what is idempotent. Raises Refused for any other status, or when time is up.
    """
    deadline = time.monotonic() + within_s
    tries, last = 0, ""
    while True:
        tries += 1
        try:
            answer = line.call(method, path, body)
        except Cut as cut:
            last = str(cut)
        else:
            if answer.status in (200, 201):
                return answer, tries
            last = str(answer)
            if answer.status not in RETRY_STATUSES:
                raise Refused(f"{method} {path}: {answer}")
        if time.monotonic() > deadline:
            raise Refused(f"{method} {path}: no success within {within_s:.0f} s and {tries} tries; last: {last}")
        time.sleep(RETRY_S)


# --- pages with raw bytes ------------------------------------------------------------------------------------------------


class Record(NamedTuple):
    """One record as read; `data` is the exact text of its value."""

    seq: int
    data: bytes
    tag: str | None


@dataclass(frozen=True, slots=True)
class Page:
    """One answer of diff."""

    records: list[Record]
    next_from_seq: int
    head_seq: int
    caught_up: bool
    tombstone: dict[str, Any] | None


_scan = json.JSONDecoder(parse_float=str, parse_int=int).scan_once
_space = re.compile(r"[ \t\n\r]*").match


def _skip(text: str, place: int) -> int:
    found = _space(text, place)
    assert found is not None
    return found.end()


def spans(text: str, place: int = 0) -> tuple[dict[str, tuple[int, int]], int]:
    """Return where each member's value of the object at `place` stands (start, end), and where the object ends."""
    place = _skip(text, place)
    assert text[place] == "{", f"no object at {place}: {text[place : place + 40]!r}"
    place = _skip(text, place + 1)
    found: dict[str, tuple[int, int]] = {}
    while text[place] != "}":
        name, place = _scan(text, place)
        place = _skip(text, place)
        assert text[place] == ":", f"no colon at {place}"
        begin = _skip(text, place + 1)
        _, end = _scan(text, begin)
        assert name not in found, f"member {name!r} stands twice"
        found[name] = begin, end
        place = _skip(text, end)
        if text[place] == ",":
            place = _skip(text, place + 1)
    return found, place + 1


def parse_page(body: bytes) -> Page:
    """Take a diff's answer apart and keep each `data` as it stands there."""
    text = body.decode()
    outer, _ = spans(text)

    def value(name: str) -> Any:
        return json.loads(text[slice(*outer[name])])

    records = []
    place = _skip(text, outer["records"][0] + 1)
    while text[place] != "]":
        inner, place = spans(text, place)
        tag = json.loads(text[slice(*inner["$tag"])]) if "$tag" in inner else None
        records.append(Record(int(text[slice(*inner["$seq"])]), text[slice(*inner["data"])].encode(), tag))
        place = _skip(text, place)
        if text[place] == ",":
            place = _skip(text, place + 1)
    return Page(records, value("next_from_seq"), value("head_seq"), value("caught_up"), value("tombstone"))


def diff_body(from_seq: int, **members: Any) -> bytes:
    return json.dumps({"from_seq": from_seq, **members}).encode()


def read_all(line: Line, topic: str, from_seq: int = 0, **members: Any) -> tuple[list[Record], list[dict[str, Any]], int]:
    """Follow the cursor until caught up. Return records, tombstones and the head; Raises AssertionError when the cursor stands still."""
    records: list[Record] = []
    tombstones: list[dict[str, Any]] = []
    while True:
        answer, _ = insist(line, "POST", at(topic, "diff"), diff_body(from_seq, limit=1000, include_tags=True, **members))
        page = parse_page(answer.body)
        records += page.records
        if page.tombstone:
            tombstones.append(page.tombstone)
        if page.caught_up:
            return records, tombstones, page.head_seq
        assert page.next_from_seq > from_seq, f"{topic}: the cursor stands still at {from_seq}"
        from_seq = page.next_from_seq
