"""A segment between living ones of which every record is deleted goes, files and all, and no answer changes by it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import topicsd
from fakes.clock import FakeClock
from fakes.in_process import Library
from fakes.workers import Workers
from topicsd._native import scan, upkeep
from topicsd.backup.make import Backup
from topicsd.backup.restore import Restore
from topicsd.backup.shelf import FolderShelf
from topicsd.engine.segments import Segments
from topicsd.lake import manifest
from topicsd.lake.export import Exporter
from topicsd.lake.sources import DirectorySource
from topicsd.lake.storage import open_storage
from topicsd.segments.cold import FolderCold
from topicsd.segments.fsck import fsck

SEGMENT = 100  # records


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def library(tmp_path: Path, clock: FakeClock) -> Iterator[Library]:
    made = Library(str(tmp_path / "data"), clock, file_bytes=1 << 18)
    upkeep.cold_attach(made.shared, 4 << 20)
    yield made
    made.close()


def fill(library: Library, name: str = "t", segments: int = 3, pack: bool = False, tags: int = 3) -> None:
    """Segments of 100 records; the tags of number n are n0, n1, ... And a tail."""
    library.put(name) if name not in library.names() else None
    for number in range(segments):
        for first in range(0, SEGMENT, 20):
            batch = [{"data": f"{number}-{n}" + "x" * 300, "tag": f"{number}{n % tags}", "node": f"w{n % 2}"} for n in range(first, first + 20)]
            library.append(name, batch)
            library.clock.advance(7)
        library.seal(name, pack=pack)
    library.append(name, [{"data": "tail"}] * 3)


def clear(library: Library, name: str = "t", number: int = 1, way: str = "prefix") -> None:
    """Delete every record of one segment."""
    if way == "prefix":
        assert library.delete(name, match=["tag", "Glob", f"{number}*"])["deleted"] == SEGMENT
    else:
        assert sum(library.delete(name, match=["tag", "Eq", f"{number}{n}"])["deleted"] for n in range(3)) == SEGMENT


def raw(library: Library, name: str, from_seq: int, **members: Any) -> dict[str, Any]:
    """All of an answer but for what it took."""
    request = scan.parse_diff(json.dumps({"from_seq": from_seq, "include_tags": True, "include_meta": True, **members}).encode())
    body, _would_wait, _next = library._warm(lambda: library.reader.diff(library._slot(name), request, library.clock.wall_ms(), 0))
    return {key: value for key, value in json.loads(body).items() if key != "performance"}


def answers(library: Library, name: str = "t") -> Any:
    asks = [{}, {"limit": 1}, {"limit": 60}, {"node": "w0", "limit": 30}, {"match": ["tag", "Glob", "1*"]}, {"max_batch_bytes": 5000}]
    head = library.state(name)["head"]
    pages = [raw(library, name, seq, **ask) for seq in sorted({*range(0, head + 1, 17), 99, 100, 101, 199, 200, 201}) for ask in asks]
    now_ms = library.clock.wall_ms()
    pages += [raw(library, name, 0, from_ts=ts, limit=limit) for ts in range(now_ms - 120, now_ms + 8) for limit in (3, 1000)]
    return pages, library.state(name)


def sealed_files(library: Library) -> list[str]:
    root = Path(library.directory)
    return sorted(path.name for folder in ("topics", "packs") for path in (root / folder).rglob("*") if path.is_file())


def data_files(library: Library) -> int:
    return len([name for name in sealed_files(library) if name.endswith((".data", ".pack"))])


@pytest.mark.parametrize("rewrite", [False, True])
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("way", ["prefix", "each tag"])
def test_a_dead_segment_between_living_ones_goes_and_no_answer_changes(library: Library, rewrite: bool, pack: bool, way: str) -> None:
    fill(library, pack=pack)
    clear(library, way=way)
    before, files = answers(library), sealed_files(library)
    care = library.upkeep(rewrite=rewrite)
    care.step(0, 0)
    assert (care.figures.get("dropped"), care.figures.get("rewrites")) == (1, 0)
    assert answers(library) == before
    assert sealed_files(library) == files, "snapshots still lead there"
    library.kill()
    assert answers(library) == before
    library.checkpoint()
    library.checkpoint()
    assert data_files(library) == 2
    for restart in (library.kill, library.stop):
        restart()
        assert answers(library) == before
        assert library.store.degraded == library.engine.segments.not_taken == []
    assert library.rows("t")[:3] == [(1, 100), (101, 200), (201, 300)]
    library.stop()
    assert fsck(Path(library.directory)).problems == []
    care = library.upkeep(rewrite=rewrite)
    care.step(0, 0)
    assert care.figures.get("dropped") == 0, "once is enough"


def test_deletes_before_a_seq_and_acks_kill_a_segment_as_well(library: Library, clock: FakeClock) -> None:
    fill(library)
    library.delete("t", before_seq=150, match=["tag", "Glob", "1*"])
    assert library.upkeep().drop_dead() == 0, "a half of it lives"
    library.delete("t", before_seq=201, match=["tag", "Glob", "1*"])
    assert library.upkeep().drop_dead() == 1
    library.put("q", type="queue")
    workers = Workers(library)
    library.append("q", [{"data": 0}])
    [held] = workers.claim("q", "slow", 1, 1 << 30)
    for first in (0, 7, 14):
        library.append("q", [{"data": n} for n in range(first, first + 7)])
        library.seal("q", 7)
    done = workers.claim("q", "w", 21)
    workers.ack("q", "w", [job["$seq"] for job in done])
    library.append("q", [{"data": "next"}])
    before = answers(library, "q")
    assert library.rows("q") == [(1, 8), (9, 15), (16, 22)]
    assert library.upkeep().drop_dead() == 2, "the first has the job that is held"
    for restart in (lambda: None, library.kill, library.stop):
        restart()
        assert answers(library, "q") == before
    assert [job["$seq"] for job in Workers(library).claim("q", "w", 9)] == [23]
    assert held["$seq"] == 1


def test_a_power_cut_right_behind_it_changes_nothing(library: Library) -> None:
    fill(library)
    clear(library)
    before, _tombstones = library.read_all("t")
    assert library.upkeep().drop_dead() == 1
    library.reboot()
    assert library.read_all("t")[0] == before
    assert library.engine.segments.not_taken == []
    library.checkpoint()
    library.checkpoint()
    library.reboot()
    assert library.read_all("t")[0] == before
    assert data_files(library) == 2


def test_a_cold_one_goes_with_its_object_and_its_flags(library: Library, tmp_path: Path) -> None:
    (tmp_path / "cold").mkdir()
    library.cold = cold = FolderCold(tmp_path / "cold")
    fill(library)
    library.delete("t", match=["tag", "Eq", "10"])
    relocation = library.relocation(cold, segments=0)
    for step in range(20):
        relocation.step(step * 1000)
    clear_rest = [library.delete("t", match=["tag", "Eq", f"1{n}"])["deleted"] for n in (1, 2)]
    assert sum(clear_rest) == 66 and len(list(cold.names())) == 3
    for _ in range(3):
        library.checkpoint()
    before = library.read_all("t"), library.state("t")
    assert library.upkeep().drop_dead() == 1
    assert (library.read_all("t"), library.state("t")) == before
    assert len(list(cold.names())) == 3, "snapshots still lead there"
    library.checkpoint()
    library.checkpoint()
    for step in range(20, 40):
        relocation.step(step * 1000)
    assert len(list(cold.names())) == 2
    assert not any(name.startswith(f"{101:020d}") for name in sealed_files(library))
    for restart in (library.kill, library.stop):
        restart()
        assert (library.read_all("t"), library.state("t")) == before
        assert library.store.degraded == []
    library.stop()
    report = fsck(Path(library.directory), cold=cold)
    assert (report.problems, report.cold) == ([], 2)


def scanned(library: Library, to: Path, **options: Any) -> tuple[list[Any], dict[str, int], Any]:
    """What an export holds: its records, the totals of its manifest that readers go by, and what a second run finds."""
    Exporter(DirectorySource(Path(library.directory)), to, **options).run()
    rows = topicsd.scan(to).read_all().to_pylist()
    topic = manifest.latest(open_storage(to)).topics["t"]
    totals = {name: sum(getattr(row, name) for row in topic.rows) for name in ("records", "holes", "corrupt_seqs")}
    return rows, totals, (topic.first_seq, topic.next_seq, topic.earliest_seq, topic.evict_floor)


@pytest.mark.parametrize("checkpoints", [0, 1, 3])
@pytest.mark.parametrize("pack", [False, True])
def test_an_export_says_the_same_before_and_behind_it(library: Library, tmp_path: Path, pack: bool, checkpoints: int) -> None:
    pytest.importorskip("pyarrow")
    fill(library, pack=pack)
    clear(library)
    library.seal("t")
    before = scanned(library, tmp_path / "grows")
    assert before[1]["records"] == 203
    assert library.upkeep().drop_dead() == 1
    for _ in range(checkpoints):
        library.checkpoint()
    assert scanned(library, tmp_path / "grows") == before
    assert scanned(library, tmp_path / "anew") == before
    assert scanned(library, tmp_path / "grows", prune=True, verify=True) == before
    assert [row["_kind"] for row in before[0]] == ["record"] * 203


@pytest.mark.parametrize("checkpoints", [0, 1, 3])
def test_a_backup_has_no_more_of_it_and_restores_the_same(library: Library, tmp_path: Path, clock: FakeClock, checkpoints: int) -> None:
    fill(library)
    shelf = FolderShelf(tmp_path / "shelf")
    Backup(Path(library.directory), shelf, clock.wall_ms).run()
    clear(library)
    before = answers(library)
    assert library.upkeep().drop_dead() == 1
    for _ in range(checkpoints):
        library.checkpoint()
    Backup(Path(library.directory), shelf, clock.wall_ms).run()
    Restore(shelf, tmp_path / "again").run()
    again = Library(str(tmp_path / "again"), clock, file_bytes=1 << 18, boot=b"r" * 16)
    assert again.store.degraded == []
    assert again.read_all("t")[0] == library.read_all("t")[0] and answers(library) == before
    if checkpoints == 3:
        assert data_files(again) == 2
    again.close()
    assert fsck(tmp_path / "again").problems == []


def test_one_that_has_lost_records_stays_and_tells_so(library: Library) -> None:
    library.append("t", [{"data": n, "tag": "a"} for n in range(10)])
    slot = library.sequencer.find(b"t")
    library.sequencer.leave_hole(slot, 20, 3)
    library.append("t", [{"data": n, "tag": "a"} for n in range(10)])
    library.seal("t")
    library.append("t", [{"data": "z"}])
    library.delete("t", before_seq=30, match=["tag", "Eq", "a"])
    library.put("u")
    library.append("t", [{"data": "tail"}])
    before = answers(library)
    assert library.upkeep().drop_dead() == 0
    assert answers(library) == before


@pytest.mark.parametrize("suffix", ["idx", "data"])
def test_of_one_whose_index_is_damaged_all_is_known_only_by_its_data(library: Library, suffix: str) -> None:
    fill(library)
    clear(library)
    before = answers(library)
    index = next(path for path in Path(library.directory).rglob("*.idx") if path.name.startswith(f"{101:020d}"))
    index.write_bytes(b"\0" * index.stat().st_size)
    if suffix == "data":
        data = index.with_suffix(".data")
        data.write_bytes(b"\0" * data.stat().st_size)
    library.kill()
    care = library.upkeep()
    assert care.drop_dead() == (0 if suffix == "data" else 1)
    if suffix == "idx":
        assert answers(library) == before
    else:
        library.checkpoint()
        library.checkpoint()
        assert index.exists() and index.with_suffix(".data").exists(), "what is left of it is evidence"


def test_what_the_log_has_no_room_for_is_dropped_later(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(library)
    clear(library)
    before = answers(library)
    with monkeypatch.context() as patched:
        patched.setattr(Segments, "replace", lambda *_given: "no_room")
        assert library.upkeep().drop_dead() == 0
    assert answers(library) == before
    assert library.upkeep().drop_dead() == 1


def test_a_row_that_has_changed_meanwhile_is_not_dropped(library: Library) -> None:
    fill(library, segments=6)
    for number in range(1, 5):
        clear(library, number=number)
    first, second, kept = library.upkeep(), library.upkeep(), list[Any]()
    first.replace = lambda rows: kept.extend(rows) or ["dead"] * len(rows)
    assert first.drop_dead() == 0 and len(kept) == 4
    assert second.drop_dead() == 4
    assert second.replace(kept) == ["dead"] * 4
    library.drop("t")
    library.put("t")
    assert second.replace(kept) == ["dead"] * 4
    fill(library, "u")
    clear(library, "u")
    first.drop_dead()
    slot, topic_id, _body, new = kept[-1]
    alive = upkeep.row_of(library.sequencer, slot, 1, 100)
    assert second.replace([(slot, topic_id, alive, alive[:24].ljust(len(new), b"\0"))]) == ["broken"]
    assert library.read_all("u")[0][0]["$seq"] == 1


def test_a_pack_goes_with_its_last_segment_and_is_made_anew_before(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topicsd.upkeep.FREED_BYTES_MIN", 1000)
    names = [f"t{n}" for n in range(4)]
    for number in (0, 1, 2):
        for name in names:
            library.append(name, [{"data": f"{n}" + "x" * 300, "tag": f"{number}{n % 3}"} for n in range(SEGMENT)])
        library.sequencer.sync()
        slots = [library.sequencer.find(name.encode()) for name in names]
        library.sealing(bytes_max=0)._pack([(slot, library.sequencer.topic(slot)["topic_id"]) for slot in slots])
    for name in names[1:]:
        library.delete(name, match=["tag", "Glob", "1*"])
    library.delete("t0", before_seq=200, match=["tag", "Glob", "1*"])
    before = [answers(library, name) for name in names]
    assert library.upkeep(rewrite=False).drop_dead() == 3
    care = library.upkeep()
    size = lambda: sum((Path(library.directory) / "packs" / name).stat().st_size for name in sealed_files(library) if name.endswith(".pack"))  # noqa: E731
    was = size()
    assert care.rewrite_one(), "one record of it is left"
    for _ in range(2):
        library.checkpoint()
        assert [answers(library, name) for name in names] == before
    assert size() < was * 7 // 10
    packs = sum(name.endswith(".pack") for name in sealed_files(library))
    library.delete("t0", match=["tag", "Glob", "1*"])
    assert care.drop_dead() == 1
    library.checkpoint()
    library.checkpoint()
    assert sum(name.endswith(".pack") for name in sealed_files(library)) == packs - 1
    library.stop()
    assert fsck(Path(library.directory)).problems == []


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_copies_of_a_router_stay_whatever_becomes_of_what_they_are_copies_of(library: Library, guarantee: str) -> None:
    library.put("t")
    library.put("d")
    library.route("t", "d", guarantee=guarantee)
    fill(library)
    library.engine.tick()
    copies = library.read_all("d")
    assert len(copies[0]) == 303
    clear(library)
    assert library.upkeep().drop_dead() == 1
    library.route("t", "late", from_seq=0)
    for _ in range(10):
        library.engine.tick()
    late = library.read_all("late")
    assert len(late[0]) == 203 and late[1] == []
    for step in (lambda: None, library.checkpoint, library.checkpoint, library.kill, library.stop):
        step()
        assert library.read_all("d") == copies and library.read_all("late") == late
    assert library.store.degraded == []


def test_a_missing_file_that_was_not_dropped_is_still_told(library: Library) -> None:
    fill(library)
    clear(library)
    assert library.upkeep().drop_dead() == 1
    library.checkpoint()
    library.checkpoint()
    library.stop()
    for path in Path(library.directory).rglob(f"{201:020d}.*"):
        path.unlink()
    [problem] = fsck(Path(library.directory)).problems
    assert problem.path.name == f"{201:020d}.data" and problem.loses


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 5])
def test_a_random_history_answers_the_same_with_and_without_drops(tmp_path: Path, seed: int) -> None:
    sides = [Library(str(tmp_path / side), FakeClock(), file_bytes=1 << 16) for side in ("with", "without")]
    rng, dropped = random.Random(seed), 0
    for number in range(200):
        draw = rng.random()
        if draw < 0.45:
            batch = [
                {"data": "x" * rng.randrange(60), "tag": "keep" if rng.random() < 0.02 else str(number // 12)} for _ in range(rng.randrange(1, 12))
            ]
            for side in sides:
                side.append("t", batch, ttl_ms=4000)
                side.clock.advance(37)
        elif draw < 0.6:
            pack, most = rng.random() < 0.5, rng.choice([3, 8, 1000])
            for side in sides:
                side.seal("t", most, pack)
        elif draw < 0.85 and "t" in sides[0].names():
            tag, part = str(rng.randrange(number // 12 + 1)), rng.random()
            for side in sides:
                before_seq = None if part < 0.5 else int(part * side.state("t")["head"]) + 1
                side.delete("t", before_seq, ["tag", "Eq", tag])
        elif draw < 0.9:
            for side in sides:
                side.checkpoint()
        elif draw < 0.95:
            for side in sides:
                side.kill()
        elif draw < 0.97:
            cap = rng.choice([0, 30])
            for side in sides:
                side.put("t", ttl_ms=4000, cap_records=cap)
        dropped += sides[0].upkeep().drop_dead()
        if "t" in sides[0].names() and rng.random() < 0.4:
            head = sides[0].state("t")["head"]
            asks = [(rng.randrange(head + 1), {"limit": rng.choice([1, 5, 1000])}) for _ in range(6)]
            asks += [(0, {"from_ts": sides[0].clock.wall_ms() - rng.randrange(5000), "limit": 4}) for _ in range(3)]
            seen = [[raw(side, "t", seq, **ask) for seq, ask in asks] + [side.state("t")] for side in sides]
            assert seen[0] == seen[1]
    assert dropped > 0
    for side in sides:
        side.close()
        assert fsck(Path(side.directory)).problems == []
