"""The data source `topicsd`: exports and live servers as Spark reads them, batch and streaming; sink.py is what writes (docs/pipeline.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from topicsd.lake.manifest import Manifest
from topicsd.lake.pieces import Piece
from topicsd.spark import live, plan
from topicsd.spark.live import Span
from topicsd.spark.options import Offsets, Options, parse, parse_sink
from topicsd.spark.reading import SMALL, look, newest, read
from topicsd.spark.sink import BatchWriter, StreamWriter

if TYPE_CHECKING:
    import pyarrow


class Pieces(InputPartition):
    """What one task reads."""

    def __init__(self, pieces: list[Piece] | list[Span]) -> None:
        super().__init__(None)
        self.pieces = pieces


class TopicsDataSource(DataSource):
    """`spark.read.format("topicsd").load(path)`, `spark.readStream.format("topicsd")`."""

    @classmethod
    def name(cls) -> str:
        return "topicsd"

    def schema(self) -> str:
        return parse(self.options).schema()

    def reader(self, schema: Any) -> BatchReader:
        return BatchReader(parse(self.options))

    def streamReader(self, schema: Any) -> StreamReader:
        return StreamReader(parse(self.options))

    def writer(self, schema: Any, overwrite: bool) -> BatchWriter:
        return BatchWriter(parse_sink(self.options), schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:
        return StreamWriter(parse_sink(self.options), schema, overwrite)


class BatchReader(DataSourceReader):
    """Read what there is when the query is planned: what the newest manifest names, or what the server lists."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def partitions(self) -> Sequence[Pieces]:
        found = look(self.options)
        if isinstance(found, Manifest):
            return _partitions(plan.batch(found, self.options.root, self.options))
        return _partitions(plan.live_batch(found, self.options))

    def read(self, partition: Pieces) -> Iterator[pyarrow.RecordBatch]:
        return read(self.options, partition.pieces, SMALL)


def _partitions(partitions: Sequence[list[Piece] | list[Span]]) -> Sequence[Pieces]:
    return [Pieces(pieces) for pieces in partitions or [[]]]  # Spark puts one of its own in the place of none


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read what comes into the export, or to the server. Offsets are `{topic: {epoch, next_seq}}`, with sorted names, and the only state."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._until: Manifest | live.Listing | None = None  # what there was when a trigger AvailableNow began

    def initialOffset(self) -> Offsets:
        return plan.initial(plan.bound(plan.chosen(look(self.options), self.options), self.options.starting, "startingOffsets"))

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = look(self.options)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.trigger_records is not None:
            return ReadMaxRows(self.options.trigger_records)
        if self.options.trigger_bytes is not None:
            return ReadMaxBytes(self.options.trigger_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        found = self._until or look(self.options)
        if isinstance(limit, ReadMaxRows):  # Spark passes one limit; an option for bytes beside it counts too
            return plan.advanced(found, start, self.options, records=limit.max_rows, size=self.options.trigger_bytes)
        if isinstance(limit, ReadMaxBytes):
            return plan.advanced(found, start, self.options, size=limit.max_bytes)
        return plan.advanced(found, start, self.options)

    def reportLatestOffset(self) -> Offsets:
        return plan.offsets(plan.chosen(look(self.options), self.options), end=True)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[Pieces]:
        if self.options.path:
            return [Pieces(pieces) for pieces in plan.stream(newest(self.options), self.options.root, start, end, self.options)]
        return [Pieces(spans) for spans in plan.live_stream(start, end, self.options)]

    def read(self, partition: Pieces) -> Iterator[pyarrow.RecordBatch]:
        return read(self.options, partition.pieces, SMALL)
