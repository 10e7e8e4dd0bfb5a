"""Records that stand in segments are read, deleted, evicted and expired as if they stood in the log."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.faulty_files import FaultyFiles
from fakes.in_process import Library
from topicsd._native import frame, log_walk
from topicsd.engine import frames
from topicsd.segments.sealing import PIECE_BYTES_MIN

MIB = 1 << 20


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def library(tmp_path: Path, clock: FakeClock) -> Iterator[Library]:
    made = Library(str(tmp_path), clock)
    yield made
    made.close()


def fill(library: Library, name: str, count: int, batch: int = 4, **record: Any) -> None:
    for first in range(1, count + 1, batch):
        library.append(name, [{"data": {"n": n}, **record} for n in range(first, min(first + batch, count + 1))])


def numbers(page: dict[str, Any]) -> list[int]:
    return [record["$seq"] for record in page["records"]]


def test_a_diff_crosses_from_segments_into_the_tail_without_a_seam(library: Library) -> None:
    library.put("t")
    fill(library, "t", 40)
    before = library.diff("t")
    library.seal("t", 10)
    fill(library, "t", 8)
    assert library.rows("t") == [(1, 12), (13, 24), (25, 36), (37, 40)]
    after = library.diff("t")
    assert after["records"][:40] == before["records"]
    assert numbers(after) == list(range(1, 49))
    assert numbers(library.diff("t", 11, limit=3)) == [12, 13, 14]
    assert numbers(library.diff("t", 38)) == [39, 40, *range(41, 49)]


def test_a_sealed_topic_costs_no_tail_index(library: Library) -> None:
    library.put("t")
    fill(library, "t", 5000, 500)
    assert library.reader.diff is not None
    library.seal("t")
    assert library.rows("t") == [(1, 5000)]
    assert numbers(library.diff("t", 4990)) == list(range(4991, 5001))
    assert library.state("t")["count"] == 5000


def test_between_two_segments_of_a_round_the_keeper_hears_what_still_waits(library: Library, clock: FakeClock) -> None:
    for name in ("a", "b"):
        library.put(name)
        fill(library, name, 30, 10)
    library.sequencer.sync()
    rounds, told = library.sealing(events_max=10, bytes_max=0, pack_below_bytes=0), []
    rounds.pace = lambda took_s, behind: told.append((took_s, behind, rounds.done.segments))
    assert rounds.round(clock.wall_ms()).segments == 6
    waiting = [behind for _took, behind, _segments in told]
    assert [segments for _took, _behind, segments in told] == list(range(7)), "before the first one, and behind each"
    assert told[0][0] == 0 and all(took > 0 for took, _behind, _segments in told[1:])
    assert waiting == sorted(waiting, reverse=True)
    assert waiting[0] > waiting[1] > waiting[3] > waiting[-1] == 0


@pytest.mark.parametrize("pack", [False, True])
def test_a_restart_finds_the_segments_again(library: Library, pack: bool) -> None:
    library.put("t")
    fill(library, "t", 20, tag="x")
    library.seal("t", 8, pack)
    fill(library, "t", 4)
    seen, state = library.diff("t"), library.state("t")
    rows = library.rows("t")
    assert rows
    for restart in (library.kill, library.stop):
        restart()
        assert library.rows("t") == rows
        assert library.diff("t") == seen
        assert library.state("t") == state


def test_deletes_by_tag_reach_sealed_records(library: Library) -> None:
    library.put("t")
    for n in range(12):
        library.append("t", [{"data": n, "tag": "even" if n % 2 == 0 else f"odd:{n}"}])
    library.seal("t", 5)
    assert library.delete("t", match=["tag", "Eq", "even"])["deleted"] == 6
    assert numbers(library.diff("t")) == [2, 4, 6, 8, 10, 12]
    assert library.delete("t", match=["tag", "Eq", "even"])["deleted"] == 0
    library.kill()
    assert numbers(library.diff("t")) == [2, 4, 6, 8, 10, 12]
    assert library.delete("t", before_seq=9, match=["tag", "Glob", "odd:*"])["deleted"] == 4
    assert numbers(library.diff("t")) == [10, 12]
    assert library.state("t")["count"] == 2


def test_what_was_deleted_while_the_keeper_built_is_not_seen_again(library: Library) -> None:
    library.put("t")
    for n in range(6):
        library.append("t", [{"data": n, "tag": "a" if n == 2 else "b"}])
    library.sequencer.sync()
    slot = library.sequencer.find(b"t")
    topic_id = library.sequencer.topic(slot)["topic_id"]
    body = library.sealing().sealer.seal(slot, topic_id, 1000, 1 << 30)
    assert body is not None
    library.delete("t", match=["tag", "Eq", "a"])
    assert library.engine.segments.publish(slot, topic_id, body) == "published"
    for _ in range(2):
        assert numbers(library.diff("t")) == [1, 2, 4, 5, 6]
        assert library.state("t")["count"] == 5
        library.kill()


def test_a_cap_evicts_sealed_records_exactly(library: Library) -> None:
    library.put("t", cap_records=10)
    fill(library, "t", 10, 2)
    library.seal("t", 3)
    library.append("t", [{"data": 11}])
    page = library.diff("t")
    assert (numbers(page), page["earliest_seq"], page["tombstone"]["gap_to"]) == (list(range(2, 12)), 2, 1)
    library.put("t", cap_records=2)
    assert numbers(library.diff("t")) == [10, 11]
    assert library.rows("t") == [(9, 10)]
    library.kill()
    assert numbers(library.diff("t")) == [10, 11]


def test_records_expire_in_segments(library: Library, clock: FakeClock) -> None:
    library.put("t", ttl_ms=1000)
    fill(library, "t", 6)
    library.seal("t")
    clock.advance(600)
    fill(library, "t", 2)
    clock.advance(500)
    page = library.diff("t")
    assert (numbers(page), page["earliest_seq"], page["tombstone"]["reason"]) == ([7, 8], 7, "ttl")
    library.engine.tick()
    assert library.rows("t") == []
    assert library.state("t")["count"] == 2


def test_a_diff_begins_at_a_time_in_a_segment(library: Library, clock: FakeClock) -> None:
    library.put("t")
    times = []
    for n in range(10):
        times.append(clock.wall_ms())
        library.append("t", [{"data": n}])
        clock.advance(100)
    library.seal("t", 3)
    library.append("t", [{"data": 10}])
    for n, ts in enumerate(times):
        assert numbers(library.diff("t", from_ts=ts))[0] == n + 1
        assert numbers(library.diff("t", from_ts=ts + 1))[0] == n + 2


def test_the_rest_of_a_pack_is_not_published_when_all_that_was_has_gone_again(library: Library) -> None:
    for name in ("a", "b"):
        library.put(name)
        fill(library, name, 4)
    library.sequencer.sync()
    rounds, kept = library.sealing(publish_rows_max=1), []
    publish = rounds.publish
    rounds.publish = lambda rows: kept.extend(rows) or ["dead"] * len(rows)
    rounds._pack([(slot := library.sequencer.find(name.encode()), library.sequencer.topic(slot)["topic_id"]) for name in ("a", "b")])
    assert publish(kept[:1]) == ["published"]
    library.drop("a")
    assert publish(kept[1:]) == ["broken"]
    for _ in range(2):
        assert numbers(library.diff("b")) == [1, 2, 3, 4]
        library.kill()
    assert library.seal("b", pack=True) == {"published": 1}
    assert numbers(library.diff("b")) == [1, 2, 3, 4]


def test_a_removed_topic_takes_its_segments_with_it(library: Library) -> None:
    library.put("t")
    fill(library, "t", 8)
    library.seal("t", 4)
    library.drop("t")
    assert len(library.engine.segments.collect()) == 2
    assert library.shared.get("segments") == 0


def test_a_flipped_bit_in_a_segment_is_told_and_the_rest_is_served(library: Library, tmp_path: Path) -> None:
    library.put("t")
    fill(library, "t", 8)
    library.seal("t")
    data = next(tmp_path.glob("topics/*/*/*.data"))
    raw = bytearray(data.read_bytes())
    at = raw.index(b'{"n":5}')
    raw[at + 5] ^= 1
    data.write_bytes(raw)
    library.kill()
    records, tombstones = library.read_all("t")
    assert [record["$seq"] for record in records] == [1, 2, 3, 4, 6, 7, 8]
    assert [(each["gap_from"], each["gap_to"], each["reason"]) for each in tombstones] == [(5, 5, "corrupt")]


def test_a_round_packs_little_tails_and_gives_large_ones_files_of_their_own(library: Library, clock: FakeClock, tmp_path: Path) -> None:
    for n in range(20):
        library.append(f"small{n}", [{"data": n}, {"data": "x"}])
    library.append("large", [{"data": "y" * 3000} for _ in range(10)])
    library.sequencer.sync()
    rounds = library.sealing(age_ms_max=1000, pack_below_bytes=10_000)
    assert rounds.round(clock.wall_ms()).segments == 0
    clock.advance(1000)
    done = rounds.round(clock.wall_ms())
    assert (done.segments, done.records, done.packs, done.failed) == (21, 50, 1, [])
    assert len(list(tmp_path.glob("packs/*.pack"))) == 1
    assert len(list(tmp_path.glob("topics/*/*/*.data"))) == 1
    for _ in range(2):
        assert [len(library.diff(f"small{n}")["records"]) for n in range(20)] == [2] * 20
        assert len(library.diff("large")["records"]) == 10
        library.kill()


def test_a_long_hole_is_a_row_without_a_file(library: Library) -> None:
    library.put("t")
    library.append("t", [{"data": 1}])
    library.reboot()  # the topic jumps to its ceiling
    library.append("t", [{"data": 2}])
    page = library.diff("t", 1)
    library.seal("t")
    assert library.rows("t")[0] == (1, 1)
    assert len(library.rows("t")) == 3
    assert library.diff("t", 1) == page
    library.kill()
    assert library.diff("t", 1) == page


def test_a_restart_that_numbers_files_anew_reads_no_map_of_the_old_ones(library: Library) -> None:
    library.append("a", [{"data": 1}])
    library.seal("a")
    assert len(library.diff("a")["records"]) == 1
    library.append("b", [{"data": 2}, {"data": 3}])
    library.drop("a")
    library.kill()
    library.seal("b")
    assert [record["data"] for record in library.diff("b")["records"]] == [2, 3]
    assert library.diff("b")["tombstone"] is None


def test_a_router_copies_from_segments_too(library: Library) -> None:
    fill(library, "t", 8, tag="x")
    library.seal("t", 4)
    fill(library, "t", 2)
    library.route("t", "copy", from_seq=2)
    expected = [(record["data"], record["tag"]) for record in library.diff("t", 2)["records"] if "tag" in record]
    for _ in range(2):
        records = library.diff("copy")["records"]
        assert [record["data"] for record in records] == [record["data"] for record in library.diff("t", 2)["records"]]
        assert [(record["data"], record["tag"]) for record in records if "tag" in record] == expected
        library.kill()


def test_what_is_live_above_a_seq_is_counted_over_segments(library: Library, clock: FakeClock) -> None:
    for n in range(12):
        library.append("t", [{"data": "x" * n, "tag": "odd" if n % 2 else "even"}])
        clock.advance(10)
    library.seal("t", 5)
    library.append("t", [{"data": "y"}])
    library.delete("t", match=["tag", "Eq", "odd"])
    slot = library._slot("t")
    live = [(record["$seq"], record["$ts"]) for record in library.diff("t")["records"]]
    for seq in range(14):
        counted, _size, oldest = library.reader.live_after(slot, seq, clock.wall_ms())
        above = [each for each in live if each[0] > seq]
        assert (counted, oldest) == (len(above), above[0][1] if above else 0)
    for seq, ts in live:
        assert library.reader.seq_at(slot, ts, clock.wall_ms()) == seq


@pytest.mark.parametrize("keeps", [True, False])
def test_copies_of_routers_are_sealed_as_they_are_shown_and_let_the_log_of_their_source_go(tmp_path: Path, clock: FakeClock, keeps: bool) -> None:
    library = Library(str(tmp_path), clock, file_bytes=1 << 16)
    library.put("a", cap_records=5)
    library.route("a", "b", preserve_node=keeps, preserve_tag=keeps)
    for n in range(40):
        library.append("a", [{"data": {"n": n, "x": "x" * 4000}, "tag": f"t{n % 2}", "node": "n", "meta": {"m": "v"}}, {"data": n}])
    library.append("b", [{"data": "own", "tag": "t1"}])
    before, state = library.read_all("b", include_meta=True), library.state("b")
    files = library.log_files()
    library.seal("b", 10)
    assert library.rows("b")[-1][1] == 81
    assert (library.read_all("b", include_meta=True), library.state("b")) == (before, state)
    for name in library.names():
        library.seal(name)
    library.checkpoint()
    library.checkpoint()
    assert library.log_files() < files
    for restart in (library.kill, library.stop):
        restart()
        assert (library.read_all("b", include_meta=True), library.state("b")) == (before, state)
    assert library.delete("b", match=["tag", "Eq", "t1"])["deleted"] == (21 if keeps else 1)
    assert library.state("b")["count"] == (60 if keeps else 80)
    library.delete("b", before_seq=100)
    assert library.state("b")["bytes"] == 0
    library.close()


def shrinks(library: Library, *names: str) -> None:
    """Two checkpoints after everything was sealed the log holds next to nothing."""
    for name in names:
        library.seal(name)
    library.checkpoint()
    library.checkpoint()
    assert library.log_files() <= 2


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("keeps", [True, False])
def test_exactly_once_copies_are_sealed_with_where_they_come_from_and_let_the_log_go(
    tmp_path: Path, clock: FakeClock, keeps: bool, pack: bool
) -> None:
    library = Library(str(tmp_path), clock, file_bytes=1 << 16)
    library.put("a", cap_records=5)
    library.route("a", "b", guarantee="exactly_once", preserve_node=keeps, preserve_tag=keeps)
    for n in range(100):
        meta = {"m": "v" * (n % 3), "_topics_router": "mine"} if n % 4 else {}
        library.append("a", [{"data": {"n": n, "x": "x" * 4000}, "tag": f"t{n % 2}", "node": "n", "meta": meta}, {"data": n}])
    library.append("b", [{"data": "own", "tag": "t1"}])
    library.delete("b", before_seq=7)
    before, state = library.read_all("b", include_meta=True), library.state("b")
    origins = [record["meta"]["_topics_router"] for record in before[0][:-1]]
    assert library.log_files() > 4
    library.seal("b", 10, pack=pack)
    after = library.state("b")
    longer = sum(len(json.dumps({"_topics_router": origin}, separators=(",", ":"))) for origin in origins)
    assert library.read_all("b", include_meta=True) == before
    assert after["bytes"] > state["bytes"] and {**after, "bytes": 0} == {**state, "bytes": 0}
    assert after["bytes"] - state["bytes"] <= longer
    library.seal("b")
    assert library.rows("b")[-1][1] == 201
    after = library.state("b")
    for restart in (library.kill, library.stop):
        restart()
        assert (library.read_all("b", include_meta=True), library.state("b")) == (before, after)
    shrinks(library, "a", "b")
    for restart in (library.kill, library.stop):
        restart()
        assert (library.read_all("b", include_meta=True), library.state("b")) == (before, after)
    assert library.delete("b", match=["tag", "Eq", "t1"])["deleted"] == (50 if keeps else 1)
    library.delete("b", before_seq=1000)
    assert (library.state("b")["count"], library.state("b")["bytes"]) == (0, 0)
    assert library.shared.get("bytes_live") == library.state("a")["bytes"]
    library.close()


def test_a_cap_of_bytes_holds_for_exactly_once_copies_that_become_longer(tmp_path: Path, clock: FakeClock) -> None:
    library = Library(str(tmp_path), clock)
    library.route("a", "b", guarantee="exactly_once")
    for n in range(100):
        library.append("a", [{"data": n}])
    library.put("b", cap_bytes=1000)
    before = library.state("b")
    library.seal("b", 40)
    after = library.state("b")
    assert after["bytes"] <= 1000 and 0 < after["count"] < before["count"]
    records, tombstones = library.read_all("b", include_meta=True)
    assert [record["$seq"] for record in records] == list(range(101 - after["count"], 101))
    assert [each["reason"] for each in tombstones] == ["cap"]
    for restart in (library.kill, library.stop):
        restart()
        assert (library.read_all("b", include_meta=True), library.state("b")) == ((records, tombstones), after)
    library.close()


def test_exactly_once_copies_of_a_chain_keep_their_origins_whatever_is_sealed_between(tmp_path: Path, clock: FakeClock) -> None:
    library = Library(str(tmp_path), clock, file_bytes=1 << 16)
    library.route("a", "b", guarantee="exactly_once")
    library.put("c", cap_records=2, discard="reject")
    library.put("d", cap_records=2, discard="reject")
    library.route("b", "c")
    library.route("b", "d", guarantee="exactly_once")
    for n in range(40):
        library.append("a", [{"data": {"n": n, "x": "x" * 4000}}])
        if n % 10 == 9:
            library.seal("b")
            library.checkpoint()
            library.kill()
    a, b = library.state("a")["epoch"], library.state("b")["epoch"]
    library.put("c")
    library.put("d")
    for _ in range(2):
        assert [each["meta"]["_topics_router"] for each in library.read_all("b", include_meta=True)[0]] == [
            f"router:a->b:{a}:{a}:{n}" for n in range(1, 41)
        ]
        assert [each["meta"]["_topics_router"] for each in library.read_all("c", include_meta=True)[0]] == [
            f"router:a->b:{a}:{a}:{n}" for n in range(1, 41)
        ]
        assert [each["meta"]["_topics_router"] for each in library.read_all("d", include_meta=True)[0]] == [
            f"router:b->d:{b}:{b}:{n}" for n in range(1, 41)
        ]
        shrinks(library, "a", "b", "c", "d")
        library.kill()
    library.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_floors_of_sealed_records_hold_whatever_is_raised_or_set_back(tmp_path: Path, clock: FakeClock, when: str) -> None:
    library = Library(str(tmp_path), clock, file_bytes=1 << 16)
    library.put("cap", cap_records=50)
    library.put("ttl", ttl_ms=10_000)
    for name in ("cap", "ttl"):
        for n in range(200):
            library.append(name, [{"data": n}])
        if when == "before":
            library.seal(name, 40)
    clock.advance(20_000)
    for name in ("cap", "ttl"):
        for n in range(200, 230):
            library.append(name, [{"data": n}])
        if when == "after":
            library.seal(name, 40)
    library.engine.tick()
    before = {name: (library.read_all(name), library.state(name)) for name in ("cap", "ttl")}
    assert [record["data"] for record in before["cap"][0][0]] == list(range(180, 230))
    assert [record["data"] for record in before["ttl"][0][0]] == list(range(200, 230))
    library.put("cap")
    library.put("ttl", ttl_ms=1 << 40)
    clock.step(-3_600_000)
    for restart in (lambda: None, library.kill, library.checkpoint, library.kill, library.checkpoint, library.stop, library.reboot):
        restart()
        for name in ("cap", "ttl"):
            (records, tombstones), state = library.read_all(name), library.state(name)
            assert (records, tombstones) == before[name][0], name
            assert state["earliest"] == before[name][1]["earliest"] and state["count"] == before[name][1]["count"]
    assert library.append("ttl", [{"data": "new"}])["first_seq"] > 230
    library.close()


@pytest.mark.parametrize("pack", [False, True])
def test_a_full_disk_is_freed_file_by_file_in_pieces_that_it_has_room_for(tmp_path: Path, clock: FakeClock, pack: bool) -> None:
    files = FaultyFiles(tmp_path)
    library = Library(str(tmp_path), clock, files=files, file_bytes=256 << 10)
    for n in range(40):
        library.append("held", [{"data": f"{n:04d}" + "x" * 500} for _ in range(4)])
        library.append("gone", [{"data": "y" * 5000} for _ in range(4)])
    library.drop("gone")
    library.sequencer.sync()
    before, had = library.diff("held", limit=1000)["records"], library.log_files()
    assert had > 3
    rounds = library.sealing(age_ms_max=3_600_000, log_bytes_max=1 << 30, pack_below_bytes=MIB if pack else 0)
    rounds.room = lambda: 1 << 40  # another process takes it before we do

    files.space = files.used()
    done = rounds.make_room(behind(library), clock.wall_ms())
    assert (done.segments, done.no_room, done.failed, rounds.skipped) == (0, 1, [], set())
    assert not list(tmp_path.rglob("*.tmp"))
    assert library.diff("held", limit=1000)["records"] == before

    rounds.room = lambda: PIECE_BYTES_MIN - 1
    assert rounds.make_room(behind(library), clock.wall_ms()).no_room == 1, "what a snapshot needs stays free"
    rounds.room = lambda: 1 << 40
    files.space += 80 << 10  # less than what is held
    done = rounds.make_room(behind(library), clock.wall_ms())
    assert done.segments and done.records < len(before)
    files.space = None
    for _ in range(3):
        library.checkpoint()
    assert library.log_files() < had
    for _ in range(2):
        assert library.diff("held", limit=1000)["records"] == before
        library.kill()
    library.close()


def behind(library: Library) -> list[int]:
    written = int(str(library.shared.shard(0)["written"]))
    ends = [file.first_position for file in log_walk.list_files(os.fsencode(Path(os.fsdecode(library.directory)) / "log" / "shard-00"))[1:]]
    return [written - end for end in ends if end < written]


def hold_a_log_of_what_is_gone(library: Library, records: int, size: int) -> None:
    for n in range(records):
        library.append("held", [{"data": f"{n:04d}" + "x" * size}])
        library.append("gone", [{"data": "y" * 5000} for _ in range(4)])
    library.drop("gone")
    library.sequencer.sync()


def test_a_full_log_is_sealed_with_room_that_was_set_aside_and_nothing_else_is(tmp_path: Path, clock: FakeClock) -> None:
    files = FaultyFiles(tmp_path)
    library = Library(str(tmp_path), clock, files=files, file_bytes=256 << 10)
    hold_a_log_of_what_is_gone(library, 40, 500)
    before, had = library.diff("held", limit=1000)["records"], library.log_files()
    rounds = library.sealing(age_ms_max=1, log_bytes_max=1 << 30)
    files.space = files.used()
    kept = [256 << 10] * 2

    def give() -> bool:
        if kept:
            files.space += kept.pop()
        return bool(kept) or files.space > files.used()

    rounds.room = lambda: files.space - files.used()
    rounds.give = give
    clock.step(10_000)
    assert rounds.round(clock.wall_ms()).no_room == 1 and len(kept) == 2, "what is merely old waits for room of its own"
    done = rounds.make_room(behind(library), clock.wall_ms())
    assert done.segments and not done.no_room and len(kept) == 1, "no more than is needed"
    files.space = None
    for _ in range(3):
        library.checkpoint()
    assert library.log_files() < had
    assert library.diff("held", limit=1000)["records"] == before
    library.close()


def test_what_stands_behind_deleted_records_holds_a_full_log_and_is_sealed(tmp_path: Path, clock: FakeClock) -> None:
    library = Library(str(tmp_path), clock, file_bytes=256 << 10)
    library.append("held", [{"data": "first"}])
    library.seal("held")
    for n in range(40):
        library.append("held", [{"data": f"{n:04d}" + "x" * 500, "tag": "live" if n % 8 == 7 else "dead"} for _ in range(20)])
    library.sequencer.sync()
    assert library.delete("held", match=["tag", "Eq", "dead"])["deleted"] == 700
    rounds = library.sealing(age_ms_max=3_600_000, log_bytes_max=1 << 30)
    before, had = library.diff("held", limit=1000)["records"], library.log_files()
    while rounds.make_room(behind(library), clock.wall_ms()).segments:
        pass
    for _ in range(3):
        library.checkpoint()
    assert library.log_files() < min(had, 3)
    assert library.diff("held", limit=1000)["records"] == before
    library.close()


def test_what_was_set_aside_is_not_spent_before_something_was_deleted_and_then_on_the_oldest_file_alone(tmp_path: Path, clock: FakeClock) -> None:
    library = Library(str(tmp_path), clock, file_bytes=256 << 10)
    for _ in range(60):
        for name in ("a", "b", "c"):
            library.append(name, [{"data": "x" * 300, "tag": name} for _ in range(20)])
    library.sequencer.sync()
    rounds = library.sealing(age_ms_max=3_600_000, log_bytes_max=1 << 30)
    written = int(str(library.shared.shard(0)["written"]))
    assert not rounds.gains(written), "segments have an index, too"
    library.drop("a")
    library.delete("b", match=["tag", "Eq", "b"], before_seq=1100)
    assert rounds.gains(written)
    oldest = behind(library)[0]
    done = rounds.make_room([oldest], clock.wall_ms())
    assert 0 < done.records < 300, "of two thousand: some twenty kilobytes of b, and what of c stands in the first file"
    assert rounds.make_room([oldest], clock.wall_ms()).segments == 0
    library.seal("c")
    assert library.rows("c")[-1][1] == 1200, "who asks has all of it"
    library.close()


def test_while_the_oldest_file_waits_for_snapshots_those_behind_it_are_sealed_without_what_was_set_aside(tmp_path: Path, clock: FakeClock) -> None:
    files = FaultyFiles(tmp_path)
    library = Library(str(tmp_path), clock, files=files, file_bytes=256 << 10)
    hold_a_log_of_what_is_gone(library, 60, 5000)
    before = library.diff("held", limit=1000)["records"]
    rounds, kept = library.sealing(age_ms_max=3_600_000, log_bytes_max=1 << 30), [MIB] * 2

    def give() -> bool:
        files.space += kept[-1] if kept else 0
        return bool(kept and kept.pop())

    rounds.room, rounds.give = lambda: files.space - files.used(), give
    files.space = files.used() + MIB
    first = rounds.make_room(behind(library), clock.wall_ms())
    assert first.segments and not first.waits
    files.space, left = files.used(), len(kept)
    done = rounds.make_room(behind(library), clock.wall_ms())
    assert (done.segments, done.no_room, done.waits) == (0, 0, 1) and len(kept) == left, "two snapshots, and there is room"
    files.space = None
    for _ in range(3):
        library.checkpoint()
    files.space = files.used()
    assert rounds.make_room(behind(library), clock.wall_ms()).segments and len(kept) < left, "now that one is the oldest"
    files.space = None
    assert library.diff("held", limit=1000)["records"] == before
    library.close()


def test_a_batch_that_is_larger_than_what_a_piece_needs_has_all_that_was_set_aside(tmp_path: Path, clock: FakeClock) -> None:
    files = FaultyFiles(tmp_path)
    library = Library(str(tmp_path), clock, files=files, file_bytes=1 << 20)
    for n in range(4):
        library.append("held", [{"data": f"{n}" + "x" * 10_000} for _ in range(60)])
    library.sequencer.sync()
    before = library.diff("held", limit=1000)["records"]
    rounds, kept = library.sealing(age_ms_max=3_600_000, log_bytes_max=1 << 30), [256 << 10] * 8
    files.space = files.used()

    def give() -> bool:
        files.space += kept[-1] if kept else 0
        return bool(kept and kept.pop())

    rounds.room, rounds.give = lambda: files.space - files.used(), give
    done = rounds.make_room(behind(library), clock.wall_ms())
    assert done.segments and len(kept) < 7, "600 kB are sealed as a whole"
    files.space = None
    assert library.diff("held", limit=1000)["records"] == before
    library.close()


@pytest.mark.parametrize("pack", [False, True])
def test_what_finds_no_room_in_the_log_for_its_row_leaves_no_file_and_is_sealed_later(tmp_path: Path, clock: FakeClock, pack: bool) -> None:
    files = FaultyFiles(tmp_path)
    library = Library(str(tmp_path), clock, files=files, file_bytes=256 << 10)
    for name in ("a", "b"):
        fill(library, name, 40)
    library.sequencer.sync()
    shard = library.store.shards[0]
    files.fail("fallocate", error=errno.ENOSPC, path=b"/log/", forever=True)
    with pytest.raises(OSError):
        while True:
            shard.append(frame.build(frames.CEILING, bytes(56)), privileged=True)
            shard.flush_group()
    assert shard.starved
    rounds, before = library.sealing(events_max=10, bytes_max=0, pack_below_bytes=MIB if pack else 0), library.diff("a")
    for _ in range(2):
        done = rounds.round(clock.wall_ms())
        assert done.no_room and not done.segments and not done.failed and set(done.refused) == {"no_room"}
        assert not [path for folder in ("topics", "packs") for path in (tmp_path / folder).rglob("*") if path.is_file()]
    assert library.engine.segments.published == 0, "no checkpoint is due for it"
    files.heal()
    shard.starved = False
    assert rounds.round(clock.wall_ms()).segments >= 2
    assert library.diff("a") == before and library.rows("a")
    library.kill()
    assert library.diff("a") == before
    library.close()


def test_a_row_whose_write_failed_may_stand_in_the_log_so_its_files_stay(tmp_path: Path, clock: FakeClock) -> None:
    files = FaultyFiles(tmp_path)
    library = Library(str(tmp_path), clock, files=files)
    fill(library, "t", 40)
    library.sequencer.sync()
    files.fail("pwritev", error=errno.ENOSPC, path=b"/log/")
    with pytest.raises(OSError):
        library.sealing(events_max=10, bytes_max=0, pack_below_bytes=0).round(clock.wall_ms())
    assert [path for path in (tmp_path / "topics").rglob("*") if path.is_file()]
    library.close()
