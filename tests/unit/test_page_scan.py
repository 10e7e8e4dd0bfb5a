"""Pages of diff into record batches, beside Python's own reading of the JSON."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topicsd._native.page_scan import PageError, PageScanner

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
AROUND = {"next_from_seq": 9, "head_seq": 9, "earliest_seq": 1, "caught_up": True, "tombstone": None, "lag": 0, "epoch": 7}


def page(records: list[str], **around: Any) -> bytes:
    return ('{"topic":"a","records":[' + ",".join(records) + "]," + json.dumps(AROUND | around)[1:]).encode()


def rows(body: bytes, last_seq: int = 2**53, rows_max: int = 65536, **rest: Any) -> list[dict[str, Any]]:
    scanner = PageScanner(rows_max=rows_max)
    scanner.open_page(b"a", body)
    batches = []
    while scanner.fill_page(last_seq, **rest):
        batches.append(pyarrow.record_batch(scanner.take()))
    batches.append(pyarrow.record_batch(scanner.take()))
    assert all(batch.num_rows <= rows_max for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def decoded(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def record(draw: st.DrawFn, seq: int) -> tuple[str, dict[str, Any]]:
    ascii_only = draw(st.booleans())
    data = json.dumps(draw(VALUES), ensure_ascii=ascii_only, indent=draw(st.none() | st.integers(0, 2)))
    data = data if ascii_only else data.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    members = [f'"$seq":{seq}', f'"$ts":{1000 + seq}', f'"data":{data}', '"new":{"data":[1,"$seq"]}']
    wanted = {"seq": seq, "ts": EPOCH + timedelta(milliseconds=1000 + seq), "data": data, "node": None, "tag": None, "meta": None}
    for name in ("node", "tag"):
        value = draw(st.none() | st.text(max_size=8))
        if value is not None:
            members.append(f'"${name}":{json.dumps(value)}')
            wanted[name] = decoded(value)
    meta = draw(st.none() | st.dictionaries(st.text(max_size=4), st.text(max_size=6), max_size=4))
    if meta is not None:
        members.append(f'"meta":{json.dumps(meta)}')
        wanted["meta"] = {decoded(k): decoded(v) for k, v in meta.items()}
    members = draw(st.permutations(members))
    return "{" + draw(st.sampled_from([",", " ,\n "])).join(members) + "}", wanted


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_every_record_of_a_page_is_a_row_with_its_data_byte_for_byte(data: st.DataObject) -> None:
    made = [data.draw(record(seq)) for seq in range(1, data.draw(st.integers(0, 6)) + 1)]
    found = rows(page([text for text, _ in made]), rows_max=data.draw(st.integers(1, 4)))
    for row, (_, wanted) in zip(found, made, strict=True):
        got = {name: row[name] for name in wanted}
        got["meta"] = None if got["meta"] is None else dict(got["meta"])
        assert got == wanted
        assert (row["topic"], row["_kind"], row["seq_end"], row["_err"], row["_raw"]) == ("a", "record", None, None, None)


def test_what_stands_around_the_records_comes_back_without_them() -> None:
    scanner = PageScanner(["seq"])
    around = json.loads(scanner.open_page(b"a", page(['{"$seq":1,"$ts":2,"data":"records"}'], lag=5)))
    assert around == {"topic": "a", "records": [], **AROUND, "lag": 5}


def test_rows_end_at_the_last_seq_and_at_the_bounds_of_time() -> None:
    body = page([f'{{"$seq":{seq},"$ts":{seq * 10},"data":null}}' for seq in range(1, 10)])
    assert [row["seq"] for row in rows(body, last_seq=4)] == [1, 2, 3, 4]
    assert [row["seq"] for row in rows(body, since=30, until=60)] == [3, 4, 5]
    assert rows(body, last_seq=1)[0]["data"] == "null"


def test_seqs_near_two_to_the_53_keep_their_digits() -> None:
    assert [row["seq"] for row in rows(page([f'{{"$seq":{2**53 - 1},"$ts":1,"data":1}}']))] == [2**53 - 1]


def test_an_answer_that_breaks_off_anywhere_is_refused() -> None:
    body = page(['{"$seq":1,"$ts":2,"$tag":"é\\u00e9","meta":{"a":"b"},"data":[1,{"x":"y"}]}'])
    for end in range(len(body)):
        with pytest.raises(PageError):
            rows(body[:end])


@pytest.mark.parametrize(
    "body",
    [
        b"[]", b"{}", b'{"records":{}}', b'{"records":[1]}', b'{"records":[{}]}', b'{"records":[{"$seq":1,"$ts":1}]}', b'{"records":[]} x',
        b'{"records":[{"$seq":-1,"$ts":1,"data":1}]}', b'{"records":[{"$seq":1.5,"$ts":1,"data":1}]}',
        b'{"records":[{"$seq":1,"$ts":1,"data":"\xff"}]}',
        b'{"records":[{"$seq":"1","$ts":1,"data":1}]}', b'{"records":[{"$seq":1,"$ts":1,"$tag":5,"data":1}]}',
        b'{"records":[{"$seq":1,"$ts":1,"meta":[],"data":1}]}', b'{"records":[{"$seq":99999999999999999999,"$ts":1,"data":1}]}',
    ],
)  # fmt: skip
def test_what_is_no_page_is_refused(body: bytes) -> None:
    with pytest.raises(PageError):
        rows(body)
