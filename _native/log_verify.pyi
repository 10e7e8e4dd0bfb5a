from typing_extensions import Buffer

class LogFile:
    """One log file in a buffer that stays the caller's to change; for tests."""

    def __init__(self, content: Buffer, first_position: int = 0, shard: int = 0) -> None: ...
    def verified(self, position: int, now_ns: int) -> int | None:
        """Return before which position records that begin from here on are sound, None when this one is not."""
