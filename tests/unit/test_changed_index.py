"""Bytes of an index, of tags and of a frame's lengths that change under a process which has just verified them: no wrong record, no crash."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.in_process import Library
from topicsd._native import upkeep
from topicsd._native.segment import SegmentError, SegmentView
from topicsd.segments.cold import FolderCold

RECORDS = 300
HEADER_BYTES = 128  # segment.h
ENTRY = struct.Struct("<QIIQ")  # layout.h, struct index_entry
FRAME_HEAD_BYTES = 24
SOURCE = 254 << 56  # SOURCE_SEGMENT
DELETED, HOLE, CORRUPT = 1, 2, 5 << 8


@pytest.fixture
def cold(tmp_path: Path) -> FolderCold:
    (tmp_path / "cold").mkdir()
    return FolderCold(tmp_path / "cold")


@pytest.fixture
def library(tmp_path: Path, cold: FolderCold) -> Iterator[Library]:
    made = Library(str(tmp_path / "data"), FakeClock(), file_bytes=8 << 20)
    made.cold = cold
    upkeep.cold_attach(made.shared, 4 << 20)
    yield made
    made.close()


class Part:
    """A part of a sealed segment in its file, changed where it stands: whoever has it mapped sees it at once."""

    def __init__(self, path: Path, magic: bytes) -> None:
        self.path = path
        self.at = path.read_bytes().index(magic)

    def poke(self, offset: int, raw: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(self.at + offset)
            file.write(raw)

    def peek(self, offset: int, length: int) -> bytes:
        return self.path.read_bytes()[self.at + offset : self.at + offset + length]


class Index(Part):
    def __init__(self, path: Path) -> None:
        super().__init__(path, b"TPSGIDX1")

    def entry(self, seq: int) -> list[int]:
        return list(ENTRY.unpack(self.peek(HEADER_BYTES + ENTRY.size * (seq - 1), ENTRY.size)))

    def change(self, seq: int, **members: int) -> None:
        position, size, flags, ts = self.entry(seq)
        now = {"position": position, "bytes": size, "flags": flags, "ts": ts, **members}
        self.poke(HEADER_BYTES + ENTRY.size * (seq - 1), ENTRY.pack(*now.values()))


def one(library: Library, pattern: str) -> Path:
    return next(Path(library.directory).rglob(pattern))


def laid(library: Library, kind: str) -> tuple[Index, Part]:
    """A topic "t" that is sealed, and another one beside it; where the index and the data of "t" stand."""
    for name in ("t", "other"):
        library.put(name)
        for first in range(0, RECORDS, 50):
            library.append(name, [{"data": f"{name} {n:06d}" + "x" * 500, "tag": f"t{n % 7}"} for n in range(first, first + 50)])
    if kind == "pack":
        library.sequencer.sync()
        slots = [library.sequencer.find(name) for name in (b"t", b"other")]
        library.sealing(bytes_max=0)._pack([(slot, library.sequencer.topic(slot)["topic_id"]) for slot in slots])
        path = one(library, "*.pack")
        return Index(path), Part(path, b"TPSGDAT1")
    library.seal("t")
    if kind == "cold":
        assert library.cold is not None
        relocation = library.relocation(library.cold, segments=0)
        for step in range(10):
            relocation.step(step)
        (name,) = library.cold.names()
        return Index(one(library, "*.del").with_suffix(".idx")), Part(Path(library.cold.root) / name, b"TPSGDAT1")  # type: ignore[attr-defined]
    return Index(one(library, "*.idx")), Part(one(library, "*.data"), b"TPSGDAT1")


def middle(index: Index, seq: int) -> int:
    return index.entry(seq)[0] + 264


POSITIONS: dict[str, Callable[[Index, int], int]] = {
    "zeroes": lambda _index, _seq: 0,
    "ones": lambda _index, _seq: 2**64 - 1,
    "the beginning": lambda _index, _seq: SOURCE,
    "the first frame's head": lambda _index, _seq: SOURCE | HEADER_BYTES,
    "another source": lambda index, seq: index.entry(seq)[0] & ~(255 << 56),
    "behind the end": lambda _index, _seq: SOURCE | 1 << 40,
    "far behind the end": lambda _index, _seq: SOURCE | (1 << 56) - 8,
    "odd": lambda index, seq: index.entry(seq)[0] + 3,
    "the middle of it": middle,
    "the middle of another": lambda index, seq: middle(index, seq + 9),
    "another record": lambda index, seq: index.entry(seq + 1)[0],
    "a record of another block": lambda index, seq: index.entry(seq + 150)[0],
}
KINDS = ["own", "pack", "cold"]


def seen(library: Library) -> Any:
    return library.read_all("t"), library.state("t")


@pytest.mark.parametrize("way", list(POSITIONS))
@pytest.mark.parametrize("kind", KINDS)
def test_a_position_that_changes_under_a_reader_is_not_followed(library: Library, kind: str, way: str) -> None:
    index, _data = laid(library, kind)
    library.route("t", "copies", from_seq=RECORDS)
    before = seen(library)
    for seq in (1, 70, 131):
        index.change(seq, position=POSITIONS[way](index, seq))
    assert seen(library) == before  # at once: what was verified is believed for a second
    assert [record["$seq"] for record in library.diff("t", 69, limit=2)["records"]] == [70, 71]
    assert library.shared.get("damage_met") > 0, "the keeper is told"
    if kind != "cold":
        library.route("t", "copies of it", from_seq=0)
        assert [record["data"] for record in library.read_all("copies of it")[0]] == [record["data"] for record in before[0][0]]


MEMBERS: dict[str, Callable[[list[int]], dict[str, int]]] = {
    "longer": lambda entry: {"bytes": entry[1] + 8},
    "as long as can be": lambda _entry: {"bytes": 2**32 - 1},
    "empty": lambda _entry: {"bytes": 0},
    "deleted": lambda entry: {"flags": entry[2] | DELETED},
    "lost": lambda _entry: {"flags": HOLE | CORRUPT},
    "lost for no reason": lambda _entry: {"flags": HOLE},
    "a copy with an origin": lambda entry: {"flags": entry[2] | 0x48},
    "without a tag": lambda _entry: {"flags": 0},
    "younger": lambda entry: {"ts": entry[3] + 1000},
    "all of it": lambda _entry: {"position": 2**64 - 1, "bytes": 2**32 - 1, "flags": 2**32 - 1, "ts": 2**64 - 1},
}


@pytest.mark.parametrize("way", list(MEMBERS))
@pytest.mark.parametrize("kind", KINDS)
def test_what_an_index_says_of_a_record_and_no_more_is_true_is_not_believed(library: Library, kind: str, way: str) -> None:
    index, _data = laid(library, kind)
    before = seen(library)
    for seq in (1, 64, 65, 200):
        index.change(seq, **MEMBERS[way](index.entry(seq)))
    assert seen(library) == before
    assert library.shared.get("damage_met") > 0


@pytest.mark.parametrize("way", ["deleted", "lost", "younger", "as long as can be"])
def test_the_writer_deletes_and_evicts_by_what_the_index_said_when_it_was_whole(library: Library, way: str) -> None:
    index, _data = laid(library, "own")
    before = seen(library)
    assert library.delete("t", before_seq=3)["deleted"] == 2
    for seq in range(3, 40):
        index.change(seq, **MEMBERS[way](index.entry(seq)))
    library.put("t", cap_records=RECORDS - 20)
    assert library.state("t")["count"] == RECORDS - 20
    assert library.state("t")["bytes"] == sum(len(record["data"]) + 2 + len(record["tag"]) for record in before[0][0][20:])
    assert library.read_all("t", 20)[0] == before[0][0][20:]


@pytest.mark.parametrize("value", [0, 2**63])
def test_a_read_from_a_time_begins_where_it_began_before_its_index_changed(library: Library, value: int) -> None:
    library.put("t")
    for n in range(RECORDS):
        library.clock.advance(10)
        library.append("t", [{"data": f"{n:06d}"}])
    library.seal("t")
    index = Index(one(library, "*.idx"))
    times = [record["$ts"] for record in library.read_all("t")[0]]
    assert library.diff("t", from_ts=times[149], limit=1)["records"][0]["$seq"] == 150
    for seq in (149, 150, 151):
        index.change(seq, ts=value)
    assert library.diff("t", from_ts=times[149], limit=1)["records"][0]["$seq"] == 150


# ---- a frame's lengths

LENGTHS: dict[str, tuple[int, bytes]] = {  # of struct record_entry: length and flags, data, meta, tag, node
    "the entry": (0, b"\xff\xff\xff\x0f"),
    "the data": (4, b"\xff\xff\xff\xff"),
    "all of it": (0, b"\xff" * 16),
    "nothing": (0, bytes(16)),
    "the frame": (-FRAME_HEAD_BYTES, b"\xf8\xff\xff\xff"),
    "the seq": (-FRAME_HEAD_BYTES + 8, bytes(8)),
}


@pytest.mark.parametrize("way", list(LENGTHS))
@pytest.mark.parametrize("kind", ["own", "pack"])
def test_lengths_of_a_frame_that_change_under_a_reader_cost_the_record_alone(library: Library, kind: str, way: str) -> None:
    index, data = laid(library, kind)
    before = seen(library)
    offset, raw = LENGTHS[way]
    data.poke((index.entry(131)[0] & ~(255 << 56)) + offset, raw)
    records, tombstones = library.read_all("t")
    assert records == [record for record in before[0][0] if record["$seq"] != 131]
    assert [(each["gap_from"], each["gap_to"], each["reason"]) for each in tombstones] == [(131, 131, "corrupt")]
    assert library.shared.get("damage_met") > 0


# ---- tags

ROW_BYTES = 16  # struct segment_tag: bytes_offset, tag_bytes, first_posting, postings
TAGS = 7
ROWS = {"where the bytes are": 0, "how long it is": 4, "the first posting": 8, "how many": 12}


@pytest.mark.parametrize("value", [0, 1, 77, 2**31, 2**32 - 1])
@pytest.mark.parametrize("member", [*ROWS, "a posting"])
@pytest.mark.parametrize("pack", [False, True])
def test_tags_that_change_under_the_writer_delete_no_other_record(library: Library, pack: bool, member: str, value: int) -> None:
    laid(library, "pack" if pack else "own")
    tags = Part(one(library, "*.pack" if pack else "*.tag"), b"TPSGTAG1")
    before = library.read_all("t")[0]
    assert library.delete("t", match=["tag", "Eq", "t0"])["deleted"] == len([1 for record in before if record["tag"] == "t0"])
    for row in range(TAGS):
        if member == "a posting":
            for posting in range(row * 42, RECORDS):
                tags.poke(HEADER_BYTES + TAGS * ROW_BYTES + posting * 4, struct.pack("<I", value))
        elif row:  # the first one leads the search to the others
            tags.poke(HEADER_BYTES + row * ROW_BYTES + ROWS[member], struct.pack("<I", value))
    library.delete("t", match=["tag", "Eq", "t3"])
    library.delete("t", match=["tag", "Glob", "t5*"])
    left = library.read_all("t")[0]
    assert {record["tag"] for record in before if record not in left} <= {"t0", "t3", "t5"}
    if member == "a posting":  # the rows lead to them: what is found is verified, and made good from the data
        assert left == [record for record in before if record["tag"] not in ("t0", "t3", "t5")]
    assert library.read_all("other")[0]


# ---- the tools


def test_the_flags_of_a_segment_are_not_asked_of_an_index_that_is_damaged(library: Library) -> None:
    index, data = laid(library, "own")
    index.change(70, position=SOURCE | 1 << 40)
    with pytest.raises(SegmentError):
        SegmentView(index.path.read_bytes(), data.path.read_bytes()).flags_part()
