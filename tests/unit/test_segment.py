"""Segments and packs: the bytes of the format page, what a reader finds in them, and what damage makes of both."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle import segment_oracle as oracle
from oracle.segment_oracle import DELETED, HOLE, Row
from topicsd._native import frame, segment, segment_build, segment_pack, segment_repair
from topicsd._native.segment import SegmentError, SegmentView
from topicsd._native.segment_build import Built, Writer

OK, BAD_INDEX, BAD_FRAME, BAD_TAGS, NEWER, MISMATCH = 0, 6, 7, 8, 4, 5
TOPIC = 0x1234_5678_9ABC


def entry(data: bytes = b'{"a":1}', tag: bytes | None = None, **rest: object) -> bytes:
    return frame.entry(frame.Record(data, rest.get("meta"), tag, rest.get("node"), rest.get("delay_ms", 0), rest.get("priority", 0)))


def write(folder: Path, rows: list[Row], topic_id: int = TOPIC, **begin: int) -> tuple[Built, oracle.Parts]:
    writer = Writer(folder)
    writer.begin(topic_id, rows[0].seq, **begin)
    for row in rows:
        writer.add(row.seq, row.ts, row.entry, row.flags, row.count)
    built = writer.finish()
    name = f"{rows[0].seq:020d}" + (f".{begin['edition']}" if begin.get("edition") else "")
    return built, oracle.Parts(*((folder / f"{name}.{kind}").read_bytes() for kind in ("data", "idx", "tag")))


def view_of(parts: oracle.Parts, **options: bool) -> SegmentView:
    return SegmentView(parts.index, parts.data, parts.tags, **options)


@st.composite
def rows_of(draw: st.DrawFn, size_max: int = 200) -> list[Row]:
    """Rows of a segment: runs of records, of deleted ones and of holes."""
    rows: list[Row] = []
    seq, ts = draw(st.integers(1, 2**40)), draw(st.integers(0, 2**41))
    tags = draw(st.lists(st.binary(max_size=8), min_size=1, max_size=5))
    rng = random.Random(draw(st.integers(0, 2**32)))
    for _ in range(draw(st.integers(1, size_max))):
        ts += rng.choice([0, 0, 1, 1000])
        kind = rng.choice("rrrrrrdh")
        if kind == "r":
            raw = entry(
                b"%d" % rng.randrange(10 ** rng.randrange(1, 200)),
                rng.choice([None, *tags]),
                node=rng.choice([None, b"", b"n1"]),
                meta=rng.choice([None, b"{}"]),
                delay_ms=rng.choice([0, 0, 5]),
            )
            rows.append(Row(seq, ts, raw))
        elif kind == "d":
            rows.append(Row(seq, ts, None, DELETED))
        else:
            rows.append(Row(seq, ts, None, HOLE | rng.randrange(1, 7) << 8, rng.choice([1, 2, 300])))
        seq += rows[-1].count
    return rows


MIXED = [
    Row(10, 100, entry(tag=b"x")),
    Row(11, 100, entry(b"2", tag=b"")),
    Row(12, 101, None, DELETED),
    Row(13, 105, None, DELETED),
    Row(14, 105, None, HOLE | 1 << 8, 3),
    Row(17, 110, entry(b'"seventeen"', tag=b"xy", node=b"n", meta=b"{}", delay_ms=3)),
    Row(18, 111, entry(b"null")),
]


# ---- the format ---------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(rows=rows_of())
def test_the_builder_writes_what_the_format_page_says(tmp_path_factory: pytest.TempPathFactory, rows: list[Row]) -> None:
    built, parts = write(tmp_path_factory.mktemp("segment"), rows)

    wanted = oracle.build(TOPIC, rows)

    assert (parts.data, parts.index, parts.tags) == (wanted.data, wanted.index, wanted.tags)
    assert (built.data_bytes, built.index_bytes, built.tags_bytes) == (len(wanted.data), len(wanted.index), len(wanted.tags))
    assert built.records == sum(row.entry is not None for row in rows)


@settings(deadline=None, max_examples=60)
@given(rows=rows_of(), marks=st.booleans())
def test_a_reader_finds_every_seq_as_it_was_given(rows: list[Row], marks: bool) -> None:
    parts = oracle.build(TOPIC, rows)
    view = view_of(parts, marks=marks)

    for seq, ts, raw, flags in oracle.expanded(rows):
        found = view.record(seq)
        assert found == (None if raw is None else (raw, False))
        assert view.entry(seq)[0] == ts and view.entry(seq)[2] & ~oracle.TAGGED == flags
    assert view.check(view.first_seq, view.last_seq - view.first_seq + 1) == (OK, view.last_seq + 1)
    assert [row[:4] for row in oracle.read_data(TOPIC, parts.data)] == oracle.expanded(rows)


@settings(deadline=None, max_examples=60)
@given(rows=rows_of(), ts=st.integers(0, 2**42), place=st.floats(0, 1))
def test_the_lower_bound_of_a_time_is_the_first_seq_that_is_not_older(rows: list[Row], ts: int, place: float) -> None:
    view = view_of(oracle.build(TOPIC, rows))
    seqs = oracle.expanded(rows)
    from_seq = view.first_seq + int(place * (len(seqs) - 1))
    for asked in (ts, seqs[len(seqs) // 2][1]):
        wanted = next((seq for seq, at, _, _ in seqs if seq >= from_seq and at >= asked), view.last_seq + 1)
        assert view.lower_bound_ts(from_seq, asked) == wanted


@settings(deadline=None, max_examples=60)
@given(rows=rows_of(), asked=st.binary(max_size=3))
def test_tags_are_found_by_their_bytes_and_by_their_first_bytes(rows: list[Row], asked: bytes) -> None:
    view = view_of(oracle.build(TOPIC, rows))
    seqs: dict[bytes, list[int]] = {}
    for row in rows:
        tag = oracle.entry_parts(row.entry)[0] if row.entry is not None else None
        if tag is not None:
            seqs.setdefault(tag, []).append(row.seq)

    assert view.find_tags(asked, prefix=True) == {tag: found for tag, found in seqs.items() if tag.startswith(asked)}
    for tag in [asked, *seqs]:
        assert view.find_tags(tag) == ({tag: seqs[tag]} if tag in seqs else {})


def test_more_deleted_records_in_a_row_than_a_gap_takes_make_several_gaps(tmp_path: Path) -> None:
    rows = [Row(1, 1, entry())] + [Row(2 + k, 2 + k, None, DELETED) for k in range(9000)]
    _, parts = write(tmp_path, rows)
    assert parts.data == oracle.build(TOPIC, rows).data
    assert segment_repair.Examiner().examine(parts.data, parts.index, parts.tags).gaps == 3


def test_records_larger_than_the_buffer_are_written_whole(tmp_path: Path) -> None:
    rows = [Row(1 + k, 1, entry(b'"' + bytes([97 + k]) * (3 << 20) + b'"', tag=b"t")) for k in range(3)]
    _, parts = write(tmp_path, rows)
    assert (parts.data, parts.index, parts.tags) == tuple(vars(oracle.build(TOPIC, rows)).values())


@pytest.mark.parametrize(
    "rows",
    [
        [Row(5, 1, entry()), Row(7, 1, entry())],
        [Row(5, 1, entry()), Row(5, 1, entry())],
        [Row(5, 2, entry()), Row(6, 1, entry())],
        [Row(5, 1, None, 0)],
        [Row(5, 1, None, HOLE)],
        [Row(5, 1, None, HOLE | 1 << 8, 2**31)],
    ],
    ids=["a seq is missing", "a seq comes twice", "time goes back", "no record", "a hole without a reason", "more seqs than a segment takes"],
)
def test_the_builder_refuses_what_is_out_of_order_and_leaves_no_file(tmp_path: Path, rows: list[Row]) -> None:
    writer = Writer(tmp_path)
    writer.begin(1, 5)
    with pytest.raises(SegmentError):
        for row in rows:
            writer.add(row.seq, row.ts, row.entry, row.flags, row.count)
    assert list(tmp_path.iterdir()) == []


def test_another_edition_of_the_same_range_has_files_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, MIXED)
    write(tmp_path, MIXED, edition=3)
    assert {path.name for path in tmp_path.iterdir()} == {f"{10:020d}{e}.{k}" for e in ("", ".3") for k in ("data", "idx", "tag")}


# ---- packs --------------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(  # a range of a topic is in a pack once
    segments=st.lists(st.tuples(st.integers(1, 50), rows_of(12)), min_size=0, max_size=12, unique_by=lambda each: (each[0], each[1][0].seq))
)
def test_a_pack_is_the_segments_one_after_another_and_a_directory(tmp_path_factory: pytest.TempPathFactory, segments: list) -> None:
    folder = tmp_path_factory.mktemp("pack")
    writer, builts = Writer(folder), []
    writer.pack_begin(9)
    for topic_id, rows in segments:
        writer.begin_in_pack(topic_id, rows[0].seq)
        for row in rows:
            writer.add(row.seq, row.ts, row.entry, row.flags, row.count)
        builts.append(writer.finish())
    size = writer.pack_finish()

    raw = (folder / f"{9:020d}.pack").read_bytes()
    assert raw == oracle.build_pack(9, segments) and len(raw) == size
    assert segment_pack.pack_number(raw) == 9
    directory = segment_pack.pack_directory(raw)
    assert [(e.topic_id, e.first_seq) for e in directory] == sorted((b.topic_id, b.first_seq) for b in builts)
    for built, (_, rows) in zip(builts, segments, strict=True):
        view = SegmentView(raw, raw, raw, index_offset=built.index_offset, data_offset=built.data_offset, tags_offset=built.tags_offset, marks=True)
        assert [view.record(seq) for seq, *_ in oracle.expanded(rows)] == [raw and (raw, False) for _, _, raw, _ in oracle.expanded(rows)]


# ---- deletes --------------------------------------------------------------------------------------------------------------------


def test_a_flag_byte_deletes_one_record_and_changes_no_checksum(tmp_path: Path) -> None:
    _, parts = write(tmp_path, MIXED)
    path = tmp_path / f"{10:020d}.data"
    segment.set_deleted(path, [view_of(parts).flag_offset(seq) for seq in (11, 18)])

    data = path.read_bytes()
    view = SegmentView(parts.index, data, parts.tags)
    assert [view.record(seq)[1] for seq in (10, 11, 17, 18)] == [False, True, False, True]  # type: ignore[index]
    assert [row[0] for row in oracle.read_data(TOPIC, data) if row[4]] == [11, 18]
    findings = segment_repair.Examiner().examine(data, parts.index, parts.tags)
    assert (findings.data_status, findings.index_status, findings.tags_status, findings.deleted) == (OK, OK, OK, 2)


def test_a_rewritten_segment_keeps_times_and_seqs_and_drops_what_was_deleted(tmp_path: Path) -> None:
    _, parts = write(tmp_path, MIXED)
    path = tmp_path / f"{10:020d}.data"
    segment.set_deleted(path, [view_of(parts).flag_offset(seq) for seq in (11, 17)])
    writer = Writer(tmp_path)
    writer.begin(TOPIC, 10, 1)
    writer.add_all(SegmentView(parts.index, path.read_bytes()))
    built = writer.finish()

    gone = [Row(r.seq, r.ts, None, DELETED) if r.seq in (11, 17) else r for r in MIXED]
    assert (tmp_path / f"{10:020d}.1.data").read_bytes() == oracle.build(TOPIC, gone).data
    assert (built.records, built.deleted, built.holes) == (2, 4, 3)


# ---- damage ---------------------------------------------------------------------------------------------------------------------

BITS = range(8)


def served(view: SegmentView) -> list[object]:
    """What a reader is told about each seq: the record, that there is none and why, or that it is damaged."""
    out: list[object] = []
    for seq in range(view.first_seq, view.last_seq + 1):
        try:
            out.append((view.entry(seq)[::2], view.record(seq)))
        except SegmentError as wrong:
            out.append(wrong.status)
    return out


def flag_bytes(data: bytes) -> list[int]:
    """Offsets of the flag bytes of all frames."""
    out, at = [], 128
    while at < len(data):
        at += int.from_bytes(data[at : at + 4], "little")
        out.append(at - 8)
    return out


def damaged(parts: oracle.Parts, kind: str, change: Callable[[bytearray], None]) -> oracle.Parts:
    raw = bytearray(getattr(parts, kind))
    change(raw)
    return oracle.Parts(**{**vars(parts), kind: bytes(raw)})


@pytest.mark.parametrize("kind", ["data", "index", "tags"])
def test_a_bit_flipped_at_each_byte_is_never_a_wrong_record_and_never_silent(kind: str) -> None:
    parts = oracle.build(TOPIC, MIXED)
    good = served(view_of(parts))
    flags = set(flag_bytes(parts.data)) if kind == "data" else set()
    examiner = segment_repair.Examiner()
    for at in range(len(getattr(parts, kind))):
        for bit in BITS:
            changed = damaged(parts, kind, lambda raw, at=at, bit=bit: raw.__setitem__(at, raw[at] ^ 1 << bit))
            findings = examiner.examine(changed.data, changed.index, changed.tags)
            told = (findings.data_status, findings.index_status, findings.tags_status) != (OK, OK, OK)
            assert told == (at not in flags), (at, bit)
            assert findings.odd_flags == (at in flags), "one bit never makes 0xD5 of 0: it is told, and reads as live"
            try:
                view = view_of(changed)
            except SegmentError:
                continue
            for told, wanted in zip(served(view), good, strict=True):
                assert told == wanted or isinstance(told, int), (at, bit)
            if kind == "tags":
                with pytest.raises(SegmentError):
                    view.find_tags(b"")


@pytest.mark.parametrize("kind", ["data", "index", "tags"])
def test_a_part_that_is_cut_short_is_told_at_every_length(kind: str) -> None:
    parts = oracle.build(TOPIC, MIXED)
    good = served(view_of(parts))
    examiner = segment_repair.Examiner()
    for length in range(1, len(getattr(parts, kind))):
        changed = damaged(parts, kind, lambda raw, length=length: raw.__delitem__(slice(length, None)))
        if kind != "data" or length >= 128:
            findings = examiner.examine(changed.data, changed.index, changed.tags)
            assert (findings.data_status, findings.index_status, findings.tags_status) != (OK, OK, OK)
        try:
            view = view_of(changed)
        except SegmentError:
            continue
        assert all(told == wanted or isinstance(told, int) for told, wanted in zip(served(view), good, strict=True))


def test_damage_to_one_frame_leaves_every_other_record_to_the_reader() -> None:
    rows = [Row(1 + k, k, entry(b"%d" % k)) for k in range(200)]
    parts = oracle.build(TOPIC, rows)
    changed = damaged(parts, "data", lambda raw: raw.__setitem__(128 + 64 * 100 + 30, 0xFF))
    for marks in (False, True):
        view = view_of(changed, marks=marks)
        assert view.check(1, 200) == (BAD_FRAME, 101)
        assert view.check(102, 99) == (OK, 201)
        assert [seq for seq in range(1, 201) if view.check(seq, 1)[0] != OK] == [101]
    findings = segment_repair.Examiner().examine(changed.data, changed.index, changed.tags)
    assert (findings.records, findings.damaged_ranges, findings.damaged_bytes, findings.corrupt_first, findings.corrupt_seqs) == (199, 1, 64, 101, 1)
    assert (findings.data_status, findings.index_status, findings.tags_status) == (BAD_FRAME, OK, OK), "the index is sound: the reader is told"


def test_marks_remember_what_was_verified_and_never_more_than_that() -> None:
    parts = oracle.build(TOPIC, [Row(1 + k, k, entry(b"%d" % k)) for k in range(200)])
    index, data = bytearray(parts.index), bytearray(parts.data)
    view = SegmentView(index, data, marks=True)
    assert view.check(1, 10) == (OK, 11)
    index[128 + 24 * 150] ^= 1
    data[128 + 64 * 64 + 40] ^= 1
    assert view.check(1, 64) == (OK, 65)
    assert view.check(60, 10) == (BAD_FRAME, 65)
    assert view.check(151, 1) == (BAD_INDEX, 151)


@settings(deadline=None, max_examples=60)
@given(rows=rows_of(), junk=st.binary(min_size=1, max_size=200), place=st.floats(0, 1))
def test_index_and_tags_come_back_from_the_data_alone(rows: list[Row], junk: bytes, place: float) -> None:
    parts = oracle.build(TOPIC, rows)
    examiner = segment_repair.Examiner()
    findings = examiner.examine(parts.data)
    assert (findings.data_status, examiner.remade("index"), examiner.remade("tags")) == (OK, parts.index, parts.tags)
    assert examiner.remade("data") == parts.data[:128]

    lost = bytearray(parts.index)
    at = int(place * (len(lost) - 1))
    lost[at : at + len(junk)] = junk
    findings = examiner.examine(parts.data, bytes(lost), b"gone")
    assert examiner.remade("index") == parts.index and examiner.remade("tags") == parts.tags
    assert findings.tags_status != OK and (findings.index_status != OK or bytes(lost) == parts.index)


@settings(deadline=None, max_examples=80)
@given(rows=rows_of(60), junk=st.binary(min_size=1, max_size=300), place=st.floats(0, 1), whole=st.booleans())
def test_what_is_remade_from_damaged_data_serves_what_is_left_and_calls_the_rest_corrupt(rows: list, junk: bytes, place: float, whole: bool) -> None:
    parts = oracle.build(TOPIC, rows)
    good = served(view_of(parts))
    data = bytearray(parts.data)
    at = 0 if whole else int(place * (len(data) - 1))
    data[at : at + len(junk)] = junk[: len(data) - at]
    examiner = segment_repair.Examiner()
    first, last = rows[0].seq, rows[-1].seq + rows[-1].count - 1
    findings = examiner.examine(bytes(data), identity=(TOPIC, first, last))
    remade = oracle.Parts(examiner.remade("data") + bytes(data[128:]), examiner.remade("index"), examiner.remade("tags"))

    view = view_of(remade)
    corrupt = [told == ((view.entry(first + k)[0], HOLE | oracle.CORRUPT << 8), None) for k, told in enumerate(served(view))]
    for told, wanted, lost in zip(served(view), good, corrupt, strict=True):
        assert lost or told == wanted or (isinstance(wanted, tuple) and isinstance(told, tuple) and wanted[1] and told[1][0] == wanted[1][0])
    assert sum(corrupt) >= findings.corrupt_seqs
    again = examiner.examine(remade.data, remade.index, remade.tags)
    assert (again.index_status, again.tags_status) == (OK, OK)


def test_a_frame_of_another_topic_never_passes() -> None:
    mine, other = oracle.build(TOPIC, MIXED), oracle.build(TOPIC + 1, MIXED)
    with pytest.raises(SegmentError) as wrong:
        SegmentView(mine.index, other.data)
    assert wrong.value.status == MISMATCH
    stale = mine.data[:128] + other.data[128:]
    view = SegmentView(mine.index, stale, mine.tags)
    assert [view.check(seq, 1)[0] for seq in (10, 11, 17, 18)] == [BAD_FRAME] * 4


@pytest.mark.parametrize("kind", ["data", "index", "tags"])
def test_a_newer_format_is_refused(kind: str) -> None:
    def newer(raw: bytearray) -> None:
        raw[8] = 2
        raw[120:128] = oracle.xxh3(bytes(raw[:120])).to_bytes(8, "little")

    parts = damaged(oracle.build(TOPIC, MIXED), kind, newer)
    with pytest.raises(SegmentError) as wrong:
        view_of(parts)
    assert wrong.value.status == NEWER
    with pytest.raises(SegmentError):
        segment.header_of(getattr(parts, kind), kind)


def test_a_pack_with_a_flipped_bit_in_header_or_directory_is_told() -> None:
    raw = oracle.build_pack(3, [(7, MIXED), (8, MIXED)])
    directory = len(raw) - 64 - 2 * 64
    for at in [*range(64), *range(directory, len(raw))]:
        changed = bytearray(raw)
        changed[at] ^= 4
        with pytest.raises(SegmentError):
            segment_pack.pack_number(changed)
            segment_pack.pack_directory(changed)
    for length in range(len(raw)):
        with pytest.raises(SegmentError):
            segment_pack.pack_directory(raw[:length])


def test_folders_are_made_level_by_level(tmp_path: Path) -> None:
    segment_build.make_folder(tmp_path, "topics/0a/7")
    segment_build.make_folder(tmp_path, "topics/0a/7")
    assert (tmp_path / "topics" / "0a" / "7").is_dir()
    (tmp_path / "topics" / "file").write_text("")
    with pytest.raises(OSError):
        segment_build.make_folder(tmp_path, "topics/file/x")
