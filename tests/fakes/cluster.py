"""A standalone Spark cluster of processes of its own: one master, some workers. For tests and ci/pipeline.py."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_S = 120.0


class Cluster:
    """Processes on 127.0.0.1; all of them end with it."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        import pyspark

        self._home = Path(pyspark.__file__).parent
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._wanted = workers
        self.master = ""

    def __enter__(self) -> Cluster:
        try:
            self._start("master", "Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            self.master = self._line("master", r"Starting Spark master at (spark://[\d.:]+)")
            for number in range(self._wanted):
                name = f"worker{number}"
                options = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
                self._start(name, "Worker", *options, "--work-dir", str(self._directory / name), self.master)
            for number in range(self._wanted):
                self._line(f"worker{number}", r"(Successfully registered with master)")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait(PATIENCE_S)

    def _start(self, name: str, what: str, *arguments: str) -> None:
        # Executors must import what the driver does: the same Python, and nothing of the caller's Spark settings.
        env = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
        env |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m", "SPARK_HOME": str(self._home), "PYSPARK_PYTHON": sys.executable}
        with (self._directory / f"{name}.log").open("wb") as log:
            command = [str(self._home / "bin" / "spark-class"), f"org.apache.spark.deploy.{what.lower()}.{what}", *arguments]
            self._processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True))

    def _line(self, name: str, pattern: str) -> str:
        deadline = time.monotonic() + PATIENCE_S
        path = self._directory / f"{name}.log"
        while True:
            found = re.search(pattern, path.read_text(errors="replace"))
            if found:
                return found[1]
            assert time.monotonic() < deadline and all(process.poll() is None for process in self._processes), path.read_text(errors="replace")[
                -3000:
            ]
            time.sleep(0.05)

    def executors(self) -> list[int]:
        """The process ids of the executors, which are children of the workers."""
        out = []
        for process in self._processes[1:]:
            for stat in Path("/proc").glob("[0-9]*/stat"):
                with contextlib.suppress(OSError):
                    group = int(stat.read_text().rpartition(")")[2].split()[2])
                    if group == process.pid and b"CoarseGrainedExecutorBackend" in (stat.parent / "cmdline").read_bytes():
                        out.append(int(stat.parent.name))
        return sorted(out)

    def kill_executor(self) -> int:
        """Kill one executor; its worker starts another."""
        found = self.executors()
        os.kill(found[0], signal.SIGKILL)
        return found[0]

    def kill_worker(self) -> None:
        """Kill the last worker and what runs on it."""
        os.killpg(self._processes[-1].pid, signal.SIGKILL)
