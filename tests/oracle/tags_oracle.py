"""A tag index in plain Python: D 7.2's own words, a sorted map from tag to seqs."""

from __future__ import annotations


class TagsOracle:
    """tag -> ascending seqs at or above the floor."""

    def __init__(self) -> None:
        self.seqs: dict[bytes, list[int]] = {}
        self.floor = 0

    def add(self, tag: bytes, seq: int) -> None:
        self.seqs.setdefault(tag, []).append(seq)

    def remove(self, tag: bytes, seq: int) -> bool:
        if seq < self.floor or seq not in self.seqs.get(tag, []):
            return False
        self.seqs[tag].remove(seq)
        return True

    def eq(self, tag: bytes, take_below: int) -> list[int]:
        found = [seq for seq in self.seqs.get(tag, []) if seq >= self.floor]
        self.seqs[tag] = [seq for seq in found if seq >= take_below]
        return found

    def prefix(self, prefix: bytes, take_below: int) -> list[int]:
        return [seq for tag in sorted(self.seqs) if tag.startswith(prefix) for seq in self.eq(tag, take_below)]

    def drop_below(self, seq: int) -> None:
        self.floor = max(self.floor, seq)

    def live(self) -> int:
        return sum(seq >= self.floor for seqs in self.seqs.values() for seq in seqs)
