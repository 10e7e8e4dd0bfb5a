"""An object store by URL, through obstore: what backups, the cold tier, exports and their readers share.

Stores answer 503, slowly, or not at all, and an answer may be lost after they have done what they were asked. So what may be repeated is repeated,
and `create` looks at what is there before it says that somebody else was faster. Credentials come from the environment, as the stores' own tools
take them, or from options; neither errors nor reprs repeat them.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

SCHEMES = {"s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss"}
OPTION_PREFIXES = ("aws_", "google_", "azure_")
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
CHUNK_BYTES = 8 << 20  # of one request of a larger read: a slow store ends it within the timeout
ATTEMPTS = 4  # on top of the client's own tries, which end when a body has begun
WAIT_S = 0.2  # before the second attempt; twice as long before each further one
ERROR_CHARS = 500
_FINAL = {
    "InvalidPathError", "NotSupportedError", "PermissionDeniedError", "PreconditionError", "UnauthenticatedError", "UnknownConfigurationKeyError",
}  # fmt: skip


class ObjectError(OSError):
    """Say what an object store did not do."""


class TakenError(ObjectError):
    """Say that something else stands under a name already."""


class Listed(NamedTuple):
    """An object. `modified`: epoch s by the store's clock."""

    name: str
    bytes: int
    modified: float


def is_url(place: str | os.PathLike[str]) -> bool:
    """Say whether a place is one of an object store, and no path."""
    return "://" in os.fspath(place) and urlsplit(os.fspath(place)).scheme in SCHEMES


def storage_options(told: Mapping[str, str]) -> dict[str, str]:
    """Those of `told` that are for an object store, by the names of obstore and deltalake (`aws_endpoint`, `aws_access_key_id`, …)."""
    return {name.lower(): value for name, value in told.items() if name.lower().startswith(OPTION_PREFIXES)}


