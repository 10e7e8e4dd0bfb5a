"""Writing rows from tasks that die, are tried again, and see their rows in another order: none is lost, none is there twice."""

import contextlib
import datetime
import decimal
import json
import math
import random
import struct
from collections import Counter
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topicsd.lake.server import NotFoundError
from topicsd.spark import options
from topicsd.spark.rows import _texts, check_names, of_first_tasks, rows
from topicsd.spark.send import Row, Sender, SinkError, body


class Death(Exception):
    """The task's."""


class FakeServer:
    """Topics with idempotency keys, as A §0.8 has them; dies before or after a write when told to."""

    def __init__(self, window_ms: int = 10**9) -> None:
        self.topics: dict[str, list[dict[str, Any]]] = {}
        self.keys: dict[tuple[str, str], tuple[bytes, int, int]] = {}
        self.window_ms, self.gone = window_ms, 0
        self.dies_at: int | None = None
        self.answers = True
        self.calls = 0

    def state(self, topic: str) -> dict[str, Any]:
        if topic not in self.topics:
            raise NotFoundError("404", 404)
        return {"config": {"idempotency_window_ms": self.window_ms}}

    def append(self, topic: str, raw: bytes) -> dict[str, Any]:
        self.calls += 1
        if self.calls == self.dies_at and not self.answers:
            raise Death
        told = json.loads(raw)
        known = self.keys.get((topic, told["idempotency_key"]))
        log = self.topics.setdefault(topic, [])
        if known is None:
            known = self.keys[topic, told["idempotency_key"]] = (raw, len(log) + 1, len(log) + len(told["records"]))
            log += told["records"]
            out = {"deduped": False, "first_seq": known[1], "last_seq": known[2]}
        else:
            out = {"deduped": True, "first_seq": known[1], "last_seq": known[2]} | ({"body_differs": True} if known[0] != raw else {})
        if self.calls == self.dies_at:
            raise Death
        return out

    def diff(self, topic: str, from_seq: int, *, epoch: int | None = None) -> bytes:
        records = []
        for seq, one in enumerate(self.topics[topic], 1):
            if from_seq < seq <= from_seq + 3 and seq > self.gone:
                renamed = {f"${name}": one[name] for name in ("tag", "node") if name in one}
                records.append({"$seq": seq, "$ts": 5, "data": one["data"], **renamed} | ({"meta": one["meta"]} if "meta" in one else {}))
        return json.dumps({"records": records, "next_from_seq": min(from_seq + 3, len(self.topics[topic]))}, separators=(",", ":")).encode()


def attempt(server: FakeServer, made: list[tuple[str, Row]], size: int, dies_at: int | None = None, answers: bool = True) -> None:
    server.calls, server.dies_at, server.answers = 0, dies_at, answers
    sender = Sender(server, "q:1:0", chunk_records=size, chunk_bytes=400)  # type: ignore[arg-type]
    for topic, row in made:
        sender.add(topic, row)
    assert sender.finish().records == len(made)


def there(server: FakeServer) -> Counter[str]:
    return Counter(f"{topic} {json.dumps(one, sort_keys=True)}" for topic, log in server.topics.items() for one in log)


def wanted(made: list[tuple[str, Row]]) -> Counter[str]:
    return Counter(f"{topic} {json.dumps(json.loads(body('', [row], 0))['records'][0], sort_keys=True)}" for topic, row in made)


@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 2**32))
def test_tasks_that_die_and_see_their_rows_in_another_order_write_each_row_once(seed: int) -> None:
    rng = random.Random(seed)
    server, size = FakeServer(), rng.randrange(1, 7)
    made: list[tuple[str, Row]] = []
    for _ in range(rng.randrange(0, 40)):
        meta = rng.choice([None, (("k", "v"), ("é", '"')), ()])
        data = json.dumps(rng.randrange(6)).encode() if rng.random() < 0.8 else b'"' + b"x" * rng.randrange(300) + b'"'
        made.append((rng.choice("ab"), (data, rng.choice([None, "t", "ü"]), rng.choice([None, "n"]), meta)))
    for _ in range(rng.randrange(0, 5)):
        if rng.random() < 0.7:
            rng.shuffle(made)
        with contextlib.suppress(Death):
            attempt(server, made, size, rng.randrange(1, 12), rng.random() < 0.5)
    if rng.random() < 0.7:
        rng.shuffle(made)
    attempt(server, made, size)
    assert there(server) == wanted(made)
    attempt(server, made, size)
    assert there(server) == wanted(made)


