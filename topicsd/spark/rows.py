"""Columns of a data frame as rows for the sink: `data` as JSON text from a string, struct, array, map, number or VARIANT. Nothing here needs Spark,
but VARIANT."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from topicsd._native.json_column import first_wrong
from topicsd.spark.send import Row, SinkError

if TYPE_CHECKING:
    import pyarrow

VARIANT_DIGITS = 80  # of a product of two numbers of 38
COLUMNS = ("topic", "data", "tag", "node", "meta")


def check_names(names: Sequence[str], topic: str | None) -> None:
    """Refuse a frame that can not be written. Raises SinkError."""
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise SinkError(f"format topicsd writes the columns {', '.join(COLUMNS)}: select these, not {', '.join(unknown)}")
    if "data" not in names:
        raise SinkError("format topicsd writes the column data, and the frame has none")
    if (topic is None) == ("topic" not in names):
        raise SinkError("the topic is named by the option topic or by a column topic: by one of them")


def rows(batch: pyarrow.RecordBatch, topic: str | None, first: int) -> Iterator[tuple[str, Row]]:
    """(topic, row) of each row. first: the number of the batch's first row, for errors. Raises SinkError that names column and row."""
    import pyarrow

    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    datas = _texts(columns["data"], first)
    empty = pyarrow.nulls(batch.num_rows).to_pylist()
    for name in ("tag", "node", "topic"):
        kind = columns[name].type if name in columns else pyarrow.null()
        if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind) or pyarrow.types.is_null(kind)):
            raise SinkError(f"column {name} is text, not {kind}: cast it")
    tags, nodes, topics = (columns[name].to_pylist() if name in columns else empty for name in ("tag", "node", "topic"))
    metas = _metas(columns["meta"], first) if "meta" in columns else empty
    for number, (data, tag, node, meta, own) in enumerate(zip(datas, tags, nodes, metas, topics, strict=True)):
        name = topic if topic is not None else own
        if not name:
            raise SinkError(f"column topic, row {first + number}: it is null or empty")
        yield name, (data, tag, node, meta)


def of_first_tasks(batches: Iterator[pyarrow.RecordBatch], partition: int, count: int, refusal: str) -> Iterator[pyarrow.RecordBatch]:
    """The batches of a task, of which `count` may write under keys that come again. Raises SinkError where a partition behind them has rows.

    A task's keys are its own, and no task knows how many there are: were the rows cut another way the next time, some would go out again.
    """
    for batch in batches:
        if partition >= count and batch.num_rows:
            raise SinkError(f"partition {partition} has rows: {refusal}")
        yield batch


def _metas(column: pyarrow.Array, first: int) -> list[tuple[tuple[str, str], ...] | None]:
    out: list[tuple[tuple[str, str], ...] | None] = []
    for number, meta in enumerate(column.to_pylist()):
        if meta is not None and any(value is None for _, value in meta):
            raise SinkError(f"column meta, row {first + number}: a value is null; meta is a map of strings")
        out.append(None if meta is None else tuple(meta))
    return out


# ---- data ----------------------------------------------------------------------------------------------------------------------


def _texts(column: pyarrow.Array, first: int) -> list[bytes]:
    import pyarrow

    kind = column.type
    if pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind):
        return _checked(column.cast(pyarrow.string()), first)
    convert = _converter(kind)
    out = []
    for number in range(len(column)):
        try:
            out.append(convert(column[number].as_py()).encode())
        except (ArithmeticError, LookupError, NotImplementedError, TypeError, ValueError) as wrong:  # years past 9999 are an OverflowError
            raise SinkError(f"column data, row {first + number}: {str(wrong) or type(wrong).__name__}") from None
    return out


def _checked(column: pyarrow.Array, first: int) -> list[bytes]:
    _, offsets, data = column.buffers()
    plain = [None if buffer is None else memoryview(buffer).cast("B") for buffer in (offsets, data)]
    wrong = first_wrong(plain[0] or b"", plain[1], column.offset, len(column)) if len(column) else None
    if wrong is not None:
        text = column[wrong[0]].as_py()
        raise SinkError(f"column data, row {first + wrong[0]}: not JSON at byte {wrong[1]}: {text[:80]!r}")
    out = []
    for number, text in enumerate(column.to_pylist()):
        if text == "":
            raise SinkError(f"column data, row {first + number}: not JSON at byte 0: it is empty")
        out.append(b"null" if text is None else text.encode())
    return out


def _converter(kind: pyarrow.DataType) -> Callable[[Any], str]:
    """What makes JSON text of a type's values. Times are ISO 8601, in UTC; binary is base64; a map is an object whose names are its keys as text."""
    import pyarrow

    types = pyarrow.types
    if types.is_struct(kind):
        if any((kind.field(n).metadata or {}).get(b"variant") == b"true" for n in range(kind.num_fields)):
            return _or_null(_variant)
        inner = [(kind.field(n).name, _string(kind.field(n).name), _converter(kind.field(n).type)) for n in range(kind.num_fields)]
        return _or_null(lambda value: "{" + ",".join(f"{text}:{convert(value[name])}" for name, text, convert in inner) + "}")
    if types.is_map(kind):
        key, item = _converter(kind.key_type), _converter(kind.item_type)
        return _or_null(lambda value: "{" + ",".join(f"{_name(key(name))}:{item(one)}" for name, one in value) + "}")
    if types.is_list(kind) or types.is_large_list(kind):
        convert = _converter(kind.value_type)
        return _or_null(lambda value: "[" + ",".join(map(convert, value)) + "]")
    if types.is_float32(kind):
        return _or_null(_short)
    return _or_null(_plain)


def _variant(value: dict[str, bytes]) -> str:
    from pyspark.sql.types import VariantVal

    with decimal.localcontext() as context:  # pyspark reckons with its numbers: 28 digits of 38 would be left
        context.prec = VARIANT_DIGITS
        text = str(VariantVal(value["value"], value["metadata"]).toJson())
    if "nan" in text.lower() or "inf" in text.lower():  # as numbers, or in a string
        try:
            json.loads(text, parse_constant=_no_json)
        except ValueError:
            raise ValueError("a number of the VARIANT has no JSON: it is not finite") from None
    return text


def _no_json(name: str) -> None:
    raise ValueError(name)


def _short(value: float) -> str:
    import numpy

    return str(numpy.float32(value)) if math.isfinite(value) else _plain(value)


def _or_null(convert: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: "null" if value is None else convert(value)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _name(text: str) -> str:
    return text if text.startswith('"') else f'"{text}"'


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no JSON")
        return repr(value)
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    if isinstance(value, bytes):
        return _string(base64.b64encode(value).decode())
    if isinstance(value, datetime.datetime) and value.tzinfo:
        value = value.astimezone(datetime.UTC)
    if isinstance(value, datetime.date | datetime.time):
        return _string(value.isoformat())
    if isinstance(value, datetime.timedelta):
        return repr(value.total_seconds())
    return _string(str(value))
