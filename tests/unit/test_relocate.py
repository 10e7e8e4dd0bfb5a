"""Segments whose data stands in the cold tier read, are deleted from and go as before; a store that fails costs cold reads alone."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from fakes.clock import FakeClock
from fakes.in_process import Library
from fakes.object_store import a_bucket
from oracle.model import Refused
from topicsd import errors
from topicsd._native import upkeep
from topicsd._native.reader import IoError
from topicsd.api import cold as cold_module
from topicsd.api.cold import ColdTier
from topicsd.backup.make import Backup
from topicsd.backup.restore import Restore
from topicsd.backup.shelf import BackupError, FolderShelf
from topicsd.cli.fsck import fsck as fsck_command
from topicsd.figures import Figures
from topicsd.lake.export import Exporter
from topicsd.lake.sources import DirectorySource
from topicsd.relocate import Relocation, Thread
from topicsd.segments.cold import ColdError, FolderCold, open_cold
from topicsd.segments.fsck import fsck
from topicsd.segments.scrub import look
from topicsd.segments.verify import Verifier


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cold(tmp_path: Path) -> FolderCold:
    (tmp_path / "cold").mkdir()
    return FolderCold(tmp_path / "cold")


@pytest.fixture
def library(tmp_path: Path, clock: FakeClock, cold: FolderCold) -> Iterator[Library]:
    made = Library(str(tmp_path / "data"), clock, file_bytes=1 << 18)
    made.cold = cold
    upkeep.cold_attach(made.shared, 4 << 20)
    yield made
    made.close()


def fill(library: Library, name: str, count: int, size: int = 2000) -> None:
    for first in range(0, count, 20):
        library.append(name, [{"data": f"{n}" + "x" * size, "tag": f"t{n % 3}"} for n in range(first, first + 20)])


def seen(library: Library, name: str = "t") -> Any:
    return library.read_all(name), library.state(name)


def move(library: Library, cold: Any, moves: int = 100, **options: Any) -> Relocation:
    relocation = library.relocation(cold, **options)
    for step in range(2 * moves + 1):
        relocation.step(step)
    return relocation


def hot_data(library: Library) -> set[str]:
    return {path.name for path in Path(library.directory).rglob("*.data")}


def cold_data(cold: FolderCold) -> list[str]:
    return list(cold.names())


def test_old_segments_go_to_the_cold_tier_and_read_as_before(library: Library, cold: FolderCold) -> None:
    library.put("t")
    fill(library, "t", 400)
    library.seal("t", 100)
    fill(library, "t", 20)
    before = seen(library)
    move(library, cold)
    assert len(cold_data(cold)) == 3
    assert library.store.figures.get("cold_moved") == 3
    assert seen(library) == before
    library.checkpoint()
    library.checkpoint()
    assert len(hot_data(library)) == 1
    for restart in (library.kill, library.stop, library.kill):
        restart()
        assert seen(library) == before
        assert library.store.degraded == []
    library.stop()
    report = fsck(Path(library.directory))
    assert (report.problems, report.cold) == ([], 3)


def test_without_an_answer_of_the_store_hot_records_are_read_and_cold_ones_are_not(library: Library, cold: FolderCold) -> None:
    library.put("t")
    fill(library, "t", 400)
    library.seal("t", 100)
    fill(library, "t", 20)
    move(library, cold)
    library.cold = None
    with pytest.raises(IoError):
        library.diff("t")
    assert [record["$seq"] for record in library.diff("t", 300, limit=1000)["records"]] == [*range(301, 421)]
    library.append("t", [{"data": 1}])
    library.delete("t", match=["tag", "Eq", "t1"])
    library.cold = cold
    assert all(record.get("tag") != "t1" for record in library.read_all("t")[0])


def test_deletes_evictions_and_floors_work_in_cold_segments(library: Library, cold: FolderCold) -> None:
    library.put("t")
    fill(library, "t", 400)
    library.seal("t", 100)
    library.delete("t", match=["tag", "Eq", "t0"])
    move(library, cold)
    assert library.delete("t", before_seq=200, match=["tag", "Eq", "t1"])["deleted"] > 50
    library.delete("t", before_seq=50)
    before = seen(library)
    assert before[0][0][0]["$seq"] >= 50
    assert not [record for record in before[0][0] if record["tag"] == "t0"]
    library.kill()
    assert seen(library) == before
    library.put("t", cap_records=120)
    assert library.state("t")["count"] == 120
    library.kill()
    assert library.state("t")["count"] == 120


def test_what_was_deleted_is_in_the_flags_file_beside_the_index(library: Library, cold: FolderCold) -> None:
    library.put("t")
    fill(library, "t", 200)
    library.seal("t", 100)
    library.delete("t", before_seq=50, match=["tag", "Eq", "t1"])
    move(library, cold)
    (flags,) = Path(library.directory).rglob("*.del")
    assert flags.read_bytes()[128:].count(0xD5) == len([seq for seq in range(1, 50) if (seq - 1) % 3 == 1])


def test_objects_go_when_their_segments_have_gone_and_two_snapshots_say_so(library: Library, cold: FolderCold) -> None:
    library.put("t")
    fill(library, "t", 400)
    library.seal("t", 100)
    move(library, cold)
    library.checkpoint()
    library.checkpoint()
    library.drop("t")
    library.checkpoint()
    move(library, cold)
    assert len(cold_data(cold)) == 3, "the older snapshot may still need them"
    library.checkpoint()
    library.kill()
    library.checkpoint()
    library.kill()
    library.checkpoint()
    move(library, cold)
    assert cold_data(cold) == []
    assert library.call({"op": "segment.cold_gone"})["files"] == []
    assert not list(Path(library.directory).rglob("*.idx"))


def test_a_death_between_the_copy_and_the_publication_costs_a_copy(library: Library, cold: FolderCold) -> None:
    library.put("t")
    fill(library, "t", 200)
    library.seal("t", 100)
    before = seen(library)
    dead = library.relocation(cold)
    dead.replace = lambda rows: ["dead"] * len(rows)
    dead.step(0)
    dead.step(1)
    assert len(cold_data(cold)) == 1
    library.kill()
    assert seen(library) == before
    move(library, cold)
    assert len(cold_data(cold)) == 1
    library.checkpoint()
    library.checkpoint()
    library.kill()
    assert seen(library) == before


def test_what_the_writer_reads_itself_stays_hot(library: Library, cold: FolderCold) -> None:
    for name, kind in (("q", "queue"), ("s", "log"), ("t", "log")):
        library.put(name, type=kind)
        fill(library, name, 200)
        library.seal(name, 100)
    library.put("d")
    library.route("s", "d", name="behind", from_seq=0)
    move(library, cold)
    assert library.store.figures.get("cold_moved") >= 1
    topics = {path.parent.name for path in cold.root.rglob("*.data")}
    assert f"{library.sequencer.topic(library.sequencer.find(b'q'))['topic_id']:016x}" not in topics
    with pytest.raises(Refused, match="cold_unavailable"):
        library.route("t", "e", name="late", from_seq=0)
    assert library.route("t", "e", name="new")


def test_a_store_that_gives_back_something_else_gets_nothing(library: Library, tmp_path: Path) -> None:
    class Lying(FolderCold):
        def read(self, name: str, offset: int, length: int) -> bytes:
            raw = bytearray(super().read(name, offset, length))
            raw[len(raw) // 2] ^= 1
            return bytes(raw)

    library.put("t")
    fill(library, "t", 200)
    library.seal("t", 100)
    before = seen(library)
    move(library, Lying(tmp_path / "cold"))
    assert library.store.figures.get("cold_moved") == 0
    assert library.store.figures.get("cold_failures") == 1, "it is left alone for a while"
    assert seen(library) == before


def test_a_flipped_bit_in_the_cold_tier_is_told_as_corrupt(library: Library, cold: FolderCold) -> None:
    library.put("t")
    fill(library, "t", 200)
    library.seal("t", 100)
    whole = library.read_all("t")[0]
    move(library, cold)
    path = next(cold.root.rglob("*.data"))
    raw = bytearray(path.read_bytes())
    raw[50_000] ^= 1
    path.write_bytes(raw)
    records, tombstones = library.read_all("t")
    assert len(records) == 199
    assert [tombstone["reason"] for tombstone in tombstones] == ["corrupt"]
    assert [record for record in whole if record in records] == records


COLD_DAMAGE: dict[str, Callable[[Path, Path], object]] = {
    "deleted": lambda path, _other: path.unlink(),
    "empty": lambda path, _other: path.write_bytes(b""),
    "cut": lambda path, _other: os.truncate(path, 1000),
    "longer": lambda path, _other: path.write_bytes(path.read_bytes() + bytes(8)),
    "one bit": lambda path, _other: path.write_bytes(path.read_bytes()[:50_000] + b"!" + path.read_bytes()[50_001:]),
    "zeroes": lambda path, _other: path.write_bytes(path.read_bytes()[:10_000] + bytes(40_000) + path.read_bytes()[50_000:]),
    "another's": lambda path, other: path.write_bytes(other.read_bytes()),
}


def left_cold(library: Library, cold: FolderCold, records: int) -> Path:
    """The directory of a closed store whose segments are all in the cold tier."""
    library.put("t")
    fill(library, "t", records)
    library.seal("t", 50)
    move(library, cold)
    library.close()
    return Path(library.directory)


@pytest.mark.parametrize("way", list(COLD_DAMAGE))
def test_fsck_reads_the_cold_tier_and_says_so_when_it_does_not(library: Library, cold: FolderCold, way: str) -> None:
    directory = left_cold(library, cold, 200)
    sound = fsck(directory, cold=cold)
    assert (sound.problems, sound.refused, sound.unread) == ([], [], 0) and sound.cold > 2
    path, other = [cold.root / name for name in list(cold.names())[:2]]
    COLD_DAMAGE[way](path, other)
    report = fsck(directory, cold=cold)
    assert [(problem.path.name, problem.loses) for problem in report.problems] == [(path.name, True)]
    assert str(path.name) in report.problems[0].what
    blind = fsck(directory)
    assert blind.problems == [] and blind.unread == blind.cold == sound.cold
    told = CliRunner().invoke(fsck_command, [str(directory)], env={"TOPICS_COLD_DIR": ""})
    assert told.exit_code == 0 and f"{sound.cold} of them were not read" in told.output
    told = CliRunner().invoke(fsck_command, [str(directory)], env={"TOPICS_COLD_DIR": str(cold.root)})
    assert told.exit_code == 1 and told.output.count("LOSS") == 1 and "not read" not in told.output


def test_fsck_refuses_where_the_cold_tier_can_not_be_asked(library: Library, cold: FolderCold) -> None:
    directory = left_cold(library, cold, 100)
    assert CliRunner().invoke(fsck_command, [str(directory), "--cold", str(cold.root / "nowhere")]).exit_code == 2
    assert not (cold.root / "nowhere").exists()

    class Hanging(FolderCold):
        def size(self, name: str) -> int:
            raise ColdError("no answer")

    report = fsck(directory, cold=Hanging(cold.root))
    assert report.problems == [] and len(report.refused) == report.cold > 0


def test_damage_in_the_cold_tier_stays_told_when_a_pass_of_the_scrub_has_read_what_is_here(library: Library, cold: FolderCold) -> None:
    library.put("t")
    fill(library, "t", 200)
    library.seal("t", 100)
    move(library, cold)
    COLD_DAMAGE["one bit"](next(cold.root.rglob("*.data")), cold.root)
    assert [tombstone["reason"] for tombstone in library.read_all("t")[1]] == ["corrupt"]
    care = library.upkeep(scrub_bytes_per_second=1 << 40)
    for mono_ms in (0, 1, 2, 100_000, 100_001, 100_002, 200_000, 200_001):
        care.step(mono_ms, 0)
        assert care.figures.get("damaged") == 1
    assert care.figures.get("scrub_passes") > 1


def test_bytes_decide_what_stays_hot_too(library: Library, cold: FolderCold) -> None:
    library.put("t")
    fill(library, "t", 400)
    library.seal("t", 100)
    assert [file.name for file in library.relocation(cold, segments=0, size=450_000).due()] == [1]
    assert [file.name for file in library.relocation(cold, segments=2, size=1).due()] == [1, 101]
    assert len(library.relocation(cold, segments=0).due()) == 4


def test_an_object_store_is_a_cold_tier(library: Library) -> None:
    with a_bucket("cold") as options:
        library.cold = open_cold("s3://cold/events", **options)
        library.put("t")
        fill(library, "t", 400)
        library.seal("t", 100)
        before = seen(library)
        move(library, library.cold)
        assert len(list(library.cold.names())) == 3
        library.checkpoint()
        library.checkpoint()
        library.kill()
        assert len(hot_data(library)) == 1
        assert seen(library) == before
        library.drop("t")
        for _ in range(3):
            library.checkpoint()
        move(library, library.cold)
        assert list(library.cold.names()) == []


def test_an_export_reads_a_tier_that_is_a_folder(library: Library, cold: FolderCold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.put("t")
    fill(library, "t", 400)
    library.seal("t", 100)
    move(library, cold)
    library.checkpoint()
    library.checkpoint()
    library.store.close()
    run = lambda: Exporter(DirectorySource(Path(library.directory)), tmp_path / "export").run()  # noqa: E731
    with pytest.raises(OSError, match="TOPICS_COLD_DIR"):
        run()
    monkeypatch.setenv("TOPICS_COLD_DIR", str(cold.root))
    report = run()
    assert (report.topics, report.segments_copied, report.segments_unreadable) == (1, 4, 0)
    library.open()


@pytest.mark.parametrize("how", ["missing", "truncated", "another"])
def test_an_object_that_is_not_what_was_put_there_is_a_tombstone_and_readers_go_on_behind_it(library: Library, cold: FolderCold, how: str) -> None:
    library.put("t")
    fill(library, "t", 1200)
    library.seal("t", 300)
    move(library, cold)
    whole = library.read_all("t")[0]
    assert [file.kind for file in library.relocation(cold).due()] == []
    first, second = sorted(cold.root.rglob("*.data"))[:2]
    if how == "missing":
        first.unlink()
    elif how == "truncated":
        os.truncate(first, 1000)
    else:
        first.write_bytes(second.read_bytes())
    worker = tier(library, Hanging(cold.root), wait_ms=60_000)
    library.cold = None
    library.kill()

    def read(from_seq: int) -> Any:
        try:
            return library.diff("t", from_seq=from_seq, limit=1000)
        except IoError as wrong:
            raise errors.Unread(wrong.seq) from None

    async def run() -> tuple[list[int], list[tuple[int, int, str]]]:
        seqs, gaps, at = [], [], 0
        while True:
            page = await worker.read(partial(read, at))
            seqs += [record["$seq"] for record in page["records"]]
            if told := page["tombstone"]:
                gaps.append((told["gap_from"], told["gap_to"], told["reason"]))
            at = page["next_from_seq"]
            if at == page["head_seq"]:
                return seqs, gaps

    seqs, gaps = asyncio.run(run())
    assert {reason for _from, _to, reason in gaps} == {"corrupt"}
    lost = [seq for begin, end, _reason in gaps for seq in range(begin, end + 1)]
    assert lost == list(range(1, 301)), "each once, in order"
    assert seqs == [record["$seq"] for record in whole][300:]


def test_a_scrub_that_a_restart_interrupts_takes_no_file_for_another(library: Library, cold: FolderCold) -> None:
    library.put("t")
    fill(library, "t", 400)
    library.seal("t", 100)
    keeper = library.upkeep(scrub_bytes_per_second=1 << 40)
    before = [item for file in upkeep.listed(library.shared) for item in keeper._items(file)]
    assert len(before) == 4 and all(item.cold is None for item in before)
    move(library, cold)
    for _ in range(3):
        library.checkpoint()
    assert len(hot_data(library)) == 1
    library.kill()
    for item in before:
        problems, _read = look(Verifier(), item)
        assert problems == []
    assert [item.gone() for item in before[:3]] == [True] * 3


# ---- a worker


class Hanging(FolderCold):
    """A store that does not answer before it is let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.go = threading.Event()
        self.go.set()
        self.reads = 0

    def read(self, name: str, offset: int, length: int) -> bytes:
        self.reads += 1
        if not self.go.wait(60):
            raise ColdError("hung")
        return super().read(name, offset, length)


