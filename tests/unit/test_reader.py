"""Diff rule by rule: pages, cursors, floors, tombstones, filters. Topics are laid without a writer; see tests/fakes/laid.py."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fakes.laid import Log, lay, lay_floors
from oracle.diff_oracle import CAPPED, DELETED, EXPIRED, HOLE, LIVE, Fate, Topic
from topicsd._native.reader import Busy, Gone, IoError, Reader
from topicsd._native.regions import Shared
from topicsd._native.scan import parse_diff
from topicsd._native.testing import lay_deletion, lay_entries, lay_removal, lay_topic, lay_words

NOW = 1_748_450_000_000


@pytest.fixture
def shared() -> Shared:
    shared = Shared.create(topics_max=64)
    shared.set("generation", 1)
    shared.set("ready", 1)
    return shared


@pytest.fixture
def log(shared: Shared, tmp_path: Path) -> Log:
    return Log(shared, tmp_path)


@pytest.fixture
def reader(shared: Shared, tmp_path: Path) -> Reader:
    return Reader(shared, tmp_path)


def fates(*kinds: str, ts: int = NOW, **members: Any) -> list[Fate]:
    return [Fate(kind, ts, str(number), **members) for number, kind in enumerate(kinds, 1)]


def topic(*kinds: str, **members: Any) -> Topic:
    return Topic("jobs", 7, fates=fates(*kinds), **members)


def read(reader: Reader, slot: int, now: int = NOW, **members: Any) -> dict[str, Any]:
    body, would_wait, next_seq = reader.diff(slot, parse_diff(json.dumps(members).encode()), now)
    page: dict[str, Any] = json.loads(body)
    assert next_seq == page["next_from_seq"]
    page["would_wait"] = would_wait
    return page


def seqs(page: dict[str, Any]) -> list[int]:
    return [record["$seq"] for record in page["records"]]


def gap(page: dict[str, Any]) -> tuple[int, int, str] | None:
    stone = page["tombstone"]
    return stone and (stone["gap_from"], stone["gap_to"], stone["reason"])


# ---- bytes


def test_a_page_is_spliced_from_stored_bytes_in_the_order_of_the_api(shared: Shared, log: Log, reader: Reader) -> None:
    made = Topic("jobs", 7, fates=[Fate(LIVE, NOW, '{ "b":1.0,"a":1e400}', '{"k":"v"}', 'say "x"\n', "né\\"), Fate(LIVE, NOW + 1, "null")])
    slot = lay(shared, log, made)
    body, would_wait, next_seq = reader.diff(slot, parse_diff(b'{"include_tags":true}'), NOW)
    assert body == (
        b'{"topic":"jobs","records":[{"$seq":1,"$ts":1748450000000,"$node":"n\xc3\xa9\\\\","$tag":"say \\"x\\"\\n",'
        b'"data":{ "b":1.0,"a":1e400},"meta":{"k":"v"}},{"$seq":2,"$ts":1748450000001,"data":null}],"next_from_seq":2,"head_seq":2,'
        b'"earliest_seq":1,"caught_up":true,"tombstone":null,"lag":0,"epoch":7,"performance":{"server_total_ms":0.0,"records_scanned":2,'
        b'"fsync_ms":0.0,"throttle_wait_ms":0.0}}'
    )
    assert (would_wait, next_seq) == (False, 2)


def test_meta_data_and_tags_come_as_asked(shared: Shared, log: Log, reader: Reader) -> None:
    slot = lay(shared, log, Topic("jobs", 7, fates=[Fate(LIVE, NOW, "1", '{"k":"v"}', "", "")]))
    assert read(reader, slot)["records"] == [{"$seq": 1, "$ts": NOW, "$node": "", "data": 1, "meta": {"k": "v"}}]
    bare = read(reader, slot, include_tags=True, include_meta=False)
    assert bare["records"] == [{"$seq": 1, "$ts": NOW, "$node": "", "$tag": "", "data": 1}]


def test_the_time_a_page_took_is_told(shared: Shared, log: Log, reader: Reader) -> None:
    slot = lay(shared, log, topic(LIVE))
    body, _, _ = reader.diff(slot, parse_diff(b""), NOW, 1)
    assert json.loads(body)["performance"]["server_total_ms"] > 0


# ---- cursors and limits


def test_a_page_ends_at_its_limit_and_the_next_goes_on(shared: Shared, log: Log, reader: Reader) -> None:
    slot = lay(shared, log, topic(*[LIVE] * 5))
    page = read(reader, slot, limit=2)
    assert (seqs(page), page["next_from_seq"], page["caught_up"], page["lag"]) == ([1, 2], 2, False, 3)
    assert seqs(read(reader, slot, from_seq=2, limit=2)) == [3, 4]
    assert seqs(read(reader, slot, from_seq=4, limit=2)) == [5]


def test_the_limit_has_a_default_and_a_ceiling(shared: Shared, log: Log, reader: Reader, tmp_path: Path) -> None:
    slot = lay(shared, log, topic(*[LIVE] * 1100), batch=100)
    lengths = [len(read(reader, slot, **members)["records"]) for members in ({}, {"limit": 0}, {"limit": 1000}, {"limit": 5000})]
    assert lengths == [256, 256, 1000, 1000]
    assert seqs(read(reader, slot, from_seq=3, limit=1000)) == list(range(4, 1004))
    assert len(read(Reader(shared, tmp_path, 10), slot)["records"]) == 10


def test_a_page_is_bounded_by_payload_bytes_but_holds_one_record_at_least(shared: Shared, log: Log, reader: Reader) -> None:
    slot = lay(shared, log, Topic("jobs", 7, fates=[Fate(LIVE, NOW, '"' + "x" * 98 + '"') for _ in range(5)]))
    assert seqs(read(reader, slot, max_batch_bytes=1)) == [1]
    assert seqs(read(reader, slot, max_batch_bytes=299)) == [1, 2]
    assert seqs(read(reader, slot, max_batch_bytes=300)) == [1, 2, 3]
    assert seqs(read(reader, slot, max_batch_bytes=0)) == [1, 2, 3, 4, 5]


def test_a_page_of_the_largest_size_ends_before_eight_mebibytes(shared: Shared, log: Log, reader: Reader) -> None:
    slot = lay(shared, log, Topic("jobs", 7, fates=[Fate(LIVE, NOW, '"' + "x" * (1 << 20) + '"') for _ in range(9)]), batch=1)
    assert seqs(read(reader, slot)) == [1]
    assert seqs(read(reader, slot, max_batch_bytes=2**63)) == [1, 2, 3, 4, 5, 6, 7]


def test_a_call_examines_ten_thousand_records_at_most_and_the_cursor_moves(shared: Shared, log: Log, reader: Reader) -> None:
    slot = lay(shared, log, topic(*[LIVE] * 10_010), batch=1000)
    for seq in range(2, 10_009):
        lay_deletion(shared, slot, seq)
    lay_words(shared, slot, count=3)
    page = read(reader, slot)
    assert (seqs(page), page["next_from_seq"], page["caught_up"], page["would_wait"]) == ([1], 10_000, False, False)
    assert page["performance"]["records_scanned"] == 10_000
    page = read(reader, slot, from_seq=1)
    assert (seqs(page), page["next_from_seq"], page["caught_up"], page["would_wait"]) == ([], 10_001, False, False)
    assert seqs(read(reader, slot, from_seq=10_001)) == [10_009, 10_010]


def test_an_empty_topic_is_caught_up_and_a_long_poll_would_wait(shared: Shared, log: Log, reader: Reader) -> None:
    page = read(reader, lay(shared, log, topic()))
    assert (page["records"], page["next_from_seq"], page["earliest_seq"], page["caught_up"]) == ([], 0, 1, True)
    assert page["would_wait"]


def test_a_long_poll_waits_for_a_record_that_this_reader_would_get(shared: Shared, log: Log, reader: Reader) -> None:
    slot = lay(shared, log, Topic("jobs", 7, fates=fates(LIVE, LIVE, node="a")))
    assert read(reader, slot, node="a") | {"performance": 0} == read(reader, slot, from_seq=2) | {"performance": 0}
    assert read(reader, slot, node="a")["would_wait"]
    assert not read(reader, slot, node="b")["would_wait"]


# ---- floors and tombstones


def test_a_cursor_below_the_evict_floor_gets_one_tombstone_and_then_records(shared: Shared, log: Log, reader: Reader) -> None:
    slot = lay(shared, log, topic(CAPPED, CAPPED, LIVE, LIVE))
    page = read(reader, slot)
    stone = {"gap_from": 1, "gap_to": 2, "reason": "cap", "missed_estimate": 2, "earliest_seq": 3, "head_seq": 4}
    assert (page["tombstone"], seqs(page), page["earliest_seq"]) == (stone, [3, 4], 3)
    assert gap(read(reader, slot, from_seq=1)) == (2, 2, "cap")
    assert gap(read(reader, slot, from_seq=2)) is None


def test_a_deleted_gap_reads_silently(shared: Shared, log: Log, reader: Reader) -> None:
    page = read(reader, lay(shared, log, topic(DELETED, DELETED, LIVE, DELETED)))
    assert (gap(page), seqs(page), page["next_from_seq"], page["caught_up"]) == (None, [3], 4, True)


def test_a_gap_ends_at_the_last_seq_lost_against_the_readers_will(shared: Shared, log: Log, reader: Reader) -> None:
    page = read(reader, lay(shared, log, topic(CAPPED, DELETED, DELETED, LIVE)))
    assert (gap(page), page["tombstone"]["earliest_seq"], seqs(page)) == ((1, 1, "cap"), 4, [4])


def test_a_wholly_deleted_topic_moves_the_cursor_to_its_head(shared: Shared, log: Log, reader: Reader) -> None:
    page = read(reader, lay(shared, log, topic(DELETED, DELETED)))
    assert (gap(page), page["records"], page["next_from_seq"], page["earliest_seq"], page["caught_up"]) == (None, [], 2, 3, True)


@pytest.mark.parametrize(
    ("kinds", "from_seq", "reason"),
    [
        ((CAPPED, EXPIRED, CAPPED, LIVE), 0, "mixed"),
        ((CAPPED, EXPIRED, CAPPED, LIVE), 1, "mixed"),
        ((CAPPED, EXPIRED, CAPPED, LIVE), 2, "cap"),
        ((CAPPED, EXPIRED, EXPIRED, LIVE), 0, "mixed"),
        ((CAPPED, EXPIRED, EXPIRED, LIVE), 1, "ttl"),
        ((HOLE, LIVE), 0, "mixed"),
        ((CAPPED, HOLE, LIVE), 1, "mixed"),
    ],
)
def test_the_reason_names_what_reaches_into_the_gap(
    shared: Shared, log: Log, reader: Reader, kinds: tuple[str, ...], from_seq: int, reason: str
) -> None:
    page = read(reader, lay(shared, log, topic(*kinds)), from_seq=from_seq)
    assert gap(page) == (from_seq + 1, len(kinds) - 1, reason)


def test_a_record_is_expired_strictly_after_its_time(shared: Shared, log: Log, reader: Reader) -> None:
    made = topic(LIVE, LIVE, ttl_ms=1000)
    made.fates[1].ts = NOW + 10
    slot = lay(shared, log, made)
    assert seqs(read(reader, slot, NOW + 1000)) == [1, 2]
    page = read(reader, slot, NOW + 1001)
    assert (gap(page), seqs(page), page["earliest_seq"]) == ((1, 1, "ttl"), [2], 2)
    page = read(reader, slot, NOW + 1011)
    assert (gap(page), seqs(page), page["earliest_seq"], page["next_from_seq"]) == ((1, 2, "ttl"), [], 3, 2)
    assert seqs(read(reader, slot, 0)) == [1, 2]


def test_a_deleted_record_that_expires_raises_no_alarm(shared: Shared, log: Log, reader: Reader) -> None:
    made = topic(LIVE, DELETED, DELETED, LIVE, ttl_ms=1000)
    made.fates[3].ts = NOW + 500
    page = read(reader, lay(shared, log, made), NOW + 1001)
    assert (gap(page), seqs(page)) == ((1, 1, "ttl"), [4])


def test_a_floor_that_is_newer_than_earliest_is_no_silent_loss(shared: Shared, log: Log, reader: Reader) -> None:
    slot = lay(shared, log, topic(LIVE, LIVE, LIVE))
    lay_words(shared, slot, cap_lost=2)  # the writer is between two stores
    page = read(reader, slot)
    assert (gap(page), seqs(page), page["earliest_seq"]) == ((1, 2, "cap"), [3], 3)


@pytest.mark.parametrize("members", [{"from_seq": 9}, {"epoch": 6}, {"epoch": 6, "from_seq": 2}, {"from_seq": 2**64 - 1}])
def test_a_cursor_of_another_topic_instance_is_told_and_reads_from_the_start(
    shared: Shared, log: Log, reader: Reader, members: dict[str, int]
) -> None:
    page = read(reader, lay(shared, log, topic(LIVE, LIVE, LIVE)), **members)
    assert (gap(page), seqs(page), page["caught_up"]) == ((1, 3, "recreated"), [1, 2, 3], True)
    assert page["tombstone"]["earliest_seq"] == 1


def test_a_recreated_empty_topic_has_an_empty_gap(shared: Shared, log: Log, reader: Reader) -> None:
    page = read(reader, lay(shared, log, topic()), from_seq=5)
    assert (gap(page), page["tombstone"]["missed_estimate"], page["next_from_seq"], page["would_wait"]) == ((1, 0, "recreated"), 0, 0, False)


def test_the_right_epoch_is_no_alarm(shared: Shared, log: Log, reader: Reader) -> None:
    page = read(reader, lay(shared, log, topic(LIVE, LIVE)), epoch=7, from_seq=1)
    assert (gap(page), seqs(page), page["epoch"]) == (None, [2], 7)


def test_a_page_ends_before_a_hole_and_the_next_begins_with_its_tombstone(shared: Shared, log: Log, reader: Reader) -> None:
    made = topic(LIVE, LIVE, HOLE, HOLE, LIVE)
    made.fates[2].reason = made.fates[3].reason = "corrupt"
    slot = lay(shared, log, made)
    page = read(reader, slot)
    assert (gap(page), seqs(page), page["next_from_seq"], page["caught_up"]) == (None, [1, 2], 2, False)
    page = read(reader, slot, from_seq=2)
    assert (gap(page), seqs(page), page["next_from_seq"]) == ((3, 4, "corrupt"), [5], 5)
    assert page["tombstone"]["earliest_seq"] == 5
    assert gap(read(reader, slot, from_seq=3)) == (4, 4, "corrupt")


def test_a_hole_behind_skipped_records_begins_at_its_first_seq(shared: Shared, log: Log, reader: Reader) -> None:
    page = read(reader, lay(shared, log, topic(LIVE, DELETED, DELETED, HOLE, LIVE)), from_seq=1)
    assert (gap(page), seqs(page)) == ((4, 4, "mixed"), [5])


def test_a_hole_right_behind_a_tombstone_waits_for_the_next_page(shared: Shared, log: Log, reader: Reader) -> None:
    made = topic(CAPPED, LIVE, HOLE, HOLE)
    slot = lay(shared, log, made)
    lay_deletion(shared, slot, 2)
    page = read(reader, slot)
    assert (gap(page), seqs(page), page["next_from_seq"], page["caught_up"]) == ((1, 1, "cap"), [], 2, False)
    page = read(reader, slot, from_seq=2)
    assert (gap(page), page["next_from_seq"], page["caught_up"], page["would_wait"]) == ((3, 4, "mixed"), 4, True, False)


def test_touching_holes_of_two_reasons_are_one_mixed_gap(shared: Shared, log: Log, reader: Reader) -> None:
    made = topic(LIVE, HOLE, HOLE, LIVE)
    made.fates[1].reason = "corrupt"
    assert gap(read(reader, lay(shared, log, made), from_seq=1)) == (2, 3, "mixed")


# ---- filters


def test_a_reader_does_not_get_records_of_its_own_nodes(shared: Shared, log: Log, reader: Reader) -> None:
    nodes = ["a", "b", None, "", "a\n", "A"]
    made = Topic("jobs", 7, fates=[Fate(LIVE, NOW, node=node) for node in nodes])
    slot = lay(shared, log, made)
    assert seqs(read(reader, slot, node="a")) == [2, 3, 4, 5, 6]
    assert seqs(read(reader, slot, node=["a", "b", ""])) == [3, 5, 6]
    assert seqs(read(reader, slot, node="a\n")) == [1, 2, 3, 4, 6]
    assert seqs(read(reader, slot, node=[])) == [1, 2, 3, 4, 5, 6]


def test_a_topic_can_opt_out_of_the_node_filter(shared: Shared, log: Log, reader: Reader) -> None:
    slot = lay(shared, log, Topic("jobs", 7, dedupe_node=False, fates=fates(LIVE, node="a")))
    assert seqs(read(reader, slot, node="a")) == [1]


def test_a_tag_match_reads_equal_tags_or_a_prefix(shared: Shared, log: Log, reader: Reader) -> None:
    tags = ["x", "x:1", None, "", 'x"', "y"]
    slot = lay(shared, log, Topic("jobs", 7, fates=[Fate(LIVE, NOW, tag=tag) for tag in tags]))
    page = read(reader, slot, match=["tag", "Eq", "x"])
    assert (seqs(page), page["next_from_seq"], page["caught_up"]) == ([1], 6, True)
    assert seqs(read(reader, slot, match="")) == [4]
    assert seqs(read(reader, slot, match=["tag", "Glob", "x*"])) == [1, 2, 5]
    assert seqs(read(reader, slot, match=["tag", "Glob", 'x"*'])) == [5]
    assert seqs(read(reader, slot, match=["tag", "Glob", "*"])) == [1, 2, 4, 5, 6]


def test_reading_from_a_time_starts_at_the_first_record_not_before_it(shared: Shared, log: Log, reader: Reader) -> None:
    made = topic(LIVE, LIVE, LIVE, LIVE)
    for number, fate in enumerate(made.fates):
        fate.ts = NOW + 10 * number
    slot = lay(shared, log, made)
    assert seqs(read(reader, slot, from_ts=NOW + 10)) == [2, 3, 4]
    assert seqs(read(reader, slot, from_ts=NOW + 11)) == [3, 4]
    assert seqs(read(reader, slot, from_ts=NOW + 11, from_seq=3)) == [4]
    assert seqs(read(reader, slot, from_ts=0)) == [1, 2, 3, 4]
    page = read(reader, slot, from_ts=NOW + 99)
    assert (seqs(page), page["next_from_seq"], page["would_wait"]) == ([], 4, True)


def test_losses_before_the_asked_time_raise_no_alarm_but_doubtful_ones_do(shared: Shared, log: Log, reader: Reader) -> None:
    made = topic(CAPPED, CAPPED, LIVE, LIVE)
    made.fates[3].ts = NOW + 10
    slot = lay(shared, log, made)
    assert gap(read(reader, slot, from_ts=NOW + 10)) is None
    assert gap(read(reader, slot, from_ts=NOW)) == (1, 2, "cap")


# ---- ephemeral records, damage, and a writer that comes and goes


def test_ephemeral_records_are_read_from_memory(shared: Shared, reader: Reader) -> None:
    slot = lay(shared, None, Topic("jobs", 7, fates=fates(LIVE, LIVE, LIVE, meta='{"k":"v"}', node="n")))
    page = read(reader, slot, limit=2)
    assert [record["data"] for record in page["records"]] == [1, 2]
    assert page["records"][0]["meta"] == {"k": "v"}


@pytest.mark.parametrize("position", [255 << 56 | 2**40, 255 << 56 | (2**56 - 1), 9 << 56, 2**40])
def test_an_entry_that_points_nowhere_is_an_error_of_its_seq(shared: Shared, log: Log, reader: Reader, position: int) -> None:
    slot = lay(shared, log, topic(LIVE))
    lay_entries(shared, slot, 2, [(position, 10, 0, NOW)])
    lay_words(shared, slot, head=2, count=2)
    page = read(reader, slot)
    assert (seqs(page), page["next_from_seq"], page["caught_up"]) == ([1], 1, False)
    with pytest.raises(IoError) as caught:
        read(reader, slot, from_seq=1)
    assert caught.value.seq == 2


@pytest.mark.parametrize("damage", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x10\x00\x00\x00"])
@pytest.mark.parametrize("at", [0, 4, 8, 12])
def test_a_record_that_is_not_as_its_entry_says_is_an_error(shared: Shared, log: Log, reader: Reader, at: int, damage: bytes) -> None:
    slot = lay(shared, log, topic(LIVE, LIVE), batch=1)
    with log.path(0).open("r+b") as file:
        file.seek(128 + 64 + at)
        before = file.read(4)
        file.seek(128 + 64 + at)
        file.write(damage)
    if before == damage:
        return
    with pytest.raises(IoError) as caught:
        read(reader, slot)
    assert caught.value.seq == 1
    assert seqs(read(reader, slot, from_seq=1)) == [2]


def test_a_page_that_the_disk_cannot_give_ends_before_the_bad_record(shared: Shared, tmp_path: Path, reader: Reader) -> None:
    log = Log(shared, tmp_path, file_bytes=1 << 16)
    slot = lay(shared, log, Topic("jobs", 7, fates=[Fate(LIVE, NOW, '"' + "x" * 998 + '"') for _ in range(20)]))
    assert len(seqs(read(reader, slot))) == 20
    os.truncate(log.path(0), 8192)
    page = read(reader, slot)
    assert seqs(page) == list(range(1, len(seqs(page)) + 1))
    assert 0 < len(seqs(page)) < 10
    with pytest.raises(IoError) as caught:
        read(reader, slot, from_seq=page["next_from_seq"])
    assert caught.value.seq == page["next_from_seq"] + 1
    assert read(reader, slot, limit=1)["records"][0]["data"] == "x" * 998


def test_a_removed_topic_is_gone(shared: Shared, log: Log, reader: Reader) -> None:
    slot = lay(shared, log, topic(LIVE))
    assert reader.find(b"jobs") == slot
    lay_removal(shared, slot)
    assert reader.find(b"jobs") is None
    for call in (lambda: read(reader, slot), lambda: reader.state(slot, NOW), lambda: reader.summary(slot, NOW), lambda: reader.config(slot)):
        with pytest.raises(Gone):
            call()
    with pytest.raises(Gone):
        read(reader, 10**6)


def test_a_slot_that_holds_another_topic_than_asked_for_is_gone(shared: Shared, log: Log, reader: Reader) -> None:
    slot = lay(shared, log, topic(LIVE))
    assert reader.topic_id(slot) == 7
    assert reader.diff(slot, parse_diff(b""), NOW, 0, 7)[2] == 1
    with pytest.raises(Gone):
        reader.diff(slot, parse_diff(b""), NOW, 0, 8)


def test_nothing_is_read_while_a_writer_replays(shared: Shared, log: Log, reader: Reader) -> None:
    slot = lay(shared, log, topic(LIVE))
    shared.set("ready", 0)
    for call in (lambda: read(reader, slot), lambda: reader.state(slot, NOW), lambda: reader.find(b"absent")):
        with pytest.raises(Busy):
            call()
    shared.set("generation", 2)
    shared.set("ready", 1)
    assert seqs(read(reader, slot)) == [1]


# ---- state


def test_state_has_the_members_of_the_api_in_its_order(shared: Shared, log: Log, reader: Reader) -> None:
    slot = lay(shared, log, topic(CAPPED, LIVE, LIVE))
    state = reader.state(slot, NOW + 5, True)
    config = (
        b'{"type":"log","ttl_ms":0,"cap_records":0,"cap_bytes":0,"discard":"old","durable":false,"durability":"disk","priority":null,'
        b'"auto_priority":true,"auto_create":true,"idempotency_window_ms":120000,"dedupe_node":true,"lease_ms":30000,"claim_jitter_ms":0,'
        b'"max_deliveries":0,"dead_letter":null,"leases_durable":false}'
    )
    assert state == (
        b'{"topic":"jobs","type":"log","head_seq":3,"earliest_seq":2,"next_seq":4,"count":2,"bytes":2,"config":'
        + config
        + b',"effective_priority":500,"last_write_ts":1748450000000,"last_read_ts":1748450000005,"epoch":7,"performance":{"server_total_ms":0.0}}'
    )
    assert reader.config(slot) == json.loads(config)
    assert reader.summary(slot, NOW + 5) == {
        "topic": "jobs", "head_seq": 3, "earliest_seq": 2, "count": 2, "bytes": 2, "durable": False, "effective_priority": 500, "epoch": 7,
    }  # fmt: skip


def test_state_of_a_queue_shows_its_counters_and_its_whole_config(shared: Shared, reader: Reader) -> None:
    slot = lay_topic(
        shared, b"q", 9, type=1, discard=1, durability=3, flags=0x10, priority=-5000, dead_letter=b"q.dlq", ttl_ms=1, cap_records=2, cap_bytes=3,
        idempotency_window_ms=4, lease_ms=100, claim_jitter_ms=5, max_deliveries=6,
    )  # fmt: skip
    lay_words(shared, slot, queue_ready=842, queue_in_flight=288, queue_dead_lettered=4)
    state = json.loads(reader.state(slot, NOW, False))
    assert (state["type"], state["queue"]) == ("queue", {"ready": 842, "in_flight": 288, "dead_lettered": 4})
    assert state["config"] == {
        "type": "queue", "ttl_ms": 1, "cap_records": 2, "cap_bytes": 3, "discard": "reject", "durable": True, "durability": "fsync",
        "priority": -5000, "auto_priority": False, "auto_create": False, "idempotency_window_ms": 4, "dedupe_node": False, "lease_ms": 100,
        "claim_jitter_ms": 5, "max_deliveries": 6, "dead_letter": "q.dlq", "leases_durable": True,
    }  # fmt: skip
    assert (state["effective_priority"], state["last_write_ts"], state["last_read_ts"]) == (-1000, None, None)
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"]) == (0, 1, 1)


def test_what_has_expired_by_now_is_not_counted(shared: Shared, log: Log, reader: Reader) -> None:
    made = topic(LIVE, DELETED, LIVE, HOLE, LIVE, ttl_ms=100)
    made.fates[4].ts = NOW + 50
    slot = lay(shared, log, made)
    assert (reader.summary(slot, NOW + 100)["count"], reader.summary(slot, NOW + 100)["earliest_seq"]) == (3, 1)
    line = reader.summary(slot, NOW + 101)
    assert (line["count"], line["bytes"], line["earliest_seq"], line["head_seq"]) == (1, 1, 5, 5)
    line = reader.summary(slot, NOW + 151)
    assert (line["count"], line["bytes"], line["earliest_seq"], line["head_seq"]) == (0, 0, 6, 5)


def test_only_touching_reads_move_the_read_clock_and_never_back(shared: Shared, log: Log, reader: Reader) -> None:
    slot = lay(shared, log, topic(LIVE))
    reader.state(slot, NOW, False)
    reader.summary(slot, NOW)
    assert json.loads(reader.state(slot, NOW, False))["last_read_ts"] is None
    read(reader, slot, NOW)
    assert json.loads(reader.state(slot, NOW + 30_000, False))["effective_priority"] == 250
    reader.touch(slot, NOW + 10)
    reader.touch(slot, NOW + 9)
    assert json.loads(reader.state(slot, NOW, False))["last_read_ts"] == NOW + 10


def test_the_head_is_what_was_published(shared: Shared, log: Log, reader: Reader) -> None:
    made = topic(LIVE, LIVE)
    slot = lay(shared, log, made)
    assert (reader.head(slot), reader.head(10**6), reader.topic_id(10**6)) == (2, 0, 0)
    lay_words(shared, slot, head=1)
    assert seqs(read(reader, slot)) == [1]
    lay_floors(shared, slot, made)
    assert seqs(read(reader, slot)) == [1, 2]
