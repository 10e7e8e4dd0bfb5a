"""Bodies of diffs and deletes (A §3, §5; CLARIFICATIONS Diff, Deletes)."""

from __future__ import annotations

import pytest

from bodies.requests import DELETES, DIFFS, REFUSED_DELETES, REFUSED_DIFFS
from fakes.guarded import Guarded
from topicsd._native import scan

GUARDED = Guarded()
DEFAULTS: dict[str, object] = {
    "from_seq": 0,
    "limit": 0,
    "wait_ms": 0,
    "max_batch_bytes": 0,
    "include_tags": False,
    "include_meta": True,
    "include_data": True,
    "epoch": None,
    "from_ts": None,
    "nodes": [],
    "match_kind": 0,
    "match": None,
}


@pytest.mark.parametrize(("body", "given"), DIFFS, ids=lambda value: repr(value)[:60])
def test_a_diff_takes_what_is_given_and_defaults_for_the_rest(body: bytes, given: dict[str, object]) -> None:
    diff = scan.parse_diff(GUARDED.lay(body))

    assert {name: getattr(diff, name) for name in DEFAULTS} == DEFAULTS | given


@pytest.mark.parametrize(("body", "field"), REFUSED_DIFFS, ids=lambda value: repr(value)[:60])
def test_a_bad_diff_is_refused_with_its_field(body: bytes, field: str) -> None:
    with pytest.raises(scan.BadRequest) as refused:
        scan.parse_diff(GUARDED.lay(body))

    assert (refused.value.code, refused.value.detail["field"]) == ("invalid_request", field)


@pytest.mark.parametrize(("body", "before_seq", "kind", "match"), DELETES, ids=lambda value: repr(value)[:60])
def test_a_delete_has_a_seq_or_a_match_or_both(body: bytes, before_seq: int | None, kind: int, match: bytes | None) -> None:
    delete = scan.parse_delete(GUARDED.lay(body))

    assert (delete.before_seq, delete.match_kind, delete.match) == (before_seq, kind, match)


@pytest.mark.parametrize(("body", "field"), REFUSED_DELETES, ids=lambda value: repr(value)[:60])
def test_a_bad_delete_is_refused_with_its_field(body: bytes, field: str) -> None:
    with pytest.raises(scan.BadRequest) as refused:
        scan.parse_delete(GUARDED.lay(body))

    assert (refused.value.code, refused.value.detail["field"]) == ("invalid_request", field)


@pytest.mark.parametrize("body", [body for body, *_ in (*DIFFS, *REFUSED_DIFFS) if 2 < len(body) < 500], ids=lambda body: repr(body[:60]))
def test_a_body_cut_anywhere_is_refused_where_it_breaks_off(body: bytes) -> None:
    for cut in range(1, len(body.rstrip())):
        with pytest.raises(scan.BadRequest) as refused:
            scan.parse_diff(GUARDED.lay(body[:cut]))
        assert refused.value.detail == {"offset": cut}


def test_an_empty_body_is_a_diff_but_no_delete() -> None:
    scan.parse_diff(b"")
    with pytest.raises(scan.BadRequest) as refused:
        scan.parse_delete(b"")
    assert refused.value.detail == {"offset": 0}


def test_a_json_error_wins_over_a_field_error_before_it() -> None:
    for parse in (scan.parse_diff, scan.parse_delete):
        with pytest.raises(scan.BadRequest) as refused:
            parse(b'{"match":7,"before_seq":"x","from_seq":"x",}')
        assert refused.value.detail == {"offset": 43}


def test_nodes_and_matches_are_stored_as_records_store_them() -> None:
    diff = scan.parse_diff('{"node":["\\u00e9\\/","\\u000a","é/"],"match":["tag","Glob","\\ud83d\\ude00*"]}'.encode())

    assert diff.nodes == ["é/".encode(), b"\\n", "é/".encode()]
    assert diff.match == "😀".encode()


def test_a_long_poll_may_move_its_cursor() -> None:
    diff = scan.parse_diff(b'{"from_seq":5}')
    diff.from_seq = 9
    assert diff.from_seq == 9