def tier(library: Library, store: Hanging, wait_ms: int = 200) -> ColdTier:
    settings: Any = SimpleNamespace(cold_dir="there", cold_cache_bytes=4 << 20, cold_wait_ms=wait_ms)
    return ColdTier(library.shared, settings, Figures(), lambda _place: store)


def test_a_worker_fetches_what_a_read_lacks_and_refuses_while_the_store_hangs(library: Library, cold: FolderCold) -> None:
    library.put("t")
    fill(library, "t", 400)
    library.seal("t", 100)
    fill(library, "t", 20)
    before = library.diff("t", limit=1000)
    move(library, cold)
    library.cold = None
    store = Hanging(cold.root)
    worker = tier(library, store)

    def read() -> Any:
        try:
            return library.diff("t", limit=1000)
        except IoError as wrong:
            raise errors.Unread(wrong.seq) from None

    async def page() -> Any:
        return await worker.read(read)

    async def run() -> None:
        store.go.clear()
        with pytest.raises(errors.ColdUnavailable) as refused:
            await page()
        assert refused.value.detail["retry_after_ms"] == 5000
        reads = store.reads
        with pytest.raises(errors.ColdUnavailable):
            await page()
        assert store.reads == reads, "refused at once"
        assert library.diff("t", 300)["records"], "hot records are read"
        assert worker.figures.get("cold_unavailable") == 2
        store.go.set()
        patient = tier(library, store, wait_ms=60_000)
        assert (await patient.read(read))["records"][:100] == before["records"][:100]
        assert patient.figures.get("cold_reads") > 0

    asyncio.run(run())


