"""What does a record in the tail cost in memory, one that is sealed, and what do idle topics cost? Beside 24 B: what the index cannot do without.

    python perf/memory.py [--records 4000000] [--sealed 10000000] [--topics 100000] [--directory DIR]

Counted is what nobody can take away without swap: RssAnon + RssShmem of the writer, in which all shared tables are touched.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "out"))

from append_engine import Case, Engine

import build
from topicsd._native.scan import Limits
from topicsd._native.sealer import Sealer
from topicsd.segments.sealing import Policy, Rounds

PARTS = 5


def resident_bytes(pid: int) -> int:
    """Return RssAnon + RssShmem of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "RssShmem")))


def records(engine: Engine, wanted: int) -> float:
    """Append so many records of 64 B; return the bytes that each of them keeps resident."""
    import submit

    case = Case("disk", 100, 64, 64)
    slot, topic_id = engine.topic("records", durability="disk", cap_records=0)
    submit.run(engine.port, slot, topic_id, case.body, Limits(), case.depth, 0.3)
    before, head = resident_bytes(engine.pid), engine.reader.head(slot)
    while engine.reader.head(slot) < head + wanted:
        submit.run(engine.port, slot, topic_id, case.body, Limits(), case.depth, 0.1)
    return (resident_bytes(engine.pid) - before) / (engine.reader.head(slot) - head)


def sealed(directory: Path, wanted: int) -> tuple[float, int]:
    """Append so many records of 64 B in parts, each of them sealed; return the bytes that each record keeps resident, and how many they are.

    Held against each other are moments with everything sealed. What the longest tail so far and its snapshots have needed stays with the process,
    however many records are sealed, and comes in steps: so the median of the parts counts. What each record kept would move it as much as any.
    """
    import submit

    case = Case("disk", 100, 64, 64)
    engine = Engine(directory)
    slot, topic_id = engine.topic("sealed", durability="disk")

    def publish(rows: list[tuple[int, int, bytes]]) -> list[str]:
        answer: Any = engine.call({"op": "segment.publish", "rows": [[at, number, body.hex()] for at, number, body in rows]})
        return list(answer["ok"]["codes"])

    rounds = Rounds(Sealer(engine.shared, str(directory)), str(directory), publish, Policy())

    def grow(head: int) -> int:
        """Have so many records, all of them sealed; return how many there are."""
        while engine.reader.head(slot) < head:
            submit.run(engine.port, slot, topic_id, case.body, Limits(), case.depth, 0.1)
            rounds.seal_all(slot, topic_id)
        end = time.monotonic() + 60
        while rounds.done.records < engine.reader.head(slot):  # what is not synced yet can not be sealed
            if time.monotonic() > end or rounds.done.failed:
                raise SystemExit(f"not sealed: {rounds.done}")
            rounds.seal_all(slot, topic_id)
        return engine.reader.head(slot)

    try:
        heads, resident = [grow(wanted)], [least_resident(engine.pid)]
        for _ in range(PARTS):
            heads.append(grow(heads[-1] + wanted // PARTS))
            resident.append(least_resident(engine.pid))
        each = [(after - before) / (last - first) for (first, last), (before, after) in zip(pairwise(heads), pairwise(resident), strict=True)]
        return statistics.median(each), heads[-1] - heads[0]
    finally:
        engine.close()


def least_resident(pid: int) -> int:
    """Return the least of some seconds: a snapshot in the making is no record's."""
    samples = []
    for _ in range(30):
        samples.append(resident_bytes(pid))
        time.sleep(0.1)
    return min(samples)


def topics(engine: Engine, wanted: int) -> int:
    """Create so many topics with one record each; return the bytes that all of them keep resident."""
    before = resident_bytes(engine.pid)
    done = 0
    for number in range(wanted):
        engine.port.call(json.dumps({"op": "topic.put", "topic": f"tenant-{number}.events", "config": {}}).encode())
        if number % 256 == 255 or number == wanted - 1:
            while done <= number:
                done += engine.port.drain(lambda _token, _answer: None)
    return resident_bytes(engine.pid) - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--sealed", type=int, default=10_000_000)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    build.build()
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        engine = Engine(Path(folder) / "data", topics_max=options.topics + 100)
        try:
            begun = time.perf_counter()
            made = topics(engine, options.topics)
            print(
                f"idle topics    {made / 1e6:8.1f} MB for {options.topics:,}   {options.topics / (time.perf_counter() - begun):,.0f} made a second",
                flush=True,
            )
            print(f"tail records   {records(engine, options.records):8.1f} B each", flush=True)
        finally:
            engine.close()
        each, made = sealed(Path(folder) / "sealed", options.sealed)
        print(f"sealed records {each:8.3f} B each of {made:,}")


if __name__ == "__main__":
    main()
