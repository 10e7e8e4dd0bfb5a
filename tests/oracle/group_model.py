"""A consumer group as one dictionary from seq to its fate: slow, plain, and right."""

from __future__ import annotations

from dataclasses import dataclass, field

FREE, SETTLED = "free", "settled"


@dataclass
class GroupModel:
    committed: int
    next_seq: int
    fates: dict[int, str | tuple[str, int]] = field(default_factory=dict)  # FREE, SETTLED, or (consumer, deadline)

    def expire(self, now_ms: int) -> None:
        for seq, fate in self.fates.items():
            if isinstance(fate, tuple) and fate[1] <= now_ms:
                self.fates[seq] = FREE

    def next_free(self, head: int) -> int | None:
        """Return the seq that the next range begins with: one to be delivered again before one that never was."""
        free = [seq for seq, fate in self.fates.items() if fate == FREE]
        if free:
            return min(free)
        return self.next_seq if self.next_seq <= head else None

    def may_lease(self, first: int, last: int) -> bool:
        again = all(self.fates.get(seq) == FREE for seq in range(first, last + 1))
        return again or first == self.next_seq

    def lease(self, first: int, last: int, consumer: str, deadline_ms: int) -> None:
        for seq in range(first, last + 1):
            self.fates[seq] = (consumer, deadline_ms)
        self.next_seq = max(self.next_seq, last + 1)

    def ack(self, upto: int, consumer: str | None) -> None:
        if consumer is None:
            for seq in range(self.committed + 1, upto + 1):
                self.fates[seq] = SETTLED
            self.next_seq = max(self.next_seq, upto + 1)
        else:
            for seq, fate in self.fates.items():
                if seq <= upto and isinstance(fate, tuple) and fate[0] == consumer:
                    self.fates[seq] = SETTLED
        while self.fates.get(self.committed + 1) == SETTLED:
            del self.fates[self.committed + 1]
            self.committed += 1

    def reset(self, committed: int) -> None:
        self.committed, self.next_seq, self.fates = committed, committed + 1, {}
