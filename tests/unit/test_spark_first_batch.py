"""The first batch of a stream, replayed: Spark keeps its end, and asks the reader again where it began. No Spark is started here."""

from dataclasses import replace
from typing import Any

import pytest

from topicsd._native.segment_scan import GapError
from topicsd.lake.manifest import Manifest, Row, Topic
from topicsd.lake.pieces import Piece
from topicsd.spark import options
from topicsd.spark.live import Listing, LiveTopic, Span
from topicsd.spark.options import Offsets

limits = pytest.importorskip("pyspark.sql.streaming.datasource")
source = pytest.importorskip("topicsd.spark.source")
PLAIN = {"columns": "topic,seq,data"}


def row(first: int, last: int) -> Row:
    return Row(first, last, first, last, 0, 0, 0, 0, 0, 0, 0, 0, "f", 0, 1, 1, 1, "", "", "")


def lost(first: int, last: int) -> Row:
    return replace(row(first, last), file="", why="cap", evicted=True, end_offset=0)


class Query:
    """A reader as Spark drives it, and what its checkpoint keeps: ends alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, found: Manifest | Listing, **asked: object) -> None:
        self.found, self.monkeypatch = found, monkeypatch
        place = {"path": "/x"} if isinstance(found, Manifest) else {"url": "http://x"}
        self.asked = place | {name: str(value) for name, value in asked.items()}
        self.ends: list[Offsets] = []

    def reader(self) -> source.StreamReader:
        self.monkeypatch.setattr(source, "look", lambda _: self.found)
        self.monkeypatch.setattr(source, "newest", lambda _: self.found)
        return source.StreamReader(options.parse(self.asked))

    def planned(self, records: int | None = None) -> list[tuple[Any, ...]]:
        """Plan the next batch, and read it."""
        reader = self.reader()
        start = self.ends[-1] if self.ends else reader.initialOffset()
        self.ends.append(reader.latestOffset(start, limits.ReadAllAvailable() if records is None else limits.ReadMaxRows(records)))
        return self.again()

    def again(self) -> list[tuple[Any, ...]]:
        """Read the last batch that was planned, as a query does that was killed in it."""
        reader = self.reader()
        start = self.ends[-2] if len(self.ends) > 1 else reader.initialOffset()
        return [told(one) for part in reader.partitions(start, self.ends[-1]) for one in part.pieces]

    def rest(self) -> list[tuple[Any, ...]]:
        """All batches that follow, until there is nothing new."""
        out: list[tuple[Any, ...]] = []
        for _ in range(9):
            out += self.planned()
            if self.ends[-1] == self.ends[-2]:
                return out
        raise AssertionError("the stream never comes to an end")


def told(one: Piece | Span) -> tuple[Any, ...]:
    epoch = one.epoch if isinstance(one, Span) else one.place.topic_id if one.place else None
    return one.topic, epoch, one.first_seq, one.last_seq, one.why


def export(*topics: Topic) -> Manifest:
    return Manifest(1, "r", 0, {one.name: one for one in topics})


def server(*topics: LiveTopic) -> Listing:
    return Listing({one.name: one for one in topics})


OLD = Topic("a", 7, (row(1, 6),))
MADE_AGAIN = Topic("a", 8, (row(1, 2),), older=(OLD,))


@pytest.mark.parametrize("columns", [{}, PLAIN])
@pytest.mark.parametrize("starting", ["earliest", '{"a": 1}'])
def test_of_a_topic_that_was_made_again_a_replay_by_path_reads_what_the_export_still_has(
    monkeypatch: pytest.MonkeyPatch, columns: dict[str, str], starting: str
) -> None:
    query = Query(monkeypatch, export(OLD), startingOffsets=starting, **columns)
    assert query.planned(records=2) == [("a", 7, 1, 2, "")]
    query.found = export(MADE_AGAIN)
    assert query.again() == [("a", 7, 1, 2, "")]
    between = [] if columns else [("a", None, 7, 0, "recreated")]
    assert query.rest() == [("a", 7, 3, 6, ""), *between, ("a", 8, 1, 2, "")]


def test_of_a_topic_that_was_made_again_a_replay_by_url_asks_for_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(monkeypatch, server(LiveTopic("a", 7, 1, 7, 100)), **PLAIN)
    assert query.planned() == [("a", 7, 1, 6, "")]
    for found in (server(LiveTopic("a", 8, 1, 3, 100)), server()):  # made again, and not yet
        query.found = found
        assert query.again() == [("a", 7, 1, 6, "")]  # whose reading tells of the loss


@pytest.mark.parametrize("columns", [{}, PLAIN])
def test_what_retention_took_between_the_plan_of_a_first_batch_and_its_replay_fails_by_path(
    monkeypatch: pytest.MonkeyPatch, columns: dict[str, str]
) -> None:
    query = Query(monkeypatch, export(Topic("a", 7, (lost(1, 3), row(4, 9)), evict_floor=4)), **columns)
    first = query.planned()
    assert first[-1] == ("a", 7, 4, 9, "")
    query.found = export(Topic("a", 7, (lost(1, 6), row(7, 9)), evict_floor=7))
    with pytest.raises(GapError, match="topic a, seqs 4 to 6"):
        query.again()
    query.found = export()  # a prune took the topic
    with pytest.raises(GapError, match=r"topic a, seqs 1 to .*it has gone from the export"):
        query.again()


def test_what_retention_took_between_the_plan_of_a_first_batch_and_its_replay_fails_by_url(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(monkeypatch, server(LiveTopic("a", 7, 4, 10, 100)), **PLAIN)
    first = query.planned(records=4)
    assert [one[2:4] for one in first] == [(1, 3), (4, 7)]
    query.found = server(LiveTopic("a", 7, 9, 12, 100))
    assert query.again() == first
    spans = [one for part in query.reader().partitions(query.reader().initialOffset(), query.ends[0]) for one in part.pieces]
    assert {span.floor for span in spans if isinstance(span, Span)} == {4}


@pytest.mark.parametrize("starting", ["latest", "earliest"])
def test_a_replay_reads_what_was_planned_wherever_a_query_would_begin_now(monkeypatch: pytest.MonkeyPatch, starting: str) -> None:
    query = Query(monkeypatch, server(LiveTopic("a", 7, 1, 10, 100)), startingOffsets=starting)
    reader = query.reader()
    start = reader.initialOffset()
    query.found = server(LiveTopic("a", 7, 1, 20, 100), LiveTopic("b", 9, 1, 5, 100))  # b came between: it is only given its place
    query.ends.append(reader.latestOffset(start, limits.ReadAllAvailable()))
    wanted = [("a", 7, 10 if starting == "latest" else 1, 19, "")]
    assert query.again() == wanted
    query.found = server(LiveTopic("a", 7, 1, 40, 100), LiveTopic("b", 10, 1, 5, 100), LiveTopic("c", 11, 1, 2, 100))
    assert query.again() == wanted


def test_only_the_first_end_says_where_its_batch_began(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(monkeypatch, export(OLD, Topic("b", 9, (row(1, 2),))))
    assert len(query.planned()) == 2
    assert query.ends[0]["a"] == {"epoch": f"{7:016x}", "next_seq": 7, "from": {"epoch": f"{7:016x}", "next_seq": 1}}
    assert query.planned() == [] and query.ends[1] == query.ends[0], "nothing came, so there is no batch"
    query.found = export(Topic("a", 7, (row(1, 8),)), Topic("b", 9, (row(1, 2),)))
    assert query.planned() == [("a", 7, 7, 8, "")]
    assert query.ends[2] == {"a": {"epoch": f"{7:016x}", "next_seq": 9}, "b": {"epoch": f"{9:016x}", "next_seq": 3}}
    assert query.again() == [("a", 7, 7, 8, "")]


def test_a_stream_that_began_before_there_was_a_topic_reads_it_from_the_batch_after_its_first_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(monkeypatch, export())
    assert query.planned() == [] and query.ends == [{}]
    query.found = export(OLD)
    assert query.planned() == [] and query.again() == []
    assert query.rest() == [("a", 7, 1, 6, "")]


def test_a_checkpoint_of_before_whose_first_batch_is_open_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(monkeypatch, export(OLD))
    query.ends = [{"a": {"epoch": f"{7:016x}", "next_seq": 5}}]
    assert query.again() == [("a", 7, 1, 4, "")]
    assert query.rest() == [("a", 7, 5, 6, "")]
