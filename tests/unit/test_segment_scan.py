"""Scanning segments into Arrow record batches: the rows that the format page promises, and what damage makes of them."""

import json
import os
import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import topicsd
from oracle import segment_oracle as oracle
from oracle.scan_oracle import scanned
from oracle.segment_oracle import DELETED, HOLE, Row
from topicsd._native import frame, segment
from topicsd._native.segment import SegmentView
from topicsd._native.segment_build import Writer
from topicsd._native.segment_scan import COLUMN_NAMES, Scanner
from topicsd.lake.pieces import DamagedError, Piece, Reader
from topicsd.segments.names import Place, Spot

pyarrow = pytest.importorskip("pyarrow")
TOPIC_ID = 0x1234_5678_9ABC
GOLDEN = Path(__file__).parent.parent / "golden" / "segment-v1"
CHARACTERS = 'aZ"\\/\n\x01é€𝄞'


def canonical(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")[1:-1]


def entry(data: object, tag: str | None = None, node: str | None = None, meta: dict[str, str] | bytes | None = None) -> bytes:
    stored = meta if isinstance(meta, bytes) or meta is None else json.dumps(meta).encode()
    told = [None if text is None else canonical(text) for text in (tag, node)]
    return frame.entry(frame.Record(json.dumps(data).encode(), stored, told[0], told[1], 0, 0))


@st.composite
def rows_of(draw: st.DrawFn, size_max: int = 150) -> list[Row]:
    """Rows of a segment: records of every kind, deleted ones, holes."""
    seq, ts = draw(st.integers(1, 2**40)), draw(st.integers(0, 2**41))
    texts = [None, "", *draw(st.lists(st.text(CHARACTERS, max_size=12), min_size=1, max_size=5))]
    rng = random.Random(draw(st.integers(0, 2**32)))
    rows: list[Row] = []
    for _ in range(draw(st.integers(1, size_max))):
        ts += rng.choice([0, 0, 1, 1000])
        kind = rng.choice("rrrrrrdh")
        if kind == "r":
            data = rng.choice([None, True, 7, -1.5e300, "x" * rng.randrange(300), [1, {}], {"é": "𝄞"}])
            meta = rng.choice([None, {}, {str(rng.choice(texts)): str(rng.choice(texts)) for _ in range(rng.randrange(4))}])
            rows.append(Row(seq, ts, entry(data, rng.choice(texts), rng.choice(texts), meta)))
        elif kind == "d":
            rows.append(Row(seq, ts, None, DELETED))
        else:
            rows.append(Row(seq, ts, None, HOLE | rng.randrange(1, 7) << 8, rng.choice([1, 2, 300])))
        seq += rows[-1].count
    return rows


def scan_parts(parts: oracle.Parts, columns: tuple[str, ...] = COLUMN_NAMES, rows_max: int = 65536, **ranges: Any) -> list[dict[str, Any]]:
    scanner = Scanner(columns, rows_max=rows_max)
    scanner.open(b"t", parts.index, parts.data, **ranges)
    batches = []
    while scanner.fill():
        batches.append(pyarrow.record_batch(scanner.take()))
    batches.append(pyarrow.record_batch(scanner.take()))
    for batch in batches:
        batch.validate(full=True)
    assert all(batch.num_rows <= rows_max for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def write(folder: Path, rows: list[Row], topic_id: int = TOPIC_ID, edition: int = 0) -> Path:
    """A segment with files of its own below `folder`; the name of its data part."""
    below = folder / "topics" / f"{topic_id & 0xFF:02x}" / f"{topic_id:016x}"
    below.mkdir(parents=True, exist_ok=True)
    writer = Writer(below)
    writer.begin(topic_id, rows[0].seq, edition)
    for row in rows:
        writer.add(row.seq, row.ts, row.entry, row.flags, row.count)
    writer.finish()
    return below / (f"{rows[0].seq:020d}" + (f".{edition}" if edition else "") + ".data")


# ---- rows ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(rows=rows_of(), rows_max=st.sampled_from([1, 3, 7, 64, 1000]))
def test_a_scan_has_the_rows_that_plain_python_has(rows: list[Row], rows_max: int) -> None:
    assert scan_parts(oracle.build(TOPIC_ID, rows), rows_max=rows_max) == scanned("t", rows)


@settings(deadline=None, max_examples=60)
@given(rows=rows_of(), since=st.integers(-5, 3000), until=st.integers(-5, 3000), places=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_a_range_of_seqs_and_times_is_read_and_nothing_else(rows: list[Row], since: int, until: int, places: tuple[float, float]) -> None:
    seqs = [row[0] for row in oracle.expanded(rows)]
    first, last = (seqs[int(place * (len(seqs) - 1))] for place in places)
    asked = {"since": max(rows[0].ts + since, 0), "until": max(rows[0].ts + until, 0)}
    found = scan_parts(oracle.build(TOPIC_ID, rows), first_seq=first, last_seq=last, **asked)
    assert found == scanned("t", rows, first=first, last=last, **asked)


@settings(deadline=None, max_examples=40)
@given(rows=rows_of(), columns=st.lists(st.sampled_from(COLUMN_NAMES), min_size=1, unique=True))
def test_the_columns_come_in_the_order_they_are_asked_for(rows: list[Row], columns: list[str]) -> None:
    found = scan_parts(oracle.build(TOPIC_ID, rows), tuple(columns))
    assert [list(row) for row in found] == [columns] * len(found)
    assert found == [{name: row[name] for name in columns} for row in scanned("t", rows)]


@settings(deadline=None, max_examples=40)
@given(rows=rows_of(), seed=st.integers(0, 2**32))
def test_records_that_were_deleted_after_they_were_sealed_leave_nothing(rows: list[Row], seed: int) -> None:
    parts = oracle.build(TOPIC_ID, rows)
    rng = random.Random(seed)
    gone = frozenset(row.seq for row in rows if row.entry is not None and rng.random() < 0.4)
    data, view = bytearray(parts.data), SegmentView(parts.index, parts.data)
    for seq in gone:
        data[view.flag_offset(seq)] = 0xD5
    assert scan_parts(oracle.Parts(bytes(data), parts.index, parts.tags)) == scanned("t", rows, deleted=gone)


def test_the_types_are_exactly_those_that_spark_wants() -> None:
    text, number = pyarrow.string(), pyarrow.int64()
    wanted = [
        ("topic", text), ("seq", number), ("ts", pyarrow.timestamp("us", "UTC")), ("node", text), ("tag", text), ("meta", pyarrow.map_(text, text)),
        ("data", text), ("_kind", text), ("seq_end", number), ("_err", text), ("_raw", pyarrow.binary()),
    ]  # fmt: skip
    assert Reader().schema == pyarrow.schema(wanted)


def test_a_lone_surrogate_becomes_the_replacement_character_and_data_stays_as_sent() -> None:
    raw = frame.entry(frame.Record(b'"\\ud800"', b'{"\\udc00":"\\ud83d\\ude00\\ud83d"}', b"a\\udfffb", b"\\ud800", 0, 0))
    found = scan_parts(oracle.build(TOPIC_ID, [Row(1, 1, raw)]))[0]
    assert (found["data"], found["tag"], found["node"]) == ('"\\ud800"', "a\ufffdb", "\ufffd")
    assert found["meta"] == [("\ufffd", "😀\ufffd")]


def test_a_name_that_stands_twice_in_meta_counts_as_it_stands_last() -> None:
    twice = entry(1, meta=b'{"a":"1", "b":"two" ,"a":"threefold","\\u0061":"4","c":""}')
    found = scan_parts(oracle.build(TOPIC_ID, [Row(1, 1, entry(0, meta={"x": "y"})), Row(2, 1, twice), Row(3, 1, entry(0, meta={"p": "q"}))]))
    assert [row["meta"] for row in found] == [[("x", "y")], [("b", "two"), ("a", "4"), ("c", "")], [("p", "q")]]


def test_texts_of_every_length_come_out_whole_wherever_an_escape_stands_in_them() -> None:
    texts: list[str | None] = [None]
    for length in range(36):
        plain = "".join(chr(97 + at % 26) for at in range(length))
        texts += [plain, *(plain[:at] + sign + plain[at + 1 :] for at in range(length) for sign in '\\"')]
    rows = [Row(1 + k, 5, entry(0, tag=one, node=texts[-1 - k], meta={one or "": texts[-1 - k] or "", "": one or ""})) for k, one in enumerate(texts)]
    assert scan_parts(oracle.build(TOPIC_ID, rows)) == scanned("t", rows)


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b'{ "a":"1"}',
        b'{"a" :"1"}',
        b'{"a": "1"}',
        b'{"a":"1" }',
        b'{"a":"1","b":2}',
        b'{"a":{"b":[1]},"c":"d"}',
        b'{"":""}',
        b'{"a":"","a":"2"}',
    ],
)
def test_a_meta_is_read_however_it_is_spaced_and_whatever_its_values_are(raw: bytes) -> None:
    rows = [Row(1, 5, entry(0, meta=b'{"x":"y","z":"w"}')), Row(2, 5, entry(0, meta=raw)), Row(3, 5, entry(0, meta=b'{"x":"y"}'))]
    found = [row["meta"] for row in scan_parts(oracle.build(TOPIC_ID, rows))]
    meant = [(name, value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))) for name, value in json.loads(raw).items()]
    assert found == [[("x", "y"), ("z", "w")], meant, [("x", "y")]]


