"""Chromium: its EventSource and its WebSocket, driven over the DevTools protocol (A §7.3-§7.7). Skipped where no Chromium is installed."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.server import Server
from fakes.streams import watch

connect = pytest.importorskip("websockets.sync.client", reason="the Python package websockets is not installed").connect
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (ci/checks does)"),
]

FOLLOW = """
window.told = [];
window.source = new EventSource(%s);
for (const name of ["record", "tombstone", "caught-up", "topic-deleted", "message"])
    source.addEventListener(name, (event) => told.push({event: name, id: event.lastEventId, data: JSON.parse(event.data)}));
source.addEventListener("error", (event) => event.data && told.push({event: "error", data: JSON.parse(event.data)}));
source.addEventListener("open", () => told.push({event: "open"}));
"""


class Page:
    """One page of a browser."""

    def __init__(self, line: Any) -> None:
        self.line = line
        self.numbers = itertools.count(1)

    def call(self, method: str, **parameters: Any) -> Any:
        number = next(self.numbers)
        self.line.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            told = json.loads(self.line.recv(60))
            if told.get("id") == number:
                assert "error" not in told, told
                return told["result"]

    def run(self, script: str) -> Any:
        """Run a script in the page; return what its last expression is, as JSON."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """A browser with one page, that is to be sent somewhere."""
    profile = tmp_path / "profile"
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0"]
    with (
        (tmp_path / "browser.log").open("wb") as log,
        subprocess.Popen([*command, f"--user-data-dir={profile}", "about:blank"], stdout=log, stderr=subprocess.PIPE, text=True) as browser,
    ):
        try:
            assert browser.stderr is not None
            where = next(line.split()[-1] for line in browser.stderr if line.startswith("DevTools listening on"))
            with connect(where, max_size=None) as line:
                whole = Page(line)
                target = whole.call("Target.createTarget", url="about:blank")["targetId"]
                with connect(f"{where.rpartition('/devtools/')[0]}/devtools/page/{target}", max_size=None) as own:
                    yield Page(own)
        finally:
            browser.terminate()
            browser.wait(30)


def visit(page: Page, server: Server) -> None:
    """Go to a page of the server's origin, so that its paths are our own."""
    host, port = server.address
    page.call("Page.enable")
    page.call("Page.navigate", url=f"http://{host}:{port}/v0/health")
    server.until(lambda: page.run("location.pathname + document.readyState") == "/v0/healthcomplete")


def told(page: Page, server: Server, count: int) -> list[dict[str, Any]]:
    """Wait for so many records; return every event so far."""
    seen: list[dict[str, Any]] = []

    def there() -> bool:
        seen[:] = page.run("told")
        return len(records(seen)) >= count

    server.until(there)
    return seen


def records(seen: list[dict[str, Any]]) -> list[Any]:
    return [record["data"] for each in seen if each["event"] == "record" for record in each["data"]["records"]]


def test_its_eventsource_reconnects_with_the_last_id_and_misses_nothing(tmp_path: Path, page: Page) -> None:
    with Server(tmp_path, TOPICS_WORKERS=2, TOPICS_API_KEYS="k") as server:
        server.until(lambda: server.port_file.exists() and server.ask("GET", "/v0/ready")[0] == 200)
        visit(page, server)
        headers = '{"Authorization": "Bearer k", "Content-Type": "application/json"}'
        post = f"(path, body) => fetch(path, {{method: 'POST', headers: {headers}, body: JSON.stringify(body)}}).then((answer) => answer.json())"
        page.run(f"window.post = {post}")
        for number in (1, 2, 3):
            page.run(f"post('/v0/topics/t', {{records: [{{data: {number}}}]}})")
        url = page.run("post('/v0/watch', {topics: {t: {from_seq: 0}}, limit: 2}).then((session) => session.stream_url)")
        page.run(FOLLOW % json.dumps(f"{url}?token=k"))
        seen = told(page, server, 3)
        assert records(seen) == [1, 2, 3] and all(each["id"] for each in seen if each["event"] == "record")
        server.kill_workers()
        for number in (4, 5, 6):
            server.until(lambda number=number: page.run(f"post('/v0/topics/t', {{records: [{{data: {number}}}]}})")["last_seq"] == number)
        seen = told(page, server, 6)
        assert records(seen) == [1, 2, 3, 4, 5, 6], "each once, in order"
        assert sum(each["event"] == "open" for each in seen) >= 2 and page.run("source.readyState") == 1


def test_an_opening_id_is_no_event_for_it_and_is_what_it_comes_back_with(tmp_path: Path, page: Page) -> None:
    with Server(tmp_path, TOPICS_WORKERS=1) as server:
        server.ready()
        for number in (1, 2):
            server.write("t", number)
        wid = watch(server, {"t": {"tail": True}}, opening_id=True)
        visit(page, server)
        page.run(FOLLOW % json.dumps(f"/v0/watch/{wid}"))
        server.until(lambda: any(each["event"] == "caught-up" for each in page.run("told")))
        server.kill_workers()
        server.write("t", 3)
        seen = told(page, server, 1)
        assert records(seen) == [3]
        assert not [each for each in seen if each["event"] == "message"], "a block without data is no event"


def test_its_websocket_publishes_and_follows(tmp_path: Path, page: Page) -> None:
    with Server(tmp_path, TOPICS_WORKERS=1, TOPICS_WEBSOCKET_DEFLATE=1) as server:
        server.ready()
        server.ask("PUT", "/v0/topics/t", {})
        visit(page, server)
        page.run(
            """
            window.told = [];
            window.line = new WebSocket(`ws://${location.host}/v0/ws`);
            line.onmessage = (message) => {
                const said = JSON.parse(message.data);
                told.push({event: said.op, data: said});
                if (said.op == "subscribed")
                    for (let n = 1; n <= 20; n++)
                        line.send(JSON.stringify({op: "publish", topic: "t", records: [{data: "x".repeat(100 * n)}]}));
            };
            line.onclose = (closed) => told.push({event: "closed", code: closed.code});
            line.onopen = () => line.send(JSON.stringify({op: "subscribe", topic: "t"}));
            """
        )
        assert records(told(page, server, 20)) == ["x" * 100 * n for n in range(1, 21)]
        assert page.run("line.extensions").startswith("permessage-deflate")
        page.run("line.close(1000)")
        server.until(lambda: {"event": "closed", "code": 1000} in page.run("told"))
