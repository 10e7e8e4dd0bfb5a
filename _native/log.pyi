from collections.abc import Iterable
from os import PathLike

from topicsd._native.files import FileSystem
from topicsd._native.log_walk import WalkReport

class Shard:
    """The append side of one log. One thread writes; see log.pxd for who may do what.

    As a library (tests, one process): append, flush_group, sync, prepare. In the server the sequencer calls the C side.
    """

    directory: bytes
    number: int
    file_system: FileSystem
    group_commit_ms: float
    keep_free: int
    starved: bool

    def __init__(
        self,
        directory: str | bytes | PathLike[str],
        number: int = 0,
        files: FileSystem | None = None,
        *,
        first_file_bytes: int = 16 << 20,
        file_bytes: int = 64 << 20,
        reserve_bytes: int | None = None,
        group_commit_ms: float = 5.0,
        direct_io: bool = True,
        direct_always: int = 0,
        flood_rate: int = 32,
    ) -> None: ...
    def start(self, report: WalkReport, *, generation: int = 1, boot_id: bytes = ..., least: int = ...) -> None:
        """Begin a new file after what `report` (log_walk) found, and make everything that it showed durable. Raises OSError."""
    def append(self, frame: bytes | bytearray | memoryview, *, privileged: bool = False) -> int:
        """Place, stamp, seal and queue a copy of a frame (frame.build); flushes first when it must. Returns its position, raises OSError."""
    def flush_group(self) -> None:
        """Write what was appended since the last flush. Raises OSError, and then the shard is read-only."""
    def cancel_group(self) -> None:
        """Forget what was appended since the last flush."""
    def sync(self) -> None:
        """Make everything flushed durable. Raises OSError, and then the shard is read-only."""
    def prepare(self) -> None:
        """Make the next file when there is none. Raises OSError."""
    def keep_spare(self, later_s: int = 0) -> float:
        """Do as the preparer does, so many seconds from now, when it has nothing to prepare: make or remove one spare file if it is time.

        Seconds until the next look.
        """
    @property
    def spares(self) -> int:
        """Files that wait for the next flood."""
    def write_mark(self, ts: int = 0) -> bool:
        """Write a mark if the log needs one, so that what is synced can be told from what is torn. Raises OSError."""
    def void(self, previous_end: int, frames: Iterable[bytes] = ()) -> None:
        """After a failure: make frames at or above `previous_end` void, and keep copies of `frames`. Raises OSError."""
    def resume_after(self, previous_end: int | None = None) -> None:
        """Go on in a new file after ENOSPC. Raises OSError when there is still no room, or when the failure was another."""
    def run_sync_loop(self) -> None:
        """Be the syncer's thread until `stop_loops`."""
    def run_prepare_loop(self) -> None:
        """Be the preparer's thread until `stop_loops`."""
    def want_sync(self) -> None:
        """Have the syncer sync at once."""
    def stop_loops(self) -> None:
        """End both loops; join their threads, then close."""
    def close(self) -> None:
        """Close all files. What was not synced is not synced here. The loops must have ended."""
    @property
    def written_position(self) -> int: ...
    @property
    def synced_position(self) -> int: ...
    @property
    def end_position(self) -> int:
        """Position after the last placed frame."""
    @property
    def read_only(self) -> int:
        """0, or the errno for which the shard takes no writes."""
    @property
    def poisoned(self) -> int:
        """0, or the errno of the write or sync that failed: only `void`, `resume_after` and a restart help."""
    @property
    def next_is_ready(self) -> bool: ...
    @property
    def files(self) -> list[tuple[int, int]]:
        """(first position, bytes) of each file in the table."""
    def counters(self) -> dict[str, int | list[int]]:
        """Return the shard's counters by name; `fsync_bucket[n]` counts syncs of more than 2^(n-1) and at most 2^n us (not cumulative)."""
