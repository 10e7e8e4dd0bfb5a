"""Rewrite a segment of which next to nothing is alive, so that the dead do not hold the disk for ever."""

from __future__ import annotations

from pathlib import Path

from topicsd._native.files import FileSystem
from topicsd._native.segment import SegmentView
from topicsd._native.segment_build import Built, Writer
from topicsd.segments.names import Name, Place, name_of

DEAD_PERMILLE_MIN = 990
BYTES_MIN = 1 << 20  # of payload: a small segment is not worth three new files


def worth_it(live: int, records: int, data_bytes: int) -> bool:
    """Say whether a segment is dead enough. One without any live record is dropped, not rewritten."""
    return live > 0 and live * 1000 <= records * (1000 - DEAD_PERMILLE_MIN) and data_bytes >= BYTES_MIN


def view(place: Place) -> SegmentView:
    """Read a segment's parts. Raises SegmentError, OSError."""
    parts = {spot.path: spot.path.read_bytes() for spot in (place.index, place.data)}
    return SegmentView(
        parts[place.index.path], parts[place.data.path], index_offset=place.index.offset, data_offset=place.data.offset, marks=True
    )  # fmt: skip


def rewrite(old: Place, data_dir: Path, edition: int, files: FileSystem | None = None) -> tuple[Name, Built]:
    """Write the live records of a segment into a new one of the same range, under another edition; times and seqs of the dead stay in its index.

    A damaged segment is not rewritten: what is left of it is evidence. Readers of the old files notice nothing. Whoever publishes the new one
    calls `catch_up` first. Raises SegmentError, OSError; then no new file stands under its name.
    """
    source = view(old)
    name = name_of(data_dir, source.topic_id, source.first_seq, edition)
    writer = Writer(name.folder, files)
    writer.begin(source.topic_id, source.first_seq, edition)
    writer.add_all(source)
    return name, writer.finish()


def catch_up(old: Place, new: Place) -> list[int]:
    """Offsets in the new data file of the records that were deleted in the old one since it was read: to be set before the new one is published."""
    return view(new).late_deletes(view(old))
