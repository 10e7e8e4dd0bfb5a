"""Workers of one queue while processes are killed: no job lost, none held by two at once, none again after its ack (A §10, D §10)."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from e2e.client import Cut, Line, at, insist, write_body
from e2e.server import Server, as_json, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

JOBS, BATCH, WORKERS, KILLS = 2_000, 20, 6, int(os.environ.get("E2E_KILLS", "8"))
LEASE_S = 3.0
DONE_S_MAX = 120.0


@dataclass
class Held:
    """One delivery: asked for and received then, so granted in between; given back at `released` at the earliest."""

    asked: float
    received: float
    who: str
    released: float = float("inf")


@dataclass
class Watch:
    """What workers have got."""

    held: dict[int, list[Held]] = field(default_factory=dict)
    acked: dict[int, float] = field(default_factory=dict)
    deliveries: dict[int, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    done: threading.Event = field(default_factory=threading.Event)

    def got(self, seq: int, deliveries: int, mine: Held) -> None:
        """Take note of a delivery and of what it breaks."""
        if seq in self.acked and mine.asked > self.acked[seq]:
            self.wrong.append(f"{seq} came to {mine.who} after its ack")
        for other in self.held.get(seq, ()):
            together = mine.received < other.asked + LEASE_S and other.received < mine.asked + LEASE_S
            if together and mine.received < other.released and other.who != mine.who:
                self.wrong.append(f"{seq} is held by {other.who} and by {mine.who}")
        self.held.setdefault(seq, []).append(mine)
        self.deliveries[seq] = max(self.deliveries.get(seq, 0), deliveries)


def work(server: Server, watch: Watch, who: str, rng: random.Random) -> None:
    """Claim, then ack most, give some back, forget some."""
    with server.line() as line:
        while not watch.done.is_set():
            asked = time.monotonic()
            body = {"node": who, "max": rng.randrange(1, 12), "lease_ms": int(LEASE_S * 1000), "wait_ms": rng.choice([0, 300])}
            try:
                answer = line.call("POST", at("q", "claim"), as_json(body))
            except Cut:
                continue
            if answer.status != 200:
                time.sleep(0.02)
                continue
            mine = {job["$seq"]: Held(asked, time.monotonic(), who) for job in answer.json["claimed"]}
            with watch.lock:
                for job in answer.json["claimed"]:
                    watch.got(job["$seq"], job["deliveries"], mine[job["$seq"]])
            if not mine:
                time.sleep(0.01)
                continue
            fate = rng.random()
            if fate < 0.7:
                ids = [job["lease_id"] for job in answer.json["claimed"]]
                done = settle(line, "ack", {"node": who, "seqs": list(mine), "lease_ids": ids})
                if done is not None:
                    with watch.lock:
                        watch.acked |= {seq: time.monotonic() for seq in mine if seq not in done and seq not in watch.acked}
            elif fate < 0.85:
                now = time.monotonic()
                for each in mine.values():
                    each.released = now
                settle(line, "nack", {"node": who, "seqs": list(mine)})


def settle(line: Line, verb: str, body: dict[str, object]) -> list[int] | None:
    """Ack or nack once; return what was skipped, None when it is not known."""
    with contextlib.suppress(Cut):
        answer = line.call("POST", at("q", verb), as_json(body))
        if answer.status == 200:
            return list(answer.json["skipped"])
    return None


SEALING = {"SEGMENT_MAX_AGE_MS": 200, "SEGMENT_MAX_EVENTS": 100, "CHECKPOINT_BYTES": 1 << 16, "CHECKPOINT_MS": 300, "LOG_FILE_BYTES": 1 << 20}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("env", [{}, {f"TOPICS_{name}": value for name, value in SEALING.items()}], ids=["plain", "sealing"])
def test_a_queue_loses_no_job_and_lets_no_two_hold_one(launch: Callable[..., Server], env: dict[str, int]) -> None:
    seed = int(os.environ.get("E2E_SEED", "1"))
    rng, apart = random.Random(seed), max(JOBS // BATCH // KILLS, 1)  # batches between two kills
    server = launch(workers=2, **env)
    watch = Watch()
    with server.line() as line:
        insist(line, "PUT", at("q"), as_json({"type": "queue", "durability": "disk"}))
        workers = [threading.Thread(target=work, args=(server, watch, f"w{n}", random.Random(seed + n)), daemon=True) for n in range(WORKERS)]
        for thread in workers:
            thread.start()
        for number in range(JOBS // BATCH):
            datas = [f"{number * BATCH + n}".encode() for n in range(BATCH)]
            insist(line, "POST", at("q"), write_body(datas, f"batch-{number}"))
            time.sleep(0.01)  # so that the kills meet workers at work
            if number % apart == apart // 2:
                roles = server.settled_roles()
                victim = roles.writer if rng.random() < 0.6 else rng.choice(roles.workers)
                assert victim is not None
                os.kill(victim, signal.SIGKILL)

        def empty() -> bool:
            state = insist(line, "GET", at("q"))[0].json
            return bool(state["count"] == 0 and state["queue"] == {"ready": 0, "in_flight": 0, "dead_lettered": 0})

        assert eventually(empty, DONE_S_MAX), f"seed {seed}: {insist(line, 'GET', at('q'))[0]}"
    watch.done.set()
    for thread in workers:
        thread.join(10.0)
    assert watch.wrong == [], f"seed {seed}"
    assert set(watch.held) == set(range(1, JOBS + 1)), f"seed {seed}"
    if env:
        assert list((server.data / "meta").glob("snapshot-*")), "no snapshot was taken"


class Stream:
    """A work stream on a raw socket: the jobs as they come."""

    def __init__(self, server: Server, node: str, most: int) -> None:
        self._socket = socket.create_connection(server.address, 30.0)
        self._socket.sendall(f"GET {at('q', 'work')}?node={node}&max={most}&lease_ms=60000 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        self._lines = self._socket.makefile("rb")

    def jobs(self, count: int) -> Iterator[dict[str, object]]:
        """Yield the next `count` jobs. Raises TimeoutError, ConnectionError."""
        while count:
            line = self._lines.readline()
            if not line:
                raise ConnectionError("the stream ended")
            if line.startswith(b'data: {"topic"'):
                count -= 1
                yield json.loads(line[6:])

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


def test_the_jobs_of_a_killed_worker_process_go_to_the_others_at_once(launch: Callable[..., Server]) -> None:
    """The writer frees what the dead process's streams held; leases from claims stay (A §10.8)."""
    server = launch(workers=2)
    with server.line() as line:
        insist(line, "PUT", at("q"), as_json({"type": "queue"}))
        insist(line, "POST", at("q"), write_body([b"%d" % n for n in range(20)], "k"))
        claimed = insist(line, "POST", at("q", "claim"), as_json({"node": "poller", "max": 4, "lease_ms": 60_000}))[0].json["claimed"]
    streams = [Stream(server, f"s{n}", 2) for n in range(6)]
    held = {job["$seq"]: number for number, stream in enumerate(streams) for job in stream.jobs(2)}
    assert len(held) == 12

    victim = server.settled_roles().workers[0]
    begun = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    living: list[int] = []
    for number, stream in enumerate(streams):
        stream._socket.settimeout(0.5)
        try:
            list(stream.jobs(1))
        except TimeoutError:
            living.append(number)
        except OSError:
            stream.close()
    freed = sorted(seq for seq, number in held.items() if number not in living)
    # The ring is freed once the dead process has been reaped.
    with server.line() as line:
        assert eventually(lambda: insist(line, "GET", at("q"))[0].json["queue"]["in_flight"] == 4 + 2 * len(living), 10.0)
        again = insist(line, "POST", at("q", "claim"), as_json({"node": "heir", "max": 100}))[0].json["claimed"]
    assert time.monotonic() - begun < 20.0, "long before the leases are over"
    assert [job["$seq"] for job in again] == sorted([*freed, *range(17, 21)])
    assert not {job["$seq"] for job in again} & {job["$seq"] for job in claimed}


def test_one_worker_gets_the_jobs_in_order_of_priority_and_first_in_first_out(launch: Callable[..., Server]) -> None:
    """D §10.3, CLARIFICATIONS (queues): over a writer's death too."""
    rng = random.Random(3)
    server = launch(workers=1)
    priorities = [rng.choice([0, 0, 5, -5]) for _ in range(200)]
    with server.line() as line:
        insist(line, "PUT", at("q"), as_json({"type": "queue", "durability": "disk"}))
        insist(line, "POST", at("q"), as_json({"records": [{"data": n, "priority": each} for n, each in enumerate(priorities)]}))
        got: list[int] = []
        while len(got) < 200:
            if len(got) == 100:
                writer = server.settled_roles().writer
                assert writer is not None
                os.kill(writer, signal.SIGKILL)
            jobs = insist(line, "POST", at("q", "claim"), as_json({"node": "w", "lease_ms": 60_000}))[0].json["claimed"]
            if jobs:
                insist(line, "POST", at("q", "ack"), as_json({"node": "w", "seqs": [jobs[0]["$seq"]]}))
                got.append(jobs[0]["$seq"])
    assert got == sorted(range(1, 201), key=lambda seq: (-priorities[seq - 1], seq))
