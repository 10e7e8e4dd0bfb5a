"""Consumers of one group while writer and workers are killed: none lost, none held twice at once, none again after its ack (CLARIFICATIONS)."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from e2e.client import Cut, at, insist, write_body
from e2e.server import Server, as_json, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

RECORDS, BATCH, CONSUMERS, KILLS = 3_000, 20, 6, 6
VISIBILITY_S = 3.0
DONE_S_MAX = 120.0


@dataclass
class Watch:
    """What consumers have got: by seq, when its lease was surely running, and when it was surely acked."""

    held: dict[int, list[tuple[float, float, str]]] = field(default_factory=dict)
    acked: dict[int, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    done: threading.Event = field(default_factory=threading.Event)

    def got(self, seq: int, asked: float, received: float, who: str) -> None:
        """Take note of a delivery: asked for at `asked`, so granted at some moment up to `received`."""
        if seq in self.acked and asked > self.acked[seq]:
            self.wrong.append(f"{seq} came to {who} after its ack")
        for first_asked, _, other in self.held.get(seq, ()):
            # The other's lease runs at least until its visibility has passed since it was asked for; this one was granted before `received`.
            if received < first_asked + VISIBILITY_S and other != who:
                self.wrong.append(f"{seq} is held by {other} and by {who}")
        self.held.setdefault(seq, []).append((asked, received, who))


def consume(server: Server, watch: Watch, who: str, rng: random.Random) -> None:
    group = at("t", "groups", "g")
    with server.line() as line:
        while not watch.done.is_set():
            asked = time.monotonic()
            body = {"consumer_id": who, "limit": rng.randrange(1, 30), "timeout_seconds": 1, "visibility_timeout_ms": int(VISIBILITY_S * 1000)}
            try:
                answer = line.call("POST", f"{group}/consume", as_json(body | {"start": "earliest"}))
            except Cut:
                continue
            received = time.monotonic()
            if answer.status != 200:
                time.sleep(0.02)
                continue
            seqs = [record["$seq"] for record in answer.json["records"]]
            with watch.lock:
                for seq in seqs:
                    watch.got(seq, asked, received, who)
            if not seqs or rng.random() < 0.3:  # some are never acked
                continue
            acked = line_ack(line, group, who, answer.json["last_offset"])
            if acked and time.monotonic() < asked + VISIBILITY_S:
                with watch.lock:
                    watch.acked |= {seq: time.monotonic() for seq in seqs if seq not in watch.acked}


def line_ack(line: object, group: str, who: str, upto: int) -> bool:
    """Ack once; a cut one may have landed or not."""
    with contextlib.suppress(Cut):
        answer = line.call("POST", f"{group}/ack", as_json({"consumer_id": who, "upto_offset": upto}))  # type: ignore[attr-defined]
        return bool(answer.status == 200)
    return False


def test_a_group_loses_nothing_and_holds_nothing_twice(launch: Callable[..., Server]) -> None:
    seed = int(os.environ.get("E2E_SEED", "1"))
    rng = random.Random(seed)
    server = launch(workers=2)
    watch = Watch()
    with server.line() as line:
        insist(line, "PUT", at("t"), as_json({"durability": "disk"}))
        consumers = [threading.Thread(target=consume, args=(server, watch, f"c{n}", random.Random(seed + n)), daemon=True) for n in range(CONSUMERS)]
        for thread in consumers:
            thread.start()
        for number in range(RECORDS // BATCH):
            datas = [f"{number * BATCH + n}".encode() for n in range(BATCH)]
            insist(line, "POST", at("t"), write_body(datas, f"batch-{number}"))
            time.sleep(0.01)  # so that the kills meet consumers at work
            if number % (RECORDS // BATCH // KILLS) == 5:
                roles = server.settled_roles()
                victim = roles.writer if rng.random() < 0.6 else rng.choice(roles.workers)
                assert victim is not None
                os.kill(victim, signal.SIGKILL)

        def committed() -> bool:
            answer = insist(line, "GET", at("t", "groups", "g"))[0].json
            return bool(answer["committed_offset"] == RECORDS and answer["leased"] == 0)

        assert eventually(committed, DONE_S_MAX), f"seed {seed}: {insist(line, 'GET', at('t', 'groups', 'g'))[0]}"
    watch.done.set()
    for thread in consumers:
        thread.join(10.0)
    assert watch.wrong == [], f"seed {seed}"
    assert set(watch.held) == set(range(1, RECORDS + 1)), f"seed {seed}"