def test_topics_that_take_turns_keep_their_rows_in_one_batch_and_in_the_next() -> None:
    """A name may be empty or long, and a topic may have no rows; a batch knows nothing of the one before it."""
    scanner = Scanner(("topic", "seq", "tag"), rows_max=1000)
    for turn in range(2):
        wanted = []
        for name, count in (("a", 3), ("", 2), ("é" * 400, 17), ("gone", 0), ("a", 1), ("b", 900 if turn else 1)):
            rows = [Row(1 + k, 5, entry(k, tag="t" if k % 2 else None)) for k in range(count)] or [Row(1, 5, None, DELETED)]
            parts = oracle.build(1, rows)
            scanner.open(name.encode(), parts.index, parts.data)
            assert not scanner.fill()
            wanted += [{"topic": name, "seq": 1 + k, "tag": "t" if k % 2 else None} for k in range(count)]
        scanner.add_range(b"lost", "gap", 7, 9, "cap")
        batch = pyarrow.record_batch(scanner.take())
        batch.validate(full=True)
        assert batch.to_pylist() == [*wanted, {"topic": "lost", "seq": 7, "tag": None}]


def test_the_largest_seq_and_time_and_a_record_of_eight_mebibytes_come_out_whole() -> None:
    big, last = "x" * (8 << 20), 2**53 - 1
    found = scan_parts(oracle.build(TOPIC_ID, [Row(last - 1, 0, entry(big)), Row(last, 253402300799999, entry(2))]))
    assert [len(found[0]["data"]), found[1]["seq"]] == [len(big) + 2, last]
    assert found[1]["ts"] == datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)


