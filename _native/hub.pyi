import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from topicsd._native.meters import Meters
from topicsd._native.port import Port
from topicsd._native.reader import Reader
from topicsd._native.regions import Shared
from topicsd._native.scan import Limits

class Connection: ...

class Hub(Port):
    native: bool
    draining: bool
    write_band_least: int
    worker: Any
    polling: int
    def __init__(
        self,
        shared: Shared,
        ring_slot: int,
        *,
        worker: Any,
        reader: Reader,
        limits: Limits,
        keys: Sequence[tuple[bytes, int, frozenset[str], tuple[bytes, ...]]],
        make_lane: Callable[[Any], Any],
        refusals: Any,
        max_body_bytes: int,
        gzip_bytes_min: int,
        max_inflight_per_key: int,
        wait_ms_max: int,
        held_bytes_max: int,
        max_claim: int = 1000,
        native: bool = True,
        meters: Meters | None = None,
    ) -> None: ...
    def open(self, loop: asyncio.AbstractEventLoop) -> None: ...
    def ring_the_writer(self) -> None: ...
    def end_polls(self) -> None: ...
    def wake_all(self) -> None: ...
    def polls_due(self) -> None: ...
    def tick(self, loop: asyncio.AbstractEventLoop | None = None) -> None: ...
    def look(self) -> None: ...
