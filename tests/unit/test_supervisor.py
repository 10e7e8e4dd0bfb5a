"""The arbiter around a writer that does nothing: who is started again, who ends the server, in which order all end."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from fakes.server import Server, answer, request
from topicsd.supervisor import Backoff

SCRIPT = Path(__file__).resolve().parent.parent / "fakes" / "serve_without_engine.py"
pytestmark = pytest.mark.slow


def serve(directory: Path, mode: str = "", **env) -> Server:
    return Server(directory, [sys.executable, str(SCRIPT), mode], **env)


def test_a_child_is_started_again_at_once_and_then_ever_more_slowly_up_to_a_second():
    backoff, waits = Backoff(), []
    for _ in range(9):
        backoff.died(100.0, was_ready=False)
        waits.append(round(backoff.due_s - 100.0, 3))
    assert waits == [0, 0.05, 0.1, 0.2, 0.4, 0.8, 1, 1, 1]
    backoff.died(100.0, was_ready=True)
    assert (backoff.due_s, backoff.deaths) == (100.0, 1)


def test_the_port_file_has_host_and_port_and_everyone_is_in_one_group(tmp_path):
    with serve(tmp_path, TOPICS_WORKERS=2).ready() as server:
        assert server.port_file.read_text().startswith("127.0.0.1:") and server.port_file.read_text().endswith("\n")
        server.until(lambda: len(server.children()) == 4)
        assert {os.getpgid(pid) for pid in server.children()} == {server.process.pid}


@pytest.mark.parametrize("whole_group", [False, True])
def test_sigterm_ends_workers_first_and_the_writer_last_and_idle_connections_do_not_hold_it_up(tmp_path, whole_group):
    with serve(tmp_path, TOPICS_LOG_LEVEL="debug").ready() as server, server.connect() as line:
        line.sendall(request("GET", "/v0/health"))
        assert answer(line)[0] == 200
        assert server.stop(whole_group) == 0
        assert line.recv(1) == b""
        assert server.log.index("Worker exiting") < server.log.index("writer ends")
        assert "killed" not in server.log


def test_a_dead_writer_keeper_or_worker_is_replaced(tmp_path):
    with serve(tmp_path).ready() as server:
        for what in ("writer", "keeper", "worker"):
            (old,) = server.children(what)
            os.kill(old, signal.SIGKILL)
            server.until(lambda what=what, old=old: server.children(what) not in ([], [old]))
            server.until(lambda: server.ask("GET", "/v0/ready")[0] == 200)
        assert server.stop() == 0


def test_a_dead_arbiter_takes_everyone_with_it(tmp_path):
    with serve(tmp_path).ready() as server:
        server.process.kill()
        server.process.wait()
        from fakes.server import alive

        for _ in range(6000):
            if not alive(server.process.pid):
                return
            signal.sigtimedwait([], 0.01)
        raise AssertionError("children are left")


@pytest.mark.parametrize("mode, status, word", [("locked", 3, "in use"), ("format", 4, "cannot be opened"), ("hopeless", 1, "in a row")])
def test_a_writer_that_can_never_serve_ends_the_server(tmp_path, mode, status, word):
    with serve(tmp_path, mode) as server:
        assert server.process.wait(100) == status
        assert word in server.log


def test_usr2_and_ttin_are_refused(tmp_path):
    with serve(tmp_path).ready() as server:
        before = len(server.children())
        os.kill(server.process.pid, signal.SIGUSR2)
        os.kill(server.process.pid, signal.SIGTTIN)
        server.until(lambda: "USR2 is refused" in server.log and "TTIN is refused" in server.log)
        assert len(server.children()) == before


def test_hup_replaces_the_workers_one_for_one(tmp_path):
    with serve(tmp_path).ready() as server:
        (old,) = server.children("worker")
        os.kill(server.process.pid, signal.SIGHUP)
        server.until(lambda: len(server.children("worker")) == 1 and server.children("worker") != [old])
        server.until(lambda: server.ask("GET", "/v0/ready")[0] == 200)
