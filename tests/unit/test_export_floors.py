"""What a topic has lost or deleted stands in an export as diff tells it: a gap with its reason, or nothing; also of a topic without a segment."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

import topicsd
from fakes.in_process import Library
from topicsd.lake import manifest
from topicsd.lake.export import Exporter, Report
from topicsd.lake.manifest import Row, Topic, filled, merged
from topicsd.lake.pieces import DamagedError
from topicsd.lake.sources import DirectorySource

pytest.importorskip("pyarrow")
GOLDEN = Path(__file__).parents[1] / "golden/export-v1"


def fill(engine: Library, name: str, count: int, **record: Any) -> None:
    engine.append(name, [{"data": 1, **record} for _ in range(count)])


def run(engine: Library, to: Path, *, ask: bool = True, **options: Any) -> Report:
    """Seal what there is, as --seal has a server do it, and export it."""
    for name in engine.names():
        if ask:
            engine.call({"op": "topic.seal", "topic": name})
            engine.seal(name)
    return Exporter(DirectorySource(Path(engine.directory)), to, **options).run()


def exported(to: Path, name: str) -> list[tuple[int, int | None, str]]:
    """Runs of records, and gaps: first seq, last seq, why."""
    out: list[tuple[int, int | None, str]] = []
    for row in topicsd.scan(to, ["seq", "_kind", "seq_end", "_err"], [name]).read_all().to_pylist():
        if row["_kind"] == "gap":
            out.append((row["seq"], row["seq_end"], row["_err"]))
        elif out and out[-1][1:] == (row["seq"] - 1, "record"):
            out[-1] = out[-1][0], row["seq"], "record"
        else:
            out.append((row["seq"], row["seq"], "record"))
    return out


def told(to: Path, name: str) -> Topic:
    found = manifest.latest(to)
    assert found is not None
    return found.topics[name]


def tombstone(engine: Library, name: str, from_seq: int = 0) -> tuple[int, int, str] | None:
    gap = engine.diff(name, from_seq)["tombstone"]
    return None if gap is None else (gap["gap_from"], gap["gap_to"], gap["reason"])


# ---- what is lost ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_came_and_went_between_two_runs_is_a_gap_with_its_reason(engine: Library, tmp_path: Path, checkpoint: bool) -> None:
    engine.put("cap", cap_records=10)
    engine.put("ttl", ttl_ms=4000)
    for name in ("cap", "ttl"):
        fill(engine, name, 20)
    run(engine, tmp_path / "to")
    assert exported(tmp_path / "to", "cap") == [(1, 10, "cap"), (11, 20, "record")]
    assert exported(tmp_path / "to", "ttl") == [(1, 20, "record")]
    for name in ("cap", "ttl"):
        fill(engine, name, 40)
    engine.clock.advance(4001)
    if checkpoint:
        engine.checkpoint()
    run(engine, tmp_path / "to")
    assert exported(tmp_path / "to", "cap") == [(1, 10, "cap"), (11, 20, "record"), (21, 50, "cap"), (51, 60, "record")]
    assert exported(tmp_path / "to", "ttl") == [(1, 20, "record"), (21, 60, "ttl")]
    assert (told(tmp_path / "to", "cap").evict_floor, told(tmp_path / "to", "ttl").evict_floor) == (51, 61)
    assert told(tmp_path / "to", "ttl").next_seq == 61
    assert tombstone(engine, "ttl", 20) == (21, 60, "ttl") and tombstone(engine, "cap", 20) == (21, 50, "cap")
    assert run(engine, tmp_path / "to", quiet=True).changed is False


def test_a_first_export_begins_with_what_had_gone_as_diff_from_zero_tells_it(engine: Library, tmp_path: Path) -> None:
    engine.put("both", cap_records=10, ttl_ms=5000)
    fill(engine, "both", 15)
    engine.clock.advance(3000)
    fill(engine, "both", 6)
    engine.clock.advance(2500)
    run(engine, tmp_path / "to")
    assert exported(tmp_path / "to", "both") == [(1, 15, "mixed"), (16, 21, "record")]
    assert tombstone(engine, "both") == (1, 15, "mixed")


def test_a_topic_of_which_nothing_is_left_and_one_that_never_had_anything_are_in_the_manifest(engine: Library, tmp_path: Path) -> None:
    engine.put("empty")
    engine.put("gone", ttl_ms=1000)
    engine.put("deleted")
    fill(engine, "gone", 7)
    fill(engine, "deleted", 5)
    engine.delete("deleted", before_seq=99)
    engine.clock.advance(1001)
    run(engine, tmp_path / "to")
    found = {name: told(tmp_path / "to", name) for name in ("empty", "gone", "deleted")}
    assert {name: (one.next_seq, one.evict_floor, len(one.rows)) for name, one in found.items()} == {
        "empty": (1, 1, 0), "gone": (8, 8, 1), "deleted": (6, 1, 1)
    }  # fmt: skip
    assert exported(tmp_path / "to", "gone") == [(1, 7, "ttl")]
    assert exported(tmp_path / "to", "deleted") == exported(tmp_path / "to", "empty") == []
    line = next(json.loads(line) for line in manifest.path_of(tmp_path / "to", 1).read_bytes().splitlines() if b'"gone"' in line)
    assert (line["evict_floor"], line["first_seq"], line["next_seq"]) == (8, 1, 8) and "first_ts" not in line
    (row,) = line["segments"]
    assert (row["file"], row["why"], row["evicted"], row["holes"]) == ("", "ttl", True, 0)


def test_deletes_are_silent_wherever_they_stand(engine: Library, tmp_path: Path) -> None:
    engine.put("t", cap_records=30)
    fill(engine, "t", 20)
    run(engine, tmp_path / "to")
    fill(engine, "t", 20)  # 1 .. 10 evicted
    engine.delete("t", before_seq=36)
    run(engine, tmp_path / "to", prune=True)
    assert tombstone(engine, "t") == (1, 10, "cap")
    assert exported(tmp_path / "to", "t") == [(1, 10, "cap"), (36, 40, "record")]
    engine.checkpoint()
    run(engine, tmp_path / "to", prune=True)
    assert exported(tmp_path / "to", "t") == [(1, 10, "cap"), (36, 40, "record")]


TAG_B = {"match": ["tag", "Eq", "b"]}


def alternate(engine: Library, name: str, count: int) -> None:
    """Records tagged b, a, b, a …"""
    engine.append(name, [{"data": 1, "tag": "ba"[number % 2]} for number in range(count)])


@pytest.mark.parametrize(
    "deletes", [*list(itertools.permutations([{"before_seq": 11}, TAG_B])), (TAG_B,), ({"before_seq": 13}, {"before_seq": 11}, TAG_B)]
)
def test_what_deletes_of_both_kinds_took_in_front_of_a_first_seal_is_deleted(engine: Library, tmp_path: Path, deletes: Any) -> None:
    engine.put("t")
    alternate(engine, "t", 30)
    for one in deletes:
        engine.delete("t", **one)
    run(engine, tmp_path / "to")
    live = [record["$seq"] for record in engine.read_all("t")[0]]
    found = told(tmp_path / "to", "t")
    assert [(one.first_seq, one.last_seq, one.why) for one in found.rows] == [(1, live[0] - 1, "deleted"), (live[0], 30, "")]
    assert exported(tmp_path / "to", "t") == [(seq, seq, "record") for seq in live]
    engine.checkpoint()
    assert run(engine, tmp_path / "to", quiet=True).changed is False


@pytest.mark.parametrize("first", ["before", "match"])
@pytest.mark.parametrize("checkpoint", [0, 1, 2, 3])
def test_what_deletes_took_between_two_segments_is_deleted(engine: Library, tmp_path: Path, checkpoint: int, first: str) -> None:
    engine.put("t")
    if first == "before":
        alternate(engine, "t", 10)
    else:
        engine.append("t", [{"data": 1, "tag": "b"}] * 10)
    run(engine, tmp_path / "to")
    alternate(engine, "t", 20)
    if checkpoint == 1:
        engine.checkpoint()
    if first == "before":
        engine.delete("t", before_seq=11)
    if checkpoint == 2:
        engine.checkpoint()
    engine.delete("t", **TAG_B)
    if checkpoint == 3:
        engine.checkpoint()
    run(engine, tmp_path / "to")
    run(engine, tmp_path / "fresh")
    wanted = [(seq, seq, "record") for seq in range(12, 31, 2)]
    assert [one for one in exported(tmp_path / "to", "t") if one[0] > 10] == exported(tmp_path / "fresh", "t") == wanted
    rows = told(tmp_path / "to", "t").rows
    assert rows[0].first_seq == 1 and all(one.last_seq + 1 == two.first_seq for one, two in itertools.pairwise(rows))


def test_what_caps_took_in_front_of_deletes_is_a_gap_and_they_are_none(engine: Library, tmp_path: Path) -> None:
    engine.put("t", cap_records=20)
    alternate(engine, "t", 30)
    engine.delete("t", **TAG_B)
    run(engine, tmp_path / "to")
    assert tombstone(engine, "t") == (1, 10, "cap")
    assert exported(tmp_path / "to", "t") == [(1, 10, "cap"), *((seq, seq, "record") for seq in range(12, 31, 2))]


def test_what_was_exported_stays_a_record_when_a_floor_passes_it_until_a_prune(engine: Library, tmp_path: Path) -> None:
    engine.put("t", cap_records=20)
    fill(engine, "t", 20)
    run(engine, tmp_path / "to")
    fill(engine, "t", 15)
    run(engine, tmp_path / "to")
    assert exported(tmp_path / "to", "t") == [(1, 35, "record")]
    assert told(tmp_path / "to", "t").evict_floor == 16
    fill(engine, "t", 30)
    run(engine, tmp_path / "to", ask=False)  # nobody has asked, so nobody has said what the cap took: the next run does
    assert exported(tmp_path / "to", "t") == [(1, 35, "record")]
    run(engine, tmp_path / "to")
    assert exported(tmp_path / "to", "t") == [(1, 35, "record"), (36, 45, "cap"), (46, 65, "record")]
    run(engine, tmp_path / "to", prune=True)
    assert exported(tmp_path / "to", "t") == [(1, 45, "cap"), (46, 65, "record")]


def test_an_export_of_what_is_new_has_no_gap_in_front(engine: Library, tmp_path: Path) -> None:
    engine.put("t", cap_records=5)
    fill(engine, "t", 20)
    run(engine, tmp_path / "to")
    fill(engine, "t", 10)
    run(engine, tmp_path / "more", since=manifest.latest(tmp_path / "to"))
    assert exported(tmp_path / "more", "t") == [(21, 25, "cap"), (26, 30, "record")]


def test_a_floor_is_told_again_after_a_crash(engine: Library, tmp_path: Path) -> None:
    engine.put("t", cap_records=10)
    fill(engine, "t", 25)
    run(engine, tmp_path / "to")
    engine.kill()
    assert engine.state("t")["earliest"] == 16
    fill(engine, "t", 10)
    run(engine, tmp_path / "to")
    assert exported(tmp_path / "to", "t") == [(1, 15, "cap"), (16, 35, "record")]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_random_history_leaves_no_seq_without_a_word(engine: Library, tmp_path: Path, seed: int) -> None:
    """Every seq of the topic up to the last one sealed is a record of the export, or in a gap, or was deleted."""
    rng = random.Random(seed)
    engine.put("t", cap_records=25, ttl_ms=20_000)
    deleted: set[int] = set()
    for _ in range(60):
        step = rng.randrange(10)
        if step < 4:
            fill(engine, "t", rng.randrange(1, 20), tag=f"t{rng.randrange(3)}")
        elif step == 4:
            engine.clock.advance(rng.randrange(15_000))
        elif step == 5:
            before = {record["$seq"] for record in engine.read_all("t")[0]}
            engine.delete("t", **rng.choice([{"before_seq": rng.randrange(1, 300)}, {"match": ["tag", "Eq", "t1"]}]))
            deleted |= before - {record["$seq"] for record in engine.read_all("t")[0]}
        elif step == 6:
            engine.checkpoint()
        elif step == 7:
            engine.kill()
        else:
            prune = rng.random() < 0.3
            asked = rng.random() < 0.6
            run(engine, tmp_path / "to", prune=prune, ask=asked)
            head = engine.state("t")["head"] if asked else told(tmp_path / "to", "t").next_seq - 1
            named: set[int] = set()
            for first, last, why in exported(tmp_path / "to", "t"):
                assert last is not None and not named & set(range(first, last + 1))
                named |= set(range(first, last + 1))
                if why != "record":
                    assert why in ("cap", "ttl", "mixed", "missing")
                    live = {record["$seq"] for record in engine.read_all("t")[0]}
                    assert not live & set(range(first, last + 1)), "what is there is no gap"
            silent = set(range(1, head + 1)) - named
            assert silent <= deleted, f"seqs without a word: {sorted(silent - deleted)}"


# ---- topics made again ----------------------------------------------------------------------------------------------------------------------


def test_an_older_topic_of_a_name_stays_in_the_export_until_a_prune(engine: Library, tmp_path: Path) -> None:
    engine.put("t")
    fill(engine, "t", 8)
    run(engine, tmp_path / "to")
    engine.drop("t")
    engine.put("t")
    run(engine, tmp_path / "to")
    newer = told(tmp_path / "to", "t")
    assert [(one.first_seq, one.next_seq) for one in newer.older] == [(1, 9)] and newer.rows == ()
    assert exported(tmp_path / "to", "t") == []
    fill(engine, "t", 2)
    run(engine, tmp_path / "to")
    assert exported(tmp_path / "to", "t") == [(1, 2, "record")] and len(told(tmp_path / "to", "t").older) == 1
    found = manifest.latest(tmp_path / "to")
    assert found is not None and {row.file for row in told(tmp_path / "to", "t").older[0].rows} <= found.files()
    run(engine, tmp_path / "to", prune=True)
    assert told(tmp_path / "to", "t").older == ()


def test_runs_that_see_a_name_before_and_after_it_was_made_again_agree_in_any_order() -> None:
    old, new = Topic("t", 1, (row(1, 5),), 3), Topic("t", 2, (row(1, 2),))
    both = Topic("t", 2, (row(1, 2),), 1, (old,))
    assert merged(old, new) == merged(new, old) == merged(both, old) == merged(both, new) == both
    assert merged(merged(both, Topic("t", 3, ())), new) == Topic("t", 3, (), 1, (old, new))


def row(first: int, last: int, file: str = "f") -> Row:
    return Row(first, last, first, last, 0, 0, 0, 0, 0, 0, 0, 0, file, 0, 0, 0, 0, "", "", "")


def test_a_range_is_filled_once_and_split_where_the_floor_stands() -> None:
    topic = filled(Topic("t", 1, (row(4, 6), row(9, 9)), 8), 1, 12, lambda seq: f"from {seq}")
    told = [(one.first_seq, one.last_seq, one.why, one.evicted) for one in topic.rows if not one.file]
    assert told == [(1, 3, "from 1", True), (7, 7, "from 7", True), (8, 8, "deleted", False), (10, 11, "deleted", False)]
    assert filled(topic, 1, 12, str) == topic


# ---- manifests of before --------------------------------------------------------------------------------------------------------------------


def test_an_export_of_before_floors_reads_as_it_did_and_goes_on(tmp_path: Path) -> None:
    wanted = [json.loads(line) for line in (GOLDEN / "expected.jsonl").read_text().splitlines()]
    assert topicsd.scan(GOLDEN / "export", ["topic", "seq", "data", "_kind", "seq_end", "_err"]).read_all().to_pylist() == wanted
    found = manifest.latest(GOLDEN / "export")
    assert found is not None and manifest.parse(found.raw()) == found


@pytest.mark.parametrize("kept", [0, 1, 64])
def test_a_file_that_is_cut_inside_of_its_header_is_named(engine: Library, tmp_path: Path, kept: int) -> None:
    engine.put("t")
    fill(engine, "t", 3)
    run(engine, tmp_path / "to")
    (file,) = (tmp_path / "to/parts").iterdir()
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(DamagedError, match=f"topic t, seqs 1 to 3: {file}: shorter than it says"):
        topicsd.scan(tmp_path / "to").read_all()
    (row,) = topicsd.scan(tmp_path / "to", on_corrupt="row").read_all().to_pylist()
    assert (row["_kind"], row["seq"], row["seq_end"], row["_err"]) == ("corrupt", 1, 3, f"{file}: shorter than it says")
