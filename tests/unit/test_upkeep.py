"""The keeper's care for sealed files: what is dead gives its disk back, damage is found and told, an index is made again, nothing is lost by it."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.in_process import Library
from topicsd._native import upkeep as native
from topicsd.segments.fsck import fsck
from topicsd.upkeep import Upkeep

DAY_MS = 86_400_000


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    made = Library(str(tmp_path), FakeClock(), file_bytes=8 << 20)
    yield made
    made.close()


def keeper(library: Library, **options: Any) -> Upkeep:
    return library.upkeep(**options)


def fill(library: Library, name: str, count: int, size: int = 1000, live_every: int = 200) -> None:
    for first in range(0, count, 100):
        batch = [{"data": f"{n:06d}" + "x" * size, "tag": "live" if n % live_every == 0 else "dead"} for n in range(first, first + 100)]
        library.append(name, batch)


def kill_off(library: Library, name: str) -> None:
    assert library.delete(name, match=["tag", "Eq", "dead"])["deleted"] > 0


def seen(library: Library, *names: str) -> list[Any]:
    return [(library.read_all(name), library.state(name)) for name in names]


def disk(library: Library) -> int:
    root = Path(library.directory)
    return sum(path.stat().st_size for folder in ("topics", "packs") for path in (root / folder).rglob("*") if path.is_file())


def test_a_segment_that_is_mostly_dead_gives_its_disk_back(library: Library) -> None:
    library.put("t")
    fill(library, "t", 3000)
    library.seal("t")
    kill_off(library, "t")
    before, bytes_before = seen(library, "t"), disk(library)
    care = keeper(library)
    assert care.rewrite_one()
    assert not care.rewrite_one(), "once is enough"
    assert seen(library, "t") == before
    for restart in (library.kill, library.stop):
        restart()
        assert seen(library, "t") == before
        assert library.store.degraded == []
    library.checkpoint()
    library.checkpoint()
    assert disk(library) < bytes_before // 20
    library.kill()
    assert seen(library, "t") == before
    library.stop()
    assert fsck(Path(library.directory)).problems == []


def test_what_is_deleted_while_a_segment_is_made_anew_stays_deleted(library: Library) -> None:
    library.put("t")
    fill(library, "t", 3000)
    library.seal("t")
    kill_off(library, "t")
    care, publish = keeper(library), None
    publish = care.replace

    def late(rows: Any) -> list[str]:
        library.delete("t", before_seq=1000, match=["tag", "Eq", "live"])
        return publish(rows)

    care.replace = late
    assert care.rewrite_one()
    records, _ = library.read_all("t")
    assert [record["$seq"] for record in records] == [*range(1001, 3000, 200)]
    before = seen(library, "t")
    library.delete("t", before_seq=1500)
    library.kill()
    records, _ = library.read_all("t")
    assert [record["$seq"] for record in records] == [*range(1601, 3000, 200)]
    assert library.state("t")["count"] == before[0][1]["count"] - 3


def test_a_reader_in_the_middle_of_a_topic_does_not_notice(library: Library) -> None:
    library.put("t")
    fill(library, "t", 3000)
    library.seal("t")
    kill_off(library, "t")
    whole = [record["$seq"] for record in library.read_all("t")[0]]
    page = library.diff("t", limit=7)
    assert keeper(library).rewrite_one()
    rest = [record["$seq"] for record in library.read_all("t", page["next_from_seq"])[0]]
    assert [record["$seq"] for record in page["records"]] + rest == whole


def test_a_pack_whose_topics_have_gone_is_made_anew(library: Library) -> None:
    names = [f"t{n}" for n in range(40)]
    for name in names:
        library.put(name)
        fill(library, name, 100, live_every=10)
        library.delete(name, match=["tag", "Eq", "dead"]) if name == "t3" else None
    library.sequencer.sync()
    rounds = library.sealing(bytes_max=0)
    rounds._pack([(slot := library.sequencer.find(name.encode()), library.sequencer.topic(slot)["topic_id"]) for name in names])
    for name in names:
        if name not in ("t3", "t7"):
            library.drop(name)
    library.delete("t7", before_seq=98, match=["tag", "Eq", "dead"])
    before, bytes_before = seen(library, "t3", "t7"), disk(library)
    assert keeper(library).rewrite_one()
    assert seen(library, "t3", "t7") == before
    library.kill()
    assert seen(library, "t3", "t7") == before
    library.checkpoint()
    library.checkpoint()
    assert disk(library) < bytes_before // 10
    library.kill()
    assert seen(library, "t3", "t7") == before


def test_a_keeper_that_died_before_it_published_leaves_nothing_wrong(library: Library) -> None:
    library.put("t")
    fill(library, "t", 3000)
    library.seal("t")
    kill_off(library, "t")
    before = seen(library, "t")
    dead = keeper(library)
    dead.replace = lambda rows: ["dead"] * len(rows)
    assert not dead.rewrite_one()
    library.kill()
    assert seen(library, "t") == before
    assert keeper(library).rewrite_one()
    assert seen(library, "t") == before


def test_a_row_that_has_changed_meanwhile_is_not_replaced(library: Library) -> None:
    library.put("t")
    fill(library, "t", 3000)
    library.seal("t")
    kill_off(library, "t")
    first, second = keeper(library), keeper(library)
    kept: list[Any] = []
    first.replace = lambda rows: kept.extend(rows) or ["dead"] * len(rows)
    first.rewrite_one()
    shutil.copytree(Path(library.directory) / "topics", Path(library.directory) / "aside")
    assert second.rewrite_one()
    assert second.replace(kept) == ["dead"]
    library.drop("t")
    library.put("t")
    assert second.replace(kept) == ["dead"]


def test_on_a_full_disk_a_file_of_which_a_quarter_is_dead_is_made_anew_once(library: Library) -> None:
    for name in ("t", "u"):
        library.put(name)
        fill(library, name, 1000, live_every=3 if name == "t" else 20)
        library.seal(name)
        kill_off(library, name)
    before, bytes_before = seen(library, "t", "u"), disk(library)
    care, asked = keeper(library), list[int]()
    assert not care.rewrite_one(), "there is room"
    care.have_room = lambda size: asked.append(size) or False
    assert not care.rewrite_one(full=True) and care.figures.get("rewrites") == 0, "no room to make it"
    assert asked[0] < 100_000 < 300_000 < asked[1] < 600_000, "first what takes the least for what it gives"
    care.have_room = lambda _size: True
    care.is_full = lambda: True
    for now_ms in range(5):
        care.step(now_ms, 0)
    assert care.figures.get("rewrites") == 2 and not care.rewrite_one(full=True), "what is left of them is alive"
    assert seen(library, "t", "u") == before
    library.checkpoint()
    library.checkpoint()
    assert disk(library) < bytes_before // 4
    library.kill()
    assert seen(library, "t", "u") == before
    library.stop()
    assert fsck(Path(library.directory)).problems == []


def test_what_finds_no_room_to_be_made_anew_is_tried_again(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    library.put("t")
    fill(library, "t", 1000, live_every=3)
    library.seal("t")
    kill_off(library, "t")
    care, own = keeper(library), Upkeep._own

    def full(*_given: Any) -> Any:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Upkeep, "_own", full)
    assert not care.rewrite_one(full=True)
    monkeypatch.setattr(Upkeep, "_own", own)
    assert care.rewrite_one(full=True)


def test_nothing_is_made_anew_where_that_is_switched_off_or_not_worth_it(library: Library) -> None:
    library.put("t")
    fill(library, "t", 3000, live_every=50)
    library.seal("t")
    kill_off(library, "t")
    assert keeper(library).dead_files() == []
    library.put("u")
    fill(library, "u", 3000)
    library.seal("u")
    kill_off(library, "u")
    care = keeper(library, rewrite=False)
    care.step(0, 0)
    assert [file.topic_id for file in care.dead_files()] == [library.sequencer.topic(library.sequencer.find(b"u"))["topic_id"]]
    assert care.figures.get("rewrites") == 0
    keeper(library, figures=care.figures).step(0, 0)
    assert care.figures.get("rewrites") == 1


def scrub(care: Upkeep, passes: int = 1) -> None:
    """Let time pass until so many passes have ended."""
    assert care.scrubber is not None
    mono_ms, wanted = care.scrubber._ready_ms, care.scrubber.numbers.passes + passes
    for _ in range(10_000):
        care.step(int(mono_ms), 1000)
        if care.scrubber.numbers.passes == wanted:
            return
        mono_ms += 1000
    raise AssertionError("no pass has ended")


def flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 0x10
    path.unlink()  # who has it mapped keeps the old bytes
    path.write_bytes(raw)


@pytest.mark.parametrize("pack", [False, True])
def test_the_scrub_finds_a_flipped_bit_and_says_so_until_it_is_gone(library: Library, pack: bool) -> None:
    library.put("t")
    fill(library, "t", 300)
    library.seal("t", pack=pack)
    care = keeper(library, scrub_bytes_per_second=1 << 30, rewrite=False)
    scrub(care)
    assert (care.figures.get("damaged"), care.figures.get("scrub_segments")) == (0, 1)
    root = Path(library.directory)
    path = next(root.rglob("*.pack") if pack else root.rglob("*.data"))
    flip(path, 5000)
    scrub(care)
    assert care.figures.get("damaged") == care.figures.get("scrub_last_pass_problems") == 1
    assert care.figures.get("scrub_bytes") >= 2 * 300_000
    flip(path, 5000)
    scrub(care)
    assert care.figures.get("damaged") == 0
    assert care.figures.get("scrub_problems") == 1
    assert care.figures.get("scrub_passes") == 3


@pytest.mark.parametrize("suffix", ["idx", "tag"])
def test_an_index_or_tags_that_are_damaged_are_made_again_while_the_server_runs(library: Library, suffix: str) -> None:
    library.put("t")
    fill(library, "t", 300)
    library.seal("t")
    library.delete("t", before_seq=201, match=["tag", "Eq", "live"])
    before = seen(library, "t")
    path = next(Path(library.directory).rglob(f"*.{suffix}"))
    flip(path, path.stat().st_size - 20)
    library.kill()
    care = keeper(library, scrub_bytes_per_second=1 << 30)
    scrub(care)
    assert care.figures.get("scrub_problems") > 0
    for _ in range(3):
        care.step(0, 0)
    assert care.figures.get("rewrites") == 1
    scrub(care)
    assert care.figures.get("damaged") == 0
    assert seen(library, "t") == before
    library.kill()
    assert seen(library, "t") == before
    assert library.delete("t", match=["tag", "Eq", "dead"])["deleted"] > 290


@pytest.mark.parametrize("cap", [{"cap_records": 7}, {"cap_bytes": 5000}, {"ttl_ms": 1000}])
def test_a_topic_whose_indexes_and_data_are_gone_is_emptied_by_its_caps(library: Library, cap: dict[str, int]) -> None:
    library.put("t")
    fill(library, "t", 200)
    library.seal("t")
    for path in [*Path(library.directory).rglob("*.idx"), *Path(library.directory).rglob("*.data")]:
        path.unlink()
        path.write_bytes(b"")
    library.kill()
    assert library.diff("t")["tombstone"]["reason"] == "corrupt"
    library.clock.advance(5000)
    library.put("t", **cap)
    library.engine.tick()
    assert library.state("t")["count"] <= 200
    library.append("t", [{"data": 1}])
    assert [record["$seq"] for record in library.read_all("t")[0]] == [201]
    tombstones = library.read_all("t")[1]
    assert tombstones[0]["gap_from"] == 1 and tombstones[-1]["gap_to"] == 200
    library.kill()
    assert [record["$seq"] for record in library.read_all("t")[0]] == [201]


def test_damaged_data_is_not_made_anew(library: Library) -> None:
    library.put("t")
    fill(library, "t", 300)
    library.seal("t")
    for suffix, offset in (("idx", 500), ("data", 5000)):
        flip(next(Path(library.directory).rglob(f"*.{suffix}")), offset)
    care = keeper(library, scrub_bytes_per_second=1 << 30)
    scrub(care)
    care.step(0, 0)
    assert care.figures.get("rewrites") == 0
    assert care.figures.get("damaged") >= 2


@pytest.mark.parametrize("pack", [False, True])
def test_what_fsck_has_called_lost_stays_told_and_uncounted_and_is_not_made_anew(library: Library, pack: bool) -> None:
    for name in ("t", "u"):
        library.put(name)
        fill(library, name, 3000)
    library.sequencer.sync()
    if pack:
        slots = [library.sequencer.find(name) for name in (b"t", b"u")]
        library.sealing(bytes_max=0)._pack([(slot, library.sequencer.topic(slot)["topic_id"]) for slot in slots])
    else:
        library.seal("t")
        library.seal("u")
    path = next(Path(library.directory).rglob("*.pack" if pack else "*.data"))
    offset = path.read_bytes().index(b"001000x")
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"Z")
        if pack:
            file.seek(path.read_bytes().index(b"TPSGIDX1") + 500)
            file.write(bytes(24))
    for index in Path(library.directory).rglob("*.idx"):
        index.write_bytes(bytes(index.stat().st_size))  # made again of what the data has
    library.close()
    assert fsck(Path(library.directory), mend=True).done
    library.kill()
    for name in ("t", "u"):
        kill_off(library, name)
    care = keeper(library)
    for now_ms in range(0, 20_000, 4000):
        library.read_all("t"), library.read_all("u")
        care.step(now_ms, 0)
    care.rewrite_one()
    for restart in (lambda: None, library.kill, library.stop):
        restart()
        care = keeper(library)
        for now_ms in range(0, 12_000, 4000):
            [told] = library.read_all("t")[1] + library.read_all("u")[1]
            assert (told["gap_from"], told["gap_to"], told["reason"]) == (1001, 1001, "corrupt")
            care.step(now_ms, 0)
        for name in ("t", "u"):
            assert library.state(name)["count"] == len(library.read_all(name)[0])


def test_a_scrub_reads_no_more_than_its_rate(library: Library) -> None:
    for name in ("a", "b", "c"):
        library.put(name)
        fill(library, name, 300)
        library.seal(name)
    care = keeper(library, scrub_bytes_per_second=100_000)
    for mono_ms in range(0, 15_000, 100):  # a pass begins with the log, 900 kB of it
        care.step(mono_ms, 0)
    assert 300_000 < care.figures.get("scrub_bytes") < 1_100_000
    assert care.figures.get("scrub_segments") == 2


def test_files_that_nobody_speaks_of_are_told_and_stay(library: Library) -> None:
    library.put("t")
    fill(library, "t", 200)
    library.seal("t")
    root = Path(library.directory)
    known = next(root.rglob("*.data"))
    strangers = [known.with_name(f"{7:020d}.data"), known.with_name("notes.txt"), root / "packs" / f"{5:020d}.pack"]
    for path in strangers:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    care = keeper(library)
    assert care.look_for_orphans(0) == [], "they may be about to be published"
    now_ms = int(known.stat().st_mtime * 1000) + DAY_MS
    assert sorted(care.look_for_orphans(now_ms)) == sorted(strangers)
    assert care.figures.get("orphans") == 3
    library.drop("t")
    library.checkpoint()
    assert known.exists()
    assert sorted(care.look_for_orphans(now_ms)) == sorted(strangers), "what waits to be removed is no orphan"
    library.kill()
    assert sorted(keeper(library).look_for_orphans(now_ms)) == sorted(strangers)
    library.checkpoint()
    library.checkpoint()
    assert not known.exists()
    assert all(path.exists() for path in strangers)


def test_checkpoints_are_measured(library: Library) -> None:
    figures = library.store.figures
    library.put("t")
    assert figures.get("checkpoints") == 0
    library.checkpoint()
    assert (figures.get("checkpoints"), figures.get("checkpoint_at_ms")) == (1, library.clock.wall_ms())
    assert figures.get("checkpoint_bytes") > 100
    shown = {family.name: family.samples[0][2] for family in figures.families(library.clock.wall_ms() + 5000)}
    assert shown["topics_checkpoint_age_ms"] == 5000


def test_the_table_of_files_is_listed_as_it_is(library: Library) -> None:
    library.put("t")
    fill(library, "t", 100)
    library.seal("t")
    (file,) = native.listed(library.shared)
    assert native.lives(library.shared, file.number, file.serial)
    assert not native.lives(library.shared, file.number, file.serial + 1)
    assert dict(native.tally(library.shared))[file.number].live == 100
    library.drop("t")
    assert native.listed(library.shared) == []
