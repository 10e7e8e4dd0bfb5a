def base64url(text: bytes) -> bytes:
    """Encode as base64url without padding, as ids are; for tests."""
