"""Members of small JSON bodies, checked one by one: a wrong one is an Invalid that names it (A §0.5; CLARIFICATIONS, HTTP layer)."""

from __future__ import annotations

import json
from typing import Any

from topicsd import limits
from topicsd._native import scan
from topicsd.errors import Invalid

Json = dict[str, Any]


def read(body: bytes) -> Json:
    """Return the members of a body that is one JSON object. Raises BadRequest with the place of what is wrong."""
    scan.check_object(body)
    members: Json = json.loads(body)
    return members


def integer(members: Json, name: str, default: int | None = None, *, least: int = 0, most: int = limits.U64_MAX) -> int:
    """Read an integer of least..most. Raises Invalid, also when it is missing and has no default."""
    value = members.get(name)
    if value is None:
        if default is None:
            raise Invalid(name, "is missing")
        return default
    if type(value) is not int or not least <= value <= most:
        raise Invalid(name, f"expected an integer from {least} to {most}")
    return value


def clamped(members: Json, name: str, default: int, most: int) -> int:
    """Read an integer of at least 1; what is above `most` counts as `most`. Raises Invalid."""
    return min(integer(members, name, default, least=1), most)


def boolean(members: Json, name: str, default: bool) -> bool:
    """Read true or false. Raises Invalid."""
    value = members.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise Invalid(name, "expected true or false")
    return value


def text(members: Json, name: str, bytes_max: int) -> str | None:
    """Read a string, None where it is absent. Raises Invalid for anything else, the empty string, and one that is too long."""
    value = members.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise Invalid(name, "expected a string that is not empty")
    if len(value.encode("utf-8", "surrogatepass")) > bytes_max:
        raise Invalid(name, f"at most {bytes_max} bytes", limit=bytes_max)
    return value
