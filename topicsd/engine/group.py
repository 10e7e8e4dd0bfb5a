"""One consumer group: which seqs are settled, leased, to be delivered again (K; CLARIFICATIONS, Consumer groups).

    settled … committed | leased, free again, or settled out of order | never leased … head
                        committed + 1                                 next_seq

Every seq from committed + 1 to next_seq - 1 is in exactly one of `leases`, `free` and `settled`. No time is read and nothing is written
here: `Groups` does both, and replay applies the same events.
"""

from __future__ import annotations

from typing import NamedTuple

from topicsd.engine.ranges import Ranges

NEVER_MS = 1 << 62


class Lease(NamedTuple):
    """Who has a range, until when (monotonic ms), and how often it has been delivered."""

    consumer: str
    deadline_ms: int
    deliveries: int


class Grant(NamedTuple):
    """What a consume may lease: a range, and how often it will have been delivered."""

    first: int
    last: int
    deliveries: int


class Group:
    """Hold the position and the leases of one group on one partition."""

    def __init__(self, committed: int, created_ms: int) -> None:
        self.committed = committed
        self.next_seq = committed + 1
        self.created_ms = created_ms
        self.updated_ms = created_ms
        self.leases: Ranges[Lease] = Ranges()
        self.free: Ranges[int] = Ranges()  # delivered before (value: how often), to be delivered again
        self.settled: Ranges[None] = Ranges()  # out of order, above `committed`
        self.soonest_ms = NEVER_MS  # no lease ends before

    def expire(self, now_ms: int) -> None:
        """Free what nobody has settled in time."""
        if now_ms < self.soonest_ms:
            return
        due = [(first, last) for first, last, lease in self.leases if lease.deadline_ms <= now_ms]
        for first, last in due:
            self.release(first, last)
        self.soonest_ms = min((lease.deadline_ms for _, _, lease in self.leases), default=NEVER_MS)

    def grantable(self, earliest: int, head: int, limit: int) -> Grant | None:
        """Say which range comes next: what is to be delivered again first, in order; None when there is nothing.

        A range that begins below `earliest` also covers what is gone, so that its reader meets the loss and the records behind it in one page.
        """
        again = self.free.first()
        first, last, deliveries = again if again is not None else (self.next_seq, head, 0)
        if first > head:
            return None
        return Grant(first, min(last, head, max(first, earliest) + limit - 1), deliveries + 1)

    def owned(self, consumer: str, lowest: int, upto: int) -> list[tuple[int, int]]:
        """Return the parts, between two seqs, of the ranges that a consumer has."""
        owned = [(first, last) for first, last, lease in self.leases if first <= upto and last >= lowest and lease.consumer == consumer]
        return [(max(first, lowest), min(last, upto)) for first, last in owned]

    # ---- events --------------------------------------------------------------------------------------------------------------------

    def lease(self, first: int, last: int, lease: Lease) -> None:
        """Give a range to a consumer, whoever had it."""
        self._take(first, last)
        self.leases.add(first, last, lease)
        self.soonest_ms = min(self.soonest_ms, lease.deadline_ms)

    def settle(self, first: int, last: int) -> None:
        """Take a range as done; `committed` follows the contiguous settled prefix."""
        first = max(first, self.committed + 1)
        if first > last:
            return
        self._take(first, last)
        self.settled.join(first, last, None)
        lowest = self.settled.first()
        if lowest is not None and lowest[0] == self.committed + 1:
            self.settled.cut(lowest[0], lowest[1])
            self.committed = lowest[1]

    def release(self, first: int, last: int) -> None:
        """Free what of a range is leased: it is delivered again."""
        for each_first, each_last, lease in self.leases.cut(first, last):
            self.free.add(each_first, each_last, lease.deliveries)

    def reset(self, committed: int) -> None:
        """Forget all leases and go on behind a seq."""
        self.committed, self.next_seq = committed, committed + 1
        self.leases, self.free, self.settled = Ranges(), Ranges(), Ranges()
        self.soonest_ms = NEVER_MS

    def _take(self, first: int, last: int) -> None:
        self.leases.cut(first, last)
        self.free.cut(first, last)
        self.settled.cut(first, last)
        if first > self.next_seq:  # an event of a log whose middle is damaged: what lies between is delivered again
            self.free.add(self.next_seq, first - 1, 1)
        self.next_seq = max(self.next_seq, last + 1)
