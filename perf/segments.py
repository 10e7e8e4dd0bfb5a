"""What do segments cost? Build, verify on first touch, look again, scrub, rewrite; beside copying and hashing the same bytes.

    python perf/segments.py [--records 300000] [--body 300] [--directory DIR]

The files are in the page cache. "first touch" is what a reader pays once a map; "again" what it pays for each later page.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from topicsd._native import frame
from topicsd._native.segment import SegmentView
from topicsd._native.segment_build import Writer
from topicsd._native.segment_repair import Examiner


def seconds(action: Callable[[], object]) -> float:
    """Return how long it takes, once: what is cached by it is the point."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--body", type=int, default=300)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    count = options.records
    entries = [frame.entry(frame.Record(b'"' + b"x" * (options.body - 2) + b'"', None, b"tag-%d" % k)) for k in range(1000)]
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        source = Writer(folder)
        source.begin(1, 1)
        for number in range(count):
            source.add(number + 1, number, entries[number % 1000])
        source.finish()
        index, data, tags = (next(Path(folder).glob(f"*.{kind}")).read_bytes() for kind in ("idx", "data", "tag"))
        view = SegmentView(index, data, tags, marks=True)
        copy = seconds(lambda: bytearray(data))
        first = seconds(lambda: view.check(1, count))
        again = seconds(lambda: [view.check(1 + at, 1000) for at in range(0, count - 1000, 1000)])
        scrub = seconds(lambda: Examiner().examine(data, index, tags))
        target = Writer(folder)

        def rewrite() -> None:
            target.begin(1, 1, 1)
            target.add_all(view)
            target.finish()

        wrote = seconds(rewrite)
    size = len(data) / 1e9
    print(f"{count} records, data {len(data) >> 20} MiB, index {len(index) >> 20} MiB, tags {len(tags) >> 10} KiB")
    print(f"copy            {size / copy:8.2f} GB/s")
    print(f"first touch     {size / first:8.2f} GB/s {first / count * 1e9:8.1f} ns/record")
    print(f"again           {'':13} {again / count * 1e9:8.2f} ns/record in pages of 1000")
    print(f"scrub           {size / scrub:8.2f} GB/s")
    print(f"rewrite, synced {size / wrote:8.2f} GB/s {count / wrote / 1e6:8.2f} M records/s")


if __name__ == "__main__":
    main()
