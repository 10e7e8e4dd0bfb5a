"""The scanner's syntax: RFC 8259 and UTF-8 as the standard library reads them, on all paths, never a byte past the end."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bodies.syntax import INVALID, VALID
from fakes.guarded import Guarded
from oracle import json_oracle
from topicsd._native import scan

GUARDED = Guarded()
PATHS = {"widest": 0, "portable": 1, "narrow": 2}


@pytest.fixture(params=["widest", "portable", "narrow"], autouse=True)
def path(request: pytest.FixtureRequest) -> Iterator[None]:
    before = scan.use_path(PATHS[request.param])
    yield
    scan.use_path(before)


def wrong_at(body: bytes, depth_max: int = 128) -> int | None:
    """The offset of the first wrong byte, or None; on guarded memory."""
    try:
        scan.validate(GUARDED.lay(body), depth_max)
    except scan.BadRequest as refused:
        assert refused.code == "invalid_request" and list(refused.detail) == ["offset"]
        return int(refused.detail["offset"])
    return None


def on_all_paths(body: bytes, depth_max: int = 128) -> int | None:
    found = {}
    for name, number in PATHS.items():
        before = scan.use_path(number)
        found[name] = wrong_at(body, depth_max)
        scan.use_path(before)
    assert len(set(found.values())) == 1, found
    return found["portable"]


@pytest.mark.parametrize("body", VALID, ids=lambda body: repr(body[:40]))
def test_valid_json_is_taken(body: bytes) -> None:
    assert json_oracle.is_valid(body)
    assert wrong_at(body) is None


@pytest.mark.parametrize(("body", "offset"), INVALID, ids=lambda value: repr(value)[:50])
def test_invalid_json_is_refused_at_its_first_wrong_byte(body: bytes, offset: int) -> None:
    assert not json_oracle.is_valid(body)
    assert wrong_at(body) == offset


@pytest.mark.parametrize("body", [body for body in VALID if body.strip()[-1:] in b'"]}'], ids=lambda body: repr(body[:40]))
def test_a_text_cut_anywhere_is_refused_where_it_breaks_off(body: bytes) -> None:
    for cut in range(len(body.rstrip())):
        assert wrong_at(body[:cut]) == cut


def test_a_string_ends_anywhere_in_a_block() -> None:
    for before in range(40):
        for inside in range(40):
            body = b" " * before + b'"' + b"a" * inside + b'"'
            assert wrong_at(body) is None
            assert wrong_at(body[:-1]) == len(body) - 1
            assert wrong_at(body[:-1] + b'\x1f"') == len(body) - 1
            assert wrong_at(body[:-1] + "é".encode() + b'\\n"') is None


def test_each_byte_inside_a_string_is_judged_as_the_oracle_does() -> None:
    for byte in range(256):
        for filler in (b"", b"x" * 20):
            body = b'"' + filler + bytes([byte]) + filler + b'"'
            assert (wrong_at(body) is None) == json_oracle.is_valid(body), body


def test_each_two_byte_sequence_of_utf_8_is_judged_as_python_does() -> None:
    for lead in range(0x80, 0x100):
        for tail in (b"\x7f", b"\x80", b"\x8f", b"\x90", b"\x9f", b"\xa0", b"\xbf", b"\xc0"):
            for rest in (b"", b"\x80", b"\xbf\xbf", b"\x80\x7f"):
                body = b'"' + bytes([lead]) + tail + rest + b'"'
                assert (wrong_at(body) is None) == json_oracle.is_valid(body), body


def test_the_depth_is_counted_from_the_root() -> None:
    for depth_max in (0, 1, 2, 3, 64, 127, 128):
        assert wrong_at(b"[" * depth_max + b"1" + b"]" * depth_max, depth_max) is None
        assert wrong_at(b"[" * (depth_max + 1) + b"]" * (depth_max + 1), depth_max) == depth_max
    assert wrong_at(b"[" * 129 + b"]" * 129, 1000) == 128, "128 is the most whatever is asked for"


def test_kinds_of_containers_are_told_apart_at_every_depth() -> None:
    opening = [b"[", b'{"a":']
    for shape in (0x5555, 0x3333, 0xFF0F):
        kinds = [shape >> (level % 16) & 1 for level in range(128)]
        body = b"".join(opening[kind] for kind in kinds) + b"1" + b"".join(b"]}"[kind : kind + 1] for kind in reversed(kinds))
        assert wrong_at(body) is None
        for level in range(128):
            end = len(body) - 128 + level
            other = b"}" if body[end : end + 1] == b"]" else b"]"
            assert wrong_at(body[:end] + other + body[end + 1 :]) == end


def test_an_object_may_not_repeat_a_member_of_its_root() -> None:
    scan.check_object(b'{"a":{"x":1,"x":2},"b":[]}')
    for body, field in ((b'{"a":1,"\\u0061":2}', "a"), (b"{%s}" % b",".join(b'"%d":0' % (n % 999) for n in range(1000)), "0")):
        with pytest.raises(scan.BadRequest, match="twice") as refused:
            scan.check_object(body)
        assert refused.value.detail == {"field": field}
    for body in (b"[]", b"1", b'"a"'):
        with pytest.raises(scan.BadRequest, match="must be an object"):
            scan.check_object(body)
    scan.check_object(b"{%s}" % b",".join(b'"%d":0' % n for n in range(1000)))


def test_bytes_and_views_of_any_kind_are_scanned() -> None:
    for body in (b"[1]", bytearray(b"[1]"), memoryview(b"x[1]x")[1:4]):
        scan.validate(body)


texts = st.text(st.characters(codec="utf-8"), max_size=40) | st.text('"\\/bfnrtu\x00\x1fé漢😀', max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=30,
)


@given(values, st.booleans(), st.sampled_from([None, 0, 1, 7]))
def test_whatever_the_standard_library_writes_is_taken(value: object, ascii_only: bool, indent: int | None) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()

    assert on_all_paths(body) is None


@given(values, st.booleans(), st.data())
def test_a_text_changed_anywhere_is_judged_as_the_oracle_does(value: object, ascii_only: bool, data: st.DataObject) -> None:
    body = bytearray(json.dumps(value, ensure_ascii=ascii_only).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        what = data.draw(
            st.binary(max_size=3) | st.sampled_from([b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b" ", b"\n", b"0", b"-", b"e", b".", b"u"])
        )
        body[at : at + data.draw(st.integers(0, 2))] = what

    offset = on_all_paths(bytes(body))

    assert (offset is None) == json_oracle.is_valid(bytes(body))
    if offset is not None:
        assert on_all_paths(bytes(body[:offset])) in (None, offset), "the text before the offset is the beginning of a valid one"


@given(st.binary(max_size=60))
def test_any_bytes_are_judged_as_the_oracle_does(body: bytes) -> None:
    assert (on_all_paths(body) is None) == json_oracle.is_valid(body)
    assert (on_all_paths(b'"' + body + b'"') is None) == json_oracle.is_valid(b'"' + body + b'"')


@given(texts | st.text(max_size=20))
def test_canonical_text_is_that_of_the_oracle_and_reads_back(text: str) -> None:
    stored = scan.canonical(text)

    assert stored == json_oracle.canonical(text)
    assert json.loads(b'"' + stored + b'"') == text


@pytest.mark.parametrize("byte", [0x00, 0x1F, 0x20, 0x21, 0x22, 0x5C, 0x7F, 0x80, 0xC3, 0xFF])
def test_each_place_of_a_long_string_is_looked_at(byte):
    for size in (31, 64, 79, 200):
        for place in range(size):
            text = bytearray(b"a" * size)
            text[place] = byte
            body = b'["' + bytes(text) + b'"]'
            assert (on_all_paths(body) is None) == json_oracle.is_valid(body), (size, place)
