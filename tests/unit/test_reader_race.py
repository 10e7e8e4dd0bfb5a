"""A reader beside a writer that evicts and uses memory again as fast as it can: never a wrong record, never a silent loss."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from topicsd._native import frame
from topicsd._native.reader import Busy, Reader
from topicsd._native.regions import Shared
from topicsd._native.scan import parse_diff
from topicsd._native.testing import lay_entries, lay_ephemeral, lay_topic, lay_trim, lay_words

PLACES, KEPT, PLACE_BYTES = 48, 24, 4096
NOW_MS = 1_000


def data_of(seq: int) -> bytes:
    return b'"' + str(seq).encode() * (1 + seq * 7 % 500) + b'"'


def write_for_ever(shared: Shared, slot: int) -> None:
    """Keep the last KEPT records: floors first, then earliest, then the memory is used again."""
    seq = 0
    while True:
        seq += 1
        if seq > KEPT:
            lay_words(shared, slot, cap_lost=seq - KEPT)
            lay_words(shared, slot, earliest=seq - KEPT + 1)
            lay_trim(shared, slot, seq - KEPT + 1)
        offset = seq % PLACES * PLACE_BYTES
        data = data_of(seq)
        lay_ephemeral(shared, offset, frame.entry(frame.Record(data)))
        lay_entries(shared, slot, seq, [(255 << 56 | offset, len(data), 0, seq)])


@pytest.mark.slow
def test_a_reader_beside_a_busy_writer_gets_whole_records_in_order(tmp_path: Path) -> None:
    shared = Shared.create(topics_max=4)
    shared.set("ready", 1)
    slot = lay_topic(shared, b"t", 1, durability=0)
    writer = os.fork()
    if writer == 0:
        try:
            write_for_ever(shared, slot)
        finally:
            os._exit(1)
    try:
        reader = Reader(shared, tmp_path)
        request = parse_diff(b"")
        pages = records = cursor = 0
        ends = time.monotonic() + 3
        while time.monotonic() < ends or pages <= 100 or records <= 100:  # a slow machine takes longer
            request.from_seq = cursor
            try:
                body, _, next_seq = reader.diff(slot, request, NOW_MS)
            except Busy:
                continue
            page = json.loads(body)
            if page["tombstone"] is not None:
                assert (page["tombstone"]["gap_from"], page["tombstone"]["reason"]) == (cursor + 1, "cap")
                cursor = page["tombstone"]["gap_to"]
            for record in page["records"]:
                assert record["$seq"] == cursor + 1 == record["$ts"]
                assert record["data"] == json.loads(data_of(record["$seq"]))
                cursor += 1
            assert cursor == next_seq
            pages += 1
            records += len(page["records"])
        assert pages > 100 and records > 100
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