def test_small_segments_share_a_batch_and_a_large_one_is_cut_by_its_bytes() -> None:
    scanner = Scanner(rows_max=1000, bytes_max=10_000)
    for number in range(20):
        parts = oracle.build(number + 1, [Row(1, 5, entry(number))])
        scanner.open(b"t%d" % number, parts.index, parts.data)
        assert not scanner.fill()
    assert pyarrow.record_batch(scanner.take())["topic"].to_pylist() == [f"t{number}" for number in range(20)]
    parts = oracle.build(1, [Row(1 + k, 5, entry("x" * 997)) for k in range(100)])
    scanner.open(b"t", parts.index, parts.data)
    rows = []
    while scanner.fill():
        rows.append(scanner.take().rows)
    assert rows == [10] * 9 and scanner.rows == 10


def test_a_batch_can_be_taken_by_one_alone() -> None:
    batch = Scanner().take()
    assert pyarrow.record_batch(batch).num_rows == 0
    with pytest.raises(ValueError, match="taken already"):
        pyarrow.record_batch(batch)


@pytest.mark.parametrize("columns", [("topic", "topic"), ("Topic",)])
def test_columns_that_do_not_exist_or_come_twice_are_refused(columns: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="columns are some of"):
        Scanner(columns)


# ---- damage -----------------------------------------------------------------------------------------------------------------------

ROWS = [Row(10 + k, 100 + k, entry({"k": k}, tag=f"t{k % 3}")) for k in range(200)]


def place_in(folder: Path, parts: oracle.Parts) -> Place:
    spots = []
    for kind, raw in (("data", parts.data), ("idx", parts.index), ("tag", parts.tags)):
        (folder / f"x.{kind}").write_bytes(raw)
        spots.append(Spot(folder / f"x.{kind}"))
    return Place(*spots, TOPIC_ID, 10, 209)


