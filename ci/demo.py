"""Load real input while processes are killed, read it all back, prove that nothing is lost and nothing doubled (`make demo`).

    ci/demo.py [--data FOLDER] [--serve COMMAND] [--keep]

FOLDER (default: DEMO_DATA, else ../shared/data) holds github-webhooks.jsonl.gz, earthquakes.jsonl.gz and flights-200k.jsonl.gz.
Exit status 0: everything was there, byte for byte. 1: something was not, or the server did not do its part. 2: no input.

Standard library only, and nothing of topicsd: what it proves, it proves from outside. The client and the control of the server are
those of the end-to-end tests.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import queue
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from e2e.client import Cut, InFlight, Line, Refused, at, insist, read_all, spans, write_body  # noqa: E402
from e2e.server import Server, as_json, eventually, serve_command  # noqa: E402

FILES = ("github-webhooks.jsonl.gz", "earthquakes.jsonl.gz", "flights-200k.jsonl.gz")
IN_FLIGHT_MIN = 32  # so many unanswered requests when a process is killed
FLIGHT_BATCH = 50
PRODUCERS = {"webhooks": 8, "earthquakes": 8, "flights": 48}
KILLS = (("writer", 0.10), ("worker", 0.25), ("writer", 0.40), ("worker", 0.55))  # who, and at which share of all batches
AHEAD = 0.15  # producers run ahead of the next kill by at most such a share: the load must not be over before it
PILE_UP_S_MAX = 60.0  # bounds of a machine that does many other things; what was measured stands in the summary
SELF_RECOVERY_S_MAX = 60.0
LOAD_S_MAX = 600.0


@dataclass(frozen=True)
class Batch:
    """One write: its topic, its key, the exact bytes of each `data`, the tag of all."""

    topic: str
    key: str
    datas: tuple[bytes, ...]
    tag: str | None = None


@dataclass
class Tally:
    """What producers were told. `acked` is by topic, then seq."""

    acked: dict[str, dict[int, tuple[bytes, str | None]]] = field(default_factory=dict)
    batches: int = 0
    retries: int = 0
    landed_before: int = 0  # acks of a retry whose first try had landed: what the key is for
    wrong: list[str] = field(default_factory=list)
    failed: list[BaseException] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    at_batches: int = 0  # with this ack `then` is called, by the producer that got it
    then: Callable[[], None] | None = None
    reached: threading.Event = field(default_factory=threading.Event)

    def ack(self, batch: Batch, body: dict[str, object], tries: int) -> None:
        first, last = int(str(body["first_seq"])), int(str(body["last_seq"]))
        with self.lock:
            mine = self.acked.setdefault(batch.topic, {})
            if last - first + 1 != len(batch.datas):
                self.wrong.append(f"{batch.key}: {len(batch.datas)} records acked as {first}..{last}")
            for seq, data in enumerate(batch.datas, first):
                if seq in mine:
                    self.wrong.append(f"{batch.topic}: seq {seq} was acked twice")
                mine[seq] = data, batch.tag
            self.batches += 1
            self.retries += tries - 1
            self.landed_before += bool(body.get("deduped"))
            self.look()

    def look(self) -> None:
        """Do what is to be done at this number of batches, once. The lock is held."""
        if self.batches >= self.at_batches and not self.reached.is_set():
            try:
                if self.then is not None:
                    self.then()
            finally:
                self.reached.set()

    def arm(self, batches: int, then: Callable[[], None] | None) -> None:
        """Call `then` with the ack that makes it so many batches, or now when there are as many."""
        with self.lock:
            self.at_batches, self.then = batches, then
            self.reached.clear()
            self.look()


# --- input -----------------------------------------------------------------------------------------------------------------


def lines(path: Path) -> Iterator[bytes]:
    with gzip.open(path) as file:
        yield from (line.rstrip(b"\n") for line in file)


def webhooks(folder: Path) -> Iterator[Batch]:
    """Yield one record a delivery; its data is the payload's text as it stands in the file."""
    for number, line in enumerate(lines(folder / FILES[0])):
        text = line.decode()
        where, _ = spans(text)
        payload = text[slice(*where["payload"])]
        action = json.loads(payload).get("action")
        tag = action if isinstance(action, str) else None
        yield Batch(f"github.{json.loads(text[slice(*where['event'])])}", f"delivery-{number}", (payload.encode(),), tag)


def earthquakes(folder: Path) -> Iterator[Batch]:
    for line in lines(folder / FILES[1]):
        yield Batch("earthquakes", json.loads(line)["id"], (line,))


def flights(folder: Path) -> Iterator[Batch]:
    """Yield batches for two topics in turn, one of each of the durable classes."""
    rows = list(lines(folder / FILES[2]))
    for number, start in enumerate(range(0, len(rows), FLIGHT_BATCH)):
        yield Batch(("flights.disk", "flights.fsync")[number % 2], f"flights-{start}", tuple(rows[start : start + FLIGHT_BATCH]))


def config_of(topic: str) -> dict[str, str]:
    return {"durability": "fsync" if topic in ("flights.fsync", "earthquakes") else "disk"}


