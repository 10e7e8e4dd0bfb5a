"""Reading a log: end, torn tail, damage, void frames, and what is refused."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest

from fakes.faulty_files import FaultyFiles
from oracle.log_oracle import header, payloads
from topicsd._native import frame, log_walk

FILE_BYTES = 8192
CEILING, START, MARK = 8, 1, 0x81


def start_body(previous_end: int, generation: int = 1, version: int = 1, boot: bytes = b"b" * 16) -> bytes:
    return struct.pack("<QQQ16sQQQ", previous_end, generation, FILE_BYTES, boot, version, 0, 0)


class Log:
    """A log made by hand: frames behind one another, files when told."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.content: dict[int, bytearray] = {}
        self.first = 0
        self.at = 0
        self.seq = 0
        self.open(0)

    def open(self, previous_end: int | None = None, **fields: int) -> None:
        if self.content:
            self.first += FILE_BYTES
        self.content[self.first] = bytearray(FILE_BYTES)
        end, self.at = self.at if previous_end is None else previous_end, self.first
        self.add(START, start_body(end, **fields))

    def add(self, kind: int = CEILING, body: bytes | None = None, synced: int = 0, shard: int = 0) -> int:
        self.seq += kind == CEILING
        body = struct.pack("<Q", self.seq) * 16 if body is None else body
        raw = frame.build(kind, body, base_seq=self.seq if kind == CEILING else 0, position=self.at, synced=synced, shard=shard)
        offset, position = self.at - self.first, self.at
        self.content[self.first][offset : offset + len(raw)] = raw
        self.at += len(raw)
        return position

    def flip(self, position: int, mask: int = 0xFF) -> None:
        first = position // FILE_BYTES * FILE_BYTES
        self.content[first][position - first] ^= mask

    def save(self) -> Path:
        for first, content in self.content.items():
            (self.directory / f"{first:020d}.log").write_bytes(content)
        return self.directory

    def read(self, **options) -> tuple[log_walk.WalkReport, list[int]]:
        report, frames = log_walk.read(self.save(), **options)
        return report, [seq for seq, _, _ in payloads(frames)]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "shard-00")


def test_a_directory_that_is_not_there_is_an_empty_log(tmp_path: Path) -> None:
    report = log_walk.check(tmp_path / "nothing")
    assert (report.end, report.next_position, report.files, report.reusable) == (0, 0, [], False)


def test_frames_come_in_order_and_the_report_counts_them(log: Log) -> None:
    for _ in range(5):
        log.add()
    report, seqs = log.read()
    assert seqs == [1, 2, 3, 4, 5]
    assert (report.end, report.frames, report.bytes, report.torn_bytes, report.damaged) == (log.at, 6, log.at, 0, [])
    assert (report.next_position, report.generation, report.boot_id) == (FILE_BYTES, 1, b"b" * 16)


def test_a_start_tells_where_the_data_of_older_files_ends(log: Log) -> None:
    log.add()
    end = log.at
    log.add()
    log.open(previous_end=end)
    log.add()
    report, seqs = log.read()
    assert seqs == [1, 3]
    assert (report.damaged, report.torn_bytes) == ([], 0)


def test_a_start_makes_frames_of_all_older_files_void(log: Log) -> None:
    log.add()
    end = log.at
    log.add()
    log.open()
    log.add()
    log.open(previous_end=end)
    log.add()
    assert log.read()[1] == [1, 4]


def test_what_follows_the_last_good_frame_unsynced_is_a_torn_tail(log: Log) -> None:
    log.add()
    bad = log.add()
    log.add()
    log.flip(bad + 70)
    report, seqs = log.read()
    assert seqs == [1]
    assert report.end == bad
    assert report.damaged == []
    assert report.torn_frames == 1
    assert report.torn_bytes >= 64 + 128


def test_a_bad_frame_below_the_synced_position_of_a_later_one_is_damage_and_the_rest_is_served(log: Log) -> None:
    log.add()
    bad = log.add()
    after = log.add()
    log.add(synced=bad + 8)
    log.flip(bad + 70)
    report, seqs = log.read()
    assert seqs == [1, 3, 4]
    (damage,) = report.damaged
    assert (damage.position, damage.bytes, damage.offset) == (bad, after - bad, bad)
    assert damage.path.endswith(b"00000000000000000000.log")
    assert damage.expected.startswith("checksum ") and damage.got != damage.expected
    assert report.torn_bytes == 0


def test_a_synced_position_that_ends_at_the_bad_frame_does_not_prove_it(log: Log) -> None:
    log.add()
    bad = log.add()
    log.add(synced=bad)
    log.flip(bad + 70)
    report, seqs = log.read()
    assert (seqs, report.damaged) == ([1], [])


