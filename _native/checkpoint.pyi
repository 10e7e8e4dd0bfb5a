from collections.abc import Callable, Sequence

from topicsd._native.engine_core import EngineCore
from topicsd._native.regions import Shared

class Packed:
    """Rows of all topics as they stood; a buffer."""

    needed: list[int | None]
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def pack(core: EngineCore) -> Packed: ...

class Loader:
    """Put the topics of a snapshot back."""

    with_ttl: list[tuple[int, int]]
    with_floor: list[tuple[int, int, int]]
    topics: int
    corrupt: int
    def __init__(self, core: EngineCore, take_file: Callable[[bytes], int], moment: Sequence[int], damaged: list[list[tuple[int, int]]]) -> None: ...
    def load(self, raw: bytes | memoryview) -> None: ...

def show_files(shared: Shared, shard: int, files: list[tuple[int, int]]) -> None: ...
def retire_log(shared: Shared, shard: int, below: int) -> list[int]: ...
