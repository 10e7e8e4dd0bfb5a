"""The file seam and the disk that fails on demand."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from fakes.faulty_files import FaultyFiles
from topicsd._native import frame, log_walk
from topicsd._native.log import Shard


def log_on(root: Path, files: FaultyFiles) -> Shard:
    shard = Shard(root / "shard-00", 0, files, first_file_bytes=8192, file_bytes=8192)
    shard.start(log_walk.check(root / "shard-00"))
    return shard


def test_a_write_of_many_parts_arrives_whole_and_is_remembered_as_one(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    shard = log_on(tmp_path, files)
    raw = [frame.build(8, bytes([n]) * 40 * n, base_seq=n) for n in range(1, 8)]
    for each in raw:
        shard.append(each)
    shard.flush_group()
    kind, _, offset, data = files.calls[-1]
    assert (kind, offset, len(data)) == ("pwritev", 128, sum(map(len, raw)))
    assert (tmp_path / "shard-00" / f"{0:020d}.log").read_bytes()[128 : 128 + len(data)] == data


def test_a_short_write_leaves_exactly_its_bytes(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    shard = log_on(tmp_path, files)
    shard.append(frame.build(8, b"x" * 400))
    files.fail("pwritev", short=100)
    with pytest.raises(OSError) as caught:
        shard.flush_group()
    assert caught.value.errno == errno.EIO
    content = (tmp_path / "shard-00" / f"{0:020d}.log").read_bytes()
    assert content[128:228] != bytes(100)
    assert content[228:] == bytes(8192 - 228)


def test_a_hook_that_raises_is_an_io_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Broken(FaultyFiles):
        def before(self, kind: str, *args) -> int:
            raise RuntimeError("a bug in a test")

    with pytest.raises(OSError) as caught:
        log_on(tmp_path, Broken(tmp_path))
    assert caught.value.errno == errno.EIO
    assert "a bug in a test" in capfd.readouterr().err


def test_an_image_without_the_directory_sync_may_lack_the_file_and_with_it_never_does(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path / "disk")
    (tmp_path / "disk").mkdir()
    log_on(tmp_path / "disk", files)
    renamed = next(index for index, call in enumerate(files.calls) if call[0] == "rename")
    for call, there in ((renamed + 1, False), (renamed + 2, True)):
        image = tmp_path / f"image-{call}"
        image.mkdir()
        files.image(call, 0, image)
        assert bool(list(image.glob("shard-00/*.log"))) == there


def test_an_image_that_keeps_everything_is_the_directory(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path / "disk")
    (tmp_path / "disk").mkdir()
    shard = log_on(tmp_path / "disk", files)
    shard.append(frame.build(8, b"x" * 400))
    shard.flush_group()
    (tmp_path / "image").mkdir()
    files.image(len(files.calls), 1, tmp_path / "image")
    path = Path("shard-00") / f"{0:020d}.log"
    assert (tmp_path / "image" / path).read_bytes() == (tmp_path / "disk" / path).read_bytes()


def test_images_of_one_seed_are_equal(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path / "disk")
    (tmp_path / "disk").mkdir()
    shard = log_on(tmp_path / "disk", files)
    shard.append(frame.build(8, bytes(range(256)) * 16))
    shard.flush_group()
    contents = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        files.image(len(files.calls), 2, tmp_path / name)
        contents.append({path.name: path.read_bytes() for path in (tmp_path / name / "shard-00").iterdir()})
    assert contents[0] == contents[1]
