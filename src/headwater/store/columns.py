"""How a view's values are kept: Arrow columns to plain database values, and back to what JSON can carry.

Every kept value is text, integer, real or null, and sorts as the value does:

- timestamps are UTC text of fixed width (`2026-11-15T20:30:00.000000Z`),
- binary is base64 text, decimals and nested values (a window, an array) are JSON text,
- NaN is the text `NaN`, because SQLite would turn it into null.

Column types go by Spark's names (`string`, `double`, `struct<...>`), since that is where they come from.
"""

import base64
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import InvalidError

Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a view: its name and its type in Spark's words."""

    name: str
    type: str


def encode_column(values: pa.ChunkedArray) -> list[Value]:
    """Turn an Arrow column into values that a database keeps without loss and in order."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        return _timestamps(values)
    if pa.types.is_floating(kind):
        return [_real(v) for v in values.to_pylist()]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return [None if v is None else base64.b64encode(v).decode() for v in values.to_pylist()]
    if pa.types.is_boolean(kind):
        return [None if v is None else int(v) for v in values.to_pylist()]
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return values.to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_decimal(kind) or pa.types.is_date(kind):
        return [None if v is None else str(v) for v in values.to_pylist()]
    if pa.types.is_struct(kind):
        return _structs(values)
    return [None if v is None else _json(v) for v in values.to_pylist()]


def decode_value(column: Column, value: Value) -> Any:
    """Give a kept value back as JSON can carry it: numbers, text, lists and objects."""
    if value is None:
        return None
    if column.type == "boolean":
        return bool(value)
    if column.type.startswith(("struct", "array", "map")):
        return json.loads(str(value))
    return value


def parse_value(column: Column, text: str) -> Value:
    """Read a value that a person typed (a command line, an address) as the column keeps it."""
    try:
        if column.type in ("tinyint", "smallint", "int", "bigint"):
            return int(text)
        if column.type in ("float", "double"):
            return float(text)
        if column.type == "boolean":
            return {"false": 0, "true": 1}[text.lower()]
    except (ValueError, KeyError):
        raise InvalidError(f"cannot look up {column.name} = {text!r}: the column is {column.type}") from None
    return text


def _real(value: float | None) -> float | str | None:
    return "NaN" if value is not None and math.isnan(value) else value


def _timestamps(values: pa.ChunkedArray) -> list[Value]:
    zone = "Z" if values.type.tz is not None else ""
    micros = values.cast(pa.timestamp("us", tz=values.type.tz and "UTC"))
    return pc.strftime(micros, format="%Y-%m-%dT%H:%M:%S" + zone).to_pylist()  # type: ignore[no-any-return]


def _structs(values: pa.ChunkedArray) -> list[Value]:
    """Encode each field as a column would be, so that a window sorts by its start."""
    array = values.combine_chunks()
    names = [field.name for field in values.type]
    fields = [encode_column(pa.chunked_array([array.field(i)])) for i in range(len(names))]
    rows = zip(*fields, strict=True) if fields else iter(() for _ in range(len(array)))
    valid = array.is_valid().to_pylist()
    return [_json(dict(zip(names, row, strict=True))) if ok else None for ok, row in zip(valid, rows, strict=True)]


def _json(value: Any) -> str:
    return json.dumps(value, default=_json_leaf, separators=(",", ":"), ensure_ascii=False)


_LEAVES: dict[type, Callable[[Any], Any]] = {bytes: lambda v: base64.b64encode(v).decode()}


def _json_leaf(value: Any) -> Any:
    return _LEAVES.get(type(value), str)(value)
