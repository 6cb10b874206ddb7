"""The values that describe a computation: what they refuse, and what a kernel gives beside panes."""

from typing import Any

import polars as pl
import pytest

import headwater as hw
from headwater.errors import InvalidError
from headwater.process.kernel import Now
from headwater.process.windows.kernel import WindowedKernel
from headwater.process.windows.windowing import Windowing
from headwater.testing.simulator import Simulator

SCHEMA = pl.Schema({"k": pl.String, "event_time": pl.Int64, "x": pl.Int64})


def windowing(**arguments: Any) -> Windowing:
    return Windowing(**({"what": {"n": hw.count()}, "where": hw.Tumbling("10 seconds"), "by": ("k",)} | arguments))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hw.Hopping("1 minute", "soon"), "cannot read duration 'soon'"),
        (lambda: hw.Tumbling("1 minute", offset="2 minutes"), "cannot be shifted by '2 minutes'"),
        (lambda: hw.Session("1 minute", by="clock"), "by hw.EVENT_TIME or by hw.PROCESSING_TIME, not by 'clock'"),
        (lambda: hw.AfterCount(True), "AfterCount takes a number of events from 1 on, not True"),
        (lambda: hw.Repeatedly(hw.Default), "Repeatedly takes triggers, not .*; write it with parentheses"),
        (lambda: hw.AfterWatermark(early=3), "AfterWatermark takes triggers, not 3"),
        (hw.AfterAny, "AfterAny takes one trigger or more"),
        (lambda: windowing(what={}), "`what` names nothing to compute"),
        (lambda: windowing(what={"n": "count"}), "`what` has 'count' for 'n'; give an aggregate such as"),
        (lambda: windowing(what={"k": hw.count()}), "k would be there twice; rename it in `what`"),
        (lambda: windowing(what={"_change": hw.count()}), "_change would be there twice"),
        (lambda: windowing(by=("k", "k")), "`by` names a column twice"),
        (lambda: windowing(where="10 seconds"), "`where` cannot be '10 seconds'"),
        (lambda: windowing(when="always"), "`when` cannot be 'always'"),
        (lambda: windowing(how="retract"), "`how` is hw.DISCARDING, ACCUMULATING or RETRACTING, not 'retract'"),
        (lambda: windowing(lateness="long"), "cannot read duration 'long'"),
        (lambda: WindowedKernel.of(windowing(by=("z",)), SCHEMA), "there is no column 'z'; the columns are k, "),
        (lambda: WindowedKernel.of(windowing(time="k"), SCHEMA), "the event time 'k' is String, not Int64"),
    ],
)
def test_what_cannot_be_meant_is_told_in_words(make: Any, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        make()


def rows(*events: tuple[str, int, int]) -> pl.DataFrame:
    return pl.DataFrame(list(events), schema=SCHEMA, orient="row")


ALL_WINDOWS = [
    hw.Tumbling("5 microseconds"),
    hw.Session("5 microseconds"),
    hw.Sliding("5 microseconds"),
    hw.Global(),
]


@pytest.mark.parametrize("where", ALL_WINDOWS)
def test_schemas_are_told_beforehand(where: Any) -> None:
    kernel = WindowedKernel.of(windowing(where=where, how=hw.RETRACTING), SCHEMA)
    combined = kernel.combine(rows(("a", 1, 1), ("a", 1, 2)), Now(0, 0))
    assert combined.schema == kernel.combined_schema
    step = kernel.step(kernel.initial(), combined, Now(0, 0))
    step = kernel.step(step.state, rows(), Now(100, 0))
    assert step.output.schema == kernel.output_schema
    step = kernel.step(step.state, rows(("a", 1, 1)), Now(100, 0))
    if not isinstance(where, hw.Global):
        assert step.late is not None
        assert step.late.schema == kernel.late_schema


def test_combining_makes_fewer_rows() -> None:
    kernel = WindowedKernel.of(windowing(), SCHEMA)
    assert kernel.combine(rows(*(("a", n, n) for n in range(100))), Now()).height == 1


def test_combining_merges_what_is_one_session_whatever_else_comes() -> None:
    kernel = WindowedKernel.of(windowing(where=hw.Session("5 microseconds")), SCHEMA)
    combined = kernel.combine(rows(("a", 1, 1), ("a", 20, 1), ("a", 4, 1), ("b", 4, 1)), Now())
    spans = combined.select("k", "window_start", "window_end", "_n").rows()
    assert sorted(spans) == [("a", 1, 9, 2), ("a", 20, 25, 1), ("b", 4, 9, 1)]


@pytest.mark.parametrize("where", [*ALL_WINDOWS, hw.Hopping("6 microseconds", "2 microseconds")])
def test_a_row_without_a_time_is_in_the_ledger_once(where: Any) -> None:
    simulator = Simulator(WindowedKernel.of(windowing(where=where), SCHEMA))
    simulator.send(pl.DataFrame({"k": ["a", "a"], "event_time": [None, 1], "x": [7, 8]}, schema=SCHEMA))
    assert [(row["reason"], row["row"]["x"]) for row in simulator.take_late().rows(named=True)] == [
        ("no event time", 7)
    ]


def test_evicted_windows_are_counted_apart_from_late_rows() -> None:
    simulator = Simulator(WindowedKernel.of(windowing(where=hw.Tumbling("5 microseconds")), SCHEMA))
    simulator.send(rows(("a", 1, 1), ("b", 1, 1)))
    simulator.advance_watermark(6)
    simulator.send(rows(("a", 2, 1)))
    assert simulator.counters == {"panes": 2, "late": 1, "evicted": 2}


def test_a_step_touches_only_what_it_must() -> None:
    """Nothing is due and one key comes: the other windows are not read, and stand as they were."""
    kernel = WindowedKernel.of(windowing(), SCHEMA)
    first = kernel.step(kernel.initial(), rows(*((f"k{n}", 1, 1) for n in range(100))), Now(0, 0))
    second = kernel.step(first.state, rows(("k7", 2, 1)), Now(0, 0))
    changed = second.state["windows"].rows.join(first.state["windows"].rows, on=["k", "pending"], how="anti")
    assert changed["k"].to_list() == ["k7"]


def test_clock_and_watermark_do_not_go_back() -> None:
    simulator = Simulator(WindowedKernel.of(windowing(), SCHEMA))
    simulator.advance_watermark(5)
    simulator.advance_clock(5)
    with pytest.raises(InvalidError, match="the watermark stands at 5 and cannot fall to 4"):
        simulator.advance_watermark(4)
    with pytest.raises(InvalidError, match="the clock shows 5 and cannot go back to 4"):
        simulator.advance_clock(4)


def test_null_keys_are_a_key() -> None:
    simulator = Simulator(WindowedKernel.of(windowing(where=hw.Session("5 microseconds")), SCHEMA))
    frame = pl.DataFrame({"k": [None, None, "a"], "event_time": [1, 3, 3], "x": [1, 1, 1]}, schema=SCHEMA)
    simulator.send(frame[:1])
    simulator.send(frame[1:])
    simulator.advance_watermark(100)
    assert sorted(simulator.take_output().select("k", "n").rows(), key=str) == [("a", 1), (None, 2)]
