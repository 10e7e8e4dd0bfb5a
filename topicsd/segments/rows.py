"""What a snapshot says of sealed ranges (docs/format/snapshot.md, section `topics`), held against the files that are there."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from topicsd import snapshot
from topicsd.segments import names
from topicsd.segments.verify import Problem

OWN, PACK, COLD = 1, 2, 3
_BYTES, _COUNTS = struct.Struct("<Q"), struct.Struct("<3I")
_TOPIC_BYTES, _COUNTS_AT = 240, 216
_ROW, _FILE = struct.Struct("<4Q8I"), struct.Struct("<5Q4IQ")

Range = tuple[int, int, int, int, int]  # topic id, first seq, last seq, where its data and its index begin


class Sealed(NamedTuple):
    """A range of a topic and the file that it stands in."""

    range: Range
    kind: int
    name: int
    edition: int


def sealed_ranges(found: snapshot.Chain) -> Iterator[Sealed]:
    """Yield every range with a file. Raises struct.error where the section is damaged."""
    known: set[int] = set()
    for layer in found.layers:
        section, at = layer.sections.get("topics", memoryview(b"")), 0
        while at < len(section):
            (size,) = _BYTES.unpack_from(section, at)
            (topic_id,) = _BYTES.unpack_from(section, at + _BYTES.size)
            if topic_id not in known:
                known.add(topic_id)
                yield from _of_topic(topic_id, section[at + _BYTES.size : at + _BYTES.size + size])
            at += _BYTES.size + size
        known.update(layer.gone)


def _of_topic(topic_id: int, raw: memoryview) -> Iterator[Sealed]:
    name_bytes, dead_letter_bytes, rows = _COUNTS.unpack_from(raw, _COUNTS_AT)
    at = _TOPIC_BYTES + (name_bytes + dead_letter_bytes + 7) // 8 * 8
    for body in range(at, at + rows * (_ROW.size + _FILE.size), _ROW.size + _FILE.size):
        row, file = _ROW.unpack_from(raw, body), _FILE.unpack_from(raw, body + _ROW.size)
        if row[6]:
            yield Sealed((topic_id, row[0], row[1], row[8] * 8, row[9] * 8), file[7], file[2], file[3])


def missing(data_dir: Path, held: Mapping[Path, set[Range]], known: set[Path]) -> Iterator[Problem]:
    """Tell what the newest snapshot leads to and the files do not hold, one problem a file. `known`: files with problems that have been told."""
    found, _wrong = snapshot.newest(data_dir)
    told = set(known)
    for each in sealed_ranges(found) if found is not None else ():
        topic_id, first, last, data_at, _index_at = each.range
        own = names.name_of(data_dir, topic_id, each.name, each.edition)
        path = names.pack_path(data_dir, each.name) if each.kind == PACK else own.path("data")
        if path in told:
            continue
        if each.kind == COLD:
            if not own.path("index").exists() and not own.path("flags").exists():
                told.add(path)
                yield Problem(own.path("index"), 0, "the file is missing, and the snapshot leads there", loses=True, kind="index")
        elif path not in held:
            told.add(path)
            yield Problem(path, 0, "the file is missing, and the snapshot leads there", loses=True)
        elif each.range not in held[path]:
            told.add(path)
            yield Problem(path, data_at, f"it is not what the snapshot leads to: seqs {first} to {last} of topic {topic_id}", loses=True)
