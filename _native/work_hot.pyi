from typing import Any

LIMITS: dict[str, int]

def scan(body: bytes) -> dict[str, Any] | None:
    """Read the body of a claim, ack, nack or extend as the native front does; None: it leaves this one to Falcon."""
