"""The values of views: from Arrow columns to database values, and back to values that JSON can represent.

Every stored value is text, integer, real or null:

- timestamps are UTC text of fixed width (`2026-11-15T20:30:00.000000Z`), so that they sort by time,
- decimals are text with all digits, and binary is base64 text,
- nested values (a window, an array) are JSON text, their parts by the same rules; a window sorts by its start,
- NaN is the text `NaN`, because SQLite would store null.

Column types have Spark's names (`string`, `double`, `struct<...>`), because Spark computes the rows.
"""

import base64
import json
import math
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa

from headwater.errors import InvalidError
from headwater.json_values import finite, json_part, json_text, time_text, time_texts
from headwater.store.values.column_types import Column, struct_fields

Value = str | int | float | None

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_INTEGER_MAX = 2**63 - 1


def encode_column(values: pa.ChunkedArray) -> list[Value]:
    """Convert an Arrow column to database values without loss."""
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
        if pa.types.is_struct(kind) and (windows := _windows(values)) is not None:
            return windows
        part = json_part(kind)
        return [None if v is None else json_text(part(v)) for v in values.to_pylist()]
    return [None if v is None else json_part(kind)(v) for v in values.to_pylist()]


def decode_value(column: Column, value: Value) -> Any:
    """Convert a stored value to one that JSON can represent: finite numbers, text, lists and objects."""
    if isinstance(value, float):
        return finite(value)
    if value is not None and column.type == "boolean":
        return bool(value)
    if value is not None and column.type.startswith(("struct", "array", "map")):
        return json.loads(str(value))
    return value


def parse_value(column: Column, text: str) -> Value:
    """Parse a value from a command line or an address into the stored form of the column."""
    return literal(column.name, column.type, text)


def literal(name: str, kind: str, value: Any) -> Value:
    """Convert a value to the stored form, to compare a column with it; text is parsed as a person would write it.

    A decimal becomes a number, because decimals are compared as numbers (`statements.expression`).
    """
    try:
        return None if value is None else _literal(kind, value)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise InvalidError(f"cannot look up {name} = {value!r}: the column is {kind}") from None


def _literal(kind: str, value: Any) -> Value:
    if kind in _INTEGERS:
        return _integer(value)
    if kind in ("float", "double") or kind.startswith("decimal"):
        number = float(value)
        return "NaN" if math.isnan(number) else number
    if kind == "boolean":
        return int(value) if isinstance(value, bool) else {"false": 0, "true": 1}[value.lower()]
    if kind == "timestamp":
        time = datetime.fromisoformat(value) if isinstance(value, str) else value
        return time_text(time.astimezone(UTC))
    if kind == "timestamp_ntz":
        time = datetime.fromisoformat(value) if isinstance(value, str) else value
        return time_text(time.replace(tzinfo=None))
    if kind == "date":
        return (date.fromisoformat(value) if isinstance(value, str) else value).isoformat()
    if kind == "binary" and isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if kind.startswith(("struct", "array", "map")):
        return json_text(_nested(kind, json.loads(value) if isinstance(value, str) else value))
    if not isinstance(value, str):
        raise TypeError
    return value


def _nested(kind: str, value: Any) -> Any:
    """Return a nested value with its fields in the stored order and form."""
    fields = struct_fields(kind)
    if value is None or not fields:
        return _plain(kind, value)
    unknown = value.keys() - fields
    if unknown:
        raise ValueError(unknown)
    return {name: _nested(field, value[name]) for name, field in fields.items()}


def _plain(kind: str, value: Any) -> Any:
    if value is None or kind.startswith(("array", "map", "decimal", "boolean")):
        return value
    stored = _literal(kind, value)
    return finite(stored) if isinstance(stored, float) else stored


def instant_text(micros: int) -> str:
    """Format microseconds since 1970 as timestamps appear in views."""
    return time_text(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros))


def _timestamps(values: pa.ChunkedArray) -> list[Value]:
    return time_texts(values).to_pylist()  # type: ignore[no-any-return]


def _windows(values: pa.ChunkedArray) -> list[Value] | None:
    """Encode structs of times, such as windows, all at once; None if there are others, or nulls."""
    import pyarrow.compute as pc

    fields = list(values.type)
    if not fields or not all(pa.types.is_timestamp(field.type) for field in fields) or values.null_count:
        return None
    parts: list[Any] = []
    for number, field in enumerate(fields):
        times = pc.struct_field(values, [number])
        if times.null_count:
            return None
        parts += [f'{"," if parts else "{"}{json_text(field.name)}:"', time_texts(times), '"']
    return pc.binary_join_element_wise(*parts, "}", "").to_pylist()  # type: ignore[no-any-return]


def _integer(given: str | int) -> int:
    if not isinstance(given, str | int) or isinstance(given, bool):
        raise TypeError
    value = int(given)
    if abs(value) > _INTEGER_MAX:
        raise ValueError
    return value
