"""One writer changes table, index and order as fast as it can and is killed now and then; readers never see a wrong entry.

The content of an entry follows from (topic id, seq) and a topic's name from its id, so a reader can hold all it sees against that.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import time

import pytest

from oracle.index_oracle import Entry
from topicsd._native.index import Index
from topicsd._native.order import Order, OrderBusy
from topicsd._native.regions import Shared
from topicsd._native.table import Table

TOPICS = 40
CORRUPT = 6
SIZES = (1, 1, 1, 2, 5, 20, 50, 130, 1100, 2500)


def name_of(topic_id: int) -> bytes:
    return b"topic-%d" % (topic_id % TOPICS)


def entry_of(topic_id: int, seq: int) -> Entry:
    return (topic_id * 0x9E3779B97F4A7C15 ^ seq * 0xC2B2AE3D27D4EB4F) & (2**64 - 1), (topic_id ^ seq) & 0xFFFFFFFF, 0, seq + topic_id


def write(shared: Shared, seed: int) -> None:
    """Create, append, leave holes, trim and remove for ever."""
    table, index, order, rng = Table(shared), Index(shared), Order(shared), random.Random(seed)
    table.reset()
    index.reset()
    order.reset()
    topics: dict[int, list[int]] = {}  # slot -> [topic id, head, earliest]
    while True:
        slot = rng.choice(list(topics)) if topics and rng.random() < 0.9 else None
        if slot is None:
            topic_id = shared.add("topics", 1)
            slot = table.insert(name_of(topic_id), topic_id)
            if slot is not None:
                topics[slot] = [topic_id, 0, 1]
                order.insert(slot)
            continue
        topic_id, head, earliest = topics[slot]
        dice, count = rng.random(), rng.choice(SIZES)
        if dice < 0.60:
            if earliest > head:
                table.set(slot, earliest=head + 1)
            index.append(slot, head + 1, [entry_of(topic_id, seq) for seq in range(head + 1, head + count + 1)])
            topics[slot][1] += count
        elif dice < 0.65:
            index.hole(slot, head + 1, head + count, CORRUPT)
            topics[slot][1] += count
            if earliest > head:
                topics[slot][2] = head + count + 1
                table.set(slot, earliest=head + count + 1)
        elif dice < 0.95:
            below = rng.choice([head + 1, head, head - 20, (earliest + head) // 2, earliest + 1])
            if below > earliest:
                topics[slot][2] = below
                index.trim(slot, below)
        else:
            order.remove(slot)
            table.remove(slot)
            del topics[slot]


def read(shared: Shared, seed: int, tally: mmap.mmap, at: int) -> None:
    """Look at everything for ever; exit 1 with a message at the first wrong thing."""
    table, index, order, rng = Table(shared), Index(shared), Order(shared), random.Random(seed)
    seen = busy = 0
    while True:
        wanted = b"topic-%d" % rng.randrange(TOPICS)
        slot = table.find(wanted)
        if slot is None:
            slot = rng.randrange(TOPICS)
        try:
            got = index.tail(slot, rng.choice((1, 3, 100, 1500)), rng.choice((0, 1, 5, 30)))
        except (KeyError, RuntimeError):
            got = None
        if got is None:
            busy += 1
        else:
            topic_id, name, first, entries = got
            assert name == name_of(topic_id), got
            for seq, entry in enumerate(entries, first):
                assert entry == entry_of(topic_id, seq) or entry[2] == 2 | CORRUPT << 8, (topic_id, seq, entry)
            seen += len(entries)
        if rng.random() < 0.1:
            try:
                names = [name for _, name in order.page(b"topic-", None, 2 * TOPICS)]
            except OrderBusy:
                busy += 1
            else:
                assert names == sorted(set(names)), names
        struct.pack_into("<QQ", tally, at, seen, busy)


def storm(seconds: float, kills: int) -> None:
    shared = Shared.create(topics_max=64, index_bytes=256 << 20, ephemeral_bytes=1 << 20, body_bytes_max=1 << 16, ring_slots=1)
    tally = mmap.mmap(-1, 4096)
    shared.set("generation", 1)

    def fork(body: object, *arguments: object) -> int:
        child = os.fork()
        if child == 0:
            try:
                body(*arguments)  # type: ignore[operator]
            except BaseException as wrong:  # a child must never come back into pytest
                os.write(2, f"{body}: {wrong!r}\n".encode()[:4000])
            os._exit(1)
        return child

    writer = fork(write, shared, 0)
    readers = [fork(read, shared, 100 + number, tally, 16 * number) for number in range(2)]
    try:
        for number in range(kills + 1):
            time.sleep(seconds / (kills + 1))
            os.kill(writer, signal.SIGKILL)
            assert os.WIFSIGNALED(os.waitpid(writer, 0)[1]), "the writer failed"
            for reader in readers:
                assert os.waitpid(reader, os.WNOHANG) == (0, 0), "a reader saw something wrong"
            shared.add("generation", 1)
            writer = fork(write, shared, number + 1)
        while min(struct.unpack_from("<Q", tally, 16 * number)[0] for number in range(2)) <= 1000:  # a slow machine takes longer
            time.sleep(0.1)
            for reader in readers:
                assert os.waitpid(reader, os.WNOHANG) == (0, 0), "a reader saw something wrong"
    finally:
        for child in (writer, *readers):
            try:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
    for number in range(2):
        seen, _busy = struct.unpack_from("<QQ", tally, 16 * number)
        assert seen > 1000


@pytest.mark.slow
def test_readers_never_see_a_wrong_entry_while_the_writer_changes_all_and_dies() -> None:
    storm(6, kills=20)


@pytest.mark.crash
def test_readers_never_see_a_wrong_entry_for_a_minute_of_writers_that_die() -> None:
    storm(60, kills=400)
