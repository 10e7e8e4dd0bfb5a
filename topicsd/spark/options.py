"""Options of `format("topicsd")`, read once: names in any case, values as text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from topicsd._native.segment_scan import COLUMN_NAMES
from topicsd.lake.pieces import OnRange
from topicsd.lake.scan import wanted_topics
from topicsd.limits import NAME_BYTES_MAX
from topicsd.objects import OPTION_PREFIXES, is_url, storage_options
from topicsd.topic_config import valid_topic_name

TYPES = {
    "topic": "string", "seq": "bigint", "ts": "timestamp", "node": "string", "tag": "string", "meta": "map<string,string>", "data": "string",
    "_kind": "string", "seq_end": "bigint", "_err": "string", "_raw": "binary",
}  # fmt: skip
KNOWN = {
    "path", "url", "token", "topics", "columns", "maxPartitionBytes", "recordsPerPartition", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "onCorrupt", "failOnDataLoss", "maxRecordsPerTrigger", "maxBytesPerTrigger",
}  # fmt: skip
SINK = {
    "path", "url", "token", "topic", "maxRecordsPerBatch", "maxBytesPerBatch", "maxRetries", "replayWindow", "writeId", "partitions",
    "checkpointLocation",
}  # fmt: skip
WHOLE_MAX = 1 << 53  # of numbers: seqs are whole in any JSON, and times far below
EPOCH = re.compile(r"[0-9a-fA-F]{16}")
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# {topic: {"epoch": 16 hex digits, "next_seq": int}}; and of a topic that is read from its beginning, while next_seq is below them, "earliest_seq":
# all below had gone when it got its place, and "floor": what of below has gone from an export since, or before, is no failure. The end of a first
# batch has in "from" where that began, as Spark keeps no more of it than its end; and what a stream begins with is marked by "initial".
Offsets = dict[str, dict[str, Any]]


class OptionError(ValueError):
    """Say which option is wrong."""


@dataclass(frozen=True)
class Options:
    """What a reader was asked for."""

    path: str  # of an export, or its URL; empty: a live server is read
    url: str
    token: str | None = field(repr=False)
    storage: dict[str, str] = field(repr=False)  # what opens the object store of a path
    topics: tuple[str, ...] | None
    columns: tuple[str, ...]
    partition_bytes: int
    partition_records: int  # of a stream
    starting: Literal["earliest", "latest"] | str  # or JSON
    ending: str
    since: int | None  # epoch ms
    until: int | None
    on_corrupt: OnRange
    on_gap: OnRange
    fail_on_loss: bool
    trigger_records: int | None
    trigger_bytes: int | None

    @property
    def root(self) -> Path:
        """What the names of an export's files are put behind: nothing, where an object store has them."""
        return Path() if is_url(self.path) else Path(self.path)

    @property
    def honest(self) -> bool:
        """Whether a reader can tell a range from a record."""
        return "_kind" in self.columns

    def schema(self) -> str:
        """The columns as Spark's DDL."""
        return ", ".join(f"`{name}` {TYPES[name]}" for name in self.columns)


def parse(options: Mapping[str, str]) -> Options:
    """Read options. Raises OptionError."""
    told, unknown = _named(options, KNOWN)
    storage = {name.lower(): value for name, value in unknown.items() if name.lower().startswith(OPTION_PREFIXES)}
    unknown = {name: value for name, value in unknown.items() if name.lower() not in storage}
    if unknown:
        raise OptionError(
            f"format topicsd has no option {', '.join(sorted(unknown))}; it knows {', '.join(sorted(KNOWN))}, and those of an object store"
        )
    if bool(told.get("path")) == bool(told.get("url")):
        raise OptionError(
            "format topicsd needs the option path, the directory or the s3:// URL of an export, or the option url, a live server; not both"
        )
    columns = _list(told["columns"]) if "columns" in told else COLUMN_NAMES
    if not columns:
        raise OptionError(f"columns names none; without it all are read: {', '.join(COLUMN_NAMES)}")
    if len(set(columns)) != len(columns) or not set(columns) <= set(COLUMN_NAMES):
        raise OptionError(f"columns are some of {', '.join(COLUMN_NAMES)}, each once, not {', '.join(columns)}")
    fail_on_loss = _bool(told, "failOnDataLoss", True)
    on_corrupt = told.get("onCorrupt", "fail")
    if on_corrupt not in ("fail", "row"):
        raise OptionError(f"onCorrupt is fail or row, not {on_corrupt}")
    honest = "_kind" in columns  # else nobody could tell a range from a record
    return Options(
        told.get("path", ""), told.get("url", ""), told.get("token"), storage_options(storage), _topics(told.get("topics")), tuple(columns),
        _number(told, "maxPartitionBytes") or 128 << 20,
        _number(told, "recordsPerPartition") or 250_000, _offsets(told, "startingOffsets", "earliest"), _offsets(told, "endingOffsets", "latest"),
        _number(told, "startingTimestamp", least=0), _number(told, "endingTimestamp", least=0),
        "fail" if on_corrupt == "fail" else "row" if honest else "skip", "row" if honest else "fail" if fail_on_loss else "skip", fail_on_loss,
        _number(told, "maxRecordsPerTrigger"), _number(told, "maxBytesPerTrigger"),
    )  # fmt: skip


