"""A topic's configuration (A §0.10): what a client may say, what it means, and the full object that answers echo."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from topicsd import limits
from topicsd.errors import Invalid

TYPES = ("log", "queue")
DISCARDS = ("old", "reject")
DURABILITIES = ("ephemeral", "memory", "disk", "fsync")

_NAME = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")


def valid_topic_name(name: bytes | str) -> bool:
    """Tell whether a name matches ^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$ byte for byte (A §1.1)."""
    raw = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name
    return _NAME.fullmatch(raw) is not None


def check_topic_name(name: bytes | str, field: str = "topic") -> str:
    """Return a valid name as text; raise Invalid naming `field` otherwise (A §1.1)."""
    if not valid_topic_name(name):
        raise Invalid(field, f"a name has 1 to {limits.NAME_BYTES_MAX} of A-Z a-z 0-9 . _ : - and starts with a letter or digit")
    return name if isinstance(name, str) else name.decode("ascii")


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Hold the members of A §0.10; `durable` is derived. `type` is None where the request left it out: the engine resolves it."""

    type: str | None = None
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: str = "old"
    durability: str = "disk"
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False

    @property
    def durable(self) -> bool:
        """Tell whether the class is fsync."""
        return self.durability == "fsync"

    def of_type(self, kind: str) -> TopicConfig:
        """Return the same config with this type: what the engine does where the request left it out (CLARIFICATIONS Topics)."""
        return self if self.type == kind else replace(self, type=kind)

    @classmethod
    def from_json(cls, members: Mapping[str, Any], *, prefix: str = "", topic: str | None = None) -> TopicConfig:
        """Check a decoded JSON object and fill in the defaults; unknown members are ignored, null means absent.

        prefix: path of the object in the body ("" or "config"), for the field that an error names. topic: the topic it is for, which
        `dead_letter` must not name. lease_ms and claim_jitter_ms are clamped; an explicit `durability` wins over `durable`.
        Raises Invalid. (A §0.10)
        """
        values: dict[str, Any] = {}
        for name, check in _CHECKS.items():
            value = members.get(name)
            if value is not None:
                values[name] = check(f"{prefix}.{name}" if prefix else name, value)
        if values.pop("durable", False):
            values.setdefault("durability", "fsync")
        if topic is not None and values.get("dead_letter") == topic:
            raise Invalid(f"{prefix}.dead_letter" if prefix else "dead_letter", "a topic cannot be its own dead-letter topic")
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """Return all 17 members in the order of A §0.10."""
        return {name: getattr(self, name) for name in MEMBERS}


def _u64(field: str, value: Any) -> int:
    # bool is a subclass of int: `true` where a number belongs is an error
    if type(value) is not int or not 0 <= value <= limits.U64_MAX:
        raise Invalid(field, "expected an unsigned integer of at most 64 bits")
    return value


def _clamped(low: int, high: int) -> Callable[[str, Any], int]:
    return lambda field, value: min(max(_u64(field, value), low), high)


def _priority(field: str, value: Any) -> int:
    if type(value) is not int or not limits.PRIORITY_MIN <= value <= limits.PRIORITY_MAX:
        raise Invalid(field, "expected an integer of 32 bits or null")
    return value


def _bool(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise Invalid(field, "expected true or false")
    return value


def _one_of(words: tuple[str, ...]) -> Callable[[str, Any], str]:
    def check(field: str, value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise Invalid(field, "expected " + " or ".join(f'"{word}"' for word in words))
        return value

    return check


def _name(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise Invalid(field, "expected a topic name or null")
    return check_topic_name(value.encode("utf-8", "surrogatepass"), field)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "type": _one_of(TYPES),
    "ttl_ms": _u64,
    "cap_records": _u64,
    "cap_bytes": _u64,
    "discard": _one_of(DISCARDS),
    "durable": _bool,
    "durability": _one_of(DURABILITIES),
    "priority": _priority,
    "auto_priority": _bool,
    "auto_create": _bool,
    "idempotency_window_ms": _u64,
    "dedupe_node": _bool,
    "lease_ms": _clamped(limits.LEASE_MS_MIN, limits.LEASE_MS_MAX),
    "claim_jitter_ms": _clamped(0, limits.CLAIM_JITTER_MS_MAX),
    "max_deliveries": _u64,
    "dead_letter": _name,
    "leases_durable": _bool,
}
MEMBERS = tuple(_CHECKS)
assert {field.name for field in fields(TopicConfig)} | {"durable"} == set(MEMBERS)
