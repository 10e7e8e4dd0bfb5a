"""Kill the writer, a worker, the keeper or all of it at random, again and again, under load; hold everything against the oracle.

Each round: producers, deleters and tails run; when at least 32 requests are in flight something is killed with SIGKILL; the server must
come back; then all rest and the oracle compares every topic and every tail. Seed: E2E_SEED, printed with every failure.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from e2e.client import Cut, at, insist, read_all, write_body
from e2e.herd import Herd
from e2e.server import Server, as_json, eventually
from topicsd import snapshot

IN_FLIGHT_MIN = 32
PRODUCERS_PER_TOPIC = 11
SELF_RECOVERY_S_MAX = 60.0  # how long it took stands in the summary; a busy machine is no bug
FULL_CHECK_EVERY = 10  # rounds; the others check what is new
CLASSES = ("fsync", "disk", "memory", "ephemeral")

VICTIMS = ("writer", "writer", "writer", "worker", "worker", "all workers", "keeper", "writer and worker", "writer twice", "group", "arbiter")
ALONE = ("writer", "worker", "keeper", "all workers", "writer and worker", "writer twice")  # the arbiter lives, and repairs


@dataclass
class Rounds:
    """The state of a run: what was verified so far, what was killed."""

    server: Server
    herd: Herd
    rng: random.Random
    verified: dict[str, int] = field(default_factory=dict)
    kills: dict[str, int] = field(default_factory=dict)
    recovery_s: list[float] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)

    def set_up(self) -> None:
        self.server.start()
        for durability in CLASSES:
            topic = f"k.{durability}"
            self.herd.create(topic, durability)
            self.verified[topic] = 0
            for number in range(PRODUCERS_PER_TOPIC):
                self.herd.add_producer(topic, f"{durability}-{number}")
            self.herd.add_tail(topic, wait_ms=300)
        for durability in ("fsync", "memory"):
            topic = f"d.{durability}"
            self.herd.create(topic, durability)
            self.verified[topic] = 0
            for number in range(3):
                self.herd.add_producer(topic, f"d-{durability}-{number}")
            self.herd.add_deleter(topic)
            self.herd.add_tail(topic, wait_ms=0)

    def round(self, number: int, victim: str) -> None:
        """Run, kill, recover, rest, compare."""
        roles = self.server.settled_roles()
        assert roles.writer
        before = self.herd.acked
        self.herd.open()
        assert eventually(lambda: self.herd.gate.failures or self.herd.acked >= before + 60), "no writes"
        self.herd.gate.raise_failures()
        time.sleep(self.rng.uniform(0, 0.15))
        in_flight = self.pile_up(roles.writer, at_once=self.rng.random() < 0.4 and victim.startswith("writer"))
        self.kill(victim)
        killed_at = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(roles.writer, signal.SIGCONT)
        assert in_flight >= IN_FLIGHT_MIN, f"only {in_flight} requests in flight"
        self.in_flight.append(in_flight)
        self.kills[victim] = self.kills.get(victim, 0) + 1
        if victim in ALONE:
            self.probe(f"{number}", killed_at)
        else:
            self.server.start()
        after = self.herd.acked
        assert eventually(lambda: self.herd.gate.failures or self.herd.acked >= after + 40), f"no writes after the kill\n{self.server.log()}"
        self.herd.rest()
        self.compare(full=number % FULL_CHECK_EVERY == 0)

    def pile_up(self, writer: int, at_once: bool) -> int:
        """Return how many requests are in flight once they are enough.

        Where they do not come to be as many within a second, or `at_once`, the writer is stopped: nothing is acked any more, requests
        pile up in its rings, and the kill finds them there.
        """
        if at_once or self.herd.in_flight.wait_for(IN_FLIGHT_MIN, 1.0) < IN_FLIGHT_MIN:
            os.kill(writer, signal.SIGSTOP)
        return self.herd.in_flight.wait_for(IN_FLIGHT_MIN)

    def kill(self, victim: str) -> None:
        roles = self.server.roles()
        if victim == "group":
            self.server.kill()
        elif victim == "arbiter":
            self.server.kill_arbiter()
        else:
            for pid in {
                "writer": [roles.writer],
                "writer twice": [roles.writer],
                "worker": [self.rng.choice(roles.workers)],
                "all workers": list(roles.workers),
                "keeper": [roles.keeper],
                "writer and worker": [roles.writer, self.rng.choice(roles.workers)],
            }[victim]:
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
            if victim == "writer twice":
                second = eventually(lambda: (found := self.server.roles().writer) != roles.writer and found, SELF_RECOVERY_S_MAX)
                assert second, f"no second writer within {SELF_RECOVERY_S_MAX} s"
                time.sleep(self.rng.uniform(0, 0.05))
                os.kill(second, signal.SIGKILL)

    def probe(self, name: str, killed_at: float) -> None:
        """After a kill that the server repairs itself a new client's keyed write must be acked within the time promised."""

        def acked() -> bool:
            try:
                with self.server.line(SELF_RECOVERY_S_MAX) as line:
                    return line.call("POST", at("probe"), write_body([b"1"], f"probe-{name}")).status in (200, 201)
            except Cut:
                return False

        assert eventually(acked, SELF_RECOVERY_S_MAX), f"no write within {SELF_RECOVERY_S_MAX} s after the kill\n{self.server.log()}"
        self.recovery_s.append(time.monotonic() - killed_at)

    def compare(self, full: bool) -> None:
        """Hold every topic and every tail against its ledger. Everybody rests."""
        wrong: list[str] = []
        with self.server.line() as line:
            for topic, ledger in self.herd.ledgers.items():
                from_seq = 0 if full or topic.startswith("d.") else self.verified[topic]
                records, tombstones, head = read_all(line, topic, from_seq)
                wrong += ledger.check(records, tombstones, head, from_seq)
                self.verified[topic] = head
        for seen in self.herd.tails:
            wrong += seen.check(self.herd.ledgers[seen.topic])
        assert not wrong, "\n".join(wrong)


