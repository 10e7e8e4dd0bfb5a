"""`topicsd spark replay`: a lake table's records back into topics, under keys that make a repeated run write nothing twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topicsd.spark.lakes import Lake, lake_of
from topicsd.spark.tables import TableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame(spark: SparkSession, table: Path | Lake, *, topics: Sequence[str] | None, since: int | None, until: int | None, to: str) -> DataFrame:
    """The records of a table as the sink takes them, each topic's in the order of epochs and seqs. `to`: a topic, or a prefix with * at its end."""
    from pyspark.sql import functions

    paths = lake_of(table).table().files()
    if not paths:
        raise TableError(f"{lake_of(table).path}: no table, or an empty one")
    rows: Any = spark.read.option("mergeSchema", "true").parquet(*paths)
    if topics is not None:
        chosen = [functions.col("topic").startswith(name[:-1]) if name.endswith("*") else functions.col("topic") == name for name in topics]
        any_of = chosen[0]
        for one in chosen[1:]:
            any_of = any_of | one
        rows = rows.where(any_of)
    if since is not None:
        rows = rows.where(functions.unix_millis("ts") >= since)
    if until is not None:
        rows = rows.where(functions.unix_millis("ts") < until)
    ordered = rows.repartition(1).sortWithinPartitions("topic", "epoch", "seq")
    target = functions.concat(functions.lit(to[:-1]), functions.col("topic")) if to.endswith("*") else functions.lit(to)
    return ordered.select(target.alias("topic"), "data", "tag", "node", "meta")


def write_id(table: Path | Lake, **told: Any) -> str:
    """What a replay is, as one word: the same table with the same records and options has the same."""
    held, _ = lake_of(table).table().held()
    return hashlib.sha256(json.dumps([str(lake_of(table).path.absolute()), held.ranges(), told], sort_keys=True).encode()).hexdigest()[:32]
