"""Power cuts under the engine: at every file call of a workload, what the disk may hold is recovered twice and held against the promises.

The judge below imports nothing of topicsd: it knows what was acked before which call, and what each class promises.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.faulty_files import FaultyFiles
from fakes.in_process import Library
from oracle.model import Refused


@dataclass
class Promise:
    """What one topic's clients have been told, with the number of file calls that had been made by then."""

    durability: str
    created: int  # call after which its creation was answered
    records: dict[int, tuple[int, Any]] = field(default_factory=dict)  # seq -> (call, data)
    deletes: list[tuple[int, int]] = field(default_factory=list)  # (call, before_seq)
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)  # key -> (call, first seq)
    cleared: dict[int, tuple[int, int]] = field(default_factory=dict)  # seq -> calls before a delete by tag began, and when it was answered


def work(engine: Library, files: FaultyFiles, rng: random.Random, rounds: int, lives: dict[str, Promise], sealing: bool, first: int = 0) -> None:
    for number in range(first, first + rounds):
        name = rng.choice(["f1", "f2", "d1", "m1"])
        durability = {"f": "fsync", "d": "disk", "m": "memory"}[name[0]]
        if name not in lives:
            engine.put(name, durability=durability)
            lives[name] = Promise(durability, len(files.calls))
        promise, draw = lives[name], rng.random()
        engine.synced = durability == "fsync" or rng.random() < 0.2
        if draw < 0.75:
            data = [f"{name}-{number}-{k}" * rng.randrange(1, 30) for k in range(rng.randrange(1, 4))]
            key = f"k{number}" if rng.random() < 0.3 else None
            answer = engine.append(name, [{"data": each} for each in data], key)
            for k, each in enumerate(data):
                promise.records[answer["first_seq"] + k] = (len(files.calls), each)
            if key:
                promise.keys[key] = (len(files.calls), answer["first_seq"])
        elif draw < 0.85:
            before = rng.randrange(1, engine.state(name)["head"] + 2)
            engine.delete(name, before)
            promise.deletes.append((len(files.calls), before))
        elif draw < 0.9:
            engine.clock.advance(1500)
            engine.engine.tick()
        elif draw < 0.93:
            engine.synced = True
            engine.drop(name)
            del lives[name]
        elif sealing and draw < 0.97:
            engine.seal(name, rng.choice([1, 3, 1000]), rng.random() < 0.3)
        elif sealing:
            engine.checkpoint()
        engine.synced = True


def judge(engine: Library, lives: dict[str, Promise], call: int, synced: bool) -> None:
    """Hold a recovered engine against what was promised before `call`. `synced`: only what a sync covered is promised."""
    for name, promise in lives.items():
        acked = {seq: data for seq, (at, data) in promise.records.items() if at <= call}
        must = promise.durability == "fsync" or not synced
        if promise.created > call:
            continue  # an earlier topic of that name may stand here
        try:
            records, tombstones = engine.read_all(name)
        except Refused:
            assert not (promise.durability == "fsync" and acked), f"{name} is gone"
            continue
        got = {record["$seq"]: record["data"] for record in records}
        floor = max([before for at, before in promise.deletes], default=0)
        for seq, data in got.items():
            assert promise.records[seq][1] == data, f"{name} {seq} holds what nobody wrote"
        lost = [seq for seq in acked if seq not in got and seq >= floor and promise.cleared.get(seq, (call, 0))[0] >= call]
        if must:
            assert not lost, f"{name} has lost {lost}"
        untold = [seq for seq in lost if not any(gap["gap_from"] <= seq <= gap["gap_to"] for gap in tombstones)]
        assert not untold, f"{name} has lost {untold} in silence"
        certain = max([before for at, before in promise.deletes if at <= call], default=0)
        if must and certain:
            assert all(seq >= certain for seq in got), f"{name}: a delete came back"
        back = [seq for seq, (_began, answered) in promise.cleared.items() if answered <= call and seq in got]
        assert not (must and back), f"{name}: a delete by tag came back: {back}"
        if promise.durability == "fsync":
            for key, (at, first) in promise.keys.items():
                if at <= call:
                    again = engine.append(name, [{"data": "again"}], key)
                    assert (again["deduped"], again["first_seq"]) == (True, first)
        fresh = engine.append(name, [{"data": "fresh"}])
        assert fresh["first_seq"] > max(acked, default=0), f"{name}: seq {fresh['first_seq']} was handed out before"


