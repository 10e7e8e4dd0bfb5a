"""Random histories of a topic that goes into one lake table by exports and by its server: in the end each record is there once, or named as lost."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from fakes.server import Server, url
from topicsd.lake.export import Exporter
from topicsd.lake.server import Server as Client
from topicsd.lake.sources import DirectorySource
from topicsd.spark import lakes, options
from topicsd.spark.audit import Audit
from topicsd.spark.ingest import Ingest, run_here
from topicsd.spark.ranges import Held

pytest.importorskip("deltalake", reason="the extra `spark` is not installed")
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
STEPS = 40
TTL_MS = 40


class Killed(Exception):
    pass


class History:
    """One topic, its ledger (epoch, seq: data of what was acked; what was asked to be deleted), one export, one table."""

    def __init__(self, server: Server, folder: Path, kind: str, seed: int) -> None:
        self.rng, self.server, self.topic = random.Random(seed), server, f"h.{kind}.{seed}"
        self.export_to, self.kind = folder / f"export-{kind}-{seed}", kind
        self.lake = lakes.Lake(folder / f"table-{kind}-{seed}", kind)
        self.acked: dict[str, dict[int, str]] = {}
        self.deleted: set[tuple[str, int]] = set()
        self.tags: dict[tuple[str, int], str] = {}
        self.epoch, self.written, self.exported = "", 0, False
        self.told: list[str] = []

    def ask(self, method: str, path: str = "", body: Any = None) -> Any:
        status, answer = self.server.ask(method, f"/v0/topics/{self.topic}{path}", body)
        assert status < 300, (status, answer, self.told)
        return answer

    def state(self) -> Any:
        return self.ask("GET", "?touch=false")

    def run(self) -> None:
        steps = {
            self.append: 8, self.delete_before: 1, self.delete_tag: 1, self.cap: 1.5, self.expire: 0.7, self.recreate: 0.6, self.export: 4,
            self.by_path: 3, self.by_url: 3, self.killed: 1,
        }  # fmt: skip
        self.append()
        for _ in range(STEPS):
            step = self.rng.choices(list(steps), list(steps.values()))[0]
            self.told.append(step.__name__)
            step()
        for step in (self.export_all, self.by_path, self.by_url):
            step()
        self.check()

    # ---- what happens

    def append(self) -> None:
        count = self.rng.randrange(1, 12)
        records = [{"data": {"n": self.written + k}, "tag": f"t{self.rng.randrange(3)}"} for k in range(count)]
        self.written += count
        answer = self.ask("POST", "", {"records": records})
        self.epoch = f"{answer['epoch']:016x}" if "epoch" in answer else f"{self.state()['epoch']:016x}"
        for seq, record in enumerate(records, answer["last_seq"] - count + 1):
            self.acked.setdefault(self.epoch, {})[seq] = json.dumps(record["data"])
            self.tags[self.epoch, seq] = record["tag"]

    def mine(self) -> list[int]:
        return sorted(self.acked.get(self.epoch, ()))

    def delete_before(self) -> None:
        if self.mine():
            before = self.rng.choice(self.mine())
            self.ask("POST", "/delete", {"before_seq": before})
            self.deleted |= {(self.epoch, seq) for seq in self.mine() if seq < before}

    def delete_tag(self) -> None:
        tag = f"t{self.rng.randrange(3)}"
        self.ask("POST", "/delete", {"match": ["tag", "Eq", tag]})
        self.deleted |= {(self.epoch, seq) for seq in self.mine() if self.tags[self.epoch, seq] == tag}

    def cap(self) -> None:
        self.ask("PUT", "", {"cap_records": self.rng.randrange(1, 30)})
        self.ask("PUT", "", {"cap_records": 0})

    def expire(self) -> None:
        self.ask("PUT", "", {"ttl_ms": TTL_MS})
        time.sleep(TTL_MS * self.rng.random() * 2 / 1000)
        self.ask("POST", "/diff", {"from_seq": 0})
        self.ask("PUT", "", {"ttl_ms": 0})

    def recreate(self) -> None:
        self.ask("DELETE")
        self.append()

    # ---- what is brought

    def export(self, *, seal: bool | None = None) -> None:
        if self.rng.random() < 0.7 if seal is None else seal:
            with Client(url(self.server)) as client:
                assert client.seal(self.topic)
        Exporter(DirectorySource(self.server.directory / "data"), self.export_to, topics=[self.topic], prune=False).run()
        self.exported = True

    def export_all(self) -> None:
        self.export(seal=True)

    def options(self, path: bool) -> options.Options:
        where = {"path": str(self.export_to)} if path else {"url": url(self.server)}
        return options.parse(where | {"topics": self.topic, "failOnDataLoss": "false", "onCorrupt": "row"})

    def ingest(self, path: bool, runner: Any = run_here) -> None:
        if path and not self.exported:
            return
        job = Ingest(runner, self.options(path), self.lake, limit=self.rng.choice([None, 3, 17]))  # its checkpoint is lost
        while job.batch() is not None:
            pass

    def by_path(self) -> None:
        self.ingest(True)

    def by_url(self) -> None:
        self.ingest(False)

    def killed(self) -> None:
        """A job that dies between its quarantine's commit and its table's."""
        job = Ingest(run_here, self.options(self.exported and self.rng.random() < 0.5), self.lake, limit=self.rng.choice([None, 5]))
        made = type(self.lake.table())
        commit, left = made.commit, self.rng.randrange(3)

        def dying(table: Any, *rest: Any) -> None:
            nonlocal left
            if not table.path.name.endswith("_quarantine"):
                if left == 0:
                    raise Killed
                left -= 1
            commit(table, *rest)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(made, "commit", dying)
            try:
                while job.batch() is not None:
                    pass
            except Killed:
                pass

    # ---- what has to be

    def check(self) -> None:
        rows = self._rows(self.lake.table(), ["epoch", "seq", "data"])
        found = [(row["epoch"], row["seq"]) for row in rows]
        assert len(set(found)) == len(found), ("doubled", self.told)
        for row in rows:
            assert self.acked[row["epoch"]][row["seq"]] == row["data"], self.told
        with Client(url(self.server)) as client:
            live = {record["$seq"] for record in json.loads(client.diff(self.topic, 0, limit=1000))["records"]}
        assert live <= set(self.mine()) and not {(self.epoch, seq) for seq in live} & self.deleted
        assert {(self.epoch, seq) for seq in live} <= set(found), self.told

        named, ends = Held(), dict[str, int]()
        gaps = self.audit(path=True).gaps()
        for gap in gaps:
            if gap["to"] is None:
                ends[gap["epoch"]] = gap["from"]
            else:
                named.add(self.topic, gap["epoch"], gap["from"], gap["to"])
        assert not [one for one in found if named.overlaps(self.topic, one[0], one[1], one[1])], "what is named as lost is there"
        for epoch in {row["epoch"] for row in rows} | set(ends):
            for seq in self.acked[epoch]:
                absent = (epoch, seq) not in set(found) and not named.overlaps(self.topic, epoch, seq, seq)
                assert not absent or (epoch, seq) in self.deleted or seq >= ends.get(epoch, 2**63), (epoch, seq, self.told)
        for path in (True, False):
            days = [day.line() for day in self.audit(path=path).days()]
            assert all(day["clean"] for day in days), (path, days, gaps, self.told)

    def audit(self, path: bool) -> Audit:
        return Audit(self.lake, self.options(path), self.options(False) if path else None)

    def _rows(self, table: Any, columns: list[str]) -> list[dict[str, Any]]:
        from pyarrow import parquet

        return [row for path in table.files() for row in parquet.read_table(path, partitioning=None, columns=columns).to_pylist()]


@pytest.mark.parametrize(("kind", "seeds"), [("delta", range(5)), ("iceberg", range(6, 7))])
def test_whatever_has_become_of_a_topic_its_records_stand_in_the_table_once_or_are_named(tmp_path: Path, kind: str, seeds: range) -> None:
    if kind == "iceberg":
        pytest.importorskip("pyiceberg", reason="the extra `iceberg` is not installed")
    with Server(tmp_path, TOPICS_WORKERS=1, TOPICS_SEGMENT_MAX_EVENTS=20).ready() as server:
        for seed in seeds:
            History(server, tmp_path, kind, seed).run()
