"""Order of checks, errors, paths: what holds on every route (A §0.5, §0.6, CLARIFICATIONS HTTP layer)."""

from __future__ import annotations

import asyncio

import pytest

from fakes.backend import ask

ONE = {"records": [{"data": 1}]}
KEYS = "full,r:read,w:write,d:delete,a:admin,t:rw:t42.|shared:"


def bearer(key):
    return {"authorization": f"Bearer {key}"}


def test_each_check_comes_before_the_next(run):
    async def test(house):
        ask, settings = house.ask, house.context.settings
        bad = {"body": b"{" * 300, "content_type": "text/plain"}
        assert (await ask("POST", "/v0/topics/-bad", **bad)).error == (401, "unauthorized")
        assert (await ask("POST", "/v0/topics/-bad", **bad, **bearer("r"))).error == (403, "forbidden")
        house.words.inflight[2] = settings.max_inflight_per_key
        assert (await ask("POST", "/v0/topics/-bad", **bad, **bearer("w"))).error == (429, "throttled")
        house.words.inflight[2] = 0
        house.words.ready = False
        assert (await ask("POST", "/v0/topics/-bad", **bad, **bearer("w"))).error == (503, "not_ready")
        house.words.ready = True
        assert (await ask("POST", "/v0/topics/-bad", **bad, **bearer("w"))).error == (413, "payload_too_large")
        bad["body"] = b"{"
        assert (await ask("POST", "/v0/topics/-bad", **bad, **bearer("w"))).error == (415, "unsupported_media_type")
        bad["content_type"] = "application/json"
        assert (await ask("POST", "/v0/topics/-bad", **bad, **bearer("w"))).error == (400, "invalid_request")
        assert (await ask("POST", "/v0/topics/-bad", ONE, **bearer("w"))).detail == {"field": "topic"}
        assert (await ask("POST", "/v0/topics/none", {**ONE, "create": False}, **bearer("w"))).error == (404, "topic_not_found")
        assert house.backend.sent == []
        assert (await ask("POST", "/v0/topics/none", ONE, **bearer("w"))).status == 201

    run(test, keys=KEYS, max_body_bytes=200)


def test_unknown_paths_are_401_without_a_key_and_404_with_one(run):
    async def test(house):
        for path in ("/", "/v0", "/v0/nonexistent", "/v1/topics", "/v0/topics/a/b", "/v0/topics/a/b/c", "/v0/topics/a/", "/v0/topics/"):
            assert (await house.ask("GET", path)).error == (401, "unauthorized"), path
        for path in ("/", "/v0", "/v0/nonexistent", "/v1/topics", "/v0/topics/a/b", "/v0/topics/a/b/c", "/v0/topics/a/"):
            assert (await house.ask("GET", path, **bearer("full"))).error == (404, "not_found"), path

    run(test, keys=KEYS)


def test_a_wrong_method_says_what_is_allowed(run):
    async def test(house):
        for method, path, allowed in [
            ("PATCH", "/v0/topics/a", {"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"}),
            ("GET", "/v0/topics/a/diff", {"POST", "OPTIONS"}),
            ("POST", "/v0/topics", {"GET", "HEAD", "OPTIONS"}),
            ("PUT", "/v0/health", {"GET", "HEAD", "OPTIONS"}),
            ("POST", "/v0/topics/a/work", {"GET", "OPTIONS"}),
            ("BREW", "/v0/topics/a", {"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"}),
            ("BREW", "/v0/topics/a/diff", {"POST", "OPTIONS"}),
        ]:
            answer = await house.ask(method, path, b"{", content_type="text/plain")
            assert answer.error == (405, "method_not_allowed"), (method, path)
            assert {word.strip() for word in answer.headers["allow"].split(",")} == allowed
        assert (await house.ask("BREW", "/v0/nowhere")).error == (404, "not_found")

    run(test)


def test_options_names_the_methods_and_head_is_get_without_its_body(run):
    async def test(house):
        house.backend.make("a")
        options = await house.ask("OPTIONS", "/v0/topics/a")
        assert (options.status, options.headers["allow"]) == (200, "DELETE, GET, HEAD, POST, PUT, OPTIONS")
        got, head = await house.ask("GET", "/v0/topics/a"), await house.ask("HEAD", "/v0/topics/a")
        assert head.status == 200 and head.body == b"" and head.headers["content-length"] == str(len(got.body))

    run(test)


@pytest.mark.parametrize(
    "path",
    [
        "/v0/topics/a%2Fb",
        "/v0/topics/%2e%2e",
        "/v0/topics/a%00",
        "/v0/topics/a%252Fb",
        "/v0/topics/%FF",
        "/v0/topics/a%20b",
        "/v0/topics/%",
        "/v0/topics/" + "a" * 256,
    ],
)
def test_a_bad_name_is_400_on_every_method_wherever_it_stands(run, path):
    async def test(house):
        for method, rest, body in [
            ("GET", "", None),
            ("PUT", "", {}),
            ("POST", "", ONE),
            ("DELETE", "", None),
            ("POST", "/diff", {}),
            ("POST", "/delete", {"before_seq": 1}),
        ]:
            answer = await house.ask(method, path + rest, body)
            assert answer.error == (400, "invalid_request") and answer.detail["field"] == "topic", (method, path)

    run(test)


