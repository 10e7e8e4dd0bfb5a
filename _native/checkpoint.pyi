from array import array
from collections.abc import Callable, Sequence

from topicsd._native.engine_core import EngineCore
from topicsd._native.regions import Shared

class TableFullError(Exception):
    """Say that a snapshot has more topics than the table has slots, or one twice."""

class Packed:
    """Rows of a section; a buffer."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Loader:
    """Put the topics of a snapshot back."""

    with_ttl: list[tuple[int, int]]
    with_floor: list[tuple[int, int, int]]
    topics: int
    corrupt: int
    def __init__(self, core: EngineCore, take_file: Callable[[bytes], int], moment: Sequence[int], damaged: list[list[tuple[int, int]]]) -> None: ...
    def load(self, raw: bytes | memoryview, number: int, gone: array[int] | None = None) -> None: ...
    def is_from(self, topic_id: int, number: int) -> bool: ...
    def finish(self) -> None: ...

def show_files(shared: Shared, shard: int, files: list[tuple[int, int]]) -> None: ...
def retire_log(shared: Shared, shard: int, below: int) -> list[int]: ...