def test_a_mark_is_proof_enough(log: Log) -> None:
    bad = log.add()
    log.add(MARK, b"", synced=log.at)
    log.flip(bad)
    report, seqs = log.read()
    assert seqs == []
    assert [damage.position for damage in report.damaged] == [bad]
    assert report.damaged[0].got == "no frame magic"


def test_damage_in_an_older_file_is_found_by_proof_in_a_newer_one(log: Log) -> None:
    log.add()
    bad = log.add()
    end = log.at
    log.open()
    log.add(synced=end)
    log.flip(bad + 80)
    report, seqs = log.read()
    assert seqs == [1, 3]
    assert [(damage.position, damage.bytes) for damage in report.damaged] == [(bad, end - bad)]


def test_without_proof_a_bad_frame_in_an_older_file_ends_the_log(log: Log) -> None:
    """Unsynced frames survive as a prefix: what came after the hole was promised to nobody."""
    log.add()
    bad = log.add()
    log.open()
    log.add()
    log.flip(bad + 80)
    report, seqs = log.read()
    assert (seqs, report.end, report.damaged, report.torn_frames) == ([1], bad, [], 2)
    assert report.next_position == 2 * FILE_BYTES


def test_a_missing_file_is_damage(log: Log) -> None:
    log.add()
    log.open()
    log.add()
    log.open()
    log.add(synced=log.at)
    log.save()
    (log.directory / f"{FILE_BYTES:020d}.log").unlink()
    del log.content[FILE_BYTES]
    report, seqs = log.read()
    assert seqs == [1, 3]
    # The end of file 0 went with the START of the missing one: its unused rest is reported too.
    assert report.damaged[-1].path.endswith(b"%020d.log" % FILE_BYTES) or report.damaged[0].position < FILE_BYTES
    assert sum(damage.bytes for damage in report.damaged) >= FILE_BYTES // 4


def test_a_missing_first_file_is_damage(log: Log) -> None:
    log.add()
    end = log.at
    log.open()
    log.add(synced=end)
    log.save()
    (log.directory / f"{0:020d}.log").unlink()
    del log.content[0]
    report, seqs = log.read()
    assert seqs == [2]
    assert [(damage.position, damage.bytes, damage.got) for damage in report.damaged] == [(0, end, "no such file")]


def test_a_file_that_was_cut_short_is_damage(log: Log) -> None:
    log.add()
    bad = log.add()
    log.open()
    log.add(synced=bad + 8)
    log.content[0] = log.content[0][: bad + 40]
    report, seqs = log.read()
    assert seqs == [1, 3]
    assert [damage.position for damage in report.damaged] == [bad]


def test_a_stale_frame_of_another_place_never_passes(log: Log) -> None:
    stale = log.add()
    bad = log.add()
    log.add(synced=log.at)
    log.content[0][bad : bad + 192] = log.content[0][stale : stale + 192]
    report, seqs = log.read()
    assert seqs == [1, 3]
    assert report.damaged[0].got == f"one of position {stale}"


def test_a_frame_of_another_shard_never_passes(log: Log) -> None:
    log.add(shard=3)
    assert log.read()[1] == []


def test_a_frame_inside_the_body_of_a_bad_one_is_not_taken_for_the_next(log: Log) -> None:
    """A client may write what looks like a frame; only its own position makes it one, and that it cannot know by chance."""
    inner = frame.build(CEILING, b"evil", base_seq=666, position=12345 * 8)
    bad = log.add(body=inner)
    log.add(synced=log.at)
    log.flip(bad + 8)
    assert log.read()[1] == [2]


def test_zeroes_in_the_middle_are_damage_too(log: Log) -> None:
    bad = log.add()
    log.add(synced=log.at)
    log.content[0][bad : bad + 192] = bytes(192)
    report, seqs = log.read()
    assert seqs == [2]
    assert report.damaged[0].got == "zeroes"


def test_an_unstarted_file_of_zeroes_is_used_again(log: Log) -> None:
    log.add()
    end = log.at
    log.save()
    (log.directory / f"{FILE_BYTES:020d}.log").write_bytes(bytes(FILE_BYTES))
    report, seqs = log.read()
    assert seqs == [1]
    assert (report.end, report.reusable, report.next_position, report.torn_bytes) == (end, True, FILE_BYTES, 0)


def test_an_unstarted_file_with_anything_in_it_is_left_alone(log: Log) -> None:
    log.add()
    log.save()
    (log.directory / f"{FILE_BYTES:020d}.log").write_bytes(bytes(4000) + b"x" + bytes(FILE_BYTES - 4001))
    report, _ = log.read()
    assert (report.reusable, report.next_position, report.torn_bytes) == (False, 2 * FILE_BYTES, 4001)


