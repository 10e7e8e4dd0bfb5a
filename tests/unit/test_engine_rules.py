"""Rules of the engine that a restart, a class or a failure decides: D sections 2, 4, 5, CLARIFICATIONS Write and Topics."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.faulty_files import FaultyFiles
from fakes.in_process import Library, numbers
from oracle.model import Refused
from topicsd._native.log_walk import read


def datas(page: dict[str, Any]) -> list[Any]:
    return [record["data"] for record in page["records"]]


# ---- durability classes --------------------------------------------------------------------------------------------------------


def test_a_record_of_an_fsync_topic_is_visible_only_after_its_sync(engine: Library) -> None:
    engine.put("t", durability="fsync")
    engine.synced = False
    token = engine.send("t", numbers(1))
    engine.sequencer.flush()
    assert engine.state("t")["head"] == 0 and token not in engine.answers()
    engine.sequencer.sync()
    assert engine.answers()[token]["first_seq"] == 1 and engine.state("t")["head"] == 1


def durable(engine: Library, topic: str) -> int:
    slot = engine.sequencer.find(topic.encode())
    assert slot is not None
    return int(engine.sequencer.topic(slot)["durable_head"])


@pytest.mark.parametrize("durability", ["disk", "memory"])
def test_the_durable_head_follows_the_head_with_the_sync_that_covers_it(engine: Library, durability: str) -> None:
    engine.put("t", durability=durability)
    engine.put("other", durability=durability)
    engine.synced = False
    for number in range(1, 6):
        engine.append("t", numbers(number))
        engine.append("other", numbers(number, number))
        assert (engine.state("t")["head"], durable(engine, "t")) == (number, 3 if number > 3 else 0)
        if number == 3:
            engine.sequencer.sync()
            assert (durable(engine, "t"), durable(engine, "other")) == (3, 6)
    engine.kill()
    assert (durable(engine, "t"), durable(engine, "other")) == (5, 10), "what a log shows was synced before it went on"


def test_the_durable_head_of_an_fsync_topic_is_its_head_and_a_new_topic_in_the_slot_has_its_own(engine: Library) -> None:
    engine.put("t", durability="fsync")
    engine.append("t", numbers(1, 2))
    assert durable(engine, "t") == 2
    slot = engine.sequencer.find(b"t")
    engine.put("u", durability="disk")
    engine.synced = False
    engine.append("u", numbers(1, 2, 3))
    engine.synced = True
    engine.drop("u")
    engine.drop("t")
    engine.put("again", durability="disk")
    engine.put("more", durability="disk")
    assert slot in (engine.sequencer.find(b"again"), engine.sequencer.find(b"more"))
    assert durable(engine, "again") == durable(engine, "more") == 0
    engine.synced = False
    engine.append("again", numbers(1))
    engine.append("more", numbers(1))
    assert durable(engine, "again") == durable(engine, "more") == 0
    engine.sequencer.sync()
    assert durable(engine, "again") == durable(engine, "more") == 1


def test_a_disk_record_behind_an_unsynced_fsync_record_of_its_topic_waits_for_it(engine: Library) -> None:
    engine.put("t", durability="disk")  # its seqs are reserved far ahead: only the record before it can hold the second one back
    slot = engine.sequencer.find(b"t")
    config = engine.sequencer.config(slot)
    engine.synced = False
    engine.sequencer.configure(slot, {**config, "durability": "fsync"})
    first = engine.send("t", numbers(1))
    engine.sequencer.flush()
    engine.sequencer.configure(slot, config)
    second = engine.send("t", numbers(2))
    engine.sequencer.flush()
    assert engine.answers() == {} and engine.state("t")["head"] == 0
    engine.sequencer.sync()
    answers = engine.answers()
    assert (answers[first]["first_seq"], answers[second]["first_seq"]) == (1, 2)


def test_a_retry_that_meets_its_first_try_in_flight_gets_its_answer(engine: Library) -> None:
    engine.put("t", durability="fsync")
    engine.synced = False
    first, again = engine.send("t", numbers(1), key="k"), engine.send("t", numbers(1), key="k")
    engine.sequencer.flush()
    assert engine.answers() == {}
    engine.sequencer.sync()
    answers = engine.answers()
    assert (answers[first]["deduped"], answers[again]["deduped"]) == (False, True)
    assert answers[first]["first_seq"] == answers[again]["first_seq"] == 1
    assert engine.state("t")["count"] == 1


def test_an_ephemeral_topic_loses_its_records_with_the_server_and_says_so(engine: Library) -> None:
    engine.put("t", durability="ephemeral")
    engine.append("t", numbers(1, 2, 3))
    assert datas(engine.diff("t")) == [1, 2, 3]
    engine.stop()
    page = engine.diff("t")
    assert page["records"] == [] and page["tombstone"]["reason"] == "mixed"
    assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]) == (1, 3), "a clean end knows its head"
    assert engine.append("t", numbers(4))["first_seq"] == 4


def test_a_killed_server_hands_out_no_seq_of_an_ephemeral_topic_twice(engine: Library) -> None:
    engine.put("t", durability="ephemeral")
    last = engine.append("t", numbers(1, 2, 3))["head"]
    engine.kill()
    assert engine.diff("t", last)["tombstone"]["reason"] == "mixed"
    assert engine.append("t", numbers(4))["first_seq"] > last


def test_an_ephemeral_topic_that_was_never_written_has_lost_nothing_after_a_kill(engine: Library) -> None:
    engine.put("made", durability="ephemeral")
    engine.put("turned", durability="disk")
    engine.put("turned", durability="ephemeral")
    engine.kill()
    for topic in ("made", "turned"):
        page = engine.diff(topic, 0)
        assert (engine.state(topic)["head"], page["tombstone"]) == (0, None)
        assert engine.append(topic, numbers(1))["first_seq"] == 1


def test_records_from_an_ephemeral_spell_are_a_hole_among_those_that_stay(engine: Library) -> None:
    engine.put("t", durability="disk")
    engine.append("t", numbers(1, 2))
    engine.put("t", durability="ephemeral")
    engine.append("t", numbers(3, 4))
    engine.put("t", durability="disk")
    engine.append("t", numbers(5))
    assert datas(engine.diff("t")) == [1, 2, 3, 4, 5]
    engine.stop()
    first = engine.diff("t")
    assert (datas(first), first["tombstone"], first["next_from_seq"]) == ([1, 2], None, 2)
    second = engine.diff("t", 2)
    assert (datas(second), second["tombstone"]) == ([5], {"gap_from": 3, "gap_to": 4, "reason": "mixed", "missed_estimate": 2})


def test_ephemeral_memory_is_bounded_and_eviction_gives_it_back(make: Callable[..., Library]) -> None:
    engine = make(ephemeral_bytes_max=1 << 20)
    engine.put("t", durability="ephemeral")
    with pytest.raises(Refused, match="throttled"):
        for _ in range(100):
            engine.append("t", [{"data": "x" * 50_000}])
    engine.delete("t", before_seq=1 << 40)
    engine.append("t", [{"data": "x" * 50_000}])
    engine.put("capped", durability="ephemeral", cap_records=3)
    for number in range(200):
        engine.append("capped", [{"data": f"{number}" * 1000}])
    assert engine.state("capped")["count"] == 3


# ---- seqs and boots ---------------------------------------------------------------------------------------------------------------


def test_after_another_boot_a_disk_topic_jumps_past_every_seq_it_may_have_handed_out(engine: Library) -> None:
    engine.append("t", numbers(1, 2))
    engine.reboot()
    head = engine.state("t")["head"]
    page = engine.diff("t", 2)
    assert head > 2 and page["tombstone"] == {"gap_from": 3, "gap_to": head, "reason": "mixed", "missed_estimate": head - 2}
    assert datas(engine.diff("t")) == [1, 2] and engine.diff("t")["tombstone"] is None
    assert engine.append("t", numbers(3))["first_seq"] == head + 1
    engine.kill()
    assert engine.state("t")["head"] == head + 1, "the second recovery finds the same hole"


def test_after_an_idle_second_a_power_cut_leaves_no_hole(engine: Library, clock: FakeClock) -> None:
    engine.append("t", numbers(1, 2))
    clock.advance(1100)
    engine.engine.tick()
    engine.sequencer.sync()
    engine.reboot()
    assert engine.state("t")["head"] == 2 and engine.diff("t", 2)["tombstone"] is None


def test_the_first_write_after_an_idle_second_waits_until_its_seqs_are_reserved(engine: Library, clock: FakeClock) -> None:
    engine.append("t", numbers(1))
    clock.advance(1100)
    engine.engine.tick()
    engine.synced = False
    token = engine.send("t", numbers(2))
    engine.sequencer.flush()
    assert token not in engine.answers(), "a seq above the durable ceiling was handed out"
    engine.sequencer.sync()
    assert engine.answers()[token]["first_seq"] == 2
    following = engine.send("t", numbers(3))
    engine.sequencer.flush()
    assert engine.answers()[following]["first_seq"] == 3


def test_an_fsync_topic_never_jumps(engine: Library) -> None:
    engine.put("t", durability="fsync")
    engine.append("t", numbers(1, 2))
    engine.reboot()
    assert engine.state("t")["head"] == 2


def test_a_disk_topic_that_became_fsync_does_not_jump(engine: Library) -> None:
    engine.append("t", numbers(1, 2))
    engine.put("t", durability="fsync")
    engine.append("t", numbers(3))
    engine.reboot()
    assert engine.state("t")["head"] == 3


def test_epochs_are_never_used_twice(engine: Library) -> None:
    engine.put("a")
    seen = [engine.state("a")["epoch"]]
    for restart in (engine.kill, engine.stop, engine.reboot, engine.kill):
        engine.drop("a")
        restart()
        engine.put("a")
        seen.append(engine.state("a")["epoch"])
    assert seen == sorted(set(seen))


def test_ts_never_decreases_when_the_clock_steps_back(engine: Library, clock: FakeClock) -> None:
    engine.append("t", numbers(1))
    clock.step(-86_400_000)
    engine.append("t", numbers(2))
    engine.kill()
    engine.append("t", numbers(3))
    stamps = [record["$ts"] for record in engine.diff("t")["records"]]
    assert stamps == sorted(stamps)


# ---- floors -------------------------------------------------------------------------------------------------------------------------


def test_a_clock_that_steps_back_brings_no_expired_record_back(engine: Library, clock: FakeClock) -> None:
    engine.put("t", ttl_ms=1000)
    engine.append("t", numbers(1, 2))
    clock.advance(1001)
    engine.engine.tick()
    clock.step(-5000)
    engine.kill()
    page = engine.diff("t")
    assert page["records"] == [] and page["tombstone"]["reason"] == "ttl"


def test_a_raised_cap_or_ttl_brings_nothing_back_not_even_after_a_restart(engine: Library, clock: FakeClock) -> None:
    engine.put("t", cap_records=2, ttl_ms=1000)
    engine.append("t", numbers(1, 2, 3))
    clock.advance(1001)
    engine.put("t")
    assert engine.state("t")["count"] == 0
    engine.kill()
    engine.append("t", numbers(4))
    page = engine.diff("t")
    assert (datas(page), page["tombstone"]["reason"], page["tombstone"]["gap_to"]) == ([4], "mixed", 3)


def test_gap_to_is_the_last_seq_lost_involuntarily(engine: Library) -> None:
    engine.put("t", cap_records=3)
    engine.append("t", numbers(1, 2, 3, 4, 5))
    engine.delete("t", before_seq=5)
    page = engine.diff("t")
    assert page["earliest_seq"] == 5
    assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"], page["tombstone"]["reason"]) == (1, 2, "cap")
    assert engine.diff("t", 2)["tombstone"] is None, "what a delete removed is silent"


def test_a_reject_topic_makes_room_only_by_deletes(engine: Library) -> None:
    engine.put("t", cap_records=2, discard="reject")
    engine.append("t", numbers(1, 2))
    with pytest.raises(Refused, match="topic_full"):
        engine.append("t", numbers(3))
    with pytest.raises(Refused, match="record_too_large"):
        engine.append("t", numbers(3, 4, 5))
    engine.delete("t", before_seq=2)
    assert engine.append("t", numbers(3))["first_seq"] == 3
    assert engine.diff("t")["tombstone"] is None


def test_a_tightened_cap_evicts_nothing_from_a_reject_topic(engine: Library) -> None:
    engine.append("t", numbers(1, 2, 3))
    engine.put("t", cap_records=2, discard="reject")
    engine.kill()
    assert datas(engine.diff("t")) == [1, 2, 3] and engine.diff("t")["tombstone"] is None


def test_the_longest_window_remembers_keys(engine: Library) -> None:
    engine.put("t", idempotency_window_ms=2**64 - 1)
    engine.append("t", numbers(1), key="k")
    assert engine.append("t", numbers(1), key="k")["deduped"] is True


def test_a_first_write_larger_than_the_cap_of_the_topic_it_would_create_leaves_no_topic(engine: Library) -> None:
    with pytest.raises(Refused, match="record_too_large"):
        engine.append("t", numbers(1, 2), cap_records=1, discard="reject")
    engine.drop("t")


# ---- keys ---------------------------------------------------------------------------------------------------------------------------


def test_a_key_with_another_body_gets_the_first_answer_and_is_told(engine: Library) -> None:
    engine.append("t", numbers(1), key="k")
    again = engine.append("t", numbers(2), key="k")
    assert (again["deduped"], again["body_differs"], again["first_seq"], again["head"]) == (True, True, 1, 1)


def test_a_window_counts_time_that_passed_while_the_server_was_down(engine: Library, clock: FakeClock) -> None:
    engine.put("t", idempotency_window_ms=1000)
    engine.append("t", numbers(1), key="k")
    clock.advance(600)
    engine.kill()
    assert engine.append("t", numbers(1), key="k")["deduped"] is True
    clock.advance(600)
    assert engine.append("t", numbers(1), key="k")["deduped"] is False


def test_a_clock_that_steps_back_over_a_restart_does_not_lengthen_a_window(engine: Library, clock: FakeClock) -> None:
    engine.put("t", idempotency_window_ms=1000)
    engine.append("t", numbers(1), key="k")
    clock.advance(900)
    engine.append("t", numbers(2), key="later")
    clock.step(-86_400_000)
    engine.kill()
    clock.advance(200)
    assert engine.append("t", numbers(2), key="later")["deduped"] is True
    assert engine.append("t", numbers(1), key="k")["deduped"] is False


def test_too_many_keys_throttle_and_none_is_forgotten(make: Callable[..., Library]) -> None:
    engine = make(keys_max=3)
    for key in "abc":
        engine.append("t", numbers(1), key=key)
    with pytest.raises(Refused, match="throttled"):
        engine.append("t", numbers(1), key="d")
    assert engine.append("t", numbers(1), key="a")["deduped"] is True
    assert engine.append("t", numbers(1))["deduped"] is False


# ---- quotas ---------------------------------------------------------------------------------------------------------------------------


def test_the_quota_counts_all_topics_and_a_self_trimming_topic_may_be_written_at_it(make: Callable[..., Library]) -> None:
    engine = make(bytes_max=1000)
    engine.put("ring", cap_bytes=600)
    engine.append("ring", [{"data": "x" * 500}])
    engine.append("other", [{"data": "x" * 400}])
    with pytest.raises(Refused, match="throttled"):
        engine.append("other", [{"data": "x" * 400}])
    engine.append("ring", [{"data": "y" * 500}])
    assert datas(engine.diff("ring")) == ["y" * 500]
    engine.delete("other", before_seq=9)
    engine.append("other", [{"data": "x" * 400}])


def test_there_are_at_most_max_topics(make: Callable[..., Library]) -> None:
    engine = make(topics_max=2)
    engine.put("a"), engine.put("b")
    with pytest.raises(Refused, match="throttled"):
        engine.put("c")
    engine.put("a", ttl_ms=5)
    engine.drop("b")
    assert engine.put("c") is True


# ---- deletes ----------------------------------------------------------------------------------------------------------------------------


def test_deletes_survive_every_kind_of_restart(engine: Library) -> None:
    engine.put("t", durability="fsync")
    engine.append("t", [{"data": n, "tag": "even" if n % 2 == 0 else "odd"} for n in range(1, 9)])
    assert engine.delete("t", before_seq=3)["deleted"] == 2
    assert engine.delete("t", match=["tag", "Glob", "ev*"])["deleted"] == 3
    for restart in (engine.kill, engine.stop, engine.reboot):
        restart()
        assert (datas(engine.diff("t")), engine.diff("t")["tombstone"]) == ([3, 5, 7], None)
    assert engine.delete("t", match="odd")["deleted"] == 3


def test_a_hole_that_a_delete_brings_to_the_front_is_still_told(engine: Library) -> None:
    engine.append("t", numbers(1, 2))
    engine.reboot()
    head = engine.state("t")["head"]
    engine.append("t", numbers(3))
    engine.delete("t", before_seq=3)
    page = engine.diff("t", 2)
    assert page["tombstone"] == {"gap_from": 3, "gap_to": head, "reason": "mixed", "missed_estimate": head - 2} and datas(page) == [3]
    engine.kill()
    assert engine.diff("t", 2)["tombstone"] == page["tombstone"]


def test_a_delete_by_tag_and_seq_takes_only_what_matches_both(engine: Library) -> None:
    engine.append("t", numbers(1, 2, tag="x"))
    engine.append("t", numbers(3, tag="y"))
    engine.append("t", numbers(4, tag="x"))
    assert engine.delete("t", before_seq=4, match="x")["deleted"] == 2
    assert datas(engine.diff("t")) == [3, 4]
    assert engine.delete("t", before_seq=4, match=["tag", "Glob", "*"])["deleted"] == 1
    engine.kill()
    assert datas(engine.diff("t")) == [4]


def test_a_delete_is_answered_only_when_it_can_no_longer_come_back(engine: Library) -> None:
    for durability in ("memory", "disk", "fsync"):
        engine.put(durability, durability=durability)
        engine.append(durability, numbers(1, 2))
        answer = engine.engine.call({"op": "records.delete", "topic": durability, "before_seq": 2})
        assert answer is not None and answer.wait_slot is not None, durability
        nothing = engine.engine.call({"op": "records.delete", "topic": durability, "before_seq": 2})
        assert nothing is not None and (nothing.body["deleted"], nothing.wait_slot) == (0, None)


def test_a_delete_that_crosses_a_page_of_the_index_counts_right(engine: Library) -> None:
    for start in range(0, 5000, 1000):
        engine.append("t", [{"data": n, "tag": f"t{n % 7}"} for n in range(start, start + 1000)])
    gone = engine.delete("t", match="t3")["deleted"]
    assert gone == len([n for n in range(5000) if n % 7 == 3])
    answer = engine.delete("t", before_seq=3001)
    assert answer["deleted"] == len([n for n in range(3000) if n % 7 != 3])
    assert answer["count"] == len([n for n in range(3000, 5000) if n % 7 != 3])
    engine.kill()
    assert engine.state("t")["count"] == answer["count"] and engine.state("t")["bytes"] == answer["bytes"]


# ---- disks --------------------------------------------------------------------------------------------------------------------------------


def test_a_failed_sync_takes_the_waiting_writes_back_and_forgets_their_keys(make: Callable[..., Library], tmp_path: Path, clock: FakeClock) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    files = FaultyFiles(root)
    engine = Library(str(root), clock, files=files)
    engine.put("t", durability="fsync")
    engine.append("t", numbers(1), key="first")
    files.fail("fdatasync", forever=True)
    with pytest.raises(Refused, match="storage_read_only"):
        engine.append("t", numbers(2), key="lost")
    assert datas(engine.diff("t")) == [1] and engine.shared.shard(0)["read_only"] != 0
    with pytest.raises(Refused, match="storage_read_only"):
        engine.append("t", numbers(3))
    files.heal()
    engine.store.heal()
    engine.kill()
    assert datas(engine.diff("t")) == [1], "a write that was refused came back"
    again = engine.append("t", numbers(2), key="lost")
    assert (again["first_seq"], again["deduped"]) == (2, False)
    assert engine.append("t", numbers(1), key="first")["deduped"] is True
    engine._forget()


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_write_that_met_a_full_disk_leaves_neither_its_seq_nor_its_key_behind(tmp_path: Path, clock: FakeClock, durability: str) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    files = FaultyFiles(root)
    engine = Library(str(root), clock, files=files)
    engine.put("t", durability=durability)
    engine.append("t", numbers(1))
    files.fail("pwritev", error=errno.ENOSPC)
    tokens = [engine.send("t", numbers(2), key="k"), engine.send("t", numbers(3))]
    engine.sequencer.flush()
    assert [answer.get("refused") for answer in engine.answers().values()] == ["storage_read_only"] * len(tokens)
    files.heal()
    engine.store.heal()
    again = engine.append("t", numbers(2), key="k")
    assert (again["first_seq"], again["deduped"]) == (2, False)
    engine.kill()
    assert datas(engine.diff("t")) == [1, 2]
    engine._forget()


def test_a_full_disk_refuses_writes_keeps_deletes_and_heals_by_itself(tmp_path: Path, clock: FakeClock) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    files = FaultyFiles(root)
    engine = Library(str(root), clock, files=files, file_bytes=1 << 16)
    files.space = files.used()
    written = 0
    with pytest.raises(Refused, match="storage_read_only"):
        while written < 10_000:
            engine.append("t", [{"data": "x" * 500}])
            written += 1
    assert engine.delete("t", before_seq=5)["deleted"] == 4, "the reserve takes deletes on a full disk"
    files.space = None
    for shard in engine.store.shards:
        shard.prepare()
    engine.store.heal()
    assert engine.append("t", [{"data": "y"}])["first_seq"] == written + 1
    engine.kill()
    assert engine.state("t")["count"] == written - 4 + 1
    engine._forget()


def test_starts_and_kills_without_writes_do_not_fill_the_disk(make: Callable[..., Library]) -> None:
    engine = make(file_bytes=1 << 22)
    engine.append("t", numbers(1))

    def used() -> int:
        return sum(path.stat().st_blocks * 512 for path in (Path(engine.directory) / "log" / "shard-00").iterdir())

    engine.kill()
    before = used()
    for _ in range(5):
        engine.kill()
    assert used() - before < 1 << 20
    assert datas(engine.diff("t")) == [1]


def test_damage_in_the_middle_is_told_and_the_rest_is_served(make: Callable[..., Library]) -> None:
    engine = make()
    for number in range(1, 7):
        engine.append("t", [{"data": f"record {number}"}])
    engine.append("u", numbers(1))
    path = Path(engine.directory) / "log" / "shard-00"
    [file] = [each for each in path.iterdir() if each.stat().st_size and b"record 3" in each.read_bytes()]
    raw = bytearray(file.read_bytes())
    raw[raw.index(b"record 3")] ^= 1
    engine._forget()
    file.write_bytes(raw)
    engine.open()
    records, tombstones = engine.read_all("t")
    assert [record["data"] for record in records] == [f"record {n}" for n in (1, 2, 4, 5, 6)]
    assert [(gap["gap_from"], gap["gap_to"], gap["reason"]) for gap in tombstones] == [(3, 3, "corrupt")]
    assert engine.store.degraded and datas(engine.diff("u")) == [1]
    assert list((Path(engine.directory) / "quarantine").iterdir())


def test_damage_at_the_end_of_a_topic_is_never_silent(make: Callable[..., Library]) -> None:
    engine = make()
    engine.put("t", durability="fsync")
    engine.append("t", [{"data": "keep"}])
    engine.append("t", [{"data": "last words"}])
    for number in range(3):
        engine.append("u", numbers(number))
    path = Path(engine.directory) / "log" / "shard-00"
    [file] = [each for each in path.iterdir() if each.stat().st_size and b"last words" in each.read_bytes()]
    raw = bytearray(file.read_bytes())
    raw[raw.index(b"last words")] ^= 1
    engine._forget()
    file.write_bytes(raw)
    engine.open()
    page = engine.diff("t", 1)
    assert page["tombstone"]["reason"] == "corrupt" and page["tombstone"]["gap_from"] == 2
    assert engine.append("t", numbers(3))["first_seq"] > 2
    engine.kill()
    assert engine.diff("t", 1)["tombstone"]["reason"] == "corrupt"


# ---- what a worker tells ---------------------------------------------------------------------------------------------------------


def test_a_batch_that_its_worker_measured_is_in_the_log_as_one_that_the_writer_walked(engine: Library) -> None:
    engine.put("t")
    for value in range(4):  # by turns told and not
        engine.append("t", numbers(value, tag="x", meta={"a": "b"}, node="n"), key=f"k{value}")
    assert engine.state("t")["bytes"] == 4 * len('0x{"a":"b"}n')
    engine.kill()
    assert datas(engine.diff("t")) == [0, 1, 2, 3] and not engine.store.degraded
    report, frames = read(engine.directory + "/log/shard-00")
    assert not report.damaged and [raw[9] for raw in frames if raw[8] == 2] == [1] * 4
