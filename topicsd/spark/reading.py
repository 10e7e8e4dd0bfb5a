"""What there is to read, and reading it: exports and live servers alike. Nothing here needs Spark."""

from __future__ import annotations

from collections.abc import Iterator
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


def read(options: Options, pieces: Any) -> Iterator[pyarrow.RecordBatch]:
    """Read the pieces, or the spans, of one partition."""
    if not options.path:
        with Server(options.url, options.token) as server:
            yield from LiveReader(server, options).read(pieces)
        return
    reader = Reader(
        options.columns, since=options.since, until=options.until, on_corrupt=options.on_corrupt, on_gap=options.on_gap,
        on_missing="fail" if options.fail_on_loss else "gap", files=files_of(open_storage(options.path, options.storage)),
    )  # fmt: skip
    yield from reader.read(pieces)