@pytest.mark.parametrize("content", [b"", b"garbage", bytes(range(256)) * 40])
def test_garbage_where_a_file_should_be_is_a_torn_tail(log: Log, content: bytes) -> None:
    log.add()
    log.save()
    (log.directory / f"{FILE_BYTES:020d}.log").write_bytes(content)
    report, seqs = log.read()
    assert (seqs, report.damaged, report.reusable) == ([1], [], False)
    assert report.next_position >= FILE_BYTES


def test_other_names_are_ignored(log: Log) -> None:
    log.add()
    log.save()
    (log.directory / f"{FILE_BYTES:020d}.preparing").write_bytes(b"half")
    (log.directory / "notes.log").write_bytes(b"mine")
    assert len(log.read()[0].files) == 1


def test_an_unknown_type_refuses_the_log(log: Log) -> None:
    log.add(kind=77, body=b"")
    with pytest.raises(log_walk.LogFormatError, match=r"byte 128: frame of unknown type 77"):
        log.read()


def test_an_unknown_type_with_bit_7_is_shown_and_harms_nobody(log: Log) -> None:
    log.add(kind=0x80 | 77, body=b"from the future")
    log.add()
    report, frames = log_walk.read(log.save())
    assert [header(raw)["type"] for raw in frames] == [START, 0x80 | 77, CEILING]
    assert report.damaged == []


def test_a_newer_format_refuses_the_log(log: Log) -> None:
    log.open(version=2)
    with pytest.raises(log_walk.LogFormatError, match="log format version 2, this program knows 1: a newer version wrote it"):
        log.read()


def test_what_is_no_file_in_the_place_of_one_refuses_the_log(log: Log) -> None:
    log.add()
    folder = log.save()
    (folder / f"{1 << 20:020d}.log").mkdir()
    with pytest.raises(log_walk.LogFormatError, match=rf"{1 << 20:020d}\.log is no file, where one of the log should be: .*nothing has been changed"):
        log_walk.read(folder)


def test_frames_below_the_wanted_position_are_not_shown(log: Log) -> None:
    log.add()
    second = log.add()
    log.open()
    log.add()
    report, seqs = log.read(from_position=second)
    assert seqs == [2, 3]
    assert report.end == log.at


def test_a_page_that_cannot_be_read_is_damage_and_the_walk_goes_on(log: Log) -> None:
    log.add(body=b"x" * 3000)
    log.add(body=b"y" * 2000)
    readable = log.add(synced=log.at)

    class BadPage(FaultyFiles):
        def before(self, kind: str, *args) -> int:
            return -errno.EIO if kind == "pread" and args[1] < 4096 else 0

    report, frames = log_walk.read(log.save(), files=BadPage(log.directory))
    assert [seq for seq, _, _ in payloads(frames)] == [3]
    assert [(damage.position, damage.bytes) for damage in report.damaged] == [(0, readable)]


def test_a_flipped_bit_is_never_a_wrong_frame_and_never_silent(log: Log) -> None:
    """At every byte of the data: whatever is shown was written, and what is missing is reported as damage or as torn."""
    log.add()
    log.add(synced=log.at)
    log.open()
    log.add(synced=log.at)
    log.add(MARK, b"", synced=log.at)
    whole = payloads(log_walk.read(log.save())[1])
    ends = {0: 128 + 2 * 192, FILE_BYTES: FILE_BYTES + 128 + 192 + 64}
    for first, end in ends.items():
        for position in range(first, end):
            log.flip(position, 1 << position % 8)
            report, frames = log_walk.read(log.save())
            shown = payloads(frames)
            assert [entry for entry in shown if entry not in whole] == []
            assert report.damaged or report.torn_bytes
            log.flip(position, 1 << position % 8)
    assert payloads(log_walk.read(log.save())[1]) == whole


def test_a_flipped_bit_in_the_unused_rest_is_reported_as_torn(log: Log) -> None:
    log.add()
    log.flip(log.at + 1000)
    report, seqs = log.read()
    assert (seqs, report.torn_bytes) == ([1], 1001)


def test_damaged_ranges_are_set_aside_once(log: Log, tmp_path: Path) -> None:
    bad = log.add()
    log.add(synced=log.at)
    log.flip(bad + 80)
    report, _ = log.read()
    (copy,) = log_walk.quarantine(report, tmp_path / "quarantine")
    assert Path(copy).name == f"00-{bad:020d}.bin"
    assert Path(copy).read_bytes() == bytes(log.content[0][bad : bad + 192])
    assert log_walk.quarantine(report, tmp_path / "quarantine") == []


def test_a_walk_changes_nothing(log: Log) -> None:
    log.add()
    log.flip(log.add() + 3)
    before = {path.name: path.read_bytes() for path in log.save().iterdir()}
    first, second = log_walk.read(log.directory), log_walk.read(log.directory)
    assert repr(first[0]) == repr(second[0]) and first[1] == second[1]
    assert {path.name: path.read_bytes() for path in log.directory.iterdir()} == before
