"""Running an ingest's tasks on Spark's executors: as the partitions of a data source, whose rows are what the tasks say.

(`mapInArrow` would want pandas, and RDDs are not there with Spark Connect.)
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from topicsd.spark.ingest import run_packed
from topicsd.spark.write import Task, Written

NAME = "topicsd_tasks"


class TasksReader(DataSourceReader):
    """A partition a task."""

    def __init__(self, packed: list[str]) -> None:
        self._packed = packed

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(one) for one in self._packed]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        yield (run_packed(partition.value),)


def run_tasks(spark: Any, made: list[Task]) -> list[Written]:
    """Run tasks on the executors, which have this package. A task that fails is tried again as Spark is told to; its first files are litter."""
    packed = [base64.b64encode(pickle.dumps(task)).decode() for task in made]

    class Tasks(DataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> str:
            return "result string"

        def reader(self, schema: Any) -> DataSourceReader:
            return TasksReader(packed)

    spark.dataSource.register(Tasks)
    return [pickle.loads(base64.b64decode(row.result)) for row in spark.read.format(NAME).load().collect()]
