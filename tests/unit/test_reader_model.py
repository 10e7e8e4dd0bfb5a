"""Diff and state against the oracle: random fates, random requests, everything visible compared."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fakes.laid import Log, lay
from oracle import diff_oracle
from oracle.diff_oracle import CAPPED, DELETED, EXPIRED, HOLE, LIVE, Fate, Request, Topic
from topicsd._native.reader import Reader
from topicsd._native.regions import Shared
from topicsd._native.scan import parse_diff

BASE_MS = 1_000_000
TEXTS = [None, "", "a", "b", "a:1", "a:2", 'q"\\', "é\n", "\x01"]
DATA = ["null", "1.0", '"' + "x" * 40 + '"', '{"a":[1, 2],"é":"\\u0000"}', "[]", "-0", "18446744073709551616"]


def fate(kinds: list[str]) -> st.SearchStrategy[Fate]:
    return st.builds(
        Fate,
        kind=st.sampled_from(kinds),
        ts=st.integers(0, 40),  # a step; added up below
        data=st.sampled_from(DATA),
        meta=st.sampled_from([None, None, "{}", '{"k":"v"}']),
        tag=st.sampled_from(TEXTS),
        node=st.sampled_from(TEXTS),
        reason=st.sampled_from(["mixed", "mixed", "corrupt", "source_trim"]),
    )


@st.composite
def topics(draw: st.DrawFn) -> Topic:
    """Caps and sweeps take from the front only; deletes and holes are anywhere."""
    front = draw(st.lists(fate([CAPPED, EXPIRED, DELETED, HOLE]), max_size=8))
    rest = draw(st.lists(fate([LIVE, LIVE, LIVE, DELETED, HOLE]), max_size=25))
    made = Topic("t", draw(st.integers(1, 3)), draw(st.sampled_from([0, 0, 100, 400])), draw(st.booleans()) or draw(st.booleans()), front + rest)
    ts = BASE_MS
    for each in made.fates:
        ts += each.ts
        each.ts = ts
    return made


requests = st.builds(
    Request,
    from_seq=st.integers(0, 40),
    limit=st.sampled_from([0, 0, 1, 2, 3, 7, 1000]),
    nodes=st.lists(st.sampled_from([text for text in TEXTS if text is not None]), max_size=3),
    include_tags=st.booleans(),
    include_meta=st.booleans(),
    max_batch_bytes=st.sampled_from([0, 0, 1, 50, 100, 200]),
    match=st.none() | st.tuples(st.sampled_from(["Eq", "Glob"]), st.sampled_from([text for text in TEXTS if text is not None])),
    epoch=st.none() | st.none() | st.integers(1, 3),
    from_ts=st.none() | st.none() | st.integers(BASE_MS, BASE_MS + 900),
)


def answer(reader: Reader, slot: int, request: Request, now_ms: int) -> dict[str, Any]:
    body, would_wait, _ = reader.diff(slot, parse_diff(request.body()), now_ms)
    page: dict[str, Any] = json.loads(body)
    return page | {"scanned": page.pop("performance")["records_scanned"], "would_wait": would_wait}


@given(topics(), st.lists(requests, min_size=1, max_size=5), st.integers(0, 1500), st.booleans(), st.integers(1, 5))
def test_every_page_and_every_state_is_what_the_oracle_says(made: Topic, asked: list[Request], later: int, ephemeral: bool, batch: int) -> None:
    now_ms = BASE_MS + later
    shared = Shared.create(topics_max=4)
    shared.set("ready", 1)
    with tempfile.TemporaryDirectory() as folder:
        log = None if ephemeral else Log(shared, Path(folder), shard=1, file_bytes=512)
        slot = lay(shared, log, made, batch)
        reader = Reader(shared, folder)
        for request in asked:
            assert answer(reader, slot, request, now_ms) == diff_oracle.diff(made, request, now_ms)
        state = json.loads(reader.state(slot, now_ms, False))
        assert (state["head_seq"], state["earliest_seq"]) == (made.head, made.earliest(now_ms))
        assert (state["count"], state["bytes"]) == made.count_and_bytes(now_ms)


@given(topics(), requests, st.integers(0, 1500))
def test_reading_on_from_the_cursor_meets_every_record_and_every_loss_once(made: Topic, request: Request, later: int) -> None:
    now_ms = BASE_MS + later
    request.from_seq, request.epoch, request.from_ts, request.match, request.nodes = 0, None, None, None, ()
    shared = Shared.create(topics_max=4)
    shared.set("ready", 1)
    with tempfile.TemporaryDirectory() as folder:
        slot = lay(shared, Log(shared, Path(folder), file_bytes=512), made)
        reader = Reader(shared, folder)
        met: list[int] = []
        told: list[int] = []
        for _ in range(200):
            page = answer(reader, slot, request, now_ms)
            if page["tombstone"] is not None:
                told += range(page["tombstone"]["gap_from"], page["tombstone"]["gap_to"] + 1)
            met += [record["$seq"] for record in page["records"]]
            request.from_seq = page["next_from_seq"]
            if page["caught_up"]:
                break
        assert met == made.live(now_ms)
        assert told == sorted(set(told))
        lost = {seq for seq in range(1, made.head + 1) if made.kind_at(seq, now_ms) in (CAPPED, EXPIRED, HOLE)}
        assert lost <= set(told)
        assert not set(told) & set(met)
