"""Exports of a data directory that an engine works on: what diff shows of sealed records, an export has, and nothing that was deleted."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

import topicsd
from fakes.in_process import Library
from topicsd.lake import state
from topicsd.lake.export import Exporter, Report
from topicsd.lake.sources import DirectorySource

pytest.importorskip("pyarrow")


def fill(engine: Library, name: str, count: int, size: int = 10, **record: Any) -> None:
    engine.append(name, [{"data": "x" * size, **record} for _ in range(count)])


def run(engine: Library, to: Path, **options: Any) -> Report:
    return Exporter(DirectorySource(Path(engine.directory)), to, **options).run()


def exported(to: Path, name: str) -> list[tuple[int, str]]:
    rows = topicsd.scan(to, ["seq", "data", "_kind"], [name]).read_all().to_pylist()
    return [(row["seq"], row["data"]) for row in rows if row["_kind"] == "record"]


def shown(engine: Library, name: str) -> list[tuple[int, str]]:
    sealed = engine.call({"op": "topic.seal", "topic": name})["sealed_seq"]
    return [(record["$seq"], json.dumps(record["data"])) for record in engine.read_all(name)[0] if record["$seq"] <= sealed]


def test_sealed_records_are_exported_by_their_names_and_the_tail_is_not(engine: Library, tmp_path: Path) -> None:
    engine.put("a")
    engine.put("b.x")
    fill(engine, "a", 10)
    fill(engine, "b.x", 3)
    engine.seal("a")
    engine.seal("b.x", pack=True)
    fill(engine, "a", 5)
    assert run(engine, tmp_path / "to").segments == 2
    assert [seq for seq, _ in exported(tmp_path / "to", "a")] == list(range(1, 11))
    assert exported(tmp_path / "to", "b.x") == shown(engine, "b.x") != []


@pytest.mark.parametrize("size", [10, 20_000])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_is_deleted_after_it_was_sealed_leaves_the_export(engine: Library, tmp_path: Path, checkpoint: bool, size: int) -> None:
    engine.put("t")
    for number in range(40):
        fill(engine, "t", 3, size, tag=f"t{number % 4}")
    engine.seal("t", 60)
    run(engine, tmp_path / "to")
    assert len(exported(tmp_path / "to", "t")) == 120
    engine.delete("t", match=["tag", "Eq", "t1"])
    if checkpoint:
        engine.checkpoint()  # the marks stand in the snapshot now
    engine.delete("t", before_seq=9)
    fill(engine, "t", 5, tag="t1")
    run(engine, tmp_path / "to")
    assert exported(tmp_path / "to", "t") == shown(engine, "t")
    assert len(exported(tmp_path / "to", "t")) == 120 - 30 - 8 + 3
    assert run(engine, tmp_path / "to", quiet=True).changed is False


def test_deleted_topics_go_with_a_prune_and_names_survive_checkpoints(engine: Library, tmp_path: Path) -> None:
    for name in ("a", "b"):
        engine.put(name)
        fill(engine, name, 3)
        engine.seal(name)
    for _ in range(3):
        engine.checkpoint()
    run(engine, tmp_path / "to")
    assert len(exported(tmp_path / "to", "a")) == len(exported(tmp_path / "to", "b")) == 3
    engine.drop("a")
    engine.put("a")
    fill(engine, "a", 1)
    engine.drop("b")
    run(engine, tmp_path / "to", prune=True)
    assert topicsd.scan(tmp_path / "to").read_all().num_rows == 0
    assert [topic.name for topic in state.read(Path(engine.directory))] == ["a"]


def test_what_the_server_had_evicted_by_its_last_snapshot_is_not_exported(engine: Library, tmp_path: Path) -> None:
    engine.put("t", cap_records=20)
    fill(engine, "t", 20)
    engine.seal("t", 10)
    fill(engine, "t", 15)
    engine.checkpoint()
    run(engine, tmp_path / "to")
    assert exported(tmp_path / "to", "t") == shown(engine, "t")
    assert [seq for seq, _ in exported(tmp_path / "to", "t")] == [16, 17, 18, 19, 20]


def test_a_frame_that_was_never_published_counts_for_nothing(engine: Library, tmp_path: Path) -> None:
    engine.put("t")
    fill(engine, "t", 5)
    engine.seal("t")
    engine.kill()
    for path in Path(engine.directory).glob("log/shard-00/*.log"):
        raw = path.read_bytes()
        assert len(state.frames_of(path.parent, 0)) >= 2
        path.write_bytes(raw[:70] + bytes([raw[70] ^ 1]) + raw[71:])  # a damaged START: what follows it is still found
    assert exported_count(engine, tmp_path) == 5


def exported_count(engine: Library, tmp_path: Path) -> int:
    run(engine, tmp_path / "to")
    return len(exported(tmp_path / "to", "t"))


@pytest.mark.slow
def test_a_random_history_exports_what_diff_shows_of_what_is_sealed(engine: Library, tmp_path: Path) -> None:
    rng = random.Random(16)
    names = ["a", "b", "c"]
    for name in names:
        engine.put(name)
    for _ in range(150):
        name = rng.choice(names)
        step = rng.randrange(12)
        if step < 6:
            fill(engine, name, rng.randrange(1, 8), tag=f"t{rng.randrange(3)}")
        elif step == 6:
            engine.seal(name, rng.randrange(1, 20), pack=rng.random() < 0.5)
        elif step == 7:
            engine.delete(name, match=["tag", *rng.choice([("Eq", "t0"), ("Eq", "t1"), ("Glob", "t2*")])])
        elif step == 8:
            engine.delete(name, before_seq=rng.randrange(1, 40))
        elif step == 9:
            engine.checkpoint()
        elif step == 10:
            engine.kill()
        else:
            prune = rng.random() < 0.3
            run(engine, tmp_path / "to", prune=prune)
            for one in names:
                found = exported(tmp_path / "to", one)
                if not prune:  # what the topic has left behind altogether stays until then
                    found = [record for record in found if record[0] >= engine.state(one)["earliest"]]
                assert found == shown(engine, one)
