"""An object store in this process (moto), with an empty bucket; and a proxy before it that makes trouble as a test wants it."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest


@contextlib.contextmanager
def a_bucket(name: str) -> Iterator[dict[str, Any]]:
    """Make the bucket; give what reaches it as options of obstore. Skips the test where a library is absent."""
    pytest.importorskip("obstore")
    boto3 = pytest.importorskip("boto3")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", **keys).create_bucket(Bucket=name)
        yield {"aws_endpoint": f"http://{host}:{port}", "aws_region": "us-east-1", "client_options": {"allow_http": True}, **keys}
    finally:
        server.stop()


class Trouble:
    """A proxy before a store. `plan` is asked for each request (method, path, its number from 0) what is to become of it:

    "" it passes; "503", "507", "400 EntityTooLarge", … it is refused with this status and code; "lost" it is done, and its answer is lost;
    "twice" it is done twice, and the second answer counts; "cut" half of the answer's body comes; "slow" it is not answered until `release` is set.
    """

    def __init__(self, endpoint: str) -> None:
        self.plan: Callable[[str, str, int], str] = lambda _method, _path, _number: ""
        self.asked: list[tuple[str, str, str]] = []  # method, path, what became of it
        self.sent_bytes = 0  # of bodies to clients
        self.release = threading.Event()
        self._lock = threading.Lock()
        self._target = urlsplit(endpoint).netloc
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def _serve(self) -> None:
                outer.serve(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def serve(self, line: BaseHTTPRequestHandler) -> None:
        body = line.rfile.read(int(line.headers.get("Content-Length", 0)))
        with self._lock:
            what = self.plan(line.command, line.path, len(self.asked))
            self.asked.append((line.command, line.path, what))
        if what[:3].isdigit():
            status, _, code = what.partition(" ")
            self._answer(line, int(status), {}, f"<Error><Code>{code or 'SlowDown'}</Code><Message>{code}</Message></Error>".encode())
            return
        if what == "slow":
            self.release.wait()
            line.close_connection = True
            return
        for _ in range(2 if what == "twice" else 1):
            status, headers, raw = self._forward(line, body)
        if what == "lost":
            line.close_connection = True
            with contextlib.suppress(OSError):
                line.connection.shutdown(socket.SHUT_RDWR)
            return
        self._answer(line, status, headers, raw, cut=what == "cut")

    def _forward(self, line: BaseHTTPRequestHandler, body: bytes) -> tuple[int, dict[str, str], bytes]:
        upstream = http.client.HTTPConnection(self._target, timeout=60)
        try:
            upstream.request(line.command, line.path, body, dict(line.headers))
            answer = upstream.getresponse()
            skip = {"content-length", "connection", "transfer-encoding", "date", "server"}
            headers = {name: value for name, value in answer.getheaders() if name.lower() not in skip}
            if line.command == "HEAD":
                headers["Content-Length"] = answer.getheader("Content-Length") or "0"
            return answer.status, headers, answer.read()
        finally:
            upstream.close()

    def _answer(self, line: BaseHTTPRequestHandler, status: int, headers: dict[str, str], raw: bytes, *, cut: bool = False) -> None:
        line.send_response(status)
        for name, value in headers.items():
            line.send_header(name, value)
        if line.command != "HEAD":
            line.send_header("Content-Length", str(len(raw)))
        line.end_headers()
        sent = raw[: len(raw) // 2] if cut else raw
        self.sent_bytes += len(sent)
        line.wfile.write(sent)
        if cut:
            line.close_connection = True


@contextlib.contextmanager
def trouble(options: dict[str, Any]) -> Iterator[tuple[Trouble, dict[str, Any]]]:
    """A proxy before the store that `options` reach; and the options that reach it through the proxy."""
    proxy = Trouble(options["aws_endpoint"])
    try:
        yield proxy, options | {"aws_endpoint": proxy.endpoint}
    finally:
        proxy.close()
