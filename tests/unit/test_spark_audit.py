"""Audits of a table that was filled from an export and a server: what the server has deleted, and the table has settled, is not missing."""

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.exports import Lake, entry, records
from oracle.segment_oracle import Row
from topicsd.lake.server import NotFoundError
from topicsd.spark import audit, lakes, options
from topicsd.spark.ingest import Ingest, run_here

pytest.importorskip("deltalake", reason="the extra `spark` is not installed")


class FakeServer:
    """One topic `a` as diff has it: its epoch, its head, what of it is deleted, and the seqs that are lost below its floor."""

    def __init__(self, epoch: int, head: int, deleted: set[int], floor: int = 1) -> None:
        self.epoch, self.head, self.deleted, self.floor = epoch, head, deleted, floor
        self.there = True

    def __call__(self, *_args: object, **_rest: object) -> "FakeServer":
        return self

    def __enter__(self) -> "FakeServer":
        return self

    def __exit__(self, *_wrong: object) -> None:
        pass

    @property
    def live(self) -> list[int]:
        return [seq for seq in range(self.floor, self.head + 1) if seq not in self.deleted]

    def listed(self) -> Any:
        if self.there:
            earliest, count = self.live[0], len(self.live)
            yield {"topic": "a", "head_seq": self.head, "earliest_seq": earliest, "count": count, "bytes": 50 * count, "epoch": self.epoch}

    def diff(self, topic: str, from_seq: int, *, epoch: int | None = None, limit: int = 1000) -> bytes:
        if not self.there:
            raise NotFoundError("404", 404)
        gap = {"gap_from": from_seq + 1, "gap_to": self.floor - 1, "reason": "cap"} if from_seq + 1 < self.floor else None
        page = [seq for seq in self.live if seq > from_seq][: min(limit, 4)]
        behind = page[-1] if page and page[-1] != self.live[-1] else self.head
        told = [{"$seq": seq, "$ts": 1000 + seq, "data": {"n": seq}} for seq in page]
        around = {"head_seq": self.head, "earliest_seq": self.live[0], "tombstone": gap, "epoch": self.epoch, "next_from_seq": behind}
        return json.dumps({"topic": topic, "records": told, **around}).encode()


BY_URL = options.parse({"url": "http://x"})


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    out = Lake(tmp_path / "export")
    out.write("a", [Row(seq, 1000 + seq, entry({"n": seq})) for seq in range(1, 31)])
    out.export()
    return out


def filled(lake: Lake, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ingest what the server has, and then what the export has more."""
    monkeypatch.setattr("topicsd.spark.reading.Server", server)
    table = lake.to.parent / "table"
    for asked in (BY_URL, options.parse({"path": str(lake.to)})):
        job = Ingest(run_here, asked, lakes.Lake(table))
        while job.batch() is not None:
            pass
    return table


def missing(table: Path, lake: Lake, server: options.Options | None) -> list[list[int]]:
    days = list(audit.Audit(lakes.Lake(table), options.parse({"path": str(lake.to)}), server).days())
    assert [day.clean for day in days] == [not day.missing for day in days]
    return [one for day in days for one in day.missing]


def test_what_the_server_deletes_and_the_table_has_settled_is_not_missing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer(lake.ids["a"], 30, {*range(16, 21), 25})
    table = filled(lake, server, monkeypatch)
    assert missing(table, lake, None) == [[16, 20], [25, 25]], "the export alone can not tell"
    (day,) = audit.Audit(lakes.Lake(table), options.parse({"path": str(lake.to)}), BY_URL).days()
    assert day.clean and day.deleted == 6 and day.lake == 24 and day.source == 30


def test_what_the_server_has_or_has_lost_or_a_table_has_not_settled_is_missing_all_the_same(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer(lake.ids["a"], 30, set(range(16, 21)))
    table = filled(lake, server, monkeypatch)
    lake.write("a", records(31, 5))
    lake.export()
    server.head, server.deleted = 35, {*range(17, 21), 33}
    assert missing(table, lake, BY_URL) == [[16, 16], [31, 35]]
    server.floor = 18
    assert missing(table, lake, BY_URL) == [[16, 17], [31, 35]]
    server.floor, server.epoch = 1, server.epoch + 1
    assert missing(table, lake, BY_URL) == [[16, 20], [31, 35]]
    server.there = False
    assert missing(table, lake, BY_URL) == [[16, 20], [31, 35]]
