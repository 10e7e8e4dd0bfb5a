"""What a query reads of a live server, and the reading of it, page by page of diff. Nothing here needs Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from topicsd._native.page_scan import PageScanner
from topicsd._native.segment_scan import GapError
from topicsd.lake.scan import matches
from topicsd.lake.server import NotFoundError, Server

if TYPE_CHECKING:
    import pyarrow

    from topicsd.spark.options import Options

PAGE_RECORDS = 1000
FRAME_BYTES = 100  # of a record in an answer, around what the server counts


@dataclass(frozen=True)
class Span:
    """Seqs first_seq .. last_seq of a topic on a server. What is lost of them from `floor` on went after the query was planned.

    silent: what is lost below it is left out. why: as of a Piece, it can not be cut: "gap", all of it had gone by then; "recreated", what the
    topic of this epoch had from first_seq on, however much that was.
    """

    topic: str
    first_seq: int
    last_seq: int
    epoch: int
    floor: int = 0
    silent: bool = False
    why: str = ""


@dataclass(frozen=True)
class LiveTopic:
    """A topic as the server lists it; with the members that planning asks of an export's topic."""

    name: str
    epoch: int
    earliest_seq: int  # what is below was deleted, evicted or has expired
    next_seq: int
    record_bytes: int  # the mean
    first_seq: int = 1

    @property
    def evict_floor(self) -> int:
        """A server does not list it; nothing that it has stands below its earliest seq."""
        return self.earliest_seq

    @property
    def epochs(self) -> tuple[LiveTopic, ...]:
        """A server has no older ones."""
        return (self,)

    def behind_gap(self, seq: int) -> int:
        """The first seq from `seq` on that is in no gap that is known."""
        return max(seq, min(self.earliest_seq, self.next_seq))

    def there(self, first_seq: int, last_seq: int) -> Iterator[tuple[str, int, int]]:
        """What of first_seq .. last_seq it may have."""
        first, last = max(first_seq, self.earliest_seq), min(last_seq, self.next_seq - 1)
        if first <= last:
            yield "", first, last

    def pending_bytes(self, first_seq: int) -> int:
        """About what a reader from first_seq on gets."""
        return max(self.next_seq - max(first_seq, self.earliest_seq), 0) * self.record_bytes

    def spans(self, first_seq: int, end_seq: int, *, silent: bool) -> Iterator[Span]:
        """What a batch query reads of first_seq .. end_seq - 1."""
        return leading(Span(self.name, first_seq, end_seq - 1, self.epoch, self.earliest_seq, silent))


def leading(span: Span) -> Iterator[Span]:
    """A span, what had gone of it by itself in front."""
    at = max(span.first_seq, min(span.floor, span.last_seq + 1))
    if span.first_seq < at:
        yield replace(span, last_seq=at - 1, why="gap")
    if at <= span.last_seq:
        yield replace(span, first_seq=at)


@dataclass(frozen=True)
class Listing:
    """The topics of a server at one time."""

    topics: dict[str, LiveTopic] = field(default_factory=dict)


def listing(server: Server, topics: Iterable[str] | None) -> Listing:
    """The chosen topics. Raises ServerError."""
    out: dict[str, LiveTopic] = {}
    for one in server.listed():
        if matches(one["topic"], topics):
            mean = one["bytes"] // max(one["count"], 1) + FRAME_BYTES
            out[one["topic"]] = LiveTopic(one["topic"], one["epoch"], one["earliest_seq"], one["head_seq"] + 1, mean)
    return Listing(out)


class LiveReader:
    """Read spans into record batches. Raises GapError where a loss is to fail, ServerError, PageError."""

    def __init__(self, server: Server, options: Options, *, rows_max: int = 65536, bytes_max: int = 64 << 20) -> None:
        self._server, self._options = server, options
        self._scanner = PageScanner(options.columns, rows_max=rows_max, bytes_max=bytes_max, gaps=options.on_gap)

    def read(self, spans: Iterable[Span]) -> Iterator[pyarrow.RecordBatch]:
        """Yield batches; they end where they are full, not where a span ends."""
        import pyarrow

        for span in spans:
            for _ in self._span(span):
                yield pyarrow.record_batch(self._scanner.take())
        if self._scanner.rows:
            yield pyarrow.record_batch(self._scanner.take())

    def _span(self, span: Span) -> Iterator[None]:
        """Yield each time the batch is full."""
        name, cursor = span.topic.encode(), span.first_seq - 1
        if span.why == "recreated":
            self._scanner.add_range(name, "gap", span.first_seq, 0, span.why)
        while cursor < span.last_seq:
            try:
                body = self._server.diff(span.topic, cursor, epoch=span.epoch, limit=1 if span.why else PAGE_RECORDS)
            except NotFoundError:
                self._lost(span, cursor + 1, span.last_seq, "missing")
                return
            around = json.loads(self._scanner.open_page(name, body))
            if around["epoch"] != span.epoch:
                self._lost(span, cursor + 1, span.last_seq, "recreated")
                return
            gap = around["tombstone"]
            if gap is not None and gap["gap_from"] <= span.last_seq:
                first, last = max(gap["gap_from"], cursor + 1), min(gap["gap_to"], span.last_seq)
                if gap["gap_to"] >= around["earliest_seq"]:  # a hole in the log
                    self._scanner.add_range(name, "gap", first, last, gap["reason"])
                else:
                    if first < span.floor and not span.silent:
                        self._scanner.add_range(name, "gap", first, min(last, span.floor - 1), gap["reason"])
                    if last >= span.floor:
                        self._lost(span, max(first, span.floor), last, gap["reason"])
                # The floor moves with the gap: records behind it are in this same page.
            if span.why:
                return  # what the first page does not tell of was deleted
            while self._scanner.fill_page(span.last_seq, since=self._options.since, until=self._options.until):
                yield
            if around["next_from_seq"] <= cursor:  # the head is below what was promised: a power loss took it
                self._lost(span, cursor + 1, span.last_seq, "missing")
                return
            cursor = around["next_from_seq"]

    def _lost(self, span: Span, first_seq: int, last_seq: int, why: str) -> None:
        if self._options.fail_on_loss:
            raise GapError(span.topic, first_seq, last_seq, f"{why}, after the query or the offset was made")
        self._scanner.add_range(span.topic.encode(), "gap", first_seq, last_seq, why)
