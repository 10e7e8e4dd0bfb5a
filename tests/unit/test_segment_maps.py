"""Maps of segment files: found by key, bounded, never taken from under a read, and no descriptor stays open."""

import os
import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topicsd._native.segment_maps import SegmentMapCache


def cache_of(folder: Path, files: int, **options: int) -> SegmentMapCache:
    cache = SegmentMapCache(**options)
    for key in range(files):
        (folder / f"{key}").write_bytes(b"file %d" % key)
        cache.name(key, folder / f"{key}")
    return cache


def test_a_file_is_read_by_its_key(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, 3)
    assert [cache.read(key) for key in (0, 2, 1, 2)] == [b"file 0", b"file 2", b"file 1", b"file 2"]
    assert cache.read(1, 5) == b"1" and cache.read(1, 0, 4) == b"file" and cache.read(1, 100) == b""
    assert len(cache) == 3


def test_a_file_that_is_not_there_or_empty_is_an_error(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, 1)
    cache.name(5, tmp_path / "nothing")
    (tmp_path / "empty").touch()
    cache.name(6, tmp_path / "empty")
    for key in (5, 6, 7):
        with pytest.raises(OSError):
            cache.read(key)
    assert len(cache) == 0


def test_what_was_verified_is_believed_for_a_second_in_all_and_no_longer(tmp_path: Path) -> None:
    cache, second = cache_of(tmp_path, 2), 1_000_000_000
    assert not cache.mark(0, 5 * second) and not cache.mark(1, 5 * second + 7)
    assert all(cache.mark(0, now) for now in (5 * second, 5 * second + 1, 6 * second - 1)), "a look does not make it younger"
    assert not cache.mark(0, 6 * second) and cache.mark(0, 7 * second - 1)
    assert cache.mark(1, 6 * second + 6) and not cache.mark(1, 6 * second + 7)


def test_the_least_recently_used_map_goes_but_none_of_this_turn(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, 10, count_max=3)
    for key in (0, 1, 2):
        cache.turn()
        cache.read(key)
    cache.turn()
    cache.read(0), cache.read(3)
    assert [cache.has(key) for key in range(4)] == [True, False, True, True]
    for key in range(4, 10):
        cache.read(key)
    assert all(cache.has(key) for key in (0, 3, *range(4, 10))), "one read may need more than the bound"
    cache.turn()
    cache.read(2)
    assert cache.has(2)


def test_a_map_outlives_its_file_until_it_is_forgotten(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, 3)
    cache.read(0), cache.read(1), cache.read(2)
    (tmp_path / "0").unlink()
    assert cache.read(0) == b"file 0"
    assert cache.forget(0) and not cache.forget(0)
    with pytest.raises(FileNotFoundError):
        cache.read(0)
    cache.name(1, None)
    assert cache.sweep() == 1 and [cache.has(key) for key in range(3)] == [False, False, True]


def test_a_cut_file_is_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    cache = SegmentMapCache()
    (tmp_path / "long").write_bytes(b"x" * 100_000)
    cache.name(1, tmp_path / "long")
    assert len(cache.read(1)) == 100_000
    os.truncate(tmp_path / "long", 10)
    with pytest.raises(OSError):
        cache.read(1)


def test_a_thousand_files_are_mapped_with_few_descriptors(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(128, hard), hard))
    try:
        cache = cache_of(tmp_path, 1000)
        assert [cache.read(key) for key in range(1000)] == [b"file %d" % key for key in range(1000)]
        assert len(cache) == 1000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@settings(deadline=None, max_examples=40)
@given(steps=st.lists(st.tuples(st.sampled_from(["read", "read", "read", "forget", "retire", "sweep", "turn"]), st.integers(0, 40)), max_size=150))
def test_the_table_of_maps_never_loses_or_mixes_up_a_key(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]) -> None:
    folder = tmp_path_factory.mktemp("maps")
    cache = cache_of(folder, 41, count_max=20)
    mapped, retired = set[int](), set[int]()
    for step, key in steps:
        if step == "read" and (key not in retired or cache.has(key)):
            assert cache.read(key) == b"file %d" % key
            mapped.add(key)
        elif step == "forget":
            assert cache.forget(key) == cache.has(key) or key in mapped
            assert not cache.has(key)
            mapped.discard(key)
        elif step == "retire":
            cache.name(key, None)
            retired.add(key)
        elif step == "sweep":
            cache.sweep()
            mapped -= retired
            assert not any(cache.has(gone) for gone in retired)
        elif step == "turn":
            cache.turn()
        held = {k for k in range(41) if cache.has(k)}
        assert held <= mapped and len(held) == len(cache)
        mapped = held
