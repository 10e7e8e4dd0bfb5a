"""A server that seals on request: records move from the log into segments and stay what they were, over every end of the server."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from e2e.client import at, insist, read_all, write_body
from e2e.server import Server, as_json, eventually


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_topic_is_sealed_on_request_and_reads_the_same(launch: Callable[..., Server]) -> None:
    server = launch(workers=2, TOPICS_LOG_FILE_BYTES=1 << 20, TOPICS_CHECKPOINT_BYTES=1 << 20, TOPICS_CHECKPOINT_MS=300)
    with server.line() as line:
        insist(line, "PUT", at("t"), as_json({"durability": "fsync"}))
        for n in range(40):
            insist(line, "POST", at("t"), write_body([b'"%s"' % (b"x" * 4500)] * 100, f"key-{n}"))
        before = read_all(line, "t")
        body: dict[str, Any] = insist(line, "POST", at("t") + "/seal", b"")[0].json
        assert (body["sealed"], body["sealed_seq"], body["head_seq"]) == (True, 4000, 4000)
        assert read_all(line, "t") == before
        again = insist(line, "POST", at("t"), write_body([b'"%s"' % (b"x" * 4500)] * 100, "key-7"))[0].json
        assert (again["deduped"], again["first_seq"]) == (True, 701)
    assert list(server.data.glob("topics/*/*/*.data"))
    oldest = server.data / "log" / "shard-00" / f"{0:020d}.log"
    assert eventually(lambda: not oldest.exists(), 30.0), "the log was kept"
    for end in ("writer", "server", "stop"):
        if end == "writer":
            writer = server.settled_roles().writer
            assert writer
            os.kill(writer, signal.SIGKILL)
            assert eventually(lambda writer=writer: server.roles().writer not in (None, writer) and server.is_ready())
        else:
            assert end == "server" or server.stop() == 0
            server.kill()
            server.start()
        with server.line() as line:
            assert read_all(line, "t") == before
    with server.line() as line:
        insist(line, "DELETE", at("t"))
    assert eventually(lambda: not list(server.data.glob("topics/*/*/*.data")), 30.0), "the segments were kept"


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_segment_that_a_delete_clears_between_two_others_is_dropped_without_any_rewriting(launch: Callable[..., Server]) -> None:
    server = launch(workers=2, TOPICS_LOG_FILE_BYTES=1 << 20, TOPICS_CHECKPOINT_BYTES=1 << 20, TOPICS_CHECKPOINT_MS=300, TOPICS_SEGMENT_REWRITE=0)
    with server.line() as line:
        for tag in ("keep", "go", "keep"):
            for _ in range(5):
                records = [{"data": "x" * 2000, "tag": tag}] * 100
                insist(line, "POST", at("t"), as_json({"records": records}))
            insist(line, "POST", at("t") + "/seal", b"")
        assert insist(line, "POST", at("t") + "/delete", as_json({"match": ["tag", "Eq", "go"]}))[0].json["deleted"] == 500
        before = read_all(line, "t")
        assert len(before[0]) == 1000 and before[1] == []
        (dead,) = server.data.glob(f"topics/*/*/{501:020d}.data")

        def gone() -> bool:
            insist(line, "POST", at("other"), as_json({"records": [{"data": "y" * 2000}] * 100}))
            return not dead.exists()

        assert eventually(gone, 60.0), "the dead segment was kept"
        assert read_all(line, "t") == before
    assert [path.name for path in sorted(server.data.glob("topics/*/*/*.data"))][:2] == [f"{1:020d}.data", f"{1001:020d}.data"]
    server.kill()
    server.start()
    with server.line() as line:
        assert read_all(line, "t") == before
        assert not insist(line, "GET", "/v0/ready")[0].json.get("degraded", False)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_keeper_finds_a_flipped_bit_and_the_server_says_that_it_is_degraded(launch: Callable[..., Server]) -> None:
    server = launch(TOPICS_SCRUB_BYTES_PER_SECOND=1 << 30)
    with server.line() as line:
        insist(line, "POST", at("t"), write_body([b'"%s"' % (b"x" * 4500)] * 100, "k"))
        insist(line, "POST", at("t") + "/seal", b"")
    (data,) = server.data.glob("topics/*/*/*.data")
    assert server.stop() == 0
    raw = bytearray(data.read_bytes())
    raw[5000] ^= 1
    data.write_bytes(raw)
    server.start()

    def told() -> bool:
        with server.line() as line:
            ready = insist(line, "GET", "/v0/ready")[0].json
            return ready.get("degraded", False) and "scrub" in ready["reasons"][0]

    assert eventually(told, 30.0), "the scrub has found nothing"
    with server.line() as line:
        metrics = insist(line, "GET", "/v0/metrics")[0].body.decode()
    assert "topics_scrub_problems_total 1\n" in metrics


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_read_that_meets_damage_is_seen_in_readiness_at_once_and_counts_leave_it_out(launch: Callable[..., Server]) -> None:
    server = launch(workers=2, TOPICS_SCRUB_BYTES_PER_SECOND=1)  # the first pass never comes to it
    with server.line() as line:
        for key in ("a", "b"):
            insist(line, "POST", at(key), write_body([b'"%s"' % (b"x" * 4500)] * 100, "k"))
            insist(line, "POST", at(key) + "/seal", b"")
    damaged, whole = sorted(server.data.glob("topics/*/*/*.data"))
    with damaged.open("r+b") as file:
        file.seek(50_000)
        file.write(b"?")
    index = whole.with_suffix(".idx")
    with server.line() as line:
        page: dict[str, Any] = insist(line, "POST", at("a", "diff"), as_json({"from_seq": 0}))[0].json
        ready: dict[str, Any] = insist(line, "GET", "/v0/ready")[0].json
        assert ready["degraded"] and any("damage" in reason for reason in ready["reasons"])
        assert "topics_degraded 1\n" in insist(line, "GET", "/v0/metrics")[0].body.decode()
        lost = page["head_seq"] - len(read_all(line, "a")[0])
    assert 0 < lost < 100

    def counted() -> bool:
        with server.line() as line:
            return bool(insist(line, "GET", at("a"))[0].json["count"] == 100 - lost)

    assert eventually(counted, 30.0), "lost records are counted as live"
    assert server.stop() == 0
    index.unlink()
    server.start()

    with server.line() as line:  # whoever reads goes by the data at once; the keeper makes the file again
        assert len(read_all(line, "b")[0]) == 100 and insist(line, "GET", at("b"))[0].json["count"] == 100
    assert eventually(lambda: len(list(whole.parent.glob("*.1.idx"))) == 1, 30.0), "the index was not made again on the disk"
    with server.line() as line:
        assert len(read_all(line, "b")[0]) == 100 and insist(line, "GET", at("b"))[0].json["count"] == 100