# --- load --------------------------------------------------------------------------------------------------------------------


class Load:
    """Producers, each with a connection of its own; they take batches from their source, then from the others, until none is left.

    So all of them have something to send as long as more batches are left than there are producers.
    """

    def __init__(self, server: Server, sources: dict[str, list[Batch]]) -> None:
        self.server = server
        self.tally = Tally()
        self.in_flight = InFlight()
        self.total = sum(map(len, sources.values()))
        self.taken = 0
        self.allowed = threading.Condition()
        self.share_allowed = 0.0
        self.threads = []
        waiting: dict[str, queue.SimpleQueue[Batch]] = {name: queue.SimpleQueue() for name in sources}
        for name, batches in sources.items():
            for batch in batches:
                waiting[name].put(batch)
            order = [waiting[name], *(each for other, each in waiting.items() if other != name)]
            self.threads += [threading.Thread(target=self._produce, args=(order,), name=f"{name}-{n}", daemon=True) for n in range(PRODUCERS[name])]
        assert self.total * AHEAD >= 2 * len(self.threads), "too few batches: not every producer could have one in flight at a kill"

    def _produce(self, sources: list[queue.SimpleQueue[Batch]]) -> None:
        try:
            with self.server.line(counter=self.in_flight) as line:
                while (batch := self._take(sources)) is not None:
                    body = write_body(batch.datas, batch.key, [batch.tag] * len(batch.datas) if batch.tag is not None else ())
                    answer, tries = insist(line, "POST", at(batch.topic), body)
                    self.tally.ack(batch, answer.json, tries)
        except BaseException as failure:
            self.tally.failed.append(failure)
            self.tally.reached.set()

    def _take(self, sources: list[queue.SimpleQueue[Batch]]) -> Batch | None:
        """Wait until one more batch is allowed, and take it. Return None when none is left."""
        with self.allowed:
            self.allowed.wait_for(lambda: self.taken < self.share_allowed * self.total)
            for source in sources:
                with contextlib.suppress(queue.Empty):
                    batch = source.get_nowait()
                    self.taken += 1
                    if self.taken == self.total:
                        self.share_allowed = 2.0  # nobody waits for what does not come
                        self.allowed.notify_all()
                    return batch
        return None

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def run_to(self, share: float, ahead: float = 0.0, then: Callable[[], None] | None = None) -> None:
        """Let producers go on until a share of all batches is acked; call `then` at once with the ack that makes it.

        They may take `ahead` more, and stop then. Raises what a producer failed of.
        """
        self.tally.arm(int(share * self.total), then)
        with self.allowed:
            self.share_allowed = share + ahead
            self.allowed.notify_all()
        reached = self.tally.reached.wait(LOAD_S_MAX)
        if self.tally.failed:
            raise self.tally.failed[0]
        assert reached, f"{self.tally.batches} of {self.total} batches after {LOAD_S_MAX} s"

    def finish(self) -> None:
        self.run_to(1.0)
        for thread in self.threads:
            thread.join(10.0)


def kill_one(server: Server, load: Load, who: str, share: float) -> str:
    """Kill the writer or a worker at a share of the load, while enough requests are in flight. Return a line for the summary.

    The victim is stopped in the midst of its work, with the ack that reaches the share: the writer alone, or all workers. So nothing is
    answered any more, every producer comes to have a request in flight, and the kill meets as many on a machine of any speed.
    """
    roles = server.settled_roles(SELF_RECOVERY_S_MAX)
    assert roles.writer is not None
    held = (roles.writer,) if who == "writer" else roles.workers

    def hold() -> None:
        for each in held:
            os.kill(each, signal.SIGSTOP)

    load.run_to(share, AHEAD, hold)
    in_flight = load.in_flight.wait_for(IN_FLIGHT_MIN, PILE_UP_S_MAX)
    pid, *others = held
    os.kill(pid, signal.SIGKILL)
    begun = time.monotonic()
    for each in others:
        os.kill(each, signal.SIGCONT)
    assert in_flight >= IN_FLIGHT_MIN, f"only {in_flight} requests in flight when the {who} was killed"

    def serves() -> bool:  # a change of nothing still goes through the writer
        try:
            return server.call("PUT", at("flights.fsync"), as_json(config_of("flights.fsync"))).status == 200
        except Cut:
            return False

    assert eventually(serves, SELF_RECOVERY_S_MAX), f"no answer {SELF_RECOVERY_S_MAX} s after the {who} was killed\n{server.log()}"
    spent = time.monotonic() - begun
    return f"{who} {pid} killed with {in_flight} requests in flight; served again after {spent * 1000:.0f} ms"


# --- proof -------------------------------------------------------------------------------------------------------------------


