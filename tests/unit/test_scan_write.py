"""Bodies of writes: what they mean, what is refused with which field, and how a batch is encoded (A §2, D §1.2)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from bodies.requests import REFUSED_WRITES, WRITES
from fakes.guarded import Guarded
from oracle import json_oracle
from topicsd._native import frame, scan

GUARDED = Guarded(2 << 20)
PATHS = {"widest": 0, "portable": 1, "narrow": 2}


@pytest.fixture(params=["widest", "portable", "narrow"], autouse=True)
def path(request: pytest.FixtureRequest) -> Iterator[None]:
    before = scan.use_path(PATHS[request.param])
    yield
    scan.use_path(before)


def refusal(body: bytes, limits: scan.Limits | None = None) -> scan.BadRequest:
    with pytest.raises(scan.BadRequest) as refused:
        scan.parse_write(GUARDED.lay(body), limits)
    return refused.value


def stored(body: bytes, header_key: bytes | None = None) -> list[frame.Record]:
    write = scan.parse_write(body)
    key, records = frame.parse_body(write.encode(header_key), write.count, with_key=bool(write.key or header_key))
    assert key == (write.key or header_key)
    return records


def compare_with_oracle(body: bytes) -> None:
    """A write without complaints: every member that it has, record by record, as the oracle understands it."""
    wanted = json_oracle.write(json_oracle.load(body))
    write = scan.parse_write(GUARDED.lay(body))
    encoded = write.encode()
    key, records = frame.parse_body(encoded, write.count, with_key=write.key is not None)

    assert len(encoded) == write.encoded_bytes
    assert (key, write.key, write.create, write.disable_backpressure) == (wanted.key, wanted.key, wanted.create, wanted.disable_backpressure)
    assert (None if write.config is None else json_oracle.load(write.config)) == wanted.config
    assert write.count == len(records) == len(wanted.records)
    for record, expected in zip(records, wanted.records, strict=True):
        assert record.data in body and record.data == record.data.strip()
        assert json_oracle.load(record.data) == expected["data"]
        assert (None if record.meta is None else json_oracle.load(record.meta)) == expected["meta"]
        assert (record.tag, record.node) == (expected["tag"], expected["node"])
        assert (record.delay_ms, record.priority) == (expected["delay_ms"], expected["priority"])
    assert write.payload_bytes == sum(len(part or b"") for record in records for part in record[:4])


@pytest.mark.parametrize("body", WRITES, ids=lambda body: repr(body[:60]))
def test_a_good_write_means_what_the_oracle_says(body: bytes) -> None:
    assert not list(json_oracle.write_complaints(json_oracle.load(body), json_oracle.Limits()))
    compare_with_oracle(body)


@pytest.mark.parametrize("body", [body for body in WRITES if len(body) < 1000], ids=lambda body: repr(body[:60]))
def test_a_good_write_cut_anywhere_is_refused_where_it_breaks_off(body: bytes) -> None:
    for cut in range(len(body.rstrip())):
        assert refusal(body[:cut]).detail == {"offset": cut}


@pytest.mark.parametrize(("body", "code", "field"), REFUSED_WRITES, ids=lambda value: repr(value)[:60])
def test_a_bad_write_is_refused_with_its_code_and_field(body: bytes, code: str, field: str) -> None:
    refused = refusal(body)

    assert (refused.code, refused.detail["field"]) == (code, field)
    assert refused.message == str(refused) and (field or "body") in refused.message


@pytest.mark.parametrize("body", [body for body, _, _ in REFUSED_WRITES if len(body) < 1000], ids=lambda body: repr(body[:60]))
def test_a_json_error_wins_over_every_field_error_before_it(body: bytes) -> None:
    assert refusal(body + b"x").detail == {"offset": len(body)}
    for cut in range(len(body)):
        assert refusal(body[:cut]).detail.get("offset", cut) == cut  # `null` and a string may be whole before their end


def test_messages_say_what_was_found_and_what_is_allowed() -> None:
    assert str(refusal(b'{"records":[{"data":1},{"data":1,"tag":"' + b"t" * 300 + b'"}]}')) == "records[1].tag: 300 bytes, at most 256"
    assert str(refusal(b'{"records":[{"data":1,"node":5}]}')) == "records[0].node: must be a string"
    assert str(refusal(b'{"records":[1}')) == "invalid JSON at byte 13: unexpected '}'"
    assert refusal(b'{"records":[{"data":1}],"idempotency_key":"' + b"k" * 257 + b'"}').detail == {"field": "idempotency_key", "limit": 256}


def test_data_and_meta_are_kept_byte_for_byte_without_the_spaces_around_them() -> None:
    data, meta = b'{ "b":1.0,\n"a" : [1e400,-0 , "\\u00E9\\/\xc3\xa9"] , "b":2 }', b'{"z" : "\\u0041",\t"a":""}'

    [record] = stored(b'{"records":[{"data": ' + data + b' \n, "meta":\t' + meta + b" }]}")

    assert (record.data, record.meta) == (data, meta)


def test_tags_and_nodes_that_are_equal_strings_are_stored_as_equal_bytes() -> None:
    tags = [b"a\xc3\xa9/\\n", b"\\u0061\\u00e9\\/\\u000A", b"a\\u00E9/\\n"]
    records = stored(b'{"records":[%s]}' % b",".join(b'{"data":1,"tag":"%s","node":"%s"}' % (tag, tag) for tag in tags))

    assert {(record.tag, record.node) for record in records} == {(b"a\xc3\xa9/\\n", b"a\xc3\xa9/\\n")}


def test_a_record_s_own_node_wins_over_the_batch_s_wherever_that_stands() -> None:
    records = b'"records":[{"data":1},{"data":2,"node":"own"},{"data":3,"node":""},{"data":4,"node":null}]'
    for body in (b'{"node":"b\\u0061tch",' + records + b"}", b"{" + records + b',"node":"batch"}'):
        assert [record.node for record in stored(body)] == [b"batch", b"own", b"", b"batch"]


def test_limits_count_the_decoded_string_and_the_last_allowed_passes() -> None:
    small = scan.Limits(
        max_records=2, max_record_bytes=20, max_meta_bytes=12, max_meta_keys=1, max_tag_bytes=3, max_node_bytes=2, max_key_chars=2, max_depth=5
    )
    good = [
        b'{"records":[{"data":1},{"data":2}]}',
        b'{"records":[{"data":"' + b"x" * 18 + b'"}]}',
        b'{"records":[{"data":12345678,"meta":{"k":"vvvv"}}]}',
        '{"records":[{"data":1,"tag":"漢","node":"é"}]}'.encode(),
        b'{"records":[{"data":1,"tag":"\\u6f22","node":"\\u00e9"}]}',
        '{"records":[{"data":1}],"idempotency_key":"漢😀"}'.encode(),
        b'{"records":[{"data":[[1]]}]}',
    ]
    bad = [
        (b'{"records":[{"data":1},{"data":2},{"data":3}]}', "batch_too_large", {"field": "records", "limit": 2}),
        (b'{"records":[{"data":"' + b"x" * 19 + b'"}]}', "record_too_large", {"field": "records[0]", "limit": 20}),
        (b'{"records":[{"data":"' + b"x" * 8 + b'","meta":{"k":"vvvv"}}]}', "record_too_large", {"field": "records[0]", "limit": 20}),
        (b'{"records":[{"data":1,"meta":{"k":"vvvvvvv"}}]}', "invalid_request", {"field": "records[0].meta", "limit": 12}),
        (b'{"records":[{"data":1,"meta":{"":"","k":""}}]}', "invalid_request", {"field": "records[0].meta", "limit": 1}),
        ('{"records":[{"data":1,"tag":"漢a"}]}'.encode(), "invalid_request", {"field": "records[0].tag", "limit": 3}),
        (b'{"records":[{"data":1,"node":"\\u00e9a"}]}', "invalid_request", {"field": "records[0].node", "limit": 2}),
        (b'{"records":[{"data":1}],"idempotency_key":"abc"}', "invalid_request", {"field": "idempotency_key", "limit": 2}),
        (b'{"records":[{"data":[[[1]]]}]}', "invalid_request", {"offset": 22}),
    ]
    for body in good:
        scan.parse_write(body, small)
    for body, code, detail in bad:
        refused = refusal(body, small)
        assert (refused.code, refused.detail) == (code, detail), body


def test_depth_counts_the_envelope_too() -> None:
    for depth, body in ((1, b"{}"), (2, b'{"records":[]}'), (3, b'{"records":[{}]}'), (4, b'{"records":[{"meta":{}}]}')):
        assert "field" in refusal(body, scan.Limits(max_depth=depth)).detail
        assert "offset" in refusal(body, scan.Limits(max_depth=depth - 1)).detail


def test_the_key_stands_before_the_records_with_their_hash_and_the_body_s_wins() -> None:
    bare = scan.parse_write(b'{"records":[{"data":1}]}')
    own = scan.parse_write(b'{"records":[{"data":1}],"idempotency_key":"\\u0062\\n"}')

    assert bare.key is None and own.key == b"b\\n"
    for write, header, key in ((bare, b"header", b"header"), (own, b"header", b"b\\n"), (own, None, b"b\\n")):
        parsed = frame.parse(frame.build(2, write.encode(header), flags=1, count=1))
        assert parsed.key == key
        assert parsed.records_xxh3 == xxhash.xxh3_64_intdigest(bare.encode())
    assert bare.encode(b"") == bare.encode()


def test_a_header_key_is_the_same_key_as_in_a_body() -> None:
    for text in ("k", 'a"b\\c\n\x1fé漢😀', "k" * 256):
        body = json.dumps({"records": [{"data": 1}], "idempotency_key": text}).encode()
        assert scan.header_key(text) == scan.parse_write(body).key
    for text in ("", "k" * 257):
        with pytest.raises(scan.BadRequest, match="idempotency_key"):
            scan.header_key(text)


def test_many_members_that_we_do_not_know_are_compared_without_a_quadratic_cost() -> None:
    members = [b'"%d":0' % n for n in range(60_000)]
    body = b'{"records":[{"data":1,' + b",".join(members) + b"}]}"

    assert scan.parse_write(body).count == 1
    assert refusal(body.replace(b'"59999":', b'"7":')).detail == {"field": "records[0].7"}
    assert refusal(b'{"records":[{"data":1,' + b",".join(b'"%d":0' % n for n in range(65_537)) + b"}]}").detail["limit"] == 65_536


def test_the_body_lives_as_long_as_the_write() -> None:
    body = bytearray(b'{"records":[{"data":"abc"}]}')
    write = scan.parse_write(body)
    with pytest.raises(BufferError):
        body.clear()

    assert b'"abc"' in write.encode()
    del write
    body.clear()


def test_padding_is_zero_and_entries_are_aligned() -> None:
    for length in range(20):
        write = scan.parse_write(b'{"records":[{"data":"%s"},{"data":1}]}' % (b"\xc3\xbf" * length))
        encoded = write.encode()
        assert len(encoded) % 8 == 0
        assert frame.append_body(frame.parse_body(encoded, 2)[1]) == encoded


labels = st.none() | st.text(max_size=6) | st.sampled_from(["t" * 256, "é" * 64, "n" * 129, 7, ["a"], {}])
metas = st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.sampled_from([1, None]), max_size=3) | st.sampled_from([[], "m"])
json_values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3), max_leaves=5)
numbers = st.none() | st.sampled_from([0, 1, -1, 1000, -1001, 2**64 - 1, 2**64, 1.0, True, "1"])
flags = st.none() | st.booleans() | st.sampled_from([0, "true"])


def members(
    required: dict[str, st.SearchStrategy[object]], optional: dict[str, st.SearchStrategy[object]]
) -> st.SearchStrategy[list[tuple[str, object]]]:
    """Members in any order, now and then one of them twice."""
    plain = st.fixed_dictionaries(required, optional=optional).flatmap(lambda chosen: st.permutations(list(chosen.items())))
    return st.tuples(plain, st.integers(0, 40)).map(lambda drawn: drawn[0] + drawn[0][:1] if drawn[1] == 0 else drawn[0])


records = members(
    {"data": json_values}, {"tag": labels, "node": labels, "meta": metas, "delay_ms": numbers, "priority": numbers, "other": json_values}
) | st.sampled_from([7, [], [("tag", "no data")]])
writes = members(
    {"records": st.lists(records, max_size=4)},
    {
        "node": labels,
        "idempotency_key": labels,
        "create": flags,
        "disable_backpressure": flags,
        "config": metas,
        "other": json_values,
    },
)


def render(value: object, ascii_only: bool, space: str) -> str:
    """Write JSON; a list of pairs is an object."""
    if isinstance(value, list) and value and all(isinstance(pair, tuple) for pair in value):
        inside = f",{space}".join(f"{json.dumps(name)}{space}:{space}{render(member, ascii_only, space)}" for name, member in value)
        return "{" + space + inside + space + "}"
    if isinstance(value, list):
        return "[" + space + f"{space},".join(render(item, ascii_only, space) for item in value) + "]"
    return json.dumps(value, ensure_ascii=ascii_only)


@given(writes, st.booleans(), st.sampled_from(["", " ", "\n\t "]))
def test_any_write_is_taken_or_refused_as_the_oracle_says(write: object, ascii_only: bool, space: str) -> None:
    body = render(write, ascii_only, space).encode("utf-8", "replace")
    complaints = set(json_oracle.write_complaints(json_oracle.load(body), json_oracle.Limits()))

    if complaints:
        refused = refusal(body)
        assert (refused.code, refused.detail["field"]) in {(code, field.encode("utf-8", "replace").decode()) for code, field in complaints}
    else:
        compare_with_oracle(body)


@given(writes, st.data())
def test_a_changed_write_is_never_more_than_refused(write: object, data: st.DataObject) -> None:
    body = bytearray(render(write, False, "").encode("utf-8", "replace"))
    at = data.draw(st.integers(0, len(body)))
    body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    valid = json_oracle.is_valid(bytes(body))
    try:
        scan.parse_write(GUARDED.lay(bytes(body)))
    except scan.BadRequest as refused:
        assert ("offset" in refused.detail) == (not valid)
    else:
        assert valid and not list(json_oracle.write_complaints(json_oracle.load(bytes(body)), json_oracle.Limits()))


@pytest.mark.parametrize("records", [1, 2, 3, 7, 30, 200, 1500])
@pytest.mark.parametrize("size", [0, 5, 100, 300, 1100, 9000])
def test_the_hash_that_is_taken_while_a_body_is_encoded_is_that_of_all_of_it(records: int, size: int) -> None:
    if records * size > 1 << 20:
        records = (1 << 20) // size
    write = scan.parse_write(json.dumps({"records": [{"data": "x" * (size + n % 9)} for n in range(records)]}).encode())
    for key in (None, b"key"):
        encoded, value = write.encode_hashed(key)
        assert value == xxhash.xxh3_64_intdigest(encoded)


@pytest.mark.parametrize("pad", range(0, 1100, 8))
def test_the_hash_is_right_at_every_end_of_its_blocks(pad: int) -> None:
    write = scan.parse_write(json.dumps({"records": [{"data": "x" * 500}, {"data": "y" * (9000 + pad)}]}).encode())
    encoded, value = write.encode_hashed()
    assert value == xxhash.xxh3_64_intdigest(encoded)
