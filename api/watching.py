"""What a client asks to watch: the body of `POST /v0/watch` (A §7.2), and of a WebSocket's subscribe where it is the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from topicsd import cursors, errors, limits
from topicsd._native import scan
from topicsd._native.feed import Feed, View
from topicsd._native.reader import Gone
from topicsd.api.auth import Key
from topicsd.api.context import Context
from topicsd.api.gate import check_reach
from topicsd.api.reading import reading
from topicsd.topic_config import check_topic_name

VIEW_MEMBERS = ("node", "match", "limit", "max_batch_bytes", "include_meta", "include_tags", "include_data")


@dataclass(frozen=True, slots=True)
class Start:
    """Say where a topic, or the topics of a pattern, begin."""

    from_seq: int = 0
    tail: bool = False


@dataclass(frozen=True, slots=True)
class Position:
    """Say where a topic stands now."""

    epoch: int
    head: int
    earliest: int


@dataclass(frozen=True, slots=True)
class Options:
    """Hold everything but the topics."""

    view: dict[str, Any]  # of VIEW_MEMBERS, checked
    strong: bool = False
    heartbeat_ms: int = limits.HEARTBEAT_MS
    opening_id: bool = False  # a stream begins with an id; a client that shows none has seen nothing
    resumed: bool = False  # the session was made with a cursor: a stream begins with an id

    @classmethod
    def read(cls, members: dict[str, Any]) -> Options:
        """Check a request's members. Raises Invalid and BadRequest."""
        view = {name: members[name] for name in VIEW_MEMBERS if members.get(name) is not None}
        view.setdefault("max_batch_bytes", limits.WATCH_BATCH_BYTES)
        scan.parse_diff(orjson.dumps(view))
        heartbeat_ms = members.get("heartbeat_ms")
        if heartbeat_ms is None:
            heartbeat_ms = limits.HEARTBEAT_MS
        if type(heartbeat_ms) is not int or heartbeat_ms < 0:
            raise errors.Invalid("heartbeat_ms", "expected an unsigned integer")
        consistency = members.get("consistency")
        if consistency not in (None, "eventual", "strong"):
            raise errors.Invalid("consistency", 'expected "eventual" or "strong"')
        opening_id = members.get("opening_id")
        if opening_id is not None and type(opening_id) is not bool:
            raise errors.Invalid("opening_id", "expected a boolean")
        clamped = min(max(heartbeat_ms, limits.HEARTBEAT_MS_MIN), limits.HEARTBEAT_MS_MAX)
        return cls(view, consistency == "strong", clamped, bool(opening_id), members.get("cursor") is not None)

    def to_bytes(self) -> bytes:
        """Write them into a session."""
        return orjson.dumps(self)

    @classmethod
    def from_bytes(cls, text: bytes) -> Options:
        """Read them back."""
        return cls(**orjson.loads(text))

    def of(self, feed: Feed, stream_format: int) -> View:
        """Return the view that equal watchers share."""
        return feed.view(stream_format, strong=self.strong, **self.view)


def read_topics(value: object, most: int, field: str = "topics") -> dict[str, Start]:
    """Check a map of topics and patterns: at least one, at most `most`. Raises Invalid."""
    if not isinstance(value, dict):
        raise errors.Invalid(field, "expected an object of topics")
    if not value:
        raise errors.Invalid(field, "at least one topic is needed")
    if len(value) > most:
        raise errors.Invalid(field, f"{len(value)} topics, at most {most}", limit=most)
    return {name: read_start(each, check_name(name, field), f"{field}.{name}") for name, each in value.items()}


def check_name(name: str, field: str) -> str:
    """Check a topic's name, or a prefix with one `*` behind it. Raises Invalid."""
    if name.endswith("*"):
        if len(name) > 1:
            check_topic_name(name[:-1], field)
        return name
    return check_topic_name(name, field)


def _inside(field: str, member: str) -> str:
    return f"{field}.{member}" if field else member


def read_start(value: object, name: str, field: str) -> Start:
    """Check what stands under a topic's name. Raises Invalid."""
    if not isinstance(value, dict):
        raise errors.Invalid(field, "expected an object")
    from_seq, tail = value.get("from_seq"), value.get("tail")
    if from_seq is None:
        from_seq = 0
    if type(from_seq) is not int or not 0 <= from_seq < 2**63:
        raise errors.Invalid(_inside(field, "from_seq"), "expected an unsigned integer")
    if tail is not None and type(tail) is not bool:
        raise errors.Invalid(_inside(field, "tail"), "expected a boolean")
    return Start(from_seq, bool(tail))


def check_names(key: Key, names: dict[str, Start]) -> None:
    """Raise Forbidden unless the key reaches every name, and all that its patterns can match."""
    for name in names:
        if name.endswith("*"):
            prefix = name[:-1].encode()
            if key.prefixes and not prefix.startswith(key.prefixes):
                raise errors.Forbidden("the pattern reaches beyond the API key's prefixes")
        else:
            check_reach(key, name.encode())


def position_of(context: Context, name: bytes) -> Position | None:
    """Return where a topic stands, None when there is none; counts as a read (D §3.1). Raises NotReady."""
    for _ in range(limits.MOVED_RETRIES_MAX):
        with reading():
            slot = context.reader.find(name)
        if slot is None:
            return None
        try:
            with reading():
                state = orjson.loads(context.reader.state(slot, context.now_ms))
        except (Gone, errors.TopicNotFound):
            continue
        if state["topic"].encode() == name:
            return Position(state["epoch"], state["head_seq"], state["earliest_seq"])
    return None


def matching(context: Context, prefix: bytes) -> list[bytes]:
    """Return the names that a pattern matches now, in byte order, one more than allowed at most. Raises NotReady."""
    found: list[bytes] = []
    after: bytes | None = None
    while len(found) <= limits.PATTERN_TOPICS_MAX:
        with reading():
            page = context.order.page(prefix, after, 1000)
        found += [name for _slot, name in page]
        if len(page) < 1000:
            break
        after = found[-1]
    return found


def begin_at(start: Start, position: Position, name: str, cursor: cursors.Cursor | None) -> tuple[int, int]:
    """Return (epoch, seq) behind which a topic is read: a cursor wins over tail, that over from_seq."""
    if cursor is not None and name in cursor.seqs:
        return cursor.epochs.get(name, position.epoch), cursor.seqs[name]
    return position.epoch, position.head if start.tail else start.from_seq
