"""How a view's values are kept: Arrow columns to plain database values, and back to what JSON can carry.

Every kept value is text, integer, real or null:

- timestamps are UTC text of fixed width (`2026-11-15T20:30:00.000000Z`), so that they sort as times do,
- decimals are text, to the last digit, and binary is base64 text,
- nested values (a window, an array) are JSON text, their parts by the same rules; a window sorts by its start,
- NaN is the text `NaN`, because SQLite would turn it into null.

Column types go by Spark's names (`string`, `double`, `struct<...>`), since that is where they come from.
"""

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import InvalidError
from headwater.jsonvalues import TIME_FORMAT, finite, json_part, json_text, time_text

Value = str | int | float | None

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_INTEGER_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a view: its name and its type in Spark's words."""

    name: str
    type: str


def encode_column(values: pa.ChunkedArray) -> list[Value]:
    """Turn an Arrow column into values that a database keeps without loss."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        return _timestamps(values)
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return values.to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_floating(kind):
        return ["NaN" if v is not None and math.isnan(v) else v for v in values.to_pylist()]
    if pa.types.is_boolean(kind):
        return [None if v is None else int(v) for v in values.to_pylist()]
    if pa.types.is_nested(kind):
        part = json_part(kind)
        return [None if v is None else json_text(part(v)) for v in values.to_pylist()]
    return [None if v is None else json_part(kind)(v) for v in values.to_pylist()]


def decode_value(column: Column, value: Value) -> Any:
    """Give a kept value back as JSON can carry it: finite numbers, text, lists and objects."""
    if isinstance(value, float) and math.isinf(value):
        return finite(value)
    if value is not None and column.type == "boolean":
        return bool(value)
    if value is not None and column.type.startswith(("struct", "array", "map")):
        return json.loads(str(value))
    return value


def parse_value(column: Column, text: str) -> Value:
    """Read a value that a person typed (a command line, an address) as the column keeps it."""
    try:
        if column.type in _INTEGERS:
            return _integer(text)
        if column.type in ("float", "double"):
            return "NaN" if math.isnan(float(text)) else float(text)
        if column.type == "boolean":
            return {"false": 0, "true": 1}[text.lower()]
        if column.type == "timestamp":
            return time_text(datetime.fromisoformat(text).astimezone(UTC))
    except (ValueError, KeyError):
        raise InvalidError(f"cannot look up {column.name} = {text!r}: the column is {column.type}") from None
    return text


def instant_text(micros: int) -> str:
    """A moment, in microseconds since 1970, as a view's rows write it."""
    return time_text(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros))


def sorting(column: Column) -> str:
    """The SQL expression by which a column's values sort as they should; `?` stands for the column."""
    return "cast(? as real)" if column.type.startswith("decimal") else "?"


def _timestamps(values: pa.ChunkedArray) -> list[Value]:
    zone = "Z" if values.type.tz is not None else ""
    micros = values.cast(pa.timestamp("us", tz=values.type.tz and "UTC"))
    return pc.strftime(micros, format=TIME_FORMAT + zone).to_pylist()  # type: ignore[no-any-return]


def _integer(text: str) -> int:
    value = int(text)
    if abs(value) > _INTEGER_MAX:
        raise ValueError
    return value
