"""Zeroes, garbage and flipped bits in a log between two runs: a torn tail costs nothing, damage is told, the rest is served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.client import at, insist, read_all, write_body
from e2e.logfile import START, Frame, appends, flip, frames, overwrite
from e2e.server import Server, as_json

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
Launch = Callable[..., Server]
BATCHES = 40


def fill(server: Server, topics: tuple[str, ...] = ("a", "b"), durability: str = "fsync") -> dict[str, dict[int, bytes]]:
    """Write batches of three records to each topic in turn; return what each holds, by seq."""
    acked: dict[str, dict[int, bytes]] = {topic: {} for topic in topics}
    with server.line() as line:
        for topic in topics:
            insist(line, "PUT", at(topic), as_json({"durability": durability}))
        for number in range(BATCHES):
            for topic in topics:
                datas = [b'"%b/%d/%d"' % (topic.encode(), number, place) for place in range(3)]
                body = insist(line, "POST", at(topic), write_body(datas))[0].json
                acked[topic].update(zip(range(body["first_seq"], body["last_seq"] + 1), datas, strict=True))
    return acked


def read(server: Server, topic: str) -> tuple[dict[int, bytes], list[dict[str, Any]], int]:
    with server.line() as line:
        records, tombstones, head = read_all(line, topic)
    return {record.seq: record.data for record in records}, tombstones, head


def last_end(data: Path) -> Frame:
    return frames(data)[-1]


# --- behind the end ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize(
    "junk", [b"\0" * 4096, b"\xa5" * 4096, b"TPF1" + b"\xff" * 60, b"half a header"], ids=["zeroes", "garbage", "a-bad-header", "a-few-bytes"]
)
def test_what_stands_behind_the_last_frame_costs_nothing(launch: Launch, how: str, junk: bytes) -> None:
    server = launch()
    acked = fill(server)
    server.stop() if how == "SIGTERM" else server.kill()
    last = last_end(server.data)
    overwrite(last.path, last.offset + last.length, junk)

    server.start()

    for topic, records in acked.items():
        assert read(server, topic) == (records, [], 3 * BATCHES)
    assert "degraded" not in server.call("GET", "/v0/ready").json
    assert server.call("POST", at("a"), write_body([b"1"])).json["first_seq"] == 3 * BATCHES + 1


def test_half_of_a_frame_at_the_tail_is_as_if_it_had_never_been_sent(launch: Launch) -> None:
    server = launch()
    fill(server)
    server.kill()
    last = appends(server.data)[-1]
    copy = bytearray(last.path.read_bytes()[last.offset : last.offset + last.length])
    end = last_end(server.data)
    copy[48:56] = (end.position + end.length).to_bytes(8, "little")
    overwrite(end.path, end.offset + end.length, bytes(copy[: last.length // 2]))  # a frame at the right place, torn
    server.start()
    assert len(read(server, "b")[0]) == 3 * BATCHES
    assert "degraded" not in server.call("GET", "/v0/ready").json


# --- in the middle -------------------------------------------------------------------------------------------------------------


def flipped_in_the_body(frame: Frame) -> None:
    flip(frame.path, frame.offset + frame.length // 2)


def flipped_in_the_length(frame: Frame) -> None:
    flip(frame.path, frame.offset + 4, 4)


def flipped_in_the_magic(frame: Frame) -> None:
    flip(frame.path, frame.offset)


def zeroed(frame: Frame) -> None:
    overwrite(frame.path, frame.offset, bytes(frame.length))


def garbage(frame: Frame) -> None:
    overwrite(frame.path, frame.offset, b"\xa5" * frame.length)


DAMAGES = [flipped_in_the_body, flipped_in_the_length, flipped_in_the_magic, zeroed, garbage]


def check_damage(server: Server, acked: dict[str, dict[int, bytes]], topic: str, frame: Frame) -> None:
    """After a start: the frame's records are under a tombstone `corrupt`, everything else is served, and the damage is told."""
    lost = set(range(frame.base_seq, frame.base_seq + frame.count))
    records, tombstones, head = read(server, topic)
    assert records == {seq: data for seq, data in acked[topic].items() if seq not in lost}
    assert [each["reason"] for each in tombstones] == ["corrupt"], tombstones
    assert {seq for each in tombstones for seq in range(each["gap_from"], each["gap_to"] + 1)} >= lost
    assert head >= 3 * BATCHES
    for other in acked.keys() - {topic}:
        assert read(server, other)[0] == acked[other]
    ready = server.call("GET", "/v0/ready")
    assert (ready.status, ready.json.get("degraded")) == (200, True), str(ready)
    assert "damage" in str(ready.json["reasons"])
    assert any((server.data / "quarantine").rglob("*")), "the damaged range was set aside"


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_in_the_middle_is_told_and_the_rest_is_served(launch: Launch, damage: Callable[[Frame], None]) -> None:
    server = launch()
    acked = fill(server)
    server.stop()
    found = appends(server.data)
    frame = found[len(found) // 2]
    topic = "a" if (len(found) // 2) % 2 == 0 else "b"
    assert acked[topic][frame.base_seq] in frame.path.read_bytes()[frame.offset : frame.offset + frame.length]
    damage(frame)

    server.start()

    check_damage(server, acked, topic, frame)
    body = server.call("POST", at(topic), write_body([b'"after"'])).json
    assert body["first_seq"] > 3 * BATCHES, "no seq is handed out twice"
    acked[topic][body["first_seq"]] = b'"after"'
    server.kill()
    server.start()  # the second recovery finds the same
    assert read(server, topic)[0] == {seq: data for seq, data in acked[topic].items() if not frame.base_seq <= seq < frame.base_seq + frame.count}
    assert server.call("GET", "/v0/ready").json.get("degraded") is True
    assert server.stop() == 0


@pytest.mark.parametrize("damage", [flipped_in_the_body, zeroed])
def test_damage_in_the_last_synced_frame_is_no_torn_tail(launch: Launch, damage: Callable[[Frame], None]) -> None:
    server = launch()
    acked = fill(server)
    server.stop()  # ends with a mark: it says that everything before it was synced
    frame = appends(server.data)[-1]
    damage(frame)

    server.start()

    records, tombstones, head = read(server, "b")
    assert records == {seq: data for seq, data in acked["b"].items() if seq < frame.base_seq}
    assert [each["reason"] for each in tombstones] == ["corrupt"] and head >= 3 * BATCHES
    assert server.call("GET", "/v0/ready").json.get("degraded") is True
    assert server.call("POST", at("b"), write_body([b"1"])).json["first_seq"] > 3 * BATCHES
    assert read(server, "a")[0].items() >= acked["a"].items()


def test_two_damaged_ranges_are_two_tombstones(launch: Launch) -> None:
    server = launch()
    acked = fill(server, ("a",))
    server.stop()
    found = appends(server.data)
    for frame in (found[5], found[20]):
        flipped_in_the_body(frame)
    server.start()
    records, tombstones, _ = read(server, "a")
    lost = set(range(16, 19)) | set(range(61, 64))
    assert records == {seq: data for seq, data in acked["a"].items() if seq not in lost}
    assert [(each["gap_from"], each["gap_to"], each["reason"]) for each in tombstones] == [(16, 18, "corrupt"), (61, 63, "corrupt")]


def test_damage_in_the_first_frame_of_a_file_is_told_and_the_rest_is_served(launch: Launch) -> None:
    server = launch()
    acked = fill(server)
    server.stop()
    first = frames(server.data)[0]
    assert first.type == START
    flip(first.path, first.offset + 70)
    server.start()
    for topic, records in acked.items():
        assert read(server, topic)[0] == records
    assert server.call("GET", "/v0/ready").json.get("degraded") is True
    assert server.call("POST", at("a"), write_body([b"1"])).json["first_seq"] > 3 * BATCHES


def test_a_directory_without_its_log_files_starts_empty(launch: Launch) -> None:
    server = launch()
    fill(server)
    server.stop()
    for path in (server.data / "log").glob("shard-*/*"):
        path.unlink()
    server.start()
    assert server.call("GET", at("a")).status == 404
    assert server.call("POST", at("a"), write_body([b"1"])).json["first_seq"] == 1
