"""A bit flipped at any byte of a store: it is refused with a reason, or whatever is lost is told; never a crash, a wrong record, or silence."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from crash.test_store_images import memory, opened
from fakes.clock import FakeClock
from fakes.in_process import Library
from topicsd._native.log_walk import LogFormatError
from topicsd.segments.fsck import fsck

assert memory  # a fixture
NAMES = ("alone", "packed", "tail")


def build(root: Path) -> tuple[dict[str, Any], FakeClock]:
    """A small store with a bit of everything: segments, a pack, deletes by tag, two snapshots, a log behind them and one that is still needed."""
    clock = FakeClock()
    engine = opened(root, clock, b"b" * 16)
    for name in NAMES:
        engine.put(name, durability="fsync")
        for n in range(12):
            engine.append(name, [{"data": f"{name}-{n}-{k}", "tag": f"t{k}", "node": "n"} for k in range(2)])
    engine.seal("alone", 6)
    engine.seal("packed", pack=True)
    engine.delete("alone", before_seq=9, match=["tag", "Eq", "t1"])
    engine.checkpoint()
    engine.append("tail", [{"data": "between"}], key="k")
    engine.delete("packed", match=["tag", "Eq", "t0"])
    engine.checkpoint()
    engine.append("alone", [{"data": "behind"}])
    engine.append("tail", [{"data": "behind"}])
    engine.put("config", cap_records=7)
    truth = {name: engine.read_all(name)[0] for name in engine.names()}
    engine.store.close()
    return truth, clock


def used_bytes(path: Path) -> int:
    """Bytes of a file up to its last one that is not zero, and some more: the rest of a log file was never written."""
    return min(len(path.read_bytes().rstrip(b"\0")) + 64, path.stat().st_size)


def places(root: Path) -> list[tuple[Path, int]]:
    files = [path.relative_to(root) for path in sorted(root.rglob("*")) if path.is_file() and path.name not in ("LOCK", "reserve")]
    return [(path, offset) for path in files for offset in range(used_bytes(root / path))]


def judge(root: Path, truth: dict[str, Any], clock: FakeClock, what: str) -> str:
    """Open a flipped store, read all of it, and say what came of it: "refused", "told" or "nothing"."""
    try:
        engine = opened(root, FakeClock(clock.wall_ms(), 5), b"z" * 16)
    except LogFormatError as refused:
        assert str(refused), what
        return "refused"
    try:
        told = bool(engine.store.degraded)
        for name, records in truth.items():
            told |= judge_topic(engine, name, records, what)
        return "told" if told else "nothing"
    finally:
        engine._forget()


def judge_topic(engine: Library, name: str, records: list[dict[str, Any]], what: str) -> bool:
    if engine.sequencer.find(name.encode()) is None:
        assert engine.store.degraded, f"{what}: {name} is gone in silence"
        return True
    got, tombstones = engine.read_all(name)
    wanted = {record["$seq"]: record for record in records}
    for record in got:
        assert record == wanted.get(record["$seq"]), f"{what}: {name} {record['$seq']} is not what was written"
    missing = set(wanted) - {record["$seq"] for record in got}
    for gap in tombstones:
        missing -= set(range(gap["gap_from"], min(gap["gap_to"], max(wanted, default=0)) + 1))
    head = engine.state(name)["head"]
    behind = {seq for seq in missing if seq > head}
    engine.delete(name, match=["tag", "Eq", "t0"])  # damaged tags must not save a record, nor cost another one
    left = [record["$seq"] for record in engine.read_all(name)[0]]
    assert left == [record["$seq"] for record in got if record.get("tag") != "t0"], f"{what}: a delete in {name} by tag"
    assert not missing or (behind == missing and engine.store.degraded), f"{what}: {name} has lost {sorted(missing)} in silence"
    return bool(tombstones)


def flips(memory: Path, count: int | None, seed: int, share: tuple[int, int] = (0, 1)) -> dict[str, int]:
    root, image = memory / "disk", memory / "image"
    root.mkdir()
    truth, clock = build(root)
    chance = random.Random(seed)
    found = places(root)
    kinds: dict[str, list[tuple[Path, int]]] = {}
    for path, offset in found:
        kinds.setdefault(path.suffix or path.name[:8], []).append((path, offset))
    assert set(kinds) >= {".log", ".data", ".idx", ".tag", ".pack", "snapshot"}
    chosen = found if count is None else [place for each in kinds.values() for place in chance.sample(each, min(count // len(kinds), len(each)))]
    came: dict[str, int] = {}
    for path, offset in chosen[share[0] :: share[1]]:
        shutil.copytree(root, image)
        with (image / path).open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 1 << chance.randrange(8)]))
        what = f"{path}, byte {offset}"
        outcome = judge(image, truth, clock, what)
        came[outcome] = came.get(outcome, 0) + 1
        gone = {name: [record for record in records if record.get("tag") != "t0"] for name, records in truth.items()}
        again = judge(image, gone if outcome != "refused" else truth, clock, what)
        assert (again == "refused") == (outcome == "refused"), f"{what}: first {outcome}, then {again}"
        shutil.rmtree(image)
    shutil.rmtree(root)
    return came


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_flipped_bit_at_sampled_bytes_of_a_store_is_told_or_refused_or_costs_nothing(memory: Path) -> None:
    came = flips(memory, 600, seed=1)
    assert came.get("told", 0) > 50, came


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(8))
def test_a_flipped_bit_at_every_byte_of_a_store_is_told_or_refused_or_costs_nothing(memory: Path, part: int) -> None:
    assert sum(flips(memory, None, seed=2 + part, share=(part, 8)).values()) > 500


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fsck_finds_a_flipped_bit_in_every_part_of_sealed_data(memory: Path) -> None:
    root, image = memory / "disk", memory / "image"
    root.mkdir()
    build(root)
    chance = random.Random(3)
    assert fsck(root).problems == []
    for path in sorted(root.rglob("*")):
        if path.suffix not in (".data", ".idx", ".tag", ".pack") and not path.name.startswith("snapshot"):
            continue
        for offset in chance.sample(range(path.stat().st_size), 12):
            shutil.copytree(root, image)
            raw = bytearray(path.read_bytes())
            raw[offset] ^= 1 << chance.randrange(8)
            (image / path.relative_to(root)).write_bytes(raw)
            report = fsck(image)
            assert report.problems or report.refused, f"{path.name}, byte {offset}"
            shutil.rmtree(image)
