"""The shared regions: what the arbiter makes once and every process sees."""

import os
from pathlib import Path

import pytest

from topicsd._native.regions import Shared


@pytest.fixture
def shared() -> Shared:
    return Shared.create(topics_max=1000, ring_slots=3)


def in_a_child(action) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            action()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_word_stored_by_a_child_is_read_by_its_parent(shared):
    assert in_a_child(lambda: shared.set("generation", 7)) == 0

    assert shared.generation == 7
    assert shared.get("generation") == 7


def test_flags_are_booleans_and_counters_add_up(shared):
    shared.ready = True
    shared.draining = True

    assert (shared.ready, shared.draining, shared.get("ready")) == (True, True, 1)
    assert shared.add("routers", 5) == 5
    assert shared.add("routers", -2) == 3


def test_names_that_are_not_in_the_layout_are_refused(shared):
    with pytest.raises(KeyError):
        shared.get("writer_bell")  # 32 bits wide: not for Python
    with pytest.raises(KeyError):
        shared.set_worker(0, "nonsense", 1)
    with pytest.raises(IndexError):
        shared.worker(3)


def test_each_worker_has_counters_of_its_own(shared):
    shared.add_worker(0, "requests")
    shared.add_worker(1, "requests", 4)
    shared.set_worker(1, "errors_5xx", 2)

    assert [shared.worker(n)["requests"] for n in range(3)] == [1, 4, 0]
    assert shared.worker(1)["errors_5xx"] == 2


def test_a_shard_starts_with_nothing_written(shared):
    assert set(shared.shard(0)) >= {"written", "synced", "read_only", "files", "fsync_us_count", "quarantined", "fsync_bucket"}
    assert shared.shard(0)["fsync_bucket"] == [0] * 24
    with pytest.raises(IndexError):
        shared.shard(8)


def test_zero_topics_means_the_tables_hard_maximum():
    assert Shared.create(topics_max=0).topics_max == 1 << 20
    with pytest.raises(ValueError, match="topics_max"):
        Shared.create(topics_max=(1 << 20) + 1)
    with pytest.raises(ValueError, match="ring_slots"):
        Shared.create(ring_slots=65)


def test_the_largest_budgets_still_fit_into_a_process():
    Shared.create(ephemeral_bytes=1 << 46, index_bytes=1 << 40, body_bytes_max=1 << 32, ring_slots=64)


def test_regions_cost_nothing_until_they_are_touched():
    def resident_kib() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))

    before = resident_kib()
    kept = Shared.create(ring_slots=64)

    assert resident_kib() - before < 1024
    assert kept.ring_slots == 64


def test_collected_regions_give_their_addresses_and_eventfds_back():
    def held() -> tuple[int, int]:
        return Path("/proc/self/maps").read_text().count("\n"), len(list(Path("/proc/self/fd").iterdir()))

    Shared.create()
    before = held()
    for _ in range(10):
        Shared.create(ring_slots=8)

    assert abs(held()[0] - before[0]) < 10
    assert held()[1] == before[1]


def test_ring_slots_are_handed_out_until_none_is_free_and_a_dead_one_waits_for_the_writer(shared):
    assert [shared.assign_ring() for _ in range(4)] == [0, 1, 2, None]
    shared.bury_ring(1)

    assert shared.ring_state(1) == "dead"
    assert shared.assign_ring() is None
    assert shared.worker(1)["incarnation"] == 1
    with pytest.raises(ValueError, match="not live"):
        shared.bury_ring(1)


def test_requests_in_flight_of_a_key_are_counted_over_all_workers(shared):
    shared.assign_ring(), shared.assign_ring()

    assert shared.inflight_enter(0, key=5, limit=2)
    assert shared.inflight_enter(1, key=5, limit=2)
    assert not shared.inflight_enter(0, key=5, limit=2)
    assert shared.inflight_enter(0, key=6, limit=2)
    shared.inflight_leave(1, key=5)
    assert shared.inflight_enter(0, key=5, limit=2)


def test_a_dead_workers_requests_are_no_longer_in_flight(shared):
    shared.assign_ring()
    assert shared.inflight_enter(0, key=5, limit=1)
    assert not shared.inflight_enter(2, key=5, limit=1)

    shared.bury_ring(0)

    assert shared.inflight_enter(2, key=5, limit=1)
