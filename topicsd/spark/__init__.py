"""PySpark's view of topics: `format("topicsd")` (docs/pipeline.md). The name is found by Spark when `register` has been called."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("topicsd")` and `spark.readStream.format("topicsd")` known to a session."""
    from pyspark import cloudpickle

    from topicsd.spark import shipped

    cloudpickle.register_pickle_by_value(shipped)
    spark.dataSource.register(shipped.TopicsDataSource)
