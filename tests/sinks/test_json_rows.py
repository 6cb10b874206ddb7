import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headwater.json_values import json_part, or_null
from headwater.sinks.json_rows import json_objects

WINDOW = pa.struct([("start", pa.timestamp("us", tz="UTC")), ("end", pa.timestamp("us", tz="UTC"))])
SCHEMA = pa.schema(
    {
        'na"me': pa.string(),
        "n": pa.int64(),
        "x": pa.float64(),
        "small": pa.float32(),
        "at": pa.timestamp("us", tz="UTC"),
        "local": pa.timestamp("us"),
        "price": pa.decimal128(10, 2),
        "raw": pa.binary(),
        "yes": pa.bool_(),
        "day": pa.date32(),
        "window": WINDOW,
        "many": pa.list_(pa.int64()),
        "reals": pa.list_(pa.float64()),
        "map": pa.map_(pa.string(), pa.float64()),
        "deep": pa.struct([("window", WINDOW), ("x", pa.float64())]),
    }
)
TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))
UTC_TIMES = TIMES.map(lambda t: t.replace(tzinfo=UTC))
WINDOWS = st.fixed_dictionaries({"start": UTC_TIMES | st.none(), "end": UTC_TIMES})
ROW = st.fixed_dictionaries(
    {
        'na"me': st.text(),
        "n": st.integers(-(2**63), 2**63 - 1),
        "x": st.floats(),
        "small": st.floats(width=32),
        "at": UTC_TIMES,
        "local": TIMES,
        "price": st.decimals(-9999, 9999, places=2),
        "raw": st.binary(max_size=10),
        "yes": st.booleans(),
        "day": st.dates(date(1900, 1, 1)),
        "window": WINDOWS,
        "many": st.lists(st.integers(0, 9), max_size=3),
        "reals": st.lists(st.floats(), max_size=3),
        "map": st.dictionaries(st.text(max_size=3), st.floats() | st.none(), max_size=3).map(
            lambda d: [*d.items()]
        ),
        "deep": st.fixed_dictionaries({"window": WINDOWS | st.none(), "x": st.floats()}),
    }
)
NULLABLE = ROW.flatmap(
    lambda row: st.sets(st.sampled_from(list(row))).map(lambda nulls: {**row, **dict.fromkeys(nulls)})
)


@given(st.lists(NULLABLE, min_size=1, max_size=5))
def test_rows_are_written_like_their_single_values(rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, SCHEMA)
    parts = {field.name: or_null(json_part(field.type)) for field in SCHEMA}
    expected = [{name: parts[name](value) for name, value in row.items()} for row in table.to_pylist()]
    found = [json.loads(text) for text in json_objects(table).to_pylist()]
    for row, wanted in zip(found, expected, strict=True):
        small, wide = row.pop("small"), wanted.pop("small")
        assert small == wide or np.float32(small) == np.float32(wide)  # a shorter text for the same float
        assert row == wanted
        assert list(row) == [name for name in SCHEMA.names if name != "small"]


def test_numbers_are_json_numbers_unless_they_are_infinite() -> None:
    table = pa.table({"x": [1.5, None], "y": [math.inf, 2.0]})
    assert json_objects(table).to_pylist() == [b'{"x":1.5,"y":"Infinity"}', b'{"x":null,"y":2.0}']


def test_decimals_keep_their_digits() -> None:
    table = pa.table({"price": pa.array([Decimal("1.10")], pa.decimal128(10, 2))})
    assert json_objects(table).to_pylist() == [b'{"price":"1.10"}']


def test_no_rows_and_no_columns() -> None:
    assert json_objects(pa.table({"x": pa.array([], pa.int64())})).to_pylist() == []
