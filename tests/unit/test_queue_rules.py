"""Queues by the rules of A §10 and D §10, one rule a test, on the engine as a library and a fake clock."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.faulty_files import FaultyFiles
from fakes.in_process import Library
from fakes.workers import Workers
from oracle.model import Refused
from topicsd import snapshot
from topicsd._native import work
from topicsd._native.taking import Taking
from topicsd.engine import recovery
from topicsd.engine.sections import Row


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def library(tmp_path: Path, clock: FakeClock) -> Iterator[Library]:
    opened = Library(str(tmp_path / "data"), clock)
    yield opened
    opened.close()


@pytest.fixture
def workers(library: Library) -> Workers:
    return Workers(library)


def fill(library: Library, queue: str, count: int, **config: Any) -> None:
    if library.sequencer.find(queue.encode()) is None:
        library.put(queue, type="queue", **config)
    library.append(queue, [{"data": n} for n in range(1, count + 1)])


def seqs(jobs: list[dict[str, Any]]) -> list[int]:
    return [job["$seq"] for job in jobs]


def test_a_claim_leases_the_oldest_jobs_and_shows_them(library: Library, workers: Workers, clock: FakeClock) -> None:
    library.put("q", type="queue")
    library.append("q", [{"data": {"a": 1}, "tag": "t", "meta": {"k": "v"}}, {"data": 2}, {"data": 3}])

    jobs = workers.claim("q", "w1", 2, 10_000)

    assert [(job["$seq"], job["data"], job["deliveries"]) for job in jobs] == [(1, {"a": 1}, 1), (2, 2, 1)]
    assert (jobs[0]["$tag"], jobs[0]["meta"]) == ("t", {"k": "v"})
    assert jobs[0]["deadline"] == clock.wall_ms() + 10_000
    assert jobs[0]["lease_id"] != jobs[1]["lease_id"]
    assert workers.counters("q") == (1, 2, 0)


def test_an_ack_deletes_for_good_and_counts_each_seq_once(library: Library, workers: Workers) -> None:
    fill(library, "q", 3)
    workers.claim("q", "w", 3)

    answer = workers.ack("q", "w", [1, 1, 3, 9])

    assert (answer["done"], answer["skipped"], answer["ready"], answer["in_flight"]) == (2, [1, 9], 0, 1)
    assert [record["$seq"] for record in library.read_all("q")[0]] == [2]
    library.kill()
    assert [record["$seq"] for record in library.read_all("q")[0]] == [2]


def test_an_ack_by_another_node_or_with_a_stale_lease_is_skipped(library: Library, workers: Workers) -> None:
    fill(library, "q", 1)
    [first] = workers.claim("q", "w1")
    assert workers.ack("q", "w2", [1])["skipped"] == [1]
    workers.nack("q", "w1", [1])
    [second] = workers.claim("q", "w1")

    assert workers.ack("q", "w1", [1], [first["lease_id"]])["skipped"] == [1]
    assert workers.ack("q", "w1", [1], [second["lease_id"]])["done"] == 1


def test_a_lease_ends_after_its_deadline_and_not_at_it(library: Library, workers: Workers, clock: FakeClock) -> None:
    fill(library, "q", 1)
    workers.claim("q", "w1", 1, 500)
    clock.advance(500)
    assert workers.counters("q") == (0, 1, 0)
    clock.advance(1)
    assert workers.counters("q") == (1, 0, 0)


def test_an_expired_lease_can_not_be_acked_or_extended_though_nobody_has_claimed_the_job_again(
    library: Library, workers: Workers, clock: FakeClock
) -> None:
    fill(library, "q", 1)
    workers.claim("q", "w1", 1, 500)
    clock.advance(501)
    assert workers.extend("q", "w1", [1], 1000)["skipped"] == [1]
    assert workers.ack("q", "w1", [1])["skipped"] == [1]
    assert workers.claim("q", "w2")[0]["deliveries"] == 2


def test_what_came_back_goes_before_fresh_jobs(library: Library, workers: Workers, clock: FakeClock) -> None:
    fill(library, "q", 5)
    workers.claim("q", "w", 3, 500)
    clock.advance(501)
    assert seqs(workers.claim("q", "w", 2)) == [1, 2]
    assert seqs(workers.claim("q", "w", 9)) == [3, 4, 5]


def test_extend_sets_the_deadline_and_leaves_the_deliveries(library: Library, workers: Workers, clock: FakeClock) -> None:
    fill(library, "q", 1)
    [job] = workers.claim("q", "w", 1, 500)
    assert workers.extend("q", "w", [1], 5000, [job["lease_id"]])["deadline"] == clock.wall_ms() + 5000
    clock.advance(4000)
    assert workers.ack("q", "w", [1], [job["lease_id"]])["done"] == 1


def test_a_delayed_nack_is_neither_ready_nor_in_flight_until_it_is_due(library: Library, workers: Workers, clock: FakeClock) -> None:
    fill(library, "q", 1)
    workers.claim("q", "w")
    workers.nack("q", "w", [1], 600)
    assert workers.counters("q") == (0, 0, 0)
    clock.advance(599)
    assert workers.claim("q", "w") == []
    clock.advance(1)
    assert workers.counters("q") == (1, 0, 0)
    assert workers.claim("q", "w")[0]["deliveries"] == 2


def test_a_produced_delay_holds_a_job_back_also_over_a_restart(library: Library, workers: Workers, clock: FakeClock) -> None:
    library.put("q", type="queue")
    library.append("q", [{"data": 1, "delay_ms": 1000}, {"data": 2}])
    assert workers.counters("q") == (1, 0, 0)
    clock.advance(400)
    library.kill()
    assert workers.counters("q") == (1, 0, 0)
    clock.advance(599)
    assert seqs(workers.claim("q", "w", 5)) == [2]
    clock.advance(1)
    assert seqs(workers.claim("q", "w", 5)) == [1]


def test_priority_orders_ready_jobs_and_within_one_priority_the_first_comes_first(library: Library, workers: Workers) -> None:
    library.put("q", type="queue")
    library.append("q", [{"data": n, "priority": p} for n, p in enumerate([0, 5, -5, 5, 0])])
    assert [seq for _ in range(5) for seq in seqs(workers.claim("q"))] == [2, 4, 1, 5, 3]


def test_a_priority_beyond_the_bounds_counts_as_the_bound(library: Library, workers: Workers) -> None:
    library.put("q", type="queue")
    library.append("q", [{"data": 0, "priority": 1000}, {"data": 1, "priority": 1000}])
    assert seqs(workers.claim("q", "w", 2)) == [1, 2]


def test_a_leased_job_that_a_cap_removed_is_skipped_by_its_ack(library: Library, workers: Workers) -> None:
    fill(library, "q", 2, cap_records=2)
    workers.claim("q", "w")
    library.append("q", [{"data": 3}])
    assert workers.counters("q") == (2, 0, 0)
    assert workers.ack("q", "w", [1])["skipped"] == [1]


def test_a_leased_job_whose_time_to_live_is_over_is_skipped_by_its_ack(library: Library, workers: Workers, clock: FakeClock) -> None:
    fill(library, "q", 1, ttl_ms=1000)
    workers.claim("q", "w", 1, 60_000)
    clock.advance(1001)
    assert workers.ack("q", "w", [1])["skipped"] == [1]
    assert workers.counters("q") == (0, 0, 0)


def test_deleted_jobs_leave_the_counters_whatever_their_state(library: Library, workers: Workers) -> None:
    library.put("q", type="queue")
    library.append("q", [{"data": n, "tag": "odd" if n % 2 else "even", "delay_ms": 1000 * (n == 3)} for n in range(1, 9)])
    workers.claim("q", "w", 2)
    library.delete("q", match="odd")
    assert workers.counters("q") == (3, 1, 0)
    library.delete("q", before_seq=5)
    assert workers.counters("q") == (2, 0, 0)
    assert seqs(workers.claim("q", "w", 9)) == [6, 8]


def test_a_job_delivered_too_often_moves_to_the_dead_letter_topic_with_its_provenance(library: Library, workers: Workers) -> None:
    library.put("q", type="queue", max_deliveries=2, dead_letter="dead")
    library.append("q", [{"data": {"raw": [1.0]}, "tag": 't"', "node": "n", "meta": {"k": "v", "\u00e4": "1"}}])
    for _ in range(2):
        workers.nack("q", "w", seqs(workers.claim("q", "w")))
    assert workers.claim("q", "w") == []
    assert workers.counters("q") == (0, 0, 1)
    [letter] = library.read_all("dead")[0]
    assert (letter["data"], letter["tag"], letter["node"]) == ({"raw": [1.0]}, 't"', "n")
    assert letter["meta"] == {
        "k": "v", "\u00e4": "1", "$dead_letter_from": "q", "$dead_letter_deliveries": "2", "$dead_letter_src_seq": "1",
    }  # fmt: skip
    library.kill()
    assert workers.counters("q") == (0, 0, 1)
    assert len(library.read_all("dead")[0]) == 1


def test_without_a_dead_letter_topic_a_job_comes_back_for_ever(library: Library, workers: Workers) -> None:
    fill(library, "q", 1, max_deliveries=1)
    for delivery in (1, 2, 3):
        [job] = workers.claim("q", "w")
        assert job["deliveries"] == delivery
        workers.nack("q", "w", [1])


def test_a_full_dead_letter_topic_keeps_the_job_back_until_there_is_room(library: Library, workers: Workers, clock: FakeClock) -> None:
    library.put("dead", cap_records=1, discard="reject")
    library.append("dead", [{"data": 0}])
    fill(library, "q", 2, max_deliveries=1, dead_letter="dead")
    workers.nack("q", "w", seqs(workers.claim("q", "w")))
    assert seqs(workers.claim("q", "w", 5)) == [2]
    assert workers.counters("q") == (0, 1, 0)
    library.delete("dead", before_seq=2)
    clock.advance(1000)
    assert workers.counters("q") == (0, 1, 1)
    assert [record["meta"]["$dead_letter_src_seq"] for record in library.read_all("dead")[0]] == ["1"]


def test_a_dead_letter_topic_that_can_not_be_made_leaves_the_job_ready_and_counts_the_failure(tmp_path: Path, clock: FakeClock) -> None:
    library = Library(str(tmp_path / "few"), clock, topics_max=1)
    workers = Workers(library)
    fill(library, "q", 1, max_deliveries=1, dead_letter="dead")
    workers.nack("q", "w", seqs(workers.claim("q", "w")))
    assert workers.claim("q", "w") == []
    assert workers.counters("q") == (1, 0, 0)
    assert library.engine.queues.failures == 1
    library.close()


def test_leases_deliveries_and_tokens_survive_a_restart(library: Library, workers: Workers, clock: FakeClock) -> None:
    fill(library, "q", 3)
    workers.nack("q", "w", seqs(workers.claim("q", "w")))
    [job] = workers.claim("q", "w", 1, 10_000)
    clock.advance(4000)
    library.kill()
    assert workers.counters("q") == (2, 1, 0)
    clock.advance(5000)
    assert workers.claim("q", "x", 5)[0]["$seq"] == 2
    assert workers.ack("q", "w", [1], [job["lease_id"]])["done"] == 1


def test_a_lease_ends_over_a_restart_when_it_would_have_ended_without(library: Library, workers: Workers, clock: FakeClock) -> None:
    fill(library, "q", 1)
    workers.claim("q", "w", 1, 10_000)
    clock.advance(6000)
    library.kill()
    clock.advance(4001)
    [job] = workers.claim("q", "x")
    assert job["deliveries"] == 2


class FineClock(FakeClock):
    """Clocks of microseconds, read as whole milliseconds; the two do not turn over together."""

    wall_ahead_us = 0

    def __init__(self) -> None:
        super().__init__()
        self.us = 1_000_000_000

    def wall_ms(self) -> int:
        return 1_750_000_000_000 + (self.us + self.wall_ahead_us) // 1000

    def mono_ms(self) -> int:
        return self.us // 1000

    def mono_up_ms(self) -> int:
        return -(-self.us // 1000)


@pytest.mark.parametrize("restart_after_us", range(100, 1100, 100))
@pytest.mark.parametrize("granted_us", [50, 350, 650, 950])
@pytest.mark.parametrize("wall_ahead_us", [0, 300, 700])
def test_a_restart_does_not_cut_a_lease_by_a_part_of_a_millisecond(
    tmp_path: Path, restart_after_us: int, granted_us: int, wall_ahead_us: int
) -> None:
    clock = FineClock()
    clock.wall_ahead_us = wall_ahead_us
    library = Library(str(tmp_path / "data"), clock)
    workers = Workers(library)
    fill(library, "q", 1)
    clock.us += granted_us
    ends_us = clock.us + 50_000
    assert seqs(workers.claim("q", "w1", 1, 50)) == [1]
    clock.us += restart_after_us
    library.kill()
    clock.us = ends_us - 1
    assert workers.claim("q", "w2", 1, 50) == []
    clock.us = ends_us + 3000
    assert seqs(workers.claim("q", "w2", 1, 50)) == [1]
    library.close()


def test_a_wall_clock_that_stepped_back_over_a_restart_lengthens_no_lease(library: Library, workers: Workers, clock: FakeClock) -> None:
    fill(library, "q", 1)
    workers.claim("q", "w", 1, 10_000)
    clock.step(-3_600_000)
    library.kill()
    clock.advance(10_001)
    assert workers.counters("q") == (1, 0, 0)


def test_a_wall_clock_that_steps_while_the_writer_runs_moves_no_deadline(library: Library, workers: Workers, clock: FakeClock) -> None:
    fill(library, "q", 1)
    workers.claim("q", "w", 1, 1000)
    clock.step(3_600_000)
    assert workers.counters("q") == (0, 1, 0)
    clock.step(-7_200_000)
    clock.advance(1001)
    assert workers.counters("q") == (1, 0, 0)


def test_no_lease_id_is_ever_used_twice_over_restarts(library: Library, workers: Workers) -> None:
    fill(library, "q", 6)
    ids = []
    for _ in range(3):
        ids += [job["lease_id"] for job in workers.claim("q", "w", 2)]
        library.kill()
    assert len(set(ids)) == 6


def test_a_cohort_is_served_at_once_in_even_shares(library: Library, workers: Workers, clock: FakeClock) -> None:
    fill(library, "q", 50, claim_jitter_ms=100)
    tokens = [workers.send_claim("q", f"w{n}", 10) for n in range(10)]
    clock.advance(99)
    library.sequencer.turn(clock.wall_ms(), clock.mono_ms())
    assert workers.answers() == {}
    clock.advance(1)
    library.sequencer.turn(clock.wall_ms(), clock.mono_ms())
    answers = workers.answers()
    batches = [seqs(workers.jobs("q", answers[token])) for token in tokens]
    assert [len(batch) for batch in batches] == [5] * 10
    assert sorted(seq for batch in batches for seq in batch) == list(range(1, 51))


def test_shares_are_in_proportion_to_what_is_asked_for_and_each_claim_keeps_its_lease(library: Library, workers: Workers, clock: FakeClock) -> None:
    fill(library, "q", 8, claim_jitter_ms=50)
    small, large = workers.send_claim("q", "a", 4, 500), workers.send_claim("q", "b", 12, 5000)
    clock.advance(50)
    library.sequencer.turn(clock.wall_ms(), clock.mono_ms())
    answers = workers.answers()
    assert (answers[small].count, answers[large].count) == (2, 6)
    assert answers[large].values[2] - answers[small].values[2] == 4500


def test_a_cohort_of_a_deleted_queue_is_told_so(library: Library, workers: Workers, clock: FakeClock) -> None:
    fill(library, "q", 1, claim_jitter_ms=5000)
    token = workers.send_claim("q")
    library.drop("q")
    library.sequencer.turn(clock.wall_ms(), clock.mono_ms())
    assert workers.answers()[token].status == 1


def test_a_log_is_no_queue(library: Library, workers: Workers) -> None:
    library.put("log")
    with pytest.raises(Refused, match="not_a_queue"):
        workers.claim("log")


def test_a_work_stream_gets_no_more_than_its_bound_with_what_it_holds(library: Library, workers: Workers) -> None:
    fill(library, "q", 5)
    _, jobs = workers.work("q", "w", 2, [])
    held = [(seq, token) for seq, token, _ in jobs]
    assert [seq for seq, _ in held] == [1, 2]
    assert workers.work("q", "w", 2, held) == ([True, True], [])
    workers.ack("q", "w", [1])
    still, jobs = workers.work("q", "w", 2, held)
    assert (still, [seq for seq, _, _ in jobs]) == ([False, True], [3])


def test_redrive_brings_letters_back_as_fresh_jobs_of_the_same_data(library: Library, workers: Workers) -> None:
    library.put("q", type="queue", max_deliveries=1, dead_letter="dead")
    library.append("q", [{"data": n, "tag": f"t{n}", "meta": {"k": str(n)}} for n in range(4)])
    library.append("dead", [{"data": "another's", "meta": {"$dead_letter_from": "other"}}])
    workers.nack("q", "w", seqs(workers.claim("q", "w", 4)))
    workers.claim("q", "w")
    assert workers.counters("q") == (0, 0, 4)

    one = library.call({"op": "queue.redrive", "topic": "q", "limit": 10, "match_kind": 1, "match": "t2"})
    rest = library.call({"op": "queue.redrive", "topic": "q", "limit": 2})

    assert (one, rest) == ({"redriven": 1, "more": False}, {"redriven": 2, "more": True})
    jobs = workers.claim("q", "w", 9)
    assert [(job["data"], job["meta"], job["$tag"], job["deliveries"]) for job in jobs] == [
        (2, {"k": "2"}, "t2", 1), (0, {"k": "0"}, "t0", 1), (1, {"k": "1"}, "t1", 1),
    ]  # fmt: skip
    assert [record["data"] for record in library.read_all("dead")[0]] == ["another's", 3]
    library.kill()
    assert [record["data"] for record in library.read_all("dead")[0]] == ["another's", 3]


def test_an_ephemeral_queue_works_and_forgets_with_its_writer(library: Library, workers: Workers) -> None:
    fill(library, "q", 3, durability="ephemeral")
    workers.claim("q", "w", 2)
    assert workers.ack("q", "w", [1])["done"] == 1
    assert workers.counters("q") == (1, 1, 0)
    library.kill()
    assert workers.counters("q") == (0, 0, 0)


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_an_acked_job_of_a_logged_class_stays_gone(library: Library, workers: Workers, durability: str) -> None:
    fill(library, "q", 4, durability=durability)
    workers.claim("q", "w", 4)
    workers.ack("q", "w", [2, 4])
    library.kill()
    assert workers.counters("q") == (0, 2, 0)
    assert [record["$seq"] for record in library.read_all("q")[0]] == [1, 3]


def test_an_ack_of_an_fsync_queue_is_answered_and_visible_once_it_is_synced(library: Library, workers: Workers) -> None:
    fill(library, "q", 1, durability="fsync")
    workers.claim("q", "w")
    library.synced = False
    token = workers._send(work.SETTLE, "q", work.encode_settle(workers._topic_id("q"), work.ACK, b"w", [1]))
    assert workers.answers() == {}
    assert len(library.read_all("q")[0]) == 1
    library.sequencer.sync()
    assert workers.answers()[token].count == 1
    assert library.read_all("q")[0] == []


def test_moving_many_dead_letters_goes_in_slices_and_holds_nobody_up(library: Library, workers: Workers, clock: FakeClock) -> None:
    fill(library, "q", 5, max_deliveries=1, dead_letter="dead")
    workers.nack("q", "w", seqs(workers.claim("q", "w", 5)))
    move = library.engine.queues._move

    def slow_move(*told: Any) -> Any:
        clock.advance(60)
        return move(*told)

    library.engine.queues._move = slow_move  # type: ignore[method-assign]
    assert workers.claim("q", "w") == []
    assert len(library.read_all("dead")[0]) == 2
    assert workers.counters("q") == (0, 0, 4), "that was a tick"
    assert workers.counters("q") == (0, 0, 5)
    assert library.call({"op": "queue.redrive", "topic": "q", "limit": 9}) == {"redriven": 2, "more": True}


# ---- snapshots -----------------------------------------------------------------------------------------------------------------


def rows(library: Library) -> list[Row]:
    """The rows of queues in a snapshot of now."""
    library.sequencer.set_now(library.clock.wall_ms(), library.clock.mono_ms())
    look = Taking(library.sequencer)
    look.look()
    return list(snapshot.rows_of(memoryview(look.jobs)))


def test_a_snapshot_row_brings_the_work_state_back_and_frames_that_it_holds_are_left_out(
    library: Library, workers: Workers, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.put("q", type="queue", max_deliveries=2, dead_letter="dead")
    library.append("q", [{"data": n, "delay_ms": 5_000 * (n == 7), "priority": -(n == 5)} for n in range(1, 9)])
    workers.nack("q", "w", seqs(workers.claim("q", "w")))
    workers.nack("q", "w", seqs(workers.claim("q", "w")))  # job 1 is due for the dead-letter topic now
    assert seqs(workers.claim("q", "w", 1, 10_000)) == [2]
    _, leased = workers.claim("q", "w", 2, 20_000)
    workers.ack("q", "w", [3])
    clock.advance(1_000)
    [row] = rows(library)
    workers.extend("q", "w", [4], 60_000)  # behind the row
    original, loaded = recovery.Replayer._create, []

    def create_and_load(replayer: recovery.Replayer, topic_id: int, *rest: Any) -> None:
        original(replayer, topic_id, *rest)
        if topic_id == row.key:
            replayer.engine.queues.load(row)
            loaded.append(topic_id)

    monkeypatch.setattr(recovery.Replayer, "_create", create_and_load)
    library.kill()

    assert loaded == [row.key]
    assert workers.counters("q") == (3, 2, 1)
    clock.advance(20_001)
    assert workers.counters("q") == (5, 1, 1), "2 and 7 are ready, 4 was extended"
    assert workers.ack("q", "w", [4], [leased["lease_id"]])["done"] == 1
    assert [(each["$seq"], each["deliveries"]) for each in workers.claim("q", "x", 9)] == [(2, 2), (5, 1), (6, 1), (7, 1), (8, 1)]


def test_a_row_that_is_cut_short_is_refused(library: Library, workers: Workers) -> None:
    fill(library, "q", 3)
    workers.claim("q", "w")
    [row] = rows(library)
    library.put("other", type="queue")
    slot = library.sequencer.find(b"other")
    key = library.sequencer.topic(slot)["topic_id"]
    library.sequencer.learn_id(key, slot)  # as replay knows it
    for body in (row.body[:-1], row.body[:10], b""):
        with pytest.raises(ValueError):
            library.engine.queues.load(row._replace(key=key, body=body))


# ---- the log does not take it ----------------------------------------------------------------------------------------------------


def test_a_claim_of_a_queue_with_durable_leases_is_answered_once_it_is_synced(library: Library, workers: Workers) -> None:
    fill(library, "q", 2, leases_durable=True)
    library.synced = False
    token = workers.send_claim("q")
    assert workers.answers() == {}
    library.sequencer.sync()
    [job] = workers.jobs("q", workers.answers()[token])
    assert job["$seq"] == 1


def test_a_claim_of_a_log_that_takes_no_frames_is_refused_and_delivers_nothing(tmp_path: Path, clock: FakeClock) -> None:
    files = FaultyFiles(tmp_path / "faulty")
    library = Library(str(tmp_path / "faulty"), clock, files=files)
    workers = Workers(library)
    fill(library, "q", 2)
    [job] = workers.claim("q", "w")
    files.fail("pwritev", forever=True)
    with pytest.raises(Refused, match="storage_read_only"):
        workers.claim("q", "w")
    with pytest.raises(Refused, match="storage_read_only"):
        workers.ack("q", "w", [1])
    assert workers.counters("q") == (1, 1, 0)
    files.heal()
    library.kill()
    assert workers.counters("q") == (1, 1, 0)
    assert workers.ack("q", "w", [1], [job["lease_id"]])["done"] == 1
    assert workers.claim("q", "w")[0]["deliveries"] == 1
    library.close()


# ---- routers ---------------------------------------------------------------------------------------------------------------------


def test_copies_that_a_router_makes_in_a_queue_are_jobs_also_after_a_restart(library: Library, workers: Workers) -> None:
    library.put("q", type="queue")
    library.put("log")
    library.route("log", "q")
    library.append("log", [{"data": n} for n in range(1, 4)])
    assert [job["data"] for job in workers.claim("q", "w", 1, 60_000)] == [1]
    assert workers.counters("q") == (2, 1, 0)
    library.kill()
    assert workers.counters("q") == (2, 1, 0)
    assert workers.ack("q", "w", [1])["done"] == 1
    assert [job["data"] for job in workers.claim("q", "w", 9)] == [2, 3]


# ---- many ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_million_ready_jobs_cost_their_index_alone_and_a_hundred_thousand_leases_little(tmp_path: Path, clock: FakeClock) -> None:
    """Fresh jobs are no objects; a lease is 56 B and its places in a table and a heap."""
    library = Library(str(tmp_path / "many"), clock, file_bytes=64 << 20, synced=False)
    workers = Workers(library)
    library.put("q", type="queue", durability="memory", lease_ms=600_000)
    for _ in range(1000):
        library.append("q", [{"data": 1}] * 1000)
    known, (fresh, _) = library.sequencer.jobs_of_slot(workers.slot("q"))
    assert (known, fresh) == ([], 1_000_000)
    begun, held = time.perf_counter(), resident_bytes()
    slot, topic_id = workers.slot("q"), workers._topic_id("q")
    for _ in range(100):
        token = workers._send(work.CLAIM, "q", work.encode_claim(topic_id, b"w", 1000))
        assert workers.answers()[token].count == 1000
    claimed = time.perf_counter() - begun
    grown = resident_bytes() - held
    assert workers.counters("q") == (900_000, 100_000, 0)
    assert len(library.sequencer.jobs_of_slot(slot)[0]) == 100_000
    assert grown < 40 << 20, f"{grown >> 20} MiB for 100 000 leases"
    assert claimed < 20, f"{claimed:.1f} s for 100 claims of 1000"
    clock.advance(600_001)
    assert workers.counters("q") == (1_000_000, 0, 0)
    assert [job["deliveries"] for job in workers.claim("q", "x", 2)] == [2, 2]
    library.close()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ---- damage --------------------------------------------------------------------------------------------------------------------


def damaged(library: Library, jobs: int, keep: int) -> None:
    """A sealed queue of which all but about the first `keep` jobs can not be read any more."""
    library.put("q", type="queue", dead_letter="dead", max_deliveries=2)
    library.append("q", [{"data": "x" * 1000 + str(n)} for n in range(1, jobs + 1)])
    library.seal("q")
    library.stop()
    for path in Path(os.fsdecode(library.directory)).glob("topics/**/*.data"):
        raw = bytearray(path.read_bytes())
        for at in range(len(raw) * keep // jobs, len(raw), 500):
            raw[at] ^= 1
        path.write_bytes(raw)


def told(library: Library) -> Iterator[None]:
    """Hand what a worker could not read to the writer, as api/queues.py does."""

    def tell(slot: int, topic_id: int, seqs: list[int]) -> None:
        library.call({"op": "queue.unreadable", "slot": slot, "topic_id": topic_id, "seqs": seqs})

    work.report_unreadable(tell)
    yield
    work.report_unreadable(None)


reporting = pytest.fixture(told)


@pytest.mark.usefixtures("reporting")
@pytest.mark.parametrize("restart", ["kill", "checkpoint", "reboot"])
def test_jobs_whose_bytes_are_damaged_leave_the_queue_and_are_told(library: Library, workers: Workers, clock: FakeClock, restart: str) -> None:
    damaged(library, 900, 300)
    jobs = workers.claim("q", "w", 900, 10_000)
    alive = seqs(jobs)
    assert 0 < len(alive) < 900 and library.engine.queues.lost == 900 - len(alive)
    assert workers.counters("q") == (0, len(alive), 0) and library.state("q")["count"] == len(alive)
    assert {each["reason"] for each in library.read_all("q", limit=1000)[1]} == {"corrupt"}
    if restart == "checkpoint":
        library.checkpoint()
    library.reboot() if restart == "reboot" else library.kill()
    clock.advance(10_001)
    assert workers.counters("q") == (len(alive), 0, 0) and library.state("q")["count"] == len(alive)
    again = workers.claim("q", "w", 900, 10_000)
    assert seqs(again) == alive
    workers.ack("q", "w", alive)
    assert workers.counters("q") == (0, 0, 0) and library.state("q")["count"] == 0
    records, tombstones = library.read_all("q")
    assert records == [] and [each["reason"] for each in tombstones] == ["corrupt"]


@pytest.mark.usefixtures("reporting")
def test_a_damaged_job_that_is_due_for_the_dead_letters_is_lost_and_not_stuck(library: Library, workers: Workers, clock: FakeClock) -> None:
    damaged(library, 10, 10)
    for _ in range(2):
        assert len(workers.claim("q", "w", 10, 1000)) == 10
        clock.advance(1001)
    path = next(Path(os.fsdecode(library.directory)).glob("topics/**/*.data"))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    library.kill()
    assert workers.claim("q", "w", 10, 1000) == []
    ready, in_flight, buried = workers.counters("q")
    assert (ready, in_flight) == (0, 0) and buried + library.engine.queues.lost == 10 and library.engine.queues.lost > 0
    assert library.state("q")["count"] == 0


@pytest.mark.usefixtures("reporting")
def test_a_job_that_only_its_worker_finds_unreadable_stays_leased(library: Library, workers: Workers) -> None:
    damaged(library, 10, 10)
    jobs = workers.claim("q", "w", 10, 1000)
    slot = workers.slot("q")
    answer = library.call({"op": "queue.unreadable", "slot": slot, "topic_id": library.sequencer.topic(slot)["topic_id"], "seqs": [*seqs(jobs), 999]})
    assert answer["lost"] == 0 and workers.counters("q") == (0, 10, 0)