def rows_of_piece(place: Place, **options: Any) -> list[dict[str, Any]]:
    reader = Reader(**options)
    return [row for batch in reader.read([Piece("t", 10, 209, place)]) for row in batch.to_pylist()]


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(place=st.floats(0, 0.999999), bit=st.integers(0, 7), part=st.sampled_from(["data", "index"]))
def test_a_flipped_bit_never_makes_a_wrong_row(tmp_path_factory: pytest.TempPathFactory, place: float, bit: int, part: str) -> None:
    parts = oracle.build(TOPIC_ID, ROWS)
    raw = bytearray(getattr(parts, part))
    raw[int(place * len(raw))] ^= 1 << bit
    setattr(parts, part, bytes(raw))
    found = rows_of_piece(place_in(tmp_path_factory.mktemp("flip"), parts), on_corrupt="row")

    wanted = {row["seq"]: row for row in scanned("t", ROWS)}
    lost = [row for row in found if row["_kind"] == "corrupt"]
    for row in found:
        assert row["_kind"] == "corrupt" or row == wanted.pop(row["seq"])
    assert len(lost) <= 1 and set(wanted) == {row["seq"] for row in lost}
    if part == "index":
        assert not lost  # the data tells as much


def damaged(parts: oracle.Parts, seq: int) -> oracle.Parts:
    data = bytearray(parts.data)
    data[SegmentView(parts.index, parts.data).flag_offset(seq) - 20] ^= 1
    return oracle.Parts(bytes(data), parts.index, parts.tags)


def test_damage_fails_and_names_the_seq_unless_rows_are_wanted(tmp_path: Path) -> None:
    place = place_in(tmp_path, damaged(oracle.build(TOPIC_ID, ROWS), 77))
    with pytest.raises(DamagedError, match="topic t, seqs 77 to 77") as wrong:
        rows_of_piece(place)
    assert (wrong.value.first_seq, wrong.value.last_seq) == (77, 77)
    row = next(row for row in rows_of_piece(place, on_corrupt="row") if row["_kind"] == "corrupt")
    assert (row["seq"], row["seq_end"], row["_err"], row["data"]) == (77, 77, "damaged frame", None)
    assert b'"k": 67' in row["_raw"] or b"t1" in row["_raw"]


