"""A Python worker that lacks the package says what to ship; one that has it does what source.py does."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.exports import Lake, records

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

WORKER = """
import pickle, sys
hidden = sys.argv[2] == "hidden"
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "topicsd":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
if hidden:
    sys.meta_path.insert(0, Hide())
calls = pickle.loads(open(sys.argv[1], "rb").read())
for name, (target, method, arguments) in calls.items():
    try:
        out = getattr(target, method)(*arguments)
        if method == "read":
            out = sum(batch.num_rows for batch in out)
        print(name, out)
    except Exception as wrong:
        print(name, type(wrong).__name__, wrong)
"""


@pytest.mark.slow
def test_a_worker_without_the_package_says_what_to_ship(tmp_path: Path) -> None:
    from pyspark import cloudpickle

    import topicsd.spark
    from topicsd.spark import shipped

    class Session:
        class dataSource:
            registered: list[Any] = []  # noqa: RUF012

            @classmethod
            def register(cls, source: Any) -> None:
                cls.registered.append(source)

    topicsd.spark.register(Session)  # type: ignore[arg-type]
    assert Session.dataSource.registered == [shipped.TopicsDataSource]
    lake = Lake(tmp_path)
    lake.write("a", records(1, 100))
    lake.export()
    source = shipped.TopicsDataSource({"path": str(lake.to)})
    reader, stream = source.reader(None), source.streamReader(None)
    start, end = ({"a": {"epoch": f"{1:016x}", "next_seq": seq}} for seq in (1, 101))
    calls = {
        "schema": (source, "schema", ()),
        "reader": (source, "reader", (None,)),
        "read": (reader, "read", (reader.partitions()[0],)),
        "stream": (stream, "read", (stream.partitions(start, end)[0],)),
        "write": (shipped.BatchWriter(b""), "write", (iter(()),)),
        "streamed": (shipped.StreamWriter(b""), "write", (iter(()),)),
    }
    (tmp_path / "calls").write_bytes(cloudpickle.dumps(calls))
    told: dict[str, list[str]] = {}
    for mode in ("hidden", "there"):
        done = subprocess.run([sys.executable, "-c", WORKER, str(tmp_path / "calls"), mode], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        told[mode] = done.stdout.splitlines()
    for line, name in zip(told["hidden"], calls, strict=True):
        assert line.startswith(f"{name} ImportError this Python worker") and "install the wheel, topicsd[spark]" in line and "venv-pack" in line
    assert told["there"][2:4] == ["read 100", "stream 100"] and told["there"][0].startswith("schema `topic` string")


def test_no_reader_takes_filters() -> None:
    """Spark 4.2 would read one half of a union twice (docs/pipeline.md): a method of that name is what has it ask."""
    from pyspark.sql.datasource import DataSourceReader

    from topicsd.spark import shipped, source

    for reader in (source.BatchReader, shipped.BatchReader, type(shipped.TopicsDataSource({"path": "/nowhere"}).reader(None))):
        assert reader.pushFilters is DataSourceReader.pushFilters
