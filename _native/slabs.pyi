from topicsd._native.regions import Shared

def memory(shared: Shared) -> tuple[int, int]:
    """Return (bytes in use, bytes ever handed out) of the index region."""
