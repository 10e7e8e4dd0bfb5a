class TagIndex:
    """One topic's tag index: tag -> ascending seqs (D 7.2)."""

    def __init__(self) -> None: ...
    def add(self, tag: bytes, seq: int) -> None:
        """Add a posting; seqs of one tag must ascend. MemoryError."""
    def remove(self, tag: bytes, seq: int) -> bool:
        """Take a posting out; tell whether it was there."""
    def eq(self, tag: bytes, take_below: int = 0, visits_max: int = ...) -> list[int]:
        """Return the seqs of a tag, taking out those below `take_below`; stop after `visits_max`."""
    def prefix(self, prefix: bytes, take_below: int = 0, visits_max: int = ...) -> list[int]:
        """Return the seqs of all tags with a prefix, tags in byte order, as `eq` does."""
    def drop_below(self, seq: int) -> None:
        """Say that seqs below `seq` are gone; their memory follows in small steps."""
    def tag_list(self) -> list[bytes]:
        """Return the tags that still have memory, in byte order."""
    @property
    def postings(self) -> int: ...
    @property
    def memory(self) -> int:
        """Return bytes asked from the allocator."""
