"""A small HTTP client for what exports, the Spark source and its sink ask of a server. Standard library only; a later SDK replaces it."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

RETRIES = 8
WAIT_S_MAX = 10.0
START_S_MAX = 120.0  # a writer that replays its log says `not_ready`: that is waited for by time, for it takes what its log takes
TIMEOUT_S = 60.0  # a seal may take half of it
PAGE_BYTES = 8 << 20  # the most that diff gives


class ServerError(Exception):
    """Say what a server answered, or that it could not be reached. `status`: 0 when there was no answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[type[ServerError], tuple[str, int]]:
        return type(self), (str(self), self.status)


class NotFoundError(ServerError):
    """Say that there is no such topic."""


class Server:
    """A server by its URL, over one connection that is kept. 429, 503 and broken connections are tried again, as Retry-After says;
    503 `not_ready`, a writer that starts, does not count as a try for two minutes.

    Whatever is tried again may have been done already: only calls that may be made twice are here, an append with its key. One thread.
    """

    def __init__(
        self, url: str, token: str | None = None, *, retries: int = RETRIES, sleep: Callable[[float], None] = time.sleep
    ) -> None:  # fmt: skip
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ServerError(f"the URL of a server begins with http:// or https://, not {url}")
        self._secure, self._host, self._port, self._base = parts.scheme == "https", parts.hostname, parts.port, parts.path.rstrip("/")
        self._url, self._token, self._retries, self._sleep = url.rstrip("/"), token, retries, sleep
        self._line: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Close the connection; the next call makes another."""
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- topics

    def listed(self) -> Iterator[dict[str, Any]]:
        """Every topic that the token may see, as the list has it: name, head_seq, earliest_seq, count, bytes, epoch. Raises ServerError."""
        cursor = None
        while True:
            query = urllib.parse.urlencode({"page_size": 1000} | ({"cursor": cursor} if cursor else {}))
            page = self._json("GET", f"/v0/topics?{query}")
            yield from page["topics"]
            cursor = page.get("next_cursor")
            if cursor is None:
                return

    def topics(self) -> Iterator[str]:
        """The names of all topics that the token may see. Raises ServerError."""
        for topic in self.listed():
            yield topic["topic"]

    def state(self, topic: str) -> dict[str, Any]:
        """A topic's state and config; asking does not count as reading it. Raises NotFoundError, ServerError."""
        return dict(self._json("GET", f"{_path(topic)}?touch=false"))

    def put(self, topic: str, config: dict[str, Any]) -> None:
        """Make a topic, or replace its config. Raises ServerError."""
        self._json("PUT", _path(topic), json.dumps(config).encode())

    def seal(self, topic: str) -> bool:
        """Have a topic sealed; False when not all of it can be, or when it is gone. Raises ServerError."""
        try:
            return bool(self._json("POST", f"{_path(topic)}/seal")["sealed"])
        except NotFoundError:
            return False

    # ---- records

    def diff(self, topic: str, from_seq: int, *, epoch: int | None = None, limit: int = 1000) -> bytes:
        """The body of the page behind from_seq, with tags and meta. Raises NotFoundError, ServerError."""
        asked = {"from_seq": from_seq, "limit": limit, "include_tags": True, "include_meta": True, "max_batch_bytes": PAGE_BYTES}
        return self._call("POST", f"{_path(topic)}/diff", json.dumps(asked | ({} if epoch is None else {"epoch": epoch})).encode())

    def append(self, topic: str, body: bytes) -> dict[str, Any]:
        """Append a batch: the body of a write, with its idempotency key in it. Raises NotFoundError, ServerError."""
        return dict(self._json("POST", f"{_path(topic)}?return_seqs=false", body))

    # ---- requests

    def _json(self, method: str, path: str, body: bytes | None = None) -> Any:
        raw = self._call(method, path, body)
        try:
            return json.loads(raw)
        except ValueError as wrong:
            raise ServerError(f"{method} {self._url}{path}: the answer is no JSON: {wrong}") from None

    def _call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        told, status, turn, started_s = "", 0, 0, 0.0
        while turn < self._retries:
            wait_s = min(0.1 * 2**turn, WAIT_S_MAX)
            try:
                status, after, raw = self._ask(method, self._base + path, body)
            except (OSError, http.client.HTTPException) as wrong:
                self.close()
                told, status = str(wrong) or type(wrong).__name__, 0
                wait_s *= random.uniform(0.5, 1)  # all tasks of a job lose their server at once
            else:
                if status < 300:
                    return raw
                told = f"{status} {raw[:300].decode(errors='replace')}"
                if status == 404:
                    raise NotFoundError(f"{method} {path}: {told}", status)
                if status not in (429, 503):
                    raise ServerError(f"{method} {path}: {told}", status)
                wait_s = min(float(after), WAIT_S_MAX) if after.isdecimal() else wait_s
                if status == 503 and self._retries > 1 and started_s < START_S_MAX and b'"not_ready"' in raw:
                    started_s += wait_s
                    self._sleep(wait_s)
                    continue
            turn += 1
            if turn < self._retries:
                self._sleep(wait_s)
        raise ServerError(f"{method} {self._url}{path}: {told}", status)

    def _ask(self, method: str, path: str, body: bytes | None) -> tuple[int, str, bytes]:
        line = self._line
        if line is None:
            if self._secure:
                line = http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_S, context=ssl.create_default_context())
            else:
                line = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
            self._line = line
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        line.request(method, path, body, headers)
        answer = line.getresponse()
        raw = answer.read()
        if answer.will_close:
            with contextlib.suppress(OSError):
                self.close()
        return answer.status, answer.headers.get("Retry-After", ""), raw


def _path(topic: str) -> str:
    return f"/v0/topics/{urllib.parse.quote(topic, safe='')}"
