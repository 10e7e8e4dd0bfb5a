"""The arbiter: makes the shared memory, forks writer, keeper and workers, keeps them alive, and ends them in the right order.

It is gunicorn's arbiter with three changes: it knows two more children; a worker gets a ring slot before it is forked and loses it when it is
reaped; the writer ends last, by a signal of its own, so that a SIGTERM to the whole group leaves no acked request behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer

from topicsd import limits, logs, processes
from topicsd._native.meters import Meters
from topicsd._native.regions import Shared
from topicsd._native.sessions import Sessions
from topicsd.figures import Figures
from topicsd.settings import Settings

log = structlog.get_logger("arbiter")

EXIT_LOCKED, EXIT_FORMAT = 3, 4  # of the writer: no use to start it again
FINAL = {EXIT_LOCKED: "the data directory is in use", EXIT_FORMAT: "the data directory cannot be opened by this version with these settings"}
END = signal.SIGUSR1  # what ends writer and keeper
END_S_MAX = 10.0  # the writer has so long for its last sync


class Backoff:
    """Say when a child that died may be started again: at once the first time, then after 0.05, 0.1 … 1 s."""

    def __init__(self) -> None:
        self.deaths = 0  # in a row, without having got ready
        self.due_s = 0.0

    def died(self, now_s: float, was_ready: bool) -> None:
        """Count a death."""
        self.deaths = 1 if was_ready else self.deaths + 1
        wait_s = 0.0 if self.deaths == 1 else min(0.05 * 2.0 ** (self.deaths - 2), limits.RESTART_BACKOFF_S_MAX)
        self.due_s = now_s + wait_s


class Child:
    """One of the two children that are no workers."""

    def __init__(self, name: str, run: Callable[[Shared, Settings, int], int], has_ring: bool) -> None:
        self.name = name
        self.run = run
        self.has_ring = has_ring  # it talks to the writer, as a worker does
        self.ring = -1
        self.pid = 0
        self.backoff = Backoff()


def _run_writer(meters: Meters, figures: Figures, shared: Shared, settings: Settings, _ring: int) -> int:
    from topicsd.writer import run_writer

    return run_writer(shared, settings, meters, figures)


def _run_keeper(figures: Figures, shared: Shared, settings: Settings, ring: int) -> int:
    from topicsd.keeper import run_keeper

    return run_keeper(shared, settings, ring, figures)


class Supervisor(Arbiter):  # type: ignore[misc]
    """Supervise all processes of one server."""

    LISTENERS: list[Any]

    def __init__(self, app: Application) -> None:
        self.shared = app.shared
        self.meters = app.meters
        self.sessions = app.sessions
        self.settings = app.settings
        self.writer = Child("writer", partial(_run_writer, app.meters, app.figures), False)
        self.keeper = Child("keeper", partial(_run_keeper, app.figures), True)
        self.children = (self.writer, self.keeper)
        self.stopping = False
        self.next_ring = -1
        super().__init__(app)

    # ---- start -----------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Listen, then fork the writer, so that it replays while the rest is loaded."""
        super().start()
        self.shared.set("arbiter_pid", os.getpid())
        self.manage_children()
        self.app.wsgi()  # imports the application once, for all workers
        self._write_port_file()

    def _write_port_file(self) -> None:
        path = self.settings.port_file
        host, port = self.LISTENERS[0].getsockname()[:2]
        log.info("listening", host=host, port=port, workers=self.settings.workers, pid=os.getpid(), data_dir=str(self.settings.data_dir))
        if path is not None:
            shown = f"[{host}]" if ":" in host else host
            temporary = path.with_name(f"{path.name}.{os.getpid()}")
            temporary.write_text(f"{shown}:{port}\n")
            temporary.replace(path)

    def manage_children(self) -> None:
        """Start writer and keeper where they do not run and their time has come."""
        for child in self.children:
            if not child.pid and not self.stopping and time.monotonic() >= child.backoff.due_s:
                if child.has_ring and child.ring < 0:
                    ring = self.shared.assign_ring()
                    if ring is None:
                        continue  # the last one's waits for the writer to drain it
                    child.ring = ring
                child.pid = processes.fork(lambda child=child: child.run(self.shared, self.settings, child.ring), self._let_go)  # type: ignore[misc]
                if child.has_ring:
                    self.shared.set_worker(child.ring, "pid", child.pid)
                log.info("started", what=child.name, pid=child.pid)

    def _let_go(self) -> None:
        for listener in self.LISTENERS:
            listener.close()
        for worker in self.WORKERS.values():
            worker.tmp.close()

    # ---- workers ---------------------------------------------------------------------------------------------------------------

    def spawn_worker(self) -> int | None:
        """Fork a worker with a ring slot of its own; later, when all slots are live or wait for the writer to drain them."""
        ring = self.shared.assign_ring()
        if ring is None:
            return None
        self.next_ring = ring
        # Until the worker has handlers of its own (it unblocks them then) a signal would run the arbiter's, and be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, processes.ENDING)
        try:
            pid: int = super().spawn_worker()
        except OSError as wrong:
            self.shared.bury_ring(ring)
            log.error("no worker could be started", why=os.strerror(wrong.errno or 0))
            return None
        finally:
            if os.getpid() == self.pid:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, processes.ENDING)
        self.shared.set_worker(ring, "pid", pid)
        return pid

    def spawn_workers(self) -> None:
        """Start the missing workers, without gunicorn's pauses in between."""
        for _ in range(self.num_workers - len(self.WORKERS)):
            self.spawn_worker()

    def reap_workers(self) -> None:
        """Reap every child that has ended: workers, writer, keeper."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            child = next((each for each in self.children if each.pid == pid), None)
            if child is not None:
                self._child_ended(child, os.waitstatus_to_exitcode(status))
            elif (worker := self.WORKERS.pop(pid, None)) is not None:
                self._worker_ended(worker, os.waitstatus_to_exitcode(status))

    def _worker_ended(self, worker: Any, code: int) -> None:
        worker.tmp.close()
        self.shared.bury_ring(worker.ring)
        self.meters.bury(worker.ring)
        self.sessions.bury(worker.ring, time.time_ns() // 1_000_000)
        self.shared.wake_writer()
        if code in (self.WORKER_BOOT_ERROR, self.APP_LOAD_ERROR) and not self.stopping:
            raise HaltServer("a worker failed to start", code)
        if code and not self.stopping:
            log.warning("worker died", pid=worker.pid, ring=worker.ring, code=code)

    def _child_ended(self, child: Child, code: int) -> None:
        child.pid = 0
        if child.ring >= 0:
            self.shared.bury_ring(child.ring)
            child.ring = -1
        was_ready = True
        if child is self.writer:
            was_ready = self.shared.ready
            self.shared.ready = False
            self.shared.set("replay_permille", 0)
        if self.stopping:
            return
        log.warning("child died", what=child.name, code=code)
        child.backoff.died(time.monotonic(), was_ready)
        if child is self.writer:
            if code in FINAL:
                raise HaltServer(FINAL[code], code)
            if child.backoff.deaths >= limits.WRITER_STARTS_MAX:
                raise HaltServer(f"the writer died {child.backoff.deaths} times in a row without getting ready", 1)

    def manage_workers(self) -> None:
        """Keep the wanted number of workers, and writer and keeper; called once a turn of the main loop."""
        self.manage_children()
        super().manage_workers()

    def wait_for_signals(self, timeout: float = 1.0) -> Any:
        """Sleep until a signal comes or a child is due."""
        due_s = min((child.backoff.due_s for child in self.children if not child.pid), default=None)
        if due_s is not None:
            timeout = min(timeout, max(due_s - time.monotonic(), 0.0))
        elif len(self.WORKERS) < self.num_workers:
            timeout = min(timeout, 0.05)  # a ring slot is about to be drained
        return super().wait_for_signals(timeout)

    # ---- signals -----------------------------------------------------------------------------------------------------------------

    def handle_usr2(self) -> None:
        """Refuse: a new arbiter would not have the shared memory."""
        log.warning("USR2 is refused: stop the server and start the new one")

    def handle_ttin(self) -> None:
        """Refuse: the ring slots are made for so many workers."""
        log.warning("TTIN is refused: set TOPICS_WORKERS")

    # ---- end -------------------------------------------------------------------------------------------------------------------

    def stop(self, graceful: bool = True) -> None:
        """End the workers, then the keeper, at last the writer."""
        if not self.stopping:
            log.info("draining", drain_ms=self.settings.drain_ms, graceful=graceful)
        self.stopping = True
        self.shared.draining = True
        self._stop_workers(graceful)
        for child in (self.keeper, self.writer):
            self._end(child)
        log.info("stopped")

    def _stop_workers(self, graceful: bool) -> None:
        # Workers go on listening on their own descriptors of the same sockets: they say that the server is shutting down.
        for listener in self.LISTENERS:
            listener.close()
        self.LISTENERS = []
        deadline_s = time.monotonic() + self.settings.drain_ms / 1000
        self.kill_workers(signal.SIGTERM if graceful else signal.SIGQUIT)
        while self.WORKERS and time.monotonic() < deadline_s:
            with contextlib.suppress(Exception):
                if self.SIG_QUEUE.get(timeout=0.05) in (signal.SIGINT, signal.SIGQUIT) and graceful:
                    graceful = False
                    self.kill_workers(signal.SIGQUIT)
            self.reap_workers()
        if self.WORKERS:
            log.warning("workers are killed: they did not end in time", count=len(self.WORKERS), drain_ms=self.settings.drain_ms)
            self.kill_workers(signal.SIGKILL)
            self._wait(lambda: not self.WORKERS, 2.0)

    def _end(self, child: Child) -> None:
        if not child.pid:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, END)
        if not self._wait(lambda: not child.pid, END_S_MAX):
            log.error("killed: it did not end in time", what=child.name, pid=child.pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            self._wait(lambda: not child.pid, 2.0)

    def _wait(self, done: Callable[[], bool], within_s: float) -> bool:
        deadline_s = time.monotonic() + within_s
        while True:
            self.reap_workers()
            if done():
                return True
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.002)


class Application(BaseApplication):  # type: ignore[misc]
    """Hand gunicorn its configuration and the ASGI application."""

    def __init__(self, settings: Settings, shared: Shared, keyring: Any) -> None:
        self.settings = settings
        self.shared = shared
        self.meters = Meters(shared.ring_slots)
        self.figures = Figures()
        self.sessions = Sessions.create(shared, settings.max_watch_sessions)
        self.keyring = keyring
        self.started_ns = time.monotonic_ns()
        super().__init__()

    def load_config(self) -> None:
        """Set what deviates from gunicorn's defaults."""
        from topicsd.api.worker import Worker

        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        for name, value in {
            "bind": f"{host}:{self.settings.port}",
            "workers": self.settings.workers,
            "worker_class": Worker,
            "worker_tmp_dir": "/dev/shm",
            "control_socket_disable": True,
            "backlog": limits.BACKLOG,
            "keepalive": limits.KEEPALIVE_S,
            "timeout": limits.BODY_IDLE_MS_MAX // 1000,
            "graceful_timeout": max(self.settings.drain_ms // 1000, 1),
            "logger_class": logs.GunicornLog,
            "asgi_lifespan": "off",
            "asgi_loop": "uvloop",
            "proc_name": "topicsd",
            "forwarded_allow_ips": "",
            "pre_fork": _give_ring,
        }.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """Import the application; each worker makes its own of it."""
        from topicsd.api import app

        return app.Door


def _give_ring(arbiter: Supervisor, worker: Any) -> None:
    worker.ring = arbiter.next_ring
    worker.runtime = arbiter.app


def serve(settings: Settings, keyring: Any) -> None:
    """Run the server until it is told to end; never returns: exits with the server's status."""
    _raise_file_limit()
    _check_address(settings)
    _make_directory(settings.data_dir)
    shared = Shared.create(
        topics_max=settings.topics_max,
        ephemeral_bytes=settings.ephemeral_bytes_max,
        body_bytes_max=settings.max_body_bytes,
        ring_slots=settings.ring_slots,
    )
    shared.set("started_ms", time.time_ns() // 1_000_000)
    Supervisor(Application(settings, shared, keyring)).run()


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _check_address(settings: Settings) -> None:
    """Say at once that the address cannot be listened on: gunicorn would try again for five seconds."""
    from topicsd.settings import SettingsError

    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        with socket.socket(found[0][0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(found[0][4])
            probe.listen(1)
    except OSError as wrong:
        raise SettingsError(f"TOPICS_HOST, TOPICS_PORT: {settings.host}:{settings.port}: {wrong.strerror or wrong}") from None


def _make_directory(path: Path) -> None:
    from topicsd.settings import SettingsError

    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as wrong:
        raise SettingsError(f"TOPICS_DATA_DIR: {path}: {os.strerror(wrong.errno or errno.EIO)}") from None
