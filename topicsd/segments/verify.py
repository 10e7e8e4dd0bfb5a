"""Verify segments and packs from their first byte to their last: the one function behind fsck, scrub and whoever copies segments."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from topicsd._native import segment_pack
from topicsd._native.segment import STATUS, SegmentError, SegmentView, header_of
from topicsd._native.segment_repair import Examiner, Findings
from topicsd.segments import newer
from topicsd.segments.names import Name, Place, Spot, pack_number, place_of
from topicsd.segments.newer import NewerFormatError

OK, NOT_ONE, BAD_FRAME, MISMATCH = 0, 2, 7, 5
PAGE_BYTES = 4096
FLAG_DELETED = 0xD5
KINDS = ("data", "index", "tags")
DIRECTORY = "directory of the pack"
_MAGIC_DATA = b"TPSGDAT1"


@dataclass(frozen=True)
class Problem:
    """Something that is not as it was written. `loses`: records may be lost or shown wrongly; else it can be made again from what is there."""

    path: Path
    offset: int
    what: str
    loses: bool = False
    kind: str = ""  # the part, where it is one
    newer: bool = False  # no damage: a newer version wrote it, and it stays as it is

    def __str__(self) -> str:
        return f"{self.path}, byte {self.offset}: {self.what}"


@dataclass
class Checked:
    """One segment, verified. `remade`: parts that are damaged or missing, as they should be ("data": its header alone)."""

    place: Place
    problems: list[Problem] = field(default_factory=list)
    findings: Findings | None = None
    remade: dict[str, bytes] = field(default_factory=dict)
    bytes_read: int = 0


def load(path: Path) -> tuple[bytes, list[int]]:
    """Read a file; pages that the disk does not give back are zeroes (no checksum passes over them) and told by their offsets."""
    try:
        return path.read_bytes(), []
    except OSError as wrong:
        if wrong.errno != errno.EIO:
            raise
    out, bad = bytearray(), list[int]()
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        for offset in range(0, size, PAGE_BYTES):
            wanted = min(PAGE_BYTES, size - offset)
            try:
                page = os.pread(file.fileno(), wanted, offset)
            except OSError:
                page = b""
                bad.append(offset)
            out += page.ljust(wanted, b"\0")
    return bytes(out), bad


class Verifier:
    """Verify one segment after another; it keeps the last file, so that the segments of a pack are read once."""

    def __init__(self) -> None:
        self._examiner = Examiner()
        self._path: Path | None = None
        self._raw = b""
        self._read = 0

    def forget(self) -> None:
        """Read the next file anew: it may have been changed."""
        self._path, self._raw = None, b""

    def _load(self, path: Path, problems: list[Problem], *, loses: bool) -> bytes | None:
        if path == self._path:
            return self._raw
        try:
            raw, bad = load(path)
        except FileNotFoundError:
            problems.append(Problem(path, 0, "the file is missing"))
            return None
        problems += [Problem(path, offset, "the disk does not give this page back", loses=loses) for offset in bad]
        self._path, self._raw = path, raw
        self._read += len(raw)
        return raw

    def check(self, place: Place, *, deleted: int | None = None, remake: bool = False) -> Checked:
        """Verify a segment against its checksums, its index and its tags, and the count of deletes that the manifest has.

        Raises NewerFormatError, OSError when a file can not be opened.
        """
        out = Checked(place)
        self._read = 0
        parts: dict[str, bytes | None] = {}
        for kind, spot in zip(KINDS, (place.data, place.index, place.tags), strict=True):
            raw = parts[kind] = self._load(spot.path, out.problems, loses=spot.path == place.data.path)
            if raw is not None:
                newer.refuse_part(raw, kind, spot)
        data = parts["data"]
        out.bytes_read = self._read
        if data is None or place.data.offset + 128 > len(data):
            if data is not None:
                what = f"seqs {place.first_seq} to {place.last_seq} of topic {place.topic_id} are lost: " if place.last_seq else ""
                out.problems.append(Problem(place.data.path, place.data.offset, f"{what}{STATUS[1]}", loses=True, kind="data"))
            out.problems = [Problem(p.path, p.offset, p.what, loses=True) if p.path == place.data.path else p for p in out.problems]
            return out
        self._examine(out, data, self._held(out, "index", parts["index"]), self._held(out, "tags", parts["tags"]), deleted, remake)
        return out

    def _held(self, out: Checked, kind: str, raw: bytes | None) -> bytes | None:
        spot: Spot = getattr(out.place, kind)
        if raw is not None and spot.offset >= len(raw):
            out.problems.append(Problem(spot.path, spot.offset, f"{kind}: the file ends before it", kind=kind))
            return None
        return raw

    def _examine(self, out: Checked, data: bytes, index: bytes | None, tags: bytes | None, deleted: int | None, remake: bool) -> None:
        place = out.place
        identity = (place.topic_id, place.first_seq, place.last_seq) if place.last_seq else None
        try:
            found = self._examiner.examine(
                data, index, tags, data_offset=place.data.offset, index_offset=place.index.offset, tags_offset=place.tags.offset,
                data_bytes=place.data_bytes, identity=identity,
            )  # fmt: skip
        except SegmentError:
            out.problems.append(Problem(place.data.path, place.data.offset, "no header of the segment can be believed", loses=True))
            return
        out.findings = found
        out.problems += self._judge(place, found, deleted)
        for kind, raw, status in (("index", index, found.index_status), ("tags", tags, found.tags_status)):
            if raw is not None and status != OK:
                spot: Spot = getattr(place, kind)
                out.problems.append(Problem(spot.path, spot.offset, f"{kind}: {STATUS[status]}", kind=kind))
        statuses = dict(zip(KINDS, (found.data_status, found.index_status, found.tags_status), strict=True))
        if found.data_status == BAD_FRAME:
            statuses["data"] = self._header_status(data, place.data.offset)
        for kind, status in statuses.items():
            if status != OK and remake:
                out.remade[kind] = self._examiner.remade(kind)
        for kind, raw in (("data", data), ("index", index), ("tags", tags)) if place.alone() else ():
            longer = list(self._judge_end(getattr(place, kind).path, kind, raw))
            out.problems += longer
            if longer and remake and kind != "data":
                out.remade[kind] = self._examiner.remade(kind)

    @staticmethod
    def _header_status(data: bytes, offset: int) -> int:
        try:
            header_of(data, "data", offset)
        except SegmentError as wrong:
            return wrong.status if wrong.status != 1 else OK  # a part that is cut short has its header
        return OK

    @staticmethod
    def _judge(place: Place, found: Findings, deleted: int | None) -> Iterator[Problem]:
        data = place.data
        if (place.topic_id or place.first_seq) and (found.topic_id, found.first_seq) != (place.topic_id, place.first_seq):
            yield Problem(data.path, data.offset, f"it is the segment of topic {found.topic_id} from seq {found.first_seq} on", loses=True)
        if place.last_seq and found.last_seq != place.last_seq:
            yield Problem(data.path, data.offset, f"its last seq is {found.last_seq}, not {place.last_seq}", loses=True)
        if found.damaged_ranges:
            lost = f"{found.corrupt_seqs} records lost from seq {found.corrupt_first} on"
            what = f"{found.damaged_bytes} damaged bytes in {found.damaged_ranges} places, {lost}"
            yield Problem(data.path, data.offset + found.damaged_offset, what, loses=True, kind="data")
        elif found.corrupt_seqs:
            yield Problem(data.path, data.offset, f"{found.corrupt_seqs} records lost from seq {found.corrupt_first} on", loses=True, kind="data")
        elif found.data_status != OK:
            yield Problem(data.path, data.offset, f"data: {STATUS[found.data_status]}", kind="data")
        if found.odd_flags:
            yield Problem(data.path, data.offset, f"{found.odd_flags} flag bytes that mean nothing", loses=True, kind="data")
        if deleted is not None and deleted != found.deleted and not found.damaged_ranges:
            yield Problem(
                data.path, data.offset, f"{found.deleted} records are flagged as deleted, the manifest counts {deleted}", loses=True, kind="data"
            )

    @staticmethod
    def _judge_end(path: Path, kind: str, raw: bytes | None) -> Iterator[Problem]:
        if raw is None:
            return
        try:
            header = header_of(raw, kind)
        except SegmentError:
            return
        if len(raw) > header.part_bytes:
            yield Problem(path, header.part_bytes, f"{len(raw) - header.part_bytes} bytes behind its end", kind=kind)


# ---- packs


def pack_places(path: Path, raw: bytes) -> tuple[list[Place], list[Problem]]:
    """The segments of a pack, by its directory, or by the headers of its parts when that is damaged.

    Raises NewerFormatError when the pack, or any part in it, is of a newer version.
    """
    problems = []
    newer.refuse_pack(path, raw[: newer.PACK_BYTES], raw[-newer.PACK_BYTES :], len(raw))
    try:
        number, named = segment_pack.pack_number(raw), pack_number(path)
        if named not in (None, number):
            problems.append(Problem(path, 0, f"it is pack {number}", loses=True))
    except SegmentError as wrong:
        problems.append(Problem(path, 0, f"header of the pack: {STATUS[wrong.status]}"))
    try:
        entries = segment_pack.pack_directory(raw)
    except SegmentError as wrong:
        problems.append(Problem(path, max(len(raw) - 64, 0), f"{DIRECTORY}: {STATUS[wrong.status]}"))
        return list(found_parts(path, raw)), problems
    places = [
        Place(
            Spot(path, e.data_offset), Spot(path, e.index_offset), Spot(path, e.tags_offset), e.topic_id, e.first_seq, e.last_seq,
            e.index_offset - e.data_offset,
        )
        for e in entries
    ]  # fmt: skip
    for place in places:
        newer.refuse_place(raw, place)
    return places, problems


def found_parts(path: Path, raw: bytes) -> Iterator[Place]:
    """Search a pack for data parts whose header can be believed, with the index and the tags behind them. Raises NewerFormatError."""
    at = raw.find(_MAGIC_DATA)
    while at >= 0:
        step = 8
        if at % 8 == 0:
            newer.refuse_part(raw, "data", Spot(path, at))
            try:
                data = header_of(raw, "data", at)
                index_at = at + data.part_bytes
                newer.refuse_part(raw, "index", Spot(path, index_at))
                index = header_of(raw, "index", index_at)
                place = Place(
                    Spot(path, at), Spot(path, index_at), Spot(path, index_at + index.part_bytes), data.topic_id, data.first_seq, data.last_seq,
                    data.part_bytes,
                )  # fmt: skip
                newer.refuse_place(raw, place)
                yield place
                step = data.part_bytes
            except NewerFormatError:
                raise
            except SegmentError:
                pass
        at = raw.find(_MAGIC_DATA, at + step)


# ---- cold segments: what of them is here


def check_cold(name: Name) -> Checked:
    """Verify the index, the tags and the flags of a segment whose data part is in the cold tier. Raises NewerFormatError, OSError."""
    out = Checked(place_of(name))
    raws: dict[str, bytes] = {}
    for kind in ("index", "tags", "flags"):
        try:
            raws[kind], bad = load(name.path(kind))
        except FileNotFoundError:
            out.problems.append(Problem(name.path(kind), 0, "the file is missing", loses=kind == "flags", kind=kind))
            continue
        newer.refuse_part(raws[kind], kind, Spot(name.path(kind)))
        out.bytes_read += len(raws[kind])
        out.problems += [Problem(name.path(kind), offset, "the disk does not give this page back", kind=kind) for offset in bad]
    if "index" in raws:
        _judge_cold(out, name, raws)
    return out


def _judge_cold(out: Checked, name: Name, raws: dict[str, bytes]) -> None:
    def told(kind: str, wrong: SegmentError | None, what: str = "") -> None:
        words = what or f"{kind}: {STATUS[wrong.status] if wrong else ''}"
        out.problems.append(Problem(name.path(kind), 0, words, loses=kind == "flags", kind=kind))

    try:
        view = SegmentView(raws["index"])
        status, upto = view.check(view.first_seq, view.last_seq - view.first_seq + 1)
        if status:
            told("index", None, f"index: {STATUS[status]} at seq {upto}")
        elif (view.topic_id, view.first_seq) != (name.topic_id, name.first_seq):
            told("index", None, f"it is the index of topic {view.topic_id} from seq {view.first_seq} on")
    except SegmentError as wrong:
        told("index", wrong)
        return
    try:
        if "tags" in raws:
            SegmentView(raws["index"], tags=raws["tags"]).find_tags(b"")
    except SegmentError as wrong:
        told("tags", wrong)
    try:
        if "flags" in raws:
            view.take_flags(raws["flags"])
            odd = len(raws["flags"]) - 128 - raws["flags"].count(0, 128) - raws["flags"].count(FLAG_DELETED, 128)
            if odd:
                told("flags", None, f"{odd} flag bytes that mean nothing")
    except SegmentError as wrong:
        told("flags", wrong)


def verify_name(name: Name, **options: bool) -> Checked:
    """Verify a segment with files of its own."""
    return Verifier().check(place_of(name), **options)
