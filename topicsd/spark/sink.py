"""The sink of `format("topicsd")`: what Spark calls. send.py writes, rows.py makes rows."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from topicsd.lake.server import Server
from topicsd.spark.options import SinkOptions
from topicsd.spark.rows import check_names, of_first_tasks, rows
from topicsd.spark.send import Sender, Sent, SinkError, check_window

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger("topicsd.spark")
QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


class Written(WriterCommitMessage):
    """What a task tells the driver."""

    def __init__(self, sent: Sent) -> None:
        self.sent = sent


class _Sink:
    """What both writers share. Made by the driver, sent to the tasks."""

    def __init__(self, options: SinkOptions, schema: Any, overwrite: bool) -> None:
        if overwrite:
            raise SinkError("format topicsd only appends: topics are logs (mode append, output mode append)")
        self.options, self.names = options, list(schema.names)
        check_names(self.names, options.topic)
        if options.topic is not None:  # before any task writes; topics of a column are looked at by the tasks
            with Server(options.url, options.token, retries=options.retries + 1) as server:
                check_window(server, options.topic, options.window_ms)

    def send(self, key: str, batches: Iterator[pyarrow.RecordBatch]) -> Written:
        """Write one task's rows."""
        options, first = self.options, 1
        with Server(options.url, options.token, retries=options.retries + 1) as server:
            sender = Sender(server, key, chunk_records=options.chunk_records, chunk_bytes=options.chunk_bytes, window_ms=options.window_ms)
            for batch in batches:
                for topic, row in rows(batch, options.topic, first):
                    sender.add(topic, row)
                first += batch.num_rows
            return Written(sender.finish())


def _tell(what: str, messages: Sequence[Any]) -> None:
    sent = [message.sent for message in messages if message is not None]
    numbers = {name: sum(getattr(one, name) for one in sent) for name in ("records", "requests", "deduped", "reordered")}
    log.info("%s: %s", what, numbers)


class BatchWriter(_Sink, DataSourceArrowWriter):
    """`df.write.format("topicsd")`. Two writes have different keys unless both have the same writeId; such a write has one task."""

    def __init__(self, options: SinkOptions, schema: Any, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        self.write_id = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Written:
        """Write a partition. Raises SinkError, ServerError."""
        task: Any = TaskContext.get()
        if self.options.write_id:
            refusal = (
                f"a write with a writeId has one partition; write frame.coalesce(1) under writeId={self.write_id}: "
                "what partition 0 has written is not written again"
            )
            iterator = of_first_tasks(iterator, task.partitionId(), 1, refusal)
        inside = [value for value in (task.getLocalProperty(QUERY), task.getLocalProperty(BATCH)) if value]
        return self.send(":".join([*inside, self.write_id, str(task.partitionId())]), iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        """Nothing to do: each chunk has been written for good."""
        _tell(f"write {self.write_id} is done", messages)

    def abort(self, messages: Sequence[Any]) -> None:
        """Leave what was written: a topic can not take it back."""
        _tell(f"write {self.write_id} failed; what it wrote stays", messages)


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream.format("topicsd")`. Keys are made of the query's id, which its checkpoint keeps, and of the batch's."""

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Written:
        """Write a partition of a micro-batch. Raises SinkError, ServerError."""
        task: Any = TaskContext.get()
        query, batch = task.getLocalProperty(QUERY), task.getLocalProperty(BATCH)
        if not query or not batch:
            raise SinkError("this Spark does not tell its tasks of the query and the batch, so a replay could not be told from a new batch")
        count = self.options.partitions
        if count is not None:
            iterator = of_first_tasks(iterator, task.partitionId(), count, f"this stream writes from {count}, as its option partitions says")
        return self.send(f"{query}:{batch}:{task.partitionId()}", iterator)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        """Nothing to do: each chunk has been written for good."""
        _tell(f"batch {batchId} is written", messages)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        """Leave what was written: the batch is tried again under the same keys."""
        _tell(f"batch {batchId} failed", messages)
