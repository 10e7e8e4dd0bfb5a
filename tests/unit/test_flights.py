"""A large group is written in the background while the next one gathers: order, answers, and what a failure takes with it."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.disks import need_direct_writes
from fakes.faulty_files import FaultyFiles
from fakes.in_process import Library

FLIGHTS_MAX = 4  # _native/direct_io.pxd


@pytest.fixture
def files(tmp_path: Path) -> FaultyFiles:
    need_direct_writes(tmp_path)
    return FaultyFiles(tmp_path)


@pytest.fixture
def library(tmp_path: Path, files: FaultyFiles) -> Library:
    library = Library(str(tmp_path), FakeClock(), files=files, file_bytes=1 << 20, flights=2)
    library.put("t")
    return library


def shown(library: Library) -> list[Any]:
    return [record["data"] for record in library.read_all("t")[0]]


def test_what_flies_is_neither_seen_nor_answered_before_it_has_landed(library: Library) -> None:
    tokens = []
    for number in range(FLIGHTS_MAX):
        tokens.append(library.send("t", [{"data": number}]))
        assert library.answers() == {}
    for number in range(FLIGHTS_MAX, 3 * FLIGHTS_MAX):
        tokens.append(library.send("t", [{"data": number}]))  # no more may fly: the oldest has landed before this one was launched
        assert list(library.answers()) == [tokens[number - FLIGHTS_MAX]]
    assert shown(library) == [*range(2 * FLIGHTS_MAX)]
    library.sequencer.flush()
    assert list(library.answers()) == tokens[-FLIGHTS_MAX:]
    assert shown(library) == [*range(3 * FLIGHTS_MAX)]


def test_many_groups_come_one_after_the_other_over_files_and_a_restart(library: Library) -> None:
    tokens = [library.send("t", [{"data": number}] * (1 + number % 3), key=f"k{number}") for number in range(600)]
    library.sequencer.flush()
    answers = library.answers()
    assert list(answers) == tokens
    wanted = [number for number in range(600) for _ in range(1 + number % 3)]
    assert shown(library) == wanted
    assert library.log_files() > 2
    library.kill()
    assert shown(library) == wanted
    assert library.append("t", [{"data": 5}] * 3, key="k5")["deduped"]


def test_a_frame_behind_a_group_that_was_too_large_to_fly_goes_with_it(tmp_path: Path) -> None:
    need_direct_writes(tmp_path)
    library = Library(str(tmp_path), FakeClock(), file_bytes=8 << 20, flights=2)  # real files: they refuse what is no whole page
    library.put("t")
    tokens = []
    library.options["flights"] = 0
    for number in range(3):
        tokens.append(library.send("t", [{"data": str(number) * 900_000}]))
    assert not library.sequencer.launch()
    tokens.append(library.send("t", [{"data": "behind"}]))
    library.sequencer.flush()
    assert list(library.answers()) == tokens
    direct = library.store.shards[0].counters()["direct_bytes"]
    library.append("t", [{"data": "x" * 200_000}])
    assert library.store.shards[0].counters()["direct_bytes"] > direct, "the disk was asked for what it cannot do, and is not asked again"
    assert [len(data) for data in shown(library)] == [900_000] * 3 + [6, 200_000]
    library.close()


def test_commands_wait_for_what_flies(library: Library) -> None:
    library.send("t", [{"data": 1}])
    assert library.delete("t", before_seq=2)["deleted"] == 1
    library.send("t", [{"data": 2}])
    library.checkpoint()
    library.send("t", [{"data": 3}])
    library.kill()
    assert shown(library) in ([2, 3], [2])  # the third was never answered


@pytest.mark.parametrize("short", [0, 100, 4096])
def test_a_failed_flight_takes_with_it_what_has_gathered_behind_it(library: Library, files: FaultyFiles, short: int) -> None:
    library.append("t", [{"data": "acked"}])
    files.fail("pwritev", 1, errno.EIO, short, forever=True)
    tokens = [library.send("t", [{"data": number}], key=f"k{number}") for number in range(3)]
    library.sequencer.flush()
    assert library.answers() == {token: {"refused": "storage_read_only"} for token in tokens}
    assert shown(library) == ["acked"]
    assert library.state("t")["head"] == 1
    files.heal()
    library.store.heal()
    library.kill()
    assert shown(library) == ["acked"]
    again = library.append("t", [{"data": "after"}], key="k1")
    assert (again["deduped"], again["first_seq"] > 1) == (False, True)


@pytest.mark.parametrize("sound", range(1, FLIGHTS_MAX))
def test_where_a_later_one_of_many_flights_fails_those_in_front_count(library: Library, files: FaultyFiles, sound: int) -> None:
    library.append("t", [{"data": "acked"}])
    first = [library.send("t", [{"data": number}], key=f"k{number}") for number in range(sound)]
    files.fail("pwritev", 1, errno.EIO, 0, forever=True)
    others = [library.send("t", [{"data": number}], key=f"k{number}") for number in range(sound, FLIGHTS_MAX + 1)]
    library.sequencer.flush()
    answers = library.answers()
    assert [answers.pop(token)["first_seq"] for token in first] == [*range(2, 2 + sound)]
    assert answers == {token: {"refused": "storage_read_only"} for token in others}
    assert shown(library) == ["acked", *range(sound)]
    files.heal()
    library.store.heal()
    library.kill()
    assert shown(library) == ["acked", *range(sound)]
    again = [library.append("t", [{"data": number}], key=f"k{number}")["deduped"] for number in range(FLIGHTS_MAX + 1)]
    assert again == [number < sound for number in range(FLIGHTS_MAX + 1)]
    assert shown(library) == ["acked", *range(FLIGHTS_MAX + 1)]


def test_real_files_take_them_too(tmp_path: Path) -> None:
    need_direct_writes(tmp_path)
    library = Library(str(tmp_path), FakeClock(), file_bytes=1 << 20, flights=2)
    library.put("t")
    for number in range(200):
        library.send("t", [{"data": number}])
    library.sequencer.flush()
    assert shown(library) == list(range(200))
    assert library.store.shards[0].counters()["direct_bytes"] > 100 * 4096
    library.close()
