"""Producers, tails and a deleter that ride out every fault, and the gate that lets them rest while the oracle looks."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field

from e2e.checker import Batch, Ledger, Seen
from e2e.client import Cut, InFlight, Refused, at, diff_body, insist, parse_page, write_body
from e2e.server import Server, as_json, eventually

PAUSE_S_MAX = 60.0
LONG_POLL_MS = 400

# Values whose text must come back as it was sent; %s is unique in the run.
SHAPES = (
    '{"id":"%s","n":1.0,"big":18446744073709551616,"tiny":1e-400}',
    '{"id":"%s", "spaced" : [1, 2,  3], "e":1e400, "z":-0}',
    '["%s","\\u00e9\\ud83d\\ude00 é 😀","\\"\\\\\\/\\b",null,true]',
    '"%s"',
    '{"id":"%s","d":[[[[[[{"a":{"b":[]}}]]]]]],"d":2}',
)


class Gate:
    """Open: workers run. Closed: each stops between two requests; `close` returns when all have."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._idle: set[int] = set()
        self.members: list[threading.Thread] = []
        self.stopping = threading.Event()
        self.failures: list[BaseException] = []

    def passed(self) -> bool:
        """Wait while the gate is closed. Return False when the end has come."""
        if not self._open.is_set():
            self._idle.add(threading.get_ident())
            while not self._open.wait(0.2):
                if self.stopping.is_set():
                    return False
            self._idle.discard(threading.get_ident())
        return not self.stopping.is_set()

    def open(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._open.clear()
        living = {thread.ident for thread in self.members}
        assert eventually(lambda: self.failures or living <= self._idle, PAUSE_S_MAX), f"{len(living - self._idle)} workers do not come to rest"
        self.raise_failures()

    def raise_failures(self) -> None:
        if self.failures:
            raise self.failures[0]

    def add(self, work: object, name: str) -> None:
        """Start a thread that calls `work()` again and again while the gate is open."""

        def loop() -> None:
            try:
                while self.passed():
                    work()  # type: ignore[operator]
            except BaseException as failure:
                self.failures.append(failure)

        self.members.append(threading.Thread(target=loop, name=name, daemon=True))
        self.members[-1].start()

    def end(self) -> None:
        self.stopping.set()
        self._open.set()
        for thread in self.members:
            thread.join(PAUSE_S_MAX)


@dataclass
class Herd:
    """All who talk to the server during the rounds."""

    server: Server
    rng: random.Random
    gate: Gate = field(default_factory=Gate)
    tail_gate: Gate = field(default_factory=Gate)
    in_flight: InFlight = field(default_factory=InFlight)
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    tails: list[Seen] = field(default_factory=list)
    deletes: int = 0
    deduped: int = 0

    @property
    def acked(self) -> int:
        return sum(len(ledger.acked) for ledger in self.ledgers.values())

    def create(self, topic: str, durability: str) -> None:
        with self.server.line() as line:
            insist(line, "PUT", at(topic), as_json({"durability": durability, "idempotency_window_ms": 600_000}))
        self.ledgers[topic] = Ledger(topic, durability)

    def add_producer(self, topic: str, name: str) -> None:
        """Write batches of 1 to 5 records, each with a key, and retry each until it is acked."""
        ledger, line, rng = self.ledgers[topic], self.server.line(counter=self.in_flight), random.Random(f"{self.rng.random()}/{name}")
        number = 0

        def work() -> None:
            nonlocal number
            number += 1
            size = rng.choice((1, 1, 1, 2, 5))
            datas = tuple((rng.choice(SHAPES) % f"{name}/{number}/{place}/{size}").encode() for place in range(size))
            batch = Batch(name, number, datas, f"{name}/{number}", f"{name}:{number}" if rng.random() < 0.5 else None)
            body = write_body(datas, batch.key, [batch.tag] * size if batch.tag else ())
            answer, tries = insist(line, "POST", at(topic), body)
            self.deduped += bool(answer.json["deduped"])
            ledger.ack(batch, answer.json, tries)

        self.gate.add(work, name)

    def add_deleter(self, topic: str) -> None:
        """Delete acked batches by their tag, now and then the oldest records; both until acked."""
        ledger, line, rng = self.ledgers[topic], self.server.line(counter=self.in_flight), random.Random(self.rng.random())

        def work() -> None:
            time.sleep(0.01)
            tagged = [batch for batch in ledger.acked[-200:] if batch.tag and batch.first_seq not in ledger.deleted]
            if not tagged:
                return
            batch = rng.choice(tagged)
            if rng.random() < 0.1 and batch.first_seq > 50:
                # what stands below was handed out before; its ack may still be under way, so the ledger hears of it at the next pause
                before = batch.first_seq - 50
                insist(line, "POST", at(topic, "delete"), as_json({"before_seq": before}))
                ledger.trims.append(before)
            else:
                insist(line, "POST", at(topic, "delete"), as_json({"match": batch.tag}))
                ledger.delete_batch(batch)
            self.deletes += 1

        self.gate.add(work, f"deleter-{topic}")

    def add_tail(self, topic: str, wait_ms: int) -> None:
        """Follow a topic by diff; with `wait_ms` by long polls."""
        seen = Seen(topic)
        self.tails.append(seen)
        line = self.server.line()

        def work() -> None:
            try:
                answer = line.call("POST", at(topic, "diff"), diff_body(seen.position, limit=500, wait_ms=wait_ms))
            except Cut:
                time.sleep(0.02)
                return
            if answer.status == 503:
                time.sleep(0.02)
                return
            if answer.status != 200:
                raise Refused(f"a tail of {topic}: {answer}")
            page = parse_page(answer.body)
            seen.take(page)
            if not page.records and not wait_ms:
                time.sleep(0.01)

        self.tail_gate.add(work, f"tail-{topic}-{wait_ms}")

    def open(self) -> None:
        self.gate.open()
        self.tail_gate.open()

    def rest(self) -> None:
        """Let every producer come to its ack, every tail to the head, and all to rest."""
        self.gate.close()
        for ledger in self.ledgers.values():
            for before in ledger.trims:
                ledger.delete_before(before)
            ledger.trims.clear()
        heads = {topic: self.head(topic) for topic in self.ledgers}
        done = eventually(lambda: self.tail_gate.failures or all(seen.position >= heads[seen.topic] for seen in self.tails))
        self.tail_gate.raise_failures()
        assert done, f"tails stand behind {heads}: {[(seen.topic, seen.position) for seen in self.tails]}"
        self.tail_gate.close()

    def head(self, topic: str) -> int:
        with self.server.line() as line:
            return int(insist(line, "GET", at(topic))[0].json["head_seq"])

    def end(self) -> None:
        self.gate.end()
        self.tail_gate.end()
