"""A ring slot: batches to the writer, answers back, topics that moved; full rings, deaths, generations."""

import os
import select
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topicsd._native.regions import Shared
from topicsd._native.ring_end import RingEnd

RING_BYTES = 8 << 20
SPILL_ABOVE = RING_BYTES // 4
CALL = 2
UNKNOWN = 9


@pytest.fixture
def shared() -> Shared:
    shared = Shared.create(topics_max=100, ring_slots=2)
    shared.set("generation", 1)
    return shared


@pytest.fixture
def ring(shared) -> RingEnd:
    return adopted(shared)


def adopted(shared: Shared) -> RingEnd:
    number = shared.assign_ring()
    assert number is not None
    ring = RingEnd(shared, number)
    ring.adopt()
    return ring


def drained(ring: RingEnd) -> list[bytes]:
    """Read, answer and release all that is committed, as a writer would."""
    cursor, payloads = ring.head, []
    while entry := ring.peek_at(cursor):
        token, _, _, payload, stale = entry
        assert not stale
        payloads.append(payload)
        ring.push(token)
        cursor += 1
    ring.release(cursor)
    return payloads


def answers(ring: RingEnd) -> list[tuple[int, int, int, bytes]]:
    return list(iter(ring.receive, None))


def test_a_committed_batch_reaches_the_writer_and_its_answer_the_worker(ring):
    token = ring.send(b"batch", kind=1, slot=42)

    assert ring.peek_at(ring.head) == (token, 1, 42, b"batch", False)
    ring.push(token, status=0, first_seq=17, payload=b"{}")
    ring.release(ring.head + 1)

    assert ring.receive() == (token, 0, 17, b"{}")
    assert ring.receive() is None
    assert ring.peek_at(ring.head) is None


def test_a_claim_that_is_not_committed_does_not_exist(ring):
    view = ring.claim(100)
    view[:] = b"x" * 100

    assert ring.peek_at(ring.head) is None
    ring.abandon()
    ring.send(b"next")
    assert drained(ring) == [b"next"]


def test_the_writer_may_look_ahead_before_it_releases_anything(ring):
    for n in range(100):
        ring.send(b"%d" % n)

    assert [ring.peek_at(ring.head + n)[3] for n in range(100)] == [b"%d" % n for n in range(100)]
    ring.release(ring.head + 100)
    assert ring.head == ring.tail


def test_payload_is_contiguous_where_the_ring_wraps(ring):
    size = SPILL_ABOVE - 8  # never divides the ring
    for turn in range(20):
        payload = bytes([turn]) * size
        assert ring.send(payload) is not None
        assert drained(ring) == [payload]
        assert len(answers(ring)) == 1


def test_a_full_ring_refuses_until_the_writer_releases(ring):
    tokens = []
    while (token := ring.send(b"x" * SPILL_ABOVE)) is not None:
        tokens.append(token)

    assert len(tokens) == 4
    assert ring.send(b"y") is None
    ring.push(tokens[0])
    ring.release(ring.head + 1)
    assert ring.send(b"y") is not None


def test_answers_have_room_before_a_batch_is_taken(ring):
    sent = 0
    while ring.send(b"") is not None:
        sent += 1
    assert sent == 4095

    assert len(drained(ring)) == sent  # released, but no answer has been taken
    assert ring.send(b"") is None
    assert len(answers(ring)) == sent
    assert ring.send(b"") is not None


def test_calls_have_room_for_their_payloads_before_they_are_taken(ring):
    tokens = []
    while (token := ring.send(b"{}", kind=CALL)) is not None:
        tokens.append(token)
    assert len(tokens) == 512
    assert ring.send(b"append", kind=1) is not None  # appends need none

    for n, token in enumerate(tokens):
        ring.push(token, payload=bytes([n % 256]) * 8192)
    ring.release(ring.head + 512)

    assert [answer[3] for answer in answers(ring)] == [bytes([n % 256]) * 8192 for n in range(512)]
    assert ring.send(b"{}", kind=CALL) is not None


def test_an_answer_above_its_room_comes_without_its_payload_and_the_writer_is_told(ring):
    token = ring.send(b"{}", kind=CALL)
    with pytest.raises(ValueError, match="8193"):
        ring.push(token, first_seq=7, payload=b"x" * 8193)
    assert ring.receive() == (token, 0, 7, b"")


