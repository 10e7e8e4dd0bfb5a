"""What a Spark query reads: partitions, offsets, rate limits. No Spark is started here."""

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topicsd._native.segment_scan import GapError
from topicsd.lake.manifest import Manifest, Row, Topic
from topicsd.lake.pieces import Piece
from topicsd.spark import options, plan
from topicsd.spark.options import Offsets, OptionError, Options

ROOT = Path("/x")


def row(first: int, last: int, record_bytes: int = 100, ts: int = 0) -> Row:
    size = (last - first + 1) * record_bytes
    return Row(first, last, first, last, ts, ts + last - first, 0, 0, 0, 0, 0, 0, "f", 0, size, size, size, "", "", "")


def topic(name: str, *ranges: tuple[int, int], epoch: int = 7, **rest: int) -> Topic:
    return Topic(name, epoch, tuple(row(first, last, **rest) for first, last in ranges))


def manifest(*topics: Topic) -> Manifest:
    return Manifest(1, "r", 0, {one.name: one for one in topics})


def told(**rest: object) -> Options:
    return options.parse({"path": str(ROOT)} | {name: str(value) for name, value in rest.items()})


def at(next_seq: int, epoch: int = 7) -> dict[str, object]:
    return {"epoch": f"{epoch:016x}", "next_seq": next_seq}


def seqs(partitions: list[list[Piece]]) -> list[tuple[str, int]]:
    return [(piece.topic, seq) for pieces in partitions for piece in pieces for seq in range(piece.first_seq, piece.last_seq + 1)]


# ---- batches --------------------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32), bytes_max=st.integers(10_000, 40_000))
def test_a_batch_reads_each_seq_once_in_partitions_of_the_size_that_is_asked_for(seed: int, bytes_max: int) -> None:
    rng = random.Random(seed)
    topics = []
    for number in range(rng.randrange(1, 6)):
        cuts = sorted(rng.sample(range(1, 300), rng.randrange(2, 6)))
        topics.append(topic(f"t{number}", *((a, b - 1) for a, b in itertools.pairwise(cuts))))
    found = plan.batch(manifest(*topics), ROOT, told(maxPartitionBytes=bytes_max))
    assert seqs(found) == [(one.name, seq) for one in topics for seq in range(one.first_seq, one.next_seq)]
    weights = [sum((piece.last_seq - piece.first_seq + 1) * 100 + plan.PIECE_BYTES for piece in pieces) for pieces in found]
    for pieces, weight in zip(found, weights, strict=True):
        assert len(pieces) == 1 or weight <= bytes_max * 1.02 + 2 * plan.PIECE_BYTES + 100


def test_the_partitions_of_a_batch_are_alike() -> None:
    found = manifest(topic("a", *((first, first + 99_999) for first in range(1, 600_001, 100_000)), record_bytes=330))
    partitions = plan.batch(found, ROOT, told())
    assert [len(seqs([pieces])) for pieces in partitions] == pytest.approx([300_000, 300_000], rel=0.02)
    partitions = plan.batch(manifest(topic("a", (1, 1_000_000), record_bytes=330)), ROOT, told())
    assert [len(seqs([pieces])) for pieces in partitions] == pytest.approx([333_333] * 3, rel=0.02)


def test_a_hundred_thousand_tiny_topics_share_few_partitions() -> None:
    tiny = manifest(*(topic(f"t{number:06}", (1, 3)) for number in range(100_000)))
    found = plan.batch(tiny, ROOT, told())
    assert len(found) == 4 and len(seqs(found)) == 300_000
    stream = plan.stream(tiny, ROOT, plan.bound(tiny.topics, "earliest", ""), plan.bound(tiny.topics, "latest", ""), told())
    assert len(stream) == 2 and len(seqs(stream)) == 300_000


