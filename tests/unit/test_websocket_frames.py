"""WebSocket frames against a slow reader of the RFC, however they are cut (RFC 6455 section 5)."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.websocket_oracle import BINARY, CLOSE, PING, TEXT, client_frame, read
from topicsd._native.websocket import Parser, frame, text_frame

MAX = 300


def in_pieces(stream, cuts, **options):
    """Feed a stream cut at these places; return the events and the close code of the failure."""
    parser = Parser(MAX, **options)
    events = []
    places = [0, *sorted({cut % (len(stream) + 1) for cut in cuts}), len(stream)]
    for start, end in itertools.pairwise(places):
        events += parser.feed(stream[start:end])
    return events, parser.failure and parser.failure[0]


payloads = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=60).map(str.encode),
    st.integers(0, 400).map(lambda size: b"x" * size),
    st.sampled_from([b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe0\x9f\xbf", b"\xc0\x80", b"\xf0\x8f\xbf\xbf", b"\xff", "é€😀".encode()[:-1]]),
)
codes = st.one_of(st.integers(0, 5100), st.integers(995, 1020)).map(lambda code: code.to_bytes(2, "big"))
frames = st.one_of(
    st.builds(client_frame, st.sampled_from([0, TEXT, TEXT, BINARY, PING, 10]), payloads, fin=st.booleans(), mask=st.binary(min_size=4, max_size=4)),
    st.builds(client_frame, st.integers(0, 15), payloads, fin=st.booleans(), reserved=st.integers(0, 7)),
    st.builds(client_frame, st.just(CLOSE), st.builds(bytes.__add__, codes, st.text(max_size=10).map(str.encode))),
    st.binary(min_size=1, max_size=20),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(frames, max_size=6).map(b"".join), st.lists(st.integers(0, 2000), max_size=8), st.booleans(), st.booleans())
def test_any_bytes_in_any_pieces_mean_what_the_rfc_says(stream, cuts, binary, deflate):
    assert in_pieces(stream, cuts, binary=binary, deflate=deflate) == read(stream, MAX, binary, deflate)


def test_a_stream_byte_by_byte_is_the_same_stream():
    stream = b"".join(
        [
            client_frame(TEXT, "zwei é".encode()),
            client_frame(TEXT, "€".encode()[:1], fin=False),
            client_frame(PING, b"in between"),
            client_frame(0, "€".encode()[1:], fin=False),
            client_frame(0, b"x" * 200),
            client_frame(TEXT, b""),
            client_frame(CLOSE, b"\x03\xe8bye"),
            client_frame(TEXT, b"never read"),
        ]
    )
    wanted = [
        (TEXT, "zwei é".encode(), False),
        (PING, b"in between", False),
        (TEXT, "€".encode() + b"x" * 200, False),
        (TEXT, b"", False),
        (CLOSE, b"\x03\xe8bye", False),
    ]
    assert in_pieces(stream, range(len(stream))) == (wanted, None)
    assert in_pieces(stream, []) == (wanted, None)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 125, 126, 127, 65535, 65536, 70001])
def test_payloads_of_every_length_are_unmasked_at_every_offset(size):
    payload = random.Random(size).randbytes(size)
    stream = client_frame(BINARY, payload)
    for cut in (1, 3, 7, 11, 15, size // 2):
        parser = Parser(1 << 20, binary=True)
        assert parser.feed(stream[:cut]) + parser.feed(stream[cut:]) == [(BINARY, payload, False)], cut
        assert parser.held == 0


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536])
def test_a_rendered_frame_has_the_shortest_length_and_no_mask(size):
    told = frame(TEXT, b"x" * size)
    head = {0: b"\x81\x00", 1: b"\x81\x01", 125: b"\x81\x7d", 126: b"\x81\x7e\x00\x7e", 65535: b"\x81\x7e\xff\xff"}
    assert told == head.get(size, b"\x81\x7f\x00\x00\x00\x00\x00\x01\x00\x00") + b"x" * size
    assert text_frame(b"x" * (size // 2), b"x" * (size - size // 2)) == told
    assert frame(TEXT, b"x", compressed=True)[0] == 0xC1


def test_a_text_fails_at_its_first_bad_byte_not_at_its_end():
    parser = Parser(1 << 20)
    stream = client_frame(TEXT, b"good \xff" + b"x" * 10_000)
    parser.feed(stream[:14])
    assert parser.failure == (1007, "a text that is no UTF-8")
    assert parser.feed(stream[14:]) == []


def test_a_message_too_large_is_refused_by_its_head_and_nothing_of_it_is_kept():
    parser = Parser(100)
    parser.feed(client_frame(TEXT, b"x" * 60, fin=False))
    assert parser.held == 60
    parser.feed(client_frame(0, b"x" * 41)[:8])
    assert parser.failure is not None and parser.failure[0] == 1009
    assert parser.held == 0


def test_an_exact_message_is_taken():
    parser = Parser(100)
    assert parser.feed(client_frame(TEXT, b"x" * 60, fin=False) + client_frame(0, b"x" * 40)) == [(TEXT, b"x" * 100, False)]
