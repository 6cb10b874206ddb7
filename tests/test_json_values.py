"""Values in JSON: a column of times is written like its single values."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.json_values import time_text, time_texts


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
@given(times=st.lists(st.none() | st.datetimes()))
def test_a_column_of_times_is_written_like_its_values(zone: str | None, times: list[datetime | None]) -> None:
    instants = times if zone is None else [time and time.replace(tzinfo=UTC) for time in times]
    column = pa.chunked_array([pa.array(instants, pa.timestamp("us", tz=zone))])
    assert time_texts(column).to_pylist() == [None if time is None else time_text(time) for time in instants]


def test_times_of_other_units_and_years() -> None:
    seconds = pa.chunked_array([pa.array([0, None], pa.timestamp("s", tz="UTC"))])
    assert time_texts(seconds).to_pylist() == ["1970-01-01T00:00:00.000000Z", None]
    far = pa.chunked_array([pa.array([253_402_300_800_000_000, 0], pa.timestamp("us"))])
    assert time_texts(far).to_pylist() == ["10000-01-01T00:00:00.000000", "1970-01-01T00:00:00.000000"]
    assert time_texts(pa.chunked_array([], pa.timestamp("us"))).to_pylist() == []
