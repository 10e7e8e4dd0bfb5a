from topicsd._native.regions import Shared

_Entry = tuple[int, int, int, int]
"""(position, bytes, flags, ts) of struct index_entry."""

class Index:
    """The tail index of all topics. `append`, `hole`, `trim`, `drop`, `flag` and `reset` are the writer's alone."""

    @property
    def shared(self) -> Shared: ...
    def __init__(self, shared: Shared) -> None: ...
    def append(self, slot: int, seq: int, entries: list[_Entry], publish: bool = True) -> None:
        """Append entries for seqs from `seq` on and move the head behind them. ValueError, MemoryError."""
    def hole(self, slot: int, first: int, last: int, reason: int, publish: bool = True) -> None:
        """Append a hole of enum loss_reason and move the head to its end. MemoryError."""
    def trim(self, slot: int, below_seq: int) -> None:
        """Move `earliest` up to `below_seq` and free what stands below it."""
    def drop(self, slot: int) -> None: ...
    def at(self, slot: int, seq: int) -> _Entry | None: ...
    def hole_reason(self, slot: int, seq: int) -> int:
        """Return why a seq is in a hole, 0 when it is in none."""
    def flag(self, slot: int, seq: int, flags: int) -> None:
        """Set INDEX_* flags of an entry. KeyError when there is none."""
    def entries(self, slot: int, first_seq: int, count: int) -> list[_Entry] | None:
        """Copy entries as a reader does; None when they are not (all) there. KeyError for a free slot."""
    def tail(self, slot: int, count: int, yields: int = 0) -> tuple[int, bytes, int, list[_Entry]] | None:
        """Copy the last live entries: (topic id, name, first seq, entries) of one consistent view; None when the writer was in the way.

        `yields`: give the processor away so often between view and copy (for stress tests).
        """
    def lower_bound_ts(self, slot: int, from_seq: int, ts: int) -> int: ...
    def hole_start(self, slot: int, seq: int, low: int) -> int:
        """Return the first seq, not below `low`, of the hole that ends at `seq`; seq + 1 when there is none."""
    def hole_end(self, slot: int, seq: int) -> tuple[int, int]:
        """Return (last seq, first reason) of the hole at a seq; (0, 0) outside holes."""
    def reset(self) -> None: ...
