"""A topic's tail index in plain Python: a dict from seq to what stands there."""

from __future__ import annotations

from dataclasses import dataclass, field

Entry = tuple[int, int, int, int]

HOLE = 0x2


@dataclass
class IndexOracle:
    """Entries by seq; a hole is its reason. Nothing below `earliest` is ever asked for."""

    head: int = 0
    earliest: int = 1
    entries: dict[int, Entry | int] = field(default_factory=dict)

    def append(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.head += 1
            self.entries[self.head] = entry

    def hole(self, count: int, reason: int) -> None:
        was_empty = self.earliest > self.head
        for _ in range(count):
            self.head += 1
            self.entries[self.head] = reason
        if was_empty:
            self.trim(self.head + 1)

    def trim(self, below_seq: int) -> None:
        self.earliest = max(self.earliest, min(below_seq, self.head + 1))
        for seq in [seq for seq in self.entries if seq < self.earliest]:
            del self.entries[seq]

    def lower_bound_ts(self, ts: int) -> tuple[int, int]:
        """Return the least and the greatest right answer: a hole may count as old as either of its neighbours."""
        at = self.head + 1
        for seq in range(self.earliest, self.head + 1):
            entry = self.entries[seq]
            if not isinstance(entry, int) and entry[3] >= ts:
                at = seq
                break
        low = at
        while isinstance(self.entries.get(low - 1), int):
            low -= 1
        return low, at

    def hole_end(self, seq: int) -> int:
        if not isinstance(self.entries.get(seq), int):
            return 0
        while isinstance(self.entries.get(seq + 1), int):
            seq += 1
        return seq

    def hole_start(self, seq: int, low: int) -> int:
        while seq >= low and isinstance(self.entries.get(seq), int):
            seq -= 1
        return seq + 1
