"""Event streams and WebSockets through a proxy that cuts them anywhere: each record comes once, in order, what is lost is told (A §7.4, D §5.2)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fakes.server import Server, alive
from fakes.streams import Follower, SocketFollower, SocketPublisher, watch

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

FOLLOWERS = 40
TOPICS = ("one", "two", "capped")
CAP = 60
NEVER = 1 << 60
LAST = {"records": [{"data": "last"}], "idempotency_key": "last"}


class CuttingProxy:
    """Pass bytes both ways; cut each connection behind a random byte of what the server sends, until so many were cut.

    A client that has no id yet gets a first event whole, unless its session opens with ids (`exact`): without any, a stream goes on from what
    this proxy had taken (docs/architecture.md). What a WebSocket's client sends is cut, too.
    """

    def __init__(self, address: Any, cuts_max: int, chance: random.Random) -> None:
        self.address = address
        self.cuts_max = cuts_max
        self.chance = chance
        self.cuts = 0
        self.exact: set[str] = set()  # sessions with `opening_id`
        self.listener: asyncio.Server | None = None

    async def open(self) -> tuple[str, int]:
        self.listener = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512)
        host, port = self.listener.sockets[0].getsockname()[:2]
        return host, port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection(*self.address())
        except OSError:
            writer.transport.abort()
            return
        asked = await reader.readuntil(b"\r\n\r\n")
        up_writer.write(asked)
        socket = b"Upgrade: websocket" in asked
        nameless = not socket and b"Last-Event-ID" not in asked and asked.split(b" ")[1].rpartition(b"/")[2].decode() not in self.exact
        first = b"" if nameless else None  # what came so far, until the stream's first id is whole
        upward = asyncio.ensure_future(self._up(reader, up_writer, writer if socket and self.chance.random() < 0.3 else None))
        left = self.chance.choice((self.chance.randint(0, 400), self.chance.randint(200, 3_000), self.chance.randint(2_000, 6_000)))
        try:
            while piece := await up_reader.read(1 << 16):
                if first is not None and b"\n\n" in (first := first + piece).partition(b"\nid: ")[2]:
                    left, first = left + len(piece), None
                if first is None and self.cuts < self.cuts_max and len(piece) > left:
                    self.cuts += 1
                    writer.write(piece[:left])
                    await asyncio.sleep(0)
                    return
                left -= len(piece) if first is None else 0
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass
        finally:
            upward.cancel()
            if nameless or self.chance.random() < 0.5:
                writer.close()  # what was passed arrives; else it may be lost, too
            else:
                writer.transport.abort()
            up_writer.transport.abort()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, down: asyncio.StreamWriter | None) -> None:
        """Pass what the client sends; down: cut behind a random byte of that, too, and end this way as well."""
        left = NEVER if down is None else self.chance.randint(0, 3_000)
        with contextlib.suppress(OSError):
            while piece := await reader.read(1 << 16):
                if down is not None and self.cuts < self.cuts_max and len(piece) > left:
                    self.cuts += 1
                    writer.write(piece[:left])
                    await writer.drain()
                    writer.close()
                    down.transport.abort()
                    return
                left -= len(piece)
                writer.write(piece)
                await writer.drain()
            writer.transport.abort()


def insist(server: Server, method: str, path: str, body: Any = None) -> Any:
    """Ask until it is answered by 200: the writer may have been killed a moment ago."""
    told: list[Any] = []

    def answered() -> bool:
        told[:] = server.ask(method, path, body)
        return bool(told[0] == 200)

    server.until(answered)
    return told[1]


async def write_until(server: Server, over: Any, topics: tuple[str, ...] = TOPICS) -> dict[str, int]:
    """Write small batches to topics until `over`, and more than the capped one holds; return the heads."""
    heads = dict.fromkeys(topics, 0)
    while not over() or heads["capped"] <= 2 * CAP:
        for topic in topics:
            with contextlib.suppress(OSError, ValueError):
                status, body = await asyncio.to_thread(
                    server.ask, "POST", f"/v0/topics/{topic}?return_seqs=false", {"records": [{"data": "x" * 40}] * 6}
                )
                if status == 200:
                    heads[topic] = body["head_seq"]
        await asyncio.sleep(0.01)
    for topic in topics:  # a write that a kill took the answer of is there, too
        heads[topic] = insist(server, "GET", f"/v0/topics/{topic}")["head_seq"]
    return heads


async def kill_some(server: Server, proxy: CuttingProxy, kills: int, chance: random.Random) -> int:
    """Kill a process each time another share of the cuts is made, every third time the writer; return how many."""
    done = 0
    while done < kills:
        await asyncio.sleep(0.02)
        living = server.children("writer" if done % 3 == 2 else "worker")
        if living and proxy.cuts >= (done + 1) * proxy.cuts_max // (kills + 1):
            os.kill(chance.choice(living), signal.SIGKILL)
            done += 1
    return done


async def follow_to_the_end(
    server: Server, followers: Sequence[Follower | SocketFollower], heads: dict[str, int], running: list[asyncio.Future[None]]
) -> None:
    """Write a last record to each topic, let the first follower come now that the start is gone, and wait for all."""
    for topic in TOPICS:  # whoever has everything already waits for bytes that nobody sends: one record more ends that
        heads[topic] = insist(server, "POST", f"/v0/topics/{topic}", LAST)["head_seq"]
    for follower in followers:
        follower.ends.update(heads)
    running.append(asyncio.ensure_future(followers[0].run()))
    await asyncio.wait_for(asyncio.gather(*running), 120)


async def cut_many(server: Server, cuts: int, kills: int, seed: int) -> tuple[list[Follower], dict[str, int], CuttingProxy]:
    chance = random.Random(seed)
    proxy = CuttingProxy(lambda: server.address, cuts, chance)
    front = await proxy.open()
    followers = []
    for number in range(FOLLOWERS):
        wid = watch(server, {topic: {"from_seq": 0} for topic in TOPICS}, limit=4 + number % 5, opening_id=number % 2 == 1)
        if number % 2:
            proxy.exact.add(wid)
        followers.append(Follower(wid, lambda: front, dict.fromkeys(TOPICS, NEVER)))
    running = [asyncio.ensure_future(follower.run()) for follower in followers[1:]]
    killing = asyncio.ensure_future(kill_some(server, proxy, kills, chance))
    heads = await write_until(server, lambda: proxy.cuts >= cuts and killing.done())
    for follower in followers:
        follower.ends.update(heads)
    await follow_to_the_end(server, followers, heads, running)
    assert killing.result() == kills
    return followers, heads, proxy


def check(follower: Follower | SocketFollower, heads: dict[str, int]) -> None:
    for topic in ("one", "two"):
        assert follower.seqs[topic] == list(range(1, heads[topic] + 1)), f"{topic}: not each exactly once in order"
    at = 0
    gaps = sorted((each["gap_from"], each["gap_to"]) for each in follower.tombstones)
    assert {each["topic"] for each in follower.tombstones} <= {"capped"}
    for seq in follower.seqs["capped"]:
        assert seq > at, "twice, or out of order"
        missing = set(range(at + 1, seq))
        for first, last in gaps:
            missing -= set(range(first, last + 1))
        assert not missing, f"{sorted(missing)[:5]} are lost and nobody says so"
        at = seq
    assert at == heads["capped"]


@pytest.mark.parametrize(("cuts", "kills"), [(1_300, 3), pytest.param(10_000, 12, marks=pytest.mark.crash)])
@pytest.mark.timeout(600)
def test_each_record_comes_once_and_in_order_over_streams_that_are_cut_anywhere(tmp_path: Path, cuts: int, kills: int) -> None:
    with Server(tmp_path, TOPICS_WORKERS=2) as server:
        server.ready()
        for topic in TOPICS:
            server.ask("PUT", f"/v0/topics/{topic}", {"cap_records": CAP if topic == "capped" else 0})
        begun = time.monotonic()
        followers, heads, proxy = asyncio.run(cut_many(server, cuts, kills, seed=cuts))
        assert proxy.cuts >= cuts
        for follower in followers:
            assert 404 not in follower.refused, "a session has been lost"
            assert set(follower.errors) <= {409, 429}, "taken over, or advised under pressure"
            check(follower, heads)
        assert followers[0].tombstones, "it came when the start was gone"
        assert alive(server.process.pid)
        print(f"{proxy.cuts} cuts, {kills} kills, {sum(f.connections for f in followers)} connections, {heads}, {time.monotonic() - begun:.1f} s")


async def cut_sockets(
    server: Server, cuts: int, kills: int, seed: int
) -> tuple[list[SocketFollower], list[SocketPublisher], dict[str, int], CuttingProxy]:
    chance = random.Random(seed)
    proxy = CuttingProxy(lambda: server.address, cuts, chance)
    front = await proxy.open()
    followers = [SocketFollower(lambda: front, dict.fromkeys(TOPICS, NEVER), limit=4 + number % 5) for number in range(FOLLOWERS // 2)]
    publishers = [SocketPublisher(lambda: front, topic, batch) for topic, batch in (("one", 1), ("two", 5))]
    running = [asyncio.ensure_future(each.run()) for each in (*followers[1:], *publishers)]
    killing = asyncio.ensure_future(kill_some(server, proxy, kills, chance))
    heads = await write_until(server, lambda: proxy.cuts >= cuts and killing.done(), ("capped",))
    for publisher in publishers:
        publisher.last = True
        publisher.say({"op": "ping"})  # an answer, so that it looks again whether it is done
    await asyncio.wait_for(asyncio.gather(*running[len(followers) - 1 :]), 120)
    await follow_to_the_end(server, followers, heads, running)
    assert killing.result() == kills
    return followers, publishers, heads, proxy


def all_data(server: Server, topic: str) -> list[Any]:
    found: list[Any] = []
    seq = 0
    while True:
        _, page = server.ask("POST", f"/v0/topics/{topic}/diff", {"from_seq": seq, "limit": 1000})
        found += [record["data"] for record in page["records"]]
        seq = page["next_from_seq"]
        if page["caught_up"]:
            return found


@pytest.mark.parametrize(("cuts", "kills"), [(700, 3), pytest.param(10_000, 12, marks=pytest.mark.crash)])
@pytest.mark.timeout(600)
def test_over_sockets_that_are_cut_both_ways_each_record_comes_once_and_each_keyed_publish_is_there_once_in_order(
    tmp_path: Path, cuts: int, kills: int
) -> None:
    with Server(tmp_path, TOPICS_WORKERS=2) as server:
        server.ready()
        for topic in TOPICS:
            server.ask("PUT", f"/v0/topics/{topic}", {"cap_records": CAP if topic == "capped" else 0})
        begun = time.monotonic()
        followers, publishers, heads, proxy = asyncio.run(cut_sockets(server, cuts, kills, seed=cuts))
        assert proxy.cuts >= cuts
        for follower in followers:
            assert set(follower.errors) <= {"not_ready"}
            check(follower, heads)
        assert followers[0].tombstones, "it came when the start was gone"
        for publisher in publishers:
            assert publisher.acked == next(publisher.numbers) > 0
            wanted = [[number, place] for number in range(publisher.acked) for place in range(publisher.batch)]
            assert all_data(server, publisher.topic) == [*wanted, "last"], "each batch whole, once, in order"
        assert alive(server.process.pid)
        talkers = [*followers, *publishers]
        print(f"{proxy.cuts} cuts, {kills} kills, {sum(each.connections for each in talkers)} connections, {heads}, {time.monotonic() - begun:.1f} s")
