"""Sample values of every type that a result can have, edge cases first, and a comparison of values."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

WINDOW = pa.struct({"start": pa.timestamp("us", tz="UTC"), "end": pa.timestamp("us", tz="UTC")})

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (
        pa.string(),
        [
            "",
            " ",
            "tea",
            "Tea",
            "größer 茶 🍵",
            "NULL",
            "\\N",
            "\\.",
            "a,b;c\t\"d\"\n'e'\r\n",
            "{}",
            "%s $1 ?",
            "\x7f",
        ],
    ),
    "tinyint": (pa.int8(), [-128, 0, 127]),
    "smallint": (pa.int16(), [-(2**15), 0, 2**15 - 1]),
    "int": (pa.int32(), [-(2**31), 0, 2**31 - 1]),
    "bigint": (pa.int64(), [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1]),
    "float": (pa.float32(), [0.0, -1.5, 3.4028234663852886e38, math.inf, -math.inf, math.nan]),
    "double": (pa.float64(), [0.0, 0.1, -1e-300, 1.7976931348623157e308, math.inf, -math.inf, math.nan]),
    "decimal": (
        pa.decimal128(38, 18),
        [Decimal("0"), Decimal("-0.000000000000000001"), Decimal("12345678901234567890")],
    ),
    "boolean": (pa.bool_(), [True, False]),
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        [
            datetime(1970, 1, 1, tzinfo=UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            datetime(2026, 3, 29, 1, 30, 0, 1, tzinfo=UTC),
            datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
        ],
    ),
    "timestamp_ntz": (pa.timestamp("us"), [datetime(1970, 1, 1), datetime(2026, 3, 29, 2, 30, 0, 1)]),
    "date": (pa.date32(), [date(1970, 1, 1), date(1582, 10, 15), date(9999, 12, 31)]),
    "binary": (pa.binary(), [b"", b"\x00\xff\\N\n\"'", bytes(range(256))]),
    "struct": (
        WINDOW,
        [
            {"start": datetime(2026, 1, 1, 12, tzinfo=UTC), "end": datetime(2026, 1, 1, 13, tzinfo=UTC)},
            {"start": datetime(2026, 1, 1, 13, tzinfo=UTC), "end": datetime(2026, 1, 1, 14, 0, 0, 5, tzinfo=UTC)},
        ],
    ),
    "struct of all": (
        pa.struct({"a": pa.string(), "b": pa.struct({"c": pa.float64(), "d": pa.decimal128(10, 2)})}),
        [
            {"a": None, "b": None},
            {"a": 'x"\\\n', "b": {"c": 0.5, "d": Decimal("1.10")}},
            {"a": "", "b": {"c": None, "d": None}},
        ],
    ),
    "array": (pa.list_(pa.string()), [[], ["a"], ["", None, "NULL", '{"a,b"}']]),
    "array of structs": (
        pa.list_(pa.struct({"value": pa.string(), "count": pa.int64()})),
        [[], [{"value": "tea", "count": 2**53 + 1}, None, {"value": None, "count": None}]],
    ),
    "map": (pa.map_(pa.string(), pa.int64()), [[], [("a", 1), ("b", None)]]),
}
"""Each type by its SQL name: the Arrow type, and values. Tests also use null with each type."""


def canonical(value: Any, kind: pa.DataType) -> Any:
    """Return a hashable form that is equal for equal values: NaN equals NaN, and a map has no order."""
    if value is None:
        return None
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0  # turns -0.0 into 0.0
    if pa.types.is_map(kind) and not isinstance(value, str):
        pairs = value.items() if isinstance(value, dict) else value
        key, item = kind.key_type, kind.item_type
        return tuple(sorted(((canonical(k, key), canonical(v, item)) for k, v in pairs), key=repr))
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return tuple((field.name, canonical(value.get(field.name), field.type)) for field in kind)
    if pa.types.is_list(kind) and isinstance(value, list | tuple):
        return tuple(canonical(item, kind.value_type) for item in value)
    return value


def json_form(value: Any, kind: pa.DataType) -> Any:
    """Return a value as it is after a round trip through JSON, for destinations that store nested values so."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if pa.types.is_struct(kind):
        return {field.name: json_form(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return {str(k): json_form(v, kind.item_type) for k, v in value}
    if pa.types.is_list(kind):
        return [json_form(item, kind.value_type) for item in value]
    if pa.types.is_timestamp(kind):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, float):
        return value if math.isfinite(value) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    return str(value)