def mismatches(line: Line, topic: str, acked: dict[int, tuple[bytes, str | None]]) -> tuple[list[str], int, int]:
    """Read a topic back and compare it with the acks. Return (what is wrong, records, bytes of data)."""
    records, tombstones, head = read_all(line, topic)
    wrong = []
    if tombstones:
        wrong.append(f"{topic}: {len(tombstones)} tombstones, the first {tombstones[0]}")
    if [record.seq for record in records] != list(range(1, head + 1)):
        wrong.append(f"{topic}: seqs are not 1..{head}: {len(records)} records")
    read = {record.seq: (record.data, record.tag) for record in records}
    for word, seqs in (("lost", acked.keys() - read.keys()), ("not acked, yet there", read.keys() - acked.keys())):
        if seqs:
            wrong.append(f"{topic}: {len(seqs)} records {word}: {sorted(seqs)[:5]}")
    for seq in acked.keys() & read.keys():
        if acked[seq] != read[seq]:
            wrong.append(f"{topic}: other bytes at {seq}: sent {acked[seq]!r:.100}, read {read[seq]!r:.100}")
    return wrong, len(records), sum(len(record.data) for record in records)


def prove(server: Server, tally: Tally, sent: dict[str, Counter[bytes]], say: Callable[[str], None], when: str) -> list[str]:
    """Read everything and compare: with the acks by seq, and with the input as a multiset."""
    begun = time.monotonic()
    wrong: list[str] = []
    records = size = 0
    with server.line() as line:
        for topic, acked in sorted(tally.acked.items()):
            found, count, data_bytes = mismatches(line, topic, acked)
            wrong += found
            records += count
            size += data_bytes
            if Counter(data for data, _ in acked.values()) != sent[topic]:
                wrong.append(f"{topic}: what was acked is not what the input holds")
    missing = sent.keys() - tally.acked.keys()
    if missing:
        wrong.append(f"topics without an ack: {sorted(missing)}")
    spent = time.monotonic() - begun
    say(f"read back {when}: {records:,} records of {len(tally.acked)} topics, {size:,} bytes of data, {spent:.1f} s, {len(wrong)} mismatches")
    return wrong


def run(folder: Path, directory: Path, command: list[str]) -> int:
    """Do it all. Return the exit status."""
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:6.1f} s  {text}", flush=True)

    sources = {
        "webhooks": list(webhooks(folder)),
        "earthquakes": list(earthquakes(folder)),
        "flights": list(flights(folder)),
    }
    sent: dict[str, Counter[bytes]] = {}
    for batch in (batch for batches in sources.values() for batch in batches):
        sent.setdefault(batch.topic, Counter()).update(batch.datas)
    say(f"input: {sum(each.total() for each in sent.values()):,} records for {len(sent)} topics, {sum(map(len, sources.values())):,} batches")
    wrong: list[str] = []
    kills: list[str] = []
    with Server(directory, workers=2, command=command) as server:
        server.start()
        say(f"server ready {server.start_s:.2f} s after its start, pid {server.pid}, 2 workers")
        with server.line() as line:
            for topic in sorted(sent):
                insist(line, "PUT", at(topic), as_json(config_of(topic)))
        load = Load(server, sources)
        loading = time.monotonic()
        load.start()
        for who, share in KILLS:
            kills.append(kill_one(server, load, who, share))
            say(kills[-1])
        load.finish()
        spent = time.monotonic() - loading
        tally = load.tally
        say(f"{tally.batches:,} batches acked in {spent:.1f} s, {tally.retries} retries, {tally.landed_before} of them had landed the first time")
        wrong += tally.wrong
        wrong += prove(server, tally, sent, say, "from the running server")
        server.kill()
        server.start()
        kills.append("all processes killed at once")
        say(f"all processes killed at once; ready again after {server.start_s:.2f} s")
        wrong += prove(server, tally, sent, say, "after that restart")
        status = server.stop()
        if status != 0:
            wrong.append(f"the server ended with status {status} after SIGTERM")
    records = sum(each.total() for each in sent.values())
    size = sum(len(data) * count for each in sent.values() for data, count in each.items())
    print()
    for each in wrong[:20]:
        print(f"  MISMATCH {each}")
    summary = {
        "topics": len(sent),
        "records": records,
        "bytes of data": size,
        "requests sent": load.in_flight.sent,
        "answers cut off": load.in_flight.cut,
        "retries": tally.retries,
        "kills survived": len(kills),
        "mismatches": len(wrong),
    }
    for name, value in summary.items():
        print(f"{name:15} {value:>12,}")
    print(f"{'seconds':15} {time.monotonic() - begun:>12.1f}")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Load real input while processes are killed, and prove that nothing is lost.")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("DEMO_DATA") or ROOT.parent / "shared" / "data"))
    parser.add_argument("--serve", help="the command that starts the server (default: the topicsd beside this Python)")
    parser.add_argument("--keep", action="store_true", help="keep the server's directory")
    told = parser.parse_args()
    missing = [name for name in FILES if not (told.data / name).is_file()]
    if missing:
        print(f"demo: {', '.join(missing)} not in {told.data}: name the folder of the input with --data or DEMO_DATA", file=sys.stderr)
        return 2
    directory = Path(tempfile.mkdtemp(prefix="topicsd-demo-"))
    status = 1
    try:
        status = run(told.data, directory, shlex.split(told.serve) if told.serve else serve_command())
    except (AssertionError, Refused, OSError) as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
    finally:
        if status == 0 and not told.keep:
            shutil.rmtree(directory)
        else:
            print(f"the server's directory and log: {directory}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
