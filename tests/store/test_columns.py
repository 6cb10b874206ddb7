"""Columns of views, from Arrow to the values that databases keep."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.json_values import json_part, json_text
from headwater.store.values.columns import encode_column

TIMES = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31))


@given(
    rows=st.lists(st.tuples(TIMES, TIMES) | st.tuples(TIMES, st.none()) | st.none()),
    zone=st.sampled_from([None, "UTC", "Europe/Berlin"]),
    name=st.sampled_from(["end", 'a"b', "Ende ü"]),
)
def test_structs_of_times_are_encoded_like_other_values(rows: list[Any], zone: str | None, name: str) -> None:
    kind = pa.struct([("start", pa.timestamp("us", zone)), (name, pa.timestamp("us", zone))])

    def time(value: datetime | None) -> datetime | None:
        return value if value is None or zone is None else value.replace(tzinfo=UTC)

    values: list[Any] = [row and {"start": time(row[0]), name: time(row[1])} for row in rows]
    part = json_part(kind)
    expected = [None if value is None else json_text(part(value)) for value in values]
    half = len(values) // 2
    column = pa.chunked_array([pa.array(values[:half], kind), pa.array(values[half:], kind)])
    assert encode_column(column) == expected


@pytest.mark.parametrize("values", [[], [{}], [None, {}]])
def test_structs_without_fields(values: list[Any]) -> None:
    expected = [None if value is None else "{}" for value in values]
    assert encode_column(pa.chunked_array([pa.array(values, pa.struct([]))])) == expected
