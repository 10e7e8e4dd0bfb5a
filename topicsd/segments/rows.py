"""What a snapshot says of sealed ranges (docs/format/snapshot.md, section `topics`), held against the files that are there.

Whoever reads such rows takes their form from here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from topicsd import snapshot
from topicsd.segments import names
from topicsd.segments.names import Place, Spot
from topicsd.segments.verify import Problem

OWN, PACK, COLD = 1, 2, 3
ROW, FILE = struct.Struct("<4Q8I"), struct.Struct("<5Q4IQ")  # struct segment_body: a range, and its file
BODY_BYTES = ROW.size + FILE.size
TOPIC_BYTES = 240  # in front of a topic's name
_NUMBER, _COUNTS = struct.Struct("<Q"), struct.Struct("<3I")
_COUNTS_AT = 216

Range = tuple[int, int, int, int, int]  # topic id, first seq, last seq, where its data and its index begin


class Sealed(NamedTuple):
    """A range of a topic and the file that it stands in."""

    range: Range
    kind: int
    name: int
    edition: int
    tags_at: int

    def in_pack(self, path: Path) -> Place:
        """Where the parts of a range of a pack stand."""
        topic_id, first, last, data_at, index_at = self.range
        return Place(Spot(path, data_at), Spot(path, index_at), Spot(path, self.tags_at), topic_id, first, last, index_at - data_at)


def topics_of(section: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield each topic's id and row. Raises struct.error where the section is damaged."""
    at = 0
    while at < len(section):
        (size,) = _NUMBER.unpack_from(section, at)
        (topic_id,) = _NUMBER.unpack_from(section, at + _NUMBER.size)
        yield topic_id, section[at + _NUMBER.size : at + _NUMBER.size + size]
        at += _NUMBER.size + size


def bodies_of(raw: memoryview) -> tuple[int, range]:
    """Of a topic's row: the bytes of its name, and where each range's struct segment_body begins."""
    name_bytes, dead_letter_bytes, rows = _COUNTS.unpack_from(raw, _COUNTS_AT)
    at = TOPIC_BYTES + (name_bytes + dead_letter_bytes + 7) // 8 * 8
    return name_bytes, range(at, at + rows * BODY_BYTES, BODY_BYTES)


def sealed_ranges(found: snapshot.Chain) -> Iterator[Sealed]:
    """Yield every range with a file. Raises struct.error where the section is damaged."""
    known: set[int] = set()
    for layer in found.layers:
        for topic_id, raw in topics_of(layer.sections.get("topics", memoryview(b""))):
            if topic_id not in known:
                known.add(topic_id)
                yield from _of_topic(topic_id, raw)
        known.update(layer.gone)


def _of_topic(topic_id: int, raw: memoryview) -> Iterator[Sealed]:
    for body in bodies_of(raw)[1]:
        row, file = ROW.unpack_from(raw, body), FILE.unpack_from(raw, body + ROW.size)
        if row[6]:
            yield Sealed((topic_id, row[0], row[1], row[8] * 8, row[9] * 8), file[7], file[2], file[3], row[10] * 8)


def places_in(data_dir: Path, packs: set[Path]) -> Iterator[Place]:
    """Where the newest snapshot leads to in these packs."""
    found, _wrong = snapshot.newest(data_dir)
    for each in sealed_ranges(found) if found is not None and packs else ():
        if each.kind == PACK and (path := names.pack_path(data_dir, each.name)) in packs:
            yield each.in_pack(path)


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
