"""The JSON encoding of values in views, sinks and subscriptions.

Timestamps are UTC text of fixed width (`2026-11-15T20:30:00.000000Z`), so that they sort by time. Decimals are
text with all digits, binary is base64 text, and NaN and the infinities, which JSON does not have, are text.
"""

import base64
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"
_FIRST_YEAR, _YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000


def json_part(kind: "pa.DataType") -> Callable[[Any], Any]:
    """Return a function that converts non-null values of a type for JSON."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        fields = {field.name: or_null(json_part(field.type)) for field in kind}
        return lambda value: {name: part(value[name]) for name, part in fields.items()}
    if pa.types.is_map(kind):
        key, item = json_part(kind.key_type), or_null(json_part(kind.item_type))
        return lambda pairs: {str(key(k)): item(v) for k, v in pairs}
    if pa.types.is_nested(kind):
        element = or_null(json_part(kind.value_type))
        return lambda values: [element(value) for value in values]
    if pa.types.is_timestamp(kind):
        return time_text
    if pa.types.is_floating(kind):
        return finite
    if pa.types.is_decimal(kind):
        return lambda value: f"{value:f}"  # `str` writes a small one with an exponent
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda value: base64.b64encode(value).decode()
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return lambda value: value
    return str


def or_null(part: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else part(value)


def time_text(value: datetime) -> str:
    # Not strftime: that writes the year 999 with three digits.
    if value.tzinfo is None:
        return value.isoformat(timespec="microseconds")
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def time_texts(values: "pa.ChunkedArray") -> "pa.ChunkedArray":
    """Convert a column of timestamps as `time_text` does."""
    import pyarrow as pa
    import pyarrow.compute as pc

    zone = "Z" if values.type.tz is not None else ""
    micros = values.cast(pa.timestamp("us", tz=values.type.tz))
    # With a time zone, even UTC, strftime looks up the zone for each value. Casts are 15 times as fast, but do not
    # support years of five digits.
    ends = pc.min_max(micros.cast(pa.int64())).as_py()
    if ends["min"] is not None and not _FIRST_YEAR <= ends["min"] <= ends["max"] < _YEAR_10000:
        return pc.strftime(values.cast(pa.timestamp("us", tz=zone and "UTC")), format=TIME_FORMAT + zone)
    texts = pc.replace_substring(micros.cast(pa.timestamp("us")).cast(pa.string()), " ", "T")
    return pc.binary_join_element_wise(texts, zone, "") if zone else texts


def finite(value: float) -> float | str:
    """Return NaN and the infinities as text, with the names that JavaScript and Spark parse."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def json_text(value: Any) -> str:
    """Return a converted value as compact JSON text."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
