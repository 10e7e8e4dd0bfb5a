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
from topicsd.objects import OPTION_PREFIXES, is_url, storage_options

TYPES = {
    "topic": "string", "seq": "bigint", "ts": "timestamp", "node": "string", "tag": "string", "meta": "map<string,string>", "data": "string",
    "_kind": "string", "seq_end": "bigint", "_err": "string", "_raw": "binary",
}  # fmt: skip
KNOWN = {
    "path", "url", "token", "topics", "columns", "maxpartitionbytes", "recordsperpartition", "startingoffsets", "endingoffsets", "startingtimestamp",
    "endingtimestamp", "oncorrupt", "failondataloss", "maxrecordspertrigger", "maxbytespertrigger",
}  # fmt: skip
SINK = {
    "path", "url", "token", "topic", "maxrecordsperbatch", "maxbytesperbatch", "maxretries", "replaywindow", "writeid", "partitions",
    "checkpointlocation",
}  # fmt: skip
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
    told = {name.lower(): value for name, value in options.items()}
    unknown = {name for name in set(told) - KNOWN if not name.startswith(OPTION_PREFIXES)}
    if unknown:
        raise OptionError(
            f"format topicsd has no option {', '.join(sorted(unknown))}; it knows {', '.join(sorted(KNOWN))}, and those of an object store"
        )
    if bool(told.get("path")) == bool(told.get("url")):
        raise OptionError(
            "format topicsd needs the option path, the directory or the s3:// URL of an export, or the option url, a live server; not both"
        )
    columns = _list(told.get("columns")) or COLUMN_NAMES
    if len(set(columns)) != len(columns) or not set(columns) <= set(COLUMN_NAMES):
        raise OptionError(f"columns are some of {', '.join(COLUMN_NAMES)}, each once, not {', '.join(columns)}")
    fail_on_loss = _bool(told, "failondataloss", True)
    on_corrupt = told.get("oncorrupt", "fail")
    if on_corrupt not in ("fail", "row"):
        raise OptionError(f"onCorrupt is fail or row, not {on_corrupt}")
    honest = "_kind" in columns  # else nobody could tell a range from a record
    return Options(
        told.get("path", ""), told.get("url", ""), told.get("token"), storage_options(told), _list(told.get("topics")), tuple(columns),
        _number(told, "maxpartitionbytes") or 128 << 20,
        _number(told, "recordsperpartition") or 250_000, told.get("startingoffsets", "earliest"), told.get("endingoffsets", "latest"),
        _number(told, "startingtimestamp", least=0), _number(told, "endingtimestamp", least=0),
        "fail" if on_corrupt == "fail" else "row" if honest else "skip", "row" if honest else "fail" if fail_on_loss else "skip", fail_on_loss,
        _number(told, "maxrecordspertrigger"), _number(told, "maxbytespertrigger"),
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
    told = {name.lower(): value for name, value in options.items()}
    unknown = set(told) - SINK
    if unknown:
        raise OptionError(f"format topicsd writes with no option {', '.join(sorted(unknown))}; it knows {', '.join(sorted(SINK - {'path'}))}")
    if not told.get("url") or told.get("path"):
        raise OptionError("format topicsd writes to a live server: it needs the option url, and no path")
    return SinkOptions(
        told["url"], told.get("token"), told.get("topic"), _number(told, "maxrecordsperbatch") or 5000, _number(told, "maxbytesperbatch") or 4 << 20,
        _number(told, "maxretries", least=0) if "maxretries" in told else 8,  # type: ignore[arg-type]
        _duration_ms(told.get("replaywindow", "7d")), told.get("writeid"), _number(told, "partitions"),
    )  # fmt: skip


def _duration_ms(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)?", text.strip())
    if match is None:
        raise OptionError(f"replayWindow is milliseconds, or a number with ms, s, m, h or d, not {text}")
    return int(match[1]) * UNITS_MS[match[2] or "ms"]


def offsets_of(text: str, option: str) -> Offsets:
    """Offsets in JSON: `{topic: {"epoch": …, "next_seq": …}}`, or `{topic: next_seq}` for whatever epoch there is. Raises OptionError."""
    try:
        told = json.loads(text)
        return {
            topic: {"epoch": one["epoch"], "next_seq": int(one["next_seq"])} if isinstance(one, dict) else {"epoch": None, "next_seq": int(one)}
            for topic, one in told.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as wrong:
        raise OptionError(f"{option} is earliest, latest or JSON of offsets, not {text}: {wrong}") from None


def _list(text: str | None) -> tuple[str, ...] | None:
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else None


def _number(told: Mapping[str, str], name: str, least: int = 1) -> int | None:
    if name not in told:
        return None
    try:
        value = int(told[name])
    except ValueError:
        value = least - 1
    if value < least:
        raise OptionError(f"{name} is a whole number of at least {least}, not {told[name]}")
    return value


def _bool(told: Mapping[str, str], name: str, otherwise: bool) -> bool:
    value = told.get(name, str(otherwise)).lower()
    if value not in ("true", "false"):
        raise OptionError(f"{name} is true or false, not {value}")
    return value == "true"
