"""Counters that outlive workers, and what /v0/metrics makes of them (A §8.3)."""

from __future__ import annotations

import os
import re

import pytest

from fakes.feed_house import FeedHouse, Sink
from topicsd import limits, metrics
from topicsd._native.feed import WEBSOCKET
from topicsd._native.meters import BUCKETS, LIMITS, OPERATIONS, Meters, ring_depths
from topicsd._native.regions import Shared
from topicsd._native.ring_end import RingEnd


def texts(meters, operations=(("POST", "/v0/topics/{topic}"),)):
    shared = Shared.create(topics_max=8, index_bytes=1 << 20, ephemeral_bytes=1 << 20, ring_slots=2, body_bytes_max=1 << 16)
    return metrics.to_text(metrics.collect(shared, limits.LOG_SHARDS_MAX, 5, [], False, meters, operations, ring_depths(shared)))


def test_a_dead_workers_counters_stay_and_its_gauges_go():
    meters = Meters(2)
    child = os.fork()
    if not child:
        meters.request(1, 1, 201, 100)
        meters.request(1, 1, 503, 3)
        meters.message(1, out=True)
        meters.sockets(1, 7)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert meters.totals()["ws_connections"] == 7
    meters.bury(1)
    meters.request(1, 1, 200, 1)  # by its successor in the slot
    meters.request(0, 1, 200, 1)
    told = meters.totals()
    assert (told["ws_connections"], told["ws_messages_out"], told["request_us_sum"]) == (0, 1, 105)
    assert told["operations"][1] == [0, 0, 3, 0, 0, 1]
    assert sum(told["request_us"]) == 4


@pytest.mark.parametrize(
    ("us", "bound"), [(0, "1"), (1, "1"), (2, "2"), (3, "4"), (1024, "1024"), (1025, "2048"), (1 << 22, "4194304"), (1 << 40, "+Inf")]
)
def test_a_bucket_holds_what_is_at_most_its_bound(us, bound):
    meters = Meters(1)
    meters.lag(0, us)
    counts = dict(re.findall(r'topics_loop_lag_us_bucket\{le="(.*?)"\} (\d+)', texts(meters)))
    first = next(le for le, count in counts.items() if count == "1")
    assert first == bound and counts["+Inf"] == "1" and len(counts) == BUCKETS


def test_answers_are_shown_by_operation_and_status():
    meters = Meters(1)
    meters.request(0, 1, 201, 5)
    meters.request(0, 0, 404, 5)
    meters.request(0, OPERATIONS + 5, 404, 5)  # no such operation
    text = texts(meters)
    assert 'topics_http_responses_total{method="POST",path="/v0/topics/{topic}",code="2xx"} 1\n' in text
    assert 'topics_http_responses_total{method="",path="other",code="4xx"} 2\n' in text
    assert "topics_http_request_us_sum 15\n" in text and "topics_http_request_us_count 3\n" in text


def test_a_429_is_counted_under_what_it_names():
    assert len(metrics.LIMITS) <= LIMITS
    for name in metrics.LIMITS[2:]:
        assert metrics.LIMITS[metrics.limit_number({"limit": name, "max": 1})] == name
    assert metrics.LIMITS[metrics.limit_number({"retry_after_ms": 50})] == "pressure"
    assert metrics.LIMITS[metrics.limit_number({"limit": "something new"})] == "other"
    meters = Meters(1)
    meters.limit(0, metrics.limit_number({"limit": "max_topics"}))
    assert 'topics_throttled_total{limit="max_topics"} 1\n' in texts(meters)
    with pytest.raises(IndexError):
        meters.limit(0, LIMITS)


def test_every_family_has_help_and_a_type_and_names_follow_the_rules_of_prometheus():
    meters = Meters(1)
    meters.request(0, 1, 201, 5)
    text = texts(meters)
    assert text.endswith("\n")
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    assert set(re.findall(r"^# HELP (\S+) \S", text, re.M)) == set(kinds)
    for line in text.splitlines():
        if not line.startswith("#"):
            name = re.fullmatch(r"([a-z0-9_]+)(?:\{[^}]*\}?[^}]*\})? -?[0-9.e+-]+", line)
            assert name, line
            family = name[1] if name[1] in kinds else re.sub(r"_(bucket|sum|count)$", "", name[1])
            assert family in kinds, line
            assert (kinds[family] == "counter") == family.endswith("_total"), family


def test_the_ring_depth_is_what_the_writer_has_not_taken():
    shared = Shared.create(topics_max=8, index_bytes=1 << 20, ephemeral_bytes=1 << 20, ring_slots=2, body_bytes_max=1 << 16)
    shared.assign_ring()
    end = RingEnd(shared, 0)
    end.adopt()
    end.send(b"x" * 8)
    end.send(b"y" * 8)
    assert ring_depths(shared) == [2, 0]


def test_pressure_is_that_of_the_most_pressed_worker_and_a_dead_ones_is_cleared():
    meters = Meters(2)
    meters.pressed(0, 1, 5, 2)
    meters.pressed(1, 3, 900, 4)
    meters.parked(1, 1500)
    assert meters.pressure == 3
    text = texts(meters)
    for line in (
        "topics_pressure 3",
        "topics_writer_behind_ms 900",
        "topics_feed_waiting 6",
        "topics_parked_writes_total 1",
        "topics_parked_us_total 1500",
    ):
        assert f"\n{line}\n" in text
    meters.bury(1)
    text = texts(meters)
    for line in ("topics_pressure 1", "topics_writer_behind_ms 5", "topics_feed_waiting 2", "topics_parked_writes_total 1"):
        assert f"\n{line}\n" in text


def test_deliveries_are_told_by_door(tmp_path):
    house = FeedHouse(tmp_path)
    house.append("t", 1, 2)
    house.follow({"t": 0})
    socket_sink = Sink()
    stream = house.feed.stream(socket_sink, -1, WEBSOCKET, None)
    stream.add(b"t", house.epoch("t"), 1, house.feed.view(WEBSOCKET))
    house.turn()
    shared = house.engine_house.shared
    text = metrics.to_text(metrics.collect(shared, 1, 5, [], False, delivered=house.sessions.counters()))
    told = {(name, door): int(value) for name, door, value in re.findall(r'^topics_(\w+)_total\{door="(\w+)"\} (\d+)$', text, re.M)}
    assert told["delivered_records", "sse"] == 2 and told["delivered_records", "websocket"] == 1
    assert told["streams_opened", "sse"] == 1 and told["streams_opened", "websocket"] == 1
    assert told["delivered_bytes", "websocket"] == len(socket_sink.data) > 0
    assert told["delivered_frames", "websocket"] == 2, "records and caught-up"