def test_a_segment_cut_short_gives_what_is_before_the_cut(tmp_path: Path) -> None:
    parts = oracle.build(TOPIC_ID, ROWS)
    parts.data = parts.data[: len(parts.data) // 2]
    found = rows_of_piece(place_in(tmp_path, parts), on_corrupt="row")
    whole = [row for row in found if row["_kind"] == "record"]
    assert 90 <= len(whole) <= 105 and whole == scanned("t", ROWS)[: len(whole)]
    assert [row["seq"] for row in found] == list(range(10, 210))


@pytest.mark.parametrize("missing", ["x.data", "x.idx"])
def test_a_missing_file_is_told_or_made_up_for(tmp_path: Path, missing: str) -> None:
    place = place_in(tmp_path, oracle.build(TOPIC_ID, ROWS))
    (tmp_path / missing).unlink()
    if missing == "x.idx":
        assert rows_of_piece(place) == scanned("t", ROWS)
        return
    with pytest.raises(DamagedError, match=r"seqs 10 to 209: .*x\.data is missing"):
        rows_of_piece(place)
    (row,) = rows_of_piece(place, on_corrupt="row")
    assert (row["_kind"], row["seq"], row["seq_end"], row["ts"]) == ("corrupt", 10, 209, None)


@pytest.mark.parametrize("first_seq", [10, 60])
def test_what_a_missing_file_takes_begins_where_its_piece_does_whatever_was_read_before(tmp_path: Path, first_seq: int) -> None:
    (tmp_path / "a").mkdir()
    before = place_in(tmp_path / "a", oracle.build(TOPIC_ID, ROWS))
    place = place_in(tmp_path, oracle.build(TOPIC_ID, ROWS))
    for name in ("x.data", "x.idx"):
        (tmp_path / name).unlink()
    pieces = [Piece("a", 10, 209, before), Piece("t", first_seq, 209, place)]
    (row,) = [row for batch in Reader(on_corrupt="row").read(pieces) for row in batch.to_pylist() if row["_kind"] != "record"]
    assert (row["topic"], row["seq"], row["seq_end"]) == ("t", first_seq, 209)
    with pytest.raises(DamagedError, match=rf"topic t, seqs {first_seq} to 209: .* is missing"):
        list(Reader().read(pieces))


@pytest.mark.parametrize("size", [0, 1, 8, 127, 128, 129])
@pytest.mark.parametrize("kinds", [("data",), ("data", "idx"), ("data", "idx", "tag")])
def test_a_file_cut_inside_of_its_header_is_damage_and_no_error_of_the_system(tmp_path: Path, size: int, kinds: tuple[str, ...]) -> None:
    place = place_in(tmp_path, oracle.build(TOPIC_ID, ROWS))
    for kind in kinds:
        os.truncate(tmp_path / f"x.{kind}", size)
    with pytest.raises(DamagedError, match=r"topic t, seqs 10 to"):
        rows_of_piece(place)
    found = rows_of_piece(place, on_corrupt="row")
    assert {row["_kind"] for row in found} <= {"corrupt", "gap"}
    assert [seq for row in found for seq in range(row["seq"], (row["seq_end"] or row["seq"]) + 1)] == list(range(10, 210))


def test_without_index_a_damaged_record_is_still_told(tmp_path: Path) -> None:
    place = place_in(tmp_path, damaged(oracle.build(TOPIC_ID, ROWS), 77))
    place.index.path.unlink()
    with pytest.raises(DamagedError, match="seqs 77 to 77"):
        rows_of_piece(place)
    found = rows_of_piece(place, on_corrupt="row")
    assert [row["seq"] for row in found if row["_kind"] == "corrupt"] == [77] and len(found) == 200


def test_a_newer_format_is_refused_and_not_called_damage(tmp_path: Path) -> None:
    parts = oracle.build(TOPIC_ID, ROWS)
    front = bytearray(parts.index[:128])
    front[8] = 2
    front[120:] = oracle.xxh3(bytes(front[:120])).to_bytes(8, "little")
    parts.index = bytes(front) + parts.index[128:]
    with pytest.raises(segment.SegmentError, match="newer format"):
        rows_of_piece(place_in(tmp_path, parts), on_corrupt="row")


# ---- topicsd.scan ---------------------------------------------------------------------------------------------------------------------


def test_a_directory_is_scanned_topic_by_topic_and_the_later_edition_counts(tmp_path: Path) -> None:
    other = [Row(1, 7, entry("other"))]
    write(tmp_path, ROWS[:100])
    write(tmp_path, [Row(row.seq, row.ts, None, DELETED) if row.seq % 2 else row for row in ROWS[:100]], edition=3)
    write(tmp_path, ROWS[100:])
    write(tmp_path, other, topic_id=5)

    found = topicsd.scan(tmp_path).read_all().to_pylist()

    name = f"{TOPIC_ID:016x}"
    assert found == scanned(f"{5:016x}", other) + [row for row in scanned(name, ROWS) if row["seq"] >= 110 or row["seq"] % 2 == 0]
    assert topicsd.scan(tmp_path, topics="0000000000000*", columns=["seq"]).read_all().num_rows == 1
    ms = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=295)
    assert topicsd.scan(tmp_path, ["seq"], [name], since=ms, until=298).read_all()["seq"].to_pylist() == [205, 206, 207]


def test_a_time_without_a_zone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="time zone"):
        topicsd.scan(tmp_path, since=datetime(2026, 1, 1))


def test_the_golden_segments_and_packs_scan_as_they_did(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "data")
    found = topicsd.scan(tmp_path / "data", on_corrupt="row").read_all().to_pylist()
    assert {row["_kind"] for row in found} <= {"record", "gap"}
    records = {(int(row["topic"], 16), row["seq"]) for row in found if row["_kind"] == "record"}
    assert records == golden_live() and records
    assert {row["seq"]: row["meta"] for row in found if row["topic"] == f"{9:016x}"}[5] == [("m", "1")]


def golden_live() -> set[tuple[int, int]]:
    out, topic_id = set(), 0
    for row in map(json.loads, (GOLDEN / "expected.jsonl").read_text().splitlines()):
        topic_id = row.get("topic_id", topic_id)
        if "deleted" in row and not row["deleted"]:
            out.add((topic_id, row["seq"]))
    return out


def test_calls_are_per_batch_and_not_per_record(tmp_path: Path) -> None:
    import sys

    rows = [Row(1 + k, 5, entry(k)) for k in range(5000)]
    write(tmp_path, rows)

    def calls(read: Callable[[], object]) -> int:
        count = 0

        def note(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(note)
        try:
            read()
        finally:
            sys.setprofile(None)
        return count

    topicsd.scan(tmp_path).read_all()
    assert calls(lambda: topicsd.scan(tmp_path, rows_max=1000).read_all()) < 1500
