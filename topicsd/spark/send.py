"""Write rows to topics so that none is written twice, whatever is tried again. Nothing here needs Spark.

Rows of a topic go in chunks 1, 2, 3, …, each under a key made of the task's and of its number. The keys that a server has seen are always 1 … k of
some k, and what it wrote under each is fixed: its first body. A task that is tried again meets the same keys. Where the server says that the body was
another one (`body_differs`: the rows came in another order), the rows that it wrote are read back: those that are in this chunk are done, the
others will come later in this task and are passed over then, and what of this chunk was not written goes into a later one. So in the end the
chunks together are exactly the task's rows. While rows of an earlier chunk are still to come, no later one is sent: a task that turns out to have
other rows is refused before it writes one of them.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from topicsd._native.page_scan import PageScanner
from topicsd.lake.server import NotFoundError, Server

Row = tuple[bytes, str | None, str | None, tuple[tuple[str, str], ...] | None]  # data as JSON text, tag, node, meta
KEY_CHARS_MAX = 256
FRAME_BYTES = 40
HELD_BYTES_MAX = 128 << 20  # of a topic's rows that wait for those of an earlier try; past it they go on, and what is wrong is told at the end


class SinkError(Exception):
    """Say why rows were not written."""


@dataclass
class Sent:
    """What a task has done."""

    records: int = 0  # of this task; all of them are there
    requests: int = 0
    deduped: int = 0  # of the requests: an earlier try had written them
    reordered: int = 0  # of these: with other rows


@dataclass
class _Target:
    number: int = 0
    size: int = 0
    rows: list[Row] = field(default_factory=list)
    written: Counter[Row] = field(default_factory=Counter)  # by an earlier try, and still to come in this one
    due: int = 0  # how many these are


def same(row: Row) -> Row:
    """The row as two sides agree on it: spaces around `data` and line ends between its tokens do not count, nor does the order of meta."""
    data, tag, node, meta = row
    return data.strip(b" \t\r\n").replace(b"\n", b" ").replace(b"\r", b" "), tag, node, None if meta is None else tuple(sorted(meta))


def body(key: str, rows: list[Row], window_ms: int) -> bytes:
    """The body of a write; the config is taken only where the topic is made by it."""
    head = json.dumps({"idempotency_key": key, "create": True, "config": {"idempotency_window_ms": window_ms}})
    return head[:-1].encode() + b',"records":[' + b",".join(map(_record, rows)) + b"]}"


def _record(row: Row) -> bytes:
    data, tag, node, meta = row
    rest = {name: value for name, value in (("tag", tag), ("node", node)) if value is not None}
    if meta is not None:
        rest["meta"] = dict(meta)  # type: ignore[assignment]
    members = json.dumps(rest, ensure_ascii=False)[1:].encode() if rest else b"}"
    return b'{"data":' + data + (b"," if rest else b"") + members


class Sender:
    """One task's rows. `key` names the task, the same for each of its tries. Raises SinkError, ServerError."""

    def __init__(
        self, server: Server, key: str, *, chunk_records: int = 5000, chunk_bytes: int = 4 << 20, window_ms: int = 0
    ) -> None:  # fmt: skip
        if len(key) > KEY_CHARS_MAX - 12:
            raise SinkError(f"the key {key} is too long")
        self._server, self._key = server, key
        self._records, self._bytes, self._window_ms = chunk_records, chunk_bytes, window_ms
        self._targets: dict[str, _Target] = {}
        self.sent = Sent()

    def add(self, topic: str, row: Row) -> None:
        """Take a row; it is written once a chunk is full."""
        target = self._targets.get(topic)
        if target is None:
            check_window(self._server, topic, self._window_ms)
            target = self._targets[topic] = _Target()
        self.sent.records += 1
        size = len(row[0]) + FRAME_BYTES
        if target.rows and target.size + size > self._bytes and not _held(target):
            self._send(topic, target)
        if target.due:  # behind the sending, which may have found this very row
            known = same(row)
            if target.written[known] > 0:
                target.written[known] -= 1
                target.due -= 1
                return
        target.rows.append(row)
        target.size += size
        if len(target.rows) >= self._records and not _held(target):
            self._send(topic, target)

    def finish(self) -> Sent:
        """Write what is left. Rows of an earlier try that this one does not have are told as an error: the query's input is not stable."""
        for topic, target in self._targets.items():
            _check(topic, target)
        for topic, target in self._targets.items():
            while target.rows:
                self._send(topic, target)
                _check(topic, target)
        return self.sent

    def _send(self, topic: str, target: _Target) -> None:
        rows = target.rows
        chunk = self._chunk(rows)
        target.number += 1
        answer = self._server.append(topic, body(f"{self._key}:{target.number}", chunk, self._window_ms))
        self.sent.requests += 1
        self.sent.deduped += bool(answer["deduped"])
        if answer["deduped"] and answer.get("body_differs"):
            self.sent.reordered += 1
            there = self._written(topic, answer)
            target.rows = []
            for row in rows:  # those that waited as well
                known = same(row)
                if there[known] > 0:
                    there[known] -= 1
                else:
                    target.rows.append(row)
            target.written.update(+there)  # they come later in this task
            target.due += (+there).total()
        else:
            target.rows = rows[len(chunk) :]
        target.size = sum(len(row[0]) + FRAME_BYTES for row in target.rows)

    def _chunk(self, rows: list[Row]) -> list[Row]:
        size = 0
        for number, row in enumerate(rows[: self._records]):
            size += len(row[0]) + FRAME_BYTES
            if number and size > self._bytes:
                return rows[:number]
        return rows[: self._records]

    def _written(self, topic: str, answer: dict[str, Any]) -> Counter[Row]:
        """The rows of first_seq .. last_seq. Raises SinkError when one of them is gone: then nobody can tell what is still to be written."""
        import pyarrow

        scanner = PageScanner(["data", "tag", "node", "meta"], gaps="skip")
        found: Counter[Row] = Counter()
        cursor, last = answer["first_seq"] - 1, answer["last_seq"]
        while cursor < last:
            around = json.loads(scanner.open_page(topic.encode(), self._server.diff(topic, cursor)))
            while scanner.fill_page(last):
                _count(found, pyarrow.record_batch(scanner.take()))
            if around["next_from_seq"] <= cursor:
                break
            cursor = around["next_from_seq"]
        _count(found, pyarrow.record_batch(scanner.take()))
        if found.total() != last - answer["first_seq"] + 1:
            raise SinkError(
                f"topic {topic}: seqs {answer['first_seq']} to {last} were written by an earlier try with the rows in another order, "
                "and some of them are gone"
            )
        return found


def _held(target: _Target) -> bool:
    return target.due > 0 and target.size < HELD_BYTES_MAX


def _check(topic: str, target: _Target) -> None:
    if target.due:
        raise SinkError(
            f"topic {topic}: an earlier try of this task wrote {target.due} records that this one does not have: "
            "the query gives other rows each time, or its rows are in other partitions than they were"
        )


def _count(found: Counter[Row], batch: Any) -> None:
    for row in batch.to_pylist():
        meta = row["meta"]
        found[same((row["data"].encode(), row["tag"], row["node"], None if meta is None else tuple(meta)))] += 1


def check_window(server: Server, topic: str, window_ms: int) -> None:
    """Refuse a topic that forgets its keys too early. One that is not there is fine: it is made with the window."""
    try:
        has = server.state(topic)["config"]["idempotency_window_ms"]
    except NotFoundError:
        return
    if has < window_ms:
        raise SinkError(
            f"topic {topic} forgets idempotency keys after {has} ms (idempotency_window_ms), replayWindow is {window_ms} ms: "
            "configure the topic, or give a shorter replayWindow, after which a replay would write twice"
        )
