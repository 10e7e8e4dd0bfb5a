"""Bytes of files that change under a running server: no door hands on a record that is not what was written, and what is lost is told."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.logfile import appends, flip
from fakes.server import Server
from fakes.streams import Follower, SocketFollower, Talker, watch

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(180)]

BATCH, BATCHES = 5, 8
LAST = BATCH * BATCHES
LOST = set(range(BATCH * 3 + 1, BATCH * 4 + 1))  # the fourth batch: it has one checksum
SEEN_S = 1.5  # what a process has verified it believes for a second


@pytest.fixture(params=["native", "falcon"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    # The scrub does not come to it: reads alone meet it.
    with Server(tmp_path, TOPICS_WORKERS=2, TOPICS_FRONT=request.param, TOPICS_SCRUB_BYTES_PER_SECOND=1) as running:
        yield running.ready()


def text(seq: int) -> str:
    return f"record {seq:04d}"


def fill(server: Server, topic: str, **config: Any) -> None:
    assert server.ask("PUT", f"/v0/topics/{topic}", {"durability": "fsync", **config})[0] == 201
    for first in range(1, LAST, BATCH):
        assert server.ask("POST", f"/v0/topics/{topic}", {"records": [{"data": text(seq)} for seq in range(first, first + BATCH)]})[0] == 200


def damage(server: Server) -> None:
    """Flip a bit in the digits of a record of the fourth batch: it stays JSON."""
    frame = next(each for each in appends(server.directory / "data") if each.base_seq == min(LOST))
    flip(frame.path, frame.path.read_bytes().index(text(min(LOST) + 2).encode(), frame.offset) + len(text(0)) - 1, bit=0)


def diff(server: Server, topic: str, from_seq: int, **members: Any) -> tuple[int, Any]:
    return server.ask("POST", f"/v0/topics/{topic}/diff", {"from_seq": from_seq, **members})


def read(server: Server, topic: str, limit: int) -> tuple[set[int], set[int]]:
    """Read a topic page by page: the seqs that came and those that were told as corrupt."""
    came, told, cursor = set[int](), set[int](), 0
    deadline = time.monotonic() + 60
    while cursor < LAST:
        assert time.monotonic() < deadline
        status, page = diff(server, topic, cursor, limit=limit)
        assert status == 200, page
        for record in page["records"]:
            assert record["data"] == text(record["$seq"])
        came |= {record["$seq"] for record in page["records"]}
        if page["tombstone"] is not None:
            assert page["tombstone"]["reason"] == "corrupt"
            told |= set(range(page["tombstone"]["gap_from"], page["tombstone"]["gap_to"] + 1))
        cursor = page["next_from_seq"]
    return came, told


def by_pages(server: Server, topic: str) -> tuple[set[int], set[int]]:
    return read(server, topic, 1000)


def one_by_one(server: Server, topic: str) -> tuple[set[int], set[int]]:
    return read(server, topic, 1)


class Stream(Follower):
    """What a stream shows must be what was written."""

    def take(self, event: dict[str, Any]) -> None:
        super().take(event)
        for record in event["data"]["records"] if event.get("event") == "record" else []:
            assert record["data"] == text(record["$seq"])


class Socket(SocketFollower):
    """Likewise."""

    def take(self, message: dict[str, Any]) -> None:
        for record in message["records"] if message["op"] == "record" else []:
            assert record["data"] == text(record["$seq"])
        super().take(message)


def followed(follower: Follower | SocketFollower | Talker) -> tuple[set[int], set[int]]:
    asyncio.run(asyncio.wait_for(follower.run(), 60))
    assert isinstance(follower, Follower | SocketFollower)
    assert {each["reason"] for each in follower.tombstones} <= {"corrupt"}
    assert not isinstance(follower, Follower) or follower.connections == 1, "damage ends no stream"
    assert follower.errors == []
    told = {seq for each in follower.tombstones for seq in range(each["gap_from"], each["gap_to"] + 1)}
    return {seq for seqs in follower.seqs.values() for seq in seqs}, told


def by_stream(server: Server, topic: str) -> tuple[set[int], set[int]]:
    return followed(Stream(watch(server, {topic: {"from_seq": 0}}), lambda: server.address, {topic: LAST}))


def by_socket(server: Server, topic: str) -> tuple[set[int], set[int]]:
    return followed(Socket(lambda: server.address, {topic: LAST}))


DOORS = [by_pages, one_by_one, by_stream, by_socket]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("warm", [False, True])
def test_a_record_of_the_tail_that_changes_is_shown_to_nobody(
    server: Server, warm: bool, door: Callable[[Server, str], tuple[set[int], set[int]]]
) -> None:
    fill(server, "t")
    if warm:
        assert door(server, "t") == (set(range(1, LAST + 1)), set())
    damage(server)
    began = time.monotonic()
    if warm:  # what was verified just now may be believed for a second
        while time.monotonic() < began + SEEN_S:
            diff(server, "t", LAST - 1)
    came, told = door(server, "t")
    assert (came, told) == (set(range(1, LAST + 1)) - LOST, LOST)
    status, ready = server.ask("GET", "/v0/ready")
    assert status == 200 and ready["degraded"], ready
    server.until(lambda: server.ask("GET", "/v0/topics/t")[1]["count"] == LAST - BATCH)


def test_a_job_of_the_tail_that_changes_is_handed_to_nobody_and_leaves_the_queue(server: Server) -> None:
    fill(server, "q", type="queue")
    damage(server)
    claimed: dict[int, str] = {}
    deadline = time.monotonic() + 60
    while True:
        assert time.monotonic() < deadline
        status, answer = server.ask("POST", "/v0/topics/q/claim", {"node": "w", "max": 7, "lease_ms": 300})
        assert status == 200, answer
        claimed |= {job["$seq"]: job["data"] for job in answer["claimed"]}
        assert all(data == text(seq) for seq, data in claimed.items())
        if answer["claimed"]:
            server.ask("POST", "/v0/topics/q/ack", {"node": "w", "seqs": [job["$seq"] for job in answer["claimed"]]})
        if set(claimed) >= set(range(1, LAST + 1)) - LOST and server.ask("GET", "/v0/topics/q")[1]["count"] == 0:
            break
    assert set(claimed) == set(range(1, LAST + 1)) - LOST


@pytest.mark.parametrize("door", DOORS)
def test_a_router_s_copy_of_a_record_that_changes_is_shown_to_nobody(
    server: Server, door: Callable[[Server, str], tuple[set[int], set[int]]]
) -> None:
    assert server.ask("PUT", "/v0/topics/copies", {})[0] == 201
    assert server.ask("PUT", "/v0/topics/t", {"durability": "fsync"})[0] == 201
    assert server.ask("PUT", "/v0/routers/r", {"source": "t", "dest": "copies"})[0] in (200, 201)
    for first in range(1, LAST, BATCH):
        server.ask("POST", "/v0/topics/t", {"records": [{"data": text(seq)} for seq in range(first, first + BATCH)]})
    server.until(lambda: server.ask("GET", "/v0/topics/copies")[1]["head_seq"] == LAST)
    damage(server)
    assert door(server, "copies") == (set(range(1, LAST + 1)) - LOST, LOST)


def test_a_router_that_is_made_later_copies_no_record_that_has_changed(server: Server) -> None:
    fill(server, "t")
    damage(server)
    assert server.ask("PUT", "/v0/topics/copies", {})[0] == 201
    assert server.ask("PUT", "/v0/routers/r", {"source": "t", "dest": "copies", "from_seq": 0, "exactly_once": True})[0] in (200, 201)
    wanted = [text(seq) for seq in range(1, LAST + 1) if seq not in LOST]

    def copied() -> list[str]:
        status, page = diff(server, "copies", 0)
        assert status == 200, page
        found: list[str] = []
        while status == 200 and page["records"]:
            found += [record["data"] for record in page["records"]]
            status, page = diff(server, "copies", page["next_from_seq"])
        assert set(found) <= set(wanted)
        return found

    server.until(lambda: copied() == wanted)


def test_a_log_file_that_is_cut_under_the_server_costs_what_was_in_it(server: Server) -> None:
    fill(server, "t")
    frame = next(each for each in appends(server.directory / "data") if each.base_seq == min(LOST))
    with contextlib.suppress(socket.timeout), frame.path.open("r+b") as file:
        file.truncate(frame.offset + 80)
    status, page = diff(server, "t", 0)
    assert status == 200
    assert all(record["data"] == text(record["$seq"]) and record["$seq"] < min(LOST) for record in page["records"])
    assert diff(server, "t", min(LOST))[0] in (200, 503)
    assert server.ask("GET", "/v0/ready")[1]["degraded"]


@pytest.mark.parametrize("which", [0, 1], ids=["the oldest", "the second"])
def test_a_log_file_that_is_gone_under_the_server_costs_what_was_in_it(tmp_path: Path, which: int) -> None:
    limits = {"TOPICS_LOG_FILE_BYTES": 1 << 20, "TOPICS_SEGMENT_MAX_AGE_MS": 0, "TOPICS_SEGMENT_MAX_EVENTS": 0, "TOPICS_SEGMENT_MAX_BYTES": 0}
    with Server(tmp_path, TOPICS_WORKERS=2, TOPICS_SCRUB_BYTES_PER_SECOND=1, **limits) as server:
        server.ready()
        assert server.ask("PUT", "/v0/topics/t", {"durability": "fsync"})[0] == 201
        for _ in range(12):
            assert server.ask("POST", "/v0/topics/t", {"records": [{"data": "x" * 3000} for _ in range(100)]})[0] == 200
        paths = sorted((server.directory / "data" / "log").rglob("*.log"))
        assert len(paths) >= 3
        inside = [each for each in appends(server.directory / "data") if each.path == paths[which]]
        gone = {seq for each in inside for seq in range(each.base_seq, each.base_seq + each.count)}
        paths[which].unlink()
        pages = list[tuple[int, Any]]()

        def told_of() -> bool:
            pages.append(diff(server, "t", min(gone) - 1, limit=10))
            return pages[-1][0] == 200

        server.until(told_of, 20)
        assert {status for status, _page in pages} <= {200, 503}
        told = pages[-1][1]["tombstone"]
        assert (told["gap_from"], told["gap_to"], told["reason"]) == (min(gone), max(gone), "corrupt")
        ready = server.ask("GET", "/v0/ready")[1]
        assert ready["degraded"] and "ranges of the log" in str(ready["reasons"])
        server.until(lambda: server.ask("GET", "/v0/topics/t")[1]["count"] == 1200 - len(gone), 20)


# ---- a sealed range's index: the data has the truth, so that nothing is lost

ENTRIES_AT, ENTRY_BYTES, SOURCE = 128, 24, 254 << 56  # segment.h, layout.h: an entry begins with its position


def positions(index: Path) -> list[int]:
    raw = index.read_bytes()
    return [struct.unpack_from("<Q", raw, at)[0] for at in range(ENTRIES_AT, ENTRIES_AT + LAST * ENTRY_BYTES, ENTRY_BYTES)]


MOVED: dict[str, Callable[[list[int], int], int]] = {
    "nowhere": lambda _all, _seq: 0,
    "far behind the end": lambda _all, _seq: SOURCE | (1 << 56) - 8,
    "odd": lambda everyone, seq: everyone[seq - 1] + 3,
    "into another record": lambda everyone, seq: everyone[seq] + 8,
    "at another record": lambda everyone, seq: everyone[seq % LAST],
}


def sealed_index(server: Server, topic: str) -> Path:
    assert server.ask("POST", f"/v0/topics/{topic}/seal")[1]["sealed"]
    (index,) = (server.directory / "data").glob("topics/*/*/*.idx")
    return index


@pytest.mark.parametrize("way", list(MOVED))
@pytest.mark.parametrize("door", DOORS)
def test_positions_of_an_index_that_change_are_followed_by_nobody_and_cost_no_record(
    server: Server, door: Callable[[Server, str], tuple[set[int], set[int]]], way: str
) -> None:
    fill(server, "t")
    index = sealed_index(server, "t")
    everyone = positions(index)
    pids = set(server.children())
    whole = (set(range(1, LAST + 1)), set[int]())
    for _ in range(8):  # every worker has verified it, and believes it for a second
        assert door(server, "t") == whole
    with index.open("r+b") as file:
        for seq in range(2, LAST, 3):
            file.seek(ENTRIES_AT + (seq - 1) * ENTRY_BYTES)
            file.write(struct.pack("<Q", MOVED[way](everyone, seq)))
    for _ in range(3):
        assert door(server, "t") == whole
    server.until(lambda: len(list(index.parent.glob("*.1.idx"))) == 1)  # the keeper was told, and has made it again
    assert door(server, "t") == whole
    assert set(server.children()) == pids, "nobody has died of it"
