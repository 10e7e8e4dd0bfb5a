"""How many durable groups a second does the log take? Beside a bare loop of pwrite and fdatasync on a file that was filled ahead.

    python perf/append_log.py [--seconds 3] [--frames 64] [--body 300] [--directory DIR]

One group of frames is in flight at a time, so this is the disk plus two thread wake-ups; the sequencer overlaps groups.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

from topicsd._native import frame, log_walk
from topicsd._native.log import Shard

CEILING = 8


def percentiles(samples: list[float]) -> str:
    ranked = sorted(samples)
    return f"p50 {statistics.median(ranked) * 1e3:.2f} ms, p99 {ranked[len(ranked) * 99 // 100] * 1e3:.2f} ms"


def bare(path: Path, seconds: float, group: bytes) -> tuple[float, list[float]]:
    """Write and sync the same bytes without anything around."""
    size = 64 << 20
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, bytes(size), 0)
    os.fsync(fd)
    samples, at, end = [], 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        os.pwrite(fd, group, at)
        os.fdatasync(fd)
        samples.append(time.perf_counter() - start)
        at = (at + len(group)) % (size - len(group))
    os.close(fd)
    return len(samples) / seconds, samples


def shard_groups(directory: Path, seconds: float, raw: bytes, frames: int) -> tuple[float, list[float]]:
    """Append, flush, ask for the sync, wait for it."""
    shard = Shard(directory)
    shard.start(log_walk.check(directory))
    threads = [threading.Thread(target=loop) for loop in (shard.run_sync_loop, shard.run_prepare_loop)]
    for thread in threads:
        thread.start()
    samples, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(frames):
            shard.append(raw)
        shard.flush_group()
        shard.want_sync()
        while shard.synced_position < shard.written_position:
            time.sleep(0)
        samples.append(time.perf_counter() - start)
    shard.stop_loops()
    for thread in threads:
        thread.join()
    shard.close()
    return len(samples) / seconds, samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--frames", type=int, default=64)
    parser.add_argument("--body", type=int, default=300)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    raw = frame.build(CEILING, os.urandom(options.body))
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        rate, samples = bare(Path(folder) / "bare", options.seconds, raw * options.frames)
        print(f"bare   {rate:9,.0f} groups/s  {rate * options.frames:12,.0f} frames/s  {percentiles(samples)}")
        rate, samples = shard_groups(Path(folder) / "shard-00", options.seconds, raw, options.frames)
        print(f"shard  {rate:9,.0f} groups/s  {rate * options.frames:12,.0f} frames/s  {percentiles(samples)}")


if __name__ == "__main__":
    main()
