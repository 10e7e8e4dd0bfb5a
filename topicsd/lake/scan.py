"""`topicsd.scan`: what an export or a directory of segments holds, as Arrow record batches."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from topicsd._native.segment import SegmentError, header_of
from topicsd._native.segment_scan import COLUMN_NAMES
from topicsd.lake import manifest as manifests
from topicsd.lake.manifest import ManifestError
from topicsd.lake.parts import files_of, root_of
from topicsd.lake.pieces import OnRange, Piece, Reader
from topicsd.lake.storage import Folder, Storage, open_storage
from topicsd.segments import names
from topicsd.segments.names import Place
from topicsd.segments.verify import load, pack_places
from topicsd.topic_config import valid_topic_name

if TYPE_CHECKING:
    import pyarrow

NEWER = 4


def epoch_ms(time: int | datetime | None) -> int | None:
    """A time as epoch ms. Raises ValueError for a datetime without a time zone."""
    if not isinstance(time, datetime):
        return time
    if time.tzinfo is None:
        raise ValueError("a time needs a time zone")
    return round(time.timestamp() * 1000)


def wanted_topics(told: str | Iterable[str] | None, option: str = "topics") -> list[str] | None:
    """Names and prefixes, of an option's text with commas between them; None: all. Raises ValueError that names the option."""
    if told is None:
        return None
    out = [name.strip() for name in told.split(",")] if isinstance(told, str) else list(told)
    for name in out:
        if name != "*" and not valid_topic_name(name.removesuffix("*")):
            raise ValueError(
                f"{option} are names of topics (A-Z a-z 0-9 . _ : - from a letter or digit on), or prefixes with one * at their end, not {name!r}"
            )
    return out


def matches(topic: str, wanted: Iterable[str] | None) -> bool:
    """Say whether a topic is one of those wanted: a name, or a prefix that ends with *. None: all."""
    return wanted is None or any(topic.startswith(name[:-1]) if name.endswith("*") else topic == name for name in wanted)


def pieces_by_names(directory: Path) -> Iterator[Piece]:
    """Pieces of a directory of segments by the names of its files, for want of a manifest: a topic is called by its id, 16 hex digits.

    Where two editions hold the same seqs the later one counts.
    """
    found: dict[tuple[int, int], tuple[int, Place]] = {}
    for path in names.files_below(directory):
        named = names.parse(path)
        if named and named[1] == "data":
            name = named[0]
            before = found.get((name.topic_id, name.first_seq))
            if before is None or before[0] < name.edition:
                found[name.topic_id, name.first_seq] = name.edition, _with_range(names.place_of(name))
        elif names.pack_number(path) is not None:
            for place in pack_places(path, load(path)[0])[0]:
                found.setdefault((place.topic_id, place.first_seq), (0, place))
    next_seq = (0, 0)
    for (topic_id, first_seq), (_, place) in sorted(found.items(), key=lambda item: item[0]):
        begin = max(first_seq, next_seq[1] if next_seq[0] == topic_id else 0)
        if not place.last_seq or begin <= place.last_seq:
            yield Piece(f"{topic_id:016x}", begin, place.last_seq, place)
            next_seq = topic_id, max(place.last_seq, begin) + 1


def _with_range(place: Place) -> Place:
    for spot, kind in ((place.index, "index"), (place.data, "data")):
        try:
            with spot.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
                header = header_of(raw, kind)
        except (FileNotFoundError, ValueError):  # not there, or empty
            continue
        except SegmentError as wrong:
            if wrong.status == NEWER:
                raise
            continue
        return Place(place.data, place.index, place.tags, place.topic_id, header.first_seq, header.last_seq)
    return place


def pieces_of(storage: Storage, topics: Iterable[str] | None = None, since: int | None = None, until: int | None = None) -> Iterator[Piece]:
    """Pieces of the chosen topics: of an export by its newest manifest, without segments of other times; or of a folder of segments.

    Raises ManifestError, OSError.
    """
    newest = manifests.latest(storage)
    if newest is None and (not isinstance(storage, Folder) or any((storage.root / "parts").glob("*.parts"))):
        raise ManifestError(f"{storage}: no manifest of an export")
    if newest is None:
        yield from (piece for piece in pieces_by_names(root_of(storage)) if matches(piece.topic, topics))
        return
    for name in sorted(newest.topics):
        if matches(name, topics):
            yield from newest.topics[name].pieces(root_of(storage), since=since, until=until)


def scan(
    path: str | Path,
    columns: Sequence[str] = COLUMN_NAMES,
    topics: Iterable[str] | None = None,
    since: int | datetime | None = None,
    until: int | datetime | None = None,
    *,
    on_corrupt: OnRange = "fail",
    on_gap: OnRange = "row",
    rows_max: int = 65536,
    storage_options: Mapping[str, str] | None = None,
) -> pyarrow.RecordBatchReader:
    """Read segments below `path`, or an export at a URL (`s3://bucket/prefix`), as Arrow record batches.

    columns: of topic, seq, ts, node, tag, meta, data, _kind, seq_end, _err, _raw, in the order wanted. topics: names, or prefixes with * at their
    end. since (inclusive) and until (exclusive): epoch ms or a datetime with a time zone. on_gap, on_corrupt: what is lost or damaged is a row of
    _kind "gap" or "corrupt" ("row"), raises ("fail") or is left out ("skip"). storage_options: for an object store, by the names of obstore and
    deltalake (`aws_endpoint`, `aws_access_key_id`, …); what they leave out comes from the environment. Raises DamagedError,
    GapError, ManifestError, SegmentError for a newer format, OSError, ValueError; while it is read, too.
    """
    import pyarrow

    wanted = wanted_topics([topics] if isinstance(topics, str) else topics)
    storage, begin, end = open_storage(path, storage_options), epoch_ms(since), epoch_ms(until)
    reader = Reader(columns, since=begin, until=end, on_corrupt=on_corrupt, on_gap=on_gap, rows_max=rows_max, files=files_of(storage))
    return pyarrow.RecordBatchReader.from_batches(reader.schema, reader.read(pieces_of(storage, wanted, begin, end)))
