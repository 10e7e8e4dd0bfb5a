"""Lake tables: parquet files that tasks have written become one commit, which says what seqs it brought. No JVM is needed.

What all formats have in common; delta.py and iceberg.py say how a commit tells what it brought, and why two writers can not both commit.
"""

from __future__ import annotations

import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import xxhash

from topicsd.spark.ranges import Held, Range

if TYPE_CHECKING:
    import pyarrow

RANGES, HELD, BATCH = "topicsd.ranges", "topicsd.held", "topicsd.batch"
PARTITIONS = ["topic_key", "day"]
KEY_BYTES_MAX = 80
HELD_ALWAYS_MAX = 1000  # intervals that are told with each commit


class TableError(Exception):
    """Say what is wrong with a lake table."""


class ConflictError(Exception):
    """Say that another writer has committed."""


@dataclass(frozen=True)
class File:
    """A parquet file of a table that no commit names yet."""

    path: str  # relative to the table
    size: int
    rows: int
    topic_key: str
    day: str  # YYYY-MM-DD
    seq_min: int
    seq_max: int

    def json(self) -> dict[str, Any]:
        """Its members."""
        return asdict(self)


def topic_key(topic: str) -> str:
    """The name as a partition's value: where its percent-encoded form is long, its beginning and a hash of it."""
    if len(urllib.parse.quote(topic, safe="")) <= KEY_BYTES_MAX:
        return topic
    return f"{topic[:40]}-{xxhash.xxh3_64_hexdigest(topic.encode())}"


def folder(key: str, day: str) -> str:
    """Where a partition's files are put; without characters that paths or URLs encode."""
    return f"{key.replace(':', '_')}/{day}"


def envelope(payload: pyarrow.DataType | None = None) -> pyarrow.Schema:
    """The columns of a table's files: the source's by their names, the epoch, and the parsed payload."""
    import pyarrow

    meta = pyarrow.map_(pyarrow.string(), pyarrow.string())
    text, when = pyarrow.string(), pyarrow.timestamp("us", "UTC")
    columns = [
        ("topic", text),
        ("epoch", text),
        ("seq", pyarrow.int64()),
        ("ts", when),
        ("node", text),
        ("tag", text),
        ("meta", meta),
        ("data", text),
    ]
    return pyarrow.schema([*columns, *([("payload", payload)] if payload is not None else [])])


def quarantine() -> pyarrow.Schema:
    """The columns of a quarantine: also the ranges that were lost or damaged, and records whose payload does not fit. `_err` says why."""
    import pyarrow

    text = pyarrow.string()
    more = [("_kind", text), ("seq_end", pyarrow.int64()), ("_err", text), ("_raw", pyarrow.binary())]
    return pyarrow.schema([*envelope(), *(pyarrow.field(*one) for one in more)])


class LakeTable(ABC):
    """A table whose files stand in a folder. Raises TableError when it is no table of ours."""

    keys_in_files: ClassVar[bool]  # whether the columns of the partition stand in the files

    def __init__(self, path: Path, schema: pyarrow.Schema) -> None:
        self.path, self.schema = path, schema

    @abstractmethod
    def open(self) -> Any:
        """The table as it stands, None when there is none."""

    @abstractmethod
    def _make(self, schema: pyarrow.Schema) -> None:
        """Make it, with the columns of the partition; also where another job is faster."""

    @abstractmethod
    def _told(self, table: Any) -> tuple[list[Range], int]:
        """What its commits say that it holds, and the number of its last batch, 0 before the first."""

    @abstractmethod
    def _append(self, table: Any, files: Sequence[File], ranges: Sequence[Range], held: Held, batch: int) -> None:
        """Add files in one commit on `table`, behind which it holds `held`. Raises ConflictError when another writer was faster."""

    @abstractmethod
    def payload(self) -> pyarrow.DataType | None:
        """The type of the column payload, None without one. Raises TableError when there is no table."""

    @abstractmethod
    def files(self) -> list[str]:
        """The paths of its files."""

    @abstractmethod
    def partitions(self) -> dict[tuple[str, str], list[str]]:
        """Its files' paths by (topic_key, day)."""

    @abstractmethod
    def compact(self, target_bytes: int) -> dict[str, Any]:
        """Join small files of each partition. The files that they replace stay until they are vacuumed. Raises TableError when there is no table."""

    @abstractmethod
    def vacuum(self, hours: int) -> int:
        """Remove files that no version of the last hours needs; how many."""

    def there(self) -> Any:
        """The table as it stands. Raises TableError when there is none."""
        table = self.open()
        if table is None:
            raise TableError(f"{self.path}: no table")
        return table

    def create(self) -> Any:
        """The table, made when it is not there."""
        import pyarrow

        table = self.open()
        if table is not None:
            return table
        self.path.mkdir(parents=True, exist_ok=True)
        self._make(pyarrow.schema([pyarrow.field("topic_key", pyarrow.string()), pyarrow.field("day", pyarrow.date32()), *self.schema]))
        return self.there()

    def held(self) -> tuple[Held, int]:
        """What the table holds, and the number of its next batch."""
        table = self.open()
        return (Held(), 1) if table is None else self._held(table)

    def commit(self, files: Sequence[File], ranges: Sequence[Range], batch: int) -> None:
        """Add files, which hold `ranges`, as batch `batch`. Raises ConflictError when another writer was faster."""
        table = self.create()
        held, expected = self._held(table)
        if expected != batch or any(held.overlaps(*one) for one in ranges):
            raise ConflictError(f"{self.path}: batch {batch} is there already")
        for one in ranges:
            held.add(*one)
        self._append(table, files, ranges, held, batch)

    def _held(self, table: Any) -> tuple[Held, int]:
        ranges, last = self._told(table)
        return Held(ranges), last + 1


def remove(root: Path, files: Iterable[File]) -> None:
    """Remove files that will not be committed."""
    for one in files:
        (root / one.path).unlink(missing_ok=True)
