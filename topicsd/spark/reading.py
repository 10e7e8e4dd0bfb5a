"""What there is to read, and reading it: exports and live servers alike. Nothing here needs Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from topicsd.lake import manifest as manifests
from topicsd.lake.manifest import Manifest, ManifestError
from topicsd.lake.parts import files_of
from topicsd.lake.pieces import Reader
from topicsd.lake.server import Server
from topicsd.lake.storage import open_storage
from topicsd.spark import live
from topicsd.spark.live import LiveReader
from topicsd.spark.options import Options

if TYPE_CHECKING:
    import pyarrow


def newest(options: Options) -> Manifest:
    """The newest manifest. Raises ManifestError when there is none."""
    found = manifests.latest(open_storage(options.path, options.storage))
    if found is None:
        raise ManifestError(f"{options.path}: no manifest of an export (topicsd export --to {options.path} writes one)")
    return found


def look(options: Options) -> Manifest | live.Listing:
    """What there is now. Raises ManifestError, ServerError."""
    if options.path:
        return newest(options)
    with Server(options.url, options.token) as server:
        return live.listing(server, options.topics)


@dataclass(frozen=True)
class BatchSize:
    """Where a record batch ends: behind so many rows, or bytes of text."""

    rows: int
    bytes: int


# For Parquet, whose row groups are to be large.
LARGE = BatchSize(65536, 64 << 20)
# For Spark, which takes a batch through a socket into one buffer of the JVM. Batches of 20 MB cost about a fifth more CPU time a query than sizes of
# 0.6 to 7 MB did; why is not known: the caches, or the JVM's pool of buffers (docs/pipeline.md, what it costs).
SMALL = BatchSize(16384, 1 << 20)


def read(options: Options, pieces: Any, size: BatchSize = LARGE) -> Iterator[pyarrow.RecordBatch]:
    """Read the pieces, or the spans, of one partition."""
    if not options.path:
        with Server(options.url, options.token) as server:
            yield from LiveReader(server, options, rows_max=size.rows, bytes_max=size.bytes).read(pieces)
        return
    reader = Reader(
        options.columns, since=options.since, until=options.until, on_corrupt=options.on_corrupt, on_gap=options.on_gap,
        on_missing="fail" if options.fail_on_loss else "gap", files=files_of(open_storage(options.path, options.storage)),
        rows_max=size.rows, bytes_max=size.bytes,
    )  # fmt: skip
    yield from reader.read(pieces)