@pytest.mark.parametrize("way", ["missing", "flipped"])
def test_a_damaged_index_of_a_cold_segment_is_made_again_of_the_object_that_a_worker_fetches(library: Library, cold: FolderCold, way: str) -> None:
    library.put("t")
    fill(library, "t", 1200)
    library.seal("t", 600)
    before = library.read_all("t")
    move(library, cold)
    name = next(path for path in Path(library.directory).rglob("*.del"))
    index = name.with_suffix(".idx")
    if way == "missing":
        index.unlink()
    else:
        raw = bytearray(index.read_bytes())
        raw[128 + 24 * 70] ^= 8
        index.write_bytes(raw)
    library.cold = None
    library.kill()
    worker = tier(library, Hanging(cold.root), wait_ms=60_000)

    def read(from_seq: int) -> Any:
        try:
            return library.diff("t", from_seq, limit=1000)
        except IoError as wrong:
            raise errors.Unread(wrong.seq) from None

    async def run() -> tuple[list[Any], list[Any]]:
        records: list[Any] = []
        told, at, head = list[Any](), 0, 1200
        while at < head:
            page = await worker.read(partial(read, at))
            records, at = records + page["records"], page["next_from_seq"]
            told += [page["tombstone"]] if page["tombstone"] else []
        return records, told

    assert asyncio.run(run()) == before


