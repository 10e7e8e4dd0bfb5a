"""A server with a cold tier: old segments move there, readers and streams get them back; a tier that hangs costs 503 for what stands there alone."""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.client import at, insist, read_all, write_body
from e2e.server import Server, as_json, eventually

SEGMENT = 200


def fill(line: Any, batches: int) -> None:
    for n in range(batches):
        insist(line, "POST", at("t"), write_body([b'"%s"' % (b"x" * 4500)] * 100, f"key-{n}"))


def metric(line: Any, name: str) -> int:
    text = insist(line, "GET", "/v0/metrics")[0].body.decode()
    return next((int(row.split()[1]) for row in text.splitlines() if row.startswith(name + " ")), 0)


def diff(line: Any, from_seq: int, **members: Any) -> Any:
    return line.call("POST", at("t") + "/diff", as_json({"from_seq": from_seq, **members}))


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_old_segments_are_read_from_the_cold_tier_and_a_tier_that_hangs_costs_only_them(launch: Callable[..., Server], tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    server = launch(
        workers=2, TOPICS_COLD_DIR=str(tier), TOPICS_HOT_RETAIN_SEGMENTS=1, TOPICS_SEGMENT_MAX_EVENTS=SEGMENT, TOPICS_LOG_FILE_BYTES=1 << 20,
        TOPICS_CHECKPOINT_BYTES=1 << 20, TOPICS_CHECKPOINT_MS=300, TOPICS_COLD_WAIT_MS=30_000,
    )  # fmt: skip
    with server.line() as line:
        insist(line, "PUT", at("t"), as_json({"durability": "fsync"}))
        fill(line, 12)
        before = read_all(line, "t")
        insist(line, "POST", at("t") + "/seal", b"")
        assert eventually(lambda: metric(line, "topics_cold_segments_moved_total") >= 3, 60.0), "nothing has moved"
        hot = server.data / "topics"
        assert eventually(lambda: fill_one(line) or len(list(hot.rglob("*.data"))) < len(list(hot.rglob("*.idx"))), 60.0), "the hot copies were kept"
        assert read_all(line, "t")[0][: len(before[0])] == before[0]
        assert metric(line, "topics_cold_reads_total") > 0
    server.kill()
    objects = sorted(tier.rglob("*.data"))
    aside = [path.read_bytes() for path in objects]
    for path in objects:
        path.unlink()
        os.mkfifo(path)  # whoever opens it hangs
    server.env["TOPICS_COLD_WAIT_MS"] = "300"
    server.start()
    with server.line() as line:
        answer = diff(line, 0)
        assert (answer.status, answer.code) == (503, "cold_unavailable"), answer
        assert int(answer.headers["retry-after"]) >= 1
        head = insist(line, "GET", at("t"))[0].json["head_seq"]
        for n in range(20):
            assert diff(line, 0).status == 503
            insist(line, "POST", at("t"), write_body([b"1"], f"hot-{n}"))
            hot = diff(line, head + n).json
            assert [record["$seq"] for record in hot["records"]] == [head + n + 1]
    for path, raw in zip(objects, aside, strict=True):
        path.unlink()  # what hangs there is never answered
        path.write_bytes(raw)
    with server.line() as line:
        assert eventually(lambda: diff(line, 0).status == 200, 60.0), "threads that hang hold an object for good"
    server.stop()
    server.env["TOPICS_COLD_WAIT_MS"] = "30000"
    server.start()
    with server.line() as line:
        assert read_all(line, "t")[0][: len(before[0])] == before[0]


def fill_one(line: Any) -> None:
    """Write a little: a checkpoint is due only where something has changed."""
    insist(line, "POST", at("t"), write_body([b'"%s"' % (b"y" * 4500)] * 20, f"more-{time.monotonic_ns()}"))


def shown(server: Any, name: str) -> int:
    host, port = server.address
    text = urllib.request.urlopen(f"http://{host}:{port}/v0/metrics", timeout=60).read().decode()
    return next(int(row.split()[1]) for row in text.splitlines() if row.startswith(name + " "))


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_stream_goes_on_through_the_cold_tier_and_one_that_hangs_ends_with_503(tmp_path: Path) -> None:
    from fakes.server import Server as PlainServer
    from fakes.streams import Stream, watch

    tier = tmp_path / "tier"
    settings = {"TOPICS_COLD_DIR": str(tier), "TOPICS_HOT_RETAIN_SEGMENTS": 0, "TOPICS_COLD_WAIT_MS": 30_000}
    with PlainServer(tmp_path, **settings) as server:
        server.ready()
        for n in range(10):
            server.ask("POST", "/v0/topics/t", {"records": [{"data": "x" * 4000} for _ in range(100)], "idempotency_key": f"k{n}"})
        server.ask("POST", "/v0/topics/t/seal", {})
        server.ask("POST", "/v0/topics/hot", {"records": [{"data": 0}]})
        assert eventually(lambda: any(path.stat().st_size for path in tier.rglob("*.data")), 60.0), "nothing has moved"
        assert eventually(lambda: shown(server, "topics_cold_segments_moved_total") == 1, 60.0), "the row does not lead there"
        with Stream(server, watch(server, {"t": {"from_seq": 0}})) as stream:
            assert stream.seqs(1000) == [*range(1, 1001)]
        for path in tier.rglob("*.data"):
            path.rename(path.with_suffix(".aside"))
            os.mkfifo(path)
        assert shown(server, "topics_cold_reads_total") >= 1
    with PlainServer(tmp_path, **settings | {"TOPICS_COLD_WAIT_MS": 300}) as server:
        server.ready()
        with Stream(server, watch(server, {"t": {"from_seq": 0}, "hot": {"from_seq": 0}})) as stream:
            assert stream.next("record")[1]["topic"] == "hot"
            assert "cold_unavailable" in stream.next("error")[1]["error"]
