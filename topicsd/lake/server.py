"""A small HTTP client for what exports ask of a server. Standard library only."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

RETRIES = 8
WAIT_S_MAX = 10.0
TIMEOUT_S = 60.0  # a seal may take half of it


class ServerError(Exception):
    """Say what a server answered, or that it could not be reached."""


class Server:
    """A server by its URL. 429, 503 and broken connections are tried again, as Retry-After says."""

    def __init__(self, url: str, token: str | None = None, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._url, self._token, self._sleep = url.rstrip("/"), token, sleep

    def topics(self) -> Iterator[str]:
        """The names of all topics that the token may see. Raises ServerError."""
        cursor = None
        while True:
            query = urllib.parse.urlencode({"page_size": 1000} | ({"cursor": cursor} if cursor else {}))
            page = self._call("GET", f"/v0/topics?{query}")
            for topic in page["topics"]:
                yield topic["topic"]
            cursor = page.get("next_cursor")
            if cursor is None:
                return

    def seal(self, topic: str) -> bool:
        """Have a topic sealed; False when not all of it can be, or when it is gone. Raises ServerError."""
        try:
            return bool(self._call("POST", f"/v0/topics/{urllib.parse.quote(topic, safe='')}/seal")["sealed"])
        except NotFoundError:
            return False

    def _call(self, method: str, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        request = urllib.request.Request(self._url + path, method=method, headers=headers)
        told = ""
        for turn in range(RETRIES):
            wait_s = min(0.1 * 2**turn, WAIT_S_MAX)
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as wrong:
                told = f"{wrong.code} {wrong.read()[:300].decode(errors='replace')}"
                if wrong.code == 404:
                    raise NotFoundError(f"{method} {path}: {told}") from None
                if wrong.code not in (429, 503):
                    raise ServerError(f"{method} {path}: {told}") from None
                after = wrong.headers.get("Retry-After", "")
                wait_s = min(float(after), WAIT_S_MAX) if after.isdecimal() else wait_s
            except (OSError, ValueError) as wrong:
                told = str(wrong)
            if turn + 1 < RETRIES:
                self._sleep(wait_s)
        raise ServerError(f"{method} {self._url}{path}: {told}")


class NotFoundError(ServerError):
    """Say that there is no such topic."""
