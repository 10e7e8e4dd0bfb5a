class DirectChoice:
    """The choice between direct and buffered writes on its own: for tests."""

    def __init__(self, wanted: bool = True) -> None: ...
    def wants(self, size: int) -> bool:
        """Return whether a group of `size` bytes should go past the page cache, and count it."""
    def took(self, direct: bool, size: int, ns: int) -> None:
        """Tell how long a write took."""
