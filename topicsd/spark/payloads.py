"""`data` parsed into a column `payload` of a given type, many records at a time; what does not fit is set apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topicsd.spark.tables import TableError

if TYPE_CHECKING:
    import pyarrow

INFER_ROWS = 10_000
SCALARS = {
    "string": "string", "boolean": "bool_", "int": "int32", "integer": "int32", "bigint": "int64", "long": "int64", "double": "float64",
    "float": "float64",
}  # fmt: skip


def load(path: Path) -> Any:
    """The payload's type as a file says: `{"delay": "bigint", "tags": ["string"], "geometry": {"type": "string"}}`. Raises TableError."""
    try:
        told = json.loads(path.read_bytes())
        if not isinstance(told, dict):
            raise TypeError("it is an object of names and types")
        return _type(told)
    except (ValueError, TypeError, KeyError) as wrong:
        raise TableError(f"{path}: not a schema of a payload: {wrong}") from None


def _type(told: Any) -> Any:
    import pyarrow

    if isinstance(told, dict):
        return pyarrow.struct([(name, _type(one)) for name, one in told.items()])
    if isinstance(told, list):
        return pyarrow.list_(_type(told[0]))
    if told not in SCALARS:
        raise ValueError(f"{told} is none of {', '.join(SCALARS)}")
    return getattr(pyarrow, SCALARS[told])()


def infer(rows: pyarrow.Table) -> Any:
    """The type that fits the first records, None when they are no objects that agree. A time stays text."""
    import pyarrow
    from pyarrow import json as reader

    datas = rows["data"].slice(0, INFER_ROWS)
    try:
        found = reader.read_json(pyarrow.BufferReader(_lines(datas)), reader.ReadOptions(block_size=1 << 28)).schema
    except pyarrow.ArrowInvalid:
        return None
    return _plain(pyarrow.struct(list(found)))


def _plain(kind: Any) -> Any:
    import pyarrow

    if pyarrow.types.is_struct(kind):
        return pyarrow.struct([(kind.field(n).name, _plain(kind.field(n).type)) for n in range(kind.num_fields)])
    if pyarrow.types.is_list(kind):
        return pyarrow.list_(_plain(kind.value_type))
    if pyarrow.types.is_null(kind) or pyarrow.types.is_temporal(kind):
        return pyarrow.string()
    return kind


def parse(records: pyarrow.Table, rest: pyarrow.Table, kind: Any) -> tuple[pyarrow.Table, pyarrow.Table]:
    """Records with a column payload, and `rest` with those that do not fit, whose `_err` says why."""
    import pyarrow

    fits, bad = [], []
    for first, count, found in _parsed(records["data"], 0, records.num_rows, kind):
        part = records.slice(first, count)
        if isinstance(found, str):
            part = part.drop_columns(["_kind", "_err"]).append_column("_kind", pyarrow.repeat("bad", count))
            bad.append(part.append_column("_err", pyarrow.repeat(found, count)).select(rest.column_names))
        else:
            fits.append(part.append_column("payload", found))
    whole = pyarrow.concat_tables(fits) if fits else records.slice(0, 0).append_column("payload", pyarrow.nulls(0, kind))
    return whole, pyarrow.concat_tables([rest, *bad]) if bad else rest


def _lines(datas: Any) -> bytes:
    return b"\n".join(text.encode().replace(b"\n", b" ").replace(b"\r", b" ") for text in datas.to_pylist())


def _parsed(datas: Any, first: int, count: int, kind: Any) -> Iterator[tuple[int, int, Any]]:
    """(first, count, the parsed column or what is wrong): halves of what does not fit are tried again."""
    import pyarrow
    from pyarrow import json as reader

    if count == 0:
        return
    schema = pyarrow.schema([("payload", kind)])
    text = b"\n".join(b'{"payload":' + line + b"}" for line in _lines(datas.slice(first, count)).split(b"\n"))
    try:
        options = reader.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        found = reader.read_json(pyarrow.BufferReader(text), reader.ReadOptions(block_size=max(len(text) + 1, 1 << 20)), options)
        if found.num_rows != count:
            raise pyarrow.ArrowInvalid(f"{found.num_rows} rows of {count}")
    except pyarrow.ArrowInvalid as wrong:
        if count == 1:
            yield first, 1, str(wrong).partition("\n")[0][:200]
            return
        half = count // 2
        yield from _parsed(datas, first, half, kind)
        yield from _parsed(datas, first + half, count - half, kind)
    else:
        yield first, count, found["payload"]
