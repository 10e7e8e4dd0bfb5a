"""Audits of a table that was filled from an export and a server: what the server has deleted, and the table has settled, is not missing."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fakes.exports import Lake, entry, records
from oracle.segment_oracle import Row
from topicsd.lake.server import NotFoundError
from topicsd.spark import audit, jobs, lakes, options
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
    assert missing(table, lake, None) == [], "the table says what had been deleted when it came"
    (day,) = audit.Audit(lakes.Lake(table), options.parse({"path": str(lake.to)}), BY_URL).days()
    assert day.clean and day.deleted == 6 and day.lake == 24 and day.source == 30


def test_what_the_server_has_or_has_lost_or_a_table_has_not_settled_is_missing_all_the_same(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer(lake.ids["a"], 30, set(range(16, 21)))
    table = filled(lake, server, monkeypatch)
    lake.write("a", records(31, 5))
    lake.export()
    server.head, server.deleted = 35, {*range(17, 21), 33}
    assert missing(table, lake, BY_URL) == [[16, 16], [31, 35]]
    server.floor = 18  # a cap has passed them: they had been deleted all the same
    assert missing(table, lake, BY_URL) == [[31, 35]]
    server.floor, server.epoch = 1, server.epoch + 1
    assert missing(table, lake, BY_URL) == [[31, 35]]
    server.there = False
    assert missing(table, lake, BY_URL) == [[31, 35]]


def test_what_somebody_took_out_of_a_table_is_missing_whatever_the_server_has_let_go(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer(lake.ids["a"], 30, {7})
    table = filled(lake, server, monkeypatch)
    lakes.Lake(table).table().open().delete("seq in (3, 4, 28)")
    server.floor = 20
    assert missing(table, lake, BY_URL) == [[3, 4], [28, 28]]


@pytest.mark.parametrize("kind", lakes.FORMATS)
def test_what_the_table_names_as_lost_and_an_export_still_has_is_told_and_brought_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "iceberg":
        pytest.importorskip("pyiceberg", reason="the extra `iceberg` is not installed")
    server = FakeServer(lake.ids["a"], 30, {25}, floor=16)
    monkeypatch.setattr("topicsd.spark.reading.Server", server)
    place, by_path = lakes.Lake(lake.to.parent / "table", kind), options.parse({"path": str(lake.to)})
    assert Ingest(run_here, BY_URL, place).batch() is not None
    (day,) = audit.Audit(place, by_path, BY_URL).days()
    assert (day.clean, day.repairable, day.missing, day.deleted) == (False, [[1, 15]], [], 1)
    told = CliRunner().invoke(jobs.spark, ["audit", "--table", str(place.path), "--path", str(lake.to)])
    command = next(json.loads(line)["repair"] for line in told.stdout.splitlines() if "repair" in json.loads(line))
    assert told.exit_code == 1 and command == f"topicsd spark ingest --path {lake.to} --table {place.path} --available-now"
    job = Ingest(run_here, by_path, place, limit=10)
    assert [(batch.records, batch.regained) for batch in iter(job.batch, None)] == [(10, 10), (5, 5)]
    assert Ingest(run_here, by_path, place).batch() is None
    checked = audit.Audit(place, by_path, BY_URL)
    (day,) = checked.days()
    assert day.clean and (day.lake, day.deleted, checked.gaps()) == (29, 1, [])


@pytest.mark.parametrize(
    "command",
    [
        ["ingest", "--path", "EXPORT", "--available-now", "--local"], ["audit", "--path", "EXPORT"], ["replay", "--url", "http://x", "--to", "y"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("wrong", ["", "a*b"])
def test_topics_that_can_be_none_are_refused_by_each_job(lake: Lake, command: list[str], wrong: str) -> None:
    table = lake.to.parent / "table"
    table.mkdir()
    line = [str(lake.to) if word == "EXPORT" else word for word in command]
    told = CliRunner().invoke(jobs.spark, [*line, "--table", str(table), "--topics", wrong])
    assert told.exit_code == 2 and "topics are names" in told.output and list(table.iterdir()) == []


def test_what_a_job_named_as_lost_and_then_was_killed_comes_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer(lake.ids["a"], 30, {25}, floor=16)
    monkeypatch.setattr("topicsd.spark.reading.Server", server)
    place, by_path = lakes.Lake(lake.to.parent / "table"), options.parse({"path": str(lake.to)})
    with monkeypatch.context() as patched, pytest.raises(InterruptedError):
        commit = type(place.table()).commit

        def quarantine_alone(table: Any, *rest: Any) -> None:
            if not table.path.name.endswith("_quarantine"):
                raise InterruptedError
            commit(table, *rest)

        patched.setattr(type(place.table()), "commit", quarantine_alone)
        Ingest(run_here, BY_URL, place).batch()
    job = Ingest(run_here, by_path, place)
    assert [batch.records for batch in iter(job.batch, None)] == [30]
    (day,) = audit.Audit(place, by_path, None).days()
    assert day.clean and day.lake == 30
