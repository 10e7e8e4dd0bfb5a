"""Dead letters and their way back under power cuts: at every moment each record is in one of the two topics, never in both or in none (A §10.6)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from fakes.faulty_files import FaultyFiles
from fakes.in_process import Library
from fakes.workers import Workers

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_no_power_cut_loses_or_doubles_a_record_that_moves(tmp_path: Path, shards: int, seed: int) -> None:
    files, clock = FaultyFiles(tmp_path), FakeClock()
    library = Library(str(tmp_path), clock, files=files, shards=shards)
    library.put("dead", durability="fsync")
    library.put("q", type="queue", max_deliveries=1, dead_letter="dead", durability="fsync")
    workers = Workers(library)
    library.append("q", [{"data": n} for n in range(1, 5)])
    workers.nack("q", "w", [job["$seq"] for job in workers.claim("q", "w", 4)])
    first = len(files.calls)
    assert workers.claim("q", "w") == []
    buried = len(files.calls)
    assert library.call({"op": "queue.redrive", "topic": "q", "limit": 10}) == {"redriven": 4, "more": False}
    assert [job["deliveries"] for job in workers.claim("q", "w", 9)] == [1, 1, 1, 1]
    last = len(files.calls)
    library._forget()
    assert first < buried < last

    for call in range(first, last + 1):
        with tempfile.TemporaryDirectory() as folder:
            files.image(call, seed, Path(folder))
            again = Library(folder, clock, boot=b"c" * 16, shards=shards)
            jobs, letters = again.read_all("q")[0], again.read_all("dead")[0]
            assert sorted(record["data"] for record in (*jobs, *letters)) == [1, 2, 3, 4], f"call {call} of {first}..{last}"
            assert all("$dead_letter_from" in record["meta"] for record in letters)
            counters = Workers(again).counters("q")
            assert counters[0] + counters[1] == len(jobs)
            again.close()
