import builtins
from os import PathLike
from typing import NamedTuple

from topicsd._native.files import FileSystem

class LogFile(NamedTuple):
    first_position: int
    bytes: int
    path: builtins.bytes

class Damage(NamedTuple):
    """A range that the disk once had and now does not give: `expected` and `got` are words for an error message."""

    path: builtins.bytes
    offset: int
    position: int
    bytes: int
    expected: str
    got: str

USE_THAT_ONE: str

class LogFormatError(Exception):
    """Say that this version cannot read the log: it has a frame of an unknown type or a newer format."""

class WalkReport:
    """What a walk found. Positions and lengths are bytes."""

    files: list[LogFile]
    end: int
    next_position: int
    reusable: bool
    damaged: list[Damage]
    torn_bytes: int
    torn_frames: int
    frames: int
    bytes: int
    synced: int
    generation: int
    boot_id: builtins.bytes
    stopped: int

def list_files(directory: bytes) -> list[LogFile]: ...
def check(
    directory: str | bytes | PathLike[str], shard: int = 0, *, files: FileSystem | None = None, from_position: int = 0, known: int = 0
) -> WalkReport: ...
def read(
    directory: str | bytes | PathLike[str], shard: int = 0, *, files: FileSystem | None = None, from_position: int = 0
) -> tuple[WalkReport, list[bytes]]: ...
def quarantine(report: WalkReport, destination: str | PathLike[str], shard: int = 0) -> list[str]: ...
def quarantine_ranges(damaged: list[Damage], destination: str | PathLike[str], shard: int = 0) -> list[str]: ...