def test_offsets_timestamps_and_topics_bound_a_batch() -> None:
    found = manifest(topic("a", (1, 10), (11, 20)), topic("b.x", (5, 6)))
    assert seqs(plan.batch(found, ROOT, told(topics="b.*"))) == [("b.x", 5), ("b.x", 6)]
    chosen = told(startingOffsets='{"a": 9}', endingOffsets='{"a": {"epoch": "0000000000000007", "next_seq": 12}, "b.x": 6}')
    assert seqs(plan.batch(found, ROOT, chosen)) == [("a", 9), ("a", 10), ("a", 11), ("b.x", 5)]
    assert seqs(plan.batch(manifest(Topic("a", 7, (row(1, 10, ts=100), row(11, 20, ts=500)))), ROOT, told(startingTimestamp=200))) == [
        ("a", seq) for seq in range(11, 21)
    ]
    with pytest.raises(OptionError, match="startingOffsets names nobody"):
        plan.batch(found, ROOT, told(startingOffsets='{"nobody": 1}'))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"onCorrupt": "maybe"}, "onCorrupt is fail or row"),
        ({"maxPartitionBytes": "0"}, "whole number of at least 1"),
        ({"columns": "topic,topic"}, "each once"),
        ({"startingOffset": "earliest"}, "has no option startingOffset; .* startingOffsets"),
        ({"failOnDataLoss": "perhaps"}, "^failOnDataLoss is true or false"),
        ({"startingTimestamp": "soon"}, "^startingTimestamp is a whole number"),
        ({"endingtimestamp": "-1"}, "^endingTimestamp is a whole number"),
        ({"endingTimestamp": str(2**63)}, "^endingTimestamp is a whole number"),
        ({"maxRecordsPerTrigger": "0"}, "^maxRecordsPerTrigger is a whole number"),
        *(({"topics": names}, "^topics ") for names in ("", ",", "a,", "a*b", "*a", "a.**", "a, b c", "ä", "-a*", "a" * 256)),
        ({"columns": ""}, "^columns "),
        ({"columns": " , "}, "^columns "),
    ],
)
def test_a_wrong_option_is_named(wrong: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        options.parse({"path": "x"} | wrong)
    with pytest.raises(OptionError, match="needs the option path"):
        options.parse({})


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize(
    "one",
    ["1.5", "-1", "0", "true", "null", '"5"', "[5]", str(2**53 + 1), "{}", *(
        f'{{"epoch": {epoch}, "next_seq": 5}}' for epoch in ("7", "null", '"zz"', '"7"', '"000000000000000g"', '"00000000000000007"')
    ), '{"epoch": "0000000000000007", "next_seq": 5.0}', '{"epoch": "0000000000000007"}'],
)  # fmt: skip
def test_an_offset_that_is_none_is_refused_at_once_and_the_option_and_the_topic_are_named(option: str, one: str) -> None:
    with pytest.raises(OptionError, match=f"^{option} .*flights"):
        told(**{option: f'{{"a": 1, "flights": {one}}}'})


@pytest.mark.parametrize("text", ["Latest", "", "5", "[]", "null", "{", '{"a": 1, "a": 2}'])
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_what_is_no_json_of_offsets_is_refused_at_once(option: str, text: str) -> None:
    with pytest.raises(OptionError, match=f"^{option} "):
        told(**{option: text})


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize("one", ["22", '{"epoch": "0000000000000007", "next_seq": 22}'])
def test_an_offset_beyond_the_head_is_refused_and_topic_and_head_are_named(option: str, one: str) -> None:
    found = manifest(topic("a", (1, 20)))
    with pytest.raises(OptionError, match=f"^{option} .*22.* a.* head is 20"):
        plan.batch(found, ROOT, told(**{option: f'{{"a": {one}}}'}))
    assert seqs(plan.batch(found, ROOT, told(startingOffsets='{"a": 21}'))) == []
    assert len(seqs(plan.batch(found, ROOT, told(endingOffsets='{"a": 21}')))) == 20


def test_ranges_fail_unless_their_kind_can_be_seen_or_an_option_lets_them_go() -> None:
    assert (told().on_corrupt, told().on_gap) == ("fail", "row")
    assert told(onCorrupt="row").on_corrupt == "row"
    seven = {"columns": "topic,seq,ts,node,tag,meta,data"}
    assert (told(**seven).on_corrupt, told(**seven).on_gap) == ("fail", "fail")
    assert (told(**seven, onCorrupt="row").on_corrupt, told(**seven, failOnDataLoss=False).on_gap) == ("skip", "skip")


# ---- streams --------------------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32), records=st.integers(1, 400), step=st.integers(1, 90))
def test_a_limited_stream_reads_each_seq_once_and_comes_to_the_end(seed: int, records: int, step: int) -> None:
    rng = random.Random(seed)
    found = manifest(*(topic(f"t{number}", (rng.randrange(1, 50), rng.randrange(50, 300))) for number in range(5)))
    asked = told(recordsPerPartition=step)
    start: Offsets = plan.bound(found.topics, "earliest", "")
    got: list[tuple[str, int]] = []
    for _ in range(2000):
        end = plan.advanced(found, start, asked, records=records)
        batch = seqs(plan.stream(found, ROOT, start, end, asked))
        assert len(batch) <= max(records, len(found.topics))
        got += batch
        if end == start:
            break
        start = end
    assert start == plan.bound(found.topics, "latest", "")
    assert sorted(got) == [(name, seq) for name, one in sorted(found.topics.items()) for seq in range(one.first_seq, one.next_seq)]


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32), step=st.integers(1, 90))
def test_a_replayed_batch_is_cut_as_it_was_whatever_the_export_has_become(seed: int, step: int) -> None:
    rng = random.Random(seed)

    def made() -> Manifest:  # the same seqs in other segments
        cuts = [1, *sorted(rng.sample(range(2, 300), 5)), 300 + rng.randrange(50)]
        return manifest(*(topic(f"t{number}", *((a, b - 1) for a, b in itertools.pairwise(cuts))) for number in range(4)))

    start = {f"t{number}": at(rng.randrange(1, 100)) for number in range(4)}
    end = {f"t{number}": at(rng.randrange(100, 300)) for number in range(4)}
    first, second = (plan.stream(made(), ROOT, start, end, told(recordsPerPartition=step)) for _ in range(2))
    assert [seqs([pieces]) for pieces in first] == [seqs([pieces]) for pieces in second]