def test_a_worker_without_a_cold_tier_says_so(library: Library, cold: FolderCold) -> None:
    library.put("t")
    fill(library, "t", 200)
    library.seal("t", 100)
    move(library, cold)
    worker = tier(library, Hanging(cold.root))
    worker.settings.cold_dir = None
    library.cold = None

    def read() -> Any:
        try:
            return library.diff("t")
        except IoError:
            raise errors.Unread(1) from None

    with pytest.raises(errors.ColdUnavailable, match="no cold tier is configured"):
        asyncio.run(worker.read(read))


def test_a_keeper_whose_store_hangs_goes_on_with_other_work(library: Library, cold: FolderCold) -> None:
    library.put("t")
    fill(library, "t", 200)
    library.seal("t", 100)
    store = Hanging(cold.root)
    store.go.clear()
    relocation = library.relocation(store, thread=Thread())
    for step in range(100):
        relocation.step(step)
    assert relocation.thread.busy
    assert library.store.figures.get("cold_moved") == 0
    store.go.set()
    deadline = time.monotonic() + 30
    while not library.store.figures.get("cold_moved") and time.monotonic() < deadline:
        relocation.step(101)
        time.sleep(0.01)
    assert library.store.figures.get("cold_moved") == 1


def test_a_backup_has_what_is_cold_and_a_restored_directory_needs_no_cold_tier(library: Library, cold: FolderCold, tmp_path: Path) -> None:
    library.put("t", durability="fsync")
    fill(library, "t", 400)
    library.seal("t", 100)
    before = seen(library)
    move(library, cold)
    library.checkpoint()
    library.checkpoint()
    shelf, root = FolderShelf(tmp_path / "shelf"), Path(library.directory)
    with pytest.raises(BackupError, match="cold tier"):
        Backup(root, shelf).run()
    assert Backup(root, shelf, cold=cold).run().notes == 0
    assert Backup(root, shelf).run().new_objects == 0, "what is there already need not be read again"
    Restore(shelf, tmp_path / "new").run()
    assert fsck(tmp_path / "new").problems == []
    again = Library(str(tmp_path / "new"), FakeClock(), file_bytes=1 << 18, boot=b"r" * 16)
    assert seen(again) == before
    again.drop("t")
    for _ in range(3):
        again.checkpoint()
    assert not list((tmp_path / "new" / "topics").rglob("*.data"))
    again.close()