def test_rows_that_an_earlier_try_wrote_and_are_gone_fail_the_task_rather_than_being_written_twice() -> None:
    server = FakeServer()
    made: list[tuple[str, Row]] = [("a", (b"%d" % n, None, None, None)) for n in range(6)]
    attempt(server, made, 3)
    server.gone = 2
    attempt(server, made, 3)  # the same bodies: nothing has to be read
    with pytest.raises(SinkError, match="seqs 1 to 3 were written by an earlier try"):
        attempt(server, made[::-1], 3)


def test_a_query_that_gives_other_rows_each_time_is_told() -> None:
    server = FakeServer()
    attempt(server, [("a", (b"1", None, None, None)), ("a", (b"2", None, None, None))], 9)
    with pytest.raises(SinkError, match="wrote 1 records that this one does not have"):
        attempt(server, [("a", (b"2", None, None, None)), ("a", (b"3", None, None, None))], 9)


@pytest.mark.parametrize("size", [2, 5, 100])
@pytest.mark.parametrize("kept", [range(5, 15), range(9, 19), range(20, 30), range(1, 40), range(0)])
def test_a_task_that_does_not_have_all_rows_of_an_earlier_try_writes_none_of_its_own(kept: range, size: int) -> None:
    server = FakeServer()
    attempt(server, numbered(range(10)), size)
    with contextlib.suppress(SinkError) if not kept else pytest.raises(SinkError, match="that this one does not have"):
        attempt(server, numbered(kept), size)
    assert there(server) == wanted(numbered(range(10)))


@pytest.mark.parametrize("size", [2, 5, 100])
def test_rows_that_came_besides_are_written_once(size: int) -> None:
    server = FakeServer()
    attempt(server, numbered(range(10)), size)
    attempt(server, numbered(range(30)), size)
    attempt(server, numbered(range(-20, 30)), size)
    assert there(server) == wanted(numbered(range(-20, 30)))


def numbered(numbers: range) -> list[tuple[str, Row]]:
    return [("a", (b"%d" % n, None, None, None)) for n in numbers]


def test_a_partition_behind_those_that_may_write_has_no_rows() -> None:
    batch, empty = pyarrow.record_batch({"data": ["1"]}), pyarrow.record_batch({"data": pyarrow.array([], pyarrow.string())})
    assert list(of_first_tasks(iter([batch, batch]), 0, 1, "no")) == [batch, batch]
    assert list(of_first_tasks(iter([batch]), 3, 4, "no")) == [batch]
    assert list(of_first_tasks(iter([empty]), 3, 1, "no")) == [empty]
    with pytest.raises(SinkError, match="partition 3 has rows: coalesce it"):
        list(of_first_tasks(iter([empty, batch]), 3, 3, "coalesce it"))


def test_a_topic_that_forgets_keys_too_early_is_refused_and_a_new_one_gets_the_window() -> None:
    server = FakeServer(window_ms=1000)
    sender = Sender(server, "k", window_ms=5000)  # type: ignore[arg-type]
    sender.add("new", (b"1", None, None, None))
    sender.finish()
    raw, _, _ = server.keys["new", "k:1"]
    assert json.loads(raw)["config"] == {"idempotency_window_ms": 5000}
    with pytest.raises(SinkError, match="topic new forgets idempotency keys after 1000 ms"):
        Sender(server, "l", window_ms=5000).add("new", (b"1", None, None, None))  # type: ignore[arg-type]


# ---- rows -----------------------------------------------------------------------------------------------------------------------------


