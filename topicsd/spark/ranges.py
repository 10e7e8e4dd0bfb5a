"""Which seqs of which topics a lake table holds: intervals by topic and epoch, as its commits tell them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

Range = tuple[str, str, int, int]  # topic, epoch (16 hex digits), first seq, last seq


class Held:
    """Intervals of seqs by (topic, epoch), ascending, without overlap and without neighbours that touch."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._intervals: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for one in ranges:
            self.add(*one)

    def add(self, topic: str, epoch: str, first: int, last: int) -> None:
        """Hold first .. last too."""
        if last < first:
            return
        mine = self._intervals.setdefault((topic, epoch), [])
        at = bisect_left(mine, (first, first))
        if at and mine[at - 1][1] >= first - 1:
            at -= 1
        end = at
        while end < len(mine) and mine[end][0] <= last + 1:
            first, last = min(first, mine[end][0]), max(last, mine[end][1])
            end += 1
        mine[at:end] = [(first, last)]

    def epochs(self, topic: str) -> list[str]:
        """Those of which something is held, ascending."""
        return sorted(epoch for name, epoch in self._intervals if name == topic)

    def of(self, topic: str, epoch: str) -> list[tuple[int, int]]:
        """The intervals of a topic."""
        return self._intervals.get((topic, epoch), [])

    def missing(self, topic: str, epoch: str, first: int, last: int) -> Iterator[tuple[int, int]]:
        """What of first .. last is not held."""
        for begin, end in self.of(topic, epoch):
            if end < first:
                continue
            if begin > last:
                break
            if begin > first:
                yield first, begin - 1
            first = end + 1
        if first <= last:
            yield first, last

    def common(self, topic: str, epoch: str, first: int, last: int) -> Iterator[Range]:
        """What of first .. last is held."""
        for begin, end in self.of(topic, epoch):
            if begin <= last and end >= first:
                yield topic, epoch, max(begin, first), min(end, last)

    def covers(self, topic: str, epoch: str, first: int, last: int) -> bool:
        """Say whether all of first .. last is held."""
        return next(self.missing(topic, epoch, first, last), None) is None

    def overlaps(self, topic: str, epoch: str, first: int, last: int) -> bool:
        """Say whether a seq of first .. last is held."""
        return list(self.missing(topic, epoch, first, last)) != ([(first, last)] if first <= last else [])

    def ranges(self) -> list[Range]:
        """All of them."""
        return [(topic, epoch, first, last) for (topic, epoch), mine in sorted(self._intervals.items()) for first, last in mine]

    def __len__(self) -> int:
        return sum(map(len, self._intervals.values()))
