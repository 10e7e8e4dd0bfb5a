"""Queues over HTTP where the conformance suite does not look: waiting claims, cohorts that someone leaves, streams, redrive, WebSocket, metrics."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from e2e.client import at, insist
from e2e.server import Server, as_json, eventually

pytestmark = [pytest.mark.e2e]


@pytest.fixture(params=["native", "falcon"])
def server(launch: Callable[..., Server], request: pytest.FixtureRequest) -> Server:
    return launch(workers=2, TOPICS_FRONT=request.param)


def post(server: Server, path: str, **body: Any) -> Any:
    answer = server.call("POST", path, as_json(body))
    assert answer.status in (200, 201), f"{path} {body}: {answer}"
    return answer.json


def make(server: Server, queue: str, jobs: int = 0, **config: Any) -> None:
    assert server.call("PUT", at(queue), as_json({"type": "queue", **config})).status == 201
    if jobs:
        post(server, at(queue), records=[{"data": n} for n in range(1, jobs + 1)])


def claim(server: Server, queue: str, node: str = "w", **members: Any) -> list[dict[str, Any]]:
    return list(post(server, at(queue, "claim"), node=node, **members)["claimed"])


def counters(server: Server, queue: str) -> dict[str, int]:
    return dict(server.call("GET", at(queue)).json["queue"])


def waits(server: Server) -> int:
    """Return how many claims wait for jobs."""
    return int(server.metrics()["topics_http_long_polls"])


def open_stream(server: Server, queue: str, query: str) -> socket.socket:
    line = socket.create_connection(server.address, 20.0)
    line.sendall(f"GET {at(queue, 'work')}?{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return line


def test_a_waiting_claim_is_answered_by_the_next_job_and_each_job_wakes_one(server: Server) -> None:
    make(server, "q")
    got: list[tuple[float, list[int]]] = []

    def wait(node: str) -> None:
        jobs = claim(server, "q", node, max=5, wait_ms=15_000)
        got.append((time.monotonic(), [job["$seq"] for job in jobs]))

    waiting = [threading.Thread(target=wait, args=(f"w{n}",)) for n in range(6)]
    for thread in waiting:
        thread.start()
    assert eventually(lambda: waits(server) == 6)
    begun = time.monotonic()
    for number in range(6):
        post(server, at("q"), records=[{"data": number}])
        assert eventually(lambda: len(got) == number + 1, 5.0)  # noqa: B023
    for thread in waiting:
        thread.join()
    assert sorted(seq for _, seqs in got for seq in seqs) == [1, 2, 3, 4, 5, 6]
    assert all(len(seqs) == 1 for _, seqs in got)
    assert time.monotonic() - begun < 10.0


def test_a_waiting_claim_ends_with_its_time_and_with_its_queue(server: Server) -> None:
    make(server, "q")
    begun = time.monotonic()
    assert claim(server, "q", wait_ms=300) == []
    assert 0.25 < time.monotonic() - begun < 5.0
    told: list[int] = []
    waiting = threading.Thread(target=lambda: told.append(server.call("POST", at("q", "claim"), as_json({"node": "w", "wait_ms": 20_000})).status))
    waiting.start()
    assert eventually(lambda: waits(server) == 1)
    server.call("DELETE", at("q"))
    waiting.join(10.0)
    assert told == [404]


def test_a_waiting_claim_gets_a_job_whose_lease_lapses(server: Server) -> None:
    make(server, "q", 1)
    claim(server, "q", lease_ms=400)
    [job] = claim(server, "q", "other", wait_ms=10_000)
    assert job["deliveries"] == 2


def test_who_leaves_a_cohort_leaves_its_share_to_the_others(server: Server) -> None:
    make(server, "q", 20, claim_jitter_ms=2_000)
    body = as_json({"node": "leaver", "max": 20})
    leaver = socket.create_connection(server.address, 10.0)
    leaver.sendall(
        f"POST {at('q', 'claim')} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )
    assert eventually(lambda: server.metrics()["topics_http_requests_in_flight"] == 2)  # that one and this one
    leaver.close()
    assert len(claim(server, "q", "stayer", max=20)) == 20
    assert counters(server, "q") == {"ready": 0, "in_flight": 20, "dead_lettered": 0}


def test_a_stream_and_a_claim_of_one_cohort_share_the_jobs(server: Server) -> None:
    make(server, "q", claim_jitter_ms=500)
    with open_stream(server, "q", "node=s&max=5") as line:
        line.settimeout(10.0)
        assert b"retry: 2000" in line.recv(4096)
        post(server, at("q"), records=[{"data": n} for n in range(10)])
        jobs = claim(server, "q", "poller", max=5)
        text = b""
        while text.count(b"event: job") < 5:
            text += line.recv(65536)
        assert len(jobs) == 5


def test_redrive_over_http(server: Server) -> None:
    make(server, "q", 2, max_deliveries=1, dead_letter="dead")
    for job in claim(server, "q", max=2):
        post(server, at("q", "nack"), node="w", seqs=[job["$seq"]])
    assert claim(server, "q", max=2) == []
    assert counters(server, "q") == {"ready": 0, "in_flight": 0, "dead_lettered": 2}
    assert server.call("POST", at("dead", "redrive"), b"{}").status == 409
    assert post(server, at("q", "redrive"), limit=1) | {"performance": 0} == {"topic": "q", "redriven": 1, "more": True, "performance": 0}
    assert server.call("POST", at("q", "redrive")).json["redriven"] == 1
    assert [job["data"] for job in claim(server, "q", max=5)] == [1, 2]


def test_a_bad_redrive_is_refused(server: Server) -> None:
    make(server, "q", 1)
    assert server.call("POST", at("q", "redrive")).status == 400, "it has no dead-letter topic"
    assert server.call("POST", at("none", "redrive")).status == 404
    make(server, "r", 1, dead_letter="dead")
    for body in ({"limit": 0}, {"match": ["tag"]}, {"limit": "1"}):
        assert server.call("POST", at("r", "redrive"), as_json(body)).status == 400, body


def test_the_metrics_count_leases_and_jobs(server: Server) -> None:
    make(server, "q", 5)
    claim(server, "q", max=3)
    shown = server.metrics()
    assert shown["topics_queue_topics"] == 1
    assert shown["topics_queue_leases_in_flight"] == 3
    assert shown["topics_topic_queue_ready"] == [{"topic": "q", "value": 2}]
    assert shown["topics_topic_queue_in_flight"] == [{"topic": "q", "value": 3}]
    with open_stream(server, "q", "node=s&max=1") as line:
        line.recv(4096)
        assert server.metrics()["topics_sse_connections"] == 1
    assert eventually(lambda: server.metrics()["topics_sse_connections"] == 0, 5.0)


def test_a_router_into_a_queue_makes_jobs_and_one_out_of_it_forwards_them(server: Server) -> None:
    make(server, "q")
    for name, source, dest in (("in", "log", "q"), ("out", "q", "copy")):
        answer = server.call("PUT", f"/v0/routers/{name}", as_json({"source": source, "dest": dest}))
        assert answer.status in (200, 201), str(answer)
    post(server, at("log"), records=[{"data": 1}, {"data": 2}])
    assert eventually(lambda: counters(server, "q")["ready"] == 2, 5.0)
    jobs = claim(server, "q", max=2)
    assert [job["data"] for job in jobs] == [1, 2]
    assert post(server, at("q", "ack"), node="w", seqs=[job["$seq"] for job in jobs])["acked"] == 2
    assert [record["data"] for record in post(server, at("copy", "diff"))["records"]] == [1, 2]


def test_a_drain_ends_streams_with_503_and_their_jobs_are_ready_at_the_next_start(server: Server) -> None:
    make(server, "q", 2)
    line = open_stream(server, "q", "node=s&max=2&lease_ms=60000")
    line.settimeout(20.0)
    text = b""
    while text.count(b"event: job") < 2:
        text += line.recv(65536)
    assert server.stop() == 0
    while piece := line.recv(65536):
        text += piece
    assert json.loads(text.rpartition(b"data: ")[2])["code"] == 503
    server.start()
    assert counters(server, "q") == {"ready": 2, "in_flight": 0, "dead_lettered": 0}
    assert [job["deliveries"] for job in claim(server, "q", max=2)] == [2, 2]


def test_deep_queues_and_many_leases_over_a_restart(launch: Callable[..., Server]) -> None:
    server = launch(workers=1)
    make(server, "q")
    with server.line() as line:
        for number in range(20):
            records = [{"data": n} for n in range(1000)]
            insist(line, "POST", at("q") + "?return_seqs=false", as_json({"records": records, "idempotency_key": str(number)}))
        for _ in range(15):
            assert len(insist(line, "POST", at("q", "claim"), as_json({"node": "w", "max": 1000, "lease_ms": 600_000}))[0].json["claimed"]) == 1000
    server.kill()
    server.start()
    assert counters(server, "q") == {"ready": 5_000, "in_flight": 15_000, "dead_lettered": 0}
    assert [job["$seq"] for job in claim(server, "q", max=2)] == [15_001, 15_002]


def test_a_delayed_job_alone_in_its_queue_is_delivered_on_time_after_a_restart(launch: Callable[..., Server]) -> None:
    """Nothing but the clock wakes anyone here. Within 1 s of when it is due."""
    server = launch(workers=1)
    make(server, "q")
    due_s = time.time() + 8.0
    post(server, at("q"), records=[{"data": 1, "delay_ms": 8_000}])
    server.kill()
    server.start()
    if time.time() < due_s - 1.0:
        assert counters(server, "q") == {"ready": 0, "in_flight": 0, "dead_lettered": 0}
    waits_s = time.time()
    [job] = claim(server, "q", wait_ms=20_000)
    assert job["data"] == 1
    assert due_s - 0.1 < time.time() < max(due_s, waits_s) + 1.0


def test_a_stream_that_nobody_reads_holds_a_few_megabytes_of_jobs_and_gives_them_back(server: Server) -> None:
    make(server, "q")
    with server.line() as line:
        for number in range(30):
            insist(line, "POST", at("q"), as_json({"records": [{"data": "x" * 500_000}] * 2, "idempotency_key": str(number)}))
    stream = open_stream(server, "q", "node=slow&max=1000&lease_ms=600000")
    assert eventually(lambda: counters(server, "q")["in_flight"] > 0, 10.0)
    time.sleep(1.0)
    held = counters(server, "q")["in_flight"]
    assert held <= 40, f"{held} jobs of 500 kB wait for a client that does not read"
    stream.close()
    assert eventually(lambda: counters(server, "q") == {"ready": 60, "in_flight": 0, "dead_lettered": 0}, 10.0)


def test_a_claim_of_large_jobs_is_no_larger_than_a_page(server: Server) -> None:
    make(server, "q")
    with server.line() as line:
        for number in range(15):
            insist(line, "POST", at("q"), as_json({"records": [{"data": "x" * 990_000}], "idempotency_key": str(number)}))
    assert len(claim(server, "q", max=100)) == 9
    assert len(claim(server, "q", max=100)) == 6


def test_a_tenth_of_the_streams_closed_at_random_loses_no_job(server: Server) -> None:
    """Forty streams in two worker processes, closed and opened again while jobs come: each job is acked once, none is left."""
    make(server, "q", lease_ms=600_000)
    done: set[int] = set()
    lock = threading.Lock()

    def work(number: int) -> None:
        while len(done) < 400:
            with open_stream(server, "q", f"node=n{number}&max=3") as stream, stream.makefile("rb") as lines, server.line() as line:
                stream.settimeout(1.0)
                for _ in range(3 + number % 5):
                    try:
                        while not (text := lines.readline()).startswith(b'data: {"topic"'):
                            if not text:
                                return
                    except OSError:
                        break
                    seq = json.loads(text[6:])["$seq"]
                    if insist(line, "POST", at("q", "ack"), as_json({"node": f"n{number}", "seqs": [seq]}))[0].json["acked"]:
                        with lock:
                            assert seq not in done
                            done.add(seq)

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(40)]
    for thread in workers:
        thread.start()
    for number in range(40):
        post(server, at("q"), records=[{"data": n} for n in range(10)])
        time.sleep(0.02 * (number % 3))
    assert eventually(lambda: len(done) == 400, 60.0), f"{len(done)} {counters(server, 'q')}"
    for thread in workers:
        thread.join(10.0)
    assert eventually(lambda: counters(server, "q") == {"ready": 0, "in_flight": 0, "dead_lettered": 0}, 10.0)


@pytest.mark.slow
def test_an_idle_stream_says_a_heartbeat_within_fifteen_seconds(launch: Callable[..., Server]) -> None:
    """A §7.6, A §10.8."""
    server = launch(workers=1)
    make(server, "q")
    with open_stream(server, "q", "node=s") as line:
        line.settimeout(25.0)
        begun, text = time.monotonic(), b""
        while text.count(b": hb ") < 2:
            text += line.recv(4096)
        assert 14.0 < time.monotonic() - begun < 20.0
        assert text.endswith(b"\n\n")


def test_a_claim_waits_also_where_claims_are_gathered_into_cohorts(server: Server) -> None:
    make(server, "q", claim_jitter_ms=100)
    begun = time.monotonic()
    assert claim(server, "q", wait_ms=1_000) == []
    assert time.monotonic() - begun >= 1.0
    got: list[list[int]] = []
    waiting = [
        threading.Thread(target=lambda n=n: got.append([job["$seq"] for job in claim(server, "q", f"w{n}", max=5, wait_ms=20_000)])) for n in range(2)
    ]
    for thread in waiting:
        thread.start()
    assert eventually(lambda: waits(server) == 2)
    post(server, at("q"), records=[{"data": n} for n in range(10)])
    for thread in waiting:
        thread.join(20.0)
    assert list(map(len, got)) == [5, 5] and sorted(seq for each in got for seq in each) == list(range(1, 11))


def test_a_claim_tells_what_is_ready_behind_it_in_every_class(server: Server) -> None:
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        make(server, durability, 3, durability=durability)
        assert post(server, at(durability, "claim"), node="w", max=2)["ready"] == 1, durability
        assert post(server, at(durability, "claim"), node="w", max=1)["ready"] == 0, durability


def test_a_seq_that_comes_twice_is_extended_once(server: Server) -> None:
    make(server, "q", 2)
    claim(server, "q", "w", max=2)
    answer = post(server, at("q", "extend"), node="w", seqs=[2, 2], lease_ms=1000)
    assert (answer["extended"], answer["skipped"], list(answer["deadlines"])) == (1, [2], ["2"])


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_jobs_whose_bytes_are_damaged_are_not_leased_for_ever(server: Server) -> None:
    make(server, "q", dead_letter="dead")
    for _ in range(10):
        post(server, at("q"), records=[{"data": "x" * 1000} for _ in range(40)])
    post(server, at("q") + "/seal")
    assert server.stop() == 0
    (data,) = server.data.glob("topics/*/*/*.data")
    raw = bytearray(data.read_bytes())
    for place in range(len(raw) // 2, len(raw), 500):
        raw[place] ^= 1
    data.write_bytes(raw)
    server.start()

    alive = [job["$seq"] for job in claim(server, "q", max=400)]
    assert 0 < len(alive) < 400

    def state() -> Any:
        return server.call("GET", at("q")).json

    assert eventually(lambda: state()["queue"]["in_flight"] == len(alive), 30.0), state()
    assert state()["count"] == len(alive) and state()["queue"]["ready"] == 0
    tombstone = post(server, at("q", "diff"), from_seq=alive[-1])["tombstone"]
    assert (tombstone["reason"], tombstone["gap_to"]) == ("corrupt", 400)
    assert eventually(lambda: f"topics_jobs_lost_total {400 - len(alive)}\n" in server.call("GET", "/v0/metrics").body.decode(), 30.0)
    assert server.call("GET", "/v0/ready").json["degraded"]
    post(server, at("q", "ack"), node="w", seqs=alive)
    assert state()["count"] == 0 and post(server, at("q", "diff"), from_seq=0)["tombstone"]["reason"] == "corrupt"
