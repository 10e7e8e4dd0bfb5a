"""Watch sessions in shared memory: places, leases, cursors, what the dead leave behind (A §7.1, §7.4, §11)."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from topicsd._native.regions import Shared
from topicsd._native.sessions import MEMBER, PATTERN, Session, Sessions

ROWS = [(b"a", 7, 10, 0), (b"b", 8, 0, 0)]


@pytest.fixture
def shared() -> Shared:
    return Shared.create(topics_max=16, ring_slots=4)


@pytest.fixture
def sessions(shared: Shared) -> Iterator[Sessions]:
    for _ in range(3):
        shared.assign_ring()
    yield Sessions.create(shared, 4)


def make(sessions: Sessions, rows: list[tuple[bytes, int, int, int]] | None = None, now_ms: int = 1_000) -> str:
    wid = sessions.make(0, now_ms, -1, None, b"{}", ROWS if rows is None else rows)
    assert wid is not None
    return wid


def opened(sessions: Sessions, wid: str, ring: int = 0, now_ms: int = 1_000) -> Session:
    session = sessions.open(wid, ring, now_ms)
    assert session is not None
    return session


def test_a_wid_has_128_random_bits_and_nothing_near_it_is_one(sessions: Sessions) -> None:
    wid = make(sessions)
    assert sessions.find(wid) is not None
    raw = base64.urlsafe_b64decode(wid[4:] + "==")
    assert len(raw) == 19
    for place in range(16):
        other = bytearray(raw)
        other[place] ^= 1
        assert sessions.find("wid_" + base64.urlsafe_b64encode(bytes(other)).rstrip(b"=").decode()) is None
    for text in ("", "wid_", wid[:-1], wid + "A", "x" * 30, "wid_" + "\xff" * 26, wid.replace("wid_", "WID_")):
        assert sessions.find(text) is None
    assert len({make(sessions) for _ in range(3)}) == 3


def test_there_are_as_many_sessions_as_allowed_and_a_swept_one_makes_room(sessions: Sessions) -> None:
    wids = [make(sessions) for _ in range(4)]
    assert sessions.make(0, 1_000, -1, None, b"", []) is None
    assert sessions.live == 4
    held = opened(sessions, wids[0])
    assert sessions.sweep(1_000 + 300_001, 300_000) == 3
    assert sessions.find(wids[0]) is not None, "one with a stream stays"
    assert sessions.find(wids[1]) is None
    held.close(400_000)
    assert sessions.sweep(700_000, 300_000) == 0
    assert sessions.sweep(700_001, 300_000) == 1


def test_a_session_that_is_used_again_keeps_nothing_of_the_last(sessions: Sessions) -> None:
    for _ in range(3):
        make(sessions)
    wid = sessions.make(0, 0, 5, b"d" * 32, b"x" * 9000, [(b"n" * 200, 1, 1, 0)] * 50)
    assert wid is not None
    sessions.sweep(10**9, 1)
    for _ in range(4):
        again = make(sessions, [(b"z", 1, 0, 0)])
        session = opened(sessions, again)
        assert (session.rows(), session.options, session.key, session.large, session.moves) == ([(b"z", 1, 0, 0)], b"{}", -1, False, 0)


def test_opening_takes_the_lease_from_whoever_has_it(sessions: Sessions) -> None:
    wid = make(sessions)
    first = opened(sessions, wid, 0)
    second = opened(sessions, wid, 1)
    assert (first.mine, second.mine) == (False, True)
    assert sessions.poked(0)
    assert not sessions.poked(0)
    first.close(2_000)
    assert second.mine, "who lost the lease cannot give it back"
    assert sessions.is_open(sessions.find(wid) or 0)
    second.close(2_000)
    assert not sessions.is_open(sessions.find(wid) or 0)


def test_the_streams_of_a_dead_worker_end_and_their_counts_go(sessions: Sessions) -> None:
    wid = make(sessions)
    opened(sessions, wid, 2)
    assert sessions.enter(2, 3, 0, 0) == 0
    assert sessions.streams == 1
    sessions.bury(2, 5_000)
    assert sessions.streams == 0
    assert not sessions.is_open(sessions.find(wid) or 0)
    assert sessions.sweep(305_000, 300_000) == 0, "its time begins with the death"
    assert opened(sessions, wid, 1).rows() == ROWS


def test_streams_are_counted_over_all_workers_and_by_key(sessions: Sessions) -> None:
    assert [sessions.enter(ring, 0, 3, 2) for ring in (0, 1)] == [0, 0]
    assert sessions.enter(2, 0, 3, 2) == 2, "of this key"
    assert sessions.enter(2, 1, 3, 2) == 0
    assert sessions.enter(1, 2, 3, 2) == 1, "of all"
    sessions.leave(0, 0)
    assert sessions.enter(1, 2, 3, 2) == 0
    assert sessions.enter(1, -1, 0, 0) == 0, "no limits"


def test_a_map_takes_cursors_back_and_never_forward(sessions: Sessions) -> None:
    session = opened(sessions, make(sessions))
    session.rewind({"a": 4, "b": 99, "other": 1}, {}, False)
    assert session.rows() == [(b"a", 7, 4, 0), (b"b", 8, 0, 0)]


def test_an_older_epoch_is_further_back_and_a_newer_one_is_ignored(sessions: Sessions) -> None:
    session = opened(sessions, make(sessions))
    session.rewind({"a": 500, "b": 0}, {"a": 3, "b": 9}, True)
    assert session.rows() == [(b"a", 3, 500, 0), (b"b", 8, 0, 0)]


def test_a_topic_that_matched_after_an_id_begins_again(sessions: Sessions) -> None:
    session = opened(sessions, make(sessions, [(b"p", 0, 0, PATTERN), (b"pa", 1, 5, 0), (b"pb", 2, 0, MEMBER)]))
    session.add(b"pc", 3, 0, MEMBER)
    session.rewind({"pa": 2}, {"pa": 1}, True)
    assert [(name, seq) for name, _epoch, seq, _flags in session.rows()] == [(b"p", 0), (b"pa", 2), (b"pb", 0), (b"pc", 0)]
