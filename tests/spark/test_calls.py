"""What a Spark task does in Python and reads of files: as many calls as it has batches, and the bytes that it was asked for. No JVM is started."""

import io
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from fakes.exports import Lake, records
from topicsd.spark.reading import SMALL

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed: ci/ensure-java brings it")
pytestmark = [pytest.mark.spark]


def reader_of(lake: Lake, **options: object) -> Any:
    from topicsd.spark.source import TopicsDataSource

    source = TopicsDataSource({"path": str(lake.to)} | {name: str(value) for name, value in options.items()})
    return source.reader(source.schema())


def run_task(lake: Lake) -> tuple[int, list[int]]:
    """Run the one partition as Spark's worker does: the calls of functions of Python and of C, and the rows of each batch."""
    import pyarrow
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer
    from pyspark.sql.types import LongType, StringType, StructType
    from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

    reader = reader_of(lake, columns="topic,seq,tag,data")
    (partition,) = reader.partitions()
    schema = StructType().add("topic", StringType()).add("seq", LongType()).add("tag", StringType()).add("data", StringType())
    calls: Counter[str] = Counter()

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        calls[event] += 1

    out = io.BytesIO()
    sys.setprofile(count)
    try:
        ArrowStreamSerializer().dump_stream(records_to_arrow_batches(reader.read(partition), 10_000, schema, reader), out)
    finally:
        sys.setprofile(None)
    out.seek(0)
    return calls["call"] + calls["c_call"], [batch.num_rows for batch in pyarrow.ipc.open_stream(out)]


def test_the_calls_of_a_task_go_by_its_batches_and_not_by_its_records(tmp_path: Path) -> None:
    made = {}
    for name, count in (("one", 1), ("full", SMALL.rows), ("four", 4 * SMALL.rows)):
        lake = Lake(tmp_path / name)
        lake.write("a", records(1, count))
        lake.export()
        run_task(lake)  # what is imported at first is not counted
        made[name] = run_task(lake)
    assert [rows for _, rows in made.values()] == [[1], [SMALL.rows], [SMALL.rows] * 4]
    one, full, four = (calls for calls, _ in made.values())
    assert full == one
    assert full < four < full + 3 * 100  # about thirty for each batch more


def test_large_records_end_a_batch_by_their_bytes(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write("a", records(1, 30, size=SMALL.bytes // 10))
    lake.export()
    assert run_task(lake)[1] == [10, 10, 10]


def test_what_is_pruned_makes_no_partition_and_is_not_read(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for name in ("a", "b"):
        for first in range(1, 4000, 1000):
            lake.write(name, records(first, 1000))
    lake.export()
    size = 20_000
    whole = reader_of(lake, maxPartitionBytes=size)
    chosen = {
        "topics": reader_of(lake, maxPartitionBytes=size, topics="a"),
        "offsets": reader_of(lake, maxPartitionBytes=size, topics="a", startingOffsets='{"a": 1001}', endingOffsets='{"a": 2001}'),
        "times": reader_of(lake, maxPartitionBytes=size, topics="a", startingTimestamp=2001, endingTimestamp=3001),
    }
    counts = {name: len(reader.partitions()) for name, reader in {"all": whole, **chosen}.items()}
    assert counts["all"] / counts["topics"] == pytest.approx(2, rel=0.1)
    assert counts["topics"] / counts["offsets"] == pytest.approx(4, rel=0.3)
    assert counts["times"] == counts["offsets"] > 1

    # Everything else is overwritten: reading it would be found out by its checksums.
    places = {piece.place: (piece.topic, piece.place.first_seq) for one in whole.partitions() for piece in one.pieces}
    for place, what in places.items():
        if what != ("a", 1001):
            with place.data.path.open("r+b") as file:
                file.seek(place.data.offset)
                file.write(bytes(place.data_bytes))
    for name in ("offsets", "times"):
        found = [seq for one in chosen[name].partitions() for batch in chosen[name].read(one) for seq in batch["seq"].to_pylist()]
        assert found == list(range(1001, 2001))
    with pytest.raises(Exception, match="topic a, seqs 1 to"):
        [None for one in chosen["topics"].partitions() for _ in chosen["topics"].read(one)]