def test_topics_that_appear_are_made_again_or_go_keep_the_stream_running() -> None:
    start: Offsets = {"a": at(5), "gone": at(9)}
    later = manifest(topic("a", (1, 3), epoch=8), topic("new", (4, 6)))
    end = plan.advanced(later, start, told())
    assert end == {"a": at(1, 8), "gone": at(9), "new": at(4)}  # their places, and nothing read
    assert plan.stream(later, ROOT, start, end, told()) == [[Piece("a", 5, 0, None, "recreated")]]  # does not fail
    assert plan.stream(later, ROOT, start, end, told(columns="seq,data")) == []
    last = plan.advanced(later, end, told())
    assert seqs(plan.stream(later, ROOT, end, last, told())) == [("a", 1), ("a", 2), ("a", 3), ("new", 4), ("new", 5), ("new", 6)]
    assert plan.advanced(later, last, told()) == last


def test_an_export_that_is_older_than_the_offsets_does_not_take_the_stream_back() -> None:
    assert plan.advanced(manifest(topic("a", (1, 3))), {"a": at(9)}, told()) == {"a": at(9)}


def test_a_limit_in_bytes_takes_about_so_many() -> None:
    found = manifest(topic("a", (1, 1000)), topic("b", (1, 1000), record_bytes=300))
    end = plan.advanced(found, plan.bound(found.topics, "earliest", ""), told(), size=40_000)
    assert (end["a"]["next_seq"] - 1) * 100 + (end["b"]["next_seq"] - 1) * 300 == pytest.approx(40_000, rel=0.05)


def test_what_retention_has_taken_fails_or_is_a_gap() -> None:
    found, start, end = manifest(topic("a", (50, 99))), {"a": at(20)}, {"a": at(100)}
    with pytest.raises(GapError, match="topic a, seqs 20 to 49"):
        plan.stream(found, ROOT, start, end, told())
    (pieces,) = plan.stream(found, ROOT, start, end, told(failOnDataLoss=False))
    assert [(piece.first_seq, piece.last_seq, piece.place is None) for piece in pieces] == [(20, 49, True), (50, 99, False)]
    with pytest.raises(GapError, match="seqs 20 to 99"):
        plan.stream(manifest(topic("a", (1, 200), epoch=9)), ROOT, start, end, told())


# ---- what had gone, and what went ---------------------------------------------------------------------------------------------------------


def lost(first: int, last: int, why: str = "cap") -> Row:
    return replace(row(first, last), file="", why=why, evicted=why != "deleted", end_offset=0)


def ranges(partitions: list[list[Piece]]) -> list[tuple[int, int, str]]:
    return [(piece.first_seq, piece.last_seq, piece.why) for pieces in partitions for piece in pieces]


