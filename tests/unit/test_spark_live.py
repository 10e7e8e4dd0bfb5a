"""Reading a live server through diff: what comes, what is lost and how it is told. The server is a fake; no Spark is started here."""

import json
from typing import Any

import pytest

from topicsd._native.segment_scan import GapError
from topicsd.lake.server import NotFoundError
from topicsd.spark import live, options, plan
from topicsd.spark.live import LiveReader, Span


def headed(head: int, **rest: Any) -> Any:
    """What a server with such a head lists."""
    return live.listing(FakeServer(a={"head": head} | rest), None)  # type: ignore[arg-type]


def test_a_server_whose_head_is_below_what_was_read_of_its_epoch_fails_the_stream() -> None:
    start = {"a": {"epoch": f"{7:016x}", "next_seq": 101}}
    asked = options.parse({"url": "http://x"})
    for head in (0, 50, 99):
        with pytest.raises(GapError, match=f"topic a, seqs {head + 1} to 100: .*restored or made anew"):
            plan.advanced(headed(head), start, asked)
    assert plan.advanced(headed(100), start, asked) == start
    assert plan.advanced(headed(50, epoch=8), start, asked)["a"]["epoch"] == f"{8:016x}"
    assert plan.advanced(headed(50), start, options.parse({"url": "http://x", "failOnDataLoss": "false"})) == start


class FakeServer:
    """Topics with records by seq, an epoch, an evict floor, a first seq that deletes have moved and holes (first, last), as diff has them.

    Three records a page.
    """

    def __init__(self, **topics: dict[str, Any]) -> None:
        self.topics = topics
        self.asked: list[tuple[str, int, int]] = []

    def listed(self) -> Any:
        for name, one in self.topics.items():
            earliest = one.get("earliest", one.get("floor", 1))
            count = one["head"] - earliest + 1
            yield {
                "topic": name, "head_seq": one["head"], "earliest_seq": earliest, "count": count, "bytes": 50 * count,
                "epoch": one.get("epoch", 7),
            }  # fmt: skip

    def diff(self, topic: str, from_seq: int, *, epoch: int | None = None, limit: int = 1000) -> bytes:
        self.asked.append((topic, from_seq, limit))
        one = self.topics.get(topic)
        if one is None:
            raise NotFoundError("404", 404)
        floor, head, mine = one.get("floor", 1), one["head"], one.get("epoch", 7)
        earliest = one.get("earliest", floor)
        around: dict[str, Any] = {"head_seq": head, "earliest_seq": earliest, "tombstone": None, "epoch": mine}
        if mine != epoch or from_seq > head:
            around["tombstone"] = {"gap_from": 1, "gap_to": head, "reason": "recreated"}
            from_seq = floor - 1
        elif from_seq + 1 < floor:
            around["tombstone"] = {"gap_from": from_seq + 1, "gap_to": floor - 1, "reason": "cap"}
            from_seq = floor - 1
        from_seq = max(from_seq, earliest - 1)  # deletes are silent
        records: list[dict[str, Any]] = []
        while len(records) < 3 and from_seq < head:
            hole = next((hole for hole in one.get("holes", ()) if hole[0] <= from_seq + 1 <= hole[1]), None)
            if hole is not None:
                if records:
                    break  # the next page begins with it
                around["tombstone"], from_seq = {"gap_from": from_seq + 1, "gap_to": hole[1], "reason": "mixed"}, hole[1]
                continue
            from_seq += 1
            records.append({"$seq": from_seq, "$ts": from_seq * 10, "data": {"n": from_seq}})
        return json.dumps({"topic": topic, "records": records, "next_from_seq": from_seq, **around}).encode()


def told(**rest: object) -> options.Options:
    return options.parse({"url": "http://x"} | {name: str(value) for name, value in rest.items()})


