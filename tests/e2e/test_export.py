"""Exports of a server that works meanwhile: killed exports, a killed writer, and in the end exactly the records that the server has."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import topicsd
from e2e.client import at, insist, read_all, write_body
from e2e.server import Server, as_json

pytest.importorskip("pyarrow")
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
TOPICS = ("flights", "quakes.eu", "quakes.us")

SETTINGS = {  # seal, take snapshots and let go of the log all the time
    "TOPICS_SEGMENT_MAX_AGE_MS": 300,
    "TOPICS_SEGMENT_MAX_EVENTS": 400,
    "TOPICS_CHECKPOINT_BYTES": 1 << 20,
    "TOPICS_CHECKPOINT_MS": 500,
    "TOPICS_LOG_FILE_BYTES": 1 << 20,
}


def command(server: Server, to: Path, *rest: str) -> list[str]:
    return [sys.executable, "-m", "topicsd.cli.main", "export", "--to", str(to), "--data-dir", str(server.data), *rest]


def test_killed_exports_of_a_server_whose_writer_is_killed_end_with_exactly_its_records(launch: Callable[..., Server], tmp_path: Path) -> None:
    server, to = launch(workers=1, **SETTINGS), tmp_path / "export"
    stop = threading.Event()
    written = dict.fromkeys(TOPICS, 0)

    def write() -> None:
        with server.line() as line:
            while not stop.is_set() or min(written.values()) < 20:
                for topic in TOPICS:
                    number = written[topic]
                    datas = [json.dumps({"n": number * 20 + k, "text": "x" * 200}).encode() for k in range(20)]
                    tags = [f"t{k % 4}" for k in range(20)]
                    insist(line, "POST", at(topic), write_body(datas, f"{topic}-{number}", tags))
                    written[topic] += 1
                    if number % 5 == 4:
                        insist(line, "POST", at(topic) + "/seal", b"")

    writer = threading.Thread(target=write)
    writer.start()
    rng = random.Random(7)
    try:
        for turn in range(5):
            with subprocess.Popen(command(server, to, "--follow", "--interval-ms", "20"), stdout=subprocess.PIPE) as exporting:
                assert exporting.stdout is not None and exporting.stdout.readline()
                time.sleep(rng.random() / 2)
                exporting.kill()
            if turn in (1, 3):
                pid = server.settled_roles().writer
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
    finally:
        stop.set()
        writer.join()

    with server.line() as line:
        body = as_json({"match": ["tag", "Eq", "t1"]})
        answer, _ = insist(line, "POST", at("flights", "delete"), body)
        assert answer.json["deleted"] == written["flights"] * 5
        sealing = ["--seal", "--url", "http://{}:{}".format(*server.address)]
        subprocess.run(command(server, to, *sealing), check=True, stdout=subprocess.DEVNULL)
        for topic in TOPICS:
            shown = [(record.seq, record.data) for record in read_all(line, topic)[0]]
            rows = topicsd.scan(to, ["seq", "data", "_kind"], [topic]).read_all().to_pylist()
            found = [(row["seq"], row["data"]) for row in rows if row["_kind"] == "record"]
            assert found == [(seq, data.decode()) for seq, data in shown]
            assert len(found) == written[topic] * (15 if topic == "flights" else 20)
