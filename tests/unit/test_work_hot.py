"""The native front's reading of queue bodies: what it takes is what JSON says, and what it is not sure of it leaves to Falcon."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicsd import limits
from topicsd._native import work_hot
from topicsd.api.queues import _token

NUMBERS = st.one_of(st.integers(0, 2000), st.integers(0, 10**18 - 1))
LEASE_IDS = st.one_of(
    st.integers(0, 2**64 - 1).map(lambda token: f"lease_{token:x}"), st.sampled_from(["", "lease_", "lease_G", "x", "lease_" + "f" * 17])
)
MEMBERS: dict[str, Any] = {
    "max": NUMBERS,
    "lease_ms": NUMBERS,
    "delay_ms": NUMBERS,
    "seqs": st.lists(NUMBERS, max_size=20),
    "lease_ids": st.lists(LEASE_IDS, max_size=20),
}
BODIES = st.fixed_dictionaries({"node": st.text("abcXYZ019-_ /:", min_size=1, max_size=20)}, optional=MEMBERS)


def understood(body: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in body.items() if name != "lease_ids"}
    shown["node"] = body["node"].encode()
    return shown | ({"tokens": [_token(each) for each in body["lease_ids"]]} if "lease_ids" in body else {})


@given(BODIES, st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\r\n ")]), st.sampled_from(["", " ", "\n\n"]))
def test_a_plain_body_is_read_as_it_stands(body: dict[str, Any], separators: tuple[str, str], around: str) -> None:
    text = around + json.dumps(body, separators=separators) + around
    assert work_hot.scan(text.encode()) == understood(body)


@given(BODIES, st.integers(0, 200), st.binary(max_size=4), st.integers(0, 3))
def test_a_body_that_was_tampered_with_is_read_as_json_reads_it_or_left_to_falcon(body: dict[str, Any], at: int, put: bytes, cut: int) -> None:
    raw = json.dumps(body).encode()
    at %= len(raw) + 1
    raw = raw[:at] + put + raw[at + cut :]
    found = work_hot.scan(raw)
    if found is None:
        return

    def strict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({name for name, _ in pairs}) == len(pairs)
        return dict(pairs)

    assert found == understood(json.loads(raw, object_pairs_hook=strict))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b"[]", b'{"node":""}', b'{"node":"w"', b'{"node":"w"}x', b'{"node":"w",}', b'{"node":"w","max":-1}',
        b'{"node":"w","max":1.0}', b'{"node":"w","max":1e3}', b'{"node":"w","max":01}', b'{"node":"w","max":"1"}', b'{"node":"w","max":null}',
        b'{"node":"w","wait_ms":1}', b'{"node":"w","node":"w"}', b'{"node":"\\u0041"}', b'{"node":"\xc3\xa4"}', b'{"node":"w","seqs":[1,]}',
        b'{"node":"w","seqs":[true]}', b'{"node":"w","seqs":["1"]}', b'{"node":"w","lease_ids":[1]}',
        b'{"node":"w","max":1000000000000000000}', b'{"node":"w\n"}', b'{"node":"w","seqs":[' + b"1," * 1000 + b"1]}",
    ],
)  # fmt: skip
def test_what_is_unusual_is_left_to_falcon(body: bytes) -> None:
    assert work_hot.scan(body) is None


def test_the_bounds_are_those_of_falcon() -> None:
    assert work_hot.LIMITS == {"lease_ms_min": limits.LEASE_MS_MIN, "lease_ms_max": limits.LEASE_MS_MAX, "delay_ms_max": limits.DELAY_MS_MAX}