def read(server: FakeServer, spans: list[Span], **rest: object) -> list[tuple[str, int, str | None]]:
    reader = LiveReader(server, told(**rest), rows_max=2)  # type: ignore[arg-type]
    rows = [row for batch in reader.read(spans) for row in batch.to_pylist()]
    return [(row["_kind"], row["seq"], row["data"] if row["_kind"] == "record" else f"{row['seq_end']} {row['_err']}") for row in rows]


def records(first: int, last: int) -> list[tuple[str, int, str]]:
    return [("record", seq, f'{{"n": {seq}}}') for seq in range(first, last + 1)]


def test_a_span_is_read_page_by_page_and_no_further() -> None:
    assert read(FakeServer(a={"head": 20}), [Span("a", 3, 11, 7), Span("a", 12, 12, 7)]) == records(3, 12)


def test_a_hole_in_the_log_is_a_row_even_where_losses_fail() -> None:
    assert read(FakeServer(a={"head": 9, "holes": [(4, 6)]}), [Span("a", 1, 9, 7)]) == [*records(1, 3), ("gap", 4, "6 mixed"), *records(7, 9)]
    assert read(FakeServer(a={"head": 9, "holes": [(4, 6)]}), [Span("a", 5, 9, 7)])[0] == ("gap", 5, "6 mixed")


def test_retention_that_passed_between_plan_and_read_fails_or_is_a_gap() -> None:
    server, span = FakeServer(a={"head": 20, "floor": 9}), [Span("a", 5, 12, 7, floor=1)]
    with pytest.raises(GapError, match=r"topic a, seqs 5 to 8: lost \(cap, after"):
        read(server, span)
    assert read(server, span, failOnDataLoss=False) == [("gap", 5, "8 cap"), *records(9, 12)]
    assert read(server, [Span("a", 5, 7, 7, floor=1)], failOnDataLoss=False) == [("gap", 5, "7 cap")]


def test_what_was_gone_before_the_plan_is_a_row() -> None:
    assert read(FakeServer(a={"head": 20, "floor": 9}), [Span("a", 5, 12, 7, floor=9)]) == [("gap", 5, "8 cap"), *records(9, 12)]


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (FakeServer(), "missing"),
        (FakeServer(a={"head": 20, "epoch": 8}), "recreated"),
        (FakeServer(a={"head": 2, "epoch": 8}), "recreated"),
        (FakeServer(a={"head": 4}), "missing"),
    ],
)
def test_a_topic_that_is_gone_or_made_again_or_shorter_fails_or_is_a_gap(server: FakeServer, why: str) -> None:
    with pytest.raises(GapError, match=why):
        read(server, [Span("a", 5, 12, 7)])
    assert read(server, [Span("a", 5, 12, 7)], failOnDataLoss=False) == [("gap", 5, f"12 {why}")]


def test_a_batch_is_planned_by_bytes_and_each_seq_stands_in_one_partition() -> None:
    server = FakeServer(a={"head": 1000, "floor": 101}, b={"head": 10}, empty={"head": 0})
    asked = told(maxPartitionBytes=40_000)
    partitions = plan.live_batch(live.listing(server, None), asked)  # type: ignore[arg-type]
    assert len(partitions) > 2
    spans = [span for part in partitions for span in part]
    seqs = [(span.topic, seq) for span in spans for seq in range(span.first_seq, span.last_seq + 1)]
    assert seqs == [("a", seq) for seq in range(1, 1001)] + [("b", seq) for seq in range(1, 11)]
    assert {span.floor for span in spans} == {101, 1}
    assert [(span.first_seq, span.last_seq) for span in spans if span.why] == [(1, 100)]  # what had gone is not cut