@dataclass(frozen=True)
class SinkOptions:
    """What a writer was asked for."""

    url: str
    token: str | None = field(repr=False)
    topic: str | None  # None: a column names it
    chunk_records: int
    chunk_bytes: int
    retries: int
    window_ms: int
    write_id: str | None  # of a batch write that is to be repeated without writing twice
    partitions: int | None  # of a stream: more are refused


def parse_sink(options: Mapping[str, str]) -> SinkOptions:
    """Read a writer's options. Raises OptionError."""
    told, unknown = _named(options, SINK)
    if unknown:
        raise OptionError(f"format topicsd writes with no option {', '.join(sorted(unknown))}; it knows {', '.join(sorted(SINK - {'path'}))}")
    if not told.get("url") or told.get("path"):
        raise OptionError("format topicsd writes to a live server: it needs the option url, and no path")
    if "topic" in told and not valid_topic_name(told["topic"]):
        raise OptionError(f"topic is a topic's name, 1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 . _ : - from a letter or digit on, not {told['topic']!r}")
    return SinkOptions(
        told["url"], told.get("token"), told.get("topic"), _number(told, "maxRecordsPerBatch") or 5000, _number(told, "maxBytesPerBatch") or 4 << 20,
        _number(told, "maxRetries", least=0) if "maxRetries" in told else 8,  # type: ignore[arg-type]
        _duration_ms(told.get("replayWindow", "7d")), told.get("writeId"), _number(told, "partitions"),
    )  # fmt: skip


def _duration_ms(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)?", text.strip())
    window_ms = int(match[1]) * UNITS_MS[match[2] or "ms"] if match and len(match[1]) < 20 else 0
    if not 0 < window_ms <= WHOLE_MAX:
        raise OptionError(f"replayWindow is milliseconds, or a number with ms, s, m, h or d, and more than 0, not {text}")
    return window_ms


def offsets_of(text: str, option: str) -> Offsets:
    """Offsets in JSON: `{topic: {"epoch": …, "next_seq": …}}`, or `{topic: next_seq}` for whatever epoch there is. Raises OptionError."""
    try:
        told = json.loads(text, object_pairs_hook=_members)
    except (ValueError, RecursionError) as wrong:
        raise OptionError(f"{option} is earliest, latest or JSON of offsets, not {text}: {wrong}") from None
    if not isinstance(told, dict):
        raise OptionError(f"{option} is earliest, latest or JSON of offsets, an object, not {text}")
    return {topic: _offset(one, f"{option} of topic {topic}") for topic, one in told.items()}


def _offset(told: Any, where: str) -> dict[str, Any]:
    full = isinstance(told, dict)
    epoch, next_seq = (told.get("epoch"), told.get("next_seq")) if full else (None, told)
    if type(next_seq) is not int or not 1 <= next_seq <= WHOLE_MAX:  # True is an int as well
        raise OptionError(f"{where}: {'next_seq' if full else 'an offset'} is a whole number from 1 to 2^53, not {json.dumps(next_seq)}")
    if full and not (isinstance(epoch, str) and EPOCH.fullmatch(epoch)):
        raise OptionError(f"{where}: epoch is 16 hex digits, not {json.dumps(epoch)}")
    return {"epoch": epoch.lower() if isinstance(epoch, str) else None, "next_seq": next_seq}


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        raise ValueError("a name stands twice")
    return out


def _offsets(told: Mapping[str, str], name: str, otherwise: str) -> str:
    text = told.get(name, otherwise)
    if text not in ("earliest", "latest"):
        offsets_of(text, name)
    return text


def _named(options: Mapping[str, str], known: set[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The options by their documented names, and those that are none of them, as they were written."""
    names = {name.lower(): name for name in known}
    told = {names[name.lower()]: value for name, value in options.items() if name.lower() in names}
    return told, {name: value for name, value in options.items() if name.lower() not in names}


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _topics(text: str | None) -> tuple[str, ...] | None:
    try:
        wanted = wanted_topics(text)
    except ValueError as wrong:
        raise OptionError(str(wrong)) from None
    return None if wanted is None else tuple(wanted)


def _number(told: Mapping[str, str], name: str, least: int = 1) -> int | None:
    if name not in told:
        return None
    try:
        value = int(told[name])
    except ValueError:
        value = least - 1
    if not least <= value <= WHOLE_MAX:
        raise OptionError(f"{name} is a whole number of at least {least} and at most 2^53, not {told[name]}")
    return value


def _bool(told: Mapping[str, str], name: str, otherwise: bool) -> bool:
    value = told.get(name, str(otherwise)).lower()
    if value not in ("true", "false"):
        raise OptionError(f"{name} is true or false, not {value}")
    return value == "true"
