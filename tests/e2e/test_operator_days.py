"""What an operator meets at night: disks that fill while files are made, moved and removed, an archive that is away, damage to be repaired."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.client import at, insist, read_all, write_body
from e2e.server import Server, as_json, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(240)]
Launch = Callable[..., Server]
MIB = 1 << 20
TOPICSD = str(Path(sys.executable).parent / "topicsd")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Factory of file systems of so many MiB, and with so many inodes."""
    made: list[Path] = []

    def mount(name: str, mib: int, inodes: int = 0) -> Path:
        place = tmp_path / name
        place.mkdir()
        options = f"size={mib}m,nr_inodes={inodes or 100_000}"
        told = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, text=True, check=False)
        if told.returncode:
            pytest.skip(f"no small disk: mount is not permitted here ({told.stderr.strip()})")
        made.append(place)
        return place

    yield mount
    for place in made:
        subprocess.run(["umount", "-l", str(place)], check=False)


def remount(place: Path, options: str) -> None:
    command = ["mount", "-o", f"remount,{options}", str(place)]
    assert eventually(lambda: subprocess.run(command, check=False).returncode == 0), "busy: a file that is written there makes `ro` wait"


def run(*arguments: str) -> tuple[int, str]:
    done = subprocess.run([TOPICSD, *arguments], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def data_of(number: int, size: int = 50_000) -> bytes:
    return b'"%06d%b"' % (number, b"x" * size)


def fill(server: Server, topic: str, acked: list[bytes], most: int = 4000) -> bool:
    """Write until the server refuses, or so many records; was it refused?"""
    with server.line() as line:
        for number in range(len(acked), most):
            answer = line.call("POST", at(topic), write_body([data_of(number)]))
            if answer.status not in (200, 201):
                assert answer.code == "storage_read_only", str(answer)
                return True
            acked.append(data_of(number))
    return False


def read(server: Server, topic: str) -> tuple[list[bytes], list[dict[str, Any]]]:
    with server.line() as line:
        records, tombstones, _head = read_all(line, topic)
    return [record.data for record in records], tombstones


def takes_writes(server: Server, topic: str) -> bool:
    return server.call("POST", at(topic), write_body([b'"again"'], key="again")).status == 200


SMALL = {
    "TOPICS_LOG_FILE_BYTES": 4 * MIB, "TOPICS_SEGMENT_MAX_EVENTS": 50, "TOPICS_CHECKPOINT_BYTES": 2 * MIB, "TOPICS_CHECKPOINT_MS": 200,
}  # fmt: skip


@pytest.mark.parametrize(("mib", "file_mib"), [(40, 1), (60, 4)])
def test_a_disk_that_is_full_of_log_files_is_freed_by_deletes_again_and_again(
    launch: Launch, disk: Callable[..., Path], mib: int, file_mib: int
) -> None:
    place = disk("small", mib)
    server = launch(data_dir=place / "data", **SMALL | {"TOPICS_LOG_FILE_BYTES": file_mib * MIB})
    kept: list[bytes] = []

    def free() -> int:
        return os.statvfs(place).f_bavail * os.statvfs(place).f_frsize

    for once_more in range(3):
        answer = None
        with server.line() as line:
            for number in range(4000):  # what stays stands between what goes, in each file of the log
                data = data_of(10_000 * once_more + number, 5_000)
                answer = line.call("POST", at("kept"), write_body([data]))
                if answer.status not in (200, 201):
                    break
                kept.append(data)
                answer = line.call("POST", at("gone"), write_body([data_of(number)]))
                if answer.status not in (200, 201):
                    break
        assert answer is not None and answer.code == "storage_read_only", "the disk was never full"
        if once_more == 1:
            server.kill()
            server.start()
        head = server.call("GET", at("gone")).json["head_seq"]
        assert server.call("POST", at("gone", "delete"), as_json({"before_seq": head + 1})).status == 200
        if once_more == 2:
            os.kill(server.settled_roles().writer or 0, signal.SIGKILL)
        assert eventually(lambda: free() >= mib * MIB // 8, 90.0), f"{free()} bytes are free\n{server.log()}"
        assert eventually(lambda: takes_writes(server, "other"), 60.0), server.log()
        assert read(server, "kept") == (kept, [])
    assert server.stop() == 0
    assert run("fsck", str(server.data))[0] == 0


def take_all(place: Path) -> None:
    """Be another program, which takes every byte and every inode that is free."""
    with contextlib.suppress(OSError):
        for number in range(1000):
            path = place / f"foreign-{number}"
            path.touch()
            for size in (MIB, 4096):
                with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
                    while file.write(bytes(size)) == size:
                        pass


def test_a_start_on_a_disk_without_a_byte_or_an_inode_serves_reads_and_deletes_and_waits_for_room_when_nothing_is_set_aside_any_more(
    launch: Launch, disk: Callable[..., Path]
) -> None:
    place = disk("small", 40, inodes=60)
    server = launch(data_dir=place / "data", **SMALL | {"TOPICS_CHECKPOINT_MS": 60_000})
    acked: list[bytes] = []
    assert not fill(server, "t", acked, 40)
    take_all(place)
    for number in range(2):
        server.kill()
        server.start()
        assert read(server, "t") == (acked[number:], [])
        assert server.call("POST", at("t", "delete"), as_json({"before_seq": number + 2})).status == 200
        take_all(place)
    for name in ("reserve", "reserve-seal"):
        (place / "data" / "meta" / name).unlink(missing_ok=True)
    take_all(place)
    os.kill(server.settled_roles().writer or 0, signal.SIGKILL)
    assert eventually(lambda: server.log().count("the start waits for room") == 1, 30.0), server.log()
    time.sleep(2)
    assert "Traceback" not in server.log() and server.log().count("the start waits for room") == 1
    assert "no inode free" in server.log()
    for path in place.glob("foreign-*"):
        path.unlink()
    assert eventually(lambda: takes_writes(server, "other"), 60.0), server.log()
    assert read(server, "t") == (acked[2:], [])
    assert server.stop() == 0
    assert run("fsck", str(server.data))[0] == 0


@pytest.mark.parametrize("way", ["cap", "delete", "topic"])
def test_a_disk_that_is_full_of_segments_is_freed_by_what_frees_it(launch: Launch, disk: Callable[..., Path], way: str) -> None:
    place = disk("small", 64)
    server = launch(data_dir=place / "data", **SMALL)
    assert server.call("PUT", at("t"), as_json({"durability": "disk"})).status == 201
    acked: list[bytes] = []
    full_since = time.monotonic()
    while time.monotonic() - full_since < 3:  # what is sealed leaves the log, so there is room again a few times
        more = len(acked)
        assert fill(server, "t", acked)
        if len(acked) > more:
            full_since = time.monotonic()
    assert read(server, "t") == (acked, [])
    if way == "cap":
        assert server.call("PUT", at("t"), as_json({"durability": "disk", "cap_records": 20})).status == 200
    elif way == "delete":
        assert server.call("POST", at("t", "delete"), as_json({"before_seq": len(acked) - 19})).status == 200
    else:
        assert server.call("DELETE", at("t")).status == 200
    assert eventually(lambda: takes_writes(server, "other"), 60.0), server.log()
    assert eventually(lambda: server.metrics()["topics_wal_read_only"] == 0)
    if way != "topic":
        kept, tombstones = read(server, "t")
        assert kept == acked[-20:] and [each["reason"] for each in tombstones] == (["cap"] if way == "cap" else [])
    server.kill()
    server.start()
    assert takes_writes(server, "other") and (way == "topic" or read(server, "t")[0] == acked[-20:])
    assert server.stop() == 0
    assert run("fsck", str(server.data))[0] == 0


def test_an_archive_that_is_full_or_read_only_loses_no_log_file_and_gets_all_of_them(launch: Launch, disk: Callable[..., Path]) -> None:
    archive = disk("archive", 9)  # two files of 4 MiB go in
    server = launch(TOPICS_LOG_ARCHIVE_DIR=archive, **SMALL)
    acked: list[bytes] = []
    fill(server, "t", acked, 600)

    def stuck() -> bool:
        fill(server, "t", acked, len(acked) + 20)
        return bool(server.metrics()["topics_files_not_removed"] > 0)

    assert eventually(stuck, 60.0), "the archive was never full"
    assert list(archive.rglob("*.tmp")) == []
    assert read(server, "t") == (acked, [])
    remount(archive, "size=512m")
    remount(archive, "ro")
    fill(server, "t", acked, len(acked) + 100)
    assert stuck()
    remount(archive, "rw")

    def all_there() -> bool:
        fill(server, "t", acked, len(acked) + 20)
        return bool(server.metrics()["topics_files_not_removed"] == 0) and len(list(archive.rglob("*.log"))) >= 3

    assert eventually(all_there, 60.0), server.log()
    assert server.stop() == 0
    archived, left = sorted(archive.rglob("*.log")), sorted(server.data.glob("log/*/*.log"))
    positions = [int(path.stem) for path in archived + left]
    assert positions[0] == 0 and positions == sorted(positions)
    for path in archived:
        (left[0].parent / path.name).write_bytes(path.read_bytes())
    for path in server.data.glob("meta/snapshot-*"):
        path.unlink()
    server.start()  # from position 0 on, out of the archive
    assert read(server, "t") == (acked, [])


def test_a_cold_tier_that_is_full_keeps_data_here_until_there_is_room(launch: Launch, disk: Callable[..., Path]) -> None:
    tier = disk("tier", 3)
    server = launch(TOPICS_COLD_DIR=tier, TOPICS_HOT_RETAIN_SEGMENTS=1, **SMALL)
    acked: list[bytes] = []
    fill(server, "t", acked, 400)
    assert eventually(lambda: server.metrics()["topics_cold_failures_total"] > 0, 60.0), "the tier was never full"
    assert read(server, "t") == (acked, [])
    assert "degraded" not in server.call("GET", "/v0/ready").json
    remount(tier, "size=256m")
    moved = server.metrics()["topics_cold_segments_moved_total"]
    assert eventually(lambda: server.metrics()["topics_cold_segments_moved_total"] > moved, 120.0), server.log()
    assert read(server, "t") == (acked, [])
    server.kill()
    server.start()
    assert read(server, "t") == (acked, [])


def test_a_backup_and_a_restore_that_meet_a_full_disk_are_run_again(launch: Launch, disk: Callable[..., Path], tmp_path: Path) -> None:
    shelf, target = disk("shelf", 4), disk("target", 4)
    server = launch(**SMALL)
    acked: list[bytes] = []
    fill(server, "t", acked, 400)
    code, said = run("backup", str(shelf / "b"), "--data-dir", str(server.data))
    assert code == 2 and "No space left" in said, said
    remount(shelf, "size=256m")
    code, said = run("backup", str(shelf / "b"), "--data-dir", str(server.data))
    assert code == 0, said
    assert run("backup", str(shelf / "b"), "--verify")[0] == 0
    code, said = run("restore", str(shelf / "b"), str(target / "d"))
    assert code == 2 and "No space left" in said, said
    half = launch(start=False, data_dir=target / "d")
    half.spawn()
    assert half.process is not None and half.process.wait(60) != 0, "a half restored directory was opened"
    half.process = None
    remount(target, "size=256m")
    code, said = run("restore", str(shelf / "b"), str(target / "d"))
    assert code == 0, said
    again = launch(data_dir=target / "d", **SMALL)
    assert read(again, "t") == (acked, [])
    fill(server, "t", acked, 420)
    assert read(server, "t") == (acked, [])


def test_a_directory_that_fsck_has_repaired_starts_and_serves_what_is_left(launch: Launch) -> None:
    server = launch(**SMALL)
    acked: list[bytes] = []
    fill(server, "t", acked, 400)
    assert server.call("POST", at("t") + "/seal", b"").status == 200
    assert server.stop() == 0
    datas = sorted(server.data.glob("topics/*/*/*.data"))
    indexes = [path.with_suffix(".idx") for path in datas]
    indexes[0].unlink()
    with indexes[1].open("r+b") as file:
        file.seek(300)
        file.write(b"\xff\xff")
    with datas[2].open("r+b") as file:
        file.seek(60_000)
        file.write(b"?")
    (server.data / "topics" / "litter.tmp").write_bytes(b"x")
    code, said = run("fsck", str(server.data))
    assert code == 1 and said.count("LOSS") == 1, said
    code, said = run("fsck", str(server.data), "--repair")
    assert code == 1 and str(indexes[0]) in said and "quarantine" in said, said
    code, said = run("fsck", str(server.data))
    assert code == 1 and "1 problems" in said, said
    for path in [*server.data.rglob("*.log"), *datas, *indexes, *server.data.rglob("*.tag"), *server.data.glob("meta/snapshot-*")]:
        if path.stat().st_size:
            dumped = subprocess.run([TOPICSD, "dump", str(path)], capture_output=True, check=False, timeout=120)
            assert dumped.returncode == 0 and dumped.stdout, f"{path}: {dumped.stderr!r}"
    server.start()
    kept, tombstones = read(server, "t")
    assert [each["reason"] for each in tombstones] == ["corrupt"]
    lost = range(tombstones[0]["gap_from"], tombstones[0]["gap_to"] + 1)
    assert kept == [data for seq, data in enumerate(acked, 1) if seq not in lost] and 0 < len(lost) < 60

    def counted() -> bool:
        return bool(server.call("GET", at("t")).json["count"] == len(kept))

    assert eventually(counted, 30.0)


def test_an_idle_topic_is_sealed_by_its_age_alone(launch: Launch) -> None:
    server = launch(TOPICS_SEGMENT_MAX_AGE_MS=500)
    with server.line() as line:
        insist(line, "POST", at("t"), write_body([b"1", b"2"], key="k"))
    assert eventually(lambda: len(list(server.data.glob("packs/*.pack"))) == 1, 30.0), "nothing was sealed"
    assert read(server, "t") == ([b"1", b"2"], [])
    os.kill(server.pid, 0)
