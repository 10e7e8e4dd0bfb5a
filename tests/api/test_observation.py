"""Request ids, metrics and the access log, at the Falcon door (A §8.3) and beside it at the native one."""

from __future__ import annotations

import re

import pytest

from fakes.front_house import FrontHouse
from fakes.server import request
from topicsd.api import exchange
from topicsd.api.operations import NUMBERS

PLAIN = ["abc", "a" * 64, "trace:00-4bf9.~_/+=@-Z", "0"]
OTHER = ["", "a" * 65, "with space", 'quo"te', "semi;colon", "é", "a,b"]
HOT = (request("GET", "/v0/topics/t"), request("POST", "/v0/topics/t/diff", {}), request("POST", "/v0/topics/t", {"records": [{"data": 1}]}))
MADE = re.compile(r"[0-9a-f]{20}")


def told(front_answer: bytes) -> list[str]:
    return re.findall(r"^x-request-id: (.*)\r$", front_answer.decode(), re.M | re.I)


def with_id(raw: bytes, value: str) -> bytes:
    return raw.replace(b"Host: x\r\n", b"Host: x\r\nX-Request-Id: " + value.encode() + b"\r\n")


def test_a_plain_request_id_comes_back_and_any_other_is_replaced(run):
    async def test(house):
        house.backend.make("t")
        for value in PLAIN:
            for method, path, status in (
                ("GET", "/v0/topics/t", 200),
                ("GET", "/none", 404),
                ("GET", "/v0/health", 200),
                ("POST", "/v0/topics/t", 400),
            ):
                answer = await house.ask(method, path, x_request_id=value)
                assert (answer.status, answer.headers["x-request-id"]) == (status, value)
        made = {(await house.ask("GET", "/v0/topics/t", x_request_id=value)).headers["x-request-id"] for value in [*OTHER, None, None]}
        assert len(made) == len(OTHER) + 2 and all(MADE.fullmatch(each) for each in made)

    run(test)


@pytest.fixture
def front(tmp_path):
    house = FrontHouse(tmp_path)
    yield house
    house.close()


def test_the_native_front_has_the_same_rule_for_ids(front):
    client = front.connect()
    for raw in (
        request("GET", "/v0/topics/t"),
        request("POST", "/v0/topics/t/diff", {}),
        request("POST", "/v0/topics/t", {"records": [{"data": 1}]}),
    ):
        for value in PLAIN:
            client.send(with_id(raw, value))
            front.settle()
            assert told(client.received()) == [value]
        made = set()
        for value in [each for each in OTHER if each != "é"]:
            client.send(with_id(raw, value))
            front.settle()
            made.update(told(client.received()))
        client.send(raw)
        front.settle()
        made.update(told(client.received()))
        assert len(made) == len(OTHER) and all(MADE.fullmatch(each) for each in made)
    assert client.lane is None, "all was served natively"


def test_ids_of_pipelined_requests_do_not_mix(front):
    client = front.connect()
    write = request("POST", "/v0/topics/t", {"records": [{"data": 1}]})
    client.send(b"".join(with_id(write, f"w{n}") for n in range(5)) + with_id(request("GET", "/v0/topics/t"), "s"))
    front.settle()
    assert told(client.received()) == [f"w{n}" for n in range(5)] + ["s"]


def test_a_refused_append_and_a_poll_carry_their_ids(front):
    client = front.connect()
    client.send(with_id(request("POST", "/v0/topics/t", {"records": [{"data": 1}]}), "refused"))
    [(token, _)] = front.submitted()
    front.answer([token], status=5)
    assert told(client.received()) == ["refused"]
    client.send(with_id(request("POST", "/v0/topics/t/diff", {"from_seq": 3, "wait_ms": 300}), "poll"))
    assert client.received() == b""
    front.poll_time_is_up()
    assert told(client.received()) == ["poll"]


def test_two_request_ids_are_for_falcon_to_judge(front):
    client = front.connect()
    client.send(with_id(with_id(request("GET", "/v0/topics/t"), "a"), "b"))
    front.settle()
    assert client.lane is not None


def test_both_doors_count_answers_under_the_same_numbers(run, front):
    async def test(house):
        house.backend.make("t")
        await house.ask("POST", "/v0/topics/t", {"records": [{"data": 1}]})
        await house.ask("POST", "/v0/topics/t/diff", {})
        await house.ask("GET", "/v0/topics/t")
        await house.ask("HEAD", "/v0/topics/t")
        await house.ask("GET", "/v0/topics/none")
        await house.ask("GET", "/v0/nowhere")
        return house.context.meters.totals()["operations"]

    by_falcon = run(test)
    assert by_falcon[NUMBERS["GET", "/v0/topics/{topic}"]] == [0, 0, 2, 0, 1, 0]
    assert by_falcon[0] == [0, 0, 0, 0, 1, 0]
    client = front.connect()
    for raw in (
        request("POST", "/v0/topics/t", {"records": [{"data": 1}]}),
        request("POST", "/v0/topics/t/diff", {}),
        request("GET", "/v0/topics/t"),
    ):
        client.send(raw)
        front.settle()
    by_front = front.meters.totals()
    for name in (("POST", "/v0/topics/{topic}"), ("POST", "/v0/topics/{topic}/diff"), ("GET", "/v0/topics/{topic}")):
        assert by_front["operations"][NUMBERS[name]][2] == 1
        assert by_falcon[NUMBERS[name]][2] >= 1
    assert sum(by_front["request_us"]) == 3


def test_metrics_need_the_read_scope_and_probes_a_key_only_on_request(run):
    async def test(house):
        assert (await house.ask("GET", "/v0/metrics")).error == (401, "unauthorized")
        assert (await house.ask("GET", "/v0/metrics", authorization="Bearer w")).error == (403, "forbidden")
        assert (await house.ask("GET", "/v0/metrics", authorization="Bearer r")).status == 200
        return [(await house.ask("GET", path)).status for path in ("/v0/health", "/v0/ready", "/healthz", "/readyz")]

    assert run(test, keys="r:read,w:write") == [200] * 4
    assert run(test, keys="r:read,w:write", probe_auth=True) == [401] * 4


def test_topics_beyond_a_keys_prefixes_are_in_no_metric(run):
    async def test(house):
        house.backend.make("mine.a")
        house.backend.make("other.b")
        text = (await house.ask("GET", "/v0/metrics", authorization="Bearer m")).body.decode()
        assert 'topic="mine.a"' in text and "other.b" not in text
        told = (await house.ask("GET", "/v0/metrics", authorization="Bearer m", accept="application/json")).json
        assert told["topics_topic_head_seq"] == [{"topic": "mine.a", "value": 0.0}]

    run(test, keys="m:read:mine.")


def test_a_request_is_logged_only_when_asked_for_and_never_with_its_query(run, capsys):
    async def test(house):
        await house.ask("GET", "/v0/topics/t?token=secret", x_request_id="id-1", authorization="Bearer secret")

    run(test)
    assert "id-1" not in capsys.readouterr().out
    run(test, access_log=True)
    logged = capsys.readouterr()
    line = logged.out + logged.err
    assert "id-1" in line and "404" in line and "/v0/topics/t" in line and "secret" not in line


def test_ids_made_here_are_new_each_time():
    assert len({exchange.request_id(None) for _ in range(1000)}) == 1000
