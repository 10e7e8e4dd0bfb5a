"""Frames and record entries: the diagram of layout.h, sealed, checked, parsed."""

import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from topicsd._native import frame
from topicsd._native.frame import Record

APPEND = 2
optional = st.none() | st.binary(max_size=40)
records = st.lists(
    st.builds(
        Record,
        data=st.binary(min_size=1, max_size=100),
        meta=st.none() | st.binary(min_size=2, max_size=50),
        tag=optional,
        node=optional,
        delay_ms=st.sampled_from([0, 1, 2**40]),
        priority=st.sampled_from([0, -1000, 7]),
    ),
    max_size=6,
)


@given(records, st.none() | st.binary(min_size=1, max_size=30), st.integers(0, 2**64 - 1))
def test_an_append_comes_back_as_it_was_built(rows: list[Record], key: bytes | None, number: int) -> None:
    raw = frame.build_append(rows, key=key, topic_id=number, base_seq=number, ts=number, synced=number, position=number, shard=3)

    parsed = frame.parse(raw + b"what follows")

    assert parsed.records == rows
    assert (parsed.key, parsed.count, parsed.length, len(raw) % 8) == (key, len(rows), len(raw), 0)
    assert {parsed.topic_id, parsed.base_seq, parsed.ts, parsed.synced, parsed.position} == {number}
    assert parsed.records_xxh3 == (0 if key is None else xxhash.xxh3_64_intdigest(frame.append_body(rows)))


def test_the_header_stands_as_layout_h_draws_it() -> None:
    raw = frame.build(1, b"abc", flags=2, shard=3, count=4, topic_id=5, base_seq=6, ts=7, synced=8, position=9)

    assert raw[:4] == b"TPF1"
    assert struct.unpack_from("<IBBHIQQQQQ", raw, 4) == (72, 1, 2, 3, 4, 5, 6, 7, 8, 9)
    assert raw[64:] == b"abc\0\0\0\0\0"


def test_the_checksum_is_the_header_s_hash_seeded_with_the_body_s() -> None:
    raw = frame.build(APPEND, b"x" * 1000, ts=17)

    assert struct.unpack_from("<Q", raw, 56)[0] == xxhash.xxh3_64_intdigest(raw[:56], xxhash.xxh3_64_intdigest(raw[64:]))


@given(records, st.data())
def test_any_flipped_bit_is_found(rows: list[Record], data: st.DataObject) -> None:
    raw = bytearray(frame.build_append(rows, key=b"k", ts=1))
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << bit % 8

    assert frame.check(raw) != frame.VALID


def test_a_frame_cut_anywhere_is_short_and_never_read_past_its_end() -> None:
    raw = frame.build_append([Record(b"1", tag=b"t")], ts=1)

    assert {frame.check(raw[:length]) for length in range(1, len(raw))} == {frame.SHORT}


@pytest.mark.parametrize("length", [0, 1, 63, 64, 4096])
def test_zeroes_mean_never_written(length: int) -> None:
    assert frame.check(bytes(length)) == frame.NONE


def test_other_bytes_have_no_magic_and_a_crooked_length_is_refused() -> None:
    raw = frame.build(1, b"12345678")

    assert frame.check(b"junk" * 16) == frame.BAD_MAGIC
    assert frame.check(raw[:4] + struct.pack("<I", 68) + raw[8:]) == frame.BAD_LENGTH
    assert frame.check(raw[:4] + struct.pack("<I", 56) + raw[8:]) == frame.BAD_LENGTH


def test_entries_that_do_not_fill_the_body_are_refused_under_a_good_checksum() -> None:
    body = frame.append_body([Record(b"1"), Record(b"2")])

    for count in (1, 3):
        with pytest.raises(frame.FrameError, match="fill the body"):
            frame.parse(frame.build(APPEND, body, count=count))
    with pytest.raises(frame.FrameError, match="fill the body"):
        frame.parse(frame.build(APPEND, b"", flags=1, count=0))


def test_the_empty_string_as_tag_or_node_is_not_absence() -> None:
    (empty, absent) = frame.parse(frame.build_append([Record(b"1", tag=b"", node=b""), Record(b"1")])).records

    assert (empty.tag, empty.node) == (b"", b"")
    assert (absent.tag, absent.node) == (None, None)


def test_a_walk_stops_at_zeroes() -> None:
    raw = b"".join(frame.build_append([Record(b"%d" % n)], base_seq=n) for n in range(3))

    assert [one.base_seq for one in frame.walk(raw + bytes(200))] == [0, 1, 2]


def test_a_hash_is_the_same_whatever_the_machine_has_for_it():
    raw = bytes(range(256)) * 17
    for size in (0, 1, 240, 241, 511, 512, 513, 1023, 1024, 1025, 4096, 4321):
        for at in (0, 1, 7):
            assert frame.hash64(raw[at : at + size]) == xxhash.xxh3_64_intdigest(raw[at : at + size])
