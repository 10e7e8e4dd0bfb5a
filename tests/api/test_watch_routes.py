"""The watch routes on a door without a server: what a session that is gone leaves behind (A §7.3, §11)."""

from __future__ import annotations

from types import SimpleNamespace

EVENTS = {"accept": "text/event-stream"}


def sessions_of(counted: list[str], **members: object) -> SimpleNamespace:
    """Stand in for the sessions of shared memory: one that is there, until it is to be opened."""
    made = SimpleNamespace(
        find=lambda wid: 5,
        key_of=lambda number: (-1, b""),
        is_open=lambda number: False,
        enter=lambda *given: counted.append("in") or 0,
        leave=lambda *given: counted.append("out"),
        open=lambda *given: None,
    )
    made.__dict__.update(members)
    return made


def test_a_session_that_goes_between_finding_and_opening_it_is_404_and_takes_no_place(run):
    async def test(house):
        counted: list[str] = []
        house.context.sessions = sessions_of(counted)
        assert (await house.ask("GET", "/v0/watch/wid_x", **EVENTS)).error == (404, "not_found")
        assert counted == ["in", "out"]

    run(test)


def test_a_stream_that_cannot_begin_gives_its_place_and_its_session_back(run):
    async def test(house):
        counted: list[str] = []

        def broken() -> None:
            raise RuntimeError("broken")

        session = SimpleNamespace(options=b'{"view":{}}', begin_again=broken, close=lambda now_ms: counted.append("closed"))
        house.context.sessions = sessions_of(counted, open=lambda *given: session)
        house.context.feed = SimpleNamespace(sweep=lambda: None)
        assert (await house.ask("GET", "/v0/watch/wid_x", **EVENTS)).status == 500
        assert counted == ["in", "closed", "out"]

    run(test)


def test_a_place_that_is_not_there_is_429_under_its_name(run):
    async def test(house):
        for over, name in ((1, "max_sse_connections"), (2, "max_sse_connections_per_key")):
            house.context.sessions = sessions_of([], enter=lambda *given, over=over: over)
            answer = await house.ask("GET", "/v0/watch/wid_x", **EVENTS)
            assert answer.error == (429, "throttled") and answer.json["error"]["detail"]["limit"] == name
            assert int(answer.headers["retry-after"]) >= 1

    run(test)
