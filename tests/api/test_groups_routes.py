"""Consumer groups over HTTP, on a whole server: what is answered, what wakes a waiting consumer, what outlives the writer (K; CLARIFICATIONS)."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from fakes.server import Server, answer, request
from topicsd._native.reader import Busy

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("groups"), TOPICS_WORKERS=2) as server:
        yield server.ready()


def fill(server, topic, count, first=0):
    return server.ask("POST", f"/v0/topics/{topic}", {"records": [{"data": n, "tag": "x"} for n in range(first, first + count)]})


def consume(server, topic, group="g", **members):
    return server.ask("POST", f"/v0/topics/{topic}/groups/{group}/consume", {"start": "Earliest", "timeout_seconds": 0, **members})


def ack(server, topic, upto, group="g", **members):
    return server.ask("POST", f"/v0/topics/{topic}/groups/{group}/ack", {"upto_offset": upto, **members})


def test_a_consume_answers_records_as_a_diff_does_and_where_the_range_lies(server):
    fill(server, "c1", 5)
    status, page = consume(server, "c1", limit=3, consumer_id="me")
    assert status == 200
    assert [(record["$seq"], record["data"], record["$tag"]) for record in page["records"]] == [(1, 0, "x"), (2, 1, "x"), (3, 2, "x")]
    wanted = {"first_offset": 1, "last_offset": 3, "next_offset": 4, "has_more": True, "consumer_id": "me", "partition_id": 0, "tombstone": None}
    assert {name: page[name] for name in wanted} == wanted
    assert (page["committed_offset"], page["deliveries"], page["visibility_timeout_ms"]) == (0, 1, 60_000)
    assert ack(server, "c1", 3)[1]["acknowledged_offset"] == 3
    assert consume(server, "c1")[1]["first_offset"] == 4
    status, page = consume(server, "c1")
    assert (status, page["records"], page["last_offset"], page["next_offset"], page["has_more"]) == (200, [], None, 4, False)


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": "1"}, "limit"),
        ({"limit": True}, "limit"),
        ({"timeout_seconds": -1}, "timeout_seconds"),
        ({"start": "newest"}, "start"),
        ({"start": {"Offset": -1}}, "start.Offset"),
        ({"start": {"offset": 99}}, "start"),
        ({"start": 3}, "start"),
        ({"partition_id": 1}, "partition_id"),
        ({"consumer_id": ""}, "consumer_id"),
        ({"consumer_id": "x" * 257}, "consumer_id"),
        ({"consumer_id": 5}, "consumer_id"),
        ({"visibility_timeout_ms": 0}, "visibility_timeout_ms"),
        ({"include_meta": 1}, "include_meta"),
    ],
)
def test_a_wrong_member_of_a_consume_is_named(server, members, field):
    fill(server, "bad", 1)
    status, body = consume(server, "bad", **members)
    assert (status, body["error"]["code"], body["error"]["detail"]["field"]) == (400, "invalid_request", field)
    assert server.ask("GET", "/v0/topics/bad/groups")[1]["groups"] == []


def test_what_does_not_exist_is_not_found(server):
    assert consume(server, "nowhere")[0] == 404
    fill(server, "c2", 1)
    assert ack(server, "c2", 1)[:1] == (404,)
    assert server.ask("GET", "/v0/topics/c2/groups/g")[1]["error"]["code"] == "not_found"
    assert consume(server, "c2", group="a%2Fb")[0] == 400
    assert server.ask("DELETE", "/v0/topics/c2/groups/g")[1]["deleted"] is False


def test_an_ack_past_the_head_is_400(server):
    fill(server, "c3", 2)
    consume(server, "c3")
    status, body = ack(server, "c3", 3)
    assert (status, body["error"]["detail"]["field"], body["error"]["detail"]["head_seq"]) == (400, "upto_offset", 2)
    assert ack(server, "c3", 2, consumer_id="someone")[1]["acknowledged_offset"] == 0


def test_a_waiting_consumer_is_woken_by_the_commit_on_any_worker(server):
    server.ask("PUT", "/v0/topics/c4", {})
    pages = []
    waiting = [threading.Thread(target=lambda: pages.append(consume(server, "c4", timeout_seconds=20, limit=1)[1])) for _ in range(4)]
    for thread in waiting:
        thread.start()
    server.until(lambda: server.ask("GET", "/v0/topics/c4/groups")[1]["groups"])
    fill(server, "c4", 4)
    for thread in waiting:
        thread.join(10)
    assert sorted(page["records"][0]["$seq"] for page in pages) == [1, 2, 3, 4]


def test_a_waiting_consumer_gets_what_another_let_expire(server):
    fill(server, "c5", 3)
    assert consume(server, "c5", consumer_id="a", visibility_timeout_ms=300)[1]["last_offset"] == 3
    page = consume(server, "c5", consumer_id="b", timeout_seconds=10)[1]
    assert ([record["$seq"] for record in page["records"]], page["deliveries"]) == ([1, 2, 3], 2)


def test_a_topic_deleted_under_a_waiting_consumer_is_404(server):
    server.ask("PUT", "/v0/topics/c6", {})
    ends = []
    thread = threading.Thread(target=lambda: ends.append(consume(server, "c6", timeout_seconds=20)[0]))
    thread.start()
    server.until(lambda: server.ask("GET", "/v0/topics/c6/groups")[1]["groups"])
    server.ask("DELETE", "/v0/topics/c6")
    thread.join(10)
    assert ends == [404]


def test_a_client_that_leaves_while_it_waits_leaves_no_lease(server):
    server.ask("PUT", "/v0/topics/c7", {})
    with server.connect() as line:
        line.sendall(request("POST", "/v0/topics/c7/groups/g/consume", {"timeout_seconds": 20}))
        server.until(lambda: server.ask("GET", "/v0/topics/c7/groups")[1]["groups"])
    time.sleep(0.2)  # the server reads the end of the connection
    fill(server, "c7", 3)
    assert consume(server, "c7")[1]["last_offset"] == 3


def test_a_page_that_is_full_gives_the_rest_of_its_range_back(server):
    server.ask("POST", "/v0/topics/c8", {"records": [{"data": "x" * 1000} for _ in range(10)]})
    page = consume(server, "c8", limit=10, max_batch_bytes=2_500)[1]
    assert (page["last_offset"], page["has_more"]) == (2, True)
    assert consume(server, "c8", limit=10)[1]["first_offset"] == 3


def test_ranges_of_deleted_records_are_passed_over(server):
    fill(server, "c9", 300)
    server.ask("POST", "/v0/topics/c9", {"records": [{"data": "last", "tag": "keep"}]})
    server.ask("POST", "/v0/topics/c9", {"records": [{"data": "gone", "tag": "x"}]})
    server.ask("POST", "/v0/topics/c9/delete", {"match": ["tag", "Eq", "x"]})
    page = consume(server, "c9", limit=10)[1]
    assert [record["$seq"] for record in page["records"]] == [301]
    assert ack(server, "c9", 301)[1]["acknowledged_offset"] == 301
    assert consume(server, "c9", limit=10)[1]["records"] == []
    assert server.ask("GET", "/v0/topics/c9/groups/g")[1]["lag"] == {"records": 0, "bytes": 0, "oldest_age_ms": 0}


def test_what_retention_took_is_told_as_a_tombstone(server):
    fill(server, "c10", 10)
    consume(server, "c10", limit=2)
    ack(server, "c10", 2)
    server.ask("PUT", "/v0/topics/c10", {"cap_records": 3})
    page = consume(server, "c10", limit=2)[1]
    assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"], page["tombstone"]["reason"]) == (3, 7, "cap")
    assert [record["$seq"] for record in page["records"]] == [8, 9]


def test_groups_are_listed_in_pages_with_their_lag(server):
    fill(server, "c11", 10)
    for name in ("b", "a", "c"):
        consume(server, "c11", group=name)
    ack(server, "c11", 4, group="b")
    status, page = server.ask("GET", "/v0/topics/c11/groups?page_size=2")
    assert status == 200
    assert [(group["group"], group["committed_offset"], group["lag"]["records"]) for group in page["groups"]] == [("a", 0, 10), ("b", 4, 6)]
    assert 0 <= page["groups"][1]["lag"]["oldest_age_ms"] < 60_000 and page["groups"][0]["lag"]["bytes"] == 20
    _, rest = server.ask("GET", f"/v0/topics/c11/groups?page_size=2&cursor={page['next_cursor']}")
    assert [group["group"] for group in rest["groups"]] == ["c"] and "next_cursor" not in rest
    shown = server.ask("GET", "/v0/topics/c11/groups/c")[1]
    assert [(lease["first_offset"], lease["last_offset"], lease["consumer_id"]) for lease in shown["leases"]] == [(1, 10, None)]


def test_a_group_is_reset_to_a_time(server):
    fill(server, "c12", 2)
    time.sleep(0.05)
    now_ms = int(server.ask("POST", "/v0/topics/c12", {"records": [{"data": "new"}]})[0] == 200 and time.time() * 1000) - 30
    consume(server, "c12")
    assert server.ask("POST", "/v0/topics/c12/groups/g/reset", {"to": {"timestamp_ms": now_ms}})[1]["committed_offset"] == 2
    assert consume(server, "c12")[1]["first_offset"] == 3
    assert server.ask("POST", "/v0/topics/c12/groups/g/reset", {"to": "nowhere"})[1]["error"]["detail"]["field"] == "to"
    assert server.ask("POST", "/v0/topics/c12/groups/fresh/reset", {"to": {"offset": 2}})[0] == 200
    assert consume(server, "c12", group="fresh", start="latest")[1]["first_offset"] == 2


def test_position_and_leases_outlive_the_writer(server):
    fill(server, "c13", 30)
    assert consume(server, "c13", limit=10, consumer_id="a")[1]["last_offset"] == 10
    assert consume(server, "c13", limit=10, consumer_id="b")[1]["last_offset"] == 20
    assert ack(server, "c13", 10, consumer_id="a")[1]["acknowledged_offset"] == 10
    os.kill(server.children("writer")[0], signal.SIGKILL)
    server.until(lambda: server.ask("PUT", "/v0/topics/c13", {})[0] == 200)
    page = consume(server, "c13", limit=100)[1]
    assert (page["first_offset"], page["last_offset"], page["committed_offset"]) == (21, 30, 10)


def test_one_request_after_another_on_one_connection(server):
    fill(server, "c14", 2)
    with server.connect() as line:
        held = bytearray()
        for _ in range(3):
            line.sendall(request("POST", "/v0/topics/c14/groups/g/consume", {"timeout_seconds": 0, "limit": 1}))
        pages = [answer(line, held)[1] for _ in range(3)]
    assert [page["last_offset"] for page in pages] == [1, 2, None]


def test_a_writer_that_dies_under_a_consume_is_a_503_never_a_500(server):
    fill(server, "c15", 5)
    consume(server, "c15")
    statuses, over = set(), threading.Event()

    def ask():
        while not over.is_set():
            for answered in (consume(server, "c15", timeout_seconds=1), server.ask("GET", "/v0/topics/c15/groups/g")):
                statuses.add((answered[0], answered[1].get("error", {}).get("code")))

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for thread in askers:
        thread.start()
    for _ in range(3):
        os.kill(server.children("writer")[-1], signal.SIGKILL)
        time.sleep(0.1)  # the writer's death is noticed
        server.until(lambda: server.ask("GET", "/v0/ready")[0] == 200)
    over.set()
    for thread in askers:
        thread.join(20)
    assert (200, None) in statuses and statuses <= {(200, None), (503, "not_ready")}


def test_a_topic_table_that_is_made_again_is_a_503(run):
    def away(_name):
        raise Busy("not ready")

    async def test(house):
        house.backend.make("t")
        house.context.reader.find = away
        for method, path, body in (
            ("POST", "/v0/topics/t/groups/g/consume", {}),
            ("POST", "/v0/topics/t/groups/g/reset", {"to": {"timestamp_ms": 1}}),
            ("POST", "/v0/topics/t/diff", {}),
            ("GET", "/v0/topics/t", None),
            ("POST", "/v0/topics/t", {"records": [{"data": 1}]}),
        ):
            assert (await house.ask(method, path, body)).error == (503, "not_ready")

    run(test)


def test_an_empty_consume_has_the_members_of_a_diff(server):
    fill(server, "c16", 4)
    full, empty = consume(server, "c16", start="latest", group="x")[1], server.ask("POST", "/v0/topics/c16/diff", {"from_seq": 4})[1]
    assert {name: full[name] for name in empty if name != "performance"} == {name: empty[name] for name in empty if name != "performance"}
    assert full["visibility_timeout_ms"] == 60_000


def test_the_metrics_show_each_group_and_how_far_it_is_behind(server):
    fill(server, "shown", 7)
    consume(server, "shown", group="m", limit=4)
    ack(server, "shown", 3, group="m")
    text = server.ask("GET", "/v0/metrics")[1].decode()
    assert 'topics_group_lag{topic="shown",group="m"} 4\n' in text and 'topics_group_leased{topic="shown",group="m"} 1\n' in text
    assert "\ntopics_group_metrics_truncated 0\n" in text


def test_an_ack_from_an_offset_on_leaves_a_range_whose_answer_was_lost(server):
    fill(server, "lost", 20)
    consume(server, "lost", limit=10, consumer_id="w", visibility_timeout_ms=1000)  # its answer is lost
    page = consume(server, "lost", limit=10, consumer_id="w")[1]
    assert (page["first_offset"], page["last_offset"]) == (11, 20)
    assert ack(server, "lost", 20, from_offset=11)[1]["error"]["detail"]["field"] == "from_offset"
    answer = ack(server, "lost", 20, from_offset=11, consumer_id="w")[1]
    assert (answer["settled"], answer["acknowledged_offset"]) == (10, 0)
    server.until(lambda: [record["$seq"] for record in consume(server, "lost", consumer_id="other")[1]["records"]] == list(range(1, 11)))
    assert ack(server, "lost", 10, from_offset=1, consumer_id="other")[1]["acknowledged_offset"] == 20
