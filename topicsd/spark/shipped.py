"""What Spark is given of `format("topicsd")`: thin classes that are pickled by value, so that they come to Python workers that lack this package and
can say so. All they do is done by source.py and sink.py, whose objects they carry as bytes. Nothing here may import the package where it is loaded.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

LACKING = (
    "this Python worker ({python}) has no package topicsd, or one that does not load: install the wheel, topicsd[spark], for the Python of every "
    "node at the same path (PYSPARK_PYTHON), or ship a packed environment (venv-pack); an extension can not be loaded from a zip. "
    "See docs/pipeline.md, Beyond one machine"
)


def _source() -> Any:
    """The package. Raises ImportError that says what to ship."""
    try:
        from topicsd.spark import source
    except ImportError as wrong:
        raise ImportError(f"{LACKING.format(python=sys.executable)} ({wrong})") from wrong
    return source


def _loaded(raw: bytes) -> Any:
    _source()
    return pickle.loads(raw)


class TopicsDataSource(DataSource):
    """`spark.read.format("topicsd").load(path)`, `spark.readStream.format("topicsd")`, and what writes."""

    @classmethod
    def name(cls) -> str:
        return "topicsd"

    def _made(self) -> Any:
        return _source().TopicsDataSource(dict(self.options))

    def schema(self) -> Any:
        return self._made().schema()

    def reader(self, schema: Any) -> BatchReader:
        return BatchReader(pickle.dumps(self._made().reader(schema)))

    def streamReader(self, schema: Any) -> StreamReader:
        return StreamReader(pickle.dumps(self._made().streamReader(schema)))

    def writer(self, schema: Any, overwrite: bool) -> BatchWriter:
        return BatchWriter(pickle.dumps(self._made().writer(schema, overwrite)))

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:
        return StreamWriter(pickle.dumps(self._made().streamWriter(schema, overwrite)))


class BatchReader(DataSourceReader):
    """A batch query. It takes no filters (docs/pipeline.md says why)."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(pickle.dumps(one)) for one in _loaded(self.raw).partitions()]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _loaded(self.raw).read(_loaded(partition.value))  # type: ignore[no-any-return]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.made: Any = None

    def _made(self) -> Any:
        """The reader, which remembers where a trigger AvailableNow ends."""
        if self.made is None:
            self.made = _loaded(self.raw)
        return self.made

    def __reduce__(self) -> Any:
        return type(self), (self.raw,)

    def initialOffset(self) -> Any:
        return self._made().initialOffset()

    def prepareForTriggerAvailableNow(self) -> None:
        self._made().prepareForTriggerAvailableNow()

    def getDefaultReadLimit(self) -> ReadLimit:
        return self._made().getDefaultReadLimit()

    def latestOffset(self, start: Any, limit: ReadLimit) -> Any:
        return self._made().latestOffset(start, limit)

    def reportLatestOffset(self) -> Any:
        return self._made().reportLatestOffset()

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        return [InputPartition(pickle.dumps(one)) for one in self._made().partitions(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._made().read(_loaded(partition.value))  # type: ignore[no-any-return]

    def commit(self, end: Any) -> None:
        self._made().commit(end)

    def stop(self) -> None:
        self._made().stop()


class BatchWriter(DataSourceArrowWriter):
    """A batch write. What a task says goes to the driver's Python, which has the package."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def write(self, iterator: Iterator[Any]) -> Any:
        return _loaded(self.raw).write(iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        _loaded(self.raw).commit(messages)

    def abort(self, messages: Sequence[Any]) -> None:
        _loaded(self.raw).abort(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """What a streaming query writes."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def write(self, iterator: Iterator[Any]) -> Any:
        return _loaded(self.raw).write(iterator)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        _loaded(self.raw).commit(messages, batchId)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        _loaded(self.raw).abort(messages, batchId)
