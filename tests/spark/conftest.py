"""One Spark session for all tests of this folder: starting one takes longer than any of them."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.exports import Lake
from fakes.server import Server


@pytest.fixture(scope="session")
def java() -> None:
    """PySpark and a Java of which JAVA_HOME tells, where it is not on the PATH."""
    pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed: ci/ensure-java brings it")
    if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        own = Path(sys.prefix) / "java"  # ci/ensure-java makes it
        if not own.is_dir():
            pytest.skip("no Java: ci/ensure-java brings one")
        os.environ["JAVA_HOME"] = str(own)


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[Any]:
    from pyspark import sql

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    import topicsd.spark

    builder = sql.SparkSession.builder.master("local[1]").appName("topicsd tests")
    chosen = {
        "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "640m",
        "spark.sql.shuffle.partitions": "1", "spark.sql.session.timeZone": "America/New_York", "spark.task.maxFailures": "1",
        "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    }  # fmt: skip
    for name, value in chosen.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    topicsd.spark.register(session)
    yield session
    session.stop()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that all tests share: each uses topics of its own."""
    with Server(tmp_path_factory.mktemp("server")) as running:
        yield running.ready()
