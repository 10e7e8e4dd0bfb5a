"""How long is a server not ready after its death? A whole engine: walk, replay, tables; beside the walk alone and the bytes of the log.

    python perf/restart.py [--mib 1024] [--directory DIR]

The log is in the page cache, as after the death of a process. Reach: 1 GB/s, ready in less than a second a GB (ARCHITECTURE section 12).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "out"))

from append_engine import Case, Engine

import build
from topicsd._native import log_walk
from topicsd._native.scan import Limits

CASES = [Case("disk", 1, 300, 1000), Case("disk", 100, 300, 64), Case("disk", 1000, 300, 16)]


def restart(directory: Path, case: Case, mib: int) -> dict[str, float | str]:
    """Write so many MiB, end the writer, start another, and time it."""
    import submit

    engine = Engine(directory)
    slot, topic_id = engine.topic("bench", durability=case.durability)
    wanted = mib << 20
    while engine.shared.shard(0)["bytes_written"] < wanted:  # type: ignore[operator]
        submit.run(engine.port, slot, topic_id, case.body, Limits(), case.depth, 0.2)
    head = engine.reader.head(slot)
    engine.close()
    shard = next(iter(sorted(directory.glob("log/shard-*"))))
    begun = time.perf_counter()
    report = log_walk.check(shard)
    walk_s = time.perf_counter() - begun
    begun = time.perf_counter()
    engine = Engine(directory)
    ready_s = time.perf_counter() - begun
    slot = engine.reader.find(b"bench")
    assert slot is not None and engine.reader.head(slot) == head, "not every record is there again"
    recovered_s = engine.shared.get("recovered_ms") / 1000
    engine.close()
    return {
        "case": f"batches of {case.batch} x {case.size} B",
        "gb": report.bytes / 1e9,
        "records": head,
        "walk_gb_s": report.bytes / walk_s / 1e9,
        "recovery_gb_s": report.bytes / max(recovered_s, 0.001) / 1e9,
        "ready_s_per_gb": ready_s / (report.bytes / 1e9),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    build.build()
    print(f"{'':28}{'GB':>7}{'records':>12}{'walk GB/s':>11}{'recovery GB/s':>15}{'ready s/GB':>12}")
    for case in CASES:
        with tempfile.TemporaryDirectory(dir=options.directory) as folder:
            row = restart(Path(folder) / "data", case, options.mib)
        print(
            f"{row['case']:28}{row['gb']:7.2f}{row['records']:12,}{row['walk_gb_s']:11.2f}{row['recovery_gb_s']:15.2f}{row['ready_s_per_gb']:12.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
