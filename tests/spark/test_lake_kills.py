"""Topics to a lake while drivers, executors and the writer are killed at random: nothing is lost, nothing doubled. `make crash` does more rounds."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fakes.cluster import Cluster
from fakes.server import Server, url
from topicsd.lake.server import Server as Client

TOPICSD = str(Path(sys.executable).with_name("topicsd"))
TOPICS = ("kill.a", "kill.b", "kill.c")
PATIENCE_S = 300
SUBMIT = "--driver-memory 512m --conf spark.executor.memory=512m --conf spark.ui.enabled=false --conf spark.task.maxFailures=8 pyspark-shell"
KINDS = ("driver", "writer", "executor")
EXECUTOR_KILLS = 3


class Producer(threading.Thread):
    """Writes numbered records until it is stopped, each batch under its key: what is not acked is sent again."""

    def __init__(self, server: Server, rng: random.Random) -> None:
        super().__init__()
        self._server, self._rng = server, rng
        self.counts = dict.fromkeys(TOPICS, 0)
        self.done = threading.Event()
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            with Client(url(self._server), retries=40) as client:
                while not self.done.wait(0.1):
                    topic = self._rng.choice(TOPICS)
                    first = self.counts[topic]
                    records = [{"data": {"n": n}} for n in range(first, first + self._rng.randrange(1, 60))]
                    client.append(topic, json.dumps({"idempotency_key": f"k{first}", "records": records}).encode())
                    self.counts[topic] += len(records)
        except BaseException as wrong:
            self.failed = wrong


def ingest(server: Server, export: Path | None, table: Path, *more: str, master: str = "") -> subprocess.Popen[str]:
    where = ["--path", str(export)] if export else ["--url", url(server)]
    how = ["--master", master] if master else ["--local"]
    command = [TOPICSD, "spark", "ingest", *how, *where, "--topics", "kill.*", "--table", str(table), *more]
    own = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_SUBMIT_ARGS": SUBMIT} if master else {}
    return subprocess.Popen(command, env=os.environ | own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def await_batches(job: subprocess.Popen[str], count: int) -> str:
    """Wait until it has committed so many more batches; what it said when it has ended before that."""
    assert job.stderr is not None
    told = ""
    for line in job.stderr:
        told += line
        count -= line.startswith('{"batch"')
        if count == 0:
            return ""
    return told or "ended without a word"


def export(server: Server, folder: Path) -> None:
    command = [TOPICSD, "export", "--to", str(folder), "--data-dir", str(server.directory / "data"), "--seal", "--url", url(server)]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)


def kill(what: str, server: Server, cluster: Cluster, job: subprocess.Popen[str]) -> int:
    """Kill one; how many."""
    if what == "executor":
        cluster.kill_executor()
        return 1
    if what == "driver":
        alive = job.poll() is None
        job.kill()
        return alive
    found = server.children("writer")[-1:]
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return len(found)


def rounds(count: int, folder: Path, seed: int) -> None:
    rng, table, target = random.Random(seed), folder / "table", folder / "export"
    (folder / "server").mkdir()
    kills = dict.fromkeys(KINDS, 0)
    with Server(folder / "server") as server, Cluster(folder) as cluster:
        server.ready()
        producer = Producer(server, rng)
        producer.start()
        done, turns = 0, iter(KINDS)
        while done < count:
            what = next(turns, None) or rng.choices(KINDS, (4, 4, 1))[0]
            from_export = what == "writer" and rng.random() < 0.5
            if from_export:
                server.until(lambda: server.ask("GET", "/v0/ready")[0] == 200)
                export(server, target)
            # Where the driver or an executor is to be killed the job has no end of its own: the producer goes on.
            ends = ["--available-now"] if what == "writer" else ["--interval-ms", "50"]
            limit = str(rng.randrange(20, 400) if what == "driver" else rng.randrange(1000, 5000))  # the others must come to the end
            master = cluster.master if what == "executor" else ""
            job = ingest(server, target if from_export else None, table, "--max-records-per-trigger", limit, *ends, master=master)
            # A driver in the JVM takes longest to start: it lives for some kills.
            for _ in range(min(EXECUTOR_KILLS, count - done) if what == "executor" else 1):
                ended = await_batches(job, 1)  # the next one is on its way
                assert not ended or what == "writer", ended
                time.sleep(rng.random() * 0.5)  # anywhere in it; nothing depends on where
                kills[what] += kill(what, server, cluster, job)
                done += 1
            if what == "executor":
                ended = await_batches(job, 2)  # it goes on with another one
                assert not ended, ended
                job.terminate()
            _, told = job.communicate(timeout=PATIENCE_S)
            assert job.returncode == (-signal.SIGKILL if what == "driver" else 0), told
        producer.done.set()
        producer.join(PATIENCE_S)
        assert producer.failed is None, producer.failed
        last = ingest(server, None, table, "--available-now")
        assert last.wait(PATIENCE_S) == 0, last.stderr
        last.communicate()
        export(server, target)
        audited = subprocess.run(
            [TOPICSD, "spark", "audit", "--table", str(table), "--path", str(target), "--url", url(server), "--topics", "kill.*"],
            capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        lines: list[dict[str, Any]] = [json.loads(line) for line in audited.stdout.splitlines()]
        assert audited.returncode == 0, (lines, audited.stderr)
        assert all(line["source"] == line["lake"] for line in lines[:-1]) and lines[-1]["records"] == 2 * sum(producer.counts.values())
        assert all(kills.values()), kills


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_five_rounds_of_kills_lose_and_double_nothing(java: None, tmp_path: Path) -> None:
    rounds(5, tmp_path, seed=8)


@pytest.mark.crash
@pytest.mark.timeout(3600)
def test_a_hundred_rounds_of_kills_lose_and_double_nothing(java: None, tmp_path: Path) -> None:
    rounds(100, tmp_path, seed=time.time_ns())
