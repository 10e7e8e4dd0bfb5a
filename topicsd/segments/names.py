"""Where segment files stand and what their names say (docs/format/segment.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SUFFIXES = {"data": ".data", "index": ".idx", "tags": ".tag"}
FLAGS_SUFFIX = ".del"  # of a cold segment: its flag bytes, beside the index
TOPICS, PACKS = "topics", "packs"
_NAME = re.compile(r"(\d{20})(?:\.([1-9]\d*))?\.(data|idx|tag|del)")
_PACK = re.compile(r"(\d{20})\.pack")


class Name(NamedTuple):
    """A segment with three files of its own. `folder` is its topic's."""

    folder: Path
    topic_id: int
    first_seq: int
    edition: int = 0

    def path(self, kind: str) -> Path:
        """The file of one part: "data", "index", "tags" or "flags"."""
        edition = f".{self.edition}" if self.edition else ""
        return self.folder / f"{self.first_seq:020d}{edition}{FLAGS_SUFFIX if kind == 'flags' else SUFFIXES[kind]}"


class Spot(NamedTuple):
    """Where a part stands."""

    path: Path
    offset: int = 0


@dataclass(frozen=True)
class Place:
    """A segment's three parts, and what is known of it before any is read (zeroes: nothing)."""

    data: Spot
    index: Spot
    tags: Spot
    topic_id: int = 0
    first_seq: int = 0
    last_seq: int = 0
    data_bytes: int = 0  # of the data part, where the file does not end with it

    def alone(self) -> bool:
        """Say whether the segment has files of its own."""
        return self.data.path != self.index.path


def topic_folder(topic_id: int) -> str:
    """The folder of a topic's segments, from the data directory on."""
    return f"{TOPICS}/{topic_id & 0xFF:02x}/{topic_id:016x}"


def name_of(data_dir: Path, topic_id: int, first_seq: int, edition: int = 0) -> Name:
    """The name of a segment."""
    return Name(data_dir / topic_folder(topic_id), topic_id, first_seq, edition)


def pack_path(data_dir: Path, number: int) -> Path:
    """The file of a pack."""
    return data_dir / PACKS / f"{number:020d}.pack"


def parse(path: Path) -> tuple[Name, str] | None:
    """The segment and the kind of part that a path names, or None."""
    found = _NAME.fullmatch(path.name)
    try:
        topic_id = int(path.parent.name, 16)
    except ValueError:
        return None
    if not found or len(path.parent.name) != 16:
        return None
    kind = {"data": "data", "idx": "index", "tag": "tags", "del": "flags"}[found[3]]
    return Name(path.parent, topic_id, int(found[1]), int(found[2] or 0)), kind


def pack_number(path: Path) -> int | None:
    """The number of the pack that a path names, or None."""
    found = _PACK.fullmatch(path.name)
    return int(found[1]) if found else None


def place_of(name: Name, last_seq: int = 0) -> Place:
    """Where the parts of a segment with files of its own stand."""
    data, index, tags = (Spot(name.path(kind)) for kind in SUFFIXES)
    return Place(data, index, tags, name.topic_id, name.first_seq, last_seq)


def files_below(data_dir: Path) -> Iterator[Path]:
    """Every file below topics/ and packs/, in order."""
    for root in (data_dir / TOPICS, data_dir / PACKS):
        yield from sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else ()
