"""A flood of large batches goes to the log past the page cache: read meanwhile and afterwards, killed in the middle, all that was acked is there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from e2e.client import RETRY_S, RETRY_STATUSES, Cut, Record, at, insist, read_all, write_body
from e2e.server import Server, as_json, eventually
from fakes.disks import COHERENT, file_system_of

RECORDS = 100
BATCHES = 20
PRODUCERS = 4


def body_of(producer: int, number: int) -> bytes:
    return write_body([b'"%d-%d-%d-%s"' % (producer, number, n, b"x" * 4500) for n in range(RECORDS)], f"key-{producer}-{number}")


def figure(server: Server, name: str) -> int:
    text = server.call("GET", "/v0/metrics").body.decode()
    return int(next(line.split()[-1] for line in text.splitlines() if line.startswith(name) and not line.startswith("#")))


def flood(server: Server, acked: list[tuple[int, int, int]], failures: list[BaseException]) -> list[threading.Thread]:
    """Start producers that write until they are done or cut; they note (producer, number, first seq) of each acked batch."""

    def produce(producer: int) -> None:
        try:
            with server.line() as line:
                for number in range(BATCHES):
                    while (answer := line.call("POST", at("t"), body_of(producer, number))).status in RETRY_STATUSES:
                        time.sleep(RETRY_S)
                    assert answer.status in (200, 201), str(answer)
                    acked.append((producer, number, answer.json["first_seq"]))
        except Cut:
            pass
        except BaseException as wrong:
            failures.append(wrong)

    threads = [threading.Thread(target=produce, args=(producer,)) for producer in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    return threads


def check(server: Server, acked: list[tuple[int, int, int]]) -> list[Record]:
    """Read all; each acked batch stands at its seqs, byte for byte."""
    with server.line() as line:
        records, _, _ = read_all(line, "t")
    data = {record.seq: record.data for record in records}
    for producer, number, first in acked:
        for n in (0, 1, RECORDS - 1):
            assert data[first + n].startswith(b'"%d-%d-%d-' % (producer, number, n)), (producer, number, n)
    assert sorted(data) == list(range(1, len(data) + 1))
    return records


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("direct", ["true", "false"])
def test_a_flood_is_read_the_same_during_it_after_it_and_after_a_kill(launch: Callable[..., Server], direct: str) -> None:
    server = launch(workers=2, TOPICS_LOG_DIRECT=direct, TOPICS_LOG_FILE_BYTES=16 << 20)
    acked: list[tuple[int, int, int]] = []
    failures: list[BaseException] = []
    with server.line() as line:
        insist(line, "PUT", at("t"), as_json({"durability": "disk"}))
    for thread in flood(server, acked, failures):
        thread.join(200)
    assert (failures, len(acked)) == ([], PRODUCERS * BATCHES)
    went = figure(server, "topics_wal_direct_bytes_total")
    assert went <= figure(server, "topics_wal_bytes_written_total")
    if direct == "false":
        assert went == 0
    elif file_system_of(server.data) in COHERENT:
        assert went > 0
    before = check(server, acked)

    more: list[tuple[int, int, int]] = []
    with server.line() as line:
        insist(line, "DELETE", at("t"))
        insist(line, "PUT", at("t"), as_json({"durability": "fsync"}))
    assert len(before) == PRODUCERS * BATCHES * RECORDS
    threads = flood(server, more, failures)
    assert eventually(lambda: len(more) >= 40)
    check(server, list(more)[:10])
    server.kill()
    for thread in threads:
        thread.join(100)
    assert failures == []
    server.start()
    check(server, more)
    assert server.stop() == 0
