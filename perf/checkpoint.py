"""How long does a checkpoint hold the writer, how large is it, and how long does a start from it take, beside a start from the whole log?

    python perf/checkpoint.py [--topics 20000] [--records 3] [--directory DIR]

One process, no socket: topics of a few records each, first as tails in the log, then sealed into packs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from topicsd._native import checkpoint, frame, scan
from topicsd._native.regions import Shared
from topicsd._native.sealer import Sealer
from topicsd.checkpoint import CheckpointOptions
from topicsd.clock import SystemClock
from topicsd.engine import Options
from topicsd.segments.sealing import Policy, Rounds
from topicsd.store import Store, StoreOptions

APPEND = 2


def ms(action: Callable[[], object]) -> float:
    """Return how long it takes."""
    start = time.perf_counter()
    action()
    return 1000 * (time.perf_counter() - start)


def opened(shared: Shared, directory: Path, topics: int) -> Store:
    shared.set("generation", shared.get("generation") + 1)
    options = StoreOptions(engine=Options(topics_max=topics + 1), checkpoint=CheckpointOptions(0, 0))
    store = Store(shared, str(directory), options, SystemClock(), lock=False)
    store.open()
    shared.set("ready", 1)
    return store


def fill(store: Store, topics: int, records: int) -> None:
    body = scan.parse_write(b'{"records":[' + b",".join([b'{"data":{"n":1}}'] * records) + b"]}")
    clock = store.clock
    for number in range(topics):
        store.engine.call({"op": "topic.put", "topic": f"t{number:07d}", "config": {}})
        slot = store.sequencer.find(b"t%07d" % number)
        raw = frame.build(APPEND, body.encode(None), count=records, topic_id=store.sequencer.topic(slot)["topic_id"])
        store.sequencer.append_frame(slot, raw, number + 1, clock.wall_ms(), clock.mono_ms())
        if number % 1000 == 999:
            store.sequencer.sync()
            while store.sequencer.take_finished() is not None:
                pass
    store.sequencer.sync()


def show(store: Store, label: str, topics: int) -> None:
    held = min(ms(lambda: checkpoint.pack(store.sequencer)) for _ in range(3))
    whole = ms(store.checkpoints.take)
    size = store.checkpoints.size
    each = f"{1000 * held / topics:.2f} us and {size // topics} B a topic"
    print(f"{label:8} holds the writer {held:8.1f} ms, {size >> 10} KiB, {each}; whole {whole:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topics", type=int, default=20_000)
    parser.add_argument("--records", type=int, default=3)
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as folder:
        directory = Path(folder)
        shared = Shared.create(topics_max=given.topics + 1, index_bytes=2 << 30, ephemeral_bytes=64 << 20, body_bytes_max=1 << 20, ring_slots=1)
        store = opened(shared, directory, given.topics)
        fill(store, given.topics, given.records)
        store.close()
        print(f"start from the whole log {ms(lambda: opened(shared, directory, given.topics).close()):.0f} ms")
        store = opened(shared, directory, given.topics)
        show(store, "tails", given.topics)
        segments = store.engine.segments
        publish = lambda rows: [segments.publish(slot, topic_id, body) for slot, topic_id, body in rows]  # noqa: E731
        rounds = Rounds(Sealer(shared, folder, store.files), folder, publish, Policy(age_ms_max=1))
        took = ms(lambda: rounds.round(store.clock.wall_ms() + 1000))
        print(f"sealed   {rounds.done.segments} topics into {rounds.done.packs} packs in {took:.0f} ms")
        show(store, "sealed", given.topics)
        store.close()
        print(f"start from the snapshot {ms(lambda: opened(shared, directory, given.topics).close()):.0f} ms")


if __name__ == "__main__":
    main()
