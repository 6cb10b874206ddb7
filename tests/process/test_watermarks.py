"""Watermarks per partition, idleness, and the clocks of devices."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import InvalidError
from headwater.process.kernel import BEGINNING
from headwater.process.watermarks import OFFSETS, BoundedDisorder, Watermarks, correct_clocks


def test_a_lagging_partition_holds_the_watermark() -> None:
    marks = Watermarks(BoundedDisorder("5 microseconds")).observe({"a": 100, "b": 20}, now=0)
    assert marks.watermark == 15
    assert marks.holding == ["b"]
    assert marks.observe({"b": 90}, now=1).watermark == 85


def test_a_partition_that_said_nothing_yet_holds_too() -> None:
    marks = Watermarks().expect(["a", "b"], now=0).observe({"a": 100}, now=0)
    assert marks.watermark == BEGINNING
    assert marks.holding == ["b"]


def test_an_idle_partition_does_not_hold_and_is_named() -> None:
    marks = Watermarks(idle_after="10 microseconds").observe({"a": 100, "b": 20}, now=0)
    marks = marks.observe({"a": 130}, now=9)
    assert marks.watermark == 20
    marks = marks.observe({"a": 140}, now=10)
    assert (marks.watermark, marks.idle) == (140, ["b"])


def test_a_partition_that_comes_back_does_not_pull_the_watermark_back() -> None:
    marks = Watermarks(idle_after="10 microseconds").observe({"a": 100, "b": 20}, now=0)
    marks = marks.observe({"a": 140}, now=10).observe({"b": 30}, now=11)
    assert (marks.watermark, marks.idle) == (140, [])
    assert marks.observe({"a": 150, "b": 160}, now=12).watermark == 150


def test_if_all_are_idle_the_watermark_stands() -> None:
    marks = Watermarks(idle_after="10 microseconds").observe({"a": 100, "b": 20}, now=0).advance(now=50)
    assert (marks.watermark, marks.idle) == (20, ["a", "b"])


def test_without_idleness_nobody_is_idle() -> None:
    assert Watermarks().observe({"a": 100, "b": 20}, now=0).advance(now=10**12).idle == []


def test_a_users_estimate_is_taken() -> None:
    assert Watermarks(lambda latest, _now: latest // 2).observe({"a": 100}, now=0).watermark == 50


def test_an_estimate_beyond_the_latest_event_is_refused() -> None:
    with pytest.raises(InvalidError, match="partition 'a' gave 101, which is after its latest event 100"):
        Watermarks(lambda latest, _now: latest + 1).observe({"a": 100}, now=0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 100), st.integers(0, 20)), max_size=30))
def test_the_watermark_never_falls_and_never_passes_an_active_partition(steps: list[tuple[str, int, int]]) -> None:
    marks, now = Watermarks(BoundedDisorder("3 microseconds"), idle_after="30 microseconds"), 0
    for partition, time, ticks in steps:
        now += ticks
        before = marks.watermark
        marks = marks.observe({partition: time}, now)
        assert marks.watermark >= before
        active = [m.watermark for m in marks.partitions.values() if not m.is_idle]
        assert marks.watermark == max(before, min(active))


def readings(*rows: tuple[str, int | None, int | None, int]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=["device", "event", "sent", "received"], orient="row")


COLUMNS = {"device": "device", "event": "event", "sent": "sent", "received": "received"}


def test_the_least_difference_seen_is_the_clocks_offset() -> None:
    # The device's clock is 1000 behind ours; the way takes between 5 and 40.
    rows = readings(("d", 0, 10, 1050), ("d", 20, 30, 1035), ("e", 0, 10, 12))
    corrected, known = correct_clocks(rows, pl.DataFrame(schema=OFFSETS), **COLUMNS)
    assert corrected["clock_offset"].to_list() == [1005, 1005, 2]
    assert corrected["event"].to_list() == [1005, 1025, 2]
    assert dict(known.rows()) == {"d": 1005, "e": 2}


def test_what_is_known_of_a_clock_is_kept() -> None:
    _, known = correct_clocks(readings(("d", 0, 10, 15)), pl.DataFrame(schema=OFFSETS), **COLUMNS)
    corrected, known = correct_clocks(readings(("d", 50, 60, 99)), known, **COLUMNS)
    assert corrected["event"].to_list() == [55]
    assert known.rows() == [("d", 5)]


def test_a_clock_that_runs_ahead_is_moved_back() -> None:
    corrected, _ = correct_clocks(readings(("d", 5000, 5010, 15)), pl.DataFrame(schema=OFFSETS), **COLUMNS)
    assert corrected["event"].to_list() == [5]


def test_a_row_without_times_is_left_as_it_is() -> None:
    corrected, known = correct_clocks(readings(("d", 7, None, 15)), pl.DataFrame(schema=OFFSETS), **COLUMNS)
    assert corrected.select("event", "clock_offset").rows() == [(7, 0)]
    assert known.height == 0
