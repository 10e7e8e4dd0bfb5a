class DirectChoice:
    """The choice between direct and buffered writes on its own: for tests."""

    def __init__(self, wanted: bool = True) -> None: ...
    def wants(self, size: int, crowded: bool = False, after_ns: int = 1_000_000_000) -> bool:
        """Return whether a group of `size` bytes, `after_ns` behind the last, should go past the page cache, and count it. crowded: of several."""
    def took(self, direct: bool, size: int, ns: int) -> None:
        """Tell how long a write took."""
