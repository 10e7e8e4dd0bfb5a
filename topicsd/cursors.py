"""Composite cursors: what the `id:` of an event says, and the `cursor` of a new session (A §7.4, CLARIFICATIONS SSE).

    base64url({"jobs":5210,"$epochs":{"jobs":7}})      every topic's position; written by _native/feed.pyx, or by hand without epochs
    base64url({"$session":"1f.18c...","$at":4711})     of a large session: its move number 4711

Unpadded; padding is taken.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import Any

import orjson

from topicsd import limits


@dataclass(frozen=True, slots=True)
class Cursor:
    """Hold positions by topic, or a token."""

    seqs: dict[str, int] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    whole: bool = False  # it names every topic that the session had then
    session: str = ""
    at: int = 0  # of a token


def decode(text: str) -> Cursor | None:
    """Read an id; None when it is none."""
    if not text or len(text) > limits.WATCH_CURSOR_CHARS_MAX:
        return None
    try:
        raw = base64.b64decode(text.rstrip("=").encode("ascii") + b"=" * (-len(text.rstrip("=")) % 4), altchars=b"-_", validate=True)
        value: Any = orjson.loads(raw)
    except (ValueError, UnicodeEncodeError, binascii.Error):
        return None
    if not isinstance(value, dict):
        return None
    if "$session" in value:
        session, at = value["$session"], value.get("$at")
        return Cursor(session=session, at=at) if isinstance(session, str) and isinstance(at, int) and _is_seq(at) else None
    epochs = value.pop("$epochs", None)
    if not all(_is_seq(seq) for seq in value.values()):
        return None
    if epochs is not None and not (isinstance(epochs, dict) and all(_is_seq(epoch) for epoch in epochs.values())):
        return None
    return Cursor(seqs=value, epochs=epochs or {}, whole=epochs is not None)


def _is_seq(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63