def test_a_large_batch_travels_in_a_spill_slot_that_is_given_back(ring):
    payload = os.urandom(SPILL_ABOVE + 1)
    ring.send(b"before")
    ring.send(payload)
    ring.send(b"after")

    assert sum(owner != 0 for owner in ring.spills) == 1
    assert drained(ring) == [b"before", payload, b"after"]
    assert not any(ring.spills)


def test_spill_slots_run_out_without_harm(ring):
    body = b"x" * (SPILL_ABOVE + 1)
    slots = len(ring.spills)
    claims = [ring.send(body[: SPILL_ABOVE + 1]) for _ in range(3)]
    assert all(claims)
    ring.claim(SPILL_ABOVE + 1)
    assert sum(owner != 0 for owner in ring.spills) == 4
    ring.abandon()
    assert sum(owner != 0 for owner in ring.spills) == 3
    assert slots == 128


def test_a_batch_larger_than_a_spill_slot_is_an_error(ring):
    with pytest.raises(ValueError, match="at most"):
        ring.claim((1 << 32) - 1)


def test_answers_to_tokens_nobody_waits_for_are_skipped(ring):
    token = ring.send(b"x")
    ring.push(token + (1 << 13))
    ring.push(token, first_seq=5)
    ring.push(token, first_seq=6)  # a second answer
    ring.push(0)

    assert [answer[2] for answer in answers(ring)] == [5]


def test_a_new_writer_answers_unknown_to_what_the_dead_one_left_and_takes_none_of_it(shared, ring):
    answered = ring.send(b"answered, not released")
    ring.push(answered, first_seq=3)
    waiting = ring.send(b"x" * (SPILL_ABOVE + 1))

    shared.set("generation", 2)

    assert ring.reset() == 2
    assert [answer[:3] for answer in answers(ring)] == [(answered, 0, 3), (waiting, UNKNOWN, 0)]
    assert ring.head == ring.tail
    assert not any(ring.spills)
    fresh = ring.send(b"fresh")
    assert ring.peek_at(ring.head) == (fresh, 1, 0, b"fresh", False)


def test_a_new_writer_tells_each_worker_to_look_at_every_topic(shared, ring):
    ring.push_dirty(7)
    shared.set("generation", 2)
    ring.reset()

    assert select.select([shared.bell_fd(0)], [], [], 0)[0]
    assert ring.dirty() is None
    assert ring.dirty() == []


def test_an_entry_that_comes_late_with_the_old_generation_is_stale(shared, ring):
    token = ring.send(b"late")
    shared.set("generation", 2)

    assert ring.peek_at(ring.head)[4]
    assert ring.refuse(ring.head)
    ring.release(ring.head + 1)
    assert ring.receive()[:2] == (token, UNKNOWN)


def test_refusals_never_take_the_room_of_promised_answers(shared, ring):
    """The writer died after it had answered and before it released, and the worker takes no answer meanwhile."""
    for _ in range(4095):
        ring.send(b"")
    for n in range(4000):
        ring.push(ring.peek_at(ring.head + n)[0])
    shared.set("generation", 2)
    refused = ring.reset()

    assert refused == 4096 - 4000  # it stops where the reserved half begins
    assert ring.peek_at(ring.head)[4]
    assert len(answers(ring)) == 4000
    left = ring.tail - ring.head
    for _ in range(left):
        assert ring.refuse(ring.head)
        ring.release(ring.head + 1)
    assert [answer[1] for answer in answers(ring)] == [UNKNOWN] * 95
    assert ring.send(b"") is not None


def test_a_dead_workers_commits_are_drained_and_its_claims_are_not(shared, ring):
    ring.send(b"committed")
    ring.claim(SPILL_ABOVE + 1)  # dies here
    shared.bury_ring(0)

    assert not ring.free_if_drained()
    assert drained(ring) == [b"committed"]
    assert any(ring.spills)
    assert ring.free_if_drained()
    assert shared.ring_state(0) == "free"
    assert not any(ring.spills)


def test_a_slot_is_not_free_while_an_answer_is_due(shared, ring):
    token = ring.send(b"waits for its sync")
    shared.bury_ring(0)
    ring.release(ring.head + 1)

    assert not ring.free_if_drained()
    ring.push(token)
    assert ring.free_if_drained()


def test_the_next_worker_of_a_slot_sees_nothing_of_the_last_one(shared, ring):
    first = ring.send(b"first")
    ring.push(first, first_seq=1)
    ring.push_dirty(9)
    second = ring.send(b"second")
    shared.bury_ring(0)
    ring.push(second, first_seq=2)
    ring.release(ring.head + 2)
    assert ring.free_if_drained()

    assert shared.assign_ring() == 0
    ring.adopt()

    assert ring.receive() is None
    assert ring.dirty() == []
    third = ring.send(b"third")
    assert third not in (first, second)
    assert drained(ring) == [b"third"]
    assert [answer[0] for answer in answers(ring)] == [third]