def test_a_segment_is_percent_decoded_once(run):
    async def test(house):
        assert (await house.ask("PUT", "/v0/topics/a%3Ab%2Dc", {})).json["topic"] == "a:b-c"
        assert (await house.ask("GET", "/v0/%74opics/a:b-c")).status == 200
        assert (await house.ask("GET", "http://host/v0/topics/a:b-c")).status == 200

    run(test)


def test_a_prefix_is_checked_on_the_decoded_name(run):
    async def test(house):
        assert (await house.ask("POST", "/v0/topics/%7442%2Ex", ONE, **bearer("t"))).status == 201
        assert (await house.ask("POST", "/v0/topics/shared%3Ax", ONE, **bearer("t"))).status == 201
        assert (await house.ask("POST", "/v0/topics/%7443.x", ONE, **bearer("t"))).error == (403, "forbidden")

    run(test, keys=KEYS)


def test_names_under_system_are_read_only(run):
    async def test(house):
        house.backend.make("system.changefeed")
        for method, rest, body in [
            ("PUT", "", {}),
            ("POST", "", ONE),
            ("DELETE", "", None),
            ("POST", "/delete", {"before_seq": 1}),
            ("POST", "/claim", {"node": "w"}),
        ]:
            assert (await house.ask(method, "/v0/topics/system.changefeed" + rest, body)).error == (403, "forbidden"), (method, rest)
        assert (await house.ask("GET", "/v0/topics/system.changefeed")).status == 200
        assert (await house.ask("POST", "/v0/topics/system.changefeed/diff", {})).status == 200
        assert (await house.ask("PUT", "/v0/topics/q", {"dead_letter": "system.dead"})).error == (403, "forbidden")

    run(test)


def test_a_dead_letter_topic_outside_the_prefixes_is_403(run):
    async def test(house):
        assert (await house.ask("PUT", "/v0/topics/t42.q", {"dead_letter": "other"}, **bearer("x"))).error == (403, "forbidden")
        assert (await house.ask("PUT", "/v0/topics/t42.q", {"dead_letter": "t42.dead"}, **bearer("x"))).status == 201

    run(test, keys="x::t42.")


def test_requests_in_flight_are_counted_by_key_and_given_back_however_they_end(run):
    async def test(house):
        house.backend.make("t")
        polls = [asyncio.ensure_future(house.ask("POST", "/v0/topics/t/diff", {"wait_ms": 20000}, **bearer("full"))) for _ in range(2)]
        while house.words.inflight[0] < 2 or not house.backend.watched:
            await asyncio.sleep(0)
        answer = await house.ask("GET", "/v0/topics/t", **bearer("full"))
        assert answer.error == (429, "throttled") and answer.headers["retry-after"] == "1"
        assert answer.detail == {"limit": "max_inflight_per_key", "max": 2}
        assert (await house.ask("GET", "/v0/topics/t", **bearer("r"))).status == 200
        polls[0].cancel()
        await asyncio.gather(polls[0], return_exceptions=True)
        assert (await house.ask("GET", "/v0/topics/t", **bearer("full"))).status == 200
        await house.ask("POST", "/v0/topics/t", ONE, **bearer("w"))
        await polls[1]
        for method, path, body in [("POST", "/v0/topics/t", b"{"), ("GET", "/v0/topics/none", None), ("POST", "/v0/topics/t", [b"{", None])]:
            await house.ask(method, path, body, **bearer("full"))
        assert house.words.inflight[0] == 0
        assert house.words.lines[0]["inflight"] == 0

    run(test, keys=KEYS, max_inflight_per_key=2)


def test_an_answered_request_holds_no_slot(run):
    async def test(house):
        held = []

        async def watched(scope, receive, send):
            async def sent(event):
                if event["type"] == "http.response.body" and not event.get("more_body", False):
                    held.append(house.words.inflight[0])
                await send(event)

            await house.door(scope, receive, sent)

        assert (await ask(watched, "PUT", "/v0/topics/t", {}, **bearer("full"))).status == 201
        assert held == [0], "the slot is given back behind the answer: the client's next request may be refused for it"

    run(test, keys=KEYS, max_inflight_per_key=2)


def test_a_request_at_the_cap_waits_a_moment_for_a_client_that_is_leaving(run):
    async def test(house):
        house.backend.make("t")
        poll = asyncio.ensure_future(house.ask("POST", "/v0/topics/t/diff", {"wait_ms": 20000}, **bearer("full")))
        while house.words.inflight[0] < 1 or not house.backend.watched:
            await asyncio.sleep(0)
        state = asyncio.ensure_future(house.ask("GET", "/v0/topics/t", **bearer("full")))
        for _ in range(20):
            await asyncio.sleep(0)
        poll.cancel()
        assert (await state).status == 200

    run(test, keys=KEYS, max_inflight_per_key=1)


