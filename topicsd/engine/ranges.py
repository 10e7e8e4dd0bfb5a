"""Sorted disjoint ranges of seqs, inclusive at both ends, each with a value: what a consumer group is made of."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Ranges(Generic[Value]):
    """Keep disjoint ranges in order. Cost: O(log n) to find, O(n) of plain memory moves to change."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._rest: list[tuple[int, Value]] = []  # (last, value)

    def __len__(self) -> int:
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int, Value]]:
        for first, (last, value) in zip(self._firsts, self._rest, strict=True):
            yield first, last, value

    @property
    def total(self) -> int:
        """Return how many seqs the ranges hold together."""
        return sum(last - first + 1 for first, last, _ in self)

    def first(self) -> tuple[int, int, Value] | None:
        """Return the lowest range, None when there is none."""
        return (self._firsts[0], *self._rest[0]) if self._firsts else None

    def add(self, first: int, last: int, value: Value) -> None:
        """Put a range in; nothing of it may be there already."""
        place = bisect_left(self._firsts, first)
        self._firsts.insert(place, first)
        self._rest.insert(place, (last, value))

    def cut(self, first: int, last: int) -> list[tuple[int, int, Value]]:
        """Take first..last out; return the pieces of it that were there. What a range holds on both sides stays."""
        low = max(bisect_right(self._firsts, first) - 1, 0)
        high = bisect_right(self._firsts, last)
        taken, kept = [], []
        for each_first, (each_last, value) in zip(self._firsts[low:high], self._rest[low:high], strict=True):
            if each_last < first:
                kept.append((each_first, each_last, value))
                continue
            taken.append((max(each_first, first), min(each_last, last), value))
            if each_first < first:
                kept.append((each_first, first - 1, value))
            if each_last > last:
                kept.append((last + 1, each_last, value))
        self._firsts[low:high] = [each[0] for each in kept]
        self._rest[low:high] = [(each[1], each[2]) for each in kept]
        return taken

    def join(self, first: int, last: int, value: Value) -> None:
        """Put a range in and melt it with neighbours that touch it."""
        before = bisect_left(self._firsts, first) - 1
        if before >= 0 and self._rest[before][0] == first - 1:
            first = self._firsts[before]
            del self._firsts[before], self._rest[before]
        after = bisect_left(self._firsts, last + 1)
        if after < len(self._firsts) and self._firsts[after] == last + 1:
            last = self._rest[after][0]
            del self._firsts[after], self._rest[after]
        self.add(first, last, value)
