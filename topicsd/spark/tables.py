"""Lake tables in Delta: parquet files that tasks have written become one commit, which says what seqs it brought. No JVM is needed.

A commit's metadata holds `topicsd.ranges`, the (topic, epoch, first, last) that it brought, of records and of seqs without one; now and then
`topicsd.held`, all that the table holds, so that nobody reads further back. Two writers can not both commit: each names the table's next batch
number as the version of one application, and Delta lets one pass.
"""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from topicsd.spark.ranges import Held, Range

if TYPE_CHECKING:
    import pyarrow

APPLICATION = "topicsd.ingest"
RANGES, HELD, BATCH = "topicsd.ranges", "topicsd.held", "topicsd.batch"
PARTITIONS = ["topic_key", "day"]
KEY_BYTES_MAX = 80
HELD_ALWAYS_MAX = 1000  # intervals; more are told every HELD_EVERY commits
HELD_EVERY = 16
HISTORY = (2, 32)  # commits that are looked at before all are


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


class DeltaLake:
    """A Delta table on a folder. Raises TableError when it is no table of ours."""

    keys_in_files = False  # Delta's log has the columns of the partition

    def __init__(self, path: Path, schema: pyarrow.Schema) -> None:
        self.path, self.schema = path, schema

    def open(self) -> Any:
        """The table as it stands, None when there is none."""
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(str(self.path)):
            return None
        table = DeltaTable(str(self.path))
        if table.metadata().partition_columns != PARTITIONS:
            raise TableError(f"{self.path}: not a table that topicsd made: it is not partitioned by {', '.join(PARTITIONS)}")
        return table

    def create(self) -> Any:
        """The table, made when it is not there."""
        import pyarrow
        from deltalake import DeltaTable

        table = self.open()
        if table is not None:
            return table
        whole = pyarrow.schema([pyarrow.field("topic_key", pyarrow.string()), pyarrow.field("day", pyarrow.date32()), *self.schema])
        self.path.mkdir(parents=True, exist_ok=True)
        return DeltaTable.create(str(self.path), whole, mode="ignore", partition_by=PARTITIONS)

    def payload(self) -> pyarrow.DataType | None:
        """The type of the column payload, None without one. Raises TableError when there is no table."""
        import pyarrow

        table = self.open()
        if table is None:
            raise TableError(f"{self.path}: no table")
        schema = pyarrow.schema(table.schema())
        return schema.field("payload").type if "payload" in schema.names else None

    def held(self) -> tuple[Held, int]:
        """What the table holds, and the number of its next batch."""
        table = self.open()
        return _held(table) if table is not None else (Held(), 1)

    def commit(self, files: Sequence[File], ranges: Sequence[Range], batch: int) -> None:
        """Add files, which hold `ranges`, as batch `batch`. Raises ConflictError when another writer was faster."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction

        table = self.create()
        held, expected = _held(table)
        if expected != batch or any(held.overlaps(*one) for one in ranges):
            raise ConflictError(f"{self.path}: batch {batch} is there already")
        for one in ranges:
            held.add(*one)
        metadata = {RANGES: json.dumps(ranges), BATCH: str(batch)}
        if len(held) <= HELD_ALWAYS_MAX or batch % HELD_EVERY == 0:
            metadata[HELD] = json.dumps(held.ranges())
        now_ms = int(time.time() * 1000)
        actions = [AddAction(one.path, one.size, {"topic_key": one.topic_key, "day": one.day}, now_ms, True, _stats(one)) for one in files]
        properties = CommitProperties(custom_metadata=metadata, max_commit_retries=0, app_transactions=[Transaction(APPLICATION, batch)])
        try:
            table.create_write_transaction(actions, "append", table.schema(), PARTITIONS, commit_properties=properties)
        except CommitFailedError as wrong:
            raise ConflictError(str(wrong)) from wrong

    # ---- reading

    def files(self) -> list[str]:
        """The paths of its files."""
        table = self.open()
        return [] if table is None else [_local(uri) for uri in table.file_uris()]

    def partitions(self) -> dict[tuple[str, str], list[str]]:
        """Its files' paths by (topic_key, day)."""
        import pyarrow

        table = self.open()
        out: dict[tuple[str, str], list[str]] = {}
        if table is not None:
            for action in pyarrow.table(table.get_add_actions(flatten=True)).to_pylist():
                out.setdefault((action["partition.topic_key"], str(action["partition.day"])), []).append(
                    str(self.path / urllib.parse.unquote(action["path"]))
                )
        return out

    def compact(self, target_bytes: int) -> dict[str, Any]:
        """Join small files of each partition. The files that they replace stay until they are vacuumed."""
        table = self.open()
        if table is None:
            raise TableError(f"{self.path}: no table")
        return dict(table.optimize.compact(target_size=target_bytes))

    def vacuum(self, hours: int) -> int:
        """Remove files that no version of the last hours needs; how many."""
        table = self.open()
        return 0 if table is None else len(table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True))


def _held(table: Any) -> tuple[Held, int]:
    for limit in (*HISTORY, None):
        commits = table.history(limit)  # the newest first
        found = _told(commits)
        if found is not None or limit is None or len(commits) < limit:
            ranges, batch = found or _all(commits)
            return Held(ranges), batch + 1
    raise AssertionError


def _told(commits: list[dict[str, Any]]) -> tuple[list[Range], int] | None:
    """What commits say down to one that says all; None: none does."""
    for number, commit in enumerate(commits):
        if HELD in commit:
            return _all(commits[: number + 1])
    return None


def _all(commits: list[dict[str, Any]]) -> tuple[list[Range], int]:
    ours = [commit for commit in commits if BATCH in commit]
    ranges = [tuple(one) for commit in ours for one in json.loads(commit[HELD] if HELD in commit else commit[RANGES])]
    return ranges, max((int(commit[BATCH]) for commit in ours), default=0)


def _stats(file: File) -> str:
    return json.dumps({"numRecords": file.rows, "minValues": {"seq": file.seq_min}, "maxValues": {"seq": file.seq_max}, "nullCount": {"seq": 0}})


def _local(uri: str) -> str:
    return urllib.parse.unquote(urllib.parse.urlsplit(uri).path) if uri.startswith("file:") else uri


def remove(root: Path, files: Iterable[File]) -> None:
    """Remove files that will not be committed."""
    for one in files:
        (root / one.path).unlink(missing_ok=True)
