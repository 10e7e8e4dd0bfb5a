"""Lake tables in Iceberg, through pyiceberg and a catalog: the same tables, commits and promises as in Delta (tables.py).

What the table holds stands in its properties, which change in the same commit as the files come: `topicsd.held`, all (topic, epoch, first, last), and
`topicsd.batch`. A snapshot's summary says which batch it is, and what it brought. Of two writers one passes: a commit names the snapshot that it was
made on, and pyiceberg must not make it again on another (`commit.retry.num-retries` is 0).
"""

from __future__ import annotations

import base64
import datetime
import json
import secrets
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topicsd.spark.ranges import Held, Range
from topicsd.spark.tables import BATCH, HELD, HELD_ALWAYS_MAX, PARTITIONS, RANGES, ConflictError, File, LakeTable, TableError, folder

if TYPE_CHECKING:
    import pyarrow

NAMESPACE = "topicsd"
PAYLOAD = "topicsd.payload"  # the payload's Arrow type: a serialized schema of one field, in base64
RETRIES = "commit.retry.num-retries"
NAMES = "schema.name-mapping.default"
CATALOG_FILE = "iceberg-catalog.db"
PROPERTIES = {
    "format-version": "2", RETRIES: "0", "write.parquet.compression-codec": "zstd", "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}  # fmt: skip
BATCH_ROWS = 65536
CONFLICTS_MAX = 20
EPOCH = datetime.date(1970, 1, 1)


def open_catalog(told: str, path: Path) -> Any:
    """A catalog: of SQL by its URL, one of pyiceberg's own configuration by its name, or a file beside the table. Raises TableError."""
    try:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.catalog.sql import SqlCatalog
    except ImportError as wrong:
        raise TableError("tables in Iceberg need the extra `iceberg` (pip install 'topicsd[iceberg]')") from wrong
    if told and "://" not in told:
        return load_catalog(told)
    if not told:
        path.parent.mkdir(parents=True, exist_ok=True)
        told = f"sqlite:///{path.parent / CATALOG_FILE}?timeout=60"
    return SqlCatalog(NAMESPACE, uri=told, warehouse=str(path.parent))


class IcebergLake(LakeTable):
    """An Iceberg table."""

    keys_in_files = True

    def __init__(self, path: Path, schema: pyarrow.Schema, catalog: str = "") -> None:
        super().__init__(path, schema)
        self._catalog_told = catalog
        self._catalog: Any = None

    @property
    def _name(self) -> tuple[str, str]:
        return NAMESPACE, self.path.name

    def open(self) -> Any:
        if self._catalog is None:
            self._catalog = open_catalog(self._catalog_told, self.path)
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            table = self._catalog.load_table(self._name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        if [one.name for one in table.spec().fields] != PARTITIONS or PAYLOAD not in table.properties:
            raise TableError(f"{self.path}: not a table that topicsd made")
        if table.properties.get(RETRIES) != "0":
            raise TableError(f"{self.path}: its property {RETRIES} must be 0: a commit that is made again on another snapshot doubles records")
        return table

    def _make(self, schema: pyarrow.Schema) -> None:
        import pyarrow
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        self._catalog.create_namespace_if_not_exists(NAMESPACE)
        at = self.schema.get_field_index("payload")
        payload = b"" if at < 0 else pyarrow.schema([self.schema.field(at)]).serialize().to_pybytes()
        properties = PROPERTIES | {PAYLOAD: base64.b64encode(payload).decode(), HELD: "[]", BATCH: "0"}
        try:
            change = self._catalog.create_table_transaction(self._name, schema, location=str(self.path), properties=properties)
            with change.update_spec() as spec:
                for name in PARTITIONS:
                    spec.add_identity(name)
            change.set_properties({NAMES: change.table_metadata.schema().name_mapping.model_dump_json()})
            change.commit_transaction()
        except (TableAlreadyExistsError, CommitFailedException):
            pass  # another job was faster

    def payload(self) -> pyarrow.DataType | None:
        import pyarrow

        raw = base64.b64decode(self.there().properties[PAYLOAD])
        return pyarrow.ipc.read_schema(pyarrow.BufferReader(raw)).field(0).type if raw else None

    def _told(self, table: Any) -> tuple[list[Range], int]:
        return [tuple(one) for one in json.loads(table.properties[HELD])], int(table.properties[BATCH])

    def _append(self, table: Any, files: Sequence[File], ranges: Sequence[Range], held: Held, batch: int) -> None:
        from pyiceberg.io.pyarrow import parquet_files_to_data_files

        summary = {BATCH: str(batch)} | ({RANGES: json.dumps(ranges)} if len(ranges) <= HELD_ALWAYS_MAX else {})
        change = table.transaction()
        change.set_properties({HELD: json.dumps(held.ranges()), BATCH: str(batch)})
        with change.update_snapshot(snapshot_properties=summary).merge_append() as append:  # also without a file: it is what asserts the snapshot
            for made in parquet_files_to_data_files(table.io, change.table_metadata, iter([str(self.path / one.path) for one in files])):
                append.append_data_file(made)
        _commit(change)

    # ---- reading

    def _tasks(self, table: Any) -> list[Any]:
        tasks = list(table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            raise TableError(f"{self.path}: rows have been deleted from its files (by delete files): they are not read here")
        return tasks

    def files(self) -> list[str]:
        table = self.open()
        return [] if table is None else sorted(_local(task.file.file_path) for task in self._tasks(table))

    def partitions(self) -> dict[tuple[str, str], list[str]]:
        table = self.open()
        out: dict[tuple[str, str], list[str]] = {}
        for task in () if table is None else self._tasks(table):
            out.setdefault(_partition(task.file), []).append(_local(task.file.file_path))
        return out

    # ---- care

    def compact(self, target_bytes: int) -> dict[str, Any]:
        """Join small files of each partition, in one commit. The files that they replace stay until they are vacuumed."""
        from pyiceberg.io.pyarrow import parquet_files_to_data_files

        done: dict[tuple[str, ...], list[str]] = {}  # files, and those that take their place
        for _ in range(CONFLICTS_MAX):
            table = self.there()
            there = {_local(task.file.file_path): task.file for task in self._tasks(table)}
            done = {old: new for old, new in done.items() if set(old) <= set(there)}
            for group in _small(there.values(), target_bytes, {path for old in done for path in old}):
                done[tuple(_local(one.file_path) for one in group)] = [self._join(group)]
            if not done:
                break
            change = table.transaction()
            with change.update_snapshot().overwrite() as rewrite:
                for path in (path for old in done for path in old):
                    rewrite.delete_data_file(there[path])
                for made in parquet_files_to_data_files(table.io, change.table_metadata, (path for new in done.values() for path in new)):
                    rewrite.append_data_file(made)
            try:
                _commit(change)
                break
            except ConflictError:
                continue  # a batch came; what has been joined still stands
        else:
            raise TableError(f"{self.path}: other writers are always faster")
        return {"numFilesRemoved": sum(map(len, done)), "numFilesAdded": sum(map(len, done.values()))}

    def _join(self, group: list[Any]) -> str:
        from pyarrow import parquet

        key, day = _partition(group[0])
        path = self.path / folder(key, day) / f"part-{secrets.token_hex(12)}.parquet"
        sources = [parquet.ParquetFile(_local(one.file_path)) for one in group]
        with parquet.ParquetWriter(path, sources[0].schema_arrow, compression="zstd", compression_level=1, coerce_timestamps="us") as out:
            for source in sources:
                for batch in source.iter_batches(BATCH_ROWS):
                    out.write_batch(batch.cast(sources[0].schema_arrow))
        return str(path)

    def vacuum(self, hours: int) -> int:
        """Forget snapshots older than so many hours but the last one, and remove files as old that no snapshot needs; how many."""
        from pyiceberg.exceptions import CommitFailedException

        table = self.open()
        if table is None:
            return 0
        oldest = time.time() - hours * 3600
        last = table.current_snapshot()
        old = [one.snapshot_id for one in table.snapshots() if one.timestamp_ms < oldest * 1000 and one.snapshot_id != last.snapshot_id]
        if old:
            try:
                table.maintenance.expire_snapshots().by_ids(old).commit()
            except CommitFailedException as wrong:
                raise ConflictError(f"{self.path}: another writer was faster; run it again") from wrong
            table = self.open()
        needed = {_local(path) for path in _needed(table)}
        removed = 0
        for path in self.path.rglob("*"):
            if path.is_file() and str(path) not in needed and path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)
                removed += 1
        return removed


def _commit(change: Any) -> None:
    """Commit, or raise ConflictError. Whatever else is raised leaves it open whether it has been committed."""
    from pyiceberg.exceptions import CommitFailedException, ValidationException

    try:
        change.commit_transaction()
    except (CommitFailedException, ValidationException) as wrong:
        raise ConflictError(str(wrong)) from wrong


def _small(files: Iterable[Any], target_bytes: int, taken: set[str]) -> Iterator[list[Any]]:
    """Files that are to become one: of a partition, in the order of their names' times, together no larger than the target."""
    grouped: dict[tuple[str, str], list[Any]] = {}
    for one in sorted(files, key=lambda one: one.file_path):
        if one.file_size_in_bytes < target_bytes and _local(one.file_path) not in taken:
            grouped.setdefault(_partition(one), []).append(one)
    for mine in grouped.values():
        group: list[Any] = []
        for one in mine:
            if group and sum(each.file_size_in_bytes for each in group) + one.file_size_in_bytes > target_bytes:
                if len(group) > 1:
                    yield group
                group = []
            group.append(one)
        if len(group) > 1:
            yield group


def _partition(file: Any) -> tuple[str, str]:
    key, day = file.partition[0], file.partition[1]
    return key, str(EPOCH + datetime.timedelta(days=day) if isinstance(day, int) else day)


def _needed(table: Any) -> Iterator[str]:
    yield table.metadata_location
    yield from (entry.metadata_file for entry in table.metadata.metadata_log)
    for snapshot in table.snapshots():
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            yield manifest.manifest_path
            yield from (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True))


def _local(uri: str) -> str:
    return urllib.parse.urlsplit(uri).path if uri.startswith("file:") else uri
