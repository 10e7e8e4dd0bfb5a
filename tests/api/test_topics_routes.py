"""Routes of topics and records: what they send to the writer, and how its answers look (A §1, §2, §3, §5)."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from topicsd.api.calls import Outcome

ONE = {"records": [{"data": 1}]}


def test_the_outcomes_are_those_of_the_layout(root):
    text = Path(root, "_native", "layout.h").read_text()
    listed = {name: int(value) for name, value in re.findall(r"OUTCOME_(\w+) = (\d+)", text)}
    assert listed == {each.name: each.value for each in Outcome}


def test_put_answers_201_then_200_with_the_full_config(run):
    async def test(house):
        first, again = await house.ask("PUT", "/v0/topics/t", {"ttl_ms": 5}), await house.ask("PUT", "/v0/topics/t", {})
        assert (first.status, first.json["created"], first.json["topic"]) == (201, True, "t")
        assert (again.status, again.json["created"]) == (200, False)
        assert first.json["performance"]["server_total_ms"] >= 0
        sent = house.backend.sent[0][1]["config"]
        assert len(sent) == 17 and sent["ttl_ms"] == 5 and sent["type"] is None

    run(test)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b"1",
        b"{} x",
        b'{"ttl_ms":1,"ttl_ms":1}',
        b'{"ttl_ms":-1}',
        b'{"ttl_ms":true}',
        b'{"dead_letter":"t"}',
        b'{"durability":"x"}',
    ],
)
def test_put_refuses_what_is_no_config(run, body):
    async def test(house):
        assert (await house.ask("PUT", "/v0/topics/t", body)).error == (400, "invalid_request")
        assert house.backend.sent == []

    run(test)


def test_delete_passes_if_empty_on_and_reads_booleans_strictly(run):
    async def test(house):
        house.backend.make("t")["records"] = 1
        assert (await house.ask("DELETE", "/v0/topics/t?if_empty=1")).error == (409, "topic_not_empty")
        answer = await house.ask("DELETE", "/v0/topics/t?if_empty=no")
        assert answer.error == (400, "invalid_request") and answer.detail == {"field": "if_empty"}
        assert (await house.ask("DELETE", "/v0/topics/t")).json["deleted"] is True
        assert (await house.ask("DELETE", "/v0/topics/t")).json == {"topic": "t", "deleted": False, "routers_removed": []} | {
            "performance": answer_performance(house)
        }

    def answer_performance(house):
        class Any_:
            def __eq__(self, other):
                return other["server_total_ms"] >= 0

        return Any_()

    run(test)


def test_state_touches_unless_told_not_to(run):
    async def test(house):
        house.backend.make("t")
        for query, touch in (("", True), ("?touch=false", False), ("?touch=0", False), ("?touch=true", True)):
            assert (await house.ask("GET", "/v0/topics/t" + query)).json["touch"] is touch
        assert (await house.ask("GET", "/v0/topics/t?touch=2")).error == (400, "invalid_request")
        assert (await house.ask("GET", "/v0/topics/none")).error == (404, "topic_not_found")

    run(test)


def test_a_list_is_paged_in_byte_order_by_an_opaque_cursor(run):
    async def test(house):
        names = sorted(["a", "b.1", "b.2", "B", "c:x", "c" * 255, "z9"])
        for name in names:
            house.backend.make(name)
        seen, path = [], "/v0/topics?page_size=2"
        while True:
            page = (await house.ask("GET", path)).json
            seen += [entry["topic"] for entry in page["topics"]]
            if "next_cursor" not in page:
                break
            assert len(page["topics"]) == 2 and "=" not in page["next_cursor"]
            path = f"/v0/topics?page_size=2&cursor={page['next_cursor']}"
        assert seen == names
        assert [entry["topic"] for entry in (await house.ask("GET", "/v0/topics?prefix=b%2E")).json["topics"]] == ["b.1", "b.2"]
        assert len((await house.ask("GET", "/v0/topics?page_size=-5")).json["topics"]) == 1
        assert len((await house.ask("GET", "/v0/topics?page_size=99999999999")).json["topics"]) == 7
        for query in ("page_size=x", "page_size=", "page_size=1.5", "cursor=%25", "cursor=", "cursor=YQ==", "cursor=Yb", "cursor=LS0", "touch=maybe"):
            assert (await house.ask("GET", f"/v0/topics?{query}")).error == (400, "invalid_request"), query

    run(test)


def test_a_prefixed_key_lists_only_its_names_and_pages_across_prefixes(run):
    async def test(house):
        for name in ("a.1", "a.2", "b", "c.1", "c.1.x", "d"):
            house.backend.make(name)
        key = {"authorization": "Bearer k"}
        seen, cursor = [], ""
        while cursor is not None:
            page = (await house.ask("GET", f"/v0/topics?page_size=1{cursor}", **key)).json
            seen += [entry["topic"] for entry in page["topics"]]
            cursor = f"&cursor={page['next_cursor']}" if "next_cursor" in page else None
        assert seen == ["a.1", "a.2", "c.1", "c.1.x"]
        assert [each["topic"] for each in (await house.ask("GET", "/v0/topics?prefix=c.1.", **key)).json["topics"]] == ["c.1.x"]
        assert (await house.ask("GET", "/v0/topics?prefix=b", **key)).json["topics"] == []
        assert (await house.ask("GET", "/v0/topics?prefix=a", **key)).json["topics"][0]["topic"] == "a.1"

    run(test, keys="k:read:c.1|a.|c.1.x")


def test_a_write_goes_straight_to_a_topic_that_exists_and_through_the_engine_to_one_that_does_not(run):
    async def test(house):
        first = await house.ask("POST", "/v0/topics/t", {"records": [{"data": 1}, {"data": 2}]}, idempotency_key='k"1')
        assert (first.status, first.json["created"], first.json["seqs"]) == (201, True, [1, 2])
        again = await house.ask("POST", "/v0/topics/t?return_seqs=false", {**ONE, "idempotency_key": "body"}, idempotency_key="header")
        assert (again.status, again.json["created"], again.json["first_seq"], again.json["last_seq"]) == (200, False, 3, 3)
        assert "seqs" not in again.json and again.json["performance"]["wal_append_ms"] == 0.007
        (op, command), (how, sent) = house.backend.sent
        assert (op, command["create"], command["config"]) == ("records.append", None, None)
        assert how == "append" and sent[2:] == (1, b"body")

    run(test)


def test_a_header_key_is_kept_as_a_body_s_key_would_be(run):
    async def test(house):
        house.backend.make("t")
        await house.ask("POST", "/v0/topics/t", {**ONE, "idempotency_key": 'a"\\b'})
        await house.ask("POST", "/v0/topics/t", ONE, idempotency_key='a"\\b')
        assert house.backend.sent[0][1][3] == house.backend.sent[1][1][3]
        answer = await house.ask("POST", "/v0/topics/t", ONE, idempotency_key="k" * 257)
        assert answer.error == (400, "invalid_request") and answer.detail["field"] == "Idempotency-Key"

    run(test)


def test_an_inline_config_needs_admin_only_when_the_write_creates(run):
    async def test(house):
        writer, admin = {"authorization": "Bearer w"}, {"authorization": "Bearer a"}
        body = {**ONE, "config": {"cap_records": 5}}
        assert (await house.ask("POST", "/v0/topics/t", body, **writer)).error == (403, "forbidden")
        assert (await house.ask("POST", "/v0/topics/t", body, **admin)).status == 201
        assert house.backend.sent[0][1]["config"]["cap_records"] == 5
        assert (await house.ask("POST", "/v0/topics/t", body, **writer)).status == 200
        answer = await house.ask("POST", "/v0/topics/t", {**ONE, "config": {"cap_records": -1}}, **writer)
        assert answer.error == (400, "invalid_request") and answer.detail == {"field": "config.cap_records"}

    run(test, keys="w:write,a:write+admin")


@pytest.mark.parametrize(
    "outcome, values, status, code, detail",
    [
        (Outcome.FULL, (3, 0, 9, 7), 422, "topic_full", {"cap_records": 3, "cap_bytes": 0, "head_seq": 9, "earliest_seq": 7}),
        (Outcome.TOO_LARGE, (5, 6), 400, "record_too_large", {"field": "records", "cap_records": 5, "cap_bytes": 6}),
        (Outcome.READ_ONLY, (), 503, "storage_read_only", {}),
        (Outcome.QUOTA, (2000,), 429, "throttled", {"limit": "max_total_bytes", "max": 2000}),
        (Outcome.KEYS, (5,), 429, "throttled", {"limit": "max_idempotency_keys", "max": 5}),
        (Outcome.EPHEMERAL, (7,), 429, "throttled", {"limit": "ephemeral_bytes_max", "max": 7}),
        (Outcome.PRESSURE, (2500,), 429, "throttled", {"retry_after_ms": 2500}),
        (Outcome.UNKNOWN, (), 503, "not_ready", {"outcome": "unknown"}),
    ],
)
def test_what_the_writer_refuses_is_said_in_the_right_words(run, outcome, values, status, code, detail):
    async def test(house):
        house.backend.make("t")
        house.backend.refuse = [(outcome, values)]
        answer = await house.ask("POST", "/v0/topics/t", ONE)
        assert answer.error == (status, code) and answer.detail == detail
        if status in (429, 503):
            assert answer.headers["retry-after"] == ("3" if outcome == Outcome.PRESSURE else "1")

    run(test)


def test_a_topic_that_moved_is_looked_up_again_a_bounded_number_of_times(run):
    async def test(house):
        house.backend.make("t")
        house.backend.refuse = [(Outcome.MOVED, ())] * 3
        assert (await house.ask("POST", "/v0/topics/t", ONE)).status == 200
        house.backend.refuse = [(Outcome.MOVED, ())] * 100
        assert (await house.ask("POST", "/v0/topics/t", ONE)).error == (429, "throttled")
        assert 4 < len(house.backend.sent) < 20

    run(test)


def test_a_full_ring_is_waited_for(run):
    async def test(house):
        house.backend.make("t")
        house.backend.busy = 5
        assert (await house.ask("POST", "/v0/topics/t", ONE)).status == 200

    run(test)


def test_a_ring_that_stays_full_is_429(run, monkeypatch):
    monkeypatch.setattr("topicsd.limits.RING_FULL_WAIT_MS_MAX", 20)

    async def test(house):
        house.backend.make("t")
        house.backend.busy = 1 << 60
        answer = await house.ask("POST", "/v0/topics/t", ONE)
        assert answer.error == (429, "throttled") and answer.detail["retry_after_ms"] >= 1
        house.backend.busy = 0

    run(test)


def test_requests_in_the_hands_of_a_writer_that_dies_end_as_unknown(run):
    async def test(house):
        house.backend.make("t")
        house.backend.hold = True
        caught = [asyncio.ensure_future(house.ask("POST", "/v0/topics/t", ONE)) for _ in range(3)]
        while house.context.calls.in_flight < 3:
            await asyncio.sleep(0)
        house.words.ready = False
        for answer in await asyncio.gather(*caught):
            assert answer.error == (503, "not_ready") and answer.detail == {"outcome": "unknown"}
        assert (await house.ask("POST", "/v0/topics/t", ONE)).error == (503, "not_ready")
        house.words.generation, house.words.ready, house.backend.hold = 2, True, False
        assert (await house.ask("POST", "/v0/topics/t", ONE)).status == 200
        assert house.context.calls.in_flight == 0

    run(test)


def test_a_writer_that_is_replaced_between_two_looks_is_noticed_by_its_generation(run):
    async def test(house):
        house.backend.make("t")
        house.backend.hold = True
        caught = asyncio.ensure_future(house.ask("POST", "/v0/topics/t", ONE))
        while not house.context.calls.in_flight:
            await asyncio.sleep(0)
        house.words.generation = 2
        assert (await caught).detail == {"outcome": "unknown"}

    run(test)


def test_a_delete_of_records_sends_what_was_asked(run):
    async def test(house):
        house.backend.make("t")
        for body, expected in [
            ({"before_seq": 5}, (5, 0, None)),
            ({"match": "a*"}, (None, 1, "a*")),
            ({"match": ["tag", "Glob", "a*"], "before_seq": 0}, (0, 2, "a")),
            ({"match": ["tag", "Eq", 'q"']}, (None, 1, 'q\\"')),
        ]:
            assert (await house.ask("POST", "/v0/topics/t/delete", body)).status == 200
            command = house.backend.sent[-1][1]
            assert (command["before_seq"], command["match_kind"], command["match"]) == expected
        assert (await house.ask("POST", "/v0/topics/none/delete", {"before_seq": 1})).error == (404, "topic_not_found")
        assert (await house.ask("POST", "/v0/topics/t/delete", {})).error == (400, "invalid_request")

    run(test)


# ---- long polls ------------------------------------------------------------------------------------------------------------------


def poll(house, wait_ms=20000, **options):
    return asyncio.ensure_future(
        house.ask("POST", "/v0/topics/t/diff", {"from_seq": house.backend.topics["t"]["records"], "wait_ms": wait_ms}, **options)
    )


async def asleep(house, count=1):
    while len(house.context.polls) < count:
        await asyncio.sleep(0)


def test_a_long_poll_wakes_at_the_write(run):
    async def test(house):
        house.backend.make("t")
        waiting = [poll(house) for _ in range(3)]
        await asleep(house, 3)
        await house.ask("POST", "/v0/topics/t", ONE)
        assert [answer.json["records"] for answer in await asyncio.gather(*waiting)] == [[1]] * 3
        assert len(house.context.polls) == 0 and house.backend.watched == set() and house.words.lines[0]["long_polls"] == 0

    run(test)


def test_a_long_poll_that_is_woken_for_nothing_sleeps_on_and_ends_with_its_time(run):
    async def test(house):
        house.backend.make("t")
        waiting = poll(house, 100)
        await asleep(house)
        for _ in range(3):
            house.backend.move("t")
            await asyncio.sleep(0.01)
        answer = await waiting
        assert answer.status == 200 and answer.json["records"] == []

    run(test)


def test_a_long_poll_of_a_topic_that_is_deleted_or_made_again_is_404(run):
    async def test(house):
        for again in (False, True):
            house.backend.make("t")
            waiting = poll(house)
            await asleep(house)
            slot = house.backend.topics.pop("t")["slot"]
            if again:
                house.backend.make("t")
            house.backend.dirty_slots = [slot]
            house.backend.ring()
            assert (await waiting).error == (404, "topic_not_found")

    run(test)


def test_a_long_poll_ends_when_its_client_leaves(run):
    async def test(house):
        house.backend.make("t")
        leave = asyncio.Event()
        waiting = poll(house, leave=leave)
        await asleep(house)
        leave.set()
        await waiting
        assert len(house.context.polls) == 0 and house.backend.watched == set()

    run(test)


def test_a_long_poll_outlives_the_writer(run):
    async def test(house):
        house.backend.make("t")
        waiting = poll(house)
        await asleep(house)
        house.words.ready = False
        house.backend.dirty_slots = None
        house.backend.ring()
        await asyncio.sleep(0.05)
        house.backend.slots.insert(0, "other")  # the topic stands in another slot now
        house.backend.topics["t"]["slot"] += 1
        house.words.generation, house.words.ready = 2, True
        await asyncio.sleep(0.2)
        await house.ask("POST", "/v0/topics/t", ONE)
        assert (await waiting).json["records"] == [1]

    run(test)


def test_long_polls_answer_at_once_when_the_server_drains(run):
    async def test(house):
        house.backend.make("t")
        waiting = poll(house)
        await asleep(house)
        house.context.draining = True
        house.context.polls.wake(None)
        answer = await waiting
        assert answer.status == 200 and answer.json["records"] == []

    run(test)


# ---- queues ----------------------------------------------------------------------------------------------------------------------


def test_queue_paths_check_body_then_topic_then_type(run):
    async def test(house):
        house.backend.make("log")
        for path, body, expected in [
            ("/v0/topics/log/claim", b"{", (400, "invalid_request")), ("/v0/topics/log/claim", b"{}", (400, "invalid_request")),
            ("/v0/topics/none/claim", b'{"node":"w"}', (404, "topic_not_found")), ("/v0/topics/log/claim", b'{"node":"w"}', (409, "not_a_queue")),
        ]:  # fmt: skip
            assert (await house.ask("POST", path, body)).error == expected, (path, body)

    run(test)


# ---- metrics -----------------------------------------------------------------------------------------------------------------------


def test_metrics_are_text_by_default_and_json_on_request_also_during_replay(run):
    async def test(house):
        house.backend.make("t")["records"] = 3
        answer = await house.ask("GET", "/v0/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        samples = dict(line.rsplit(" ", 1) for line in answer.body.decode().splitlines() if not line.startswith("#"))
        assert samples['topics_topic_head_seq{topic="t"}'] == "3" and samples["topics_ready"] == "1"
        assert samples['topics_wal_fsync_latency_us_bucket{le="256"}'] == "0" and samples['topics_wal_fsync_latency_us_bucket{le="512"}'] == "3"
        assert samples['topics_wal_fsync_latency_us_bucket{le="+Inf"}'] == samples["topics_wal_fsync_latency_us_count"] == "3"
        body = json.loads((await house.ask("GET", "/v0/metrics", accept="application/json")).body)
        assert body["topics_topic_head_seq"] == [{"topic": "t", "value": 3}]
        house.words.ready = False
        assert (await house.ask("GET", "/v0/metrics")).status == 200

    run(test)


def test_metrics_show_a_bounded_number_of_topics_and_only_those_of_the_key(run, monkeypatch):
    monkeypatch.setattr("topicsd.limits.METRICS_TOPICS_MAX", 2)

    async def test(house):
        for name in ("a.1", "a.2", "a.3", "b"):
            house.backend.make(name)
        body = (await house.ask("GET", "/v0/metrics", accept="application/json", authorization="Bearer k")).json
        assert [each["topic"] for each in body["topics_topic_head_seq"]] == ["a.1", "a.2"] and body["topics_topic_metrics_truncated"] == 1
        body = (await house.ask("GET", "/v0/metrics", accept="application/json", authorization="Bearer b")).json
        assert [each["topic"] for each in body["topics_topic_head_seq"]] == ["b"] and body["topics_topic_metrics_truncated"] == 0

    run(test, keys="k:read,b:read:b")
