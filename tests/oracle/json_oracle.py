"""A slow twin of the scanner: the standard library's json, and every rule of the bodies written out in plain Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn


class Object(list[tuple[str, Any]]):
    """An object as its pairs, in order, duplicates and all."""


class Number(str):
    """A number as its text."""


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)


def _depth(text: str) -> int:
    depth = deepest = 0
    in_string = escaped = False
    for char in text:
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            in_string = True
        elif char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth -= 1
    return deepest


def load(body: bytes, depth_max: int = 128) -> Any:
    """Parse strictly. Raises ValueError."""
    text = body.decode()
    if _depth(text) > depth_max:
        raise ValueError("too deep")
    return json.loads(text, parse_int=Number, parse_float=Number, parse_constant=_refuse, object_pairs_hook=Object)


def is_valid(body: bytes, depth_max: int = 128) -> bool:
    try:
        load(body, depth_max)
    except ValueError:
        return False
    return True


SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def canonical(text: str) -> bytes:
    out = ""
    for char in text:
        if char in SHORT:
            out += SHORT[char]
        elif char < " " or "\ud800" <= char <= "\udfff":
            out += f"\\u{ord(char):04x}"
        else:
            out += char
    return out.encode()


def utf8_length(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


@dataclass
class Limits:
    max_records: int = 10_000
    max_record_bytes: int = 1 << 20
    max_meta_bytes: int = 16 << 10
    max_meta_keys: int = 64
    max_tag_bytes: int = 256
    max_node_bytes: int = 128
    max_key_chars: int = 256
    max_depth: int = 128


@dataclass
class Write:
    records: list[dict[str, Any]] = field(default_factory=list)
    key: bytes | None = None
    create: bool | None = None
    config: Any = None
    disable_backpressure: bool = False


Complaint = tuple[str, str]  # code, field


def _get(members: Object, name: str) -> Any:
    """The first of that name: when there are more, that is complained of anyway."""
    return next((value for key, value in members if key == name), None)


def _duplicates(members: Object, path: str) -> Iterator[Complaint]:
    names = [name for name, _ in members]
    for name in {name for name in names if names.count(name) > 1}:
        yield "invalid_request", f"{path}.{name}" if path else name


def is_unsigned(value: Any) -> bool:
    return isinstance(value, Number) and value.isdecimal() and value.isascii() and int(value) < 2**64


def is_priority(value: Any) -> bool:
    return isinstance(value, Number) and value.removeprefix("-").isdecimal() and -1000 <= int(value) <= 1000


def _record(record: Any, path: str, limits: Limits) -> Iterator[Complaint]:
    def bad(name: str) -> Complaint:
        return "invalid_request", f"{path}.{name}"

    if not isinstance(record, Object):
        yield "invalid_request", path
        return
    yield from _duplicates(record, path)
    if "data" not in dict(record):
        yield bad("data")
    for name, most in (("tag", limits.max_tag_bytes), ("node", limits.max_node_bytes)):
        value = _get(record, name)
        if value is not None and (not isinstance(value, str) or isinstance(value, Number) or utf8_length(value) > most):
            yield bad(name)
    meta = _get(record, "meta")
    if isinstance(meta, Object):
        yield from _duplicates(meta, f"{path}.meta")
        for name, value in meta:
            if not isinstance(value, str) or isinstance(value, Number):
                yield bad(f"meta.{name}")
        if len(meta) > limits.max_meta_keys:
            yield bad("meta")
    elif meta is not None:
        yield bad("meta")
    delay, priority = _get(record, "delay_ms"), _get(record, "priority")
    if delay is not None and not is_unsigned(delay):
        yield bad("delay_ms")
    if priority is not None and not is_priority(priority):
        yield bad("priority")


def write_complaints(root: Any, limits: Limits) -> Iterator[Complaint]:
    """Everything that is wrong with a write but its sizes in bytes as sent (those need the text)."""
    if not isinstance(root, Object):
        yield "invalid_request", ""
        return
    yield from _duplicates(root, "")
    records = _get(root, "records")
    if not isinstance(records, list) or isinstance(records, Object) or not records:
        yield "invalid_request", "records"
    else:
        if len(records) > limits.max_records:
            yield "batch_too_large", "records"
        for i, record in enumerate(records[: limits.max_records]):
            yield from _record(record, f"records[{i}]", limits)
    node, key = _get(root, "node"), _get(root, "idempotency_key")
    if node is not None and (not isinstance(node, str) or isinstance(node, Number) or utf8_length(node) > limits.max_node_bytes):
        yield "invalid_request", "node"
    if key is not None and (not isinstance(key, str) or isinstance(key, Number) or not 0 < len(key) <= limits.max_key_chars):
        yield "invalid_request", "idempotency_key"
    for name in ("create", "disable_backpressure"):
        value = _get(root, name)
        if value is not None and not isinstance(value, bool):
            yield "invalid_request", name
    config = _get(root, "config")
    if isinstance(config, Object):
        yield from _duplicates(config, "config")
    elif config is not None:
        yield "invalid_request", "config"


def _text(value: Any) -> bytes | None:
    return None if value is None else canonical(value)


def write(root: Object) -> Write:
    """Say what a write without complaints means."""
    batch_node = _get(root, "node")
    out = Write(create=_get(root, "create"), config=_get(root, "config"), disable_backpressure=_get(root, "disable_backpressure") is True)
    out.key = _text(_get(root, "idempotency_key"))
    for record in _get(root, "records"):
        own = _get(record, "node")
        out.records.append(
            {
                "data": _get(record, "data"),
                "meta": _get(record, "meta"),
                "tag": _text(_get(record, "tag")),
                "node": _text(batch_node if own is None else own),
                "delay_ms": int(_get(record, "delay_ms") or 0),
                "priority": int(_get(record, "priority") or 0),
            }
        )
    return out
