"""What a snapshot is made of besides topics: sections of rows (docs/format/snapshot.md)."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import NamedTuple

_HEAD = struct.Struct("<QQII")


class Row(NamedTuple):
    """One row of a section."""

    key: int  # unique in its section: a topic id, a router's number
    shard: int  # whose log `position` is of
    position: int  # every frame of that shard that BEGINS at or below it is in the body, none above
    body: bytes

    def pack(self) -> bytes:
        """Return it as it stands in a section."""
        return _HEAD.pack(self.key, self.position, self.shard, len(self.body)) + self.body + bytes(-len(self.body) % 8)


class Changed:
    """Which rows have changed since which checkpoint, and what the one that is being taken has still to see: `_native/changes.pxd` in Python.

    pack: the row of a key as it is now, None when there is none. One thread, the writer's.
    """

    def __init__(self, pack: Callable[[int], Row | None]) -> None:
        self._make = pack
        self._stamps: dict[int, int] = {}  # key -> number of the first checkpoint that will hold its last change
        self._keys: dict[int, set[int]] = {}  # the other way round
        self._now = 1
        self._parent = 0
        self._left: list[int] | None = None  # of the checkpoint that is being taken
        self._packed: set[int] = set()
        self._section = bytearray()

    def next_is(self, number: int) -> None:
        """Say which checkpoint comes next."""
        self._now = number

    def touch(self, key: int) -> None:
        """Say that a row is about to change, or to be made: before it does."""
        stamp = self._stamps.get(key, 0)
        if stamp == self._now:
            return
        if self._left is not None and stamp > self._parent:
            self._pack(key)
        self.set(key, self._now)

    def set(self, key: int, number: int) -> None:
        """Say which checkpoint has a row as it is."""
        self._keys.get(self._stamps.get(key, 0), set()).discard(key)
        self._stamps[key] = number
        self._keys.setdefault(number, set()).add(key)

    def drop(self, key: int) -> None:
        """Say that a row is about to go for ever."""
        if key in self._stamps:
            self.touch(key)
            self._keys[self._stamps.pop(key)].discard(key)

    def begin(self, number: int, parent: int) -> None:
        """Make now the moment of checkpoint `number`, which stands upon `parent`."""
        self._keys = {stamp: keys for stamp, keys in self._keys.items() if keys}
        self._left = [key for stamp, keys in self._keys.items() if stamp > parent for key in keys]
        self._parent, self._now, self._packed, self._section = parent, number + 1, set(), bytearray()

    def step(self, until_ns: int) -> bool:
        """Pack rows until it is so late; tell whether all are (`take`)."""
        while self._left:
            self._pack(self._left.pop())
            if time.monotonic_ns() >= until_ns:
                break
        return not self._left

    def take(self) -> bytearray:
        """Return the section that was packed; the checkpoint has seen everything."""
        section, self._section, self._left, self._packed = self._section, bytearray(), None, set()
        return section

    def _pack(self, key: int) -> None:
        if key not in self._packed and key in self._stamps:
            self._packed.add(key)
            row = self._make(key)
            if row is not None:
                self._section += row.pack()


class Positions:
    """Which frames the rows of one section hold already. One a section, for its replay."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}

    def loaded(self, row: Row) -> None:
        """Remember how far a row goes."""
        self._of[row.key] = row.position

    def holds(self, key: int, position: int) -> bool:
        """Tell whether the frame that begins at `position` is in the row of `key` already."""
        return position <= self._of.get(key, -1)
