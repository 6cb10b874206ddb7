"""Clocks of devices: their offsets are estimated, corrected and reported."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import InvalidError
from headwater.process.device_clocks import ClockKernel, DeviceClocks
from headwater.testing.simulator import Simulator

CLOCKS = DeviceClocks(device="device", event="event", sent="sent", received="received")
SCHEMA = pl.Schema({"device": pl.String, "event": pl.Int64, "sent": pl.Int64, "received": pl.Int64})


def readings(*rows: tuple[str | None, int | None, int | None, int]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=SCHEMA, orient="row")


def corrected(*steps: pl.DataFrame) -> list[tuple[int, int]]:
    simulator = Simulator(ClockKernel.of(CLOCKS, SCHEMA))
    for rows in steps:
        simulator.send(rows)
    return simulator.take_output().select("event", "clock_offset").rows()


def test_the_least_difference_seen_is_the_clocks_offset() -> None:
    # The clock of d is 1000 slow, that of e is right; transmission takes between 2 and 40.
    rows = readings(("d", 0, 10, 1050), ("d", 20, 30, 1035), ("e", 0, 10, 12))
    assert corrected(rows) == [(1005, 1005), (1025, 1005), (2, 2)]


def test_the_offset_is_kept_between_steps() -> None:
    assert corrected(readings(("d", 0, 10, 15)), readings(("d", 50, 60, 99)))[1] == (55, 5)


def test_times_of_a_fast_clock_are_reduced() -> None:
    assert corrected(readings(("d", 5000, 5010, 15))) == [(5, -4995)]


def test_rows_without_times_or_device_are_unchanged() -> None:
    assert corrected(readings(("d", 7, None, 15), (None, 8, 1, 100))) == [(7, 0), (8, 0)]


def test_a_clock_that_was_reset_is_estimated_again() -> None:
    hour = 3_600_000_000
    steps = [readings(("d", n * hour, n * hour, n * hour + 5)) for n in range(3)]
    steps += [readings(("d", n * hour - 900, n * hour - 900, n * hour)) for n in range(3, 6)]
    assert [offset for _, offset in corrected(*steps)] == [5, 5, 5, 5, 900, 900]


@given(st.integers(-(10**6), 10**6), st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_the_error_is_the_shortest_transmission_time(offset: int, delays: list[int]) -> None:
    """The remaining error is the shortest transmission time so far, independent of the clock's offset."""
    steps = [readings(("d", n - offset, n - offset, n + delay)) for n, delay in enumerate(delays)]
    errors = [event - n for n, (event, _) in enumerate(corrected(*steps))]
    assert errors == [min(delays[: n + 1]) for n in range(len(delays))]


def test_invalid_columns_are_rejected() -> None:
    with pytest.raises(InvalidError, match="there is no column 'sent'; the columns are device"):
        ClockKernel.of(CLOCKS, pl.Schema({"device": pl.String, "event": pl.Int64}))
    with pytest.raises(InvalidError, match="the time 'sent' is Float64, not Int64 microseconds"):
        ClockKernel.of(CLOCKS, pl.Schema({**SCHEMA, "sent": pl.Float64}))
    with pytest.raises(InvalidError, match="the rows already have a column 'clock_offset'"):
        ClockKernel.of(CLOCKS, pl.Schema({**SCHEMA, "clock_offset": pl.Int64}))
