"""The ladder on a whole server, through its sockets: what waits, what is refused, what is never lost (D §3.1, A §0.6, A §7.5)."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fakes.server import Server, answer, request
from fakes.streams import Stream, watch


def metric(server: Server, name: str) -> Any:
    with server.connect() as line:
        line.sendall(b"GET /v0/metrics HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\nConnection: close\r\n\r\n")
        return answer(line)[1][name]


def sent(server: Server, topic: str, data: Any, **members: Any) -> socket.socket:
    """Send a write and do not wait for its answer."""
    line = server.connect()
    line.sendall(request("POST", f"/v0/topics/{topic}", {"records": [{"data": data}], **members}, close=True))
    return line


def told(line: socket.socket) -> tuple[int, dict[str, str], Any]:
    """Read an answer with its headers."""
    with line:
        raw = b""
        while piece := line.recv(65536):
            raw += piece
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in lines[1:])}
    return int(lines[0].split()[1]), headers, json.loads(body)


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("front", ["native", "falcon"])
def test_behind_a_writer_that_stands_still_low_writes_wait_and_are_refused_high_ones_are_kept_and_nothing_is_lost(tmp_path: Path, front: str) -> None:
    with Server(tmp_path, TOPICS_WORKERS=1, TOPICS_FRONT=front) as server:
        server.ready()
        for topic, priority in (("low", -500), ("high", 1000)):
            assert server.ask("PUT", f"/v0/topics/{topic}", {"priority": priority})[0] == 201
        assert server.write("low", 0)[1]["performance"]["throttle_wait_ms"] == 0
        watcher = Stream(server, watch(server, {"low": {"tail": True}}))
        watcher.next("caught-up")
        (writer,) = server.children("writer")
        os.kill(writer, signal.SIGSTOP)
        try:
            first = sent(server, "high", "kept")
            server.until(lambda: metric(server, "topics_pressure") == 3, 30)
            refused = sent(server, "low", "refused")
            patient = sent(server, "low", "queued", disable_backpressure=True)
            second = sent(server, "high", "kept, too")
            status, headers, body = told(refused)
            assert status == 429 and body["error"]["code"] == "throttled"
            retry_after_ms = body["error"]["detail"]["retry_after_ms"]
            assert "limit" not in body["error"]["detail"], "that is for caps"
            assert retry_after_ms > 0 and int(headers["retry-after"]) == max(-(-retry_after_ms // 1000), 1)
            waits = sent(server, "low", "waits")
            time.sleep(0.5)
        finally:
            os.kill(writer, signal.SIGCONT)
        for line in (first, second, patient):
            assert told(line)[0] == 200
        event, data = watcher.next()
        assert (event, data["code"], data["topics"]) == ("error", 429, ["low"]) and data["retry_after_ms"] > 0, "advised before it gets what waits"
        assert watcher.next("record")[1]["topic"] == "low", "and the stream stays"
        status, _, body = told(waits)
        assert status == 200 and body["performance"]["throttle_wait_ms"] >= 400, "it was parked, and told so"
        server.until(lambda: metric(server, "topics_pressure") == 0)
        assert metric(server, "topics_throttled_total")
        with Stream(server, watch(server, {"low": {"from_seq": 0}, "high": {"from_seq": 0}})) as stream:
            found: dict[str, list[Any]] = {"low": [], "high": []}
            while sum(map(len, found.values())) < 5:
                data = stream.next("record")[1]
                found[data["topic"]] += [record["data"] for record in data["records"]]
        assert sorted(map(str, found["low"])) == ["0", "queued", "waits"] and sorted(found["high"]) == ["kept", "kept, too"]


FLOODED, WATCHERS, BATCHES, BATCH = 30, 6, 30, 50


class Flood(threading.Thread):
    """Write batches to many topics until each has got all of its own."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.statuses: set[int] = set()

    def run(self) -> None:
        body = {"records": [{"data": "x" * 300}] * BATCH, "disable_backpressure": True}
        with self.server.connect() as line:
            for _ in range(BATCHES):
                for number in range(FLOODED):
                    line.sendall(request("POST", f"/v0/topics/flood-{number}?return_seqs=false", body))
                    self.statuses.add(answer(line)[0])


@pytest.mark.slow
@pytest.mark.serial
def test_a_topic_of_priority_1000_keeps_its_latency_under_a_flood_of_others_which_come_whole_and_in_order(tmp_path: Path) -> None:
    with Server(tmp_path, TOPICS_WORKERS=1) as server:
        server.ready()
        server.ask("PUT", "/v0/topics/hot", {"priority": 1000})
        for number in range(FLOODED):
            server.ask("PUT", f"/v0/topics/flood-{number}", {"priority": -1000 if number == 0 else 0})
        hot = Stream(server, watch(server, {"hot": {"tail": True}}))
        hot.next("caught-up")
        whole: list[dict[str, list[int]]] = []
        readers = []
        flood_topics = {f"flood-{number}": {"from_seq": 0} for number in range(FLOODED)}
        for _ in range(WATCHERS):
            found: dict[str, list[int]] = {name: [] for name in flood_topics}
            whole.append(found)
            readers.append(threading.Thread(target=read_all, args=(Stream(server, watch(server, flood_topics)), found), daemon=True))
        flood = Flood(server)
        for thread in (*readers, flood):
            thread.start()
        late_ms = []
        with server.connect() as line:
            while flood.is_alive() or len(late_ms) < 20:
                line.sendall(request("POST", "/v0/topics/hot", {"records": [{"data": 1}]}))
                assert answer(line)[0] == 200
                acked = time.monotonic()
                hot.next("record")
                late_ms.append((time.monotonic() - acked) * 1000)
                time.sleep(0.01)
        flood.join()
        assert flood.statuses == {200}
        for thread in readers:
            thread.join(60)
            assert not thread.is_alive(), "something is missing"
        assert all(seqs == list(range(1, BATCHES * BATCH + 1)) for found in whole for seqs in found.values()), "whole and in order, the lowest too"
        late_ms.sort()
        assert late_ms[len(late_ms) // 2] < 100 and late_ms[-1] < 2_000, late_ms[-5:]


def read_all(stream: Stream, found: dict[str, list[int]]) -> None:
    with stream:
        while any(len(seqs) < BATCHES * BATCH for seqs in found.values()):
            data = stream.next("record")[1]
            found[data["topic"]] += [record["$seq"] for record in data["records"]]


@pytest.mark.slow
def test_what_was_delivered_is_still_counted_when_the_worker_that_did_it_is_dead(tmp_path: Path) -> None:
    with Server(tmp_path, TOPICS_WORKERS=1) as server:
        server.ready()
        server.write("t", 1)
        with Stream(server, watch(server, {"t": {"from_seq": 0}})) as stream:
            stream.next("caught-up")
        before = {(each["door"]): each["value"] for each in metric(server, "topics_delivered_records_total")}
        assert before["sse"] == 1
        (worker,) = server.children("worker")
        os.kill(worker, signal.SIGKILL)
        server.until(lambda: server.children("worker") not in ([], [worker]))
        server.ready()
        with Stream(server, watch(server, {"t": {"from_seq": 0}})) as stream:
            stream.next("caught-up")
        after = {(each["door"]): each["value"] for each in metric(server, "topics_delivered_records_total")}
        assert after == {"sse": 2, "websocket": 0}
        server.until(lambda: metric(server, "topics_sse_connections") == 0)
