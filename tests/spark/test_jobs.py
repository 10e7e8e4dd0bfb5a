"""`topicsd spark ingest | audit | replay` as their users run them: killed, gone on with, and audited against the export and the server."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.server import Server, url

pytestmark = [pytest.mark.spark, pytest.mark.serial, pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(900)]
TOPICSD = str(Path(sys.executable).with_name("topicsd"))
PATIENCE_S = 600


def run(*arguments: object, fails: int = 0) -> list[dict[str, Any]]:
    done = subprocess.run([TOPICSD, *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == fails, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_topics_go_to_a_lake_and_back_with_a_driver_killed_on_the_way(java: None, server: Server, tmp_path: Path) -> None:
    export, table, checkpoint = tmp_path / "export", tmp_path / "table", tmp_path / "checkpoint"
    for topic, count in (("job.a", 4000), ("job.b", 300)):
        for first in range(0, count, 1000):
            records = [{"data": {"n": n}, "tag": f"t{n % 3}"} for n in range(first, min(first + 1000, count))]
            assert server.ask("POST", f"/v0/topics/{topic}", {"records": records})[0] < 300
    run("export", "--to", export, "--data-dir", server.directory / "data", "--topics", "job.*", "--seal", "--url", url(server))
    ingest = ["spark", "ingest", "--path", export, "--table", table, "--checkpoint", checkpoint, "--json-schema", "infer", "--available-now"]
    slowly = [TOPICSD, *map(str, ingest), "--max-records-per-trigger", "50", "--local"]  # 86 commits: it is killed long before the last
    ingest += ["--master", "local[2]"]
    with subprocess.Popen(slowly, stderr=subprocess.PIPE, text=True, start_new_session=True) as killed:
        assert killed.stderr is not None
        first = next(line for line in killed.stderr if line.startswith('{"batch"'))
        assert json.loads(first)["records"] == 50
        os.killpg(killed.pid, signal.SIGKILL)
    assert run("spark", "audit", "--table", table, "--path", export, fails=1)[-1]["clean"] is False
    (checkpoint / "ingest.json").unlink()  # and the checkpoint is lost
    assert run(*ingest)[-1]["records"] <= 4250
    verdict = run("spark", "audit", "--table", table, "--path", export, "--url", url(server), "--topics", "job.*")[-1]
    assert verdict["clean"] and verdict["records"] == 2 * 4300
    replay = ["spark", "replay", "--table", table, "--url", url(server), "--topics", "job.a", "--to", "back.*", "--master", "local[2]"]
    assert run(*replay)[-1]["to"] == "back.*"
    state = server.ask("GET", "/v0/topics/back.job.a")[1]
    assert (state["count"], state["head_seq"]) == (4000, 4000)


def test_an_iceberg_table_is_filled_by_a_killed_job_and_its_successor_joined_audited_and_written_back(
    spark: Any, server: Server, tmp_path: Path
) -> None:
    from topicsd.spark import replay
    from topicsd.spark.lakes import Lake

    export, table = tmp_path / "export", tmp_path / "ice"
    for first in range(0, 1200, 400):
        records = [{"data": {"n": n} if n % 100 else "odd", "tag": f"t{n % 3}"} for n in range(first, first + 400)]
        assert server.ask("POST", "/v0/topics/ice.a", {"records": records})[0] < 300
    run("export", "--to", export, "--data-dir", server.directory / "data", "--topics", "ice.*", "--seal", "--url", url(server))
    (tmp_path / "schema.json").write_text('{"n": "bigint"}')
    catalog = f"sqlite:///{tmp_path / 'catalog.db'}"
    named = ["--table", table, "--format", "iceberg", "--catalog", catalog]
    ingest = ["spark", "ingest", "--path", export, *named, "--json-schema", tmp_path / "schema.json", "--available-now", "--local"]
    slowly = [TOPICSD, *map(str, ingest), "--max-records-per-trigger", "50"]
    with subprocess.Popen(slowly, stderr=subprocess.PIPE, text=True, start_new_session=True) as killed:
        assert killed.stderr is not None
        next(line for line in killed.stderr if line.startswith('{"batch":2'.replace(":", ": ")))
        os.killpg(killed.pid, signal.SIGKILL)
    assert run("spark", "audit", *named, "--path", export, fails=1)[-1]["clean"] is False
    assert run(*ingest)[-1]["records"] < 1188
    joined = run("spark", "compact", *named, "--vacuum-hours", "1")[-1]
    assert joined["files_removed"] >= 3 > joined["files_added"]
    verdict = run("spark", "audit", *named, "--path", export, "--url", url(server), "--topics", "ice.*")
    assert verdict[-1]["clean"] and verdict[-1]["records"] == 2 * 1200 and {line.get("quarantined") for line in verdict[:-1]} == {12}
    lake = Lake(table, "iceberg", catalog)
    frame = replay.frame(spark, lake, topics=["ice.a"], since=None, until=None, to="again.*")
    for _ in range(2):  # repeated, it writes nothing twice
        writer = frame.write.format("topicsd").options(url=url(server), writeId=replay.write_id(lake, topics=["ice.a"]))
        writer.mode("append").save()
    assert server.ask("GET", "/v0/topics/again.ice.a")[1]["count"] == 1188
    rows = spark.read.parquet(*lake.table().files())
    assert rows.where("payload.n % 2 = 0").count() == 588  # Spark reads its files


def test_what_can_not_run_says_why_in_one_line(tmp_path: Path) -> None:
    for command, words in (
        (["audit", "--table", tmp_path / "none", "--path", tmp_path], "no table"),
        (["audit", "--table", tmp_path], "name an export"),
        (["compact", "--table", tmp_path], "no table"),
    ):
        done = subprocess.run([TOPICSD, "spark", *map(str, command)], capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1
