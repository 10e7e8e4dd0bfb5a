"""Foreign clients and foreign proxies: what they make of event streams and WebSockets (A §7.3-§7.7). Each is skipped where it is not installed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.server import Server
from fakes.streams import Stream, watch

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CLIENTS = Path(__file__).parents[1] / "clients"
MODULES = Path(__file__).parents[2] / "build" / "clients"  # where ci/checks puts npm packages


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path, TOPICS_WORKERS=2) as running:
        yield running.ready()


def wants_node(package: str) -> Any:
    there = shutil.which("node") is not None and (MODULES / "node_modules" / package).is_dir()
    return pytest.mark.skipif(not there, reason=f"node or its package {package} is not installed (ci/checks does)")


def wants_python(module: str) -> Any:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"the Python package {module} is not installed")


def base(server: Server, scheme: str = "http") -> str:
    host, port = server.address
    return f"{scheme}://{host}:{port}"


# ---- clients -----------------------------------------------------------------------------------------------------------------


@wants_node("eventsource")
@pytest.mark.parametrize("front", ["native", "falcon"])
def test_the_npm_eventsource_reconnects_by_itself_and_misses_nothing(tmp_path: Path, front: str) -> None:
    with Server(tmp_path, TOPICS_WORKERS=2, TOPICS_FRONT=front) as server:
        server.ready()
        for number in range(1, 6):
            server.write("t", number)
        command = ["node", str(CLIENTS / "follow.mjs"), str(MODULES), f"{base(server)}/v0/watch/{watch(server, {'t': {'from_seq': 0}})}", "10"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            told = []
            while not told or told[-1]["event"] != "caught-up":
                told.append(json.loads(client.stdout.readline()))
            server.kill_workers()
            for number in range(6, 11):
                server.write("t", number)
            told += [json.loads(line) for line in client.stdout]
            assert client.wait(60) == 0
        records = [each for each in told if each["event"] == "record"]
        assert [each["seq"] for each in records] == [each["data"] for each in records] == list(range(1, 11))
        assert all(each["id"] for each in records)


@wants_node("ws")
def test_the_npm_ws_publishes_and_follows_on_one_socket(server: Server) -> None:
    server.ask("PUT", "/v0/topics/t", {})
    command = ["node", str(CLIENTS / "talk.mjs"), str(MODULES), f"{base(server, 'ws')}/v0/ws", "t", "50"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    records = [record for message in messages if message["op"] == "record" for record in message["records"]]
    assert [record["data"] for record in records] == list(range(1, 51))
    acks = [message["last_seq"] for message in messages if message["op"] == "ack"]
    assert acks == list(range(1, len(acks) + 1)) and len(acks) >= 1


@wants_python("websockets")
def test_the_python_websockets_follows_over_many_messages(server: Server) -> None:
    from websockets.sync.client import connect

    for number in range(1, 301):
        server.write("t", number) if number < 3 else None
    with connect(f"{base(server, 'ws')}/v0/ws") as line:
        line.send(json.dumps({"op": "subscribe", "request_id": "s", "topic": "t", "from_seq": 0}))
        server.ask("POST", "/v0/topics/t", {"records": [{"data": number} for number in range(3, 301)]})
        found: list[int] = []
        while len(found) < 300:
            message = json.loads(line.recv(30))
            if message["op"] == "record":
                found += [record["data"] for record in message["records"]]
    assert found == list(range(1, 301))


@wants_python("httpx_sse")
@wants_python("httpx")
def test_httpx_sse_reads_a_stream_and_resumes_with_the_id_that_it_has_seen(server: Server) -> None:
    import httpx
    import httpx_sse

    for number in range(1, 8):
        server.write("t", number)
    path = f"{base(server)}/v0/watch/{watch(server, {'t': {'from_seq': 0}}, limit=2)}"
    found: list[int] = []
    last_id = ""
    with httpx.Client(timeout=30) as client:
        for _ in range(4):
            with httpx_sse.connect_sse(client, "GET", path, headers={"Last-Event-ID": last_id} if last_id else {}) as source:
                source.response.raise_for_status()
                for event in source.iter_sse():
                    if event.event == "record":
                        assert event.retry in (None, 2000)
                        found += [record["$seq"] for record in event.json()["records"]]
                        last_id = event.id
                        break
    assert found == list(range(1, 8))


@wants_python("sseclient")
@wants_python("httpx")
def test_sseclient_reads_every_kind_of_event(server: Server) -> None:
    import httpx
    import sseclient

    server.ask("PUT", "/v0/topics/t", {"cap_records": 2})
    for number in range(1, 6):
        server.write("t", number)
    with httpx.stream("GET", f"{base(server)}/v0/watch/{watch(server, {'t': {'from_seq': 0}})}", timeout=30) as response:
        names = []
        for event in sseclient.SSEClient(response.iter_bytes()).events():
            if event.event == "message" and not event.data:
                continue
            names.append(event.event)
            if event.event == "caught-up":
                server.ask("DELETE", "/v0/topics/t")
            if event.event == "topic-deleted":
                break
    assert names == ["tombstone", "record", "caught-up", "topic-deleted"]


# ---- proxies -----------------------------------------------------------------------------------------------------------------

NGINX = """daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors;
events {{ worker_connections 256; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u;
  scgi_temp_path {folder}/s;
  server {{ listen 127.0.0.1:{port};
    location / {{ proxy_pass http://127.0.0.1:{upstream}; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""
HAPROXY = """defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend f
  bind 127.0.0.1:{port}
  default_backend b
backend b
  server one 127.0.0.1:{upstream}
"""
CADDY = """{{
  admin off
  auto_https off
}}
http://:{port} {{
  bind 127.0.0.1
  reverse_proxy 127.0.0.1:{upstream}
}}
"""
ENVOY = """static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: f
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
          route_config:
            virtual_hosts:
            - {{name: all, domains: ["*"], routes: [{{match: {{prefix: "/"}}, route: {{cluster: one, timeout: 0s}}}}]}}
  clusters:
  - name: one
    type: STATIC
    load_assignment:
      cluster_name: one
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {upstream}}}}}}}
"""
PROXIES: dict[str, tuple[str, str, Callable[[str, Path], list[str]]]] = {
    "nginx": ("conf", NGINX, lambda program, file: [program, "-p", str(file.parent), "-e", str(file.parent / "errors"), "-c", str(file)]),
    "haproxy": ("conf", HAPROXY, lambda program, file: [program, "-db", "-f", str(file)]),
    "caddy": ("Caddyfile", CADDY, lambda program, file: [program, "run", "--config", str(file), "--adapter", "caddyfile"]),
    "envoy": ("envoy.yaml", ENVOY, lambda program, file: [program, "-c", str(file), "--use-dynamic-base-id", "--concurrency", "1", "-l", "error"]),
}


def program_of(name: str) -> str | None:
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class Behind:
    """Stand for a server in tests: its address is that of the proxy before it."""

    def __init__(self, server: Server, address: tuple[str, int]) -> None:
        self.server = server
        self.address = address


@pytest.fixture
def proxy(server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Start the proxy of this name before the server."""
    suffix, text, command = PROXIES[request.param]
    program = program_of(request.param)
    if program is None:
        pytest.skip(f"{request.param} is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path / "proxy"
    folder.mkdir()
    file = folder / suffix
    file.write_text(text.format(folder=folder, port=port, upstream=server.address[1]))
    home = os.environ | {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command(program, file), stdout=log, stderr=log, env=home, cwd=folder)
    try:
        front = Behind(server, ("127.0.0.1", port))
        deadline = time.monotonic() + 30
        while True:
            assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            with contextlib.suppress(OSError):
                socket.create_connection(front.address, 1).close()
                break
            time.sleep(0.02)
        yield front
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.mark.serial
@pytest.mark.parametrize("proxy", list(PROXIES), indirect=True)
def test_behind_a_proxy_events_come_at_once_and_a_resume_is_exact(server: Server, proxy: Any) -> None:
    server.write("t", 1)
    wid = watch(server, {"t": {"from_seq": 0}})
    first_ms, live_ms = [], []
    seq, last_id = 0, None
    for _ in range(5):
        begun = time.monotonic()
        with Stream(proxy, wid, last_id) as stream:
            event, data = stream.next("record", "caught-up")
            first_ms.append((time.monotonic() - begun) * 1000)
            while event != "caught-up":
                assert [record["$seq"] for record in data["records"]] == list(range(seq + 1, data["to_seq"] + 1)), "the resume is exact"
                seq = data["to_seq"]
                event, data = stream.next("record", "caught-up")
            for _ in range(5):
                written = time.monotonic()
                server.write("t", "x")
                _, data = stream.next("record")
                live_ms.append((time.monotonic() - written) * 1000)
                assert [record["$seq"] for record in data["records"]] == [seq + 1]
                seq += 1
            last_id = stream.last_id
        server.write("t", "while nobody looks")
    first_ms.sort(), live_ms.sort()
    print(f"first event {first_ms}, live {live_ms[len(live_ms) // 2]:.1f} ms")
    assert first_ms[2] < 200 and live_ms[len(live_ms) // 2] < 200, "the proxy holds bytes back"
