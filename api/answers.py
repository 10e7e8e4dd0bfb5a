"""How successes look: JSON with its `performance` block (A §0.9), gzipped when the client asks and it pays."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import falcon.asgi
import orjson

from topicsd import limits
from topicsd.api.exchange import Exchange, accepts_gzip

THREAD_BYTES_MIN = 256 * limits.KIB  # a larger answer is compressed in a thread: 1 ms a quarter MiB


def performance(exchange: Exchange, wal_us: int = 0, fsync_us: int = 0) -> dict[str, float]:
    """Build the block of a success: milliseconds."""
    return {"server_total_ms": exchange.spent_us / 1000, "wal_append_ms": wal_us / 1000, "fsync_ms": fsync_us / 1000}


def send(resp: falcon.asgi.Response, body: bytes | dict[str, Any], status: int = 200) -> None:
    """Make a JSON response of ready bytes or of a dictionary."""
    resp.status = status
    resp.content_type = falcon.MEDIA_JSON
    resp.data = body if isinstance(body, bytes) else orjson.dumps(body)


async def compress(exchange: Exchange, resp: falcon.asgi.Response) -> None:
    """Gzip a finished response in place, if it is large enough and the client asks for it."""
    body = resp.data
    if body is None or len(body) <= limits.GZIP_BYTES_MIN or not accepts_gzip(exchange.headers.get(b"accept-encoding", b"")):
        return
    packed = await asyncio.to_thread(_gzip, body) if len(body) > THREAD_BYTES_MIN else _gzip(body)
    if len(packed) < len(body):
        resp.data = packed
        resp.set_header("content-encoding", "gzip")
    resp.append_header("vary", "accept-encoding")


def _gzip(body: bytes) -> bytes:
    engine = zlib.compressobj(limits.GZIP_LEVEL, zlib.DEFLATED, 31)
    return engine.compress(body) + engine.flush()
