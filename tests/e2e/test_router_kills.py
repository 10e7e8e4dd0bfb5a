"""Routers while writer and workers are killed: each destination has each record once, in order (A §6, D §8); and what a copy costs."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.client import Line, at, insist, parse_page, write_body
from e2e.server import Server, as_json, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PRODUCERS, BATCH, BETWEEN_KILLS = 3, 5, 12
SETTLED_S_MAX = 120.0
# name -> (source, destination, what the router says besides). `deep` is the second hop; `late` is made while writes and kills go on.
ROUTERS = {
    "plain": ("source", "all", {}),
    "once": ("source", "exact", {"guarantee": "exactly_once"}),
    "some": ("source", "even", {"filter": ["tag", "Eq", "even"], "guarantee": "exactly_once"}),
    "deep": ("exact", "deep", {"guarantee": "exactly_once"}),
}


def produce(server: Server, who: int, stop: threading.Event, sent: list[int]) -> None:
    number = 0
    with server.line() as line:
        while not stop.is_set():
            datas = [b'{"producer":%d,"n":%d}' % (who, number * BATCH + n) for n in range(BATCH)]
            tags = ["even" if n % 2 == 0 else "odd" for n in range(BATCH)]
            insist(line, "POST", at("source"), write_body(datas, f"p{who}-{number}", tags))
            number += 1
            sent[who] = number * BATCH


def everything(line: Line, topic: str) -> list[bytes]:
    """Return the data of all records of a topic, in order; there may be no tombstone."""
    found, cursor = [], 0
    while True:
        answer, _ = insist(line, "POST", at(topic, "diff"), as_json({"from_seq": cursor, "limit": 1000, "include_tags": True}))
        page = parse_page(answer.body)
        assert page.tombstone is None, f"{topic}: {page.tombstone}"
        found += [record.data for record in page.records]
        cursor = page.next_from_seq
        if page.caught_up:
            return found


@pytest.mark.parametrize("kills", [8, pytest.param(200, marks=pytest.mark.crash)])
def test_a_destination_has_each_record_once_in_the_order_of_its_source(launch: Callable[..., Server], kills: int) -> None:
    seed = int(os.environ.get("E2E_SEED", "1"))
    rng = random.Random(seed)
    server = launch(workers=2)
    stop, sent = threading.Event(), [0] * PRODUCERS
    with server.line() as line:
        insist(line, "PUT", at("source"), as_json({"durability": "disk"}))
        for name, (source, dest, more) in ROUTERS.items():
            insist(line, "PUT", f"/v0/routers/{name}", as_json({"source": source, "dest": dest, **more}))
        producers = [threading.Thread(target=produce, args=(server, n, stop, sent), daemon=True) for n in range(PRODUCERS)]
        for thread in producers:
            thread.start()
        for number in range(kills):
            before = sum(sent)
            assert eventually(lambda before=before: sum(sent) >= before + BETWEEN_KILLS * BATCH, SETTLED_S_MAX), f"seed {seed}: writes stand still"
            if number == kills // 2:
                insist(line, "PUT", "/v0/routers/late", as_json({"source": "source", "dest": "late", "guarantee": "exactly_once", "from_seq": 0}))
            roles = server.settled_roles()
            victim = roles.writer if rng.random() < 0.7 else rng.choice(roles.workers)
            assert victim is not None
            os.kill(victim, signal.SIGKILL)
        stop.set()
        for thread in producers:
            thread.join(SETTLED_S_MAX)
            assert not thread.is_alive()

        def caught_up() -> bool:
            return all(insist(line, "GET", f"/v0/routers/{name}")[0].json["lag"] == 0 for name in [*ROUTERS, "late"])

        assert eventually(caught_up, SETTLED_S_MAX), f"seed {seed}: " + str([insist(line, "GET", f"/v0/routers/{name}")[0].json for name in ROUTERS])
        source = everything(line, "source")
        assert len(source) == sum(sent) == len(set(source)), f"seed {seed}: what was acked is there once"
        for dest in ("all", "exact", "deep", "late"):
            assert everything(line, dest) == source, f"seed {seed}: {dest}"
        assert everything(line, "even") == [data for place, data in enumerate(source) if place % BATCH % 2 == 0], f"seed {seed}"


def test_a_fan_out_writes_its_payload_once(launch: Callable[..., Server]) -> None:
    """Counted by the kernel: what the writer has handed to write(2) and its kin (ARCHITECTURE §4: zero payload bytes a copy)."""
    routers, payload = 300, b'"%s"' % (b"x" * 100_000)
    server = launch()
    with server.line() as line:
        insist(line, "PUT", at("source"), as_json({"durability": "disk"}))
        for number in range(routers):
            insist(line, "PUT", f"/v0/routers/r{number}", as_json({"source": "source", "dest": f"d{number}"}))
        writer = server.settled_roles().writer

        def written() -> int:
            return int(Path(f"/proc/{writer}/io").read_text().split("wchar: ")[1].split()[0])

        before = written()
        insist(line, "POST", at("source"), write_body([payload], "one"))
        assert eventually(lambda: all(insist(line, "GET", at(f"d{n}"))[0].json["count"] == 1 for n in range(routers)))
        assert len(payload) <= written() - before < len(payload) + 64 * routers + 8192
        answer, _ = insist(line, "POST", at(f"d{routers - 1}", "diff"), as_json({"from_seq": 0}))
        assert parse_page(answer.body).records[0].data == payload
