"""Mutated requests against the native front, in this process (a sanitizer sees every byte): however the bytes are cut, it understands the same."""

from __future__ import annotations

import random
import re
import time

import pytest

from bodies.raw_requests import REFUSED_BY_THE_FRONT_ALONE, REQUESTS, TOPIC, request
from fakes.front_house import FrontHouse

PIECES = [
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b" ",
        b"\t",
        b":",
        b";",
        b",",
        b"\xff",
        b"\x7f",
        b"\r\n\r\n",
        b"0\r\n\r\n",
        b"5\r\nhello\r\n",
        b"f" * 16,
        b"9" * 20,
    ),
    *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: x\r\n", b"Connection: close\r\n", b"Expect: 100-continue\r\n"),
    *(b"Idempotency-Key: k\r\n", b"Content-Type: application/json\r\n", b"HTTP/1.1", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    *(b"?touch=0", b"/diff", b'{"from_seq":0}'),
]
# What differs from run to run: clocks, and seqs, which go on.
NATURE = re.compile(
    rb'"performance":\{[^}]*\}|Date: [^\r]*|[Xx]-[Rr]equest-[Ii]d: [^\r]*|content-length: \d+|'
    rb'"(first_seq|last_seq|head_seq|last_read_ts|effective_priority)":-?\d+',
)
SEEDS = [raw.replace(TOPIC, b"t") for raw in (*REQUESTS, *REFUSED_BY_THE_FRONT_ALONE) if len(raw) < 3000]


def mutated(rng: random.Random) -> bytes:
    """Make some requests with some damage."""
    raw = bytearray(b"".join(rng.choice(SEEDS) for _ in range(rng.choice((1, 1, 2, 3)))))
    for _ in range(rng.choice((0, 1, 1, 2, 4, 8))):
        at = rng.randrange(len(raw) + 1)
        match rng.randrange(5):
            case 0 if at < len(raw):
                raw[at] = rng.randrange(256)
            case 1:
                del raw[at : at + rng.choice((1, 1, 2, 10))]
            case 2:
                raw[at:at] = rng.choice(PIECES)
            case 3:
                end = at + rng.randrange(40)
                raw[at:at] = raw[at:end]
            case _ if at < len(raw):
                raw[at] ^= 1 << rng.randrange(8)
    return bytes(raw)


def understood(house: FrontHouse, raw: bytes, cuts: list[int]) -> tuple[list[bytes], bytes, bool]:
    """Send bytes cut at these places: what writer and lane were given, what came back, whether the connection was ended."""
    client = house.connect()
    given: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        client.send(raw[start:end])
        given += house.settle()
    if client.lane is not None and not client.lane.left:
        given.append(client.lane.message)
    if house.hub.polling:
        house.hub.wake_all()
    told = client.received()
    assert not client.transport.aborted, f"the front gave up on {raw!r}"
    ended = client.transport.eof
    client.leave()
    house.clients.clear()
    assert not house.worker.connections and not house.hub.polling
    assert house.shared.worker(house.ring)["inflight"] == 0
    return given, NATURE.sub(b"", told), ended


def fuzz(house: FrontHouse, seed: int, seconds: float, rounds_min: int) -> int:
    """Go on for so long, and on a slow machine for longer, until there were enough rounds."""
    rng = random.Random(seed)
    until = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < until or rounds < rounds_min:
        raw = mutated(rng)
        whole = understood(house, raw, [])
        cuts = sorted(rng.sample(range(1, len(raw)), min(rng.choice((1, 1, 3, 20)), len(raw) - 1))) if len(raw) > 1 else []
        assert understood(house, raw, cuts) == whole, f"seed {seed}, round {rounds}: {raw!r} cut at {cuts}"
        rounds += 1
    return rounds


@pytest.fixture
def house(tmp_path):
    house = FrontHouse(tmp_path, wait_ms_max=0)
    yield house
    house.close()


@pytest.mark.slow
def test_every_request_of_the_corpus_is_understood_the_same_at_every_cut(house):
    for raw in SEEDS:
        raw += request(b"GET", b"/v0/health")
        whole = understood(house, raw, [])
        for cut in range(1, len(raw), 1 if len(raw) < 400 else 7):
            assert understood(house, raw, [cut]) == whole, (raw, cut)
        assert understood(house, raw, list(range(1, len(raw)))) == whole, raw


@pytest.mark.slow
def test_damaged_requests_are_understood_the_same_however_they_are_cut_for_20_seconds(house):
    assert fuzz(house, seed=1, seconds=20, rounds_min=500) >= 500


@pytest.mark.crash
@pytest.mark.timeout(900)
def test_damaged_requests_are_understood_the_same_however_they_are_cut_for_10_minutes(house):
    assert fuzz(house, seed=time.time_ns(), seconds=600, rounds_min=5000) >= 5000
