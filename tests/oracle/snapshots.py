"""What a snapshot with all that it stands upon says, beside what the tables say at its moment.

Rows of layers are brought together here in plain Python and held against `Taking.look`, which packs every topic as it stands: a change that no
`touch` has told of, or one that came before its topic was packed, shows as a difference.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from topicsd import snapshot
from topicsd._native.taking import Taking

ROW_BYTES, SIZE, COUNTS = 240, struct.Struct("<Q"), struct.Struct("<6I")
LAST_READ_AT, COUNTS_AT = 160, 216
BODY, RUN, ORIGIN, WINDOW = struct.Struct("<QQQQIIIIIIIIQQQQQIIIIQ"), struct.Struct("<QQII"), struct.Struct("<QQII"), struct.Struct("<QQqII")
JOBS, JOB = struct.Struct("<QQQQ"), struct.Struct("<QQQqIhBB")
NOTE = struct.Struct("<QQIIII")
READY, LEASED = 1, 3

Rows = dict[int, Any]


def topics(section: bytes, now_ms: int, expired: dict[int, int]) -> dict[int, Any]:
    """Decode a section of topics, without what means nothing in another process and keys that are too old to be known."""
    found, at = {}, 0
    while at < len(section):
        (size,) = SIZE.unpack_from(section, at)
        row = section[at + 8 : at + 8 + size]
        at += 8 + size
        found[SIZE.unpack_from(row)[0]] = topic(row, now_ms, expired)
    return found


def topic(row: bytes, now_ms: int, expired: dict[int, int]) -> Any:
    """Decode one row."""
    head = bytearray(row[:ROW_BYTES])
    head[LAST_READ_AT : LAST_READ_AT + 8] = bytes(8)
    name_bytes, dead_letter_bytes, rows, runs, origins, windows = COUNTS.unpack_from(row, COUNTS_AT)
    head[COUNTS_AT + 20 : COUNTS_AT + 24] = bytes(4)
    place = ROW_BYTES + (name_bytes + dead_letter_bytes + 7) // 8 * 8
    names, bodies, marked = row[ROW_BYTES:place], [], []
    for _ in range(rows):
        body = BODY.unpack_from(row, place)
        place += BODY.size
        bodies.append((*body[:6], bool(body[6]), *body[7:11], *body[13:17], body[19]))
        if body[11]:
            marked.append((body[1] - body[0]) // 64 * 8 + 8)
    begun = place
    place += sum(marked)
    for _ in range(runs):
        first, last, kind, _reserved = RUN.unpack_from(row, place)
        place += RUN.size + (0 if kind else 24 * (last - first + 1))
    for _ in range(origins):
        place += (ORIGIN.size + ORIGIN.unpack_from(row, place)[2] + 7) // 8 * 8
    rest, keys = row[begun:place], {}
    window_ms = struct.unpack_from("<Q", row, 16 + 24)[0]
    for _ in range(windows):
        xxh3, first, arrived, count, key_bytes = WINDOW.unpack_from(row, place)
        key = row[place + WINDOW.size : place + WINDOW.size + key_bytes]
        place += (WINDOW.size + key_bytes + 7) // 8 * 8
        if now_ms - arrived < window_ms:
            keys[key] = (xxh3, first, count)
    return bytes(head), names, bodies, rest, keys


def jobs(body: bytes, now_ms: int) -> Any:
    """Decode a row of jobs: what is due by now is ready, however it is told."""
    wall_ms, dead, _token, count = JOBS.unpack_from(body)
    found = []
    for number in range(count):
        seq, token, holder, left_ms, deliveries, priority, state, _ = JOB.unpack_from(body, JOBS.size + number * JOB.size)
        due_ms = wall_ms + left_ms
        waits = state != READY and due_ms > now_ms
        found.append((seq, token, holder, deliveries, priority, state if waits else READY, due_ms if waits else 0))
    return dead, sorted(found)


def groups(body: bytes, now_ms: int) -> Any:
    """Decode a row of groups: a lease that is over by now is free, however it is told."""
    members, found = json.loads(body), {}
    for name, each in members["groups"].items():
        leases = [(first, last, consumer, members["t"] + left, deliveries) for first, last, consumer, left, deliveries in each["leases"]]
        live = sorted(lease for lease in leases if lease[3] > now_ms)
        free = sorted(
            [(first, last, deliveries) for first, last, _, due_ms, deliveries in leases if due_ms <= now_ms] + [tuple(f) for f in each["free"]]
        )
        found[name] = (each["p"], each["c"], each["n"], each["made"], each["moved"], live, free, each["settled"])
    return found


def notes(section: bytes) -> dict[int, bytes]:
    """Split a section of notes by topic."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(section):
        topic_id, _first, count, _flags, blob_bytes, origins = NOTE.unpack_from(section, at)
        end = at + (NOTE.size + count * (24 + 12) + blob_bytes + 7) // 8 * 8
        for _ in range(origins):
            end += (ORIGIN.size + ORIGIN.unpack_from(section, end)[2] + 7) // 8 * 8
        found[topic_id] = found.get(topic_id, b"") + section[at:end]
        at = end
    return found