@pytest.mark.parametrize("columns", [{}, {"columns": "seq,data"}])
def test_what_had_gone_before_a_first_read_is_a_row_or_nothing_and_never_fails(columns: dict[str, str]) -> None:
    server = FakeServer(a={"head": 20, "floor": 9, "earliest": 12}, deleted={"head": 5, "earliest": 4}, all={"head": 6, "floor": 7})
    asked = told(**columns)
    found = live.listing(server, None)  # type: ignore[arg-type]
    rest = [*range(12, 21), 4, 5]
    batch = [span for spans in plan.live_batch(found, asked) for span in spans]
    start = plan.bound(found.topics, "earliest", "")
    assert start["a"] == {"epoch": f"{7:016x}", "next_seq": 1, "earliest_seq": 12}
    end = plan.advanced(found, start, asked)
    assert {name: one["next_seq"] for name, one in end.items()} == {"a": 21, "all": 7, "deleted": 6}
    assert all(set(one) == {"epoch", "next_seq"} for one in end.values())
    stream = [span for spans in plan.live_stream(start, end, asked) for span in spans]
    for spans in (batch, stream):
        reader = LiveReader(server, asked)  # type: ignore[arg-type]
        rows = [row for made in reader.read(spans) for row in made.to_pylist()]
        if columns:
            assert sorted(row["seq"] for row in rows) == sorted(rest)
        else:
            assert sorted(row["seq"] for row in rows if row["_kind"] == "record") == sorted(rest)
            gaps = [(row["topic"], row["seq"], row["seq_end"], row["_err"]) for row in rows if row["_kind"] == "gap"]
            assert gaps == [("a", 1, 8, "cap"), ("all", 1, 6, "cap")]
    assert ("deleted", 0, 1) in server.asked  # for what can only be a gap no page of records is asked
    with pytest.raises(GapError, match="topic a, seqs 3 to 8"):  # who names a seq wants it
        explicit = told(columns="seq,data", startingOffsets='{"a": 3}', topics="a")
        read_plain(server, [span for spans in plan.live_batch(live.listing(server, ["a"]), explicit) for span in spans], explicit)  # type: ignore[arg-type]


def read_plain(server: FakeServer, spans: list[Span], asked: options.Options) -> None:
    list(LiveReader(server, asked).read(spans))  # type: ignore[arg-type]


def test_what_goes_between_a_first_plan_and_its_reading_fails_or_is_a_row_of_its_own() -> None:
    server, asked = FakeServer(a={"head": 20, "floor": 9}), told()
    found = live.listing(server, None)  # type: ignore[arg-type]
    start = plan.bound(found.topics, "earliest", "")
    end = plan.advanced(found, start, asked)
    server.topics["a"]["floor"] = 13
    spans = [span for part in plan.live_stream(start, end, asked) for span in part]
    with pytest.raises(GapError, match="topic a, seqs 9 to 12"):
        read(server, spans)
    assert read(server, spans, failOnDataLoss=False) == [("gap", 1, "8 cap"), ("gap", 9, "12 cap"), *records(13, 20)]


def test_a_topic_made_again_begins_with_a_row_that_says_so() -> None:
    server, asked = FakeServer(a={"head": 3, "epoch": 9}), told()
    found = live.listing(server, None)  # type: ignore[arg-type]
    start = {"a": {"epoch": f"{7:016x}", "next_seq": 21}}
    place = plan.advanced(found, start, asked)
    assert place == {"a": {"epoch": f"{9:016x}", "next_seq": 1}}
    spans = [span for part in plan.live_stream(start, place, asked) for span in part]
    assert read(server, spans) == [("gap", 21, "None recreated")] and server.asked == []
    assert plan.live_stream(start, place, told(columns="seq,data")) == []
    spans = [span for part in plan.live_stream(place, plan.advanced(found, place, asked), asked) for span in part]
    assert read(server, spans) == records(1, 3)


def test_the_partitions_of_a_stream_depend_on_its_offsets_alone() -> None:
    start, end = ({"a": {"epoch": f"{7:016x}", "next_seq": seq}} for seq in (5, 305))
    partitions = plan.live_stream(start, end, told(recordsPerPartition=100))
    assert [(span.first_seq, span.last_seq) for part in partitions for span in part] == [(5, 99), (100, 199), (200, 299), (300, 304)]
