"""Paths and query strings: percent-decoded once, numbers and booleans read strictly (CLARIFICATIONS HTTP layer), list cursors."""

from __future__ import annotations

import base64
import binascii
import re
import urllib.parse
from collections.abc import Callable

from topicsd import limits
from topicsd.errors import Invalid
from topicsd.topic_config import valid_topic_name

_SAFE = "-._~!$&'()*+,;=:@>"
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
INTEGER = re.compile(r"[+-]?[0-9]{1,30}")


def routing_path(raw_path: bytes) -> str:
    """Return the path to route on: segments split before they are decoded, so that `%2F` stays inside its segment."""
    text = raw_path.partition(b"?")[0].decode("latin-1")
    if not text.startswith("/") and "://" in text:  # absolute-form (RFC 9112 §3.2.2)
        text = "/" + text.partition("://")[2].partition("/")[2]
    if "%" not in text:
        return text
    return "/".join(urllib.parse.quote(urllib.parse.unquote_to_bytes(part), safe=_SAFE) for part in text.split("/"))


def decoded_segment(segment: str) -> bytes:
    """Decode one path segment as `routing_path` left it."""
    return urllib.parse.unquote_to_bytes(segment.encode("latin-1"))


def parse(query_string: bytes) -> dict[str, str]:
    """Read a query string; of a parameter that comes twice the last one counts."""
    if not query_string:
        return {}
    pairs = urllib.parse.parse_qsl(query_string.decode("latin-1"), keep_blank_values=True, errors="surrogateescape")
    return dict(pairs)


def first(query_string: bytes, name: str) -> str | None:
    """Return the first value of a parameter, form-decoded."""
    for key, value in urllib.parse.parse_qsl(query_string.decode("latin-1"), keep_blank_values=True, errors="surrogateescape"):
        if key == name:
            return value
    return None


def boolean(query: dict[str, str], name: str, default: bool) -> bool:
    """Read true, 1, false or 0. Raises Invalid for anything else."""
    text = query.get(name)
    if text is None:
        return default
    if text not in _BOOLEANS:
        raise Invalid(name, "expected true, false, 1 or 0")
    return _BOOLEANS[text]


def page_size(query: dict[str, str]) -> int:
    """Read `page_size`, clamped to 1..1000. Raises Invalid when it is no number."""
    text = query.get("page_size")
    if text is None:
        return limits.PAGE_SIZE
    if not INTEGER.fullmatch(text):
        raise Invalid("page_size", "expected a number")
    return min(max(int(text), 1), limits.PAGE_SIZE_MAX)


def encode_cursor(name: bytes) -> str:
    """Make the cursor that goes on after `name` (opaque to clients)."""
    return base64.urlsafe_b64encode(name).rstrip(b"=").decode()


def decode_cursor(query: dict[str, str], valid: Callable[[bytes], bool] = valid_topic_name) -> bytes | None:
    """Read the cursor back, None where there is none. Raises Invalid when it leads to no valid name."""
    text = query.get("cursor")
    if text is None:
        return None
    try:
        if len(text) > limits.CURSOR_CHARS_MAX:
            raise ValueError
        name = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        if not valid(name) or encode_cursor(name) != text:
            raise ValueError
    except (ValueError, binascii.Error):
        raise Invalid("cursor", "no cursor of ours") from None
    return name


def prefix_ranges(asked: bytes, allowed: tuple[bytes, ...]) -> list[bytes]:
    """Return the disjoint prefixes, in byte order, of the names that start with `asked` and with one of `allowed` (none: all)."""
    if not allowed:
        return [asked]
    wanted = sorted({each if each.startswith(asked) else asked for each in allowed if each.startswith(asked) or asked.startswith(each)})
    kept: list[bytes] = []
    for each in wanted:
        if not kept or not each.startswith(kept[-1]):
            kept.append(each)
    return kept
