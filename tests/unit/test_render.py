"""Numbers and the append answer as bytes, against Python's own."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicsd._native.render import append_answer, milliseconds, number

EDGES = [value for power in range(20) for value in (10**power - 1, 10**power, 10**power + 1) if value < 2**64]


@given(st.integers(-(2**63), 2**64 - 1) | st.sampled_from([*EDGES, 2**64 - 1, -(2**63)]))
def test_numbers_are_written_as_python_writes_them(value: int) -> None:
    assert number(value) == str(value).encode()


@given(st.integers(0, 2**62))
def test_microseconds_are_written_as_milliseconds(us: int) -> None:
    assert milliseconds(us) == (b"0.0" if us == 0 else f"{us // 1000}.{us % 1000:03d}".encode())


def test_an_append_answer_has_the_members_of_the_api_in_its_order() -> None:
    answer = append_answer(b"jobs", 480232, 3, 480240, created=True, total_us=620, wal_us=100, fsync_us=390)
    assert answer == (
        b'{"topic":"jobs","first_seq":480232,"last_seq":480234,"seqs":[480232,480233,480234],"head_seq":480240,"count":3,'
        b'"created":true,"deduped":false,"performance":{"server_total_ms":0.620,"wal_append_ms":0.100,"fsync_ms":0.390,"throttle_wait_ms":0.0}}'
    )


def test_an_append_answer_without_seqs_says_whether_a_retry_differed() -> None:
    answer = json.loads(append_answer(b"jobs", 1, 10_000, 10_000, deduped=True, body_differs=True, return_seqs=False))
    assert "seqs" not in answer
    assert (answer["first_seq"], answer["last_seq"], answer["deduped"], answer["body_differs"]) == (1, 10_000, True, True)
    assert answer["performance"]["fsync_ms"] == 0.0


@given(st.integers(1, 2**64 - 20_000), st.integers(1, 300))
def test_every_seq_of_a_batch_is_listed(first: int, count: int) -> None:
    answer = json.loads(append_answer(b"t" * 255, first, count, first + count - 1))
    assert answer["seqs"] == list(range(first, first + count))


def test_a_write_of_nothing_has_no_answer() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        append_answer(b"t", 1, 0, 1)