def test_a_bug_is_500_in_the_envelope_and_no_token_is_ever_logged(run, capsys):
    from topicsd import logs

    async def test(house):
        house.backend.make("t")
        house.backend.state = None
        answer = await house.ask("GET", "/v0/topics/t?token=canary7", **bearer("canary7"))
        assert answer.error == (500, "internal")
        await house.ask("GET", "/v0/topics/t", **bearer("canary8"))

    logs.configure("debug")
    run(test, keys="canary7")
    logged = capsys.readouterr()
    assert "internal error" in logged.err and "canary" not in logged.err + logged.out


def test_errors_that_pass_say_when_to_come_back(run):
    async def test(house):
        house.words.ready = False
        house.words.words["replay_permille"] = 250
        answer = await house.ask("GET", "/v0/ready")
        assert answer.error == (503, "not_ready") and answer.detail == {"replay_progress": 0.25} and answer.headers["retry-after"] == "1"
        house.words.ready, house.words.draining = True, True
        for method, path in (("GET", "/v0/ready"), ("GET", "/readyz"), ("GET", "/v0/topics")):
            answer = await house.ask(method, path)
            assert answer.error == (503, "shutting_down") and answer.headers["retry-after"] == "1"
        assert (await house.ask("GET", "/v0/health")).json["status"] == "ok"

    run(test)


def test_probes_are_open_unless_told_otherwise(run):
    async def test(house):
        for path in ("/v0/health", "/healthz", "/v0/ready", "/readyz"):
            answer = await house.ask("GET", path)
            assert answer.status == 200 and "performance" not in answer.json
        assert (await house.ask("GET", "/v0/metrics")).error == (401, "unauthorized")
        assert (await house.ask("GET", "/v0/metrics", **bearer("w"))).error == (403, "forbidden")

    async def closed(house):
        for path in ("/v0/health", "/healthz", "/v0/ready", "/readyz"):
            assert (await house.ask("GET", path)).error == (401, "unauthorized")
            assert (await house.ask("GET", path, **bearer("w"))).status == 200

    run(test, keys=KEYS)
    run(closed, keys=KEYS, probe_auth=True)


def test_ready_says_what_does_not_work(run):
    async def test(house):
        house.words.log_line["read_only"] = 28
        body = (await house.ask("GET", "/v0/ready")).json
        assert body["status"] == "ready" and body["degraded"] and "ENOSPC" in body["reasons"][0]
        house.words.log_line["read_only"] = 0
        house.context.figures.set("log_held_bytes", 16 << 30)
        assert "degraded" not in (await house.ask("GET", "/v0/ready")).json
        house.context.figures.set("log_held_bytes", (16 << 30) + 1)
        assert (await house.ask("GET", "/v0/ready")).json["reasons"][0].startswith("log_held: 17179869185 bytes")

    run(test)


CALLS = {
    "list": ("GET", "/v0/topics", None), "state": ("GET", "/v0/topics/log", None), "diff": ("POST", "/v0/topics/log/diff", {}),
    "routers": ("GET", "/v0/routers", None), "router": ("GET", "/v0/routers/r", None), "metrics": ("GET", "/v0/metrics", None),
    "watch": ("POST", "/v0/watch", {}), "write": ("POST", "/v0/topics/log", ONE), "ack": ("POST", "/v0/topics/log/ack", {}),
    "nack": ("POST", "/v0/topics/log/nack", {}), "extend": ("POST", "/v0/topics/log/extend", {}), "claim": ("POST", "/v0/topics/log/claim", {}),
    "work": ("GET", "/v0/topics/log/work", None), "erase": ("POST", "/v0/topics/log/delete", {"before_seq": 0}),
    "drop": ("DELETE", "/v0/topics/none", None), "unroute": ("DELETE", "/v0/routers/r", None), "create": ("PUT", "/v0/topics/log", {}),
    "route": ("PUT", "/v0/routers/r", {}),
}  # fmt: skip
READ, WRITE = {"list", "state", "diff", "routers", "router", "metrics", "watch"}, {"write", "ack", "nack", "extend"}


@pytest.mark.parametrize(
    "scopes, allowed",
    [
        ("read", READ),
        ("write", WRITE),
        ("rw", READ | WRITE | {"claim", "work"}),
        ("delete", {"erase", "drop", "unroute"}),
        ("admin", {"create", "route"}),
        ("", set(CALLS)),
    ],
)
def test_every_route_needs_the_scopes_of_the_table(run, scopes, allowed):
    async def test(house):
        house.backend.make("log")
        forbidden = {call for call, (method, path, body) in CALLS.items() if (await house.ask(method, path, body, **bearer("k"))).status == 403}
        assert set(CALLS) - forbidden == allowed

    run(test, keys=f"k:{scopes}")