GONE = Topic("a", 7, (lost(1, 50), row(51, 60), lost(61, 80, "ttl"), lost(81, 90, "deleted"), row(91, 99)), evict_floor=81)


def test_what_had_gone_before_a_first_read_is_a_row_and_never_fails() -> None:
    found, wanted = manifest(GONE), [(1, 50, "cap"), (51, 60, ""), (61, 80, "ttl"), (91, 99, "")]
    assert ranges(plan.batch(found, ROOT, told())) == wanted
    start = plan.bound(found.topics, "earliest", "")
    assert start == {"a": at(1) | {"earliest_seq": 51, "floor": 81}}
    end = plan.advanced(found, start, told())
    assert end == {"a": at(100)}
    assert ranges(plan.stream(found, ROOT, start, end, told())) == wanted
    plain = told(columns="seq,data")
    assert ranges(plan.batch(found, ROOT, plain)) == [(51, 60, ""), (91, 99, "")]
    assert (1, 50, "cap") not in ranges(plan.stream(found, ROOT, start, end, plain))


def test_a_limited_stream_comes_past_what_had_gone_in_one_batch_and_remembers_it() -> None:
    found = manifest(Topic("a", 7, (lost(1, 10**9), row(10**9 + 1, 10**9 + 60), lost(10**9 + 61, 2 * 10**9)), evict_floor=2 * 10**9 + 1))
    start = plan.bound(found.topics, "earliest", "")
    end = plan.advanced(found, start, told(), records=20)
    assert end == {"a": at(10**9 + 21) | {"floor": 2 * 10**9 + 1}}
    assert ranges(plan.stream(found, ROOT, start, end, told())) == [(1, 10**9, "cap"), (10**9 + 1, 10**9 + 20, "")]
    third = plan.advanced(found, plan.advanced(found, end, told(), records=20), told(), records=20)
    assert third == {"a": at(2 * 10**9 + 1)}


def test_what_retention_took_behind_a_streams_offset_fails_or_is_a_row_with_its_reason() -> None:
    found, start, end = manifest(Topic("a", 7, (row(1, 20), lost(21, 60, "ttl")), evict_floor=61)), {"a": at(21)}, {"a": at(61)}
    assert plan.advanced(found, start, told()) == end
    with pytest.raises(GapError, match="topic a, seqs 21 to 60: lost \\(ttl, before it was exported"):
        plan.stream(found, ROOT, start, end, told())
    assert ranges(plan.stream(found, ROOT, start, end, told(failOnDataLoss=False))) == [(21, 60, "ttl")]


def test_what_a_prune_took_between_a_first_plan_and_its_reading_fails() -> None:
    start, end = plan.bound({"a": GONE}, "earliest", ""), {"a": at(100)}
    pruned = manifest(Topic("a", 7, (lost(1, 95), row(96, 99)), evict_floor=96))
    with pytest.raises(GapError, match="topic a, seqs 81 to 95"):
        plan.stream(pruned, ROOT, start, end, told())
    rows = ranges(plan.stream(pruned, ROOT, start, end, told(failOnDataLoss=False)))
    assert rows == [(1, 50, "cap"), (51, 80, "cap"), (81, 95, "cap"), (96, 99, "")]


def test_what_an_export_still_has_of_a_topic_that_was_made_again_is_read_first() -> None:
    older = (topic("a", (1, 40)), topic("a", (1, 6), epoch=8))
    found, start = manifest(replace(topic("a", (1, 3), epoch=9), older=older)), {"a": at(21)}
    got, steps = [], []
    for _ in range(8):
        end = plan.advanced(found, start, told())
        got += [(piece.first_seq, piece.last_seq, piece.why) for part in plan.stream(found, ROOT, start, end, told()) for piece in part]
        steps.append(end["a"])
        if end == start:
            break
        start = end
    assert steps == [at(41), at(1, 8), at(7, 8), at(1, 9), at(4, 9), at(4, 9)]
    assert got == [(21, 40, ""), (41, 0, "recreated"), (1, 6, ""), (7, 0, "recreated"), (1, 3, "")]
    fresh = plan.bound(found.topics, "earliest", "")
    assert fresh == {"a": at(1, 9)}  # who begins now reads the newest alone
