"""A Spark Connect server of its own process, on a free port of this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_S = 180.0


class ConnectServer:
    """Its session is what its clients share; `url` is where they go. It lives in another time zone than the tests do."""

    def __init__(self, directory: Path, **conf: str) -> None:
        import pyspark

        self._home, self._log = Path(pyspark.__file__).parent, directory / "connect.log"
        self._conf = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.sql.shuffle.partitions": "1",
            "spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": "0", "spark.task.maxFailures": "1",
            "spark.sql.session.timeZone": "Asia/Kathmandu",
        } | conf  # fmt: skip
        self.url = ""

    def __enter__(self) -> ConnectServer:
        env = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
        env |= {"TZ": "Asia/Kathmandu", "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(self._home), "PYSPARK_PYTHON": sys.executable}
        settings = [part for name, value in self._conf.items() for part in ("--conf", f"{name}={value}")]
        command = [str(self._home / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "640m", *settings]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            self.url = f"sc://127.0.0.1:{self._port()}"
        except BaseException:
            self.__exit__()
            raise
        return self

    def _port(self) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            told = self._log.read_text(errors="replace")
            if found := re.search(r"Connect server started at: \S+:(\d+)", told):
                return found[1]
            assert time.monotonic() < deadline and self._process.poll() is None, told[-3000:]
            time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE_S)
