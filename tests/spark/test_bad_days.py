"""What a bad day brings to a query: odd records, topics that are made again, a checkpoint that is gone, workers without the package."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.exports import Lake, records
from oracle.segment_oracle import Row
from topicsd._native import frame

pytestmark = [pytest.mark.spark, pytest.mark.serial, pytest.mark.slow, pytest.mark.timeout(600)]
LAST_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z, the last time that Spark prints
KINDS = [
    "null", "true", "-0.0", "1e400", "18446744073709551616", '""', '"\\ud800"', "[]", '{"a" : {"b":[1.0]}, "a":2}', '"é\\u0000\U0001f600"',
    '"' + "x" * (8 << 20) + '"',
]  # fmt: skip


def entry(data: str, meta: str | None = None, tag: str | None = None) -> bytes:
    stored = None if meta is None else meta.encode()
    return frame.entry(frame.Record(data.encode(), stored, None if tag is None else tag.encode(), None, 0, 0))


def test_odd_records_arrive_as_they_are(spark: Any, lake: Lake) -> None:
    first = 2**53 - len(KINDS)
    lake.write("kinds", [Row(first + number, 5, entry(data)) for number, data in enumerate(KINDS)])
    metas = ['{"":"empty","a.b":"dot","`":"tick","é ":"space","a.b":"last"}', '{"lone\\ud800":"\\udfff"}', "{}"]
    lake.write("metas", [Row(number, 1000, entry("1", meta, "t\\ud83d")) for number, meta in enumerate(metas, 1)])
    lake.write("times", [Row(1, 0, entry("1")), Row(2, LAST_MS - 1, entry("2")), Row(3, LAST_MS, entry("3"))])
    for number in range(300):
        lake.write(f"tiny.{number}", records(1, 1))
    lake.export()
    whole = spark.read.format("topicsd").option("onCorrupt", "row").load(str(lake.to))
    found = {(row.topic, row.seq): row for row in whole.where("topic not like 'tiny.%'").collect()}
    assert [found["kinds", first + number].data for number in range(len(KINDS))] == KINDS
    assert found["metas", 1].meta == {"": "empty", "a.b": "last", "`": "tick", "é ": "space"}
    assert (found["metas", 2].meta, found["metas", 2].tag, found["metas", 3].meta) == ({"lone\ufffd": "\ufffd"}, "t\ufffd", {})
    assert whole.where("topic like 'tiny.%'").count() == 300
    bounded = spark.read.format("topicsd").options(topics="times", startingTimestamp=LAST_MS - 1, endingTimestamp=LAST_MS).load(str(lake.to))
    assert [(row.seq, row.ms) for row in bounded.selectExpr("seq", "unix_millis(ts) as ms").collect()] == [(2, LAST_MS - 1)]
    rows = spark.read.format("topicsd").options(topics="times").load(str(lake.to)).selectExpr("unix_millis(ts) as ms").collect()
    assert sorted(row.ms for row in rows) == [0, LAST_MS - 1, LAST_MS]


def stream(spark: Any, lake: Lake, folder: Path, **options: str) -> list[tuple[str, str, int]]:
    """Run the query until it has all that there is: kind, topic, seq of what it had."""
    out: list[tuple[str, str, int]] = []
    source = spark.readStream.format("topicsd").options(columns="topic,seq,_kind", **options).load(str(lake.to))
    writer = source.writeStream.foreachBatch(lambda frame, _id: out.extend((row._kind, row.topic, row.seq) for row in frame.collect()))
    assert writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start().awaitTermination(300)
    return sorted(out)


def test_a_topic_made_again_between_two_batches_and_a_checkpoint_that_is_gone_lose_nothing(spark: Any, lake: Lake, tmp_path: Path) -> None:
    lake.write("a", records(1, 5))
    lake.write("b", records(1, 2))
    lake.export()
    first = [("record", "a", seq) for seq in range(1, 6)] + [("record", "b", seq) for seq in (1, 2)]
    assert stream(spark, lake, tmp_path) == first
    lake.recreate("a")
    lake.write("a", records(1, 3))
    lake.export(prune=True)
    # Below the old one's offset, and none of it; a row says what nobody knows.
    assert stream(spark, lake, tmp_path) == [("gap", "a", 6), *(("record", "a", seq) for seq in (1, 2, 3))]
    shutil.rmtree(tmp_path / "checkpoint")
    assert stream(spark, lake, tmp_path) == [("record", "a", seq) for seq in (1, 2, 3)] + first[5:]  # from the beginning, not from the end


def test_a_worker_without_the_package_says_what_to_ship(spark: Any, lake: Lake, tmp_path: Path) -> None:
    import topicsd.spark

    lake.write("a", records(1, 5))
    lake.export()
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'topicsd':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path / "hide"}:$PYTHONPATH" exec {json.dumps(sys.executable)} "$@"\n')
    bare.chmod(0o755)
    context = spark.sparkContext
    own, context.pythonExec = context.pythonExec, str(bare)
    try:
        topicsd.spark.register(spark)
        with pytest.raises(Exception, match=r"has no package topicsd.*install the wheel.*venv-pack"):
            spark.read.format("topicsd").load(str(lake.to)).collect()
    finally:
        context.pythonExec = own
        topicsd.spark.register(spark)
    assert spark.read.format("topicsd").load(str(lake.to)).count() == 5
