"""Records of the log are held against their frame's checksum as they are read, and what was verified is believed for a second."""

from __future__ import annotations

import random
import struct

import pytest

from topicsd._native import frame
from topicsd._native.log_verify import LogFile

S = 1_000_000_000
NOW = 100 * S
FIRST = 16 << 20
SHARD = 3
Place = tuple[int, int, int]  # of a record: where it begins, and where its frame begins and ends


def laid(counts: list[int], data_bytes: int = 20, key: bytes | None = None) -> tuple[bytearray, list[Place]]:
    """A file with a frame of so many records for each count, zeroes behind them."""
    content, places = bytearray(frame.build(1, bytes(64), shard=SHARD, position=FIRST)), []
    for number, count in enumerate(counts):
        records = [frame.Record(b'"%d-%d%s"' % (number, n, b"x" * data_bytes), None, b"tag") for n in range(count)]
        begin = FIRST + len(content)
        raw = frame.build_append(records, shard=SHARD, position=begin, topic_id=number + 1, base_seq=1, key=key)
        at = begin + len(raw) - sum(len(frame.entry(record)) for record in records)
        for record in records:
            places.append((at, begin, begin + len(raw)))
            at += len(frame.entry(record))
        content += raw
    return content + bytes(200_000 - len(content) % 4096), places


def opened(content: bytearray) -> LogFile:
    return LogFile(content, FIRST, SHARD)


@pytest.mark.parametrize("key", [None, b"k" * 40])
@pytest.mark.parametrize("counts", [[1], [1] * 500, [3, 1, 50, 2], [2000], [700, 700, 1, 700]])
def test_every_record_is_found_sound_in_any_order_and_so_is_what_is_said_to_be(counts: list[int], key: bytes | None) -> None:
    content, places = laid(counts, key=key)
    file = opened(content)
    chosen = places[:]
    random.Random(1).shuffle(chosen)
    for at, _, frame_end in chosen + places:
        end = file.verified(at, NOW)
        assert end is not None and at < end
        assert end <= frame_end or all(file.verified(other, NOW) for other, _, _ in places if at <= other < end)


@pytest.mark.parametrize("counts", [[1, 1, 1], [3, 2]])
def test_a_bit_flipped_at_each_byte_costs_the_records_of_its_frame_and_no_other(counts: list[int]) -> None:
    content, places = laid(counts)
    used = places[-1][2] - FIRST
    for offset in range(128, used):
        content[offset] ^= 1 << offset % 8
        file = opened(content)
        for at, begin, end in places:
            assert (file.verified(at, NOW) is None) == (begin - FIRST <= offset < end - FIRST), (offset, at)
        content[offset] ^= 1 << offset % 8


def test_what_was_verified_is_believed_for_a_second_and_what_was_not_never() -> None:
    content, places = laid([3, 3, 3])
    file = opened(content)
    assert file.verified(places[0][0], NOW) is not None
    content[places[0][2] - FIRST - 9] ^= 1  # of the first frame
    content[places[3][2] - FIRST - 9] ^= 1  # of the second one
    for at, _, _ in places[:3]:
        assert file.verified(at, NOW + S - 1) is not None
        assert file.verified(at, NOW + S) is None
    for at, _, _ in places[3:6]:
        assert file.verified(at, NOW) is None
    content[places[3][2] - FIRST - 9] ^= 1
    assert file.verified(places[3][0], NOW) is not None, "what is not good is remembered by nobody"


def test_what_is_verified_later_is_believed_no_longer_than_what_stands_beside_it() -> None:
    content, places = laid([2, 2])
    file = opened(content)
    assert file.verified(places[0][0], NOW) and file.verified(places[2][0], NOW + S - 1)
    content[places[2][0] - FIRST + 20] ^= 1
    assert file.verified(places[2][0], NOW + S) is None
    assert file.verified(places[0][0], NOW + S) is not None


def test_a_clock_that_stands_before_what_is_believed_believes_nothing() -> None:
    content, places = laid([2])
    file = opened(content)
    assert file.verified(places[0][0], NOW)
    content[places[0][0] - FIRST + 20] ^= 1
    assert file.verified(places[0][0], NOW - 1) is None


def test_frames_that_lie_over_many_chunks_are_believed_from_end_to_end() -> None:
    content, places = laid([3000, 5, 3000], data_bytes=50)
    file = opened(content)
    assert file.verified(places[1500][0], NOW) and file.verified(places[-1][0], NOW) and file.verified(places[3001][0], NOW)
    for offset in range(128, places[-1][2] - FIRST, 97):
        content[offset] ^= 1  # nothing is looked at again
    for at, _, _ in places:
        assert file.verified(at, NOW + 1) is not None
        assert file.verified(at, NOW + S) is None


def test_a_frame_of_another_place_or_shard_and_half_of_one_are_no_frames() -> None:
    content, places = laid([2, 2])
    at, begin, end = places[2]
    assert LogFile(content, FIRST, SHARD + 1).verified(at, NOW) is None
    assert LogFile(content, FIRST + 4096, SHARD).verified(at + 4096, NOW) is None
    assert LogFile(content[: end - FIRST - 8], FIRST, SHARD).verified(at, NOW) is None
    moved = content[:]
    moved[begin - FIRST : end - FIRST] = content[places[0][1] - FIRST : places[0][2] - FIRST]
    assert opened(moved).verified(at, NOW) is None


@pytest.mark.parametrize("offset", [0, 8, 63, 64, 127, 128 + 4])
def test_a_place_where_no_record_can_be_is_not_sound(offset: int) -> None:
    content, _ = laid([2])
    assert opened(content).verified(FIRST + offset, NOW) is None


def test_bytes_that_look_like_a_header_inside_of_a_key_do_not_hide_the_frame() -> None:
    begin = FIRST + 128  # of the frame; its key stands behind its header and 16 bytes
    false = struct.pack("<IIBBHIQQQQQQ", 0x31465054, 64, 2, 0, SHARD, 1, 1, 1, 0, 0, begin + 80, 7)
    content, places = laid([2], key=false)
    assert content[208:212] == b"TPF1"
    assert opened(content).verified(places[1][0], NOW) == places[1][2]