def merged(chain: snapshot.Chain, now_ms: int) -> tuple[Rows, Rows, Rows]:
    """Bring the layers of a snapshot together: topics, jobs, notes by topic id."""
    all_topics: Rows = {}
    all_jobs: Rows = {}
    all_notes: Rows = {}
    for layer in reversed(chain.layers):  # the oldest first: what is newer stands in its place
        for topic_id in layer.gone:
            for rows in (all_topics, all_jobs, all_notes):
                rows.pop(topic_id, None)
        changed = topics(bytes(layer.sections["topics"]), now_ms, {})
        for topic_id in changed:
            all_jobs.pop(topic_id, None)
            all_notes.pop(topic_id, None)
        all_topics |= changed
        all_jobs |= {row.key: jobs(row.body, now_ms) for row in snapshot.rows_of(layer.sections["jobs"])}
        all_notes |= notes(bytes(layer.sections["notes"]))
    return all_topics, all_jobs, all_notes


class Watched:
    """Take the tables' word at each moment, and hold each snapshot against it."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.groups: dict[int, bytes] = {}
        self.checked = self.upon = 0
        watched = self
        checkpoints = store.checkpoints
        begin, written = checkpoints._begin, checkpoints._written

        def begins(room: Taking, below: Any) -> bool:
            looked: list[Any] = []
            real = room.begin

            class Moment:
                """The room, with a look at everything just before its moment."""

                def __getattr__(self, name: str) -> Any:
                    return getattr(room, name)

                def begin(self, number: int, parent: int) -> Any:
                    look = Taking(store.sequencer)
                    look.look()
                    rows = {topic_id: store.engine.groups.row(topic_id) for topic_id in store.engine.groups.by_topic}
                    watched.groups = {topic_id: row.body for topic_id, row in rows.items() if row is not None}
                    looked.append(look)
                    return real(number, parent)

            began = begin(Moment(), below)
            if began:
                self.wanted = looked[0], store.clock.wall_ms()
            return bool(began)

        def writes(packing: Any, needed: list[int], took_ms: int) -> None:
            self.compare(packing.number, needed)
            written(packing, needed, took_ms)

        checkpoints._begin, checkpoints._written = begins, writes

    def compare(self, number: int, needed: list[int]) -> None:
        """Compare snapshot `number` with the tables of its moment."""
        look, now_ms = self.wanted
        chain = snapshot.read_chain(Path(self.store.path), number)
        found, wanted = merged(chain, now_ms), (
            topics(bytes(look.topics), now_ms, {}), {row.key: jobs(row.body, now_ms) for row in snapshot.rows_of(memoryview(look.jobs))},
            notes(bytes(look.notes)),
        )  # fmt: skip
        for rows in (found[1], wanted[1]):  # a row that says nothing is as good as none
            for topic_id in [key for key, row in rows.items() if row == (0, [])]:
                del rows[topic_id]
        for what, one, other in zip(("topics", "jobs", "notes"), found, wanted, strict=True):
            assert one.keys() == other.keys(), f"snapshot {number}, {what}: {one.keys() ^ other.keys()}"
            for key in one:
                told = f"snapshot {number} of {[each.number for each in chain.layers]}, {what} of topic {key}"
                assert one[key] == other[key], f"{told}: {one[key]} and {other[key]}"
        told_groups = {row.key: groups(row.body, now_ms) for _number, row in chain.rows("groups")}
        assert told_groups == {topic_id: groups(body, now_ms) for topic_id, body in self.groups.items()}, f"snapshot {number}, groups"
        moment = chain.header["moment"]
        assert all(have <= (end if low is None else min(low, end)) for have, low, end in zip(needed, look.needed, moment, strict=False)), (
            f"snapshot {number} needs the log from {look.needed} on, not from {needed}"
        )
        self.checked += 1
        self.upon += len(chain.layers) > 1
