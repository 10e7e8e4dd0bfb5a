"""The oracle of the kill tests: what was acked, what was deleted, and what a reader may therefore see. It imports nothing of topicsd.

A ledger holds one topic. Producers tell it every batch they mean to write and every ack; the deleter every acked delete. At a moment when
nobody writes, what the server shows must be exactly the acked records that were not deleted, each once, at its seq, with its bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from e2e.client import Page, Record

Tombstone = dict[str, Any]
SHOWN_MAX = 5  # so many examples in a message


@dataclass(slots=True)
class Batch:
    """One write: the datas in order, its producer, its number there, its key and (all records') tag."""

    producer: str
    number: int
    datas: tuple[bytes, ...]
    key: str
    tag: str | None = None
    first_seq: int = 0
    tries: int = 0


@dataclass
class Ledger:
    """What one topic must hold. `volatile`: records may be lost, but only under a tombstone."""

    topic: str
    durability: str
    expected: dict[int, tuple[bytes, str | None]] = field(default_factory=dict)
    acked: list[Batch] = field(default_factory=list)
    deleted: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    last_of: dict[str, tuple[int, int]] = field(default_factory=dict)  # producer -> (number, last seq)
    trims: list[int] = field(default_factory=list)  # acked deletes below a seq that were not taken in yet
    retried: set[bytes] = field(default_factory=set)  # datas of batches that were sent more than once
    highest: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def volatile(self) -> bool:
        return self.durability == "ephemeral"

    def ack(self, batch: Batch, body: dict[str, Any], tries: int) -> None:
        """Take an ack in: seqs contiguous, never used before, in the producer's order."""
        first, last, count = body["first_seq"], body["last_seq"], len(batch.datas)
        batch.first_seq, batch.tries = first, tries
        with self._lock:
            if last - first + 1 != count or body.get("seqs", list(range(first, last + 1))) != list(range(first, last + 1)):
                self.problems.append(f"{batch.key}: acked as {first}..{last}, it has {count} records")
            if body["head_seq"] < last:
                self.problems.append(f"{batch.key}: head {body['head_seq']} below its own last seq {last}")
            for seq, data in enumerate(batch.datas, first):
                if seq in self.expected:
                    self.problems.append(f"seq {seq} was acked twice: {self.expected[seq][0][:60]!r} and {data[:60]!r}")
                self.expected[seq] = data, batch.tag
            number, before = self.last_of.get(batch.producer, (0, 0))
            if number >= batch.number or before >= first:
                self.problems.append(f"{batch.producer}: batch {batch.number} at {first} after batch {number} at {before}")
            self.last_of[batch.producer] = batch.number, last
            if tries > 1:
                self.retried.update(batch.datas)
            self.acked.append(batch)
            self.highest = max(self.highest, last)

    def delete_before(self, seq: int) -> None:
        """Take an acked delete of everything below `seq` in."""
        with self._lock:
            self.deleted.update(each for each in self.expected if each < seq)

    def delete_batch(self, batch: Batch) -> None:
        """Take an acked delete by the batch's own tag in."""
        with self._lock:
            self.deleted.update(range(batch.first_seq, batch.first_seq + len(batch.datas)))

    def live(self, from_seq: int = 0) -> dict[int, tuple[bytes, str | None]]:
        return {seq: each for seq, each in self.expected.items() if seq > from_seq and seq not in self.deleted}

    def check(self, records: Iterable[Record], tombstones: Iterable[Tombstone], head: int, from_seq: int = 0) -> list[str]:
        """Compare a whole read above `from_seq` with what must be there. Return what is wrong, in words."""
        wrong = list(self.problems)
        seen: dict[int, Record] = {}
        last = from_seq
        for record in records:
            if record.seq <= last:
                wrong.append(f"seq {record.seq} after {last}")
            last = max(last, record.seq)
            seen[record.seq] = record
        holes = ranges(tombstones)
        if holes and not self.volatile:
            wrong.append(f"tombstones though no record may be lost: {list(tombstones)[:SHOWN_MAX]}")
        if head < self.highest:
            wrong.append(f"head {head} below the highest acked seq {self.highest}")
        must = self.live(from_seq)
        wrong += _differences(seen, must, holes, self.retried if self.volatile else set())
        silent = [seq for seq in range(from_seq + 1, head + 1) if seq not in seen and seq not in self.deleted and not inside(seq, holes)]
        if silent:
            wrong.append(f"silent gaps: {silent[:SHOWN_MAX]} of {len(silent)}")
        times: dict[bytes, int] = {}
        for record in seen.values():
            times[record.data] = times.get(record.data, 0) + 1
        doubled = [data for data, count in times.items() if count > 1]
        if doubled:
            wrong.append(f"records that stand twice: {[data[:60] for data in doubled[:SHOWN_MAX]]} of {len(doubled)}")
        return [f"{self.topic} ({self.durability}): {each}" for each in wrong]


def _differences(
    seen: dict[int, Record], must: dict[int, tuple[bytes, str | None]], holes: list[tuple[int, int]], may_stand: set[bytes]
) -> list[str]:
    wrong = []
    lost = [seq for seq in must if seq not in seen and not inside(seq, holes)]
    if lost:
        wrong.append(f"acked and not there: {lost[:SHOWN_MAX]} of {len(lost)}")
    made_up = [seq for seq, record in seen.items() if seq not in must and record.data not in may_stand]
    if made_up:
        wrong.append(
            f"there, and neither acked nor left after a delete: {[(seq, seen[seq].data[:60]) for seq in made_up[:SHOWN_MAX]]} of {len(made_up)}"
        )
    other = [seq for seq, record in seen.items() if seq in must and (record.data, record.tag) != must[seq]]
    if other:
        wrong.append(f"other bytes or tags: {[(seq, seen[seq][1:], must[seq]) for seq in other[:SHOWN_MAX]]} of {len(other)}")
    return wrong


def ranges(tombstones: Iterable[Tombstone]) -> list[tuple[int, int]]:
    return [(each["gap_from"], each["gap_to"]) for each in tombstones]


def inside(seq: int, holes: list[tuple[int, int]]) -> bool:
    return any(first <= seq <= last for first, last in holes)


@dataclass
class Seen:
    """What one tail saw: its position, records by seq, tombstones. A page that breaks an order is noted at once."""

    topic: str
    position: int = 0
    datas: dict[int, bytes] = field(default_factory=dict)
    holes: list[tuple[int, int]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def take(self, page: Page) -> None:
        """Take one page in and move on."""
        if page.tombstone:
            self.holes.append((page.tombstone["gap_from"], page.tombstone["gap_to"]))
        last = self.position
        for record in page.records:
            if record.seq <= last:
                self.problems.append(f"a tail at {self.position} was given {record.seq} after {last}")
            if record.seq in self.datas:
                self.problems.append(f"a tail was given {record.seq} twice")
            self.datas[record.seq] = record.data
            last = record.seq
        if page.next_from_seq < last:
            self.problems.append(f"a cursor of {page.next_from_seq} behind the last record {last}")
        self.position = max(self.position, page.next_from_seq)

    def check(self, ledger: Ledger) -> list[str]:
        """Compare with the ledger at a moment when nobody writes: each record once, each gap explained."""
        wrong = list(self.problems)
        missed = [seq for seq in ledger.live() if seq <= self.position and seq not in self.datas and not inside(seq, self.holes)]
        if missed:
            wrong.append(f"a tail missed {missed[:SHOWN_MAX]} of {len(missed)} without a tombstone")
        other = [seq for seq, data in self.datas.items() if seq in ledger.expected and ledger.expected[seq][0] != data]
        if other:
            wrong.append(f"a tail saw other bytes at {other[:SHOWN_MAX]} of {len(other)}")
        vanished = [seq for seq in self.datas if seq not in ledger.expected]
        if vanished and not ledger.volatile:
            wrong.append(f"a tail saw what was never acked: {[(seq, self.datas[seq][:60]) for seq in vanished[:SHOWN_MAX]]} of {len(vanished)}")
        return [f"{self.topic}: {each}" for each in wrong]
