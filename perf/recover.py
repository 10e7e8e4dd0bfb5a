"""How fast is a log read again after a restart? The walk alone (nobody looks at the frames), beside hashing and copying the same bytes.

    python perf/recover.py [--mib 256] [--body 300] [--directory DIR]

The files are in the page cache. `recover` of the whole server adds what the replay of each frame costs.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from topicsd._native import frame, log_walk
from topicsd._native.log import Shard

CEILING = 8


def make_log(directory: Path, mib: int, body_bytes: int) -> int:
    """Fill a log with frames of `body_bytes` and return how many."""
    shard = Shard(directory)
    shard.start(log_walk.check(directory))
    raw = frame.build(CEILING, os.urandom(body_bytes))
    frames = 0
    while shard.end_position < mib << 20:
        shard.append(raw)
        frames += 1
        if frames % 1000 == 0:
            shard.flush_group()
    shard.flush_group()
    shard.close()
    return frames


def seconds(action: object, repeats: int = 3) -> float:
    """Return the best time of a few."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        action()  # type: ignore[operator]
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--body", type=int, nargs="*", default=[64, 300, 30_000])
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    buffer = os.urandom(64 << 20)
    print(f"{'':24}{'copy':>9}{'hash':>9}{'walk':>9}   GB/s      frames/s")
    for body in options.body:
        with tempfile.TemporaryDirectory(dir=options.directory) as folder:
            directory = Path(folder) / "shard-00"
            frames = make_log(directory, options.mib, body)
            report = log_walk.check(directory)
            took = seconds(lambda directory=directory: log_walk.check(directory))
            copy = len(buffer) / seconds(lambda: bytearray(buffer)) / 1e9
            hashed = len(buffer) / seconds(lambda: frame.hash64(buffer)) / 1e9
            print(f"{frames:>10} x {body:>6} B    {copy:9.1f}{hashed:9.1f}{report.bytes / took / 1e9:9.2f}          {report.frames / took:12,.0f}")


if __name__ == "__main__":
    main()
