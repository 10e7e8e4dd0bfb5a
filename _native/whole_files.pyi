import os

from typing_extensions import Buffer

from topicsd._native.files import FileSystem

def write_whole(path: str | os.PathLike[str], raw: Buffer, files: FileSystem | None = None) -> None:
    """Write a file whole or not at all, synced. Raises OSError."""

def copy_whole(source: str | os.PathLike[str], destination: str | os.PathLike[str], files: FileSystem | None = None) -> int:
    """Copy a file whole or not at all, synced. How many bytes it has. Raises OSError."""

def remove(path: str | os.PathLike[str], files: FileSystem | None = None) -> None:
    """Unlink a file; its directory is not synced, so that it may be there again after a power cut. Raises OSError."""
