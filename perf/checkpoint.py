"""What does a checkpoint cost: the writer's time, writes that come meanwhile, bytes on the disk, and a start from it beside one from the whole log?

    python perf/checkpoint.py [--topics 20000] [--records 3] [--directory DIR]
    python perf/checkpoint.py --topics 200000 --records 50 --seconds 5      writes during checkpoints beside writes without, in turn

One process, no socket. Writes come by a clock (open loop, one record to a topic by chance, class disk): what holds the writer up shows in all that
are due meanwhile. Their latency ends when they are published.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from topicsd._native import frame, scan
from topicsd._native.regions import Shared
from topicsd._native.sealer import Sealer
from topicsd._native.taking import Taking
from topicsd.checkpoint import SLICE_EVERY_MS, CheckpointOptions
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


def opened(shared: Shared, directory: Path, topics: int, threaded: bool = False) -> Store:
    shared.set("generation", shared.get("generation") + 1)
    options = StoreOptions(engine=Options(topics_max=topics + 1), checkpoint=CheckpointOptions(0, 0))
    store = Store(shared, str(directory), options, SystemClock(), lock=False, threaded=threaded)
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
    held = min(ms(Taking(store.sequencer).look) for _ in range(3))
    whole = ms(store.checkpoints.take)
    size = store.checkpoints.size
    each = f"{1000 * held / topics:.2f} us and {size // topics} B a topic"
    print(f"{label:8} holds the writer {held:8.1f} ms, {size >> 10} KiB, {each}; whole {whole:.0f} ms")


class Writes:
    """Writes of one record each, by a clock."""

    def __init__(self, store: Store, topics: int, a_second: int) -> None:
        self.store, self.topics, self.gap_ns = store, topics, 1_000_000_000 // a_second
        self.raw = scan.parse_write(b'{"records":[{"data":{"n":1}}]}').encode(None)
        self.chance, self.token = random.Random(5), 1 << 40

    def during(self, goes_on: Callable[[], bool]) -> list[float]:
        """Write while it goes on, with the checkpoint's slices in between; return the latencies in ms."""
        sequencer, checkpoints, clock = self.store.sequencer, self.store.checkpoints, self.store.clock
        took, due_ns, pack_at_ns = list[float](), time.perf_counter_ns(), 0
        self.packing = 0  # writes while there was still something to pack
        while goes_on():
            now_ns = time.perf_counter_ns()
            if checkpoints.packing is None:
                checkpoints.step()
            elif now_ns >= pack_at_ns:
                checkpoints.pack_some()
                pack_at_ns = time.perf_counter_ns() + SLICE_EVERY_MS * 1_000_000
            if (now_ns := time.perf_counter_ns()) < due_ns:
                time.sleep(min(due_ns - now_ns, 100_000) / 1e9)
                continue
            sent = list[int]()
            while due_ns <= now_ns and len(sent) < 64:
                slot = self.chance.randrange(self.topics)
                self.token += 1
                record = frame.build(APPEND, self.raw, count=1, topic_id=sequencer.topic(slot)["topic_id"])
                sequencer.append_frame(slot, record, self.token, clock.wall_ms(), clock.mono_ms())
                sent.append(due_ns)
                due_ns += self.gap_ns
            sequencer.flush()
            sequencer.fail_unsynced()  # publishes what has been synced
            while sequencer.take_finished() is not None:
                pass
            done_ns = time.perf_counter_ns()
            took += [(done_ns - each) / 1e6 for each in sent]
            self.packing = len(took) if checkpoints.packing is not None else self.packing
        return took


def writes(store: Store, topics: int, seconds: float, a_second: int) -> None:
    """Measure writes without and during checkpoints, in turn; then the bytes of checkpoints by how many topics have changed."""
    load, checkpoints = Writes(store, topics, a_second), store.checkpoints
    for _ in range(6):
        until = time.monotonic() + seconds
        without = load.during(lambda until=until: time.monotonic() < until)
        taken = checkpoints.next_number
        checkpoints._begin(*checkpoints._plan())
        begun = time.monotonic()
        with_it = load.during(lambda: checkpoints.packing is not None or checkpoints._running is not None)
        took, layers = time.monotonic() - begun, len(checkpoints.kept[-1].layers)
        parts = [sorted(without), sorted(with_it), sorted(with_it[: load.packing]), sorted(with_it[load.packing :])]
        p50, p99 = ([each[len(each) * share // 100] if each else 0.0 for each in parts] for share in (50, 99))
        told = f"p50 {p50[0]:.3f} and {p50[1]:.3f} ms, p99 {p99[0]:.3f} and {p99[1]:.3f} ms: {p99[1] / p99[0]:.2f} x"
        told += f" ({p99[2]:.3f} while it was packed, {p99[3]:.3f} while it was written)"
        pause = store.figures.get("checkpoint_held_us") / 1000
        size = f"{checkpoints.size >> 10} KiB, layer {layers}, in {took:.1f} s, pause at most {pause:.1f} ms"
        print(f"checkpoint {taken}: writes without and during it {told}; {len(with_it)} writes meanwhile, {size}", flush=True)
    for changed in (0, topics // 2000, topics // 200, topics // 20, topics // 4):
        for number in range(changed):
            record = frame.build(APPEND, load.raw, count=1, topic_id=store.sequencer.topic(number)["topic_id"])
            store.sequencer.append_frame(number, record, number + 1, store.clock.wall_ms(), store.clock.mono_ms())
        store.sequencer.sync()
        while store.sequencer.take_finished() is not None:
            pass
        for _ in range(2):  # one in each chain
            checkpoints.take()
            while checkpoints._running is not None:
                checkpoints.step()
                time.sleep(0.001)
        print(f"{changed:7} topics have changed: {checkpoints.size >> 10} KiB, {len(checkpoints.kept[-1].layers)} layers", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topics", type=int, default=20_000)
    parser.add_argument("--records", type=int, default=3)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--seconds", type=float, default=0, help="of writes without a checkpoint, before each; 0: none")
    parser.add_argument("--rate", type=int, default=4000, help="writes a second")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as folder:
        directory = Path(folder)
        shared = Shared.create(topics_max=given.topics + 1, index_bytes=2 << 30, ephemeral_bytes=64 << 20, body_bytes_max=1 << 20, ring_slots=1)
        store = opened(shared, directory, given.topics)
        fill(store, given.topics, given.records)
        store.close()
        if given.seconds:
            store = opened(shared, directory, given.topics, threaded=True)
            print(f"{given.topics} topics hold {given.topics * given.records} records", flush=True)
            writes(store, given.topics, given.seconds, given.rate)
            store.close()
            print(f"start from the snapshot {ms(lambda: opened(shared, directory, given.topics).close()):.0f} ms")
            return
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
