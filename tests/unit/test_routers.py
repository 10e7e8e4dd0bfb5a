"""Routers in the engine: A section 6, D section 8, CLARIFICATIONS Routers. Everything is read as a client reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.in_process import Library, numbers
from oracle.model import Refused
from topicsd._native.copies import meta_with_origin
from topicsd._native.slabs import memory


def datas(engine: Library, topic: str, **members: Any) -> list[Any]:
    return [record["data"] for record in engine.read_all(topic, **members)[0]]


def seqs(engine: Library, topic: str) -> list[int]:
    return [record["$seq"] for record in engine.read_all(topic)[0]]


def log_bytes(engine: Library) -> int:
    return int(engine.store.shards[0].written_position)


# ---- what a copy is ------------------------------------------------------------------------------------------------------------


def test_a_copy_carries_node_tag_meta_and_data_and_counts_for_itself(engine: Library) -> None:
    engine.append("to", numbers("before"))
    engine.route("from", "to")
    record = {"data": {"a": [1]}, "tag": "t", "node": "n", "meta": {"k": "v"}}
    engine.append("from", [record, {"data": 2}])
    first, second = engine.diff("to", 1)["records"]
    assert {name: first[name] for name in record} == record and first["$seq"] == 2
    assert second["data"] == 2 and second["$seq"] == 3 and "tag" not in second
    state, source = engine.state("to"), engine.state("from")
    assert state["count"] == 3 and state["bytes"] == source["bytes"] + len('"before"')


def test_a_copy_can_lose_its_node_and_its_tag_and_then_does_not_count_them(engine: Library) -> None:
    engine.route("from", "to", preserve_node=False, preserve_tag=False)
    engine.append("from", [{"data": 1, "tag": "ttt", "node": "nnn"}])
    [copy] = engine.diff("to")["records"]
    assert set(copy) == {"$seq", "$ts", "data"} and engine.state("to")["bytes"] == 1
    assert datas(engine, "to", node="nnn") == [1], "nobody knows any more who wrote it"
    assert datas(engine, "to", match=["tag", "Eq", "ttt"]) == []
    assert engine.delete("to", match=["tag", "Eq", "ttt"])["deleted"] == 0


def test_node_and_tag_of_copies_are_filtered_as_those_of_any_record(engine: Library) -> None:
    engine.route("from", "to")
    engine.append("from", [{"data": 1, "node": "a", "tag": "x"}, {"data": 2, "node": "b", "tag": "y"}])
    assert datas(engine, "to", node="a") == [2] and datas(engine, "to", match=["tag", "Eq", "x"]) == [1]


def test_payload_is_never_written_again_whatever_the_fan_out(engine: Library) -> None:
    for number in range(100):
        engine.route("from", f"to.{number:03}")
    engine.append("from", numbers("warm"))
    before = log_bytes(engine)
    engine.append("from", numbers("x" * 100_000))
    written = log_bytes(engine) - before
    assert 100_000 < written < 100_000 + 100 * 16 + 1000, "one payload and a row of 16 bytes a router"
    assert all(datas(engine, f"to.{number:03}") == ["warm", "x" * 100_000] for number in range(100))


def test_a_copy_outlives_the_deletion_of_its_source_record_and_of_its_source(engine: Library) -> None:
    engine.route("from", "to")
    engine.append("from", numbers(1, 2))
    engine.delete("from", before_seq=3)
    assert datas(engine, "from") == [] and datas(engine, "to") == [1, 2]
    assert engine.call({"op": "topic.delete", "topic": "from"})["routers_removed"] == ["from->to"]
    engine.put("from")
    engine.append("from", numbers(9))
    engine.stop()
    assert datas(engine, "to") == [1, 2]


def test_a_delete_in_the_destination_leaves_the_source_alone(engine: Library) -> None:
    engine.route("from", "to")
    engine.append("from", [{"data": 1, "tag": "a"}, {"data": 2, "tag": "b"}])
    assert engine.delete("to", match=["tag", "Eq", "a"])["deleted"] == 1
    assert datas(engine, "to") == [2] and datas(engine, "from") == [1, 2]
    engine.kill()
    assert datas(engine, "to") == [2] and datas(engine, "from") == [1, 2]


def test_ttl_and_caps_of_the_destination_count_by_its_own_ts(engine: Library, clock: FakeClock) -> None:
    engine.put("to", cap_records=2, ttl_ms=1000)
    engine.route("from", "to")
    engine.append("from", numbers(1, 2, 3))
    assert datas(engine, "to") == [2, 3] and engine.diff("to")["tombstone"]["reason"] == "cap"
    clock.advance(1001)
    assert datas(engine, "to") == [] and datas(engine, "from") == [1, 2, 3]


def test_filters_take_one_tag_or_all_with_a_prefix(engine: Library) -> None:
    engine.route("from", "one", filter=["tag", "Eq", "a:1"])
    engine.route("from", "many", filter=["tag", "Glob", "a:*"])
    engine.route("from", "tagged", filter=["tag", "Glob", "*"])
    engine.append("from", [{"data": 1, "tag": "a:1"}, {"data": 2}, {"data": 3, "tag": "a:2"}, {"data": 4, "tag": "b"}])
    assert (datas(engine, "one"), datas(engine, "many"), datas(engine, "tagged")) == ([1], [1, 3], [1, 3, 4])
    assert seqs(engine, "many") == [1, 2]


# ---- exactly once --------------------------------------------------------------------------------------------------------------


def test_an_exactly_once_copy_says_where_it_comes_from_and_keeps_the_rest_of_its_meta(engine: Library) -> None:
    engine.append("from", numbers(0))
    engine.route("from", "to", guarantee="exactly_once", filter=["tag", "Glob", "*"])
    epoch = engine.state("from")["epoch"]
    engine.append("from", [{"data": 1, "tag": "t", "meta": {"a": "b", "_topics_router": "mine"}}, {"data": 2}, {"data": 3, "tag": "u"}])
    first, second = engine.diff("to", include_meta=True)["records"]
    assert first["meta"] == {"_topics_router": f"router:from->to:{epoch}:{epoch}:2", "a": "b"}
    assert second["meta"] == {"_topics_router": f"router:from->to:{epoch}:{epoch}:4"}
    for restart in (engine.kill, engine.stop):
        restart()
        assert [record["meta"] for record in engine.diff("to", include_meta=True)["records"]] == [first["meta"], second["meta"]]


def test_a_copy_of_an_exactly_once_copy_keeps_its_meta_or_gets_one_of_its_own(engine: Library) -> None:
    engine.route("a", "b", guarantee="exactly_once")
    engine.append("b", numbers("direct"))
    engine.route("b", "c")
    engine.route("b", "d", guarantee="exactly_once")
    engine.append("a", numbers(1))
    [of_b] = engine.diff("b", 1)["records"]
    [of_c], [of_d] = engine.diff("c")["records"], engine.diff("d")["records"]
    epoch = engine.state("b")["epoch"]
    assert of_c["meta"] == of_b["meta"] and of_d["meta"] == {"_topics_router": f"router:b->d:{epoch}:{epoch}:2"}


def test_exactly_once_routers_that_take_turns_hold_no_more_memory_than_their_destination_needs(engine: Library) -> None:
    engine.append("warm", numbers(0))
    before, _ = memory(engine.shared)
    engine.put("from", cap_records=10)
    engine.put("to", cap_records=10)

    def turns(count: int) -> int:
        for number in range(count):
            for router in ("first", "second"):
                engine.route("from", "to", router=router, guarantee="exactly_once")
                engine.append("from", numbers(number))
                engine.call({"op": "router.delete", "router": router})
        return memory(engine.shared)[0]

    first = turns(100)
    assert turns(1000) <= first
    origins = [record["meta"]["_topics_router"].split(":")[1] for record in engine.diff("to", include_meta=True)["records"]]
    assert origins == ["first", "second"] * 5
    for name in ("from", "to"):
        engine.drop(name)
    assert memory(engine.shared)[0] <= before


def test_meta_loses_an_origin_of_its_own_however_it_is_spelt() -> None:
    for meta in (b"", b"{}", b'{ "_topics_router" : "x" }', b'{"\\u005ftopics_r\\u006Futer":"x\\"}"}'):
        assert meta_with_origin(b"router:r:1:1:", 7, meta) == b'{"_topics_router":"router:r:1:1:7"}'
    kept = meta_with_origin(b"router:r:1:1:", 7, b'{"a":"}\\"", "_topics_router":"x","_topics_router2":"y", "_topics\\n":"z"}')
    assert kept == b'{"_topics_router":"router:r:1:1:7","a":"}\\"","_topics_router2":"y","_topics\\n":"z"}'


# ---- registry ------------------------------------------------------------------------------------------------------------------


def test_a_destination_has_one_source_and_one_router(engine: Library) -> None:
    engine.route("a", "c")
    for source, name in (("b", "b->c"), ("a", "again")):
        with pytest.raises(Refused, match="topic_exists_incompatible"):
            engine.route(source, "c", name)
    with pytest.raises(Refused, match="topic_exists_incompatible"):
        engine.route("a", "d", "a->c")
    assert engine.names() == ["a", "c"], "what is refused creates nothing"


def test_cycles_are_refused_with_their_path_unless_they_are_asked_for(engine: Library) -> None:
    engine.route("a", "b")
    engine.route("b", "c")
    with pytest.raises(Refused, match="router_cycle"):
        engine.route("c", "a")
    engine.route("c", "a", allow_cycle=True)
    engine.append("a", numbers(1))
    # a(0) b(1) c(2) a(3) b(4) c(5) a(6) b(7) c(8): eight hops
    assert [len(datas(engine, topic)) for topic in "abc"] == [3, 3, 3]
    engine.stop()
    assert [len(datas(engine, topic)) for topic in "abc"] == [3, 3, 3]


def test_a_chain_is_as_long_as_it_likes(engine: Library) -> None:
    for number in range(20):
        engine.route(f"t{number}", f"t{number + 1}")
    engine.append("t0", numbers(1))
    assert datas(engine, "t20") == [1]
    engine.kill()
    assert [datas(engine, f"t{number}") for number in range(21)] == [[1]] * 21


def test_a_changed_router_forwards_by_its_new_rule_from_then_on(engine: Library) -> None:
    engine.route("from", "to")
    engine.append("from", [{"data": 1, "tag": "x"}])
    assert engine.route("from", "to", filter=["tag", "Eq", "y"], preserve_tag=False) is False
    engine.append("from", [{"data": 2, "tag": "x"}, {"data": 3, "tag": "y"}])
    expected = [(1, "x"), (3, None)]
    assert [(record["data"], record.get("tag")) for record in engine.diff("to")["records"]] == expected
    engine.kill()
    assert [(record["data"], record.get("tag")) for record in engine.diff("to")["records"]] == expected


def test_a_router_refused_for_want_of_topics_leaves_none_behind(make: Callable[..., Library]) -> None:
    engine = make(topics_max=2)
    engine.put("one")
    with pytest.raises(Refused, match="throttled"):
        engine.route("x", "y")
    assert engine.names() == ["one"]
    engine.route("one", "two")


# ---- where it starts -----------------------------------------------------------------------------------------------------------


def test_a_router_starts_at_the_head_or_where_it_is_told(engine: Library) -> None:
    engine.append("from", numbers(*range(1, 11)))
    engine.route("from", "head")
    engine.route("from", "all", from_seq=0)
    engine.route("from", "some", from_seq=7)
    engine.route("from", "beyond", from_seq=1 << 50)
    engine.append("from", numbers(11))
    expected = {"head": [11], "all": list(range(1, 12)), "some": [8, 9, 10, 11], "beyond": [11]}
    assert {topic: datas(engine, topic) for topic in expected} == expected
    engine.kill()
    assert {topic: datas(engine, topic) for topic in expected} == expected


def test_a_back_fill_takes_what_is_retained_and_passes_what_was_deleted(engine: Library) -> None:
    engine.put("from", cap_records=6)
    engine.append("from", [{"data": n, "tag": f"t{n % 2}"} for n in range(10)])
    engine.delete("from", match=["tag", "Eq", "t1"])
    engine.route("from", "to", from_seq=0)
    records, tombstones = engine.read_all("to")
    assert [record["data"] for record in records] == [4, 6, 8] and tombstones == []
    assert [record["tag"] for record in records] == ["t0"] * 3
    assert engine.delete("to", match=["tag", "Eq", "t0"])["deleted"] == 3


def test_a_back_fill_larger_than_a_slice_keeps_order(engine: Library) -> None:
    for start in range(0, 20_000, 1000):
        engine.append("from", [{"data": n, "tag": f"tag-{n}"} for n in range(start, start + 1000)])
    engine.route("from", "to", from_seq=0)
    assert datas(engine, "to", limit=1000) == list(range(20_000))
    engine.kill()
    assert datas(engine, "to", limit=1000) == list(range(20_000))
    assert engine.delete("to", match=["tag", "Eq", "tag-777"])["deleted"] == 1, "the tags of copies are found after a replay"


# ---- backpressure and loss -----------------------------------------------------------------------------------------------------


def test_a_full_destination_holds_its_router_up_and_loses_nothing(engine: Library, clock: FakeClock) -> None:
    engine.put("to", cap_records=3, discard="reject")
    engine.route("from", "to")
    engine.append("from", numbers(*range(8)))
    assert datas(engine, "to") == [0, 1, 2]
    assert engine.router("from->to")["blocked"] is True and engine.router("from->to")["lag"] == 5
    engine.kill()
    assert datas(engine, "to") == [0, 1, 2]
    engine.delete("to", before_seq=3)
    assert datas(engine, "to") == [2, 3, 4]
    engine.delete("to", before_seq=10)
    engine.stop()
    assert datas(engine, "to") == [5, 6, 7] and engine.router("from->to")["forwarded_total"] == 8


def test_a_destination_that_makes_room_by_time_goes_on_by_itself(engine: Library, clock: FakeClock) -> None:
    engine.put("to", cap_records=2, discard="reject", ttl_ms=5000)
    engine.route("from", "to")
    engine.append("from", numbers(1, 2, 3))
    assert datas(engine, "to") == [1, 2]
    clock.advance(5001)
    engine.engine.tick()
    engine.sequencer.sync()
    assert datas(engine, "to") == [3]


def test_what_the_source_loses_before_it_is_forwarded_is_one_tombstone_in_the_destination(engine: Library) -> None:
    engine.put("from", cap_records=1 << 15)
    engine.put("to", cap_records=2, discard="reject")
    engine.route("from", "to")
    tag = "t" * 200  # what is noted of a record has a bound of 4 MiB: 20,000 of these
    for start in range(0, 40_000, 1000):
        engine.append("from", [{"data": f"{n}x", "tag": tag} for n in range(start, start + 1000)])
    engine.put("from", cap_records=3)
    engine.put("to")
    records, tombstones = engine.read_all("to", limit=1000)
    values = [int(record["data"].split("x")[0]) for record in records]
    assert values[:2] == [0, 1] and values == sorted(values) and values[-1] == 39_999
    lost = sum(tombstone["missed_estimate"] for tombstone in tombstones)
    assert [tombstone["reason"] for tombstone in tombstones] == ["source_trim"]
    assert len(values) + lost == 40_000 and lost > 0
    assert engine.router("from->to")["lost"] == lost
    engine.kill()
    assert engine.read_all("to", limit=1000) == (records, tombstones)


def test_a_source_with_a_tiny_cap_forwards_all_that_came_in(engine: Library) -> None:
    engine.put("from", cap_records=1)
    engine.route("from", "to")
    engine.append("from", [{"data": n, "tag": f"t{n}"} for n in range(50)])
    assert datas(engine, "to") == list(range(50)) and datas(engine, "from") == [49]
    engine.kill()
    assert datas(engine, "to") == list(range(50)) and engine.delete("to", match=["tag", "Eq", "t7"])["deleted"] == 1


def test_a_record_deleted_before_it_was_forwarded_is_passed_in_silence(engine: Library) -> None:
    engine.put("to", cap_records=1, discard="reject")
    engine.route("from", "to")
    engine.append("from", [{"data": n, "tag": f"t{n}"} for n in range(6)])
    engine.delete("from", match=["tag", "Eq", "t2"])
    engine.delete("from", before_seq=2)
    engine.put("to")
    assert engine.read_all("to") == (engine.read_all("to")[0], []) and datas(engine, "to") == [0, 1, 3, 4, 5]
    engine.stop()
    assert datas(engine, "to") == [0, 1, 3, 4, 5]


# ---- classes -------------------------------------------------------------------------------------------------------------------


def test_records_of_an_fsync_source_are_copied_once_they_are_synced(engine: Library) -> None:
    engine.put("from", durability="fsync")
    engine.route("from", "to")
    engine.synced = False
    engine.send("from", numbers(1))
    engine.sequencer.flush()
    assert datas(engine, "to") == []
    engine.sequencer.sync()
    assert datas(engine, "to") == [1]


def test_copies_queue_behind_a_batch_of_their_destination_that_waits_for_a_sync(engine: Library) -> None:
    engine.put("to", durability="fsync")
    engine.route("from", "to")
    engine.synced = False
    engine.send("to", numbers("direct"))
    engine.sequencer.flush()
    engine.send("from", numbers("copy"))
    engine.sequencer.flush()
    engine.send("to", numbers("again"))
    engine.sequencer.flush()
    assert datas(engine, "to") == []
    engine.sequencer.sync()
    assert datas(engine, "to") == ["direct", "copy", "again"] and seqs(engine, "to") == [1, 2, 3]
    engine.kill()
    assert datas(engine, "to") == ["direct", "copy", "again"]


def test_ephemeral_records_reach_a_lasting_destination_and_stay_there(engine: Library) -> None:
    engine.put("from", durability="ephemeral", cap_records=1)
    engine.route("from", "to", guarantee="exactly_once", preserve_node=False)
    engine.append("from", [{"data": n, "tag": f"t{n}", "node": "n", "meta": {"k": "v"}} for n in range(5)])
    epoch = engine.state("from")["epoch"]

    def check() -> None:
        records, _ = engine.read_all("to")
        assert [(record["$seq"], record["data"], record["tag"]) for record in records] == [(n + 1, n, f"t{n}") for n in range(5)]
        assert all("node" not in record for record in records)
        assert records[2]["meta"] == {"_topics_router": f"router:from->to:{epoch}:{epoch}:3", "k": "v"}

    check()
    engine.kill()
    check()
    engine.append("from", numbers("after"))
    assert datas(engine, "to")[5:] == ["after"]


def test_an_ephemeral_destination_loses_its_copies_with_the_server_and_gets_none_twice(engine: Library) -> None:
    engine.put("to", durability="ephemeral")
    engine.route("from", "to")
    engine.append("from", numbers(1, 2))
    head = engine.state("to")["head"]
    engine.kill()
    records, tombstones = engine.read_all("to")
    assert records == [] and tombstones[0]["reason"] == "mixed" and engine.state("to")["head"] >= head
    engine.append("from", numbers(3))
    assert datas(engine, "to") == [3] and datas(engine, "from") == [1, 2, 3]


def test_a_router_between_shards_writes_its_copies_out_and_survives_restarts(make: Callable[..., Library]) -> None:
    engine = make(shards=2)
    for topic in ("a", "b", "c"):
        engine.put(topic)
    shards = {topic: engine.sequencer.topic(engine.sequencer.find(topic.encode()))["shard"] for topic in "abc"}
    assert shards["a"] != shards["b"] == 1 - shards["c"]
    engine.route("a", "b", guarantee="exactly_once")
    engine.route("b", "c", filter=["tag", "Glob", "*"])
    engine.append("a", [{"data": 1, "tag": "x"}, {"data": 2}])
    engine.append("b", numbers("direct", tag="y"))

    def check() -> None:
        assert datas(engine, "b") == [1, 2, "direct"] and datas(engine, "c") == [1, "direct"]
        assert engine.diff("c")["records"][0]["meta"] == engine.diff("b")["records"][0]["meta"] != {}

    check()
    for restart in (engine.kill, engine.stop, engine.kill):
        restart()
        check()
    engine.append("a", numbers(3, tag="z"))
    assert datas(engine, "b") == [1, 2, "direct", 3] and datas(engine, "c") == [1, "direct", 3]


# ---- restarts ------------------------------------------------------------------------------------------------------------------


def test_a_kill_between_a_source_batch_and_its_cursor_frame_forwards_it_at_the_next_start(engine: Library) -> None:
    engine.route("from", "to")
    engine.append("from", numbers(1))
    router = engine.router("from->to")
    assert router["forwarded_total"] == 1 and router["lag"] == 0
    engine.call({"op": "router.delete", "router": "from->to"})
    engine.append("from", numbers(2))
    engine.route("from", "to", from_seq=1)
    assert datas(engine, "to") == [1, 2]
    engine.kill()
    assert datas(engine, "to") == [1, 2] and engine.router("from->to")["forwarded_total"] == 1


def test_direct_writes_and_copies_keep_their_places_over_restarts(engine: Library) -> None:
    engine.route("from", "to")
    for number in range(30):
        engine.append("from" if number % 3 else "to", numbers(number))
    expected = datas(engine, "to")
    assert sorted(expected) == list(range(30))
    for restart in (engine.kill, engine.stop, engine.kill):
        restart()
        assert datas(engine, "to") == expected and seqs(engine, "to") == list(range(1, len(expected) + 1))
        engine.append("from", numbers("more"))
        expected.append("more")
        assert datas(engine, "to") == expected


def test_a_reboot_hands_out_no_seq_of_a_destination_twice(engine: Library) -> None:
    engine.route("from", "to")
    engine.append("from", numbers(1, 2, 3))
    head = engine.state("to")["head"]
    engine.reboot()
    assert datas(engine, "to") == [1, 2, 3]
    engine.append("from", numbers(4))
    records, _ = engine.read_all("to")
    assert [record["data"] for record in records] == [1, 2, 3, 4] and records[-1]["$seq"] > head


def test_deleting_a_topic_takes_its_routers_and_leaves_the_others(engine: Library) -> None:
    engine.route("left", "middle")
    engine.route("middle", "right")
    engine.route("left", "other")
    assert engine.call({"op": "topic.delete", "topic": "middle"})["routers_removed"] == ["left->middle", "middle->right"]
    engine.kill()
    assert engine.routers() == ["left->other"]
    engine.append("left", numbers(1))
    assert datas(engine, "other") == [1]
