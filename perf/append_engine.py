"""How fast does the engine take writes, without HTTP? By class and batch size: a worker's native loop, the rings, the writer process, the log.

    python perf/append_engine.py [--seconds 2] [--directory DIR] [--json]

The worker scans each body anew, encodes it into its ring and takes the answers, as the native front does; no Python in that loop. Beside
each line stand the numbers of the prototype (ARCHITECTURE section 4) and what a bare pwrite of as many bytes takes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "out"))

import build
from topicsd._native.port import Completion, Port
from topicsd._native.reader import Reader
from topicsd._native.regions import Shared
from topicsd._native.scan import Limits
from topicsd.settings import Settings
from topicsd.writer import run_writer

READY_S_MAX = 20.0


@dataclass(frozen=True)
class Case:
    """One line: so many records of `size` bytes a batch, `depth` batches in flight, and what the prototype did (0: not known)."""

    durability: str
    batch: int
    size: int
    depth: int
    prototype: float = 0.0  # records/s
    cap_records: int = 2_000_000

    @property
    def name(self) -> str:
        return f"{self.durability}, {self.batch} x {self.size} B, {self.depth} in flight"

    @property
    def body(self) -> bytes:
        data = '{"k":"' + "x" * (self.size - 8) + '"}'
        return ('{"records":[' + ",".join(['{"data":' + data + "}"] * self.batch) + "]}").encode()


CASES = [
    Case("disk", 1, 64, 1),
    Case("disk", 1, 64, 1000, prototype=2.6e6),
    Case("disk", 100, 64, 64, prototype=7e6),
    Case("disk", 1000, 300, 16),
    Case("memory", 1, 64, 1000, prototype=2.6e6),
    Case("memory", 100, 64, 64, prototype=7e6),
    Case("ephemeral", 1, 64, 1000),
    Case("ephemeral", 100, 64, 64),
    Case("fsync", 1, 64, 1),
    Case("fsync", 1, 64, 64, prototype=180e3),
    Case("fsync", 100, 64, 64),
]


class Engine:
    """A writer process on a directory of its own, and one ring to it."""

    def __init__(self, directory: Path, bytes_max: int = 1 << 30, topics_max: int = 1024) -> None:
        settings = Settings(data_dir=directory, ephemeral_bytes_max=bytes_max, max_topics=topics_max)
        self.shared = Shared.create(topics_max=topics_max, index_bytes=8 << 30, ephemeral_bytes=bytes_max, ring_slots=1)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os._exit(run_writer(self.shared, settings))
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
        deadline = time.monotonic() + READY_S_MAX
        while not self.shared.ready:
            if time.monotonic() > deadline or os.waitpid(self.pid, os.WNOHANG)[0]:
                raise SystemExit("the writer did not get ready")
            time.sleep(0.01)
        number = self.shared.assign_ring()
        assert number is not None
        self.port = Port(self.shared, number)
        self.reader = Reader(self.shared, str(directory))

    def call(self, command: dict[str, object]) -> dict[str, object]:
        """Have the engine do a command and return its answer."""
        answers: list[Completion] = []
        self.port.call(json.dumps(command).encode())
        while not answers:
            self.port.drain(lambda _token, answer: answers.append(answer))
        return dict(json.loads(answers[0].payload))

    def topic(self, name: str, **config: object) -> tuple[int, int]:
        """Make a topic; return its slot and its id."""
        self.call({"op": "topic.put", "topic": name, "config": config})
        slot = self.reader.find(name.encode())
        assert slot is not None
        return slot, self.reader.topic_id(slot)

    def close(self) -> None:
        """End the writer cleanly."""
        os.kill(self.pid, signal.SIGUSR1)
        os.waitpid(self.pid, 0)


def cpu_us(pid: int) -> float:
    """Return the CPU time of a process, in microseconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1e6 / os.sysconf("SC_CLK_TCK")


def pwrite_records_s(directory: Path, case: Case, seconds: float) -> float:
    """Write as many bytes as a turn of that case has, over and over, to a file that was filled ahead; no sync."""
    turn = min(case.depth, 64)
    block = bytes(turn * (64 + case.batch * (16 + case.size)))
    path = directory / "bare"
    with path.open("wb", buffering=0) as file:
        file.write(bytes(64 << 20))
        rounds, at, end = 0, 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            os.pwrite(file.fileno(), block, at)
            at = (at + len(block)) % ((64 << 20) - len(block)) if len(block) < 64 << 20 else 0
            rounds += 1
    path.unlink()
    return rounds * turn * case.batch / seconds


def measure(engine: Engine, directory: Path, case: Case, seconds: float, number: int) -> dict[str, object]:
    """Run one case after a short warm-up."""
    import submit

    slot, topic_id = engine.topic(f"bench-{number}", durability=case.durability, cap_records=case.cap_records)
    limits = Limits()
    submit.run(engine.port, slot, topic_id, case.body, limits, case.depth, seconds / 5)
    before, own_before = cpu_us(engine.pid), time.process_time()
    batches, records, refused, took, latencies = submit.run(engine.port, slot, topic_id, case.body, limits, case.depth, seconds)
    writer_us, own_us = cpu_us(engine.pid) - before, (time.process_time() - own_before) * 1e6
    cuts = statistics.quantiles(latencies or [0, 0], n=100)
    engine.call({"op": "topic.delete", "topic": f"bench-{number}", "if_empty": False})
    return {
        "case": case.name,
        "records_s": records / took,
        "batches_s": batches / took,
        "refused": refused,
        "p50_us": cuts[49] / 1000,
        "p99_us": cuts[98] / 1000,
        "worker_us": own_us / max(batches, 1),
        "writer_us": writer_us / max(batches, 1),
        "pwrite_records_s": pwrite_records_s(directory, case, seconds / 5),
        "prototype_records_s": case.prototype,
        "ratio": records / took / case.prototype if case.prototype else None,
    }


def run(
    directory: Path, seconds: float, cases: list[Case] | None = None, show: Callable[[str], object] = lambda _line: None
) -> list[dict[str, object]]:
    """Measure all cases, each on a fresh topic of one server."""
    rows = []
    engine = Engine(directory / "data")
    try:
        for number, case in enumerate(cases or CASES):
            row = measure(engine, directory, case, seconds, number)
            rows.append(row)
            show(line(row))
    finally:
        engine.close()
    return rows


HEAD = (
    f"{'':36}{'records/s':>12}{'batches/s':>12}{'p50 us':>9}{'p99 us':>9}{'worker us':>11}{'writer us':>11}{'pwrite rec/s':>14}{'of prototype':>14}"
)


def line(row: dict[str, object]) -> str:
    """Lay out a row."""
    ratio = f"{row['ratio']:14.2f}" if row["ratio"] is not None else f"{'-':>14}"
    text = (
        f"{row['case']:36}{row['records_s']:12,.0f}{row['batches_s']:12,.0f}{row['p50_us']:9.1f}{row['p99_us']:9.1f}"
        f"{row['worker_us']:11.2f}{row['writer_us']:11.2f}{row['pwrite_records_s']:14,.0f}{ratio}"
    )
    return text + (f"  REFUSED {row['refused']}" if row["refused"] else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    build.build()
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        if not options.json:
            print(HEAD)
        rows = run(Path(folder), options.seconds, show=print if not options.json else lambda _line: None)
        if options.json:
            print(json.dumps(rows))


if __name__ == "__main__":
    main()