def data_of(*values: Any, kind: pyarrow.DataType | None = None) -> list[str]:
    batch = pyarrow.record_batch({"data": pyarrow.array(values, kind)})
    return [row[0].decode() for _, row in rows(batch, "t", 1)]


def test_text_is_taken_byte_for_byte() -> None:
    texts = ['{"a": 1.0,  "b":1e400}', " [1]\n", '"\\ud800"', "18446744073709551616", "null", '"é"']
    assert data_of(*texts) == texts
    assert data_of(None, "1") == ["null", "1"]


@pytest.mark.parametrize("bad", ["{", '1},{"data":2', "NaN", "", " ", "'a'", '"\x01"', "1 2", "[" * 126 + "]" * 126])
def test_bad_json_is_named_by_column_and_row(bad: str) -> None:
    batch = pyarrow.record_batch({"data": ["1", "2", bad, "3"]})
    with pytest.raises(SinkError, match=r"column data, row 13: not JSON at byte \d+"):
        list(rows(batch, "t", 11))
    with pytest.raises(SinkError, match="row 12"):
        list(rows(batch.slice(1), "t", 11))


@given(
    st.lists(st.none() | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
)
def test_what_python_calls_json_passes(values: list[Any]) -> None:
    assert [json.loads(text) for text in data_of(*map(json.dumps, values), kind=pyarrow.string())] == values


def test_structs_maps_and_lists_become_json() -> None:
    kind = pyarrow.struct(
        [
            ("i", pyarrow.int64()), ("d", pyarrow.decimal128(38, 3)), ("t", pyarrow.timestamp("us", "UTC")),
            ("m", pyarrow.map_(pyarrow.int32(), pyarrow.string())),
            ("l", pyarrow.list_(pyarrow.float64())), ("b", pyarrow.binary()), ('q"', pyarrow.bool_()), ("day", pyarrow.date32()),
        ]
    )  # fmt: skip
    value = {
        "i": 2**60, "d": decimal.Decimal("12345678901234567890123456789.125"), "t": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        "m": [(1, "a"), (2, None)],
        "l": [0.1, 1e300, None], "b": b"\0", 'q"': True, "day": datetime.date(2026, 1, 2),
    }  # fmt: skip
    (text, nothing) = data_of(value, None, kind=kind)
    assert text == (
        '{"i":1152921504606846976,"d":12345678901234567890123456789.125,"t":"2026-01-02T00:00:00+00:00","m":{"1":"a","2":null},'
        '"l":[0.1,1e+300,null],"b":"AA==","q\\"":true,"day":"2026-01-02"}'
    )
    assert nothing == "null" and json.loads(text)
    with pytest.raises(SinkError, match="column data, row 2: nan has no JSON"):
        data_of([1.0], [float("nan")], kind=pyarrow.list_(pyarrow.float64()))


def test_single_floats_are_as_short_as_they_are() -> None:
    assert data_of(1.1, 1e30, None, kind=pyarrow.float32()) == ["1.1", "1e+30", "null"]
    with pytest.raises(SinkError, match="column data, row 2: nan has no JSON"):
        data_of(1.0, float("nan"), kind=pyarrow.float32())


def test_a_time_that_python_does_not_have_is_named_by_column_and_row() -> None:
    with pytest.raises(SinkError, match="column data, row 2: "):
        data_of(0, 253402300800000000, kind=pyarrow.timestamp("us", "UTC"))


class Months(list[None]):
    """A column of intervals of months, as pyarrow has them: it can not make a scalar of one."""

    type = pyarrow.month_day_nano_interval()

    def __getitem__(self, number: Any) -> Any:
        raise NotImplementedError("Wrapping scalar of type month_interval")


def test_a_type_that_pyarrow_does_not_have_is_named_by_column_and_row() -> None:
    with pytest.raises(SinkError, match=r"column data, row 7: .*month_interval"):
        _texts(Months([None]), 7)  # type: ignore[arg-type]


def test_variants_become_json_wherever_they_are() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    variant = pyarrow.struct([pyarrow.field("value", pyarrow.binary()), pyarrow.field("metadata", pyarrow.binary(), metadata={"variant": "true"})])

    def made(text: str) -> dict[str, bytes]:
        one = types.VariantVal.parseJson(text)
        return {"value": one.value, "metadata": one.metadata}

    one = made('{"a":[1,"NaN"]}')
    text = '{"a":[1,"NaN"]}'
    assert data_of(one, None, kind=variant) == [text, "null"]
    assert data_of({"id": 1, "v": one}, kind=pyarrow.struct([("id", pyarrow.int64()), ("v", variant)])) == [f'{{"id":1,"v":{text}}}']
    assert data_of([one, None], kind=pyarrow.list_(variant)) == [f"[{text},null]"]
    assert data_of([("k", one)], kind=pyarrow.map_(pyarrow.string(), variant)) == [f'{{"k":{text}}}']
    for digits in ("12345678901234567890123456789", "9" * 38, "0.1000000000000000055511151231257827", "-1.0000000000000000000000000000000000001"):
        assert data_of(made(digits), kind=variant) == [digits]
        assert data_of({"v": made(digits)}, kind=pyarrow.struct([("v", variant)])) == [f'{{"v":{digits}}}']
    nan = {"value": bytes([7 << 2]) + struct.pack("<d", math.nan), "metadata": one["metadata"]}  # of a double: the header, eight bytes
    with pytest.raises(SinkError, match=r"column data, row 2: .*no JSON"):
        data_of(one, nan, kind=variant)


@pytest.mark.parametrize("name", ["tag", "node", "topic"])
def test_a_column_of_text_that_is_none_is_named(name: str) -> None:
    with pytest.raises(SinkError, match=f"column {name} is text, not int64"):
        list(rows(pyarrow.record_batch({"data": ["1"], name: [1]}), None if name == "topic" else "t", 1))


def test_tags_nodes_metas_and_topics_come_from_columns() -> None:
    batch = pyarrow.record_batch(
        {
            "topic": ["a", "b"], "data": ["1", "2"], "tag": ["t", None], "node": [None, "n"],
            "meta": pyarrow.array([[("k", "v")], None], pyarrow.map_(pyarrow.string(), pyarrow.string())),
        }
    )  # fmt: skip
    assert list(rows(batch, None, 1)) == [("a", (b"1", "t", None, (("k", "v"),))), ("b", (b"2", None, "n", None))]
    with pytest.raises(SinkError, match="column topic, row 1"):
        list(rows(pyarrow.record_batch({"topic": pyarrow.array([None], pyarrow.string()), "data": ["1"]}), None, 1))


@pytest.mark.parametrize(("names", "topic", "words"), [
    (["data", "seq"], "t", "not seq"), (["tag"], "t", "has none"), (["data"], None, "one of them"), (["data", "topic"], "t", "one of them"),
])  # fmt: skip
def test_a_frame_that_can_not_be_written_is_refused(names: list[str], topic: str | None, words: str) -> None:
    with pytest.raises(SinkError, match=words):
        check_names(names, topic)


def test_options_of_the_sink_are_read_and_wrong_ones_named() -> None:
    found = options.parse_sink({"URL": "http://x", "topic": "t", "replayWindow": "2h", "maxRetries": "0"})
    assert (found.window_ms, found.retries, found.chunk_records, found.topic) == (7_200_000, 0, 5000, "t")
    assert options.parse_sink({"url": "http://x"}).window_ms == 7 * 86_400_000
    for wrong, words in (
        ({"path": "/x"}, "live server"),
        ({"url": "http://x", "replayWindow": "long"}, "replayWindow is"),
        *(({"url": "http://x", "replayWindow": window}, "^replayWindow is") for window in ("0", "0d", "-1", "", "9" * 30, "9" * 5000)),
        *(({"url": "http://x", "topic": name}, "^topic is") for name in ("", "a b", "a*", "-a", "ä", "a" * 256)),
        ({"url": "http://x", "maxretries": "-1"}, "^maxRetries is"),
        ({"url": "u", "topics": "t"}, "no option topics"),
    ):
        with pytest.raises(options.OptionError, match=words):
            options.parse_sink(wrong)