def test_a_read_waits_for_the_keeper_to_look_at_damage_and_a_stream_does_so_three_times(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, rung = tier(library, cast(Any, None)), list[list[int]]()
    worker.feed = cast(Any, SimpleNamespace(ring=rung.append))
    shared = SimpleNamespace(get=lambda name: {"damage_met": 0, "log_damage_met": 1}[name])
    monkeypatch.setattr(worker, "shared", shared)
    monkeypatch.setattr(upkeep, "cold_wanted", lambda _shared: None)

    async def run() -> None:
        monkeypatch.setattr(cold_module, "LOOK_S_MAX", 0.1)
        assert not await cold_module.looked_at(cast(Any, shared), worker.figures), "nobody has looked"
        monkeypatch.setattr(cold_module, "LOOK_S_MAX", 30)
        looking = asyncio.ensure_future(cold_module.looked_at(cast(Any, shared), worker.figures))
        assert worker.for_feed(7) == cold_module.COMES
        await asyncio.sleep(0.1)
        assert not looking.done() and rung == []
        worker.figures.set("log_damage_looked", 1)
        assert await looking
        await asyncio.gather(*worker._looking)
        assert rung == [[7]]
        assert not await cold_module.looked_at(cast(Any, shared), worker.figures), "nothing is to be looked at: once more would not help"
        assert [worker.for_feed(7) for _ in range(4)] == [cold_module.COMES] * 2 + [cold_module.WANTED] * 2
        assert worker.for_feed(8) == cold_module.COMES
        await asyncio.gather(*worker._looking)

    asyncio.run(run())
