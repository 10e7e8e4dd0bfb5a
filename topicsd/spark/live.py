"""What a query reads of a live server, and the reading of it, page by page of diff. Nothing here needs Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from topicsd._native.page_scan import PageScanner
from topicsd._native.segment_scan import GapError
from topicsd.lake.scan import matches
from topicsd.lake.server import NotFoundError, Server

if TYPE_CHECKING:
    import pyarrow

    from topicsd.spark.options import Options

FRAME_BYTES = 100  # of a record in an answer, around what the server counts


@dataclass(frozen=True)
class Span:
    """Seqs first_seq .. last_seq of a topic on a server. What is lost of them from `floor` on went after the query was planned."""

    topic: str
    first_seq: int
    last_seq: int
    epoch: int
    floor: int = 0
    why: str = ""  # as of a Piece: it can be cut


@dataclass(frozen=True)
class LiveTopic:
    """A topic as the server lists it; with the members that planning asks of an export's topic."""

    name: str
    epoch: int
    first_seq: int
    next_seq: int
    record_bytes: int  # the mean

    def pending_bytes(self, first_seq: int) -> int:
        """About what a reader from first_seq on gets."""
        return max(self.next_seq - max(first_seq, self.first_seq), 0) * self.record_bytes

    def span(self, first_seq: int, end_seq: int) -> Iterator[Span]:
        """What a batch query reads of first_seq .. end_seq - 1."""
        if first_seq < end_seq:
            yield Span(self.name, first_seq, end_seq - 1, self.epoch, self.first_seq)


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
        while cursor < span.last_seq:
            try:
                body = self._server.diff(span.topic, cursor, epoch=span.epoch)
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
                if gap["gap_to"] < around["earliest_seq"] and last >= span.floor:
                    self._lost(span, first, last, gap["reason"])
                else:
                    self._scanner.add_range(name, "gap", first, last, gap["reason"])
                # The floor moves with the gap: records behind it are in this same page.
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
