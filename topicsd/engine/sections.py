"""What a snapshot is made of: sections of rows, each row right as of a position of its own (ARCHITECTURE section 5).

A snapshot is taken while writes go on. It is fuzzy: every row says up to which position of its shard's log it is right, and replay leaves out what a
row holds already. So a section never has to stand still; it only must not be in the middle of a change while one row is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol


class Row(NamedTuple):
    """One row of a section."""

    key: int  # unique in its section: a topic id, a router's number
    shard: int  # whose log `position` is of
    position: int  # every frame of that shard that BEGINS at or below it is in the body, none above
    body: bytes


class Section(Protocol):
    """Something of the engine that a snapshot keeps: routers, groups, jobs, windows.

    `rows` runs in the writer's thread, a few rows at a time between its turns, so what it iterates over may change meanwhile: take the keys first,
    look each up when it is its turn, and leave out those that are gone. Make the body and take the position (`Positions.applied`) without anything
    in between. A row that has not changed since an earlier snapshot should keep its older position: a row whose position is the one that
    was written last is not written again.

    `load` gets each row of the newest snapshot before any frame is replayed, topics first; then frames from an older position than the row's come by:
    leave out those that begin at or below it (`Positions.holds`). A key whose topic is not there any more: leave the row out.
    """

    name: str

    def rows(self) -> Iterator[Row]:
        """Yield what there is."""
        ...

    def load(self, row: Row) -> None:
        """Take a row back. Raises ValueError for a body that this version can not read."""
        ...


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