def test_a_slot_that_is_not_drained_cannot_be_adopted(shared, ring):
    ring.send(b"x")
    with pytest.raises(ValueError, match="drained"):
        ring.adopt()


def test_topics_that_moved_come_in_order_and_overflow_means_all(ring):
    for slot in (5, 3, 5):
        ring.push_dirty(slot)
    assert ring.dirty() == [5, 3, 5]

    for slot in range(8193):
        ring.push_dirty(slot)
    assert ring.dirty() is None
    assert ring.dirty() == []
    ring.push_dirty(1)
    assert ring.dirty() == [1]


def test_the_worker_is_rung_once_and_only_when_armed(shared, ring):
    def rung() -> bool:
        return bool(select.select([shared.bell_fd(0)], [], [], 0)[0])

    token = ring.send(b"x")
    ring.push(token)
    ring.bell()
    assert not rung()

    assert not ring.arm()  # an answer waits: drain first
    answers(ring)
    assert ring.arm()
    ring.push_dirty(1)
    ring.bell()
    assert rung()
    assert not ring.armed
    assert os.eventfd_read(shared.bell_fd(0)) == 1
    ring.push_dirty(2)
    ring.bell()
    assert not rung()


def test_the_writer_does_not_sleep_while_an_entry_is_unseen(ring):
    ring.send(b"x")
    assert not ring.sleep(-1)
    ring.peek_at(ring.head)
    assert ring.sleep(0)  # seen: though not released, it may sleep


def test_a_commit_wakes_a_sleeping_writer(ring):
    slept = []
    writer = threading.Thread(target=lambda: slept.append(ring.sleep(60_000_000_000)))
    writer.start()
    while not ring.writer_armed:
        pass
    ring.send(b"x")
    writer.join(timeout=30)

    assert slept and not writer.is_alive()


def test_a_bell_rung_before_the_writer_sleeps_is_not_lost(shared, ring):
    seen = ring.bell_seen
    shared.wake_writer()  # between its last look for work and its sleep

    assert not ring.sleep(-1, seen)


def test_wake_writer_wakes_it_without_an_entry(shared, ring):
    writer = threading.Thread(target=lambda: ring.sleep(60_000_000_000))
    writer.start()
    while writer.is_alive():
        shared.wake_writer()
        writer.join(timeout=0.001)


commands = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 3_000_000)),
    st.tuples(st.just("claim"), st.integers(0, 3_000_000)),
    st.tuples(st.just("take"), st.integers(1, 8)),
    st.tuples(st.just("receive"), st.just(0)),
    st.tuples(st.just("writer dies"), st.just(0)),
    st.tuples(st.just("worker dies"), st.just(0)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(commands, max_size=40))
def test_every_batch_is_read_once_and_answered_once_whatever_dies(script):
    shared = Shared.create(topics_max=10, ring_slots=1)
    shared.set("generation", 1)
    ring = adopted(shared)
    committed: list[tuple[int, bytes]] = []
    waiting: dict[int, int] = {}  # token -> status expected

    def take_answers() -> None:
        for token, status, _, _ in answers(ring):
            assert waiting.pop(token) == status

    for count, (command, number) in enumerate(script):
        if command in ("send", "claim"):
            payload = bytes([count]) * number
            if command == "claim":
                ring.claim(number)
            elif (token := ring.send(payload)) is not None:
                committed.append((token, payload))
                waiting[token] = -1
        elif command == "take":
            for token, payload in committed[:number]:
                assert ring.peek_at(ring.head) == (token, 1, 0, payload, False)
                ring.push(token)
                ring.release(ring.head + 1)
                waiting[token] = 0
            del committed[:number]
        elif command == "receive":
            take_answers()
        elif command == "writer dies":
            shared.set("generation", shared.generation + 1)
            assert ring.reset() == len(committed)
            for token, _ in committed:
                waiting[token] = UNKNOWN
            committed.clear()
        else:
            shared.bury_ring(0)
            assert drained(ring) == [payload for _, payload in committed]
            committed.clear()
            waiting.clear()
            assert ring.free_if_drained()
            assert shared.assign_ring() == 0
            ring.adopt()
    assert drained(ring) == [payload for _, payload in committed]
    for token, _ in committed:
        waiting[token] = 0
    take_answers()
    assert not waiting
