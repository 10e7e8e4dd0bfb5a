"""A backup that is made while a server writes, seals and takes snapshots: what was acked before it began is in what is restored of it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.client import at, insist, read_all, write_body
from e2e.server import Server, as_json


def topicsd(*words: object) -> str:
    done = subprocess.run([sys.executable, "-m", "topicsd.cli.main", *map(str, words)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_backup_of_a_server_at_work_holds_what_was_acked_before(launch: Callable[..., Server], tmp_path: Path) -> None:
    server = launch(TOPICS_LOG_FILE_BYTES=1 << 20, TOPICS_CHECKPOINT_BYTES=1 << 20, TOPICS_CHECKPOINT_MS=100, TOPICS_SEGMENT_MAX_EVENTS=200)
    stop, wrote = threading.Event(), threading.Semaphore(0)

    def write() -> None:
        with server.line() as line:
            n = 0
            while not stop.is_set():
                insist(line, "POST", at("t"), write_body([b'"%d %s"' % (n, b"x" * 900)] * 50, f"key-{n}"))
                n += 1
                wrote.release()

    with server.line() as line:
        insist(line, "PUT", at("t"), as_json({"durability": "fsync"}))
    writer = threading.Thread(target=write)
    writer.start()
    heads = []
    try:
        for _ in range(2):
            for _ in range(30):
                assert wrote.acquire(timeout=60)
            with server.line() as line:
                heads.append(insist(line, "GET", at("t"))[0].json["head_seq"])
            assert "backup" in topicsd("backup", tmp_path / "shelf", "--data-dir", server.data)
    finally:
        stop.set()
        writer.join(60)
    with server.line() as line:
        whole = read_all(line, "t")[0]
    assert server.stop() == 0
    for number, head in enumerate(heads, 1):
        target = tmp_path / f"restored-{number}"
        topicsd("restore", tmp_path / "shelf", target, "--number", number)
        server.data_dir = target
        server.start()
        with server.line() as line:
            restored = read_all(line, "t")[0]
        assert head <= len(restored) <= len(whole)
        assert restored == whole[: len(restored)]
        assert server.stop() == 0
