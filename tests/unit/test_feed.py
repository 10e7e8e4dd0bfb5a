"""The feed: which events a watcher gets, in which order, with which ids (A §7.4-§7.6, D §5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.feed_house import FeedHouse, Sink, decoded
from topicsd._native.feed import SSE
from topicsd.api.watch import rewind


@pytest.fixture
def house(tmp_path: Path) -> FeedHouse:
    return FeedHouse(tmp_path)


def test_a_backlog_is_one_record_frame_then_caught_up_and_the_ids_are_the_cursor_behind_them(house: FeedHouse) -> None:
    house.append("t", "a", "b")
    sink = house.follow({"t": 0})
    assert sink.data.startswith(b"retry: 2000\n: hb ")
    record, caught = sink.events()
    assert (record["event"], record["from_seq"], record["to_seq"], record["head_seq"]) == ("record", 0, 2, 2)
    assert [each["data"] for each in record["records"]] == ["a", "b"]
    epoch = house.epoch("t")
    assert record["id"] == caught["id"] == {"t": 2, "$epochs": {"t": epoch}}
    assert (caught["event"], caught["head_seq"]) == ("caught-up", 2)


def test_a_live_record_comes_without_another_caught_up(house: FeedHouse) -> None:
    house.append("t", 1)
    sink = house.follow({"t": 1})
    assert sink.brief() == [("caught-up", "t", 1)]
    house.append("t", 2)
    house.append("t", 3, 4)
    assert sink.brief() == [("record", "t", [2]), ("record", "t", [3, 4])]


def test_a_frame_has_no_more_records_than_the_limit(house: FeedHouse) -> None:
    house.append("t", *range(5))
    sink = house.follow({"t": 0}, limit=2)
    assert sink.brief() == [("record", "t", [1, 2]), ("record", "t", [3, 4]), ("record", "t", [5]), ("caught-up", "t", 5)]


def test_a_frame_ends_before_its_byte_budget_is_passed_but_has_a_record(house: FeedHouse) -> None:
    house.append("t", *["x" * 100] * 5)
    sink = house.follow({"t": 0}, max_batch_bytes=250)
    assert [event[2] for event in sink.brief() if event[0] == "record"] == [[1, 2], [3, 4], [5]]
    tiny = house.follow({"t": 0}, max_batch_bytes=1)
    assert [event[2] for event in tiny.brief() if event[0] == "record"] == [[1], [2], [3], [4], [5]]


def test_a_raw_line_feed_in_data_becomes_a_space(house: FeedHouse) -> None:
    from topicsd._native import frame, scan

    house.engine_house.put("t")
    write = scan.parse_write(b'{"records":[{"data":{"a":\n1,\r\n"b":"x"}}]}')
    slot = house.engine_house.sequencer.find(b"t")
    raw = frame.build(2, write.encode(None), count=1, topic_id=house.epoch("t"))
    house.engine_house.sequencer.append_frame(slot, raw, 1, house.clock.wall_ms(), house.clock.mono_ms())
    house.engine_house.sequencer.flush()
    sink = house.follow({"t": 0})
    assert b'"data":{"a": 1,  "b":"x"}' in sink.data
    assert b"\r" not in sink.data


def test_own_records_are_passed_in_silence_and_the_cursor_moves(house: FeedHouse) -> None:
    house.append("t", 1, node="me")
    sink = house.follow({"t": 0}, node="me")
    (caught,) = sink.events()
    assert (caught["event"], caught["id"]["t"]) == ("caught-up", 1)
    house.append("t", 2, node="me")
    assert sink.events() == []
    house.append("t", 3, node="you")
    (record,) = sink.events()
    assert ([each["$seq"] for each in record["records"]], record["from_seq"], record["to_seq"]) == ([3], 2, 3)


def test_a_match_passes_the_other_tags(house: FeedHouse) -> None:
    house.engine_house.append("t", [{"data": 1, "tag": "a:1"}, {"data": 2, "tag": "b"}, {"data": 3, "tag": "a:2"}])
    sink = house.follow({"t": 0}, match=["tag", "Glob", "a:*"])
    assert sink.brief() == [("record", "t", [1, 3]), ("caught-up", "t", 3)]


def test_a_gap_is_a_tombstone_whose_id_stands_behind_it(house: FeedHouse) -> None:
    house.engine_house.put("t", cap_records=3)
    for value in range(6):
        house.append("t", value)
    gap, record, caught = house.follow({"t": 0}).events()
    shown = {name: gap[name] for name in ("event", "topic", "reason", "gap_from", "gap_to", "earliest_seq", "head_seq", "missed_estimate")}
    assert shown == {
        "event": "tombstone", "topic": "t", "reason": "cap", "gap_from": 1, "gap_to": 3, "earliest_seq": 4, "head_seq": 6, "missed_estimate": 3,
    }  # fmt: skip
    assert (gap["id"]["t"], record["from_seq"], record["id"]["t"], caught["id"]["t"]) == (3, 3, 6, 6)


def test_a_deleted_topic_is_told_with_its_head_and_the_rest_goes_on(house: FeedHouse) -> None:
    house.append("a", 1, 2, 3)
    house.append("b", 1)
    sink = house.follow({"a": 0, "b": 0})
    sink.events()
    house.engine_house.drop("a")
    house.turn()
    (gone,) = sink.events()
    assert (gone["event"], gone["topic"], gone["head_seq"], gone["reason"], gone["id"]["a"]) == ("topic-deleted", "a", 3, "deleted", 3)
    house.append("a", "another topic")
    house.append("b", 2)
    assert sink.brief() == [("record", "b", [2])]


def test_a_topic_made_again_is_recreated_for_the_next_stream_of_the_session(house: FeedHouse) -> None:
    house.append("t", 1, 2, 3)
    wid = house.session({"t": 0})
    sink = house.follow(wid)
    house.engine_house.drop("t")
    house.turn()
    sink.stream.close()
    house.append("t", "new")
    again = house.follow(wid)
    gap, record, caught = again.events()
    assert (gap["event"], gap["reason"], gap["id"]["t"]) == ("tombstone", "recreated", 0)
    assert gap["id"]["$epochs"]["t"] == house.epoch("t")
    assert ([each["data"] for each in record["records"]], record["id"]["t"], caught["event"]) == (["new"], 1, "caught-up")


def test_a_topic_that_is_gone_when_a_stream_opens_is_told_and_the_stream_stays(house: FeedHouse) -> None:
    house.append("t", 1)
    wid = house.session({"t": 1})
    house.engine_house.drop("t")
    sink = house.follow(wid)
    assert sink.brief() == [("topic-deleted", "t", 1)]
    assert not sink.stream.closed


def test_equal_watchers_share_one_rendered_frame(house: FeedHouse) -> None:
    house.engine_house.put("t")
    sinks = [house.follow({"t": 0}) for _ in range(5)]
    views = {id(house.feed.view(0)) for _ in range(3)}
    house.append("t", "x")
    assert len(views) == 1
    assert {sink.data.split(b"event: record")[1] for sink in sinks} == {sinks[0].data.split(b"event: record")[1]}


def test_a_stalled_reader_falls_behind_without_holding_others_up_and_catches_up_in_few_frames(house: FeedHouse) -> None:
    house.engine_house.put("t")
    slow, quick = house.follow({"t": 0}), house.follow({"t": 0})
    slow.stalled = True
    for value in range(100):
        house.append("t", value)
    assert [event[2] for event in quick.brief() if event[0] == "record"] == [[seq] for seq in range(1, 101)]
    assert len(slow.pending) < 1000, "one send is held, and nothing behind it"
    slow.flow()
    house.turn()
    frames = [event[2] for event in slow.brief() if event[0] == "record"]
    assert [seq for frame in frames for seq in frame] == list(range(1, 101))
    assert len(frames) == 2


def test_a_reader_that_stays_stalled_for_thirty_seconds_is_closed_and_its_session_resumes_exactly(house: FeedHouse) -> None:
    house.engine_house.put("t")
    wid = house.session({"t": 0})
    sink = house.follow(wid)
    house.append("t", 1)
    sink.stalled = True
    house.append("t", 2)
    house.append("t", 3)
    house.clock.advance(29_000)
    house.tell_time()
    house.feed.tick()
    assert sink.ended is None
    house.clock.advance(2_000)
    house.tell_time()
    house.feed.tick()
    assert sink.ended is not None
    assert sink.ended[0] == 408
    assert b"event: error" in sink.pending
    again = house.follow(wid)
    assert again.brief() == [("record", "t", [3]), ("caught-up", "t", 3)], "what was handed to the socket counts; the id takes it back"


def test_a_heartbeat_comes_when_nothing_else_did_for_its_time(house: FeedHouse) -> None:
    house.engine_house.put("t")
    sink = house.follow({"t": 0})
    before = len(sink.data)
    house.clock.advance(14_900)
    house.tell_time()
    house.feed.tick()
    assert len(sink.data) == before
    house.clock.advance(200)
    house.tell_time()
    house.feed.tick()
    assert sink.data[before:] == b": hb %d\n\n" % house.clock.wall_ms()
    house.append("t", 1)
    house.clock.advance(14_000)
    house.tell_time()
    before = len(sink.data)
    house.feed.tick()
    assert len(sink.data) == before, "a record counts as life"


def test_a_second_stream_takes_the_session_over_and_the_first_is_told(house: FeedHouse) -> None:
    house.append("t", 1)
    wid = house.session({"t": 0})
    first = house.follow(wid)
    second = house.follow(wid)
    house.append("t", 2)
    house.feed.tick()
    assert [event[0] for event in first.brief()] == ["record", "caught-up", "error"]
    assert first.ended is not None
    assert first.ended[0] == 409
    assert second.brief() == [("caught-up", "t", 1), ("record", "t", [2])]


def test_a_new_writer_changes_nothing_for_the_watchers(house: FeedHouse) -> None:
    house.append("t", 1)
    house.append("u", 1)
    sink = house.follow({"t": 0, "u": 0})
    sink.events()
    house.engine_house.shared.ready = False
    house.engine_house.kill()
    house.feed.dirty(None)
    house.turn()
    assert sink.events() == [], "nothing is told before the feed knows the new writer's slots"
    house.feed.restart()
    house.append("u", 2)
    assert sink.brief() == [("record", "u", [2])]


def test_removing_a_watch_stops_its_frames_at_once(house: FeedHouse) -> None:
    house.append("t", 1)
    house.append("u", 1)
    sink = house.follow({"t": 1, "u": 1})
    sink.events()
    assert sink.stream.remove(b"t")
    assert not sink.stream.remove(b"t")
    house.append("t", 2)
    house.append("u", 2)
    assert sink.brief() == [("record", "u", [2])]


def test_many_topics_make_ids_into_tokens_and_a_token_goes_back_exactly(house: FeedHouse) -> None:
    names = [f"a-topic-with-a-long-name-{n:03}" for n in range(40)]
    for name in names:
        house.append(name, 1)
    wid = house.session(dict.fromkeys(names, 0))
    sink = house.follow(wid)
    events = sink.events()
    assert all(set(event["id"]) == {"$session", "$at"} for event in events)
    assert len({event["id"]["$session"] for event in events}) == 1
    seen = events[: len(events) // 2]
    number = seen[-1]["id"]["$at"]
    told = {event["topic"] for event in seen if event["event"] == "record"}
    sink.stream.close()
    session = house.sessions.open(wid, house.ring, house.clock.wall_ms())
    assert session.tag == seen[-1]["id"]["$session"]
    session.rewind_to(number)
    assert {name.decode() for name, _epoch, seq, _flags in session.rows() if seq == 1} == told
    session.close(house.clock.wall_ms())
    again = house.follow(wid)
    assert {event["topic"] for event in again.events() if event["event"] == "record"} == set(names) - told


def test_records_come_in_order_once_whatever_stalls(house: FeedHouse) -> None:
    import random

    house.engine_house.put("t", cap_records=50)
    sinks = [house.follow({"t": 0}, limit=limit) for limit in (1, 7, 256)]
    chance = random.Random(7)
    for value in range(300):
        for sink in sinks:
            if chance.random() < 0.2:
                sink.stalled = True
            elif chance.random() < 0.3:
                sink.flow()
        house.append("t", *range(value % 5 + 1))
    for sink in sinks:
        sink.flow()
    house.turn()
    head = house.engine_house.state("t")["head"]
    for sink in sinks:
        at = 0
        for event in sink.brief():
            if event[0] == "record":
                assert event[2] == list(range(at + 1, at + 1 + len(event[2])))
                at = event[2][-1]
            elif event[0] == "tombstone":
                assert event[3] == at + 1
                at = event[4]
        assert at == head


# ---- the scheduler at work ---------------------------------------------------------------------------------------------------


def flooded(house: FeedHouse, topics: int, **config: int) -> list[Sink]:
    """Let many topics with a priority wait, each with a watcher."""
    sinks = []
    for number in range(topics):
        name = f"flood-{number}"
        house.engine_house.put(name, priority=config.get("priority", 0))
        sinks.append(house.follow({name: 0}))
    house.engine_house.put("hot", priority=1000)
    return sinks


def one_turn(house: FeedHouse) -> None:
    """Serve one topic: a slice of a nanosecond."""
    house.tell_time()
    house.port.drain(lambda token, answer: None)
    house.feed.dirty(house.port.dirty())
    house.feed.run(1)


def test_the_highest_topic_is_delivered_next_whatever_waits_already(house: FeedHouse) -> None:
    sinks = flooded(house, 8)
    hot = house.follow({"hot": 0})
    hot.brief()
    for number in range(8):
        house.engine_house.append(f"flood-{number}", [{"data": 1}])
    one_turn(house)
    house.engine_house.append("hot", [{"data": "now"}])
    one_turn(house)
    assert hot.brief() == [("record", "hot", [1])], "it came last and goes first"
    assert sum(b"event: record" in sink.data for sink in sinks) == 1
    house.turn()
    assert all(b"event: record" in sink.data for sink in sinks), "and nobody is forgotten"


def test_the_lowest_topic_is_delivered_within_ten_seconds_of_an_endless_flood_above_it(house: FeedHouse) -> None:
    low = flooded(house, 1, priority=-1000)[0]
    low.brief()
    hot = house.follow({"hot": 0})
    house.engine_house.append("flood-0", [{"data": 1}])
    house.engine_house.append("hot", [{"data": 0}])
    waited_ms = 0
    while b"event: record" not in low.data and waited_ms < 30_000:
        one_turn(house)
        house.engine_house.append("hot", [{"data": 1}])
        house.clock.advance(100)
        waited_ms += 100
    assert 5_000 <= waited_ms <= 10_500, "the band decides until it is overdue"
    one_turn(house)
    assert hot.events(), "the flood went on meanwhile"


def test_strong_watchers_get_what_is_on_the_disk_and_others_at_once(tmp_path: Path) -> None:
    house = FeedHouse(tmp_path, synced=False)
    house.engine_house.append("t", [{"data": 0}])
    house.engine_house.sequencer.sync()
    eventual, strong = house.follow({"t": 1}), house.follow({"t": 1}, strong=True)
    assert eventual.brief() == strong.brief() == [("caught-up", "t", 1)]
    house.append("t", "a", "b")
    assert eventual.brief() == [("record", "t", [2, 3])]
    assert strong.brief() == [] and house.feed.strong_topics == 1, "A §7.2: only after it is synced"
    house.feed.strong_look()
    house.turn()
    assert strong.brief() == []
    house.engine_house.sequencer.sync()
    house.feed.strong_look()
    house.turn()
    assert strong.brief() == [("record", "t", [2, 3])] and house.feed.strong_topics == 0


def test_for_a_strong_watcher_the_head_is_what_is_synced(tmp_path: Path) -> None:
    house = FeedHouse(tmp_path, synced=False)
    house.engine_house.append("t", [{"data": 1}, {"data": 2}])
    house.engine_house.sequencer.sync()
    house.engine_house.append("t", [{"data": 3}])
    strong = house.follow({"t": 0}, strong=True)
    assert strong.brief() == [("record", "t", [1, 2]), ("caught-up", "t", 2)]
    house.engine_house.sequencer.sync()
    house.feed.strong_look()
    house.turn()
    assert strong.brief() == [("record", "t", [3])]


def test_an_opening_id_names_the_cursors_in_the_first_block_and_is_no_event(house: FeedHouse) -> None:
    house.append("t", 1, 2)
    wid = house.session({"t": 1})
    session = house.sessions.open(wid, house.ring, house.clock.wall_ms())
    session.begin()
    sink = Sink()
    stream = house.feed.stream(sink, -1, SSE, session)
    stream.open(b"", 15_000, True)
    first, _, rest = sink.data.partition(b"\n\n")
    retry, beat, named = first.split(b"\n")
    assert rest == b"" and retry == b"retry: 2000" and beat.startswith(b": hb ")
    assert decoded(named.decode().removeprefix("id: ")) == {"t": 1, "$epochs": {"t": house.epoch("t")}}
    assert sink.events() == []


def test_a_client_without_an_id_goes_on_where_the_last_one_was_or_begins_again_when_streams_open_with_ids(house: FeedHouse) -> None:
    house.append("t", 1, 2, 3)
    wid = house.session({"t": 1})
    house.follow(wid)
    for opening_id, seq in ((False, 3), (True, 1)):
        session = house.sessions.open(wid, house.ring, house.clock.wall_ms())
        session.begin()
        rewind(session, b"", opening_id)
        assert [row[2] for row in session.rows()] == [seq]


def test_who_is_delivered_to_counts_as_a_reader(house: FeedHouse) -> None:
    house.append("t", 1)
    house.follow({"t": 1})
    house.clock.advance(60_000)
    before = house.engine_house.reader.summary(0, house.clock.wall_ms())["effective_priority"]
    house.append("t", 2)
    assert before == 125 and house.engine_house.reader.summary(0, house.clock.wall_ms())["effective_priority"] == 500, "D §3.1"


def test_a_cursor_of_the_topic_before_is_told_even_when_the_new_one_has_grown_past_it(house: FeedHouse) -> None:
    house.append("t", 1, 2)
    wid = house.session({"t": 2})
    house.engine_house.drop("t")
    house.turn()
    house.append("t", "a", "b", "c", "d")
    sink = house.follow(wid)
    tombstone, record, caught = sink.brief()
    assert tombstone[:3] == ("tombstone", "t", "recreated"), "a seq alone would skip the first two"
    assert record == ("record", "t", [1, 2, 3, 4]) and caught == ("caught-up", "t", 4)
