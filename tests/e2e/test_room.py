"""A room on WebSockets: everyone speaks at intervals and hears all others, and nothing of oneself (A §4, §7.7)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fakes.server import Server
from fakes.streams import Talker

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SPEAKERS, PACKETS, PACKET_S = 12, 40, 0.02


class Speaker(Talker):
    """Publish packets, and keep what comes from the others."""

    def __init__(self, address: Any, name: str) -> None:
        super().__init__(address)
        self.name = name
        self.inside = asyncio.Event()
        self.heard: dict[str, list[int]] = {}
        self.acked = 0
        self.over = False

    @property
    def done(self) -> bool:
        return self.over

    def begin(self) -> None:
        self.say({"op": "subscribe", "topic": "room", "tail": True, "node": self.name, "include_meta": False})

    def take(self, message: dict[str, Any]) -> None:
        if message["op"] == "subscribed":
            self.inside.set()
        elif message["op"] == "record":
            for record in message["records"]:
                self.heard.setdefault(record["$node"], []).append(record["data"])
        elif message["op"] == "ack":
            self.acked += 1
        assert message["op"] != "error", message
        self.over = self.acked == PACKETS and sum(map(len, self.heard.values())) >= (SPEAKERS - 1) * PACKETS

    async def speak(self) -> None:
        for packet in range(PACKETS):
            self.say({"op": "publish", "topic": "room", "return_seqs": False, "records": [{"node": self.name, "data": packet}]})
            await asyncio.sleep(PACKET_S)


async def room(server: Server) -> list[Speaker]:
    speakers = [Speaker(lambda: server.address, f"u{number:02}") for number in range(SPEAKERS)]
    listening = [asyncio.ensure_future(speaker.run()) for speaker in speakers]
    await asyncio.wait_for(asyncio.gather(*(speaker.inside.wait() for speaker in speakers)), 30)
    await asyncio.gather(*(speaker.speak() for speaker in speakers))
    await asyncio.wait_for(asyncio.gather(*listening), 60)
    return speakers


@pytest.mark.parametrize("durability", ["ephemeral", "disk"])
def test_everyone_in_a_room_hears_every_packet_of_all_others_once_and_in_order(tmp_path: Path, durability: str) -> None:
    with Server(tmp_path, TOPICS_WORKERS=2) as server:
        server.ready()
        assert server.ask("PUT", "/v0/topics/room", {"durability": durability})[0] == 201
        speakers = asyncio.run(room(server))
        for speaker in speakers:
            assert speaker.connections == 1, "and on one connection"
            assert speaker.heard == {other.name: list(range(PACKETS)) for other in speakers if other is not speaker}
        status, page = server.ask("POST", "/v0/topics/room/diff", {"limit": 1000})
        assert status == 200 and len(page["records"]) == SPEAKERS * PACKETS
