"""A data directory whose segments a test writes, and its export."""

import json
import os
from pathlib import Path
from typing import Any

from oracle.segment_oracle import Row
from topicsd._native import frame
from topicsd._native.segment_build import Writer
from topicsd.lake.export import Exporter, Report
from topicsd.lake.sources import DirectorySource
from topicsd.lake.storage import Storage


def entry(data: object, tag: str | None = None, meta: dict[str, str] | None = None) -> bytes:
    stored = None if meta is None else json.dumps(meta).encode()
    return frame.entry(frame.Record(json.dumps(data).encode(), stored, None if tag is None else tag.encode(), None, 0, 0))


def records(first: int, count: int, size: int = 10, ts: int = 1000) -> list[Row]:
    return [Row(first + k, ts + first + k, entry("x" * size, tag=f"t{k % 3}", meta={"k": str(k)})) for k in range(count)]


class Lake:
    """Topics by name, each with an id; `epoch` gives a topic another one."""

    def __init__(self, folder: Path, kind: str = "delta") -> None:
        self.kind = kind  # of the lake table that it goes into
        self.data, self.to = folder / "data", folder / "export"
        self.ids: dict[str, int] = {}

    def recreate(self, name: str) -> None:
        self.ids[name] = max(self.ids.values()) + 1

    def write(self, name: str, rows: list[Row]) -> Path:
        """Write a segment; the path of its data part."""
        topic_id = self.ids.setdefault(name, max(self.ids.values(), default=0) + 1)
        folder = self.data / "topics" / f"{topic_id & 0xFF:02x}" / f"{topic_id:016x}"
        folder.mkdir(parents=True, exist_ok=True)
        writer = Writer(folder)
        writer.begin(topic_id, rows[0].seq)
        for row in rows:
            writer.add(row.seq, row.ts, row.entry, row.flags, row.count)
        writer.finish()
        path = folder / f"{rows[0].seq:020d}.data"
        os.utime(path, ns=(1, 1))
        return path

    def export(self, prune: bool = False, to: Storage | None = None, **more: Any) -> Report:
        names = {topic_id: name for name, topic_id in self.ids.items()}
        return Exporter(DirectorySource(self.data, names), to or self.to, prune=prune, **more).run()