class ObjectStore:
    """Objects below a URL, `s3://bucket/prefix`. Every call may block; raises ObjectError, FileNotFoundError for an object that is not there."""

    def __init__(
        self, url: str, options: Mapping[str, Any] | None = None, *, timeout: str = "120s", connect_timeout: str = "5s", retries: int = 5,
        attempts: int = ATTEMPTS, pause: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as wrong:
            raise ObjectError(f"{url}: an object store needs the extra `s3` (pip install 'topicsd[s3]')") from wrong
        self.url, self._obstore, self._attempts, self._pause = url.rstrip("/"), obstore, attempts, pause
        told = dict(options or {})
        client = {"timeout": timeout, "connect_timeout": connect_timeout, **told.pop("client_options", {})}
        endpoint = next((value for name, value in told.items() if name.lower() in ("aws_endpoint", "aws_endpoint_url")), None)
        endpoint = endpoint or next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), "")
        if str(endpoint).startswith("http://"):
            client["allow_http"] = True  # whoever names such an endpoint wants it
        retry = {"max_retries": retries, "retry_timeout": timedelta(seconds=120), "backoff": {
            "init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2}}  # fmt: skip
        try:
            opener: Any = from_url
            self._store = opener(url, client_options=client, retry_config=retry, **told)
        except Exception as wrong:  # a store's library may raise anything
            raise ObjectError(f"{url}: {type(wrong).__name__}: {str(wrong)[:ERROR_CHARS]}") from None

    def __repr__(self) -> str:
        return f"ObjectStore({self.url!r})"

    def _try(self, name: str, call: Callable[[], Any]) -> Any:
        """Call until it works, or fails for good."""
        attempt = 1
        while True:
            try:
                return call()
            except FileNotFoundError as wrong:
                raise self._missing(name, wrong) from None
            except ObjectError:
                raise
            except Exception as wrong:
                kind = type(wrong).__name__
                if kind == "AlreadyExistsError":
                    raise TakenError(f"{self.url}/{name} is there already") from None
                if kind in _FINAL or attempt >= self._attempts:
                    raise ObjectError(f"{self.url}/{name}: {kind}: {str(wrong)[:ERROR_CHARS]}") from None
            self._pause(WAIT_S * 2 ** (attempt - 1))
            attempt += 1

    def _missing(self, name: str, wrong: FileNotFoundError) -> FileNotFoundError:
        if "NoSuchBucket" in str(wrong):
            return FileNotFoundError(errno.ENOENT, "no such bucket", self.url)
        return FileNotFoundError(errno.ENOENT, "no such object", f"{self.url}/{name}")

    # ---- reading

    def size(self, name: str) -> int:
        """Bytes of an object."""
        return int(self._try(name, lambda: self._obstore.head(self._store, name))["size"])

    def head(self, name: str) -> Listed:
        """What a listing says of an object."""
        found = self._try(name, lambda: self._obstore.head(self._store, name))
        return Listed(name, int(found["size"]), found["last_modified"].timestamp())

    def read(self, name: str) -> bytes:
        """All bytes of an object."""
        return bytes(self._try(name, lambda: self._obstore.get(self._store, name).bytes()))

    def read_range(self, name: str, begin: int, end: int) -> bytes | bytearray:
        """The bytes begin .. end - 1, fewer at the object's end. Large ranges are asked for in pieces, some at a time."""
        if begin >= end:
            return b""
        if end - begin <= CHUNK_BYTES:
            return self._piece(name, begin, end)
        end = min(end, self.size(name))
        starts = list(range(begin, end, CHUNK_BYTES))
        ends = [min(start + CHUNK_BYTES, end) for start in starts]
        if not starts:
            return b""
        parts = self._try(name, lambda: self._whole(self._obstore.get_ranges(self._store, name, starts=starts, ends=ends), end - begin))
        return bytearray().join(parts)

    def _piece(self, name: str, begin: int, end: int) -> bytes:
        try:
            return bytes(self._try(name, lambda: self._obstore.get_range(self._store, name, start=begin, end=end)))
        except ObjectError:  # a range that begins behind the end is refused
            if begin >= self.size(name):
                return b""
            raise

    @staticmethod
    def _whole(parts: list[Any], wanted: int) -> list[Any]:
        got = sum(memoryview(part).nbytes for part in parts)
        if got != wanted:
            raise ValueError(f"{got} bytes came where {wanted} were asked for")
        return parts

    def listed(self, prefix: str = "") -> list[Listed]:
        """All objects whose names begin with `prefix`, in order."""
        folder = prefix.rpartition("/")[0] or None

        def found() -> list[Listed]:
            return [
                Listed(meta["path"], int(meta["size"]), meta["last_modified"].timestamp())
                for batch in self._obstore.list(self._store, prefix=folder)
                for meta in batch
                if meta["path"].startswith(prefix)
            ]

        try:
            return sorted(self._try(prefix, found))
        except FileNotFoundError as wrong:
            raise ObjectError(str(wrong)) from None  # a bucket that is not there is no empty one

    # ---- writing

    def put(self, name: str, content: bytes | bytearray | memoryview | Path) -> None:
        """Put bytes or a file under a name, in the place of what is there. Large files go in parts, and are there when the last one is."""
        whole = content if isinstance(content, Path) else bytes(content)
        self._try(name, lambda: self._obstore.put(self._store, name, whole))

    def create(self, name: str, raw: bytes | bytearray | memoryview) -> None:
        """Put bytes under a name that is free (a conditional put). Raises TakenError when other bytes are there: the same ones may be our own."""
        whole = bytes(raw)
        try:
            self._try(name, lambda: self._obstore.put(self._store, name, whole, mode="create", use_multipart=False))
        except TakenError:
            if self.size(name) != len(whole) or self.read(name) != whole:
                raise

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        try:
            self._try(name, lambda: self._obstore.delete(self._store, name))
        except FileNotFoundError:
            pass
