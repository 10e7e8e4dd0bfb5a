"""The cold tier: what is copied there is verified, a move survives a power cut at every call, a store that hangs costs its readers little time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from fakes.faulty_files import FaultyFiles
from fakes.patience import eventually
from oracle import segment_oracle as oracle
from oracle.segment_oracle import HOLE, Row
from topicsd._native import frame, segment, whole_files
from topicsd._native.segment import SegmentError, SegmentView
from topicsd._native.segment_build import Writer
from topicsd.segments import cold, names
from topicsd.segments.cold import Cold, ColdError, ColdMissingError, FolderCold, open_cold
from topicsd.segments.cold_reader import BLOCK_BYTES, STUCK_MAX, ColdLimits, ColdReader, ColdUnavailableError
from topicsd.segments.names import Name, name_of

ROWS = [Row(1 + k, 100 + k, frame.entry(frame.Record(b'"%s"' % (b"%d" % k * 20), None, b"t"))) for k in range(300)]
ROWS.append(Row(301, 400, None, HOLE | 1 << 8, 5))


def seal(root: Path, files: FaultyFiles | None = None) -> Name:
    name = name_of(root, 7, 1)
    name.folder.mkdir(parents=True, exist_ok=True)
    writer = Writer(name.folder, files)
    writer.begin(7, 1)
    for row in ROWS:
        writer.add(row.seq, row.ts, row.entry, row.flags, row.count)
    writer.finish()
    return name


def delete(name: Name, *seqs: int) -> None:
    path = name.path("data")
    view = SegmentView(name.path("index").read_bytes(), path.read_bytes())
    segment.set_deleted(path, [view.flag_offset(seq) for seq in seqs])


# ---- stores


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, object]]:
    """A server that speaks S3, and how to reach its bucket."""
    boto3 = pytest.importorskip("boto3")
    server_module = pytest.importorskip("moto.server")
    pytest.importorskip("obstore")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", **keys).create_bucket(Bucket="cold")
    yield {"aws_endpoint": f"http://{host}:{port}", "aws_region": "us-east-1", "client_options": {"allow_http": True}, **keys}
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Cold:
    if request.param == "folder":
        return open_cold(str(tmp_path / "cold" / "deep"))
    return open_cold(f"s3://cold/{tmp_path.name}", **request.getfixturevalue("s3"))


def test_a_store_gives_back_what_was_put_there(store: Cold, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(range(256)) * 100)
    store.put("a/b/x.data", tmp_path / "x")
    assert store.size("a/b/x.data") == 25600
    assert store.read("a/b/x.data", 0, 99999) == bytes(range(256)) * 100
    assert store.read("a/b/x.data", 250, 10) == bytes([250, 251, 252, 253, 254, 255, 0, 1, 2, 3])
    assert store.read("a/b/x.data", 25590, 100) == bytes(range(246, 256)) and store.read("a/b/x.data", 25600, 5) == b""
    (tmp_path / "x").write_bytes(b"another")
    store.put("a/b/x.data", tmp_path / "x")
    assert store.read("a/b/x.data", 0, 100) == b"another"
    store.put("a/c", tmp_path / "x")
    assert list(store.names()) == ["a/b/x.data", "a/c"] and list(store.names("a/b/")) == ["a/b/x.data"] and list(store.names("q")) == []
    store.delete("a/c")
    store.delete("a/c")
    assert list(store.names()) == ["a/b/x.data"]


def test_what_is_not_there_is_missing_and_a_store_that_fails_is_an_error(store: Cold, tmp_path: Path) -> None:
    (tmp_path / "y").write_bytes(b"y")
    store.put("topics/y", tmp_path / "y")
    for call in (lambda: store.size("nothing"), lambda: store.read("nothing", 0, 1)):
        with pytest.raises(ColdMissingError):
            call()
    with pytest.raises(ColdError):
        store.put("x", tmp_path / "nothing")


def test_a_folder_whose_disk_is_not_mounted_and_a_bucket_that_is_gone_have_lost_nothing(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("obstore")
    for store in (open_cold(str(tmp_path / "empty")), open_cold("s3://nobody/x", **request.getfixturevalue("s3"))):
        with pytest.raises(ColdError) as wrong:
            store.read("topics/x", 0, 1)
        assert not isinstance(wrong.value, ColdMissingError)


def test_a_store_that_cannot_be_reached_or_named_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    options = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "aws_region": "us-east-1", "client_options": {"allow_http": True}}
    unreachable = open_cold("s3://cold/x", aws_endpoint="http://127.0.0.1:1", **options)
    with pytest.raises(ColdError):
        unreachable.read("a", 0, 1)
    with pytest.raises(ColdError):
        open_cold("nosuchscheme://x")
    (tmp_path / "file").touch()
    with pytest.raises(ColdError):
        open_cold(str(tmp_path / "file" / "below"))


# ---- moving a segment


def test_a_cold_segment_is_served_from_index_flags_and_a_window_of_its_data(store: Cold, tmp_path: Path) -> None:
    name = seal(tmp_path / "data")
    delete(name, 10, 20)
    cold.copy_to_cold(store, name)
    delete(name, 21)  # before the move is published
    segment.set_deleted(cold.flags_path(name), cold.late_flags(name))
    segment.set_deleted(cold.flags_path(name), [cold.flag_offset(1, 22)])  # after it: the hot data file is gone
    name.path("data").unlink()

    reader = ColdReader(store)
    view = SegmentView(name.path("index").read_bytes())
    view.take_flags(cold.flags_path(name).read_bytes())
    begin, end = view.window_of(9, 20)
    view.take_window(reader.read(cold.cold_name(name), begin, end), begin)

    assert view.check(9, 20) == (0, 29)
    assert [view.record(seq) for seq in range(9, 29)] == [(ROWS[seq - 1].entry, seq in (10, 20, 21, 22)) for seq in range(9, 29)]
    assert view.check(8, 1)[0] == 7 and view.check(30, 1)[0] == 7, "what is outside of the window is not read"
    assert view.window_of(301, 5) == (0, 0) and view.window_of(300, 6)[1] > 0
    begin, end = view.window_of(1, 305)
    view.take_window(reader.read(cold.cold_name(name), begin, end), begin)
    assert view.check(1, 305) == (0, 306)
    reader.close()


def test_what_comes_back_is_compared_with_what_was_put(tmp_path: Path) -> None:
    class Forgetful(FolderCold):
        def read(self, name: str, offset: int, length: int) -> bytes:
            raw = bytearray(super().read(name, offset, length))
            raw[1000] ^= 1
            return bytes(raw)

    name = seal(tmp_path / "data")
    with pytest.raises(ColdError, match="not what was put"):
        (tmp_path / "cold").mkdir()
        cold.copy_to_cold(Forgetful(tmp_path / "cold"), name)
    assert not cold.flags_path(name).exists()


def test_a_damaged_segment_stays_where_it_is(tmp_path: Path) -> None:
    name = seal(tmp_path / "data")
    raw = bytearray(name.path("data").read_bytes())
    raw[1000] ^= 1
    name.path("data").write_bytes(raw)
    with pytest.raises(SegmentError):
        cold.copy_to_cold(FolderCold(tmp_path / "cold"), name)
    assert not (tmp_path / "cold").exists()


def test_every_image_of_a_move_has_the_hot_segment_and_whole_copies_or_none(tmp_path: Path) -> None:
    root, image = tmp_path / "disk", tmp_path / "image"
    name = seal(root / "data")
    (root / "cold").mkdir()
    files = FaultyFiles(root)
    cold.copy_to_cold(FolderCold(root / "cold", files), name, files)
    data = name.path("data").read_bytes()
    flags = cold.flags_path(name).read_bytes()
    copy = Path("cold") / cold.cold_name(name)
    for call in range(len(files.calls) + 1):
        for seed in range(8):
            target = image / f"{call}-{seed}"
            (target / "cold").mkdir(parents=True)
            (target / "data" / names.topic_folder(7)).mkdir(parents=True)
            files.image(call, seed, target)
            moved, beside = target / copy, cold.flags_path(name_of(target / "data", 7, 1))
            assert not moved.exists() or moved.read_bytes() == data
            assert not beside.exists() or beside.read_bytes() == flags
            assert not (beside.exists() and not moved.exists()), "the flags file is written when the copy is safe"
            assert call < len(files.calls) or (moved.exists() and beside.exists())


def test_a_call_that_fails_in_a_move_is_told_and_the_next_try_succeeds(tmp_path: Path) -> None:
    for kind in ("open", "pwritev", "fsync", "rename", "sync_directory", "mkdir"):
        for nth in (1, 2, 3):
            root = tmp_path / f"{kind}{nth}"
            name = seal(root / "data")
            (root / "cold").mkdir()
            files = FaultyFiles(root)
            files.fail(kind, nth)
            try:
                cold.copy_to_cold(FolderCold(root / "cold", files), name, files)
                assert nth > 1, "the first call of each kind is made at least"
            except (ColdError, OSError):
                files.heal()
                cold.copy_to_cold(FolderCold(root / "cold", files), name, files)
            assert (root / "cold" / cold.cold_name(name)).read_bytes() == name.path("data").read_bytes()
            assert list(root.rglob("*.tmp")) == []


def test_a_flags_part_with_a_flipped_bit_in_its_header_or_of_another_segment_is_refused(tmp_path: Path) -> None:
    name = seal(tmp_path / "data")
    view = SegmentView(name.path("index").read_bytes(), name.path("data").read_bytes())
    flags = view.flags_part()
    assert len(flags) == 128 + 312 and flags[128:] == bytes(312)
    for at in range(128):
        raw = bytearray(flags)
        raw[at] ^= 2
        with pytest.raises(SegmentError):
            SegmentView(name.path("index").read_bytes()).take_flags(raw)
    other = oracle.build(8, ROWS)
    with pytest.raises(SegmentError):
        view.take_flags(SegmentView(other.index, other.data).flags_part())


def test_a_whole_file_replaces_the_old_one_at_once_or_leaves_it(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    whole_files.write_whole(tmp_path / "x", b"old", files)
    for kind in ("open", "pwritev", "fsync", "rename"):
        files.fail(kind)
        with pytest.raises(OSError):
            whole_files.write_whole(tmp_path / "x", b"new", files)
        files.heal()
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"x": b"old"}
    whole_files.write_whole(tmp_path / "x", b"", files)
    assert (tmp_path / "x").read_bytes() == b""
    (tmp_path / "large").write_bytes(b"0123456789" * 300_000)
    assert whole_files.copy_whole(tmp_path / "large", tmp_path / "copy", files) == 3_000_000
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "large").read_bytes()
    whole_files.remove(tmp_path / "copy", files)
    with pytest.raises(FileNotFoundError):
        whole_files.copy_whole(tmp_path / "copy", tmp_path / "y", files)


# ---- reading it


class Slow:
    """A store of one object whose reads wait for `go`."""

    def __init__(self, size: int) -> None:
        self.raw = bytes(k * 7 % 251 for k in range(size))
        self.go = threading.Event()
        self.go.set()
        self.reads: list[tuple[int, int]] = []
        self.error: Exception | None = None

    def read(self, name: str, offset: int, length: int) -> bytes:
        self.reads.append((offset, length))
        assert self.go.wait(60)
        if name == "missing":
            raise ColdMissingError(name)
        if self.error:
            raise self.error
        return self.raw[offset : offset + length]


@pytest.fixture
def slow() -> Iterator[Slow]:
    store = Slow(3 * BLOCK_BYTES + 1000)
    yield store
    store.go.set()


def reader_of(store: Any, now: list[int] | None = None, **limits: int) -> ColdReader:
    return ColdReader(store, ColdLimits(**limits), *([lambda: now[0]] if now is not None else []))


def test_ranges_are_read_across_blocks_and_again_from_the_cache(slow: Slow) -> None:
    reader = reader_of(slow)
    for begin, end in ((0, 10), (BLOCK_BYTES - 5, BLOCK_BYTES + 5), (0, len(slow.raw)), (len(slow.raw) - 3, len(slow.raw) + 50), (5, 5)):
        assert reader.read("x", begin, end) == slow.raw[begin:end]
    assert [offset // BLOCK_BYTES for offset, _ in slow.reads] == [0, 1, 2], "blocks that are missing in a row are one read"
    assert reader.numbers.bytes == len(slow.raw) and reader.numbers.hits > 0
    reader.forget("x")
    assert reader.read("x", 0, 3) == slow.raw[:3] and len(slow.reads) == 4
    reader.close()


def test_the_cache_is_bounded_and_the_oldest_block_goes(slow: Slow) -> None:
    reader = reader_of(slow, cache_bytes=2 * BLOCK_BYTES)
    for block in (0, 1, 0, 2, 0, 1):
        assert reader.read("x", block * BLOCK_BYTES, block * BLOCK_BYTES + 1) == slow.raw[block * BLOCK_BYTES :][:1]
    assert [offset // BLOCK_BYTES for offset, _ in slow.reads] == [0, 1, 2, 1]


def test_many_readers_of_one_block_cost_one_read(slow: Slow) -> None:
    slow.go.clear()
    reader = reader_of(slow)
    futures = [reader.submit("x", 100, 200) for _ in range(50)]
    slow.go.set()
    assert {future.result(10) for future in futures} == {slow.raw[100:200]} and len(slow.reads) == 1


def test_a_store_that_hangs_is_given_up_after_the_wait_and_refused_at_once_afterwards(slow: Slow) -> None:
    now = [0]
    slow.go.clear()
    reader = reader_of(slow, now, wait_ms=50, retry_ms=5000)
    with pytest.raises(ColdUnavailableError) as told:
        reader.read("x", 0, 10)
    assert told.value.retry_after_s == 5
    start = time.monotonic()
    for _ in range(1000):
        with pytest.raises(ColdUnavailableError):
            reader.read("x", BLOCK_BYTES, BLOCK_BYTES + 10)
    assert time.monotonic() - start < 5 and len(slow.reads) == 1, "nobody else goes into the store"
    slow.go.set()
    now[0] = 5001
    assert reader.read("x", 0, 10) == slow.raw[:10]


def test_threads_that_all_hang_are_noticed_without_waiting(slow: Slow) -> None:
    now = [0]
    slow.go.clear()
    reader = reader_of(slow, now, threads=2, wait_ms=1000, retry_ms=3000)
    held: list[Future[bytes]] = [reader.submit(f"x{k}", 0, 10) for k in range(2)]
    assert eventually(lambda: len(slow.reads) == 2), "both threads are in the store: no clock of ours moves"
    now[0] = 1000
    with pytest.raises(ColdUnavailableError):
        reader.submit("y", 0, 10)
    assert reader.numbers.refused == 1
    slow.go.set()
    assert [future.result(10) for future in held] == [slow.raw[:10]] * 2
    now[0] = 4001
    assert reader.read("y", 0, 10) == slow.raw[:10]


def test_no_more_wait_than_the_bound(slow: Slow) -> None:
    slow.go.clear()
    reader = reader_of(slow, waiting_max=3)
    held = [reader.submit("x", block * BLOCK_BYTES, block * BLOCK_BYTES + 1) for block in range(3)]
    with pytest.raises(ColdUnavailableError):
        reader.submit("x", 3 * BLOCK_BYTES, 3 * BLOCK_BYTES + 1)
    again = reader.submit("x", 0, 1)  # is on its way already
    slow.go.set()
    assert [len(future.result(10)) for future in [*held, again]] == [1] * 4


def test_a_failing_store_is_unavailable_and_a_missing_object_is_not(slow: Slow) -> None:
    now = [0]
    reader = reader_of(slow, now, retry_ms=1000)
    slow.error = RuntimeError("of a library")
    with pytest.raises(ColdUnavailableError):
        reader.read("x", 0, 1)
    slow.error = None
    now[0] = 1001
    with pytest.raises(ColdMissingError):
        reader.read("missing", 0, 1)
    assert reader.read("x", 0, 1) == slow.raw[:1], "a missing object refuses nobody else"


class Stuck:
    """A store of which some objects hang: a read of one never returns, whatever happens to the store, unless `release` is called."""

    def __init__(self) -> None:
        self.hung: set[str] = set()
        self.reads: list[str] = []
        self.holds: list[threading.Event] = []

    def read(self, name: str, offset: int, length: int) -> bytes:
        self.reads.append(name)
        if name in self.hung or "*" in self.hung:
            self.holds.append(threading.Event())
            self.holds[-1].wait(120)
        return name.encode()

    def release(self) -> None:
        for hold in self.holds:
            hold.set()


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    store = Stuck()
    yield store
    store.release()


def asked(reader: ColdReader, stuck: Stuck, name: str) -> Future[bytes] | None:
    """Ask, and go on once the store has been asked; None: it was not."""
    before = len(stuck.reads)
    try:
        future = reader.submit(name, 0, 1)
    except ColdUnavailableError:
        return None
    assert eventually(lambda: len(stuck.reads) > before) and len(stuck.reads) == before + 1
    return future


def test_an_object_whose_read_never_returns_is_asked_again_once_its_time_is_up(stuck: Stuck) -> None:
    now = [0]
    reader = reader_of(stuck, now, wait_ms=1000, retry_ms=5000, fetch_ms=15_000)
    stuck.hung.add("x")
    held = asked(reader, stuck, "x")
    assert held is not None
    now[0] = 14_999
    assert reader.submit("x", 0, 1) is not held and len(stuck.reads) == 1, "who asks meanwhile waits for the same read"
    now[0] = 15_000
    with pytest.raises(ColdUnavailableError) as told:
        reader.submit("x", 0, 1)
    assert told.value.retry_after_s >= 1
    with pytest.raises(ColdUnavailableError):
        held.result(10)
    assert asked(reader, stuck, "y") is not None, "what does not hang is served"
    stuck.hung.clear()  # the store is back; the thread stays where it is
    now[0] = 20_000
    again = asked(reader, stuck, "x")
    assert again is not None and again.result(10) == b"x"
    assert reader.stuck() == 1
    stuck.release()
    assert eventually(lambda: reader.stuck() == 0)
    assert reader.read("x", 0, 1) == b"x" and len(stuck.reads) == 3
    reader.close()


def threads() -> int:
    return sum(thread.name == "cold" for thread in threading.enumerate())


def test_a_store_that_hangs_for_days_is_asked_less_and_less_often_and_holds_few_threads(stuck: Stuck) -> None:
    now = [0]
    reader = reader_of(stuck, now, threads=4, wait_ms=1000, retry_ms=5000, fetch_ms=15_000)
    stuck.hung.add("*")
    day_ms, n, before = 86_400_000, 0, threads()
    while now[0] < 2 * day_ms:
        now[0] += 1000 if now[0] < 600_000 else 60_000
        n += 1
        asked(reader, stuck, f"x{n}")  # always another object
        assert reader.stuck() <= STUCK_MAX and threads() - before <= STUCK_MAX + 4
    assert 10 < len(stuck.reads) <= 60, "it is asked again, and not all the time"
    began = now[0]
    stuck.hung.clear()
    while (future := asked(reader, stuck, "y")) is None:
        now[0] += 60_000
    assert future.result(10) == b"y" and now[0] - began <= day_ms / 2 + 60_000, "within a quarter of the time that it hung"
    for n in range(20):
        now[0] += 1
        assert asked(reader, stuck, f"z{n}") is not None, "all is as before"
    reader.close()


def test_however_many_objects_hang_threads_are_bounded_and_the_others_are_served(stuck: Stuck) -> None:
    now = [0]
    reader = reader_of(stuck, now, threads=4, wait_ms=1000, retry_ms=5000, fetch_ms=15_000)
    before = threads()
    stuck.hung.update(f"x{n}" for n in range(2 * STUCK_MAX))
    for n in range(2 * STUCK_MAX):
        asked(reader, stuck, f"x{n}")
        now[0] += 20_000
        answer = asked(reader, stuck, f"y{n}")
        if reader.stuck() < STUCK_MAX:
            assert answer is not None and answer.result(10) == b"y"
        assert reader.stuck() <= STUCK_MAX and threads() - before <= STUCK_MAX + 4
    assert reader.stuck() == STUCK_MAX
    stuck.release()
    assert eventually(lambda: reader.stuck() == 0)
    stuck.hung.clear()
    for name in ("x1", f"x{STUCK_MAX + 9}"):
        now[0] += 86_400_000
        assert reader.read(name, 0, 1) == b"x", "asked again, or come in the end"
    reader.close()


def test_what_a_read_brings_that_was_given_up_is_kept(stuck: Stuck) -> None:
    now = [0]
    reader = reader_of(stuck, now, fetch_ms=15_000)
    stuck.hung.add("x")
    held = asked(reader, stuck, "x")
    now[0] = 15_000
    reader.give_up_late()
    assert held is not None and held.done() and reader.stuck() == 1
    stuck.release()
    assert eventually(lambda: reader.stuck() == 0)
    assert reader.read("x", 0, 1) == b"x" and len(stuck.reads) == 1, "a slow store is served in the end"
    reader.close()
