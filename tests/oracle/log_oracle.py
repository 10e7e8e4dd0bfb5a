"""What a log may show after a power cut, in plain Python: it knows what was appended and what a sync has promised, nothing of topicsd."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

HEADER = struct.Struct("<IIBBHIQQQQQQ")
MARK, START = 0x81, 1


def header(frame: bytes) -> dict[str, int]:
    """Return a frame's header fields by name."""
    names = ("magic", "length", "type", "flags", "shard", "count", "topic_id", "base_seq", "ts", "synced", "position", "xxh3")
    return dict(zip(names, HEADER.unpack_from(frame), strict=True))


def payloads(frames: list[bytes]) -> list[tuple[int, int, bytes]]:
    """Return (base seq, position, body) of the frames that somebody appended, leaving out those that the log writes for itself."""
    found = []
    for frame in frames:
        fields = header(frame)
        if fields["type"] not in (START, MARK):
            found.append((fields["base_seq"], fields["position"], frame[HEADER.size :]))
    return found


@dataclass
class History:
    """Everything that was ever given to the log, in order, and after which call how much of it was promised."""

    appended: list[tuple[int, int, bytes]] = field(default_factory=list)
    promised: list[tuple[int, int]] = field(default_factory=list)  # (calls so far, appended so far)

    def promised_at(self, call: int) -> int:
        """Return how many frames a sync had promised when `call` calls had been made."""
        return max((count for calls, count in self.promised if calls <= call), default=0)

    def judge(self, shown: list[tuple[int, int, bytes]], call: int) -> None:
        """Assert that what a reader is shown after a power cut is a prefix, and holds all that was promised."""
        assert shown == self.appended[: len(shown)], "a frame was invented, changed, lost in the middle or moved"
        assert len(shown) >= self.promised_at(call), f"{self.promised_at(call)} frames were promised, {len(shown)} are there"