def run(tmp_path: Path, seed: int, rounds: int, stride: int, seeds: list[int], sealing: bool = False, **options: Any) -> int:
    root, scratch = tmp_path / "disk", tmp_path / "scratch"
    root.mkdir(), scratch.mkdir()
    files, clock = FaultyFiles(root), FakeClock()
    options = {"file_bytes": 8192} | options
    engine = Library(str(root), clock, files=files, **options)
    lives: dict[str, Promise] = {}
    opened = len(files.calls)
    work(engine, files, random.Random(seed), rounds, lives, sealing)
    engine._forget()
    images = 0
    for call in range(opened, len(files.calls) + 1, stride):
        for image_seed in seeds:
            target = scratch / "image"
            target.mkdir()
            files.image(call, image_seed, target)
            twice = []
            for _ in range(2):
                again = Library(str(target), FakeClock(clock.wall_ms(), 5), boot=b"z" * 16, **options)
                assert again.store.degraded == [], "a power cut is no damage"
                twice.append({name: again.read_all(name) for name in lives if again.sequencer.find(name.encode()) is not None})
                again._forget()
            assert twice[0] == twice[1], "recovery twice is not the same as once"
            last = Library(str(target), FakeClock(clock.wall_ms(), 5), boot=b"z" * 16, **options)
            judge(last, lives, call, synced=True)
            last._forget()
            shutil.rmtree(target)
            images += 1
    return images


@pytest.mark.slow
def test_a_power_cut_at_sampled_file_calls_breaks_no_promise(tmp_path: Path) -> None:
    assert run(tmp_path, seed=1, rounds=40, stride=3, seeds=[0, 2]) > 40


@pytest.mark.slow
@pytest.mark.parametrize("sealing", [False, True])
def test_a_power_cut_while_groups_are_written_in_the_background_breaks_no_promise(tmp_path: Path, sealing: bool) -> None:
    assert run(tmp_path, seed=21, rounds=40, stride=3, seeds=[0, 2], sealing=sealing, flights=2, file_bytes=65536) > 40


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(22, 26))
def test_a_power_cut_at_every_file_call_while_groups_are_written_in_the_background_breaks_no_promise(tmp_path: Path, seed: int) -> None:
    assert run(tmp_path, seed, rounds=60, stride=1, seeds=[0, 1, 2, 3], sealing=seed % 2 == 1, flights=2, file_bytes=65536) > 200


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(2, 8))
def test_a_power_cut_at_every_file_call_breaks_no_promise(tmp_path: Path, seed: int) -> None:
    assert run(tmp_path, seed, rounds=60, stride=1, seeds=[0, 1, 2, 3]) > 200


@pytest.mark.slow
def test_a_power_cut_while_tails_are_sealed_and_the_log_goes_breaks_no_promise(tmp_path: Path) -> None:
    assert run(tmp_path, seed=11, rounds=60, stride=5, seeds=[0, 2], sealing=True) > 40


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(12, 20))
def test_a_power_cut_at_every_file_call_of_seals_and_checkpoints_breaks_no_promise(tmp_path: Path, seed: int) -> None:
    assert run(tmp_path, seed, rounds=80, stride=1, seeds=[0, 1, 2, 3], sealing=True) > 200


@pytest.mark.slow
@pytest.mark.parametrize("kind, error", [("pwritev", 5), ("fdatasync", 5), ("pwritev", 28)])
@pytest.mark.parametrize("options", [{"file_bytes": 8192}, {"file_bytes": 65536, "flights": 2}])
def test_a_failed_file_call_takes_back_only_what_was_never_acked(tmp_path: Path, kind: str, error: int, options: dict[str, Any]) -> None:
    for nth in range(1, 12):
        root = tmp_path / f"{kind}-{error}-{nth}"
        root.mkdir()
        files, clock = FaultyFiles(root), FakeClock()
        engine = Library(str(root), clock, files=files, **options)
        lives: dict[str, Promise] = {}
        files.fail(kind, nth, error, forever=True)
        try:
            work(engine, files, random.Random(nth), 40, lives, False)
        except Refused as refused:
            assert refused.code == "storage_read_only"
        for name in lives:
            with pytest.raises(Refused, match="storage_read_only"):
                engine.append(name, [{"data": "no"}])
            engine.diff(name)  # reads go on
        files.heal()
        engine.store.heal()
        engine.kill()
        judge(engine, lives, 1 << 60, synced=False)
        engine._forget()