def run_rounds(directory: Path, count: int, env: dict[str, str] | None = None) -> Rounds:
    seed = os.environ.get("E2E_SEED") or str(random.randrange(1 << 32))
    rng = random.Random(seed)
    with Server(directory, workers=2, env=env or {}) as server:
        run = Rounds(server, Herd(server, rng), rng)
        victims = [victim for _ in range(count // len(VICTIMS) + 1) for victim in rng.sample(VICTIMS, len(VICTIMS))][:count]
        done = "set-up"
        try:
            run.set_up()
            for number, victim in enumerate(victims, 1):
                done = f"round {number} ({victim})"
                run.round(number, victim)
            run.compare(full=True)
            assert server.stop() == 0
        except BaseException as failure:
            ended = server.process.poll() if server.process else "not running"
            failure.add_note(f"E2E_SEED={seed}, {done}; kills so far {run.kills}; server's exit status {ended}, log in {directory}\n{server.log()}")
            raise
        finally:
            run.herd.end()
    slowest = max(run.recovery_s, default=0.0)
    print(
        f"\n{count} rounds, {run.kills}; {run.herd.acked} batches acked, {run.herd.deduped} retries had landed, {run.herd.deletes} deletes, "
        f"{run.herd.in_flight.cut} cut; in flight at the kill {min(run.in_flight)}..{max(run.in_flight)}; slowest recovery {slowest:.2f} s"
    )
    return run


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timeout(300)
def test_twelve_kills_at_random_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    run = run_rounds(tmp_path, 12)
    assert min(run.in_flight) >= IN_FLIGHT_MIN


def stands(data: Path) -> bool:
    """Tell whether the files of snapshots are the newest two and what those stand upon."""
    try:
        layers = {layer.number for number in snapshot.heads(data) for layer in snapshot.read_chain(data, number).layers}
    except (OSError, snapshot.SnapshotError):
        return False  # one went between two looks
    return len(snapshot.heads(data)) == 2 and layers == set(snapshot.numbers(data))


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timeout(300)
def test_twelve_kills_lose_nothing_while_everything_is_sealed_and_the_log_goes(tmp_path: Path) -> None:
    env = {
        "SEGMENT_MAX_AGE_MS": "300",
        "SEGMENT_MAX_EVENTS": "400",
        "CHECKPOINT_BYTES": str(1 << 20),
        "CHECKPOINT_MS": "500",
        "LOG_FILE_BYTES": str(1 << 20),
    }
    run = run_rounds(tmp_path, 12, {f"TOPICS_{name}": value for name, value in env.items()})
    data = run.server.data
    assert [*data.glob("packs/*.pack"), *data.glob("topics/*/*/*.data")], "nothing was sealed"
    assert eventually(lambda: stands(data)), "files of meta that no snapshot stands upon"
    assert min(int(path.stem) for path in data.glob("log/shard-00/*.log")) > 0, "no log file has gone"


@pytest.mark.e2e
@pytest.mark.crash
@pytest.mark.timeout(3000)
def test_two_hundred_kills_at_random_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    run = run_rounds(tmp_path, 200)
    assert min(run.in_flight) >= IN_FLIGHT_MIN


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_topic_that_was_deleted_stays_deleted_over_every_kill(tmp_path: Path) -> None:
    rng = random.Random(7)
    with Server(tmp_path, workers=2) as server:
        server.start()
        with server.line() as line:
            for life in range(1, 9):
                insist(line, "PUT", at("t"), as_json({"durability": rng.choice(CLASSES[:3])}))
                insist(line, "POST", at("t"), write_body([b'"%d"' % life] * life, f"life-{life}"))
                insist(line, "DELETE", at("t"))
                if life % 2:
                    roles = server.settled_roles()
                    assert roles.writer
                    os.kill(roles.writer, signal.SIGKILL)
                else:
                    server.kill()
                    server.start()
                assert eventually(server.is_ready)
                assert eventually(lambda: server.call("GET", at("t")).status == 404), f"life {life}: {server.call('GET', at('t'))}"
            body = insist(line, "POST", at("t"), write_body([b'"new"'], "life-1"))[0].json
            assert (body["first_seq"], body["deduped"], body["created"]) == (1, False, True)
            records, tombstones, head = read_all(line, "t")
        assert ([record.data for record in records], tombstones, head) == ([b'"new"'], [], 1)
