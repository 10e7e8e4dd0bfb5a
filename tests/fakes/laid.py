"""A topic laid into shared memory and log files without a writer: what the reader sees, made from an oracle's list of fates."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

from oracle.diff_oracle import CAPPED, DELETED, EXPIRED, HOLE, LIVE, Fate, Topic
from topicsd._native import frame
from topicsd._native.regions import Shared
from topicsd._native.scan import canonical
from topicsd._native.testing import lay_entries, lay_ephemeral, lay_files, lay_hole, lay_topic, lay_words

EPHEMERAL = 255
INDEX_DELETED, INDEX_TAGGED = 1, 4
REASONS = {"cap": 1, "ttl": 2, "mixed": 3, "recreated": 4, "source_trim": 5, "corrupt": 6}
DEDUPE_NODE, AUTO = 4, 3


class Log:
    """Write frames into log files of `file_bytes` each, as a shard would."""

    def __init__(self, shared: Shared, data_dir: Path, shard: int = 0, file_bytes: int = 2048) -> None:
        self.shared, self.shard, self.file_bytes = shared, shard, file_bytes
        self.folder = data_dir / "log" / f"shard-{shard:02d}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.rows: list[tuple[int, int, bool]] = []
        self.content = bytearray()

    def append(self, records: list[frame.Record], **header: int) -> list[int]:
        """Write one frame; return where its record entries stand."""
        length = len(frame.build_append(records))
        if not self.rows or len(self.content) + length > self.rows[-1][1]:
            self.close_file()
            first = self.rows[-1][0] + self.rows[-1][1] if self.rows else 0
            self.rows.append((first, max(self.file_bytes, 128 + length), False))
            self.content = bytearray(128)  # where the START frame stands
        position = self.rows[-1][0] + len(self.content)
        at = position + 64
        self.content += frame.build_append(records, shard=self.shard, position=position, **header)
        places = []
        for record in records:
            places.append(at | self.shard << 56)
            at += len(frame.entry(record))
        return places

    def close_file(self) -> None:
        if self.rows:
            self.path(-1).write_bytes(bytes(self.content).ljust(self.rows[-1][1], b"\0"))

    def path(self, number: int) -> Path:
        return self.folder / f"{self.rows[number][0]:020d}.log"

    def publish(self) -> None:
        """Make the files what has been appended so far."""
        self.close_file()
        lay_files(self.shared, self.shard, self.rows)


def stored(fate: Fate) -> frame.Record:
    """Turn a fate into the record as a log holds it."""
    tag = canonical(fate.tag) if fate.tag is not None else None
    node = canonical(fate.node) if fate.node is not None else None
    return frame.Record(fate.data.encode(), fate.meta.encode() if fate.meta is not None else None, tag, node)


def lay(shared: Shared, log: Log | None, topic: Topic, batch: int = 3) -> int:
    """Lay a topic and return its slot; without a log its records are ephemeral. What has expired by now is not swept."""
    flags = AUTO | (DEDUPE_NODE if topic.dedupe_node else 0)
    slot = lay_topic(shared, topic.name.encode(), topic.epoch, ttl_ms=topic.ttl_ms, flags=flags, durability=2 if log else 0)
    offset = seq = 0
    while seq < topic.head:
        if topic.fates[seq].kind == HOLE:
            lay_hole(shared, slot, seq + 1, seq + 1, REASONS[topic.fates[seq].reason])
            seq += 1
            continue
        run = list(takewhile(lambda fate: fate.kind != HOLE, topic.fates[seq : seq + batch]))
        records = [stored(fate) for fate in run]
        if log is not None:
            places = log.append(records, topic_id=topic.epoch, base_seq=seq + 1, ts=run[0].ts)
        else:
            raw = b"".join(frame.entry(record) for record in records)
            lay_ephemeral(shared, offset, raw)
            places = []
            for record in records:
                places.append(EPHEMERAL << 56 | offset)
                offset += len(frame.entry(record))
        for place, fate in zip(places, run, strict=True):
            seq += 1
            kept = (INDEX_DELETED if fate.kind == DELETED else 0) | (INDEX_TAGGED if fate.tag is not None else 0)
            lay_entries(shared, slot, seq, [(place, fate.size(), kept, fate.ts)])
    if log is not None:
        log.publish()
    lay_floors(shared, slot, topic)
    return slot


def lay_floors(shared: Shared, slot: int, topic: Topic) -> None:
    """Store the words that the writer keeps: everything that fates say, but nothing that only the clock says."""
    kinds = {seq: topic.fate(seq).kind for seq in range(1, topic.head + 1)}
    live = [seq for seq, kind in kinds.items() if kind == LIVE]
    earliest = live[0] if live else topic.head + 1
    hole_lost = max((seq for seq, kind in kinds.items() if kind == HOLE and seq < earliest), default=0)
    lay_words(
        shared,
        slot,
        cap_lost=max((seq for seq, kind in kinds.items() if kind == CAPPED), default=0),
        ttl_lost=max((seq for seq, kind in kinds.items() if kind == EXPIRED), default=0),
        hole_lost=hole_lost,
        hole_reason=REASONS[topic.fate(hole_lost).reason] if hole_lost else 0,
        earliest=earliest,
        count=len(live),
        bytes=sum(topic.fate(seq).size() for seq in live),
        deleted_in_index=sum(kind == DELETED for kind in kinds.values()),
        last_write_ms=topic.fates[-1].ts if topic.fates else 0,
        head=topic.head,
    )
