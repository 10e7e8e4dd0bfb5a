"""Lake tables in Delta, through deltalake (tables.py says what all formats have in common).

A commit's metadata holds `topicsd.ranges`, the (topic, epoch, first, last) that it brought, of records and of seqs without one; now and then
`topicsd.held`, all that the table holds, so that nobody reads further back. Two writers can not both commit: each names the table's next batch
number as the version of one application, and Delta lets one pass.
"""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from topicsd.spark.ranges import Held, Range
from topicsd.spark.tables import BATCH, HELD, HELD_ALWAYS_MAX, PARTITIONS, RANGES, ConflictError, File, LakeTable, TableError

if TYPE_CHECKING:
    import pyarrow

APPLICATION = "topicsd.ingest"
HELD_EVERY = 16  # commits, where more intervals are held than are told with each
HISTORY = (2, 32)  # commits that are looked at before all are


class DeltaLake(LakeTable):
    """A Delta table."""

    keys_in_files = False  # Delta's log has them

    def open(self) -> Any:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(str(self.path)):
            return None
        table = DeltaTable(str(self.path))
        if table.metadata().partition_columns != PARTITIONS:
            raise TableError(f"{self.path}: not a table that topicsd made: it is not partitioned by {', '.join(PARTITIONS)}")
        return table

    def _make(self, schema: pyarrow.Schema) -> None:
        from deltalake import DeltaTable

        DeltaTable.create(str(self.path), schema, mode="ignore", partition_by=PARTITIONS)

    def payload(self) -> pyarrow.DataType | None:
        import pyarrow

        schema = pyarrow.schema(self.there().schema())
        return schema.field("payload").type if "payload" in schema.names else None

    def _told(self, table: Any) -> tuple[list[Range], int]:
        last = table.transaction_version(APPLICATION) or 0
        for limit in (*HISTORY, None):
            commits = table.history(limit)  # the newest first
            found = _complete(commits, last)
            if found is not None:
                return found, last
            if limit is None or len(commits) < limit:
                break
        return list(self._in_files()), last

    def _in_files(self) -> Iterator[Range]:
        """What its files hold: Delta forgets commits after some weeks (delta.logRetentionDuration), where others come after them."""
        import numpy
        from pyarrow import compute, parquet

        columns = [name for name in ("topic", "epoch", "seq", "seq_end") if name in self.schema.names]
        for path in self.files():
            rows = parquet.read_table(path, columns=columns, partitioning=None).sort_by([(name, "ascending") for name in columns[:3]])
            names = compute.binary_join_element_wise(rows["topic"], rows["epoch"], "\0")
            other = compute.not_equal(names[1:], names[:-1]).to_numpy()
            first = rows["seq"].to_numpy()
            last = compute.coalesce(rows["seq_end"], rows["seq"]).to_numpy() if "seq_end" in columns else first
            begins = numpy.flatnonzero(numpy.r_[True, other | (first[1:] > last[:-1] + 1)])
            for begin, end in zip(begins, [*begins[1:], len(first)], strict=True):
                topic, _, epoch = names[int(begin)].as_py().rpartition("\0")
                yield topic, epoch, int(first[begin]), int(last[begin:end].max())

    def _append(self, table: Any, files: Sequence[File], ranges: Sequence[Range], held: Held, batch: int) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction

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
        table = self.open()
        return [] if table is None else [_local(uri) for uri in table.file_uris()]

    def partitions(self) -> dict[tuple[str, str], list[str]]:
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
        return dict(self.there().optimize.compact(target_size=target_bytes))

    def vacuum(self, hours: int) -> int:
        table = self.open()
        return 0 if table is None else len(table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True))


def _complete(commits: list[dict[str, Any]], last: int) -> list[Range] | None:
    """What the batches up to `last` brought, down to a commit that says all before it too; None: one of them is not among these commits."""
    ours = {int(commit[BATCH]): commit for commit in commits if BATCH in commit}
    ranges: list[Range] = []
    for number in range(last, 0, -1):
        commit = ours.get(number)
        if commit is None:
            return None
        ranges += map(tuple, json.loads(commit[HELD] if HELD in commit else commit[RANGES]))
        if HELD in commit:
            break
    return ranges


def _stats(file: File) -> str:
    return json.dumps({"numRecords": file.rows, "minValues": {"seq": file.seq_min}, "maxValues": {"seq": file.seq_max}, "nullCount": {"seq": 0}})


def _local(uri: str) -> str:
    return urllib.parse.unquote(urllib.parse.urlsplit(uri).path) if uri.startswith("file:") else uri
