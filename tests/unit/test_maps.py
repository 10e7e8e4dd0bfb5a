"""Maps of log files: found by position, bounded, dropped when retired, and a lost page is an error instead of a crash."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from topicsd._native.maps import MapCache
from topicsd._native.regions import Shared
from topicsd._native.testing import lay_files

PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def shared() -> Shared:
    return Shared.create(topics_max=16)


def write_file(data_dir: Path, shard: int, first: int, content: bytes) -> Path:
    path = data_dir / "log" / f"shard-{shard:02d}" / f"{first:020d}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_a_position_is_found_in_the_file_that_holds_it(shared: Shared, tmp_path: Path) -> None:
    write_file(tmp_path, 0, 0, b"a" * 100)
    write_file(tmp_path, 0, 100, b"b" * 50)
    write_file(tmp_path, 3, 0, b"c" * 10)
    lay_files(shared, 0, [(0, 100, False), (100, 50, False)])
    lay_files(shared, 3, [(0, 10, False)])
    maps = MapCache(shared, tmp_path)
    assert maps.read(0, 98, 10) == b"aa"
    assert maps.read(0, 100, 3) == b"bbb"
    assert maps.read(0, 149, 3) == b"b"
    assert maps.read(3, 0, 3) == b"ccc"
    assert maps.read(0, 0, 1) == b"a"
    assert len(maps) == 3


@pytest.mark.parametrize("place", [(0, 150), (0, 2**56 - 1), (1, 0), (7, 0), (8, 0), (255, 0)])
def test_a_position_that_no_file_has_is_not_found(shared: Shared, tmp_path: Path, place: tuple[int, int]) -> None:
    write_file(tmp_path, 0, 0, b"a" * 150)
    lay_files(shared, 0, [(0, 150, False)])
    with pytest.raises(FileNotFoundError):
        MapCache(shared, tmp_path).read(*place, 1)


def test_a_file_that_was_added_later_is_found(shared: Shared, tmp_path: Path) -> None:
    write_file(tmp_path, 0, 0, b"a" * 100)
    lay_files(shared, 0, [(0, 100, False)])
    maps = MapCache(shared, tmp_path)
    assert maps.read(0, 0, 1) == b"a"
    write_file(tmp_path, 0, 100, b"b" * 100)
    lay_files(shared, 0, [(0, 100, False), (100, 100, False)])
    assert maps.read(0, 199, 1) == b"b"


def test_a_retired_file_is_unmapped_and_not_read_again(shared: Shared, tmp_path: Path) -> None:
    for first in (0, 100, 200):
        write_file(tmp_path, 0, first, bytes([first]) * 100)
    lay_files(shared, 0, [(0, 100, False), (100, 100, False), (200, 100, False)])
    maps = MapCache(shared, tmp_path)
    for first in (0, 100, 200):
        maps.read(0, first, 1)
    lay_files(shared, 0, [(0, 100, True), (100, 100, False), (200, 100, False)])
    with pytest.raises(FileNotFoundError):
        maps.read(0, 0, 1)
    assert len(maps) == 2
    lay_files(shared, 0, [(200, 100, False)])
    assert maps.drop_retired() == 1
    assert maps.read(0, 250, 1) == bytes([200])


def test_a_new_writer_generation_drops_every_map(shared: Shared, tmp_path: Path) -> None:
    write_file(tmp_path, 0, 0, b"a" * 100)
    write_file(tmp_path, 0, 100, b"b" * 100)
    lay_files(shared, 0, [(0, 100, False), (100, 100, False)])
    maps = MapCache(shared, tmp_path)
    maps.read(0, 0, 1)
    maps.read(0, 100, 1)
    shared.set("generation", shared.generation + 1)
    assert maps.read(0, 0, 1) == b"a"
    assert len(maps) == 1


def test_maps_are_bounded_and_the_least_recently_used_goes_first(shared: Shared, tmp_path: Path) -> None:
    for number in range(6):
        write_file(tmp_path, 0, number * 10, bytes([number]) * 10)
    lay_files(shared, 0, [(number * 10, 10, False) for number in range(6)])
    maps = MapCache(shared, tmp_path, 3)
    for number in (0, 1, 2, 0, 3, 0, 4, 5, 0):
        assert maps.read(0, number * 10 + 9, 1) == bytes([number])
        assert len(maps) <= 3


def test_many_maps_hold_no_file_descriptor(shared: Shared, tmp_path: Path) -> None:
    for number in range(300):
        write_file(tmp_path, 0, number, bytes([number % 256]))
    lay_files(shared, 0, [(number, 1, False) for number in range(300)])
    maps = MapCache(shared, tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert [maps.read(0, number, 1)[0] for number in range(300)] == [number % 256 for number in range(300)]
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_page_that_cannot_be_read_is_an_error_and_the_next_read_works(shared: Shared, tmp_path: Path) -> None:
    path = write_file(tmp_path, 0, 0, b"a" * (4 * PAGE))
    lay_files(shared, 0, [(0, 4 * PAGE, False)])
    maps = MapCache(shared, tmp_path)
    assert maps.read(0, 3 * PAGE, 4) == b"aaaa"
    os.truncate(path, PAGE)  # the kernel now answers SIGBUS for the rest of the map
    for _ in range(3):
        with pytest.raises(OSError) as caught:
            maps.read(0, PAGE - 8, 2 * PAGE)
        assert caught.value.errno == errno.EIO
        assert maps.read(0, 0, 4) == b"aaaa"


def test_a_file_that_is_shorter_than_its_row_is_an_error(shared: Shared, tmp_path: Path) -> None:
    write_file(tmp_path, 0, 0, b"a" * 10)
    lay_files(shared, 0, [(0, 100, False)])
    maps = MapCache(shared, tmp_path)
    for _ in range(3):
        assert maps.read(0, 5, 10) == b"aaaaa"
        with pytest.raises(OSError) as caught:
            maps.read(0, 50, 1)
        assert caught.value.errno == errno.EIO
    assert len(maps) == 1


def test_a_fault_outside_a_guarded_call_still_kills_the_process(tmp_path: Path) -> None:
    script = """
import mmap, os, sys
from topicsd._native.maps import MapCache
from topicsd._native.regions import Shared
MapCache(Shared.create(topics_max=1), sys.argv[1])
path = os.path.join(sys.argv[1], "cut")
with open(path, "w+b") as file:
    file.write(b"a" * 8192)
    file.flush()
    view = mmap.mmap(file.fileno(), 8192, prot=mmap.PROT_READ)
    os.truncate(path, 0)
    view[5000]
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, check=False)
    assert done.returncode == -signal.SIGBUS or b"AddressSanitizer:DEADLYSIGNAL" in done.stderr, done.stderr  # ASan had a handler before


def test_a_handler_that_was_there_before_gets_the_other_faults(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from topicsd._native.maps import MapCache
from topicsd._native.regions import Shared
signal.signal(signal.SIGBUS, lambda *_: os._exit(42))
MapCache(Shared.create(topics_max=1), sys.argv[1])
os.kill(os.getpid(), signal.SIGBUS)
for _ in range(1000): pass
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, check=False)
    assert done.returncode == 42, done.stderr
