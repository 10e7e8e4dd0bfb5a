"""Schemathesis against a whole server: what /v0/openapi.json says holds, and nothing that fits it breaks the server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.server import Server

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
SECONDS = 30
# Left out: what is allowed beyond the schema (unknown members, names in bodies), and TRACE-like methods that no parser of ours takes.
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,use_after_free,ensure_resource_availability"

# CPython 3.11 fails when another thread parses, or moves the limit of recursion, while one parses: the tool's threads do it one after another,
# and none is switched to meanwhile.
ONE_PARSE_AT_A_TIME = """
import ast, functools, sys, threading
lock, parse = threading.RLock(), ast.parse

@functools.wraps(parse)
def parse_alone(*told, **named):
    with lock:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(60)
        try:
            return parse(*told, **named)
        finally:
            sys.setswitchinterval(interval)

ast.parse = parse_alone
"""


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(200)
@pytest.mark.skipif(not SCHEMATHESIS.exists(), reason="schemathesis is not installed")
def test_requests_made_from_the_document_get_answers_that_fit_it(tmp_path):
    with Server(tmp_path, TOPICS_MAX_BODY_BYTES=1 << 20) as server:
        server.ready()
        host, port = server.address
        command = [str(SCHEMATHESIS), "--config-file", str(tmp_path / "none.toml")]
        (tmp_path / "none.toml").write_text("")
        command += ["run", f"http://{host}:{port}/v0/openapi.json", "--max-time", str(SECONDS), "--checks", CHECKS, "--seed", "7", "--no-shrink"]
        command += ["-n", "25", "--continue-on-failure", "--no-color", "--generation-database", "none"]
        command += ["--exclude-path", "/v0/ws", "--exclude-path", "/v0/topics/{topic}/work"]  # streams have no end
        command += ["--request-timeout", "45", "-w", "4"]  # a consume without a time-out of its own waits for 30 s
        (tmp_path / "sitecustomize.py").write_text(ONE_PARSE_AT_A_TIME)
        env = os.environ | {"PYTHONPATH": str(tmp_path)}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stdout[-12_000:] + done.stderr[-2000:]
        assert "Stateful" in done.stdout, done.stdout[-4000:]
        assert server.ask("GET", "/v0/ready")[0] == 200
        assert "internal error" not in server.log
